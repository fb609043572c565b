//! Numbers of a configuration that rules for tensors depend on.

/// Numbers of a configuration that determine how tensors are split.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    pub layers: u64,
    /// Layers of each of two stacks, for models with two.
    pub stack: u64,
    pub experts: u64,
    /// Experts of a group that shares a small expert.
    pub experts_per_group: u64,
    pub heads: u64,
    pub kv_heads: u64,
    /// Key heads of the tensor's layer, as in GGUF files; 0 if the layer has no attention.
    pub layer_kv_heads: u64,
    pub head_dim: u64,
    /// Width of the residual stream. `expert_width` is that of an expert.
    pub width: u64,
    pub expert_width: u64,
    /// Latent attention: lengths of a head's unrotated key part, of its rotated part, and of its
    /// value.
    pub still: u64,
    pub turned: u64,
    pub value: u64,
    /// Number of heads, unrotated key length and value length of layers with a window, if they
    /// differ.
    pub local: [u64; 3],
    /// Linear attention: numbers of key heads and value heads, lengths of a key and a value.
    pub key_heads: u64,
    pub value_heads: u64,
    pub key_len: u64,
    pub value_len: u64,
    /// Leading elements of a head that RoPE rotates.
    pub rotated: u64,
    /// State spaces: groups of heads, elements of a key, and elements of the values of all heads.
    pub groups: u64,
    pub state: u64,
    pub inner: u64,
    /// Number of residual streams, for models with several.
    pub streams: u64,
    /// Rows of the embedding table, if the configuration has this number.
    pub vocabulary: u64,
    /// Positions of the longest supported text.
    pub context: u64,
    /// Elements of all queries of the indexer.
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

/// Factors on the results of matrices that have no GGUF key; the matrices are multiplied by them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factors {
    pub embedding: f32,
    pub logits: f32,
    /// Factor on the input of attention, on its keys, and on its output.
    pub attention: f32,
    pub key: f32,
    pub attention_out: f32,
    /// Factor on the gates of feed-forward networks, and on their output.
    pub gate: f32,
    pub down: f32,
    /// Factor on the input of state spaces, on their gates, values, keys, queries and steps, and on
    /// their output.
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
    /// Returns the sizes of a layer. In a layer without RoPE, the whole key is made from the latent
    /// row.
    pub fn for_layer(self, of: &LayerConfig) -> Sizes {
        let still = if of.has_rope { self.still } else { self.still.saturating_add(self.turned) };
        let own = Sizes { layer_kv_heads: of.kv_heads, still, ..self };
        match self.local {
            [heads, still, value] if of.has_window && still > 0 => Sizes { heads, still, value, ..own },
            _ => own,
        }
    }
}
