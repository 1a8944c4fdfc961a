//! The passes from a network's graph to the program to be planned, in sequence. Each is a pure function that
//! verifies the program it returns.
//!
//! | pass | effect |
//! |---|---|
//! | [`lower`] | graph to forward steps, with the loss |
//! | [`teacher`] | adds the forward pass of a teacher, and the loss by its logits |
//! | [`fuse`] | merges steps where the device profits |
//! | [`quantise`] | replaces convolutions in inference by int8 products |
//! | [`fake_quantise`] | rounds what int8 layers read, in the training step of such a network |
//! | [`images`] | takes images as bytes and normalises them in the first step |
//! | [`differentiate`] | adds the backward steps |
//! | [`recompute`] | recomputes activations instead of keeping them |
//! | [`stage`] | selects the steps of one pipeline stage and adds transfers |
//! | [`micro_batch`] | runs forward and backward pass on parts of the batch in sequence |
//! | [`parts`] | splits the batch among workers and adds all-reduces |
//! | [`tile`] | runs sections of steps tile by tile, so that maps stay in the caches |
//! | [`update`] | adds the optimiser's steps |
//! | [`average`] | adds the moving average of the weights |

pub mod average;
mod batch_split;
pub mod differentiate;
pub mod fake_quantise;
pub mod fuse;
pub mod images;
mod label_counts;
pub mod lower;
pub mod micro_batch;
pub mod parts;
pub mod quantise;
pub mod recompute;
pub mod stage;
pub mod step_costs;
pub mod teacher;
pub mod tile;
pub mod update;
