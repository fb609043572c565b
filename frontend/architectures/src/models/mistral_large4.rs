//! `mistral-large4`: Mistral Large 4. It has latent attention ([`crate::layers::mla`]) over
//! positions that an indexer selects. Queries are made from the layer's input, without a short row.
//! A layer may use the selection and the latent rows of an earlier layer. Queries of attention and
//! of the indexer have a temperature for each head. Experts are selected by a softmax, from some of
//! the groups of experts; a shared expert is added. The first layers are dense, and logits have a
//! soft limit (transformers `mistral_large4`).
//!
//! No GGUF file of this model is known. The keys and tensors are those of `glm-dsa`, and the
//! additional ones below.
//!
//! ```text
//! // whether each layer has RoPE; layers without it cache no rotated part of the key
//! mistral-large4.attention.rope_pattern     = [true, true, true, false]
//! // for each layer, the layer whose latent rows it uses
//! mistral-large4.attention.kv_source_layers = [0, 1, 0, 3]
//! // factor on queries of each head: bias + weight * ln(1 + position)
//! blk.N.attn_temperature.weight, .bias
//! // the same factor for queries of the indexer
//! blk.N.indexer.temperature.weight, .bias
//! // a layer norm before indexer.attn_q_b
//! blk.N.indexer.q_norm.weight, .bias
//! // divisors of frequencies: exp(-alpha) of LeRoPE, which multiplies them by exp(alpha)
//! rope_freqs.weight
//! ```

use ixc_ir::graph::attrs::RopeStyle;

use crate::architecture::Architecture;
use crate::decoder::Style;
use crate::hyper::Defaults;
use crate::layers::mla::{IndexStyle, decoder_with_indexer};

const STYLE: Style = Style {
    temper: |b, q, of| b.heads_temperature(q, &format!("blk.{}.attn_temperature", of.layer), of.heads),
    ..Style::LLAMA
};
const INDEX: IndexStyle = IndexStyle { of_stream: true, ..IndexStyle::usual(RopeStyle::Norm) };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "mistral-large4",
    doc: "Mistral Large 4 (text only)",
    defaults: Defaults { reads: &["final_logit_softcapping", "rope.scaling.yarn_log_multiplier"], ..Defaults::USUAL },
    build: |b| decoder_with_indexer(b, &STYLE, INDEX),
};
