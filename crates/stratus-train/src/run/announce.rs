//! What a training says of itself before its first iteration.

use super::setup::RunSetup;
use crate::experiment::Experiment;
use crate::input::Datasets;
use crate::resolve::{Place, Resolved};
use std::path::Path;
use stratus_base::text::significant;
use stratus_data::{Dataset, Scratch};
use stratus_engine::Stage;
use stratus_graph::Graph;

/// Width of the names before the lines.
const NAMES: usize = 9;

/// Images that are looked at to see how large they are stored.
const LOOKED_AT: usize = 8;
/// An image that is enlarged to so many times its pixels is worth a word.
const ENLARGED: usize = 4;

/// What will be done, a line for each kind of thing: said before kernels are chosen, which takes a while.
pub(super) fn intention(resolved: &Resolved, datasets: &Datasets, graph: &Graph) -> Vec<String> {
    let settings = resolved.settings();
    let train = datasets.train.as_ref();
    let shape = graph.input_shape().0.iter().map(usize::to_string).collect::<Vec<_>>().join("×");
    let lines = [
        (
            "data",
            format!(
                "{}: {} training and {} validation images, {} classes",
                settings.data.name,
                usable(train),
                usable(datasets.validation.as_ref()),
                train.classes()
            ),
        ),
        (
            "network",
            format!("{}, {} parameters, images of {shape}", graph.name, short(graph.trained_parameters())),
        ),
        ("training", length(settings, resolved.samples())),
        ("optimiser", optimiser(settings)),
    ];
    let shared = shared(resolved).map(|text| ("workers", text));
    lines.iter().chain(&shared).map(|(name, text)| line(name, text)).collect()
}

/// How batches are shared out among processes. The word means the loader's threads elsewhere.
fn shared(resolved: &Resolved) -> Option<String> {
    let (Place { workers, .. }, parts) = (resolved.place(), resolved.parts());
    let part = resolved.settings().train.batch_size / parts;
    if let Some(Stage { count, .. }) = resolved.stage() {
        return Some(format!(
            "{count} processes, each a stage of the network, for {parts} parts of {part} images"
        ));
    }
    let of_each = resolved.share().count;
    let parts_of_each = if of_each == 1 { "a part".to_owned() } else { format!("{of_each} parts") };
    (workers > 1).then(|| {
        format!(
            "{workers} processes, each with {parts_of_each} of {part} images (data.workers are the loader's \
             threads)"
        )
    })
}

/// What computes it, in how much memory, and where it goes.
pub(super) fn place(setup: &RunSetup, run: &Path) -> Vec<String> {
    let RunSetup { device, compiled, .. } = setup;
    let lines = [
        (
            "device",
            format!(
                "{}, {}, {:.1} MiB",
                device.backend.describe(),
                compiled.plans.train.program.precision,
                compiled.plans.arena_bytes as f64 / 1_048_576.0
            ),
        ),
        ("run", run.display().to_string()),
    ];
    lines.iter().map(|(name, text)| line(name, text)).collect()
}

/// Samples that are trained on or measured: all but damaged ones.
fn usable(set: &dyn Dataset) -> usize {
    set.len().saturating_sub(set.damaged().len())
}

/// A word where photographs are made what they are not: colours to greys, or much larger than they are
/// stored, which costs time and adds nothing. Only where nobody said of what shape they should be, and of
/// files that are here: no store is asked for images before they are wanted.
pub(super) fn changed(settings: &Experiment, set: &dyn Dataset, taken: &[usize]) -> Option<String> {
    let (None, None, &[channels, height, width]) = (settings.shape(), set.sample_shape(), taken) else {
        return None;
    };
    if settings.data.path.as_deref().is_some_and(|path| path.contains("://")) {
        return None;
    }
    let mut scratch = Scratch::default();
    let step = set.len().div_ceil(LOOKED_AT).max(1);
    // One that cannot be read is told of where it is trained on.
    let mut has_colours = false;
    let mut stored: Vec<[usize; 2]> = (0..set.len())
        .step_by(step)
        .filter_map(|index| {
            let [of_channels, high, wide] = set.read(index, &mut scratch).ok()?.shape;
            has_colours |= of_channels > channels;
            Some([high, wide])
        })
        .collect();
    if has_colours {
        return Some(format!(
            "the images have colours, and the network takes greys of {height}×{width}: `--set \
             data.shape=[3,{height},{width}]` trains on colours, where the network allows it"
        ));
    }
    stored.sort_by_key(|[height, width]| height * width);
    let &[high, wide] = stored.get(stored.len() / 2)?;
    let factor = (height * width) / (high * wide).max(1);
    (factor >= ENLARGED).then(|| {
        format!(
            "the images are stored as {high}×{wide} and enlarged to {height}×{width}, {factor} times the \
             work: `--set data.shape=[{channels},{high},{wide}]` trains on them as they are, where the \
             network allows it"
        )
    })
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
    use stratus_data::{OpenOptions, Split, open};
    use stratus_testing::jpeg::{Scans, Sketch};

    #[test]
    fn small_photographs_are_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let class = folder.path().join("train/cat");
        std::fs::create_dir_all(&class).unwrap();
        let image = Sketch {
            height: 24,
            width: 32,
            factors: vec![(1, 1)],
            scans: Scans::Together,
            restart: 0,
            adobe: None,
            seed: 1,
        };
        std::fs::write(class.join("0.jpg"), image.write()).unwrap();
        let set = open("folder", folder.path(), Split::Train, &OpenOptions::default()).unwrap();
        let told = changed(&resnet(&[]), set.as_ref(), &[3, 224, 224]).unwrap();
        assert!(
            told.starts_with("the images are stored as 24×32 and enlarged to 224×224, 65 times"),
            "{told}"
        );
        assert!(changed(&resnet(&[]), set.as_ref(), &[3, 40, 40]).is_none());
        let asked = resnet(&[("data.shape", "[3,224,224]")]);
        assert!(changed(&asked, set.as_ref(), &[3, 224, 224]).is_none());
    }

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
        let parts = [("train.micro_batches", "4"), ("train.epochs", "1"), ("data.drop_last", "true")];
        assert_eq!(length(&resnet(&parts), 1000), "1 epoch of 3 iterations of 256 images, in 4 parts");
        assert_eq!(length(&resnet(&[]), 1000), "90 epochs of 4 iterations of 256 images");
    }
}
