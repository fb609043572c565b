//! One step: firings, and what they wait for.
//!
//! An instance begins its next firing when all bytes of the row have come, each of its outlets has a place, programs before it on its state have
//! fired for the row, and its PE is free. All arrays are by instance, outlet, link or PE; nothing is allocated for a firing or a message.

use std::collections::HashMap;

use ixc_ir::dataflow::descriptor::{Axis, TensorSource};
use ixc_ir::dataflow::grid::Grid;

use super::rows::{NONE, Routed, RowId, draw};
use super::send::{Segment, Waiting};
use super::{SimulateError, Step, is_routed};
use crate::dataflow::check::{Machine, depends_on_position, program_name};
use crate::dataflow::cost::{Cost, cost};
use crate::dataflow::data::{Data, Payload, Row};
use crate::dataflow::layout::Unit;
use crate::dataflow::network::Network;
use crate::dataflow::queue::Queue;
use crate::dataflow::report::{ProgramTime, Report};

/// Cycles of a step at most.
pub(super) const MOST_CYCLES: u64 = 1 << 60;
/// Cycles of a firing at most.
const MOST_FIRING: u64 = 1 << 44;
/// Firings that are remembered for the critical path.
const MOST_REMEMBERED: u64 = 12_000_000;

/// Why a firing began no earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Its last message came from the host.
    Host,
    /// Its last message came, which left when it was made.
    Message,
    /// Its last message came, which had waited for room at another receiver.
    Room,
    /// Its last message came, which had waited for a routing.
    Routing,
    /// Its PE was busy.
    Busy,
    /// A program before it on its state had not fired.
    State,
    /// It had no place to put what it makes.
    Place,
}

/// What made something happen: a firing that ended, and the way of a message from there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cause {
    /// Number of the firing that is remembered, [`NONE`] where there is none.
    pub firing: u32,
    pub why: Why,
    /// Cycles of the message's way.
    pub transit: u32,
    /// Cycles of the way if it had been alone.
    pub alone: u32,
}

/// A firing that is remembered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remembered {
    pub instance: u32,
    pub cause: Cause,
    pub start: u64,
    pub end: u64,
}

/// Something that happens at a time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// An instance has made a row.
    Done { instance: u32, firing: u32 },
    /// A part of a row is in an instance's memory.
    Arrived { instance: u32, firing: u32, bytes: u32, cause: Cause },
}

/// A tensor at the host.
#[derive(Debug, Default)]
pub(super) struct HostTensor {
    /// Bytes of each row that came.
    pub came: Vec<u64>,
    pub rows: Vec<Vec<u8>>,
}

/// Cycles and products of a firing.
#[derive(Clone, Copy, Debug)]
struct Duration {
    cycles: u64,
    cost: Cost,
}

