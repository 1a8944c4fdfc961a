//! `stratus forecast`: its output, its errors, and that it writes no files.

use crate::common::{CommandOutput, TestDir, digits};

const MACHINES: &str = "h100-80gb-sxm,v100-16gb,quadro-p600,g4dn.xlarge";

fn run(arguments: &[&str], code: i32) -> CommandOutput {
    TestDir::without_kernel_cache().run(&[&["forecast"], arguments].concat()).expect(code)
}

/// Runs the command in a folder with a file.
fn run_with(file: &str, content: &str, arguments: &[&str], code: i32) -> CommandOutput {
    let dir = TestDir::without_kernel_cache();
    std::fs::write(dir.path(file), content).unwrap();
    dir.run(&[&["forecast"], arguments].concat()).expect(code)
}

#[test]
fn forecasts_remote_machines() {
    let arguments = ["resnet18", "--on", MACHINES, "--batch", "32,256", "--images", "1281167"];
    let ran = run(&arguments, 0);
    insta::assert_snapshot!("forecast", format!("{}{}", ran.err, ran.out));
}

#[test]
fn energy_is_an_upper_estimate_with_its_emissions() {
    let length =
        ["resnet18", "--on", "g4dn.xlarge,g5.xlarge", "--images", "1000000", "--objective", "fastest"];
    let json = run(&[&length[..], &["--json", "--grid", "400g/kWh"]].concat(), 0);
    let report: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let [t4, a10g] = [0, 1].map(|row| &report["machines"][row]);
    let energy = t4["energy_kwh"].as_f64().unwrap();
    assert!((energy / (0.07 * t4["total_s"].as_f64().unwrap() / 3600.0) - 1.0).abs() < 1e-9, "{energy}");
    assert!((t4["co2_kg"].as_f64().unwrap() / (0.4 * energy) - 1.0).abs() < 1e-9);
    // The catalogue has no power of this GPU.
    assert!(a10g.as_object().unwrap().contains_key("energy_kwh") && a10g["energy_kwh"].is_null());
    assert!(a10g["co2_kg"].is_null());
    let text = run(&["resnet18", "--on", "t4-16gb", "--images", "1000000", "--grid", "0.4kg/kWh"], 0).out;
    assert!(text.contains("\nenergy of its GPU: at most ") && text.contains(" kg of CO2\n"), "{text}");
    let rejected = run(&["resnet18", "--on", "t4-16gb", "--grid", "400"], 2).err;
    assert!(rejected.contains("400g/kWh"), "{rejected}");
}

#[test]
fn json_has_the_documented_fields() {
    let ran = run(&["resnet18", "--on", "g4dn.xlarge", "--json", "--images", "1000", "--layers"], 0);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let row = &report["machines"][0];
    let names = [
        "name",
        "source",
        "batch",
        "step_s",
        "low_s",
        "high_s",
        "images_per_second",
        "epoch_s",
        "total_s",
        "device_bytes",
        "host_bytes",
        "disk_bytes",
        "fits",
        "largest_batch",
        "limit",
        "price",
        "currency",
    ];
    for name in names {
        assert!(!row[name].is_null(), "{name}: {row}");
    }
    let number = |name: &str| row[name].as_f64().unwrap();
    assert!(number("low_s") < number("step_s") && number("step_s") < number("high_s"));
    assert!((number("images_per_second") * number("step_s") / number("batch") - 1.0).abs() < 1e-9);
    assert_eq!(row["name"], "g4dn.xlarge");
    // A T4 lacks bf16; its f32 steps were measured.
    assert_eq!((row["precision"].as_str(), row["source"].as_str()), (Some("f32"), Some("profile")));
    assert_eq!(report["recommendation"]["name"], "g4dn.xlarge");
    let layers = report["layers"].as_array().unwrap();
    let seconds: f64 = layers.iter().map(|layer| layer["seconds"].as_f64().unwrap()).sum();
    assert!((0.7..1.3).contains(&(seconds / number("step_s"))), "{seconds}");
}

#[test]
fn unknown_values_are_null() {
    let ran = run(&["resnet18", "--on", "v100-16gb", "--json"], 0);
    assert!(ran.err.contains("data set `folder` is not at data/folder"), "{}", ran.err);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let row = &report["machines"][0];
    for name in ["epoch_s", "total_s", "price", "currency"] {
        assert!(row[name].is_null(), "{name}: {row}");
    }
}

