//! Tokens per second for a memory budget, before anything is run: from the time of computing, the
//! time of reading, and their overlap.
//!
//! **Computing** is measured with the model's own kernels and weights in memory. One measurement
//! runs the first layer, another the first few layers, both with the embedding and the output
//! matrix. The difference gives the time of a layer, and all other layers are assumed to be equal.
//! More than two layers are run, because the CPU's caches may keep the weights of two layers
//! between tokens, but not those of a whole model.
//!
//! **Hits**: a token needs `top_k` experts of each layer. In the pessimistic case of uniform
//! routing, the hit rate is the share of experts that have slots, whatever the eviction policy.
//! Real routing is skewed: [`Routing`] holds the results of an earlier run, adapted to other
//! budgets by one exponent.
//!
//! A prompt needs nearly all experts of each layer in turn, so cached experts are evicted before
//! they are needed again. The forecast assumes that a prompt reads all experts that it needs,
//! unless all are in memory. If an earlier run measured the bytes that a prompt reads, these count
//! instead.
//!
//! **Reading** takes the missed bytes divided by the drive's rate. The rate is measured with the
//! same number of reads in flight and of adjacent reads. In each layer with misses, the first
//! expert takes as long as a read on an idle drive. This time is measured by reading one expert
//! alone.
//!
//! **Overlap**: a layer's experts are known only after its attention, and reads overlap with
//! computing the layer's experts:
//!
//! ```text
//! token  = dense + layers without misses: experts
//!                + layers with misses: max(experts + packing, reading) + last
//! prompt = max(compute + packing, reading): reading continues while the next layer is computed
//! ```
//!
//! `dense` is everything but experts. `packing` is the time for blocks whose layout in the model
//! file differs from the kernels'. `last` is the computing of the expert that arrives last in each
//! layer with misses: it overlaps with no read. Prefetching (`--prefetch`) makes a token faster
//! than this forecast.
//!
//! ```
//! use ixc_measure::forecast::{Costs, Routing, Shape, forecast};
//! let shape = Shape { layers: 10, experts: 128, top_k: 8, bytes: 1e6, raw: 0.0, tokens: 512 };
//! let costs = Costs { dense: 0.01, experts: 0.01, prompt: 2.0, packing: 0.0, drive: 1e9, alone: 0.001 };
//! // Half of 1280 experts in memory: 40 MB to read for each token.
//! let half = forecast(&shape, &costs, 640, &Routing::default());
//! assert_eq!((half.hits, half.bytes), (0.5, 40e6));
//! assert!((half.token - (0.01 + 0.04)).abs() < 0.002);
//! ```

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ixc_files::private_files;
use ixc_runtime::engine;
use ixc_runtime::memory_estimate::Needs;
use ixc_runtime::streaming::store::CHUNK;
use ixc_targets::Target;
use serde::{Deserialize, Serialize};

use crate::bench::Bench;
use ixc_compile::cache_file;
use ixc_compile::machine::system;
use ixc_compile::model::Model;
use ixc_generate::drive::QueueDepth;
use ixc_generate::loaded_model::{LoadOptions, LoadedModel};

use crate::Error;

/// Tokens of the prompt in the forecast.
pub const PROMPT: usize = 512;
/// Tokens of decode in a measurement, and number of measurements. The lower quartile of the times
/// is used, since disturbances only increase a time.
const TOKENS: usize = 8;
const ROUNDS: usize = 8;
/// Max number of measured layers, and max bytes of their experts.
const LAYERS: usize = 8;
const LAYER_BYTES: u64 = 3 << 30;
/// Duration of the drive's measurement.
const DRIVE_TIME: Duration = Duration::from_millis(800);
/// Version of the stored results.
const VERSION: u32 = 2;

/// Properties of a model that the forecast needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    /// Layers with experts.
    pub layers: u32,
    /// Experts of a layer.
    pub experts: u32,
    /// Experts of a layer that a token uses.
    pub top_k: u32,
    /// Bytes that are read for an expert.
    pub bytes: f64,
    /// Share of experts that are packed after reading, because their layout in the file differs
    /// from the kernels'.
    pub raw: f64,
    /// Max number of tokens in a step.
    pub tokens: u32,
}

impl Shape {
    /// Returns the shape from a plan's needs, for steps of `tokens` tokens.
    pub fn from_needs(needs: &Needs, tokens: u32) -> Shape {
        let layers = needs.blocks.iter().map(|block| block.id.group + 1).max().unwrap_or(1);
        let experts = (needs.blocks.len() as u32).div_ceil(layers);
        Shape { layers, experts, top_k: needs.top_k, bytes: needs.bytes_read(), raw: needs.raw(), tokens }
    }

