//! Images larger than the network's input: windows that overlap, whose logits are averaged.
//!
//! ```text
//! windows begin at 0, s, 2s, …, the last at length - window; s = window - overlap, at least 1
//! logits(k, pixel) = Σ of the windows that see the pixel / their number
//! ```
//!
//! Sums are made in the order of the windows, row by row: masks do not depend on how many go through the
//! network together. Of an image no more is kept than its pixels and its sums, `[classes, H, W]`.

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

    /// Row and column where each window of an image begins, row by row; `None` where the image is smaller
    /// than a window.
    #[must_use]
    pub fn corners(&self, [height, width]: [usize; 2]) -> Option<Vec<[usize; 2]>> {
        let (rows, columns) = (self.starts(0, height)?, self.starts(1, width)?);
        Some(rows.iter().flat_map(|&row| columns.iter().map(move |&column| [row, column])).collect())
    }
}

/// The logits of an image's windows, added up.
#[derive(Debug)]
pub(crate) struct LogitSums {
    classes: usize,
    size: [usize; 2],
    /// `[classes, H, W]`.
    sums: Vec<f32>,
    /// How many rows and columns of windows see each row and column of pixels.
    seen: [Vec<u32>; 2],
}

impl LogitSums {
    /// Nothing yet, for an image that `windows` cover.
    pub fn new(classes: usize, size: [usize; 2], windows: &SlidingWindows) -> Self {
        let seen = [0, 1].map(|axis: usize| {
            let mut seen = vec![0; size[axis]];
            for start in windows.starts(axis, size[axis]).unwrap_or_default() {
                seen[start..start + windows.size[axis]].iter_mut().for_each(|count| *count += 1);
            }
            seen
        });
        Self { classes, size, sums: vec![0.0; classes * size[0] * size[1]], seen }
    }

    /// Adds the logits of a window, `[classes, h, w]`, that begins at a corner.
    pub fn add(&mut self, [row, column]: [usize; 2], [h, w]: [usize; 2], logits: &[f32]) {
        let [height, width] = self.size;
        for (from, line) in logits.chunks_exact(w).zip(0..) {
            let (class, y): (usize, usize) = (line / h, line % h);
            let start = (class * height + row + y) * width + column;
            for (sum, logit) in self.sums[start..start + w].iter_mut().zip(from) {
                *sum += logit;
            }
        }
    }

    /// The class of every pixel: that of the largest logit, the first of equal ones; NaN is never the
    /// largest.
    pub fn classes(&self) -> Vec<i32> {
        let pixels = self.size[0] * self.size[1];
        let mut best = vec![(0, f32::NEG_INFINITY); pixels];
        for (sums, class) in self.sums.chunks_exact(pixels).zip(0..) {
            for (best, &sum) in best.iter_mut().zip(sums) {
                if sum > best.1 {
                    *best = (class, sum);
                }
            }
        }
        best.into_iter().map(|(class, _)| class).collect()
    }

    /// The sum of the losses, cross-entropy of the averaged logits, over the pixels with a class, and their
    /// number. Labels beyond the classes are passed over.
    pub fn loss(&self, labels: &[i32]) -> [f64; 2] {
        let [height, width] = self.size;
        let (mut loss, mut counted) = (0.0, 0.0);
        let mut logits = vec![0.0; self.classes];
        for (pixel, &label) in labels.iter().enumerate() {
            let Some(label) = usize::try_from(label).ok().filter(|&label| label < self.classes) else {
                continue;
            };
            let seen = f64::from(self.seen[0][pixel / width]) * f64::from(self.seen[1][pixel % width]);
            for (class, logit) in logits.iter_mut().enumerate() {
                *logit = f64::from(self.sums[class * height * width + pixel]) / seen;
            }
            let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
            loss += sum.ln() + largest - logits[label];
            counted += 1.0;
        }
        [loss, counted]
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
        assert_eq!(windows.corners([3, 3]), Some(vec![[0, 0], [1, 0]]));
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
        let corners = windows.corners(size).unwrap();
        let mut sums = LogitSums::new(classes, size, &windows);
        for (number, &corner) in corners.iter().enumerate() {
            let logits: Vec<f32> = (0..classes * 6).map(|at| logit(number, at)).collect();
            sums.add(corner, windows.size(), &logits);
        }
        let (predicted, labels) = (sums.classes(), (0..35).map(|pixel| pixel % 4 - 1).collect::<Vec<i32>>());
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
        let [loss, counted] = sums.loss(&labels);
        assert_eq!(counted, labels.iter().filter(|&&label| label >= 0).count() as f64);
        assert!((loss - losses).abs() < 1e-4, "{loss} {losses}");
    }

    #[test]
    fn what_is_no_number_is_not_predicted() {
        let windows = SlidingWindows::new([1, 1], 0.0).unwrap();
        let mut sums = LogitSums::new(2, [1, 2], &windows);
        sums.add([0, 0], [1, 1], &[f32::NAN, f32::NEG_INFINITY]);
        sums.add([0, 1], [1, 1], &[1.0, 1.0]);
        assert_eq!(sums.classes(), [0, 0]);
        assert_eq!(sums.loss(&[-1, 7]), [0.0, 0.0]);
    }
}
