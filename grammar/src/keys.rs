//! Keys of an answer's open objects, which ensure that an answer never repeats a key in an object.
//!
//! A grammar cannot express this rule, so the tokens that would complete a duplicate key are
//! removed from masks. If the schema restricts names, tokens after which every possible key is a
//! duplicate are removed as well.

use std::collections::HashSet;
use std::sync::Arc;

use llguidance::toktrie::{SimpleVob, TokTrie};
use serde::{Deserialize, Serialize};

/// Max parser states that are searched for one token. If a token needs more, it is allowed.
const MAX_AHEAD: usize = 512;

/// Marks around the reasoning before the JSON of an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReasoningMarks {
    /// Beginning of optional reasoning. If it is `None`, every answer begins with reasoning.
    pub open: Option<Mark>,
    /// End of reasoning. If it is `None`, an answer begins with JSON.
    pub close: Option<Mark>,
}

/// Boundary of reasoning, as in the frame's grammar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Mark {
    /// A text with any division into tokens. Its first occurrence is the boundary.
    Text(String),
    /// A control token. Other tokens with the same text are not the boundary.
    Token(u32),
}

/// Texts of tokens, and the tokens that contain quotation marks. Control tokens have no text.
#[derive(Debug)]
pub(crate) struct TokenTexts {
    words: Vec<Vec<u8>>,
    tokens_with_quotes: Vec<u32>,
}

impl TokenTexts {
    pub fn new(words: &[Vec<u8>]) -> TokenTexts {
        let is_control = |word: &[u8]| word.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER);
        let plain = |word: &Vec<u8>| if is_control(word) { Vec::new() } else { word.clone() };
        let words: Vec<Vec<u8>> = words.iter().map(plain).collect();
        let tokens_with_quotes =
            words.iter().enumerate().filter(|(_, word)| word.contains(&b'"')).map(|(id, _)| id as u32).collect();
        TokenTexts { words, tokens_with_quotes }
    }

    fn get(&self, token: u32) -> &[u8] {
        self.words.get(token as usize).map_or(&[], Vec::as_slice)
    }
}

/// Keys that an answer has written in its open objects.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    words: Arc<TokenTexts>,
    /// Reader of the reasoning, while the answer may still be in it.
    begin: Option<ReasoningReader>,
    place: JsonPosition,
    /// Keys of each open object, or `None` for each open array.
    open: Vec<Option<HashSet<Vec<u8>>>>,
    /// Whether the schema restricts names so much that a key may have only duplicates as
    /// completions.
    is_narrow: bool,
}

/// Reader of reasoning that has not ended.
#[derive(Clone, Debug)]
struct ReasoningReader {
    /// Mark at the beginning, unless it was already read.
    open: Option<Mark>,
    close: Mark,
    /// Bytes that may be the beginning of a mark.
    unread: Vec<u8>,
}

impl ReasoningReader {
    /// Reads a token. If the token ends the reasoning, returns the text after the mark.
    fn text_after_reasoning(&mut self, token: u32, text: &[u8]) -> Option<Vec<u8>> {
        match &self.open {
            Some(Mark::Token(open)) if *open != token => return Some(text.to_vec()),
            Some(Mark::Token(_)) => {
                self.open = None;
                return None;
            }
            Some(Mark::Text(open)) => {
                self.unread.extend_from_slice(text);
                if self.unread.len() < open.len() && open.as_bytes().starts_with(&self.unread) {
                    return None;
                }
                if !self.unread.starts_with(open.as_bytes()) {
                    return Some(std::mem::take(&mut self.unread));
                }
                self.unread.drain(..open.len());
                self.open = None;
            }
            None => self.unread.extend_from_slice(text),
        }
        match &self.close {
            Mark::Token(close) => {
                self.unread.clear();
                (*close == token).then(Vec::new)
            }
            Mark::Text(close) => {
                let close = close.as_bytes();
                let at = self.unread.windows(close.len().max(1)).position(|window| window == close);
                if at.is_none() {
                    self.unread.drain(..self.unread.len().saturating_sub(close.len()));
                }
                at.map(|at| self.unread[at + close.len()..].to_vec())
            }
        }
    }
}

/// Position of an answer in JSON.
#[derive(Clone, Debug, Default)]
struct JsonPosition {
    in_text: bool,
    is_escaped: bool,
    is_key: bool,
    expects_key: bool,
    key: Vec<u8>,
}

/// Effect of a byte on the position in the JSON.
enum Event {
    Nothing,
    OpenObject,
    OpenArray,
    Close,
    /// The byte completes a key, whose text is [`JsonPosition::key`].
    Key,
}

impl JsonPosition {
    fn read(&mut self, byte: u8, in_object: bool) -> Event {
        if self.in_text {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => {
                    self.in_text = false;
                    self.expects_key = false;
                    return if std::mem::take(&mut self.is_key) { Event::Key } else { Event::Nothing };
                }
                _ => {}
            }
            if self.is_key {
                self.key.push(byte);
            }
            return Event::Nothing;
        }
        match byte {
            b'"' => {
                self.in_text = true;
                self.is_key = self.expects_key && in_object;
                self.key.clear();
            }
            b'{' => {
                self.expects_key = true;
                return Event::OpenObject;
            }
            b'[' => {
                self.expects_key = false;
                return Event::OpenArray;
            }
            b'}' | b']' => {
                self.expects_key = false;
                return Event::Close;
            }
            b',' => self.expects_key = in_object,
            _ => {}
        }
        Event::Nothing
    }
}

