//! Images of one size in rows, without gaps and captions, and small versions of images.

use super::TileScale;
use super::image::RgbImage;
use super::palette::ClassPalette;
use crate::buffer::IGNORED_LABEL;

/// The division of both sides by the smallest whole factor that makes them at most `max_side` pixels long.
fn shrink_scale([height, width]: [usize; 2], max_side: usize) -> TileScale {
    TileScale::Shrink(height.max(width).div_ceil(max_side.max(1)).max(1))
}

/// The size (H, W) of an image of `size` after [`RgbImage::shrunk_to`].
#[must_use]
pub fn shrunk_size(size: [usize; 2], max_side: usize) -> [usize; 2] {
    let scale = shrink_scale(size, max_side);
    size.map(|length| scale.scaled(length))
}

impl RgbImage {
    /// The image with both sides divided by the smallest whole factor that makes them at most `max_side`
    /// pixels long. A pixel is the mean of those that it replaces.
    #[must_use]
    pub fn shrunk_to(&self, max_side: usize) -> Self {
        let size = [self.height, self.width];
        let scale = shrink_scale(size, max_side);
        let [height, width] = shrunk_size(size, max_side);
        let mut pixels = Vec::with_capacity(3 * height * width);
        for y in 0..height {
            for x in 0..width {
                let (rows, columns) = (scale.source(y, self.height), scale.source(x, self.width));
                let count = (rows.len() * columns.len()).max(1);
                let mut sums = [0; 3];
                for row in rows {
                    let line = &self.pixels[3 * (row * self.width + columns.start)..];
                    for pixel in line.as_chunks::<3>().0.iter().take(columns.len()) {
                        sums.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += usize::from(*value));
                    }
                }
                pixels.extend(sums.map(|sum| (sum / count) as u8));
            }
        }
        Self { pixels, height, width }
    }

    /// A mask of `size` (H, W) in the colours of its classes; ignored pixels are black.
    #[must_use]
    pub fn of_mask(mask: &[i32], [height, width]: [usize; 2], palette: &ClassPalette) -> Self {
        let colour = |&class: &i32| usize::try_from(class).map_or([0; 3], |class| palette.colour(class));
        Self { pixels: mask.iter().flat_map(colour).collect(), height, width }
    }
}

/// A mask of `size` (H, W), scaled to the size `to` (nearest neighbour).
#[must_use]
pub fn resized(mask: &[i32], size: [usize; 2], to: [usize; 2]) -> Vec<i32> {
    let [height, width] = to;
    let source = |y: usize, x: usize| (y * size[0] / height) * size[1] + x * size[1] / width;
    let pixels = (0..height).flat_map(|y| (0..width).map(move |x| source(y, x)));
    pixels.map(|at| mask.get(at).copied().unwrap_or(IGNORED_LABEL)).collect()
}

/// Images of `size` (H, W) in rows of `columns`; what remains of the last row is black.
#[must_use]
pub fn grid(images: &[&RgbImage], size: [usize; 2], columns: usize) -> RgbImage {
    let [height, width] = size;
    let columns = columns.min(images.len()).max(1);
    let mut grid = RgbImage::filled([0; 3], images.len().div_ceil(columns) * height, columns * width);
    for (number, image) in images.iter().enumerate() {
        let [top, left] = [number / columns * height, number % columns * width];
        for y in 0..height.min(image.height) {
            let count = 3 * width.min(image.width);
            let to = 3 * ((top + y) * grid.width + left);
            let from = 3 * y * image.width;
            grid.pixels[to..to + count].copy_from_slice(&image.pixels[from..from + count]);
        }
    }
    grid
}

/// Masks of `size` (H, W) in rows of `columns`; what remains of the last row is ignored. Returns the mask and
/// its size.
#[must_use]
pub fn grid_of_masks(masks: &[Vec<i32>], size: [usize; 2], columns: usize) -> (Vec<i32>, [usize; 2]) {
    let [height, width] = size;
    let columns = columns.min(masks.len()).max(1);
    let (rows, row_width) = (masks.len().div_ceil(columns), columns * width);
    let mut all = vec![IGNORED_LABEL; rows * height * row_width];
    for (number, mask) in masks.iter().enumerate() {
        let start = number / columns * height * row_width + number % columns * width;
        for (y, line) in mask.chunks_exact(width.max(1)).take(height).enumerate() {
            all[start + y * row_width..start + y * row_width + width].copy_from_slice(line);
        }
    }
    (all, [rows * height, row_width])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(height: usize, width: usize, value: impl Fn(usize) -> u8) -> RgbImage {
        RgbImage { pixels: (0..height * width).flat_map(|at| [value(at); 3]).collect(), height, width }
    }

    #[test]
    fn small_images_are_means() {
        let whole = image(3, 5, |at| at as u8 * 10);
        assert_eq!(whole.shrunk_to(5), whole);
        let half = whole.shrunk_to(4);
        assert_eq!((half.height, half.width), (2, 3));
        assert_eq!(shrunk_size([3, 5], 4), [2, 3]);
        assert_eq!(shrunk_size([1024, 2048], 192), [94, 187]);
        let grey: Vec<u8> = half.pixels.iter().copied().step_by(3).collect();
        // (0 + 10 + 50 + 60) / 4, …; the last row and column have fewer pixels.
        assert_eq!(grey, [30, 50, 65, 105, 125, 140]);
        assert_eq!(whole.shrunk_to(1).pixels, [70; 3]);
        assert_eq!(whole.shrunk_to(0).pixels, [70; 3]);
    }

    #[test]
    fn grids_have_images_in_rows() {
        let images: Vec<RgbImage> = (1..=3).map(|value| image(1, 2, |_| value)).collect();
        let images: Vec<&RgbImage> = images.iter().collect();
        let all = grid(&images, [1, 2], 2);
        assert_eq!((all.height, all.width), (2, 4));
        let grey: Vec<u8> = all.pixels.iter().copied().step_by(3).collect();
        assert_eq!(grey, [1, 1, 2, 2, 3, 3, 0, 0]);
        assert_eq!((grid(&images, [1, 2], 8).height, grid(&images, [1, 2], 8).width), (1, 6));
        let masks = [vec![1, 1], vec![2, 2], vec![3, 3]];
        assert_eq!(grid_of_masks(&masks, [1, 2], 2), (vec![1, 1, 2, 2, 3, 3, -1, -1], [2, 4]));
        assert_eq!(grid_of_masks(&[], [1, 2], 2), (Vec::new(), [0, 2]));
    }

    #[test]
    fn masks_are_scaled_and_coloured() {
        assert_eq!(resized(&[1, 2, 3, 4], [2, 2], [4, 2]), [1, 2, 1, 2, 3, 4, 3, 4]);
        assert_eq!(resized(&[1, 2, 3, 4], [2, 2], [1, 1]), [1]);
        assert_eq!(resized(&[1], [2, 2], [2, 1]), [1, IGNORED_LABEL]);
        let palette = ClassPalette::default();
        let drawn = RgbImage::of_mask(&[0, IGNORED_LABEL], [1, 2], &palette);
        assert_eq!(drawn.pixels, [palette.colour(0), [0; 3]].concat());
    }
}
