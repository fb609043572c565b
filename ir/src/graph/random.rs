//! Random modules that verify, with bytes for their weights and arguments to run them: what property tests of the text
//! form, the passes and the kernels draw from.
//!
//! - [`random_module`]: any ops in any order, every op of the table among them sooner or later;
//! - [`random_model`]: `@step` of a small transformer as a frontend writes it, dense or with experts;
//! - [`weight_bytes`], [`arguments`]: moderate numbers, so that nothing overflows in tens of ops.
//!
//! ```
//! use ixc_ir::graph::interpret::Interpreter;
//! use ixc_ir::graph::random::{Formats, arguments, random_module};
//!
//! let m = random_module(7, Formats::All);
//! let mut interpreter = Interpreter::new(&m.module, &m.weights).unwrap();
//! interpreter.run("f", arguments(&m.module, "f", 7)).unwrap();
//! ```
//!
//! Leaves true: the same seed gives the same module; modules are in canonical numbering. A type error in here is a bug in
//! here and panics.

use half::{bf16, f16};

use super::attrs::{RopeAttrs, RopeScaling, RopeStyle, RouteAttrs, RouteScore};
use super::builder::{GraphBuilder, LinearPart};
use super::interpret::Value;
use super::number::canonical;
use super::op::{OPS, OpKind};
use super::types::TypeError;
use super::{Dim, Element, Module, Operand, Type, ValueId, WeightId};
use crate::format::{FORMATS, Format};

/// `T` of [`arguments`].
pub const TOKENS: usize = 3;
/// `L` of [`arguments`].
pub const ROWS: usize = 2;
/// Every embedding table and expert tensor has at least so many rows and experts; ids in [`arguments`] stay below.
const IDS: u64 = 4;

/// SplitMix64: small, seeded, the same on every machine.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// From a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..n`; `n` must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    /// True once in `n`.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A number in `-1.0..1.0`.
    pub fn signed(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// One of these; there must be one.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}

/// Which formats weights have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formats {
    /// f32 only: fused and unfused graphs give the same bits but for the order of sums.
    F32,
    /// Every weight format of the table.
    All,
}

/// A module and the bytes of its weights.
#[derive(Clone, Debug)]
pub struct RandomModule {
    /// The module.
    pub module: Module,
    /// By weight.
    pub weights: Vec<Vec<u8>>,
}

/// Any ops in any order in one function `@f`.
pub fn random_module(seed: u64, formats: Formats) -> RandomModule {
    let mut soup = Soup::new(seed, formats);
    let mut kinds: Vec<OpKind> = OPS.iter().map(|row| row.kind).filter(|_| soup.rng.once_in(2)).collect();
    for i in (1..kinds.len()).rev() {
        kinds.swap(i, soup.rng.below(i as u64 + 1) as usize);
    }
    for kind in kinds {
        soup.op(kind);
    }
    soup.finish()
}

