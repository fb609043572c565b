//! From a model's graph as a frontend wrote it to a plan: graph passes, and the schedule.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`manager`] | the list of passes, and running them with a check after each |
//! | [`canonicalise`] | dropping what does nothing, merging what repeats |
//! | [`fuse`] | reading weights quantised, fusing (egg) |
//! | [`cache`] | keys and values in blocks, where that is asked for |
//! | [`decision`] | what passes chose over what else, for those who ask |
//! | [`defer`] | experts of least weight one layer later, where that is asked for |
//! | [`pass`], [`error`] | what a pass is and knows, and what can go wrong in one |
//! | [`options`] | options of passes, which each pass declares |
//! | [`pack`] | the format that products read each weight in |
//! | [`residency`] | when experts are loaded, where they do not all fit in memory |
//! | [`draft`], `hazards` | what is between `lower` and `arena`, and a drawing of it |
//! | [`schedule`] | `lower`, `steps`, `arena`: kernels, work lists, barriers, one arena |
//! | [`tile`] | how each weight's products are cut, by the caches |
//! | [`tuned`] | what was measured to be faster than that |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod cache;
pub mod canonicalise;
pub mod decision;
pub mod defer;
pub mod draft;
pub mod error;
pub mod fuse;
mod hazards;
pub mod manager;
pub mod observe;
pub mod options;
pub mod pack;
pub mod pass;
pub mod requantise;
pub mod residency;
pub mod schedule;
pub mod tile;
pub mod tuned;
