//! Tests of experiment files, overrides and their errors.

use super::*;
use proptest::prelude::*;
use std::path::Path;

fn parse(text: &str) -> Result<Experiment, ExperimentError> {
    Experiment::from_toml(text, Path::new("e.toml"))
}

fn problem(text: &str) -> String {
    let error = parse(text).expect_err("must be refused");
    match error.hint() {
        Some(hint) => format!("{error} | {hint}"),
        None => error.to_string(),
    }
}

fn set_problem(key: &str, value: &str) -> String {
    Experiment::builtin("digits")
        .unwrap()
        .with_overrides(&[(key, value)])
        .expect_err("must be refused")
        .to_string()
}

#[test]
fn every_network_has_a_built_in_experiment() {
    let networks: Vec<&str> = stratus_graph::zoo::NETWORKS.iter().map(|network| network.name).collect();
    let names: Vec<&str> = Experiment::builtin_names().collect();
    assert_eq!(names[..networks.len()], networks);
    for name in names {
        let experiment = Experiment::builtin(name).unwrap();
        // After the networks: experiments on a particular data set.
        let network = if networks.contains(&name) { name } else { experiment.model.name.as_str() };
        assert_eq!((experiment.model.name.as_str(), experiment.name()), (network, name));
        assert!(networks.contains(&network), "{name}");
        let first = experiment.first_stage().map(|first| first.model.name);
        assert!(first.is_none_or(|first| networks.contains(&first.as_str())), "{name}");
        // None has the generic defaults of an unknown network.
        assert_ne!(experiment.schedule.name, ScheduleName::Constant, "{name}");
        assert!(experiment.optimiser.weight_decay > 0.0, "{name}");
    }
}

#[test]
fn keys_are_documented_and_accept_their_defaults() {
    for key in KEYS {
        assert!(key.doc.trim().ends_with('.'), "{}: {:?}", key.name, key.doc);
        match key.default() {
            // `model.name` is the only key that a file must set.
            Some(value) => assert!(key.name == "model.name" || key.constraint.allows(&value), "{}", key.name),
            None => assert!(key.optional, "{}", key.name),
        }
    }
}

#[test]
fn file_beyond_the_limit_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["e.toml", "e.xml"] {
        let path = folder.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        let error = Experiment::load(&path).unwrap_err();
        let cause = std::error::Error::source(&error).map_or(String::new(), ToString::to_string);
        assert!(error.to_string().contains(name), "{error}");
        assert!(
            error.to_string().contains("more than 1 MiB") || cause.contains("larger than 1 MiB"),
            "{error}"
        );
    }
}

#[test]
fn a_file_is_applied_to_the_built_in_experiment_of_its_network() {
    let experiment = parse("[model]\nname = \"digits\"\n[train]\nepochs = 3\n").unwrap();
    assert_eq!(experiment.train.epochs, 3);
    assert_eq!(experiment.train.batch_size, 1024);
    assert_eq!(experiment.schedule.name, ScheduleName::OneCycle);
    let other = parse("model.name = \"other\"").unwrap();
    assert_eq!(other.train, Train::default());
    assert_eq!(other.name(), "other");
}

#[test]
fn overrides_need_no_quotes_and_unset_with_an_empty_value() {
    let experiment = Experiment::builtin("digits")
        .unwrap()
        .with_overrides(&[
            ("train.precision", "bf16"),
            ("optimiser.learning_rate", "1"),
            ("data.mean", "[0.5]"),
            ("data.path", "\"a b\""),
            ("experiment.name", "7"),
            ("model.width", ""),
        ])
        .unwrap();
    assert_eq!(experiment.train.precision, Precision::Bf16);
    assert_eq!(experiment.optimiser.learning_rate, 1.0);
    assert_eq!(experiment.data.mean, Some(vec![0.5]));
    assert_eq!(experiment.data_path(), Path::new("a b"));
    assert_eq!(experiment.name(), "7");
    assert_eq!(experiment.model.width, None);
}