/// `@step` of a small transformer: one or two layers, dense or with experts, with and without biases, norms of heads, a tied
/// output and every kind of RoPE.
pub fn random_model(seed: u64, formats: Formats) -> RandomModule {
    let mut rng = Rng::new(seed);
    // Two heads' worth of keys of 128 is the least that K-quant rows allow.
    let (width, head) = if formats == Formats::F32 { (32, 8) } else { (256, 64) };
    let layers = 1 + rng.below(2);
    let (heads, kv_heads) = (width / head, rng.pick(&[1, 2]));
    let (inner, experts, vocab) = (width, rng.pick(&[0, 4, 6]), 16 + rng.below(16));
    let (biases, head_norms) = (rng.once_in(2), rng.once_in(2));
    let rope = random_rope(&mut rng, head);
    let route = random_route(&mut rng, 2);
    let eps = 1e-6;
    let mut m = Model { b: GraphBuilder::new("step"), rng, formats };

    let step = m.b.step_params();
    let table = m.weight("token_embd.weight", &[vocab, width]);
    let mut x = ok(m.b.embed(step.ids, table));
    let mut kv = step.kv;
    for layer in 0..layers {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let norm = m.vector(&name("attn_norm.weight"), width);
        let h = ok(m.b.rms_norm(x, norm, eps));
        let project = |m: &mut Model, part: &str, heads: u64| {
            let mut y = m.matmul(h, &name(&format!("{part}.weight")), &[heads * head, width]);
            if biases {
                let bias = m.vector(&name(&format!("{part}.bias")), heads * head);
                y = ok(m.b.add_bias(y, bias));
            }
            ok(m.b.split_heads(y, heads))
        };
        let q = project(&mut m, "attn_q", heads);
        let k = project(&mut m, "attn_k", kv_heads);
        let v = project(&mut m, "attn_v", kv_heads);
        let turn = |m: &mut Model, x: ValueId, part: &str| {
            let x = if head_norms {
                let norm = m.vector(&name(part), head);
                ok(m.b.rms_norm(x, norm, eps))
            } else {
                x
            };
            ok(m.b.rope(x, step.pos, None, &rope))
        };
        let q = turn(&mut m, q, "attn_q_norm.weight");
        let k = turn(&mut m, k, "attn_k_norm.weight");
        kv = ok(m.b.kv_append(kv, k, v, step.pos, layer));
        let (y, next) = ok(m.b.attention(q, kv, step.pos, layer, kv_heads, 1.0 / (head as f64).sqrt()));
        kv = next;
        let y = ok(m.b.merge_heads(y));
        let y = m.matmul(y, &name("attn_output.weight"), &[width, width]);
        x = ok(m.b.add(x, y));

        let norm = m.vector(&name("ffn_norm.weight"), width);
        let h = ok(m.b.rms_norm(x, norm, eps));
        let y = if experts == 0 {
            let gate = m.matmul(h, &name("ffn_gate.weight"), &[inner, width]);
            let gate = ok(m.b.silu(gate));
            let up = m.matmul(h, &name("ffn_up.weight"), &[inner, width]);
            let y = ok(m.b.mul(gate, up));
            m.matmul(y, &name("ffn_down.weight"), &[width, inner])
        } else {
            let router = m.vectors(&name("ffn_gate_inp.weight"), &[experts, width]);
            let router = ok(m.b.dequantise(router));
            let logits = ok(m.b.matmul(h, router));
            let (ids, p) = ok(m.b.route(logits, &route));
            let expert = |m: &mut Model, x: ValueId, part: &str, shape: [u64; 2]| {
                let w = m.weight(&name(part), &[experts, shape[0], shape[1]]);
                let w = ok(m.b.dequantise(w));
                ok(m.b.expert_matmul(x, ids, w))
            };
            let gate = expert(&mut m, h, "ffn_gate_exps.weight", [inner, width]);
            let gate = ok(m.b.silu(gate));
            let up = expert(&mut m, h, "ffn_up_exps.weight", [inner, width]);
            let y = ok(m.b.mul(gate, up));
            let y = expert(&mut m, y, "ffn_down_exps.weight", [width, inner]);
            ok(m.b.expert_combine(y, p))
        };
        x = ok(m.b.add(x, y));
    }
    let x = ok(m.b.take_rows(x, step.rows));
    let norm = m.vector("output_norm.weight", width);
    let x = ok(m.b.rms_norm(x, norm, eps));
    let logits = if m.rng.once_in(2) {
        let table = ok(m.b.dequantise(table));
        ok(m.b.matmul(x, table))
    } else {
        m.matmul(x, "output.weight", &[vocab, width])
    };
    with_weights(m.b.finish(&[logits, kv]), seed)
}

