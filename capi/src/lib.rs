//! ixc from C: models that generate, embed and converse, and a model's routed experts as an
//! operator. `include/ixc.h` documents each function; this crate checks the arguments.
//!
//! ```text
//! ixc_model_open ─▶ ixc_tokenize ─▶ ixc_generate        LoadedModel::open ─▶ Session::generate
//!                 ─▶ ixc_sequence_new ─▶ ixc_step                        ─▶ Engine::step_batch
//! ixc_moe_open   ─▶ ixc_moe_submit ─▶ ixc_job_wait      Moe::open ─▶ Moe::submit ─▶ Handle::wait
//! ```
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`error`] | statuses, and the last error of a thread |
//! | `arguments` | checks of pointers, lengths, texts and structs with sizes |
//! | `exclusive` | values that calls use one after the other |
//! | `flags` | flags of functions and options |
//! | [`log`] | messages for a callback |
//! | [`model`] | models: options, loading and facts |
//! | [`text`] | conversion of texts to tokens and back |
//! | [`sampler`] | settings by name, and draws from logits |
//! | [`generate`] | generation with a callback |
//! | [`cancel`] | cancellation switches for calls of other threads |
//! | [`state`] | saved states of texts |
//! | [`sequence`] | sequences, steps and logits |
//! | [`chat`] | conversations with templates and tools |
//! | [`embedding`] | vectors of texts |
//! | [`moe`] | a model's experts, and rows that are computed |
//!
//! Invariant: nothing unwinds into C. A panic or a null pointer becomes an error. Other pointers
//! must be as the header requires.
//!
//! Invariant: a call that uses a model and another handle locks the model first. So no two calls
//! wait for each other.

#![deny(clippy::disallowed_methods)]

mod arguments;
pub mod cancel;
pub mod chat;
pub mod embedding;
pub mod error;
mod exclusive;
mod flags;
pub mod generate;
pub mod log;
pub mod model;
pub mod moe;
pub mod sampler;
pub mod sequence;
pub mod state;
pub mod text;

use std::ffi::{CStr, c_char};

// The header lets any thread use any handle, so every handle must be `Send` and `Sync`.
const _: () = {
    const fn is_for_all_threads<T: Send + Sync>() {}
    is_for_all_threads::<cancel::IxcCancel>();
    is_for_all_threads::<chat::IxcChat>();
    is_for_all_threads::<embedding::IxcEmbedder>();
    is_for_all_threads::<generate::IxcGeneration>();
    is_for_all_threads::<model::IxcModel>();
    is_for_all_threads::<moe::IxcJob>();
    is_for_all_threads::<moe::IxcMoe>();
    is_for_all_threads::<sampler::IxcSampler>();
    is_for_all_threads::<sequence::IxcSequence>();
};

/// `IXC_ABI_VERSION` of the header.
const ABI_VERSION: u32 = match u32::from_str_radix(env!("IXC_ABI_VERSION"), 10) {
    Ok(version) => version,
    Err(_) => panic!("IXC_ABI_VERSION is a number"),
};

/// Version of the library.
const LIBRARY_VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version has no zeros"),
};

/// Returns the version of this interface.
#[unsafe(no_mangle)]
pub extern "C" fn ixc_abi_version() -> u32 {
    ABI_VERSION
}

/// Returns the version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn ixc_library_version() -> *const c_char {
    LIBRARY_VERSION.as_ptr()
}
