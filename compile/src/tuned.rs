//! The file of tuned choices: measured choices that are faster than those derived from cache sizes.
//! `ixc kernel tune` writes the file. Commands that compile a model for the machine on which they
//! run read it.
//!
//! ```text
//! # Writes tuned-TARGET.json in the user's cache folder:
//! ixc kernel tune linear format=q4_k_r16 k=2048 tile=32 n=2048 shape=gemv
//! # Prints "tuned     14 weights by ~/.cache/ixc/tuned-avx2.json":
//! ixc run model.gguf --stats
//! # Reads another file; `none` reads no file:
//! ixc compile model.gguf --tuned other.json
//! ```
//!
//! The file is JSON with a CRC-32. It has the format `ixc-tuned`, version 1, the version of `ixc`,
//! the target, the CPU (or the cost model) of the measurements, and rows. Each row has a choice for
//! weights of one shape, and its measurements.
//!
//! The file is not trusted: every row is checked when it is read. The pass `tile` also checks that
//! each choice is a candidate for its weight.
//!
//! Invariant: the file in the user's folder applies only to code for this machine. A named target
//! therefore gives the same plan on every machine.

use std::path::{Path, PathBuf};

use ixc_files::{ReadError, private_files, read_text};
use ixc_ir::graph::Module;
use ixc_passes::options::{OptionSet, OptionValue};
use ixc_passes::tile::{self, TUNED};
pub use ixc_passes::tuned::WeightKernel;
use ixc_passes::tuned::{TunedChoice, TunedChoices};
use ixc_targets::{CoreCaches, Target};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::build;
use crate::cache_file::write_bytes;
use crate::error::tuned::TunedError;
use crate::machine::features::cpu_name;

/// Name of the format in the file.
const FORMAT: &str = "ixc-tuned";
/// Version of the format.
const VERSION: u64 = 1;
/// Max size of a file in bytes, enough for a few thousand rows.
const MAX_BYTES: u64 = 1 << 20;

/// Contents of a file of tuned tilings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredTuning {
    format: String,
    version: u64,
    /// Version of `ixc` that wrote the file. Kernels of another version may be faster or slower.
    ixc: String,
    target: String,
    by: MeasurementSource,
    rows: Vec<Row>,
    /// CRC-32 of the rows.
    crc32: String,
}

/// Source of the measurements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum MeasurementSource {
    /// Measurements on the CPU with this name.
    Cpu(String),
    /// Predictions of the cost model of the CPU with this name.
    Model(String),
}

/// A choice with the results of its measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Choice, in the text form of [`TunedChoice`].
    pub choice: String,
    /// Tiling that is used without this choice.
    pub instead_of: String,
    /// Speed relative to `instead_of`, with quartiles as bounds.
    pub ratio: Speedup,
}

/// Speed relative to another tiling; more than 1 is faster. In JSON it is the list
/// `[median, low, high]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "[f64; 3]", into = "[f64; 3]")]
pub struct Speedup {
    /// Median of the ratios of all rounds.
    pub median: f64,
    /// Lower bound of the ratio.
    pub low: f64,
    /// Upper bound of the ratio.
    pub high: f64,
}

impl Speedup {
    /// Creates a speed whose bounds equal the median.
    pub fn exact(speed: f64) -> Speedup {
        Speedup { median: speed, low: speed, high: speed }
    }
}

impl From<[f64; 3]> for Speedup {
    fn from(numbers: [f64; 3]) -> Speedup {
        let [median, low, high] = numbers;
        Speedup { median, low, high }
    }
}

impl From<Speedup> for [f64; 3] {
    fn from(Speedup { median, low, high }: Speedup) -> [f64; 3] {
        [median, low, high]
    }
}

/// Tuned choices from a file, with their origin.
#[derive(Clone, Debug, PartialEq)]
pub struct TunedFile {
    /// File with the tuned tilings.
    pub path: PathBuf,
    /// Whether the user named the file. The file in the user's folder applies only to this machine.
    is_named: bool,
    target: String,
    choices: TunedChoices,
}

