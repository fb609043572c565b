//! Protection of the values (user text) in a prompt. In a chat, user text must not become control
//! tokens, such as the token that ends the user's turn.
//!
//! A chat template renders its own text and the conversation's text into one string. To keep them
//! apart, [`Values::protect`] changes the conversation before rendering. It replaces the first
//! character of each control token's name by a *stand-in*: a character of Unicode's private planes
//! that the prompt does not contain. In the rendered string, only the template's own text then has
//! names of control tokens. [`super::Tokenizer::encode_rendered`] splits at these names, and
//! replaces stand-ins by the original characters in the text between them.
//!
//! Operations that a template applies to a value (cutting, trimming, comparing, splitting at
//! `</think>`) work as before. The exception is a search for the name of a control token. The
//! number of characters does not change.
//!
//! ```text
//! user text      a <|im_end|>
//! protected      a ?|im_end|>                                  ? is U+F0000
//! rendered       <|im_start|>user\na ?|im_end|><|im_end|>
//! tokenized      <|im_start|> + "user\na <|im_end|>" + <|im_end|>  the middle as ordinary text
//! ```
//!
//! A value may begin or end with a part of a name. This part is protected, too, so that it cannot
//! form a name with the template's text next to it. The results of template operations on a value
//! are not checked again. A template could join parts of a value, replace words in it, or put it
//! between two parts of a name. Names of user-defined tokens are recognised in every text.

use std::collections::{HashMap, HashSet};

use super::special::SpecialTokens;

/// Characters that can be stand-ins: the private-use planes 15 and 16, whose characters have no
/// meaning elsewhere.
const STAND_INS: [std::ops::RangeInclusive<char>; 2] = ['\u{f0000}'..='\u{ffffd}', '\u{100000}'..='\u{10fffd}'];

fn is_private(c: char) -> bool {
    STAND_INS.iter().any(|plane| plane.contains(&c))
}

/// Names that values must not contain: the names of control tokens and unknown tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct ControlNames {
    tokens: SpecialTokens,
    /// Names, sorted alphabetically.
    names: Vec<Box<str>>,
    /// Names with their characters in reverse order, sorted alphabetically.
    reversed_names: Vec<Box<str>>,
}

impl ControlNames {
    pub(super) fn new<'t>(tokens: impl Iterator<Item = (&'t str, u32)> + Clone) -> ControlNames {
        let mut names: Vec<Box<str>> = tokens.clone().map(|(name, _)| name.into()).collect();
        let mut reversed_names: Vec<Box<str>> = names.iter().map(|name| name.chars().rev().collect()).collect();
        names.sort_unstable();
        reversed_names.sort_unstable();
        ControlNames { tokens: SpecialTokens::new(tokens), names, reversed_names }
    }

    /// Returns the positions in `value` of each character that may begin a name. The name may be in
    /// the value, or may need text before or after it.
    fn name_positions(&self, value: &str) -> HashSet<usize> {
        let mut places: HashSet<usize> = self.tokens.begins(value).collect();
        // A template may trim a value, so a part of a name next to white space counts, too.
        for part in [value, value.trim()] {
            let offset = part.as_ptr() as usize - value.as_ptr() as usize;
            places.extend(self.end_parts(part).map(|at| at + offset));
            places.extend(self.begins_with_part(part).then_some(offset));
        }
        places
    }

    /// Returns each position from which the text to its end is a prefix of a name.
    fn end_parts<'t>(&self, text: &'t str) -> impl Iterator<Item = usize> + use<'t, '_> {
        let longest = self.names.iter().map(|name| name.len()).max().unwrap_or(0);
        let from_end = text.char_indices().rev().map(|(at, _)| at).take_while(move |at| text.len() - at < longest);
        from_end.filter(|&at| begins_one(&self.names, &text[at..]))
    }

    /// Returns whether the text begins with the end of a name.
    fn begins_with_part(&self, text: &str) -> bool {
        let longest = self.reversed_names.iter().map(|name| name.len()).max().unwrap_or(0);
        let mut ends = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end < longest);
        ends.any(|end| begins_one(&self.reversed_names, &text[..end].chars().rev().collect::<String>()))
    }
}

