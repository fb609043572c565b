//! Readers of model files, tokenizers, chat templates, and the architectures that build graphs.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`arch`] | architectures: from a file to a graph |
//! | [`chat`] | what models write, taken apart: reasoning, answer, tool calls |
//! | [`gguf`] | the GGUF reader |
//! | [`template`] | chat templates, rendered within limits |
//! | [`tokenizer`] | vocabularies, text to ids and back |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod arch;
pub mod chat;
pub mod gguf;
pub mod template;
pub mod tokenizer;
