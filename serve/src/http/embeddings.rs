//! OpenAI's interface for embeddings: `/v1/embeddings`.
//!
//! ```text
//! POST /v1/embeddings {"input": ["Hi", "Hello"], "dimensions": 64}
//! {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.01, …]}, …],
//!  "model": "m", "usage": {"prompt_tokens": 4, "total_tokens": 4}}
//! ```

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::http::app::App;
use crate::http::error::HttpError;
use crate::http::fields::{Fields, NumberField};
use crate::http::request_fields::{self, Interface};
use crate::http::request_log;
use crate::model::{EmbeddingInput, EmbeddingRequest, Embeddings, Refusal};

/// Max texts of a request, as in OpenAI's interface.
const MAX_INPUTS: usize = 2048;

/// Body of an answer with embeddings.
#[derive(Serialize)]
pub(crate) struct List {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: Usage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

/// A vector as numbers, or as their little-endian bytes in base64.
#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Numbers(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Returns the embeddings of texts.
pub(crate) async fn embeddings(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<List>, HttpError> {
    let mut fields = Fields::parse(&body)?;
    drop(body);
    request_fields::refuse(Interface::Embeddings, &fields)?;
    let app = app.select_embedding_model(&fields).await?;
    let facts = app.model.facts();
    let Some(most) = facts.dimensions else {
        return Err(Refusal::no_embeddings(&facts.name).into());
    };
    let dimensions = fields.number(&NumberField::DIMENSIONS)?.map(|dimensions| dimensions as usize);
    if let Some(dimensions) = dimensions.filter(|dimensions| *dimensions > most) {
        let wrong = format!("dimensions is {dimensions}, must be a whole number from 1 to {most}");
        return Err(HttpError::invalid(Some("dimensions"), wrong));
    }
    let is_base64 = match fields.text("encoding_format")? {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => {
            let wrong = "encoding_format must be float or base64";
            return Err(HttpError::invalid(Some("encoding_format"), wrong));
        }
    };
    let request = EmbeddingRequest { inputs: inputs(fields.take("input"))?, dimensions };
    drop(fields);
    let (send, done) = oneshot::channel();
    // Tokenisation may take long, so it runs on a separate thread.
    app.spawn_on_thread(move |model| model.embed(request, send)).await??;
    let Embeddings { vectors, tokens } = done.await.map_err(|_| HttpError::server_error("the engine has ended"))??;
    let prompts = request_log::Usage { prompt: tokens, ..request_log::Usage::default() };
    request_log::current().iter().for_each(|record| record.set_usage(prompts, Duration::ZERO));
    let data = vectors.into_iter().enumerate().map(|(index, vector)| {
        let embedding = if is_base64 { Vector::Base64(base64(&vector)) } else { Vector::Numbers(vector) };
        Embedding { object: "embedding", index, embedding }
    });
    let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
    Ok(Json(List { object: "list", data: data.collect(), model: facts.name.clone(), usage }))
}

/// Reads the inputs: a text, a list of tokens, or a list of texts or of token lists.
fn inputs(input: Option<Value>) -> Result<Vec<EmbeddingInput>, HttpError> {
    let wrong = || {
        let expected = "input must be a text, a list of tokens, or a list of these, and none may be empty";
        HttpError::invalid(Some("input"), expected)
    };
    let tokens = |list: Vec<Value>| {
        let token = |number: &Value| u32::try_from(number.as_u64()?).ok();
        let tokens: Vec<u32> = list.iter().map(token).collect::<Option<_>>()?;
        (!tokens.is_empty()).then_some(EmbeddingInput::Tokens(tokens))
    };
    let one = |value: Value| match value {
        Value::String(text) => (!text.is_empty()).then_some(EmbeddingInput::Text(text)),
        Value::Array(list) => tokens(list),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    };
    let inputs = match input {
        Some(Value::Array(list)) if !list.iter().all(Value::is_number) => {
            if list.len() > MAX_INPUTS {
                let wrong = format!("input has {} texts, must have at most {MAX_INPUTS}", list.len());
                return Err(HttpError::invalid(Some("input"), wrong));
            }
            list.into_iter().map(one).collect()
        }
        Some(value) => one(value).map(|input| vec![input]),
        None => None,
    };
    inputs.ok_or_else(wrong)
}

/// Digits of base64 (RFC 4648, section 4).
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Returns the little-endian bytes of numbers in base64.
fn base64(numbers: &[f32]) -> String {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = (0..3).fold(0u32, |word, i| word << 8 | u32::from(group.get(i).copied().unwrap_or(0)));
        for i in 0..4 {
            let letter = LETTERS[(word >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= group.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn embeddings_encode_as_base64_little_endian_floats() {
        // Expected values from Python's `base64.b64encode(struct.pack("<3f", 1.0, -0.5, 3e-3))`,
        // and from the same call with only the first number and with the first two.
        assert_eq!(base64(&[1.0, -0.5, 3e-3]), "AACAPwAAAL+mm0Q7");
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[1.0, -0.5]), "AACAPwAAAL8=");
        assert_eq!(base64(&[]), "");
    }

    #[test]
    fn inputs_are_texts_or_tokens() {
        let of = |value: Value| inputs(Some(value));
        let text = |text: &str| EmbeddingInput::Text(text.into());
        assert_eq!(of(json!("a")).unwrap(), [text("a")]);
        assert_eq!(of(json!(["a", "b"])).unwrap(), [text("a"), text("b")]);
        assert_eq!(of(json!([1, 2])).unwrap(), [EmbeddingInput::Tokens(vec![1, 2])]);
        assert_eq!(of(json!([[1], "b"])).unwrap(), [EmbeddingInput::Tokens(vec![1]), text("b")]);
        assert_eq!(of(json!(vec!["a"; MAX_INPUTS])).unwrap().len(), MAX_INPUTS);
        for wrong in [
            json!(""),
            json!([]),
            json!([[]]),
            json!(["a", ""]),
            json!([1, -1]),
            json!([1.5]),
            json!([[4_294_967_296_u64]]),
            json!([null]),
            json!({"a": 1}),
            json!([["a"]]),
            json!(vec!["a"; MAX_INPUTS + 1]),
        ] {
            assert!(of(wrong.clone()).is_err(), "{wrong}");
        }
        assert!(inputs(None).is_err());
    }
}
