//! Record of an evaluation, which an interrupted evaluation resumes from. The first line of JSON
//! describes the evaluation. Each further line is one piece of the text.
//!
//! ```text
//! {"schema":"ixc.eval-record.v2","model":[{"bytes":9834592,"crc32":"1c291ca3"}],
//!  "context":512,…,"crc32":"5d41402a"}
//! {"surprise":[3.2,0.01,…],"against":{"surprise":[3.1,0.01,…],"divergence":[0.002,…],
//!  "same":[true,…]},"crc32":"8a1f09c2"}
//! ```
//!
//! The example wraps each line once. A model is identified by its content, so its file may be moved
//! and its times may change.
//!
//! Invariant: a number is used only if the checksum of its line is right. The checksum also covers
//! the first line and the line's number.
//!
//! Invariant: a piece is on the drive before the next is computed. Text after the last whole line
//! is overwritten. So a resumed evaluation writes the same bytes as an uninterrupted one.

use std::fmt::Display;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ixc_files::open::open_append;
use ixc_files::{Kind, Place, open_regular};
use serde::{Deserialize, Serialize};

use super::PieceScores;
pub use crate::error::record::RecordError;
use ixc_compile::checksum::{add_checksum, remove_checksum};

/// Schema in the first line.
const SCHEMA: &str = "ixc.eval-record.v2";
const BEGIN: &[u8] = b"{\"schema\":\"ixc.eval-record.v";
/// Record of an evaluation.
pub const KIND: Kind =
    Kind { name: "record of an evaluation", is: |head| head.starts_with(BEGIN), streams: false, private: false };
/// Max bytes of the first line, of a piece without its positions, and of a position: four values
/// and their commas.
const HEADER_BYTES: u64 = 1 << 20;
const PIECE_BYTES: u64 = 256;
const POSITION_BYTES: u64 = 128;

/// Bytes that are read at once for a checksum.
const READ_BYTES: usize = 1 << 20;

/// Input file of an evaluation, identified by its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFile {
    /// Length in bytes.
    pub bytes: u64,
    /// CRC-32 of the whole file.
    pub crc32: String,
}

impl InputFile {
    /// Reads a whole file.
    ///
    /// # Errors
    /// The system's error.
    pub fn from_path(path: &Path) -> io::Result<InputFile> {
        let mut file = open_regular(path)?;
        let (mut crc, mut bytes, mut buffer) = (crc32fast::Hasher::new(), 0, vec![0; READ_BYTES]);
        loop {
            let read = file.read(&mut buffer)?;
            if read == 0 {
                return Ok(InputFile { bytes, crc32: format!("{:08x}", crc.finalize()) });
            }
            crc.update(&buffer[..read]);
            bytes += read as u64;
        }
    }
}

/// Description of an evaluation: everything that the numbers depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    schema: String,
    /// Files of the model; empty for the built-in model.
    pub model: Vec<InputFile>,
    /// Files of the reference model.
    pub against: Option<Vec<InputFile>>,
    /// Target of the code.
    pub target: String,
    /// Compile options of the models.
    pub options: String,
    /// Tokens of the text.
    pub tokens: usize,
    /// CRC-32 of the token ids, little-endian.
    pub tokens_crc: u32,
    /// Tokens of a piece.
    pub context: usize,
}

impl Header {
    /// Creates the header for a text's tokens and pieces of `context` tokens. The other fields are
    /// empty.
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

/// A record to which pieces are appended.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    file: File,
    /// First line, which the checksums of all other lines cover.
    header: String,
    /// Number of pieces in the record.
    pieces: usize,
}

/// Returns the prefix that the checksum of a piece's line covers in addition to the line: the
/// header and the piece's number.
fn checksum_prefix(header: &str, piece: usize) -> Vec<u8> {
    [header.as_bytes(), &(piece as u64).to_le_bytes()].concat()
}

