//! Output files. An output is opened before its content is computed, so that an unwritable path is
//! reported early. It is written to a temporary file in the same folder, which is renamed to the
//! output path when all bytes are on the disk.
//!
//! If the file system supports `O_TMPFILE`, the temporary file has no name until then, so a run
//! that is killed leaves nothing. Otherwise the temporary file has a random name. An existing file
//! at the output path is replaced only if it is
//!
//! 1. not an input of the command, under any name or link (no option overrides this), and
//! 2. a regular file that is empty or of the output's kind, judged by its first bytes. With
//!    `--force`, a regular file of any kind is replaced.
//!
//! A symbolic link at the path is kept, and its target is replaced. The new file gets the mode of
//! the replaced file. If the output's kind needs no seeking, a pipe or a device is written
//! directly. Standard output is also written directly, unless it is a file that the command reads.
//!
//! The path is checked before the work and again before the rename. If another user creates a file
//! between the second check and the rename, that file is replaced. A temporary file does not lock
//! the path.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ixc_failure::{Class, Remedy};
use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use tempfile::{Builder, NamedTempFile, TempPath};

use crate::identity::Identity;
use crate::open::{FileKind, open_regular};
use crate::text::STANDARD;

/// Maximum number of a file's first bytes that are read to determine its kind.
pub const HEAD_BYTES: usize = 4096;
/// Maximum bytes of the output's file name that a temporary file's name contains. The system allows
/// 255 bytes for a name (`NAME_MAX`).
const MAX_NAME: usize = 200;
/// Mode of new files, before the user's mask (`umask`).
const NEW_FILE: u32 = 0o666;
/// Mode of new private files.
const PRIVATE_FILE: u32 = 0o600;

/// Kind of an output file, such as a plan or a report.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Name of the kind in error messages, such as "plan".
    pub name: &'static str,
    /// Function that returns whether a file with the given first bytes is of this kind. It gets at
    /// most [`HEAD_BYTES`] bytes.
    pub is: fn(&[u8]) -> bool,
    /// Whether a file of this kind can be written to a pipe, a device, or standard output (`-`).
    pub streams: bool,
    /// Whether only this user may read a new file of this kind, for example a saved chat.
    pub private: bool,
}

/// Rules that protect other files from being replaced.
#[derive(Clone, Copy, Debug, Default)]
pub struct Guard<'a> {
    /// Kind of the output. With `None` any file is replaced; this is for a program's internal
    /// files.
    pub kind: Option<&'a Kind>,
    /// Whether files of other kinds are also replaced.
    pub force: bool,
    /// Inputs of the command, which are never replaced. `-` is standard input.
    pub inputs: &'a [&'a Path],
}

impl<'a> Guard<'a> {
    /// Returns rules that allow replacing any existing file. Use them only for internal files, not
    /// for outputs that a user names.
    pub fn replacing(kind: &'a Kind) -> Guard<'a> {
        Guard { kind: Some(kind), force: true, inputs: &[] }
    }
}

/// Reason why an output is not written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The output would replace an input.
    #[error("{}: is the input file {}; give another path for the output", path.display(), input.display())]
    IsInput {
        /// Path of the output.
        path: PathBuf,
        /// Path of the input.
        input: PathBuf,
    },
    /// The output would replace a file of another kind.
    #[error("{}: exists and is not a {kind}; remove it, or give another path", path.display())]
    Foreign {
        /// Path of the output.
        path: PathBuf,
        /// Kind of the output.
        kind: &'static str,
    },
    /// The path names something other than a regular file.
    #[error("{}: is {found}; a {kind} can only be written to a regular file", path.display())]
    NotRegular {
        /// Path of the output.
        path: PathBuf,
        /// Kind of the existing file.
        found: FileKind,
        /// Kind of the output.
        kind: &'static str,
    },
    /// The output cannot go to standard output.
    #[error("a {kind} cannot be written to standard output; give a path")]
    NoStream {
        /// Kind of the output.
        kind: &'static str,
    },
    /// The path has no file name.
    #[error("{}: the path has no file name", path.display())]
    NoName {
        /// Path of the output.
        path: PathBuf,
    },
    /// The path names something other than an empty folder. Folders are only created, never
    /// changed.
    #[error("{}: cannot create: it exists already; give a new or an empty folder", path.display())]
    FolderIsThere {
        /// Path of the folder.
        path: PathBuf,
    },
    /// The path is a symbolic link to a missing file.
    #[error("{}: is a link to {}, which does not exist; remove the link", path.display(), target.display())]
    BrokenLink {
        /// Path of the output.
        path: PathBuf,
        /// Target of the link.
        target: PathBuf,
    },
    /// The system returned an error.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// Path of the output.
        path: PathBuf,
        /// Action that failed.
        action: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

impl OutputError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            OutputError::NotRegular { .. } | OutputError::BrokenLink { .. } | OutputError::Io { .. } => Class::Io,
            OutputError::IsInput { .. }
            | OutputError::Foreign { .. }
            | OutputError::NoStream { .. }
            | OutputError::NoName { .. }
            | OutputError::FolderIsThere { .. } => Class::Usage,
        }
    }

    /// Returns the change by the user that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            OutputError::Foreign { .. } => Some(Remedy::ReplaceFile),
            _ => None,
        }
    }
}

