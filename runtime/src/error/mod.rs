//! Errors of loading a plan and of running a step. They have their own module, so that the executor
//! does not depend on the loader.

pub mod execute;
pub mod load;
pub mod ranks;
