//! The bytes of a model's weights, for the reference interpreter: slices of the mapped files.

use std::borrow::Cow;

use ixc_ir::graph::interpret::{SourceError, WeightSource};
use ixc_ir::graph::{Module, WeightId};

use crate::gguf::Gguf;

/// The weights of `module` in the file that it was built from.
#[derive(Clone, Copy, Debug)]
pub struct FileWeights<'a> {
    gguf: &'a Gguf,
    module: &'a Module,
}

impl<'a> FileWeights<'a> {
    /// Weights are looked up in `gguf` by name, so passes may have changed the rest of the module.
    pub fn new(gguf: &'a Gguf, module: &'a Module) -> FileWeights<'a> {
        FileWeights { gguf, module }
    }
}

impl WeightSource for FileWeights<'_> {
    fn bytes(&self, weight: WeightId) -> Result<Cow<'_, [u8]>, SourceError> {
        let weight = self.module.weights.get(weight.index()).ok_or("the module has no such weight")?;
        Ok(self.gguf.tensor_data(self.gguf.require_tensor(&weight.name)?))
    }
}
