//! State shared by all requests: the models, and the options of the server.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::Uri;
use ixc_failure::Remedy;
use ixc_generate::chat::ChatPrompt;
use ixc_grammar::Matcher;
use ixc_runtime::sample::Breakers;
use ixc_text::template::Conversation;
use serde_json::{Map, Value};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch};

use crate::http::bodies::Bodies;
use crate::http::client::Client;
use crate::http::error::HttpError;
use crate::http::fields::Fields;
use crate::http::origins::AllowedOrigin;
use crate::http::request_log::{self, RequestLog};
use crate::model::{Constraint, Refusal};
use crate::serving::{Host, ModelQuery, Registry};

/// Max conversations that are rendered at once: each takes a helper process and its memory.
const PROMPTS_AT_ONCE: usize = 4;

/// Max grammars that are compiled at once, and max searches for sequence breakers. A compilation or
/// search takes up to some seconds of CPU time and tens of MB. Further ones wait.
const COMPILED_AT_ONCE: usize = 4;

/// Options of the server.
#[derive(Clone, Debug)]
pub struct AppOptions {
    /// API keys. Every request must have one of them; an empty list allows every client.
    pub keys: Vec<String>,
    /// Names of the server in addition to `localhost` and addresses. Pages of these names may send
    /// requests.
    pub hosts: Vec<String>,
    /// Whether requests with another `Host` are refused.
    pub checks_host: bool,
    /// Additional origins whose pages may send requests.
    pub origins: Vec<AllowedOrigin>,
    /// The log of requests.
    pub log: Option<Arc<RequestLog>>,
    /// Advice that follows error messages, by the remedy of the error.
    pub advice: BTreeMap<Remedy, String>,
    /// Defaults of fields in requests for text.
    pub defaults: Map<String, Value>,
    /// Max connections at once; more wait to be accepted.
    pub connections: usize,
    /// Time limit for the head of a request.
    pub head: Duration,
    /// Time limit for the body of a request.
    pub body: Duration,
    /// Max bytes of a body.
    pub body_bytes: usize,
    /// Max total bytes of all bodies above 64 KiB. A body counts until its answer begins.
    pub bodies_bytes: usize,
    /// Max requests of a key that are computed at once; `None` for no limit. Further requests wait.
    pub per_key_parallel: Option<usize>,
    /// Time limit of a request, from its head to the last part of its answer; `None` for no limit.
    pub request_timeout: Option<Duration>,
    /// Time limit for a client to read more of an answer.
    pub write_stall: Duration,
    /// Time limit for a client to send more of a request that was answered before its end. A client
    /// that sends nothing has read its answer, or never will.
    pub rest_stall: Duration,
    /// Time between the signal to stop and the end of accepting requests. Load balancers learn from
    /// `/health` in this time that the server stops.
    pub drain_delay: Duration,
    /// Time limit for answers in progress after the server accepts no more requests.
    pub drain: Duration,
}

impl Default for AppOptions {
    fn default() -> AppOptions {
        let seconds = Duration::from_secs;
        AppOptions {
            keys: Vec::new(),
            hosts: Vec::new(),
            checks_host: false,
            origins: Vec::new(),
            log: None,
            advice: BTreeMap::new(),
            defaults: Map::new(),
            connections: 512,
            head: seconds(10),
            body: seconds(30),
            body_bytes: 32 << 20,
            bodies_bytes: 256 << 20,
            per_key_parallel: None,
            request_timeout: None,
            write_stall: seconds(30),
            rest_stall: seconds(2),
            drain_delay: Duration::ZERO,
            drain: seconds(30),
        }
    }
}