#[test]
fn larger_batch_needs_more_memory_and_less_time_per_image() {
    let ran = run(&["resnet18", "--on", "rtx-3090", "--batch", "16,64", "--json"], 0);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let number = |row: usize, name: &str| report["machines"][row][name].as_f64().unwrap();
    assert!(number(1, "device_bytes") > number(0, "device_bytes"));
    assert!(number(1, "images_per_second") > number(0, "images_per_second"));
    // Both batch sizes give nearly the same largest batch.
    assert!((0.9..1.1).contains(&(number(1, "largest_batch") / number(0, "largest_batch"))));
}

/// The local machine needs neither data nor a row of the catalogue.
#[test]
fn forecast_times_the_local_machine() {
    let dir = TestDir::without_kernel_cache();
    let settings = ["--set", "data.name=folder", "--set", "train.precision=f32"];
    let asked =
        ["forecast", "digits", "--on", "here", "--batch", "4,8", "--images", "1000", "--json", "--layers"];
    let ran = dir.run(&[&asked[..], &settings[..]].concat()).expect(0);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    for (at, batch) in [(0, 4), (1, 8)] {
        let (row, probe) = (&report["machines"][at], &report["probes"][at]);
        let number = |of: &serde_json::Value, name: &str| of[name].as_f64().unwrap();
        assert_eq!((row["name"].as_str(), row["source"].as_str()), (Some("here"), Some("measured")));
        assert_eq!((row["batch"].as_u64(), probe["batch"].as_u64()), (Some(batch), Some(batch)));
        assert_eq!(row["precision"], "f32");
        let kernels = probe["kernels"].as_array().unwrap();
        let seconds: f64 = kernels.iter().map(|kernel| number(kernel, "seconds")).sum();
        assert!(kernels.iter().all(|kernel| number(kernel, "seconds") > 0.0));
        assert!((seconds / number(row, "step_s") - 1.0).abs() < 1e-9);
        assert!(
            number(row, "low_s") < number(row, "step_s") && number(row, "step_s") < number(row, "high_s")
        );
        // The bytes that a session would allocate.
        assert_eq!(row["device_bytes"], probe["arena_bytes"]);
        assert!(number(row, "host_bytes") > number(row, "device_bytes"));
        // Decoding shares the cores with the step.
        let images_s = number(row, "images_per_second");
        assert!(images_s < batch as f64 / number(row, "step_s"));
        assert!((number(row, "epoch_s") * images_s / 1000.0 - 1.0).abs() < 1e-9);
    }
    let layers = report["layers"].as_array().unwrap();
    assert!(layers.iter().any(|layer| layer["layer"] == "fc"), "{layers:?}");
    assert!(!dir.path("runs").exists());
    let text = dir.run(&[&asked[..6], &settings[..]].concat()).expect(0);
    assert!(text.out.contains("distinct kernels"), "{}", text.out);
}

#[test]
fn objective_selects_machine() {
    let chosen = |wish: &str| {
        let all = ["resnet18", "--images", "100000", "--json", "--objective", wish];
        let report: serde_json::Value = serde_json::from_str(&run(&all, 0).out).unwrap();
        report["recommendation"]["name"].as_str().map(str::to_owned)
    };
    let (fastest, cheapest) = (chosen("fastest"), chosen("cheapest"));
    assert!(fastest.is_some() && cheapest.is_some() && fastest != cheapest);
    assert_eq!(chosen("deadline=1s"), None);
    assert_eq!(chosen("budget=1000000"), fastest);
    assert_eq!(chosen("deadline=10000d"), cheapest);
}

#[test]
fn user_defined_machine_is_forecast() {
    let row = "[[instance]]\nname = \"lab\"\ncloud = \"ours\"\ngpu = \"rtx-3090\"\ngpus = 1\nvcpus = 8\n\
               ram_gib = 64\nspot_per_hour = 0.1\ncurrency = \"EUR\"\nsource = \"us\"\ndate = \"2026-11\"\n";
    let arguments = ["resnet18", "--machines", "own.toml", "--on", "lab", "--images", "1000", "--json"];
    let report: serde_json::Value =
        serde_json::from_str(&run_with("own.toml", row, &arguments, 0).out).unwrap();
    assert_eq!(report["machines"][0]["currency"], "EUR");
}

