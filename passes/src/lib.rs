//! From a model's graph as a frontend wrote it to a plan: graph passes, and the schedule.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`manager`] | the table of passes, and running them with a check after each |
//! | [`canonicalise`] | dropping what does nothing, merging what repeats |
//! | [`fuse`] | reading weights quantised, fusing (egg) |
//! | [`defer`] | experts of least weight one layer later, where that is asked for |
//! | [`residency`] | when experts are loaded, where they do not all fit in memory |
//! | [`schedule`] | the plan: kernels, work lists, barriers, one arena |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod canonicalise;
pub mod defer;
pub mod fuse;
pub mod manager;
pub mod residency;
pub mod schedule;
