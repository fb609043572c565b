//! Parser of the metadata and the tensor table in a file's bytes. This is the only code that reads
//! unchecked bytes.
//!
//! One rule bounds memory and time. Before `n` items are read or allocated, `n` is compared with
//! the number of items of minimum size that the remaining bytes can hold. The cost is therefore at
//! most a small multiple of the file's size.
//!
//! The format leaves some choices, which the parser decides as follows. Keys may be any UTF-8 text
//! that is not empty; bools are 0 or 1. It refuses alignments below 8, tensors without dimensions
//! or elements, and arrays of arrays. It accepts gaps between tensors, tensors in any order, and
//! bytes after the last tensor.

use std::path::Path;
use std::sync::Arc;

use super::error::{Fault, GgufError, Place};
use super::foreign;
use super::metadata::Metadata;
use super::tensor_type::TensorType;
use super::value::{Array, StringArray, TYPE_NAMES, Value};

/// Maximum length of a key in bytes (GGUF: 2^16 - 1).
pub const MAX_KEY_BYTES: u64 = 65_535;
/// Maximum length of a tensor name in bytes (GGUF: 64).
pub const MAX_TENSOR_NAME_BYTES: u64 = 64;
/// Maximum number of dimensions (ggml `GGML_MAX_DIMS`).
pub const MAX_DIMENSIONS: u32 = 4;
/// Maximum number of keys. Known files have a few hundred.
pub const MAX_KEYS: u64 = 1 << 16;
/// Maximum number of tensors. The largest models have about 40,000, with a tensor for each expert.
pub const MAX_TENSORS: u64 = 1 << 17;
/// Minimum alignment; GGUF requires a multiple of 8.
pub const MIN_ALIGNMENT: u32 = 8;
/// Maximum alignment: 64 KiB, the largest page size of machines that run such files.
pub const MAX_ALIGNMENT: u32 = 65_536;

/// Key of the model's architecture.
pub(super) const ARCHITECTURE: &str = "general.architecture";
/// Maximum number of elements in an array. The size of the file usually sets a lower limit.
const MAX_ELEMENTS: u64 = u32::MAX as u64;
/// Default alignment of tensor data (ggml `GGUF_DEFAULT_ALIGNMENT`).
const DEFAULT_ALIGNMENT: u32 = 32;
/// Minimum size of a key's entry in bytes: length of the name, one byte of name, value type, one
/// byte of value.
const MIN_KEY_ENTRY: u64 = 8 + 1 + 4 + 1;
/// Minimum size of a tensor's entry in bytes: length of the name, one byte of name, number of
/// dimensions, one dimension, type, offset.
const MIN_TENSOR_ENTRY: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// Tensor of a file: its name, type, shape and byte range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub(super) name: Box<str>,
    pub(super) tensor_type: TensorType,
    pub(super) dims: [u64; MAX_DIMENSIONS as usize],
    pub(super) dimensions: usize,
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Tensor {
    /// Returns a tensor of a file of another format. `dims` are 1 to 4 dimensions, the row length
    /// first. `None` if a row does not have whole blocks, or if the dimensions or bytes are too
    /// many.
    pub fn new(name: &str, tensor_type: TensorType, dims: &[u64], file: usize, offset: u64) -> Option<Tensor> {
        let bytes = tensor_type.tensor_bytes(dims).filter(|&bytes| bytes <= i64::MAX as u64)?;
        let mut padded = [1; MAX_DIMENSIONS as usize];
        padded.get_mut(..dims.len())?.copy_from_slice(dims);
        let (name, dimensions) = (name.into(), dims.len());
        Some(Tensor { name, tensor_type, dims: padded, dimensions, file, offset, bytes })
    }

    /// Returns the name as it is in the file. Escape it before printing.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the type.
    pub fn tensor_type(&self) -> TensorType {
        self.tensor_type
    }

    /// Returns the 1 to 4 dimensions in ggml's `ne` order: the row length first.
    pub fn dims(&self) -> &[u64] {
        &self.dims[..self.dimensions]
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        self.dims().iter().product()
    }

    /// Returns the index of the tensor's file in [`Gguf::files`](super::Gguf::files).
    pub fn file(&self) -> usize {
        self.file
    }

    /// Returns the byte offset of the data from the start of the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the length of the data in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Content of a file's header, keys and tensor table.
#[derive(Debug)]
pub(super) struct ParsedHeader {
    pub version: u32,
    pub alignment: u32,
    pub metadata: Metadata,
    pub tensors: Vec<Tensor>,
    /// Length of the header, the keys and the tensor table in bytes.
    pub header_bytes: u64,
}

/// Parses the header of a file, whose bytes are `bytes`. Its tensors get the file index `file`.
pub(super) fn parse(path: &Arc<Path>, bytes: &[u8], file: usize) -> Result<ParsedHeader, GgufError> {
    let mut cursor = Cursor { path, bytes, at: 0, place: Place::Header };
    let version = magic_and_version(&mut cursor)?;
    let tensor_count = cursor.u64()?;
    let key_count = cursor.u64()?;
    let metadata = keys(&mut cursor, key_count)?;
    let alignment = alignment(&metadata)?;
    let tensors = tensors(&mut cursor, tensor_count, alignment, file)?;
    Ok(ParsedHeader { version, alignment, metadata, tensors, header_bytes: cursor.at as u64 })
}

/// Maximum number of the file's first bytes that an error shows.
const SHOWN_BYTES: usize = 8;

fn magic_and_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    if !cursor.bytes.starts_with(b"GGUF") {
        let found = cursor.bytes[..cursor.bytes.len().min(SHOWN_BYTES)].into();
        let unknown = || GgufError::NotModel { path: (&**cursor.path).into(), found };
        return Err(foreign::file(cursor.path, cursor.bytes).unwrap_or_else(unknown));
    }
    cursor.array::<4>()?;
    let version = cursor.u32()?;
    match version {
        2 | 3 => Ok(version),
        _ if (1..=3).contains(&version.swap_bytes()) => Err(cursor.fault_at(4, Fault::BigEndian)),
        _ => Err(cursor.fault_at(4, Fault::Version { found: version })),
    }
}

