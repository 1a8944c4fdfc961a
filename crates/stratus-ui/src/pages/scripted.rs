//! The HTML of the pages of sweeps, launches and forecasts. Their scripts fill it from the documents.

use axum::response::Html;
use stratus_report::page::escape;

use super::{Page, navigation};

/// The text for a browser without scripts.
macro_rules! no_script {
    ($command:literal) => {
        concat!(
            "<noscript><p class=\"problems\">This page needs JavaScript. `",
            $command,
            "` shows the same on a terminal.</p></noscript>\n"
        )
    };
}

/// A list with a table that a script fills.
fn list(address: &str, title: &str, data: &str, script: &str, rest: &str) -> Html<String> {
    let body = format!(
        "{}<h1>{title}</h1>\n<div id=\"problems\" class=\"problems\"></div>\n<p id=\"count\" \
         class=\"note\" role=\"status\"></p>\n<div class=\"scroll\" id=\"list\" tabindex=\"0\" \
         role=\"region\" aria-label=\"Table\"></div>\n<div \
         id=\"empty\" hidden></div>\n{rest}",
        navigation(address, "")
    );
    let scripts = ["common.js", "figures.js", script];
    Page { title, body: &body, data: Some(data), actions: None, scripts: &scripts }.render()
}

/// The list of sweeps.
pub fn sweeps(data: &str) -> Html<String> {
    list("/sweeps", "Sweeps", data, "sweeps.js", no_script!("stratus sweep DIR --dry-run"))
}

/// The page of a sweep.
pub fn sweep(label: &str, data: &str) -> Html<String> {
    let body = format!("{}<h1>Sweep {}</h1>\n{SWEEP}", navigation("", ""), escape(label));
    let scripts = ["common.js", "figures.js", "parallel.js", "sweep.js"];
    Page { title: label, body: &body, data: Some(data), actions: None, scripts: &scripts }.render()
}

const SWEEP: &str = concat!(
    "<p id=\"notice\" class=\"problems\" role=\"alert\" hidden></p>\n",
    "<p id=\"facts\" class=\"lead\"></p>\n<p id=\"best\" class=\"headline\" role=\"status\"></p>\n",
    "<section id=\"heat\" hidden>\n<h2>Two keys</h2>\n<div class=\"tools\">\n",
    "<label>Value <select id=\"value\"></select></label>\n",
    "<label>Columns <select id=\"heat-columns\"></select></label>\n",
    "<label>Rows <select id=\"heat-rows\"></select></label>\n</div>\n",
    "<figure><figcaption id=\"heat-title\"></figcaption>\n<div class=\"scroll\" id=\"heat-map\" ",
    "tabindex=\"0\" role=\"region\" aria-label=\"Heat map\"></div>\n",
    "<div id=\"heat-legend\" class=\"legend\"></div>\n<p id=\"heat-note\" class=\"note\"></p>",
    "</figure>\n</section>\n",
    "<section id=\"rounds\" hidden>\n<h2>Rounds of halving</h2>\n<p id=\"rounds-note\" class=\"note\"></p>\n",
    "<figure><figcaption id=\"rounds-title\"></figcaption>\n<div class=\"scroll\" id=\"rounds-plot\" ",
    "tabindex=\"0\" role=\"region\" aria-label=\"Drawing of the rounds\">",
    "</div></figure>\n",
    "<details><summary>The rounds as a table</summary>\n<div class=\"scroll\" id=\"rounds-table\" ",
    "tabindex=\"0\" role=\"region\" aria-label=\"Table of the rounds\">",
    "</div></details>\n",
    "</section>\n",
    "<section id=\"parallel\" hidden>\n<h2>All keys</h2>\n",
    "<p class=\"note\">Each line is a cell. Drag along an axis, or set its limits below, to choose cells; ",
    "the table of cells shows the same ones.</p>\n",
    "<figure><figcaption id=\"parallel-title\">",
    "</figcaption>\n<div class=\"scroll\" id=\"parallel-plot\" tabindex=\"0\" role=\"region\" ",
    "aria-label=\"Parallel coordinates\"></div></figure>\n",
    "<div id=\"filters\" class=\"filters\"></div>\n</section>\n",
    "<section>\n<h2>Cells</h2>\n<p id=\"cells-note\" class=\"note\" role=\"status\"></p>\n",
    "<div class=\"scroll\" id=\"cells\" tabindex=\"0\" role=\"region\" aria-label=\"Table of ",
    "cells\"></div>\n<div id=\"pager\" class=\"tools\"></div>\n</section>\n",
    no_script!("stratus sweep DIR --dry-run"),
);

/// The list of launches.
pub fn launches(data: &str) -> Html<String> {
    list("/launches", "Launches", data, "launches.js", no_script!("stratus launch list"))
}

