//! Properties of the system: memory and its limits, huge pages, io_uring, executable memory.

use std::path::{Path, PathBuf};

use ixc_files::read_system;
use serde::Serialize;

/// Availability of a system feature, and the reason if it is unavailable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// Whether the feature works.
    pub available: bool,
    /// Reason why the feature does not work, in the system's words.
    pub reason: Option<String>,
}

impl Probe {
    fn from_result<T>(result: std::io::Result<T>) -> Probe {
        Probe { available: result.is_ok(), reason: result.err().map(|error| error.to_string()) }
    }
}

/// Sizes of this machine's memory and the limit on its use, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Total memory of the machine.
    pub total: Option<u64>,
    /// Part of `total` that is available without swapping.
    pub available: Option<u64>,
    /// The control group's limit, if it has one.
    pub cgroup_limit: Option<u64>,
}

/// Memory of a control group, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GroupMemory {
    /// The group's limit.
    limit: u64,
    /// Memory in use, without the part of the page cache that the kernel frees on demand.
    used: u64,
}

/// Version of control groups: its place in the file system and the names of its files.
struct GroupVersion {
    /// Folder of the root group, relative to `/sys/fs/cgroup`.
    root: &'static str,
    /// Controller that identifies the groups in `/proc/self/cgroup`. Version 2 names none.
    controller: &'static str,
    limit: &'static str,
    used: &'static str,
    /// Field of `memory.stat` with the part of the page cache that the kernel frees first.
    cached: &'static str,
}

const GROUP_VERSIONS: [GroupVersion; 2] = [
    GroupVersion { root: "", controller: "", limit: "memory.max", used: "memory.current", cached: "inactive_file " },
    GroupVersion {
        root: "memory",
        controller: "memory",
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        cached: "total_inactive_file ",
    },
];

impl GroupVersion {
    /// Returns this process's group and all groups around it. `own` is the text of
    /// `/proc/self/cgroup`, with lines `ID:CONTROLLERS:PATH`. The root is always included, because
    /// a container may show its own group at the root while the path is that of the host.
    fn groups(&self, files: &Path, own: &str) -> Vec<PathBuf> {
        let root = files.join(self.root);
        let path = own.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers.split(',').any(|name| name == self.controller).then_some(path)
        });
        let group = root.join(path.unwrap_or_default().trim_start_matches('/'));
        group.ancestors().take_while(|group| group.starts_with(&root)).map(Path::to_path_buf).collect()
    }

    /// Returns the memory of a group; `None` if the group has no limit.
    fn memory(&self, group: &Path) -> Option<GroupMemory> {
        let number = |name: &str| read_system(&group.join(name))?.trim().parse::<u64>().ok();
        // Version 1 represents "no limit" by the largest multiple of a page.
        let limit = number(self.limit).filter(|&limit| limit < 1 << 62)?;
        let stat = read_system(&group.join("memory.stat")).unwrap_or_default();
        let cached = stat.lines().find_map(|line| line.strip_prefix(self.cached)?.trim().parse::<u64>().ok());
        let used = number(self.used).unwrap_or(0).saturating_sub(cached.unwrap_or(0));
        Some(GroupMemory { limit, used })
    }
}

/// Returns the memory of those groups around a process that have a limit. `files` is
/// `/sys/fs/cgroup`, and `own` the text of `/proc/self/cgroup`.
fn limited_groups(files: &Path, own: &str) -> Vec<GroupMemory> {
    let groups = GROUP_VERSIONS
        .iter()
        .flat_map(|version| version.groups(files, own).into_iter().filter_map(|group| version.memory(&group)));
    groups.collect()
}

/// Returns the memory of those groups around this process that have a limit.
fn own_groups() -> Vec<GroupMemory> {
    let own = read_system(Path::new("/proc/self/cgroup")).unwrap_or_default();
    limited_groups(Path::new("/sys/fs/cgroup"), &own)
}

