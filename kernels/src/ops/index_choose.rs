//! Choice of the positions that a row attends to, from the scores of all parts of the positions
//! ([`crate::IndexScores`]). The rule is that of [`crate::IndexTopK`].

use ixc_ir::kernel::{BufferKind, Kernel, KernelBuilder};
use ixc_ir::plan::ATTENTION_BLOCK;

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, MAX_POSITIONS, Vectors, check};
use crate::generator::reference::{Mismatch, Run, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::ops::index_top_k::{BlockScores, Blocks, PositionScores};

const BLOCK: i64 = ATTENTION_BLOCK as i64;

spec! {
    /// Bits for the places with the highest scores. Of places with equal scores, the first is
    /// chosen. Scores are integers; the lowest integer marks places that do not exist.
    pub struct IndexChoose "index_choose" {
        /// Number of places to choose, if there are more.
        pub chosen: u32,
        /// Maximum number of places.
        pub positions: u32,
        /// Number of positions of a block, if blocks are chosen.
        pub every: Option<u32>,
        /// Number of blocks before and including the last position's block that are always chosen.
        pub local: Option<u32>,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("index_choose", 1024, "index_choose chosen=2048 positions=163840"),
    row("index_choose_blocks", 1024, "index_choose chosen=2048 positions=524288 every=128 local=1"),
];

impl Definition for IndexChoose {
    fn name(&self) -> String {
        let IndexChoose { chosen: top_k, positions, every, local } = *self;
        let [every, local] =
            [("e", every), ("l", local)].map(|(what, n)| n.map_or(String::new(), |n| format!("{what}{n}")));
        format!("index_choose{top_k}_p{positions}{every}{local}")
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("parts", BufferContents::Bytes)
            .write("chosen", BufferContents::Bytes)
            .optional_scratch("scratch")
            .dim_of_task("blocks")
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let IndexChoose { chosen: top_k, positions, every, local } = *self;
        check(&name, "chosen places", top_k.into(), top_k > 0, "at least 1")?;
        let limit = format!("1 to {MAX_POSITIONS}");
        check(&name, "places", positions.into(), (1..=MAX_POSITIONS).contains(&i64::from(positions)), limit)?;
        let of_blocks =
            local.map(|local| Blocks { top_k, every: every.unwrap_or(1), local }.check(&name)).transpose()?;
        check(
            &name,
            "positions of a block",
            every.unwrap_or(1).into(),
            every.is_none() || local.is_some(),
            "with local ones",
        )?;
        let mut b = KernelBuilder::new(name);
        let blocks = b.dim("blocks", 0, i64::from(positions.div_ceil(ATTENTION_BLOCK)));
        let (scores, chosen) = (b.read("parts", blocks * (BLOCK * 4)), b.write("chosen", blocks * 4));
        if let Some(of) = of_blocks {
            let bytes = blocks * (BLOCK * 4);
            let shared = b.buffer("scratch", BufferKind::Scratch, bytes.clone() + of.best_bytes(blocks.into()));
            let scored = BlockScores { lanes: vectors.lanes, scores: shared, blocks: blocks.into() };
            let own = scored.last(&mut b, scores);
            let from = PositionScores { buffer: scores, best: bytes, own };
            scored.choose_blocks(&mut b, &of, &from, chosen, positions);
            return Ok(b.finish());
        }
        BlockScores { lanes: vectors.lanes, scores, blocks: blocks.into() }.choose(&mut b, chosen, top_k, positions);
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let scores = run.input().ints("parts")?;
        let words = run.output().ints("chosen")?;
        if let (Some(every), Some(local)) = (self.every, self.local) {
            return self.reference_of_blocks(&scores, &words, every as usize, local as usize);
        }
        let mut order: Vec<usize> = (0..scores.len()).filter(|&p| scores[p] > i32::MIN).collect();
        order.sort_unstable_by_key(|&p| (std::cmp::Reverse(scores[p]), p));
        let mut expected = vec![0i32; words.len()];
        for &p in order.iter().take(self.chosen as usize) {
            expected[p / 32] |= 1 << (p % 32);
        }
        for (block, (found, expected)) in words.into_iter().zip(expected).enumerate() {
            close(format_args!("the bits of block {block}"), found.into(), expected.into(), 0.0)?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}

impl IndexChoose {
    fn reference_of_blocks(&self, scores: &[i32], words: &[i32], every: usize, local: usize) -> Result<(), Mismatch> {
        let seen = scores.iter().filter(|score| **score > i32::MIN).count();
        let first_local = (seen.saturating_sub(1) / every + 1).saturating_sub(local);
        let highest = |block: &[i32]| block.iter().copied().max().unwrap_or(i32::MIN).min(i32::MAX - 1);
        let highest: Vec<i32> = scores.chunks(every).take(first_local).map(highest).collect();
        let mut order: Vec<usize> = (0..highest.len()).collect();
        order.sort_unstable_by_key(|&block| (std::cmp::Reverse(highest[block]), block));
        order.truncate(self.chosen as usize / every - local);
        for p in 0..words.len() * 32 {
            let expected = p < seen && (p / every >= first_local || order.contains(&(p / every)));
            let found = words[p / 32] >> (p % 32) & 1;
            close(format_args!("the bit of position {p}"), found.into(), expected.into(), 0.0)?;
        }
        Ok(())
    }
}
