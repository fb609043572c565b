//! Compiles kernel IR to machine code.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`x64`] | lowering for x86-64 targets: selection, register allocation, encoding |
//! | [`portable`] | lowering for `portable` through cranelift |
//! | [`line`](mod@line) | the IR statement of each instruction |
//! | [`artifact`] | the result of lowering one kernel |
//! | [`module`] | compiled kernels in executable memory, callable |
//! | [`profile`] | kernel names for perf and gdb |
//! | [`parallel`] | work on many kernels at once |
//! | [`thunk`] | calls of code that may violate the calling convention |
//! | [`foreign`] | code from outside this process: its CPU features, and calls of it |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod artifact;
pub mod foreign;
pub mod line;
pub mod module;
pub mod parallel;
pub mod portable;
pub mod profile;
pub mod thunk;
pub mod x64;
