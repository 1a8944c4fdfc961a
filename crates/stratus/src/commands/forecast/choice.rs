//! The choice of a machine by the objective, in words.

use super::Report;
use super::render::kwh;
use std::fmt::Write;
use stratus_base::text::duration;
use stratus_forecast::forecast::Forecast;
use stratus_forecast::objective::{Candidate, Objective, Ranking, VALUE_TIME_FACTOR};

/// Maximum number of near misses that are named.
const MAX_NEAR_MISSES: usize = 3;

/// The order of the rows by the objective. Rows that do not fit are no candidates, nor are those for which
/// Stratus has no kernels if there are others. Prices in another currency than the first are not compared.
pub(super) fn rank(rows: &[Forecast], objective: Objective) -> Ranking {
    let currency = rows.iter().find_map(|row| row.cost.currency.as_deref());
    let has_supported = rows.iter().any(|row| row.is_supported && row.fits != Some(false));
    let is_usable = |row: &&Forecast| row.fits != Some(false) && (row.is_supported || !has_supported);
    let candidates: Vec<_> =
        rows.iter().map(|row| Some(row).filter(is_usable).and_then(|row| candidate(row, currency))).collect();
    objective.rank(&candidates)
}

/// The time and price of a row; `None` if it never ends. If the number of images is unknown, the time per
/// image is used.
fn candidate(row: &Forecast, currency: Option<&str>) -> Option<Candidate> {
    let seconds = match row.bill.is_empty() {
        true => [row.images_per_second, row.images_per_second_low].map(f64::recip),
        false => [row.total_s?, row.total_high_s?],
    };
    let price = row.cost.price.zip(row.cost.price_high).map(|(price, high)| [price, high]);
    let is_comparable = row.cost.currency.as_deref() == currency;
    let has_idle_devices = row.idle_gpus > 0;
    Some(Candidate { seconds, price: price.filter(|_| is_comparable), has_idle_devices })
}

/// A row with its time and price.
fn describe(row: &Forecast) -> String {
    let mut text = format!("{}, batch {}", row.name, row.batch);
    let mut parts = Vec::new();
    if let (Some(total), Some(high)) = (row.total_s, row.total_high_s) {
        parts.push(format!("{} (up to {})", duration(total), duration(high)));
    }
    let currency = row.cost.currency.as_deref().unwrap_or("");
    if let (Some(price), Some(high)) = (row.cost.price, row.cost.price_high) {
        parts.push(format!("{price:.2} {currency} (up to {high:.2})"));
    }
    if !parts.is_empty() {
        let _ = write!(text, ": {}", parts.join(", ")); // Writing into a String cannot fail.
    }
    text
}

