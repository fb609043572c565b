//! Parser that follows the markers of a format through a text in pieces.
//!
//! The parser holds back text that may be the beginning of a marker. It also holds back white
//! space, which would belong to a marker after it. It holds back the beginning of a call up to its
//! arguments, which are then streamed (`streaming`). A call that cannot be parsed becomes content,
//! including its markers, unless some of its arguments were already returned. The text after its
//! first end marker is then parsed again.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};

use super::call::ParsedCall;
use super::call_lookahead::{Prospect, call_prospect};
use super::format::{Format, Move, State};
use super::grammar::{CallContext, Grammar, bracket, header};
use super::markers::Markers;
use super::reading::Reading;
use super::streaming::{CallDelta, CallStream};
use super::tools::TextParameters;
use super::{Answer, Delta, Part, ToolCall};

/// Maximum number of end markers in one call's arguments. At each end marker, the whole call is
/// read again.
const MAX_ATTEMPTS: usize = 16;
/// Maximum length of a message's header in bytes. The channel, the recipient and the content type
/// need about 80 bytes.
const MAX_HEADER: usize = 320;
/// Characters that a header may have between its markers, in addition to letters and digits.
const HEADER_CHARACTERS: &str = " <|>=._-:/";
/// Name of the channel whose messages are reasoning.
const ANALYSIS: &str = "analysis";

/// Parser of a model's output, which returns deltas of the answer.
#[derive(Clone, Debug)]
pub struct Parser {
    format: &'static Format,
    /// Markers of each state.
    markers: [Markers; State::ALL.len()],
    /// Markers at the beginning of the content, if they differ from those of other content.
    first_markers: Option<Markers>,
    texts: TextParameters,
    state: State,
    buffer: String,
    /// End of the processed part of the buffer. The processed part is removed at the end of
    /// [`Parser::push`].
    start: usize,
    /// Position in the buffer from which markers are searched, inside of a call or header. No
    /// marker begins before it.
    scan_from: usize,
    /// Text of a call or header that is no longer in the buffer: the white space and the marker at
    /// its beginning.
    opening: String,
    /// Recipient that a call's header states.
    callee: Option<String>,
    /// Number of end markers that turned out to be part of the call. The field `first_end` has the
    /// first of them.
    attempts: usize,
    /// Whether the current text names a tool, so that only its end decides whether it is a call.
    named: bool,
    /// Reader that streams the current call.
    stream: CallStream,
    /// Whether calls are returned only when they are complete, instead of streamed.
    holds_calls: bool,
    /// Whether calls are recognised. Otherwise they are text.
    has_calls: bool,
    first_end: Option<(usize, Move)>,
    /// Whether a marker was just before the next text. White space at its beginning then belongs to
    /// the marker.
    behind_marker: bool,
    /// White space that was held back, because it may belong to a marker after it.
    space: String,
    /// Whether content (first element) and reasoning (second element) were already returned.
    has_text: [bool; 2],
    next_call: usize,
    /// Number of bytes at the end of the continued message that were held back. If they turn out to
    /// be text, they are not returned again.
    before: usize,
    /// Prefix of ids for calls whose text has no id. The field `used_ids` has the ids in use.
    ids: String,
    used_ids: HashSet<String>,
    deltas: Vec<Delta>,
}

impl Parser {
    /// Returns a parser for an answer to this prompt. The end of the prompt may have begun the
    /// reasoning.
    pub fn new(format: &'static Format, prompt: &str) -> Parser {
        Parser {
            format,
            markers: State::ALL.map(|state| Markers::new(format, state, false)),
            first_markers: format
                .moves
                .iter()
                .any(|step| step.only_first)
                .then(|| Markers::new(format, State::Content, true)),
            texts: TextParameters::default(),
            state: format.begin(prompt),
            buffer: String::new(),
            start: 0,
            scan_from: 0,
            opening: String::new(),
            callee: None,
            attempts: 0,
            named: false,
            stream: CallStream::default(),
            holds_calls: false,
            has_calls: true,
            first_end: None,
            behind_marker: format.begin(prompt) != State::Content,
            space: String::new(),
            has_text: [false; 2],
            next_call: 0,
            before: 0,
            ids: "call_".to_owned(),
            used_ids: HashSet::new(),
            deltas: Vec::new(),
        }
    }

