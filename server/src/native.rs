//! llama-server's own endpoints: `/completion`, `/tokenize`, `/detokenize`, `/apply-template`, `/props`, `/health`.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::sse::Event as Sse;
use axum::response::{IntoResponse, Response};
use ixc_frontend::chat::Delta;
use serde_json::{Map, Value, json};

use crate::answer::{Answer, Answers, Guessed, Next, Usage};
use crate::app::{App, query};
use crate::error::HttpError;
use crate::fields::{Fields, Unsupported};
use crate::model::{End, Likely, Model, Refusal, Request};
use crate::openai::{conversation, likely_object, prompt_tokens};
use crate::wanted::{constraint_of_text, sampling};

/// Whether it works: its thread moves, and it is not ending.
pub(crate) async fn health<M: Model>(State(app): State<Arc<App<M>>>) -> Response {
    let loaded = app.models.list().into_iter().filter_map(|listed| listed.model);
    let (status, word) = match (app.is_ending(), loaded.into_iter().all(|model| model.status().alive)) {
        (false, true) => (StatusCode::OK, "ok"),
        (true, _) => (StatusCode::SERVICE_UNAVAILABLE, "ending"),
        (false, false) => (StatusCode::SERVICE_UNAVAILABLE, "the engine does not answer"),
    };
    (status, Json(json!({"status": word}))).into_response()
}

/// What is known of the model.
pub(crate) async fn props<M: Model>(State(app): State<Arc<App<M>>>, uri: Uri) -> Result<Json<Value>, HttpError> {
    let app = app.of_name(query(&uri, "model")).await?;
    let facts = app.model.facts();
    let settings = ixc_runtime::sample::Settings::default();
    let numbers = ixc_runtime::sample::NUMBERS.iter();
    let mut params: Map<String, Value> =
        numbers.map(|number| (number.name.to_owned(), (number.get)(&settings).into())).collect();
    params.insert("samplers".to_owned(), settings.samplers.iter().map(|kind| kind.name()).collect());
    Ok(Json(json!({
        "model_alias": facts.name, "model_path": facts.name, "total_slots": facts.parallel, "build_info": facts.build,
        "chat_template": facts.template.as_deref().unwrap_or_default(),
        "default_generation_settings": {
            "n_ctx": facts.context,
            "params": params,
        },
    })))
}

/// A text as tokens.
pub(crate) async fn tokenize<M: Model>(State(app): State<Arc<App<M>>>, body: Bytes) -> Result<Json<Value>, HttpError> {
    let fields = Fields::of(&body)?;
    let app = app.of(&fields).await?;
    let content = fields.text("content")?.ok_or_else(|| HttpError::invalid(Some("content"), "content is missing"))?;
    let flag = |name, otherwise| Ok::<_, HttpError>(fields.flag(name)?.unwrap_or(otherwise));
    let (content, add, parse) = (content.to_owned(), flag("add_special", false)?, flag("parse_special", true)?);
    let with_pieces = flag("with_pieces", false)?;
    let made = move |model: &M| -> Result<Value, Refusal> {
        let tokens = model.encode(&content, add, parse)?;
        if !with_pieces {
            return Ok(json!({"tokens": tokens}));
        }
        let piece = |&id: &u32| Ok(json!({"id": id, "piece": model.decode(&[id])?}));
        Ok(json!({"tokens": tokens.iter().map(piece).collect::<Result<Vec<_>, Refusal>>()?}))
    };
    Ok(Json(app.blocking(made).await??))
}

/// Tokens as text.
pub(crate) async fn detokenize<M: Model>(
    State(app): State<Arc<App<M>>>,
    body: Bytes,
) -> Result<Json<Value>, HttpError> {
    let fields = Fields::of(&body)?;
    let tokens = fields
        .get("tokens")
        .and_then(Value::as_array)
        .and_then(|list| list.iter().map(|number| u32::try_from(number.as_u64()?).ok()).collect::<Option<Vec<u32>>>());
    let app = app.of(&fields).await?;
    let tokens = tokens.ok_or_else(|| HttpError::invalid(Some("tokens"), "tokens must be a list of tokens"))?;
    Ok(Json(json!({"content": app.blocking(move |model| model.decode(&tokens)).await??})))
}

/// What a template makes of a conversation.
pub(crate) async fn apply_template<M: Model>(
    State(app): State<Arc<App<M>>>,
    body: Bytes,
) -> Result<Json<Value>, HttpError> {
    let fields = Fields::of(&body)?;
    let app = app.of(&fields).await?;
    let conversation = conversation(&fields, app.model.facts().template.as_deref())?;
    Ok(Json(json!({"prompt": app.prompt(conversation).await?.text})))
}

/// What is refused.
const COMPLETION_UNSUPPORTED: &[Unsupported] = &[
    (
        "post_sampling_probs",
        |value| value == false,
        "post_sampling_probs: how likely tokens are is told before sampling, so that it",
    ),
    ("return_tokens", |value| value == false, "return_tokens"),
    ("n", |value| *value == 1, "n above 1 (/v1/completions has it)"),
    ("n_cmpl", |value| *value == 1, "n_cmpl above 1 (/v1/completions has n)"),
];

