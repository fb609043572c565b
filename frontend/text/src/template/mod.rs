//! Chat templates: a conversation to the prompt text that a model was trained on.
//!
//! A template is a Jinja program from a model file, and hostile. Rendering it is bounded as follows.
//!
//! | of | bound | by |
//! | --- | --- | --- |
//! | source | [`MAX_SOURCE_BYTES`] | checked before it is parsed |
//! | steps | [`Budget::steps`], of each rendering (a template is rendered again where it left out what was said, at most five times) | minijinja's fuel |
//! | output | [`Budget::output_bytes`] | a writer that refuses |
//! | native stack | [`STACK_BYTES`] | own thread; what source and steps can nest fits (measured in `render`'s tests) |
//! | memory | [`Budget::memory_bytes`] | **child process only** (`RLIMIT_DATA`, `RLIMIT_AS`) |
//! | processor time | [`CPU_SECONDS`] | **child process only** (`RLIMIT_CPU`) |
//!
//! Fuel bounds neither memory nor time: forty times `s = s ~ s` is two hundred steps and a terabyte, 64 KiB of `-` take
//! half a minute to parse, minijinja offers no hook on either, and a Rust process that is refused memory aborts. So a template that nobody vouches for
//! is rendered by [`ChatTemplate::render_isolated`], in a process that may die: the helper is any program that calls
//! [`serve_render_request`], in practice `ixc` itself ([`own_program`]), started again with [`RENDER_ARGUMENT`]. It opens no file and has
//! no descriptor but its three pipes. Whatever then happens, the
//! caller gets text or a [`TemplateError`]. [`ChatTemplate::render`] stays in this process and keeps the other bounds.
//!
//! | file | what it owns |
//! | --- | --- |
//! | `budget` | the limits |
//! | `render` | minijinja's set-up, on a thread of its own |
//! | `functions` | what Hugging Face's templates expect: `tojson`, `strftime_now`, `raise_exception` |
//! | `filters` | filters and methods as Jinja and Python have them |
//! | `python` | values as Python writes them |
//! | `lists` | lists in a namespace that templates append to |
//! | `json` | tools, arguments and variables |
//! | `conversation` | what a template is rendered with |
//! | `continuation` | a last message that an answer goes on with |
//! | `told` | tools in words, for templates that know none |
//! | [`known`] | formats that many models share, for files without a template |
//! | `isolate` | the child process, both ends |
//! | `error` | what can go wrong |
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
mod told;

use std::path::Path;

pub use crate::helper::own_program;
pub use budget::{Budget, CPU_SECONDS, MAX_SOURCE_BYTES, STACK_BYTES};
pub use conversation::{Conversation, Message};
pub use error::{Limit, TemplateError};
pub use isolate::{RENDER_ARGUMENT, serve_render_request};
pub use json::Json;
pub use told::Demand;

/// A chat template's source. It is parsed when it is rendered: also the parser needs its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    source: String,
}

impl ChatTemplate {
    /// A template from its source, or from the name of a known format, which some files have in the place of a source.
    ///
    /// # Errors
    /// [`TemplateError::Limit`] for [`Limit::Source`].
    pub fn from_source(source: &str) -> Result<ChatTemplate, TemplateError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(TemplateError::Limit { limit: Limit::Source, allowed: MAX_SOURCE_BYTES as u64 });
        }
        Ok(known::find(source).map_or_else(|| ChatTemplate { source: source.to_owned() }, known::Known::template))
    }

    /// The source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders in this process, on a thread of its own. Memory and time are not bounded: for templates from a trusted
    /// source only.
    ///
    /// # Errors
    /// [`TemplateError`].
    pub fn render(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        continuation::render(&self.source, conversation, |closed| render::render(&self.source, closed))
    }

    /// Renders in a child process, with all bounds: `helper`, run with [`RENDER_ARGUMENT`], must call
    /// [`serve_render_request`].
    ///
    /// # Errors
    /// [`TemplateError`], also for whatever the template did to the child.
    pub fn render_isolated(&self, helper: &Path, conversation: &Conversation) -> Result<String, TemplateError> {
        continuation::render(&self.source, conversation, |closed| isolate::render(helper, &self.source, closed))
    }
}
