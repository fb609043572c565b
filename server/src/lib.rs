//! ixc over HTTP: the interfaces of OpenAI, Anthropic and llama-server, before anything that makes
//! tokens ([`Model`]).
//!
//! | file | what it owns |
//! | --- | --- |
//! | [`model`] | what a server stands before |
//! | `app` | what every request sees |
//! | `client` | the client of a request, as long work sees it |
//! | `connection` | connections, and how long they may be silent |
//! | `places` | how many connections there are, and which gives its place up |
//! | `admission` | the checks around every request |
//! | `names`, [`origins`] | by which names the server may be called, and which pages may ask |
//! | `bodies` | bodies of requests |
//! | [`request_log`] | a line for each request |
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
//! | `wanted` | how tokens are chosen, and what ends an answer |
//! | `offered` | tools of `/v1/responses`, and items of their calls |
//! | `forms` | the form that an answer must have |
//! | `tools` | the tools of a request, and which must be called |
//! | `fields` | the fields of requests, and their ranges |
//! | [`request_fields`] | which fields are honoured, ignored or refused: one table |
//! | `error` | how requests fail |
//!
//! Invariant: every path but `/health` and the page at `/` wants a key, where there are keys.
//! Invariant: what would change an answer and is not there is refused by name, never passed over.
//! Invariant: what a request may take is bounded: its body, its fields, the time it takes to come,
//! the places in the queue.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod admission;
mod answer;
mod anthropic;
mod app;
mod bodies;
mod client;
mod connection;
mod embeddings;
mod error;
mod experts;
mod fields;
mod forms;
pub mod histogram;
mod local;
mod metrics;
pub mod model;
mod names;
mod native;
mod offered;
mod openai;
pub mod origins;
mod page;
mod places;
mod prompts;
pub mod request_fields;
pub mod request_log;
mod responses;
mod slots;
mod tokens;
mod tools;
mod wanted;

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::watch;

use app::App;
pub use app::Options;
use error::HttpError;
pub use local::{Local, fields_of};
pub use model::{Model, Models};
pub use origins::AllowedOrigin;
pub use request_log::{LogFormat, RequestLog};
pub use wanted::check_defaults;

/// Serves models on a listener until `end` comes; then takes no more, lets answers that are being
/// made end, as long as [`Options::drain`] lets them, and returns.
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
        .layer(from_fn_with_state(app.clone(), admission::guarded::<M>))
        .layer(from_fn_with_state(app.clone(), admission::attended::<M>))
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