#[test]
fn a_layer_file_in_place_of_a_network_drops_the_width_of_the_recipe() {
    let with = |overrides: &[(&str, &str)]| {
        Experiment::builtin("digits").unwrap().with_overrides(overrides).unwrap().model.width
    };
    assert!(with(&[]).is_some());
    assert_eq!(with(&[("model.name", "net.toml")]), None);
    assert_eq!(
        with(&[("model.name", "net.toml"), ("model.width", "5")]),
        Some(5),
        "rejected with its reason"
    );
    let widened = Experiment::builtin("digits").unwrap().with_overrides(&[("model.width", "5")]).unwrap();
    let replaced = widened.with_overrides(&[("model.name", "net.toml")]).unwrap();
    assert_eq!(replaced.model.width, Some(5), "a width that was given is rejected too");
}

#[test]
fn data_addresses_are_kept_verbatim() {
    for address in ["s3://bucket/some//prefix/", "https://host:8080/packed/../x"] {
        let experiment = Experiment::default().with_overrides(&[("data.path", address)]).unwrap();
        assert_eq!(experiment.data_path().to_str(), Some(address));
        assert_eq!(experiment.completed().data.path.as_deref(), Some(address));
    }
}

#[test]
fn errors_name_origin_key_and_fix() {
    let cases = [
        (
            "model.name = \"digits\"\n\n[train]\nepoch = 3",
            "e.toml:4: unknown key `train.epoch` | did you mean `train.epochs`?",
        ),
        (
            "[optimizer]\nmomentum = 0.5",
            "e.toml:2: unknown key `optimizer.momentum` | did you mean `optimiser.momentum`?",
        ),
        ("[weather]", "e.toml:1: unknown key `weather` | `stratus config keys` lists every key"),
        (
            "train = 3",
            "e.toml:1: `train` is a section, not a key | use a key of the section, like `train.loss`",
        ),
        (
            "[train]\nepochs = \"many\"",
            "e.toml:2: `train.epochs` expects an integer, from 1 to 1000000000, but found \"many\" | \
             `stratus config keys train.epochs` explains the key",
        ),
        (
            "[train]\nepochs = 2.5",
            "e.toml:2: `train.epochs` expects an integer, from 1 to 1000000000, but found 2.5 | `stratus \
             config keys train.epochs` explains the key",
        ),
        (
            "[train.epochs]\na = 1",
            "e.toml:1: `train.epochs` expects an integer, from 1 to 1000000000, but found a section | \
             `stratus config keys train.epochs` explains the key",
        ),
        (
            "train.epochs = 0",
            "e.toml:1: `train.epochs` must be from 1 to 1000000000, but is 0 | `stratus config keys \
             train.epochs` explains the key",
        ),
        (
            "train.seed = -1",
            "e.toml:1: `train.seed` must be at least 0, but is -1 | `stratus config keys train.seed` \
             explains the key",
        ),
        (
            "train.seed = 99999999999999999999",
            "e.toml:1: `train.seed` expects an integer, at least 0, but found a number that is too large | \
             `stratus config keys train.seed` explains the key",
        ),
        (
            "optimiser.momentum = nan",
            "e.toml:1: `optimiser.momentum` must be at least 0 and less than 1, but is nan | `stratus config \
             keys optimiser.momentum` explains the key",
        ),
        (
            "data.mean = [inf]",
            "e.toml:1: `data.mean` must be a finite number, but is [inf] | `stratus config keys data.mean` \
             explains the key",
        ),
        (
            "data.std = [0.0]",
            "e.toml:1: `data.std` must be more than 0, but is [0.0] | `stratus config keys data.std` \
             explains the key",
        ),
        (
            "data.mean = [\"a\"]",
            "e.toml:1: `data.mean` expects a list of numbers like [0.5, 0.25], but found [\"a\"] | `stratus \
             config keys data.mean` explains the key",
        ),
        (
            "train.precision = \"fp32\"",
            "e.toml:1: `train.precision` must be one of \"auto\", \"f32\", \"bf16\", \"f16\", but is \
             \"fp32\" | did you mean \"f32\"?",
        ),
        (
            "experiment.name = \"../up\"",
            "e.toml:1: `experiment.name` must be made of letters, digits, `.`, `_` and `-`, beginning with a \
             letter or digit, but is \"../up\" | `stratus config keys experiment.name` explains the key",
        ),
        ("[train]\nepochs = 3\nepochs = 4", "e.toml:3: not valid TOML: duplicate key"),
        (
            "model.freeze = [\"a\", 1]",
            "e.toml:1: `model.freeze` expects a list of strings like [\"a\", \"b\"], but found a list of \
             mixed types | `stratus config keys model.freeze` explains the key",
        ),
        (
            "model.freeze = [\"\"]",
            "e.toml:1: `model.freeze` must be a non-empty string, but is [\"\"] | `stratus \
             config keys model.freeze` explains the key",
        ),
        ("train.epochs = 3", "e.toml: `model.name` is not set | name the network: [model] name = \"digits\""),
        (
            "model.name = \"digits\"\ndata.mean = [0.1]\ndata.std = [1.0, 2.0]",
            "configuration: `data.mean` has 1 channels, but `data.std` has 2 | set both to one number per \
             channel of the images",
        ),
        (
            "model.name = \"n\"\ndata.augment.zoom = [2.0, 0.5]",
            "configuration: `data.augment.zoom` is [2.0, 0.5] | set the smallest value, above 0, and the \
             largest",
        ),
        (
            "model.name = \"n\"\ndata.augment.random_crop = true\ndata.augment.random_resized_crop = true",
            "configuration: `data.augment.random_crop` and `data.augment.random_resized_crop` are both true \
             | set only one of the two",
        ),
        (
            "model.name = \"n\"\ndata.lists = [\"a.txt\"]",
            "configuration: `data.lists` names 1 files | name a training list, a validation list and, if \
             there is one, a test list",
        ),
        (
            "model.name = \"n\"\ndata.lists = [\"a.txt\", \"b.txt\"]\ndata.split_seed = 1",
            "configuration: `data.lists` and `data.split_seed` are both set | set only one of the two",
        ),
        (
            "model.name = \"n\"\ntrain.batch_size = 64\ntrain.micro_batches = 3",
            "configuration: `train.micro_batches` = 3 does not divide `train.batch_size` = 64 | choose a \
             divisor of the batch size",
        ),
        (
            "model.name = \"n\"\nschedule.warmup_epochs = 12",
            "configuration: `schedule.warmup_epochs` = 12 is not less than `train.epochs` = 10 | choose a \
             warm-up that ends before training does",
        ),
        (
            "model.name = \"n\"\nschedule.name = \"one_cycle\"\nschedule.warmup_epochs = 10.5",
            "configuration: `schedule.warmup_epochs` = 10.5 is not less than `train.epochs` = 10 | choose a \
             warm-up that ends before training does",
        ),
        (
            "model.name = \"n\"\nschedule.name = \"poly\"\nschedule.final_learning_rate = 0.5",
            "configuration: `schedule.final_learning_rate` = 0.5 exceeds `optimiser.learning_rate` = 0.01 | \
             choose a final learning rate that is at most the initial one",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(problem(text), expected, "{text}");
    }
}

#[test]
fn override_errors_name_the_key() {
    assert_eq!(set_problem("train.epocs", "3"), "--set: unknown key `train.epocs`");
    assert_eq!(
        set_problem("train.epochs", "many"),
        "--set: `train.epochs` expects an integer, from 1 to 1000000000, but found `many`"
    );
    assert_eq!(
        set_problem("train.epochs", ""),
        "--set: `train.epochs` expects an integer, from 1 to 1000000000, but found ``"
    );
}

#[test]
fn unknown_built_in_experiments_suggest_a_name() {
    let error = Experiment::builtin("digit").unwrap_err();
    assert_eq!(error.to_string(), "no built-in experiment is named `digit`");
    assert_eq!(error.hint().as_deref(), Some("did you mean `digits`?"));
}

#[test]
fn lists_of_strings_need_no_brackets() {
    let freeze = |value: &str| {
        let experiment = Experiment::builtin("digits").unwrap();
        experiment.with_overrides(&[("model.freeze", value)]).map(|e| e.model.freeze)
    };
    assert_eq!(freeze("layer1, layer2.0").unwrap(), ["layer1", "layer2.0"]);
    assert_eq!(freeze("[\"layer1\"]").unwrap(), ["layer1"]);
    assert!(freeze("[]").unwrap().is_empty());
    assert!(freeze("layer1,,fc").is_err());
    assert!(freeze("[1]").is_err());
    assert!(parse("model.name = \"digits\"\nmodel.freeze = []").unwrap().model.freeze.is_empty());
}

#[test]
fn layer_files_are_recognised_and_paths_are_resolved() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("net.toml");
    std::fs::write(&file, "name = \"tiny\"\n[[layer]]\nname = \"fc\"\n").unwrap();
    let experiment = Experiment::load(&file).unwrap();
    assert_eq!(experiment.layer_file(), Some(file.as_path()));
    assert_eq!((experiment.name(), &experiment.train), ("tiny", &Train::default()));
    assert!(!experiment.has_data_set(), "there is no default data set for a layer file");
    let with_data = experiment.with_overrides(&[("data.name", "folder")]).unwrap();
    assert!(with_data.has_data_set());
    std::fs::write(folder.path().join("unnamed.toml"), "[[layer]]\nname = \"fc\"\n").unwrap();
    assert_eq!(Experiment::load(&folder.path().join("unnamed.toml")).unwrap().name(), "unnamed");
    std::fs::write(folder.path().join("odd.toml"), "name = \"../x\"\n[[layer]]\n").unwrap();
    assert_eq!(Experiment::load(&folder.path().join("odd.toml")).unwrap().name(), "odd");
    // Paths are resolved against the experiment's folder, then the working directory.
    let file_in_folder = folder.path().join("e.toml");
    let text = "model.name = \"net.toml\"\nmodel.weights = \"absent.pth\"";
    let experiment = Experiment::from_toml(text, &file_in_folder).unwrap();
    assert_eq!(experiment.layer_file(), Some(file.as_path()));
    assert_eq!(experiment.model.weights.as_deref(), Some("absent.pth"));
    // The path of the data too.
    std::fs::create_dir(folder.path().join("photos")).unwrap();
    let data = |path: &str| {
        let text = format!("model.name = \"digits\"\ndata.path = \"{path}\"");
        Experiment::from_toml(&text, &file_in_folder).unwrap().data_path()
    };
    assert_eq!(data("photos"), folder.path().join("photos"));
    assert_eq!(data("elsewhere"), Path::new("elsewhere"));
    assert_eq!(data("s3://bucket/photos"), Path::new("s3://bucket/photos"));
    let experiment = parse("model.name = \"nets/net.toml\"").unwrap();
    assert_eq!((experiment.model.name.as_str(), experiment.name()), ("nets/net.toml", "net"));
    assert!(!experiment.has_data_set());
    assert!(parse("model.name = \"net.toml\"\ndata.name = \"mnist\"").unwrap().has_data_set());
    assert_eq!(parse("model.name = \"digits\"").unwrap().layer_file(), None);
    assert_eq!(
        problem("model.name = \"my net.toml\""),
        "configuration: `my net` is not a valid folder name for runs | set experiment.name, made of letters, \
         digits, `.`, `_` and `-`"
    );
}

