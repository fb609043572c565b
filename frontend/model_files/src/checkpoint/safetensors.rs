//! Reader of the safetensors format. A file has the length of its header, a header in JSON, and the
//! bytes of the tensors.
//!
//! ```text
//! 8 bytes       length of the header, little-endian
//! {"w": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, "__metadata__": {…}}
//! 12 bytes      w
//! ```
//!
//! The checks are those of the format's reference reader. Each byte of data must belong to exactly
//! one tensor.

use std::fmt;
use std::path::Path;

use ixc_ir::derived::{Element, Extent};
use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, Visitor};

use super::error::{CheckpointError, HeaderFault};

/// Maximum length of the header in bytes (the reference reader's `MAX_HEADER_SIZE`).
const MAX_HEADER: u64 = 100_000_000;
/// Maximum number of tensors in a file.
const MAX_TENSORS: usize = 1 << 20;
/// Maximum number of dimensions of a tensor.
const MAX_DIMENSIONS: usize = 8;

/// Element type of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dtype {
    pub name: &'static str,
    pub bytes: u64,
    /// Element type for weights; `None` for types that weights cannot have.
    pub element: Option<Element>,
}

const fn row(name: &'static str, bytes: u64, element: Option<Element>) -> Dtype {
    Dtype { name, bytes, element }
}

/// All element types of the format, except those smaller than a byte.
static DTYPES: [Dtype; 17] = [
    row("F64", 8, None),
    row("F32", 4, Some(Element::F32)),
    row("F16", 2, Some(Element::F16)),
    row("BF16", 2, Some(Element::Bf16)),
    row("F8_E4M3", 1, Some(Element::F8E4m3)),
    row("F8_E5M2", 1, None),
    row("F8_E8M0", 1, None),
    row("I64", 8, None),
    row("I32", 4, None),
    row("I16", 2, None),
    row("I8", 1, None),
    row("U64", 8, None),
    row("U32", 4, None),
    row("U16", 2, None),
    row("U8", 1, None),
    row("BOOL", 1, None),
    row("C64", 8, None),
];

/// Description of a tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub name: Box<str>,
    pub dtype: Dtype,
    pub shape: Box<[u64]>,
    /// Offset in the file, in bytes.
    pub offset: u64,
    pub bytes: u64,
}

impl Entry {
    /// Returns the byte range of the tensor. `file` is the number of its file.
    pub(super) fn extent(&self, file: u32) -> Extent {
        Extent { file, offset: self.offset, bytes: self.bytes }
    }
}

/// Content of a file's header.
#[derive(Debug)]
pub(super) struct Header {
    /// Length of the header, including the eight bytes of its length field.
    pub bytes: u64,
    pub tensors: Vec<Entry>,
}

