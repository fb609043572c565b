//! How a model is compiled, of a command that shows what compiling makes and runs nothing.

use ixc_compile::compile::{Options, TargetName};

use super::changed::{ChangeChoice, OverrideCheck};
use super::experts::Experts;
use super::passes::PassChoice;

/// Experts, options of passes, and what somebody changed.
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
    /// As compiling takes them, for a target; native where `None`.
    ///
    /// # Errors
    /// Where a file cannot be read, or is not what it should be.
    pub fn options(&self, target: Option<TargetName>) -> Result<Options, ixc_error::Error> {
        let options = Options {
            target: target.map(|target| target.target),
            caches: target.and_then(|target| target.caches),
            passes: self.passes.options()?,
            expert_memory: self.experts.memory(),
            predict_extra: self.experts.predict,
            defer: self.experts.deferral.defer,
            ..Options::default()
        };
        self.changes.over(options, OverrideCheck::SHOWN)
    }

    /// Whether anything is said.
    pub fn is_given(&self) -> Result<bool, ixc_error::Error> {
        let (memory, defer) = (self.experts.memory(), self.experts.deferral.defer);
        Ok(memory.is_some() || defer > 0 || !self.passes.options()?.is_empty() || self.changes.is_given())
    }
}
