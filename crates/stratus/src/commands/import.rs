//! `stratus model import`: converts an ONNX model to a network that can be trained.

use crate::errors::{Failure, Result};
use crate::output::{Output, key_value_list};
use crate::outputs::{Mark, Outputs, Overwrite};
use clap::Args;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use stratus_base::text::{bytes, counted, shell_path};
use stratus_graph::{Graph, layer_file};
use stratus_onnx::{ImportOptions, ImportedNetwork, Model};
use stratus_run::atomic;
use stratus_weights::{Tensor, TensorRef, write_safetensors};

/// Arguments of `stratus model import`.
#[derive(Args, Debug)]
pub struct ImportArguments {
    /// ONNX model to import
    #[arg(value_name = "FILE.onnx")]
    pub file: PathBuf,
    /// Output folder (files are named after the model), or layer file (weights are written next to it)
    #[arg(short, long, value_name = "FOLDER|FILE.toml")]
    pub out: PathBuf,
    /// Input shape, if the model has none, or another than the model's
    #[arg(long, value_name = "CHANNELS,HEIGHT,WIDTH", value_parser = parse_extents)]
    pub input: Option<[usize; 3]>,
    /// Import the layers up to this node, such as a backbone without its head
    #[arg(long, value_name = "NODE")]
    pub until: Option<String>,
    /// Existing output files.
    #[command(flatten)]
    pub overwrite: Overwrite,
}

#[derive(Serialize)]
struct Report {
    layer_file: String,
    weights: String,
    network: String,
    layers: usize,
    input: Vec<usize>,
    output: Vec<usize>,
    /// The last imported node, unless the whole model was imported.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    trained_parameters: usize,
    weights_bytes: u64,
    notes: Vec<String>,
}

fn parse_extents(argument: &str) -> std::result::Result<[usize; 3], String> {
    let numbers: Option<Vec<usize>> = argument.split(',').map(|number| number.trim().parse().ok()).collect();
    numbers
        .and_then(|numbers| numbers.try_into().ok())
        .ok_or_else(|| "expected three integers, like 3,224,224".to_owned())
}

/// Runs `stratus model import`.
///
/// # Errors
/// If the model cannot be read or is not supported, or the files cannot be written.
pub(super) fn run(arguments: &ImportArguments, output: &Output) -> Result {
    let ImportArguments { file, out, input, until, overwrite } = arguments;
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let named = out.extension().is_some_and(|end| end == "toml");
    let name = if named { out.file_stem().map(|stem| stem.to_string_lossy().into_owned()) } else { None };
    let options = ImportOptions {
        name: name.unwrap_or(stem),
        input: *input,
        until: until.clone(),
        // The other half is for the file, and for a copy of the largest weights.
        max_bytes: stratus_run::machine::usable_memory_bytes().map(|bytes| bytes / 2),
    };
    let imported = Model::open(file)?.import(&options)?;
    let text = layer_file::write(&imported.graph).map_err(Failure::failed)?;
    let layers = if named { out.clone() } else { out.join(format!("{}.toml", imported.graph.name)) };
    let weights = layers.with_extension("safetensors");
    let mut outputs = Outputs::new(*overwrite);
    outputs.protect(file);
    // A file that already has this content may be replaced.
    let same = fs::read_to_string(&layers).is_ok_and(|existing| existing == text);
    outputs.claim(&layers, "the layer file", if same { Mark::Identical } else { Mark::None })?;
    let same = weights.is_file() && holds_weights(&weights, &imported)?;
    outputs.claim(&weights, "the weights file", if same { Mark::Identical } else { Mark::None })?;
    if let Some(folder) = layers.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        let refused =
            |error| Failure::failed(format!("cannot create the folder {}: {error}", folder.display()));
        fs::create_dir_all(folder).map_err(refused)?;
    }
    let tensors: Vec<TensorRef<'_>> = imported.weights.iter().map(Tensor::as_ref).collect();
    atomic::write_with(&weights, |out| {
        write_safetensors(out, &tensors, &imported.metadata.entries())
            .map_err(|error| Failure::failed(format!("cannot write {}: {error}", weights.display())))
    })?;
    // The layer file is written last: if it exists, its weights do too.
    atomic::write(&layers, text.as_bytes())?;
    imported.notes.iter().for_each(|note| output.message(&format!("note: {note}")));
    let graph = &imported.graph;
    let report = Report {
        layer_file: layers.display().to_string(),
        weights: weights.display().to_string(),
        network: graph.name.clone(),
        layers: graph.nodes.len(),
        input: graph.input_shape().0.clone(),
        output: graph.shape(graph.output).0.clone(),
        until: until.clone(),
        trained_parameters: graph.trained_parameters(),
        weights_bytes: weights.metadata().map_err(Failure::failed)?.len(),
        notes: imported.notes.clone(),
    };
    output.print_wrapped(&report, || render(&report, graph, [&layers, &weights]))
}

/// Returns whether a file holds exactly the imported weights.
fn holds_weights(path: &Path, imported: &ImportedNetwork) -> Result<bool> {
    let mut bytes = Vec::new();
    let tensors: Vec<TensorRef<'_>> = imported.weights.iter().map(Tensor::as_ref).collect();
    write_safetensors(&mut bytes, &tensors, &imported.metadata.entries()).map_err(Failure::failed)?;
    Ok(fs::read(path).is_ok_and(|existing| existing == bytes))
}

/// A head for features, as the layers to append to the layer file, with names that it does not have yet. Its
/// weights have random initial values, because the weights file has none.
fn head(graph: &Graph) -> String {
    let layer = |name: &str, op: &str| {
        let is_taken = |name: &str| graph.nodes.iter().any(|node| node.name == name);
        let numbered = (2..).map(|number| format!("{name}_{number}"));
        let name = std::iter::once(name.to_owned()).chain(numbered).find(|name| !is_taken(name));
        format!("[[layer]]\nname = \"{}\"\nop = {op}\n", name.unwrap_or_default())
    };
    let mut layers = vec![layer("fc", "\"linear\"\nout_features = 10")];
    if graph.shape(graph.output).0.len() == 3 {
        let pool = layer("pool", "\"adaptive_avg_pool2d\"\noutput = 1");
        layers.splice(..0, [pool, layer("flatten", "\"flatten\"")]);
    }
    format!(
        "\nThe output is features, not classes. To train a classifier on them, append a head\n\
         to the layer file, with the number of your classes; its weights begin with random values:\n\n{}",
        layers.join("\n")
    )
}

fn render(report: &Report, graph: &Graph, [layers, weights]: [&Path; 2]) -> String {
    let shape = |extents: &[usize]| stratus_graph::Shape(extents.to_vec()).to_string();
    let files = key_value_list(&[
        (
            report.layer_file.clone(),
            format!(
                "{} from {} to {}, {} trained parameters",
                counted(report.layers as u64, "layer"),
                shape(&report.input),
                shape(&report.output),
                report.trained_parameters
            ),
        ),
        (report.weights.clone(), bytes(report.weights_bytes)),
    ]);
    let head = if report.until.is_some() { head(graph) } else { String::new() };
    format!(
        "{files}{head}\nnext: `stratus model show {0}`,\n      \
         `stratus train {0} --weights {1} --set data.name=NAME`\n",
        shell_path(layers),
        shell_path(weights)
    )
}
