//! Requested blockings, by the names of weights.

use ixc_kernels::tiling::Use;

use crate::options::OptionValue;

/// Requested blockings, by the names of weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(pub Vec<Override>);

/// Requested blocking for weights whose names match a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// A name, in which `*` is any text and `?` any character.
    pub pattern: String,
    /// Weight rows of an item.
    pub rows: Option<u64>,
    /// Kernels by rows; empty if cache sizes choose them.
    pub uses: Vec<Use>,
}

impl Override {
    /// Reads an override such as `PATTERN: rows=32 gemv<=5/5x16 gemm/48`.
    pub fn read(text: &str) -> Option<Override> {
        let (pattern, asked) = text.split_once(':')?;
        let (mut rows, mut uses) = (None, Vec::new());
        for word in asked.split_whitespace() {
            match word.strip_prefix("rows=") {
                Some(number) if rows.is_none() => rows = Some(number.parse().ok()?),
                Some(_) => return None,
                None => uses.push(word.parse::<Use>().ok()?),
            }
        }
        let ascend = uses.windows(2).all(|pair| pair[0].up_to_rows < pair[1].up_to_rows);
        let complete = uses.last().is_none_or(|last| last.up_to_rows == u32::MAX);
        let pattern = pattern.trim().to_owned();
        (ascend && complete && !pattern.is_empty() && (rows.is_some() || !uses.is_empty())).then_some(Override {
            pattern,
            rows,
            uses,
        })
    }

    pub(super) fn request_text(&self) -> String {
        let rows = self.rows.map(|rows| format!("rows={rows}"));
        rows.into_iter().chain(self.uses.iter().map(Use::to_string)).collect::<Vec<_>>().join(" ")
    }
}

impl OptionValue for Overrides {
    const EXPECTED: &'static str = "PATTERN: rows=N, or PATTERN: and kernels by rows, the last without a limit, such as blk.*: rows=32 gemv<=5/5x16 gemm/48";

    fn read(text: &str) -> Option<Overrides> {
        let texts = text.split(';').map(str::trim).filter(|text| !text.is_empty());
        texts.map(Override::read).collect::<Option<_>>().map(Overrides)
    }

    fn text(&self) -> String {
        self.0.iter().map(|each| format!("{}: {}", each.pattern, each.request_text())).collect::<Vec<_>>().join("; ")
    }
}
