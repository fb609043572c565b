//! Functions that read whole files: texts, small files of `ixc`, and files of the system such as
//! `/proc/stat`. Each read has a size limit.
//!
//! A text file that a user names on the command line may be a pipe or a terminal
//! ([`read_argument`]), as in `ixc run -f <(command)`. The read then waits for the writer, and
//! Ctrl-C ends it. `/dev/zero` is read up to the limit and rejected. Files that are named inside
//! other files, and files that are not texts, must be regular ([`read_bytes`], [`read_text`]).
//!
//! Some editors and shells (Notepad, PowerShell 5) write a byte order mark before a text.
//! [`without_mark`] removes the mark of UTF-8. For the mark of another encoding, it returns an
//! error with the name of the encoding.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ixc_failure::Class;
use rustix::fs::OFlags;

use crate::open::{FileKind, NotRegular, io_class, open_regular, regular};

/// Path that stands for standard input or standard output.
pub const STANDARD: &str = "-";

/// Maximum bytes of a text in `/proc` or `/sys`: `/proc/stat` and `/proc/cpuinfo` have some
/// kilobytes for each processor.
const SYSTEM_BYTES: u64 = 16 << 20;

/// Reason why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system returned an error, or the file is not regular.
    #[error("{}: cannot read: {source}", path.display())]
    Io {
        /// File that cannot be read.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is longer than the limit.
    #[error("{}: has more than {max} bytes, the maximum for this file", path.display())]
    TooLong {
        /// File that is too long.
        path: PathBuf,
        /// Maximum length of this file, in bytes.
        max: u64,
    },
    /// The byte order mark shows that the text is in UTF-16 or UTF-32.
    #[error("{}: {source}", path.display())]
    Encoding {
        /// File with the byte order mark.
        path: PathBuf,
        /// Error with the name of the encoding.
        source: NotUtf8,
    },
    /// The file is not UTF-8 text.
    #[error("{}: byte {at:#x} is not UTF-8 text", path.display())]
    NotText {
        /// File that is not a text.
        path: PathBuf,
        /// Offset of the first byte that is not UTF-8.
        at: usize,
    },
}

impl ReadError {
    /// Returns the path of the file if the error is that it does not exist.
    pub fn missing_file(&self) -> Option<&Path> {
        match self {
            ReadError::Io { path, source } if source.kind() == io::ErrorKind::NotFound => Some(path),
            _ => None,
        }
    }

    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            ReadError::Io { source, .. } => io_class(source),
            ReadError::TooLong { .. } | ReadError::Encoding { .. } | ReadError::NotText { .. } => Class::Data,
        }
    }
}

