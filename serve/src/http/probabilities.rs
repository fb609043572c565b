//! Probabilities of tokens in answers.

use serde_json::{Value, json};

use crate::model::Likely;

/// Returns the text of a token; parts of characters are replaced.
pub(crate) fn text_of(likely: &Likely) -> String {
    String::from_utf8_lossy(&likely.bytes).into_owned()
}

/// Logarithm of a probability of 0: JSON has no infinity, and OpenAI's interface uses this number.
const LEAST_LOGARITHM: f32 = -9999.0;

/// Returns the logarithm of a token's probability.
pub(crate) fn logarithm(likely: &Likely) -> Value {
    likely.log_probability.max(LEAST_LOGARITHM).into()
}

/// Returns a token with its probability: a logarithm, or a probability after the samplers.
fn likely_object(likely: &Likely, as_probability: bool) -> Value {
    let (name, value) = match as_probability {
        true => ("prob", f64::from(likely.log_probability).exp().into()),
        false => ("logprob", logarithm(likely)),
    };
    json!({"id": likely.token, "token": text_of(likely), name: value, "bytes": likely.bytes})
}

/// Returns a token of an answer with the likeliest ones in its place.
pub(crate) fn token_object((token, likeliest): &(Likely, Vec<Likely>), as_probability: bool) -> Value {
    let mut object = likely_object(token, as_probability);
    let name = if as_probability { "top_probs" } else { "top_logprobs" };
    object[name] = likeliest.iter().map(|one| likely_object(one, as_probability)).collect();
    object
}
