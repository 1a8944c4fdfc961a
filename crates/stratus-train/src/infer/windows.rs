//! Images larger than the network's input: windows that overlap, whose logits are averaged.
//!
//! ```text
//! windows begin at 0, s, 2s, …, the last at length - window; s = window - overlap, at least 1
//! logits(k, pixel) = Σ of the windows that see the pixel / their number
//! ```
//!
//! Sums are made in the order of the windows, row by row: masks do not depend on how many go through the
//! network together. Of an image no more is held than its pixels, its mask, and the sums of the rows that
//! windows still see, `[classes, h, W]`.

use std::collections::TryReserveError;

/// Windows that cover an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlidingWindows {
    size: [usize; 2],
    overlap: f64,
}

impl SlidingWindows {
    /// Windows of `size`, height and width, of which neighbours share a part: `overlap` of their height and
    /// of their width.
    ///
    /// # Errors
    /// Where there are no such windows: why.
    pub fn new(size: [usize; 2], overlap: f64) -> Result<Self, String> {
        if size.contains(&0) {
            return Err("a window has at least one pixel".to_owned());
        }
        if !(0.0..1.0).contains(&overlap) {
            return Err(format!(
                "windows overlap by at least 0 and less than 1 of their size, not {overlap}"
            ));
        }
        Ok(Self { size, overlap })
    }

    /// Height and width of a window.
    #[must_use]
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// Where windows begin along an axis, 0 the rows, of an image so long; `None` where it is shorter than a
    /// window.
    fn starts(&self, axis: usize, length: usize) -> Option<Vec<usize>> {
        let window = self.size[axis];
        let last = length.checked_sub(window)?;
        let shared = (window as f64 * self.overlap).round() as usize;
        let step = window.saturating_sub(shared).max(1);
        Some((0..=last.div_ceil(step)).map(|number| (number * step).min(last)).collect())
    }

    /// Where the windows of an image begin, row by row; `None` where the image is smaller than a window.
    #[must_use]
    pub fn corners(&self, [height, width]: [usize; 2]) -> Option<Corners> {
        Some(Corners { rows: self.starts(0, height)?, columns: self.starts(1, width)? })
    }
}

/// Where the windows of an image begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corners {
    rows: Vec<usize>,
    columns: Vec<usize>,
}

impl Corners {
    /// Row and column of each window, row by row.
    pub fn iter(&self) -> impl Iterator<Item = [usize; 2]> + '_ {
        self.rows.iter().flat_map(|&row| self.columns.iter().map(move |&column| [row, column]))
    }
}

/// The logits of an image's windows, added up. No more is held than the rows that windows still see,
/// `[classes, h, W]`: windows come row by row, and a row of pixels is complete when the next windows begin
/// below it.
#[derive(Debug)]
pub(crate) struct LogitSums {
    classes: usize,
    /// Height and width of the image.
    size: [usize; 2],
    /// Height and width of a window.
    window: [usize; 2],
    /// `[classes, h, W]`: row `y` of the image is row `y % h`.
    sums: Vec<f32>,
    /// How many rows and columns of windows see each row and column of pixels.
    seen: [Vec<u32>; 2],
    /// The rows that are complete.
    complete: usize,
    /// The class of every pixel of the complete rows.
    predicted: Vec<i32>,
    /// The label of every pixel; empty where none is known.
    labels: Vec<i32>,
    /// The sum of the losses so far, and the pixels that count.
    loss: [f64; 2],
    /// The logits of a pixel, and the best class and its logit of each pixel of a row.
    pixel: Vec<f64>,
    best: Vec<(i32, f32)>,
}

/// The results for an image that was seen through windows.
#[derive(Debug)]
pub(crate) struct Summed {
    /// The class of every pixel, row-major: that of the largest logit, the first of equal ones; NaN is never
    /// the largest.
    pub predicted: Vec<i32>,
    /// The labels that it was made with.
    pub labels: Vec<i32>,
    /// The sum of the losses, cross-entropy of the averaged logits, over the pixels with a class, and their
    /// number. Labels beyond the classes are passed over.
    pub loss: [f64; 2],
}