fn keys(cursor: &mut Cursor<'_>, count: u64) -> Result<Metadata, GgufError> {
    cursor.place = Place::Header;
    let count = cursor.count("keys", count, MIN_KEY_ENTRY, MAX_KEYS)?;
    let mut entries: Vec<(Box<str>, Value)> = Vec::with_capacity(count);
    let mut starts = Vec::with_capacity(count);
    for index in 0..count {
        cursor.place = Place::KeyNumber(index as u64);
        starts.push(cursor.at as u64);
        let key: Box<str> = cursor.name("key", MAX_KEY_BYTES)?.into();
        cursor.place = Place::Key(key.clone());
        let type_at = cursor.at;
        let value = cursor.value()?;
        // The parser itself needs these two keys, so it checks their types here.
        let expected = match (&*key, &value) {
            (ARCHITECTURE, Value::String(_)) | ("general.alignment", Value::U32(_)) => None,
            (ARCHITECTURE, _) => Some("string"),
            ("general.alignment", _) => Some("u32"),
            _ => None,
        };
        if let Some(expected) = expected {
            let found = value.type_name().into();
            return Err(cursor.fault_at(type_at, Fault::WrongType { found, expected }));
        }
        if let ("general.alignment", &Value::U32(found)) = (&*key, &value)
            && !(found.is_power_of_two() && (MIN_ALIGNMENT..=MAX_ALIGNMENT).contains(&found))
        {
            return Err(cursor.fault_at(type_at, Fault::Alignment { found, min: MIN_ALIGNMENT, max: MAX_ALIGNMENT }));
        }
        entries.push((key, value));
    }
    let by_name = sorted_indices(entries.len(), |i| &entries[i].0);
    if let Some((first, second)) = duplicate(&by_name, |i| &entries[i].0) {
        cursor.place = Place::Key(entries[second].0.clone());
        return Err(cursor.fault_at(starts[second] as usize, Fault::Duplicate { first: starts[first] }));
    }
    Ok(Metadata::new(cursor.path.clone(), entries, by_name))
}

fn alignment(metadata: &Metadata) -> Result<u32, GgufError> {
    metadata.read_or("general.alignment", DEFAULT_ALIGNMENT)
}

