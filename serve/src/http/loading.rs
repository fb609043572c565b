//! Answers while a model is loaded: status 503 with `Retry-After`, on every path.
//!
//! The body is the one of llama-server in the form of other errors:
//! `{"error": {"message": "Loading model", "type": "unavailable_error", …}}`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::http::app::AppOptions;
use crate::http::error::HttpError;
use crate::http::request_log::RequestLog;
use crate::http::{admission, connection};

/// Time limit for open connections when the model is loaded.
const DRAIN_TIME: Duration = Duration::from_millis(200);

/// Answers requests until `ending` is set, and logs them.
pub(crate) async fn serve(listener: TcpListener, log: Option<Arc<RequestLog>>, ending: watch::Receiver<bool>) {
    let options = AppOptions { drain: DRAIN_TIME, log, ..AppOptions::default() };
    connection::serve(listener, router(options.log.clone()), &options, connection::Queue::Leave, ending).await;
}

fn router(log: Option<Arc<RequestLog>>) -> Router {
    Router::new().fallback(refuse).layer(from_fn_with_state(log, track_request))
}

/// Answers a request, writes its log line, and marks its connection as in use.
async fn track_request(State(log): State<Option<Arc<RequestLog>>>, request: Request, next: Next) -> Response {
    admission::track(log.as_ref(), request, next).await
}

/// Refuses a request, and closes its connection, so that the next request comes to the server of
/// the model.
async fn refuse(request: Request) -> Response {
    let is_anthropic = request.uri().path().starts_with("/v1/messages");
    let error =
        HttpError::invalid(None, "Loading model").with_status(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error");
    let mut response = HttpError::finish_response(error.into_response(), is_anthropic, &BTreeMap::new());
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::body::Body;
    use tower::ServiceExt;

    use super::*;
    use crate::http::admission::Connection;
    use crate::http::connection_limit::ConnectionLimit;

    /// Checks that a refusal counts as an answer until its last byte is sent, so that no other
    /// connection takes its place.
    #[tokio::test]
    async fn a_refusal_keeps_the_place_of_its_connection() {
        let client: SocketAddr = ([192, 0, 2, 1], 1).into();
        let limit = Arc::new(ConnectionLimit::new(1));
        let permit = limit.take(client.ip()).await.unwrap();
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(Connection { client, state: Arc::clone(permit.state()) });
        let response = router(None).oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(!permit.state().is_idle());
        drop(response);
        assert!(!permit.state().is_idle(), "the last bytes are not sent");
        permit.state().record_flush();
        assert!(permit.state().is_idle());
    }
}