impl LogitSums {
    /// Nothing yet, for an image of `size` that `windows` cover; with the label of every pixel, or none.
    ///
    /// # Errors
    /// Where there is no memory for it.
    pub fn new(
        classes: usize,
        size: [usize; 2],
        windows: &SlidingWindows,
        labels: Vec<i32>,
    ) -> Result<Self, TryReserveError> {
        let seen = [0, 1].map(|axis: usize| {
            let mut seen = vec![0; size[axis]];
            for start in windows.starts(axis, size[axis]).unwrap_or_default() {
                seen[start..start + windows.size[axis]].iter_mut().for_each(|count| *count += 1);
            }
            seen
        });
        let held = Self::held(classes, size, windows).unwrap_or(usize::MAX);
        let mut sums = Vec::new();
        sums.try_reserve_exact(held)?;
        sums.resize(held, 0.0);
        let mut predicted = Vec::new();
        predicted.try_reserve_exact(size[0] * size[1])?;
        let (pixel, best) = (vec![0.0; classes], vec![(0, 0.0); size[1]]);
        let (window, complete, loss) = (windows.size, 0, [0.0; 2]);
        Ok(Self { classes, size, window, sums, seen, complete, predicted, labels, loss, pixel, best })
    }

    /// The sums that are held for an image; `None` where their number overflows `usize`.
    fn held(classes: usize, size: [usize; 2], windows: &SlidingWindows) -> Option<usize> {
        classes.checked_mul(windows.size[0])?.checked_mul(size[1])
    }

    /// Bytes of the sums and of the predicted classes.
    pub fn bytes(classes: usize, size: [usize; 2], windows: &SlidingWindows) -> u64 {
        let held = Self::held(classes, size, windows).unwrap_or(usize::MAX) as u64;
        held.saturating_add(size[0] as u64 * size[1] as u64).saturating_mul(4)
    }

    /// Adds the logits of a window, `[classes, h, w]`, that begins at a corner. Windows come row by row.
    pub fn add(&mut self, [row, column]: [usize; 2], logits: &[f32]) {
        self.complete_to(row);
        let ([h, w], width) = (self.window, self.size[1]);
        for (from, line) in logits.chunks_exact(w).zip(0..) {
            let (class, y): (usize, usize) = (line / h, line % h);
            let start = (class * h + (row + y) % h) * width + column;
            for (sum, logit) in self.sums[start..start + w].iter_mut().zip(from) {
                *sum += logit;
            }
        }
    }

    /// The results, after the last window.
    pub fn finish(mut self) -> Summed {
        self.complete_to(self.size[0]);
        Summed { predicted: self.predicted, labels: self.labels, loss: self.loss }
    }

    /// Evaluates the rows above `row`, which no further window sees, and makes room for those below.
    fn complete_to(&mut self, row: usize) {
        let (h, width) = (self.window[0], self.size[1]);
        for y in self.complete..row {
            let line = |class: usize| (class * h + y % h) * width..(class * h + y % h + 1) * width;
            self.best.fill((0, f32::NEG_INFINITY));
            for (class, number) in (0..self.classes).zip(0..) {
                for (best, &sum) in self.best.iter_mut().zip(&self.sums[line(class)]) {
                    if sum > best.1 {
                        *best = (number, sum);
                    }
                }
            }
            self.predicted.extend(self.best.iter().map(|(class, _)| class));
            self.add_loss(y);
            for class in 0..self.classes {
                self.sums[line(class)].fill(0.0);
            }
        }
        self.complete = self.complete.max(row);
    }

