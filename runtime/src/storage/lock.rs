//! Locking of weights in memory, so that the system neither swaps them out nor drops their pages.
//!
//! Experts that are streamed or in mapped files are not locked, because the set of experts in
//! memory changes.

use std::io;

use ixc_failure::Class;
use ixc_ir::units::Bytes;

use crate::storage::memory::Region;

/// Error for weights that could not be locked in memory.
#[derive(Debug, thiserror::Error)]
#[error("cannot lock {} of weights in memory: {source}{}", Bytes(*bytes), limit_text(*limit))]
pub struct LockError {
    /// Bytes of all weights that should be locked.
    pub bytes: u64,
    /// Limit of locked bytes for this process; `None` if it is unlimited.
    pub limit: Option<u64>,
    /// Error of the system.
    pub source: io::Error,
}

impl LockError {
    /// Returns the class of the failure.
    pub fn class(&self) -> Class {
        Class::Unavailable
    }
}

fn limit_text(limit: Option<u64>) -> String {
    limit.map_or(String::new(), |limit| format!("; the limit on locked memory (RLIMIT_MEMLOCK) is {}", Bytes(limit)))
}

/// Locks regions in memory, and returns their total bytes. The caller keeps the regions mapped as
/// long as they should be locked.
///
/// # Errors
/// [`LockError`] if the system refuses. Some of the regions may then be locked.
pub(crate) fn lock(regions: &[Region]) -> Result<u64, LockError> {
    let bytes = regions.iter().map(|region| region.bytes()).fold(0, u64::saturating_add);
    for region in regions.iter().filter(|region| region.bytes() > 0) {
        lock_one(*region).map_err(|source| LockError { bytes, limit: limit(), source })?;
    }
    tracing::info!(bytes, "weights locked in memory");
    Ok(bytes)
}

#[cfg(target_os = "linux")]
fn lock_one(region: Region) -> io::Result<()> {
    // SAFETY: the owner keeps the region mapped. The system locks the whole pages at its ends.
    let refused = unsafe { libc::mlock(region.base().cast_const().cast(), region.bytes() as usize) } != 0;
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(not(target_os = "linux"))]
fn lock_one(_: Region) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns the limit of locked bytes for this process; `None` if it is unlimited or unknown.
#[cfg(target_os = "linux")]
fn limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid memory for the call's result.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

#[cfg(not(target_os = "linux"))]
fn limit() -> Option<u64> {
    None
}
