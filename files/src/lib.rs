//! How this workspace opens what others made, and writes what others read. Nothing else opens or writes a file, but the library that edits
//! lines: it reads and writes those that it remembers, in a file that [`own`] opened first.
//!
//! | file | what |
//! | --- | --- |
//! | [`open`] | opening: regular files only, and never waiting for what is none |
//! | [`text`] | reading texts, none of them without a bound |
//! | [`identity`] | which file a path leads to, whatever it is called |
//! | [`output`] | writing: opened before the work, whole or not there, never onto an input |
//! | [`folder`] | folders that are whole or not there |
//! | [`page`] | pages with data in them |
//! | [`own`] | files that this user's runs keep for themselves |
//!
//! ```
//! use ixc_files::{Guard, Kind, Output};
//!
//! const NUMBERS: Kind = Kind { name: "list of numbers", is: |head| head.starts_with(b"1\n"), streams: true, private: false };
//! let folder = tempfile::tempdir()?;
//! let (model, numbers) = (folder.path().join("model.gguf"), folder.path().join("numbers"));
//! std::fs::write(&model, "GGUF")?;
//! let guard = Guard { kind: Some(&NUMBERS), inputs: &[&model], ..Guard::default() };
//! assert!(Output::open(&model, &guard).is_err());
//! let output = Output::open(&numbers, &guard)?;
//! // The work; then:
//! output.write(|out| out.write_all(b"1\n2\n"))?;
//! assert_eq!(ixc_files::read_text(&numbers, 100)?, "1\n2\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Invariant: what is opened is asked what it is, not its name before it is opened.
//! Invariant: a file appears under its name when all of it is on the disk; what fails, or is killed, leaves what was there.
//! Invariant: an output is never one of the files that a command reads, whatever name or link leads to it.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod folder;
pub mod identity;
pub mod open;
pub mod output;
pub mod own;
pub mod page;
pub mod text;

pub use folder::{KeptFolder, NewFolder};
pub use identity::Identity;
#[cfg(target_os = "linux")]
pub use open::open_direct;
pub use open::{FileKind, NotRegular, io_class, is_not_regular, open_append, open_regular, open_unlinked};
pub use output::{Guard, Kind, Output, OutputError, Place, atomic_write};
pub use own::Secret;
pub use text::{NotUtf8, ReadError, STANDARD, read_argument, read_bytes, read_system, read_text, without_mark};
