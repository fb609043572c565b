//! Weights locked in memory: the system neither swaps them out nor drops their pages.
//!
//! Experts are not locked where they are streamed or left to the page cache: what of them is in
//! memory changes.

use std::io;

use ixc_failure::Class;
use ixc_ir::units::Bytes;

use crate::memory::Region;

/// Why weights cannot be locked.
#[derive(Debug, thiserror::Error)]
#[error("cannot lock {} of weights in memory: {source}{}", Bytes(*bytes), limit_text(*limit))]
pub struct LockError {
    /// Bytes of all that were to be locked.
    pub bytes: u64,
    /// Limit of locked bytes for this process; `None` for no limit.
    pub limit: Option<u64>,
    /// Error of the system.
    pub source: io::Error,
}

impl LockError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        Class::Unavailable
    }
}

fn limit_text(limit: Option<u64>) -> String {
    limit.map_or(String::new(), |limit| format!("; RLIMIT_MEMLOCK, the most that may be locked, is {}", Bytes(limit)))
}

/// Locks regions, which stay mapped as long as they shall be locked; gives their bytes.
///
/// # Errors
/// [`LockError`] where the system refuses; some of them may be locked then.
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
    // SAFETY: the region is mapped, which its owner sees to; pages around its ends are locked as a
    // whole.
    let refused = unsafe { libc::mlock(region.base().cast_const().cast(), region.bytes() as usize) } != 0;
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(not(target_os = "linux"))]
fn lock_one(_: Region) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns the limit of locked bytes for this process, if there is one.
#[cfg(target_os = "linux")]
fn limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a place for one.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

#[cfg(not(target_os = "linux"))]
fn limit() -> Option<u64> {
    None
}
