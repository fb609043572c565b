//! Models by name in one memory budget. A model is loaded on the first request, and unloaded if
//! another one needs its memory.
//!
//! ```text
//! request for b ──▶ room? ── yes ──▶ load b
//!                    │ no
//!                    ├── unload the idle model that was requested least recently, and retry
//!                    └── all models are busy: wait a little, then refuse
//! ```
//!
//! A model gets enough memory for all of its weights, or the whole budget if that is smaller; its
//! experts are then streamed.
//!
//! Invariant: the memory of all loaded models, in addition to the process's own, is within the
//! budget.
//!
//! Invariant: a model is unloaded only while no request that uses it is read, computed or answered.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::model::Refusal;
use ixc_runtime::{engine, memory_estimate};

use super::{Host, ServingOptions, gives_embeddings};
use ixc_generate::budget;
use ixc_generate::expert_use::ExpertUse;
use ixc_generate::loaded_model::{LoadOptions, LongestContext, UnloadedModel};

/// Max time that a load waits for other models to become idle, and time between checks.
const MAX_WAIT: Duration = Duration::from_secs(10);
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A model that can be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSource {
    /// Name in requests.
    pub name: String,
    /// Model or plan; `None` is the demo model.
    pub path: Option<PathBuf>,
}

/// Query for the model of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelQuery<'q> {
    /// Name of the model. `None` is the first model of the right kind.
    pub name: Option<&'q str>,
    /// Whether the request is for embeddings, not for text.
    pub embeddings: bool,
}

/// A model in the list.
#[derive(Clone, Debug)]
pub struct ModelEntry {
    /// Name of the model.
    pub name: String,
    /// The model, if it is loaded.
    pub model: Option<Arc<Host>>,
    /// Bytes of memory counted for the model, if it is loaded and the number is known.
    pub memory: Option<u64>,
}

/// Options for loading models.
#[derive(Debug)]
struct LoadSettings {
    load: LoadOptions,
    host: ServingOptions,
    /// Budget for all models, in bytes.
    total: u64,
}

/// Loaded model.
#[derive(Debug)]
struct LoadedHost {
    host: Arc<Host>,
    /// Bytes of this model that count against the budget.
    bytes: Option<u64>,
    /// Logical time of the last request.
    last_use: u64,
}

/// State that changes as models are loaded and used.
#[derive(Debug, Default)]
struct State {
    /// One entry for each source.
    loaded: Vec<Option<LoadedHost>>,
    clock: u64,
}

/// Models by name.
#[derive(Debug)]
pub struct Registry {
    sources: Vec<ModelSource>,
    /// Whether each model is an embedding model; unset until known.
    kinds: Vec<OnceLock<bool>>,
    /// Options for loading models; `None` if there is only one model, which stays loaded.
    loading: Option<LoadSettings>,
    state: Mutex<State>,
    /// Lock that is held while a model is loaded.
    turn: Mutex<()>,
}

impl Registry {
    /// Creates a registry of one model, which stays loaded and answers to any name.
    pub fn one(host: impl Into<Arc<Host>>) -> Registry {
        let host = host.into();
        let sources = vec![ModelSource { name: host.facts.name.clone(), path: None }];
        let loaded = vec![Some(LoadedHost { host, bytes: None, last_use: 0 })];
        let state = Mutex::new(State { loaded, clock: 0 });
        Registry { sources, kinds: vec![OnceLock::new()], loading: None, state, turn: Mutex::new(()) }
    }

    /// Creates a registry of models that are loaded when they are requested. The first model is the
    /// default. All models share [`memory`](ixc_runtime::engine::EngineOptions::memory), or nearly
    /// the free memory of the machine. Each model keeps its prompt cache in its own folder. `host`
    /// has the options of each model, except its name.
    pub fn several(sources: Vec<ModelSource>, load: LoadOptions, host: ServingOptions) -> Registry {
        let total = match load.run.memory {
            // The limit applies to the whole process.
            Some(memory) => memory.saturating_sub(memory_estimate::process_bytes()),
            None => budget::free_memory().unwrap_or(u64::MAX),
        };
        let loaded = sources.iter().map(|_| None).collect();
        let kinds = sources.iter().map(|_| OnceLock::new()).collect();
        let state = Mutex::new(State { loaded, clock: 0 });
        Registry { sources, kinds, loading: Some(LoadSettings { load, host, total }), state, turn: Mutex::new(()) }
    }

    /// Returns the memory for all models together, if it is bounded.
    pub fn total(&self) -> Option<u64> {
        self.loading.as_ref().map(|loading| loading.total).filter(|total| *total < u64::MAX)
    }

