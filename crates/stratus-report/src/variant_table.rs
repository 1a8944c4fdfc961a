//! The variants of a network that `stratus optimise` compared, as a table of text.

use stratus_base::text::{grouped, is_printable};
use stratus_run::variants::Variant;

use crate::report::Score;
use crate::text::fit;

/// Maximum number of characters of a name.
const MAX_NAME_CHARS: usize = 60;

/// The headings of the table other than that of the measure.
const HEADS: [&str; 7] = ["network", "", "ms", "p99 ms", "8 images ms", "MiB", "multiply-adds"];

/// Columns that a narrow terminal can do without, the least important first.
pub const OPTIONAL_COLUMNS: [&str; 4] = [HEADS[3], HEADS[4], HEADS[6], HEADS[5]];

/// The headings of networks with this measure.
#[must_use]
pub fn heads(measure: Score) -> [String; 7] {
    let mut heads = HEADS.map(str::to_owned);
    heads[1] = match measure {
        Score::Of(_) => measure.head(),
        Score::Mixed { .. } => "measure".to_owned() + if measure.is_fraction() { " %" } else { "" },
    };
    heads
}

/// The cells of a variant, in the units of [`heads`] with the same measure. The name comes from a file:
/// characters that a terminal would obey are replaced.
#[must_use]
pub fn cells(score: Score, variant: &Variant) -> [String; 7] {
    let Variant { variant, measure, ms_median, ms_p99, ms_batch8, bytes, multiply_adds } = variant;
    let [ms_median, ms_p99, ms_batch8] = [ms_median, ms_p99, ms_batch8].map(|ms| format!("{ms:.4}"));
    let name: String = variant.chars().map(|c| if is_printable(c) { c } else { '\u{fffd}' }).collect();
    [
        fit(&name, MAX_NAME_CHARS).trim_end().to_owned(),
        measure.map_or_else(|| "–".to_owned(), |measure| score.cell(measure)),
        ms_median,
        ms_p99,
        ms_batch8,
        mebibytes(*bytes),
        grouped(*multiply_adds),
    ]
}

/// A size in MiB with three significant digits: `0.0823`, `44.6`, `528`.
fn mebibytes(bytes: u64) -> String {
    let size = bytes as f64 / f64::from(1 << 20);
    match size {
        0.0 => "0".to_owned(),
        size if size < 0.1 => format!("{size:.4}"),
        size if size < 1.0 => format!("{size:.3}"),
        size if size < 10.0 => format!("{size:.2}"),
        size if size < 100.0 => format!("{size:.1}"),
        size => format!("{size:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_run::csv::Task;

    const TOP1: Score = Score::Of(Task::Classification);

    #[test]
    fn cells_have_the_units_of_their_headings() {
        let variant = Variant {
            variant: "pruned bf16".to_owned(),
            measure: Some(0.97855),
            ms_median: 0.020_45,
            ms_p99: 12.5,
            ms_batch8: 0.1144,
            bytes: 37_380,
            multiply_adds: 1_297_920,
        };
        let expected = ["pruned bf16", "97.86", "0.0204", "12.5000", "0.1144", "0.0356", "1,297,920"];
        assert_eq!(cells(TOP1, &variant), expected);
        assert_eq!(cells(Score::Of(Task::Regression), &variant)[1], "0.9786");
        let unknown = Variant { measure: None, bytes: u64::MAX, multiply_adds: 0, ..variant };
        assert_eq!(cells(TOP1, &unknown)[1], "–");
        let hostile = Variant { variant: format!("a\u{1b}[2J\n{}", "x".repeat(1000)), ..unknown };
        let name = &cells(TOP1, &hostile)[0];
        assert!(name.starts_with("a�[2J�x") && name.chars().count() == MAX_NAME_CHARS, "{name}");
        assert_eq!(heads(Score::Of(Task::Segmentation))[1], "mean IoU %");
        let mixed = [true, false].map(|are_fractions| heads(Score::Mixed { are_fractions })[1].clone());
        assert_eq!(mixed, ["measure %", "measure"]);
        let sizes = [0, 100_000, 1 << 20, 5 << 20, 46_800_000, 553_000_000].map(mebibytes);
        assert_eq!(sizes, ["0", "0.0954", "1.00", "5.00", "44.6", "527"]);
        assert!(OPTIONAL_COLUMNS.iter().all(|column| heads(TOP1).iter().any(|head| head == column)));
    }
}
