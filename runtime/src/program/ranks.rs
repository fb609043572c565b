//! The checks of a plan for one rank of several: its rank number and its exchanges.

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{ArenaBuffer, BufferId, Exchange, MAX_RANKS, Output, Plan, Ranks, Step};

use super::{BarrierAction, PlanError, Problem, Stage, at, id, range};

/// Bytes of an element of a buffer that ranks exchange: a 32-bit float.
pub(super) const FLOAT_BYTES: u64 = 4;

/// Number of copies of a message that a transport keeps: one at the sender, and one at the
/// receiver.
const MESSAGE_COPIES: u64 = 2;

/// Checks the rank number of a plan, and all its exchanges.
pub(crate) fn check(plan: &Plan<Kernel>) -> Result<(), PlanError> {
    at(&"ranks", plan.ranks.map_or(Ok(()), |ranks| rank(plan, ranks)))?;
    for (i, step) in plan.steps.iter().enumerate() {
        let Step::Exchange(found) = step else { continue };
        at(&format!("step {i}"), exchange(plan, *found))?;
    }
    Ok(())
}

fn rank(plan: &Plan<Kernel>, Ranks { rank, ranks, .. }: Ranks) -> Result<(), Problem> {
    range("number of ranks", ranks, 1, MAX_RANKS)?;
    range("rank", rank, 0, ranks - 1)?;
    match (plan.output, plan.takes) {
        (Output::Logits { .. } | Output::Hidden { .. }, None) => Ok(()),
        _ => Err(Problem::Shape { expected: "a whole model, not the part of one that runs on its own" }),
    }
}

fn exchange(plan: &Plan<Kernel>, exchange: Exchange) -> Result<(), Problem> {
    let Some(Ranks { rank, ranks, .. }) = plan.ranks else {
        return Err(Problem::Shape { expected: "no exchanges, because the plan is not the part of a rank" });
    };
    if let Some(peer) = exchange.peer() {
        range("number of the other rank", peer, 0, ranks - 1)?;
        if peer == rank {
            return Err(Problem::Shape { expected: "a message to or from another rank" });
        }
    }
    let [sent, result] = [exchange.sent_buffer(), exchange.result()];
    let [sent, result] = [sent.map(|sent| floats(plan, sent)), result.map(|result| floats(plan, result))];
    let (sent, result) = (sent.transpose()?, result.transpose()?);
    let (Some(sent), Some(result)) = (sent, result) else { return Ok(()) };
    let times = match exchange {
        Exchange::Gather { .. } => u64::from(ranks),
        Exchange::Sum { .. } | Exchange::SumHalves { .. } | Exchange::Send { .. } | Exchange::Receive { .. } => 1,
    };
    let fits = sent.row_bytes.checked_mul(times) == Some(result.row_bytes) && sent.rows == result.rows;
    if fits && is_apart(plan, sent, result) {
        return Ok(());
    }
    Err(Problem::Shape { expected: "a result with the rows of all parts, in memory of its own" })
}

/// Returns a buffer, if its rows consist of 32-bit floats.
fn floats(plan: &Plan<Kernel>, buffer: BufferId) -> Result<&ArenaBuffer, Problem> {
    let found = id("buffer", buffer.0, &plan.buffers)?;
    let fits = found.row_bytes.is_multiple_of(FLOAT_BYTES) && found.offset.is_multiple_of(FLOAT_BYTES);
    if fits { Ok(found) } else { Err(Problem::Shape { expected: "rows of floats at multiples of 4" }) }
}

/// Returns whether two buffers share no memory.
fn is_apart(plan: &Plan<Kernel>, a: &ArenaBuffer, b: &ArenaBuffer) -> bool {
    let end = |buffer: &ArenaBuffer| {
        let rows = buffer.rows.most(plan.max_tokens, plan.output.most(plan.max_tokens));
        buffer.offset.saturating_add(buffer.row_bytes.saturating_mul(rows))
    };
    end(a) <= b.offset || end(b) <= a.offset
}

/// Checks that no exchange is inside a loop over streamed experts, because ranks may repeat such
/// loops a different number of times.
pub(super) fn check_loops(stages: &[Stage]) -> Result<(), PlanError> {
    let is_exchange = |then: &BarrierAction| {
        matches!(then, BarrierAction::Exchange(_) | BarrierAction::BeginSum(_) | BarrierAction::FinishSum(_))
    };
    let inside = stages.windows(2).position(|pair| {
        let is_inside = pair[0].window.is_some() && pair[0].window == pair[1].window;
        is_inside && pair[0].then.iter().any(is_exchange)
    });
    // Stages of a half may be repeated without the sum, so a loop must not contain them.
    let inside = inside.or(stages.iter().position(|stage| stage.window.is_some() && stage.half.is_some()));
    match inside {
        None => Ok(()),
        Some(stage) => at(
            &format!("stage {stage}"),
            Err(Problem::Shape { expected: "no exchange between tasks that read the same streamed experts" }),
        ),
    }
}

/// Returns the maximum bytes of memory for the messages of an exchange. This includes the parts of
/// other ranks, and the copies of all messages that a transport keeps until they are received.
pub(super) fn exchange_bytes(plan: &Plan<Kernel>) -> u64 {
    let peers = plan.ranks.map_or(0, |ranks| u64::from(ranks.ranks).saturating_sub(1));
    let size = |buffer: BufferId| {
        let found = plan.buffers.get(buffer.0 as usize);
        let rows = |buffer: &ArenaBuffer| buffer.rows.most(plan.max_tokens, plan.output.most(plan.max_tokens));
        found.map_or(0, |buffer| buffer.row_bytes.saturating_mul(rows(buffer)))
    };
    let exchanges =
        plan.steps.iter().filter_map(|step| if let Step::Exchange(found) = step { Some(found) } else { None });
    exchanges.map(|exchange| message_bytes(*exchange, peers, size)).max().unwrap_or(0)
}

/// Returns the bytes of memory for the messages of an exchange with `peers` other ranks. `size`
/// returns the number of bytes of a buffer.
fn message_bytes(exchange: Exchange, peers: u64, size: impl Fn(BufferId) -> u64) -> u64 {
    match exchange {
        // This counts the parts of all other ranks, the transport's copies of these, and a copy of
        // this rank's part for each other rank.
        Exchange::Sum { part, .. } | Exchange::SumHalves { part, .. } | Exchange::Gather { part, .. } => {
            size(part).saturating_mul(peers).saturating_mul(1 + MESSAGE_COPIES)
        }
        // Only the transport's copy counts, because the rows are in the plan's own buffers.
        Exchange::Send { rows, .. } | Exchange::Receive { rows, .. } => size(rows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_for_messages_counts_parts_and_copies() {
        let [part, sum] = [BufferId(0), BufferId(1)];
        let bytes = |exchange, peers| message_bytes(exchange, peers, |buffer| if buffer == part { 100 } else { 1 });
        // Three parts arrive, the transport has a copy of each, and it has three copies of this
        // rank's part.
        assert_eq!(bytes(Exchange::Sum { part, sum }, 3), 900);
        assert_eq!(bytes(Exchange::Gather { part, whole: sum }, 1), 300);
        assert_eq!(bytes(Exchange::Send { rows: part, to: 1 }, 3), 100);
        assert_eq!(bytes(Exchange::Receive { rows: part, from: 1 }, 3), 100);
        assert_eq!(bytes(Exchange::Sum { part, sum }, 0), 0);
    }
}
