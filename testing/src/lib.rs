//! What the tests of several crates share. No crate depends on it but for its tests.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`bits`] | tables of checksums, which say whether a change changed a result |

pub mod bits;
