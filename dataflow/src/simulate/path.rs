//! The critical path: the chain of waits from the last bytes that reach the host back to the first
//! bytes that leave it.

use super::pass::{Pass, Why};
use super::routing::NONE;
use crate::report::CriticalPath;

impl Pass<'_, '_> {
    /// Computes the critical path of the step; `None` if there were too many firings to remember.
    pub(super) fn critical_path(&self, cycles: u64) -> Option<CriticalPath> {
        let remembered = self.remembered.as_ref()?;
        let mut path = CriticalPath { cycles, ..CriticalPath::default() };
        let mut by_label: Vec<u64> = vec![0; self.machine.layout.units.len()];
        let mut waited = by_label.clone();
        // A wave begins when the previous one has ended. Between two waves, states are stored, and
        // weights and states are loaded.
        for wave in self.waves.iter().rev() {
            let (finish, last) = wave.finish;
            path.host += wave.end - finish + wave.start - wave.begin;
            let mut until = finish.saturating_sub(last.transit.into()).max(wave.start);
            path.host += finish - until;
            let mut cause = last;
            while let Some(firing) = remembered.get(cause.firing as usize) {
                // Adds the waiting time between the end of the firing and the event that it caused.
                path.wait += until.saturating_sub(firing.end);
                let program = self.machine.layout.program[firing.instance as usize];
                by_label[program as usize] += firing.end - firing.start;
                path.compute += firing.end - firing.start;
                path.firings += 1;
                match firing.cause.why {
                    Why::Busy => path.busy += 1,
                    Why::Room | Why::Place => path.room += 1,
                    Why::Routing => path.routing += 1,
                    Why::Host | Why::Message | Why::State => {}
                }
                let (transit, alone) = (u64::from(firing.cause.transit), u64::from(firing.cause.alone));
                if firing.cause.firing == NONE {
                    path.host += firing.start - wave.start;
                    until = wave.start;
                } else {
                    path.link += alone;
                    path.contention += transit - alone.min(transit);
                    waited[program as usize] += transit - alone.min(transit);
                    until = firing.start.saturating_sub(transit);
                }
                cause = firing.cause;
            }
            path.wait += until - wave.start;
        }
        path.programs = self.labelled_cycles(&by_label);
        path.contended = self.labelled_cycles(&waited);
        Some(path)
    }

    /// Returns the cycles of each program with its label, the largest first.
    fn labelled_cycles(&self, cycles: &[u64]) -> Vec<(String, u64)> {
        let labels = self.machine.descriptor.programs.iter().map(|program| program.label.clone());
        let mut labelled: Vec<(String, u64)> =
            labels.zip(cycles.iter().copied()).filter(|(_, cycles)| *cycles > 0).collect();
        labelled.sort_by_key(|(_, cycles)| std::cmp::Reverse(*cycles));
        labelled
    }
}
