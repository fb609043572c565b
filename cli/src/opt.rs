//! `ixc opt`: runs passes on IR text.

use std::io::Write;
use std::path::PathBuf;

use ixc_compile::compile::{CompileOptions, TargetName, context, run_passes};
use ixc_compile::excerpt::Excerpt;
use ixc_ir::graph::Module;
use ixc_passes::manager::{self, Ir, Stop, TextError};

use super::BadInput;
use super::drawing::{FormatChoice, render};
use super::experts::Experts;
use super::model_args::open;
use super::model_name::ModelName;
use super::passes::{self, PassChoice};
use super::tokenize::read;

/// Runs passes on IR in text form, and prints the result as text.
#[derive(Debug, clap::Args)]
#[command(after_help = after_help())]
pub struct Args {
    /// File with graph IR, or with tasks from `lower` or `steps`; `-` reads standard input.
    file: PathBuf,
    /// Passes to run, in order; without any, the text is checked and printed again.
    #[arg(long, value_delimiter = ',')]
    passes: Vec<String>,
    #[command(flatten)]
    format: FormatChoice,
    /// Model of the text: `lower` needs its files and tokenizer.
    #[arg(long, value_parser = ModelName::parser())]
    model: Option<ModelName>,
    /// Target or CPU to generate kernels for: `native`, or a name that `ixc doctor` lists.
    #[arg(long, default_value = "native")]
    target: TargetName,
    #[command(flatten)]
    experts: Experts,
    #[command(flatten)]
    options: PassChoice,
}

fn after_help() -> String {
    let examples = "EXAMPLES:
  ixc opt model.ix --passes canonicalise,fuse
  ixc dump model.gguf --stage graph | ixc opt - --passes fuse
  ixc opt fused.ix --passes residency --expert-memory 6GiB --predict 2
  ixc dump model.gguf --after tile > tiled.ix
  ixc opt tiled.ix --model model.gguf --passes lower,steps,arena
                                             after editing tiled.ix

";
    examples.to_owned() + &passes::list()
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let text = read(&self.file)?;
        let ir = Ir::parse(&text).map_err(|error| {
            BadInput(match error {
                TextError::Graph(error) => {
                    Excerpt::new(&self.file, &text, error.line, error.column, &error.problem).to_string()
                }
                error @ (TextError::Json(_) | TextError::Schedule(_) | TextError::Spec(_)) => {
                    format!("{}: {error}", self.file.display())
                }
            })
        })?;
        if ir == Ir::Graph(Module::default()) {
            let problem = "it has no graph; `ixc dump MODEL --stage graph` shows what one looks like";
            return Err(BadInput(format!("{}: {problem}", self.file.display())).into());
        }
        let options = CompileOptions {
            target: Some(self.target.target),
            caches: self.target.caches,
            passes: self.options.options()?,
            expert_memory: self.experts.memory(),
            predict_extra: self.experts.predict,
            defer: self.experts.deferral.defer,
            ..CompileOptions::default()
        };
        let passes: Vec<&str> = self.passes.iter().map(String::as_str).collect();
        let ir = match &self.model {
            Some(model) => run_passes(&open(model.path())?, &options, ir, &passes)?,
            None => manager::run(ir, &passes, &context(&options, None)).map_err(ixc_error::Error::from)?,
        };
        // `compile --start-from` needs the name of the last pass.
        let after = match passes.last() {
            Some(last) => Some(Some(manager::find(last).map_err(ixc_error::Error::from)?.name)),
            None => Stop::parse(&text).ok().map(|stop| stop.after),
        };
        let text = match (self.format.language(), after) {
            (Some(language), _) => render(&ir, language)?,
            (None, Some(after)) => Stop { ir, after }.text(),
            (None, None) => ir.text(),
        };
        Ok(out.write_all(text.as_bytes())?)
    }
}
