//! Helpers for the tests that compare with PyTorch: the numbers of the fixtures, a session that trains on
//! them, and tolerances. See `scripts/fixtures/parity.py`.

use serde::Deserialize;
use stratus_cuda::Cuda;
use stratus_engine::plan::Persistent;
use stratus_engine::session::Inputs;
use stratus_engine::{Backend, Choices, Clock, Plan, Program, Session};
use stratus_onednn::OneDnn;

/// The maximum error of a tensor, relative to its norm.
pub const TOLERANCE: f64 = 1e-4;

/// The maximum error of a tensor as a multiple of that of PyTorch's f32, if that is larger.
pub const AS_PYTORCH: f64 = 4.0;

#[derive(Deserialize)]
pub struct Summary {
    pub norm: f64,
    pub off: f64,
    pub signs: [f64; 4],
    pub at: Vec<f64>,
    pub change: Option<f64>,
}

pub fn fnv1a64(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

pub fn splitmix64(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub fn numbers(name: &str, count: usize) -> impl Iterator<Item = f32> {
    let hash = fnv1a64(name);
    (0..count as u64).map(move |i| {
        let mix = splitmix64(hash.wrapping_add(i));
        (((mix >> 40) as f64 / f64::from(1 << 24) - 0.5) * 2.0) as f32
    })
}

/// A session of one program.
pub fn session(backend: &dyn Backend, program: &Program, choices: Choices) -> Session {
    let mut persistent = Persistent::default();
    let plan = Plan::prepare(backend, program, choices, false, &mut persistent).unwrap();
    Session::on_backend(backend, vec![plan], persistent).unwrap()
}

/// The inputs of a session's program: the batch `batch` with `shape` (N, C, H, W) in the plan's layout, and
/// its labels, one per sample or pixel.
pub fn inputs(session: &Session, batch: &str, shape: &[usize; 4], labels: &[i32]) -> Inputs {
    inputs_of(session, &numbers(batch, shape.iter().product()).collect::<Vec<_>>(), shape, labels)
}

/// The inputs for given pixels; else as [`inputs`].
pub fn inputs_of(session: &Session, pixels: &[f32], shape: &[usize; 4], labels: &[i32]) -> Inputs {
    let mut inputs = session.inputs(0).unwrap();
    let place = session.plan(0).external(0).unwrap();
    let images: &mut [f32] = bytemuck::cast_slice_mut(inputs.images.as_mut_slice());
    place.layout.for_each(shape, |to, from| images[to] = pixels[from]);
    inputs.labels.as_mut_slice().copy_from_slice(bytemuck::cast_slice(labels));
    inputs
}

/// Runs a session's program once; returns the loss.
pub fn run(session: &mut Session, inputs: &mut Inputs) -> f64 {
    let mut clock = Clock::disabled(session.slots(0));
    let (images, labels) = (inputs.images.as_mut_slice(), inputs.labels.as_mut_slice());
    session.run(0, images, labels, &mut clock, 0).unwrap();
    session.metrics().loss
}

/// The largest errors.
#[derive(Default)]
pub struct Worst {
    /// The largest error relative to the norm, of tensors within [`TOLERANCE`].
    pub relative: f64,
    /// Names of tensors that were compared with the error of PyTorch's f32.
    pub loose: Vec<String>,
}

pub fn check(name: &str, got: &[f32], expected: &Summary, worst: &mut Worst) {
    let tight = TOLERANCE * expected.norm;
    let allowed = tight.max(AS_PYTORCH * expected.off);
    let count = got.len() as u64;
    let mut off: f64 = 0.0;
    let signs = |k: usize| -> f64 {
        let hash = fnv1a64(&format!("{name}:sign{k}"));
        let sign = |i: u64| if splitmix64(hash.wrapping_add(i)) >> 63 == 1 { -1.0 } else { 1.0 };
        got.iter().enumerate().map(|(i, value)| sign(i as u64) * f64::from(*value)).sum()
    };
    // The mean square of the projections of a difference on random signs is its squared norm.
    let squares: f64 = (0..4).map(|k| (signs(k) - expected.signs[k]).powi(2)).sum();
    off = off.max((squares / 4.0).sqrt());
    for (j, expected) in expected.at.iter().enumerate() {
        let at = if count <= 8 {
            j as u64
        } else {
            splitmix64(fnv1a64(&format!("{name}:at")).wrapping_add(j as u64)) % count
        };
        off = off.max((f64::from(got[at as usize]) - expected).abs());
    }
    let norm = got.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
    off = off.max((norm - expected.norm).abs());
    assert!(
        off <= allowed,
        "`{name}`: off by {off:.3e}, its norm is {:.3e}, PyTorch's f32 is off by {:.3e}",
        expected.norm,
        expected.off
    );
    if off <= tight {
        worst.relative = worst.relative.max(off / expected.norm.max(1e-30));
    } else {
        worst.loose.push(name.to_owned());
    }
}

pub fn check_loss(step: usize, loss: f64, expected: f64, off: f64) {
    let allowed = (TOLERANCE * expected.abs()).max(AS_PYTORCH * off);
    assert!((loss - expected).abs() <= allowed, "step {step}: loss {loss}, expected {expected}");
}

/// Compares the change by training, which is small compared with the weights.
pub fn check_change(name: &str, got: &[f32], before: &[f32], expected: &Summary) {
    let squares = got.iter().zip(before).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2));
    let change = squares.sum::<f64>().sqrt();
    let expected_change = expected.change.unwrap();
    let allowed = (1e-3 * expected_change).max(AS_PYTORCH * expected.off).max(1e-6 * expected.norm);
    assert!(
        (change - expected_change).abs() <= allowed,
        "`{name}` changed by {change}, expected {expected_change}"
    );
}

/// The oneDNN backend; `None` if it is optional on this machine.
pub fn onednn() -> Option<OneDnn> {
    match OneDnn::load(2) {
        Ok(backend) => Some(backend),
        Err(error) if cfg!(all(target_os = "linux", target_arch = "x86_64")) => {
            panic!("run `make deps` first, which installs oneDNN under .deps: {error}")
        }
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}

/// The GPU without TF32, if there is one. With `STRATUS_EXPECT_GPU` there must be one.
pub fn cuda() -> Option<Cuda> {
    match Cuda::open(&stratus_cuda::Settings::default()) {
        Ok(backend) => Some(backend),
        Err(error) if std::env::var_os("STRATUS_EXPECT_GPU").is_some() => panic!("{error}"),
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}
