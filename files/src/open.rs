//! Opening of files created by other programs.
//!
//! A path may lead to a pipe, which waits for a writer, or to a device, which never ends. Between a
//! check and the opening, another program could replace the checked file by a pipe or device. The
//! path is therefore opened without waiting, and then the open file is checked.

use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use ixc_failure::Class;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, fstatfs};
use rustix::io::Errno;

/// Kind of a file that is not regular.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A folder.
    Folder,
    /// A named or anonymous pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A terminal, `/dev/zero` and the like.
    CharacterDevice,
    /// A drive.
    BlockDevice,
    /// A file of `/proc`, `/sys` or another virtual file system of the kernel. It has no size, and
    /// reading it may wait for ever.
    System,
    /// A kind that is not listed above.
    Other,
}

impl FileKind {
    /// Returns the kind, or `None` for a regular file.
    pub fn from_metadata(metadata: &Metadata) -> Option<FileKind> {
        let kind = metadata.file_type();
        let kinds = [
            (kind.is_dir(), FileKind::Folder),
            (kind.is_fifo(), FileKind::Pipe),
            (kind.is_socket(), FileKind::Socket),
            (kind.is_char_device(), FileKind::CharacterDevice),
            (kind.is_block_device(), FileKind::BlockDevice),
            (!kind.is_file(), FileKind::Other),
        ];
        kinds.into_iter().find_map(|(is, kind)| is.then_some(kind))
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileKind::Folder => "a folder",
            FileKind::Pipe => "a pipe",
            FileKind::Socket => "a socket",
            FileKind::CharacterDevice => "a device",
            FileKind::BlockDevice => "a drive",
            FileKind::System => "a file of the system without a size",
            FileKind::Other => "something else",
        })
    }
}

/// Error for a file that is not regular. It is the inner error of an [`io::Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is {found}, not a regular file")]
pub struct NotRegular {
    /// Kind of the file.
    pub found: FileKind,
}

impl From<NotRegular> for io::Error {
    fn from(error: NotRegular) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, error)
    }
}

/// Returns whether an error is [`NotRegular`].
pub fn is_not_regular(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NotRegular>())
}

/// Returns the kind of failure of an error from the system or from this crate.
pub fn io_class(error: &io::Error) -> Class {
    match error.kind() {
        _ if is_not_regular(error) => Class::NoInput,
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Class::NoInput,
        io::ErrorKind::InvalidData => Class::Data,
        _ => Class::Io,
    }
}

/// Virtual file systems of the kernel with files without a size: proc, sysfs, debugfs, tracefs,
/// cgroup and cgroup2 (`linux/magic.h`).
const SYSTEM: [u64; 6] = [0x9fa0, 0x6265_6572, 0x6462_6720, 0x7472_6163, 0x27_e0eb, 0x6367_7270];

/// Opens a regular file for reading. Links are followed.
///
/// # Errors
/// Returns the system's error. The error wraps [`NotRegular`] if the path names no regular file, or
/// a virtual file of the kernel such as `/proc/kmsg`.
pub fn open_regular(path: &Path) -> io::Result<File> {
    refuse_virtual(regular(path, File::options().read(true), OFlags::empty())?)
}

/// Rejects a virtual file of the kernel: its size is 0, and reading it may never end.
fn refuse_virtual(file: File) -> io::Result<File> {
    if file.metadata()?.len() == 0 {
        let system = fstatfs(&file).is_ok_and(|found| SYSTEM.contains(&(found.f_type as u64)));
        if system {
            return Err(not_regular(FileKind::System));
        }
    }
    Ok(file)
}

/// Opens a regular file for reading, without following a symbolic link at the path.
///
/// # Errors
/// See [`open_regular`].
pub fn open_unlinked(path: &Path) -> io::Result<File> {
    refuse_virtual(regular(path, File::options().read(true), OFlags::NOFOLLOW)?)
}

/// Opens a regular file for reads that bypass the page cache (`O_DIRECT`).
///
/// # Errors
/// See [`open_regular`]. Also fails if the file system does not support `O_DIRECT`.
#[cfg(target_os = "linux")]
pub fn open_direct(path: &Path) -> io::Result<File> {
    regular(path, File::options().read(true), OFlags::DIRECT)
}

/// Opens a regular file for reading and appending. Creates it if it does not exist.
///
/// # Errors
/// See [`open_regular`].
pub fn open_append(path: &Path) -> io::Result<File> {
    regular(path, File::options().read(true).append(true).create(true), OFlags::empty())
}

/// Opens a path with the given options and flags, and fails if the file is not regular.
pub(crate) fn regular(path: &Path, options: &mut OpenOptions, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    #[expect(clippy::disallowed_methods, reason = "this is where files are opened")]
    let opened = options.custom_flags(flags.bits().cast_signed()).open(path);
    let file = match opened {
        // Sockets cannot be opened, and folders cannot be opened for writing. `/dev/zero` does not
        // support `O_DIRECT`.
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NXIO | Errno::ISDIR | Errno::INVAL)) => {
            return Err(std::fs::metadata(path)
                .ok()
                .and_then(|there| FileKind::from_metadata(&there))
                .map_or(error, not_regular));
        }
        opened => opened?,
    };
    if let Some(found) = FileKind::from_metadata(&file.metadata()?) {
        return Err(not_regular(found));
    }
    // Reads of regular files ignore `O_NONBLOCK`. But io_uring would return an error instead of
    // waiting.
    fcntl_setfl(&file, fcntl_getfl(&file)?.difference(OFlags::NONBLOCK))?;
    Ok(file)
}

fn not_regular(found: FileKind) -> io::Error {
    NotRegular { found }.into()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_nothing_waits() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "x").unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RWXU).unwrap();
        symlink(at("pipe"), at("link to pipe")).unwrap();
        symlink(at("file"), at("link to file")).unwrap();
        symlink("/proc/self/cmdline", at("link to the system")).unwrap();
        fs::write(at("empty"), "").unwrap();
        assert!(open_regular(&at("empty")).is_ok());
        let _socket = UnixListener::bind(at("socket")).unwrap();
        for name in ["file", "link to file"] {
            let file = open_regular(&at(name)).unwrap();
            assert!(!fcntl_getfl(&file).unwrap().contains(OFlags::NONBLOCK));
        }
        let refused = [
            (folder.path().to_owned(), FileKind::Folder),
            (at("pipe"), FileKind::Pipe),
            (at("link to pipe"), FileKind::Pipe),
            (at("socket"), FileKind::Socket),
            ("/dev/zero".into(), FileKind::CharacterDevice),
            // This file is similar to `/proc/kmsg`, which blocks its reader and which only root may
            // open.
            (at("link to the system"), FileKind::System),
            ("/proc/self/status".into(), FileKind::System),
        ];
        for (path, found) in refused {
            let error = open_regular(&path).unwrap_err();
            assert!(is_not_regular(&error), "{error}");
            assert_eq!(error.to_string(), format!("it is {found}, not a regular file"));
        }
        let error = open_regular(&at("nothing")).unwrap_err();
        assert!(!is_not_regular(&error) && error.kind() == io::ErrorKind::NotFound);
        assert!(open_unlinked(&at("link to file")).is_err() && open_unlinked(&at("file")).is_ok());
    }
}
