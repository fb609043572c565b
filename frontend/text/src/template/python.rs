//! Values in Python's notation. `str` is for `{{ value }}`, `string` and `join`; `repr` is for
//! elements of lists and maps; `json.dumps` is for `tojson`.
//!
//! The differences from minijinja are numbers (`1e+20`, not `100000000000000000000.0`), characters
//! that Python escapes (`'\u2028'`), and the options of `tojson` in transformers.

use std::fmt::{self, Write};

use minijinja::value::{Value, ValueKind};

/// Decimal exponents of the numbers that Python's `float.__repr__` writes without an exponent.
const PLAIN_EXPONENTS: std::ops::Range<i32> = -4..16;

/// Returns the result of `str(value)`.
pub fn text(value: &Value) -> String {
    let mut out = String::new();
    let _ = write_text(&mut out, value);
    out
}

/// Writes the result of `str(value)`. An undefined value gives an empty text.
pub fn write_text(out: &mut dyn Write, value: &Value) -> fmt::Result {
    match value.as_str() {
        Some(text) => out.write_str(text),
        None => write_repr(out, value),
    }
}

/// Writes the result of `repr(value)`.
fn write_repr(out: &mut dyn Write, value: &Value) -> fmt::Result {
    match value.kind() {
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Number => write_number(out, value),
        ValueKind::Seq | ValueKind::Iterable => {
            let Ok(elements) = value.try_iter() else { return write!(out, "{value}") };
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.write_char(open)?;
            let mut count = 0;
            for element in elements {
                out.write_str(if count > 0 { ", " } else { "" })?;
                write_repr(out, &element)?;
                count += 1;
            }
            // A tuple with one element needs a comma, `(1,)`, as parentheses alone do not make a
            // tuple.
            out.write_str(if value.is_tuple() && count == 1 { "," } else { "" })?;
            out.write_char(close)
        }
        ValueKind::Map => {
            let Ok(keys) = value.try_iter() else { return write!(out, "{value}") };
            out.write_char('{')?;
            for (place, key) in keys.enumerate() {
                out.write_str(if place > 0 { ", " } else { "" })?;
                write_repr(out, &key)?;
                out.write_str(": ")?;
                write_repr(out, &value.get_item(&key).unwrap_or_default())?;
            }
            out.write_char('}')
        }
        ValueKind::Undefined
        | ValueKind::None
        | ValueKind::Bool
        | ValueKind::Bytes
        | ValueKind::Plain
        | ValueKind::Invalid => {
            write!(out, "{value}")
        }
        // This arm is required, because minijinja's enum is non-exhaustive.
        _ => write!(out, "{value}"),
    }
}

/// Returns the value as a float; `None` for integers and other types.
fn as_float(value: &Value) -> Option<f64> {
    (!value.is_integer()).then(|| f64::try_from(value.clone()).ok())?
}

fn write_number(out: &mut dyn Write, value: &Value) -> fmt::Result {
    match as_float(value) {
        Some(number) => out.write_str(&float(number)),
        None => write!(out, "{value}"),
    }
}

