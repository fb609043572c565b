//! Residual streams: hyper-connections and saved streams.

use ixc_ir::graph::view::StreamWeights;
use ixc_ir::graph::{ValueId, WeightId};

use super::Builder;
use crate::error::ArchError;

/// Residual streams of hyper-connections, and their mixing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    /// Number of streams.
    pub count: u64,
    /// Sinkhorn iterations on the mixing matrix; 0 without such a matrix.
    pub iterations: u64,
    /// Epsilon on weights and on sums.
    pub eps: f64,
    /// Maximum weight of a block's output.
    pub magnitude: f64,
}

impl Builder<'_> {
    /// Builds the weights of streams from projections `x`, with the vectors `scale` and `base`.
    pub fn stream_weights(
        &mut self,
        x: ValueId,
        scale: WeightId,
        base: WeightId,
        of: Streams,
    ) -> Result<ValueId, ArchError> {
        let Streams { count, iterations, eps, magnitude } = of;
        let (streams, iterations) = (count.cast_signed(), iterations.cast_signed());
        let y = self.graph.stream_weights(&StreamWeights { x, scale, base, streams, iterations, eps, magnitude });
        self.op_result(y)
    }

    /// Builds a block's input: the weighted sum of the streams `x`.
    pub fn stream_input(&mut self, x: ValueId, w: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.stream_input(x, w);
        self.op_result(y)
    }

    /// Builds the streams after a block: `x` mixed with the output `y`.
    pub fn stream_mix(&mut self, x: ValueId, y: ValueId, w: ValueId) -> Result<ValueId, ArchError> {
        let z = self.graph.stream_mix(x, y, w);
        self.op_result(z)
    }

    /// Builds attention of `y` over the saved streams `x`, scored with the weight `name`.
    pub fn stream_attend(&mut self, x: ValueId, y: ValueId, name: &str) -> Result<ValueId, ArchError> {
        let weight = self.vector(name, self.hyper.embedding_length)?;
        let z = self.graph.stream_attend(x, y, weight, self.hyper.norm_eps);
        self.op_result(z)
    }
}
