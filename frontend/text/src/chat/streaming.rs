//! Streaming of calls: returns the name and the arguments of a call before the call ends.
//!
//! A [`CallStream`] reads the text of a call once, from left to right. A call begins as soon as the
//! text names one of the request's tools and its arguments begin. It then remains a call, whatever
//! text follows. The pieces of arguments together are the same as the result of [`Grammar::read`]
//! for the whole text.
//!
//! ```text
//! {"name": "look", "arguments": {"at    begins a call of look, with arguments {"at
//! ": 1                                  more arguments: ": 1
//! }}                                    more arguments: }
//! ```
//!
//! Grammars with their own notation of values (Gemma 4, MiniMax M3, Python) are not streamed. Their
//! calls are returned when they are complete.

use super::call::parsed_call;
use super::grammar::{
    CallContext, Grammar, Id, ParameterTag, TagPair, attribute, bracket, pair, plain_value, whole_name,
};
use super::json;
use super::reading::Reading;
use super::tools::ParameterType;

/// Maximum length in bytes of the text before a call's arguments. Each piece of an answer reads
/// this text again.
const MAX_HEAD: usize = 4096;

/// Piece of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallDelta {
    /// Beginning of a call.
    Begin { id: Option<String>, name: String },
    /// A further piece of the call's arguments.
    Arguments(String),
}

/// Reader that streams one or several calls of a text.
#[derive(Clone, Debug, Default)]
pub(super) struct CallStream {
    /// Number of bytes of the text that were processed.
    pub(super) at: usize,
    stage: Stage,
    /// Number of calls that began.
    pub(super) calls: usize,
    /// Arguments of the last call that were returned so far.
    pub(super) arguments: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// The stream reads the text before a call's arguments.
    #[default]
    CallHead,
    /// The stream reads arguments that are JSON.
    Json(JsonState),
    /// The stream reads the text between two calls of a list.
    Tail,
    /// The stream reads the text between two parameters of this tool's call.
    Members { tool: String, count: usize },
    /// The stream reads the value of a parameter.
    TagValue(TagValue),
    /// The remaining text of the call is not streamed; the call is returned when it is complete.
    Off,
}

/// State of the scan of a JSON text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct JsonState {
    /// Number of brackets that are open.
    depth: usize,
    in_string: bool,
    /// Whether the previous character is a backslash in a string.
    escaped: bool,
}

/// Value of a parameter, written between tags without quotation marks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TagValue {
    tool: String,
    /// Index of the parameter in the call.
    number: usize,
    key: String,
    kind: Option<ParameterType>,
    /// Position of the value's first byte in the text.
    from: usize,
    /// Position in the text from which the value's closing tag is searched.
    search_from: usize,
    /// Position up to which a string value was already returned. `None` if no part of the value was
    /// returned, as for all other values.
    emitted_to: Option<usize>,
}

/// Tags of parameters in a grammar.
struct ParameterTags {
    key: TagPair,
    /// Text between the tag of the key and the value.
    open: &'static str,
    close: &'static str,
    /// Text that ends the call; empty if only the format's marker ends it.
    end: &'static str,
    /// Whether a value may be a CDATA section.
    sections: bool,
}

/// Reason why reading of the text stopped.
enum Stop {
    /// The text is incomplete. More text may follow.
    Wait,
    /// The text cannot be streamed.
    Off,
}

type Read<T> = Result<T, Stop>;

/// Text before a call's arguments: the name, the id, and the position of the arguments.
struct CallHead {
    id: Option<String>,
    name: String,
    at: usize,
}

