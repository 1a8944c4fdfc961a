//! `Resize` in the forms that a layer has, and in those that it has not.

use crate::limits::{field, message, model_of};
use stratus_graph::ops::{Resize, ResizeTo};
use stratus_onnx::{Model, Options};

/// An attribute, a text or whole numbers.
fn attribute(name: &str, value: &str) -> Vec<u8> {
    let numbers: Option<Vec<u8>> = value.split(',').map(|number| number.parse().ok()).collect();
    let value = match numbers.as_deref() {
        Some([number]) => vec![0x18, *number, 0xa0, 1, 2],
        Some(numbers) => [numbers.iter().flat_map(|&n| [0x40, n]).collect(), vec![0xa0, 1, 7]].concat(),
        None => [field(4, value.as_bytes()), vec![0xa0, 1, 3]].concat(),
    };
    field(5, &[field(1, name.as_bytes()), value].concat())
}

/// A model whose one layer resizes images of two channels, 6 x 5, before they become a vector.
fn file(attributes: &[(&str, &str)], inputs: [&str; 4], scales: &[f32], sizes: &[i64]) -> Vec<u8> {
    let given = inputs.iter().rposition(|input| !input.is_empty()).map_or(0, |last| last + 1);
    let inputs: Vec<u8> = inputs[..given].iter().flat_map(|input| field(1, input.as_bytes())).collect();
    let attributes = attributes.iter().flat_map(|(name, value)| attribute(name, value)).collect();
    let resize = [inputs, field(2, b"r"), field(3, b"up"), field(4, b"Resize"), attributes].concat();
    let flatten = [field(1, b"r"), field(2, b"y"), field(4, b"Flatten")].concat();
    let tensor = |name: &[u8], kind: u8, count: usize, bytes: Vec<u8>| {
        field(5, &[vec![8, count as u8, 16, kind], field(8, name), field(9, &bytes)].concat())
    };
    let scales = tensor(b"scales", 1, scales.len(), scales.iter().flat_map(|v| v.to_le_bytes()).collect());
    let sizes = tensor(b"sizes", 7, sizes.len(), sizes.iter().flat_map(|v| v.to_le_bytes()).collect());
    let shape: Vec<u8> = [1, 2, 6, 5].iter().flat_map(|&extent| field(1, &[8, extent])).collect();
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
fn bilinear_resizing_is_a_layer() {
    let places = |places| ("coordinate_transformation_mode", places);
    let by = Resize { to: ResizeTo::Scale([0.7, 2.0]), align_corners: false };
    let corners = Resize { align_corners: true, ..Resize::to_size([3, 1]) };
    for (attributes, inputs, numbers, expected) in [
        (vec![LINEAR], SCALES, (vec![1.0, 1.0, 0.7, 2.0], vec![]), by),
        (vec![LINEAR, places("half_pixel"), ("axes", "3,2")], SCALES, (vec![2.0, 0.7], vec![]), by),
        // Set 11 has an empty tensor where sizes are given. A batch may be fixed to what it was.
        (
            vec![LINEAR, places("align_corners")],
            ["x", "", "scales", "sizes"],
            (vec![], vec![1, 2, 3, 1]),
            corners,
        ),
        (
            vec![LINEAR, places("pytorch_half_pixel")],
            SIZES,
            (vec![], vec![7, 2, 9, 4]),
            Resize::to_size([9, 4]),
        ),
        (vec![LINEAR, ("axes", "2,3")], SIZES, (vec![], vec![1, 1]), Resize::to_size([1, 1])),
    ] {
        let bytes = file(&attributes, inputs, &numbers.0, &numbers.1);
        let graph = Model::from_bytes("f", bytes).import(&Options::default()).unwrap().graph;
        assert_eq!((graph.nodes[0].name.as_str(), &graph.nodes[0].op), ("up", &expected.into()));
    }
}

#[test]
fn other_resizing_is_refused_with_its_reason() {
    let refused = |attributes: &[(&str, &str)], inputs, scales: &[f32], sizes: &[i64], reason: &str| {
        let found = message(file(attributes, inputs, scales, sizes));
        assert!(found.contains(reason), "{found}");
    };
    let twice = [1.0, 1.0, 2.0, 2.0];
    refused(&[], SCALES, &twice, &[], "its `mode` is nearest; linear, which is bilinear, is read");
    refused(&[("mode", "cubic")], SCALES, &twice, &[], "its `mode` is cubic");
    let set_10 = ["x", "scales", "", ""];
    refused(&[LINEAR], set_10, &twice, &[], "that of operator set 10, whose pixels lie otherwise");
    refused(&[LINEAR, ("antialias", "1")], SCALES, &twice, &[], "its `antialias` is set");
    let places = ("coordinate_transformation_mode", "asymmetric");
    refused(
        &[LINEAR, places],
        SCALES,
        &twice,
        &[],
        "is asymmetric; half_pixel, pytorch_half_pixel and align_corners are read",
    );
    let places = ("coordinate_transformation_mode", "pytorch_half_pixel");
    let to_one = "takes the first pixel where an extent becomes 1";
    refused(&[LINEAR, places], SIZES, &[], &[1, 2, 6, 1], to_one);
    let policy = ("keep_aspect_ratio_policy", "not_larger");
    refused(&[LINEAR, policy], SIZES, &[], &[1, 2, 6, 1], "`keep_aspect_ratio_policy` decides its size");
    let not_those = "not those of height and width alone";
    refused(&[LINEAR], SCALES, &[1.0, 2.0, 2.0, 2.0], &[], not_those);
    refused(&[LINEAR], SCALES, &[2.0, 2.0], &[], not_those);
    refused(&[LINEAR], SIZES, &[], &[1, 3, 6, 5], not_those);
    refused(&[LINEAR, ("axes", "1,2")], SIZES, &[], &[2, 6], "its `axes` lack height or width");
    refused(&[LINEAR], SIZES, &[], &[1, 2, 0, 5], "its output 0x5 is empty");
    refused(&[LINEAR], SIZES, &[], &[1, 2, -6, 5], "its height and width");
    refused(&[LINEAR], SCALES, &[1.0, 1.0, 0.1, 1.0], &[], "leaves nothing of an image of 6x5");
    refused(&[LINEAR], SCALES, &[1.0, 1.0, f32::NAN, 1.0], &[], "its scale NaNx1 is no size");
    refused(&[LINEAR], ["x", "", "", ""], &[], &[], "it is that of operator set 10");
}
