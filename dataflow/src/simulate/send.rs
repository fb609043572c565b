//! Messages: their receivers, and the time when they leave.

use std::ops::Range;
use std::rc::Rc;

use crate::data::Pending;
use crate::descriptor::Axis;

use super::SimulateError;
use super::pass::{Cause, Event, MAX_CYCLES, Pass, Why};
use super::receivers::Segment;
use super::routing::{NONE, RowId};
use crate::layout::{InstancePlace, Kind, Outlet, columns_of, edge, start};
use crate::network::MessageRoute;

/// Sender of a message.
#[derive(Clone, Copy, Debug)]
enum Sender {
    /// An instance of a program.
    Instance(u32),
    /// The host.
    Host {
        /// Number of the outlet among those of the host.
        outlet: usize,
        /// PE at which messages enter the grid.
        entry: u32,
    },
}

/// A message that leaves its sender.
struct Message<'a> {
    outlet: &'a Outlet,
    sender: Sender,
    /// Number of the row among the rows that the outlet sends.
    number: u32,
    row: RowId,
    /// Bytes of the row.
    bytes: Range<u64>,
    /// First cycle in which the message may leave.
    at: u64,
    cause: Cause,
    to: &'a [Segment],
}

impl<'a> Pass<'a, '_> {
    /// Collects the receivers of some bytes of a row. Returns `None` if the row's experts are not
    /// known yet.
    pub(super) fn receivers(
        &self,
        outlet: &Outlet,
        bytes: &Range<u64>,
        row: RowId,
        to: &mut Vec<Segment>,
    ) -> Option<()> {
        to.clear();
        if let Some(routing) = outlet.routing
            && row.token >= self.routed[routing as usize].known
        {
            return None;
        }
        let position = self.position + row.token;
        for consumer in &outlet.consumers {
            let unit = &self.machine.layout.units[consumer.program as usize];
            let receive = &unit.receives[consumer.receive as usize];
            let slice = &receive.slice;
            let mut add = |expert: u32, part: u32, firing: u32, first: u64, to_byte: u64| {
                let (column, count) =
                    columns_of(first, slice.column_stride, slice.bytes, unit.columns, bytes.start, bytes.end);
                if count > 0 {
                    to.push(Segment {
                        first: unit.instance(expert, column, part),
                        step: unit.parts,
                        count,
                        port: receive.port,
                        firing,
                        rows: slice.rows,
                        start: first + u64::from(column) * slice.column_stride,
                        stride: slice.column_stride,
                        bytes: slice.bytes,
                        to: to_byte,
                    });
                }
            };
            let firing = match unit.axis {
                Axis::Tokens => row.token,
                Axis::Outputs if self.output_of[row.token as usize] == NONE => continue,
                Axis::Outputs => self.output_of[row.token as usize],
                Axis::Routed(routing) => {
                    let routing = &self.routed[routing as usize];
                    let rows = match outlet.axis {
                        Axis::Routed(_) => row.routed..row.routed + 1,
                        Axis::Tokens | Axis::Outputs => row.token * routing.top_k..(row.token + 1) * routing.top_k,
                    };
                    for row in rows {
                        let (expert, firing) = (routing.expert[row as usize], routing.ordinal[row as usize]);
                        add(expert, 0, firing, slice.offset, 0);
                    }
                    continue;
                }
            };
            match receive.kind {
                Kind::Slots { top_k } => {
                    add(0, 0, firing, slice.offset, u64::from(row.routed % top_k) * slice.bytes);
                }
                Kind::Parts { positions, count } => {
                    for part in 0..(position / positions + 1).min(count) {
                        add(0, 0, firing, start(slice, 0, part), u64::from(part) * slice.bytes);
                    }
                }
                Kind::Row | Kind::Rope if unit.state.is_none() => add(0, 0, firing, slice.offset, 0),
                Kind::Row | Kind::Rope => {
                    let last = position / unit.positions;
                    for part in if unit.appends { last } else { 0 }..=last {
                        let firing = firing - self.first_token(unit, part) as u32;
                        add(0, part, firing, start(slice, 0, part), 0);
                    }
                }
            }
        }
        Some(())
    }

    /// Sends the rows of an outlet that wait and for which receivers have room. `cause` is the
    /// event that made the row or the room.
    pub(super) fn send(&mut self, outlet: u32, now: u64, cause: Cause) -> Result<(), SimulateError> {
        let mut segments = std::mem::take(&mut self.segments);
        let result = self.send_rows(outlet, now, cause, &mut segments);
        self.segments = segments;
        result
    }

    fn send_rows(
        &mut self,
        number: u32,
        now: u64,
        cause: Cause,
        segments: &mut Vec<Segment>,
    ) -> Result<(), SimulateError> {
        let layout = &self.machine.layout;
        let owner = layout.owner.get(number as usize).copied();
        let host = number.checked_sub(layout.first_host_outlet).and_then(|host| layout.host.get(host as usize));
        let (outlet, sender): (&'a Outlet, Sender) = match (owner, host) {
            (Some(owner), _) => {
                let unit = layout.unit(owner);
                let outlet = &unit.outlets[((number - unit.first_outlet) as usize) % unit.outlets.len()];
                (outlet, Sender::Instance(owner))
            }
            (None, Some(host)) => {
                let outlet = (number - layout.first_host_outlet) as usize;
                (&host.outlet, Sender::Host { outlet, entry: host.entry })
            }
            (None, None) => return Ok(()),
        };
        if self.waiting[number as usize].next != NONE
            || self.waiting[number as usize].at != NONE && cause.why != Why::Room
        {
            // The outlet is already in the list of outlets that wait for room.
            return Ok(());
        }
        self.waiting[number as usize].at = NONE;
        let mut cause = cause;
        loop {
            let head = self.departed[number as usize];
            let (row, bytes) = match owner {
                Some(owner) => {
                    let unit = layout.unit(owner);
                    if head >= self.done[owner as usize] {
                        return Ok(());
                    }
                    let InstancePlace { column, part, .. } = unit.place(owner);
                    let (low, high) = outlet.range(column, part);
                    (self.row(unit, owner, head), low..high)
                }
                None if head >= self.rows_of(outlet.axis) => return Ok(()),
                // The host has not sent the row yet.
                None if host.is_some()
                    && head as usize >= self.host_ready[(number - layout.first_host_outlet) as usize].len() =>
                {
                    return Ok(());
                }
                None => (self.host_row(outlet.axis, head), 0..outlet.slice.bytes),
            };
            if self.receivers(outlet, &bytes, row, segments).is_none() {
                if let Some(routing) = outlet.routing
                    && !std::mem::replace(&mut self.waiting[number as usize].routing, true)
                {
                    self.routed[routing as usize].waiting.push(number);
                }
                return Ok(());
            }
            if let Some(at) = self.no_room(number, segments) {
                let waiting = &mut self.waiting[number as usize];
                waiting.at = at;
                waiting.next = std::mem::replace(&mut self.waiters[at as usize], number);
                return Ok(());
            }
            self.departed[number as usize] += 1;
            let mut at = now;
            if let (Some(routing), Some(owner)) = (outlet.routing, owner) {
                let routing = &self.routed[routing as usize];
                let told =
                    routing.at[row.token as usize] + self.network.latency(routing.source, layout.pe[owner as usize]);
                at = at.max(told);
            }
            self.leave(Message { outlet, sender, number: head, row, bytes, at, cause, to: segments })?;
            if let Some(owner) = owner {
                let place = Cause { why: Why::Place, ..cause };
                self.start(owner, now, place)?;
            }
            cause = Cause { why: if owner.is_some() { cause.why } else { Why::Host }, ..cause };
        }
    }

    /// Returns the first receiver without room. The search continues at the receiver where the
    /// previous one ended.
    fn no_room(&mut self, outlet: u32, segments: &[Segment]) -> Option<u32> {
        let from = self.waiting[outlet as usize];
        for (number, segment) in segments.iter().enumerate().skip(from.segment as usize) {
            let first = if number as u32 == from.segment { from.column } else { 0 };
            for column in first..segment.count {
                let instance = segment.instance(column);
                if segment.firing - self.done[instance as usize].min(segment.firing) >= segment.rows {
                    let waiting = &mut self.waiting[outlet as usize];
                    (waiting.segment, waiting.column) = (number as u32, column);
                    return Some(instance);
                }
            }
        }
        let waiting = &mut self.waiting[outlet as usize];
        (waiting.segment, waiting.column) = (0, 0);
        None
    }

    /// Sends a message.
    fn leave(&mut self, message: Message<'_>) -> Result<(), SimulateError> {
        let Message { outlet, sender, number: head, row, bytes: range, mut at, cause, to: segments } = message;
        let layout = &self.machine.layout;
        let bytes = range.end - range.start;
        let payload = match (sender, &mut self.data) {
            (Sender::Host { .. }, _) if segments.is_empty() => None,
            (Sender::Host { .. }, _) => self.host_payload(outlet.slice.tensor, head)?,
            (Sender::Instance(_), None) => None,
            (Sender::Instance(owner), Some(data)) => {
                let unit = layout.unit(owner);
                // Other outlets of the same port may still need the row.
                let others = || (0..unit.outlets.len()).filter(|o| unit.outlets[*o].port == outlet.port);
                let last = others().all(|o| self.departed[unit.outlet(owner, o) as usize] > head);
                Some(data.take(owner, outlet.port, head, last))
            }
        };
        let from = match sender {
            Sender::Instance(owner) => layout.pe[owner as usize],
            Sender::Host { .. } if segments.is_empty() => return Ok(()),
            Sender::Host { outlet, entry } => {
                at = at.max(self.host_ready[outlet][head as usize]);
                entry
            }
        };
        let mut targets = std::mem::take(&mut self.targets);
        targets.clear();
        for segment in segments {
            targets.extend((0..segment.count).map(|column| layout.pe[segment.instance(column) as usize]));
        }
        let exit = outlet.host.then(|| edge(&self.machine.descriptor, from));
        targets.extend(exit);
        if !targets.is_empty() {
            let from_host = matches!(sender, Sender::Host { .. });
            self.network.send(
                from,
                at,
                bytes,
                &targets,
                MessageRoute { route: outlet.route, from_host, exit: exit.is_some() },
            );
        }
        let (mut last_pe, mut last_time) = (NONE, 0);
        for segment in segments {
            for column in 0..segment.count {
                let instance = segment.instance(column);
                let pe = layout.pe[instance as usize];
                // Neighbouring instances often share a PE; the message arrives there once.
                if pe != last_pe {
                    (last_pe, last_time) = (pe, self.network.arrive(from, pe, bytes));
                }
                let own = segment.overlap(column, &range);
                if let (Some(payload), Some(data)) = (&payload, &mut self.data) {
                    let start = segment.start + u64::from(column) * segment.stride;
                    let part = Pending {
                        firing: segment.firing,
                        port: segment.port,
                        to: segment.to + (own.start - start),
                        from: own.start - range.start,
                        bytes: own.end - own.start,
                        payload: Rc::clone(payload),
                    };
                    data.deliver(instance, part);
                }
                self.deliveries += 1;
                let alone = self.network.cycles_alone(from, pe, bytes);
                let cause = Cause {
                    transit: (last_time - at).min(u32::MAX.into()) as u32,
                    alone: alone.min(last_time - at).min(u32::MAX.into()) as u32,
                    ..cause
                };
                let bytes = (own.end - own.start) as u32;
                self.queue.push(last_time, Event::Arrived { instance, firing: segment.firing, bytes, cause });
            }
        }
        self.targets = targets;
        if let Some(exit) = exit {
            let left = self.network.leave(exit);
            let transit = (left - at).min(u32::MAX.into()) as u32;
            let cause = Cause { transit, alone: transit, ..cause };
            self.queue.push(left, Event::Output { bytes: bytes.min(u32::MAX.into()) as u32, cause });
            let number = self.number_of(outlet.axis, row) as usize;
            let host = self.host_rows(outlet.slice.tensor, outlet.axis);
            if let Some(came) = host.came.get_mut(number) {
                *came += bytes;
            }
            if let (Some(payload), Some(there)) = (&payload, host.rows.get_mut(number))
                && let Some(there) = there.get_mut(range.start as usize..range.end as usize)
            {
                there.copy_from_slice(payload);
            }
        }
        Ok(())
    }

    /// Uses the host's links for `bytes` bytes; returns the time when they arrive.
    pub(super) fn io(&mut self, at: u64, bytes: u64) -> Result<u64, SimulateError> {
        let grid = self.grid();
        let cycles = bytes as f64 * grid.clock_hz / grid.io.bytes_per_second;
        self.io = self.io.max(at as f64) + cycles;
        self.io_bytes += bytes;
        let there = self.io + grid.io.latency_seconds * grid.clock_hz;
        if there > MAX_CYCLES as f64 { Err(SimulateError::TooLong) } else { Ok(there.ceil() as u64) }
    }
}
