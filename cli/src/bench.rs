//! `ixc bench`: tokens per second.

pub mod compare;
mod deferral;
mod given;
mod rank_traffic;
mod report;
mod setting;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ixc_compile::bytes_per_token::Traffic;
use ixc_compile::compile;
use ixc_compile::machine::system::peak_memory;
use ixc_compile::model::Model;
use ixc_generate::loaded_model::{LoadOptions, LoadedModel, PlanOrModel, UnloadedModel};
use ixc_generate::timing::{Phase, StreamCounts};
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Plan;
use ixc_measure::bench::Bench;
use ixc_measure::forecast::StoredForecast;
use ixc_measure::streaming::{BASELINE, PhaseMeasurement, share};
use ixc_passes::{cache, manager};
use ixc_runtime::engine;
use ixc_runtime::progress::ProgressCounter;
use ixc_runtime::stats::ExchangeCounts;
use serde::Serialize;

use super::Usage;
use super::divergence;
use super::model_args::{ModelChoice, NumaChoice, PinChoice, StreamingChoice, TargetChoice};
use super::output::Watch;
use super::perf::PerfChoice;
use super::ranks;
use super::streaming;
use rank_traffic::RankTraffic;
use report::{Format, Report};
use setting::Setting;

/// Measures tokens per second of prefill and decode, from an empty context or at a depth.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc bench model.gguf -p 512 -n 64 -t 1,2 -r 3
  ixc bench model.gguf -p 32,128,512 -n 0
  ixc bench model.gguf -p 0 -n 64 -d 0,8192   decode at depths 0 and 8192
  ixc bench model.gguf -p 512 -n 0 --json     with model, machine and version
  ixc bench model.gguf --format csv >> all.csv
  ixc bench model.gguf -p 0 -n 64 --memory 6GiB --defer 2
                                              gain and loss of deferral
  mpirun -n 2 ixc bench plan.ixp -t 1         two ranks, with their messages
  ixc bench model.gguf --json > now.json
  ixc bench --compare before.json now.json    changes beyond noise
  ixc bench                                   the built-in demo model

--compare reads files of --json. It first prints differences in models, options and machines, then \
the speed of B relative to A, row by row. The ratio is the median over all pairs of rounds, with \
the interval of a Mann-Whitney test. A change is significant if the interval excludes 1 and the \
ratio differs from 1 by at least 1 %. The exit status is 3 if any row is slower, else 0.

With --defer, no expert is read ahead unless --prefetch selects a method.")]
pub struct Args {
    #[command(flatten)]
    model: ModelChoice,
    /// Prompt tokens to prefill; 0 skips prefill.
    #[arg(short = 'p', long, alias = "n-prompt", value_name = "N", value_delimiter = ',', default_value = "512")]
    prefill: Vec<usize>,
    /// Tokens to decode; 0 skips decode.
    #[arg(short = 'n', long, alias = "n-gen", value_name = "N", value_delimiter = ',', default_value = "64")]
    decode: Vec<usize>,
    /// Tokens in the KV cache before the measurement begins.
    #[arg(short, long, alias = "n-depth", value_name = "N", value_delimiter = ',', default_value = "0")]
    depth: Vec<usize>,
    /// Thread counts to measure [default: one thread per core].
    #[arg(short, long, value_name = "N", value_delimiter = ',')]
    threads: Vec<usize>,
    #[command(flatten)]
    pin: PinChoice,
    #[command(flatten)]
    nodes: NumaChoice,
    /// Repetitions of each measurement, after one warm-up run.
    #[arg(short, long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    #[command(flatten)]
    target: TargetChoice,
    #[command(flatten)]
    streaming: StreamingChoice,
    #[command(flatten)]
    perf: PerfChoice,
    /// Text for --defer: its logits are compared [default: a few English sentences].
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Compare two files that --json wrote, without measuring. Measuring options have no effect.
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["model", "model_file", "prefill", "decode", "depth", "repetitions", "text"])]
    compare: Vec<PathBuf>,
    /// Output format. Every format except text also records the model, machine, options and date.
    /// With --compare, csv and jsonl hold rows only.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
    /// Same as --format json.
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

