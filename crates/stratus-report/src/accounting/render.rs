//! The accounting as a plain-text table.

use std::fmt::Write;

use stratus_run::timeline::Phase;

use super::types::{Accounting, Cost, LayerCost};
use crate::names::shorten;
use crate::report::{LayerNode, LayerTree};
use crate::text::fit;

const NAME_WIDTH: usize = 32;
const MIN_NAME_WIDTH: usize = 12;
const KIND_WIDTH: usize = 14;
const NUMBER_WIDTH: usize = 8;
/// Width of all columns except names and kinds: five numbers, a percentage and separators.
const FIXED_WIDTH: usize = 5 * (NUMBER_WIDTH + 1) + 7;

/// Renders the accounting as text of at most `width` columns, unless that is too narrow. With `rows`, the
/// layers have at most that number of lines: more layers are summed in blocks or, if too many are outside of
/// blocks, only those with the longest times are shown individually.
#[must_use]
pub fn render(accounting: &Accounting, rows: Option<usize>, width: usize) -> String {
    let columns = if width >= NAME_WIDTH + 1 + KIND_WIDTH + FIXED_WIDTH {
        Columns { name: NAME_WIDTH, kind: KIND_WIDTH + 1 }
    } else {
        Columns { name: width.saturating_sub(FIXED_WIDTH).clamp(MIN_NAME_WIDTH, NAME_WIDTH), kind: 0 }
    };
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = columns.table(&mut out, accounting, rows);
    out
}

/// Widths of the variable columns; the second includes its separator and is 0 if the column is hidden.
#[derive(Clone, Copy)]
struct Columns {
    name: usize,
    kind: usize,
}

impl Columns {
    fn table(self, out: &mut String, accounting: &Accounting, rows: Option<usize>) -> std::fmt::Result {
        let Accounting { iterations, skipped, wall, layers, phases, unattributed, .. } = accounting;
        if *iterations == 0 {
            return writeln!(out, "No training iteration is recorded yet.");
        }
        let plural = if *iterations == 1 { "" } else { "s" };
        writeln!(
            out,
            "Milliseconds per iteration, mean of {iterations} iteration{plural} (first {skipped} skipped)\n"
        )?;
        let [forward, backward, update, total, median] = ["forward", "backward", "update", "total", "median"];
        writeln!(
            out,
            "{:<2$}{:>3$}{forward:>NUMBER_WIDTH$} {backward:>NUMBER_WIDTH$} {update:>NUMBER_WIDTH$} \
             {total:>NUMBER_WIDTH$} {median:>NUMBER_WIDTH$}  share",
            "layer",
            self.kind_cell("kind"),
            self.name,
            self.kind
        )?;
        let several = layers.iter().any(|layer| layer.device != layers[0].device);
        let blocks = rows.filter(|_| !several).and_then(|rows| blocks(accounting, rows));
        let shown = longest(layers, if blocks.is_some() { 0 } else { rows.unwrap_or(usize::MAX) });
        let in_table = || layers.iter().zip(&shown).filter_map(|(layer, &shown)| shown.then_some(layer));
        let names: Vec<String> = in_table().map(|layer| name(layer, several)).collect();
        for (layer, name) in in_table().zip(shorten(&names, self.name)) {
            let cells = [layer.forward, layer.backward, layer.update].map(|cost| cost.mean_ms);
            self.line(out, &name, &layer.kind, Some(cells), &layer.total, true)?;
        }
        let hidden: Vec<&LayerCost> =
            layers.iter().zip(&shown).filter(|(_, s)| !**s).map(|(l, _)| l).collect();
        if let Some(blocks) = &blocks {
            self.blocks(out, accounting, blocks)?;
        } else if !hidden.is_empty() {
            self.sums(out, &format!("{} other layers", hidden.len()), &hidden)?;
        }
        if layers.len() > 1 {
            self.sums(out, "all layers", &layers.iter().collect::<Vec<_>>())?;
        }
        writeln!(out)?;
        for phase in phases {
            self.line(out, label(phase.phase), "", None, &phase.cost, true)?;
        }
        self.line(out, "unattributed", "", None, unattributed, true)?;
        self.line(out, "iteration", "", None, wall, true)?;
        if !accounting.workers.is_empty() {
            let heads = ["iteration", "exchange", "data wait"].map(|head| format!("{head:>11}")).concat();
            writeln!(out, "\n{:<8}{heads}   waiting in the exchange", "worker")?;
        }
        for worker in &accounting.workers {
            let cells = [worker.wall, worker.communication, worker.data_wait]
                .map(|cost| format!("{:>11}", number(cost.mean_ms).trim()))
                .concat();
            let waits = worker.waited_for.map_or("–".to_owned(), |waited| {
                format!("{} for worker {}", number(waited.mean_ms).trim(), waited.worker)
            });
            writeln!(out, "{:<8}{cells}   {waits}", worker.worker)?;
        }
        if accounting.torn_bytes > 0 {
            let torn = accounting.torn_bytes;
            writeln!(
                out,
                "\nThe timeline ends with {torn} bytes of an unfinished record, which are not counted."
            )?;
        }
        Ok(())
    }

