//! What a training says of itself before its first iteration.

use super::setup::RunSetup;
use crate::experiment::Experiment;
use std::path::Path;

/// Width of the names before the lines.
const NAMES: usize = 9;

/// What will be done, a line for each kind of thing.
pub(super) fn header(setup: &RunSetup, run: &Path) -> Vec<String> {
    let RunSetup { resolved, datasets, graph, device, compiled, .. } = setup;
    let settings = resolved.settings();
    let train = datasets.train.as_ref();
    let parameters: usize =
        graph.parameters.iter().map(|parameter| parameter.shape.iter().product::<usize>()).sum();
    let shape = graph.input_shape().0.iter().map(usize::to_string).collect::<Vec<_>>().join("×");
    let lines = [
        (
            "data",
            format!(
                "{}: {} training and {} validation images, {} classes",
                settings.data.name,
                train.len(),
                datasets.validation.len(),
                train.classes()
            ),
        ),
        ("network", format!("{}, {} parameters, images of {shape}", graph.name, short(parameters))),
        (
            "device",
            format!(
                "{}, {}, {:.1} MiB",
                device.backend.describe(),
                compiled.plans.train.program.precision,
                compiled.plans.arena_bytes as f64 / 1_048_576.0
            ),
        ),
        ("training", length(settings, resolved.samples())),
        ("optimiser", optimiser(settings)),
        ("run", run.display().to_string()),
    ];
    lines.iter().map(|(name, text)| line(name, text)).collect()
}

/// A name and what there is to say, in columns.
pub(super) fn line(name: &str, text: &str) -> String {
    format!("{name:NAMES$}  {text}")
}

/// `50 epochs of 59 iterations of 1024 images`.
fn length(settings: &Experiment, samples: usize) -> String {
    let train = &settings.train;
    let iterations = match settings.data.drop_last {
        true => samples / train.batch_size,
        false => samples.div_ceil(train.batch_size),
    };
    let parts =
        if train.micro_batches > 1 { format!(", in {} parts", train.micro_batches) } else { String::new() };
    let count = |number: u64, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    format!(
        "{} of {} of {} images{parts}",
        count(train.epochs, "epoch"),
        count(iterations as u64, "iteration"),
        train.batch_size
    )
}

/// The rule, the highest learning rate and where it comes from, and how it moves.
fn optimiser(settings: &Experiment) -> String {
    let rate = settings.optimiser.learning_rate;
    let rate = match (settings.learning_rate_factor(), settings.optimiser.learning_rate_batch) {
        (Some(factor), Some(batch)) => {
            format!("{} (scaled from {rate} for batches of {batch})", significant(rate * factor))
        }
        _ => rate.to_string(),
    };
    let schedule = &settings.schedule;
    let warmup = match schedule.warmup_epochs {
        epochs if epochs > 0.0 => format!(", after a warm-up of {epochs} epochs"),
        _ => String::new(),
    };
    format!("{}, learning rate {rate}, {}{warmup}", settings.optimiser.name, schedule.name)
}

/// Four significant digits.
fn significant(number: f64) -> String {
    format!("{number:.3e}").parse::<f64>().map_or_else(|_| number.to_string(), |number| number.to_string())
}

/// `11.7 M`.
fn short(count: usize) -> String {
    match count {
        0..10_000 => count.to_string(),
        10_000..1_000_000 => format!("{:.1} thousand", count as f64 * 1e-3),
        _ => format!("{:.1} million", count as f64 * 1e-6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resnet(keys: &[(&str, &str)]) -> Experiment {
        Experiment::builtin("resnet18").unwrap().with_overrides(keys).unwrap()
    }

    #[test]
    fn the_rate_says_where_it_comes_from() {
        let step = "sgd, learning rate 0.1, step";
        assert_eq!(optimiser(&resnet(&[])), step);
        assert_eq!(
            optimiser(&resnet(&[("train.batch_size", "24")])),
            "sgd, learning rate 0.009375 (scaled from 0.1 for batches of 256), step"
        );
        assert_eq!(
            optimiser(&resnet(&[("train.batch_size", "24"), ("schedule.scale_with_batch", "false")])),
            step
        );
        let own = [("train.batch_size", "24"), ("optimiser.learning_rate", "0.02")];
        assert_eq!(optimiser(&resnet(&own)), "sgd, learning rate 0.02, step");
        let warm = [("schedule.warmup_epochs", "5"), ("schedule.name", "cosine")];
        assert_eq!(optimiser(&resnet(&warm)), "sgd, learning rate 0.1, cosine, after a warm-up of 5 epochs");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(short(9_999), "9999");
        assert_eq!(short(21_600), "21.6 thousand");
        assert_eq!(short(11_689_512), "11.7 million");
        assert_eq!(significant(0.1 / 3.0), "0.03333");
        let parts = [("train.micro_batches", "4"), ("train.epochs", "1"), ("data.drop_last", "true")];
        assert_eq!(length(&resnet(&parts), 1000), "1 epoch of 3 iterations of 256 images, in 4 parts");
        assert_eq!(length(&resnet(&[]), 1000), "90 epochs of 4 iterations of 256 images");
    }
}
