//! Jitdump file, the input of `perf inject --jit`
//! (tools/perf/Documentation/jitdump-specification.txt of Linux). It records generated code with
//! names, lines and unwind tables.
//!
//! ```text
//! perf record -k mono ixc run model.gguf --perf jitdump      writes jit-PID.dump and IR
//! perf inject --jit -i perf.data -o named.data               makes a shared object of each kernel
//! perf report -i named.data; perf annotate -i named.data     shows kernel names and lines of IR
//! ```
//!
//! Each kernel has three records: the lines of its IR, which is in `jit-PID.ix/NAME.ix`; the unwind
//! tables; the code. `perf` learns the path of this file because the process maps it as executable.
//! Times are from the monotonic clock, as with `perf record -k mono`.
//!
//! Other users may be able to write to the folder. Creation therefore fails if the file exists,
//! does not follow links, and makes the file readable by this user only.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use ixc_files::private_files::create_own;
use memmap2::{Mmap, MmapOptions};

use super::sources::Sources;
use super::{NamedKernel, PlacedKernel, ProfileError, io_error, lines, unwind};

/// Magic number at the start of a jitdump file: the text `JiTD`.
const MAGIC: u32 = 0x4a69_5444;
const VERSION: u32 = 1;
const HEADER_BYTES: u32 = 40;
const X86_64: u32 = 62;
/// Bytes of a record's header.
const PREFIX_BYTES: usize = 16;

/// Types of jitdump records.
const CODE_LOAD: u32 = 0;
const DEBUG_INFO: u32 = 2;
const CODE_CLOSE: u32 = 3;
const UNWINDING_INFO: u32 = 4;

/// An open jitdump file.
#[derive(Debug)]
pub struct JitDump {
    path: PathBuf,
    file: File,
    /// Executable mapping of the file. `perf record` records the mapping with the file's path.
    _marker: Mmap,
    /// Number of kernels written so far.
    count: u64,
}

/// Returns the time of the monotonic clock in nanoseconds.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one `timespec`.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

fn thread() -> u32 {
    // Uses the system call's number, because glibc before 2.30 has no `gettid`.
    // SAFETY: the call takes no arguments and never fails.
    let id = unsafe { libc::syscall(libc::SYS_gettid) };
    id.unsigned_abs() as u32
}

fn record(id: u32, body: &[u8]) -> Vec<u8> {
    let mut out = id.to_le_bytes().to_vec();
    out.extend(((PREFIX_BYTES + body.len()) as u32).to_le_bytes());
    out.extend(now().to_le_bytes());
    out.extend(body);
    out
}

impl JitDump {
    /// Creates this process's jitdump file in a folder.
    ///
    /// # Errors
    /// The system's error, also if another user's file has the name.
    pub fn create(folder: &Path) -> Result<JitDump, ProfileError> {
        let folder = std::path::absolute(folder).map_err(io_error(folder, "find"))?;
        let pid = std::process::id();
        let path = folder.join(format!("jit-{pid}.dump"));
        let mut file = create_own(&path).map_err(io_error(&path, "make the jitdump"))?;
        let mut header = MAGIC.to_le_bytes().to_vec();
        for word in [VERSION, HEADER_BYTES, X86_64, 0, pid] {
            header.extend(word.to_le_bytes());
        }
        header.extend(now().to_le_bytes());
        header.extend(0_u64.to_le_bytes());
        file.write_all(&header).map_err(io_error(&path, "write to the jitdump"))?;
        // SAFETY: nothing is read through the mapping.
        let marker = unsafe { MmapOptions::new().len(header.len()).map_exec(&file) };
        let marker = marker.map_err(io_error(
            &path,
            "map the jitdump as executable, which perf needs to find it; choose a folder that is not mounted noexec",
        ))?;
        Ok(JitDump { path, file, _marker: marker, count: 0 })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn add(&mut self, kernels: &[NamedKernel<'_>], sources: &Sources) -> Result<(), ProfileError> {
        for NamedKernel { name, placed } in kernels {
            let mut records = debug_info(placed, &sources.file(name));
            records.extend(unwinding(placed));
            records.extend(self.load(name, placed));
            self.count += 1;
            self.file.write_all(&records).map_err(io_error(&self.path, "write to the jitdump"))?;
        }
        Ok(())
    }

    fn load(&self, name: &str, placed: &PlacedKernel<'_>) -> Vec<u8> {
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

fn debug_info(placed: &PlacedKernel<'_>, source: &Path) -> Vec<u8> {
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
        // Writes the name for every line. The format allows `\xff` for "the previous name", but not
        // every version of perf supports it.
        body.extend(source.as_os_str().as_encoded_bytes());
        body.push(0);
    }
    record(DEBUG_INFO, &body)
}

fn unwinding(placed: &PlacedKernel<'_>) -> Vec<u8> {
    let (frames, table) = unwind::eh_frame(placed.code());
    let mut body = Vec::new();
    // The header states that all tables are mapped after the code: perf ignores tables that are not
    // mapped.
    for word in [frames.len(), table, frames.len()] {
        body.extend((word as u64).to_le_bytes());
    }
    body.extend(&frames);
    let padding = body.len().next_multiple_of(8) - body.len();
    body.extend(vec![0; padding]);
    record(UNWINDING_INFO, &body)
}