    /// Returns the number of all experts.
    pub fn all(&self) -> u64 {
        u64::from(self.layers) * u64::from(self.experts)
    }
}

/// Costs of the parts of a run on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Seconds for a token of decode, without experts.
    pub dense: f64,
    /// Seconds for the experts of a token.
    pub experts: f64,
    /// Seconds for a prompt of [`PROMPT`] tokens.
    pub prompt: f64,
    /// Seconds to pack a byte of a raw expert, with all threads.
    pub packing: f64,
    /// Rate of the drive in bytes per second.
    pub drive: f64,
    /// Seconds to read one expert on an idle drive.
    pub alone: f64,
}

/// Bottleneck of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The cores: experts are read faster than they are computed.
    Cores,
    /// The drive.
    Drive,
    /// Memory: all experts are in memory, so nothing is read.
    Memory,
}

/// A prediction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// Experts in memory.
    pub slots: u64,
    /// Share of needed experts that are in memory, 0 to 1.
    pub hits: f64,
    /// Bytes read for a token.
    pub bytes: f64,
    /// Seconds of computing for a token, including packing.
    pub compute: f64,
    /// Seconds of reading for a token.
    pub reading: f64,
    /// Seconds for a token of decode.
    pub token: f64,
    /// Seconds for a prompt of [`PROMPT`] tokens.
    pub prompt: f64,
    /// Bottleneck of decode.
    pub limit: Limit,
}

/// Routing of tokens to experts, if it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Routing {
    /// Evenness of routing: with a share `c` of the experts in memory, the hit rate is
    /// `c^evenness`. The value 1 means uniform routing. A power law fits a few experts that are
    /// chosen far more often than others. For two models, it predicted the hits with a second
    /// budget within 1 %.
    pub evenness: Option<f64>,
    /// Bytes of experts that a prompt of [`PROMPT`] tokens reads, relative to the bytes of all
    /// experts.
    pub prompt: Option<f64>,
}

/// Max plausible evenness: hits worse than with uniform routing mean that the cache was not yet
/// full.
const MAX_EVENNESS: f64 = 4.0;

impl Routing {
    /// Returns the evenness from a run with the share `in_memory` of experts in memory that read
    /// the share `read` of the needed bytes, both 0 to 1.
    pub fn evenness_from_reads(in_memory: f64, read: f64) -> Option<f64> {
        let inside = |part: f64| part > 0.0 && part < 1.0;
        let hits = (1.0 - read).clamp(1e-6, 1.0);
        // The logarithms need shares within (0, 1): a run with all experts in memory gives no
        // information about smaller budgets.
        inside(in_memory).then(|| hits.ln() / in_memory.ln())
    }
}

/// Predicts the speed with `slots` slots for experts.
pub fn forecast(shape: &Shape, costs: &Costs, slots: u64, routing: &Routing) -> Forecast {
    let slots = slots.min(shape.all());
    let resident = slots >= shape.all();
    let uniform = slots as f64 / shape.all().max(1) as f64;
    let hits = if resident { 1.0 } else { uniform.powf(routing.evenness.unwrap_or(1.0)) };
    let needed = f64::from(shape.layers) * f64::from(shape.top_k);
    let misses = needed * (1.0 - hits);
    let read = |misses: f64| (misses * shape.bytes, misses * shape.bytes / costs.drive.max(1.0));
    let pack = |bytes: f64| bytes * shape.raw * costs.packing;
    let (bytes, reading) = read(misses);
    let experts = costs.experts + pack(bytes);
    // Share of layers with misses. The first expert to arrive takes longer than its share of the
    // drive's rate.
    let missing = 1.0 - hits.powi(shape.top_k.min(64) as i32);
    let first = (costs.alone - shape.bytes / costs.drive.max(1.0)).max(0.0);
    let reading = reading + missing * f64::from(shape.layers) * first;
    let overlapped = (1.0 - missing) * costs.experts + reading.max(missing * costs.experts + pack(bytes));
    // The last expert of a layer to arrive overlaps with no read; it takes one expert's share of
    // the computing time.
    let last = missing * experts / f64::from(shape.top_k.max(1));
    let limit = match () {
        () if resident => Limit::Memory,
        () if reading > missing * costs.experts + pack(bytes) => Limit::Drive,
        () => Limit::Cores,
    };
    let token = costs.dense + overlapped + if resident { 0.0 } else { last };
    // Each step of a prompt needs an expert unless none of its tokens is routed to it.
    let mut left = PROMPT as u32;
    let mut distinct = 0.0;
    while left > 0 {
        let step = left.min(shape.tokens.max(1));
        let unused = (1.0 - f64::from(shape.top_k) / f64::from(shape.experts.max(1))).max(0.0).powi(step as i32);
        distinct += (1.0 - unused) * shape.all() as f64;
        left -= step;
    }
    let distinct = routing.prompt.map_or(distinct, |part| part * shape.all() as f64);
    let (prompt_bytes, prompt_reading) = read(if resident { 0.0 } else { distinct });
    let prompt = (costs.prompt + pack(prompt_bytes)).max(prompt_reading);
    Forecast { slots, hits, bytes, compute: costs.dense + experts, reading, token, prompt, limit }
}