/// The byte order mark of UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";
/// Byte order marks of other encodings. Longer marks come first, because a shorter mark can be a
/// prefix of a longer one.
const OTHER_MARKS: [(&[u8], &str); 4] =
    [(b"\xff\xfe\0\0", "UTF-32"), (b"\0\0\xfe\xff", "UTF-32"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16")];

/// Error for a text with the byte order mark of an unsupported encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the text begins with the byte order mark of {encoding}; expected UTF-8 (save it as UTF-8)")]
pub struct NotUtf8 {
    /// Name of the encoding that the byte order mark announces.
    pub encoding: &'static str,
}

/// Returns a text without its byte order mark, if it has one. Every text from a user passes through
/// this function.
///
/// # Errors
/// [`NotUtf8`] if the mark is that of an encoding other than UTF-8.
pub fn without_mark(text: &[u8]) -> Result<&[u8], NotUtf8> {
    match OTHER_MARKS.into_iter().find(|(mark, _)| text.starts_with(mark)) {
        Some((_, encoding)) => Err(NotUtf8 { encoding }),
        None => Ok(text.strip_prefix(MARK).unwrap_or(text)),
    }
}

/// Reads a regular file of at most `max` bytes.
///
/// # Errors
/// See [`ReadError`].
pub fn read_bytes(path: &Path, max: u64) -> Result<Vec<u8>, ReadError> {
    read_bounded(path, open_regular(path), max)
}

/// Reads a text from a regular file of at most `max` bytes.
///
/// # Errors
/// See [`ReadError`].
pub fn read_text(path: &Path, max: u64) -> Result<String, ReadError> {
    text(path, read_bytes(path, max)?)
}

/// Reads a text that the user named: a file, a pipe, a terminal, or standard input for the path
/// `-`.
///
/// # Errors
/// See [`ReadError`].
pub fn read_argument(path: &Path, max: u64) -> Result<String, ReadError> {
    let bytes = if path.as_os_str() == STANDARD {
        read_bounded(path, Ok(io::stdin().lock()), max)
    } else {
        read_bounded(path, open_stream(path), max)
    };
    text(path, bytes?)
}

/// Reads a small text of the system (`/proc`, `/sys`), if it exists.
pub fn read_system(path: &Path) -> Option<String> {
    let file = regular(path, File::options().read(true), OFlags::empty());
    text(path, read_bounded(path, file, SYSTEM_BYTES).ok()?).ok()
}

/// Opens a file, pipe or terminal for reading. Folders and drives are errors.
fn open_stream(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOCTTY.bits().cast_signed();
    #[expect(clippy::disallowed_methods, reason = "what may be a pipe is opened here and nowhere else")]
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match FileKind::from_metadata(&file.metadata()?) {
        Some(found @ (FileKind::Folder | FileKind::BlockDevice)) => Err(NotRegular { found }.into()),
        _ => Ok(file),
    }
}

fn read_bounded(path: &Path, file: io::Result<impl Read>, max: u64) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::new();
    let read = file.and_then(|file| file.take(max.saturating_add(1)).read_to_end(&mut bytes));
    match read {
        Err(source) => Err(ReadError::Io { path: path.into(), source }),
        Ok(found) if found as u64 > max => Err(ReadError::TooLong { path: path.into(), max }),
        Ok(_) => Ok(bytes),
    }
}

fn text(path: &Path, mut bytes: Vec<u8>) -> Result<String, ReadError> {
    let rest = without_mark(&bytes).map_err(|source| ReadError::Encoding { path: path.into(), source })?.len();
    let mark = bytes.len() - rest;
    bytes.drain(..mark);
    String::from_utf8(bytes)
        .map_err(|error| ReadError::NotText { path: path.into(), at: error.utf8_error().valid_up_to() + mark })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn text_may_be_exactly_as_long_as_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        fs::write(&path, "12345").unwrap();
        for read in [read_text, read_argument] {
            assert_eq!(read(&path, 5).unwrap(), "12345");
            assert!(matches!(read(&path, 4), Err(ReadError::TooLong { max: 4, .. })));
        }
        fs::write(&path, b"ab\xff").unwrap();
        assert!(matches!(read_text(&path, 5), Err(ReadError::NotText { at: 2, .. })));
        // `/dev/zero` has no end, so the read stops at the limit.
        assert!(matches!(read_argument(Path::new("/dev/zero"), 1 << 16), Err(ReadError::TooLong { .. })));
        for (path, takes_streams) in [("/dev/zero", false), ("/", false), ("/", true)] {
            let read = if takes_streams { read_argument } else { read_text };
            let error = read(Path::new(path), 9).unwrap_err();
            assert!(matches!(&error, ReadError::Io { source, .. } if crate::is_not_regular(source)), "{error}");
        }
    }

    #[test]
    fn byte_order_marks_are_passed_over_or_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        for read in [read_text, read_argument] {
            for (bytes, expected) in [
                (&b"\xef\xbb\xbfHi"[..], "Hi"),
                (b"\xef\xbb\xbf", ""),
                (b"\xef\xbb\xbf\xef\xbb\xbfHi", "\u{feff}Hi"),
                (b"Hi\xef\xbb\xbf", "Hi\u{feff}"),
            ] {
                fs::write(&path, bytes).unwrap();
                assert_eq!(read(&path, 99).unwrap(), expected);
            }
            for (bytes, encoding) in [
                (&b"\xff\xfeH\0i\0"[..], "UTF-16"),
                (b"\xfe\xff\0H\0i", "UTF-16"),
                (b"\xff\xfe\0\0H\0\0\0", "UTF-32"),
                (b"\0\0\xfe\xff\0\0\0H", "UTF-32"),
            ] {
                fs::write(&path, bytes).unwrap();
                let error = read(&path, 99).unwrap_err().to_string();
                assert!(error.contains(&path.display().to_string()) && error.contains(encoding), "{error}");
            }
            fs::write(&path, b"\xef\xbb\xbfa\xff").unwrap();
            assert!(matches!(read(&path, 99), Err(ReadError::NotText { at: 4, .. })));
        }
        assert_eq!(read_bytes(&path, 99).unwrap().len(), 5);
    }

    #[test]
    fn pipe_is_read_only_as_command_line_argument() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        assert!(matches!(read_text(&path, 9), Err(ReadError::Io { .. })));
        std::thread::scope(|scope| {
            scope.spawn(|| fs::write(&path, "hello").unwrap());
            assert_eq!(read_argument(&path, 9).unwrap(), "hello");
        });
    }
}
