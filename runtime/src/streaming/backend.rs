//! Interface of the backends that read for the drive's thread, with their reads and completions.

use std::io;
use std::sync::Arc;

use crate::storage::memory::Region;

use super::queue::Wake;

/// Error numbers of the system after which a read is repeated. The value of `AGAIN` differs between
/// Linux and other systems.
pub(super) const INTERRUPTED: i32 = 4;
pub(super) const AGAIN: i32 = if cfg!(target_os = "linux") { 11 } else { 35 };
pub(super) const INVALID: i32 = 22;
/// Error number of the system for a cancelled read.
pub const CANCELED: i32 = if cfg!(target_os = "linux") { 125 } else { 89 };

/// One read, as passed to a backend.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Tag that identifies the read; its completion has the same tag.
    pub tag: u64,
    /// Index of the file to read from.
    pub file: u32,
    /// Offset in the file. If reads bypass the page cache, it is a multiple of
    /// [`PAGE`](super::files::PAGE).
    pub offset: u64,
    /// Memory into which the bytes are read. Its length is the number of bytes to read.
    pub into: Region,
}

/// The result of a read that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// Tag of the read that has ended.
    pub tag: u64,
    /// Number of bytes read (0 at the end of the file), or an error number of the system.
    pub result: Result<u32, i32>,
}

/// A backend that executes reads. The same thread creates, uses and drops it. Dropping it waits for
/// outstanding reads.
pub trait Backend {
    /// Returns a description of the backend, for reports.
    fn describe(&self) -> String;

    /// Returns a handle that can end [`Backend::wait`] before a read has ended.
    fn waker(&self) -> Arc<dyn Wake>;

    /// Starts a read, or queues it until the next call of [`Backend::wait`].
    ///
    /// # Safety
    /// The read's memory must be mapped, and no other code may access it until the completion was
    /// returned or the backend was dropped.
    unsafe fn start(&mut self, read: Read);

    /// Waits until a read ends or the waker is called. Appends the completions of ended reads to
    /// `done`.
    ///
    /// # Errors
    /// Returns an error if the backend cannot execute any more reads.
    fn wait(&mut self, done: &mut Vec<Completion>) -> io::Result<()>;

    /// Cancels outstanding reads if possible. Each of them still gets a completion.
    fn cancel(&mut self) {}
}
