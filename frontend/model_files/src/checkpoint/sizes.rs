//! Numbers of a configuration that the rules for tensors need.

/// Numbers of a configuration that determine how tensors are split.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    pub layers: u64,
    /// Number of layers of each stack, for models with two stacks of layers.
    pub stack: u64,
    pub experts: u64,
    /// Number of experts in a group that shares a small expert.
    pub experts_per_group: u64,
    pub heads: u64,
    pub kv_heads: u64,
    /// Number of key heads in the tensor's layer, as in GGUF files; 0 if the layer has no
    /// attention.
    pub layer_kv_heads: u64,
    pub head_dim: u64,
    /// Width of the residual stream. The next field is the width of an expert.
    pub width: u64,
    pub expert_width: u64,
    /// Lengths in latent attention: a key's part without RoPE, then (next fields) its part with
    /// RoPE, and a value.
    pub still: u64,
    pub turned: u64,
    pub value: u64,
    /// Number of heads, length of a key's part without RoPE, and length of a value, in layers with
    /// a window, if they differ.
    pub local: [u64; 3],
    /// Sizes of linear attention, in this and the next fields: numbers of key heads and value
    /// heads, lengths of a key and a value.
    pub key_heads: u64,
    pub value_heads: u64,
    pub key_len: u64,
    pub value_len: u64,
    /// Number of elements, at the start of a head, that RoPE rotates.
    pub rotated: u64,
    /// Sizes of state spaces, in this and the next fields: groups of heads, elements of a key, and
    /// elements of the values of all heads.
    pub groups: u64,
    pub state: u64,
    pub inner: u64,
    /// Number of residual streams, for models with several.
    pub streams: u64,
    /// Number of rows of the embedding table, if the configuration states it.
    pub vocabulary: u64,
    /// Context length in positions.
    pub context: u64,
    /// Number of elements in the queries of all indexer heads.
    pub index: u64,
    /// Number of parts in which a table is stored.
    pub table_parts: u64,
    pub factors: Factors,
}

/// Numbers of a layer that determine how its tensors are split.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerConfig {
    /// Number of key heads.
    pub kv_heads: u64,
    /// Whether attention has a sliding window.
    pub has_window: bool,
    /// Whether RoPE rotates queries and keys.
    pub has_rope: bool,
}

/// Factors on the results of matrices. GGUF has no keys for them, so the matrices are multiplied by
/// them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factors {
    pub embedding: f32,
    pub logits: f32,
    /// Factors of attention, in this and the next fields: on its input, on its keys, and on its
    /// output.
    pub attention: f32,
    pub key: f32,
    pub attention_out: f32,
    /// Factors of feed-forward networks, in this and the next field: on their gates, and on their
    /// output.
    pub gate: f32,
    pub down: f32,
    /// Factors of state spaces, in this and the next fields: on their input; on their gates,
    /// values, keys, queries and steps; on their output.
    pub ssm: f32,
    pub ssm_parts: [f32; 5],
    pub ssm_out: f32,
}

impl Default for Factors {
    fn default() -> Factors {
        Factors {
            embedding: 1.0,
            logits: 1.0,
            attention: 1.0,
            key: 1.0,
            attention_out: 1.0,
            gate: 1.0,
            down: 1.0,
            ssm: 1.0,
            ssm_parts: [1.0; 5],
            ssm_out: 1.0,
        }
    }
}

impl Sizes {
    /// Returns the sizes for one layer. In a layer without RoPE, the whole key of latent attention
    /// is made from the latent row.
    pub fn for_layer(self, of: &LayerConfig) -> Sizes {
        let still = if of.has_rope { self.still } else { self.still.saturating_add(self.turned) };
        let own = Sizes { layer_kv_heads: of.kv_heads, still, ..self };
        match self.local {
            [heads, still, value] if of.has_window && still > 0 => Sizes { heads, still, value, ..own },
            _ => own,
        }
    }
}
