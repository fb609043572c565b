//! Report on streamed experts, for `--stats`.
//!
//! The rate of reading experts is given as a share of the drive's own rate. The own rate is that of
//! reads of the same size and queue depth, at random places of the same file, past the page cache.
//! It is measured before and after the run, since a drive's speed changes.

use std::time::Duration;

use ixc_compile::machine::system;
use ixc_generate::drive::{DepthOrigin, QueueDepth};
use ixc_generate::timing::{Overlap, Phase};
use ixc_measure::forecast::{PROMPT, Routing, StoredForecast, forecast};
use ixc_runtime::engine::Engine;
use ixc_runtime::page_cache_hints::AdviceCounts;
use ixc_runtime::streaming::counters::Counters;
use ixc_runtime::streaming::predict::{Report, Strategy, Tally};
use ixc_runtime::streaming::store::stats::{GroupStats, Stats};
use ixc_runtime::streaming::store::{CHUNK, ExpertCache};
use serde_json::{Value as Json, json};

use super::output::{Bytes, Printable, counted, fact};
use super::ranges::Ranges;
use super::stats_line::{print_more, stat};

/// Returns the difference of the counts since `before`; the use of slots is the current one.
pub fn stats_since(mut stats: Stats, before: &Stats) -> Stats {
    for (now, then) in stats.groups.iter_mut().zip(&before.groups) {
        for (now, then) in [
            (&mut now.hits, then.hits),
            (&mut now.foreseen, then.foreseen),
            (&mut now.on_the_way, then.on_the_way),
            (&mut now.misses, then.misses),
            (&mut now.failures, then.failures),
            (&mut now.bytes, then.bytes),
            (&mut now.predicted_bytes, then.predicted_bytes),
            (&mut now.right_bytes, then.right_bytes),
            (&mut now.wasted_bytes, then.wasted_bytes),
            (&mut now.cancelled, then.cancelled),
        ] {
            *now = now.saturating_sub(then);
        }
        now.stall = now.stall.saturating_sub(then.stall);
    }
    stats.drive = stats.drive.since(&before.drive);
    stats
}

/// Prints the report on streamed experts: hits, bytes read and their rate, the time that threads
/// waited, and its share of decode.
pub fn note(store: &ExpertCache, stats: &Stats, decode: &Phase, threads: usize) {
    let report = store.report();
    let all = GroupStats::sum(&stats.groups);
    let requested = all.hits + all.on_the_way + all.misses;
    stat!(
        Experts,
        "{requested} requested: {:.1} % cached, {:.1} % being read, {:.1} % missed",
        100.0 * all.hit_rate(),
        100.0 * all.on_the_way as f64 / requested.max(1) as f64,
        100.0 * all.misses as f64 / requested.max(1) as f64
    );
    stat!(Cache, "{} for experts", Bytes(store.bytes()));
    let pinned: u32 = store.blocks_by_group().iter().map(|held| held.kept).sum();
    if pinned > 0 {
        stat!(Pinned, "{}", counted(pinned.into(), "expert"));
    }
    let drive = &stats.drive;
    let read = drive.routed.bytes + drive.predicted.bytes;
    let rate = |bytes: u64, time: Duration| if time.is_zero() { 0.0 } else { bytes as f64 / time.as_secs_f64() / 1e9 };
    stat!(Drive, "{} read by {}", Bytes(read), report.backend);
    stat!(
        Drive,
        "{:.2} GB/s while reading, {:.2} GB/s while reading missed experts",
        rate(read, drive.busy),
        rate(drive.bytes_while_routed, drive.busy_routed)
    );
    if all.predicted_bytes > 0 {
        let part = |bytes: u64| 100.0 * bytes as f64 / all.predicted_bytes as f64;
        stat!(
            Predicted,
            "{} prefetched: {:.1} % used, {:.1} % evicted unused",
            Bytes(all.predicted_bytes),
            part(all.right_bytes),
            part(all.wasted_bytes)
        );
    }
    let stall = all.stall.as_secs_f64();
    stat!(
        Stall,
        "{:.2} s per thread waiting for experts, {stall:.2} s over {}",
        stall / threads.max(1) as f64,
        counted(threads as u64, "thread")
    );
    if let Some(Overlap { reading, hidden }) = decode.overlap(threads) {
        stat!(
            Overlap,
            "the drive read during {:.0} % of decode; computing hid {:.0} % of that time",
            100.0 * reading,
            100.0 * hidden
        );
    }
    if let Some(cpus) = &report.cpus {
        stat!(Drive, "the reading thread runs near the drive, on CPUs {}", Ranges(cpus));
    }
    for text in &report.notes {
        stat!(Drive, "{}", Printable(text));
    }
}

