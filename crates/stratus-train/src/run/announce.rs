//! The lines that describe a training before its first iteration.

use crate::compile::CompiledRun;
use crate::device::OpenDevice;
use crate::input::Datasets;
use crate::resolve::{Rank, ResolvedProcess};
use crate::teacher::Teacher;
use std::path::Path;
use stratus_base::text::{counted, significant};
use stratus_data::{Dataset, Scratch};
use stratus_engine::Stage;
use stratus_experiment::{Experiment, Train};
use stratus_graph::Graph;
use stratus_run::csv::Task;
use stratus_run::data_label;

/// Width of the labels before the lines.
const LABEL_WIDTH: usize = 9;

/// Number of images that are read to determine the stored size.
const SAMPLED_IMAGES: usize = 8;
/// Warn when images are upscaled by at least this factor in area.
const MIN_UPSCALE_AREA: usize = 4;

/// Describes the data, network, training and optimiser, a line each. Reported before kernels are measured,
/// which takes a while.
pub(super) fn run_lines(resolved: &ResolvedProcess, datasets: &Datasets, graph: &Graph) -> Vec<String> {
    let settings = resolved.settings();
    let train = datasets.train.as_ref();
    let shape = graph.input_shape().0.iter().map(usize::to_string).collect::<Vec<_>>().join("×");
    let lines = [
        (
            "data",
            format!(
                "{}: {} training and {} validation images, {}",
                data_label(&settings.data.name, settings.data.path.as_deref()),
                usable_count(train),
                usable_count(datasets.validation.as_ref()),
                output_count(resolved.task(), train.classes())
            ),
        ),
        (
            "network",
            format!(
                "{}, {} parameters, images of {shape}",
                graph.name,
                short_count(graph.trained_parameters())
            ),
        ),
        ("training", training_line(settings, resolved.samples())),
        ("optimiser", optimiser_line(settings)),
    ];
    let teacher = resolved.teacher().map(|teacher| ("teacher", teacher_text(teacher, settings)));
    let processes = process_line(resolved).map(|text| ("workers", text));
    lines.iter().chain(&teacher).chain(&processes).map(|(label, text)| line(label, text)).collect()
}

/// The number of what a data set has for each image.
fn output_count(task: Task, count: usize) -> String {
    match task {
        Task::Classification | Task::Segmentation => format!("{count} classes"),
        Task::MultiLabel => counted(count as u64, "label"),
        Task::Regression => counted(count as u64, "target"),
    }
}

/// Describes the teacher and its loss.
fn teacher_text(teacher: &Teacher, settings: &Experiment) -> String {
    let Train { teacher_weight: weight, teacher_temperature: temperature, .. } = settings.train;
    format!("{}; {:.0} % of the loss, temperature {temperature}", teacher.describe(), 100.0 * weight)
}

/// Describes how batches are divided among processes. (The key `data.workers` means loader threads.)
fn process_line(resolved: &ResolvedProcess) -> Option<String> {
    let (Rank { world_size: workers, .. }, parts) = (resolved.rank(), resolved.parts());
    let part = resolved.settings().train.batch_size / parts;
    if let Some(Stage { count, .. }) = resolved.stage() {
        let keeps_images = resolved.settings().validation.images.is_some_and(|images| images > 0);
        let note = if keeps_images { "; validations keep tables, but no images" } else { "" };
        if workers > 1 {
            return Some(format!(
                "{} processes: {workers} pipelines of {count} stages, each for {} of {parts} parts of {part} \
                 images{note}",
                workers * count,
                parts / workers
            ));
        }
        return Some(format!(
            "{count} processes, one per pipeline stage, for {parts} parts of {part} images{note}"
        ));
    }
    let count = resolved.batch_slice().count;
    let parts_each = if count == 1 { "1 part".to_owned() } else { format!("{count} parts") };
    (workers > 1).then(|| {
        format!(
            "{workers} processes, each with {parts_each} of {part} images (data.workers sets loader threads)"
        )
    })
}

/// Describes the device, its memory, and the run directory.
pub(super) fn device_lines(device: &OpenDevice, compiled: &CompiledRun, run: &Path) -> Vec<String> {
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
    lines.iter().map(|(label, text)| line(label, text)).collect()
}

/// The number of samples that are not damaged.
fn usable_count(set: &dyn Dataset) -> usize {
    set.len().saturating_sub(set.damaged().len())
}