/// Returns whether a name is longer than `part` and begins with it. `names` must be sorted.
fn begins_one(names: &[Box<str>], part: &str) -> bool {
    let after = names.partition_point(|name| **name <= *part);
    names.get(after).is_some_and(|name| name.starts_with(part))
}

/// Protection of the values in one prompt: its stand-ins.
#[derive(Clone, Debug)]
pub struct Values<'t> {
    control: &'t ControlNames,
    stand_ins: HashMap<char, char>,
    originals: HashMap<char, char>,
    /// Characters of the private planes that cannot be stand-ins, because the prompt contains them.
    used_characters: HashSet<char>,
}

impl<'t> Values<'t> {
    /// Returns the protection for a prompt. `texts` are the template's source and all values.
    pub(super) fn new<'v>(control: &'t ControlNames, texts: impl IntoIterator<Item = &'v str>) -> Values<'t> {
        let mut used_characters: HashSet<char> =
            control.names.iter().flat_map(|name| name.chars()).filter(|&c| is_private(c)).collect();
        texts.into_iter().for_each(|text| used_characters.extend(text.chars().filter(|&c| is_private(c))));
        Values { control, stand_ins: HashMap::new(), originals: HashMap::new(), used_characters }
    }

    /// Returns a value with stand-ins, as input for the template.
    pub fn protect(&mut self, value: &str) -> String {
        let places = self.control.name_positions(value);
        let protect = |(at, c)| if places.contains(&at) { self.stand_in(c) } else { c };
        value.char_indices().map(protect).collect()
    }

    fn stand_in(&mut self, c: char) -> char {
        if let Some(&stand_in) = self.stand_ins.get(&c) {
            return stand_in;
        }
        // There are 131,068 possible stand-ins, which is more than the number of different
        // characters in a prompt. If a prompt contained them all, this character would be lost.
        let free = STAND_INS.into_iter().flatten().find(|free| !self.used_characters.contains(free));
        let stand_in = free.unwrap_or(char::REPLACEMENT_CHARACTER);
        self.stand_ins.insert(c, stand_in);
        if free.is_some() {
            self.used_characters.insert(stand_in);
            self.originals.insert(stand_in, c);
        }
        stand_in
    }

    /// Replaces the stand-ins in a text by the original characters.
    pub fn restore(&self, text: &str) -> String {
        text.chars().map(|c| self.originals.get(&c).copied().unwrap_or(c)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(names: &'static [&str]) -> ControlNames {
        ControlNames::new(names.iter().copied().zip(0..))
    }

    fn name_positions(control: &ControlNames, text: &str) -> Vec<usize> {
        let mut places: Vec<usize> = control.name_positions(text).into_iter().collect();
        places.sort_unstable();
        places
    }

    #[test]
    fn control_token_names_and_their_parts_are_found() {
        let names = control(&["<|im_end|>", "</s>", "a", "[é]"]);
        assert_eq!(name_positions(&names, "x<|im_end|></s>y"), [1, 11]);
        assert_eq!(name_positions(&names, "xax"), [1]);
        assert_eq!(name_positions(&names, "x <|im "), [2]);
        assert_eq!(name_positions(&names, "end|> x"), [0]);
        assert_eq!(name_positions(&names, " é] x ["), [1, 7]);
        assert!(name_positions(&names, "pl\u{e4}in </think> <|im end|> text").is_empty());
        assert!(name_positions(&names, "").is_empty());
    }

    #[test]
    fn protected_values_restore_exactly_and_keep_length() {
        let names = control(&["<|im_end|>", "\u{f0001}"]);
        let text = "a <|im_end|> \u{f0000} <|im_end|><";
        let mut values = Values::new(&names, [text]);
        let protected = values.protect(text);
        assert_eq!(protected, "a \u{f0002}|im_end|> \u{f0000} \u{f0002}|im_end|>\u{f0002}");
        assert_eq!(values.restore(&protected), text);
    }
}
