//! Drafts from the text itself: finds an earlier occurrence of its last tokens, and proposes the
//! tokens after it. This is prompt lookup decoding (Saxena, 2023).
//!
//! ```text
//! a b c d e a b c       the last three stood at the beginning: d e a b c may follow
//! ```
//!
//! The longest match is used; of equally long matches the last one, because recent text predicts
//! better. Each draft scans the text once from its end. That takes some 100 µs for 100,000 tokens,
//! which is little compared with a step that reads gigabytes.

use std::time::{Duration, Instant};

use super::{Drafter, Text};
use crate::Error;

/// Number of last tokens to search for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgramOptions {
    /// Min number of tokens in a match: a single token says little.
    pub min: usize,
    /// Max number of tokens in a match.
    pub max: usize,
}

impl Default for NgramOptions {
    fn default() -> NgramOptions {
        NgramOptions { min: 2, max: 8 }
    }
}

/// Drafter that uses the text itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ngram {
    options: NgramOptions,
}

impl Ngram {
    /// Creates a drafter for matches of these lengths.
    pub fn new(NgramOptions { min, max }: NgramOptions) -> Ngram {
        let min = min.max(1);
        Ngram { options: NgramOptions { min, max: max.max(min) } }
    }

    /// Returns the tokens after an earlier occurrence of the last tokens, at most `most`.
    fn guess<'t>(&self, tokens: &'t [u32], most: usize) -> &'t [u32] {
        let NgramOptions { min, max } = self.options;
        let (mut longest, mut at) = (min - 1, None);
        // End of an earlier occurrence, searched backwards; its continuation is the guess.
        for end in (1..tokens.len()).rev() {
            let backwards = tokens[..end].iter().rev().zip(tokens.iter().rev());
            let common = backwards.take(max).take_while(|(before, last)| before == last).count();
            if common > longest {
                (longest, at) = (common, Some(end));
                if common == max {
                    break;
                }
            }
        }
        at.map_or(&[], |at| &tokens[at..tokens.len().min(at.saturating_add(most))])
    }
}

impl Drafter for Ngram {
    fn name(&self) -> &'static str {
        "ngram"
    }

    fn draft(&mut self, texts: &mut [Text<'_>]) -> Result<Duration, Error> {
        let begin = Instant::now();
        for text in texts {
            let guess = self.guess(text.tokens, text.max_draft);
            text.draft.extend_from_slice(guess);
            // A text that repeats itself with a shorter period continues to repeat.
            while !guess.is_empty() && text.draft.len() < text.max_draft {
                let left = text.max_draft - text.draft.len();
                text.draft.extend_from_slice(&guess[..left.min(guess.len())]);
            }
        }
        Ok(begin.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_ir::random::Random;

    fn guess(min: usize, max: usize, tokens: &[u32], most: usize) -> Vec<u32> {
        let mut text = [Text { slot: 0, tokens, max_draft: most, draft: Vec::new() }];
        Ngram::new(NgramOptions { min, max }).draft(&mut text).unwrap();
        let [text] = text;
        text.draft
    }

    #[test]
    fn ngram_draft_repeats_the_earlier_continuation() {
        assert_eq!(guess(2, 4, &[1, 2, 3, 4, 5, 1, 2, 3], 2), [4, 5]);
        // The guess is the text up to its end, and then continues by repeating itself.
        assert_eq!(guess(2, 4, &[1, 2, 3, 4, 1, 2, 3], 6), [4, 1, 2, 3, 4, 1]);
        assert_eq!(guess(1, 4, &[7, 7], 3), [7, 7, 7]);
        assert!(guess(2, 4, &[1, 2, 3], 4).is_empty());
        assert!(guess(2, 4, &[1], 4).is_empty());
        assert!(guess(2, 4, &[1, 2, 1, 2], 0).is_empty());
    }

    #[test]
    fn ngram_draft_uses_longest_then_latest_match() {
        // The last occurrence of 2 3 is before 9, and that of 1 2 3 is before 4.
        assert_eq!(guess(1, 8, &[1, 2, 3, 4, 2, 3, 9, 1, 2, 3], 1), [4]);
        assert_eq!(guess(1, 2, &[1, 2, 3, 4, 2, 3, 9, 1, 2, 3], 1), [9]);
        assert_eq!(guess(2, 8, &[5, 2, 3, 4, 6, 2, 3, 9, 1, 2, 3], 1), [9]);
        // Shorter matches do not count.
        assert!(guess(3, 8, &[5, 2, 3, 4, 6, 2, 3, 9, 1, 2, 3], 1).is_empty());
    }

    #[test]
    fn ngram_drafts_match_brute_force_search() {
        let mut random = Random::new(7);
        for _ in 0..3000 {
            let tokens: Vec<u32> = (0..1 + random.index(40)).map(|_| random.index(4) as u32).collect();
            let (min, most) = (1 + random.index(3), 1 + random.index(5));
            let (max, n) = (min + random.index(4), tokens.len());
            let found = (min..=max.min(n)).rev().find_map(|length| {
                let last = &tokens[n - length..];
                (length..n).rev().find(|end| &tokens[end - length..*end] == last)
            });
            let followed: Vec<u32> =
                found.map_or(Vec::new(), |end| tokens[end..].iter().copied().cycle().take(most).collect());
            assert_eq!(guess(min, max, &tokens, most), followed, "{tokens:?}, {min} to {max}");
        }
    }
}
