//! Messages of a rank in a step, computed from its plan. `execute::exchange` sends and counts them.

use ixc_ir::plan::{Exchange, Halves, Plan, Ranks, Step, adds_in_pieces};

use crate::execute::{FLOAT_BYTES, sum_piece};
use crate::stats::ExchangeCounts;

/// Returns the exchanges of a step with this many tokens and requested rows, and the messages that
/// this rank sends in them. The time is zero.
pub fn step_traffic<K>(plan: &Plan<K>, tokens: u32, outputs: u32) -> ExchangeCounts {
    let mut counts = ExchangeCounts::default();
    let Some(ranks) = plan.ranks else { return counts };
    let peers = u64::from(ranks.ranks.saturating_sub(1));
    for step in &plan.steps {
        let Step::Exchange(exchange) = step else { continue };
        let buffer = exchange.sent_buffer().or(exchange.result());
        let Some(buffer) = buffer.and_then(|buffer| plan.buffers.get(buffer.0 as usize)) else { continue };
        let bytes = buffer.rows.most(tokens, outputs).saturating_mul(buffer.row_bytes);
        if bytes == 0 {
            continue;
        }
        let exchanged = match *exchange {
            Exchange::SumHalves { halves, .. } if tokens >= halves.rows => {
                let first = bytes / u64::from(tokens) * u64::from(Halves::first_rows(tokens));
                let mut both = sum(ranks, first);
                both += sum(ranks, bytes - first);
                both
            }
            Exchange::Sum { .. } | Exchange::SumHalves { .. } => sum(ranks, bytes),
            Exchange::Gather { .. } => round(peers, bytes),
            Exchange::Send { .. } => round(1, bytes),
            Exchange::Receive { .. } => round(0, bytes),
        };
        counts += exchanged;
    }
    counts
}

/// Returns one exchange with messages of equal length.
fn round(messages: u64, bytes: u64) -> ExchangeCounts {
    let bytes = bytes.saturating_mul(messages);
    ExchangeCounts { exchanges: 1, messages, bytes, ..ExchangeCounts::default() }
}

/// Returns the counts of one exchange that sums parts of this many bytes.
fn sum(ranks: Ranks, bytes: u64) -> ExchangeCounts {
    let peers = u64::from(ranks.ranks.saturating_sub(1));
    if !adds_in_pieces(ranks.ranks, bytes) {
        return round(peers, bytes);
    }
    // Each other rank gets its piece of this rank's part, and then the sum of this rank's piece.
    let floats = usize::try_from(bytes).unwrap_or(usize::MAX) / FLOAT_BYTES;
    let own = sum_piece(floats, ranks.rank, ranks.ranks).len() as u64;
    let bytes = bytes.saturating_sub(own).saturating_add(own.saturating_mul(peers));
    ExchangeCounts { exchanges: 1, messages: 2 * peers, bytes, ..ExchangeCounts::default() }
}
