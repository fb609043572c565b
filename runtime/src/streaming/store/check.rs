//! Checks of block descriptions, which come from a plan or a model file and may be hostile.

use std::collections::HashMap;

use super::super::files::{Files, PAGE};
use super::super::{Block, BlockEncoding, BlockId, StreamError};

/// Upper bound (exclusive) of group numbers.
const MAX_GROUPS: u32 = 1 << 16;
/// Maximum bytes of a block or an extent. It keeps sums over all blocks far from overflow.
const MAX_BYTES: u64 = 1 << 38;
/// Maximum number of blocks, which is more than any model has.
const MAX_BLOCKS: usize = 1 << 22;

/// Checks all blocks, and returns their indices by id. `packs` is true if the cache has a packer
/// for raw blocks.
pub fn blocks(blocks: &[Block], files: &Files, packs: bool) -> Result<HashMap<BlockId, u32>, StreamError> {
    let mut numbers = HashMap::with_capacity(blocks.len().min(MAX_BLOCKS));
    for (number, block) in blocks.iter().enumerate() {
        let id = block.id;
        let bad = |what, found: u64, expected: &str| {
            Err(StreamError::BadBlock { block: id, what, found, expected: expected.into() })
        };
        if number >= MAX_BLOCKS {
            return bad("the number of blocks before it", number as u64, "expected at most 4194304");
        }
        if id.group >= MAX_GROUPS {
            return bad("its layer", id.group.into(), "expected a number below 65536");
        }
        if let Some(first) = numbers.insert(id, number as u32) {
            return bad("its description", number as u64, &format!("block number {first} has the same id"));
        }
        if block.extents.is_empty() {
            return bad("the number of its extents", 0, "expected at least one");
        }
        match block.form {
            BlockEncoding::Raw { .. } if !packs => return bad("a raw block's packer", 0, "raw blocks need one"),
            BlockEncoding::Raw { bytes } if bytes == 0 || bytes > MAX_BYTES => {
                return bad("its packed length", bytes, "expected 1 to 2^38 bytes");
            }
            _ => {}
        }
        for extent in &block.extents {
            if extent.file as usize >= files.count() {
                return bad(
                    "a file's number",
                    extent.file.into(),
                    &format!("expected a number below {}", files.count()),
                );
            }
            if extent.bytes == 0 || extent.bytes > MAX_BYTES {
                return bad("an extent's length", extent.bytes, "expected 1 to 2^38 bytes");
            }
            let length = files.bytes(extent.file);
            let end = extent.offset.saturating_add(extent.bytes);
            if end > length {
                let path = files.path(extent.file);
                return Err(StreamError::Truncated { path, offset: extent.offset, found: length, expected: end });
            }
        }
        if block.form == BlockEncoding::Packed {
            let mut places: Vec<(u64, u64)> = Vec::new();
            for extent in &block.extents {
                if extent.at > MAX_BYTES || extent.at % PAGE != extent.head() {
                    let expected =
                        format!("expected {} bytes after the start of a page, as in the file", extent.head());
                    return bad("an extent's place in the slot", extent.at, &expected);
                }
                places.push((extent.at - extent.head(), extent.span()));
            }
            places.sort_unstable();
            if let Some(pair) = places.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
                return bad("an extent's page in the slot", pair[1].0, "another extent uses the same page");
            }
        }
    }
    Ok(numbers)
}
