//! `ixc kernel tune`: which width, chunk and pace of a product's kernel is fastest.

use std::io::Write;
use std::path::PathBuf;

use ixc::kernels::KernelError;
use ixc::kernels::bench::Place;
use ixc::kernels::tune::{self, Found, Row, tune};
use ixc::machine::features::cpu_name;
use ixc::tuned::{self, By, Place as Kept, own_file, put};
use serde_json::json;

use super::super::output::{self, Printable};
use super::choice::KernelChoice;

/// Searches how a product's kernel is fastest: how wide items and bands are, how many rows they have, how far ahead is read, unrolled loops.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Candidates are measured in turn with the kernel that the pass `tile` chooses by the caches, on one thread; a target that cannot \
run here is searched by the model of its CPU, which knows nothing of prefetches. The fastest is measured again and must be faster by more than the \
rounds are apart. Then it is written to a file that later runs on this CPU read: in the user's cache folder, or where -o says, for --tuned. No \
candidate changes a bit of what a model says: which kernel does how many rows is not searched.

EXAMPLES:
  ixc kernel tune linear format=q4_k_r16 k=2048 tile=32 n=2048 shape=gemv
  ixc kernel tune model.gguf:gemm_q6_k --place caches
  ixc kernel tune gemm_q4_k_r16 --target zen4 -o zen4.json
  ixc kernel tune gemv_q4_k_r16 --choose gemv@0/1 -o tuned.json
                                             that one, whatever is fastest
  ixc kernel tune gemv_q4_k_r16 --no-save --json"
)]
pub struct Args {
    #[command(flatten)]
    kernel: KernelChoice,
    /// Where weights lie: memory, as when a model decodes, or caches.
    #[arg(long, value_name = "PLACE", default_value = "memory", value_parser = place)]
    place: Place,
    /// Rounds of each measurement.
    #[arg(short, long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    repetitions: u32,
    /// The file to put a winner into, beside what it has of other weights [default: for this machine, one in the user's cache folder].
    #[arg(short, long, value_name = "FILE", conflicts_with = "no_save")]
    output: Option<PathBuf>,
    /// Write this candidate, in the words of the table, and not the fastest: what was measured is said beside it.
    #[arg(long, value_name = "CANDIDATE", conflicts_with = "no_save")]
    choose: Option<String>,
    /// Write nothing.
    #[arg(long)]
    no_save: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn place(text: &str) -> Result<Place, String> {
    match text {
        "memory" => Ok(Place::Memory),
        "caches" => Ok(Place::Caches),
        _ => Err("expected memory or caches".to_owned()),
    }
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let chosen = self.kernel.choose()?;
        let target = chosen.target;
        let spec = chosen.spec.ok_or_else(|| {
            let why = "nothing says its spec".to_owned();
            ixc::Error::from(KernelError::NotTuned { spec: chosen.name.clone(), why })
        })?;
        let runs = target.missing().is_empty();
        let by = match runs {
            true => tune::By::Time { place: self.place, rounds: self.repetitions },
            false => tune::By::Model { place: self.place },
        };
        let place = match (&self.output, self.no_save) {
            (Some(path), _) => Some(Kept { path: path.clone(), is_own: false }),
            (None, true) => None,
            (None, false) if target == ixc::targets::Target::native() => {
                Some(Kept { path: own_file(target).map_err(ixc::Error::from)?, is_own: true })
            }
            (None, false) => {
                return Err(ixc::Error::from(ixc::error::tuned::TunedError::NoPlace { target: target.name() }).into());
            }
        };
        let source = if runs { By::Cpu(cpu_name()) } else { By::Model(target.name().to_owned()) };
        if let Some(place) = &place {
            // Before what takes minutes.
            place.check(target, &source)?;
        }
        let row = target.row();
        let caches =
            if target == ixc::targets::Target::native() { ixc::targets::CoreCaches::here(row) } else { row.caches() };
        let (unit, scale) = if runs { ("us/row", 1e6) } else { ("cycles/row", 1.0) };
        let width = if self.json { 0 } else { 28 };
        let line = |out: &mut dyn Write, row: &Row| {
            let [ratio, low, high] = row.ratio;
            let rates = format!("{:>12.3} {ratio:>7.3}  {low:>7.3} {high:>7.3}", row.cost * scale);
            writeln!(out, "{:<width$} {rates}", row.what)
        };
        if !self.json {
            writeln!(out, "{spec}")?;
            let source = match &source {
                By::Cpu(name) => name.clone(),
                By::Model(name) => format!("the model of {name}"),
            };
            writeln!(out, "for {} on {}", target.name(), Printable(&source))?;
            writeln!(out, "{:<width$} {unit:>12} {:>7}  {:>7} {:>7}", "candidate", "ratio", "quarter", "quarter")?;
        }
        let mut failed = None;
        let found = tune(&spec, (target, &caches), by, &mut |row| {
            if !self.json && failed.is_none() {
                failed = line(out, row).err();
            }
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        let chosen = self.choose.as_deref().map(|what| found.candidate(what)).transpose()?;
        let Found { kernel, own, default, rows, winner, close, .. } = found;
        let by_hand = chosen.is_some();
        let winner = chosen.or(winner);
        if let Some(place) = &place {
            let stored = winner.as_ref().map(|(row, choice)| tuned::Row {
                choice: choice.to_string(),
                instead_of: own.clone(),
                ratio: row.ratio,
            });
            put(place, target, &source, kernel, stored)?;
        }
        if self.json {
            let facts = json!({
                "spec": spec.to_string(),
                "target": target.name(),
                "by": source,
                "unit": unit,
                "tiling": own,
                "default": default,
                "candidates": rows,
                "winner": winner.as_ref().map(|(row, choice)| json!({ "measured": row, "choice": choice.to_string() })),
                "close": close,
                "file": winner.as_ref().and(place.as_ref()).map(|place| &place.path),
            });
            return Ok(output::json(out, "ixc.kernel-tune.v1", &facts)?);
        }
        writeln!(out, "by the caches: {own}, {:.3} {unit}", default.cost * scale)?;
        match (&winner, &close) {
            (Some((row, choice)), _) => {
                let [ratio, low, high] = row.ratio;
                let why = if by_hand { "as asked for" } else { "fastest, measured again" };
                writeln!(out, "{why}: {} is {ratio:.3} times as fast ({low:.3} to {high:.3})", row.what)?;
                writeln!(out, "chosen: {choice}")?;
                match &place {
                    Some(Kept { path, .. }) => writeln!(out, "written to {}", Printable(&path.display().to_string()))?,
                    None => writeln!(out, "not written")?,
                }
            }
            (None, Some(row)) => {
                let [ratio, low, high] = row.ratio;
                writeln!(
                    out,
                    "nothing is faster by more than rounds are apart: {} is {ratio:.3} times as fast ({low:.3} to {high:.3})",
                    row.what
                )?;
            }
            (None, None) => writeln!(out, "nothing is faster")?,
        }
        Ok(())
    }
}
