//! Small networks with all programs of a training run over the same parameters, against the reference
//! backend.

use crate::common::network::{
    Run, Tensor, WHOLE, branches, choices, digits, offered, siblings, training_by, training_in_micro_batches,
    training_program,
};
use crate::common::{LAYOUTS, PRECISIONS, backend, precisions};
use stratus_engine::ops::{Adaptive, AdaptiveUpdate};
use stratus_engine::passes::update::Optimiser;
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{Backend, Choices, Kernel, Precision};
use stratus_graph::ops::example_networks;
use stratus_graph::{Graph, layer_file};
use stratus_onednn::OneDnn;

/// Losses and everything that outlives an iteration.
type Outcome = (Vec<f64>, Vec<Tensor>);

/// Trains two batches and a shorter one; evaluates before and after.
fn train(
    backend: &dyn Backend,
    graph: &Graph,
    precision: Precision,
    batch: usize,
    layout: &str,
    tile_bytes: usize,
) -> Outcome {
    follow(Run::new(backend, graph, precision, batch, Some(layout), tile_bytes).unwrap())
}

fn follow(mut run: Run) -> Outcome {
    let programs = [2, 0, 1, 0, 2].into_iter().enumerate();
    let losses = programs.map(|(seed, program)| run.execute(program, seed).unwrap().loss).collect();
    (losses, run.state())
}

/// The distances between two outcomes: losses (the largest relative difference), velocities, and the rest of
/// the state (the mean over the tensors of differences relative to their norms).
fn distances(from: &Outcome, to: &Outcome) -> [f64; 3] {
    let losses = from.0.iter().zip(&to.0).map(|(a, b)| (a - b).abs() / a.abs().max(1.0)).fold(0.0, f64::max);
    let norm =
        |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
    let mean = |velocities: bool| {
        let mut distances = Vec::new();
        for (from, to) in from.1.iter().zip(&to.1) {
            assert_eq!(from.name, to.name);
            if from.is_velocity == velocities {
                let difference = norm(&mut from.values.iter().zip(&to.values).map(|(a, b)| a - b));
                distances.push(difference / (norm(&mut from.values.iter().copied()) + 1e-3));
            }
        }
        distances.iter().sum::<f64>() / distances.len() as f64
    };
    [losses, mean(true), mean(false)]
}

/// In f32, losses and state match the reference's up to rounding. In bf16, where sums in another order are
/// rounded to other neighbours, they are as close to the f32 reference as the bf16 reference is. A single
/// pixel that rounding moves across ReLU's threshold, or to another argmax, changes a gradient far more than
/// rounding does: velocities have tolerance for a few.
fn check(backend: &OneDnn, graph: &Graph, batch: usize, in_tiles: usize) {
    let [exact, rounded] = PRECISIONS.map(|p| train(&ReferenceBackend, graph, p, batch, "plain", WHOLE));
    let ways = LAYOUTS.map(|layout| [(layout, WHOLE), (layout, in_tiles)]).concat();
    for (precision, (layout, tile)) in
        precisions(backend).into_iter().flat_map(|p| ways.iter().map(move |way| (p, *way)))
    {
        let (name, input) = (&graph.name, graph.input_shape());
        let context = format!("{precision} {name} of {input} batch {batch} {layout} in {tile} bytes");
        let program = training_program(graph, precision, batch, tile);
        // After a stem, tiling the maps of a few samples is not always worthwhile.
        if batch != 7 || !matches!(program.steps[0].kernel, Kernel::StemStatistics(_)) {
            let whole = tile == WHOLE || batch == 1;
            assert_eq!(program.sections.is_empty(), whole, "{context}: {:?}", program.sections);
        }
        let got = train(backend, graph, precision, batch, layout, tile);
        expect_near(&got, precision, [&exact, &rounded], &context);
        if batch == 7 {
            continue;
        }
        // Repeating the run gives the same bits.
        assert_eq!(train(backend, graph, precision, batch, layout, tile), got, "{context}");
    }
}

/// See [`check`]; `expected` holds the reference's outcomes in f32 and in bf16.
fn expect_near(got: &Outcome, precision: Precision, [exact, rounded]: [&Outcome; 2], context: &str) {
    let allowed = match precision {
        Precision::F32 => [1e-4, 2e-2, 1e-4],
        _ => distances(exact, rounded).map(|distance| 2.0 * distance + 1e-2),
    };
    let differences = distances(exact, got);
    let near = differences.iter().zip(&allowed).all(|(difference, allowed)| difference < allowed);
    assert!(
        near,
        "{context}: losses, velocities and the rest differ by {differences:.6?}, allowed {allowed:.6?}"
    );
}

