//! Creates primitive descriptors, one function per operation. The error is oneDNN's message if it has no
//! implementation.

use super::context::{Attributes, Context};
use super::desc::Desc;
use super::primitive::PrimitiveDesc;
use std::ffi::c_int;
use std::ptr::null_mut;

const ALGORITHM_CONVOLUTION_DIRECT: c_int = 1;

/// The values of `dnnl_prop_kind_t` that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Propagation {
    /// Forward, keeping the values that the backward pass needs.
    Training = 64,
    /// Forward only.
    Inference = 96,
}

/// The window of a convolution over two spatial dimensions. Dilations count from 0, as in oneDNN.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Strides.
    pub strides: [i64; 2],
    /// Dilations.
    pub dilations: [i64; 2],
    /// Padding `[top, left]`.
    pub before: [i64; 2],
    /// Padding `[bottom, right]`.
    pub after: [i64; 2],
}

/// Creates the descriptor of a primitive, whose handle is the first argument of the function.
macro_rules! create {
    ($context:ident, $function:ident($($argument:expr),* $(,)?)) => {{
        let mut handle = null_mut();
        // SAFETY: all handles are alive, the arrays of a window have a number per spatial dimension, a hint
        // is a forward descriptor of the same operation, and oneDNN copies everything.
        unsafe { call!($context.functions(), $function(&raw mut handle, $($argument),*)) }?;
        Ok(PrimitiveDesc::new($context.clone(), handle))
    }};
}

/// As `create!`, for operations that have no sums over the work of several threads, for which oneDNN's
/// kernels wait for each other. If a kernel waits after all, it loses time while other programs use the CPUs,
/// but ends ([`stratus_threads::with_independent_parts`]).
macro_rules! create_with_independent_parts {
    ($context:ident, $function:ident($($argument:expr),* $(,)?)) => {{
        let created: Result<PrimitiveDesc, String> = create!($context, $function($($argument),*));
        created.map(PrimitiveDesc::with_independent_parts)
    }};
}

impl Context {
    /// Convolution forward.
    ///
    /// # Errors
    /// If oneDNN has no implementation.
    pub fn convolution_forward(
        &self,
        propagation: Propagation,
        [src, weights, dst]: [&Desc; 3],
        bias: Option<&Desc>,
        window: &Window,
        attributes: &Attributes,
    ) -> Result<PrimitiveDesc, String> {
        create_with_independent_parts!(
            self,
            dnnl_convolution_forward_primitive_desc_create(
                self.engine(),
                propagation as c_int,
                ALGORITHM_CONVOLUTION_DIRECT,
                src.handle,
                weights.handle,
                bias.map_or(null_mut(), |bias| bias.handle),
                dst.handle,
                window.strides.as_ptr(),
                window.dilations.as_ptr(),
                window.before.as_ptr(),
                window.after.as_ptr(),
                attributes.handle,
            )
        )
    }

    /// Convolution, gradient of the source.
    ///
    /// # Errors
    /// If oneDNN has no implementation.
    pub fn convolution_backward_data(
        &self,
        [diff_src, weights, diff_dst]: [&Desc; 3],
        window: &Window,
        hint: &PrimitiveDesc,
        attributes: &Attributes,
    ) -> Result<PrimitiveDesc, String> {
        create_with_independent_parts!(
            self,
            dnnl_convolution_backward_data_primitive_desc_create(
                self.engine(),
                ALGORITHM_CONVOLUTION_DIRECT,
                diff_src.handle,
                weights.handle,
                diff_dst.handle,
                window.strides.as_ptr(),
                window.dilations.as_ptr(),
                window.before.as_ptr(),
                window.after.as_ptr(),
                hint.handle,
                attributes.handle,
            )
        )
    }

    /// Convolution, gradient of weights and bias.
    ///
    /// # Errors
    /// If oneDNN has no implementation.
    pub fn convolution_backward_weights(
        &self,
        [src, diff_weights, diff_dst]: [&Desc; 3],
        diff_bias: Option<&Desc>,
        window: &Window,
        hint: &PrimitiveDesc,
        attributes: &Attributes,
    ) -> Result<PrimitiveDesc, String> {
        create!(
            self,
            dnnl_convolution_backward_weights_primitive_desc_create(
                self.engine(),
                ALGORITHM_CONVOLUTION_DIRECT,
                src.handle,
                diff_weights.handle,
                diff_bias.map_or(null_mut(), |bias| bias.handle),
                diff_dst.handle,
                window.strides.as_ptr(),
                window.dilations.as_ptr(),
                window.before.as_ptr(),
                window.after.as_ptr(),
                hint.handle,
                attributes.handle,
            )
        )
    }

    /// Inner product forward.
    ///
    /// # Errors
    /// If oneDNN has no implementation.
    pub fn inner_product_forward(
        &self,
        propagation: Propagation,
        [src, weights, dst]: [&Desc; 3],
        bias: Option<&Desc>,
        attributes: &Attributes,
    ) -> Result<PrimitiveDesc, String> {
        create!(
            self,
            dnnl_inner_product_forward_primitive_desc_create(
                self.engine(),
                propagation as c_int,
                src.handle,
                weights.handle,
                bias.map_or(null_mut(), |bias| bias.handle),
                dst.handle,
                attributes.handle,
            )
        )
    }

    /// Inner product, gradient of the source.
    ///
    /// # Errors
    /// If oneDNN has no implementation.
    pub fn inner_product_backward_data(
        &self,
        [diff_src, weights, diff_dst]: [&Desc; 3],
        hint: &PrimitiveDesc,
        attributes: &Attributes,
    ) -> Result<PrimitiveDesc, String> {
        create!(
            self,
            dnnl_inner_product_backward_data_primitive_desc_create(
                self.engine(),
                diff_src.handle,
                weights.handle,
                diff_dst.handle,
                hint.handle,
                attributes.handle,
            )
        )
    }

    /// Inner product, gradient of weights and bias.
    ///
    /// # Errors
    /// If oneDNN has no implementation.
    pub fn inner_product_backward_weights(
        &self,
        [src, diff_weights, diff_dst]: [&Desc; 3],
        diff_bias: Option<&Desc>,
        hint: &PrimitiveDesc,
        attributes: &Attributes,
    ) -> Result<PrimitiveDesc, String> {
        create!(
            self,
            dnnl_inner_product_backward_weights_primitive_desc_create(
                self.engine(),
                src.handle,
                diff_weights.handle,
                diff_bias.map_or(null_mut(), |bias| bias.handle),
                diff_dst.handle,
                hint.handle,
                attributes.handle,
            )
        )
    }

    /// Matrix product `dst = src x weights`.
    ///
    /// # Errors
    /// If oneDNN has no implementation.
    pub fn matmul(
        &self,
        [src, weights, dst]: [&Desc; 3],
        attributes: &Attributes,
    ) -> Result<PrimitiveDesc, String> {
        create!(
            self,
            dnnl_matmul_primitive_desc_create(
                self.engine(),
                src.handle,
                weights.handle,
                null_mut(),
                dst.handle,
                attributes.handle,
            )
        )
    }

    /// A change of layout, or of layout and type.
    ///
    /// # Errors
    /// If oneDNN has no implementation.
    pub fn reorder(&self, from: &Desc, to: &Desc, attributes: &Attributes) -> Result<PrimitiveDesc, String> {
        let engine = self.engine();
        create_with_independent_parts!(
            self,
            dnnl_reorder_primitive_desc_create(from.handle, engine, to.handle, engine, attributes.handle)
        )
    }
}
