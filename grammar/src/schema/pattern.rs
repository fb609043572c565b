//! Translation of regular expressions in schemas (ECMA-262) to the syntax of `regex-syntax`.
//!
//! Leading lookaheads (`^(?=.*[0-9])(?!admin).+$`) are common in password rules. They become
//! separate expressions that a text must match, or must not match.

use std::iter::Peekable;
use std::str::Chars;

/// Expression, and whether a text must match it or must not match it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    pub regex: String,
    pub holds: bool,
}

/// Splits an expression into its leading lookaheads and the rest. Returns all parts in Rust's
/// syntax.
///
/// # Errors
/// The part of the expression that is not supported.
pub(super) fn conditions(pattern: &str) -> Result<Vec<Condition>, String> {
    let mut all = Vec::new();
    let mut rest = pattern;
    if let Some(mut inner) =
        pattern.strip_prefix('^').filter(|inner| inner.starts_with("(?=") || inner.starts_with("(?!"))
    {
        while let Some((holds, body)) = inner
            .strip_prefix("(?=")
            .map(|body| (true, body))
            .or_else(|| inner.strip_prefix("(?!").map(|body| (false, body)))
        {
            let end = group_end(body).ok_or("a lookahead has no closing )")?;
            all.push(Condition { regex: rust(&format!("^(?:{})", &body[..end]))?, holds });
            inner = &body[end + 1..];
        }
        if has_choice(inner) {
            return Err("a lookahead next to `|` outside of brackets is not supported".to_owned());
        }
        rest = inner;
        all.push(Condition { regex: rust(&format!("^(?:{rest})"))?, holds: true });
        return Ok(all);
    }
    all.push(Condition { regex: rust(rest)?, holds: true });
    Ok(all)
}

/// Returns the characters of a regular expression with their positions. Omits characters in classes
/// and characters after a `\`.
fn operators(text: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut in_class, mut escaped) = (false, false);
    text.char_indices().filter(move |&(_, c)| {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' if in_class => in_class = false,
            _ if in_class => {}
            '[' => in_class = true,
            _ => return true,
        }
        false
    })
}

/// Returns the position of the bracket that closes a group. The text begins with the group's body.
fn group_end(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, c) in operators(text) {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => return Some(at),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Returns whether a text has a `|` outside all brackets.
fn has_choice(text: &str) -> bool {
    let mut depth = 0usize;
    for (_, c) in operators(text) {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => return true,
            _ => {}
        }
    }
    false
}

/// Returns an expression, converted to Rust's syntax.
fn rust(pattern: &str) -> Result<String, String> {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut chars = pattern.chars().peekable();
    let mut in_class = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' => escape(&mut chars, in_class, &mut out)?,
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            '[' if !in_class => {
                in_class = true;
                out.push('[');
                if chars.next_if_eq(&'^').is_some() {
                    out.push('^');
                }
                // In ECMA-262, `[]` matches no character, and `[^]` matches any.
                if chars.next_if_eq(&']').is_some() {
                    out.push_str(if out.ends_with('^') { "]" } else { "^\\x{0}-\\x{10ffff}]" });
                    if out.ends_with("[^]") {
                        out.truncate(out.len() - 3);
                        out.push_str("[\\x{0}-\\x{10ffff}]");
                    }
                    in_class = false;
                }
            }
            '[' | '&' | '~' if in_class => {
                out.push('\\');
                out.push(c);
            }
            '-' if in_class && chars.peek() == Some(&'-') => out.push_str("\\-"),
            '(' if !in_class && chars.peek() == Some(&'?') => group(&mut chars, &mut out)?,
            '{' if !in_class && !is_count(&chars) => out.push_str("\\{"),
            _ => out.push(c),
        }
    }
    Ok(out)
}

/// Reads the text after `(?`, and writes the group's beginning in Rust's syntax.
fn group(chars: &mut Peekable<Chars<'_>>, out: &mut String) -> Result<(), String> {
    let rest: String = chars.clone().take(3).collect();
    if ["?=", "?!", "?<=", "?<!"].iter().any(|look| rest.starts_with(look)) {
        return Err(format!(
            "({rest}…) is not supported; the only supported lookaround is a lookahead directly after a leading ^"
        ));
    }
    out.push('(');
    Ok(())
}

