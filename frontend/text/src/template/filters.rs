//! Filters and methods of Jinja and Python that minijinja lacks or implements in another way.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::python;

/// Adds the filters and methods to the template engine.
pub fn add_to(environment: &mut Environment<'_>) {
    environment.add_filter(CHARACTERS, characters);
    environment.add_filter("e", escape);
    environment.add_filter("escape", escape);
    environment.add_filter("float", float);
    environment.add_filter("indent", indent);
    environment.add_filter("int", int);
    environment.add_filter("items", items);
    environment.add_filter("join", join);
    environment.add_filter("replace", replace);
    environment.add_filter("string", |value: &Value| python::text(value));
    environment.add_filter("trim", |value: &Value, characters: Option<String>| {
        strip(&python::text(value), characters.as_deref(), true, true).to_owned()
    });
}

/// Implements `e`, which escapes `<` and similar characters for HTML. The entities are those of
/// Python's markupsafe.
fn escape(value: &Value) -> Value {
    let text = python::text(value);
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    Value::from_safe_string(if value.is_safe() { text } else { out })
}

/// Implements `indent(text, width=4, first=False, blank=False)`, where `width` is a number of
/// spaces or a text. Each line ends with a line feed; a line feed at the end of the text stays.
fn indent(
    text: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    named: Kwargs,
) -> Result<String, Error> {
    let width = width.map_or_else(|| named.get("width"), |width| Ok(Some(width)))?;
    let first = first.map_or_else(|| named.get("first"), |first| Ok(Some(first)))?.unwrap_or(false);
    let blank = blank.map_or_else(|| named.get("blank"), |blank| Ok(Some(blank)))?.unwrap_or(false);
    named.assert_all_used()?;
    let width = match width {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => spaces(&width)?,
        },
    };
    let text = python::text(text);
    let mut out = String::with_capacity(text.len());
    for (place, line) in lines(&text).into_iter().enumerate() {
        out.push_str(if place > 0 { "\n" } else { "" });
        let is_indented = if place == 0 { first } else { blank || !line.is_empty() };
        out.push_str(if is_indented { &width } else { "" });
        out.push_str(line);
    }
    Ok(out)
}

/// Returns `width` spaces, or the text if `width` is a text.
pub(super) fn spaces(width: &Value) -> Result<String, Error> {
    /// Maximum width, because the template may state any number.
    const WIDEST: i64 = 256;
    let width =
        if width.kind() == ValueKind::Bool { i64::from(width.is_true()) } else { i64::try_from(width.clone())? };
    if width > WIDEST {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("an indentation of {width} columns is above the limit, {WIDEST}"),
        ));
    }
    Ok(" ".repeat(usize::try_from(width).unwrap_or(0)))
}

/// Splits a text into lines, including the text after the last line end, like Python's `(text +
/// "\n").splitlines()`.
fn lines(text: &str) -> Vec<&str> {
    const ENDS: [char; 10] =
        ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(ENDS) {
        lines.push(&rest[..at]);
        let after = &rest[at..];
        let end = after.chars().next().map_or(0, char::len_utf8);
        rest = after.strip_prefix("\r\n").unwrap_or(&after[end..]);
    }
    // A carriage return at the end of the text and the appended line feed are a single line end.
    if !(rest.is_empty() && text.ends_with('\r')) {
        lines.push(rest);
    }
    lines
}

/// Implements `int(value, default=0, base=10)`.
fn int(value: &Value, default: Option<Value>, base: Option<u32>, named: Kwargs) -> Result<Value, Error> {
    let default = default.map_or_else(|| named.get("default"), |default| Ok(Some(default)))?;
    let base = base.map_or_else(|| named.get("base"), |base| Ok(Some(base)))?.unwrap_or(10);
    named.assert_all_used()?;
    let whole = |number: f64| (number.is_finite() && number.abs() < 1e18).then(|| Value::from(number.trunc() as i64));
    let found = match value.kind() {
        ValueKind::Bool => Some(Value::from(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => Some(value.clone()),
        ValueKind::Number => f64::try_from(value.clone()).ok().and_then(whole),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default().trim().replace('_', "");
            let digits = |text: &str| (2..=36).contains(&base).then(|| i64::from_str_radix(text, base).ok())?;
            digits(&text).map(Value::from).or_else(|| text.parse().ok().and_then(whole))
        }
        _ => None,
    };
    Ok(found.or(default).unwrap_or_else(|| Value::from(0)))
}

/// Implements `float(value, default=0.0)`.
fn float(value: &Value, default: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let default = default.map_or_else(|| named.get("default"), |default| Ok(Some(default)))?;
    named.assert_all_used()?;
    let found = match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        ValueKind::String => value.as_str().and_then(|text| text.trim().parse().ok()),
        _ => None,
    };
    Ok(found.map(Value::from).or(default).unwrap_or_else(|| Value::from(0.0)))
}

