//! Object outlines in a compact encoding, and their rasterisation into masks.
//!
//! COCO gives an outline as polygons or as run lengths (RLE), the latter as a list or in a text code. Both
//! are stored here as variable-length integers (LEB128). Polygon corners are differences in units of 1/256
//! pixel, zigzag-coded: two bytes for most coordinates.
//!
//! ```text
//!   polygons: 0, count, (corners, (Δx, Δy) …) …
//!   runs:     1, height, width, count, run …      alternately outside and inside, column by column
//! ```
//!
//! All arithmetic is on integers, so masks are the same on every machine.

/// Units per pixel.
pub(super) const UNITS_PER_PIXEL: i64 = 256;
/// The largest absolute coordinate, in pixels.
pub(super) const MAX_COORDINATE_PIXELS: f64 = (1 << 20) as f64;

const TAG_POLYGONS: u64 = 0;
const TAG_RUNS: u64 = 1;

/// Appends an unsigned LEB128 number: 7 bits per byte, the lowest first.
fn push_leb128(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Zigzag code: 0, -1, 1, -2, … becomes 0, 1, 2, 3, ….
fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Reads LEB128 numbers; returns zeros after the end.
#[derive(Clone)]
struct Leb128Reader<'a>(&'a [u8]);

impl Leb128Reader<'_> {
    fn read(&mut self) -> u64 {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let Some((&byte, rest)) = self.0.split_first() else { break };
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        number
    }
}

/// The corners of a polygon.
#[derive(Clone)]
struct PolygonCorners<'a> {
    numbers: Leb128Reader<'a>,
    left: u64,
    last: [i64; 2],
}

impl Iterator for PolygonCorners<'_> {
    type Item = [i64; 2];

    fn next(&mut self) -> Option<[i64; 2]> {
        self.left = self.left.checked_sub(1)?;
        for coordinate in &mut self.last {
            *coordinate += unzigzag(self.numbers.read());
        }
        Some(self.last)
    }
}

/// Converts a coordinate to units, rounded; `None` if it is too large or not a number.
pub(super) fn to_units(pixels: f64) -> Option<i64> {
    // Multiplying by a power of two is exact.
    (pixels.abs() <= MAX_COORDINATE_PIXELS).then(|| (pixels * UNITS_PER_PIXEL as f64).round() as i64)
}

/// Appends an outline of polygons with corners (x, y) in units. Returns twice its area in square units
/// (shoelace formula).
pub(super) fn push_polygons(bytes: &mut Vec<u8>, polygons: &[Vec<[i64; 2]>]) -> u64 {
    push_leb128(bytes, TAG_POLYGONS);
    push_leb128(bytes, polygons.len() as u64);
    let mut area = 0;
    for polygon in polygons {
        push_leb128(bytes, polygon.len() as u64);
        let mut previous = [0; 2];
        for corner in polygon {
            push_leb128(bytes, zigzag(corner[0] - previous[0]));
            push_leb128(bytes, zigzag(corner[1] - previous[1]));
            previous = *corner;
        }
        // Each term is below 2^57.
        let cross = edges(polygon.iter().copied())
            .map(|([x0, y0], [x1, y1])| i128::from(x0 * y1 - x1 * y0))
            .sum::<i128>();
        area += u64::try_from(cross.unsigned_abs()).unwrap_or(u64::MAX / 2);
    }
    area
}

/// Appends an outline of run lengths: pixels outside and inside the object alternately, column by column, of
/// an image of `size` (H, W). Returns twice its area in square units.
pub(super) fn push_runs(bytes: &mut Vec<u8>, size: [u64; 2], runs: &[u64]) -> Result<u64, String> {
    let pixels = size[0].checked_mul(size[1]);
    let sum = runs.iter().try_fold(0u64, |sum, &run| sum.checked_add(run));
    let (Some(pixels), Some(sum)) = (pixels, sum) else {
        return Err("run lengths are too large".to_owned());
    };
    if pixels != sum {
        let [height, width] = size;
        return Err(format!("run lengths add up to {sum} pixels, but {height}×{width} are {pixels}"));
    }
    push_leb128(bytes, TAG_RUNS);
    push_leb128(bytes, size[0]);
    push_leb128(bytes, size[1]);
    push_leb128(bytes, runs.len() as u64);
    runs.iter().for_each(|&run| push_leb128(bytes, run));
    let area: u64 = runs.iter().skip(1).step_by(2).sum();
    Ok(area.saturating_mul(2 * (UNITS_PER_PIXEL * UNITS_PER_PIXEL) as u64))
}

/// Decodes COCO's text code of run lengths (`rleFrString` of its API). Each character holds 5 bits starting
/// at `0`, the lowest first, and a sixth bit that is set if more follow. From the fourth run on, a number is
/// the difference to the run two before. `None` if the text is invalid.
pub(super) fn decode_rle_string(text: &str) -> Option<Vec<u64>> {
    let mut runs: Vec<u64> = Vec::new();
    let mut letters = text.bytes();
    while let Some(first) = letters.next() {
        let (mut letter, mut number, mut shift) = (first, 0i64, 0);
        loop {
            let bits = i64::from(letter.checked_sub(b'0').filter(|bits| *bits < 64)?);
            if shift > 35 {
                return None;
            }
            number |= (bits & 0x1f) << shift;
            shift += 5;
            if bits & 0x20 == 0 {
                if bits & 0x10 != 0 {
                    number |= -1 << shift;
                }
                break;
            }
            letter = letters.next()?;
        }
        let reference = if runs.len() > 2 { runs[runs.len() - 2] } else { 0 };
        runs.push(reference.checked_add_signed(number)?);
    }
    Some(runs)
}

