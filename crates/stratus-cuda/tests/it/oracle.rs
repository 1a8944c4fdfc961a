//! Every case of the case tables against the reference backend, on an emulated GPU, where plain native
//! kernels replace cuDNN and cuBLAS.
//!
//! The environment variable CASES restricts a run to cases whose name or kernel contains it.

use crate::common::{compare_by_name, covering, emulated, tiles_for};
use std::collections::BTreeSet;
use stratus_conformance::{Case, Suite, cases};
use stratus_cuda::{Cuda, Settings};
use stratus_engine::backend::Backend;
use stratus_engine::ops::KernelSpec;
use stratus_engine::{Kernel, Precision};
use stratus_graph::ops::Activation;
use stratus_testing::sample::{is_thorough, sample};

/// Kernels, each with the file of its source.
type Launched = BTreeSet<(&'static str, String)>;

/// The filter of cases.
fn filter() -> Option<String> {
    std::env::var("CASES").ok().filter(|filter| !filter.is_empty())
}

fn cases_of(precision: Precision) -> Vec<Case> {
    let filter = filter().unwrap_or_default();
    let wanted = |case: &Case| case.name.contains(&filter) || case.kernel.name().contains(&filter);
    cases::for_precision(precision).into_iter().filter(wanted).collect()
}

/// Compares cases in order and in reverse: the same bits for every order of threads and blocks.
fn compare(precision: Precision, multiprocessors: u32, cases: &[Case]) -> Launched {
    let [forwards, backwards] = emulated(multiprocessors);
    if cases.is_empty() {
        eprintln!("SKIPPED: no case matches CASES in {precision}");
        return Launched::new();
    }
    Suite::new(&forwards).same_bits_as(&backwards).run(precision, cases).assert_passed();
    forwards.launched()
}

/// On many multiprocessors. `make test` runs a different third of the cases in each precision.
#[test]
fn cases_in_f32_agree_on_many_multiprocessors() {
    compare(Precision::F32, 64, &covering(cases_of(Precision::F32), 3, 0));
}

#[test]
fn cases_in_bf16_agree_on_many_multiprocessors() {
    compare(Precision::Bf16, 64, &covering(cases_of(Precision::Bf16), 3, 1));
}

/// Only f16 has a loss scale.
#[test]
fn cases_in_f16_agree_on_many_multiprocessors() {
    let is_own = |case: &Case| case.precisions == [Precision::F16];
    let (only_f16, others): (Vec<_>, Vec<_>) = cases_of(Precision::F16).into_iter().partition(is_own);
    let cases: Vec<Case> = only_f16.into_iter().chain(covering(others, 3, 2)).collect();
    compare(Precision::F16, 64, &cases);
}

/// Cases of weight gradients for tensor cores: the same in bf16 and f16.
fn gradients_on_tensor_cores() -> impl Iterator<Item = Case> {
    let dense = |case: &Case| matches!(&case.kernel, Kernel::Conv2dBackwardWeights(k) if k.conv.groups == 1);
    cases_of(Precision::Bf16).into_iter().filter(dense)
}

/// The GPU of this machine, opened twice, if there is one. With `STRATUS_EXPECT_GPU` there must be one.
pub fn gpu() -> Option<[Cuda; 2]> {
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

/// Compares every `step`-th tile of each case; the next case begins with the next tile.
fn compare_tiles(orders: &[Cuda; 2], cases: &[Case], precision: Precision, step: usize) {
    // The emulation emulates a Hopper GPU.
    let device = orders[0].describe();
    let hopper = device.starts_with("emulated") || device.contains("compute capability 9.0");
    let capability = if hopper { 90 } else { 80 };
    let mut failures = Vec::new();
    for (position, case) in cases.iter().enumerate() {
        let expected = case.expected(precision).unwrap();
        for tile in sample(tiles_for(case, capability), step, position) {
            let name = format!("stratus:{tile}");
            let failure = compare_by_name(case, precision, &name, &expected, orders).err();
            failures.extend(failure.map(|failure| format!("{precision} {tile} `{}`: {failure}", case.name)));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// [`compare_tiles`] on the slow emulation: all cases in bf16, in `make test` by a third of the tiles; in
/// f16, where only the products differ, enough to cover every tile and every way to load elements.
fn compare_tiles_in_emulation(multiprocessors: u32, cases: &[Case]) -> Launched {
    let orders = emulated(multiprocessors);
    compare_tiles(&orders, cases, Precision::Bf16, 3);
    let channels = |case: &Case, input: usize| case.inputs[input].shape[1].is_multiple_of(8);
    let loaded = |case: &Case| [channels(case, 0), channels(case, 1)];
    let first =
        |(place, case): &(usize, &Case)| !cases[..*place].iter().any(|other| loaded(other) == loaded(case));
    let some: Vec<Case> = cases.iter().enumerate().filter(first).map(|(_, case)| case.clone()).collect();
    compare_tiles(&orders, &some, Precision::F16, 2);
    orders[0].launched()
}

#[test]
fn every_tile_matches_the_reference_on_a_gpu() {
    let Some(gpu) = gpu() else { return };
    for precision in [Precision::Bf16, Precision::F16] {
        compare_tiles(&gpu, &gradients_on_tensor_cores().collect::<Vec<_>>(), precision, 1);
        compare_tiles(&gpu, &gradients_in_parts(), precision, 1);
        compare_tiles(&gpu, &gradients_of_many_channels(), precision, 1);
    }
}

/// Enough pixels for several parts.
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
fn split_gradients_on_tensor_cores_match_the_reference() {
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
fn gradients_with_taps_sharing_channels_match_the_reference() {
    compare_tiles_in_emulation(3, &gradients_of_many_channels());
}

#[test]
fn refuses_double_precision() {
    let cuda = Cuda::emulated().unwrap();
    let suite = Suite::new(&cuda).expecting_errors(|_, _| Some(""));
    suite.run(Precision::F64, &cases_of(Precision::F64)).assert_passed();
}

/// Kernels without a case: sums of tiles and parts, changes of layout and markers. Other tests cover them.
const WITHOUT_CASE: [&str; 8] = [
    "add_parts",
    "add_received",
    "add_rounded",
    "add_tiles",
    "mark",
    "reorder",
    "round_values",
    "widen_values",
];

/// The kernels of all sources that `reached` lacks. Those of activations are generated from their table.
fn unreached(reached: &Launched) -> BTreeSet<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/source");
    let activations = Activation::all();
    let kernels =
        |activation: &Activation| ["forward", "backward"].map(|pass| format!("{}_{pass}", activation.name()));
    let generated = activations.iter().flat_map(kernels);
    let is_missing = |kernel: &String| !reached.contains(&("activation", kernel.clone()));
    let mut unreached: BTreeSet<String> =
        generated.filter(is_missing).map(|kernel| format!("activation: {kernel}")).collect();
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
    unreached
}

/// On three multiprocessors, where every other kernel is reached. `make test` stops at the third of the cases
/// by which all kernels are reached.
#[test]
fn cases_reach_every_kernel() {
    // Plans take the fastest tile by estimate; here each is requested by name.
    let mut reached = compare_tiles_in_emulation(3, &gradients_on_tensor_cores().collect::<Vec<_>>());
    // Of f16, only the kernels that other precisions do not have.
    let only_f16 = |case: &Case| case.precisions == [Precision::F16];
    let cases: Vec<Case> = cases_of(Precision::F16).into_iter().filter(only_f16).collect();
    reached.extend(compare(Precision::F16, 3, &cases));
    for offset in 0..3 {
        std::thread::scope(|scope| {
            let compare_third =
                |precision, offset| compare(precision, 3, &covering(cases_of(precision), 3, offset));
            let in_f32 = scope.spawn(move || compare_third(Precision::F32, offset));
            reached.extend(compare_third(Precision::Bf16, offset + 1));
            reached.extend(in_f32.join().unwrap());
        });
        // A sample of all cases is all of them.
        if is_thorough() || unreached(&reached).is_empty() {
            break;
        }
    }
    if let Some(filter) = filter() {
        eprintln!("SKIPPED: CASES={filter} does not reach every kernel");
        return;
    }
    assert_eq!(unreached(&reached), BTreeSet::new());
}
