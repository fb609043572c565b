//! `ixc dump`: one stage between the model and its machine code.

use std::io::Write;

use ixc::compile::{Options, TargetName, compile};

use super::BadInput;
use super::choose::ModelChoice;
use super::experts::Experts;
use super::stages::Stage;

/// Prints a stage between the model and its machine code.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc dump model.gguf --stage graph
  ixc dump model.gguf --stage kernel --kernel gemv_q4_k
  ixc dump model.gguf --stage asm --kernel rms_norm --target portable
  ixc dump --stage plan                      the built-in demo model
  ixc dump --stage fused --expert-memory 1MiB --predict 2
                                             when experts are loaded that do not all fit in memory")]
pub struct Args {
    #[command(flatten)]
    model: ModelChoice,
    /// The stage.
    #[arg(long, value_enum)]
    stage: Stage,
    /// Only kernels whose names contain this.
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// What to generate kernels for: native, a target or a CPU of `ixc doctor`.
    #[arg(long, default_value = "native")]
    target: TargetName,
    #[command(flatten)]
    experts: Experts,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        if self.kernel.is_some() && !matches!(self.stage, Stage::Kernel | Stage::Asm) {
            return Err(BadInput("--kernel chooses kernels: it needs --stage kernel or --stage asm".into()).into());
        }
        let model = self.model.open()?;
        if self.stage == Stage::Graph {
            return Ok(write!(out, "{}", model.arch.module)?);
        }
        let options = Options {
            target: self.target.0,
            expert_memory: self.experts.memory(),
            predict_extra: self.experts.predict,
            defer: self.experts.deferral.defer,
            ..Options::default()
        };
        let compiled = compile(&model, &options)?;
        Ok(out.write_all(self.stage.text(&model, &compiled, self.kernel.as_deref())?.as_bytes())?)
    }
}
