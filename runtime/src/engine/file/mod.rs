//! The format of plan files (`.ixp`), and functions that read and write them.
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
//! | 40..44 | CRC-32 of bytes 0..40, and of bytes 44..48 if they are not 0 |
//! | 44..48 | number of plans that follow: those of the other ranks, if the model is divided |
//! | 48.. | the payload: a `Plan<Kernel>` in postcard's encoding |
//!
//! If the plan reads its weights from the model file, its bytes end after the payload. If the model
//! is divided, the plans of the other ranks follow, each with its own header. Their weights are not
//! in the plan file.
//!
//! Weights that the compiler packed follow at the next multiple of 4096, in the order of
//! [`Plan::weights`]. Each weight begins at a multiple of 4096 and has the layout that its kernels
//! read. The matrices of its experts are stored one after the other. If the plan has groups of
//! experts, the [`blocks`](crate::storage::blocks) of each group come next. The CRC-32 of each
//! weight that is not in blocks comes last. Loading maps the weights, or streams experts from the
//! file.
//!
//! A new file is written under a temporary name and then renamed. So the path always names a
//! complete plan, the old or the new one. If a run that writes a plan with weights is killed, the
//! next run continues its unfinished file ([`partial`]).
//!
//! Invariant: reading a plan takes memory proportional to the length of its payload. The decoded
//! plan takes at most [`decode::MEMORY_PER_BYTE`] times its encoded bytes, plus [`decode::SLACK`].
//! Checking the plan makes tables of about the same size, and the number of statements to generate
//! code for is limited. Decoding, checking and code generation together take at most three times
//! the limit of the decoded plan ([`MEMORY_PER_BYTE`]). The kernel IR's own deserialiser limits the
//! nesting of statements. The checksum detects accidental damage; [`crate::program`] and the kernel
//! verifier detect malicious plans.

mod partial;
pub mod weights;

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use ixc_failure::{Class, Remedy};
use ixc_files::io_class;
use ixc_files::{Guard, Kind, Output, OutputError, open_regular};
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{FILE_MAGIC as MAGIC, MAX_RANKS, Plan, WeightFile, decode};
use ixc_ir::units::Bytes;

use crate::error::load::LoadError;
use crate::plan_check;
use crate::storage::pack::ALIGNMENT;
pub(crate) use weights::{OwnWeights, WeightsPlace};

/// The kind of output file for plans.
pub const KIND: Kind = Kind { name: "plan", is: |head| head.starts_with(&MAGIC), streams: false, private: false };
/// Version of the encoding and of the packed formats. Plans of other versions are refused, because
/// a plan is cheap to compile again.
pub const VERSION: u32 = 38;
/// Bytes of the header, before the payload.
pub const HEADER_BYTES: usize = 48;
/// Maximum bytes of a payload. A plan takes one or two megabytes, plus its tokenizer; the largest
/// known tokenizers take eight megabytes. The limit protects against hostile files, because
/// decoding takes up to [`MEMORY_PER_BYTE`] times the payload.
pub const MAX_PAYLOAD: u64 = 1 << 25;
/// Maximum bytes of memory that loading takes for each byte of a payload. The memory of weights and
/// states, and a constant amount for each load, come in addition.
pub const MEMORY_PER_BYTE: usize = 3 * decode::MEMORY_PER_BYTE;

/// Why a plan file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system returned an error.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// Path of the plan file.
        path: PathBuf,
        /// The operation on the file that failed.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The output path cannot be written, or must not be overwritten.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The file's content is not a plan.
    #[error("{}: {source}", path.display())]
    Format {
        /// File that was expected to be a plan.
        path: PathBuf,
        /// The problem with the file's bytes.
        source: FormatError,
    },
    /// The file system has no room for a plan with its weights. The bytes that were already written
    /// are kept.
    #[error(
        "{}: {source}: {left} of {needed} bytes are not written yet; {} keeps the written part: free some space and compile again to continue",
        path.display(), part.display()
    )]
    Space {
        /// Path of the plan file to write.
        path: PathBuf,
        /// Path of the unfinished file.
        part: PathBuf,
        /// Length of the complete file.
        needed: u64,
        /// Bytes that are not written yet.
        left: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The model files from which weights are packed cannot be read, or packing failed.
    #[error(transparent)]
    Source(Box<LoadError>),
    /// The plan cannot be encoded.
    #[error("the plan cannot be encoded: {source}")]
    Encode {
        /// The encoder's error.
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
                // The error is about the plan, because code generation runs here only to check a
                // plan before writing.
                LoadError::Codegen(_) => Class::Data,
                error => error.class(),
            },
            FileError::Format { .. } | FileError::Encode { .. } => Class::Data,
        }
    }

    /// Returns the change by the user that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            FileError::Output(error) => error.remedy(),
            FileError::Source(error) => error.remedy(),
            _ => None,
        }
    }
}

