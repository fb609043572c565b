//! Prompts of completions: counted, checked, and tokenised on a blocking thread.
//!
//! Invariant: no prompt is copied or encoded before the number of all prompts was checked.

use ixc_generate::generator::Request;
use serde_json::Value;

use crate::http::answer::check_answer_count;
use crate::http::app::RequestState;
use crate::http::client::Client;
use crate::http::error::HttpError;
use crate::http::fields::Fields;
use crate::model::Refusal;
use crate::serving::Host;

/// Takes the prompts out of a body, as tokens. `prompt` is one prompt as in llama-server, or a list
/// of prompts. A list that contains numbers is one prompt.
///
/// # Errors
/// - The model is an encoder.
/// - The field is missing or malformed.
/// - A prompt is empty or longer than the context.
/// - The prompts need more answers than the server can compute and queue.
pub(crate) async fn prompts(app: &RequestState, fields: &mut Fields, answers: u32) -> Result<Vec<Vec<u32>>, HttpError> {
    let facts = app.model.facts();
    if facts.dimensions.is_some() {
        return Err(Refusal::no_text(&facts.name).into());
    }
    let list = match fields.take("prompt") {
        Some(Value::Array(list)) if !list.is_empty() && !list.iter().any(Value::is_number) => list,
        Some(one) => vec![one],
        None => Vec::new(),
    };
    check_answer_count(&app.model, list.len(), answers)?;
    if list.is_empty() || !list.iter().all(is_prompt) {
        let wrong = "prompt must be a text, a list of tokens and texts, or a list of these";
        return Err(HttpError::invalid(Some("prompt"), wrong));
    }
    let encode = move |model: &Host, client: &Client| -> Result<Vec<Vec<u32>>, Refusal> {
        list.into_iter().map(|prompt| encode_prompt(model, client, prompt)).collect()
    };
    let prompts = app.spawn_cancellable(encode).await??;
    match prompts.iter().position(Vec::is_empty) {
        Some(_) if prompts.len() == 1 => Err(HttpError::invalid(Some("prompt"), "prompt is empty")),
        Some(empty) => Err(HttpError::invalid(Some("prompt"), format!("prompt[{empty}] is empty"))),
        None => Ok(prompts),
    }
}

/// Copies a request for each of these prompts. The caller checks the number of prompts first.
pub(crate) fn requests_for(request: &Request, prompts: Vec<Vec<u32>>) -> Vec<Request> {
    prompts.into_iter().map(|tokens| Request { tokens, ..request.clone() }).collect()
}

/// Returns whether a value is one prompt: a text, an object with a text as in llama-server, or a
/// list of tokens and texts.
fn is_prompt(value: &Value) -> bool {
    match value {
        Value::String(_) => true,
        Value::Object(members) => members.len() == 1 && members.get("prompt_string").is_some_and(Value::is_string),
        Value::Array(list) => list.iter().all(|value| value.is_string() || token(value).is_some()),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn token(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

/// Tokenises one prompt. Stops when there are too many tokens, or the client has disconnected.
fn encode_prompt(model: &Host, client: &Client, prompt: Value) -> Result<Vec<u32>, Refusal> {
    let context = model.facts().context;
    let list = match prompt {
        Value::Array(list) => list,
        Value::Object(members) => members.into_iter().map(|(_, text)| text).collect(),
        text => vec![text],
    };
    // Each text that is not empty has at least one token.
    let mut left = list.iter().filter(|value| value.as_str().is_none_or(|text| !text.is_empty())).count();
    let mut tokens = Vec::new();
    for (i, value) in list.into_iter().enumerate() {
        if tokens.len() + left > context {
            return Err(Refusal::too_long(tokens.len() + left, context));
        }
        client.check()?;
        match value {
            // BOS comes only before the first part of a prompt.
            Value::String(text) => {
                left -= usize::from(!text.is_empty());
                tokens.extend(model.encode(&text, i == 0, true)?);
            }
            number => {
                left -= 1;
                tokens.extend(token(&number));
            }
        }
    }
    Ok(tokens)
}
