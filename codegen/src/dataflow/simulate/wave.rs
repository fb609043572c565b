//! One wave: what the host sends into it, its events, and what is left when nothing happens any more.

use super::SimulateError;
use super::pass::{Cause, Event, MOST_CYCLES, Pass, Why};
use super::rows::NONE;
use crate::dataflow::check::program_name;

impl Pass<'_, '_> {
    /// One wave, from `time` on.
    pub(super) fn wave(&mut self, wave: u32, time: u64) -> Result<(), SimulateError> {
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
}
