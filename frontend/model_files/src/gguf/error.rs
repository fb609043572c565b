//! What can be wrong with a GGUF file, and where: one enum, with the file, the byte offset, the key or tensor, what was
//! found and what would have been right. Names from the file are escaped and shortened when printed.

use std::fmt;
use std::io;
use std::path::Path;

use ixc_failure::Class;
use ixc_files::io_class;
use ixc_ir::units::Bytes;

use super::tensor_type::TensorType;

/// Longest name that a message repeats in full, in bytes before escaping.
const SHOWN_NAME_BYTES: usize = 96;

/// Why a GGUF file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: Box<Path>,
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The path names a directory, a pipe or a device.
    #[error("{}: not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: Box<Path>,
    },
    /// A folder, or a file of a kind that people take for a model.
    #[error("{}: is {what}; ixc reads GGUF files and folders of safetensors: {advice}", path.display())]
    Foreign {
        /// The path.
        path: Box<Path>,
        /// What it is.
        what: &'static str,
        /// How to come to a GGUF file.
        advice: Box<str>,
        /// What kind of failure it is: a folder is no file, and other files are malformed ones.
        class: Class,
    },
    /// The file begins as no model does that `ixc` reads.
    #[error("{}: is no GGUF file, plan or folder of a model ({})", path.display(), beginning(found))]
    NotModel {
        /// The file.
        path: Box<Path>,
        /// The first bytes, at most eight; none where the file is empty.
        found: Box<[u8]>,
    },
    /// Tensors lie one after the other, and the file ends before the last one does: a download or a
    /// copy that was cut.
    #[error("{}: is cut short: {} of {}; download or copy it again", path.display(), Bytes(*bytes), Bytes(*expected))]
    CutShort {
        /// The file.
        path: Box<Path>,
        /// Bytes that it has.
        bytes: u64,
        /// Bytes that its tensors need.
        expected: u64,
    },
    /// The bytes are no valid GGUF.
    #[error("{}: byte {offset:#x}: {place}{fault}", path.display())]
    Malformed {
        /// The file.
        path: Box<Path>,
        /// Where in the file the fault was seen.
        offset: u64,
        /// The key or tensor being read.
        place: Place,
        /// What is wrong.
        fault: Fault,
    },
    /// A shard of a split model is not there.
    #[error("{}: shard {} of {count} is missing: no file {}", path.display(), number + 1, missing.display())]
    MissingShard {
        /// The shard that was opened.
        path: Box<Path>,
        /// The file that should be there.
        missing: Box<Path>,
        /// Its index, from 0.
        number: u64,
        /// How many shards there are.
        count: u64,
    },
    /// A key is not there.
    #[error("{}: key \"{}\" is missing; expected {expected}", path.display(), quoted(key))]
    KeyMissing {
        /// The file.
        path: Box<Path>,
        /// The key.
        key: Box<str>,
        /// What it should hold.
        expected: &'static str,
    },
    /// A key has a value of another type.
    #[error("{}: key \"{}\" is {found}; expected {expected}", path.display(), quoted(key))]
    KeyType {
        /// The file.
        path: Box<Path>,
        /// The key.
        key: Box<str>,
        /// The type that it has.
        found: Box<str>,
        /// The type that it should have.
        expected: &'static str,
    },
    /// A key has a value that cannot be meant.
    #[error("{}: key \"{}\" is {found}; must be {limit}", path.display(), quoted(key))]
    KeyValue {
        /// The file.
        path: Box<Path>,
        /// The key.
        key: Box<str>,
        /// Its value.
        found: Box<str>,
        /// What it must be.
        limit: Box<str>,
    },
    /// A tensor is not there.
    #[error("{}: tensor \"{}\" is missing", path.display(), quoted(tensor))]
    TensorMissing {
        /// The file.
        path: Box<Path>,
        /// The tensor.
        tensor: Box<str>,
    },
    /// A tensor has a type that `ixc` has no block format for.
    #[error(
        "{}: tensor \"{}\" has type {found}, which is not supported; supported are {}",
        path.display(), quoted(tensor), supported_types()
    )]
    UnsupportedType {
        /// The file.
        path: Box<Path>,
        /// The tensor.
        tensor: Box<str>,
        /// Its type.
        found: TensorType,
    },
}

