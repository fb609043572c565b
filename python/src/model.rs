//! A loaded model that answers the requests of many threads.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use ixc::generator::SlotSize;
use ixc::ir::plan::Pooling;
use ixc::loaded_model::{LoadOptions, LoadedModel};
use ixc::runtime::engine;
use ixc::served_model::{EmbeddingInput, EmbeddingRequest, ModelFacts, Refusal, SlotAction, Status};
use ixc::server::Local;
use ixc::server::request_fields::{Interface, fields_of};
use ixc::serving::{self, Registry, gives_embeddings};
use ixc::text::template::{ChatTemplate, known};
use pyo3::prelude::*;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use crate::failure::{answer_error, library_error, refusal_error, usage};
use crate::floats::Floats;
use crate::options::{compile_options, name, run_options};
use crate::stream::Stream;
use crate::wait::{self, wait};

/// Max number of requests that wait. Callers wait for their answers, so the number of their threads
/// is the real limit.
const QUEUE: usize = 1 << 20;

/// A loaded model.
#[pyclass(frozen, module = "ixc._ixc")]
#[derive(Debug)]
pub struct Host {
    /// `None` after the model was closed.
    open: Mutex<Option<Open>>,
}

/// Parts of an open model.
#[derive(Clone, Debug)]
struct Open {
    host: Arc<serving::Host>,
    local: Local,
}

/// Request to the server.
#[derive(Debug)]
struct PostRequest {
    path: &'static str,
    fields: Map<String, Value>,
}

impl PostRequest {
    /// Reads a request from its JSON. Unknown fields are an error here, unlike in the server: in a
    /// function call they are typing errors.
    fn new(py: Python<'_>, kind: &str, body: &str) -> PyResult<PostRequest> {
        let (interface, path) = match kind {
            "chat" => (Interface::Chat, Interface::Chat.path()),
            "completion" => (Interface::Completions, Interface::Completions.path()),
            "prompt" => (Interface::Chat, "/apply-template"),
            _ => return Err(usage(py, &format!("there are no requests of the kind {kind:?}"))),
        };
        let fields: Map<String, Value> =
            serde_json::from_str(body).map_err(|error| usage(py, &format!("the arguments are not JSON: {error}")))?;
        let is_known = |name: &str| fields_of(interface).any(|field| field.name == name);
        if let Some(unknown) = fields.keys().find(|name| !is_known(name)) {
            return Err(usage(py, &format!("there is no option {unknown:?}; docs/api-fields.md lists the options")));
        }
        Ok(PostRequest { path, fields })
    }
}

/// Returns a known template by its name, or the template with this source.
fn template(py: Python<'_>, text: &str) -> PyResult<ChatTemplate> {
    match known::find(text) {
        Some(known) => Ok(known.template()),
        None => ChatTemplate::from_source(text).map_err(|error| library_error(py, &error.into())),
    }
}

/// Starts a request of the engine, and waits for its result.
fn reply<T: Send>(
    py: Python<'_>,
    start: impl FnOnce(oneshot::Sender<Result<T, Refusal>>) -> Result<(), Refusal> + Send,
) -> PyResult<T> {
    let (done, result) = oneshot::channel();
    py.detach(|| start(done)).map_err(|refusal| refusal_error(py, &refusal))?;
    let result = wait(py, result)?.unwrap_or(Err(Refusal::Ending));
    result.map_err(|refusal| refusal_error(py, &refusal))
}

impl Host {
    fn open_model(&self, py: Python<'_>) -> PyResult<Open> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).clone();
        open.ok_or_else(|| usage(py, "the model is closed"))
    }
}

