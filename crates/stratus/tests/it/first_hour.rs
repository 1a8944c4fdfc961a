//! What a new user does and mistakes, as it was tried: each answer must get on.

use crate::common::photographs::{self, SETTINGS, place};
use crate::common::{Place, Ran, streets, tiny};
use std::time::{Duration, Instant};

fn train(place: &Place, run: &str, more: &[&str]) -> Ran {
    photographs::train(place, run, more, None)
}

fn refused(place: &Place, arguments: &[&str], code: i32) -> String {
    place.run(arguments).expect(code).err
}

#[test]
fn flags_of_other_programs_lead_to_the_key() {
    let place = place();
    for (flag, hint) in [
        ("--num-workers", "--set data.workers=…"),
        ("--optimizer", "--set optimiser.name=…"),
        ("--wd", "--set optimiser.weight_decay=…"),
        ("--gpu", "--device gpu"),
        ("--resume", "stratus train RUN"),
    ] {
        let err = refused(&place, &["train", "digits", flag, "4"], 2);
        assert!(err.starts_with(&format!("error: `{flag}` is no flag of this command")), "{err}");
        assert!(err.contains(hint) && !err.contains("-- --"), "{err}");
    }
    // What nobody knows is clap's.
    let err = refused(&place, &["train", "digits", "--frobnicate"], 2);
    assert!(err.contains("unexpected argument '--frobnicate'"), "{err}");
}

#[test]
fn a_run_that_is_not_there_is_told_with_those_that_are() {
    let place = place();
    train(&place, "runs/digits/1", &[]).expect(0);
    for command in ["eval", "train"] {
        let err = refused(&place, &[command, "runs/digits/9"], 2);
        assert_eq!(
            err,
            "error: there is no run or experiment at runs/digits/9\nhint: there are runs/digits/1\n"
        );
        let err = refused(&place, &[command, "runs/digits"], 2);
        assert!(err.contains("hint: name one of the runs in it: runs/digits/1"), "{err}");
    }
    let err = refused(&place, &["train", "photographs"], 2);
    assert!(err.contains("stratus train NETWORK --data photographs --set data.name=folder"), "{err}");
    let err = refused(&place, &["infer", "net.onnx", "photographs"], 2);
    assert!(err.contains("net.onnx is an ONNX model\nhint: make a layer file"), "{err}");
    let err = refused(&place, &["infer", "runs/digits/1", "nothere.jpg"], 2);
    assert_eq!(err, "error: nothere.jpg: there is no such file or folder\n");
}

#[test]
fn class_folders_are_recognised_where_another_data_set_was_meant() {
    let place = place();
    for network in ["digits", "resnet18_cifar"] {
        for more in [&[][..], &["--set", "data.split_seed=0"]] {
            let begin = ["train", network, "--data", "photographs"];
            let err = place.run(&[&begin, more].concat()).err;
            assert!(
                err.contains("train on them with --set data.name=folder --set data.split_seed=0"),
                "{err}"
            );
        }
    }
}

#[test]
fn runs_of_one_recipe_are_told_apart_by_the_rate_they_trained_with() {
    let place = place();
    train(&place, "a", &[]).expect(0);
    // The recipe's rate, but not scaled.
    train(&place, "b", &["schedule.scale_with_batch=false"]).expect(0);
    let ran = place.run(&["report", "a", "b", "--format", "md", "--out", "-"]).expect(0);
    assert!(!ran.out.contains("Repetitions"), "{}", ran.out);
    assert!(ran.out.contains("These two differ in optimiser.learning_rate ("), "{}", ran.out);
    assert!(ran.out.contains(" by top-1: ") && ran.out.contains(" of 6 validation images"), "{}", ran.out);
    let listed = place.run(&["runs", "."]).expect(0).out;
    let rate = |run: &str| {
        let line = listed.lines().find(|line| line.starts_with(run)).unwrap();
        line.split_whitespace().find(|word| word.starts_with("optimiser.learning_rate=")).map(str::to_owned)
    };
    assert!(rate("./a").is_some() && rate("./a") != rate("./b"), "{listed}");
}

#[test]
fn reports_of_two_kinds_do_not_replace_each_other() {
    let place = place();
    train(&place, "a", &[]).expect(0);
    train(&place, "b", &["train.seed=2"]).expect(0);
    for (arguments, file) in
        [(&["report", "a", "b"][..], "report.html"), (&["report", "--diff", "a", "b"], "diff.html")]
    {
        let err = place.run(arguments).expect(0).err;
        assert!(err.contains(&format!("{file}: html of 2 runs")) && place.path(file).exists(), "{err}");
    }
}

#[test]
fn commands_that_are_suggested_can_be_pasted() {
    let place = place();
    let settings = SETTINGS.iter().flat_map(|setting| ["--set", setting]);
    let begin = ["plan", "digits", "--data", "photographs"];
    let out = place.run(&begin.into_iter().chain(settings).collect::<Vec<_>>()).expect(0).out;
    let next = out.split('`').nth(1).unwrap();
    assert!(
        next.starts_with("stratus forecast digits --set data.path=photographs --set data.name=folder"),
        "{out}"
    );
    assert!(next.contains(" --set 'data.shape=[1, 12, 12]' ") && next.ends_with(" --on here"), "{out}");
}

