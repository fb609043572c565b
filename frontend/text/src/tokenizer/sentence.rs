//! SentencePiece's unigram model, as XLM-R is tokenised: characters become those of a table, spaces `▁`, and of all ways to write that in tokens the one is taken whose
//! scores add up to the most.
//!
//! ```text
//! "Ａ  b"  ->  "▁A▁b"                                           by the table, with one space before and none of a run but the first
//! best[0]      = 0
//! best[at + n] = max of best[at] + score of a token of n bytes that begins at `at`      from the beginning to the end; of equals the first
//! ```
//!
//! A character that is no token itself costs 10 more than the worst token, and a run of such is one unknown token.

use super::TokenizerError;
use super::charsmap::Charsmap;
use super::spec::{TokenType, TokenizerSpec};
use super::vocabulary::{SPM_SPACE, Vocabulary};

/// What an unknown character costs beyond the token of the lowest score.
const UNKNOWN: f64 = 10.0;

/// The model.
#[derive(Clone, Debug)]
pub struct Sentence {
    charsmap: Charsmap,
    /// Whether text begins with a space that is not in it.
    prefix: bool,
    /// Whether runs of spaces are one, and none stand at the ends.
    squeezes: bool,
    /// Tokens of text, by their texts: of those that begin equally the shortest first.
    tokens: Vec<(Box<str>, u32, f64)>,
    /// The score of an unknown character.
    unknown: f64,
}

/// The best way to a place.
#[derive(Clone, Copy)]
struct Best {
    score: f64,
    /// Where its last token begins, and which that is.
    from: Option<(usize, Option<u32>)>,
}

impl Sentence {
    /// From a spec that is valid.
    pub fn new(spec: &TokenizerSpec, vocabulary: &Vocabulary) -> Sentence {
        let score = |id: usize| f64::from(spec.scores.get(id).copied().unwrap_or(0.0));
        // What a user writes must not become a token of control, and what fills the table is none of the model's.
        let is_text = |id: u32| matches!(vocabulary.token_type(id), TokenType::Normal | TokenType::UserDefined);
        let texts = spec.tokens.iter().enumerate().filter(|(id, text)| !text.is_empty() && is_text(*id as u32));
        let mut tokens: Vec<_> = texts.map(|(id, text)| (text.as_str().into(), id as u32, score(id))).collect();
        // Of tokens with one text the last counts.
        tokens.sort_by(|a: &(Box<str>, u32, f64), b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        tokens.dedup_by(|other, first| other.0 == first.0);
        let lowest = tokens.iter().map(|(.., score)| *score).fold(f64::INFINITY, f64::min);
        Sentence {
            charsmap: Charsmap::read(&spec.charsmap).unwrap_or_default(),
            prefix: spec.add_space_prefix,
            squeezes: spec.squeezes_spaces,
            tokens,
            unknown: if lowest.is_finite() { lowest - UNKNOWN } else { -UNKNOWN },
        }
    }

    /// Appends the ids of `text`, which holds no special tokens.
    ///
    /// # Errors
    /// [`TokenizerError::NoTokenForByte`] where a character is no token and there is none for unknown ones.
    pub fn encode(&self, unknown: Option<u32>, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let text = self.spelled(text);
        let mut best = vec![Best { score: 0.0, from: None }; text.len() + 1];
        for (at, character) in text.char_indices() {
            let (here, own) = (best[at].score, character.len_utf8());
            let mut is_token = false;
            let mut reach = |len: usize, score: f64, id: Option<u32>| {
                let to = &mut best[at + len];
                if to.from.is_none() || here + score > to.score {
                    *to = Best { score: here + score, from: Some((at, id)) };
                }
            };
            self.begin(&text.as_bytes()[at..], |(token, id, score)| {
                reach(token.len(), *score, Some(*id));
                is_token |= token.len() == own;
            });
            if !is_token {
                reach(own, self.unknown, None);
            }
        }
        let (mut reversed, mut at) = (Vec::new(), text.len());
        while let Some((from, id)) = best[at].from {
            let byte = text.as_bytes()[from];
            match id.map_or_else(|| unknown.ok_or(TokenizerError::NoTokenForByte { byte }), Ok)? {
                // A run of unknown characters is one.
                id if reversed.last() == Some(&id) && Some(id) == unknown => {}
                id => reversed.push(id),
            }
            at = from;
        }
        ids.extend(reversed.into_iter().rev());
        Ok(())
    }

    /// A text as tokens spell it.
    fn spelled(&self, text: &str) -> String {
        let text = self.charsmap.apply(text);
        let text = if self.squeezes { text.trim_matches(' ') } else { &text };
        let mut out = String::with_capacity(text.len() + SPM_SPACE.len_utf8());
        if self.prefix && !text.is_empty() {
            out.push(SPM_SPACE);
        }
        for c in text.chars() {
            match c {
                ' ' if self.squeezes && out.ends_with(SPM_SPACE) => {}
                ' ' => out.push(SPM_SPACE),
                c => out.push(c),
            }
        }
        out
    }

    /// Every token that `text` begins with, the shortest first.
    fn begin(&self, text: &[u8], mut found: impl FnMut(&(Box<str>, u32, f64))) {
        let mut left = &self.tokens[..];
        for (depth, &byte) in text.iter().enumerate() {
            // All that are left have the bytes before in common; one that ends here is the first.
            let at = |token: &(Box<str>, u32, f64)| token.0.as_bytes().get(depth).copied();
            let from = left.partition_point(|token| at(token) < Some(byte));
            let to = left.partition_point(|token| at(token) <= Some(byte));
            left = &left[from..to];
            match left.first() {
                None => return,
                Some(token) if token.0.len() == depth + 1 => found(token),
                Some(_) => {}
            }
        }
    }
}
