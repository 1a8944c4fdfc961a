use super::*;

const PATH: &str = "experiments/widths.toml";

fn parse(text: &str) -> Result<Definition> {
    Definition::parse::<&str, &str>(text, Path::new(PATH), &[])
}

fn values(definition: &Definition) -> Vec<String> {
    definition.cells.iter().map(|cell| cell.values.join(" ")).collect()
}

#[test]
fn cells_are_every_combination_with_the_last_key_fastest() {
    let text = "[model]\nname = \"digits\"\n[sweep]\nrepetitions = 3\n[sweep.keys]\n\
                \"train.batch_size\" = [64, 128]\nmodel.width = [8, 16]\n\"train.precision\" = [\"f32\"]\n";
    let definition = parse(text).unwrap();
    assert_eq!(definition.keys, ["train.batch_size", "model.width", "train.precision"]);
    assert_eq!(values(&definition), ["64 8 f32", "64 16 f32", "128 8 f32", "128 16 f32"]);
    let second = &definition.cells[1];
    assert_eq!(second.experiment.train.batch_size, 64);
    assert_eq!(second.experiment.model.width, Some(16));
    assert_eq!(
        definition.describe_cell(second),
        "train.batch_size = 64, model.width = 16, train.precision = f32"
    );
    let seed = second.experiment.train.seed;
    let seeds: Vec<u64> = (1..=3).map(|number| second.repetition(number).train.seed).collect();
    assert_eq!(seeds, [seed, seed + 1, seed + 2]);
    assert_eq!(definition.name, "widths");
}

#[test]
fn zipped_keys_change_together() {
    let text = "[model]\nname = \"digits\"\n[sweep]\n\
         zip = [[\"train.batch_size\", \"optimiser.learning_rate\"]]\n\
                [sweep.keys]\n\"train.batch_size\" = [64, 128]\n\"model.width\" = [8, 16]\n\
                \"optimiser.learning_rate\" = [0.1, 0.2]\n";
    assert_eq!(values(&parse(text).unwrap()), ["64 8 0.1", "64 16 0.1", "128 8 0.2", "128 16 0.2"]);
}

#[test]
fn swept_network_has_its_own_defaults() {
    let text = "[data]\nname = \"synthetic\"\n[sweep.keys]\n\"model.name\" = [\"digits\", \"vgg11\"]\n";
    let definition = parse(text).unwrap();
    for (cell, name) in definition.cells.iter().zip(["digits", "vgg11"]) {
        let own = Experiment::builtin(name).unwrap();
        assert_eq!(cell.experiment.train, own.train, "{name}");
        assert_eq!(cell.experiment.data.name, "synthetic");
    }
}

#[test]
fn lists_are_swept_and_overrides_kept() {
    let text = "[model]\nname = \"resnet18\"\n[sweep.keys]\n\"data.shape\" = [[3, 32, 32], [3, 64, 64]]\n";
    let definition = Definition::parse(text, Path::new(PATH), &[("train.epochs", "7")]).unwrap();
    assert_eq!(values(&definition), ["[3, 32, 32]", "[3, 64, 64]"]);
    assert_eq!(definition.cells[1].experiment.data.shape, Some(vec![3, 64, 64]));
    assert_eq!(definition.cells[1].experiment.train.epochs, 7);
    let again = definition.with_command(text, Path::new(PATH)).unwrap();
    let read = Definition::parse::<&str, &str>(&again, Path::new("/elsewhere/sweep.toml"), &[]).unwrap();
    assert_eq!(read.cells, definition.cells);
    // The copied file of a sweep can start another sweep.
    let other = Definition::parse(&again, Path::new(PATH), &[("train.epochs", "9")]).unwrap();
    let text = other.with_command(&again, Path::new(PATH)).unwrap();
    assert_eq!(text.matches(COMMAND_HEADING).count(), 1);
    assert_eq!(parse(&text).unwrap().cells[0].experiment.train.epochs, 9);
}

