//! `stratus model`: its arguments.

use clap::{Args, Subcommand};

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
