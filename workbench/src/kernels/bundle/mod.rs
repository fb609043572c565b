//! A kernel as a folder of plain files: its code, inputs, expected results, and an index in JSON.
//! Any other machine or emulator can then run the kernel and compare its results.
//!
//! ```text
//! index.json    what everything is (see below)
//! code.bin      instructions, then padding and constants; runs at any multiple of 64 bytes
//! in_0_x.bin    contents of buffer 0, called x, before the call
//! out_2_y.bin   contents of buffer 2, called y, after it, by the reference interpreter
//! kernel.ix     the kernel IR, for people
//! listing.txt   the IR with the instructions next to it, for people
//! ```
//!
//! The code is called as `extern "sysv64" fn(buffers: *const *mut u8, dims: *const i64)`, at its
//! first byte. A buffer without an input file starts filled with one byte. A buffer without an
//! expected file is scratch, and its contents after the call are undefined. A buffer that is only
//! read must be unchanged.
//!
//! | module | contents |
//! | --- | --- |
//! | [`index`] | the index and its limits |
//! | [`write`](mod@write) | writer |
//! | [`read`](mod@read) | reader of untrusted folders |
//! | [`replay`](mod@replay) | replay of a folder |
//!
//! Invariant: the reader trusts nothing. Names stay inside the folder, sizes are checked before
//! memory is allocated, and checksums are checked before anything runs.

pub mod index;
pub mod read;
pub mod replay;
pub mod write;

pub use crate::error::kernels::BundleError;
