//! Operands as tensors: elements of any type, read and written as doubles by row-major position.

use crate::DType;

/// An operand's memory, its type and its logical shape.
pub(crate) struct Tensor<'a> {
    dtype: DType,
    /// Logical extents.
    pub(crate) shape: &'a [usize],
    bytes: &'a mut [u8],
}

impl<'a> Tensor<'a> {
    pub(crate) fn new(dtype: DType, shape: &'a [usize], bytes: &'a mut [u8]) -> Self {
        Self { dtype, shape, bytes }
    }

    /// Reborrows the operand for a kernel that runs as part of another.
    pub(crate) fn reborrow(&mut self) -> Tensor<'_> {
        Tensor { dtype: self.dtype, shape: self.shape, bytes: self.bytes }
    }

    /// The type of its elements.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of elements.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() / self.dtype.bytes()
    }

    /// `[N, C, H, W]`; missing dimensions are 1.
    pub(crate) fn image(&self) -> [usize; 4] {
        std::array::from_fn(|dimension| self.shape.get(dimension).copied().unwrap_or(1))
    }

    /// The element at a row-major position.
    #[inline]
    pub(crate) fn get(&self, position: usize) -> f64 {
        self.dtype.load(self.bytes, position)
    }

    /// Sets the element at a row-major position, rounded to the tensor's type.
    #[inline]
    pub(crate) fn set(&mut self, position: usize, value: f64) {
        self.dtype.store(self.bytes, position, value);
    }

    /// A value rounded to the tensor's type.
    pub(crate) fn rounded(&self, value: f64) -> f64 {
        let mut element = [0; size_of::<f64>()];
        self.dtype.store(&mut element, 0, value);
        self.dtype.load(&element, 0)
    }

    /// Reads elements from `start` on.
    pub(crate) fn read(&self, start: usize, into: &mut [f64]) {
        // One loop per type, so that the match is outside it.
        macro_rules! widen {
            ($dtype:expr) => {
                for (offset, element) in into.iter_mut().enumerate() {
                    *element = $dtype.load(self.bytes, start + offset);
                }
            };
        }
        match self.dtype {
            DType::F32 => widen!(DType::F32),
            DType::Bf16 => widen!(DType::Bf16),
            DType::F16 => widen!(DType::F16),
            DType::F64 => widen!(DType::F64),
            DType::U8 | DType::I8 | DType::I32 => widen!(self.dtype),
        }
    }

    /// Writes elements from `start` on, rounded to the tensor's type.
    pub(crate) fn write(&mut self, start: usize, from: &[f64]) {
        for (offset, &element) in from.iter().enumerate() {
            self.set(start + offset, element);
        }
    }

    /// Sets every element to `value` of its position.
    pub(crate) fn fill_with(&mut self, mut value: impl FnMut(usize) -> f64) {
        for position in 0..self.len() {
            self.set(position, value(position));
        }
    }
}