#[test]
fn layer_file_next_to_the_sweep_is_found_from_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sweep.toml");
    std::fs::write(folder.path().join("net.toml"), "").unwrap();
    let text = "[model]\nname = \"net.toml\"\n[data]\nname = \"mnist\"\n[sweep.keys]\n\
                \"train.batch_size\" = [1, 2]\n";
    let definition = Definition::parse::<&str, &str>(text, &path, &[]).unwrap();
    let written = definition.with_command(text, &path).unwrap();
    let read = Definition::parse::<&str, &str>(&written, Path::new("/elsewhere/sweep.toml"), &[]).unwrap();
    assert_eq!(read.cells[0].experiment.layer_file(), Some(folder.path().join("net.toml").as_path()));
}

#[test]
fn errors_name_the_line() {
    let cases = [
        ("[model]\nname = \"digits\"\n", "[sweep] is missing"),
        ("sweep = 3\n[model]\nname = \"digits\"\n", "widths.toml:1: `sweep` must be a table"),
        ("[model]\nname = \"digits\"\n[sweep]\nrepetitions = 2\n", "widths.toml:3: [sweep.keys] is empty"),
        (
            "[model]\nname = \"digits\"\n[sweep]\nrepetition = 2\n",
            "widths.toml:4: unknown key `sweep.repetition`",
        ),
        (
            "[model]\nname = \"digits\"\n[sweep]\nrepetitions = 0\n[sweep.keys]\nmodel.width = [8]\n",
            "a positive integer",
        ),
        (
            "[model]\nname = \"digits\"\n[sweep.keys]\n\"model.width\" = 8\n",
            "widths.toml:4: `model.width` must be a list of values",
        ),
        ("[model]\nname = \"digits\"\n[sweep.keys]\n\"model.width\" = []\n", "`model.width` is empty"),
        (
            "[model]\nname = \"digits\"\n[sweep.keys]\n\"model.width\" = [8, 8]\n",
            "cells 1 and 2 are identical",
        ),
        ("[model]\nname = \"digits\"\n[sweep.keys]\n\"model.breadth\" = [8]\n", "cell 1 (model.breadth = 8)"),
        (
            "[model]\nname = \"digits\"\n[sweep.keys]\n\"train.batch_size\" = [8, 0]\n",
            "cell 2 (train.batch_size = 0)",
        ),
        (
            "[model]\nname = \"digits\"\nbreadth = 2\n[sweep.keys]\n\"model.width\" = [8]\n",
            "widths.toml:3: unknown key",
        ),
        (
            "[model]\nname = \"digits\"\n[sweep]\nzip = [[\"train.epochs\"]]\n\
             [sweep.keys]\n\"model.width\" = [8]\n",
            "which is not swept",
        ),
        (
            "[model]\nname = \"digits\"\n[sweep]\nzip = [[\"train.epochs\", \"model.width\"]]\n[sweep.keys]\n\
             \"model.width\" = [8]\ntrain.epochs = [1, 2]\n",
            "zipped keys train.epochs, model.width have different numbers of values: 2, 1",
        ),
        (
            "[model]\nname = \"digits\"\n[sweep.keys]\n\"model.width\" = [8]\n\
             [sweep.halving]\nmetric = \"speed\"\n",
            "`sweep.halving.metric` must be one of train_loss",
        ),
        (
            "[model]\nname = \"digits\"\n[validation]\nevery_epochs = 2\n[sweep.keys]\n\
             \"model.width\" = [8]\n\
             [sweep.halving]\nmetric = \"val_top1\"\nepochs = 3\n",
            "is computed every 2 epochs",
        ),
    ];
    for (text, expected) in cases {
        let error = parse(text).unwrap_err();
        assert!(error.is_usage());
        assert!(error.to_string().contains(expected), "{text}\n{error}");
    }
    let swept = "[model]\nname = \"digits\"\n[sweep.keys]\n\"model.width\" = [8]\n";
    let error = Definition::parse(swept, Path::new(PATH), &[("model.width", "4")]).unwrap_err();
    assert!(error.to_string().contains("both swept and set with --set"), "{error}");
}

