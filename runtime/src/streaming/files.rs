//! The files that contain the blocks. They are opened once, for reads that bypass the page cache if
//! the system allows it.
//!
//! With O_DIRECT, the drive writes directly into the slots, and no memory beyond the budget is
//! used. With the page cache, every block would be in memory twice. O_DIRECT requires that offset,
//! length and memory address are multiples of the drive's block size. So all reads are of whole
//! [`PAGE`]s. A drive with larger blocks is read through the page cache.
//!
//! Invariant: reads go to the files that were opened. [`Files::check_unchanged`] checks that the
//! paths still name these files, and that the files have not changed.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use ixc_files::changed::{ChangedFile, Identity};
use ixc_files::open_regular;

use super::StreamError;

/// Alignment of reads in files and in memory: a page, which is a multiple of the block size of all
/// common drives.
pub const PAGE: u64 = 4096;

#[derive(Debug)]
struct Open {
    path: PathBuf,
    file: File,
    identity: Identity,
    /// Whether reads of the file bypass the page cache.
    direct: AtomicBool,
}

/// All files of an expert cache, indexed by number.
#[derive(Debug)]
pub struct Files {
    list: Vec<Open>,
    notes: Mutex<Vec<String>>,
}

impl Files {
    /// Opens the files for reading. With `direct`, reads bypass the page cache; if the system
    /// refuses this for a file, only a note is made.
    ///
    /// # Errors
    /// [`StreamError::Open`] if a file does not exist or cannot be read.
    pub fn open(paths: &[PathBuf], direct: bool) -> Result<Files, StreamError> {
        let mut notes = Vec::new();
        let mut list = Vec::with_capacity(paths.len());
        for path in paths {
            let error = |error: io::Error| StreamError::Open { path: path.clone(), why: error.to_string() };
            let (file, direct) = match direct.then(|| open_direct(path)) {
                Some(Ok(file)) => (file, true),
                Some(Err(why)) => {
                    let file = open_regular(path).map_err(error)?;
                    notes.push(format!("{}: read through the page cache: {why}", path.display()));
                    (file, false)
                }
                None => (open_regular(path).map_err(error)?, false),
            };
            let metadata = file.metadata().map_err(error)?;
            list.push(Open {
                path: path.clone(),
                file,
                identity: Identity::from_metadata(&metadata),
                direct: direct.into(),
            });
        }
        Ok(Files { list, notes: Mutex::new(notes) })
    }

    /// Compares the files with `before`, the identities of the same files when they were opened
    /// earlier. `None` matches any file.
    ///
    /// # Errors
    /// [`StreamError::Changed`] for the first file that differs.
    pub fn check_same(&self, before: &[Option<Identity>]) -> Result<(), StreamError> {
        let pairs = self.list.iter().zip(before);
        pairs.filter_map(|(open, before)| Some((open, (*before)?))).try_for_each(|(open, before)| {
            open.identity.check_same_file(before, &open.path)?;
            Ok(open.identity.check_same_bytes(before, &open.path)?)
        })
    }

    /// Returns the number of open files.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Returns the handles of the open files, in order of their numbers.
    pub fn handles(&self) -> impl Iterator<Item = &File> {
        self.list.iter().map(|open| &open.file)
    }

    /// Returns the handle of a file; `None` for an unknown number.
    pub fn handle(&self, file: u32) -> Option<&File> {
        self.list.get(file as usize).map(|open| &open.file)
    }

    /// Returns a file's path; empty for an unknown number.
    pub fn path(&self, file: u32) -> PathBuf {
        self.list.get(file as usize).map_or_else(PathBuf::new, |open| open.path.clone())
    }

    /// Returns the length of a file in bytes when it was opened; 0 for an unknown number.
    pub fn bytes(&self, file: u32) -> u64 {
        self.list.get(file as usize).map_or(0, |open| open.identity.bytes())
    }

    /// Returns the length of a file in bytes now.
    pub fn bytes_now(&self, file: u32) -> u64 {
        self.handle(file).and_then(|file| file.metadata().ok()).map_or(0, |metadata| metadata.len())
    }

    /// Returns whether reads of a file bypass the page cache.
    pub fn is_direct(&self, file: u32) -> bool {
        self.list.get(file as usize).is_some_and(|open| open.direct.load(Ordering::Acquire))
    }

    /// Returns notes about features that the system refused for the files.
    pub fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Switches a file to reads through the page cache. Some file systems accept O_DIRECT at
    /// opening, but refuse the reads.
    pub(super) fn leave_direct(&self, file: u32, why: &str) {
        let Some(open) = self.list.get(file as usize) else { return };
        if !open.direct.swap(false, Ordering::AcqRel) {
            return;
        }
        let note = match clear_direct(&open.file) {
            Ok(()) => format!("{}: read through the page cache: {why}", open.path.display()),
            Err(error) => format!("{}: {why}, and O_DIRECT cannot be turned off: {error}", open.path.display()),
        };
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(note);
    }

    /// Checks that the paths still name the opened files, and that the files are unchanged.
    ///
    /// # Errors
    /// [`StreamError::Changed`] for the first file that was replaced or changed.
    pub fn check_unchanged(&self) -> Result<(), StreamError> {
        for open in &self.list {
            // The path is checked because the open handle does not change if another file, with
            // another inode, replaces the path.
            Identity::from_path(&open.path)?.check_same_file(open.identity, &open.path)?;
            let held = open.file.metadata().map_err(|error| ChangedFile::unreadable(&open.path, &error))?;
            Identity::from_metadata(&held).check_same_bytes(open.identity, &open.path)?;
        }
        Ok(())
    }
}

#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> Result<File, String> {
    let file = ixc_files::open_direct(path).map_err(|error| format!("O_DIRECT is refused: {error}"))?;
    match direct_alignment(&file) {
        Some(alignment) if alignment > PAGE => {
            Err(format!("O_DIRECT needs {alignment}-byte alignment, more than {PAGE}"))
        }
        _ => Ok(file),
    }
}

/// Returns the larger of the alignments that O_DIRECT requires for offsets and for memory. Returns
/// `None` before Linux 6.1, and if the file system does not report them.
#[cfg(target_os = "linux")]
fn direct_alignment(file: &File) -> Option<u64> {
    use std::os::fd::AsRawFd;
    let mut status = std::mem::MaybeUninit::<libc::statx>::zeroed();
    // The system call is used directly, since glibc before 2.28 has no `statx`.
    //
    // SAFETY: the descriptor is open, the path is an empty C string as AT_EMPTY_PATH requires, and
    // `status` has room for the result.
    let failed = unsafe {
        let (descriptor, path, asked) = (file.as_raw_fd(), c"".as_ptr(), libc::STATX_DIOALIGN);
        libc::syscall(libc::SYS_statx, descriptor, path, libc::AT_EMPTY_PATH, asked, status.as_mut_ptr())
    };
    // SAFETY: all bytes were zero, which is a valid `statx`, and the call writes a valid one.
    let status = unsafe { status.assume_init() };
    let reported = failed == 0 && status.stx_mask & libc::STATX_DIOALIGN != 0;
    reported.then(|| u64::from(status.stx_dio_mem_align.max(status.stx_dio_offset_align)))
}

#[cfg(target_os = "linux")]
fn clear_direct(file: &File) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open, and F_GETFL takes no argument.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and F_SETFL takes an int.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_DIRECT) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_: &Path) -> Result<File, String> {
    Err("this system has no O_DIRECT".into())
}

#[cfg(not(target_os = "linux"))]
fn clear_direct(_: &File) -> io::Result<()> {
    Ok(())
}