/// Returns the smallest number of bytes that this process may still use in its control groups:
/// limit minus memory in use, without the page cache.
pub fn cgroup_left() -> Option<u64> {
    own_groups().iter().map(|group| group.limit.saturating_sub(group.used)).min()
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
/// or the limit of version 1.
fn cgroup_limit() -> Option<u64> {
    own_groups().iter().map(|group| group.limit).min()
}

/// Returns the state of transparent huge pages: `always`, `madvise` or `never`.
pub fn huge_pages() -> Option<String> {
    let state = read_system(Path::new("/sys/kernel/mm/transparent_hugepage/enabled"))?;
    let (_, chosen) = state.split_once('[')?;
    Some(chosen.split_once(']')?.0.to_owned())
}

/// Whether the kernel, and the container's system-call filter, allow a ring to be set up.
#[cfg(target_os = "linux")]
pub fn io_uring() -> Probe {
    // `struct io_uring_params` has 120 bytes; zeros request the defaults.
    let mut params = [0u32; 30];
    // SAFETY: the kernel reads and writes 120 bytes at `params`, which has that many and lives
    // until the call returns.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    if ring < 0 {
        return Probe::from_result(Err::<(), _>(std::io::Error::last_os_error()));
    }
    let descriptor = i32::try_from(ring).unwrap_or(-1);
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(descriptor) });
    Probe { available: true, reason: None }
}

/// Whether the kernel allows io_uring.
#[cfg(not(target_os = "linux"))]
pub fn io_uring() -> Probe {
    Probe { available: false, reason: Some("io_uring exists only in Linux".to_owned()) }
}

/// Whether memory that was written may be made executable, as generated code needs.
pub fn executable_memory() -> Probe {
    Probe::from_result(memmap2::MmapMut::map_anon(4096).and_then(memmap2::MmapMut::make_exec))
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Writes a group's files below a folder.
    fn group(files: &Path, path: &str, contents: &[(&str, &str)]) {
        let folder = files.join(path);
        fs::create_dir_all(&folder).unwrap();
        contents.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
    }

    #[test]
    fn limits_of_nested_groups_of_both_versions_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let files = folder.path();
        let unlimited = ("memory.limit_in_bytes", "9223372036854771712\n");
        group(files, "memory", &[unlimited, ("memory.usage_in_bytes", "70000\n")]);
        let stat = "cache 900\ntotal_inactive_file 300\n";
        let limited = [("memory.limit_in_bytes", "5000\n"), ("memory.usage_in_bytes", "1000\n"), ("memory.stat", stat)];
        group(files, "memory/user/job", &limited);
        group(files, "memory/user", &[unlimited]);
        group(
            files,
            "a",
            &[("memory.max", "4000\n"), ("memory.current", "500\n"), ("memory.stat", "inactive_file 100\n")],
        );
        group(files, "a/b", &[("memory.max", "max\n"), ("memory.current", "500\n")]);

        let job = GroupMemory { limit: 5000, used: 700 };
        let version_1 = "9:name=systemd:/\n4:cpuset,memory:/user/job\n0::/\n";
        assert_eq!(limited_groups(files, version_1), [job]);
        assert!(limited_groups(files, "4:memory:/user\n").is_empty());
        let version_2 = GroupMemory { limit: 4000, used: 400 };
        assert_eq!(limited_groups(files, "0::/a/b\n"), [version_2]);
        assert_eq!(limited_groups(files, "4:memory:/user/job\n0::/a\n"), [version_2, job]);
    }

    #[test]
    fn container_without_its_own_names_has_the_limit_of_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let files = folder.path();
        group(files, "memory", &[("memory.limit_in_bytes", "5000\n"), ("memory.usage_in_bytes", "100\n")]);
        let expected = GroupMemory { limit: 5000, used: 100 };
        assert_eq!(limited_groups(files, "4:memory:/docker/0123\n"), [expected]);
        assert_eq!(limited_groups(files, ""), [expected]);
    }
}