/// Returns the indices from 0 to `len`, sorted by name. Equal names are sorted by index.
fn sorted_indices<'a>(len: usize, name: impl Fn(usize) -> &'a str) -> Vec<u32> {
    // Lengths are at most MAX_KEYS or MAX_TENSORS, so a u32 holds each index.
    let mut by_name: Vec<u32> = (0..len as u32).collect();
    by_name.sort_by(|&a, &b| name(a as usize).cmp(name(b as usize)));
    by_name
}

/// Returns the first two adjacent indices in a sorted list whose names are equal.
fn duplicate<'a>(by_name: &[u32], name: impl Fn(usize) -> &'a str) -> Option<(usize, usize)> {
    by_name.windows(2).map(|pair| (pair[0] as usize, pair[1] as usize)).find(|&(a, b)| name(a) == name(b))
}

fn tensors(cursor: &mut Cursor<'_>, count: u64, alignment: u32, file: usize) -> Result<Vec<Tensor>, GgufError> {
    cursor.place = Place::Header;
    let count = cursor.count("tensors", count, MIN_TENSOR_ENTRY, MAX_TENSORS)?;
    let mut tensors = Vec::with_capacity(count);
    let mut starts = Vec::with_capacity(count);
    for index in 0..count {
        cursor.place = Place::TensorNumber(index as u64);
        starts.push(cursor.at as u64);
        tensors.push(tensor(cursor, alignment, file)?);
    }
    let by_name = sorted_indices(tensors.len(), |i| &tensors[i].name);
    if let Some((first, second)) = duplicate(&by_name, |i| &tensors[i].name) {
        cursor.place = Place::Tensor(tensors[second].name.clone());
        return Err(cursor.fault_at(starts[second] as usize, Fault::Duplicate { first: starts[first] }));
    }
    place_tensors(cursor, &mut tensors, &starts, alignment)?;
    Ok(tensors)
}

/// Parses an entry of the tensor table. The offset is relative to the start of the data section.
fn tensor(cursor: &mut Cursor<'_>, alignment: u32, file: usize) -> Result<Tensor, GgufError> {
    let name: Box<str> = cursor.name("tensor name", MAX_TENSOR_NAME_BYTES)?.into();
    cursor.place = Place::Tensor(name.clone());
    let dims_at = cursor.at;
    let dimensions = cursor.u32()?;
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
        return Err(cursor.fault_at(dims_at, Fault::DimensionCount { found: dimensions, limit: MAX_DIMENSIONS }));
    }
    let dimensions = dimensions as usize;
    let mut dims = [1; MAX_DIMENSIONS as usize];
    for (index, dim) in dims.iter_mut().take(dimensions).enumerate() {
        let at = cursor.at;
        *dim = cursor.u64()?;
        if *dim == 0 || *dim > i64::MAX as u64 {
            return Err(cursor.fault_at(at, Fault::Dimension { index, found: *dim }));
        }
    }
    let type_at = cursor.at;
    let id = cursor.u32()?;
    let ty = TensorType::from_id(id).ok_or_else(|| cursor.fault_at(type_at, Fault::TensorType { found: id }))?;
    if dims[0] % u64::from(ty.block_len) != 0 {
        return Err(cursor.fault_at(dims_at, Fault::RowLength { found: dims[0], ty }));
    }
    let elements = dims.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim)).filter(|&n| n <= i64::MAX as u64);
    let bytes = elements.and_then(|_| ty.tensor_bytes(&dims)).filter(|&n| n <= i64::MAX as u64);
    let Some(bytes) = bytes else {
        return Err(cursor.fault_at(dims_at, Fault::TensorSize { dims: dims[..dimensions].into(), ty }));
    };
    let offset_at = cursor.at;
    let offset = cursor.u64()?;
    if offset % u64::from(alignment) != 0 {
        return Err(cursor.fault_at(offset_at, Fault::Unaligned { found: offset, alignment }));
    }
    Ok(Tensor { name, tensor_type: ty, dims, dimensions, file, offset, bytes })
}