/// A recipe's learning rate is scaled to another batch size; a given one is not.
#[test]
fn a_recipes_learning_rate_scales_with_the_batch() {
    let factor = |text: &str| {
        let experiment = parse(text).unwrap();
        let again = Experiment::from_toml(&experiment.to_toml(), Path::new("run.toml")).unwrap();
        assert_eq!(again.learning_rate_factor(), experiment.learning_rate_factor(), "as recorded");
        experiment.learning_rate_factor()
    };
    let resnet = "model.name = \"resnet18\"\n";
    assert_eq!(factor(resnet), None);
    let batch = format!("{resnet}train.batch_size = 64\n");
    assert_eq!(factor(&batch), Some(0.25));
    assert_eq!(factor(&format!("{batch}optimiser.name = \"adamw\"")), Some(0.5));
    assert_eq!(factor(&format!("{batch}optimiser.learning_rate = 0.1")), None);
    assert_eq!(factor(&format!("{batch}schedule.scale_with_batch = false")), None);
    let own = "optimiser.learning_rate_batch = 32\noptimiser.learning_rate = 0.1";
    assert_eq!(factor(&format!("{batch}{own}")), Some(2.0));
    // Overrides have the same effect in any order.
    let by =
        |keys: &[(&str, &str)]| parse(&batch).unwrap().with_overrides(keys).unwrap().learning_rate_factor();
    let (rate, own) = (("optimiser.learning_rate", "0.1"), ("optimiser.learning_rate_batch", "32"));
    assert_eq!(
        (by(&[]), by(&[rate]), by(&[rate, own]), by(&[own, rate])),
        (Some(0.25), None, Some(2.0), Some(2.0))
    );
    assert_eq!(by(&[("optimiser.learning_rate_batch", "")]), None);
    // Schedules are scaled too.
    let schedule = Schedule::from_experiment(&parse(&batch).unwrap());
    assert_eq!(schedule.learning_rate(0, 10, 100), 0.025);
}

