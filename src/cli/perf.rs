//! Profiles of generated code for perf and gdb, of a command that runs kernels.

use std::path::PathBuf;

use ixc::codegen::profile::{self, Profiles};

use super::output::{Printable, note};

/// Which profiles are kept.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PerfChoice {
    /// Tell profilers and debuggers the names of generated kernels: map (/tmp/perf-PID.map, for `perf report`), jitdump (jit-PID.dump in $JITDUMPDIR or the current folder,
    /// for `perf inject --jit`: lines of IR and call graphs, too), gdb (its JIT interface: names, lines of IR, who called). Several with commas.
    #[arg(long, value_enum, value_name = "WHAT,..", value_delimiter = ',')]
    perf: Vec<Perf>,
}

/// A profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Perf {
    /// Where each kernel lies, by name.
    Map,
    /// Code, lines of IR and unwind tables.
    Jitdump,
    /// An ELF file in memory for each module, and IR in jit-PID.ix.
    Gdb,
}

impl PerfChoice {
    /// Begins to keep them: before any code is made.
    ///
    /// # Errors
    /// Where a file cannot be made.
    pub fn enable(&self) -> Result<(), ixc::Error> {
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
