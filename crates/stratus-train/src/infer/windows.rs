//! Inference on images larger than the network's input: overlapping windows, whose logits are averaged.
//!
//! ```text
//! windows start at 0, s, 2s, …, the last at length - window; s = window - overlap, at least 1
//! logits(k, pixel) = Σ over the windows that contain the pixel / their number
//! ```
//!
//! Logits are summed in the order of the windows, row by row, so masks do not depend on the batch size.
//! Memory is needed only for the image's pixels, its mask, and the sums of the rows of the current windows,
//! `[classes, h, W]`.

use std::collections::TryReserveError;

/// Windows that cover an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlidingWindows {
    size: [usize; 2],
    overlap: f64,
}

impl SlidingWindows {
    /// Windows of `size`, height and width, that overlap by the fraction `overlap` of their size.
    ///
    /// # Errors
    /// If the size is 0, or the overlap is not at least 0 and below 1.
    pub fn new(size: [usize; 2], overlap: f64) -> Result<Self, String> {
        if size.contains(&0) {
            return Err("a window must have at least one pixel".to_owned());
        }
        if !(0.0..1.0).contains(&overlap) {
            return Err(format!(
                "the overlap of windows must be at least 0 and less than 1, but is {overlap}"
            ));
        }
        Ok(Self { size, overlap })
    }

    /// Height and width of a window.
    #[must_use]
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// The start of each window along an axis (0: rows) of `length` pixels; `None` if it is shorter than a
    /// window.
    fn starts(&self, axis: usize, length: usize) -> Option<Vec<usize>> {
        let window = self.size[axis];
        let last = length.checked_sub(window)?;
        let overlap = (window as f64 * self.overlap).round() as usize;
        let step = window.saturating_sub(overlap).max(1);
        Some((0..=last.div_ceil(step)).map(|number| (number * step).min(last)).collect())
    }

    /// The corners of an image's windows, row by row; `None` if the image is smaller than a window.
    #[must_use]
    pub fn corners(&self, [height, width]: [usize; 2]) -> Option<Corners> {
        Some(Corners { rows: self.starts(0, height)?, columns: self.starts(1, width)? })
    }
}

/// The top left corners of an image's windows.
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

/// The sums of the logits of an image's windows. Stores only the rows of the current windows, `[classes, h,
/// W]`: windows are added row by row, and a row of pixels is complete once the next windows start below it.
#[derive(Debug)]
pub(crate) struct LogitSums {
    classes: usize,
    /// Height and width of the image.
    size: [usize; 2],
    /// Height and width of a window.
    window: [usize; 2],
    /// `[classes, h, W]`: row `y` of the image is row `y % h`.
    sums: Vec<f32>,
    /// The number of window rows (columns) that contain each row (column) of pixels.
    coverage: [Vec<u32>; 2],
    /// The number of complete rows.
    complete: usize,
    /// The class of every pixel of the complete rows.
    predicted: Vec<i32>,
    /// The label of every pixel; empty without labels.
    labels: Vec<i32>,
    /// The sum of the losses so far, and the number of labelled pixels.
    loss: [f64; 2],
    /// Memory for the logits of a pixel.
    pixel: Vec<f64>,
    /// The best class and its logit of each pixel of a row.
    best: Vec<(i32, f32)>,
}

/// The results for an image that was evaluated in windows.
#[derive(Debug)]
pub(crate) struct WindowResults {
    /// The class of every pixel, row-major: that of the largest logit, the first of equal ones. NaN is never
    /// the largest.
    pub predicted: Vec<i32>,
    /// The labels of the pixels; empty without labels.
    pub labels: Vec<i32>,
    /// The sum of the cross-entropy losses of the averaged logits over labelled pixels, and their number.
    /// Labels that exceed the number of classes are ignored.
    pub loss: [f64; 2],
}