/// Effect of a token on the keys of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// The token completes a key that the object already has.
    Twice,
    /// After the token, the current key can still become a duplicate.
    Near,
    Free,
}

impl Keys {
    pub fn new(words: Arc<TokenTexts>, begin: ReasoningMarks, is_narrow: bool) -> Keys {
        let begin = begin.close.map(|close| ReasoningReader { open: begin.open, close, unread: Vec::new() });
        Keys { words, begin, place: JsonPosition::default(), open: Vec::new(), is_narrow }
    }

    /// Updates the position in the JSON with the text of an accepted token.
    pub fn accept(&mut self, token: u32) {
        let words = self.words.clone();
        match self.begin.as_mut().map(|wait| wait.text_after_reasoning(token, words.get(token))) {
            Some(Some(rest)) => {
                self.begin = None;
                self.read(&rest);
            }
            Some(None) => {}
            None => self.read(words.get(token)),
        }
    }

    fn read(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let in_object = matches!(self.open.last(), Some(Some(_)));
            match self.place.read(byte, in_object) {
                Event::Nothing => {}
                Event::OpenObject => self.open.push(Some(HashSet::new())),
                Event::OpenArray => self.open.push(None),
                Event::Close => drop(self.open.pop()),
                Event::Key => {
                    if let Some(Some(keys)) = self.open.last_mut() {
                        keys.insert(std::mem::take(&mut self.place.key));
                    }
                }
            }
        }
    }

    /// Returns the effect of a token with these bytes.
    fn effect(&self, bytes: &[u8]) -> Effect {
        let (mut place, mut depth) = (self.place.clone(), self.open.len());
        // These are the objects that the token opens, and the keys that it adds to objects that are
        // already open.
        let mut inner: Vec<Option<Vec<Vec<u8>>>> = Vec::new();
        let mut written: Vec<(usize, Vec<u8>)> = Vec::new();
        for &byte in bytes {
            let in_object = match inner.last() {
                Some(own) => own.is_some(),
                None => depth > 0 && self.open[depth - 1].is_some(),
            };
            match place.read(byte, in_object) {
                Event::Nothing => {}
                Event::OpenObject => inner.push(Some(Vec::new())),
                Event::OpenArray => inner.push(None),
                Event::Close => {
                    if inner.pop().is_none() {
                        depth = depth.saturating_sub(1);
                        written.retain(|(at, _)| *at < depth);
                    }
                }
                Event::Key => {
                    let key = std::mem::take(&mut place.key);
                    match inner.last_mut() {
                        Some(Some(keys)) if keys.contains(&key) => return Effect::Twice,
                        Some(Some(keys)) => keys.push(key),
                        _ if depth == 0 => {}
                        _ => {
                            let own = self.open[depth - 1].as_ref();
                            let has = |keys: &HashSet<Vec<u8>>| keys.contains(&key);
                            if own.is_some_and(has) || written.contains(&(depth - 1, key.clone())) {
                                return Effect::Twice;
                            }
                            written.push((depth - 1, key));
                        }
                    }
                }
            }
        }
        let begun: Option<&[u8]> = match () {
            () if place.in_text && place.is_key => Some(&place.key),
            () if !place.in_text && place.expects_key => Some(&[]),
            () => None,
        };
        let Some(begun) = begun.filter(|_| self.is_narrow) else { return Effect::Free };
        let is_near = match inner.last() {
            Some(own) => own.iter().flatten().any(|key| key.starts_with(begun)),
            None if depth == 0 => false,
            None => {
                let own = self.open[depth - 1].iter().flatten();
                let own = own.chain(written.iter().filter(|(at, _)| *at == depth - 1).map(|(_, key)| key));
                own.into_iter().any(|key| key.starts_with(begun))
            }
        };
        if is_near { Effect::Near } else { Effect::Free }
    }

    /// Removes from a mask the tokens that complete a duplicate key. Also removes the tokens after
    /// which only duplicate keys are possible.
    pub fn restrict(&self, mask: &mut SimpleVob, matcher: &llguidance::Matcher) {
        if self.begin.is_some() {
            return;
        }
        self.remove_twice(mask);
        if !self.is_narrow || !self.open.iter().flatten().any(|keys| !keys.is_empty()) {
            return;
        }
        for token in self.tokens_near_duplicates(mask) {
            let mut budget = MAX_AHEAD;
            if !self.leads_on(token, matcher, &mut budget) {
                mask.set(token as usize, false);
            }
        }
    }

    fn remove_twice(&self, mask: &mut SimpleVob) {
        for &token in &self.words.tokens_with_quotes {
            if mask.is_allowed(token) && self.effect(self.words.get(token)) == Effect::Twice {
                mask.set(token as usize, false);
            }
        }
    }

    /// Returns the tokens of a mask after which the current key may become a duplicate.
    fn tokens_near_duplicates(&self, mask: &SimpleVob) -> Vec<u32> {
        let count = self.words.words.len() as u32;
        let is_near = |token: &u32| mask.is_allowed(*token) && self.effect(self.words.get(*token)) == Effect::Near;
        (0..count).filter(is_near).collect()
    }

    /// Returns whether some text without a duplicate key can follow a token.
    fn leads_on(&self, token: u32, matcher: &llguidance::Matcher, budget: &mut usize) -> bool {
        if *budget == 0 {
            return true;
        }
        *budget -= 1;
        let (mut keys, mut matcher) = (self.clone(), matcher.clone());
        if matcher.consume_token(token).is_err() {
            return false;
        }
        keys.accept(token);
        let Ok(mut mask) = matcher.compute_mask_or_eos() else { return false };
        keys.remove_twice(&mut mask);
        let near: HashSet<u32> = keys.tokens_near_duplicates(&mask).into_iter().collect();
        // White space between members is skipped, because it leads to no new state.
        let is_new = |token: &u32| keys.place.in_text || !keys.words.get(*token).iter().all(u8::is_ascii_whitespace);
        mask.iter().any(|token| !near.contains(&token))
            || near.iter().filter(|token| is_new(token)).any(|token| keys.leads_on(*token, &matcher, budget))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(begin: ReasoningMarks, text: &str) -> Keys {
        let words = Arc::new(TokenTexts::new(&[text.as_bytes().to_vec()]));
        let mut keys = Keys::new(words, begin, true);
        keys.accept(0);
        keys
    }

    #[test]
    fn key_tracker_distinguishes_keys_from_other_text() {
        let begin = ReasoningMarks::default;
        for (text, token, effect) in [
            (r#"{"a": 1, "a"#, "\"", Effect::Twice),
            (r#"{"a": 1, ""#, "a", Effect::Near),
            (r#"{"a": 1, ""#, "b", Effect::Free),
            (r#"{"a": {"b": 1}, "b"#, "\":", Effect::Free),
            (r#"{"a": {"b": 1}"#, ",\"a\":", Effect::Twice),
            (r#"{"a": "x, \"a"#, "\"", Effect::Free),
            (r#"{"a": ["a", "b""#, ",\"a\"", Effect::Free),
            (r#"[{"a": 1}, {"a"#, "\"", Effect::Free),
            (r#"[{"a": 1}, "#, r#"{"a":1,"a""#, Effect::Twice),
            (r#"{"a\"b": 1, "a\"b"#, "\"", Effect::Twice),
        ] {
            assert_eq!(keys(begin(), text).effect(token.as_bytes()), effect, "{text} then {token}");
        }
        let text = |text: &str| Some(Mark::Text(text.into()));
        let begin = ReasoningMarks { open: text("<think>"), close: text("</think>") };
        assert_eq!(keys(begin.clone(), r#"<think>{"a": 1, "</think>{"a": 1, "a"#).effect(b"\""), Effect::Twice);
        assert_eq!(keys(begin.clone(), r#"{"a": 1, "a"#).effect(b"\""), Effect::Twice);
        assert_eq!(keys(begin.clone(), r#"<think>{"a": 1, </think>{"a"#).effect(b"\""), Effect::Free);
        // The end mark shares its first character with the begin mark, but cannot begin within it.
        let begin = ReasoningMarks { open: text("<<"), close: text("<>") };
        assert_eq!(keys(begin, r#"<<>{"a": 1, <>{"a"#).effect(b"\""), Effect::Free);
    }

    #[test]
    fn a_text_that_spells_a_control_token_ends_no_reasoning() {
        let control = |name: &str| [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat();
        let plain = ["<think>", "</think>", r#"{"a":1,"#, r#""a"#].map(|text| text.as_bytes().to_vec());
        let words = [vec![control("<think>"), control("</think>")], plain.to_vec()].concat();
        let words = Arc::new(TokenTexts::new(&words));
        let effect = |open: Option<Mark>, tokens: &[u32]| {
            let mut keys = Keys::new(words.clone(), ReasoningMarks { open, close: Some(Mark::Token(1)) }, false);
            tokens.iter().for_each(|token| keys.accept(*token));
            (keys.begin.is_some(), keys.effect(b"\""))
        };
        let (open, is_free, is_twice) = (Some(Mark::Token(0)), (false, Effect::Free), (false, Effect::Twice));
        // A key in the reasoning does not count as a key of the answer.
        assert_eq!(effect(open.clone(), &[0, 3, 4, 1, 4]), is_free);
        assert_eq!(effect(open.clone(), &[0, 3, 4, 1, 4, 5]), is_twice);
        assert_eq!(effect(open.clone(), &[0, 2, 3, 4]), (true, Effect::Free));
        assert_eq!(effect(None, &[3, 4, 1, 4, 5]), is_twice);
        // This answer has no reasoning.
        assert_eq!(effect(open.clone(), &[4, 5]), is_twice);
        assert_eq!(effect(open, &[4]), is_free);
    }
}
