//! Values of options that the command line leaves out: environment variables, the configuration
//! file, and their precedence.
//!
//! | module | contents |
//! | --- | --- |
//! | [`definition`] | options as clap defines them: variables, shapes, arguments for a value |
//! | [`source`] | a value with its source |
//! | [`mod@file`] | the configuration file: its path, keys and types |
//! | [`layers`] | precedence of the sources, and options that exclude or require others |
//! | [`arguments`] | the arguments of this process with the values of all sources |
//! | [`report`] | all values in force, for `ixc doctor` |
//! | [`error`] | errors of variables and of the file |
//!
//! Each value becomes an argument after the command's name. So clap's own parsers, conflicts and
//! required options apply to it. With `IXC_THREADS=4`, and `memory = "6GiB"` in the file:
//!
//! ```text
//! ixc run -p Hello      becomes      ixc run --threads=4 --memory=6GiB -p Hello
//! ```
//!
//! clap can read variables itself, but it refuses a variable that conflicts with the command line.
//! Here the command line replaces values of variables and of the file.
//!
//! Invariant: variables and keys come from clap's definitions. No list in this module names
//! options.

pub mod arguments;
pub mod definition;
pub mod error;
pub mod file;
pub mod layers;
pub mod report;
pub mod source;
