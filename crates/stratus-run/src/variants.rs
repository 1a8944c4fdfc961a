//! `variants.csv`: the networks that `stratus optimise` compared. Milliseconds have four decimals; the
//! measure is exact, as in `epochs.csv`.

use std::path::Path;

use serde::Serialize;
use stratus_base::read_at_most;

use crate::csv::{exact, to_text};
use crate::{Error, Result, atomic};

/// The columns, in order.
pub const COLUMNS: [&str; 7] =
    ["variant", "measure", "ms_median", "ms_p99", "ms_batch8", "bytes", "multiply_adds"];

/// The maximum size of the file.
const MAX_BYTES: u64 = 1 << 20;

/// The maximum of a time that is read: eleven days.
const MAX_MS: f64 = 1e9;

/// A variant of a network: a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Variant {
    /// Its name, such as `original bf16` or `pruned f32`.
    pub variant: String,
    /// Top-1 accuracy, mean IoU or mean average precision on the validation images, 0 to 1, or R², at most 1;
    /// `None` if undefined.
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
    parse(&bytes).map_err(|reason| Error::damaged(path, reason, "repeat `stratus optimise`, which writes it"))
}

/// Parses the file; the error is the reason.
fn parse(bytes: &[u8]) -> std::result::Result<Vec<Variant>, String> {
    if !bytes.ends_with(b"\n") {
        return Err("its last line is incomplete".to_owned());
    }
    let mut reader = ::csv::ReaderBuilder::new().flexible(true).from_reader(bytes);
    let header = reader.headers().map_err(|_| "line 1 is not UTF-8".to_owned())?;
    // Columns are found by name: a later version may have more.
    let mut positions = [0; COLUMNS.len()];
    for (position, column) in positions.iter_mut().zip(COLUMNS) {
        let found = header.iter().position(|name| name == column);
        *position = found.ok_or_else(|| format!("line 1 has no column {column}"))?;
    }
    let mut variants = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| {
            let line = error.position().map_or(0, ::csv::Position::line);
            format!("line {line} is not UTF-8")
        })?;
        let line = record.position().map_or(0, ::csv::Position::line);
        let fields = positions.map(|position| record.get(position));
        let variant = parse_fields(fields).map_err(|column| format!("line {line}: invalid {column}"))?;
        variants.push(variant);
    }
    Ok(variants)
}

/// Parses the fields of a row, in the order of [`COLUMNS`]; the error is the column.
fn parse_fields(fields: [Option<&str>; COLUMNS.len()]) -> std::result::Result<Variant, &'static str> {
    let text = |at: usize| fields[at].ok_or(COLUMNS[at]);
    let number = |at: usize, max: f64| match text(at)?.parse::<f64>() {
        Ok(value) if (0.0..=max).contains(&value) => Ok(value),
        _ => Err(COLUMNS[at]),
    };
    // R² may be negative.
    let measure = || match text(1)?.parse::<f64>() {
        Ok(value) if value.is_finite() && value <= 1.0 => Ok(value),
        _ => Err(COLUMNS[1]),
    };
    let count = |at: usize| text(at)?.parse::<u64>().map_err(|_| COLUMNS[at]);
    Ok(Variant {
        variant: text(0)?.to_owned(),
        measure: if text(1)?.is_empty() { None } else { Some(measure()?) },
        ms_median: number(2, MAX_MS)?,
        ms_p99: number(3, MAX_MS)?,
        ms_batch8: number(4, MAX_MS)?,
        bytes: count(5)?,
        multiply_adds: count(6)?,
    })
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
        let rows =
            [row.clone(), Variant { measure: None, ..row.clone() }, Variant { measure: Some(-2.5), ..row }];
        write(&path, &rows).unwrap();
        assert_eq!(read(&path).unwrap(), rows);
        // Columns of a later version are skipped.
        let text = std::fs::read_to_string(&path).unwrap();
        let more: Vec<String> = text.lines().map(|line| format!("x,{line}")).collect();
        std::fs::write(&path, more.join("\n") + "\n").unwrap();
        assert_eq!(read(&path).unwrap(), rows);
        for end in 0..text.len() {
            std::fs::write(&path, &text[..end]).unwrap();
            let is_whole_row = text[..end].lines().count() > 1 && text[..end].ends_with('\n');
            let is_header = text[..end].lines().count() == 1 && text[..end].ends_with('\n');
            assert_eq!(read(&path).is_ok(), is_whole_row || is_header, "{:?}", &text[..end]);
        }
    }

    #[test]
    fn values_that_nobody_measured_are_damage() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("variants.csv");
        let header = COLUMNS.join(",");
        let problem = |row: &str| {
            std::fs::write(&path, format!("{header}\nx,0.5,1,2,3,4,5\n{row}\n")).unwrap();
            read(&path).unwrap_err().to_string()
        };
        for (row, reason) in [
            ("x,0.5,NaN,2,3,4,5", "is damaged: line 3: invalid ms_median; repeat `stratus optimise`"),
            ("x,0.5,1,inf,3,4,5", "line 3: invalid ms_p99"),
            ("x,0.5,1,2,-3,4,5", "line 3: invalid ms_batch8"),
            ("x,0.5,1,2,1e10,4,5", "line 3: invalid ms_batch8"),
            ("x,1.5,1,2,3,4,5", "line 3: invalid measure"),
            ("x,nan,1,2,3,4,5", "line 3: invalid measure"),
            ("x,-inf,1,2,3,4,5", "line 3: invalid measure"),
            ("x,0.5,1,2,3,4.5,5", "line 3: invalid bytes"),
            ("x,0.5,1,2,3,4,99999999999999999999", "line 3: invalid multiply_adds"),
            ("x,0.5,1,2,3,4", "line 3: invalid multiply_adds"),
        ] {
            let found = problem(row);
            assert!(found.contains(reason), "{row}: {found}");
        }
        std::fs::write(&path, "variant,measure\nx,y\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("line 1 has no column ms_median"));
        std::fs::write(&path, b"variant,measure\n\xff,1\n").unwrap();
        read(&path).unwrap_err();
        std::fs::write(&path, "x,1,2,3,4,5,6\n".repeat(1_000_000)).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("larger than"));
    }
}
