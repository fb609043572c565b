//! Measurement of one layer of routed experts, for comparison with engines that only have an
//! operator for experts.
//!
//! The layer is a GGUF file with random weights, the input rows (`layer.input`) and each row's
//! router logits (`layer.router`). All engines see the same rows and send them to the same experts.
//! A row goes to 8 experts of 128, chosen evenly. Different rows go to different experts, so that
//! weights come from memory and not from a cache.
//!
//! For ixc, the time of a step of a plan with one layer is measured. The step looks up the rows and
//! their logits, chooses experts, quantises, computes the three products and SwiGLU, and writes the
//! weighted sum. Drivers for other engines may exclude the choice of experts from the measured
//! time, to ixc's disadvantage.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use ixc::architectures;
use ixc::compile::{CompileOptions, TargetName, compile};
use ixc::ir::format::Format;
use ixc::ir::graph::attrs::{RopeScaling, RouteAttrs};
use ixc::ir::graph::builder::GraphBuilder;
use ixc::ir::graph::{Module, Place, ValueId, WeightId};
use ixc::ir::random::Random;
use ixc::model::Model;
use ixc::model_files::gguf::{Gguf, write::GgufWriter};
use ixc::runtime::engine::{self, Engine};
use ixc::text::tokenizer::TokenizerSpec;

/// Tokens of a measured call.
pub const TOKENS: [usize; 2] = [1, 128];

/// Max calls that are timed together: enough to read every expert many times.
const MOST_CALLS: usize = 512;

/// Measures one layer of experts; prints a line of JSON for each number of tokens.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The layer's file, which is made if it does not exist.
    #[arg(long)]
    file: PathBuf,
    /// Number of threads.
    #[arg(short, long, default_value_t = 1)]
    threads: usize,
    /// Number of times that the calls are timed, after one time that does not count.
    #[arg(short, long, default_value_t = 3)]
    repetitions: usize,
    /// Target of the generated code: native, or a target that `ixc doctor` lists.
    #[arg(long)]
    target: Option<TargetName>,
    /// Write the layer's results for the first rows, for a comparison with another engine.
    #[arg(long, value_name = "FILE.npy")]
    outputs: Option<PathBuf>,
}

/// The size of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    width: u64,
    inner: u64,
    experts: u64,
    used: u64,
    /// Formats of gate and up, and of down.
    formats: [Format; 2],
}

/// The size of Qwen3-30B-A3B, in the formats of Q4_K_M.
const SHAPE: Shape = Shape { width: 2048, inner: 768, experts: 128, used: 8, formats: [Format::Q4K, Format::Q6K] };

/// Upper bound of the logits of experts that are not chosen. Logits of chosen experts are between 0
/// and 1.
const NOT_CHOSEN: f32 = -30.0;

impl Args {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        ensure!(self.threads > 0 && self.repetitions > 0, "threads and repetitions must be above 0");
        make_where_missing(&self.file)?;
        let mut layer = Layer::open(&self.file, self.threads, self.target)?;
        if let Some(path) = &self.outputs {
            let rows = layer.run(0, TOKENS[1])?;
            let columns = rows.len() / TOKENS[1];
            ixc::npy::write_file(path, ixc::npy::Shape { rows: TOKENS[1], columns }, &rows)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        for tokens in TOKENS {
            let mut values = Vec::new();
            for round in 0..=self.repetitions {
                let seconds = layer.time(tokens)?;
                if round > 0 {
                    values.push(seconds);
                }
            }
            println!("RESULT {}", serde_json::json!({"test": "layer", "tokens": tokens, "values": values}));
        }
        Ok(())
    }
}

/// Writes the layer's file unless it exists.
pub fn make_where_missing(path: &Path) -> anyhow::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let bytes = SHAPE.file();
    ixc_files::atomic_write(path, &bytes).with_context(|| format!("cannot write {}", path.display()))
}

