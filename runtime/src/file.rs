//! Plan files: `.ixp`.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..8 | `IXCPLAN` and a newline, which a text transfer would change |
//! | 8..12 | version, little-endian as all numbers are |
//! | 12..16 | CRC-32 of the payload |
//! | 16..24 | length of the payload |
//! | 24.. | the payload: a `Plan<Kernel>` in postcard's encoding, and nothing after it |
//!
//! A file is written beside its place and renamed into it, so that there is the old plan or the new one and never half of one.
//!
//! Invariant: reading allocates no more than a constant times the file's size: postcard's sequences are read with serde's
//! cautious capacity (1 MiB at most before there are elements), and nesting is bounded by the kernel IR's own
//! deserialiser. The checksum finds accidents; malice is up to [`crate::program`] and the kernel verifier.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Plan;

/// First bytes of a plan file.
pub const MAGIC: [u8; 8] = *b"IXCPLAN\n";
/// Version of the encoding; others are refused, as plans are cheap to make again.
pub const VERSION: u32 = 3;
/// Bytes before the payload.
pub const HEADER_BYTES: usize = 24;
/// Longest payload: a plan is some megabytes, most of them the tokenizer. What decodes takes up to some forty times as much
/// memory (6 bytes are an empty loop of 136), so that more room here would be room for harm.
pub const MAX_PAYLOAD: u64 = 1 << 26;

/// Why a plan file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// What is in the file is no plan.
    #[error("{}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: FormatError,
    },
    /// The plan can't be encoded.
    #[error("the plan cannot be encoded: {source}")]
    Encode {
        /// Why.
        source: postcard::Error,
    },
}

/// What is wrong with the bytes of a plan file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Not a plan file.
    #[error("is no plan: starts with {found:02x?}, a plan starts with {MAGIC:02x?}")]
    Magic {
        /// The first bytes.
        found: Vec<u8>,
    },
    /// Another version.
    #[error("is a plan of version {found}, this build reads version {VERSION}; compile the model again")]
    Version {
        /// The version found.
        found: u32,
    },
    /// Ends too early.
    #[error("ends after {found} bytes, its header says {right}")]
    Truncated {
        /// Bytes found.
        found: u64,
        /// Bytes that there should be.
        right: u64,
    },
    /// Goes on after its end.
    #[error("has {found} bytes, its header says {right}")]
    Trailing {
        /// Bytes found.
        found: u64,
        /// Bytes that there should be.
        right: u64,
    },
    /// Longer than any plan.
    #[error("has a payload of {found} bytes, at most {MAX_PAYLOAD} are read")]
    TooLong {
        /// Length that the header says.
        found: u64,
    },
    /// Damaged.
    #[error("has checksum {found:08x} where its header says {right:08x}: the file is damaged, compile the model again")]
    Checksum {
        /// Of the payload.
        found: u32,
        /// In the header.
        right: u32,
    },
    /// Sound, but not a plan.
    #[error("does not decode as a plan: {source}")]
    Decode {
        /// Why.
        source: postcard::Error,
    },
    /// A plan and something after it.
    #[error("has {bytes} bytes in its payload after the plan")]
    Rest {
        /// How many.
        bytes: usize,
    },
}

/// The bytes of a plan file.
///
/// # Errors
/// When the plan does not encode, or is longer than any that is read.
pub fn encode(plan: &Plan<Kernel>) -> Result<Vec<u8>, FileError> {
    let payload = postcard::to_allocvec(plan).map_err(|source| FileError::Encode { source })?;
    if payload.len() as u64 > MAX_PAYLOAD {
        let source = FormatError::TooLong { found: payload.len() as u64 };
        return Err(FileError::Format { path: PathBuf::new(), source });
    }
    Ok(seal(&payload))
}

/// A payload with its header.
pub fn seal(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// The plan in the bytes of a plan file.
///
/// # Errors
/// See [`FormatError`].
pub fn decode(bytes: &[u8]) -> Result<Plan<Kernel>, FormatError> {
    let found = bytes.len() as u64;
    let Some((magic, _)) = bytes.split_first_chunk::<8>().filter(|(magic, _)| **magic == MAGIC) else {
        return Err(FormatError::Magic { found: bytes.iter().take(MAGIC.len()).copied().collect() });
    };
    let Some((header, payload)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(FormatError::Truncated { found, right: HEADER_BYTES as u64 });
    };
    debug_assert_eq!(*magic, MAGIC);
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let version = word(8);
    if version != VERSION {
        return Err(FormatError::Version { found: version });
    }
    let length = u64::from(word(16)) | u64::from(word(20)) << 32;
    if length > MAX_PAYLOAD {
        return Err(FormatError::TooLong { found: length });
    }
    let right = length + HEADER_BYTES as u64;
    match found.cmp(&right) {
        std::cmp::Ordering::Less => return Err(FormatError::Truncated { found, right }),
        std::cmp::Ordering::Greater => return Err(FormatError::Trailing { found, right }),
        std::cmp::Ordering::Equal => {}
    }
    let (found, right) = (crc32fast::hash(payload), word(12));
    if found != right {
        return Err(FormatError::Checksum { found, right });
    }
    let (plan, rest) = postcard::take_from_bytes(payload).map_err(|source| FormatError::Decode { source })?;
    if !rest.is_empty() {
        return Err(FormatError::Rest { bytes: rest.len() });
    }
    Ok(plan)
}

/// Whether a file starts as a plan does; for telling plans from models.
///
/// # Errors
/// When the file can't be read.
pub fn is_plan(path: &Path) -> io::Result<bool> {
    let mut magic = Vec::with_capacity(MAGIC.len());
    File::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut magic)?;
    Ok(magic == MAGIC)
}

/// Reads a plan file.
///
/// # Errors
/// See [`FileError`].
pub fn read(path: &Path) -> Result<Plan<Kernel>, FileError> {
    let io = |source| FileError::Io { path: path.into(), action: "read", source };
    let mut bytes = Vec::new();
    // One byte more than the longest plan tells a file that is too long from one that just fits.
    let most = MAX_PAYLOAD + HEADER_BYTES as u64 + 1;
    File::open(path).map_err(io)?.take(most).read_to_end(&mut bytes).map_err(io)?;
    decode(&bytes).map_err(|source| FileError::Format { path: path.into(), source })
}

/// Writes a plan file, or leaves what was there.
///
/// # Errors
/// See [`FileError`].
pub fn write(path: &Path, plan: &Plan<Kernel>) -> Result<(), FileError> {
    let bytes = encode(plan)?;
    let Some(name) = path.file_name() else {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "the path names no file");
        return Err(FileError::Io { path: path.into(), action: "write", source });
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut aside = std::ffi::OsString::from(".");
    aside.push(name);
    aside.push(format!(".{}.part", std::process::id()));
    let aside = folder.join(aside);
    let written = (|| {
        let mut file = File::create(&aside)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&aside, path)?;
        // The rename itself is durable once the folder is.
        File::open(folder)?.sync_all()
    })();
    written.map_err(|source| {
        // Nothing is left behind; that it can't be removed is of less interest than why it was not written.
        let _ = fs::remove_file(&aside);
        FileError::Io { path: path.into(), action: "write", source }
    })
}
