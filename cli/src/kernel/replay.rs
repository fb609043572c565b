//! `ixc kernel replay`: runs an exported kernel and compares.

use std::io::Write;
use std::path::PathBuf;

use ixc_workbench::kernels::KernelError;
use ixc_workbench::kernels::bundle::{read::read, replay};
use serde_json::{Value as Json, json};

use super::super::output::{self, Count, Printable};

/// Runs an exported kernel, in the emulator or on this machine, and compares its outputs with the
/// expected ones.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The emulator is the default: there, code from a folder can only compute. --native executes the \
folder's code in this process with all of your rights: use it only for folders that you trust. The \
exit status is 1 if outputs differ or the emulator stops the code.

EXAMPLES:
  ixc kernel replay gemm.kernel
  ixc kernel replay gemm.kernel --native --json"
)]
pub struct Args {
    /// Folder that `export` wrote.
    folder: PathBuf,
    /// Execute the folder's code on this machine. This runs foreign code.
    #[arg(long, conflicts_with = "emulate")]
    native: bool,
    /// Run in the emulator, which is the default.
    #[arg(long)]
    emulate: bool,
    /// Maximum number of emulated instructions. More is reported as an endless loop.
    #[arg(long, value_name = "N", default_value_t = replay::MAX_STEPS)]
    steps: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let bundle = read(&self.folder)?;
        let engine = replay::engine(self.native);
        let replayed = if self.native {
            // SAFETY: a user who gives --native trusts the folder, as the help states.
            unsafe { replay::native(&bundle) }?
        } else {
            replay::emulate(&bundle, self.steps)?
        };
        let index = &bundle.index;
        if self.json {
            let buffers: Vec<Json> = index
                .buffers
                .iter()
                .zip(&replayed.buffers)
                .map(|(buffer, bytes)| {
                    let crc = format!("{:08x}", crc32fast::hash(bytes));
                    json!({ "name": buffer.name, "kind": buffer.kind, "bytes": bytes.len(), "crc32": crc })
                })
                .collect();
            let facts = json!({
                "kernel": index.kernel,
                "spec": index.spec,
                "target": index.target,
                "features": index.features,
                "engine": engine.name(),
                "instructions": replayed.instructions,
                "buffers": buffers,
                "equal": replayed.difference.is_none(),
                "difference": replayed.difference.as_ref().map(ToString::to_string),
            });
            output::json(out, "ixc.kernel-replay.v1", &facts)?;
        } else {
            writeln!(out, "kernel   {}, by ixc {}", Printable(&index.kernel), Printable(&index.ixc))?;
            let count = replayed.instructions.map_or(String::new(), |n| format!(", {} instructions", Count(n)));
            writeln!(out, "ran on   {}, for {}{count}", engine.name(), Printable(&index.target))?;
            match &replayed.difference {
                None => writeln!(out, "result   equal to the expected outputs, bit for bit")?,
                Some(difference) => writeln!(out, "result   {}", Printable(&difference.to_string()))?,
            }
        }
        match replayed.difference {
            None => Ok(()),
            Some(difference) => {
                let (kernel, difference) = (index.kernel.clone(), difference.to_string());
                Err(ixc_error::Error::from(KernelError::Differs { kernel, engine: engine.name(), difference }).into())
            }
        }
    }
}
