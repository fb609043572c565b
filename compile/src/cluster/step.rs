//! Time of a step on all ranks. Each rank computes until the next exchange. An exchange begins when
//! all ranks that take part in it have reached it.
//!
//! An op takes the longest of three times: its bytes at the memory's rate, its operations at the
//! cores' rate, or its missing experts at the drive's rate. Threads then meet at a barrier. The
//! constants describe ixc's own kernels, measured on one machine with 16 processors:
//!
//! - Kernels alone read as fast as memory allows, but some threads get more work than others
//!   ([`EVENNESS`]).
//! - A barrier takes longer with more threads; a description of machines states its time.
//!
//! If experts are divided among ranks, a token's experts are unevenly distributed. An exchange
//! waits for the rank with the most of the token's experts, so the expected work of this rank
//! counts ([`super::routing`]).

use ixc_ir::graph::ranks::{Collective, CollectiveKind};
use ixc_ir::graph::{Dim, Module, Type};
use serde::Serialize;

use super::exchange::{self, ExchangeCost};
use super::machines::Machines;
use super::work::{OpWork, StepSize, WeightBytes, WorkCounter};
use crate::cluster_error::ClusterError;

/// Ratio of a thread's mean work to the slowest thread's work, in decode of a dense model with 16
/// threads: 5.9 of 6.9 ms.
pub const EVENNESS: f64 = 0.85;

/// Bytes of an f32, which ranks exchange.
const FLOAT_BYTES: f64 = 4.0;

/// Cause that takes most of the time of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterBound {
    /// Reads of weights and states from memory.
    Memory,
    /// Operations of the cores.
    Compute,
    /// Reads of experts from drives.
    Drive,
    /// Barriers between the threads of a rank.
    Barriers,
    /// Latency of links.
    LinkLatency,
    /// Bandwidth of links.
    LinkBandwidth,
}

impl ClusterBound {
    /// Returns the bound as words of a report.
    pub fn words(self) -> &'static str {
        match self {
            ClusterBound::Memory => "memory",
            ClusterBound::Compute => "compute",
            ClusterBound::Drive => "drive",
            ClusterBound::Barriers => "barriers",
            ClusterBound::LinkLatency => "link latency",
            ClusterBound::LinkBandwidth => "link bandwidth",
        }
    }
}

/// Seconds of a rank in a step, by cause. Their sum is the time of the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RankSeconds {
    /// Seconds of ops that are limited by reads from memory.
    pub memory: f64,
    /// Seconds of ops that are limited by the cores' operations.
    pub compute: f64,
    /// Seconds of ops that wait for experts from the drive.
    pub drive: f64,
    /// Seconds of barriers between threads.
    pub barriers: f64,
    /// Seconds of the latency of exchanges.
    pub latency: f64,
    /// Seconds in which links transfer the bytes of exchanges.
    pub transfer: f64,
    /// Seconds of waiting for other ranks.
    pub waiting: f64,
}

impl RankSeconds {
    /// Returns the seconds of the rank's own work, without exchanges and waiting.
    pub fn work(&self) -> f64 {
        self.memory + self.compute + self.drive + self.barriers
    }

    /// Returns the cause that took longest. Waiting for other ranks is not a cause.
    fn main_cause(&self) -> ClusterBound {
        let all = [
            (ClusterBound::Memory, self.memory),
            (ClusterBound::Compute, self.compute),
            (ClusterBound::Drive, self.drive),
            (ClusterBound::Barriers, self.barriers),
            (ClusterBound::LinkLatency, self.latency),
            (ClusterBound::LinkBandwidth, self.transfer),
        ];
        let longest = all.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        longest.map_or(ClusterBound::Memory, |(bound, _)| bound)
    }

    fn add(&mut self, other: &RankSeconds) {
        self.memory += other.memory;
        self.compute += other.compute;
        self.drive += other.drive;
        self.barriers += other.barriers;
        self.latency += other.latency;
        self.transfer += other.transfer;
        self.waiting += other.waiting;
    }

