//! From a plan to text.
//!
//! Begin with [`loaded_model`]: a [`LoadedModel`](loaded_model::LoadedModel) is a plan in an
//! engine. One loop generates text, the [`generator`]; a [`session`] is a generator with one slot.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`loaded_model`] | a plan in an engine, with its tokenizer and template |
//! | [`plan_file`] | plan files with their model files |
//! | [`budget`] | whether a model fits into memory, and how it is compiled where it does not |
//! | [`explain`] | what compiling and running decided, over what else, and why |
//! | [`drive`] | how fast a drive is, and how many reads at once it wants |
//! | [`generator`] | requests for text that share the steps of one engine |
//! | [`session`] | a loaded model that generates one text at a time |
//! | [`output_text`] | text of generated tokens, up to a stop string |
//! | `masks` | masks of grammars, made by other threads |
//! | [`speculate`] | tokens that are guessed and computed with the last one |
//! | [`draft_model`] | a small model that guesses what a larger one will write |
//! | [`own_layer`] | a model's own layer that guesses what it will write |
//! | [`prompt_cache`] | what prompts began with, for later ones |
//! | `slot_file` | saved sequences of slots |
//! | [`chat`] | a conversation: turns, and the prompt that a template makes of them |
//! | [`embedding`] | texts as vectors |
//! | [`moe`] | a model's routed experts on their own, for other engines |
//! | [`expert_use`] | which experts a model uses: counts as JSON, and back |
//! | [`timing`] | what a part of a run took, and how reading and computing lay beside each other |
//! | [`error`] | what can go wrong |
//!
//! Uses compiling and the runtime, and neither a command line nor a server.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod budget;
pub mod chat;
pub mod draft_model;
pub mod drive;
pub mod embedding;
pub mod error;
pub mod expert_use;
pub mod explain;
pub mod generator;
pub mod loaded_model;
mod masks;
pub mod moe;
pub mod output_text;
pub mod own_layer;
pub mod plan_file;
pub mod prompt_cache;
pub mod session;
mod slot_file;
pub mod speculate;
pub mod timing;

pub use error::Error;
