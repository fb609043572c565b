//! Generated models for tests: GGUF files with random weights, of any size, architecture and
//! formats.
//!
//! Weights have mean 0, and their rows have a Euclidean norm of about 1, so that no part of the
//! result dominates the others. Weights of norms are near 1. Every bit of a quantised block is
//! random, and scales have both signs if quantisers write both.
//!
//! In models with experts, routers choose with a clear margin. Otherwise, rounded activations could
//! select other experts than exact ones, and no bound on the error would hold. The router's rows
//! are random signs, and the embedding of a token is the sum of the router's rows of its experts.

use half::{bf16, f16};
use ixc::ir::format::Format;
use ixc::ir::random::Random;
use ixc::model_files::gguf::write::GgufWriter;

/// Scale of the router's rows in embeddings, relative to the random part of the residual, which is
/// about 1.
const CODE: f32 = 2.0;
/// Formats that random models use for weights. [`ModelParameters::formats`] can set any other
/// format.
const WEIGHTS: [Format; 8] =
    [Format::F32, Format::F16, Format::Bf16, Format::Q8_0, Format::Q4_0, Format::Q4K, Format::Q5K, Format::Q6K];
/// Formats for weights with given numbers. This file has a quantiser for each of these formats.
const VALUES: [Format; 4] = [Format::F32, Format::F16, Format::Bf16, Format::Q8_0];
/// Factor of the experts' results, so that they have a visible effect compared with the embeddings.
const LOUD: f32 = 6.0;
/// Router logit of each of a token's experts. The logits of all other experts are near 0.
const ROUTED: f32 = 4.0;

/// Parameters of the experts in each layer.
#[derive(Clone, Copy, Debug)]
pub struct ExpertParameters {
    pub count: u64,
    pub used: u64,
    /// Width of the hidden layer of an expert.
    pub inner: u64,
}

/// Parameters of a generated model.
#[derive(Clone, Debug)]
pub struct ModelParameters {
    pub seed: u64,
    pub architecture: &'static str,
    /// Number of positions of the KV cache.
    pub context: u64,
    pub layers: u64,
    pub width: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub key_length: u64,
    pub value_length: u64,
    /// Width of the hidden layer of the dense network.
    pub inner: u64,
    pub experts: Option<ExpertParameters>,
    pub vocabulary: u64,
    /// Whether the output matrix is the embedding table.
    pub tied: bool,
    /// Whether some rows of an F32 embedding table are 0, tiny or very large.
    pub extreme: bool,
    /// Whether the file has a tensor `rope_freqs.weight`.
    pub rope_factors: bool,
    /// Formats of matrices, by prefix of the name; the first match counts. A matrix without a match
    /// has any format that its row length allows.
    pub formats: &'static [(&'static str, Format)],
    /// Additional keys, without the architecture's prefix.
    pub keys: Vec<(&'static str, Key)>,
}

/// Parameters of a llama model with one layer, as a base for other models.
pub const BASE: ModelParameters = ModelParameters {
    seed: 0x0dd,
    context: 75,
    architecture: "llama",
    layers: 1,
    width: 256,
    heads: 4,
    kv_heads: 2,
    key_length: 64,
    value_length: 64,
    inner: 512,
    experts: None,
    vocabulary: 151,
    tied: false,
    extreme: false,
    rope_factors: false,
    formats: &[("", Format::F32)],
    keys: Vec::new(),
};

/// Value of a metadata key.
#[derive(Clone, Copy, Debug)]
pub enum Key {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(&'static str),
}

impl ModelParameters {
    /// Returns the bytes of the model's file. Equal parameters give equal bytes.
    pub fn file(&self) -> Vec<u8> {
        let mut maker = Maker { made: self, writer: GgufWriter::new(), rng: Random::new(self.seed), codes: Vec::new() };
        maker.keys();
        maker.tensors();
        maker.writer.finish()
    }

