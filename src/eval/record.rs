//! The file that an evaluation is written to as it goes, and goes on with when it was interrupted: a line of JSON that says what is evaluated,
//! then one line for each piece of the text.
//!
//! ```text
//! {"schema":"ixc.eval-record.v1","model":[{"file":"m.gguf","bytes":9834592,"modified":1764032539}],"context":512,…}
//! {"surprise":[3.2,0.01,…],"against":{"surprise":[3.1,0.01,…],"divergence":[0.002,…],"same":[true,…]}}
//! ```
//!
//! Invariant: a piece is on the drive before the next is computed, and what stands behind the last whole line is written anew: an
//! interrupted evaluation that goes on gives the same bytes as one that was not.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use ixc_files::open::open_append;
use ixc_files::{Kind, Place};
use serde::{Deserialize, Serialize};

use super::Piece;
pub use crate::error::record::RecordError;

/// What the first line says of itself.
const SCHEMA: &str = "ixc.eval-record.v1";
const BEGIN: &[u8] = b"{\"schema\":\"ixc.eval-record.v1\"";
/// Such a file.
pub const KIND: Kind =
    Kind { name: "record of an evaluation", is: |head| head.starts_with(BEGIN), streams: false, private: false };
/// Bytes that the first line has at most, and what a piece takes beside its positions, and for each of them: four values and their commas.
const HEADER_BYTES: u64 = 1 << 20;
const PIECE_BYTES: u64 = 256;
const POSITION_BYTES: u64 = 128;

/// A file that an evaluation reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Its name, without the folder.
    pub file: String,
    /// Its length.
    pub bytes: u64,
    /// When it was written, in seconds since 1970.
    pub modified: u64,
}

impl Source {
    /// Of a file.
    ///
    /// # Errors
    /// What the system says.
    pub fn of(path: &Path) -> io::Result<Source> {
        let there = std::fs::metadata(path)?;
        let modified = there.modified()?.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Source { file, bytes: there.len(), modified })
    }
}

/// What is evaluated: all that the numbers depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    schema: String,
    /// Files of the model; none of the built-in one.
    pub model: Vec<Source>,
    /// Files of the model whose predictions are taken to be right.
    pub against: Option<Vec<Source>>,
    /// What code is for.
    pub target: String,
    /// What is said of how models are compiled.
    pub options: String,
    /// Tokens of the text.
    pub tokens: usize,
    /// CRC-32 of their ids, little-endian.
    pub tokens_crc: u32,
    /// Tokens of a piece.
    pub context: usize,
}

impl Header {
    /// Of a text in tokens that is cut into pieces of `context`; the rest is to be filled in.
    pub fn new(tokens: &[u32], context: usize) -> Header {
        let mut crc = crc32fast::Hasher::new();
        tokens.iter().for_each(|id| crc.update(&id.to_le_bytes()));
        Header {
            schema: SCHEMA.into(),
            model: Vec::new(),
            against: None,
            target: String::new(),
            options: String::new(),
            tokens: tokens.len(),
            tokens_crc: crc.finalize(),
            context,
        }
    }
}

/// A record that grows.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    file: File,
}

impl Record {
    /// Opens a record at a place, or begins one; gives the pieces that are there already. `anew` leaves nothing of what was there.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn open(
        place: &Place,
        header: &Header,
        pieces: usize,
        positions: usize,
        anew: bool,
    ) -> Result<(Record, Vec<Piece>), RecordError> {
        let path = place.named().to_owned();
        let io = |action| {
            let path = path.clone();
            move |source| RecordError::Io { path, action, source }
        };
        let mut file = open_append(place.path()).map_err(io("write"))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(RecordError::Busy { path }),
            Err(TryLockError::Error(source)) => return Err(io("lock it")(source)),
            Ok(()) => {}
        }
        let most = HEADER_BYTES + pieces as u64 * (PIECE_BYTES + positions as u64 * POSITION_BYTES);
        let mut bytes = Vec::new();
        if anew {
            file.set_len(0).map_err(io("write"))?;
        }
        file.seek(SeekFrom::Start(0))
            .and_then(|_| (&file).take(most + 1).read_to_end(&mut bytes))
            .map_err(io("read"))?;
        if bytes.len() as u64 > most {
            let problem = format!("not all: it has more than {most} bytes, the most of {pieces} pieces");
            return Err(RecordError::Malformed { path, line: 1, problem });
        }
        // A line that was not written to its end is written again.
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let mut found = Vec::new();
        let mut lines = bytes[..whole].split_inclusive(|&byte| byte == b'\n');
        match lines.next() {
            Some(line) => same(&path, line, header)?,
            None => {
                file.set_len(0).map_err(io("write"))?;
                write_line(&mut file, header).map_err(io("write"))?;
                return Ok((Record { path, file }, found));
            }
        }
        for (index, line) in lines.enumerate() {
            let malformed = |problem: String| RecordError::Malformed { path: path.clone(), line: index + 2, problem };
            let piece: Piece =
                serde_json::from_slice(line).map_err(|error| malformed(format!("no piece of a text: {error}")))?;
            if index >= pieces || !piece.is_whole(positions, header.against.is_some()) {
                return Err(malformed(format!("not one of {pieces} pieces of {positions} positions each")));
            }
            found.push(piece);
        }
        file.set_len(whole as u64).map_err(io("write"))?;
        Ok((Record { path, file }, found))
    }

    /// Adds a piece.
    ///
    /// # Errors
    /// What the system says.
    pub fn add(&mut self, piece: &Piece) -> Result<(), RecordError> {
        let failed = |source| RecordError::Io { path: self.path.clone(), action: "write", source };
        write_line(&mut self.file, piece).map_err(failed)
    }
}

fn write_line(file: &mut File, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    file.write_all(&line)?;
    file.sync_data()
}

/// Whether a first line says the same; what differs first otherwise.
fn same(path: &Path, line: &[u8], header: &Header) -> Result<(), RecordError> {
    let malformed = |problem: String| RecordError::Malformed { path: path.to_owned(), line: 1, problem };
    let found: Header = serde_json::from_slice(line).map_err(|error| malformed(format!("no header: {error}")))?;
    let values = |header: &Header| serde_json::to_value(header).map_err(|error| malformed(error.to_string()));
    let (found, wanted) = (values(&found)?, values(header)?);
    let wanted = wanted.as_object().into_iter().flatten();
    match wanted.into_iter().find(|(key, value)| found.get(key.as_str()) != Some(value)) {
        None => Ok(()),
        Some((key, wanted)) => {
            let found = found.get(key.as_str()).cloned().unwrap_or_default();
            Err(RecordError::Other {
                path: path.to_owned(),
                key: key.clone(),
                found: found.to_string(),
                wanted: wanted.to_string(),
            })
        }
    }
}