    /// A line for each block or layer.
    fn blocks(self, out: &mut String, accounting: &Accounting, blocks: &[LayerNode]) -> std::fmt::Result {
        let layer = |node: &LayerNode| node.row.and_then(|row| accounting.layers.get(row));
        let names: Vec<String> =
            blocks.iter().map(|node| layer(node).map_or(node.name.clone(), |row| name(row, false))).collect();
        for (node, name) in blocks.iter().zip(shorten(&names, self.name)) {
            let cells = [node.time.forward_ms, node.time.backward_ms, node.time.update_ms];
            let (mean_ms, share_percent) = (node.time.total_ms, node.time.share_percent);
            let median_ms = node.time.median_ms.unwrap_or_default();
            let total = Cost { mean_ms, median_ms, share_percent, ..Cost::default() };
            let kind = if node.row.is_some() { node.kind.as_str() } else { "block" };
            self.line(out, &name, kind, Some(cells), &total, node.time.median_ms.is_some())?;
        }
        Ok(())
    }

    fn line(
        self,
        out: &mut String,
        name: &str,
        kind: &str,
        cells: Option<[f64; 3]>,
        total: &Cost,
        median: bool,
    ) -> std::fmt::Result {
        write!(out, "{}{}", fit(name, self.name), self.kind_cell(kind))?;
        match cells {
            Some(cells) => cells.iter().try_for_each(|&cell| write!(out, "{} ", number(cell)))?,
            None => write!(out, "{:1$}", "", 3 * (NUMBER_WIDTH + 1))?,
        }
        let median = if median { number(total.median_ms) } else { " ".repeat(NUMBER_WIDTH) };
        // Clocks are not read at the same instant, so a share can be slightly negative; it is shown as 0.
        let percent = if total.share_percent.abs() < 0.05 { 0.0 } else { total.share_percent };
        writeln!(out, "{} {median} {percent:>5.1}%", number(total.mean_ms))
    }

    fn sums(self, out: &mut String, name: &str, layers: &[&LayerCost]) -> std::fmt::Result {
        let sum = |cell: fn(&LayerCost) -> f64| layers.iter().map(|layer| cell(layer)).sum::<f64>();
        let cells = [sum(|l| l.forward.mean_ms), sum(|l| l.backward.mean_ms), sum(|l| l.update.mean_ms)];
        let (mean_ms, share_percent) = (sum(|l| l.total.mean_ms), sum(|l| l.total.share_percent));
        let total = Cost { mean_ms, share_percent, ..Cost::default() };
        // The medians of several rows do not give the median of their sum.
        self.line(out, name, "", Some(cells), &total, false)
    }

    /// A cell of the second column.
    fn kind_cell(self, kind: &str) -> String {
        if self.kind == 0 { String::new() } else { format!(" {}", fit(kind, self.kind - 1)) }
    }
}

/// Formats a number with three decimals if they fit.
fn number(ms: f64) -> String {
    let decimals = match ms.abs() {
        ms if ms < 1e3 => 3,
        ms if ms < 1e5 => 1,
        _ => 0,
    };
    // Never show a negative zero.
    let text = format!("{ms:>NUMBER_WIDTH$.decimals$}");
    if text.trim() == "-0.000" { format!("{:>NUMBER_WIDTH$}", "0.000") } else { text }
}

fn name(layer: &LayerCost, with_device: bool) -> String {
    let name = match layer.layers.as_slice() {
        [first, _, .., last] if layer.layers.len() > 3 => format!("{first}..{last} ({})", layer.layers.len()),
        _ => layer.layer.clone(),
    };
    if with_device { format!("{name} @{}", layer.device) } else { name }
}

fn label(phase: Phase) -> &'static str {
    match phase {
        Phase::Loss => "loss",
        Phase::Layout => "layout changes",
        Phase::Copy => "copies",
        Phase::DataWait => "data wait",
        Phase::Communication => "exchange with other workers",
        Phase::Update => "update of all layers",
        other => other.name(),
    }
}

/// The layers as at most `rows` blocks and layers; `None` if they fit without blocks, or do not with them.
fn blocks(accounting: &Accounting, rows: usize) -> Option<Vec<LayerNode>> {
    if accounting.layers.len() <= rows {
        return None;
    }
    let tree = LayerTree::new(accounting, None, None);
    let cut = tree.cut(rows);
    (cut.len() <= rows).then(|| cut.into_iter().map(|node| tree.nodes[node].clone()).collect())
}

/// Returns for each layer whether it is among the `count` longest.
fn longest(layers: &[LayerCost], count: usize) -> Vec<bool> {
    let mut order: Vec<usize> = (0..layers.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(layers[i].total.total_ns));
    let mut shown = vec![false; layers.len()];
    order.iter().take(count).for_each(|&i| shown[i] = true);
    shown
}
