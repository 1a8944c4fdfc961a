//! cuDNN: convolutions through its graph API, which has more kernels than the older functions.
//!
//! A convolution is a graph of one operation. cuDNN's heuristics list engine configurations that can run it,
//! the best by estimate first. Each becomes a plan, which is executed on addresses.

use super::driver::Gpu;
use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type, cudnnBackendDescriptor_t,
    cudnnBackendDescriptorType_t as Kind, cudnnBackendHeurMode_t as Mode, cudnnConvolutionMode_t,
    cudnnDataType_t, cudnnHandle_t, cudnnStatus_t,
};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::Arc;
use stratus_engine::DType;

/// The numerical notes of an engine (`cudnnBackendNumericalNote_t`).
mod note {
    /// It multiplies on tensor cores: f32 is rounded to TF32.
    pub const TENSOR_CORE: u32 = 0;
    /// It rounds its inputs to a narrower type.
    pub const DOWN_CONVERT_INPUTS: u32 = 1;
    /// It accumulates in less than f32.
    pub const REDUCED_PRECISION_REDUCTION: u32 = 2;
    /// It uses Fourier transforms.
    pub const FFT: u32 = 3;
    /// Another run may give different bits.
    pub const NONDETERMINISTIC: u32 = 4;
    /// It uses Winograd's minimal filtering.
    pub const WINOGRAD: u32 = 5;
}

/// A cuDNN handle on a GPU's stream.
pub(crate) struct Cudnn {
    gpu: Arc<Gpu>,
    handle: cudnnHandle_t,
}

// SAFETY: the handle is used by one thread at a time: a session's, or the planner's before there is a
// session.
unsafe impl Send for Cudnn {}
// SAFETY: as above.
unsafe impl Sync for Cudnn {}

/// A pass of a convolution: the output, or the gradient of the input or of the weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pass {
    Forward,
    BackwardData,
    BackwardWeights,
}

/// A convolution of channels-last maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Problem {
    pub pass: Pass,
    /// `[N, C, H, W]` of the input.
    pub x: [usize; 4],
    /// `[O, C / groups, KH, KW]`.
    pub weight: [usize; 4],
    /// `[N, O, H', W']` of the output.
    pub y: [usize; 4],
    pub padding_before: [usize; 2],
    pub padding_after: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    /// The types of x, weight and y, or of their gradients.
    pub types: [DType; 3],
    /// True if f32 factors may be rounded to TF32.
    pub tf32: bool,
}

impl Problem {
    /// Returns whether it is a weight gradient that native kernels compute on tensor cores (from Ampere):
    /// bf16 or f16 maps, one group. cuDNN has no engine that splits its sum.
    pub fn has_fast_native(&self) -> bool {
        let [x, weight, y] = self.types;
        let is_half = matches!(x, DType::Bf16 | DType::F16) && x == y && weight == DType::F32;
        self.pass == Pass::BackwardWeights && is_half && self.x[1] == self.weight[1]
    }
}

/// The prefix of the names of plans.
pub(crate) const PREFIX: &str = "cudnn:";

/// The operands' identifiers in a graph: x, weight, y.
const UIDS: [i64; 3] = [1, 2, 3];

impl Cudnn {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, String> {
        gpu.make_current()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the pointer is to a handle; the stream lives as long as the handle.
        unsafe {
            check(sys::cudnnCreate(&raw mut handle))?;
            check(sys::cudnnSetStream(handle, gpu.stream().cast()))?;
        }
        Ok(Self { gpu: Arc::clone(gpu), handle })
    }

