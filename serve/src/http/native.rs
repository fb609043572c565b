//! llama-server's own endpoints: `/completion`, `/apply-template`, `/props`, `/health`.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::sse::Event as Sse;
use axum::response::{IntoResponse, Response};
use ixc_generate::generator::{DraftCounts, End, LogProbs};
use ixc_runtime::sample::{NUMBERS, Number, SamplerSettings};
use ixc_text::chat::Delta;
use serde_json::{Map, Value, json};

use crate::http::answer::{Answer, AnswerPart, Answers};
use crate::http::app::{App, query};
use crate::http::conversation::conversation;
use crate::http::error::HttpError;
use crate::http::fields::{Fields, NumberField};
use crate::http::output_format;
use crate::http::probabilities::token_object;
use crate::http::prompts::{prompts, requests_for};
use crate::http::request_fields::{self, Interface};
use crate::http::request_log::Usage;
use crate::http::sampling::{self, count, includes_stop};
use crate::http::tools::Tools;
use crate::serving::Host;

/// Returns whether the server works: its thread is active, and it is not ending.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let loaded = app.models.list().into_iter().filter_map(|listed| listed.model);
    let (status, word) = match (app.is_ending(), loaded.into_iter().all(|model| model.status().is_alive)) {
        (false, true) => (StatusCode::OK, "ok"),
        (true, _) => (StatusCode::SERVICE_UNAVAILABLE, "ending"),
        (false, false) => (StatusCode::SERVICE_UNAVAILABLE, "the engine does not answer"),
    };
    (status, Json(json!({"status": word}))).into_response()
}