    /// Returns a model of random size and formats.
    pub fn random(seed: u64) -> ModelParameters {
        let mut rng = Random::new(seed);
        let (architecture, routed) =
            rng.pick(&[("llama", false), ("llama", true), ("qwen2", false), ("qwen3", false), ("qwen3moe", true)]);
        let width = rng.pick(&[24, 32, 50, 64, 96, 160, 256, 256, 288, 320, 512, 768]);
        let kv_heads = rng.pick(&[1, 1, 2, 3, 5]);
        let heads = kv_heads * (1 + rng.below(if kv_heads == 1 { 20 } else { 9 }));
        let lengths = [4, 8, 16, 20, 24, 32, 40, 48, 56, 64, 72, 80, 96, 100, 112, 120, 128, 160, 192, 256];
        let lengths: Vec<u64> = lengths.into_iter().filter(|length| length * heads <= 1536).collect();
        let key_length = rng.pick(&lengths);
        let value_length = if rng.once_in(4) { rng.pick(&lengths) } else { key_length };
        let inner = [8, 33, 64, 96, 100, 256, 300, 416, 512];
        let experts = routed.then(|| {
            let count = rng.pick(&[1, 2, 3, 5, 7, 8, 9, 16, 17, 33]);
            let used = 1 + rng.below(count.min(6));
            // If rows have few elements, random signs do not distinguish experts well, so each
            // token uses all experts.
            let used = if width < 64 * used { count } else { used };
            ExpertParameters { count, used, inner: rng.pick(&inner) }
        });
        let mut keys = Vec::new();
        if rng.once_in(2) {
            keys.push(("rope.dimension_count", Key::U32(2 + 2 * rng.below(key_length / 2) as u32)));
        }
        keys.push(("rope.scaling.type", Key::Text(rng.pick(&["none", "linear", "yarn"]))));
        keys.push(("rope.scaling.factor", Key::F32(rng.pick(&[1.0, 2.5, 8.0]))));
        keys.push(("rope.freq_base", Key::F32(rng.pick(&[100.0, 1e4, 1e6]))));
        keys.push(("rope.scaling.original_context_length", Key::U32(rng.pick(&[16, 32, 128]))));
        keys.push(("expert_weights_norm", Key::Bool(rng.once_in(2))));
        keys.push(("expert_weights_scale", Key::F32(rng.pick(&[1.0, 2.5]))));
        ModelParameters {
            seed,
            architecture,
            context: 75 + rng.below(22),
            layers: 1 + rng.below(3),
            width,
            heads,
            kv_heads,
            key_length,
            value_length,
            inner: rng.pick(&inner),
            experts,
            vocabulary: rng.pick(&[1, 7, 9, 16, 31, 64, 151, 257, 1000]),
            tied: rng.once_in(3),
            extreme: false,
            rope_factors: rng.once_in(3),
            formats: &[],
            keys,
        }
    }

    /// Returns a format from `allowed` for a matrix whose rows have `row` elements.
    fn format(&self, rng: &mut Random, name: &str, row: u64, allowed: &[Format]) -> Format {
        let fits: Vec<Format> = allowed.iter().copied().filter(|format| format.row_bytes(row).is_some()).collect();
        let format = match self.formats {
            // Rows of any length can be floats, but block formats should be as frequent as floats.
            [] => {
                let blocks: Vec<Format> = fits.iter().copied().filter(|format| format.is_quantised()).collect();
                let any = blocks.is_empty() || rng.once_in(4);
                rng.pick(if any { &fits } else { &blocks })
            }
            rows => {
                rows.iter().find(|(part, _)| name.contains(part)).unwrap_or_else(|| panic!("no format for {name}")).1
            }
        };
        assert!(format.row_bytes(row).is_some(), "{name}: rows of {row} in {format}");
        format
    }
}

struct Maker<'m> {
    made: &'m ModelParameters,
    writer: GgufWriter,
    rng: Random,
    /// For each token, the sum of the router's rows of the token's experts.
    codes: Vec<Vec<f32>>,
}

