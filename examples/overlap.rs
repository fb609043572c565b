//! Measures how well reading and computing overlap, with drives of known rates:
//! `cargo run --release --example overlap -- plan.ixp 30,50 400,1600`.
//!
//! The plan comes from `ixc compile --memory 1MiB --prefetch router --prefetch-extra 8 --pack`. The
//! arguments are the memory for experts in percent, the drives' rates in megabytes per second, and
//! optionally the number of tokens. For each memory size, the first run has all experts in memory,
//! and further runs read from each drive. Every run computes the same random tokens one by one. It
//! goes through the tokens twice, and only the second time is measured.
//!
//! The drives are simulated by the page cache with a limited rate (`ThreadedReader::with_rate`), so
//! that other users of the real drive do not disturb the measurement. The file has to fit in memory
//! twice. With the page cache, the CPUs copy all bytes that are read; a real drive needs no copy.
//!
//! Each token's time is printed with three lower bounds, which are computed layer by layer from the
//! experts that the run had to read. The bounds assume that a layer's experts are known when the
//! layer begins, one layer earlier, and a whole token earlier. They also assume that all layers
//! take the same time and that the plan does not defer. They ignore three effects: attention may
//! overlap the reads of its own layer, drives have latency, and some reads are useless.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ixc::runtime::engine::{Engine, EngineOptions};
use ixc::runtime::file;
use ixc::runtime::streaming::backend::Backend;
use ixc::runtime::streaming::drive;
use ixc::runtime::streaming::predict::{PredictionSettings, StrategyChoice};
use ixc::runtime::streaming::queue::Queue;
use ixc::runtime::streaming::store::{BackendFactory, Config};
use ixc::runtime::streaming::threaded_reader::ThreadedReader;

const ROUNDS: usize = 3;
const DEPTH: usize = 16;
/// Experts that early routers predict in addition to the number that a token needs.
const EXTRA: u32 = 8;

/// Measurements of a run.
struct Run {
    /// Time of a token, in milliseconds.
    token: f64,
    /// Bytes that a token reads.
    bytes: f64,
    /// Number of chosen experts that had to be read, before or after they were chosen: one entry
    /// per token and layer.
    missed: Vec<u64>,
}

/// Returns the least time of all layers, one after the other, in milliseconds.
///
/// Computing takes `layer` in each layer. Reading takes `block` for each of a layer's `missed`
/// experts, and can begin when the layer `ahead` layers earlier begins.
fn least(missed: &[u64], layer: f64, block: f64, ahead: usize) -> f64 {
    let (mut begins, mut now, mut drive) = (Vec::with_capacity(missed.len()), 0.0f64, 0.0f64);
    for (i, &missed) in missed.iter().enumerate() {
        begins.push(now);
        now += layer;
        if missed > 0 {
            drive = drive.max(begins[i.saturating_sub(ahead)]) + missed as f64 * block;
            now = now.max(drive);
        }
    }
    now
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, parts, rates, rest @ ..] = &arguments[..] else {
        return Err("a plan, parts and rates are needed".into());
    };
    let path = Path::new(path);
    let numbers = |list: &str| list.split(',').map(str::parse).collect::<Result<Vec<f64>, _>>();
    let count = rest.first().map_or(Ok(48), |count| count.parse())?;
    let plan = file::open(path)?.plan;
    let experts = plan.block_bytes().ok_or("the plan's experts are no blocks")?;
    let layers = plan.expert_groups.len();
    let block = experts as f64 / plan.expert_groups.iter().map(|group| f64::from(group.experts)).sum::<f64>();
    let mut random = 1u64;
    let mut draw = || {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((random >> 33) % u64::from(plan.vocabulary.max(1))) as u32
    };
    let tokens: Vec<u32> = (0..count).map(|_| draw()).collect();
    let run = |budget: f64, rate: Option<f64>, choice: StrategyChoice| -> Result<Run, Box<dyn std::error::Error>> {
        let paced = move |queue: &Queue| -> Box<dyn Backend> {
            let reader = ThreadedReader::with_rate(Arc::clone(queue.files()), DEPTH, rate.unwrap_or(f64::INFINITY));
            Box::new(reader.expect("threads to read with"))
        };
        let (drive, backend) = (drive::DriveOptions::of_depth(DEPTH), Some(BackendFactory(Arc::new(paced))));
        let stream = Config { budget: budget as u64, drive, backend, direct: false, ..Config::default() };
        let options = EngineOptions {
            stream,
            prefetch: PredictionSettings { choice, extra: EXTRA },
            context: Some(2 * count as u64),
            skip_weight_check: true,
            ..EngineOptions::default()
        };
        let mut engine = Engine::load_file(file::open(path)?, path.parent().unwrap_or(path), &options)?;
        let read = |engine: &Engine| engine.stream().map_or(0, |store| store.bytes_read());
        tokens.iter().try_for_each(|token| engine.step(&[*token], &[]).map(drop))?;
        let (mut took, mut missed, before) = (Duration::ZERO, Vec::new(), read(&engine));
        let waited_for = |engine: &Engine| -> Vec<u64> {
            let stats = engine.stream().map(|store| store.stats().groups).unwrap_or_default();
            stats.iter().map(|layer| layer.misses + layer.on_the_way + layer.foreseen).collect()
        };
        for token in &tokens {
            let (waited, begin) = (waited_for(&engine), Instant::now());
            engine.step(&[*token], &[])?;
            took += begin.elapsed();
            missed.extend(waited_for(&engine).iter().zip(waited).map(|(now, before)| now - before));
        }
        let each = 1.0 / count as f64;
        Ok(Run { token: took.as_secs_f64() * 1e3 * each, bytes: (read(&engine) - before) as f64 * each, missed })
    };
    // Reading the file once puts it in the page cache.
    std::io::copy(&mut std::fs::File::open(path)?, &mut std::io::sink())?;
    println!("experts in memory, drive, read ahead: a token, computing alone, reading alone, times the larger;");
    println!("about the least when experts are known as their layer begins, one layer earlier, a token earlier");
    for round in 0..ROUNDS {
        println!("round {}", round + 1);
        for &part in &numbers(parts)? {
            let computing = run(experts as f64 * 1.1, None, StrategyChoice::Off)?.token;
            for &rate in &numbers(rates)? {
                for choice in ["off", "router"] {
                    let run = run(experts as f64 * part / 100.0, Some(rate * 1e6), choice.parse()?)?;
                    let reading = run.bytes / (rate * 1e3);
                    print!(
                        "{part:>3} %  {rate:>5} MB/s  {choice:<7} {:7.1} ms  {computing:7.1} ms  {reading:7.1} ms  {:5.2} ",
                        run.token,
                        run.token / computing.max(reading)
                    );
                    for ahead in [0, 1, layers] {
                        let all = least(&run.missed, computing / layers as f64, block / (rate * 1e3), ahead);
                        print!("  {:7.1} ms", all / count as f64);
                    }
                    println!();
                }
            }
        }
    }
    Ok(())
}