    fn scale(&self, factor: f64) -> RankSeconds {
        RankSeconds {
            memory: self.memory * factor,
            compute: self.compute * factor,
            drive: self.drive * factor,
            barriers: self.barriers * factor,
            latency: self.latency * factor,
            transfer: self.transfer * factor,
            waiting: self.waiting * factor,
        }
    }
}

/// Predicted work of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RankForecast {
    /// Machine of the rank.
    pub machine: u32,
    /// Bytes of the rank's weights.
    pub weights: u64,
    /// Bytes of weights and states that the step reads.
    pub read: f64,
    /// Number of operations of the rank in the step.
    pub operations: f64,
    /// Predicted seconds of the rank, by cause.
    pub seconds: RankSeconds,
}

/// Number and bytes of the exchanges of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ExchangeCounts {
    /// Number of all-reduces, which sum values over ranks.
    pub all_reduce: u64,
    /// Number of all-gathers, which concatenate values of all ranks.
    pub all_gather: u64,
    /// Number of messages from one rank to another.
    pub send: u64,
    /// Number of messages of all exchanges.
    pub messages: u64,
    /// Bytes sent between ranks of one machine.
    pub bytes_inside: f64,
    /// Bytes sent between machines.
    pub bytes_between: f64,
}

impl ExchangeCounts {
    fn add(&mut self, kind: CollectiveKind, cost: &ExchangeCost) {
        match kind {
            CollectiveKind::AllReduce => self.all_reduce += 1,
            CollectiveKind::AllGather => self.all_gather += 1,
            CollectiveKind::Send(_) | CollectiveKind::Recv(_) => self.send += 1,
        }
        self.messages += cost.messages;
        self.bytes_inside += cost.bytes_inside;
        self.bytes_between += cost.bytes_between;
    }
}

/// Forecast of one step on all ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepForecast {
    /// Number of tokens of the step.
    pub tokens: u64,
    /// Number of tokens before the step.
    pub position: u64,
    /// Seconds of the step.
    pub seconds: f64,
    /// Tokens per second.
    pub tokens_per_second: f64,
    /// Cause that takes the most time, summed over all ranks.
    pub bound: ClusterBound,
    /// Mean over all ranks of the seconds by cause.
    pub mean: RankSeconds,
    /// Mean work of a rank, relative to the expected work of the busiest rank.
    pub balance: f64,
    /// Number and bytes of exchanges.
    pub exchanges: ExchangeCounts,
    /// Forecast of each rank.
    pub ranks: Vec<RankForecast>,
}

/// Part of a rank's step: work, or an exchange.
enum Part {
    /// Work until the next exchange: mean seconds by cause, and those of the busiest rank.
    Work { mean: RankSeconds, busiest: f64 },
    /// An exchange.
    Exchange(Collective),
}

/// Progress of a rank during the prediction of a step.
struct RankClock {
    parts: std::iter::Peekable<std::vec::IntoIter<Part>>,
    /// Seconds since the step began.
    now: f64,
    /// Seconds of work that the rank would have if it always had the most experts.
    busiest: f64,
    forecast: RankForecast,
}

/// Predicts a step for the graphs of all ranks. The exchanges of these graphs must match.
///
/// # Errors
/// Fails if the weights of a rank do not fit in memory.
pub fn forecast(modules: &[Module], machines: &Machines, size: StepSize) -> Result<StepForecast, ClusterError> {
    let mut clocks = Vec::new();
    for (rank, module) in (0..).zip(modules) {
        clocks.push(RankClock::new(module, machines, rank, modules.len() as u32, size)?);
    }
    let counts = run(&mut clocks, machines, size);
    let seconds = clocks.iter().map(|clock| clock.now).fold(0.0, f64::max);
    let mut sum = RankSeconds::default();
    for clock in &mut clocks {
        clock.forecast.seconds.waiting += seconds - clock.now;
        sum.add(&clock.forecast.seconds);
    }
    let most = clocks.iter().map(|clock| clock.busiest).fold(0.0, f64::max);
    let ranks: Vec<RankForecast> = clocks.into_iter().map(|clock| clock.forecast).collect();
    let mean = sum.scale(1.0 / ranks.len().max(1) as f64);
    Ok(StepForecast {
        tokens: size.tokens,
        position: size.position,
        seconds,
        tokens_per_second: size.tokens as f64 / seconds.max(f64::MIN_POSITIVE),
        bound: mean.main_cause(),
        balance: if most > 0.0 { mean.work() / most } else { 1.0 },
        mean,
        exchanges: counts,
        ranks,
    })
}

