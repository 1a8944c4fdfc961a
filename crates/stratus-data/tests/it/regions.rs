//! Batches of decoded regions are bit-identical to those of whole images.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use stratus_data::{
    Augment, DataError, Dataset, ImageDecoder, JpegLibrary, Loader, LoaderConfig, Normalisation, OpenOptions,
    Order, RegionRequest, ResizedCrop, Sample, Scratch, Split, open,
};

/// The content of memory before an image is decoded to it.
const BLANK: u8 = 0x5a;

/// A data set that counts decoded bytes; with `whole` it only decodes whole images.
struct Counting {
    set: Box<dyn Dataset>,
    library: JpegLibrary,
    whole: bool,
    decoded: AtomicUsize,
}

impl Dataset for Counting {
    fn name(&self) -> &str {
        self.set.name()
    }

    fn len(&self) -> usize {
        self.set.len()
    }

    fn classes(&self) -> usize {
        self.set.classes()
    }

    fn sample_shape(&self) -> Option<[usize; 3]> {
        self.set.sample_shape()
    }

    fn label(&self, index: usize) -> Result<u32, DataError> {
        self.set.label(index)
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        self.set.read(index, scratch)
    }

    fn read_region<'a>(
        &'a self,
        index: usize,
        scratch: &'a mut Scratch,
        request: RegionRequest<'_>,
    ) -> Result<Sample<'a>, DataError> {
        scratch.images = ImageDecoder::new(&self.library);
        scratch.decoded.clear();
        scratch.decoded.resize(150 * 40 * 3, BLANK);
        let sample = if self.whole {
            self.set.read(index, scratch)
        } else {
            self.set.read_region(index, scratch, request)
        }?;
        let decoded = sample.pixels.iter().filter(|&&byte| byte != BLANK).count();
        self.decoded.fetch_add(decoded, Ordering::Relaxed);
        Ok(sample)
    }

    fn normalisation(&self) -> Normalisation {
        self.set.normalisation()
    }

    fn resident_bytes(&self) -> u64 {
        self.set.resident_bytes()
    }
}

/// The images as a folder of classes and in COCO's format.
fn put_images(root: &Path) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/images");
    for class in ["train/tall", "val/tall", "annotations"] {
        fs::create_dir_all(root.join(class)).unwrap();
    }
    let (mut images, mut annotations) = (Vec::new(), Vec::new());
    for file in fs::read_dir(&fixtures).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        if name.starts_with("tall_") {
            for class in ["train/tall", "val/tall"] {
                fs::copy(fixtures.join(&name), root.join(class).join(&name)).unwrap();
            }
            let id = images.len() + 1;
            images.push(json!({"id": id, "file_name": format!("tall/{name}"), "height": 150, "width": 40}));
            annotations.push(json!({"id": id, "image_id": id, "category_id": 1, "area": 1}));
        }
    }
    let categories = [json!({"id": 1, "name": "tall"})];
    let document = json!({"images": images, "annotations": annotations, "categories": categories});
    fs::write(root.join("annotations/instances_train.json"), document.to_string()).unwrap();
}

/// The batches of some epochs, and the number of decoded bytes.
fn batches(
    (name, root): (&str, &Path),
    library: &JpegLibrary,
    whole: bool,
    config: &LoaderConfig,
) -> (Vec<Vec<u8>>, usize) {
    let set = open(name, root, Split::Train, &OpenOptions::default()).unwrap();
    let set = Arc::new(Counting { set, library: library.clone(), whole, decoded: AtomicUsize::new(0) });
    let mut loader = Loader::new(Arc::clone(&set) as Arc<dyn Dataset>, config.clone()).unwrap();
    let mut batches = Vec::new();
    while let Some(batch) = loader.next().unwrap() {
        batches.push(batch.images.to_vec());
        loader.recycle(batch);
    }
    assert_eq!(loader.jpeg_library().unwrap().to_string(), library.to_string());
    drop(loader);
    (batches, set.decoded.load(Ordering::Relaxed))
}

/// The share of a data set's bytes that was decoded for windows.
fn share(name: &str, library: &JpegLibrary) -> f64 {
    let root = tempfile::tempdir().unwrap();
    put_images(root.path());
    let set = (name, root.path());
    let sequential = LoaderConfig { order: Order::Sequential, epochs: Some(40), ..LoaderConfig::new(9) };
    let random = Augment { resized_crop: Some(ResizedCrop::default()), flip: true, ..Augment::default() };
    let (mut decoded, mut all) = (0, 0);
    for (shape, resize, augment) in [
        ([3, 24, 24], None, random),
        ([3, 100, 70], None, random),
        ([1, 7, 9], None, random),
        ([3, 32, 32], Some(36), Augment::default()),
        ([3, 32, 32], None, Augment { random_crop: true, ..Augment::default() }),
        ([3, 32, 32], None, Augment { rotation: 20.0, ..Augment::default() }),
    ] {
        let config = LoaderConfig { shape: Some(shape), resize, augment, ..sequential.clone() };
        let (whole, bytes) = batches(set, library, true, &config);
        let (part, bytes_of_part) = batches(set, library, false, &config);
        assert_eq!(whole.len(), 40);
        let differing = whole.iter().zip(&part).filter(|(whole, part)| whole != part).count();
        assert_eq!(differing, 0, "batches of {shape:?}, {augment:?}, by {library}");
        all += bytes;
        decoded += bytes_of_part;
    }
    decoded as f64 / all as f64
}

#[test]
fn pixels_outside_the_window_have_no_effect() {
    // A sixth of the pixels is below random windows, and half of them below centred ones.
    let rows = share("folder", &JpegLibrary::Zune);
    assert!((0.6..0.95).contains(&rows), "{rows} of all bytes");
    let rows = share("coco_labels", &JpegLibrary::Zune);
    assert!((0.6..0.95).contains(&rows), "{rows} of all bytes");
    // The tests of the decoders fail if the library is required but missing.
    match JpegLibrary::find() {
        Ok(library) => {
            for name in ["folder", "coco_labels"] {
                let windows = share(name, &library);
                assert!(windows < rows - 0.1, "{windows} of all bytes of {name}, {rows} in rows");
            }
        }
        Err(reason) => eprintln!("SKIPPED with libjpeg-turbo: {reason}"),
    }
}
