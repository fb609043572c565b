//! What SentencePiece makes of characters before it looks for tokens (`precompiled_charsmap`): a table of texts and what stands in their place, as a double array.
//!
//! ```text
//! u32 bytes of the array | the array, a u32 for each unit | texts, each with a zero behind it
//! unit  value 31 bits | leaf                   in place of a text: where it begins
//! unit  offset 22 bits | by 8 | has leaf | label 8 bits
//! ```
//!
//! A cluster of characters of up to five bytes is looked for as a whole, and else each of its characters, as Hugging Face's tokenizers do it: what is found is the
//! shortest text of the table that the cluster begins with.

use unicode_segmentation::UnicodeSegmentation;

/// Bytes of the longest cluster that is looked for.
const CLUSTER: usize = 5;
/// Bytes of the longest text that stands in a character's place: ten times those of Unicode's longest, so that a damaged table makes no text of gigabytes.
const REPLACEMENT: usize = 330;

/// The table.
#[derive(Clone, Debug, Default)]
pub struct Charsmap {
    units: Vec<u32>,
    texts: String,
}

impl Charsmap {
    /// From a file's bytes; `None` where they are cut off, or texts are no UTF-8. No bytes are an empty table.
    pub fn read(bytes: &[u8]) -> Option<Charsmap> {
        let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
            return bytes.is_empty().then(Charsmap::default);
        };
        let (units, texts) = rest.split_at_checked(u32::from_le_bytes(*length) as usize / 4 * 4)?;
        let units = units.chunks_exact(4).map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]));
        Some(Charsmap { units: units.collect(), texts: std::str::from_utf8(texts).ok()?.to_owned() })
    }

    /// A text with what stands in the place of its characters.
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

    /// What stands in the place of the shortest text of the table that this one begins with. What a damaged table has elsewhere is nothing.
    fn find(&self, text: &str) -> Option<&str> {
        let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        let mut at = offset(*self.units.first()?);
        for byte in text.bytes().take_while(|byte| *byte != 0) {
            at ^= usize::from(byte);
            let unit = *self.units.get(at)?;
            // A leaf's value is marked by the highest bit, and is no label.
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
