//! Landlock rules for files, TCP ports, signals and abstract sockets.
//!
//! There are two layers. The second one is added later and only removes further rights:
//!
//! ```text
//! confine_writes   before threads start: reads anywhere, writes in some folders, executes nothing
//! confine          after loading: reads and writes in some files and folders
//! ```

use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, RestrictSelfAttr,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, Scope,
};

use crate::error::SandboxError;
use crate::support::Support;

/// Version of the Landlock interface that contains all rights of these rules.
const VERSION: ABI = ABI::V7;

/// Files of the system that the engine and its statistics read. They describe memory, processors,
/// control groups and drives, and contain no details of other processes.
const SYSTEM_FILES: [&str; 14] = [
    "/proc/self",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/loadavg",
    "/proc/cpuinfo",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/vm",
    "/sys/devices",
    "/sys/dev/block",
    "/sys/block",
    "/sys/fs/cgroup",
    "/sys/kernel/mm/transparent_hugepage",
    "/sys/kernel/mm/hugepages",
];

/// Files and folders to which a process has access. A folder includes everything in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileAccess {
    /// Paths that the process may read.
    pub read: Vec<PathBuf>,
    /// Paths that the process may read and write.
    pub write: Vec<PathBuf>,
}

/// Limits writes to `folders`. Forbids executing files, using TCP ports, sending signals to other
/// processes, and (unless `has_abstract_sockets` is true) connecting to abstract Unix sockets.
///
/// # Errors
/// If the system refuses a rule. Paths that do not exist are skipped.
pub fn confine_writes(folders: &[PathBuf], has_abstract_sockets: bool) -> Result<(), SandboxError> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_write(VERSION) | AccessFs::Execute)?
        .handle_access(AccessNet::from_all(VERSION))?
        .scope(Scope::Signal)?;
    let ruleset = if has_abstract_sockets { ruleset } else { ruleset.scope(Scope::AbstractUnixSocket)? };
    let mut ruleset = ruleset.create()?;
    for path in folders {
        ruleset = add(ruleset, path, write_rights(path) & AccessFs::from_write(VERSION))?;
    }
    // Unwanted output may be written to it.
    ruleset = add(ruleset, Path::new("/dev/null"), AccessFs::WriteFile.into())?;
    restrict(ruleset)
}

/// Limits reads and writes to the paths of `access`, and to system files that the statistics read.
///
/// # Errors
/// If the system refuses a rule. Paths that do not exist are skipped.
pub fn confine(access: &FileAccess) -> Result<(), SandboxError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(VERSION))?
        .create()?;
    for path in SYSTEM_FILES {
        ruleset = add(ruleset, Path::new(path), read(Path::new(path)))?;
    }
    for path in &access.read {
        ruleset = add(ruleset, path, read(path))?;
    }
    for path in &access.write {
        ruleset = add(ruleset, path, write_rights(path))?;
    }
    restrict(ruleset)
}

/// Limits this process to the files that it has already opened.
///
/// # Errors
/// If the system refuses.
pub fn confine_all() -> Result<(), SandboxError> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(VERSION))?
        .handle_access(AccessNet::from_all(VERSION))?
        .scope(Scope::from_all(VERSION))?
        .create()?;
    restrict(ruleset)
}

/// Returns the rights that are needed for reading a file or folder.
fn read(path: &Path) -> BitFlags<AccessFs> {
    if path.is_dir() { AccessFs::ReadFile | AccessFs::ReadDir } else { AccessFs::ReadFile.into() }
}

/// Returns the rights that are needed for writing a file or folder. They exclude making devices or
/// symbolic links, and executing programs.
fn write_rights(path: &Path) -> BitFlags<AccessFs> {
    let file = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate;
    let folder = AccessFs::ReadDir
        | AccessFs::RemoveDir
        | AccessFs::RemoveFile
        | AccessFs::MakeDir
        | AccessFs::MakeReg
        | AccessFs::Refer;
    if path.is_dir() { file | folder } else { file }
}

/// Adds a rule if the path exists.
fn add(ruleset: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<RulesetCreated, SandboxError> {
    if !path.exists() {
        return Ok(ruleset);
    }
    let open = PathFd::new(path).map_err(|source| SandboxError::Path { source })?;
    // A rule belongs to the file object in the kernel's memory. When memory is short, the kernel
    // discards the objects of files in /proc that no descriptor keeps open.
    if path.starts_with("/proc")
        && let Ok(kept) = open.as_fd().try_clone_to_owned()
    {
        keep_open(kept);
    }
    Ok(ruleset.add_rule(PathBeneath::new(open, access))?)
}

/// Keeps a descriptor open until the process ends.
fn keep_open(descriptor: OwnedFd) {
    let _ = descriptor.into_raw_fd();
}

/// Applies rules to this thread and threads that it starts later, or to all threads if the kernel
/// supports that.
fn restrict(ruleset: RulesetCreated) -> Result<(), SandboxError> {
    let ruleset = if Support::of_kernel().covers_threads() { ruleset.all_threads(true)? } else { ruleset };
    ruleset.restrict_self()?;
    Ok(())
}
