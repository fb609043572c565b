//! Profiles of generated code for perf and gdb.

use std::path::PathBuf;

use ixc_codegen::profile::{self, Profiles};

use super::output::{Printable, note};

/// Interfaces to profilers and debuggers.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PerfChoice {
    /// Give profilers and debuggers the names of generated kernels; separate several interfaces by
    /// commas. `map` writes /tmp/perf-PID.map for `perf report`. `jitdump` writes jit-PID.dump to
    /// $JITDUMPDIR or the current folder for `perf inject --jit`. `gdb` uses its JIT interface.
    #[arg(long, value_enum, value_name = "WHAT,..", value_delimiter = ',')]
    perf: Vec<Perf>,
}

/// Value of `--perf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Perf {
    /// Names and addresses of kernels.
    Map,
    /// Code, lines of IR and unwind tables.
    Jitdump,
    /// An ELF file in memory for each module, with names, lines of IR and callers; IR in
    /// jit-PID.ix.
    Gdb,
}

impl PerfChoice {
    /// Enables the profiles. Call it before code is generated.
    ///
    /// # Errors
    /// If a file cannot be created.
    pub fn enable(&self) -> Result<(), ixc_error::Error> {
        let folder = || {
            std::env::var_os("JITDUMPDIR").filter(|folder| !folder.is_empty()).map_or(PathBuf::from("."), PathBuf::from)
        };
        let asked = |what| self.perf.contains(&what);
        let (map, jitdump, gdb) = (asked(Perf::Map), asked(Perf::Jitdump), asked(Perf::Gdb));
        let profiles = Profiles { map, jitdump, gdb, folder: folder() };
        if profile::enable(&profiles)? {
            for file in profile::files() {
                note!("ixc: profile: {}", Printable(&file.display().to_string()));
            }
        }
        Ok(())
    }
}
