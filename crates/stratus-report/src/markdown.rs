//! A report as Markdown and as CSV, for a lab book, an issue or a spreadsheet.

use std::fmt::Write;

use stratus_run::csv;
use stratus_run::git::GitCommit;
use stratus_run::labels::RunLabels;
use stratus_run::variants::Variant;

use crate::accounting::WorkerCost;
use crate::report::{
    Change, Comparison, Diff, MAX_BLOCKS, OptimisedReport, PUBLISHED_COLUMNS, PublishedComparison,
    PublishedComparisonRow, Report, RunReport, Score,
};
use crate::text::{self, figure, probability};
use crate::variant_table;
use stratus_base::text::{bytes, counted};

/// Maximum number of layers in the table of differences.
const MAX_LAYERS: usize = 24;
/// Maximum number of variants in a table.
const MAX_VARIANTS: usize = 200;
/// Maximum number of layers that lost channels in a table.
const MAX_PRUNED_LAYERS: usize = 200;

/// The report as Markdown: the comparison, then a summary and two tables per run.
#[must_use]
pub fn markdown(report: &Report) -> String {
    let mut out = String::new();
    if let Some(diff) = &report.diff {
        difference(&mut out, diff);
    }
    if let Some(comparison) = &report.comparison {
        let (heads, rows) = comparison_table(comparison);
        out.push_str("# Comparison\n\n");
        if let Some(verdict) = &comparison.verdict {
            let _ = writeln!(out, "{}\n", escape_markdown(verdict));
        }
        table(&mut out, &heads, &rows);
        out.push('\n');
    }
    if let Some(comparison) = &report.published {
        published(&mut out, comparison);
    }
    if report.runs.len() > 1 {
        all_variants(&mut out, &report.runs);
    }
    for run in &report.runs {
        run_section(&mut out, run);
    }
    for problem in &report.problems {
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "- missing data: {}: {} ({})",
            escape_markdown(&problem.run.display().to_string()),
            problem.what,
            escape_markdown(&problem.reason)
        );
    }
    out
}

/// The requested table as CSV: published figures with figures of runs, the time differences of two runs, or
/// the rows of the comparison.
#[must_use]
pub fn to_csv(report: &Report) -> String {
    if let Some(comparison) = &report.published {
        return published_csv(comparison);
    }
    if let Some(diff) = &report.diff {
        return difference_csv(diff);
    }
    let single;
    let comparison = match &report.comparison {
        Some(comparison) => comparison,
        None => {
            single = Comparison::new(&report.runs);
            &single
        }
    };
    let (heads, rows) = comparison_table(comparison);
    csv::to_text(std::iter::once(&heads).chain(&rows))
}

/// The name, tags, commit and note of a run, a line each.
fn labels(out: &mut String, labels: &RunLabels) {
    let RunLabels { name, tags, git, .. } = labels;
    let tags = Some(tags.join(" ")).filter(|tags| !tags.is_empty());
    let (commit, note) = (git.as_ref().map(GitCommit::short), labels.note_line(usize::MAX));
    let lines = [("name", name), ("tags", &tags), ("commit", &commit), ("note", &note)];
    let mut has_any = false;
    for (label, text) in lines {
        let Some(text) = text else { continue };
        has_any = true;
        let _ = writeln!(out, "- {label}: {}", escape_markdown(text));
    }
    if has_any {
        out.push('\n');
    }
}