/// Returns the end of the last tensor in the data section, if tensors follow each other without
/// gaps except for alignment. Writers of GGUF place them so; in a damaged header, this is rarely
/// the case.
fn sequential_end(tensors: &[Tensor], alignment: u32) -> Option<u64> {
    let mut ranges: Vec<(u64, u64)> = tensors.iter().map(|tensor| (tensor.offset, tensor.bytes)).collect();
    ranges.sort_unstable();
    let mut next = 0;
    let mut end = 0;
    for (offset, bytes) in ranges {
        if offset != next {
            return None;
        }
        end = offset.checked_add(bytes)?;
        next = end.checked_next_multiple_of(u64::from(alignment))?;
    }
    Some(end)
}

/// Converts offsets to offsets from the start of the file. Checks that each tensor is inside the
/// file and overlaps no other.
fn place_tensors(
    cursor: &mut Cursor<'_>,
    tensors: &mut [Tensor],
    starts: &[u64],
    alignment: u32,
) -> Result<(), GgufError> {
    let file_bytes = cursor.bytes.len() as u64;
    // The header ends inside the file, and the alignment is at most 64 KiB, so this sum cannot
    // wrap.
    let data_start = (cursor.at as u64).next_multiple_of(u64::from(alignment));
    let limit = file_bytes.saturating_sub(data_start);
    if let Some(expected) = sequential_end(tensors, alignment).filter(|end| *end > limit) {
        let path = (&**cursor.path).into();
        return Err(GgufError::CutShort { path, bytes: file_bytes, expected: data_start.saturating_add(expected) });
    }
    for (tensor, &start) in tensors.iter_mut().zip(starts) {
        if tensor.offset.checked_add(tensor.bytes).is_none_or(|end| end > limit) {
            cursor.place = Place::Tensor(tensor.name.clone());
            let fault = Fault::OutsideFile { offset: tensor.offset, bytes: tensor.bytes, limit };
            return Err(cursor.fault_at(start as usize, fault));
        }
        tensor.offset += data_start;
    }
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&i| tensors[i].offset);
    for pair in order.windows(2) {
        let (before, after) = (&tensors[pair[0]], &tensors[pair[1]]);
        if before.offset + before.bytes > after.offset {
            cursor.place = Place::Tensor(after.name.clone());
            return Err(cursor.fault_at(starts[pair[1]] as usize, Fault::Overlap { other: before.name.clone() }));
        }
    }
    Ok(())
}

/// Read position in a file, with the current key or tensor for errors.
struct Cursor<'a> {
    path: &'a Arc<Path>,
    bytes: &'a [u8],
    /// Offset of the next byte to read. It is never beyond the end of `bytes`.
    at: usize,
    place: Place,
}

impl<'a> Cursor<'a> {
    fn fault_at(&self, at: usize, fault: Fault) -> GgufError {
        let path = (&**self.path).into();
        GgufError::Malformed { path, offset: at as u64, place: self.place.clone(), fault }
    }

