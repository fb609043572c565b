//! A file that is written in units, by as many runs as it takes: a run that is killed leaves it beside its place, and the next one goes
//! on with it.
//!
//! ```text
//! .model.ixp.part            the file so far; its header is 0 until the end, so that it is no plan
//! .model.ixp.part.journal    what it is made from, then the checksum of each unit that is done
//! ```
//!
//! | bytes of the journal | what |
//! | --- | --- |
//! | 0..n | `IXCPART`, a newline, the version of plan files, what the file is made from, as the caller says, CRC-32 of all that |
//! | n + 8 i .. n + 8 i + 4 | CRC-32 of unit `i` |
//! | n + 8 i + 4 .. n + 8 i + 8 | CRC-32 of `i` and that |
//!
//! Invariant: a unit is in the journal only after it is on the disk. When a run goes on, units are read and compared with the journal,
//! so that what a disk lost, or someone changed meanwhile, is made again.
//! Invariant: one run at a time: the file is locked. A file that is made from something else is begun anew.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{FileError, HEADER_BYTES, VERSION, check_place};

const MAGIC: [u8; 8] = *b"IXCPART\n";
/// Bytes of a unit's entry in the journal.
const ENTRY: usize = 8;
/// Bytes that are read at a time.
const READ: usize = 1 << 20;

/// A piece of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Where it begins.
    pub at: u64,
    pub bytes: u64,
}

/// A file on its way.
#[derive(Debug)]
pub(super) struct Partial {
    path: PathBuf,
    part: PathBuf,
    journal_path: PathBuf,
    file: File,
    journal: File,
    units: Vec<Unit>,
    /// The checksum of each unit that is written.
    done: Vec<u32>,
    /// How many of them are in the journal.
    noted: usize,
    /// Bytes of the journal before the first unit's.
    start: u64,
    /// Bytes of units that may be lost.
    batch: u64,
    /// Length of the file.
    bytes: u64,
}

/// The partial file's name and its journal's, and the folder that they are in.
pub(super) fn names(path: &Path) -> Option<(PathBuf, PathBuf, &Path)> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name()?;
    let named = |end: &str| {
        let mut whole = OsString::from(".");
        whole.push(name);
        whole.push(end);
        folder.join(whole)
    };
    Some((named(".part"), named(".part.journal"), folder))
}

