//! Small files in the user's cache folder, `$XDG_CACHE_HOME/ixc` or `~/.cache/ixc`: what was measured here and holds for a while.
//!
//! Invariant: a file is written as a whole or not at all; what is read may be anything, and is an error in words and nothing worse.
//!
//! ```text
//! drive-259-3.json          what `ixc doctor --drive` found of drive 259:3
//! costs-8a1f09c2.json       what `ixc plan` measured of a model
//! ```

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes that such a file has at most.
const MOST_BYTES: u64 = 64 << 10;
/// How long a measurement is good: drives age, machines change.
const GOOD_FOR: Duration = Duration::from_secs(90 * 24 * 3600);

/// The folder, where the user has one.
pub fn folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    Some(base.join("ixc"))
}

/// Seconds since 1970.
pub fn seconds(now: SystemTime) -> u64 {
    now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Whether what was measured then still holds.
pub fn is_recent(measured: u64, now: SystemTime) -> bool {
    seconds(now).checked_sub(measured).is_some_and(|age| age <= GOOD_FOR.as_secs())
}

/// Writes all of it or nothing: of two at once, one is left.
///
/// # Errors
/// What the system says.
pub fn write(path: &Path, what: &impl Serialize) -> io::Result<()> {
    write_bytes(path, serde_json::to_string(what)?.as_bytes())
}

/// As [`write`], bytes.
///
/// # Errors
/// What the system says.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

/// Reads it, if it is there.
///
/// # Errors
/// In words, where it cannot be read or is nothing like what is expected.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, String> {
    // Asked first: opening a pipe waits for a writer.
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
        Ok(facts) if !facts.is_file() => return Err("it is no file".into()),
        Ok(_) => {}
    }
    let mut text = String::new();
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(MOST_BYTES).read_to_string(&mut text).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map(Some).map_err(|error| error.to_string())
}
