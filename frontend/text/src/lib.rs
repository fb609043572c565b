//! Text to tokens and back, conversations to prompts, and answers to their parts.
//!
//! Begin with [`tokenizer`]: its [`TokenizerSpec`](tokenizer::TokenizerSpec) is the vocabulary that
//! readers of model files return and that plans contain. A chat goes through [`template`] to a
//! prompt. The text that the model writes goes through [`chat`].
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`tokenizer`] | vocabularies, text to ids and back |
//! | [`template`] | chat templates, rendered within limits |
//! | [`chat`] | reasoning, answer and tool calls of a model's text |
//! | [`helper`] | a helper process for untrusted tasks, whose crash does not affect this process |
//! | [`launcher`] | a process that starts helpers for a process that may not |
//!
//! The only other crates of the workspace that this one uses are `failure` and `sandbox`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod chat;
pub mod helper;
pub mod launcher;
pub mod template;
pub mod tokenizer;
