//! Weights, looked up by name and checked for their shapes.

use ixc_ir::graph::{Part, Place, WeightId};
use ixc_model_files::gguf::Tensor;

use super::Builder;
use crate::error::ArchError;

/// Shape of a weight with several matrices of equal size, one for each head or expert.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrices {
    /// Number of matrices.
    pub count: u64,
    /// Rows of each matrix: elements of its product.
    pub rows: u64,
    /// Columns of each matrix: elements of its input.
    pub columns: u64,
}

impl Matrices {
    /// Returns the dimensions, outermost first.
    pub(super) fn shape(self) -> [u64; 3] {
        [self.count, self.rows, self.columns]
    }
}

impl Builder<'_> {
    /// Returns the weight `name`, which must have `shape` (outermost first).
    pub fn weight(&mut self, name: &str, shape: &[u64]) -> Result<WeightId, ArchError> {
        let tensor = self.gguf.require_tensor(name)?;
        self.add_weight(tensor, shape)
    }

    /// Returns the F32 vector `name` of `len` elements.
    pub fn vector(&mut self, name: &str, len: u64) -> Result<WeightId, ArchError> {
        self.vectors(name, &[len])
    }

    /// Returns the F32 vectors `name`, with this shape.
    pub fn vectors(&mut self, name: &str, shape: &[u64]) -> Result<WeightId, ArchError> {
        let tensor = self.gguf.require_tensor(name)?;
        if tensor.tensor_type().name != "F32" {
            let (path, found) = (self.path(), tensor.tensor_type());
            return Err(ArchError::VectorType { path, tensor: name.into(), found });
        }
        self.add_weight(tensor, shape)
    }

    /// Returns the F32 vector `name`, if the file has it.
    pub fn optional_vector(&mut self, name: &str, len: u64) -> Result<Option<WeightId>, ArchError> {
        if self.has(name) { self.vector(name, len).map(Some) } else { Ok(None) }
    }

    /// Returns whether the file has a tensor `name`.
    pub fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// Accepts a tensor that files may have although no op uses it. Its shape must be `shape`.
    pub fn accept_unused(&mut self, name: &str, shape: &[u64]) -> Result<(), ArchError> {
        if let Some(tensor) = self.gguf.tensor(name) {
            self.check_shape(tensor, shape)?;
            self.used.insert(name.to_owned());
        }
        Ok(())
    }

    /// Returns the number of rows of the matrix `name`, if the file has it.
    pub fn rows(&self, name: &str) -> Option<u64> {
        self.gguf.tensor(name)?.dims().get(1).copied()
    }

    /// Returns the number in the F32 tensor `name`, if the file has it.
    pub fn optional_scalar(&mut self, name: &str) -> Result<Option<f64>, ArchError> {
        let Some(tensor) = self.gguf.tensor(name) else { return Ok(None) };
        let bytes = self.gguf.tensor_data(tensor);
        let found = <[u8; 4]>::try_from(&*bytes).ok().filter(|_| tensor.tensor_type().name == "F32");
        self.used.insert(name.to_owned());
        match found.map(f32::from_le_bytes) {
            Some(number) if number.is_finite() => Ok(Some(number.into())),
            Some(number) => Err(ArchError::Scalar { path: self.path(), tensor: name.into(), found: number }),
            None => {
                self.vector(name, 1)?;
                Err(ArchError::Scalar { path: self.path(), tensor: name.into(), found: f32::NAN })
            }
        }
    }

    /// Returns the number in the F32 tensor `name`.
    pub fn scalar(&mut self, name: &str) -> Result<f64, ArchError> {
        self.gguf.require_tensor(name)?;
        Ok(self.optional_scalar(name)?.unwrap_or_default())
    }

    /// Returns rows of `tensor` as a weight called `name`. Each matrix of the tensor has `rows`
    /// rows; the weight takes `of.rows` of them, from row `from` on.
    pub(super) fn part(
        &mut self,
        name: &str,
        tensor: &str,
        of: Matrices,
        rows: u64,
        from: u64,
    ) -> Result<WeightId, ArchError> {
        if let Some(id) = self.graph.find_weight(name) {
            return Ok(id);
        }
        let found = self.gguf.require_tensor(tensor)?;
        // The tensor may be one matrix that stacks the rows of all experts or heads.
        match found.dims() {
            [_, _] => self.check_shape(found, &[of.count.saturating_mul(rows), of.columns])?,
            _ => self.check_shape(found, &Matrices { rows, ..of }.shape())?,
        }
        let format = self.gguf.require_format(found)?;
        let place = Some(Place { file: found.file() as u32, offset: found.offset() });
        let part = Part { tensor: tensor.to_owned(), rows, from };
        let weight = self.graph.weight_part(name, format, &of.shape(), place, Some(part));
        self.used.insert(tensor.to_owned());
        self.op_result(weight)
    }

    pub(super) fn check_shape(&self, tensor: &Tensor, shape: &[u64]) -> Result<(), ArchError> {
        // Dimensions of 1 are ignored, as they do not affect the layout. For example, ggml pads to
        // four dimensions, and a convolution's taps may be matrices of one row.
        let found = tensor.dims();
        let expected: Vec<u64> = shape.iter().rev().copied().collect();
        let [significant, required] = [found, &expected].map(|dims| dims.iter().filter(|&&dim| dim != 1));
        if significant.eq(required) {
            return Ok(());
        }
        Err(ArchError::Shape {
            path: self.path(),
            tensor: tensor.name().into(),
            found: found.into(),
            expected: expected.into(),
        })
    }

    pub(super) fn add_weight(&mut self, tensor: &Tensor, shape: &[u64]) -> Result<WeightId, ArchError> {
        self.check_shape(tensor, shape)?;
        if let Some(id) = self.graph.find_weight(tensor.name()) {
            return Ok(id);
        }
        let format = self.gguf.require_format(tensor)?;
        let place = Some(Place { file: tensor.file() as u32, offset: tensor.offset() });
        let weight = self.graph.weight(tensor.name(), format, shape, place);
        self.used.insert(tensor.name().to_owned());
        self.op_result(weight)
    }
}
