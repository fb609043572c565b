//! Grammars of the text of a call, with one function for each. A format's row has the texts that
//! its grammar needs.
//!
//! If an argument contains the marker that ends calls, the text ends too early. The result is then
//! [`Reading::Unfinished`], and the parser continues to the next marker.

use super::call::{MAX_DEPTH, ParsedCall, parsed_call};
use super::json;
use super::reading::Reading;
use super::tools::{ParameterType, TextParameters};

/// Prefix of tool names in calls of Kimi and harmony.
pub(super) const FUNCTIONS: &str = "functions.";

/// Syntax of the text of a tool call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Grammar {
    /// `{"name": N, "arguments": {…}}`, a list of such objects, or several such objects in
    /// sequence.
    Objects,
    /// `[{N: {…}}]`, or one such object without the list. N is the name of the tool.
    Keyed,
    /// The inner grammar, in formats whose marker ends with the first bracket of the call. Only
    /// calls of available tools are accepted, because nothing else distinguishes a call from an
    /// answer.
    Bare(&'static Grammar),
    /// Only the arguments. The header of the message has the name.
    Arguments,
    /// The name, a separator, and the arguments as JSON, or the same text as in `Objects`.
    Named { separator: &'static str, id: Id },
    /// The type of the call, which is always the same word, a separator, the name, and the
    /// arguments as JSON in a code block.
    Fenced { separator: &'static str },
    /// The name in a tag, then the parameters in tags, then the end of the call. Strings are
    /// written unchanged; other values are JSON.
    Tags {
        name: TagPair,
        end: &'static str,
        parameter: ParameterTag,
        /// Whether a value may be written as a CDATA section, `<![CDATA[…]]>`. This allows it to
        /// contain the tag that ends values.
        sections: bool,
    },
    /// The name, optional text after it, then pairs of a key and a value, each between two tags.
    /// Values are written as in `Tags`.
    Pairs { after_name: &'static str, key: TagPair, value: TagPair },
    /// `call:N{k:v,…}`. Strings have the format's own quotation marks; keys have none.
    Braces { quote: &'static str },
    /// The name in a tag, then elements in tags with a special mark. An element is a parameter, a
    /// member of an object, or an `<item>` of a list.
    Marked { name: TagPair, mark: &'static str },
    /// `[f(a="x", b=1), g()]`, with calls and values in Python's syntax. The calls may instead be
    /// on separate lines, possibly in a code block.
    Python,
}

/// Texts before and after a name, a key or a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct TagPair {
    pub open: &'static str,
    pub close: &'static str,
}

/// Texts around the name and the value of a parameter.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParameterTag {
    /// Text before the name.
    pub open: &'static str,
    /// Text between the name and the value.
    pub between: &'static str,
    /// Text after the value.
    pub close: &'static str,
}

/// Returns a pair of tags with these texts.
pub(super) const fn pair(open: &'static str, close: &'static str) -> TagPair {
    TagPair { open, close }
}

/// Position of a call's id.
#[derive(Clone, Copy, Debug)]
pub(super) enum Id {
    /// The text has no ids. The parser numbers the calls.
    Numbered,
    /// The id contains the name: `functions.N:0`.
    Whole,
    /// The id comes before the name; the separator is between them.
    Before(&'static str),
    /// The id comes after the name and `mark`. It consists of `length` letters and digits, as
    /// Mistral's templates refuse other ids.
    After { mark: &'static str, length: usize },
}

/// Information about a call that its text does not contain.
#[derive(Clone, Copy, Debug)]
pub struct CallContext<'c> {
    /// Name in the message's header, if it has a header.
    pub callee: Option<&'c str>,
    /// Marker that began the call.
    pub opening: &'c str,
    /// Whether a marker ended the call. Otherwise the answer ended.
    pub closed: bool,
    /// Types of parameters, from the schemas of tools.
    pub texts: &'c TextParameters,
}

impl Grammar {
    /// Returns the part of an id before its number, if the format numbers ids.
    pub(super) fn stem(self, id: &str) -> Option<&str> {
        let Grammar::Named { id: Id::Whole, .. } = self else { return None };
        let (name, number) = id.rsplit_once(':')?;
        number.bytes().all(|c| c.is_ascii_digit()).then(|| &id[..=name.len()])
    }

    /// Returns the required length of an id, if the format requires one.
    pub(super) fn id_length(self) -> Option<usize> {
        let Grammar::Named { id: Id::After { length, .. }, .. } = self else { return None };
        Some(length)
    }

    /// Parses the text of one call or of several calls.
    pub(super) fn read(self, text: &str, known: CallContext<'_>) -> Reading<Vec<ParsedCall>> {
        let text = text.trim();
        let one = |id, name: &str, arguments: &str| {
            arguments_of(arguments, known.closed)
                .and_then(|arguments| parsed_call(id, name, arguments))
                .map(|call| vec![call])
        };
        match self {
            Grammar::Objects => objects(text),
            Grammar::Keyed => read_keyed_calls(text),
            Grammar::Bare(grammar) => {
                let whole = [bracket(known.opening), text].concat();
                grammar.read(&whole, known).and_then(|calls| {
                    let all_there = calls.iter().all(|call| known.texts.has_tool(&call.name));
                    if all_there { Reading::Whole(calls) } else { Reading::Wrong }
                })
            }
            Grammar::Arguments => one(None, known.callee.unwrap_or_default(), text),
            Grammar::Named { .. } if text.starts_with(['[', '{']) => objects(text),
            Grammar::Named { separator, id } => {
                let Some((head, arguments)) = text.split_once(separator) else { return Reading::Unfinished };
                let (name, id) = match id {
                    Id::Numbered => (head, None),
                    Id::Whole => (whole_name(head.trim()), Some(head.trim().to_owned())),
                    Id::Before(mark) => {
                        head.split_once(mark).map_or((head, None), |(id, name)| (name, Some(id.trim().to_owned())))
                    }
                    Id::After { mark, .. } => {
                        head.split_once(mark).map_or((head, None), |(name, id)| (name, Some(id.trim().to_owned())))
                    }
                };
                one(id, name.trim(), arguments)
            }
            Grammar::Fenced { separator } => {
                let Some((_, rest)) = text.split_once(separator) else { return Reading::Unfinished };
                let Some((name, block)) = rest.split_once('\n') else { return Reading::Unfinished };
                let Some(arguments) = block.trim().strip_prefix("```json") else { return Reading::Wrong };
                let Some(arguments) = arguments.strip_suffix("```") else { return Reading::Unfinished };
                one(None, name.trim(), arguments)
            }
            Grammar::Tags { name, end, parameter, sections } => tags(text, name, end, parameter, sections, known.texts),
            // Without its end marker, a call may lack parameters.
            Grammar::Pairs { .. } if !known.closed => Reading::Unfinished,
            Grammar::Pairs { after_name, key, value } => pairs(text, after_name, key, value, known.texts),
            Grammar::Braces { quote } => Braces { rest: text, quote }.call().map(|call| vec![call]),
            Grammar::Marked { name, mark } => read_marked_calls(text, name, mark, known.texts),
            Grammar::Python => super::python::calls(text),
        }
    }
}

/// Returns the bracket at the end of a marker, which is also the first bracket of the call. It is
/// empty if the marker ends with other text.
pub(super) fn bracket(opening: &str) -> &str {
    let opening = opening.trim_end();
    if opening.ends_with(['{', '[']) { &opening[opening.len() - 1..] } else { "" }
}

/// Returns the tool name in an id like `functions.N:0`.
pub(super) fn whole_name(id: &str) -> &str {
    let name = id.strip_prefix(FUNCTIONS).unwrap_or(id);
    name.rsplit_once(':')
        .filter(|(_, number)| number.bytes().all(|c| c.is_ascii_digit()))
        .map_or(name, |(name, _)| name)
}

/// Returns the recipient and the channel in a header of harmony. They may come in either order.
pub(super) fn header(text: &str) -> (Option<&str>, &str) {
    let word = |mark: &str| {
        let rest = text.split_once(mark)?.1;
        Some(rest.split([' ', '<']).next().unwrap_or_default())
    };
    let recipient = word("to=").filter(|name| !name.is_empty());
    (recipient.map(|name| name.strip_prefix(FUNCTIONS).unwrap_or(name)), word("<|channel|>").unwrap_or_default())
}

/// Parses arguments, which are an object, a JSON string that contains an object, or nothing. The
/// result is JSON.
fn arguments_of(text: &str, closed: bool) -> Reading<String> {
    let text = text.trim();
    if closed && (text.is_empty() || text == "null") {
        return Reading::Whole("{}".to_owned());
    }
    json::check(text).and_then(|()| match text.as_bytes().first() {
        Some(b'{') => Reading::Whole(text.to_owned()),
        Some(b'"') => match json::text(text) {
            Some(inner) if inner.trim().starts_with('{') && json::is_value(&inner) => Reading::Whole(inner),
            _ => Reading::Wrong,
        },
        _ => Reading::Wrong,
    })
}

fn objects(text: &str) -> Reading<Vec<ParsedCall>> {
    json::sequence(text).and_then(|values| {
        let mut calls = Vec::new();
        let lists = values.iter().map(|value| if value.starts_with('[') { json::list(value) } else { vec![*value] });
        for element in lists.flatten() {
            // OpenAI's interface wraps the call in a member `function`.
            let function = json::member(element, "function").filter(|function| function.starts_with('{'));
            let element = function.unwrap_or(element);
            let text = |name| json::member(element, name).and_then(json::text);
            // Command A names the members `tool_name` and `parameters`.
            let Some(name) = text("name").or_else(|| text("tool_name")) else { return Reading::Wrong };
            let id = text("id").or_else(|| text("tool_call_id"));
            let arguments = json::member(element, "arguments").or_else(|| json::member(element, "parameters"));
            match arguments_of(arguments.unwrap_or_default(), true)
                .and_then(|arguments| parsed_call(id, &name, arguments))
            {
                Reading::Whole(call) => calls.push(call),
                Reading::Unfinished | Reading::Wrong => return Reading::Wrong,
            }
        }
        if calls.is_empty() { Reading::Wrong } else { Reading::Whole(calls) }
    })
}

fn read_keyed_calls(text: &str) -> Reading<Vec<ParsedCall>> {
    json::check(text).and_then(|()| {
        let elements = if text.starts_with('[') { json::list(text) } else { vec![text] };
        let mut calls = Vec::new();
        for (name, arguments) in elements.into_iter().flat_map(json::members) {
            match arguments_of(arguments, true).and_then(|arguments| parsed_call(None, &name, arguments)) {
                Reading::Whole(call) => calls.push(call),
                Reading::Unfinished | Reading::Wrong => return Reading::Wrong,
            }
        }
        if calls.is_empty() { Reading::Wrong } else { Reading::Whole(calls) }
    })
}

/// Converts a value that was written without quotation marks to JSON. `kind` is the parameter's
/// type, if known.
pub(super) fn plain_value(text: &str, kind: Option<ParameterType>) -> String {
    let text = text.strip_prefix('\n').unwrap_or(text);
    let text = text.strip_suffix('\n').unwrap_or(text);
    let json = text.trim();
    let may_be_json = match kind {
        Some(ParameterType::Text) => false,
        Some(ParameterType::TextOrNull) => json == "null",
        Some(ParameterType::Value) => true,
        // Without a type, quoted text counts as a string that contains quotation marks, because
        // this is more common than JSON.
        None => !json.starts_with('"'),
    };
    match may_be_json && json::is_value(json) {
        true => json.to_owned(),
        // For such values, templates and models also use Python's syntax.
        false if kind == Some(ParameterType::Value) => {
            super::python::literal(json).unwrap_or_else(|| json::string(text))
        }
        false => json::string(text),
    }
}

/// Returns the name in a tag, which may be quoted, and the type of the value, if the tag states it.
pub(super) fn attribute(head: &str) -> (&str, Option<ParameterType>) {
    let head = head.trim();
    let Some((name, rest)) = head.strip_prefix('"').and_then(|rest| rest.split_once('"')) else { return (head, None) };
    // Kimi K3 states the type in the tag.
    let says = |attribute: &str| rest.contains(attribute);
    if says("string=\"true\"") || says("type=\"string\"") {
        return (name, Some(ParameterType::Text));
    }
    (name, (says("string=\"false\"") || says("type=\"")).then_some(ParameterType::Value))
}

/// Splits a text at the first `close` whose following text `follows` accepts. Any earlier `close`
/// is part of the value.
fn value_before<'t>(text: &'t str, close: &str, follows: impl Fn(&str) -> bool) -> Option<(&'t str, &'t str)> {
    text.match_indices(close).find_map(|(at, _)| {
        let rest = text[at + close.len()..].trim_start();
        follows(rest).then(|| (&text[..at], rest))
    })
}

fn tags(
    text: &str,
    name: TagPair,
    end: &str,
    parameter: ParameterTag,
    sections: bool,
    texts: &TextParameters,
) -> Reading<Vec<ParsedCall>> {
    let mut calls = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some(head) = rest.strip_prefix(name.open) else { return Reading::Wrong };
        let Some((head, mut body)) = head.split_once(name.close) else { return Reading::Unfinished };
        let tool = attribute(head).0;
        let mut members = Vec::new();
        rest = loop {
            body = body.trim_start();
            if let Some(after) = body.strip_prefix(parameter.open) {
                let Some((head, value)) = after.split_once(parameter.between) else { return Reading::Unfinished };
                let (key, kind) = attribute(head);
                let follows = |rest: &str| {
                    rest.is_empty() || rest.starts_with(parameter.open) || !end.is_empty() && rest.starts_with(end)
                };
                let Some((value, after)) = value_before(value, parameter.close, follows) else {
                    return Reading::Unfinished;
                };
                let inner = value.trim().strip_prefix("<![CDATA[").and_then(|rest| rest.strip_suffix("]]>"));
                let value = inner.filter(|_| sections).unwrap_or(value);
                members.push((key, plain_value(value, kind.or_else(|| texts.kind(tool, key)))));
                body = after;
            } else if body.is_empty() {
                if !end.is_empty() {
                    return Reading::Unfinished;
                }
                break body;
            } else if let Some(after) = body.strip_prefix(end).filter(|_| !end.is_empty()) {
                break after.trim_start();
            } else {
                return Reading::Wrong;
            }
        };
        match parsed_call(None, tool, json::object(members)) {
            Reading::Whole(call) => calls.push(call),
            Reading::Unfinished | Reading::Wrong => return Reading::Wrong,
        }
    }
    if calls.is_empty() { Reading::Unfinished } else { Reading::Whole(calls) }
}

fn pairs(
    text: &str,
    after_name: &str,
    key: TagPair,
    value: TagPair,
    texts: &TextParameters,
) -> Reading<Vec<ParsedCall>> {
    let at = text.find(key.open).unwrap_or(text.len());
    let (head, mut rest) = (text[..at].trim(), &text[at..]);
    let tool = head.strip_suffix(after_name).unwrap_or(head).trim_end();
    let mut members = Vec::new();
    while !rest.is_empty() {
        let Some(after) = rest.strip_prefix(key.open) else { return Reading::Wrong };
        let Some((name, after)) = after.split_once(key.close) else { return Reading::Unfinished };
        let Some(after) = after.trim_start().strip_prefix(value.open) else { return Reading::Wrong };
        let follows = |rest: &str| rest.is_empty() || rest.starts_with(key.open);
        let Some((text, after)) = value_before(after, value.close, follows) else { return Reading::Unfinished };
        members.push((name.trim(), plain_value(text, texts.kind(tool, name.trim()))));
        rest = after;
    }
    parsed_call(None, tool, json::object(members)).map(|call| vec![call])
}

fn read_marked_calls(text: &str, name: TagPair, mark: &str, texts: &TextParameters) -> Reading<Vec<ParsedCall>> {
    let Some(head) = text.strip_prefix(name.open) else { return Reading::Wrong };
    let Some((head, body)) = head.split_once(name.close) else { return Reading::Unfinished };
    let tool = attribute(head).0;
    elements(body, mark, MAX_DEPTH, &|parameter| texts.kind(tool, parameter)).and_then(|(members, rest)| {
        if !rest.trim().is_empty() {
            return Reading::Wrong;
        }
        let members = members.iter().map(|(key, value)| (&**key, value.clone()));
        parsed_call(None, tool, json::object(members)).map(|call| vec![call])
    })
}

/// Reads elements in marked tags. Also returns the text after them.
fn elements<'t>(
    text: &'t str,
    mark: &str,
    depth: usize,
    kind: &dyn Fn(&str) -> Option<ParameterType>,
) -> Reading<(Vec<(String, String)>, &'t str)> {
    if depth == 0 {
        return Reading::Wrong;
    }
    let (mut members, mut rest) = (Vec::new(), text);
    let opens =
        |text: &'t str| text.trim_start().strip_prefix(mark)?.strip_prefix('<').filter(|tag| !tag.starts_with('/'));
    while let Some(tag) = opens(rest) {
        let Some((key, body)) = tag.split_once('>') else { return Reading::Unfinished };
        let close = format!("{mark}</{key}>");
        let value = if opens(body).is_some() {
            match elements(body, mark, depth - 1, &|_| None) {
                Reading::Whole((inner, after)) => {
                    rest = after.trim_start();
                    collection(inner)
                }
                Reading::Unfinished => return Reading::Unfinished,
                Reading::Wrong => return Reading::Wrong,
            }
        } else {
            let Some(at) = body.find(&close) else { return Reading::Unfinished };
            rest = &body[at..];
            plain_value(&body[..at], kind(key))
        };
        let Some(after) = rest.strip_prefix(&*close) else { return Reading::Wrong };
        members.push((key.to_owned(), value));
        rest = after;
    }
    Reading::Whole((members, rest))
}

/// Returns a list as JSON if all elements are items, otherwise an object.
fn collection(members: Vec<(String, String)>) -> String {
    if members.iter().all(|(key, _)| key == "item") {
        let items: Vec<String> = members.into_iter().map(|(_, value)| value).collect();
        return format!("[{}]", items.join(", "));
    }
    json::object(members.iter().map(|(key, value)| (&**key, value.clone())))
}

/// Reader of arguments in Gemma 4's notation.
struct Braces<'t> {
    rest: &'t str,
    quote: &'static str,
}

