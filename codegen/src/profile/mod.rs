//! Profiles of generated code: names of kernels for profilers and debuggers outside this process.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`perf_map`] | `/tmp/perf-PID.map`: address and name of each kernel |
//! | [`jitdump`] | the input of `perf inject --jit`: code, lines of IR, unwind tables |
//! | [`gdb`] | gdb's JIT interface: an in-memory ELF file for each module |
//! | `elf`, `dwarf`, `unwind` | the ELF file; its lines of IR; tables to find a kernel's caller |
//! | `sources` | IR as source files, for tools that show lines |
//!
//! Profiles belong to the process and last as long as the process. Call [`enable`] once, before
//! code is generated. After that, every [`Module`](crate::module::Module) adds its kernels and
//! their addresses. Kernels keep no frame pointer, so call graphs need the unwind tables:
//! `perf record --call-graph dwarf`.
//!
//! Invariant: without profiles, no file is written. Profiles change only the distance between
//! kernels, not their code.

pub mod gdb;
pub mod jitdump;
pub mod perf_map;

mod dwarf;
mod elf;
mod sources;
mod unwind;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use ixc_failure::Class;
use ixc_ir::kernel::Kernel;
use ixc_ir::kernel::print::statement_lines;

use crate::artifact::Artifact;

/// Selection of the profiles to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profiles {
    /// Whether to write the map that `perf report` reads after the process has ended.
    pub map: bool,
    /// Whether to write the input of `perf inject --jit`: `jit-PID.dump` in the folder, and IR in
    /// `jit-PID.ix` there.
    pub jitdump: bool,
    /// Whether to register kernels with gdb; their IR goes to `jit-PID.ix`, too.
    pub gdb: bool,
    /// Folder for the jitdump file and the IR.
    pub folder: PathBuf,
}

/// Reasons why profiles could not be enabled or written.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// A system call failed.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// Profile that was read or written.
        path: PathBuf,
        /// The action that failed, as text.
        action: &'static str,
        /// The system's error for this action.
        source: io::Error,
    },
    /// Profiles are already enabled with other settings.
    #[error("profiles are already enabled with other settings in this process")]
    Twice,
}

impl ProfileError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            ProfileError::Twice => Class::Usage,
            ProfileError::Io { .. } => Class::Io,
        }
    }
}

fn io_error(path: &Path, action: &'static str) -> impl Fn(io::Error) -> ProfileError {
    let path = path.to_owned();
    move |source| ProfileError::Io { path: path.clone(), action, source }
}

/// A kernel and its address in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedKernel<'m> {
    /// The kernel's IR.
    pub kernel: &'m Kernel,
    /// The kernel's code.
    pub artifact: &'m Artifact,
    /// Address of the first instruction.
    pub address: u64,
}

impl PlacedKernel<'_> {
    fn code(&self) -> &[u8] {
        code(self.artifact)
    }
}

/// Returns the instructions without padding and constants.
fn code(artifact: &Artifact) -> &[u8] {
    match artifact {
        Artifact::X64(compiled) => &compiled.code[..compiled.code_bytes],
        Artifact::Portable(code) => &code.bytes[..code.code_bytes],
    }
}

/// Returns code offsets and lines of IR: one pair at each offset where the line changes.
/// Instructions without a statement, such as frame setup, get the kernel's first line.
fn lines(placed: &PlacedKernel<'_>) -> Vec<(u32, u32)> {
    let of_statement = statement_lines(placed.kernel);
    let mut lines: Vec<(u32, u32)> = Vec::new();
    for line in placed.artifact.lines() {
        let at = line.origin.and_then(|origin| of_statement.get(origin as usize)).map_or(1, |line| line + 1);
        if lines.last().is_none_or(|(_, last)| *last != at) {
            lines.push((line.offset, at));
        }
    }
    lines
}

/// Returns the number of bytes to reserve for a kernel. With a jitdump, perf maps the code followed
/// by its unwind tables. If the mappings of two kernels overlap, perf sees only the later one.
/// Without a jitdump, returns 0.
pub(crate) fn room(artifact: &Artifact) -> usize {
    match PROFILES.get().is_some_and(|kept| kept.profiles.jitdump) {
        true => code(artifact).len().next_multiple_of(8) + unwind::eh_frame(code(artifact)).0.len(),
        false => 0,
    }
}