impl OutputError {
    pub(crate) fn io(path: &Path, action: &'static str) -> impl Fn(io::Error) -> OutputError {
        move |source| OutputError::Io { path: path.into(), action, source }
    }

    /// Returns whether the only error is that the reader closed its end of standard output.
    pub fn is_closed_standard_output(&self) -> bool {
        matches!(self, OutputError::Io { path, source, .. }
            if path.as_os_str() == STANDARD && source.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Checked output path for code that writes and renames its own file ([`Place::take`]), with the
/// input files that must not be replaced.
#[derive(Debug)]
pub struct Place {
    /// Path as the user wrote it.
    given_path: PathBuf,
    /// Path with links followed.
    path: PathBuf,
    kind: Option<Kind>,
    force: bool,
    inputs: Vec<(PathBuf, Identity)>,
    /// Mode of the output file: the mode of the file that it replaces, or the default mode after
    /// the user's mask (`umask`).
    mode: u32,
}

impl Place {
    /// Returns the output path as the user wrote it.
    pub fn given_path(&self) -> &Path {
        &self.given_path
    }

    /// Returns the path with links followed. The folder of this path holds temporary files.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn folder(&self) -> &Path {
        folder_of(&self.path)
    }

    fn kind_name(&self) -> &'static str {
        self.kind.map_or("file", |kind| kind.name)
    }

    fn add_input(&mut self, input: &Path) {
        // If the identity of an input cannot be read, the output cannot replace it. Opening the
        // input will report the error.
        if let Ok(Some(identity)) = Identity::of_input(input) {
            self.inputs.push((input.into(), identity));
        }
    }

    /// Checks that the file now at the output path may be replaced.
    fn check(&self) -> Result<(), OutputError> {
        let path = self.given_path.clone();
        let there = match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            there => there.map_err(OutputError::io(&self.given_path, "write"))?,
        };
        self.is_no_input(&self.given_path, &there)?;
        if let Some(found) = FileKind::from_metadata(&there) {
            return Err(OutputError::NotRegular { path, found, kind: self.kind_name() });
        }
        let Some(kind) = self.kind.filter(|_| !self.force && there.len() > 0) else { return Ok(()) };
        let file = open_regular(&self.path);
        let file =
            file.map_err(OutputError::io(&self.given_path, "check whether it may be replaced: it cannot be read"))?;
        is_of_kind(&self.given_path, &file, &kind)
    }

    /// Checks that standard output is no input of the command. Standard output may be redirected to
    /// a file.
    fn check_stream(&self, file: &File) -> Result<(), OutputError> {
        let there = file.metadata().map_err(OutputError::io(&self.given_path, "write"))?;
        // A terminal or another stream may be both input and output.
        if there.is_file() { self.is_no_input(&self.given_path, &there) } else { Ok(()) }
    }

    fn is_no_input(&self, path: &Path, there: &fs::Metadata) -> Result<(), OutputError> {
        match self.inputs.iter().find(|(_, identity)| *identity == Identity::from_metadata(there)) {
            Some((input, _)) => Err(OutputError::IsInput { path: path.into(), input: input.clone() }),
            None => Ok(()),
        }
    }

