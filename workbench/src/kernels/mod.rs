//! Single kernels, for people who write and tune them: named, shown, run and measured.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`choose`] | which kernel a name, a spec's text, a file or a model's kernel means |
//! | [`run`] | inputs, the interpreter's results, and the machine's compared with them |
//! | [`bundle`] | a kernel as a folder of files, and such a folder replayed |
//! | [`diff`] | two kernels with the same inputs: bits, cost, time, instructions |
//! | [`mod@bench`] | time per call with its spread, and this machine's peak |
//! | [`reduce`] | a failing kernel, made small |
//! | [`roofline`] | the most that this machine reads and multiplies |
//! | [`tune`] | which width, chunk and pace of a product is fastest |
//! | [`show`] | a kernel in each stage down to its bytes, with its statistics |
//!
//! Rows with names are in [`catalogue`].
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
