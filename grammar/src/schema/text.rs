//! Sets of JSON strings as regular expressions. A pattern over characters is converted to a pattern
//! over their quoted form.
//!
//! Each text has one quoted form. Only `"`, `\` and control characters are escaped, each with its
//! shortest escape. The lexer can therefore distinguish texts by their bytes, and keys are equal if
//! their bytes are equal.

use std::fmt::Write;

use llguidance::derivre::{RegexAst, RegexBuilder};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look};

use super::pattern;

/// Max length, in characters, that a schema may require of a text.
pub(super) const MAX_LENGTH: u64 = 1_000_000;
/// Expression for one character in quoted form.
pub(super) const CHARACTER: &str = r#"(?:[^\x22\x5c\x00-\x1f]|\x5c(?:[\x22\x5cbfnrt]|u00(?:0[0-7bef]|1[0-9a-f])))"#;
/// Expression for one character without quoting.
const ANY_CHARACTER: &str = r"[\x{0}-\x{10ffff}]";
/// Max number of variants of a pattern. In each variant, anchors occur only at the ends.
const MAX_VARIANTS: usize = 64;
/// Max work of the checks whether a text matches, and whether any text matches.
const MAX_FUEL: u64 = 100_000;
/// Max bytes of the regular expression for a pattern.
const MAX_REGEX: usize = 1 << 18;
/// Max nesting of a pattern.
const MAX_NEST: u32 = 100;

/// Pattern as two expressions: one for plain texts, and one for texts quoted in JSON. Both match
/// whole texts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Pattern {
    pub plain: String,
    /// Expression for quoted texts, without the quotation marks around them.
    pub quoted: String,
    pub holds: bool,
}

impl Pattern {
    /// Reads a schema's `pattern`. A text must satisfy all patterns in the result.
    ///
    /// # Errors
    /// The part of the pattern that is not supported.
    pub fn parse_all(pattern: &str) -> Result<Vec<Pattern>, String> {
        let conditions = pattern::conditions(pattern)?;
        conditions.into_iter().map(|condition| Pattern::parse(&condition.regex, condition.holds)).collect()
    }

    /// Creates a pattern from an expression in Rust's syntax, which must match whole texts.
    pub fn whole_match(regex: &str) -> Result<Pattern, String> {
        Pattern::parse(&format!("^(?:{regex})$"), true)
    }

    fn parse(regex: &str, holds: bool) -> Result<Pattern, String> {
        let hir = ParserBuilder::new().crlf(true).nest_limit(MAX_NEST).build().parse(regex);
        let hir = hir.map_err(|error| format!("it is not a supported regular expression ({})", reason(&error)))?;
        let written = |quoted| {
            let mut text = String::new();
            search(&hir, quoted, &mut text)?;
            if text.len() > MAX_REGEX { Err("it is too long".to_owned()) } else { Ok(text) }
        };
        Ok(Pattern { plain: written(false)?, quoted: written(true)?, holds })
    }

    /// Returns the complement of the pattern.
    pub fn negate(&self) -> Pattern {
        Pattern { holds: !self.holds, ..self.clone() }
    }

    /// Returns whether a text satisfies the pattern, or `None` if the check takes too much work.
    pub fn has(&self, text: &str) -> Option<bool> {
        let mut builder = RegexBuilder::new();
        let regex = builder.mk_regex(&self.plain).ok()?;
        let mut regex = builder.to_regex_limited(regex, MAX_FUEL).ok()?;
        Some(regex.is_match(text) == self.holds)
    }
}

/// Returns a description of the problem in a malformed pattern.
fn reason(error: &regex_syntax::Error) -> String {
    match error {
        regex_syntax::Error::Parse(error) => error.kind().to_string(),
        regex_syntax::Error::Translate(error) => error.kind().to_string(),
        _ => "it is malformed".to_owned(),
    }
}

/// Condition that texts must meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    /// Regular expression that is compared with whole texts.
    pub regex: String,
    /// Whether texts must match the expression. If not set, they must not match it.
    pub holds: bool,
}

impl Condition {
    /// Returns the condition that a whole text matches `regex`.
    pub fn matches(regex: String) -> Condition {
        Condition { regex, holds: true }
    }

    /// Returns the condition that a whole text does not match `regex`.
    pub fn differs(regex: String) -> Condition {
        Condition { regex, holds: false }
    }
}