#[test]
fn every_example_of_an_operation_matches_the_reference() {
    let Some(backend) = backend(2) else { return };
    for graph in example_networks().unwrap() {
        let run = |backend: &dyn Backend, precision, layout: &str| {
            train(backend, &graph, precision, 6, layout, WHOLE)
        };
        let [exact, rounded] = PRECISIONS.map(|precision| run(&ReferenceBackend, precision, "plain"));
        for precision in precisions(&backend) {
            for layout in LAYOUTS {
                let context = format!("{precision} {} {layout}", graph.name);
                expect_near(&run(&backend, precision, layout), precision, [&exact, &rounded], &context);
            }
        }
    }
}

/// Every other optimiser, on layers that the other networks do not have: blocked weights, matrices, and their
/// copies.
#[test]
fn every_optimiser_matches_the_reference() {
    let Some(backend) = backend(2) else { return };
    let graph = layer_file::parse(
        "name = 'smooth'\ninput = [3, 9, 8]\n\
         [[layer]]\nname = 'conv1'\nop = 'conv2d'\nout_channels = 32\nkernel = 3\n\
         [[layer]]\nname = 'norm1'\nop = 'batch_norm2d'\n\
         [[layer]]\nname = 'gelu1'\nop = 'gelu'\n\
         [[layer]]\nname = 'silu'\nop = 'silu'\n\
         [[layer]]\nname = 'squeeze'\nop = 'adaptive_avg_pool2d'\noutput = 1\n\
         [[layer]]\nname = 'excite'\nop = 'conv2d'\nout_channels = 32\nkernel = 1\n\
         [[layer]]\nname = 'gate'\nop = 'hard_sigmoid'\n\
         [[layer]]\nname = 'scaled'\nop = 'channel_scale'\ninputs = ['silu', 'gate']\n\
         [[layer]]\nname = 'swish'\nop = 'hard_swish'\n\
         [[layer]]\nname = 'slopes'\nop = 'prelu'\nper_channel = true\n\
         [[layer]]\nname = 'mish'\nop = 'mish'\n\
         [[layer]]\nname = 'shuffle'\nop = 'channel_shuffle'\ngroups = 4\n\
         [[layer]]\nname = 'half'\nop = 'channel_slice'\nfirst = 10\nchannels = 19\n\
         [[layer]]\nname = 'joined'\nop = 'concat'\ninputs = ['shuffle', 'half']\n\
         [[layer]]\nname = 'norm'\nop = 'layer_norm2d'\n\
         [[layer]]\nname = 'wide'\nop = 'pointwise_linear'\nout_channels = 23\n\
         [[layer]]\nname = 'small'\nop = 'layer_scale'\ninitial = 0.5\n\
         [[layer]]\nname = 'conv2'\nop = 'conv2d'\nout_channels = 32\nkernel = 3\n\
         [[layer]]\nname = 'gelu2'\nop = 'gelu'\n\
         [[layer]]\nname = 'up'\nop = 'resize'\nscale = 1.5\n\
         [[layer]]\nname = 'down'\nop = 'resize'\nsize = [3, 4]\nalign_corners = true\n\
         [[layer]]\nname = 'deconv'\nop = 'conv_transpose2d'\nout_channels = 20\nkernel = 3\n\
         stride = 2\npadding = 1\noutput_padding = [1, 0]\n\
         [[layer]]\nname = 'dropout'\nop = 'dropout2d'\np = 0.3\n\
         [[layer]]\nname = 'flatten'\nop = 'flatten'\n\
         [[layer]]\nname = 'fc1'\nop = 'linear'\nout_features = 20\n\
         [[layer]]\nname = 'gelu3'\nop = 'gelu'\n\
         [[layer]]\nname = 'slope'\nop = 'prelu'\n\
         [[layer]]\nname = 'elu'\nop = 'elu'\n\
         [[layer]]\nname = 'leaky'\nop = 'leaky_relu'\nalpha = 0.2\n\
         [[layer]]\nname = 'sigmoid'\nop = 'sigmoid'\n\
         [[layer]]\nname = 'fc2'\nop = 'linear'\nout_features = 10\n",
    )
    .unwrap();
    let epsilon = 1e-2;
    for rule in [
        Adaptive::Adam { betas: [0.9, 0.999], epsilon, decoupled: false },
        Adaptive::Adam { betas: [0.9, 0.999], epsilon, decoupled: true },
        Adaptive::Adagrad { epsilon },
        Adaptive::Adadelta { rho: 0.9, epsilon },
    ] {
        let optimiser = Optimiser::Adaptive(AdaptiveUpdate {
            rule,
            weight_decay: 1e-2,
            rate_factor: 1.0,
            loss_scaled: false,
        });
        let run = |backend: &dyn Backend, precision, layout: &str| {
            let program = training_by(optimiser, &graph, precision, 6);
            follow(
                Run::with_choices(backend, &graph, &program, Some(layout), WHOLE, &Choices::default())
                    .unwrap(),
            )
        };
        let [exact, rounded] = PRECISIONS.map(|precision| run(&ReferenceBackend, precision, "plain"));
        for precision in precisions(&backend) {
            for layout in LAYOUTS {
                let got = run(&backend, precision, layout);
                expect_near(&got, precision, [&exact, &rounded], &format!("{precision} {rule:?} {layout}"));
            }
        }
    }
}

