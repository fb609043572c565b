//! ixc over HTTP: the interfaces of OpenAI, Anthropic and llama-server, before anything that makes tokens ([`Model`]).
//!
//! | file | what it owns |
//! | --- | --- |
//! | [`model`] | what a server stands before |
//! | `app` | what every request sees |
//! | `client` | the client of a request, as long work sees it |
//! | `connection` | connections: how many, and how long they may be silent |
//! | `local` | no connections: requests that a process asks itself |
//! | `openai` | `/v1/chat/completions`, `/v1/completions`, `/v1/models` |
//! | `responses` | `/v1/responses` |
//! | `anthropic` | `/v1/messages` |
//! | `native` | llama-server's endpoints, `/health` |
//! | `tokens` | `/tokenize`, `/detokenize` |
//! | `metrics` | `/metrics` |
//! | [`histogram`] | how values are distributed |
//! | `page` | `/`: a page for browsers |
//! | `embeddings` | `/v1/embeddings` |
//! | `slots` | `/slots`: what sequences hold, saved and restored |
//! | `experts` | `/experts`: which experts are used, and giving some up |
//! | `prompts` | the prompts of completions as tokens |
//! | `answer` | an answer as it is made |
//! | `wanted` | what requests want of answers |
//! | `fields` | the fields of requests, and their ranges |
//! | `names` | by which names it may be called |
//! | `error` | how requests fail |
//!
//! Invariant: every path but `/health` and the page at `/` wants a key, where there are keys.
//! Invariant: what would change an answer and is not there is refused by name, never passed over.
//! Invariant: what a request may take is bounded: its body, its fields, the time it takes to come, the places in the queue.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod answer;
mod anthropic;
mod app;
mod client;
mod connection;
mod embeddings;
mod error;
mod experts;
mod fields;
pub mod histogram;
mod local;
mod metrics;
pub mod model;
mod names;
mod native;
mod openai;
mod page;
mod prompts;
mod responses;
mod slots;
mod tokens;
mod wanted;

/// The error of a request at which the server's own code failed.
const FAILED: &str = "the server failed at this request; its log says where";

use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body_util::LengthLimitError;
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio::sync::watch;

use app::App;
pub use app::Options;
use error::HttpError;
pub use local::{Local, fields_of};
pub use model::{Model, Models};
pub use wanted::check_defaults;

/// Serves models on a listener until `end` comes; then takes no more, lets answers that are being made end, as long as [`Options::drain`] lets them, and
/// returns.
pub async fn serve<M: Model>(
    listener: TcpListener,
    models: Arc<dyn Models<M>>,
    options: Options,
    end: impl Future<Output = ()> + Send + 'static,
) {
    let (send, ending) = watch::channel(false);
    tokio::spawn(async move {
        end.await;
        let _ = send.send(true);
        // The receivers see the end only as long as there is a sender.
        std::future::pending::<()>().await;
    });
    let router = router(models, options.clone(), ending.clone());
    connection::serve(listener, router, &options, ending).await;
}

fn router<M: Model>(models: Arc<dyn Models<M>>, options: Options, ending: watch::Receiver<bool>) -> Router {
    let body_bytes = options.body_bytes;
    let app = Arc::new(App::new(models, options, ending));
    Router::new()
        .route("/", get(page::page))
        .route("/health", get(native::health::<M>))
        .route("/v1/health", get(native::health::<M>))
        .route("/v1/models", get(openai::models::<M>))
        .route("/v1/models/{name}", get(openai::model::<M>))
        .route("/v1/chat/completions", post(openai::chat::<M>))
        .route("/chat/completions", post(openai::chat::<M>))
        .route("/v1/responses", post(responses::responses::<M>))
        .route("/responses", post(responses::responses::<M>))
        .route("/v1/completions", post(openai::completion::<M>))
        .route("/v1/embeddings", post(embeddings::embeddings::<M>))
        .route("/v1/messages", post(anthropic::messages::<M>))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens::<M>))
        .route("/completion", post(native::completion::<M>))
        .route("/tokenize", post(tokens::tokenize::<M>))
        .route("/detokenize", post(tokens::detokenize::<M>))
        .route("/apply-template", post(native::apply_template::<M>))
        .route("/props", get(native::props::<M>))
        .route("/slots", get(slots::slots::<M>))
        .route("/slots/{id}", post(slots::act::<M>))
        .route("/experts", get(experts::experts::<M>))
        .route("/experts/evict", post(experts::evict::<M>))
        .route("/metrics", get(metrics::metrics::<M>))
        .fallback(missing)
        .method_not_allowed_fallback(other_method)
        // Bodies are read in `guarded`, which bounds them.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state((app.clone(), body_bytes), guarded::<M>))
        .with_state(app)
}

