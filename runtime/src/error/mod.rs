//! What goes wrong: when a plan is loaded, and when a step runs. Beside neither, so that what a step needs can be read before what loads it.

pub mod execute;
pub mod load;
