//! Reads all keys, in an order in which each value is checked before other values depend on it.

use ixc_model_files::gguf::{Gguf, GgufError};

use super::indexer::HEADS as INDEXER_HEADS;
use super::keys::Keys;
use super::layers::{draft_layers, layers};
use super::recurrent::{self, STATE_SIZE, Ssm};
use super::rope::yarn_magnitude;
use super::shares::share;
use super::vocabulary::vocabulary;
use super::windows::{layer_windows, windows};
use super::{
    Defaults, Hyper, Layer, LayerParts, MAX_BIAS, MAX_CONTEXT, MAX_COUNT, MAX_ROUNDED, MAX_WIDTH, Mla, ReadRope, Rope,
    RopeSizes, RopeUse, Scales, Widths,
};

/// Key of the epsilon of RMS norms.
pub(crate) const RMS_EPS: &str = "attention.layer_norm_rms_epsilon";
/// Key of the epsilon of layer norms.
const LAYER_EPS: &str = "attention.layer_norm_epsilon";

/// Key of the number of layers. Files of architectures that run a layer several times may count
/// each run; such architectures list this key in `reads`.
pub(crate) const COUNT: &str = "block_count";

/// Keys that change the computation, each with its neutral values. Files with other values are
/// refused, unless the architecture lists the key in `reads`.
pub(super) const NEUTRAL: [(&str, &[f64]); 19] = [
    ("attention.clamp_kqv", &[0.0]),
    (MAX_BIAS, &[0.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("final_logit_softcapping", &[0.0]),
    ("router_logit_softcapping", &[0.0]),
    ("num_loops", &[0.0, 1.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("attention.temperature_scale", &[0.0]),
    ("attention.shared_kv_layers", &[0.0]),
    ("attention.value_scale", &[0.0, 1.0]),
    ("embedding_length_per_layer_input", &[0.0]),
    ("swiglu_clamp_exp", &[0.0]),
    ("swiglu_clamp_shexp", &[0.0]),
    ("rope.scaling.yarn_log_multiplier", &[0.0]),
    ("attn_res.block_size", &[0.0]),
    ("expert_identity_count", &[0.0]),
    ("ssm.beta_scale", &[1.0]),
];

impl Hyper {
    /// Reads and checks the hyperparameters of the model in `gguf`, of this architecture. Draft
    /// layers are read only if `drafting` is set.
    ///
    /// # Errors
    /// When a key or tensor is missing or invalid.
    pub(crate) fn read(
        gguf: &Gguf,
        architecture: &str,
        defaults: Defaults,
        drafting: bool,
    ) -> Result<Hyper, GgufError> {
        let keys = Keys { metadata: gguf.metadata(), architecture, defaults };
        if gguf.tensors().len() == 0 {
            // A file with only a vocabulary is a valid GGUF file, but contains no model.
            let path = gguf.metadata().path().into();
            return Err(GgufError::TensorMissing { path, tensor: "token_embd.weight".into() });
        }
        // Each layer has tensors. The number of tensors therefore bounds the number of layers and
        // the length of lists by layer.
        let most = match defaults.reads.contains(&COUNT) {
            true => MAX_ROUNDED,
            false => MAX_COUNT.min(gguf.tensors().len() as u64),
        };
        let count = keys.required_size(COUNT, 1, most)?;
        let context_length = keys.required_size("context_length", 1, MAX_CONTEXT)?;
        let (window, windows) = windows(&keys, context_length)?;
        let defaults = Defaults { windows, ..defaults };
        let keys = Keys { defaults, ..keys };
        let embedding_length = keys.required_size("embedding_length", 1, MAX_WIDTH)?;
        let vocabulary = vocabulary(gguf, &keys)?;
        let norm_eps = norm_eps(&keys)?.into();
        for (name, neutral) in NEUTRAL.into_iter().filter(|(name, _)| !defaults.reads.contains(name)) {
            keys.neutral(name, neutral)?;
        }
        let has_rope = model_has_rope(&keys, &Widths { layers: count, embedding: embedding_length })?;
        let draft_layers = draft_layers(gguf, &keys, count)?;
        let windowed = layer_windows(&keys, count as usize, draft_layers as usize)?;
        let mut layers = layers(&keys, &windowed, embedding_length)?;
        if !drafting {
            layers.truncate(layers.len() - draft_layers as usize);
        }
        if defaults.dense_by_tensor {
            remove_experts_without_router(gguf, &mut layers);
        }
        if keys.has(STATE_SIZE) && defaults.layer_parts == LayerParts::All {
            // The sizes of recurrent states are read here, so that their errors come before those
            // of layers.
            Ssm::read(&keys)?;
            let recurrent = recurrent::layers(gguf, &keys, layers.len())?;
            layers.iter_mut().zip(recurrent).for_each(|(layer, recurrent)| layer.recurrent = recurrent);
        }
        let context = PositionContext { context_length, window, windowed: &windowed, has_rope };
        let PositionKeys { mla, rope, local_rope } = context.read(&keys, &mut layers)?;
        share(&keys, &mut layers)?;
        let mut hyper = Hyper {
            architecture: architecture.to_owned(),
            causal: defaults.causal,
            context_length,
            embedding_length,
            vocabulary,
            norm_eps,
            norms: defaults.norms,
            scales: Scales::read(&keys, &Widths { layers: layers.len() as u64, embedding: embedding_length })?,
            rope,
            has_rope,
            local_rope,
            mla,
            layers,
            draft_layers,
        };
        (defaults.adjust)(&keys, &mut hyper)?;
        hyper.causal = is_causal(&keys, &hyper)?;
        Ok(hyper)
    }

    /// Returns whether the model has layers that support only causal attention.
    fn requires_causal(&self, keys: &Keys<'_>) -> bool {
        // Encoders support a window: half of it is before a row's position and half after it.
        let symmetric = |window: u64| !keys.defaults.causal && window > 1;
        let one_sided = |layer: &Layer| layer.recurrent || layer.window.is_some_and(|window| !symmetric(window));
        self.layers.iter().any(one_sided) || self.scales.max_bias != 0.0 || keys.has(INDEXER_HEADS)
    }
}

/// Reads the epsilon of the stream's norms.
fn norm_eps(keys: &Keys<'_>) -> Result<f32, GgufError> {
    // Files may have the key of the other norm type. Nemotron-H's may have only the epsilon of
    // their draft layers, and llama.cpp's converter writes the layer norm key for Qwen 1.
    let [has_rms, has_other] = [RMS_EPS, LAYER_EPS].map(|key| keys.has(key));
    let takes_other = match keys.defaults.norms.are_layer_norms() {
        true => has_other || !has_rms,
        false => has_other && !has_rms,
    };
    let eps_key = keys.name(if takes_other { LAYER_EPS } else { RMS_EPS });
    let eps = keys.metadata.read::<f32>(&eps_key)?;
    if !(eps > 0.0 && eps <= 1.0) {
        return Err(keys.metadata.bad_value(&eps_key, eps, "above 0 and at most 1"));
    }
    Ok(eps)
}

/// Returns whether the model has RoPE.
fn model_has_rope(keys: &Keys<'_>, widths: &Widths) -> Result<bool, GgufError> {
    match keys.defaults.rope_use {
        RopeUse::Always => Ok(true),
        RopeUse::IfFinetuned => keys.metadata.read_or(&keys.name("rope.scaling.finetuned"), true),
        RopeUse::WithoutAlibi => Ok(Scales::read(keys, widths)?.max_bias == 0.0),
        RopeUse::Never => Ok(false),
    }
}

/// Removes the experts of layers that have a dense network's width, but no router tensor.
fn remove_experts_without_router(gguf: &Gguf, layers: &mut [Layer]) {
    let has_router = |layer: usize| gguf.tensor(&format!("blk.{layer}.ffn_gate_inp.weight")).is_some();
    let dense = layers.iter_mut().enumerate().filter(|(layer, of)| of.feed_forward > 0 && !has_router(*layer));
    dense.for_each(|(_, of)| of.experts = None);
}

/// Values that are needed to read windows, RoPE and latent attention.
struct PositionContext<'a> {
    context_length: u64,
    /// Number of positions in a window.
    window: u64,
    /// Whether each layer has a window.
    windowed: &'a [bool],
    /// Whether the model has RoPE.
    has_rope: bool,
}

/// Latent attention of layers without a window, RoPE of layers without a window, and RoPE of layers
/// with one.
struct PositionKeys {
    mla: Option<Mla>,
    rope: Rope,
    local_rope: Option<Rope>,
}

impl PositionContext<'_> {
    /// Reads latent attention and RoPE. Sets the windows, heads and score factors of layers to
    /// match.
    fn read(&self, keys: &Keys<'_>, layers: &mut [Layer]) -> Result<PositionKeys, GgufError> {
        let mla = Mla::read(keys)?;
        let key_length = |local: bool| {
            let mut own = layers.iter().zip(self.windowed).filter(|(_, windowed)| **windowed == local);
            own.next().map(|(layer, _)| layer.key_length)
        };
        let [full, local] = [false, true].map(key_length);
        let context_length = self.context_length;
        let mut rope = match self.has_rope {
            true => Rope::usual(keys, RopeSizes { context_length, key_length: full.or(local).unwrap_or(0) })?,
            false => Rope::none(context_length),
        };
        match mla {
            Some(mla) => mla.set_layers(keys, layers, self.windowed, &mut rope)?,
            None => yarn_magnitude(keys, &mut rope)?,
        }
        let mut local_rope = None;
        if let Some(windows) = keys.defaults.windows {
            windows.apply(self.window, layers, self.windowed);
            local_rope = Some(windows.rope(keys, &rope, local.or(full).unwrap_or(0))?);
        }
        Ok(PositionKeys { mla, rope, local_rope })
    }
}

impl Hyper {
    /// Replaces RoPE by the result of `read`, and adapts RoPE of layers with a window.
    /// Architectures that read RoPE in their own way call this in `adjust`.
    pub(crate) fn set_rope(&mut self, keys: &Keys<'_>, read: ReadRope) -> Result<(), GgufError> {
        let key_length = |local: bool| {
            let mut own = self.layers.iter().filter(|layer| layer.window.is_some() == local);
            own.next().map(|layer| layer.key_length)
        };
        let [full, local] = [false, true].map(key_length);
        let sizes = RopeSizes { context_length: self.context_length, key_length: full.or(local).unwrap_or(0) };
        let mut rope = read(keys, sizes)?;
        yarn_magnitude(keys, &mut rope)?;
        if let Some(windows) = keys.defaults.windows {
            self.local_rope = Some(windows.rope(keys, &rope, local.or(full).unwrap_or(0))?);
        }
        (self.rope, self.has_rope) = (rope, true);
        Ok(())
    }
}

/// Reads whether attention is causal. The architecture decides if the file lacks the key.
fn is_causal(keys: &Keys<'_>, hyper: &Hyper) -> Result<bool, GgufError> {
    let name = keys.name("attention.causal");
    let causal = keys.metadata.read_or(&name, keys.defaults.causal)?;
    if causal && !keys.defaults.causal {
        return Err(keys.metadata.bad_value(&name, true, "absent or false, because the architecture is an encoder"));
    }
    if !causal && hyper.requires_causal(keys) {
        keys.require_causal()?;
    }
    Ok(causal)
}