/// A warning if images lose their colours, or are upscaled far beyond their stored size, which costs time and
/// adds nothing. Only if no setting and no data set defines the shape, and only for local files, since remote
/// stores are not read before training.
pub(super) fn image_warning(settings: &Experiment, set: &dyn Dataset, input: &[usize]) -> Option<String> {
    let (None, None, &[channels, height, width]) = (settings.shape(), set.sample_shape(), input) else {
        return None;
    };
    if settings.data.path.as_deref().is_some_and(|path| path.contains("://")) {
        return None;
    }
    let mut scratch = Scratch::default();
    let step = set.len().div_ceil(SAMPLED_IMAGES).max(1);
    // Unreadable images are reported when they are trained on.
    let mut has_colours = false;
    let mut stored: Vec<[usize; 2]> = (0..set.len())
        .step_by(step)
        .filter_map(|index| {
            let [stored_channels, high, wide] = set.read(index, &mut scratch).ok()?.shape;
            has_colours |= stored_channels > channels;
            Some([high, wide])
        })
        .collect();
    if has_colours {
        return Some(format!(
            "colour images are converted to grey {height}×{width}: `--set data.shape=[3,{height},{width}]` \
             keeps colours, if the network allows it"
        ));
    }
    stored.sort_by_key(|[height, width]| height * width);
    let &[high, wide] = stored.get(stored.len() / 2)?;
    let factor = (height * width) / (high * wide).max(1);
    (factor >= MIN_UPSCALE_AREA).then(|| {
        format!(
            "images are upscaled from {high}×{wide} to {height}×{width} ({factor}× the work): `--set \
             data.shape=[{channels},{high},{wide}]` keeps their size, if the network allows it"
        )
    })
}

/// A label and its text, in columns.
pub(super) fn line(label: &str, text: &str) -> String {
    format!("{label:LABEL_WIDTH$}  {text}")
}

/// `50 epochs of 59 iterations of 1024 images`.
fn training_line(settings: &Experiment, samples: usize) -> String {
    let train = &settings.train;
    let iterations = match settings.data.drop_last {
        true => samples / train.batch_size,
        false => samples.div_ceil(train.batch_size),
    };
    let micro_batches = match train.micro_batches {
        2.. => format!(", in {} micro-batches", train.micro_batches),
        _ => String::new(),
    };
    let count = |number: u64, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
    format!(
        "{} of {} of {} images{micro_batches}",
        count(train.epochs, "epoch"),
        count(iterations as u64, "iteration"),
        train.batch_size
    )
}

/// The update rule, the highest learning rate with its origin, and the schedule.
fn optimiser_line(settings: &Experiment) -> String {
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

/// A count such as `11.7 million`.
fn short_count(count: usize) -> String {
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
    use stratus_testing::jpeg::{ScanOrder, SyntheticJpeg};

    #[test]
    fn warns_of_upscaled_images() {
        let folder = tempfile::tempdir().unwrap();
        let class = folder.path().join("train/cat");
        std::fs::create_dir_all(&class).unwrap();
        let image = SyntheticJpeg {
            height: 24,
            width: 32,
            factors: vec![(1, 1)],
            scans: ScanOrder::Interleaved,
            restart: 0,
            adobe: None,
            seed: 1,
        };
        std::fs::write(class.join("0.jpg"), image.write()).unwrap();
        let set = open("folder", folder.path(), Split::Train, &OpenOptions::default()).unwrap();
        let warning = image_warning(&resnet(&[]), set.as_ref(), &[3, 224, 224]).unwrap();
        assert!(
            warning.starts_with("images are upscaled from 24×32 to 224×224 (65× the work): "),
            "{warning}"
        );
        assert!(image_warning(&resnet(&[]), set.as_ref(), &[3, 40, 40]).is_none());
        let with_shape = resnet(&[("data.shape", "[3,224,224]")]);
        assert!(image_warning(&with_shape, set.as_ref(), &[3, 224, 224]).is_none());
    }

    fn resnet(keys: &[(&str, &str)]) -> Experiment {
        Experiment::builtin("resnet18").unwrap().with_overrides(keys).unwrap()
    }

    #[test]
    fn names_the_origin_of_the_learning_rate() {
        let step = "sgd, learning rate 0.1, step";
        assert_eq!(optimiser_line(&resnet(&[])), step);
        assert_eq!(
            optimiser_line(&resnet(&[("train.batch_size", "24")])),
            "sgd, learning rate 0.009375 (scaled from 0.1 for batches of 256), step"
        );
        assert_eq!(
            optimiser_line(&resnet(&[("train.batch_size", "24"), ("schedule.scale_with_batch", "false")])),
            step
        );
        let given = [("train.batch_size", "24"), ("optimiser.learning_rate", "0.02")];
        assert_eq!(optimiser_line(&resnet(&given)), "sgd, learning rate 0.02, step");
        let warm = [("schedule.warmup_epochs", "5"), ("schedule.name", "cosine")];
        assert_eq!(
            optimiser_line(&resnet(&warm)),
            "sgd, learning rate 0.1, cosine, after a warm-up of 5 epochs"
        );
    }

    #[test]
    fn shortens_counts_and_lists_micro_batches() {
        assert_eq!(short_count(9_999), "9999");
        assert_eq!(short_count(21_600), "21.6 thousand");
        assert_eq!(short_count(11_689_512), "11.7 million");
        let parts = [("train.micro_batches", "4"), ("train.epochs", "1"), ("data.drop_last", "true")];
        assert_eq!(
            training_line(&resnet(&parts), 1000),
            "1 epoch of 3 iterations of 256 images, in 4 micro-batches"
        );
        assert_eq!(training_line(&resnet(&[]), 1000), "90 epochs of 4 iterations of 256 images");
    }
}
