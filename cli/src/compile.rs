//! `ixc compile`: compiles a model to a plan.

mod ranks;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ixc_architectures::Parts;
use ixc_compile::compile::{Compilation, CompileOptions, CompileTarget, TargetName, compile, passes_to, stop_after};
use ixc_compile::dump::{self, Outcome};
use ixc_compile::model::Model;
use ixc_compile::place;
use ixc_compile::recording::Recording;
use ixc_compile::select::Selection;
use ixc_dataflow::place::search::PlacedPlan;
use ixc_dataflow::{grids, read};
use ixc_files::folder::NewFolder;
use ixc_files::{Output, OutputFolder};
use ixc_generate::budget::compile_within;
use ixc_generate::loaded_model::LoadOptions;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Plan, PlanWeight};
use ixc_measure::kl_divergence::Divergence;
use ixc_model_files::gguf::ShardFile;
use ixc_passes::manager;
use ixc_passes::options::OptionSet;
use ixc_passes::pass::Pass;
use ixc_passes::requantise;
use ixc_runtime::engine;
use ixc_runtime::file;
use ixc_runtime::file::weights::{self, Contents};
use serde_json::json;

use super::Usage;
use super::divergence::{ModelSetup, compare, divergence_text, positions};
use super::division::{DivisionOption, MachineChoice};
use super::force::{Force, reads};
use super::model_args::{DeferChoice, MemoryChoice, ModelArgument};
use super::output::{self, Bytes, Line, Printable, Rate, Unit, count_text, note};
use super::overrides::{ChangeChoice, OverrideCheck};
use super::passes::PassChoice;
use super::prefetch::EarlyRouterChoice;
use super::stages::Stage;
use super::terminal::standard_error;
use super::tokenize::read;

/// Compiles a model to a plan. The plan holds everything that a run needs, except machine code and
/// the weights that kernels read from the model file.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc compile model.gguf                         writes model.ixp
  ixc compile model.gguf -o plan.ixp --target portable
  ixc compile large.gguf --memory 6GiB           streams experts from the drive
  ixc compile model.gguf --no-weights            small; packs in each run
  ixc compile model.gguf --self-contained        runs without the model file
  ixc compile model.gguf --weights i8_row --text sample.txt
                                                 one scale per row: int8 tiles
  ixc compile model.gguf --emit graph,asm        writes model.d/1.graph.ix, too
  ixc compile model.gguf --dump-dir d            IR after each pass, and kernels
  ixc compile model.gguf --dump-dir e --stop-after tile
  ixc compile model.gguf --start-from d/10-tile.ix
                                                 after editing that file
  ixc compile model.gguf --ranks 2 --shard experts
                                                 plans of two ranks in one file
  ixc compile model.gguf --target dataflow:wse3 -o model.json
                                                 placement on a wafer

The plan names the model file by its absolute path and checks that it is unchanged. Runs also find \
the file next to the plan. If the target's kernels read packed weights, the plan holds these and \
is about as large as the model. Embeddings, norms and other weights that kernels read as stored \
stay in the model file, unless --self-contained is given.

