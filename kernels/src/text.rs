//! Kernel specs as text: a word for the kind, then fields by name; what a person types and a report prints.
//!
//! ```text
//! linear format=q4_k k=2048 tile=32 n=2048 residual shape=gemm
//! rope_heads heads=16 d=128 dims=128 style=neox norm=1e-6
//! ```
//!
//! Owns one table with a row per variant of [`KernelSpec`], from which both directions come: a variant or a field that is missing
//! there does not compile. Fields may stand in any order; flags (`bias`), optional fields (`norm`) and activations (`x`) are left
//! out where they are not set or are what the weight's format takes. Takes hostile text; an error says what would be right.
//!
//! ```
//! use crate::spec::KernelSpec;
//!
//! let spec: KernelSpec = "linear shape=gemv format=q4_k k=256 tile=8 n=8".parse().unwrap();
//! assert_eq!(spec.to_string(), "linear format=q4_k k=256 tile=8 n=8 shape=gemv");
//! let error = "linear format=q4_k k=256".parse::<KernelSpec>().unwrap_err();
//! assert_eq!(error.to_string(), "linear needs tile=NUMBER");
//! ```
//!
//! Invariant: text reads back to an equal spec.

use std::fmt;
use std::str::FromStr;

use ixc_ir::format::{FORMATS, Format};
use ixc_ir::plan::RopeStyle;

use crate::spec::{Bits, Elementwise, KernelSpec, Score, Shape};

/// Why text is no spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The first word names no kind of kernel.
    #[error("no kind of kernel is called \"{found}\"; there are {}", kinds())]
    Kind {
        /// The word.
        found: String,
    },
    /// A field that the kind has not.
    #[error("{kind} has no field \"{found}\"; its fields are {}", fields.join(", "))]
    Field {
        /// The kind.
        kind: &'static str,
        /// The field.
        found: String,
        /// Those that it has.
        fields: &'static [&'static str],
    },
    /// A field that stands there twice.
    #[error("field {field} stands there twice")]
    Twice {
        /// The field.
        field: String,
    },
    /// A field that is not there.
    #[error("{kind} needs {field}={right}")]
    Missing {
        /// The kind.
        kind: &'static str,
        /// The field.
        field: &'static str,
        /// What may stand there.
        right: String,
    },
    /// A value that the field cannot have.
    #[error("{field} is \"{found}\"; right would be {right}")]
    Value {
        /// The field.
        field: &'static str,
        /// The value.
        found: String,
        /// What may stand there.
        right: String,
    },
}

/// A kind of kernel: how its text starts, and its fields.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The first word.
    pub word: &'static str,
    /// Names of its fields.
    pub fields: &'static [&'static str],
}

macro_rules! kinds {
    // The value where a field is left out: the activations that a weight's format takes, or as the field's type says.
    (@default $field:ident) => { Value::absent() };
    (@default $field:ident $from:ident) => { Some(Format::activation($from)) };
    ($($variant:ident $word:literal { $($field:ident $(as of $from:ident)?),* })*) => {
        /// Every kind of kernel.
        pub static KINDS: &[Kind] = &[$(Kind { word: $word, fields: &[$(stringify!($field)),*] }),*];

        impl fmt::Display for KernelSpec {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(KernelSpec::$variant { $($field),* } => {
                        f.write_str($word)?;
                        $(if kinds!(@default $field $($from)?) != Some($field) {
                            $field.write(stringify!($field), f)?;
                        })*
                        Ok(())
                    })*
                }
            }
        }

        impl FromStr for KernelSpec {
            type Err = SpecError;

            fn from_str(text: &str) -> Result<KernelSpec, SpecError> {
                let mut words = text.split_whitespace();
                let kind = words.next().unwrap_or_default();
                match kind {
                    $($word => {
                        const FIELDS: &[&str] = &[$(stringify!($field)),*];
                        let fields = Fields::read($word, FIELDS, words)?;
                        $(let $field = fields.value(stringify!($field), || kinds!(@default $field $($from)?))?;)*
                        Ok(KernelSpec::$variant { $($field),* })
                    })*
                    found => Err(SpecError::Kind { found: shortened(found) }),
                }
            }
        }
    };
}

