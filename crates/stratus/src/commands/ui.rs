//! `stratus ui`: serves the live page over run directories.

use super::forecast::page::PageForecaster;
use crate::errors::{Failure, Result};
use crate::output::Output;
use crate::signals;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use stratus_run::layout::{RUNS, SWEEPS};
use stratus_ui::{DEFAULT_PORT, Options, Server};

/// The programs that open an address in a browser.
const OPENERS: [&str; 2] = ["xdg-open", "open"];

/// Arguments of `stratus ui`.
#[derive(Args, Debug)]
pub struct UiArguments {
    /// Folders with run directories, or run directories [default: runs, and sweeps if it
    /// exists at the start]
    #[arg(value_name = "FOLDER|RUN")]
    pub folders: Vec<PathBuf>,
    /// Port; if it is in use, the next free one is used
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_PORT)]
    pub port: u16,
    /// Host name or address of the interface to listen on; other machines need the token that is printed
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub host: String,
    /// Open the page in a browser
    #[arg(long)]
    pub open: bool,
    /// Do not offer to stop or continue runs
    #[arg(long)]
    pub read_only: bool,
}

/// The result of `stratus ui`, printed before it serves.
#[derive(Serialize)]
struct Serving<'a> {
    url: &'a str,
    port: u16,
    folders: &'a [PathBuf],
}

/// Runs `stratus ui` until it is interrupted.
///
/// # Errors
/// If a folder does not exist, or no port is free.
pub fn run(arguments: &UiArguments, output: &Output) -> Result {
    let are_named = !arguments.folders.is_empty();
    let folders = if are_named { arguments.folders.clone() } else { default_folders() };
    if let Some(missing) = folders.iter().find(|folder| are_named && !folder.exists()) {
        let failure = Failure::usage(format!("{} does not exist", missing.display()));
        return Err(failure.with_hint("name a run directory, or a folder of run directories, like `runs`"));
    }
    // Relative paths stay valid and readable whatever the working folder is.
    let absolute = |folder: &PathBuf| std::path::absolute(folder).unwrap_or_else(|_| folder.clone());
    let folders: Vec<PathBuf> = folders.iter().map(absolute).collect();
    let stop = signals::stop_flag()?;
    // This program also continues runs and stops launches.
    let program = match std::env::current_exe() {
        _ if arguments.read_only => None,
        Ok(program) => Some(program),
        Err(_) => {
            output.warning("cannot find this program: runs cannot be stopped or continued here");
            None
        }
    };
    let options = Options {
        folders: folders.clone(),
        host: arguments.host.clone(),
        port: arguments.port,
        program,
        opens_browser: arguments.open,
    };
    let server = Server::bind(&options)?.with_forecaster(Arc::new(PageForecaster));
    let port = server.address().port();
    if port != arguments.port && arguments.port != 0 {
        output.warning(&format!("port {} is in use; using port {port}", arguments.port));
    }
    let url = server.url().to_owned();
    output.print_verbatim(&Serving { url: &url, port, folders: &folders }, || format!("{url}\n"))?;
    output.message("press Ctrl-C to stop");
    // Other users can see the arguments of the browser, so the address in them has no token.
    if arguments.open && !open(&server.local_url()) {
        output.warning("cannot open a browser: open the address above by hand");
    }
    Ok(server.serve(&stop)?)
}

/// The folders of runs and of sweeps. One of runs need not exist yet.
fn default_folders() -> Vec<PathBuf> {
    let sweeps = PathBuf::from(SWEEPS);
    let sweeps = Some(sweeps).filter(|sweeps| sweeps.is_dir());
    std::iter::once(PathBuf::from(RUNS)).chain(sweeps).collect()
}

/// Opens an address in a browser; false if no program for that can be started.
fn open(url: &str) -> bool {
    let start = |program: &str| {
        let mut command = Command::new(program);
        command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().ok()
    };
    let Some(mut child) = OPENERS.into_iter().find_map(start) else { return false };
    // Waits for its end, so that it leaves no zombie.
    std::thread::spawn(move || child.wait());
    true
}
