//! Typical mistakes of new users: each message must say how to proceed.

use crate::common::photographs::{self, SETTINGS, test_dir};
use crate::common::{CommandOutput, TestDir, streets, tiny};
use std::fs;
use std::time::{Duration, Instant};

fn train(dir: &TestDir, run: &str, more: &[&str]) -> CommandOutput {
    photographs::train(dir, run, more, None)
}

fn error_of(dir: &TestDir, arguments: &[&str], code: i32) -> String {
    dir.run(arguments).expect(code).err
}

#[test]
fn unknown_flag_suggests_the_key() {
    let dir = test_dir();
    for (flag, hint) in [
        ("--num-workers", "--set data.workers=…"),
        ("--optimizer", "--set optimiser.name=…"),
        ("--wd", "--set optimiser.weight_decay=…"),
        ("--gpu", "--device gpu"),
        ("--resume", "stratus train RUN"),
    ] {
        let err = error_of(&dir, &["train", "digits", flag, "4"], 2);
        assert!(err.starts_with(&format!("error: unknown flag `{flag}`")), "{err}");
        assert!(err.contains(hint) && !err.contains("-- --"), "{err}");
    }
    // Unknown flags are reported by clap.
    let err = error_of(&dir, &["train", "digits", "--frobnicate"], 2);
    assert!(err.contains("unexpected argument '--frobnicate'"), "{err}");
}

#[test]
fn missing_run_error_lists_existing_runs() {
    let dir = test_dir();
    train(&dir, "runs/digits/1", &[]).expect(0);
    for command in ["eval", "train"] {
        let err = error_of(&dir, &[command, "runs/digits/9"], 2);
        assert_eq!(
            err,
            "error: run or experiment not found: runs/digits/9\nhint: runs there: runs/digits/1\n"
        );
        let err = error_of(&dir, &[command, "runs/digits"], 2);
        assert!(err.contains("hint: name one of the runs in it: runs/digits/1"), "{err}");
    }
    let err = error_of(&dir, &["train", "photographs"], 2);
    assert!(err.contains("stratus train NETWORK --data photographs --set data.name=folder"), "{err}");
    let err = error_of(&dir, &["infer", "net.onnx", "photographs"], 2);
    assert!(err.contains("net.onnx is an ONNX model\nhint: convert it to a layer file"), "{err}");
    let err = error_of(&dir, &["infer", "runs/digits/1", "nothere.jpg"], 2);
    assert_eq!(err, "error: nothere.jpg: file or folder not found\n");
}

#[test]
fn class_folders_suggest_the_folder_data_set() {
    let dir = test_dir();
    for network in ["digits", "resnet18_cifar"] {
        for more in [&[][..], &["--set", "data.split_seed=0"]] {
            let begin = ["train", network, "--data", "photographs"];
            let err = dir.run(&[&begin, more].concat()).err;
            assert!(
                err.contains("contains class folders: use --set data.name=folder --set data.split_seed=0"),
                "{err}"
            );
        }
    }
}

#[test]
fn run_list_tells_runs_apart_by_learning_rate() {
    let dir = test_dir();
    train(&dir, "a", &[]).expect(0);
    // The learning rate of the recipe, but not scaled.
    train(&dir, "b", &["schedule.scale_with_batch=false"]).expect(0);
    let ran = dir.run(&["report", "a", "b", "--format", "md", "--out", "-"]).expect(0);
    assert!(!ran.out.contains("Repetitions"), "{}", ran.out);
    assert!(ran.out.contains("They differ in optimiser.learning_rate ("), "{}", ran.out);
    assert!(ran.out.contains("Best top-1: ") && ran.out.contains(" for 6 validation images"), "{}", ran.out);
    let listed = dir.run(&["runs", "."]).expect(0).out;
    let rate = |run: &str| {
        let line = listed.lines().find(|line| line.starts_with(run)).unwrap();
        line.split_whitespace().find(|word| word.starts_with("optimiser.learning_rate=")).map(str::to_owned)
    };
    assert!(rate("./a").is_some() && rate("./a") != rate("./b"), "{listed}");
}

