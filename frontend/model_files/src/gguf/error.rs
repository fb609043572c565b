//! Errors of GGUF files. Each states the file, the byte offset, the key or tensor, the value found
//! and the expected value. Names from the file are escaped and shortened when printed.

use std::fmt;
use std::io;
use std::path::Path;

use ixc_failure::Class;
use ixc_files::io_class;
use ixc_ir::units::Bytes;

use super::tensor_type::TensorType;

/// Maximum length in a message of a name from the file, in bytes before escaping.
const SHOWN_NAME_BYTES: usize = 96;

/// Reason why a GGUF file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// An operation of the operating system failed.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// File of the failed operation.
        path: Box<Path>,
        /// Operation that failed, as a verb.
        action: &'static str,
        /// Reason that the system states.
        source: io::Error,
    },
    /// The path names a directory, a pipe or a device.
    #[error("{}: the path is not a regular file", path.display())]
    NotAFile {
        /// Path of the directory, pipe or device.
        path: Box<Path>,
    },
    /// The path names a folder, or a file of a type that is often mistaken for a model.
    #[error("{}: is {what}; ixc only reads GGUF files and folders of safetensors: {advice}", path.display())]
    Foreign {
        /// Path of the folder or file.
        path: Box<Path>,
        /// Type of the file.
        what: &'static str,
        /// Advice on how to get a GGUF file.
        advice: Box<str>,
        /// Class of the error: a folder counts as a missing file, another file as malformed.
        class: Class,
    },
    /// The first bytes do not identify a model format that `ixc` reads.
    #[error("{}: is not a GGUF file, a plan or the folder of a model ({})", path.display(), beginning(found))]
    NotModel {
        /// Path of the file.
        path: Box<Path>,
        /// First bytes of the file, at most eight; empty if the file is empty.
        found: Box<[u8]>,
    },
    /// The file ends before the end of its last tensor, because a download or copy was not
    /// completed.
    #[error("{}: is cut short: {} of {}; download or copy it again", path.display(), Bytes(*bytes), Bytes(*expected))]
    CutShort {
        /// Incomplete model file.
        path: Box<Path>,
        /// Size of the file in bytes.
        bytes: u64,
        /// Number of bytes that the header, keys and tensors need.
        expected: u64,
    },
    /// The file is not valid GGUF.
    #[error("{}: byte {offset:#x}: {place}{fault}", path.display())]
    Malformed {
        /// Invalid GGUF file.
        path: Box<Path>,
        /// Byte offset of the fault.
        offset: u64,
        /// Key or tensor that was being read.
        place: Place,
        /// Fault at this byte.
        fault: Fault,
    },
    /// A shard of a split model is missing.
    #[error("{}: shard {} of {count} is missing: no file {}", path.display(), number + 1, missing.display())]
    MissingShard {
        /// Path of the shard that was opened.
        path: Box<Path>,
        /// Expected path of the missing shard.
        missing: Box<Path>,
        /// Index of the missing shard; the first shard has index 0.
        number: u64,
        /// Number of shards of the model.
        count: u64,
    },
    /// A key is missing.
    #[error("{}: key \"{}\" is missing; expected {expected}", path.display(), quote(key))]
    KeyMissing {
        /// Model file without the key.
        path: Box<Path>,
        /// Name of the missing key.
        key: Box<str>,
        /// Expected type of the value.
        expected: &'static str,
    },
    /// A key has a value of another type.
    #[error("{}: key \"{}\" is {found}; expected {expected}", path.display(), quote(key))]
    KeyType {
        /// Model file with the key.
        path: Box<Path>,
        /// Name of the key.
        key: Box<str>,
        /// Type of the value.
        found: Box<str>,
        /// Expected type.
        expected: &'static str,
    },
    /// A key has an invalid value.
    #[error("{}: key \"{}\" is {found}; must be {limit}", path.display(), quote(key))]
    KeyValue {
        /// Model file with the key.
        path: Box<Path>,
        /// Name of the key.
        key: Box<str>,
        /// Value of the key.
        found: Box<str>,
        /// Condition that the value must meet.
        limit: Box<str>,
    },
    /// A tensor is missing.
    #[error("{}: tensor \"{}\" is missing", path.display(), quote(tensor))]
    TensorMissing {
        /// Model file without the tensor.
        path: Box<Path>,
        /// Name of the tensor.
        tensor: Box<str>,
    },
    /// A tensor has a type that `ixc` has no block format for.
    #[error(
        "{}: tensor \"{}\" has type {found}, which is not supported; supported types are {}",
        path.display(), quote(tensor), supported_types()
    )]
    UnsupportedType {
        /// Model file with the tensor.
        path: Box<Path>,
        /// Name of the tensor.
        tensor: Box<str>,
        /// Type of the tensor.
        found: TensorType,
    },
}