/// The page of a launch.
pub fn launch(label: &str, data: &str) -> Html<String> {
    let body = format!("{}<h1>Launch {}</h1>\n{LAUNCH}", navigation("", ""), escape(label));
    let scripts = ["common.js", "figures.js", "launch.js"];
    Page { title: label, body: &body, data: Some(data), actions: None, scripts: &scripts }.render()
}

const LAUNCH: &str = concat!(
    "<p id=\"notice\" class=\"problems\" role=\"alert\" hidden>",
    "</p>\n<div id=\"problems\" class=\"problems\"></div>\n",
    "<p id=\"facts\" class=\"lead\"></p>\n",
    "<p class=\"note\" id=\"asked\"></p>\n<dl id=\"tiles\" class=\"tiles\"></dl>\n",
    "<section id=\"hosts-part\" hidden><h2>Hosts</h2>\n<div class=\"scroll\" id=\"hosts\" tabindex=\"0\" ",
    "role=\"region\" aria-label=\"Table of hosts\"></div></section>\n",
    "<section><h2>Repetitions</h2>\n<p id=\"queue\" class=\"note\">",
    "</p>\n<div class=\"scroll\" id=\"repetitions\" tabindex=\"0\" role=\"region\" aria-label=\"Table of ",
    "repetitions\"></div>\n",
    "<div id=\"pager\" class=\"tools\"></div></section>\n",
    "<section><h2>Events</h2>\n<div class=\"scroll\" id=\"events\" tabindex=\"0\" ",
    "role=\"region\" aria-label=\"Table of events\"></div></section>\n",
    no_script!("stratus launch status ID"),
);

/// The page of forecasts. `data` is the choices of the form.
pub fn forecast(data: &str) -> Html<String> {
    let body = format!("{}<h1>Forecast</h1>\n{FORECAST}", navigation("/forecast", ""));
    let scripts = ["common.js", "figures.js", "forecast.js"];
    Page { title: "Forecast", body: &body, data: Some(data), actions: None, scripts: &scripts }.render()
}

const FORECAST: &str = concat!(
    "<p class=\"note\">Time, memory and price of a training on the machines of the catalogue, as ",
    "`stratus forecast` computes them; intervals of 80 %.</p>\n",
    "<form id=\"request\" class=\"filters\">\n",
    "<label>Experiment <select id=\"experiment\"></select></label>\n",
    "<label>Batch <input id=\"batch\" placeholder=\"as configured\" autocomplete=\"off\"></label>\n",
    "<label>Images <input id=\"images\" inputmode=\"numeric\" placeholder=\"of the data set\" ",
    "autocomplete=\"off\"></label>\n",
    "<label>Epochs <input id=\"epochs\" inputmode=\"numeric\" placeholder=\"as configured\" ",
    "autocomplete=\"off\"></label>\n",
    "<label>Precision <select id=\"precision\"></select></label>\n",
    "<label>Objective <select id=\"objective\"></select></label>\n",
    "<label id=\"limit-part\" hidden><span id=\"limit-name\"></span>",
    " <input id=\"limit\" autocomplete=\"off\"></label>\n",
    "<button class=\"button\">Forecast</button>\n</form>\n",
    "<p id=\"notice\" class=\"problems\" role=\"alert\" hidden></p>\n",
    "<p id=\"state\" class=\"note\" role=\"status\"></p>\n<div id=\"result\" hidden>\n",
    "<section><h2>Choice</h2>\n<div id=\"choice\"></div>\n<p class=\"note\">The same on a terminal: ",
    "<code id=\"command\"></code></p>\n<div class=\"scroll\" id=\"bill\" tabindex=\"0\" role=\"region\" ",
    "aria-label=\"Bill\"></div></section>\n",
    "<section><h2>Machines</h2>\n<figure><figcaption id=\"intervals-title\"></figcaption>\n",
    "<div class=\"scroll\" id=\"intervals\" tabindex=\"0\" role=\"region\" aria-label=\"Drawing of ",
    "intervals\"></div>\n<p id=\"intervals-note\" class=\"note\"></p></figure>\n",
    "<div class=\"scroll\" id=\"machines\" tabindex=\"0\" role=\"region\" aria-label=\"Table of ",
    "machines\"></div></section>\n",
    "<section id=\"left-out-part\" hidden><h2>",
    "Machines that cannot run it</h2>\n<div class=\"scroll\" id=\"left-out\" tabindex=\"0\" role=\"region\" ",
    "aria-label=\"Table of machines that cannot run it\"></div></section>\n",
    "<section id=\"notes-part\" hidden><h2>Notes</h2>\n<ul id=\"notes\"></ul></section>\n</div>\n",
    no_script!("stratus forecast EXPERIMENT"),
);