    fn remaining(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    fn take(&mut self, needed: u64) -> Result<&'a [u8], GgufError> {
        let left = self.remaining();
        let range = usize::try_from(needed).ok().and_then(|n| self.at.checked_add(n)).map(|end| self.at..end);
        match range.and_then(|range| self.bytes.get(range)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(self.fault_at(self.at, Fault::Truncated { needed, left })),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Returns `found` as a count. It must be at most `max`, and the remaining file must have at
    /// least `smallest` bytes for each item.
    fn count(&self, what: &'static str, found: u64, smallest: u64, max: u64) -> Result<usize, GgufError> {
        let limit = (self.remaining() / smallest).min(max);
        let fits = if found <= limit { usize::try_from(found).ok() } else { None };
        fits.ok_or_else(|| self.fault_at(self.at, Fault::Count { what, found, limit }))
    }

    /// Reads a UTF-8 string of at most `limit` bytes, whose length precedes it.
    fn string(&mut self, what: &'static str, limit: u64) -> Result<&'a str, GgufError> {
        let at = self.at;
        let found = self.u64()?;
        let limit = limit.min(self.remaining());
        if found > limit {
            return Err(self.fault_at(at, Fault::Length { what, found, limit }));
        }
        let bytes = self.take(found)?;
        std::str::from_utf8(bytes).map_err(|_| {
            let shown = &bytes[..bytes.len().min(64)];
            self.fault_at(at, Fault::NotUtf8 { what, found: shown.escape_ascii().to_string().into() })
        })
    }

    fn name(&mut self, what: &'static str, limit: u64) -> Result<&'a str, GgufError> {
        let at = self.at;
        let name = self.string(what, limit)?;
        if name.is_empty() { Err(self.fault_at(at, Fault::Empty { what })) } else { Ok(name) }
    }

    fn bool(&mut self) -> Result<bool, GgufError> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [found] => Err(self.fault_at(self.at - 1, Fault::Bool { found })),
        }
    }

    fn value_type(&mut self) -> Result<u32, GgufError> {
        let at = self.at;
        let found = self.u32()?;
        if (found as usize) < TYPE_NAMES.len() { Ok(found) } else { Err(self.fault_at(at, Fault::ValueType { found })) }
    }

    fn value(&mut self) -> Result<Value, GgufError> {
        Ok(match self.value_type()? {
            0 => Value::U8(u8::from_le_bytes(self.array()?)),
            1 => Value::I8(i8::from_le_bytes(self.array()?)),
            2 => Value::U16(u16::from_le_bytes(self.array()?)),
            3 => Value::I16(i16::from_le_bytes(self.array()?)),
            4 => Value::U32(self.u32()?),
            5 => Value::I32(i32::from_le_bytes(self.array()?)),
            6 => Value::F32(f32::from_le_bytes(self.array()?)),
            7 => Value::Bool(self.bool()?),
            8 => Value::String(self.string("value", u64::MAX)?.into()),
            9 => Value::Array(self.array_value()?),
            10 => Value::U64(self.u64()?),
            11 => Value::I64(i64::from_le_bytes(self.array()?)),
            12 => Value::F64(f64::from_le_bytes(self.array()?)),
            found => return Err(self.fault_at(self.at - 4, Fault::ValueType { found })),
        })
    }

    fn array_value(&mut self) -> Result<Array, GgufError> {
        let type_at = self.at;
        let element_type = self.value_type()?;
        let len = self.u64()?;
        Ok(match element_type {
            0 => Array::U8(self.numbers(len, u8::from_le_bytes)?),
            1 => Array::I8(self.numbers(len, i8::from_le_bytes)?),
            2 => Array::U16(self.numbers(len, u16::from_le_bytes)?),
            3 => Array::I16(self.numbers(len, i16::from_le_bytes)?),
            4 => Array::U32(self.numbers(len, u32::from_le_bytes)?),
            5 => Array::I32(self.numbers(len, i32::from_le_bytes)?),
            6 => Array::F32(self.numbers(len, f32::from_le_bytes)?),
            7 => {
                let len = self.count("array elements", len, 1, MAX_ELEMENTS)?;
                Array::Bool((0..len).map(|_| self.bool()).collect::<Result<_, _>>()?)
            }
            8 => {
                let len = self.count("array elements", len, 8, MAX_ELEMENTS)?;
                let mut strings = StringArray::with_capacity(len);
                for _ in 0..len {
                    strings.push(self.string("array element", u64::MAX)?);
                }
                Array::String(strings)
            }
            // No known file has nested arrays, and llama.cpp does not read them.
            9 => return Err(self.fault_at(type_at, Fault::NestedArray)),
            10 => Array::U64(self.numbers(len, u64::from_le_bytes)?),
            11 => Array::I64(self.numbers(len, i64::from_le_bytes)?),
            12 => Array::F64(self.numbers(len, f64::from_le_bytes)?),
            found => return Err(self.fault_at(self.at, Fault::ValueType { found })),
        })
    }

    /// Reads `len` elements of `N` bytes each, converted by `from`.
    fn numbers<const N: usize, T>(&mut self, len: u64, from: fn([u8; N]) -> T) -> Result<Vec<T>, GgufError> {
        let len = self.count("array elements", len, N as u64, MAX_ELEMENTS)?;
        // `count` has checked that len * N is at most the number of remaining bytes.
        let bytes = self.take(len as u64 * N as u64)?;
        let (elements, _) = bytes.as_chunks::<N>();
        Ok(elements.iter().map(|&element| from(element)).collect())
    }
}
