//! `ixc bench --defer`: measures the same tokens with and without deferral, in turn, and the
//! divergence of the logits.
//!
//! Each measurement opens the model anew. So only one of the two models (with and without deferral)
//! is in memory, and each begins without experts in memory.

use std::path::Path;

use ixc_compile::bytes_per_token::Traffic;
use ixc_compile::compile;
use ixc_generate::loaded_model::LoadOptions;
use ixc_measure::kl_divergence::Divergence;
use ixc_runtime::engine;
use ixc_runtime::streaming::predict::{PredictionSettings, StrategyChoice};
use serde::Serialize;

use super::report::Report;
use super::{Args, Rounds, Row, Work, open};
use crate::divergence::{ModelSetup, TEXT, compare, divergence_text};
use crate::tokenize::read;

/// Effect of deferral on speed and logits.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Deferral {
    /// Number of deferred experts of a token.
    pub experts: u32,
    /// Median rate with deferral relative to that without.
    pub ratio: f64,
    /// Divergence of the logits from those without deferral.
    pub divergence: Divergence,
}

/// Measures each kind of work with and without deferral, and prints the rows and the divergence of
/// the logits. `positions` is the number of positions whose logits are compared.
///
/// # Errors
/// When a session cannot be opened or run, or the text has no tokens.
pub fn measure(
    args: &Args,
    path: Option<&Path>,
    options: &LoadOptions,
    works: &[Work],
    traffic: Option<Traffic>,
    positions: usize,
    report: &mut Report<'_>,
) -> anyhow::Result<()> {
    let defer = args.streaming.defer();
    // `auto` is replaced by `off`, because the two sessions could choose different predictors.
    let prefetch = match options.run.prefetch.choice {
        StrategyChoice::Auto => PredictionSettings { choice: StrategyChoice::Off, ..options.run.prefetch },
        StrategyChoice::Off | StrategyChoice::Always(_) => options.run.prefetch,
    };
    let ways = [0, defer].map(|defer| LoadOptions {
        compile: compile::CompileOptions { defer, ..options.compile.clone() },
        run: engine::EngineOptions { prefetch, ..options.run.clone() },
        ..options.clone()
    });
    let text = args.text.as_ref().map_or_else(|| Ok(TEXT.to_owned()), |file| read(file))?;
    let divergence =
        compare(ModelSetup { path, options: &ways[0] }, ModelSetup { path, options: &ways[1] }, positions, &text)?;
    report.begin()?;
    for &work in works {
        let mut all = [Rounds::default(), Rounds::default()];
        let mut measured: [Option<Row>; 2] = [None, None];
        for _ in 0..args.repetitions {
            for ((way, all), measured) in ways.iter().zip(&mut all).zip(&mut measured) {
                let mut bench = open(path, way)?;
                let rounds = args.rounds(&mut bench, work, 1)?;
                all.rates.extend(rounds.rates);
                all.streamed += rounds.streamed;
                let mut row = Row::new(bench.model(), work, traffic, all.rates.clone());
                row.bytes_read_per_token = all.bytes_per_token(work.tokens);
                *measured = Some(row);
            }
        }
        let [Some(off), Some(mut on)] = measured else { continue };
        on.deferral = Some(Deferral { experts: defer, ratio: on.median / off.median, divergence });
        for row in [off, on] {
            report.row(row)?;
        }
    }
    Ok(report.say(&format!("{defer} deferred, {}", divergence_text(&divergence)))?)
}
