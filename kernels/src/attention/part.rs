//! Attention of one row over a part of the positions. [`super::online_softmax`] describes the
//! method.

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Division;

use super::combine::AttentionCombine;
use super::heads::{Heads, Operands, Scores};
use super::online_softmax::{AttentionSums, OfHead, attended, kernel};
use super::request::{AttentionRequest, ItemDivision, KernelOffer, Reason};
use super::whole;
use crate::catalogue::{Row, row};
use crate::generator::blocks;
use crate::generator::cache::Cache;
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{Mismatch, Run, close};
use crate::generator::signature::Signature;
use crate::generator::text::spec;
use crate::generator::work::{Call, Work};

spec! {
    /// Attention of one row over a part of the positions. For each head, the buffer `part` gets the
    /// sum of weighted values, the maximum of the scores and the sum of weights. Only the first
    /// part includes sinks.
    pub struct AttentionPart "attention_part" {
        ..heads: Heads,
        ..scores: Scores,
        /// Formats of keys and values.
        #[serde(default)]
        pub cache: Cache = Cache::default(),
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("attention_part_64", 16, "attention_part group=4 d=64 dv=64 scale=0.125"),
    row("attention_part_sinks", 16, "attention_part group=8 d=64 dv=64 scale=0.125 sinks"),
    row("attention_part_slopes", 16, "attention_part group=1 d=128 dv=128 scale=0.088388346 slopes"),
    row("attention_part_cap", 16, "attention_part group=2 d=256 dv=256 scale=0.0625 cap=50.0"),
    row("attention_part_128", 16, "attention_part group=8 d=128 dv=128 scale=0.088388346"),
    row("attention_part_q8_0", 16, "attention_part group=8 d=128 dv=128 scale=0.088388346 cache=q8_0/q8_0"),
    row("attention_part_q4_0", 16, "attention_part group=4 d=64 dv=64 scale=0.125 cache=q4_0/q4_0"),
    row("attention_part_q8_0_f16", 16, "attention_part group=1 d=96 dv=80 scale=0.1 cache=q8_0/f16"),
];

impl AttentionPart {
    /// Returns the spec of this kernel for a request, and the sizes of its items.
    ///
    /// # Errors
    /// Returns the first reason why the kernel does not accept the request.
    pub fn accepts(request: &AttentionRequest) -> Result<KernelOffer, Reason> {
        let AttentionRequest { heads, scores, cache, .. } = *request;
        request.all_positions()?;
        Reason::SeveralRows.refuse_if(request.rows > 1)?;
        let division = Division::THREADS;
        let combine = AttentionCombine { group: heads.group, dv: heads.dv, parts: division.parts }.into();
        Ok(KernelOffer {
            spec: AttentionPart { heads, scores, cache }.into(),
            row_chunk: 1,
            division: ItemDivision::Positions { division, combine },
            why: "with one token there are few items, so threads take parts of the positions instead",
            larger: None,
        })
    }

    fn operands(&self) -> Operands {
        Operands { heads: self.heads, scores: self.scores, cache: self.cache }
    }
}

impl Definition for AttentionPart {
    fn name(&self) -> String {
        let AttentionPart { heads, scores, cache } = *self;
        format!("attention_part_{}_{}{}", heads.name(), scores.name(), cache.suffix())
    }

    fn signature(&self) -> Signature {
        self.operands()
            .signature(&[], "part")
            .dim("full", blocks::full())
            .dim("masked", blocks::masked_blocks())
            .dim("first", blocks::first())
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        kernel(name, vectors.lanes, self.operands(), 1, 1, true, None)
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let AttentionPart { heads: Heads { group, d, dv }, scores, cache } = *self;
        let (input, output) = (run.input(), run.output());
        let (group, d, dv) = (group as usize, d as usize, dv as usize);
        let own = input.id("position")?;
        let (q, part) = (input.floats("q")?, output.floats("part")?);
        for h in 0..group {
            let first = 32 * run.dim("first") as usize;
            let sink = if scores.sinks && first == 0 { Some(input.floats("sinks")?[h]) } else { None };
            let slope = if scores.slopes { Some(input.floats("slopes")?[h]) } else { None };
            let of_head = OfHead { sink, slope };
            let AttentionSums { max, sum, acc } =
                attended(&input, &q[h * d..][..d], dv, cache, &scores, 0..own + 1 - first, of_head)?;
            let part = &part[h * (dv + 2)..][..dv + 2];
            close(format_args!("maximum {h}"), part[dv], max, 1e-4)?;
            close(format_args!("sum {h}"), part[dv + 1], sum, 1e-4 * sum)?;
            for (e, acc) in acc.iter().enumerate() {
                close(format_args!("part[{h}, {e}]"), part[e], *acc, 1e-4 * sum)?;
            }
        }
        Ok(())
    }

    fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        // An example of a part that is not the first.
        vec![i64::from(rows) - 1, 1, 8]
    }

    fn work(&self, call: &Call<'_>) -> Work {
        whole::work(call, &self.heads, 1)
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
