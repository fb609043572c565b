//! Unigram tokenizer of PLaMo 2 and 3. Of all ways to split a text into tokens, it selects the one
//! with the highest sum of scores. A character without a token counts as a token with the score
//! -1,000, and becomes tokens of its bytes.
//!
//! ```text
//! best[end] = 0
//! // computed from the end to the beginning; of equal sums, the longest token is used
//! best[at]  = max over tokens that begin at `at` of score + best[at + length]
//! ```
//!
//! Scores are integers in units of 1/10,000, so that sums do not depend on the order of addition.

use super::TokenizerError;
use super::spec::{TokenType, TokenizerSpec, byte_token};
use super::vocabulary::Vocabulary;

/// Number of score units in 1.0.
const SCORE_UNITS: f64 = 1e4;
/// Cost of a character without a token, in score units.
const UNKNOWN: i64 = 10_000_000;
/// Minimum cost of tokens that are never selected, in score units.
const UNUSED_COST: i64 = 20_000_000;
/// Byte order mark, which may be at the beginning of a text but is not part of it.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Unigram tokenizer.
#[derive(Clone, Debug)]
pub struct Unigram {
    /// Tokens of text, sorted by text. A token comes before the longer tokens that begin with it.
    tokens: Vec<UnigramPiece>,
    /// Ids of the tokens `<0x00>` to `<0xFF>`; each stands for one byte.
    byte_ids: Vec<Option<u32>>,
}

#[derive(Clone, Debug)]
struct UnigramPiece {
    text: Box<str>,
    id: u32,
    /// Negated score, in score units.
    cost: i64,
}

/// Best way to split the text from a position on.
#[derive(Clone, Copy)]
struct BestStep {
    cost: i64,
    len: usize,
    id: Option<u32>,
}

impl Unigram {
    /// Returns the tokenizer of a spec, which must be valid. If the spec has no scores, all tokens
    /// have the score 0.
    pub fn new(spec: &TokenizerSpec, vocabulary: &Vocabulary) -> Unigram {
        let cost = |id: usize| {
            let score = f64::from(spec.scores.get(id).copied().unwrap_or(0.0));
            // Scores are limited to the range of i32, as in other programs.
            score.is_finite().then(|| i64::from(-((score * SCORE_UNITS).round() as i32).max(-i32::MAX)))
        };
        // Control tokens never come from text, because user text must not end a turn.
        let special = &spec.special;
        let ends = [special.bos, special.eos, special.eot, special.pad, special.unk];
        let is_text = |id: usize| {
            let id = id as u32;
            !ends.contains(&Some(id))
                && matches!(
                    vocabulary.token_type(id),
                    TokenType::Undefined | TokenType::Normal | TokenType::UserDefined
                )
        };
        let texts = spec.tokens.iter().enumerate().filter(|(id, text)| !text.is_empty() && is_text(*id));
        let mut tokens: Vec<UnigramPiece> = texts
            .filter_map(|(id, text)| {
                let cost = cost(id).filter(|cost| *cost < UNUSED_COST)?;
                Some(UnigramPiece { text: text.as_str().into(), id: id as u32, cost })
            })
            .collect();
        // If several tokens have the same text, the last is used.
        tokens.sort_by(|a, b| a.text.cmp(&b.text).then(b.id.cmp(&a.id)));
        tokens.dedup_by(|other, first| other.text == first.text);
        Unigram { tokens, byte_ids: (0..=255).map(|byte| vocabulary.id(&byte_token(byte))).collect() }
    }

    /// Appends the token ids of `text`, which must contain no special tokens.
    pub fn encode(&self, unknown: Option<u32>, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        let mut steps = vec![BestStep { cost: 0, len: 0, id: None }; text.len() + 1];
        for (at, character) in text.char_indices().rev() {
            let len = character.len_utf8();
            let mut best = BestStep { cost: UNKNOWN.saturating_add(steps[at + len].cost), len, id: None };
            self.begin(&text.as_bytes()[at..], |piece| {
                let cost = piece.cost.saturating_add(steps[at + piece.text.len()].cost);
                if cost <= best.cost {
                    best = BestStep { cost, len: piece.text.len(), id: Some(piece.id) };
                }
            });
            steps[at] = best;
        }
        let mut at = 0;
        while at < text.len() {
            let BestStep { len, id, .. } = steps[at];
            match id {
                Some(id) => ids.push(id),
                None => {
                    for &byte in &text.as_bytes()[at..at + len] {
                        let token = self.byte_ids[byte as usize].or(unknown);
                        ids.push(token.ok_or(TokenizerError::NoTokenForByte { byte })?);
                    }
                }
            }
            at += len;
        }
        Ok(())
    }