/// Arguments for a function of a module from here: `T` is [`TOKENS`], `L` is [`ROWS`], positions are `0..T`.
pub fn arguments(module: &Module, function: &str, seed: u64) -> Vec<Value> {
    let mut rng = Rng::new(seed ^ 0xa5);
    let Some(function) = module.functions.iter().find(|f| f.name == function) else { return Vec::new() };
    let argument = |&param: &ValueId| {
        let data = &function.values[param.index()];
        let size = |dim: &Dim| match dim {
            Dim::Fixed(n) => *n as usize,
            Dim::Symbol(name) if name == "L" => ROWS,
            Dim::Symbol(_) => TOKENS,
        };
        let dims: Vec<usize> = data.ty.dims().iter().map(size).collect();
        let count: usize = dims.iter().product();
        match data.ty.element() {
            None => Value::Token,
            Some(Element::I32) => {
                let data = (0..count as i32).map(|i| match data.name.as_deref() {
                    Some("pos") => i,
                    Some("rows") => rng.below(TOKENS as u64) as i32,
                    Some(_) | None => rng.below(IDS) as i32,
                });
                Value::I32 { data: data.collect(), dims }
            }
            Some(Element::Format(Format::F32)) => Value::F32 { data: (0..count).map(|_| rng.signed()).collect(), dims },
            Some(Element::Format(format)) => {
                let x: Vec<f32> = (0..count).map(|_| rng.signed()).collect();
                Value::Blocks { format, bytes: super::quantise::quantise(format, &x), dims }
            }
        }
    };
    function.params.iter().map(argument).collect()
}

/// Bytes of `elements` (whole blocks) in a format: every quant random, scales such that values lie within about ±0.2.
pub fn weight_bytes(rng: &mut Rng, format: Format, elements: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; elements / format.block_len() * format.block_bytes()];
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        block.iter_mut().for_each(|byte| *byte = rng.bits() as u8);
        let mut scale = |field: &str, largest: f32| {
            let d = f16::from_f32((1.0 + rng.signed() / 2.0) * 0.1 / largest);
            let at = format.field(field);
            block[at..at + 2].copy_from_slice(&d.to_le_bytes());
        };
        // The largest scale times the largest quant.
        match format {
            Format::Q8_0 => scale("d", 127.0),
            Format::Q4_0 => scale("d", 8.0),
            Format::Q4K | Format::Q5K => {
                scale("d", if format == Format::Q4K { 63.0 * 15.0 } else { 63.0 * 31.0 });
                scale("dmin", 63.0);
            }
            Format::Q6K => scale("d", 127.0 * 32.0),
            Format::F32 => block.copy_from_slice(&(rng.signed() / 8.0).to_le_bytes()),
            Format::F16 => block.copy_from_slice(&f16::from_f32(rng.signed() / 8.0).to_le_bytes()),
            Format::Bf16 => block.copy_from_slice(&bf16::from_f32(rng.signed() / 8.0).to_le_bytes()),
            Format::A8Super | Format::A8Small => {
                let x: Vec<f32> = (0..format.block_len()).map(|_| rng.signed() / 8.0).collect();
                block.copy_from_slice(&super::quantise::quantise(format, &x));
            }
        }
    }
    bytes
}

/// The weight formats of whose blocks `width` elements are a whole number.
fn formats_of(formats: Formats, width: u64) -> Vec<Format> {
    let fits = |format: Format| format.row_bytes(width).is_some() && format.row().gguf_id.is_some();
    let all = FORMATS.iter().map(|row| row.format).filter(|&format| fits(format));
    all.filter(|&format| formats == Formats::All || format == Format::F32).collect()
}

/// Unwraps what a type rule said of an op that this file made.
fn ok<T>(result: Result<T, TypeError>) -> T {
    result.unwrap_or_else(|error| unreachable!("the generator made an ill-typed op: {error}"))
}

fn with_weights(module: Module, seed: u64) -> RandomModule {
    let mut rng = Rng::new(seed ^ 0x5a);
    let module = canonical(&module);
    let weights = module.weights.iter().map(|weight| {
        let elements = weight.shape.iter().product::<u64>() as usize;
        if weight.shape.len() > 1 {
            return weight_bytes(&mut rng, weight.format, elements);
        }
        // Norms and frequency factors are near 1.
        let one = |_| (1.0 + rng.signed() / 4.0).to_le_bytes();
        (0..elements).flat_map(one).collect()
    });
    RandomModule { weights: weights.collect(), module }
}

