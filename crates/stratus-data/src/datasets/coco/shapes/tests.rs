//! Compares rasterisation with definitions applied pixel by pixel, and tests round trips of run lengths.

use super::*;
use proptest::prelude::*;

fn painted(shape: &[u8], size: [usize; 2]) -> Vec<u8> {
    let mut mask = vec![0; size[0] * size[1]];
    rasterise(shape, 1, &mut mask, size, &mut vec![9; 5]);
    mask
}

fn polygons(polygons: &[&[[f64; 2]]], size: [usize; 2]) -> Vec<u8> {
    let corners: Vec<Vec<[i64; 2]>> = polygons
        .iter()
        .map(|one| one.iter().map(|corner| corner.map(|at| to_units(at).unwrap())).collect())
        .collect();
    let mut shape = Vec::new();
    push_polygons(&mut shape, &corners);
    painted(&shape, size)
}

fn rows(mask: &[u8], width: usize) -> Vec<String> {
    let row = |row: &[u8]| row.iter().map(|&pixel| if pixel == 1 { '#' } else { '.' }).collect();
    mask.chunks(width).map(row).collect()
}

/// The definition: a line to the left of the pixel's centre crosses an odd number of edges.
fn inside(corners: &[[i64; 2]], row: usize, column: usize) -> bool {
    let (x, y) = (column as i128 * 256 + 128, row as i128 * 256 + 128);
    let mut odd = false;
    for (at, corner) in corners.iter().enumerate() {
        let [x0, y0] = corner.map(i128::from);
        let [x1, y1] = corners[(at + 1) % corners.len()].map(i128::from);
        if (y0 <= y) != (y1 <= y) {
            // x0 + (y - y0) (x1 - x0) / (y1 - y0) <= x
            let (left, right) = ((y - y0) * (x1 - x0), (x - x0) * (y1 - y0));
            odd ^= if y1 > y0 { left <= right } else { left >= right };
        }
    }
    odd
}

#[test]
fn pixels_belong_to_the_polygon_that_holds_their_centre() {
    let square = polygons(&[&[[1.0, 1.0], [4.0, 1.0], [4.0, 3.0], [1.0, 3.0]]], [4, 6]);
    assert_eq!(rows(&square, 6), ["......", ".###..", ".###..", "......"]);
    // From centre to centre: the upper and left edges are included, the lower and right are not.
    let middles = polygons(&[&[[1.5, 1.5], [3.5, 1.5], [3.5, 3.5], [1.5, 3.5]]], [5, 5]);
    assert_eq!(rows(&middles, 5), [".....", ".##..", ".##..", ".....", "....."]);
    // The slanted edge passes through centres, and is a right edge.
    let triangle = polygons(&[&[[0.0, 0.0], [5.0, 5.0], [0.0, 5.0]]], [5, 5]);
    assert_eq!(rows(&triangle, 5), [".....", "#....", "##...", "###..", "####."]);
    // Areas that are enclosed twice are outside by the even-odd rule.
    let outer = [[0.0, 0.0], [5.0, 0.0], [5.0, 5.0], [0.0, 5.0], [0.0, 0.0]];
    let inner = [[1.0, 1.0], [4.0, 1.0], [4.0, 4.0], [1.0, 4.0], [1.0, 1.0]];
    let ring = polygons(&[&[outer, inner].concat()], [5, 5]);
    assert_eq!(rows(&ring, 5), ["#####", "#...#", "#...#", "#...#", "#####"]);
}

#[test]
fn joins_polygons_and_touching_ones_share_no_pixel() {
    let both = polygons(
        &[
            &[[0.0, 0.0], [3.0, 0.0], [3.0, 3.0], [0.0, 3.0]],
            &[[1.0, 1.0], [4.0, 1.0], [4.0, 2.0], [1.0, 2.0]],
        ],
        [3, 4],
    );
    assert_eq!(rows(&both, 4), ["###.", "####", "###."]);
    let (left, right): (&[[f64; 2]], &[[f64; 2]]) = (
        &[[0.0, 0.0], [3.7, 0.0], [1.3, 6.0], [0.0, 6.0]],
        &[[3.7, 0.0], [6.0, 0.0], [6.0, 6.0], [1.3, 6.0]],
    );
    let (left, right) = (polygons(&[left], [6, 6]), polygons(&[right], [6, 6]));
    assert!(left.iter().zip(&right).all(|(left, right)| left + right == 1));
}

