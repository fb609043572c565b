//! Limits of API keys: requests of one key wait for each other, and requests of other keys do not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use axum::response::Response;
use futures_util::{FutureExt, stream};
use ixc_generate::generator::End;
use serde_json::json;
use tokio::sync::watch;
use tower::ServiceExt;

use crate::http::{AppOptions, router};
use crate::serving::Registry;
use crate::serving::scripted::{Script, host};

/// Posts a request with a key.
async fn post(router: Router, key: &str, streamed: bool) -> Response {
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "stream": streamed});
    post_body(router, key, Body::from(body.to_string())).await
}

async fn post_body(router: Router, key: &str, body: Body) -> Response {
    let request = Request::builder().method(Method::POST).uri("/v1/chat/completions");
    let request = request.header(header::AUTHORIZATION, format!("Bearer {key}")).body(body);
    router.oneshot(request.unwrap()).await.unwrap()
}

/// Returns a server with two keys, whose requests are computed one at a time.
fn server(script: Arc<Script>, request_timeout: Option<Duration>) -> Router {
    let models = Arc::new(Registry::one(host("{% for m in messages %}{{ m.content }}{% endfor %}", script)));
    let keys = ["one", "two"].map(str::to_owned).to_vec();
    let options = AppOptions { keys, per_key_parallel: Some(1), request_timeout, ..AppOptions::default() };
    router(models, options, watch::channel(false).1)
}

/// Starts an answer that never ends and keeps the place of its key.
async fn endless_answer(router: &Router, script: &Script) -> Response {
    script.set_endless(true);
    let first = post(router.clone(), "one", true).await;
    assert_eq!(first.status(), StatusCode::OK);
    let begun = async {
        while script.endless_count() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), begun).await.expect("the answer begins");
    first
}

#[tokio::test]
async fn keys_wait_for_their_own_requests_only() {
    let script = Script::new();
    let router = server(script.clone(), None);
    let first = endless_answer(&router, &script).await;
    script.set_endless(false);
    script.set("Yes.", End::Token(0));
    let mut second = Box::pin(post(router.clone(), "one", false));
    assert!(second.as_mut().now_or_never().is_none());
    assert_eq!(post(router.clone(), "two", false).await.status(), StatusCode::OK);
    assert_eq!(post(router.clone(), "three", false).await.status(), StatusCode::UNAUTHORIZED);
    assert!(second.as_mut().now_or_never().is_none());
    // The place is free when the answer ends or its client leaves.
    drop(first);
    assert_eq!(second.await.status(), StatusCode::OK);
}

/// A body is read only when its request has a permit of its key, so waiting requests take no memory
/// for bodies.
#[tokio::test]
async fn waiting_requests_have_no_bodies() {
    let script = Script::new();
    let router = server(script.clone(), None);
    let first = endless_answer(&router, &script).await;
    let is_read = Arc::new(AtomicBool::new(false));
    let read = Arc::clone(&is_read);
    let body = Body::from_stream(stream::once(async move {
        read.store(true, Ordering::Relaxed);
        Ok::<_, std::io::Error>("no JSON")
    }));
    let mut second = Box::pin(post_body(router, "one", body));
    assert!(second.as_mut().now_or_never().is_none() && !is_read.load(Ordering::Relaxed));
    drop(first);
    assert_eq!(second.await.status(), StatusCode::BAD_REQUEST);
    assert!(is_read.load(Ordering::Relaxed));
}

/// The deadline covers the wait for a permit and the arrival of the body.
#[tokio::test]
async fn waits_and_slow_bodies_end_at_the_deadline() {
    let script = Script::new();
    let late = StatusCode::GATEWAY_TIMEOUT;
    let router = server(script.clone(), Some(Duration::from_secs(3)));
    let first = endless_answer(&router, &script).await;
    assert_eq!(post(router.clone(), "one", false).await.status(), late);
    drop(first);
    let slow = Body::from_stream(stream::pending::<Result<&str, std::io::Error>>());
    assert_eq!(post_body(router.clone(), "one", slow).await.status(), late);
    // The slow request has returned its permit.
    script.set_endless(false);
    script.set("Yes.", End::Token(0));
    assert_eq!(post(router, "one", false).await.status(), StatusCode::OK);
}
