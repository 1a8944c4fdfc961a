//! Tests of windows, orientations, resizing and channels.

use super::*;
use proptest::prelude::*;

fn crop_sampler(output_size: [usize; 2], resize: Option<usize>, random: Option<ResizedCrop>) -> CropSampler {
    CropSampler::new(output_size, resize, &Augment { resized_crop: random, ..Augment::default() }, 5)
}

/// A view without rotation or zoom.
fn unrotated(window: Window) -> CropView {
    CropView { window, rotation: None }
}

fn sample(pixels: &[u8], shape: [usize; 3], order: PixelOrder, orientation: Orientation) -> Sample<'_> {
    Sample { pixels, shape, dct_scaled: None, order, orientation, label: 0, mask: None }
}

/// An "F", whose eight orientations are all different, stored so that the EXIF orientation makes it upright.
fn letter(exif: u16) -> (Vec<u8>, [usize; 2]) {
    let upright = [[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 0, 0]];
    // The sides of the upright image at row 0 and column 0 of the stored one (EXIF 2.3, section 4.6.4 A).
    let (rows, columns) = (4, 3);
    let upright_at = |y: usize, x: usize| upright[y][x];
    let (height, width) = if exif >= 5 { (columns, rows) } else { (rows, columns) };
    let mut stored = Vec::new();
    for y in 0..height {
        for x in 0..width {
            stored.push(match exif {
                1 => upright_at(y, x),
                // Top, right.
                2 => upright_at(y, columns - 1 - x),
                // Bottom, right.
                3 => upright_at(rows - 1 - y, columns - 1 - x),
                // Bottom, left.
                4 => upright_at(rows - 1 - y, x),
                // Left side, top.
                5 => upright_at(x, y),
                // Right side, top.
                6 => upright_at(x, columns - 1 - y),
                // Right side, bottom.
                7 => upright_at(rows - 1 - x, columns - 1 - y),
                // Left side, bottom.
                _ => upright_at(rows - 1 - x, y),
            });
        }
    }
    (stored, [height, width])
}

#[test]
fn turns_every_exif_orientation_upright() {
    let (upright, _) = letter(1);
    for exif in 1..=8 {
        let (stored, [height, width]) = letter(exif);
        let orientation = Orientation::from_exif(exif);
        let whole = crop_sampler([4, 3], None, None).view([4, 3], 0, 0);
        let mut crop_resizer = CropResizer::default();
        let grey = sample(&stored, [1, height, width], PixelOrder::Planes, orientation);
        assert_eq!(crop_resizer.crop_and_resize(&grey, whole, [1, 4, 3]).unwrap().pixels, upright, "{exif}");
        let rgb: Vec<u8> = stored.iter().flat_map(|&pixel| [pixel, pixel + 10, pixel + 20]).collect();
        let colour = sample(&rgb, [3, height, width], PixelOrder::Interleaved, orientation);
        let CroppedPixels { pixels, order, .. } =
            crop_resizer.crop_and_resize(&colour, whole, [3, 4, 3]).unwrap();
        assert_eq!(order, PixelOrder::Interleaved);
        assert_eq!(pixels.iter().step_by(3).copied().collect::<Vec<_>>(), upright, "{exif}");
        // A window of a rotated image: the top left 2×2, resized from 2×2 to 2×2.
        let corner = unrotated(Window { top: 0.0, left: 0.0, height: 2.0, width: 2.0 });
        assert_eq!(
            crop_resizer.crop_and_resize(&grey, corner, [1, 2, 2]).unwrap().pixels,
            [1, 1, 1, 0],
            "{exif}"
        );
    }
}

#[test]
fn crops_the_requested_centre() {
    let window = |top, left, height, width| Window { top, left, height, width };
    let size = [300, 400];
    assert_eq!(
        crop_sampler([224, 224], Some(256), None).view(size, 0, 0).window,
        window(18.75, 68.75, 262.5, 262.5)
    );
    assert_eq!(crop_sampler([100, 100], None, None).view(size, 0, 0).window, window(0.0, 50.0, 300.0, 300.0));
    assert_eq!(
        crop_sampler([300, 100], None, None).view(size, 0, 0).window,
        window(0.0, 150.0, 300.0, 100.0)
    );
    assert_eq!(crop_sampler([32, 32], None, None).view([32, 32], 0, 0).window, window(0.0, 0.0, 32.0, 32.0));
}

