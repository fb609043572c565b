//! Attention over the positions that an index chose ([`crate::IndexTopK`]), of rows or of a part of one row's positions; see [`crate::online_softmax`] for how.
//! A word of bits for each block of positions says which of them have a weight.

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::DimRule;

use crate::attention;
use crate::cache::Cache;
use crate::catalogue::{Row, row};
use crate::definition::Definition;
use crate::generate::{GenerateError, Vectors, check};
use crate::online_softmax::{Heads, MOST_ROWS, chosen_kernel};
use crate::reference::{Mismatch, Run, close};
use crate::signature::{Holds, Signature};
use crate::text::{Bits, spec};
use crate::work::{Call, Work};

spec! {
    /// As [`crate::Attention`], or with `part`, for a row alone, as [`crate::AttentionPart`]; of positions without a bit in `chosen` the weight is 0.
    pub struct AttentionChosen "attention_chosen" {
        /// Query heads that share a key head.
        pub group: u32,
        /// Elements of a query or key head.
        pub d: u32,
        /// Elements of a value head.
        pub dv: u32,
        /// Factor on the scores.
        pub scale: Bits,
        /// Key heads of a row: how far rows are apart.
        pub heads: u32,
        /// Rows of an item.
        pub rows: u32,
        /// Words of a row of bits.
        pub words: u32,
        /// Whether it is a part of the positions.
        pub part: bool,
    }
}

/// Representative ones.
#[rustfmt::skip] // One line each.
const ROWS: &[Row] = &[
    row("attention_chosen", 16, "attention_chosen group=128 d=576 dv=512 scale=0.1 heads=1 rows=1 words=5120"),
    row("attention_chosen_part", 16, "attention_chosen group=128 d=576 dv=512 scale=0.1 heads=1 rows=1 words=5120 part"),
];

impl Definition for AttentionChosen {
    fn name(&self) -> String {
        let AttentionChosen { group, d, dv, scale, heads, rows, words, part } = *self;
        let part = if part { "_part" } else { "" };
        format!("attention_chosen{part}_g{group}d{d}v{dv}h{heads}m{rows}w{words}_s{:x}", scale.0)
    }

    fn signature(&self) -> Signature {
        let signature = Signature::new()
            .read("q", Holds::Floats)
            .read("position", Holds::Positions)
            .read("keys", Holds::Halves)
            .read("values", Holds::Halves)
            .read("chosen", Holds::Bytes)
            .write(if self.part { "part" } else { "y" }, Holds::Floats)
            .scratch("scratch")
            .dim("full", DimRule::FullBlocks)
            .dim("masked", DimRule::MaskedBlocks);
        match (self.part, self.rows) {
            (true, _) => signature.dim("first", DimRule::FirstBlock),
            (false, 1) => signature,
            (false, rows) => signature.dim("groups", DimRule::RowGroups(rows)).dim("rest", DimRule::RowRest(rows)),
        }
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let AttentionChosen { group, d, dv, scale, heads, rows, words, part } = *self;
        let most = if part { 1 } else { MOST_ROWS };
        check(&name, "rows", u64::from(rows), (1..=most).contains(&rows), format!("1 to {most}"))?;
        check(&name, "key heads", u64::from(heads), heads > 0, "at least 1")?;
        let of = Heads { group, d, dv, cache: Cache::default() };
        chosen_kernel(name, vectors.lanes, of, scale, [heads, rows], part, words)
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let AttentionChosen { group, d, dv, scale, heads, words, part, .. } = *self;
        let (input, output) = (run.input(), run.output());
        let (group, d, dv, heads, words) = (group as usize, d as usize, dv as usize, heads as usize, words as usize);
        let (q, keys, values) = (input.floats("q")?, input.halves("keys")?, input.halves("values")?);
        let chosen = input.ints("chosen")?;
        let found = output.floats(if part { "part" } else { "y" })?;
        let first = 32 * run.dim("first") as usize;
        let key = |p: usize, e: usize| keys[(p / 16 * d + e) * 16 + p % 16];
        for (r, own) in input.ints("position")?.into_iter().enumerate() {
            let sees = |p: usize| chosen[r * words + (first + p) / 32] >> (p % 32) & 1 == 1;
            let seen: Vec<usize> = (0..own as usize + 1 - first).filter(|&p| sees(p)).collect();
            for h in 0..group {
                let q = &q[(r * heads * group + h) * d..][..d];
                let score = |&p: &usize| (0..d).map(|e| q[e] * key(p, e)).sum::<f64>() * f64::from(scale.value());
                let scores: Vec<f64> = seen.iter().map(score).collect();
                // What a part has before its first score.
                let max = scores.iter().copied().fold(-1e30, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let acc = |e: usize| seen.iter().zip(&weights).map(|(p, w)| w * values[p * dv + e]).sum::<f64>();
                if part {
                    let found = &found[h * (dv + 2)..][..dv + 2];
                    close(format_args!("maximum {h}"), found[dv], max, 1e-4 + 1e-6 * max.abs())?;
                    close(format_args!("sum {h}"), found[dv + 1], sum, 1e-4 * sum)?;
                    for (e, &found) in found[..dv].iter().enumerate() {
                        close(format_args!("part[{h}, {e}]"), found, acc(e), 1e-4 * sum)?;
                    }
                } else {
                    for e in 0..dv {
                        let found = found[(r * heads * group + h) * dv + e];
                        close(format_args!("y[{r}, {h}, {e}]"), found, acc(e) / sum.max(1.0), 1e-4)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        let full = i64::from(rows) - 1;
        match self.rows {
            // Not the first part.
            _ if self.part => vec![full, 1, 8],
            1 => vec![full, 1],
            _ if rows.is_multiple_of(2) => vec![full, 1, 1, 0],
            most => vec![full, 1, 0, i64::from(most) - 1],
        }
    }

    fn work(&self, call: &Call<'_>) -> Work {
        let rows = match *call.dims {
            [_, _, groups, rest] => i64::from(self.rows) * groups + rest,
            _ => 1,
        };
        attention::work(call, self.group, self.d + self.dv, rows)
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
