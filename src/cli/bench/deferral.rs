//! `ixc bench --defer`: the same tokens with and without deferral, in turn, and how far the logits are apart.
//!
//! Each measurement opens the model anew, so that only one of the two is in memory and both begin with the same experts there: none.

use std::path::Path;

use ixc::bytes_per_token::Traffic;
use ixc::compile;
use ixc::kl_divergence::{Divergence, divergence};
use ixc::model::is_plan;
use ixc::runtime::engine;
use ixc::runtime::stream::predict::{Choice, Settings};
use ixc::session::{Session, SessionOptions};
use serde::Serialize;

use super::report::Report;
use super::{Args, Rounds, Row, Work, open};
use crate::cli::output::counted;
use crate::cli::tokenize::read;
use crate::cli::{BadInput, choose};

/// A text to compare at, where none is given.
const TEXT: &str = "The river had been rising since the morning, and by noon the lower road was under water. Nobody in the village \
was surprised: it had done so every spring that anyone could remember, and the houses stood on the hill for that reason. The miller \
counted the sacks that were still dry, wrote the number on the door with a piece of chalk, and went to look for his brother, who had \
promised to bring the cart before the bridge was closed. In the schoolroom the children were asked to work out how long it would take \
to fill a barrel of 120 litres from a pipe that gives 8 litres a minute, if a tap at the bottom lets out 3. Most of them answered 24 \
minutes; one said that it depended on who was watching the tap.";
/// Positions that are compared at most, and bytes of the logits that are kept for it.
const MOST_POSITIONS: usize = 256;
const MOST_BYTES: usize = 64 << 20;

/// What deferral brought.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Deferral {
    /// Experts of a token that are deferred.
    pub experts: u32,
    /// Median rate with deferral over that without.
    pub ratio: f64,
    /// How far the logits are from those without.
    pub divergence: Divergence,
}

/// Measures all works with and without deferral, and prints rows and divergence.
///
/// # Errors
/// When a session cannot be opened or run, or the text has no tokens.
pub fn measure(
    args: &Args,
    path: Option<&Path>,
    options: &SessionOptions,
    works: &[Work],
    traffic: Option<Traffic>,
    report: &mut Report<'_>,
) -> anyhow::Result<()> {
    let defer = args.streaming.defer();
    if path.is_some_and(is_plan) {
        return Err(ixc::Error::PlanDefers.into());
    }
    // What is measured to pay may differ from one session to the next.
    let prefetch = match options.run.prefetch.choice {
        Choice::Auto => Settings { choice: Choice::Off, ..options.run.prefetch },
        Choice::Off | Choice::Always(_) => options.run.prefetch,
    };
    let ways = [0, defer].map(|defer| SessionOptions {
        compile: compile::Options { defer, ..options.compile.clone() },
        run: engine::Options { prefetch, ..options.run.clone() },
        ..options.clone()
    });
    let text = args.text.as_ref().map_or_else(|| Ok(TEXT.to_owned()), |file| read(file))?;
    let model = args.model.open()?;
    let positions = usize::try_from(model.arch.hyper.context_length).unwrap_or(MOST_POSITIONS).min(MOST_POSITIONS);
    drop(model);
    let divergence = compare(path, &ways, positions, &text)?;
    for &work in works {
        let mut all = [Rounds::default(), Rounds::default()];
        let mut measured: [Option<Row>; 2] = [None, None];
        for _ in 0..args.repetitions {
            for ((way, all), measured) in ways.iter().zip(&mut all).zip(&mut measured) {
                let mut bench = open(path, way)?;
                let rounds = args.rounds(&mut bench, work, 1)?;
                all.rates.extend(rounds.rates);
                all.streamed += rounds.streamed;
                let mut row = Row::new(bench.session(), work, traffic, all.rates.clone());
                row.bytes_read_per_token = all.bytes_per_token(work);
                *measured = Some(row);
            }
        }
        let [Some(off), Some(mut on)] = measured else { continue };
        on.deferral = Some(Deferral { experts: defer, ratio: on.median / off.median, divergence });
        for row in [off, on] {
            report.row(row)?;
        }
    }
    Ok(report.say(&format!(
        "{defer} deferred, over {} of text: divergence {:.5} nats on average, {:.5} at most; the same likeliest token at {:.1} %",
        counted(divergence.positions as u64, "token"),
        divergence.mean,
        divergence.max,
        100.0 * divergence.agreement
    ))?)
}

/// The divergence of the second way's logits from the first's.
fn compare(
    path: Option<&Path>,
    ways: &[SessionOptions; 2],
    positions: usize,
    text: &str,
) -> anyhow::Result<Divergence> {
    let context = Some(choose::positions(positions));
    let short = |way: &SessionOptions| {
        Session::open(path, &SessionOptions { run: engine::Options { context, ..way.run.clone() }, ..way.clone() })
    };
    let mut session = short(&ways[0])?;
    let row = session.vocabulary().max(1);
    let mut tokens = session.encode_prompt(text)?;
    tokens.truncate(positions.min(MOST_BYTES / 4 / row).max(1));
    if tokens.is_empty() {
        return Err(BadInput("the text has no tokens to compare logits at".into()).into());
    }
    let right = session.logits(&tokens)?;
    drop(session);
    let other = short(&ways[1])?.logits(&tokens)?;
    let found = divergence(&right, &other, row);
    found.ok_or_else(|| BadInput("the logits of this model are not all numbers".into()).into())
}
