//! A model's routed experts as an operator: it takes hidden rows, expert ids and weights, and
//! returns rows.
//!
//! This module serves engines that run the rest of a model, for example on a GPU, and compute its
//! experts on the CPU. Such an engine routes tokens, submits a layer's rows, continues with other
//! work, and takes the weighted sums. Experts are compiled as in a whole model: for every target,
//! in every format, in memory or streamed within a budget.
//!
//! ```
//! use ixc_generate::moe::{Moe, MoeOptions, Rows};
//!
//! let moe = Moe::open(None, &MoeOptions::default())?; // The demo model.
//! let layer = &moe.layers()[0];
//! let (rows, used) = (vec![0.5; 2 * layer.width as usize], layer.used as usize);
//! // The first expert for both rows. Another engine computes all other experts.
//! let ids: Vec<i32> = (0..2 * used).map(|slot| if slot % used == 0 { 0 } else { -1 }).collect();
//! let weights = vec![1.0; 2 * used];
//! let handle = moe.submit(layer.number, Rows::F32(&rows), &ids, &weights)?;
//! let sums = handle.wait()?;
//! assert!(sums.len() == rows.len() && sums[..8] == sums[sums.len() / 2..][..8]);
//! # Ok::<(), ixc_generate::Error>(())
//! ```
//!
//! One thread runs the submitted work in order, together with the other threads of
//! [`engine::EngineOptions::threads`]. Inputs are copied, so that their buffers are free at once. A
//! dropped handle discards its result.
//!
//! Invariant: results equal those of the model's own layers with the same kernels. A row's bits
//! depend only on its experts and weights, within the limits that [`ixc_runtime::expert_layers`]
//! states.

use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ixc_ir::plan::NO_EXPERT;
use ixc_runtime::engine;
use ixc_runtime::execute::ExecuteError;
pub use ixc_runtime::expert_layers::Rows;
use ixc_runtime::expert_layers::{ExpertLayers, LayerError};
use ixc_runtime::file::PlanFile;
pub use ixc_runtime::program::Layer;

use crate::plan_file::read_plan;
use crate::{Error, loaded_model};
use ixc_compile::compile;
use ixc_compile::model::{Input, Model};

/// Options for compiling and running experts.
#[derive(Clone, Debug, Default)]
pub struct MoeOptions {
    /// Compile options of a model, within [`engine::EngineOptions::memory`].
    pub compile: compile::CompileOptions,
    /// Run options of its plan; contexts and sequences have no meaning here.
    pub run: engine::EngineOptions,
}

/// A request to the thread: rows to compute, and the channel for the result.
struct Work {
    layer: u32,
    rows: OwnedRows,
    ids: Vec<i32>,
    weights: Vec<f32>,
    promise: Promise,
}

/// Promise of a result. If the promise is dropped without a result, the result is an error.
struct Promise {
    cell: Arc<ResultCell>,
    pending: Arc<Signal<usize>>,
}

impl Promise {
    fn keep(self, result: Result<Vec<f32>, LayerError>) {
        self.cell.set(|cell| *cell = Some(result));
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let ended = || ExecuteError::Panic { message: "the thread that runs experts ended".to_string() };
        self.cell.set(|cell| {
            if cell.is_none() {
                *cell = Some(Err(ended().into()));
            }
        });
        self.pending.set(|pending| *pending -= 1);
    }
}

/// Owned copy of submitted rows.
enum OwnedRows {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
}

impl OwnedRows {
    fn from_rows(rows: Rows<'_>) -> OwnedRows {
        match rows {
            Rows::F32(rows) => OwnedRows::F32(rows.to_vec()),
            Rows::Bf16(rows) => OwnedRows::Bf16(rows.to_vec()),
        }
    }

    fn rows(&self) -> Rows<'_> {
        match self {
            OwnedRows::F32(rows) => Rows::F32(rows),
            OwnedRows::Bf16(rows) => Rows::Bf16(rows),
        }
    }
}

/// State with a signal that wakes waiting threads.
#[derive(Debug, Default)]
struct Signal<T> {
    state: Mutex<T>,
    changed: Condvar,
}

impl<T> Signal<T> {
    fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn wait(&self, is_there: impl Fn(&T) -> bool) -> MutexGuard<'_, T> {
        let waits = |state: &mut T| !is_there(state);
        self.changed.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cell of a future result.
type ResultCell = Signal<Option<Result<Vec<f32>, LayerError>>>;

/// Handle of rows that are being computed.
#[derive(Debug)]
#[must_use = "what is computed is taken by `wait`"]
pub struct Handle {
    cell: Arc<ResultCell>,
}

impl Handle {
    /// Returns whether the result is ready.
    pub fn is_done(&self) -> bool {
        self.cell.lock().is_some()
    }

    /// Returns the result if it is ready, otherwise the handle.
    ///
    /// # Errors
    /// The handle, if the result is not ready.
    pub fn poll(self) -> Result<Result<Vec<f32>, Error>, Handle> {
        let result = self.cell.lock().take();
        result.map(|result| result.map_err(Error::from)).ok_or(self)
    }

