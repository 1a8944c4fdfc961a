//! Data sets, decoding, augmentation and the prefetching loader.
