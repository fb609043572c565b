//! Kernel specs as text, for command lines and reports. The first word is the kind of kernel; the
//! fields follow by name.
//!
//! ```text
//! linear format=q4_k k=2048 tile=32 n=2048 residual shape=gemm
//! rope_heads heads=16 d=128 dims=128 style=neox norm=1e-6
//! ```
//!
//! Each kernel declares its spec with [`spec!`], which generates the printer and the parser. Fields
//! may be in any order. Flags (`bias`) and optional fields (`norm`) are omitted if they are not
//! set. Activations (`x`) are omitted if they have the default format for the weight. The input may
//! be hostile text, and an error states the expected form.
//!
//! ```
//! use ixc_kernels::KernelSpec;
//!
//! let spec: KernelSpec = "linear shape=gemv format=q4_k k=256 tile=8 n=8".parse().unwrap();
//! assert_eq!(spec.to_string(), "linear format=q4_k k=256 tile=8 n=8 shape=gemv");
//! let error = "linear format=q4_k k=256".parse::<KernelSpec>().unwrap_err();
//! assert_eq!(error.to_string(), "linear needs tile=NUMBER");
//! ```
//!
//! Invariant: the text of a spec parses to an equal spec.

use std::fmt;

use ixc_failure::Class;
use ixc_ir::format::{FORMATS, Format};
use ixc_ir::graph::attrs::{Activation, RopeStyle};
use serde::{Deserialize, Serialize};

use crate::{KINDS, KernelSpec};

/// A float parameter, stored as its bits so that specs can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bits(pub u32);

impl Bits {
    /// Returns the parameter for a value, rounded to f32.
    pub fn from_value(value: f64) -> Bits {
        Bits((value as f32).to_bits())
    }

    /// Returns the value of the parameter.
    pub fn value(self) -> f32 {
        f32::from_bits(self.0)
    }
}

/// Reason why a text is not a spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A first word that is not a kind of kernel.
    #[error("there is no kind of kernel \"{found}\"; the kinds are {}", kinds())]
    Kind {
        /// First word of the text.
        found: String,
    },
    /// A field that this kind of kernel does not have.
    #[error("{kind} has no field \"{found}\"; its fields are {}", fields.join(", "))]
    Field {
        /// Kind of kernel.
        kind: &'static str,
        /// Name of the unknown field.
        found: String,
        /// Fields of this kind of kernel, in the order of printed text.
        fields: Vec<&'static str>,
    },
    /// A field that occurs twice.
    #[error("field {field} is given twice")]
    Twice {
        /// Name of the field.
        field: String,
    },
    /// A required field that is missing.
    #[error("{kind} needs {field}={expected}")]
    Missing {
        /// Kind of kernel.
        kind: &'static str,
        /// Name of the missing field.
        field: &'static str,
        /// Description of the valid values.
        expected: String,
    },
    /// A value that the field cannot have.
    #[error("{field} is \"{found}\"; expected {expected}")]
    Value {
        /// Name of the field.
        field: &'static str,
        /// Value of the field in the text.
        found: String,
        /// Description of the valid values.
        expected: String,
    },
}

impl SpecError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            SpecError::Kind { .. }
            | SpecError::Field { .. }
            | SpecError::Twice { .. }
            | SpecError::Missing { .. }
            | SpecError::Value { .. } => Class::Data,
        }
    }
}

/// A row of the kernel catalogue: a representative spec with a name.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Name of the kernel.
    pub name: &'static str,
    /// Default number of rows for a run; see [`KernelSpec::dims_of_rows`].
    pub rows: u32,
    /// Spec of the kernel as text.
    pub text: &'static str,
}

impl Row {
    /// Parses the row's spec.
    ///
    /// # Errors
    /// Fails if the text is invalid. A test parses all rows of the catalogue.
    pub fn spec(&self) -> Result<KernelSpec, SpecError> {
        self.text.parse()
    }
}

/// Returns a row, for the tables in kernels' files.
pub(crate) const fn row(name: &'static str, rows: u32, text: &'static str) -> Row {
    Row { name, rows, text }
}

/// A kind of kernel: the first word of its text, its fields, and representative specs.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// First word of the kind's text.
    pub word: &'static str,
    /// Fields of the kind.
    pub fields: &'static [Field],
    /// Function that returns the kind's rows of the catalogue.
    pub rows: fn() -> &'static [Row],
}