#[test]
fn reports_of_two_formats_do_not_overwrite_each_other() {
    let dir = test_dir();
    train(&dir, "a", &[]).expect(0);
    train(&dir, "b", &["train.seed=2"]).expect(0);
    for (arguments, file) in
        [(&["report", "a", "b"][..], "report.html"), (&["report", "--diff", "a", "b"], "diff.html")]
    {
        let err = dir.run(arguments).expect(0).err;
        assert!(err.contains(&format!("{file}: page of 2 runs")) && dir.path(file).exists(), "{err}");
    }
}

#[test]
fn suggested_commands_run_as_printed() {
    let dir = test_dir();
    let settings = SETTINGS.iter().flat_map(|setting| ["--set", setting]);
    let begin = ["plan", "digits", "--data", "photographs"];
    let out = dir.run(&begin.into_iter().chain(settings).collect::<Vec<_>>()).expect(0).out;
    let next = out.split('`').nth(1).unwrap();
    assert!(
        next.starts_with("stratus forecast digits --set data.path=photographs --set data.name=folder"),
        "{out}"
    );
    assert!(next.contains(" --set 'data.shape=[1, 12, 12]' ") && next.ends_with(" --on here"), "{out}");
}

#[test]
fn interrupt_ends_kernel_selection() {
    let dir = TestDir::without_kernel_cache();
    let mut command = dir.command(&["train", "resnet50", "--out", "run", "--set", "data.name=synthetic"]);
    let err = fs::File::create(dir.path("err")).unwrap();
    let mut child = command.stdout(std::process::Stdio::null()).stderr(err).spawn().unwrap();
    // The header is printed before kernels are selected, which takes many seconds.
    let read = || fs::read_to_string(dir.path("err")).unwrap();
    let start = Instant::now();
    while !read().contains("optimiser ") {
        assert!(
            start.elapsed() < Duration::from_secs(300) && child.try_wait().unwrap().is_none(),
            "{}",
            read()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let interrupted = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(interrupted.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(75), "{}", read());
    let message = read();
    assert!(
        message.contains("interrupted before the first iteration\nhint: no iteration finished"),
        "{message}"
    );
    assert!(!message.contains("error") && !dir.path("run").exists(), "{message}");
}

#[test]
fn warns_of_images_much_smaller_than_the_network_input() {
    let dir = test_dir();
    let net =
        tiny::NET.replacen("[1, 12, 12]", "[1, 48, 48]", 1).replace("out_features = 10", "out_features = 3");
    fs::write(dir.path("net.toml"), net).unwrap();
    let train = |more: &[&str]| {
        let begin = ["train", "net.toml", "--data", "photographs", "--epochs", "1", "--batch", "9"];
        let settings = ["data.name=folder", "data.split_seed=0", "train.device=reference"];
        let settings = settings.iter().chain(more).flat_map(|setting| ["--set", setting]);
        dir.run(&begin.into_iter().chain(settings).collect::<Vec<_>>()).err
    };
    let warning = "warning: images are upscaled from 12×12 to 48×48 (16× the work)";
    let err = train(&[]);
    assert!(err.contains(warning), "{err}");
    let err = train(&["data.shape=[1, 48, 48]"]);
    assert!(err.contains("images of 1×48×48") && !err.contains("upscaled"), "{err}");
}

#[test]
fn failed_resume_leaves_the_run_unchanged() {
    let dir = test_dir();
    train(&dir, "run", &["schedule.name=constant"]).expect(0);
    let experiment = dir.path("run/experiment.toml");
    let before = fs::read_to_string(&experiment).unwrap();
    fs::rename(dir.path("photographs"), dir.path("elsewhere")).unwrap();
    let err = dir.run(&["train", "run", "--extend-to", "4"]).expect(1).err;
    assert!(err.contains("photographs"), "{err}");
    assert_eq!(fs::read_to_string(&experiment).unwrap(), before);
    fs::rename(dir.path("elsewhere"), dir.path("photographs")).unwrap();
    dir.run(&["train", "run", "--extend-to", "4"]).expect(0);
}

#[test]
fn largest_batch_is_independent_of_the_configured_batch() {
    let dir = test_dir();
    let settings =
        ["data.name=folder", "data.split_seed=0", "train.device=reference", "data.shape=[1,12,12]"];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    // The batch of the recipe is larger than the data set.
    let begin = ["plan", "digits", "--data", "photographs", "--largest-batch", "--memory-limit", "64MiB"];
    let out = dir.run(&begin.into_iter().chain(settings.clone()).collect::<Vec<_>>()).expect(0).out;
    assert!(out.starts_with("largest batch  18 images, the whole data set"), "{out}");
    let parts = ["--set", "train.micro_batches=2"];
    let out =
        dir.run(&begin.into_iter().chain(settings.clone()).chain(parts).collect::<Vec<_>>()).expect(0).out;
    assert!(out.starts_with("largest batch  18 images, the whole data set"), "{out}");
}

#[test]
fn warns_of_lost_colours_and_classes() {
    let dir = test_dir();
    for (class, colour) in [("a", [200, 10, 10]), ("b", [10, 10, 200])] {
        for image in 0..6 {
            let path = dir.path(&format!("colours/{class}/{image}.png"));
            streets::write_sized(&path, png::ColorType::Rgb, &colour.repeat(144), [12, 12]);
        }
    }
    let train = |more: &[&str]| {
        let settings = ["data.name=folder", "data.split_seed=0", "train.device=reference", "model.width=4"];
        let settings = settings.iter().chain(more).flat_map(|setting| ["--set", setting]);
        let begin = ["train", "digits", "--data", "colours", "--epochs", "1", "--batch", "4"];
        dir.run(&begin.into_iter().chain(settings).collect::<Vec<_>>())
    };
    let err = train(&[]).expect(0).err;
    assert!(err.contains("warning: colour images are converted to grey 28×28"), "{err}");
    for image in 0..6 {
        fs::write(dir.path(&format!("colours/b/{image}.png")), "no image").unwrap();
    }
    let err = train(&["data.on_bad_sample=skip"]).expect(2).err;
    assert!(err.starts_with("error: every image of class `b` is damaged ("), "{err}");
}

#[test]
fn image_in_place_of_an_experiment_is_recognised_by_its_content() {
    let dir = test_dir();
    let image = dir.path("photographs/row/0.png");
    for (folder, hint) in [
        ("own/cat", "stratus train NETWORK --data own --set data.name=folder --set data.split_seed=0`"),
        ("own/train/cat", "stratus train NETWORK --data own --set data.name=folder`"),
        ("elsewhere", "stratus infer RUN elsewhere/1.toml`"),
    ] {
        let _ = fs::remove_dir_all(dir.path("own"));
        fs::create_dir_all(dir.path(folder)).unwrap();
        fs::copy(&image, dir.path(folder).join("1.png")).unwrap();
        fs::copy(&image, dir.path(folder).join("1.toml")).unwrap();
        let file = format!("{folder}/1.toml");
        for command in ["train", "eval", "plan", "forecast"] {
            let err = error_of(&dir, &[command, &file], 2);
            let expected = format!("error: {file} is an image, not an experiment or a run\nhint: ");
            assert!(err.starts_with(&expected) && err.contains(hint), "{command}: {err}");
        }
    }
    train(&dir, "runs/digits/1", &[]).expect(0);
    let err = error_of(&dir, &["infer", "elsewhere/1.png", "runs/digits/1"], 2);
    assert_eq!(
        err,
        "error: elsewhere/1.png is an image, not a run\n\
         hint: the run comes first: `stratus infer runs/digits/1 elsewhere/1.png`\n"
    );
}

#[test]
fn commands_of_other_commands_are_named() {
    let dir = test_dir();
    for (given, commands) in [
        ("export", &["stratus model export"][..]),
        ("check", &["stratus data check"]),
        ("show", &["stratus data show", "stratus model show"]),
    ] {
        let err = error_of(&dir, &[given, "runs/digits/1"], 2);
        assert!(err.starts_with(&format!("error: unknown command `{given}`\nhint: did you mean `")), "{err}");
        assert!(commands.iter().all(|command| err.contains(&format!("`{command}`"))), "{err}");
    }
    assert!(error_of(&dir, &["trian"], 2).contains("'train'"));
}

#[test]
fn misspelt_paths_have_the_nearest_one_as_hint() {
    let dir = test_dir();
    for (arguments, hint) in [
        (&["data", "check", "photograps"][..], "to read a folder of images: did you mean photographs?"),
        (&["infer", "digits", "photograps"], "did you mean photographs?"),
        (&["eval", "photographs/colum"], "did you mean photographs/column?"),
    ] {
        let err = error_of(&dir, arguments, 2);
        assert!(err.ends_with(&format!("\nhint: {hint}\n")), "{err}");
    }
}

#[test]
fn devices_are_called_as_typed_and_have_one_hint() {
    let dir = test_dir();
    for device in ["gpu", "cuda"] {
        // A machine with a GPU could use it.
        let ran =
            dir.command(&["train", "digits", "--device", device]).env("CUDA_VISIBLE_DEVICES", "").output();
        let ran = CommandOutput::new(ran.unwrap()).expect(2);
        assert!(ran.err.starts_with(&format!("error: device `{device}`: ")), "{}", ran.err);
        assert_eq!(ran.err.matches("hint: ").count(), 1, "{}", ran.err);
    }
    let err = error_of(&dir, &["forecast", "resnet18", "--on", "xeon-gold-6230", "--devices", "1,8"], 2);
    let expected = "error: --devices needs --between, the bandwidth between the machines\n";
    assert_eq!((err.matches(expected).count(), err.matches("hint: ").count()), (1, 1), "{err}");
    assert!(err.contains("`--between 10Gbit/s`"), "{err}");
}

#[test]
fn runs_of_own_images_are_listed_with_the_name_of_their_folder() {
    let dir = test_dir();
    let trained = train(&dir, "runs/digits/1", &[]).expect(0);
    assert!(trained.err.contains("data       photographs: "), "{}", trained.err);
    assert!(trained.out.contains("digits on photographs: completed"), "{}", trained.out);
    let listed = dir.run(&["runs"]).expect(0).out;
    let cells: Vec<&str> = listed.lines().nth(1).unwrap().split_whitespace().collect();
    assert!(cells.contains(&"photographs") && !cells.contains(&"folder"), "{listed}");
}

#[test]
fn launched_training_prints_no_command_with_paths_of_its_machine() {
    let dir = test_dir();
    let here = train(&dir, "1", &[]).expect(0);
    assert!(here.out.contains("next: `stratus report 1`"), "{}", here.out);
    let settings: Vec<&str> = SETTINGS.iter().flat_map(|setting| ["--set", setting]).collect();
    let mut launched = test_dir();
    launched.variables.push(("STRATUS_LAUNCH", "lab-1".into()));
    for more in [&["--out", "2"][..], &["--out", "3", "--until-epoch", "1"]] {
        let arguments = [&["train", "digits", "--data", "photographs"], more, &settings].concat();
        let ran = launched.run(&arguments).expect(0);
        assert!(!ran.out.contains("next: ") && !ran.err.contains("resume with"), "{}{}", ran.out, ran.err);
    }
}

#[test]
fn warns_if_nothing_was_learned() {
    let dir = TestDir::new();
    let untrained = dir.train("untrained", 1, &["--lr", "1e-9"]).expect(0);
    let warning = "warning: the network has learned nothing: its best top-1 accuracy, ";
    assert!(untrained.err.contains(warning), "{}", untrained.err);
    assert!(
        untrained.err.contains(" always answering `1`, the class of 12.28 % of the"),
        "{}",
        untrained.err
    );
    let log = fs::read_to_string(dir.path("untrained/log.txt")).unwrap();
    assert!(log.contains("the network has learned nothing"), "{log}");
    let trained = dir.train("trained", 1, &[]).expect(0);
    assert!(!trained.err.contains("learned nothing"), "{}", trained.err);
}
