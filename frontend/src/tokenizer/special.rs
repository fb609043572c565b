//! Finding special tokens in text: the longest token first wherever it stands, the leftmost among equals, as llama.cpp
//! does. With tokens `ab` and `bcd`, the text `abcd` is `a`, `bcd`.

/// Part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment<'t> {
    /// To be tokenized.
    Text(&'t str),
    /// A special token.
    Token(u32),
}

/// Token texts, sorted, to be walked as a trie.
#[derive(Clone, Debug, Default)]
pub struct SpecialTokens {
    sorted: Vec<(Box<str>, u32)>,
}

impl SpecialTokens {
    /// From texts and ids. Empty texts match nothing.
    pub fn new(tokens: impl IntoIterator<Item = (Box<str>, u32)>) -> SpecialTokens {
        let mut sorted: Vec<_> = tokens.into_iter().filter(|(text, _)| !text.is_empty()).collect();
        sorted.sort();
        sorted.dedup_by(|later, earlier| later.0 == earlier.0);
        SpecialTokens { sorted }
    }

    /// Cuts `text` at its special tokens.
    pub fn partition<'t>(&self, text: &'t str) -> Vec<Fragment<'t>> {
        let bytes = text.as_bytes();
        let mut matches = Vec::new();
        for start in 0..bytes.len() {
            self.matches_at(bytes, start, &mut matches);
        }
        matches.sort_unstable_by_key(|&(start, len, id)| (std::cmp::Reverse(len), id, start));
        // What is claimed already is at least as long, so an overlap covers the first or the last byte.
        let mut claimed = vec![false; if matches.is_empty() { 0 } else { bytes.len() }];
        matches.retain(|&(start, len, _)| {
            let free = !claimed[start] && !claimed[start + len - 1];
            if free {
                claimed[start..start + len].fill(true);
            }
            free
        });
        matches.sort_unstable();

        let mut fragments = Vec::with_capacity(2 * matches.len() + 1);
        let mut end = 0;
        for (start, len, id) in matches {
            if end < start {
                fragments.push(Fragment::Text(&text[end..start]));
            }
            fragments.push(Fragment::Token(id));
            end = start + len;
        }
        if end < text.len() {
            fragments.push(Fragment::Text(&text[end..]));
        }
        fragments
    }

    /// Appends `(start, length, id)` of every token that begins at `start`.
    fn matches_at(&self, text: &[u8], start: usize, matches: &mut Vec<(usize, usize, u32)>) {
        let mut candidates = &self.sorted[..];
        for (depth, byte) in text[start..].iter().enumerate() {
            // All candidates share `depth` bytes with the text; the one that ends here, if any, sorts first.
            let lower = candidates.partition_point(|(token, _)| token.as_bytes().get(depth) < Some(byte));
            let upper = candidates.partition_point(|(token, _)| token.as_bytes().get(depth) <= Some(byte));
            candidates = &candidates[lower..upper];
            match candidates.first() {
                None => return,
                Some((token, id)) if token.len() == depth + 1 => matches.push((start, depth + 1, *id)),
                Some(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Fragment::{Text, Token};
    use super::*;

    fn tokens(texts: &[&str]) -> SpecialTokens {
        SpecialTokens::new(texts.iter().zip(0..).map(|(&text, id)| (text.into(), id)))
    }

    #[test]
    fn longest_first_then_leftmost() {
        let special = tokens(&["<s>", "ab", "bcd", "<s><s>", ""]);
        assert_eq!(special.partition("xabcdy"), [Text("xa"), Token(2), Text("y")]);
        assert_eq!(special.partition("ababc"), [Token(1), Token(1), Text("c")]);
        assert_eq!(special.partition("<s><s><s>é"), [Token(3), Token(0), Text("é")]);
        assert_eq!(special.partition("plain"), [Text("plain")]);
        assert_eq!(special.partition(""), []);
    }
}
