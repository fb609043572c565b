//! A server without connections: this process sends the requests, and gets the same answers as
//! clients.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, Uri};
use axum::response::Response;
use http_body_util::BodyExt;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tower::ServiceExt;

use crate::http::app::AppOptions;
use crate::http::fields::Fields;
use crate::serving::Registry;

/// Data of the last event of a stream.
const DONE: &str = "[DONE]";

/// A server that only this process reaches.
#[derive(Clone, Debug)]
pub struct Local {
    router: Router,
    /// Sender that keeps the server from ending.
    _end: Arc<watch::Sender<bool>>,
}

impl Local {
    /// Creates the server for models.
    pub fn new(models: Arc<Registry>) -> Local {
        // Limits for foreign clients are off, because the caller is this process.
        Local::with_options(
            models,
            AppOptions { bodies_bytes: u32::MAX as usize, body: Duration::MAX, ..AppOptions::default() },
        )
    }

    /// Creates the server with these options.
    pub(crate) fn with_options(models: Arc<Registry>, options: AppOptions) -> Local {
        let (end, ending) = watch::channel(false);
        Local { router: crate::http::router(models, options, ending), _end: Arc::new(end) }
    }

    /// Returns the max bytes of a body.
    pub fn body_bytes() -> usize {
        AppOptions::default().body_bytes
    }

    /// Posts a body to a path, and waits for the whole answer: its status, and its body.
    pub async fn post(&self, path: &'static str, body: &Map<String, Value>) -> (u16, Value) {
        match serde_json::to_vec(body) {
            Ok(body) => read_response(self.send(path, body).await).await,
            // This cannot happen: a map of JSON values can always be serialised.
            Err(error) => (400, error.to_string().into()),
        }
    }

    /// Posts a body of any bytes, as a foreign client may, and waits for the whole answer.
    pub async fn post_bytes(&self, path: &'static str, body: Vec<u8>) -> (u16, Value) {
        read_response(self.send(path, body).await).await
    }

    /// Posts a body that requests a stream, and returns the answer's events.
    ///
    /// # Errors
    /// The status and the body, if the request is refused.
    pub async fn stream(&self, path: &'static str, body: &Map<String, Value>) -> Result<Events, (u16, Value)> {
        let body = serde_json::to_vec(body).map_err(|error| (400, error.to_string().into()))?;
        let response = self.send(path, body).await;
        match response.status().is_success() {
            true => Ok(Events { body: response.into_body(), text: Vec::new() }),
            false => Err(read_response(response).await),
        }
    }

    async fn send(&self, path: &'static str, body: Vec<u8>) -> Response {
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static(path);
        match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// Returns the status and the whole body of an answer.
async fn read_response(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    // No limit is needed, because this process made the body.
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap_or_default();
    let text = || String::from_utf8_lossy(&bytes).into_owned().into();
    (status, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()))
}

/// Events of a streamed answer. Dropping them cancels the answer.
#[derive(Debug)]
pub struct Events {
    body: Body,
    /// Bytes after the last event.
    text: Vec<u8>,
}

impl Events {
    /// Waits for the next event, and returns its data; `None` after the last one.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            // An event ends with an empty line.
            while let Some(end) = self.text.windows(2).position(|bytes| bytes == b"\n\n") {
                let event: Vec<u8> = self.text.drain(..end + 2).collect();
                // Other lines are comments, which keep a connection open.
                let event = String::from_utf8_lossy(&event);
                if let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: ")) {
                    return (data != DONE).then(|| data.to_owned());
                }
            }
            let frame = self.body.frame().await?.ok()?;
            self.text.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
    }
}

/// Reads the fields of a request within the same bounds as those of a body.
///
/// # Errors
/// Returns an error text if the body is malformed or exceeds a bound.
pub fn fields_of(body: &[u8]) -> Result<Map<String, Value>, String> {
    Fields::parse(body).map(Fields::into_map).map_err(|error| error.message().to_owned())
}
