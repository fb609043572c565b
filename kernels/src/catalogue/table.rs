//! The built-in rows: one line each. Sizes are those of a dense model with 1 billion parameters (width 2048, 5632 inside, heads of
//! 64) and of a mixture of experts with 4 billion (2048, experts of 768, heads of 128), in tiles as the schedule makes them.

use crate::spec::KernelSpec;
use crate::text::SpecError;

/// A named kernel.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// Rows that it is run with where nothing else is asked for; see [`super::inputs::dims`].
    pub rows: u32,
    /// The text of its spec.
    pub text: &'static str,
}

impl Row {
    /// Its spec.
    ///
    /// # Errors
    /// None: a test reads them all.
    pub fn spec(&self) -> Result<KernelSpec, SpecError> {
        self.text.parse()
    }
}

/// The row with this name.
pub fn find(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}

const fn row(name: &'static str, rows: u32, text: &'static str) -> Row {
    Row { name, rows, text }
}

/// The rows.
#[rustfmt::skip] // One line each.
pub static ROWS: &[Row] = &[
    // Matrix products of every weight format.
    row("gemv_f32", 1, "linear format=f32 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_f16", 1, "linear format=f16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_bf16", 1, "linear format=bf16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q8_0", 1, "linear format=q8_0 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q4_0", 1, "linear format=q4_0 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q4_k", 1, "linear format=q4_k k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q5_k", 1, "linear format=q5_k k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q6_k", 1, "linear format=q6_k k=2048 tile=32 n=2048 shape=gemv"),
    row("gemm_f32", 96, "linear format=f32 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_f16", 96, "linear format=f16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_bf16", 96, "linear format=bf16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q8_0", 96, "linear format=q8_0 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q4_0", 96, "linear format=q4_0 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q4_k", 96, "linear format=q4_k k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q5_k", 96, "linear format=q5_k k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q6_k", 96, "linear format=q6_k k=2048 tile=32 n=2048 shape=gemm"),
    // The end of a dense feed-forward part, with its residual; a product with bias; the end of an expert.
    row("gemv_q6_k_ffn_down", 1, "linear format=q6_k k=5632 tile=32 n=2048 residual shape=gemv"),
    row("gemm_q6_k_ffn_down", 96, "linear format=q6_k k=5632 tile=32 n=2048 residual shape=gemm"),
    row("gemv_q8_0_bias", 1, "linear format=q8_0 k=2048 tile=32 n=2048 bias shape=gemv"),
    row("gemm_q8_0_bias", 96, "linear format=q8_0 k=2048 tile=32 n=2048 bias shape=gemm"),
    row("gemv_q4_k_expert_down", 1, "linear format=q4_k k=768 tile=32 n=2048 shape=gemv"),
    row("gemm_q4_k_expert_down", 24, "linear format=q4_k k=768 tile=32 n=2048 shape=gemm"),
    // Packed weights: dot products for few rows, groups of 12 rows, tile products.
    row("gemv_f16_r16", 1, "linear format=f16_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_bf16_r16", 1, "linear format=bf16_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q8_0_r16", 1, "linear format=q8_0_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q4_0_r16", 1, "linear format=q4_0_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q4_k_r16", 1, "linear format=q4_k_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q5_k_r16", 1, "linear format=q5_k_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q6_k_r16", 1, "linear format=q6_k_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemm_f16_r16", 96, "linear format=f16_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_bf16_r16", 96, "linear format=bf16_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q8_0_r16", 96, "linear format=q8_0_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q4_0_r16", 96, "linear format=q4_0_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q4_k_r16", 96, "linear format=q4_k_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q5_k_r16", 96, "linear format=q5_k_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q6_k_r16", 96, "linear format=q6_k_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("tiles_f16_r16", 48, "linear format=f16_r16 x=bf16x2 k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_bf16_r16", 48, "linear format=bf16_r16 x=bf16x2 k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_q8_0_r16", 48, "linear format=q8_0_r16 x=a8_small_tile k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_q4_0_r16", 48, "linear format=q4_0_r16 x=a8_small_tile k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_q4_k_r16", 48, "linear format=q4_k_r16 x=a8_super_tile k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_q5_k_r16", 48, "linear format=q5_k_r16 x=a8_super_tile k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_q6_k_r16", 48, "linear format=q6_k_r16 x=a8_super_tile k=2048 tile=64 n=2048 shape=tiles"),
    row("gemv_swiglu_q4_k_r16", 1, "swiglu gate=q4_k_r16 up=q4_k_r16 k=2048 tile=256 n=5632 out=a8_super rows=5 shape=gemv"),
    row("gemm_swiglu_q4_k_r16", 48, "swiglu gate=q4_k_r16 up=q4_k_r16 k=2048 tile=256 n=5632 out=a8_super rows=48 shape=gemm"),
    row("tiles_swiglu_q4_k_r16", 32, "swiglu gate=q4_k_r16 up=q4_k_r16 x=a8_super_tile k=768 tile=256 n=768 out=a8_super_tile rows=32 shape=tiles"),
    // Gate and up of every weight format.
    row("gemv_swiglu_f32", 1, "swiglu gate=f32 up=f32 k=2048 tile=32 n=5632 out=f32 rows=5 shape=gemv"),
    row("gemv_swiglu_f16", 1, "swiglu gate=f16 up=f16 k=2048 tile=32 n=5632 out=f32 rows=5 shape=gemv"),
    row("gemv_swiglu_bf16", 1, "swiglu gate=bf16 up=bf16 k=2048 tile=32 n=5632 out=f32 rows=5 shape=gemv"),
    row("gemv_swiglu_q8_0", 1, "swiglu gate=q8_0 up=q8_0 k=2048 tile=32 n=5632 out=a8_small rows=5 shape=gemv"),
    row("gemv_swiglu_q4_0", 1, "swiglu gate=q4_0 up=q4_0 k=2048 tile=32 n=5632 out=a8_small rows=5 shape=gemv"),
    row("gemv_swiglu_q4_k", 1, "swiglu gate=q4_k up=q4_k k=2048 tile=256 n=5632 out=a8_super rows=5 shape=gemv"),
    row("gemv_swiglu_q5_k", 1, "swiglu gate=q5_k up=q5_k k=2048 tile=256 n=5632 out=a8_super rows=5 shape=gemv"),
    row("gemv_swiglu_q6_k", 1, "swiglu gate=q6_k up=q6_k k=2048 tile=256 n=5632 out=a8_super rows=5 shape=gemv"),
    row("gemm_swiglu_f32", 48, "swiglu gate=f32 up=f32 k=2048 tile=32 n=5632 out=f32 rows=48 shape=gemm"),
    row("gemm_swiglu_f16", 48, "swiglu gate=f16 up=f16 k=2048 tile=32 n=5632 out=f32 rows=48 shape=gemm"),
    row("gemm_swiglu_bf16", 48, "swiglu gate=bf16 up=bf16 k=2048 tile=32 n=5632 out=f32 rows=48 shape=gemm"),
    row("gemm_swiglu_q8_0", 48, "swiglu gate=q8_0 up=q8_0 k=2048 tile=32 n=5632 out=a8_small rows=48 shape=gemm"),
    row("gemm_swiglu_q4_0", 48, "swiglu gate=q4_0 up=q4_0 k=2048 tile=32 n=5632 out=a8_small rows=48 shape=gemm"),
    row("gemm_swiglu_q4_k", 48, "swiglu gate=q4_k up=q4_k k=2048 tile=256 n=5632 out=a8_super rows=48 shape=gemm"),
    row("gemm_swiglu_q5_k", 48, "swiglu gate=q5_k up=q5_k k=2048 tile=256 n=5632 out=a8_super rows=48 shape=gemm"),
    row("gemm_swiglu_q6_k", 48, "swiglu gate=q6_k up=q6_k k=2048 tile=256 n=5632 out=a8_super rows=48 shape=gemm"),
    row("gemv_swiglu_q4_k_expert", 1, "swiglu gate=q4_k up=q4_k k=2048 tile=256 n=768 out=a8_super rows=5 shape=gemv"),
    row("gemm_swiglu_q4_k_expert", 24, "swiglu gate=q4_k up=q4_k k=2048 tile=256 n=768 out=a8_super rows=48 shape=gemm"),
    // Rows of activations.
    row("embed_f16", 1, "embed format=f16 rows=512 n=2048"),
    row("embed_q4_k", 1, "embed format=q4_k rows=512 n=2048"),
    row("embed_q6_k", 1, "embed format=q6_k rows=512 n=2048"),
    row("rms_norm_f32", 1, "rms_norm n=2048 eps=1e-5 out=f32"),
    row("rms_norm_a8_super", 1, "rms_norm n=2048 eps=1e-5 out=a8_super"),
    row("rms_norm_a8_small", 1, "rms_norm n=2048 eps=1e-5 out=a8_small"),
    row("sum_squares", 1, "sum_squares n=512"),
    row("rms_norm_piece", 1, "rms_norm_piece n=512 row=8192 parts=16 eps=1e-5 out=a8_super"),
    row("quantise_a8_super", 1, "quantise n=5632 out=a8_super"),
    row("quantise_a8_small", 1, "quantise n=5632 out=a8_small"),
    row("add", 1, "map function=add n=2048"),
    row("mul", 1, "map function=mul n=5632"),
    row("silu", 1, "map function=silu n=5632"),
    row("add_bias", 1, "add_bias n=2048"),
    row("gather", 64, "gather bytes=2816"),
    row("combine", 64, "combine n=2048 slots=8 residual"),
    // Heads and the KV cache: rows are blocks of 16 positions for the rotation, of 32 for attention, parts for what combines them.
    row("rope_heads_64", 16, "rope_heads heads=32 d=64 dims=64 style=norm"),
    row("rope_heads_128", 16, "rope_heads heads=32 d=128 dims=128 style=neox norm=1e-6"),
    row("rope_append_64", 16, "rope_append d=64 dv=64 dims=64 style=norm"),
    row("rope_append_128", 16, "rope_append d=128 dv=128 dims=128 style=neox norm=1e-6"),
    row("attention_64", 16, "attention group=4 d=64 dv=64 scale=0.125 heads=8 rows=4"),
    row("attention_128", 16, "attention group=8 d=128 dv=128 scale=0.088388346 heads=4 rows=2"),
    row("attention_part_64", 16, "attention_part group=4 d=64 dv=64 scale=0.125"),
    row("attention_part_128", 16, "attention_part group=8 d=128 dv=128 scale=0.088388346"),
    row("attention_combine", 16, "attention_combine group=4 dv=64 parts=16"),
    // Routing and sampling.
    row("route", 1, "route experts=128 top_k=8 score=softmax normalise scale=1.0"),
    row("route_sigmoid", 1, "route experts=128 top_k=8 score=sigmoid normalise scale=2.5"),
    row("softmax", 1, "softmax n=32000"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;
    use ixc_targets::Target;

    /// Every row has a kernel for the target that has most; for others it may have none.
    #[test]
    fn rows_have_kernels_and_one_name_each() {
        for (i, row) in ROWS.iter().enumerate() {
            let spec = row.spec().unwrap_or_else(|error| panic!("{}: {error}", row.name));
            assert_eq!(spec.to_string(), row.text, "{} is written as it is printed", row.name);
            generate(&spec, Target::AMX).unwrap_or_else(|error| panic!("{}: {error}", row.name));
            assert!(ROWS[..i].iter().all(|other| other.name != row.name), "{} stands there twice", row.name);
            assert!(ROWS[..i].iter().all(|other| other.text != row.text), "{} has the spec of another row", row.name);
        }
    }

    #[test]
    fn every_kind_has_a_row() {
        for kind in crate::text::KINDS {
            assert!(ROWS.iter().any(|row| row.text.split(' ').next() == Some(kind.word)), "no row of {}", kind.word);
        }
    }
}
