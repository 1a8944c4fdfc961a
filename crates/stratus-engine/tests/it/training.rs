//! A tiny training run: it learns, and it is deterministic.

use crate::common::{digits, fuse, numbers, training_program};
use stratus_engine::passes::lower::{lower, refresh_copies};
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::program::Mode;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::session::{IterationScalars, Metrics};
use stratus_engine::{Choices, Clock, DType, Precision, Session};
use stratus_graph::Initialisation;
use stratus_random::{Purpose, Stream};

const BATCH: usize = 16;
const CLASSES: usize = 4;
const PIXELS: usize = 64;

/// A batch of noisy copies of one prototype per class, in the given type, and their labels.
fn batch(iteration: u64, dtype: DType) -> (Vec<u8>, Vec<u8>) {
    let mut stream = Stream::new(3, Purpose::Synthetic, iteration, 0);
    let (mut images, mut labels) = (vec![0; BATCH * PIXELS * dtype.bytes()], vec![0; BATCH * 4]);
    for n in 0..BATCH {
        let class = stream.below(CLASSES as u32);
        DType::I32.store(&mut labels, n, f64::from(class));
        for (pixel, value) in numbers(PIXELS, 100 + u64::from(class), 1.0).into_iter().enumerate() {
            dtype.store(&mut images, n * PIXELS + pixel, value + 0.3 * f64::from(stream.normal()));
        }
    }
    (images, labels)
}

/// Trains for some iterations; returns the losses, the evaluation of a new batch, and the final state.
fn train(precision: Precision) -> (Vec<f64>, Metrics, Vec<f32>) {
    let graph = digits([1, 8, 8], CLASSES, 4);
    let program = training_program(&graph, precision, BATCH);
    let evaluate = fuse(&lower(&graph, Mode::Evaluate, precision, BATCH).unwrap()).unwrap();
    let mut persistent = Persistent::default();
    let mut plan = |program| {
        Plan::prepare(&ReferenceBackend, program, Choices::default(), false, &mut persistent).unwrap()
    };
    let plans = vec![plan(&program), plan(&evaluate), plan(&refresh_copies(&program).unwrap())];
    let mut session = Session::new(plans, persistent).unwrap();
    for (index, parameter) in graph.parameters.iter().enumerate() {
        let mut stream = Stream::new(4, Purpose::Initialise, index as u64, 0);
        let values: Vec<f32> = (0..parameter.elements())
            .map(|_| match parameter.initialisation {
                Initialisation::Zeros => 0.0,
                Initialisation::Ones => 1.0,
                Initialisation::Uniform { bound } => stream.uniform_between(-bound, bound),
                Initialisation::Normal { std } => std * stream.normal(),
                other => panic!("unexpected first layer {other:?}"),
            })
            .collect();
        session.write(&parameter.name, &values).unwrap();
    }
    let mut clock = Clock::new(program.steps.len());
    session.run(2, &mut [], &mut [], &mut clock, 0).unwrap();
    session.set_iteration_scalars(IterationScalars { learning_rate: 0.02, iteration: 0, seed: 0 }).unwrap();
    let mut losses = Vec::new();
    for iteration in 0..40 {
        let (mut images, mut labels) = batch(iteration, precision.compute());
        clock.begin_iteration();
        session.run(0, &mut images, &mut labels, &mut clock, 0).unwrap();
        losses.push(session.metrics().loss);
    }
    let (mut images, mut labels) = batch(1000, precision.compute());
    session.run(1, &mut images, &mut labels, &mut clock, 0).unwrap();
    let names: Vec<String> = session.state().map(|value| value.name.to_owned()).collect();
    let state = names.iter().flat_map(|name| session.read(name).unwrap()).collect();
    (losses, session.metrics(), state)
}

#[test]
fn training_reduces_the_loss_deterministically() {
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        let (losses, evaluated, state) = train(precision);
        assert!(losses[0] > 1.0, "{losses:?}");
        assert!(losses[35..].iter().sum::<f64>() < 5.0 * 0.2, "{losses:?}");
        assert!(evaluated.samples == BATCH as f64 && evaluated.top1 >= 15.0, "{evaluated:?}");
        let again = train(precision);
        let bits = |state: &[f32]| state.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!((losses, evaluated), (again.0, again.1));
        assert_eq!(bits(&state), bits(&again.2));
    }
}
