//! Forecasts from the shipped profiles: their choice, and the bill of a training.

use stratus_engine::Precision;
use stratus_forecast::bill::{GPU_STARTUP_S, RunConditions};
use stratus_forecast::catalogue::Catalogue;
use stratus_forecast::choice::{Source, choose, choose_tensorflow};
use stratus_forecast::forecast::{
    Forecast, MaxEnergy, PlannedMemory, TrainingLength, TrainingWork, forecast, layers,
};
use stratus_forecast::model::Framework;
use stratus_forecast::peaks::NumberFormat;
use stratus_forecast::planning_backend::PlanningBackend;
use stratus_forecast::shipped;
use stratus_forecast::work::program::work;
use stratus_forecast::work::training::{Target, training};
use stratus_graph::zoo;

fn plan(batch: usize, format: NumberFormat, tensor_cores: bool) -> TrainingWork {
    let network = zoo::find("resnet18").unwrap();
    let graph = (network.build)(&(network.defaults)()).unwrap();
    let program = training(&graph, batch, format.precision(), Target::Gpu).unwrap();
    let memory = PlanningBackend { gpu: true, threads: 1 }.memory(&[&program]).unwrap();
    TrainingWork {
        framework: Framework::Stratus,
        batch: batch as u64,
        train: work(&program, tensor_cores),
        evaluate: work(&program, tensor_cores),
        validation_batch: batch as u64,
        memory: PlannedMemory { per_image: 9 << 20, ..memory },
    }
}

fn on(machine: &str, format: NumberFormat, batch: usize, length: &TrainingLength) -> Forecast {
    let machine = Catalogue::builtin().unwrap().find(machine).unwrap();
    let plan = plan(batch, format, format != NumberFormat::F32);
    forecast(&machine, format, &plan, length, &shipped::profiles().unwrap()).unwrap()
}

#[test]
fn chooses_the_best_available_profile() {
    let (catalogue, profiles) = (Catalogue::builtin().unwrap(), shipped::profiles().unwrap());
    let source = |machine: &str, format: NumberFormat| {
        let (profile, source) =
            choose(&profiles, &catalogue.find(machine).unwrap().processor, format).unwrap();
        assert_eq!(profile.framework, Framework::Stratus);
        source
    };
    assert_eq!(source("h100-80gb-sxm", NumberFormat::Bf16), Source::Profile);
    assert_eq!(source("h100-80gb-sxm", NumberFormat::Tf32), Source::DataSheet);
    assert_eq!(source("a100-40gb", NumberFormat::Bf16), Source::DataSheet);
    assert_eq!(source("v100-16gb", NumberFormat::F32), Source::Profile);
    assert_eq!(source("rtx-3090", NumberFormat::F32), Source::DataSheet);
    assert_eq!(source("xeon-gold-6230", NumberFormat::F32), Source::DataSheet);
    let tensorflow = |machine: &str, format: NumberFormat| {
        choose_tensorflow(&profiles, &catalogue.find(machine).unwrap().processor, format)
    };
    assert_eq!(tensorflow("k80-12gb", NumberFormat::F32).unwrap().1, Source::Profile);
    assert_eq!(tensorflow("p100-16gb", NumberFormat::F32).unwrap().1, Source::DataSheet);
    assert!(
        tensorflow("k80-12gb", NumberFormat::F16).is_err()
            && tensorflow("i9-7900x", NumberFormat::F32).is_err()
    );
}

#[test]
fn bill_sums_steps_and_checkpoints() {
    let length = TrainingLength {
        epochs: 3,
        images: Some(1000),
        validation_images: Some(100),
        validation_every: 1,
        checkpoints: 2,
        ..TrainingLength::default()
    };
    let row = on("g4dn.xlarge", NumberFormat::F32, 50, &length);
    // In this plan, validation has the work of a training step.
    let steps = 3.0 * (1000.0 / 50.0 + 100.0 / 50.0);
    let total = row.total_s.unwrap();
    // Three checkpoints, one at the end of each epoch, at 125 MiB/s; ResNet-18 has about 90 MB with momenta.
    let checkpoints = total - steps * row.step_s - GPU_STARTUP_S;
    assert!((1.0..3.0).contains(&checkpoints), "{checkpoints}");
    let hours: f64 = row.bill[..6].iter().filter_map(|part| part.hours).sum();
    assert!((hours * 3600.0 / total - 1.0).abs() < 1e-12);
    assert_eq!((row.bill[6].hours, row.bill[1].hours), (Some(total / 3600.0), None));
    assert!((row.cost.price.unwrap() / (0.526 * row.total_s.unwrap() / 3600.0) - 1.0).abs() < 1e-12);
    assert!(row.low_s < row.step_s && row.step_s < row.high_s && row.cost.price_high > row.cost.price);
    let unknown = on("g4dn.xlarge", NumberFormat::F32, 50, &TrainingLength::default());
    assert_eq!((unknown.epoch_s, unknown.total_s, unknown.cost.price), (None, None, None));
    assert_eq!((unknown.step_s, unknown.bill.len()), (row.step_s, 0));
}

