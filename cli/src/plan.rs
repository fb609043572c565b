//! `ixc plan`: predicted speed of a model for several memory budgets.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ixc_compile::compile::CompileOptions;
use ixc_compile::model::{Input, Model};
use ixc_generate::budget::compile_within;
use ixc_generate::drive;
use ixc_generate::loaded_model::LoadOptions;
use ixc_generate::plan_file::locate;
use ixc_measure::forecast::{self, Costs, Forecast, Limit, PROMPT, Routing, Shape, StoredForecast, forecast};
use ixc_passes::options::OptionSet;
use ixc_runtime::engine;
use ixc_runtime::file::{PlanFile, of_file};
use ixc_runtime::load::LoadError;
use ixc_runtime::memory_estimate::{self, Needs};
use ixc_runtime::progress::{Activity, ProgressCounter};
use ixc_runtime::trace::Recorder;
use ixc_targets::Target;
use serde_json::{Value as Json, json};

use super::model_args::{ModelChoice, QueueChoice, TargetChoice};
use super::output::{self, Bytes, Printable, Watch, count_text, note};
use super::passes::KvChoice;
use super::size::Size;
use super::terminal;

/// Predicts tokens per second for several memory budgets, from short measurements of this machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc plan large.gguf                          from the minimum to all of it
  ixc plan large.gguf --memory 6GiB --memory 12GiB
  ixc plan large.gguf --hit-rate 0.8           assumes 80 % hits
  ixc plan large.ixp                           with the experts of a plan
  ixc plan                                     the built-in demo model

The command runs the model's first layers from memory and reads at random places of the model \
file, for a few seconds. The demo model is first written to a file in the user's cache folder.

The measurements are kept. `ixc run --stats` and `ixc bench` then print the error of the \
prediction, and the routing that they measure improves the next one.

The prediction is for runs without prefetch and deferral (--prefetch off, no --defer). Mapped \
experts (--experts map) have no budget. docs/streaming.md describes the computation.")]
pub struct Args {
    #[command(flatten)]
    model: ModelChoice,
    /// Memory budget, such as 6GiB; repeatable [default: several, from the minimum to the whole
    /// model].
    #[arg(long, value_name = "SIZE")]
    memory: Vec<Size>,
    /// Share of needed experts that are in memory, 0 to 1 [default: as the last run measured, or
    /// that of uniform routing, the worst case].
    #[arg(long, value_name = "PART", value_parser = part)]
    hit_rate: Option<f64>,
    /// Assume uniform routing, and ignore earlier runs.
    #[arg(long, conflicts_with = "hit_rate")]
    uniform: bool,
    /// Number of threads [default: one per core].
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// Context length in tokens [default: the model's, at most 4096].
    #[arg(short = 'c', long = "ctx", alias = "ctx-size", value_name = "N")]
    context: Option<u64>,
    /// Sequences at once, each with its own KV cache, as with `ixc serve --parallel`.
    #[arg(long, visible_alias = "np", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    parallel: u32,
    #[command(flatten)]
    queue: QueueChoice,
    #[command(flatten)]
    target: TargetChoice,
    #[command(flatten)]
    kv: KvChoice,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn part(text: &str) -> Result<f64, String> {
    let right = || format!("{text:?} is not a fraction; expected 0 to 1, such as 0.8");
    text.parse::<f64>().ok().filter(|part| (0.0..=1.0).contains(part)).ok_or_else(right)
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let prediction = self.predict()?;
        if self.json {
            return Ok(output::json(out, "ixc.plan.v1", &prediction.facts())?);
        }
        prediction.write_machine(out)?;
        Ok(prediction.write_budgets(out)?)
    }

