//! The section of a run that `stratus optimise` made of another one: the variants of its network, their
//! accuracy over their time, and the layers that lost channels.

use super::charts::{STYLE, WIDTH};
use super::html::{Cell, Html};
use super::quantised;
use super::svg::{Anchor, LinearAxis, Svg};
use crate::report::{OptimisedReport, RunReport, Score, best_variants};
use crate::text::fit;
use crate::variant_table;
use stratus_base::text::{counted, grouped};
use stratus_run::optimised::Pruning;
use stratus_run::variants::Variant;

/// Maximum number of variants in a table.
const MAX_ROWS: usize = 200;
/// Maximum number of variants in a chart.
const MAX_POINTS: usize = 40;
/// Maximum number of layers in the table.
const MAX_LAYERS: usize = 1000;
/// Number of layers up to which their table is open.
const MAX_OPEN_LAYERS: usize = 12;
/// Maximum number of characters of a name in the chart.
const MAX_LABEL_CHARACTERS: usize = 32;
const HEIGHT: f64 = 400.0;
/// The position of the vertical axis.
const LEFT: f64 = 70.0;
const TITLE: &str = "Accuracy over milliseconds of an image";

/// The variants of the network of a run, as an SVG file; `None` if there are none with a measure.
#[must_use]
pub fn variants_svg(run: &RunReport) -> Option<String> {
    let points = points(&[run]);
    let svg = (!points.is_empty()).then(|| chart(&points, Score::Of(run.task)));
    svg.map(|svg| svg.standalone(TITLE, STYLE))
}

/// Adds the section of a run.
pub(super) fn section(html: &mut Html, run: &RunReport) {
    let Some(optimised) = &run.optimised else { return };
    let OptimisedReport { origin, variants, pruning, quantisation } = optimised;
    html.element("h3", "", "Optimised network");
    let origin = origin.as_ref().map(|origin| format!("Original run: {origin}."));
    let pruned = pruning.as_ref().map(pruned);
    let facts: Vec<String> = origin.into_iter().chain(pruned).collect();
    if !facts.is_empty() {
        html.element("p", "note", &facts.join(" "));
    }
    if variants.is_empty() {
        let text = "The networks were not compared yet: `stratus optimise` does that at its end.";
        html.element("p", "note", text);
    } else {
        compared(html, &[run]);
    }
    pruning.iter().for_each(|pruning| layers(html, pruning));
    quantisation.iter().for_each(|quantisation| quantised::section(html, quantisation));
}

/// Adds the variants of all runs that have some, in one table and one chart.
pub(super) fn comparison(html: &mut Html, runs: &[RunReport]) {
    let runs: Vec<&RunReport> = runs.iter().filter(|run| !variants_of(run).is_empty()).collect();
    if !runs.is_empty() {
        html.element("h3", "", "Optimised networks");
        compared(html, &runs);
    }
}

fn variants_of(run: &RunReport) -> &[Variant] {
    run.optimised.as_ref().map_or(&[], |optimised| &optimised.variants)
}

/// The multiply-adds and parameters that pruning left.
fn pruned(pruning: &Pruning) -> String {
    let [multiply_adds, parameters] =
        [pruning.multiply_adds, pruning.parameters.map(|count| count as u64)].map(percent_left);
    format!("{multiply_adds} % of its multiply-adds and {parameters} % of its parameters are left.")
}

fn percent_left([before, after]: [u64; 2]) -> String {
    format!("{:.1}", 100.0 * after as f64 / before.max(1) as f64)
}

/// Adds the table and the chart of the variants of runs; with several runs, each row names its run.
fn compared(html: &mut Html, runs: &[&RunReport]) {
    // All validations of a comparison are of the same task, or their measures cannot be compared.
    let score = Score::of_all(runs.iter().map(|run| run.task));
    let of_runs = || runs.iter().flat_map(|run| variants_of(run).iter().map(move |variant| (*run, variant)));
    let count = of_runs().count();
    let mut notes = vec![
        "Milliseconds of an image alone (median and 99th percentile) and of a batch of eight (median), \
         measured on the machine of the run."
            .to_owned(),
    ];
    if count > MAX_ROWS {
        notes.push(format!("The table has the first {MAX_ROWS} of {count} variants."));
    }
    html.element("p", "note", &notes.join(" "));
    let heads = variant_table::heads(score);
    let heads: Vec<&str> =
        (runs.len() > 1).then_some("run").into_iter().chain(heads.iter().map(String::as_str)).collect();
    let rows = of_runs().take(MAX_ROWS).map(|(run, variant)| {
        let name = (runs.len() > 1).then(|| Cell::text(run.label.clone()));
        name.into_iter().chain(cells(score, variant)).collect()
    });
    html.table(&heads, &rows.collect::<Vec<_>>());
    let points = points(runs);
    if points.is_empty() || matches!(score, Score::Mixed { .. }) {
        return;
    }
    html.points(TITLE, &chart(&points, score));
    let mut note =
        "Green and larger: no other network is both faster and better. Move along the points with the Tab \
         key, or point at one, to read its values."
            .to_owned();
    let drawn = of_runs().filter(|(_, variant)| variant.measure.is_some()).count();
    if drawn > points.len() {
        note += &format!(" The chart has the first {} of {drawn} networks.", points.len());
    }
    html.element("p", "note", &note);
}