/// Returns whether the text after `{` is a number of repetitions.
fn is_count(chars: &Peekable<Chars<'_>>) -> bool {
    let inner: String = chars.clone().take_while(|c| *c != '}').collect();
    let (min, max) = inner.split_once(',').unwrap_or((&inner, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    !min.is_empty() && is_number(min) && is_number(max) && chars.clone().nth(inner.chars().count()) == Some('}')
}

/// Characters of ECMA-262's `\s`: white space and line terminators.
const SPACE: &str =
    "\\t\\n\\x0b\\x0c\\r\\x20\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}\\x{feff}";

/// Reads the text after a backslash, and writes the escape in Rust's syntax.
fn escape(chars: &mut Peekable<Chars<'_>>, in_class: bool, out: &mut String) -> Result<(), String> {
    let c = chars.next().ok_or("it ends with a backslash; expected a character after it")?;
    let class = |set: &str| if in_class { set.to_owned() } else { format!("[{set}]") };
    match c {
        'd' => out.push_str(&class("0-9")),
        'w' => out.push_str(&class("0-9A-Za-z_")),
        's' => out.push_str(&class(SPACE)),
        'S' => out.push_str(&format!("[^{SPACE}]")),
        'D' => out.push_str("[^0-9]"),
        'W' => out.push_str("[^0-9A-Za-z_]"),
        'b' if in_class => out.push_str("\\x08"),
        '0' => out.push_str("\\x00"),
        'A' | 'z' if !in_class => {
            out.push('\\');
            out.push(c);
        }
        'Z' if !in_class => out.push_str("\\z"),
        'c' => match chars.next() {
            Some(letter) if letter.is_ascii_alphabetic() => out.push_str(&format!("\\x{{{:x}}}", letter as u32 % 32)),
            _ => return Err("\\c must be followed by a letter".to_owned()),
        },
        'u' if chars.peek() != Some(&'{') => unit(chars, out)?,
        '1'..='9' | 'k' => return Err(format!("\\{c} refers back to a group, which is not supported")),
        'p' | 'P' | 'u' | 'x' | 'n' | 'r' | 't' | 'v' | 'f' | 'b' | 'B' => {
            out.push('\\');
            out.push(c);
            if matches!(c, 'p' | 'P' | 'u' | 'x') && chars.peek() == Some(&'{') {
                while let Some(inner) = chars.next_if(|inner| *inner != '}') {
                    out.push(inner);
                }
            }
        }
        _ => out.push_str(&format!("\\x{{{:x}}}", c as u32)),
    }
    Ok(())
}

/// Reads the text after `\u`: one or two code units of UTF-16.
fn unit(chars: &mut Peekable<Chars<'_>>, out: &mut String) -> Result<(), String> {
    let mut four = || -> Result<u32, String> {
        let digits: String = chars.by_ref().take(4).collect();
        u32::from_str_radix(&digits, 16).map_err(|_| format!("\\u{digits} is not a character"))
    };
    let first = four()?;
    if !(0xd800..0xdc00).contains(&first) {
        out.push_str(&format!("\\x{{{first:x}}}"));
        return Ok(());
    }
    if chars.next() != Some('\\') || chars.next() != Some('u') {
        return Err("half of a surrogate pair is not a character; write both halves".to_owned());
    }
    let digits: String = chars.by_ref().take(4).collect();
    let second = u32::from_str_radix(&digits, 16).ok().filter(|unit| (0xdc00..0xe000).contains(unit));
    let second = second.ok_or("half of a surrogate pair is not a character; write both halves")?;
    out.push_str(&format!("\\x{{{:x}}}", 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ecma_patterns_are_translated_to_rust_regexes() {
        let one =
            |pattern: &str| conditions(pattern).map(|all| all.into_iter().map(|one| one.regex).collect::<Vec<_>>());
        assert_eq!(one(r"^\d+[\w.\-]$").unwrap(), [r"^[0-9]+[0-9A-Za-z_.\x{2d}]$"]);
        assert_eq!(one(r"^{[[&&]a{2}$").unwrap(), [r"^\{[\[\&\&]a{2}$"]);
        assert_eq!(one(r"\ud83d\ude00\/").unwrap(), [r"\x{1f600}\x{2f}"]);
        assert_eq!(one(r"^(?=.*\d)(?!a)b+$").unwrap(), ["^(?:.*[0-9])", "^(?:a)", "^(?:b+$)"]);
        assert_eq!(one(r"^\p{Lu}{2}\u{1f600}$").unwrap(), [r"^\p{Lu}{2}\u{1f600}$"]);
        assert!(one(r"a(?=b)").unwrap_err().contains("the only supported lookaround is a lookahead"));
        assert!(one(r"(a)\1").unwrap_err().contains("refers back"));
    }
}
