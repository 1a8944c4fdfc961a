//! `--window` and `--overlap` of `stratus eval` and `stratus infer`.

use crate::errors::{Failure, Result};
use clap::Args;
use stratus_train::infer::SlidingWindows;

/// Arguments of sliding-window inference on large images.
#[derive(Args, Debug)]
pub struct WindowArguments {
    /// Segmentation: slide windows of this size, like 512x1024, over full-size images and average the logits
    /// in overlaps [default: resize images to data.shape]
    #[arg(long, value_name = "HxW", value_parser = parse_size)]
    pub window: Option<[usize; 2]>,
    /// Overlap of neighbouring windows as a fraction of their size, from 0 to below 1
    #[arg(long, value_name = "FRACTION", default_value_t = 0.25, requires = "window")]
    pub overlap: f64,
}

impl WindowArguments {
    /// The windows; `None` without `--window`.
    ///
    /// # Errors
    /// If the size or the overlap is out of range.
    pub fn windows(&self) -> Result<Option<SlidingWindows>> {
        let windows = self.window.map(|size| SlidingWindows::new(size, self.overlap));
        windows.transpose().map_err(|problem| Failure::usage(format!("--window, --overlap: {problem}")))
    }
}

fn parse_size(argument: &str) -> std::result::Result<[usize; 2], String> {
    let numbers: Option<Vec<usize>> = argument.split('x').map(|number| number.trim().parse().ok()).collect();
    numbers
        .and_then(|numbers| numbers.try_into().ok())
        .ok_or_else(|| "expected height and width, like 512x1024".to_owned())
}
