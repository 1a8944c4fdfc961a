//! Forecasts of a training run: step time, memory and price, also on machines that are not available.
//!
//! ```text
//! Program, table of layers ──work──▶ kernels: operations, bytes, products
//! kernels, peaks of a machine ──model──▶ terms: seconds at peak rates
//! terms, profile (fitted to measured steps) ──▶ seconds, with an interval
//! ```
//!
//! - [`catalogue`]: machines and instances. [`mod@peaks`]: the peaks of their data sheets.
//! - [`work`]: the work of a step. [`model`]: the time of that work.
//! - [`planning_backend`]: plans for a device that is not available.
//! - [`measured`], [`steps`], [`evaluate`]: fitting to measurements, and cross-validation.
//! - [`mod@forecast`]: time, memory and price of a run; [`bill`]: its costs besides steps; [`scaling`]:
//!   training on several devices; [`choice`]: the choice of a profile; [`objective`]: the choice of a
//!   machine.
//! - [`supply`]: reading and decoding images beside the steps.
//! - [`calibration`]: profiles from generated networks; [`correction`]: corrections per kernel.
//! - [`published`]: published times that correct a data sheet.
//! - [`profile`]: files of fitted coefficients. [`shipped`]: the files shipped with this crate.

pub mod bill;
pub mod calibration;
pub mod catalogue;
pub mod choice;
pub mod correction;
mod error;
pub mod evaluate;
mod file;
pub mod forecast;
pub mod held_out;
pub mod measured;
pub mod memory;
pub mod model;
pub mod objective;
pub mod peaks;
pub mod planning_backend;
pub mod profile;
pub mod published;
pub mod scaling;
pub mod shipped;
pub mod steps;
pub mod supply;
mod table;
pub mod text;
pub mod work;

pub use error::{Error, Result};
