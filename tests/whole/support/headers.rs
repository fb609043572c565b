//! Model files with real shapes but without weights: GGUF files with all keys and tensors, and
//! holes in place of the weights. A model of 200 GB takes only the space of its vocabulary.
//!
//! Shapes are those of the published `config.json` files. Formats are those of llama.cpp's
//! `Q4_K_M`.

use std::fs::File;
use std::path::Path;

use ixc::ir::format::Format;
use ixc::model_files::gguf::write::GgufWriter;
use ixc::model_files::gguf::{Array, StringArray, TensorType, Value};

/// Parameters of the experts in each layer.
#[derive(Clone, Copy, Debug)]
pub struct ShapeExperts {
    pub count: u64,
    pub used: u64,
    /// Rows of an expert's up projection.
    pub inner: u64,
}

/// Shape of a real model.
#[derive(Clone, Copy, Debug)]
pub struct RealShape {
    pub name: &'static str,
    pub architecture: &'static str,
    pub layers: u64,
    pub width: u64,
    /// Rows of the dense network's up projection.
    pub inner: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_length: u64,
    pub vocabulary: u64,
    pub context: u64,
    pub rope_base: f32,
    pub experts: Option<ShapeExperts>,
    pub tokenizer: Words,
}

/// The kind of a model's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// SentencePiece, with scores.
    Pieces,
    /// Byte pairs with merges. The text is the name of the pre-tokenizer.
    Pairs(&'static str),
}

const MIXTRAL_8X22B: RealShape = RealShape {
    name: "Mixtral-8x22B",
    architecture: "llama",
    layers: 56,
    width: 6144,
    inner: 16384,
    heads: 48,
    kv_heads: 8,
    head_length: 128,
    vocabulary: 32000,
    context: 65536,
    rope_base: 1e6,
    experts: Some(ShapeExperts { count: 8, used: 2, inner: 16384 }),
    tokenizer: Words::Pieces,
};

const LLAMA_8B: RealShape = RealShape {
    name: "Llama-3.1-8B",
    architecture: "llama",
    layers: 32,
    width: 4096,
    inner: 14336,
    heads: 32,
    kv_heads: 8,
    head_length: 128,
    vocabulary: 128_256,
    context: 131_072,
    rope_base: 5e5,
    experts: None,
    tokenizer: Words::Pairs("llama-bpe"),
};

const QWEN3_30B: RealShape = RealShape {
    name: "Qwen3-30B-A3B",
    architecture: "qwen3moe",
    layers: 48,
    width: 2048,
    inner: 6144,
    heads: 32,
    kv_heads: 4,
    head_length: 128,
    vocabulary: 151_936,
    context: 40960,
    rope_base: 1e6,
    experts: Some(ShapeExperts { count: 128, used: 8, inner: 768 }),
    tokenizer: Words::Pairs("qwen2"),
};

/// The real shapes, the smallest first.
pub const REAL_SHAPES: [RealShape; 5] = [
    LLAMA_8B,
    QWEN3_30B,
    MIXTRAL_8X22B,
    RealShape {
        name: "Qwen3-235B-A22B",
        layers: 94,
        width: 4096,
        inner: 12288,
        heads: 64,
        experts: Some(ShapeExperts { count: 128, used: 8, inner: 1536 }),
        ..QWEN3_30B
    },
    RealShape { name: "Llama-3.1-405B", layers: 126, width: 16384, inner: 53248, heads: 128, ..LLAMA_8B },
];

impl RealShape {
    /// Returns whether the layer's value and down projections have more bits. This is so in the
    /// first and last eighth of the layers, and in every third layer between them (llama.cpp
    /// `use_more_bits`).
    fn more_bits(&self, layer: u64) -> bool {
        let n = self.layers;
        layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2
    }

    /// Writes the model file. On the drive, it takes only the space of its header. For Llama 3.1, a
    /// page of weights is also written, because a plan contains the rotation factors in it.
    pub fn write(&self, path: &Path) {
        let writer = self.tensors(self.keys());
        let mut file = File::create_new(path).unwrap();
        writer.write_to(&mut file).unwrap();
        file.sync_all().unwrap();
    }

