//! Tiling: the division of a weight's products into items, and the kernel for each number of rows.
//! The pass `tile` writes it as text, and the pass `lower` uses it.
//!
//! ```text
//! rows=64 gemv<=5/5x16 gemm<=15/15 tiles/256; rows=16 gemv<=5/5 gemm/96
//! ```
//!
//! This text means: items of 64 weight rows as long as they fit, then items of 16. For an item of
//! 64 weight rows, `gemv` multiplies up to 5 rows of activations, and `gemm` up to 15. `tiles`
//! multiplies more rows, at most 256 at a time. `5x16` is 5 rows of activations times 16 weight
//! rows: with many threads, the item can be divided into 4 bands of 16 weight rows
//! ([`ixc_ir::plan::Bands`]). `gemv<=5/5x16@2048/2` also has a [pace](super::pace): the prefetch
//! distance and the unrolling.
//!
//! The input is hostile text, and an error states the expected form. Invariants:
//! - Items and chunks have at least one row.
//! - Bands divide the rows of an item.
//! - Limits ascend, and the last kernel of a part accepts any number of rows.

use std::fmt;
use std::str::FromStr;

use super::MatmulStrategy;
use super::pace::Pace;
use crate::generator::text::{Value, Words};

/// Tiling of a weight's products.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Parts of the weight's rows, each with its own item size, one after the other.
    pub parts: Vec<RowTiles>,
}

/// Items with the same number of weight rows: as many as fit into the remaining rows of the weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowTiles {
    /// Number of weight rows of an item.
    pub rows: u64,
    /// Kernels for ranges of rows of activations, in ascending order.
    pub uses: Vec<Use>,
}

/// A kernel for a range of numbers of rows of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Kernel that computes these rows.
    pub strategy: MatmulStrategy,
    /// Maximum number of rows for which the kernel is used, or `u32::MAX` for any number.
    pub up_to_rows: u32,
    /// Maximum number of rows of activations of an item.
    pub row_chunk: u32,
    /// Number of weight rows of a band, if items can be divided into bands.
    pub band: Option<u32>,
    /// Prefetch distance and unrolling.
    pub pace: Pace,
}

/// Location of a part in a weight: `columns` items, from weight row `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartPlace<'t> {
    /// The part.
    pub part: &'t RowTiles,
    /// First weight row of the part.
    pub first: u64,
    /// Number of items in the part.
    pub columns: u64,
}

/// Reason why text is not a tiling, or why a tiling does not fit its weight.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TilingError {
    /// A word that no tiling contains.
    #[error(
        "unknown word {found:?}; expected rows=N, or a kernel with its limit and its rows: gemv<=5/5x16, gemm/96, tiles/256"
    )]
    Word {
        /// The unknown word.
        found: String,
    },
    /// A name that is not a kernel.
    #[error("there is no kernel of products called {found:?}; the kernels are {}", MatmulStrategy::expected_text())]
    Kernel {
        /// The name.
        found: String,
    },
    /// Text that is not a number, or whose number is out of range.
    #[error("{found:?} is not a number from 1 to {}", u32::MAX - 1)]
    Number {
        /// Text at the place of the number.
        found: String,
    },
    /// Text that is not a pace.
    #[error("{found:?} is not a prefetch distance and an unrolling; expected {}", <Pace as Value>::expected_text())]
    Pace {
        /// Text at the place of the pace.
        found: String,
    },
    /// A part that does not begin with the number of its item's rows.
    #[error("a tiling must begin with rows=N, given once")]
    Rows,
    /// A part whose kernels do not cover all numbers of rows.
    #[error("limits must ascend, and the last kernel of a part must have no limit, such as gemv<=5/5 gemm/96")]
    Limits,
    /// Bands that do not divide the item's weight rows.
    #[error("{rows} rows are not two or more bands of {band} rows")]
    Band {
        /// Number of weight rows of a band.
        band: u32,
        /// Number of weight rows of an item.
        rows: u64,
    },
    /// Bands that are not whole blocks of results, in items with several blocks.
    #[error(
        "bands of {band} rows do not fit items of {rows} rows, because results are quantised in blocks of {block}; expected items of one block"
    )]
    Block {
        /// Number of weight rows of a band.
        band: u32,
        /// Number of weight rows of an item.
        rows: u64,
        /// Number of results that are quantised together.
        block: u64,
    },
    /// Items with more rows of activations than the kernel accepts.
    #[error("an item has {rows} rows of activations; the kernel takes at most {most}")]
    Chunk {
        /// Maximum number of rows of activations of an item.
        rows: u32,
        /// Maximum number of rows that the kernel accepts.
        most: u32,
    },
    /// A tiling whose work items do not cover the weight's rows exactly.
    #[error("the parts of the tiling end at row {end}; the weight has {rows} rows")]
    Length {
        /// End of the last part, in weight rows.
        end: u64,
        /// Number of rows of the weight.
        rows: u64,
    },
}

