//! Firings: the slices that must arrive before a firing, its begin and duration, and the events
//! after its end.

use super::SimulateError;
use super::pass::{Cause, Duration, Event, FiringRecord, MAX_FIRING, Pass, Why};
use super::routing::{NONE, RowId};
use crate::check::MAX_STEPS;
use crate::cost::cost;
use crate::data::Row;
use crate::descriptor::program_name;
use crate::dims::Firing;
use crate::layout::{InstancePlace, Kind, Unit};
use ixc_ir::plan::DimExpr;

impl Pass<'_, '_> {
    /// Returns the index of an instance's arrival counter for a firing.
    pub(super) fn count(&self, unit: &Unit, instance: u32, firing: u32) -> usize {
        let depth = u64::from(unit.depth);
        (unit.arrivals + u64::from(instance - unit.first) * depth + u64::from(firing) % depth) as usize
    }

    pub(super) fn receive(
        &mut self,
        instance: u32,
        firing: u32,
        bytes: u32,
        now: u64,
        cause: Cause,
    ) -> Result<(), SimulateError> {
        let unit = self.machine.layout.unit(instance);
        let count = self.count(unit, instance, firing);
        let found = u64::from(self.arrivals[count]) + u64::from(bytes);
        let position = self.position + self.row(unit, instance, firing).token;
        let expected = self.needs(unit, position);
        if found > expected {
            let InstancePlace { expert, column, part } = unit.place(instance);
            let number = self.machine.layout.program[instance as usize] as usize;
            let program = program_name(&self.machine.descriptor, number);
            return Err(SimulateError::SentTwice { program, column, expert, part, row: firing, found, expected });
        }
        self.arrivals[count] = found as u32;
        if found == expected { self.start(instance, now, cause) } else { Ok(()) }
    }

    /// Begins an instance's next firing, if all conditions hold.
    pub(super) fn start(&mut self, instance: u32, now: u64, cause: Cause) -> Result<(), SimulateError> {
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

    /// Whether all programs that use an instance's state before it have fired for all rows up to a
    /// token.
    pub(super) fn state_is_ready(&self, unit: &Unit, instance: u32, token: u32) -> bool {
        let InstancePlace { column, part, .. } = unit.place(instance);
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
        let part = unit.place(instance).part;
        let program = &self.machine.descriptor.programs[number as usize];
        let duration = match self.durations[number as usize] {
            Some(duration) if self.data.is_none() => duration,
            _ => {
                let positions = if unit.state.is_some() { unit.positions } else { 16 };
                let parts = unit.receives.iter().find_map(|receive| match receive.kind {
                    Kind::Parts { positions, count } => Some((position / positions.max(1) + 1).min(count)),
                    _ => None,
                });
                let row = Firing { positions, part, position, parts: parts.unwrap_or(1) };
                let dims = program.dims.iter().map(|dim| row.dim(dim)).collect::<Result<Vec<i64>, _>>()?;
                let duration = self.duration(number, &dims);
                if duration.cost.steps > MAX_STEPS {
                    return Err(SimulateError::TooLong);
                }
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
        if duration.cycles > MAX_FIRING {
            return Err(SimulateError::TooLong);
        }
        let cycles = duration.cycles + start_cycles;
        let end = now + cycles;
        self.started[instance as usize] += 1;
        self.busy[pe] = true;
        // The sum does not overflow: no PE works longer than the step takes.
        self.worked[pe] += cycles;
        self.firings += 1;
        self.total.add(&duration.cost, 1);
        let times = &mut self.times[number as usize];
        times.note(now, end);
        if let Some(remembered) = &mut self.remembered {
            self.last[instance as usize] = remembered.len() as u32;
            remembered.push(FiringRecord { instance, cause, start: now, end });
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
        let dims_of = &self.machine.descriptor.programs[program as usize].dims;
        let constant = !dims_of.iter().any(DimExpr::uses_positions);
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

    /// Returns the last firing of an instance as the cause of another event.
    pub(super) fn cause(&self, instance: u32, why: Why) -> Cause {
        Cause { firing: self.last[instance as usize], why, transit: 0, alone: 0 }
    }

    pub(super) fn finish_firing(&mut self, instance: u32, firing: u32, now: u64) -> Result<(), SimulateError> {
        let layout = &self.machine.layout;
        let unit = layout.unit(instance);
        let row = self.row(unit, instance, firing);
        let count = self.count(unit, instance, firing);
        self.arrivals[count] = 0;
        self.done[instance as usize] += 1;
        if now > self.finish.0 {
            self.finish = (now, self.cause(instance, Why::Message));
        }
        let pe = layout.pe[instance as usize] as usize;
        for ids in &unit.routed_ids {
            self.ids(instance, *ids, firing, row.token, now)?;
        }
        for outlet in 0..unit.outlets.len() {
            self.send(unit.outlet(instance, outlet), now, self.cause(instance, Why::Message))?;
        }
        // The firing frees the memory of its row, so the receiver now has room for another row.
        let mut outlet = std::mem::replace(&mut self.waiters[instance as usize], NONE);
        while outlet != NONE {
            let next = std::mem::replace(&mut self.waiting[outlet as usize].next, NONE);
            self.send(outlet, now, self.cause(instance, Why::Room))?;
            outlet = next;
        }
        let InstancePlace { column, part, .. } = unit.place(instance);
        for other in &unit.after {
            let theirs = layout.units[*other as usize].instance(0, column, part);
            self.start(theirs, now, self.cause(instance, Why::State))?;
        }
        // The instance's next firing waits after the firings on this PE that are already ready.
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
}