#[derive(Deserialize)]
struct Raw {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// Tensors in the order of the header. Duplicate names are kept, to report them.
struct Table(Vec<(String, Raw)>);

impl<'de> Deserialize<'de> for Table {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Table, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Table;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a safetensors header: an object with an object for each tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Table, A::Error> {
                let mut table = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        table.push((name, map.next_value()?));
                    }
                }
                Ok(Table(table))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Reads the header from the bytes of a file.
///
/// # Errors
/// When the header is malformed. Only the first fault is reported.
pub(super) fn header(path: &Path, data: &[u8]) -> Result<Header, CheckpointError> {
    let malformed = |tensor: Option<&str>, fault| CheckpointError::Malformed {
        path: path.into(),
        tensor: tensor.map(Box::from),
        fault,
    };
    let total = data.len() as u64;
    let Some((length, rest)) = data.split_first_chunk() else {
        return Err(malformed(None, HeaderFault::Short { found: total }));
    };
    let (length, limit) = (u64::from_le_bytes(*length), MAX_HEADER.min(rest.len() as u64));
    if length > limit {
        return Err(malformed(None, HeaderFault::Length { found: length, limit }));
    }
    let (json, rest) = rest.split_at(length as usize);
    let table: Table =
        serde_json::from_slice(json).map_err(|source| CheckpointError::Json { path: path.into(), source })?;
    let available = rest.len() as u64;
    if table.0.len() > MAX_TENSORS {
        return Err(malformed(None, HeaderFault::Count { limit: MAX_TENSORS }));
    }
    let mut tensors = Vec::with_capacity(table.0.len());
    for (name, raw) in table.0 {
        let Some(&dtype) = DTYPES.iter().find(|row| row.name == raw.dtype) else {
            return Err(malformed(Some(&name), HeaderFault::Type { found: raw.dtype.into() }));
        };
        let [begin, end] = raw.data_offsets;
        if begin > end || end > available {
            return Err(malformed(Some(&name), HeaderFault::Offsets { begin, end, limit: available }));
        }
        let elements = raw.shape.iter().try_fold(u128::from(dtype.bytes), |n, &dim| n.checked_mul(dim.into()));
        let expected = elements.unwrap_or(u128::MAX);
        if expected != u128::from(end - begin) || raw.shape.len() > MAX_DIMENSIONS {
            let (shape, found) = (raw.shape.into(), end - begin);
            return Err(malformed(Some(&name), HeaderFault::Bytes { shape, dtype: dtype.name, found, expected }));
        }
        let (name, shape, bytes) = (name.into(), raw.shape.into(), end - begin);
        tensors.push(Entry { name, dtype, shape, offset: begin, bytes });
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(malformed(Some(&pair[1].name), HeaderFault::Duplicate));
    }
    // Tensors are listed in the order of their data, so that tensors that are read together are
    // adjacent.
    tensors.sort_by_key(|entry| (entry.offset, entry.bytes));
    let mut expected = 0;
    for entry in &tensors {
        if entry.offset != expected {
            return Err(malformed(Some(&entry.name), HeaderFault::Gap { begin: entry.offset, expected }));
        }
        expected += entry.bytes;
    }
    if expected != available {
        return Err(malformed(None, HeaderFault::Rest { found: available, expected }));
    }
    let bytes = 8 + length;
    tensors.iter_mut().for_each(|entry| entry.offset += bytes);
    Ok(Header { bytes, tensors })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(json: &str, data: usize) -> Vec<u8> {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend(json.bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    fn read(json: &str, data: usize) -> Result<Header, CheckpointError> {
        header("x.safetensors".as_ref(), &file(json, data))
    }

    #[test]
    fn a_header_is_read() {
        let json = r#"{"__metadata__":{"format":"pt","deep":[[{}]]},
            "b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},
            "none":{"dtype":"F32","shape":[0,4],"data_offsets":[16,16]}}"#;
        let found = read(json, 16).unwrap();
        assert_eq!(found.bytes, 8 + json.len() as u64);
        let tensors: Vec<_> =
            found.tensors.iter().map(|t| (&*t.name, t.dtype.name, t.offset - found.bytes, t.bytes)).collect();
        assert_eq!(tensors, [("a", "BF16", 0, 12), ("b", "F32", 12, 4), ("none", "F32", 16, 0)]);
    }

    /// Tests that each hostile header gives its error.
    #[test]
    fn malformed_safetensors_headers_are_refused() {
        let fault = |bytes: &[u8]| match header("x".as_ref(), bytes) {
            Err(CheckpointError::Malformed { tensor, fault, .. }) => {
                format!("{}: {fault}", tensor.as_deref().unwrap_or("-"))
            }
            Err(CheckpointError::Json { source, .. }) => format!("json: {source}"),
            other => panic!("{other:?}"),
        };
        let one = |entry: &str, data| fault(&file(&format!(r#"{{"w":{entry}}}"#), data));
        assert_eq!(
            fault(b"1234567"),
            "-: has 7 bytes; a safetensors file begins with 8 bytes, the length of its header"
        );
        let long = u64::MAX.to_le_bytes();
        assert!(fault(&long).contains(
            "has a header of 18446744073709551615 bytes; the header must end inside the file and have at most 0"
        ));
        assert!(one(r#"{"dtype":"F33","shape":[1],"data_offsets":[0,4]}"#, 4).contains("type \"F33\""));
        assert!(one(r#"{"dtype":"F32","shape":[1],"data_offsets":[4,0]}"#, 4).contains("4 to 0; they must ascend"));
        assert!(
            one(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#, 4)
                .contains("0 to 8; they must ascend and end in the file's 4 bytes")
        );
        assert!(
            one(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,4]}"#, 4)
                .contains("has 4 bytes; its shape [2] of F32 takes 8 bytes")
        );
        let huge = r#"{"dtype":"F32","shape":[18446744073709551615,18446744073709551615],"data_offsets":[0,4]}"#;
        assert!(one(huge, 4).starts_with("w: has 4 bytes"));
        assert!(one(r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#, 4).starts_with("json: invalid value"));
        assert!(one(r#"{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}"#, 4).starts_with("json: "));
        assert!(one(r#"{"dtype":"F32","shape":[1]}"#, 4).contains("missing field `data_offsets`"));
        assert!(
            one(r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#, 8)
                .contains("8 bytes of data; expected 4, where the last tensor ends")
        );
        assert!(
            one(r#"{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#, 8)
                .contains("begins at byte 4 of the file's data")
        );
        let two = |a: &str, b: &str| {
            let entry = |offsets: &str| format!(r#"{{"dtype":"F32","shape":[2],"data_offsets":{offsets}}}"#);
            fault(&file(&format!(r#"{{"a":{},"b":{}}}"#, entry(a), entry(b)), 16))
        };
        assert!(
            two("[0,8]", "[4,12]")
                .contains("b: begins at byte 4 of the file's data; expected byte 8, where the previous tensor ends")
        );
        let twice = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
        assert_eq!(fault(&file(twice, 8)), "a: appears twice");
        assert!(fault(&file("[1]", 0)).starts_with("json: invalid type: sequence, expected a safetensors header"));
        assert!(fault(&file("{\"a\":", 0)).starts_with("json: EOF"));
        assert!(fault(&file(&format!("{{\"__metadata__\":{}", "[".repeat(1 << 16)), 0)).contains("EOF"));
    }
}
