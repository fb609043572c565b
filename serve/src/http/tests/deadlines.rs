//! Requests that exceed their time limit: each interface ends them with its own error.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::scripted::events;
use crate::http::{AppOptions, Local};
use crate::serving::Registry;
use crate::serving::scripted::{Script, host};

/// Posts a request for an answer that never ends, with a time limit. Returns the status and the
/// answer, after the model has noticed that the client is gone.
fn post(path: &'static str, body: &Value, limit: Duration) -> (u16, Value) {
    let script = Script::new();
    script.set_endless(true);
    let models = Arc::new(Registry::one(host("{% for m in messages %}{{ m.content }}{% endfor %}", script.clone())));
    let options = AppOptions { request_timeout: Some(limit), ..AppOptions::default() };
    let local = Local::with_options(models, options);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = runtime.block_on(local.post(path, body.as_object().unwrap()));
    while !script.is_abandoned() {
        std::thread::yield_now();
    }
    answer
}

#[test]
fn whole_answers_end_with_status_504() {
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9});
    for (path, body) in [
        ("/v1/chat/completions", &chat),
        ("/v1/completions", &json!({"prompt": ["a", "b"]})),
        ("/completion", &json!({"prompt": "a"})),
        ("/v1/responses", &json!({"input": "a"})),
    ] {
        let (status, answer) = post(path, body, Duration::from_millis(50));
        let error = json!({"error": {
            "message": "the request took longer than 0.05 seconds, the server's limit for requests",
            "type": "timeout_error", "param": null, "code": "request_timeout",
        }});
        assert_eq!((status, answer), (504, error), "{path}");
    }
    let (status, answer) = post("/v1/messages", &chat, Duration::from_millis(50));
    assert_eq!((status, &answer["error"]["type"]), (504, &json!("timeout_error")), "{answer}");
}

#[test]
fn streams_end_with_an_error_event() {
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "stream": true});
    for path in ["/v1/chat/completions", "/v1/messages"] {
        // The stream begins after the prompt was rendered, which takes a part of the time.
        let (status, answer) = post(path, &body, Duration::from_secs(1));
        assert_eq!(status, 200, "{path}: {answer}");
        let last = events(&answer).pop().unwrap();
        assert_eq!(last["error"]["type"], "timeout_error", "{path}: {answer}");
    }
}
