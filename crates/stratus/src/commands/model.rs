//! `stratus model`: the networks.

use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::{Output, pairs, table};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::io::Read;
use std::path::Path;
use stratus_graph::layer_file;
use stratus_graph::zoo::{self, Hyperparameters};
use stratus_graph::{Graph, Operation};
use stratus_train::experiment::Experiment;

/// Arguments of `stratus model`.
#[derive(Args, Debug)]
pub struct ModelArguments {
    /// What to do.
    #[command(subcommand)]
    pub action: ModelAction,
}

/// What `stratus model` does.
#[derive(Debug, Subcommand)]
pub enum ModelAction {
    /// List the networks
    List,
    /// Show a network layer by layer: shapes, parameters, operations, bytes
    Show {
        /// The network, like digits, or a layer file, like net.toml
        #[arg(value_name = "NETWORK|FILE.toml")]
        name: String,
    },
}

#[derive(Serialize)]
struct Listed {
    name: &'static str,
    about: &'static str,
}

/// Runs `stratus model`. `--set model.width=` and `model.classes=` apply to `show`.
///
/// # Errors
/// Where there is no such network, or the layer file is wrong.
pub fn run(arguments: &ModelArguments, globals: &Globals, output: &Output) -> Result {
    match &arguments.action {
        ModelAction::List => {
            let list: Vec<Listed> = zoo::NETWORKS
                .iter()
                .map(|network| Listed { name: network.name, about: network.about })
                .collect();
            output.result(&list, || {
                pairs(&list.iter().map(|n| (n.name.to_owned(), n.about.to_owned())).collect::<Vec<_>>())
            })
        }
        ModelAction::Show { name } if Path::new(name).extension().is_some_and(|end| end == "toml") => {
            let graph = read_layer_file(Path::new(name), globals)?;
            output.result(&graph, || layers(&graph))
        }
        ModelAction::Show { name } => {
            let network = zoo::find(name).map_err(Failure::usage)?;
            let settings = Experiment::default().with_overrides(&globals.set)?.model;
            let defaults = (network.defaults)();
            let hyperparameters = Hyperparameters {
                width: settings.width.or(defaults.width),
                classes: settings.classes.unwrap_or(defaults.classes),
                ..defaults
            };
            let graph = (network.build)(&hyperparameters).map_err(Failure::usage)?;
            output.result(&graph, || layers(&graph))
        }
    }
}

/// The network of a layer file. Its sizes are those in the file: `--set` has nothing to change.
fn read_layer_file(path: &Path, globals: &Globals) -> Result<Graph> {
    let settings = Experiment::default().with_overrides(&globals.set)?.model;
    if settings.width.is_some() || settings.classes.is_some() {
        return Err(Failure::usage("a layer file has no model.width and no model.classes")
            .hint(format!("change the sizes in {}", path.display())));
    }
    let mut text = String::new();
    // One byte more than a layer file may have: whatever the path names, no more of it is read.
    std::fs::File::open(path)
        .and_then(|file| file.take(layer_file::LONGEST as u64 + 1).read_to_string(&mut text))
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    layer_file::parse(&text).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// A table of layers; cost for one sample, bytes of the output in f32.
pub(super) fn layers(graph: &Graph) -> String {
    let heading =
        ["layer", "operation", "attributes", "output", "parameters", "MFLOP", "kB"].map(str::to_owned);
    let mut rows = vec![heading];
    for node in &graph.nodes {
        let parameters: usize = node.parameters.iter().map(|&p| graph.parameters[p.0].elements()).sum();
        let shape = graph.shape(node.output);
        rows.push([
            node.name.clone(),
            node.op.kind().to_owned(),
            node.op.attributes(),
            shape.to_string(),
            if parameters == 0 { String::new() } else { parameters.to_string() },
            format!("{:.3}", graph.node_flops(node) as f64 * 1e-6),
            format!("{:.1}", shape.elements() as f64 * 4e-3),
        ]);
    }
    let mut text = format!(
        "{} on {}\n{}{} trained parameters, {:.3} MFLOP forward a sample\n",
        graph.name,
        graph.input_shape(),
        table(&rows),
        graph.trained_parameters(),
        graph.forward_flops() as f64 * 1e-6
    );
    for auxiliary in &graph.auxiliary {
        let maker = graph.nodes.iter().find(|node| node.output == auxiliary.output);
        let layer = maker.map_or("", |node| &node.name);
        text += &format!("auxiliary output {layer}, its loss counts {} times\n", auxiliary.weight);
    }
    if !graph.auxiliary.is_empty() {
        let inference = graph.for_inference();
        text += &format!(
            "without auxiliary outputs {} trained parameters, {:.3} MFLOP forward a sample\n",
            inference.trained_parameters(),
            inference.forward_flops() as f64 * 1e-6
        );
    }
    text
}
