//! Conversion of text to tokens and back, of conversations to prompts, and of a model's output to
//! the parts of an answer.
//!
//! Begin with [`tokenizer`]. Its [`TokenizerSpec`](tokenizer::TokenizerSpec) is the vocabulary that
//! readers of model files return and that plans contain. [`template`] converts a chat to a prompt.
//! [`chat`] parses the text that the model writes.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`tokenizer`] | vocabularies, and conversion of text to ids and back |
//! | [`template`] | chat templates, which are rendered within limits |
//! | [`chat`] | parser of a model's text: reasoning, answer and tool calls |
//! | [`helper`] | helper processes for untrusted tasks, whose crashes do not affect this process |
//! | [`launcher`] | process that starts helpers for a process that may not start programs |
//!
//! This crate uses `failure` and `sandbox`, but no other crates of the workspace.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod chat;
pub mod helper;
pub mod launcher;
pub mod template;
pub mod tokenizer;
