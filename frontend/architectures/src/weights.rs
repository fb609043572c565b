//! Bytes of a model's weights, for the reference interpreter. They are slices of the mapped files.

use std::borrow::Cow;

use ixc_ir::graph::interpret::{SourceError, WeightSource};
use ixc_ir::graph::{Module, Weight, WeightId};
use ixc_model_files::gguf::Gguf;

/// Bytes of the weights of `module`, in the file that the module was built from.
#[derive(Clone, Copy, Debug)]
pub struct FileWeights<'a> {
    gguf: &'a Gguf,
    module: &'a Module,
}

impl<'a> FileWeights<'a> {
    /// Returns a source of weights that looks them up in `gguf` by name. Passes may therefore have
    /// changed other parts of the module.
    pub fn new(gguf: &'a Gguf, module: &'a Module) -> FileWeights<'a> {
        FileWeights { gguf, module }
    }
}

impl WeightSource for FileWeights<'_> {
    fn bytes(&self, weight: WeightId) -> Result<Cow<'_, [u8]>, SourceError> {
        let weight = self.module.weights.get(weight.index()).ok_or("the module has no weight with this number")?;
        let whole = self.whole(weight)?;
        match &weight.choice.shard {
            None => Ok(whole),
            Some(shard) => {
                let slice = shard.cut(&weight.shape, weight.stored_format(), &whole);
                Ok(Cow::Owned(
                    slice.ok_or("the tensor has fewer bytes than the whole weight of which a rank has a slice")?,
                ))
            }
        }
    }
}

impl FileWeights<'_> {
    /// Returns the bytes of a whole weight. A rank may use only a part of them.
    fn whole(&self, weight: &Weight) -> Result<Cow<'_, [u8]>, SourceError> {
        let bytes = self.gguf.tensor_data(self.gguf.require_tensor(weight.tensor())?);
        let shape = weight.whole_shape();
        let (Some(part), [.., rows, columns]) = (&weight.part, &shape[..]) else {
            // A vector may use only the first numbers of a longer tensor (`Builder::divisors`).
            let own = match &shape[..] {
                [len] => weight.stored_format().row_bytes(*len).map_or(usize::MAX, |own| own as usize),
                _ => usize::MAX,
            };
            return Ok(match bytes {
                Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[..own.min(bytes.len())]),
                Cow::Owned(mut bytes) => {
                    bytes.truncate(own);
                    Cow::Owned(bytes)
                }
            });
        };
        let row = weight
            .stored_format()
            .row_bytes(*columns)
            .ok_or("the rows of the weight are not whole blocks of its format")? as usize;
        let (from, count) = (part.from as usize * row, *rows as usize * row);
        let matrices = bytes.chunks_exact(part.rows as usize * row);
        let parts =
            matrices.map(|matrix| matrix.get(from..from + count).ok_or("the tensor does not have the requested rows"));
        Ok(Cow::Owned(parts.collect::<Result<Vec<_>, _>>()?.concat()))
    }
}