    /// Returns a parser for an answer that continues a message. `text` is the text of the message,
    /// and `part` is the part in which it begins. Also returns the parsed message, which does not
    /// become part of the answer; its end may be an incomplete marker. A call that the message
    /// began is returned as a whole.
    #[must_use]
    pub fn continuing(mut self, part: Part, text: &str) -> (Parser, Answer) {
        self.begin(match part {
            Part::Content => State::Content,
            Part::Reasoning => State::Reasoning,
        });
        self.behind_marker = false;
        let mut has_text = Answer::default();
        self.holds_calls = true;
        has_text.extend(self.push(text));
        self.holds_calls = false;
        let held = [&*self.opening, &*self.space, &*self.buffer].concat();
        self.before = held.len();
        has_text.extend(match self.part() {
            Some(Part::Content) => vec![Delta::Content(held)],
            Some(Part::Reasoning) => vec![Delta::Reasoning(held)],
            None => Vec::new(),
        });
        (self, has_text)
    }

    /// Returns the format that the parser follows.
    pub fn format(&self) -> &'static Format {
        self.format
    }

    /// Returns the part of the answer that further text belongs to. `None` inside a call, between
    /// calls and in a header.
    pub fn part(&self) -> Option<Part> {
        match self.state {
            State::Content => Some(Part::Content),
            State::Reasoning => Some(Part::Reasoning),
            State::Section | State::Call | State::Header => None,
        }
    }

    /// Sets the types of parameters, from the schemas of the request's tools.
    #[must_use]
    pub fn with_texts(self, texts: TextParameters) -> Parser {
        Parser { texts, ..self }
    }

    /// Makes text that looks like a call stay text. This is for requests without tools, and with
    /// `tool_choice` none.
    #[must_use]
    pub fn without_calls(mut self) -> Parser {
        self.has_calls = false;
        self.first_markers = None;
        self.markers = State::ALL.map(|state| Markers::without_calls(self.format, state));
        self
    }

    /// Sets the number in the id of the first call that has no id. Ids in one conversation must
    /// differ.
    #[must_use]
    pub fn numbered_from(self, next_call: usize) -> Parser {
        Parser { next_call, ..self }
    }

    /// Sets the prefix of ids for calls that have no id.
    #[must_use]
    pub fn with_ids(self, ids: String) -> Parser {
        Parser { ids, ..self }
    }

    /// Sets the ids of calls that the conversation already has. Calls of the answer then get other
    /// ids.
    #[must_use]
    pub fn beside_ids(self, used_ids: HashSet<String>) -> Parser {
        Parser { used_ids, ..self }
    }

    /// Parses the next piece of the answer. The pieces must have all text that the model wrote,
    /// including the names of control tokens, except the token that ended the answer.
    pub fn push(&mut self, piece: &str) -> Vec<Delta> {
        self.buffer.push_str(piece);
        while self.step() {}
        self.buffer.drain(..self.start);
        self.scan_from = self.scan_from.saturating_sub(self.start);
        if let Some((at, _)) = &mut self.first_end {
            *at -= self.start;
        }
        self.start = 0;
        std::mem::take(&mut self.deltas)
    }

    /// Ends the answer. Returns the text that was held back.
    pub fn finish(self) -> Vec<Delta> {
        self.last_deltas(false)
    }

    /// Ends an answer that was cut off. Returns the text that was held back, except the beginning
    /// of a call. A call whose arguments began ends here.
    pub fn finish_cut(self) -> Vec<Delta> {
        self.last_deltas(true)
    }

    fn last_deltas(mut self, is_cut: bool) -> Vec<Delta> {
        loop {
            while self.step() {}
            match self.state {
                State::Content | State::Reasoning | State::Section => {
                    if !(is_cut && self.begins_call()) {
                        self.push_text(self.start..self.buffer.len());
                    }
                    break;
                }
                State::Call => {
                    self.stream_call(self.buffer.len());
                    // The end marker may be missing, because it may be the token that ended the
                    // answer.
                    if let Reading::Whole(calls) = self.read(self.buffer.len(), false) {
                        self.emit(calls);
                        break;
                    }
                    if is_cut {
                        self.behind_marker = true;
                        break;
                    }
                    self.give_up();
                }
                State::Header if is_cut => {
                    self.behind_marker = true;
                    break;
                }
                State::Header => self.leave_header(),
            }
            if self.start == self.buffer.len() {
                break;
            }
        }
        if !self.behind_marker {
            let space = std::mem::take(&mut self.space);
            self.delta(space);
        }
        self.deltas
    }

    /// Returns whether the text that was held back is the beginning of a marker that leads to a
    /// call.
    fn begins_call(&self) -> bool {
        let rest = &self.buffer[self.start..];
        let markers =
            self.first_markers.iter().filter(|_| !self.has_text[0]).chain([&self.markers[self.state as usize]]);
        self.state == State::Section || markers.into_iter().any(|markers| markers.begins_call(rest))
    }

    /// Processes the text up to the next marker, and the marker. Returns whether more text may be
    /// ready to process.
    fn step(&mut self) -> bool {
        let markers = &self.markers[self.state as usize];
        let from = match self.state {
            State::Content | State::Reasoning | State::Section => self.start,
            State::Call | State::Header => self.scan_from.max(self.start),
        };
        // A header has a maximum length, so only this much text is searched. Otherwise each
        // beginning of a header in a long text would search to its end.
        let until = match self.state {
            State::Header => self.buffer.floor_char_boundary(self.start + 2 * MAX_HEADER),
            State::Content | State::Reasoning | State::Section | State::Call => self.buffer.len(),
        };
        let looked_at = &self.buffer[from..until];
        let is_first = self.state == State::Content && !self.has_text[0] && self.texts.has_tools();
        let first_markers = self.first_markers.as_ref().filter(|_| is_first);
        // A marker that counts only at the beginning of the content must not have text before it.
        let first = |at: usize| looked_at[..at].trim().is_empty();
        let found = first_markers.and_then(|markers| markers.find(looked_at));
        let found = found.filter(|(at, step)| !step.only_first || first(*at)).or_else(|| markers.find(looked_at));
        let found = found.map(|(at, step)| (from + at, step));
        let begun = || {
            let begun = first_markers.map(|markers| markers.incomplete_marker(looked_at)).filter(|at| first(*at));
            from + begun.unwrap_or_else(|| markers.incomplete_marker(looked_at))
        };
        let end = found.map_or_else(begun, |(at, _)| at);
        if self.state == State::Call
            && let Some(at) = self.no_call(end)
        {
            let opening = std::mem::take(&mut self.opening);
            self.state = State::Content;
            self.say_text(&opening);
            self.push_text(self.start..at);
            self.start = at;
            self.begin(State::Content);
            return true;
        }
        if self.state == State::Call {
            self.stream_call(end);
        }
        match (self.state, found) {
            (State::Content | State::Reasoning | State::Section, found) => {
                self.push_text(self.start..end);
                self.start = end;
                if let Some((_, step)) = found {
                    self.enter(step);
                }
            }
            (State::Call, Some((at, step))) => self.end_call(at, step),
            (State::Header, _) if !is_header(&self.buffer[self.start..end]) => {
                self.leave_header();
                return self.start < self.buffer.len();
            }
            (State::Header, Some((at, step))) => self.end_header(at, step),
            (State::Call | State::Header, None) => self.scan_from = end,
        }
        found.is_some()
    }

    /// Changes to the state of the marker `step`, which is at the start of the buffer.
    fn enter(&mut self, step: Move) {
        match step.to {
            State::Content | State::Reasoning | State::Section => {
                self.before = 0;
                self.space.clear();
                self.opening.clear();
                self.behind_marker = true;
            }
            State::Call | State::Header => {
                self.opening = std::mem::take(&mut self.space);
                self.opening.push_str(step.marker);
            }
        }
        self.start += step.marker.len();
        self.begin(step.to);
    }

    fn begin(&mut self, state: State) {
        self.state = state;
        self.scan_from = self.start;
        self.attempts = 0;
        self.named = false;
        self.stream = CallStream::default();
        self.first_end = None;
        self.callee = None;
    }

    /// Streams the part of the current call that is certain, up to `end`. The end of the call is
    /// not known yet.
    fn stream_call(&mut self, end: usize) {
        if self.holds_calls {
            return;
        }
        let (callee, opening) = (self.callee.as_deref(), &*self.opening);
        let known = CallContext { callee, opening, closed: false, texts: &self.texts };
        for piece in self.stream.read(self.format.call, &self.buffer[self.start..end], known) {
            match piece {
                CallDelta::Begin { id, name } => self.begin_call(id, name, String::new()),
                CallDelta::Arguments(text) => self.add_arguments(&text),
            }
        }
    }

    /// Returns the position in the buffer at which a text that looked like a call is proved to be
    /// an answer. `None` while it may be a call.
    fn no_call(&mut self, end: usize) -> Option<usize> {
        let Grammar::Bare(grammar) = self.format.call else { return None };
        let opening = bracket(&self.opening);
        if self.named || opening.is_empty() {
            return None;
        }
        // Only a short text is examined again with each piece, as names of members and of tools are
        // short.
        let seen = [opening, &self.buffer[self.start..end]].concat();
        match call_prospect(grammar, &seen, &self.texts) {
            Prospect::None(length) => Some(self.start + length.saturating_sub(opening.len())),
            Prospect::Open => None,
            Prospect::Named => {
                self.named = true;
                None
            }
        }
    }

    /// Handles a marker at `at` that may be the end of the current call.
    fn end_call(&mut self, at: usize, step: Move) {
        if self.stream.may_hold(step.marker) {
            // The marker is part of an argument, so the call continues.
            self.first_end.get_or_insert((at, step));
            self.scan_from = at + step.marker.len();
            return;
        }
        match self.read(at, true) {
            Reading::Whole(calls) => {
                self.emit(calls);
                self.start = at;
                self.behind_marker = true;
                self.enter(step);
            }
            Reading::Unfinished if self.attempts < MAX_ATTEMPTS && !self.stream.is_open() => {
                self.attempts += 1;
                self.first_end.get_or_insert((at, step));
                self.scan_from = at + step.marker.len();
            }
            Reading::Unfinished | Reading::Wrong => {
                self.first_end.get_or_insert((at, step));
                self.give_up();
            }
        }
    }

    /// Handles the marker at `at`, which ends a header.
    fn end_header(&mut self, at: usize, step: Move) {
        if step.to == State::Header {
            self.leave_header();
            return;
        }
        let text = [self.opening.as_str(), &self.buffer[self.start..at]].concat();
        let (recipient, channel) = header(&text);
        if recipient.is_some() && !self.has_calls {
            self.leave_header();
            return;
        }
        let to = match (recipient, channel) {
            (Some(_), _) => State::Call,
            (None, ANALYSIS) => State::Reasoning,
            (None, _) => step.to,
        };
        let callee = recipient.map(str::to_owned);
        if to == State::Call {
            self.opening = text + step.marker;
        } else {
            self.before = 0;
            self.opening.clear();
            self.space.clear();
            self.behind_marker = true;
        }
        self.start = at + step.marker.len();
        self.begin(to);
        self.callee = callee;
    }

    /// Treats text that looked like a header as content, including the marker before it. The text
    /// is then parsed again as content.
    fn leave_header(&mut self) {
        let opening = std::mem::take(&mut self.opening);
        self.begin(State::Content);
        self.say_text(&opening);
    }

    /// Treats text that looked like a call as content. This is the text up to and including its
    /// first end marker, or up to the end of the buffer. Text that was already returned as a call
    /// is not repeated.
    fn give_up(&mut self) {
        let is_given = self.stream.calls > 0;
        let (until, end, to) = match self.first_end {
            // A marker that begins another call or header is not content; it is parsed again.
            Some((at, step)) if matches!(step.to, State::Call | State::Header) => (at, at, State::Content),
            Some((at, step)) => (if is_given { at } else { at + step.marker.len() }, at + step.marker.len(), step.to),
            None => (self.buffer.len(), self.buffer.len(), State::Content),
        };
        let opening = std::mem::take(&mut self.opening);
        self.state = State::Content;
        let mut from = self.start;
        if is_given {
            from += self.stream.at;
            self.behind_marker = true;
        } else {
            self.say_text(&opening);
        }
        self.push_text(from..until.max(from));
        self.start = end.max(from);
        self.begin(to);
    }

    fn read(&self, end: usize, closed: bool) -> Reading<Vec<ParsedCall>> {
        let (callee, opening) = (self.callee.as_deref(), &*self.opening);
        let known = CallContext { callee, opening, closed, texts: &self.texts };
        self.format.call.read(&self.buffer[self.start..end], known)
    }

    /// Appends the parsed calls to the deltas, without the parts that were already streamed.
    fn emit(&mut self, calls: Vec<ParsedCall>) {
        let given = std::mem::take(&mut self.stream);
        for (number, call) in (1..).zip(calls) {
            if number > given.calls {
                self.begin_call(call.id, call.name, call.arguments);
            } else if number == given.calls {
                let rest = call.arguments.strip_prefix(&*given.arguments);
                self.add_arguments(rest.unwrap_or_default());
            }
        }
    }

    fn begin_call(&mut self, id: Option<String>, name: String, arguments: String) {
        self.before = 0;
        let mut id = id.unwrap_or_else(|| self.new_id(&self.ids));
        // A tool's result refers to a call by its id. If the model repeats an id, its number is
        // changed.
        let stem = self.format.call.stem(&id).map(str::to_owned);
        let stem = stem.unwrap_or_else(|| self.ids.clone());
        while !self.used_ids.insert(id.clone()) {
            id = self.new_id(&stem);
            self.next_call += 1;
        }
        self.next_call += 1;
        self.deltas.push(Delta::Call(ToolCall { id, name, arguments }));
    }

    /// Returns an id with the next call's number, in the form that the model's chat template
    /// accepts.
    fn new_id(&self, stem: &str) -> String {
        let id = format!("{stem}{}", self.next_call);
        match self.format.call.id_length() {
            Some(length) => letters_and_digits(&id, length),
            None => id,
        }
    }

    fn add_arguments(&mut self, text: &str) {
        match self.deltas.last_mut() {
            _ if text.is_empty() => {}
            Some(Delta::Call(call)) => call.arguments.push_str(text),
            Some(Delta::Arguments(before)) => before.push_str(text),
            _ => self.deltas.push(Delta::Arguments(text.to_owned())),
        }
    }

    fn push_text(&mut self, range: std::ops::Range<usize>) {
        // `say_text` changes other fields, so the buffer cannot stay borrowed.
        let buffer = std::mem::take(&mut self.buffer);
        self.say_text(&buffer[range]);
        self.buffer = buffer;
    }

    /// Appends a text to the current part. White space at its end is held back, as it may belong to
    /// a marker.
    fn say_text(&mut self, text: &str) {
        let mut text = text;
        if self.behind_marker {
            text = text.trim_start();
            if text.is_empty() {
                return;
            }
            self.behind_marker = false;
            self.space.clear();
            // If a marker separates two parts of the same kind, a line feed separates their texts.
            if self.has_text[usize::from(self.state == State::Reasoning)] && self.before == 0 {
                self.space.push('\n');
            }
        }
        let end = text.trim_end().len();
        if end > 0 {
            let mut has_text = std::mem::take(&mut self.space);
            has_text.push_str(&text[..end]);
            self.delta(has_text);
        }
        self.space.push_str(&text[end..]);
    }

    fn delta(&mut self, mut text: String) {
        let before = text.floor_char_boundary(self.before);
        self.before -= before;
        text.drain(..before);
        if text.is_empty() {
            return;
        }
        let is_reasoning = self.state == State::Reasoning;
        self.has_text[usize::from(is_reasoning)] = true;
        match (self.deltas.last_mut(), is_reasoning) {
            (Some(Delta::Reasoning(before)), true) | (Some(Delta::Content(before)), false) => before.push_str(&text),
            (_, true) => self.deltas.push(Delta::Reasoning(text)),
            (_, false) => self.deltas.push(Delta::Content(text)),
        }
    }
}

/// Returns a name of `length` letters and digits that is derived from a text. Different texts give
/// different names, except if 64-bit hashes collide.
fn letters_and_digits(text: &str, length: usize) -> String {
    const DIGITS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mut hasher = std::hash::DefaultHasher::new();
    text.hash(&mut hasher);
    let mut rest = hasher.finish();
    let mut next = || {
        let digit = DIGITS[(rest % 62) as usize];
        rest /= 62;
        char::from(digit)
    };
    (0..length).map(|_| next()).collect()
}

/// Returns whether a text may be a header, or the beginning of one.
fn is_header(text: &str) -> bool {
    text.len() <= MAX_HEADER && text.chars().all(|c| c.is_ascii_alphanumeric() || HEADER_CHARACTERS.contains(c))
}
