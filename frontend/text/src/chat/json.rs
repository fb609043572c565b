//! JSON whose original text is kept: functions that return the texts of members, and check whether
//! a text is complete.

use serde::de::IgnoredAny;

use super::reading::Reading;

/// Checks that a text is exactly one JSON value. Depth is harmless, because the parser keeps no
/// stack for values that it ignores.
pub fn check(text: &str) -> Reading<()> {
    match serde_json::from_str::<IgnoredAny>(text) {
        Ok(_) => Reading::Whole(()),
        Err(error) if error.is_eof() => Reading::Unfinished,
        Err(_) => Reading::Wrong,
    }
}

/// Returns the texts of one or several values, which white space, commas or semicolons separate.
pub fn sequence(text: &str) -> Reading<Vec<&str>> {
    let between = |c: char| c.is_whitespace() || matches!(c, ',' | ';');
    let (mut values, mut rest) = (Vec::new(), text.trim_start());
    loop {
        let mut reader = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
        match reader.next() {
            Some(Ok(_)) => {}
            Some(Err(error)) if !error.is_eof() => return Reading::Wrong,
            Some(Err(_)) | None => return Reading::Unfinished,
        }
        let (value, after) = rest.split_at(reader.byte_offset());
        values.push(value.trim());
        rest = after.trim_start_matches(between);
        if rest.is_empty() {
            // A comma requires another value, but a semicolon may end the text.
            return if after.contains(',') { Reading::Unfinished } else { Reading::Whole(values) };
        }
        // Numbers and words have no end of their own, so white space must end them.
        if !rest.starts_with(['{', '[']) {
            return Reading::Wrong;
        }
    }
}

/// Returns whether a text is exactly one JSON value.
pub fn is_value(text: &str) -> bool {
    matches!(check(text), Reading::Whole(()))
}

/// Returns a text in the form of a JSON string, with quotation marks.
pub fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns the content of a JSON string; `None` for other values.
pub fn text(value: &str) -> Option<String> {
    serde_json::from_str(value).ok()
}

/// Returns the positions of commas that are outside of strings, and inside exactly `level`
/// brackets.
fn commas(text: &str, level: usize) -> impl Iterator<Item = usize> {
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    text.bytes().enumerate().filter_map(move |(at, byte)| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => return (depth == level).then_some(at),
            _ => {}
        }
        None
    })
}

/// Returns the texts of a valid JSON list's elements, or of an object's members (`key: value`).
fn elements(text: &str) -> Vec<&str> {
    let text = text.trim();
    let inner = text.get(1..text.len().saturating_sub(1)).unwrap_or_default();
    let mut from = 0;
    let mut elements = Vec::new();
    for at in commas(inner, 0) {
        elements.push(inner[from..at].trim());
        from = at + 1;
    }
    elements.push(inner[from..].trim());
    elements.retain(|element| !element.is_empty());
    elements
}

/// Returns the texts of a valid JSON list's elements; none for other values.
pub fn list(text: &str) -> Vec<&str> {
    if text.trim_start().starts_with('[') { elements(text) } else { Vec::new() }
}

/// Returns the original text of a member of a valid JSON object. If the name appears several times,
/// the first member is used.
pub fn member<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    members(text).into_iter().find_map(|(key, value)| (key == name).then_some(value))
}

/// Returns the keys of a valid JSON object, each with the original text of its value; none for
/// other values.
pub fn members(text: &str) -> Vec<(String, &str)> {
    if !text.trim_start().starts_with('{') {
        return Vec::new();
    }
    elements(text)
        .into_iter()
        .filter_map(|element| {
            // A key is a string, so the first quotation mark without a backslash ends it.
            let mut escaped = false;
            let end = element.char_indices().skip(1).find(|(_, c)| {
                let ends = *c == '"' && !escaped;
                escaped = *c == '\\' && !escaped;
                ends
            });
            let (key, value) = element.split_at(end?.0 + 1);
            Some((self::text(key)?, value.trim_start().strip_prefix(':').unwrap_or(value).trim()))
        })
        .collect()
}

/// Returns a JSON object with these keys and these JSON values.
pub fn object<'t>(members: impl IntoIterator<Item = (&'t str, String)>) -> String {
    let members: Vec<String> = members.into_iter().map(|(key, value)| format!("{}: {value}", string(key))).collect();
    format!("{{{}}}", members.join(", "))
}

/// Returns a JSON object with the complete members of arguments that were cut off. `None` if the
/// arguments are complete, or if the text does not begin an object.
pub fn whole_arguments(text: &str) -> Option<String> {
    let text = text.trim();
    if text.is_empty() || !matches!(check(text), Reading::Unfinished) || !text.starts_with('{') {
        return None;
    }
    let whole = commas(text, 1).last().unwrap_or(1);
    let closed = format!("{}}}", &text[..whole]);
    is_value(&closed).then_some(closed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_arguments_keep_complete_members() {
        for (text, whole) in [
            (r#"{"a": 1, "b": [2, "x"#, Some(r#"{"a": 1}"#)),
            (r#"{"a": {"b": 1, "c": 2"#, Some("{}")),
            (r#" {"a, b": "c, d", "#, Some(r#"{"a, b": "c, d"}"#)),
            ("{", Some("{}")),
            ("{}", None),
            ("", None),
            ("[1, ", None),
            ("{a", None),
        ] {
            assert_eq!(whole_arguments(text).as_deref(), whole, "{text}");
        }
    }

    #[test]
    fn json_members_keep_their_spelling() {
        let json = r#" {"a\"": 1e2, "b": {"c": [1,  "}],\""], "d": {}}, "e" : "x" , "b": 2} "#;
        assert!(is_value(json));
        assert_eq!(member(json, "a\""), Some("1e2"));
        assert_eq!(member(json, "b"), Some(r#"{"c": [1,  "}],\""], "d": {}}"#));
        assert_eq!(member(json, "e"), Some("\"x\""));
        assert_eq!((member(json, "c"), member("[1]", "a"), member("{}", "a")), (None, None, None));
        assert_eq!(list(" [1, [2, 3] , {\"a\": \"],\"}]"), ["1", "[2, 3]", "{\"a\": \"],\"}"]);
        assert!(list("[]").is_empty() && list("{}").is_empty());
        assert_eq!(object([("a\n", "1".into()), ("b", string("\""))]), r#"{"a\n": 1, "b": "\""}"#);
    }

    #[test]
    fn deeply_nested_json_does_not_overflow() {
        let deep = "[".repeat(1 << 20);
        assert!(matches!(check(&deep), Reading::Unfinished));
        assert!(is_value(&(deep + &"]".repeat(1 << 20))));
    }
}