/// Returns whether no text satisfies all conditions, or `None` if the check takes too much work.
pub(super) fn is_empty(conditions: &[Condition]) -> Option<bool> {
    let mut builder = RegexBuilder::new();
    let all: Option<Vec<RegexAst>> = conditions
        .iter()
        .map(|Condition { regex, holds }| {
            let regex = RegexAst::ExprRef(builder.mk_regex(regex).ok()?);
            Some(if *holds { regex } else { RegexAst::Not(Box::new(regex)) })
        })
        .collect();
    let all = builder.mk(&RegexAst::And(all?)).ok()?;
    let mut regex = builder.to_regex_limited(all, MAX_FUEL).ok()?;
    Some(regex.always_empty())
}

/// Returns whether an expression matches a text as a whole.
#[cfg(test)]
pub(super) fn is_whole_match(regex: &str, text: &str) -> bool {
    let mut builder = RegexBuilder::new();
    let regex = builder.mk_regex(regex).unwrap();
    builder.to_regex(regex).is_match(text)
}

/// Returns an expression that matches only one text.
pub(super) fn literal(text: &str, quoted: bool) -> String {
    let mut out = String::new();
    text.chars().for_each(|c| character(c, quoted, &mut out));
    out
}

/// Returns an expression for any text of `min` to `max` characters.
pub(super) fn length_regex(min: u64, max: Option<u64>, quoted: bool) -> String {
    let one = if quoted { CHARACTER } else { ANY_CHARACTER };
    // No answer has as many characters as this limit, so a higher bound has no effect.
    let max = max.filter(|max| *max <= MAX_LENGTH);
    match (min, max) {
        (0, None) => format!("{one}*"),
        (min, None) => format!("{one}{{{min},}}"),
        (min, Some(max)) => format!("{one}{{{min},{max}}}"),
    }
}

/// Lists the texts that a pattern matches. Returns `None` if they are too many, or if the list may
/// be incomplete.
pub(super) fn texts(pattern: &str, max: usize) -> Option<Vec<String>> {
    let conditions = pattern::conditions(pattern).ok()?;
    let [condition] = conditions.as_slice() else { return None };
    let hir = ParserBuilder::new().crlf(true).nest_limit(MAX_NEST).build().parse(&condition.regex).ok()?;
    let mut all = Vec::new();
    for variant in variants(&hir).ok()? {
        if !variant.starts || !variant.ends {
            return None;
        }
        let mut texts = vec![String::new()];
        for part in &variant.parts {
            texts = concatenations(&texts, &matched_texts(part, max)?, max)?;
        }
        all.extend(texts);
    }
    all.sort_unstable();
    all.dedup();
    (all.len() <= max).then_some(all)
}

fn concatenations(heads: &[String], tails: &[String], max: usize) -> Option<Vec<String>> {
    let count = heads.len().checked_mul(tails.len()).filter(|count| *count <= 4 * max)?;
    let mut all = Vec::with_capacity(count);
    for head in heads {
        all.extend(tails.iter().map(|tail| format!("{head}{tail}")));
    }
    Some(all)
}

/// Lists the texts that an expression without anchors matches.
fn matched_texts(hir: &Hir, max: usize) -> Option<Vec<String>> {
    let all = match hir.kind() {
        HirKind::Empty => vec![String::new()],
        HirKind::Literal(literal) => vec![String::from_utf8(literal.0.to_vec()).ok()?],
        HirKind::Class(class) => {
            let class = unicode(class)?;
            let count: u64 = class.iter().map(|range| u64::from(range.end() as u32 - range.start() as u32) + 1).sum();
            if count > max as u64 {
                return None;
            }
            class.iter().flat_map(|range| range.start()..=range.end()).map(String::from).collect()
        }
        HirKind::Look(_) => return None,
        HirKind::Repetition(repetition) => {
            let last = repetition.max.filter(|max| *max <= 64)?;
            let one = matched_texts(&repetition.sub, max)?;
            let (mut all, mut texts) = (Vec::new(), vec![String::new()]);
            for count in 0..=last {
                if count >= repetition.min {
                    all.extend(texts.iter().cloned());
                }
                if count < last {
                    texts = concatenations(&texts, &one, max)?;
                }
            }
            all
        }
        HirKind::Capture(capture) => matched_texts(&capture.sub, max)?,
        HirKind::Concat(parts) => {
            let mut texts = vec![String::new()];
            for part in parts {
                texts = concatenations(&texts, &matched_texts(part, max)?, max)?;
            }
            texts
        }
        HirKind::Alternation(parts) => {
            let all: Option<Vec<_>> = parts.iter().map(|part| matched_texts(part, max)).collect();
            all?.into_iter().flatten().collect()
        }
    };
    (all.len() <= 4 * max).then_some(all)
}

