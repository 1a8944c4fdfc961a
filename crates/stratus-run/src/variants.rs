//! `variants.csv`: the networks that `stratus optimise` compared. Milliseconds have four decimals; the
//! measure is exact, as in `epochs.csv`.

use std::path::Path;

use serde::{Deserialize, Serialize};
use stratus_base::read_at_most;

use crate::csv::{exact, to_text};
use crate::{Error, Result, atomic};

/// The columns.
const COLUMNS: [&str; 7] =
    ["variant", "measure", "ms_median", "ms_p99", "ms_batch8", "bytes", "multiply_adds"];

/// The maximum size of the file.
const MAX_BYTES: u64 = 1 << 20;

/// A variant of a network: a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// Its name, such as `original bf16` or `pruned f32`.
    pub variant: String,
    /// Top-1 accuracy or mean IoU on the validation images, 0 to 1; `None` if undefined.
    pub measure: Option<f64>,
    /// Milliseconds of an image alone, median.
    pub ms_median: f64,
    /// Milliseconds of an image alone, 99th percentile.
    pub ms_p99: f64,
    /// Milliseconds of a batch of eight images, median.
    pub ms_batch8: f64,
    /// Values of parameters and running statistics, times the bytes of one in this number format.
    pub bytes: u64,
    /// Multiply-adds of an image.
    pub multiply_adds: u64,
}

/// Replaces the file.
///
/// # Errors
/// If it cannot be written.
pub fn write(path: &Path, variants: &[Variant]) -> Result<()> {
    let header = COLUMNS.map(str::to_owned);
    let rows = variants.iter().map(|row| {
        let ms = |value: f64| format!("{value:.4}");
        [
            row.variant.clone(),
            exact(row.measure),
            ms(row.ms_median),
            ms(row.ms_p99),
            ms(row.ms_batch8),
            row.bytes.to_string(),
            row.multiply_adds.to_string(),
        ]
    });
    atomic::write(path, to_text(std::iter::once(header).chain(rows)).as_bytes())
}

/// Reads the file.
///
/// # Errors
/// If it cannot be read or is damaged.
pub fn read(path: &Path) -> Result<Vec<Variant>> {
    let bytes = read_at_most(path, MAX_BYTES).map_err(Error::io("read", path))?;
    let rows = csv::Reader::from_reader(bytes.as_slice()).into_deserialize();
    rows.collect::<std::result::Result<_, csv::Error>>()
        .map_err(|error| Error::damaged(path, error.to_string(), "repeat the command that wrote it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_and_damage_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("variants.csv");
        let row = Variant {
            variant: "pruned, \"half\" f32".to_owned(),
            measure: Some(0.1 + 0.2),
            ms_median: 1.25,
            ms_p99: 2.5,
            ms_batch8: 9.0,
            bytes: 1 << 33,
            multiply_adds: u64::MAX,
        };
        let rows = [row.clone(), Variant { measure: None, ..row }];
        write(&path, &rows).unwrap();
        assert_eq!(read(&path).unwrap(), rows);
        std::fs::write(&path, "variant,measure\nx,y\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("variants.csv is damaged"));
    }
}