/// State shared by all requests.
pub(crate) struct App {
    pub(crate) models: Arc<Registry>,
    pub(crate) options: AppOptions,
    ending: watch::Receiver<bool>,
    /// Bounds of bodies.
    pub(crate) bodies: Bodies,
    /// Permits for rendering prompts; the next field has those for compiling grammars.
    prompts: Arc<Semaphore>,
    compiled: Arc<Semaphore>,
    /// Permits (*places*) for the requests of each key, in the order of the keys; none without a
    /// limit.
    key_places: Vec<Arc<Semaphore>>,
    /// Lock that ensures that only one model is loaded at a time.
    loading: Arc<Mutex<()>>,
    /// Number of answers so far. The next field, the start time in nanoseconds since 1970,
    /// distinguishes the answers of different servers.
    count: AtomicU64,
    start_nanos: u64,
}

impl App {
    pub(crate) fn new(models: Arc<Registry>, options: AppOptions, ending: watch::Receiver<bool>) -> App {
        let start_nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
        let bodies = Bodies::new(options.body_bytes, options.bodies_bytes, options.body);
        let [prompts, compiled] = [PROMPTS_AT_ONCE, COMPILED_AT_ONCE].map(|count| Arc::new(Semaphore::new(count)));
        let loading = Arc::new(Mutex::new(()));
        let places = options.per_key_parallel.map(|places| places.clamp(1, Semaphore::MAX_PERMITS));
        let key_places = places.map(|places| options.keys.iter().map(|_| Arc::new(Semaphore::new(places))).collect());
        let (key_places, count) = (key_places.unwrap_or_default(), AtomicU64::new(0));
        App { models, options, ending, bodies, prompts, compiled, key_places, loading, count, start_nanos }
    }

    /// Returns the start time of the server, in seconds since 1970.
    pub(crate) fn start_time(&self) -> u64 {
        self.start_nanos / 1_000_000_000
    }

