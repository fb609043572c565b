//! Logits of steps of an engine, and their comparison.

use ixc::runtime::engine::Engine;

/// Returns the logits of tokens that follow the engine's current position. `length` returns the
/// length of each step.
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

/// Returns the logits of tokens from the first position on. `length` returns the length of each
/// step.
pub fn run(engine: &mut Engine, tokens: &[u32], length: impl Fn(usize) -> usize) -> Vec<f32> {
    engine.reset();
    feed(engine, tokens, length)
}

/// Returns whether all bits are equal.
pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}
