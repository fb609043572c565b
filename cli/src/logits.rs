//! `ixc logits`: writes the logits of given tokens as a NumPy file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use ixc_compile::compile;
use ixc_generate::loaded_model::{LoadOptions, LoadedModel};
use ixc_measure::npy;
use ixc_model_files::gguf::ShardFile;
use ixc_runtime::engine;
use ixc_runtime::progress::ProgressCounter;

use super::force::{Force, reads};
use super::model_args::{ModelChoice, StreamingChoice, TargetChoice, backend};
use super::output::Watch;
use super::plan_cache::PlanCacheChoice;
use super::tokens::TokenList;
use super::{BadInput, Usage};

/// Computes the logits of tokens and writes them as a NumPy file, f32 [tokens, vocabulary].
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc logits model.gguf --tokens 1,2,3 -o out.npy
  ixc logits --tokens 1,2,3 -o demo.npy          of the built-in demo model
  ixc logits model.gguf --tokens @prompt.txt -o exact.npy --engine interpreter")]
pub struct Args {
    #[command(flatten)]
    model: ModelChoice,
    /// Token ids: `1,2,3`, or `@file`. No BOS is added.
    #[arg(long, value_name = "IDS|@FILE")]
    tokens: TokenList,
    /// File to write; `-` writes to standard output.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    force: Force,
    /// Engine: generated code, or the reference interpreter, which is exact and slow.
    #[arg(long, value_enum, default_value = "compiled")]
    engine: Engine,
    #[command(flatten)]
    target: TargetChoice,
    #[command(flatten)]
    streaming: StreamingChoice,
    #[command(flatten)]
    plan_cache: PlanCacheChoice,
    /// Run generated code in the emulator, which runs any target on any machine, about 1,000 times
    /// slower.
    #[arg(long, conflicts_with = "engine")]
    emulate: bool,
    /// Do not pack weights: read them in the model file's layout, even if packed kernels are
    /// faster.
    #[arg(long)]
    no_pack: bool,
    /// Threads of the compiled engine [default: one per core].
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
}

/// Engine that computes the logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// Generated code.
    Compiled,
    /// The definition of every op, in f32 from dequantised weights.
    Interpreter,
}

impl Args {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        let tokens = self.tokens.read()?;
        let streaming = self.streaming.options()?;
        let changed = streaming.compile.defer > 0 || !streaming.compile.passes.is_empty();
        if self.engine == Engine::Interpreter && changed {
            let problem = "--defer, --weights, --kv, --tile and --set change passes; the interpreter runs the model without passes";
            return Err(Usage(problem.into()).into());
        }
        let inputs: Vec<&Path> = self.model.files().chain(self.tokens.file()).collect();
        let mut output = self.force.open(&self.output, &npy::KIND, &inputs)?;
        let logits = match self.engine {
            Engine::Interpreter => {
                let model = self.model.open()?;
                reads(&mut output, model.gguf.files().iter().map(ShardFile::path))?;
                model.exact_logits(&tokens)?
            }
            Engine::Compiled => {
                let progress = Arc::new(ProgressCounter::default());
                let _watch = Watch::new(&progress);
                let (target, pack) = (self.target.target(), self.no_pack.then_some(false));
                let options = LoadOptions {
                    compile: compile::CompileOptions {
                        target,
                        caches: self.target.caches(),
                        pack,
                        ..streaming.compile
                    },
                    run: engine::EngineOptions {
                        threads: self.threads,
                        context: Some(tokens.len() as u64),
                        backend: backend(self.emulate),
                        progress: Some(Arc::clone(&progress)),
                        ..streaming.run
                    },
                    model_file: self.model.file().map(Path::to_owned),
                    plan_cache: self.plan_cache.cache(),
                    ..streaming
                };
                let mut model = LoadedModel::open(self.model.path(), &options)?;
                reads(&mut output, model.files().iter().map(PathBuf::as_path))?;
                model.logits(&tokens)?
            }
        };
        let columns = logits.len() / tokens.len();
        if let Some(at) = logits.iter().position(|logit| !logit.is_finite()) {
            let (row, token) = (at / columns.max(1), at % columns.max(1));
            let problem = format!(
                "the logit of token {token} at position {row} is {}; expected finite numbers, so nothing is written: the model file is damaged, \
                 or the types of its tensors are wrong",
                logits[at]
            );
            return Err(BadInput(problem).into());
        }
        Ok(npy::write_to(output, npy::Shape { rows: tokens.len(), columns }, &logits)
            .map_err(ixc_error::Error::from)?)
    }
}
