//! Passes: graph passes change the model's graph from a frontend, and schedule passes turn it into
//! a plan.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`manager`] | the list of passes; runs them and checks the IR after each |
//! | [`canonicalise`] | removes unused and redundant ops, merges equal ops |
//! | [`fuse`] | reads quantised weights, fuses ops (egg) |
//! | [`cache`] | block formats for keys and values, on request |
//! | [`decision`] | records of choices and their alternatives |
//! | [`defer`] | experts of least weight one layer later, on request |
//! | [`pass`], [`error`] | the pass interface and context, and the errors of passes |
//! | [`options`] | options that each pass declares |
//! | [`pack`] | the format in which products read each weight |
//! | [`residency`] | loading of experts that do not all fit in memory |
//! | [`draft`], `hazards` | the form between `lower` and `arena`, and a drawing of it |
//! | [`shard`] | the graph of one of several ranks, on request |
//! | [`schedule`] | `lower`, `steps`, `arena`: kernels, work lists, barriers, one arena |
//! | [`tile`] | blocking of each weight's products, from cache sizes |
//! | [`tuned`] | blockings that were measured to be faster |

#![forbid(unsafe_code)]
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
pub mod shard;
pub mod tile;
pub mod tuned;