/// Weights whose gradient is computed but not applied, with trained biases, and vice versa.
#[test]
fn separately_frozen_parameters_match_the_reference() {
    let Some(backend) = backend(2) else { return };
    let mut some = branches();
    some.freeze(&["conv2.weight", "conv3.bias", "conv4.weight", "bn1.weight", "bn2.bias", "fc1.weight"])
        .unwrap();
    check(&backend, &some, 16, 16 * 1000);
    // The first convolution is a stem in evaluation, and not one in training.
    for first in ["layer1.0", "layer1.0.weight"] {
        let mut stem = digits([1, 15, 17], 8);
        stem.freeze(&[first, "layer2.1.weight"]).unwrap();
        check(&backend, &stem, 7, 7 * 8 * 15 * 17);
    }
}

/// Micro-batches match the reference's, which the engine's tests compare with the definition.
#[test]
fn micro_batches_match_the_reference() {
    let Some(backend) = backend(2) else { return };
    let graphs = [(branches(), 2), (digits([3, 9, 8], 8), 4), (digits([1, 9, 8], 8), 4), (siblings(), 4)];
    for (graph, count) in graphs {
        let run = |backend: &dyn Backend, precision, layout: Option<&str>| {
            let program = training_in_micro_batches(&graph, precision, 16, count);
            let run =
                Run::with_choices(backend, &graph, &program, layout, WHOLE, &Choices::default()).unwrap();
            assert!(run.session.plan(0).program.sections.iter().all(|section| section.micro_batches));
            follow(run)
        };
        let [exact, rounded] = PRECISIONS.map(|precision| run(&ReferenceBackend, precision, Some("plain")));
        for precision in precisions(&backend) {
            for layout in [Some("nhwc"), Some("nChw16c"), None] {
                let context = format!("{precision} {} {layout:?} in {count} parts", graph.name);
                expect_near(&run(&backend, precision, layout), precision, [&exact, &rounded], &context);
            }
        }
    }
}

fn check_digits(backend: &OneDnn, input: [usize; 3], width: usize, batch: usize) {
    // Tiles of about a third of the largest step's operands, without a stem.
    check(backend, &digits(input, width), batch, batch * width * input[1] * input[2]);
}

#[test]
fn three_steps_of_digits_match_the_reference_on_one_thread() {
    let Some(one) = backend(1) else { return };
    for input in [[1, 28, 28], [1, 15, 17]] {
        for width in [8, 5, 16, 20] {
            check_digits(&one, input, width, 7);
        }
    }
}

#[test]
fn three_steps_of_digits_match_the_reference_on_two_threads() {
    let Some(two) = backend(2) else { return };
    for (input, width, batch) in
        [([1, 15, 17], 5, 1), ([1, 28, 28], 16, 1), ([1, 28, 28], 8, 64), ([3, 15, 17], 20, 64)]
    {
        check_digits(&two, input, width, batch);
    }
}

#[test]
fn three_steps_of_branches_match_the_reference() {
    let Some(two) = backend(2) else { return };
    for batch in [1, 7, 16] {
        check(&two, &branches(), batch, batch * 1000);
    }
}