#[test]
fn shrinking_averages_and_keeps_uniform_areas() {
    let mut crop_resizer = CropResizer::default();
    let even = vec![77u8; 3 * 50 * 40];
    for order in [PixelOrder::Planes, PixelOrder::Interleaved] {
        let stored = sample(&even, [3, 50, 40], order, Orientation::default());
        let window = crop_sampler([7, 9], None, None).view([50, 40], 0, 0);
        let CroppedPixels { pixels, order: kept, .. } =
            crop_resizer.crop_and_resize(&stored, window, [3, 7, 9]).unwrap();
        assert_eq!((pixels, kept), ([77u8; 3 * 7 * 9].as_slice(), order));
    }
    // Without antialiasing every pixel would be 0 or 255.
    let checks: Vec<u8> = (0..64 * 64).map(|at| if (at / 64 + at % 64) % 2 == 0 { 255 } else { 0 }).collect();
    let stored = sample(&checks, [1, 64, 64], PixelOrder::Planes, Orientation::default());
    let whole = crop_sampler([8, 8], None, None).view([64, 64], 0, 0);
    let CroppedPixels { pixels, .. } = crop_resizer.crop_and_resize(&stored, whole, [1, 8, 8]).unwrap();
    assert!(pixels.iter().all(|pixel| (126..=129).contains(pixel)), "{pixels:?}");
}

#[test]
fn converts_between_grey_and_colour() {
    let mut crop_resizer = CropResizer::default();
    let whole = unrotated(Window { top: 0.0, left: 0.0, height: 1.0, width: 2.0 });
    let grey = sample(&[7, 9], [1, 1, 2], PixelOrder::Planes, Orientation::default());
    let CroppedPixels { pixels, order, .. } = crop_resizer.crop_and_resize(&grey, whole, [3, 1, 2]).unwrap();
    assert_eq!((pixels, order), ([7, 9, 7, 9, 7, 9].as_slice(), PixelOrder::Planes));
    let rgb = [255, 0, 0, 0, 255, 255];
    let colour = sample(&rgb, [3, 1, 2], PixelOrder::Interleaved, Orientation::default());
    assert_eq!(crop_resizer.crop_and_resize(&colour, whole, [1, 1, 2]).unwrap().pixels, [76, 179]);
    let planes = [255, 0, 0, 255, 0, 255];
    let colour = sample(&planes, [3, 1, 2], PixelOrder::Planes, Orientation::default());
    assert_eq!(crop_resizer.crop_and_resize(&colour, whole, [1, 1, 2]).unwrap().pixels, [76, 179]);
    assert!(crop_resizer.crop_and_resize(&colour, whole, [2, 1, 2]).is_err());
}

