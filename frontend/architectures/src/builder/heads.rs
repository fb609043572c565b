//! Products in which each head has its own matrix.

use ixc_ir::graph::{Place, ValueId};

use super::{Builder, Matrices};
use crate::error::ArchError;

impl Builder<'_> {
    /// Sums the elements of each head.
    pub fn heads_sum(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.heads_sum(x);
        self.op_result(y)
    }

    /// Multiplies each head of `x` by its own matrix in the tensor `name`.
    pub fn heads_linear(&mut self, x: ValueId, name: &str, of: Matrices) -> Result<ValueId, ArchError> {
        let weight = self.weight(&format!("{name}.weight"), &of.shape())?;
        let y = self.graph.dequantise(weight).and_then(|w| self.graph.heads_matmul(x, w));
        let y = self.op_result(y)?;
        self.scale_product(y, name)
    }

    /// Does what [`Builder::heads_linear`] does, but the tensor may also be one matrix that stacks
    /// the rows of all heads.
    pub fn rows_linear(&mut self, x: ValueId, stem: &str, of: Matrices) -> Result<ValueId, ArchError> {
        let name = format!("{stem}.weight");
        let tensor = self.gguf.require_tensor(&name)?;
        let shape = of.shape();
        match tensor.dims().len() {
            0..=2 => self.check_shape(tensor, &[of.count.saturating_mul(of.rows), of.columns])?,
            _ => self.check_shape(tensor, &shape)?,
        }
        let format = self.gguf.require_format(tensor)?;
        let place = Some(Place { file: tensor.file() as u32, offset: tensor.offset() });
        let weight = self.graph.weight(&name, format, &shape, place);
        let weight = self.op_result(weight)?;
        self.used.insert(name);
        let y = self.graph.dequantise(weight).and_then(|w| self.graph.heads_matmul(x, w));
        let y = self.op_result(y)?;
        self.scale_product(y, stem)
    }

    /// Does what [`Builder::heads_linear`] does, with rows of `tensor` as a weight called `name`.
    /// In each head's matrix, these rows follow the first `before` rows.
    pub fn heads_part(
        &mut self,
        x: ValueId,
        name: &str,
        tensor: &str,
        of: Matrices,
        before: u64,
    ) -> Result<ValueId, ArchError> {
        let weight = self.part(name, tensor, of, before + of.rows, before)?;
        let y = self.graph.dequantise(weight).and_then(|w| self.graph.heads_matmul(x, w));
        self.op_result(y)
    }
}
