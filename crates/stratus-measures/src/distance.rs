//! The exact Euclidean distance transform of an image.

/// Squared Euclidean distances to the nearest of a set of pixels, by the two phases of Meijster, Roerdink and
/// Hesselink ("A general algorithm for computing distance transforms in linear time", 2000): distances within
/// columns for all pixels, and the least of a row's `column² + across²` where a distance is asked for. All is
/// in integers, so the distances are exact.
///
/// Where few pixels are asked, and what they look for is near, as with the boundaries of two segmentations,
/// the second phase costs next to nothing. It takes at most a row's length for each pixel.
#[derive(Clone, Debug, Default)]
pub struct DistanceTransform {
    width: usize,
    /// `[height, width]`: the distance to the nearest pixel of the set in the same column.
    columns: Vec<u16>,
}

/// The distance where a column has no pixel of the set.
const FAR: u16 = u16::MAX;

impl DistanceTransform {
    /// The largest height: longer distances do not fit the type.
    pub const LARGEST_HEIGHT: usize = FAR as usize;

    /// The first phase: distances to the pixels of `image`, row-major and `width` wide, that equal `wanted`.
    /// A height of more than [`LARGEST_HEIGHT`](Self::LARGEST_HEIGHT) is not supported: distances beyond it
    /// are not found. Allocates only where no earlier image was as large.
    pub fn measure<T: Copy + PartialEq>(&mut self, image: &[T], width: usize, wanted: T) {
        self.width = width;
        self.columns.clear();
        self.columns.resize(image.len(), FAR);
        if width == 0 {
            return;
        }
        // Down, then up; rows are the inner loop, so that it is vectorised.
        let mut above: Option<&mut [u16]> = None;
        for (row, pixels) in self.columns.chunks_mut(width).zip(image.chunks(width)) {
            match &above {
                None => row.iter_mut().zip(pixels).for_each(|(distance, &pixel)| {
                    *distance = if pixel == wanted { 0 } else { FAR };
                }),
                Some(above) => {
                    for ((distance, &pixel), &before) in row.iter_mut().zip(pixels).zip(above.iter()) {
                        *distance = if pixel == wanted { 0 } else { before.saturating_add(1) };
                    }
                }
            }
            above = Some(row);
        }
        let mut below: Option<&mut [u16]> = None;
        for row in self.columns.chunks_mut(width).rev() {
            if let Some(below) = &below {
                for (distance, &after) in row.iter_mut().zip(below.iter()) {
                    *distance = (*distance).min(after.saturating_add(1));
                }
            }
            below = Some(row);
        }
    }

    /// The second phase at one pixel, an index into the image: its squared distance to the nearest pixel of
    /// the set, where it is at most `limit`. `None` where it is larger, or there is no such pixel.
    #[must_use]
    pub fn squared(&self, pixel: usize, limit: u64) -> Option<u64> {
        let column = pixel.checked_rem(self.width)?;
        let row = self.columns.get(pixel - column..pixel - column + self.width)?;
        let down = |column: usize| {
            let distance = *row.get(column)?;
            (distance < FAR).then(|| u64::from(distance).pow(2))
        };
        let mut best = down(column);
        for reach in 1..self.width {
            let across = (reach as u64).pow(2);
            if across > limit || best.is_some_and(|best| across >= best) {
                break;
            }
            let (left, right) = (column.checked_sub(reach), column + reach);
            if left.is_none() && right >= self.width {
                break;
            }
            for found in [left.and_then(down), down(right)].into_iter().flatten() {
                best = Some(best.map_or(across + found, |best| best.min(across + found)));
            }
        }
        best.filter(|&best| best <= limit)
    }
}