    /// The plans of a convolution, the best by cuDNN's estimate first: at most `max_plans`, all
    /// deterministic, none that rounds more than `problem` allows or needs more than `workspace` bytes. With
    /// `only`, just the plan of that name.
    ///
    /// # Errors
    /// If there is none.
    pub fn plans(
        self: &Arc<Self>,
        problem: &Problem,
        max_plans: usize,
        workspace: usize,
        only: Option<&str>,
    ) -> Result<Vec<ConvolutionPlan>, String> {
        if only.is_some_and(|name| !name.starts_with(PREFIX)) {
            return Ok(Vec::new());
        }
        self.gpu.make_current()?;
        let graph = self.graph(problem)?;
        let mut plans: Vec<ConvolutionPlan> = Vec::new();
        let mut reason = "cuDNN has no engine for it".to_owned();
        for mode in [Mode::CUDNN_HEUR_MODE_A, Mode::CUDNN_HEUR_MODE_FALLBACK] {
            for config in configurations(&graph, mode)? {
                if plans.len() >= max_plans || (only.is_some() && !plans.is_empty()) {
                    return Ok(plans);
                }
                match self.plan(&config, problem, only) {
                    Ok(Some(plan)) if plan.workspace > workspace => {
                        reason = format!("cuDNN needs {} bytes of workspace", plan.workspace);
                    }
                    Ok(Some(plan)) if plans.iter().any(|other| other.name == plan.name) => {}
                    Ok(Some(plan)) => plans.push(plan),
                    Ok(None) => {
                        "cuDNN's engines are too inexact or not deterministic".clone_into(&mut reason);
                    }
                    Err(error) => reason = error,
                }
            }
        }
        if plans.is_empty() { Err(reason) } else { Ok(plans) }
    }

    /// The plan of a configuration, if its engine is acceptable.
    fn plan(
        self: &Arc<Self>,
        config: &Descriptor,
        problem: &Problem,
        only: Option<&str>,
    ) -> Result<Option<ConvolutionPlan>, String> {
        let engine = Descriptor::new(Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
        config.get_descriptors(Name::CUDNN_ATTR_ENGINECFG_ENGINE, &[&engine])?;
        let notes =
            engine.get_codes(Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, Type::CUDNN_TYPE_NUMERICAL_NOTE)?;
        let exact = problem.types[0] == DType::F32 && !problem.tf32;
        // Transforms round sums of inputs to the inputs' type: in f16 these may overflow where no result
        // does.
        let may_overflow = problem.types[0] == DType::F16;
        let refused = |note: &u32| match *note {
            note::NONDETERMINISTIC | note::REDUCED_PRECISION_REDUCTION => true,
            note::TENSOR_CORE | note::DOWN_CONVERT_INPUTS => exact,
            note::WINOGRAD | note::FFT => exact || may_overflow,
            _ => false,
        };
        if notes.iter().any(refused) {
            return Ok(None);
        }
        let [index] = engine.get_numbers(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX)?;
        let mut name = format!("{PREFIX}{index}");
        for [knob, value] in knobs(config)? {
            name += &format!(":{knob}={value}");
        }
        if only.is_some_and(|only| only != name) {
            return Ok(None);
        }
        let plan = Descriptor::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Type::CUDNN_TYPE_HANDLE, &[self.handle])?;
        plan.set_descriptors(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[config])?;
        plan.finish()?;
        let [workspace] = plan.get_numbers(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?;
        let workspace = usize::try_from(workspace).unwrap_or(0);
        Ok(Some(ConvolutionPlan { cudnn: Arc::clone(self), plan, name, workspace }))
    }

    fn graph(&self, problem: &Problem) -> Result<Descriptor, String> {
        let Problem { x, weight, y, types, .. } = problem;
        let x = tensor(UIDS[0], *x, types[0])?;
        let weight = tensor(UIDS[1], *weight, types[1])?;
        let y = tensor(UIDS[2], *y, types[2])?;
        let float = [cudnnDataType_t::CUDNN_DATA_FLOAT];
        let numbers = |pair: [usize; 2]| pair.map(|number| number as i64);
        let convolution = Descriptor::new(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
        convolution.set(Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &float)?;
        let mode = [cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION];
        convolution.set(Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE, Type::CUDNN_TYPE_CONVOLUTION_MODE, &mode)?;
        convolution.set_numbers(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[2])?;
        for (name, pair) in [
            (Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, problem.padding_before),
            (Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, problem.padding_after),
            (Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, problem.stride),
            (Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, problem.dilation),
        ] {
            convolution.set_numbers(name, &numbers(pair))?;
        }
        convolution.finish()?;
        let (kind, names) = match problem.pass {
            Pass::Forward => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                [
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                ],
            ),
            Pass::BackwardData => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                [
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                ],
            ),
            Pass::BackwardWeights => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                [
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                ],
            ),
        };
        let operation = Descriptor::new(kind)?;
        for (name, descriptor) in names.iter().zip([&convolution, &x, &weight, &y]) {
            operation.set_descriptors(*name, &[descriptor])?;
        }
        operation.set(names[4], Type::CUDNN_TYPE_FLOAT, &[1.0_f32])?;
        operation.set(names[5], Type::CUDNN_TYPE_FLOAT, &[0.0_f32])?;
        operation.finish()?;
        let graph = Descriptor::new(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        graph.set(Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Type::CUDNN_TYPE_HANDLE, &[self.handle])?;
        graph.set_descriptors(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &[&operation])?;
        graph.finish()?;
        Ok(graph)
    }
}

