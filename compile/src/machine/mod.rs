//! Properties of this machine, which `ixc doctor` prints.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`bandwidth`] | measurement of memory read bandwidth |
//! | [`features`] | CPU features and the benefit of each |
//! | [`system`] | memory, limits, huge pages, io_uring, executable memory |

pub mod bandwidth;
pub mod features;
pub mod system;
