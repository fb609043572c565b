//! Plan files: `.ixp`.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..8 | `IXCPLAN` and a newline, which a text transfer would change |
//! | 8..12 | version, little-endian as all numbers are |
//! | 12..16 | CRC-32 of the payload |
//! | 16..24 | length of the payload |
//! | 24..32 | length of the weights, 0 where there are none |
//! | 32..36 | number of weights that are not in blocks |
//! | 36..40 | CRC-32 of the weights' checksums |
//! | 40..44 | CRC-32 of bytes 0..40 |
//! | 44..48 | 0 |
//! | 48.. | the payload: a `Plan<Kernel>` in postcard's encoding |
//!
//! That is all of a plan that reads its weights from the model file. Where the compiler packed weights, they follow from the next
//! multiple of 4096 on, in the order of [`Plan::weights`], each from a multiple of 4096 and as its kernels read it, all experts
//! one after the other; then, where the plan has groups of experts, the [`blocks`](crate::blocks) of each; then the CRC-32 of each weight that is not
//! in blocks. They are mapped in place ([`weights`]), or streamed.
//!
//! A file is written beside its place and renamed into it, so that there is the old plan or the new one and never half of one. One with
//! weights is gone on with after a run that was killed ([`partial`]).
//!
//! Invariant: memory is in proportion to the plan's part of the file. What is decoded of it takes at most [`decode::MEMORY_PER_BYTE`] times
//! its bytes, and [`decode::SLACK`]; checking it, which ends in tables of about the same size, and generating code, of whose statements there
//! is a limit, take no more than three times that together ([`MEMORY_PER_BYTE`]). Nesting is bounded by the kernel IR's own deserialiser.
//! The checksum finds accidents; malice is up to [`crate::program`] and the kernel verifier.

pub mod decode;
mod partial;
pub mod weights;

use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use ixc_failure::{Class, Remedy};
use ixc_files::io_class;
use ixc_files::{Guard, Kind, Output, OutputError, open_regular};
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Plan, WeightFile};
use ixc_ir::units::Bytes;

use crate::error::load::LoadError;
use crate::pack::ALIGNMENT;
use crate::plan_check;
use weights::OwnWeights;

/// First bytes of a plan file.
pub const MAGIC: [u8; 8] = *b"IXCPLAN\n";
/// A plan file.
pub const KIND: Kind = Kind { name: "plan", is: |head| head.starts_with(&MAGIC), streams: false, private: false };
/// Version of the encoding, of packed formats too; others are refused, as plans are cheap to make again.
pub const VERSION: u32 = 36;
/// Bytes before the payload.
pub const HEADER_BYTES: usize = 48;
/// Longest payload. A plan has one or two megabytes and its tokenizer, whose largest known have eight; what decodes takes up to
/// [`MEMORY_PER_BYTE`] times as much memory, so that more room here would be room for harm.
pub const MAX_PAYLOAD: u64 = 1 << 25;
/// Bytes of memory that loading takes at most for each byte of a payload. Memory for the model, its context and every load alike comes on top.
pub const MEMORY_PER_BYTE: usize = 3 * decode::MEMORY_PER_BYTE;

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
    /// It cannot be written there, or must not be.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// What is in the file is no plan.
    #[error("{}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: FormatError,
    },
    /// No room for a plan with its weights. What was written is kept.
    #[error(
        "{}: {source}: {left} bytes more are needed of {needed}; what is written stays in {}: make room and compile again to go on there",
        path.display(), part.display()
    )]
    Space {
        /// The file.
        path: PathBuf,
        /// What is written of it.
        part: PathBuf,
        /// Its length.
        needed: u64,
        /// How much of that is not written.
        left: u64,
        /// What the system said.
        source: io::Error,
    },
    /// What the weights are packed from can't be had, or not be packed.
    #[error(transparent)]
    Source(Box<LoadError>),
    /// The plan can't be encoded.
    #[error("the plan cannot be encoded: {source}")]
    Encode {
        /// Why.
        source: postcard::Error,
    },
}

