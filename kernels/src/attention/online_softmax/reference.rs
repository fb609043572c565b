//! Reference for kernels of attention: results in f64, from queries, keys and values in their
//! stored formats.

use std::ops::Range;

use super::super::heads::Scores;
use crate::generator::cache::{Cache, Field};
use crate::generator::reference::{Buffers, Mismatch};

/// Returns a query times the factor on scores, in the precision with which it is multiplied by
/// keys: f32, or rounded to bytes if keys are in a block format.
fn multiplied(keys: &Field, q: &[f64], scale: f32) -> Vec<f64> {
    let q: Vec<f32> = q.iter().map(|&q| q as f32).collect();
    let Some(blocks) = keys.codes() else { return q.iter().map(|&q| f64::from(q) * f64::from(scale)).collect() };
    let rounded = q.chunks(blocks.len() as usize).flat_map(|block| {
        let block: Vec<f32> = block.iter().map(|q| q * scale).collect();
        let most = block.iter().fold(0f32, |most, x| most.max(x.abs()));
        let (d, inverse) = (most * (1.0 / 127.0), if most > 0.0 { 127.0 / most } else { 0.0 });
        block.into_iter().map(move |x| f64::from((x * inverse).round_ties_even()) * f64::from(d))
    });
    rounded.collect()
}

/// Sink and slope of one query head.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfHead {
    /// Sink: a score without a value.
    pub sink: Option<f64>,
    /// Slope: the decrease of the scores per position.
    pub slope: Option<f64>,
}

/// Names and formats of the buffers of keys and values.
#[derive(Clone, Copy, Debug)]
pub struct CacheBuffers {
    /// Name of the buffer of keys.
    pub keys: &'static str,
    /// Name of the buffer of values.
    pub values: &'static str,
    /// Number of elements of a value.
    pub dv: usize,
    /// Formats of keys and values.
    pub cache: Cache,
}

/// Result of a query's attention before the division by the sum of weights.
#[derive(Clone, Debug)]
pub struct AttentionSums {
    /// Maximum of the scores.
    pub max: f64,
    /// Sum of the weights.
    pub sum: f64,
    /// Sums of weighted values.
    pub acc: Vec<f64>,
}

/// Computes the attention of a query over `places` of the buffers `keys` and `values`, in f64. A
/// sink takes part in the maximum and in the sum of weights.
pub fn attended(
    input: &Buffers<'_>,
    q: &[f64],
    dv: usize,
    cache: Cache,
    scores: &Scores,
    places: Range<usize>,
    of_head: OfHead,
) -> Result<AttentionSums, Mismatch> {
    let buffers = CacheBuffers { keys: "keys", values: "values", dv, cache };
    attended_in(input, buffers, q, scores, &places.collect::<Vec<_>>(), of_head)
}

/// Computes [`attended`] over `places` of the given buffers. With slopes, the last place must be
/// the row's own position.
pub fn attended_in(
    input: &Buffers<'_>,
    buffers: CacheBuffers,
    q: &[f64],
    scores: &Scores,
    places: &[usize],
    OfHead { sink, slope }: OfHead,
) -> Result<AttentionSums, Mismatch> {
    let CacheBuffers { keys, values, dv, cache } = buffers;
    let (of_keys, of_values) = (cache.keys(q.len() as u32), cache.values(dv as u32));
    let (d, q) = (q.len(), multiplied(&of_keys, q, scores.scale.value()));
    let (key, value) = (of_keys.reader(input, keys)?, of_values.reader(input, values)?);
    let fall = |p: usize| match (slope, places.last()) {
        (Some(slope), Some(own)) => slope * (p as f64 - *own as f64),
        _ => 0.0,
    };
    let score = |&p: &usize| scores.bent((0..d).map(|e| q[e] * key(p, e)).sum()) + fall(p);
    let scores: Vec<f64> = places.iter().map(score).collect();
    let max = scores.iter().copied().fold(sink.unwrap_or(f64::MIN), f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
    let acc = (0..dv).map(|e| places.iter().zip(&weights).map(|(&p, weight)| weight * value(p, e)).sum()).collect();
    Ok(AttentionSums { max, sum, acc })
}