/// Measures the cost of computing by running the first layers of a model from memory. This takes
/// some seconds, and at most a third of the free memory, or the memory of two layers.
///
/// # Errors
/// When the model cannot be compiled or run.
pub fn measure(model: Model, options: &LoadOptions, drive: &QueueDepth, shape: &Shape) -> Result<Costs, Error> {
    let layers = model.arch.hyper.layers.len().max(1);
    let layer_bytes = (shape.bytes * f64::from(shape.experts)).max(1.0) as u64;
    let free = system::memory().available.into_iter().chain(system::cgroup_left()).min().unwrap_or(LAYER_BYTES) / 3;
    let few = usize::try_from(free.min(LAYER_BYTES) / layer_bytes).unwrap_or(LAYERS).clamp(2, LAYERS).min(layers);
    // Several layers are measured first: this reads the first layer into memory, so that the
    // measurement of one layer reads nothing.
    let (several, model) = LayerTimes::measure(model, options, few)?;
    let (one, _) = LayerTimes::measure(model, options, 1)?;
    let more = (layers - 1) as f64;
    // Noise can make the difference too small: a layer takes at least as long as its experts.
    let per_layer = |several: f64, one: f64, min: f64| {
        if few > 1 { ((several - one) / (few - 1) as f64).max(min) } else { 0.0 }
    };
    let experts = several.experts / few as f64;
    let token = one.token + more * per_layer(several.token, one.token, experts);
    let experts = experts * f64::from(shape.layers);
    let prompt = one.prompt + more * per_layer(several.prompt, one.prompt, 0.0);
    // Number of adjacent chunks in a read: each of an expert's three matrices is contiguous.
    let together = (shape.bytes / 3.0 / CHUNK as f64).round().clamp(1.0, 64.0) as u32;
    let rate = drive
        .rate_of(together, DRIVE_TIME)
        .or(drive.rate)
        .ok_or_else(|| Error::NoDrive { path: drive.file.clone() })?;
    let parts = ((shape.bytes as u64 / CHUNK) as usize + 1).min(drive.depth);
    let with_one = drive.with_depth(parts).rate_of(together, DRIVE_TIME).unwrap_or(rate);
    Ok(Costs {
        alone: shape.bytes / with_one.min(rate),
        dense: (token - experts).max(0.0),
        experts: experts.min(token),
        prompt,
        packing: one.packing,
        drive: rate,
    })
}

/// Measured times of a model's first layers.
struct LayerTimes {
    token: f64,
    experts: f64,
    prompt: f64,
    packing: f64,
}

impl LayerTimes {
    /// Measures the first layers of a model. Returns these layers, whose files are open for another
    /// measurement.
    fn measure(model: Model, options: &LoadOptions, layers: usize) -> Result<(LayerTimes, Model), Error> {
        let parts = ixc_architectures::Parts { layers, ..ixc_architectures::Parts::ALL };
        let model = Model::of_parts(model.gguf, parts)?;
        let weights: u64 = model.arch.module.weights.iter().filter(|weight| weight.shape.len() == 3).map(bytes).sum();
        let context = Some((PROMPT.max(TOKENS * (ROUNDS + 1)) as u64).min(model.arch.hyper.context_length));
        let run = engine::EngineOptions { memory: Some(u64::MAX / 4), context, stats: true, ..options.run.clone() };
        let loaded = LoadedModel::of_model(&model, &LoadOptions { run, ..options.clone() })?;
        let begin = std::time::Instant::now();
        let mut bench = Bench::new(loaded)?;
        let packing = begin.elapsed().as_secs_f64() / weights.max(1) as f64;
        bench.decode(0, 1)?;
        bench.take_stats();
        let mut tokens = Vec::new();
        for _ in 0..ROUNDS {
            tokens.push(bench.decode(0, TOKENS)?.seconds / TOKENS as f64);
        }
        let token = lower_quartile(tokens);
        let stats = bench.take_stats();
        let time = |only: &dyn Fn(&str) -> bool| -> f64 {
            stats.tasks.iter().filter(|task| only(&task.label)).map(|task| task.work.time.as_secs_f64()).sum()
        };
        let part = time(&|label| label.starts_with("expert")) / time(&|_| true).max(1e-12);
        let length = PROMPT.min(bench.model().context());
        let prompts: Result<Vec<f64>, Error> =
            (0..2).map(|_| Ok(bench.prefill(0, length)?.seconds * PROMPT as f64 / length as f64)).collect();
        let prompt = prompts?.into_iter().fold(f64::INFINITY, f64::min);
        Ok((LayerTimes { token, experts: token * part, prompt, packing }, model))
    }
}

