//! Keys of the open objects of an answer, so that no key is written twice.
//!
//! A grammar cannot express this, so masks lose the tokens that would complete a duplicate key. If
//! the schema restricts names, they also lose tokens after which every possible key is a duplicate.

use std::collections::HashSet;
use std::sync::Arc;

use llguidance::toktrie::{SimpleVob, TokTrie};
use serde::{Deserialize, Serialize};

/// Max parser states searched for one token. A token that needs more is allowed.
const MAX_AHEAD: usize = 512;

/// Text before the JSON of an answer, such as reasoning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Begin {
    /// Mark that an answer begins with if text precedes its JSON; `None` if text always does.
    pub open: Option<String>,
    /// Mark right before the JSON; empty if the answer begins with its JSON.
    pub close: String,
}

/// Texts of tokens, and the tokens that contain a quotation mark.
#[derive(Debug)]
pub(crate) struct Words {
    words: Vec<Vec<u8>>,
    quoting: Vec<u32>,
}

impl Words {
    pub fn new(words: &[Vec<u8>]) -> Words {
        let plain = |word: &Vec<u8>| word.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(word).to_vec();
        let words: Vec<Vec<u8>> = words.iter().map(plain).collect();
        let quoting =
            words.iter().enumerate().filter(|(_, word)| word.contains(&b'"')).map(|(id, _)| id as u32).collect();
        Words { words, quoting }
    }

    fn get(&self, token: u32) -> &[u8] {
        self.words.get(token as usize).map_or(&[], Vec::as_slice)
    }
}

/// Keys that an answer has written.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    words: Arc<Words>,
    begin: Option<Wait>,
    place: Place,
    /// Keys of the objects that are open; `None` for an array.
    open: Vec<Option<HashSet<Vec<u8>>>>,
    /// Whether the grammar restricts names.
    is_narrow: bool,
}

/// Text before the JSON.
#[derive(Clone, Debug)]
struct Wait {
    begin: Begin,
    seen: Vec<u8>,
}

/// A place in JSON.
#[derive(Clone, Debug, Default)]
struct Place {
    in_text: bool,
    is_escaped: bool,
    is_key: bool,
    expects_key: bool,
    key: Vec<u8>,
}

/// Effect of a byte on the place in the JSON.
enum Event {
    Nothing,
    OpenObject,
    OpenArray,
    Close,
    /// The byte completes the place's key.
    Key,
}

impl Place {
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
    /// The token completes a duplicate key.
    Twice,
    /// After the token, the begun key may become a duplicate.
    Near,
    Free,
}

impl Keys {
    pub fn new(words: Arc<Words>, begin: Begin, is_narrow: bool) -> Keys {
        let begin = (!begin.close.is_empty()).then(|| Wait { begin, seen: Vec::new() });
        Keys { words, begin, place: Place::default(), open: Vec::new(), is_narrow }
    }

    /// Reads an accepted token.
    pub fn accept(&mut self, token: u32) {
        let words = self.words.clone();
        match self.wait(words.get(token)) {
            Some(rest) => self.read(&rest),
            None if self.begin.is_none() => self.read(words.get(token)),
            None => {}
        }
    }

    /// Reads text before the JSON. Returns the rest of the text when the JSON begins.
    fn wait(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let Wait { begin, seen } = self.begin.as_mut()?;
        seen.extend_from_slice(bytes);
        if let Some(open) = &begin.open {
            let text = seen.trim_ascii_start();
            if text.len() < open.len() && open.as_bytes().starts_with(text) {
                return None;
            }
            if !text.starts_with(open.as_bytes()) {
                let rest = std::mem::take(seen);
                self.begin = None;
                return Some(rest);
            }
            begin.open = None;
        }
        let close = begin.close.as_bytes();
        if let Some(at) = seen.windows(close.len()).position(|window| window == close) {
            let rest = seen[at + close.len()..].to_vec();
            self.begin = None;
            return Some(rest);
        }
        seen.drain(..seen.len().saturating_sub(close.len()));
        None
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

    /// Returns the effect of a token.
    fn effect(&self, bytes: &[u8]) -> Effect {
        let (mut place, mut depth) = (self.place.clone(), self.open.len());
        // Objects that the token opens, and keys that it adds to objects that are open already.
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

    /// Removes from a mask the tokens that complete a duplicate key or lead to nothing else.
    pub fn restrict(&self, mask: &mut SimpleVob, matcher: &llguidance::Matcher) {
        if self.begin.is_some() {
            return;
        }
        self.remove_twice(mask);
        if !self.is_narrow || !self.open.iter().flatten().any(|keys| !keys.is_empty()) {
            return;
        }
        for token in self.near(mask) {
            let mut budget = MAX_AHEAD;
            if !self.leads_on(token, matcher, &mut budget) {
                mask.set(token as usize, false);
            }
        }
    }

    fn remove_twice(&self, mask: &mut SimpleVob) {
        for &token in &self.words.quoting {
            if mask.is_allowed(token) && self.effect(self.words.get(token)) == Effect::Twice {
                mask.set(token as usize, false);
            }
        }
    }

    /// Returns the tokens of a mask after which the begun key may become a duplicate.
    fn near(&self, mask: &SimpleVob) -> Vec<u32> {
        let count = self.words.words.len() as u32;
        let is_near = |token: &u32| mask.is_allowed(*token) && self.effect(self.words.get(*token)) == Effect::Near;
        (0..count).filter(is_near).collect()
    }

    /// Returns whether some text can follow a token without a duplicate key.
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
        let near: HashSet<u32> = keys.near(&mask).into_iter().collect();
        // White space between members leads nowhere new.
        let is_new = |token: &u32| keys.place.in_text || !keys.words.get(*token).iter().all(u8::is_ascii_whitespace);
        mask.iter().any(|token| !near.contains(&token))
            || near.iter().filter(|token| is_new(token)).any(|token| keys.leads_on(*token, &matcher, budget))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(begin: Begin, text: &str) -> Keys {
        let words = Arc::new(Words::new(&[text.as_bytes().to_vec()]));
        let mut keys = Keys::new(words, begin, true);
        keys.accept(0);
        keys
    }

    #[test]
    fn keys_are_told_from_other_texts() {
        let begin = Begin::default;
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
        let begin = Begin { open: Some("<think>".into()), close: "</think>".into() };
        assert_eq!(keys(begin.clone(), r#" <think>{"a": 1, "</think>{"a": 1, "a"#).effect(b"\""), Effect::Twice);
        assert_eq!(keys(begin.clone(), r#"{"a": 1, "a"#).effect(b"\""), Effect::Twice);
        assert_eq!(keys(begin, r#"<think>{"a": 1, </think>{"a"#).effect(b"\""), Effect::Free);
    }
}
