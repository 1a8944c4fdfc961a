//! The static charts: time per iteration, roofline, memory over an iteration.

use super::svg::{Anchor, LogAxis, Svg, short};
use crate::accounting::Accounting;
use crate::names::shorten;
use crate::report::{LayerTree, MAX_BLOCKS, RooflineData, RooflinePoint, RunReport};
use stratus_base::text::bytes;
use stratus_engine::memory_map::{BlockKind, MemoryMap};

pub(super) const WIDTH: f64 = 960.0;

/// The style sheet of a chart in a separate file.
pub(super) const STYLE: &str = concat!(include_str!("assets/chart.css"), include_str!("assets/network.css"));

/// Number of layers in the chart of the time per iteration if more than [`MAX_BLOCKS`] are outside of blocks.
const MAX_LAYERS: usize = 16;

/// The time per iteration of a run, as an SVG file.
#[must_use]
pub fn time_svg(run: &RunReport) -> String {
    time(&run.accounting, &run.layers.tree).standalone("Time per iteration", STYLE)
}

/// The roofline of a run as an SVG file; `None` if its plan cannot be read.
#[must_use]
pub fn roofline_svg(run: &RunReport) -> Option<String> {
    run.work.as_ref().map(|work| roofline(work).standalone("Roofline", STYLE))
}

/// The memory of a run over an iteration as an SVG file; `None` if its plan cannot be read.
#[must_use]
pub fn memory_svg(run: &RunReport) -> Option<String> {
    run.memory.as_ref().map(|map| memory(map).standalone("Memory over an iteration", STYLE))
}

/// A segment of a bar: its class, its label, milliseconds.
type Segment = (&'static str, &'static str, f64);

/// One bar per block or layer, the longest first, in milliseconds per iteration: forward, gradients, update.
/// All layers are in a bar, unless too many are outside of blocks: the remaining ones are a line of text,
/// since a common bar would look like the slowest layer.
pub(super) fn time(accounting: &Accounting, tree: &LayerTree) -> Svg {
    let mut layers = tree.cut(MAX_BLOCKS);
    layers.sort_by_key(|layer| std::cmp::Reverse(tree.nodes[*layer].time.total_ns));
    let shown = if layers.len() > MAX_BLOCKS { MAX_LAYERS } else { layers.len() };
    let hidden = layers.len() - shown;
    let rest: f64 = layers.iter().skip(shown).map(|layer| tree.nodes[*layer].time.total_ms).sum();
    layers.truncate(shown);
    let mut names: Vec<String> = layers.iter().map(|layer| tree.path(*layer)).collect();
    let mut rows: Vec<(String, Vec<Segment>)> = Vec::new();
    for layer in layers.into_iter().map(|layer| &tree.nodes[layer]) {
        let parts = vec![
            ("forward", "forward", layer.time.forward_ms),
            ("backward-data", "gradient of the input", layer.time.backward_data_ms),
            ("backward-weights", "gradient of the weights", layer.time.backward_weights_ms),
            ("update", "update", layer.time.update_ms),
        ];
        rows.push((layer.name.clone(), parts));
    }
    for row in &accounting.phases {
        let name = row.phase.name().replace('_', " ");
        rows.push((name.clone(), vec![("other", "outside layers", row.cost.mean_ms)]));
    }
    let total = |row: &[Segment]| row.iter().map(|part| part.2).sum::<f64>();
    rows.push((
        "unattributed".to_owned(),
        vec![("unattributed", "unattributed", accounting.unattributed.mean_ms.max(0.0))],
    ));
    let longest = rows.iter().map(|(_, row)| total(row)).fold(f64::MIN_POSITIVE, f64::max);
    let (left, right, line, top) = (240.0, 90.0, 22.0, 34.0);
    let lines = rows.len() + usize::from(hidden > 0);
    let mut svg = Svg::new(WIDTH, top + line * lines as f64 + 10.0);
    let legend = [
        ("forward", "forward"),
        ("backward-data", "gradient of the input"),
        ("backward-weights", "gradient of the weights"),
        ("update", "update"),
        ("other", "outside layers"),
    ];
    let mut x = left;
    for (class, text) in legend {
        svg.rect(class, [x, 8.0, 12.0, 12.0], "");
        svg.text("label", [x + 17.0, 18.0], Anchor::Start, text);
        x += 34.0 + 7.2 * text.len() as f64;
    }
    if hidden > 0 {
        let percent = 100.0 * rest / accounting.wall.mean_ms.max(f64::MIN_POSITIVE);
        let more =
            if hidden == 1 { "1 more layer takes".to_owned() } else { format!("{hidden} more layers take") };
        let text =
            format!("{more} {rest:.3} ms in total, {percent:.1} % of an iteration: see the table of layers");
        svg.text("label", [left, top + line * shown as f64 + 14.0], Anchor::Start, &text);
    }
    names.extend(rows.iter().skip(shown).map(|(name, _)| name.clone()));
    let labels = shorten(&names, 32);
    for (row_number, (name, row)) in rows.iter().enumerate() {
        // The line of text is below the layers.
        let number = row_number + usize::from(hidden > 0 && row_number >= shown);
        let y = top + line * number as f64;
        svg.text("label", [left - 8.0, y + 14.0], Anchor::End, labels[row_number].trim_end());
        let mut x = left;
        for (class, label, ms) in row {
            let width = ms / longest * (WIDTH - left - right);
            svg.rect(class, [x, y + 2.0, width, line - 6.0], &format!("{name}, {label}: {ms:.3} ms"));
            x += width;
        }
        svg.text("label", [x + 6.0, y + 14.0], Anchor::Start, &format!("{:.3} ms", total(row)));
    }
    svg
}