    /// Returns all models, loaded or not.
    pub fn list(&self) -> Vec<ModelEntry> {
        let state = self.state();
        let loaded = state.loaded.iter();
        let entry = |(source, loaded): (&ModelSource, &Option<LoadedHost>)| ModelEntry {
            name: source.name.clone(),
            model: loaded.as_ref().map(|loaded| Arc::clone(&loaded.host)),
            memory: loaded.as_ref().and_then(|loaded| loaded.bytes),
        };
        self.sources.iter().zip(loaded).map(entry).collect()
    }

    /// Returns the model of a query, if it is loaded.
    ///
    /// # Errors
    /// [`Refusal::NoModel`] if no model has this name.
    pub fn loaded_model(&self, query: ModelQuery<'_>) -> Result<Option<Arc<Host>>, Refusal> {
        Ok(self.index_of(query, false)?.and_then(|number| self.loaded_host(number)))
    }

    /// Returns the model of a query, and loads it first if necessary. Loading may take minutes and
    /// waits for other loads, so do not call this on a thread that others wait for. The model stays
    /// loaded as long as a reference exists.
    ///
    /// # Errors
    /// [`Refusal::NoModel`]; [`Refusal::NoRoom`] if models that would have to be unloaded are
    /// answering; [`Refusal::NotLoaded`] if it cannot be loaded.
    pub fn load(&self, query: ModelQuery<'_>) -> Result<Arc<Host>, Refusal> {
        let number = self.index_of(query, true)?.unwrap_or(0);
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // Another request may have loaded the model meanwhile.
        match self.loaded_host(number) {
            Some(host) => Ok(host),
            None => self.open(number),
        }
    }

    /// Returns the failure of a loaded model that can compute no further step.
    pub(crate) fn failure(&self) -> Option<engine::StepError> {
        let state = self.state();
        state.loaded.iter().flatten().find_map(|loaded| loaded.host.failure().cloned())
    }