/// The chosen machine and the reason, in one or more lines.
pub(super) fn render(report: &Report) -> String {
    let rows = &report.machines;
    let Some(best) = report.ranking.best().map(|best| &rows[best]) else { return no_choice(report) };
    let mut text = format!("{}: {}", report.objective_text, describe(best));
    match report.objective {
        Objective::Value => match report.ranking.fastest_priced.map(|fastest| &rows[fastest]) {
            Some(fastest) if (&fastest.name, fastest.batch) != (&best.name, best.batch) => {
                let _ = write!(
                    text,
                    "; the lowest price within {VALUE_TIME_FACTOR:.0} times the time of the fastest, {}",
                    describe(fastest)
                );
            }
            Some(_) => text += "; the fastest, and none within twice its time costs less",
            None => text += "; the fastest, as no price is known",
        },
        Objective::Deadline(_) | Objective::Budget(_) => {
            let _ = write!(
                text,
                "; the upper bounds of {} of {} rows keep it",
                report.ranking.met,
                report.ranking.order.len()
            );
        }
        Objective::Fastest | Objective::Cheapest => {}
    }
    text.push('\n');
    // Only those that would have been better are misses.
    let is_better = |row: &&Forecast| match report.objective {
        Objective::Budget(_) => row.total_high_s < best.total_high_s,
        _ => row.cost.price_high < best.cost.price_high && row.cost.price_high.is_some(),
    };
    let near: Vec<String> = report
        .ranking
        .near
        .iter()
        .map(|&at| &rows[at])
        .filter(is_better)
        .take(MAX_NEAR_MISSES)
        .map(describe)
        .collect();
    if !near.is_empty() {
        let _ = writeln!(text, "near misses, whose upper bounds exceed it: {}", near.join("; "));
    }
    if let Some(offer) = describe_offer(best) {
        let _ = writeln!(text, "{}: {offer}", best.name);
    }
    if let Some(idle) = faster_with_idle_gpus(report, best) {
        let _ = writeln!(
            text,
            "faster, but charged for {} idle GPUs as well: {}",
            idle.idle_gpus,
            describe(idle)
        );
    }
    if let Some(rival) = rows.iter().find(|row| is_expected_better(row, best)) {
        let _ = writeln!(
            text,
            "chosen by upper bounds: {} is expected to be faster and cheaper, but is less certain",
            describe(rival)
        );
    }
    let rivals = overlapping_rows(rows, best);
    if report.objective == Objective::Fastest && rivals > 0 {
        let _ = writeln!(
            text,
            "{rivals} other row{} may be as fast: the intervals overlap; chosen by upper bound",
            if rivals == 1 { "" } else { "s" }
        );
    }
    if let Some(energy) = best.energy.energy_kwh {
        let co2 = best.energy.co2_kg.map_or(String::new(), |mass| format!(", {} kg of CO2", kwh(mass)));
        let _ = writeln!(text, "energy of its GPU: at most {} kWh{co2}", kwh(energy));
    }
    if let Some(note) = best.supply_note() {
        let _ = writeln!(text, "{}: {note}", best.name);
    }
    text
}

/// The fastest row that the best value left out because some of its GPUs would be idle.
fn faster_with_idle_gpus<'a>(report: &'a Report, best: &Forecast) -> Option<&'a Forecast> {
    if report.objective != Objective::Value || best.idle_gpus > 0 {
        return None;
    }
    let total = |row: &Forecast| row.total_high_s.unwrap_or(f64::INFINITY);
    let ranked = report.ranking.order.iter().map(|&at| &report.machines[at]);
    let idle = ranked.filter(|row| row.idle_gpus > 0 && total(row) < total(best));
    idle.min_by(|a, b| total(a).total_cmp(&total(b)))
}

/// The cloud, region and hourly price of a row.
fn describe_offer(row: &Forecast) -> Option<String> {
    let cost = &row.cost;
    let place = [cost.cloud.as_deref(), cost.region.as_deref()].into_iter().flatten().collect::<Vec<_>>();
    let (currency, date) = (cost.currency.as_deref()?, cost.price_date.as_deref()?);
    Some(format!("{}, {:.2} {currency} an hour in {date}", place.join(" "), cost.per_hour?))
}

/// Returns whether a usable row is expected to be faster and cheaper than the chosen one.
fn is_expected_better(row: &Forecast, best: &Forecast) -> bool {
    let is_less = |row: Option<f64>, best: Option<f64>| row.zip(best).is_some_and(|(row, best)| row < best);
    row.fits != Some(false)
        && row.is_supported
        && row.cost.currency == best.cost.currency
        && is_less(row.total_s, best.total_s)
        && is_less(row.cost.price, best.cost.price)
}

/// The nearest machine if none meets the objective, and what would meet it there.
fn no_choice(report: &Report) -> String {
    let mut text = format!("{}: no machine meets it", report.objective_text);
    if let Some(&nearest) = report.ranking.order.first() {
        let _ = write!(text, "; the nearest is {}", describe(&report.machines[nearest]));
    }
    text.push('\n');
    if let Some(within) = &report.within_limit {
        let _ = writeln!(text, "{}", within.describe(report));
    }
    text
}

/// The number of rows whose intervals overlap that of the best row, so that they may be faster.
fn overlapping_rows(rows: &[Forecast], best: &Forecast) -> usize {
    let is_other = |row: &&Forecast| (&row.name, row.batch) != (&best.name, best.batch);
    let others = rows.iter().filter(|row| row.fits != Some(false) && row.is_supported).filter(is_other);
    others.filter(|row| row.images_per_second_high > best.images_per_second_low).count()
}