impl GgufError {
    /// Returns the kind of failure.
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

    /// Returns the path of a file that does not exist.
    pub fn missing_file(&self) -> Option<&Path> {
        match self {
            GgufError::Io { path, source, .. } if source.kind() == io::ErrorKind::NotFound => Some(path),
            _ => None,
        }
    }
}

/// The beginning of a file, as a part of a message.
fn beginning(bytes: &[u8]) -> String {
    match bytes {
        [] => "it is empty".to_owned(),
        bytes => format!("it starts with \"{}\"", bytes.escape_ascii()),
    }
}

/// The key or tensor at which a fault was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The fixed part at the start.
    Header,
    /// The key with this index, its name not read yet.
    KeyNumber(u64),
    /// The key with this name.
    Key(Box<str>),
    /// The tensor with this index, its name not read yet.
    TensorNumber(u64),
    /// The tensor with this name.
    Tensor(Box<str>),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Header => Ok(()),
            Place::KeyNumber(index) => write!(f, "key #{index}: "),
            Place::Key(name) => write!(f, "key \"{}\": ", quoted(name)),
            Place::TensorNumber(index) => write!(f, "tensor #{index}: "),
            Place::Tensor(name) => write!(f, "tensor \"{}\": ", quoted(name)),
        }
    }
}

/// What is wrong with the bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The file ends too early.
    #[error("needs {needed} more bytes, the file has {left}: it is cut short or damaged; download or copy it again")]
    Truncated {
        /// Bytes needed from here.
        needed: u64,
        /// Bytes left from here.
        left: u64,
    },
    /// A big-endian file.
    #[error("is a big-endian file; ixc reads little-endian ones: llama.cpp's `gguf_convert_endian.py` swaps the bytes")]
    BigEndian,
    /// A version that is not supported.
    #[error("is version {found}; versions 2 and 3 are supported")]
    Version {
        /// The version.
        found: u32,
    },
    /// More items than the rest of the file can hold, or than any file has.
    #[error("claims {found} {what}; at most {limit} are read, and fit into the rest of the file")]
    Count {
        /// What is counted.
        what: &'static str,
        /// The claimed count.
        found: u64,
        /// Most that are read, and that fit.
        limit: u64,
    },
    /// A string or name is too long.
    #[error("{what} of {found} bytes; at most {limit} are allowed here")]
    Length {
        /// Which string.
        what: &'static str,
        /// Its length.
        found: u64,
        /// The most allowed.
        limit: u64,
    },
    /// A name is empty.
    #[error("{what} is empty")]
    Empty {
        /// Which name.
        what: &'static str,
    },
    /// A string is not UTF-8.
    #[error("{what} is not UTF-8: \"{found}\"")]
    NotUtf8 {
        /// Which string.
        what: &'static str,
        /// Its start, escaped.
        found: Box<str>,
    },
    /// A value type that does not exist.
    #[error("value type {found} does not exist; types are 0 to 12")]
    ValueType {
        /// The type id.
        found: u32,
    },
    /// A value has another type than its key demands.
    #[error("is {found}; must be {expected}")]
    WrongType {
        /// Its type.
        found: Box<str>,
        /// The type demanded.
        expected: &'static str,
    },
    /// A bool that is neither 0 nor 1.
    #[error("bool is {found}; must be 0 or 1")]
    Bool {
        /// The byte.
        found: u8,
    },
    /// An array of arrays.
    #[error("array of arrays; expected numbers, bools or strings as elements")]
    NestedArray,
    /// A name was there before.
    #[error("appears twice, first at byte {first:#x}")]
    Duplicate {
        /// Where the first is.
        first: u64,
    },
    /// `general.alignment` is no alignment.
    #[error("alignment is {found}; must be a power of two from {min} to {max}")]
    Alignment {
        /// The value.
        found: u32,
        /// Smallest allowed.
        min: u32,
        /// Largest allowed.
        max: u32,
    },
    /// Too many or no dimensions.
    #[error("has {found} dimensions; must be 1 to {limit}")]
    DimensionCount {
        /// Their number.
        found: u32,
        /// The most allowed.
        limit: u32,
    },
    /// A dimension that is zero or negative.
    #[error("dimension {index} is {found:#x}; must be 1 to 2^63 - 1")]
    Dimension {
        /// Which dimension.
        index: usize,
        /// Its value.
        found: u64,
    },
    /// Elements or bytes that do not fit in 63 bits.
    #[error("{dims:?} elements of {ty} are more than 2^63 - 1 elements or bytes")]
    TensorSize {
        /// Its dimensions.
        dims: Box<[u64]>,
        /// Its type.
        ty: TensorType,
    },
    /// A tensor type that does not exist.
    #[error("tensor type {found} does not exist in ggml{}", type_hint(*found))]
    TensorType {
        /// The type id.
        found: u32,
    },
    /// A row that is no whole number of blocks.
    #[error("rows of {found} elements are no whole number of {ty} blocks of {}", ty.block_len)]
    RowLength {
        /// Elements in a row.
        found: u64,
        /// The type.
        ty: TensorType,
    },
    /// A tensor does not start on the file's alignment.
    #[error("data offset {found:#x} is no multiple of the alignment {alignment}")]
    Unaligned {
        /// The offset within the data section.
        found: u64,
        /// The alignment.
        alignment: u32,
    },
    /// A tensor is not inside the file.
    #[error("data of {bytes} bytes at data offset {offset:#x} ends after the file's data section of {limit} bytes")]
    OutsideFile {
        /// Start within the data section.
        offset: u64,
        /// Length.
        bytes: u64,
        /// Bytes that the data section has.
        limit: u64,
    },
    /// Two tensors share bytes.
    #[error("data overlaps that of tensor \"{}\"", quoted(other))]
    Overlap {
        /// The other tensor.
        other: Box<str>,
    },
    /// A split file whose parts do not fit together.
    #[error("{what} is {found}; this file of a split model must have {expected}")]
    Split {
        /// What does not fit.
        what: &'static str,
        /// Its value.
        found: Box<str>,
        /// What would fit.
        expected: Box<str>,
    },
}

