//! Probabilities of tokens in answers.

use ixc_generate::generator::LogProbs;
use ixc_runtime::sample::TokenLogProb;
use serde_json::{Value, json};

use crate::serving::Host;

/// Returns the text of a token. Incomplete UTF-8 characters are replaced.
pub(crate) fn text_of(model: &Host, token: u32) -> String {
    String::from_utf8_lossy(model.token_bytes(token)).into_owned()
}

/// Logarithm of a probability of 0: JSON has no infinity, and OpenAI's interface uses this number.
const MIN_LOGARITHM: f32 = -9999.0;

/// Returns the logarithm of a token's probability.
pub(crate) fn logarithm(token: &TokenLogProb) -> Value {
    token.log_probability.max(MIN_LOGARITHM).into()
}

/// Returns a token with its probability: a logarithm, or a probability after the samplers.
fn log_prob_object(model: &Host, token: &TokenLogProb, as_probability: bool) -> Value {
    let (name, value) = match as_probability {
        true => ("prob", f64::from(token.log_probability).exp().into()),
        false => ("logprob", logarithm(token)),
    };
    let (text, bytes) = (text_of(model, token.token), model.token_bytes(token.token));
    json!({"id": token.token, "token": text, name: value, "bytes": bytes})
}

/// Returns a token of an answer with the likeliest ones at its position.
pub(crate) fn token_object(model: &Host, log_probs: &LogProbs, as_probability: bool) -> Value {
    let mut object = log_prob_object(model, &log_probs.token, as_probability);
    let name = if as_probability { "top_probs" } else { "top_logprobs" };
    object[name] = log_probs.top.iter().map(|token| log_prob_object(model, token, as_probability)).collect();
    object
}