The plan appears only when it is complete. An interrupted run leaves .PLAN.part next to it, and \
the same command continues from there. It accepts only a file that the same user's ixc wrote, \
which a secret in $XDG_CACHE_HOME/ixc or ~/.cache/ixc proves. docs/dataflow.md describes dataflow \
targets.")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgument,
    /// Plan to write [default: the model's name with .ixp, in the current folder].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Target or CPU to generate kernels for: `native`, or a name that `ixc doctor` lists, also one
    /// that this machine lacks. dataflow:GRID places the model on a grid of processing elements;
    /// GRID is wse3, wse2, aie, another name, or a TOML file.
    #[arg(long, default_value = "native")]
    target: CompileTarget,
    /// Context length in tokens, for dataflow targets [default: the model's, at most 2048].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    ctx: Option<u32>,
    /// Maximum number of tokens in a step; longer prompts take several steps [default: 512, or up
    /// to 2048 for MoE models, so that each expert gets 128 rows].
    #[arg(short = 'b', long, alias = "ubatch-size", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    max_tokens: Option<u32>,
    /// Write packed weights into the plan, and each streamed expert as one block. This is the
    /// default if the target packs weights; otherwise only expert blocks are written.
    #[arg(long, conflicts_with_all = ["no_weights", "no_pack"])]
    pack: bool,
    /// Write all weights into the plan, so that runs do not need the model file.
    #[arg(long, conflicts_with = "no_weights")]
    self_contained: bool,
    /// Leave packed weights out of the plan. They are packed again each time the plan is loaded.
    #[arg(long)]
    no_weights: bool,
    /// Do not pack weights: read them in the model file's layout, even if packed kernels are
    /// faster.
    #[arg(long)]
    no_pack: bool,
    /// Compile for embeddings: leave out the output matrix, so that the plan returns hidden states
    /// for `ixc embed` and `ixc serve --embeddings`.
    #[arg(long, conflicts_with = "text")]
    embeddings: bool,
    /// Compile only the routed experts, each layer as its own function. Other engines run such a
    /// plan through `ixc::moe` or ixc.h.
    #[arg(long, conflicts_with_all = ["text", "embeddings"])]
    moe: bool,
    /// Number of ranks to divide the model among. The file has the plan of each rank, and a run
    /// computes all ranks, in threads of one process.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64),
          conflicts_with_all = ["pack", "self_contained", "moe", "text", "emit", "dump_dir"])]
    ranks: Option<u32>,
    /// Division of the model among ranks.
    #[arg(long, value_enum, value_name = "DIVISION", default_value_t = DivisionOption::Layers, requires = "ranks")]
    shard: DivisionOption,
    #[command(flatten)]
    machines: MachineChoice,
    #[command(flatten)]
    memory: MemoryChoice,
    #[command(flatten)]
    prefetch: EarlyRouterChoice,
    #[command(flatten)]
    deferral: DeferChoice,
    #[command(flatten)]
    passes: PassChoice,
    /// Sample text for --weights: the original and the requantised model are compared on it. At
    /// most its first 256 tokens and 1024 bytes are used.
    #[arg(long, value_name = "FILE", requires = "weights")]
    text: Option<PathBuf>,
    /// Number of threads that pack weights [default: one per core].
    #[arg(short, long)]
    threads: Option<usize>,
    /// Stages to write as text, into a folder next to the plan.
    #[arg(long, value_enum, value_delimiter = ',')]
    emit: Vec<Emit>,
    /// Write the IR after each pass, and all kernels with their code and ops, into a new folder.
    /// --start-from takes its numbered files, --override its kernels/ folder.
    #[arg(long, value_name = "DIR")]
    dump_dir: Option<PathBuf>,
    /// Stop --dump-dir after this pass, and write no plan.
    #[arg(long, value_name = "PASS", requires = "dump_dir", conflicts_with = "output", value_parser = manager::names())]
    stop_after: Option<String>,
    #[command(flatten)]
    changes: ChangeChoice,
    #[command(flatten)]
    override_check: OverrideCheck,
    #[command(flatten)]
    force: Force,
    /// Print JSON about the plan.
    #[arg(long)]
    json: bool,
}

/// Stages that are written next to the plan.
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
    /// The placement on a grid; it replaces the plan.
    Dataflow,
}

impl Emit {
    /// Returns the stage, or `None` for the placement on a grid.
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

/// Open files for the stages of `--emit`, in a folder next to the plan.
struct Stages {
    outputs: Vec<(Stage, Output)>,
    /// Folder of the stages' files. Dropping this field removes the folder if nothing was written.
    _folder: Option<OutputFolder>,
}

impl Stages {
    /// Opens the files of the stages in a folder, which is created for them.
    fn open(folder: &Path, emit: &[Emit], force: Force, inputs: &[&Path]) -> Result<Stages, ixc_error::Error> {
        let stages: Vec<Stage> = emit.iter().filter_map(|emit| emit.stage()).collect();
        let made = if stages.is_empty() { None } else { Some(OutputFolder::open(folder)?) };
        let open = |stage: Stage| Ok((stage, force.open(&folder.join(stage.file_name()), &stage.kind(), inputs)?));
        Ok(Stages { outputs: stages.into_iter().map(open).collect::<Result<_, ixc_error::Error>>()?, _folder: made })
    }

    fn outputs(&mut self) -> impl Iterator<Item = &mut Output> {
        self.outputs.iter_mut().map(|(_, output)| output)
    }