/// A field of a kind of kernel.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name of the field.
    pub name: &'static str,
    /// Type of the field.
    pub holds: FieldKind,
}

/// Type of a spec's field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// A whole number.
    Number,
    /// A flag: a word that is present or absent.
    Flag,
    /// A float.
    Float,
    /// A block format.
    Format,
    /// Formats of keys and values.
    Cache,
    /// Prefetch distance and unrolling of a product.
    Pace,
    /// One of the listed words.
    Word(&'static [&'static str]),
}

/// A complete spec that has a text form. Only [`spec!`] implements this trait.
pub(crate) trait Text: Part {
    /// First word of the spec's text.
    const WORD: &'static str;
}

/// Fields of a spec as text: all its fields, or fields that several specs share. Only [`spec!`]
/// implements this trait.
pub(crate) trait Part: Sized {
    /// Fields in the order of printed text.
    const FIELDS: &'static [Field];
    /// Parses the values of the fields.
    fn read(fields: &Fields<'_>) -> Result<Self, SpecError>;
    /// Writes the fields, each with a space before it.
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// Returns the total number of fields in the lists.
pub(crate) const fn count(lists: &[&[Field]]) -> usize {
    let (mut sum, mut list) = (0, 0);
    while list < lists.len() {
        sum += lists[list].len();
        list += 1;
    }
    sum
}

/// Returns the fields of all lists in order. `N` must be their number.
pub(crate) const fn join<const N: usize>(lists: &[&[Field]]) -> [Field; N] {
    let mut all = [Field { name: "", holds: FieldKind::Flag }; N];
    let (mut end, mut list) = (0, 0);
    while list < lists.len() {
        let mut at = 0;
        while at < lists[list].len() {
            all[end] = lists[list][at];
            end += 1;
            at += 1;
        }
        list += 1;
    }
    all
}

/// Declares a spec: a struct with its first word and its fields. In texts, a field has its Rust
/// name, or the name after `as`. The value after `=` is the default of a field that the text omits.
///
/// `pub part` instead of `pub struct` declares fields that several specs share. A spec includes
/// these fields by `..name: Part,` before its own fields. Texts and JSON do not nest the shared
/// fields.
macro_rules! spec {
    (@absent) => { crate::generator::text::Value::absent() };
    (@absent $default:expr) => { Some($default) };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $text:literal) => { $text };
    ($(#[$doc:meta])* pub struct $name:ident $word:literal { $($fields:tt)* }) => {
        spec! { $(#[$doc])* pub part $name { $($fields)* } }

        impl crate::generator::text::Text for $name {
            const WORD: &'static str = $word;
        }
    };
    (
        $(#[$doc:meta])*
        pub part $name:ident {
            $(..$part:ident: $of:ident,)*
            $($(#[$field_doc:meta])* pub $field:ident $(as $text:literal)?: $type:ty $(= $default:expr)?),* $(,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub struct $name {
            $(#[doc = concat!("See [`", stringify!($of), "`].")] #[serde(flatten)] pub $part: $of,)*
            $($(#[$field_doc])* $(#[serde(rename = $text)])? pub $field: $type),*
        }

        impl crate::generator::text::Part for $name {
            const FIELDS: &'static [crate::generator::text::Field] = {
                const LISTS: &[&[crate::generator::text::Field]] = &[
                    $(<$of as crate::generator::text::Part>::FIELDS,)*
                    &[$(crate::generator::text::Field {
                        name: spec!(@name $field $($text)?),
                        holds: <$type as crate::generator::text::Value>::KIND,
                    }),*],
                ];
                const ALL: [crate::generator::text::Field; crate::generator::text::count(LISTS)] = crate::generator::text::join(LISTS);
                &ALL
            };

            fn read(fields: &crate::generator::text::Fields<'_>) -> Result<$name, crate::generator::text::SpecError> {
                $(let $part = <$of as crate::generator::text::Part>::read(fields)?;)*
                $(let $field: $type = fields.value(spec!(@name $field $($text)?), || spec!(@absent $($default)?))?;)*
                Ok($name { $($part,)* $($field),* })
            }

            fn write(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $name { $($part,)* $($field),* } = *self;
                $(crate::generator::text::Part::write(&$part, f)?;)*
                $(if spec!(@absent $($default)?) != Some($field) {
                    crate::generator::text::Value::write(&$field, spec!(@name $field $($text)?), f)?;
                })*
                Ok(())
            }
        }
    };
}
pub(crate) use spec;

fn kinds() -> String {
    let words: Vec<_> = KINDS.iter().map(|kind| kind.word).collect();
    words.join(", ")
}

impl SpecError {
    /// Returns the error for a first word that is not a kind of kernel.
    pub(crate) fn unknown_kind(found: &str) -> SpecError {
        SpecError::Kind { found: shorten(found) }
    }
}

/// Shortens a text for an error message.
fn shorten(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Fields of a text whose values are not yet parsed.
pub(crate) struct Fields<'t> {
    kind: &'static str,
    pairs: Vec<(&'t str, Option<&'t str>)>,
}

impl<'t> Fields<'t> {
    /// Splits the words after the first word into the fields of the kind `T`.
    pub(crate) fn parse<T: Text>(words: impl Iterator<Item = &'t str>) -> Result<Fields<'t>, SpecError> {
        let kind = T::WORD;
        let mut pairs: Vec<(&str, Option<&str>)> = Vec::new();
        for word in words {
            let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            if !T::FIELDS.iter().any(|field| field.name == name) {
                let fields = T::FIELDS.iter().map(|field| field.name).collect();
                return Err(SpecError::Field { kind, found: shorten(name), fields });
            }
            if pairs.iter().any(|(other, _)| *other == name) {
                return Err(SpecError::Twice { field: name.to_owned() });
            }
            pairs.push((name, value));
        }
        Ok(Fields { kind, pairs })
    }

    /// Parses the value of a field, or returns its default.
    pub(crate) fn value<V: Value>(
        &self,
        field: &'static str,
        absent: impl FnOnce() -> Option<V>,
    ) -> Result<V, SpecError> {
        match self.pairs.iter().find(|(name, _)| *name == field) {
            Some((_, value)) => V::read(*value).ok_or_else(|| SpecError::Value {
                field,
                found: shorten(value.unwrap_or_default()),
                expected: V::expected_text(),
            }),
            None => absent().ok_or_else(|| SpecError::Missing { kind: self.kind, field, expected: V::expected_text() }),
        }
    }
}

/// Type of the value of a spec's field.
pub(crate) trait Value: Sized {
    /// Type of field that this Rust type stands for.
    const KIND: FieldKind;
    /// Writes ` name=value`. The caller omits fields that have their default.
    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    /// Parses a value. `None` stands for a field name without `=`.
    fn read(text: Option<&str>) -> Option<Self>;
    /// Returns a description of the valid values.
    fn expected_text() -> String;
    /// Returns the value of a field that the text omits, or `None` if the field is required.
    fn absent() -> Option<Self> {
        None
    }
}

impl Value for u32 {
    const KIND: FieldKind = FieldKind::Number;

    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {name}={self}")
    }

    fn read(text: Option<&str>) -> Option<u32> {
        text?.parse().ok()
    }

    fn expected_text() -> String {
        "NUMBER".into()
    }
}

impl Value for Option<u32> {
    const KIND: FieldKind = FieldKind::Number;

    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().map_or(Ok(()), |number| number.write(name, f))
    }

    fn read(text: Option<&str>) -> Option<Option<u32>> {
        u32::read(text).map(Some)
    }

    fn expected_text() -> String {
        u32::expected_text()
    }

    fn absent() -> Option<Option<u32>> {
        Some(None)
    }
}

impl Value for bool {
    const KIND: FieldKind = FieldKind::Flag;

    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The caller omits flags that are not set.
        write!(f, " {name}")
    }

    fn read(text: Option<&str>) -> Option<bool> {
        text.is_none().then_some(true)
    }

    fn expected_text() -> String {
        "the field name without a value, or nothing".into()
    }

    fn absent() -> Option<bool> {
        Some(false)
    }
}

impl Value for Bits {
    const KIND: FieldKind = FieldKind::Float;

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

    fn expected_text() -> String {
        "FLOAT (or its bits, 0x3f800000)".into()
    }
}

impl Value for Option<Bits> {
    const KIND: FieldKind = FieldKind::Float;

    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().map_or(Ok(()), |bits| bits.write(name, f))
    }

    fn read(text: Option<&str>) -> Option<Option<Bits>> {
        Bits::read(text).map(Some)
    }

    fn expected_text() -> String {
        Bits::expected_text()
    }

    fn absent() -> Option<Option<Bits>> {
        Some(None)
    }
}

impl Value for Format {
    const KIND: FieldKind = FieldKind::Format;

    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {name}={self}")
    }

    fn read(text: Option<&str>) -> Option<Format> {
        Format::from_name(text?)
    }

    fn expected_text() -> String {
        let names: Vec<_> = FORMATS.iter().map(|row| row.name).collect();
        names.join("|")
    }
}

/// A type whose values are written as words.
pub(crate) trait Words {
    /// Returns the word of the value.
    fn word(self) -> &'static str;
}

/// Declares the words of a type's values.
macro_rules! words {
    ($type:ident { $($variant:ident $word:literal),* }) => {
        impl crate::generator::text::Words for $type {
            fn word(self) -> &'static str {
                match self { $($type::$variant => $word),* }
            }
        }

        impl crate::generator::text::Value for $type {
            const KIND: crate::generator::text::FieldKind = crate::generator::text::FieldKind::Word(&[$($word),*]);

            fn write(&self, name: &str, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, " {name}={}", crate::generator::text::Words::word(*self))
            }

            fn read(text: Option<&str>) -> Option<$type> {
                match text? { $($word => Some($type::$variant),)* _ => None }
            }

            fn expected_text() -> String {
                [$($word),*].join("|")
            }
        }
    };
}
pub(crate) use words;

/// Implements printing and parsing for types whose words are those of the graph IR.
macro_rules! graph_words {
    ($($type:ident),*) => { $(
        impl Value for $type {
            const KIND: FieldKind = FieldKind::Word($type::WORDS);

            fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, " {name}={}", self.word())
            }

            fn read(text: Option<&str>) -> Option<$type> {
                $type::from_word(text?)
            }

            fn expected_text() -> String {
                $type::WORDS.join("|")
            }
        }
    )* };
}

graph_words!(Activation, RopeStyle);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::ROWS;
    use crate::{AttentionPart, Cache, Heads, KernelSpec, Scores};

