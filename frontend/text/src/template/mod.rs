//! Chat templates, which convert a conversation to the prompt text that a model was trained on.
//!
//! A template is a Jinja program from a model file, so it is untrusted. Rendering has these limits:
//!
//! | resource | limit | enforced by |
//! | --- | --- | --- |
//! | source | [`MAX_SOURCE_BYTES`] | check before parsing |
//! | steps | [`Budget::steps`] for each of at most six renderings | minijinja's fuel |
//! | output | [`Budget::output_bytes`] | a writer that refuses more bytes |
//! | native stack | [`STACK_BYTES`] | a separate thread, in which the deepest nesting fits |
//! | memory | [`Budget::memory_bytes`] | **child process only** (`RLIMIT_DATA`, `RLIMIT_AS`) |
//! | processor time | [`CPU_SECONDS`] | **child process only** (`RLIMIT_CPU`) |
//!
//! Fuel limits neither memory nor time. Running `s = s ~ s` forty times takes two hundred steps,
//! but needs a terabyte. Parsing a source of 64 KiB of `-` takes half a minute. Minijinja can limit
//! neither of these, and a Rust process aborts when it has no more memory.
//! [`ChatTemplate::render_isolated`] therefore renders untrusted templates in a process that may
//! die.
//!
//! The helper process can be any program that calls [`serve_render_request`] when its first
//! argument is [`RENDER_ARGUMENT`], usually `ixc` itself ([`own_program`]). The helper opens no
//! file, and has only three pipes as descriptors. Whatever happens, the caller gets text or a
//! [`TemplateError`]. [`ChatTemplate::render`] renders in this process, and has the limits except
//! memory and time.
//!
//! | file | what it owns |
//! | --- | --- |
//! | `budget` | limits of rendering |
//! | `render` | rendering with minijinja, on its own thread |
//! | `functions` | functions of transformers: `tojson`, `strftime_now`, `raise_exception` |
//! | `filters` | filters and methods of Jinja and Python |
//! | `python` | values in Python's notation |
//! | `lists` | mutable lists for templates |
//! | `json` | JSON values from outside: tools, arguments and variables |
//! | `conversation` | input of a template: messages, tools and variables |
//! | `continuation` | prompts whose last message the answer continues |
//! | `tools_in_prompt` | descriptions of tools as text, for templates without tools |
//! | [`known`] | formats that many models share, for files without a template |
//! | `isolate` | rendering in a helper process |
//! | `error` | errors of rendering |
//!
//! ```
//! use ixc_text::template::{ChatTemplate, Conversation, Message};
//! let template = ChatTemplate::from_source("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}")?;
//! let conversation = Conversation { messages: vec![Message::new("user", " hi ")], ..Conversation::default() };
//! assert_eq!(template.render(&conversation)?, "<user>hi");
//! # Ok::<(), ixc_text::template::TemplateError>(())
//! ```

mod budget;
mod continuation;
mod conversation;
mod error;
mod filters;
mod functions;
mod isolate;
mod json;
pub mod known;
mod lists;
mod python;
mod render;
mod tools_in_prompt;

use std::path::Path;

pub use crate::helper::own_program;
pub use budget::{Budget, CPU_SECONDS, MAX_SOURCE_BYTES, STACK_BYTES};
pub use conversation::{Conversation, Message};
pub use error::{Limit, TemplateError};
pub use isolate::{RENDER_ARGUMENT, serve_render_request};
pub use json::Json;
pub use tools_in_prompt::Demand;

/// Source of a chat template. It is parsed only when it is rendered, because parsing needs the
/// limits, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    source: String,
}

impl ChatTemplate {
    /// Returns the template with this source. Some files have the name of a known format instead of
    /// a source.
    ///
    /// # Errors
    /// [`TemplateError::Limit`] for [`Limit::Source`].
    pub fn from_source(source: &str) -> Result<ChatTemplate, TemplateError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(TemplateError::Limit { limit: Limit::Source, allowed: MAX_SOURCE_BYTES as u64 });
        }
        Ok(known::find(source).map_or_else(|| ChatTemplate { source: source.to_owned() }, known::KnownFormat::template))
    }

    /// Returns the source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders in this process, on a separate thread. Memory and time are not limited, so the
    /// template must come from a trusted source.
    ///
    /// # Errors
    /// [`TemplateError`].
    pub fn render(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        continuation::render(&self.source, conversation, |closed| render::render(&self.source, closed))
    }

    /// Renders in a helper process, with all limits. The program `helper` must call
    /// [`serve_render_request`] when its first argument is [`RENDER_ARGUMENT`].
    ///
    /// # Errors
    /// [`TemplateError`], also if the template killed the helper process.
    pub fn render_isolated(&self, helper: &Path, conversation: &Conversation) -> Result<String, TemplateError> {
        continuation::render(&self.source, conversation, |closed| isolate::render(helper, &self.source, closed))
    }
}
