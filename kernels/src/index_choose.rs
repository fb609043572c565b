//! Which positions a row attends to, by the scores that parts of them have ([`crate::IndexScores`]): as [`crate::IndexTopK`] chooses, which says how.

use ixc_ir::kernel::{Kernel, KernelBuilder};
use ixc_ir::plan::ATTENTION_BLOCK;

use crate::catalogue::{Row, row};
use crate::definition::Definition;
use crate::generate::{GenerateError, MAX_POSITIONS, Vectors, check};
use crate::index_top_k::Scored;
use crate::reference::{Mismatch, Run, close};
use crate::signature::{Holds, Signature};
use crate::text::spec;

const BLOCK: i64 = ATTENTION_BLOCK as i64;

spec! {
    /// A bit for each of the places with the highest scores, of equal ones the first. Scores are integers, of which the lowest is no place's.
    pub struct IndexChoose "index_choose" {
        /// Places that are chosen, where there are more.
        pub chosen: u32,
        /// Most places.
        pub positions: u32,
    }
}

/// Representative ones.
#[rustfmt::skip] // One line each.
const ROWS: &[Row] = &[
    row("index_choose", 1024, "index_choose chosen=2048 positions=163840"),
];

impl Definition for IndexChoose {
    fn name(&self) -> String {
        let IndexChoose { chosen: top_k, positions } = *self;
        format!("index_choose{top_k}_p{positions}")
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("parts", Holds::Bytes)
            .write("chosen", Holds::Bytes)
            .optional_scratch("scratch")
            .dim_of_task("blocks")
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let IndexChoose { chosen: top_k, positions } = *self;
        check(&name, "chosen places", top_k.into(), top_k > 0, "at least 1")?;
        let limit = format!("1 to {MAX_POSITIONS}");
        check(&name, "places", positions.into(), (1..=MAX_POSITIONS).contains(&i64::from(positions)), limit)?;
        let mut b = KernelBuilder::new(name);
        let blocks = b.dim("blocks", 0, i64::from(positions.div_ceil(ATTENTION_BLOCK)));
        let (scores, chosen) = (b.read("parts", blocks * (BLOCK * 4)), b.write("chosen", blocks * 4));
        Scored { lanes: vectors.lanes, scores, blocks: blocks.into() }.choose(&mut b, chosen, top_k, positions);
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let scores = run.input().ints("parts")?;
        let words = run.output().ints("chosen")?;
        let mut order: Vec<usize> = (0..scores.len()).filter(|&p| scores[p] > i32::MIN).collect();
        order.sort_by_key(|&p| (std::cmp::Reverse(scores[p]), p));
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
