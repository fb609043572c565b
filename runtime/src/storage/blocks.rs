//! Blocks of experts. A block has all matrices of one expert in one piece, in the layout that
//! kernels read, so that a single read loads the expert.
//!
//! A block begins at a page boundary with a header of 64 bytes. The expert's matrices (*parts*)
//! follow in the order of the plan's group (gate, up, down). Each part begins at a multiple of 64
//! bytes; the bytes after a part up to the next multiple are 0. Numbers are little-endian. Offsets
//! and lengths in the header are counted in *lines* of 64 bytes.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..4 | `IXCB` |
//! | 4 | version of this encoding, 1 |
//! | 5 | number of parts, 1 to 3 |
//! | 6 | tile hint: max rows that kernels read side by side in a part's format, 16 or 1 |
//! | 7 | 0 |
//! | 8..12 | layer: number of the group in the plan |
//! | 12..16 | expert |
//! | 16..20 | lines of the payload: from the header's end to the end of the last part's last line |
//! | 20..24 | CRC-32 of the payload |
//! | 24..36 | first part |
//! | 36..48, 48..60 | second and third part, 0 if absent |
//! | 60..64 | CRC-32 of bytes 0..60 |
//!
//! The header has a description of each part. A part's length, and the offset of its scales, follow
//! from these fields:
//!
//! | bytes of a part | content |
//! | --- | --- |
//! | 0 | format: its index in the format table, which the plan file's version fixes |
//! | 1..4 | line of the block at which it begins |
//! | 4..8 | rows |
//! | 8..12 | columns |
//!
//! All fields except the checksums follow from the plan. So a block is compared with the expected
//! header, and no value in it is trusted. For example, take a group of three `f16_r16` matrices
//! with 32 rows of 32 columns. Its blocks have 97 lines: the header, and parts that begin at lines
//! 1, 33 and 65. The next block begins 8192 bytes later.

use std::path::{Path, PathBuf};

use ixc_ir::format::Format;
use ixc_ir::plan::PlanWeight;

use crate::reads::BlockId;
use crate::storage::memory::Region;
use crate::storage::pack::ALIGNMENT;

/// Bytes of a block's header.
pub const BLOCK_HEADER: u64 = LINE;
/// First bytes of a block's header.
pub const BLOCK_MAGIC: [u8; 4] = *b"IXCB";
/// Version of the block format.
pub const BLOCK_VERSION: u8 = 1;
/// Maximum number of parts that a header can describe.
pub const BLOCK_PARTS: usize = 3;
/// Unit of offsets and lengths: a cache line, which is also the length of a vector.
const LINE: u64 = 64;
/// Offset in the header of the descriptions of the parts, and bytes of each description.
const PARTS_AT: usize = 24;
const PART_BYTES: usize = 12;
/// Offset in the header of the header's own checksum.
const CRC_AT: usize = 60;

/// Name, offset and length of the header's fields between version and checksum, for error messages.
const FIELDS: [(&str, usize, usize); 18] = [
    ("number of parts", 5, 1),
    ("rows of a strip", 6, 1),
    ("reserved byte", 7, 1),
    ("layer", 8, 4),
    ("expert", 12, 4),
    ("length in lines", 16, 4),
    ("first part's format", 24, 1),
    ("first part's line", 25, 3),
    ("first part's rows", 28, 4),
    ("first part's columns", 32, 4),
    ("second part's format", 36, 1),
    ("second part's line", 37, 3),
    ("second part's rows", 40, 4),
    ("second part's columns", 44, 4),
    ("third part's format", 48, 1),
    ("third part's line", 49, 3),
    ("third part's rows", 52, 4),
    ("third part's columns", 56, 4),
];

/// Error for a block whose header or checksum differs from what the plan requires.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}: {block}: the {what} is {found:#x}, expected {expected:#x}: the file is damaged, compile the model again",
    path.display()
)]
pub struct BlockError {
    /// Path of the plan file.
    pub path: PathBuf,
    /// Id of the block.
    pub block: BlockId,
    /// Name of the wrong field.
    pub what: &'static str,
    /// Value in the block's header.
    pub found: u64,
    /// Value that the plan requires.
    pub expected: u64,
}

/// A matrix of an expert, as a part of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPart {
    /// Format in which kernels read the matrix.
    pub format: Format,
    /// Rows of the matrix.
    pub rows: u32,
    /// Columns of the matrix.
    pub columns: u32,
    /// Offset in the block, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Layout of the blocks of one expert group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockShape {
    /// Parts in the order of the group.
    pub parts: Vec<BlockPart>,
    lines: u32,
}

