//! Target for HTTP requests: paths and bodies of all APIs. The demo model answers them in this
//! process.

use std::sync::{Arc, LazyLock};

use ixc_generate::loaded_model::{LoadOptions, LoadedModel};
use ixc_serve::http::Local;
use ixc_serve::serving::{Host, Registry, ServingOptions};
use tokio::runtime::{Builder, Runtime};

use crate::{Outcome, helper, scratch};

/// Number of positions in the context, which limits the time of an answer.
const CONTEXT: u64 = 96;
/// Paths of all requests that take a body.
const PATHS: [&str; 15] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/completion",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/slots/0?action=save",
    "/slots/0?action=restore",
    "/slots/0?action=erase",
    "/experts/evict",
    "/chat/completions",
];

/// Dictionary of request bodies: fields and values.
pub const DICTIONARY: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "null",
    "true",
    "false",
    "-1",
    "0",
    "1e999",
    "1.5",
    "\\u0000",
    "\\ud800",
    "\"messages\":",
    "\"role\":",
    "\"user\"",
    "\"assistant\"",
    "\"tool\"",
    "\"system\"",
    "\"content\":",
    "\"prompt\":",
    "\"input\":",
    "\"max_tokens\":",
    "\"n_predict\":",
    "\"stream\":",
    "\"tools\":",
    "\"tool_choice\":",
    "\"response_format\":",
    "\"json_schema\":",
    "\"schema\":",
    "\"grammar\":",
    "\"stop\":",
    "\"logit_bias\":",
    "\"n\":",
    "\"seed\":",
    "\"temperature\":",
    "\"top_k\":",
    "\"top_p\":",
    "\"logprobs\":",
    "\"n_probs\":",
    "\"filename\":",
    "\"tokens\":",
    "\"layer\":",
    "\"tool_calls\":",
    "\"tool_call_id\":",
    "\"function\":",
    "\"arguments\":",
    "\"type\":",
    "\"text\"",
    "\"object\"",
    "\"id_slot\":",
    "\"mirostat\":",
    "\"dry_multiplier\":",
    "\"samplers\":",
    "\n",
];

/// The server, and the async runtime on which its handlers run.
struct Server {
    runtime: Runtime,
    local: Local,
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let mut load = LoadOptions::default();
    load.run.context = Some(CONTEXT);
    load.run.threads = Some(1);
    load.run.sequences = 2;
    let model = LoadedModel::open(None, &load).expect("the demo model opens");
    let options = ServingOptions {
        name: "demo".to_owned(),
        queue: 8,
        renderer: Some(helper::program()),
        compiler: Some(helper::program()),
        slot_folder: Some(scratch::empty_folder("slots")),
        ..ServingOptions::default()
    };
    let host = Host::new(model, None, options).expect("the demo model serves");
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    Server { runtime, local: Local::new(Arc::new(Registry::one(host))) }
});

/// Posts a body to a path. The input's first line is the number of the path.
pub fn http(input: &[u8]) -> Outcome {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let (first, body) = input.split_at(end);
    let number: usize = String::from_utf8_lossy(first).trim().parse().unwrap_or(0);
    let path = PATHS[number % PATHS.len()];
    let server = &*SERVER;
    let (status, answer) = server.runtime.block_on(server.local.post_bytes(path, body.to_vec()));
    let text = answer.to_string();
    // Allowed errors are 501, if the model does not support the request, and 503, if too many
    // requests wait.
    assert!(status < 500 || matches!(status, 501 | 503), "{path}: status {status}: {text:.500}");
    if status >= 400 {
        let error =
            answer.get("error").unwrap_or_else(|| panic!("{path}: status {status} without an error: {text:.500}"));
        return Outcome::refused(format!("{status} {error}"));
    }
    Outcome::Accepted(format!("`{number}` {path} {}", text.starts_with('"')))
}
