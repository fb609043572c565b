//! Options of passes. Each pass declares its options in its file. The text `PASS.KEY = VALUE`, the
//! documentation and the default come from that declaration.
//!
//! ```
//! use ixc_passes::{defer, manager, options::OptionSet};
//!
//! let mut set = OptionSet::default();
//! manager::set(&mut set, "defer.experts = 2")?;
//! assert_eq!(set.get::<defer::DeferOptions>(), defer::DeferOptions { experts: 2 });
//! assert_eq!(set, OptionSet::default().with(&defer::DeferOptions { experts: 2 }));
//! # Ok::<(), ixc_passes::options::OptionError>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;

use ixc_failure::Class;

/// An option in a pass's table.
#[derive(Clone, Copy, Debug)]
pub struct OptionRow {
    /// Key of the option. In text, it follows the pass's name and a dot.
    pub key: &'static str,
    /// Documentation of the option, one line.
    pub doc: &'static str,
    /// Default value, as text.
    pub default: fn() -> String,
    /// Description of valid values, as text for users.
    pub expected: &'static str,
    /// Whether text is a valid value.
    pub check: fn(&str) -> bool,
}

/// Options of one pass; [`pass_options!`](crate::options::pass_options) implements it.
pub trait PassOptions: Sized {
    /// Name of the pass.
    const PASS: &'static str;
    /// Table of the options.
    const ROWS: &'static [OptionRow];
    /// Reads the options; `text` returns the text that was set for a key.
    fn read(text: impl Fn(&'static str) -> Option<String>) -> Self;
    /// Returns all options as text.
    fn write(&self) -> Vec<(&'static str, String)>;
}

/// A value of an option.
pub trait OptionValue: Sized {
    /// Description of valid text.
    const EXPECTED: &'static str;
    /// Reads the value from text.
    fn read(text: &str) -> Option<Self>;
    /// Returns text that [`OptionValue::read`] parses.
    fn text(&self) -> String;
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl OptionValue for $type {
            const EXPECTED: &'static str = "a number";
            fn read(text: &str) -> Option<$type> {
                text.parse().ok()
            }
            fn text(&self) -> String {
                self.to_string()
            }
        }

        impl OptionValue for Option<$type> {
            const EXPECTED: &'static str = "a number, or none";
            fn read(text: &str) -> Option<Option<$type>> {
                if text == "none" { Some(None) } else { text.parse().ok().map(Some) }
            }
            fn text(&self) -> String {
                self.map_or("none".to_string(), |value| value.to_string())
            }
        }
    )*};
}
numbers!(u32, u64, usize);

impl OptionValue for bool {
    const EXPECTED: &'static str = "true or false";
    fn read(text: &str) -> Option<bool> {
        text.parse().ok()
    }
    fn text(&self) -> String {
        self.to_string()
    }
}

/// Returns whether a name matches a pattern of `*` and `?`. Takes time proportional to the product
/// of their lengths.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Position of the last `*`, and of the end of its match in the name.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            Some(_) | None => {
                let Some((at, taken)) = star else { return false };
                star = Some((at, taken + 1));
                p = at + 1;
                n = taken + 1;
            }
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Reason why an option cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// The text has no `=`, so it is not an option with a value.
    #[error("{found:?} is not an option of a pass; expected PASS.KEY=VALUE, such as {example}")]
    Form {
        /// Text of the whole option.
        found: String,
        /// A valid example.
        example: String,
    },
    /// No pass has the option.
    #[error("no pass has an option {found:?}; the options are {}", known.join(", "))]
    Unknown {
        /// The unknown key.
        found: String,
        /// All options of all passes.
        known: Vec<String>,
    },
    /// A value that the option cannot have.
    #[error("{key} is {found:?}; expected {expected}")]
    Value {
        /// Key of the option.
        key: String,
        /// Text of the value.
        found: String,
        /// Description of valid text.
        expected: &'static str,
    },
}

impl OptionError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            OptionError::Form { .. } | OptionError::Unknown { .. } | OptionError::Value { .. } => Class::Usage,
        }
    }
}

/// Options with explicit values. All other options have their defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptionSet(BTreeMap<(&'static str, &'static str), String>);

impl OptionSet {
    /// Returns the options of a pass.
    pub fn get<O: PassOptions>(&self) -> O {
        O::read(|key| self.0.get(&(O::PASS, key)).cloned())
    }

    /// Whether no option is set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets the options of one pass.
    #[must_use]
    pub fn with<O: PassOptions>(mut self, options: &O) -> OptionSet {
        self.0.extend(options.write().into_iter().map(|(key, text)| ((O::PASS, key), text)));
        self
    }

    /// Sets every option that another set has.
    #[must_use]
    pub fn over(mut self, other: &OptionSet) -> OptionSet {
        self.0.extend(other.0.iter().map(|(key, text)| (*key, text.clone())));
        self
    }

    /// Sets one option from text.
    ///
    /// # Errors
    /// [`OptionError::Value`].
    pub(crate) fn set(&mut self, pass: &'static str, row: &OptionRow, value: &str) -> Result<(), OptionError> {
        if !(row.check)(value) {
            let (key, found) = (format!("{pass}.{}", row.key), value.chars().take(64).collect());
            return Err(OptionError::Value { key, found, expected: row.expected });
        }
        self.0.insert((pass, row.key), value.to_owned());
        Ok(())
    }
}

impl fmt::Display for OptionSet {
    /// Writes the options as a user sets them: `requantise.weights=i8_row tile.choose=...`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(index, ((pass, key), value))| {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{pass}.{key}={value}")
        })
    }
}

/// Declares the options of a pass: a struct with defaults, its table, and conversion from and to
/// text.
macro_rules! pass_options {
    (
        $(#[$outer:meta])*
        pub struct $name:ident for $pass:literal {
            $(#[doc = $doc:literal] pub $key:ident: $type:ty = $default:expr,)*
        }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $(#[doc = $doc] pub $key: $type,)* }

        impl Default for $name {
            fn default() -> $name {
                $name { $($key: $default,)* }
            }
        }

        impl $crate::options::PassOptions for $name {
            const PASS: &'static str = $pass;
            const ROWS: &'static [$crate::options::OptionRow] = &[$($crate::options::OptionRow {
                key: stringify!($key),
                doc: $doc,
                default: || $crate::options::OptionValue::text(&<$name as Default>::default().$key),
                expected: <$type as $crate::options::OptionValue>::EXPECTED,
                check: |text| <$type as $crate::options::OptionValue>::read(text).is_some(),
            },)*];

            fn read(text: impl Fn(&'static str) -> Option<String>) -> $name {
                let default = <$name as Default>::default();
                // The text was validated when it was set.
                $name { $($key: text(stringify!($key))
                    .and_then(|text| $crate::options::OptionValue::read(&text)).unwrap_or(default.$key),)* }
            }

            fn write(&self) -> Vec<(&'static str, String)> {
                vec![$((stringify!($key), $crate::options::OptionValue::text(&self.$key)),)*]
            }
        }
    };
}
pub(crate) use pass_options;
