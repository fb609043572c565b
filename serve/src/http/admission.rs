//! Middleware of every request: checks of host, origin, key and body, the form of errors, and the
//! line of the request log.
//!
//! ```text
//! track_request: log line, connection state ─▶ check_origin: Host, Origin, preflights, error body
//!               ─▶ check_key: key, type, body ─▶ handler
//! ```
//!
//! Invariant: the name and the origin of a request are checked before anything else, and its key
//! before its body. A key may limit its concurrent requests: a request takes one of the key's
//! permits (*places*) before its body is read, so that waiting requests have no bodies in memory.
//! It keeps the place until its answer ends. Invariant: the checks, the answer and the client's
//! reading of the answer end soon after the deadline.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use subtle::{ConditionallySelectable, ConstantTimeEq};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::http::app::{App, AppOptions};
use crate::http::bodies::ReadBody;
use crate::http::connection_limit::{ConnectionState, Phase, RequestGuard};
use crate::http::error::HttpError;
use crate::http::request_log::{Line, RequestLog};
use crate::http::{client, host_names, origins};

/// Paths that need no key; their requests have no body.
const OPEN_PATHS: [&str; 3] = ["/", "/health", "/v1/health"];

/// Connection of a request; requests made in this process have none.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    /// Address of the client.
    pub(crate) client: SocketAddr,
    pub(crate) state: Arc<ConnectionState>,
}

/// Body of an answer. Until it ends, its log line stays open and its connection counts as busy.
struct TrackedBody {
    // The body must be dropped before the log line, because the line prints tokens that the body
    // counts when it is dropped.
    body: Body,
    line: Option<Line>,
    _request_guard: Option<RequestGuard>,
    _place: Option<KeyPlace>,
}

/// Permit for a request of a key, which is held until the answer ends.
#[derive(Clone)]
struct KeyPlace {
    _permit: Arc<OwnedSemaphorePermit>,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) {
            self.line.iter_mut().for_each(Line::end);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        // A body of known length is not polled after its last byte.
        if self.body.is_end_stream() {
            self.line.iter_mut().for_each(Line::end);
        }
    }
}

