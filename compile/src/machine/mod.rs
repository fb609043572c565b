//! Facts about this machine, which `ixc doctor` prints.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`bandwidth`] | measuring how fast memory is read |
//! | [`features`] | CPU features and what each would give |
//! | [`system`] | memory, limits, huge pages, io_uring, executable memory |

pub mod bandwidth;
pub mod features;
pub mod system;