#[pymethods]
impl Host {
    /// Loads a model; without a path, the demo model.
    #[staticmethod]
    #[pyo3(signature = (path, *, memory, context, threads, parallel, target, model_file, embeddings, pooling, chat_template, program))]
    #[allow(clippy::too_many_arguments, reason = "named arguments of a Python function")]
    fn open(
        py: Python<'_>,
        path: Option<PathBuf>,
        memory: Option<u64>,
        context: Option<u32>,
        threads: Option<usize>,
        parallel: u32,
        target: Option<&str>,
        model_file: Option<PathBuf>,
        embeddings: Option<bool>,
        pooling: Option<&str>,
        chat_template: Option<&str>,
        program: Option<PathBuf>,
    ) -> PyResult<Host> {
        let pooling: Option<Pooling> =
            pooling.map(|name| name.parse().map_err(|error: String| usage(py, &error))).transpose()?;
        let run = engine::EngineOptions {
            context: context.map(Into::into),
            sequences: parallel,
            ..run_options(memory, threads)
        };
        let load = LoadOptions { compile: compile_options(py, target)?, run, model_file, ..LoadOptions::default() };
        let options = serving::ServingOptions {
            name: name(path.as_ref()),
            queue: QUEUE,
            template: chat_template.map(|text| template(py, text)).transpose()?,
            renderer: program.clone(),
            compiler: program,
            // Paths of saved sequences are absolute.
            slot_folder: Some(PathBuf::from("/")),
            pooling,
            ..serving::ServingOptions::default()
        };
        let open = move || -> Result<serving::Host, ixc::Error> {
            let embeddings = embeddings.map_or_else(|| gives_embeddings(path.as_deref()), Ok)?;
            let model = LoadedModel::open(path.as_deref(), &LoadOptions { embeddings, ..load })?;
            Ok(serving::Host::new(model, None, options)?)
        };
        let host = Arc::new(wait::run(py, open)?.map_err(|error| library_error(py, &error))?);
        let local = Local::new(Arc::new(Registry::one(Arc::clone(&host))));
        Ok(Host { open: Mutex::new(Some(Open { host, local })) })
    }

    /// Waits for the answer to a request, and returns its JSON.
    fn post(&self, py: Python<'_>, kind: &str, body: &str) -> PyResult<String> {
        let (Open { local, .. }, PostRequest { path, fields }) =
            (self.open_model(py)?, PostRequest::new(py, kind, body)?);
        let (status, body) = wait(py, async move { local.post(path, &fields).await })?;
        if status == 200 { Ok(body.to_string()) } else { Err(answer_error(py, status, &body)) }
    }

    /// Begins a request, whose body asks for a stream.
    fn stream(&self, py: Python<'_>, kind: &str, body: &str) -> PyResult<Stream> {
        let (Open { local, .. }, PostRequest { path, fields }) =
            (self.open_model(py)?, PostRequest::new(py, kind, body)?);
        let server = local.clone();
        let events = wait(py, async move { server.stream(path, &fields).await })?;
        let events = events.map_err(|(status, body)| answer_error(py, status, &body))?;
        Ok(Stream::new(events, local))
    }

    /// Converts text to tokens.
    fn encode(&self, py: Python<'_>, text: &str, add_special: bool, parse_special: bool) -> PyResult<Vec<u32>> {
        let Open { host, .. } = self.open_model(py)?;
        let tokens = py.detach(|| host.encode(text, add_special, parse_special));
        tokens.map_err(|refusal| refusal_error(py, &refusal))
    }

