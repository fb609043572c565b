//! Generated code under the names of its kernels, for profilers and debuggers that look at this process from outside.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`perf_map`] | `/tmp/perf-PID.map`: where which kernel lies |
//! | [`jitdump`] | what `perf inject --jit` reads: code, lines of IR, unwind tables |
//! | [`gdb`] | gdb's JIT interface: an ELF file in memory for each module |
//! | `elf`, `dwarf`, `unwind` | that file; lines of IR in it; how a caller's frame is found from within a kernel |
//! | `sources` | IR as source files, for whoever shows lines |
//!
//! Profiles are of the process and last as long as it: [`enable`] once, before code is made; every [`Module`](crate::module::Module) tells them what
//! it has placed where. Kernels keep no frame pointer, so that call graphs need the unwind tables: `perf record --call-graph dwarf`.
//!
//! Invariant: without a profile nothing is written, and no code is other than with one, but that kernels lie farther apart.

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

/// Which profiles are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profiles {
    /// The map that `perf report` reads of a process that has ended.
    pub map: bool,
    /// What `perf inject --jit` reads: `jit-PID.dump` in the folder, and IR in `jit-PID.ix` there.
    pub jitdump: bool,
    /// Whether gdb is told; IR stands in the same files.
    pub gdb: bool,
    /// The folder, where one is wanted.
    pub folder: PathBuf,
}

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A second set of profiles, other than the first.
    #[error("this process keeps other profiles already")]
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

fn failed(path: &Path, action: &'static str) -> impl Fn(io::Error) -> ProfileError {
    let path = path.to_owned();
    move |source| ProfileError::Io { path: path.clone(), action, source }
}

/// A kernel that was placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed<'m> {
    /// Its IR.
    pub kernel: &'m Kernel,
    /// Its code.
    pub artifact: &'m Artifact,
    /// Where that begins.
    pub address: u64,
}

impl Placed<'_> {
    fn code(&self) -> &[u8] {
        code(self.artifact)
    }
}

/// Instructions, without what stands behind them.
fn code(artifact: &Artifact) -> &[u8] {
    match artifact {
        Artifact::X64(compiled) => &compiled.code[..compiled.code_bytes],
        Artifact::Portable(code) => &code.bytes[..code.code_bytes],
    }
}

/// Where in the code which line of IR begins: an entry where an instruction is of another statement than the one before. What the frame needs is
/// of the kernel's first line.
fn lines(placed: &Placed<'_>) -> Vec<(u32, u32)> {
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

/// Bytes from where a kernel begins in which no other may: perf maps the code and its unwind tables there, one behind the other, and sees of what
/// overlaps the later one alone.
pub(crate) fn room(artifact: &Artifact) -> usize {
    match KEPT.get().is_some_and(|kept| kept.profiles.jitdump) {
        true => code(artifact).len().next_multiple_of(8) + unwind::eh_frame(code(artifact)).0.len(),
        false => 0,
    }
}

/// A kernel with the name that it has in profiles: names repeat where code is made again.
struct Named<'m> {
    name: String,
    placed: Placed<'m>,
}

#[derive(Debug)]
struct Kept {
    profiles: Profiles,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    map: Option<perf_map::PerfMap>,
    jitdump: Option<jitdump::JitDump>,
    sources: Option<sources::Sources>,
    /// How often each name was given.
    names: HashMap<String, u32>,
}

static KEPT: OnceLock<Kept> = OnceLock::new();

/// Keeps profiles of all modules that are made from now on; says whether that is new: the same again is nothing.
///
/// # Errors
/// Where a file cannot be made, and for others than were asked for before.
pub fn enable(profiles: &Profiles) -> Result<bool, ProfileError> {
    let Profiles { map, jitdump, gdb, ref folder } = *profiles;
    if !(map || jitdump || gdb) {
        return Ok(false);
    }
    if let Some(kept) = KEPT.get() {
        return if kept.profiles == *profiles { Ok(false) } else { Err(ProfileError::Twice) };
    }
    let map = map.then(perf_map::PerfMap::create).transpose()?;
    let jitdump = jitdump.then(|| jitdump::JitDump::create(folder)).transpose()?;
    let sources = (jitdump.is_some() || gdb).then(|| sources::Sources::create(folder)).transpose()?;
    let open = Mutex::new(Open { map, jitdump, sources, names: HashMap::new() });
    KEPT.set(Kept { profiles: profiles.clone(), open }).map(|()| true).map_err(|_| ProfileError::Twice)
}

/// The files that are written, for those who say where they are.
pub fn files() -> Vec<PathBuf> {
    let Some(kept) = KEPT.get() else { return Vec::new() };
    let open = kept.open.lock().unwrap_or_else(PoisonError::into_inner);
    let map = open.map.as_ref().map(|map| map.path().to_owned());
    map.into_iter().chain(open.jitdump.as_ref().map(|dump| dump.path().to_owned())).collect()
}

/// Tells profiles of kernels that were placed. What they give stays with the module: while it lives, gdb knows it.
pub(crate) fn placed(kernels: &[Placed<'_>]) -> Option<gdb::Registered> {
    let kept = KEPT.get()?;
    let mut open = kept.open.lock().unwrap_or_else(PoisonError::into_inner);
    let Open { map, jitdump, sources, names } = &mut *open;
    let named: Vec<Named<'_>> = kernels
        .iter()
        .map(|&placed| {
            let count = names.entry(placed.kernel.name.clone()).or_insert(0);
            *count += 1;
            let again = if *count == 1 { String::new() } else { format!(".{count}") };
            Named { name: placed.kernel.name.clone() + &again, placed }
        })
        .collect();
    // A profile that cannot be written any more is none; the run goes on.
    let warned = |result: Result<(), ProfileError>| match result {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, "the profile ends here");
            false
        }
    };
    if !map.as_mut().is_none_or(|map| warned(map.add(&named))) {
        *map = None;
    }
    // Whoever shows lines looks for the text of them.
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
        tracing::warn!(%error, "gdb is told no lines");
        None
    });
    kept.profiles.gdb.then(|| gdb::Registered::new(elf::of(&named, &lines.unwrap_or_default())))
}
