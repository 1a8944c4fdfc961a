//! Images decoded at a DCT scale: similar batches if scaled, identical ones if not.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use stratus_data::{
    Augment, Dataset, Decoding, Element, JpegLibrary, Layout, Loader, LoaderConfig, OpenOptions, Order,
    ResizedCrop, Split, open,
};

/// The files, stored as 203 × 301 pixels; one has several scans.
const FILES: [&str; 2] = ["scene_444.jpg", "scene_420.jpg"];

/// Adds an orientation to a JPEG file, as its first segment.
fn rotated(file: &[u8], orientation: u8) -> Vec<u8> {
    let tiff = [b'M', b'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, orientation, 0, 0];
    let exif = [&b"Exif\0\0"[..], &tiff].concat();
    let length = (exif.len() + 2) as u16;
    [&file[..2], &[0xff, 0xe1], &length.to_be_bytes(), &exif, &file[2..]].concat()
}

fn folder(root: &Path) -> Arc<dyn Dataset> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/images");
    for class in ["train/scene", "val/scene"] {
        fs::create_dir_all(root.join(class)).unwrap();
        for name in FILES {
            let file = fs::read(fixtures.join(name)).unwrap();
            for orientation in 1..=8 {
                fs::write(
                    root.join(class).join(format!("{orientation}-{name}")),
                    rotated(&file, orientation),
                )
                .unwrap();
            }
        }
    }
    Arc::from(open("folder", root, Split::Train, &OpenOptions::default()).unwrap())
}

/// The images of five epochs, in order.
fn images(set: &Arc<dyn Dataset>, decoding: Decoding, config: &LoaderConfig) -> Vec<Vec<u8>> {
    let config = LoaderConfig {
        decoding,
        order: Order::Sequential,
        element: Element::U8,
        layout: Layout::Nhwc,
        epochs: Some(5),
        ..config.clone()
    };
    let mut loader = Loader::new(Arc::clone(set), config).unwrap();
    let mut images = Vec::new();
    while let Some(batch) = loader.next().unwrap() {
        images.extend(batch.images.chunks_exact(batch.images.len() / batch.samples).map(<[u8]>::to_vec));
        loader.recycle(batch);
    }
    assert_eq!(images.len(), 5 * 8 * FILES.len());
    images
}

fn mean_difference(a: &[u8], b: &[u8]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(&a, &b)| f64::from(a.abs_diff(b))).sum::<f64>() / a.len() as f64
}

#[test]
fn dct_scaled_images_match_in_every_orientation() {
    if let Err(reason) = JpegLibrary::find() {
        // The tests of the decoders fail if the library is required but missing.
        eprintln!("SKIPPED: {reason}");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let set = folder(root.path());
    let random = Augment { resized_crop: Some(ResizedCrop::default()), ..Augment::default() };
    for (shape, resize, augment) in [
        // The centre of 203 × 203 pixels, at a half, a quarter and an eighth.
        ([3, 90, 90], None, Augment::default()),
        ([3, 48, 48], None, Augment::default()),
        ([3, 25, 25], None, Augment::default()),
        ([1, 80, 60], None, Augment::default()),
        ([3, 40, 40], Some(50), Augment { random_crop: true, ..Augment::default() }),
        ([3, 28, 33], None, random),
    ] {
        let config = LoaderConfig { shape: Some(shape), resize, augment, ..LoaderConfig::new(16) };
        let exact = images(&set, Decoding::Exact, &config);
        let fast = images(&set, Decoding::Fast, &config);
        assert_ne!(exact, fast, "{shape:?}: nothing is reduced");
        let differences: Vec<f64> = exact.iter().zip(&fast).map(|(a, b)| mean_difference(a, b)).collect();
        let mean = differences.iter().sum::<f64>() / differences.len() as f64;
        let max = differences.iter().copied().fold(0.0, f64::max);
        assert!(mean <= 1.0 && max <= 2.0, "{shape:?}, {resize:?}: {mean} on average, {max} at most");
    }
}

#[test]
fn unscaled_images_are_bit_identical() {
    if let Err(reason) = JpegLibrary::find() {
        eprintln!("SKIPPED: {reason}");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let set = folder(root.path());
    let random = Augment { random_crop: true, flip: true, ..Augment::default() };
    let rotated = Augment { rotation: 20.0, ..Augment::default() };
    for (shape, resize, augment, element) in [
        // The crop is less than twice as large as the sample.
        ([3, 102, 102], None, random, Element::U8),
        ([3, 64, 64], Some(110), random, Element::U8),
        ([3, 150, 100], Some(300), Augment::default(), Element::U8),
        ([3, 25, 25], None, rotated, Element::F32),
    ] {
        let config = LoaderConfig { shape: Some(shape), resize, augment, element, ..LoaderConfig::new(16) };
        let images_of = |decoding| {
            let config =
                LoaderConfig { decoding, order: Order::Sequential, epochs: Some(2), ..config.clone() };
            let mut loader = Loader::new(Arc::clone(&set), config).unwrap();
            [loader.next().unwrap().unwrap().images.to_vec(), loader.next().unwrap().unwrap().images.to_vec()]
        };
        assert!(
            images_of(Decoding::Exact) == images_of(Decoding::Fast),
            "{shape:?}, {resize:?}, {augment:?}"
        );
    }
}