/// `name` escaped for a terminal, and cut where it is long.
pub fn quoted(name: &str) -> String {
    let mut end = name.len().min(SHOWN_NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let more = if end < name.len() { "…" } else { "" };
    format!("{}{more}", name[..end].escape_debug())
}

/// How many names are known where `found` is not one, and those of them that begin most like it.
pub fn among(found: &str, known: &[&str]) -> String {
    /// Most that are named, and what they share at least.
    const SHOWN: usize = 6;
    const LEAST: usize = 3;
    let letters = |name: &str| -> Vec<u8> {
        name.bytes().filter(u8::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
    };
    let own = letters(found);
    let shared = |name: &str| letters(name).iter().zip(&own).take_while(|(a, b)| a == b).count();
    let mut near: Vec<(usize, &str)> = known.iter().map(|name| (shared(name), *name)).collect();
    near.retain(|(shared, _)| *shared >= LEAST);
    near.sort_by_key(|(shared, _)| std::cmp::Reverse(*shared));
    near.truncate(SHOWN);
    let names: Vec<&str> = near.into_iter().map(|(_, name)| name).collect();
    let named = if names.is_empty() { String::new() } else { format!(", among them {}", names.join(", ")) };
    format!("{} others{named}", known.len())
}

fn type_hint(id: u32) -> &'static str {
    match id {
        4 | 5 | 31..=33 | 36..=38 => " any more (it was removed)",
        // ik_llama.cpp numbers its own types from 97 up, and its row-interleaved ones from 200 up.
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
        assert_eq!(quoted("\u{1b}[2Jx\"\n"), "\\u{1b}[2Jx\\\"\\n");
        let long = quoted(&"ä".repeat(1000));
        assert!(long.chars().count() < 60 && long.ends_with('…'), "{long}");
    }

    #[test]
    fn errors_stay_small_enough_to_return_by_value() {
        assert!(size_of::<GgufError>() <= 128, "{}", size_of::<GgufError>());
    }
}
