//! Text generation with a plan.
//!
//! Begin with [`loaded_model`]: a [`LoadedModel`](loaded_model::LoadedModel) is a plan in an
//! engine. The [`generator`] is the loop that generates text. A [`session`] is a generator with one
//! slot.
//!
//! | module | contents |
//! | --- | --- |
//! | [`loaded_model`] | plan in an engine, with its tokenizer and chat template |
//! | [`plan_file`] | plan files and their model files |
//! | [`plan_cache`] | compiled plans in a folder of the user's |
//! | [`budget`] | compilation within a memory budget |
//! | [`explain`] | decisions of compiling and running, with alternatives and reasons |
//! | [`drive`] | speed of a drive, and its best number of concurrent reads |
//! | [`generator`] | generation for several requests in shared steps of one engine |
//! | [`session`] | generation of one text at a time |
//! | [`answer`] | text of an answer, split into content, reasoning and tool calls |
//! | [`output_text`] | text of generated tokens, up to a stop string |
//! | `masks` | token masks of grammars, computed by other threads |
//! | [`speculate`] | speculative decoding: draft tokens, computed with the last token of a text |
//! | [`draft_model`] | draft models: small models that guess tokens for a larger one |
//! | [`own_layer`] | draft layers: a layer of the model that guesses its tokens |
//! | [`prompt_cache`] | cache of prompt prefixes |
//! | `slot_file` | files of saved sequences |
//! | [`chat`] | conversations: turns, and the prompt from the chat template |
//! | [`embedding`] | embeddings of texts |
//! | [`moe`] | routed experts as functions for other engines |
//! | [`expert_use`] | JSON files of expert usage counts |
//! | [`timing`] | times of parts of a run, and overlap of reading and computing |
//! | [`error`] | errors of this crate |
//!
//! Depends on `ixc-compile` and the runtime, but on no command line or server.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod answer;
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
pub mod plan_cache;
pub mod plan_file;
pub mod prompt_cache;
pub mod ranks;
pub mod session;
mod slot_file;
pub mod speculate;
pub mod timing;

pub use error::Error;
