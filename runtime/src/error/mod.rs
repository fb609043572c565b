//! Errors of loading a plan and of running a step. They have a module of their own, so that the executor needs nothing of the loader.

pub mod execute;
pub mod load;
