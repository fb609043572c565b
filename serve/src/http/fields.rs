//! Fields of requests. [`NumberField`] has the name and range of each number. The error for a wrong
//! value names the field.

use ixc_runtime::sample;
use serde_json::{Map, Value};

use crate::http::error::HttpError;

/// Name and range of a numeric field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumberField {
    name: &'static str,
    least: f64,
    most: f64,
    /// Whether the number must be an integer.
    whole: bool,
}

const fn integer(name: &'static str, least: f64, most: f64) -> NumberField {
    NumberField { name, least, most, whole: true }
}

/// Max tokens of a request: more than any context.
const MAX_ANSWER_TOKENS: f64 = (1 << 24) as f64;

/// All numbers of requests except the sampler's settings, which have their own table. A number is
/// read by its constant, so each has a range.
impl NumberField {
    pub(crate) const MAX_TOKENS: NumberField = integer("max_tokens", 0.0, MAX_ANSWER_TOKENS);
    pub(crate) const MAX_COMPLETION_TOKENS: NumberField = integer("max_completion_tokens", 0.0, MAX_ANSWER_TOKENS);
    /// -1 allows all free positions.
    pub(crate) const N_PREDICT: NumberField = integer("n_predict", -1.0, MAX_ANSWER_TOKENS);
    pub(crate) const MAX_OUTPUT_TOKENS: NumberField = integer("max_output_tokens", 1.0, MAX_ANSWER_TOKENS);
    pub(crate) const N: NumberField = integer("n", 1.0, 128.0);
    pub(crate) const N_CMPL: NumberField = integer("n_cmpl", 1.0, 128.0);
    pub(crate) const TOP_LOGPROBS: NumberField = integer("top_logprobs", 0.0, MAX_LOGPROBS);
    /// This field is a number for completions, and true or false for chats.
    pub(crate) const LOGPROBS: NumberField = integer("logprobs", 0.0, MAX_LOGPROBS);
    pub(crate) const N_PROBS: NumberField = integer("n_probs", 0.0, MAX_LOGPROBS);
    pub(crate) const MIN_KEEP: NumberField = integer("min_keep", 0.0, 0.0);
    /// Length of embeddings; the model checks the upper bound.
    pub(crate) const DIMENSIONS: NumberField = integer("dimensions", 1.0, MAX_DIMENSIONS);
    /// Number of a layer with experts; the model checks it.
    pub(crate) const LAYER: NumberField = integer("layer", 0.0, MAX_LAYERS);
    pub(crate) const MIN_TOKENS: NumberField = integer("min_tokens", 0.0, MAX_ANSWER_TOKENS);

    /// Returns a field `name` with the range of a sampler's setting.
    pub(crate) fn of_setting(name: &'static str, setting: &sample::Number) -> NumberField {
        NumberField { name, least: setting.min, most: setting.max, whole: setting.whole }
    }
}

/// Max numbers of a requested vector: more than any model has.
const MAX_DIMENSIONS: f64 = (1 << 24) as f64;
/// Max layers: more than any model has.
const MAX_LAYERS: f64 = (1 << 16) as f64;
/// Max likeliest tokens returned with each token.
const MAX_LOGPROBS: f64 = 100.0;
/// Max stop texts, and max bytes of each.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;
/// Max `stop_token_ids`.
const MAX_STOP_TOKENS: usize = 1024;
/// Doubles represent all integers up to this one, 2^53.
const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;
/// Max tokens with a bias.
const MAX_BIASES: usize = 1024;
/// Max memory of a body's values, in bytes for each byte of the body. The body itself and its
/// copies take less than 4 more bytes for each byte.
const MAX_PER_BYTE: usize = 16;
/// Memory that the values of any body may take, and max memory for the values of a large body.
const MEMORY: std::ops::RangeInclusive<usize> = 16 << 20..=160 << 20;
/// Bytes of memory that a value takes in a list, without its texts.
const VALUE_BYTES: usize = 80;
/// Additional memory of a text or name: the allocator's smallest block.
const TEXT_BYTES: usize = 32;
/// Additional memory of a list, which starts with a capacity of four values.
const LIST_BYTES: usize = 288;
/// Additional memory of an object, which starts with a capacity of eleven members.
const OBJECT_BYTES: usize = 640;

/// Max nesting of objects and lists that serde_json reads.
const MAX_LEVELS: usize = 127;

