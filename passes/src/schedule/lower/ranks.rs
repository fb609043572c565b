//! Exchanges between ranks, and the experts of a rank.
//!
//! ```text
//! all_reduce %g, %x                   add parts of all ranks, at a barrier
//! route.owned %ids, %p {first = 4}    ids of the rank's experts, and nobody's
//! ```
//!
//! Invariant: exchanges keep the order of the graph ([`Resource::Ranks`]), which is the same on all
//! ranks. There is no exchange between the request and the release of experts, because the steps
//! between these can run again ([`Resource::Slots`]).

use ixc_ir::format::Format;
use ixc_ir::graph::{Op, OpKind, TokenOwner, Type};
use ixc_ir::plan::{BufferId, Exchange, Ranks, Source, Step};
use ixc_kernels::RouteOwned;

use super::bind;
use super::{
    ArenaRows, Binding, Lowering, Resource, Rows, ScheduleError, Work, WorkItem, by_row, fit, unsupported_error,
};
use crate::shard;

impl Lowering<'_> {
    /// Records the rank and the number of ranks of the graph.
    pub(super) fn ranks_begin(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let Type::Token(TokenOwner::Ranks(group)) = self.function.ty(op.results[0]) else {
            return unsupported_error(op.kind.row().mnemonic, "a token that does not belong to a group of ranks");
        };
        self.ranks = Some(Ranks { rank: group.rank, ranks: group.ranks, division: self.division });
        Ok(Binding::Token)
    }

    /// Adds an exchange of the op's kind.
    pub(super) fn exchange(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let ranks = u64::from(self.ranks.map_or(1, |ranks| ranks.ranks));
        let peer = |attr: &str| fit("number of a rank", op.attr(attr).int().unsigned_abs());
        match op.kind {
            OpKind::Recv => {
                let rows = match self.meaning(name, self.value_operand(op, "rows")?)? {
                    Binding::Ids | Binding::Positions => Rows::Tokens,
                    Binding::WantedRows => Rows::Outputs,
                    _ => return unsupported_error(name, "row indices that are not a parameter"),
                };
                let to = self.buffer("received", rows, Format::F32, op.attr("width").int().unsigned_abs())?;
                self.add_exchange(Exchange::Receive { rows: to.buffer, from: peer("from")? });
                self.meanings[op.results[1].index()] = Some(Binding::Token);
                Ok(Binding::ArenaRows(to))
            }
            OpKind::Send => {
                let x = self.sent_rows(op)?;
                self.add_exchange(Exchange::Send { rows: x.buffer, to: peer("to")? });
                Ok(Binding::Token)
            }
            kind => {
                let x = self.sent_rows(op)?;
                let is_sum = kind == OpKind::AllReduce;
                let width = if is_sum { x.width } else { x.width.saturating_mul(ranks) };
                let y =
                    self.buffer(if is_sum { "sum of ranks" } else { "rows of ranks" }, x.rows, Format::F32, width)?;
                let (part, result) = (x.buffer, y.buffer);
                self.add_exchange(match is_sum {
                    true => Exchange::Sum { part, sum: result },
                    false => Exchange::Gather { part, whole: result },
                });
                self.meanings[op.results[1].index()] = Some(Binding::Token);
                Ok(Binding::ArenaRows(y))
            }
        }
    }

    /// Returns the rows that an op gives to other ranks.
    fn sent_rows(&self, op: &Op) -> Result<ArenaRows, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let x = self.operand(op, "x")?;
        self.expect(name, &x, Format::F32, x.width)?;
        let dims = op.operand("x").value().map_or(0, |x| self.function.ty(x).dims().len());
        // Routed rows are in the same order on all ranks, because all compute the same routing.
        let row_dims = if matches!(x.rows, Rows::Routed { .. }) { 3 } else { 2 };
        if op.kind == OpKind::AllGather && dims != row_dims {
            return unsupported_error(name, "a part of each head; expected parts of rows");
        }
        Ok(x)
    }

    fn add_exchange(&mut self, exchange: Exchange) {
        let buffer = |id: BufferId| Resource::Buffer(id.0);
        let reads = exchange.sent_buffer().map(buffer).into_iter().chain([Resource::Ranks, Resource::Slots]).collect();
        let writes = exchange.result().map(buffer).into_iter().chain([Resource::Ranks]).collect();
        self.tasks.work.push(Work { what: WorkItem::Exchange(Step::Exchange(exchange)), reads, writes });
    }

    /// Lowers the op that keeps only this rank's experts in a route. Slots with experts of other
    /// ranks get no expert.
    pub(super) fn route_owned(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let number = |attr: &str| op.attr(attr).int().unsigned_abs();
        let (first, experts) = (number("first"), number("experts"));
        let (ids, p) = (self.operand(op, "ids")?, self.operand(op, "p")?);
        if !self.routes.contains_key(&ids.buffer) {
            return unsupported_error(name, "expert ids that are not the result of a route");
        }
        let own = self.buffer("own ids", ids.rows, Format::F32, ids.width)?;
        let weights = self.buffer("own weights", ids.rows, Format::F32, ids.width)?;
        let row = |rows: &ArenaRows| Ok::<_, ScheduleError>(by_row(Source::Arena(rows.buffer), rows.row_bytes()?));
        let args = vec![
            bind("ids", row(&ids)?),
            bind("p", row(&p)?),
            bind("own", row(&own)?),
            bind("weights", row(&weights)?),
        ];
        let spec = RouteOwned {
            n: fit("experts of a token", ids.width)?,
            first: fit("experts", first)?,
            experts: fit("experts", experts)?,
        };
        self.by_rows(name.to_string(), ids.rows, 1, spec, &[], args)?;
        self.routes.insert(own.buffer, experts);
        self.partial.insert(own.buffer);
        self.meanings[op.results[1].index()] = Some(Binding::ArenaRows(weights));
        Ok(Binding::ArenaRows(own))
    }
}

/// Returns the division among ranks that the options select.
pub(super) fn division(context: &crate::pass::Context<'_>) -> shard::Division {
    context.options.get::<shard::ShardOptions>().by
}
