//! Parallel residual streams (hyper-connections), and attention over saved streams.

use ixc_ir::graph::view::StreamWeights;
use ixc_ir::graph::{ValueId, WeightId};

use super::Builder;
use crate::error::ArchError;

/// Sizes of the residual streams of hyper-connections, and parameters of their mixing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    /// Number of streams.
    pub count: u64,
    /// Number of Sinkhorn iterations on the mixing matrix; 0 without such a matrix.
    pub iterations: u64,
    /// Epsilon added to the weights of streams and to the sums that they are divided by.
    pub eps: f64,
    /// Maximum weight of a block's output.
    pub magnitude: f64,
}

impl Builder<'_> {
    /// Builds the weights of streams from `x`, the product of all streams with a matrix. `scale`
    /// and `base` are the factors on and the biases of `x`.
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

    /// Builds the input of a block (attention or network): the sum of the streams `x`, weighted
    /// with `w`.
    pub fn stream_input(&mut self, x: ValueId, w: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.stream_input(x, w);
        self.op_result(y)
    }

    /// Builds the streams after a block: the streams `x`, mixed with the block's output `y` by the
    /// weights `w`.
    pub fn stream_mix(&mut self, x: ValueId, y: ValueId, w: ValueId) -> Result<ValueId, ArchError> {
        let z = self.graph.stream_mix(x, y, w);
        self.op_result(z)
    }

    /// Builds attention of the stream `y` over the saved streams `x`, with scores from the weight
    /// `name`.
    pub fn stream_attend(&mut self, x: ValueId, y: ValueId, name: &str) -> Result<ValueId, ArchError> {
        let weight = self.vector(name, self.hyper.embedding_length)?;
        let z = self.graph.stream_attend(x, y, weight, self.hyper.norm_eps);
        self.op_result(z)
    }
}
