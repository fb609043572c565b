//! Model or plan that is open and not loaded yet: its size is known before memory is taken for it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use ixc_architectures::Nextn;
use ixc_compile::Error as CompileError;
use ixc_compile::compile::{Compilation, decode_tokenizer};
use ixc_compile::model::{Input, Model};
use ixc_files::SignalStack;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Plan;
use ixc_model_files::gguf::Gguf;
use ixc_runtime::file::PlanFile;

use super::cached::{CachedModel, ModelCache};
use super::compiled::{CompiledModel, compile_options};
use super::divided;
use super::open::compile_for;
use super::{DEFERRED, LoadOptions, LoadedModel, PASSES, START, TUNED};
use crate::Error;
use crate::budget::ResidentPlan;
use crate::plan_file::read_plan;

/// Model or plan that is open and not loaded. Its files are opened once, and its kernels generated
/// once.
#[derive(Debug)]
pub struct UnloadedModel(Contents);

#[derive(Debug)]
enum Contents {
    Plan {
        file: Box<PlanFile>,
        /// Folder to which relative paths in the plan are relative.
        folder: PathBuf,
        /// Names of replaced kernels.
        replaced: Vec<String>,
    },
    Model {
        model: Box<Model>,
        /// Plan with all weights in memory, from its first use on.
        resident: Option<Box<ResidentPlan>>,
        /// Cache for the model's plans.
        cache: Option<ModelCache>,
    },
    Cached(CachedModel),
}

/// Open plan or model.
#[derive(Clone, Copy, Debug)]
pub enum PlanOrModel<'m> {
    /// A plan.
    Plan(&'m Plan<Kernel>),
    /// A model.
    Model(&'m Model),
}

impl<'m> PlanOrModel<'m> {
    /// Returns the model; `None` for a plan.
    pub fn model(self) -> Option<&'m Model> {
        match self {
            PlanOrModel::Plan(_) => None,
            PlanOrModel::Model(model) => Some(model),
        }
    }
}

impl UnloadedModel {
    /// Opens a model or a plan. Without a path, opens the demo model.
    ///
    /// # Errors
    /// When the file is missing, malformed or not supported, or the options do not apply to it.
    pub fn open(path: Option<&Path>, options: &LoadOptions) -> Result<UnloadedModel, Error> {
        SignalStack::default().run(|| UnloadedModel::read_files(path, options))
    }

    /// Opens a model or a plan on the thread's current signal stack.
    fn read_files(path: Option<&Path>, options: &LoadOptions) -> Result<UnloadedModel, Error> {
        let (gguf, path) = match path {
            None => (ixc_compile::demo::open()?, Path::new(ixc_compile::demo::NAME)),
            Some(path) => match Input::open(path)? {
                Input::Plan(file) => {
                    check_plan_options(path, options)?;
                    let mut file = read_plan(file, path, options.model_file.as_deref())?;
                    let replaced = options.compile.kernels.put_into(&mut file.plan)?;
                    let (file, folder) = (Box::new(file), path.parent().unwrap_or(path).to_owned());
                    return Ok(UnloadedModel(Contents::Plan { file, folder, replaced }));
                }
                Input::Model(gguf) => (*gguf, path),
            },
        };
        if options.model_file.is_some() {
            return Err(Error::NotPlan { path: path.to_owned() });
        }
        let cache = match divided::is_divided(&options.run) {
            true => None,
            false => ModelCache::new(&gguf, path, options),
        };
        match cache.as_ref().map(|cache| CachedModel::new(&gguf, cache)).transpose()?.flatten() {
            Some(cached) => Ok(UnloadedModel(Contents::Cached(cached))),
            None => UnloadedModel::of_files(gguf, cache, options),
        }
    }

    /// Builds the graph of a model that must be compiled. `cache` gets the compiled plans.
    fn of_files(gguf: Gguf, cache: Option<ModelCache>, options: &LoadOptions) -> Result<UnloadedModel, Error> {
        let model = Box::new(Model::of_parts(gguf, options.parts())?);
        Ok(UnloadedModel(Contents::Model { model, resident: None, cache }))
    }

    /// Opens a model and builds its graph, because its cached plan cannot be used.
    fn open_uncached(path: &Path, options: &LoadOptions) -> Result<UnloadedModel, Error> {
        let gguf = Input::open(path)?.model(path)?;
        let cache = ModelCache::new(&gguf, path, options);
        UnloadedModel::of_files(gguf, cache, options)
    }

