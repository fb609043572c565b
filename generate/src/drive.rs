//! Speed of a model's drive, and the best number of reads in flight. `ixc doctor --drive` measures
//! both thoroughly and stores them; otherwise a short measurement precedes a run.
//!
//! Each drive has a small file in the user's cache folder (`cache_file`), named by the device
//! number. Device numbers can change, so the file also holds the drive's name, model and length.
//! Implausible entries are ignored and reported.
//!
//! Invariant: nothing here writes to the measured drive. No failure here fails a run, which then
//! uses the default depth.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ixc_files::private_files;
use ixc_runtime::streaming::affinity::{self, Place};
use ixc_runtime::streaming::drive::DriveOptions;
use ixc_runtime::streaming::probe::{self, Probe, ProbeOptions};
use ixc_runtime::streaming::store::CHUNK;
use serde::{Deserialize, Serialize};

use ixc_compile::cache_file;

use crate::Error;

/// Min size of a measured file: a smaller file would be in the drive's internal cache after a few
/// reads.
const MIN_FILE_BYTES: u64 = 64 << 20;
/// Version of the stored results.
const VERSION: u32 = 1;
/// Max plausible rate, in bytes per second.
const MAX_RATE: f64 = 1e12;

/// Result of measuring a drive.
#[derive(Debug)]
pub struct DriveMeasurement {
    /// File that was read.
    pub file: PathBuf,
    /// The drive, as the system describes it.
    pub place: Option<Place>,
    /// Rates by number of reads in flight, and the number to use.
    pub probe: Probe,
    /// File with the stored result, or the reason that it was not stored.
    pub stored: Result<PathBuf, String>,
}

impl DriveMeasurement {
    /// Returns notes about problems of the measurement and about the file of the stored result.
    pub fn notes(&self) -> Vec<String> {
        let stored = match &self.stored {
            Ok(path) => format!("remembered in {}", path.display()),
            Err(why) => format!("not saved: {why}"),
        };
        self.probe.notes.iter().cloned().chain([stored]).collect()
    }
}

/// Measures the drive of a file (or of the largest file in a folder), in a few seconds, and stores
/// the result.
///
/// # Errors
/// When the file is missing, too small, or cannot be read.
pub fn measure(path: &Path) -> Result<DriveMeasurement, Error> {
    let file = largest_file(path)?;
    let probe =
        probe::file(&file, &ProbeOptions::thorough()).map_err(|source| Error::Drive { source: Box::new(source) })?;
    let place = affinity::place(&file);
    let stored = match (&place, private_files::folder(), probe.direct) {
        (_, _, false) => Err("the file was read through the page cache".into()),
        (None, ..) => Err("the file is not on a block device".into()),
        (_, None, _) => Err("there is no folder for the measurement: neither XDG_CACHE_HOME nor HOME is set".into()),
        (Some(place), Some(folder), true) => {
            let path = entry_path(&folder, place);
            cache_file::write(&path, &Entry::from_probe(place, &probe))
                .map(|()| path.clone())
                .map_err(|e| format!("{}: {e}", path.display()))
        }
    };
    Ok(DriveMeasurement { file, place, probe, stored })
}

/// Returns the file itself, or the largest in a folder, if it is large enough.
fn largest_file(path: &Path) -> Result<PathBuf, Error> {
    let length = |path: &Path| fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|data| data.len());
    let facts = fs::metadata(path).map_err(Error::io(path, "measure"))?;
    let file = if facts.is_dir() {
        let files = fs::read_dir(path).map_err(Error::io(path, "read"))?.flatten().map(|entry| entry.path());
        files.filter_map(|path| Some((length(&path)?, path))).max().map(|(_, path)| path)
    } else {
        Some(path.to_owned())
    };
    let bytes = file.as_deref().and_then(length).unwrap_or(0);
    match file.filter(|_| bytes >= MIN_FILE_BYTES) {
        Some(file) => Ok(file),
        None => Err(Error::SmallDrive { path: path.to_owned(), bytes, needed: MIN_FILE_BYTES }),
    }
}

/// Number of reads of streamed experts in flight, and its origin.
#[derive(Clone, Debug)]
pub struct QueueDepth {
    /// File that experts are read from.
    pub file: PathBuf,
    /// Reads in flight.
    pub depth: usize,
    /// Reason for this number of reads in flight.
    pub origin: DepthOrigin,
    /// The drive's rate in bytes per second with this many reads of [`CHUNK`] bytes, if known.
    pub rate: Option<f64>,
    /// Problems of the measurement.
    pub notes: Vec<String>,
}

/// Origin of the number of reads in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DepthOrigin {
    /// The user's option.
    Request,
    /// A measurement by an earlier `ixc doctor --drive`.
    StoredMeasurement,
    /// A short measurement before this run.
    QuickMeasurement,
    /// The default number, without a measurement.
    Default,
}

impl QueueDepth {
    /// Measures the drive's current rate in bytes per second, with this number of reads in flight,
    /// for about `time`. `None` if the file is too small or cannot be read.
    pub fn rate_now(&self, time: Duration) -> Option<f64> {
        self.rate_of(1, time)
    }

