//! ixc from Python: the extension module `ixc._ixc` under the package `ixc`.
//!
//! ```text
//! ixc/_model.py   Model.generate, Model.chat ──JSON──▶ model::Host   the server, in process
//!                 Model.embed, Model.logits  ─tokens─▶ model::Host   ──▶ floats::Floats
//! ixc/_moe.py     MoELayer.submit            ──bytes─▶ moe::Experts  ──▶ moe::Job
//! ```
//!
//! The package in `ixc/` has the documented Python interface; this crate has the functions that
//! call Rust. Requests have the form of the HTTP interface, so both have the same fields, limits
//! and errors.
//!
//! | module | contents |
//! | --- | --- |
//! | [`model`] | model that answers the requests of many threads |
//! | [`stream`] | parts of an answer, as they arrive |
//! | [`moe`] | a model's routed experts as an operator |
//! | [`program`] | the program `ixc` |
//! | [`stages`] | compilation to a plan file or to the text of a stage |
//! | [`floats`] | numbers that NumPy reads without a copy |
//! | [`wait`] | waiting without the GIL, until a result arrives or Ctrl-C is pressed |
//! | [`failure`] | errors as Python exceptions |
//!
//! Invariant: the GIL is released during long work. Ctrl-C ends the wait for this work. Invariant:
//! any input gives a result or a Python exception.

#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods)]

mod failure;
mod floats;
mod model;
mod moe;
mod options;
mod program;
mod stages;
mod stream;
mod wait;

use pyo3::pymodule;

/// The extension module.
#[pymodule]
mod _ixc {
    #[pymodule_export]
    use crate::floats::Floats;
    #[pymodule_export]
    use crate::model::Host;
    #[pymodule_export]
    use crate::moe::{Experts, Job};
    #[pymodule_export]
    use crate::program::main;
    #[pymodule_export]
    use crate::stages::{compile, dump};
    #[pymodule_export]
    use crate::stream::Stream;
}