/// Prints the accuracy of each predictor, used or not, for every layer and for all layers.
pub fn predictions(report: &Report) {
    // Prefill alone makes no predictions.
    let used: Vec<_> =
        report.tallies.iter().filter(|(_, layers)| layers.iter().any(|tally| tally.predicted > 0)).collect();
    if used.is_empty() {
        return;
    }
    stat!(Prefetch, "{}", report.now);
    let lost = report.decision.iter().flat_map(|decided| &decided.rejected);
    lost.for_each(|(what, why)| print_more(format_args!("rejected {what}: {why}")));
    used.chunks(STRATEGIES_ABREAST).for_each(scores);
}

/// Predictors next to each other in a table that fits in 80 columns.
const STRATEGIES_ABREAST: usize = 2;

/// Prints a table of the scores of these predictors.
fn scores(strategies: &[&(Strategy, Vec<Tally>)]) {
    let row = |label: &str, cells: Vec<String>| fact!("{}", format!("{label:<9}{}", cells.join("  ")).trim_end());
    row("", strategies.iter().map(|(strategy, _)| format!("{:<34}", strategy.to_string())).collect());
    let heads = format!("{:>6} {:>9} {:>9} {:>7}", "recall", "precision", "useless", "avoided");
    row("", vec![heads; strategies.len()]);
    let layers = strategies.iter().map(|(_, layers)| layers.len()).max().unwrap_or(0);
    for layer in 0..layers {
        let cells = strategies.iter().map(|(_, tallies)| tallies.get(layer).map_or_else(String::new, cell));
        row(&format!("layer {layer}"), cells.collect());
    }
    let sum = |tallies: &[Tally]| {
        let mut all = Tally::default();
        tallies.iter().for_each(|tally| all += *tally);
        cell(&all)
    };
    row("all", strategies.iter().map(|(_, tallies)| sum(tallies)).collect());
}

/// Returns the results of expert prediction since the model was loaded, as JSON. They contain the
/// predictor in use, the rejected ones, prefetched experts, and the accuracy of every predictor for
/// each layer and for all layers. `None` if no expert is streamed.
pub fn facts(engine: &Engine) -> Option<Json> {
    let (store, report) = (engine.stream()?, engine.predictions()?);
    let read = GroupStats::sum(&store.stats().groups);
    let rejected = |(what, why): &(String, String)| json!({ "what": what, "why": why });
    let decided = report.decision.as_ref().map(|decided| {
        json!({
            "chosen": decided.chosen,
            "why": decided.why,
            "rejected": decided.rejected.iter().map(rejected).collect::<Vec<_>>(),
        })
    });
    let strategy = |(strategy, layers): &(Strategy, Vec<Tally>)| {
        let mut all = Tally::default();
        layers.iter().for_each(|tally| all += *tally);
        json!({
            "strategy": strategy.to_string(),
            "all": tally_facts(&all),
            "layers": layers.iter().map(tally_facts).collect::<Vec<_>>(),
        })
    };
    Some(json!({
        "now": report.now,
        "decided": decided,
        "read_bytes": read.predicted_bytes,
        "right_bytes": read.right_bytes,
        "wasted_bytes": read.wasted_bytes,
        "cancelled": read.cancelled,
        "strategies": report.tallies.iter().map(strategy).collect::<Vec<_>>(),
    }))
}

fn tally_facts(tally: &Tally) -> Json {
    let Tally { chosen, predicted, right, useful, useless, wasted_bytes, saved } = *tally;
    json!({
        "chosen": chosen,
        "predicted": predicted,
        "right": right,
        "useful": useful,
        "useless": useless,
        "wasted_bytes": wasted_bytes,
        "saved_seconds": saved.as_secs_f64(),
        "recall": tally.recall(),
        "precision": tally.precision(),
    })
}

/// Returns recall, precision, the bytes that would be read in vain, and the max reduction of
/// waiting.
fn cell(tally: &Tally) -> String {
    if tally.predicted == 0 {
        return format!("{:>34}", "-");
    }
    format!(
        "{:>4.0} % {:>7.0} % {:>9} {:>5.2} s",
        100.0 * tally.recall(),
        100.0 * tally.precision(),
        Bytes(tally.wasted_bytes).to_string(),
        tally.saved.as_secs_f64()
    )
}

/// Duration of a measurement of the drive alone, before and after a run.
pub const BASELINE: Duration = Duration::from_millis(250);

/// Prints the depth of the drive's queue, and the share of the drive's own rate at which missed
/// experts were read. `own` holds the drive's rates in bytes per second, before and after the run.
pub fn note_drive(choice: &QueueDepth, drive: &Counters, own: &[f64]) {
    let origin = match choice.origin {
        DepthOrigin::Request => "as requested",
        DepthOrigin::StoredMeasurement => "measured by `ixc doctor --drive`",
        DepthOrigin::QuickMeasurement => "measured at the start",
        DepthOrigin::Default => "the default",
    };
    stat!(Queue, "{} of {} at once, {origin}", counted(choice.depth as u64, "read"), Bytes(CHUNK));
    for text in &choice.notes {
        print_more(Printable(text));
    }
    if let Some(share) = share(drive.routed_rate(), own) {
        let rates = own.iter().zip(["before", "after"]).map(|(rate, when)| format!("{:.2} GB/s {when}", rate / 1e9));
        let rates: Vec<String> = rates.collect();
        stat!(Share, "{:.0} % of the drive's own rate ({})", 100.0 * share, rates.join(", "));
    }
}