impl CallStream {
    /// Returns whether JSON arguments have begun, but not ended.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Json(_))
    }

    /// Returns whether a marker may be part of arguments that have begun. This is so inside of a
    /// string, or if the marker consists of JSON characters.
    pub(super) fn may_hold(&self, marker: &str) -> bool {
        match self.stage {
            Stage::Json(JsonState { in_string, .. }) => in_string || marker.chars().all(is_json),
            _ => false,
        }
    }

    /// Reads the text of a call from the position up to which it was already read. Returns the new
    /// pieces.
    pub(super) fn read(&mut self, grammar: Grammar, text: &str, known: CallContext<'_>) -> Vec<CallDelta> {
        let mut pieces = Vec::new();
        loop {
            let result = match std::mem::take(&mut self.stage) {
                Stage::Off => Err(Stop::Off),
                Stage::CallHead => self.head(grammar, text, known, &mut pieces),
                Stage::Json(state) => self.json(text, state, &mut pieces),
                Stage::Tail => self.tail(grammar, text),
                Stage::Members { tool, count } => self.members(grammar, text, tool, count, known, &mut pieces),
                Stage::TagValue(value) => self.value(grammar, text, value, &mut pieces),
            };
            match result {
                Ok(()) => {}
                Err(Stop::Wait) => return pieces,
                Err(Stop::Off) => {
                    self.stage = Stage::Off;
                    return pieces;
                }
            }
        }
    }

    fn begin(&mut self, head: CallHead, known: CallContext<'_>, pieces: &mut Vec<CallDelta>) -> Read<()> {
        let CallHead { id, name, .. } = head;
        let Reading::Whole(call) = parsed_call(id, &name, String::new()) else { return Err(Stop::Off) };
        if !known.texts.has_tool(&call.name) {
            return Err(Stop::Off);
        }
        self.calls += 1;
        self.arguments.clear();
        pieces.push(CallDelta::Begin { id: call.id, name: call.name });
        Ok(())
    }

    fn append(&mut self, text: &str, pieces: &mut Vec<CallDelta>) {
        if text.is_empty() {
            return;
        }
        self.arguments.push_str(text);
        match pieces.last_mut() {
            Some(CallDelta::Arguments(before)) => before.push_str(text),
            _ => pieces.push(CallDelta::Arguments(text.to_owned())),
        }
    }

    /// Reads the text before a call's arguments.
    fn head(&mut self, grammar: Grammar, text: &str, known: CallContext<'_>, pieces: &mut Vec<CallDelta>) -> Read<()> {
        let rest = &text[self.at..];
        // At most this much text is read, so that the result does not depend on the pieces.
        let seen = &rest[..rest.floor_char_boundary(MAX_HEAD)];
        // A marker may end with the first bracket of the call, which is then read as part of the
        // text.
        let own = if self.at == 0 && matches!(grammar, Grammar::Bare(_)) { bracket(known.opening) } else { "" };
        let whole = [own, seen].concat();
        match head(grammar, &whole, known) {
            Ok(head) => {
                let at = self.at + head.at - own.len();
                let tool = head.name.clone();
                self.begin(head, known, pieces)?;
                self.at = at;
                self.stage = match tags_of(grammar) {
                    None => Stage::Json(JsonState::default()),
                    Some(_) => {
                        self.append("{", pieces);
                        Stage::Members { tool, count: 0 }
                    }
                };
                Ok(())
            }
            Err(Stop::Wait) if seen.len() == rest.len() => {
                self.stage = Stage::CallHead;
                Err(Stop::Wait)
            }
            Err(_) => Err(Stop::Off),
        }
    }

    /// Reads a JSON object up to its closing bracket, and returns it in pieces.
    fn json(&mut self, text: &str, state: JsonState, pieces: &mut Vec<CallDelta>) -> Read<()> {
        let JsonState { mut depth, mut in_string, mut escaped } = state;
        let rest = &text[self.at..];
        let (mut end, mut stage) = (rest.len(), None);
        for (at, c) in rest.char_indices() {
            match c {
                _ if escaped => escaped = false,
                '\\' if in_string => escaped = true,
                '"' => in_string = !in_string,
                _ if in_string => {}
                '{' | '[' => depth += 1,
                '}' | ']' if depth > 1 => depth -= 1,
                '}' | ']' => {
                    (end, stage) = (at + 1, Some(Stage::Tail));
                    break;
                }
                c if is_json(c) => {}
                _ => {
                    (end, stage) = (at, Some(Stage::Off));
                    break;
                }
            }
        }
        self.append(&rest[..end], pieces);
        self.at += end;
        let goes_on = stage.is_none();
        self.stage = stage.unwrap_or(Stage::Json(JsonState { depth, in_string, escaped }));
        if goes_on { Err(Stop::Wait) } else { Ok(()) }
    }

    /// Skips the brackets that close a call, and the comma before the next call.
    fn tail(&mut self, grammar: Grammar, text: &str) -> Read<()> {
        let rest = &text[self.at..];
        let parts = |c: char| c.is_whitespace() || matches!(c, '}' | ']' | ',' | ';');
        let next = rest.trim_start_matches(parts);
        self.at += rest.len() - next.len();
        match next.chars().next() {
            None => {
                self.stage = Stage::Tail;
                Err(Stop::Wait)
            }
            Some('{') if is_list(grammar) => {
                self.stage = Stage::CallHead;
                Ok(())
            }
            Some(_) => Err(Stop::Off),
        }
    }

    /// Reads the next parameter, or the end of the call.
    fn members(
        &mut self,
        grammar: Grammar,
        text: &str,
        tool: String,
        count: usize,
        known: CallContext<'_>,
        pieces: &mut Vec<CallDelta>,
    ) -> Read<()> {
        let Some(tags) = tags_of(grammar) else { return Err(Stop::Off) };
        let rest = text[self.at..].trim_start();
        let at = text.len() - rest.len();
        let next = match (word(rest, tags.key.open), word(rest, tags.end)) {
            (Ok(after), _) => parameter(after, &tags).map(Some),
            (_, Ok(_)) if !tags.end.is_empty() => Ok(None),
            (Err(Stop::Wait), _) | (_, Err(Stop::Wait)) => Err(Stop::Wait),
            _ => Err(Stop::Off),
        };
        match next {
            Ok(None) => {
                self.append("}", pieces);
                self.at = at + tags.end.len();
                // Further calls in this text are not streamed; they are returned when they are
                // complete.
                Err(Stop::Off)
            }
            Ok(Some((key, kind, value))) => {
                let (key, from) = (key.to_owned(), text.len() - value.len());
                let kind = kind.or_else(|| known.texts.kind(&tool, &key));
                let value = TagValue { tool, number: count, key, kind, from, search_from: from, emitted_to: None };
                self.stage = Stage::TagValue(value);
                self.at = from;
                Ok(())
            }
            Err(Stop::Wait) => {
                self.stage = Stage::Members { tool, count };
                Err(Stop::Wait)
            }
            Err(Stop::Off) => Err(Stop::Off),
        }
    }

    /// Reads a value up to its closing tag. This is the first such tag after which the call
    /// continues correctly.
    fn value(&mut self, grammar: Grammar, text: &str, mut value: TagValue, pieces: &mut Vec<CallDelta>) -> Read<()> {
        let Some(tags) = tags_of(grammar) else { return Err(Stop::Off) };
        let mut end = None;
        while let Some(found) = text[value.search_from..].find(tags.close) {
            let close = value.search_from + found;
            let after = text[close + tags.close.len()..].trim_start();
            let next = [tags.key.open, tags.end].into_iter().filter(|next| !next.is_empty());
            let mut follows = next.map(|next| word(after, next));
            match follows.find(|next| !matches!(next, Err(Stop::Off))) {
                Some(Ok(_)) => {
                    end = Some(close);
                    break;
                }
                Some(Err(_)) => {
                    value.search_from = close;
                    return self.wait_in(text, value, &tags, close, pieces);
                }
                None => value.search_from = close + text[close..].chars().next().map_or(1, char::len_utf8),
            }
        }
        let Some(end) = end else {
            let begun = (value.search_from..text.len()).find(|at| {
                text.is_char_boundary(*at) && text.len() - at < tags.close.len() && tags.close.starts_with(&text[*at..])
            });
            let safe = begun.unwrap_or(text.len());
            value.search_from = safe;
            return self.wait_in(text, value, &tags, safe, pieces);
        };
        match value.emitted_to {
            Some(emitted_to) => {
                // The line break at the end belongs to the tag, not to the value.
                let rest = text[emitted_to.min(end)..end].strip_suffix('\n').unwrap_or(&text[emitted_to.min(end)..end]);
                self.append(&inside(rest), pieces);
                self.append("\"", pieces);
            }
            None => {
                let raw = &text[value.from..end];
                let section = raw.trim().strip_prefix("<![CDATA[").and_then(|rest| rest.strip_suffix("]]>"));
                let raw = section.filter(|_| tags.sections).unwrap_or(raw);
                let part = [key_of(&value), plain_value(raw, value.kind)].concat();
                self.append(&part, pieces);
            }
        }
        self.at = end + tags.close.len();
        self.stage = Stage::Members { tool: value.tool, count: value.number + 1 };
        Ok(())
    }

    /// Returns, of an incomplete string, the text before the position `safe`, which is certain.
    fn wait_in(
        &mut self,
        text: &str,
        mut value: TagValue,
        tags: &ParameterTags,
        safe: usize,
        pieces: &mut Vec<CallDelta>,
    ) -> Read<()> {
        if value.kind == Some(ParameterType::Text) && !tags.sections && safe > value.from {
            let emitted_to = value.emitted_to.unwrap_or_else(|| {
                let key = key_of(&value);
                self.append(&key, pieces);
                self.append("\"", pieces);
                // The line break at the beginning belongs to the tag, not to the value.
                value.from + usize::from(text[value.from..].starts_with('\n'))
            });
            // The line break at the end may belong to the tag.
            let certain = safe - usize::from(text[..safe].ends_with('\n'));
            if certain > emitted_to {
                self.append(&inside(&text[emitted_to..certain]), pieces);
            }
            value.emitted_to = Some(emitted_to.max(certain));
        }
        self.stage = Stage::TagValue(value);
        Err(Stop::Wait)
    }
}