impl Shape {
    /// Returns the GGUF file, which is always the same.
    fn file(&self) -> Vec<u8> {
        let Shape { width, inner, experts, used, formats: [narrow, wide] } = *self;
        // Token ids must be less than the width of the logits. The layer's result replaces the
        // logits here, so its width bounds the number of rows.
        let rows = width;
        let mut rng = Random::new(4);
        let input: Vec<f32> = (0..rows * width).map(|_| rng.signed()).collect();
        let mut router = Vec::new();
        for _ in 0..rows {
            let mut logits: Vec<f32> = (0..experts).map(|_| NOT_CHOSEN - rng.signed().abs()).collect();
            let mut left = used;
            while left > 0 {
                let expert = rng.below(experts) as usize;
                if logits[expert] <= NOT_CHOSEN {
                    logits[expert] = rng.signed().abs();
                    left -= 1;
                }
            }
            router.extend(logits);
        }
        let mut writer = GgufWriter::new()
            .key("general.architecture", "ixc-bench-layer")
            .key("ixc-bench-layer.expert_used_count", u32::try_from(used).unwrap_or(u32::MAX))
            .f32_tensor("layer.input", &[width, rows], &input)
            .f32_tensor("layer.router", &[experts, rows], &router);
        for (name, format, from, to) in
            [("gate", narrow, width, inner), ("up", narrow, width, inner), ("down", wide, inner, width)]
        {
            let data = blocks(format, experts * from * to, from, &mut rng);
            let id = format.row().gguf_id.unwrap_or(0);
            writer = writer.tensor(&format!("blk.0.ffn_{name}_exps.weight"), id, &[from, to, experts], data);
        }
        writer.finish()
    }
}

/// Returns random blocks with `elements` elements. Rows have a Euclidean norm of about 4, so that
/// scales are normal f16 numbers.
fn blocks(format: Format, elements: u64, row: u64, rng: &mut Random) -> Vec<u8> {
    let (len, size) = (format.block_len(), format.block_bytes());
    let mut bytes = Vec::with_capacity(elements as usize / len * size + 8);
    while bytes.len() < elements as usize / len * size {
        bytes.extend(rng.bits().to_le_bytes());
    }
    bytes.truncate(elements as usize / len * size);
    let unit = 4.0 / (row as f32).sqrt();
    for block in bytes.chunks_exact_mut(size) {
        let mut set = |field: &str, value: f32| {
            let at = format.field(field);
            block[at..at + 2].copy_from_slice(&half(value).to_le_bytes());
        };
        match format {
            // Scales are 0 to 63 and quants 0 to 15: about 15 units around their middle.
            Format::Q4K => {
                set("d", unit / 140.0);
                set("dmin", unit / 140.0 * 7.5);
            }
            // Scales are -128 to 127, quants -32 to 31.
            _ => set("d", unit / 1400.0),
        }
    }
    bytes
}

/// Returns the f16 of a positive number in f16's normal range, rounded towards zero.
fn half(value: f32) -> u16 {
    let bits = value.to_bits();
    let exponent = (bits >> 23) as i32 - 127 + 15;
    debug_assert!((1..31).contains(&exponent), "{value} is no normal f16");
    ((exponent as u32) << 10 | (bits >> 13 & 0x3ff)) as u16
}

/// A loaded layer.
struct Layer {
    engine: Engine,
    rows: usize,
}

impl Layer {
    fn open(path: &Path, threads: usize, target: Option<TargetName>) -> anyhow::Result<Layer> {
        let gguf = ixc::model::open_files(path)?;
        let (model, rows) = model(gguf)?;
        Layer::compile(&model, rows, threads, target)
    }

    fn compile(model: &Model, rows: usize, threads: usize, target: Option<TargetName>) -> anyhow::Result<Layer> {
        let mut options = CompileOptions::default();
        if let Some(target) = target {
            (options.target, options.caches) = (Some(target.target), target.caches);
        }
        let plan = compile(model, &options)?.plan;
        let built_in = None;
        let options = engine::EngineOptions {
            threads: Some(threads),
            context: Some(rows as u64),
            built_in,
            ..engine::EngineOptions::default()
        };
        let engine = Engine::load(plan, Path::new(""), &options).map_err(ixc::Error::from)?;
        Ok(Layer { engine, rows })
    }

    /// Returns the layer's results for rows from `first` on.
    fn run(&mut self, first: usize, tokens: usize) -> anyhow::Result<Vec<f32>> {
        self.engine.reset();
        Ok(self.step(first, tokens)?.to_vec())
    }

    fn step(&mut self, first: usize, tokens: usize) -> anyhow::Result<&[f32]> {
        let ids: Vec<u32> = (first..first + tokens).map(|row| (row % self.rows) as u32).collect();
        // Results of all rows are requested as logits. Otherwise the layer's last product would be
        // computed for one row only.
        let wanted: Vec<u32> = (0..tokens as u32).collect();
        Ok(self.engine.step(&ids, &wanted)?)
    }

    /// Returns the seconds of a call for `tokens` rows, the mean of many calls with different rows.
    fn time(&mut self, tokens: usize) -> anyhow::Result<f64> {
        self.engine.reset();
        let calls = (self.rows / tokens).clamp(1, MOST_CALLS);
        let begin = Instant::now();
        for call in 0..calls {
            self.step(call * tokens, tokens)?;
        }
        Ok(begin.elapsed().as_secs_f64() / calls as f64)
    }
}