impl Drop for Cudnn {
    fn drop(&mut self) {
        if self.gpu.wait().is_ok() {
            // SAFETY: created and destroyed once, when no work in the stream uses it.
            let _ = unsafe { sys::cudnnDestroy(self.handle) };
        }
    }
}

/// `major.minor.patch`.
pub(crate) fn version() -> String {
    // SAFETY: a query without arguments.
    let version = unsafe { sys::cudnnGetVersion() };
    format!("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100)
}

/// An executable engine configuration, bound to the handle it was created with.
pub(crate) struct ConvolutionPlan {
    cudnn: Arc<Cudnn>,
    plan: Descriptor,
    /// The engine and its knobs.
    pub name: String,
    /// The workspace in bytes.
    pub workspace: usize,
}

// SAFETY: a finished plan is only read. The thread that has the session executes it, like the handle.
unsafe impl Sync for ConvolutionPlan {}

impl ConvolutionPlan {
    /// Enqueues the plan on the addresses of x, weight and y (or of their gradients) and of its workspace.
    pub fn enqueue(&self, addresses: [u64; 3], workspace: u64) -> Result<(), String> {
        self.cudnn.gpu.make_current()?;
        let pack = Descriptor::new(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        let pointers = addresses.map(|address| address as *mut c_void);
        pack.set_numbers(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &UIDS)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, Type::CUDNN_TYPE_VOID_PTR, &pointers)?;
        let workspace = [workspace as *mut c_void];
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, Type::CUDNN_TYPE_VOID_PTR, &workspace)?;
        pack.finish()?;
        // SAFETY: plan and pack are finished; the operands of a step are on this GPU and have the size of
        // their shapes, and the workspace has the required size.
        check(unsafe { sys::cudnnBackendExecute(self.cudnn.handle, self.plan.0, pack.0) })
    }
}

