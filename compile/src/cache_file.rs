//! Small files with measurements in the user's cache folder, `$XDG_CACHE_HOME/ixc` or
//! `~/.cache/ixc`.
//!
//! Invariant: a file is written as a whole or not at all. A file with other contents gives an
//! error. The last field of a file is the checksum of all other fields.
//!
//! ```text
//! drive-259-3.json          what `ixc doctor --drive` found of drive 259:3
//! costs-8a1f09c2.json       what `ixc plan` measured of a model
//! ```

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ixc_files::{ReadError, atomic_write, private_files, read_text};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::checksum::{add_checksum, remove_checksum};

/// Max bytes of a file with measurements.
const MAX_BYTES: u64 = 64 << 10;
/// Time for which a measurement is valid. Drives get slower with time, and users change their
/// machines.
const GOOD_FOR: Duration = Duration::from_secs(90 * 24 * 3600);

/// Returns a time as seconds since 1970.
pub fn seconds(now: SystemTime) -> u64 {
    now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Whether a measurement from the time `measured`, in seconds since 1970, is still valid.
pub fn is_recent(measured: u64, now: SystemTime) -> bool {
    seconds(now).checked_sub(measured).is_some_and(|age| age <= GOOD_FOR.as_secs())
}

/// Writes the whole file or nothing. Of two concurrent writes, one wins.
///
/// # Errors
/// The system's error.
pub fn write(path: &Path, what: &impl Serialize) -> io::Result<()> {
    write_bytes(path, add_checksum(&[], &serde_json::to_string(what)?).as_bytes())
}

/// Writes bytes like [`write()`]: the whole file or nothing.
///
/// # Errors
/// The system's error.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    private_files::create_folder(path.parent().unwrap_or(path))?;
    atomic_write(path, bytes).map_err(io::Error::other)
}

/// Reads the file, if it exists.
///
/// # Errors
/// An error in words, if the file cannot be read or has the wrong form.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, String> {
    let text = match read_text(path, MAX_BYTES) {
        Err(ReadError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| error.to_string())?,
    };
    let text = remove_checksum(&[], &text).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map(Some).map_err(|error| error.to_string())
}