/// The bill has the given and the known times and costs.
#[test]
fn bill_lists_every_cost() {
    let asked = [
        "resnet18",
        "--on",
        "g5.xlarge",
        "--batch",
        "64",
        "--images",
        "1281167",
        "--validation-images",
        "50000",
        "--epochs",
        "10",
        "--link",
        "1Gbit/s",
        "--data-size",
        "150GB",
        "--preemptions",
        "0.05/h",
    ];
    insta::assert_snapshot!("forecast_bill", run(&asked, 0).out);
    let report: serde_json::Value =
        serde_json::from_str(&run(&[&asked[..], &["--json"]].concat(), 0).out).unwrap();
    let row = &report["machines"][0];
    let part = |name: &str| {
        let parts = row["bill"].as_array().unwrap();
        parts.iter().find(|part| part["part"] == name).unwrap()["hours"].as_f64().unwrap()
    };
    // 150 GB at 125 MB/s.
    assert!((part("data_transfer") - 1200.0 / 3600.0).abs() < 1e-9);
    let names = ["set_up", "data_transfer", "training", "validation", "checkpoints", "preemptions"];
    let sum: f64 = names.map(part).iter().sum();
    assert!((sum / part("total") - 1.0).abs() < 1e-9);
    assert!((row["total_s"].as_f64().unwrap() / 3600.0 / sum - 1.0).abs() < 1e-9);
    // Each interruption costs a start and half a minute of work.
    let lost = 0.05 * part("total") * (27.4 + 30.0) / 3600.0;
    assert!((part("preemptions") / lost - 1.0).abs() < 1e-9);
    let sky = run(&[&asked[..], &["--sky"]].concat(), 0).out;
    assert!(sky.contains("\n  use_spot: true\n"), "{sky}");
    let markdown = run(&[&asked[..], &["--request"]].concat(), 0).out;
    assert!(
        markdown.contains("| expected time | set-up 27 s, data transfer 20 min 00 s, training "),
        "{markdown}"
    );
    // Preempted more often than it can start: nothing is recommended, with the reason.
    let never = run(&["resnet18", "--on", "g5.xlarge", "--images", "1000", "--preemptions", "1000/h"], 0).out;
    assert!(never.contains("may never finish") && never.contains("value: no machine meets it"), "{never}");
}

