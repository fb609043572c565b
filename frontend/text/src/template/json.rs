//! JSON values from outside of this program: tools, arguments of calls, variables. They are kept as
//! text. The order of keys and the digits of numbers therefore do not change, even on the way to a
//! rendering process.

use std::fmt;

use minijinja::value::Value;
use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::TemplateError;
use crate::chat;

/// JSON value, kept as text. The text is valid, except possibly in an untrusted plan or request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Json(String);

impl Json {
    /// Checks that a text is JSON, and wraps it.
    ///
    /// # Errors
    /// [`TemplateError::Json`] if it is invalid, or nested deeper than 127 levels.
    pub fn new(text: impl Into<String>) -> Result<Json, TemplateError> {
        let json = Json(text.into());
        json.value()?;
        Ok(json)
    }

    /// Returns the JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Applies `map` to each string in the value, including keys.
    #[must_use]
    pub fn map_texts(&self, mut map: impl FnMut(&str) -> String) -> Json {
        let mut out = String::with_capacity(self.0.len());
        let mut rest = self.0.as_str();
        while let Some(start) = rest.find('"') {
            let mut escaped = false;
            let end = rest[start + 1..].bytes().position(|byte| {
                let ends = byte == b'"' && !escaped;
                escaped = byte == b'\\' && !escaped;
                ends
            });
            let Some(end) = end.map(|at| start + 1 + at + 1) else { break };
            out.push_str(&rest[..start]);
            let text = &rest[start..end];
            match serde_json::from_str::<String>(text) {
                Ok(text) => out.push_str(&serde_json::Value::from(map(&text)).to_string()),
                Err(_) => out.push_str(text),
            }
            rest = &rest[end..];
        }
        out.push_str(rest);
        Json(out)
    }

    /// Returns the value as serde_json reads it.
    fn plain(&self) -> Value {
        Element.deserialize(&mut serde_json::Deserializer::from_str(&self.0)).unwrap_or_default()
    }

    /// Returns the value in the template engine's type.
    pub(super) fn value(&self) -> Result<Value, TemplateError> {
        let failed = |error: serde_json::Error| TemplateError::Json { reason: error.to_string() };
        let mut reader = serde_json::Deserializer::from_str(&self.0);
        let value = Element.deserialize(&mut reader).map_err(failed)?;
        reader.end().map_err(failed)?;
        Ok(if has_long_numbers(&self.0) { exact(&self.0) } else { value })
    }
}

/// Maximum number of digits of a signed 64-bit integer. A number with as many may not fit.
const LONGEST_NUMBER: usize = 19;

/// Returns whether a text has numbers that may not fit in 64 bits.
fn has_long_numbers(text: &str) -> bool {
    text.as_bytes().split(|byte| !byte.is_ascii_digit()).any(|digits| digits.len() >= LONGEST_NUMBER)
}

/// Returns a valid value. Integers of up to 128 bits keep all digits. Nesting is bounded, because
/// the text was parsed before.
fn exact(text: &str) -> Value {
    let text = text.trim();
    match text.as_bytes().first() {
        Some(b'{') => {
            let members = chat::json::members(text).into_iter().map(|(key, value)| (key, exact(value)));
            Value::from_pairs(members)
        }
        Some(b'[') => chat::json::list(text).into_iter().map(exact).collect::<Vec<_>>().into(),
        Some(b'"') => chat::json::text(text).unwrap_or_default().into(),
        _ => match text.parse::<i128>() {
            Ok(number) => number.into(),
            Err(_) => Json(text.to_owned()).plain(),
        },
    }
}

/// Deserializer of a JSON value. `serde_json` limits its nesting.
struct Element;

impl<'de> DeserializeSeed<'de> for Element {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Element {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::from(()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(Element)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut values: Vec<(String, Value)> = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            values.push((key, map.next_value_seed(Element)?));
        }
        Ok(Value::from_pairs(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keys_keep_order_and_texts_can_be_mapped() {
        let json = Json::new(r#"{"b": [1, -2.5, true, null], "a": {"\"x\\": "<|é\n"}}"#).unwrap();
        assert_eq!(json.value().unwrap().to_string(), r#"{'b': [1, -2.5, True, None], 'a': {'"x\\': '<|é\n'}}"#);
        let mapped = json.map_texts(|text| text.replace('<', "?").to_uppercase());
        assert_eq!(mapped.as_str(), r#"{"B": [1, -2.5, true, null], "A": {"\"X\\": "?|É\n"}}"#);
        assert!(Json::new("{").is_err() && Json::new("1 2").is_err() && Json::new("[".repeat(1000)).is_err());
    }
}
