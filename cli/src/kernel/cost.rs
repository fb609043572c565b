//! `ixc kernel cost`: static cost of a kernel's code on any CPU.

use std::io::Write;

use ixc_cost as cost;
use ixc_cost::memory::{self, LevelsError, Start};
use ixc_workbench::kernels::{KernelError, show};
use serde_json::json;

use super::super::output;
use super::choice::{InputChoice, KernelChoice, dims_text};

/// Computes the cost of a kernel's loops on a CPU from its finished code: instruction mix, ports,
/// front end, latency, tile unit, caches.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Nothing runs, so the CPU need not be present: code is generated for it and counted by its model. \
docs/cost-model.md gives the assumptions and compares the model with others. Caches hold the data \
of a previous equal call, except for the buffers of --from. The last line names the level that \
bounds the kernel.

EXAMPLES:
  ixc kernel cost gemm_q4_k --target sapphire-rapids --rows 512
  ixc kernel cost tiles_q4_k_r16 --target amx --rows 512 --from w=memory,x=l3
  ixc kernel cost gemv_q6_k --target zen4 --json"
)]
pub struct Args {
    #[command(flatten)]
    kernel: KernelChoice,
    #[command(flatten)]
    inputs: InputChoice,
    /// Location of buffers before the call: l1, l2, l3 or memory [default: where a previous equal
    /// call left them].
    #[arg(long, value_name = "BUFFER=LEVEL,..", value_delimiter = ',')]
    from: Vec<Start>,
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
            ixc_error::Error::from(KernelError::NoModel { target: target.name(), models })
        })?;
        let dims = self.inputs.dims(&chosen)?;
        let report = cost::analyse(&compiled.code[..compiled.code_bytes], &compiled.lines, &chosen.kernel, model);
        let failed = |error: LevelsError| ixc_error::Error::from(KernelError::from(error));
        let whole = report.whole(&dims).map_err(|error| failed(error.into()))?;
        let levels = match memory::levels(&report, &chosen.kernel, target.row().memory(), &dims, &self.from) {
            Ok(levels) => Ok(levels),
            // The call is too long for the simulation of caches: print the cost without caches.
            Err(error @ LevelsError::TooLong { .. }) => Err(error),
            Err(error) => return Err(failed(error).into()),
        };
        if self.json {
            let facts = json!({
                "spec": chosen.spec.as_ref().map(ToString::to_string),
                "target": target.name(),
                "report": report,
                "whole": whole,
                "levels": levels.as_ref().ok(),
            });
            return Ok(output::json(out, "ixc.kernel-cost.v1", &facts)?);
        }
        write!(out, "{report}")?;
        if !chosen.kernel.dims.is_empty() {
            writeln!(out, "{}", dims_text(&chosen.kernel, &dims))?;
        }
        write!(out, "{whole}")?;
        match levels {
            Ok(levels) => Ok(write!(out, "{levels}")?),
            Err(error) => Ok(writeln!(out, "{error}")?),
        }
    }
}