fn random_rope(rng: &mut Rng, size: u64) -> RopeAttrs {
    RopeAttrs {
        base: rng.pick(&[100.0, 10_000.0, 1e6]),
        dims: if size > 2 && rng.once_in(3) { size / 4 * 2 } else { size / 2 * 2 },
        style: rng.pick(&[RopeStyle::Norm, RopeStyle::Neox]),
        scaling: rng.pick(&[RopeScaling::None, RopeScaling::Linear, RopeScaling::Yarn]),
        factor: rng.pick(&[1.0, 4.0, 0.1 + 0.2]),
        original_context: rng.pick(&[1, 32, 4096]),
        beta_fast: 32.0,
        beta_slow: 1.0,
        attn_factor: rng.pick(&[1.0, 0.875]),
    }
}

fn random_route(rng: &mut Rng, top_k: u64) -> RouteAttrs {
    RouteAttrs {
        top_k,
        score: rng.pick(&[RouteScore::Softmax, RouteScore::Sigmoid]),
        normalise: rng.once_in(2),
        scale: rng.pick(&[1.0, 2.5]),
    }
}

struct Model {
    b: GraphBuilder,
    rng: Rng,
    formats: Formats,
}

impl Model {
    fn weight(&mut self, name: &str, shape: &[u64]) -> WeightId {
        let width = shape.last().copied().unwrap_or(1);
        let format = self.rng.pick(&formats_of(self.formats, width));
        ok(self.b.weight(name, format, shape, None))
    }

    fn vectors(&mut self, name: &str, shape: &[u64]) -> WeightId {
        ok(self.b.weight(name, Format::F32, shape, None))
    }

    fn vector(&mut self, name: &str, n: u64) -> WeightId {
        self.vectors(name, &[n])
    }

    fn matmul(&mut self, x: ValueId, name: &str, shape: &[u64]) -> ValueId {
        let w = self.weight(name, shape);
        let w = ok(self.b.dequantise(w));
        ok(self.b.matmul(x, w))
    }
}

/// Makes one op after the other out of what is there, or out of new parameters and weights.
struct Soup {
    b: GraphBuilder,
    rng: Rng,
    formats: Formats,
    ids: ValueId,
    pos: ValueId,
    rows: ValueId,
    kv: ValueId,
    /// Layers with a cache: kv heads, key and value sizes.
    caches: Vec<(u64, u64, u64)>,
    /// Routed ids with their weights and slots.
    routed: Vec<(ValueId, ValueId, u64)>,
    made: u64,
}

const WIDTHS: [u64; 3] = [32, 64, 256];

impl Soup {
    fn new(seed: u64, formats: Formats) -> Soup {
        let mut b = GraphBuilder::new("f");
        let step = b.step_params();
        Soup {
            b,
            rng: Rng::new(seed),
            formats,
            ids: step.ids,
            pos: step.pos,
            rows: step.rows,
            kv: step.kv,
            caches: Vec::new(),
            routed: Vec::new(),
            made: 0,
        }
    }

    fn finish(mut self) -> RandomModule {
        let values = 0..self.b.function().values.len() as u32;
        let mut results: Vec<ValueId> = values.map(ValueId).collect();
        results.retain(|&value| *self.b.ty(value) != Type::Token && self.rng.once_in(3));
        results.push(self.kv);
        let seed = self.rng.bits();
        with_weights(self.b.finish(&results), seed)
    }

    fn width(&mut self) -> u64 {
        self.rng.pick(&WIDTHS)
    }

    fn name(&mut self, what: &str) -> String {
        self.made += 1;
        // Tensor names are any text; these must come back from quotes and escapes.
        let odd = ["", " \"quoted\"", ".\u{e9}\n\\", ".weight"];
        format!("{what}{}{}", self.made, self.rng.pick(&odd))
    }

