//! Perf map: `/tmp/perf-PID.map`, which `perf report` reads for generated code. Each kernel has a
//! line `START SIZE NAME`, with hexadecimal numbers.
//!
//! ```text
//! 7f2c4a1f0000 5c3 gemv_q4_k_r16_a8_super_t32n2048k2048_avx2
//! ```
//!
//! All users can write to `/tmp`. Creation therefore fails if the file exists, does not follow
//! links, and makes the file readable by this user only ([`ixc_files::private_files::create_own`]).

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use ixc_files::private_files::create_own;

use super::{NamedKernel, ProfileError, io_error};

/// An open perf map.
#[derive(Debug)]
pub struct PerfMap {
    path: PathBuf,
    file: File,
}

impl PerfMap {
    /// Creates this process's perf map.
    ///
    /// # Errors
    /// The system's error, also if another user's file has the name.
    pub fn create() -> Result<PerfMap, ProfileError> {
        PerfMap::at(PathBuf::from(format!("/tmp/perf-{}.map", std::process::id())))
    }

    fn at(path: PathBuf) -> Result<PerfMap, ProfileError> {
        let file = create_own(&path).map_err(io_error(&path, "create the perf map"))?;
        Ok(PerfMap { path, file })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn add(&mut self, kernels: &[NamedKernel<'_>]) -> Result<(), ProfileError> {
        let mut lines = String::new();
        for NamedKernel { name, placed } in kernels {
            let _ = writeln!(lines, "{:x} {:x} {name}", placed.address, placed.code().len());
        }
        self.file.write_all(lines.as_bytes()).map_err(io_error(&self.path, "write to the perf map"))
    }
}
