//! Search for special tokens in text. It finds the leftmost token, and the longest of the tokens
//! that begin there, like Hugging Face's tokenizers. For example, if `ab` and `bcd` are tokens,
//! `abcd` becomes `ab` and the text `cd`. In contrast, llama.cpp searches the whole text for the
//! longest token first, which gives `a` and `bcd`. No known vocabulary has special tokens that
//! overlap like this.
//!
//! The search uses an automaton of at most [`MAX_STATES`] states, and takes at most
//! [`MAX_SPECIAL_BYTES`] steps for each byte of text. Its memory is that of the result.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

/// Maximum length of a special token's text in bytes. The longest known text has 93: 31 times `▁`.
pub const MAX_SPECIAL_BYTES: usize = 256;
/// Maximum number of states of the automaton. Each distinct prefix of a special token's bytes is a
/// state. A speech model with 28,672 additional tokens has about 60,000.
pub const MAX_STATES: usize = 1 << 18;

/// Part of a text that was split at its special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment<'t> {
    /// Text without special tokens.
    Text(&'t str),
    /// Id of a special token.
    Token(u32),
}

/// Set of special tokens, as an automaton of their texts.
#[derive(Clone, Debug, Default)]
pub struct SpecialTokens {
    /// Automaton; `None` if the set is empty.
    automaton: Option<AhoCorasick>,
    /// Token id of each of the automaton's patterns.
    ids: Vec<u32>,
}

/// Returns the number of states that an automaton of these texts has, without its root.
pub fn states<'t>(texts: impl IntoIterator<Item = &'t str>) -> usize {
    let mut sorted: Vec<&[u8]> = texts.into_iter().map(str::as_bytes).collect();
    sorted.sort_unstable();
    let mut before: &[u8] = &[];
    let mut states = 0;
    for text in sorted {
        let shared = text.iter().zip(before).take_while(|(a, b)| a == b).count();
        states += text.len() - shared;
        before = text;
    }
    states
}

impl SpecialTokens {
    /// Returns the set of these texts and ids. If texts are equal, the one with the lowest id is
    /// used; empty texts match nothing. The texts must respect the limits above, which
    /// [`super::TokenizerSpec::validate`] checks. If the automaton cannot be built, nothing
    /// matches.
    pub fn new<'t>(tokens: impl IntoIterator<Item = (&'t str, u32)>) -> SpecialTokens {
        let mut tokens: Vec<_> = tokens.into_iter().filter(|(text, _)| !text.is_empty()).collect();
        tokens.sort_unstable();
        tokens.dedup_by(|later, earlier| later.0 == earlier.0);
        if tokens.is_empty() {
            return SpecialTokens::default();
        }
        // The size of this kind of automaton is always a small multiple of the number of states.
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(tokens.iter().map(|(text, _)| text));
        match automaton {
            Ok(automaton) => {
                SpecialTokens { automaton: Some(automaton), ids: tokens.into_iter().map(|(_, id)| id).collect() }
            }
            Err(error) => {
                tracing::warn!(%error, "special tokens are not looked for in text");
                SpecialTokens::default()
            }
        }
    }

    /// Splits `text` at its special tokens.
    pub fn partition<'t>(&self, text: &'t str) -> Vec<Fragment<'t>> {
        let mut fragments = Vec::new();
        let mut end = 0;
        for found in self.automaton.iter().flat_map(|automaton| automaton.find_iter(text)) {
            // Token texts are UTF-8, so a match begins and ends between characters.
            fragments.extend(text.get(end..found.start()).filter(|text| !text.is_empty()).map(Fragment::Text));
            fragments.extend(self.ids.get(found.pattern().as_usize()).map(|&id| Fragment::Token(id)));
            end = found.end();
        }
        fragments.extend(text.get(end..).filter(|text| !text.is_empty()).map(Fragment::Text));
        fragments
    }

    /// Returns each position in `text` at which a token begins, in order. Overlapping tokens are
    /// included.
    pub fn begins<'t>(&self, text: &'t str) -> impl Iterator<Item = usize> + use<'t, '_> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let found = self.automaton.as_ref()?.find(text.get(from..)?)?;
            let at = from + found.start();
            from = at + text[at..].chars().next().map_or(1, char::len_utf8);
            Some(at)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Fragment::{Text, Token};
    use super::*;

    fn tokens(texts: &'static [&str]) -> SpecialTokens {
        SpecialTokens::new(texts.iter().copied().zip(0..))
    }

    #[test]
    fn special_tokens_match_leftmost_then_longest() {
        let special = tokens(&["<s>", "ab", "bcd", "<s><s>", ""]);
        assert_eq!(special.partition("xabcdy"), [Text("x"), Token(1), Text("cdy")]);
        assert_eq!(special.partition("ababc"), [Token(1), Token(1), Text("c")]);
        assert_eq!(special.partition("<s><s><s>é"), [Token(3), Token(0), Text("é")]);
        assert_eq!(special.partition("plain"), [Text("plain")]);
        assert_eq!(special.partition(""), []);
        assert_eq!(SpecialTokens::default().partition("é"), [Text("é")]);
    }

    #[test]
    fn first_of_equal_special_tokens_wins() {
        assert_eq!(SpecialTokens::new([("a", 7), ("a", 3)]).partition("a"), [Token(3)]);
    }

    #[test]
    fn overlapping_special_token_prefixes_are_found() {
        let special = tokens(&["éé", "aba"]);
        assert_eq!(special.begins("éééxababa").collect::<Vec<_>>(), [0, 2, 7, 9]);
        assert_eq!(special.begins("éa").count(), 0);
    }

    #[test]
    fn shared_special_token_prefixes_are_stored_once() {
        assert_eq!(states(["<a>", "<b>", "<a>", ""]), 5);
    }

    /// Tests a text in which 255 tokens begin at nearly every byte. A list of all matches would
    /// need 6 GB.
    #[test]
    fn special_token_memory_does_not_grow_with_matches() {
        let long = "a".repeat(255);
        let special = SpecialTokens::new((1..=255).map(|n| (&long[..n], n as u32)));
        let text = "a".repeat(1 << 20);
        let fragments = special.partition(&text);
        assert_eq!((fragments.len(), fragments[0]), ((1 << 20) / 255 + 1, Token(255)));
    }
}