impl Maker<'_> {
    fn key(&mut self, name: &str, key: Key) {
        let name = match name.starts_with("general.") {
            true => name.to_owned(),
            false => format!("{}.{name}", self.made.architecture),
        };
        let writer = std::mem::take(&mut self.writer);
        self.writer = match key {
            Key::U32(x) => writer.key(&name, x),
            Key::F32(x) => writer.key(&name, x),
            Key::Bool(x) => writer.key(&name, x),
            Key::Text(x) => writer.key(&name, x),
        };
    }

    fn keys(&mut self) {
        let made = self.made;
        self.key("general.architecture", Key::Text(made.architecture));
        self.key("attention.layer_norm_rms_epsilon", Key::F32(1e-5));
        let mut number = |name: &str, value: u64| self.key(name, Key::U32(value as u32));
        number("block_count", made.layers);
        number("context_length", made.context);
        number("embedding_length", made.width);
        number("feed_forward_length", made.inner);
        number("attention.head_count", made.heads);
        number("attention.head_count_kv", made.kv_heads);
        number("attention.key_length", made.key_length);
        number("attention.value_length", made.value_length);
        if let Some(experts) = made.experts {
            number("expert_count", experts.count);
            number("expert_used_count", experts.used);
            number("expert_feed_forward_length", experts.inner);
        }
        made.keys.iter().for_each(|(name, key)| self.key(name, *key));
    }

    /// Adds a matrix, or a matrix for each expert; `shape` is outermost first.
    fn matrix(&mut self, name: &str, shape: &[u64]) {
        let (elements, row) = (shape.iter().product::<u64>(), shape[shape.len() - 1]);
        let format = self.made.format(&mut self.rng, name, row, &WEIGHTS);
        let loud = if name.ends_with("ffn_down_exps") { LOUD } else { 1.0 };
        let bytes = blocks(&mut self.rng, format, elements as usize, loud / (row as f32).sqrt());
        self.put(name, format, shape, bytes);
    }

    fn put(&mut self, name: &str, format: Format, shape: &[u64], bytes: Vec<u8>) {
        let dims: Vec<u64> = shape.iter().rev().copied().collect();
        let id = format.row().gguf_id.unwrap_or_else(|| panic!("{format} is for activations"));
        self.writer = std::mem::take(&mut self.writer).tensor(&format!("{name}.weight"), id, &dims, bytes);
    }

    /// Adds a vector of numbers within `middle` ± `range`.
    fn vector(&mut self, name: &str, n: u64, middle: f32, range: f32) {
        let data: Vec<f32> = (0..n).map(|_| middle + range * self.rng.signed()).collect();
        self.writer = std::mem::take(&mut self.writer).f32_tensor(name, &[n], &data);
    }

    fn norm(&mut self, name: &str, n: u64) {
        self.vector(&format!("{name}.weight"), n, 1.0, 0.25);
    }

    /// Adds given numbers, in a format of [`VALUES`].
    fn put_values(&mut self, name: &str, shape: &[u64], values: &[f32]) {
        let format = self.made.format(&mut self.rng, name, shape[shape.len() - 1], &VALUES);
        let bytes = match format {
            Format::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Format::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
            Format::Bf16 => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
            Format::Q8_0 => values.as_chunks::<32>().0.iter().flat_map(q8_0).collect(),
            other => panic!("{name}: values in {other}"),
        };
        self.put(name, format, shape, bytes);
    }

    fn tensors(&mut self) {
        let made = self.made;
        let table = [made.vocabulary, made.width];
        match made.experts {
            None if made.extreme => {
                // 1e-38 is close to the least normal number, and its square becomes 0.
                let sizes = [0.0, 1e-38, 1e-20, 1e5, 1.0];
                let row = |id: u64| sizes[id as usize % sizes.len()];
                let values: Vec<f32> =
                    (0..table[0] * table[1]).map(|i| row(i / table[1]) * self.rng.signed()).collect();
                self.put_values("token_embd", &table, &values);
            }
            None => self.matrix("token_embd", &table),
            Some(experts) => self.embedding_that_routes(experts),
        }
        if made.rope_factors {
            let dims = made.keys.iter().find_map(|(name, key)| match key {
                Key::U32(dims) if *name == "rope.dimension_count" => Some(u64::from(*dims)),
                _ => None,
            });
            self.vector("rope_freqs.weight", dims.unwrap_or(made.key_length) / 2, 2.0, 1.0);
        }
        for layer in 0..made.layers {
            self.layer(layer);
        }
        self.norm("output_norm", made.width);
        if !made.tied {
            self.matrix("output", &table);
        }
    }

    /// Adds an embedding that determines each token's experts. The router's rows are random signs.
    /// All layers have the same rows, in different orders.
    fn embedding_that_routes(&mut self, experts: ExpertParameters) {
        let made = self.made;
        let width = made.width as usize;
        let sign = |rng: &mut Random| if rng.once_in(2) { 1.0 } else { -1.0 };
        self.codes = (0..experts.count).map(|_| (0..width).map(|_| sign(&mut self.rng)).collect()).collect();
        let mut values = Vec::new();
        for _ in 0..made.vocabulary {
            let mut chosen: Vec<usize> = (0..experts.count as usize).collect();
            for slot in 0..experts.used as usize {
                let other = slot + self.rng.below(experts.count - slot as u64) as usize;
                chosen.swap(slot, other);
            }
            chosen.truncate(experts.used as usize);
            for i in 0..width {
                let code: f32 = chosen.iter().map(|&expert| self.codes[expert][i]).sum();
                values.push(CODE * code + self.rng.signed() / 8.0);
            }
        }
        self.put_values("token_embd", &[made.vocabulary, made.width], &values);
    }

    fn layer(&mut self, layer: u64) {
        let made = self.made;
        let name = |part: &str| format!("blk.{layer}.{part}");
        let qwen2 = made.architecture == "qwen2";
        self.norm(&name("attn_norm"), made.width);
        for (part, n) in [
            ("attn_q", made.heads * made.key_length),
            ("attn_k", made.kv_heads * made.key_length),
            ("attn_v", made.kv_heads * made.value_length),
        ] {
            self.matrix(&name(part), &[n, made.width]);
            if qwen2 {
                self.vector(&name(&format!("{part}.bias")), n, 0.0, 0.5);
            }
        }
        if made.architecture.starts_with("qwen3") {
            self.norm(&name("attn_q_norm"), made.key_length);
            self.norm(&name("attn_k_norm"), made.key_length);
        }
        self.matrix(&name("attn_output"), &[made.width, made.heads * made.value_length]);
        self.norm(&name("ffn_norm"), made.width);
        let Some(experts) = made.experts else {
            self.matrix(&name("ffn_gate"), &[made.inner, made.width]);
            self.matrix(&name("ffn_up"), &[made.inner, made.width]);
            self.matrix(&name("ffn_down"), &[made.width, made.inner]);
            return;
        };
        let scale = ROUTED * (experts.used as f32).sqrt() / made.width as f32;
        let mut order: Vec<usize> = (0..self.codes.len()).collect();
        order.rotate_left(layer as usize % self.codes.len());
        let router: Vec<f32> = order.iter().flat_map(|&i| self.codes[i].iter().map(|x| x * scale)).collect();
        self.put_values(&name("ffn_gate_inp"), &[experts.count, made.width], &router);
        self.matrix(&name("ffn_gate_exps"), &[experts.count, experts.inner, made.width]);
        self.matrix(&name("ffn_up_exps"), &[experts.count, experts.inner, made.width]);
        self.matrix(&name("ffn_down_exps"), &[experts.count, made.width, experts.inner]);
    }
}

