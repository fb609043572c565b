//! `ixc eval`: perplexity of a text, and the divergence of a model's predictions from another
//! model's.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use ixc_compile::compile;
use ixc_generate::loaded_model::{LoadOptions, LoadedModel};
use ixc_measure::eval::record::{self, Header, InputFile, Record};
use ixc_measure::eval::{self, Comparison, PieceScores, Summary, Text, summary};
use ixc_passes::observe;
use ixc_quantise::importance::{self, ActivationSums, StateSums};
use ixc_runtime::engine;
use ixc_runtime::progress::ProgressCounter;
use ixc_runtime::states::StateValues;
use serde::Serialize;

use super::BadInput;
use super::force::{Force, reads};
use super::model_args::{ModelChoice, StreamingChoice, TargetChoice, backend};
use super::model_name::ModelName;
use super::output::{Line, Rate, Unit, Watch, count_text, json, note};
use super::plan_cache::PlanCacheChoice;
use super::tokenize::read;

/// Scores a model on a text by perplexity. --against also measures how far its predictions are from
/// another model's, such as the unquantised original.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc eval model.gguf --text wiki.test.raw
  ixc eval model-q4.gguf --text sample.txt --against model-f16.gguf
  ixc eval model.gguf --text wiki.test.raw -o wiki.jsonl
                                       continues after an interruption
  ixc eval plan.ixp --text sample.txt --against model.gguf --json

The text is scored as llama-perplexity does, and the numbers agree except for rounding. It is cut \
into pieces of --ctx tokens; an incomplete last piece is ignored. If the model wants a BOS token, \
it replaces the first token of each piece. The second half of each piece is scored. As with \
llama-perplexity -f, one newline at the end is dropped, and names of special tokens are plain \
text.

Divergences are KL(against || model), in nats. Standard errors assume independent positions.

With -o, each piece's numbers are written as one line of JSON when it is done. The same command \
continues after the last line.")]
pub struct Args {
    #[command(flatten)]
    model: ModelChoice,
    /// Text file to score; `-` reads standard input.
    #[arg(long, short = 'f', alias = "file", value_name = "FILE")]
    text: PathBuf,
    /// Reference model or plan to compare with. Both models are in memory at once.
    #[arg(long, value_name = "MODEL", value_parser = ModelName::parser())]
    against: Option<ModelName>,
    /// Tokens per piece of text.
    #[arg(short = 'c', long = "ctx", alias = "ctx-size", value_name = "N", default_value_t = eval::DEFAULT_CONTEXT, value_parser = read_context)]
    context: usize,
    /// Number of pieces to score, from the beginning [default: all].
    #[arg(long, alias = "chunks", value_name = "N")]
    pieces: Option<usize>,
    /// Write the numbers of each position to this file. Pieces that are in the file are skipped.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write an importance matrix for `ixc quantise` and llama-quantize: the mean squares of each
    /// matrix's inputs.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["output", "defer"])]
    imatrix: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    target: TargetChoice,
    #[command(flatten)]
    streaming: StreamingChoice,
    #[command(flatten)]
    plan_cache: PlanCacheChoice,
    /// Run generated code in the emulator, which runs any target on any machine, about 1,000 times
    /// slower.
    #[arg(long)]
    emulate: bool,
    /// Do not pack weights: read them in the model file's layout, even if packed kernels are
    /// faster.
    #[arg(long)]
    no_pack: bool,
    /// Number of threads [default: one per core].
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn read_context(text: &str) -> Result<usize, String> {
    let found = text.parse().ok().filter(|context| *context >= eval::MIN_CONTEXT);
    found.ok_or_else(|| format!("expected a number of at least {}", eval::MIN_CONTEXT))
}

/// Output as JSON.
#[derive(Serialize)]
struct EvalReport<'f> {
    text_tokens: usize,
    context: usize,
    pieces: usize,
    seconds: f64,
    #[serde(flatten)]
    summary: &'f Summary,
}

