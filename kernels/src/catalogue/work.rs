//! How much a call has to do at the least: weight bytes to read and multiply-adds, for GB/s and GOP/s.

use crate::spec::KernelSpec;
use crate::spec::Shape;
use ixc_ir::format::Format;
use ixc_ir::kernel::{BufferKind, Kernel};

use super::inputs::evaluate;

/// What the multiply-adds of a kernel are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Products of 8-bit integers, summed in integers.
    Int8,
    /// Products of bf16, summed in f32 by tile instructions.
    Bf16,
    /// Fused multiply-adds of f32.
    F32,
}

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Bytes of weights, for attention of keys and values, that are read; where there are none, bytes of all buffers but
    /// scratch.
    pub bytes: u64,
    /// Multiply-adds of products; each counts as two operations.
    pub multiply_adds: u64,
    /// Of what.
    pub arithmetic: Arithmetic,
}

/// What a call with these dims does. A kernel without a spec has bytes alone.
pub fn work(kernel: &Kernel, spec: Option<&KernelSpec>, dims: &[i64]) -> Work {
    let size = |name: &str| {
        let buffer = kernel.buffers.iter().find(|buffer| buffer.name == name);
        buffer.and_then(|buffer| evaluate(&buffer.size, dims)).map_or(0, |size| size.max(0).unsigned_abs())
    };
    let product = |k: &u32, tile: &u32| {
        let rows = spec.and_then(KernelSpec::product).map_or(0, |(shape, format)| shape.rows(format, dims));
        u64::from(*k) * u64::from(*tile) * rows.max(0).unsigned_abs()
    };
    let kind = |x: &Format, shape: &Shape| match (x, shape) {
        (_, Shape::Tiles) => Arithmetic::Bf16,
        (Format::F32, _) => Arithmetic::F32,
        _ => Arithmetic::Int8,
    };
    match spec {
        Some(KernelSpec::Linear { x, k, tile, shape, .. }) => {
            Work { bytes: size("w"), multiply_adds: product(k, tile), arithmetic: kind(x, shape) }
        }
        Some(KernelSpec::Swiglu { x, k, tile, shape, .. }) => {
            Work { bytes: size("gate") + size("up"), multiply_adds: 2 * product(k, tile), arithmetic: kind(x, shape) }
        }
        Some(spec @ (KernelSpec::Attention { group, d, dv, .. } | KernelSpec::AttentionPart { group, d, dv, .. })) => {
            let rows = match (spec, dims) {
                (KernelSpec::Attention { rows, .. }, [_, _, groups, rest]) => i64::from(*rows) * groups + rest,
                _ => 1,
            };
            let blocks: i64 = dims.iter().take(2).sum();
            let queries = u64::from(*group) * rows.max(0).unsigned_abs();
            let multiply_adds = queries * u64::from(d + dv) * 32 * blocks.max(0).unsigned_abs();
            Work { bytes: size("keys") + size("values"), multiply_adds, arithmetic: Arithmetic::F32 }
        }
        // A row of the table is read, not all of it.
        Some(KernelSpec::Embed { format, n, .. }) => {
            Work { bytes: format.row_bytes(u64::from(*n)).unwrap_or(0), multiply_adds: 0, arithmetic: Arithmetic::F32 }
        }
        Some(KernelSpec::Gather { bytes }) => {
            Work { bytes: u64::from(*bytes), multiply_adds: 0, arithmetic: Arithmetic::F32 }
        }
        Some(KernelSpec::Combine { n, slots, .. }) => {
            let multiply_adds = u64::from(*n) * u64::from(*slots);
            Work { bytes: 4 * multiply_adds, multiply_adds, arithmetic: Arithmetic::F32 }
        }
        Some(KernelSpec::RopeHeads { .. } | KernelSpec::RopeAppend { .. }) => {
            let names: &[&str] = &["x", "k", "v", "norm", "y"];
            Work { bytes: names.iter().map(|name| size(name)).sum(), multiply_adds: 0, arithmetic: Arithmetic::F32 }
        }
        Some(
            KernelSpec::RmsNorm { .. }
            | KernelSpec::SumSquares { .. }
            | KernelSpec::RmsNormPiece { .. }
            | KernelSpec::Quantise { .. }
            | KernelSpec::Route { .. }
            | KernelSpec::Map { .. }
            | KernelSpec::AddBias { .. }
            | KernelSpec::AttentionCombine { .. }
            | KernelSpec::Softmax { .. },
        )
        | None => {
            let buffers = kernel.buffers.iter().filter(|buffer| buffer.kind != BufferKind::Scratch);
            let bytes = buffers.map(|buffer| size(&buffer.name)).sum();
            Work { bytes, multiply_adds: 0, arithmetic: Arithmetic::F32 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::inputs::dims;
    use crate::generate;
    use ixc_targets::Target;

    #[test]
    fn products_count_their_weights_and_multiply_adds() {
        let of = |text: &str, rows: u32| {
            let spec: KernelSpec = text.parse().unwrap();
            work(&generate(&spec, Target::AVX2).unwrap(), Some(&spec), &dims(&spec, rows))
        };
        let int8 = |bytes, multiply_adds| Work { bytes, multiply_adds, arithmetic: Arithmetic::Int8 };
        assert_eq!(of("linear format=q4_k k=512 tile=8 n=8 shape=gemv", 1), int8(8 * 288, 8 * 512));
        assert_eq!(of("linear format=q4_k k=512 tile=8 n=8 shape=gemm", 15), int8(8 * 288, 15 * 8 * 512));
        let swiglu = "swiglu gate=q8_0 up=q4_0 k=64 tile=32 n=32 out=a8_small rows=7 shape=gemm";
        assert_eq!(of(swiglu, 7), int8(32 * 2 * (34 + 18), 2 * 7 * 32 * 64));
        assert_eq!(of("attention_part group=2 d=16 dv=8 scale=1.0", 3).multiply_adds, 2 * 24 * 96);
        let rows = "attention group=2 d=16 dv=8 scale=1.0 heads=2 rows=4";
        assert_eq!([2, 3].map(|blocks| of(rows, blocks).multiply_adds), [4 * 2 * 24 * 64, 3 * 2 * 24 * 96]);
        assert_eq!(of("map function=add n=10", 1).bytes, 120);
    }
}
