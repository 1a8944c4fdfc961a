//! Layers as a tree: names, sums, and the page of networks of blocks.

use std::collections::{BTreeMap, HashMap};

use crate::figures::{SKIPPED, cells, expect_curve, expect_near, layer_times, make_named, mean_ms, means};
use crate::page::drawn;
use stratus_report::accounting::render;
use stratus_report::markdown::markdown;
use stratus_report::page;
use stratus_report::report::{LayerTree, Report};
use stratus_run::RunDir;
use stratus_run::csv::Task;

fn rows(names: &[&str]) -> Vec<Vec<String>> {
    names.iter().map(|name| name.split('+').map(str::to_owned).collect()).collect()
}

/// ERFNet's and ResNet's manner of naming: deep blocks, fused layers, layers outside of blocks.
fn network() -> Vec<Vec<String>> {
    let mut names = rows(&["stem", "encoder.initial.conv", "encoder.initial.bn+encoder.initial.relu"]);
    for block in 0..12 {
        for layer in ["conv1+relu1", "conv2", "bn2+add+relu2"] {
            let fused = layer.split('+').map(|layer| format!("encoder.layers.{block}.{layer}"));
            names.push(fused.collect());
        }
    }
    // Fused across two blocks.
    names.push(vec!["encoder.layers.11.out".into(), "decoder.layers.0.conv".into()]);
    for block in 0..6 {
        names.push(vec![format!("decoder.layers.{block}.up")]);
        names.push(vec![format!("decoder.layers.{block}.relu")]);
    }
    names.push(vec!["classifier".into()]);
    names
}

fn report(run: &RunDir) -> Report {
    Report::read(&[run.path().to_owned()], Some(SKIPPED), None)
}

/// Each layer is in the tree once, in the blocks of its name, and the rows of a block are consecutive.
#[track_caller]
fn check_tree(tree: &LayerTree, names: &[Vec<String>]) {
    let mut seen: Vec<usize> = tree.nodes.iter().filter_map(|node| node.row).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..names.len()).collect::<Vec<_>>());
    for (position, node) in tree.nodes.iter().enumerate() {
        assert!(node.end > position && node.end <= tree.nodes.len());
        assert_eq!(node.depth, node.parent.map_or(0, |parent| tree.nodes[parent].depth + 1));
        assert!(!node.label.is_empty() || node.name.is_empty() || node.name.ends_with('.'), "{node:?}");
        if let Some(parent) = node.parent {
            let block = &tree.nodes[parent];
            assert!(block.row.is_none() && (parent + 1..block.end).contains(&position));
            assert!(block.end >= node.end);
        }
        match node.row {
            Some(row) => assert_eq!((node.end, &node.name), (position + 1, &names[row].join("+"))),
            None => {
                assert!(tree.children(Some(position)).count() > 1, "{} has a single child", node.name);
                for row in tree.rows(position) {
                    let inside = |name: &String| name.starts_with(&format!("{}.", node.name));
                    assert!(names[row].iter().all(inside), "{:?} in {}", names[row], node.name);
                }
            }
        }
    }
    // A cut has every layer once, and no more nodes than allowed unless there are more outside of blocks.
    for max in [1, 5, 24, 1000] {
        let cut = tree.cut(max);
        assert!(cut.len() <= max.max(tree.children(None).count()), "{} of {max}", cut.len());
        let mut in_cut: Vec<usize> = cut.iter().flat_map(|node| tree.rows(*node)).collect();
        in_cut.sort_unstable();
        assert_eq!(in_cut, seen);
    }
}

/// Random names of few parts, so that blocks and layers of equal names occur, fused at random.
fn random_names(seed: u64) -> Vec<Vec<String>> {
    let mut state = seed;
    let mut below = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let parts = ["a", "b", "0", "1", "", "é", "<b>", "x y", "\"", "layers"];
    let mut names: Vec<Vec<String>> = Vec::new();
    for _ in 0..1 + below(60) {
        let fused = (0..1 + below(3)).map(|_| {
            let deep = if below(10) == 0 { 40 } else { 5 };
            let chosen: Vec<&str> =
                (0..1 + below(deep)).map(|_| parts[below(parts.len() as u64) as usize]).collect();
            chosen.join(".")
        });
        let row: Vec<String> = fused.collect();
        // Rows are distinct, as in a timeline.
        if !names.iter().any(|known| known.join("+") == row.join("+")) {
            names.push(row);
        }
    }
    names
}

