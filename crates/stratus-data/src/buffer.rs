//! The buffers of batches: aligned, allocated once, passed back and forth between loader and consumer.

use stratus_base::{ALIGNMENT, AlignedBytes, OutOfMemory};

/// A batch, as a [`Loader`](crate::Loader) fills it.
#[derive(Clone, Debug)]
pub struct BatchBuffer {
    /// `[N, C, H, W]` or `[N, H, W, C]` elements of the loader's type and layout. Rows from `samples` on are
    /// zero bytes.
    pub images: AlignedBytes,
    /// Class labels, [`label_len`](crate::Loader::label_len) per sample: `[N]`; `[N, 3]` where samples are
    /// mixed (see [`mix`](crate::transform::mix)); `[N, H, W]` with masks.
    ///
    /// [`IGNORED_LABEL`] marks rows from `samples` on, samples that cannot be decoded, and mask pixels
    /// without a class or outside the stored image.
    pub labels: Vec<i32>,
    /// The data set index of each sample; `samples` numbers.
    pub indices: Vec<u32>,
    /// Rows that hold a sample: the batch size, or fewer in the last batch of an epoch.
    pub samples: usize,
    /// The epoch, counted from 0.
    pub epoch: u32,
    /// The position of the batch in its epoch, counted from 0.
    pub index: u64,
    /// The id of the loader that owns the buffer.
    pub(crate) owner: u64,
}

/// The label of rows without a sample and of pixels without a class. Losses and metrics ignore it.
pub const IGNORED_LABEL: i32 = -1;

impl BatchBuffer {
    /// A buffer of `batch_size` samples, with `image_bytes` bytes of images and `label_count` labels in all.
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

    /// The memory of such a buffer, in bytes.
    pub(crate) fn bytes_of(batch_size: usize, image_bytes: usize, label_count: usize) -> u64 {
        (image_bytes + ALIGNMENT - 1) as u64
            + (label_count * size_of::<i32>() + batch_size * size_of::<u32>()) as u64
    }
}
