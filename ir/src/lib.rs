//! The languages of `ixc`: block formats, graph IR, kernel IR and the plan.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`format`] | the block-format table |

pub mod format;
