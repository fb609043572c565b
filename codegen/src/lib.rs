//! From kernel IR to machine code.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`cost`] | what finished code costs on a CPU that need not be here |
//! | [`x64`] | lowering for x86-64 targets: selection, register allocation, encoding |
//! | [`portable`] | lowering for `portable` through cranelift |
//! | [`line`](mod@line) | which statement an instruction comes from |
//! | [`artifact`] | what a lowering gives for one kernel |
//! | [`module`] | compiled kernels in executable memory, callable |
//! | [`profile`] | generated code under its kernels' names, for perf and gdb |
//! | [`parallel`] | many kernels at once |
//! | [`thunk`] | calling code that may not keep to the calling convention |
//! | [`foreign`] | code that was not made in this process: what it needs, and calling it |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod artifact;
pub mod cost;
pub mod foreign;
pub mod line;
pub mod module;
pub mod parallel;
pub mod portable;
pub mod profile;
pub mod thunk;
pub mod x64;
