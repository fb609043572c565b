//! Dataflow targets: weights stay on processing elements (PEs), activations stream between them.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`grid`] | the machine: PEs, memory, links, clock |
//! | [`descriptor`] | what runs on it: programs, weight slices, streams, waves, host traffic |
//! | [`memory`] | what an instance takes of its PE's memory |
//!
//! `passes::place` makes a [`descriptor::Descriptor`] of a plan and a [`grid::Grid`]; `codegen::dataflow` simulates it. The simulator reads nothing else but
//! the descriptor and the bytes of the weights.

pub mod descriptor;
pub mod grid;
pub mod memory;
