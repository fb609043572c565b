//! A model that was compiled to be run.

use std::path::{Path, PathBuf};

use ixc_compile::compile;
use ixc_runtime::engine;
use ixc_runtime::file::PlanFile;
use ixc_text::tokenizer::TokenizerSpec;

use super::{LoadOptions, LoadedModel};
use crate::Error;

/// Returns the options of compiling a model for a run.
pub(super) fn compile_options(options: &LoadOptions) -> compile::CompileOptions {
    let LoadOptions { compile: wanted, run, .. } = options;
    let predict_extra = wanted.predict_extra.or(run.prefetch.early_routers());
    compile::CompileOptions { predict_extra, ..wanted.clone() }
}

/// Plan of a model, with facts about its compilation.
pub(super) struct CompiledModel {
    pub(super) file: PlanFile,
    pub(super) memory: Option<u64>,
    pub(super) replaced: Vec<String>,
    pub(super) tuned: Option<(usize, PathBuf)>,
}

impl CompiledModel {
    /// Loads the plan with the vocabulary of the model.
    pub(super) fn load(self, vocabulary: TokenizerSpec, options: &LoadOptions) -> Result<LoadedModel, Error> {
        let CompiledModel { file, memory, replaced, tuned } = self;
        let run = engine::EngineOptions { memory, ..options.run.clone() };
        let options = LoadOptions { run, ..options.clone() };
        let model = LoadedModel::of_parts(file, vocabulary, Path::new(""), &options)?;
        Ok(LoadedModel { replaced, tuned, ..model })
    }
}