/// Several devices, with one batch each or one batch split among them.
#[test]
fn scaling_table_lists_device_counts() {
    let asked = ["resnet50", "--on", "v100-16gb", "--batch", "64", "--images", "1281167"];
    let more = ["--devices", "1,2,8", "--between", "10Gbit/s", "--latency", "0.1ms"];
    let out = run(&[&asked[..], &more].concat(), 0).out;
    insta::assert_snapshot!("forecast_scaling", out[out.find("devices").unwrap()..].to_owned());
    let report = |more: &[&str]| -> serde_json::Value {
        serde_json::from_str(&run(&[&asked[..], more, &["--json"]].concat(), 0).out).unwrap()
    };
    let weak = report(&more);
    let row = |at: usize, key: &str| weak["scaling"][at][key].as_f64().unwrap();
    let step = weak["machines"][0]["step_s"].as_f64().unwrap();
    assert!((row(0, "step_s") / step - 1.0).abs() < 1e-9 && (row(0, "speed_up") - 1.0).abs() < 1e-9);
    // 25.6 million gradients of four bytes, 2 (1 - 1/8) of them at 1.25 GB/s, and latency twice in each of
    // three rounds of each bucket.
    let bytes = 4.0 * 25_557_032.0 * 1.75 / 1.25e9;
    assert!(row(2, "exchange_s") > bytes && row(2, "exchange_s") < 1.2 * bytes, "{weak}");
    assert!(row(2, "speed_up") > 4.0 && row(2, "speed_up") < 8.0, "{weak}");
    assert!((row(2, "hidden_s") + row(2, "exposed_s") - row(2, "exchange_s")).abs() < 1e-9, "{weak}");
    // What is exchanged are the gradients, metrics, label counts and running statistics.
    let exchanged = row(2, "exchanged_bytes") / (4.0 * 25_557_032.0);
    assert!((1.0..1.01).contains(&exchanged), "{weak}");
    assert!((row(2, "sent_bytes") / row(2, "exchanged_bytes") - 1.75).abs() < 1e-6, "{weak}");
    assert!(row(2, "buckets") > 10.0 && row(2, "device_bytes") > 1e9 && row(2, "pinned_bytes") == 0.0);
    let strong = report(&[&more[..], &["--strong"]].concat());
    assert_eq!(strong["scaling"][2]["batch"], 8);
    assert!(strong["scaling"][2]["speed_up"].as_f64() < weak["scaling"][2]["speed_up"].as_f64());
    // Half of the bytes.
    let bf16 = report(&[&more[..], &["--set", "train.exchange_type=bf16"]].concat());
    let of = |report: &serde_json::Value, key: &str| report["scaling"][2][key].as_f64().unwrap();
    assert!((of(&bf16, "sent_bytes") / row(2, "sent_bytes") - 0.5).abs() < 1e-6);
    assert!(of(&bf16, "exposed_s") < row(2, "exposed_s"), "{bf16}");
    // NVLink is the default, and faster than copies through host memory.
    let nvlink = report(&["--devices", "1,2,8"]);
    assert!(of(&nvlink, "speed_up") > 7.5, "{nvlink}");
    assert_eq!(nvlink["scaling"], report(&["--devices", "1,2,8", "--between", "nvlink"])["scaling"]);
    let staged = report(&["--devices", "1,2,8", "--staged"]);
    assert!(of(&staged, "exchange_s") > 5.0 * of(&nvlink, "exchange_s"), "{staged}");
    assert_eq!(staged["scaling"][2]["pinned_bytes"], staged["scaling"][2]["exchanged_bytes"]);
    // Two machines of four devices.
    let several = ["--devices", "4,8", "--per-machine", "4", "--network", "1Gbit/s"];
    let several = report(&several);
    let exposed = |at: usize| several["scaling"][at]["exposed_s"].as_f64().unwrap();
    assert!(exposed(1) > 10.0 * exposed(0), "{several}");
}

/// Targets of eight GPUs.
#[test]
fn eight_gpus_are_forecast_to_be_seven_and_a_half_times_as_fast() {
    let asked = ["resnet50", "--on", "h100-80gb-sxm", "--batch", "256", "--set", "train.precision=bf16"];
    for between in ["nvlink", "400Gbit/s"] {
        let more = ["--devices", "8", "--between", between, "--json"];
        let report: serde_json::Value =
            serde_json::from_str(&run(&[&asked[..], &more].concat(), 0).out).unwrap();
        let speed_up = report["scaling"][0]["speed_up"].as_f64().unwrap();
        assert!((7.6..8.1).contains(&speed_up), "{between}: {speed_up}");
    }
}