fn experiments() -> impl Strategy<Value = Experiment> {
    let pick = |words: &'static [&'static str]| prop::sample::select(words);
    (
        (
            pick(&["constant", "step", "cosine", "poly", "one_cycle"]),
            pick(&["f32", "bf16", "f16"]),
            pick(&["auto", "reference"]),
        ),
        (1..1000u64, 1..100_000usize, 0..=i64::MAX as u64, 1e-9..1e3f64, 0.0..0.999f64),
        (
            any::<Option<bool>>(),
            prop::option::of("[a-zA-Z0-9 \"'\\\\\n#ü/]{1,20}"),
            prop::option::of(prop::collection::vec(-5.0..5.0f64, 1..4)),
        ),
    )
        .prop_map(
            |((schedule, precision, device), (epochs, batch, seed, rate, momentum), (drop, path, mean))| {
                let mut experiment = Experiment::builtin("digits").unwrap();
                experiment = experiment
                    .with_overrides(&[
                        ("schedule.name", schedule),
                        ("train.precision", precision),
                        ("train.device", device),
                    ])
                    .unwrap();
                experiment.train.epochs = epochs;
                experiment.train.batch_size = batch;
                experiment.train.seed = seed;
                experiment.optimiser.learning_rate = rate;
                experiment.optimiser.momentum = momentum;
                experiment.data.drop_last = drop.unwrap_or_default();
                experiment.data.mean = mean;
                experiment.model.freeze = path.iter().cloned().chain(["fc".to_owned()]).collect();
                experiment.model.weights.clone_from(&path);
                experiment.data.path = path;
                experiment
            },
        )
}

proptest! {
    #[test]
    fn written_experiments_read_back(experiment in experiments()) {
        let text = experiment.to_toml();
        prop_assert_eq!(parse(&text).unwrap(), experiment.completed(), "{}", text);
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,80}", key in "[a-z_.]{0,30}", value in "\\PC{0,20}") {
        let _ = parse(&text);
        let _ = parse(&format!("{key} = {value}"));
        let _ = Experiment::default().with_overrides(&[(key, value)]);
    }
}
