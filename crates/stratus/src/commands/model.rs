//! `stratus model`: the networks.

use super::export::{self, ExportArguments};
use super::import::{self, ImportArguments};
use crate::cli::Globals;
use crate::errors::Result;
use crate::output::{Output, Table};
use clap::{Args, Subcommand};
use serde::Serialize;
use stratus_graph::zoo;
use stratus_graph::{Graph, Operation};
use stratus_train::TrainError;
use stratus_train::experiment::Experiment;
use stratus_train::network::Network;

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
    /// Write a network's weights for other programs, or the network and its weights as an ONNX model
    Export(ExportArguments),
    /// Make a layer file and a weights file of an ONNX model
    Import(ImportArguments),
}

#[derive(Serialize)]
struct Listed {
    name: &'static str,
    /// Trained parameters, as published.
    parameters: usize,
    /// Floating-point operations of a forward pass of one sample.
    flops: u64,
    /// The published input: channels, height, width.
    input: [usize; 3],
    about: &'static str,
}

impl Listed {
    fn of(network: &zoo::Network) -> Result<Self> {
        let defaults = (network.defaults)();
        let graph = (network.build)(&defaults).map_err(TrainError::from)?;
        Ok(Self {
            name: network.name,
            parameters: graph.trained_parameters(),
            flops: graph.forward_flops(),
            input: defaults.input,
            about: network.about,
        })
    }

    fn cells(&self) -> [String; 5] {
        let [channels, height, width] = self.input;
        [
            self.name.to_owned(),
            format!("{:.2} M", self.parameters as f64 * 1e-6),
            format!("{:.2}", self.flops as f64 * 1e-9),
            format!("{channels}×{height}×{width}"),
            self.about.to_owned(),
        ]
    }
}

/// Runs `stratus model`. `--set model.width=` and `model.classes=` apply to `show` and `export`.
///
/// # Errors
/// Where there is no such network, or a file is wrong.
pub fn run(arguments: &ModelArguments, globals: &Globals, output: &Output) -> Result {
    match &arguments.action {
        ModelAction::List => {
            let list = zoo::NETWORKS.iter().map(Listed::of).collect::<Result<Vec<_>>>()?;
            output.result(&list, || {
                let heads = ["network", "parameters", "GFLOP", "images", "what it is"].map(str::to_owned);
                let rows: Vec<_> = [heads].into_iter().chain(list.iter().map(Listed::cells)).collect();
                Table::new(&rows).prose().within(output.narrow(), &["GFLOP"]).to_string()
            })
        }
        ModelAction::Show { name } => {
            let graph = find(name, globals)?;
            output.result(&graph, || layers(&graph, output.narrow()))
        }
        ModelAction::Export(arguments) => export::run(arguments, globals, output),
        ModelAction::Import(arguments) => import::run(arguments, output),
    }
}

/// A network of the zoo as it was published, `--set` applied, or that of a layer file.
pub(super) fn find(name: &str, globals: &Globals) -> Result<Graph> {
    let mut experiment = Experiment::default().with_overrides(&globals.set)?;
    name.clone_into(&mut experiment.model.name);
    Ok(Network::as_published(&experiment)?.graph)
}

/// A table of layers in at most so many columns; cost for one sample, bytes of the output in f32.
pub(super) fn layers(graph: &Graph, width: Option<usize>) -> String {
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
        Table::new(&rows).within(width, &["kB", "attributes"]),
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
