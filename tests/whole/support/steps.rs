//! Logits of an engine's steps, and how far they are from others.

use ixc::runtime::engine::Engine;

/// Logits of the tokens behind what is there, in steps of the lengths that `length` gives.
pub fn feed(engine: &mut Engine, tokens: &[u32], length: impl Fn(usize) -> usize) -> Vec<f32> {
    let (mut logits, mut rest) = (Vec::new(), tokens);
    for step in 0.. {
        let (part, after) = rest.split_at(length(step).min(rest.len()));
        let rows: Vec<u32> = (0..part.len() as u32).collect();
        logits.extend_from_slice(engine.step(part, &rows).unwrap());
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    logits
}

/// Logits at all positions from the first on, likewise.
pub fn run(engine: &mut Engine, tokens: &[u32], length: impl Fn(usize) -> usize) -> Vec<f32> {
    engine.reset();
    feed(engine, tokens, length)
}

/// Whether all are the same numbers.
pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}
