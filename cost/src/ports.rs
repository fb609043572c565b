//! The most even distribution of µops over their possible ports.
//!
//! A loop runs many times, so each µop can be divided among ports in fractions, and the optimum has
//! a closed form. A set of ports needs at least the cycles of those µops that can run only on this
//! set. The set with the most cycles per port reaches this bound (Hall's theorem for fractions).
//! The cycles of a loop are therefore
//!
//! ```text
//! max over sets S of ports:  (cycles of µops whose ports are all in S) / |S|
//! ```
//!
//! Only unions of the µops' port sets must be tried. The load of every port in the most even
//! assignment follows by iteration: fix the load of the worst set, remove its ports from the other
//! µops, and repeat.

use std::collections::{BTreeMap, BTreeSet};

use super::model::Uop;

/// Cycles of µops, by the set of ports that can execute them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load(BTreeMap<u32, u64>);

/// Load of the ports after the most even assignment of µops.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Cycles of the busiest ports.
    pub cycles: f64,
    /// The busiest ports, as a set.
    pub busiest: u32,
    /// Cycles of each port, by the port's index.
    pub ports: Vec<f64>,
}

impl Load {
    /// Adds a µop.
    pub fn add(&mut self, uop: Uop) {
        *self.0.entry(uop.ports).or_default() += u64::from(uop.cycles);
    }

    /// Returns the cycles of those µops that can run only on this set of ports.
    pub fn cycles_within(&self, set: u32) -> u64 {
        self.0.iter().filter(|(ports, _)| *ports & !set == 0).map(|(_, cycles)| cycles).sum()
    }

    /// Returns the load without those µops that can run only on the ports of `set`.
    pub fn without_ports(&self, set: u32) -> Load {
        Load(self.0.iter().filter(|(ports, _)| *ports & !set != 0).map(|(&ports, &cycles)| (ports, cycles)).collect())
    }

    /// Computes the most even assignment of the µops to `ports` ports.
    pub fn pressure(&self, ports: usize) -> Pressure {
        let mut pressure = Pressure { ports: vec![0.0; ports], ..Pressure::default() };
        let mut left = self.clone();
        left.0.remove(&0);
        while !left.0.is_empty() {
            let Some((set, cycles)) = left.worst() else { break };
            let each = cycles as f64 / f64::from(set.count_ones());
            for (i, port) in pressure.ports.iter_mut().enumerate().filter(|(i, _)| set >> i & 1 == 1) {
                debug_assert!(i < 32);
                *port = each;
            }
            if pressure.busiest == 0 {
                (pressure.cycles, pressure.busiest) = (each, set);
            }
            let mut rest = Load::default();
            for (ports, cycles) in left.0.into_iter().filter(|(ports, _)| ports & !set != 0) {
                *rest.0.entry(ports & !set).or_default() += cycles;
            }
            left = rest;
        }
        pressure
    }

    /// Returns the set with the most cycles per port, and these cycles. Of equal sets, it returns
    /// the smallest, or the first of several smallest ones.
    fn worst(&self) -> Option<(u32, u64)> {
        let unions = self.components().into_iter().flat_map(|sets| unions(&sets));
        // Compares a / |A| with b / |B| without division.
        unions.map(|set| (set, self.cycles_within(set))).reduce(|best, next| {
            let (a, b) = (next.1 * u64::from(best.0.count_ones()), best.1 * u64::from(next.0.count_ones()));
            if a > b || a == b && next.0.count_ones() < best.0.count_ones() { next } else { best }
        })
    }

    /// Groups the µops' port sets so that no port is in two groups. A union over two groups never
    /// has more cycles per port than the worse of the groups.
    fn components(&self) -> Vec<Vec<u32>> {
        let mut groups: Vec<(u32, Vec<u32>)> = Vec::new();
        for &ports in self.0.keys() {
            let (touched, apart): (Vec<_>, Vec<_>) = groups.into_iter().partition(|(all, _)| all & ports != 0);
            groups = apart;
            let mut joined = (ports, vec![ports]);
            for (all, sets) in touched {
                joined.0 |= all;
                joined.1.extend(sets);
            }
            groups.push(joined);
        }
        groups.into_iter().map(|(_, sets)| sets).collect()
    }
}

fn unions(sets: &[u32]) -> BTreeSet<u32> {
    let mut unions = BTreeSet::new();
    for &ports in sets {
        let with: Vec<u32> = unions.iter().map(|set| set | ports).collect();
        unions.insert(ports);
        unions.extend(with);
    }
    unions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pressure(uops: &[(u32, u32)]) -> Pressure {
        let mut load = Load::default();
        for &(ports, cycles) in uops {
            load.add(Uop { ports, cycles });
        }
        load.pressure(4)
    }

    #[test]
    fn flexible_uops_avoid_ports_that_others_need() {
        // Three µops can run on port 0 only, and three on port 0 or 1. The latter all run on port
        // 1.
        let p = pressure(&[(1, 3), (3, 3)]);
        assert_eq!((p.cycles, p.ports), (3.0, vec![3.0, 3.0, 0.0, 0.0]));
        // If five µops can run on port 0 or 1, both ports have the same load.
        let p = pressure(&[(1, 3), (3, 5)]);
        assert_eq!((p.cycles, p.busiest, p.ports), (4.0, 3, vec![4.0, 4.0, 0.0, 0.0]));
    }

    #[test]
    fn union_of_port_sets_can_be_the_bottleneck() {
        // Each pair of ports alone would take 2 cycles; the three ports together take 8 / 3.
        let p = pressure(&[(0b011, 4), (0b110, 4), (0b1000, 1)]);
        assert_eq!(p.busiest, 0b0111);
        assert!((p.cycles - 8.0 / 3.0).abs() < 1e-12);
        assert_eq!(p.ports[3], 1.0);
    }

    #[test]
    fn port_assignment_is_optimal_and_sums_to_all_uops() {
        // Tests all sets of four ports, with weights from a fixed sequence. The expected bound is
        // computed by brute force over all sets of ports.
        let mut state = 1u32;
        for _ in 0..200 {
            let mut uops = Vec::new();
            for _ in 0..6 {
                state = state.wrapping_mul(1664525).wrapping_add(1013904223);
                uops.push(((state >> 8) % 15 + 1, (state >> 20) % 9));
            }
            let p = pressure(&uops);
            let bound = (1u32..16)
                .map(|set| {
                    let inside: u32 = uops.iter().filter(|(ports, _)| ports & !set == 0).map(|(_, c)| c).sum();
                    f64::from(inside) / f64::from(set.count_ones())
                })
                .fold(0.0, f64::max);
            assert!((p.cycles - bound).abs() < 1e-9, "{uops:?}: {p:?}, {bound}");
            let total: u32 = uops.iter().map(|(_, c)| c).sum();
            assert!((p.ports.iter().sum::<f64>() - f64::from(total)).abs() < 1e-9);
        }
    }
}