/// The cells of a variant, sorted by the figures of `variants.csv`.
fn cells(score: Score, variant: &Variant) -> impl Iterator<Item = Cell> {
    let [name, texts @ ..] = variant_table::cells(score, variant);
    let numbers = [
        variant.measure.unwrap_or(f64::NEG_INFINITY),
        variant.ms_median,
        variant.ms_p99,
        variant.ms_batch8,
        variant.bytes as f64,
        variant.multiply_adds as f64,
    ];
    let figures = texts.into_iter().zip(numbers).map(|(text, number)| Cell::sorted(text, number));
    std::iter::once(Cell::text(name)).chain(figures)
}

/// Adds the layers that lost channels.
fn layers(html: &mut Html, pruning: &Pruning) {
    let count = pruning.layers.len();
    if count == 0 {
        return;
    }
    let lost = format!("{} lost channels", counted(count as u64, "layer"));
    html.raw(if count <= MAX_OPEN_LAYERS { "<details open>" } else { "<details>" });
    html.element("summary", "", &lost);
    if count > MAX_LAYERS {
        html.element("p", "note", &format!("The table has the first {MAX_LAYERS} of them."));
    }
    let rows: Vec<Vec<Cell>> = pruning
        .layers
        .iter()
        .take(MAX_LAYERS)
        .map(|layer| {
            let channels = layer.channels.map(|count| count as u64);
            let count = |count: u64| Cell::sorted(grouped(count), count as f64);
            let left = 100.0 * channels[1] as f64 / channels[0].max(1) as f64;
            let [before, after] = channels.map(count);
            vec![Cell::text(layer.layer.clone()), before, after, Cell::sorted(percent_left(channels), left)]
        })
        .collect();
    html.table(&["layer", "channels before", "after", "left %"], &rows);
    html.close("details");
}

/// A variant in the chart.
struct Point {
    label: String,
    ms: f64,
    measure: f64,
    /// True if no other variant is both faster and better.
    is_best: bool,
}

/// The points of the variants of runs that have a measure.
fn points(runs: &[&RunReport]) -> Vec<Point> {
    let of_runs = runs.iter().flat_map(|run| variants_of(run).iter().map(move |variant| (*run, variant)));
    let mut points: Vec<Point> = of_runs
        .filter_map(|(run, variant)| {
            let name = &variant.variant;
            let name = if runs.len() > 1 { format!("{}: {name}", run.label) } else { name.clone() };
            let label = fit(&name, MAX_LABEL_CHARACTERS).trim_end().to_owned();
            Some(Point { label, ms: variant.ms_median, measure: variant.measure?, is_best: false })
        })
        .take(MAX_POINTS)
        .collect();
    let known: Vec<(f64, f64)> = points.iter().map(|point| (point.ms, point.measure)).collect();
    for (point, is_best) in points.iter_mut().zip(best_variants(&known)) {
        point.is_best = is_best;
    }
    points
}

/// The measure over milliseconds: one point per variant, with its name where there is room.
fn chart(points: &[Point], score: Score) -> Svg {
    let (left, right, top, bottom) = (LEFT, 20.0, 34.0, 50.0);
    let x = LinearAxis::over(points.iter().map(|point| point.ms).chain([0.0]), left, WIDTH - right);
    let y = LinearAxis::over(points.iter().map(|point| score.number(point.measure)), HEIGHT - bottom, top);
    let mut svg = Svg::new(WIDTH, HEIGHT);
    for tick in x.ticks() {
        svg.line("grid", &[[x.at(tick), top], [x.at(tick), HEIGHT - bottom]]);
        svg.text("tick", [x.at(tick), HEIGHT - bottom + 18.0], Anchor::Middle, &x.label(tick));
    }
    for tick in y.ticks() {
        svg.line("grid", &[[left, y.at(tick)], [WIDTH - right, y.at(tick)]]);
        svg.text("tick", [left - 8.0, y.at(tick) + 4.0], Anchor::End, &y.label(tick));
    }
    let label = "milliseconds of an image alone, median";
    svg.text("label", [(left + WIDTH) / 2.0, HEIGHT - 10.0], Anchor::Middle, label);
    svg.text("label", [left, 16.0], Anchor::Start, &score.title());
    let positions: Vec<[f64; 2]> =
        points.iter().map(|point| [x.at(point.ms), y.at(score.number(point.measure))]).collect();
    let mut labels = Labels::around(&positions);
    for (point, at) in points.iter().zip(&positions) {
        let value = score.text(point.measure);
        let text = format!("{}: {} {value}, {:.4} ms", point.label, score.name(), point.ms);
        svg.open_point(&text);
        let (class, radius) = if point.is_best { ("point update", 8.0) } else { ("point forward", 6.0) };
        svg.circle(class, *at, radius, None, &text);
        if let Some((place, anchor)) = labels.place(*at, &point.label) {
            svg.text("tick", place, anchor, &point.label);
        }
        // Shown by the style sheet while the point has the focus or the pointer.
        svg.text("readout", [WIDTH - right, 16.0], Anchor::End, &text);
        svg.close_point();
    }
    svg
}

