//! How well reading and computing overlap, with drives of known rates: `cargo run --release --example overlap -- plan.ixp 30,50 400,1600`.
//!
//! The plan is one that `ixc compile --memory 1MiB --prefetch router --prefetch-extra 8 --pack` wrote. The same tokens, drawn at random, are fed
//! one by one with all experts in memory, and with memory for a part of them, in percent, from drives of so many megabytes per second. Such a
//! drive is the page cache, slowed down (`Pread::paced`), so that no other user of the real one is measured: the file has to fit in
//! memory twice. What the cache costs, a copy by the CPUs of all that is read, a real drive does not. Each run goes through the tokens twice,
//! and the second time counts. A fourth argument is the number of tokens.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ixc::runtime::engine::{Engine, Options};
use ixc::runtime::file;
use ixc::runtime::stream::drive;
use ixc::runtime::stream::pread::Pread;
use ixc::runtime::stream::predict::{Choice, Settings};
use ixc::runtime::stream::queue::Queue;
use ixc::runtime::stream::store::{Config, Make};

const ROUNDS: usize = 3;
const DEPTH: usize = 16;
/// Experts that early routers name beyond as many as a token needs.
const EXTRA: u32 = 8;

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
    let mut random = 1u64;
    let mut draw = || {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((random >> 33) % u64::from(plan.vocabulary.max(1))) as u32
    };
    let tokens: Vec<u32> = (0..count).map(|_| draw()).collect();
    // Milliseconds of a token, and bytes that were read for it.
    let run = |budget: f64, rate: Option<f64>, choice: Choice| -> Result<(f64, f64), Box<dyn std::error::Error>> {
        let paced = move |queue: &Queue| -> Box<dyn drive::Backend> {
            let pread = Pread::paced(Arc::clone(queue.files()), DEPTH, rate.unwrap_or(f64::INFINITY));
            Box::new(pread.expect("threads to read with"))
        };
        let (drive, backend) = (drive::Options::of_depth(DEPTH), Some(Make(Arc::new(paced))));
        let stream = Config { budget: budget as u64, drive, backend, direct: false, ..Config::default() };
        let options = Options {
            stream,
            prefetch: Settings { choice, extra: EXTRA },
            context: Some(2 * count as u32),
            skip_weight_check: true,
            ..Options::default()
        };
        let mut engine = Engine::load_file(file::open(path)?, path.parent().unwrap_or(path), &options)?;
        let read = |engine: &Engine| engine.stream().map_or(0, |store| store.bytes_read());
        tokens.iter().try_for_each(|token| engine.step(&[*token], &[]).map(drop))?;
        let (begin, before) = (Instant::now(), read(&engine));
        tokens.iter().try_for_each(|token| engine.step(&[*token], &[]).map(drop))?;
        let each = 1.0 / count as f64;
        Ok((begin.elapsed().as_secs_f64() * 1e3 * each, (read(&engine) - before) as f64 * each))
    };
    // From now on it is in the page cache.
    std::io::copy(&mut std::fs::File::open(path)?, &mut std::io::sink())?;
    println!("experts in memory, drive, read ahead: a token, computing alone, reading alone, times the larger");
    for round in 0..ROUNDS {
        println!("round {}", round + 1);
        for &part in &numbers(parts)? {
            let (computing, _) = run(experts as f64 * 1.1, None, Choice::Off)?;
            for &rate in &numbers(rates)? {
                for choice in ["off", "router"] {
                    let (token, bytes) = run(experts as f64 * part / 100.0, Some(rate * 1e6), choice.parse()?)?;
                    let reading = bytes / (rate * 1e3);
                    println!(
                        "{part:>3} %  {rate:>5} MB/s  {choice:<7} {token:7.1} ms  {computing:7.1} ms  {reading:7.1} ms  {:5.2}",
                        token / computing.max(reading)
                    );
                }
            }
        }
    }
    Ok(())
}
