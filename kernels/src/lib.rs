//! Kernels: the computations of a plan's steps. Each kernel is one file, with its spec, its
//! signature (the names of buffers and dims) and its generator. The generator writes kernel IR for
//! the target's number of lanes, and knows no instructions. The file also has a reference in f64,
//! the number of bytes and operations of a call, and rows of the catalogue.
//!
//! | module | contents |
//! | --- | --- |
//! | `ops` | kernels: one file each |
//! | [`linear`] | matrix products of every format, with bias, residual or SwiGLU; packing |
//! | [`attention`] | attention over the KV cache |
//! | [`generator`] | machinery of all kernels: specs, signatures, and pieces of generators |
//! | [`catalogue`] | named kernels, inputs for them, comparison of runs |
//!
//! To add a kernel, add its file to `ops`, a `mod` line below, and a line in the registry.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod attention;
pub mod catalogue;
pub mod generator;
mod linear;

mod ops {
    //! Kernels with one file each.
    //!
    //! | kernels | computation |
    //! | --- | --- |
    //! | [`embed`], [`map`], [`copy`], [`scale`], [`scale_by`], [`scale_heads`] | rows |
    //! | [`heads_sum`], [`softmax`], [`column_squares`], [`gated`] | rows |
    //! | [`rms_norm`], [`sum_squares`], [`rms_norm_piece`], [`centre`] | norms |
    //! | [`quantise`] | activation formats |
    //! | [`add_bias`], [`softcap`], [`relu`], [`xielu`], [`clamp`] | biases, activation functions |
    //! | [`rope_heads`], [`rope_append`] | rotation of heads, and append to the KV cache |
    //! | [`append_places`] | append of places that positions choose |
    //! | [`temperature`], [`heads_temperature`] | factors of queries by their positions |
    //! | [`short_conv`], [`ssm_scan`], [`wkv`], [`compress`] | recurrent states, row by row |
    //! | [`delta_net`], [`delta_net_chunks`] | the gated delta rule, row by row or in chunks |
    //! | [`stream_weights`], [`stream_input`], [`stream_mix`] | residual streams of a row |
    //! | [`stream_attend`] | attention to earlier streams of a row |
    //! | [`index_top_k`] | choice of the positions that a row attends to |
    //! | [`index_scores`], [`index_choose`] | the same: scores of parts, then the choice |
    //! | [`route`], [`route_identities`], [`route_owned`] | experts of a row |
    //! | [`gather`], [`expert_groups`], [`combine`] | rows of experts, and sums of results |

    pub(crate) mod add_bias;
    pub(crate) mod append_places;
    pub(crate) mod centre;
    pub(crate) mod clamp;
    pub(crate) mod column_squares;
    pub(crate) mod combine;
    pub(crate) mod compress;
    pub(crate) mod copy;
    pub(crate) mod delta_net;
    pub(crate) mod delta_net_chunks;
    pub(crate) mod embed;
    pub(crate) mod expert_groups;
    pub(crate) mod gated;
    pub(crate) mod gather;
    pub(crate) mod heads_sum;
    pub(crate) mod heads_temperature;
    pub(crate) mod index_choose;
    pub(crate) mod index_scores;
    pub(crate) mod index_top_k;
    pub(crate) mod map;
    pub(crate) mod quantise;
    pub(crate) mod relu;
    pub(crate) mod rms_norm;
    pub(crate) mod rms_norm_piece;
    pub(crate) mod rope_append;
    pub(crate) mod rope_heads;
    pub(crate) mod route;
    pub(crate) mod route_identities;
    pub(crate) mod route_owned;
    pub(crate) mod scale;
    pub(crate) mod scale_by;
    pub(crate) mod scale_heads;
    pub(crate) mod short_conv;
    pub(crate) mod softcap;
    pub(crate) mod softmax;
    pub(crate) mod ssm_scan;
    pub(crate) mod stream_attend;
    pub(crate) mod stream_input;
    pub(crate) mod stream_mix;
    pub(crate) mod stream_weights;
    pub(crate) mod sum_squares;
    pub(crate) mod temperature;
    pub(crate) mod wkv;
    pub(crate) mod xielu;
}

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use generator::definition::{Definition, registry};
use generator::text::{Fields, Part, Text};

pub use attention::{Heads, Scores};
pub use generator::cache::Cache;
pub use generator::generate::{GenerateError, MAX_POSITIONS, MAX_ROWS, generate};
pub use generator::text::{Bits, Kind, SpecError};
pub use linear::pace::Pace;
pub use linear::{MatmulStrategy, candidates, cut, pace, tiling};
pub use ops::map::Elementwise;
pub use ops::route::Score;
pub use ops::stream_weights::StreamParts;

registry! {
    Embed in ops::embed,
    RmsNorm in ops::rms_norm,
    SumSquares in ops::sum_squares,
    RmsNormPiece in ops::rms_norm_piece,
    Quantise in ops::quantise,
    Pack in linear,
    Linear in linear,
    Swiglu in linear,
    RopeHeads in ops::rope_heads,
    RopeAppend in ops::rope_append,
    Attention in attention,
    AttentionPart in attention,
    AttentionCombine in attention,
    AttentionTiles in attention,
    Route in ops::route,
    Gather in ops::gather,
    ColumnSquares in ops::column_squares,
    Combine in ops::combine,
    Map in ops::map,
    Gated in ops::gated,
    Copy in ops::copy,
    AddBias in ops::add_bias,
    Scale in ops::scale,
    ScaleBy in ops::scale_by,
    ScaleHeads in ops::scale_heads,
    Softmax in ops::softmax,
    Softcap in ops::softcap,
    ShortConv in ops::short_conv,
    DeltaNet in ops::delta_net,
    DeltaNetChunks in ops::delta_net_chunks,
    SsmScan in ops::ssm_scan,
    Temperature in ops::temperature,
    Centre in ops::centre,
    AttentionWindow in attention,
    StreamWeights in ops::stream_weights,
    StreamInput in ops::stream_input,
    StreamMix in ops::stream_mix,
    StreamAttend in ops::stream_attend,
    Compress in ops::compress,
    AppendPlaces in ops::append_places,
    AttentionEntries in attention,
    IndexTopK in ops::index_top_k,
    IndexScores in ops::index_scores,
    IndexChoose in ops::index_choose,
    HeadsSum in ops::heads_sum,
    Relu in ops::relu,
    Xielu in ops::xielu,
    Clamp in ops::clamp,
    ExpertGroups in ops::expert_groups,
    HeadsTemperature in ops::heads_temperature,
    RouteIdentities in ops::route_identities,
    RouteOwned in ops::route_owned,
    Wkv in ops::wkv,
}
