//! Every case of the case tables against the reference backend, on an emulated GPU, where plain native
//! kernels replace cuDNN and cuBLAS.
//!
//! The environment variable CASES restricts a run to the cases whose name or kernel contains it.

use crate::common::{compare_by_name, emulated, tiles_for};
use std::collections::BTreeSet;
use stratus_conformance::{Case, Suite, cases};
use stratus_cuda::{Cuda, Settings};
use stratus_engine::backend::Backend;
use stratus_engine::ops::KernelSpec;
use stratus_engine::{Kernel, Precision};

/// Kernels, each with the file of its source.
type Launched = BTreeSet<(&'static str, String)>;

/// The restriction of cases.
fn filter() -> Option<String> {
    std::env::var("CASES").ok().filter(|filter| !filter.is_empty())
}

fn cases_of(precision: Precision) -> Vec<Case> {
    let filter = filter().unwrap_or_default();
    let wanted = |case: &Case| case.name.contains(&filter) || case.kernel.name().contains(&filter);
    cases::of(precision).into_iter().filter(wanted).collect()
}

/// Compares all cases on several numbers of multiprocessors, forwards and backwards: the same bits, whatever
/// the order of threads and blocks.
fn compare_all(precision: Precision, multiprocessors: u32) -> Launched {
    compare_some(precision, multiprocessors, |_| true)
}

fn compare_some(precision: Precision, multiprocessors: u32, wanted: impl FnMut(&Case) -> bool) -> Launched {
    let [forwards, backwards] = emulated(multiprocessors);
    let cases: Vec<Case> = cases_of(precision).into_iter().filter(wanted).collect();
    if cases.is_empty() {
        eprintln!("SKIPPED: CASES leaves none in {precision}");
        return Launched::new();
    }
    Suite::new(&forwards).same_bits_as(&backwards).run(precision, &cases).assert_passed();
    forwards.launched()
}

#[test]
fn every_case_in_f32_on_many_multiprocessors() {
    compare_all(Precision::F32, 64);
}

#[test]
fn every_case_in_bf16_on_many_multiprocessors() {
    compare_all(Precision::Bf16, 64);
}

#[test]
#[ignore = "the C++ compiler takes a minute for it: `make test-all` runs it"]
fn every_case_in_f16_on_many_multiprocessors() {
    compare_all(Precision::F16, 64);
}

/// Most of a kernel is the same for f16 and bf16. Only f16 has a loss scale.
#[test]
fn every_third_case_in_f16_on_many_multiprocessors() {
    let mut place = 0;
    compare_some(Precision::F16, 64, |case| {
        place += 1;
        place % 3 == 0 || case.precisions == [Precision::F16]
    });
}

/// Cases of weight gradients for tensor cores: the same in bf16 and f16.
fn gradients_on_tensor_cores() -> impl Iterator<Item = Case> {
    let dense = |case: &Case| matches!(&case.kernel, Kernel::Conv2dBackwardWeights(k) if k.conv.groups == 1);
    cases_of(Precision::Bf16).into_iter().filter(dense)
}

/// The GPU of this machine, opened twice, where there is one. With `STRATUS_EXPECT_GPU` there must be one.
fn gpu() -> Option<[Cuda; 2]> {
    let open = || Cuda::open(&Settings::default());
    match open().and_then(|first| Ok([first, open()?])) {
        Ok(gpu) => Some(gpu),
        Err(error) if std::env::var_os("STRATUS_EXPECT_GPU").is_some() => panic!("{error}"),
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}

fn compare_tiles(orders: &[Cuda; 2], cases: &[Case], precision: Precision) {
    // The emulation emulates a Hopper GPU.
    let device = orders[0].describe();
    let hopper = device == "emulated" || device.contains("compute capability 9.0");
    let capability = if hopper { 90 } else { 80 };
    let mut failures = Vec::new();
    for case in cases {
        let expected = case.expected(precision).unwrap();
        for tile in tiles_for(case, capability) {
            let name = format!("stratus:{tile}");
            let failure = compare_by_name(case, precision, &name, &expected, orders).err();
            failures.extend(failure.map(|failure| format!("{precision} {tile} `{}`: {failure}", case.name)));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// The same on the emulation, which is slow: all cases in bf16; in f16, where only the products differ,
/// enough to cover every tile and every way to load elements.
fn compare_tiles_in_emulation(multiprocessors: u32, cases: &[Case]) -> Launched {
    let orders = emulated(multiprocessors);
    compare_tiles(&orders, cases, Precision::Bf16);
    let channels = |case: &Case, input: usize| case.inputs[input].shape[1].is_multiple_of(8);
    let loaded = |case: &Case| [channels(case, 0), channels(case, 1)];
    let first =
        |(place, case): &(usize, &Case)| !cases[..*place].iter().any(|other| loaded(other) == loaded(case));
    let some: Vec<Case> = cases.iter().enumerate().filter(first).map(|(_, case)| case.clone()).collect();
    compare_tiles(&orders, &some, Precision::F16);
    orders[0].launched()
}

#[test]
fn on_a_gpu_every_tile_follows_the_reference() {
    let Some(gpu) = gpu() else { return };
    for precision in [Precision::Bf16, Precision::F16] {
        compare_tiles(&gpu, &gradients_on_tensor_cores().collect::<Vec<_>>(), precision);
        compare_tiles(&gpu, &gradients_in_parts(), precision);
        compare_tiles(&gpu, &gradients_of_many_channels(), precision);
    }
}

/// Pixels enough for several parts.
fn gradients_in_parts() -> Vec<Case> {
    const PIXELS: usize = 1100;
    let mut cases: Vec<Case> = Vec::new();
    for mut case in gradients_on_tensor_cores() {
        let [.., height, width] = case.inputs[1].shape[..] else { continue };
        let channels = case.inputs[0].shape[1];
        let alike = |other: &Case| other.inputs[0].shape[1].is_multiple_of(8) == channels.is_multiple_of(8);
        if height * width < 30 || cases.iter().filter(|other| alike(other)).count() == 2 {
            continue;
        }
        let batch = PIXELS.div_ceil(height * width);
        case.inputs.iter_mut().for_each(|input| input.shape[0] = batch);
        case.name += &format!(" in a batch of {batch}");
        cases.push(case);
    }
    cases
}

#[test]
fn tensor_cores_add_up_parts() {
    compare_tiles_in_emulation(64, &gradients_in_parts());
}

/// Taps of the same 64 channels in one tile.
fn gradients_of_many_channels() -> Vec<Case> {
    let mut cases = Vec::new();
    for mut case in gradients_on_tensor_cores() {
        let Kernel::Conv2dBackwardWeights(kernel) = &mut case.kernel else { continue };
        let conv = &mut kernel.conv;
        let pixels: usize = case.inputs[1].shape[2..].iter().product();
        if conv.bias || conv.kernel[1] < 2 || conv.kernel[0] > 3 || pixels > 200 || cases.len() == 3 {
            continue;
        }
        let channels = [64 * (1 + cases.len() % 2), 72];
        [conv.in_channels, conv.out_channels] = channels;
        case.inputs[0].shape[1] = channels[0];
        case.inputs[1].shape[1] = channels[1];
        case.outputs[0].shape[..2].copy_from_slice(&[channels[1], channels[0]]);
        case.name += &format!(" with {channels:?} channels");
        cases.push(case);
    }
    cases
}

#[test]
fn tensor_cores_take_taps_of_channels_together() {
    compare_tiles_in_emulation(3, &gradients_of_many_channels());
}

#[test]
fn double_precision_is_refused() {
    let cuda = Cuda::emulated().unwrap();
    let suite = Suite::new(&cuda).refusing(|_, _| Some(""));
    suite.run(Precision::F64, &cases_of(Precision::F64)).assert_passed();
}

/// Kernels that no case reaches, sums of tiles and parts, changes of layout and marks: other tests cover
/// them.
const WITHOUT_CASE: [&str; 4] = ["add_parts", "add_tiles", "mark", "reorder"];

/// On three multiprocessors, where every other kernel is reached.
#[test]
fn every_case_reaches_every_kernel() {
    let mut reached = std::thread::scope(|scope| {
        let in_f32 = scope.spawn(|| compare_all(Precision::F32, 3));
        let mut reached = compare_all(Precision::Bf16, 3);
        // Of f16, the kernels that other precisions do not have.
        reached.extend(compare_some(Precision::F16, 3, |case| case.precisions == [Precision::F16]));
        reached.extend(in_f32.join().unwrap());
        reached
    });
    // Plans take the fastest tile by estimate; here each is requested by name.
    reached.extend(compare_tiles_in_emulation(3, &gradients_on_tensor_cores().collect::<Vec<_>>()));
    if let Some(filter) = filter() {
        eprintln!("SKIPPED: CASES={filter} reaches not all");
        return;
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/source");
    let mut unreached = BTreeSet::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let file = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let kernels = text.lines().filter_map(|line| line.strip_prefix("EXPORT(")?.strip_suffix(')'));
        let kernels = kernels.filter(|kernel| !WITHOUT_CASE.contains(kernel));
        unreached.extend(
            kernels
                .filter(|kernel| !reached.iter().any(|(at, name)| *at == file && name == kernel))
                .map(|kernel| format!("{file}: {kernel}")),
        );
    }
    assert!(unreached.is_empty(), "{unreached:?}");
}
