//! Limits of typed specs: sizes that every generator can handle, and formats only in valid places.

use ixc_ir::format::Format;

use crate::signature::Holds;
use crate::{KernelSpec, SpecError};

/// Largest sizes: many times those of any model, and small enough that no generator overflows or
/// unrolls without end.
pub static LIMITS: &[(&str, u32)] = &[
    ("n", 1 << 24),
    ("row", 1 << 24),
    ("k", 1 << 20),
    ("tile", 1 << 16),
    ("rows", 1 << 24),
    ("bytes", 1 << 24),
    // In Mamba-1 each element of a row is a head.
    ("heads", 1 << 16),
    ("group", 1 << 8),
    ("size", 1 << 12),
    ("d", 1 << 12),
    ("dv", 1 << 12),
    ("dims", 1 << 12),
    ("experts", 1 << 12),
    ("top_k", 1 << 8),
    ("groups", 1 << 12),
    ("kept", 1 << 12),
    ("of", 1 << 12),
    ("p", 1 << 12),
    ("s", 1 << 12),
    ("slots", 1 << 8),
    ("parts", 1 << 12),
    ("channels", 1 << 24),
    ("taps", 1 << 4),
    ("dilation", 1 << 4),
    ("window", 1 << 24),
    ("every", 1 << 24),
    ("positions", 1 << 24),
    ("chosen", 1 << 24),
    ("local", 1 << 12),
    ("words", 1 << 19),
    ("listed", 1 << 24),
    ("streams", 1 << 3),
    ("iterations", 1 << 6),
];

impl KernelSpec {
    /// Returns the number of elements of the rows that are read: `k` for products, else `n`, if the
    /// spec has them.
    pub(crate) fn row_len(&self) -> Option<usize> {
        let text = self.to_string();
        let field = |name: &str| text.split(' ').find_map(|word| word.strip_prefix(name)?.parse().ok());
        field("k=").or_else(|| field("n="))
    }

    /// Refuses specs that no schedule requests and generators need not handle: huge sizes, and
    /// formats in invalid places.
    ///
    /// # Errors
    /// The field and its valid values.
    pub fn check(&self) -> Result<(), SpecError> {
        let text = self.to_string();
        let pairs = text.split(' ').filter_map(|word| word.split_once('='));
        for (name, found) in pairs.filter_map(|(name, value)| Some((name, value.parse::<u32>().ok()?))) {
            if let Some(&(field, most)) = LIMITS.iter().find(|(field, most)| *field == name && found > *most) {
                let expected = format!("at most {most}");
                return Err(SpecError::Value { field, found: found.to_string(), expected });
            }
        }
        self.signature().buffers.iter().try_for_each(|buffer| check_format(buffer.holds))
    }
}

fn check_format(holds: Holds) -> Result<(), SpecError> {
    let (format, field, ok, expected) = match holds {
        Holds::Weight(format, field) => (format, field, format.is_weight(), "a weight's format"),
        Holds::Strip(format, field) => (format, field, format.unpacked().is_some(), "a packed format"),
        Holds::Table(format, field) => {
            (format, field, format.is_weight() && format.rows() == 1, "the format of a weight that is not packed")
        }
        Holds::Activations(format, field) => {
            (format, field, format == Format::F32 || !format.is_weight(), "a format of activations")
        }
        Holds::Floats
        | Holds::Positive
        | Holds::Negative
        | Holds::Slopes
        | Holds::Halves
        | Holds::Panels(_)
        | Holds::Positions
        | Holds::Whole
        | Holds::Ids
        | Holds::Bytes => return Ok(()),
    };
    if ok { Ok(()) } else { Err(SpecError::Value { field, found: format.to_string(), expected: expected.into() }) }
}
