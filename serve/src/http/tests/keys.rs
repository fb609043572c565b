//! Places of API keys: requests of one key wait for each other, and requests of other keys do not.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use axum::response::Response;
use futures_util::FutureExt;
use ixc_generate::generator::End;
use serde_json::json;
use tokio::sync::watch;
use tower::ServiceExt;

use crate::http::{Options, router};
use crate::serving::Registry;
use crate::serving::scripted::{Script, host};

/// Posts a request with a key.
async fn post(router: Router, key: &str, streamed: bool) -> Response {
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "stream": streamed});
    let request = Request::builder().method(Method::POST).uri("/v1/chat/completions");
    let request = request.header(header::AUTHORIZATION, format!("Bearer {key}")).body(Body::from(body.to_string()));
    router.oneshot(request.unwrap()).await.unwrap()
}

#[tokio::test]
async fn keys_wait_for_their_own_requests_only() {
    let script = Script::new();
    let models = Arc::new(Registry::one(host("{% for m in messages %}{{ m.content }}{% endfor %}", script.clone())));
    let keys = ["one", "two"].map(str::to_owned).to_vec();
    let options = Options { keys, per_key_parallel: Some(1), ..Options::default() };
    let (_end, ending) = watch::channel(false);
    let router = router(models, options, ending);

    script.set_endless(true);
    let first = post(router.clone(), "one", true).await;
    while script.endless_count() == 0 {
        tokio::task::yield_now().await;
    }
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