kinds! {
    Embed "embed" { format, rows, n }
    RmsNorm "rms_norm" { n, eps, out }
    SumSquares "sum_squares" { n }
    RmsNormPiece "rms_norm_piece" { n, row, parts, eps, out }
    Quantise "quantise" { n, out }
    Linear "linear" { format, x as of format, k, tile, n, bias, residual, shape }
    Swiglu "swiglu" { gate, up, x as of gate, k, tile, n, out, rows, shape }
    RopeHeads "rope_heads" { heads, d, dims, style, norm }
    RopeAppend "rope_append" { d, dv, dims, style, norm }
    Attention "attention" { group, d, dv, scale, heads, rows }
    AttentionPart "attention_part" { group, d, dv, scale }
    AttentionCombine "attention_combine" { group, dv, parts }
    Route "route" { experts, top_k, score, normalise, scale }
    Gather "gather" { bytes }
    Combine "combine" { n, slots, residual }
    Map "map" { function, n }
    AddBias "add_bias" { n }
    Softmax "softmax" { n }
}

fn kinds() -> String {
    let words: Vec<_> = KINDS.iter().map(|kind| kind.word).collect();
    words.join(", ")
}

/// Text that is shown in an error: not all of it where it is long.
fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

/// The fields of a text, not yet read.
struct Fields<'t> {
    kind: &'static str,
    pairs: Vec<(&'t str, Option<&'t str>)>,
}

impl<'t> Fields<'t> {
    fn read(
        kind: &'static str,
        fields: &'static [&'static str],
        words: impl Iterator<Item = &'t str>,
    ) -> Result<Fields<'t>, SpecError> {
        let mut pairs: Vec<(&str, Option<&str>)> = Vec::new();
        for word in words {
            let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            if !fields.contains(&name) {
                return Err(SpecError::Field { kind, found: shortened(name), fields });
            }
            if pairs.iter().any(|(other, _)| *other == name) {
                return Err(SpecError::Twice { field: name.to_owned() });
            }
            pairs.push((name, value));
        }
        Ok(Fields { kind, pairs })
    }

    fn value<V: Value>(&self, field: &'static str, absent: impl FnOnce() -> Option<V>) -> Result<V, SpecError> {
        match self.pairs.iter().find(|(name, _)| *name == field) {
            Some((_, value)) => V::read(*value).ok_or_else(|| SpecError::Value {
                field,
                found: shortened(value.unwrap_or_default()),
                right: V::right(),
            }),
            None => absent().ok_or_else(|| SpecError::Missing { kind: self.kind, field, right: V::right() }),
        }
    }
}

/// What a field can hold.
trait Value: Sized {
    /// Writes ` name=value`; called only where leaving it out would not read back as the same.
    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    /// The value of a text; `None` in place of the text where the field is a word alone.
    fn read(text: Option<&str>) -> Option<Self>;
    /// What may stand there.
    fn right() -> String;
    /// The value where the field is left out.
    fn absent() -> Option<Self> {
        None
    }
}

impl Value for u32 {
    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {name}={self}")
    }

    fn read(text: Option<&str>) -> Option<u32> {
        text?.parse().ok()
    }

    fn right() -> String {
        "NUMBER".into()
    }
}

impl Value for bool {
    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Written only where it is set.
        write!(f, " {name}")
    }

    fn read(text: Option<&str>) -> Option<bool> {
        text.is_none().then_some(true)
    }

    fn right() -> String {
        "the word alone, or nothing".into()
    }

    fn absent() -> Option<bool> {
        Some(false)
    }
}

impl Value for Bits {
    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value() {
            value if value.is_finite() => write!(f, " {name}={value:?}"),
            _ => write!(f, " {name}={:#010x}", self.0),
        }
    }

    fn read(text: Option<&str>) -> Option<Bits> {
        let text = text?;
        match text.strip_prefix("0x") {
            Some(bits) => u32::from_str_radix(bits, 16).ok().map(Bits),
            None => text.parse().ok().filter(|value: &f32| value.is_finite()).map(|value| Bits(value.to_bits())),
        }
    }

    fn right() -> String {
        "FLOAT (or its bits, 0x3f800000)".into()
    }
}

