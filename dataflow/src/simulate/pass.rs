//! Simulation of one step: its state, and its result.
//!
//! An instance begins its next firing when four conditions hold:
//! - All bytes of the row have arrived.
//! - Each outlet has room for another row.
//! - Earlier programs that use its state have fired for the row.
//! - The PE is free.
//!
//! Arrays are indexed by instance, outlet, link or PE. A firing or a message allocates no memory.

use std::collections::HashMap;

use crate::descriptor::{Axis, TensorSource};
use crate::grid::Grid;

use super::receivers::{Segment, Waiting};
use super::routing::{NONE, Routed};
use super::{SimulateError, Step, is_routed};
use crate::check::Machine;
use crate::cost::Cost;
use crate::data::{Data, Payload};
use crate::network::Network;
use crate::queue::Queue;
use crate::report::{ProgramTime, Report};

/// Max cycles of a step.
pub(super) const MAX_CYCLES: u64 = 1 << 60;
/// Max cycles of a firing.
pub(super) const MAX_FIRING: u64 = 1 << 44;
/// Max firings that are remembered for the critical path.
const MAX_REMEMBERED: u64 = 12_000_000;

/// The condition that became true last before a firing began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The last message, which came from the host, arrived.
    Host,
    /// The last message arrived; it had not waited before it left.
    Message,
    /// The last message arrived; it had waited for room at another receiver.
    Room,
    /// The last message arrived; it had waited for a routing.
    Routing,
    /// The PE became free; the last message had arrived before.
    Busy,
    /// An earlier program that uses the instance's state fired.
    State,
    /// An outlet of the instance got room for another row.
    Place,
}

/// Cause of an event: a firing that ended, and the message that followed from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cause {
    /// Number of the remembered firing, or [`NONE`].
    pub firing: u32,
    pub why: Why,
    /// Cycles that the message took.
    pub transit: u32,
    /// Cycles that the message would have taken without waiting for links.
    pub alone: u32,
}

impl Cause {
    /// The host as a cause.
    pub const HOST: Cause = Cause { firing: NONE, why: Why::Host, transit: 0, alone: 0 };
}

/// A firing, remembered for the critical path.
#[derive(Clone, Copy, Debug)]
pub(super) struct FiringRecord {
    pub instance: u32,
    pub cause: Cause,
    pub start: u64,
    pub end: u64,
}

/// An event of the simulation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// An instance has finished a row.
    Done { instance: u32, firing: u32 },
    /// A part of a row has arrived in an instance's memory.
    Arrived { instance: u32, firing: u32, bytes: u32, cause: Cause },
    /// The host can send the next row of each of its streams.
    Input { row: u32 },
    /// A message to the host has left the grid; `cause` includes its path.
    Output { bytes: u32, cause: Cause },
}

/// Times of a wave.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaveTime {
    /// Time when the load of the wave's weights and states began.
    pub begin: u64,
    /// Time when the weights and states were loaded.
    pub start: u64,
    /// Time of the wave's last event (bytes at the host or the end of a firing), with its cause.
    pub finish: (u64, Cause),
    /// Time when the wave's states were completely stored at the host.
    pub end: u64,
}

/// Rows of a tensor that are stored at the host.
#[derive(Debug, Default)]
pub(super) struct HostTensor {
    /// Bytes received so far of each row.
    pub came: Vec<u64>,
    pub rows: Vec<Vec<u8>>,
}

/// Cycles and cost of one firing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Duration {
    pub cycles: u64,
    pub cost: Cost,
}