    /// Returns the open plan or model. If only cached plans were opened, opens the model and builds
    /// its graph. `options` must be those with which it was opened.
    ///
    /// # Errors
    /// When the model cannot be opened again.
    pub fn content(&mut self, options: &LoadOptions) -> Result<PlanOrModel<'_>, Error> {
        if let Contents::Cached(cached) = &self.0 {
            *self = UnloadedModel::open_uncached(cached.path(), options)?;
        }
        Ok(match &self.0 {
            Contents::Plan { file, .. } => PlanOrModel::Plan(&file.plan),
            Contents::Model { model, .. } => PlanOrModel::Model(model),
            Contents::Cached(_) => unreachable!("its graph was built above"),
        })
    }

    /// Returns the plan with all weights in memory. Compiles a model at the first call, unless the
    /// plan is cached.
    ///
    /// # Errors
    /// When the model cannot be compiled.
    pub fn resident_plan(&mut self, options: &LoadOptions) -> Result<&Plan<Kernel>, Error> {
        if let Contents::Cached(cached) = &mut self.0
            && cached.resident_plan().is_none()
        {
            *self = UnloadedModel::open_uncached(cached.path(), options)?;
        }
        match &mut self.0 {
            Contents::Plan { file, .. } => Ok(&file.plan),
            Contents::Cached(cached) => Ok(cached.resident_plan().unwrap_or_else(|| unreachable!("it was read above"))),
            Contents::Model { model, resident, .. } => {
                let plan = match resident.take() {
                    Some(plan) => plan,
                    None => Box::new(ResidentPlan::new(model, &compile_options(options))?),
                };
                Ok(resident.insert(plan).plan())
            }
        }
    }

    /// Loads the model or plan. The options may differ from the earlier ones only in the memory and
    /// the context of the run.
    ///
    /// # Errors
    /// When the model cannot be compiled, or this machine cannot run the plan.
    pub fn load(self, options: &LoadOptions) -> Result<LoadedModel, Error> {
        SignalStack::default().run(|| self.load_contents(options))
    }

    /// Loads the model or plan on the thread's current signal stack.
    fn load_contents(self, options: &LoadOptions) -> Result<LoadedModel, Error> {
        match self.0 {
            Contents::Plan { file, folder, replaced } => {
                let model = LoadedModel::of_plan_file(*file, &folder, options)?;
                Ok(LoadedModel { replaced, ..model })
            }
            Contents::Cached(cached) => {
                let path = cached.path().to_owned();
                match cached.load(options)? {
                    Some(compiled) => {
                        let vocabulary = decode_tokenizer(&compiled.file.plan.tokenizer)?;
                        compiled.load(vocabulary, options)
                    }
                    None => UnloadedModel::open_uncached(&path, options)?.load(options),
                }
            }
            Contents::Model { mut model, resident, cache } => {
                let resident = resident.map(|resident| *resident);
                let compiled = compile(&model, resident, cache.as_ref(), options)?;
                let vocabulary = std::mem::take(&mut model.vocabulary);
                // The model is dropped before its plan is loaded, because loading measures the
                // memory in use.
                drop(model);
                compiled.load(vocabulary, options)
            }
        }
    }
}

impl LoadedModel {
    /// Opens a model or a plan. Without a path, opens the demo model.
    ///
    /// # Errors
    /// When the file is missing, malformed or not supported, or this machine cannot run it.
    pub fn open(path: Option<&Path>, options: &LoadOptions) -> Result<LoadedModel, Error> {
        UnloadedModel::open(path, options)?.load(options)
    }

    /// Compiles a model and loads the plan.
    ///
    /// # Errors
    /// When the model cannot be compiled, or this machine cannot run the plan.
    pub fn of_model(model: &Model, options: &LoadOptions) -> Result<LoadedModel, Error> {
        compile(model, None, None, options)?.load(model.vocabulary.clone(), options)
    }
}

/// Checks that no option is set that a plan fixes, such as the options of passes.
fn check_plan_options(path: &Path, options: &LoadOptions) -> Result<(), Error> {
    if options.nextn != Nextn::Absent {
        return Err(CompileError::IsPlan { path: path.to_owned() }.into());
    }
    let compile = &options.compile;
    let named = compile.tuned.as_ref().is_some_and(|tuned| tuned.is_named());
    let asked = [
        (compile.defer > 0, DEFERRED),
        (!compile.passes.is_empty(), PASSES),
        (compile.start.is_some(), START),
        (named, TUNED),
    ];
    match asked.into_iter().find(|(asked, _)| *asked) {
        Some((_, what)) => Err(Error::PlanSays { what }),
        None => Ok(()),
    }
}

/// Compiles a model to be loaded. `resident` is the plan with all weights in memory, if it was
/// compiled already. `cache` gets the plans.
fn compile(
    model: &Model,
    resident: Option<ResidentPlan>,
    cache: Option<&ModelCache>,
    options: &LoadOptions,
) -> Result<CompiledModel, Error> {
    let begin = Instant::now();
    let wanted = compile_options(options);
    if let Some(divided) = divided::compile(model, &wanted, &options.run)? {
        return Ok(divided);
    }
    let (compiled, memory) = match cache {
        Some(cache) => cache.compile(model, resident, &wanted, &options.run)?,
        None => compile_for(model, resident, &wanted, &options.run)?,
    };
    options.run.trace.iter().for_each(|trace| trace.phase(begin, "compile"));
    let Compilation { plan, replaced, tuned, .. } = compiled;
    let file = PlanFile { model_files: model.handles()?, ..PlanFile::new(plan) };
    Ok(CompiledModel { file, memory, replaced, tuned })
}