#[test]
fn rejects_sweeps_of_too_many_runs() {
    let numbers = (1..=200).map(|number| number.to_string()).collect::<Vec<_>>().join(", ");
    let text = format!(
        "[model]\nname = \"digits\"\n[sweep.keys]\n\"train.epochs\" = [{numbers}]\n\
         \"train.batch_size\" = [{numbers}]\n"
    );
    assert!(parse(&text).unwrap_err().to_string().contains("more than 10000 runs"));
}

#[test]
fn built_in_sweeps_are_valid() {
    for Builtin { name, text } in BUILTIN {
        let path = format!("built-in sweep {name}");
        let definition = Definition::parse::<&str, &str>(text, Path::new(&path), &[]).unwrap();
        assert!(definition.cells.len() > 1, "{name}");
        assert!(is_sweep(text));
        assert_eq!(builtin(name).map(|builtin| builtin.text), Some(*text));
    }
    assert!(builtin("none").is_none());
}

#[test]
fn cells_that_repeat_long_texts_are_refused() {
    let seeds: Vec<String> = (0..5_000).map(|seed| seed.to_string()).collect();
    let sweep = |path: &str| {
        format!(
            "[model]\nname = \"digits\"\n[data]\npath = \"{path}\"\n[sweep.keys]\n\
             \"train.seed\" = [{}]\n\"model.width\" = [8, 16]\n",
            seeds.join(", ")
        )
    };
    assert_eq!(parse(&sweep("a")).unwrap().cells.len(), 10_000);
    let error = parse(&sweep(&"a".repeat(7_000))).unwrap_err().to_string();
    assert!(error.contains("the texts and lists of 10000 cells take more than 64 MiB"), "{error}");
}

const SEARCHED: &str = "[model]\nname = \"digits\"\n[sweep]\nsearch = \"random\"\ntrials = 12\nseed = 5\n\
     [sweep.keys]\n\"optimiser.learning_rate\" = { log_uniform = [1e-4, 1e-1] }\n\
     \"train.batch_size\" = { uniform = [16, 64] }\n\"model.width\" = { choice = [4, 8] }\n\
     \"train.precision\" = [\"f32\", \"bf16\"]\n";

#[test]
fn random_cells_are_drawn_from_ranges_and_lists() {
    let definition = parse(SEARCHED).unwrap();
    assert_eq!((definition.cells.len(), definition.final_cells()), (12, 12));
    for cell in &definition.cells {
        let experiment = &cell.experiment;
        assert!((1e-4..=0.1).contains(&experiment.optimiser.learning_rate), "{:?}", cell.values);
        assert!((16..=64).contains(&experiment.train.batch_size), "{:?}", cell.values);
        assert!([Some(4), Some(8)].contains(&experiment.model.width), "{:?}", cell.values);
    }
    assert_eq!(parse(SEARCHED).unwrap().cells, definition.cells);
    let other_seed = parse(&SEARCHED.replace("seed = 5", "seed = 6")).unwrap();
    assert_ne!(other_seed.cells, definition.cells);
    // A smaller sweep has the first of these cells.
    let fewer = parse(&SEARCHED.replace("trials = 12", "trials = 5")).unwrap();
    assert_eq!(fewer.cells, definition.cells[..5]);
    let again = definition.with_command(SEARCHED, Path::new(PATH)).unwrap();
    assert_eq!(parse(&again).unwrap().cells, definition.cells);
}

#[test]
fn tpe_begins_with_the_random_cells() {
    let text = SEARCHED.replace("\"random\"", "\"tpe\"\nobjective = \"val_top1\"");
    let mut definition = parse(&text).unwrap();
    assert_eq!((definition.cells.len(), definition.final_cells()), (10, 12));
    assert_eq!(definition.cells, parse(SEARCHED).unwrap().cells[..10]);
    assert!(definition.draw_cell(&[]).unwrap());
    let drawn = definition.cells[10].values.clone();
    let mut resumed = parse(&text).unwrap();
    let outside = ["0.5", "16", "4", "f32"].map(str::to_owned).to_vec();
    assert!(!resumed.add_recorded_cell(outside));
    assert!(resumed.add_recorded_cell(drawn));
    assert_eq!(resumed.cells, definition.cells);
    assert!(definition.draw_cell(&[]).unwrap());
    assert!(!definition.draw_cell(&[]).unwrap(), "all trials are drawn");
}

