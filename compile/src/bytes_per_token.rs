//! Memory traffic of decode: the bytes that every token reads, and the bound on tokens per second
//! that follows from memory bandwidth.
//!
//! ```
//! let model = ixc_compile::model::Model::new(ixc_compile::demo::open()?)?;
//! let traffic = ixc_compile::bytes_per_token::Traffic::from_module(&model.arch.module);
//! let file: u64 = model.gguf.tensors().map(|tensor| tensor.bytes()).sum();
//! assert!(0 < traffic.weights && traffic.weights <= file);
//! # Ok::<(), ixc_compile::Error>(())
//! ```

use std::collections::HashSet;

use ixc_ir::graph::{DefUse, Dim, Field, Module, Op, OpKind, Operand, Type, ValueId, Weight, view};
use serde::Serialize;

/// Min bytes that a token of decode reads, in the model file's formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Bytes of weights that a token reads: all matrices, one row of an embedding table, and the
    /// experts to which the token is routed.
    pub weights: u64,
    /// Bytes of keys and values that a token reads for each position in the KV cache.
    pub cache_per_position: u64,
}

impl Traffic {
    /// Returns the traffic of a model's graph, before or after passes.
    pub fn from_module(module: &Module) -> Traffic {
        let fields = module.states.iter().flat_map(|state| state.fields.iter().map(|field| (field, state.every)));
        let positions = fields.filter(|(field, _)| field.dims.iter().any(|dim| dim.fixed().is_none()));
        let bytes = |(field, every): (&Field, u64)| {
            let elements = field.dims.iter().filter_map(Dim::fixed).fold(1, u64::saturating_mul);
            field.format.row_bytes(elements).unwrap_or(0) / every.max(1)
        };
        let mut traffic = Traffic { weights: 0, cache_per_position: positions.map(bytes).fold(0, u64::saturating_add) };
        for function in &module.functions {
            let ty = |value: ValueId| function.ty(value);
            let def_use = DefUse::from_function(function);
            // Each weight counts once. If a second op reads it, such as another norm, the weight is
            // in the processor's cache. A tied embedding table counts twice: for one row, and as
            // the whole output matrix.
            let mut read = HashSet::new();
            for op in &function.ops {
                // A dequantised weight counts at its use, where the number of experts is known. A
                // prefetch does not count, because other ops read the bytes that it announces.
                if let OpKind::Dequantise | OpKind::ExpertPrefetch = op.kind {
                    continue;
                }
                for operand in &op.operands {
                    let weight = match operand {
                        Operand::Weight(weight) => Some(*weight),
                        Operand::Value(value) => def_use.defining(function, *value).map(|view::Dequantise { w }| w),
                        Operand::State(_) | Operand::Absent => None,
                    };
                    let weight = weight.filter(|weight| read.insert((*weight, op.kind == OpKind::Embed)));
                    if let Some(weight) = weight.and_then(|weight| module.weights.get(weight.index())) {
                        traffic.weights += bytes_read(op, weight, ty);
                    }
                }
            }
        }
        traffic
    }

    /// Returns the number of bytes that a token reads if `positions` tokens precede it.
    pub fn at(&self, positions: u64) -> u64 {
        self.weights.saturating_add(self.cache_per_position.saturating_mul(positions))
    }
}

/// Returns the number of bytes of a weight that an op reads for one token.
fn bytes_read<'t>(op: &Op, weight: &Weight, ty: impl Fn(ValueId) -> &'t Type) -> u64 {
    let row = weight.shape.last().and_then(|&len| weight.format.row_bytes(len)).unwrap_or(0);
    let rows = weight.shape.iter().rev().skip(1).fold(1, |product: u64, &dim| product.saturating_mul(dim));
    match op.kind {
        OpKind::Embed | OpKind::RouteListed => row,
        OpKind::ExpertMatmul | OpKind::ExpertSwiglu | OpKind::ExpertDown => {
            let used = op.operand("ids").value().and_then(|ids| ty(ids).dims().last()?.fixed());
            let experts = weight.shape.first().copied().unwrap_or(1).max(1);
            row.saturating_mul(rows / experts).saturating_mul(used.unwrap_or(experts))
        }
        _ => row.saturating_mul(rows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{CompileOptions, fuse};
    use crate::model::Model;

    #[test]
    fn passes_do_not_change_bytes_per_token() {
        let model = Model::new(crate::demo::open().unwrap()).unwrap();
        let traffic = Traffic::from_module(&model.arch.module);
        let hyper = &model.arch.hyper;
        let rows: u64 = hyper.layers.iter().map(|layer| layer.kv_heads * (layer.key_length + layer.value_length)).sum();
        assert_eq!(traffic.cache_per_position, 2 * rows);
        let table = model.gguf.tensor("token_embd.weight").unwrap();
        // Only the experts that one token uses count.
        let experts = hyper.layers.first().and_then(|layer| layer.experts.as_ref());
        let (used, count) = experts.map_or((1, 1), |experts| (experts.used, experts.count));
        let read = |name: &str, bytes: u64| if name.contains("_exps") { bytes * used / count } else { bytes };
        let all: u64 = model.gguf.tensors().map(|tensor| read(tensor.name(), tensor.bytes())).sum();
        let embedding_row = table.bytes() / hyper.vocabulary;
        // A tied embedding table is also the output matrix.
        let tied = model.gguf.tensor("output.weight").is_none();
        let expected = if tied { all + embedding_row } else { all - table.bytes() + embedding_row };
        assert_eq!(traffic.weights, expected);
        let streamed = CompileOptions { expert_memory: Some(0), ..CompileOptions::default() };
        for options in [CompileOptions::default(), streamed] {
            assert_eq!(Traffic::from_module(&fuse(&model, &options).unwrap()), traffic);
        }
        assert_eq!(traffic.at(3), traffic.weights + 3 * traffic.cache_per_position);
    }

    #[test]
    fn expert_bytes_count_by_experts_used_per_token() {
        let text = "
weight @table : f32[10, 256]
weight @router : f32[4, 256]
weight @down : q8_0[4, 256, 256]

func @step(%ids: i32[T], %pos: i32[T], %rows: i32[L]) -> (f32[L, 256]) {
  %x = embed %ids, @table
  %r = dequantise @router
  %s = matmul %x, %r
  %e, %p = route %s, _, _ {top_k = 2, score = softmax, groups = 1, groups_kept = 1, normalise = true, scale = 1.0}
  %d = dequantise @down
  %y = expert.matmul %x, %e, %d
  %z = expert.combine %y, %p
  %o = take_rows %z, %rows
  return %o
}
";
        let module = ixc_ir::graph::parse::parse(text).unwrap();
        let expert = 256 * 256 / 32 * 34;
        assert_eq!(Traffic::from_module(&module).weights, 256 * 4 + 4 * 256 * 4 + 2 * expert);
    }
}