/// Implements `items`, which returns no items for an undefined value.
fn items(value: &Value) -> Result<Value, Error> {
    match value.is_undefined() {
        true => Ok(Value::from(Vec::<Value>::new())),
        false => minijinja::filters::items(value),
    }
}

/// Implements `join(values, between="", attribute=None)`.
fn join(values: &Value, between: Option<Value>, attribute: Option<Value>, named: Kwargs) -> Result<String, Error> {
    let between = between.map_or_else(|| named.get("d"), |between| Ok(Some(between)))?;
    let attribute = attribute.map_or_else(|| named.get("attribute"), |attribute| Ok(Some(attribute)))?;
    named.assert_all_used()?;
    let between = between.map(|between: Value| python::text(&between)).unwrap_or_default();
    let elements: Vec<Value> = match values.as_str() {
        Some(text) => text.chars().map(|c| Value::from(c.to_string())).collect(),
        None if values.is_undefined() => Vec::new(),
        None => values.try_iter()?.collect(),
    };
    let mut texts = Vec::with_capacity(elements.len());
    for element in elements {
        let mut element = element;
        if let Some(path) = &attribute {
            match path.as_str() {
                Some(path) => {
                    for name in path.split('.') {
                        element = element.get_item(&name.parse::<i64>().map_or_else(|_| name.into(), Value::from))?;
                    }
                }
                None => element = element.get_item(path)?,
            }
        }
        texts.push(python::text(&element));
    }
    Ok(texts.join(&between))
}

/// Implements `replace(text, old, new, count=None)`.
fn replace(text: &Value, old: &Value, new: &Value, count: Option<i64>, named: Kwargs) -> Result<String, Error> {
    let count = count.map_or_else(|| named.get("count"), |count| Ok(Some(count)))?;
    named.assert_all_used()?;
    let (text, old, new) = (python::text(text), python::text(old), python::text(new));
    Ok(match count.map(usize::try_from) {
        Some(Ok(count)) => text.replacen(&old, &new, count),
        _ => text.replace(&old, &new),
    })
}

/// Removes white space, or the given characters, from one or both ends of a text.
fn strip<'t>(text: &'t str, characters: Option<&str>, left: bool, right: bool) -> &'t str {
    // For Python, the last four of these characters are white space, too; for Unicode, they are
    // not.
    let goes = |c: char| match characters {
        Some(characters) => characters.contains(c),
        None => c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c),
    };
    let text = if left { text.trim_start_matches(goes) } else { text };
    if right { text.trim_end_matches(goes) } else { text }
}

/// Name of the filter that converts a text to a list of its characters. It leaves other values
/// unchanged.
pub(super) const CHARACTERS: &str = "characters_of_text";

fn characters(value: Value) -> Value {
    match value.as_str() {
        Some(text) => text.chars().map(String::from).collect(),
        None => value,
    }
}

/// Name of the method that replaces the slice `[::-1]` in templates (see [`super::render`]).
pub(super) const REVERSED: &str = "reversed_slice";

/// Calls a method of Python on a value: first the methods here, then those of minijinja-contrib.
pub fn method(state: &mut State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let known = match value.as_str() {
        Some(text) => text_method(text, name, arguments)?,
        None => other_method(value, name, arguments)?,
    };
    match known {
        Some(known) => Ok(known),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments),
    }
}

