//! Plans of a model in the plan cache: the choice of one for a run, and its compilation if the
//! cache has none.
//!
//! A model has one cached plan for each residency of its experts. The memory of a run decides
//! between resident and streamed experts, by the rules of [`crate::budget`]. These rules need the
//! plan with resident experts. So it is cached even if the run takes the plan with streamed
//! experts.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ixc_compile::Error as CompileError;
use ixc_compile::compile::{self, Compilation};
use ixc_compile::model::Model;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Plan;
use ixc_model_files::gguf::Gguf;
use ixc_runtime::engine::{self, ExpertStore};
use ixc_runtime::file::PlanFile;
use ixc_runtime::load;

use super::LoadOptions;
use super::compiled::{CompiledModel, compile_options};
use crate::Error;
use crate::budget::{FirstPlan, MemorySplit, ResidentPlan, memory_below};
use crate::plan_cache::{ModelKey, PlanCache, Record, Residency};

/// The plan cache for one model.
#[derive(Clone, Debug)]
pub(super) struct ModelCache {
    cache: PlanCache,
    key: ModelKey,
    /// Path of the model.
    path: PathBuf,
}

impl ModelCache {
    /// Returns the cache for a model. Returns `None` if the cache is off, or plans with these
    /// options are not cached.
    pub(super) fn new(gguf: &Gguf, path: &Path, options: &LoadOptions) -> Option<ModelCache> {
        let cache = options.plan_cache.clone()?;
        match ModelKey::new(gguf, options.parts(), &compile_options(options)) {
            Ok(key) => Some(ModelCache { cache, key: key?, path: path.to_owned() }),
            Err(error) => {
                tracing::warn!("{}: its plan is not cached: {error}", path.display());
                None
            }
        }
    }

    fn find(&self, residency: Residency) -> Option<Record> {
        self.cache.find(&self.key.with(residency))
    }

    fn read(&self, residency: Residency) -> Option<Plan<Kernel>> {
        self.cache.read(&self.key.with(residency))
    }

    fn write(&self, residency: Residency, plan: &Plan<Kernel>, min_expert_bytes: u64, tuned: usize) {
        let record = Record::new(&self.path, plan, min_expert_bytes, tuned);
        self.cache.write(&self.key.with(residency), plan, record);
    }

    /// Compiles a model for a run with the options `run`, and caches its plans. Returns the memory
    /// budget, too. `resident` is the plan with all weights in memory, if it was compiled already.
    ///
    /// # Errors
    /// See [`compile::compile`].
    pub(super) fn compile(
        &self,
        model: &Model,
        resident: Option<ResidentPlan>,
        wanted: &compile::CompileOptions,
        run: &engine::EngineOptions,
    ) -> Result<(Compilation, Option<u64>), Error> {
        let count = |compiled: &Compilation| compiled.tuned.as_ref().map_or(0, |(weights, _)| *weights);
        if run.experts == ExpertStore::Map {
            let (compiled, memory) = super::compile_for(model, resident, wanted, run)?;
            self.write(Residency::Mapped, &compiled.plan, 0, count(&compiled));
            return Ok((compiled, memory));
        }
        let first = match resident {
            Some(resident) => FirstPlan::Resident(Box::new(resident)),
            None => FirstPlan::new(model, wanted, run)?,
        };
        match first {
            FirstPlan::Streamed { compiled, memory, min_expert_bytes } => {
                self.write(Residency::Streamed, &compiled.plan, min_expert_bytes, count(&compiled));
                Ok((*compiled, Some(memory)))
            }
            FirstPlan::Resident(resident) => {
                let (min_expert_bytes, split) = (resident.min_expert_bytes(), resident.memory(wanted, run)?);
                self.write(Residency::Resident, resident.plan(), min_expert_bytes, resident.tuned_weights());
                let compiled = resident.with(model, wanted, &split)?;
                if split.expert_memory.is_some() {
                    self.write(Residency::Streamed, &compiled.plan, min_expert_bytes, count(&compiled));
                }
                Ok((compiled, split.memory))
            }
        }
    }
}

/// A model with cached plans, whose graph is not built.
#[derive(Debug)]
pub(super) struct CachedModel {
    cache: ModelCache,
    /// Open files of the model, by number, and their paths.
    handles: Vec<Option<File>>,
    paths: Vec<PathBuf>,
    /// Bytes that all experts take at least.
    min_expert_bytes: u64,
    /// Plan with all weights in memory, from its first use on.
    resident: Option<Box<Plan<Kernel>>>,
}

impl CachedModel {
    /// Returns the model, if the cache has a plan of it.
    ///
    /// # Errors
    /// If the system has no more file handles.
    pub(super) fn new(gguf: &Gguf, cache: &ModelCache) -> Result<Option<CachedModel>, Error> {
        let mut residencies = [Residency::Resident, Residency::Streamed, Residency::Mapped].into_iter();
        let Some(record) = residencies.find_map(|residency| cache.find(residency)) else { return Ok(None) };
        let handles = gguf.handles().map_err(CompileError::io(&cache.path, "open"))?;
        let paths = gguf.files().iter().map(|file| file.path().to_owned()).collect();
        let min_expert_bytes = record.min_expert_bytes;
        Ok(Some(CachedModel { cache: cache.clone(), handles, paths, min_expert_bytes, resident: None }))
    }

    /// Returns the path of the model.
    pub(super) fn path(&self) -> &Path {
        &self.cache.path
    }

    /// Returns the plan with all weights in memory, if it is cached.
    pub(super) fn resident_plan(&mut self) -> Option<&Plan<Kernel>> {
        if self.resident.is_none() {
            self.resident = self.cache.read(Residency::Resident).map(Box::new);
        }
        self.resident.as_deref()
    }

    /// Returns the cached plan for a run, or `None` if the model must be compiled.
    ///
    /// # Errors
    /// When the plan is malformed.
    pub(super) fn load(mut self, options: &LoadOptions) -> Result<Option<CompiledModel>, Error> {
        let begin = Instant::now();
        let run = &options.run;
        let (residency, memory) = match (run.experts, memory_below(self.min_expert_bytes, run)) {
            (ExpertStore::Map, _) => (Residency::Mapped, None),
            (ExpertStore::Stream, Some(memory)) => (Residency::Streamed, Some(memory)),
            (ExpertStore::Stream, None) => {
                let Some(plan) = self.resident_plan() else { return Ok(None) };
                let split = MemorySplit::new(plan, &options.compile, run)?;
                let streamed = split.expert_memory.is_some();
                (if streamed { Residency::Streamed } else { Residency::Resident }, split.memory)
            }
        };
        let Some(record) = self.cache.find(residency) else { return Ok(None) };
        let known = self.resident.take().filter(|_| residency == Residency::Resident).map(|plan| *plan);
        let Some(mut plan) = known.or_else(|| self.cache.read(residency)) else { return Ok(None) };
        // The model may have moved since the plan was compiled.
        load::use_files(&mut plan, &self.paths)?;
        options.run.trace.iter().for_each(|trace| trace.phase(begin, "read the cached plan"));
        let file = PlanFile { model_files: self.handles, ..PlanFile::new(plan) };
        let tuned = options.compile.tuned.as_ref().filter(|_| record.tuned > 0);
        let tuned = tuned.map(|tuned| (record.tuned, tuned.path.clone()));
        Ok(Some(CompiledModel { file, memory, replaced: Vec::new(), tuned }))
    }
}