fn run_section(out: &mut String, run: &RunReport) {
    let _ = writeln!(out, "# {}\n", escape_markdown(&run.label));
    if let Some(remote) = &run.record.remote {
        let place = escape_markdown(&remote.description());
        let _ = writeln!(out, "Trained on {place}, {}.\n", text::fetched_at(remote));
    }
    labels(out, &run.record.labels);
    let _ = writeln!(out, "{}\n", escape_markdown(&run.headline));
    if !run.advice.is_empty() {
        run.advice.iter().for_each(|line| _ = writeln!(out, "- {}", escape_markdown(line)));
        out.push('\n');
    }
    let (accuracy, score) = (run.task.accuracy_name(), Score::Of(run.task));
    let heads = [
        "epoch".to_owned(),
        "training loss".to_owned(),
        format!("training {accuracy}{}", if score.is_fraction() { " %" } else { "" }),
        "validation loss".to_owned(),
        format!("validation {}", score.head()),
        "elapsed s".to_owned(),
    ];
    let rows: Vec<Vec<String>> = run
        .epochs
        .iter()
        .map(|epoch| {
            vec![
                epoch.epoch.to_string(),
                format!("{:.4}", epoch.train_loss),
                score.cell(epoch.train_accuracy),
                number(epoch.val_loss, 4),
                number(epoch.val_score.map(|value| score.number(value)), score.decimals()),
                format!("{:.1}", epoch.elapsed_s),
            ]
        })
        .collect();
    table(out, &heads, &rows);
    out.push('\n');
    if let Some(optimised) = &run.optimised {
        optimised_network(out, optimised, score);
    }
    let accounting = &run.accounting;
    let tree = &run.layers.tree;
    let mut layers = tree.cut(MAX_BLOCKS);
    layers.sort_by_key(|layer| std::cmp::Reverse(tree.nodes[*layer].time.total_ns));
    let heads = ["layer", "kind", "forward ms", "backward ms", "update ms", "total ms", "share %"];
    let mut rows: Vec<Vec<String>> = layers
        .iter()
        .take(MAX_BLOCKS)
        .map(|&position| {
            let layer = &tree.nodes[position];
            let kind = match layer.row {
                Some(_) => layer.kind.clone(),
                None => counted(tree.rows(position).len() as u64, "layer"),
            };
            let time = &layer.time;
            let ms = [time.forward_ms, time.backward_ms, time.update_ms, time.total_ms];
            let mut row = vec![layer.name.clone(), kind];
            row.extend(ms.map(|ms| format!("{ms:.3}")));
            row.push(format!("{:.1}", time.share_percent));
            row
        })
        .collect();
    let mut add = |name: &str, ms: f64, percent: f64| {
        let mut row = vec![name.to_owned(), String::new(), String::new(), String::new(), String::new()];
        row.extend([number(Some(ms), 3), number(Some(percent), 1)]);
        rows.push(row);
    };
    let rest = layers.iter().skip(MAX_BLOCKS).map(|layer| &tree.nodes[*layer].time);
    let (ms, percent) =
        rest.fold((0.0, 0.0), |sum, time| (sum.0 + time.total_ms, sum.1 + time.share_percent));
    if layers.len() > MAX_BLOCKS {
        add(&counted((layers.len() - MAX_BLOCKS) as u64, "more layer"), ms, percent);
    }
    for row in &accounting.phases {
        add(&row.phase.name().replace('_', " "), row.cost.mean_ms, row.cost.share_percent);
    }
    add("unattributed", accounting.unattributed.mean_ms, accounting.unattributed.share_percent);
    add("iteration", accounting.wall.mean_ms, 100.0);
    table(out, &heads.map(str::to_owned), &rows);
    out.push('\n');
    if !accounting.workers.is_empty() {
        workers(out, &accounting.workers);
    }
}

