//! Random modules that verify, with bytes for their weights and arguments to run them. Property
//! tests of the text form, the passes and the kernels use them.
//!
//! - [`random_module`]: a function of any ops in any order. Over many seeds, every op of the
//!   table occurs.
//! - [`random_model`]: `@step` of a small transformer, dense or with experts, in the form that a
//!   frontend writes.
//! - [`weight_bytes`], [`arguments`]: numbers of moderate size, so that nothing overflows in tens
//!   of ops.
//!
//! ```
//! use ixc_ir::graph::interpret::Interpreter;
//! use ixc_testing::random_graphs::{Formats, arguments, random_module};
//!
//! let m = random_module(7, Formats::All);
//! let mut interpreter = Interpreter::new(&m.module, &m.weights).unwrap();
//! interpreter.run("f", arguments(&m.module, "f", 7)).unwrap();
//! ```
//!
//! Result: a seed always gives the same module, in canonical numbering. If an op has a type error,
//! the generator has a bug and panics.

mod mutate;
mod recurrent;
mod soup;

use half::{bf16, f16};

use self::soup::Soup;
pub use mutate::{mutate, mutated_module};

use ixc_ir::format::requantise::requantise;
use ixc_ir::format::{Codec, FORMATS, Float, Format};
use ixc_ir::graph::attrs::{RopeAttrs, RopeScaling, RopeStyle, RouteAttrs, RouteScore, ScoreAttrs};
use ixc_ir::graph::builder::{GraphBuilder, RopeFactors};
use ixc_ir::graph::interpret::Value;
use ixc_ir::graph::number::canonical;
use ixc_ir::graph::op::{OPS, OpKind};
use ixc_ir::graph::types::TypeError;
use ixc_ir::graph::{Dim, Element, Module, State, ValueId, Weight, WeightId, quantise};
use ixc_ir::random::Random;

/// Value of `T` in [`arguments`].
pub const TOKENS: usize = 3;
/// Value of `L` in [`arguments`].
pub const ROWS: usize = 2;
/// Minimum number of rows of an embedding table, and of experts of an expert tensor. Ids in
/// [`arguments`] are less than this number.
const IDS: u64 = 4;

/// Set of formats that random weights may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formats {
    /// Only f32. Fused and unfused graphs then give the same bits, except for the order of sums.
    F32,
    /// Every weight format of the table.
    All,
}

/// A module and the bytes of its weights.
#[derive(Clone, Debug)]
pub struct RandomModule {
    /// The module.
    pub module: Module,
    /// Bytes of each weight.
    pub weights: Vec<Vec<u8>>,
}

/// Returns a module with any ops in any order, in one function `@f`.
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

/// Returns `@step` of a small transformer. It has one or two layers, dense or with experts, and any
/// kind of RoPE. Biases, norms of heads and a tied output occur in some models.
pub fn random_model(seed: u64, formats: Formats) -> RandomModule {
    let mut rng = Random::new(seed);
    // Rows of K-quants need a multiple of 256 elements.
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
            ok(m.b.rope(x, step.pos, RopeFactors::default(), &rope))
        };
        let q = turn(&mut m, q, "attn_q_norm.weight");
        let k = turn(&mut m, k, "attn_k_norm.weight");
        let state = ok(m.b.state(State::paged(&format!("kv.{layer}"), kv_heads, head, head)));
        let kv = ok(m.b.state_begin(state));
        let kv = ok(m.b.kv_append(kv, k, v, step.pos));
        let scores = ScoreAttrs::plain(1.0 / (head as f64).sqrt());
        let (y, _) = ok(m.b.attention(q, kv, step.pos, None, None, &scores));
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
            let (ids, p) = ok(m.b.route(logits, None, None, &route));
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
    with_weights(m.b.finish(&[logits]), seed)
}

/// Returns arguments for a function of a random module: `T` is [`TOKENS`], `L` is [`ROWS`],
/// positions are `0..T`.
pub fn arguments(module: &Module, function: &str, seed: u64) -> Vec<Value> {
    let mut rng = Random::new(seed ^ 0xa5);
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
                let row = dims.last().copied().unwrap_or(1);
                Value::Blocks { format, bytes: quantise::quantise_rows(format, &x, row), dims }
            }
        }
    };
    function.params.iter().map(argument).collect()
}

