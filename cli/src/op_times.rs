//! Tables of the time of a generation by op and by kernel, for `--stats`
//! ([`ixc_measure::op_times`]).

use ixc_generate::timing::{Phase, StreamCounts};
use ixc_measure::op_times::{KernelRow, Op, kernels, ops, others};
use ixc_measure::roofline::Roofline;
use ixc_runtime::stats::{ExchangeCounts, Stats};
use serde_json::{Value as Json, json};

use super::output::{Bytes, Printable, count_text};
use super::stats_line::{Label, stat};

/// Min share of the time for which an op or kernel gets a row. The longest op and the longest
/// kernel always get one, since threads on a busy machine may do little but wait.
const MIN_SHARE: f64 = 0.01;

/// Prints the time of a phase by op, in rows that add up to the total, and by kernel. Rates are
/// computed as if all threads worked on the op during its time.
pub fn note(part: Label, phase: &Phase, stats: &Stats, limits: Option<&Roofline>) {
    lines(phase, stats, limits).iter().for_each(|line| part.print(line));
    kernel_lines(phase, stats).iter().for_each(|line| part.print(line));
    if stats.reduced > 0 {
        let (steps, threads) = (count_text(stats.steps, "step"), stats.threads);
        part.print(format_args!(
            "{} of {steps} used fewer than {threads} threads: other processes had the CPUs",
            stats.reduced
        ));
    }
    if let Some(each) = stats.meeting.checked_div(u32::try_from(stats.barriers).unwrap_or(u32::MAX)) {
        let barriers = count_text(stats.barriers / stats.thread_steps.max(1), "barrier");
        let microseconds = each.as_secs_f64() * 1e6;
        part.print(format_args!("{barriers} per step, {microseconds:.2} us each without waiting for other threads"));
    }
    let ExchangeCounts { exchanges, messages, bytes, waited } = stats.exchanged;
    if exchanges > 0 {
        let each = |count: u64| count / stats.steps.max(1);
        let (exchanges, messages) = (count_text(each(exchanges), "exchange"), count_text(each(messages), "message"));
        let bytes = Bytes(each(bytes));
        let waited = waited.as_secs_f64() * 1e3 / stats.steps.max(1) as f64;
        part.print(format_args!(
            "{exchanges} with other ranks per step, {messages}, {bytes} sent, {waited:.2} ms of waiting"
        ));
    }
}

/// Prints the peak rates of this machine, which the rates of ops are compared with.
pub fn note_limits(limits: &Roofline) {
    let products: Vec<String> =
        limits.products.iter().map(|rate| format!("{} {:.1}", rate.of, rate.operations_per_second / 1e9)).collect();
    let memory = limits.bytes_per_second.map(|rate| format!("memory {:.1}", rate / 1e9));
    let caches = limits.caches.iter().map(|rate| format!("{} {:.1}", rate.level, rate.bytes_per_second / 1e9));
    let rates: Vec<String> = memory.into_iter().chain(caches).collect();
    if !rates.is_empty() {
        stat!(Limits, "{} GB/s", rates.join(", "));
    }
    if !products.is_empty() {
        stat!(Limits, "{} GOP/s", products.join(", "));
    }
    if let Some(why) = &limits.no_bandwidth {
        stat!(Limits, "memory bandwidth not measured: {why}");
    }
}

/// Formats the row of an op without its share of the time, in the columns of [`HEAD`].
fn row(op: &Op) -> String {
    let name = Printable(&op.op).to_string();
    if op.seconds <= 0.0 {
        return name;
    }
    let part = |share: Option<f64>, of: &str| match share {
        Some(share) => format!("{:>3.0} % {of}", 100.0 * share),
        None => format!("{:>5} {of}", ""),
    };
    let level = op.fed_by.map_or(String::new(), |level| part(op.share_of_feeding, level));
    let text = format!("{name:<20} {:>6.1}  {level:<12}", op.bytes_per_second / 1e9);
    match (op.mostly, op.operations_per_second) {
        (Some(of), Some(rate)) => format!("{text} {:>7.1}  {}", rate / 1e9, part(op.share_of_peak, of)),
        _ => text,
    }
}

/// Column heads: share of the time, op or other activity, and rates with their share of the
/// machine's limit.
const HEAD: &str = "   time op                     GB/s   of limit      GOP/s   of limit";

/// Column heads of kernels: share of the time, and calls.
const KERNEL_HEAD: &str = "   time    calls  kernel  ops";

/// Returns a head, and the rows of the longest ops and of the time outside of ops, the longest
/// first. They add up to the whole time. Returns nothing if no time was measured.
fn lines(phase: &Phase, stats: &Stats, limits: Option<&Roofline>) -> Vec<String> {
    let (ops, others) = (ops(stats, limits), others(phase, stats));
    let longest = ops.first().map(|op| op.seconds);
    let mut rows: Vec<TimeRow> = ops.iter().map(|op| TimeRow { seconds: op.seconds, text: row(op) }).collect();
    rows.extend(others.iter().map(|(time, seconds)| TimeRow { seconds: *seconds, text: time.name().to_owned() }));
    rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    table(HEAD, rows, longest, thread_seconds(phase, stats))
}