/// State of the simulation of one step.
pub(super) struct Pass<'a, 'w> {
    pub machine: &'a Machine,
    pub data: Option<&'a mut Data<'w>>,
    pub seed: u64,
    pub position: u32,
    pub tokens: &'a [u32],
    pub wanted: &'a [u32],
    /// Index in `wanted` of each token; [`NONE`] for other tokens.
    pub output_of: Vec<u32>,
    pub routed: Vec<Routed>,
    // The following lists are indexed by instance.
    pub started: Vec<u32>,
    pub done: Vec<u32>,
    /// Whether the instance waits for its PE.
    pub queued: Vec<bool>,
    pub next_queued: Vec<u32>,
    /// Number of the last remembered firing, or [`NONE`].
    pub last: Vec<u32>,
    /// First outlet in the list of outlets that wait for room at the instance.
    pub waiters: Vec<u32>,
    /// Bytes received so far, by instance and row in flight.
    pub arrivals: Vec<u32>,
    // The following lists are indexed by outlet.
    pub departed: Vec<u32>,
    pub waiting: Vec<Waiting>,
    // The following lists are indexed by PE.
    pub busy: Vec<bool>,
    pub queue_first: Vec<u32>,
    pub queue_last: Vec<u32>,
    pub worked: Vec<u64>,
    pub network: Network,
    pub queue: Queue<Event>,
    /// First cycle in which the host's links are free.
    pub io: f64,
    /// Times at which rows from the host arrive at the grid's edge, by stream.
    pub host_ready: Vec<Vec<u64>>,
    pub io_bytes: u64,
    pub host: Vec<HostTensor>,
    /// Time of the wave's last event (bytes at the host or the end of a firing), with its cause.
    pub finish: (u64, Cause),
    /// Times of the waves that have finished.
    pub waves: Vec<WaveTime>,
    pub durations: Vec<Option<Duration>>,
    pub by_dims: HashMap<(u32, Vec<i64>), Duration>,
    pub segments: Vec<Segment>,
    pub targets: Vec<u32>,
    pub remembered: Option<Vec<FiringRecord>>,
    pub times: Vec<ProgramTime>,
    pub total: Cost,
    pub firings: u64,
    pub deliveries: u64,
}

impl<'a, 'w> Pass<'a, 'w> {
    pub fn new(
        machine: &'a Machine,
        data: Option<&'a mut Data<'w>>,
        seed: u64,
        position: u32,
        tokens: &'a [u32],
        wanted: &'a [u32],
    ) -> Pass<'a, 'w> {
        let (d, layout) = (&machine.descriptor, &machine.layout);
        let (instances, outlets, pes) = (layout.pe.len(), layout.outlets(), d.grid.pes() as usize);
        let mut output_of = vec![NONE; tokens.len()];
        (0..).zip(wanted).for_each(|(output, token)| output_of[*token as usize] = output);
        let expected = instances as u64 * tokens.len() as u64;
        Pass {
            machine,
            data,
            seed,
            position,
            tokens,
            wanted,
            output_of,
            routed: d.routings.iter().map(|r| Routed::new(r.experts, r.top_k, tokens.len())).collect(),
            started: vec![0; instances],
            done: vec![0; instances],
            queued: vec![false; instances],
            next_queued: vec![NONE; instances],
            last: vec![NONE; instances],
            waiters: vec![NONE; instances],
            arrivals: vec![0; layout.arrivals as usize],
            departed: vec![0; outlets],
            waiting: vec![Waiting::default(); outlets],
            busy: vec![false; pes],
            queue_first: vec![NONE; pes],
            queue_last: vec![NONE; pes],
            worked: vec![0; pes],
            network: Network::new(&d.grid),
            queue: Queue::default(),
            io: 0.0,
            host_ready: vec![Vec::new(); layout.host.len()],
            io_bytes: 0,
            host: d.tensors.iter().map(|_| HostTensor::default()).collect(),
            finish: (0, Cause::HOST),
            waves: Vec::with_capacity(d.waves.len()),
            durations: vec![None; layout.units.len()],
            by_dims: HashMap::new(),
            segments: Vec::new(),
            targets: Vec::new(),
            remembered: (expected <= MAX_REMEMBERED).then(Vec::new),
            times: vec![ProgramTime::default(); layout.units.len()],
            total: Cost::default(),
            firings: 0,
            deliveries: 0,
        }
    }

    pub fn run(mut self) -> Result<Step, SimulateError> {
        let d = &self.machine.descriptor;
        let mut time = 0u64;
        let mut io_cycles = 0;
        for wave in 0..d.waves.len() as u32 {
            let plan = d.waves[wave as usize];
            // At the start of a sequence, there are no stored states to load.
            let states = if self.position == 0 { plan.store_bytes } else { 0 };
            let load_bytes = plan.load_bytes.saturating_sub(states);
            let (load, store) = (self.io_cycles(load_bytes)?, self.io_cycles(plan.store_bytes)?);
            self.io_bytes = self.io_bytes.saturating_add(load_bytes).saturating_add(plan.store_bytes);
            let begin = time;
            let start = begin + load;
            self.io = self.io.max(start as f64);
            self.finish = (start, Cause::HOST);
            self.wave(wave, start)?;
            let finish = (self.queue.now().max(self.finish.0), self.finish.1);
            time = finish.0 + store;
            if time > MAX_CYCLES {
                return Err(SimulateError::TooLong);
            }
            io_cycles += load + store;
            self.waves.push(WaveTime { begin, start, finish, end: time });
        }
        let logits = self.logits()?;
        let report = self.report(time, io_cycles);
        Ok(Step { report, logits })
    }

