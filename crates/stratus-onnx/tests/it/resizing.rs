//! Import of `Resize`, supported and unsupported.

use crate::limits::{field, message, model_of};
use std::collections::BTreeMap;
use stratus_graph::ops::{Resize, ResizeTo};
use stratus_graph::{GraphBuilder, Op, Shape};
use stratus_onnx::{ImportOptions, Model, write};

/// An attribute with a string or integers.
fn attribute(name: &str, value: &str) -> Vec<u8> {
    let numbers: Option<Vec<u8>> = value.split(',').map(|number| number.parse().ok()).collect();
    let value = match numbers.as_deref() {
        Some([number]) => vec![0x18, *number, 0xa0, 1, 2],
        Some(numbers) => [numbers.iter().flat_map(|&n| [0x40, n]).collect(), vec![0xa0, 1, 7]].concat(),
        None => [field(4, value.as_bytes()), vec![0xa0, 1, 3]].concat(),
    };
    field(5, &[field(1, name.as_bytes()), value].concat())
}

/// A model that resizes images of two channels, 6 x 5, and flattens them.
fn file(attributes: &[(&str, &str)], inputs: [&str; 4], scales: &[f32], sizes: &[i64]) -> Vec<u8> {
    let used = inputs.iter().rposition(|input| !input.is_empty()).map_or(0, |last| last + 1);
    let inputs: Vec<u8> = inputs[..used].iter().flat_map(|input| field(1, input.as_bytes())).collect();
    let attributes = attributes.iter().flat_map(|(name, value)| attribute(name, value)).collect();
    let resize = [inputs, field(2, b"r"), field(3, b"up"), field(4, b"Resize"), attributes].concat();
    let flatten = [field(1, b"r"), field(2, b"y"), field(4, b"Flatten")].concat();
    let tensor = |name: &[u8], kind: u8, count: usize, bytes: Vec<u8>| {
        field(5, &[vec![8, count as u8, 16, kind], field(8, name), field(9, &bytes)].concat())
    };
    let scales = tensor(b"scales", 1, scales.len(), scales.iter().flat_map(|v| v.to_le_bytes()).collect());
    let sizes = tensor(b"sizes", 7, sizes.len(), sizes.iter().flat_map(|v| v.to_le_bytes()).collect());
    let shape: Vec<u8> = [1, 2, 6, 5].iter().flat_map(|&dim| field(1, &[8, dim])).collect();
    let kind = field(2, &field(1, &[&[8, 1][..], &field(2, &shape)].concat()));
    let images = field(11, &[field(1, b"x"), kind].concat());
    model_of(
        18,
        &[field(1, &resize), field(1, &flatten), scales, sizes, images, field(12, &field(1, b"y"))].concat(),
    )
}

const LINEAR: (&str, &str) = ("mode", "linear");
const SCALES: [&str; 4] = ["x", "", "scales", ""];
const SIZES: [&str; 4] = ["x", "", "", "sizes"];

#[test]
fn imports_bilinear_resizing() {
    let coordinates = |mode| ("coordinate_transformation_mode", mode);
    let scaled = Resize { to: ResizeTo::Scale([0.7, 2.0]), align_corners: false, nearest: false };
    let corners = Resize { align_corners: true, ..Resize::to_size([3, 1]) };
    for (attributes, inputs, numbers, expected) in [
        (vec![LINEAR], SCALES, (vec![1.0, 1.0, 0.7, 2.0], vec![]), scaled),
        (vec![LINEAR, coordinates("half_pixel"), ("axes", "3,2")], SCALES, (vec![2.0, 0.7], vec![]), scaled),
        // Set 11 has empty scales besides sizes. The batch may be fixed to that of the input.
        (
            vec![LINEAR, coordinates("align_corners")],
            ["x", "", "scales", "sizes"],
            (vec![], vec![1, 2, 3, 1]),
            corners,
        ),
        (
            vec![LINEAR, coordinates("pytorch_half_pixel")],
            SIZES,
            (vec![], vec![7, 2, 9, 4]),
            Resize::to_size([9, 4]),
        ),
        (vec![LINEAR, ("axes", "2,3")], SIZES, (vec![], vec![1, 1]), Resize::to_size([1, 1])),
    ] {
        let bytes = file(&attributes, inputs, &numbers.0, &numbers.1);
        let graph = Model::from_bytes("f", bytes).import(&ImportOptions::default()).unwrap().graph;
        assert_eq!((graph.nodes[0].name.as_str(), &graph.nodes[0].op), ("up", &expected.into()));
    }
}

