//! An unfinished output file, written in units. If the run is killed, the file stays next to the
//! output path, and the next run continues it.
//!
//! ```text
//! .model.ixp.part            the file so far; its header is 0 until the end, so it is no plan
//! .model.ixp.part.journal    the identity of its inputs, then the checksum of each finished unit
//! ```
//!
//! | bytes of the journal | what |
//! | --- | --- |
//! | 0..n - 8 | `IXCPART`, a newline, the version of plan files, the caller's identity of inputs |
//! | n - 8..n | seal of all these bytes and of the plan |
//! | n + 12 i .. n + 12 i + 4 | CRC-32 of unit `i` |
//! | n + 12 i + 4 .. n + 12 i + 12 | seal of bytes 0..n - 8, the plan, `i`, and this CRC-32 |
//!
//! A seal is a SipHash-2-4 whose key is a secret that only this user's programs can read
//! ([`ixc_files::private_files::secret`]). Other users may be able to write to the folder. A run
//! therefore continues an unfinished file only under two conditions:
//!
//! 1. The file is regular, belongs to this user, has one name, and no other user can write to it.
//!    It is opened without following a link or waiting for a pipe. It is not an input of the
//!    command. It begins like an unfinished plan file or a plan, unless the user allows replacing
//!    any file. Any other file at this path is an error and stays unchanged, because its owner did
//!    not expect it to be overwritten.
//! 2. The journal lists the finished units with valid seals. Without valid seals, the unfinished
//!    file is written from the beginning. This happens if the user's secret was lost or never made.
//!
//! One attack remains: a program that can write to this user's files, but cannot read the secret.
//! It could replace the bytes of a finished unit by other bytes with the same CRC-32. While the
//! file is unfinished, only this user can read and write it.
//!
//! Invariant: a unit is in the journal only after it is on the disk. A run that continues the file
//! reads the units and compares them with the journal. Units that the disk lost, or that another
//! program changed, are written again.
//! Invariant: the file is locked, so that only one run at a time writes it. If the inputs differ,
//! the file is written from the beginning.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::hash::Hasher;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ixc_files::private_files::{open_own, secret};
use ixc_files::{Identity, Kind, Place, Secret};
use siphasher::sip::SipHasher24;

use super::{FileError, HEADER_BYTES, KIND, VERSION};

const MAGIC: [u8; 8] = *b"IXCPART\n";
/// Kind of file that the unfinished file may overwrite: an older unfinished file, or a plan. The
/// header of an unfinished file is 0, because the header is written last.
const PART: Kind = Kind {
    name: "part of a plan",
    is: |head| head.get(..HEADER_BYTES).is_some_and(|header| header == [0; HEADER_BYTES]) || (KIND.is)(head),
    streams: false,
    private: false,
};
/// Kind of file that the journal may overwrite.
const JOURNAL: Kind =
    Kind { name: "journal of such a part", is: |head| head.starts_with(&MAGIC), streams: false, private: false };
/// Bytes of a unit's entry in the journal: its checksum and its seal.
const ENTRY: usize = 12;
/// Bytes of a seal in the journal.
const SEAL: usize = 8;
/// Bytes of the file that are read at a time to verify a unit.
const READ: usize = 1 << 20;

/// A byte range of the output file that is written and verified as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Offset of the unit in the file.
    pub at: u64,
    pub bytes: u64,
}

/// An output file that is being written, and its journal.
#[derive(Debug)]
pub(super) struct Partial {
    place: Place,
    part: PathBuf,
    journal_path: PathBuf,
    file: File,
    journal: File,
    units: Vec<Unit>,
    /// CRC-32 of each finished unit.
    done: Vec<u32>,
    /// Number of finished units that the journal already lists.
    noted: usize,
    /// Hasher that has consumed the bytes that all seals have in common.
    sealing: SipHasher24,
    /// Bytes of the journal before the entry of the first unit.
    start: u64,
    /// Bytes of finished units after which the journal is written. A killed run loses about as many
    /// at most.
    batch: u64,
    /// Length of the complete output file in bytes.
    bytes: u64,
}

/// Returns the paths of the unfinished file and of its journal.
fn names(path: &Path) -> [PathBuf; 2] {
    [".part", ".part.journal"].map(|end| {
        let mut whole = OsString::from(".");
        whole.push(path.file_name().unwrap_or_default());
        whole.push(end);
        path.with_file_name(whole)
    })
}

