//! Static cost of finished machine code: what a kernel's loops cost on a CPU that need not be here.
//!
//! It decodes the bytes that would run, not the compiler's own IR, and counts resources: slots of the front end, ports, the tile
//! unit, and the longest chain of latencies that an iteration hands to the next. The largest of them bounds the loop.
//!
//! ```text
//! let compiled = x64::compile(&kernel, target)?;
//! let model = cost::model(target).ok_or(...)?;
//! let report = cost::analyse(&compiled.code[..compiled.code_bytes], &compiled.lines, &kernel, model);
//! println!("{report}");
//! println!("{}", report.whole(&[85, 2])?);        // all loops, for these dims
//! println!("{}", memory::levels(&report, &kernel, target.row().memory(), &[85, 2], &[])?);    // with caches
//! ```
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`class`](mod@class) | what kind of work each instruction is |
//! | [`model`](mod@model) | CPU models: rows of µops, ports and latencies; their tables in `intel` and `amd` |
//! | [`ports`] | the best assignment of µops to ports |
//! | [`chain`] | latency chains |
//! | [`loops`] | loops of the code, and of the kernel IR |
//! | [`block`] | the cost of one iteration |
//! | [`report`] | what comes out, all operands being in the first-level cache |
//! | [`memory`] | where operands come from, and what the kernel costs then |
//!
//! What is assumed stands in `docs/cost-model.md`: branches predicted, no loop overlapping with another, memory carrying no dependency.
//!
//! Invariant: an instruction that a model does not know is listed in [`Report::unknown`].

mod amd;
pub mod block;
pub mod chain;
pub mod class;
mod intel;
pub mod loops;
pub mod memory;
pub mod model;
pub mod ports;
pub mod report;

pub use block::{Block, Bound};
pub use model::{CpuModel, MODELS, model};
pub use report::{LoopReport, Report, Unknown, Whole, WholeError, WholeLoop, analyse};