#[test]
fn an_interrupt_ends_the_choice_of_kernels() {
    let place = Place::bare();
    let mut command = place.command(&["train", "resnet50", "--out", "run", "--set", "data.name=synthetic"]);
    let err = std::fs::File::create(place.path("err")).unwrap();
    let mut child = command.stdout(std::process::Stdio::null()).stderr(err).spawn().unwrap();
    // The header comes before kernels are chosen, which takes many seconds.
    let read = || std::fs::read_to_string(place.path("err")).unwrap();
    let begun = Instant::now();
    while !read().contains("optimiser ") {
        assert!(
            begun.elapsed() < Duration::from_secs(300) && child.try_wait().unwrap().is_none(),
            "{}",
            read()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let interrupted = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(interrupted.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(75), "{}", read());
    let told = read();
    assert!(told.contains("interrupted before the first iteration\nhint: nothing was trained yet"), "{told}");
    assert!(!told.contains("error") && !place.path("run").exists(), "{told}");
}

#[test]
fn photographs_much_smaller_than_the_network_takes_are_told_of() {
    let place = place();
    let net =
        tiny::NET.replacen("[1, 12, 12]", "[1, 48, 48]", 1).replace("out_features = 10", "out_features = 3");
    std::fs::write(place.path("net.toml"), net).unwrap();
    let train = |more: &[&str]| {
        let begin = ["train", "net.toml", "--data", "photographs", "--epochs", "1", "--batch", "9"];
        let settings = ["data.name=folder", "data.split_seed=0", "train.device=reference"];
        let settings = settings.iter().chain(more).flat_map(|setting| ["--set", setting]);
        place.run(&begin.into_iter().chain(settings).collect::<Vec<_>>()).err
    };
    let told = "warning: the images are stored as 12×12 and enlarged to 48×48, 16 times the work";
    let err = train(&[]);
    assert!(err.contains(told), "{err}");
    let err = train(&["data.shape=[1, 48, 48]"]);
    assert!(err.contains("images of 1×48×48") && !err.contains("enlarged"), "{err}");
}

#[test]
fn a_run_that_cannot_go_on_is_not_changed() {
    let place = place();
    train(&place, "run", &["schedule.name=constant"]).expect(0);
    let experiment = place.path("run/experiment.toml");
    let before = std::fs::read_to_string(&experiment).unwrap();
    std::fs::rename(place.path("photographs"), place.path("elsewhere")).unwrap();
    let err = place.run(&["train", "run", "--extend-to", "4"]).expect(1).err;
    assert!(err.contains("photographs"), "{err}");
    assert_eq!(std::fs::read_to_string(&experiment).unwrap(), before);
    std::fs::rename(place.path("elsewhere"), place.path("photographs")).unwrap();
    place.run(&["train", "run", "--extend-to", "4"]).expect(0);
}

#[test]
fn the_largest_batch_does_not_depend_on_the_one_that_is_set() {
    let place = place();
    let settings =
        ["data.name=folder", "data.split_seed=0", "train.device=reference", "data.shape=[1,12,12]"];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    // The recipe's batch is larger than the data.
    let begin = ["plan", "digits", "--data", "photographs", "--largest-batch", "--memory-limit", "64MiB"];
    let out = place.run(&begin.into_iter().chain(settings.clone()).collect::<Vec<_>>()).expect(0).out;
    assert!(out.starts_with("largest batch  18 images, the whole data set"), "{out}");
    let parts = ["--set", "train.micro_batches=2"];
    let out =
        place.run(&begin.into_iter().chain(settings.clone()).chain(parts).collect::<Vec<_>>()).expect(0).out;
    assert!(out.starts_with("largest batch  18 images, the whole data set"), "{out}");
}

#[test]
fn colours_that_become_greys_and_classes_that_vanish_are_told_of() {
    let place = place();
    for (class, colour) in [("a", [200, 10, 10]), ("b", [10, 10, 200])] {
        for image in 0..6 {
            let path = place.path(&format!("colours/{class}/{image}.png"));
            streets::write_sized(&path, png::ColorType::Rgb, &colour.repeat(144), [12, 12]);
        }
    }
    let train = |more: &[&str]| {
        let settings = ["data.name=folder", "data.split_seed=0", "train.device=reference", "model.width=4"];
        let settings = settings.iter().chain(more).flat_map(|setting| ["--set", setting]);
        let begin = ["train", "digits", "--data", "colours", "--epochs", "1", "--batch", "4"];
        place.run(&begin.into_iter().chain(settings).collect::<Vec<_>>())
    };
    let err = train(&[]).expect(0).err;
    assert!(err.contains("warning: the images have colours, and the network takes greys of 28×28"), "{err}");
    for image in 0..6 {
        std::fs::write(place.path(&format!("colours/b/{image}.png")), "no image").unwrap();
    }
    let err = train(&["data.on_bad_sample=skip"]).expect(2).err;
    assert!(err.starts_with("error: every image of class `b` is damaged ("), "{err}");
}
