//! Memory of batches: aligned for vector units, allocated once, circulating between loader and consumer.

use stratus_base::{ALIGNMENT, AlignedBytes, OutOfMemory};

/// A batch, as a [`Loader`](crate::Loader) fills it.
#[derive(Clone, Debug)]
pub struct BatchBuffer {
    /// Images of the loader's element type and layout: batch size × C × H × W elements. Rows from `samples`
    /// on are zero bytes.
    pub images: AlignedBytes,
    /// Classes: batch size × [`label_len`](crate::Loader::label_len) numbers, one for a sample, or where
    /// samples have masks one for each of its pixels, H × W, row-major. [`IGNORED_LABEL`] are all numbers of
    /// the rows from `samples` on and of samples that cannot be decoded, and of a mask those pixels that
    /// belong to no class or show nothing of the stored image.
    pub labels: Vec<i32>,
    /// The index of each sample in the data set: `samples` numbers.
    pub indices: Vec<u32>,
    /// Rows that hold a sample: the batch size, or fewer in the last batch of an epoch.
    pub samples: usize,
    /// The epoch, from 0.
    pub epoch: u32,
    /// The batch's number in its epoch, from 0.
    pub index: u64,
    /// The loader it belongs to.
    pub(crate) owner: u64,
}

/// The label of a row without a sample, or of a pixel without a class. Losses and measures pass over it.
pub const IGNORED_LABEL: i32 = -1;

impl BatchBuffer {
    /// A buffer of `batch_size` samples, which together have `image_bytes` bytes of images and `label_count`
    /// labels.
    pub(crate) fn new(
        batch_size: usize,
        image_bytes: usize,
        label_count: usize,
        owner: u64,
    ) -> Result<Self, OutOfMemory> {
        let what = "a batch";
        let out_of_memory = |bytes| move |_| OutOfMemory { what: what.to_owned(), bytes };
        let images = AlignedBytes::zeroed(image_bytes, what)?;
        let (mut labels, mut indices) = (Vec::new(), Vec::new());
        labels.try_reserve_exact(label_count).map_err(out_of_memory(label_count * size_of::<i32>()))?;
        labels.resize(label_count, IGNORED_LABEL);
        indices.try_reserve_exact(batch_size).map_err(out_of_memory(batch_size * size_of::<u32>()))?;
        Ok(Self { images, labels, indices, samples: 0, epoch: 0, index: 0, owner })
    }

    /// Bytes of memory a buffer of this size holds.
    pub(crate) fn bytes_of(batch_size: usize, image_bytes: usize, label_count: usize) -> u64 {
        (image_bytes + ALIGNMENT - 1) as u64
            + (label_count * size_of::<i32>() + batch_size * size_of::<u32>()) as u64
    }
}
