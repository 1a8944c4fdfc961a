//! `stratus model`: lists, shows, imports and exports networks.

use super::export::{self, ExportArguments};
use super::import::{self, ImportArguments};
use super::target::find_network;
use crate::errors::Result;
use crate::globals::Globals;
use crate::output::{Output, Table};
use clap::{Args, Subcommand};
use serde::Serialize;
use stratus_graph::zoo;
use stratus_graph::{Graph, Operation};
use stratus_train::TrainError;

/// Arguments of `stratus model`.
#[derive(Args, Debug)]
pub struct ModelArguments {
    /// The subcommand.
    #[command(subcommand)]
    pub command: ModelCommand,
}

/// Subcommands of `stratus model`.
#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// List the networks
    List,
    /// Show a network layer by layer: shapes, parameters, operations, bytes
    Show {
        /// Network, like digits, or layer file, like net.toml
        #[arg(value_name = "NETWORK|FILE.toml")]
        name: String,
    },
    /// Export weights as safetensors, or a network with its weights as ONNX
    Export(ExportArguments),
    /// Import an ONNX model as a layer file and a weights file
    Import(ImportArguments),
}

#[derive(Serialize)]
struct NetworkRow {
    name: &'static str,
    /// Trained parameters, as published.
    parameters: usize,
    /// Floating-point operations of the forward pass of one sample.
    flops: u64,
    /// The published input shape: channels, height, width.
    input: [usize; 3],
    about: &'static str,
}

impl NetworkRow {
    fn of(network: &zoo::Network) -> Result<Self> {
        let defaults = (network.defaults)();
        let graph = (network.build)(&defaults).map_err(TrainError::from)?;
        Ok(Self {
            name: network.name,
            parameters: graph.trained_parameters(),
            flops: graph.forward_flops(),
            input: defaults.input,
            about: network.description,
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
/// If the network is not found, or a file is invalid.
pub fn run(arguments: &ModelArguments, globals: &Globals, output: &Output) -> Result {
    match &arguments.command {
        ModelCommand::List => {
            let list = zoo::NETWORKS.iter().map(NetworkRow::of).collect::<Result<Vec<_>>>()?;
            output.print_wrapped(&list, || {
                let heads = ["network", "parameters", "GFLOP", "images", "description"].map(str::to_owned);
                let rows: Vec<_> = [heads].into_iter().chain(list.iter().map(NetworkRow::cells)).collect();
                Table::new(&rows)
                    .wrap_last_column()
                    .max_width(output.terminal_width(), &["GFLOP"])
                    .to_string()
            })
        }
        ModelCommand::Show { name } => {
            let graph = find_network(name, globals)?;
            output.print_wrapped(&graph, || layer_table(&graph, output.terminal_width()))
        }
        ModelCommand::Export(arguments) => export::run(arguments, globals, output),
        ModelCommand::Import(arguments) => import::run(arguments, output),
    }
}

/// Renders a table of layers, at most `width` columns wide; costs are for one sample, output sizes for f32.
pub(super) fn layer_table(graph: &Graph, width: Option<usize>) -> String {
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
        "{} on {}\n{}{} trained parameters, {:.3} MFLOP forward per sample\n",
        graph.name,
        graph.input_shape(),
        Table::new(&rows).max_width(width, &["kB", "attributes"]),
        graph.trained_parameters(),
        graph.forward_flops() as f64 * 1e-6
    );
    for auxiliary in &graph.auxiliary {
        let maker = graph.nodes.iter().find(|node| node.output == auxiliary.output);
        let layer = maker.map_or("", |node| &node.name);
        text += &format!("auxiliary output {layer}, loss weight {}\n", auxiliary.weight);
    }
    if !graph.auxiliary.is_empty() {
        let inference = graph.for_inference();
        text += &format!(
            "without auxiliary outputs: {} trained parameters, {:.3} MFLOP forward per sample\n",
            inference.trained_parameters(),
            inference.forward_flops() as f64 * 1e-6
        );
    }
    text
}