    fn weight(&mut self, shape: &[u64]) -> WeightId {
        let width = shape.last().copied().unwrap_or(1);
        let format = match shape.len() {
            1 => Format::F32,
            _ => self.rng.pick(&formats_of(self.formats, width)),
        };
        let name = self.name("w");
        let place = self.rng.once_in(2).then(|| super::Place { file: self.made as u32, offset: self.rng.bits() });
        ok(self.b.weight(&name, format, shape, place))
    }

    fn maybe_vector(&mut self, n: u64) -> Option<WeightId> {
        self.rng.once_in(2).then(|| self.weight(&[n]))
    }

    /// A value of this type: one that is there, or a new parameter.
    fn value(&mut self, ty: Type) -> ValueId {
        let values = (0..self.b.function().values.len() as u32).map(ValueId);
        let fitting: Vec<ValueId> = values.filter(|&value| *self.b.ty(value) == ty).collect();
        if !fitting.is_empty() && !self.rng.once_in(4) {
            return self.rng.pick(&fitting);
        }
        self.made += 1;
        self.b.param(&format!("x{}", self.made), ty)
    }

    /// f32[T, dims].
    fn f32(&mut self, dims: &[u64]) -> ValueId {
        let dims: Vec<Dim> = [Dim::symbol("T")].into_iter().chain(dims.iter().map(|&n| n.into())).collect();
        self.value(Type::f32(dims))
    }

    /// [T, dims] in the activation format of a weight.
    fn activation(&mut self, weight: WeightId, dims: &[u64]) -> ValueId {
        let format = self.b.module().weights[weight.index()].format.activation();
        let x = self.f32(dims);
        if format == Format::F32 { x } else { ok(self.b.quantise(x, format)) }
    }

    /// An activation format that `width` elements fit.
    fn activation_format(&mut self, width: u64) -> Format {
        let formats: Vec<Format> = formats_of(self.formats, width).iter().map(|format| format.activation()).collect();
        self.rng.pick(&formats)
    }

    /// Gate and up: one shape, one activation format.
    fn gate_up(&mut self, shape: &[u64]) -> (WeightId, WeightId) {
        let gate = self.weight(shape);
        let format = self.b.module().weights[gate.index()].format;
        let name = self.name("up");
        (gate, ok(self.b.weight(&name, format, shape, None)))
    }

    fn routed(&mut self) -> (ValueId, ValueId, u64) {
        if self.routed.is_empty() || self.rng.once_in(3) {
            self.op(OpKind::Route);
        }
        self.rng.pick(&self.routed)
    }

    /// A layer whose cache has these sizes: an old one or a new one.
    fn layer(&mut self, sizes: (u64, u64, u64)) -> u64 {
        match self.caches.iter().position(|&cache| cache == sizes) {
            Some(layer) => layer as u64,
            None => {
                self.caches.push(sizes);
                self.caches.len() as u64 - 1
            }
        }
    }

