//! The names of all files and folders of run directories, sweeps and launches.

/// The folder of runs, in the working folder and in a sweep's directory.
pub const RUNS: &str = "runs";
/// The folder of sweeps.
pub const SWEEPS: &str = "sweeps";
/// The folder of the records of launches, in [`RUNS`]. Searches for runs skip hidden folders.
pub const LAUNCHES: &str = ".launches";

/// The resolved configuration, with every default. Its presence makes a directory a run directory.
pub const EXPERIMENT: &str = "experiment.toml";
/// Host, CPU, memory, devices, library versions.
pub const MACHINE: &str = "machine.json";
/// A copy of the layer file; missing for networks of the zoo.
pub const NETWORK: &str = "network.toml";
/// The external files that the run started from, with their checksums.
pub const SOURCES: &str = "sources.json";
/// The name, note and tags of the run, and the commit of the folder in which it was started; missing if there
/// are none. Not fetched from other machines, since people change it here.
pub const LABELS: &str = "labels.json";
/// The machine that trains the run, in the local copy of a run of another machine.
pub const REMOTE: &str = "remote.json";
/// The files of the local copy of a run that do not come from the machine that trains it.
pub const LOCAL_FILES: [&str; 3] = [LOCK, LABELS, REMOTE];
/// The state of the data set at the start of the run, see [`crate::data`].
pub const DATA: &str = "data.json";
/// The plan: steps, layers, bytes, kernels.
pub const PLAN: &str = "plan.json";
/// One row per iteration.
pub const ITERATIONS: &str = "iterations.csv";
/// One row per epoch.
pub const EPOCHS: &str = "epochs.csv";
/// One row per second: utilisation of the machine.
pub const USAGE: &str = "usage.csv";
/// The folder of TensorBoard events, if requested.
pub const TENSORBOARD: &str = "tensorboard";
/// The file of events in [`TENSORBOARD`]. TensorBoard recognises such files by a part of their name.
pub const EVENTS: &str = "events.out.tfevents.stratus";
/// The folder with one folder per worker, by rank, except for the first worker.
pub const WORKERS: &str = "workers";
/// The run directory of the pre-training stage, in the directory of its run.
pub const FIRST_STAGE: &str = "first_stage";
/// Metrics of each class, see [`crate::classes`].
pub const CLASSES: &str = "classes.csv";
/// The folder of pictures and tables of validations, see [`crate::validation`]; missing if
/// `validation.images` is 0.
pub const VALIDATION: &str = "validation";
/// The folder of what `stratus optimise` made of another run's network; missing in other runs.
pub const OPTIMISE: &str = "optimise";
/// The file of the request in [`OPTIMISE`].
pub const OPTIMISE_REQUEST: &str = "request.json";
/// The file in [`OPTIMISE`] that says which channels were removed.
pub const OPTIMISE_PRUNING: &str = "pruning.json";
/// The file in [`OPTIMISE`] that says which layers run in int8, see [`crate::quantisation`].
pub const OPTIMISE_QUANTISATION: &str = "quantisation.json";
/// The file in [`OPTIMISE`] with the layers and ranges of a fine-tuning with fake quantisation, chosen for
/// the weights before it, see [`crate::quantisation`]; missing without one.
pub const OPTIMISE_FAKE_QUANTISATION: &str = "fake_quantisation.json";
/// The comparison of the variants of a network that `stratus optimise` tried; missing in other runs.
pub const VARIANTS: &str = "variants.csv";
/// The ONNX model that `stratus optimise` writes at the end; missing in other runs.
pub const ONNX_MODEL: &str = "network.onnx";
/// The folder of the times per layer and phase of every iteration.
pub const TIMELINE: &str = "timeline";
/// The file of the timeline in [`TIMELINE`].
pub const TIMELINE_RECORDS: &str = "records.bin";
/// The folder of checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";
/// The results of the run.
pub const SUMMARY: &str = "summary.json";
/// The log.
pub const LOG: &str = "log.txt";
/// The lock file, held by the process that writes the run.
pub const LOCK: &str = "run.lock";
/// Times per layer and iteration as text; written on request, not by training.
pub const LAYERS: &str = "layers.csv";
/// The file of weights in the folder of a checkpoint.
pub const WEIGHTS: &str = "weights.safetensors";
/// The file of the optimiser's tensors in the folder of a checkpoint.
pub const OPTIMIZER: &str = "optimizer.safetensors";
/// The file of averaged weights in the folder of a checkpoint.
pub const AVERAGED: &str = "averaged.safetensors";
/// The file of the state in the folder of a checkpoint.
pub const STATE: &str = "state.json";
/// The file of lengths and checksums in the folder of a checkpoint.
pub const MANIFEST: &str = "manifest.json";
/// The page of a report, in a run or a sweep.
pub const REPORT: &str = "report.html";

/// The sweep file, with its overrides. Its presence makes a directory a sweep.
pub const SWEEP: &str = "sweep.toml";
/// The table of a sweep: one row per cell and repetition.
pub const CELLS: &str = "cells.csv";
