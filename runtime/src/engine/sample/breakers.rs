//! Sequence breakers of the DRY sampler: token sequences that end a repetition. A breaker consists
//! of a first token (the head) and the tokens after it (the tail).

/// A sequence breaker of the DRY sampler.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Breaker {
    /// First token.
    pub head: u32,
    /// Tokens of the breaker after the first one.
    pub tail: Vec<u32>,
}

/// A set of sequence breakers, sorted and without duplicates. All breakers with the same head are
/// found by binary search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breakers {
    all: Vec<Breaker>,
    longest_tail: usize,
}

impl Breakers {
    /// Returns the set of the given breakers.
    pub fn new(mut all: Vec<Breaker>) -> Breakers {
        all.sort_unstable();
        all.dedup();
        let longest_tail = all.iter().map(|breaker| breaker.tail.len()).max().unwrap_or(0);
        Breakers { all, longest_tail }
    }

    /// Returns the number of breakers.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn longest_tail(&self) -> usize {
        self.longest_tail
    }

    fn with_head(&self, head: u32) -> &[Breaker] {
        let begin = self.all.partition_point(|breaker| breaker.head < head);
        let rest = &self.all[begin..];
        &rest[..rest.partition_point(|breaker| breaker.head == head)]
    }

    /// Returns whether a token alone, without a tail, is a breaker.
    pub(super) fn is_alone(&self, token: u32) -> bool {
        // Breakers with the same head are sorted by their tails, so an empty tail comes first.
        self.with_head(token).first().is_some_and(|breaker| breaker.tail.is_empty())
    }

    /// Returns the length of the tail of the longest breaker at the beginning of `tokens`. Returns
    /// `None` if `tokens` begin with no breaker.
    pub(super) fn tail_of(&self, tokens: &[u32]) -> Option<usize> {
        let (head, rest) = tokens.split_first()?;
        let own = self.with_head(*head);
        let max = if own.is_empty() { return None } else { self.longest_tail.min(rest.len()) };
        (0..=max).rev().find(|length| own.binary_search_by(|breaker| breaker.tail[..].cmp(&rest[..*length])).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn breaker_tails_match_brute_force_search(
            all in prop::collection::vec((0u32..3, prop::collection::vec(0u32..3, 0..4)), 0..12),
            tokens in prop::collection::vec(0u32..3, 0..6),
        ) {
            let all: Vec<_> = all.into_iter().map(|(head, tail)| Breaker { head, tail }).collect();
            let breakers = Breakers::new(all.clone());
            let is = |breaker: &&Breaker| tokens.first() == Some(&breaker.head) && tokens[1..].starts_with(&breaker.tail);
            let lengths = all.iter().filter(is).map(|breaker| breaker.tail.len());
            prop_assert_eq!(breakers.tail_of(&tokens), lengths.max());
            for token in 0..3 {
                prop_assert_eq!(breakers.is_alone(token), all.contains(&Breaker { head: token, tail: vec![] }));
            }
        }
    }
}
