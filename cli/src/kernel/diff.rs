//! `ixc kernel diff`: compares two kernels with the same signature on the same inputs.

use std::io::Write;

use ixc_compile::compile::TargetName;
use ixc_workbench::kernels::KernelError;
use ixc_workbench::kernels::bench::MemoryLevel;
use ixc_workbench::kernels::choose::{TargetKernel, choose};
use ixc_workbench::kernels::diff::{self, BufferDiff, Cost, LinePair, SpeedRatio};
use ixc_workbench::kernels::run::Engine;
use serde_json::json;

use super::super::output::{self, Count};
use super::choice::{InputChoice, dims_text};

/// Compares two kernels with the same buffers and dims: results on equal inputs, cost, time on this
/// machine, instructions.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "With one file, the reference is the kernel of its line \"; spec: ...\": the kernel before the \
edit. Different results are not a failure, since sums in another order differ in their last bits; \
--exit-code makes them one. `ixc kernel run` fails only if results exceed the error bounds of the \
spec's formula.

EXAMPLES:
  ixc kernel show gemv_q4_k --stage ir > fast.ix
  ixc kernel diff fast.ix                        after editing it
  ixc kernel diff old.ix new.ix --rows 4 --asm
  ixc kernel diff fast.ix --target sapphire-rapids --emulate"
)]
pub struct Args {
    /// Kernel: a row's name, a spec in quotes, FILE.ix or MODEL:NAME.
    a: String,
    /// Second kernel, compared with the first.
    b: Option<String>,
    /// Target or CPU to generate code for: `native`, or a name that `ixc doctor` lists.
    #[arg(long, default_value = "native")]
    target: TargetName,
    #[command(flatten)]
    inputs: InputChoice,
    /// Run both in the emulator, on any machine; they are not timed.
    #[arg(long)]
    emulate: bool,
    /// Rounds of timing, one kernel after the other; 0 does not time them.
    #[arg(short, long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    repetitions: u32,
    /// Print all instructions of both side by side, instead of the differences in IR.
    #[arg(long)]
    asm: bool,
    /// Exit with status 1 if results differ in any bit.
    #[arg(long)]
    exit_code: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Columns of each side of a listing.
const COLUMNS: usize = 68;

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let (a, b) = self.kernels()?;
        let equal_ir = a.kernel == b.kernel;
        diff::check_same_signature(&a, &b)?;
        // The second kernel gets the inputs of the first one.
        let b = TargetKernel { spec: a.spec.clone(), rows: a.rows, ..b };
        let (a, b) = (self.inputs.case(a)?, self.inputs.case(b)?);
        let engine =
            if self.emulate || !a.chosen.target.missing().is_empty() { Engine::Emulator } else { Engine::Native };
        let results = diff::results(&a, &b, engine)?;
        let costs = [Cost::from_case(&a)?, Cost::from_case(&b)?];
        let timed = engine == Engine::Native && self.repetitions > 0;
        let places: &[MemoryLevel] = if timed { &[MemoryLevel::Caches, MemoryLevel::Memory] } else { &[] };
        let speeds: Vec<SpeedRatio> =
            places.iter().map(|&place| diff::speed(&a, &b, place, self.repetitions)).collect::<Result<_, _>>()?;
        let (first, second) = (&a.chosen, &b.chosen);
        if self.json {
            let buffers: Vec<_> = (results.iter())
                .map(|buffer| {
                    json!({
                        "name": buffer.name,
                        "equal": buffer.first.is_none(),
                        "different": buffer.first.as_ref().map_or(0, |first| first.different),
                        "difference": buffer.first.as_ref().map(ToString::to_string),
                        "nmse": buffer.nmse,
                    })
                })
                .collect();
            let facts = json!({
                "kernels": [first.kernel.name, second.kernel.name],
                "spec": first.spec.as_ref().map(ToString::to_string),
                "target": first.target.name(),
                "engine": engine.name(),
                "dims": a.dims,
                "same_ir": equal_ir,
                "buffers": buffers,
                "costs": costs,
                "speeds": speeds,
            });
            output::json(out, "ixc.kernel-diff.v1", &facts)?;
            return self.status(&results, first, second);
        }
        writeln!(out, "a        {}", first.kernel.name)?;
        writeln!(out, "b        {}{}", second.kernel.name, if equal_ir { ", with the same IR as a" } else { "" })?;
        if let Some(spec) = &first.spec {
            writeln!(out, "spec     {spec}")?;
        }
        if !a.dims.is_empty() {
            writeln!(out, "dims     {}", dims_text(&first.kernel, &a.dims))?;
        }
        for buffer in &results {
            match (&buffer.first, buffer.nmse) {
                (None, _) => writeln!(out, "results  %{} equal, bit for bit, on {}", buffer.name, engine.name())?,
                (Some(first), Some(nmse)) => writeln!(out, "results  {first}; NMSE {nmse:.1e}")?,
                (Some(first), None) => writeln!(out, "results  {first}")?,
            }
        }
        for (name, Cost { instructions, bytes, spills, cycles }) in ["a", "b"].into_iter().zip(&costs) {
            let count =
                |n: &Option<usize>, what: &str| n.map_or(String::new(), |n| format!(", {} {what}", Count(n as u64)));
            let cycles = cycles.map_or(String::new(), |cycles| {
                format!(", {cycles:.0} cycles by the cost model of {}", first.target.name())
            });
            writeln!(
                out,
                "cost {name}   {bytes} bytes{}{}{cycles}",
                count(instructions, "instructions"),
                count(spills, "spills")
            )?;
        }
        for SpeedRatio { place, seconds: [a, b], ratio: [median, least, most] } in &speeds {
            let place = if *place == MemoryLevel::Caches { "caches" } else { "memory" };
            writeln!(
                out,
                "speed    {place}: a {:.3} us, b {:.3} us; b is {median:.3} times as fast as a ({least:.3} to {most:.3})",
                a * 1e6,
                b * 1e6
            )?;
        }
        let pairs =
            if self.asm { diff::instructions(first, second)? } else { diff::statements(&first.kernel, &second.kernel) };
        write_side_by_side(&pairs, self.asm, out)?;
        self.status(&results, first, second)
    }

    /// Fails if results differ and `--exit-code` is given.
    fn status(&self, results: &[BufferDiff], a: &TargetKernel, b: &TargetKernel) -> anyhow::Result<()> {
        if !self.exit_code || results.iter().all(|buffer| buffer.first.is_none()) {
            return Ok(());
        }
        let names = [a.kernel.name.clone(), b.kernel.name.clone()];
        Err(ixc_error::Error::from(KernelError::Unequal { names }).into())
    }

    /// Returns the two kernels to compare.
    fn kernels(&self) -> anyhow::Result<(TargetKernel, TargetKernel)> {
        let first = choose(&self.a, self.target.target)?;
        Ok(match &self.b {
            Some(b) => (first, choose(b, self.target.target)?),
            None => (diff::generate_unedited(&first)?, first),
        })
    }
}

/// Prints two texts side by side: all lines, or only the differences.
fn write_side_by_side(pairs: &[LinePair], all: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    for LinePair { a, b, is_equal } in pairs.iter().filter(|pair| all || !pair.is_equal) {
        let cut = |line: &Option<String>| line.as_deref().unwrap_or_default().chars().take(COLUMNS).collect::<String>();
        let sign = match (is_equal, a, b) {
            (true, ..) => ' ',
            (false, Some(_), Some(_)) => '|',
            (false, Some(_), None) => '<',
            (false, None, _) => '>',
        };
        writeln!(out, "{}", format!("{:<COLUMNS$} {sign} {}", cut(a), cut(b)).trim_end())?;
    }
    Ok(())
}