#[test]
fn every_layer_is_in_the_tree_once() {
    let root = tempfile::tempdir().unwrap();
    let run = make_named(root.path(), Task::Classification, &network(), 4);
    let report = report(&run);
    let tree = &report.runs[0].layers.tree;
    check_tree(tree, &network());
    let outermost: Vec<&str> = tree.children(None).map(|node| tree.nodes[node].name.as_str()).collect();
    let fused = "encoder.layers.11.out+decoder.layers.0.conv";
    assert_eq!(outermost, ["stem", "encoder", fused, "decoder.layers", "classifier"]);
    let names: Vec<&str> = tree.cut(24).into_iter().map(|node| tree.nodes[node].name.as_str()).collect();
    assert_eq!(names.len(), 22);
    assert!(names.contains(&"encoder.layers.7") && names.contains(&"decoder.layers.5"), "{names:?}");
    assert!(tree.nodes.iter().any(|node| node.label == "bn2+add+relu2" && node.depth == 3));
    for seed in 0..40 {
        let names = random_names(seed);
        let run = make_named(root.path(), Task::Classification, &names, 3);
        check_tree(&report_of(&run).layers.tree, &names);
    }
}

fn report_of(run: &RunDir) -> stratus_report::report::RunReport {
    report(run).runs.remove(0)
}

/// Microseconds by layer, summed over the layers whose names begin with a path.
fn sum(times: &HashMap<String, [Vec<f64>; 3]>, is_in: impl Fn(&str) -> bool) -> [Vec<f64>; 3] {
    let mut sums: [Vec<f64>; 3] = [const { Vec::new() }; 3];
    for (_, columns) in times.iter().filter(|(name, _)| is_in(name)) {
        for (sum, column) in sums.iter_mut().zip(columns) {
            sum.resize(column.len(), 0.0);
            sum.iter_mut().zip(column).for_each(|(sum, value)| *sum += value);
        }
    }
    sums
}

/// All rows of the table, blocks included, all curves, and all bars equal `layers.csv`.
#[test]
fn figures_of_blocks_equal_the_sums_of_csv_files() {
    let root = tempfile::tempdir().unwrap();
    let run = make_named(root.path(), Task::Classification, &network(), 30);
    let report = report(&run);
    let page = page::render(&report);
    let times = layer_times(&run);
    let within = |block: &str| {
        let prefix = format!("{block}.");
        let block = block.to_owned();
        move |name: &str| name == block || name.split('+').all(|name| name.starts_with(&prefix))
    };
    let tree = &report.runs[0].layers.tree;
    let table = cells(&page, "Per layer");
    assert_eq!(table.len(), tree.nodes.len());
    assert!(table.len() > times.len());
    let wall: f64 = report.runs[0].accounting.wall.mean_ms;
    for row in &table {
        let parts = sum(&times, within(&row[0])).map(|part| mean_ms(&part));
        let total: f64 = parts.iter().sum();
        let expected = [parts[0], parts[1], parts[2], total];
        for (cell, expected) in row[2..6].iter().zip(expected) {
            expect_near(cell.parse().unwrap(), expected);
        }
        expect_near(row[7].parse().unwrap(), 100.0 * total / wall);
    }
    for (position, node) in tree.nodes.iter().enumerate() {
        let rows = tree.rows(position);
        let layers = rows.iter().map(|row| &report.runs[0].accounting.layers[*row]);
        assert_eq!(node.time.total_ns, layers.map(|layer| layer.total.total_ns).sum::<i128>());
    }

    let curves = &drawn(&page)["runs"][0]["curves"];
    let length = curves["layer_iterations_per_point"].as_u64().unwrap() as usize;
    let drawn_curves = curves["layers"].as_array().unwrap();
    assert_eq!(drawn_curves.len(), 22);
    for curve in drawn_curves {
        let [forward, backward, update] = sum(&times, within(curve["layer"].as_str().unwrap()));
        let ms = |parts: &[&Vec<f64>]| {
            let sums: Vec<f64> =
                (0..30).map(|at| parts.iter().map(|part| part[at]).sum::<f64>() / 1e3).collect();
            means(&sums, length)
        };
        expect_curve(&curve["forward_ms"], &ms(&[&forward]));
        expect_curve(&curve["backward_ms"], &ms(&[&backward, &update]));
    }
    let history = &curves["history"];
    assert_eq!(history["iteration"].as_array().unwrap().len(), 30);
    for (layer, curve) in report.runs[0].accounting.layers.iter().zip(history["ms"].as_array().unwrap()) {
        let parts = &times[&layer.layer];
        for (at, point) in curve.as_array().unwrap().iter().enumerate() {
            let expected = parts.iter().map(|part| part[at]).sum::<f64>() / 1e3;
            assert!((point.as_f64().unwrap() - expected).abs() <= 1e-6 * expected, "{}", layer.layer);
        }
    }

    // The bars of all blocks together are the time of all layers.
    let svg = page::time_svg(&report.runs[0]);
    assert!(!svg.contains("more layer"), "{svg}");
    let mut bars: BTreeMap<&str, f64> = BTreeMap::new();
    for title in svg.split("<title>").skip(1).map(|title| title.split("</title>").next().unwrap()) {
        let (label, ms) = title.rsplit_once(": ").unwrap();
        let (name, _) = label.rsplit_once(", ").unwrap();
        *bars.entry(name).or_default() += ms.strip_suffix(" ms").unwrap().parse::<f64>().unwrap();
    }
    for block in tree.cut(24) {
        let node = &tree.nodes[block];
        assert!((bars[node.name.as_str()] - node.time.total_ms).abs() <= 0.002, "{}", node.name);
    }
}