    /// Measures this machine, and predicts the speed for each budget.
    fn predict(&self) -> anyhow::Result<Prediction> {
        // Experts are streamed from a file, so the demo model needs one.
        let path = self.model.path().map_or_else(ixc_compile::demo::file, |path| Ok(path.to_owned()))?;
        let no_experts = || ixc_measure::Error::NoExperts { path: path.clone() };
        let (threads, context) = (self.threads, self.context);
        let sequences = self.parallel;
        let engine_options =
            engine::EngineOptions { threads, context, sequences, memory: Some(1), ..engine::EngineOptions::default() };
        let Source { file, folder, model, target } = self.source(&path, &engine_options)?;
        let tokens = file.plan.max_tokens;
        let needs = memory_estimate::from_plan_file(&file, &folder, &engine_options)
            .map_err(ixc_error::Error::from)?
            .ok_or_else(no_experts)?;
        drop(file);
        // Refuse impossible budgets before anything is measured.
        let (slots, shape) = (self.slots(&needs)?, Shape::from_needs(&needs, tokens));
        let progress = Arc::new(ProgressCounter::default());
        progress.begin(Activity::Measuring, 0);
        let watch = Watch::new(&progress);
        let drive = drive::choose(&needs.path, self.queue.depth());
        let session = LoadOptions {
            compile: CompileOptions { target: Some(target), passes: self.passes(), ..CompileOptions::default() },
            run: engine::EngineOptions { threads, ..engine::EngineOptions::default() },
            ..LoadOptions::default()
        };
        let costs = forecast::measure(model, &session, &drive, &shape)?;
        drop(watch);
        let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        if let Err(why) = StoredForecast::keep(&path, threads, target, shape, costs) {
            note!("ixc: the measurements are not saved: {why}");
        }
        let measured = StoredForecast::routing(&path);
        let routing = |slots: u64| match self.hit_rate {
            Some(hits) => {
                let in_memory = slots as f64 / shape.all().max(1) as f64;
                Routing { evenness: Routing::evenness_from_reads(in_memory, 1.0 - hits), ..measured }
            }
            None if self.uniform => Routing::default(),
            None => measured,
        };
        let rows =
            slots.iter().map(|&(budget, slots)| (budget, forecast(&shape, &costs, slots, &routing(slots)))).collect();
        let routing = match measured.evenness {
            _ if self.hit_rate.is_some() => RoutingOrigin::HitRate,
            Some(evenness) if !self.uniform => RoutingOrigin::LastRun { evenness },
            _ => RoutingOrigin::Uniform,
        };
        Ok(Prediction { path, threads, target, needs, shape, drive, costs, routing, rows })
    }

    /// Returns each budget with the number of experts that fit in it.
    ///
    /// # Errors
    /// If a budget is too small.
    fn slots(&self, needs: &Needs) -> Result<Vec<(u64, u64)>, ixc_error::Error> {
        let budgets: Vec<u64> = match self.memory.as_slice() {
            [] => ladder(needs),
            given => given.iter().map(|size| size.0).collect(),
        };
        let slots = |budget: u64| {
            let spending = needs.spending(budget).map_err(ixc_error::Error::from)?;
            Ok((budget, spending.classes.iter().map(|class| u64::from(class.count)).sum()))
        };
        budgets.into_iter().map(slots).collect()
    }
}

/// Origin of the routing that a prediction assumes.
enum RoutingOrigin {
    /// The option `--hit-rate` states the share of experts in memory.
    HitRate,
    /// The last run measured the routing.
    LastRun {
        evenness: f64,
    },
    Uniform,
}

/// Predicted speed of a model for several budgets.
struct Prediction {
    path: PathBuf,
    threads: usize,
    target: Target,
    needs: Needs,
    shape: Shape,
    drive: drive::QueueDepth,
    costs: Costs,
    routing: RoutingOrigin,
    /// Budgets in bytes, with the forecast of each.
    rows: Vec<(u64, Forecast)>,
}