/// Answers a request as [`track`] does. Closes its connection if the server ends.
pub(crate) async fn track_request(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let mut response = track(app.options.log.as_ref(), request, next).await;
    if app.is_ending() {
        // The client's next request opens a connection, which a load balancer gives to another
        // server.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Answers a request, writes its log line, and marks its connection as in use.
pub(crate) async fn track(log: Option<&Arc<RequestLog>>, request: Request, next: Next) -> Response {
    let connection = request.extensions().get::<Connection>().cloned();
    let client = connection.as_ref().map(|connection| connection.client);
    let state = connection.map(|connection| connection.state);
    let request_guard = state.clone().map(RequestGuard::new);
    let mut line = log.map(|log| Line::new(log, &request, client));
    let mut response = match &line {
        Some(line) => line.scope(next.run(request)).await,
        None => next.run(request).await,
    };
    // Responses without a handler, such as refusals and pages, also count as answers, even if the
    // request's body has not arrived.
    state.iter().for_each(|state| state.enter(Phase::Answering));
    if let Some(line) = &mut line {
        line.begin(response.status(), response.extensions().get().map(HttpError::message));
    }
    let place = response.extensions_mut().remove::<KeyPlace>();
    response.map(|body| Body::new(TrackedBody { body, line, _request_guard: request_guard, _place: place }))
}

/// Refuses requests with a wrong `Host` or `Origin`, answers preflights, and gives errors the body
/// of their interface.
pub(crate) async fn check_origin(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let AppOptions { hosts, checks_host, origins, advice, .. } = &app.options;
    let is_anthropic = request.uri().path().starts_with("/v1/messages");
    let name = checks_host.then(|| host_names::refused_host(hosts, &request)).flatten();
    let origin = origins::refused_origin(origins, hosts, &request);
    let is_refused = name.is_some() || origin.is_some();
    let reader = request.headers().get(header::ORIGIN).filter(|_| !is_refused).cloned();
    let response = match (name, origin) {
        (Some(name), _) => HttpError::host(&name).into_response(),
        (None, Some(origin)) => HttpError::origin(&origin).into_response(),
        (None, None) => match origins::preflight(&request) {
            Some(answer) => answer,
            None => check_key(&app, request, next).await,
        },
    };
    let mut response = HttpError::finish_response(response, is_anthropic, advice);
    origins::name_reader(response.headers_mut(), reader);
    response
}

/// A request that may be answered.
struct Admitted {
    body: ReadBody,
    place: Option<OwnedSemaphorePermit>,
}

/// Waits for a permit of the request's key, then reads the body.
async fn admit(app: &App, key: Option<usize>, parts: &Parts, body: Body) -> Result<Admitted, HttpError> {
    let enter = |phase| parts.extensions.get::<Connection>().iter().for_each(|of| of.state.enter(phase));
    let place = match key.filter(|_| app.options.per_key_parallel.is_some()) {
        Some(key) => {
            // A waiting request keeps its connection.
            enter(Phase::Answering);
            let place = app.take_key_place(key).await;
            enter(Phase::Receiving);
            place
        }
        None => None,
    };
    let announced = parts.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let body = app.bodies.read(body, announced).await?;
    enter(Phase::Answering);
    Ok(Admitted { body, place })
}

/// Refuses requests without a key, and reads their bodies.
async fn check_key(app: &App, request: Request, next: Next) -> Response {
    // A limit beyond the clock's range is no limit.
    let deadline = app.options.request_timeout.and_then(|limit| Instant::now().checked_add(limit));
    let connection = request.extensions().get::<Connection>();
    connection.into_iter().for_each(|connection| connection.state.set_deadline(deadline));
    let is_open = OPEN_PATHS.contains(&request.uri().path());
    let key = key_of(&app.options.keys, &request);
    if !is_open && key.is_none() && !app.options.keys.is_empty() {
        return HttpError::key().into_response();
    }
    let (parts, body) = request.into_parts();
    if is_open {
        // Requests to open paths have no body, so no body is read.
        return next.run(Request::from_parts(parts, Body::empty())).await;
    }
    let only_reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(&parts.method);
    if !only_reads && origins::is_of_page(&parts.headers) && !origins::says_json(&parts.headers) {
        let wrong = "content-type must be application/json where a page in a browser asks";
        let refused = HttpError::invalid(None, wrong);
        return refused.with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error").into_response();
    }
    let admitted = client::wait_until(deadline, admit(app, key.filter(|_| !only_reads), &parts, body)).await;
    let late = || HttpError::late(app.options.request_timeout).into_response();
    let Admitted { body, place } = match admitted {
        Some(Ok(admitted)) => admitted,
        Some(Err(error)) => return error.into_response(),
        None => return late(),
    };
    // The body's budget is held until the answer begins and no thread works on the body.
    let (bytes, room) = body.into_parts();
    let served = async {
        let mut response = next.run(Request::from_parts(parts, Body::from(bytes))).await;
        if let Some(permit) = place {
            response.extensions_mut().insert(KeyPlace { _permit: Arc::new(permit) });
        }
        response
    };
    match client::wait_until(deadline, client::serve(room, deadline, served)).await {
        Some(served) => served.unwrap_or_else(|| HttpError::panic_error().into_response()),
        None => late(),
    }
}

/// Returns the number of a request's key. Each comparison covers all keys in full, so that its
/// duration reveals nothing about them.
fn key_of(keys: &[String], request: &Request) -> Option<usize> {
    let bearer = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    // Scheme names are case-insensitive (RFC 9110, 11.1).
    let bearer = bearer.and_then(|value| value.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("Bearer")).map(|(_, key)| key);
    let found = bearer.or_else(|| request.headers().get("x-api-key").and_then(|value| value.to_str().ok()));
    let found = found.unwrap_or_default().trim().as_bytes();
    let equal = |(number, key): (u64, &String)| (number, key.as_bytes().ct_eq(found));
    let none = u64::MAX;
    let number = (0..).zip(keys).map(equal).fold(none, |any, (number, is_equal)| {
        let mut chosen = any;
        chosen.conditional_assign(&number, is_equal);
        chosen
    });
    usize::try_from(number).ok().filter(|number| *number < keys.len())
}
