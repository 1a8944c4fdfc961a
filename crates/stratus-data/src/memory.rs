//! Images in memory as a data set, such as video frames or tiles of an image.

use crate::dataset::{Dataset, IGNORED, IGNORED_PIXEL, Sample, Scratch};
use crate::error::DataError;
use crate::geometry::Orientation;
use crate::transform::pixels::{Normalisation, PixelOrder};

/// An image in memory, as a data set stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredImage {
    /// Pixels 0 to 255, row-major, contiguous.
    pub pixels: Vec<u8>,
    /// Channels, height, width.
    pub shape: [usize; 3],
    /// The order of the pixels.
    pub order: PixelOrder,
    /// The rotation and mirroring that make the image upright.
    pub orientation: Orientation,
    /// The class of every pixel, `[H, W]`; `None` if unknown.
    pub mask: Option<Vec<u8>>,
}

impl StoredImage {
    /// An upright image of interleaved pixels, `[H, W, C]`, without a mask.
    #[must_use]
    pub fn interleaved(pixels: Vec<u8>, shape: [usize; 3]) -> Self {
        Self {
            pixels,
            shape,
            order: PixelOrder::Interleaved,
            orientation: Orientation::default(),
            mask: None,
        }
    }

    /// Copies a sample.
    #[must_use]
    pub fn from_sample(sample: &Sample<'_>) -> Self {
        Self {
            pixels: sample.pixels.to_vec(),
            shape: sample.shape,
            order: sample.order,
            orientation: sample.orientation,
            mask: sample.mask.map(<[u8]>::to_vec),
        }
    }

    /// Height and width of the image when it is upright.
    #[must_use]
    pub fn upright_size(&self) -> [usize; 2] {
        let [_, height, width] = self.shape;
        self.orientation.apply_to_size([height, width])
    }
}

/// Images in memory, in a given order.
#[derive(Debug)]
pub struct ImagesInMemory {
    images: Vec<StoredImage>,
    classes: usize,
    masks: bool,
}

impl ImagesInMemory {
    /// A data set of `images` with `classes` classes. With `masks` every sample has a mask, whose pixels are
    /// ignored if the image has none; without, every label is 0.
    ///
    /// # Errors
    ///
    /// [`DataError::NoImages`].
    pub fn new(images: Vec<StoredImage>, classes: usize, masks: bool) -> Result<Self, DataError> {
        if images.is_empty() || u32::try_from(images.len()).is_err() {
            return Err(DataError::NoImages { count: images.len() });
        }
        Ok(Self { images, classes, masks })
    }
}

impl Dataset for ImagesInMemory {
    fn name(&self) -> &str {
        "images in memory"
    }

    fn len(&self) -> usize {
        self.images.len()
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn sample_shape(&self) -> Option<[usize; 3]> {
        None
    }

    fn label(&self, _index: usize) -> Result<u32, DataError> {
        Ok(if self.masks { IGNORED } else { 0 })
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        let Some(image) = self.images.get(index) else {
            return Err(DataError::SampleOutOfRange {
                dataset: self.name().to_owned(),
                index,
                len: self.images.len(),
            });
        };
        let StoredImage { pixels, shape, order, orientation, mask } = image;
        let mask = match (self.masks, mask) {
            (false, _) => None,
            (true, Some(mask)) => Some(mask.as_slice()),
            (true, None) => {
                scratch.mask.clear();
                scratch.mask.resize(shape[1] * shape[2], IGNORED_PIXEL);
                Some(scratch.mask.as_slice())
            }
        };
        let label = if self.masks { IGNORED } else { 0 };
        let (shape, order, orientation) = (*shape, *order, *orientation);
        Ok(Sample { pixels, shape, dct_scaled: None, order, orientation, label, mask })
    }

    fn has_masks(&self) -> bool {
        self.masks
    }

    fn normalisation(&self) -> Normalisation {
        Normalisation::unit(3)
    }

    fn resident_bytes(&self) -> u64 {
        let bytes = |image: &StoredImage| image.pixels.len() + image.mask.as_ref().map_or(0, Vec::len);
        self.images.iter().map(|image| bytes(image) as u64).sum()
    }
}
