//! Scores of a part of a row's positions. Positions are chosen by these scores
//! ([`crate::ops::index_top_k`]). A step of one row has few items, so threads divide the row's
//! positions into parts. [`crate::IndexChoose`] chooses from the scores of all parts.

use ixc_ir::kernel::{Kernel, KernelBuilder, Type};
use ixc_ir::plan::ATTENTION_BLOCK;

use crate::catalogue::{Row, row};
use crate::generator::blocks;
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, MAX_POSITIONS, Vectors, check};
use crate::generator::reference::{Mismatch, Run, UNIT, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::work::{Arithmetic, Call, Work};
use crate::ops::index_top_k::{BlockScores, Index, last_entry};

const BLOCK: i64 = ATTENTION_BLOCK as i64;

spec! {
    /// Scores of the positions of one part, as integers in the same order as the floats. Positions
    /// after the row's position have the lowest integer, and all other positions a higher one.
    pub struct IndexScores "index_scores" {
        /// Number of query heads of the index.
        pub heads: u32,
        /// Number of elements of a query or key.
        pub d: u32,
        /// Maximum number of positions.
        pub positions: u32,
        /// Number of positions of an entry, if entries are scored.
        pub every: Option<u32>,
        /// Whether the index has only one head, whose products are the scores.
        pub plain: bool,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("index_scores", 128, "index_scores heads=64 d=128 positions=163840"),
    row("index_scores_plain", 128, "index_scores heads=1 d=128 positions=524288 plain"),
    row("index_scores_entries", 128, "index_scores heads=64 d=128 positions=1048576 every=4"),
];

impl Definition for IndexScores {
    fn name(&self) -> String {
        let IndexScores { heads, d, positions, every, plain } = *self;
        let every = every.map_or(String::new(), |every| format!("e{every}"));
        let plain = if plain { "_plain" } else { "" };
        format!("index_scores_h{heads}d{d}p{positions}{every}{plain}")
    }

    fn signature(&self) -> Signature {
        let signature =
            Signature::new().read("q", BufferContents::Floats).read_if(!self.plain, "w", BufferContents::Floats);
        let signature = match self.every {
            Some(_) => signature.read("whole", BufferContents::Whole),
            None => signature.read("position", BufferContents::Positions),
        };
        signature
            .read("keys", BufferContents::Halves)
            .write("part", BufferContents::Bytes)
            .optional_scratch("scores")
            .dim("first", blocks::first())
            .dim("places", blocks::whole_of_part(self.every.unwrap_or(1)))
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let IndexScores { heads, d, positions, every, plain } = *self;
        let sizes = [("heads", heads), ("elements of a key", d), ("positions of an entry", every.unwrap_or(1))];
        sizes.into_iter().try_for_each(|(what, n)| check(&name, what, n.into(), n > 0, "at least 1"))?;
        let limit = format!("1 to {MAX_POSITIONS}");
        check(&name, "positions", positions.into(), (1..=MAX_POSITIONS).contains(&i64::from(positions)), limit)?;
        check(&name, "heads", heads.into(), heads == 1 || !plain, "1 where products are scores")?;
        let mut b = KernelBuilder::new(name);
        let most = i64::from(positions.div_ceil(every.unwrap_or(1)).div_ceil(ATTENTION_BLOCK));
        let (first, blocks) = (b.dim("first", 0, most), b.dim("places", 0, most));
        let (heads, d) = (i64::from(heads), i64::from(d));
        let q = b.read("q", heads * d * 4);
        let w = (!plain).then(|| b.read("w", heads * 4));
        let own = b.read(if every.is_some() { "whole" } else { "position" }, 4);
        let keys = b.read("keys", blocks * (BLOCK * d * 2));
        let scores = b.write("part", blocks * (BLOCK * 4));
        let last = match every {
            Some(_) => last_entry(&mut b, own),
            None => b.load(Type::i32(1), own, 0),
        };
        let scored = BlockScores { lanes: vectors.lanes, scores, blocks: blocks.into() };
        Index { scored, heads, d, q, w, keys, first: first.into() }.scores(&mut b, last);
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (heads, d) = (self.heads as usize, self.d as usize);
        let input = run.input();
        let (q, keys) = (input.floats("q")?, input.halves("keys")?);
        let w = if self.plain { Vec::new() } else { input.floats("w")? };
        let first = 32 * run.dim("first") as usize;
        let end = match self.every {
            Some(_) => input.id("whole")?,
            None => input.id("position")? + 1,
        };
        let found = run.output().ints("part")?;
        for (p, found) in found.into_iter().enumerate() {
            if first + p >= end {
                close(format_args!("what place {p} has for a score"), found.into(), i32::MIN.into(), 0.0)?;
                continue;
            }
            let key = |e: usize| keys[(p / 16 * d + e) * 16 + p % 16];
            let head = |h: usize| {
                let products = (0..d).map(|e| q[h * d + e] * key(e));
                let (sum, size) = (products.clone().sum::<f64>(), products.map(f64::abs).sum::<f64>());
                if self.plain { (sum, size) } else { (w[h] * sum.max(0.0), w[h].abs() * size) }
            };
            let (score, size) = (0..heads).map(head).fold((0.0, 0.0), |(s, m), (x, own)| (s + x, m + own));
            // Converts ordered integers back to floats.
            let bits = if found < 0 { found ^ i32::MAX } else { found };
            let found = f64::from(f32::from_bits(bits as u32));
            close(format_args!("the score of place {p}"), found, score, size * (d + heads + 2) as f64 * UNIT)?;
        }
        Ok(())
    }

    fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        // The first dim is not 0, so this is a part that is not the first.
        vec![8, rows.into()]
    }

    fn work(&self, call: &Call<'_>) -> Work {
        let blocks = call.dims.last().copied().unwrap_or(0).max(0).unsigned_abs();
        let multiply_adds = u64::from(self.heads) * u64::from(self.d) * 32 * blocks;
        Work { bytes: call.bytes("keys"), multiply_adds, arithmetic: Arithmetic::F32 }
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
