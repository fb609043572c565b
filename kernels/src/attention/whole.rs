//! Attention of rows over all positions up to their own. See [`super::online_softmax`] for the
//! method.

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::DimInput;

use super::heads::{Heads, Operands, Scores};
use super::online_softmax::{AttentionSums, MAX_ITEM_ROWS, OfHead, attended, kernel};
use super::request::{AttentionRequest, ItemDivision, KernelOffer, Reason};
use crate::catalogue::{Row, row};
use crate::generator::blocks;
use crate::generator::cache::Cache;
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors, check};
use crate::generator::reference::{Mismatch, Run, close};
use crate::generator::signature::Signature;
use crate::generator::text::spec;
use crate::generator::work::{Arithmetic, Call, Work};

/// Number of queries that share the conversion of a block of keys and values.
pub(super) const QUERIES: u32 = 16;

spec! {
    /// Attention of `group` query heads over one key head. An item is up to `rows` rows and one
    /// column; columns are key heads. Rows of `q` and `y` have all `heads * group` query heads.
    /// Positions after the row's position have weight 0.
    pub struct Attention "attention" {
        ..heads: Heads,
        ..scores: Scores,
        /// Number of key heads of a row, which determines the distance between rows.
        pub key_heads as "heads": u32,
        /// Maximum number of rows of an item.
        pub rows: u32,
        /// Formats of keys and values.
        #[serde(default)]
        pub cache: Cache = Cache::default(),
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("attention_64", 16, "attention group=4 d=64 dv=64 scale=0.125 heads=8 rows=4"),
    row("attention_sinks", 16, "attention group=8 d=64 dv=64 scale=0.125 sinks heads=8 rows=2"),
    row("attention_slopes", 16, "attention group=1 d=128 dv=128 scale=0.088388346 slopes heads=32 rows=16"),
    row("attention_cap", 16, "attention group=2 d=256 dv=256 scale=0.0625 cap=50.0 heads=4 rows=8"),
    row("attention_128", 16, "attention group=8 d=128 dv=128 scale=0.088388346 heads=4 rows=2"),
    row("attention_q8_0", 16, "attention group=8 d=128 dv=128 scale=0.088388346 heads=4 rows=2 cache=q8_0/q8_0"),
    row("attention_q4_0", 16, "attention group=4 d=64 dv=64 scale=0.125 sinks heads=8 rows=4 cache=q4_0/q4_0"),
];

impl Attention {
    /// Returns the spec of this kernel for a request, and the sizes of its items.
    ///
    /// # Errors
    /// Returns the first reason why the kernel does not accept the request.
    pub fn accepts(request: &AttentionRequest) -> Result<KernelOffer, Reason> {
        let AttentionRequest { heads, scores, cache, key_heads, .. } = *request;
        request.all_positions()?;
        let rows = (QUERIES / heads.group.max(1)).max(1);
        Ok(KernelOffer {
            spec: Attention { heads, scores, key_heads, rows, cache }.into(),
            row_chunk: rows,
            division: ItemDivision::Whole,
            why: "rows share the loads of keys and values",
            larger: None,
        })
    }

    fn operands(&self) -> Operands {
        Operands { heads: self.heads, scores: self.scores, cache: self.cache }
    }
}

impl Definition for Attention {
    fn name(&self) -> String {
        let Attention { heads, scores, key_heads, rows, cache } = *self;
        format!("attention_{}h{key_heads}m{rows}_{}{}", heads.name(), scores.name(), cache.suffix())
    }

    fn signature(&self) -> Signature {
        let signature =
            self.operands().signature(&[], "y").dim("full", blocks::full()).dim("masked", blocks::masked_blocks());
        match self.rows {
            1 => signature,
            // The dim `groups` is the number of groups of `rows` rows, and `rest` the number of
            // rows after them.
            rows => signature.dim("groups", DimInput::Rows / rows).dim("rest", DimInput::Rows % rows),
        }
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Attention { key_heads, rows, .. } = *self;
        check(&name, "rows", u64::from(rows), (1..=MAX_ITEM_ROWS).contains(&rows), format!("1 to {MAX_ITEM_ROWS}"))?;
        check(&name, "key heads", u64::from(key_heads), key_heads > 0, "at least 1")?;
        kernel(name, vectors.lanes, self.operands(), key_heads, rows, false, None)
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let Attention { heads: Heads { group, d, dv }, scores, key_heads, cache, .. } = *self;
        let (input, output) = (run.input(), run.output());
        let (group, d, dv, heads) = (group as usize, d as usize, dv as usize, key_heads as usize);
        let (q, y) = (input.floats("q")?, output.floats("y")?);
        let sinks = if scores.sinks { Some(input.floats("sinks")?) } else { None };
        let slopes = if scores.slopes { Some(input.floats("slopes")?) } else { None };
        for (r, own) in input.ints("position")?.into_iter().enumerate() {
            for h in 0..group {
                let q = &q[(r * heads * group + h) * d..][..d];
                let [sink, slope] = [&sinks, &slopes].map(|of| of.as_ref().map(|of| of[h]));
                let of_head = OfHead { sink, slope };
                let AttentionSums { sum, acc, .. } =
                    attended(&input, q, dv, cache, &scores, 0..own as usize + 1, of_head)?;
                for (e, acc) in acc.iter().enumerate() {
                    let found = y[(r * heads * group + h) * dv + e];
                    close(format_args!("y[{r}, {h}, {e}]"), found, acc / sum, 1e-4)?;
                }
            }
        }
        Ok(())
    }

    fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        let (full, rows) = (i64::from(rows) - 1, (rows, self.rows));
        match rows {
            // The own positions of the rows are in the last block. With several rows, an odd number
            // of blocks is tested with an incomplete group of rows.
            (_, 1) => vec![full, 1],
            (blocks, _) if blocks.is_multiple_of(2) => vec![full, 1, 1, 0],
            (_, most) => vec![full, 1, 0, i64::from(most) - 1],
        }
    }

    fn work(&self, call: &Call<'_>) -> Work {
        let rows = match *call.dims {
            [_, _, groups, rest] => i64::from(self.rows) * groups + rest,
            _ => 1,
        };
        work(call, &self.heads, rows)
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}

/// Returns the work of attention for `rows` rows.
pub(super) fn work(call: &Call<'_>, heads: &Heads, rows: i64) -> Work {
    let blocks: i64 = call.dims.iter().take(2).sum();
    let queries = u64::from(heads.group) * rows.max(0).unsigned_abs();
    let multiply_adds = queries * u64::from(heads.elements()) * 32 * blocks.max(0).unsigned_abs();
    Work { bytes: call.bytes("keys") + call.bytes("values"), multiply_adds, arithmetic: Arithmetic::F32 }
}