impl BlockShape {
    /// Returns the layout of blocks for a group with these weights; `None` if a header cannot
    /// describe them.
    pub fn new<'a>(weights: impl IntoIterator<Item = &'a PlanWeight>) -> Option<BlockShape> {
        let (mut parts, mut lines) = (Vec::new(), 1u64);
        for weight in weights {
            let &[experts, rows, columns] = &weight.shape[..] else { return None };
            let bytes = weight.bytes_in(weight.format)?.checked_div(experts)?;
            let (rows, columns) = (u32::try_from(rows).ok()?, u32::try_from(columns).ok()?);
            if parts.len() == BLOCK_PARTS || bytes == 0 || lines >= 1 << 24 {
                return None;
            }
            parts.push(BlockPart { format: weight.format, rows, columns, offset: lines * LINE, bytes });
            lines = lines.checked_add(bytes.div_ceil(LINE))?;
        }
        let lines = u32::try_from(lines).ok().filter(|_| !parts.is_empty())?;
        Some(BlockShape { parts, lines })
    }

    /// Returns the number of bytes of a block with its header.
    pub fn bytes(&self) -> u64 {
        u64::from(self.lines) * LINE
    }

    /// Returns the bytes from the beginning of one block to the beginning of the next.
    pub fn stride(&self) -> u64 {
        self.bytes().next_multiple_of(ALIGNMENT)
    }

    /// Returns the header of a block. `payload_crc` is the checksum of the bytes after the header.
    pub fn header(&self, block: BlockId, payload_crc: u32) -> [u8; BLOCK_HEADER as usize] {
        let mut bytes = [0; BLOCK_HEADER as usize];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &BLOCK_MAGIC);
        let strip = self.parts.iter().map(|part| part.format.rows()).max().unwrap_or(1);
        put(4, &[BLOCK_VERSION, self.parts.len() as u8, strip as u8]);
        put(8, &block.group.to_le_bytes());
        put(12, &block.expert.to_le_bytes());
        put(16, &(self.lines - 1).to_le_bytes());
        put(20, &payload_crc.to_le_bytes());
        for (i, part) in self.parts.iter().enumerate() {
            let at = PARTS_AT + i * PART_BYTES;
            // The number is below 2^24, as `new` has checked.
            put(at + 1, &((part.offset / LINE) as u32).to_le_bytes()[..3]);
            put(at, &[part.format as u8]);
            put(at + 4, &part.rows.to_le_bytes());
            put(at + 8, &part.columns.to_le_bytes());
        }
        let crc = crc32fast::hash(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Checks a block's header, and the checksum of its payload, against the plan. `path` is the
    /// plan file, for error messages.
    ///
    /// # Errors
    /// Returns the first field that differs.
    pub fn check(
        &self,
        path: &Path,
        block: BlockId,
        header: &[u8; BLOCK_HEADER as usize],
        payload_crc: u32,
    ) -> Result<(), BlockError> {
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
        let same = |what, found, expected| match found == expected {
            true => Ok(()),
            false => Err(BlockError { path: path.into(), block, what, found, expected }),
        };
        let expected = self.header(block, 0);
        same("magic", number(&header[..4]), number(&expected[..4]))?;
        same("version", header[4].into(), expected[4].into())?;
        same("header's checksum", crc32fast::hash(&header[..CRC_AT]).into(), number(&header[CRC_AT..]))?;
        for (what, at, bytes) in FIELDS {
            same(what, number(&header[at..at + bytes]), number(&expected[at..at + bytes]))?;
        }
        same("payload's checksum", payload_crc.into(), number(&header[20..24]))
    }

    /// Checks a block that is completely in memory; see [`BlockShape::check`].
    ///
    /// # Errors
    /// Returns the first field that differs.
    ///
    /// # Safety
    /// The region must be readable, and no other code may write to it meanwhile.
    pub(crate) unsafe fn check_block(&self, path: &Path, block: BlockId, region: Region) -> Result<(), BlockError> {
        let short = || BlockError {
            path: path.into(),
            block,
            what: "length in memory",
            found: region.bytes(),
            expected: self.bytes(),
        };
        let part = region.part(0, self.bytes()).ok_or_else(short)?;
        // SAFETY: the caller guarantees that the region is readable and not written meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(part.base(), part.bytes() as usize) };
        let (header, payload) = bytes.split_first_chunk().ok_or_else(short)?;
        self.check(path, block, header, crc32fast::hash(payload))
    }
}

#[cfg(test)]
mod tests {
    use ixc_ir::plan::WeightFile;

    use super::*;

