//! Capabilities and resource limits of this process, and the privileges of programs that it
//! executes.

use std::io;

use crate::error::SandboxError;

/// Version 3 of the interface of `capset`, in which each set has two words.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// Numbers of the capabilities that a process keeps, if it has them.
///
/// A server that runs as root may read models of other users (`CAP_DAC_OVERRIDE`,
/// `CAP_DAC_READ_SEARCH`) and lock memory (`CAP_IPC_LOCK`). Landlock limits which files it can
/// access.
const KEPT: [u32; 3] = [1, 2, 14];

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
struct CapabilityWord {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Removes rights of this process. It can write no core files, cannot raise its limit of
/// descriptors, and gains no privileges from executed programs. The calling thread and threads that
/// it starts later lose capabilities.
///
/// # Errors
/// If the system refuses.
pub fn limit() -> Result<(), SandboxError> {
    keep_no_new_privileges()?;
    lower_limits().map_err(refusal_error("set resource limits"))?;
    drop_capabilities(&KEPT).map_err(refusal_error("drop capabilities"))
}

/// Removes all capabilities of the calling thread and of threads that it starts later.
///
/// # Errors
/// If the system refuses.
pub fn drop_all_capabilities() -> Result<(), SandboxError> {
    keep_no_new_privileges()?;
    drop_capabilities(&[]).map_err(refusal_error("drop capabilities"))
}

fn refusal_error(action: &'static str) -> impl Fn(io::Error) -> SandboxError {
    move |source| SandboxError::Process { action, source }
}

/// Ensures that executed programs gain no privileges.
fn keep_no_new_privileges() -> Result<(), SandboxError> {
    // SAFETY: the call takes only numbers.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if result == 0 { Ok(()) } else { Err(refusal_error("set no_new_privs")(io::Error::last_os_error())) }
}

/// Sets the size limit of core files to zero, because a core file would contain prompts and keys.
/// Sets the maximum for the number of descriptors to the current limit.
fn lower_limits() -> io::Result<()> {
    for (resource, soft) in [(libc::RLIMIT_CORE, Some(0)), (libc::RLIMIT_NOFILE, None)] {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the call writes to `limit`, which outlives it.
        if unsafe { libc::getrlimit(resource, &mut limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
        limit.rlim_cur = soft.map_or(limit.rlim_cur, |soft| limit.rlim_cur.min(soft));
        limit.rlim_max = limit.rlim_cur;
        // SAFETY: the call reads `limit`, which outlives it.
        if unsafe { libc::setrlimit(resource, &limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Removes all capabilities of the calling thread except those with these numbers.
fn drop_capabilities(kept: &[u32]) -> io::Result<()> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let mut words = [CapabilityWord::default(); 2];
    // SAFETY: the call reads the header and writes two words; all of them outlive the call.
    if unsafe { libc::syscall(libc::SYS_capget, &raw const header, words.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let before = words;
    for (index, word) in words.iter_mut().enumerate() {
        let mask = kept.iter().filter(|number| **number as usize / 32 == index);
        let mask = mask.fold(0, |mask, number| mask | 1 << (number % 32));
        word.effective &= mask;
        word.permitted &= mask;
        word.inheritable = 0;
    }
    // The filters of a service manager may refuse `capset`, but such managers also leave no
    // capabilities.
    if words == before {
        return Ok(());
    }
    // SAFETY: the call reads the header and two words; all of them outlive the call.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, words.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
