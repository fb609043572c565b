//! Typed access to a file's keys. Errors state the key, its value and the expected type.
//!
//! An integer of any width can be read as each integer type that can hold its value. Other values
//! must have exactly the requested type.

use std::path::Path;
use std::sync::Arc;

use super::error::GgufError;
use super::value::{Array, StringArray, Value};

/// Keys of a file, in the order of the file, with an index by name.
#[derive(Clone, Debug)]
pub struct Metadata {
    path: Arc<Path>,
    entries: Vec<(Box<str>, Value)>,
    /// Indices into `entries`, sorted by key.
    by_name: Vec<u32>,
}

/// Reason why a value cannot be read as a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The value has another type.
    Type,
    /// The value has a fitting type, but is outside of this range.
    Range(&'static str),
}

/// Types that a key's value can be read as.
pub trait FromValue<'a>: Sized {
    /// Name of the type in errors.
    const EXPECTED: &'static str;
    /// Reads the value as this type.
    fn from_value(value: &'a Value) -> Result<Self, Mismatch>;
}

impl Metadata {
    /// Returns metadata. `by_name` has the indices of `entries`, sorted by key; keys must be
    /// unique.
    pub(super) fn new(path: Arc<Path>, entries: Vec<(Box<str>, Value)>, by_name: Vec<u32>) -> Metadata {
        Metadata { path, entries, by_name }
    }

    /// Returns metadata for a file of another format. If a key appears several times, the last
    /// value is used.
    pub fn from_entries(path: &Path, entries: Vec<(Box<str>, Value)>) -> Metadata {
        let last: std::collections::HashMap<Box<str>, usize> =
            entries.iter().enumerate().map(|(index, (key, _))| (key.clone(), index)).collect();
        let mut index = 0;
        let entries: Vec<_> = entries
            .into_iter()
            .filter(|(key, _)| {
                index += 1;
                last.get(key) == Some(&(index - 1))
            })
            .collect();
        let mut by_name: Vec<u32> = (0..entries.len() as u32).collect();
        by_name.sort_by(|&a, &b| entries[a as usize].0.cmp(&entries[b as usize].0));
        Metadata::new(path.into(), entries, by_name)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let at = self.by_name.binary_search_by(|&i| (*self.entries[i as usize].0).cmp(key)).ok()?;
        Some(&self.entries[self.by_name[at] as usize].1)
    }

    /// Returns the value of `key` as a `T`.
    ///
    /// # Errors
    /// [`GgufError::KeyMissing`], [`GgufError::KeyType`] or [`GgufError::KeyValue`].
    pub fn read<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, GgufError> {
        self.read_optional(key)?.ok_or_else(|| self.missing(key, T::EXPECTED))
    }