#[test]
fn preemptible_machine_has_its_spot_price() {
    let text = "[[instance]]\nname = \"lab\"\ncloud = \"ours\"\ngpu = \"t4-16gb\"\ngpus = 1\nvcpus = 8\n\
               ram_gib = 64\non_demand_per_hour = 1.0\nspot_per_hour = 0.25\ncurrency = \"EUR\"\n\
               source = \"us\"\ndate = \"2026-11\"\n";
    let machine = Catalogue::builtin().unwrap().with("own.toml", text).unwrap().find("lab").unwrap();
    let (plan, profiles) = (plan(50, NumberFormat::F32, false), shipped::profiles().unwrap());
    let at = |preemptions: f64| {
        let conditions = RunConditions { preemptions_per_hour: preemptions, ..RunConditions::default() };
        let length = TrainingLength {
            epochs: 5,
            images: Some(1000),
            validation_every: 4,
            conditions,
            ..TrainingLength::default()
        };
        forecast(&machine, NumberFormat::F32, &plan, &length, &profiles).unwrap()
    };
    let price_of_an_hour = |row: &Forecast| row.cost.price.unwrap() / (row.total_s.unwrap() / 3600.0);
    assert!((price_of_an_hour(&at(0.0)) - 1.0).abs() < 1e-12);
    assert!((price_of_an_hour(&at(0.1)) - 0.25).abs() < 1e-12);
    assert!(at(0.1).total_s > at(0.0).total_s);
    let never = at(1e6);
    assert_eq!((never.total_s, never.cost.price, never.bill[6].hours), (None, None, None));
    assert!(
        never.warnings.iter().any(|warning| warning.contains("may never finish")),
        "{:?}",
        never.warnings
    );
}

#[test]
fn energy_is_that_of_the_gpu_at_its_maximum_power() {
    let with_grid = |grid_g_per_kwh: Option<f64>| {
        let conditions = RunConditions { grid_g_per_kwh, ..RunConditions::default() };
        TrainingLength { epochs: 2, images: Some(1_000_000), conditions, ..TrainingLength::default() }
    };
    let row = on("g4dn.xlarge", NumberFormat::F32, 50, &with_grid(Some(400.0)));
    // A T4 draws up to 70 W.
    let energy = row.energy.energy_kwh.unwrap();
    assert!((energy / (0.07 * row.total_s.unwrap() / 3600.0) - 1.0).abs() < 1e-12, "{energy}");
    assert!((row.energy.co2_kg.unwrap() / (0.4 * energy) - 1.0).abs() < 1e-12);
    assert_eq!(on("g4dn.xlarge", NumberFormat::F32, 50, &with_grid(None)).energy.co2_kg, None);
    // The power or the length is unknown.
    let unknown = [
        on("g5.xlarge", NumberFormat::F32, 50, &with_grid(Some(400.0))),
        on("t4-16gb", NumberFormat::F32, 50, &TrainingLength::default()),
    ];
    assert!(unknown.iter().all(|row| row.energy == MaxEnergy::default()));
}

#[test]
fn batch_that_exceeds_memory_does_not_fit() {
    let small = on("quadro-p600", NumberFormat::F32, 8, &TrainingLength::default());
    let large = on("quadro-p600", NumberFormat::F32, 256, &TrainingLength::default());
    assert_eq!((small.fits, large.fits), (Some(true), Some(false)));
    assert!(small.spare_bytes > Some(0) && large.spare_bytes < Some(0));
    assert!(large.largest_batch < Some(256));
}

#[test]
fn layers_sum_to_the_step() {
    let machine = Catalogue::builtin().unwrap().find("h100-80gb-sxm").unwrap();
    let plan = plan(256, NumberFormat::Bf16, true);
    let profiles = shipped::profiles().unwrap();
    let row = forecast(&machine, NumberFormat::Bf16, &plan, &TrainingLength::default(), &profiles).unwrap();
    let layers = layers(&machine, NumberFormat::Bf16, (plan.framework, &plan.train), &profiles).unwrap();
    let seconds: f64 = layers.iter().map(|layer| layer.seconds).sum();
    assert!((seconds / row.step_s - 1.0).abs() < 0.05);
    let flops: f64 = layers.iter().map(|layer| layer.flops).sum();
    // Forward 2 × 1.8 GFLOP per image (He et al., 2015), backward twice that except for the first layer.
    assert!((flops / 256.0 / (3.0 * 2.0 * 1.82e9) - 1.0).abs() < 0.05, "{flops}");
    assert_eq!(NumberFormat::Bf16.precision(), Precision::Bf16);
}