#[test]
fn every_combination_is_drawn_once() {
    let text = "[model]\nname = \"digits\"\n[sweep]\nsearch = \"random\"\ntrials = 6\n\
                zip = [[\"train.batch_size\", \"optimiser.learning_rate\"]]\n[sweep.keys]\n\
                \"train.batch_size\" = [64, 128]\n\"optimiser.learning_rate\" = [0.1, 0.2]\n\
                \"model.width\" = { uniform = [4, 6] }\n";
    let mut drawn = values(&parse(text).unwrap());
    drawn.sort();
    let all = ["128 0.2 4", "128 0.2 5", "128 0.2 6", "64 0.1 4", "64 0.1 5", "64 0.1 6"];
    assert_eq!(drawn, all);
    let error = parse(&text.replace("trials = 6", "trials = 7")).unwrap_err();
    assert!(error.to_string().contains("is 7, but the keys have only 6 combinations"), "{error}");
}

#[test]
fn cell_names_have_the_shortest_unique_keys() {
    let text = "[model]\nname = \"digits\"\n[sweep.keys]\n\"train.batch_size\" = [64]\n\
                \"validation.batch_size\" = [32]\n\"optimiser.learning_rate\" = [0.01]\n";
    let definition = parse(text).unwrap();
    let name = definition.cell_name(&definition.cells[0]);
    assert_eq!(name, "train.batch_size=64 validation.batch_size=32 learning_rate=0.01");
}

#[test]
fn searches_that_cannot_run_say_which_key_to_set() {
    let model = "[model]\nname = \"digits\"\n";
    let range = "[sweep.keys]\n\"optimiser.learning_rate\" = { log_uniform = [1e-4, 1e-1] }\n";
    let halving = "[sweep.halving]\nmetric = \"val_top1\"\n";
    let tpe = "[sweep]\nsearch = \"tpe\"\ntrials = 30\n";
    let random = "[sweep]\nsearch = \"random\"\ntrials = 30\n";
    let cases = [
        (range.to_owned(), "has a range, which a grid", "set sweep.search = \"random\" or \"tpe\""),
        (format!("[sweep]\nsearch = \"random\"\n{range}"), "`sweep.trials` is not set", "sweep.trials = 30"),
        (format!("[sweep]\nsearch = \"best\"\n{range}"), "must be grid, random or tpe", ""),
        (format!("[sweep]\nseed = 3\n{range}"), "`sweep.seed` has no effect on a grid", "sweep.search"),
        (format!("{tpe}{range}"), "`sweep.objective` is not set", "val_top1"),
        (format!("{tpe}{range}{halving}"), "proposes them one after", "sweep.halving.asynchronous = true"),
        (format!("{tpe}objective = \"speed\"\n{range}"), "`sweep.objective` must be one of train_loss", ""),
        (
            format!("{random}{}", range.replace("1e-1", "1e-5")),
            "`optimiser.learning_rate` begins at 0.0001, which is not below its end 0.00001",
            "uniform",
        ),
        (
            format!("{random}seed = 1\n[sweep.keys]\n\"train.batch_size\" = {{ uniform = [0, 5000] }}\n"),
            "train.batch_size = 0 is not a valid experiment",
            "",
        ),
        (
            format!("{random}zip = [[\"optimiser.learning_rate\"]]\n{range}"),
            "`sweep.zip` names `optimiser.learning_rate`, which has a range",
            "",
        ),
    ];
    for (text, problem, hint) in cases {
        let error = parse(&format!("{model}{text}")).unwrap_err();
        assert!(error.is_usage());
        assert!(error.to_string().contains(problem), "{text}\n{error}");
        assert!(error.hint().unwrap_or_default().contains(hint), "{text}\n{:?}", error.hint());
    }
}