/// A kernel with its name in profiles. If code is generated again for the same name, the name gets
/// a number.
struct NamedKernel<'m> {
    name: String,
    placed: PlacedKernel<'m>,
}

#[derive(Debug)]
struct OpenProfiles {
    profiles: Profiles,
    open: Mutex<ProfileFiles>,
}

#[derive(Debug, Default)]
struct ProfileFiles {
    map: Option<perf_map::PerfMap>,
    jitdump: Option<jitdump::JitDump>,
    sources: Option<sources::Sources>,
    /// Number of kernels added so far with each name.
    names: HashMap<String, u32>,
}

static PROFILES: OnceLock<OpenProfiles> = OnceLock::new();

/// Starts profiles of all modules that are compiled from now on. Returns `true` if this call
/// started them. Repeating the call with the same settings has no effect.
///
/// # Errors
/// If a file cannot be created, or profiles are already enabled with other settings.
pub fn enable(profiles: &Profiles) -> Result<bool, ProfileError> {
    let Profiles { map, jitdump, gdb, ref folder } = *profiles;
    if !(map || jitdump || gdb) {
        return Ok(false);
    }
    if let Some(kept) = PROFILES.get() {
        return if kept.profiles == *profiles { Ok(false) } else { Err(ProfileError::Twice) };
    }
    let map = map.then(perf_map::PerfMap::create).transpose()?;
    let jitdump = jitdump.then(|| jitdump::JitDump::create(folder)).transpose()?;
    let sources = (jitdump.is_some() || gdb).then(|| sources::Sources::create(folder)).transpose()?;
    let open = Mutex::new(ProfileFiles { map, jitdump, sources, names: HashMap::new() });
    PROFILES.set(OpenProfiles { profiles: profiles.clone(), open }).map(|()| true).map_err(|_| ProfileError::Twice)
}

/// Returns the files that are written, to show them to the user.
pub fn files() -> Vec<PathBuf> {
    let Some(kept) = PROFILES.get() else { return Vec::new() };
    let open = kept.open.lock().unwrap_or_else(PoisonError::into_inner);
    let map = open.map.as_ref().map(|map| map.path().to_owned());
    map.into_iter().chain(open.jitdump.as_ref().map(|dump| dump.path().to_owned())).collect()
}

/// Adds kernels in memory to the profiles. gdb knows the kernels until the module drops the result.
pub(crate) fn add_kernels(kernels: &[PlacedKernel<'_>]) -> Option<gdb::GdbRegistration> {
    let kept = PROFILES.get()?;
    let mut open = kept.open.lock().unwrap_or_else(PoisonError::into_inner);
    let ProfileFiles { map, jitdump, sources, names } = &mut *open;
    let named: Vec<NamedKernel<'_>> = kernels
        .iter()
        .map(|&placed| {
            let count = names.entry(placed.kernel.name.clone()).or_insert(0);
            *count += 1;
            let again = if *count == 1 { String::new() } else { format!(".{count}") };
            NamedKernel { name: placed.kernel.name.clone() + &again, placed }
        })
        .collect();
    // If a profile cannot be written, it is dropped with a warning, and the run continues.
    let warned = |result: Result<(), ProfileError>| match result {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, "the profile cannot be written and ends here; the run continues");
            false
        }
    };
    if !map.as_mut().is_none_or(|map| warned(map.add(&named))) {
        *map = None;
    }
    // Without the IR files, lines in the jitdump would refer to missing files.
    if !sources.as_ref().is_none_or(|sources| warned(sources.add(&named))) {
        (*sources, *jitdump) = (None, None);
    }
    if let (Some(dump), Some(sources)) = (jitdump.as_mut(), sources.as_ref())
        && !warned(dump.add(&named, sources))
    {
        *jitdump = None;
    }
    let lines = sources.as_ref().filter(|_| kept.profiles.gdb).map(|sources| dwarf::sections(&named, sources.folder()));
    drop(open);
    let lines = lines.transpose().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot register lines with gdb");
        None
    });
    kept.profiles.gdb.then(|| gdb::GdbRegistration::new(elf::elf_file(&named, &lines.unwrap_or_default())))
}
