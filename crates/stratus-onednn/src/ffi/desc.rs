//! Memory descriptors, which hold the layouts of operands; convertible from and to plain data.

use super::context::Context;
use super::raw::{Dims, Handle, MAX_DIMENSIONS};
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use stratus_engine::{DType, Layout};

/// The element types of oneDNN (`dnnl_data_type_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum DataType {
    /// bf16.
    Bf16 = 2,
    /// f32.
    F32 = 3,
    /// Signed bytes.
    I8 = 5,
    /// Bytes.
    U8 = 6,
}

impl DataType {
    /// oneDNN's type for `dtype`, if it has kernels for it.
    #[must_use]
    pub fn from_dtype(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32),
            DType::Bf16 => Some(Self::Bf16),
            DType::I8 => Some(Self::I8),
            DType::U8 => Some(Self::U8),
            DType::F16 | DType::F64 | DType::I32 => None,
        }
    }
}

impl From<DataType> for DType {
    fn from(dtype: DataType) -> Self {
        match dtype {
            DataType::F32 => Self::F32,
            DataType::Bf16 => Self::Bf16,
            DataType::I8 => Self::I8,
            DataType::U8 => Self::U8,
        }
    }
}

/// The queries of a descriptor (`dnnl_query_*`).
mod query {
    pub const STRIDES: i32 = 14;
    pub const DIMENSIONS: i32 = 256;
    pub const DIMS: i32 = 257;
    pub const PADDED_DIMS: i32 = 260;
    pub const FORMAT_KIND: i32 = 262;
    pub const INNER_BLOCKS: i32 = 263;
    pub const INNER_BLOCK_SIZES: i32 = 264;
    pub const INNER_BLOCK_DIMS: i32 = 265;
}

const TAG_ANY: c_int = 1;
const TAG_ABCD16B: c_int = 78;
const FORMAT_KIND_BLOCKED: c_int = 2;

impl Context {
    /// Creates a descriptor whose layout oneDNN chooses.
    ///
    /// # Errors
    /// oneDNN's error message.
    pub fn any(&self, shape: &[usize], dtype: DataType) -> Result<Desc, String> {
        self.tagged(shape, dtype, TAG_ANY)
    }

    /// Creates a descriptor with channels in blocks of 16: `nChw16c`.
    ///
    /// # Errors
    /// oneDNN's error message.
    pub fn blocked16(&self, shape: &[usize], dtype: DataType) -> Result<Desc, String> {
        let desc = self.tagged(shape, dtype, TAG_ABCD16B)?;
        // The tag's number is not part of the documented API: check that it means what it should.
        let layout = desc.layout()?;
        if layout.blocks != [(1, 16)] || layout.strides.last() != Some(&16) {
            return Err(format!("this library uses the tag number of aBcd16b for {}", layout.tag));
        }
        Ok(desc)
    }

    fn tagged(&self, shape: &[usize], dtype: DataType, tag: c_int) -> Result<Desc, String> {
        let dims = dims(shape)?;
        let mut handle = null_mut();
        // SAFETY: `dims` holds `shape.len()` extents, and the function copies them.
        unsafe {
            let (count, dtype) = (shape.len() as c_int, dtype as c_int);
            call!(
                self.functions(),
                dnnl_memory_desc_create_with_tag(&raw mut handle, count, dims.as_ptr(), dtype, tag)
            )
        }?;
        Ok(Desc { context: self.clone(), handle })
    }

    /// Creates a dense descriptor with the given strides (in elements).
    ///
    /// # Errors
    /// oneDNN's error message.
    pub fn strided(&self, shape: &[usize], dtype: DataType, strides: &[usize]) -> Result<Desc, String> {
        let [extents, strides] = [dims(shape)?, dims(strides)?];
        let mut handle = null_mut();
        // SAFETY: both arrays hold `shape.len()` numbers, and the function copies them.
        unsafe {
            call!(
                self.functions(),
                dnnl_memory_desc_create_with_strides(
                    &raw mut handle,
                    shape.len() as c_int,
                    extents.as_ptr(),
                    dtype as c_int,
                    strides.as_ptr(),
                )
            )
        }?;
        Ok(Desc { context: self.clone(), handle })
    }
}

fn dims(shape: &[usize]) -> Result<Dims, String> {
    if shape.len() > MAX_DIMENSIONS {
        return Err(format!("{} dimensions are too many for oneDNN", shape.len()));
    }
    let mut dims = [0; MAX_DIMENSIONS];
    for (to, &from) in dims.iter_mut().zip(shape) {
        *to = i64::try_from(from).map_err(|_| format!("extent {from} is too large"))?;
    }
    Ok(dims)
}

/// A memory descriptor.
pub struct Desc {
    context: Context,
    pub(super) handle: Handle,
}

