//! From a [`KernelSpec`] to kernel IR, and what generators share.

use ixc_ir::kernel::{Affine, Kernel, KernelBuilder, Op, Type, ValueId};
use ixc_targets::Target;
use thiserror::Error;

use crate::spec::{KernelSpec, Shape};
use crate::{attention, attention_combine, linear, quantise, rope, route, rows};

/// Why a spec has no kernel.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GenerateError {
    /// The spec's sizes do not fit its formats or the generator.
    #[error("kernel {kernel}: {what} is {found}, must be {right}")]
    Size {
        /// The kernel's name.
        kernel: String,
        /// Which size.
        what: &'static str,
        /// What it is.
        found: u64,
        /// What would be right.
        right: String,
    },
}

/// Largest number of rows (tokens, routed rows) that any kernel takes.
pub const MAX_ROWS: i64 = 1 << 20;
/// Largest number of KV cache positions.
pub const MAX_POSITIONS: i64 = 1 << 24;

/// The kernel of a spec, for a target.
///
/// # Errors
/// When the spec's sizes make no kernel.
pub fn generate(spec: &KernelSpec, target: Target) -> Result<Kernel, GenerateError> {
    // Names of kernels have no hyphen, those of targets do.
    let name = format!("{}_{}", spec.name(), target.name().replace('-', "_"));
    // f32 lanes of a vector. Targets with narrower registers split it.
    let lanes = (target.row().vector_bytes / 4) as u16;
    let vectors = Vectors { lanes, dot4: target.has_dot4() };
    if spec.product().is_some_and(|(shape, _)| shape == Shape::Tiles) {
        let tiles = target.row().tile_registers;
        check(&name, "tile registers of the target", tiles.into(), tiles > 0, "8, for products by tiles")?;
    }
    match spec {
        KernelSpec::Embed { .. } => rows::embed(name, spec),
        KernelSpec::RmsNorm { .. } => rows::rms_norm(name, spec, lanes),
        KernelSpec::SumSquares { .. } => rows::sum_squares(name, spec, lanes),
        KernelSpec::RmsNormPiece { .. } => rows::rms_norm_piece(name, spec, lanes),
        KernelSpec::Quantise { .. } => quantise::quantise(name, spec, lanes),
        KernelSpec::Linear { .. } => linear::linear(name, spec, vectors),
        KernelSpec::Swiglu { .. } => linear::swiglu(name, spec, vectors),
        KernelSpec::RopeHeads { .. } => rope::rope_heads(name, spec, lanes),
        KernelSpec::RopeAppend { .. } => rope::rope_append(name, spec, lanes),
        KernelSpec::Attention { .. } => attention::attention(name, spec, lanes),
        KernelSpec::AttentionPart { .. } => attention::attention_part(name, spec, lanes),
        KernelSpec::AttentionCombine { .. } => attention_combine::combine(name, spec, lanes),
        KernelSpec::Route { .. } => route::route(name, spec, lanes),
        KernelSpec::Gather { .. } => rows::gather(name, spec),
        KernelSpec::Combine { .. } => rows::combine(name, spec, lanes),
        KernelSpec::Map { .. } => rows::map(name, spec, lanes),
        KernelSpec::AddBias { .. } => rows::add_bias(name, spec, lanes),
        KernelSpec::Softmax { .. } => route::softmax(name, spec, lanes),
    }
}

/// What matrix products know of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vectors {
    /// f32 lanes of a vector.
    pub(crate) lanes: u16,
    /// Whether `dot4_u8s8` is one instruction: sums of pairs of products in words are not worth their trouble then.
    pub(crate) dot4: bool,
}

/// A generator that was given another generator's spec: a bug in [`generate`].
macro_rules! spec_fields {
    ($spec:expr, $variant:ident { $($field:ident),* $(,)? }) => {
        let crate::spec::KernelSpec::$variant { $($field),* } = $spec else {
            unreachable!("{} is no {}", $spec.name(), stringify!($variant))
        };
        $(let $field = *$field;)*
    };
}
pub(crate) use spec_fields;

pub(crate) fn check(
    kernel: &str,
    what: &'static str,
    found: u64,
    ok: bool,
    right: impl Into<String>,
) -> Result<(), GenerateError> {
    if ok { Ok(()) } else { Err(GenerateError::Size { kernel: kernel.into(), what, found, right: right.into() }) }
}

/// Runs `body` for every vector of a row of `n` elements: a loop over vectors of `lanes`, then halves of that down to 1 for the rest.
/// The body gets the element offset and the lanes.
pub(crate) fn for_vectors(
    b: &mut KernelBuilder,
    lanes: u16,
    n: u32,
    mut body: impl FnMut(&mut KernelBuilder, Affine, u16),
) {
    let whole = n / u32::from(lanes);
    if whole > 0 {
        b.for_each("i", i64::from(whole), |b, i| body(b, i * i64::from(lanes), lanes));
    }
    for_rest(b, lanes, n, &mut body);
}

/// The elements that no whole vector has.
pub(crate) fn for_rest(
    b: &mut KernelBuilder,
    lanes: u16,
    n: u32,
    body: &mut impl FnMut(&mut KernelBuilder, Affine, u16),
) {
    let mut at = n / u32::from(lanes) * u32::from(lanes);
    let mut part = lanes / 2;
    while part > 0 {
        if n - at >= u32::from(part) {
            body(b, Affine::constant(i64::from(at)), part);
            at += u32::from(part);
        }
        part /= 2;
    }
}

/// How [`fold_row`] makes a scalar of vectors.
#[derive(Clone, Copy)]
pub(crate) struct Fold {
    /// What accumulators begin with.
    pub(crate) start: f32,
    /// One lane of a vector.
    pub(crate) reduce: Op,
    /// Both of two lanes.
    pub(crate) combine: Op,
}

pub(crate) const SUM: Fold = Fold { start: 0.0, reduce: Op::ReduceAdd, combine: Op::Add };

/// Folds a row of `n` elements to a scalar: `vector` gives the next accumulator (of the lanes given) from the last one and an
/// element offset.
pub(crate) fn fold_row(
    b: &mut KernelBuilder,
    lanes: u16,
    n: u32,
    fold: Fold,
    mut vector: impl FnMut(&mut KernelBuilder, Affine, u16, ValueId) -> ValueId,
) -> ValueId {
    let Fold { start, reduce, combine } = fold;
    let whole = n / u32::from(lanes);
    let mut scalar = None;
    if whole > 0 {
        let init = b.splat_f32(lanes, start);
        let acc = b.for_carry("i", i64::from(whole), &[init], |b, i, acc| {
            vec![vector(b, i * i64::from(lanes), lanes, acc[0])]
        });
        scalar = Some(b.op(reduce, Type::f32(1), &acc));
    }
    for_rest(b, lanes, n, &mut |b, at, lanes| {
        let init = b.splat_f32(lanes, start);
        let acc = vector(b, at, lanes, init);
        let rest = b.op(reduce, Type::f32(1), &[acc]);
        scalar = Some(match scalar {
            Some(s) => b.op(combine, Type::f32(1), &[s, rest]),
            None => rest,
        });
    });
    scalar.unwrap_or_else(|| b.splat_f32(1, start))
}