/// The image size (H, W) that run lengths declare; `None` for polygons.
pub(super) fn rle_size(shape: &[u8]) -> Option<[u64; 2]> {
    let mut numbers = Leb128Reader(shape);
    (numbers.read() == TAG_RUNS).then(|| [numbers.read(), numbers.read()])
}

/// Writes `class` to every pixel of `mask`, of `size` (H, W), whose centre is inside the outline.
pub(super) fn rasterise(shape: &[u8], class: u8, mask: &mut [u8], size: [usize; 2], scratch: &mut Vec<u8>) {
    let mut numbers = Leb128Reader(shape);
    if numbers.read() == TAG_RUNS {
        let declared = [numbers.read(), numbers.read()];
        if declared == size.map(|length| length as u64) {
            rasterise_runs(numbers, class, mask, size);
        }
        return;
    }
    for _ in 0..numbers.read() {
        let left = numbers.read();
        let mut corners = PolygonCorners { numbers, left, last: [0; 2] };
        rasterise_polygon(&corners, class, mask, size, scratch);
        corners.by_ref().for_each(drop);
        numbers = corners.numbers;
    }
}

fn rasterise_runs(mut runs: Leb128Reader<'_>, class: u8, mask: &mut [u8], [height, width]: [usize; 2]) {
    let (mut at, mut inside) = (0, false);
    for _ in 0..runs.read() {
        // The runs add up to the number of pixels.
        let end = (at + runs.read() as usize).min(height * width);
        if inside {
            while at < end {
                let (column, row) = (at / height, at % height);
                let rows = (height - row).min(end - at);
                let pixels = mask[row * width + column..].iter_mut().step_by(width);
                pixels.take(rows).for_each(|pixel| *pixel = class);
                at += rows;
            }
        }
        (at, inside) = (end, !inside);
    }
}

/// The edges of a polygon, as pairs of corners.
fn edges(corners: impl Iterator<Item = [i64; 2]> + Clone) -> impl Iterator<Item = ([i64; 2], [i64; 2])> {
    corners.clone().zip(corners.cycle().skip(1))
}

/// Fills a polygon by the even-odd rule, row by row through the pixel centres.
///
/// An edge counts for the centres at or right of it, in rows from its upper end (included) to its lower end
/// (excluded). So polygons that share an edge share no pixel.
fn rasterise_polygon(
    polygon: &PolygonCorners<'_>,
    class: u8,
    mask: &mut [u8],
    [height, width]: [usize; 2],
    scratch: &mut Vec<u8>,
) {
    // The first row or column whose centre is at or after a coordinate.
    let first_centre = |coordinate: i64, length: usize| {
        (coordinate - UNITS_PER_PIXEL / 2 + UNITS_PER_PIXEL - 1)
            .div_euclid(UNITS_PER_PIXEL)
            .clamp(0, length as i64) as usize
    };
    let bounds = |axis: usize, length: usize| {
        let coordinates = || polygon.clone().map(|corner| corner[axis]);
        let (min, max) = (coordinates().min().unwrap_or(0), coordinates().max().unwrap_or(0));
        first_centre(min, length)..first_centre(max + 1, length)
    };
    let (rows, columns) = (bounds(1, height), bounds(0, width));
    if rows.is_empty() || columns.is_empty() {
        return;
    }
    // For each row, the pixels at which inside and outside change. Crossings left of the image count for its
    // first column, those right of it for none.
    let row_len = columns.len();
    scratch.clear();
    scratch.resize(row_len * rows.len(), 0);
    for ([x0, y0], [x1, y1]) in edges(polygon.clone()) {
        let ((top_x, top), (bottom_x, bottom)) =
            if y0 < y1 { ((x0, y0), (x1, y1)) } else { ((x1, y1), (x0, y0)) };
        let edge_height = bottom - top;
        for row in first_centre(top, height)..first_centre(bottom, height) {
            let middle = row as i64 * UNITS_PER_PIXEL + UNITS_PER_PIXEL / 2;
            // The x of the crossing times the height of the edge, then the first column whose centre is not
            // left of it. Values stay below 2^61.
            let crossing = top_x * edge_height + (middle - top) * (bottom_x - top_x);
            let column =
                -(UNITS_PER_PIXEL / 2 * edge_height - crossing).div_euclid(UNITS_PER_PIXEL * edge_height);
            let column = (column - columns.start as i64).max(0) as usize;
            if column < row_len {
                scratch[(row - rows.start) * row_len + column] ^= 1;
            }
        }
    }
    for (row, crossed) in rows.zip(scratch.chunks_exact(row_len)) {
        let mut inside = 0;
        for (pixel, crossed) in mask[row * width + columns.start..].iter_mut().zip(crossed) {
            inside ^= crossed;
            if inside == 1 {
                *pixel = class;
            }
        }
    }
}

#[cfg(test)]
mod tests;
