//! `ixc dump`: one stage between the model and its machine code.

use std::io::Write;

use ixc::compile::{Options, TargetName, after, compile};
use ixc::passes::manager;

use super::Usage;
use super::choose::ModelArgument;
use super::experts::Experts;
use super::passes::PassChoice;
use super::stages::Stage;

/// Prints a stage between the model and its machine code.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc dump model.gguf --stage graph
  ixc dump model.gguf --stage kernel --kernel gemv_q4_k
  ixc dump model.gguf --stage asm --kernel rms_norm --target portable
  ixc dump --stage plan                      the built-in demo model
  ixc dump model.gguf --after tile           how each weight is cut, and why
  ixc dump --stage fused --expert-memory 1MiB --predict 2
                                             when experts are loaded")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgument,
    /// The stage; without one, what stages there are is said.
    #[arg(long, value_enum)]
    stage: Option<Stage>,
    /// What a pass of `ixc opt` leaves, as text that `ixc opt` reads.
    #[arg(long, value_name = "PASS", conflicts_with_all = ["stage", "kernel"], value_parser = manager::names())]
    after: Option<String>,
    /// Only kernels whose names contain this.
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// What to generate kernels for: native, a target or a CPU of `ixc doctor`.
    #[arg(long, default_value = "native", env = "IXC_TARGET", hide_env_values = true)]
    target: TargetName,
    #[command(flatten)]
    experts: Experts,
    #[command(flatten)]
    passes: PassChoice,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let options = Options {
            target: Some(self.target.target),
            caches: self.target.caches,
            passes: self.passes.options()?,
            expert_memory: self.experts.memory(),
            predict_extra: self.experts.predict,
            defer: self.experts.deferral.defer,
            ..Options::default()
        };
        if let Some(pass) = &self.after {
            return Ok(out.write_all(after(&self.model.open()?, &options, pass)?.text().as_bytes())?);
        }
        let Some(stage) = self.stage else { return Err(Usage(Stage::list()).into()) };
        if self.kernel.is_some() && !matches!(stage, Stage::Kernel | Stage::Asm) {
            return Err(Usage("--kernel chooses kernels: it needs --stage kernel or --stage asm".into()).into());
        }
        let model = self.model.open()?;
        if stage == Stage::Graph {
            return Ok(write!(out, "{}", model.arch.module)?);
        }
        let compiled = compile(&model, &options)?;
        Ok(out.write_all(stage.text(&model, &compiled, self.kernel.as_deref())?.as_bytes())?)
    }
}