const PREFILL: &str = "prefill";
const DECODE: &str = "decode";

/// One kind of work to measure: a prompt or generated tokens.
#[derive(Clone, Copy)]
struct Work {
    /// Tokens in the KV cache before the test.
    depth: usize,
    /// [`PREFILL`] or [`DECODE`].
    test: &'static str,
    tokens: usize,
}

/// Results of one test with one number of threads.
#[derive(Default, Serialize)]
struct Row {
    threads: usize,
    target: &'static str,
    test: &'static str,
    tokens: usize,
    /// Tokens in the KV cache before the test.
    depth: usize,
    /// Min bytes of the model file and the KV cache that each token reads, in the middle of the
    /// run. Set only for decode, and unknown for a plan.
    bytes_per_token: Option<u64>,
    /// Peak resident memory of this process so far, mapped files included.
    peak_memory: Option<u64>,
    /// Median over all repetitions, in tokens per second.
    median: f64,
    min: f64,
    max: f64,
    all: Vec<f64>,
    /// Exchanges of rank 0 in a run of the test; set for a plan of several ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    exchanged: Option<RankTraffic>,
    /// Comparison with a run without deferral; set if experts are deferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    deferral: Option<deferral::Deferral>,
    /// Bytes of streamed experts that were read for each token; 0 if all are in memory.
    bytes_read_per_token: f64,
    /// Median over rounds of a ratio: the drive's read rate while experts were missing, relative to
    /// its rate without a model. The rate without a model is measured before and after each round.
    drive_share: Option<f64>,
    /// Counters of expert prediction, summed over this and earlier rows with the same number of
    /// threads; set if experts are streamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefetch: Option<serde_json::Value>,
    /// Lines that compare the time per token with the time of computing only, the time of reading
    /// only, and the forecast.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    forecast: Vec<String>,
}