#[test]
fn clips_polygons_to_the_image() {
    for (corners, expected) in [
        (&[[-9.0, -9.0], [2.0, -9.0], [2.0, 2.0], [-9.0, 2.0]], ["##..", "##..", "....", "...."]),
        (&[[2.0, 2.0], [90.0, 2.0], [90.0, 90.0], [2.0, 90.0]], ["....", "....", "..##", "..##"]),
        (&[[-1e6, -1e6], [1e6, -1e6], [1e6, 1e6], [-1e6, 1e6]], ["####"; 4]),
        (&[[5.0, 0.0], [9.0, 0.0], [9.0, 4.0], [5.0, 4.0]], ["...."; 4]),
        (&[[-5.0, 0.0], [-1.0, 0.0], [-1.0, 4.0], [-5.0, 4.0]], ["...."; 4]),
        (&[[0.0, -5.0], [4.0, -5.0], [4.0, -1.0], [0.0, -1.0]], ["...."; 4]),
    ] {
        assert_eq!(rows(&polygons(&[corners], [4, 4]), 4), expected, "{corners:?}");
    }
    // Fewer than three corners enclose nothing.
    for corners in [&[][..], &[[1.0, 1.0]], &[[0.0, 0.0], [4.0, 4.0]]] {
        assert_eq!(polygons(&[corners], [4, 4]), [0; 16]);
    }
}

#[test]
fn areas_match_geometry() {
    let area = |corners: &[[i64; 2]]| push_polygons(&mut Vec::new(), &[corners.to_vec()]);
    let unit = (UNITS_PER_PIXEL * UNITS_PER_PIXEL) as u64;
    assert_eq!(area(&[[0, 0], [512, 0], [512, 768], [0, 768]]), 2 * 6 * unit);
    assert_eq!(area(&[[0, 768], [512, 768], [512, 0], [0, 0]]), 2 * 6 * unit);
    assert_eq!(area(&[[0, 0], [256, 0], [0, 256]]), unit);
    assert_eq!(push_runs(&mut Vec::new(), [2, 3], &[1, 4, 1]), Ok(2 * 4 * unit));
}

/// Run lengths of columns, by definition.
fn runs_of(mask: &[u8], [height, width]: [usize; 2]) -> Vec<u64> {
    let mut runs = vec![0];
    let mut last = 0;
    for column in 0..width {
        for row in 0..height {
            let pixel = mask[row * width + column];
            if pixel != last {
                runs.push(0);
                last = pixel;
            }
            *runs.last_mut().unwrap() += 1;
        }
    }
    runs
}

/// Encodes run lengths as COCO's text.
fn text_of(runs: &[u64]) -> String {
    let mut text = String::new();
    for (at, &run) in runs.iter().enumerate() {
        let mut number = run as i64 - if at > 2 { runs[at - 2] as i64 } else { 0 };
        loop {
            let bits = (number & 0x1f) as u8;
            number >>= 5;
            // The rest is only the sign of the written bits.
            let last = number == if bits & 0x10 != 0 { -1 } else { 0 };
            text.push(char::from(b'0' + bits + if last { 0 } else { 0x20 }));
            if last {
                break;
            }
        }
    }
    text
}

