//! Fuzz functions of all input classes, and a runner for the stable toolchain.
//!
//! ```text
//! main ─▶ runner (one process) ──starts──▶ child: mutate ─▶ target ─▶ outcome
//!           │   ▲                            │
//!           │   └── status, standard error ──┘
//!           └─▶ minimise: the same child, with one input
//! ```
//!
//! A [`Target`] is a function of bytes. It passes the bytes to the public function that would get
//! them from a user, and panics if an invariant is broken. libFuzzer calls the same functions
//! (`fuzz/libfuzzer`).
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`outcome`] | result of a case |
//! | [`targets`] | table of the targets, and one file for each group of them |
//! | [`scratch`] | temporary folder of a process |
//! | [`helper`] | program of helpers that render templates and compile grammars |
//! | [`small_models`] | small random models, compiled to plans |
//! | [`mutate`] | seeded mutations of inputs |
//! | [`corpus`] | inputs to mutate |
//! | [`child`] | process that runs cases, within limits |
//! | [`runner`] | process that starts children and collects findings |
//! | [`mod@minimise`] | smallest input with the same finding |
//!
//! Invariant: a finding never ends the runner. Panics, aborts, signals, endless cases and excessive
//! memory end only a child process.

#![forbid(unsafe_code)]

pub mod child;
pub mod corpus;
pub mod helper;
pub mod minimise;
pub mod mutate;
pub mod outcome;
pub mod runner;
pub mod scratch;
pub mod small_models;
pub mod targets;

pub use outcome::Outcome;
pub use targets::{TARGETS, Target};

/// Runs one input of a target. libFuzzer calls this function.
///
/// # Panics
/// If there is no such target, or an invariant is broken.
pub fn run(target: &str, input: &[u8]) {
    let target = targets::find(target).unwrap_or_else(|| panic!("there is no target {target}"));
    let _ = (target.run)(input);
}
