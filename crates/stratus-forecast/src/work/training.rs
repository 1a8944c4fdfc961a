//! The program of a training step by default settings: for benchmarks of networks of the zoo, which have no
//! experiment. An experiment's own program is `stratus-train`'s.

use stratus_engine::ops::SgdUpdate;
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::fuse::{Fusions, fuse_as};
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::tile::tile;
use stratus_engine::passes::update::{LARGE, Optimiser, update, update_joined};
use stratus_engine::program::Mode;
use stratus_engine::{EngineError, Precision, Program};
use stratus_graph::Graph;

/// What a program is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Stratus on a GPU.
    Gpu,
    /// Stratus on a processor, whose second-level caches hold so many bytes.
    Cpu {
        /// Of all its cores.
        cache_bytes: usize,
    },
    /// A framework that fuses nothing.
    Unfused,
}

/// Bytes of the second-level cache of one core, where the processor is not here: the least of today's.
pub const SECOND_LEVEL: usize = 1 << 20;
/// Kernels share a tile's samples out: with fewer than this they lose more than caches give.
const FEWEST_SAMPLES: usize = 32;

/// A training step with SGD and momentum, without it where nothing is fused.
///
/// # Errors
/// Where the network cannot be lowered or differentiated.
pub fn training(
    graph: &Graph,
    batch: usize,
    precision: Precision,
    target: Target,
) -> Result<Program, EngineError> {
    let sgd = |momentum: f32| {
        let rule = SgdUpdate { momentum, weight_decay: 1e-4, nesterov: false, rate: 1.0, scaled: false };
        Optimiser::Sgd(rule)
    };
    let forward = lower(graph, Mode::Train, precision, batch)?;
    match target {
        Target::Unfused => update(&differentiate(&forward)?, sgd(0.0)),
        Target::Gpu => {
            let fused = fuse_as(&forward, Fusions { stems: false, ..Fusions::default() })?;
            update_joined(&differentiate(&fused)?, sgd(0.9), LARGE)
        }
        Target::Cpu { cache_bytes } => {
            let fused = fuse_as(&forward, Fusions::default())?;
            let tiled = tile(&differentiate(&fused)?, cache_bytes, FEWEST_SAMPLES)?;
            update_joined(&tiled, sgd(0.9), LARGE)
        }
    }
}