impl FileError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            FileError::Output(error) => error.class(),
            FileError::Io { source, .. } | FileError::Space { source, .. } => io_class(source),
            FileError::Source(error) => match &**error {
                // Generating code checks the plan before it is written.
                LoadError::Codegen(_) => Class::Data,
                error => error.class(),
            },
            FileError::Format { .. } | FileError::Encode { .. } => Class::Data,
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            FileError::Output(error) => error.remedy(),
            FileError::Source(error) => error.remedy(),
            _ => None,
        }
    }
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
    #[error("is cut short: {} of {}; copy it again, or compile the model again", Bytes(*found), Bytes(*expected))]
    Truncated {
        /// Bytes found.
        found: u64,
        /// Bytes that there should be.
        expected: u64,
    },
    /// Goes on after its end.
    #[error("has {found} bytes, its header says {expected}")]
    Trailing {
        /// Bytes found.
        found: u64,
        /// Bytes that there should be.
        expected: u64,
    },
    /// Longer than any plan.
    #[error("has a payload of {found} bytes, at most {MAX_PAYLOAD} are read")]
    TooLong {
        /// Length that the header says.
        found: u64,
    },
    /// Damaged in the header.
    #[error(
        "has a header with checksum {found:08x} that says {expected:08x}: the file is damaged, compile the model again"
    )]
    Header {
        /// Of the header.
        found: u32,
        /// In the header.
        expected: u32,
    },
    /// Weights of another length than the plan's.
    #[error("has {found} bytes of weights, its plan {expected}")]
    Weights {
        /// In the header.
        found: u64,
        /// In the plan.
        expected: u64,
    },
    /// Another number of checksums than the plan has weights in its file.
    #[error("has {found} checksums of weights, its plan {expected} weights")]
    Checksums {
        /// In the header.
        found: u32,
        /// In the plan.
        expected: usize,
    },
    /// Damaged checksums of weights.
    #[error(
        "has damaged checksums of its weights: {found:08x} where its header says {expected:08x}; compile the model again"
    )]
    WeightChecksums {
        /// Of the checksums.
        found: u32,
        /// In the header.
        expected: u32,
    },
    /// Damaged.
    #[error(
        "has checksum {found:08x} where its header says {expected:08x}: the file is damaged, compile the model again"
    )]
    Checksum {
        /// Of the payload.
        found: u32,
        /// In the header.
        expected: u32,
    },
    /// Sound, but not a plan.
    #[error("does not decode as a plan: {source}")]
    Decode {
        /// Why.
        source: decode::DecodeError,
    },
    /// A plan and something after it.
    #[error("has {bytes} bytes in its payload after the plan")]
    Rest {
        /// How many.
        bytes: usize,
    },
}

/// The numbers of a header.
#[derive(Clone, Copy, Debug, Default)]
struct Header {
    payload_crc: u32,
    payload: u64,
    weights: u64,
    count: u32,
    checksums_crc: u32,
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &self.payload_crc.to_le_bytes());
        put(16, &self.payload.to_le_bytes());
        put(24, &self.weights.to_le_bytes());
        put(32, &self.count.to_le_bytes());
        put(36, &self.checksums_crc.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..40]);
        bytes[40..44].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// From the first bytes of a file of `found` bytes.
    fn decode(bytes: &[u8], found: u64) -> Result<Header, FormatError> {
        if bytes.first_chunk::<8>() != Some(&MAGIC) {
            return Err(FormatError::Magic { found: bytes.iter().take(MAGIC.len()).copied().collect() });
        }
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(FormatError::Truncated { found, expected: HEADER_BYTES as u64 });
        };
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if word(8) != VERSION {
            return Err(FormatError::Version { found: word(8) });
        }
        let (crc, expected) = (crc32fast::hash(&header[..40]), word(40));
        if crc != expected || word(44) != 0 {
            return Err(FormatError::Header { found: crc, expected });
        }
        let header = Header {
            payload_crc: word(12),
            payload: long(16),
            weights: long(24),
            count: word(32),
            checksums_crc: word(36),
        };
        if header.payload > MAX_PAYLOAD {
            return Err(FormatError::TooLong { found: header.payload });
        }
        let expected = header.file_bytes();
        match found.cmp(&expected) {
            std::cmp::Ordering::Less => Err(FormatError::Truncated { found, expected }),
            std::cmp::Ordering::Greater => Err(FormatError::Trailing { found, expected }),
            std::cmp::Ordering::Equal => Ok(header),
        }
    }

    fn payload_end(&self) -> u64 {
        HEADER_BYTES as u64 + self.payload
    }

    /// Where the weights begin.
    fn weights_at(&self) -> u64 {
        self.payload_end().next_multiple_of(ALIGNMENT)
    }

    /// Length of the file. Saturates, so that no file is as long.
    fn file_bytes(&self) -> u64 {
        if self.weights == 0 && self.count == 0 {
            return self.payload_end();
        }
        self.weights_at().saturating_add(self.weights).saturating_add(4 * u64::from(self.count))
    }

    fn plan(&self, payload: &[u8]) -> Result<Plan<Kernel>, FormatError> {
        let (found, expected) = (crc32fast::hash(payload), self.payload_crc);
        if found != expected {
            return Err(FormatError::Checksum { found, expected });
        }
        let decoded = decode::take_from_bytes(payload).map_err(|source| FormatError::Decode { source });
        let (plan, rest): (Plan<Kernel>, _) = decoded?;
        if !rest.is_empty() {
            return Err(FormatError::Rest { bytes: rest.len() });
        }
        if plan.own_weight_bytes != self.weights {
            return Err(FormatError::Weights { found: self.weights, expected: plan.own_weight_bytes });
        }
        let expected = own_weights(&plan).count();
        if expected != self.count as usize {
            return Err(FormatError::Checksums { found: self.count, expected });
        }
        Ok(plan)
    }
}

/// The plan's weights in its own file, as positions in [`Plan::weights`].
fn own_weights(plan: &Plan<Kernel>) -> impl Iterator<Item = usize> {
    let own = |(i, weight): (usize, &ixc_ir::plan::PlanWeight)| (weight.file == WeightFile::Plan).then_some(i);
    plan.weights.iter().enumerate().filter_map(own)
}

