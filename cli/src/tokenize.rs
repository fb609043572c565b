//! `ixc tokenize` and `ixc detokenize`: text to token ids and back.

use std::io::Write;
use std::path::PathBuf;

use ixc_compile::compile::decode_tokenizer;
use ixc_compile::model::Input;
use ixc_runtime::file::of_file;
use ixc_text::tokenizer::{DecodeOptions, Tokenizer};
use serde_json::json;

use super::model_args::ModelArgument;
use super::output::{self, lossless};
use super::tokens::TokenList;
use super::wrap::Text;
use super::{Usage, terminal};

pub use super::tokens::read;

/// Turns text into token ids. No BOS is added.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc tokenize model.gguf \"Hello, world\"
  ixc tokenize -p \"Hello, world\"                 of the built-in demo model
  ixc tokenize model.gguf --file book.txt --json
  echo -n 'Hello' | ixc tokenize model.gguf --file -
  ixc tokenize model.gguf '<|im_start|>' --no-special

A single argument is the MODEL. Without MODEL, give the text with -p or -f.")]
pub struct EncodeArgs {
    #[command(flatten)]
    model: ModelArgument,
    /// Text.
    #[arg(conflicts_with_all = ["file", "prompt"], allow_hyphen_values = true)]
    text: Option<String>,
    /// Text, if MODEL is left out.
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Read the text from a file; `-` reads standard input.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Treat the names of special tokens as text.
    #[arg(long)]
    no_special: bool,
    /// Print JSON: `{"schema": "ixc.tokenize.v1", "ids": [...]}`.
    #[arg(long)]
    json: bool,
}

/// Turns token ids into text.
#[derive(Debug, clap::Args)]
#[command(allow_missing_positional = true)]
#[command(after_help = "EXAMPLES:
  ixc detokenize model.gguf 9707,11,1879
  ixc detokenize 1,2,3                           of the built-in demo model
  ixc detokenize model.gguf @ids.txt
  ixc detokenize model.gguf 1,9707 --special --json")]
pub struct DecodeArgs {
    #[command(flatten)]
    model: ModelArgument,
    /// Token ids: `1,2,3`, or `@file`.
    #[arg(value_name = "IDS|@FILE", required = true)]
    ids: TokenList,
    /// Print special tokens by name.
    #[arg(long)]
    special: bool,
    /// Print JSON: `{"schema": "ixc.detokenize.v1", "text": ...}`.
    #[arg(long)]
    json: bool,
}

/// Opens the tokenizer of a model or a plan.
fn open(model: &ModelArgument) -> anyhow::Result<Tokenizer> {
    let Some(path) = model.path() else { return Ok(ixc_compile::model::tokenizer(&ixc_compile::demo::open()?)?) };
    match Input::open(path)? {
        Input::Plan(file) => {
            let plan = of_file(file, path).map_err(ixc_error::Error::from)?.plan;
            Ok(Tokenizer::new(&decode_tokenizer(&plan.tokenizer)?).map_err(ixc_error::Error::from)?)
        }
        Input::Model(gguf) => Ok(ixc_compile::model::tokenizer(&gguf)?),
    }
}

impl EncodeArgs {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let text = match (self.text.or(self.prompt), self.file) {
            (Some(text), _) => text,
            (None, Some(path)) => read(&path)?,
            (None, None) => {
                let problem = "there is no text: give it after MODEL (`ixc tokenize MODEL TEXT`), or with -p or -f";
                return Err(Usage(problem.into()).into());
            }
        };
        let tokenizer = open(&self.model)?;
        let ids = tokenizer.encode(&text, !self.no_special).map_err(ixc_error::Error::from)?;
        if self.json {
            // JSON on one line: lists of ids are long.
            writeln!(out, "{}", json!({ "schema": "ixc.tokenize.v1", "ids": ids }))?;
            return Ok(());
        }
        for id in ids {
            writeln!(out, "{id:>7}  '{}'", lossless(tokenizer.token_bytes(id).map_err(ixc_error::Error::from)?))?;
        }
        Ok(())
    }
}

impl DecodeArgs {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let tokenizer = open(&self.model)?;
        let ids = self.ids.read()?;
        let options = DecodeOptions { show_special: self.special, ..DecodeOptions::default() };
        if self.json {
            let text = tokenizer.decode_with(&ids, options).map_err(ixc_error::Error::from)?;
            return Ok(output::json(out, "ixc.detokenize.v1", &json!({ "text": text }))?);
        }
        terminal::set_text(Text::Verbatim);
        // Writes the exact bytes of the tokens. On a terminal, the filter removes control
        // characters.
        out.write_all(&tokenizer.decode_bytes(&ids, options).map_err(ixc_error::Error::from)?)?;
        Ok(writeln!(out)?)
    }
}
