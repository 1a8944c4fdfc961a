//! The CUDA driver, NVRTC, cuDNN, cuBLAS and NCCL, loaded at run time, most of them through cudarc's
//! declarations: none of them is needed to build.
//!
//! Each handle is wrapped in a type that releases it and keeps alive what it needs. All work of a GPU is
//! enqueued in one stream, except copies of inputs, which have a second one.
#![allow(unsafe_code)] // Calls into the libraries; each block says why it is sound.

pub(crate) mod cublas;
pub(crate) mod cudnn;
pub(crate) mod cupti;
pub(crate) mod driver;
pub(crate) mod libraries;
pub(crate) mod nccl;
pub(crate) mod nvml;
pub(crate) mod nvrtc;
pub(crate) mod queues;