/// Returns whether a character may occur in JSON outside of strings.
fn is_json(c: char) -> bool {
    c.is_ascii_alphanumeric() || c.is_ascii_whitespace() || "{}[]\",:+-.".contains(c)
}

/// Returns the JSON text before a value: a comma (except for the first value), the key, and a
/// colon.
fn key_of(value: &TagValue) -> String {
    format!("{}{}: ", if value.number > 0 { ", " } else { "" }, json::string(&value.key))
}

/// Returns a text as the content of a JSON string, without quotation marks.
fn inside(text: &str) -> String {
    let quoted = json::string(text);
    quoted[1..quoted.len() - 1].to_owned()
}

/// Returns the text after `word`, which must be at the beginning of `text`.
fn word<'t>(text: &'t str, word: &str) -> Read<&'t str> {
    match text.strip_prefix(word) {
        Some(rest) if !word.is_empty() => Ok(rest),
        _ if !word.is_empty() && word.starts_with(text) => Err(Stop::Wait),
        _ => Err(Stop::Off),
    }
}

/// Reads the tags of a parameter. Returns its name, the type of its value if a tag states it, and
/// the text that begins with the value.
fn parameter<'t>(text: &'t str, tags: &ParameterTags) -> Read<(&'t str, Option<ParameterType>, &'t str)> {
    let (head, after) = text.split_once(tags.key.close).ok_or(Stop::Wait)?;
    if tags.open.is_empty() {
        let (key, kind) = attribute(head);
        return Ok((key, kind, after));
    }
    Ok((head.trim(), None, word(after.trim_start(), tags.open)?))
}

