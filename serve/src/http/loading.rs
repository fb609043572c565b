//! Answers while a model is loaded: status 503 with `Retry-After`, on every path.
//!
//! The body is the one of llama-server in the form of other errors:
//! `{"error": {"message": "Loading model", "type": "unavailable_error", …}}`.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::http::app::AppOptions;
use crate::http::connection;
use crate::http::error::HttpError;

/// Time limit for open connections when the model is loaded.
const DRAIN_TIME: Duration = Duration::from_millis(200);

/// Answers requests until `ending` is set.
pub(crate) async fn serve(listener: TcpListener, ending: watch::Receiver<bool>) {
    let options = AppOptions { drain: DRAIN_TIME, ..AppOptions::default() };
    connection::serve(listener, Router::new().fallback(refuse), &options, connection::Queue::Leave, ending).await;
}

/// Refuses a request, and closes its connection: the next one comes to the server of the model.
async fn refuse(request: Request) -> Response {
    let is_anthropic = request.uri().path().starts_with("/v1/messages");
    let error =
        HttpError::invalid(None, "Loading model").with_status(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error");
    let mut response = HttpError::finish_response(error.into_response(), is_anthropic, &BTreeMap::new());
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
