//! Reader of untrusted folders. It loads a folder into memory, and checks everything that can be
//! checked without running the code.

use std::io::Read;
use std::path::Path;

use ixc_targets::{Feature, Features};
use serde::Deserialize;

use super::BundleError;
use super::index::{self, BufferAccess, File, Index};
use crate::Error;

/// A folder in memory.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// Index of the folder.
    pub index: Index,
    /// Features that the code may use.
    pub features: Features,
    /// Instructions and constants.
    pub code: Vec<u8>,
    /// Bytes of instructions.
    pub instruction_bytes: usize,
    /// Values of the dims.
    pub dims: Vec<i64>,
    /// Buffers before the call.
    pub before: Vec<Vec<u8>>,
    /// Buffers after the call; `None` for undefined contents.
    pub expected: Vec<Option<Vec<u8>>>,
}

/// Fields that every version of the index has.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u64,
}

/// Reads a folder.
///
/// # Errors
/// If files are missing, damaged, too large or different from the index, or if the index is
/// inconsistent.
pub fn read(folder: &Path) -> Result<Bundle, Error> {
    let path = folder.join(index::FILE);
    let text = bytes(&path, None, "bytes of an index", index::MAX_INDEX)?;
    let malformed = |error: serde_json::Error| BundleError::Index { path: path.clone(), reason: error.to_string() };
    let head: Head = serde_json::from_slice(&text).map_err(malformed)?;
    if head.format != index::FORMAT || head.version != index::VERSION {
        let format = head.format.chars().take(40).collect();
        let reads = format!("\"{}\" version {}", index::FORMAT, index::VERSION);
        return Err(BundleError::Version { path, format, version: head.version, reads }.into());
    }
    let index: Index = serde_json::from_slice(&text).map_err(malformed)?;
    let features = check(&index)?;
    let code = file(folder, &index.code.file, "bytes of code", index::MAX_CODE)?;
    let mut before = Vec::new();
    let mut expected = Vec::new();
    for buffer in &index.buffers {
        let start = match &buffer.input {
            Some(input) => file(folder, input, "bytes of a buffer", index::MAX_BUFFERS)?,
            // The size was checked against the limit.
            None => vec![buffer.fill; buffer.bytes as usize],
        };
        if let (BufferAccess::Index, Some(below)) = (buffer.kind, buffer.below) {
            for word in start.chunks_exact(4) {
                let value = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                check_value(
                    || format!("a value of index buffer {}", buffer.name),
                    value,
                    i64::from(value) < below,
                    || format!("below {below}"),
                )?;
            }
        }
        expected.push(match (&buffer.expected, buffer.kind) {
            (Some(expected), _) => Some(file(folder, expected, "bytes of a buffer", index::MAX_BUFFERS)?),
            (None, BufferAccess::Read | BufferAccess::Index) => Some(start.clone()),
            (None, BufferAccess::Write | BufferAccess::ReadWrite | BufferAccess::Scratch) => None,
        });
        before.push(start);
    }
    let dims = index.dims.iter().map(|dim| dim.value).collect();
    let instruction_bytes = index.code.instruction_bytes as usize;
    Ok(Bundle { features, code, instruction_bytes, dims, before, expected, index })
}

