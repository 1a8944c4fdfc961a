//! CPU kernels: the oneDNN C API loaded at run time, and vectorised kernels of our own beside it.
