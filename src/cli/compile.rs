//! `ixc compile`: a model to a plan.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ixc::budget::compile_within;
use ixc::codegen::dataflow::grids;
use ixc::compile::{Options, TargetChoice};
use ixc::dataflow::{self, Placed};
use ixc::ir::plan::PlanWeight;
use ixc::model::Model;
use ixc::npy::replace_file;
use ixc::runtime::engine;
use ixc::runtime::file::{self, weights};
use serde_json::json;

use super::BadInput;
use super::choose::{DeferChoice, MemoryChoice};
use super::output::{self, Bytes, Line, Rate, note};
use super::prefetch::EarlyRouterChoice;
use super::stages::Stage;

/// Compiles a model to a plan: everything that is needed to run it, except weights that kernels read as they lie in the model
/// file, and no machine code.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc compile model.gguf                         writes model.ixp
  ixc compile model.gguf -o plan.ixp --target portable
  ixc compile large.gguf --memory 6GiB           for less memory than the model takes
  ixc compile model.gguf --no-weights            a small plan: weights are packed when it runs
  ixc compile model.gguf --emit graph,fused,kernel,asm
                                                 writes model.d/1.graph.ix and so on, too
  ixc compile model.gguf --target dataflow:wse3 -o model.json
                                                 what runs where on a wafer; see docs/dataflow.md

The plan names the model file by its absolute path and checks that it is still the same. Where the
target's kernels read packed weights, they are in the plan, which is then about as large as the
model. The plan is there when it is whole. What an interrupted run wrote stays beside it, as
.PLAN.part, and the same command goes on with that.")]
pub struct Args {
    /// The model: a GGUF file, for a split model any of its files.
    model: PathBuf,
    /// The plan to write [default: the model's name with .ixp, in the current folder].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// What to generate kernels for: native, a target or a CPU of `ixc doctor`; this machine need not be one. Or dataflow:GRID, a grid of
    /// processing elements by its name (wse3, wse2, aie, ..) or its TOML file.
    #[arg(long, default_value = "native")]
    target: TargetChoice,
    /// Positions of the KV cache, for dataflow targets [default: the model's, at most 2048].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    ctx: Option<u32>,
    /// Most tokens of a step; longer prompts take several.
    #[arg(short = 'b', long, alias = "ubatch-size", value_name = "N", default_value_t = Options::default().max_tokens,
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    max_tokens: u32,
    /// Write weights into the plan as kernels read them, experts that are streamed as one block each. The default where the target packs
    /// weights; elsewhere it writes only blocks of experts.
    #[arg(long, conflicts_with_all = ["no_weights", "no_pack"])]
    pack: bool,
    /// Leave packed weights out of the plan: they are packed each time that it is loaded.
    #[arg(long)]
    no_weights: bool,
    /// Read weights as they lie in the model file, even where the target has faster kernels for packed ones.
    #[arg(long)]
    no_pack: bool,
    #[command(flatten)]
    memory: MemoryChoice,
    #[command(flatten)]
    prefetch: EarlyRouterChoice,
    #[command(flatten)]
    deferral: DeferChoice,
    /// Threads that pack [default: one for each core].
    #[arg(short, long)]
    threads: Option<usize>,
    /// Stages to write as text, into a folder beside the plan.
    #[arg(long, value_enum, value_delimiter = ',')]
    emit: Vec<Emit>,
    /// Print JSON about the plan.
    #[arg(long)]
    json: bool,
}

/// What is written beside the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Emit {
    /// The graph as the model file describes it.
    Graph,
    /// The graph after all passes.
    Fused,
    /// Steps, tasks and buffers.
    Plan,
    /// Kernel IR.
    Kernel,
    /// Machine code of the kernels.
    Asm,
    /// What runs where on a grid; instead of a plan.
    Dataflow,
}

impl Emit {
    /// The stage, where it is one.
    fn stage(self) -> Option<Stage> {
        match self {
            Emit::Graph => Some(Stage::Graph),
            Emit::Fused => Some(Stage::Fused),
            Emit::Plan => Some(Stage::Plan),
            Emit::Kernel => Some(Stage::Kernel),
            Emit::Asm => Some(Stage::Asm),
            Emit::Dataflow => None,
        }
    }
}

