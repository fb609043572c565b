//! The checks of a rank's plan: its number, and its exchanges.

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{ArenaBuffer, BufferId, Exchange, MAX_RANKS, Output, Plan, Ranks, Step};

use super::{BarrierAction, PlanError, Problem, Stage, at, id, range};

/// Bytes of an element of a buffer that ranks exchange.
pub(super) const FLOAT_BYTES: u64 = 4;

/// Checks the rank of a plan, and all exchanges.
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
    let [sent, result] = [exchange.sent(), exchange.result()];
    let [sent, result] = [sent.map(|sent| floats(plan, sent)), result.map(|result| floats(plan, result))];
    let (sent, result) = (sent.transpose()?, result.transpose()?);
    let (Some(sent), Some(result)) = (sent, result) else { return Ok(()) };
    let times = match exchange {
        Exchange::Gather { .. } => u64::from(ranks),
        Exchange::Sum { .. } | Exchange::Send { .. } | Exchange::Receive { .. } => 1,
    };
    let fits = sent.row_bytes.checked_mul(times) == Some(result.row_bytes) && sent.rows == result.rows;
    if fits && is_apart(plan, sent, result) {
        return Ok(());
    }
    Err(Problem::Shape { expected: "a result with the rows of all parts, in memory of its own" })
}

/// Returns a buffer of rows of floats.
fn floats(plan: &Plan<Kernel>, buffer: BufferId) -> Result<&ArenaBuffer, Problem> {
    let found = id("buffer", buffer.0, &plan.buffers)?;
    let fits = found.row_bytes.is_multiple_of(FLOAT_BYTES) && found.offset.is_multiple_of(FLOAT_BYTES);
    if fits { Ok(found) } else { Err(Problem::Shape { expected: "rows of floats at multiples of 4" }) }
}

/// Whether two buffers share no memory.
fn is_apart(plan: &Plan<Kernel>, a: &ArenaBuffer, b: &ArenaBuffer) -> bool {
    let end = |buffer: &ArenaBuffer| {
        let rows = buffer.rows.most(plan.max_tokens, plan.output.most(plan.max_tokens));
        buffer.offset.saturating_add(buffer.row_bytes.saturating_mul(rows))
    };
    end(a) <= b.offset || end(b) <= a.offset
}

/// Checks that no exchange is inside a loop over streamed experts. Ranks run such loops a different
/// number of times.
pub(super) fn check_loops(stages: &[Stage]) -> Result<(), PlanError> {
    let inside = stages.windows(2).position(|pair| {
        let is_inside = pair[0].window.is_some() && pair[0].window == pair[1].window;
        is_inside && pair[0].then.iter().any(|then| matches!(then, BarrierAction::Exchange(_)))
    });
    match inside {
        None => Ok(()),
        Some(stage) => at(
            &format!("stage {stage}"),
            Err(Problem::Shape { expected: "no exchange between tasks that read the same streamed experts" }),
        ),
    }
}

/// Returns the bytes of memory for parts of other ranks: the most that an exchange receives there.
pub(super) fn received_bytes(plan: &Plan<Kernel>) -> u64 {
    let ranks = plan.ranks.map_or(1, |ranks| ranks.ranks);
    let bytes = |exchange: &Exchange| {
        let part = exchange.result().and(exchange.sent()).and_then(|part| plan.buffers.get(part.0 as usize));
        let rows = |part: &ArenaBuffer| part.rows.most(plan.max_tokens, plan.output.most(plan.max_tokens));
        part.map_or(0, |part| part.row_bytes.saturating_mul(rows(part))).saturating_mul(u64::from(ranks) - 1)
    };
    let exchanges =
        plan.steps.iter().filter_map(|step| if let Step::Exchange(found) = step { Some(found) } else { None });
    exchanges.map(bytes).max().unwrap_or(0)
}
