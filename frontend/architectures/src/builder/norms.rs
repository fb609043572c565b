//! Norms of the residual stream, of heads, of parallel streams and of parts of rows.

use ixc_ir::format::Format;
use ixc_ir::graph::{Place, ValueId, WeightId};

use super::{Builder, HEAD_GAIN};
use crate::error::ArchError;
use crate::hyper::Norms;

/// 2^40. As an epsilon, its square absorbs the mean square of a row: their sum is 2^80, in f32 and
/// in f64.
const ROOT: f64 = (1u64 << 40) as f64;

impl Builder<'_> {
    /// Builds a norm of the residual stream, of the model's type: RMS norm or layer norm. The
    /// weight is `name`, if the model's norms have weights. Layer norms with weights have a bias if
    /// the file has one.
    pub fn norm(&mut self, x: ValueId, name: &str) -> Result<ValueId, ArchError> {
        let eps = self.hyper.norm_eps / self.hyper.scales.residual.powi(2);
        self.norm_of_rows(x, name, self.hyper.embedding_length, eps)
    }

    /// Builds a norm of the stream's type for rows of `width` elements, with the epsilon `eps`.
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

    /// Builds a norm of heads of `d` elements, each head with its own weight. It has the type of
    /// the stream's norms, without a bias.
    pub fn norm_of_each(&mut self, x: ValueId, name: &str, heads: u64, d: u64) -> Result<ValueId, ArchError> {
        let weight = self.vectors(name, &[heads, d])?;
        let x = if self.hyper.norms.are_layer_norms() { self.centre(x)? } else { x };
        let y = self.graph.rms_norm(x, weight, self.hyper.norm_eps);
        self.op_result(y)
    }

    /// Builds a layer norm of heads of `d` elements, each with its own weight and bias, and the
    /// epsilon `eps`. The file may have the weights of all heads as one vector, and the biases,
    /// too.
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
        // Heads are merged to rows below, so the biases of all heads are added as one vector.
        let place = Some(Place { file: tensor.file() as u32, offset: tensor.offset() });
        let bias = self.graph.weight(&name, Format::F32, &[heads * d], place);
        let bias = self.op_result(bias)?;
        self.used.insert(name);
        let y = self.merge_heads(y)?;
        let y = self.graph.add_bias(y, bias);
        let y = self.op_result(y)?;
        self.split_heads(y, heads)
    }

    /// Builds an RMS norm of a layer's queries, and multiplies each head by its gain. Files have
    /// one gain for each head; the weight repeats it for each element of the head ([`HEAD_GAIN`]).
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

    /// Does what [`Builder::rms_norm`] does, but with the epsilon `eps`.
    pub fn rms_norm_of(&mut self, x: ValueId, name: &str, len: u64, eps: f64) -> Result<ValueId, ArchError> {
        let weight = self.vector(self.stored_name(name), len)?;
        let y = self.graph.rms_norm(x, weight, eps);
        self.op_result(y)
    }

    /// Builds an RMS norm of each of `groups` equal parts of a row, each with its own weight. If
    /// the file has no weight `name`, returns the rows unchanged.
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

    /// Builds an RMS norm of each of `count` concatenated streams, each with its own weight. Files
    /// may have these weights as one vector.
    pub fn norm_of_streams(&mut self, x: ValueId, name: &str, count: u64, len: u64) -> Result<ValueId, ArchError> {
        let weight = self.split_vectors(name, count, len)?;
        let x = self.split_heads(x, count)?;
        let y = self.graph.rms_norm(x, weight, self.hyper.norm_eps);
        let y = self.op_result(y)?;
        self.merge_heads(y)
    }

    /// Returns the F32 weight `name` as `count` vectors of length `len`. Files may have it as one
    /// vector.
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

    /// Subtracts from each row or head the mean of its elements.
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

    /// Does what [`Builder::multiply_elements`] does for heads, each with its own vector.
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

    /// Returns the name of a norm's weight in the file, where `.weight` may be missing: in files of
    /// Falcon-H1 for `ffn_norm`, in files of PLaMo 3 for norms after blocks.
    fn stored_name<'n>(&self, name: &'n str) -> &'n str {
        name.strip_suffix(".weight").filter(|bare| self.has(bare) && !self.has(name)).unwrap_or(name)
    }
}
