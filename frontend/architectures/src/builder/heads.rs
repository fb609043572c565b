//! Products of heads, each with its own matrix.

use ixc_ir::graph::{Place, ValueId};

use super::Builder;
use crate::error::ArchError;

impl Builder<'_> {
    /// Builds the sum of each head.
    pub fn heads_sum(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.heads_sum(x);
        self.typed(y)
    }

    /// Multiplies each head of `x` by its own matrix of `name` (`to` rows of `from`).
    pub fn heads_linear(&mut self, x: ValueId, name: &str, [heads, to, from]: [u64; 3]) -> Result<ValueId, ArchError> {
        let weight = self.weight(&format!("{name}.weight"), &[heads, to, from])?;
        let y = self.graph.dequantise(weight).and_then(|w| self.graph.heads_matmul(x, w));
        let y = self.typed(y)?;
        self.scaled(y, name)
    }

    /// Does what [`Builder::heads_linear`] does. In the file, the rows of all heads may form one
    /// matrix.
    pub fn rows_linear(&mut self, x: ValueId, stem: &str, [heads, to, from]: [u64; 3]) -> Result<ValueId, ArchError> {
        let name = format!("{stem}.weight");
        let tensor = self.gguf.require_tensor(&name)?;
        let shape = [heads, to, from];
        match tensor.dims().len() {
            0..=2 => self.check_shape(tensor, &[heads.saturating_mul(to), from])?,
            _ => self.check_shape(tensor, &shape)?,
        }
        let format = self.gguf.require_format(tensor)?;
        let place = Some(Place { file: tensor.file() as u32, offset: tensor.offset() });
        let weight = self.graph.weight(&name, format, &shape, place);
        let weight = self.typed(weight)?;
        self.used.insert(name);
        let y = self.graph.dequantise(weight).and_then(|w| self.graph.heads_matmul(x, w));
        let y = self.typed(y)?;
        self.scaled(y, stem)
    }

    /// Does what [`Builder::heads_linear`] does, with a part of `tensor` as a weight called `name`.
    /// The part follows `before` rows of each head.
    pub fn heads_part(
        &mut self,
        x: ValueId,
        [name, tensor]: [&str; 2],
        [heads, to, from]: [u64; 3],
        before: u64,
    ) -> Result<ValueId, ArchError> {
        let weight = self.part(name, tensor, [heads, to, from], [before + to, before])?;
        let y = self.graph.dequantise(weight).and_then(|w| self.graph.heads_matmul(x, w));
        self.typed(y)
    }
}
