//! Dataflow targets: weights stay on processing elements (PEs), activations stream between them.
//!
//! ```text
//! tasks ──pieces──▶ plan in pieces ──place──▶ descriptor
//! descriptor ──read──▶ checked ──Machine::new──▶ Simulator::step ─▶ cycles, traffic, critical path; logits
//!   (JSON)             memory, routes, sizes         events            report, page
//! ```
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`grid`] | the machine: PEs, memory, links, clock |
//! | [`descriptor`] | what runs on it: programs, weight slices, streams, waves, host traffic |
//! | [`account`] | what an instance takes of its PE's memory |
//! | [`pieces`] | tasks cut until each item fits a PE |
//! | [`place`] | where a plan runs on a grid |
//! | [`grids`] | machines by name, and from TOML files |
//! | [`read`] | descriptors from JSON that nobody trusts |
//! | [`check`] | what is wrong with a descriptor before anything runs |
//! | [`memory`] | what each PE's memory holds, to the byte |
//! | [`routes`] | streams that want the same colour of a link |
//! | [`layout`] | programs as the simulator sees them: instances, who receives what |
//! | [`cost`] | cycles of a kernel |
//! | `dims` | what a kernel's dims are for a row |
//! | [`network`] | links, and messages on them |
//! | [`queue`] | events in the order of time |
//! | [`simulate`] | the simulator |
//! | [`data`] | the bytes, where results are wanted and not only times |
//! | [`drawing`] | programs and streams as a graph that is drawn |
//! | [`report`] | what a step took |
//! | [`page`] | a report as a web page |
//!
//! Invariant: the simulator reads the descriptor and the weights' bytes and nothing else; whatever a descriptor says, it ends with a result or an
//! error.
//! Invariant: the same descriptor and the same tokens give the same cycles: events of the same cycle have an order.

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
