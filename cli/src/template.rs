//! Chat template of a command: a built-in format, or a file.

use std::path::Path;

use ixc_files::{ReadError, read_argument};
use ixc_text::template::{ChatTemplate, MAX_SOURCE_BYTES, known};

use super::BadInput;

/// Template that replaces the model's template.
#[derive(Debug, clap::Args)]
pub struct TemplateChoice {
    /// Use this chat template in place of the model's own: a known format by its name, or a file
    /// with Jinja; `ixc run` then uses the template, as with --chat.
    #[arg(long, alias = "chat-template-file", value_name = "NAME|FILE", long_help = long_help())]
    chat_template: Option<String>,
}

fn long_help() -> String {
    let mut help =
        "Use this chat template in place of the model's own: a file with Jinja, or one of these formats by its name; `ixc run` then uses the template, as with --chat.\n"
            .to_owned();
    for known in known::KNOWN {
        help += &format!("\n  {:<12} {}", known.name, known.models);
    }
    help
}

impl TemplateChoice {
    /// Returns whether the option names a template.
    pub fn is_given(&self) -> bool {
        self.chat_template.is_some()
    }

    /// Returns the file of the template; `None` for the name of a known format.
    pub fn file(&self) -> Option<&Path> {
        self.chat_template.as_deref().filter(|name| known::find(name).is_none()).map(Path::new)
    }

    /// Returns the template that the option names, if any.
    ///
    /// # Errors
    /// When the name is neither a known format nor a file that can be read.
    pub fn template(&self) -> anyhow::Result<Option<ChatTemplate>> {
        let Some(name) = &self.chat_template else { return Ok(None) };
        if let Some(known) = known::find(name) {
            return Ok(Some(known.template()));
        }
        let path = Path::new(name);
        if !path.exists() && !name.contains(['/', '.']) {
            let names = known::names().join(", ");
            return Err(BadInput(format!(
                "there is no chat template {name:?}, nor a file of that name; the known templates are {names}"
            ))
            .into());
        }
        let text = match read_argument(path, MAX_SOURCE_BYTES as u64) {
            Err(ReadError::Io { source, .. }) => return Err(ixc_error::Error::io(path, "read")(source).into()),
            other => other.map_err(|error| BadInput(error.to_string()))?,
        };
        Ok(Some(ChatTemplate::from_source(&text).map_err(ixc_error::Error::from)?))
    }
}