/// The problem with the bytes of a plan file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The file is not a plan.
    #[error("is not a plan: begins with \"{}\", expected \"{}\"", found.escape_ascii(), MAGIC.escape_ascii())]
    Magic {
        /// First bytes of the file.
        found: Vec<u8>,
    },
    /// The plan has an unsupported version.
    #[error("is a plan of version {found}, this build reads version {VERSION}; compile the model again")]
    Version {
        /// Version in the file's header.
        found: u32,
    },
    /// The file is shorter than its header states.
    #[error("is cut short: {} of {}; copy it again, or compile the model again", Bytes(*found), Bytes(*expected))]
    Truncated {
        /// Length of the file, in bytes.
        found: u64,
        /// Minimum length of the file in bytes: that of a header, or the length that the header
        /// states.
        expected: u64,
    },
    /// The file has bytes after its expected end.
    #[error("has {found} bytes, but its header has a length of {expected}")]
    Trailing {
        /// Length of the file, in bytes.
        found: u64,
        /// Length that the header states, in bytes.
        expected: u64,
    },
    /// The payload is longer than the limit.
    #[error("has a payload of {found} bytes; the limit is {MAX_PAYLOAD}")]
    TooLong {
        /// Length of the payload that the header states, in bytes.
        found: u64,
    },
    /// The header is damaged.
    #[error(
        "has a header with checksum {found:08x}, expected {expected:08x}: the file is damaged, compile the model again"
    )]
    Header {
        /// The checksum computed from the header.
        found: u32,
        /// The checksum in the header.
        expected: u32,
    },
    /// The length of the weights in the header differs from the length that the plan declares.
    #[error("has {found} bytes of weights, but its plan has {expected}")]
    Weights {
        /// Length of the weights in the header, in bytes.
        found: u64,
        /// Length of the weights in the plan, in bytes.
        expected: u64,
    },
    /// The number of checksums in the file differs from the number of weights that need one.
    #[error("has {found} checksums of weights, but its plan has {expected} weights")]
    Checksums {
        /// Number of checksums in the header.
        found: u32,
        /// Number of the plan's weights in the file that are not in blocks.
        expected: usize,
    },
    /// The checksums of the weights do not match their own checksum.
    #[error(
        "has damaged checksums of its weights: their checksum is {found:08x}, expected {expected:08x}; compile the model again"
    )]
    WeightChecksums {
        /// The checksum computed from the weights' checksums.
        found: u32,
        /// The checksum in the header.
        expected: u32,
    },
    /// The payload is damaged.
    #[error("has checksum {found:08x}, expected {expected:08x}: the file is damaged, compile the model again")]
    Checksum {
        /// The checksum computed from the payload.
        found: u32,
        /// The checksum in the header.
        expected: u32,
    },
    /// The payload has the right checksum, but is not an encoded plan.
    #[error("cannot be decoded as a plan: {source}")]
    Decode {
        /// The decoder's error.
        source: decode::DecodeError,
    },
    /// The header has a wrong number of plans for other ranks.
    #[error(
        "its header has {found} plans for other ranks; expected {expected}, without weights; compile the model again"
    )]
    Followers {
        /// The number in the header.
        found: u32,
        /// Expected number of plans for other ranks.
        expected: u32,
    },
    /// The payload has bytes after the encoded plan.
    #[error("has {bytes} bytes in its payload after the plan")]
    Rest {
        /// Number of bytes after the plan.
        bytes: usize,
    },
}

