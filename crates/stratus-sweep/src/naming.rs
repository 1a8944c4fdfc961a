//! The names of runs by the values of their cells.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::{Definition, Row, Sweep};

impl Definition {
    /// The name of a row by the values of its cell, with keys as short as they are unique:
    /// `batch_size=64 width=8`, and its repetition if there are several: `batch_size=64 width=8 run 2`.
    #[must_use]
    pub fn row_name(&self, row: &Row) -> String {
        let name = self.cells.get(row.cell - 1).map_or(String::new(), |cell| self.cell_name(cell));
        if self.repetitions > 1 { format!("{name} run {}", row.repetition) } else { name }
    }
}

/// Returns the name of each run of a sweep; `None` for other runs, and for sweeps that cannot be read.
#[must_use]
pub fn run_names(runs: &[PathBuf]) -> Vec<Option<String>> {
    let mut sweeps: HashMap<&Path, HashMap<PathBuf, String>> = HashMap::new();
    runs.iter()
        .map(|run| {
            // SWEEP/runs/CELL/REPETITION
            let sweep = run.ancestors().nth(3).filter(|sweep| Sweep::is_sweep(sweep))?;
            sweeps.entry(sweep).or_insert_with(|| names_in(sweep)).get(run).cloned()
        })
        .collect()
}

/// The names of the runs of a sweep, by their directories.
fn names_in(sweep: &Path) -> HashMap<PathBuf, String> {
    let Ok((definition, rows)) = Sweep::read(sweep) else { return HashMap::new() };
    let path = |row: &Row| sweep.join(crate::directory::relative_run_path(row));
    rows.iter().map(|row| (path(row), definition.row_name(row))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::tests::{SWEEP, create};

    #[test]
    fn runs_of_a_sweep_are_named_by_their_values() {
        let folder = tempfile::tempdir().unwrap();
        let sweep = folder.path().join("sweep");
        drop(create(&sweep, SWEEP));
        let runs = [sweep.join("runs/2/1"), sweep.join("runs/5/2"), folder.path().join("runs/digits/1")];
        let names = run_names(&runs);
        assert_eq!(names, [Some("width=8 run 1".to_owned()), Some("width=64 run 2".to_owned()), None]);
    }
}
