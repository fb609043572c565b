//! Linear attention in which each head has a constant decay ("lightning attention" of MiniMax-01),
//! built as a selective state space with constant steps.
//!
//! ```text
//! q, k, v = silu(attn_qkv h)                          // together for each head
//! M <- exp(-slope) M + k v';   y = M' q               // ssm_scan with steps of 1
//! attn_output (sigmoid(attn_gate h) * rms_norm(y; attn_norm_2))
//! slope = 2^(-8 (head + 1) / heads) * (1 - layer / (layers - 1) + 1e-5)
//! ```
//!
//! The scan needs weights that no file has, so [`tensors`] derives them. The scan is in
//! `ir/src/graph/recurrent/ssm_scan.rs`.

use ixc_ir::derived::Derivation;
use ixc_ir::format::Format;
use ixc_ir::graph::{Unary, ValueId};
use ixc_model_files::gguf::{DerivedTensor, Gguf, GgufError};

use crate::builder::{Bias, Builder, SsmScan, StateSizes, layer_of};
use crate::error::ArchError;
use crate::hyper::{Hyper, Keys, MAX_COUNT, MAX_WIDTH, stated_layers};
use crate::numbers;

/// Name ending of a norm. Layers that have it are lightning attention.
const NORM: &str = "attn_norm_2.weight";
/// Name endings of the scan's derived weights: decays, biases of step sizes, and factors on values
/// that bypass the state.
const WEIGHTS: [&str; 3] = ["lightning.decays", "lightning.steps", "lightning.skipped"];
/// Maximum number of heads, summed over all layers: an order of magnitude above any model's.
const MAX_HEADS: u64 = 1 << 16;
/// Number added to the layer's factor in slopes and to the divisor in it, so that neither is 0
/// (transformers, `MiniMaxLightningAttention`).
const SLOPE_EPS: f64 = 1e-5;

/// Default period of layers with softmax attention.
const ATTENTION_PERIOD: u64 = 8;

/// Marks the layers with lightning attention as recurrent.
///
/// # Errors
/// When a key has another type or value.
pub(crate) fn set_layers(keys: &Keys<'_>, hyper: &mut Hyper) -> Result<(), GgufError> {
    let recurrent = stated_layers(keys, hyper.layers.len(), Some(ATTENTION_PERIOD))?;
    let recurrent = recurrent.into_iter().flatten();
    hyper.layers.iter_mut().zip(recurrent).for_each(|(layer, recurrent)| layer.recurrent = recurrent);
    Ok(())
}

/// Builds lightning attention on normalised rows, including its output matrix.
pub(crate) fn attention_of(b: &mut Builder<'_>, layer: usize, h: ValueId) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let keys = b.keys();
    let heads = keys.required_size("attention.head_count", 1, MAX_COUNT)?;
    let key_length = keys.required_size("attention.key_length", 1, MAX_WIDTH)?;
    let inner = heads * key_length;
    let name = |part: &str| format!("blk.{layer}.{part}");
    let all = b.linear(h, &name("attn_qkv"), width, 3 * inner, Bias::Optional)?;
    let all = b.silu(all)?;
    let all = b.split_heads(all, heads)?;
    let [q, k, v] = [
        b.slice(all, 0, key_length)?,
        b.slice(all, key_length, key_length)?,
        b.slice(all, 2 * key_length, key_length)?,
    ];
    // The step sizes come from the bias alone, so their input is 0 for all rows.
    let none = b.heads_sum(q)?;
    let none = b.scale(none, 0.0)?;
    let [decays, steps, skipped] = WEIGHTS.map(name);
    let scan = SsmScan {
        sizes: StateSizes { heads, key_length, value_length: key_length },
        x: v,
        key: k,
        query: q,
        step: none,
        a: b.vector(&decays, heads)?,
        step_bias: b.vector(&steps, heads)?,
        d: b.vector(&skipped, heads)?,
    };
    let y = b.ssm_scan(&format!("lightning.{layer}"), &scan)?;
    let y = b.merge_heads(y)?;
    let y = b.rms_norm(y, &name(NORM), inner)?;
    let gate = b.linear(h, &name("attn_gate"), width, inner, Bias::Optional)?;
    let gate = b.unary(Unary::Sigmoid, gate)?;
    let y = b.mul(gate, y)?;
    b.linear(y, &name("attn_output"), inner, width, Bias::Optional)
}

/// Returns the derived weights of the scan, for the heads of each layer with lightning attention.
///
/// # Errors
/// When a key has another type than expected.
pub(crate) fn tensors(gguf: &Gguf, architecture: &str) -> Result<Vec<DerivedTensor>, GgufError> {
    let count = |key: &str| gguf.metadata().read_optional::<u64>(&format!("{architecture}.{key}"));
    let mut made = Vec::new();
    let (Some(heads), Some(layers)) = (count("attention.head_count")?, count("block_count")?) else { return Ok(made) };
    let norms = || gguf.tensors().filter(|tensor| tensor.name().ends_with(NORM));
    if heads == 0 || heads.saturating_mul(norms().count() as u64) > MAX_HEADS {
        return Ok(made);
    }
    for norm in norms() {
        let Some(prefix) = norm.name().strip_suffix(NORM) else { continue };
        let Some(layer) = layer_of(norm.name()) else { continue };
        let of_layer = 1.0 - layer as f64 / (layers.saturating_sub(1) as f64 + SLOPE_EPS) + SLOPE_EPS;
        let slope = |head: u64| 2f64.powf(-8.0 * (head + 1) as f64 / heads as f64) * of_layer;
        // The bias whose softplus is 1, so that all step sizes are 1.
        let step = (std::f64::consts::E - 1.0).ln();
        let all = [
            (0..heads).map(|head| numbers::constant(-slope(head) as f32, 1, 1)).collect(),
            vec![numbers::constant(step as f32, 1, heads)],
            vec![numbers::constant(0.0, 1, heads)],
        ];
        for (name, pieces) in WEIGHTS.into_iter().zip(all) {
            let pieces_per_row = pieces.len() as u32;
            let derived = Derivation { format: Format::F32, columns: heads, pieces_per_row, pieces };
            made.push(DerivedTensor { name: format!("{prefix}{name}"), dims: vec![heads], derived });
        }
    }
    Ok(made)
}
