//! A server without connections: this process sends the requests, and gets the same answers as
//! clients.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, Uri};
use serde_json::{Map, Value};
use tokio::sync::watch;
use tower::ServiceExt;

use crate::http::app::Options;
use crate::http::fields::Fields;
use crate::serving::Registry;

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
        let (end, ending) = watch::channel(false);
        // The caller knows the sizes, and waits for room without a limit.
        let options = Options { bodies_bytes: u32::MAX as usize, body: Duration::MAX, ..Options::default() };
        Local { router: crate::http::router(models, options, ending), _end: Arc::new(end) }
    }

    /// Returns the max bytes of a body.
    pub fn body_bytes() -> usize {
        Options::default().body_bytes
    }

    /// Posts a body to a path, and waits for the whole answer: its status, and its body.
    pub async fn post(&self, path: &'static str, body: &Map<String, Value>) -> (u16, Value) {
        let body = match serde_json::to_vec(body) {
            Ok(body) => body,
            // A map of values is always JSON.
            Err(error) => return (400, error.to_string().into()),
        };
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static(path);
        let response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let status = response.status().as_u16();
        // Its length is bounded by what this process made.
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap_or_default();
        let text = || String::from_utf8_lossy(&bytes).into_owned().into();
        (status, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()))
    }
}

/// Reads the fields of a request within the same bounds as those of a body.
///
/// # Errors
/// A message for people.
pub fn fields_of(body: &[u8]) -> Result<Map<String, Value>, String> {
    Fields::of(body).map(Fields::into_map).map_err(|error| error.message().to_owned())
}
