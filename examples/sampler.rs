//! Draws tokens with a sampler of its own, which leaves a watermark in the text.
//!
//! ```text
//! cargo run --release --example sampler -- model.gguf "The borrow checker"
//! ```
//!
//! The largest of `logit - ln(-ln(random))` is a draw from the softmax (Gumbel-max). Here the
//! random numbers come from a key and the last tokens (Aaronson 2022,
//! <https://scottaaronson.blog/?p=6823>). So a reader with the key recognises the text: the mean of
//! `-ln(1 - random)` of its tokens is above 1. For any other text, this mean is 1.

use std::path::PathBuf;

use ixc::LoadOptions;
use ixc::loaded_model::LoadedModel;

const KEY: u64 = 0x5eed;
/// Number of last tokens that a random number depends on.
const WINDOW: usize = 2;
const TOKENS: usize = 48;

/// Returns a random number between 0 and 1 for the next token after these.
fn random(last: &[u32], token: u32) -> f64 {
    let mix = |hash: u64, id: &u32| {
        // The finaliser of SplitMix64.
        let hash = hash.wrapping_add(u64::from(*id)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ (hash >> 31)
    };
    let hash = last.iter().chain([&token]).fold(KEY, mix);
    ((hash >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// Draws a token from logits, one for each token of the vocabulary.
fn draw(logits: &[f32], last: &[u32]) -> Option<u32> {
    let score = |(token, logit): (u32, &f32)| (token, f64::from(*logit) - (-random(last, token).ln()).ln());
    (0..).zip(logits).map(score).max_by(|a, b| a.1.total_cmp(&b.1)).map(|(token, _)| token)
}

/// Returns the evidence of the watermark: the mean of `-ln(1 - random)` over all tokens after the
/// first ones.
fn evidence(tokens: &[u32]) -> f64 {
    let each = tokens.windows(WINDOW + 1).map(|window| -(1.0 - random(&window[..WINDOW], window[WINDOW])).ln());
    each.sum::<f64>() / (tokens.len() - WINDOW) as f64
}

fn main() -> Result<(), ixc::Error> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().map(PathBuf::from);
    let prompt = arguments.next().unwrap_or_else(|| "The borrow checker".into());
    let mut model = LoadedModel::open(path.as_deref(), &LoadOptions::default())?;
    let ends = model.tokenizer()?.end_of_generation();

    let mut tokens = model.encode_prompt(&prompt)?;
    let prompt_len = tokens.len();
    model.begin(&tokens)?;
    // The first step has the prompt, and each later one the last token.
    let mut step = tokens.clone();
    while tokens.len() < prompt_len + TOKENS {
        let logits = model.step(&step, &[step.len() as u32 - 1])?;
        let Some(token) = draw(logits, &tokens[tokens.len().saturating_sub(WINDOW)..]) else { break };
        if ends.contains(&token) {
            break;
        }
        tokens.push(token);
        step = vec![token];
    }
    println!("{}", model.tokenizer()?.decode(&tokens)?);
    let plain = model.encode_prompt("The borrow checker is the part of the compiler that checks each reference.")?;
    println!("evidence {:.2}; of another text {:.2}", evidence(&tokens[prompt_len - WINDOW..]), evidence(&plain));
    Ok(())
}