    /// Returns a unique name for an answer.
    pub(crate) fn next_id(&self) -> String {
        format!("{:x}-{}", self.start_nanos, self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// Waits for a permit for a request of a key. Returns `None` if keys have no limit.
    pub(crate) async fn take_key_place(&self, key: usize) -> Option<OwnedSemaphorePermit> {
        let places = self.key_places.get(key)?;
        // The semaphore is never closed, so this call never fails.
        Arc::clone(places).acquire_owned().await.ok()
    }

    /// Reads the fields of a request for text.
    pub(crate) fn fields(&self, body: &[u8]) -> Result<Fields, HttpError> {
        Fields::parse(body).map(|fields| fields.or(&self.options.defaults))
    }

    /// Returns whether the server stops: it accepts no more requests, or soon will not.
    pub(crate) fn is_ending(&self) -> bool {
        *self.ending.borrow()
    }
}

impl App {
    /// Returns the model of a request for text.
    pub(crate) async fn select_model(self: &Arc<Self>, fields: &Fields) -> Result<RequestState, HttpError> {
        self.select_named_model(fields.text("model")?.map(str::to_owned)).await
    }

    /// Returns the model of a request for embeddings.
    pub(crate) async fn select_embedding_model(self: &Arc<Self>, fields: &Fields) -> Result<RequestState, HttpError> {
        self.select(fields.text("model")?.map(str::to_owned), true).await
    }

    /// Returns the model of this name, or the first text model. Loads it if necessary.
    pub(crate) async fn select_named_model(self: &Arc<Self>, name: Option<String>) -> Result<RequestState, HttpError> {
        self.select(name, false).await
    }

    async fn select(self: &Arc<Self>, name: Option<String>, embeddings: bool) -> Result<RequestState, HttpError> {
        let model = match self.models.loaded_model(ModelQuery { name: name.as_deref(), embeddings })? {
            Some(model) => model,
            None => {
                let (permit, models) = (Arc::clone(&self.loading).lock_owned().await, Arc::clone(&self.models));
                let loaded = tokio::task::spawn_blocking(move || {
                    // The permit moves into the task, because loading continues even if the client
                    // has left.
                    let _permit = permit;
                    models.load(ModelQuery { name: name.as_deref(), embeddings })
                });
                loaded.await.map_err(|error| HttpError::server_error(error.to_string()))??
            }
        };
        request_log::current().iter().for_each(|record| record.set_model(&model.facts().name));
        Ok(RequestState { app: Arc::clone(self), model })
    }
}

/// State of a request: the shared state, and the model that the request names.
pub(crate) struct RequestState {
    app: Arc<App>,
    pub(crate) model: Arc<Host>,
}

impl Deref for RequestState {
    type Target = App;

    fn deref(&self) -> &App {
        &self.app
    }
}

impl RequestState {
    /// Makes a prompt from a conversation, for an answer with this constraint. This may start a
    /// process, so it does not run on the threads of connections.
    pub(crate) async fn prompt(
        &self,
        conversation: Conversation,
        constraint: Option<Constraint>,
    ) -> Result<ChatPrompt, HttpError> {
        Ok(self.with_permit(&self.prompts, move |model, _| model.prompt(&conversation, constraint.as_ref())).await??)
    }

    /// Makes a prompt from a conversation, and compiles the constraint of the answer.
    pub(crate) async fn constrained_prompt(
        &self,
        conversation: Conversation,
        constraint: Option<Constraint>,
    ) -> Result<(ChatPrompt, Option<Matcher>), HttpError> {
        let prompt = self.prompt(conversation, constraint.clone()).await?;
        let Some(constraint) = constraint else { return Ok((prompt, None)) };
        let both = move |model: &Host, client: &Client| -> Result<_, Refusal> {
            let grammar = model.constrain(&constraint, Some(&prompt), &|| client.is_there())?;
            Ok((prompt, Some(grammar)))
        };
        Ok(self.with_permit(&self.compiled, both).await??)
    }

    /// Compiles the constraint of a text.
    pub(crate) async fn constrain(&self, constraint: Option<Constraint>) -> Result<Option<Matcher>, HttpError> {
        let Some(constraint) = constraint else { return Ok(None) };
        let constrain = move |model: &Host, client: &Client| model.constrain(&constraint, None, &|| client.is_there());
        Ok(Some(self.with_permit(&self.compiled, constrain).await??))
    }

    /// Returns DRY sequence breakers: see [`Host::breakers`].
    pub(crate) async fn breakers(&self, texts: Option<Vec<String>>) -> Result<Arc<Breakers>, HttpError> {
        Ok(self.with_permit(&self.compiled, move |model, _| model.breakers(texts.as_deref())).await??)
    }

    /// Runs long work under a limit of concurrent work. The permit is held until the work ends,
    /// even if the client leaves.
    async fn with_permit<T: Send + 'static>(
        &self,
        permits: &Arc<Semaphore>,
        work: impl FnOnce(&Host, &Client) -> T + Send + 'static,
    ) -> Result<T, HttpError> {
        let permit = Arc::clone(permits).acquire_owned().await;
        let permit = permit.map_err(|error| HttpError::server_error(error.to_string()))?;
        self.spawn_cancellable(move |model, client| {
            let _permit = permit;
            work(model, client)
        })
        .await
    }

    /// Runs long work on a separate thread.
    pub(crate) async fn spawn_on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Host) -> T + Send + 'static,
    ) -> Result<T, HttpError> {
        self.spawn_cancellable(move |model, _| work(model)).await
    }

    /// Runs long, cancellable work on a separate thread, unless the client has left. A panic of the
    /// work fails only this request.
    pub(crate) async fn spawn_cancellable<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Host, &Client) -> T + Send + 'static,
    ) -> Result<T, HttpError> {
        let (model, client) = (self.model.clone(), Client::current());
        let done = tokio::task::spawn_blocking(move || client.is_there().then(|| work(&model, &client))).await;
        let done = done.map_err(|error| {
            tracing::error!(%error, "work for a request failed");
            HttpError::panic_error()
        })?;
        done.ok_or_else(|| Refusal::Gone.into())
    }
}

