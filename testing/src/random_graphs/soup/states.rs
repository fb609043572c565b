//! Random ops on states other than caches of keys and values.

use super::super::recurrent::Example;
use super::{Sizes, Soup};
use crate::random_graphs::{IDS, ok};
use ixc_ir::format::Format;
use ixc_ir::graph::op::{OpKind, OperandKind, Recurrent};
use ixc_ir::graph::{Operand, State};
use ixc_ir::ngram::{BEFORE, Hash};
use ixc_ir::state::Rollback;

impl Soup {
    pub(super) fn ngram(&mut self) {
        let name = self.name("s");
        let state = ok(self.b.state(State::recurrent(&name, &[1, BEFORE as u64], Rollback::Snapshot)));
        let token = ok(self.b.state_begin(state));
        let multipliers = [1, 3, (1 << 40) | 5, self.rng.pick(&[0, 7])];
        let hash = Hash { end: 0, multipliers, modulus: self.rng.pick(&[1, 97]), offset: 2 };
        ok(self.b.ngram(token, self.ids, &hash));
    }

    pub(super) fn state_begin(&mut self, Sizes { heads, d, .. }: Sizes) {
        // A state that no other op touches.
        let name = self.name("s");
        let rollback = self.rng.pick(&[Rollback::Snapshot, Rollback::None]);
        let state = ok(self.b.state(State::recurrent(&name, &[heads, d], rollback)));
        ok(self.b.state_begin(state));
    }

    pub(super) fn recurrent(&mut self, kind: OpKind, op: Recurrent) {
        let example = Example::random(op, &mut self.rng);
        let name = self.name("s");
        let rollback = self.rng.pick(&[Rollback::Snapshot, Rollback::None]);
        let state = ok(self.b.state(State::recurrent(&name, &example.state, rollback)));
        let mut operands = vec![Operand::Value(ok(self.b.state_begin(state)))];
        for (dims, row) in example.operands.iter().zip(&kind.row().operands[1..]) {
            operands.push(match row.kind {
                OperandKind::Weight | OperandKind::OptWeight => {
                    let name = self.name("w");
                    Operand::Weight(ok(self.b.weight(&name, Format::F32, dims, None)))
                }
                OperandKind::Value if dims.is_empty() => Operand::Value(self.pos),
                OperandKind::OptValue if dims.is_empty() => Operand::Absent,
                OperandKind::Value | OperandKind::OptValue => Operand::Value(self.f32(dims)),
                OperandKind::State => Operand::State(state),
            });
        }
        ok(self.b.op(kind, operands, example.attrs));
    }

    pub(super) fn column_squares(&mut self, kind: OpKind, Sizes { k, .. }: Sizes) {
        let (ids, _, slots) = self.pick_route();
        let (routed, by_slot) = (self.rng.once_in(2), self.rng.once_in(2));
        let format = self.activation_format(k);
        let dims = if routed && by_slot { vec![slots, k] } else { vec![k] };
        let x = self.f32(&dims);
        let x = if format == Format::F32 { x } else { ok(self.b.quantise(x, format)) };
        let name = self.name("s");
        let shape = [if routed { IDS } else { 1 }, k + 1];
        let state = ok(self.b.state(State::recurrent(&name, &shape, Rollback::None)));
        let token = ok(self.b.state_begin(state));
        let ids = if routed { Operand::Value(ids) } else { Operand::Absent };
        ok(self.b.op(kind, vec![Operand::Value(token), Operand::Value(x), ids], vec![]));
    }
}
