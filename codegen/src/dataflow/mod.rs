//! Dataflow machines: their descriptions, the check of what is to run on them, and the simulator.
//!
//! ```text
//! descriptor ──read──▶ checked ──Machine::new──▶ Simulator::step ─▶ cycles, traffic, critical path; logits
//!   (JSON)             memory, routes, sizes         events            report, page
//! ```
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`grids`] | machines by name, and from TOML files |
//! | [`read`] | descriptors from JSON that nobody trusts |
//! | [`check`] | what is wrong with a descriptor before anything runs |
//! | [`memory`] | what each PE's memory holds, to the byte |
//! | [`routes`] | streams that want the same colour of a link |
//! | [`layout`] | programs as the simulator sees them: instances, who receives what |
//! | [`cost`] | cycles of a kernel |
//! | [`network`] | links, and messages on them |
//! | [`queue`] | events in the order of time |
//! | [`simulate`] | the simulator |
//! | [`data`] | the bytes, where results are wanted and not only times |
//! | [`report`] | what a step took |
//! | [`page`] | a report as a web page |
//!
//! Invariant: the simulator reads the descriptor and the weights' bytes and nothing else; whatever a descriptor says, it ends with a result or an
//! error.
//! Invariant: the same descriptor and the same tokens give the same cycles: events of the same cycle have an order.

pub mod check;
pub mod cost;
pub mod data;
pub mod grids;
pub mod layout;
pub mod memory;
pub mod network;
pub mod page;

pub mod queue;
pub mod read;
pub mod report;
pub mod routes;
pub mod simulate;
