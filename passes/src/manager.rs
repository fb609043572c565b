//! The pass manager: a table of graph passes, and the one way to run them.
//!
//! ```text
//! ixc opt model.ix --passes canonicalise,fuse
//! ```
//!
//! Needs: a module that verifies. Leaves: one that verifies; a pass that breaks it is named in the error.

use ixc_ir::graph::Module;
use ixc_ir::graph::verify::{VerifyError, verify};

use crate::{canonicalise, defer, fuse, residency};

/// What passes may be told.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most ops that are one e-graph in `fuse`; choosing among their nodes takes the square of these in bits.
    pub fuse_region: usize,
    /// Most rounds of rewriting in `fuse`.
    pub fuse_rounds: usize,
    /// Bytes that experts' weights may take in memory; `None` where all of them stay there.
    pub expert_memory: Option<u64>,
    /// How many experts more than a token is routed to are predicted for the next layer; `None` where nothing is predicted.
    pub predict_extra: Option<u32>,
    /// How many of a token's experts, the lowest-weighted, are computed during the next layer; 0 defers none. It changes results.
    pub defer: u32,
}

impl Default for Options {
    /// The ops of twenty layers, where a layer is two regions; the longest chain of rules is 8 long.
    fn default() -> Options {
        Options { fuse_region: 512, fuse_rounds: 32, expert_memory: None, predict_extra: None, defer: 0 }
    }
}

/// Why a pipeline ended.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// No pass has this name.
    #[error("there is no pass {name:?}; there are {}", names())]
    Unknown {
        /// The name.
        name: String,
    },
    /// What the pass was given does not verify.
    #[error("the module does not verify: {0}")]
    Input(#[source] Box<VerifyError>),
    /// What the pass made does not verify: a bug in the pass.
    #[error("after pass {pass} the module does not verify: {error}")]
    Output {
        /// The pass.
        pass: &'static str,
        /// What is wrong.
        #[source]
        error: Box<VerifyError>,
    },
    /// Experts are to be deferred, and there are none.
    #[error("{deferred} experts of a token cannot be deferred: the model has no experts")]
    NoExperts {
        /// Experts that were to be deferred.
        deferred: u32,
    },
    /// A token would have no expert left in its own layer.
    #[error("{deferred} experts of a token cannot be deferred: a token has {top_k}, at most {} can be", top_k.saturating_sub(1))]
    Deferred {
        /// Experts that were to be deferred.
        deferred: u32,
        /// Experts of a token.
        top_k: u64,
    },
    /// A value is used that no op before defines.
    #[error("function @{function}: value {value} is used before it is defined")]
    Undefined {
        /// The function.
        function: String,
        /// Number of the value.
        value: u32,
    },
}

/// A pass.
pub struct Pass {
    /// Name, for `--passes`.
    pub name: &'static str,
    /// One line of documentation.
    pub doc: &'static str,
    /// The pass itself.
    pub run: fn(Module, &Options) -> Result<Module, PassError>,
}

/// All graph passes, in the order of [`PIPELINE`].
pub static PASSES: &[Pass] = &[
    Pass { name: "canonicalise", doc: "Drops what does nothing and merges what repeats.", run: canonicalise::run },
    Pass { name: "fuse", doc: "Reads weights quantised, and fuses what one pass over memory can do.", run: fuse::run },
    Pass {
        name: "defer",
        doc: "Computes the experts of least weight one layer later, where that is asked for.",
        run: defer::run,
    },
    Pass {
        name: "residency",
        doc: "Says when experts are loaded, waited for and given up, where memory does not hold all of them.",
        run: residency::run,
    },
];

/// What a model goes through before the schedule.
pub static PIPELINE: &[&str] = &["canonicalise", "fuse", "defer", "residency"];

fn names() -> String {
    PASSES.iter().map(|pass| pass.name).collect::<Vec<_>>().join(", ")
}

/// The pass of a name.
///
/// # Errors
/// [`PassError::Unknown`].
pub fn find(name: &str) -> Result<&'static Pass, PassError> {
    PASSES.iter().find(|pass| pass.name == name).ok_or_else(|| PassError::Unknown { name: name.to_string() })
}

/// Runs passes by name, one after the other, and verifies before the first and after each.
///
/// # Errors
/// For a name that no pass has (before anything runs), and where the module, or what a pass made of it, does not verify.
pub fn run_pipeline(mut module: Module, names: &[&str], options: &Options) -> Result<Module, PassError> {
    let passes = names.iter().map(|name| find(name)).collect::<Result<Vec<_>, _>>()?;
    verify(&module).map_err(|error| PassError::Input(Box::new(error)))?;
    for pass in passes {
        let ops = |module: &Module| module.functions.iter().map(|function| function.ops.len()).sum::<usize>();
        let before = module.clone();
        module = (pass.run)(module, options)?;
        verify(&module).map_err(|error| PassError::Output { pass: pass.name, error: Box::new(error) })?;
        let changed = module != before;
        tracing::debug!(pass = pass.name, changed, ops_before = ops(&before), ops = ops(&module), "pass");
    }
    Ok(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pipeline_names_passes_in_the_order_of_the_table() {
        let table: Vec<&str> = PASSES.iter().map(|pass| pass.name).collect();
        assert_eq!(PIPELINE, table);
    }

    #[test]
    fn an_unknown_pass_is_refused_with_the_names_there_are() {
        let error = run_pipeline(Module::default(), &["fuze"], &Options::default());
        assert_eq!(
            error.err().map(|e| e.to_string()).as_deref(),
            Some("there is no pass \"fuze\"; there are canonicalise, fuse, defer, residency")
        );
    }
}