    /// Texts in printed form, in addition to those of the catalogue: numbers at their limits, and
    /// optional fields that are set or not.
    const TEXTS: &[&str] = &[
        "linear format=bf16 k=7 tile=3 n=3 bias residual shape=gemv",
        "linear format=q4_k_r16 x=a8_super_tile k=256 tile=32 n=32 shape=tiles",
        "swiglu gate=q4_k up=q6_k k=256 tile=32 n=64 out=f32 rows=13 shape=gemm",
        "rope_heads heads=3 d=64 dims=32 style=norm norm=1e-5",
        "rope_append d=64 dv=62 dims=64 style=neox",
        "attention_tiles group=1 d=8 dv=8 scale=1.0 heads=1 rows=32 exact window=1",
        "combine n=33 slots=3",
        "softmax n=4294967295",
    ];

    #[test]
    fn every_kind_reads_back() {
        for text in TEXTS.iter().copied().chain(ROWS.iter().map(|row| row.text)) {
            let spec: KernelSpec = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(spec.to_string(), *text);
        }
        let scale = Bits(f32::NAN.to_bits() | 5);
        let scores = Scores { scale, ..Scores::with_scale(1.0) };
        let odd: KernelSpec =
            AttentionPart { heads: Heads { group: 1, d: 2, dv: 3 }, scores, cache: Cache::default() }.into();
        assert_eq!(odd.to_string().parse(), Ok(odd));
    }

    #[test]
    fn usage_errors_state_the_valid_values() {
        let error = |text: &str| text.parse::<KernelSpec>().unwrap_err().to_string();
        assert!(error("").starts_with("there is no kind of kernel \"\"; the kinds are embed, rms_norm"));
        assert_eq!(error("gather rows=3"), "gather has no field \"rows\"; its fields are bytes");
        assert_eq!(error("gather bytes=3 bytes=4"), "field bytes is given twice");
        assert_eq!(error("gather bytes=-1"), "bytes is \"-1\"; expected NUMBER");
        assert_eq!(
            error("map n=3 function=relu"),
            "function is \"relu\"; expected add|mul|silu|sigmoid|relu_squared|softplus|gelu|signed_root|gelu_erf|exp"
        );
        assert_eq!(error("quantise n=3"), format!("quantise needs out={}", Format::expected_text()));
        assert!(
            error("linear format=q4_k k=1 tile=1 n=1 bias=no shape=gemv")
                .contains("the field name without a value, or nothing")
        );
        assert!(error(&format!("map function={} n=1", "x".repeat(1000))).len() < 150);
    }
}