/// Returns whether the text of a grammar may be a list of calls, each an object.
fn is_list(grammar: Grammar) -> bool {
    match grammar {
        Grammar::Objects | Grammar::Keyed | Grammar::Named { .. } => true,
        Grammar::Bare(inner) => is_list(*inner),
        _ => false,
    }
}

/// Returns the tags of parameters in a grammar; `None` for a grammar without such tags.
fn tags_of(grammar: Grammar) -> Option<ParameterTags> {
    match grammar {
        Grammar::Tags { end, parameter: ParameterTag { open, between, close }, sections, .. } => {
            Some(ParameterTags { key: pair(open, between), open: "", close, end, sections })
        }
        Grammar::Pairs { key, value, .. } => {
            Some(ParameterTags { key, open: value.open, close: value.close, end: "", sections: false })
        }
        _ => None,
    }
}

/// Finds the beginning of a call's arguments. Arguments in tags begin at the first tag.
fn head(grammar: Grammar, text: &str, known: CallContext<'_>) -> Read<CallHead> {
    let at_object = |rest: &str| match rest.trim_start().chars().next() {
        None => Err(Stop::Wait),
        Some('{') => Ok(text.len() - rest.trim_start().len()),
        Some(_) => Err(Stop::Off),
    };
    let split = |separator: &str| text.split_once(separator).ok_or(Stop::Wait);
    match grammar {
        Grammar::Objects => Cursor { text, at: 0 }.object(),
        Grammar::Keyed => Cursor { text, at: 0 }.read_keyed_head(),
        Grammar::Bare(inner) => head(*inner, text, known),
        Grammar::Arguments => {
            let at = at_object(text)?;
            Ok(CallHead { id: None, name: known.callee.unwrap_or_default().to_owned(), at })
        }
        Grammar::Named { .. } if text.trim_start().starts_with(['[', '{']) => Cursor { text, at: 0 }.object(),
        Grammar::Named { separator, id } => {
            let (head, arguments) = split(separator)?;
            let (name, id) = match id {
                Id::Numbered => (head, None),
                Id::Whole => (whole_name(head.trim()), Some(head)),
                Id::Before(mark) => head.split_once(mark).map_or((head, None), |(id, name)| (name, Some(id))),
                Id::After { mark, .. } => head.split_once(mark).map_or((head, None), |(name, id)| (name, Some(id))),
            };
            let id = id.map(|id| id.trim().to_owned());
            Ok(CallHead { id, name: name.trim().to_owned(), at: at_object(arguments)? })
        }
        Grammar::Fenced { separator } => {
            let (name, block) = split(separator)?.1.split_once('\n').ok_or(Stop::Wait)?;
            let at = at_object(word(block.trim_start(), "```json")?)?;
            Ok(CallHead { id: None, name: name.trim().to_owned(), at })
        }
        Grammar::Tags { name: TagPair { open, close }, .. } => {
            let trimmed = text.trim_start();
            let rest = if open.is_empty() { trimmed } else { word(trimmed, open)? };
            let (head, body) = rest.split_once(close).ok_or(Stop::Wait)?;
            Ok(CallHead { id: None, name: attribute(head).0.to_owned(), at: text.len() - body.len() })
        }
        Grammar::Pairs { after_name, key, .. } => {
            let at = text.find(key.open).ok_or(Stop::Wait)?;
            let head = text[..at].trim();
            let name = head.strip_suffix(after_name).unwrap_or(head).trim_end();
            Ok(CallHead { id: None, name: name.to_owned(), at })
        }
        Grammar::Braces { .. } | Grammar::Marked { .. } | Grammar::Python => Err(Stop::Off),
    }
}

