//! What code is made for: targets, their features and caches, and what this machine has of them.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`target`] | the target table: what each target needs and how wide its registers are |
//! | [`feature`] | CPU features that generated code may need |
//! | [`instruction`] | the feature that an instruction needs |
//! | [`memory`] | shapes of caches, and what it costs to bring data from each |
//! | [`cpu`] | what this CPU and this system allow: features and caches |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod cpu;
pub mod feature;
pub mod instruction;
pub mod memory;
pub mod target;

pub use feature::{Feature, Features};
pub use target::{CoreCaches, Isa, Lowering, TARGETS, Target, TargetRow};
