//! `ixc kernel run`: runs a kernel on random inputs, and compares it with the interpreter and, if
//! it was edited, with its spec.

use std::io::Write;

use ixc_compile::error::replacement::ReplacementError;
use ixc_compile::kernel_check::{Departure, Standing};
use ixc_ir::kernel::BufferKind;
use ixc_workbench::kernels::KernelError;
use ixc_workbench::kernels::run::{Engine, Outcome};
use serde_json::{Value as Json, json};

use super::super::output::{self, Count};
use super::choice::{InputChoice, KernelChoice, dims_text};

/// Runs a kernel with random inputs and compares it with the reference interpreter, bit for bit.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A file with the line \"; spec: ...\" is also compared with the kernel of that spec. Results with \
other bits are right within the error bounds of the spec's formula.

The exit status is 1 if results differ from the interpreter's or exceed the spec's bounds; the \
first wrong element is printed.

EXAMPLES:
  ixc kernel run gemm_q4_k --rows 33
  ixc kernel run gemm_q4_k --target sapphire-rapids --emulate
  ixc kernel run experiment.ix --dims 4,1 --seed 7
  ixc kernel run rms_norm n=2048 eps=1e-5 out=f32 --target portable --json"
)]
pub struct Args {
    #[command(flatten)]
    kernel: KernelChoice,
    #[command(flatten)]
    inputs: InputChoice,
    /// Run in the emulator, on any machine.
    #[arg(long)]
    emulate: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let case = self.inputs.case(self.kernel.choose()?)?;
        let engine = if self.emulate { Engine::Emulator } else { Engine::Native };
        let missing = case.chosen.target.missing();
        if !self.emulate && !missing.is_empty() {
            let (target, missing) = (case.chosen.target.name(), ixc_targets::cpu::list(&missing));
            return Err(ixc_error::Error::from(KernelError::Missing { target, missing }).into());
        }
        let outcome = case.check(engine)?;
        let kernel = &case.chosen.kernel;
        let buffers = || kernel.buffers.iter().zip(&outcome.found).filter(|(b, _)| b.kind != BufferKind::Scratch);
        if self.json {
            let buffers: Vec<Json> = buffers()
                .map(|(buffer, bytes)| {
                    let crc = format!("{:08x}", crc32fast::hash(bytes));
                    json!({ "name": buffer.name, "kind": buffer.kind.keyword(), "bytes": bytes.len(), "crc32": crc })
                })
                .collect();
            let dims: serde_json::Map<String, Json> =
                kernel.dims.iter().zip(&case.dims).map(|(dim, &value)| (dim.name.clone(), value.into())).collect();
            let facts = json!({
                "kernel": kernel.name,
                "spec": case.chosen.spec.as_ref().map(ToString::to_string),
                "target": case.chosen.target.name(),
                "engine": engine.name(),
                "dims": dims,
                "buffers": buffers,
                "equal": outcome.difference.is_none(),
                "difference": outcome.difference.as_ref().map(ToString::to_string),
                "standing": outcome.standing.as_ref().map(standing_name),
                "departure": departure(&outcome).map(ToString::to_string),
                "interpreter_seconds": outcome.interpreter_seconds,
                "seconds": outcome.seconds,
                "instructions": outcome.instructions,
            });
            output::json(out, "ixc.kernel-run.v1", &facts)?;
        } else {
            writeln!(out, "kernel   {}", kernel.name)?;
            if let Some(spec) = &case.chosen.spec {
                writeln!(out, "spec     {spec}")?;
            }
            writeln!(out, "ran on   {}, for {}", engine.name(), case.chosen.target.name())?;
            if !kernel.dims.is_empty() {
                writeln!(out, "dims     {}", dims_text(kernel, &case.dims))?;
            }
            for (buffer, bytes) in buffers() {
                let (name, kind, crc) = (&buffer.name, buffer.kind.keyword(), crc32fast::hash(bytes));
                writeln!(out, "buffer   {name:<10} {kind:<10} {:>10} bytes, crc32 {crc:08x}", bytes.len())?;
            }
            let (code, interpreter) = (outcome.seconds, outcome.interpreter_seconds);
            let count = outcome.instructions.map_or(String::new(), |n| format!(", {} instructions", Count(n)));
            writeln!(out, "seconds  {code:.6}{count} ({interpreter:.3} by the interpreter)")?;
            match &outcome.difference {
                None => writeln!(out, "result   equal to the interpreter's, bit for bit")?,
                Some(difference) => writeln!(out, "result   {difference}")?,
            }
            match &outcome.standing {
                None => {}
                Some(Ok(Standing::Same)) => writeln!(out, "by spec  the same bits as the kernel of its spec")?,
                Some(Ok(Standing::Close)) => writeln!(out, "by spec  within the error bounds of its spec's formula")?,
                Some(Err(departure)) => writeln!(out, "by spec  wrong: {departure}")?,
            }
        }
        match outcome.difference {
            None => match outcome.standing {
                Some(Err(departure)) => {
                    let dims = kernel.dims.iter().zip(&case.dims);
                    let dims = dims.map(|(dim, value)| format!("{} {value}", dim.name)).collect();
                    let kernel = kernel.name.clone();
                    Err(ixc_error::Error::from(ReplacementError::Departs { path: None, kernel, dims, departure })
                        .into())
                }
                None | Some(Ok(_)) => Ok(()),
            },
            Some(difference) => {
                let (kernel, engine) = (kernel.name.clone(), engine.name());
                let difference = difference.to_string();
                Err(ixc_error::Error::from(KernelError::Differs { kernel, engine, difference }).into())
            }
        }
    }
}

/// Returns the difference from the spec.
fn departure(outcome: &Outcome) -> Option<&Departure> {
    outcome.standing.as_ref()?.as_ref().err().map(|departure| &**departure)
}

fn standing_name(standing: &Result<Standing, Box<Departure>>) -> &'static str {
    match standing {
        Ok(Standing::Same) => "same",
        Ok(Standing::Close) => "close",
        Err(_) => "wrong",
    }
}
