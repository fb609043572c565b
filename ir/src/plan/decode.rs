//! Decoder of the postcard encoding, with a memory limit that is proportional to the number of
//! bytes read.
//!
//! An encoded byte can become many bytes in memory. An empty loop takes six encoded bytes but 136
//! in memory, and an empty `String` one encoded byte but 24 in memory. The decoder therefore counts
//! the memory of each list element, and of the allocation of each list and text. The sum may never
//! exceed [`MEMORY_PER_BYTE`] times the bytes read so far, plus [`SLACK`]. A larger value is
//! rejected before it is allocated.
//!
//! Plans that `ixc` writes take about eight times their encoded size in memory, and tokenizers six
//! times.

use std::cell::Cell;
use std::rc::Rc;

use ixc_failure::Class;
use postcard::de_flavors::Flavor;
use serde::Deserialize;
use serde::de::{self, DeserializeSeed, IntoDeserializer, Visitor};

/// Maximum number of bytes in memory for each encoded byte.
pub const MEMORY_PER_BYTE: usize = 16;
/// Memory that is allowed in addition to [`MEMORY_PER_BYTE`], because the part of a plan with the
/// highest ratio may be decoded first.
pub const SLACK: usize = 4 << 20;
/// Minimum overhead of an allocation in bytes (glibc's malloc).
const ALLOCATION: usize = 16;

/// Reason why bytes cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes do not encode a value of this type.
    #[error(transparent)]
    Encoding(#[from] postcard::Error),
    /// The value would take too much memory.
    #[error(
        "the first {bytes} bytes of the plan need more than {MEMORY_PER_BYTE} times their size in memory, more than any plan"
    )]
    Memory {
        /// Number of bytes read so far.
        bytes: usize,
    },
}

impl DecodeError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            DecodeError::Encoding(_) | DecodeError::Memory { .. } => Class::Data,
        }
    }
}

/// Decodes a value. Returns the value, and the remaining bytes.
///
/// # Errors
/// See [`DecodeError`].
pub fn take_from_bytes<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<(T, &'de [u8]), DecodeError> {
    let taken = Rc::new(Cell::new(0));
    let input = Input { bytes, taken: Rc::clone(&taken) };
    let mut decoder = Decoder {
        inner: postcard::Deserializer::from_flavor(input),
        taken: Rc::clone(&taken),
        made: 0,
        refused: false,
    };
    match T::deserialize(&mut decoder) {
        Ok(value) => Ok((value, bytes.get(taken.get()..).unwrap_or_default())),
        Err(_) if decoder.refused => Err(DecodeError::Memory { bytes: taken.get() }),
        Err(error) => Err(error.into()),
    }
}

/// The encoded input, with the number of bytes that were read from it.
struct Input<'de> {
    bytes: &'de [u8],
    taken: Rc<Cell<usize>>,
}

impl<'de> Flavor<'de> for Input<'de> {
    type Remainder = ();
    type Source = &'de [u8];

    fn pop(&mut self) -> postcard::Result<u8> {
        self.try_take_n(1).map(|byte| byte[0])
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.bytes.len() - self.taken.get())
    }

    fn try_take_n(&mut self, count: usize) -> postcard::Result<&'de [u8]> {
        let from = self.taken.get();
        let end = from.checked_add(count).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(postcard::Error::DeserializeUnexpectedEnd)?;
        self.taken.set(end);
        Ok(&self.bytes[from..end])
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Postcard's deserializer with a count of the memory of decoded values.
struct Decoder<'de> {
    inner: postcard::Deserializer<'de, Input<'de>>,
    taken: Rc<Cell<usize>>,
    made: usize,
    refused: bool,
}

impl<'de> Decoder<'de> {
    /// Counts memory before it is allocated. Fails if the sum exceeds the limit.
    fn make(&mut self, bytes: usize) -> postcard::Result<()> {
        self.made = self.made.saturating_add(bytes);
        let allowed = self.taken.get().saturating_mul(MEMORY_PER_BYTE).saturating_add(SLACK);
        self.refused |= self.made > allowed;
        // Postcard's errors cannot carry text, so the caller checks `refused`.
        if self.refused { Err(postcard::Error::SerdeDeCustom) } else { Ok(()) }
    }

    fn length(&mut self) -> postcard::Result<usize> {
        let length = u64::deserialize(&mut self.inner)?;
        usize::try_from(length).map_err(|_| postcard::Error::DeserializeBadVarint)
    }

    fn bytes(&mut self) -> postcard::Result<&'de [u8]> {
        let before = self.taken.get();
        let bytes: &'de [u8] = Deserialize::deserialize(&mut self.inner)?;
        // An empty text needs no allocation.
        let made = self.taken.get() - before;
        self.make(if bytes.is_empty() { 0 } else { made + ALLOCATION })?;
        Ok(bytes)
    }
}

/// Forwards the methods for types without lists to postcard.
macro_rules! plain {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> postcard::Result<V::Value> {
            de::Deserializer::$method(&mut self.inner, visitor)
        }
    )*};
}

