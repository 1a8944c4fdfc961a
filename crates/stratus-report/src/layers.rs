//! `layers.csv`: the time of every layer in every training iteration.

use std::fs::File;
use std::path::Path;

use stratus_run::RunDir;
use stratus_run::csv;
use stratus_run::timeline::{Iteration, Purpose, TimelineReader};

use crate::rows::{PhaseColumn, SlotIndex, SlotTarget};
use crate::{Error, Result};

/// The header of `layers.csv`.
pub(crate) const COLUMNS: [&str; 8] =
    ["epoch", "iteration", "layer", "kind", "device", "forward_us", "backward_us", "update_us"];

/// Writes the `layers.csv` of a run to `path` and returns the number of rows. Microseconds are exact to the
/// nanosecond.
///
/// # Errors
/// If the timeline of the run cannot be read, or the file cannot be written.
pub fn write_file(run: &RunDir, path: &Path) -> Result<u64> {
    let mut out = csv::writer(File::create(path).map_err(Error::io("create", path))?);
    let failed = |error: ::csv::Error| Error::io("write", path)(error.into());
    out.write_record(COLUMNS).map_err(failed)?;
    let mut written = 0;
    for_each(run, |LayerTimes { epoch, iteration, layer, kind, device, ns }| {
        let [epoch, iteration] = [u64::from(epoch), iteration].map(|number| number.to_string());
        let [forward, backward, update] = ns.map(|ns| format!("{}.{:03}", ns / 1000, ns % 1000));
        written += 1;
        out.write_record([&epoch, &iteration, layer, kind, device, &forward, &backward, &update])
            .map_err(failed)
    })?;
    out.flush().map_err(Error::io("write", path))?;
    Ok(written)
}

/// The time of a layer in an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerTimes<'a> {
    /// The epoch, from 1.
    pub epoch: u32,
    /// The iteration since the start of the run, from 1.
    pub iteration: u64,
    /// The layer, or several fused layers joined by `+`.
    pub layer: &'a str,
    /// The kind of layer.
    pub kind: &'a str,
    /// The device.
    pub device: &'a str,
    /// Nanoseconds of forward pass, backward pass and update.
    pub ns: [u64; 3],
}

/// Calls `take` with the time of every layer in every training iteration of a run. Only one iteration is in
/// memory at a time.
///
/// # Errors
/// If the timeline of the run cannot be read, or `take` fails.
pub fn for_each(run: &RunDir, mut take: impl FnMut(LayerTimes<'_>) -> Result<()>) -> Result<()> {
    let mut reader = TimelineReader::open(&run.timeline())?;
    let mut rows = SlotIndex::default();
    // The fixed middle of each row: layer, kind, device.
    let mut labels: Vec<[String; 3]> = Vec::new();
    let mut now: Vec<Option<[u64; 3]>> = Vec::new();
    let mut iteration = Iteration::default();
    while reader.read(&mut iteration)? {
        if reader.programs()[iteration.program].purpose != Purpose::Train {
            continue;
        }
        rows.update(reader.programs());
        for row in &rows.layers[labels.len()..] {
            labels.push([row.name(), row.kind.clone(), row.device.clone()]);
        }
        now.resize(labels.len(), None);
        for (target, &ns) in rows.targets[iteration.program].iter().zip(&iteration.ns) {
            let SlotTarget::Layer(row, column) = *target else { continue };
            let cell = match column {
                PhaseColumn::Forward => 0,
                PhaseColumn::BackwardData | PhaseColumn::BackwardWeights => 1,
                PhaseColumn::Update => 2,
            };
            let cells = now[row].get_or_insert_default();
            cells[cell] = cells[cell].saturating_add(ns);
        }
        for ([layer, kind, device], cells) in labels.iter().zip(&mut now) {
            let Some(ns) = cells.take() else { continue };
            let Iteration { epoch, iteration, .. } = iteration;
            take(LayerTimes { epoch, iteration, layer, kind, device, ns })?;
        }
    }
    Ok(())
}
