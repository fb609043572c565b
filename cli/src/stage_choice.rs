//! Compile options of a command that shows the stages of a compilation and runs nothing.

use ixc_compile::compile::{CompileOptions, TargetName};

use super::experts::Experts;
use super::overrides::{ChangeChoice, OverrideCheck};
use super::passes::PassChoice;

/// Experts, options of passes, and the user's changes.
#[derive(Clone, Debug, clap::Args)]
pub struct StageChoice {
    #[command(flatten)]
    pub experts: Experts,
    #[command(flatten)]
    pub passes: PassChoice,
    #[command(flatten)]
    pub changes: ChangeChoice,
}

impl StageChoice {
    /// Returns the compile options for a target; `None` is the native one.
    ///
    /// # Errors
    /// If a file cannot be read or has the wrong content.
    pub fn options(&self, target: Option<TargetName>) -> Result<CompileOptions, ixc_error::Error> {
        let options = CompileOptions {
            target: target.map(|target| target.target),
            caches: target.and_then(|target| target.caches),
            passes: self.passes.options()?,
            expert_memory: self.experts.memory(),
            predict_extra: self.experts.predict,
            defer: self.experts.deferral.defer,
            ..CompileOptions::default()
        };
        self.changes.over(options, OverrideCheck::OFF)
    }

    /// Returns whether any of the options was given.
    pub fn is_given(&self) -> Result<bool, ixc_error::Error> {
        let (memory, defer) = (self.experts.memory(), self.experts.deferral.defer);
        Ok(memory.is_some() || defer > 0 || !self.passes.options()?.is_empty() || self.changes.is_given())
    }
}
