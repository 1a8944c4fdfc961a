//! Checks that every batch norm sees more than one value per channel. The variance of a single value is
//! always 0: the layer outputs its bias, no layer before it learns, and the running variance decays to 0.

use super::programs::micro_batch_samples;
use crate::TrainError;
use crate::resolve::ResolvedProcess;
use stratus_graph::{Graph, Node, Op};

/// The hint for the last batch of an epoch.
const TAIL_BATCH_HINT: &str = "drop that batch with --set data.drop_last=true, or choose another batch size \
                               with --set train.batch_size=";

/// Checks that no trained batch norm computes its statistics from a single value, in any program of a run.
///
/// # Errors
/// [`TrainError::Configuration`] with the layer, the batch that has too few samples, and a hint.
pub fn check_batch_norm_samples(resolved: &ResolvedProcess, graph: &Graph) -> Result<(), TrainError> {
    let settings = resolved.settings();
    let batches = [Some(settings.train.batch_size), resolved.tail_batch()];
    for (batch, is_tail) in batches.into_iter().flatten().zip([false, true]) {
        let samples = match settings.train.synchronise_batch_norm {
            true => batch,
            false => micro_batch_samples(resolved, batch),
        };
        if samples > 1 {
            continue;
        }
        let Some((layer, shape)) = graph.nodes.iter().find_map(|node| single_value_norm(graph, node)) else {
            continue;
        };
        let (in_parts, in_micro_batches) = (resolved.parts() > 1, settings.train.micro_batches > 1);
        let (unit, hint) = match (is_tail, batch > 1) {
            (false, true) if in_parts => ("a part", "use fewer parts with --set train.parts="),
            (false, true) if in_micro_batches => {
                ("a micro-batch", "use fewer micro-batches with --set train.micro_batches=")
            }
            (false, _) => ("a batch", "use larger batches with --set train.batch_size="),
            (true, true) if in_parts => ("a part of an epoch's last batch", TAIL_BATCH_HINT),
            (true, true) if in_micro_batches => ("a micro-batch of an epoch's last batch", TAIL_BATCH_HINT),
            (true, _) => ("the last batch of an epoch", TAIL_BATCH_HINT),
        };
        return Err(TrainError::Configuration {
            problem: format!(
                "batch norm `{layer}` ({shape}) sees one value per channel, since {unit} has 1 sample: its \
                 variance is 0"
            ),
            hint: hint.to_owned(),
        });
    }
    Ok(())
}

