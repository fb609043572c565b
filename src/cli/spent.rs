//! Where the time of a text went, for `--stats`: each op's share, what it read and multiplied, and how near that is to what the machine can do.

use std::collections::BTreeMap;

use ixc::kernels::roofline::Roofline;
use ixc::runtime::stats::{Stats, Work};
use ixc::timing::{Phase, Streamed};
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::output::{Bytes, Printable, counted, note};

/// An op is worth a line from this part of the time on, and the longest is in any case: beside other work threads may do little but wait.
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

/// What an op took over all layers, and how near that is to what the machine does at the most. Rates are of the time in which threads worked on it,
/// as if all of them did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Op {
    /// Its word.
    op: String,
    /// Seconds, all threads together.
    seconds: f64,
    /// Of the time of all threads, 0 to 1.
    share: f64,
    /// Items that ran.
    items: u64,
    /// Bytes that were read.
    bytes: u64,
    bytes_per_second: f64,
    /// Of what memory gives, where that was measured.
    share_of_bandwidth: Option<f64>,
    /// Multiply-adds of each kind.
    products: Products,
    /// The kind that it is mostly made of, where it is products.
    mostly: Option<&'static str>,
    /// Operations of that kind, two for each multiply-add.
    operations_per_second: Option<f64>,
    /// Of what the machine does of that kind, where that was measured.
    share_of_peak: Option<f64>,
}

/// Multiply-adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Products {
    int8: u64,
    bf16: u64,
    f32: u64,
}

/// Ops over all layers, that which took longest first.
fn ops(stats: &Stats, limits: Option<&Roofline>) -> Vec<Op> {
    // Labels are an op and the weight of one layer; over all layers, the op is what tells.
    let mut ops: BTreeMap<&str, Work> = BTreeMap::new();
    for task in &stats.tasks {
        let op = task.label.split_whitespace().next().unwrap_or_default();
        *ops.entry(op).or_default() += task.work;
    }
    let total = stats.wall.as_secs_f64() * stats.threads as f64;
    let mut ops: Vec<Op> =
        ops.into_iter().map(|(op, work)| Op::of(op, &work, (stats.threads, total), limits)).collect();
    ops.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    ops
}

impl Op {
    fn of(op: &str, work: &Work, (threads, total): (usize, f64), limits: Option<&Roofline>) -> Op {
        let own = work.time.as_secs_f64();
        let seconds = own / threads.max(1) as f64;
        let rate = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let of = |rate: f64, limit: Option<f64>| limit.filter(|limit| *limit > 0.0).map(|limit| rate / limit);
        let bytes_per_second = rate(work.bytes as f64);
        let kinds = [("int8", work.products.int8), ("bf16", work.products.bf16), ("f32", work.products.f32)];
        // What it is mostly made of, where it is products: scales of integers are multiplied in f32, and norms multiply, too.
        let most = kinds.into_iter().max_by_key(|(_, count)| *count);
        let most = most.filter(|(_, count)| seconds > 0.0 && *count > 0 && *count >= work.bytes / 4);
        let operations_per_second = most.map(|(_, count)| rate(2.0 * count as f64));
        let peak = |kind| limits.and_then(|limits| limits.products_of(kind));
        Op {
            op: op.to_owned(),
            seconds: own,
            share: if total > 0.0 { own / total } else { 0.0 },
            items: work.items,
            bytes: work.bytes,
            bytes_per_second,
            share_of_bandwidth: of(bytes_per_second, limits.map(|limits| limits.bytes_per_second)),
            products: Products { int8: work.products.int8, bf16: work.products.bf16, f32: work.products.f32 },
            mostly: most.map(|(kind, _)| kind),
            operations_per_second,
            share_of_peak: most.zip(operations_per_second).and_then(|((kind, _), rate)| of(rate, peak(kind))),
        }
    }

    /// What it read and multiplied: `1.2 GiB, 12.1 GB/s, 83 % of memory's; 33.4 GOP/s of int8, 9 %`.
    fn rates(&self) -> String {
        if self.seconds <= 0.0 {
            return String::new();
        }
        let mut text = format!("{:>10}, {:6.1} GB/s", Bytes(self.bytes).to_string(), self.bytes_per_second / 1e9);
        if let Some(share) = self.share_of_bandwidth {
            text += &format!(", {:3.0} % of memory's", 100.0 * share);
        }
        if let (Some(of), Some(rate)) = (self.mostly, self.operations_per_second) {
            text += &format!("; {:7.1} GOP/s of {of}", rate / 1e9);
            if let Some(share) = self.share_of_peak {
                text += &format!(", {:3.0} %", 100.0 * share);
            }
        }
        text
    }
}