impl RankClock {
    fn new(
        module: &Module,
        machines: &Machines,
        rank: u32,
        ranks: u32,
        size: StepSize,
    ) -> Result<RankClock, ClusterError> {
        let weights = WeightBytes::from_module(module);
        let memory = machines.socket.memory_bytes;
        let Some(free) = memory.checked_sub(weights.dense) else {
            return Err(ClusterError::NoMemory { rank, needed: weights.dense, memory });
        };
        let resident = if weights.experts <= free { 1.0 } else { free as f64 / weights.experts as f64 };
        if resident < 1.0 && machines.drive.is_none() {
            return Err(ClusterError::NoDrive { rank, needed: weights.all(), memory, name: machines.name.clone() });
        }
        let rates = Rates { machines, missing: 1.0 - resident, drivers: machines.sockets.min(ranks) };
        let machine = machines.machine_of(rank);
        let seconds = RankSeconds::default();
        let mut forecast = RankForecast { machine, weights: weights.all(), read: 0.0, operations: 0.0, seconds };
        let mut parts = Vec::new();
        for function in &module.functions {
            let mut counter = WorkCounter::new(module, function, ranks, size);
            let (mut mean, mut busiest) = (RankSeconds::default(), 0.0);
            for op in &function.ops {
                if let Some(collective) = Collective::from_op(function, op) {
                    parts.push(Part::Work { mean, busiest });
                    parts.push(Part::Exchange(collective));
                    (mean, busiest) = (RankSeconds::default(), 0.0);
                    continue;
                }
                let work = counter.count(op);
                forecast.read += work.bytes + work.expert_bytes;
                forecast.operations += work.operations;
                let seconds = rates.seconds(&work);
                busiest += seconds.barriers + (seconds.work() - seconds.barriers) * work.busiest;
                mean.add(&seconds);
            }
            parts.push(Part::Work { mean, busiest });
        }
        Ok(RankClock { parts: parts.into_iter().peekable(), now: 0.0, busiest: 0.0, forecast })
    }

    /// Counts the rank's work until the next exchange, and returns that exchange.
    fn work(&mut self) -> Option<&Collective> {
        while let Some(Part::Work { mean, busiest }) = self.parts.next_if(|part| matches!(part, Part::Work { .. })) {
            self.now += busiest;
            self.busiest += busiest;
            self.forecast.seconds.add(&mean);
            // The rank waits until the busiest rank has finished.
            self.forecast.seconds.waiting += (busiest - mean.work()).max(0.0);
        }
        match self.parts.peek() {
            Some(Part::Exchange(collective)) => Some(collective),
            Some(Part::Work { .. }) | None => None,
        }
    }

    /// Ends the rank's next exchange, which began at the time `begin`.
    fn exchange(&mut self, begin: f64, cost: &ExchangeCost) {
        self.parts.next();
        self.forecast.seconds.waiting += begin - self.now;
        self.forecast.seconds.latency += cost.latency;
        self.forecast.seconds.transfer += cost.transfer;
        self.now = begin + cost.seconds();
    }
}

/// Rates at which a rank computes and reads.
struct Rates<'m> {
    machines: &'m Machines,
    /// Share of a rank's experts that do not fit in memory.
    missing: f64,
    /// Number of ranks that share one drive.
    drivers: u32,
}