    /// Writes the stages, and returns their paths.
    fn write(self, model: &Model, compiled: &Compilation) -> anyhow::Result<Vec<PathBuf>> {
        let mut written = Vec::new();
        for (stage, output) in self.outputs {
            let (path, text) =
                (output.given_path().to_owned(), stage.text(model, compiled, None, &Selection::default())?);
            output.write(|out| out.write_all(text.as_bytes())).map_err(ixc_error::Error::from)?;
            written.push(path);
        }
        Ok(written)
    }
}

impl Args {
    /// Opens the model with the graph that `--embeddings` and `--moe` select.
    fn open_model(&self) -> anyhow::Result<Model> {
        let model = self.model.open_parts(Parts { head: !self.embeddings, ..Parts::ALL })?;
        Ok(if self.moe { model.into_expert_layers()? } else { model })
    }

    /// Returns the default output: a file in the current folder, named after the model.
    fn default_name(&self, extension: &str) -> PathBuf {
        let stem = self.model.path().and_then(Path::file_stem).unwrap_or("demo".as_ref());
        Path::new(stem).with_extension(extension)
    }

    /// Writes the placement of a model on a grid, as JSON.
    fn place(&self, grid_name: &str, out: &mut dyn Write) -> anyhow::Result<()> {
        let begin = Instant::now();
        if self.emit.iter().any(|emit| *emit != Emit::Dataflow) {
            return Err(Usage("--target dataflow:GRID only supports --emit dataflow".to_owned()).into());
        }
        if !self.passes.options()?.is_empty() {
            let problem = "--weights, --kv, --tile and --set are only for plans of a CPU; a dataflow grid takes weights in the formats of the model file, and keys and values in f16";
            return Err(Usage(problem.to_owned()).into());
        }
        let grid = grids::find(grid_name).map_err(ixc_error::Error::from)?;
        let default = || self.default_name("json");
        let path = self.output.clone().unwrap_or_else(default);
        // Open the output first: if that fails, no work is lost.
        let inputs: Vec<&Path> = self.model.path().into_iter().chain(grids::file(grid_name)).collect();
        let mut output = self.force.open(&path, &read::KIND, &inputs)?;
        let model = self.open_model()?;
        reads(&mut output, model.gguf.files().iter().map(ShardFile::path))?;
        let PlacedPlan { descriptor, .. } = place::place(&model, &grid, &place::PlaceOptions { context: self.ctx })?;
        let mut stderr = standard_error();
        let out = if output.is_standard() { &mut *stderr } else { out };
        let bytes = output.write(|out| Ok(serde_json::to_writer(out, &descriptor)?)).map_err(ixc_error::Error::from)?;
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
            return Ok(output::json(out, "ixc.compile-dataflow.v1", &facts)?);
        }
        let (programs, streams) = (descriptor.programs.len(), descriptor.streams.len());
        let (path, name, context) = (path.display(), &descriptor.grid.name, descriptor.context);
        writeln!(
            out,
            "{path}: {} on {name}, {}, {}, {}, {} in {seconds:.2} s",
            descriptor.model,
            count_text(context.into(), "position"),
            count_text(programs as u64, "program"),
            count_text(streams as u64, "stream"),
            Bytes(bytes)
        )?;
        Ok(descriptor.reasons.iter().try_for_each(|reason| writeln!(out, "  {reason}"))?)
    }

    /// Creates the folder of `--dump-dir`.
    fn dump_folder(&self) -> Result<Option<NewFolder>, ixc_error::Error> {
        Ok(self.dump_dir.as_deref().map(NewFolder::create).transpose()?)
    }

    /// Returns the options of the compilation.
    fn options(&self, target: &TargetName) -> anyhow::Result<CompileOptions> {
        let options = CompileOptions {
            target: Some(target.target),
            caches: target.caches,
            passes: self.passes.options()?,
            max_tokens: self.max_tokens,
            pack: self.no_pack.then_some(false),
            predict_extra: self.prefetch.extra(),
            defer: self.deferral.defer,
            ..CompileOptions::default()
        };
        Ok(self.changes.over(options, self.override_check)?)
    }

