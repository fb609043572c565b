//! Time of a generation by op: share of the time, bytes read, operations, and how near the rates
//! are to the machine's peak. Also its time by kernel.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ixc_generate::timing::Phase;
use ixc_runtime::stats::{KernelTime, Stats, Work};
use serde::Serialize;

use crate::roofline::Roofline;

/// Time of an op over all layers, and the share of the machine's peak that it reaches. Rates relate
/// to the time in which threads worked on the op, as if all threads did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Op {
    /// Mnemonic of the op.
    pub op: String,
    /// Seconds, summed over threads.
    pub seconds: f64,
    /// Share of the time of all threads, 0 to 1.
    pub share: f64,
    /// Items of work that ran.
    pub items: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Bytes read per second.
    pub bytes_per_second: f64,
    /// Share of the memory's measured bandwidth. It is above 1 if the bytes come from caches.
    pub share_of_bandwidth: Option<f64>,
    /// Memory level that is as fast as the op reads: `memory`, `L3`, `L2` or `L1`; `None` if memory
    /// was not measured.
    pub fed_by: Option<&'static str>,
    /// Share of that level's bandwidth; `None` for `L1`, which is not measured.
    pub share_of_feeding: Option<f64>,
    /// Multiply-adds, by the type of the factors.
    pub products: Products,
    /// Dominant kind of products, if the op consists of products.
    pub mostly: Option<&'static str>,
    /// Operations of that kind, two for each multiply-add.
    pub operations_per_second: Option<f64>,
    /// Share of the machine's peak for this kind, if the peak was measured.
    pub share_of_peak: Option<f64>,
}

/// Number of multiply-adds, by the type of their factors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Products {
    /// Products of bytes.
    pub int8: u64,
    /// Products of bf16 numbers.
    pub bf16: u64,
    /// Products of f32 numbers.
    pub f32: u64,
}

/// Returns the ops over all layers, the slowest first.
pub fn ops(stats: &Stats, limits: Option<&Roofline>) -> Vec<Op> {
    // A label is an op with the weight of one layer; sums over all layers use the op alone.
    let mut ops: BTreeMap<&str, Work> = BTreeMap::new();
    for task in &stats.tasks {
        let op = task.label.split_whitespace().next().unwrap_or_default();
        *ops.entry(op).or_default() += task.work;
    }
    let total = stats.wall.as_secs_f64() * stats.threads as f64;
    let mut ops: Vec<Op> =
        ops.into_iter().map(|(op, work)| Op::from_work(op, &work, stats.threads, total, limits)).collect();
    ops.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    ops
}

/// Time of a kernel over all ops that call it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KernelRow {
    /// Name of the kernel.
    pub kernel: String,
    /// Mnemonics of the ops, the slowest first.
    pub ops: Vec<String>,
    /// Calls, summed over threads.
    pub calls: u64,
    /// Seconds, summed over threads.
    pub seconds: f64,
    /// Share of the time of all threads, 0 to 1.
    pub share: f64,
}

/// Returns the kernels that ran, the slowest first.
pub fn kernels(stats: &Stats) -> Vec<KernelRow> {
    let mut by_op: Vec<&KernelTime> = stats.kernels.iter().collect();
    by_op.sort_by_key(|entry| Reverse(entry.work.time));
    let mut kernels: BTreeMap<&str, (Work, Vec<String>)> = BTreeMap::new();
    for KernelTime { kernel, op, work } in by_op {
        let (sum, ops) = kernels.entry(kernel).or_default();
        *sum += *work;
        ops.push(op.clone());
    }
    let total = stats.wall.as_secs_f64() * stats.threads as f64;
    let mut kernels: Vec<KernelRow> = kernels
        .into_iter()
        .map(|(kernel, (work, ops))| {
            let seconds = work.time.as_secs_f64();
            let share = if total > 0.0 { seconds / total } else { 0.0 };
            KernelRow { kernel: kernel.to_owned(), ops, calls: work.items, seconds, share }
        })
        .collect();
    kernels.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    kernels
}

