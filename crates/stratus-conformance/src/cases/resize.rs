//! Bilinear resizing: up and down, by integer and fractional factors and to odd sizes, with aligned edges and
//! corners; one pixel that fills a map, and a map that becomes one pixel.

use super::{Case, CaseTable, DTypeClass, extents};
use stratus_engine::ops::{Interpolation, ResizeBackward, ResizeForward};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn tests() -> Vec<Case> {
    let to = [
        ([6, 5], [12, 10]),
        ([5, 7], [20, 28]),
        ([4, 6], [9, 13]),
        ([9, 8], [4, 3]),
        ([12, 8], [6, 4]),
        // From and to one pixel, along both axes or one of them, and to the same size.
        ([1, 1], [6, 5]),
        ([5, 6], [1, 1]),
        ([1, 7], [4, 3]),
        ([5, 3], [5, 8]),
        ([4, 3], [4, 3]),
    ];
    let channels = [[2, 16], [3, 11], [1, 1], [1, 33], [2, 19]];
    let mut cases: Vec<Case> = to
        .into_iter()
        .flat_map(|(from, to)| {
            channels.into_iter().flat_map(move |map| {
                [false, true].into_iter().flat_map(move |align_corners| {
                    kernels(Interpolation { align_corners, scale: None, nearest: false }, map, from, to)
                })
            })
        })
        .collect();
    // Scales, which determine the distance between outputs.
    for (scale, from, to) in [
        ([2.0, 4.0], [3, 4], [6, 16]),
        ([1.5, 2.7], [5, 4], [7, 10]),
        ([0.6, 0.3], [9, 11], [5, 3]),
        ([1.9, 1.0], [5, 4], [9, 4]),
    ] {
        for map in channels {
            for align_corners in [false, true] {
                cases.extend(kernels(
                    Interpolation { align_corners, scale: Some(scale), nearest: false },
                    map,
                    from,
                    to,
                ));
            }
        }
    }
    // The nearest pixels.
    for (from, to) in
        [([3, 4], [6, 12]), ([5, 7], [9, 8]), ([9, 8], [4, 3]), ([1, 1], [6, 5]), ([4, 3], [4, 3])]
    {
        for map in channels {
            let nearest = Interpolation { align_corners: false, scale: None, nearest: true };
            cases.extend(kernels(nearest, map, from, to));
        }
    }
    // More rows than fit the caches of threads, and rows many times longer than a vector.
    cases.extend(kernels(
        Interpolation { align_corners: false, scale: None, nearest: false },
        [2, 11],
        [23, 30],
        [90, 120],
    ));
    // Logits have the master precision, and may be computed from maps in the compute precision.
    for (map, class) in [([2, 11], DTypeClass::Master), ([1, 32], DTypeClass::Compute)] {
        let interpolation = Interpolation { align_corners: false, scale: None, nearest: false };
        let ([x, y], name) = shapes(interpolation, map, [3, 4], [7, 9]);
        let forward =
            Case::new(format!("{} to {class:?} logits", name("resize")), ResizeForward { interpolation });
        cases.push(forward.input("x", &x, class).output("y", &y, DTypeClass::Master));
    }
    cases
}

fn benchmarks() -> Vec<Case> {
    let half_pixel = Interpolation { align_corners: false, scale: None, nearest: false };
    [
        // The last layer of a network on CamVid, DeepLab's decoder, and its image pooling.
        ([8, 11], [90, 120], [360, 480]),
        ([8, 256], [23, 30], [90, 120]),
        ([8, 256], [1, 1], [23, 30]),
        // An image half as large.
        ([8, 64], [90, 120], [45, 60]),
    ]
    .into_iter()
    .flat_map(|(map, from, to)| kernels(half_pixel, map, from, to))
    .collect()
}

/// The shapes of both maps, and the name of a kernel's case.
fn shapes(
    interpolation: Interpolation,
    [batch, channels]: [usize; 2],
    from: [usize; 2],
    to: [usize; 2],
) -> ([[usize; 4]; 2], impl Fn(&str) -> String) {
    let [x, y] = [from, to].map(|[height, width]| [batch, channels, height, width]);
    let name = move |kernel: &str| {
        let scale = interpolation.scale.map_or(String::new(), |scale| format!(" by {scale:?}"));
        let corners = if interpolation.align_corners { " corners aligned" } else { "" };
        let nearest = if interpolation.nearest { " nearest" } else { "" };
        format!("{kernel} {} to {}{scale}{corners}{nearest}", extents(&x), extents(&to))
    };
    ([x, y], name)
}

fn kernels(interpolation: Interpolation, map: [usize; 2], from: [usize; 2], to: [usize; 2]) -> Vec<Case> {
    let ([x, y], name) = shapes(interpolation, map, from, to);
    let forward = Case::new(name("resize"), ResizeForward { interpolation })
        .input("x", &x, DTypeClass::Compute)
        .output("y", &y, DTypeClass::Compute);
    let backward = Case::new(name("resize_backward"), ResizeBackward { interpolation })
        .input("dy", &y, DTypeClass::Compute)
        .output("dx", &x, DTypeClass::Compute);
    vec![forward, backward]
}
