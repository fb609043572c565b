//! Dataflow targets: weights stay on processing elements (PEs), activations stream between them.
//!
//! ```text
//! tasks ──pieces──▶ plan in pieces ──place──▶ descriptor
//! descriptor ──read──▶ checked ──Machine::new──▶ Simulator::step ─▶ cycles, critical path; logits
//!   (JSON)             memory, routes, sizes         events            report, page
//! ```
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`grid`] | the machine: PEs, memory, links, clock |
//! | [`descriptor`] | what runs on it: programs, weight slices, streams, waves, host traffic |
//! | [`account`] | memory of an instance on its PE |
//! | [`pieces`] | tasks cut until each item fits a PE |
//! | [`place`] | placement of a plan on a grid |
//! | [`grids`] | grids by name, and from TOML files |
//! | [`read`] | descriptors from untrusted JSON |
//! | [`check`] | checks of a descriptor before a simulation |
//! | [`memory`] | exact contents of each PE's memory |
//! | [`routes`] | conflicts between streams on a link's colours |
//! | [`layout`] | programs in the simulator's form: instances, receivers |
//! | [`cost`] | cycles of a kernel |
//! | `dims` | values of a kernel's dims for a row |
//! | [`network`] | links, and messages on them |
//! | [`queue`] | events in order of time |
//! | [`simulate`] | the simulator |
//! | [`data`] | bytes, for simulations with results |
//! | [`drawing`] | programs and streams as a drawing |
//! | [`report`] | time and bottlenecks of a step |
//! | [`page`] | a report as a web page |
//!
//! Invariant: the simulator reads only the descriptor and the weights' bytes. For any descriptor,
//! it ends with a result or an error.
//!
//! Invariant: the same descriptor and tokens give the same cycles, because events of the same cycle
//! have a fixed order.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod account;
pub mod check;
pub mod cost;
pub mod data;
pub mod descriptor;
pub(crate) mod dims;
pub mod drawing;
pub mod grid;
pub mod grids;
pub mod layout;
pub mod memory;
pub mod network;
pub mod page;
pub mod pieces;
pub mod place;
pub mod queue;
pub mod read;
pub mod report;
pub mod routes;
pub mod simulate;
