//! Forecasts for the page of `stratus ui`: the arguments, the code and the words of the command.

use super::render::{NO_KERNELS, is_old, shortage, today};
use super::{DEFAULT_OBJECTIVE, ForecastArguments, Report, choice, confined, make_report};
use crate::errors::Failure;
use crate::globals::Globals;
use crate::output::Output;
use clap::Parser;
use serde::Serialize;
use stratus_base::text::shell_word;
use stratus_experiment::{Experiment, KEYS, ValueKind};
use stratus_forecast::forecast::Forecast;
use stratus_ui::{ForecastExperiment, ForecastRequest, Forecaster};

/// The key of the number format.
const PRECISION: &str = "train.precision";

/// The forecaster of `stratus ui`.
#[derive(Clone, Copy, Debug)]
pub struct PageForecaster;

/// The arguments of `stratus forecast`, with those of every command.
#[derive(Parser)]
#[command(name = "stratus forecast", no_binary_name = true, disable_help_flag = true)]
struct CommandArguments {
    #[command(flatten)]
    arguments: ForecastArguments,
    #[command(flatten)]
    globals: Globals,
}

/// The document of a page.
#[derive(Serialize)]
struct PageForecast<'a> {
    /// That of `stratus forecast --json`.
    forecast: &'a Report,
    /// The positions of the rows in the order of the objective, and the position of the chosen one.
    order: Vec<usize>,
    best: Option<usize>,
    /// The reason why each row cannot run; null if it can.
    reasons: Vec<Option<String>>,
    /// True for the rows whose price is old.
    old_prices: Vec<bool>,
    /// Machines without a row, with the reason.
    left_out: &'a [(String, String)],
    /// The choice in words.
    choice: String,
    /// The assumptions.
    notes: Vec<String>,
    /// The command that computes the same.
    command: String,
}

impl Forecaster for PageForecaster {
    fn experiments(&self) -> Vec<String> {
        Experiment::builtin_names().map(str::to_owned).collect()
    }

    /// The values of the key, except that of its default: a page offers to leave it as configured.
    fn precisions(&self) -> Vec<String> {
        let key = KEYS.iter().find(|key| key.name == PRECISION);
        let Some(ValueKind::Choice(words)) = key.map(|key| key.kind) else { return Vec::new() };
        words.iter().filter(|word| **word != "auto").map(|word| (*word).to_owned()).collect()
    }

    fn forecast(&self, request: &ForecastRequest) -> Result<String, String> {
        let words = words_of(request)?;
        let mut line =
            CommandArguments::try_parse_from(&words).map_err(|error| first_line(&error.to_string()))?;
        if let ForecastExperiment::Run(run) = &request.experiment {
            // It may be the run of a stranger, which was not started here.
            line.arguments.confined_to = Some(run.clone());
        }
        let target = line.arguments.target.as_deref().unwrap_or_default();
        let mut notes = Vec::new();
        let output = Output::new(true, true).silent();
        let note = &mut |text: &str| notes.push(text.to_owned());
        let report = make_report(&line.arguments, target, &line.globals, &output, note);
        let report = report.map_err(|failure| in_one_sentence(&failure))?;
        let page = PageForecast {
            order: report.order().collect(),
            best: report.ranking.best(),
            reasons: report.machines.iter().map(reason).collect(),
            old_prices: report.machines.iter().map(|row| is_old(row, today())).collect(),
            left_out: &report.left_out,
            choice: choice::render(&report),
            notes,
            command: command_of(&words),
            forecast: &report,
        };
        serde_json::to_string(&page).map_err(|error| error.to_string())
    }
}

/// The arguments of the command for a request. Each value is part of a word that begins with its flag, so
/// that it cannot be another flag.
fn words_of(request: &ForecastRequest) -> Result<Vec<String>, String> {
    let target = match &request.experiment {
        ForecastExperiment::Builtin(name) => name.clone(),
        ForecastExperiment::Run(path) => {
            let path = path.to_str().ok_or("the path of the run is not UTF-8")?;
            path.to_owned()
        }
    };
    let recorded = match &request.experiment {
        ForecastExperiment::Run(path) if request.images.is_empty() => confined::recorded_images(path),
        _ => None,
    };
    let [images, validation] = recorded.unwrap_or_default().map(|images| match images {
        0 => String::new(),
        images => images.to_string(),
    });
    let images = if request.images.is_empty() { &images } else { &request.images };
    let mut words = vec![target];
    let given = [
        ("--batch=", &request.batch),
        ("--images=", images),
        ("--validation-images=", &validation),
        ("--epochs=", &request.epochs),
        ("--objective=", &request.objective),
    ];
    for (flag, value) in given.into_iter().filter(|(_, value)| !value.is_empty()) {
        words.push(format!("{flag}{value}"));
    }
    if !request.precision.is_empty() {
        words.push(format!("--set={PRECISION}={}", request.precision));
    }
    Ok(words)
}