/// Returns random blocks whose elements have mean 0 and about this standard deviation.
fn blocks(rng: &mut Random, format: Format, elements: usize, deviation: f32) -> Vec<u8> {
    let mut bytes = vec![0u8; elements / format.block_len() * format.block_bytes()];
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        block.iter_mut().for_each(|byte| *byte = rng.bits() as u8);
        let size = deviation * (1.0 + rng.signed() / 2.0);
        let signed = if rng.once_in(2) { size } else { -size };
        let number = size * rng.signed() * UNIFORM;
        let half = |block: &mut [u8], field: &str, x: f32| {
            let at = format.field(field);
            block[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
        };
        // Integers that are uniform over n values have a standard deviation of about n / sqrt(12).
        match format {
            Format::F32 => block.copy_from_slice(&number.to_le_bytes()),
            Format::F16 => block.copy_from_slice(&f16::from_f32(number).to_le_bytes()),
            Format::Bf16 => block.copy_from_slice(&bf16::from_f32(number).to_le_bytes()),
            Format::Q8_0 => half(block, "d", signed * 12f32.sqrt() / 256.0),
            Format::Q4_0 => half(block, "d", signed * 12f32.sqrt() / 16.0),
            Format::Q6K => half(block, "d", signed * 12.0 / 256.0 / 64.0),
            Format::Q4K | Format::Q5K => {
                let values = if format == Format::Q4K { 16.0 } else { 32.0 };
                let d = size * 12f32.sqrt() / values / SCALE_MEAN_SQUARE.sqrt();
                half(block, "d", d);
                // With minimums of about the scale times the mean quantised value, the elements
                // have mean 0.
                half(block, "dmin", d * (values - 1.0) / 2.0);
                let at = format.field("scales");
                put_scales(rng, &mut block[at..at + 12]);
            }
            _ => {
                let codec = format.quants().unwrap_or_else(|| panic!("no model file has weights in {format}"));
                let names: Vec<&str> = codec.numbers().iter().map(|(name, ..)| *name).collect();
                let put = |block: &mut [u8], field: &str, x: f32| format.put(field, x, block);
                // Measures the mean of the block's elements if one of its scales is 1 and the other
                // is 0.
                let mut measured = |ones: &str| -> (f32, f32) {
                    names.iter().for_each(|name| put(block, name, if *name == ones { 1.0 } else { 0.0 }));
                    let mut x = vec![0.0; format.block_len()];
                    format.dequantise(block, &mut x);
                    let mean = x.iter().sum::<f32>() / x.len() as f32;
                    (mean, (x.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / x.len() as f32).sqrt())
                };
                let (mean, deviates) = measured("d");
                let minimum = if names.len() > 1 { measured(names[1]).0 } else { 0.0 };
                let d = if names.len() > 1 { size } else { signed } / deviates;
                put(block, "d", d);
                if names.len() > 1 {
                    // The minimum is set so that the elements have mean 0.
                    put(block, names[1], -d * mean / minimum);
                }
            }
        }
    }
    bytes
}

