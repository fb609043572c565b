//! llama-server's endpoints `/tokenize` and `/detokenize`.
//!
//! Invariant: an answer takes memory in proportion to its request body, since the text of tokens is
//! produced while it is sent.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

use crate::http::app::{App, RequestState};
use crate::http::error::HttpError;
use crate::http::fields::Fields;
use crate::model::Refusal;
use crate::serving::Host;

/// Number of tokens in a chunk of the answer.
const TOKENS_AT_ONCE: usize = 256;
/// Max bytes of text for each byte of a `/detokenize` body, and max bytes for any short body.
const TEXT_PER_BYTE: usize = 8;
const SHORT_TEXT: usize = 4 << 20;

/// The answer of `/tokenize`.
#[derive(Serialize)]
struct Tokens {
    tokens: Vec<u32>,
}

/// A token with its text.
#[derive(Serialize)]
struct Piece {
    id: u32,
    piece: String,
}

/// Tokenises a text.
pub(crate) async fn tokenize(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, HttpError> {
    let mut fields = Fields::parse(&body)?;
    drop(body);
    let app = app.select_model(&fields).await?;
    let flag = |name, otherwise| Ok::<_, HttpError>(fields.flag(name)?.unwrap_or(otherwise));
    let (add, parse) = (flag("add_special", false)?, flag("parse_special", true)?);
    let with_pieces = flag("with_pieces", false)?;
    fields.text("content")?.ok_or_else(|| HttpError::invalid(Some("content"), "content is missing"))?;
    let content = fields.take("content");
    let encode = move |model: &Host| model.encode(content.as_ref().and_then(Value::as_str).unwrap_or(""), add, parse);
    let tokens = app.spawn_on_thread(encode).await??;
    match with_pieces {
        true => Ok(pieces(app, tokens)),
        false => Ok(Json(Tokens { tokens }).into_response()),
    }
}

/// Returns tokens with their texts, as a chunked answer.
fn pieces(app: RequestState, tokens: Vec<u32>) -> Response {
    let count = tokens.len().div_ceil(TOKENS_AT_ONCE).max(1);
    let part = move |number: usize| {
        let begin = if number == 0 { "{\"tokens\":[" } else { "," };
        let list = tokens.chunks(TOKENS_AT_ONCE).nth(number).unwrap_or_default().iter().map(|&id| {
            let piece = app.model.decode(&[id]).unwrap_or_default();
            serde_json::to_string(&Piece { id, piece }).unwrap_or_default()
        });
        let end = if number + 1 == count { "]}" } else { "" };
        Ok::<_, Infallible>([begin, &list.collect::<Vec<_>>().join(","), end].concat())
    };
    let body = Body::from_stream(futures_util::stream::iter((0..count).map(part)));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// The answer of `/detokenize`.
#[derive(Serialize)]
pub(crate) struct Content {
    content: String,
}

/// Converts tokens to text.
pub(crate) async fn detokenize(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Content>, HttpError> {
    let mut fields = Fields::parse(&body)?;
    let most = body.len().saturating_mul(TEXT_PER_BYTE).max(SHORT_TEXT);
    drop(body);
    let app = app.select_model(&fields).await?;
    let token = |number: Value| u32::try_from(number.as_u64()?).ok();
    let tokens = match fields.take("tokens") {
        Some(Value::Array(list)) => list.into_iter().map(token).collect::<Option<Vec<u32>>>(),
        _ => None,
    };
    let tokens = tokens.ok_or_else(|| HttpError::invalid(Some("tokens"), "tokens must be a list of tokens"))?;
    let decode = move |model: &Host| -> Result<String, Refusal> {
        // Some tokens have hundreds of characters.
        let mut bytes = 0;
        for part in tokens.chunks(TOKENS_AT_ONCE) {
            bytes += model.decode(part)?.len();
            if bytes > most {
                let message = format!("the tokens are more than {most} bytes of text; send them in parts");
                return Err(Refusal::Invalid { message });
            }
        }
        model.decode(&tokens)
    };
    Ok(Json(Content { content: app.spawn_on_thread(decode).await?? }))
}