    /// Returns a copy for the same drive with another number of reads in flight.
    pub fn with_depth(&self, depth: usize) -> QueueDepth {
        QueueDepth { depth, ..self.clone() }
    }

    /// Measures the rate like [`QueueDepth::rate_now`], with `together` adjacent reads at a time.
    pub fn rate_of(&self, together: u32, time: Duration) -> Option<f64> {
        let probe =
            probe::file(&self.file, &ProbeOptions { adjacent_reads: together, ..ProbeOptions::at(self.depth, time) })
                .ok()?;
        (probe.direct && probe.rate() > 0.0).then(|| probe.rate())
    }
}

/// Chooses the number of reads in flight for a file's drive: the requested one, the stored one, or
/// the result of a measurement. A measurement takes a quarter of a second.
pub fn choose(file: &Path, requested: Option<usize>) -> QueueDepth {
    choose_with_entry(read_entry(file), file, requested)
}

fn choose_with_entry(stored: Result<Option<Entry>, String>, file: &Path, requested: Option<usize>) -> QueueDepth {
    let (stored, mut notes) = match stored {
        Ok(entry) => (entry, Vec::new()),
        Err(note) => (None, vec![note]),
    };
    let choice = |depth, origin, rate, notes| QueueDepth { file: file.to_owned(), depth, origin, rate, notes };
    if let Some(depth) = requested {
        let rate = stored.and_then(|entry| entry.rate(depth));
        return choice(depth, DepthOrigin::Request, rate, notes);
    }
    if let Some(entry) = stored {
        return choice(entry.depth, DepthOrigin::StoredMeasurement, entry.rate(entry.depth), notes);
    }
    let default_depth = DriveOptions::default().depth;
    if fs::metadata(file).map_or(0, |facts| facts.len()) < MIN_FILE_BYTES {
        return choice(default_depth, DepthOrigin::Default, None, notes);
    }
    match probe::file(file, &ProbeOptions::quick()) {
        // Only direct reads count: reads through the page cache do not measure the drive.
        Ok(probe) if probe.direct => {
            // If nothing was read in this short time, the rate is unknown: a rate of 0 would cause
            // a division by zero.
            let rate = Some(probe.rate()).filter(|rate| *rate > 0.0);
            choice(probe.depth, DepthOrigin::QuickMeasurement, rate, notes)
        }
        Ok(_) => choice(default_depth, DepthOrigin::Default, None, notes),
        Err(error) => {
            notes.push(format!("the drive was not measured: {error}"));
            choice(default_depth, DepthOrigin::Default, None, notes)
        }
    }
}

/// Returns the stored entry of a file's drive. `Ok(None)` without an entry; the error is a note
/// about an implausible entry.
fn read_entry(file: &Path) -> Result<Option<Entry>, String> {
    let (Some(place), Some(folder)) = (affinity::place(file), private_files::folder()) else { return Ok(None) };
    let path = entry_path(&folder, &place);
    Entry::read(&path, &place, SystemTime::now()).map_err(|why| format!("{} is ignored: {why}", path.display()))
}

fn entry_path(folder: &Path, place: &Place) -> PathBuf {
    folder.join(format!("drive-{}.json", place.number.replace(':', "-")))
}

/// Stored measurement of a drive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    version: u32,
    /// The drive's name, model and length.
    drive: String,
    /// Seconds since 1970.
    measured: u64,
    /// Bytes of a read.
    chunk: u64,
    backend: String,
    /// Number of reads in flight to use.
    depth: usize,
    /// Numbers of reads in flight, each with its rate in bytes per second.
    rates: Vec<(usize, f64)>,
}

impl Entry {
    fn from_probe(place: &Place, probe: &Probe) -> Entry {
        Entry {
            version: VERSION,
            drive: name(place),
            measured: cache_file::seconds(SystemTime::now()),
            chunk: probe.chunk,
            backend: probe.backend.clone(),
            depth: probe.depth,
            // A number of reads in flight that was not measured has no rate.
            rates: probe.rates.iter().map(|rate| (rate.depth, rate.median)).filter(|(_, rate)| *rate > 0.0).collect(),
        }
    }

    fn rate(&self, depth: usize) -> Option<f64> {
        self.rates.iter().find(|(of, _)| *of == depth).map(|(_, rate)| *rate)
    }

    fn read(path: &Path, place: &Place, now: SystemTime) -> Result<Option<Entry>, String> {
        let Some(entry) = cache_file::read::<Entry>(path)? else { return Ok(None) };
        let is_rate = |&(depth, rate): &(usize, f64)| (1..=1024).contains(&depth) && rate > 0.0 && rate < MAX_RATE;
        if entry.version != VERSION {
            return Err(format!("it has version {}, not {VERSION}", entry.version));
        }
        if !(1..=1024).contains(&entry.depth) {
            return Err(format!("its depth is {}; expected 1 to 1024", entry.depth));
        }
        if !entry.rates.iter().all(is_rate) {
            return Err("its rates are too low or too high for a drive".into());
        }
        // An entry of another drive, for another read size, or an expired one is ignored without an
        // error.
        let good = entry.drive == name(place) && entry.chunk == CHUNK && cache_file::is_recent(entry.measured, now);
        Ok(good.then_some(entry))
    }
}

