//! SentencePiece with merges, as in llama.cpp. It begins with characters. It then repeatedly merges
//! the adjacent pair whose text is the token with the highest score. Symbols that are not tokens
//! become tokens of their bytes.

use super::TokenizerError;
use super::merge::{Join, Symbol, merge};
use super::spec::{TokenizerSpec, byte_token};
use super::vocabulary::{SPM_SPACE, Vocabulary};

/// Id of a symbol that is not a token.
const NO_TOKEN: u32 = u32::MAX;

/// SentencePiece tokenizer with merges.
#[derive(Clone, Debug)]
pub struct Spm {
    /// Priority of each token as a merge, derived from its score.
    priorities: Vec<u32>,
    /// Ids of the tokens `<0x00>` to `<0xFF>`; each stands for one byte.
    byte_ids: Vec<Option<u32>>,
    longest: usize,
}

/// Converts a score to a merge priority. A higher score gives a lower number.
fn priority(score: f32) -> u32 {
    // Adding zero turns -0.0 into 0.0. The bits of floats, as integers, are ordered by magnitude,
    // so the order of negative scores is reversed.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    !ascending
}

impl Spm {
    /// Returns the tokenizer of a spec, which must be valid.
    pub fn new(spec: &TokenizerSpec, vocabulary: &Vocabulary) -> Spm {
        let priorities = match spec.scores.len() {
            0 => vec![priority(0.0); spec.tokens.len()],
            _ => spec.scores.iter().map(|&score| priority(score)).collect(),
        };
        Spm {
            priorities,
            byte_ids: (0..=255).map(|byte| vocabulary.id(&byte_token(byte))).collect(),
            longest: spec.tokens.iter().map(String::len).max().unwrap_or(0),
        }
    }

    /// Appends the token ids of `text`, which must contain no special tokens. With `prefix`, a
    /// space is put before the text.
    pub fn encode(
        &self,
        vocabulary: &Vocabulary,
        unknown: Option<u32>,
        text: &str,
        prefix: bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let space = if prefix { " " } else { "" };
        let text: String = space.chars().chain(text.chars()).map(|c| if c == ' ' { SPM_SPACE } else { c }).collect();
        let mut symbols = text.char_indices().map(|(at, c)| {
            let id = vocabulary.id(c.encode_utf8(&mut [0; 4])).unwrap_or(NO_TOKEN);
            Symbol::new(at as u32, c.len_utf8() as u32, id)
        });
        let mut symbols = symbols.by_ref().collect();
        merge(&mut symbols, |left, right| {
            let (start, len) = (left.start as usize, left.len as usize + right.len as usize);
            // Texts longer than any token are not looked up, because this would take quadratic time
            // for long symbols.
            let id = (len <= self.longest).then(|| vocabulary.id(&text[start..start + len]))??;
            Some(Join { priority: *self.priorities.get(id as usize)?, id })
        });
        for symbol in symbols {
            if symbol.id != NO_TOKEN {
                ids.push(symbol.id);
                continue;
            }
            for &byte in &text.as_bytes()[symbol.start as usize..][..symbol.len as usize] {
                let token = self.byte_ids[byte as usize].or(unknown);
                ids.push(token.ok_or(TokenizerError::NoTokenForByte { byte })?);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::priority;

    #[test]
    fn a_higher_score_has_a_lower_priority_number() {
        let scores = [f32::INFINITY, 3.5, 1e-30, 0.0, -1e-30, -2.0, -3836.0, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|pair| priority(pair[0]) < priority(pair[1])));
        assert_eq!(priority(-0.0), priority(0.0));
    }
}