/// Returns the value of a name in the query of an address; invalid UTF-8 is replaced.
pub(crate) fn query(uri: &Uri, name: &str) -> Option<String> {
    let pairs = uri.query().unwrap_or_default().split('&');
    let value =
        pairs.filter_map(|pair| pair.split_once('=')).find_map(|(found, value)| (found == name).then_some(value));
    value.map(percent_decoded)
}

/// Decodes the escapes of a text in an address.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, more @ ..] = rest {
        let digit = |at: usize| more.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        let (byte, after) = match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => ((high * 16 + low) as u8, &more[2..]),
            (b'+', ..) => (b' ', more),
            _ => (*byte, more),
        };
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the time in seconds since 1970.
pub(crate) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use ixc_text::template::Message;

    use super::*;
    use crate::serving::scripted::{Script, host};

    async fn request_state() -> RequestState {
        let models = Arc::new(Registry::one(host("{% for m in messages %}{{ m.content }}{% endfor %}", Script::new())));
        Arc::new(App::new(models, AppOptions::default(), watch::channel(false).1))
            .select_named_model(None)
            .await
            .unwrap()
    }

    /// Checks the limits of prompts and grammars. Work continues and counts even if its client has
    /// left.
    #[tokio::test]
    async fn concurrent_long_work_is_limited() {
        let app = Arc::new(request_state().await);
        for (permits, limit) in [(&app.prompts, PROMPTS_AT_ONCE), (&app.compiled, COMPILED_AT_ONCE)] {
            let ((begun, begins), (end, ends)) = (channel(), channel());
            let ends = Arc::new(std::sync::Mutex::new(ends));
            let work = || {
                let (app, permits, begun, ends) = (app.clone(), permits.clone(), begun.clone(), ends.clone());
                tokio::spawn(async move {
                    let work = move |_: &Host, _: &Client| {
                        begun.send(()).unwrap();
                        ends.lock().unwrap().recv().unwrap();
                    };
                    app.with_permit(&permits, work).await
                })
            };
            let all: Vec<_> = (0..2 * limit).map(|_| work()).collect();
            let (gone, stay) = all.split_at(limit);
            while permits.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
            for one in gone {
                one.abort();
            }
            for _ in 0..limit {
                begins.recv().unwrap();
            }
            tokio::task::yield_now().await;
            assert!(permits.available_permits() == 0 && begins.try_recv().is_err());
            (0..2 * limit).for_each(|_| end.send(()).unwrap());
            for one in stay {
                while !one.is_finished() {
                    tokio::task::yield_now().await;
                }
            }
            assert_eq!(begins.try_iter().count(), limit);
        }
    }

    /// Checks that prompts and grammars wait for different permits.
    #[tokio::test]
    async fn grammars_block_no_prompt() {
        let any = || Some(Constraint::Json(serde_json::json!({})));
        let hi = || Conversation { messages: vec![Message::new("user", "Hi")], ..Conversation::default() };
        for (has_prompts, has_grammars) in [(true, false), (false, true)] {
            let app = request_state().await;
            if !has_prompts {
                app.prompts.close();
            }
            if !has_grammars {
                app.compiled.close();
            }
            assert_eq!(app.prompt(hi(), None).await.is_ok(), has_prompts);
            assert_eq!(app.constrain(any()).await.is_ok(), has_grammars);
            assert_eq!(app.breakers(None).await.is_ok(), has_grammars);
            assert!(app.constrained_prompt(hi(), any()).await.is_err());
        }
    }

    #[test]
    fn query_parameters_are_unescaped() {
        let of = |address: &'static str| query(&Uri::from_static(address), "model");
        assert_eq!(of("/slots?action=save&model=a%20b+c%2fd%"), Some("a b c/d%".to_owned()));
        assert_eq!(of("/slots?model=%ff%C3%A4%4"), Some("\u{fffd}\u{e4}%4".to_owned()));
        assert_eq!((of("/slots"), of("/slots?models=x"), of("/slots?model=")), (None, None, Some(String::new())));
    }
}
