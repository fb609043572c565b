//! Facts about the system: memory, its limits, huge pages, io_uring, executable memory.

use std::path::{Path, PathBuf};

use ixc_files::read_system;
use serde::Serialize;

/// Availability of a system feature, and the reason if it is unavailable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// Whether the feature works.
    pub available: bool,
    /// Reason, in the system's words.
    pub reason: Option<String>,
}

impl Probe {
    fn of<T>(result: std::io::Result<T>) -> Probe {
        Probe { available: result.is_ok(), reason: result.err().map(|error| error.to_string()) }
    }
}

/// Memory, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Total memory of the machine.
    pub total: Option<u64>,
    /// Part of `total` that is available without swapping.
    pub available: Option<u64>,
    /// The control group's limit, if it has one.
    pub cgroup_limit: Option<u64>,
}

/// Returns the number of bytes that this process's control groups leave: their limits minus their
/// memory in use, without the page cache.
pub fn cgroup_left() -> Option<u64> {
    let number = |path: PathBuf| read_system(&path)?.trim().parse::<u64>().ok();
    let cached = |path: PathBuf, field: &str| {
        let stat = read_system(&path).unwrap_or_default();
        let line = stat.lines().find_map(|line| line.strip_prefix(field)?.trim().parse::<u64>().ok());
        line.unwrap_or(0)
    };
    let unified = cgroups().into_iter().filter_map(|group| {
        let limit = number(group.join("memory.max"))?;
        let used =
            number(group.join("memory.current"))?.saturating_sub(cached(group.join("memory.stat"), "inactive_file "));
        Some(limit.saturating_sub(used))
    });
    let own = Path::new("/sys/fs/cgroup/memory");
    let version_1 = number(own.join("memory.limit_in_bytes")).filter(|&limit| limit < 1 << 62).map(|limit| {
        let used = number(own.join("memory.usage_in_bytes")).unwrap_or(0);
        limit.saturating_sub(used.saturating_sub(cached(own.join("memory.stat"), "total_inactive_file ")))
    });
    unified.chain(version_1).min()
}

/// Returns this process's control group and its parents (version 2).
fn cgroups() -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let groups = read_system(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).map(|group| root.join(group));
    let around =
        |own: PathBuf| own.ancestors().take_while(|path| path.starts_with(root)).map(Path::to_path_buf).collect();
    own.map(around).unwrap_or_default()
}

/// Reads `/proc/meminfo` and the control group's limit.
pub fn memory() -> Memory {
    let meminfo = read_system(Path::new("/proc/meminfo")).unwrap_or_default();
    let field = |name: &str| {
        let rest = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Memory { total: field("MemTotal"), available: field("MemAvailable"), cgroup_limit: cgroup_limit() }
}

/// Returns the smallest `memory.max` from this process's control group up to the root (version 2),
/// or version 1's limit.
fn cgroup_limit() -> Option<u64> {
    let read = |path: &Path| read_system(path)?.trim().parse::<u64>().ok();
    let version_1 = read(Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
    // Version 1 represents "no limit" by the largest multiple of a page.
    cgroups()
        .iter()
        .filter_map(|path| read(&path.join("memory.max")))
        .chain(version_1)
        .filter(|&limit| limit < 1 << 62)
        .min()
}

/// Returns the state of transparent huge pages: `always`, `madvise` or `never`.
pub fn huge_pages() -> Option<String> {
    let state = read_system(Path::new("/sys/kernel/mm/transparent_hugepage/enabled"))?;
    let (_, chosen) = state.split_once('[')?;
    Some(chosen.split_once(']')?.0.to_owned())
}

/// Whether the kernel (and the container's filter) lets a ring be set up.
#[cfg(target_os = "linux")]
pub fn io_uring() -> Probe {
    // `struct io_uring_params` has 120 bytes; zeros request the defaults.
    let mut params = [0u32; 30];
    // SAFETY: the kernel reads and writes 120 bytes at `params`, which has that many and lives
    // until the call returns.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    if ring < 0 {
        return Probe::of(Err::<(), _>(std::io::Error::last_os_error()));
    }
    let descriptor = i32::try_from(ring).unwrap_or(-1);
    // SAFETY: the kernel has just given this descriptor to us, and nothing else owns it.
    drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(descriptor) });
    Probe { available: true, reason: None }
}

/// Whether the kernel allows io_uring.
#[cfg(not(target_os = "linux"))]
pub fn io_uring() -> Probe {
    Probe { available: false, reason: Some("it is a part of Linux".to_owned()) }
}

/// Whether memory that was written may be made executable, as generated code needs.
pub fn executable_memory() -> Probe {
    Probe::of(memmap2::MmapMut::map_anon(4096).and_then(memmap2::MmapMut::make_exec))
}

/// Returns the peak resident memory of this process, mapped files included.
pub fn peak_memory() -> Option<u64> {
    own_memory("VmHWM:")
}

/// Returns the resident memory of this process, mapped files included.
pub fn resident_memory() -> Option<u64> {
    own_memory("VmRSS:")
}

/// Returns a field of this process's status, in bytes.
fn own_memory(field: &str) -> Option<u64> {
    let status = read_system(Path::new("/proc/self/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the page faults of this process that waited for a drive, if the system reports them.
pub fn major_faults() -> Option<u64> {
    let stat = read_system(Path::new("/proc/self/stat"))?;
    // The command's name is in parentheses and may contain anything; `majflt` is the tenth field
    // after it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(9)?.parse().ok()
}