/// Factor that turns a uniform number in -1..1 into a number with standard deviation 1.
const UNIFORM: f32 = 1.732_050_8;
/// Mean square of 6-bit scales.
const SCALE_MEAN_SQUARE: f32 = 63.0 * 127.0 / 6.0;

/// Writes eight 6-bit scales, and minimums that are close to the scales. This is the inverse of
/// ggml's `get_scale_min_k4`.
fn put_scales(rng: &mut Random, out: &mut [u8]) {
    out.fill(0);
    for s in 0..8 {
        let scale = rng.below(64) as u8;
        let min = (scale + rng.below(17) as u8).saturating_sub(8).min(63);
        if s < 4 {
            out[s] |= scale;
            out[s + 4] |= min;
        } else {
            out[s + 4] = (scale & 15) | (min << 4);
            out[s - 4] |= scale >> 4 << 6;
            out[s] |= min >> 4 << 6;
        }
    }
}

/// Quantises 32 numbers like ggml's `quantize_row_q8_0`.
fn q8_0(x: &[f32; 32]) -> Vec<u8> {
    let d = x.iter().fold(0f32, |amax, x| amax.max(x.abs())) / 127.0;
    let mut block = f16::from_f32(d).to_le_bytes().to_vec();
    block.extend(x.iter().map(|x| if d > 0.0 { (x / d).round() as i8 as u8 } else { 0 }));
    block
}