impl Prediction {
    /// Returns the prediction as JSON.
    fn facts(&self) -> Json {
        let Prediction { needs, shape, costs, .. } = self;
        let budget = |(budget, row): &(u64, Forecast)| {
            json!({
                "memory": budget,
                "experts_in_memory": row.slots,
                "hit_rate": row.hits,
                "bytes_per_token": row.bytes,
                "compute_seconds": row.compute,
                "reading_seconds": row.reading,
                "token_seconds": row.token,
                "decode": 1.0 / row.token,
                "prefill": PROMPT as f64 / row.prompt,
                "limit": row.limit,
            })
        };
        let evenness = match self.routing {
            RoutingOrigin::LastRun { evenness } => Some(evenness),
            RoutingOrigin::HitRate | RoutingOrigin::Uniform => None,
        };
        json!({
            "threads": self.threads,
            "target": self.target.name(),
            "least_memory": needs.min_bytes(),
            "fixed_memory": needs.fixed,
            "trace_memory": Recorder::bytes(self.threads),
            "experts": shape.all(),
            "queue_depth": self.drive.depth,
            "drive_bytes_per_second": costs.drive,
            "expert_seconds_to_read_alone": costs.alone,
            "dense_seconds": costs.dense,
            "expert_seconds": costs.experts,
            "packing_seconds_per_byte": costs.packing,
            "prompt_seconds": costs.prompt,
            "evenness": evenness,
            "budgets": self.rows.iter().map(budget).collect::<Vec<_>>(),
        })
    }

    /// Writes the measured rates, the memory that the model needs, and the assumed routing.
    fn write_machine(&self, out: &mut dyn Write) -> io::Result<()> {
        let Prediction { needs, shape, costs, .. } = self;
        writeln!(out, "{}", Printable(&self.path.display().to_string()))?;
        let (threads, target) = (count_text(self.threads as u64, "thread"), self.target.name());
        writeln!(out, "machine    {threads}, target {target}")?;
        writeln!(
            out,
            "token      {:.1} ms from memory, {:.1} ms of it for experts; uses {} of {}",
            1e3 * (costs.dense + costs.experts),
            1e3 * costs.experts,
            u64::from(shape.top_k) * u64::from(shape.layers),
            count_text(shape.all(), "expert")
        )?;
        let reads = count_text(self.drive.depth as u64, "concurrent read");
        writeln!(
            out,
            "drive      {:.2} GB/s with {reads}; {:.2} ms for an expert alone, {}",
            costs.drive / 1e9,
            1e3 * costs.alone,
            Bytes(shape.bytes as u64)
        )?;
        let packing = shape.bytes * shape.raw * costs.packing;
        if packing > 0.0 {
            let milliseconds = 1e3 * packing;
            writeln!(
                out,
                "packing    {milliseconds:.1} ms for each expert read; a plan of `ixc compile --memory SIZE` needs no packing"
            )?;
        }
        writeln!(
            out,
            "memory     {} without experts, {} at least; --trace needs {} more",
            Bytes(needs.fixed),
            Bytes(needs.min_bytes()),
            Bytes(Recorder::bytes(self.threads))
        )?;
        let routing = match self.routing {
            RoutingOrigin::HitRate => "as --hit-rate requests",
            RoutingOrigin::LastRun { .. } => "as the last run measured",
            RoutingOrigin::Uniform => "uniform, the worst case",
        };
        writeln!(out, "routing    {routing}\n")
    }

    /// Writes a table with a row for each budget.
    fn write_budgets(&self, out: &mut dyn Write) -> io::Result<()> {
        // A terminal of 80 columns has room for the most important columns.
        let details = terminal::output_width().is_none_or(|width| width >= WIDE);
        let columns = |line: [String; 4], times: String, rates: String, limit: &str| {
            let [memory, experts, hits, read] = line;
            match details {
                true => format!("{memory:>10} {experts:>14} {hits:>6} {read:>12} {times} {rates}   {limit}"),
                false => format!("{memory:>10} {hits:>6} {rates}   {limit}"),
            }
        };
        let names = ["memory", "experts", "hits", "read/token"].map(str::to_owned);
        let (times, rates) =
            (format!("{:>9} {:>9}", "compute", "reading"), format!("{:>10} {:>11}", "decode t/s", "prefill t/s"));
        writeln!(out, "{}", columns(names, times, rates, "limit"))?;
        let all = self.shape.all().max(1) as f64;
        for (budget, row) in &self.rows {
            let experts = format!("{} {:>4.0} %", row.slots, 100.0 * row.slots as f64 / all);
            let limit = match row.limit {
                Limit::Cores => "the cores",
                Limit::Drive => "the drive",
                Limit::Memory => "the cores: all is in memory",
            };
            let hits = format!("{:.0} %", 100.0 * row.hits);
            let line = [Bytes(*budget).to_string(), experts, hits, Bytes(row.bytes as u64).to_string()];
            let times = format!("{:>6.1} ms {:>6.1} ms", 1e3 * row.compute, 1e3 * row.reading);
            let rates = format!("{:>10.2} {:>11.1}", 1.0 / row.token, PROMPT as f64 / row.prompt);
            writeln!(out, "{}", columns(line, times, rates, limit))?;
        }
        Ok(())
    }
}

