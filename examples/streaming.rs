//! Compares cache policies and predictors on a text:
//! `cargo run --release --example streaming -- plan.ixp text.txt 25`.
//!
//! The plan comes from `ixc compile --memory 1MiB --prefetch router`, so its experts are blocks.
//! The text is computed token by token, so all policies see the same experts in the same order. The
//! last argument is the share of the experts that memory holds, in percent; without it, several
//! shares run.

use std::path::Path;
use std::time::Instant;

use ixc::compile::decode_tokenizer;
use ixc::runtime::engine::{Engine, EngineOptions};
use ixc::runtime::file;
use ixc::runtime::streaming::cache::Kind;
use ixc::runtime::streaming::predict::{PredictionSettings, StrategyChoice, Tally};
use ixc::runtime::streaming::store::{Config, stats::GroupStats};
use ixc::text::tokenizer::Tokenizer;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, text, parts @ ..] = &arguments[..] else { return Err("a plan and a text are needed".into()) };
    let path = Path::new(path);
    let parts: Vec<u64> = match parts {
        [] => vec![15, 25, 50, 75],
        parts => parts.iter().map(|part| part.parse()).collect::<Result<_, _>>()?,
    };
    let plan = file::open(path)?.plan;
    let tokens = Tokenizer::new(&decode_tokenizer(&plan.tokenizer)?)?.encode(&std::fs::read_to_string(text)?, true)?;
    let tokens = &tokens[..tokens.len().min(plan.context_length as usize).min(2048)];
    let bytes = plan.block_bytes().ok_or("the plan's experts are no blocks")?;
    let run = |part: u64, policy, choice| -> Result<Engine, Box<dyn std::error::Error>> {
        let stream = Config { budget: bytes * part / 100, policy, ..Config::default() };
        let prefetch = PredictionSettings { choice, extra: 0 };
        let context = Some(tokens.len() as u64);
        let options = EngineOptions { stream, prefetch, context, ..EngineOptions::default() };
        let mut engine = Engine::load_file(file::open(path)?, path.parent().unwrap_or(path), &options)?;
        let begin = Instant::now();
        tokens.iter().try_for_each(|token| engine.step(&[*token], &[]).map(drop))?;
        let time = begin.elapsed().as_secs_f64() * 1e3 / tokens.len().max(1) as f64;
        let all = GroupStats::sum(engine.stream().map(|store| store.stats().groups).iter().flatten());
        println!(
            "{part:>3} %  {:<8} {choice:<10} {:5.1} % in memory, {time:6.3} ms/token",
            policy.name(),
            100.0 * all.hit_rate()
        );
        Ok(engine)
    };
    println!("{} tokens, experts of {:.1} MiB", tokens.len(), bytes as f64 / f64::from(1 << 20));
    for &part in &parts {
        for (_, policy) in Kind::ALL {
            run(part, policy, StrategyChoice::Off)?;
        }
        for choice in ["off", "previous", "frequency", "router", "auto"] {
            let engine = run(part, Kind::default(), choice.parse()?)?;
            let Some(report) = engine.predictions().filter(|_| choice == "off") else { continue };
            for (strategy, layers) in report.tallies {
                for (layer, tally) in layers.iter().enumerate().filter(|(_, tally)| **tally != Tally::default()) {
                    let (recall, precision) = (100.0 * tally.recall(), 100.0 * tally.precision());
                    println!(
                        "       {strategy:<10} layer {layer:<3} recall {recall:3.0} %, precision {precision:3.0} %"
                    );
                }
            }
        }
    }
    Ok(())
}
