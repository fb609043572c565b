//! Cache of compiled plans in a folder of the user's, so that the second start of a model compiles
//! nothing.
//!
//! ```text
//! plans/lock                     locked by a process that writes or removes entries
//! plans/0f3a6c1d22e94b7a.ixp     a plan without weights; modified when it is used
//! plans/0f3a6c1d22e94b7a.json    its key and facts about it (`Record`), with a checksum
//! ```
//!
//! A plan has no weights and maps the model's files, so an entry takes about a megabyte. Packed
//! weights would take as much as the model, and their checksums would be read at every start.
//! `docs/cache.md` has measurements.
//!
//! A cache that fails never fails a run: the plan is then compiled, and a warning is logged.
//!
//! Invariant: an entry is complete or absent. The plan is renamed into its place first, and its
//! record last. A reader takes no lock.
//!
//! Invariant: a damaged entry is removed, and never used.

mod key;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ixc_compile::cache_file;
use ixc_files::{atomic_write, open_regular, private_files, space};
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Plan;
use ixc_ir::units::Bytes;
use ixc_runtime::file::{self, FileError};
use serde::{Deserialize, Serialize};

pub use key::{ModelKey, PlanKey, Residency};

/// Default limit of all entries.
pub const DEFAULT_LIMIT: u64 = 1 << 30;
/// Inverse of a share: with the default limit, the entries take at most this share of the drive's
/// free space.
const FREE_PART: u64 = 10;
/// Name of the folder in the user's cache folder.
const FOLDER: &str = "plans";
/// Name of the file that writers lock.
const LOCK: &str = "lock";
/// Digits of an entry's id.
const ID_DIGITS: usize = 16;
/// Extensions of an entry's files: the plan, and its record.
const PLAN: &str = "ixp";
const RECORD: &str = "json";

/// Cache of plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanCache {
    folder: PathBuf,
    /// Max bytes of all entries; `None` is the default.
    limit: Option<u64>,
}

/// Facts about a cached plan, next to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Text of the plan's key.
    key: String,
    /// Path of the model when the plan was compiled.
    pub model: PathBuf,
    /// Architecture of the model.
    pub architecture: String,
    /// Target of the kernels.
    pub target: String,
    /// Whether experts are streamed or read from mapped files.
    pub streamed: bool,
    /// Bytes that all experts take at least.
    pub min_expert_bytes: u64,
    /// Number of weights with a measured tiling.
    pub tuned: usize,
}

impl Record {
    /// Returns the record of a plan of the model at `model`.
    pub fn new(model: &Path, plan: &Plan<Kernel>, min_expert_bytes: u64, tuned: usize) -> Record {
        Record {
            key: String::new(),
            model: std::path::absolute(model).unwrap_or_else(|_| model.to_owned()),
            architecture: plan.architecture.clone(),
            target: plan.target.clone(),
            streamed: !plan.expert_groups.is_empty(),
            min_expert_bytes,
            tuned,
        }
    }
}

/// Entry of the cache.
#[derive(Clone, Debug)]
pub struct CachedPlan {
    /// Name of its files.
    pub id: String,
    /// Facts about the plan; `None` if they are damaged.
    pub record: Option<Record>,
    /// Bytes of its files.
    pub bytes: u64,
    /// Time of its last use.
    pub used: SystemTime,
}

/// Error of a command on the cache.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot {action}: {source}", path.display())]
pub struct CacheError {
    /// The file or folder.
    pub path: PathBuf,
    /// The operation that failed.
    pub action: &'static str,
    /// The system's error.
    pub source: io::Error,
}

impl CacheError {
    fn io(path: &Path, action: &'static str) -> impl Fn(io::Error) -> CacheError {
        move |source| CacheError { path: path.to_owned(), action, source }
    }
}

/// Returns the default folder: `plans` in the user's cache folder, if there is one.
pub fn default_folder() -> Option<PathBuf> {
    Some(private_files::folder()?.join(FOLDER))
}