impl Args {
    /// Returns the options for loading the scored model and the reference model.
    fn options(&self, progress: &Arc<ProgressCounter>) -> anyhow::Result<LoadOptions> {
        let streaming = self.streaming.options()?;
        let (target, pack) = (self.target.target(), self.no_pack.then_some(false));
        Ok(LoadOptions {
            compile: compile::CompileOptions { target, caches: self.target.caches(), pack, ..streaming.compile },
            run: engine::EngineOptions {
                threads: self.threads,
                context: Some(self.context as u64),
                backend: backend(self.emulate),
                progress: Some(Arc::clone(progress)),
                ..streaming.run
            },
            plan_cache: self.plan_cache.cache(),
            ..streaming
        })
    }

    /// Opens the model of `--against` without deferral and pass options, even if the scored model
    /// has them.
    fn open_reference(&self, options: &LoadOptions) -> Result<Option<LoadedModel>, ixc_generate::Error> {
        let Some(against) = &self.against else { return Ok(None) };
        let compile = compile::CompileOptions { defer: 0, passes: Default::default(), ..options.compile.clone() };
        // A plan keeps the target that it was compiled for.
        let path = against.path();
        LoadedModel::open(path, &LoadOptions { compile, ..options.clone() }).map(Some)
    }

    /// Returns the header of the output file: everything that the numbers of the evaluation depend
    /// on.
    fn header(
        &self,
        text: &Text,
        model: &LoadedModel,
        right: Option<&LoadedModel>,
        compile: &compile::CompileOptions,
    ) -> Result<Header, ixc_error::Error> {
        let sources = |path: Option<&Path>, model: &LoadedModel| {
            let mut files: Vec<&Path> = path.into_iter().collect();
            files.extend(model.files().iter().map(PathBuf::as_path));
            // The built-in model is not a file.
            files.retain(|file| *file != Path::new(ixc_compile::demo::NAME));
            // The model's path is usually also in the list of its files, so equal files are listed
            // once.
            let mut sources: Vec<InputFile> = Vec::new();
            for file in files {
                let source = InputFile::from_path(file).map_err(ixc_error::Error::io(file, "read"))?;
                if !sources.contains(&source) {
                    sources.push(source);
                }
            }
            Ok::<_, ixc_error::Error>(sources)
        };
        let right = right.map(|right| sources(self.against.as_ref().and_then(ModelName::path), right));
        let mut header = Header::new(text.tokens(), self.context);
        header.model = sources(self.model.path(), model)?;
        header.against = right.transpose()?;
        header.target = model.target().name().to_owned();
        header.options = format!("{} defer={} pack={:?}", compile.passes, compile.defer, compile.pack);
        Ok(header)
    }

    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let begin = Instant::now();
        let inputs: Vec<&Path> =
            self.model.files().chain([&*self.text]).chain(self.against.as_ref().and_then(ModelName::path)).collect();
        let mut output = self.output.as_ref().map(|path| self.force.open(path, &record::KIND, &inputs)).transpose()?;
        let mut imatrix =
            self.imatrix.as_ref().map(|path| self.force.open(path, &importance::KIND, &inputs)).transpose()?;
        let content = read(&self.text)?;
        let progress = Arc::new(ProgressCounter::default());
        let watch = Watch::new(&progress);
        let options = self.options(&progress)?;
        let model_file = self.model.file().map(Path::to_owned);
        let mut own = LoadOptions { model_file, ..options.clone() };
        if imatrix.is_some() {
            own.compile.passes = own.compile.passes.with(&observe::ObserveOptions { inputs: true });
        }
        let mut model = LoadedModel::open(self.model.path(), &own)?;
        let mut right = self.open_reference(&options).context("--against")?;
        drop(watch);
        let text = Text::new(&model, &content, self.context)?;
        let pieces = self.pieces.unwrap_or(usize::MAX).min(text.pieces());
        if pieces == 0 {
            return Err(BadInput("--pieces 0 leaves nothing to score".into()).into());
        }
        if let Some(imatrix) = &mut imatrix {
            if !model.engine().state_values().any(|state| state.name.starts_with(observe::PREFIX)) {
                return Err(BadInput(
                    "--imatrix needs a model file: a compiled plan does not sum the squares of inputs of products"
                        .into(),
                )
                .into());
            }
            reads(imatrix, model.files().iter().map(PathBuf::as_path))?;
        }
        let mut observed = ActivationSums::default();
        let mut found: Vec<PieceScores> = Vec::new();
        let mut record = None;
        if let Some(output) = &mut output {
            for model in [Some(&model), right.as_ref()].into_iter().flatten() {
                reads(output, model.files().iter().map(PathBuf::as_path))?;
            }
        }
        if let Some(output) = output {
            let place = output.into_place().map_err(ixc_error::Error::from)?;
            let header = self.header(&text, &model, right.as_ref(), &options.compile)?;
            let scored = text.scored_positions();
            let (opened, there) = Record::open(&place, &header, text.pieces(), scored, self.force.is_set())
                .map_err(ixc_error::Error::from)?;
            if !there.is_empty() {
                note!(
                    "ixc: the output file already has scores of {} of {pieces}; they are not computed again",
                    count_text(there.len() as u64, "piece")
                );
            }
            (record, found) = (Some(opened), there);
            found.truncate(pieces);
        }
        let (mut line, mut rate) = (Line::new(Instant::now()), Rate::default());
        let each = self.context as u64;
        for piece in found.len()..pieces {
            let so_far = summary(&found).map_or(String::new(), |found| format!(", perplexity {:.4}", found.perplexity));
            let rate = rate.at(Instant::now(), piece as u64 * each, pieces as u64 * each, Unit::Tokens);
            line.show(format_args!("piece {} of {pieces}{so_far}{rate}", piece + 1));
            let scored = text.score(piece, &mut model, right.as_mut())?;
            if imatrix.is_some() {
                let states = model.engine().state_values();
                observed.add(states.map(|StateValues { name, width, values }| StateSums { name, width, values }));
            }
            if let Some(record) = &mut record {
                record.add(&scored).map_err(ixc_error::Error::from)?;
            }
            found.push(scored);
        }
        line.clear();
        if let (Some(imatrix), Some(path)) = (imatrix, &self.imatrix) {
            let matrices = observed.write(imatrix, &self.text.to_string_lossy(), self.context as u32)?;
            let count = count_text(matrices as u64, "tensor");
            note!("ixc: wrote the importance matrix of {count} to {}", path.display());
        }
        let summary = summary(&found).ok_or(ixc_compile::Error::NoTokens)?;
        let seconds = begin.elapsed().as_secs_f64();
        if self.json {
            let (text_tokens, context) = (text.tokens().len(), self.context);
            return Ok(json(
                out,
                "ixc.eval.v1",
                &EvalReport { text_tokens, context, pieces, seconds, summary: &summary },
            )?);
        }
        writeln!(
            out,
            "scored      {} in {} of {} tokens, {seconds:.1} s",
            count_text(summary.positions as u64, "position"),
            count_text(pieces as u64, "piece"),
            self.context
        )?;
        writeln!(out, "perplexity  {:.4} ± {:.4}", summary.perplexity, summary.perplexity_error)?;
        Ok(summary.against.map_or(Ok(()), |against| write_comparison(out, &against))?)
    }
}

/// Prints a comparison, with a line for each figure.
fn write_comparison(out: &mut dyn Write, against: &Comparison) -> std::io::Result<()> {
    let ratio = against.log_ratio.mean.exp();
    writeln!(out, "against     {:.4} ± {:.4}", against.perplexity, against.perplexity_error)?;
    writeln!(out, "ratio       {ratio:.6} ± {:.6}", ratio * against.log_ratio.error)?;
    writeln!(out, "KL mean     {:.6} ± {:.6} nats", against.divergence.mean, against.divergence.error)?;
    writeln!(out, "KL median   {:.6}", against.divergence_median)?;
    writeln!(out, "KL 99 %     {:.6}", against.divergence_99)?;
    writeln!(out, "KL 99.9 %   {:.6}", against.divergence_999)?;
    writeln!(out, "KL max      {:.6}", against.divergence_max)?;
    let percent = |part: f64| 100.0 * part;
    writeln!(out, "top-1       {:.3} ± {:.3} % the same", percent(against.same.mean), percent(against.same.error))?;
    writeln!(
        out,
        "Δp          {:.3} ± {:.3} % on average, {:.3} % RMS",
        percent(against.change.mean),
        percent(against.change.error),
        percent(against.change_rms)
    )
}
