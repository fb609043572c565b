//! Random products with weights, and embeddings.

use super::{Sizes, Soup, maybe_weight};
use crate::random_graphs::{IDS, ok};
use ixc_ir::graph::builder::LinearPart;
use ixc_ir::graph::op::OpKind;
use ixc_ir::graph::{Attr, Dim, Operand, Type};

impl Soup {
    pub(super) fn embed(&mut self, Sizes { k, n, .. }: Sizes) {
        let table = self.weight(&[IDS + n, k]);
        ok(self.b.embed(self.ids, table));
    }

    pub(super) fn dequantise(&mut self, Sizes { k, n, .. }: Sizes) {
        let w = if self.rng.once_in(2) { self.weight(&[n, k]) } else { self.weight(&[IDS, 2, k]) };
        ok(self.b.dequantise(w));
    }

    pub(super) fn matmul(&mut self, Sizes { k, n, heads, .. }: Sizes) {
        let w = self.weight(&[n, k]);
        let w = ok(self.b.dequantise(w));
        let x = if self.rng.once_in(2) { self.f32(&[k]) } else { self.f32(&[heads, k]) };
        ok(self.b.matmul(x, w));
        let matrix = self.value(Type::f32([Dim::Fixed(n), Dim::Fixed(k)]));
        ok(self.b.matmul(x, matrix));
    }

    pub(super) fn heads_matmul(&mut self, Sizes { k, n, heads, .. }: Sizes) {
        let (x, w) = (self.f32(&[heads, k]), self.weight(&[heads, n, k]));
        let w = ok(self.b.dequantise(w));
        ok(self.b.heads_matmul(x, w));
    }

    pub(super) fn linear_heads(&mut self, kind: OpKind, Sizes { k, n, heads, .. }: Sizes) {
        let w = self.weight(&[heads, n, k]);
        let x = self.activation(w, &[heads, k]);
        ok(self.b.op(kind, vec![Operand::Value(x), Operand::Weight(w)], vec![]));
    }

    pub(super) fn linear(&mut self, Sizes { k, n, .. }: Sizes) {
        let w = self.weight(&[n, k]);
        let (x, bias) = (self.activation(w, &[k]), self.maybe_vector(n));
        let residual = self.rng.once_in(2).then(|| self.f32(&[n]));
        ok(self.b.linear(x, w, bias, residual));
    }

    pub(super) fn linear_qkv(&mut self, Sizes { k, n, .. }: Sizes) {
        let [q, k, v] = [n, 32, 32].map(|n| {
            let w = self.weight(&[n, k]);
            LinearPart { x: self.activation(w, &[k]), w, bias: self.maybe_vector(n) }
        });
        ok(self.b.linear_qkv(q, k, v));
    }

    pub(super) fn linear_swiglu(&mut self, kind: OpKind, Sizes { k, n, .. }: Sizes) {
        let (gate, up) = self.gate_up(&[n, k]);
        let (x, format) = (self.activation(gate, &[k]), self.activation_format(n));
        let biases = [self.maybe_vector(n), self.maybe_vector(n)].map(maybe_weight);
        let mut operands = vec![Operand::Value(x), Operand::Weight(gate), Operand::Weight(up)];
        operands.extend(biases);
        let attrs = self.gate().attrs().into_iter().chain([Attr::Format(format)]).collect();
        ok(self.b.op(kind, operands, attrs));
    }
}