/// Returns the `repr` of a float: the fewest digits that identify the number.
pub fn float(number: f64) -> String {
    if !number.is_finite() {
        let sign = if number < 0.0 { "-" } else { "" };
        return if number.is_nan() { "nan".to_owned() } else { format!("{sign}inf") };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if PLAIN_EXPONENTS.contains(&exponent) {
        // Like Python, `{:?}` prints `.0` after whole numbers.
        return format!("{number:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Writes a text in Python's quotation marks. These are `'`, unless the text contains `'` but no
/// `"`.
fn write_quoted(out: &mut dyn Write, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            '\\' => out.write_str("\\\\")?,
            c if c == quote => write!(out, "\\{c}")?,
            c if is_shown(c) => out.write_char(c)?,
            c => match u32::from(c) {
                code @ ..=0xff => write!(out, "\\x{code:02x}")?,
                code @ ..=0xffff => write!(out, "\\u{code:04x}")?,
                code => write!(out, "\\U{code:08x}")?,
            },
        }
    }
    out.write_char(quote)
}

/// Returns whether Python prints a character unchanged. Python escapes control, format, private and
/// unassigned characters, and separators except the space. Rust's `Debug` of a text escapes the
/// same characters, and also marks at its beginning.
fn is_shown(c: char) -> bool {
    (' '..='~').contains(&c) || format!("a{c}").escape_debug().nth(1) == Some(c)
}

/// Options of `json.dumps`.
#[derive(Clone, Debug)]
pub struct JsonStyle {
    /// Whether non-ASCII characters are escaped.
    pub ascii: bool,
    /// Text that indents each level; members are then on separate lines. `None` means one line.
    pub indent: Option<String>,
    /// Text between two members.
    pub between: String,
    /// Text between a key and its value.
    pub behind_key: String,
    /// Whether members are sorted by key.
    pub sorted: bool,
}

impl JsonStyle {
    /// Returns the result of `json.dumps(value)`, with `null` for an undefined value. `None` for
    /// values that JSON cannot represent.
    pub fn write(&self, value: &Value) -> Option<String> {
        let mut out = String::new();
        self.write_value(&mut out, value, 0)?;
        Some(out)
    }

    fn write_value(&self, out: &mut String, value: &Value, level: usize) -> Option<()> {
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.write_string(out, value.as_str()?),
            ValueKind::Seq | ValueKind::Iterable => {
                let elements: Vec<Value> = value.try_iter().ok()?.collect();
                self.write_members(out, "[", "]", elements.iter(), level, |out, element| {
                    self.write_value(out, element, level + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter().ok()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.write_members(out, "{", "}", keys.iter(), level, |out, key| {
                    match key.kind() {
                        ValueKind::String => self.write_string(out, key.as_str()?),
                        ValueKind::None => out.push_str("\"null\""),
                        ValueKind::Bool => out.push_str(if key.is_true() { "\"true\"" } else { "\"false\"" }),
                        ValueKind::Number => out.extend(["\"", &*number(key), "\""]),
                        _ => return None,
                    }
                    out.push_str(&self.behind_key);
                    self.write_value(out, &value.get_item(key).ok()?, level + 1)
                })?;
            }
            _ => return None,
        }
        Some(())
    }

    fn write_members<'v>(
        &self,
        out: &mut String,
        open: &str,
        close: &str,
        members: impl ExactSizeIterator<Item = &'v Value>,
        level: usize,
        mut write: impl FnMut(&mut String, &Value) -> Option<()>,
    ) -> Option<()> {
        out.push_str(open);
        let is_empty = members.len() == 0;
        let line = |out: &mut String, level: usize| {
            if let Some(indent) = self.indent.as_ref().filter(|_| !is_empty) {
                out.push('\n');
                out.extend(std::iter::repeat_n(&**indent, level));
            }
        };
        for (place, member) in members.enumerate() {
            out.push_str(if place > 0 { &self.between } else { "" });
            line(out, level + 1);
            write(out, member)?;
        }
        line(out, level);
        out.push_str(close);
        Some(())
    }

    fn write_string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || self.ascii && !(' '..='~').contains(&c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// Returns a number in Python's JSON, in which NaN and infinities have names.
fn number(value: &Value) -> String {
    match as_float(value) {
        Some(number) if number.is_nan() => "NaN".to_owned(),
        Some(number) if number.is_infinite() => if number < 0.0 { "-Infinity" } else { "Infinity" }.to_owned(),
        Some(number) => float(number),
        None => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests floats against the output of `python3 -c "print(repr(…))"`.
    #[test]
    fn floats_print_like_python_repr() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1 + 0.2, "0.30000000000000004"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (-1.5e300, "-1.5e+300"),
            (5e-324, "5e-324"),
            (f64::INFINITY, "inf"),
        ];
        for (number, expected) in cases {
            assert_eq!(float(number), expected);
        }
    }

    #[test]
    fn texts_are_quoted_as_in_python() {
        let cases = [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("it's \"x\"", r#"'it\'s "x"'"#),
            ("\n\t\r\\\0\u{1}\u{7f}", r"'\n\t\r\\\x00\x01\x7f'"),
            ("é日😀e\u{301}", "'é日😀e\u{301}'"),
            ("\u{a0}\u{200b}\u{2028}\u{feff}\u{3000}\u{e000}", r"'\xa0\u200b\u2028\ufeff\u3000\ue000'"),
            ("\u{10fffd}\u{e0001}", r"'\U0010fffd\U000e0001'"),
        ];
        for (own, expected) in cases {
            let mut out = String::new();
            write_quoted(&mut out, own).unwrap();
            assert_eq!(out, expected);
        }
    }
}