/// Returns a weight's bytes in the file, made by [`weight_bytes`]. If the format has a scale for
/// each row, they are made row by row.
pub fn bytes_of_weight(rng: &mut Random, weight: &Weight) -> Vec<u8> {
    let elements = weight.shape.iter().product::<u64>() as usize;
    let row = weight.shape.last().map_or(1, |&n| n as usize);
    match weight.stored_format() {
        format if format.has_row_scale() => {
            let x: Vec<f32> = (0..elements).map(|_| rng.signed() / 8.0).collect();
            let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
            requantise(Format::F32, format, &bytes, row)
        }
        format => weight_bytes(rng, format, elements),
    }
}

/// Returns the bytes of `elements` elements (whole blocks) in a format that has no scale for each
/// row. Every code is random, and block scales keep values within about ±0.2.
pub fn weight_bytes(rng: &mut Random, format: Format, elements: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; elements / format.block_len() * format.block_bytes()];
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        block.iter_mut().for_each(|byte| *byte = rng.bits() as u8);
        match format.codec() {
            Codec::Float(Float::F32) => block.copy_from_slice(&(rng.signed() / 8.0).to_le_bytes()),
            Codec::Float(Float::F16) => block.copy_from_slice(&f16::from_f32(rng.signed() / 8.0).to_le_bytes()),
            Codec::Float(Float::Bf16) => block.copy_from_slice(&bf16::from_f32(rng.signed() / 8.0).to_le_bytes()),
            Codec::Quants(quants) => {
                for (field, _, largest) in quants.numbers() {
                    format.put(field, (1.0 + rng.signed() / 2.0) * 0.1 / largest, block);
                }
            }
            Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => {
                let x: Vec<f32> = (0..format.block_len()).map(|_| rng.signed() / 8.0).collect();
                block.copy_from_slice(&quantise::quantise(format, &x));
            }
        }
    }
    bytes
}

/// Returns the weight formats whose blocks divide rows of `width` elements.
fn formats_of(formats: Formats, width: u64) -> Vec<Format> {
    let fits = |format: Format| format.row_bytes(width).is_some() && format.is_in_files();
    let all = FORMATS.iter().map(|row| row.format).filter(|&format| fits(format));
    all.filter(|&format| formats == Formats::All || format == Format::F32).collect()
}

/// Returns the result of a type rule for a generated op; panics on a type error.
fn ok<T>(result: Result<T, TypeError>) -> T {
    result.unwrap_or_else(|error| unreachable!("the generator made an ill-typed op: {error}"))
}

fn with_weights(module: Module, seed: u64) -> RandomModule {
    let mut rng = Random::new(seed ^ 0x5a);
    let module = canonical(&module);
    let weights = module.weights.iter().map(|weight| {
        let elements = weight.shape.iter().product::<u64>() as usize;
        if weight.shape.len() > 1 {
            return weight_bytes(&mut rng, weight.format, elements);
        }
        // Numbers of norms and frequency factors are near 1.
        let one = |_| (1.0 + rng.signed() / 4.0).to_le_bytes();
        (0..elements).flat_map(one).collect()
    });
    RandomModule { weights: weights.collect(), module }
}

fn random_rope(rng: &mut Random, size: u64) -> RopeAttrs {
    RopeAttrs {
        base: rng.pick(&[100.0, 10_000.0, 1e6]),
        dims: if size > 2 && rng.once_in(3) { size / 4 * 2 } else { size / 2 * 2 },
        style: rng.pick(&[RopeStyle::Norm, RopeStyle::Neox]),
        scaling: rng.pick(&[RopeScaling::None, RopeScaling::Linear, RopeScaling::Yarn, RopeScaling::YarnUntruncated]),
        factor: rng.pick(&[1.0, 4.0, 0.1 + 0.2]),
        original_context: rng.pick(&[1, 32, 4096]),
        beta_fast: 32.0,
        beta_slow: 1.0,
        attn_factor: rng.pick(&[1.0, 0.875]),
    }
}

fn random_route(rng: &mut Random, top_k: u64) -> RouteAttrs {
    RouteAttrs {
        top_k,
        score: rng.pick(&[
            RouteScore::Softmax,
            RouteScore::Sigmoid,
            RouteScore::Chosen,
            RouteScore::RootSoftplus,
            RouteScore::SparseMixer,
        ]),
        groups: 1,
        groups_kept: 1,
        group_best: 0,
        normalise: rng.once_in(2),
        scale: rng.pick(&[1.0, 2.5]),
    }
}

struct Model {
    b: GraphBuilder,
    rng: Random,
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
