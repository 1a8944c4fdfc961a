//! The CUDA driver, NVRTC, cuDNN and cuBLAS, loaded at run time through cudarc's declarations: none of them is needed to build.
//!
//! Everything here is wrapped in types that release what they hold and keep alive what they need. All work of a GPU goes into one queue (stream).
#![allow(unsafe_code)] // The one room for calls into the libraries; each block says why it is sound.

pub(crate) mod cublas;
pub(crate) mod cudnn;
pub(crate) mod cupti;
pub(crate) mod driver;
pub(crate) mod libraries;
pub(crate) mod nvrtc;