#[test]
fn measured_plans_match_the_reference() {
    let Some(backend) = backend(2) else { return };
    let graphs = [(digits([1, 28, 28], 8), 1 << 18), (branches(), 1 << 14)];
    let runs = precisions(&backend).into_iter().flat_map(|p| graphs.each_ref().map(|g| (p, g)));
    for (precision, (graph, tile)) in runs {
        let mut measured = Run::new(&backend, graph, precision, 64, None, *tile).unwrap();
        let mut reference = Run::new(&ReferenceBackend, graph, precision, 64, Some("plain"), WHOLE).unwrap();
        for (seed, program) in [0, 1, 0, 2].into_iter().enumerate() {
            let (got, expected) =
                (measured.execute(program, seed).unwrap(), reference.execute(program, seed).unwrap());
            assert!((got.loss - expected.loss).abs() < 2e-2, "{precision}: {got:?}, expected {expected:?}");
        }
    }
}

#[test]
fn a_measured_plan_is_reproduced_by_its_choices() {
    let Some(backend) = backend(2) else { return };
    let Some(other) = crate::common::backend(2) else { return };
    for precision in precisions(&backend) {
        let program = training_program(&digits([1, 28, 28], 8), precision, 64, 1 << 18);
        let plan = |backend: &OneDnn, choices: &Choices, measure| {
            Plan::prepare(backend, &program, choices.clone(), measure, &mut Persistent::default())
                .unwrap()
                .plan
        };
        let first = plan(&backend, &Choices::default(), true);
        assert!(!first.choices.layouts.is_empty() && !first.choices.implementations.is_empty());
        assert_eq!(plan(&backend, &first.choices, false), first);
        // As after a restart: descriptors of blocked layouts are recreated.
        assert_eq!(plan(&other, &first.choices, true), first);
    }
}

/// The implementation chosen by name is the one that runs, including those with reordered weights.
#[test]
fn every_implementation_can_be_chosen_by_name() {
    let Some(backend) = backend(2) else { return };
    let program = training_program(&digits([1, 15, 17], 20), Precision::F32, 7, WHOLE);
    let mut reordered = 0;
    for layout in LAYOUTS {
        let prepare = |choices: Choices| {
            Plan::prepare(&backend, &program, choices, false, &mut Persistent::default()).map(|p| p.plan)
        };
        let base = prepare(choices(&program, layout)).unwrap();
        for key in base.choices.implementations.keys() {
            let plan_with = |name: &str| {
                let mut choices = base.choices.clone();
                choices.implementations.insert(key.clone(), name.to_owned());
                prepare(choices)
            };
            let offered = offered(&backend, &program, &base.choices, key);
            assert!(!offered.is_empty(), "{key}");
            for name in &offered {
                // An implementation may be unavailable if the weights have another layout by then.
                let Ok(plan) = plan_with(name) else { continue };
                assert_eq!(plan.choices.implementations[key], *name);
                reordered += usize::from(name.ends_with("+reorder"));
            }
        }
    }
    assert!(reordered > 0, "no implementation with reordered weights was found");
}

#[test]
fn a_session_runs_on_another_thread_than_the_one_that_prepared_it() {
    let Some(backend) = backend(2) else { return };
    let graph = digits([1, 28, 28], 8);
    let losses =
        |run: &mut Run| -> Vec<f64> { (0..3).map(|seed| run.execute(0, seed).unwrap().loss).collect() };
    for precision in precisions(&backend) {
        let mut here = Run::new(&backend, &graph, precision, 7, Some("nhwc"), WHOLE).unwrap();
        let mut there = Run::new(&backend, &graph, precision, 7, Some("nhwc"), WHOLE).unwrap();
        let mut elsewhere = Run::new(&backend, &graph, precision, 7, Some("nhwc"), WHOLE).unwrap();
        // Two sessions run at once on other threads, and then one on this thread.
        let (second, third) = std::thread::scope(|scope| {
            let second = scope.spawn(|| losses(&mut there));
            let third = scope.spawn(|| losses(&mut elsewhere));
            (second.join().unwrap(), third.join().unwrap())
        });
        let first = losses(&mut here);
        assert_eq!((&second, &third), (&first, &first));
        // Sessions may be dropped on another thread.
        std::thread::spawn(move || drop((there, elsewhere))).join().unwrap();
    }
}

#[test]
fn a_session_outlives_the_backend() {
    let Some(backend) = backend(2) else { return };
    let mut run =
        Run::new(&backend, &digits([1, 15, 17], 5), Precision::F32, 7, Some("nChw16c"), WHOLE).unwrap();
    let before = run.execute(2, 0).unwrap();
    drop(backend);
    assert_eq!(run.execute(2, 0).unwrap(), before);
}
