//! Report on streamed experts, for `--stats`.
//!
//! The rate of reading experts is given as a share of the drive's own rate. The own rate is
//! measured without a model, by reads of the same size and queue depth at random offsets of the
//! same file, which bypass the page cache. It is measured before and after the run, since a drive's
//! speed changes.

use std::time::Duration;

use ixc_compile::machine::system;
use ixc_generate::drive::{DepthOrigin, QueueDepth};
use ixc_generate::timing::{Overlap, Phase};
use ixc_measure::streaming::{ForecastRates, PhaseComparison, TokenTime, share};
use ixc_runtime::engine::Engine;
use ixc_runtime::page_cache_hints::AdviceCounts;
use ixc_runtime::streaming::counters::Counters;
use ixc_runtime::streaming::predict::{Report, Strategy, Tally};
use ixc_runtime::streaming::store::stats::{GroupStats, Stats};
use ixc_runtime::streaming::store::{CHUNK, ExpertCache};
use serde_json::{Value as Json, json};

use super::output::{Bytes, Printable, count_text, fact};
use super::ranges::Ranges;
use super::stats_line::{print_more, stat};

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
        stat!(Pinned, "{}", count_text(pinned.into(), "expert"));
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
        count_text(threads as u64, "thread")
    );
    if let Some(Overlap { reading, hidden }) = decode.overlap(threads) {
        stat!(
            Overlap,
            "the drive read during {:.0} % of decode; threads computed during {:.0} % of that time",
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

/// Number of predictors side by side in a table of 80 columns.
const STRATEGIES_ABREAST: usize = 2;

/// Prints a table with the accuracy of these predictors for each layer.
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

/// Returns a predictor's recall, its precision, the bytes of its useless reads, and the max
/// reduction of waiting time.
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

/// Prints the depth of the drive's queue, and the share of the drive's own rate at which missed
/// experts were read. `own` holds the drive's rates in bytes per second, before and after the run.
pub fn note_drive(choice: &QueueDepth, drive: &Counters, own: &[f64]) {
    let origin = match choice.origin {
        DepthOrigin::Request => "as requested",
        DepthOrigin::StoredMeasurement => "measured by `ixc doctor --drive`",
        DepthOrigin::QuickMeasurement => "measured at the start",
        DepthOrigin::Default => "the default",
    };
    stat!(Queue, "{} of {} at once, {origin}", count_text(choice.depth as u64, "read"), Bytes(CHUNK));
    for text in &choice.notes {
        print_more(Printable(text));
    }
    if let Some(share) = share(drive.routed_rate(), own) {
        let rates = own.iter().zip(["before", "after"]).map(|(rate, when)| format!("{:.2} GB/s {when}", rate / 1e9));
        let rates: Vec<String> = rates.collect();
        stat!(Share, "{:.0} % of the drive's own rate ({})", 100.0 * share, rates.join(", "));
    }
}

/// Notes the hints that the page cache got for experts in mapped files, and their effect.
pub fn advice_counts(advised: &AdviceCounts) {
    let experts = count_text(advised.experts, "expert");
    stat!(Hints, "{experts} announced to the page cache, {}", Bytes(advised.bytes));
    if let Some(faults) = system::major_faults() {
        stat!(Faults, "{} waited for the drive", count_text(faults, "page fault"));
    }
}

/// Returns the comparison of a phase with its forecast as lines of text.
pub fn comparison_lines(of: &PhaseComparison) -> Vec<String> {
    let token = of.token.map(|TokenTime { seconds, compute, reading }| {
        format!(
            "token {:.1} ms, {:.2} x the larger of compute {:.1} ms and reading {:.1} ms",
            1e3 * seconds,
            seconds / compute.max(reading).max(1e-9),
            1e3 * compute,
            1e3 * reading
        )
    });
    let forecast = of.forecast.map(|ForecastRates { predicted, measured }| {
        let off = predicted / measured - 1.0;
        let word = if off < 0.0 { "low" } else { "high" };
        format!("predicted {predicted:.2}, measured {measured:.2} tokens/s: {:.0} % too {word}", 100.0 * off.abs())
    });
    token.into_iter().chain(forecast).collect()
}
