//! `talkie`: Talkie. Norms have no weights. Queries and keys are normalised after RoPE, and a gain
//! for each head multiplies the queries. Each layer also adds the normalised embedding, times a
//! number.
//!
//! ```text
//! e = norm(token_embd[id])
//! // q, k, v are products with norm(x); g is attn_q_norm
//! y = attention(g[head] * norm(rope q), norm(rope k), v)
//! x += attn_output.scale * attn_output y
//! x += ffn_down.scale * ffn_down (silu(ffn_gate norm(x)) * ffn_up norm(x))
//! x += layer_output_scale * e
//! ```

use ixc_ir::derived::{Axis, Change, Derivation, Element, Extent, Piece};
use ixc_ir::graph::ValueId;
use ixc_model_files::gguf::{DerivedTensor, Gguf, GgufError, Tensor};

use crate::architecture::Architecture;
use crate::builder::{Builder, HEAD_GAIN};
use crate::decoder::{HeadNorm, Style, attention, feed_forward};
use crate::error::ArchError;
use crate::hyper::{Defaults, Norms, head_length};

/// Norms after RoPE. A gain for each head multiplies the queries, but not the keys.
const HEAD_NORM: HeadNorm = HeadNorm {
    after: |b, x, of| match of.queries && b.has(&of.norm) {
        true => b.norm_with_gains(x, of.layer, of.heads, of.length),
        false => b.plain_norm(x),
    },
    ..HeadNorm::ABSENT
};

const STYLE: Style = Style { head_norm: HEAD_NORM, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "talkie",
    doc: "Talkie",
    defaults: Defaults {
        norms: Norms::UnweightedRms,
        reads: &["logit_scale"],
        logits_multiplied: true,
        complete: |gguf, name| {
            let made = gains(&gguf, name)?;
            gguf.with(made)
        },
        ..Defaults::USUAL
    },
    build,
};

fn build(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let x = b.embed()?;
    let embedded = b.plain_norm(x)?;
    let mut x = embedded;
    for layer in b.layers() {
        x = attention(b, layer, x, &STYLE)?;
        x = feed_forward(b, layer, x, &STYLE)?;
        let factor = b.scalar(&format!("blk.{layer}.layer_output_scale.weight"))?;
        let again = b.scale(embedded, factor)?;
        x = b.add(again, x)?;
    }
    b.logits(x)
}

/// Derives the gains of query heads as norm weights: the gain of each head is repeated for each
/// element of the head.
fn gains(gguf: &Gguf, architecture: &str) -> Result<Vec<DerivedTensor>, GgufError> {
    const FILE_NAME: &str = "attn_q_norm.weight";
    let length = head_length(gguf, architecture)?;
    let of_layer = |tensor: &Tensor| {
        let layer = tensor.name().strip_suffix(FILE_NAME)?;
        let name = format!("{layer}{HEAD_GAIN}.weight");
        if gguf.tensor(&name).is_some() || tensor.tensor_type().name != "F32" {
            return None;
        }
        let heads = tensor.dims().iter().product();
        let piece = Piece {
            extent: Extent { file: tensor.file() as u32, offset: tensor.offset(), bytes: tensor.bytes() },
            element: Element::F32,
            first: 0,
            rows: vec![Axis { len: heads, stride: 1 }],
            columns: vec![Axis { len: length, stride: 0 }],
            scales: None,
            groups: None,
            change: Change::Keep,
        };
        let derived = Derivation {
            format: Element::F32.scaled_format(),
            columns: length,
            pieces_per_row: 1,
            pieces: vec![piece],
        };
        Some(DerivedTensor { name, dims: vec![length, heads], derived })
    };
    Ok(gguf.tensors().filter_map(of_layer).collect())
}