impl Args {
    /// Returns whether the command measures, and does not compare files.
    pub fn measures(&self) -> bool {
        self.compare.is_empty()
    }

    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let format = if self.json { Format::Json } else { self.format };
        if let Some(paths) = compare::pair(&self.compare)? {
            return compare::compare(&paths, format, out);
        }
        if self.text.is_some() && self.streaming.defer() == 0 {
            return Err(
                Usage("--text measures how deferral of experts changes the output: give --defer, too".into()).into()
            );
        }
        self.perf.enable()?;
        let path = self.model.path();
        let streaming = self.streaming.options()?;
        let threads: Vec<Option<usize>> = match self.threads.as_slice() {
            [] => vec![None],
            threads => threads.iter().copied().map(Some).collect(),
        };
        let mut works = Vec::new();
        for &depth in &self.depth {
            for (test, list) in [(PREFILL, &self.prefill), (DECODE, &self.decode)] {
                works.extend(list.iter().map(|&tokens| Work { depth, test, tokens }));
            }
        }
        works.retain(|work| work.tokens > 0);
        // At least one position, because a context without positions is invalid.
        let context = works.iter().map(|work| work.depth.saturating_add(work.tokens)).max().unwrap_or(1);
        let (target, caches) = (self.target.target(), self.target.caches());
        let options = LoadOptions {
            compile: compile::CompileOptions { target, caches, ..streaming.compile },
            run: engine::EngineOptions {
                pin: self.pin.pin,
                numa: self.nodes.numa,
                context: Some(context as u64),
                ..streaming.run
            },
            model_file: self.model.file().map(Path::to_owned),
            ..streaming
        };
        let options_with = |threads| {
            let run = engine::EngineOptions { threads, ..options.run.clone() };
            LoadOptions { run, ..options.clone() }
        };
        if options.run.transport.is_some() && self.streaming.defer() > 0 {
            return Err(Usage("--defer is measured in one process: leave mpirun out".into()).into());
        }
        if ranks::is_follower() {
            return threads.into_iter().try_for_each(|threads| ranks::follow(path, &options_with(threads)));
        }
        let mut model = UnloadedModel::open(path, &options)?;
        let content = model.content(&options)?;
        let plan = match content {
            PlanOrModel::Plan(plan) if plan.ranks.is_some_and(|ranks| ranks.ranks > 1) => Some(plan.clone()),
            PlanOrModel::Plan(_) | PlanOrModel::Model(_) => None,
        };
        let traffic = content.model().map(|model| traffic(model, &options.compile)).transpose()?;
        let name = self.model.name().display().to_string();
        let mut report = Report::new(format, &name, Setting::new(&self, &options.compile, content)?, out);
        // With `--defer`, each measurement opens the model itself.
        let of_deferral = content.model().filter(|_| self.streaming.defer() > 0).map(divergence::positions);
        let mut model = Some(model).filter(|_| of_deferral.is_none());
        for threads in threads {
            let options = options_with(threads);
            if let Some(positions) = of_deferral {
                deferral::measure(&self, path, &options, &works, traffic, positions, &mut report)?;
                continue;
            }
            let opened = model.take().map_or_else(|| UnloadedModel::open(path, &options), Ok)?;
            let mut bench = load(opened, &options)?;
            // The model is loaded, so the options are valid and rows will follow.
            report.begin()?;
            for &work in &works {
                let rounds = self.rounds(&mut bench, work, self.repetitions)?;
                let mut row = Row::new(bench.model(), work, traffic, rounds.rates.clone());
                row.add_exchanges(bench.model(), plan.as_ref(), &rounds);
                row.add_streaming(bench.model(), path, rounds);
                report.row(row)?;
            }
        }
        Ok(report.finish()?)
    }

    /// Runs the work once to warm up, and then `repetitions` times. Returns the rate of each round,
    /// and measurements of the drive.
    fn rounds(&self, bench: &mut Bench, work: Work, repetitions: u32) -> anyhow::Result<Rounds> {
        let Work { depth, test, tokens } = work;
        let mut rounds = Rounds::default();
        // A drive's speed changes, so it is measured before and after each round. Rounds that are
        // compared with each other (`--defer`) skip these measurements.
        let drives = self.streaming.defer() == 0;
        let own = |model: &LoadedModel| model.drive().filter(|_| drives).and_then(|drive| drive.rate_now(BASELINE));
        let mut before = own(bench.model());
        for round in 0..=repetitions {
            let begin = bench.model().engine().stream().map(|store| store.stats().drive);
            bench.take_stats();
            let phase = match test {
                PREFILL => bench.prefill(depth, tokens)?,
                _ => bench.decode(depth, tokens)?,
            };
            let exchanged = bench.take_stats().exchanged;
            let model = bench.model();
            if round > 0 {
                rounds.rates.push(phase.tokens as f64 / phase.seconds.max(1e-9));
                rounds.seconds += phase.seconds;
                rounds.streamed += phase.streamed;
                rounds.exchanged += exchanged;
            }
            if let (Some(begin), Some(store), Some(first)) = (begin, model.engine().stream(), before) {
                let (rate, after) = (store.stats().drive.since(&begin).routed_rate(), own(model));
                if let (true, Some(after)) = (round > 0, after) {
                    rounds.owns.extend([first, after]);
                    rounds.shares.extend(share(rate, &[first, after]));
                }
                before = after.or(before);
            }
        }
        Ok(rounds)
    }
}

/// Results of repeated rounds of one test.
#[derive(Default)]
struct Rounds {
    /// Tokens per second of each round.
    rates: Vec<f64>,
    /// Drive's read rate in each round with reads, relative to its rate without a model.
    shares: Vec<f64>,
    /// Rate of the drive without a model, in bytes per second, before and after each round.
    owns: Vec<f64>,
    /// Counters of streaming, summed over the rounds.
    streamed: StreamCounts,
    /// Duration in seconds, summed over the rounds.
    seconds: f64,
    /// Exchanges with other ranks, summed over the rounds.
    exchanged: ExchangeCounts,
}

