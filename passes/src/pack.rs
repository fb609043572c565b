//! `pack`: chooses the format in which products read each weight, and the format of their
//! activations.
//!
//! A weight is packed for matrix products if its rows (of each expert) are whole strips of 16 and
//! its columns are whole packed blocks. A tied embedding is in the plan twice: packed for products,
//! and in the file's format for row look-up. One kernel reads both gate and up, so either both are
//! packed or neither. On targets with tiles, activations contain bf16 in addition to integers.
//!
//! Some targets have dot products of pairs of bf16 but no tiles. On these targets, the activations
//! of packed bf16 weights are rounded to bf16, also for a router stored as bf16. The rounding error
//! equals that of llama.cpp on the same weights. Rounding halves the instructions and reduces the
//! bytes read. The activations of unpacked weights stay f32.
//!
//! Needs: a verified module. Leaves: the same functions. Weights of products have `layout` and
//! `activations` if these differ from the defaults of the file's format.
//!
//! ```text
//! weight @w : q4_k[520, 256]     // 520 is not a multiple of 16: stays weight @v : q4_k[512, 256]
//! ```
//! becomes
//! ```text
//! weight @w : q4_k[520, 256]
//! weight @v : q4_k[512, 256] {layout = q4_k_r16}
//! ```

use std::collections::BTreeSet;

use ixc_ir::format::Format;
use ixc_ir::format::packed::STRIP;
use ixc_ir::graph::{Module, Op, OpKind, OpView, Operand, Weight, WeightId, view};

use crate::decision::Decision;
use crate::error::PassError;
use crate::options::{PassOptions, pass_options};
use crate::pass::{Context, Pass, Run};

/// Entry of this pass in the list of passes.
pub static PASS: Pass = Pass {
    name: "pack",
    doc: "Chooses the format in which products read each weight, and the format of their activations.",
    options: PackOptions::ROWS,
    run: Run::Graph(run),
};

pass_options! {
    /// Options of the pass.
    pub struct PackOptions for "pack" {
        #[doc = "Whether to pack weights whose shapes allow it. If false, products read all weights as they are in the file."]
        pub weights: bool = true,
    }
}

/// Kinds of matrix-product kernels that a target has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MatrixTarget {
    /// Whether weights are packed for this target.
    packed: bool,
    /// Whether there are tile products for many rows of packed weights. Activations then also
    /// contain bf16. Requires `packed`.
    tiles: bool,
    /// Whether there are products of pairs of bf16 without tiles. Activations of bf16 weights are
    /// then bf16. Requires `packed`.
    pairs: bool,
}

/// Runs the pass.
///
/// # Errors
/// Never fails; all passes have the same signature.
pub fn run(mut module: Module, context: &Context<'_>) -> Result<Module, PassError> {
    let packed = context.options.get::<PackOptions>().weights;
    let tiles = context.target.isa().tile_registers > 0;
    let pairs = !tiles && context.target.has_dot2_bf16();
    let target = MatrixTarget { packed, tiles: packed && tiles, pairs: packed && pairs };
    let found = layouts(&module, target);
    let layouts: Vec<Option<Format>> = found.iter().map(|found| found.as_ref().ok().copied()).collect();
    let pairs = by_pairs(&module, &layouts, target);
    for w in products(&module) {
        context.decide(|| {
            let Weight { name, format, .. } = &module.weights[w.index()];
            let decision = Decision::new("weight", name, "layout");
            match &found[w.index()] {
                Ok(layout) => {
                    let why = format!("its rows are whole strips of {STRIP} rows, and its columns are whole blocks");
                    decision
                        .chose(layout.name())
                        .since(why)
                        .over(format!("{format} as stored"), "packed kernels are faster")
                }
                Err(why) => {
                    let packed = format.packed_format().map_or("packed", Format::name);
                    decision.chose(format!("{format} as stored")).over(packed, why.text(&module))
                }
            }
        });
        let weight = &mut module.weights[w.index()];
        let layout = layouts[w.index()];
        let format = layout.unwrap_or(weight.format);
        let own = format.activation();
        // All quantised values also contain bf16, so that every product can read every value.
        let activations = match format.tile_activation() {
            Some(tiles) if target.tiles => Some(tiles),
            _ if pairs[w.index()] => format.pair_activation(),
            _ => own.row().tiles.filter(|_| target.tiles && own.is_quantised()),
        };
        let choice = &mut weight.choice;
        if (choice.layout, choice.activations) != (layout, activations) {
            (choice.layout, choice.activations) = (layout, activations);
            // A tiling that was chosen for another format is not valid for this one.
            (choice.tile, choice.why) = (None, None);
        }
    }
    Ok(module)
}

