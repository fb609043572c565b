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
//! | 0..n - 8 | `IXCPART`, a newline, the version of plan files, what the file is made from, as the caller says |
//! | n - 8..n | seal of all that and of the plan |
//! | n + 12 i .. n + 12 i + 4 | CRC-32 of unit `i` |
//! | n + 12 i + 4 .. n + 12 i + 12 | seal of all before the first unit, of the plan, of `i`, and of that |
//!
//! A seal is a SipHash-2-4 with a secret that only this user's programs read ([`ixc_files::own::secret`]). The folder may be one that
//! others write to, so what is gone on with is
//!
//! 1. a regular file that belongs to this user, that nobody else can write to and that has no second name, opened without following a link
//!    or waiting for a pipe; that begins as ours do, unless other files may be replaced, too; and that is not what the command reads.
//!    Anything else in its place is refused, and stays as it is: whoever put it there did not expect it to be written to;
//! 2. noted in a journal with our seals. Without them, as where the user's secret is gone or was never made, the file is begun anew.
//!
//! What remains: who may write to this user's own files and yet not read the secret could give a unit that is noted other bytes of the same
//! CRC-32. The part is readable and writable by this user alone until it is a plan.
//!
//! Invariant: a unit is in the journal only after it is on the disk. When a run goes on, units are read and compared with the journal,
//! so that what a disk lost, or someone changed meanwhile, is made again.
//! Invariant: one run at a time: the file is locked. A file that is made from something else is begun anew.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::hash::Hasher;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ixc_files::own::{open_own, secret};
use ixc_files::{Identity, Kind, Place, Secret};
use siphasher::sip::SipHasher24;

use super::{FileError, HEADER_BYTES, KIND, VERSION};

const MAGIC: [u8; 8] = *b"IXCPART\n";
/// What may be written over in the place of the part: its header is the last that it gets.
const PART: Kind = Kind {
    name: "part of a plan",
    is: |head| head.get(..HEADER_BYTES).is_some_and(|header| header == [0; HEADER_BYTES]) || (KIND.is)(head),
    streams: false,
    private: false,
};
/// The same of the journal.
const JOURNAL: Kind =
    Kind { name: "journal of such a part", is: |head| head.starts_with(&MAGIC), streams: false, private: false };
/// Bytes of a unit's entry in the journal.
const ENTRY: usize = 12;
/// Bytes of a seal.
const SEAL: usize = 8;
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
    place: Place,
    part: PathBuf,
    journal_path: PathBuf,
    file: File,
    journal: File,
    units: Vec<Unit>,
    /// The checksum of each unit that is written.
    done: Vec<u32>,
    /// How many of them are in the journal.
    noted: usize,
    /// Has seen all that a unit's seal begins with.
    sealing: SipHasher24,
    /// Bytes of the journal before the first unit's.
    start: u64,
    /// Bytes of units that may be lost.
    batch: u64,
    /// Length of the file.
    bytes: u64,
}

/// The partial file's name and its journal's.
fn names(path: &Path) -> [PathBuf; 2] {
    [".part", ".part.journal"].map(|end| {
        let mut whole = OsString::from(".");
        whole.push(path.file_name().unwrap_or_default());
        whole.push(end);
        path.with_file_name(whole)
    })
}