impl Rates<'_> {
    /// Returns the seconds of an op by cause.
    fn seconds(&self, work: &OpWork) -> RankSeconds {
        let socket = &self.machines.socket;
        let rate = socket.memory_bytes_per_second * socket.memory_share;
        let memory = (work.bytes + work.expert_bytes) / rate / EVENNESS;
        let operations = match work.floats {
            true => socket.float_operations_per_second,
            false => socket.int8_operations_per_second,
        };
        let compute = work.operations / operations;
        let drive =
            self.machines.drive.as_ref().map_or(0.0, |drive| {
                work.expert_bytes * self.missing * f64::from(self.drivers) / drive.bytes_per_second
            });
        let mut seconds =
            RankSeconds { barriers: f64::from(work.stages) * socket.barrier_seconds, ..RankSeconds::default() };
        if drive > memory && drive > compute {
            seconds.drive = drive;
        } else if memory >= compute {
            seconds.memory = memory;
        } else {
            seconds.compute = compute;
        }
        seconds
    }
}

/// Runs all ranks to the end of the step. Returns the counts of exchanges.
fn run(clocks: &mut [RankClock], machines: &Machines, size: StepSize) -> ExchangeCounts {
    let mut counts = ExchangeCounts::default();
    let ranks = clocks.len() as u32;
    loop {
        let pending: Vec<Option<Collective>> = clocks.iter_mut().map(|clock| clock.work().cloned()).collect();
        let mut advanced = false;
        for (rank, collective) in pending.iter().enumerate() {
            let Some(Collective { kind: kind @ CollectiveKind::Send(to), ty }) = collective else { continue };
            let (from, peer) = (rank as u32, *to as usize);
            let receives = pending.get(peer).and_then(Option::as_ref).map(|peer| peer.kind);
            if receives == Some(CollectiveKind::Recv(from)) {
                let cost = exchange::send(machines, from, *to, message_bytes(ty, size));
                let begin = clocks[rank].now.max(clocks[peer].now);
                clocks[rank].exchange(begin, &cost);
                clocks[peer].exchange(begin, &cost);
                counts.add(*kind, &cost);
                advanced = true;
            }
        }
        if advanced {
            continue;
        }
        // No messages between two ranks are pending, so all ranks are at the same collective
        // exchange, or have ended.
        let Some(Some(Collective { kind, ty })) = pending.first() else { return counts };
        let bytes = message_bytes(ty, size);
        let cost = match kind {
            CollectiveKind::AllReduce => exchange::all_reduce(machines, ranks, bytes),
            CollectiveKind::AllGather => exchange::all_gather(machines, ranks, bytes),
            // In matching graphs, every message has a sender and a receiver, so this arm is never
            // reached.
            CollectiveKind::Send(_) | CollectiveKind::Recv(_) => return counts,
        };
        let begin = clocks.iter().map(|clock| clock.now).fold(0.0, f64::max);
        clocks.iter_mut().for_each(|clock| clock.exchange(begin, &cost));
        counts.add(*kind, &cost);
    }
}

