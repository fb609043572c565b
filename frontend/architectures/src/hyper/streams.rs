//! Keys of several residual streams (hyper-connections).

use ixc_model_files::gguf::GgufError;

use super::keys::Keys;
use super::{MAX_STREAMS, MAX_WIDTH};

/// Maximum number of Sinkhorn iterations on the matrix that mixes streams.
const MAX_ITERATIONS: u64 = 1 << 10;

/// Several residual streams (hyper-connections).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Streams {
    /// Number of streams.
    pub count: u64,
    /// Length of the row from which weights of elements are made, if a block's input is weighted
    /// element by element.
    pub rank: Option<u64>,
    /// Sinkhorn iterations on the mixing matrix; 0 without such a matrix.
    pub iterations: u64,
    /// Epsilon on weights and on sums.
    pub eps: f64,
    /// Maximum weight of a block's output.
    pub magnitude: f64,
}

impl Streams {
    pub(super) fn read(keys: &Keys<'_>) -> Result<Option<Streams>, GgufError> {
        let Some(count) = keys.optional("hyper_connection.count", 1, MAX_STREAMS)? else { return Ok(None) };
        let rank = keys.optional("hyper_connection.low_rank", 1, MAX_WIDTH)?;
        // Independent hyper-connections have no mixing matrix to balance. Other streams have a
        // magnitude of 2 and no key for it.
        const MAGNITUDE: &str = "hyper_connection.magnitude";
        let apart = keys.metadata.get(&keys.name(MAGNITUDE)).is_some();
        let magnitude = keys.float(MAGNITUDE, 2.0, |x| x > 0.0, "a positive number")?;
        let iterations = match rank {
            Some(_) => 0,
            None if apart => 0,
            None => keys.required("hyper_connection.sinkhorn_iterations", 1, MAX_ITERATIONS)?,
        };
        let eps = keys.float("hyper_connection.epsilon", 1e-6, |x| (0.0..=1.0).contains(&x), "from 0 to 1")?;
        Ok(Some(Streams { count, rank, iterations, eps, magnitude }))
    }
}
