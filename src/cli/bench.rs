//! `ixc bench`: tokens per second.

use std::io::Write;
use std::path::PathBuf;

use ixc::compile::TargetName;
use ixc::session::{Session, SessionOptions};
use serde::Serialize;

use super::choose::ModelChoice;
use super::interrupt::{self, Interrupted};
use super::output::{self, Printable};

/// Measures how many tokens per second a model reads (prefill) and writes (decode), each from an empty context.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc bench model.gguf -p 512 -n 64 -t 1,2 -r 3
  ixc bench model.gguf -p 512 -n 0 --json
  ixc bench                                   the built-in demo model")]
pub struct Args {
    #[command(flatten)]
    model: ModelChoice,
    /// Tokens of prefill; 0 leaves it out.
    #[arg(short = 'p', long = "prefill", alias = "n-prompt", value_name = "N", default_value_t = 512)]
    prefill: usize,
    /// Tokens of decode; 0 leaves it out.
    #[arg(short = 'n', long = "decode", alias = "n-gen", value_name = "N", default_value_t = 64)]
    decode: usize,
    /// Numbers of threads to measure with [default: one for each core].
    #[arg(short, long, value_delimiter = ',')]
    threads: Vec<usize>,
    /// How often each is measured, after one run that does not count.
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// What to generate code for: native, avx2 or portable.
    #[arg(long)]
    target: Option<TargetName>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What was measured for one number of threads.
#[derive(Serialize)]
struct Row {
    threads: usize,
    target: &'static str,
    test: &'static str,
    tokens: usize,
    /// Tokens per second.
    median: f64,
    min: f64,
    max: f64,
    all: Vec<f64>,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        interrupt::install()?;
        let path = self.model.path().map(PathBuf::as_path);
        let threads: Vec<Option<usize>> = match self.threads.as_slice() {
            [] => vec![None],
            threads => threads.iter().copied().map(Some).collect(),
        };
        let mut rows = Vec::new();
        if !self.json {
            let name = path.map_or(ixc::demo::NAME.into(), |path| path.display().to_string());
            writeln!(out, "{}", Printable(&name))?;
            writeln!(
                out,
                "{:>7} {:<9} {:<7} {:>6} {:>12}   min .. max",
                "threads", "target", "test", "tokens", "tokens/s"
            )?;
        }
        for threads in threads {
            let context = Some(self.prefill.max(self.decode + 1));
            let target = self.target.map(|target| target.0);
            let options = SessionOptions { threads, context, target, ..SessionOptions::default() };
            let mut session = Session::open(path, &options)?;
            for (test, tokens) in [("prefill", self.prefill), ("decode", self.decode)] {
                if tokens == 0 {
                    continue;
                }
                let row = self.measure(&mut session, test, tokens)?;
                if !self.json {
                    writeln!(
                        out,
                        "{:>7} {:<9} {test:<7} {tokens:>6} {:>12.2}   {:.2} .. {:.2}",
                        row.threads, row.target, row.median, row.min, row.max
                    )?;
                    out.flush()?;
                }
                rows.push(row);
            }
        }
        if self.json { Ok(output::json(out, &rows)?) } else { Ok(()) }
    }

    fn measure(&self, session: &mut Session, test: &'static str, tokens: usize) -> anyhow::Result<Row> {
        let mut rates = Vec::new();
        for round in 0..=self.repetitions {
            let phase = if test == "prefill" { session.time_prefill(tokens)? } else { session.time_decode(tokens)? };
            if round > 0 {
                rates.push(phase.tokens as f64 / phase.seconds.max(1e-9));
            }
            if interrupt::asked() {
                return Err(Interrupted.into());
            }
        }
        let mut sorted = rates.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
            _ => sorted[middle],
        };
        Ok(Row {
            threads: session.threads(),
            target: session.target().name(),
            test,
            tokens,
            median,
            min: sorted[0],
            max: sorted[sorted.len() - 1],
            all: rates,
        })
    }
}
