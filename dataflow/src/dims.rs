//! Dims of an instance's kernel. An instance works on one row at a time.

use ixc_ir::plan::{ATTENTION_BLOCK, DimError, DimExpr, DimInput, KEY_LANES};

/// A firing: an instance and its row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Firing {
    /// Number of positions in a part of the program's state; [`KEY_LANES`] without a state.
    pub positions: u32,
    /// Number of the part that the instance computes.
    pub part: u32,
    /// Position of the row's token.
    pub position: u32,
    /// Number of state parts that the program receives; 1 if it receives none.
    pub parts: u32,
}

impl Firing {
    /// Returns the firing with the largest dims. Its row is the last one of a state's first part,
    /// so it sees the whole part, and it receives all parts.
    pub(crate) fn largest(positions: Option<u32>, parts: u32) -> Firing {
        let positions = positions.unwrap_or(KEY_LANES);
        Firing { positions, part: 0, position: positions.saturating_sub(1), parts }
    }

    /// Evaluates a dim.
    ///
    /// # Errors
    /// Fails as [`DimExpr::evaluate`] does.
    pub(crate) fn dim(&self, dim: &DimExpr) -> Result<i64, DimError> {
        let value = dim.evaluate(|input| self.input(input))?;
        Ok(i64::try_from(value).unwrap_or(i64::MAX))
    }

    fn input(&self, input: DimInput) -> u64 {
        let blocks = u64::from(self.positions / ATTENTION_BLOCK);
        let begin = u64::from(self.part) * blocks;
        match input {
            // An instance gets one row, as if a step and each sequence in it had one row.
            DimInput::Rows | DimInput::Tokens | DimInput::Outputs => 1,
            DimInput::First | DimInput::Last | DimInput::Position | DimInput::TextEnd => self.position.into(),
            DimInput::Capacity => self.positions.max(KEY_LANES).into(),
            DimInput::PartBegin => begin,
            DimInput::PartEnd => begin + blocks,
            DimInput::Parts => self.parts.into(),
            // On a grid, states have no window, and columns are not in bands.
            DimInput::WindowBegin | DimInput::Skipped | DimInput::Band => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use ixc_kernels::generator::blocks;

    use super::*;

    #[test]
    fn attention_parts_cover_each_visible_block_once() {
        for position in 0..700 {
            let mut next = 0;
            for part in 0..=position / 256 {
                let firing = Firing { positions: 256, part, position, parts: 1 };
                let [full, masked, first] =
                    [blocks::full(), blocks::masked_blocks(), blocks::first()].map(|dim| firing.dim(&dim).unwrap());
                assert_eq!(first, next);
                assert!(full + masked > 0 && masked <= 1, "{position}");
                next += full + masked;
            }
            assert_eq!(next, i64::from(position / 32 + 1));
        }
        let dim = |dim: DimExpr| Firing { positions: 16, part: 0, position: 5, parts: 2 }.dim(&dim);
        assert_eq!(dim(DimInput::Parts.into()), Ok(2));
        assert_eq!(dim(DimInput::Rows / 4), Ok(0));
        assert_eq!(dim(DimInput::Rows % 4), Ok(1));
        assert_eq!(dim(DimInput::Rows / 1), Ok(1));
        assert_eq!(dim(blocks::of_cache()), Ok(1));
    }
}
