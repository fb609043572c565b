//! Norms of the stream, of heads, of streams and of parts of rows, with and without weights.

use ixc_ir::format::Format;
use ixc_ir::graph::{Place, ValueId, WeightId};

use super::{Builder, HEAD_GAIN};
use crate::error::ArchError;
use crate::hyper::Norms;

/// 2^40. Its square absorbs a row's mean square: the sum is 2^80 in f32 and in f64.
const ROOT: f64 = (1u64 << 40) as f64;

impl Builder<'_> {
    /// Builds a norm of the residual stream, with the weight `name` if the model's norms have
    /// weights. It is an RMS norm, or a layer norm, with a bias if the file has one.
    pub fn norm(&mut self, x: ValueId, name: &str) -> Result<ValueId, ArchError> {
        let eps = self.hyper.norm_eps / self.hyper.scales.residual.powi(2);
        self.norm_of_rows(x, name, self.hyper.embedding_length, eps)
    }

    /// Builds a norm of the same type for rows of another length, with the epsilon `eps`.
    pub fn norm_of_rows(&mut self, x: ValueId, name: &str, width: u64, eps: f64) -> Result<ValueId, ArchError> {
        let name = self.stored_name(name);
        let norms = self.hyper.norms;
        let weight = if norms.have_weights() { Some(self.vector(name, width)?) } else { None };
        let x = if norms.are_layer_norms() { self.centre(x)? } else { x };
        let y = self.graph.rms_norm(x, weight, eps);
        let y = self.op_result(y)?;
        match norms {
            Norms::Layer => self.optional_bias(y, &format!("{}.bias", name.trim_end_matches(".weight")), width),
            Norms::Rms | Norms::UnweightedLayer | Norms::UnweightedRms => Ok(y),
        }
    }

    /// Builds a norm of heads of `d` elements, each with its own weight. The type is that of the
    /// stream's norms, without a bias.
    pub fn norm_of_each(&mut self, x: ValueId, name: &str, heads: u64, d: u64) -> Result<ValueId, ArchError> {
        let weight = self.vectors(name, &[heads, d])?;
        let x = if self.hyper.norms.are_layer_norms() { self.centre(x)? } else { x };
        let y = self.graph.rms_norm(x, weight, self.hyper.norm_eps);
        self.op_result(y)
    }

    /// Builds a layer norm of heads of `d` elements, each with its own weight and bias, with the
    /// epsilon `eps`. Files may have one vector for all heads.
    pub fn layer_norm_of_each(
        &mut self,
        x: ValueId,
        name: &str,
        heads: u64,
        d: u64,
        eps: f64,
    ) -> Result<ValueId, ArchError> {
        let weight = self.split_vectors(&format!("{name}.weight"), heads, d)?;
        let x = self.centre(x)?;
        let y = self.graph.rms_norm(x, weight, eps);
        let y = self.op_result(y)?;
        let name = format!("{name}.bias");
        let Some(tensor) = self.gguf.tensor(&name) else { return Ok(y) };
        if tensor.tensor_type().name != "F32" {
            let (path, found) = (self.path(), tensor.tensor_type());
            return Err(ArchError::VectorType { path, tensor: name.into(), found });
        }
        match tensor.dims().len() {
            1 => self.check_shape(tensor, &[heads * d])?,
            _ => self.check_shape(tensor, &[heads, d])?,
        }
        // The concatenated biases of all heads are the bias of a row.
        let place = Some(Place { file: tensor.file() as u32, offset: tensor.offset() });
        let bias = self.graph.weight(&name, Format::F32, &[heads * d], place);
        let bias = self.op_result(bias)?;
        self.used.insert(name);
        let y = self.merge_heads(y)?;
        let y = self.graph.add_bias(y, bias);
        let y = self.op_result(y)?;
        self.split_heads(y, heads)
    }

    /// Builds an RMS norm of a layer's queries, and multiplies each head by a number. Files have
    /// each number once, graphs once for each element of the head ([`HEAD_GAIN`]).
    pub fn norm_with_gains(&mut self, x: ValueId, layer: usize, heads: u64, d: u64) -> Result<ValueId, ArchError> {
        self.leave_out(&format!("blk.{layer}.attn_q_norm.weight"));
        let weight = self.vectors(&format!("blk.{layer}.{HEAD_GAIN}.weight"), &[heads, d])?;
        let y = self.graph.rms_norm(x, weight, self.hyper.norm_eps);
        self.op_result(y)
    }

    /// Builds an RMS norm along the last dimension, of length `len`, with the weight `name`.
    pub fn rms_norm(&mut self, x: ValueId, name: &str, len: u64) -> Result<ValueId, ArchError> {
        self.rms_norm_of(x, name, len, self.hyper.norm_eps)
    }

    /// Does what [`Builder::rms_norm`] does, with the epsilon `eps`.
    pub fn rms_norm_of(&mut self, x: ValueId, name: &str, len: u64, eps: f64) -> Result<ValueId, ArchError> {
        let weight = self.vector(self.stored_name(name), len)?;
        let y = self.graph.rms_norm(x, weight, eps);
        self.op_result(y)
    }

    /// Builds an RMS norm of each of `groups` equal parts of a row, with separate weights. Without
    /// a weight `name` in the file, returns the rows unchanged.
    pub fn grouped_norm(&mut self, x: ValueId, name: &str, groups: u64, len: u64) -> Result<ValueId, ArchError> {
        if !self.has(name) {
            return Ok(x);
        }
        if groups == 1 {
            return self.rms_norm(x, name, len);
        }
        let weight = self.vectors(name, &[groups, len])?;
        let x = self.split_heads(x, groups)?;
        let y = self.graph.rms_norm(x, weight, self.hyper.norm_eps);
        let y = self.op_result(y)?;
        self.merge_heads(y)
    }

    /// Builds an RMS norm of each of `count` concatenated streams, with separate weights, which
    /// files may have as one vector.
    pub fn norm_of_streams(&mut self, x: ValueId, name: &str, count: u64, len: u64) -> Result<ValueId, ArchError> {
        let weight = self.split_vectors(name, count, len)?;
        let x = self.split_heads(x, count)?;
        let y = self.graph.rms_norm(x, weight, self.hyper.norm_eps);
        let y = self.op_result(y)?;
        self.merge_heads(y)
    }

    /// Returns `count` F32 vectors `name` of length `len`, which files may have as one vector.
    fn split_vectors(&mut self, name: &str, count: u64, len: u64) -> Result<WeightId, ArchError> {
        let tensor = self.gguf.require_tensor(name)?;
        if tensor.dims() != [count.saturating_mul(len)] || tensor.tensor_type().name != "F32" {
            return self.vectors(name, &[count, len]);
        }
        if let Some(id) = self.graph.find_weight(name) {
            return Ok(id);
        }
        let place = Some(Place { file: tensor.file() as u32, offset: tensor.offset() });
        let weight = self.graph.weight(name, Format::F32, &[count, len], place);
        self.used.insert(name.to_owned());
        self.op_result(weight)
    }

    /// Subtracts their means from rows or heads.
    pub fn centre(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.centre(x);
        self.op_result(y)
    }

    /// Multiplies rows by the vector `name`, element by element. It is built as a norm with an
    /// epsilon so large that the rows' mean squares are negligible.
    pub fn multiply_elements(&mut self, x: ValueId, name: &str, len: u64) -> Result<ValueId, ArchError> {
        let y = self.rms_norm_of(x, name, len, ROOT * ROOT)?;
        self.scale(y, ROOT)
    }

    /// Does what [`Builder::multiply_elements`] does, for heads with a vector each.
    pub fn multiply_head_elements(&mut self, x: ValueId, name: &str, heads: u64, d: u64) -> Result<ValueId, ArchError> {
        let weight = self.split_vectors(name, heads, d)?;
        let y = self.graph.rms_norm(x, weight, ROOT * ROOT);
        let y = self.op_result(y)?;
        self.scale(y, ROOT)
    }

    /// Builds an RMS norm along the last dimension, without a weight.
    pub fn plain_norm(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        self.plain_norm_of(x, self.hyper.norm_eps)
    }

    /// Builds an RMS norm without a weight, with the epsilon `eps`.
    pub fn plain_norm_of(&mut self, x: ValueId, eps: f64) -> Result<ValueId, ArchError> {
        let y = self.graph.rms_norm(x, None, eps);
        self.op_result(y)
    }

    /// Returns the name of a norm's weight in the file: files of Falcon-H1 have `ffn_norm` without
    /// `.weight`, and files of PLaMo 3 have norms after blocks without it.
    fn stored_name<'n>(&self, name: &'n str) -> &'n str {
        name.strip_suffix(".weight").filter(|bare| self.has(bare) && !self.has(name)).unwrap_or(name)
    }
}