/// Returns the number of bytes of a value that a rank contributes to an exchange.
fn message_bytes(ty: &Type, size: StepSize) -> f64 {
    let elements: f64 = ty
        .dims()
        .iter()
        .map(|dim| match dim {
            Dim::Fixed(n) => *n as f64,
            // In a step, logits are requested for one row.
            Dim::Symbol(name) if name == "L" => 1.0,
            Dim::Symbol(_) => size.tokens as f64,
        })
        .product();
    elements * FLOAT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::machines::{self, Machines};
    use ixc_ir::graph::parse::parse;

    /// Returns the graph of rank 0 or 1: products, and a sum over both ranks.
    fn graph(rank: u32, rows: u64) -> Module {
        let text = format!(
            "weight @w : f32[{rows}, 1000]\nweight @v : f32[1000, {rows}]\n
func @step(%x: f32[T, 1000]) -> (f32[T, 1000]) {{
  %g = ranks.begin {{rank = {rank}, ranks = 2}} : token[{rank}, 2]
  %a = dequantise @w
  %y = matmul %x, %a
  %b = dequantise @v
  %z = matmul %y, %b
  %s, %h = all_reduce %g, %z
  return %s
}}
"
        );
        parse(&text).unwrap_or_else(|error| panic!("{error}"))
    }

    fn round() -> Machines {
        machines::find("round").unwrap()
    }

    #[test]
    fn time_of_a_step_is_derived_by_hand() {
        let size = StepSize { tokens: 1, position: 0 };
        let step = forecast(&[graph(0, 1000), graph(1, 500)], &round(), size).unwrap();
        // There are two products of 4 MB at 100 GB/s, with uneven threads. The four stages take 1
        // us each.
        let work = 8e6 / 100e9 / EVENNESS + 4e-6;
        // The sum has 4,000 bytes at 2 GB/s, 10 us latency, and 1 us for the message.
        let (latency, transfer) = (11e-6, 2e-6);
        assert!((step.seconds - work - latency - transfer).abs() < 1e-12, "{}", step.seconds);
        let [first, second] = [step.ranks[0], step.ranks[1]];
        assert!((first.seconds.work() - work).abs() < 1e-12 && first.seconds.waiting.abs() < 1e-12);
        assert!((second.seconds.waiting - 4e6 / 100e9 / EVENNESS).abs() < 1e-12);
        assert_eq!((first.weights, first.read, first.operations), (8_000_000, 8e6, 4e6));
        assert_eq!((step.bound, step.exchanges.all_reduce, step.exchanges.messages), (ClusterBound::Memory, 1, 2));
        for rank in &step.ranks {
            let all = rank.seconds.work() + rank.seconds.latency + rank.seconds.transfer + rank.seconds.waiting;
            assert!((all - step.seconds).abs() < 1e-12);
        }
        // For 1000 tokens, 4e9 operations at 5e12 a second take longer than the reads from memory.
        let long = forecast(&[graph(0, 1000), graph(1, 1000)], &round(), StepSize { tokens: 1000, position: 0 });
        let long = long.unwrap();
        assert!((long.mean.compute - 4e9 / 5e12).abs() < 1e-9 && long.mean.memory == 0.0);
        assert_eq!(long.bound, ClusterBound::LinkBandwidth);
    }

    #[test]
    fn each_cause_can_be_the_bound() {
        let graphs = [graph(0, 1000), graph(1, 1000)];
        let bound =
            |machines: &Machines| forecast(&graphs, machines, StepSize { tokens: 1, position: 0 }).unwrap().bound;
        let mut machines = round();
        machines.socket.barrier_seconds = 1.0;
        assert_eq!(bound(&machines), ClusterBound::Barriers);
        machines.inside.latency_seconds = 100.0;
        assert_eq!(bound(&machines), ClusterBound::LinkLatency);
        machines.inside.bytes_per_second = 1.0;
        assert_eq!(bound(&machines), ClusterBound::LinkBandwidth);
        machines.socket.memory_bytes = 1000;
        let error = forecast(&graphs, &machines, StepSize { tokens: 1, position: 0 }).unwrap_err();
        assert!(matches!(error, ClusterError::NoMemory { rank: 0, needed: 8_000_000, memory: 1000 }), "{error}");
    }

    #[test]
    fn slower_machines_never_make_a_step_faster() {
        let graphs = [graph(0, 1000), graph(1, 700)];
        for tokens in [1, 64, 4096] {
            let seconds =
                |machines: &Machines| forecast(&graphs, machines, StepSize { tokens, position: 0 }).unwrap().seconds;
            let fast = seconds(&round());
            for factor in [1.1, 7.0, 1e4] {
                let changes: [fn(&mut Machines, f64); 6] = [
                    |machines, factor| machines.inside.latency_seconds *= factor,
                    |machines, factor| machines.inside.bytes_per_second /= factor,
                    |machines, factor| machines.socket.memory_bytes_per_second /= factor,
                    |machines, factor| machines.socket.float_operations_per_second /= factor,
                    |machines, factor| machines.socket.barrier_seconds *= factor,
                    |machines, factor| machines.between.latency_seconds *= factor,
                ];
                for change in changes {
                    let mut slow = round();
                    change(&mut slow, factor);
                    assert!(seconds(&slow) >= fast);
                }
            }
        }
    }
}