/// GFLOP/s over FLOP per byte, one point per layer and phase, below the roofs of the machine.
pub(super) fn roofline(work: &RooflineData) -> Svg {
    let (height, left, right, top, bottom) = (470.0, 70.0, 20.0, 20.0, 50.0);
    let peak = work.peaks.gflops.get(&work.precision).copied();
    let ridge = peak.zip(work.peaks.gb_per_s).map(|(gflops, bandwidth)| gflops / bandwidth);
    let intensities = work.points.iter().map(|point| point.intensity).chain(ridge.map(|ridge| 2.0 * ridge));
    let x = LogAxis::over(intensities, left, WIDTH - right);
    let rates = work.points.iter().map(|point| point.gflops_per_s).chain(peak);
    let y = LogAxis::over(rates, height - bottom, top);
    let mut svg = Svg::new(WIDTH, height);
    for tick in x.ticks() {
        svg.line("grid", &[[x.at(tick), top], [x.at(tick), height - bottom]]);
        svg.text("tick", [x.at(tick), height - bottom + 18.0], Anchor::Middle, &short(tick));
    }
    for tick in y.ticks() {
        svg.line("grid", &[[left, y.at(tick)], [WIDTH - right, y.at(tick)]]);
        svg.text("tick", [left - 8.0, y.at(tick) + 4.0], Anchor::End, &short(tick));
    }
    svg.text("label", [(left + WIDTH) / 2.0, height - 10.0], Anchor::Middle, "FLOP per byte of operands");
    svg.text("label", [left + 6.0, top + 12.0], Anchor::Start, "GFLOP/s");
    if let (Some(peak), Some(bandwidth)) = (peak, work.peaks.gb_per_s) {
        let [low, high] = x.ends();
        let ridge = peak / bandwidth;
        let floor = y.ends()[0];
        // The sloped roof starts where it exceeds the lowest rate.
        let enter = low.max(floor / bandwidth);
        svg.line(
            "roof",
            &[
                [x.at(enter), y.at(enter * bandwidth)],
                [x.at(ridge.clamp(enter, high)), y.at(peak.min(high * bandwidth))],
                [x.at(high), y.at(peak.min(high * bandwidth))],
            ],
        );
        let note = format!("{peak:.0} GFLOP/s {}", work.precision);
        svg.text("tick", [WIDTH - right - 4.0, y.at(peak) - 6.0], Anchor::End, &note);
        let half = (enter * ridge.max(enter)).sqrt();
        let note = format!("{bandwidth:.0} GB/s");
        svg.text("tick", [x.at(half) - 8.0, y.at(half * bandwidth) - 6.0], Anchor::End, &note);
    }
    let all: f64 = work.points.iter().map(|point| point.ms).sum();
    let mut points: Vec<&RooflinePoint> = work.points.iter().collect();
    points.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    for point in points {
        let radius = (900.0 * point.ms / all.max(f64::MIN_POSITIVE)).sqrt().clamp(2.0, 24.0);
        let class = format!("point {}", point.phase.replace('_', "-"));
        let reached = point
            .efficiency
            .map_or(String::new(), |fraction| format!(", {:.0} % of the roof", 100.0 * fraction));
        let title = format!(
            "{}, {}: {:.3} ms, {:.1} GFLOP/s at {:.2} FLOP per byte{reached}",
            point.layer,
            point.phase.replace('_', " "),
            point.ms,
            point.gflops_per_s,
            point.intensity
        );
        let at = [x.at(point.intensity), y.at(point.gflops_per_s)];
        svg.circle(&class, at, radius, Some(point.row), &title);
    }
    svg
}

