//! Which file a file is: what tells it from one that took its place.

use std::os::unix::fs::MetadataExt;

/// What a file is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) bytes: u64,
    /// Seconds and nanoseconds.
    pub(crate) modified: (i64, i64),
}

impl Identity {
    /// From what the system says of it.
    pub fn of(metadata: &std::fs::Metadata) -> Identity {
        Identity {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }

    /// When it was last changed: seconds and nanoseconds.
    pub fn modified(&self) -> [i64; 2] {
        [self.modified.0, self.modified.1]
    }
}
