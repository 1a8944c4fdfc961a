//! Means of neighbouring pixels, and invalid arguments.

use stratus_resize::{CropBox, Resizer};

const WHOLE: CropBox = CropBox { left: 0.0, top: 0.0, width: 4.0, height: 2.0 };

#[test]
fn halving_averages_neighbours_of_each_channel() {
    let grey = [10, 30, 50, 70, 20, 40, 60, 80];
    let mut out = [0; 2];
    Resizer::default().resize(1, &grey, [2, 4], WHOLE, &mut out, [1, 2]).unwrap();
    // The column means are 15, 35, 55, 75. A triangle of two pixels to each side has the weights 3, 3, 1 and
    // 0, which gives 205/7 and 425/7.
    assert_eq!(out, [29, 61]);
    let colours = grey.map(|value| [value, 255 - value, 7]).concat();
    let mut out = [0; 6];
    Resizer::default().resize(3, &colours, [2, 4], WHOLE, &mut out, [1, 2]).unwrap();
    assert_eq!(out, [29, 226, 7, 61, 194, 7]);
}

#[test]
fn rejects_invalid_arguments() {
    let mut resizer = Resizer::default();
    let mut out = [0; 2];
    let message = |result: Result<(), String>| result.unwrap_err();
    assert_eq!(
        message(resizer.resize(2, &[0; 16], [2, 4], WHOLE, &mut out, [1, 1])),
        "2 channels are not supported, only 1 or 3"
    );
    assert!(!message(resizer.resize(1, &[0; 7], [2, 4], WHOLE, &mut out, [1, 2])).is_empty());
    assert!(!message(resizer.resize(1, &[0; 8], [2, 4], WHOLE, &mut out, [2, 2])).is_empty());
    let beyond = CropBox { left: 2.0, ..WHOLE };
    assert!(!message(resizer.resize(1, &[0; 8], [2, 4], beyond, &mut out, [1, 2])).is_empty());
}
