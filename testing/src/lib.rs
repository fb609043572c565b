//! What the tests of several crates share. No crate depends on it but for its tests.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`becomes`] | text tests: files of what goes in and what becomes of it |
//! | [`bits`] | tables of checksums, which say whether a change changed a result |
//! | [`bless`] | whether tests write their expectations anew |
//! | [`mod@files`] | which files of a crate use which |
//! | [`modules`] | which modules of a crate use which |
//! | [`mod@nmse`] | how far numbers are from exact ones |
//! | [`pages`] | what no page of ours has |
//! | [`qemu`] | whether QEMU executes the test |
//! | [`shared_data`] | test data outside of the repository |
//! | [`source`] | code, words and string literals of Rust sources |
//! | [`tools`] | which version of another tool a test takes |

pub mod becomes;
pub mod bits;
pub mod bless;
pub mod files;
pub mod modules;
pub mod nmse;
pub mod pages;
pub mod prose;
pub mod qemu;
pub mod shared_data;
pub mod source;
pub mod tools;
