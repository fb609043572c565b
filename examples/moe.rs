//! Computes a layer of routed experts for another engine, split between two machines.
//!
//! ```text
//! cargo run --release --example moe -- model.gguf
//! ```
//!
//! Another engine runs attention and the router, and leaves the experts to the CPU. Here both
//! halves of the experts are on this machine. Without a path, the model is the demo model.

use std::path::PathBuf;

use ixc::moe::{Moe, MoeOptions, Rows};

/// Rows of the input, one for each token.
const TOKENS: usize = 4;

fn main() -> Result<(), ixc::Error> {
    let path = std::env::args_os().nth(1).map(PathBuf::from);
    let moe = Moe::open(path.as_deref(), &MoeOptions::default())?;
    for layer in moe.layers() {
        let (number, experts) = (layer.number, layer.experts);
        println!("layer {number}: {} of {experts} experts for a row of {}", layer.used, layer.width);
    }
    let layer = &moe.layers()[0];
    let (width, used, half) = (layer.width as usize, layer.used as usize, layer.experts as i32 / 2);

    // Inputs: f32 [tokens, width], and for each row its experts and their weights, [tokens, used].
    let rows: Vec<f32> = (0..TOKENS * width).map(|i| (i as f32 * 0.37).sin()).collect();
    let ids: Vec<i32> = (0..TOKENS * used).map(|slot| (slot * 5) as i32 % layer.experts as i32).collect();
    let weights = vec![1.0 / used as f32; ids.len()];

    // `submit` returns at once: this thread is free to do something else until `wait`.
    let whole = moe.submit(layer.number, Rows::F32(&rows), &ids, &weights)?;
    let parts = [(0, half), (half, layer.experts as i32 - half)].map(|(first, count)| {
        // Experts of the other machine are skipped.
        let ids = Moe::own_ids(&ids, first, count);
        moe.submit(layer.number, Rows::F32(&rows), &ids, &weights)
    });
    let [first, second] = parts;
    let (whole, first, second) = (whole.wait()?, first?.wait()?, second?.wait()?);

    let length = whole.iter().map(|x| x * x).sum::<f32>().sqrt();
    let differences = whole.iter().zip(first.iter().zip(&second)).map(|(sum, (a, b))| (sum - (a + b)).abs());
    let is_equal = differences.fold(0.0, f32::max) < 1e-5 * length;
    println!("sums of {} numbers, length {length:.3}; the halves add up: {is_equal}", whole.len());
    Ok(())
}