impl Op {
    /// Computes the figures of an op. `total` is the time of all threads, in seconds.
    fn from_work(op: &str, work: &Work, threads: usize, total: f64, limits: Option<&Roofline>) -> Op {
        let own = work.time.as_secs_f64();
        let seconds = own / threads.max(1) as f64;
        let rate = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let of = |rate: f64, limit: Option<f64>| limit.filter(|limit| *limit > 0.0).map(|limit| rate / limit);
        let bytes_per_second = rate(work.bytes as f64);
        let kinds = [("int8", work.products.int8), ("bf16", work.products.bf16), ("f32", work.products.f32)];
        // Dominant kind of products. Scales of integer products are multiplied in f32, and norms
        // also multiply, so small counts are ignored.
        let most = kinds.into_iter().max_by_key(|(_, count)| *count);
        let most = most.filter(|(_, count)| seconds > 0.0 && *count > 0 && *count >= work.bytes / 4);
        let operations_per_second = most.map(|(_, count)| rate(2.0 * count as f64));
        let peak = |kind| limits.and_then(|limits| limits.product_rate(kind));
        let measured = limits.filter(|limits| limits.bytes_per_second.is_some() && bytes_per_second > 0.0);
        let feeding = measured.map(|limits| limits.feeding_level(bytes_per_second));
        Op {
            op: op.to_owned(),
            seconds: own,
            share: if total > 0.0 { own / total } else { 0.0 },
            items: work.items,
            bytes: work.bytes,
            bytes_per_second,
            share_of_bandwidth: of(bytes_per_second, limits.and_then(|limits| limits.bytes_per_second)),
            fed_by: feeding.map(|feeding| feeding.map_or("L1", |(level, _)| level)),
            share_of_feeding: feeding.flatten().map(|(_, share)| share),
            products: Products { int8: work.products.int8, bf16: work.products.bf16, f32: work.products.f32 },
            mostly: most.map(|(kind, _)| kind),
            operations_per_second,
            share_of_peak: most.zip(operations_per_second).and_then(|((kind, _), rate)| of(rate, peak(kind))),
        }
    }
}

/// Time of threads outside of ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherTime {
    /// Threads had finished their part of a stage, and other threads had not.
    OtherThreads,
    /// One thread did a small stage for all.
    SingleThread,
    /// Threads synchronised at barriers, without the waiting that the rows above count.
    Barriers,
    /// Weights were packed for their first use.
    Packing,
    /// Threads were unused because other processes had the CPU.
    UnusedThreads,
    /// Inputs were set, and threads started and joined.
    StepEnds,
    /// No step ran: sampling, drafting, and output of text.
    BetweenSteps,
}

impl OtherTime {
    /// All kinds, in the order of their rows.
    pub const ALL: [OtherTime; 7] = [
        OtherTime::OtherThreads,
        OtherTime::SingleThread,
        OtherTime::Barriers,
        OtherTime::Packing,
        OtherTime::UnusedThreads,
        OtherTime::StepEnds,
        OtherTime::BetweenSteps,
    ];

    /// Returns the name of the row.
    pub fn name(self) -> &'static str {
        match self {
            OtherTime::OtherThreads => "waiting for other threads",
            OtherTime::SingleThread => "waiting for a single thread",
            OtherTime::Barriers => "barriers",
            OtherTime::Packing => "packing",
            OtherTime::UnusedThreads => "unused threads",
            OtherTime::StepEnds => "start and end of steps",
            OtherTime::BetweenSteps => "between steps",
        }
    }

    /// Returns the name of the field in JSON.
    pub fn key(self) -> &'static str {
        match self {
            OtherTime::OtherThreads => "waiting_for_other_threads",
            OtherTime::SingleThread => "waiting_for_a_single_thread",
            OtherTime::Barriers => "barriers",
            OtherTime::Packing => "packing",
            OtherTime::UnusedThreads => "unused_threads",
            OtherTime::StepEnds => "start_and_end_of_steps",
            OtherTime::BetweenSteps => "between_steps",
        }
    }
}

/// Returns the time of a phase outside of ops. Together with the ops it is the whole time of all
/// threads. The rest of the steps and the time between steps have their own rows.
pub fn others(phase: &Phase, stats: &Stats) -> Vec<(OtherTime, f64)> {
    let threads = stats.threads as f64;
    let steps = stats.wall.as_secs_f64() * threads;
    let ops: f64 = stats.tasks.iter().map(|task| task.work.time.as_secs_f64()).sum();
    let waits = [
        (OtherTime::OtherThreads, stats.imbalance),
        (OtherTime::SingleThread, stats.alone),
        (OtherTime::Barriers, stats.meeting),
        (OtherTime::Packing, stats.packing),
    ]
    .map(|(time, duration)| (time, duration.as_secs_f64()));
    let known: f64 = ops + waits.iter().map(|(_, seconds)| seconds).sum::<f64>();
    let rest = (steps - known).max(0.0);
    // Time of steps without some thread, since other processes use its CPU.
    let part = 1.0 - stats.thread_steps as f64 / (stats.steps as f64 * threads).max(1.0);
    let idle = if stats.reduced > 0 { (steps * part.max(0.0)).min(rest) } else { 0.0 };
    let between = (phase.seconds * threads - steps).max(0.0);
    let left =
        [(OtherTime::UnusedThreads, idle), (OtherTime::StepEnds, rest - idle), (OtherTime::BetweenSteps, between)];
    waits.into_iter().chain(left).collect()
}
