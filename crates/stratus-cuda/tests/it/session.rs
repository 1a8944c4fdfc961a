//! A session on an emulated GPU: inputs staged during a run are those of the next run, images may be bytes,
//! and the whole time of a run is attributed to slots.

use half::f16;
use stratus_cuda::Cuda;
use stratus_engine::ops::{LOSS_SCALE_NAME, MAX_IMAGE_CHANNELS, NormalisePixels, SgdUpdate};
use stratus_engine::passes::average::average;
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::fuse::fuse_with;
use stratus_engine::passes::images::with_byte_images;
use stratus_engine::passes::lower::{lower, refresh_copies};
use stratus_engine::passes::update::{Optimiser, Optimisers, update};
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::program::Mode;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::session::{DeviceSlot, IterationScalars};
use stratus_engine::{Backend, Choices, Clock, DType, Precision, Program, Role, Session};
use stratus_graph::Graph;
use stratus_graph::zoo::{self, ModelConfig};

const BATCH: usize = 4;
const PIXELS: usize = 28 * 28;

/// Scale and offset of each channel.
type ScaleShifts = [[f32; 2]; MAX_IMAGE_CHANNELS];

fn digits() -> Graph {
    digits_of([1, 28, 28])
}

/// The digits network for images of a shape.
fn digits_of(input: [usize; 3]) -> Graph {
    let hyper = ModelConfig { input, classes: 10, width: None };
    (zoo::find("digits").unwrap().build)(&hyper).unwrap()
}

/// Applies stochastic gradient descent to a differentiated program.
fn updated(differentiated: &Program) -> Program {
    update(differentiated, sgd()).unwrap()
}

fn sgd() -> Optimiser {
    Optimiser::Sgd(SgdUpdate {
        momentum: 0.9,
        weight_decay: 0.0,
        nesterov: false,
        rate_factor: 1.0,
        loss_scaled: false,
    })
}

/// [`updated`] with clipped gradients and averaged weights.
fn updated_by_recipe(differentiated: &Program) -> Program {
    let optimisers = Optimisers { clip_norm: Some(0.5), ..sgd().into() };
    average(&update(differentiated, optimisers).unwrap(), 0.9).unwrap()
}

/// A training program, an evaluation program and a program that copies weights. Weights are functions of
/// their index.
fn session(backend: &dyn Backend, precision: Precision) -> Session {
    session_of(backend, &digits(), precision, None, updated)
}

/// [`session`] for a network; with `scale_shifts`, its images are bytes.
fn session_of(
    backend: &dyn Backend,
    graph: &Graph,
    precision: Precision,
    scale_shifts: Option<ScaleShifts>,
    updated: fn(&Program) -> Program,
) -> Session {
    let lowered = |mode| {
        let program = fuse_with(&lower(graph, mode, precision, BATCH).unwrap(), backend.fusions()).unwrap();
        match scale_shifts {
            Some(scale_shifts) => with_byte_images(program, scale_shifts).unwrap(),
            None => program,
        }
    };
    let train = updated(&differentiate(&lowered(Mode::Train)).unwrap());
    let copies = refresh_copies(&train).unwrap();
    let mut persistent = Persistent::default();
    let plans = [train, lowered(Mode::Evaluate), copies]
        .map(|program| Plan::prepare(backend, &program, Choices::default(), false, &mut persistent).unwrap());
    let mut session = Session::on_backend(backend, plans.into(), persistent).unwrap();
    for parameter in &graph.parameters {
        let values: Vec<f32> = match parameter.name.rsplit('.').next() {
            Some("running_var") => vec![1.0; parameter.elements()],
            _ => (0..parameter.elements()).map(|i| ((i * 37 % 101) as f32 - 50.0) / 200.0).collect(),
        };
        session.write(&parameter.name, &values).unwrap();
    }
    session.set_iteration_scalars(IterationScalars { learning_rate: 0.05, iteration: 0, seed: 1 }).unwrap();
    let mut clock = Clock::disabled(session.slots(2));
    session.run(2, &mut [], &mut [], &mut clock, 0).unwrap();
    session
}

