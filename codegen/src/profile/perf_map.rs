//! The map of generated code that `perf report` looks for: `/tmp/perf-PID.map`, a line `START SIZE NAME` for each kernel, numbers in hexadecimal.
//!
//! ```text
//! 7f2c4a1f0000 5c3 gemv_q4_k_r16_a8_super_t32n2048k2048_avx2
//! ```
//!
//! `/tmp` is everybody's: the file is made anew, for this user alone, and no link is followed ([`ixc_files::own::create_own`]).

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use ixc_files::own::create_own;

use super::{Named, ProfileError, failed};

/// The file.
#[derive(Debug)]
pub struct PerfMap {
    path: PathBuf,
    file: File,
}

impl PerfMap {
    /// Makes this process's.
    ///
    /// # Errors
    /// What the system says; where somebody else's file has the name.
    pub fn create() -> Result<PerfMap, ProfileError> {
        PerfMap::at(PathBuf::from(format!("/tmp/perf-{}.map", std::process::id())))
    }

    fn at(path: PathBuf) -> Result<PerfMap, ProfileError> {
        let file = create_own(&path).map_err(failed(&path, "make the perf map"))?;
        Ok(PerfMap { path, file })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn add(&mut self, kernels: &[Named<'_>]) -> Result<(), ProfileError> {
        let mut lines = String::new();
        for Named { name, placed } in kernels {
            let _ = writeln!(lines, "{:x} {:x} {name}", placed.address, placed.code().len());
        }
        self.file.write_all(lines.as_bytes()).map_err(failed(&self.path, "write to the perf map"))
    }
}
