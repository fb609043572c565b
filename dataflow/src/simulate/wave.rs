//! Simulation of one wave: the host's input, its events, and the check for unfinished work.

use super::SimulateError;
use super::pass::{Cause, Event, MAX_CYCLES, Pass};

impl Pass<'_, '_> {
    /// Runs one wave, beginning at `time`.
    pub(super) fn wave(&mut self, wave: u32, time: u64) -> Result<(), SimulateError> {
        self.queue.push(time, Event::Input { row: 0 });
        while let Some((now, event)) = self.queue.pop() {
            if now > MAX_CYCLES {
                return Err(SimulateError::TooLong);
            }
            match event {
                Event::Done { instance, firing } => self.finish_firing(instance, firing, now)?,
                Event::Arrived { instance, firing, bytes, cause } => {
                    self.receive(instance, firing, bytes, now, cause)?
                }
                Event::Input { row } => self.input(wave, row, now)?,
                Event::Output { bytes, cause } => {
                    let there = self.io(now, bytes.into())?;
                    if there > self.finish.0 {
                        let transit = there.saturating_sub(now).saturating_add(cause.transit.into());
                        let transit = transit.min(u32::MAX.into()) as u32;
                        self.finish = (there, Cause { transit, alone: transit, ..cause });
                    }
                }
            }
        }
        self.leftovers(wave)
    }

    /// Sends the next row of each of the host's streams. Input and output use the host's links in
    /// the order of their times.
    fn input(&mut self, wave: u32, row: u32, now: u64) -> Result<(), SimulateError> {
        let layout = &self.machine.layout;
        let mut more = false;
        for number in &layout.host_waves[wave as usize] {
            let host = &layout.host[*number as usize];
            let rows = self.rows_of(host.outlet.axis);
            if row >= rows {
                continue;
            }
            more |= row + 1 < rows;
            let ready = self.io(now, host.outlet.slice.bytes)?;
            self.host_ready[*number as usize].push(ready);
            self.send(layout.first_host_outlet + number, now, Cause::HOST)?;
        }
        if more {
            self.queue.push(self.io.ceil() as u64, Event::Input { row: row + 1 });
        }
        Ok(())
    }

    /// Returns an error if work is left after the last event.
    fn leftovers(&self, wave: u32) -> Result<(), SimulateError> {
        let layout = &self.machine.layout;
        let programs = || layout.waves[wave as usize].iter().map(|program| &layout.units[*program as usize]);
        let mut waiting = 0u64;
        let mut first = None;
        for unit in programs() {
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
        let unsent = layout.host_waves[wave as usize].iter().any(|number| {
            let rows = self.rows_of(layout.host[*number as usize].outlet.axis);
            self.departed[(layout.first_host_outlet + number) as usize] < rows
        });
        if waiting > 0 || unsent {
            let (chain, cyclic) = self.wait_chain(first);
            return Err(SimulateError::Deadlock { wave, cycle: self.queue.now(), waiting, chain, cyclic });
        }
        Ok(())
    }
}
