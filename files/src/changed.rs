//! Identity of files, to detect that an open file was replaced or written to.
//!
//! Model files have no checksum, and writes to a mapped file are visible at once. So the metadata
//! of an open file is compared with its metadata at the time of opening. In the second case, the
//! bytes are unchanged:
//!
//! | difference | meaning |
//! | --- | --- |
//! | length or `mtime` | the file was written to |
//! | `ctime` and one of links, mode, owner, path | the file was moved, linked or given away |
//! | `ctime` only | the file was written to, and its `mtime` was set back |

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ixc_failure::Class;

/// Metadata that identifies a file and its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Time of the last modification (`mtime`): seconds and nanoseconds.
    modified: (i64, i64),
    status: Status,
}

/// Time of the last status change (`ctime`), and the metadata that can explain a new `ctime`
/// without a write to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Status {
    /// Time of the last status change (`ctime`): seconds and nanoseconds.
    changed: (i64, i64),
    links: u64,
    mode: u32,
    user: u32,
    group: u32,
}

/// Error for a file that was replaced or written to after it was opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: the file was replaced or changed while in use: its {what} is {found}, expected {expected}", path.display())]
pub struct ChangedFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Name of the property that differs.
    pub what: &'static str,
    /// Current value.
    pub found: String,
    /// Value when the file was opened.
    pub expected: String,
}

impl ChangedFile {
    /// Returns the class of the failure.
    pub fn class(&self) -> Class {
        Class::Failed
    }

    fn new(path: &Path, what: &'static str, found: String, expected: String) -> ChangedFile {
        ChangedFile { path: path.into(), what, found, expected }
    }

    /// Returns the error for a path that now names another file than the one that was read.
    pub fn replaced_file(path: &Path) -> ChangedFile {
        ChangedFile::new(path, "file", "another file".into(), "the file that was read".into())
    }

    /// Returns the error for a mapped file with a page that cannot be read.
    pub fn unreadable_page(path: &Path) -> ChangedFile {
        ChangedFile::new(
            path,
            "mapping",
            "cut short while it was in use, or its drive failed".into(),
            "readable".into(),
        )
    }

    /// Returns the error for a file whose metadata can no longer be read.
    pub fn unreadable(path: &Path, error: &io::Error) -> ChangedFile {
        ChangedFile::new(path, "handle", error.to_string(), "readable".into())
    }
}

impl Identity {
    /// Makes the identity of a file's metadata.
    pub fn from_metadata(metadata: &Metadata) -> Identity {
        Identity {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            status: Status {
                changed: (metadata.ctime(), metadata.ctime_nsec()),
                links: metadata.nlink(),
                mode: metadata.mode(),
                user: metadata.uid(),
                group: metadata.gid(),
            },
        }
    }

    /// Returns the file's length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the time of the last modification: seconds and nanoseconds.
    pub fn modification_time(&self) -> [i64; 2] {
        [self.modified.0, self.modified.1]
    }

    /// Reads the identity of the file at a path. Links are followed.
    ///
    /// # Errors
    /// [`ChangedFile`] if the metadata cannot be read, for example because the path names no file.
    pub fn from_path(path: &Path) -> Result<Identity, ChangedFile> {
        let gone = |error: io::Error| ChangedFile::new(path, "path", error.to_string(), "the path of the file".into());
        std::fs::metadata(path).map(|metadata| Identity::from_metadata(&metadata)).map_err(gone)
    }

    /// Checks that the path still names this file, and that the file was not written to.
    ///
    /// # Errors
    /// [`ChangedFile`] if the file was replaced or written to.
    pub fn check(self, path: &Path) -> Result<(), ChangedFile> {
        let now = Identity::from_path(path)?;
        now.check_same_file(self, path)?;
        now.check_same_bytes(self, path)
    }

    /// Checks that this is the identity of the same file as `expected`; the file's bytes may
    /// differ.
    ///
    /// # Errors
    /// [`ChangedFile`] if the files differ.
    pub fn check_same_file(self, expected: Identity, path: &Path) -> Result<(), ChangedFile> {
        match self.is_file(expected) {
            true => Ok(()),
            false => {
                let text = |identity: Identity| format!("{}:{}", identity.device, identity.inode);
                Err(ChangedFile::new(path, "device and inode", text(self), text(expected)))
            }
        }
    }

