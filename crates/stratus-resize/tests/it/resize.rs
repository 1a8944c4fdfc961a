//! Means of neighbouring pixels, and what is refused.

use stratus_resize::{Part, Resizer};

const WHOLE: Part = Part { left: 0.0, top: 0.0, width: 4.0, height: 2.0 };

#[test]
fn half_the_size_is_the_mean_of_neighbours_and_colours_stay_apart() {
    let grey = [10, 30, 50, 70, 20, 40, 60, 80];
    let mut out = [0; 2];
    Resizer::default().resize(1, &grey, [2, 4], WHOLE, &mut out, [1, 2]).unwrap();
    // Columns' means are 15, 35, 55, 75; of a triangle of two pixels to each side the weights are 3, 3 and 1,
    // and 0: 205/7 and 425/7.
    assert_eq!(out, [29, 61]);
    let colours = grey.map(|value| [value, 255 - value, 7]).concat();
    let mut out = [0; 6];
    Resizer::default().resize(3, &colours, [2, 4], WHOLE, &mut out, [1, 2]).unwrap();
    assert_eq!(out, [29, 226, 7, 61, 194, 7]);
}

#[test]
fn what_cannot_be_is_refused() {
    let mut resizer = Resizer::default();
    let mut out = [0; 2];
    let refused = |result: Result<(), String>| result.unwrap_err();
    assert_eq!(
        refused(resizer.resize(2, &[0; 16], [2, 4], WHOLE, &mut out, [1, 1])),
        "its 2 channels lie side by side, and only 1 or 3 can"
    );
    assert!(!refused(resizer.resize(1, &[0; 7], [2, 4], WHOLE, &mut out, [1, 2])).is_empty());
    assert!(!refused(resizer.resize(1, &[0; 8], [2, 4], WHOLE, &mut out, [2, 2])).is_empty());
    let beyond = Part { left: 2.0, ..WHOLE };
    assert!(!refused(resizer.resize(1, &[0; 8], [2, 4], beyond, &mut out, [1, 2])).is_empty());
}