/// Returns the weights that products read.
fn products(module: &Module) -> BTreeSet<WeightId> {
    let ops = module.functions.iter().flat_map(|function| &function.ops);
    ops.flat_map(|op| factors(op.kind).iter().map(|name| op.operand(name))).filter_map(Operand::weight).collect()
}

/// Returns the gate and the up projection of an op that multiplies with both.
pub(crate) fn gate_and_up(op: &Op) -> Option<(WeightId, WeightId)> {
    let linear = view::LinearSwiglu::from_op(op).map(|swiglu| (swiglu.gate, swiglu.up));
    linear.or_else(|| view::ExpertSwiglu::from_op(op).map(|swiglu| (swiglu.gate, swiglu.up)))
}

/// Reason why a weight is read in the file's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unpacked {
    /// An option turns packing off.
    Off,
    /// The weight's format has no packed form.
    NoForm,
    /// The weight is not a matrix.
    NoMatrix,
    /// The number of rows is not a multiple of a strip's rows.
    Rows(u64),
    /// The weight is a part of a tensor that begins or ends within a strip.
    Part,
    /// A row's columns are not a multiple of the packed format's block length.
    Columns(u64, Format),
    /// A row's columns are not a multiple of the activation format's block length.
    Activations(u64, Format),
    /// One kernel reads this weight together with another weight that is packed differently or not
    /// at all.
    With(WeightId),
}

impl Unpacked {
    fn text(self, module: &Module) -> String {
        match self {
            Unpacked::Off => "pack.weights is false".to_owned(),
            Unpacked::NoForm => "its format has no packed form".to_owned(),
            Unpacked::NoMatrix => "the weight is not a matrix".to_owned(),
            Unpacked::Rows(rows) => format!("its {rows} rows are not a multiple of {STRIP}, the rows of a strip"),
            Unpacked::Part => {
                format!("it is part of a tensor, and does not start and end at a multiple of {STRIP} rows")
            }
            Unpacked::Columns(columns, packed) => {
                format!("its {columns} columns are not a multiple of {}, the columns of a block", packed.block_len())
            }
            Unpacked::Activations(columns, x) => {
                format!("its {columns} columns are not a multiple of {}, the columns of an {x} block", x.block_len())
            }
            Unpacked::With(other) => {
                format!(
                    "the kernel that reads it also reads {}, which has another layout",
                    module.weights[other.index()].name
                )
            }
        }
    }
}

/// Returns for each weight of the module the format that kernels read, or the reason why they read
/// the file's format.
fn layouts(module: &Module, target: MatrixTarget) -> Vec<Result<Format, Unpacked>> {
    let mut formats: Vec<Result<Format, Unpacked>> = module.weights.iter().map(|_| Err(Unpacked::Off)).collect();
    // A format with one scale per row is always packed, both after requantisation and from a file,
    // because kernels only read it packed.
    let packs = |weight: &Weight| target.packed || weight.format.has_row_scale();
    for (format, weight) in formats.iter_mut().zip(&module.weights).filter(|(_, weight)| packs(weight)) {
        let part = weight.part.as_ref().map_or([0; 2], |part| [part.rows, part.from]);
        // A part of a tensor must be whole strips of it.
        let strips = part.iter().all(|rows| rows.is_multiple_of(STRIP as u64));
        *format = packable(weight.format, &weight.shape, target);
        if format.is_ok() && !strips {
            *format = Err(Unpacked::Part);
        }
    }
    let pairs: Vec<_> = module.functions.iter().flat_map(|function| &function.ops).filter_map(gate_and_up).collect();
    // A weight may be in several pairs of gate and up. The loop ends because every round except the
    // last unpacks one more weight.
    while let Some((w, with)) = pairs.iter().find_map(|&(gate, up)| odd_one(&formats, gate, up, target)) {
        formats[w.index()] = Err(Unpacked::With(with));
    }
    formats
}

/// Returns a packed weight of a pair and the other weight, if the other weight is not packed. Also
/// returns a pair whose tile products would take different activations.
fn odd_one(
    formats: &[Result<Format, Unpacked>],
    gate: WeightId,
    up: WeightId,
    target: MatrixTarget,
) -> Option<(WeightId, WeightId)> {
    match (formats[gate.index()], formats[up.index()]) {
        (Ok(g), Ok(u)) if target.tiles && g.tile_activation() != u.tile_activation() => Some((gate, up)),
        (Ok(_), Err(_)) => Some((gate, up)),
        (Err(_), Ok(_)) => Some((up, gate)),
        (Ok(_), Ok(_)) | (Err(_), Err(_)) => None,
    }
}

