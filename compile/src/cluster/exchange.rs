//! Time of exchanges between ranks.
//!
//! In a *round* each of `N` ranks sends a message of `b` bytes to each other rank, all at the same
//! time. With `m` ranks on a machine, a socket receives `(m - 1) b` bytes from ranks of its own
//! machine. A machine receives `m (N - m) b` bytes from other machines. The slower of the link
//! inside a machine and the link between machines gives the time:
//!
//! ```text
//! latency  = latency of the slowest link + (m - 1) message.inside + (N - m) message.between
//! transfer = max((m - 1) b / inside, m (N - m) b / between)
//! ```
//!
//! In an `all_gather`, each rank gives `b` bytes; it is a round of `b` bytes. An `all_reduce` of
//! `b` bytes uses one of two methods, which both add the parts of the ranks in the order of the
//! ranks. [`adds_in_pieces`] chooses the method, here and when a plan runs:
//!
//! - *whole*: a round of `b` bytes. Each rank then adds all parts.
//! - *scattered*: a round of `b / N` bytes, after which each rank adds its share of the elements;
//!   then a round of `b / N` bytes with the sums.

use ixc_ir::plan::adds_in_pieces;
use serde::Serialize;

use super::machines::Machines;

/// Time and traffic of one exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ExchangeCost {
    /// Seconds that do not depend on the number of bytes.
    pub latency: f64,
    /// Seconds in which the bytes are transferred.
    pub transfer: f64,
    /// Number of messages that all ranks together send.
    pub messages: u64,
    /// Bytes of all ranks' messages that stay on a machine.
    pub bytes_inside: f64,
    /// Bytes of all ranks' messages that travel to another machine.
    pub bytes_between: f64,
}

impl ExchangeCost {
    /// Returns the seconds of the exchange.
    pub fn seconds(&self) -> f64 {
        self.latency + self.transfer
    }

    fn plus(self, other: ExchangeCost) -> ExchangeCost {
        ExchangeCost {
            latency: self.latency + other.latency,
            transfer: self.transfer + other.transfer,
            messages: self.messages + other.messages,
            bytes_inside: self.bytes_inside + other.bytes_inside,
            bytes_between: self.bytes_between + other.bytes_between,
        }
    }
}

/// Returns the cost of a round: each rank sends `bytes` to each other rank.
fn round(machines: &Machines, ranks: u32, bytes: f64) -> ExchangeCost {
    if ranks < 2 {
        return ExchangeCost::default();
    }
    let on_machine = machines.sockets.min(ranks);
    let (neighbours, others) = (f64::from(on_machine - 1), f64::from(ranks - on_machine));
    let (inside, between) = (&machines.inside, &machines.between);
    let slowest = match (on_machine > 1, ranks > on_machine) {
        (true, true) => inside.latency_seconds.max(between.latency_seconds),
        (true, false) => inside.latency_seconds,
        (false, _) => between.latency_seconds,
    };
    let pairs = u64::from(ranks) * u64::from(ranks - 1);
    // The last machine may have fewer ranks than the other machines.
    let pairs_of = |ranks: u32| u64::from(ranks) * u64::from(ranks.saturating_sub(1));
    let rest = ranks % on_machine;
    let pairs_inside = u64::from(ranks / on_machine) * pairs_of(on_machine) + pairs_of(rest);
    ExchangeCost {
        latency: slowest + neighbours * inside.message_seconds + others * between.message_seconds,
        transfer: (neighbours * bytes / inside.bytes_per_second)
            .max(f64::from(on_machine) * others * bytes / between.bytes_per_second),
        messages: pairs,
        bytes_inside: pairs_inside as f64 * bytes,
        bytes_between: (pairs - pairs_inside) as f64 * bytes,
    }
}

/// Returns the cost of a sum of `bytes` over all ranks.
pub fn all_reduce(machines: &Machines, ranks: u32, bytes: f64) -> ExchangeCost {
    if !adds_in_pieces(ranks, bytes as u64) {
        return round(machines, ranks, bytes);
    }
    let share = round(machines, ranks, bytes / f64::from(ranks));
    share.plus(share)
}

/// Returns the cost of a concatenation over all ranks. Each rank contributes `bytes` bytes.
pub fn all_gather(machines: &Machines, ranks: u32, bytes: f64) -> ExchangeCost {
    round(machines, ranks, bytes)
}

