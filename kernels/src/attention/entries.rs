//! Attention of a row over the last positions and, in the same softmax, over compressed entries. An
//! entry stands for several positions. A row sees all complete entries, or only those that an index
//! chose ([`crate::IndexTopK`]). See [`super::online_softmax`] for the method.

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::DimExpr;

use super::heads::{Heads, Operands, Scores, Window};
use super::online_softmax::{AttentionSums, CacheBuffers, OfHead, attended, attended_in, kernel_with_entries};
use super::request::{AttentionRequest, Entries, ItemDivision, KernelOffer, Lookahead, Reason};
use crate::catalogue::{Row, row};
use crate::generator::blocks;
use crate::generator::cache::Cache;
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors, check};
use crate::generator::reference::{Mismatch, Run, close};
use crate::generator::signature::{BufferContents, NamedValue, Signature};
use crate::generator::text::spec;
use crate::generator::work::{Call, Work};

/// Number of query heads in a band, if the query heads of a key head are divided. With eight heads,
/// each load of a key or value is used often enough.
const BAND: u32 = 8;

spec! {
    /// Attention of `group` query heads over one key head. A row sees the last `window` positions
    /// and all complete entries. An item is one row and one column; columns are key heads.
    pub struct AttentionEntries "attention_entries" {
        ..heads: Heads,
        ..scores: Scores,
        /// Number of positions that a row sees, including its own.
        pub window: u32,
        /// Number of positions of an entry.
        pub every: u32,
        /// Maximum number of entries that a row sees, if an index chooses them.
        pub chosen: Option<u32>,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("attention_entries", 6, "attention_entries group=8 d=512 dv=512 scale=0.044194173 sinks window=128 every=4"),
    row("attention_entries_chosen", 16, "attention_entries group=8 d=512 dv=512 scale=0.044194173 sinks window=128 every=4 chosen=512"),
];

impl AttentionEntries {
    /// Returns the spec of this kernel for a request, and the sizes of its items.
    ///
    /// # Errors
    /// Returns the first reason why the kernel does not accept the request.
    pub fn accepts(request: &AttentionRequest) -> Result<KernelOffer, Reason> {
        let AttentionRequest { heads, scores, .. } = *request;
        let Entries { every, chosen, cache } = request.entries.ok_or(Reason::NoEntries)?;
        Reason::Blocks.refuse_if([request.cache, cache].iter().any(|cache| *cache != Cache::default()))?;
        let Some(Window { positions: window, chunked: false, .. }) = request.window else {
            return Err(Reason::WindowOfEntries);
        };
        Reason::Lookahead.refuse_if(request.ahead != Lookahead::Nothing)?;
        Reason::Chosen.refuse_if(request.chosen)?;
        Reason::Cap.refuse_if(scores.cap.is_some())?;
        Reason::Slopes.refuse_if(scores.slopes)?;
        let spec = AttentionEntries { heads, scores, window, every, chosen };
        // With few rows, there may be too few items for all threads if many query heads share a key
        // head.
        let division = match heads.group > BAND && heads.group.is_multiple_of(BAND) {
            true => {
                let heads = Heads { group: BAND, ..heads };
                ItemDivision::Heads { group: BAND, spec: AttentionEntries { heads, ..spec }.into() }
            }
            false => ItemDivision::Whole,
        };
        Ok(KernelOffer {
            spec: spec.into(),
            row_chunk: 1,
            division,
            why: "the chosen kernel reads compressed entries",
            larger: None,
        })
    }

    fn operands(&self) -> Operands {
        Operands { heads: self.heads, scores: self.scores, cache: Cache::default() }
    }

    /// Returns a dim: the number of blocks of entries that a row sees.
    fn entries(&self) -> DimExpr {
        let AttentionEntries { every, chosen, .. } = *self;
        match chosen {
            Some(top_k) => blocks::of_top_k(top_k, every),
            None => blocks::whole(every),
        }
    }
}

impl Definition for AttentionEntries {
    fn name(&self) -> String {
        let AttentionEntries { heads, scores, window, every, chosen } = *self;
        let chosen = chosen.map_or(String::new(), |chosen| format!("_chosen{chosen}"));
        format!("attention_entries{every}_w{window}{}_{}{chosen}", heads.name(), scores.name())
    }

    fn signature(&self) -> Signature {
        let entries = [
            NamedValue { name: "whole", value: BufferContents::Whole },
            NamedValue { name: "entry_keys", value: BufferContents::Halves },
            NamedValue { name: "entry_values", value: BufferContents::Halves },
        ];
        self.operands()
            .signature(&entries, "y")
            .dim("full", blocks::full())
            .dim("masked", blocks::masked_blocks())
            .dim("first", blocks::first())
            .dim("entries", self.entries())
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let AttentionEntries { scores: Scores { cap, slopes, .. }, window, every, .. } = *self;
        for (what, n) in [("a window of positions", window), ("positions of an entry", every)] {
            check(&name, what, n.into(), n > 0 && i32::try_from(n).is_ok(), "at least 1")?;
        }
        for (what, is_there) in [("a cap", cap.is_some()), ("slopes", slopes)] {
            check(&name, what, is_there.into(), !is_there, "none")?;
        }
        kernel_with_entries(name, vectors.lanes, self.operands(), window)
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let AttentionEntries { heads: Heads { group, d, dv }, scores, window, .. } = *self;
        let (input, output) = (run.input(), run.output());
        let (d, dv) = (d as usize, dv as usize);
        let (q, y) = (input.floats("q")?, output.floats("y")?);
        let first = 32 * run.dim("first") as usize;
        let (own, whole) = (input.id("position")?, input.id("whole")?);
        let whole = whole.min(32 * run.dim("entries") as usize);
        let seen: Vec<usize> = (0..whole).collect();
        for h in 0..group as usize {
            let q = &q[h * d..][..d];
            let from = (own + 1).saturating_sub(window as usize).max(first);
            let sink = if scores.sinks { Some(input.floats("sinks")?[h]) } else { None };
            let places = from - first..own + 1 - first;
            let AttentionSums { mut max, mut sum, mut acc } =
                attended(&input, q, dv, Cache::default(), &scores, places, OfHead { sink, slope: None })?;
            if !seen.is_empty() {
                let (keys, values, cache) = ("entry_keys", "entry_values", Cache::default());
                let buffers = CacheBuffers { keys, values, dv, cache };
                let of_entries = attended_in(&input, buffers, q, &scores, &seen, OfHead::default())?;
                let top = max.max(of_entries.max);
                let [past, new] = [max, of_entries.max].map(|max| (max - top).exp());
                (max, sum) = (top, sum * past + of_entries.sum * new);
                acc.iter_mut().zip(of_entries.acc).for_each(|(acc, x)| *acc = *acc * past + x * new);
            }
            debug_assert!(max.is_finite());
            for (e, acc) in acc.iter().enumerate() {
                close(format_args!("y[{h}, {e}]"), y[h * dv + e], acc / sum, 1e-4)?;
            }
        }
        Ok(())
    }

    fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        // The window begins after the first position.
        vec![i64::from(rows) - 1, 1, 8, i64::from(rows) - 1]
    }

    fn work(&self, call: &Call<'_>) -> Work {
        let (of_window, entries) = (&call.dims[..2], call.dims.get(3).copied().unwrap_or(0));
        let blocks = of_window.iter().sum::<i64>() + entries;
        let multiply_adds =
            u64::from(self.heads.group) * u64::from(self.heads.elements()) * 32 * blocks.max(0).unsigned_abs();
        let bytes = ["keys", "values", "entry_keys", "entry_values"].iter().map(|name| call.bytes(name)).sum();
        Work { bytes, multiply_adds, arithmetic: crate::generator::work::Arithmetic::F32 }
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
