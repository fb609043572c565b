//! Outputs of the passes of a compilation, recorded as text.
//!
//! A compilation with [`CompileOptions::recording`](crate::compile::CompileOptions::recording)
//! records the output of each pass that it runs. [`dump`](crate::dump) writes the record, so a dump
//! needs no second compilation.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ixc_kernels::KernelSpec;
use ixc_passes::manager::{Ir, Stop};
use ixc_passes::pass::Pass;

/// Record of the passes that ran.
#[derive(Debug, Default)]
pub struct Recording(Mutex<Vec<RecordedPass>>);

/// A pass that ran.
#[derive(Clone, Debug)]
pub struct RecordedPass {
    /// Name of the pass.
    pub name: &'static str,
    /// Text of the pass's output; `None` if the output equals the input.
    pub text: Option<String>,
    /// Specs of the plan's kernels, if the pass's output is a plan.
    pub specs: Option<Vec<KernelSpec>>,
}

impl Recording {
    /// Returns an observer that records each pass.
    pub fn watch(&self) -> impl FnMut(&'static Pass, &Ir, bool) + '_ {
        |pass, ir, changed| {
            let text = changed.then(|| Stop::text_of(ir, Some(pass.name)));
            let specs = match ir {
                Ir::Plan(plan) => Some(plan.kernels.clone()),
                Ir::Graph(_) | Ir::Draft(_) => None,
            };
            self.passes().push(RecordedPass { name: pass.name, text, specs });
        }
    }

    /// Returns the number of recorded passes.
    pub(crate) fn count(&self) -> usize {
        self.passes().len()
    }

    /// Removes all recorded passes except the first `count`. A compilation then continues after
    /// these passes.
    pub(crate) fn truncate(&self, count: usize) {
        self.passes().truncate(count);
    }

    /// Returns the recorded passes, and clears the record.
    pub fn take(&self) -> Vec<RecordedPass> {
        std::mem::take(&mut self.passes())
    }

    fn passes(&self) -> MutexGuard<'_, Vec<RecordedPass>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