#[test]
fn random_crops_have_the_requested_area_and_ratio() {
    let crop_sampler = crop_sampler([224, 224], None, Some(ResizedCrop::default()));
    let (mut areas, mut ratios) = (Vec::new(), Vec::new());
    for sample in 0..20_000 {
        let Window { top, left, height, width } = crop_sampler.view([1000, 1000], 3, sample).window;
        assert!(top + height <= 1000.0 && left + width <= 1000.0);
        areas.push(height * width / 1e6);
        ratios.push((width / height).ln());
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    // Uniform from 0.08 to 1, except crops above 0.75 that are too long: (0.278 + 0.099) / (0.67 + 0.119) by
    // integration.
    assert!((mean(&areas) - 0.478).abs() < 0.005, "{}", mean(&areas));
    assert!(mean(&ratios).abs() < 0.01, "{}", mean(&ratios));
    assert!(areas.iter().all(|area| (0.079..=1.0).contains(area)));
    assert_eq!(crop_sampler.view([1000, 1000], 3, 7).window, crop_sampler.view([1000, 1000], 3, 7).window);
    assert_ne!(crop_sampler.view([1000, 1000], 3, 7).window, crop_sampler.view([1000, 1000], 4, 7).window);
    // No crop of this ratio fits: use the centre.
    assert_eq!(
        crop_sampler.view([1, 1000], 3, 7).window,
        Window { top: 0.0, left: 499.5, height: 1.0, width: 1.0 }
    );
}

#[test]
fn random_positions_are_whole_pixels_of_the_resized_image() {
    let augment = Augment { random_crop: true, ..Augment::default() };
    // 300×400 resized by its shorter side to 256 is 256×341, with 33 row and 118 column positions.
    let crop_sampler = CropSampler::new([224, 224], Some(256), &augment, 5);
    let (mut rows, mut columns) = (vec![0u32; 33], vec![0u32; 118]);
    for sample in 0..20_000 {
        let Window { top, left, height, width } = crop_sampler.view([300, 400], 3, sample).window;
        assert_eq!([height, width], [262.5; 2]);
        assert!(top + height <= 300.0 && left + width <= 400.0);
        let [row, column] = [top, left].map(|first| first * 256.0 / 300.0);
        assert!((row - row.round()).abs() < 1e-9 && (column - column.round()).abs() < 1e-9);
        rows[row.round() as usize] += 1;
        columns[column.round() as usize] += 1;
    }
    assert!(rows.iter().all(|count| (500..720).contains(count)), "{rows:?}");
    assert!(columns.iter().all(|count| (110..240).contains(count)), "{columns:?}");
    // If only one position exists it is the centre, even if the image is smaller than the crop.
    assert_eq!(crop_sampler.view([256, 256], 3, 7).rotation, None);
    let fits = CropSampler::new([224, 224], None, &augment, 5);
    let whole = Window { top: 0.0, left: 0.0, height: 256.0, width: 256.0 };
    assert_eq!(fits.view([256, 256], 3, 7).window, whole);
    let small = CropSampler::new([10, 10], None, &Augment { zoom: Some([0.5; 2]), ..augment }, 5);
    let around = Window { top: -5.0, left: -5.0, height: 20.0, width: 20.0 };
    assert_eq!(small.view([10, 10], 3, 7).window, around);
}

#[test]
fn angles_and_zoom_factors_are_uniform() {
    let augment = Augment { rotation: 30.0, zoom: Some([0.5, 2.0]), ..Augment::default() };
    let crop_sampler = CropSampler::new([50, 50], None, &augment, 5);
    let (mut angles, mut zooms) = ([0u32; 10], [0u32; 10]);
    for sample in 0..10_000 {
        let CropView { window, rotation } = crop_sampler.view([50, 50], 3, sample);
        let rotation = rotation.unwrap();
        assert!((rotation.sine * rotation.sine + rotation.cosine * rotation.cosine - 1.0).abs() < 1e-8);
        angles[((rotation.sine.atan2(rotation.cosine).to_degrees() + 30.0) / 6.0) as usize] += 1;
        assert!((window.top + window.height / 2.0 - 25.0).abs() < 1e-9);
        zooms[((50.0 / window.height - 0.5) / 0.15) as usize] += 1;
    }
    assert!(angles.iter().chain(&zooms).all(|count| (850..1150).contains(count)), "{angles:?} {zooms:?}");
    assert_eq!(crop_sampler.view([50, 50], 3, 7), crop_sampler.view([50, 50], 3, 7));
    assert_ne!(crop_sampler.view([50, 50], 3, 7), crop_sampler.view([50, 50], 4, 7));
}

proptest! {
    #[test]
    fn crops_any_image_to_any_shape(
        size in [1usize..60, 1usize..60],
        output_size in [1usize..40, 1usize..40],
        exif in 0u16..10,
        colours in (any::<bool>(), any::<bool>(), any::<bool>()),
        resize in 0usize..3,
        seed in any::<u32>(),
    ) {
        let (grey, to_grey, random) = colours;
        let orientation = Orientation::from_exif(exif);
        let channels = if grey { 1 } else { 3 };
        let shape = [if to_grey { 1 } else { 3 }, output_size[0], output_size[1]];
        let pixels: Vec<u8> = (0..channels * size[0] * size[1]).map(|at| at as u8).collect();
        let resize = (resize > 0).then_some(output_size[0].max(output_size[1]) * resize);
        let crop_sampler = crop_sampler(output_size, resize, random.then(ResizedCrop::default));
        let upright = orientation.apply_to_size(size);
        let view @ CropView { window, .. } = crop_sampler.view(upright, 1, seed);
        prop_assert!(window.top >= 0.0 && window.top + window.height <= upright[0] as f64 + 1e-9);
        prop_assert!(window.left >= 0.0 && window.left + window.width <= upright[1] as f64 + 1e-9);
        for order in [PixelOrder::Planes, PixelOrder::Interleaved] {
            let stored = sample(&pixels, [channels, size[0], size[1]], order, orientation);
            let mut crop_resizer = CropResizer::default();
            let cut = crop_resizer.crop_and_resize(&stored, view, shape).unwrap().pixels;
            prop_assert_eq!(cut.len(), shape.iter().product::<usize>());
        }
    }
}
