//! Kernel specs: what a kernel of a plan must compute, and the order of its buffers and dims.
//!
//! The schedule makes specs, the generators in `ixc-codegen` make kernel IR from them; both follow the argument order that
//! stands at each variant. `f32[n]` is n * 4 bytes; `x[k]` is a row of k elements in the format `x`;
//! `rows x ld` means rows that start `ld` elements apart. Buffers in brackets are there only where the spec says so.
// Doc lines state sizes in brackets, `f32[n]`; rustdoc would take them for links.
#![allow(rustdoc::broken_intra_doc_links, reason = "brackets hold sizes")]

use serde::{Deserialize, Serialize};

use ixc_ir::format::Format;
use ixc_ir::plan::{DimRule, RopeStyle};

/// Rows of activations that a `Gemm` kernel of a weight that is not packed works on at a time. See [`Shape::row_groups`].
pub const GEMM_ROWS: u32 = 6;

/// How a matrix product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Shape {
    /// For few rows: dot products along rows of the weight as they lie in the file, or along strips of a packed one. Dims:
    /// [`Shape::row_groups`].
    Gemv,
    /// For many rows. Strips of the weight are unpacked once, with a lane for each weight row: the tile's weight rows and the
    /// length of the dot products are multiples of 8. A packed weight has that form already. Dims: [`Shape::row_groups`].
    Gemm,
    /// For many rows, with tile products: strips of a packed weight become bf16 panels, which blocks of 32 rows, then of 16, are
    /// multiplied with. Dims: `[rows / 32, rows % 32 / 16, rows % 16, 1 if rows % 16 > 0]`; the tile's weight rows are a multiple of
    /// 32.
    Tiles,
}

impl Shape {
    /// Rows of activations that a product with a weight in `format` works on at a time, largest first; each divides the one
    /// before. The kernel's dims are how many groups of each size there are: `[rows / 8, rows % 8 / 4, rows % 4]`.
    ///
    /// Packed weights: for eight rows, a strip's float sums and two integer sums are 24 of 32 registers, the rest is for the weight;
    /// more rows share its unpacking among them and gain nothing (on Zen 4: 325 GOP/s with 8 and with 12). Four rows are as
    /// many chains as hide the latency of a product.
    pub fn row_groups(self, format: Format) -> &'static [u32] {
        match (self, format.rows()) {
            (Shape::Gemv, 1) => &[1],
            (Shape::Gemm, 1) => &[GEMM_ROWS, 1],
            (Shape::Gemv, _) => &[4, 1],
            (Shape::Gemm, _) => &[8, 4, 1],
            (Shape::Tiles, _) => &[32, 16, 1],
        }
    }

    /// The dims of a product with a weight in `format`.
    pub fn dims(self, format: Format) -> Vec<DimRule> {
        let groups = self.row_groups(format);
        let mut dims: Vec<DimRule> = groups
            .iter()
            .enumerate()
            .map(|(i, &n)| match (i.checked_sub(1).map(|i| groups[i]), n) {
                (None, 1) => DimRule::Rows,
                (None, n) => DimRule::RowGroups(n),
                (Some(m), 1) => DimRule::RowRest(m),
                (Some(m), n) => DimRule::RowRestGroups { m, n },
            })
            .collect();
        if self == Shape::Tiles {
            dims.push(DimRule::RowPartial(16));
        }
        dims
    }

    /// The values of [`Shape::dims`] for so many rows.
    pub fn dim_values(self, format: Format, rows: u32) -> Vec<i64> {
        let mut rest = rows;
        let mut values: Vec<i64> = self
            .row_groups(format)
            .iter()
            .map(|&n| {
                let groups = rest / n;
                rest %= n;
                i64::from(groups)
            })
            .collect();
        if self == Shape::Tiles {
            values.push(i64::from(!rows.is_multiple_of(16)));
        }
        values
    }

    /// The rows that values of [`Shape::dims`] stand for.
    pub fn rows(self, format: Format, dims: &[i64]) -> i64 {
        self.row_groups(format).iter().zip(dims).map(|(&n, groups)| groups.saturating_mul(n.into())).sum()
    }
}

