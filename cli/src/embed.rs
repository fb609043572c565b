//! `ixc embed`: computes vectors of texts.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use ixc_generate::embedding::Embedder;
use ixc_generate::loaded_model::{LoadOptions, LoadedModel};
use ixc_ir::plan::Pooling;
use ixc_measure::npy;
use ixc_runtime::engine;
use ixc_runtime::progress::ProgressCounter;
use serde::Serialize;

use super::force::{Force, reads};
use super::model_args::{ModelChoice, RunChoice, backend};
use super::output::{self, Watch};
use super::{BadInput, tokenize};

/// Pooling of a text's hidden states into one vector.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct PoolingChoice {
    /// Pooling of a text's hidden states into one vector: their mean, the first token's (cls) or
    /// the last token's [default: the model's, or last].
    #[arg(long, value_name = "HOW", value_parser = PossibleValuesParser::new(Pooling::ALL.map(|(name, _)| name)).try_map(|name| name.parse::<Pooling>()))]
    pub pooling: Option<Pooling>,
}

/// Computes embeddings of texts: hidden states after the model's last norm, pooled and scaled to
/// length 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc embed qwen3-embedding.gguf -p \"The borrow checker\" -p \"A trait\"
  ixc embed model.gguf -f text.txt --pooling mean --dimensions 256
  ixc embed model.gguf -f text.txt -o text.npy   f32 [texts, dimensions]

Each -p and -f is one text. A newline at the end of a file is not part of it. Names of special \
tokens are those tokens, and the model's own tokens around a text are added. A plan must come from \
`ixc compile --embeddings`.")]
pub struct Args {
    #[command(flatten)]
    model: ModelChoice,
    /// Text to embed; repeatable.
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Vec<String>,
    /// File with a text to embed; `-` reads standard input.
    #[arg(short, long, value_name = "FILE")]
    file: Vec<PathBuf>,
    #[command(flatten)]
    pooling: PoolingChoice,
    /// Keep only the first N dimensions of each vector, scaled to length 1 again. For models with
    /// nested (Matryoshka) embeddings.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    dimensions: Option<u32>,
    /// Write a NumPy file, f32 [texts, dimensions], instead of JSON; `-` writes to standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    how: RunChoice,
    /// Run generated code in the emulator, which runs any target on any machine, about 1,000 times
    /// slower.
    #[arg(long)]
    emulate: bool,
}

/// Output as JSON.
#[derive(Serialize)]
struct EmbedReport {
    pooling: &'static str,
    dimensions: usize,
    /// Tokens of each text.
    tokens: Vec<usize>,
    /// A vector for each text, the texts of -p first.
    embeddings: Vec<Vec<f32>>,
}

/// Max number of texts that are computed together.
const MAX_SEQUENCES: u32 = 8;

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let inputs: Vec<&Path> = self.model.files().chain(self.file.iter().map(PathBuf::as_path)).collect();
        let output = self.output.as_ref().map(|path| self.force.open(path, &npy::KIND, &inputs));
        let mut output = output.transpose()?;
        let mut texts = self.prompt.clone();
        for path in &self.file {
            let mut text = tokenize::read(path)?;
            if text.ends_with('\n') {
                text.pop();
            }
            texts.push(text);
        }
        if texts.is_empty() || texts.iter().any(String::is_empty) {
            return Err(BadInput("there is no text, or a text is empty; give texts with -p or -f".into()).into());
        }
        let progress = Arc::new(ProgressCounter::default());
        let options = self.how.options(&self.model)?;
        let options = LoadOptions {
            run: engine::EngineOptions {
                backend: backend(self.emulate),
                sequences: MAX_SEQUENCES.min(texts.len() as u32),
                progress: Some(Arc::clone(&progress)),
                ..options.run
            },
            embeddings: true,
            ..options
        };
        let watch = Watch::new(&progress);
        let model = LoadedModel::open(self.model.path(), &options)?;
        if let Some(output) = &mut output {
            reads(output, model.files().iter().map(PathBuf::as_path))?;
        }
        let mut embedder = Embedder::new(model, self.pooling.pooling)?;
        let tokens = texts.iter().map(|text| embedder.encode(text)).collect::<Result<Vec<_>, _>>()?;
        let most = embedder.width();
        let dimensions = self.dimensions.map_or(most, |wanted| wanted as usize);
        if dimensions > most {
            return Err(BadInput(format!(
                "embedding vectors of this model have {most} elements, fewer than the requested {dimensions}"
            ))
            .into());
        }
        let counts = tokens.iter().map(Vec::len).collect();
        let mut vectors = embedder.embed(tokens)?;
        drop(watch);
        if dimensions < most {
            vectors = vectors.iter().map(|vector| embedder.cut(vector, dimensions)).collect();
        }
        if let Some(output) = output {
            let (shape, data) = (npy::Shape { rows: vectors.len(), columns: dimensions }, vectors.concat());
            return Ok(npy::write_to(output, shape, &data).map_err(ixc_error::Error::from)?);
        }
        let facts = EmbedReport { pooling: embedder.pooling().name(), dimensions, tokens: counts, embeddings: vectors };
        Ok(output::json(out, "ixc.embed.v1", &facts)?)
    }
}
