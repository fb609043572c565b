//! Places of weights in files, and derived weights.

use ixc_ir::plan::{PlanWeight, WeightFile};

use crate::error::load::LoadError;
use crate::storage::memory::Mapped;
use crate::storage::weight_source::{DerivedTensors, WeightSource};

/// The files that weights are read from.
pub(super) struct Sources<'a> {
    pub(super) files: &'a [Mapped],
    pub(super) derived_tensors: DerivedTensors,
    /// The plan's own file.
    pub(super) own: Option<&'a Mapped>,
}

impl Sources<'_> {
    /// Returns a weight's bytes as stored, and the number of their file if they lie in one file.
    pub(super) fn source(&self, weight: &PlanWeight) -> Result<(Option<WeightSource>, usize), LoadError> {
        let (file, number) = match weight.file {
            WeightFile::Source(file) => (&self.files[file as usize], file as usize),
            WeightFile::Plan | WeightFile::Blocks { .. } => (self.own.ok_or(LoadError::NoWeights)?, self.files.len()),
            WeightFile::Derived(derived) => {
                return Ok((self.derived_tensors.part(derived, weight.offset, weight.bytes), usize::MAX));
            }
        };
        let place = weight.span().and_then(|bytes| file.region().part(weight.offset, bytes));
        Ok((place.map(WeightSource::Mapped), number))
    }
}
