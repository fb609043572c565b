//! Kernels: the computations of a plan's steps. A kernel is one file, with its spec, its signature
//! (buffers and dims by name) and its generator. The generator writes kernel IR over the target's
//! lane count; it knows no instructions. The file also has a reference in f64, the work in bytes
//! and operations, and rows of the catalogue.
//!
//! | kernels | computation |
//! | --- | --- |
//! | [`embed`], [`map`], [`copy`], [`scale_by`], [`heads_sum`], [`softmax`] | rows |
//! | [`rms_norm`], [`sum_squares`], [`rms_norm_piece`], [`centre`] | norms |
//! | [`quantise`] | activation formats |
//! | [`add_bias`], [`softcap`], [`relu`], [`xielu`], [`clamp`] | biases, activation functions |
//! | [`linear`] | matrix products of every format, with bias, residual or SwiGLU; packing |
//! | [`rope_heads`], [`rope_append`], [`append_places`], [`temperature`], [`heads_temperature`] |
//! rotation of heads, append to the KV cache, and factors on queries that depend on positions |
//! | [`attention`] | attention over the KV cache |
//! | [`short_conv`], [`delta_net`], [`delta_net_chunks`], [`ssm_scan`], [`wkv`], [`compress`] | recurrent states, all rows of a step in order, or in chunks |
//! | [`stream_weights`], [`stream_input`], [`stream_mix`], [`stream_attend`] | residual streams:
//! mixing weights, input of a block, update of the streams, attention to earlier streams of a row |
//! | [`index_top_k`], [`index_scores`], [`index_choose`] | choice of the positions that a row
//! attends to: in one kernel, or scores of parts and then the choice |
//! | [`route`], [`route_identities`], [`route_owned`], [`gather`], [`combine`] | experts: routing,
//! identity experts, experts of other ranks, rows of an expert, weighted sums of results |
//!
//! | building blocks | what they own |
//! | --- | --- |
//! | [`definition`] | the interface of a kernel's file, and the registry |
//! | [`spec`], [`text`], [`limits`] | queries on any spec; its text; limits of typed specs |
//! | [`signature`] | buffers and dims by name, and binding to them |
//! | [`generate`](mod@generate) | from a spec to kernel IR, for a target |
//! | [`vectors`], [`math`], [`rms`], [`rotation`], [`buffer_offset`] | pieces of generators |
//! | [`cache`], [`bf16_tile`] | the KV cache and tiles of bf16, as generators use them |
//! | [`reference`](mod@reference), [`work`] | comparison of runs with formulas; bytes and
//! operations of a call |
//! | [`catalogue`] | named kernels, inputs for them and comparison of runs: for tests and `ixc kernel` |
//!
//! To add a kernel, add its file, a `mod` and a line in the registry below.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod add_bias;
mod append_places;
pub mod attention;
mod bf16_tile;
pub mod blocks;
mod buffer_offset;
mod cache;
pub mod catalogue;
mod centre;
mod clamp;
mod column_squares;
mod combine;
mod compress;
mod copy;
mod definition;
mod delta_net;
mod delta_net_chunks;
mod embed;
mod expert_groups;
mod gated;
mod gather;
mod generate;
mod heads_sum;
mod heads_temperature;
mod index_choose;
mod index_scores;
mod index_top_k;
pub mod limits;
mod linear;
mod map;
mod math;
mod quantise;
pub mod reference;
mod relu;
mod rms;
mod rms_norm;
mod rms_norm_piece;
mod rope_append;
mod rope_heads;
mod rotation;
mod route;
mod route_identities;
mod route_owned;
mod scale;
mod scale_by;
mod scale_heads;
mod short_conv;
pub mod signature;
mod softcap;
mod softmax;
mod spec;
mod ssm_scan;
mod stream_attend;
mod stream_input;
mod stream_mix;
mod stream_weights;
mod sum_squares;
mod temperature;
pub mod text;
mod vectors;
mod wkv;
pub mod work;
mod xielu;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use definition::{Definition, registry};
use text::{Fields, Part, Text};

pub use attention::{Heads, Scores};
pub use cache::Cache;
pub use generate::{GenerateError, MAX_POSITIONS, MAX_ROWS, generate};
pub use linear::pace::Pace;
pub use linear::{MatmulStrategy, candidates, cut, pace, tiling};
pub use map::Elementwise;
pub use route::Score;
pub use stream_weights::StreamParts;
pub use text::{Bits, Kind, SpecError};

registry! {
    embed::Embed,
    rms_norm::RmsNorm,
    sum_squares::SumSquares,
    rms_norm_piece::RmsNormPiece,
    quantise::Quantise,
    linear::Pack,
    linear::Linear,
    linear::Swiglu,
    rope_heads::RopeHeads,
    rope_append::RopeAppend,
    attention::Attention,
    attention::AttentionPart,
    attention::AttentionCombine,
    attention::AttentionTiles,
    route::Route,
    gather::Gather,
    column_squares::ColumnSquares,
    combine::Combine,
    map::Map,
    gated::Gated,
    copy::Copy,
    add_bias::AddBias,
    scale::Scale,
    scale_by::ScaleBy,
    scale_heads::ScaleHeads,
    softmax::Softmax,
    softcap::Softcap,
    short_conv::ShortConv,
    delta_net::DeltaNet,
    delta_net_chunks::DeltaNetChunks,
    ssm_scan::SsmScan,
    temperature::Temperature,
    centre::Centre,
    attention::AttentionWindow,
    stream_weights::StreamWeights,
    stream_input::StreamInput,
    stream_mix::StreamMix,
    stream_attend::StreamAttend,
    compress::Compress,
    append_places::AppendPlaces,
    attention::AttentionEntries,
    index_top_k::IndexTopK,
    index_scores::IndexScores,
    index_choose::IndexChoose,
    heads_sum::HeadsSum,
    relu::Relu,
    xielu::Xielu,
    clamp::Clamp,
    expert_groups::ExpertGroups,
    heads_temperature::HeadsTemperature,
    route_identities::RouteIdentities,
    route_owned::RouteOwned,
    wkv::Wkv,
}