impl LogitSums {
    /// Empty sums for an image of `size` in `windows`, with the label of every pixel or none.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(
        classes: usize,
        size: [usize; 2],
        windows: &SlidingWindows,
        labels: Vec<i32>,
    ) -> Result<Self, TryReserveError> {
        let coverage = [0, 1].map(|axis: usize| {
            let mut counts = vec![0; size[axis]];
            for start in windows.starts(axis, size[axis]).unwrap_or_default() {
                counts[start..start + windows.size[axis]].iter_mut().for_each(|count| *count += 1);
            }
            counts
        });
        let count = Self::sum_count(classes, size, windows).unwrap_or(usize::MAX);
        let mut sums = Vec::new();
        sums.try_reserve_exact(count)?;
        sums.resize(count, 0.0);
        let mut predicted = Vec::new();
        predicted.try_reserve_exact(size[0] * size[1])?;
        let (pixel, best) = (vec![0.0; classes], vec![(0, 0.0); size[1]]);
        let (window, complete, loss) = (windows.size, 0, [0.0; 2]);
        Ok(Self { classes, size, window, sums, coverage, complete, predicted, labels, loss, pixel, best })
    }

    /// The number of sums that are stored for an image; `None` if it overflows `usize`.
    fn sum_count(classes: usize, size: [usize; 2], windows: &SlidingWindows) -> Option<usize> {
        classes.checked_mul(windows.size[0])?.checked_mul(size[1])
    }

    /// Bytes of the sums and of the predicted classes.
    pub fn bytes(classes: usize, size: [usize; 2], windows: &SlidingWindows) -> u64 {
        let count = Self::sum_count(classes, size, windows).unwrap_or(usize::MAX) as u64;
        count.saturating_add(size[0] as u64 * size[1] as u64).saturating_mul(4)
    }

    /// Adds the logits of the window at a corner, `[classes, h, w]`. Windows must be added row by row.
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
    pub fn finish(mut self) -> WindowResults {
        self.complete_to(self.size[0]);
        WindowResults { predicted: self.predicted, labels: self.labels, loss: self.loss }
    }

    /// Evaluates the rows above `row`, which no further window contains, and reuses their memory.
    fn complete_to(&mut self, row: usize) {
        let (h, width) = (self.window[0], self.size[1]);
        for y in self.complete..row {
            let line = |class: usize| (class * h + y % h) * width..(class * h + y % h + 1) * width;
            self.best.fill((0, f32::NEG_INFINITY));
            for (class, index) in (0..self.classes).zip(0..) {
                for (best, &sum) in self.best.iter_mut().zip(&self.sums[line(class)]) {
                    if sum > best.1 {
                        *best = (index, sum);
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
            let windows = f64::from(self.coverage[0][y]) * f64::from(self.coverage[1][x]);
            for (class, logit) in self.pixel.iter_mut().enumerate() {
                *logit = f64::from(self.sums[(class * h + y % h) * width + x]) / windows;
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
    fn windows_cover_an_image_exactly() {
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

    /// Compared with the definition, pixel by pixel.
    #[test]
    fn averages_logits_of_overlapping_windows() {
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
        let WindowResults { predicted, loss: [loss, counted], labels: kept } = sums.finish();
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
        let WindowResults { predicted, loss, .. } = sums.finish();
        assert_eq!((&predicted[..], loss), (&[0, 0][..], [0.0, 0.0]));
    }

    #[test]
    fn stores_only_the_rows_of_the_current_windows() {
        let windows = SlidingWindows::new([24, 32], 0.0).unwrap();
        assert_eq!(LogitSums::bytes(11, [9000, 9000], &windows), 4 * (11 * 24 * 9000 + 9000 * 9000));
        let largest = SlidingWindows::new([usize::MAX / 2, 1], 0.0).unwrap();
        assert_eq!(LogitSums::bytes(usize::MAX, [usize::MAX / 2, 2], &largest), u64::MAX);
        assert!(LogitSums::new(usize::MAX, [8, 8], &windows, Vec::new()).is_err());
    }
}
