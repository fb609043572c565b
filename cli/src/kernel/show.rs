//! `ixc kernel show`: prints a kernel in one of its stages.

use std::io::Write;

use clap::ValueEnum;
use ixc_workbench::kernels::show;

use super::choice::KernelChoice;

/// Prints a kernel's IR, machine IR, assembly or bytes, and its cost.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Assembly is decoded from the finished bytes. The first instruction of each IR statement shows the \
statement.

EXAMPLES:
  ixc kernel show gemv_q4_k --target zen4 --stage asm
  ixc kernel show linear format=q8_0 k=256 tile=8 n=8 shape=gemv --stage lowered
  ixc kernel show demo:route --stage ir > route.ix
  ixc kernel show demo:gemv --layer 3 --op ffn_gate_inp
  ixc kernel show route.ix --stage bytes"
)]
pub struct Args {
    #[command(flatten)]
    kernel: KernelChoice,
    /// Stage to print.
    #[arg(long, value_enum, default_value_t = Stage::Asm)]
    stage: Stage,
}

/// A stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// Kernel IR.
    Ir,
    /// Machine IR after register allocation; cranelift's IR for portable.
    Lowered,
    /// Instructions, traced to the IR.
    Asm,
    /// Bytes with offsets.
    Bytes,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let stage = match self.stage {
            Stage::Ir => show::Stage::Ir,
            Stage::Lowered => show::Stage::Lowered,
            Stage::Asm => show::Stage::Asm,
            Stage::Bytes => show::Stage::Bytes,
        };
        Ok(out.write_all(show::text(&self.kernel.choose()?, stage)?.as_bytes())?)
    }
}
