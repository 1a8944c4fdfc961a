//! `layers.csv`: the time of every layer in every training iteration.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use stratus_run::RunDir;
use stratus_run::timeline::{Iteration, Purpose, TimelineReader};

use crate::rows::{Column, Place, Rows};
use crate::text::csv_field;
use crate::{Error, Result};

/// The header of `layers.csv`.
pub const COLUMNS: &str = "epoch,iteration,layer,kind,device,forward_us,backward_us,update_us";

/// Writes a run's `layers.csv` to `path` and gives the number of rows.
pub fn write_file(run: &RunDir, path: &Path) -> Result<u64> {
    let file = File::create(path).map_err(Error::io("create", path))?;
    let mut out = BufWriter::new(file);
    let rows = write(run, &mut out, path)?;
    out.flush().map_err(Error::io("write", path))?;
    Ok(rows)
}

/// Writes a run's `layers.csv` to `out`, of which errors say that it is `path`; gives the number of rows.
///
/// A row holds a layer, or several whose steps are fused, joined by `+`; microseconds, exact to the
/// nanosecond. It streams: memory is that of one iteration.
pub fn write(run: &RunDir, out: &mut impl Write, path: &Path) -> Result<u64> {
    let mut reader = TimelineReader::open(&run.timeline())?;
    let mut rows = Rows::default();
    // The fixed middle of each row: layer, kind, device.
    let mut labels: Vec<String> = Vec::new();
    let mut now: Vec<Option<[u64; 3]>> = Vec::new();
    let (mut iteration, mut written) = (Iteration::default(), 0);
    writeln!(out, "{COLUMNS}").map_err(Error::io("write", path))?;
    while reader.read(&mut iteration)? {
        if reader.programs()[iteration.program].purpose != Purpose::Train {
            continue;
        }
        rows.update(reader.programs());
        for row in &rows.layers[labels.len()..] {
            let name = row.name();
            labels.push([name.as_str(), &row.kind, &row.device].map(csv_field).join(","));
        }
        now.resize(labels.len(), None);
        for (place, &ns) in rows.places[iteration.program].iter().zip(&iteration.ns) {
            let Place::Layer(row, column) = *place else { continue };
            let cell = match column {
                Column::Forward => 0,
                Column::BackwardData | Column::BackwardWeights => 1,
                Column::Update => 2,
            };
            let cells = now[row].get_or_insert_default();
            cells[cell] = cells[cell].saturating_add(ns);
        }
        for (label, cells) in labels.iter().zip(&mut now) {
            let Some(cells) = cells.take() else { continue };
            row(out, &iteration, label, cells).map_err(Error::io("write", path))?;
            written += 1;
        }
    }
    Ok(written)
}

fn row(out: &mut impl Write, iteration: &Iteration, label: &str, cells: [u64; 3]) -> io::Result<()> {
    write!(out, "{},{},{label}", iteration.epoch, iteration.iteration)?;
    cells.iter().try_for_each(|ns| write!(out, ",{}.{:03}", ns / 1000, ns % 1000))?;
    writeln!(out)
}
