//! What a training will take, before it runs: step time, memory and price on machines that nobody has yet.
//!
//! ```text
//! Program, table of layers ──work──▶ kernels: operations, bytes, products
//! kernels, peaks of a machine ──model──▶ terms: seconds at full peaks
//! terms, profile (fitted to measured steps) ──▶ seconds, with an interval
//! ```
//!
//! - [`catalogue`]: machines and instances. [`mod@peaks`]: what their data sheets promise.
//! - [`work`]: what a step does. [`model`]: what that takes.
//! - [`sketch`]: the plan of a device that is not here.
//! - [`measured`], [`steps`], [`evaluate`]: fitting to measurements, and judging the fit by what it did not
//!   see.
//! - [`mod@forecast`]: time, memory and price of a training; [`bill`]: with all that it takes beside steps;
//!   [`scaling`]: on several devices; [`choice`]: with which profile; [`wish`]: which machine to take.
//! - [`calibration`]: a machine's profile from networks that are made for it; [`correction`]: what is learnt
//!   of single kernels.
//! - [`profile`]: the files that hold fitted coefficients. [`shipped`]: those that come with the crate.

pub mod bill;
pub mod calibration;
pub mod catalogue;
pub mod choice;
pub mod correction;
mod csv;
mod error;
pub mod evaluate;
pub mod forecast;
pub mod measured;
pub mod memory;
pub mod model;
pub mod peaks;
pub mod profile;
pub mod scaling;
pub mod shipped;
pub mod sketch;
pub mod steps;
pub mod text;
pub mod wish;
pub mod work;

pub use error::{Error, Result};