/// Returns the graph of a layer's file as a model whose logits are the layer's result, and the
/// number of rows.
fn model(gguf: Gguf) -> anyhow::Result<(Model, usize)> {
    let used: u32 = gguf.metadata().read("ixc-bench-layer.expert_used_count").map_err(ixc::Error::from)?;
    let (module, rows) =
        graph(&gguf, used.into()).context("the file is not a layer of experts written by `ixc-bench layer`")?;
    let rope = architectures::Rope {
        base: 1e4,
        dims: 0,
        scaling: RopeScaling::None,
        factor: 1.0,
        original_context: rows,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attn_factor: 1.0,
        divided: true,
    };
    let hyper = architectures::Hyper {
        architecture: "ixc-bench-layer".to_owned(),
        causal: true,
        context_length: rows,
        embedding_length: 0,
        vocabulary: rows,
        norm_eps: 1e-6,
        rope,
        has_rope: true,
        layers: Vec::new(),
        local_rope: None,
        scales: architectures::Scales::NONE,
        norms: architectures::Norms::Rms,
        mla: None,
        draft_layers: 0,
    };
    let model = Model {
        gguf,
        arch: architectures::Model { hyper, module, output: architectures::Output::Logits },
        vocabulary: TokenizerSpec::default(),
    };
    Ok((model, usize::try_from(rows)?))
}

fn graph(gguf: &Gguf, used: u64) -> anyhow::Result<(Module, u64)> {
    let mut graph = GraphBuilder::new("step");
    let step = graph.step_params();
    let weight = |graph: &mut GraphBuilder, name: &str| -> anyhow::Result<WeightId> {
        let tensor = gguf.require_tensor(name).map_err(ixc::Error::from)?;
        let format = tensor.tensor_type().format().context("the format of a tensor of the layer is not supported")?;
        // The first dimension of a GGUF tensor is the row length.
        let shape: Vec<u64> = tensor.dims().iter().rev().copied().collect();
        let place = Place { file: 0, offset: tensor.offset() };
        Ok(graph.weight(name, format, &shape, Some(place))?)
    };
    let rows = gguf.require_tensor("layer.input").map_err(ixc::Error::from)?.dims().get(1).copied().unwrap_or(1);
    let (input, router) = (weight(&mut graph, "layer.input")?, weight(&mut graph, "layer.router")?);
    let x = graph.embed(step.ids, input)?;
    let logits = graph.embed(step.ids, router)?;
    let route = RouteAttrs::softmax(used, true);
    let (ids, shares) = graph.route(logits, None, None, &route)?;
    let product = |graph: &mut GraphBuilder, x: ValueId, name: &str| -> anyhow::Result<ValueId> {
        let w = weight(graph, &format!("blk.0.ffn_{name}_exps.weight"))?;
        let w = graph.dequantise(w)?;
        Ok(graph.expert_matmul(x, ids, w)?)
    };
    let gate = product(&mut graph, x, "gate")?;
    let up = product(&mut graph, x, "up")?;
    let gate = graph.silu(gate)?;
    let inner = graph.mul(gate, up)?;
    let down = product(&mut graph, inner, "down")?;
    let sum = graph.expert_combine(down, shares)?;
    let out = graph.take_rows(sum, step.rows)?;
    Ok((graph.finish(&[out]), rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layer_matches_its_graph() {
        let shape = Shape { width: 256, inner: 256, experts: 6, used: 2, ..SHAPE };
        let path = std::env::temp_dir().join(format!("ixc-bench-layer-{}.gguf", std::process::id()));
        std::fs::write(&path, shape.file()).unwrap();
        let (model, rows) = model(Gguf::open(&path).unwrap()).unwrap();
        assert_eq!(rows, 256);
        let mut layer = Layer::compile(&model, rows, 2, None).unwrap();
        for (first, tokens) in [(3, 1), (5, 128)] {
            let found = layer.run(first, tokens).unwrap();
            let ids: Vec<u32> = (first as u32..).take(tokens).collect();
            let right = model.exact_logits(&ids).unwrap();
            assert_eq!(found.len(), tokens * 256);
            let error: f64 = found.iter().zip(&right).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            let size: f64 = right.iter().map(|b| f64::from(*b).powi(2)).sum();
            assert!(size > 0.0 && error < 1e-3 * size, "{error} of {size}");
        }
        assert!(layer.time(128).unwrap() > 0.0);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn halves() {
        assert_eq!(half(1.0), 0x3c00);
        assert_eq!(half(0.5), 0x3800);
        assert_eq!(half(1.5 / 1024.0), 0x1600);
    }
}
