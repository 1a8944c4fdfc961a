//! Test-time augmentation: mirrored and shifted views of a batch, over which evaluation averages.

use crate::buffer::BatchBuffer;
use crate::transform::pixels::{Element, Layout};

/// A view of an image, mirrored and then shifted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TtaView {
    /// True if the image is mirrored left to right.
    pub mirrored: bool,
    /// The shift downwards, in pixels.
    pub down: isize,
    /// The shift to the right, in pixels.
    pub right: isize,
}

impl TtaView {
    /// All views: first the image itself, then, if `shift` is not 0, the image shifted by it towards each of
    /// the four corners; with `mirror`, each of these also mirrored.
    #[must_use]
    pub fn all(mirror: bool, shift: usize) -> Vec<Self> {
        let by = shift.cast_signed();
        let corners = [(-by, -by), (-by, by), (by, -by), (by, by)];
        let corners = if shift == 0 { &[] } else { &corners[..] };
        let shifts = std::iter::once(&(0, 0)).chain(corners);
        let sides = if mirror { &[false, true][..] } else { &[false] };
        shifts
            .flat_map(|&(down, right)| sides.iter().map(move |&mirrored| Self { mirrored, down, right }))
            .collect()
    }
}

impl BatchBuffer {
    /// Writes a view of all images to `out`, which is as long as [`Self::images`]. The images have this shape
    /// (C, H, W), as their loader wrote them. Uncovered pixels show the image reflected at its outermost row
    /// and column, which are not repeated. Masks are not changed.
    ///
    /// The shift must be less than the images' height and width.
    pub fn write_view(
        &self,
        view: TtaView,
        [channels, height, width]: [usize; 3],
        layout: Layout,
        element: Element,
        out: &mut [u8],
    ) {
        let pixel = element.bytes()
            * match layout {
                Layout::Nchw => 1,
                Layout::Nhwc => channels,
            };
        let plane = height * width * pixel;
        for (plane, out) in self.images.chunks_exact(plane).zip(out.chunks_exact_mut(plane)) {
            for (y, out) in out.chunks_exact_mut(width * pixel).enumerate() {
                let row = &plane[source(y, view.down, height) * width * pixel..][..width * pixel];
                for (x, out) in out.chunks_exact_mut(pixel).enumerate() {
                    let x = source(x, view.right, width);
                    let x = if view.mirrored { width - 1 - x } else { x };
                    out.copy_from_slice(&row[x * pixel..][..pixel]);
                }
            }
        }
    }
}

/// The source index of position `at`, of `count` positions shifted by `by`.
fn source(at: usize, by: isize, count: usize) -> usize {
    let from = (at.cast_signed() - by).unsigned_abs();
    if from < count { from } else { 2 * (count - 1) - from }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The view of a batch of these pixel values.
    fn seen(numbers: &[u8], shape: [usize; 3], layout: Layout, view: TtaView) -> Vec<u8> {
        let mut batch =
            BatchBuffer::new(numbers.len() / shape.iter().product::<usize>(), numbers.len() * 4, 1, 0)
                .unwrap();
        let floats: Vec<f32> = numbers.iter().copied().map(f32::from).collect();
        batch.images.elements_mut().copy_from_slice(&floats);
        let mut out = batch.images.clone();
        batch.write_view(view, shape, layout, Element::F32, &mut out);
        out.elements::<f32>().iter().map(|&number| number as u8).collect()
    }

    #[test]
    fn mirrors_images_in_every_layout() {
        let numbers: Vec<u8> = (0..12).collect();
        let mirrored = TtaView { mirrored: true, ..TtaView::default() };
        for (layout, expected) in [
            (Layout::Nchw, [2, 1, 0, 5, 4, 3, 8, 7, 6, 11, 10, 9]),
            (Layout::Nhwc, [4, 5, 2, 3, 0, 1, 10, 11, 8, 9, 6, 7]),
        ] {
            assert_eq!(seen(&numbers, [2, 2, 3], layout, mirrored), expected);
            assert_eq!(seen(&numbers, [2, 2, 3], layout, TtaView::default()), numbers);
        }
    }

    #[test]
    fn shifts_and_reflects_each_image_separately() {
        let numbers: Vec<u8> = (0..18).collect();
        let [first, second] = [[4, 3, 4, 1, 0, 1, 4, 3, 4], [13, 12, 13, 10, 9, 10, 13, 12, 13]];
        let view = TtaView { mirrored: false, down: 1, right: 1 };
        assert_eq!(seen(&numbers, [1, 3, 3], Layout::Nchw, view), [first, second].concat());
        // The largest shift reverses the rows.
        let view = TtaView { mirrored: false, down: -2, right: 0 };
        assert_eq!(seen(&numbers[..9], [1, 3, 3], Layout::Nchw, view), [6, 7, 8, 3, 4, 5, 0, 1, 2]);
        // Mirrored, then shifted.
        let view = TtaView { mirrored: true, down: 0, right: -1 };
        assert_eq!(seen(&numbers[..9], [1, 3, 3], Layout::Nhwc, view), [1, 0, 1, 4, 3, 4, 7, 6, 7]);
        // Two-byte elements of two channels stay together.
        let mut batch = BatchBuffer::new(1, 8, 1, 0).unwrap();
        batch.images.elements_mut::<u16>().copy_from_slice(&[1, 2, 3, 4]);
        let mut out = batch.images.clone();
        let view = TtaView { mirrored: true, down: 0, right: 0 };
        batch.write_view(view, [2, 1, 2], Layout::Nhwc, Element::Bf16, &mut out);
        assert_eq!(out.elements::<u16>(), [3, 4, 1, 2]);
        // Byte elements.
        let mut batch = BatchBuffer::new(2, 18, 1, 0).unwrap();
        batch.images.copy_from_slice(&numbers);
        let mut out = batch.images.clone();
        let view = TtaView { mirrored: true, down: 1, right: 1 };
        batch.write_view(view, [1, 3, 3], Layout::Nhwc, Element::U8, &mut out);
        assert_eq!(*out, [4, 5, 4, 1, 2, 1, 4, 5, 4, 13, 14, 13, 10, 11, 10, 13, 14, 13]);
        let mut pixels = BatchBuffer::new(1, 12, 1, 0).unwrap();
        pixels.images.copy_from_slice(&numbers[..12]);
        let mut out = pixels.images.clone();
        let view = TtaView { mirrored: true, ..TtaView::default() };
        pixels.write_view(view, [3, 2, 2], Layout::Nhwc, Element::U8, &mut out);
        assert_eq!(*out, [3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8]);
    }

    #[test]
    fn views_are_distinct_and_start_with_the_unchanged_image() {
        for (mirror, shift, count) in [(false, 0, 1), (true, 0, 2), (false, 2, 5), (true, 1, 10)] {
            let views = TtaView::all(mirror, shift);
            assert_eq!((views.len(), views[0]), (count, TtaView::default()));
            assert!(views.iter().enumerate().all(|(at, view)| !views[..at].contains(view)));
        }
    }
}