impl PlanCache {
    /// Returns the cache in a folder, which the first write makes. `limit` is the max number of
    /// bytes of all entries, or `None` for the default.
    pub fn new(folder: PathBuf, limit: Option<u64>) -> PlanCache {
        PlanCache { folder, limit }
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the max bytes of all entries, which now take `taken`. The default is
    /// [`DEFAULT_LIMIT`], but at most a tenth of the space that would be free without entries.
    pub fn limit(&self, taken: u64) -> u64 {
        self.limit.unwrap_or_else(|| match space::free_bytes(&self.folder) {
            Ok(free) => DEFAULT_LIMIT.min(free.saturating_add(taken) / FREE_PART),
            Err(_) => DEFAULT_LIMIT,
        })
    }

    fn path(&self, id: &str, extension: &str) -> PathBuf {
        self.folder.join(id).with_extension(extension)
    }

    /// Returns the record of a plan, if the cache has it. Removes a damaged record. A folder that
    /// others can write to has no plans, because a wrong plan would give wrong texts.
    pub fn find(&self, key: &PlanKey) -> Option<Record> {
        if !self.folder.is_dir() || private_files::private_folder(&self.folder).is_err() {
            return None;
        }
        let id = key.id();
        match cache_file::read::<Record>(&self.path(&id, RECORD)) {
            // An entry of another key may have the same id.
            Ok(record) => record.filter(|record| record.key == key.text()),
            Err(problem) => {
                self.discard(&id, &problem);
                None
            }
        }
    }

    /// Reads a plan whose record was found, and notes its use. Removes a damaged plan.
    pub fn read(&self, key: &PlanKey) -> Option<Plan<Kernel>> {
        let id = key.id();
        let path = self.path(&id, PLAN);
        let opened = match open_regular(&path) {
            // Another process has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            opened => opened,
        };
        let read = || {
            let file = opened.map_err(|source| FileError::Io { path: path.clone(), action: "open", source })?;
            // The user may have no right to write to a shared folder.
            let _ = file.set_modified(SystemTime::now());
            file::of_file(file, &path)
        };
        match read() {
            Ok(file) => {
                tracing::info!(id, "plan read from the cache");
                Some(file.plan)
            }
            Err(error) => {
                self.discard(&id, &error.to_string());
                None
            }
        }
    }

    /// Removes an entry that cannot be read.
    fn discard(&self, id: &str, problem: &str) {
        tracing::warn!("a cached plan cannot be read, and the model is compiled again: {problem}");
        if let Err(error) = self.remove_files(id) {
            tracing::warn!("{error}");
        }
    }

    /// Writes a plan, unless another process has written it. A failure is logged.
    pub fn write(&self, key: &PlanKey, plan: &Plan<Kernel>, record: Record) {
        match self.try_write(key, plan, record) {
            Ok(bytes) => tracing::info!(id = key.id(), bytes, "plan written to the cache"),
            Err(problem) => {
                let folder = self.folder.display();
                tracing::warn!("the plan is not cached in {folder}, and the next start compiles it again: {problem}");
            }
        }
    }

    /// Writes a plan and removes old ones. Returns the number of bytes written.
    fn try_write(&self, key: &PlanKey, plan: &Plan<Kernel>, record: Record) -> Result<u64, String> {
        let bytes = file::encode(plan).map_err(|error| error.to_string())?;
        private_files::private_folder(&self.folder).map_err(|error| error.to_string())?;
        let _lock = self.lock().map_err(|error| error.to_string())?;
        if self.find(key).is_some() && self.path(&key.id(), PLAN).is_file() {
            return Ok(0);
        }
        let (id, record) = (key.id(), Record { key: key.text().to_owned(), ..record });
        let entries = self.list().map_err(|error| error.to_string())?;
        let written = bytes.len() as u64;
        let limit = self.limit(entries.iter().map(|entry| entry.bytes).sum());
        if written > limit {
            let (written, limit) = (Bytes(written), Bytes(limit));
            return Err(format!("the plan takes {written}; the limit of the plan cache is {limit}"));
        }
        // Room is made first: the drive may be full.
        self.shrink(entries, limit.saturating_sub(written)).map_err(|error| error.to_string())?;
        let put = || {
            atomic_write(&self.path(&id, PLAN), &bytes).map_err(|error| error.to_string())?;
            cache_file::write(&self.path(&id, RECORD), &record).map_err(|error| error.to_string())
        };
        if let Err(problem) = put() {
            // A plan without a record cannot be found.
            let _ = self.remove_files(&id);
            return Err(problem);
        }
        // The records take some bytes, too, so entries are removed again. The new entry is the last
        // used one and stays.
        let entries = self.list().map_err(|error| error.to_string())?;
        self.shrink(entries, limit).map_err(|error| error.to_string())?;
        Ok(written)
    }

    /// Locks the folder, waiting for other processes. Closing the file unlocks it.
    fn lock(&self) -> Result<fs::File, CacheError> {
        let path = self.folder.join(LOCK);
        let file = private_files::open_own(&path).map_err(CacheError::io(&path, "open"))?;
        file.lock().map_err(CacheError::io(&path, "lock"))?;
        Ok(file)
    }

    /// Returns all entries, the last used first. A missing folder has none.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn list(&self) -> Result<Vec<CachedPlan>, CacheError> {
        let mut entries: Vec<CachedPlan> = Vec::new();
        for path in self.files()? {
            let Some(id) = plan_id(&path) else { continue };
            // Another process may remove the file meanwhile.
            let Ok(there) = fs::metadata(&path) else { continue };
            let record = self.path(&id, RECORD);
            let record_bytes = fs::metadata(&record).map_or(0, |there| there.len());
            let used = there.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let record = cache_file::read(&record).ok().flatten();
            entries.push(CachedPlan { id, record, bytes: there.len().saturating_add(record_bytes), used });
        }
        entries.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.id.cmp(&b.id)));
        Ok(entries)
    }

    /// Returns the files of the folder.
    fn files(&self) -> Result<Vec<PathBuf>, CacheError> {
        let failed = CacheError::io(&self.folder, "read");
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(&failed)?,
        };
        entries.map(|entry| entry.map(|entry| entry.path()).map_err(&failed)).collect()
    }

    /// Removes entries, by their ids. Returns the number of bytes.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn remove(&self, entries: &[CachedPlan]) -> Result<u64, CacheError> {
        if entries.is_empty() {
            return Ok(0);
        }
        let _lock = self.lock()?;
        entries.iter().try_for_each(|entry| self.remove_files(&entry.id))?;
        Ok(entries.iter().map(|entry| entry.bytes).sum())
    }

    /// Removes damaged entries and remains of killed runs. Then removes the entries that were not
    /// used for the longest time, until the remaining entries are within the limit. Returns the
    /// number of removed entries and of their bytes.
    ///
    /// # Errors
    /// If the folder cannot be read, or a file cannot be removed.
    pub fn collect(&self) -> Result<(usize, u64), CacheError> {
        if !self.folder.is_dir() {
            return Ok((0, 0));
        }
        let _lock = self.lock()?;
        for path in self.files()? {
            if is_remains(&path) {
                remove_file(&path)?;
            }
        }
        let (whole, damaged): (Vec<_>, Vec<_>) = self.list()?.into_iter().partition(|entry| entry.record.is_some());
        damaged.iter().try_for_each(|entry| self.remove_files(&entry.id))?;
        let limit = self.limit(whole.iter().map(|entry| entry.bytes).sum());
        let (count, bytes) = self.shrink(whole, limit)?;
        Ok((count + damaged.len(), bytes + damaged.iter().map(|entry| entry.bytes).sum::<u64>()))
    }

    /// Removes entries from the end of the list until the remaining entries take at most `limit`
    /// bytes.
    fn shrink(&self, mut entries: Vec<CachedPlan>, limit: u64) -> Result<(usize, u64), CacheError> {
        let (mut taken, mut removed) = (entries.iter().map(|entry| entry.bytes).sum::<u64>(), (0, 0));
        while taken > limit {
            let Some(oldest) = entries.pop() else { break };
            self.remove_files(&oldest.id)?;
            taken = taken.saturating_sub(oldest.bytes);
            removed = (removed.0 + 1, removed.1 + oldest.bytes);
        }
        Ok(removed)
    }

    /// Removes the files of an entry. The record goes first: without it, no reader takes the plan.
    fn remove_files(&self, id: &str) -> Result<(), CacheError> {
        [RECORD, PLAN].iter().try_for_each(|extension| remove_file(&self.path(id, extension)))
    }
}

/// Removes a file, if it exists.
fn remove_file(path: &Path) -> Result<(), CacheError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(CacheError::io(path, "remove")),
    }
}

/// Returns whether a name has the form of an entry's id.
fn is_id(name: &str) -> bool {
    name.len() == ID_DIGITS && name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Returns the id of an entry, if a path is that of its plan. Other files in the folder are not
/// ours.
fn plan_id(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.strip_suffix(".ixp")?;
    is_id(name).then(|| name.to_owned())
}

/// Returns whether a killed run left this file: a temporary file of an entry, or a record without a
/// plan.
fn is_remains(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let of_entry = |name: &str| name.split_once('.').is_some_and(|(id, _)| is_id(id));
    let is_temporary = name.strip_suffix(".part").and_then(|name| name.strip_prefix('.')).is_some_and(of_entry);
    let is_alone = name.strip_suffix(".json").is_some_and(is_id) && !path.with_extension(PLAN).exists();
    is_temporary || is_alone
}

#[cfg(test)]
mod tests;
