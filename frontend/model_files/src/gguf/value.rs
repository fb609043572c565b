//! Values that a GGUF key can have.
//!
//! Arrays keep the element type of the file. Reading an array as another element type is an error;
//! elements are never reinterpreted. The strings of an array are stored in one buffer, so an array
//! needs about as much memory as it has bytes in the file.

use std::fmt;

use super::error::quote;

/// Value of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// GGUF type 0.
    U8(u8),
    /// GGUF type 1.
    I8(i8),
    /// GGUF type 2.
    U16(u16),
    /// GGUF type 3.
    I16(i16),
    /// GGUF type 4.
    U32(u32),
    /// GGUF type 5.
    I32(i32),
    /// GGUF type 6.
    F32(f32),
    /// GGUF type 7.
    Bool(bool),
    /// GGUF type 8.
    String(Box<str>),
    /// GGUF type 9.
    Array(Array),
    /// GGUF type 10.
    U64(u64),
    /// GGUF type 11.
    I64(i64),
    /// GGUF type 12.
    F64(f64),
}

/// Array value. All elements have the same type, which cannot be an array.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Elements of GGUF type 0.
    U8(Vec<u8>),
    /// Elements of GGUF type 1.
    I8(Vec<i8>),
    /// Elements of GGUF type 2.
    U16(Vec<u16>),
    /// Elements of GGUF type 3.
    I16(Vec<i16>),
    /// Elements of GGUF type 4.
    U32(Vec<u32>),
    /// Elements of GGUF type 5.
    I32(Vec<i32>),
    /// Elements of GGUF type 6.
    F32(Vec<f32>),
    /// Elements of GGUF type 7.
    Bool(Vec<bool>),
    /// Elements of GGUF type 8.
    String(StringArray),
    /// Elements of GGUF type 10.
    U64(Vec<u64>),
    /// Elements of GGUF type 11.
    I64(Vec<i64>),
    /// Elements of GGUF type 12.
    F64(Vec<f64>),
}

/// Strings stored one after the other in one buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StringArray {
    text: String,
    ends: Vec<usize>,
}

impl StringArray {
    /// Returns an empty array with reserved memory for the ends of `len` strings.
    pub(super) fn with_capacity(len: usize) -> StringArray {
        StringArray { text: String::new(), ends: Vec::with_capacity(len) }
    }

    pub(super) fn push(&mut self, string: &str) {
        self.text.push_str(string);
        self.ends.push(self.text.len());
    }

    /// Returns the number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the string at `index`; `None` if there are fewer strings.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.text.get(start..end)
    }

    /// Returns all strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let string = &self.text[start..end];
            start = end;
            string
        })
    }
}

impl<S: AsRef<str>> FromIterator<S> for StringArray {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> StringArray {
        let mut array = StringArray::default();
        strings.into_iter().for_each(|string| array.push(string.as_ref()));
        array
    }
}

impl<S: AsRef<str>> Extend<S> for StringArray {
    fn extend<I: IntoIterator<Item = S>>(&mut self, strings: I) {
        strings.into_iter().for_each(|string| self.push(string.as_ref()));
    }
}

impl Array {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::String(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F64(v) => v.len(),
        }
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns GGUF's id of the element type.
    pub fn element_type_id(&self) -> u32 {
        match self {
            Array::U8(_) => 0,
            Array::I8(_) => 1,
            Array::U16(_) => 2,
            Array::I16(_) => 3,
            Array::U32(_) => 4,
            Array::I32(_) => 5,
            Array::F32(_) => 6,
            Array::Bool(_) => 7,
            Array::String(_) => 8,
            Array::U64(_) => 10,
            Array::I64(_) => 11,
            Array::F64(_) => 12,
        }
    }

    /// Returns the element at `index`, if this is an array of bools.
    pub fn bool(&self, index: usize) -> Option<bool> {
        match self {
            Array::Bool(v) => v.get(index).copied(),
            _ => None,
        }
    }

    /// Returns the element at `index`, if this is an array of integers.
    pub fn integer(&self, index: usize) -> Option<i128> {
        match self {
            Array::U8(v) => v.get(index).map(|&x| x.into()),
            Array::I8(v) => v.get(index).map(|&x| x.into()),
            Array::U16(v) => v.get(index).map(|&x| x.into()),
            Array::I16(v) => v.get(index).map(|&x| x.into()),
            Array::U32(v) => v.get(index).map(|&x| x.into()),
            Array::I32(v) => v.get(index).map(|&x| x.into()),
            Array::U64(v) => v.get(index).map(|&x| x.into()),
            Array::I64(v) => v.get(index).map(|&x| x.into()),
            Array::F32(_) | Array::Bool(_) | Array::String(_) | Array::F64(_) => None,
        }
    }