impl Rounds {
    /// Returns the bytes of experts that were read for each token.
    fn bytes_per_token(&self, tokens: usize) -> f64 {
        self.streamed.bytes as f64 / (self.rates.len() * tokens).max(1) as f64
    }
}

/// Returns the bytes of weights and KV cache that a token reads, with the KV cache in the chosen
/// format.
fn traffic(model: &Model, compile: &compile::CompileOptions) -> Result<Traffic, ixc_error::Error> {
    let (module, context) = (model.arch.module.clone(), compile::context(compile, None));
    Ok(Traffic::from_module(&manager::run_pipeline(module, &[cache::PASS.name], &context)?))
}

/// Opens a benchmark, see [`load`].
fn open(path: Option<&Path>, options: &LoadOptions) -> anyhow::Result<Bench> {
    load(UnloadedModel::open(path, options)?, options)
}

/// Loads a benchmark with packed weights, so that no measured step packs them.
fn load(model: UnloadedModel, options: &LoadOptions) -> anyhow::Result<Bench> {
    let progress = Arc::new(ProgressCounter::default());
    // Shows the progress of loading until the measurement begins.
    let _watch = Watch::new(&progress);
    let run = engine::EngineOptions { progress: Some(Arc::clone(&progress)), ..options.run.clone() };
    Ok(Bench::new(model.load(&LoadOptions { run, ..options.clone() })?)?)
}

impl Row {
    fn new(model: &LoadedModel, work: Work, traffic: Option<Traffic>, rates: Vec<f64>) -> Row {
        let Work { depth, test, tokens } = work;
        let mut sorted = rates.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
            _ => sorted[middle],
        };
        Row {
            threads: model.threads(),
            target: model.target().name(),
            test,
            tokens,
            depth,
            bytes_per_token: traffic.filter(|_| test == DECODE).map(|traffic| traffic.at((depth + tokens / 2) as u64)),
            peak_memory: peak_memory(),
            median,
            min: sorted[0],
            max: sorted[sorted.len() - 1],
            all: rates,
            exchanged: None,
            deferral: None,
            bytes_read_per_token: 0.0,
            drive_share: None,
            prefetch: None,
            forecast: Vec::new(),
        }
    }

    /// Adds the exchanges of a run, counted and planned.
    fn add_exchanges(&mut self, model: &LoadedModel, plan: Option<&Plan<Kernel>>, rounds: &Rounds) {
        let step = if self.test == PREFILL { model.max_tokens() } else { 1 };
        let of_plan = |plan| RankTraffic::new(rounds.exchanged, rounds.rates.len() as u64, plan, self.tokens, step);
        self.exchanged = plan.map(of_plan);
    }

    /// Adds the measurements of the drive, and the comparison with the forecast.
    fn add_streaming(&mut self, model: &LoadedModel, path: Option<&Path>, rounds: Rounds) {
        let Some(store) = model.engine().stream() else { return };
        let tokens = rounds.rates.len() * self.tokens;
        self.bytes_read_per_token = rounds.bytes_per_token(self.tokens);
        self.drive_share = median_of(rounds.shares);
        self.prefetch = streaming::facts(model.engine());
        // The forecast applies only to an empty context.
        let known = path
            .filter(|_| self.depth == 0)
            .and_then(|path| StoredForecast::load(path, model.threads(), model.target()));
        let observed = PhaseMeasurement {
            phase: Phase { tokens, seconds: rounds.seconds, packing: 0.0, streamed: rounds.streamed },
            own: median_of(rounds.owns),
            prompt: (self.test == PREFILL).then_some(self.tokens),
            defers: model.defers(),
        };
        self.forecast = streaming::comparison_lines(&observed.compare(store, known.as_ref()));
    }
}

/// Returns the median of the numbers; `None` without numbers.
fn median_of(mut all: Vec<f64>) -> Option<f64> {
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}