/// Returns for each weight whether its products use pairs of bf16. Gate and up read the same
/// activations, so either both do or neither does.
fn by_pairs(module: &Module, layouts: &[Option<Format>], target: MatrixTarget) -> Vec<bool> {
    let takes = |(weight, layout): (&Weight, &Option<Format>)| {
        let activation = layout.and_then(Format::pair_activation).filter(|_| target.pairs);
        let k = weight.shape.last().copied().unwrap_or(0);
        activation.is_some_and(|x| k.is_multiple_of(x.block_len() as u64))
    };
    let mut pairs: Vec<bool> = module.weights.iter().zip(layouts).map(takes).collect();
    let both: Vec<_> = module.functions.iter().flat_map(|function| &function.ops).filter_map(gate_and_up).collect();
    // A weight may be in several pairs of gate and up, so a change can affect another pair.
    while let Some((gate, up)) = both.iter().find(|(gate, up)| pairs[gate.index()] != pairs[up.index()]) {
        (pairs[gate.index()], pairs[up.index()]) = (false, false);
    }
    pairs
}

/// Returns the packed form of a weight of this format and shape.
fn packable(format: Format, shape: &[u64], target: MatrixTarget) -> Result<Format, Unpacked> {
    let packed = format.packed_format().ok_or(Unpacked::NoForm)?;
    let &[.., n, k] = shape else { return Err(Unpacked::NoMatrix) };
    if !n.is_multiple_of(STRIP as u64) {
        return Err(Unpacked::Rows(n));
    }
    if !k.is_multiple_of(packed.block_len() as u64) {
        return Err(Unpacked::Columns(k, packed));
    }
    // Tile products need whole blocks of their activation format.
    let activation = packed.tile_activation().filter(|_| target.tiles).unwrap_or(packed.activation());
    if k.is_multiple_of(activation.block_len() as u64) { Ok(packed) } else { Err(Unpacked::Activations(k, activation)) }
}

/// Returns the packed format of a weight that only products read, or its own format if it cannot be
/// packed. The target has no tiles.
pub fn packed_alone(format: Format, shape: &[u64]) -> Format {
    packable(format, shape, MatrixTarget { packed: true, ..MatrixTarget::default() }).unwrap_or(format)
}

/// Returns the names of an op's operands that are weights of products.
pub fn factors(kind: OpKind) -> &'static [&'static str] {
    match kind {
        OpKind::Dequantise | OpKind::Linear | OpKind::LinearHeads | OpKind::ExpertDown => &["w"],
        OpKind::LinearQkv => &["wq", "wk", "wv"],
        OpKind::LinearSwiglu | OpKind::ExpertSwiglu => &["gate", "up"],
        // Prefetches load the weights that products read.
        OpKind::ExpertPrefetch => &["gate", "up", "down"],
        OpKind::Embed
        | OpKind::Matmul
        | OpKind::HeadsMatmul
        | OpKind::Add
        | OpKind::Mul
        | OpKind::Unary(_)
        | OpKind::AddBias
        | OpKind::Gated
        | OpKind::ScaleHeads
        | OpKind::ExpertAddBias
        | OpKind::ExpertScale
        | OpKind::RmsNorm
        | OpKind::RmsNormQuantise
        | OpKind::SplitHeads
        | OpKind::MergeHeads
        | OpKind::Slice
        | OpKind::Concat
        | OpKind::Rope
        | OpKind::Temperature
        | OpKind::HeadsTemperature
        | OpKind::Centre
        | OpKind::HeadsSum
        | OpKind::Ngram
        | OpKind::RopeHeads
        | OpKind::Recurrent(_)
        | OpKind::StateBegin
        | OpKind::ColumnSquares
        | OpKind::KvAppend
        | OpKind::RopeAppend
        | OpKind::IndexTopK
        | OpKind::Attention
        | OpKind::Route
        | OpKind::Positions
        | OpKind::Ends
        | OpKind::AttentionEntries
        | OpKind::RouteListed
        | OpKind::RouteGiven
        | OpKind::RouteIdentities
        | OpKind::ExpertGroups
        | OpKind::StreamWeights
        | OpKind::StreamInput
        | OpKind::StreamMix
        | OpKind::StreamAttend
        | OpKind::TakeRows
        | OpKind::Quantise
        | OpKind::ExpertMatmul
        | OpKind::ExpertCombine
        | OpKind::ExpertSplit
        | OpKind::ExpertSlots
        | OpKind::ExpertWait
        | OpKind::ExpertEvict
        | OpKind::RanksBegin
        | OpKind::AllReduce
        | OpKind::AllGather
        | OpKind::Send
        | OpKind::Recv
        | OpKind::RouteOwned => &[],
    }
}