impl Record {
    /// Opens or creates a record, and returns the pieces in it. `anew` removes all existing pieces.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn open(
        place: &Place,
        header: &Header,
        pieces: usize,
        positions: usize,
        anew: bool,
    ) -> Result<(Record, Vec<PieceScores>), RecordError> {
        let path = place.given_path().to_owned();
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
        let max = HEADER_BYTES + pieces as u64 * (PIECE_BYTES + positions as u64 * POSITION_BYTES);
        let mut bytes = Vec::new();
        if anew {
            file.set_len(0).map_err(io("write"))?;
        }
        file.seek(SeekFrom::Start(0))
            .and_then(|_| (&file).take(max + 1).read_to_end(&mut bytes))
            .map_err(io("read"))?;
        if bytes.len() as u64 > max {
            let problem = format!("in a file of more than {max} bytes, the maximum for {pieces} pieces");
            return Err(RecordError::Malformed { path, line: 1, problem });
        }
        // An incomplete last line is written again.
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let mut found = Vec::new();
        let mut lines = bytes[..whole].split_inclusive(|&byte| byte == b'\n');
        let header_text = serde_json::to_string(header).map_err(io::Error::from).map_err(io("write"))?;
        match lines.next() {
            Some(line) => check_header(&path, line, header)?,
            None => {
                file.set_len(0).map_err(io("write"))?;
                write_line(&mut file, &add_checksum(&[], &header_text)).map_err(io("write"))?;
                return Ok((Record { path, file, header: header_text, pieces: 0 }, found));
            }
        }
        for (index, line) in lines.enumerate() {
            let malformed = |problem: String| RecordError::Malformed { path: path.clone(), line: index + 2, problem };
            let none = |problem: &dyn Display| malformed(format!("not a piece of a text: {problem}"));
            let text = std::str::from_utf8(line).map_err(|error| none(&error))?;
            let text = remove_checksum(&checksum_prefix(&header_text, index), text)
                .map_err(|error| none(&format!("it {error}")))?;
            let piece: PieceScores = serde_json::from_str(&text).map_err(|error| none(&error))?;
            if index >= pieces || !piece.is_complete(positions, header.against.is_some()) {
                return Err(malformed(format!("not one of {pieces} pieces of {positions} positions each")));
            }
            found.push(piece);
        }
        file.set_len(whole as u64).map_err(io("write"))?;
        Ok((Record { path, file, header: header_text, pieces: found.len() }, found))
    }

    /// Adds a piece.
    ///
    /// # Errors
    /// The system's error.
    pub fn add(&mut self, piece: &PieceScores) -> Result<(), RecordError> {
        let failed = |source| RecordError::Io { path: self.path.clone(), action: "write", source };
        let place = checksum_prefix(&self.header, self.pieces);
        let text = serde_json::to_string(piece).map_err(io::Error::from);
        text.and_then(|text| write_line(&mut self.file, &add_checksum(&place, &text))).map_err(failed)?;
        self.pieces += 1;
        Ok(())
    }
}

fn write_line(file: &mut File, text: &str) -> io::Result<()> {
    file.write_all(format!("{text}\n").as_bytes())?;
    file.sync_data()
}

/// The schema of a first line, which all versions of records have.
#[derive(Deserialize)]
struct Version {
    schema: String,
}

/// Checks that a first line has the same header, and reports the first difference.
fn check_header(path: &Path, line: &[u8], header: &Header) -> Result<(), RecordError> {
    let malformed = |problem: String| RecordError::Malformed { path: path.to_owned(), line: 1, problem };
    let none = |problem: &dyn Display| malformed(format!("not a header: {problem}"));
    let text = std::str::from_utf8(line).map_err(|error| none(&error))?;
    // Lines of older records have no checksums, so the version is checked first.
    let version = serde_json::from_str::<Version>(text).map_err(|error| none(&error))?;
    if version.schema != SCHEMA {
        let (key, found) = ("schema".to_owned(), version.schema.chars().take(64).collect());
        return Err(RecordError::Other { path: path.to_owned(), key, found, wanted: SCHEMA.to_owned() });
    }
    let text = remove_checksum(&[], text).map_err(|error| none(&format!("it {error}")))?;
    let found: Header = serde_json::from_str(&text).map_err(|error| none(&error))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_files::{Guard, Output};

    const PIECES: usize = 4;

    fn piece(nats: f32) -> PieceScores {
        PieceScores { surprise: vec![nats, 2.0], against: None }
    }

    fn open_record(path: &Path) -> Result<(Record, Vec<PieceScores>), RecordError> {
        let place =
            Output::open(path, &Guard { kind: Some(&KIND), force: true, inputs: &[] }).unwrap().into_place().unwrap();
        Record::open(&place, &Header::new(&[1, 2, 3], 6), PIECES, 2, false)
    }

    /// Changes any bit of any line, exchanges lines, and uses impossible numbers.
    #[test]
    fn changed_record_is_refused() {
        let folder = std::env::temp_dir().join(format!("ixc-record-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("r.jsonl");
        let (mut record, _) = open_record(&path).unwrap();
        for nats in [1.0, 3.0] {
            record.add(&piece(nats)).unwrap();
        }
        drop(record);
        assert_eq!(open_record(&path).unwrap().1, [piece(1.0), piece(3.0)]);
        let good = std::fs::read(&path).unwrap();
        let refused = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let error = open_record(&path).err().map(|error| error.to_string());
            // A refused file remains unchanged.
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
            error
        };
        let ends = good.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect::<Vec<_>>();
        for at in (0..good.len()).filter(|at| !ends.contains(at)) {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            assert!(refused(&bytes).is_some(), "byte {at}");
        }
        let lines: Vec<&[u8]> = good.split_inclusive(|byte| *byte == b'\n').collect();
        let error = refused(&[lines[0], lines[2], lines[1]].concat()).unwrap();
        assert!(error.contains("line 2") && error.contains("damaged"), "{error}");
        assert!(refused(&[lines[0], lines[2]].concat()).is_some());
        for nats in [-900.5, f32::NAN] {
            std::fs::write(&path, lines[0]).unwrap();
            let (mut record, _) = open_record(&path).unwrap();
            record.add(&piece(nats)).unwrap();
            drop(record);
            assert!(open_record(&path).is_err(), "{nats}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn source_identity_depends_on_content_only() {
        let folder = std::env::temp_dir().join(format!("ixc-source-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let of = |name: &str, text: &str| {
            std::fs::write(folder.join(name), text).unwrap();
            InputFile::from_path(&folder.join(name)).unwrap()
        };
        assert_eq!(of("a", "one"), InputFile { bytes: 3, crc32: "7a6c86f1".into() });
        assert!(of("a", "one") == of("b", "one") && of("a", "two") != of("b", "one"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