/// Returns the properties of the model.
pub(crate) async fn props(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Value>, HttpError> {
    let app = app.select_named_model(query(&uri, "model")).await?;
    let facts = app.model.facts();
    // Defaults: the settings of a request without any fields.
    let fields = app.fields(b"{}")?;
    let mut params = settings_object(&sampling::sampling(&app, &fields).await?);
    if fields.get("seed").is_none() {
        params.insert("seed".to_owned(), (-1).into());
    }
    params.insert("n_predict".to_owned(), fields.limit()?.flatten().map_or_else(|| (-1).into(), Value::from));
    Ok(Json(json!({
        "model_alias": facts.name, "model_path": facts.name, "total_slots": facts.parallel, "build_info": facts.build,
        "chat_template": facts.template.as_deref().unwrap_or_default(),
        "default_generation_settings": {
            "n_ctx": facts.context,
            "params": params,
        },
    })))
}

/// Returns the template's text for a conversation.
pub(crate) async fn apply_template(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, HttpError> {
    let fields = Fields::parse(&body)?;
    let app = app.select_model(&fields).await?;
    let tools = Tools::of_chat(&fields)?;
    let constraint = tools.constraint(output_format::of_chat(&fields)?)?;
    let conversation = conversation(&fields, tools.prompt_tools, app.model.facts().template.as_deref())?;
    Ok(Json(json!({"prompt": app.prompt(conversation, constraint).await?.text})))
}

/// Max fields of an answer that a request can select.
const MAX_FIELDS: usize = 256;

/// Completes texts in llama-server's form: an object, or a list of objects for several prompts or
/// answers.
pub(crate) async fn completion(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, HttpError> {
    let mut fields = app.fields(&body)?;
    drop(body);
    request_fields::refuse(Interface::Native, &fields)?;
    let app = app.select_model(&fields).await?;
    let mut request = sampling::request(&app, &fields, "stop").await?;
    let includes_stop = includes_stop(&fields)?;
    let count = match fields.number(&NumberField::N_CMPL)? {
        Some(count) => count as u32,
        None => count(&fields)?,
    };
    let prompts = prompts(&app, &mut fields, count).await?;
    let top_logprobs = fields.number(&NumberField::N_PROBS)?.filter(|count| *count > 0.0).map(|count| count as usize);
    let after_sampling = fields.flag("post_sampling_probs")?.unwrap_or(false);
    let returns_tokens = fields.flag("return_tokens")?.unwrap_or(false);
    request.grammar = app.constrain(output_format::of_text(&fields)?).await?;
    // Tokens are returned together with their probabilities, so the probabilities are requested,
    // too.
    request.top_logprobs = top_logprobs.or(returns_tokens.then_some(0));
    request.after_sampling = after_sampling;
    let streamed = fields.flag("stream")?.unwrap_or(false);
    let response_fields = fields.texts("response_fields", MAX_FIELDS)?;
    let mut settings = settings_object(&request.sampling);
    settings.extend([
        ("n_predict".to_owned(), request.limit.map_or_else(|| (-1).into(), Value::from)),
        ("stop".to_owned(), request.stop.to_vec().into()),
        ("ignore_eos".to_owned(), request.ignore_end.into()),
        ("n_probs".to_owned(), top_logprobs.unwrap_or(0).into()),
        ("post_sampling_probs".to_owned(), after_sampling.into()),
        ("stream".to_owned(), streamed.into()),
    ]);
    drop(fields);
    let encoded = prompts.clone();
    let texts =
        app.spawn_on_thread(move |model| encoded.iter().map(|tokens| model.decode(tokens)).collect::<Result<_, _>>());
    let format = CompletionFormat {
        name: app.model.facts().name.clone(),
        settings,
        prompts: texts.await??,
        answers_per_prompt: count.max(1) as usize,
        has_probabilities: top_logprobs.is_some(),
        after_sampling,
        returns_tokens,
        response_fields,
    };
    let answers = Answer::several(&app, &requests_for(&request, prompts), None, count)?;
    let mut answers = answers.including_stop(includes_stop);
    if !streamed {
        let mut completions = vec![Completion::default(); answers.len()];
        while let Some((number, next)) = answers.next().await {
            let Completion { text, log_probs, end } = &mut completions[number];
            log_probs.extend(answers.take_log_probs(number));
            match next? {
                AnswerPart::Deltas(deltas) => deltas.into_iter().for_each(|delta| text.push_str(&text_of(delta))),
                AnswerPart::Ended(reason) => *end = Some(reason),
            }
        }
        let mut objects = Vec::with_capacity(completions.len());
        for (number, Completion { text, log_probs, end }) in completions.into_iter().enumerate() {
            let end = end.ok_or_else(|| HttpError::server_error("the answer was not finished"))?;
            objects.push(format.last_object(&answers, number, &text, &end, &log_probs));
        }
        let one = if objects.len() == 1 { objects.pop() } else { None };
        return Ok(Json(one.unwrap_or_else(|| objects.into())).into_response());
    }
    let events = futures_util::stream::unfold((answers, format, false), |(mut answers, format, done)| async move {
        if done {
            return None;
        }
        let (number, next) = answers.next().await?;
        let log_probs = answers.take_log_probs(number);
        let (object, done) = match next {
            Ok(AnswerPart::Deltas(deltas)) => {
                let text: String = deltas.into_iter().map(text_of).collect();
                let generated = answers.usage_of(number).generated;
                let part = json!({"index": number, "content": text, "stop": false, "tokens_predicted": generated});
                (format.with_tokens(answers.model(), part, &log_probs), false)
            }
            Ok(AnswerPart::Ended(end)) => (format.last_object(&answers, number, "", &end, &log_probs), false),
            Err(error) => (error.body(), true),
        };
        Some((Ok::<_, Infallible>(Sse::default().data(object.to_string())), (answers, format, done)))
    });
    Ok(axum::response::sse::Sse::new(events).into_response())
}

/// Completed text.
#[derive(Clone, Default)]
struct Completion {
    text: String,
    log_probs: Vec<LogProbs>,
    end: Option<End>,
}

/// Format of completions.
struct CompletionFormat {
    name: String,
    settings: Map<String, Value>,
    /// Texts of the prompts.
    prompts: Vec<String>,
    answers_per_prompt: usize,
    has_probabilities: bool,
    /// Whether the answer has probabilities after the samplers, instead of the model's log
    /// probabilities.
    after_sampling: bool,
    returns_tokens: bool,
    /// Fields of the last object to return: names, or paths of names with slashes between them. An
    /// empty list selects all fields.
    response_fields: Vec<String>,
}

impl CompletionFormat {
    /// Adds the requested token data to a part of an answer.
    fn with_tokens(&self, model: &Host, mut object: Value, log_probs: &[LogProbs]) -> Value {
        if self.returns_tokens {
            object["tokens"] = log_probs.iter().map(|log_probs| log_probs.token.token).collect();
        }
        if self.has_probabilities && !log_probs.is_empty() {
            let token = |log_probs: &LogProbs| token_object(model, log_probs, self.after_sampling);
            object["completion_probabilities"] = log_probs.iter().map(token).collect();
        }
        object
    }

    /// Returns the last object of an answer.
    fn last_object(&self, answers: &Answers, number: usize, text: &str, end: &End, log_probs: &[LogProbs]) -> Value {
        let usage = answers.usage_of(number);
        let (kind, word) = match end {
            End::Token(_) | End::Grammar | End::Stopped => ("eos", ""),
            End::StopString(word) => ("word", &**word),
            End::Limit | End::Context => ("limit", ""),
        };
        let object = json!({
            "index": number, "content": text, "stop": true, "stop_type": kind, "stopping_word": word,
            "model": self.name, "prompt": self.prompts.get(number / self.answers_per_prompt), "generation_settings": self.settings,
            "tokens_predicted": usage.generated, "tokens_evaluated": usage.prompt, "tokens_cached": usage.cached,
            "truncated": *end == End::Context, "has_new_line": text.contains('\n'), "timings": timings(answers, number),
        });
        let object = self.with_tokens(answers.model(), object, log_probs);
        if self.response_fields.is_empty() {
            return object;
        }
        let found = |path: &String| {
            let inner = path.split('/').try_fold(&object, |object, name| object.get(name))?;
            Some((path.clone(), inner.clone()))
        };
        self.response_fields.iter().filter_map(found).collect::<Map<_, _>>().into()
    }
}

/// Returns a sampler's settings by their names.
fn settings_object(settings: &SamplerSettings) -> Map<String, Value> {
    let shown = |number: &Number| {
        let value = (number.get)(settings);
        match number.whole {
            true => Value::from(value as i64),
            // Print the shortest decimal number: 0.8 instead of 0.800000011920929.
            false => (value as f32).to_string().parse::<f64>().unwrap_or(value).into(),
        }
    };
    let mut object: Map<String, Value> = NUMBERS.iter().map(|number| (number.name.to_owned(), shown(number))).collect();
    object.insert("samplers".to_owned(), settings.samplers.iter().map(|kind| kind.name()).collect());
    object.insert("seed".to_owned(), settings.seed.into());
    object
}

fn text_of(delta: Delta) -> String {
    match delta {
        Delta::Content(text) | Delta::Reasoning(text) => text,
        Delta::Call(_) | Delta::Arguments(_) => String::new(),
    }
}

/// Returns the times of an answer in llama-server's form.
fn timings(answers: &Answers, number: usize) -> Value {
    let Usage { prompt, cached, generated } = answers.usage_of(number);
    let (computed, times) = (prompt.saturating_sub(cached), answers.times(number));
    let (prefill, decode) = (times.prompt.as_secs_f64() * 1e3, times.generation.as_secs_f64() * 1e3);
    let each = |milliseconds: f64, count: usize| if count > 0 { milliseconds / count as f64 } else { 0.0 };
    let rate =
        |milliseconds: f64, count: usize| if milliseconds > 0.0 { count as f64 * 1e3 / milliseconds } else { 0.0 };
    let mut timings = json!({
        "cache_n": cached, "prompt_n": computed, "prompt_ms": prefill, "prompt_per_token_ms": each(prefill, computed),
        "prompt_per_second": rate(prefill, computed), "predicted_n": generated, "predicted_ms": decode,
        "predicted_per_token_ms": each(decode, generated), "predicted_per_second": rate(decode, generated),
    });
    let DraftCounts { drafted, accepted } = answers.drafts(number);
    if drafted > 0 {
        timings["draft_n"] = drafted.into();
        timings["draft_n_accepted"] = accepted.into();
    }
    timings
}
