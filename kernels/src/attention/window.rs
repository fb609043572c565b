//! Attention of rows over their last positions: a row sees its own position and the `window - 1`
//! before it, or the positions of its chunk. See [`super::online_softmax`] for the method.
//! Positions are counted from the beginning of the state's memory, which may be after the
//! sequence's first position.

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{ATTENTION_BLOCK, DimInput};

use super::heads::{Heads, Operands, Scores, Window};
use super::online_softmax::{AttentionSums, MAX_ITEM_ROWS, OfHead, attended, kernel};
use super::request::{AttentionRequest, ItemDivision, KernelOffer, Reason};
use super::whole::{self, QUERIES};
use crate::catalogue::{Row, row};
use crate::generator::blocks;
use crate::generator::cache::Cache;
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors, check};
use crate::generator::reference::{Mismatch, Run, close};
use crate::generator::signature::Signature;
use crate::generator::text::spec;
use crate::generator::work::{Call, Work};

spec! {
    /// Attention of `group` query heads over one key head. A row sees the last `window` positions.
    /// An item is up to `rows` rows and one column; columns are key heads. Rows of `q` and `y` have
    /// all `heads * group` query heads. Positions after the row's position, or before its window,
    /// have weight 0.
    pub struct AttentionWindow "attention_window" {
        ..heads: Heads,
        ..scores: Scores,
        /// Number of key heads of a row.
        pub key_heads as "heads": u32,
        /// Number of rows that are computed together. If an item has fewer rows, they are computed
        /// one by one.
        pub rows: u32,
        /// Number of positions that a row sees, including its own.
        pub window: u32,
        /// Whether windows are chunks. A row then sees the positions from the last multiple of
        /// `window` on.
        pub chunked: bool,
        /// Whether rows see the same number of positions after their own as before it. If so, the
        /// kernel's position of a row is half a window after the row's own position, and the text
        /// may end before it.
        #[serde(default)]
        pub both: bool,
        /// Formats of keys and values.
        #[serde(default)]
        pub cache: Cache = Cache::default(),
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("attention_window", 6, "attention_window group=8 d=64 dv=64 scale=0.125 heads=8 rows=2 window=128"),
    row("attention_both", 6, "attention_window group=1 d=64 dv=64 scale=0.125 heads=12 rows=16 window=129 both"),
    row("attention_window_q8_0", 6, "attention_window group=8 d=64 dv=64 scale=0.125 heads=8 rows=2 window=128 cache=q8_0/q8_0"),
    row("attention_window_sinks", 6, "attention_window group=8 d=64 dv=64 scale=0.125 sinks heads=8 rows=2 window=128"),
    row("attention_window_slopes", 6, "attention_window group=8 d=64 dv=64 scale=0.125 slopes heads=8 rows=2 window=128"),
    row("attention_chunk", 6, "attention_window group=5 d=128 dv=128 scale=0.088388346 heads=8 rows=3 window=8192 chunked"),
];

impl AttentionWindow {
    /// Returns the spec of this kernel for a request, and the sizes of its items.
    ///
    /// # Errors
    /// Returns the first reason why the kernel does not accept the request.
    pub fn accepts(request: &AttentionRequest) -> Result<KernelOffer, Reason> {
        let AttentionRequest { heads, scores, cache, key_heads, .. } = *request;
        Reason::Entries.refuse_if(request.entries.is_some())?;
        let Window { positions, chunked, both } = request.sight()?.ok_or(Reason::NoWindow)?;
        Reason::Chosen.refuse_if(request.chosen)?;
        // A window is short, so an item covers the whole window of a key head.
        let rows = (QUERIES / heads.group.max(1)).max(2);
        Ok(KernelOffer {
            spec: AttentionWindow { heads, scores, key_heads, rows, window: positions, chunked, both, cache }.into(),
            row_chunk: rows,
            division: ItemDivision::Whole,
            why: "the chosen kernel reads only the positions of the sliding window",
            larger: None,
        })
    }

    fn window(&self) -> Window {
        Window { positions: self.window, chunked: self.chunked, both: self.both }
    }

    fn operands(&self) -> Operands {
        Operands { heads: self.heads, scores: self.scores, cache: self.cache }
    }
}

impl Definition for AttentionWindow {
    fn name(&self) -> String {
        let AttentionWindow { heads, scores, key_heads, rows, cache, .. } = *self;
        let (window, heads) = (self.window().name(), heads.name());
        format!("attention_{window}_{heads}h{key_heads}m{rows}_{}{}", scores.name(), cache.suffix())
    }

    fn signature(&self) -> Signature {
        self.operands()
            .signature(&[], "y")
            .dim("full", blocks::full())
            .dim("masked", blocks::masked_blocks())
            .dim("first", blocks::first())
            .dim("groups", DimInput::Rows / self.rows)
            .dim("rest", DimInput::Rows % self.rows)
            .dim_if(self.both, "end", DimInput::TextEnd)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let AttentionWindow { key_heads, rows, .. } = *self;
        check(&name, "rows", rows.into(), (2..=MAX_ITEM_ROWS).contains(&rows), format!("2 to {MAX_ITEM_ROWS}"))?;
        check(&name, "key heads", key_heads.into(), key_heads > 0, "at least 1")?;
        self.window().check(&name)?;
        let (both, slopes) = (self.both, self.scores.slopes);
        check(&name, "slopes of rows that see both ways", both.into(), !(both && slopes), "none of them")?;
        kernel(name, vectors.lanes, self.operands(), key_heads, rows, false, Some(self.window()))
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let AttentionWindow { heads: Heads { group, d, dv }, scores, key_heads, cache, .. } = *self;
        let (input, output) = (run.input(), run.output());
        let (group, d, dv, heads) = (group as usize, d as usize, dv as usize, key_heads as usize);
        let (q, y) = (input.floats("q")?, output.floats("y")?);
        let first = 32 * run.dim("first") as usize;
        let sinks = if scores.sinks { Some(input.floats("sinks")?) } else { None };
        let slopes = if scores.slopes { Some(input.floats("slopes")?) } else { None };
        for (r, own) in input.ints("position")?.into_iter().enumerate() {
            let own = own as usize;
            let last = if self.both { own.min(run.dim("end") as usize) } else { own };
            for h in 0..group {
                let q = &q[(r * heads * group + h) * d..][..d];
                let from = (self.window().first(own as u64) as usize).max(first);
                let [sink, slope] = [&sinks, &slopes].map(|of| of.as_ref().map(|of| of[h]));
                let of_head = OfHead { sink, slope };
                let AttentionSums { sum, acc, .. } =
                    attended(&input, q, dv, cache, &scores, from - first..last + 1 - first, of_head)?;
                for (e, acc) in acc.iter().enumerate() {
                    let found = y[(r * heads * group + h) * dv + e];
                    close(format_args!("y[{r}, {h}, {e}]"), found, acc / sum, 1e-4)?;
                }
            }
        }
        Ok(())
    }

    fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        // The window begins after the first position. Rows form whole groups or are fewer than one
        // group, as in attention over all positions.
        let together = i64::from(rows.is_multiple_of(2));
        let dims = vec![i64::from(rows) - 1, 1, 8, together, (1 - together) * (i64::from(self.rows) - 1)];
        // The text ends in the last block, and this is its last position.
        let end = self.both.then_some(i64::from(ATTENTION_BLOCK) * (8 + i64::from(rows)) - 11);
        dims.into_iter().chain(end).collect()
    }

    fn work(&self, call: &Call<'_>) -> Work {
        let rows = match *call.dims {
            [_, _, _, groups, rest, ..] => i64::from(self.rows) * groups + rest,
            _ => 1,
        };
        whole::work(call, &self.heads, rows)
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
