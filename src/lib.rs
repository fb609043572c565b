//! `ixc` compiles a model file into a plan and runs it on this CPU, with kernels generated for exactly that model and this
//! machine. This library is what the command line is made of; see [`error`] for how it fails.
//!
//! | module | what it owns |
//! | --- | --- |
//! | `batch` | requests of a file, many at once (feature `serve`) |
//! | [`mod@bench`] | how fast a model runs: steps that are timed |
//! | [`budget`] | whether a model fits into memory, and how it is compiled where it does not |
//! | [`build`] | which `ixc` this is: version and commit |
//! | [`chat`] | a conversation: turns, and the prompt that a template makes of them |
//! | [`compile`] | from a model to a plan, with every stage between |
//! | `constraint` | the grammar of a whole answer of which a part is asked for (feature `serve`) |
//! | [`demo`] | the model that is built in |
//! | [`draft_model`] | a small model that guesses what a larger one will write |
//! | [`dump`] | all steps to machine code as files, and where compiling goes on from one |
//! | [`embedding`] | texts as vectors |
//! | [`eval`] | perplexity of a text, and how far predictions are from another model's |
//! | [`kl_divergence`] | how far one model's predictions are from another's |
//! | [`error`] | what can go wrong, and the exit status of each |
//! | [`excerpt`] | an error in text, shown where it is |
//! | [`explain`] | what compiling decided, over what else, and why |
//! | [`expert_use`] | which experts a model uses: counts as JSON, and back |
//! | [`forecast`] | tokens per second for a memory budget, before anything is run |
//! | [`generator`] | requests for text that share the steps of one engine |
//! | [`hub`] | models that are in the caches of Hugging Face's tools and of llama.cpp |
//! | [`kernel_check`] | edited kernels against what they were made from |
//! | [`kernels`] | kernels on their own: named, shown, run, compared |
//! | [`loaded_model`] | a plan in an engine, with its tokenizer and template |
//! | [`machine`] | what this machine has: features, memory, bandwidth |
//! | [`model`] | a model file, opened and checked: graph, tokenizer, exact logits |
//! | [`moe`] | a model's routed experts on their own, for other engines |
//! | [`npy`] | NumPy's files |
//! | [`output_text`] | text of generated tokens, up to a stop string |
//! | [`own_layer`] | a model's own layer that guesses what it will write |
//! | [`timing`] | what a part of a run took, and how reading and computing lay beside each other |
//! | [`place`] | from a model to a descriptor of what runs on a grid of processing elements |
//! | `cache_file` | small files in the user's cache folder |
//! | [`prompt_cache`] | what prompts began with, for later ones |
//! | [`quantise`] | a model file to one whose matrices are in other formats |
//! | [`ratio`] | how many times as large measurements are as others, beyond their spread |
//! | [`replacements`] | kernels in place of those that are generated |
//! | [`report`] | a model's way to machine code as a page |
//! | [`select`] | what is meant of a model: ops, tasks and kernels by names and layers |
//! | `serving` | a loaded model behind a server (feature `serve`) |
//! | [`session`] | a loaded model that generates one text at a time |
//! | [`speculate`] | tokens that are guessed and computed with the last one |
//! | [`tuned`] | what was measured to be faster, in a file |
//! | [`support`] | architectures, formats, tokenizers: what this build takes |
//! | [`simulate`] | weights for descriptors that are simulated |
//! | [`bytes_per_token`] | bytes that a token reads |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub use ixc_compile::Error as CompileError;
pub use ixc_compile::{
    build, bytes_per_token, checksum, compile, demo, dump, excerpt, hub, kernel_check, machine, model, place,
    replacements, select, simulate, support, tuned,
};
pub use ixc_error::{Error, error};
pub use ixc_files as files;
pub use ixc_generate::Error as GenerationError;
pub use ixc_generate::{
    budget, chat, draft_model, drive, embedding, expert_use, explain, generator, loaded_model, moe, output_text,
    own_layer, plan_file, prompt_cache, session, speculate, timing,
};
pub use ixc_measure::Error as MeasureError;
pub use ixc_measure::{bench, eval, forecast, kl_divergence, npy, ratio};
#[cfg(feature = "serve")]
pub use ixc_serve::Error as ServeError;
#[cfg(feature = "serve")]
pub use ixc_serve::{batch, serving};
#[cfg(feature = "serve")]
pub use ixc_server as server;
pub use ixc_workbench::Error as WorkbenchError;
pub use ixc_workbench::{kernels, report};
pub use {
    ixc_architectures as architectures, ixc_codegen as codegen, ixc_dataflow as dataflow, ixc_grammar as grammar,
    ixc_ir as ir, ixc_model_files as model_files, ixc_passes as passes, ixc_quantise as quantise,
    ixc_runtime as runtime, ixc_targets as targets, ixc_text as text,
};
