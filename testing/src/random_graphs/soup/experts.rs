//! Random ops of experts: routers, products with experts, and the experts' memory.

use super::{Sizes, Soup, maybe_weight};
use crate::random_graphs::{IDS, ok, random_route};
use ixc_ir::graph::attrs::{Prefetch, RouteScore};
use ixc_ir::graph::op::OpKind;
use ixc_ir::graph::{Attr, OpView, Operand, view};

impl Soup {
    pub(super) fn route(&mut self) {
        let slots = 1 + self.rng.below(IDS);
        let (logits, route) = (self.f32(&[IDS]), random_route(&mut self.rng, slots));
        let bias = if route.score.weighs_by_those_left() { None } else { self.maybe_vector(IDS) };
        let scales = self.maybe_vector(IDS);
        let (ids, p) = ok(self.b.route(logits, bias, scales, &route));
        self.routed.push((ids, p, slots));
    }

    pub(super) fn expert_matmul(&mut self, Sizes { k, n, .. }: Sizes) {
        let (ids, _, slots) = self.pick_route();
        let w = self.weight(&[IDS + 1, n, k]);
        let w = ok(self.b.dequantise(w));
        let x = if self.rng.once_in(2) { self.f32(&[k]) } else { self.f32(&[slots, k]) };
        ok(self.b.expert_matmul(x, ids, w));
    }

    pub(super) fn expert_add_bias(&mut self, Sizes { k, .. }: Sizes) {
        let (ids, _, slots) = self.pick_route();
        let (y, bias) = (self.f32(&[slots, k]), self.table(k));
        ok(self.b.expert_add_bias(y, ids, bias));
    }

    pub(super) fn expert_scale(&mut self, Sizes { k, .. }: Sizes) {
        let (ids, _, slots) = self.pick_route();
        let (y, factors) = (self.f32(&[slots, k]), self.weight(&[IDS]));
        ok(self.b.expert_scale(y, ids, factors));
    }

    pub(super) fn expert_combine(&mut self, Sizes { k, .. }: Sizes) {
        let (_, p, slots) = self.pick_route();
        let y = self.f32(&[slots, k]);
        ok(self.b.expert_combine(y, p));
    }

    pub(super) fn route_listed(&mut self) {
        let table = self.table(2);
        let (logits, route) = (self.f32(&[IDS]), random_route(&mut self.rng, 2));
        // `route.listed` takes experts from a table, so they need not have the highest logits.
        let score = if route.score.weighs_by_those_left() { RouteScore::Sigmoid } else { route.score };
        let (ids, p) = ok(self.b.route_listed(logits, self.ids, table, score, route.normalise, route.scale));
        self.routed.push((ids, p, 2));
    }

    pub(super) fn route_given(&mut self) {
        let (ids, p, slots) = self.pick_route();
        let (ids, p) = ok(self.b.route_given(ids, p, IDS));
        self.routed.push((ids, p, slots));
    }

    pub(super) fn route_identities(&mut self) {
        let (ids, p, slots) = self.pick_route();
        let experts = 1 + self.rng.below(IDS);
        let (ids, p, _) = ok(self.b.route_identities(ids, p, experts));
        self.routed.push((ids, p, slots));
    }

    pub(super) fn route_owned(&mut self) {
        let (ids, p, slots) = self.pick_route();
        let owned = view::RouteOwned { ids, p, first: self.rng.below(IDS) as i64, experts: 1 };
        let results = ok(self.b.op(OpKind::RouteOwned, owned.operands(), owned.attrs()));
        self.routed.push((results[0], results[1], slots));
    }

    pub(super) fn expert_groups(&mut self) {
        let (ids, p, slots) = self.pick_route();
        let groups = ok(self.b.expert_groups(ids, self.rng.pick(&[1, 2])));
        self.routed.push((groups, p, slots));
    }

    pub(super) fn expert_swiglu(&mut self, kind: OpKind, Sizes { k, n, .. }: Sizes) {
        let (ids, _, _) = self.pick_route();
        let (gate, up) = self.gate_up(&[IDS, n, k]);
        let (x, format) = (self.activation(gate, &[k]), self.activation_format(n));
        let biases = [self.maybe_table(n), self.maybe_table(n)].map(maybe_weight);
        let mut operands = vec![Operand::Value(x), Operand::Value(ids), Operand::Weight(gate), Operand::Weight(up)];
        operands.extend(biases);
        let attrs = self.gate().attrs().into_iter().chain([Attr::Format(format)]).collect();
        ok(self.b.op(kind, operands, attrs));
    }

    pub(super) fn expert_down(&mut self, kind: OpKind, Sizes { k, n, .. }: Sizes) {
        let (ids, p, slots) = self.pick_route();
        let w = self.weight(&[IDS, n, k]);
        let (x, residual) = (self.activation(w, &[slots, k]), self.f32(&[n]));
        let bias = maybe_weight(self.maybe_table(n));
        let [x, ids, p, residual] = [x, ids, p, residual].map(Operand::Value);
        ok(self.b.op(kind, vec![x, ids, p, Operand::Weight(w), bias, residual], vec![]));
    }

    pub(super) fn expert_split(&mut self) {
        let (ids, p, slots) = self.pick_route();
        if slots < 2 {
            return;
        }
        let now = 1 + self.rng.below(slots - 1);
        let [(now_ids, now_p), (later_ids, later_p)] = ok(self.b.expert_split(ids, p, now));
        self.routed.extend([(now_ids, now_p, now), (later_ids, later_p, slots - now)]);
    }

    pub(super) fn expert_slots(&mut self) {
        self.slots();
    }

    pub(super) fn expert_prefetch(&mut self, Sizes { k, n, heads, .. }: Sizes) {
        let ((ids, _, _), (gate, up)) = (self.pick_route(), self.gate_up(&[IDS, n, k]));
        let (slots, down) = (self.slots(), self.weight(&[IDS, 32, n]));
        let when = self.rng.pick(&[Prefetch::Routed, Prefetch::Predicted]);
        let gate = Some(gate).filter(|_| self.rng.once_in(2));
        let layer = heads.cast_signed();
        let op = view::ExpertPrefetch { slots, ids, gate, up, down, layer, when };
        self.slots = Some(ok(self.b.expert_prefetch(&op)));
    }

    pub(super) fn expert_wait(&mut self, Sizes { heads, .. }: Sizes) {
        let (ids, p, top_k) = self.pick_route();
        let slots = self.slots();
        let (ids, slots) = ok(self.b.expert_wait(slots, ids, heads));
        self.slots = Some(slots);
        self.routed.push((ids, p, top_k));
    }

    pub(super) fn expert_evict(&mut self, Sizes { k, heads, .. }: Sizes) {
        let (slots, after) = (self.slots(), self.f32(&[k]));
        self.slots = Some(ok(self.b.expert_evict(slots, after, heads)));
    }
}