/// The command with these arguments, to paste into a terminal.
fn command_of(words: &[String]) -> String {
    let default = format!("--objective={DEFAULT_OBJECTIVE}");
    let words = words.iter().filter(|word| **word != default);
    let words: Vec<String> = words.map(|word| shell_word(word).to_string()).collect();
    format!("stratus forecast {}", words.join(" "))
}

/// The reason why a row cannot run, in the words of the command.
fn reason(row: &Forecast) -> Option<String> {
    if row.fits == Some(false) {
        return Some(format!("does not fit in memory: {}", shortage(row)));
    }
    (!row.is_supported).then(|| NO_KERNELS.to_owned())
}

/// The message of an error of the arguments, without the usage.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").to_owned()
}

fn in_one_sentence(failure: &Failure) -> String {
    match &failure.hint {
        Some(hint) => format!("{}; {hint}", failure.error),
        None => failure.error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(batch: &str, objective: &str) -> ForecastRequest {
        ForecastRequest {
            experiment: ForecastExperiment::Builtin("digits".to_owned()),
            batch: batch.to_owned(),
            images: "60000".to_owned(),
            epochs: "2".to_owned(),
            precision: "f32".to_owned(),
            objective: objective.to_owned(),
        }
    }

    #[test]
    fn precisions_are_those_of_the_key() {
        assert_eq!(PageForecaster.precisions(), ["f32", "bf16", "f16"]);
    }

    #[test]
    fn a_request_becomes_the_arguments_of_the_command() {
        let words = words_of(&request("64,128", "deadline=6h")).unwrap();
        let expected = [
            "digits",
            "--batch=64,128",
            "--images=60000",
            "--epochs=2",
            "--objective=deadline=6h",
            "--set=train.precision=f32",
        ];
        assert_eq!(words, expected);
        assert_eq!(command_of(&words), format!("stratus forecast {}", expected.join(" ")));
        assert!(!command_of(&words_of(&request("64", "value")).unwrap()).contains("objective"));
    }

    /// The data set of a run, and its network, may be anything of anyone.
    #[test]
    fn nothing_outside_of_a_run_is_opened() {
        let root = tempfile::tempdir().unwrap();
        let run = root.path().join("runs/digits/1");
        std::fs::create_dir_all(&run).unwrap();
        let forecast = |text: &str| {
            std::fs::write(run.join("experiment.toml"), text).unwrap();
            let experiment = ForecastExperiment::Run(run.clone());
            PageForecaster.forecast(&ForecastRequest { experiment, ..request("64", "value") })
        };
        // A folder of images that could be opened.
        let data = root.path().join("data");
        for class in ["train/a", "train/b", "val/a", "val/b"] {
            std::fs::create_dir_all(data.join(class)).unwrap();
            std::fs::write(data.join(class).join("1.png"), "not a picture").unwrap();
        }
        for path in [data.to_str().unwrap(), "s3://bucket/data", "http://127.0.0.1:1/data", "/dev/zero"] {
            let text = format!("[model]\nname = \"digits\"\n[data]\nname = \"folder\"\npath = {path:?}\n");
            let page: serde_json::Value = serde_json::from_str(&forecast(&text).unwrap()).unwrap();
            assert_eq!(page["forecast"]["images"], 60000);
            let notes = page["notes"].to_string();
            assert!(notes.contains("`folder` is not opened"), "{path}: {notes}");
        }
        let network = root.path().join("network.toml");
        std::fs::write(&network, "secret").unwrap();
        let problem = forecast(&format!("[model]\nname = {network:?}\n")).unwrap_err();
        assert!(problem.contains("not opened here") && !problem.contains("secret"), "{problem}");
    }

    #[test]
    fn invalid_requests_are_refused_in_one_line() {
        for (batch, objective, part) in [
            ("0", "value", "--batch"),
            ("x", "value", "--batch"),
            ("64 --on=here", "value", "--batch"),
            ("64", "soon", "objective"),
            ("64", "deadline=", "deadline"),
            ("64", "budget=-1", "budget"),
            ("64", "--all", "objective"),
        ] {
            let problem = PageForecaster.forecast(&request(batch, objective)).unwrap_err();
            assert!(problem.contains(part) && !problem.contains('\n'), "{batch} {objective}: {problem}");
        }
    }
}