    /// Returns the number of cycles for transferring `bytes` bytes to or from the host.
    fn io_cycles(&self, bytes: u64) -> Result<u64, SimulateError> {
        let grid = &self.machine.descriptor.grid;
        let cycles = bytes as f64 * grid.clock_hz / grid.io.bytes_per_second;
        if cycles > MAX_CYCLES as f64 { Err(SimulateError::TooLong) } else { Ok(cycles.ceil() as u64) }
    }

    /// Returns the logits that the host received.
    fn logits(&mut self) -> Result<Vec<Vec<f32>>, SimulateError> {
        let d = &self.machine.descriptor;
        let expected = d.tensors[d.logits as usize].row_bytes;
        let host = std::mem::take(&mut self.host[d.logits as usize]);
        for output in 0..self.wanted.len() {
            let found = host.came.get(output).copied().unwrap_or(0);
            if found != expected {
                return Err(SimulateError::Logits { output, found, expected });
            }
        }
        if self.data.is_none() {
            return Ok(Vec::new());
        }
        let floats = |row: &Vec<u8>| {
            row.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
        };
        Ok(host.rows.iter().map(floats).collect())
    }

    fn report(&mut self, cycles: u64, wave_io_cycles: u64) -> Report {
        let (d, layout) = (&self.machine.descriptor, &self.machine.layout);
        let mut times = std::mem::take(&mut self.times);
        for (number, (time, unit)) in times.iter_mut().zip(&layout.units).enumerate() {
            time.label = d.programs[number].label.clone();
            time.kernel = d.programs[number].kernel;
            time.instances = unit.instances();
            let middle = layout.pe[(unit.first + unit.instances() / 2) as usize];
            time.place = (middle % d.grid.width, middle / d.grid.width);
        }
        let critical = self.critical_path(cycles);
        let network = &mut self.network;
        Report {
            grid: d.grid.clone(),
            model: d.model.clone(),
            rows: self.tokens.len() as u64,
            position: self.position,
            cycles,
            wave_io_cycles,
            total: self.total,
            worked: std::mem::take(&mut self.worked),
            memory: self.machine.memory.clone(),
            traffic: std::mem::take(&mut network.traffic),
            waited: network.waited,
            hops: network.hops,
            messages: network.messages,
            deliveries: self.deliveries,
            firings: self.firings,
            events: self.queue.push_count(),
            io_bytes: self.io_bytes,
            programs: times,
            critical,
        }
    }

    /// Returns a row that the host sends.
    pub(super) fn host_payload(&mut self, tensor: u32, number: u32) -> Result<Option<Payload>, SimulateError> {
        let (machine, position) = (self.machine, self.position + number);
        let Some(data) = &mut self.data else { return Ok(None) };
        Ok(Some(match machine.descriptor.tensors[tensor as usize].source {
            TensorSource::Embedding => data.embed(machine, self.tokens[number as usize])?,
            TensorSource::Rope(_) => Data::rope(machine, tensor, position),
            TensorSource::Programs => {
                let rows = &self.host[tensor as usize].rows;
                rows.get(number as usize).map_or_else(|| Payload::from([]), |row| Payload::from(&row[..]))
            }
        }))
    }

    pub(super) fn grid(&self) -> &'a Grid {
        &self.machine.descriptor.grid
    }

    /// Returns the host's rows of a tensor, with memory for all rows of this step.
    pub(super) fn host_rows(&mut self, tensor: u32, axis: Axis) -> &mut HostTensor {
        let rows = self.rows_of(axis) as usize;
        let row_bytes = self.machine.descriptor.tensors[tensor as usize].row_bytes as usize;
        let with_data = self.data.is_some();
        let host = &mut self.host[tensor as usize];
        if host.came.len() < rows {
            host.came.resize(rows, 0);
            if with_data {
                host.rows.resize(rows, vec![0; row_bytes]);
            }
        }
        debug_assert!(rows > 0 || !is_routed(axis));
        host
    }
}