    /// Checks that `file`, opened at `path` in the output's folder, may be overwritten. The rules
    /// are those for the output path.
    ///
    /// # Errors
    /// [`OutputError::IsInput`], [`OutputError::Foreign`], or [`OutputError::Io`] if the file
    /// cannot be read.
    pub fn check_beside(&self, path: &Path, file: &File, kind: &Kind) -> Result<(), OutputError> {
        let there = file.metadata().map_err(OutputError::io(path, "write"))?;
        self.is_no_input(path, &there)?;
        if self.force || there.len() == 0 { Ok(()) } else { is_of_kind(path, file, kind) }
    }

    /// Renames the complete file at `from` to the output path. It must be in the same folder.
    ///
    /// # Errors
    /// Fails if the existing file at the output path may not be replaced, if `from` no longer names
    /// `file`, or if the system fails.
    pub fn take(&self, from: &Path, file: &File) -> Result<(), OutputError> {
        let taken = || {
            let metadata = file.metadata()?;
            if Identity::from_metadata(&fs::symlink_metadata(from)?) != Identity::from_metadata(&metadata) {
                return Err(io::Error::other(format!(
                    "{} was replaced by another file while it was written",
                    from.display()
                )));
            }
            self.set_mode(file)?;
            file.sync_all()
        };
        taken().map_err(OutputError::io(&self.given_path, "write"))?;
        self.rename(|to| rename(from, to))
    }

    fn set_mode(&self, file: &File) -> io::Result<()> {
        file.set_permissions(fs::Permissions::from_mode(self.mode))
    }

    fn rename(&self, rename: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), OutputError> {
        // The path is checked again, because the work since the first check may have taken an hour.
        self.check()?;
        rename(&self.path).and_then(|()| sync_folder(self.folder())).map_err(OutputError::io(&self.given_path, "write"))
    }
}

fn is_of_kind(path: &Path, file: &File, kind: &Kind) -> Result<(), OutputError> {
    let mut head = vec![0; HEAD_BYTES];
    let read = read_head(file, &mut head);
    let read = read.map_err(OutputError::io(path, "check whether it may be replaced: it cannot be read"))?;
    if (kind.is)(&head[..read]) { Ok(()) } else { Err(OutputError::Foreign { path: path.into(), kind: kind.name }) }
}