/// Tables with few rows show blocks, which together are all layers.
#[test]
fn tables_of_few_rows_show_blocks() {
    let root = tempfile::tempdir().unwrap();
    let run = make_named(root.path(), Task::Classification, &network(), 30);
    let report = report(&run);
    let accounting = &report.runs[0].accounting;
    let text = render(accounting, Some(10), 100);
    assert!(!text.contains("other layers"), "{text}");
    let lines = text.lines().skip_while(|line| !line.starts_with("layer ")).skip(1);
    let lines: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    // The blocks, and the line of all layers.
    assert_eq!(lines.len(), 7, "{text}");
    let total = |line: &str| {
        let cells: String = line.chars().skip(47).collect();
        cells.split_whitespace().nth(3).unwrap().parse::<f64>().unwrap()
    };
    let (all, blocks) = lines.split_last().unwrap();
    assert!(all.starts_with("all layers"), "{text}");
    let sum: f64 = blocks.iter().map(|line| total(line)).sum();
    assert!((sum - total(all)).abs() <= 0.0005 * 8.0, "{text}");
    // All layers, if nothing limits them.
    let text = render(accounting, None, 100);
    let lines = text.lines().skip_while(|line| !line.starts_with("layer ")).skip(1);
    assert_eq!(lines.take_while(|line| !line.is_empty()).count(), network().len() + 1);
    let text = markdown(&report);
    assert!(!text.contains("more layers") && text.contains("| encoder.layers.0 | 3 layers |"), "{text}");
}

/// A run without a plan has a tree, and says why it has no drawing.
#[test]
fn a_run_without_plan_has_a_tree_and_no_drawing() {
    let root = tempfile::tempdir().unwrap();
    let run = make_named(root.path(), Task::Classification, &network(), 4);
    let report = report(&run);
    let page = page::render(&report);
    assert!(page.contains("There is no drawing, since the plan of this run cannot be read."));
    assert!(
        report.problems.iter().any(|problem| problem.what.contains("data flow")),
        "{:?}",
        report.problems
    );
    assert!(!page.contains("<svg class=\"network\""));
    assert!(page::network_svg(&report.runs[0]).is_none());
    assert!(page.contains("data-node=\"0\"") && page.contains("block-row"));
}

#[test]
fn hostile_names_of_layers_stay_text() {
    let root = tempfile::tempdir().unwrap();
    let long = "x.".repeat(5000);
    let hostile = [
        "</script><script>alert(1)</script>.a",
        "</script><script>alert(1)</script>.b",
        "\" onload=\"alert(1).c",
        "' onload='alert(1)\n\u{7}.d",
        "..",
        "...",
        "../../etc/passwd",
        "",
        long.as_str(),
    ];
    let names: Vec<Vec<String>> = hostile.iter().map(|name| vec![(*name).to_owned()]).collect();
    let run = make_named(root.path(), Task::Classification, &names, 4);
    let report = report(&run);
    check_tree(&report.runs[0].layers.tree, &names);
    let page = page::render(&report);
    assert_eq!(page.matches("<script").count(), 2, "injected script");
    // In the data of the scripts, quotes are those of JSON.
    let (before, data) = page.split_once("<script type=\"application/json\"").unwrap();
    let after = data.split_once("</script>").unwrap().1;
    for markup in [before, after] {
        assert!(!markup.contains("\" onload=\"") && !markup.contains("' onload='"), "injected attribute");
    }
    let svg = page::time_svg(&report.runs[0]);
    assert!(!svg.contains("\" onload=\"") && !svg.contains("<script"), "{svg}");
    assert!(page.len() < 1 << 20, "{} bytes", page.len());
    assert!(report.runs[0].layers.tree.nodes.iter().all(|node| node.depth <= 17));
}
