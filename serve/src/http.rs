//! HTTP server with the interfaces of OpenAI, Anthropic and llama-server. The interfaces turn
//! bodies into [requests](ixc_generate::generator::Request), and
//! [events](ixc_generate::generator::Event) into answers.
//!
//! ```text
//! connection ──▶ admission ──▶ interface: fields, format, tools ──Request──▶ model
//!     ▲                              │
//!     └──────────── answer ◀─────────┴──Event── model
//! ```
//!
//! | file | contents |
//! | --- | --- |
//! | `app` | state that all requests share |
//! | `connection`, `connection_limit` | connections, their time limits, their number |
//! | `lingering`, `refusals` | connections whose clients still send; refused connections |
//! | `loading` | answers while a model is loaded |
//! | `admission` | checks of every request |
//! | `client` | the client of a request, for work that ends when it leaves |
//! | `host_names`, [`origins`] | names of the server, and origins of pages that may send requests |
//! | `bodies` | bodies of requests |
//! | [`request_log`] | a line for each request |
//! | `local` | requests of this process, without connections |
//! | `openai` | `/v1/chat/completions`, `/v1/completions` |
//! | `model_list` | `/v1/models` |
//! | `conversation` | conversations of chat requests |
//! | `responses`, `response_tools` | `/v1/responses`, and its tools |
//! | `anthropic` | `/v1/messages` |
//! | `native` | endpoints of llama-server, `/health` |
//! | `tokens` | `/tokenize`, `/detokenize` |
//! | `embeddings` | `/v1/embeddings` |
//! | `slots` | `/slots`: contents of sequences; they can be saved and restored |
//! | `experts` | `/experts`: use of experts; they can be evicted |
//! | `metrics` | `/metrics` |
//! | `page` | `/`: a page for browsers |
//! | `fields` | values of fields, and their ranges |
//! | [`request_fields`] | table of all fields: honoured, ignored or refused |
//! | `sampling` | sampling and ends of an answer |
//! | `output_format`, `tools` | required format of an answer, and tools that it may call |
//! | `prompts` | prompts of completions as tokens |
//! | `answer` | an answer in progress |
//! | `probabilities` | probabilities of an answer's tokens |
//! | `error` | errors of requests |
//!
//! Invariant: if there are keys, every path except `/health` and the page at `/` needs one.
//! Invariant: a field that would change an answer and is not supported is refused by name.
//! Invariant: the body of a request, its fields, its arrival time and the length of the queue are
//! bounded.

mod admission;
mod answer;
mod anthropic;
mod app;
mod bodies;
mod client;
mod connection;
mod connection_limit;
mod conversation;
mod embeddings;
mod error;
mod experts;
mod fields;
mod host_names;
mod lingering;
pub(crate) mod loading;
mod local;
mod metrics;
mod model_list;
mod native;
mod openai;
pub mod origins;
mod output_format;
mod page;
mod probabilities;
mod prompts;
mod refusals;
pub mod request_fields;
pub mod request_log;
mod response_tools;
mod responses;
mod sampling;
mod slots;
#[cfg(test)]
mod tests;
mod tokens;
mod tools;

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::serving::Registry;
use app::App;
pub use app::AppOptions;
use error::HttpError;
pub use local::{Events, Local, fields_of};
pub use origins::AllowedOrigin;
pub use request_log::{LogFormat, RequestLog};
pub use sampling::check_defaults;

/// Serves models on a listener until `end` completes. Then still accepts requests for
/// [`AppOptions::drain_delay`], while `/health` returns 503. Waits for answers in progress for at
/// most [`AppOptions::drain`], and returns.
pub async fn serve(
    listener: TcpListener,
    models: Arc<Registry>,
    options: AppOptions,
    end: impl Future<Output = ()> + Send + 'static,
) {
    let (stop, stopping) = watch::channel(false);
    let (close, closing) = watch::channel(false);
    let delay = options.drain_delay;
    tokio::spawn(async move {
        end.await;
        let _ = stop.send(true);
        tokio::time::sleep(delay).await;
        let _ = close.send(true);
        // Keeps the senders alive, because receivers notice the end only while the sender exists.
        std::future::pending::<()>().await;
    });
    let router = router(models, options.clone(), stopping);
    connection::serve(listener, router, &options, connection::Queue::Answer, closing).await;
}

fn router(models: Arc<Registry>, options: AppOptions, ending: watch::Receiver<bool>) -> Router {
    let app = Arc::new(App::new(models, options, ending));
    Router::new()
        .route("/", get(page::page))
        .route("/health", get(native::health))
        .route("/v1/health", get(native::health))
        .route("/v1/models", get(model_list::models))
        .route("/v1/models/{name}", get(model_list::model))
        .route("/v1/chat/completions", post(openai::chat))
        .route("/chat/completions", post(openai::chat))
        .route("/v1/responses", post(responses::responses))
        .route("/responses", post(responses::responses))
        .route("/v1/completions", post(openai::completion))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/messages", post(anthropic::messages))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/completion", post(native::completion))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/apply-template", post(native::apply_template))
        .route("/props", get(native::props))
        .route("/slots", get(slots::slots))
        .route("/slots/{id}", post(slots::act))
        .route("/experts", get(experts::experts))
        .route("/experts/evict", post(experts::evict))
        .route("/metrics", get(metrics::metrics))
        .fallback(missing)
        .method_not_allowed_fallback(other_method)
        // Axum's limit is off, because `check_origin` reads and limits bodies.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(app.clone(), admission::check_origin))
        .layer(from_fn_with_state(app.clone(), admission::track_request))
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
