//! Where the time of a text went, for `--stats`: each op's share, what it read and multiplied, and how near that is to what the machine can do.

use std::collections::BTreeMap;

use ixc::kernels::roofline::Roofline;
use ixc::runtime::stats::{Stats, Work};

use super::output::{Bytes, Printable, counted, note};

/// An op is worth a line from this part of the time on.
const LEAST: f64 = 0.01;

/// Says where the time of a part of a text went. Rates are of the time in which threads worked on the op, as if all of them did.
pub fn note(part: &str, stats: &Stats, limits: Option<&Roofline>) {
    for line in lines(stats, limits) {
        note!("{part:<9} {line}");
    }
    if stats.reduced > 0 {
        note!(
            "{part:<9} {} of {} with less than {} threads: others use the processors, and all would wait for those that do not run",
            stats.reduced,
            counted(stats.steps, "step"),
            stats.threads
        );
    }
    if let Some(each) = stats.meeting.checked_div(u32::try_from(stats.barriers).unwrap_or(u32::MAX)) {
        let a_step = stats.barriers / stats.thread_steps.max(1);
        note!(
            "{part:<9} {a_step} barriers in a step, each {:.2} us beyond waiting for others",
            each.as_secs_f64() * 1e6
        );
    }
}

/// Says what the rates were set against.
pub fn note_limits(limits: &Roofline) {
    let products: Vec<String> =
        limits.products.iter().map(|rate| format!("{} {:.1}", rate.of, rate.operations_per_second / 1e9)).collect();
    let products = match products.is_empty() {
        true => String::new(),
        false => format!("; products {} GOP/s", products.join(", ")),
    };
    note!("limits    memory {:.1} GB/s{products}: measured now", limits.bytes_per_second / 1e9);
}

/// A line for each op that took a good part of the time, and for what is no op, the longest first.
fn lines(stats: &Stats, limits: Option<&Roofline>) -> Vec<String> {
    let total = stats.wall.as_secs_f64() * stats.threads as f64;
    // Labels are an op and the weight of one layer; over all layers, the op is what tells.
    let mut ops: BTreeMap<&str, Work> = BTreeMap::new();
    for task in &stats.tasks {
        let op = task.label.split_whitespace().next().unwrap_or_default();
        *ops.entry(op).or_default() += task.work;
    }
    let mut lines: Vec<(f64, String)> = ops
        .into_iter()
        .map(|(op, work)| {
            (
                work.time.as_secs_f64(),
                format!("{:<24}{}", Printable(op).to_string(), rates(&work, stats.threads, limits)),
            )
        })
        .collect();
    for (what, time) in [
        ("waiting for other threads", stats.imbalance),
        ("waiting for one that works alone", stats.alone),
        ("barriers", stats.meeting),
        ("packing", stats.packing),
    ] {
        lines.push((time.as_secs_f64(), what.to_string()));
    }
    lines.sort_by(|a, b| b.0.total_cmp(&a.0));
    let long = lines.into_iter().filter(|(time, _)| *time > 0.0 && *time >= LEAST * total);
    long.map(|(time, line)| format!("{:5.1} % {}", 100.0 * time / total, line.trim_end())).collect()
}

/// What an op read and multiplied: `1.2 GiB, 12.1 GB/s, 83 % of memory's; 33.4 GOP/s of int8, 9 %`.
fn rates(work: &Work, threads: usize, limits: Option<&Roofline>) -> String {
    let seconds = work.time.as_secs_f64() / threads.max(1) as f64;
    if seconds <= 0.0 {
        return String::new();
    }
    let share = |rate: f64, limit: Option<f64>| limit.filter(|limit| *limit > 0.0).map(|limit| 100.0 * rate / limit);
    let rate = work.bytes as f64 / seconds;
    let mut text = format!("{:>10}, {:6.1} GB/s", Bytes(work.bytes).to_string(), rate / 1e9);
    if let Some(share) = share(rate, limits.map(|limits| limits.bytes_per_second)) {
        text += &format!(", {share:3.0} % of memory's");
    }
    let products = work.products;
    let kinds = [("int8", products.int8), ("bf16", products.bf16), ("f32", products.f32)];
    // What it is mostly made of, where it is products: scales of integers are multiplied in f32, and norms multiply, too.
    let most = kinds.into_iter().max_by_key(|(_, count)| *count);
    if let Some((of, count)) = most.filter(|(_, count)| *count > 0 && *count >= work.bytes / 4) {
        let rate = 2.0 * count as f64 / seconds;
        text += &format!("; {:7.1} GOP/s of {of}", rate / 1e9);
        if let Some(share) = share(rate, limits.and_then(|limits| limits.products_of(of))) {
            text += &format!(", {share:3.0} %");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc::kernels::roofline::ProductRate;
    use ixc::runtime::stats::TaskTime;
    use std::time::Duration;

    #[test]
    fn ops_of_all_layers_are_one_line_with_their_share_of_the_limits() {
        let products = ixc::ir::kernel::products::Products { int8: 8_000_000_000, bf16: 0, f32: 1000 };
        let task = |label: &str, milliseconds, bytes, products| TaskTime {
            label: label.into(),
            work: Work { time: Duration::from_millis(milliseconds), items: 1, bytes, products },
        };
        let none = Default::default();
        let stats = Stats {
            threads: 2,
            wall: Duration::from_secs(1),
            imbalance: Duration::from_millis(200),
            tasks: vec![
                task("linear blk.0.w", 400, 2_000_000_000, products),
                task("linear blk.1.w", 400, 2_000_000_000, none),
                task("rms_norm blk.0.n", 20, 4096, none),
                task("add", 19, 4096, none),
            ],
            ..Stats::default()
        };
        let rate = |of, operations_per_second| ProductRate { of, operations_per_second };
        let limits = Roofline {
            threads: 2,
            bytes_per_second: 20e9,
            products: vec![rate("int8", 400e9), rate("f32", 100e9)],
            refused: None,
        };
        // 4 GB in 0.8 s of two threads, 0.4 s of the clock: 10 GB/s; 16 G operations: 40 GOP/s.
        assert_eq!(
            lines(&stats, Some(&limits)),
            [
                " 40.0 % linear                     3.7 GiB,   10.0 GB/s,  50 % of memory's;    40.0 GOP/s of int8,  10 %",
                " 10.0 % waiting for other threads",
                "  1.0 % rms_norm                     4 KiB,    0.0 GB/s,   0 % of memory's",
            ]
        );
        assert_eq!(lines(&stats, None)[2], "  1.0 % rms_norm                     4 KiB,    0.0 GB/s");
    }
}
