//! Kernels: what a step of a plan computes, as a spec, and its generator, which makes kernel IR of it.
//!
//! A generator is written over the target's lane count and knows no instruction. The order of buffers and dims is the one
//! that stands at each spec.
//!
//! | module | kernels |
//! | --- | --- |
//! | [`linear`] | matrix products of every format, with bias, residual or SwiGLU |
//! | [`rows`] | embedding, norm, elementwise functions, gather and combine |
//! | [`quantise`] | activations into their formats |
//! | [`rope`] | rotation of heads, and the append to the KV cache |
//! | [`attention`] | attention over the KV cache, all of it or a part |
//! | [`attention_combine`] | parts of it put together |
//! | [`route`] | routing, and the sampler's softmax |
//! | [`math`] | exp and what is made of it |
//! | [`spec`], [`text`] | specs, and their text |
//! | [`catalogue`] | named kernels, inputs for them and comparison of runs: for tests and `ixc kernel` |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod attention;
mod attention_combine;
pub mod catalogue;
mod generate;
mod linear;
mod math;
mod quantise;
mod rope;
mod route;
mod rows;
pub mod spec;
pub mod text;

pub use generate::{GenerateError, MAX_POSITIONS, MAX_ROWS, generate};
pub use spec::{Bits, Elementwise, GEMM_ROWS, KernelSpec, Score, Shape};
pub use text::{KINDS, SpecError};