/// Returns a head, and the rows of the longest kernels, the longest first. Returns nothing if no
/// kernel was timed.
fn kernel_lines(phase: &Phase, stats: &Stats) -> Vec<String> {
    let kernels = kernels(stats);
    let Some(longest) = kernels.first().map(|kernel| kernel.seconds) else { return Vec::new() };
    let row = |KernelRow { kernel, ops, calls, seconds, .. }: &KernelRow| TimeRow {
        seconds: *seconds,
        text: format!("{calls:>8}  {}  {}", Printable(kernel), Printable(&ops_text(ops))),
    };
    table(KERNEL_HEAD, kernels.iter().map(row).collect(), Some(longest), thread_seconds(phase, stats))
}

/// Returns the slowest op of a kernel, and the number of its other ops.
fn ops_text(ops: &[String]) -> String {
    match ops {
        [slowest, others @ ..] if !others.is_empty() => format!("{slowest}, {} more", others.len()),
        _ => ops.concat(),
    }
}

/// A row of a table, and its time in seconds, summed over threads.
struct TimeRow {
    seconds: f64,
    text: String,
}

/// Returns the time of all threads in a phase: in ops, and outside of ops.
fn thread_seconds(phase: &Phase, stats: &Stats) -> f64 {
    let ops: f64 = stats.tasks.iter().map(|task| task.work.time.as_secs_f64()).sum();
    ops + others(phase, stats).iter().map(|(_, seconds)| seconds).sum::<f64>()
}

/// Returns a head, and sorted rows with their share of the total. Rows that are shorter than the
/// min share and than `longest` become one row. Returns nothing if no time was measured.
fn table(head: &str, rows: Vec<TimeRow>, longest: Option<f64>, total: f64) -> Vec<String> {
    if total <= 0.0 {
        return Vec::new();
    }
    let least = longest.unwrap_or(f64::INFINITY).min(MIN_SHARE * total);
    let (long, short): (Vec<_>, Vec<_>) =
        rows.into_iter().filter(|row| row.seconds > 0.0).partition(|row| row.seconds >= least);
    let rest = (!short.is_empty()).then(|| TimeRow {
        seconds: short.iter().map(|row| row.seconds).sum(),
        text: count_text(short.len() as u64, "shorter row"),
    });
    let rows = long.into_iter().chain(rest);
    let rows = rows.map(|row| format!("{:5.1} % {}", 100.0 * row.seconds / total, row.text.trim_end()));
    std::iter::once(head.to_owned()).chain(rows).collect()
}