    fn op(&mut self, kind: OpKind) {
        let (k, n) = (self.width(), self.width());
        let (heads, d) = (self.rng.pick(&[1, 2, 4]), self.rng.pick(&[8, 16]));
        match kind {
            OpKind::Embed => {
                let table = self.weight(&[IDS + n, k]);
                ok(self.b.embed(self.ids, table));
            }
            OpKind::Dequantise => {
                let w = if self.rng.once_in(2) { self.weight(&[n, k]) } else { self.weight(&[IDS, 2, k]) };
                ok(self.b.dequantise(w));
            }
            OpKind::Matmul => {
                let w = self.weight(&[n, k]);
                let w = ok(self.b.dequantise(w));
                let x = if self.rng.once_in(2) { self.f32(&[k]) } else { self.f32(&[heads, k]) };
                ok(self.b.matmul(x, w));
                let matrix = self.value(Type::f32([Dim::Fixed(n), Dim::Fixed(k)]));
                ok(self.b.matmul(x, matrix));
            }
            OpKind::Add | OpKind::Mul => {
                let (a, b) = (self.f32(&[k]), self.f32(&[k]));
                ok(if kind == OpKind::Add { self.b.add(a, b) } else { self.b.mul(a, b) });
            }
            OpKind::AddBias => {
                let (x, bias) = (self.f32(&[k]), self.weight(&[k]));
                ok(self.b.add_bias(x, bias));
            }
            OpKind::Silu => {
                let x = self.f32(&[k]);
                let y = ok(self.b.silu(x));
                self.b.name(y, &format!("silu.{}", y.0));
            }
            OpKind::RmsNorm => {
                let (x, w) = (self.f32(&[heads, d]), self.weight(&[d]));
                ok(self.b.rms_norm(x, w, 1e-5));
            }
            OpKind::SplitHeads => {
                let x = self.f32(&[k]);
                ok(self.b.split_heads(x, heads));
            }
            OpKind::MergeHeads => {
                let x = self.f32(&[heads, d]);
                ok(self.b.merge_heads(x));
            }
            OpKind::Rope => {
                let x = self.f32(&[heads, d]);
                let rope = random_rope(&mut self.rng, d);
                let factors = self.maybe_vector(rope.dims / 2);
                ok(self.b.rope(x, self.pos, factors, &rope));
            }
            OpKind::KvAppend => {
                let dv = self.rng.pick(&[d, 4]);
                let layer = self.layer((heads, d, dv));
                let (k, v) = (self.f32(&[heads, d]), self.f32(&[heads, dv]));
                self.kv = ok(self.b.kv_append(self.kv, k, v, self.pos, layer));
            }
            OpKind::Attention => {
                if self.caches.is_empty() {
                    self.op(OpKind::KvAppend);
                }
                let layer = self.rng.below(self.caches.len() as u64);
                let (kv_heads, d, _) = self.caches[layer as usize];
                let heads = kv_heads * self.rng.pick(&[1, 3]);
                let q = self.f32(&[heads, d]);
                (_, self.kv) = ok(self.b.attention(q, self.kv, self.pos, layer, kv_heads, 0.25));
            }
            OpKind::Route => {
                let slots = 1 + self.rng.below(IDS);
                let logits = self.f32(&[IDS]);
                let route = random_route(&mut self.rng, slots);
                let (ids, p) = ok(self.b.route(logits, &route));
                self.routed.push((ids, p, slots));
            }
            OpKind::ExpertMatmul => {
                let (ids, _, slots) = self.routed();
                let w = self.weight(&[IDS + 1, n, k]);
                let w = ok(self.b.dequantise(w));
                let x = if self.rng.once_in(2) { self.f32(&[k]) } else { self.f32(&[slots, k]) };
                ok(self.b.expert_matmul(x, ids, w));
            }
            OpKind::ExpertCombine => {
                let (_, p, slots) = self.routed();
                let y = self.f32(&[slots, k]);
                ok(self.b.expert_combine(y, p));
            }
            OpKind::TakeRows => {
                let x = self.f32(&[k]);
                ok(self.b.take_rows(x, self.rows));
            }
            OpKind::Quantise => {
                let (x, format) = (self.f32(&[k]), self.activation_format(k));
                ok(self.b.quantise(x, format));
            }
            OpKind::RmsNormQuantise => {
                let (x, w, format) = (self.f32(&[k]), self.weight(&[k]), self.activation_format(k));
                ok(self.b.rms_norm_quantise(x, w, 1e-6, format));
            }
            OpKind::Linear => {
                let w = self.weight(&[n, k]);
                let (x, bias) = (self.activation(w, &[k]), self.maybe_vector(n));
                let residual = self.rng.once_in(2).then(|| self.f32(&[n]));
                ok(self.b.linear(x, w, bias, residual));
            }
            OpKind::LinearQkv => {
                let [q, k, v] = [n, 32, 32].map(|n| {
                    let w = self.weight(&[n, k]);
                    LinearPart { x: self.activation(w, &[k]), w, bias: self.maybe_vector(n) }
                });
                ok(self.b.linear_qkv(q, k, v));
            }
            OpKind::LinearSwiglu => {
                let (gate, up) = self.gate_up(&[n, k]);
                let (x, format) = (self.activation(gate, &[k]), self.activation_format(n));
                ok(self.b.linear_swiglu(x, gate, up, format));
            }
            OpKind::RopeHeads => {
                let x = self.f32(&[heads * d]);
                let rope = random_rope(&mut self.rng, d);
                let (norm, factors) = (self.maybe_vector(d), self.maybe_vector(rope.dims / 2));
                ok(self.b.rope_heads(x, self.pos, norm, factors, heads, 1e-6, &rope));
            }
            OpKind::RopeAppend => {
                let layer = self.layer((heads, d, 8));
                let (k, v) = (self.f32(&[heads * d]), self.f32(&[heads * 8]));
                let rope = random_rope(&mut self.rng, d);
                let (norm, factors) = (self.maybe_vector(d), self.maybe_vector(rope.dims / 2));
                self.kv = ok(self.b.rope_append(self.kv, k, v, self.pos, norm, factors, layer, heads, 1e-6, &rope));
            }
            OpKind::ExpertSwiglu => {
                let (ids, _, _) = self.routed();
                let (gate, up) = self.gate_up(&[IDS, n, k]);
                let (x, format) = (self.activation(gate, &[k]), self.activation_format(n));
                ok(self.b.expert_swiglu(x, ids, gate, up, format));
            }
            OpKind::ExpertDown => {
                let (ids, p, slots) = self.routed();
                let w = self.weight(&[IDS, n, k]);
                let (x, residual) = (self.activation(w, &[slots, k]), self.f32(&[n]));
                ok(self.b.expert_down(x, ids, p, w, residual));
            }
        }
    }
}