/// Returns a rate as a share of the mean of others; `None` if either is zero.
pub fn share(rate: f64, own: &[f64]) -> Option<f64> {
    let mean = own.iter().sum::<f64>() / own.len().max(1) as f64;
    (rate > 0.0 && mean > 0.0).then_some(rate / mean)
}

/// Notes the hints that the page cache got for experts in mapped files, and their effect.
pub fn advice_counts(advised: &AdviceCounts) {
    let experts = counted(advised.experts, "expert");
    stat!(Hints, "{experts} announced to the page cache, {}", Bytes(advised.bytes));
    if let Some(faults) = system::major_faults() {
        stat!(Faults, "{} waited for the drive", counted(faults, "page fault"));
    }
}

/// Min number of tokens for a statement about a model's routing.
const LEAST_TOKENS: usize = 16;

/// Measurements and conditions of one phase of a run.
pub struct PhaseMeasurement {
    /// Times and counts of the phase.
    pub phase: Phase,
    /// Median rate of the drive alone, in bytes per second, before and after the phase.
    pub own: Option<f64>,
    /// Length of each prompt; `None` for decode.
    pub prompt: Option<usize>,
    /// Whether experts are deferred: see
    /// [`LoadedModel::defers`](ixc_generate::loaded_model::LoadedModel::defers).
    pub defers: bool,
}

/// Compares a token's time with computing alone, with reading alone, and with the forecast of `ixc
/// plan`, as lines of text.
pub fn compare(observed: &PhaseMeasurement, store: &ExpertCache, remembered: Option<&StoredForecast>) -> Vec<String> {
    let mut lines = Vec::new();
    let Phase { tokens, seconds, streamed, .. } = observed.phase;
    let (Some(known), true) = (remembered, tokens > 0 && seconds > 0.0) else { return lines };
    if let Some(prompt) = observed.prompt {
        let slots = store.stats().classes.iter().map(|class| u64::from(class.count)).sum();
        let predicted = PROMPT as f64 / forecast(&known.shape, &known.costs, slots, &known.routing).prompt;
        // The forecast holds for prompts of its own length only.
        if prompt == PROMPT {
            let prompts = (tokens / PROMPT).max(1) as f64;
            if !observed.defers {
                let read = (streamed.requested - streamed.kept) as f64;
                known.learn(None, Some(read / prompts / known.shape.all() as f64));
            }
            lines.push(forecast_error(predicted, tokens as f64 / seconds));
        }
        return lines;
    }
    let token = seconds / tokens as f64;
    let compute = known.costs.dense + known.costs.experts;
    if let Some(own) = observed.own.filter(|own| *own > 0.0) {
        let reading = streamed.bytes as f64 / tokens as f64 / own;
        lines.push(format!(
            "token {:.1} ms, {:.2} x the larger of compute {:.1} ms and reading {:.1} ms",
            1e3 * token,
            token / compute.max(reading).max(1e-9),
            1e3 * compute,
            1e3 * reading
        ));
    }
    let slots = store.stats().classes.iter().map(|class| u64::from(class.count)).sum();
    let predicted = forecast(&known.shape, &known.costs, slots, &known.routing);
    // Do not use bytes: reads for wrong predictions are not misses.
    if let Some(missed) = streamed.missed().filter(|_| tokens >= LEAST_TOKENS && !observed.defers) {
        known.learn(Routing::evenness_from_reads(slots as f64 / known.shape.all().max(1) as f64, missed), None);
    }
    let (predicted, measured) = (1.0 / predicted.token, 1.0 / token);
    lines.push(forecast_error(predicted, measured));
    lines
}

/// Returns the error of a forecast as text.
fn forecast_error(predicted: f64, measured: f64) -> String {
    let off = predicted / measured - 1.0;
    let word = if off < 0.0 { "low" } else { "high" };
    format!("predicted {predicted:.2}, measured {measured:.2} tokens/s: {:.0} % too {word}", 100.0 * off.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_statistics_exclude_earlier_answers() {
        let group = |n: u64| GroupStats {
            hits: n,
            foreseen: 10 * n,
            on_the_way: 2 * n,
            misses: 3 * n,
            failures: 4 * n,
            bytes: 5 * n,
            predicted_bytes: 6 * n,
            right_bytes: 7 * n,
            wasted_bytes: 8 * n,
            cancelled: 9 * n,
            stall: Duration::from_secs(n),
        };
        let stats = |n: u64, busy| {
            let mut drive = Counters::default();
            drive.busy = Duration::from_secs(busy);
            Stats { groups: vec![group(n), group(2 * n)], classes: Vec::new(), drive }
        };
        let found = stats_since(stats(10, 7), &stats(4, 5));
        assert_eq!(found.groups, [group(6), group(12)]);
        assert_eq!(found.drive.busy, Duration::from_secs(2));
    }
}
