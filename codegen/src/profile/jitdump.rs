//! What `perf inject --jit` reads (tools/perf/Documentation/jitdump-specification.txt of Linux): code that a process made, with names, lines and
//! unwind tables.
//!
//! ```text
//! perf record -k mono ixc run model.gguf --perf jitdump       writes jit-PID.dump, and IR beside it
//! perf inject --jit -i perf.data -o named.data                makes a shared object of each kernel
//! perf report -i named.data; perf annotate -i named.data      kernels by name, lines of IR beside instructions
//! ```
//!
//! Each kernel is three records: lines of its IR, which stands in `jit-PID.ix/NAME.ix`; how its frame is left; its code. `perf` finds the file by
//! a mapping of it that could be executed. Times are of the monotonic clock, which `perf record -k mono` takes, too.
//!
//! The folder may be one that others write to: the file is made anew, for this user alone, and no link is followed.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use ixc_files::own::create_own;
use memmap2::{Mmap, MmapOptions};

use super::sources::Sources;
use super::{Named, Placed, ProfileError, failed, lines, unwind};

/// `JiTD`.
const MAGIC: u32 = 0x4a69_5444;
const VERSION: u32 = 1;
const HEADER_BYTES: u32 = 40;
const X86_64: u32 = 62;
/// Bytes of a record before what is its own.
const PREFIX_BYTES: usize = 16;

/// Records.
const CODE_LOAD: u32 = 0;
const DEBUG_INFO: u32 = 2;
const CODE_CLOSE: u32 = 3;
const UNWINDING_INFO: u32 = 4;

/// The file.
#[derive(Debug)]
pub struct JitDump {
    path: PathBuf,
    file: File,
    /// By which `perf record` sees where the file is.
    _marker: Mmap,
    /// Kernels so far.
    count: u64,
}

/// Nanoseconds of the monotonic clock.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes one `timespec`.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

fn thread() -> u32 {
    // SAFETY: it takes nothing and never fails.
    let id = unsafe { libc::gettid() };
    id.unsigned_abs()
}

fn record(id: u32, body: &[u8]) -> Vec<u8> {
    let mut out = id.to_le_bytes().to_vec();
    out.extend(((PREFIX_BYTES + body.len()) as u32).to_le_bytes());
    out.extend(now().to_le_bytes());
    out.extend(body);
    out
}

impl JitDump {
    /// Makes this process's in a folder.
    ///
    /// # Errors
    /// What the system says; where somebody else's file has the name.
    pub fn create(folder: &Path) -> Result<JitDump, ProfileError> {
        let folder = std::path::absolute(folder).map_err(failed(folder, "find"))?;
        let pid = std::process::id();
        let path = folder.join(format!("jit-{pid}.dump"));
        let mut file = create_own(&path).map_err(failed(&path, "make the jitdump"))?;
        let mut header = MAGIC.to_le_bytes().to_vec();
        for word in [VERSION, HEADER_BYTES, X86_64, 0, pid] {
            header.extend(word.to_le_bytes());
        }
        header.extend(now().to_le_bytes());
        header.extend(0_u64.to_le_bytes());
        file.write_all(&header).map_err(failed(&path, "write to the jitdump"))?;
        // SAFETY: nothing is read through the mapping.
        let marker = unsafe { MmapOptions::new().len(header.len()).map_exec(&file) };
        let marker = marker.map_err(failed(
            &path,
            "map the jitdump as code, by which perf finds it; choose a folder where that is allowed",
        ))?;
        Ok(JitDump { path, file, _marker: marker, count: 0 })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn add(&mut self, kernels: &[Named<'_>], sources: &Sources) -> Result<(), ProfileError> {
        for Named { name, placed } in kernels {
            let mut records = debug_info(placed, &sources.file(name));
            records.extend(unwinding(placed));
            records.extend(self.load(name, placed));
            self.count += 1;
            self.file.write_all(&records).map_err(failed(&self.path, "write to the jitdump"))?;
        }
        Ok(())
    }

    fn load(&self, name: &str, placed: &Placed<'_>) -> Vec<u8> {
        let code = placed.code();
        let mut body = std::process::id().to_le_bytes().to_vec();
        body.extend(thread().to_le_bytes());
        for word in [placed.address, placed.address, code.len() as u64, self.count] {
            body.extend(word.to_le_bytes());
        }
        body.extend(name.as_bytes());
        body.push(0);
        body.extend(code);
        record(CODE_LOAD, &body)
    }
}

impl Drop for JitDump {
    fn drop(&mut self) {
        let _ = self.file.write_all(&record(CODE_CLOSE, &[]));
    }
}

fn debug_info(placed: &Placed<'_>, source: &Path) -> Vec<u8> {
    let lines = lines(placed);
    if lines.is_empty() {
        return Vec::new();
    }
    let mut body = placed.address.to_le_bytes().to_vec();
    body.extend((lines.len() as u64).to_le_bytes());
    for (offset, line) in lines {
        body.extend((placed.address + u64::from(offset)).to_le_bytes());
        body.extend(line.to_le_bytes());
        body.extend(0_u32.to_le_bytes());
        // Whole each time: that `\xff` stands for the name before, perf's reader does not know everywhere.
        body.extend(source.as_os_str().as_encoded_bytes());
        body.push(0);
    }
    record(DEBUG_INFO, &body)
}

fn unwinding(placed: &Placed<'_>) -> Vec<u8> {
    let (frames, table) = unwind::eh_frame(placed.code());
    let mut body = Vec::new();
    // All of it counts as mapped, behind the code: where it is not, perf looks no tables up.
    for word in [frames.len(), table, frames.len()] {
        body.extend((word as u64).to_le_bytes());
    }
    body.extend(&frames);
    let padding = body.len().next_multiple_of(8) - body.len();
    body.extend(vec![0; padding]);
    record(UNWINDING_INFO, &body)
}