/// One step.
pub(super) struct Pass<'a, 'w> {
    pub machine: &'a Machine,
    pub data: Option<&'a mut Data<'w>>,
    seed: u64,
    pub position: u32,
    pub tokens: &'a [u32],
    pub wanted: &'a [u32],
    /// Number of a token among those wanted.
    pub output_of: Vec<u32>,
    pub routed: Vec<Routed>,
    // By instance.
    started: Vec<u32>,
    pub done: Vec<u32>,
    /// Whether it waits for its PE.
    queued: Vec<bool>,
    next_queued: Vec<u32>,
    /// What made it ready, of those that wait for their PE.
    last: Vec<u32>,
    /// Outlets that wait for room there.
    pub waiters: Vec<u32>,
    /// By instance and place of a row.
    arrivals: Vec<u32>,
    // By outlet.
    pub departed: Vec<u32>,
    pub waiting: Vec<Waiting>,
    // By PE.
    busy: Vec<bool>,
    queue_first: Vec<u32>,
    queue_last: Vec<u32>,
    worked: Vec<u64>,
    pub network: Network,
    pub queue: Queue<Event>,
    /// When the host's links are free.
    pub io: f64,
    /// Of each stream from the host, when its rows are before the edge.
    pub host_ready: Vec<Vec<u64>>,
    pub io_bytes: u64,
    pub host: Vec<HostTensor>,
    /// When the last bytes were at the host, and what made them.
    pub finish: (u64, Cause),
    durations: Vec<Option<Duration>>,
    by_dims: HashMap<(u32, Vec<i64>), Duration>,
    pub segments: Vec<Segment>,
    pub targets: Vec<u32>,
    pub remembered: Option<Vec<Remembered>>,
    times: Vec<ProgramTime>,
    total: Cost,
    firings: u64,
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
            finish: (0, Cause { firing: NONE, why: Why::Host, transit: 0, alone: 0 }),
            durations: vec![None; layout.units.len()],
            by_dims: HashMap::new(),
            segments: Vec::new(),
            targets: Vec::new(),
            remembered: (expected <= MOST_REMEMBERED).then(Vec::new),
            times: vec![ProgramTime::default(); layout.units.len()],
            total: Cost::default(),
            firings: 0,
            deliveries: 0,
        }
    }

    pub fn run(mut self) -> Result<Step, SimulateError> {
        let d = &self.machine.descriptor;
        let mut time = 0;
        let mut io_cycles = 0;
        for wave in 0..d.waves.len() as u32 {
            let plan = d.waves[wave as usize];
            let load = self.io_cycles(plan.load_bytes);
            self.io_bytes = self.io_bytes.saturating_add(plan.load_bytes).saturating_add(plan.store_bytes);
            time += load;
            self.io = self.io.max(time as f64);
            self.wave(wave, time)?;
            time = self.queue.now().max(self.finish.0).max(time);
            let store = self.io_cycles(plan.store_bytes);
            time += store;
            io_cycles += load + store;
        }
        if time > MOST_CYCLES {
            return Err(SimulateError::TooLong);
        }
        let logits = self.logits()?;
        let report = self.report(time, io_cycles);
        Ok(Step { report, logits })
    }

    fn io_cycles(&self, bytes: u64) -> u64 {
        let grid = &self.machine.descriptor.grid;
        (bytes as f64 * grid.clock_hz / grid.io.bytes_per_second).ceil() as u64
    }

    /// One wave, from `time` on.
    fn wave(&mut self, wave: u32, time: u64) -> Result<(), SimulateError> {
        let layout = &self.machine.layout;
        let host = || layout.host.iter().enumerate().filter(|(_, host)| host.wave == wave);
        // Row by row, as they will be needed.
        let rows: Vec<u32> = host().map(|(_, host)| self.rows_of(host.outlet.axis)).collect();
        for row in 0..rows.iter().copied().max().unwrap_or(0) {
            for ((number, host), _) in host().zip(&rows).filter(|(_, rows)| row < **rows) {
                let ready = self.io(time, host.outlet.slice.bytes);
                self.host_ready[number].push(ready);
            }
        }
        for (number, _) in host() {
            let cause = Cause { firing: NONE, why: Why::Host, transit: 0, alone: 0 };
            self.send(layout.first_host_outlet + number as u32, time, cause)?;
        }
        while let Some((now, event)) = self.queue.pop() {
            if now > MOST_CYCLES {
                return Err(SimulateError::TooLong);
            }
            match event {
                Event::Done { instance, firing } => self.finished(instance, firing, now)?,
                Event::Arrived { instance, firing, bytes, cause } => {
                    self.arrived(instance, firing, bytes, now, cause)?
                }
            }
        }
        self.leftovers(wave)
    }

    /// What is left when nothing happens any more.
    fn leftovers(&self, wave: u32) -> Result<(), SimulateError> {
        let layout = &self.machine.layout;
        let of_wave = || layout.units.iter().enumerate().filter(move |(_, unit)| unit.wave == wave);
        let mut waiting = 0u64;
        let mut first = None;
        for (_, unit) in of_wave() {
            for instance in unit.first..unit.first + unit.instances() {
                let unfired = self.done[instance as usize] < self.firings(unit, instance);
                let unsent = (0..unit.outlets.len())
                    .any(|o| self.departed[unit.outlet(instance, o) as usize] < self.done[instance as usize]);
                if unfired || unsent {
                    waiting += 1;
                    first = first.or(Some(instance));
                }
            }
        }
        let host = (layout.first_host_outlet..).zip(&layout.host).filter(|(_, host)| host.wave == wave);
        let unsent = host.filter(|(o, host)| self.departed[*o as usize] < self.rows_of(host.outlet.axis));
        if waiting > 0 || unsent.clone().next().is_some() {
            let (chain, cyclic) = self.stuck(first);
            return Err(SimulateError::Deadlock { wave, cycle: self.queue.now(), waiting, chain, cyclic });
        }
        for (number, unit) in of_wave() {
            let depth = u64::from(unit.depth);
            let counts = &self.arrivals[unit.arrivals as usize..][..(u64::from(unit.instances()) * depth) as usize];
            if let Some(place) = counts.iter().position(|bytes| *bytes > 0) {
                let (expert, column, part) = unit.place(unit.first + (place as u64 / depth) as u32);
                let program = program_name(&self.machine.descriptor, number);
                return Err(SimulateError::Unreceived { program, column, expert, part, bytes: counts[place].into() });
            }
        }
        Ok(())
    }

    /// Where an instance's count of what has come of a firing is.
    fn count(&self, unit: &Unit, instance: u32, firing: u32) -> usize {
        let depth = u64::from(unit.depth);
        (unit.arrivals + u64::from(instance - unit.first) * depth + u64::from(firing) % depth) as usize
    }

    fn arrived(&mut self, instance: u32, firing: u32, bytes: u32, now: u64, cause: Cause) -> Result<(), SimulateError> {
        let unit = self.machine.layout.unit(instance);
        let count = self.count(unit, instance, firing);
        let found = u64::from(self.arrivals[count]) + u64::from(bytes);
        let position = self.position + self.row(unit, instance, firing).token;
        let right = self.needs(unit, position);
        if found > right {
            let (expert, column, part) = unit.place(instance);
            let number = self.machine.layout.program[instance as usize] as usize;
            let program = program_name(&self.machine.descriptor, number);
            return Err(SimulateError::SentTwice { program, column, expert, part, row: firing, found, right });
        }
        self.arrivals[count] = found as u32;
        if found == right { self.start(instance, now, cause) } else { Ok(()) }
    }

    /// Begins an instance's next firing, if nothing is missing.
    pub fn start(&mut self, instance: u32, now: u64, cause: Cause) -> Result<(), SimulateError> {
        let i = instance as usize;
        let firing = self.started[i];
        if firing != self.done[i] || self.queued[i] {
            return Ok(());
        }
        let unit = self.machine.layout.unit(instance);
        if firing >= self.firings(unit, instance) {
            return Ok(());
        }
        let row = self.row(unit, instance, firing);
        let position = self.position + row.token;
        if u64::from(self.arrivals[self.count(unit, instance, firing)]) != self.needs(unit, position) {
            return Ok(());
        }
        for (number, outlet) in unit.outlets.iter().enumerate() {
            if firing - self.departed[unit.outlet(instance, number) as usize] >= outlet.slice.rows {
                return Ok(());
            }
        }
        if !unit.before.is_empty() && !self.state_is_ready(unit, instance, row.token) {
            return Ok(());
        }
        let pe = self.machine.layout.pe[i] as usize;
        if self.busy[pe] {
            self.queued[i] = true;
            let last = std::mem::replace(&mut self.queue_last[pe], instance);
            if last == NONE {
                self.queue_first[pe] = instance;
            } else {
                self.next_queued[last as usize] = instance;
            }
            return Ok(());
        }
        self.begin(instance, firing, row, now, cause)
    }

    /// Whether programs before it on its state have fired for all rows up to a token.
    pub fn state_is_ready(&self, unit: &Unit, instance: u32, token: u32) -> bool {
        let (_, column, part) = unit.place(instance);
        unit.before.iter().all(|other| {
            let other = &self.machine.layout.units[*other as usize];
            let theirs = other.instance(0, column, part);
            let rows = (u64::from(token) + 1).saturating_sub(self.first_token(other, part));
            u64::from(self.done[theirs as usize]) >= rows.min(self.firings(other, theirs).into())
        })
    }

    fn begin(&mut self, instance: u32, firing: u32, row: RowId, now: u64, cause: Cause) -> Result<(), SimulateError> {
        let layout = &self.machine.layout;
        let (number, pe) = (layout.program[instance as usize], layout.pe[instance as usize] as usize);
        let unit = &layout.units[number as usize];
        let position = self.position + row.token;
        let (_, _, part) = unit.place(instance);
        let program = &self.machine.descriptor.programs[number as usize];
        let duration = match self.durations[number as usize] {
            Some(duration) if self.data.is_none() => duration,
            _ => {
                let positions = if unit.state.is_some() { unit.positions } else { 16 };
                let seen = unit.receives.iter().find_map(|receive| match receive.kind {
                    crate::dataflow::layout::Kind::Parts { positions, count } => Some((positions, count)),
                    _ => None,
                });
                let dims: Vec<i64> =
                    program.dims.iter().map(|rule| super::dims::dim(*rule, positions, part, position, seen)).collect();
                let duration = self.duration(number, &dims);
                if let Some(data) = &mut self.data {
                    let block = match unit.state {
                        Some(_) => position.saturating_sub(part * unit.positions) / 16,
                        None => 0,
                    };
                    data.fire(self.machine, instance, firing, Row { position, block, dims: &dims })?;
                }
                duration
            }
        };
        let start_cycles = u64::from(self.machine.descriptor.grid.pe.start_cycles);
        let cycles = duration.cycles.min(MOST_FIRING) + start_cycles;
        let end = now.saturating_add(cycles);
        self.started[instance as usize] += 1;
        self.busy[pe] = true;
        self.worked[pe] += cycles;
        self.firings += 1;
        self.total.add(&duration.cost, 1);
        let times = &mut self.times[number as usize];
        times.note(now, end);
        if let Some(remembered) = &mut self.remembered {
            self.last[instance as usize] = remembered.len() as u32;
            remembered.push(Remembered { instance, cause, start: now, end });
        }
        self.queue.push(end, Event::Done { instance, firing });
        Ok(())
    }

    fn duration(&mut self, program: u32, dims: &[i64]) -> Duration {
        if let Some(duration) = self.durations[program as usize] {
            return duration;
        }
        let unit = &self.machine.layout.units[program as usize];
        let kernel = &self.machine.kernels[unit.kernel as usize];
        let pe = &self.machine.descriptor.grid.pe;
        let rules = &self.machine.descriptor.programs[program as usize].dims;
        let constant = !rules.iter().any(|rule| depends_on_position(*rule));
        let key = (unit.kernel, dims.to_vec());
        let duration = *self.by_dims.entry(key).or_insert_with(|| {
            let cost = cost(kernel, dims);
            Duration { cycles: cost.cycles(pe), cost }
        });
        if constant {
            self.durations[program as usize] = Some(duration);
        }
        duration
    }

    /// What an instance's last firing is for others.
    pub fn cause(&self, instance: u32, why: Why) -> Cause {
        Cause { firing: self.last[instance as usize], why, transit: 0, alone: 0 }
    }

    fn finished(&mut self, instance: u32, firing: u32, now: u64) -> Result<(), SimulateError> {
        let layout = &self.machine.layout;
        let unit = layout.unit(instance);
        let row = self.row(unit, instance, firing);
        let count = self.count(unit, instance, firing);
        self.arrivals[count] = 0;
        self.done[instance as usize] += 1;
        let pe = layout.pe[instance as usize] as usize;
        for ids in &unit.makes_ids {
            let (_, column, part) = unit.place(instance);
            self.ids(instance, ids.routing, ids.port, (column, part), firing, row.token, now)?;
        }
        for outlet in 0..unit.outlets.len() {
            self.send(unit.outlet(instance, outlet), now, self.cause(instance, Why::Message))?;
        }
        // There is room for another row now.
        let mut outlet = std::mem::replace(&mut self.waiters[instance as usize], NONE);
        while outlet != NONE {
            let next = std::mem::replace(&mut self.waiting[outlet as usize].next, NONE);
            self.send(outlet, now, self.cause(instance, Why::Room))?;
            outlet = next;
        }
        let (_, column, part) = unit.place(instance);
        for other in &unit.after {
            let theirs = layout.units[*other as usize].instance(0, column, part);
            self.start(theirs, now, self.cause(instance, Why::State))?;
        }
        // It waits its turn behind those that are ready.
        self.start(instance, now, self.cause(instance, Why::Busy))?;
        let next = self.queue_first[pe];
        self.busy[pe] = false;
        if next != NONE {
            self.queue_first[pe] = std::mem::replace(&mut self.next_queued[next as usize], NONE);
            if self.queue_first[pe] == NONE {
                self.queue_last[pe] = NONE;
            }
            self.queued[next as usize] = false;
            let unit = layout.unit(next);
            let firing = self.started[next as usize];
            let row = self.row(unit, next, firing);
            self.begin(next, firing, row, now, self.cause(instance, Why::Busy))?;
        }
        Ok(())
    }

    /// Part of a token's experts was made.
    #[allow(clippy::too_many_arguments, reason = "one caller, all of them plain numbers")]
    fn ids(
        &mut self,
        instance: u32,
        routing: u32,
        port: u32,
        (column, part): (u32, u32),
        firing: u32,
        token: u32,
        now: u64,
    ) -> Result<(), SimulateError> {
        let d = &self.machine.descriptor;
        let shape = d.routings[routing as usize];
        let program = &d.programs[self.machine.layout.program[instance as usize] as usize];
        let Some(ixc_ir::dataflow::descriptor::Port::Send(slice)) = program.ports.get(port as usize) else {
            return Ok(());
        };
        let from = crate::dataflow::layout::start(slice, column, part) as usize;
        let row_bytes = d.tensors[shape.ids as usize].row_bytes;
        if let Some(data) = &mut self.data {
            let streamed = self.machine.layout.unit(instance).outlets.iter().any(|outlet| outlet.port == port);
            let payload = data.take(instance, port, firing, !streamed);
            let host = &mut self.host[shape.ids as usize];
            if host.rows.len() < self.tokens.len() {
                host.rows.resize(self.tokens.len(), vec![0; row_bytes as usize]);
            }
            if let Some(there) = host.rows[token as usize].get_mut(from..from + payload.len()) {
                there.copy_from_slice(&payload);
            }
        }
        let state = &mut self.routed[routing as usize];
        state.made[token as usize] += slice.bytes;
        state.source = self.machine.layout.pe[instance as usize];
        let mut news = false;
        while let Some(made) = self.routed[routing as usize].made.get(self.routed[routing as usize].known as usize) {
            if *made < row_bytes {
                break;
            }
            let token = self.routed[routing as usize].known;
            let ids = match &self.data {
                None => {
                    let seed = self.seed ^ (u64::from(routing) << 40) ^ u64::from(self.position + token);
                    draw(seed.wrapping_mul(0x2545_f491_4f6c_dd1d), shape.experts, shape.top_k)
                }
                Some(_) => {
                    let words = self.host[shape.ids as usize].rows[token as usize].chunks_exact(4);
                    words.map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
                }
            };
            if let Some(found) = ids.iter().find(|id| **id >= shape.experts) {
                let (found, experts) = (*found, shape.experts);
                return Err(SimulateError::Expert { routing, token, found, experts });
            }
            self.routed[routing as usize].note(&ids, now);
            news = true;
        }
        if news {
            for outlet in std::mem::take(&mut self.routed[routing as usize].waiting) {
                self.send(outlet, now, self.cause(instance, Why::Routing))?;
            }
        }
        Ok(())
    }

    /// The host's copy of the logits.
    fn logits(&mut self) -> Result<Vec<Vec<f32>>, SimulateError> {
        let d = &self.machine.descriptor;
        let right = d.tensors[d.logits as usize].row_bytes;
        let host = std::mem::take(&mut self.host[d.logits as usize]);
        for output in 0..self.wanted.len() {
            let found = host.came.get(output).copied().unwrap_or(0);
            if found != right {
                return Err(SimulateError::Logits { output, found, right });
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
            events: self.queue.pushed(),
            io_bytes: self.io_bytes,
            programs: times,
            critical,
        }
    }

    /// A row that the host sends.
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

    /// Rows that the host has room for, of a tensor that goes there.
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