/// Checks everything that needs only the index, and returns the features.
fn check(index: &Index) -> Result<Features, BundleError> {
    let check_count = |what, found: usize, max: u64| match found as u64 {
        found if found > max => Err(BundleError::TooMuch { what, found, max }),
        _ => Ok(()),
    };
    check_count("buffers", index.buffers.len(), index::MAX_ARGUMENTS)?;
    check_count("dims", index.dims.len(), index::MAX_ARGUMENTS)?;
    check_count("features", index.features.len(), index::MAX_ARGUMENTS)?;
    let code = &index.code;
    check_value(|| "code.entry".into(), code.entry, code.entry == 0, || "0".into())?;
    let aligned = code.alignment.is_power_of_two() && code.alignment <= 4096;
    check_value(|| "code.alignment".into(), code.alignment, aligned, || "a power of two up to 4096".into())?;
    let inside = code.instruction_bytes <= code.file.bytes;
    check_value(
        || "code.instruction_bytes".into(),
        code.instruction_bytes,
        inside,
        || format!("at most code.bytes, {}", code.file.bytes),
    )?;
    let convention = &index.call.convention;
    check_value(|| "call.convention".into(), excerpt(convention), convention == "sysv64", || "sysv64".into())?;
    for dim in &index.dims {
        let right = (dim.lo..=dim.hi).contains(&dim.value);
        check_value(
            || format!("dim {}", excerpt(&dim.name)),
            dim.value,
            right,
            || format!("{} to {}", dim.lo, dim.hi),
        )?;
    }
    let mut left = index::MAX_BUFFERS;
    for buffer in &index.buffers {
        let too_much =
            || BundleError::TooMuch { what: "bytes of buffers", found: buffer.bytes, max: index::MAX_BUFFERS };
        left = left.checked_sub(buffer.bytes).ok_or_else(too_much)?;
        for file in [&buffer.input, &buffer.expected].into_iter().flatten() {
            let right = file.bytes == buffer.bytes;
            check_value(
                || format!("length of {}", excerpt(&file.file)),
                file.bytes,
                right,
                || format!("the buffer's, {}", buffer.bytes),
            )?;
        }
        let name = || format!("kind of buffer {}", excerpt(&buffer.name));
        let open = buffer.kind.is_written() || buffer.expected.is_none();
        check_value(name, format!("{:?}", buffer.kind), open, || {
            "one that is written, as it has an expected file".into()
        })?;
        let bound = buffer.kind != BufferAccess::Index || buffer.below.is_some();
        check_value(name, "index", bound, || "with `below`".into())?;
    }
    let mut features = Features::default();
    for name in &index.features {
        let feature = Feature::ALL.iter().find(|feature| feature.name() == name);
        let known = || {
            let names: Vec<_> = Feature::ALL.iter().map(|feature| feature.name()).collect();
            names.join(", ")
        };
        check_value(|| "a feature".into(), excerpt(name), feature.is_some(), || format!("one of {}", known()))?;
        features = features.with(feature.map(std::slice::from_ref).unwrap_or_default());
    }
    Ok(features)
}

fn check_value(
    what: impl FnOnce() -> String,
    found: impl ToString,
    ok: bool,
    expected: impl FnOnce() -> String,
) -> Result<(), BundleError> {
    if ok { Ok(()) } else { Err(BundleError::Value { what: what(), found: found.to_string(), expected: expected() }) }
}

/// Shortens a text of the index for an error message.
fn excerpt(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Reads a file of the folder, and checks its length and checksum against the index.
fn file(folder: &Path, file: &File, what: &'static str, max: u64) -> Result<Vec<u8>, Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let name = &file.file;
    if name.is_empty() || name.len() > index::MAX_NAME || name.starts_with('.') || !name.chars().all(plain) {
        return Err(BundleError::Name { name: excerpt(name), max: index::MAX_NAME }.into());
    }
    let path = folder.join(name);
    let bytes = bytes(&path, Some(file.bytes), what, max)?;
    let found = format!("{:08x}", crc32fast::hash(&bytes));
    if found != file.crc32 {
        return Err(BundleError::Checksum { path, found, expected: excerpt(&file.crc32) }.into());
    }
    Ok(bytes)
}

/// Reads a regular file of at most `max` bytes, and of exactly `expected` bytes if that is given.
fn bytes(path: &Path, expected: Option<u64>, what: &'static str, max: u64) -> Result<Vec<u8>, Error> {
    // A link could lead out of the folder.
    let mut file = match ixc_files::open_unlinked(path) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) || ixc_files::is_not_regular(&error) => {
            return Err(BundleError::NotAFile { path: path.to_owned() }.into());
        }
        opened => opened.map_err(Error::io(path, "read"))?,
    };
    let metadata = file.metadata().map_err(Error::io(path, "read"))?;
    let length = |found: u64| BundleError::Length { path: path.to_owned(), found, expected: expected.unwrap_or(found) };
    let found = metadata.len();
    if let Some(beyond) = [found, expected.unwrap_or(0)].into_iter().find(|&size| size > max) {
        return Err(BundleError::TooMuch { what, found: beyond, max }.into());
    }
    if expected.is_some_and(|expected| expected != found) {
        return Err(length(found).into());
    }
    let mut bytes = Vec::with_capacity(found as usize);
    // Read one byte more, to detect a file that grows.
    file.by_ref().take(found + 1).read_to_end(&mut bytes).map_err(Error::io(path, "read"))?;
    if bytes.len() as u64 != found {
        return Err(length(bytes.len() as u64).into());
    }
    Ok(bytes)
}
