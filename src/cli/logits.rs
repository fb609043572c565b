//! `ixc logits`: logits of given tokens, as a NumPy file.

use std::path::PathBuf;

use ixc::model::Model;

use super::tokens::TokenList;

/// Computes the logits of tokens and writes them as a NumPy file, f32 [tokens, vocabulary].
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc logits model.gguf --tokens 1,2,3 -o out.npy
  ixc logits model.gguf --tokens @prompt.txt -o exact.npy --engine interpreter")]
pub struct Args {
    /// The model: a GGUF file.
    model: PathBuf,
    /// Token ids: `1,2,3`, or `@file`. They are fed as they are; no BOS is added.
    #[arg(long, value_name = "IDS|@FILE")]
    tokens: TokenList,
    /// The file to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

impl Args {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        let tokens = self.tokens.read()?;
        let model = Model::open(&self.model)?;
        let logits = model.exact_logits(&tokens, |_| {})?;
        let columns = logits.len() / tokens.len();
        let write = ixc::npy::write_file(&self.output, [tokens.len(), columns], &logits);
        Ok(write.map_err(ixc::Error::io(&self.output, "write"))?)
    }
}