    fn element(&self, index: usize) -> String {
        match self {
            Array::F32(v) => v.get(index).map(f32::to_string),
            Array::F64(v) => v.get(index).map(f64::to_string),
            Array::Bool(v) => v.get(index).map(bool::to_string),
            Array::String(v) => v.get(index).map(|string| format!("\"{}\"", quote(string))),
            _ => self.integer(index).map(|x| x.to_string()),
        }
        .unwrap_or_default()
    }
}

/// Names of the value types; the index is the type id.
pub(super) const TYPE_NAMES: [&str; 13] =
    ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"];

impl Value {
    /// Returns GGUF's id of the value type.
    pub fn type_id(&self) -> u32 {
        match self {
            Value::U8(_) => 0,
            Value::I8(_) => 1,
            Value::U16(_) => 2,
            Value::I16(_) => 3,
            Value::U32(_) => 4,
            Value::I32(_) => 5,
            Value::F32(_) => 6,
            Value::Bool(_) => 7,
            Value::String(_) => 8,
            Value::Array(_) => 9,
            Value::U64(_) => 10,
            Value::I64(_) => 11,
            Value::F64(_) => 12,
        }
    }

    /// Returns the name of the type, such as `u32` or `array of i32`.
    pub fn type_name(&self) -> String {
        match self {
            Value::Array(array) => format!("array of {}", TYPE_NAMES[array.element_type_id() as usize]),
            _ => TYPE_NAMES[self.type_id() as usize].to_owned(),
        }
    }

    /// Returns the value of an integer of any width; `None` for other types.
    pub fn integer(&self) -> Option<i128> {
        match *self {
            Value::U8(x) => Some(x.into()),
            Value::I8(x) => Some(x.into()),
            Value::U16(x) => Some(x.into()),
            Value::I16(x) => Some(x.into()),
            Value::U32(x) => Some(x.into()),
            Value::I32(x) => Some(x.into()),
            Value::U64(x) => Some(x.into()),
            Value::I64(x) => Some(x.into()),
            Value::F32(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::F64(_) => None,
        }
    }
}

/// Maximum number of an array's elements that are printed.
const SHOWN_ELEMENTS: usize = 8;

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<_> = (0..self.len().min(SHOWN_ELEMENTS)).map(|i| self.element(i)).collect();
        let more = if self.len() > SHOWN_ELEMENTS { format!(", … {} in all", self.len()) } else { String::new() };
        write!(f, "[{}{more}]", shown.join(", "))
    }
}

impl fmt::Display for Value {
    /// Prints the value with escapes. Long values are shortened.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::F32(x) => write!(f, "{x}"),
            Value::F64(x) => write!(f, "{x}"),
            Value::Bool(x) => write!(f, "{x}"),
            Value::String(x) => write!(f, "\"{}\"", quote(x)),
            Value::Array(x) => write!(f, "{x}"),
            _ => write!(f, "{}", self.integer().unwrap_or_default()),
        }
    }
}

macro_rules! values_from {
    ($($from:ty => |$x:ident| $into:expr;)*) => {
        $(impl From<$from> for Value {
            fn from($x: $from) -> Value {
                $into
            }
        })*
    };
}

values_from! {
    u8 => |x| Value::U8(x);
    u16 => |x| Value::U16(x);
    u32 => |x| Value::U32(x);
    i32 => |x| Value::I32(x);
    u64 => |x| Value::U64(x);
    f32 => |x| Value::F32(x);
    bool => |x| Value::Bool(x);
    &str => |x| Value::String(x.into());
    Vec<u32> => |x| Value::Array(Array::U32(x));
    Vec<i32> => |x| Value::Array(Array::I32(x));
    Vec<f32> => |x| Value::Array(Array::F32(x));
    Vec<&str> => |x| Value::Array(Array::String(x.into_iter().collect()));
    StringArray => |x| Value::Array(Array::String(x));
    Array => |x| Value::Array(x);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_arrays_return_pushed_strings() {
        let array: StringArray = ["a", "", "ßc"].into_iter().collect();
        assert_eq!(array.iter().collect::<Vec<_>>(), ["a", "", "ßc"]);
        assert_eq!((array.get(0), array.get(1), array.get(2), array.get(3)), (Some("a"), Some(""), Some("ßc"), None));
    }

    #[test]
    fn printed_values_are_escaped_and_short() {
        assert_eq!(Value::from("\u{7}").to_string(), "\"\\u{7}\"");
        assert_eq!(Value::from((0..9).collect::<Vec<u32>>()).to_string(), "[0, 1, 2, 3, 4, 5, 6, 7, … 9 in all]");
    }
}