    fn keys(&self) -> GgufWriter {
        let key = |name: &str| format!("{}.{name}", self.architecture);
        let mut writer = GgufWriter::new()
            .key("general.architecture", self.architecture)
            .key("general.name", self.name)
            .key(&key("attention.layer_norm_rms_epsilon"), 1e-5f32)
            .key(&key("rope.freq_base"), self.rope_base);
        for (name, value) in [
            ("block_count", self.layers),
            ("context_length", self.context),
            ("embedding_length", self.width),
            ("feed_forward_length", self.inner),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_length),
            ("attention.value_length", self.head_length),
            ("vocab_size", self.vocabulary),
        ] {
            writer = writer.key(&key(name), value as u32);
        }
        if let Some(experts) = self.experts {
            writer = writer
                .key(&key("expert_count"), experts.count as u32)
                .key(&key("expert_used_count"), experts.used as u32)
                .key(&key("expert_feed_forward_length"), experts.inner as u32);
        }
        let words = |count: u64, word: fn(u64) -> String| {
            let words = (0..count).map(word).collect::<Vec<String>>();
            Value::Array(Array::String(words.iter().map(String::as_str).collect::<StringArray>()))
        };
        writer = writer.key("tokenizer.ggml.tokens", words(self.vocabulary, |i| format!("word{i}")));
        match self.tokenizer {
            Words::Pieces => {
                let scores = (0..self.vocabulary).map(|i| -(i as f32)).collect();
                writer
                    .key("tokenizer.ggml.model", "llama")
                    .key("tokenizer.ggml.scores", Value::Array(Array::F32(scores)))
            }
            Words::Pairs(pre) => writer
                .key("tokenizer.ggml.model", "gpt2")
                .key("tokenizer.ggml.pre", pre)
                // There are about as many merges as words.
                .key("tokenizer.ggml.merges", words(self.vocabulary, |i| format!("wo rd{i}"))),
        }
    }

    fn tensors(&self, mut writer: GgufWriter) -> GgufWriter {
        let (q4, q6, floats) = (Format::Q4K, Format::Q6K, Format::F32);
        let rope_factors = matches!(self.tokenizer, Words::Pairs("llama-bpe"));
        if rope_factors {
            writer = writer.f32_tensor("rope_freqs.weight", &[64], &[1.0; 64]);
        }
        let mut put = |name: &str, format: Format, dims: &[u64]| {
            let id = format.row().gguf_id.unwrap_or_else(|| panic!("{format} is no weight's"));
            let tensor_type = TensorType::from_id(id).unwrap_or_else(|| panic!("no type {id}"));
            writer = std::mem::take(&mut writer).hole(&format!("{name}.weight"), tensor_type, dims);
        };
        let (width, keys) = (self.width, self.kv_heads * self.head_length);
        put("token_embd", q4, &[width, self.vocabulary]);
        for layer in 0..self.layers {
            let more = if self.more_bits(layer) { q6 } else { q4 };
            // In models with 8 experts, attention is a small part of the weights, so Q4_K_M gives
            // keys and values more bits.
            let (k, v) = match self.experts {
                Some(experts) if experts.count == 8 => (Format::Q8_0, Format::Q8_0),
                _ => (q4, more),
            };
            let mut put = |name: &str, format, dims: &[u64]| put(&format!("blk.{layer}.{name}"), format, dims);
            put("attn_norm", floats, &[width]);
            put("attn_q", q4, &[width, self.heads * self.head_length]);
            put("attn_k", k, &[width, keys]);
            put("attn_v", v, &[width, keys]);
            if self.architecture == "qwen3moe" {
                put("attn_q_norm", floats, &[self.head_length]);
                put("attn_k_norm", floats, &[self.head_length]);
            }
            put("attn_output", q4, &[self.heads * self.head_length, width]);
            put("ffn_norm", floats, &[width]);
            match self.experts {
                Some(ShapeExperts { count, inner, .. }) => {
                    put("ffn_gate_inp", floats, &[width, count]);
                    put("ffn_gate_exps", q4, &[width, inner, count]);
                    put("ffn_up_exps", q4, &[width, inner, count]);
                    put("ffn_down_exps", more, &[inner, width, count]);
                }
                None => {
                    put("ffn_gate", q4, &[width, self.inner]);
                    put("ffn_up", q4, &[width, self.inner]);
                    put("ffn_down", more, &[self.inner, width]);
                }
            }
        }
        put("output_norm", floats, &[width]);
        put("output", q6, &[width, self.vocabulary]);
        writer
    }
}