/// A copy with one thing broken or changed at random: most do not verify, and none may make anything panic.
pub fn mutated(module: &Module, rng: &mut Rng) -> Module {
    let mut module = module.clone();
    let weights = module.weights.len() as u64 + 1;
    let Some(function) = module.functions.first_mut() else { return module };
    let values = function.values.len() as u64 + 1;
    let ops = function.ops.len() as u64;
    let value = ValueId(rng.below(values) as u32);
    if ops == 0 {
        function.results.push(value);
        return module;
    }
    let at = rng.below(ops) as usize;
    let op = &mut function.ops[at];
    match rng.below(10) {
        0 if !op.operands.is_empty() => {
            let i = rng.below(op.operands.len() as u64) as usize;
            op.operands[i] = match rng.below(3) {
                0 => Operand::Value(value),
                1 => Operand::Weight(WeightId(rng.below(weights) as u32)),
                _ => Operand::Absent,
            };
        }
        1 if !op.attrs.is_empty() => {
            use super::op::Attr;
            let i = rng.below(op.attrs.len() as u64) as usize;
            op.attrs[i] = match rng.below(5) {
                0 => Attr::Int(rng.pick(&[0, -1, 1, 3, i64::MIN, i64::MAX])),
                1 => Attr::Float(rng.pick(&[0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 5e-324])),
                2 => Attr::Bool(true),
                3 => Attr::Word(rng.pick(&["yarn", "linear", "sigmoid", ""]).to_string()),
                _ => Attr::Format(rng.pick(FORMATS).format),
            };
        }
        2 => op.results.push(value),
        3 => {
            op.results.pop();
        }
        4 => op.kind = rng.pick(OPS).kind,
        5 => {
            op.operands.pop();
        }
        6 => {
            op.attrs.pop();
        }
        7 => function.ops.swap(at, (at + 1) % ops as usize),
        8 => {
            if let Some(data) = function.values.get_mut(value.index()) {
                let sizes = [0, 1, 2, 256, u64::MAX];
                let dims = vec![Dim::Fixed(rng.pick(&sizes)), Dim::Fixed(rng.pick(&sizes))];
                data.ty = Type::of(rng.pick(FORMATS).format, dims);
            }
        }
        _ => {
            if let Some(weight) = module.weights.get_mut(value.index()) {
                weight.shape = vec![rng.pick(&[0, 1, 256, u64::MAX]), rng.pick(&[0, 1, 256, u64::MAX])];
                weight.format = rng.pick(FORMATS).format;
            }
        }
    }
    module
}