impl Args {
    /// Writes what runs where on a grid, as JSON.
    fn place(&self, grid: &str, out: &mut dyn Write) -> anyhow::Result<()> {
        let begin = Instant::now();
        if self.emit.iter().any(|emit| *emit != Emit::Dataflow) {
            return Err(
                BadInput("for --target dataflow:GRID there is --emit dataflow and nothing else".to_owned()).into()
            );
        }
        let grid = grids::find(grid).map_err(|error| BadInput(error.to_string()))?;
        let model = Model::open(&self.model)?;
        let Placed { descriptor, .. } = dataflow::place(&model, &grid, &dataflow::Options { context: self.ctx })?;
        let default = || Path::new(self.model.file_stem().unwrap_or_default()).with_extension("json");
        let path = self.output.clone().unwrap_or_else(default);
        let written = replace_file(&path, |out| Ok(serde_json::to_writer(out, &descriptor)?));
        written.map_err(ixc::Error::io(&path, "write"))?;
        let bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        let seconds = begin.elapsed().as_secs_f64();
        if self.json {
            let facts = json!({
                "descriptor": path,
                "bytes": bytes,
                "grid": descriptor.grid.name,
                "context": descriptor.context,
                "programs": descriptor.programs.len(),
                "streams": descriptor.streams.len(),
                "waves": descriptor.waves.len(),
                "reasons": descriptor.reasons,
                "seconds": seconds,
            });
            return Ok(output::json(out, &facts)?);
        }
        let (programs, streams) = (descriptor.programs.len(), descriptor.streams.len());
        let (path, name, context) = (path.display(), &descriptor.grid.name, descriptor.context);
        writeln!(
            out,
            "{path}: {} on {name}, {context} positions, {programs} programs, {streams} streams, {} in {seconds:.2} s",
            descriptor.model,
            Bytes(bytes)
        )?;
        Ok(descriptor.reasons.iter().try_for_each(|reason| writeln!(out, "  {reason}"))?)
    }

    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let target = match &self.target {
            TargetChoice::Processor(target) => target.0,
            TargetChoice::Dataflow(grid) => return self.place(grid, out),
        };
        let begin = Instant::now();
        if self.emit.contains(&Emit::Dataflow) {
            return Err(BadInput("dataflow is emitted for --target dataflow:GRID".to_owned()).into());
        }
        if self.ctx.is_some() {
            return Err(BadInput("--ctx is for --target dataflow:GRID; other plans take any context".to_owned()).into());
        }
        let model = Model::open(&self.model)?;
        let pack = self.no_pack.then_some(false);
        let predict_extra = self.prefetch.extra();
        let (max_tokens, defer) = (self.max_tokens, self.deferral.defer);
        let options = Options { target, max_tokens, pack, predict_extra, defer, ..Options::default() };
        let run = engine::Options { memory: self.memory.bytes(), ..engine::Options::default() };
        let (mut compiled, _) = compile_within(&model, &options, &run)?;
        if let Some((option, why)) = self.prefetch.without_effect(&compiled.plan)? {
            note!("ixc: {option} is without effect: {why}");
        }
        let default = || Path::new(self.model.file_stem().unwrap_or_default()).with_extension("ixp");
        let path = self.output.clone().unwrap_or_else(default);
        let packs = self.pack || compiled.plan.weights.iter().any(PlanWeight::is_packed_at_load);
        if !self.no_weights && packs {
            let options = engine::Options { threads: self.threads, ..engine::Options::default() };
            let (mut line, mut rate) = (Line::new(begin), Rate::default());
            let written = weights::write(&path, &compiled.plan, Path::new(""), &options, |done, total| {
                let rate = rate.at(Instant::now(), done, total);
                line.show(format_args!("packing weights: {} of {}{rate}", Bytes(done), Bytes(total)));
            });
            line.clear();
            compiled.plan = written.map_err(ixc::Error::from)?;
        } else {
            file::write(&path, &compiled.plan).map_err(ixc::Error::from)?;
        }
        let seconds = begin.elapsed().as_secs_f64();
        let mut emitted = Vec::new();
        for stage in self.emit.iter().filter_map(|emit| emit.stage()) {
            let folder = path.with_extension("d");
            std::fs::create_dir_all(&folder).map_err(ixc::Error::io(&folder, "create"))?;
            let file = folder.join(stage.file_name());
            let text = stage.text(&model, &compiled, None)?;
            replace_file(&file, |out| out.write_all(text.as_bytes())).map_err(ixc::Error::io(&file, "write"))?;
            emitted.push(file);
        }
        let plan = &compiled.plan;
        let bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        if self.json {
            let facts = json!({
                "plan": path,
                "bytes": bytes,
                "target": plan.target,
                "kernels": plan.kernels.len(),
                "steps": plan.steps.len(),
                "arena_bytes": plan.arena_bytes,
                "weights": plan.weights.len(),
                "own_weight_bytes": plan.own_weight_bytes,
                "emitted": emitted,
                "seconds": seconds,
            });
            return Ok(output::json(out, &facts)?);
        }
        writeln!(
            out,
            "{}: {} for {}, {} steps, {} kernels, arena of {}, {} in {seconds:.2} s",
            path.display(),
            plan.architecture,
            plan.target,
            plan.steps.len(),
            plan.kernels.len(),
            Bytes(plan.arena_bytes),
            Bytes(bytes),
        )?;
        Ok(emitted.iter().try_for_each(|file| writeln!(out, "{}", file.display()))?)
    }
}