/// Writes the variants of a network that was optimised, and the layers that lost channels.
fn optimised_network(out: &mut String, optimised: &OptimisedReport, score: Score) {
    let OptimisedReport { origin, variants, pruning, quantisation } = optimised;
    if let Some(origin) = origin {
        let _ = writeln!(out, "Original run: {}.\n", escape_markdown(origin));
    }
    let more = |out: &mut String, all: usize, shown: usize, thing: &str| {
        if all > shown {
            let _ = writeln!(out, "\n{}.", counted((all - shown) as u64, thing));
        }
        out.push('\n');
    };
    if !variants.is_empty() {
        let shown = variants.iter().take(MAX_VARIANTS);
        let rows: Vec<Vec<String>> =
            shown.map(|variant| variant_table::cells(score, variant).into()).collect();
        table(out, &variant_table::heads(score), &rows);
        more(out, variants.len(), rows.len(), "more variant");
    }
    let layers = pruning.as_ref().map_or(&[][..], |pruning| &pruning.layers);
    if !layers.is_empty() {
        let heads = ["layer that lost channels", "before", "after"].map(str::to_owned);
        let shown = layers.iter().take(MAX_PRUNED_LAYERS);
        let rows: Vec<Vec<String>> = shown
            .map(|layer| {
                vec![layer.layer.clone(), layer.channels[0].to_string(), layer.channels[1].to_string()]
            })
            .collect();
        table(out, &heads, &rows);
        more(out, layers.len(), rows.len(), "more layer");
    }
    let layers = quantisation.as_ref().map_or(&[][..], |quantisation| &quantisation.layers);
    if !layers.is_empty() {
        let heads = ["layer in int8", "divergence, 1e-3", "ms before", "ms"].map(str::to_owned);
        let shown = layers.iter().take(MAX_PRUNED_LAYERS);
        let ms = |ms: Option<f64>| ms.map_or("–".to_owned(), |ms| format!("{ms:.4}"));
        let rows: Vec<Vec<String>> = shown
            .map(|layer| {
                let [before, after] = [0, 1].map(|at| ms(layer.ms.map(|ms| ms[at])));
                vec![layer.layer.clone(), format!("{:.4}", 1e3 * layer.divergence), before, after]
            })
            .collect();
        table(out, &heads, &rows);
        more(out, layers.len(), rows.len(), "more layer");
    }
}

/// Writes the variants of all runs that were optimised, if there are several.
fn all_variants(out: &mut String, runs: &[RunReport]) {
    let of_runs: Vec<(&RunReport, &Variant)> = runs
        .iter()
        .flat_map(|run| run.optimised.iter().map(move |optimised| (run, optimised)))
        .flat_map(|(run, optimised)| optimised.variants.iter().map(move |variant| (run, variant)))
        .collect();
    let Some((first, _)) = of_runs.first() else { return };
    if of_runs.iter().all(|(run, _)| run.label == first.label) {
        // The section of the run has the same table.
        return;
    }
    let score = Score::of_all(of_runs.iter().map(|(run, _)| run.task));
    let _ = writeln!(out, "# Optimised networks\n");
    let mut heads = vec!["run".to_owned()];
    heads.extend(variant_table::heads(score));
    let row = |(run, variant): &(&RunReport, &Variant)| {
        let mut row = vec![run.label.clone()];
        row.extend(variant_table::cells(score, variant));
        row
    };
    table(out, &heads, &of_runs.iter().take(MAX_VARIANTS).map(row).collect::<Vec<_>>());
    if of_runs.len() > MAX_VARIANTS {
        let _ = writeln!(out, "\n{}.", counted((of_runs.len() - MAX_VARIANTS) as u64, "more variant"));
    }
    out.push('\n');
}

/// Writes the communication of each worker, and the worker that it waits for.
fn workers(out: &mut String, workers: &[WorkerCost]) {
    let heads = ["worker", "iteration ms", "communication ms", "waits for", "waiting ms"];
    let row = |worker: &WorkerCost| {
        let waited = worker.waited_for;
        vec![
            worker.worker.to_string(),
            number(Some(worker.wall.mean_ms), 3),
            number(Some(worker.communication.mean_ms), 3),
            waited.map_or("–".to_owned(), |waited| format!("worker {}", waited.worker)),
            number(waited.map(|waited| waited.mean_ms), 3),
        ]
    };
    table(out, &heads.map(str::to_owned), &workers.iter().map(row).collect::<Vec<_>>());
    out.push('\n');
}

