//! The table of step times that the shipped profiles are fitted to, and the documented accuracy.

use std::path::Path;
use stratus_engine::Precision;
use stratus_forecast::catalogue::Catalogue;
use stratus_forecast::evaluate::{CrossValidation, Evaluation, HeldOutPrediction, validation};
use stratus_forecast::measured::StepRecords;
use stratus_forecast::memory::{kept, leave_one_machine_out, memory_cases};
use stratus_forecast::model::Framework;
use stratus_forecast::planning_backend::PlanningBackend;
use stratus_forecast::profile::Profile;
use stratus_forecast::shipped;
use stratus_forecast::steps::StepTable;
use stratus_forecast::work::layers;
use stratus_forecast::work::program::tensorflow;
use stratus_forecast::work::training::{Target, training};
use stratus_graph::zoo;

fn measured() -> StepRecords {
    shipped::tensorflow().unwrap()
}

/// Mean error and coverage of the steps of a machine, in percent.
fn accuracy(measured: &StepRecords, cross_validation: &CrossValidation, name: &str) -> (f64, f64) {
    let is_on_machine =
        |step: &&HeldOutPrediction| measured.machines[measured.steps[step.step].machine] == name;
    let validation = validation(cross_validation.predictions.iter().filter(is_on_machine)).unwrap();
    (validation.mean_percent, validation.covered_percent)
}

/// The accuracy in docs/benchmarks/forecast.md, so that changes of the model are noticed. The targets are 8 %
/// for held-out networks (missed on the K80) and 20 % for held-out machines.
#[test]
fn held_out_networks_and_machines_are_within_documented_errors() {
    let measured = measured();
    assert_eq!((measured.steps.len(), measured.machines.len(), measured.networks.len()), (863, 4, 10));
    let evaluation = Evaluation::new(&measured, Framework::Tensorflow, true, false);
    let networks = evaluation.leave_one_network_out().unwrap();
    for (machine, max) in [("m60-8gb", 6.0), ("t4-16gb", 7.0), ("k80-12gb", 12.0), ("v100-16gb", 8.1)] {
        let (mean, covered) = accuracy(&measured, &networks, machine);
        assert!(mean < max && (75.0..=90.0).contains(&covered), "{machine}: {mean} % {covered} %");
    }
    let machines = evaluation.leave_one_machine_out().unwrap();
    assert_eq!(machines.predictions.len(), 863);
    let all = validation(&machines.predictions).unwrap();
    assert!(all.mean_percent < 20.0 && (75.0..=90.0).contains(&all.covered_percent), "{all:?}");
}

/// Out-of-memory predictions: 95 % correct, and no clear false fit.
#[test]
fn tensorflow_memory_predictions_are_accurate() {
    let networks = layers::parse(shipped::LAYERS_NAME, shipped::LAYERS).unwrap();
    let cases = memory_cases(&measured(), &networks, &Catalogue::builtin().unwrap()).unwrap();
    let scores = leave_one_machine_out(&cases, 4);
    assert_eq!((scores.cases, scores.clear_false_fits), (960, 0));
    assert!(scores.correct * 100 >= 95 * scores.cases, "{scores:?}");
    assert!(scores.near_limit[1] * 100 >= 90 * scores.near_limit[0], "{scores:?}");
}

/// The work of a TensorFlow step is nearly equal from its table of layers and from the graph.
#[test]
fn tensorflow_work_from_table_and_graph_agree() {
    let networks = layers::parse(shipped::LAYERS_NAME, shipped::LAYERS).unwrap();
    let table = networks[&("VGG16".to_owned(), 224)].work(16.0);
    let network = zoo::find("vgg16").unwrap();
    let graph = (network.build)(&(network.defaults)()).unwrap();
    let program = training(&graph, 16, Precision::F32, Target::Unfused).unwrap();
    let graph_work = tensorflow(&program);
    assert!((graph_work.flops() / table.flops() - 1.0).abs() < 0.02);
    assert!(
        (graph_work.bytes() / table.bytes() - 1.0).abs() < 0.05,
        "{} {}",
        graph_work.bytes(),
        table.bytes()
    );
    let kept = [kept(&program), networks[&("VGG16".to_owned(), 224)].kept()];
    assert!((kept[0][2] / kept[1][2] - 1.0).abs() < 0.01 && (kept[0][0] / kept[1][0] - 1.0).abs() < 0.05);
}

/// Steps of an H100 are forecast from the prior and its data sheet.
#[test]
fn forecasts_an_h100_from_its_data_sheet() {
    let steps = StepTable::parse(shipped::STRATUS_STEPS_NAME, shipped::STRATUS_STEPS).unwrap();
    let catalogue = Catalogue::builtin().unwrap();
    let kinds = steps.groups(&catalogue).unwrap();
    assert_eq!(kinds.len(), 3);
    let measured = steps.records(&kinds[0], &catalogue).unwrap();
    assert_eq!(measured.machines, ["h100-80gb-sxm"]);
    let evaluation = Evaluation::new(&measured, Framework::Stratus, true, true);
    let all = validation(&evaluation.predict_from_prior()).unwrap();
    assert!(all.mean_percent < 25.0 && all.steps == 5, "{all:?}");
    for kind in &kinds[1..] {
        let measured = steps.records(kind, &catalogue).unwrap();
        let evaluation = Evaluation::new(&measured, Framework::Stratus, false, false);
        let all = validation(&evaluation.leave_one_network_out_shared().unwrap().predictions).unwrap();
        assert!(all.mean_percent < 6.0 && all.steps == 10, "{all:?}");
    }
}

/// Memory from the planning backend, compared with plans on a GPU (docs/benchmarks/raw/gpu.txt), MiB.
#[test]
fn plans_the_memory_of_an_unavailable_gpu() {
    let planned =
        [("resnet50", 256, 10_314), ("resnet18", 256, 2_381), ("vgg11", 128, 2_810), ("alexnet", 512, 1_306)];
    for (name, batch, planned) in planned {
        let network = zoo::find(name).unwrap();
        let graph = (network.build)(&(network.defaults)()).unwrap();
        let program = training(&graph, batch, Precision::Bf16, Target::Gpu).unwrap();
        let memory = PlanningBackend { gpu: true, threads: 1 }.memory(&[&program]).unwrap();
        let mib = memory.device >> 20;
        // The scratch of kernels is missing; a forecast adds a constant for it.
        assert!(mib <= planned + planned / 50 && planned <= mib + 200, "{name}: {mib} of {planned} MiB");
    }
}

/// The shipped profiles are those fitted to the shipped table.
#[test]
fn shipped_profiles_can_be_recreated() {
    let measured = measured();
    let evaluation = Evaluation::new(&measured, Framework::Tensorflow, true, false);
    let networks = evaluation.leave_one_network_out().unwrap();
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

/// A file without end would fill the memory.
#[cfg(unix)]
#[test]
fn table_beyond_the_limit_is_refused_by_name() {
    let (endless, catalogue) = (Path::new("/dev/zero"), Catalogue::builtin().unwrap());
    let error = StepRecords::read_layer_table(endless, endless, &catalogue).unwrap_err().to_string();
    assert!(error.contains("/dev/zero: it is larger than 64 MiB"), "{error}");
    let error = StepTable::read(endless).unwrap_err().to_string();
    assert!(error.contains("/dev/zero: it is larger than 64 MiB"), "{error}");
}