/// Returns the file for one target in the user's folder.
///
/// # Errors
/// Fails if the user has no such folder.
pub fn own_file(target: Target) -> Result<PathBuf, TunedError> {
    let folder = private_files::folder().ok_or(TunedError::NoFolder)?;
    Ok(folder.join(format!("tuned-{}.json", target.name())))
}

fn crc(rows: &[Row]) -> Result<String, serde_json::Error> {
    Ok(format!("{:08x}", crc32fast::hash(&serde_json::to_vec(rows)?)))
}

/// Reads and checks a file; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<(StoredTuning, TunedChoices)>, Error> {
    let text = match read_text(path, MAX_BYTES) {
        Err(ReadError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let malformed = |problem: String| TunedError::Malformed { path: path.to_owned(), problem };
    let stored: StoredTuning = serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
    if (stored.format.as_str(), stored.version) != (FORMAT, VERSION) {
        let found: String = stored.format.chars().take(32).collect();
        return Err(malformed(format!(
            "its format is {found:?}, version {}; expected {FORMAT}, version {VERSION}",
            stored.version
        ))
        .into());
    }
    let found = crc(&stored.rows).map_err(|error| malformed(error.to_string()))?;
    if found != stored.crc32 {
        let expected = stored.crc32.chars().take(32).collect();
        return Err(TunedError::Checksum { path: path.to_owned(), found, expected }.into());
    }
    let choice = |(at, row): (usize, &Row)| -> Result<TunedChoice, TunedError> {
        row.choice.parse().map_err(|()| TunedError::Row {
            path: path.to_owned(),
            row: at + 1,
            found: row.choice.chars().take(128).collect(),
            expected: TunedChoices::EXPECTED,
        })
    };
    let choices = stored.rows.iter().enumerate().map(choice).collect::<Result<_, _>>()?;
    Ok(Some((stored, TunedChoices(choices))))
}

/// Checks that a file was written for this CPU or cost model, this target and this version.
fn is_of(path: &Path, stored: &StoredTuning, by: &MeasurementSource, target: &str) -> Result<(), TunedError> {
    let other = |key, found: &str, expected: &str| {
        let [found, expected] = [found, expected].map(|text| text.chars().take(64).collect());
        TunedError::Other { path: path.to_owned(), key, found, expected }
    };
    if stored.ixc != build::version() {
        return Err(other("ixc", &stored.ixc, build::version()));
    }
    if stored.target != target {
        return Err(other("target", &stored.target, target));
    }
    match (&stored.by, by) {
        (MeasurementSource::Cpu(found), MeasurementSource::Cpu(expected)) if found != expected => {
            Err(other("the CPU", found, expected))
        }
        (MeasurementSource::Model(found), MeasurementSource::Model(expected)) if found != expected => {
            Err(other("the model of", found, expected))
        }
        (MeasurementSource::Cpu(found), MeasurementSource::Model(expected)) => {
            Err(other("the CPU", found, &format!("the model of {expected}")))
        }
        (MeasurementSource::Model(found), MeasurementSource::Cpu(expected)) => {
            Err(other("the model of", found, &format!("the CPU {expected}")))
        }
        _ => Ok(()),
    }
}

impl TunedFile {
    /// Reads a file that the user named.
    ///
    /// # Errors
    /// Fails if the file is missing or malformed, or was written on another CPU or by another
    /// `ixc`.
    pub fn from_path(path: &Path) -> Result<TunedFile, Error> {
        let Some((stored, choices)) = read(path)? else {
            let source = std::io::ErrorKind::NotFound.into();
            return Err(ReadError::Io { path: path.to_owned(), source }.into());
        };
        let by = match &stored.by {
            MeasurementSource::Cpu(_) => MeasurementSource::Cpu(cpu_name()),
            by @ MeasurementSource::Model(_) => by.clone(),
        };
        is_of(path, &stored, &by, &stored.target)?;
        Ok(TunedFile { path: path.to_owned(), is_named: true, target: stored.target, choices })
    }

    /// Reads the file in the user's folder for this machine. Returns `None` if there is no file, or
    /// if it is not valid here; the reason is logged.
    pub fn of_this_machine() -> Option<TunedFile> {
        let (target, by) = (Target::native(), MeasurementSource::Cpu(cpu_name()));
        let path = own_file(target).ok()?;
        let found = read(&path).and_then(|found| {
            let Some((stored, choices)) = found else { return Ok(None) };
            is_of(&path, &stored, &by, target.name())?;
            Ok(Some(choices))
        });
        match found {
            Ok(choices) => choices.map(|choices| TunedFile {
                path: path.clone(),
                is_named: false,
                target: target.name().to_owned(),
                choices,
            }),
            Err(error) => {
                tracing::warn!(%error, "the file of tuned choices cannot be used and is ignored");
                None
            }
        }
    }

    /// Whether the user named the file.
    pub fn is_named(&self) -> bool {
        self.is_named
    }

    /// Checks that the choices are for the target of a compilation.
    ///
    /// # Errors
    /// Fails if the user named the file, and it is for another target.
    pub fn check(&self, target: Target) -> Result<(), Error> {
        if !self.is_named || self.target == target.name() {
            return Ok(());
        }
        let (path, found) = (self.path.clone(), self.target.clone());
        Err(TunedError::Other { path, key: "target", found, expected: target.name().to_owned() }.into())
    }

    /// Adds the choices to the options of the pass `tile`, for code for `target`. `is_native` is
    /// set if `target` is this machine's default target.
    pub fn tell(&self, options: OptionSet, target: Target, caches: &CoreCaches, is_native: bool) -> OptionSet {
        if self.target != target.name() || !(self.is_named || is_native) {
            return options;
        }
        let mut tile: tile::TileOptions = options.get();
        // A choice that was set by an option overrides a choice of the file.
        let said = std::mem::take(&mut tile.tuned.0);
        let is_said = |choice: &TunedChoice| said.iter().any(|said| said.kernel() == choice.kernel());
        let of_file: Vec<&TunedChoice> = self.choices.0.iter().filter(|choice| !is_said(choice)).collect();
        // The user did not name this file. Choices that are no longer candidates are therefore
        // ignored with a warning.
        let is_taken = |choice: &&&TunedChoice| {
            let of_weight: Vec<&TunedChoice> =
                of_file.iter().copied().filter(|of| of.weight == choice.weight).collect();
            let is_taken = self.is_named || tile::accepts(&choice.weight, &of_weight, target, caches);
            if !is_taken {
                let file = self.path.display();
                tracing::warn!(%file, %choice, "a tuned choice is ignored, because it is no longer a candidate for its weight; `ixc kernel tune` finds a new choice");
            }
            is_taken
        };
        let taken: Vec<TunedChoice> = of_file.iter().filter(is_taken).copied().cloned().collect();
        tile.tuned.0 = taken.into_iter().chain(said).collect();
        options.with(&tile)
    }
}

/// Returns the number of weights in a graph with a measured tiling.
pub fn weights(module: &Module) -> usize {
    let why = module.weights.iter().filter_map(|weight| weight.choice.why.as_deref());
    why.filter(|why| why.starts_with(TUNED)).count()
}

/// A file to which choices are written.
#[derive(Clone, Debug)]
pub struct Place {
    /// Path of the file, which may not exist.
    pub path: PathBuf,
    /// Whether this is the default file in the user's folder. Its contents are replaced if they are
    /// invalid. If the user named a file with other contents, writing fails.
    pub is_own: bool,
}

impl Place {
    /// Checks that the file can be written.
    ///
    /// # Errors
    /// Fails if the user named the file, and it has other contents or was written for other
    /// conditions.
    pub fn check(&self, target: Target, by: &MeasurementSource) -> Result<(), Error> {
        self.read_choices(target, by).map(drop)
    }

    fn read_choices(
        &self,
        target: Target,
        by: &MeasurementSource,
    ) -> Result<Option<(StoredTuning, TunedChoices)>, Error> {
        let held = read(&self.path).and_then(|found| {
            let Some((stored, choices)) = found else { return Ok(None) };
            is_of(&self.path, &stored, by, target.name())?;
            Ok(Some((stored, choices)))
        });
        match held {
            Err(error) if self.is_own && matches!(error, Error::Tuned(_)) => {
                tracing::warn!(%error, "the file of tuned choices cannot be read, and a new file replaces it");
                Ok(None)
            }
            held => held,
        }
    }
}

/// Writes the choice for a kernel of a weight into a file, in place of an earlier choice for this
/// kernel. If there is no faster candidate, only the earlier choice is removed. All other choices
/// stay. The file is written under a temporary name and renamed.
///
/// # Errors
/// See [`Place::check`]. Also fails with the system's error.
pub fn put(
    place: &Place,
    target: Target,
    by: &MeasurementSource,
    kernel: WeightKernel,
    row: Option<Row>,
) -> Result<(), Error> {
    let path = place.path.as_path();
    let mut rows = match place.read_choices(target, by)? {
        Some((stored, choices)) => {
            let is_other = |(_, other): &(Row, &TunedChoice)| other.kernel() != kernel;
            let kept: Vec<Row> =
                stored.rows.iter().cloned().zip(&choices.0).filter(is_other).map(|(row, _)| row).collect();
            if row.is_none() && kept.len() == stored.rows.len() {
                return Ok(());
            }
            kept
        }
        None if row.is_none() => return Ok(()),
        None => Vec::new(),
    };
    rows.extend(row);
    let failed = |error: serde_json::Error| Error::io(path, "write")(error.into());
    let stored = StoredTuning {
        format: FORMAT.to_owned(),
        version: VERSION,
        ixc: build::version().to_owned(),
        target: target.name().to_owned(),
        by: by.clone(),
        crc32: crc(&rows).map_err(failed)?,
        rows,
    };
    let text = serde_json::to_string_pretty(&stored).map_err(failed)? + "\n";
    write_bytes(path, text.as_bytes()).map_err(Error::io(path, "write"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHOICES: [&str; 2] =
        ["q4_k_r16 x=a8_super n=64 k=256: gemv@0/1", "q4_k_r16 x=a8_super n=64 k=256: rows=16 gemm/48"];

    fn named(path: &Path) -> Place {
        Place { path: path.to_owned(), is_own: false }
    }

    fn write_example(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ixc-tuned-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("t.json");
        let _ = std::fs::remove_file(&path);
        for text in CHOICES {
            let choice: TunedChoice = text.parse().unwrap();
            let row = Row {
                choice: text.to_owned(),
                instead_of: "rows=32 gemm/96".to_owned(),
                ratio: [1.5, 1.4, 1.6].into(),
            };
            put(&named(&path), Target::AVX2, &MeasurementSource::Cpu(cpu_name()), choice.kernel(), Some(row)).unwrap();
        }
        path
    }

    #[test]
    fn tuned_choices_round_trip_and_new_ones_replace_old() {
        let path = write_example("back");
        let tuned = TunedFile::from_path(&path).unwrap();
        assert_eq!(tuned.choices.text(), CHOICES.join("; "));
        let other = CHOICES[0].replace("@0/1", "@2048/1");
        let row = Row { choice: other.clone(), instead_of: String::new(), ratio: [2.0, 1.9, 2.1].into() };
        let choice: TunedChoice = other.parse().unwrap();
        let kernel = choice.kernel();
        put(&named(&path), Target::AVX2, &MeasurementSource::Cpu(cpu_name()), kernel, Some(row.clone())).unwrap();
        assert_eq!(TunedFile::from_path(&path).unwrap().choices.text(), [CHOICES[1], &other].join("; "));
        // The choice is removed when no candidate is faster than the default.
        put(&named(&path), Target::AVX2, &MeasurementSource::Cpu(cpu_name()), kernel, None).unwrap();
        assert_eq!(TunedFile::from_path(&path).unwrap().choices.text(), CHOICES[1]);
        put(&named(&path), Target::AVX2, &MeasurementSource::Cpu(cpu_name()), kernel, Some(row)).unwrap();
        // A named file for another target is refused; the file in the user's folder is ignored.
        let caches = Target::AVX2.row().caches();
        assert!(tuned.check(Target::AMX).unwrap_err().to_string().contains("tuned for target avx2; expected amx"));
        assert!(tuned.tell(OptionSet::default(), Target::AMX, &caches, true).is_empty());
        let told = |tuned: &TunedFile, options: OptionSet, is_native: bool| {
            let told: tile::TileOptions = tuned.tell(options, Target::AVX2, &caches, is_native).get();
            told.tuned
        };
        assert_eq!(told(&tuned, OptionSet::default(), false), tuned.choices);
        // A choice in an option overrides that of a file for the same kernel.
        let said = tile::TileOptions { tuned: TunedChoices(vec![choice.clone()]), ..tile::TileOptions::default() };
        let file = TunedFile { choices: TunedChoices(vec![CHOICES[0].parse().unwrap()]), ..tuned.clone() };
        assert_eq!(told(&file, OptionSet::default().with(&said), false), said.tuned);
        // Valid choices of the file in the user's folder apply, and invalid ones are ignored.
        let own = TunedFile { is_named: false, ..tuned };
        assert!(own.check(Target::AMX).is_ok() && told(&own, OptionSet::default(), false).0.is_empty());
        assert_eq!(told(&own, OptionSet::default(), true), own.choices);
        let stale = CHOICES[1].replace("gemm/48", "gemm/47").parse().unwrap();
        let stale = TunedFile { choices: TunedChoices(vec![stale]), ..own.clone() };
        assert!(told(&stale, OptionSet::default(), true).0.is_empty());
        assert_eq!(told(&TunedFile { is_named: true, ..stale.clone() }, OptionSet::default(), true), stale.choices);
        std::fs::write(&path, "{").unwrap();
        let place = Place { path: path.clone(), is_own: true };
        assert!(named(&path).check(Target::AVX2, &MeasurementSource::Cpu(cpu_name())).is_err());
        place.check(Target::AVX2, &MeasurementSource::Cpu(cpu_name())).unwrap();
        let row = Row { choice: CHOICES[0].to_owned(), instead_of: String::new(), ratio: [2.0, 1.9, 2.1].into() };
        put(&place, Target::AVX2, &MeasurementSource::Cpu(cpu_name()), kernel, Some(row)).unwrap();
        assert_eq!(TunedFile::from_path(&path).unwrap().choices.text(), CHOICES[0]);
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn changed_tuned_file_is_refused() {
        let path = write_example("refused");
        let text = std::fs::read_to_string(&path).unwrap();
        let error = |text: &str| {
            std::fs::write(&path, text).unwrap();
            TunedFile::from_path(&path).unwrap_err().to_string()
        };
        assert!(error("").contains("is not a file of tuned choices"));
        assert!(
            error(&text.replace("\"version\": 1", "\"version\": 2"))
                .contains("version 2; expected ixc-tuned, version 1")
        );
        assert!(error(&text.replace("gemm/48", "gemm/24")).contains("the file is damaged"));
        assert!(error(&text.replace("\"rows\"", "\"more\": 1, \"rows\"")).contains("unknown field `more`"));
        assert!(error(&text.replace(&cpu_name(), "other")).contains("was tuned for the CPU other"));
        assert!(error(&text.replace(build::version(), "0.0.0")).contains("was tuned for ixc 0.0.0"));
        // Each row is checked, even if the checksum is correct.
        let mut stored: StoredTuning = serde_json::from_str(&text).unwrap();
        stored.rows[1].choice = "q4_k_r16 x=a8_super n=64 k=256: magic".to_owned();
        stored.crc32 = crc(&stored.rows).unwrap();
        let said = error(&serde_json::to_string(&stored).unwrap());
        assert!(said.contains("row 2 is") && said.contains("expected FORMAT x=FORMAT"), "{said}");
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
        assert!(matches!(TunedFile::from_path(&path), Err(Error::Read(_))));
    }
}