/// The kernels of a run on this machine, on several devices.
#[test]
fn a_measured_run_is_scaled() {
    let dir = TestDir::new();
    let set = ["--set", "train.batch_size=64", "--set", "train.precision=f32"];
    dir.train("run", 2, &set).expect(0);
    let ask = |more: &[&str], code: i32| {
        let asked = ["forecast", "run", "--on", "xeon-gold-6230", "--measured", "run", "--devices", "1,2,4"];
        dir.run(&[&asked[..], more].concat()).expect(code)
    };
    let more = ["--between", "10Gbit/s", "--json"];
    let report: serde_json::Value = serde_json::from_str(&ask(&more, 0).out).unwrap();
    let step = |at: usize| report["scaling"][at]["step_s"].as_f64().unwrap();
    assert!(step(0) > 0.0 && step(1) > step(0) && step(2) > step(1), "{report}");
    let exposed = |at: usize| report["scaling"][at]["exposed_s"].as_f64().unwrap();
    let other = ["added_s", "straggling_s"].map(|key| report["scaling"][2][key].as_f64().unwrap());
    assert!((step(2) - exposed(2) - other[0] - other[1] - step(0)).abs() < 1e-9, "{report}");
    let refused = ask(&["--between", "10Gbit/s", "--batch", "32"], 2).err;
    assert!(refused.contains("has batches of 64 images, not 32"), "{refused}");
    let refused = ask(&["--between", "10Gbit/s", "--set", "train.precision=bf16"], 2).err;
    assert!(refused.contains("was trained in f32, but the forecast is for bf16"), "{refused}");
    let gpu = ["forecast", "run", "--on", "v100-16gb", "--measured", "run", "--devices", "2"];
    let refused = dir.run(&gpu).expect(2).err;
    assert!(refused.contains("was trained on a CPU, but the forecast is for a GPU"), "{refused}");
    let twice = 2.0 * report["machines"][0]["step_s"].as_f64().unwrap();
    let time = format!("{}ms", 1e3 * twice);
    let asked = ["forecast", "run", "--on", "xeon-gold-6230", "--devices", "1,2", "--measured", &time];
    let report: serde_json::Value =
        serde_json::from_str(&dir.run(&[&asked[..], &more].concat()).expect(0).out).unwrap();
    assert!((report["scaling"][0]["step_s"].as_f64().unwrap() - twice).abs() < 1e-9, "{report}");
    let refused = dir.run(&[&asked[..7], &["0ms", "--between", "10Gbit/s"]].concat()).expect(2).err;
    assert!(refused.contains("--measured 0ms: must be above 0"), "{refused}");
    let missing = ["forecast", "run", "--on", "xeon-gold-6230", "--measured", "none", "--devices", "2"];
    let refused = dir.run(&[&missing[..], &["--between", "10Gbit/s"]].concat()).expect(2).err;
    assert!(refused.contains("none: neither a time like 40ms nor a run with a summary"), "{refused}");
}

#[test]
fn several_devices_that_are_not_computed_are_refused() {
    let asked = ["resnet18", "--on", "v100-16gb", "--batch", "64", "--images", "1000"];
    for (more, expected) in [
        (&["--devices", "3"][..], "--devices 3 is not a power of two"),
        (&["--devices", "8", "--per-machine", "6"], "--per-machine 6 is not a power of two"),
        (&["--devices", "2", "--network", "10Gbit/s"], "--network has no effect"),
        (&["--devices", "2", "--set", "train.stages=2"], "train.stages = 2 is not supported"),
        (&["--devices", "2", "--set", "train.exchange=fast"], "train.exchange = \"fast\" is not supported"),
        (&["--devices", "0"], "0 is not in 1..=65536"),
        (&["--devices", "128", "--strong"], "batch 64 is not divisible by 128 devices"),
        (&["--devices", "2", "--between", "nvlink6"], "--between nvlink6: must be a number"),
        (&["--devices", "2", "--network", "-1Gbit/s"], "--network -1Gbit/s: must be above 0"),
        (&["--devices", "2", "--between", "pcie", "--staged"], "--staged sends gradients between processes"),
        (&["--devices", "4", "--per-machine", "2"], "the catalogue has no network rate of v100-16gb"),
        (&["--devices", "2", "--set", "train.parts=2"], "but train.parts is 2"),
        (&["--devices", "2", "--set", "train.micro_batches=2"], "train.micro_batches = 2 is not supported"),
        (&["--devices", "2", "--set", "train.synchronise_batch_norm=true"], "batch_norm is not supported"),
        (&["--staged"], "--devices <COUNTS>"),
    ] {
        let refused = run(&[&asked[..], more].concat(), 2).err;
        assert!(refused.contains(expected), "{more:?}: {refused}");
    }
    let t4 = ["resnet18", "--on", "t4-16gb", "--batch", "64", "--devices", "2", "--between", "nvlink"];
    let refused = run(&t4, 2).err;
    assert!(refused.contains("the catalogue has no NVLink rate of t4-16gb"), "{refused}");
    let cpu = ["resnet18", "--on", "xeon-gold-6230", "--batch", "16", "--devices", "2"];
    let refused = run(&cpu, 2).err;
    assert!(refused.contains("--devices needs --between"), "{refused}");
}

