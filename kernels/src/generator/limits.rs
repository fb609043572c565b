//! Limits of specs in text form: sizes that every generator can handle, and formats that are valid
//! for each field.

use ixc_ir::format::Format;

use crate::generator::signature::BufferContents;
use crate::generator::text::{Field, FieldKind};
use crate::{KINDS, KernelSpec, SpecError};

/// Maximum values of numeric spec fields, by the field's name. They are much larger than in any
/// model. They are small enough that generators do not overflow, and that unrolled code stays
/// bounded.
static LIMITS: &[(&str, u32)] = &[
    ("n", 1 << 24),
    ("row", 1 << 24),
    ("k", 1 << 20),
    ("tile", 1 << 16),
    ("rows", 1 << 24),
    ("bytes", 1 << 24),
    // In Mamba-1, each element of a row counts as a head.
    ("heads", 1 << 16),
    ("group", 1 << 8),
    ("top_k", 1 << 8),
    ("slots", 1 << 8),
    ("channels", 1 << 24),
    ("taps", 1 << 4),
    ("dilation", 1 << 4),
    ("window", 1 << 24),
    ("every", 1 << 24),
    ("positions", 1 << 24),
    ("chosen", 1 << 24),
    ("words", 1 << 19),
    ("listed", 1 << 24),
    ("streams", 1 << 3),
    ("iterations", 1 << 6),
];

/// Maximum value of a numeric field that is not in [`LIMITS`], such as a field of a new kernel.
const DEFAULT_LIMIT: u32 = 1 << 12;

/// Returns the maximum value of the numeric spec field with this name.
pub fn limit(field: &str) -> u32 {
    LIMITS.iter().find(|(name, _)| *name == field).map_or(DEFAULT_LIMIT, |(_, most)| *most)
}

impl KernelSpec {
    /// Returns the number of elements of an input row: the field `k` of products, otherwise `n`.
    /// Returns `None` if the spec has neither field.
    pub(crate) fn row_len(&self) -> Option<usize> {
        let text = self.to_string();
        let field = |name: &str| text.split(' ').find_map(|word| word.strip_prefix(name)?.parse().ok());
        field("k=").or_else(|| field("n="))
    }

    /// Checks that sizes are within the limits of the generators, and that each format is valid for
    /// its field. Schedules request only specs that pass this check.
    ///
    /// # Errors
    /// Returns the first invalid field, with its valid values.
    pub fn check(&self) -> Result<(), SpecError> {
        let text = self.to_string();
        let kind = KINDS.iter().find(|kind| text.split(' ').next() == Some(kind.word));
        let fields = kind.map_or(&[][..], |kind| kind.fields);
        let pairs = text.split(' ').filter_map(|word| word.split_once('='));
        for (name, found) in pairs.filter_map(|(name, value)| Some((name, value.parse::<u32>().ok()?))) {
            let field = fields.iter().find(|field| field.name == name && field.holds == FieldKind::Number);
            if let Some(&Field { name: field, .. }) = field.filter(|field| found > limit(field.name)) {
                let expected = format!("at most {}", limit(field));
                return Err(SpecError::Value { field, found: found.to_string(), expected });
            }
        }
        self.signature().buffers.iter().try_for_each(|buffer| check_format(buffer.holds))
    }
}

fn check_format(holds: BufferContents) -> Result<(), SpecError> {
    let (format, field, ok, expected) = match holds {
        BufferContents::Weight(format, field) => (format, field, format.is_weight(), "a weight's format"),
        BufferContents::Strip(format, field) => (format, field, format.unpacked_format().is_some(), "a packed format"),
        BufferContents::Table(format, field) => {
            (format, field, format.is_weight() && format.rows() == 1, "the format of a weight that is not packed")
        }
        BufferContents::Activations(format, field) => {
            (format, field, format == Format::F32 || !format.is_weight(), "a format of activations")
        }
        BufferContents::Floats
        | BufferContents::Positive
        | BufferContents::Negative
        | BufferContents::Slopes
        | BufferContents::Halves
        | BufferContents::Panels(_)
        | BufferContents::Positions
        | BufferContents::Whole
        | BufferContents::Ids
        | BufferContents::Bytes => return Ok(()),
    };
    if ok { Ok(()) } else { Err(SpecError::Value { field, found: format.to_string(), expected: expected.into() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_above_their_limit_are_refused() {
        let check = |text: &str| text.parse::<KernelSpec>().unwrap().check().map_err(|error| error.to_string());
        assert_eq!(check("softmax n=16777216"), Ok(()));
        assert_eq!(check("softmax n=16777217"), Err("n is \"16777217\"; expected at most 16777216".into()));
        // The field `d` is not in the table of limits, so the default limit applies.
        assert_eq!(check("attention_part group=2 d=4096 dv=8 scale=1.0"), Ok(()));
        let error = "d is \"4097\"; expected at most 4096";
        assert_eq!(check("attention_part group=2 d=4097 dv=8 scale=1.0"), Err(error.into()));
    }
}