impl Tiling {
    /// Returns the location of each part, in a weight of `rows` rows.
    ///
    /// # Errors
    /// Fails with [`TilingError::Length`].
    pub fn place(&self, rows: u64) -> Result<Vec<PartPlace<'_>>, TilingError> {
        let mut first = 0;
        let mut placed = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let columns = (rows - first) / part.rows.max(1);
            if columns > 0 {
                placed.push(PartPlace { part, first, columns });
                first += columns * part.rows;
            }
        }
        if first == rows { Ok(placed) } else { Err(TilingError::Length { end: first, rows }) }
    }
}

impl RowTiles {
    /// Returns the number of bands of an item for one of the part's kernels, or `None` if its items
    /// are not divided.
    ///
    /// # Errors
    /// Fails with [`TilingError::Band`].
    pub fn bands(&self, each: &Use) -> Result<Option<u64>, TilingError> {
        let Some(band) = each.band else { return Ok(None) };
        let count = self.rows / u64::from(band.max(1));
        match self.rows.is_multiple_of(band.into()) && count > 1 {
            true => Ok(Some(count)),
            false => Err(TilingError::Band { band, rows: self.rows }),
        }
    }
}

impl fmt::Display for Tiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, part) in self.parts.iter().enumerate() {
            write!(f, "{}{part}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl fmt::Display for RowTiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows={}", self.rows)?;
        self.uses.iter().try_for_each(|each| write!(f, " {each}"))
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.strategy.word())?;
        if self.up_to_rows < u32::MAX {
            write!(f, "<={}", self.up_to_rows)?;
        }
        write!(f, "/{}", self.row_chunk)?;
        self.band.map_or(Ok(()), |band| write!(f, "x{band}"))?;
        if self.pace == Pace::default() { Ok(()) } else { write!(f, "@{}", self.pace) }
    }
}

fn number(text: &str) -> Result<u32, TilingError> {
    let number = text.parse().ok().filter(|n| (1..u32::MAX).contains(n));
    number.ok_or_else(|| TilingError::Number { found: text.chars().take(32).collect() })
}

impl FromStr for Use {
    type Err = TilingError;

    fn from_str(text: &str) -> Result<Use, TilingError> {
        let word = || TilingError::Word { found: text.chars().take(32).collect() };
        let (text, pace) = match text.split_once('@') {
            Some((text, pace)) => {
                let found = || TilingError::Pace { found: pace.chars().take(32).collect() };
                (text, pace.parse().map_err(|()| found())?)
            }
            None => (text, Pace::default()),
        };
        let (kernel, chunk) = text.split_once('/').ok_or_else(word)?;
        let (name, limit) = match kernel.split_once("<=") {
            Some((name, limit)) => (name, number(limit)?),
            None => (kernel, u32::MAX),
        };
        let found = <MatmulStrategy as Value>::read(Some(name));
        let strategy = found.ok_or_else(|| TilingError::Kernel { found: name.chars().take(32).collect() })?;
        let (chunk, band) = match chunk.split_once('x') {
            Some((chunk, band)) => (chunk, Some(number(band)?)),
            None => (chunk, None),
        };
        Ok(Use { strategy, up_to_rows: limit, row_chunk: number(chunk)?, band, pace })
    }
}