/// Forecasts of several GPUs are near published speeds.
#[test]
fn published_speed_ups_of_several_gpus_are_forecast() {
    let dir = TestDir::new();
    let out = dir.run(&["bench", "forecast", "--devices", "--json"]).expect(0).out;
    let tables: Vec<serde_json::Value> = serde_json::from_str(&out).unwrap();
    let rows = tables.iter().flat_map(|table| table["rows"].as_array().unwrap());
    let error = |row: &serde_json::Value| {
        let number = |key: &str| row[key].as_f64().unwrap();
        (number("forecast") / number("published") - 1.0).abs()
    };
    let errors: Vec<f64> = rows.map(error).collect();
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    assert!(errors.len() > 80 && mean < 0.1, "{mean} of {errors:?}");
    let text = dir.run(&["bench", "forecast", "--devices"]).expect(0).out;
    assert!(text.contains("8 devices: ") && text.contains("MXNet"), "{text}");
}

#[test]
fn rejects_invalid_arguments() {
    let own = "[[instance]]\nname = \"lab\"\ncloud = \"ours\"\ngpu = \"rtx-3090\"\ngpus = 1\nvcpus = 8\n\
               ram_gib = 64\non_demand_per_hour = -1\n\
               currency = \"EUR\"\nsource = \"us\"\ndate = \"2026-11\"\n";
    let cases: &[&[&str]] = &[
        &[],
        &["resnet18", "--on", "v100-16g"],
        &["resnet18", "--on", "abacus"],
        &["resnet18", "--on", "t4-16gb", "--set", "train.precision=bf16"],
        &["resnet18", "--batch", "0"],
        &["resnet18", "--epochs", "0"],
        &["resnet18", "--objective", "deadline=6"],
        &["resnet18", "--objective", "budget=-20"],
        &["resnet18", "--link", "-1Gbit/s", "--data-size", "150GB"],
        &["resnet18", "--link", "1", "--data-size", "150GB"],
        &["resnet18", "--link", "1Gbit/s"],
        &["resnet18", "--link", "1Gbit/s", "--data-size", "much"],
        &["resnet18", "--decode-rate", "0"],
        &["resnet18", "--cloud", "abacus"],
        &["resnet18", "--sky-catalogs", "absent"],
        &["resnet18", "--published", "own.toml"],
        &["resnet18", "--published", "own.toml", "--on", "t4-16gb"],
        &["resnet18", "--published", "own.toml", "--on", "t4-16gb,a10g-24gb"],
        &["resnet18", "--disk", "0MB/s"],
        &["resnet18", "--preemptions", "often"],
        &["resnet18", "--preemptions", "-1/h"],
        &["resnet18", "--preemptions", "1/d", "--framework", "tensorflow"],
        &["resnet18", "--devices", "1,3"],
        &["resnet18", "--devices", "0", "--between", "1Gbit/s"],
        &["resnet18", "--devices", "2", "--between", "fast"],
        &["resnet18", "--devices", "2", "--between", "1Gbit/s", "--latency", "5"],
        &[
            "resnet18",
            "--devices",
            "128",
            "--between",
            "1Gbit/s",
            "--strong",
            "--batch",
            "64",
            "--on",
            "t4-16gb",
        ],
        &["resnet18", "--devices", "2", "--between", "1Gbit/s", "--framework", "tensorflow"],
        &["resnet18", "--machines", "own.toml"],
        &["resnet18", "--machines", "absent.toml"],
        &["resnet18", "--on", "here", "--framework", "tensorflow"],
        &["resnet18", "--profile", "own.toml"],
        &["resnet18", "--profile", "later.toml"],
        &["resnet81"],
        &["fit", "--times", "own.toml", "--layers", "own.toml", "--out", "profiles"],
        &["fit", "--out", "profiles"],
    ];
    let shown: Vec<String> = cases
        .iter()
        .map(|arguments| {
            let dir = TestDir::without_kernel_cache();
            std::fs::write(dir.path("own.toml"), own).unwrap();
            std::fs::write(dir.path("later.toml"), "format = 99\n").unwrap();
            let ran = dir.run(&[&["forecast"], *arguments].concat()).expect(2);
            assert_eq!(ran.out, "");
            assert!(!dir.path("profiles").exists());
            format!("$ stratus forecast {}\n{}", arguments.join(" "), ran.err)
        })
        .collect();
    insta::assert_snapshot!("forecast_refused", shown.join("\n"));
}

