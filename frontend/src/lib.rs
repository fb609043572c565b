//! Architectures, which build graphs of model files.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod arch;