/// Variant of a pattern that has anchors only at its ends.
#[derive(Clone, Debug, Default)]
struct Variant {
    starts: bool,
    ends: bool,
    parts: Vec<Hir>,
}

/// Writes an expression that matches a whole text if the pattern matches a part of the text.
fn search(hir: &Hir, quoted: bool, out: &mut String) -> Result<(), String> {
    let any = length_regex(0, None, quoted);
    for (i, variant) in variants(hir)?.into_iter().enumerate() {
        out.push_str(if i > 0 { "|" } else { "" });
        out.push_str(if variant.starts { "" } else { &any });
        variant.parts.iter().try_for_each(|part| write(part, quoted, out))?;
        out.push_str(if variant.ends { "" } else { &any });
    }
    Ok(())
}

/// Returns the variants of a pattern, with anchors moved to their ends.
fn variants(hir: &Hir) -> Result<Vec<Variant>, String> {
    let unsupported = || "an anchor in the middle of a pattern is not supported".to_owned();
    if hir.properties().look_set().is_empty() {
        return Ok(vec![Variant { parts: vec![hir.clone()], ..Variant::default() }]);
    }
    let all = match hir.kind() {
        HirKind::Look(Look::Start | Look::StartCRLF | Look::StartLF) => {
            vec![Variant { starts: true, ..Variant::default() }]
        }
        HirKind::Look(Look::End | Look::EndCRLF | Look::EndLF) => vec![Variant { ends: true, ..Variant::default() }],
        HirKind::Look(_) => return Err("\\b and \\B are not supported".to_owned()),
        HirKind::Capture(capture) => variants(&capture.sub)?,
        HirKind::Alternation(parts) => {
            let all: Result<Vec<_>, _> = parts.iter().map(variants).collect();
            all?.into_iter().flatten().collect()
        }
        HirKind::Concat(parts) => {
            let mut all = vec![Variant::default()];
            for part in parts {
                let tails = variants(part)?;
                let mut concatenations = Vec::new();
                for head in &all {
                    for tail in &tails {
                        let inside = tail.starts && !head.parts.is_empty() || head.ends && !tail.parts.is_empty();
                        if inside {
                            return Err(unsupported());
                        }
                        concatenations.push(Variant {
                            starts: head.starts || tail.starts,
                            ends: head.ends || tail.ends,
                            parts: [head.parts.as_slice(), &tail.parts].concat(),
                        });
                    }
                }
                all = concatenations;
                if all.len() > MAX_VARIANTS {
                    return Err(unsupported());
                }
            }
            all
        }
        HirKind::Repetition(repetition) if repetition.min == 0 && repetition.max == Some(1) => {
            let mut all = variants(&repetition.sub)?;
            all.push(Variant::default());
            all
        }
        _ => return Err(unsupported()),
    };
    if all.len() > MAX_VARIANTS { Err(unsupported()) } else { Ok(all) }
}

/// Writes an expression that has no anchors.
fn write(hir: &Hir, quoted: bool, out: &mut String) -> Result<(), String> {
    if out.len() > MAX_REGEX {
        return Err("it is too long".to_owned());
    }
    match hir.kind() {
        HirKind::Empty => {}
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).map_err(|_| "it has bytes that are not UTF-8".to_owned())?;
            text.chars().for_each(|c| character(c, quoted, out));
        }
        HirKind::Class(class) => {
            let class = unicode(class).ok_or("it has bytes that are not UTF-8")?;
            write_class(&class, quoted, out);
        }
        HirKind::Look(_) => return Err("an anchor in the middle of a pattern is not supported".to_owned()),
        HirKind::Repetition(repetition) => {
            out.push_str("(?:");
            write(&repetition.sub, quoted, out)?;
            let max = repetition.max.map(|max| max.to_string()).unwrap_or_default();
            let _ = write!(out, "){{{},{max}}}", repetition.min);
        }
        HirKind::Capture(capture) => write(&capture.sub, quoted, out)?,
        HirKind::Concat(parts) => parts.iter().try_for_each(|part| write(part, quoted, out))?,
        HirKind::Alternation(parts) => {
            out.push_str("(?:");
            for (i, part) in parts.iter().enumerate() {
                out.push_str(if i > 0 { "|" } else { "" });
                write(part, quoted, out)?;
            }
            out.push(')');
        }
    }
    Ok(())
}

