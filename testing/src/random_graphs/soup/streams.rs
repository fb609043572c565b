//! Random ops on residual streams.

use super::{Sizes, Soup};
use crate::random_graphs::ok;
use ixc_ir::graph::view;

impl Soup {
    pub(super) fn stream_weights(&mut self) {
        let n = self.rng.pick(&[1, 4]);
        let (width, parts) = self.rng.pick(&[((2 + n) * n, 3), (2 * n, 2), (n, 1)]);
        let (x, scale, base) = (self.f32(&[width]), self.weight(&[parts]), self.weight(&[width]));
        let iterations = 1 + self.rng.below(3).cast_signed();
        let streams = n.cast_signed();
        ok(self.b.stream_weights(&view::StreamWeights {
            x,
            scale,
            base,
            streams,
            iterations,
            eps: 1e-5,
            magnitude: 1.5,
        }));
    }

    pub(super) fn stream_input(&mut self, Sizes { n, heads, d, .. }: Sizes) {
        let (x, w) = (self.f32(&[heads, d]), self.f32(&[heads + n]));
        ok(self.b.stream_input(x, w));
    }

    pub(super) fn stream_mix(&mut self, Sizes { heads, d, .. }: Sizes) {
        let width = self.rng.pick(&[(2 + heads) * heads, 2 * heads]);
        let (x, y, w) = (self.f32(&[heads, d]), self.f32(&[d]), self.f32(&[width]));
        ok(self.b.stream_mix(x, y, w));
    }

    pub(super) fn stream_attend(&mut self, Sizes { heads, d, .. }: Sizes) {
        let (x, y, w) = (self.f32(&[heads, d]), self.f32(&[d]), self.weight(&[d]));
        ok(self.b.stream_attend(x, y, w, 1e-5));
    }
}