/// Name and shape of a trained batch norm with one value per channel in a sample.
fn single_value_norm<'a>(graph: &'a Graph, node: &'a Node) -> Option<(&'a str, String)> {
    let Op::BatchNorm2d(_) = node.op else { return None };
    let shape = graph.shape(node.output);
    let values: usize = shape.0.iter().skip(1).product();
    (values == 1 && !node.frozen).then(|| (node.name.as_str(), shape.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::OpenDevice;
    use std::path::Path;
    use stratus_data::{Split, open};
    use stratus_engine::reference::ReferenceBackend;
    use stratus_experiment::Experiment;
    use stratus_graph::ops::{AdaptiveAvgPool2d, BatchNorm2d, Flatten, Linear};
    use stratus_graph::{GraphBuilder, Shape};

    fn graph(pooled: bool) -> Graph {
        let (mut graph, mut x) = GraphBuilder::new("small", Shape(vec![1, 4, 4]));
        x = graph.add("bn1", BatchNorm2d::new(1), &[x]).unwrap();
        if pooled {
            x = graph.add("pool", AdaptiveAvgPool2d::GLOBAL, &[x]).unwrap();
            x = graph.add("bn2", BatchNorm2d::new(1), &[x]).unwrap();
        }
        x = graph.add("flatten", Flatten, &[x]).unwrap();
        let features = graph.shape(x).elements();
        x = graph.add("fc", Linear::new(features, 3), &[x]).unwrap();
        graph.finish(x).unwrap()
    }

    fn vector() -> Graph {
        let (mut graph, mut x) = GraphBuilder::new("vector", Shape(vec![1, 4, 4]));
        x = graph.add("flatten", Flatten, &[x]).unwrap();
        x = graph.add("bn", BatchNorm2d::new(16), &[x]).unwrap();
        x = graph.add("fc", Linear::new(16, 3), &[x]).unwrap();
        graph.finish(x).unwrap()
    }

    fn check(graph: &Graph, keys: &[(&str, &str)]) -> Result<(), TrainError> {
        let set = [
            ("data.name", "synthetic"),
            ("data.synthetic.classes", "3"),
            ("data.shape", "[1, 4, 4]"),
            ("model.name", "mlp"),
        ];
        let keys: Vec<_> = set.iter().chain(keys).copied().collect();
        let experiment = Experiment::builtin("digits").unwrap().with_overrides(&keys).unwrap();
        let options = crate::input::open_options(&experiment);
        let set = open("synthetic", Path::new(""), Split::Train, &options).unwrap();
        let device = OpenDevice::new(Box::new(ReferenceBackend));
        check_batch_norm_samples(&ResolvedProcess::new(&experiment, set.as_ref(), graph, &device)?, graph)
    }

    /// Each case: images, batch size, micro-batches, whether the last batch is dropped, and the unit with one
    /// sample.
    #[test]
    fn rejects_a_single_value_of_batches_and_micro_batches() {
        for (images, batch, parts, drop, expected) in [
            ("64", "1", "1", "false", Some("a batch has 1 sample")),
            ("64", "2", "1", "false", None),
            ("65", "8", "1", "false", Some("the last batch of an epoch has 1 sample")),
            ("65", "8", "1", "true", None),
            ("66", "8", "1", "false", None),
            ("64", "8", "8", "false", Some("a micro-batch has 1 sample")),
            ("64", "8", "4", "false", None),
            // Seven samples in micro-batches of at most four need seven micro-batches.
            ("71", "8", "2", "false", Some("a micro-batch of an epoch's last batch has 1 sample")),
            ("65", "8", "2", "false", Some("the last batch of an epoch has 1 sample")),
            ("70", "8", "2", "false", None),
        ] {
            let keys = [
                ("data.synthetic.images", images),
                ("train.batch_size", batch),
                ("train.micro_batches", parts),
                ("data.drop_last", drop),
            ];
            for (graph, layer) in [(graph(true), "batch norm `bn2` (1x1x1)"), (vector(), "batch norm `bn`")] {
                let found =
                    check(&graph, &keys).err().map(|error| (error.to_string(), error.hint().unwrap()));
                match (&found, expected) {
                    (None, None) => {}
                    (Some((problem, hint)), Some(expected)) => {
                        assert!(problem.contains(expected) && problem.contains(layer), "{problem}");
                        assert!(hint.contains("--set "), "{hint}");
                    }
                    _ => panic!("{keys:?}: {found:?}, expected {expected:?}"),
                }
            }
            // Sixteen values are enough; frozen statistics need none.
            check(&graph(false), &keys).unwrap();
            let mut frozen = graph(true);
            frozen.freeze(&["bn2"]).unwrap();
            check(&frozen, &keys).unwrap();
        }
    }

    #[test]
    fn names_a_part_of_one_sample_and_its_key() {
        let keys = |images, parts| {
            [("data.synthetic.images", images), ("train.batch_size", "8"), ("train.parts", parts)]
        };
        for (images, parts, expected) in [
            ("64", "8", Some(("a part has 1 sample", "--set train.parts="))),
            ("64", "4", None),
            // With the statistics of the whole batch, one sample is enough.
            ("64", "8 synchronised", None),
            ("68", "4", Some(("a part of an epoch's last batch has 1 sample", "data.drop_last=true"))),
        ] {
            let (count, synchronised) = parts.split_once(' ').unwrap_or((parts, ""));
            let keys = keys(images, count);
            let synchronise =
                ("train.synchronise_batch_norm", if synchronised.is_empty() { "false" } else { "true" });
            let found = check(&graph(true), &[&keys[..], &[synchronise]].concat()).err();
            let found = found.map(|error| (error.to_string(), error.hint().unwrap()));
            match (&found, expected) {
                (None, None) => {}
                (Some((problem, hint)), Some((expected, key))) => {
                    assert!(problem.contains(expected) && hint.contains(key), "{problem}; {hint}");
                }
                _ => panic!("{images} images in {parts} parts: {found:?}, expected {expected:?}"),
            }
        }
    }

    #[test]
    fn refuses_batch_norm_with_one_value_per_channel() {
        let folder = tempfile::tempdir().unwrap();
        let layers = folder.path().join("pooled.toml");
        let text = "name = \"pooled\"\ninput = [1, 4, 4]\n\n[[layer]]\nname = \"pool\"\nop = \
                    \"adaptive_avg_pool2d\"\noutput = 1\n\n[[layer]]\nname = \"bn\"\nop = \
                    \"batch_norm2d\"\n\n[[layer]]\nname = \"flatten\"\nop = \"flatten\"\n\n[[layer]]\nname = \
                    \"fc\"\nop = \"linear\"\nout_features = 3\n";
        std::fs::write(&layers, text).unwrap();
        let text = format!(
            "model.name = {layers:?}\ndata.name = \"synthetic\"\ndata.synthetic.images = 9\n\
             data.synthetic.classes = 3\ntrain.batch_size = 8\ntrain.device = \"reference\"\n"
        );
        let experiment = Experiment::from_toml(&text, Path::new("experiment.toml")).unwrap();
        let out = folder.path().join("run");
        let options = crate::run::RunOptions { out: Some(out.clone()), ..Default::default() };
        let machine = stratus_run::machine::Machine::probe();
        let error = crate::run::start(&experiment, &options, machine, &mut crate::NullObserver).unwrap_err();
        assert!(error.to_string().contains("batch norm `bn` (1x1x1)"), "{error}");
        assert!(error.is_usage() && !out.exists());
    }
}
