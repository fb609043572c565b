//! Tools for single kernels: selection, display, runs and measurements.
//!
//! | module | contents |
//! | --- | --- |
//! | [`choose`] | selection of a kernel by name, spec, file or model |
//! | [`run`] | inputs, and comparison of the machine's results with the interpreter's |
//! | [`bundle`] | folders that hold a kernel with its inputs, and their replay |
//! | [`diff`] | comparison of two kernels: bits, cost, time, instructions |
//! | [`mod@bench`] | time per call with its spread, and this machine's peak |
//! | [`reduce`] | reduction of a failing kernel |
//! | [`roofline`] | peak bandwidth and arithmetic of this machine |
//! | [`tune`] | fastest width, chunk and pace of a product |
//! | [`show`] | a kernel in each stage down to machine code, with statistics |
//!
//! Named kernels are in [`catalogue`].
//!
//! ```
//! use ixc_targets::Target;
//! use ixc_workbench::kernels::{choose, run};
//!
//! let kernel = choose::choose("map function=add n=33", Target::native())?;
//! let case = run::Case::new(kernel, None, 0)?;
//! assert_eq!(case.check(run::Engine::Native)?.difference, None);
//! # Ok::<(), ixc_workbench::Error>(())
//! ```

pub use ixc_kernels::*;

pub mod bench;
pub mod bundle;
pub mod choose;
pub mod diff;
pub mod reduce;
pub mod roofline;
pub mod run;
pub mod show;
pub mod tune;

pub use crate::error::kernels::KernelError;