    /// Checks that a file was not written to since its identity was `expected`; `self` is its
    /// identity now.
    ///
    /// # Errors
    /// [`ChangedFile`] if the metadata show a write.
    pub fn check_same_bytes(self, expected: Identity, path: &Path) -> Result<(), ChangedFile> {
        if self.bytes != expected.bytes {
            let (found, expected) = (self.bytes.to_string(), expected.bytes.to_string());
            return Err(ChangedFile::new(path, "length", found, expected));
        }
        let text = |(seconds, nanoseconds): (i64, i64)| format!("{seconds}.{nanoseconds:09}");
        if self.modified != expected.modified {
            let (found, expected) = (text(self.modified), text(expected.modified));
            return Err(ChangedFile::new(path, "time of change", found, expected));
        }
        let Status { changed, .. } = self.status;
        let is_explained = self.status != Status { changed, ..expected.status };
        if changed != expected.status.changed
            && !is_explained
            && Identity::from_path(path).is_ok_and(|named| named.is_file(expected))
        {
            return Err(ChangedFile::new(
                path,
                "time of its last change of status",
                text(changed),
                text(expected.status.changed),
            ));
        }
        Ok(())
    }

    fn is_file(self, other: Identity) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, FileTimes, Permissions};
    use std::os::unix::fs::{FileExt, PermissionsExt};

    use super::*;

    /// Repeats `change` until the file's `ctime` differs: the clock of a file system may advance in
    /// steps of some milliseconds.
    fn until_noticed(file: &File, before: Identity, mut change: impl FnMut()) {
        while Identity::from_metadata(&file.metadata().unwrap()).status.changed == before.status.changed {
            change();
        }
    }

    #[test]
    fn file_identity_detects_writes_but_allows_renames() {
        let folder = std::env::temp_dir().join(format!("ixc-identity-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (path, other) = (folder.join("model"), folder.join("other"));
        let begin = || {
            let _ = fs::remove_file(&other);
            fs::write(&path, b"some bytes").unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            let before = Identity::from_metadata(&file.metadata().unwrap());
            (file, before)
        };
        let what = |file: &File, before: Identity| {
            let now = Identity::from_metadata(&file.metadata().unwrap());
            now.check_same_bytes(before, &path).err().map(|changed| changed.what)
        };
        let (file, before) = begin();
        assert_eq!(what(&file, before), None);
        until_noticed(&file, before, || file.write_all_at(b"S", 0).unwrap());
        assert_eq!(what(&file, before), Some("time of change"));
        // `cp --preserve` and `rsync --times` also reset `mtime` after a write, as this change
        // does.
        let (file, before) = begin();
        let modified = file.metadata().unwrap().modified().unwrap();
        until_noticed(&file, before, || {
            file.write_all_at(b"S", 0).unwrap();
            file.set_times(FileTimes::new().set_modified(modified)).unwrap();
        });
        assert_eq!(what(&file, before), Some("time of its last change of status"));
        let (file, before) = begin();
        file.set_len(4).unwrap();
        assert_eq!(what(&file, before), Some("length"));
        // The following changes do not write to the file's bytes.
        let (file, before) = begin();
        // Permission bits that a new file never has.
        let mut mode = 0o700;
        until_noticed(&file, before, || {
            mode ^= 0o040;
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        });
        assert_eq!(what(&file, before), None);
        let (file, before) = begin();
        fs::hard_link(&path, &other).unwrap();
        assert_eq!(what(&file, before), None);
        let (file, before) = begin();
        fs::rename(&path, &other).unwrap();
        assert_eq!(what(&file, before), None);
        let (file, before) = begin();
        fs::remove_file(&path).unwrap();
        assert_eq!(what(&file, before), None);
        assert_eq!(before.check(&path).unwrap_err().what, "path");
        fs::write(&path, b"some bytes").unwrap();
        fs::rename(&path, &other).unwrap();
        fs::write(&path, b"some bytes").unwrap();
        assert_eq!(before.check(&path).unwrap_err().what, "device and inode");
        fs::remove_dir_all(&folder).unwrap();
    }
}