/// Returns the cost of a message from one rank to another.
pub fn send(machines: &Machines, from: u32, to: u32, bytes: f64) -> ExchangeCost {
    let link = machines.link(from, to);
    let is_inside = machines.machine_of(from) == machines.machine_of(to);
    ExchangeCost {
        latency: link.latency_seconds,
        transfer: bytes / link.bytes_per_second,
        messages: 1,
        bytes_inside: if is_inside { bytes } else { 0.0 },
        bytes_between: if is_inside { 0.0 } else { bytes },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::machines::{self, Machines};

    // Link inside a machine: 10 us, 1 us a message, 2 GB/s. Link between machines: 100 us, 5 us a
    // message, 1 GB/s.
    fn round_numbers() -> Machines {
        machines::find("round").unwrap()
    }

    fn close(found: f64, right: f64) {
        assert!((found - right).abs() <= 1e-9 * right.abs().max(1e-12), "{found} is not {right}");
    }

    #[test]
    fn exchanges_inside_a_machine_have_times_derived_by_hand() {
        let machines = round_numbers();
        // Two ranks of one machine: 20,000 bytes at 2 GB/s take 10 us. Latency is 10 + 1 us.
        let gather = all_gather(&machines, 2, 20_000.0);
        close(gather.latency, 11e-6);
        close(gather.transfer, 10e-6);
        assert_eq!((gather.messages, gather.bytes_inside, gather.bytes_between), (2, 40_000.0, 0.0));
        // The whole method takes 11 + 10 us, the scattered one 2 (11 + 5) us.
        close(all_reduce(&machines, 2, 20_000.0).seconds(), 21e-6);
        close(send(&machines, 0, 1, 20_000.0).seconds(), 20e-6);
    }

    #[test]
    fn exchanges_between_machines_have_times_derived_by_hand() {
        let machines = round_numbers();
        // There are four ranks on two machines. Each rank has 1 other rank on its machine and 2 on
        // the other machine: 100 + 1 + 2 * 5 us. A machine receives 2 * 2 * 1,000,000 bytes at 1
        // GB/s: 4 ms.
        let gather = all_gather(&machines, 4, 1e6);
        close(gather.latency, 111e-6);
        close(gather.transfer, 4e-3);
        // Of 12 messages, 4 stay on a machine.
        assert_eq!((gather.messages, gather.bytes_inside, gather.bytes_between), (12, 4e6, 8e6));
        // The scattered method has two rounds of 250,000 bytes. These 2 (111 us + 1 ms) are faster
        // than 4.111 ms.
        let sum = all_reduce(&machines, 4, 1e6);
        close(sum.seconds(), 2.222e-3);
        assert_eq!((sum.messages, sum.bytes_between), (24, 4e6));
        // A sum of few bytes takes one round of 12 messages.
        assert_eq!(all_reduce(&machines, 4, 100.0).messages, 12);
        // The method is the one that a plan uses when it runs, even if the other one is faster on
        // these machines.
        assert_eq!([109_226.0, 109_227.0].map(|bytes| all_reduce(&machines, 4, bytes).messages), [12, 24]);
        close(send(&machines, 1, 2, 1e6).seconds(), 1.1e-3);
        // Of three ranks, the last one is alone on its machine.
        assert_eq!(all_gather(&machines, 3, 1.0).bytes_inside, 2.0);
        assert_eq!(all_reduce(&machines, 1, 1e6), ExchangeCost::default());
    }

    #[test]
    fn slower_links_never_make_an_exchange_faster() {
        let machines = round_numbers();
        let mut slower = Vec::new();
        for factor in [1.5, 10.0, 1000.0] {
            let mut changed = machines.clone();
            changed.inside.bytes_per_second /= factor;
            slower.push(changed);
            let mut changed = machines.clone();
            changed.between.bytes_per_second /= factor;
            slower.push(changed);
            let mut changed = machines.clone();
            changed.between.latency_seconds *= factor;
            changed.inside.message_seconds *= factor;
            slower.push(changed);
        }
        for ranks in [2, 3, 4, 8, 33, 128] {
            for bytes in [1.0, 1e3, 28e3, 1e6, 1e9] {
                for changed in &slower {
                    for exchange in [all_reduce, all_gather] {
                        let (fast, slow) = (exchange(&machines, ranks, bytes), exchange(changed, ranks, bytes));
                        assert!(slow.seconds() >= fast.seconds(), "{ranks} ranks, {bytes} bytes");
                    }
                }
            }
        }
    }
}
