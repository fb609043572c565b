//! Static cost of finished machine code: the cycles of a kernel's loops on any CPU.
//!
//! The analysis decodes the machine code; it does not use the compiler's IR. It counts the use of
//! resources: slots of the front end, ports, the tile unit, and the longest latency chain from
//! iteration to iteration. The resource that takes the most cycles bounds the loop.
//!
//! ```text
//! let compiled = x64::compile(&kernel, target)?;
//! let model = cost::model(target).ok_or(...)?;
//! let code = &compiled.code[..compiled.code_bytes];
//! let report = cost::analyse(code, &compiled.lines, &kernel, model);
//! println!("{report}");
//! println!("{}", report.whole(&[85, 2])?);        // all loops, for these dims
//! let memory = target.row().memory();
//! println!("{}", memory::levels(&report, &kernel, memory, &[85, 2], &[])?);    // with caches
//! ```
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`class`](mod@class) | kind of work of each instruction |
//! | [`model`](mod@model) | CPU models: rows of µops, ports and latencies |
//! | `intel`, `amd` | tables of the models |
//! | [`ports`] | the best assignment of µops to ports |
//! | [`chain`] | latency chains |
//! | [`loops`] | loops of the code, and of the kernel IR |
//! | [`block`] | the cost of one iteration |
//! | [`report`] | results, with all operands in the first-level cache |
//! | [`memory`] | caches, and the cost with them |
//!
//! `docs/cost-model.md` lists the assumptions. For example, branches are predicted, loops do not
//! overlap with each other, and memory carries no dependency.
//!
//! Invariant: an instruction that a model does not know is listed in [`Report::unknown`].

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod block;
pub mod chain;
pub mod class;
pub mod loops;
pub mod memory;
pub mod model;
pub mod ports;
pub mod report;

pub use block::{Block, Bound};
pub use model::{CpuModel, MODELS, model};
pub use report::{KernelCost, KernelCostError, LoopReport, Report, UnknownInstruction, WholeLoop, analyse};
