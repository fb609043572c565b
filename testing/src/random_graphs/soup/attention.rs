//! Random ops of attention: rotations, caches of keys and values, and attention itself.

use super::{Sizes, Soup};
use crate::random_graphs::{ok, random_rope};
use ixc_ir::graph::attrs::ScoreAttrs;
use ixc_ir::graph::op::OpKind;
use ixc_ir::graph::types::CacheShape;
use ixc_ir::graph::{State, view};

impl Soup {
    pub(super) fn rope(&mut self, Sizes { heads, d, .. }: Sizes) {
        let x = self.f32(&[heads, d]);
        let rope = random_rope(&mut self.rng, d);
        let factors = self.rope_factors(&rope);
        ok(self.b.rope(x, self.pos, factors, &rope));
    }

    pub(super) fn kv_append(&mut self, Sizes { heads, d, .. }: Sizes) {
        let dv = self.rng.pick(&[d, 4]);
        let cache = self.cache(CacheShape { heads, key: d, value: dv });
        let (k, v) = (self.f32(&[heads, d]), self.f32(&[heads, dv]));
        self.caches[cache].1 = ok(self.b.kv_append(self.caches[cache].1, k, v, self.pos));
    }

    pub(super) fn index_top_k(&mut self, Sizes { heads, d, .. }: Sizes) {
        let cache = self.cache(CacheShape { heads: 1, key: d, value: 4 });
        let (k, v) = (self.f32(&[1, d]), self.f32(&[1, 4]));
        self.caches[cache].1 = ok(self.b.kv_append(self.caches[cache].1, k, v, self.pos));
        let (q, kv) = (self.f32(&[heads, d]), self.caches[cache].1);
        (_, self.caches[cache].1) = if self.rng.once_in(2) {
            let (block, local) = (1 + self.rng.below(3), 1 + self.rng.below(2));
            let top_k = block * (local + self.rng.below(2));
            ok(self.b.index_blocks(q, kv, self.pos, top_k, block, local))
        } else {
            let w = self.f32(&[heads]);
            let top_k = self.rng.pick(&[1, 3]);
            ok(self.b.index_top_k(q, w, kv, self.pos, top_k, false))
        };
    }

    pub(super) fn attention(&mut self) {
        if self.caches.is_empty() {
            self.op(OpKind::KvAppend);
        }
        let cache = self.rng.below(self.caches.len() as u64) as usize;
        let CacheShape { heads: kv_heads, key: d, .. } = self.caches[cache].0;
        let heads = kv_heads * self.rng.pick(&[1, 3]);
        let q = self.f32(&[heads, d]);
        let sinks = self.maybe_vector(heads);
        let [cap, max_bias, slope] =
            self.rng.pick(&[[0.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 8.0, 0.5], [2.0, 8.0, 0.0]]);
        let scores = ScoreAttrs { cap, max_bias, slope, ..ScoreAttrs::plain(0.25) };
        (_, self.caches[cache].1) = ok(self.b.attention(q, self.caches[cache].1, self.pos, sinks, None, &scores));
    }

    pub(super) fn positions(&mut self) {
        let (every, back) = (1 + self.rng.below(4), self.rng.once_in(2));
        ok(self.b.positions(self.pos, every, back));
    }

    pub(super) fn ends(&mut self) {
        ok(self.b.ends(self.pos));
    }

    pub(super) fn attention_entries(&mut self, Sizes { heads, d, .. }: Sizes) {
        let every = 2 + self.rng.below(3);
        let chooses = self.rng.once_in(2);
        let [kv, entries, index] = [(heads, 1), (heads, every), (1, every)].map(|(heads, every)| {
            let name = self.name("kv");
            let state = ok(self.b.state(State { every, ..State::paged(&name, heads, d, d) }));
            let token = ok(self.b.state_begin(state));
            let (k, v) = (self.f32(&[heads, d]), self.f32(&[heads, d]));
            ok(self.b.kv_append(token, k, v, self.pos))
        });
        let chosen = chooses.then(|| {
            let (q, w) = (self.f32(&[heads, d]), self.f32(&[heads]));
            let top_k = self.rng.pick(&[1, 3]);
            ok(self.b.index_top_k(q, w, index, self.pos, top_k, true)).0
        });
        let (q, sinks) = (self.f32(&[3 * heads, d]), self.maybe_vector(3 * heads));
        let pos = self.pos;
        ok(self.b.attention_entries(&view::AttentionEntries { q, kv, entries, pos, sinks, chosen, scale: 0.25 }));
    }

    pub(super) fn rope_heads(&mut self, Sizes { heads, d, .. }: Sizes) {
        let x = self.f32(&[heads * d]);
        let rope = random_rope(&mut self.rng, d);
        let (norm, factors) = (self.maybe_vector(d), self.rope_factors(&rope));
        ok(self.b.rope_heads(x, self.pos, norm, factors, heads, 1e-6, &rope));
    }

    pub(super) fn rope_append(&mut self, Sizes { heads, d, .. }: Sizes) {
        let cache = self.cache(CacheShape { heads, key: d, value: 8 });
        let (k, v) = (self.f32(&[heads * d]), self.f32(&[heads * 8]));
        let rope = random_rope(&mut self.rng, d);
        let (norm, factors) = (self.maybe_vector(d), self.rope_factors(&rope));
        let kv = self.caches[cache].1;
        self.caches[cache].1 = ok(self.b.rope_append(kv, k, v, self.pos, norm, factors, heads, 1e-6, &rope));
    }
}