fn name(place: &Place) -> String {
    let bytes = place.bytes.map_or(String::new(), |bytes| bytes.to_string());
    format!("{} {} {bytes}", place.name, place.model.as_deref().unwrap_or(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_runtime::streaming::probe::Rate;

    fn place() -> Place {
        Place { number: "259:3".into(), name: "nvme0n1p2".into(), bytes: Some(1 << 40), ..Place::default() }
    }

    fn probe() -> Probe {
        let rate = |depth, median| Rate { depth, median, lowest: median, highest: median, samples: 9 };
        Probe {
            chunk: CHUNK,
            backend: "io_uring".into(),
            direct: true,
            notes: Vec::new(),
            rates: vec![rate(8, 1e9), rate(16, 2e9)],
            depth: 16,
        }
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ixc-drive-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn cached_drive_measurement_expires_and_is_per_drive() {
        let folder = folder("entry");
        let path = entry_path(&folder, &place());
        let entry = Entry::from_probe(&place(), &probe());
        let now = SystemTime::now();
        assert_eq!(Entry::read(&path, &place(), now), Ok(None));
        cache_file::write(&path, &entry).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        assert_eq!(Entry::read(&path, &place(), now), Ok(Some(entry.clone())));
        assert_eq!((entry.rate(16), entry.rate(4)), (Some(2e9), None));
        assert_eq!(Entry::read(&path, &Place { bytes: Some(1 << 39), ..place() }, now), Ok(None));
        assert_eq!(Entry::read(&path, &place(), now + Duration::from_secs(180 * 24 * 3600)), Ok(None));
        assert_eq!(Entry::read(&path, &place(), now - Duration::from_secs(3600)), Ok(None));
        cache_file::write(&path, &Entry { chunk: 4096, ..entry }).unwrap();
        assert_eq!(Entry::read(&path, &place(), now), Ok(None));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn implausible_drive_cache_is_ignored_with_a_warning() {
        let folder = folder("hostile");
        let path = entry_path(&folder, &place());
        let entry = Entry::from_probe(&place(), &probe());
        let good = serde_json::to_string(&entry).unwrap();
        let changes = [
            ("{", "missing field"),
            ("", "expected value"),
            (&*good.replace("\"depth\":16", "\"depth\":0"), "its depth is 0"),
            (&*good.replace("\"depth\":16", "\"depth\":-1"), "invalid value"),
            (&*good.replace("\"depth\":16", "\"depth\":99999999"), "its depth is 99999999"),
            (&*good.replace("2000000000.0", "-1.0"), "its rates are too low or too high for a drive"),
            (&*good.replace("2000000000.0", "1e300"), "its rates are too low or too high for a drive"),
            (&*good.replace("2000000000.0", "0.0"), "its rates are too low or too high for a drive"),
            (&*good.replace("\"version\":1", "\"version\":2"), "version 2, not 1"),
            (&*"[".repeat(1 << 15), "line 1 column 1"),
            (&*"[".repeat(1 << 20), "has more than 65536 bytes"),
        ];
        fs::create_dir_all(&folder).unwrap();
        for (text, right) in changes {
            assert_ne!(text, good);
            fs::write(&path, ixc_compile::checksum::add_checksum(&[], text)).unwrap();
            let error = Entry::read(&path, &place(), SystemTime::now()).unwrap_err();
            assert!(error.contains(right), "{error}; {right} is right");
        }
        for (text, right) in [("", "no checksum"), (&*good, "no checksum"), (&*"[".repeat(1 << 20), "65536 bytes")] {
            fs::write(&path, text).unwrap();
            let error = Entry::read(&path, &place(), SystemTime::now()).unwrap_err();
            assert!(error.contains(right), "{error}; {right} is right");
        }
        fs::write(&path, b"\xff\xfe").unwrap();
        assert!(Entry::read(&path, &place(), SystemTime::now()).is_err());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = Entry::read(&path, &place(), SystemTime::now()).unwrap_err();
        assert!(error.contains("it is a folder, not a regular file"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn small_files_do_not_measure_a_drive() {
        let folder = folder("small");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("a"), [0; 100]).unwrap();
        fs::write(folder.join("b"), [0; 200]).unwrap();
        let error = measure(&folder).unwrap_err();
        assert_eq!(error.class(), crate::error::Class::Data);
        assert!(error.to_string().contains("has 200 B"), "{error}");
        assert_eq!(measure(&folder.join("c")).unwrap_err().class(), crate::error::Class::NoInput);
        let choose = |requested| choose_with_entry(Ok(None), &folder.join("a"), requested);
        let choice = choose(None);
        assert_eq!(
            (choice.depth, choice.origin, choice.rate),
            (DriveOptions::default().depth, DepthOrigin::Default, None)
        );
        assert_eq!(choose(Some(7)).depth, 7);
        fs::remove_dir_all(&folder).unwrap();
    }
}
