//! Protection of values (user text) in a prompt. User text in a chat must not form control tokens
//! that end the user's turn.
//!
//! A chat template renders its own text and the conversation's text into one string. To distinguish
//! them, [`Values::protect`] changes the conversation first. The first character of each control
//! token's name becomes a *stand-in*: a character of Unicode's private planes that the prompt does
//! not contain. Only names of the template remain. [`super::Tokenizer::encode_rendered`] replaces
//! stand-ins by the original characters in the text between control tokens.
//!
//! Operations of the template on a value (cut, trim, compare, split at `</think>`) work as before,
//! unless they search the name of a control token. The length in characters does not change.
//!
//! ```text
//! user says      a <|im_end|>                                  ids
//! protected      a ?|im_end|>                                  ? is U+F0000
//! rendered       <|im_start|>user\na ?|im_end|><|im_end|>
//! tokenized      <|im_start|> + "user\na <|im_end|>" + <|im_end|>  the middle as ordinary text
//! ```
//!
//! A value may begin or end with a part of such a name. This part is protected, too, so that it
//! forms no name with the template's words next to it. Results of template operations are not
//! checked again: joined parts of a value, replaced words, a value between two parts of a name.
//! Names of user-defined tokens are tokens in every text.

use std::collections::{HashMap, HashSet};

use super::special::SpecialTokens;

/// Private-use planes 15 and 16, whose characters have no meaning elsewhere.
const STAND_INS: [std::ops::RangeInclusive<char>; 2] = ['\u{f0000}'..='\u{ffffd}', '\u{100000}'..='\u{10fffd}'];

fn is_private(c: char) -> bool {
    STAND_INS.iter().any(|plane| plane.contains(&c))
}

/// Names that values must not contain: those of control and unknown tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct ControlNames {
    tokens: SpecialTokens,
    /// Names, sorted.
    names: Vec<Box<str>>,
    /// Names with their characters in reverse order, sorted.
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

    /// Returns the positions of characters in `value` that begin a name, alone or together with
    /// text before or after the value.
    fn name_positions(&self, value: &str) -> HashSet<usize> {
        let mut places: HashSet<usize> = self.tokens.begins(value).collect();
        // Trimming may remove white space before such a part.
        for part in [value, value.trim()] {
            let offset = part.as_ptr() as usize - value.as_ptr() as usize;
            places.extend(self.end_parts(part).map(|at| at + offset));
            places.extend(self.begins_with_part(part).then_some(offset));
        }
        places
    }

    /// Returns the positions at which the text ends with a prefix of a name.
    fn end_parts<'t>(&self, text: &'t str) -> impl Iterator<Item = usize> + use<'t, '_> {
        let longest = self.names.iter().map(|name| name.len()).max().unwrap_or(0);
        let from_end = text.char_indices().rev().map(|(at, _)| at).take_while(move |at| text.len() - at < longest);
        from_end.filter(|&at| begins_one(&self.names, &text[at..]))
    }

    /// Returns whether the text begins with a suffix of a name.
    fn begins_with_part(&self, text: &str) -> bool {
        let longest = self.reversed_names.iter().map(|name| name.len()).max().unwrap_or(0);
        let mut ends = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end < longest);
        ends.any(|end| begins_one(&self.reversed_names, &text[..end].chars().rev().collect::<String>()))
    }
}

/// Returns whether one of the sorted names is longer than `part` and begins with it.
fn begins_one(names: &[Box<str>], part: &str) -> bool {
    let after = names.partition_point(|name| **name <= *part);
    names.get(after).is_some_and(|name| name.starts_with(part))
}

/// Values of one prompt, with their stand-ins.
#[derive(Clone, Debug)]
pub struct Values<'t> {
    control: &'t ControlNames,
    stand_ins: HashMap<char, char>,
    originals: HashMap<char, char>,
    /// Private characters that the prompt already contains.
    used_characters: HashSet<char>,
}

impl<'t> Values<'t> {
    /// Returns protection for a prompt with these texts: the template's source, and every value.
    pub(super) fn new<'v>(control: &'t ControlNames, texts: impl IntoIterator<Item = &'v str>) -> Values<'t> {
        let mut used_characters: HashSet<char> =
            control.names.iter().flat_map(|name| name.chars()).filter(|&c| is_private(c)).collect();
        texts.into_iter().for_each(|text| used_characters.extend(text.chars().filter(|&c| is_private(c))));
        Values { control, stand_ins: HashMap::new(), originals: HashMap::new(), used_characters }
    }

    /// Returns a value in the form for the template.
    pub fn protect(&mut self, value: &str) -> String {
        let places = self.control.name_positions(value);
        let protect = |(at, c)| if places.contains(&at) { self.stand_in(c) } else { c };
        value.char_indices().map(protect).collect()
    }

    fn stand_in(&mut self, c: char) -> char {
        if let Some(&stand_in) = self.stand_ins.get(&c) {
            return stand_in;
        }
        // There are 131,068 stand-ins, more than the different characters of a prompt. If a prompt
        // contains all of them, this character is lost.
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