impl Partial {
    /// Opens what is there of `path`, or begins it: a file of `bytes` bytes that starts with a header, which is written last, and
    /// `payload`. `source` is what the units are made from. At most some `batch` bytes of units are lost when a run is killed.
    pub(super) fn open(
        path: &Path,
        source: &[u8],
        payload: &[u8],
        units: Vec<Unit>,
        bytes: u64,
        batch: u64,
    ) -> Result<Partial, FileError> {
        let io = |source| FileError::Io { path: path.into(), action: "write", source };
        check_place(path)?;
        let Some((part, journal_path, _)) = names(path) else {
            return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "the path names no file")));
        };
        let file = lock(&part).map_err(io)?;
        let mut journal = open(&journal_path).map_err(io)?;
        let mut start = [&MAGIC[..], &VERSION.to_le_bytes(), source].concat();
        start.extend(crc32fast::hash(&start).to_le_bytes());
        let mut noted = Vec::new();
        let most = start.len() as u64 + (units.len() * ENTRY) as u64;
        (&mut journal).take(most).read_to_end(&mut noted).map_err(io)?;
        let mut partial = Partial {
            path: path.into(),
            part,
            journal_path,
            file,
            journal,
            units,
            done: Vec::new(),
            noted: 0,
            start: start.len() as u64,
            batch,
            bytes,
        };
        let mut begun = vec![0; payload.len()];
        let same = noted.starts_with(&start)
            && partial.file.read_exact_at(&mut begun, HEADER_BYTES as u64).is_ok()
            && begun == payload;
        let opened = (|| {
            if same {
                partial.done = partial.kept(noted.get(start.len()..).unwrap_or_default());
                partial.noted = partial.done.len();
                partial.journal.set_len(partial.start + (partial.noted * ENTRY) as u64)?;
                return partial.file.write_all_at(&[0; HEADER_BYTES], 0);
            }
            // Never the journal of one file and the bytes of another.
            partial.journal.set_len(0)?;
            partial.journal.sync_data()?;
            partial.file.set_len(0)?;
            partial.file.write_all_at(&[0; HEADER_BYTES], 0)?;
            partial.file.write_all_at(payload, HEADER_BYTES as u64)?;
            partial.file.sync_data()?;
            partial.journal.write_all_at(&start, 0)?;
            partial.journal.sync_data()
        })();
        opened.map_err(|source| partial.error(source))?;
        Ok(partial)
    }

    /// The checksums of the units that a journal notes and that are there.
    fn kept(&self, noted: &[u8]) -> Vec<u32> {
        let mut kept = Vec::new();
        for ((number, unit), entry) in (0u32..).zip(&self.units).zip(noted.chunks_exact(ENTRY)) {
            let crc = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
            if entry != self::entry(number, crc) || self.checksum(unit).ok() != Some(crc) {
                break;
            }
            kept.push(crc);
        }
        kept
    }

    fn checksum(&self, unit: &Unit) -> io::Result<u32> {
        let (mut hasher, mut buffer, mut at) = (crc32fast::Hasher::new(), vec![0; READ], 0);
        while at < unit.bytes {
            let count = (unit.bytes - at).min(READ as u64) as usize;
            self.file.read_exact_at(&mut buffer[..count], unit.at + at)?;
            hasher.update(&buffer[..count]);
            at += count as u64;
        }
        Ok(hasher.finalize())
    }

    /// The checksum of each unit that is done.
    pub(super) fn done(&self) -> &[u32] {
        &self.done
    }

    /// Bytes of units that are done.
    pub(super) fn done_bytes(&self) -> u64 {
        self.units.iter().take(self.done.len()).map(|unit| unit.bytes).sum()
    }

    /// Writes bytes of the next units.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.file.write_all_at(bytes, at).map_err(|source| self.error(source))
    }

    /// Notes that the next unit is written; now and then makes sure that it stays so.
    pub(super) fn finish(&mut self, crc: u32) -> Result<(), FileError> {
        self.done.push(crc);
        let unsafe_yet = self.units.get(self.noted..self.done.len()).unwrap_or_default();
        if unsafe_yet.iter().map(|unit| unit.bytes).sum::<u64>() < self.batch {
            return Ok(());
        }
        self.note().map_err(|source| self.error(source))
    }

    fn note(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        let new = self.done.iter().enumerate().skip(self.noted);
        let entries: Vec<u8> = new.flat_map(|(number, &crc)| entry(number as u32, crc)).collect();
        self.journal.write_all_at(&entries, self.start + (self.noted * ENTRY) as u64)?;
        self.journal.sync_data()?;
        self.noted = self.done.len();
        Ok(())
    }

    /// Writes what follows the units, and the header, and puts the file in its place.
    pub(super) fn seal(mut self, header: &[u8; HEADER_BYTES], tail: &[u8]) -> Result<(), FileError> {
        let sealed = (|| {
            self.note()?;
            self.file.set_len(self.bytes)?;
            self.file.write_all_at(tail, self.bytes - tail.len() as u64)?;
            self.file.sync_data()?;
            self.file.write_all_at(header, 0)?;
            self.file.sync_all()?;
            fs::rename(&self.part, &self.path)?;
            // The rename itself is durable once the folder is; not every file system can tell.
            let synced =
                names(&self.path).map(|(_, _, folder)| File::open(folder).and_then(|folder| folder.sync_all()));
            if let Some(Err(error)) = synced {
                tracing::debug!(%error, "the folder is not synchronised");
            }
            // Without its file it says nothing; one that stays is written over by the next run.
            let _ = fs::remove_file(&self.journal_path);
            Ok(())
        })();
        sealed.map_err(|source| self.error(source))
    }

    /// Removes what was written: no other run may go on with it.
    pub(super) fn discard(self) {
        // Emptied before it is removed: a journal that stays would be gone on with.
        let emptied = self.journal.set_len(0).and_then(|()| self.journal.sync_data());
        let removed = [&self.journal_path, &self.part].map(fs::remove_file);
        if let Some(error) = [emptied].into_iter().chain(removed).find_map(Result::err) {
            tracing::debug!(part = %self.part.display(), %error, "what was written stays");
        }
    }

    fn error(&self, source: io::Error) -> FileError {
        let path = self.path.clone();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                let kept = self.units.get(..self.noted).and_then(<[Unit]>::last).map_or(0, |unit| unit.at + unit.bytes);
                let (part, needed) = (self.part.clone(), self.bytes);
                FileError::Space { path, part, needed, left: needed.saturating_sub(kept), source }
            }
            _ => FileError::Io { path, action: "write", source },
        }
    }
}