/// Writes time differences: the layers that changed most, and the phases outside layers.
fn difference(out: &mut String, diff: &Diff) {
    let _ = writeln!(out, "# Time differences\n\n{}\n", escape_markdown(&diff.headline));
    let _ = writeln!(out, "Test: {}.\n", diff.test);
    for side in [0, 1] {
        if !diff.only[side].is_empty() {
            let names = escape_markdown(&diff.only[side].join(", "));
            let _ = writeln!(out, "Only in {}: {names}.\n", escape_markdown(&diff.runs[side]));
        }
    }
    let unit = diff.per.unit();
    let [before, after] = ["before", "after"].map(|head| format!("{head} {unit}"));
    let mut heads = vec!["layer".to_owned(), "phase".to_owned(), before, after];
    heads.extend([format!("difference {unit}"), "%".to_owned(), "p".to_owned(), "verdict".to_owned()]);
    let time = |ms: Option<f64>| number(ms.map(|ms| diff.per.in_unit(ms)), 3);
    let row = |layer: &str, phase: &str, change: &Change| {
        let mut cells = vec![layer.to_owned(), phase.replace('_', " ")];
        cells.extend([change.before_ms, change.after_ms, change.difference_ms].map(time));
        cells.extend([number(change.percent, 1), probability(change.p)]);
        cells.push(change.verdict().unwrap_or("–").to_owned());
        cells
    };
    let mut layers: Vec<_> = diff.layers.iter().collect();
    let size = |change: &Change| {
        change.difference_ms.or(change.after_ms).or(change.before_ms).unwrap_or_default().abs()
    };
    layers.sort_by(|a, b| size(&b.total).total_cmp(&size(&a.total)));
    let mut rows = Vec::new();
    for layer in layers.iter().take(MAX_LAYERS) {
        let phases = layer.phases().into_iter().rev();
        let present = phases.filter(|(_, change)| change.before_ms.is_some() || change.after_ms.is_some());
        rows.extend(present.map(|(phase, change)| row(&layer.layer, phase, change)));
    }
    rows.extend(diff.phases.iter().map(|difference| row("", difference.phase.name(), &difference.change)));
    rows.push(row("", "unattributed", &diff.unattributed));
    rows.push(row("", diff.per.name(), &diff.wall));
    table(out, &heads, &rows);
    if layers.len() > MAX_LAYERS {
        let _ =
            writeln!(out, "\n{} changed less.", counted((layers.len() - MAX_LAYERS) as u64, "more layer"));
    }
    out.push('\n');
}

/// One row per layer and phase, one per phase outside layers, and the wall time.
fn difference_csv(diff: &Diff) -> String {
    let header = ["layer", "kind", "phase", "per", "before_ms", "after_ms", "difference_ms", "percent", "p"];
    let mut rows: Vec<Vec<String>> =
        vec![header.iter().chain(&["verdict"]).map(ToString::to_string).collect()];
    let mut row = |layer: &str, kind: &str, phase: &str, change: &Change| {
        let &Change { before_ms, after_ms, difference_ms, percent, p, .. } = change;
        let mut fields: Vec<String> = [layer, kind, phase, diff.per.name()].map(str::to_owned).into();
        fields.extend([before_ms, after_ms, difference_ms, percent, p].map(csv::exact));
        fields.push(change.verdict().unwrap_or_default().to_owned());
        rows.push(fields);
    };
    for layer in &diff.layers {
        for (phase, change) in layer.phases() {
            if change.before_ms.is_some() || change.after_ms.is_some() {
                row(&layer.layer, &layer.kind, phase, change);
            }
        }
    }
    diff.phases.iter().for_each(|difference| row("", "", difference.phase.name(), &difference.change));
    row("", "", "unattributed", &diff.unattributed);
    row("", "", "wall", &diff.wall);
    csv::to_text(rows)
}