/// The areas of a chart that names must not cover: left, top, right, bottom.
struct Labels {
    taken: Vec<[f64; 4]>,
}

impl Labels {
    /// Width of a character, a little more than that of most.
    const CHARACTER: f64 = 6.4;
    const HEIGHT: f64 = 13.0;

    /// Nothing but the points is taken.
    fn around(points: &[[f64; 2]]) -> Self {
        let taken = points.iter().map(|[x, y]| [x - 7.0, y - 7.0, x + 7.0, y + 7.0]);
        Self { taken: taken.collect() }
    }

    /// The place of the name of a point, beside, above or below it; `None` if there is no room.
    fn place(&mut self, [x, y]: [f64; 2], name: &str) -> Option<([f64; 2], Anchor)> {
        let width = Self::CHARACTER * name.chars().count() as f64;
        let places = [
            (x + 10.0, y + 4.0, Anchor::Start),
            (x - 10.0, y + 4.0, Anchor::End),
            (x, y - 12.0, Anchor::Middle),
            (x, y + 20.0, Anchor::Middle),
            (x + 8.0, y - 10.0, Anchor::Start),
            (x + 8.0, y + 18.0, Anchor::Start),
            (x - 8.0, y - 10.0, Anchor::End),
            (x - 8.0, y + 18.0, Anchor::End),
        ];
        for (left, baseline, anchor) in places {
            let from = match anchor {
                Anchor::Start => left,
                Anchor::Middle => left - width / 2.0,
                Anchor::End => left - width,
            };
            let area = [from, baseline - Self::HEIGHT + 3.0, from + width, baseline + 3.0];
            let overlaps = |other: &[f64; 4]| {
                area[0] < other[2] && other[0] < area[2] && area[1] < other[3] && other[1] < area[3]
            };
            let is_inside = area[0] > LEFT && area[2] < WIDTH && area[1] > 20.0;
            if is_inside && !self.taken.iter().any(overlaps) {
                self.taken.push(area);
                return Some(([left, baseline], anchor));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_run::csv::Task;

    fn point(label: &str, ms: f64, measure: f64) -> Point {
        Point { label: label.to_owned(), ms, measure, is_best: false }
    }

    #[test]
    fn draws_every_variant_and_escapes_names() {
        let points = [point("a<b", 1.0, 0.5), point("c", 2.0, 0.75)];
        let svg = chart(&points, Score::Of(Task::Classification)).standalone("x", "");
        assert_eq!((svg.matches("<circle").count(), svg.matches("tabindex=\"0\"").count()), (2, 2));
        assert!(svg.contains("aria-label=\"a&lt;b: top-1 50.00 %, 1.0000 ms\"") && !svg.contains("a<b"));
        // Equal, extreme and single values are drawn too.
        for points in [
            vec![],
            vec![point("x", 0.0, 0.0)],
            vec![point("x", 1e9, 1.0), point("y", 0.0, 1.0)],
            vec![point("x", 1e-9, 0.5), point("x", 1e-9, 0.5 + f64::EPSILON)],
        ] {
            let svg = chart(&points, Score::Of(Task::Classification)).standalone("x", "");
            assert_eq!(svg.matches("<circle").count(), points.len());
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            assert!(svg.matches("class=\"grid\"").count() < 40, "{svg}");
        }
    }

    #[test]
    fn names_cover_neither_points_nor_names() {
        let at = [[300.0, 200.0], [330.0, 200.0], [315.0, 210.0]];
        let mut labels = Labels::around(&at);
        let placed: Vec<_> = at.iter().filter_map(|point| labels.place(*point, "original f32")).collect();
        assert_eq!(placed.len(), 3);
        for (number, one) in labels.taken.iter().enumerate().skip(at.len()) {
            for other in labels.taken.iter().take(number) {
                let overlap =
                    one[0] < other[2] && other[0] < one[2] && one[1] < other[3] && other[1] < one[3];
                assert!(!overlap, "{one:?} {other:?}");
            }
        }
        // A name without room is left out.
        let crowd: Vec<[f64; 2]> = (0..40).map(|at| [300.0 + f64::from(at), 200.0]).collect();
        let mut labels = Labels::around(&crowd);
        assert!(crowd.iter().filter_map(|point| labels.place(*point, "original f32")).count() < 12);
    }
}