/// The fields of a plan file's header.
#[derive(Clone, Copy, Debug, Default)]
struct Header {
    payload_crc: u32,
    payload: u64,
    weights: u64,
    count: u32,
    checksums_crc: u32,
    /// Number of plans for other ranks that follow this one.
    followers: u32,
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
        let crc = Header::crc(&bytes, self.followers);
        bytes[40..44].copy_from_slice(&crc.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.followers.to_le_bytes());
        bytes
    }

    /// Decodes a header from `bytes`, the first bytes of a file whose length is `found` bytes.
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
        let (crc, expected) = (Header::crc(header, word(44)), word(40));
        if crc != expected || word(44) >= MAX_RANKS {
            return Err(FormatError::Header { found: crc, expected });
        }
        let header = Header {
            payload_crc: word(12),
            payload: long(16),
            weights: long(24),
            count: word(32),
            checksums_crc: word(36),
            followers: word(44),
        };
        if header.payload > MAX_PAYLOAD {
            return Err(FormatError::TooLong { found: header.payload });
        }
        let expected = header.file_bytes();
        match found.cmp(&expected) {
            std::cmp::Ordering::Less => Err(FormatError::Truncated { found, expected }),
            std::cmp::Ordering::Greater if header.followers == 0 => Err(FormatError::Trailing { found, expected }),
            std::cmp::Ordering::Greater => Ok(header),
            std::cmp::Ordering::Equal if header.followers == 0 => Ok(header),
            std::cmp::Ordering::Equal => Err(FormatError::Truncated { found, expected: expected.saturating_add(1) }),
        }
    }

    /// Returns the checksum of a header: of bytes 0..40, and of the number of following plans if it
    /// is not 0.
    fn crc(bytes: &[u8; HEADER_BYTES], followers: u32) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&bytes[..40]);
        if followers > 0 {
            hasher.update(&followers.to_le_bytes());
        }
        hasher.finalize()
    }

    fn payload_end(&self) -> u64 {
        HEADER_BYTES as u64 + self.payload
    }

    /// Returns the offset of the weights in the file.
    fn weights_at(&self) -> u64 {
        self.payload_end().next_multiple_of(ALIGNMENT)
    }

    /// Returns the length of the file in bytes. If the sum overflows, returns a length that no file
    /// has.
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

/// Returns the positions in [`Plan::weights`] of the weights that are in the plan file, but not in
/// blocks.
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

/// Encodes a plan without weights as the bytes of a plan file.
///
/// # Errors
/// Fails if the plan cannot be encoded, exceeds [`MAX_PAYLOAD`], or contains weights.
pub fn encode(plan: &Plan<Kernel>) -> Result<Vec<u8>, FileError> {
    if plan.own_weight_bytes > 0 {
        let source = FormatError::Weights { found: 0, expected: plan.own_weight_bytes };
        return Err(FileError::Format { path: PathBuf::new(), source });
    }
    Ok(seal(&payload(plan)?))
}

/// Returns the bytes of a plan file with this payload: adds the header.
pub fn seal(payload: &[u8]) -> Vec<u8> {
    seal_before(payload, 0)
}

/// Returns a header and the payload. The header has the number of plans for other ranks that
/// follow.
fn seal_before(payload: &[u8], followers: u32) -> Vec<u8> {
    let (payload_crc, length) = (crc32fast::hash(payload), payload.len() as u64);
    let header = Header { payload_crc, payload: length, followers, ..Header::default() };
    [&header.encode(), payload].concat()
}

/// Decodes the plan in the bytes of a plan file. Weights that follow the plan are not read.
///
/// # Errors
/// See [`FormatError`].
pub fn decode(bytes: &[u8]) -> Result<Plan<Kernel>, FormatError> {
    let header = Header::decode(bytes, bytes.len() as u64)?;
    // `Header::decode` checked that the file has at least this length.
    header.plan(&bytes[HEADER_BYTES..header.payload_end() as usize])
}

/// An open plan file.
#[derive(Debug)]
pub struct PlanFile {
    /// The plan.
    pub plan: Plan<Kernel>,
    /// Weights stored in the plan file after the plan, if there are any.
    pub weights: Option<OwnWeights>,
    /// Model files that are already open, indexed by their number in the plan. Loading opens the
    /// missing ones by their paths in the plan.
    pub model_files: Vec<Option<File>>,
    /// Plans of ranks 1 and up, in order, if the model is divided among ranks.
    pub other_ranks: Vec<Plan<Kernel>>,
}

impl PlanFile {
    /// Returns the contents of a plan file without weights and without open model files.
    pub fn new(plan: Plan<Kernel>) -> PlanFile {
        PlanFile { plan, weights: None, model_files: Vec::new(), other_ranks: Vec::new() }
    }

    /// Returns the number of ranks among which the model is divided; 1 for a whole model.
    pub fn ranks(&self) -> u32 {
        self.plan.ranks.map_or(1, |ranks| ranks.ranks)
    }

    /// Duplicates the handles of the open model files.
    pub(crate) fn model_file_handles(&self) -> Result<Vec<Option<File>>, LoadError> {
        let clone = |file: &Option<File>| file.as_ref().map(File::try_clone).transpose();
        let handles = self.model_files.iter().map(clone).collect::<io::Result<_>>();
        handles.map_err(|source| LoadError::Thread { source })
    }
}