fn bytes(weight: &ixc_ir::graph::Weight) -> u64 {
    let row = weight.shape.last().and_then(|&len| weight.format.row_bytes(len)).unwrap_or(0);
    weight.shape.iter().rev().skip(1).fold(row, |product, &dim| product.saturating_mul(dim))
}

/// Returns the lower quartile.
fn lower_quartile(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() / 4).copied().unwrap_or(0.0)
}

/// Stored measurements of a model; later runs compare themselves with the forecast.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredForecast {
    version: u32,
    measured: u64,
    model: String,
    /// Number of threads of the measurement.
    pub threads: usize,
    target: String,
    /// Properties of the model on which its times depend.
    pub shape: Shape,
    /// Costs measured on the machine.
    pub costs: Costs,
    /// Routing in earlier runs.
    #[serde(default)]
    pub routing: Routing,
}

impl StoredForecast {
    /// Stores the measurements.
    ///
    /// # Errors
    /// Returns the reason as text if the file cannot be written.
    pub fn keep(path: &Path, threads: usize, target: Target, shape: Shape, costs: Costs) -> Result<PathBuf, String> {
        let model = name(path).ok_or("the model is not a file")?;
        let file = file(&model).ok_or("there is no folder for the forecast: neither XDG_CACHE_HOME nor HOME is set")?;
        let (measured, target) = (cache_file::seconds(SystemTime::now()), target.name().to_owned());
        // The routing belongs to the model, and not to this measurement.
        let routing = StoredForecast::routing(path);
        let what = StoredForecast { version: VERSION, measured, model, threads, target, shape, costs, routing };
        cache_file::write(&file, &what).map(|()| file.clone()).map_err(|error| format!("{}: {error}", file.display()))
    }

    /// Returns the routing in earlier runs of a model, with any threads and target.
    pub fn routing(path: &Path) -> Routing {
        let found = || -> Option<StoredForecast> {
            let model = name(path)?;
            let found: StoredForecast = cache_file::read(&file(&model)?).ok()??;
            let Routing { evenness, prompt } = found.routing;
            let is_right = evenness.is_none_or(|evenness| (0.0..=MAX_EVENNESS).contains(&evenness))
                && prompt.is_none_or(|part| (0.0..=64.0).contains(&part));
            (is_right && found.version == VERSION && found.model == model).then_some(found)
        };
        found().map(|found| found.routing).unwrap_or_default()
    }

    /// Stores a run's routing for the next `ixc plan`. Write errors are ignored.
    pub fn learn(&self, evenness: Option<f64>, prompt: Option<f64>) {
        let routing = Routing {
            evenness: evenness.map(|found| found.min(MAX_EVENNESS)).or(self.routing.evenness),
            prompt: prompt.or(self.routing.prompt),
        };
        if let Some(file) = file(&self.model).filter(|_| routing != self.routing)
            && let Err(error) = cache_file::write(&file, &StoredForecast { routing, ..self.clone() })
        {
            tracing::debug!(%error, "the measured routing of experts cannot be saved");
        }
    }

    /// Returns the stored measurements of a model for this number of threads and this target, if
    /// there are any.
    pub fn load(path: &Path, threads: usize, target: Target) -> Option<StoredForecast> {
        let model = name(path)?;
        let found: StoredForecast = cache_file::read(&file(&model)?).ok()??;
        let costs = [
            found.costs.dense,
            found.costs.experts,
            found.costs.prompt,
            found.costs.packing,
            found.costs.drive,
            found.costs.alone,
        ];
        let is_right = costs.iter().all(|cost| (0.0..1e15).contains(cost))
            && (0.0..1e15).contains(&found.shape.bytes)
            && (0.0..=1.0).contains(&found.shape.raw);
        let fits = found.version == VERSION
            && found.model == model
            && found.threads == threads
            && found.target == target.name()
            && cache_file::is_recent(found.measured, SystemTime::now());
        let routing = StoredForecast::routing(path);
        (is_right && fits).then_some(StoredForecast { routing, ..found })
    }
}