    /// Waits for the result: for each row, the weighted sum over its experts, f32 `[rows, width]`.
    ///
    /// # Errors
    /// When experts cannot be read, or the plan is wrong.
    pub fn wait(self) -> Result<Vec<f32>, Error> {
        let result = self.cell.wait(Option::is_some).take();
        // `wait` returned because a result exists, so this default is not used.
        result.unwrap_or_else(|| Ok(Vec::new())).map_err(Error::from)
    }
}

/// A model's routed experts, with the thread that runs them.
#[derive(Debug)]
pub struct Moe {
    layers: Vec<Layer>,
    queue: Option<Sender<Work>>,
    /// Number of submissions without a result.
    pending: Arc<Signal<usize>>,
    thread: Option<JoinHandle<()>>,
    /// Whether experts are streamed.
    streams: bool,
}

impl Moe {
    /// Opens a model, or a plan from [`Model::into_expert_layers`]; no path means the demo model.
    ///
    /// # Errors
    /// When the file is missing, malformed or unsupported, has no routed experts, or cannot run on
    /// this machine.
    pub fn open(path: Option<&Path>, options: &MoeOptions) -> Result<Moe, Error> {
        let gguf = match path {
            None => ixc_compile::demo::open()?,
            Some(path) => match Input::open(path)? {
                Input::Plan(file) => {
                    if options.compile.max_tokens.is_some() {
                        return Err(Error::PlanSays { what: loaded_model::ROWS });
                    }
                    let file = read_plan(file, path, None)?;
                    loaded_model::is_for(&file.plan, &options.compile)?;
                    return Moe::of_plan_file(file, path.parent().unwrap_or(path), &options.run);
                }
                Input::Model(gguf) => *gguf,
            },
        };
        Moe::of_model(Model::new(gguf)?, options)
    }

    /// Compiles a model's experts and loads the plan.
    ///
    /// # Errors
    /// See [`Moe::open`].
    pub fn of_model(model: Model, options: &MoeOptions) -> Result<Moe, Error> {
        let model = model.into_expert_layers()?;
        let (compiled, memory) = loaded_model::compile_for(&model, None, &options.compile, &options.run)?;
        let run = engine::EngineOptions { memory, ..options.run.clone() };
        let file = PlanFile { model_files: model.handles()?, ..PlanFile::new(compiled.plan) };
        Moe::of_plan_file(file, Path::new(""), &run)
    }

    /// Loads an open plan file; its relative paths start from `folder`.
    ///
    /// # Errors
    /// When the file is not a valid plan of experts, its model is missing or differs, or this
    /// machine cannot run it.
    pub fn of_plan_file(file: PlanFile, folder: &Path, run: &engine::EngineOptions) -> Result<Moe, Error> {
        let (run, _) = loaded_model::engine_options(&file, folder, run, None)?;
        let mut experts = ExpertLayers::load_file(file, folder, &run).map_err(loaded_model::not_loaded)?;
        let (layers, streams) = (experts.layers().to_vec(), experts.stream().is_some());
        let (queue, work) = channel::<Work>();
        let pending = Arc::new(Signal::default());
        let run = move || {
            for Work { layer, rows, ids, weights, promise } in work {
                promise.keep(experts.run(layer, rows.rows(), &ids, &weights));
            }
        };
        let thread = std::thread::Builder::new().name("ixc-moe".to_string()).spawn(run);
        let thread = thread.map_err(|source| ixc_runtime::load::LoadError::Thread { source })?;
        Ok(Moe { layers, queue: Some(queue), pending, thread: Some(thread), streams })
    }

    /// Returns the layers with routed experts, in the model's order.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Returns whether experts are streamed because they do not all fit.
    pub fn is_streamed(&self) -> bool {
        self.streams
    }

    /// Submits rows to a layer's experts, and returns at once. Each row has as many `ids` and
    /// `weights` as it uses experts ([`Layer::used`]). An id of [`NO_EXPERT`] is skipped, whatever
    /// its weight.
    ///
    /// # Errors
    /// [`Error::Layer`] if there is no such layer, lengths do not match, an id is not an expert's,
    /// or a weight is not finite.
    pub fn submit(&self, layer: u32, rows: Rows<'_>, ids: &[i32], weights: &[f32]) -> Result<Handle, Error> {
        let found = self.layers.iter().find(|found| found.number == layer);
        let found = found.ok_or_else(|| {
            let layers = self.layers.iter().map(|layer| layer.number).collect();
            LayerError::NoLayer { layer, layers }
        })?;
        ExpertLayers::check(found, rows, ids, weights)?;
        let cell = Arc::new(ResultCell::default());
        let handle = Handle { cell: Arc::clone(&cell) };
        let (rows, ids, weights) = (OwnedRows::from_rows(rows), ids.to_vec(), weights.to_vec());
        self.pending.set(|pending| *pending += 1);
        let promise = Promise { cell, pending: Arc::clone(&self.pending) };
        let sent = self.queue.as_ref().map(|queue| queue.send(Work { layer, rows, ids, weights, promise }));
        match sent {
            Some(Ok(())) => Ok(handle),
            Some(Err(_)) | None => Err(Error::NoMoe),
        }
    }

    /// Waits until everything that was submitted is computed, including submissions of other
    /// threads meanwhile.
    pub fn sync(&self) {
        drop(self.pending.wait(|pending| *pending == 0));
    }

    /// Keeps the ids of the `count` experts from `first` on, and replaces all other ids by
    /// [`NO_EXPERT`]. Call it on a machine that has only these experts.
    pub fn own_ids(ids: &[i32], first: i32, count: i32) -> Vec<i32> {
        let own = |id: i32| id >= first && id < first.saturating_add(count);
        ids.iter().map(|&id| if own(id) { id } else { NO_EXPERT }).collect()
    }
}

impl Drop for Moe {
    /// Waits until all submitted work is computed.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // The panic was already reported where it happened.
            let _ = thread.join();
        }
    }
}
