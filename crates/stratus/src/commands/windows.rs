//! `--window` and `--overlap` of `stratus eval` and `stratus infer`.

use crate::errors::{Failure, Result};
use clap::Args;
use stratus_train::infer::SlidingWindows;

/// How images larger than the network's input are shown to it.
#[derive(Args, Debug)]
pub struct WindowArguments {
    /// Segmentation: show the network images at their own size, through windows of this height and width,
    /// like 512x1024, and average the logits where they overlap; without it, images are resized to data.shape
    #[arg(long, value_name = "HxW", value_parser = size)]
    pub window: Option<[usize; 2]>,
    /// The part of their height and width that windows share with the next, at least 0 and less than 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.25, requires = "window")]
    pub overlap: f64,
}

impl WindowArguments {
    /// The windows that were asked for.
    ///
    /// # Errors
    /// Where there are no such windows.
    pub fn windows(&self) -> Result<Option<SlidingWindows>> {
        let windows = self.window.map(|size| SlidingWindows::new(size, self.overlap));
        windows.transpose().map_err(|problem| Failure::usage(format!("--window, --overlap: {problem}")))
    }
}

fn size(argument: &str) -> std::result::Result<[usize; 2], String> {
    let numbers: Option<Vec<usize>> = argument.split('x').map(|number| number.trim().parse().ok()).collect();
    numbers
        .and_then(|numbers| numbers.try_into().ok())
        .ok_or_else(|| "expected height and width, like 512x1024".to_owned())
}