    /// Runs the passes up to `last`, and writes the IR after each of them. No plan is written.
    fn stop_after(&self, target: &TargetName, last: &'static Pass, out: &mut dyn Write) -> anyhow::Result<()> {
        let Some(folder) = self.dump_folder()? else { return Ok(()) };
        let model = self.open_model()?;
        let recording = Arc::new(Recording::default());
        let options = CompileOptions { recording: Some(Arc::clone(&recording)), ..self.options(target)? };
        passes_to(&options, Some(last.name))?;
        let is_final = manager::names().last() == Some(&last.name);
        let result: Result<Option<Compilation>, ixc_error::Error> = match self.memory.bytes() {
            // From `residency` on, the passes need the memory for experts, which is computed from
            // the budget and the complete plan.
            Some(memory) => {
                let run = engine::EngineOptions { memory: Some(memory), ..engine::EngineOptions::default() };
                compile_within(&model, &options, &run).map(|(compiled, _)| Some(compiled)).map_err(Into::into)
            }
            None if is_final => compile(&model, &options).map(Some).map_err(Into::into),
            None => stop_after(&model, &options, last.name).map(|_| None).map_err(Into::into),
        };
        let outcome = match &result {
            Ok(Some(compiled)) if is_final => Outcome::Plan(compiled),
            Ok(_) => Outcome::Stopped,
            Err(error) => Outcome::Failed(error.to_string()),
        };
        let passes = recording.take();
        let count = passes.iter().position(|pass| pass.name == last.name).map_or(passes.len(), |at| at + 1);
        let files = dump::write(folder, &model, &options, &passes[..count], &outcome)?;
        result?;
        let folder = self.dump_dir.clone().unwrap_or_default();
        Ok(writeln!(out, "{}: {}, up to {}", folder.display(), count_text(files as u64, "file"), last.name)?)
    }

