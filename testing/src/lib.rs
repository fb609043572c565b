//! What the tests of several crates share. No crate depends on it but for its tests.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`bits`] | tables of checksums, which say whether a change changed a result |
//! | [`modules`] | which modules of a crate use which |
//! | [`qemu`] | whether QEMU executes the test |
//! | [`tools`] | which version of another tool a test takes |

pub mod bits;
pub mod modules;
pub mod qemu;
pub mod tools;