    /// Returns the value of `key` as a `T`, or `None` if the key is missing.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] or [`GgufError::KeyValue`].
    pub fn read_optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        T::from_value(value).map(Some).map_err(|mismatch| match mismatch {
            Mismatch::Type => self.wrong_type(key, value, T::EXPECTED),
            Mismatch::Range(limit) => self.bad_value(key, value, limit),
        })
    }

    /// Returns the value of `key` as a `T`, or `default` if the key is missing.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] or [`GgufError::KeyValue`].
    pub fn read_or<'a, T: FromValue<'a>>(&'a self, key: &str, default: T) -> Result<T, GgufError> {
        Ok(self.read_optional(key)?.unwrap_or(default))
    }

    /// Returns the error for a missing key.
    pub fn missing(&self, key: &str, expected: &'static str) -> GgufError {
        GgufError::KeyMissing { path: (&*self.path).into(), key: key.into(), expected }
    }

    /// Returns the error for a key whose value has the wrong type.
    pub fn wrong_type(&self, key: &str, found: &Value, expected: &'static str) -> GgufError {
        GgufError::KeyType { path: (&*self.path).into(), key: key.into(), found: found.type_name().into(), expected }
    }

    /// Returns the error for a key whose value `found` is invalid. `limit` completes the phrase
    /// "must be …".
    pub fn bad_value(&self, key: &str, found: impl ToString, limit: impl Into<String>) -> GgufError {
        GgufError::KeyValue {
            path: (&*self.path).into(),
            key: key.into(),
            found: found.to_string().into(),
            limit: limit.into().into(),
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "string";
    fn from_value(value: &'a Value) -> Result<Self, Mismatch> {
        match value {
            Value::String(string) => Ok(string),
            _ => Err(Mismatch::Type),
        }
    }
}

impl<'a> FromValue<'a> for bool {
    const EXPECTED: &'static str = "bool";
    fn from_value(value: &'a Value) -> Result<Self, Mismatch> {
        match value {
            Value::Bool(bool) => Ok(*bool),
            _ => Err(Mismatch::Type),
        }
    }
}

macro_rules! integers_from_value {
    ($($ty:ty, $expected:literal, $limit:literal;)*) => {
        $(impl<'a> FromValue<'a> for $ty {
            const EXPECTED: &'static str = $expected;
            fn from_value(value: &'a Value) -> Result<Self, Mismatch> {
                let integer = value.integer().ok_or(Mismatch::Type)?;
                <$ty>::try_from(integer).map_err(|_| Mismatch::Range($limit))
            }
        })*
    };
}

integers_from_value! {
    u32, "u32", "from 0 to 2^32 - 1";
    u64, "u64", "from 0 to 2^64 - 1";
    i32, "i32", "from -2^31 to 2^31 - 1";
    i64, "i64", "from -2^63 to 2^63 - 1";
}

impl<'a> FromValue<'a> for f32 {
    const EXPECTED: &'static str = "f32";
    fn from_value(value: &'a Value) -> Result<Self, Mismatch> {
        match *value {
            Value::F32(x) => Ok(x),
            Value::F64(x) => Ok(x as f32),
            _ => Err(Mismatch::Type),
        }
    }
}

impl<'a> FromValue<'a> for &'a Array {
    const EXPECTED: &'static str = "array";
    fn from_value(value: &'a Value) -> Result<Self, Mismatch> {
        match value {
            Value::Array(array) => Ok(array),
            _ => Err(Mismatch::Type),
        }
    }
}

macro_rules! arrays_from_value {
    ($($ty:ty, $variant:ident, $expected:literal;)*) => {
        $(impl<'a> FromValue<'a> for &'a $ty {
            const EXPECTED: &'static str = $expected;
            fn from_value(value: &'a Value) -> Result<Self, Mismatch> {
                match value {
                    Value::Array(Array::$variant(array)) => Ok(array),
                    _ => Err(Mismatch::Type),
                }
            }
        })*
    };
}

arrays_from_value! {
    StringArray, String, "array of string";
    [f32], F32, "array of f32";
    [i32], I32, "array of i32";
    [u32], U32, "array of u32";
    [u8], U8, "array of u8";
    [bool], Bool, "array of bool";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(entries: Vec<(&str, Value)>) -> Metadata {
        let by_name = (0..entries.len() as u32).collect();
        let entries = entries.into_iter().map(|(key, value)| (key.into(), value)).collect();
        Metadata::new(Path::new("m.gguf").into(), entries, by_name)
    }

    #[test]
    fn key_errors_name_key_found_and_expected_value() {
        let m = metadata(vec![("a", (-1i32).into()), ("b", "x".into()), ("c", vec![1u32].into())]);
        assert_eq!(m.read::<&str>("b").unwrap(), "x");
        assert_eq!(m.read_or("d", 7u32).unwrap(), 7);
        assert_eq!(m.read::<i64>("a").unwrap(), -1);
        let say = |result: Result<u32, GgufError>| result.unwrap_err().to_string();
        assert_eq!(say(m.read("a")), "m.gguf: key \"a\" is -1; must be from 0 to 2^32 - 1");
        assert_eq!(say(m.read("b")), "m.gguf: key \"b\" is string; expected u32");
        assert_eq!(say(m.read("c")), "m.gguf: key \"c\" is array of u32; expected u32");
        assert_eq!(say(m.read("d")), "m.gguf: key \"d\" is missing; expected u32");
        assert!(m.read::<&[i32]>("c").is_err());
    }
}