/// Elementwise functions of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Elementwise {
    /// `a + b`. Buffers: a f32[n], b f32[n], y f32[n].
    Add,
    /// `a * b`. Buffers as for `Add`.
    Mul,
    /// `x / (1 + exp(-x))`. Buffers: x f32[n], y f32[n].
    Silu,
}

/// How a router scores experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Score {
    /// Softmax over all experts.
    Softmax,
    /// Logistic function of each.
    Sigmoid,
}

/// A float parameter with equality: its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bits(pub u32);

impl Bits {
    /// Of a value.
    pub fn of(value: f64) -> Bits {
        Bits((value as f32).to_bits())
    }

    /// The value.
    pub fn value(self) -> f32 {
        f32::from_bits(self.0)
    }
}

/// What a kernel must compute. Items are one row each, without dims, unless the variant says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum KernelSpec {
    /// One row of a table. Buffers: id index[1] below `rows`, table [rows, n] in `format`, y f32[n].
    Embed {
        /// The table's format.
        format: Format,
        /// Rows of the table.
        rows: u32,
        /// Elements of a row.
        n: u32,
    },
    /// RMS norm, quantised to `out`. Buffers: x f32[n], w f32[n], y out[n].
    RmsNorm {
        /// Elements of a row.
        n: u32,
        /// Epsilon.
        eps: Bits,
        /// Format of the result.
        out: Format,
    },
    /// Sum of the squares of a piece of a row. Buffers: x f32[n], y f32[1].
    SumSquares {
        /// Elements of the piece.
        n: u32,
    },
    /// RMS norm of a piece of a row whose pieces' sums of squares are there, quantised to `out`. The sums are added one after the
    /// other, from the first on. Buffers: x f32[n], sums f32[parts], w f32[n], y out[n].
    RmsNormPiece {
        /// Elements of the piece.
        n: u32,
        /// Elements of the row.
        row: u32,
        /// Pieces of the row.
        parts: u32,
        /// Epsilon.
        eps: Bits,
        /// Format of the result.
        out: Format,
    },
    /// Buffers: x f32[n], y out[n].
    Quantise {
        /// Elements of a row.
        n: u32,
        /// Format of the result.
        out: Format,
    },
    /// `y = x w' [+ bias] [+ residual]` for `tile` rows of the weight and the item's rows. Buffers: x x[k] (rows x k), w format
    /// [tile, k], \[bias f32\[tile\]\], \[residual f32\[tile\] (rows x n)\], y f32[tile] (rows x n), scratch for `Gemm` (the kernel
    /// itself says how many bytes). Dims: see [`Shape`].
    Linear {
        /// The weight's format.
        format: Format,
        /// The activations' format.
        x: Format,
        /// Elements of a dot product.
        k: u32,
        /// Rows of the weight in an item.
        tile: u32,
        /// Rows of the whole weight: the distance between rows of y and residual.
        n: u32,
        /// Whether a bias is added.
        bias: bool,
        /// Whether a residual is added.
        residual: bool,
        /// How.
        shape: Shape,
    },
    /// `silu(x gate') * (x up')` for `tile` rows of both weights and the item's rows, quantised. Buffers: x x[k] (rows x k), gate
    /// [tile, k], up [tile, k], y out[tile] (rows x n), scratch. Dims: see [`Shape`]. `gate` and `up` take the same activations
    /// and are both packed or both not;
    /// tile is a multiple of out's block.
    Swiglu {
        /// Format of the gate's weight.
        gate: Format,
        /// Format of the up projection's weight.
        up: Format,
        /// The activations' format.
        x: Format,
        /// Elements of a dot product.
        k: u32,
        /// Rows of each weight in an item.
        tile: u32,
        /// Rows of each whole weight.
        n: u32,
        /// Format of the result.
        out: Format,
        /// Most rows of an item (bounds the scratch memory).
        rows: u32,
        /// How.
        shape: Shape,
    },
    /// Norm (where `norm`) and rotation of the heads of a row. Buffers: x f32[heads * d], \[norm f32\[d\]\], block index[1] below
    /// the dim, lane index[1] below 8, table [8 * dim rows of `style.row_bytes(dims)`], y f32[heads * d]. Dims: \[cache blocks\].
    RopeHeads {
        /// Heads in a row.
        heads: u32,
        /// Elements of a head.
        d: u32,
        /// Elements that are rotated.
        dims: u32,
        /// Which elements make a pair.
        style: RopeStyle,
        /// Epsilon of the norm; `None` where there is no norm.
        norm: Option<Bits>,
    },
    /// `RopeHeads` of one key head, then key and value into the cache as f16. Items: row, and column = head. Buffers: k f32[d], v
    /// f32[dv], \[norm f32\[d\]\], block index[1] below the dim, lane index[1] below 8, table, keys f16[8 * dim * d], values
    /// f16[8 * dim * dv], scratch. Dims: \[cache blocks\].
    RopeAppend {
        /// Elements of a key head.
        d: u32,
        /// Elements of a value head.
        dv: u32,
        /// Elements that are rotated.
        dims: u32,
        /// Which elements make a pair.
        style: RopeStyle,
        /// Epsilon of the norm; `None` where there is no norm.
        norm: Option<Bits>,
    },
    /// Attention of `group` query heads over one key head. Items: up to `rows` rows, and column = key head. Buffers: q f32[group *
    /// d] (rows x heads * group * d), position i32[rows], keys f16[32 * (full + masked) * d], values f16[32 * (full + masked) * dv],
    /// y f32[group * dv] (rows x heads * group * dv), scratch. Dims: \[blocks that all rows see whole, blocks after those\], and for
    /// more than one row \[1 if there are all rows, rows if there are fewer\]. Positions after a row's own have weight 0.
    Attention {
        /// Query heads that share a key head.
        group: u32,
        /// Elements of a query or key head.
        d: u32,
        /// Elements of a value head.
        dv: u32,
        /// Factor on the scores.
        scale: Bits,
        /// Key heads of a row: how far rows are apart.
        heads: u32,
        /// Rows of an item.
        rows: u32,
    },
    /// Attention of one row over a part of the positions. Buffers: as for `Attention` of one row, but instead of y part
    /// f32[group * (dv + 2)]: of each head the sum of weighted values, the maximum of the scores, the sum of weights. Dims: \[blocks
    /// that the row sees whole, blocks after those, the part's first block\].
    AttentionPart {
        /// Query heads that share a key head.
        group: u32,
        /// Elements of a query or key head.
        d: u32,
        /// Elements of a value head.
        dv: u32,
        /// Factor on the scores.
        scale: Bits,
    },
    /// The result of attention in parts. Buffers: parts f32[group * (dv + 2)] (dim parts), y f32[group * dv], scratch. Dims: \[parts\],
    /// at most `parts`.
    AttentionCombine {
        /// Query heads that share a key head.
        group: u32,
        /// Elements of a value head.
        dv: u32,
        /// Most parts.
        parts: u32,
    },
    /// Router. Buffers: logits f32[experts], ids i32[top_k], p f32[top_k], scratch.
    Route {
        /// Number of experts.
        experts: u32,
        /// Experts per token.
        top_k: u32,
        /// Scores.
        score: Score,
        /// Whether weights are divided by their sum.
        normalise: bool,
        /// Factor on the weights.
        scale: Bits,
    },
    /// Copies a row. Buffers: row index[1] below the dim, x (dim rows of `bytes`), y (`bytes`). Dims: \[rows of x\].
    Gather {
        /// Bytes of a row.
        bytes: u32,
    },
    /// `y = sum over slots s of p[s] * x[slot[s]] [+ residual]`, slots in order. Buffers: slot index[slots] below the dim, p
    /// f32[slots], x f32[n] (dim rows), \[residual f32\[n\]\], y f32[n]. Dims: \[rows of x\].
    Combine {
        /// Elements of a row.
        n: u32,
        /// Slots of a row.
        slots: u32,
        /// Whether a residual is added.
        residual: bool,
    },
    /// An elementwise function of rows of `n`; buffers at [`Elementwise`].
    Map {
        /// The function.
        function: Elementwise,
        /// Elements of a row.
        n: u32,
    },
    /// Adds a vector to a row. Buffers: x f32[n], bias f32[n], y f32[n].
    AddBias {
        /// Elements of a row.
        n: u32,
    },
    /// Probabilities from logits. Buffers: logits f32[n], inverse temperature f32[1], y f32[n].
    Softmax {
        /// Elements of a row.
        n: u32,
    },
}

