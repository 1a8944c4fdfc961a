//! Formatting of text for tables.

use std::time::{Duration, UNIX_EPOCH};

use stratus_base::text;
use stratus_base::time::timestamp;
use stratus_run::remote::RemoteRun;
use stratus_run::summary::Energy;

/// When the files of a run were last fetched, relative to now: `fetched 2 min 05 s ago`.
#[must_use]
pub fn fetched_ago(remote: &RemoteRun) -> String {
    format!("fetched {} ago", text::duration(remote.age_s() as f64))
}

/// When the files of a run were last fetched, as a time: `fetched 2026-01-31T09:05:07Z`.
pub(crate) fn fetched_at(remote: &RemoteRun) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_secs(remote.fetched)).unwrap_or(UNIX_EPOCH);
    let stamp = timestamp(time);
    format!("fetched {}Z", stamp.split('.').next().unwrap_or_default())
}

/// Pads `text` to `width` columns, or omits its middle if it is longer.
#[must_use]
pub fn fit(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return format!("{text:<width$}");
    }
    let kept = width.saturating_sub(2);
    let (head, tail) = (kept - kept / 2, kept / 2);
    text.chars().take(head).chain("..".chars()).chain(text.chars().skip(length - tail)).collect()
}

/// Formats a number with at least four significant digits: `0.0123`, `68.21`, `11334`.
pub(crate) fn figure(value: f64) -> String {
    let digits = if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 };
    let decimals = usize::try_from(3 - digits).unwrap_or(0).min(9);
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Formats a p-value: `0.031`, `< 0.001`; an en dash for `None`.
pub(crate) fn probability(p: Option<f64>) -> String {
    match p {
        None => "–".to_owned(),
        Some(p) if p < 0.001 => "< 0.001".to_owned(),
        Some(p) => format!("{p:.3}"),
    }
}

/// Formats `value` with a number of decimals, without negative zero.
pub(crate) fn decimals(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let is_zero = text.bytes().all(|byte| matches!(byte, b'-' | b'0' | b'.'));
    if is_zero { text.trim_start_matches('-').to_owned() } else { text }
}

/// The energy of a run: the sum, if all of its parts are known, and the parts.
pub(crate) fn energy_parts(energy: &Energy) -> Vec<String> {
    let Energy { energy_wh, cpu_energy_wh, gpu_energy_wh } = *energy;
    // On a CPU, the sum is the energy of the CPU.
    let is_on_cpu = gpu_energy_wh.is_none() && energy_wh.is_some();
    let cpu = cpu_energy_wh.filter(|_| !is_on_cpu);
    let parts = [("", energy_wh), ("CPU ", cpu), ("GPU ", gpu_energy_wh)];
    parts.iter().filter_map(|(name, energy)| Some(format!("{name}{}", watt_hours((*energy)?)))).collect()
}

fn watt_hours(energy: f64) -> String {
    if energy < 1.0 {
        format!("{energy:.4} Wh")
    } else if energy < 1000.0 {
        format!("{energy:.2} Wh")
    } else {
        format!("{:.2} kWh", energy / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_text_and_numbers() {
        assert_eq!(fit("abc", 5), "abc  ");
        assert_eq!(fit("abcdefghij", 6), "ab..ij");
        assert_eq!(fit("äöüäöüäöü", 7), "äöü..öü");
        let figures = [0.0, 0.012_341, 0.87, 68.214, 11_334.0, -2.5].map(figure);
        assert_eq!(figures, ["0", "0.01234", "0.87", "68.21", "11334", "-2.5"]);
    }

    #[test]
    fn energy_shows_known_parts() {
        let parts = |energy_wh, cpu_energy_wh, gpu_energy_wh| {
            energy_parts(&Energy { energy_wh, cpu_energy_wh, gpu_energy_wh }).join(", ")
        };
        assert_eq!(parts(None, None, None), "");
        assert_eq!(parts(Some(0.01234), Some(0.01234), None), "0.0123 Wh");
        assert_eq!(parts(Some(1234.5), Some(234.5), Some(1000.0)), "1.23 kWh, CPU 234.50 Wh, GPU 1.00 kWh");
        assert_eq!(parts(None, None, Some(2.0)), "GPU 2.00 Wh", "the packages cannot be read");
        assert_eq!(parts(None, Some(2.0), None), "CPU 2.00 Wh", "the GPU has no counter");
    }
}