#[test]
fn rejects_other_resizing_with_the_reason() {
    let refused = |attributes: &[(&str, &str)], inputs, scales: &[f32], sizes: &[i64], reason: &str| {
        let found = message(file(attributes, inputs, scales, sizes));
        assert!(found.contains(reason), "{found}");
    };
    let doubled = [1.0, 1.0, 2.0, 2.0];
    refused(&[("mode", "cubic")], SCALES, &doubled, &[], "unsupported `mode` cubic, expected linear");
    let ceil = ("nearest_mode", "ceil");
    refused(
        &[ceil],
        SCALES,
        &doubled,
        &[],
        "unsupported nearest pixels (half_pixel, ceil) from 6x5 to 12x10",
    );
    let set_10 = ["x", "scales", "", ""];
    refused(&[LINEAR], set_10, &doubled, &[], "missing input 4");
    refused(&[LINEAR, ("antialias", "1")], SCALES, &doubled, &[], "`antialias` is not supported");
    let mode = ("coordinate_transformation_mode", "asymmetric");
    refused(
        &[LINEAR, mode],
        SCALES,
        &doubled,
        &[],
        "asymmetric, expected half_pixel, pytorch_half_pixel or align_corners",
    );
    let mode = ("coordinate_transformation_mode", "pytorch_half_pixel");
    let to_one = "pytorch_half_pixel is not supported if a dimension becomes 1";
    refused(&[LINEAR, mode], SIZES, &[], &[1, 2, 6, 1], to_one);
    let policy = ("keep_aspect_ratio_policy", "not_larger");
    refused(&[LINEAR, policy], SIZES, &[], &[1, 2, 6, 1], "`keep_aspect_ratio_policy` is not supported");
    // Along an axis that keeps its size layers copy, but onnxruntime interpolates if the other axis changes.
    let kept = "one dimension keeps its size, but not its pixels, from 6x5 to 12x5";
    refused(&[LINEAR], SCALES, &[1.0, 1.0, 2.0, 1.1], &[], kept);
    let other_dimensions = "only height and width can be resized";
    refused(&[LINEAR], SCALES, &[1.0, 2.0, 2.0, 2.0], &[], other_dimensions);
    refused(&[LINEAR], SCALES, &[2.0, 2.0], &[], other_dimensions);
    refused(&[LINEAR], SIZES, &[], &[1, 3, 6, 5], other_dimensions);
    refused(&[LINEAR, ("axes", "1,2")], SIZES, &[], &[2, 6], "`axes` must include height and width");
    refused(&[LINEAR], SIZES, &[], &[1, 2, 0, 5], "the output 0x5 is empty");
    refused(&[LINEAR], SIZES, &[], &[1, 2, -6, 5], "its height and width");
    refused(&[LINEAR], SCALES, &[1.0, 1.0, 0.1, 1.0], &[], "leaves no pixels of an image of 6x5");
    refused(&[LINEAR], SCALES, &[1.0, 1.0, f32::NAN, 1.0], &[], "`scale` must be finite and > 0, got NaNx1");
    refused(&[LINEAR], ["x", "", "", ""], &[], &[], "missing input 4");
}

/// The scales of an exported resize, after import.
fn exported([height, width]: [usize; 2], scale: f64) -> ResizeTo {
    let (mut graph, images) = GraphBuilder::new("scaled", Shape::image(1, height, width));
    let resize = Resize { to: ResizeTo::Scale([scale; 2]), align_corners: false, nearest: false };
    let x = graph.add("up", resize, &[images]).unwrap();
    let graph = graph.finish(x).unwrap();
    let mut bytes = Vec::new();
    write(&mut bytes, &graph, &[], &BTreeMap::new()).unwrap();
    let imported = Model::from_bytes("f", bytes).import(&ImportOptions::default()).unwrap().graph;
    assert_eq!(imported.shape(imported.output), graph.shape(x));
    let Op::Resize(resize) = &imported.nodes[0].op else { panic!("{:?}", imported.nodes[0]) };
    resize.to
}

/// The scale of an axis that keeps its size is exported as 1: `Resize` would interpolate along it.
#[test]
fn exports_no_scale_of_a_kept_axis() {
    assert_eq!(exported([4, 2], 1.3), ResizeTo::Scale([1.3, 1.0]));
}

/// In f32, 0.7 is less: 10 pixels would become 6 in onnxruntime's shape inference, and 7 in its kernel. The
/// next number is exported, and imported as 0.7.
#[test]
fn exports_scales_that_give_the_size_exactly() {
    assert_eq!(exported([4, 10], 0.7), ResizeTo::Scale([0.7; 2]));
    let (mut graph, images) = GraphBuilder::new("scaled", Shape::image(1, 4, 10));
    let resize = Resize { to: ResizeTo::Scale([0.7; 2]), align_corners: false, nearest: false };
    let x = graph.add("up", resize, &[images]).unwrap();
    let mut bytes = Vec::new();
    write(&mut bytes, &graph.finish(x).unwrap(), &[], &BTreeMap::new()).unwrap();
    let scales = [0.7_f32.to_le_bytes(), 0.700_000_05_f32.to_le_bytes()].concat();
    assert!(bytes.windows(8).any(|window| window == scales));
}
