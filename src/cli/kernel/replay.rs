//! `ixc kernel replay`: runs an exported kernel and compares.

use std::io::Write;
use std::path::PathBuf;

use ixc::kernels::KernelError;
use ixc::kernels::bundle::{read::read, replay};
use serde_json::{Value as Json, json};

use super::super::output::{self, Count, Printable};

/// Runs a folder that `export` wrote, emulated or on this machine, and compares with its expected outputs.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The emulator is the default: code from a folder can do nothing there but compute. --native executes the folder's code bytes \
in this process, with all that you may do: use it only on folders that you or someone you trust made. Exit status 1 where \
outputs differ or the emulator stops the code.

EXAMPLES:
  ixc kernel replay gemm.kernel
  ixc kernel replay gemm.kernel --native --json"
)]
pub struct Args {
    /// The folder.
    folder: PathBuf,
    /// Execute the folder's code on this machine. This runs foreign code.
    #[arg(long, conflicts_with = "emulate")]
    native: bool,
    /// Emulate it, which is the default.
    #[arg(long)]
    emulate: bool,
    /// Most instructions to emulate: more is taken for a loop that does not end.
    #[arg(long, value_name = "N", default_value_t = replay::MOST_STEPS)]
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
            // SAFETY: who says --native trusts the folder, as the help states.
            unsafe { replay::native(&bundle) }?
        } else {
            replay::emulate(&bundle, self.steps)?
        };
        let index = &bundle.index;
        if self.json {
            let buffers: Vec<Json> = index
                .buffers
                .iter()
                .zip(&replayed.found)
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
                Err(ixc::Error::from(KernelError::Differs { kernel, engine: engine.name(), difference }).into())
            }
        }
    }
}