/// Min columns of a terminal for the whole table.
const WIDE: usize = 116;

/// Plan for which memory is computed, and its files.
struct Source {
    file: PlanFile,
    /// Folder that the plan's relative paths start from.
    folder: PathBuf,
    /// Model, whose first layers are run to measure the speed of computation.
    model: Model,
    target: Target,
}

impl Args {
    /// Returns the options of the passes.
    fn passes(&self) -> OptionSet {
        self.kv.over(OptionSet::default())
    }

    /// Returns the given plan. If the file is a model, compiles it for the smallest budget, so that
    /// the plan states when experts are needed.
    fn source(&self, path: &Path, run: &engine::EngineOptions) -> Result<Source, ixc_error::Error> {
        let wanted = self.target.target();
        let file = match Input::open(path)? {
            Input::Plan(file) => of_file(file, path)?,
            Input::Model(_) if self.model.file().is_some() => {
                return Err(ixc_generate::Error::NotPlan { path: path.to_owned() }.into());
            }
            Input::Model(gguf) => {
                // A run compiles early routers by default, which take some memory.
                let predict_extra = run.prefetch.early_routers();
                let options = CompileOptions {
                    target: wanted,
                    passes: self.passes(),
                    predict_extra,
                    ..CompileOptions::default()
                };
                let model = Model::new(*gguf)?;
                let (compiled, _) = compile_within(&model, &options, run)?;
                let file = PlanFile { model_files: model.handles()?, ..PlanFile::new(compiled.plan) };
                return Ok(Source { file, folder: PathBuf::new(), model, target: options.target() });
            }
        };
        // A plan that holds all weights needs no model to run, but measuring needs one.
        let model_file = self.model.file().filter(|_| !file.plan.files.is_empty());
        let file = locate(file, path, model_file)?;
        let plan = &file.plan;
        if !self.passes().is_empty() {
            return Err(ixc_generate::Error::PlanSays { what: "the formats of keys and values" }.into());
        }
        if let Some(wanted) = wanted.filter(|wanted| wanted.name() != plan.target) {
            return Err(ixc_generate::Error::OtherTarget { plan: plan.target.clone(), wanted: wanted.name() }.into());
        }
        let unknown = || LoadError::Target { found: plan.target.clone() };
        let target = Target::from_name(&plan.target).ok_or_else(unknown)?;
        let folder = path.parent().unwrap_or(path).to_owned();
        let model = plan.files.first().map(|source| folder.join(&source.path));
        let model = model.or_else(|| self.model.file().map(Path::to_owned));
        let model = model.ok_or_else(|| ixc_measure::Error::NoModelFile { path: path.to_owned() })?;
        Ok(Source { folder, model: Model::open(&model)?, target, file })
    }
}

/// Returns budgets from the min to the whole model, in equal steps.
fn ladder(needs: &Needs) -> Vec<u64> {
    const STEPS: u64 = 8;
    let (least, all) = (needs.min_bytes(), needs.all());
    let mut budgets: Vec<u64> = (0..=STEPS).map(|step| least + (all.max(least) - least) / STEPS * step).collect();
    // The last budget is exact, without rounding.
    budgets[STEPS as usize] = all.max(least);
    budgets.dedup();
    budgets
}