fn text_method(text: &str, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let words = |index: usize| arguments.get(index).and_then(Value::as_str);
    let whole = |index: usize| arguments.get(index).and_then(|value| i64::try_from(value.clone()).ok());
    let parts = |before: &str, between: &str, after: &str| Some(Value::from_iter([before, between, after]));
    let padded = |left: bool, right: bool| {
        let width = whole(0).and_then(|width| usize::try_from(width).ok()).unwrap_or(0).min(MOST_PADDED);
        let missing = width.saturating_sub(text.chars().count());
        let before = match (left, right) {
            // If the padding is odd, Python puts the additional space at the end, or at the
            // beginning if the width is odd, too.
            (true, true) => missing / 2 + (missing & width & 1),
            (true, false) => missing,
            (false, _) => 0,
        };
        // Python accepts only a single character here.
        let fill = words(1).filter(|fill| fill.chars().count() == 1).unwrap_or(" ");
        Some(Value::from([&*fill.repeat(before), text, &*fill.repeat(missing - before)].concat()))
    };
    Ok(match (name, words(0)) {
        (REVERSED, _) => Some(Value::from(text.chars().rev().collect::<String>())),
        ("strip", characters) => Some(strip(text, characters, true, true).into()),
        ("lstrip", characters) => Some(strip(text, characters, true, false).into()),
        ("rstrip", characters) => Some(strip(text, characters, false, true).into()),
        ("removeprefix", Some(words)) => Some(text.strip_prefix(words).unwrap_or(text).into()),
        ("removesuffix", Some(words)) => Some(text.strip_suffix(words).unwrap_or(text).into()),
        ("partition", Some(words)) => match text.split_once(words) {
            Some((before, after)) => parts(before, words, after),
            None => parts(text, "", ""),
        },
        ("rpartition", Some(words)) => match text.rsplit_once(words) {
            Some((before, after)) => parts(before, words, after),
            None => parts("", "", text),
        },
        ("rsplit", words) => {
            let max = whole(1).and_then(|max| usize::try_from(max).ok());
            let mut parts: Vec<&str> = match (words, max) {
                (Some(words), Some(max)) => text.rsplitn(max + 1, words).collect(),
                (Some(words), None) => text.rsplit(words).collect(),
                (None, None) => text.split_whitespace().rev().collect(),
                (None, Some(_)) => return Ok(None),
            };
            parts.reverse();
            Some(Value::from_iter(parts))
        }
        ("index" | "rindex", Some(words)) => {
            let at = if name == "index" { text.find(words) } else { text.rfind(words) };
            let at = at.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
            Some(Value::from(text[..at].chars().count()))
        }
        ("swapcase", _) => {
            let swapped = text.chars().flat_map(|c| match c.is_uppercase() {
                true => c.to_lowercase().collect::<Vec<char>>(),
                false => c.to_uppercase().collect(),
            });
            Some(Value::from(swapped.collect::<String>()))
        }
        ("ljust", _) => padded(false, true),
        ("rjust", _) => padded(true, false),
        ("center", _) => padded(true, true),
        ("zfill", _) => {
            let width = whole(0).and_then(|width| usize::try_from(width).ok()).unwrap_or(0).min(MOST_PADDED);
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            let missing = width.saturating_sub(text.chars().count());
            Some(Value::from([sign, &*"0".repeat(missing), digits].concat()))
        }
        _ => None,
    })
}

/// Maximum width of a padded text, because the template may state any number.
const MOST_PADDED: usize = 4096;

fn other_method(value: &Value, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let is_list = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    Ok(match (name, arguments) {
        (REVERSED, []) if is_list => {
            let mut elements: Vec<Value> = value.try_iter()?.collect();
            elements.reverse();
            Some(elements.into())
        }
        ("index", [element]) if is_list => {
            let at = value.try_iter()?.position(|one| one == *element);
            let at = at.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "the value is not in the list"))?;
            Some(Value::from(at))
        }
        ("is_integer", []) if value.is_number() => Some(Value::from(
            value.is_integer() || f64::try_from(value.clone()).is_ok_and(|number| number.fract() == 0.0),
        )),
        _ => None,
    })
}
