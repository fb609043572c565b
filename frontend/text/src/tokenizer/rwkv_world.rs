//! Tokenizer of RWKV's World vocabulary. At each position of a text, it takes the longest token.
//! Tokens are byte strings, which files write like Python's `repr`.
//!
//! ```text
//! tokens  "a", "ab", "b", "\xe4"        text "abba\u{4e00}"  ->  "ab" "b" "a" "\xe4" ...
//! ```

use super::TokenizerError;
use super::spec::{TokenType, TokenizerSpec};
use super::vocabulary::Vocabulary;

/// Tokenizer that takes the longest token at each position.
#[derive(Clone, Debug)]
pub struct Longest {
    /// Tokens of text, sorted by their bytes; a token comes before the longer tokens that begin
    /// with it. If several tokens have the same bytes, the last is kept.
    tokens: Vec<(Box<[u8]>, u32)>,
    /// Index of the first token for each first byte. The last element is the number of tokens.
    by_first: Vec<usize>,
}

impl Longest {
    /// Returns the tokenizer of a spec, which must be valid.
    pub fn new(spec: &TokenizerSpec, vocabulary: &Vocabulary) -> Longest {
        // Control tokens are excluded, because user text must not end a turn. Padding of the
        // vocabulary is excluded, too.
        let is_text = |id: &u32| {
            matches!(
                vocabulary.token_type(*id),
                TokenType::Undefined | TokenType::Normal | TokenType::UserDefined | TokenType::Byte
            )
        };
        let texts = (0..spec.tokens.len() as u32).filter(is_text);
        let mut tokens: Vec<(Box<[u8]>, u32)> = texts
            .filter_map(|id| Some((vocabulary.bytes(id).ok().filter(|bytes| !bytes.is_empty())?.into(), id)))
            .collect();
        tokens.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        tokens.dedup_by(|other, first| other.0 == first.0);
        let by_first = (0..=256).map(|byte| tokens.partition_point(|(bytes, _)| u32::from(bytes[0]) < byte)).collect();
        Longest { tokens, by_first }
    }

    /// Appends the token ids of `text`. `unknown` is the token for bytes that no token covers.
    pub fn encode(&self, unknown: Option<u32>, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let mut left = text.as_bytes();
        while let Some(&byte) = left.first() {
            let (id, len) = match self.longest(left) {
                Some(found) => found,
                None => (unknown.ok_or(TokenizerError::NoTokenForByte { byte })?, 1),
            };
            ids.push(id);
            left = &left[len..];
        }
        Ok(())
    }

    /// Returns the longest token that is a prefix of `text`, and its length.
    fn longest(&self, text: &[u8]) -> Option<(u32, usize)> {
        let first = usize::from(*text.first()?);
        // These tokens begin with the first bytes of the text, the shortest first.
        let mut tokens = &self.tokens[self.by_first[first]..self.by_first[first + 1]];
        let mut longest = None;
        for len in 1.. {
            let Some((shortest, id)) = tokens.first() else { break };
            if shortest.len() == len {
                longest = Some((*id, len));
                tokens = &tokens[1..];
            }
            let Some(&next) = text.get(len) else { break };
            // From here on, all tokens are longer than `len` bytes.
            let from = tokens.partition_point(|(bytes, _)| bytes[len] < next);
            let to = tokens.partition_point(|(bytes, _)| bytes[len] <= next);
            tokens = &tokens[from..to];
        }
        longest
    }
}
