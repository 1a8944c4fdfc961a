//! Operations with one native kernel for each step: the kernels and their [`CpuOp`](crate::ops::CpuOp), in a
//! file per operation, named as in `stratus-graph`.

macro_rules! operation_files {
    ({} $($module:ident: $operation:ident [$($kernel:ident),*];)*) => {
        $(mod $module;)*
    };
}

stratus_graph::with_operations!(operation_files);
