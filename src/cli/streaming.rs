//! What streaming experts took, for `--stats`.

use std::time::Duration;

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
    for text in &report.notes {
        note!("          {}", Printable(text));
    }
}