impl FromStr for RowTiles {
    type Err = TilingError;

    fn from_str(text: &str) -> Result<RowTiles, TilingError> {
        let mut words = text.split_whitespace();
        let rows = words.next().and_then(|word| word.strip_prefix("rows=")).ok_or(TilingError::Rows)?;
        let rows = number(rows)?.into();
        let uses: Vec<Use> = words.map(str::parse).collect::<Result<_, _>>()?;
        let ascend = uses.windows(2).all(|pair| pair[0].up_to_rows < pair[1].up_to_rows);
        if !ascend || uses.last().is_none_or(|last| last.up_to_rows != u32::MAX) {
            return Err(TilingError::Limits);
        }
        let tiles = RowTiles { rows, uses };
        tiles.uses.iter().try_for_each(|each| tiles.bands(each).map(drop))?;
        Ok(tiles)
    }
}

impl FromStr for Tiling {
    type Err = TilingError;

    fn from_str(text: &str) -> Result<Tiling, TilingError> {
        Ok(Tiling { parts: text.split(';').map(str::parse).collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_reads_back() {
        for text in [
            "rows=32 gemm/96@0/1",
            "rows=32 gemv<=5/5x16@2048/2 gemm/96",
            "rows=64 gemv<=5/5x16 gemm<=15/15 tiles/256; rows=16 gemv<=5/5 gemm/96",
        ] {
            assert_eq!(text.parse::<Tiling>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn invalid_tiling_text_is_an_error_with_expectation() {
        let error = |text: &str| text.parse::<Tiling>().unwrap_err().to_string();
        assert_eq!(error(""), "a tiling must begin with rows=N, given once");
        assert_eq!(
            error("rows=32"),
            "limits must ascend, and the last kernel of a part must have no limit, such as gemv<=5/5 gemm/96"
        );
        assert_eq!(error("rows=32 gemm/96 gemv/5"), error("rows=32"));
        assert_eq!(error("rows=0 gemm/96"), "\"0\" is not a number from 1 to 4294967294");
        assert_eq!(error("rows=32 gemm/4294967295"), "\"4294967295\" is not a number from 1 to 4294967294");
        assert_eq!(error("rows=32 gemv<=5/5x0 gemm/96"), "\"0\" is not a number from 1 to 4294967294");
        assert_eq!(error("rows=32 gemv<=5/5x gemm/96"), "\"\" is not a number from 1 to 4294967294");
        assert_eq!(error("rows=32 gemv<=5/5x24 gemm/96"), "32 rows are not two or more bands of 24 rows");
        assert_eq!(error("rows=32 gemv<=5/5x32 gemm/96"), "32 rows are not two or more bands of 32 rows");
        assert_eq!(
            error("rows=32 magic/96"),
            "there is no kernel of products called \"magic\"; the kernels are gemv|gemm|gemm6|tiles"
        );
        assert!(error("rows=32 gemm").starts_with("unknown word \"gemm\"; expected rows=N, or a kernel"));
        assert!(
            error("rows=32 gemm/96@1/1")
                .starts_with("\"1/1\" is not a prefetch distance and an unrolling; expected bytes ahead")
        );
        assert_eq!(error("rows=32 gemm/96;"), error(""));
    }

    #[test]
    fn parts_cover_the_weight_or_are_refused() {
        let tiling: Tiling = "rows=32 gemm/96; rows=8 gemm/96".parse().unwrap();
        let placed: Vec<_> = tiling.place(104).unwrap().iter().map(|p| (p.first, p.columns, p.part.rows)).collect();
        assert_eq!(placed, [(0, 3, 32), (96, 1, 8)]);
        assert_eq!(tiling.place(100), Err(TilingError::Length { end: 96, rows: 100 }));
    }
}