    /// Finishes the current requests, and unloads all models. Returns the expert use if there is
    /// only one model.
    pub(crate) fn end(&self) -> Option<ExpertUse> {
        let loaded: Vec<LoadedHost> = self.state().loaded.iter_mut().filter_map(Option::take).collect();
        let mut uses: Vec<_> = loaded.iter().map(|loaded| loaded.host.end()).collect();
        uses.pop().flatten().filter(|_| self.sources.len() == 1)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the index of a query's model. Returns `None` if a file would have to be opened, but
    /// `may_open` is false.
    fn index_of(&self, query: ModelQuery<'_>, may_open: bool) -> Result<Option<usize>, Refusal> {
        if self.sources.len() == 1 {
            return Ok(Some(0));
        }
        let Some(name) = query.name else {
            for number in 0..self.sources.len() {
                let kind =
                    if may_open { Some(self.gives_embeddings(number)) } else { self.kinds[number].get().copied() };
                match kind {
                    None => return Ok(None),
                    Some(embeddings) if embeddings == query.embeddings => return Ok(Some(number)),
                    Some(_) => {}
                }
            }
            return Ok(Some(0));
        };
        let number = self.sources.iter().position(|source| source.name == name);
        number.map(Some).ok_or_else(|| {
            let known: Vec<&str> = self.sources.iter().map(|source| &*source.name).collect();
            Refusal::NoModel { name: name.to_owned(), known: known.join(", ") }
        })
    }

    /// Returns whether a model is an embedding model. If the file cannot be opened, loading it
    /// reports the error.
    fn gives_embeddings(&self, number: usize) -> bool {
        let is_requested = self.loading.as_ref().is_some_and(|loading| loading.load.embeddings);
        let of = |path| is_requested || gives_embeddings(path).unwrap_or(false);
        *self.kinds[number].get_or_init(|| of(self.sources[number].path.as_deref()))
    }

    /// Returns a model, if it is loaded.
    fn loaded_host(&self, number: usize) -> Option<Arc<Host>> {
        let state = &mut *self.state();
        state.clock += 1;
        let loaded = state.loaded[number].as_mut()?;
        loaded.last_use = state.clock;
        Some(Arc::clone(&loaded.host))
    }

    /// Loads a model. The caller holds the lock `turn`, so only one model is loaded at a time.
    fn open(&self, number: usize) -> Result<Arc<Host>, Refusal> {
        let name = &self.sources[number].name;
        let failed = |message: String| Refusal::NotLoaded { name: name.clone(), message };
        let Some(LoadSettings { load, host, total }) = &self.loading else {
            return Err(Refusal::Ending);
        };
        let path = self.sources[number].path.as_deref();
        let prompt_cache_bytes = host.prompts.as_ref().map_or(0, |prompts| prompts.memory);
        let mut options = LoadOptions { embeddings: self.gives_embeddings(number), ..load.clone() };
        let before = memory_estimate::process_bytes();
        let mut model = UnloadedModel::open(path, &options).map_err(|error| failed(error.to_string()))?;
        let plan = model.resident_plan(&options).map_err(|error| failed(error.to_string()))?;
        if let (None, Some(LongestContext { .. })) = (options.run.context, options.longest_context) {
            // Each model has a share of the memory, so that all can be loaded at once.
            let share = memory_estimate::process_bytes().saturating_add(*total / self.sources.len() as u64);
            let run = engine::EngineOptions { memory: Some(share), ..options.run.clone() };
            let context =
                budget::longest_context(plan, &run, prompt_cache_bytes).map_err(|error| failed(error.to_string()))?;
            options.run.context = Some(context.into());
        }
        let own = budget::needed_bytes(plan, &options.run)
            .map_err(|error| failed(error.to_string()))?
            .saturating_add(prompt_cache_bytes);
        // Memory that the open model takes now, and that loading frees.
        let unloaded_bytes = memory_estimate::process_bytes().saturating_sub(before);
        let needed_bytes = own.min(*total);
        let begin = Instant::now();
        let free = loop {
            let (free, unloaded, answering) = self.make_room(needed_bytes, *total);
            // The models are dropped without holding the lock: that may take as long as a step, and
            // writes the prompt cache.
            let has_unloaded = !unloaded.is_empty();
            unloaded.iter().for_each(|host| drop(host.end()));
            if free >= needed_bytes {
                break free;
            }
            if !has_unloaded && begin.elapsed() > MAX_WAIT {
                return Err(Refusal::NoRoom { name: name.clone(), others: answering.join(", ") });
            }
            sleep(CHECK_INTERVAL);
        };
        // If the whole model fits, the default limit applies. Otherwise the limit is the free part
        // of the budget plus the memory of this process, because the limit counts the whole
        // process.
        let process = || memory_estimate::process_bytes().saturating_sub(unloaded_bytes);
        options.run.memory = (own > free).then(|| process().saturating_add(free).saturating_sub(prompt_cache_bytes));
        let loaded = model.load(&options).map_err(|error| failed(error.to_string()))?;
        let prompts = host.prompts.clone().map(|prompts| ixc_generate::prompt_cache::PromptCacheOptions {
            folder: prompts.folder.as_ref().map(|folder| folder.join(name)),
            ..prompts
        });
        let opened = Host::new(loaded, None, ServingOptions { name: name.clone(), prompts, ..host.clone() })
            .map_err(|error| failed(error.to_string()))?;
        let opened = Arc::new(opened);
        let state = &mut *self.state();
        state.clock += 1;
        let (bytes, last_use) = (Some(needed_bytes), state.clock);
        state.loaded[number] = Some(LoadedHost { host: Arc::clone(&opened), bytes, last_use });
        tracing::info!(name, bytes = needed_bytes, context = opened.facts.context, "loaded");
        Ok(opened)
    }

    /// Unloads idle models, the least recently requested first, until `needed_bytes` are free or
    /// none is idle. Returns the free bytes, the unloaded models, and the names of the remaining
    /// ones.
    fn make_room(&self, needed_bytes: u64, total: u64) -> (u64, Vec<Arc<Host>>, Vec<String>) {
        let state = &mut *self.state();
        let mut unloaded = Vec::new();
        loop {
            let loaded_bytes = state.loaded.iter().flatten().filter_map(|loaded| loaded.bytes);
            let free = total.saturating_sub(loaded_bytes.fold(0, u64::saturating_add));
            // A new request has to lock this state before it can use a model.
            let idle = state
                .loaded
                .iter_mut()
                .filter(|loaded| loaded.as_ref().is_some_and(|loaded| Arc::strong_count(&loaded.host) == 1));
            let oldest = idle.min_by_key(|loaded| loaded.as_ref().map(|loaded| loaded.last_use));
            match oldest.filter(|_| free < needed_bytes).and_then(Option::take) {
                Some(loaded) => {
                    tracing::info!(name = loaded.host.facts.name, "unloaded");
                    unloaded.push(loaded.host);
                }
                None => {
                    let left = state.loaded.iter().flatten().map(|loaded| loaded.host.facts.name.clone());
                    return (free, unloaded, left.collect());
                }
            }
        }
    }
}