/// Reads the first bytes of a file into `head`, and returns the number of bytes read.
fn read_head(file: &File, head: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < head.len() {
        match file.read_at(&mut head[read..], read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// An output that is open, but has no content yet.
#[derive(Debug)]
pub struct Output {
    place: Place,
    to: To,
}

#[derive(Debug)]
enum To {
    /// A pipe, a device or standard output, to which bytes are written directly.
    Stream(File),
    /// A file without a name (`O_TMPFILE`) in the folder of the output path.
    Nameless(File),
    /// A file with a random name in the folder of the output path.
    Named(NamedTempFile),
}

impl Output {
    /// Opens the output. Called before the content is computed, so that an unwritable path is
    /// reported early.
    ///
    /// # Errors
    /// See [`OutputError`].
    pub fn open(path: &Path, guard: &Guard) -> Result<Output, OutputError> {
        let failed = |action| OutputError::io(path, action);
        let mut place = Place {
            given_path: path.into(),
            path: path.into(),
            kind: guard.kind.copied(),
            force: guard.force,
            inputs: Vec::new(),
            mode: NEW_FILE,
        };
        let kind = place.kind_name();
        let streams = place.kind.is_none_or(|kind| kind.streams);
        if path.as_os_str() == STANDARD {
            if !streams {
                return Err(OutputError::NoStream { kind });
            }
            let copy: File = io::stdout().as_fd().try_clone_to_owned().map_err(failed("write"))?.into();
            guard.inputs.iter().for_each(|input| place.add_input(input));
            place.check_stream(&copy)?;
            return Ok(Output { place, to: To::Stream(copy) });
        }
        if path.file_name().is_none() {
            return Err(OutputError::NoName { path: path.into() });
        }
        match fs::metadata(path) {
            Ok(there) => match FileKind::from_metadata(&there) {
                Some(FileKind::Pipe | FileKind::CharacterDevice) if streams => {
                    let file = open_stream(path).map_err(failed("write"))?;
                    return Ok(Output { place, to: To::Stream(file) });
                }
                Some(found) => return Err(OutputError::NotRegular { path: path.into(), found, kind }),
                None => place.path = fs::canonicalize(path).map_err(failed("write"))?,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if let Ok(target) = fs::read_link(path) {
                    return Err(OutputError::BrokenLink { path: path.into(), target });
                }
            }
            Err(error) => return Err(failed("write")(error)),
        }
        guard.inputs.iter().for_each(|input| place.add_input(input));
        place.check()?;
        let to = aside(&place.path).map_err(failed("write"))?;
        let file = match &to {
            To::Stream(file) | To::Nameless(file) => file,
            To::Named(named) => named.as_file(),
        };
        let mode = |there: fs::Metadata| there.permissions().mode() & 0o777;
        let there = fs::metadata(&place.path).ok().map(mode);
        let most = if place.kind.is_some_and(|kind| kind.private) { PRIVATE_FILE } else { NEW_FILE };
        let new = || file.metadata().map(|new| mode(new) & most);
        place.mode = there.map_or_else(new, Ok).map_err(failed("write"))?;
        if most == PRIVATE_FILE {
            // Setting the mode early also protects the file while it has its temporary name.
            place.set_mode(file).map_err(failed("write"))?;
        }
        Ok(Output { place, to })
    }

    /// Returns the output path as the user wrote it.
    pub fn given_path(&self) -> &Path {
        &self.place.given_path
    }

    /// Returns whether the output is standard output.
    pub fn is_standard(&self) -> bool {
        self.place.given_path.as_os_str() == STANDARD
    }

    /// Adds an input file of the command, which the output must not replace.
    ///
    /// # Errors
    /// [`OutputError::IsInput`] if the output path names this input.
    pub fn reads(&mut self, input: &Path) -> Result<(), OutputError> {
        self.place.add_input(input);
        match &self.to {
            To::Stream(file) => self.place.check_stream(file),
            To::Nameless(_) | To::Named(_) => self.place.check(),
        }
    }

    /// Writes the output, renames it to its path, and returns the number of bytes.
    ///
    /// # Errors
    /// Fails if `fill` fails, if the system returns an error, or if the file now at the path may
    /// not be replaced. The existing file is then kept.
    pub fn write(self, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<u64, OutputError> {
        let Output { place, to } = self;
        let failed = |error| OutputError::io(&place.given_path, "write")(error);
        let into = |file: &File| -> Result<u64, OutputError> {
            let mut out = CountingWriter { out: BufWriter::new(file), bytes: 0 };
            fill(&mut out).and_then(|()| out.flush()).map_err(failed)?;
            Ok(out.bytes)
        };
        match to {
            To::Stream(file) => into(&file),
            To::Nameless(file) => {
                let bytes = into(&file)?;
                place.set_mode(&file).map_err(failed)?;
                file.sync_all().map_err(failed)?;
                let link = |path: &Path| -> io::Result<()> {
                    Ok(linkat(CWD, path_of_file(&file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
                };
                let named = names_beside(&place.path).make_in(place.folder(), link).map_err(failed)?;
                place.rename(|path| persist(named.into_temp_path(), path))?;
                Ok(bytes)
            }
            To::Named(named) => {
                let bytes = into(named.as_file())?;
                place.set_mode(named.as_file()).map_err(failed)?;
                named.as_file().sync_all().map_err(failed)?;
                place.rename(|path| persist(named.into_temp_path(), path))?;
                Ok(bytes)
            }
        }
    }

    /// Closes the temporary file, and returns the checked output path for code that writes the file
    /// itself.
    ///
    /// # Errors
    /// [`OutputError::NotRegular`] or [`OutputError::NoStream`] if no file can be renamed to the
    /// path.
    pub fn into_place(self) -> Result<Place, OutputError> {
        let kind = self.place.kind_name();
        match self.to {
            To::Nameless(_) | To::Named(_) => Ok(self.place),
            To::Stream(_) if self.is_standard() => Err(OutputError::NoStream { kind }),
            To::Stream(file) => {
                let found =
                    file.metadata().ok().and_then(|there| FileKind::from_metadata(&there)).unwrap_or(FileKind::Other);
                Err(OutputError::NotRegular { path: self.place.given_path, found, kind })
            }
        }
    }
}

/// Writes an internal file, completely or not at all. An existing file at the path is replaced.
///
/// # Errors
/// See [`OutputError`].
pub fn atomic_write(path: &Path, bytes: &[u8]) -> Result<(), OutputError> {
    Output::open(path, &Guard::default())?.write(|out| out.write_all(bytes)).map(drop)
}

/// A writer that counts the bytes that it forwards.
struct CountingWriter<W> {
    out: W,
    bytes: u64,
}

impl<W: Write> Write for CountingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn open_stream(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOCTTY.bits().cast_signed();
    #[expect(clippy::disallowed_methods, reason = "a pipe or a device, or nothing is written")]
    let file = File::options().write(true).custom_flags(flags).open(path)?;
    match FileKind::from_metadata(&file.metadata()?) {
        Some(FileKind::Pipe | FileKind::CharacterDevice) => Ok(file),
        _ => Err(io::Error::other("was replaced by another file")),
    }
}

pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns a path in `/proc` to an open file. It also works for a file without a name.
fn path_of_file(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Makes a new temporary file in the folder of `path`.
fn aside(path: &Path) -> io::Result<To> {
    #[cfg(target_os = "linux")]
    {
        use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
        let flags = OFlags::TMPFILE.bits().cast_signed();
        #[expect(clippy::disallowed_methods, reason = "a new file, which nobody else can reach")]
        let nameless = File::options().write(true).mode(NEW_FILE).custom_flags(flags).open(folder_of(path));
        match nameless {
            // A file without a name can later get one only through `/proc`.
            Ok(file) if fs::metadata(path_of_file(&file)).is_ok() => return Ok(To::Nameless(file)),
            // These errors are about the folder, so creating a named file would also fail. An error
            // of `tempfile` would show a temporary name, which the user does not know.
            Err(error) if matches!(error.kind(), NotFound | NotADirectory | PermissionDenied | ReadOnlyFilesystem) => {
                return Err(error);
            }
            // Some file systems do not support `O_TMPFILE`.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(To::Named(names_beside(path).tempfile_in(folder_of(path))?))
}

/// Returns a source of random names for temporary files in the folder of `path`.
pub(crate) fn names_beside(path: &Path) -> TemporaryNames {
    let name = path.file_name().map(|name| name.as_bytes()).unwrap_or_default();
    let prefix = [b".", &name[..name.len().min(MAX_NAME)], b"."].concat();
    TemporaryNames(OsString::from_vec(prefix))
}

/// Generator of random names for temporary files and folders, see [`names_beside`].
pub(crate) struct TemporaryNames(OsString);

impl TemporaryNames {
    /// Number of random letters or digits in a name, for 62^12 different names.
    const RANDOM: usize = 12;

    fn tempfile_in(&self, folder: &Path) -> io::Result<NamedTempFile> {
        let mode = fs::Permissions::from_mode(NEW_FILE);
        self.builder().permissions(mode).tempfile_in(folder)
    }

    /// Creates a file in `folder` that only this user can read.
    pub(crate) fn private_in(&self, folder: &Path) -> io::Result<NamedTempFile> {
        self.builder().tempfile_in(folder)
    }

    fn make_in(&self, folder: &Path, make: impl FnMut(&Path) -> io::Result<()>) -> io::Result<NamedTempFile<()>> {
        self.builder().make_in(folder, make)
    }

    pub(crate) fn folder_in(&self, folder: &Path, mode: u32) -> io::Result<tempfile::TempDir> {
        let made = self.builder().permissions(fs::Permissions::from_mode(mode)).tempdir_in(folder);
        // An error of `tempfile` would show a temporary name, which the user does not know.
        made.map_err(|error| io::Error::from(error.kind()))
    }

    fn builder(&self) -> Builder<'_, 'static> {
        let mut builder = Builder::new();
        builder.prefix(&self.0).suffix(".part").rand_bytes(Self::RANDOM);
        builder
    }
}

fn persist(from: TempPath, to: &Path) -> io::Result<()> {
    from.persist(to).map_err(|error| error.error)
}

pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "this is where files are renamed")]
    fs::rename(from, to)
}

/// Syncs a folder, so that the names of its files are on the disk.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "a folder, not a file")]
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    match synced {
        // Some file systems cannot sync folders. And a user may have write access to a folder
        // without read access.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied
            ) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

#[cfg(test)]
mod tests;
