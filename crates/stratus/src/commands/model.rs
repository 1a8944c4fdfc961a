//! `stratus model`: the networks.

use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::{Output, pairs, table};
use clap::{Args, Subcommand};
use serde::Serialize;
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
        /// The network, like digits
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
/// Where there is no such network.
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
    format!(
        "{} on {}\n{}{} trained parameters, {:.3} MFLOP forward a sample\n",
        graph.name,
        graph.input_shape(),
        table(&rows),
        graph.trained_parameters(),
        graph.forward_flops() as f64 * 1e-6
    )
}