impl Braces<'_> {
    fn call(mut self) -> Reading<ParsedCall> {
        let Some(text) = self.rest.strip_prefix("call:") else { return Reading::Wrong };
        let Some(at) = text.find('{') else { return Reading::Unfinished };
        let name = text[..at].trim();
        self.rest = &text[at..];
        self.value(MAX_DEPTH).and_then(|arguments| {
            if self.rest.trim().is_empty() { parsed_call(None, name, arguments) } else { Reading::Wrong }
        })
    }

    /// Skips white space, and the word `word` after it. Returns whether the word was there.
    fn takes(&mut self, word: &str) -> bool {
        let after = self.rest.trim_start().strip_prefix(word);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn value(&mut self, depth: usize) -> Reading<String> {
        if depth == 0 {
            return Reading::Wrong;
        }
        let (quote, is_object) = (self.quote, self.rest.trim_start().starts_with('{'));
        if self.takes(quote) {
            return self.text().map(|text| json::string(&text));
        }
        if !self.takes("{") && !self.takes("[") {
            let rest = self.rest.trim_start();
            let end = rest.find([',', '}', ']']).unwrap_or(rest.len());
            self.rest = &rest[end..];
            let word = rest[..end].trim();
            return Reading::Whole(if json::is_value(word) { word.to_owned() } else { json::string(word) });
        }
        let (close, mut parts) = (if is_object { "}" } else { "]" }, Vec::new());
        while !self.takes(close) {
            if !parts.is_empty() && !self.takes(",") {
                return if self.rest.trim().is_empty() { Reading::Unfinished } else { Reading::Wrong };
            }
            let key = if is_object {
                self.key().map(|key| format!("{}: ", json::string(&key)))
            } else {
                Reading::Whole(String::new())
            };
            match key.and_then(|key| self.value(depth - 1).map(|value| key + &value)) {
                Reading::Whole(part) => parts.push(part),
                Reading::Unfinished => return Reading::Unfinished,
                Reading::Wrong => return Reading::Wrong,
            }
            if self.rest.is_empty() {
                return Reading::Unfinished;
            }
        }
        let (open, inner) = (if is_object { "{" } else { "[" }, parts.join(", "));
        Reading::Whole([open, &inner, close].concat())
    }

    /// Reads a key and the colon after it.
    fn key(&mut self) -> Reading<String> {
        let quote = self.quote;
        if self.takes(quote) {
            return self.text().and_then(|key| if self.takes(":") { Reading::Whole(key) } else { Reading::Wrong });
        }
        let Some((key, rest)) = self.rest.split_once(':') else { return Reading::Unfinished };
        self.rest = rest;
        Reading::Whole(key.trim().to_owned())
    }

    /// Reads the text up to the closing quotation mark.
    fn text(&mut self) -> Reading<String> {
        let Some((text, rest)) = self.rest.split_once(self.quote) else { return Reading::Unfinished };
        self.rest = rest;
        Reading::Whole(text.to_owned())
    }
}
