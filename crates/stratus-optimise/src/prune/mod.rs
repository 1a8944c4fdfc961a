//! Structured pruning: whole channels are removed, so that the network itself becomes smaller.
//!
//! ```text
//! Graph ──channel_groups──▶ groups of units ──Importance::scores──▶ Scores ──choose──▶ Selection
//! Model, Selection ──remove──▶ the smaller Model
//! ```
//!
//! - A *unit* is a set of channels and features that can only be removed together. A unit of a residual
//!   network contains the same channel of all feature maps that are added; that of a flattened map contains
//!   its pixels; that of a depthwise convolution its input and output.
//! - A *channel group* has the units that are interchangeable, because they consist of channels of the same
//!   tensors: a convolution's filters, or all channels of a stage of a residual network. Layers that
//!   *produce* a group lose filters with a unit, layers that *read* it lose inputs.
//! - Channels of the images and of the outputs, auxiliary ones included, belong to no unit.
//!
//! Removing a unit is the same as setting its channels to zero, if every layer computes a channel from that
//! channel alone or from weights. Layer norms, group norms and local response norms do not
//! ([`ChannelGroup::is_exact`]): their channels are removed too, but the remaining ones change slightly. Fine
//! tuning compensates for it, as for the removed channels themselves.
//!
//! From a grouped convolution the channels at one position of every group are removed, or whole groups if
//! these have one input or output channel, as those of depthwise convolutions. Channels are removed at one
//! position of every group of a group norm and of a shuffle.
//!
//! The structure follows Fang et al.: "DepGraph: towards any structural pruning", 2023.

mod choose;
mod cost;
mod coupling;
mod error;
mod groups;
mod importance;
mod operations;
mod remove;

pub use choose::{Target, choose, choose_by_cost};
pub use cost::{layer_multiply_adds, multiply_adds};
pub use error::PruneError;
pub use groups::{Channel, ChannelGroup, GroupTensor, Selection, Unit, channel_groups};
pub use importance::{Importance, Scores, TaylorScores};
pub use remove::{remove, remove_from_graph};