    /// Returns the divergence of the plan's predictions from those of the unchanged model, compiled
    /// with the same options.
    fn divergence(
        &self,
        text: &Path,
        plan: &Path,
        model: &Model,
        compile: &CompileOptions,
    ) -> anyhow::Result<Divergence> {
        let said = OptionSet::default().with(&requantise::RequantiseOptions::default());
        let compile = CompileOptions { passes: compile.passes.clone().over(&said), ..compile.clone() };
        let run = engine::EngineOptions {
            threads: self.threads,
            memory: self.memory.bytes(),
            ..engine::EngineOptions::default()
        };
        let before = LoadOptions { compile, run: run.clone(), ..LoadOptions::default() };
        let after = LoadOptions { run, ..LoadOptions::default() };
        let unchanged = ModelSetup { path: self.model.path(), options: &before };
        let changed = ModelSetup { path: Some(plan), options: &after };
        compare(unchanged, changed, positions(model), &read(text)?)
    }

    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let target = match &self.target {
            CompileTarget::Processor(target) => target,
            CompileTarget::Dataflow(grid) => return self.place(grid, out),
        };
        let begin = Instant::now();
        if let Some(pass) = &self.stop_after {
            return self.stop_after(target, manager::find(pass).map_err(ixc_error::Error::from)?, out);
        }
        if self.emit.contains(&Emit::Dataflow) {
            return Err(Usage("--emit dataflow needs --target dataflow:GRID".to_owned()).into());
        }
        if self.ctx.is_some() {
            return Err(Usage(
                "--ctx is only for --target dataflow:GRID; a plan for a CPU can run with any context".to_owned(),
            )
            .into());
        }
        if let Some(ranks) = self.ranks.filter(|ranks| *ranks > 1) {
            return self.run_ranks(target, ranks, out);
        }
        let path = self.output.clone().unwrap_or_else(|| self.default_name("ixp"));
        // Open the output first: if that fails, no work is lost.
        let inputs: Vec<&Path> = self.model.path().into_iter().chain(self.changes.files()).collect();
        let folder = self.dump_folder()?;
        let mut output = self.force.open(&path, &file::KIND, &inputs)?;
        let mut stages = Stages::open(&path.with_extension("d"), &self.emit, self.force, &inputs)?;
        let model = self.open_model()?;
        for output in [&mut output].into_iter().chain(stages.outputs()) {
            reads(output, model.gguf.files().iter().map(ShardFile::path))?;
        }
        let options = self.options(target)?;
        let run = engine::EngineOptions { memory: self.memory.bytes(), ..engine::EngineOptions::default() };
        let recording = folder.is_some().then(Arc::<Recording>::default);
        let recorded = CompileOptions { recording: recording.clone(), ..options.clone() };
        let compiled = compile_within(&model, &recorded, &run);
        if let (Some(folder), Some(recording)) = (folder, recording) {
            let outcome = match &compiled {
                Ok((compiled, _)) => Outcome::Plan(compiled),
                Err(error) => Outcome::Failed(error.to_string()),
            };
            let files = dump::write(folder, &model, &options, &recording.take(), &outcome)?;
            note!(
                "ixc: wrote {} to {}",
                count_text(files as u64, "file"),
                self.dump_dir.clone().unwrap_or_default().display()
            );
        }
        let (mut compiled, _) = compiled?;
        if let Some((option, why)) = self.prefetch.without_effect(&compiled.plan)? {
            note!("ixc: {option} has no effect: {why}");
        }
        compiled.plan = self.write_plan(compiled.plan, &model, output, begin)?;
        let seconds = begin.elapsed().as_secs_f64();
        let divergence = self.text.as_ref().map(|text| self.divergence(text, &path, &model, &options)).transpose()?;
        let emitted = stages.write(&model, &compiled)?;
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
                "self_contained": plan.files.is_empty(),
                "model_files": plan.files.iter().map(|file| &file.path).collect::<Vec<_>>(),
                "model_bytes": model.gguf.files().iter().map(|file| file.data().len() as u64).sum::<u64>(),
                "emitted": emitted,
                "divergence": divergence,
                "seconds": seconds,
            });
            return Ok(output::json(out, "ixc.compile.v1", &facts)?);
        }
        writeln!(
            out,
            "{}: {} for {}, {} in {seconds:.2} s",
            path.display(),
            plan.architecture,
            plan.target,
            Bytes(bytes)
        )?;
        let (steps, kernels) =
            (count_text(plan.steps.len() as u64, "step"), count_text(plan.kernels.len() as u64, "kernel"));
        writeln!(out, "  {steps}, {kernels}, arena of {}", Bytes(plan.arena_bytes))?;
        writeln!(out, "  {}", model_files(plan))?;
        if let Some(divergence) = divergence {
            writeln!(out, "  requantised, {}", divergence_text(&divergence))?;
        }
        Ok(emitted.iter().try_for_each(|file| writeln!(out, "{}", file.display()))?)
    }

    /// Writes the plan, with the weights that it holds. Returns the plan with the offsets of its
    /// weights.
    fn write_plan(
        &self,
        plan: Plan<Kernel>,
        model: &Model,
        output: Output,
        begin: Instant,
    ) -> anyhow::Result<Plan<Kernel>> {
        let packs = self.pack || plan.weights.iter().any(PlanWeight::is_packed_at_load);
        if !self.self_contained && (self.no_weights || !packs) {
            file::write_to(output, &plan).map_err(ixc_error::Error::from)?;
            return Ok(plan);
        }
        let contents = if self.self_contained { Contents::All } else { Contents::Packed };
        let built_in = Some(ixc_generate::plan_file::built_in());
        let options = engine::EngineOptions { threads: self.threads, built_in, ..engine::EngineOptions::default() };
        let (mut line, mut rate) = (Line::new(begin), Rate::default());
        let files = model.handles()?;
        let plan = weights::write_to(output, &plan, Path::new(""), &files, &options, contents, |done, total| {
            let rate = rate.at(Instant::now(), done, total, Unit::Bytes);
            line.show(format_args!("packing weights: {} of {}{rate}", Bytes(done), Bytes(total)));
        });
        line.clear();
        Ok(plan.map_err(ixc_error::Error::from)?)
    }
}

/// Describes the model files that a run of the plan needs.
fn model_files(plan: &Plan<Kernel>) -> String {
    let bytes = Bytes(plan.files.iter().fold(0u64, |sum, file| sum.saturating_add(file.bytes)));
    match plan.files.as_slice() {
        [] => "holds all weights: no model file is needed to run it".to_owned(),
        [file] if file.path == ixc_compile::demo::NAME => format!("needs the model that is built in, {bytes}"),
        [file] => format!("needs the model file {}, {bytes}", Printable(&file.path)),
        [file, ..] => {
            format!(
                "needs {} model files, {} and the others of its name, {bytes} together",
                plan.files.len(),
                Printable(&file.path)
            )
        }
    }
}
