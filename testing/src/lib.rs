//! Code that the tests of several crates share. Crates depend on it only for their tests.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`becomes`] | text tests: files of inputs and expected results |
//! | [`bits`] | tables of checksums, which show whether a change changed a result |
//! | [`bless`] | whether tests rewrite their expected results |
//! | [`mod@files`] | graph of the uses between a crate's files |
//! | [`modules`] | graph of the uses between a crate's modules |
//! | [`mod@nmse`] | error of computed numbers |
//! | [`parameters`] | function parameters without a name |
//! | [`pages`] | forbidden texts of HTML pages |
//! | [`qemu`] | detection of tests that run in QEMU |
//! | [`shared_data`] | test data outside of the repository |
//! | [`source`] | code, words and string literals of Rust sources |
//! | [`tools`] | versions of external tools |
//! | [`unsafe_code`] | inventory of `unsafe` code |

#![forbid(unsafe_code)]

pub mod becomes;
pub mod bits;
pub mod bless;
pub mod files;
pub mod modules;
pub mod nmse;
pub mod pages;
pub mod parameters;
pub mod prose;
pub mod qemu;
pub mod random_graphs;
pub mod random_kernels;
pub mod shared_data;
pub mod source;
pub mod tools;
pub mod unsafe_code;