fn payload(plan: &Plan<Kernel>) -> Result<Vec<u8>, FileError> {
    let payload = postcard::to_allocvec(plan).map_err(|source| FileError::Encode { source })?;
    if payload.len() as u64 > MAX_PAYLOAD {
        let source = FormatError::TooLong { found: payload.len() as u64 };
        return Err(FileError::Format { path: PathBuf::new(), source });
    }
    Ok(payload)
}

/// The bytes of a plan file without weights.
///
/// # Errors
/// When the plan does not encode, is longer than any that is read, or has weights of its own.
pub fn encode(plan: &Plan<Kernel>) -> Result<Vec<u8>, FileError> {
    if plan.own_weight_bytes > 0 {
        let source = FormatError::Weights { found: 0, expected: plan.own_weight_bytes };
        return Err(FileError::Format { path: PathBuf::new(), source });
    }
    Ok(seal(&payload(plan)?))
}

/// A payload with its header.
pub fn seal(payload: &[u8]) -> Vec<u8> {
    let (payload_crc, length) = (crc32fast::hash(payload), payload.len() as u64);
    let header = Header { payload_crc, payload: length, ..Header::default() };
    [&header.encode(), payload].concat()
}

/// The plan in the bytes of a plan file; weights behind it are not looked at.
///
/// # Errors
/// See [`FormatError`].
pub fn decode(bytes: &[u8]) -> Result<Plan<Kernel>, FormatError> {
    let header = Header::decode(bytes, bytes.len() as u64)?;
    // The length was compared.
    header.plan(&bytes[HEADER_BYTES..header.payload_end() as usize])
}

/// Whether a file starts as a plan does; for telling plans from models.
///
/// # Errors
/// When the file can't be read.
pub fn is_plan(path: &Path) -> io::Result<bool> {
    let mut magic = Vec::with_capacity(MAGIC.len());
    open_regular(path)?.take(MAGIC.len() as u64).read_to_end(&mut magic)?;
    Ok(magic == MAGIC)
}

/// A plan file, open.
#[derive(Debug)]
pub struct PlanFile {
    /// The plan.
    pub plan: Plan<Kernel>,
    /// Its own weights, where it has some.
    pub weights: Option<OwnWeights>,
}

/// Opens a plan file.
///
/// # Errors
/// See [`FileError`].
pub fn open(path: &Path) -> Result<PlanFile, FileError> {
    let io = |source| FileError::Io { path: path.into(), action: "read", source };
    let format = |source| FileError::Format { path: path.into(), source };
    let mut file = open_regular(path).map_err(io)?;
    let found = file.metadata().map_err(io)?.len();
    let mut read = |bytes: u64| {
        let mut part = Vec::new();
        (&mut file).take(bytes).read_to_end(&mut part).map_err(io).map(|_| part)
    };
    let header = Header::decode(&read(HEADER_BYTES as u64)?, found).map_err(format)?;
    let payload = read(header.payload)?;
    let plan = header.plan(&payload).map_err(format)?;
    if header.count == 0 && header.weights == 0 {
        return Ok(PlanFile { plan, weights: None });
    }
    file.seek(io::SeekFrom::Start(header.weights_at() + header.weights)).map_err(io)?;
    // As many as the plan has weights.
    let mut checksums = vec![0; 4 * header.count as usize];
    file.read_exact(&mut checksums).map_err(io)?;
    let (found, expected) = (crc32fast::hash(&checksums), header.checksums_crc);
    if found != expected {
        return Err(format(FormatError::WeightChecksums { found, expected }));
    }
    let checksums = checksums.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    let weights = OwnWeights {
        file,
        path: path.into(),
        offset: header.weights_at(),
        bytes: header.weights,
        checksums: checksums.collect(),
    };
    Ok(PlanFile { plan, weights: Some(weights) })
}

/// Reads the plan of a plan file.
///
/// # Errors
/// See [`FileError`].
pub fn read(path: &Path) -> Result<Plan<Kernel>, FileError> {
    Ok(open(path)?.plan)
}

/// Writes a plan file without weights, or leaves what was there. A plan that cannot be loaded is not written ([`plan_check::check`]).
///
/// # Errors
/// See [`FileError`].
pub fn write(path: &Path, plan: &Plan<Kernel>) -> Result<(), FileError> {
    write_to(Output::open(path, &Guard::replacing(&KIND))?, plan)
}

/// As [`write()`], to an output that was opened before the plan was made.
///
/// # Errors
/// See [`FileError`].
pub fn write_to(output: Output, plan: &Plan<Kernel>) -> Result<(), FileError> {
    plan_check::check(plan).map_err(|error| FileError::Source(Box::new(error)))?;
    put(output, plan)
}

/// Writes a plan that was checked.
fn put(output: Output, plan: &Plan<Kernel>) -> Result<(), FileError> {
    let bytes = encode(plan)?;
    output.write(|out| out.write_all(&bytes))?;
    Ok(())
}
