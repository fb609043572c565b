//! Opening of files created by other programs, and writing of output files. Only this crate opens
//! or writes files, with one exception: the line editor's library reads and writes its history.
//! That history file is first opened by [`private_files`].
//!
//! | file | content |
//! | --- | --- |
//! | [`open`] | opening of regular files only, without waiting for pipes or devices |
//! | [`text`] | reading of texts, always with a size limit |
//! | [`identity`] | identity of the file at a path, under any name |
//! | [`output`] | outputs: opened before the work, complete or absent, never onto an input |
//! | [`changed`] | detection of replaced or modified open files |
//! | [`folder`] | folders that are complete or absent |
//! | [`page_faults`] | pages of mapped files that cannot be read |
//! | [`page`] | HTML pages with embedded data |
//! | [`private_files`] | private files of this user, such as caches and the secret |
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
//! Invariant: checks inspect the open file, never the path before it is opened.
//!
//! Invariant: an output file appears under its name only when all its bytes are on the disk. If a
//! run fails or is killed, the old file remains.
//!
//! Invariant: a command never overwrites one of its inputs, under any name or link.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_code)]

pub mod changed;
pub mod folder;
pub mod identity;
pub mod open;
pub mod output;
pub mod page;
#[expect(unsafe_code, reason = "handlers of signals are unsafe")]
pub mod page_faults;
pub mod private_files;
pub mod space;
pub mod text;

pub use folder::{NewFolder, OutputFolder};
pub use identity::Identity;
#[cfg(target_os = "linux")]
pub use open::open_direct;
pub use open::{FileKind, NotRegular, io_class, is_not_regular, open_append, open_regular, open_unlinked};
pub use output::{Guard, Kind, Output, OutputError, Place, atomic_write};
pub use page_faults::{FaultGuard, SignalStack};
pub use private_files::Secret;
pub use text::{NotUtf8, ReadError, STANDARD, read_argument, read_bytes, read_system, read_text, without_mark};