/// The forecast of one instance with these virtual CPUs, as JSON.
fn of_instance(vcpus: u32, arguments: &[&str]) -> serde_json::Value {
    let row = format!(
        "[[instance]]\nname = \"lab\"\ncloud = \"ours\"\ngpu = \"h100-80gb-sxm\"\ngpus = 1\nvcpus = {vcpus}\n\
         on_demand_per_hour = 2.0\ncurrency = \"EUR\"\nsource = \"us\"\ndate = \"2020-01\"\n"
    );
    let common = ["resnet18", "--machines", "m.toml", "--on", "lab", "--images", "1000000", "--json"];
    let ran = run_with("m.toml", &row, &[&common[..], arguments].concat(), 0);
    serde_json::from_str(&ran.out).unwrap()
}

#[test]
fn decoding_limits_a_fast_device_with_few_cores() {
    let number = |report: &serde_json::Value, name: &str| report["machines"][0][name].as_f64().unwrap();
    let slow = of_instance(4, &["--decode-rate", "500"]);
    assert_eq!(slow["machines"][0]["limit"], "decoding");
    // A virtual CPU counts as 0.65 of a core.
    assert!((number(&slow, "images_per_second") - 1300.0).abs() < 1e-6);
    assert!((number(&slow, "decoding_images_per_second") - 1300.0).abs() < 1e-6);
    assert!((number(&slow, "epoch_s") - 1e6 / 1300.0).abs() < 1e-6);
    let device = number(&slow, "batch") / number(&slow, "step_s");
    assert!(device > 2000.0);
    let fast = of_instance(192, &["--decode-rate", "500"]);
    assert_ne!(fast["machines"][0]["limit"], "decoding");
    assert!((number(&fast, "images_per_second") / device - 1.0).abs() < 1e-9);
    // Fewer loader threads than cores decode less.
    let two = of_instance(192, &["--decode-rate", "500", "--set", "data.workers=2"]);
    assert!((number(&two, "images_per_second") - 1000.0).abs() < 1e-6);
    // Stored pixels are not decoded.
    let stored = of_instance(1, &["--set", "data.name=cifar10", "--set", "data.path=absent"]);
    assert!(stored["machines"][0]["decoding_images_per_second"].is_null(), "{stored}");
}

#[test]
fn decoding_of_a_local_data_set_is_measured() {
    let dir = TestDir::without_kernel_cache();
    let data = digits().to_str().unwrap();
    let arguments = ["--data", data, "--set", "data.verify=false", "--json"];
    let ran = dir.run(&[&["forecast", "digits", "--on", "g4dn.xlarge"], &arguments[..]].concat()).expect(0);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let rate = report["machines"][0]["decoding_images_per_second"].as_f64().unwrap();
    assert!(rate > 0.0 && !ran.err.contains("assuming photographs"), "{rate}: {}", ran.err);
}

#[test]
fn prices_of_skypilot_replace_those_of_its_clouds() {
    let dir = TestDir::without_kernel_cache();
    std::fs::create_dir_all(dir.path("sky/v8/lambda")).unwrap();
    std::fs::write(
        dir.path("sky/v8/lambda/vms.csv"),
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region\n\
         new_h100,H100,1,26,225,0.5,us-east-1\nnew_h100,H100,1,26,225,oops,us-west-1\n\
         tpu,tpu-v4,1,26,225,0.5,us-east-1\n",
    )
    .unwrap();
    let arguments = ["forecast", "resnet18", "--images", "1000", "--sky-catalogs", "sky"];
    let ran = dir.run(&[&arguments[..], &["--cloud", "lambda,runpod", "--json"]].concat()).expect(0);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let rows = report["machines"].as_array().unwrap();
    let named = |name: &str| rows.iter().find(|row| row["name"] == name);
    assert!(named("gpu_1x_a6000").is_none() && named("1x_RTX5090_SECURE").is_some(), "{rows:?}");
    assert_eq!(named("new_h100").unwrap()["region"], "us-east-1");
    assert_eq!(report["recommendation"]["name"], "new_h100");
    for part in ["prices of SkyPilot: sky/v8 (lambda)", "tpu-v4", "1 damaged row", "line 3: Price must be"] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    let ran = dir.run(&[&arguments[..], &["--cloud", "lambdas"]].concat()).expect(2);
    assert!(ran.err.contains("no instance of the cloud `lambdas`"), "{}", ran.err);
}

