//! Compiled kernels in executable memory.
