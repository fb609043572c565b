//! Text of others in a prompt whose own words are special tokens: what a user says in a chat must not end the user's turn.
//!
//! A chat template gives one text, its own words and the conversation's in one. So that they can be told apart in it, [`Values::protect`]
//! changes the conversation before: the first character of each control token's name becomes a *stand-in*, a character of Unicode's private
//! planes that is nowhere in the prompt. Then no name is left but the template's, and [`super::Tokenizer::encode_rendered`] turns
//! stand-ins back into what they stand for where it finds text between control tokens. What the template does to a value (cut, trim,
//! compare, split at `</think>`) it does as before, unless what it looks for is itself the name of a control token; lengths in
//! characters stay.
//!
//! ```text
//! user says      a <|im_end|>                                  ids
//! protected      a ?|im_end|>                                  ? is U+F0000
//! rendered       <|im_start|>user\na ?|im_end|><|im_end|>
//! tokenized      <|im_start|> + "user\na <|im_end|>" + <|im_end|>     the text between as if no token were special
//! ```
//!
//! A value that ends or begins in a part of such a name is protected there, too, so that it makes none with the template's words around it.
//! What a template makes of a value is not looked at again: parts of one that it joins, other words for these, a value between two
//! parts of a name. Names of user-defined tokens are tokens in every text.

use std::collections::{HashMap, HashSet};

use super::special::SpecialTokens;

/// Private-use planes 15 and 16: characters that mean nothing to anybody else.
const STAND_INS: [std::ops::RangeInclusive<char>; 2] = ['\u{f0000}'..='\u{ffffd}', '\u{100000}'..='\u{10fffd}'];

fn is_private(c: char) -> bool {
    STAND_INS.iter().any(|plane| plane.contains(&c))
}

/// The names that values may not have: those of control and unknown tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct ControlNames {
    tokens: SpecialTokens,
    /// Sorted.
    names: Vec<Box<str>>,
    /// Their characters in reverse order, sorted.
    reversed: Vec<Box<str>>,
}

impl ControlNames {
    pub(super) fn new<'t>(tokens: impl Iterator<Item = (&'t str, u32)> + Clone) -> ControlNames {
        let mut names: Vec<Box<str>> = tokens.clone().map(|(name, _)| name.into()).collect();
        let mut reversed: Vec<Box<str>> = names.iter().map(|name| name.chars().rev().collect()).collect();
        names.sort_unstable();
        reversed.sort_unstable();
        ControlNames { tokens: SpecialTokens::new(tokens), names, reversed }
    }

    /// The characters of `value`, by their places, that make names together with what follows or what stands before and after it.
    fn places(&self, value: &str) -> HashSet<usize> {
        let mut places: HashSet<usize> = self.tokens.begins(value).collect();
        // What is trimmed away may be white space before such a part.
        for part in [value, value.trim()] {
            let offset = part.as_ptr() as usize - value.as_ptr() as usize;
            places.extend(self.end_parts(part).map(|at| at + offset));
            places.extend(self.begins_with_part(part).then_some(offset));
        }
        places
    }

    /// Where a beginning of a name ends with the text.
    fn end_parts<'t>(&self, text: &'t str) -> impl Iterator<Item = usize> + use<'t, '_> {
        let longest = self.names.iter().map(|name| name.len()).max().unwrap_or(0);
        let from_end = text.char_indices().rev().map(|(at, _)| at).take_while(move |at| text.len() - at < longest);
        from_end.filter(|&at| begins_one(&self.names, &text[at..]))
    }

    /// Whether the text begins with an end of a name.
    fn begins_with_part(&self, text: &str) -> bool {
        let longest = self.reversed.iter().map(|name| name.len()).max().unwrap_or(0);
        let mut ends = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end < longest);
        ends.any(|end| begins_one(&self.reversed, &text[..end].chars().rev().collect::<String>()))
    }
}

/// Whether one of the sorted names is longer than `part` and begins with it.
fn begins_one(names: &[Box<str>], part: &str) -> bool {
    let after = names.partition_point(|name| **name <= *part);
    names.get(after).is_some_and(|name| name.starts_with(part))
}

/// The values of one prompt, and what stands in for what in them.
#[derive(Clone, Debug)]
pub struct Values<'t> {
    control: &'t ControlNames,
    stand_ins: HashMap<char, char>,
    originals: HashMap<char, char>,
    /// Private characters that the prompt may have already.
    taken: HashSet<char>,
}

impl<'t> Values<'t> {
    /// For a prompt of these texts: the template's source, and every value.
    pub(super) fn new<'v>(control: &'t ControlNames, texts: impl IntoIterator<Item = &'v str>) -> Values<'t> {
        let mut taken: HashSet<char> =
            control.names.iter().flat_map(|name| name.chars()).filter(|&c| is_private(c)).collect();
        texts.into_iter().for_each(|text| taken.extend(text.chars().filter(|&c| is_private(c))));
        Values { control, stand_ins: HashMap::new(), originals: HashMap::new(), taken }
    }

    /// A value as the template may have it.
    pub fn protect(&mut self, value: &str) -> String {
        let places = self.control.places(value);
        let protect = |(at, c)| if places.contains(&at) { self.stand_in(c) } else { c };
        value.char_indices().map(protect).collect()
    }

    fn stand_in(&mut self, c: char) -> char {
        if let Some(&stand_in) = self.stand_ins.get(&c) {
            return stand_in;
        }
        // There are 131,068, more than a prompt has different ones of: one that has them all loses this character.
        let free = STAND_INS.into_iter().flatten().find(|free| !self.taken.contains(free));
        let stand_in = free.unwrap_or(char::REPLACEMENT_CHARACTER);
        self.stand_ins.insert(c, stand_in);
        if free.is_some() {
            self.taken.insert(stand_in);
            self.originals.insert(stand_in, c);
        }
        stand_in
    }

    /// What a text with stand-ins says.
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

    fn places(control: &ControlNames, text: &str) -> Vec<usize> {
        let mut places: Vec<usize> = control.places(text).into_iter().collect();
        places.sort_unstable();
        places
    }

    #[test]
    fn names_and_their_parts_at_the_edges_are_found() {
        let names = control(&["<|im_end|>", "</s>", "a", "[é]"]);
        assert_eq!(places(&names, "x<|im_end|></s>y"), [1, 11]);
        assert_eq!(places(&names, "xax"), [1]);
        assert_eq!(places(&names, "x <|im "), [2]);
        assert_eq!(places(&names, "end|> x"), [0]);
        assert_eq!(places(&names, " é] x ["), [1, 7]);
        assert!(places(&names, "pl\u{e4}in </think> <|im end|> text").is_empty());
        assert!(places(&names, "").is_empty());
    }

    #[test]
    fn values_come_back_and_keep_their_length() {
        let names = control(&["<|im_end|>", "\u{f0001}"]);
        let text = "a <|im_end|> \u{f0000} <|im_end|><";
        let mut values = Values::new(&names, [text]);
        let protected = values.protect(text);
        assert_eq!(protected, "a \u{f0002}|im_end|> \u{f0000} \u{f0002}|im_end|>\u{f0002}");
        assert_eq!(values.restore(&protected), text);
    }
}