    /// Converts tokens to text.
    fn decode(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<String> {
        let Open { host, .. } = self.open_model(py)?;
        py.detach(|| host.decode(&tokens)).map_err(|refusal| refusal_error(py, &refusal))
    }

    /// Computes embeddings, f32 [texts, dimensions].
    fn embed(&self, py: Python<'_>, texts: Vec<String>, dimensions: Option<usize>) -> PyResult<Floats> {
        let Open { host, .. } = self.open_model(py)?;
        let rows = texts.len();
        if let (Some(wanted), Some(most)) = (dimensions, host.facts().dimensions)
            && (wanted == 0 || wanted > most)
        {
            return Err(usage(
                py,
                &format!("dimensions is {wanted}; expected 1 to {most}, the length of this model's embedding vectors"),
            ));
        }
        let inputs = texts.into_iter().map(EmbeddingInput::Text).collect();
        let embeddings = reply(py, |done| host.embed(EmbeddingRequest { inputs, dimensions }, done))?;
        Ok(Floats::of_rows(embeddings.vectors.concat(), rows))
    }

    /// Computes the logits at every position, f32 [tokens, vocabulary].
    fn logits(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<Floats> {
        let Open { host, .. } = self.open_model(py)?;
        let rows = tokens.len();
        Ok(Floats::of_rows(reply(py, |done| host.logits(tokens, done))?, rows))
    }

    /// Saves a sequence to an absolute path. Returns its tokens and the bytes of the file.
    fn save(&self, py: Python<'_>, slot: usize, path: String) -> PyResult<(usize, u64)> {
        let Open { host, .. } = self.open_model(py)?;
        let SlotSize { tokens, bytes } = reply(py, |done| host.slot(slot, SlotAction::Save(path), done))?;
        Ok((tokens, bytes))
    }

    /// Restores a sequence from an absolute path. Returns its tokens and the bytes of the file.
    fn restore(&self, py: Python<'_>, slot: usize, path: String) -> PyResult<(usize, u64)> {
        let Open { host, .. } = self.open_model(py)?;
        let SlotSize { tokens, bytes } = reply(py, |done| host.slot(slot, SlotAction::Restore(path), done))?;
        Ok((tokens, bytes))
    }

    /// Returns the facts of the model as JSON.
    fn facts(&self, py: Python<'_>) -> PyResult<String> {
        let Open { host, .. } = self.open_model(py)?;
        let ModelFacts {
            name,
            architecture,
            context,
            trained_context,
            vocabulary,
            bytes,
            dimensions,
            parallel,
            build,
            bos,
            eos,
            ..
        } = host.facts();
        let has_template = host.facts().template.is_some();
        let facts = json!({
            "name": name, "architecture": architecture, "context": context, "trained_context": trained_context,
            "vocabulary": vocabulary, "weight_bytes": bytes, "dimensions": dimensions, "parallel": parallel,
            "has_chat_template": has_template, "build": build, "bos_token": bos, "eos_token": eos,
        });
        Ok(facts.to_string())
    }

    /// Returns the counters of the model as JSON.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        let status: Status = self.open_model(py)?.host.status();
        let slots: Vec<Value> = status.slots.iter().map(|slot| {
            json!({"tokens": slot.cached_tokens, "active": slot.has_request, "bytes": slot.bytes, "shared_bytes": slot.shared_bytes})
        }).collect();
        let experts = status.experts.map(|experts| {
            json!({
                "hits": experts.hits, "prefetched": experts.foreseen, "being_read": experts.on_the_way,
                "misses": experts.misses, "stall_seconds": experts.stall_seconds, "reads": experts.reads,
                "read_bytes": experts.read_bytes, "busy_seconds": experts.busy_seconds,
            })
        });
        let counters = json!({
            "active": status.active, "waiting": status.waiting, "ended": status.ended, "failed": status.failed,
            "cancelled": status.cancelled, "prompt_tokens": status.prompt_tokens,
            "reused_tokens": status.reused_tokens, "generated_tokens": status.generated_tokens,
            "prompt_seconds": status.prompt_seconds, "decode_seconds": status.decode_seconds,
            "steps": status.steps, "slots": slots, "recent_slot": status.recent,
            "state_bytes": status.states.own + status.states.shared, "experts": experts,
        });
        Ok(counters.to_string())
    }

    /// Frees the model after its current requests.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Open { host, local }) = open else { return Ok(()) };
        wait::run(py, move || {
            drop(local);
            host.end();
        })
    }
}