fn entry(number: u32, crc: u32) -> [u8; ENTRY] {
    let (number, crc) = (number.to_le_bytes(), crc.to_le_bytes());
    let mut entry = [0; ENTRY];
    entry[..4].copy_from_slice(&crc);
    entry[4..].copy_from_slice(&crc32fast::hash(&[number, crc].concat()).to_le_bytes());
    entry
}

/// Opens a file beside the plan's place, or makes it. A link is none of ours: what it leads to must not be written over.
fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(target_os = "linux")]
    options.custom_flags(libc::O_NOFOLLOW);
    options.open(path).map_err(|error| match fs::symlink_metadata(path) {
        Ok(facts) if facts.is_symlink() => {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{} is a link; remove it", path.display()))
        }
        _ => error,
    })
}

/// Opens a file for this process alone.
fn lock(path: &Path) -> io::Result<File> {
    loop {
        let file = open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let why = format!("another process is writing {}", path.display());
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
            // Some file systems have no locks.
            Err(TryLockError::Error(error)) => tracing::debug!(path = %path.display(), %error, "not locked"),
        }
        // Whoever had it may have put it in its place since it was opened.
        let (held, named) = (file.metadata()?, fs::metadata(path));
        if named.is_ok_and(|named| (named.dev(), named.ino()) == (held.dev(), held.ino())) {
            return Ok(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_room_is_told_from_other_failures() {
        let folder = std::env::temp_dir().join(format!("ixc-partial-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("plan.ixp");
        let units = vec![Unit { at: 4096, bytes: 10 }, Unit { at: 8192, bytes: 10 }];
        let mut partial = Partial::open(&path, b"", b"plan", units, 9000, 1).unwrap();
        partial.write(4096, &[7; 10]).unwrap();
        partial.finish(crc32fast::hash(&[7; 10])).unwrap();
        // ENOSPC, EDQUOT and EFBIG on Linux; EIO.
        let error = |errno| partial.error(io::Error::from_raw_os_error(errno));
        if cfg!(target_os = "linux") {
            for errno in [28, 122, 27] {
                let error = error(errno);
                assert!(matches!(error, FileError::Space { needed: 9000, left: 4894, .. }), "{error:?}");
            }
        }
        assert!(matches!(error(5), FileError::Io { .. }));
        drop(partial);
        let again = Partial::open(&path, b"", b"plan", vec![Unit { at: 4096, bytes: 10 }], 9000, 1).unwrap();
        assert_eq!((again.done().len(), again.done_bytes()), (1, 10));
        drop(again);
        let other = Partial::open(&path, b"x", b"plan", vec![Unit { at: 4096, bytes: 10 }], 9000, 1).unwrap();
        assert_eq!((other.done(), fs::metadata(&other.part).unwrap().len()), (&[][..], 52));
        fs::remove_dir_all(&folder).unwrap();
    }
}