/// What is no op, and the seconds of all threads that went there.
fn others(stats: &Stats) -> [(&'static str, &'static str, f64); 4] {
    [
        ("waiting for other threads", "waiting_for_other_threads", stats.imbalance.as_secs_f64()),
        ("waiting for one that works alone", "waiting_for_one_alone", stats.alone.as_secs_f64()),
        ("barriers", "meeting", stats.meeting.as_secs_f64()),
        ("packing", "packing", stats.packing.as_secs_f64()),
    ]
}

/// A line for each op that took a good part of the time, and for what is no op, the longest first.
fn lines(stats: &Stats, limits: Option<&Roofline>) -> Vec<String> {
    let total = stats.wall.as_secs_f64() * stats.threads as f64;
    let each = |op: &Op| (op.seconds, format!("{:<24}{}", Printable(&op.op).to_string(), op.rates()));
    let ops = ops(stats, limits);
    let least = ops.first().map_or(f64::INFINITY, |longest| longest.seconds).min(LEAST * total);
    let mut lines: Vec<(f64, String)> = ops.iter().map(each).collect();
    lines.extend(others(stats).map(|(what, _, seconds)| (seconds, what.to_owned())));
    lines.sort_by(|a, b| b.0.total_cmp(&a.0));
    let long = lines.into_iter().filter(|(time, _)| *time > 0.0 && *time >= least);
    long.map(|(time, line)| format!("{:5.1} % {}", 100.0 * time / total, line.trim_end())).collect()
}

/// A part of a text, with where its time went, as JSON.
pub fn facts(phase: &Phase, stats: &Stats, limits: Option<&Roofline>) -> Json {
    let rate = if phase.seconds > 0.0 { phase.tokens as f64 / phase.seconds } else { 0.0 };
    let others: serde_json::Map<String, Json> =
        others(stats).into_iter().map(|(_, key, seconds)| (key.to_owned(), seconds.into())).collect();
    let Streamed { bytes, requested, kept, busy, stall } = phase.streamed;
    json!({
        "tokens": phase.tokens,
        "seconds": phase.seconds,
        "tokens_per_second": rate,
        "steps": stats.steps,
        "steps_with_fewer_threads": stats.reduced,
        "barriers": stats.barriers.checked_div(stats.threads as u64),
        "thread_seconds": stats.wall.as_secs_f64() * stats.threads as f64,
        "ops": ops(stats, limits),
        "thread_seconds_besides": others,
        "streamed": { "bytes": bytes, "requested": requested, "kept": kept, "busy_seconds": busy, "stall_seconds": stall },
    })
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
        // Beside other work each is short, and the longest is said.
        let crowded = Stats { wall: Duration::from_secs(1000), ..stats.clone() };
        let short = lines(&crowded, None);
        assert!(short.len() == 1 && short[0].starts_with("  0.0 % linear "), "{short:?}");
        let phase = Phase { tokens: 8, seconds: 2.0, ..Phase::default() };
        let facts = facts(&phase, &stats, Some(&limits));
        assert_eq!((&facts["tokens_per_second"], facts["ops"].as_array().unwrap().len()), (&4.0.into(), 3));
        let linear = &facts["ops"][0];
        assert_eq!(
            (&linear["op"], &linear["bytes"], &linear["mostly"]),
            (&"linear".into(), &4_000_000_000u64.into(), &"int8".into())
        );
        let near = |value: &Json, expected: f64| (value.as_f64().unwrap() - expected).abs() < 1e-9;
        assert!(near(&linear["share_of_bandwidth"], 0.5) && near(&linear["share_of_peak"], 0.1), "{linear}");
        assert!(near(&linear["share"], 0.4) && facts["ops"][2]["share_of_peak"].is_null(), "{facts}");
        assert!(near(&facts["thread_seconds_besides"]["waiting_for_other_threads"], 0.2), "{facts}");
    }
}