/// Reader of the JSON members that precede the arguments.
struct Cursor<'t> {
    text: &'t str,
    at: usize,
}

impl Cursor<'_> {
    /// Skips white space. Returns the next character without reading it.
    fn peek(&mut self) -> Read<char> {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        trimmed.chars().next().ok_or(Stop::Wait)
    }

    fn needs(&mut self, expected: char) -> Read<()> {
        if self.peek()? != expected {
            return Err(Stop::Off);
        }
        self.at += expected.len_utf8();
        Ok(())
    }

    fn string(&mut self) -> Read<String> {
        self.peek()?;
        let from = self.at;
        self.needs('"')?;
        let mut escaped = false;
        let end = self.text[self.at..].bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        });
        self.at += end.ok_or(Stop::Wait)? + 1;
        json::text(&self.text[from..self.at]).ok_or(Stop::Off)
    }

    /// Reads a string. Returns `None` for a number or a word, which is skipped.
    fn string_or_word(&mut self) -> Read<Option<String>> {
        if self.peek()? == '"' {
            return self.string().map(Some);
        }
        let rest = &self.text[self.at..];
        let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c)).ok_or(Stop::Wait)?;
        self.at += length;
        if length == 0 { Err(Stop::Off) } else { Ok(None) }
    }

    fn open(&mut self) -> Read<()> {
        if self.peek()? == '[' {
            self.at += 1;
        }
        self.needs('{')
    }

    /// Reads `{"name": N, "arguments": {`. It may be in a list, may have an id, or may be wrapped
    /// as in OpenAI's interface.
    fn object(mut self) -> Read<CallHead> {
        self.open()?;
        let (mut id, mut name, mut is_inner) = (None, None, false);
        loop {
            let key = self.string()?;
            self.needs(':')?;
            match &*key {
                "function" if !is_inner && self.peek()? == '{' => {
                    self.at += 1;
                    (id, name, is_inner) = (None, None, true);
                    continue;
                }
                "name" | "tool_name" if name.is_none() => name = Some(self.string()?),
                "id" | "tool_call_id" if id.is_none() => id = self.string_or_word()?,
                "type" => drop(self.string()?),
                "arguments" | "parameters" => {
                    let name = name.ok_or(Stop::Off)?;
                    return if self.peek()? == '{' { Ok(CallHead { id, name, at: self.at }) } else { Err(Stop::Off) };
                }
                _ => return Err(Stop::Off),
            }
            self.needs(',')?;
        }
    }

    /// Reads `{N: {`, which may be in a list.
    fn read_keyed_head(mut self) -> Read<CallHead> {
        self.open()?;
        let name = self.string()?;
        self.needs(':')?;
        if self.peek()? == '{' { Ok(CallHead { id: None, name, at: self.at }) } else { Err(Stop::Off) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::TextParameters;
    use crate::chat::format::find;

    const TOOLS: &str = r#"[{"function": {"name": "look", "parameters": {"properties": {"at": {"type": "string"}}}}}]"#;

    /// Returns the pieces that a call's text gives, if it arrives character by character. `|` marks
    /// the end of a piece, and `>` the beginning of a call.
    fn pieces(format: &str, text: &str) -> String {
        let (format, tools) = (find(format).unwrap(), TextParameters::of_tools(TOOLS));
        let known = CallContext { callee: Some("look"), opening: "", closed: false, texts: &tools };
        let (mut stream, mut all) = (CallStream::default(), String::new());
        for (at, c) in text.char_indices() {
            for piece in stream.read(format.call, &text[..at + c.len_utf8()], known) {
                match piece {
                    CallDelta::Begin { name, .. } => all += &format!("{name}>"),
                    CallDelta::Arguments(text) => all += &format!("{text}|"),
                }
            }
        }
        all
    }

    #[test]
    fn call_arguments_are_streamed_as_written() {
        for (format, text, expected) in [
            ("qwen3", r#"{"name": "look", "arguments": {"a": "}"}}"#, r#"look>{|"|a|"|:| |"|}|"|}|"#),
            ("qwen3", r#"{"id": 7, "name": "look", "arguments": {}}"#, "look>{|}|"),
            ("harmony", r#" {"é":1}"#, r#"look>{|"|é|"|:|1|}|"#),
            ("kimi-k2", r#"functions.look:0<|tool_call_argument_begin|>{}"#, "look>{|}|"),
            ("deepseek-r1", "function<｜tool▁sep｜>look\n```json\n{}\n```", "look>{|}|"),
            ("apertus", r#"[{"look": {}}, {"look": {}}]"#, "look>{|}|look>{|}|"),
            // A string value is streamed, except text that may be its closing tag. Other values are
            // returned when they are complete.
            (
                "qwen3-coder",
                "<function=look>\n<parameter=at>\na\"b\n</p>c\n</parameter>\n</function>",
                r#"look>{|"at": "|a|\"|b|\n|</p>|c|"|}|"#,
            ),
            (
                "qwen3-coder",
                "<function=look><parameter=n>1</parameter><parameter=at></parameter></function>",
                r#"look>{|"n": 1|, "at": ""|}|"#,
            ),
            ("glm4.5", "look\n<arg_key>at</arg_key>\n<arg_value>xy</arg_value>", r#"look>{|"at": "|x|y|"#),
            // These are not streamed: names that are not tools of the request, arguments before the
            // name, and invalid JSON.
            ("qwen3", r#"{"name": "other", "arguments": {}}"#, ""),
            ("qwen3", r#"{"arguments": {}, "name": "look"}"#, ""),
            ("qwen3", r#"{"name": "look", "arguments": "{}"}"#, ""),
            ("qwen3", r#"{"name": "look", "arguments": {<a>}}"#, "look>{|"),
            ("gemma4", "call:look{}", ""),
        ] {
            let found = pieces(format, text);
            let joined = |text: &str| text.replace('|', "");
            assert_eq!(joined(&found), joined(expected), "{format}: {text}");
        }
    }
}