    /// Calls `found` with each token that is a prefix of `text`, the shortest first.
    fn begin(&self, text: &[u8], mut found: impl FnMut(&UnigramPiece)) {
        let mut left = &self.tokens[..];
        for (depth, &byte) in text.iter().enumerate() {
            // The remaining tokens begin with the same bytes as the text up to here. The first of
            // them may end here.
            let at = |piece: &UnigramPiece| piece.text.as_bytes().get(depth).copied();
            let from = left.partition_point(|piece| at(piece) < Some(byte));
            let to = left.partition_point(|piece| at(piece) <= Some(byte));
            left = &left[from..to];
            match left.first() {
                None => return,
                Some(piece) if piece.text.len() == depth + 1 => found(piece),
                Some(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::{ModelKind, SpecialIds, Tokenizer};

    /// Returns a tokenizer whose vocabulary has the tokens of all bytes, then these tokens.
    fn tokenizer(tokens: &[(&str, f32)]) -> Tokenizer {
        let bytes = (0..=255u8).map(|byte| (byte_token(byte), 0.0, TokenType::Byte));
        let texts = tokens.iter().map(|(text, score)| ((*text).to_owned(), *score, TokenType::Normal));
        let all: Vec<_> = bytes.chain(texts).collect();
        Tokenizer::new(&TokenizerSpec {
            model: ModelKind::Unigram,
            tokens: all.iter().map(|(text, ..)| text.clone()).collect(),
            scores: all.iter().map(|(_, score, _)| *score).collect(),
            types: all.iter().map(|(.., ty)| *ty).collect(),
            special: SpecialIds::default(),
            ..TokenizerSpec::default()
        })
        .unwrap()
    }

    #[test]
    fn unigram_maximises_the_sum_of_scores() {
        let of = tokenizer(&[
            ("a", -1.0),
            ("ab", -5.0),
            ("b", -1.0),
            ("abc", -2.5),
            ("c", -1.0),
            ("日本", -3.0),
            ("bc", -0.25),
        ]);
        let encode = |text| of.encode(text, false).unwrap();
        // The sum -1 - 0.25 is higher than -2.5, and than three times -1.
        assert_eq!(encode("abc"), [256, 262]);
        assert_eq!(encode("ab"), [256, 258]);
        assert_eq!(encode("日本a"), [261, 256]);
        assert_eq!(encode(""), [0u32; 0]);
        // A byte order mark at the beginning is ignored. Characters without a token become bytes,
        // even if they are part of a longer token.
        assert_eq!(encode("\u{feff}ab"), [256, 258]);
        assert_eq!(encode("日"), [0xe6, 0x97, 0xa5]);
        assert_eq!(encode("aéa"), [256, 0xc3, 0xa9, 256]);
        for text in ["abc", "日本日 aé🦀", "\n<0x41>"] {
            assert_eq!(of.decode(&encode(text)).unwrap(), text);
        }
    }

    #[test]
    fn unigram_ties_prefer_the_longest_first_token() {
        let of = tokenizer(&[("a", -1.0), ("aa", -2.0), ("aaa", -3.0), ("x", -3000.0), ("y", f32::NEG_INFINITY)]);
        assert_eq!(of.encode("aaaa", false).unwrap(), [258, 256]);
        // Differences smaller than a score unit are ignored.
        let of_parts = tokenizer(&[("a", -1.00001), ("aa", -2.0)]);
        assert_eq!(of_parts.encode("aa", false).unwrap(), [257]);
        // Tokens without a finite score, or with a score that is too low, are never selected.
        assert_eq!(of.encode("xy", false).unwrap(), [u32::from(b'x'), u32::from(b'y')]);
    }

    /// Tests that the prefix search gives the same result as trying each token at each position.
    #[test]
    fn unigram_prefix_search_matches_brute_force() {
        let texts = ["a", "b", "ab", "ba", "aba", "bab", "abab", "日", "日a", "a日"];
        let scores: Vec<(&str, f32)> =
            texts.iter().zip(0..).map(|(text, i)| (*text, -0.7 * (i * 7 % 5) as f32 - 0.3)).collect();
        let of = tokenizer(&scores);
        let mut state = 1u32;
        for _ in 0..200 {
            let text: String = (0..12)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    ["a", "b", "日", "a", "b", "é"][(state >> 16) as usize % 6]
                })
                .collect();
            let parts = |score: f32| (f64::from(score) * SCORE_UNITS).round() as i64;
            let mut best = vec![(0i64, Vec::new()); text.len() + 1];
            for (at, character) in text.char_indices().rev() {
                let bytes = text[at..at + character.len_utf8()].bytes().map(u32::from);
                let rest = &best[at + character.len_utf8()];
                let mut own = (rest.0 - UNKNOWN, bytes.chain(rest.1.iter().copied()).collect::<Vec<u32>>());
                let mut by_length: Vec<_> = scores.iter().zip(256u32..).collect();
                by_length.sort_by_key(|((token, _), _)| token.len());
                for ((token, score), id) in by_length {
                    if text[at..].starts_with(token) && parts(*score) + best[at + token.len()].0 >= own.0 {
                        let rest = &best[at + token.len()];
                        own = (parts(*score) + rest.0, [id].into_iter().chain(rest.1.iter().copied()).collect());
                    }
                }
                best[at] = own;
            }
            assert_eq!(of.encode(&text, false).unwrap(), best[0].1, "{text}");
        }
    }
}
