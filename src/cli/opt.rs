//! `ixc opt`: graph passes on IR text.

use std::io::Write;
use std::path::PathBuf;

use ixc::excerpt::Excerpt;
use ixc::ir::graph::parse::parse;
use ixc::passes::manager::{Options, PASSES, run_pipeline};

use super::BadInput;
use super::experts::Experts;
use super::tokenize::read;

/// Runs graph passes on IR text: text in, text out.
#[derive(Debug, clap::Args)]
#[command(after_help = after_help())]
pub struct Args {
    /// A file with graph IR, `-` for standard input.
    file: PathBuf,
    /// Passes, in the order in which they are run; with none, the text is checked and printed again.
    #[arg(long, value_delimiter = ',')]
    passes: Vec<String>,
    #[command(flatten)]
    experts: Experts,
}

fn after_help() -> String {
    let mut help = "EXAMPLES:
  ixc opt model.ix --passes canonicalise,fuse
  ixc dump model.gguf --stage graph | ixc opt - --passes fuse
  ixc opt fused.ix --passes residency --expert-memory 6GiB --predict 2

PASSES:"
        .to_owned();
    for pass in PASSES {
        help += &format!("\n  {}\n    {}", pass.name, pass.doc);
    }
    help
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let text = read(&self.file)?;
        let module = parse(&text).map_err(|error| {
            BadInput(Excerpt::new(&self.file, &text, error.line, error.column, &error.problem).to_string())
        })?;
        if module.functions.is_empty() && module.weights.is_empty() {
            let problem = "there is no graph in it; `ixc dump MODEL --stage graph` shows what one looks like";
            return Err(BadInput(format!("{}: {problem}", self.file.display())).into());
        }
        let options = Options {
            expert_memory: self.experts.memory(),
            predict_extra: self.experts.predict,
            defer: self.experts.deferral.defer,
            ..Options::default()
        };
        let passes: Vec<&str> = self.passes.iter().map(String::as_str).collect();
        let module = run_pipeline(module, &passes, &options).map_err(ixc::Error::from)?;
        Ok(write!(out, "{module}")?)
    }
}