impl<'de> de::Deserializer<'de> for &mut Decoder<'de> {
    type Error = postcard::Error;

    plain! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_u8
        deserialize_u16 deserialize_u32 deserialize_u64 deserialize_f32 deserialize_f64 deserialize_char deserialize_unit
        deserialize_identifier deserialize_ignored_any
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> postcard::Result<V::Value> {
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| postcard::Error::DeserializeBadUtf8)?;
        visitor.visit_str(text)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> postcard::Result<V::Value> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> postcard::Result<V::Value> {
        visitor.visit_bytes(self.bytes()?)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> postcard::Result<V::Value> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> postcard::Result<V::Value> {
        match u8::deserialize(&mut self.inner)? {
            0 => visitor.visit_none(),
            1 => visitor.visit_some(self),
            _ => Err(postcard::Error::DeserializeBadOption),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> postcard::Result<V::Value> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> postcard::Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> postcard::Result<V::Value> {
        let left = self.length()?;
        self.make(if left > 0 { ALLOCATION } else { 0 })?;
        visitor.visit_seq(Elements { decoder: self, left, is_list: true })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, left: usize, visitor: V) -> postcard::Result<V::Value> {
        visitor.visit_seq(Elements { decoder: self, left, is_list: false })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> postcard::Result<V::Value> {
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, _: V) -> postcard::Result<V::Value> {
        // No type that this decoder reads contains a map.
        Err(postcard::Error::WontImplement)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> postcard::Result<V::Value> {
        self.deserialize_tuple(fields.len(), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> postcard::Result<V::Value> {
        visitor.visit_enum(self)
    }
}

/// The elements of a list, tuple or struct. A list has its own allocation; tuples and structs are
/// stored in their owner.
struct Elements<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    left: usize,
    is_list: bool,
}

impl<'de> de::SeqAccess<'de> for Elements<'_, 'de> {
    type Error = postcard::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> postcard::Result<Option<S::Value>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        if self.is_list {
            self.decoder.make(size_of::<S::Value>())?;
        }
        seed.deserialize(&mut *self.decoder).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        // The input may have fewer elements than it claims. Serde reserves at most a mebibyte
        // because of this hint.
        Some(self.left)
    }
}

impl<'de> de::EnumAccess<'de> for &mut Decoder<'de> {
    type Error = postcard::Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> postcard::Result<(S::Value, Self)> {
        let variant = u32::deserialize(&mut self.inner)?;
        let value: S::Value = seed.deserialize(IntoDeserializer::<postcard::Error>::into_deserializer(variant))?;
        Ok((value, self))
    }
}

impl<'de> de::VariantAccess<'de> for &mut Decoder<'de> {
    type Error = postcard::Error;

    fn unit_variant(self) -> postcard::Result<()> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> postcard::Result<S::Value> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> postcard::Result<V::Value> {
        de::Deserializer::deserialize_tuple(self, len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> postcard::Result<V::Value> {
        de::Deserializer::deserialize_tuple(self, fields.len(), visitor)
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    enum Shape {
        Point,
        Circle(f32),
        Line { from: (i64, u8), to: Option<Box<Shape>> },
        Path(Vec<Shape>, String),
    }

    #[test]
    fn decodes_as_postcard_does() {
        let line = Shape::Line { from: (-7, 200), to: Some(Box::new(Shape::Circle(0.5))) };
        let path = Shape::Path(vec![Shape::Point, line, Shape::Path(vec![], "é".into())], String::new());
        let mut bytes = postcard::to_allocvec(&(path.clone(), true, u64::MAX, vec![1u8, 2])).unwrap();
        let end = bytes.len();
        bytes.extend(b"rest");
        let decoded = take_from_bytes::<(Shape, bool, u64, Vec<u8>)>(&bytes).unwrap();
        assert_eq!(decoded, ((path, true, u64::MAX, vec![1, 2]), &b"rest"[..]));
        for cut in 0..end {
            assert!(take_from_bytes::<(Shape, bool, u64, Vec<u8>)>(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn oversized_values_are_refused_before_allocation() {
        // An empty `String` is one encoded byte and 24 bytes in memory: eight bytes more than the
        // limit for one byte.
        let texts = |count: usize| postcard::to_allocvec(&vec![String::new(); count]).unwrap();
        let allowed = SLACK / (size_of::<String>() - MEMORY_PER_BYTE);
        assert_eq!(take_from_bytes::<Vec<String>>(&texts(allowed - 100)).unwrap().0.len(), allowed - 100);
        let bytes = texts(64 * allowed);
        let error = take_from_bytes::<Vec<String>>(&bytes).unwrap_err();
        let DecodeError::Memory { bytes: read } = error else { panic!("{error}") };
        assert!((allowed - 100..allowed + 100).contains(&read), "{read}");
        // A list of numbers stays within the limit.
        let numbers = vec![7u32; 4 << 20];
        assert_eq!(take_from_bytes::<Vec<u32>>(&postcard::to_allocvec(&numbers).unwrap()).unwrap().0, numbers);
    }
}