/// The images of batch `number`.
fn images(number: usize) -> Vec<f32> {
    let pixel = |i: usize| ((i * 7919 + number * 104_729) % 255) as f32 / 127.0 - 1.0;
    (0..BATCH * PIXELS).map(pixel).collect()
}

/// Images, as f32, and labels.
fn batch(number: usize) -> (Vec<u8>, Vec<u8>) {
    let images = images(number);
    let labels: Vec<i32> = (0..BATCH).map(|i| ((i + 3 * number) % 10) as i32).collect();
    (bytemuck::cast_slice(&images).to_vec(), bytemuck::cast_slice(&labels).to_vec())
}

fn weights(session: &Session) -> Vec<u32> {
    let names = digits().parameters;
    names.iter().flat_map(|p| session.read(&p.name).unwrap()).map(f32::to_bits).collect()
}

#[test]
fn a_staged_batch_is_used_by_the_next_run() {
    let backend = Cuda::emulated().unwrap();
    let [mut plain, mut staging] = [(); 2].map(|()| session(&backend, Precision::F32));
    let mut clock = Clock::disabled(plain.slots(0));
    let mut losses = [Vec::new(), Vec::new()];
    for number in 0..4 {
        let (mut images, mut labels) = batch(number);
        plain.run(0, &mut images, &mut labels, &mut clock, 0).unwrap();
        losses[0].push(plain.metrics().loss);
    }
    let (mut images, mut labels) = batch(0);
    staging.launch(0, &mut images, &mut labels, &mut clock, 0).unwrap();
    for number in 1..4 {
        let (images, labels) = batch(number);
        staging.stage(0, &images, &labels).unwrap();
        staging.finish(&mut clock, None).unwrap();
        losses[1].push(staging.metrics().loss);
        // An evaluation in between does not affect the staged batch.
        let (mut others, mut theirs) = batch(40 + number);
        staging.run(1, &mut others, &mut theirs, &mut clock, 0).unwrap();
        assert!(staging.stage(0, &images, &labels).unwrap_err().to_string().contains("already staged"));
        staging.launch(0, &mut [], &mut [], &mut clock, 0).unwrap();
    }
    staging.finish(&mut clock, None).unwrap();
    losses[1].push(staging.metrics().loss);
    assert_eq!(losses[0], losses[1]);
    assert_eq!(weights(&plain), weights(&staging));
    assert!(staging.stage(0, &[], &[]).unwrap_err().to_string().contains("bytes of images and labels"));
}

/// From a loss scale at which gradients overflow to one at which they do not: both runs skip the same
/// iterations, and have the same weights.
#[test]
fn f16_training_matches_the_reference() {
    let backend = Cuda::emulated().unwrap();
    let mut sessions =
        [&backend as &dyn Backend, &ReferenceBackend].map(|backend| session(backend, Precision::F16));
    for session in &mut sessions {
        session.write(LOSS_SCALE_NAME, &[4.0, 0.0, 0.0, 0.0]).unwrap();
        // Small, so that rounding errors do not grow.
        session
            .set_iteration_scalars(IterationScalars { learning_rate: 0.002, iteration: 0, seed: 1 })
            .unwrap();
    }
    for number in 0..6 {
        let losses = sessions.each_mut().map(|session| {
            let mut images: Vec<f16> = images(number).into_iter().map(f16::from_f32).collect();
            let (_, mut labels) = batch(number);
            let mut clock = Clock::disabled(session.slots(0));
            session.run(0, bytemuck::cast_slice_mut(&mut images), &mut labels, &mut clock, 0).unwrap();
            session.metrics().loss
        });
        assert!((losses[0] - losses[1]).abs() < 1e-2 * losses[1], "{number}: {losses:?}");
        let scales = sessions.each_ref().map(|session| session.read(LOSS_SCALE_NAME).unwrap());
        assert_eq!(scales[0], scales[1], "{number}");
    }
    let [_, iterations, _, skipped] = sessions[0].read(LOSS_SCALE_NAME).unwrap()[..] else {
        panic!("four numbers")
    };
    assert!(iterations > 0.0 && skipped > 0.0, "{iterations} {skipped}");
}

