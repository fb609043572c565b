//! Code that the files of all kernels share.
//!
//! | module | contents |
//! | --- | --- |
//! | [`definition`] | the interface of a kernel's file, and the registry |
//! | [`spec`], [`text`], [`limits`] | queries on any spec; its text; limits of typed specs |
//! | [`signature`] | buffers and dims by name, and binding to them |
//! | [`generate`](mod@generate) | from a spec to kernel IR, for a target |
//! | [`vectors`], [`math`], [`rms`], [`rotation`], [`gate`] | pieces of generators |
//! | [`quantise`] | rows in formats of activations |
//! | [`buffer_offset`], [`bf16_tile`] | places in buffers, and tiles of bf16 |
//! | [`blocks`], [`cache`] | dims of blocks of places, and formats of the KV cache |
//! | [`reference`](mod@reference) | comparison of runs with formulas |
//! | [`work`] | bytes and operations of a call |

pub(crate) mod bf16_tile;
pub mod blocks;
pub(crate) mod buffer_offset;
pub(crate) mod cache;
pub(crate) mod definition;
pub(crate) mod gate;
pub(crate) mod generate;
pub mod limits;
pub(crate) mod math;
pub(crate) mod quantise;
pub mod reference;
pub(crate) mod rms;
pub(crate) mod rotation;
pub mod signature;
mod spec;
pub mod text;
pub(crate) mod vectors;
pub mod work;
