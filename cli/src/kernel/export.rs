//! `ixc kernel export`: writes a kernel as a folder of plain files.

use std::io::Write;
use std::path::PathBuf;

use ixc_files::NewFolder;
use ixc_workbench::kernels::bundle::write::write;

use super::super::output::{self, Bytes, count_text};
use super::choice::{InputChoice, KernelChoice};

/// Writes a kernel's code, inputs and expected outputs as plain files with a JSON index, for other
/// machines and emulators.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "index.json describes the files: code.bin, one in_*.bin per input buffer, one out_*.bin per output \
buffer (from the reference interpreter), the dims, the calling convention and the required CPU \
features. The folder must not exist yet.

EXAMPLES:
  ixc kernel export gemm_q4_k --target sapphire-rapids --rows 64 -o gemm.kernel
  ixc kernel export demo:attention -o attention.kernel --seed 3 --json"
)]
pub struct Args {
    #[command(flatten)]
    kernel: KernelChoice,
    #[command(flatten)]
    inputs: InputChoice,
    /// Folder to write.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Print the index.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        // Create the folder first: if that fails, no work is lost.
        let folder = NewFolder::create(&self.output).map_err(ixc_error::Error::from)?;
        let case = self.inputs.case(self.kernel.choose()?)?;
        let index = write(&case, folder)?;
        if self.json {
            return Ok(output::json(out, "ixc.kernel-export.v1", &index)?);
        }
        let buffers: u64 = index.buffers.iter().map(|buffer| buffer.bytes).sum();
        writeln!(
            out,
            "{}: {} for {}, {} of code, {} of {}; needs {}",
            self.output.display(),
            index.kernel,
            index.target,
            Bytes(index.code.file.bytes),
            count_text(index.buffers.len() as u64, "buffer"),
            Bytes(buffers),
            if index.features.is_empty() { "nothing".into() } else { index.features.join(", ") },
        )?;
        Ok(())
    }
}