/// Fields of a request.
#[derive(Clone, Debug)]
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// Reads a body, which may have a byte order mark.
    pub(crate) fn parse(body: &[u8]) -> Result<Fields, HttpError> {
        let body = ixc_files::without_mark(body).map_err(|error| HttpError::invalid(None, error.to_string()))?;
        let most = body.len().saturating_mul(MAX_PER_BYTE).clamp(*MEMORY.start(), *MEMORY.end());
        let needed = memory_of_values(body);
        if needed > most {
            let (needed, most) = (needed >> 20, most >> 20);
            let wrong = format!(
                "the body has too many values for its {} bytes: they take {needed} MiB of memory, and may take {most}",
                body.len()
            );
            return Err(HttpError::invalid(None, wrong));
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Fields(fields)),
            Ok(other) => Err(HttpError::invalid(None, format!("the body is {}, must be an object", kind(&other)))),
            Err(error) if error.to_string().starts_with("recursion limit") => {
                let (line, column) = (error.line(), error.column());
                let wrong = format!(
                    "the body nests more than {MAX_LEVELS} levels deep at line {line} column {column}; a JSON schema \
                     may be sent as a text, which nests on its own"
                );
                Err(HttpError::invalid(None, wrong))
            }
            Err(error) => Err(HttpError::invalid(None, format!("the body is not JSON: {error}"))),
        }
    }

    /// Creates fields from an object.
    pub(crate) fn new(fields: Map<String, Value>) -> Fields {
        Fields(fields)
    }

    /// Adds those fields of `others` that are missing or null in these fields.
    pub(crate) fn or(mut self, others: &Map<String, Value>) -> Fields {
        for (name, value) in others {
            let field = self.0.entry(name).or_insert(Value::Null);
            if field.is_null() {
                field.clone_from(value);
            }
        }
        self
    }

    /// Returns the object.
    pub(crate) fn into_map(self) -> Map<String, Value> {
        self.0
    }

    /// Returns a field, unless it is absent or null.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// Removes a field and returns it, unless it is absent or null. This avoids copying its texts.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Returns the max tokens of an answer. The interfaces have several names for this field; the
    /// first one that is set counts. Returns `None` if none is set, and `Some(None)` for no limit.
    pub(crate) fn limit(&self) -> Result<Option<Option<usize>>, HttpError> {
        let mut limit = None;
        for field in [
            NumberField::MAX_COMPLETION_TOKENS,
            NumberField::MAX_TOKENS,
            NumberField::MAX_OUTPUT_TOKENS,
            NumberField::N_PREDICT,
        ] {
            let found = self.number(&field)?;
            limit = limit.or(found.map(|found| (found >= 0.0).then_some(found as usize)));
        }
        Ok(limit)
    }

    /// Returns the number in a field.
    pub(crate) fn number(&self, field: &NumberField) -> Result<Option<f64>, HttpError> {
        let &NumberField { name, least, most, whole } = field;
        let Some(value) = self.get(name) else { return Ok(None) };
        let found = value.as_f64().filter(|found| (least..=most).contains(found) && (!whole || found.fract() == 0.0));
        let expected = || {
            let kind = if whole { "a whole number" } else { "a number" };
            match least == most {
                true => format!("{name} is {}, must be {least}", value_text(value)),
                false => format!("{name} is {}, must be {kind} from {least} to {most}", value_text(value)),
            }
        };
        found.map(Some).ok_or_else(|| HttpError::invalid(Some(name), expected()))
    }

    /// Returns the seed, a signed or unsigned 64-bit integer: -5 and 2^64 - 5 are the same seed.
    /// Returns `None` for no seed and for -1, a random seed.
    pub(crate) fn seed(&self) -> Result<Option<u64>, HttpError> {
        // -1 is a random seed, as in llama.cpp.
        let Some(value) = self.get("seed").filter(|value| value.as_f64() != Some(-1.0)) else { return Ok(None) };
        // Integers written as `7.0` or `1e3` are exact up to 2^53.
        let rounded = value.as_f64().filter(|seed| seed.fract() == 0.0 && seed.abs() <= MAX_EXACT_INTEGER);
        let seed = value.as_i64().map(|seed| seed as u64).or_else(|| value.as_u64());
        let seed = seed.or_else(|| rounded.map(|seed| seed as i64 as u64));
        let wrong = || {
            let expected = format!("seed is {}, must be an integer from -2^63 to 2^64 - 1", value_text(value));
            HttpError::invalid(Some("seed"), expected)
        };
        seed.map(Some).ok_or_else(wrong)
    }

    /// Returns the tokens that end an answer.
    pub(crate) fn stop_tokens(&self) -> Result<Vec<u32>, HttpError> {
        const NAME: &str = "stop_token_ids";
        let wrong =
            || HttpError::invalid(Some(NAME), format!("{NAME} must be a list of at most {MAX_STOP_TOKENS} tokens"));
        let Some(value) = self.get(NAME) else { return Ok(Vec::new()) };
        let list = value.as_array().filter(|list| list.len() <= MAX_STOP_TOKENS).ok_or_else(wrong)?;
        list.iter().map(|token| u32::try_from(token.as_u64()?).ok()).collect::<Option<_>>().ok_or_else(wrong)
    }

    /// Returns a field that is true or false.
    pub(crate) fn flag(&self, name: &'static str) -> Result<Option<bool>, HttpError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wrong =
            || HttpError::invalid(Some(name), format!("{name} is {}, must be true or false", value_text(value)));
        value.as_bool().map(Some).ok_or_else(wrong)
    }

    /// Returns a text field.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<&str>, HttpError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wrong = || HttpError::invalid(Some(name), format!("{name} is {}, must be a text", value_text(value)));
        value.as_str().map(Some).ok_or_else(wrong)
    }

    /// Returns a list of at most `most` texts; an empty list if the field is missing.
    pub(crate) fn texts(&self, name: &'static str, most: usize) -> Result<Vec<String>, HttpError> {
        let wrong = || HttpError::invalid(Some(name), format!("{name} must be a list of at most {most} texts"));
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        let list = value.as_array().filter(|list| list.len() <= most).ok_or_else(wrong)?;
        list.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<_>>().ok_or_else(wrong)
    }

    /// Returns the stop texts, from the field with this name.
    pub(crate) fn stop(&self, name: &'static str) -> Result<Vec<String>, HttpError> {
        let wrong = || {
            let most = format!("at most {MAX_STOPS} texts, each of at most {MAX_STOP_BYTES} bytes");
            HttpError::invalid(Some(name), format!("{name} must be a text, or {most}"))
        };
        let texts = match self.get(name) {
            None => return Ok(Vec::new()),
            Some(Value::Array(texts)) if texts.len() <= MAX_STOPS => texts.iter().map(Value::as_str).collect(),
            Some(text) => text.as_str().map(|text| vec![text]),
        };
        let texts: Vec<&str> = texts.ok_or_else(wrong)?;
        if texts.iter().any(|text| text.len() > MAX_STOP_BYTES) {
            return Err(wrong());
        }
        Ok(texts.into_iter().map(str::to_owned).collect())
    }

    /// Returns the biases of logits: OpenAI's object, or llama-server's list of pairs in which
    /// `false` forbids the token.
    pub(crate) fn biases(&self) -> Result<Vec<(u32, f32)>, HttpError> {
        let wrong = || {
            let expected = format!(
                "logit_bias must be at most {MAX_BIASES} tokens with a number each, such as {{\"50256\": -100}}"
            );
            HttpError::invalid(Some("logit_bias"), expected)
        };
        let pairs: Option<Vec<(u32, f32)>> = match self.get("logit_bias") {
            None => return Ok(Vec::new()),
            Some(Value::Object(pairs)) if pairs.len() <= MAX_BIASES => {
                pairs.iter().map(|(token, bias)| Some((token.parse().ok()?, bias.as_f64()? as f32))).collect()
            }
            Some(Value::Array(pairs)) if pairs.len() <= MAX_BIASES => pairs.iter().map(pair).collect(),
            Some(_) => None,
        };
        // A bias above the range of f32 becomes infinite and is refused. A bias below the range
        // becomes minus infinity, which is allowed.
        pairs.filter(|pairs| pairs.iter().all(|(_, bias)| *bias < f32::INFINITY)).ok_or_else(wrong)
    }
}

