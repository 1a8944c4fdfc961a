//! The table of step times that the shipped profiles are fitted to, and what was promised of it.

use stratus_engine::Precision;
use stratus_forecast::catalogue::Catalogue;
use stratus_forecast::evaluate::{Evaluation, Judged, LeftOut, validation};
use stratus_forecast::measured::Measured;
use stratus_forecast::memory::{cells, kept, leave_out};
use stratus_forecast::model::Framework;
use stratus_forecast::profile::Profile;
use stratus_forecast::shipped;
use stratus_forecast::sketch::Sketch;
use stratus_forecast::steps::StepTable;
use stratus_forecast::work::layers;
use stratus_forecast::work::program::tensorflow;
use stratus_forecast::work::training::{Target, training};
use stratus_graph::zoo;

fn measured() -> Measured {
    shipped::tensorflow().unwrap()
}

/// Mean error and coverage of a machine's steps, in percent.
fn of(measured: &Measured, left_out: &LeftOut, name: &str) -> (f64, f64) {
    let of_machine = |judged: &&Judged| measured.machines[measured.steps[judged.step].machine] == name;
    let validation = validation(left_out.judged.iter().filter(of_machine)).unwrap();
    (validation.mean_percent, validation.covered_percent)
}

/// What docs/benchmarks/forecast.md states, so that a change of the model is seen. The targets are 8 % for
/// networks that were left out (missed on the K80), 20 % for machines.
#[test]
fn networks_and_machines_that_were_left_out() {
    let measured = measured();
    assert_eq!((measured.steps.len(), measured.machines.len(), measured.networks.len()), (863, 4, 10));
    let evaluation = Evaluation::new(&measured, Framework::Tensorflow, true, false);
    let networks = evaluation.without_network().unwrap();
    for (machine, most) in [("m60-8gb", 6.0), ("t4-16gb", 7.0), ("k80-12gb", 12.0), ("v100-16gb", 8.1)] {
        let (mean, covered) = of(&measured, &networks, machine);
        assert!(mean < most && (75.0..=90.0).contains(&covered), "{machine}: {mean} % {covered} %");
    }
    let machines = evaluation.without_machine().unwrap();
    assert_eq!(machines.judged.len(), 863);
    let all = validation(&machines.judged).unwrap();
    assert!(all.mean_percent < 20.0 && (75.0..=90.0).contains(&all.covered_percent), "{all:?}");
}

/// Batches that ran out of memory: 90 % right, and none that needs far more than there is is said to fit.
#[test]
fn memory_of_tensorflow() {
    let networks = layers::parse(shipped::LAYERS_NAME, shipped::LAYERS).unwrap();
    let cells = cells(&measured(), &networks, &Catalogue::builtin().unwrap()).unwrap();
    let verdicts = leave_out(&cells, 4);
    assert_eq!((verdicts.cells, verdicts.wrongly_fits_by_far), (960, 0));
    assert!(verdicts.right * 100 >= 95 * verdicts.cells, "{verdicts:?}");
    assert!(verdicts.near[1] * 100 >= 90 * verdicts.near[0], "{verdicts:?}");
}

/// A step of TensorFlow is the same from its table of layers and from the graph, as far as they agree.
#[test]
fn tensorflow_s_work_from_a_graph() {
    let networks = layers::parse(shipped::LAYERS_NAME, shipped::LAYERS).unwrap();
    let table = networks[&("VGG16".to_owned(), 224)].work(16.0);
    let network = zoo::find("vgg16").unwrap();
    let graph = (network.build)(&(network.defaults)()).unwrap();
    let program = training(&graph, 16, Precision::F32, Target::Unfused).unwrap();
    let of_graph = tensorflow(&program);
    assert!((of_graph.flops() / table.flops() - 1.0).abs() < 0.02);
    assert!((of_graph.bytes() / table.bytes() - 1.0).abs() < 0.05, "{} {}", of_graph.bytes(), table.bytes());
    let kept = [kept(&program), networks[&("VGG16".to_owned(), 224)].kept()];
    assert!((kept[0][2] / kept[1][2] - 1.0).abs() < 0.01 && (kept[0][0] / kept[1][0] - 1.0).abs() < 0.05);
}

/// Steps of an H100 that the prior and its data sheet forecast.
#[test]
fn an_h100_by_its_data_sheet() {
    let steps = StepTable::parse(shipped::STRATUS_STEPS_NAME, shipped::STRATUS_STEPS).unwrap();
    let catalogue = Catalogue::builtin().unwrap();
    let kinds = steps.kinds(&catalogue).unwrap();
    assert_eq!(kinds.len(), 3);
    let measured = steps.measured(&kinds[0], &catalogue).unwrap();
    assert_eq!(measured.machines, ["h100-80gb-sxm"]);
    let evaluation = Evaluation::new(&measured, Framework::Stratus, true, true);
    let all = validation(&evaluation.unfitted()).unwrap();
    assert!(all.mean_percent < 25.0 && all.steps == 5, "{all:?}");
    for kind in &kinds[1..] {
        let measured = steps.measured(kind, &catalogue).unwrap();
        let evaluation = Evaluation::new(&measured, Framework::Stratus, false, false);
        let all = validation(&evaluation.without_network_shared().unwrap().judged).unwrap();
        assert!(all.mean_percent < 6.0 && all.steps == 10, "{all:?}");
    }
}

/// What a plan without kernels says of memory, against the plans of a GPU (docs/benchmarks/raw/gpu.txt), MiB.
#[test]
fn memory_of_a_gpu_that_is_not_here() {
    let planned =
        [("resnet50", 256, 10_314), ("resnet18", 256, 2_381), ("vgg11", 128, 2_810), ("alexnet", 512, 1_306)];
    for (name, batch, planned) in planned {
        let network = zoo::find(name).unwrap();
        let graph = (network.build)(&(network.defaults)()).unwrap();
        let program = training(&graph, batch, Precision::Bf16, Target::Gpu).unwrap();
        let memory = Sketch { gpu: true, threads: 1 }.memory(&[&program]).unwrap();
        let mib = memory.device >> 20;
        // What is missing is the kernels' scratch, for which a forecast adds a constant.
        assert!(mib <= planned + planned / 50 && planned <= mib + 200, "{name}: {mib} of {planned} MiB");
    }
}

/// The shipped profiles are what the shipped table gives.
#[test]
fn shipped_profiles_are_made_again() {
    let measured = measured();
    let evaluation = Evaluation::new(&measured, Framework::Tensorflow, true, false);
    let networks = evaluation.without_network().unwrap();
    let made = evaluation.profiles(&networks, Framework::Tensorflow, "f32", ("", ""));
    let shipped = shipped::profiles().unwrap();
    for made in made {
        let is_same = |profile: &&Profile| {
            profile.machine == made.machine && profile.framework == Framework::Tensorflow
        };
        let shipped = shipped.iter().find(is_same).unwrap();
        assert!(shipped.data.contains("PROFET") && shipped.command.starts_with("stratus forecast fit"));
        for (a, b) in shipped.coefficients.log.iter().zip(&made.coefficients.log) {
            assert!((a - b).abs() < 2e-3, "{:?}", made.machine);
        }
        assert!((shipped.factor / made.factor - 1.0).abs() < 2e-3);
        assert!((shipped.validation.mean_percent - made.validation.mean_percent).abs() < 0.02);
    }
}