#[test]
fn an_exceeded_budget_names_the_epochs_that_it_pays_for() {
    let report = of_instance(192, &["--objective", "budget=1"]);
    assert!(report["recommendation"].is_null());
    let epochs = report["within_limit"]["epochs"].as_u64().unwrap();
    assert!((1..90).contains(&epochs), "{report}");
    let high = |epochs: u64| {
        let report = of_instance(192, &["--epochs", &epochs.to_string()]);
        report["machines"][0]["price_high"].as_f64().unwrap()
    };
    assert!(high(epochs) <= 1.0 && high(epochs + 1) > 1.0);
    // The largest smaller images with which all epochs keep a larger budget.
    let all = high(90);
    let report = of_instance(192, &["--objective", &format!("budget={}", 0.8 * all)]);
    let size = report["within_limit"]["image_size"][0].as_u64().unwrap();
    let price = |size: u64| {
        let shape = format!("data.shape=[3,{size},{size}]");
        of_instance(192, &["--set", &shape])["machines"][0]["price_high"].as_f64().unwrap()
    };
    assert!(size.is_multiple_of(32) && size < 224 && price(size) <= 0.8 * all, "{report}");
}

/// A machine of the catalogue has the batch size of one whose kernels were timed.
#[test]
fn limits_of_a_catalogue_machine_are_not_those_of_this_machine() {
    let row = "[[instance]]\nname = \"lab\"\ncloud = \"ours\"\ngpu = \"h100-80gb-sxm\"\ngpus = 1\nvcpus = 8\n\
               on_demand_per_hour = 200.0\ncurrency = \"EUR\"\nsource = \"us\"\ndate = \"2020-01\"\n";
    let within = |machines: &str| {
        let asked =
            ["digits", "--machines", "m.toml", "--on", machines, "--images", "1000000000", "--batch", "8"];
        let more = ["--objective", "budget=1000", "--json", "--set", "data.path=absent"];
        let ran = run_with("m.toml", row, &[&asked[..], &more[..]].concat(), 0);
        serde_json::from_str::<serde_json::Value>(&ran.out).unwrap()["within_limit"].clone()
    };
    let alone = within("lab");
    assert_eq!(alone["name"], "lab");
    assert_eq!(within("here,lab"), alone);
}

#[test]
fn published_times_correct_a_data_sheet() {
    let dir = TestDir::without_kernel_cache();
    let forecast = |more: &[&str]| {
        let common = ["forecast", "resnet18", "--on", "rtx-4090", "--batch", "64", "--json", "--evidence"];
        let ran = dir.run(&[&common[..], more].concat()).expect(0);
        serde_json::from_str::<serde_json::Value>(&ran.out).unwrap()
    };
    let number = |report: &serde_json::Value, name: &str| report["machines"][0][name].as_f64().unwrap();
    let before = forecast(&[]);
    assert_eq!(before["evidence"][0]["source"], "data_sheet");
    let step_ms = 1e3 * number(&before, "step_s");
    let rows: String = (0..20).map(|_| format!("resnet18,64,{}\n", 1.5 * step_ms)).collect();
    std::fs::write(dir.path("p.csv"), format!("network,batch,milliseconds\n{rows}")).unwrap();
    let after = forecast(&["--published", "p.csv"]);
    let factor = number(&after, "step_s") / number(&before, "step_s");
    assert!((1.45..1.5).contains(&factor), "{factor}");
    assert!(
        number(&after, "high_s") / number(&after, "low_s")
            < number(&before, "high_s") / number(&before, "low_s")
    );
    assert!(after["evidence"][0]["data"].as_str().unwrap().contains("20 published steps of p.csv"));
    std::fs::write(dir.path("p.csv"), "network,batch,milliseconds\nresnet1800,64,1\n").unwrap();
    let ran = dir.run(&["forecast", "resnet18", "--on", "rtx-4090", "--published", "p.csv"]).expect(2);
    assert!(ran.err.contains("p.csv, line 2: ") && ran.err.contains("resnet1800"), "{}", ran.err);
}
