//! Check that the exchanges in the plans of all ranks match. Otherwise, a rank could wait for an
//! exchange in which another rank does not take part.

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{BufferId, Exchange, Plan, RowCount, Step};

use crate::error::ranks::RanksError;

/// Size of the data of an exchange: number of rows, and bytes of each row.
type Rows = Option<(RowCount, u64)>;

/// The exchanges in a rank's plan, and the index of the first one that is not matched yet.
struct Position<'p> {
    plan: &'p Plan<Kernel>,
    exchanges: Vec<Exchange>,
    next: usize,
}

impl Position<'_> {
    fn head(&self) -> Option<Exchange> {
        self.exchanges.get(self.next).copied()
    }

    fn rows(&self, buffer: BufferId) -> Rows {
        self.plan.buffers.get(buffer.0 as usize).map(|buffer| (buffer.rows, buffer.row_bytes))
    }
}

/// Returns whether the next exchanges of two ranks are the same collective exchange with data of
/// the same size.
fn are_alike(a: &Position<'_>, b: &Position<'_>) -> bool {
    match (a.head(), b.head()) {
        (Some(Exchange::Sum { part: of_a, .. }), Some(Exchange::Sum { part: of_b, .. }))
        | (Some(Exchange::Gather { part: of_a, .. }), Some(Exchange::Gather { part: of_b, .. })) => {
            a.rows(of_a) == b.rows(of_b)
        }
        (
            Some(Exchange::SumHalves { part: of_a, halves: halves_a, .. }),
            Some(Exchange::SumHalves { part: of_b, halves: halves_b, .. }),
        ) => a.rows(of_a) == b.rows(of_b) && halves_a.rows == halves_b.rows,
        _ => false,
    }
}

/// Checks that the exchanges of all ranks match. `plans` are in order of rank, and the exchanges of
/// each plan stay in their order.
///
/// # Errors
/// [`RanksError::Exchange`] for the first rank with an exchange that cannot happen, because another
/// rank that must take part in it never has a matching exchange.
pub(super) fn check(plans: &[&Plan<Kernel>]) -> Result<(), RanksError> {
    let position = |plan: &&'_ Plan<Kernel>| -> Vec<Exchange> {
        let exchanges = plan.steps.iter().filter_map(|step| match step {
            Step::Exchange(exchange) => Some(*exchange),
            _ => None,
        });
        exchanges.collect()
    };
    let positions = plans.iter().map(|plan| Position { plan, exchanges: position(plan), next: 0 });
    let mut positions: Vec<Position<'_>> = positions.collect();
    // Ranks whose next exchange may match the next exchange of another rank.
    let mut pending: Vec<usize> = (0..positions.len()).collect();
    while let Some(rank) = pending.pop() {
        let (first, Some(head)) = (&positions[0], positions[rank].head()) else { continue };
        match head {
            Exchange::Sum { .. } | Exchange::SumHalves { .. } | Exchange::Gather { .. } => {
                if positions.iter().all(|other| are_alike(first, other)) {
                    positions.iter_mut().for_each(|position| position.next += 1);
                    pending = (0..positions.len()).collect();
                }
            }
            Exchange::Send { .. } | Exchange::Receive { .. } => {
                let peer = head.peer().map_or(rank, |peer| peer as usize);
                let Some(other) = positions.get(peer) else { continue };
                let matches = match (head, other.head()) {
                    (Exchange::Send { rows: sent, .. }, Some(Exchange::Receive { rows: received, from })) => {
                        from as usize == rank && positions[rank].rows(sent) == other.rows(received)
                    }
                    (Exchange::Receive { rows: received, .. }, Some(Exchange::Send { rows: sent, to })) => {
                        to as usize == rank && positions[rank].rows(received) == other.rows(sent)
                    }
                    _ => false,
                };
                if matches {
                    positions[rank].next += 1;
                    positions[peer].next += 1;
                    pending.extend([rank, peer]);
                }
            }
        }
    }
    match positions.iter().position(|position| position.head().is_some()) {
        None => Ok(()),
        Some(rank) => Err(RanksError::Exchange { rank: rank as u32, number: positions[rank].next }),
    }
}
