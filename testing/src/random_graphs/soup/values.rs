//! Random elementwise ops, norms, and ops on the shape of values.

use super::{Sizes, Soup};
use crate::random_graphs::ok;
use ixc_ir::graph::op::OpKind;
use ixc_ir::graph::{Attr, Operand, Unary};

impl Soup {
    pub(super) fn add_or_mul(&mut self, kind: OpKind, Sizes { k, .. }: Sizes) {
        let (a, b) = (self.f32(&[k]), self.f32(&[k]));
        ok(if kind == OpKind::Add { self.b.add(a, b) } else { self.b.mul(a, b) });
    }

    pub(super) fn add_bias(&mut self, Sizes { k, .. }: Sizes) {
        let (x, bias) = (self.f32(&[k]), self.weight(&[k]));
        ok(self.b.add_bias(x, bias));
    }

    pub(super) fn gated(&mut self, Sizes { k, .. }: Sizes) {
        let (gate, up, attrs) = (self.f32(&[k]), self.f32(&[k]), self.gate());
        ok(self.b.gated(gate, up, &attrs));
    }

    pub(super) fn scale_heads(&mut self, kind: OpKind, Sizes { heads, d, .. }: Sizes) {
        let (x, s) = (self.f32(&[heads * d]), self.f32(&[heads]));
        let residual = self.rng.once_in(2).then(|| Operand::Value(self.f32(&[heads * d])));
        let operands = vec![Operand::Value(x), Operand::Value(s), residual.unwrap_or(Operand::Absent)];
        ok(self.b.op(kind, operands, vec![]));
    }

    pub(super) fn unary(&mut self, kind: OpKind, function: Unary, Sizes { k, .. }: Sizes) {
        let (x, row) = (self.f32(&[k]), kind.row());
        // An operand within bounds keeps the result of `exp` finite.
        let x = if function == Unary::Exp { ok(self.b.sigmoid(x)) } else { x };
        let attrs = row.attrs.iter().map(|_| Attr::rounded(self.rng.pick(&[1.0, 30.0]))).collect();
        let y = ok(self.b.unary(function, x, attrs));
        self.b.name(y, &format!("{}.{}", row.mnemonic, y.0));
    }

    pub(super) fn rms_norm(&mut self, Sizes { heads, d, .. }: Sizes) {
        let of_head = self.rng.once_in(2);
        let shape = if of_head { vec![heads, d] } else { vec![d] };
        let x = self.f32(&[heads, d]);
        let w = self.rng.once_in(2).then(|| self.weight(&shape));
        ok(self.b.rms_norm(x, w, 1e-5));
    }

    pub(super) fn split_heads(&mut self, Sizes { k, heads, .. }: Sizes) {
        let x = self.f32(&[k]);
        ok(self.b.split_heads(x, heads));
    }

    pub(super) fn merge_heads(&mut self, Sizes { heads, d, .. }: Sizes) {
        let x = self.f32(&[heads, d]);
        ok(self.b.merge_heads(x));
    }

    pub(super) fn slice(&mut self, Sizes { k, heads, d, .. }: Sizes) {
        let x = if self.rng.once_in(2) { self.f32(&[k]) } else { self.f32(&[heads, d]) };
        let count = 1 + self.rng.below(d);
        let from = self.rng.below(d - count + 1);
        ok(self.b.slice(x, from, count));
    }

    pub(super) fn concat(&mut self, Sizes { k, n, heads, d }: Sizes) {
        let (a, b) = if self.rng.once_in(2) {
            (self.f32(&[k]), self.f32(&[n]))
        } else {
            (self.f32(&[heads, d]), self.f32(&[heads, k]))
        };
        ok(self.b.concat(a, b));
    }

    pub(super) fn temperature(&mut self, kind: OpKind, Sizes { k, heads, d, .. }: Sizes) {
        let x = if self.rng.once_in(2) { self.f32(&[k]) } else { self.f32(&[heads, d]) };
        let attrs = vec![
            Attr::Float(self.rng.pick(&[0.1, 0.0])),
            Attr::Int(self.rng.pick(&[1, 3, 8192])),
            Attr::Int(self.rng.pick(&[0, 1])),
        ];
        ok(self.b.op(kind, vec![Operand::Value(x), Operand::Value(self.pos)], attrs));
    }

    pub(super) fn heads_temperature(&mut self, Sizes { heads, d, .. }: Sizes) {
        let (x, scales, biases) = (self.f32(&[heads, d]), self.weight(&[heads]), self.weight(&[heads]));
        ok(self.b.heads_temperature(x, self.pos, scales, biases));
    }

    pub(super) fn centre(&mut self, Sizes { k, heads, d, .. }: Sizes) {
        let x = if self.rng.once_in(2) { self.f32(&[k]) } else { self.f32(&[heads, d]) };
        ok(self.b.centre(x));
    }

    pub(super) fn heads_sum(&mut self, Sizes { heads, d, .. }: Sizes) {
        let x = self.f32(&[heads, d]);
        ok(self.b.heads_sum(x));
    }

    pub(super) fn take_rows(&mut self, Sizes { k, .. }: Sizes) {
        let x = self.f32(&[k]);
        ok(self.b.take_rows(x, self.rows));
    }

    pub(super) fn quantise(&mut self, Sizes { k, .. }: Sizes) {
        let (x, format) = (self.f32(&[k]), self.activation_format(k));
        ok(self.b.quantise(x, format));
    }

    pub(super) fn rms_norm_quantise(&mut self, Sizes { k, .. }: Sizes) {
        let (x, w, format) = (self.f32(&[k]), self.maybe_vector(k), self.activation_format(k));
        ok(self.b.rms_norm_quantise(x, w, 1e-6, format));
    }
}
