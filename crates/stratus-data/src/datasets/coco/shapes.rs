//! Object outlines in a compact code, and their rasterisation into masks.
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
pub(super) const UNITS: i64 = 256;
/// The largest absolute coordinate, in pixels.
pub(super) const FARTHEST: f64 = (1 << 20) as f64;

const POLYGONS: u64 = 0;
const RUNS: u64 = 1;

/// Appends an unsigned LEB128 number: 7 bits per byte, the lowest first.
fn push(bytes: &mut Vec<u8>, mut number: u64) {
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

/// Decodes LEB128 numbers; zeros after the end.
#[derive(Clone)]
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn next(&mut self) -> u64 {
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
struct Corners<'a> {
    numbers: Numbers<'a>,
    left: u64,
    last: [i64; 2],
}

impl Iterator for Corners<'_> {
    type Item = [i64; 2];

    fn next(&mut self) -> Option<[i64; 2]> {
        self.left = self.left.checked_sub(1)?;
        for place in &mut self.last {
            *place += unzigzag(self.numbers.next());
        }
        Some(self.last)
    }
}

/// A coordinate in units, rounded; `None` where it is too large or not a number.
pub(super) fn units(pixels: f64) -> Option<i64> {
    // Multiplying by a power of two is exact.
    (pixels.abs() <= FARTHEST).then(|| (pixels * UNITS as f64).round() as i64)
}

/// Appends an outline of polygons with corners (x, y) in units. Returns twice its area in square units
/// (shoelace formula).
pub(super) fn push_polygons(bytes: &mut Vec<u8>, polygons: &[Vec<[i64; 2]>]) -> u64 {
    push(bytes, POLYGONS);
    push(bytes, polygons.len() as u64);
    let mut area = 0;
    for polygon in polygons {
        push(bytes, polygon.len() as u64);
        let mut before = [0; 2];
        for corner in polygon {
            push(bytes, zigzag(corner[0] - before[0]));
            push(bytes, zigzag(corner[1] - before[1]));
            before = *corner;
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
        return Err("its run lengths are too large".to_owned());
    };
    if pixels != sum {
        let [height, width] = size;
        return Err(format!("its run lengths add up to {sum} pixels, but {height}×{width} are {pixels}"));
    }
    push(bytes, RUNS);
    push(bytes, size[0]);
    push(bytes, size[1]);
    push(bytes, runs.len() as u64);
    runs.iter().for_each(|&run| push(bytes, run));
    let area: u64 = runs.iter().skip(1).step_by(2).sum();
    Ok(area.saturating_mul(2 * (UNITS * UNITS) as u64))
}

/// Decodes COCO's text code of run lengths (`rleFrString` of its API). Each character holds 5 bits from `0`
/// on, the lowest first, and a sixth that says whether more follow. From the fourth run on, a number is the
/// difference to the run two before. `None` where the text is invalid.
pub(super) fn runs_of_text(text: &str) -> Option<Vec<u64>> {
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
        let before = if runs.len() > 2 { runs[runs.len() - 2] } else { 0 };
        runs.push(before.checked_add_signed(number)?);
    }
    Some(runs)
}

/// The image size (H, W) that run lengths declare; `None` for polygons.
pub(super) fn size_of(shape: &[u8]) -> Option<[u64; 2]> {
    let mut numbers = Numbers(shape);
    (numbers.next() == RUNS).then(|| [numbers.next(), numbers.next()])
}

/// Writes `class` to every pixel of `mask`, of `size` (H, W), whose centre is inside the outline. `spare` is
/// scratch memory.
pub(super) fn paint(shape: &[u8], class: u8, mask: &mut [u8], size: [usize; 2], spare: &mut Vec<u8>) {
    let mut numbers = Numbers(shape);
    if numbers.next() == RUNS {
        let declared = [numbers.next(), numbers.next()];
        if declared == size.map(|length| length as u64) {
            paint_runs(numbers, class, mask, size);
        }
        return;
    }
    for _ in 0..numbers.next() {
        let left = numbers.next();
        let mut corners = Corners { numbers, left, last: [0; 2] };
        paint_polygon(&corners, class, mask, size, spare);
        corners.by_ref().for_each(drop);
        numbers = corners.numbers;
    }
}

fn paint_runs(mut runs: Numbers<'_>, class: u8, mask: &mut [u8], [height, width]: [usize; 2]) {
    let (mut at, mut inside) = (0, false);
    for _ in 0..runs.next() {
        // The runs add up to the number of pixels.
        let end = (at + runs.next() as usize).min(height * width);
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
fn paint_polygon(
    polygon: &Corners<'_>,
    class: u8,
    mask: &mut [u8],
    [height, width]: [usize; 2],
    spare: &mut Vec<u8>,
) {
    // The first row or column whose centre is at or after a coordinate.
    let row_of = |y: i64, length: usize| {
        (y - UNITS / 2 + UNITS - 1).div_euclid(UNITS).clamp(0, length as i64) as usize
    };
    let bounds = |axis: usize, length: usize| {
        let places = || polygon.clone().map(|corner| corner[axis]);
        let (least, most) = (places().min().unwrap_or(0), places().max().unwrap_or(0));
        row_of(least, length)..row_of(most + 1, length)
    };
    let (rows, columns) = (bounds(1, height), bounds(0, width));
    if rows.is_empty() || columns.is_empty() {
        return;
    }
    // For each row, the pixels at which inside and outside change. Crossings left of the image count for its
    // first column, those right of it for none.
    let wide = columns.len();
    spare.clear();
    spare.resize(wide * rows.len(), 0);
    for ([x0, y0], [x1, y1]) in edges(polygon.clone()) {
        let ((top_x, top), (bottom_x, bottom)) =
            if y0 < y1 { ((x0, y0), (x1, y1)) } else { ((x1, y1), (x0, y0)) };
        let tall = bottom - top;
        for row in row_of(top, height)..row_of(bottom, height) {
            let middle = row as i64 * UNITS + UNITS / 2;
            // The x of the crossing times the height of the edge, then the first column whose centre is not
            // left of it. Values stay below 2^61.
            let crossing = top_x * tall + (middle - top) * (bottom_x - top_x);
            let column = -(UNITS / 2 * tall - crossing).div_euclid(UNITS * tall);
            let column = (column - columns.start as i64).max(0) as usize;
            if column < wide {
                spare[(row - rows.start) * wide + column] ^= 1;
            }
        }
    }
    for (row, crossed) in rows.zip(spare.chunks_exact(wide)) {
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