// SAFETY: descriptors are plain data behind the handle; nothing changes them after creation.
unsafe impl Send for Desc {}
// SAFETY: as above.
unsafe impl Sync for Desc {}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: created or cloned by this library, destroyed once.
        unsafe { (self.context.functions().dnnl_memory_desc_destroy)(self.handle) };
    }
}

impl Desc {
    /// Copies a descriptor owned by something else.
    ///
    /// # Safety
    /// `borrowed` is a descriptor of this library, alive during the call.
    pub(super) unsafe fn copied(context: &Context, borrowed: Handle) -> Result<Self, String> {
        let mut handle = null_mut();
        // SAFETY: the caller guarantees the handle.
        unsafe { call!(context.functions(), dnnl_memory_desc_clone(&raw mut handle, borrowed)) }?;
        Ok(Self { context: context.clone(), handle })
    }

    /// Returns a copy.
    ///
    /// # Errors
    /// oneDNN's error message.
    pub fn duplicate(&self) -> Result<Self, String> {
        // SAFETY: the handle is this descriptor's own.
        unsafe { Self::copied(&self.context, self.handle) }
    }

    /// Describes the same memory with the first two dimensions exchanged.
    ///
    /// # Errors
    /// oneDNN's error message.
    pub fn transposed(&self) -> Result<Self, String> {
        let mut order: [c_int; MAX_DIMENSIONS] = std::array::from_fn(|dimension| dimension as c_int);
        order.swap(0, 1);
        let mut handle = null_mut();
        let functions = self.context.functions();
        // SAFETY: the handle is alive, and `order` has at least as many numbers as it has dimensions.
        unsafe {
            call!(functions, dnnl_memory_desc_permute_axes(&raw mut handle, self.handle, order.as_ptr()))
        }?;
        Ok(Self { context: self.context.clone(), handle })
    }

    /// The size in bytes of the described memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        // SAFETY: the handle is alive.
        unsafe { (self.context.functions().dnnl_memory_desc_get_size)(self.handle) }
    }

    fn number(&self, query: i32) -> Result<c_int, String> {
        let mut value: c_int = 0;
        let to = (&raw mut value).cast::<c_void>();
        // SAFETY: these queries write one int.
        unsafe { call!(self.context.functions(), dnnl_memory_desc_query(self.handle, query, to)) }?;
        Ok(value)
    }

    fn list(&self, query: i32, length: usize) -> Result<Vec<usize>, String> {
        let mut values: *const i64 = null();
        let to = (&raw mut values).cast::<c_void>();
        // SAFETY: these queries write the address of an array of DNNL_MAX_NDIMS numbers that lives as long as
        // the descriptor.
        unsafe { call!(self.context.functions(), dnnl_memory_desc_query(self.handle, query, to)) }?;
        if values.is_null() || length > MAX_DIMENSIONS {
            return Err("dnnl_memory_desc_query: null result".to_owned());
        }
        // SAFETY: `length` is at most DNNL_MAX_NDIMS.
        let values = unsafe { std::slice::from_raw_parts(values, length) };
        values
            .iter()
            .map(|&v| usize::try_from(v).map_err(|_| format!("invalid extent {v} in a descriptor")))
            .collect()
    }

    /// Returns the layout as plain data.
    ///
    /// # Errors
    /// If the layout is opaque.
    pub fn layout(&self) -> Result<Layout, String> {
        if self.number(query::FORMAT_KIND)? != FORMAT_KIND_BLOCKED {
            return Err("oneDNN chose an opaque layout".to_owned());
        }
        let count = self.number(query::DIMENSIONS)? as usize;
        let inner = self.number(query::INNER_BLOCKS)? as usize;
        let shape = self.list(query::DIMS, count)?;
        let padded = self.list(query::PADDED_DIMS, count)?;
        let strides = self.list(query::STRIDES, count)?;
        let sizes = self.list(query::INNER_BLOCK_SIZES, inner)?;
        let dimensions = self.list(query::INNER_BLOCK_DIMS, inner)?;
        let blocks: Vec<(usize, usize)> = dimensions.into_iter().zip(sizes).collect();
        let tag = tag(&strides, &blocks);
        Ok(Layout { tag, shape, padded, strides, blocks })
    }
}

/// The layout tag in oneDNN's letters: dimensions from outermost to innermost, capitals for blocked ones,
/// then the blocks.
fn tag(strides: &[usize], blocks: &[(usize, usize)]) -> String {
    let mut order: Vec<usize> = (0..strides.len()).collect();
    order.sort_by_key(|&d| (std::cmp::Reverse(strides[d]), d));
    let letter = |d: usize| char::from(b'a' + d as u8);
    let mut text: String = order
        .iter()
        .map(|&d| if blocks.iter().any(|b| b.0 == d) { letter(d).to_ascii_uppercase() } else { letter(d) })
        .collect();
    for &(dimension, size) in blocks {
        text += &format!("{size}{}", letter(dimension));
    }
    text
}