/// Computed by hand from the format's description: 5, 3, 1, 40 - 3 and 100 - 1 as groups of five bits.
#[test]
fn reads_rle_strings() {
    assert_eq!(decode_rle_string(""), Some(vec![]));
    assert_eq!(decode_rle_string("531"), Some(vec![5, 3, 1]));
    // 37 is 5 and a group of 1 more: `0` + 32 + 5, `1`. 99 is 3 and 3: `0` + 32 + 3, `3`.
    assert_eq!(decode_rle_string("531U1S3"), Some(vec![5, 3, 1, 40, 100]));
    // -1 is 31: `0` + 31; 3 - 1 is the run.
    assert_eq!(decode_rle_string("531O"), Some(vec![5, 3, 1, 2]));
    for text in ["U", "531OOOOO", "\u{7f}", "5 3", "ö", "ooooooooo1"] {
        assert_eq!(decode_rle_string(text), None, "{text}");
    }
}

#[test]
fn rejects_run_lengths_of_another_image_size() {
    let error = |size, runs: &[u64]| push_runs(&mut Vec::new(), size, runs).unwrap_err();
    assert_eq!(error([2, 3], &[1, 4]), "run lengths add up to 5 pixels, but 2×3 are 6");
    assert_eq!(error([2, 3], &[7]), "run lengths add up to 7 pixels, but 2×3 are 6");
    assert_eq!(error([2, 3], &[u64::MAX, 7]), "run lengths are too large");
    assert_eq!(error([u64::MAX, 3], &[7]), "run lengths are too large");
    let mut shape = Vec::new();
    push_runs(&mut shape, [2, 3], &[1, 4, 1]).unwrap();
    assert_eq!(rle_size(&shape), Some([2, 3]));
    assert_eq!(rows(&painted(&shape, [2, 3]), 3), [".##", "##."]);
    assert_eq!(painted(&shape, [3, 2]), [0; 6]);
}

proptest! {
    #[test]
    fn masks_round_trip_through_run_lengths(
        (height, width) in (1usize..9, 1usize..9),
        pixels in prop::collection::vec(0u8..2, 64),
    ) {
        let mask = &pixels[..height * width];
        let runs = runs_of(mask, [height, width]);
        prop_assert_eq!(decode_rle_string(&text_of(&runs)), Some(runs.clone()));
        let mut shape = Vec::new();
        let area = push_runs(&mut shape, [height as u64, width as u64], &runs).unwrap();
        prop_assert_eq!(painted(&shape, [height, width]), mask);
        prop_assert_eq!(area, 2 * 65_536 * mask.iter().map(|&pixel| u64::from(pixel)).sum::<u64>());
    }

    #[test]
    fn long_runs_round_trip_through_rle_strings(runs in prop::collection::vec(0u64..1 << 34, 0..20)) {
        prop_assert_eq!(decode_rle_string(&text_of(&runs)), Some(runs));
    }

    #[test]
    fn arbitrary_rle_strings_never_panic(text in ".{0,20}") {
        let _ = decode_rle_string(&text);
    }

    /// Coordinates are multiples of a half or an eighth pixel, so that they often hit pixel centres.
    #[test]
    fn polygons_match_the_even_odd_rule(
        (height, width) in (1usize..12, 1usize..12),
        corners in prop::collection::vec([-30i64..130, -30i64..130], 0..9),
        step in prop::sample::select(vec![32, 128]),
    ) {
        let corners: Vec<[i64; 2]> = corners.iter().map(|corner| corner.map(|at| at * step)).collect();
        let mut shape = Vec::new();
        push_polygons(&mut shape, &[corners.clone(), vec![]]);
        let mask = painted(&shape, [height, width]);
        for row in 0..height {
            for column in 0..width {
                let expected = u8::from(inside(&corners, row, column));
                prop_assert_eq!(mask[row * width + column], expected, "{} {}", row, column);
            }
        }
    }

    #[test]
    fn leb128_round_trips_any_number(numbers in prop::collection::vec(any::<i64>(), 0..20)) {
        let mut bytes = Vec::new();
        numbers.iter().for_each(|&number| push_leb128(&mut bytes, zigzag(number)));
        let mut read = Leb128Reader(&bytes);
        let kept: Vec<i64> = numbers.iter().map(|_| unzigzag(read.read())).collect();
        prop_assert_eq!(kept, numbers);
        prop_assert_eq!(read.read(), 0);
    }
}