impl Partial {
    /// Opens the unfinished file of an output path, or creates one for an output of `bytes` bytes.
    /// The output consists of a header, which is written last, then `payload`, then `units`.
    /// `source` identifies the inputs of the units, and `secret` is the key of the seals. A killed
    /// run loses about `batch` bytes of units at most.
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
        let max = start.len() as u64 + (units.len() * ENTRY) as u64;
        (&mut journal).take(max).read_to_end(&mut noted).map_err(io(&journal_path))?;
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
                partial.done = partial.packed_weights(noted.get(start.len()..).unwrap_or_default());
                partial.noted = partial.done.len();
                partial.journal.set_len(partial.start + (partial.noted * ENTRY) as u64)?;
                return partial.file.write_all_at(&[0; HEADER_BYTES], 0);
            }
            // The journal is emptied first. A crash must never leave the journal of one file next
            // to the bytes of another.
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

    /// Returns the checksums of the leading units that the journal lists and whose bytes match.
    fn packed_weights(&self, noted: &[u8]) -> Vec<u32> {
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

    /// Returns the CRC-32 of each finished unit.
    pub(super) fn done(&self) -> &[u32] {
        &self.done
    }

    /// Returns the total bytes of the finished units.
    pub(super) fn done_bytes(&self) -> u64 {
        self.units.iter().take(self.done.len()).map(|unit| unit.bytes).sum()
    }

    /// Writes bytes of the units that are not finished yet, at an offset in the file.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.file.write_all_at(bytes, at).map_err(|source| self.error(source))
    }

    /// Records that the next unit is completely written; `crc` is its CRC-32. After each batch,
    /// syncs the file and writes the journal.
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

    /// Writes the bytes after the units and then the header, and renames the file to the output
    /// path.
    pub(super) fn seal(mut self, header: &[u8; HEADER_BYTES], tail: &[u8]) -> Result<(), FileError> {
        let add_checksum = (|| {
            self.note()?;
            self.file.set_len(self.bytes)?;
            self.file.write_all_at(tail, self.bytes - tail.len() as u64)?;
            self.file.sync_data()?;
            self.file.write_all_at(header, 0)
        })();
        add_checksum.map_err(|source| self.error(source))?;
        self.place.take(&self.part, &self.file)?;
        // A journal without its file has no effect. If it cannot be removed, the next run
        // overwrites it.
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

    /// Removes the unfinished file and its journal, so that no other run continues them.
    pub(super) fn discard(self) {
        // The journal is emptied before it is removed: if removing fails, no run continues it.
        let emptied = self.journal.set_len(0).and_then(|()| self.journal.sync_data());
        let removed = [&self.journal_path, &self.part].map(fs::remove_file);
        if let Some(error) = [emptied].into_iter().chain(removed).find_map(Result::err) {
            tracing::debug!(part = %self.part.display(), %error, "cannot remove the unfinished file");
        }
    }

    fn error(&self, source: io::Error) -> FileError {
        let path = self.place.given_path().to_owned();
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

/// Returns the user's secret, or a new random one. If the secret is new, it is not stored, so the
/// next run writes the file from the beginning.
pub(super) fn secret_or_new() -> io::Result<Secret> {
    let anew = "if this run is killed, the next one begins anew";
    match secret() {
        Ok(Some(secret)) => return Ok(secret),
        Ok(None) => tracing::warn!("no folder for a secret that only this user writes to: {anew}"),
        Err(error) => tracing::warn!("the user's secret: {error}: {anew}"),
    }
    Secret::random()
}

/// Opens an unfinished file and locks it for this process.
fn lock(path: &Path) -> io::Result<File> {
    loop {
        let file = open_own(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let why = format!("another process is writing {}", path.display());
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
            // Some file systems do not support locks.
            Err(TryLockError::Error(error)) => tracing::debug!(path = %path.display(), %error, "not locked"),
        }
        // Between opening and locking, another process may have renamed the file to the output
        // path.
        let held = Identity::from_metadata(&file.metadata()?);
        if fs::symlink_metadata(path).is_ok_and(|named| Identity::from_metadata(&named) == held) {
            return Ok(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use ixc_files::{Guard, Output};

    use super::*;

    #[test]
    fn full_disk_is_distinguished_from_other_failures() {
        let folder = std::env::temp_dir().join(format!("ixc-partial-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("plan.ixp");
        let units = vec![Unit { at: 4096, bytes: 10 }, Unit { at: 8192, bytes: 10 }];
        let place = || Output::open(&path, &Guard::default()).unwrap().into_place().unwrap();
        let ours = Secret([1; 16]);
        let mut partial = Partial::open(place(), &ours, b"", b"plan", units, 9000, 1).unwrap();
        partial.write(4096, &[7; 10]).unwrap();
        partial.finish(crc32fast::hash(&[7; 10])).unwrap();
        // On Linux, ENOSPC, EDQUOT and EFBIG (28, 122, 27) are reported as a lack of space; EIO (5)
        // is not.
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
        // A journal that is sealed with another secret is ignored: the file is begun again, with
        // the other secret's seals.
        let theirs = Secret([2; 16]);
        let units = || vec![Unit { at: 4096, bytes: 10 }];
        assert!(Partial::open(place(), &theirs, b"", b"plan", units(), 9000, 1).unwrap().done().is_empty());
        let mut again = Partial::open(place(), &ours, b"", b"plan", units(), 9000, 1).unwrap();
        assert!(again.done().is_empty());
        again.write(4096, &[7; 10]).unwrap();
        again.finish(crc32fast::hash(&[7; 10])).unwrap();
        drop(again);
        // A journal for another plan of the same length is ignored, too.
        assert!(Partial::open(place(), &ours, b"", b"nalp", units(), 9000, 1).unwrap().done().is_empty());
        let other = Partial::open(place(), &ours, b"x", b"plan", vec![Unit { at: 4096, bytes: 10 }], 9000, 1).unwrap();
        assert_eq!((other.done(), fs::metadata(&other.part).unwrap().len()), (&[][..], 52));
        fs::remove_dir_all(&folder).unwrap();
    }
}
