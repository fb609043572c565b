//! `ixc kernel reduce`: makes a failing kernel small.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ixc_compile::replacements::{SPEC, signature_difference};
use ixc_files::{Kind, atomic_write};
use ixc_workbench::kernels::KernelError;
use ixc_workbench::kernels::reduce::{Counts, FailingKernel, Failure, failure, reduce};
use ixc_workbench::kernels::run::Engine;
use serde_json::json;

use super::super::force::Force;
use super::super::output::{self, Printable, count_text, note};
use super::choice::{InputChoice, KernelChoice, dims_text};

/// Reduces a failing kernel: removes statements, loops, buffers and dims while it still fails in
/// the same way.
#[derive(Debug, clap::Args)]
#[command(after_help = "Without --while, the failure is found first: results of the emulator that differ from the \
interpreter's, a kernel that cannot be compiled or run, or a panic of the compiler. All tried \
kernels pass the verifier. With --while, `sh` runs CMD with the path of a kernel file as $1; \
status 0 means \"still fails\", and dims stay fixed. The smallest kernel so far is written even if \
--tries ends the search.

EXAMPLES:
  ixc kernel reduce broken.ix -o small.ix
  ixc kernel reduce demo:route --target zen4 -o small.ix
  ixc kernel reduce k.ix -o s.ix --while 'ixc kernel run $1 2>&1 |grep differ'")]
pub struct Args {
    #[command(flatten)]
    kernel: KernelChoice,
    #[command(flatten)]
    inputs: InputChoice,
    /// File for the reduced kernel.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    force: Force,
    /// Command that returns whether a kernel still fails.
    #[arg(long = "while", value_name = "CMD")]
    command: Option<String>,
    /// Run kernels in this process instead of the emulator. A wrong kernel can crash it.
    #[arg(long, conflicts_with = "command")]
    native: bool,
    /// Maximum number of kernels to try.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    tries: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// File with the smallest kernel.
const KIND: Kind = Kind {
    name: "kernel",
    is: |head| head.starts_with(b"; reduced ") || head.starts_with(b"kernel "),
    streams: false,
    private: false,
};

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let result = self.force.open(&self.output, &KIND, &[])?;
        let chosen = self.kernel.choose()?;
        let case = self.inputs.case(chosen.clone())?;
        let first = FailingKernel { kernel: chosen.kernel.clone(), dims: case.dims.clone() };
        let engine = if self.native { Engine::Native } else { Engine::Emulator };
        // The folder is removed at the end, with all of its contents.
        let folder = tempfile::tempdir().map_err(ixc_error::Error::io(&std::env::temp_dir(), "make a folder in"))?;
        let tried = folder.path().join("tried.ix");
        let manner = |failing: &FailingKernel| -> anyhow::Result<Option<Failure>> {
            match &self.command {
                None => Ok(failure(&chosen, failing, self.inputs.seed(), engine)),
                Some(command) => {
                    atomic_write(&tried, failing.kernel.to_string().as_bytes()).map_err(ixc_error::Error::from)?;
                    Ok(still_fails(command, &tried)?.then_some(Failure::Command))
                }
            }
        };
        // The search provokes panics: do not print them.
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let found = manner(&first);
        let mut failed = None;
        let reduced = match &found {
            Ok(Some(own)) => Some(reduce(&first, self.command.is_some(), self.tries, &mut |failing| {
                // If the test command fails to run once, do not run it again.
                if failed.is_some() {
                    return false;
                }
                match manner(failing) {
                    Ok(found) => found.as_ref() == Some(own),
                    Err(error) => {
                        failed = Some(error);
                        false
                    }
                }
            })),
            Ok(None) | Err(_) => None,
        };
        std::panic::set_hook(hook);
        if let Some(error) = failed {
            return Err(error);
        }
        let (Some(own), Some(reduced)) = (found?, reduced) else {
            return Err(ixc_error::Error::from(KernelError::NoFailure { kernel: chosen.name.clone() }).into());
        };
        let (before, after) = (Counts::from_kernel(&chosen.kernel), Counts::from_kernel(&reduced.smallest.kernel));
        let kernel = &reduced.smallest.kernel;
        let spec = chosen.spec.as_ref().filter(|_| signature_difference(&chosen.kernel, kernel).is_none());
        result
            .write(|file| {
                writeln!(file, "; reduced from {}: {}", chosen.kernel.name, one_line(&own.to_string()))?;
                if let Some(spec) = spec {
                    writeln!(file, ";{SPEC}{spec}")?;
                }
                let dims = dims_text(kernel, &reduced.smallest.dims);
                if !dims.is_empty() {
                    writeln!(file, "; dims {dims}")?;
                }
                write!(file, "{kernel}")
            })
            .map_err(ixc_error::Error::from)?;
        if self.json {
            let facts = json!({
                "kernel": chosen.kernel.name,
                "target": chosen.target.name(),
                "failure": own,
                "before": before,
                "after": after,
                "dims": reduced.smallest.dims,
                "tried": reduced.tried,
                "complete": reduced.complete,
                "file": self.output,
            });
            return Ok(output::json(out, "ixc.kernel-reduce.v1", &facts)?);
        }
        writeln!(out, "kernel      {}", chosen.kernel.name)?;
        writeln!(out, "fails       {}", Printable(&own.to_string()))?;
        for (name, before, after) in [
            ("statements", before.statements, after.statements),
            ("loops", before.loops, after.loops),
            ("buffers", before.buffers, after.buffers),
            ("dims", before.dims, after.dims),
        ] {
            writeln!(out, "{name:<11} {before} -> {after}")?;
        }
        writeln!(out, "tried       {}", count_text(reduced.tried as u64, "kernel"))?;
        writeln!(out, "written to  {}", Printable(&self.output.display().to_string()))?;
        if !reduced.complete {
            note!(
                "ixc: the search stopped after it tried {}; --tries N tries more kernels",
                count_text(reduced.tried as u64, "kernel")
            );
        }
        Ok(())
    }
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns whether the command succeeds for a file, which means that the failure is still there.
fn still_fails(command: &str, file: &Path) -> Result<bool, ixc_error::Error> {
    let mut sh = Command::new("sh");
    sh.arg("-c").arg(command).arg("sh").arg(file);
    let status = sh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    Ok(status.map_err(ixc_error::Error::io(Path::new("sh"), "run"))?.success())
}
