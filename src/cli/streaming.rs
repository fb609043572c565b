//! What streaming experts took, for `--stats`.

use std::time::Duration;

use ixc::runtime::stream::predict::{Report, Tally};
use ixc::runtime::stream::store::Store;
use ixc::runtime::stream::store::stats::LayerStats;

use super::output::{Bytes, Printable, note};

/// Says what streaming experts took: what was there, what was read and how fast, and who waited for it.
pub fn note(store: &Store, threads: usize) {
    let (stats, report) = (store.stats(), store.report());
    let all = LayerStats::sum(&stats.layers);
    let requested = all.hits + all.on_the_way + all.misses;
    note!(
        "experts   {requested} needed: {:.1} % in memory, {:.1} % on the way, {:.1} % missed; room for {}",
        100.0 * all.hit_rate(),
        100.0 * all.on_the_way as f64 / requested.max(1) as f64,
        100.0 * all.misses as f64 / requested.max(1) as f64,
        Bytes(store.bytes())
    );
    let drive = &stats.drive;
    let read = drive.routed.bytes + drive.predicted.bytes;
    let rate = |bytes: u64, time: Duration| if time.is_zero() { 0.0 } else { bytes as f64 / time.as_secs_f64() / 1e9 };
    note!(
        "drive     {} read by {}, {:.2} GB/s while it was read, {:.2} GB/s while experts were missed",
        Bytes(read),
        report.backend,
        rate(read, drive.busy),
        rate(drive.bytes_while_routed, drive.busy_routed)
    );
    if all.predicted_bytes > 0 {
        let part = |bytes: u64| 100.0 * bytes as f64 / all.predicted_bytes as f64;
        note!(
            "predicted {} read ahead: {:.1} % was needed, {:.1} % given up unused",
            Bytes(all.predicted_bytes),
            part(all.right_bytes),
            part(all.wasted_bytes)
        );
    }
    let stall = all.stall.as_secs_f64();
    note!(
        "stall     {stall:.2} s of waiting for experts, {:.2} s for each of {threads} threads",
        stall / threads.max(1) as f64
    );
    if let Some(cpus) = &report.cpus {
        note!("          the reading thread runs near the drive, on CPUs {cpus:?}");
    }
    for text in &report.notes {
        note!("          {}", Printable(text));
    }
}

/// Says how each way to predict did, used or not, in every layer and in all of them.
pub fn predictions(report: &Report) {
    // A prompt alone predicts nothing.
    let used: Vec<_> =
        report.tallies.iter().filter(|(_, layers)| layers.iter().any(|tally| tally.predicted > 0)).collect();
    if used.is_empty() {
        return;
    }
    note!("prefetch  {}", report.now);
    let names: Vec<String> = used.iter().map(|(strategy, _)| format!("{:<32}", strategy.to_string())).collect();
    note!("          {}", names.join("  ").trim_end());
    note!(
        "          {}",
        vec![format!("{:>6} {:>6} {:>9} {:>8}", "recall", "precis", "useless", "avoided"); used.len()].join("  ")
    );
    let layers = used.iter().map(|(_, layers)| layers.len()).max().unwrap_or(0);
    for layer in 0..layers {
        let cells: Vec<String> =
            used.iter().map(|(_, tallies)| tallies.get(layer).map_or_else(String::new, cell)).collect();
        note!("layer {layer:<3} {}", cells.join("  "));
    }
    let sum = |tallies: &[Tally]| {
        let mut all = Tally::default();
        tallies.iter().for_each(|tally| all += *tally);
        cell(&all)
    };
    let cells: Vec<String> = used.iter().map(|(_, tallies)| sum(tallies)).collect();
    note!("all       {}", cells.join("  "));
}

/// Recall, precision, what would be read for nothing, and the most that waiting could be shortened by.
fn cell(tally: &Tally) -> String {
    if tally.predicted == 0 {
        return format!("{:>32}", "-");
    }
    format!(
        "{:>4.0} % {:>4.0} % {:>9} {:>6.2} s",
        100.0 * tally.recall(),
        100.0 * tally.precision(),
        Bytes(tally.wasted_bytes).to_string(),
        tally.saved.as_secs_f64()
    )
}
