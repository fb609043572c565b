//! An asynchronous HTTP server: it answers a question with text, while the text is generated.
//!
//! ```text
//! cargo run --release --example server -- model.gguf 127.0.0.1:8080
//! curl --no-buffer --data "What is a trait?" http://127.0.0.1:8080/
//! ```
//!
//! One thread computes the requests of all clients together, and no other thread waits for it. A
//! request ends when its client disconnects. Needs the feature `serve`, which is on by default.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use axum::{Router, body::Body, extract::State, http::StatusCode, routing::post};
use futures_util::StreamExt;
use ixc::generator::{Event, Request};
use ixc::loaded_model::{LoadOptions, LoadedModel};
use ixc::serving::{Host, ServingOptions};
use ixc::text::template::{Conversation, Message, known};

async fn answer(State(host): State<Arc<Host>>, question: String) -> Result<Body, (StatusCode, String)> {
    let messages = vec![Message::new("user", question)];
    let conversation = Conversation { messages, add_generation_prompt: true, ..Conversation::default() };
    let submitted = tokio::task::spawn_blocking(move || {
        // The template takes milliseconds, so it does not run on a thread of connections.
        let prompt = host.prompt(&conversation, None)?;
        let sampling = ixc::runtime::sample::SamplerSettings::default();
        host.submit(Request { limit: Some(128), ..Request::new(prompt.tokens, sampling) })
    });
    let submitted = submitted.await.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let events = submitted.map_err(|refusal| (StatusCode::BAD_REQUEST, refusal.to_string()))?;
    // Dropping the stream cancels the request. A failure cuts the connection.
    Ok(Body::from_stream(events.filter_map(|event| async move {
        match event {
            Event::Failed(error) => Some(Err(io::Error::other(error))),
            event => event.text().map(|text| Ok(text.to_owned())),
        }
    })))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().map(PathBuf::from);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".into());
    let mut options = LoadOptions::default();
    // Requests that are computed at once.
    options.run.sequences = 4;
    let model = LoadedModel::open(path.as_deref(), &options)?;
    let has_template = model.chat_template().is_some();
    let template = known::find("chatml").filter(|_| !has_template).map(|known| known.template());
    let host = Host::new(model, None, ServingOptions { queue: 64, template, ..ServingOptions::default() })?;

    let app = Router::new().route("/", post(answer)).with_state(Arc::new(host));
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("http://{}/", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