impl KernelSpec {
    /// Shape and weight format of a matrix product: what its dims follow from.
    pub fn product(&self) -> Option<(Shape, Format)> {
        match self {
            KernelSpec::Linear { shape, format, .. } | KernelSpec::Swiglu { shape, gate: format, .. } => {
                Some((*shape, *format))
            }
            _ => None,
        }
    }

    /// The kernel's name, without the target: cache key, profiler symbol and dump file name. Two specs have the same name only
    /// if they are equal.
    pub fn name(&self) -> String {
        let norm = |eps: &Option<Bits>| eps.map_or(String::new(), |e| format!("_n{:x}", e.0));
        let style = |s: &RopeStyle| match s {
            RopeStyle::Norm => "norm",
            RopeStyle::Neox => "neox",
        };
        let shape = |s: &Shape| match s {
            Shape::Gemv => "gemv",
            Shape::Gemm => "gemm",
            Shape::Tiles => "tiles",
        };
        match self {
            KernelSpec::Embed { format, rows, n } => format!("embed_{format}_r{rows}n{n}"),
            KernelSpec::RmsNorm { n, eps, out } => format!("rms_norm_{out}_n{n}_e{:x}", eps.0),
            KernelSpec::SumSquares { n } => format!("sum_squares_n{n}"),
            KernelSpec::RmsNormPiece { n, row, parts, eps, out } => {
                format!("rms_norm_piece_{out}_n{n}r{row}p{parts}_e{:x}", eps.0)
            }
            KernelSpec::Quantise { n, out } => format!("quantise_{out}_n{n}"),
            KernelSpec::Linear { format, x, k, tile, n, bias, residual, shape: s } => format!(
                "{}_{format}_{x}_t{tile}n{n}k{k}{}{}",
                shape(s),
                if *bias { "_bias" } else { "" },
                if *residual { "_add" } else { "" }
            ),
            KernelSpec::Swiglu { gate, up, x, k, tile, n, out, rows, shape: s } => {
                format!("{}_swiglu_{gate}_{up}_{x}_{out}_m{rows}t{tile}n{n}k{k}", shape(s))
            }
            KernelSpec::RopeHeads { heads, d, dims, style: s, norm: n } => {
                format!("rope_heads_{}_h{heads}d{d}r{dims}{}", style(s), norm(n))
            }
            KernelSpec::RopeAppend { d, dv, dims, style: s, norm: n } => {
                format!("rope_append_{}_d{d}v{dv}r{dims}{}", style(s), norm(n))
            }
            KernelSpec::Attention { group, d, dv, scale, heads, rows } => {
                format!("attention_g{group}d{d}v{dv}h{heads}m{rows}_s{:x}", scale.0)
            }
            KernelSpec::AttentionPart { group, d, dv, scale } => {
                format!("attention_part_g{group}d{d}v{dv}_s{:x}", scale.0)
            }
            KernelSpec::AttentionCombine { group, dv, parts } => format!("attention_combine_g{group}v{dv}p{parts}"),
            KernelSpec::Route { experts, top_k, score, normalise, scale } => format!(
                "route_{}_e{experts}k{top_k}{}_s{:x}",
                match score {
                    Score::Softmax => "softmax",
                    Score::Sigmoid => "sigmoid",
                },
                if *normalise { "_norm" } else { "" },
                scale.0
            ),
            KernelSpec::Gather { bytes } => format!("gather_b{bytes}"),
            KernelSpec::Combine { n, slots, residual } => {
                format!("combine_n{n}s{slots}{}", if *residual { "_add" } else { "" })
            }
            KernelSpec::Map { function, n } => format!(
                "{}_n{n}",
                match function {
                    Elementwise::Add => "add",
                    Elementwise::Mul => "mul",
                    Elementwise::Silu => "silu",
                }
            ),
            KernelSpec::AddBias { n } => format!("add_bias_n{n}"),
            KernelSpec::Softmax { n } => format!("softmax_n{n}"),
        }
    }
}