    fn weight(format: Format, rows: u64, columns: u64) -> PlanWeight {
        let shape = vec![4, rows, columns];
        let bytes = 4 * rows * format.row_bytes(columns).unwrap_or(0);
        let (name, file) = (String::new(), WeightFile::Source(0));
        PlanWeight { name, format, stored: format, shape, file, offset: 0, bytes }
    }

    const BLOCK: BlockId = BlockId { group: 7, expert: 300 };

    #[test]
    fn a_header_is_as_documented() {
        let gate = weight(Format::Q4KR16, 48, 512);
        let shape = BlockShape::new([&gate, &gate, &weight(Format::Q6K, 512, 256)]).unwrap();
        // For the first two parts, 48 rows of two 144-byte format blocks are 216 lines. For the
        // third part, 512 rows of one 210-byte format block are 1680 lines.
        assert_eq!((shape.bytes(), shape.stride()), (64 * (1 + 216 + 216 + 1680), 33 * 4096 + 4096));
        let header = shape.header(BLOCK, 0x0403_0201);
        let mut expected = b"IXCB".to_vec();
        expected.extend([1, 3, 16, 0, 7, 0, 0, 0, 44, 1, 0, 0, 0x40, 0x08, 0, 0, 1, 2, 3, 4]);
        for (format, line, rows, columns) in
            [(Format::Q4KR16, 1u32, 48u32, 512u32), (Format::Q4KR16, 217, 48, 512), (Format::Q6K, 433, 512, 256)]
        {
            expected.push(format as u8);
            expected.extend(&line.to_le_bytes()[..3]);
            expected.extend([rows, columns].iter().flat_map(|n| n.to_le_bytes()));
        }
        expected.extend(crc32fast::hash(&expected).to_le_bytes());
        assert_eq!(header.as_slice(), expected);
        shape.check(Path::new("x"), BLOCK, &header, 0x0403_0201).unwrap();
    }

    #[test]
    fn every_bit_of_a_header_is_compared() {
        let gate = weight(Format::F16R16, 32, 32);
        let shape = BlockShape::new([&gate, &gate, &gate]).unwrap();
        let good = shape.header(BLOCK, 5);
        let check = |header: &_, crc| shape.check(Path::new("x.ixp"), BLOCK, header, crc);
        let mut named = Vec::new();
        for bit in 0..8 * good.len() {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            check(&bad, 5).unwrap_err();
            // An attacker who changes a field would also correct the header's checksum.
            if bit / 8 < CRC_AT {
                let crc = crc32fast::hash(&bad[..CRC_AT]);
                bad[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
                named.push(check(&bad, 5).unwrap_err().what);
            }
        }
        named.dedup();
        let fields = ["magic", "version"].into_iter().chain(FIELDS.map(|field| field.0)).collect::<Vec<_>>();
        let place = fields.iter().position(|&name| name == "first part's format").unwrap();
        let expected = [&fields[..place], &["payload's checksum"], &fields[place..]].concat();
        assert_eq!(named, expected);
        let error = check(&good, 6).unwrap_err();
        let expected = "x.ixp: expert 300 of layer 7: the payload's checksum is 0x6, expected 0x5";
        assert!(error.to_string().starts_with(expected), "{error}");
        let other = shape.check(Path::new("x"), BlockId { expert: 301, ..BLOCK }, &good, 5).unwrap_err();
        assert_eq!((other.what, other.found, other.expected), ("expert", 300, 301));
    }

    #[test]
    fn unsupported_weight_shapes_have_no_block_shape() {
        let gate = weight(Format::F16, 32, 32);
        assert!(BlockShape::new([&gate; 3]).is_some() && BlockShape::new([&gate; 1]).is_some());
        assert!(BlockShape::new([&gate; 4]).is_none() && BlockShape::new([]).is_none());
        let shaped = |shape: &[u64]| PlanWeight { shape: shape.to_vec(), ..gate.clone() };
        for shape in [&[32, 32][..], &[0, 32, 32], &[4, 0, 32], &[4, 1 << 32, 1], &[4, 1, 1 << 32], &[1; 4], &[]] {
            assert!(BlockShape::new([&shaped(shape)]).is_none(), "{shape:?}");
        }
        // A part at an offset of 1 GiB cannot be described, and neither can a payload of 256 GiB.
        let long = shaped(&[1, 1 << 19, 1 << 10]);
        assert!(BlockShape::new([&long]).is_some() && BlockShape::new([&long, &gate]).is_none());
        assert!(BlockShape::new([&shaped(&[1, 1 << 27, 1 << 10])]).is_none());
        assert!(BlockShape::new([&shaped(&[u64::MAX, u32::MAX.into(), u32::MAX.into()])]).is_none());
    }
}
