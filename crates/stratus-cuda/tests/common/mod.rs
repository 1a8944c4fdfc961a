//! What several tests share.

use stratus_engine::Kernel;
use stratus_engine::cases::Case;

/// The tiles of the kernels that make gradients of weights on tensor cores.
const TILES: [&str; 14] = [
    "tensor:128x256",
    "tensor:128x128",
    "tensor:64x256",
    "tensor:64x192",
    "tensor:64x192:cached",
    "tensor:128x64",
    "tensor:64x64",
    "tensor:32x64",
    "wgmma:128x256",
    "wgmma:256x128",
    "wgmma:128x192:cached",
    "wgmma:128x128",
    "wgmma:64x256",
    "wgmma:64x576:cached",
];

/// Those that a case in bf16 can be run by on a GPU of a compute capability, as 90 for 9.0.
pub fn tiles_for(case: &Case, capability: u32) -> impl Iterator<Item = &'static str> {
    let dense = matches!(&case.kernel, Kernel::Conv2dBackwardWeights(k) if k.conv.groups == 1);
    let channels = |input: usize| case.inputs.get(input).map_or(1, |input| input.shape[1]);
    let hopper = dense && capability == 90 && [0, 1].iter().all(|&input| channels(input).is_multiple_of(8));
    TILES.into_iter().filter(move |tile| dense && (hopper || !tile.starts_with("wgmma")))
}
