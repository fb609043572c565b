//! Options that restrict the text to a grammar or a JSON schema; the flags have llama.cpp's names.

use std::path::{Path, PathBuf};

use ixc_files::{ReadError, read_argument};
use ixc_generate::loaded_model::LoadedModel;
use ixc_grammar::{GrammarSource, MAX_BYTES, Matcher, Vocabulary};
use serde_json::Value;

use super::BadInput;
use super::invocation::helper_program;

/// Grammar or JSON schema of the text.
#[derive(Debug, clap::Args)]
pub struct GrammarChoice {
    /// Restrict the text to this grammar: GBNF, or Lark after `%llguidance`.
    #[arg(long, value_name = "GRAMMAR", conflicts_with_all = ["grammar_file", "json_schema", "json_schema_file"])]
    grammar: Option<String>,
    /// Restrict the text to the grammar in this file; a .lark file holds Lark.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json_schema", "json_schema_file"])]
    grammar_file: Option<PathBuf>,
    /// Restrict the text to JSON of this schema: the schema, a file, or `-` for standard input.
    /// `{}` allows any JSON.
    #[arg(short, long, value_name = "SCHEMA", conflicts_with = "json_schema_file")]
    json_schema: Option<String>,
    /// Restrict the text to JSON of the schema in this file.
    #[arg(long, value_name = "FILE")]
    json_schema_file: Option<PathBuf>,
}

impl GrammarChoice {
    /// Returns the input files of these options.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let schema = self.json_schema.as_deref().filter(|text| !is_schema(text) && *text != "-").map(Path::new);
        self.grammar_file.as_deref().into_iter().chain(self.json_schema_file.as_deref()).chain(schema)
    }

    /// Returns the grammar that the options give.
    pub fn source(&self) -> anyhow::Result<Option<GrammarSource>> {
        if let Some(text) = &self.grammar {
            return Ok(Some(GrammarSource::of_text(text)));
        }
        if let Some(path) = &self.grammar_file {
            let text = read(path)?;
            let is_lark = path.extension().is_some_and(|extension| extension == "lark");
            return Ok(Some(if is_lark { GrammarSource::Lark(text) } else { GrammarSource::of_text(&text) }));
        }
        let (text, name) = match (&self.json_schema, &self.json_schema_file) {
            (Some(text), _) if is_schema(text) => (text.clone(), "--json-schema".to_owned()),
            (Some(path), _) => (read(Path::new(path))?, path.clone()),
            (None, Some(path)) => (read(path)?, path.display().to_string()),
            (None, None) => return Ok(None),
        };
        let schema: Value =
            serde_json::from_str(&text).map_err(|error| BadInput(format!("{name} is not a JSON schema: {error}")))?;
        match schema {
            Value::Object(_) | Value::Bool(true) => Ok(Some(GrammarSource::Schema(schema))),
            _ => Err(BadInput(format!("{name} is not a JSON schema: it must be an object")).into()),
        }
    }

    /// Returns a matcher of the grammar that has matched no text yet.
    pub fn matcher(source: &GrammarSource, model: &LoadedModel) -> Result<Matcher, ixc_error::Error> {
        let helper = helper_program().map_err(ixc_error::Error::io(Path::new("/proc/self/exe"), "find"))?;
        Ok(Vocabulary::new(model.tokenizer()?)?.with_helper(helper).matcher(source)?)
    }
}

/// Returns whether the text is a schema, and not the name of a file.
fn is_schema(text: &str) -> bool {
    text.trim_start().starts_with('{') || text.trim() == "true"
}

fn read(path: &Path) -> anyhow::Result<String> {
    match read_argument(path, MAX_BYTES as u64) {
        Err(ReadError::Io { source, .. }) => Err(ixc_error::Error::io(path, "read")(source).into()),
        other => Ok(other.map_err(|error| BadInput(error.to_string()))?),
    }
}