/// Clipped gradients, including those of a scaled loss, and averaged weights. The averages are swapped with
/// the weights in the device's memory for evaluation, and back.
#[test]
fn clipping_and_averaging_match_the_reference() {
    let backend = Cuda::emulated().unwrap();
    for (precision, rounding) in [(Precision::F32, 1e-5), (Precision::F16, 1e-2)] {
        let mut sessions = [&backend as &dyn Backend, &ReferenceBackend]
            .map(|backend| session_of(backend, &digits(), precision, None, updated_by_recipe));
        let averages: Vec<[String; 2]> = sessions[0]
            .state()
            .filter_map(|value| Some([value.average_of?.to_owned(), value.name.to_owned()]))
            .collect();
        let mut losses = [Vec::new(), Vec::new()];
        for (session, losses) in sessions.iter_mut().zip(&mut losses) {
            if precision == Precision::F16 {
                session.write(LOSS_SCALE_NAME, &[-4.0, 0.0, 0.0, 0.0]).unwrap();
            }
            for [value, average] in &averages {
                let first = session.read(value).unwrap();
                session.write(average, &first).unwrap();
            }
            let mut run = |session: &mut Session, program: usize, number: usize| {
                let mut halves: Vec<f16> = images(number).into_iter().map(f16::from_f32).collect();
                let (mut images, mut labels) = batch(number);
                let images = match precision {
                    Precision::F16 => bytemuck::cast_slice_mut(&mut halves),
                    _ => images.as_mut_slice(),
                };
                let mut clock = Clock::disabled(session.slots(program));
                session.run(program, images, &mut labels, &mut clock, 0).unwrap();
                losses.push(session.metrics().loss);
            };
            for number in 0..4 {
                session
                    .set_iteration_scalars(IterationScalars {
                        learning_rate: 0.05,
                        iteration: number,
                        seed: 1,
                    })
                    .unwrap();
                run(session, 0, number as usize);
            }
            let before = weights(session);
            run(session, 1, 9);
            for turn in 0..2 {
                averages.iter().for_each(|[value, average]| session.swap(value, average).unwrap());
                let mut clock = Clock::disabled(session.slots(2));
                session.run(2, &mut [], &mut [], &mut clock, 0).unwrap();
                run(session, 1, 9);
                assert_eq!(weights(session) == before, turn == 1);
            }
        }
        let [gpu, reference] = &losses;
        for (gpu, reference) in gpu.iter().zip(reference) {
            assert!((gpu - reference).abs() < rounding * reference, "{precision}: {losses:?}");
        }
        // The averages differ from the weights, which are restored afterwards.
        assert!(gpu[5] != gpu[4] && gpu[6] == gpu[4], "{gpu:?}");
    }
}

/// The losses of training and evaluation, and the final weights.
type Outcome = (Vec<u64>, Vec<u32>);

/// Trains a few steps on channels-last pixels, staged and not, with an evaluation in between.
fn trained(graph: &Graph, precision: Precision, scale_shifts: ScaleShifts, as_bytes: bool) -> Outcome {
    let backend = Cuda::emulated().unwrap();
    assert!(backend.prefers_byte_images());
    let mut session = session_of(&backend, graph, precision, as_bytes.then_some(scale_shifts), updated);
    let place = session.plan(0).external(0).unwrap();
    assert_eq!(place.layout.tag, "nhwc");
    let dtype = session.plan(0).program.values.iter().find(|value| value.role == Role::Images).unwrap().dtype;
    assert_eq!(dtype, if as_bytes { DType::U8 } else { precision.compute() });
    let (channels, count) = (graph.input_shape().0[0], place.layout.elements());
    assert_eq!(place.bytes, count * dtype.bytes());
    let batch = |number: usize| {
        let mut images = vec![0; count * dtype.bytes()];
        let kernel = NormalisePixels { scale_shift: scale_shifts };
        for at in 0..count {
            let pixel = ((at * 7919 + number * 104_729) % 256) as u8;
            let number =
                if as_bytes { f64::from(pixel) } else { f64::from(kernel.normalise(at % channels, pixel)) };
            dtype.store(&mut images, at, number);
        }
        let labels: Vec<i32> = (0..BATCH).map(|i| ((i + 3 * number) % 10) as i32).collect();
        (images, bytemuck::cast_slice(&labels).to_vec())
    };
    let mut clock = Clock::disabled(session.slots(0));
    let mut losses = Vec::new();
    for number in 0..2 {
        let (mut images, mut labels) = batch(number);
        session.run(0, &mut images, &mut labels, &mut clock, 0).unwrap();
        losses.push(session.metrics().loss.to_bits());
        session.run(1, &mut images, &mut labels, &mut clock, 0).unwrap();
        losses.push(session.metrics().loss.to_bits());
        let (images, labels) = batch(10 + number);
        session.stage(0, &images, &labels).unwrap();
        session.run(0, &mut [], &mut [], &mut clock, 0).unwrap();
        losses.push(session.metrics().loss.to_bits());
    }
    let names = graph.parameters.iter().map(|parameter| parameter.name.as_str());
    (losses, names.flat_map(|name| session.read(name).unwrap()).map(f32::to_bits).collect())
}

