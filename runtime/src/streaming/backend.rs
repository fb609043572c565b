//! Backends of the reading thread: the reads that it starts, and the completions that it gets.

use std::io;
use std::sync::Arc;

use crate::storage::memory::Region;

use super::queue::Wake;

/// Error numbers of the system after which a read is repeated. `AGAIN` differs between Linux and
/// other systems.
pub(super) const INTERRUPTED: i32 = 4;
pub(super) const AGAIN: i32 = if cfg!(target_os = "linux") { 11 } else { 35 };
pub(super) const INVALID: i32 = 22;
/// Error number of a cancelled read.
pub const CANCELED: i32 = if cfg!(target_os = "linux") { 125 } else { 89 };

/// One read, as passed to a backend.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Tag that identifies the read in its completion.
    pub tag: u64,
    /// Index of the file.
    pub file: u32,
    /// Offset in the file: a multiple of [`PAGE`](super::files::PAGE) for files read past the page
    /// cache.
    pub offset: u64,
    /// Destination, and number of bytes.
    pub into: Region,
}

/// A read that ended.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// Tag of the read.
    pub tag: u64,
    /// Bytes read (0 at the end of the file), or an error number of the system.
    pub result: Result<u32, i32>,
}

/// An executor of reads. One thread makes, uses and drops it. Dropping waits for outstanding reads.
pub trait Backend {
    /// Returns a text that describes the backend.
    fn describe(&self) -> String;

    /// Returns a handle that makes [`Backend::wait`] return although no read has ended.
    fn waker(&self) -> Arc<dyn Wake>;

    /// Starts a read, or queues it until the next [`Backend::wait`].
    ///
    /// # Safety
    /// The read's memory must be mapped, and no other code may access it, until its completion was
    /// returned or the backend dropped.
    unsafe fn start(&mut self, read: Read);

    /// Waits until a read ends or the waker is called, and appends the ended reads to `done`.
    ///
    /// # Errors
    /// When the backend can make no more reads.
    fn wait(&mut self, done: &mut Vec<Completion>) -> io::Result<()>;

    /// Cancels outstanding reads if possible. Each still gets its completion.
    fn cancel(&mut self) {}
}