fn unicode(class: &Class) -> Option<ClassUnicode> {
    match class {
        Class::Unicode(class) => Some(class.clone()),
        Class::Bytes(class) => class.to_unicode_class(),
    }
}

/// Writes an expression for one character of a set.
fn write_class(class: &ClassUnicode, quoted: bool, out: &mut String) {
    let range = |first: char, last: char| ClassUnicodeRange::new(first, last);
    if !quoted {
        return write_ranges(class, out);
    }
    let special = ClassUnicode::new([range('\0', '\x1f'), range('"', '"'), range('\\', '\\')]);
    let (mut plain, mut escaped) = (class.clone(), class.clone());
    plain.difference(&special);
    escaped.intersect(&special);
    let escaped: Vec<char> = escaped.iter().flat_map(|range| range.start()..=range.end()).collect();
    if escaped.is_empty() {
        return write_ranges(&plain, out);
    }
    out.push_str("(?:");
    let mut is_first = plain.ranges().is_empty();
    if !is_first {
        write_ranges(&plain, out);
    }
    for c in escaped {
        out.push_str(if is_first { "" } else { "|" });
        is_first = false;
        character(c, true, out);
    }
    out.push(')');
}

fn write_ranges(class: &ClassUnicode, out: &mut String) {
    if class.ranges().is_empty() {
        // The set has no character, so this expression matches nothing.
        out.push_str("[^\\x{0}-\\x{10ffff}]");
        return;
    }
    out.push('[');
    for range in class.iter() {
        let _ = write!(out, "\\x{{{:x}}}", range.start() as u32);
        if range.start() < range.end() {
            let _ = write!(out, "-\\x{{{:x}}}", range.end() as u32);
        }
    }
    out.push(']');
}

/// Writes an expression for one character.
fn character(c: char, quoted: bool, out: &mut String) {
    let escape = match c {
        '"' => "\\x5c\\x22",
        '\\' => "\\x5c\\x5c",
        '\u{8}' => "\\x5cb",
        '\u{c}' => "\\x5cf",
        '\n' => "\\x5cn",
        '\r' => "\\x5cr",
        '\t' => "\\x5ct",
        _ => "",
    };
    match c {
        _ if quoted && !escape.is_empty() => out.push_str(escape),
        c if quoted && c < ' ' => {
            let (high, low) = (c as u32 / 16, c as u32 % 16);
            let _ = write!(out, "\\x5cu00{high}{low:x}");
        }
        c if c.is_ascii_alphanumeric() => out.push(c),
        c => {
            let _ = write!(out, "\\x{{{:x}}}", c as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_patterns_match_like_plain_ones() {
        let patterns = [
            "^a+$",
            "a",
            "^a|b$",
            r#"^["\\]+$"#,
            r"^\n?[\x00-\x1f]$",
            "^(?:foo|^bar)",
            "^[^a]{2,3}$",
            "",
            "^$",
            r"\d{2}",
            "[éß😀]",
            "^.$",
            "^(?!a).*$",
            "^(?=.*a)(?=.*b)",
        ];
        let texts = [
            "", "a", "b", "ab", "ba", "aaa", "\"", "\\\"", "\n", "\n\u{1}", "\u{1f}", "foo", "xfoo", "bar", "12", "é",
            "😀", "\r", "x\ty",
        ];
        for pattern in patterns {
            let all = Pattern::parse_all(pattern).unwrap();
            for text in texts {
                let plain = all.iter().all(|pattern| pattern.has(text).unwrap());
                let json = serde_json::to_string(text).unwrap();
                let inner = &json[1..json.len() - 1];
                let quoted = all.iter().all(|pattern| is_whole_match(&pattern.quoted, inner) == pattern.holds);
                assert_eq!(plain, quoted, "{pattern:?} {text:?}");
            }
        }
        assert_eq!(texts_of("^[ab]$"), Some(vec!["a".into(), "b".into()]));
        assert_eq!(texts_of("^(x|yz?)$"), Some(vec!["x".into(), "y".into(), "yz".into()]));
        assert_eq!(texts_of("^a+$"), None);
        assert_eq!(texts_of("[ab]"), None);
    }

    fn texts_of(pattern: &str) -> Option<Vec<String>> {
        texts(pattern, 100)
    }
}