    /// Adds the losses of a complete row.
    fn add_loss(&mut self, y: usize) {
        let (h, width) = (self.window[0], self.size[1]);
        for (x, &label) in self.labels.iter().skip(y * width).take(width).enumerate() {
            let Some(label) = usize::try_from(label).ok().filter(|&label| label < self.classes) else {
                continue;
            };
            let seen = f64::from(self.seen[0][y]) * f64::from(self.seen[1][x]);
            for (class, logit) in self.pixel.iter_mut().enumerate() {
                *logit = f64::from(self.sums[(class * h + y % h) * width + x]) / seen;
            }
            let largest = self.pixel.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = self.pixel.iter().map(|logit| (logit - largest).exp()).sum();
            self.loss[0] += sum.ln() + largest - self.pixel[label];
            self.loss[1] += 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_an_image_and_end_with_it() {
        let starts =
            |window, overlap, length| SlidingWindows::new([window, 1], overlap).unwrap().starts(0, length);
        assert_eq!(starts(4, 0.0, 10), Some(vec![0, 4, 6]));
        assert_eq!(starts(4, 0.5, 10), Some(vec![0, 2, 4, 6]));
        assert_eq!(starts(10, 0.1, 19), Some(vec![0, 9]));
        assert_eq!(starts(4, 0.99, 6), Some(vec![0, 1, 2]));
        assert_eq!(starts(4, 0.5, 4), Some(vec![0]));
        assert_eq!(starts(4, 0.5, 3), None);
        let windows = SlidingWindows::new([2, 3], 0.0).unwrap();
        assert_eq!(windows.corners([3, 3]).unwrap().iter().collect::<Vec<_>>(), [[0, 0], [1, 0]]);
        assert_eq!(windows.corners([9, 2]), None);
        for (size, overlap) in
            [([0, 4], 0.5), ([4, 0], 0.5), ([4, 4], 1.0), ([4, 4], -0.1), ([4, 4], f64::NAN)]
        {
            assert!(SlidingWindows::new(size, overlap).is_err(), "{size:?} {overlap}");
        }
    }

    /// Against the definition, pixel by pixel.
    #[test]
    fn logits_are_averaged_where_windows_overlap() {
        let (classes, size, windows) = (3, [5, 7], SlidingWindows::new([2, 3], 0.5).unwrap());
        let logit = |window: usize, at: usize| ((window * 31 + at * 17) % 23) as f32 / 7.0 - 1.5;
        let corners: Vec<[usize; 2]> = windows.corners(size).unwrap().iter().collect();
        let labels: Vec<i32> = (0..35).map(|pixel| pixel % 4 - 1).collect();
        let mut sums = LogitSums::new(classes, size, &windows, labels.clone()).unwrap();
        // Two of five rows.
        assert_eq!(sums.sums.len(), classes * 2 * 7);
        for (number, &corner) in corners.iter().enumerate() {
            let logits: Vec<f32> = (0..classes * 6).map(|at| logit(number, at)).collect();
            sums.add(corner, &logits);
        }
        let Summed { predicted, loss: [loss, counted], labels: kept } = sums.finish();
        assert_eq!((predicted.len(), &kept), (35, &labels));
        let mut losses = 0.0;
        for (pixel, &label) in labels.iter().enumerate() {
            let mut averages = [0.0; 3];
            let mut count = 0.0;
            for (number, [row, column]) in corners.iter().enumerate() {
                let (Some(y), Some(x)) = ((pixel / 7).checked_sub(*row), (pixel % 7).checked_sub(*column))
                else {
                    continue;
                };
                if y < 2 && x < 3 {
                    count += 1.0;
                    (0..3).for_each(|class| {
                        averages[class] += f64::from(logit(number, (class * 2 + y) * 3 + x));
                    });
                }
            }
            averages.iter_mut().for_each(|average| *average /= count);
            let best =
                (0..3).fold(0, |best, class| if averages[class] > averages[best] { class } else { best });
            assert_eq!(predicted[pixel], best as i32, "{pixel}: {averages:?}");
            if let Ok(label) = usize::try_from(label) {
                losses += averages.iter().map(|logit| logit.exp()).sum::<f64>().ln() - averages[label];
            }
        }
        assert_eq!(counted, labels.iter().filter(|&&label| label >= 0).count() as f64);
        assert!((loss - losses).abs() < 1e-4, "{loss} {losses}");
    }

    #[test]
    fn never_predicts_nan() {
        let windows = SlidingWindows::new([1, 1], 0.0).unwrap();
        let mut sums = LogitSums::new(2, [1, 2], &windows, vec![-1, 7]).unwrap();
        sums.add([0, 0], &[f32::NAN, f32::NEG_INFINITY]);
        sums.add([0, 1], &[1.0, 1.0]);
        let Summed { predicted, loss, .. } = sums.finish();
        assert_eq!((&predicted[..], loss), (&[0, 0][..], [0.0, 0.0]));
    }

    #[test]
    fn holds_the_rows_that_windows_still_see() {
        let windows = SlidingWindows::new([24, 32], 0.0).unwrap();
        assert_eq!(LogitSums::bytes(11, [9000, 9000], &windows), 4 * (11 * 24 * 9000 + 9000 * 9000));
        let most = SlidingWindows::new([usize::MAX / 2, 1], 0.0).unwrap();
        assert_eq!(LogitSums::bytes(usize::MAX, [usize::MAX / 2, 2], &most), u64::MAX);
        assert!(LogitSums::new(usize::MAX, [8, 8], &windows, Vec::new()).is_err());
    }
}