impl GgufError {
    /// Returns the class of the error, which determines the exit code.
    pub fn class(&self) -> Class {
        match self {
            GgufError::Io { source, .. } => io_class(source),
            GgufError::NotAFile { .. } | GgufError::MissingShard { .. } => Class::NoInput,
            GgufError::Foreign { class, .. } => *class,
            GgufError::NotModel { .. }
            | GgufError::CutShort { .. }
            | GgufError::Malformed { .. }
            | GgufError::KeyMissing { .. }
            | GgufError::KeyType { .. }
            | GgufError::KeyValue { .. }
            | GgufError::TensorMissing { .. }
            | GgufError::UnsupportedType { .. } => Class::Data,
        }
    }

    /// Returns the path of a file that the error states to be missing.
    pub fn missing_file(&self) -> Option<&Path> {
        match self {
            GgufError::Io { path, source, .. } if source.kind() == io::ErrorKind::NotFound => Some(path),
            _ => None,
        }
    }
}

/// Formats the first bytes of a file for a message.
fn beginning(bytes: &[u8]) -> String {
    match bytes {
        [] => "it is empty".to_owned(),
        bytes => format!("it starts with \"{}\"", bytes.escape_ascii()),
    }
}

/// Part of the header in which a fault was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Fixed fields at the start of the file.
    Header,
    /// Key with this index, before its name was read.
    KeyNumber(u64),
    /// Key with this name.
    Key(Box<str>),
    /// Tensor with this index, before its name was read.
    TensorNumber(u64),
    /// Tensor with this name.
    Tensor(Box<str>),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Header => Ok(()),
            Place::KeyNumber(index) => write!(f, "key #{index}: "),
            Place::Key(name) => write!(f, "key \"{}\": ", quote(name)),
            Place::TensorNumber(index) => write!(f, "tensor #{index}: "),
            Place::Tensor(name) => write!(f, "tensor \"{}\": ", quote(name)),
        }
    }
}

/// Fault in the bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The file ends inside a value.
    #[error(
        "needs {needed} more bytes, but only {left} follow in the file: the file is cut short or damaged; download or copy it again"
    )]
    Truncated {
        /// Number of bytes of the value, from this offset.
        needed: u64,
        /// Number of bytes left in the file, from this offset.
        left: u64,
    },
    /// The file is big-endian.
    #[error(
        "is a big-endian file; ixc reads little-endian files (llama.cpp's `gguf_convert_endian.py` swaps the bytes)"
    )]
    BigEndian,
    /// The version of the format is not supported.
    #[error("is version {found}; versions 2 and 3 are supported")]
    Version {
        /// Version of the file.
        found: u32,
    },
    /// A count states more items than fit in the remaining bytes of the file, or more than `ixc`'s
    /// limit.
    #[error(
        "states a count of {found} {what}; at most {limit} are allowed here and fit into the remaining bytes of the file"
    )]
    Count {
        /// Kind of the counted items.
        what: &'static str,
        /// Count that the file states.
        found: u64,
        /// Maximum count: the smaller of `ixc`'s limit and the number of items that fit in the
        /// file.
        limit: u64,
    },
    /// A string or name is too long.
    #[error("{what} of {found} bytes; at most {limit} are allowed here")]
    Length {
        /// Kind of the string.
        what: &'static str,
        /// Length in bytes.
        found: u64,
        /// Maximum length in bytes.
        limit: u64,
    },
    /// A name is empty.
    #[error("{what} is empty")]
    Empty {
        /// Kind of the empty name.
        what: &'static str,
    },
    /// A string is not UTF-8.
    #[error("{what} is not UTF-8: \"{found}\"")]
    NotUtf8 {
        /// Kind of the string.
        what: &'static str,
        /// Start of the string, escaped.
        found: Box<str>,
    },
    /// A value type does not exist.
    #[error("value type {found} does not exist; value types are 0 to 12")]
    ValueType {
        /// Id of the type in the file.
        found: u32,
    },
    /// A value has another type than its key requires.
    #[error("is {found}; must be {expected}")]
    WrongType {
        /// Type of the value.
        found: Box<str>,
        /// Required type.
        expected: &'static str,
    },
    /// A bool is neither 0 nor 1.
    #[error("the bool value is {found}; must be 0 or 1")]
    Bool {
        /// Byte of the bool.
        found: u8,
    },
    /// An array has arrays as elements.
    #[error("the value is an array of arrays; expected an array of numbers, bools or strings")]
    NestedArray,
    /// A key or tensor name appears twice.
    #[error("appears twice, first at byte {first:#x}")]
    Duplicate {
        /// Offset at which the name first appears.
        first: u64,
    },
    /// `general.alignment` is not a valid alignment.
    #[error("alignment is {found}; must be a power of two from {min} to {max}")]
    Alignment {
        /// Value of `general.alignment`.
        found: u32,
        /// Minimum alignment.
        min: u32,
        /// Maximum alignment.
        max: u32,
    },
    /// A tensor has no dimensions, or too many.
    #[error("has {found} dimensions; must be 1 to {limit}")]
    DimensionCount {
        /// Number of dimensions.
        found: u32,
        /// Maximum number of dimensions.
        limit: u32,
    },
    /// A dimension is zero or negative.
    #[error("dimension {index} is {found:#x}; must be 1 to 2^63 - 1")]
    Dimension {
        /// Index of the dimension.
        index: usize,
        /// Value of the dimension.
        found: u64,
    },
    /// The number of elements or bytes of a tensor needs more than 63 bits.
    #[error("a shape of {dims:?} elements of {ty} has more than 2^63 - 1 elements or bytes")]
    TensorSize {
        /// Dimensions of the tensor.
        dims: Box<[u64]>,
        /// Type of the tensor.
        ty: TensorType,
    },
    /// A tensor type does not exist.
    #[error("tensor type {found} does not exist in ggml{}", type_hint(*found))]
    TensorType {
        /// Id of the type in the file.
        found: u32,
    },
    /// A row does not have a whole number of blocks.
    #[error("rows of {found} elements are not a multiple of the {ty} block of {} elements", ty.block_len)]
    RowLength {
        /// Number of elements in a row.
        found: u64,
        /// Type of the tensor.
        ty: TensorType,
    },
    /// The offset of a tensor is not a multiple of the file's alignment.
    #[error("data offset {found:#x} is not a multiple of the alignment {alignment}")]
    Unaligned {
        /// Offset of the tensor from the start of the data section.
        found: u64,
        /// Alignment of the file, in bytes.
        alignment: u32,
    },
    /// A tensor extends beyond the data section.
    #[error("data of {bytes} bytes at data offset {offset:#x} ends after the file's data section of {limit} bytes")]
    OutsideFile {
        /// Offset of the tensor from the start of the data section.
        offset: u64,
        /// Length of the tensor in bytes.
        bytes: u64,
        /// Length of the data section in bytes.
        limit: u64,
    },
    /// Two tensors share bytes.
    #[error("data overlaps the data of tensor \"{}\"", quote(other))]
    Overlap {
        /// Name of the other tensor.
        other: Box<str>,
    },
    /// Shards of a split model do not match.
    #[error("{what} is {found}; expected {expected} for this file of a split model")]
    Split {
        /// Kind of the value that does not match.
        what: &'static str,
        /// Value in this file.
        found: Box<str>,
        /// Expected value.
        expected: Box<str>,
    },
}