/// Returns a phase with its times, as JSON.
pub fn facts(phase: &Phase, stats: &Stats, limits: Option<&Roofline>) -> Json {
    let rate = if phase.seconds > 0.0 { phase.tokens as f64 / phase.seconds } else { 0.0 };
    let others: serde_json::Map<String, Json> =
        others(phase, stats).into_iter().map(|(time, seconds)| (time.key().to_owned(), seconds.into())).collect();
    let StreamCounts { bytes, requested, kept, busy, stall } = phase.streamed;
    json!({
        "tokens": phase.tokens,
        "seconds": phase.seconds,
        "tokens_per_second": rate,
        "steps": stats.steps,
        "steps_with_fewer_threads": stats.reduced,
        "barriers": stats.barriers.checked_div(stats.threads as u64),
        "thread_seconds": stats.wall.as_secs_f64() * stats.threads as f64,
        "ops": ops(stats, limits),
        "kernels": kernels(stats),
        "thread_seconds_outside_ops": others,
        "streamed": { "bytes": bytes, "requested": requested, "kept": kept, "busy_seconds": busy, "stall_seconds": stall },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_measure::roofline::{CacheRate, ProductRate};
    use ixc_runtime::stats::{KernelTime, TaskTime, Work};
    use std::time::Duration;

    #[test]
    fn kernel_table_sums_ops_and_lists_the_slowest_first() {
        let kernel = |kernel: &str, op: &str, milliseconds, items| KernelTime {
            kernel: kernel.into(),
            op: op.into(),
            work: Work { time: Duration::from_millis(milliseconds), items, ..Work::default() },
        };
        let stats = Stats {
            threads: 2,
            wall: Duration::from_secs(1),
            kernels: vec![
                kernel("rms_norm_f32", "rms_norm", 4, 96),
                kernel("gemv_q4_k_r16_a8_super_t16n256k256", "linear.qkv", 100, 64),
                kernel("gemv_q6_k_r16", "linear", 500, 1024),
                kernel("gemv_q4_k_r16_a8_super_t16n256k256", "expert.down", 300, 512),
                kernel("add_f32", "add", 0, 0),
            ],
            ..Stats::default()
        };
        let phase = Phase { tokens: 8, seconds: 1.0, ..Phase::default() };
        assert_eq!(
            kernel_lines(&phase, &stats),
            [
                "   time    calls  kernel  ops",
                " 25.0 %     1024  gemv_q6_k_r16  linear",
                " 20.0 %      576  gemv_q4_k_r16_a8_super_t16n256k256  expert.down, 1 more",
                "  0.2 % 1 shorter row",
            ]
        );
        assert_eq!(kernel_lines(&phase, &Stats { kernels: Vec::new(), ..stats.clone() }), [""; 0]);
        let facts = facts(&phase, &stats, None);
        let slowest = serde_json::json!({
            "kernel": "gemv_q6_k_r16", "ops": ["linear"], "calls": 1024, "seconds": 0.5, "share": 0.25
        });
        assert_eq!((&facts["kernels"][0], facts["kernels"].as_array().unwrap().len()), (&slowest, 4));
    }

    #[test]
    fn time_table_sums_ops_of_layers_and_shows_shares() {
        let products = ixc_ir::kernel::products::Products { int8: 8_000_000_000, bf16: 0, f32: 1000 };
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
            bytes_per_second: Some(20e9),
            caches: vec![CacheRate { level: "L3", bytes_per_second: 80e9 }],
            no_bandwidth: None,
            products: vec![rate("int8", 400e9), rate("f32", 100e9)],
            refused: None,
        };
        let phase = Phase { tokens: 8, seconds: 1.25, ..Phase::default() };
        // 4 GB in 0.8 s of two threads is 0.4 s of the clock: 10 GB/s. 16 G operations are 40
        // GOP/s. Two threads had 2.5 s.
        let rows = lines(&phase, &stats, Some(&limits));
        assert_eq!(
            rows,
            [
                "   time op                     GB/s   of limit      GOP/s   of limit",
                " 38.4 % start and end of steps",
                " 32.0 % linear                 10.0   50 % memory    40.0   10 % int8",
                " 20.0 % between steps",
                "  8.0 % waiting for other threads",
                "  1.6 % 2 shorter rows",
            ]
        );
        assert!(rows.iter().all(|row| row.len() + 10 < 80), "{rows:?}");
        assert_eq!(
            lines(&phase, &stats, None)[2],
            " 32.0 % linear                 10.0                  40.0        int8"
        );
        // Rates above memory bandwidth come from a cache, and rates above all measured caches from
        // the first.
        let faster = |factor: f64| {
            let tasks = vec![task("linear a", (400.0 / factor) as u64, 4_000_000_000, none)];
            lines(&phase, &Stats { tasks, ..stats.clone() }, Some(&limits))
                .into_iter()
                .find(|row| row.contains("linear"))
                .unwrap()
        };
        assert!(faster(2.0).ends_with(" 40.0   50 % L3"), "{}", faster(2.0));
        assert!(faster(8.0).ends_with(" 160.0        L1"), "{}", faster(8.0));
        // With other work on the machine, each op has a small share of the time; the longest op
        // still has a row. All rows add up to the total time.
        let crowded = Stats { wall: Duration::from_secs(1000), ..stats.clone() };
        let short = lines(&phase, &crowded, None);
        assert!(short.iter().any(|row| row.starts_with("  0.0 % linear ")), "{short:?}");
        let sum = |rows: &[String]| -> f64 {
            rows.iter().skip(1).map(|row| row.split('%').next().unwrap().trim().parse::<f64>().unwrap()).sum()
        };
        assert!([&rows, &short].iter().all(|rows| (sum(rows) - 100.0).abs() < 0.3), "{rows:?} {short:?}");
        let facts = facts(&phase, &stats, Some(&limits));
        assert_eq!((&facts["tokens_per_second"], facts["ops"].as_array().unwrap().len()), (&6.4.into(), 3));
        let linear = &facts["ops"][0];
        assert_eq!(
            (&linear["op"], &linear["bytes"], &linear["mostly"]),
            (&"linear".into(), &4_000_000_000u64.into(), &"int8".into())
        );
        let near = |value: &Json, expected: f64| (value.as_f64().unwrap() - expected).abs() < 1e-9;
        assert!(near(&linear["share_of_bandwidth"], 0.5) && near(&linear["share_of_peak"], 0.1), "{linear}");
        assert_eq!((&linear["fed_by"], &linear["share_of_feeding"]), (&"memory".into(), &0.5.into()));
        assert!(near(&linear["share"], 0.4) && facts["ops"][2]["share_of_peak"].is_null(), "{facts}");
        assert!(near(&facts["thread_seconds_outside_ops"]["waiting_for_other_threads"], 0.2), "{facts}");
    }
}