/// The configurations that cuDNN's heuristics suggest for a graph.
fn configurations(graph: &Descriptor, mode: Mode) -> Result<Vec<Descriptor>, String> {
    let heuristics = Descriptor::new(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
    heuristics.set_descriptors(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[graph])?;
    heuristics.set(Name::CUDNN_ATTR_ENGINEHEUR_MODE, Type::CUDNN_TYPE_HEUR_MODE, &[mode])?;
    // Finishing fails if the mode has no engine at all.
    if heuristics.finish().is_err() {
        return Ok(Vec::new());
    }
    heuristics.descriptors(Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
}

/// The knobs of a configuration: pairs of type and value.
fn knobs(config: &Descriptor) -> Result<Vec<[i64; 2]>, String> {
    let choices = config
        .descriptors(Name::CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, Kind::CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR)?;
    let read = |choice: &Descriptor| {
        let codes = choice.get_codes(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, Type::CUDNN_TYPE_KNOB_TYPE)?;
        let [value] = choice.get_numbers(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE)?;
        Ok([codes.first().map_or(-1, |&code| i64::from(code)), value])
    };
    choices.iter().map(read).collect()
}

/// A channels-last tensor `[N, C, H, W]`.
fn tensor(uid: i64, [n, c, h, w]: [usize; 4], dtype: DType) -> Result<Descriptor, String> {
    let dtype = match dtype {
        DType::F32 => cudnnDataType_t::CUDNN_DATA_FLOAT,
        DType::Bf16 => cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        DType::F16 => cudnnDataType_t::CUDNN_DATA_HALF,
        other => return Err(format!("cuDNN convolutions of {other} are not supported")),
    };
    let numbers = |extents: [usize; 4]| extents.map(|extent| extent as i64);
    let tensor = Descriptor::new(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[dtype])?;
    tensor.set_numbers(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, &numbers([n, c, h, w]))?;
    tensor.set_numbers(Name::CUDNN_ATTR_TENSOR_STRIDES, &numbers([h * w * c, 1, w * c, c]))?;
    tensor.set_numbers(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[uid])?;
    // Values start at multiples of 64 bytes.
    tensor.set_numbers(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[16])?;
    tensor.finish()?;
    Ok(tensor)
}

/// A descriptor of the graph API.
struct Descriptor(cudnnBackendDescriptor_t);

// SAFETY: a descriptor belongs to no thread; the thread of the plan that holds it uses it.
unsafe impl Send for Descriptor {}

impl Descriptor {
    fn new(kind: Kind) -> Result<Self, String> {
        let mut descriptor = ptr::null_mut();
        // SAFETY: a valid out-pointer.
        check(unsafe { sys::cudnnBackendCreateDescriptor(kind, &raw mut descriptor) })?;
        Ok(Self(descriptor))
    }

    /// Sets an attribute; `E` is the C type of `value_type`.
    fn set<E: Copy>(&self, name: Name, value_type: Type, values: &[E]) -> Result<(), String> {
        let count = values.len() as i64;
        // SAFETY: `values` holds `count` values of the attribute's type; the library copies them.
        let status =
            unsafe { sys::cudnnBackendSetAttribute(self.0, name, value_type, count, values.as_ptr().cast()) };
        check(status).map_err(|reason| format!("{name:?}: {reason}"))
    }

    fn set_numbers(&self, name: Name, values: &[i64]) -> Result<(), String> {
        self.set(name, Type::CUDNN_TYPE_INT64, values)
    }

    fn set_descriptors(&self, name: Name, values: &[&Self]) -> Result<(), String> {
        let pointers: Vec<cudnnBackendDescriptor_t> = values.iter().map(|value| value.0).collect();
        self.set(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &pointers)
    }

    fn finish(&self) -> Result<(), String> {
        // SAFETY: the descriptor lives.
        check(unsafe { sys::cudnnBackendFinalize(self.0) })
    }

    /// Reads an attribute into `values`; returns the number of values available, or written.
    fn get<E: Copy>(&self, name: Name, value_type: Type, values: &mut [E]) -> Result<usize, String> {
        let mut count = 0_i64;
        let capacity = values.len() as i64;
        let to: *mut c_void = if values.is_empty() { ptr::null_mut() } else { values.as_mut_ptr().cast() };
        // SAFETY: `values` has room for `capacity` values of the attribute's type.
        let status =
            unsafe { sys::cudnnBackendGetAttribute(self.0, name, value_type, capacity, &raw mut count, to) };
        check(status).map_err(|reason| format!("{name:?}: {reason}"))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    fn get_numbers<const N: usize>(&self, name: Name) -> Result<[i64; N], String> {
        let mut values = [0; N];
        self.get(name, Type::CUDNN_TYPE_INT64, &mut values)?;
        Ok(values)
    }

    /// Values of an enumeration, by their codes.
    fn get_codes(&self, name: Name, value_type: Type) -> Result<Vec<u32>, String> {
        let mut values = [0_u32; 32];
        let count = self.get(name, value_type, &mut values)?;
        Ok(values[..count.min(values.len())].to_vec())
    }

    /// Fills existing descriptors.
    fn get_descriptors(&self, name: Name, into: &[&Self]) -> Result<usize, String> {
        let mut pointers: Vec<cudnnBackendDescriptor_t> = into.iter().map(|value| value.0).collect();
        self.get(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut pointers)
    }

    /// All descriptors of an attribute.
    fn descriptors(&self, name: Name, kind: Kind) -> Result<Vec<Self>, String> {
        let none: &mut [cudnnBackendDescriptor_t] = &mut [];
        let count = self.get(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, none)?;
        let mut descriptors = (0..count).map(|_| Self::new(kind)).collect::<Result<Vec<_>, _>>()?;
        let filled = self.get_descriptors(name, &descriptors.iter().collect::<Vec<_>>())?;
        descriptors.truncate(filled);
        Ok(descriptors)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: created and destroyed once.
        let _ = unsafe { sys::cudnnBackendDestroyDescriptor(self.0) };
    }
}

fn check(status: cudnnStatus_t) -> Result<(), String> {
    if status == cudnnStatus_t::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    let mut text: [c_char; 256] = [0; 256];
    // SAFETY: the buffer has this many bytes; the library terminates the text with a zero byte.
    let text = unsafe {
        sys::cudnnGetLastErrorString(text.as_mut_ptr(), text.len());
        text[text.len() - 1] = 0;
        CStr::from_ptr(text.as_ptr())
    };
    Err(format!("cuDNN error {status:?} ({})", text.to_string_lossy().trim()))
}
