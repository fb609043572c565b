//! `ixc kernel cost`: what a kernel's code costs on a CPU that need not be here.

use std::io::Write;

use ixc::codegen::cost;
use ixc::kernels::{KernelError, show};
use serde_json::json;

use super::super::output;
use super::choice::{InputChoice, KernelChoice, dims_text};

/// Computes what a kernel's loops cost on a CPU, from its finished code: instruction mix, ports, front end, latency, tile unit.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Nothing runs: the CPU need not be here. docs/cost-model.md says what is assumed and how well it agrees with others. --target \
names the CPU; code is generated for it and counted by its model.

EXAMPLES:
  ixc kernel cost gemm_q4_k --target sapphire-rapids --rows 512
  ixc kernel cost gemv_q6_k --target zen4 --json"
)]
pub struct Args {
    #[command(flatten)]
    kernel: KernelChoice,
    #[command(flatten)]
    inputs: InputChoice,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let chosen = self.kernel.choose()?;
        let target = chosen.target;
        let compiled = show::compile_x64(&chosen, "the cost model")?;
        let model = cost::model(target).ok_or_else(|| {
            let models = cost::MODELS.iter().map(|model| model.name).collect();
            ixc::Error::from(KernelError::NoModel { target: target.name(), models })
        })?;
        let dims = self.inputs.dims(&chosen)?;
        let report = cost::analyse(&compiled.code[..compiled.code_bytes], &compiled.lines, &chosen.kernel, model);
        let whole = report.whole(&dims).map_err(|error| ixc::Error::from(KernelError::from(error)))?;
        if self.json {
            let facts = json!({
                "spec": chosen.spec.as_ref().map(ToString::to_string),
                "target": target.name(),
                "report": report,
                "whole": whole,
            });
            return Ok(output::json(out, "ixc.kernel-cost.v1", &facts)?);
        }
        write!(out, "{report}")?;
        if !chosen.kernel.dims.is_empty() {
            writeln!(out, "{}", dims_text(&chosen.kernel, &dims))?;
        }
        Ok(write!(out, "{whole}")?)
    }
}