/// Writes published figures with the corresponding figures of runs.
fn published(out: &mut String, comparison: &PublishedComparison) {
    let _ = writeln!(out, "# Published figures\n");
    let omissions = comparison.omissions();
    if !omissions.is_empty() {
        let _ = writeln!(out, "{}\n", escape_markdown(&omissions));
    }
    let heads = ["quantity", "network", "batch", "published", "this run", "unit", "ratio"];
    let more = ["published on", "run on", "source", "run", "differences"];
    let rows: Vec<Vec<String>> = comparison
        .rows
        .iter()
        .map(|row| {
            let published = &row.published;
            vec![
                published.metric.replace('_', " "),
                published.model.clone(),
                published.batch_size.map_or(String::new(), |size| size.to_string()),
                figure(published.value),
                row.ours.map_or("–".to_owned(), figure),
                published.unit.clone(),
                row.ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.3}")),
                published.machine.clone(),
                row.machine.clone().unwrap_or_default(),
                published.source.clone(),
                row.run.clone(),
                row.differences.join("; "),
            ]
        })
        .collect();
    let heads: Vec<String> = heads.iter().chain(&more).map(ToString::to_string).collect();
    table(out, &heads, &rows);
    out.push('\n');
}

/// The columns of the published table, then the columns of the run.
fn published_csv(comparison: &PublishedComparison) -> String {
    let header = PUBLISHED_COLUMNS.iter().chain(&["run", "run_machine", "ours", "ratio", "differences"]);
    let row = |row: &PublishedComparisonRow| {
        let figure = &row.published;
        let count = |count: Option<u64>| count.map_or(String::new(), |count| count.to_string());
        vec![
            figure.source.clone(),
            figure.framework.clone(),
            figure.model.clone(),
            figure.dataset.clone(),
            figure.machine.clone(),
            figure.image_size.clone(),
            count(figure.epochs),
            count(figure.iterations),
            count(figure.batch_size),
            figure.metric.clone(),
            csv::exact(Some(figure.value)),
            figure.unit.clone(),
            figure.note.clone(),
            row.run.clone(),
            row.machine.clone().unwrap_or_default(),
            csv::exact(row.ours),
            csv::exact(row.ratio),
            row.differences.join("; "),
        ]
    };
    let header = header.map(ToString::to_string).collect();
    csv::to_text(std::iter::once(header).chain(comparison.rows.iter().map(row)))
}

fn comparison_table(comparison: &Comparison) -> (Vec<String>, Vec<Vec<String>>) {
    let score = comparison.score;
    let mut heads = vec!["run".to_owned(), "status".to_owned()];
    heads.extend(comparison.keys.iter().cloned());
    heads.push(format!("best {}", score.head()));
    let results = [
        "validation loss",
        "training loss",
        "iteration ms, median",
        "images/s",
        "speed-up",
        "in all s",
        "peak memory",
    ];
    heads.extend(results.map(str::to_owned));
    let rows = comparison.rows.iter().map(|row| {
        let mut cells = vec![row.label.clone(), row.status.clone()];
        cells.extend(row.values.iter().cloned());
        cells.extend([
            number(row.best_score.map(|best| score.number(best)), score.decimals()),
            number(row.val_loss, 4),
            number(row.train_loss, 4),
            number(row.iteration_ms, 3),
            number(row.images_per_second, 0),
            number(row.speed_up, 2),
            number(row.total_s, 1),
            row.peak_bytes.map_or(String::new(), bytes),
        ]);
        cells
    });
    (heads, rows.collect())
}

fn number(value: Option<f64>, decimals: usize) -> String {
    value.filter(|value| value.is_finite()).map_or(String::new(), |value| text::decimals(value, decimals))
}

fn table(out: &mut String, heads: &[String], rows: &[Vec<String>]) {
    let mut line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| escape_markdown(cell)).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    };
    line(heads);
    line(&vec!["---".to_owned(); heads.len()]);
    rows.iter().for_each(|row| line(row));
}

/// Escapes the markup characters of Markdown.
fn escape_markdown(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '|' | '`' | '*' | '[' | ']' | '\\' => escaped.extend(['\\', letter]),
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped
}
