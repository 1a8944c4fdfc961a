//! Every built-in network with every command, in small: four images of the smallest size that the network
//! accepts, four filters in the first convolution. The registry has the list of networks.

#![cfg(unix)]

use crate::common::{CommandOutput, TestDir, last_epoch, streets, summary};
use png::ColorType;
use serde_json::Value;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use stratus_graph::zoo::{ModelConfig, NETWORKS, Network};
use stratus_testing::sample::is_thorough;

/// The number of filters of the first convolution.
const WIDTH: usize = 4;
/// The number of classes of the synthetic images.
const CLASSES: usize = 3;
/// Heights and widths of images; a network gets the smallest that it accepts.
const SIDES: [usize; 9] = [16, 32, 48, 64, 80, 96, 128, 224, 299];

type Check = Result<(), String>;

/// The name of a command, and its check.
type Command = (&'static str, fn(&Subject) -> Check);

/// A network in a separate folder with a completed run `whole`.
struct Subject {
    network: &'static Network,
    dir: TestDir,
    settings: Vec<String>,
    masks: bool,
}

impl Subject {
    /// Trains `network` to the end.
    fn new(network: &'static Network) -> Result<Self, String> {
        let defaults = (network.defaults)();
        let channels = defaults.input[0];
        let builds = |side: &usize| {
            let input = [channels, *side, *side];
            (network.build)(&ModelConfig { input, classes: CLASSES, width: Some(WIDTH) })
        };
        let (side, graph) = SIDES
            .iter()
            .find_map(|side| Some((*side, builds(side).ok()?)))
            .ok_or_else(|| format!("it cannot be built with a width of {WIDTH}: {:?}", builds(&299).err()))?;
        let masks = graph.shape(graph.output).0.len() == 3;
        let dir = TestDir::without_kernel_cache();
        let data = if masks {
            streets::write_streets_with(&dir, 4, 2);
            let [height, width] = [streets::HEIGHT, streets::WIDTH];
            vec!["data.name=camvid".to_owned(), "data.path=set".to_owned(), shape([3, height, width])]
        } else {
            let sizes =
                ["images=4".to_owned(), "validation_images=2".to_owned(), format!("classes={CLASSES}")];
            let mut data = vec!["data.name=synthetic".to_owned(), shape([channels, side, side])];
            data.extend(sizes.map(|size| format!("data.synthetic.{size}")));
            data
        };
        let common = [
            "train.epochs=2",
            "train.batch_size=2",
            "validation.batch_size=2",
            "schedule.warmup_epochs=0",
            // Deep networks of this width diverge with their own rate in so few iterations. With 1e-5 the
            // loss of resnet152 in validation was between 1 and infinity, depending on the kernels.
            "optimiser.learning_rate=0.0000001",
            "train.threads=1",
        ];
        let width = format!("model.width={WIDTH}");
        let settings = common.map(str::to_owned).into_iter().chain([width]).chain(data).collect();
        let subject = Self { network, dir, settings, masks };
        subject.train("whole", &[])?;
        Ok(subject)
    }

    /// Runs a command, which must exit with code 0.
    fn run(&self, arguments: &[&str]) -> Result<CommandOutput, String> {
        let ran =
            CommandOutput::new(self.dir.command(arguments).output().map_err(|error| error.to_string())?);
        if ran.code == Some(0) {
            return Ok(ran);
        }
        Err(format!("`stratus {}` ended with {:?}: {}", arguments.join(" "), ran.code, ran.err))
    }

    /// Runs a command with the settings of the network.
    fn run_experiment(&self, command: &str, more: &[&str]) -> Result<CommandOutput, String> {
        let set = self.settings.iter().flat_map(|setting| ["--set", setting]);
        let arguments: Vec<&str> = [command, self.network.name].into_iter().chain(set).collect();
        self.run(&[&arguments, more].concat())
    }

    fn train(&self, out: &str, more: &[&str]) -> Result<CommandOutput, String> {
        self.run_experiment("train", &[&["--out", out], more].concat())
    }

    /// The hash of the weights of a completed run.
    fn weights(&self, run: &str) -> Result<String, String> {
        let summary = summary(&self.dir.path(run));
        match (&summary["status"], &summary["weights_sha256"]) {
            (Value::String(status), Value::String(hash)) if status == "completed" => Ok(hash.clone()),
            _ => Err(format!("{run} is not complete: {summary}")),
        }
    }

    /// Writes an image for [`Self::infer_image`].
    fn write_image(&self) {
        let side = 40;
        let channels = (self.network.defaults)().input[0];
        let colour = if channels == 1 { ColorType::Grayscale } else { ColorType::Rgb };
        let pixels: Vec<u8> = (0..side * side * channels).map(|at| (at * 37 % 251) as u8).collect();
        streets::write_sized(&self.dir.path("image.png"), colour, &pixels, [side, side]);
    }

    /// The result for the image: the probability of each class, or the classes of the mask.
    fn infer_image(&self, arguments: &[&str]) -> Result<Vec<f64>, String> {
        let infer = [&["infer"], arguments, &["image.png", "--json"]].concat();
        if self.masks {
            self.run(&[&infer[..], &["--raw", "--out", "masks"]].concat())?;
            let mask = streets::grey(&self.dir.path("masks/image.png"));
            std::fs::remove_dir_all(self.dir.path("masks")).map_err(|error| error.to_string())?;
            return Ok(mask.into_iter().map(f64::from).collect());
        }
        let answer = json(&self.run(&infer)?)?;
        let mut probabilities = vec![0.0; CLASSES];
        for top in answer["images"][0]["top"].as_array().ok_or("no classes")? {
            let class = top["class"].as_u64().ok_or("no class")? as usize;
            probabilities[class] = top["probability"].as_f64().ok_or("no probability")?;
        }
        Ok(probabilities)
    }
}

fn shape([channels, height, width]: [usize; 3]) -> String {
    format!("data.shape=[{channels}, {height}, {width}]")
}

fn json(ran: &CommandOutput) -> Result<Value, String> {
    serde_json::from_str(&ran.out).map_err(|error| format!("{error}: {}", ran.out))
}

fn expect_file(path: &Path) -> Check {
    match path.metadata() {
        Ok(file) if file.len() > 0 => Ok(()),
        _ => Err(format!("{} is missing or empty", path.display())),
    }
}

/// A resumed run is bit-identical to an uninterrupted one.
fn resumes(subject: &Subject) -> Check {
    subject.train("cut", &["--until-epoch", "1"])?;
    subject.run(&["train", "cut"])?;
    let (whole, cut) = (subject.weights("whole")?, subject.weights("cut")?);
    if whole == cut { Ok(()) } else { Err(format!("the weights are {cut}, without interruption {whole}")) }
}

/// `eval` repeats the loss of the last validation.
fn evaluates(subject: &Subject) -> Check {
    let measured = json(&subject.run(&["eval", "whole", "--json"])?)?;
    let trained = last_epoch(&subject.dir.path("whole"), "val_loss");
    // JSON cannot represent a non-finite loss, which a deep network may have after four iterations.
    let loss = match &measured["loss"] {
        Value::Null if measured["samples"] == 2 => f64::NAN,
        loss => loss.as_f64().ok_or_else(|| format!("no loss: {measured}"))?,
    };
    if (loss - trained).abs() <= 1e-5 * trained.abs() || !(loss.is_finite() || trained.is_finite()) {
        return Ok(());
    }
    Err(format!("the loss is {loss}, in training {trained}"))
}

fn infers(subject: &Subject) -> Check {
    subject.write_image();
    let answer = subject.infer_image(&["whole"])?;
    let sum: f64 = answer.iter().sum();
    if subject.masks {
        let classes = (0.0..streets::CLASSES as f64).contains(&answer[0]);
        return if classes { Ok(()) } else { Err(format!("{answer:?}")) };
    }
    if (sum - 1.0).abs() < 1e-4 { Ok(()) } else { Err(format!("the probabilities are {answer:?}")) }
}

/// A network has the same results after an ONNX round trip.
fn exports(subject: &Subject) -> Check {
    subject.write_image();
    subject.train("exact", &["--until-epoch", "1", "--set", "train.precision=f32"])?;
    subject.run(&["model", "export", "exact", "--onnx", "net.onnx"])?;
    subject.run(&["model", "import", "net.onnx", "--out", "net"])?;
    let trained = subject.infer_image(&["exact"])?;
    let set = ["--set", "train.precision=f32"];
    let imported =
        subject.infer_image(&[&["net/net.toml", "--weights", "net/net.safetensors"], &set[..]].concat())?;
    let differ = trained.iter().zip(&imported).filter(|(a, b)| (*a - *b).abs() > 1e-4).count();
    // A pixel of a mask may change if its two best classes are nearly equal.
    let allowed = if subject.masks { trained.len() / 100 } else { 0 };
    if trained.len() == imported.len() && differ <= allowed {
        return Ok(());
    }
    Err(format!("{differ} answers differ: {trained:?} and {imported:?}"))
}

fn plans(subject: &Subject) -> Check {
    for dump in ["graph", "program", "plan"] {
        let output = subject.run_experiment("plan", &["--dump", dump])?.out;
        if !output.contains("conv") {
            return Err(format!("--dump {dump} says {output:?}"));
        }
    }
    subject.run(&["plan", "whole"]).map(|_| ())
}

fn forecasts(subject: &Subject) -> Check {
    for on in ["h100-80gb-sxm", "here"] {
        let output = json(&subject.run_experiment("forecast", &["--on", on, "--json"])?)?;
        let step = output["machines"][0]["step_s"].as_f64();
        if step.is_none_or(|step| step <= 0.0) {
            return Err(format!("the forecast for {on} is {output}"));
        }
    }
    subject.run(&["forecast", "whole", "--on", "h100-80gb-sxm", "--json"]).map(|_| ())
}

/// Two workers are bit-identical to one with the same parts.
fn trains_with_workers(subject: &Subject) -> Check {
    if !crate::workers::has_mpi() {
        return Ok(());
    }
    // Two samples per part, so that batch norms have statistics, and a validation batch per worker.
    let settings = ["train.parts=2", "train.epochs=1", "train.batch_size=4", "validation.batch_size=1"];
    let parts: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    subject.train("alone", &parts)?;
    subject.train("shared", &[&parts[..], &["--workers", "2"]].concat())?;
    let (alone, shared) = (subject.weights("alone")?, subject.weights("shared")?);
    if alone == shared { Ok(()) } else { Err(format!("two workers make {shared}, one makes {alone}")) }
}

fn reports(subject: &Subject) -> Check {
    subject.run(&["report", "whole", "--out", "page.html"])?;
    expect_file(&subject.dir.path("page.html"))
}

fn collects(subject: &Subject) -> Check {
    subject.run(&["collect", "whole", "--layers"])?;
    expect_file(&subject.dir.path("whole/layers.csv"))
}

/// The commands that are tested with every network in every test run.
const ALWAYS: [Command; 2] = [("resume", resumes), ("eval", evaluates)];

/// The commands that are tested with several networks of different families in every test run.
const ROTATING: [Command; 7] = [
    ("infer", infers),
    ("model export", exports),
    ("plan", plans),
    ("forecast", forecasts),
    ("train --workers", trains_with_workers),
    ("report", reports),
    ("collect", collects),
];

/// Tests every network with [`ALWAYS`] and the commands of [`ROTATING`] that `chosen` selects by both
/// positions, and reports all failures.
fn check(wanted: fn(usize) -> bool, chosen: fn(usize, usize) -> bool) {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((position, network)) =
            NETWORKS.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed))
        {
            if !wanted(position) {
                continue;
            }
            let rotating = ROTATING.iter().enumerate().filter(|(command, _)| chosen(position, *command));
            let commands = ALWAYS.iter().chain(rotating.map(|(_, command)| command));
            let failed: Vec<String> = match Subject::new(network) {
                Ok(subject) => commands
                    .filter_map(|(name, command)| Some(format!("{name}: {}", command(&subject).err()?)))
                    .collect(),
                Err(error) => vec![format!("train: {error}")],
            };
            let failed = failed.into_iter().map(|failure| format!("{}: {failure}", network.name));
            failures.lock().unwrap().extend(failed);
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// `make test` takes every other block of networks, a network for each command.
#[test]
fn networks_train_resume_and_evaluate() {
    let wanted = |network: usize| is_thorough() || (network / ROTATING.len()).is_multiple_of(2);
    check(wanted, |network, command| network % ROTATING.len() == command);
}

#[test]
#[ignore = "takes minutes; networks_train_resume_and_evaluate tests a part of it"]
fn every_network_works_with_every_command() {
    check(|_| true, |_, _| true);
}