/// Opens a plan file.
///
/// # Errors
/// See [`FileError`].
pub fn open(path: &Path) -> Result<PlanFile, FileError> {
    let file = open_regular(path);
    of_file(file.map_err(|source| FileError::Io { path: path.into(), action: "read", source })?, path)
}

/// Reads a plan from an open file, from its beginning. `path` is the file's path, for error
/// messages.
///
/// # Errors
/// See [`FileError`].
pub fn of_file(mut file: File, path: &Path) -> Result<PlanFile, FileError> {
    let io = |source| FileError::Io { path: path.into(), action: "read", source };
    let format = |source| FileError::Format { path: path.into(), source };
    let found = file.metadata().map_err(io)?.len();
    let mut read = |bytes: u64| {
        let mut part = Vec::new();
        (&mut file).take(bytes).read_to_end(&mut part).map_err(io).map(|_| part)
    };
    let header = Header::decode(&read(HEADER_BYTES as u64)?, found).map_err(format)?;
    let payload = read(header.payload)?;
    let plan = header.plan(&payload).map_err(format)?;
    if header.followers > 0 && header.count == 0 && header.weights == 0 {
        let mut left = found - header.file_bytes();
        let mut other_ranks = Vec::new();
        for rank in 1..=header.followers {
            let follower = Header::decode(&read(HEADER_BYTES as u64)?, left).map_err(format)?;
            if follower.followers != header.followers - rank || follower.count > 0 || follower.weights > 0 {
                let (found, expected) = (follower.followers, header.followers - rank);
                return Err(format(FormatError::Followers { found, expected }));
            }
            other_ranks.push(follower.plan(&read(follower.payload)?).map_err(format)?);
            left -= follower.file_bytes();
        }
        return Ok(PlanFile { other_ranks, ..PlanFile::new(plan) });
    }
    if header.followers > 0 {
        return Err(format(FormatError::Followers { found: header.followers, expected: 0 }));
    }
    if header.count == 0 && header.weights == 0 {
        return Ok(PlanFile::new(plan));
    }
    file.seek(io::SeekFrom::Start(header.weights_at() + header.weights)).map_err(io)?;
    // `count` was compared with the number of the plan's weights above, so the allocation is small.
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
    Ok(PlanFile { weights: Some(weights), ..PlanFile::new(plan) })
}

/// Reads the plan from a plan file, without its weights.
///
/// # Errors
/// See [`FileError`].
pub fn read(path: &Path) -> Result<Plan<Kernel>, FileError> {
    Ok(open(path)?.plan)
}

/// Writes a plan file without weights. On failure, an existing file at the path is unchanged. A
/// plan that cannot be loaded is not written ([`plan_check::check`]).
///
/// # Errors
/// See [`FileError`].
pub fn write(path: &Path, plan: &Plan<Kernel>) -> Result<(), FileError> {
    write_to(Output::open(path, &Guard::replacing(&KIND))?, plan)
}

/// Writes a plan file like [`write()`], to an output that was opened before the plan was made.
///
/// # Errors
/// See [`FileError`].
pub fn write_to(output: Output, plan: &Plan<Kernel>) -> Result<(), FileError> {
    plan_check::check(plan).map_err(|error| FileError::Source(Box::new(error)))?;
    put(output, plan)
}

/// Writes the plans of all ranks, in order of rank, to one file. Plans that cannot be loaded
/// together are not written.
///
/// # Errors
/// See [`FileError`].
pub fn write_ranks_to(output: Output, plans: &[Plan<Kernel>]) -> Result<(), FileError> {
    let refused = |error: LoadError| FileError::Source(Box::new(error));
    plans.iter().try_for_each(plan_check::check).map_err(refused)?;
    let mut bytes = Vec::new();
    for (followers, plan) in (0..plans.len()).rev().zip(plans) {
        if plan.own_weight_bytes > 0 {
            let source = FormatError::Weights { found: 0, expected: plan.own_weight_bytes };
            return Err(FileError::Format { path: PathBuf::new(), source });
        }
        // The check of the plans limits the number of ranks, so the cast is exact.
        bytes.extend(seal_before(&payload(plan)?, followers as u32));
    }
    output.write(|out| out.write_all(&bytes))?;
    Ok(())
}

/// Writes a plan that is already checked to an output.
fn put(output: Output, plan: &Plan<Kernel>) -> Result<(), FileError> {
    let bytes = encode(plan)?;
    output.write(|out| out.write_all(&bytes))?;
    Ok(())
}
