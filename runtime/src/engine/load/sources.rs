//! Lookup of a weight's stored bytes, in a mapped file or in a derived tensor.

use ixc_ir::plan::{PlanWeight, WeightFile};

use crate::error::load::LoadError;
use crate::storage::memory::Mapped;
use crate::storage::weight_source::{DerivedTensors, WeightSource};

/// The files and derived tensors that weights are read from.
pub(super) struct Sources<'a> {
    pub(super) files: &'a [Mapped],
    pub(super) derived_tensors: DerivedTensors,
    /// The plan's own file, if it contains weights.
    pub(super) own: Option<&'a Mapped>,
}

impl Sources<'_> {
    /// Returns the source of a weight's stored bytes, and the number of the file that contains
    /// them. The number is `usize::MAX` for a derived tensor. The source is `None` if the bytes lie
    /// outside the file or the derived tensor.
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
