//! The exact Euclidean distance transform of an image.

/// Squared Euclidean distances to the nearest of a set of pixels, by the two phases of Meijster, Roerdink and
/// Hesselink ("A general algorithm for computing distance transforms in linear time", 2000).
///
/// The first phase computes distances within columns for all pixels. The second takes the minimum of a row's
/// `column² + across²`, only for the requested pixels. Distances are integers, hence exact.
///
/// The second phase costs at most a row's length per pixel, and almost nothing if the set is near, as with
/// the boundaries of two segmentations.
#[derive(Clone, Debug, Default)]
pub struct DistanceTransform {
    width: usize,
    /// `[height, width]`: the distance to the nearest pixel of the set in the same column.
    columns: Vec<u16>,
}

/// The distance in a column without a pixel of the set.
const NO_PIXEL: u16 = u16::MAX;

impl DistanceTransform {
    /// The maximum height, since longer distances do not fit the type.
    pub const MAX_HEIGHT: usize = NO_PIXEL as usize;

    /// Computes the first phase for the pixels of `image`, row-major and `width` wide, that equal `wanted`.
    /// Distances beyond [`MAX_HEIGHT`](Self::MAX_HEIGHT) rows are not found. Allocates only if no earlier
    /// image had this size.
    pub fn compute<T: Copy + PartialEq>(&mut self, image: &[T], width: usize, wanted: T) {
        self.width = width;
        self.columns.clear();
        self.columns.resize(image.len(), NO_PIXEL);
        if width == 0 {
            return;
        }
        // Down, then up. Rows are the inner loop, so that it is vectorised.
        let mut above: Option<&mut [u16]> = None;
        for (row, pixels) in self.columns.chunks_mut(width).zip(image.chunks(width)) {
            match &above {
                None => row.iter_mut().zip(pixels).for_each(|(distance, &pixel)| {
                    *distance = if pixel == wanted { 0 } else { NO_PIXEL };
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

    /// The squared distance from the pixel at index `pixel` to the nearest pixel of the set (second phase),
    /// or `None` if it exceeds `limit` or the set is empty.
    #[must_use]
    pub fn squared_at(&self, pixel: usize, limit: u64) -> Option<u64> {
        let column = pixel.checked_rem(self.width)?;
        let row = self.columns.get(pixel - column..pixel - column + self.width)?;
        let squared_in_column = |column: usize| {
            let distance = *row.get(column)?;
            (distance < NO_PIXEL).then(|| u64::from(distance).pow(2))
        };
        let mut best = squared_in_column(column);
        for reach in 1..self.width {
            let across = (reach as u64).pow(2);
            if across > limit || best.is_some_and(|best| across >= best) {
                break;
            }
            let (left, right) = (column.checked_sub(reach), column + reach);
            if left.is_none() && right >= self.width {
                break;
            }
            for found in [left.and_then(squared_in_column), squared_in_column(right)].into_iter().flatten() {
                best = Some(best.map_or(across + found, |best| best.min(across + found)));
            }
        }
        best.filter(|&best| best <= limit)
    }
}