/// The transient part of the arena: offset over step, one rectangle per block.
pub(super) fn memory(map: &MemoryMap) -> Svg {
    let (height, left, right, top, bottom) = (470.0, 90.0, 20.0, 34.0, 46.0);
    let (steps, max_bytes) = (map.steps.max(1) as f64, map.transient_bytes.max(1) as f64);
    let x = |step: f64| left + step / steps * (WIDTH - left - right);
    let y = |offset: f64| height - bottom - offset / max_bytes * (height - top - bottom);
    let mut svg = Svg::new(WIDTH, height);
    let mut at = left;
    for kind in BlockKind::ALL {
        svg.rect(class(kind), [at, 8.0, 12.0, 12.0], "");
        svg.text("label", [at + 17.0, 18.0], Anchor::Start, kind.name());
        at += 34.0 + 6.6 * kind.name().len() as f64;
    }
    for quarter in 0..=4 {
        let offset = max_bytes * f64::from(quarter) / 4.0;
        svg.line("grid", &[[left, y(offset)], [WIDTH - right, y(offset)]]);
        svg.text("tick", [left - 8.0, y(offset) + 4.0], Anchor::End, &bytes(offset as u64));
    }
    for block in &map.blocks {
        let from = x(block.first as f64);
        let (low, high) = (y(block.offset as f64), y((block.offset + block.bytes) as f64));
        let shape = if block.shape.is_empty() { String::new() } else { format!(" {}", block.shape) };
        let title = format!(
            "{}{shape}: {}, {}, steps {} to {}",
            block.name,
            bytes(block.bytes as u64),
            block.kind.name(),
            block.first,
            block.last
        );
        svg.rect(class(block.kind), [from, high, x(block.last as f64 + 1.0) - from, low - high], &title);
    }
    if let Some(turn) = map.backward_from {
        svg.line("turn", &[[x(turn as f64), top - 6.0], [x(turn as f64), height - bottom]]);
        svg.text("tick", [x(turn as f64) - 6.0, height - bottom + 18.0], Anchor::End, "forward");
        svg.text("tick", [x(turn as f64) + 6.0, height - bottom + 18.0], Anchor::Start, "backward");
    }
    svg.text("label", [(left + WIDTH) / 2.0, height - 8.0], Anchor::Middle, "steps of an iteration");
    svg
}

fn class(kind: BlockKind) -> &'static str {
    match kind {
        BlockKind::Saved => "block saved",
        BlockKind::Forward => "block transient",
        BlockKind::Gradient => "block gradient",
        BlockKind::Scratch => "block scratch",
    }
}