async fn missing(request: Request) -> HttpError {
    HttpError::invalid(None, format!("there is no {}", request.uri().path()))
        .with_status(StatusCode::NOT_FOUND, "not_found_error")
}

async fn other_method(request: Request) -> HttpError {
    let wrong = format!("{} does not take {}", request.uri().path(), request.method());
    HttpError::invalid(None, wrong).with_status(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error")
}

/// What stands around every request. How an error is said depends on the interface.
async fn guarded<M: Model>(
    State((app, body_bytes)): State<(Arc<App<M>>, usize)>,
    request: Request,
    next: Next,
) -> Response {
    let is_anthropic = request.uri().path().starts_with("/v1/messages");
    let response = admitted(&app, body_bytes, request, next).await;
    if is_anthropic { HttpError::as_anthropic(response) } else { response }
}

/// What stands before every request: names that it may be called by, keys, and a body that comes in time and is not too large.
async fn admitted<M: Model>(app: &App<M>, body_bytes: usize, request: Request, next: Next) -> Response {
    if let Some(hosts) = &app.options.hosts
        && let Err(name) = names::are_allowed(hosts, &request)
    {
        return HttpError::host(&name).into_response();
    }
    let is_open = ["/", "/health", "/v1/health"].contains(&request.uri().path());
    if !is_open && !has_key(&app.options.keys, &request) {
        return HttpError::key().into_response();
    }
    let (parts, body) = request.into_parts();
    if is_open {
        // What nobody needs a key for has no body, and none is read.
        return next.run(Request::from_parts(parts, Body::empty())).await;
    }
    let too_large = || {
        HttpError::invalid(None, format!("the body is larger than {body_bytes} bytes"))
            .with_status(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error")
            .into_response()
    };
    let length = parts.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > body_bytes as u64) {
        return too_large();
    }
    let Some(mut room) = app.room(body.size_hint().upper()).await else {
        return HttpError::invalid(None, "other bodies take all room; try again later")
            .with_status(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error")
            .into_response();
    };
    let bytes = match tokio::time::timeout(app.options.body, axum::body::to_bytes(body, body_bytes)).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) if error.source().is_some_and(|source| source.is::<LengthLimitError>()) => return too_large(),
        Ok(Err(error)) => {
            return HttpError::invalid(None, format!("the body cannot be read: {error}")).into_response();
        }
        Err(_) => {
            return HttpError::invalid(None, "the body did not come in time")
                .with_status(StatusCode::REQUEST_TIMEOUT, "invalid_request_error")
                .into_response();
        }
    };
    App::<M>::shrink(&mut room, bytes.len());
    let served = client::serve(room, next.run(Request::from_parts(parts, Body::from(bytes)))).await;
    served.unwrap_or_else(|| HttpError::failed(FAILED).into_response())
}

/// Whether a request has one of the keys, or there are none. All are compared, whole, so that time tells nothing of them.
fn has_key(keys: &[String], request: &Request) -> bool {
    let bearer = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    // Names of schemes have no case (RFC 9110, 11.1).
    let bearer = bearer.and_then(|value| value.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("Bearer")).map(|(_, key)| key);
    let found = bearer.or_else(|| request.headers().get("x-api-key").and_then(|value| value.to_str().ok()));
    let found = found.unwrap_or_default().trim().as_bytes();
    let equal = keys.iter().fold(subtle::Choice::from(0), |any, key| any | key.as_bytes().ct_eq(found));
    keys.is_empty() || bool::from(equal)
}
