//! The HTML around the content. Scripts and styles are files of the server; data of a page is a JSON document
//! in an element, which the policy of the server does not run.

pub mod scripted;

use axum::response::Html;
use stratus_report::page::{escape, showable_json};

/// A page.
pub struct Page<'a> {
    /// The title, as text.
    pub title: &'a str,
    /// The content, as HTML.
    pub body: &'a str,
    /// The data of scripts, as JSON.
    pub data: Option<&'a str>,
    /// The token that scripts send with actions; `None` if there are none.
    pub actions: Option<&'a str>,
    /// The scripts, files of the assets.
    pub scripts: &'a [&'a str],
}

impl Page<'_> {
    /// The whole page.
    pub fn render(&self) -> Html<String> {
        let data = self.data.map(|data| {
            let data = showable_json(data.replace('<', "\\u003c"));
            format!("<script type=\"application/json\" id=\"data\">{data}</script>\n")
        });
        // All scripts write numbers and texts by the first one.
        let formats = self.scripts.first().map(|_| &"formats.js");
        let scripts: Vec<String> = formats
            .into_iter()
            .chain(self.scripts)
            .map(|name| format!("<script src=\"/assets/{name}\" defer></script>\n"))
            .collect();
        let token = self.actions.map(|token| format!("<meta name=\"stratus-page\" content=\"{token}\">\n"));
        Html(format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
             content=\"width=device-width, initial-scale=1\">\n<title>{} · Stratus</title>\n<link \
             rel=\"icon\" href=\"data:,\">\n<link rel=\"stylesheet\" href=\"/assets/uPlot.min.css\">\n<link \
             rel=\"stylesheet\" href=\"/assets/chart.css\">\n<link rel=\"stylesheet\" \
             href=\"/assets/page.css\">\n<link rel=\"stylesheet\" \
             href=\"/assets/ui.css\">\n{}{}</head>\n<body>\n<main>\n{}</main>\n{}</body>\n</html>\n",
            escape(self.title),
            token.unwrap_or_default(),
            scripts.concat(),
            self.body,
            data.unwrap_or_default(),
        ))
    }
}

/// A page with a message.
pub fn message(title: &str, text: &str) -> Html<String> {
    let body = format!("{}<h1>{}</h1>\n<p>{}</p>\n", navigation("", ""), escape(title), escape(text));
    Page { title, body: &body, data: None, actions: None, scripts: &[] }.render()
}

/// The pages that the navigation links to: address and title.
const LINKS: [(&str, &str); 4] =
    [("/", "All runs"), ("/sweeps", "Sweeps"), ("/launches", "Launches"), ("/forecast", "Forecast")];

/// The links at the top of a page, with the state of the connection. `here` is the address of the page, if it
/// is one of them.
fn navigation(here: &str, more: &str) -> String {
    let link = |(address, title): (&str, &str)| {
        let current = if address == here { " aria-current=\"page\"" } else { "" };
        format!("<a href=\"{address}\"{current}>{title}</a>")
    };
    let links: Vec<String> = LINKS.into_iter().map(link).collect();
    format!(
        "<nav aria-label=\"Pages\">{}{more}<span id=\"connection\" class=\"muted\" \
         role=\"status\"></span></nav>\n",
        links.concat()
    )
}

/// The page of all runs. `data` is the list that is shown first.
pub fn runs(data: &str, actions: Option<&str>) -> Html<String> {
    let body = navigation("/", "")
        + concat!(
            "<h1>Runs</h1>\n<div id=\"folders\" class=\"problems\"></div>\n",
            "<div class=\"tools\">\n",
            "<label>Filter <input id=\"filter\" type=\"search\" autocomplete=\"off\" spellcheck=\"false\" ",
            "placeholder=\"words that a row has\"></label>\n",
            "<label>Group by <select id=\"group\"></select></label>\n",
            "<details id=\"columns\"><summary>Columns</summary><div class=\"choice\"></div></details>\n",
            "<a id=\"compare\" class=\"button\" role=\"link\" aria-disabled=\"true\">Compare</a>\n",
            "<button id=\"clear\" type=\"button\" class=\"button\" hidden>Clear selection</button>\n",
            "</div>\n<p id=\"count\" class=\"note\" role=\"status\"></p>\n",
            "<p id=\"said\" class=\"hidden\" role=\"status\"></p>\n",
            "<div class=\"scroll\"><table id=\"runs\" aria-label=\"Runs\"><thead></thead></table></div>\n",
            "<div id=\"pager\" class=\"tools\"></div>\n<div id=\"empty\" hidden></div>\n",
            "<noscript><p class=\"problems\">This page needs JavaScript. `stratus runs` lists the runs on a ",
            "terminal.</p></noscript>\n",
        );
    let scripts = ["common.js", "figures.js", "actions.js", "table.js"];
    Page { title: "Runs", body: &body, data: Some(data), actions, scripts: &scripts }.render()
}