/// Images as bytes and as the normalised values train to the same bits.
#[test]
fn training_on_bytes_is_bitwise_equal() {
    let scale_shifts =
        [[0.017_124_753, -2.117_904], [0.017_507, -2.035_714], [0.017_429, -1.804_444], [0.004, 0.1]];
    // One shape has a number of pixels per batch that no vector of bf16 divides.
    for shape in [[1, 28, 28], [3, 21, 19], [4, 20, 24]] {
        let graph = digits_of(shape);
        for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
            let [bytes, numbers] =
                [true, false].map(|as_bytes| trained(&graph, precision, scale_shifts, as_bytes));
            assert!(bytes == numbers, "{shape:?} {precision}: {:?} {:?}", bytes.0, numbers.0);
            let losses: Vec<f64> = bytes.0.iter().map(|&bits| f64::from_bits(bits)).collect();
            assert!(losses.iter().all(|loss| loss.is_finite() && *loss > 0.0), "{losses:?}");
        }
    }
}

#[test]
fn the_whole_time_of_a_run_is_attributed_to_slots() {
    let backend = Cuda::emulated().unwrap();
    let mut session = session(&backend, Precision::F32);
    let steps = session.plan(0).program.steps.len();
    assert_eq!(session.slots(0), steps + DeviceSlot::ALL.len());
    let waiting = session.slots(0);
    let mut clock = Clock::new(waiting + 1);
    let begun = clock.last();
    let (mut images, mut labels) = batch(0);
    session.launch(0, &mut images, &mut labels, &mut clock, 0).unwrap();
    session.finish(&mut clock, Some((waiting, 1))).unwrap();
    let wall = clock.last().duration_since(begun).as_nanos() as u64;
    assert_eq!(clock.slots().iter().sum::<u64>(), wall);
    assert!(clock.slots()[..steps].iter().all(|&nanoseconds| nanoseconds > 0));
    assert!(session.device_bytes().unwrap() > session.arena_bytes());
}

/// By the emulated clock, which counts reads by kernels: every step has a time in every run, and from the
/// second run hardly any marker kernels are needed.
#[test]
fn kernels_record_the_times_of_steps() {
    let backend = Cuda::emulated().unwrap();
    let mut session = session(&backend, Precision::F32);
    let steps = session.plan(0).program.steps.len();
    let mut clock = Clock::new(session.slots(0));
    assert_eq!(session.timing_overhead(0), None);
    let mut markers = Vec::new();
    for number in 0..3 {
        let (mut images, mut labels) = batch(number);
        clock.begin_iteration();
        session.run(0, &mut images, &mut labels, &mut clock, 0).unwrap();
        // The clock is read once between two steps, and occasionally at a kernel's end.
        assert!(clock.slots()[..steps].iter().all(|&reads| (1..100).contains(&reads)), "{:?}", clock.slots());
        let [step_ends, marker] = session.timing_overhead(0).unwrap();
        assert_eq!(step_ends, steps);
        markers.push(marker);
    }
    // The first run needs a marker kernel, because it is not known yet that the last step's end is needed.
    assert_eq!(markers, [1, 0, 0]);
    assert!(backend.launched().contains(&("mark", "mark".to_owned())));
}
