//! SentencePiece's map of characters, which is applied before tokenization
//! (`precompiled_charsmap`). It is a table of texts and their replacements, stored as a double
//! array.
//!
//! ```text
//! u32 bytes of the array | the array, a u32 for each unit | texts, each followed by a zero
//! unit  value 31 bits | leaf       // value: start of the replacement
//! unit  offset 22 bits | by 8 | has leaf | label 8 bits
//! ```
//!
//! A cluster of characters of up to five bytes is looked up as a whole. If this fails, each of its
//! characters is looked up. A lookup finds the shortest text of the table that is a prefix of the
//! cluster. The tokenizers of Hugging Face do the same.

use unicode_segmentation::UnicodeSegmentation;

/// Maximum length in bytes of a cluster that is looked up as a whole.
const CLUSTER: usize = 5;
/// Maximum length of a replacement in bytes: ten times the longest in Unicode. It prevents a
/// damaged table from making gigabytes of text.
const REPLACEMENT: usize = 330;

/// Table of texts and their replacements.
#[derive(Clone, Debug, Default)]
pub struct Charsmap {
    units: Vec<u32>,
    texts: String,
}

impl Charsmap {
    /// Reads the table from a file's bytes. `None` if they are truncated, or if a text is not
    /// UTF-8. If there are no bytes, the table is empty.
    pub fn read(bytes: &[u8]) -> Option<Charsmap> {
        let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
            return bytes.is_empty().then(Charsmap::default);
        };
        let (units, texts) = rest.split_at_checked(u32::from_le_bytes(*length) as usize / 4 * 4)?;
        let units = units.chunks_exact(4).map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]));
        Some(Charsmap { units: units.collect(), texts: std::str::from_utf8(texts).ok()?.to_owned() })
    }

    /// Returns a text in which all characters are replaced by the table.
    pub fn apply(&self, text: &str) -> String {
        if self.units.is_empty() {
            return text.to_owned();
        }
        let mut out = String::with_capacity(text.len());
        for cluster in text.graphemes(true) {
            let whole = Some(cluster).filter(|cluster| cluster.len() <= CLUSTER).and_then(|cluster| self.find(cluster));
            if let Some(found) = whole {
                out.push_str(found);
                continue;
            }
            for c in cluster.chars() {
                match self.find(c.encode_utf8(&mut [0; 4])) {
                    Some(found) => out.push_str(found),
                    None => out.push(c),
                }
            }
        }
        out
    }

    /// Returns the replacement of the shortest text in the table that is a prefix of `text`. If a
    /// damaged table has an invalid position, returns `None`.
    fn find(&self, text: &str) -> Option<&str> {
        let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        let mut at = offset(*self.units.first()?);
        for byte in text.bytes().take_while(|byte| *byte != 0) {
            at ^= usize::from(byte);
            let unit = *self.units.get(at)?;
            // The highest bit marks a unit with a leaf's value. Such a unit has no label.
            if unit & (1 << 31 | 0xff) != u32::from(byte) {
                return None;
            }
            at ^= offset(unit);
            if unit >> 8 & 1 == 1 {
                let begin = (*self.units.get(at)? & !(1 << 31)) as usize;
                let found = self.texts.get(begin..)?;
                let end = found.bytes().take(REPLACEMENT + 1).position(|byte| byte == 0)?;
                return found.get(..end);
            }
        }
        None
    }
}
