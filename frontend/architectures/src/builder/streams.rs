//! Residual streams: hyper-connections and saved streams.

use ixc_ir::graph::view::StreamWeights;
use ixc_ir::graph::{ValueId, WeightId};

use super::Builder;
use crate::error::ArchError;
use crate::hyper::Streams;

impl Builder<'_> {
    /// Returns the residual streams and their mixing, which the file must have.
    pub fn streams(&self) -> Result<Streams, ArchError> {
        let key = format!("{}.hyper_connection.count", self.architecture);
        self.hyper.streams.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// Returns the number of residual streams, and the length of the row from which weights of
    /// their elements are made. The file must have both.
    pub fn weighted_streams(&self) -> Result<(u64, u64), ArchError> {
        let Streams { count, rank, .. } = self.streams()?;
        let key = format!("{}.hyper_connection.low_rank", self.architecture);
        Ok((count, rank.ok_or_else(|| self.gguf.metadata().missing(&key, "u32"))?))
    }

    /// Builds the weights of streams from projections `x`, with two vectors: scales and base.
    pub fn stream_weights(&mut self, x: ValueId, vectors: [WeightId; 2]) -> Result<ValueId, ArchError> {
        let Streams { count, iterations, eps, magnitude, .. } = self.streams()?;
        let ([scale, base], streams, iterations) = (vectors, count.cast_signed(), iterations.cast_signed());
        let y = self.graph.stream_weights(&StreamWeights { x, scale, base, streams, iterations, eps, magnitude });
        self.typed(y)
    }

    /// Builds a block's input: the weighted sum of the streams `x`.
    pub fn stream_input(&mut self, x: ValueId, w: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.stream_input(x, w);
        self.typed(y)
    }

    /// Builds the streams after a block: `x` mixed with the output `y`.
    pub fn stream_mix(&mut self, x: ValueId, y: ValueId, w: ValueId) -> Result<ValueId, ArchError> {
        let z = self.graph.stream_mix(x, y, w);
        self.typed(z)
    }

    /// Builds attention of `y` over the saved streams `x`, scored with the weight `name`.
    pub fn stream_attend(&mut self, x: ValueId, y: ValueId, name: &str) -> Result<ValueId, ArchError> {
        let weight = self.vector(name, self.hyper.embedding_length)?;
        let z = self.graph.stream_attend(x, y, weight, self.hyper.norm_eps);
        self.typed(z)
    }
}