/// What follows a text, as llama-server says it.
pub(crate) async fn completion<M: Model>(State(app): State<Arc<App<M>>>, body: Bytes) -> Result<Response, HttpError> {
    let fields = Fields::of(&body)?;
    drop(body);
    fields.refuse(COMPLETION_UNSUPPORTED)?;
    let app = app.of(&fields).await?;
    let request = Request {
        tokens: prompt_tokens(&app, fields.get("prompt")).await?,
        limit: fields.limit()?.flatten(),
        sampling: sampling(&app, &fields).await?,
        stop: fields.stop("stop")?,
        ignore_end: fields.flag("ignore_eos")?.unwrap_or(false),
        show_special: false,
        grammar: app.constrain(constraint_of_text(&fields)?).await?,
        likeliest: fields.number("n_probs")?.filter(|count| *count > 0.0).map(|count| count as usize),
    };
    let streamed = fields.flag("stream")?.unwrap_or(false);
    drop(fields);
    let name = app.model.facts().name.clone();
    let mut answers = Answer::several(&app, &request, None, 1)?;
    if !streamed {
        let (mut text, mut last, mut likely) = (String::new(), None, Vec::new());
        while let Some(next) = answers.next_of_one().await? {
            likely.extend(answers.take_likely(0));
            match next {
                Next::Deltas(deltas) => deltas.into_iter().for_each(|delta| text.push_str(&text_of(delta))),
                Next::Ended(end) => last = Some(end),
            }
        }
        let end = last.ok_or_else(|| HttpError::failed("the answer was not finished"))?;
        return Ok(Json(with_likely(last_object(&name, &answers, &text, &end), &likely)).into_response());
    }
    let events = futures_util::stream::unfold((answers, name, false), |(mut answers, name, done)| async move {
        if done {
            return None;
        }
        let next = answers.next_of_one().await;
        let (usage, likely) = (answers.usage(), answers.take_likely(0));
        let (object, done) = match next {
            Ok(None) => (HttpError::failed("the answer was not finished").body(), true),
            Ok(Some(Next::Deltas(deltas))) => {
                let text: String = deltas.into_iter().map(text_of).collect();
                (with_likely(json!({"content": text, "stop": false, "tokens_predicted": usage.made}), &likely), false)
            }
            Ok(Some(Next::Ended(end))) => (with_likely(last_object(&name, &answers, "", &end), &likely), true),
            Err(error) => (error.body(), true),
        };
        Some((Ok::<_, Infallible>(Sse::default().data(object.to_string())), (answers, name, done)))
    });
    Ok(axum::response::sse::Sse::new(events).into_response())
}

fn text_of(delta: Delta) -> String {
    match delta {
        Delta::Content(text) | Delta::Reasoning(text) => text,
        Delta::Call(_) => String::new(),
    }
}

/// An object with how likely its tokens were, where that was asked for.
fn with_likely(mut object: Value, likely: &[(Likely, Vec<Likely>)]) -> Value {
    if !likely.is_empty() {
        let token = |(token, likeliest): &(Likely, Vec<Likely>)| {
            let mut object = likely_object(token);
            object["top_logprobs"] = likeliest.iter().map(likely_object).collect();
            object
        };
        object["completion_probabilities"] = likely.iter().map(token).collect();
    }
    object
}

/// What a completion ends with.
fn last_object(name: &str, answers: &Answers, text: &str, end: &End) -> Value {
    let usage = answers.usage();
    let (kind, word) = match end {
        End::Model => ("eos", ""),
        End::Stop(word) => ("word", &**word),
        End::Limit | End::Context => ("limit", ""),
    };
    json!({
        "content": text, "stop": true, "stop_type": kind, "stopping_word": word, "model": name,
        "tokens_predicted": usage.made, "tokens_evaluated": usage.prompt, "tokens_cached": usage.reused,
        "truncated": *end == End::Context, "has_new_line": text.contains('\n'), "index": 0, "timings": timings(answers),
    })
}

/// What an answer took, as llama-server says it.
fn timings(answers: &Answers) -> Value {
    let Usage { prompt, reused, made } = answers.usage();
    let (computed, (before, behind)) = (prompt.saturating_sub(reused), answers.times());
    let (before, behind) = (before.as_secs_f64() * 1e3, behind.as_secs_f64() * 1e3);
    let each = |milliseconds: f64, count: usize| if count > 0 { milliseconds / count as f64 } else { 0.0 };
    let rate =
        |milliseconds: f64, count: usize| if milliseconds > 0.0 { count as f64 * 1e3 / milliseconds } else { 0.0 };
    let mut timings = json!({
        "cache_n": reused, "prompt_n": computed, "prompt_ms": before, "prompt_per_token_ms": each(before, computed),
        "prompt_per_second": rate(before, computed), "predicted_n": made, "predicted_ms": behind,
        "predicted_per_token_ms": each(behind, made), "predicted_per_second": rate(behind, made),
    });
    let Guessed { drafted, accepted } = answers.guessed();
    if drafted > 0 {
        timings["draft_n"] = drafted.into();
        timings["draft_n_accepted"] = accepted.into();
    }
    timings
}