impl Value for Option<Bits> {
    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().map_or(Ok(()), |bits| bits.write(name, f))
    }

    fn read(text: Option<&str>) -> Option<Option<Bits>> {
        Bits::read(text).map(Some)
    }

    fn right() -> String {
        Bits::right()
    }

    fn absent() -> Option<Option<Bits>> {
        Some(None)
    }
}

impl Value for Format {
    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {name}={self}")
    }

    fn read(text: Option<&str>) -> Option<Format> {
        Format::from_name(text?)
    }

    fn right() -> String {
        let names: Vec<_> = FORMATS.iter().map(|row| row.name).collect();
        names.join("|")
    }
}

/// Fields that are one of a few words.
macro_rules! words {
    ($($type:ident { $($variant:ident $word:literal),* })*) => {$(
        impl Value for $type {
            fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, " {name}={}", match self { $($type::$variant => $word),* })
            }

            fn read(text: Option<&str>) -> Option<$type> {
                match text? { $($word => Some($type::$variant),)* _ => None }
            }

            fn right() -> String {
                [$($word),*].join("|")
            }
        }
    )*};
}

words! {
    Shape { Gemv "gemv", Gemm "gemm", Tiles "tiles" }
    Elementwise { Add "add", Mul "mul", Silu "silu" }
    Score { Softmax "softmax", Sigmoid "sigmoid" }
    RopeStyle { Norm "norm", Neox "neox" }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One text of each kind, in the form that is printed.
    const TEXTS: &[&str] = &[
        "embed format=q6_k rows=100 n=256",
        "rms_norm n=2048 eps=1e-6 out=a8_super",
        "sum_squares n=512",
        "rms_norm_piece n=512 row=8192 parts=16 eps=1e-5 out=a8_super",
        "quantise n=32 out=a8_small",
        "linear format=bf16 k=7 tile=3 n=3 bias residual shape=gemv",
        "linear format=q5_k k=256 tile=8 n=8 shape=gemm",
        "linear format=q4_k_r16 x=a8_super_tile k=256 tile=32 n=32 shape=tiles",
        "swiglu gate=q4_k up=q6_k k=256 tile=32 n=64 out=f32 rows=13 shape=gemm",
        "rope_heads heads=3 d=64 dims=32 style=norm norm=1e-5",
        "rope_append d=64 dv=62 dims=64 style=neox",
        "attention group=4 d=128 dv=128 scale=0.088388346 heads=8 rows=4",
        "attention_part group=4 d=128 dv=128 scale=0.088388346",
        "attention_combine group=4 dv=128 parts=16",
        "route experts=128 top_k=8 score=softmax normalise scale=1.0",
        "gather bytes=33",
        "combine n=33 slots=3 residual",
        "map function=silu n=17",
        "add_bias n=1",
        "softmax n=4294967295",
    ];

    #[test]
    fn every_kind_reads_back() {
        for text in TEXTS {
            let spec: KernelSpec = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(spec.to_string(), *text);
        }
        for kind in KINDS {
            assert!(TEXTS.iter().any(|text| text.split(' ').next() == Some(kind.word)), "no text of {}", kind.word);
        }
        let odd = KernelSpec::AttentionPart { group: 1, d: 2, dv: 3, scale: Bits(f32::NAN.to_bits() | 5) };
        assert_eq!(odd.to_string().parse(), Ok(odd));
    }

    #[test]
    fn errors_say_what_would_be_right() {
        let error = |text: &str| text.parse::<KernelSpec>().unwrap_err().to_string();
        assert!(error("").starts_with("no kind of kernel is called \"\"; there are embed, rms_norm"));
        assert_eq!(error("gather rows=3"), "gather has no field \"rows\"; its fields are bytes");
        assert_eq!(error("gather bytes=3 bytes=4"), "field bytes stands there twice");
        assert_eq!(error("gather bytes=-1"), "bytes is \"-1\"; right would be NUMBER");
        assert_eq!(error("map n=3 function=relu"), "function is \"relu\"; right would be add|mul|silu");
        assert_eq!(error("quantise n=3"), format!("quantise needs out={}", Format::right()));
        assert!(error("linear format=q4_k k=1 tile=1 n=1 bias=no shape=gemv").contains("the word alone, or nothing"));
        assert!(error(&format!("map function={} n=1", "x".repeat(1000))).len() < 120);
    }
}