/// Returns an upper bound of the memory of a body's values, without the bytes of texts. Each value
/// except the first follows a comma or begins a list or an object.
fn memory_of_values(body: &[u8]) -> usize {
    let (mut bytes, mut in_text, mut escaped) = (VALUE_BYTES, false, false);
    for byte in body {
        match (byte, in_text) {
            (_, true) if escaped => escaped = false,
            (b'\\', true) => escaped = true,
            (b'"', true) => in_text = false,
            (b'"', false) => (in_text, bytes) = (true, bytes + TEXT_BYTES),
            (b'{', false) => bytes += VALUE_BYTES + OBJECT_BYTES,
            (b'[', false) => bytes += VALUE_BYTES + LIST_BYTES,
            (b',', false) => bytes += VALUE_BYTES,
            _ => {}
        }
    }
    bytes
}

/// Returns a token and the bias of its logit.
fn pair(value: &Value) -> Option<(u32, f32)> {
    let [token, bias] = value.as_array()?.as_slice() else { return None };
    let token = u32::try_from(token.as_u64()?).ok()?;
    let bias = if bias.as_bool() == Some(false) { f32::NEG_INFINITY } else { bias.as_f64()? as f32 };
    Some((token, bias))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Returns a value for an error message; only short values are shown whole.
fn value_text(value: &Value) -> String {
    match value {
        Value::Number(_) | Value::Bool(_) | Value::Null => value.to_string(),
        Value::String(text) if text.len() <= 32 => value.to_string(),
        _ => kind(value).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_limit_is_read_under_each_field_name() {
        let limit = |body: &str| Fields::parse(body.as_bytes()).unwrap().limit();
        assert_eq!(limit("{}"), Ok(None));
        for name in ["max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict"] {
            assert_eq!(limit(&format!("{{\"{name}\": 7}}")), Ok(Some(Some(7))), "{name}");
            assert!(limit(&format!("{{\"{name}\": 0.5}}")).is_err(), "{name}");
        }
        assert_eq!(limit(r#"{"n_predict": -1}"#), Ok(Some(None)));
        assert_eq!(limit(r#"{"n_predict": -1, "max_tokens": 3}"#), Ok(Some(Some(3))));
    }

    #[test]
    fn a_body_that_nests_too_deep_is_refused_with_its_place() {
        let body = |lists: usize| format!("{{\"a\": {}{}}}", "[".repeat(lists), "]".repeat(lists));
        assert!(Fields::parse(body(MAX_LEVELS - 1).as_bytes()).is_ok());
        let refused = Fields::parse(body(MAX_LEVELS).as_bytes()).unwrap_err();
        assert_eq!(
            refused.message(),
            "the body nests more than 127 levels deep at line 1 column 133; a JSON schema may be sent as a text, \
             which nests on its own"
        );
    }

    #[test]
    fn seeds_are_integers_of_64_bits() {
        let seed = |value: &str| Fields::parse(format!(r#"{{"seed": {value}}}"#).as_bytes()).unwrap().seed();
        for (text, expected) in [
            ("null", None),
            ("-1", None),
            ("0", Some(0)),
            ("7.0", Some(7)),
            ("1e3", Some(1000)),
            ("-5", Some(u64::MAX - 4)),
            ("-2.0", Some(u64::MAX - 1)),
            ("9007199254740993", Some((1 << 53) + 1)),
            ("9223372036854775807", Some(i64::MAX as u64)),
            ("-9223372036854775808", Some(1 << 63)),
            ("18446744073709551615", Some(u64::MAX)),
        ] {
            assert_eq!(seed(text), Ok(expected), "{text}");
        }
        for wrong in ["0.5", "1e30", "18446744073709551616", "\"7\"", "true", "[]", "-9223372036854775809"] {
            let error = seed(wrong).unwrap_err();
            assert!(error.message().contains("must be an integer"), "{wrong}: {error:?}");
        }
    }

    /// Checks that bodies with too many values are refused before they are parsed. A long text is
    /// one value.
    #[test]
    fn body_value_count_is_limited_by_its_memory() {
        let (number, text) = (VALUE_BYTES, VALUE_BYTES + TEXT_BYTES);
        let all = [br#"{"a": [1, "x\",,[{", 3], "b": {}}"#.as_slice(), b"1"].map(memory_of_values);
        let object = VALUE_BYTES + OBJECT_BYTES;
        assert_eq!(
            all,
            [number + object + TEXT_BYTES + number + LIST_BYTES + text + 2 * number + TEXT_BYTES + object, number]
        );
        let of = |member: &str, count: usize| {
            let list = vec![member; count].join(",");
            Fields::parse(format!(r#"{{"prompt": [{list}]}}"#).as_bytes()).map(drop)
        };
        let few = MEMORY.start() / VALUE_BYTES - 32;
        for (member, count) in [("1", few), (r#"{"a":0}"#, few / 16), ("31999", few), (r#""a b c d""#, 3 * few)] {
            assert_eq!(of(member, count), Ok(()), "{count} of {member}");
        }
        for (member, count) in [("1", 2 * few), (r#""x""#, few), ("[]", few), ("[1]", few / 4), (r#"{"a":0}"#, few / 8)]
        {
            let error = of(member, count).unwrap_err();
            assert!(error.message().contains("too many values"), "{member}: {error:?}");
        }
        assert!(Fields::parse(format!(r#"{{"prompt": "{}"}}"#, ",[{".repeat(1 << 20)).as_bytes()).is_ok());
    }
}