/// Returns a text that identifies a model: its path, length and modification time.
fn name(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let facts = std::fs::metadata(&path).ok()?;
    let changed = facts.modified().map(cache_file::seconds).unwrap_or(0);
    Some(format!("{} {} {changed}", path.display(), facts.len()))
}

fn file(model: &str) -> Option<PathBuf> {
    Some(private_files::folder()?.join(format!("costs-{:08x}.json", crc32fast::hash(model.as_bytes()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { layers: 48, experts: 128, top_k: 8, bytes: 2.6e6, raw: 0.0, tokens: 512 };
    const COSTS: Costs = Costs { dense: 0.02, experts: 0.03, prompt: 5.0, packing: 0.0, drive: 1e9, alone: 2.6e-3 };

    #[test]
    fn forecast_improves_with_memory_up_to_core_speed() {
        let all = SHAPE.all();
        let rows: Vec<Forecast> =
            (0..=16).map(|part| forecast(&SHAPE, &COSTS, all * part / 16, &Routing::default())).collect();
        assert!(rows.windows(2).all(|pair| pair[0].token >= pair[1].token && pair[0].prompt >= pair[1].prompt));
        let last = rows.last().unwrap();
        assert_eq!((last.token, last.prompt, last.bytes), (0.05, 5.0, 0.0));
        assert_eq!((last.limit, rows[0].limit), (Limit::Memory, Limit::Drive));
        // Nothing in memory: 384 experts of 2.6 MB for each token, at 1 GB/s.
        assert!((rows[0].reading - 0.9984).abs() < 1e-9 && rows[0].hits == 0.0);
        assert!(rows[0].token > rows[0].reading + COSTS.dense);
        // A prompt reads every expert once.
        assert!((rows[8].prompt - 6144.0 * 2.6e-3).abs() < 0.01, "{}", rows[8].prompt);
    }

    #[test]
    fn forecast_uses_measured_hits_and_packing_costs() {
        // A quarter of the experts is in memory, and a tenth of the needed experts is read.
        let evenness = Routing::evenness_from_reads(0.25, 0.1);
        let routing = Routing { evenness, prompt: Some(0.5) };
        let known = forecast(&SHAPE, &COSTS, SHAPE.all() / 4, &routing);
        assert!((known.bytes - 38.4 * 2.6e6).abs() < 1.0 && (known.hits - 0.9).abs() < 1e-9);
        assert!((known.prompt - 3072.0 * 2.6e-3).abs() < 1e-6);
        let slow = forecast(&Shape { raw: 1.0, ..SHAPE }, &Costs { packing: 1e-9, ..COSTS }, SHAPE.all() / 4, &routing);
        assert!(slow.compute > known.compute && slow.token >= known.token);
        // The read of a single expert takes longer than its share of many reads: once for each
        // layer with misses.
        let alone = forecast(&SHAPE, &Costs { alone: 3.6e-3, ..COSTS }, SHAPE.all() / 4, &routing);
        let missing = 48.0 * (1.0 - 0.9f64.powi(8));
        assert!((alone.reading - known.reading - missing * 1e-3).abs() < 1e-9);
        assert!((alone.token - known.token - missing * 1e-3).abs() < 1e-9);
        // With an infinitely fast drive, only the last expert of a layer has no overlap.
        let fast = forecast(&SHAPE, &Costs { drive: 1e15, alone: 0.0, ..COSTS }, 0, &Routing::default());
        assert_eq!((fast.limit, fast.token), (Limit::Cores, 0.05 + 0.03 / 8.0));
        assert!(Routing::evenness_from_reads(0.25, 0.75).is_some_and(|uniform| (uniform - 1.0).abs() < 1e-9));
        assert_eq!((Routing::evenness_from_reads(1.0, 0.0), Routing::evenness_from_reads(0.5, 0.0)), (None, Some(0.0)));
        // More bytes read than needed: the cache was still filling.
        assert!(Routing::evenness_from_reads(0.5, 2.0).is_some_and(|found| found > MAX_EVENNESS));
    }
}