/// The page of a run. `sections` is HTML, `data` that of its charts.
pub fn run(label: &str, sections: &str, data: &str, actions: Option<&str>) -> Html<String> {
    let body = format!(
        "{}<p id=\"notice\" class=\"problems\" role=\"alert\" hidden></p>\n<div \
         id=\"sections\">\n{sections}</div>\n{DETAILS}",
        navigation(
            "",
            "<span id=\"progress\" role=\"status\"></span><span id=\"action\" role=\"status\"></span>"
        )
    );
    let scripts = ["uPlot.iife.min.js", "page.js", "common.js", "actions.js", "details.js", "run.js"];
    Page { title: label, body: &body, data: Some(data), actions, scripts: &scripts }.render()
}

/// The log and the files of a run.
const DETAILS: &str = concat!(
    "<details id=\"log-part\" open><summary>Log</summary>\n<p id=\"log-note\" class=\"note\"></p>\n",
    "<pre id=\"log\" role=\"log\" aria-live=\"off\" aria-label=\"Log\" tabindex=\"0\"></pre></details>\n",
    "<details id=\"files-part\"><summary>Files</summary>\n<p id=\"files-note\" class=\"note\"></p>\n",
    "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Table of files\">",
    "<table id=\"files\" aria-label=\"Files\"><thead><tr><th scope=\"col\">file</th>",
    "<th scope=\"col\" class=\"n\">size</th><th scope=\"col\">changed, UTC</th></tr></thead>",
    "<tbody></tbody></table></div></details>\n",
);

/// The page that compares runs.
pub fn comparison(count: usize, sections: &str, data: &str) -> Html<String> {
    let title = format!("{count} runs compared");
    let body = format!(
        "{}<h1>{}</h1>\n{CURVES}<div id=\"sections\">\n{sections}</div>\n{LAYER_TIMES}",
        navigation("", ""),
        escape(&title)
    );
    let scripts = ["uPlot.iife.min.js", "page.js", "common.js", "figures.js", "compare.js"];
    Page { title: &title, body: &body, data: Some(data), actions: None, scripts: &scripts }.render()
}

/// The times of layers, which are read when it is opened.
const LAYER_TIMES: &str = concat!(
    "<details id=\"layer-times\"><summary>Layer times side by side</summary>",
    "<div role=\"status\"></div></details>\n",
);

/// The curves of all runs in one chart, and its controls.
const CURVES: &str = concat!(
    "<section>\n<h2>Curves</h2>\n<div class=\"tools\">\n",
    "<label>Curve <select id=\"metric\"></select></label>\n",
    "<label>Over <select id=\"axis\"></select></label>\n",
    "<label>Smoothing <input id=\"smoothing\" type=\"range\" min=\"0\" max=\"0.99\" step=\"0.01\" ",
    "value=\"0\"></label>\n<label><input id=\"logarithmic\" type=\"checkbox\"> Logarithmic</label>\n",
    "<label hidden><input id=\"bands\" type=\"checkbox\"> Repetitions as bands</label>\n</div>\n",
    "<figure><figcaption id=\"curve-title\"></figcaption><div class=\"chart\" id=\"curve\"></div>\n",
    "<p id=\"curve-note\" class=\"note\" role=\"status\"></p></figure>\n</section>\n",
);
