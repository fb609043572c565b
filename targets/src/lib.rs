//! Targets of generated code: their features and caches, and the features of this machine.
//!
//! | module | content |
//! | --- | --- |
//! | [`target`] | the target table: needs and register widths of each target |
//! | [`feature`] | CPU features that generated code may need |
//! | [`instruction`] | the feature that an instruction needs |
//! | [`memory`] | shapes of caches, and costs of data from each level |
//! | [`cpu`] | features and caches of this CPU, and limits of this system |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod cpu;
pub mod feature;
pub mod instruction;
pub mod memory;
pub mod target;

pub use feature::{Feature, Features};
pub use target::{CacheRow, CoreCaches, Isa, Lowering, TARGETS, Target, TargetRow};
