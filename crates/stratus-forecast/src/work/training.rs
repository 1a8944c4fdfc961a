//! The program of a training step with default settings, for benchmarks of networks of the zoo without an
//! experiment. Programs of experiments are made by `stratus-train`.

use stratus_engine::fusions::Fusions;
use stratus_engine::ops::SgdUpdate;
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::fuse::fuse_with;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::tile::tile;
use stratus_engine::passes::update::{MIN_FUSED_UPDATE_WEIGHTS, Optimiser, update, update_with_threshold};
use stratus_engine::program::Mode;
use stratus_engine::{EngineError, Precision, Program};
use stratus_graph::Graph;

/// The target of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Stratus on a GPU.
    Gpu,
    /// Stratus on a CPU.
    Cpu {
        /// Total bytes of the L2 caches of all cores.
        cache_bytes: usize,
    },
    /// A framework without fusion.
    Unfused,
}

/// Bytes of the L2 cache of one core of an unavailable CPU: the minimum of current CPUs.
pub const L2_BYTES_PER_CORE: usize = 1 << 20;
/// The minimum number of samples of a tile, which are divided among threads. For fewer, tiling costs more
/// than caches gain.
const MIN_TILE_SAMPLES: usize = 32;

/// The program of a training step with SGD, with momentum unless the target is [`Target::Unfused`].
///
/// # Errors
/// If the network cannot be lowered or differentiated.
pub fn training(
    graph: &Graph,
    batch: usize,
    precision: Precision,
    target: Target,
) -> Result<Program, EngineError> {
    let sgd = |momentum: f32| {
        let rule =
            SgdUpdate { momentum, weight_decay: 1e-4, nesterov: false, rate_factor: 1.0, loss_scaled: false };
        Optimiser::Sgd(rule)
    };
    let forward = lower(graph, Mode::Train, precision, batch)?;
    match target {
        Target::Unfused => update(&differentiate(&forward)?, sgd(0.0)),
        Target::Gpu => {
            let fused = fuse_with(&forward, Fusions { stem: false, ..Fusions::default() })?;
            update_with_threshold(&differentiate(&fused)?, sgd(0.9), MIN_FUSED_UPDATE_WEIGHTS)
        }
        Target::Cpu { cache_bytes } => {
            let fused = fuse_with(&forward, Fusions::default())?;
            let tiled = tile(&differentiate(&fused)?, cache_bytes, MIN_TILE_SAMPLES)?;
            update_with_threshold(&tiled, sgd(0.9), MIN_FUSED_UPDATE_WEIGHTS)
        }
    }
}