impl Partial {
    /// Opens the unfinished file in a place, or begins one of `bytes` bytes: a header, which is written last, then `payload`, then units. Units are
    /// made from `source`, and seals with `secret`. A run that is killed loses at most some `batch` bytes of units.
    pub(super) fn open(
        place: Place,
        secret: &Secret,
        source: &[u8],
        payload: &[u8],
        units: Vec<Unit>,
        bytes: u64,
        batch: u64,
    ) -> Result<Partial, FileError> {
        let [part, journal_path] = names(place.path());
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| FileError::Io { path, action: "write", source }
        };
        let file = lock(&part).map_err(io(&part))?;
        let mut journal = open_own(&journal_path).map_err(io(&journal_path))?;
        place.check_beside(&part, &file, &PART)?;
        place.check_beside(&journal_path, &journal, &JOURNAL)?;
        let mut start = [&MAGIC[..], &VERSION.to_le_bytes(), source].concat();
        let mut sealing = SipHasher24::new_with_key(&secret.0);
        sealing.write(&start);
        sealing.write(payload);
        start.extend(sealing.finish().to_le_bytes());
        let mut noted = Vec::new();
        let most = start.len() as u64 + (units.len() * ENTRY) as u64;
        (&mut journal).take(most).read_to_end(&mut noted).map_err(io(&journal_path))?;
        let mut partial = Partial {
            place,
            part,
            journal_path,
            file,
            journal,
            units,
            done: Vec::new(),
            noted: 0,
            sealing,
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
            if entry != self.entry(number, crc) || self.checksum(unit).ok() != Some(crc) {
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
        let entries: Vec<u8> = new.flat_map(|(number, &crc)| self.entry(number as u32, crc)).collect();
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
            self.file.write_all_at(header, 0)
        })();
        sealed.map_err(|source| self.error(source))?;
        self.place.take(&self.part, &self.file)?;
        // Without its file it says nothing; one that stays is written over by the next run.
        let _ = fs::remove_file(&self.journal_path);
        Ok(())
    }

    fn entry(&self, number: u32, crc: u32) -> [u8; ENTRY] {
        let mut sealing = self.sealing;
        sealing.write(&number.to_le_bytes());
        sealing.write(&crc.to_le_bytes());
        let mut entry = [0; ENTRY];
        entry[..ENTRY - SEAL].copy_from_slice(&crc.to_le_bytes());
        entry[ENTRY - SEAL..].copy_from_slice(&sealing.finish().to_le_bytes());
        entry
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
        let path = self.place.named().to_owned();
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

/// The user's secret. Without one it is a new one that the next run does not know: that begins anew.
pub(super) fn secret_or_new() -> io::Result<Secret> {
    let anew = "if this run is killed, the next one begins anew";
    match secret() {
        Ok(Some(secret)) => return Ok(secret),
        Ok(None) => tracing::warn!("no folder for a secret that only this user writes to: {anew}"),
        Err(error) => tracing::warn!("the user's secret: {error}: {anew}"),
    }
    Secret::random()
}

/// Opens a file for this process alone.
fn lock(path: &Path) -> io::Result<File> {
    loop {
        let file = open_own(path)?;
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
        let held = Identity::of(&file.metadata()?);
        if fs::symlink_metadata(path).is_ok_and(|named| Identity::of(&named) == held) {
            return Ok(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use ixc_files::{Guard, Output};

    use super::*;

    #[test]
    fn no_room_is_told_from_other_failures() {
        let folder = std::env::temp_dir().join(format!("ixc-partial-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("plan.ixp");
        let units = vec![Unit { at: 4096, bytes: 10 }, Unit { at: 8192, bytes: 10 }];
        let place = || Output::open(&path, &Guard::default()).unwrap().into_place().unwrap();
        let ours = Secret([1; 16]);
        let mut partial = Partial::open(place(), &ours, b"", b"plan", units, 9000, 1).unwrap();
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
        let again = Partial::open(place(), &ours, b"", b"plan", vec![Unit { at: 4096, bytes: 10 }], 9000, 1).unwrap();
        assert_eq!((again.done().len(), again.done_bytes()), (1, 10));
        drop(again);
        // What is sealed with another secret is none of ours, and is begun anew; then it is theirs.
        let theirs = Secret([2; 16]);
        let units = || vec![Unit { at: 4096, bytes: 10 }];
        assert!(Partial::open(place(), &theirs, b"", b"plan", units(), 9000, 1).unwrap().done().is_empty());
        let mut again = Partial::open(place(), &ours, b"", b"plan", units(), 9000, 1).unwrap();
        assert!(again.done().is_empty());
        again.write(4096, &[7; 10]).unwrap();
        again.finish(crc32fast::hash(&[7; 10])).unwrap();
        drop(again);
        // So is what is noted of another plan, as long.
        assert!(Partial::open(place(), &ours, b"", b"nalp", units(), 9000, 1).unwrap().done().is_empty());
        let other = Partial::open(place(), &ours, b"x", b"plan", vec![Unit { at: 4096, bytes: 10 }], 9000, 1).unwrap();
        assert_eq!((other.done(), fs::metadata(&other.part).unwrap().len()), (&[][..], 52));
        fs::remove_dir_all(&folder).unwrap();
    }
}