/// Returns a name from a file, escaped for a terminal, and shortened if it is long.
pub fn quote(name: &str) -> String {
    let mut end = name.len().min(SHOWN_NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let more = if end < name.len() { "…" } else { "" };
    format!("{}{more}", name[..end].escape_debug())
}

/// Returns a text with the number of known names, and with the names that share the longest
/// beginnings with `found`.
pub fn among(found: &str, known: &[&str]) -> String {
    /// Maximum number of names in the text, and (next constant) minimum number of letters that a
    /// listed name shares.
    const MAX_NAMES: usize = 6;
    const MIN_SHARED_LETTERS: usize = 3;
    let letters = |name: &str| -> Vec<u8> {
        name.bytes().filter(u8::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
    };
    let own = letters(found);
    let shared = |name: &str| letters(name).iter().zip(&own).take_while(|(a, b)| a == b).count();
    let mut near: Vec<(usize, &str)> = known.iter().map(|name| (shared(name), *name)).collect();
    near.retain(|(shared, _)| *shared >= MIN_SHARED_LETTERS);
    near.sort_by_key(|(shared, _)| std::cmp::Reverse(*shared));
    near.truncate(MAX_NAMES);
    let names: Vec<&str> = near.into_iter().map(|(_, name)| name).collect();
    let named = if names.is_empty() { String::new() } else { format!(", among them {}", names.join(", ")) };
    format!("{} others{named}", known.len())
}

fn type_hint(id: u32) -> &'static str {
    match id {
        4 | 5 | 31..=33 | 36..=38 => " any more (it was removed)",
        // ik_llama.cpp numbers its own types from 97 on. From 200 on, these are its row-interleaved
        // types.
        97..=399 => " (ids from 97 up are ik_llama.cpp's own; quantise the model again with ggml's types)",
        _ => "",
    }
}

fn supported_types() -> String {
    let names: Vec<_> = super::TENSOR_TYPES.iter().filter(|ty| ty.format().is_some()).map(|ty| ty.name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_and_cut() {
        assert_eq!(quote("\u{1b}[2Jx\"\n"), "\\u{1b}[2Jx\\\"\\n");
        let long = quote(&"ä".repeat(1000));
        assert!(long.chars().count() < 60 && long.ends_with('…'), "{long}");
    }

    #[test]
    fn gguf_errors_stay_small() {
        assert!(size_of::<GgufError>() <= 128, "{}", size_of::<GgufError>());
    }
}
