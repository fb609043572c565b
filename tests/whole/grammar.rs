//! Answers that JSON schemas constrain. Even with random logits, answers are valid JSON and valid
//! by the schema.

use ixc::generator::{End, Request};
use ixc::grammar::{GrammarSource, Vocabulary};
use ixc::ir::random::Random;
use ixc::loaded_model::LoadOptions;
use ixc::runtime::sample::{Sampler, SamplerSettings};
use ixc::session::Session;
use serde_json::{Map, Value, json};
use std::ops::ControlFlow;

/// Number of schemas in a test run. The variable `IXC_SCHEMAS` sets another number.
const SCHEMAS: u64 = 300;
/// Max tokens of an answer. Tokens that close brackets become more and more likely.
const MAX_TOKENS: usize = 4000;

fn below(random: &mut Random, count: usize) -> usize {
    (random.bits() % count as u64) as usize
}

fn chance(random: &mut Random) -> bool {
    random.bits() & 1 == 1
}

/// Returns a random value for `enum` and `const`.
fn value(random: &mut Random) -> Value {
    let values = [
        json!(null),
        json!(true),
        json!(-3),
        json!(2.5),
        json!("a \"b\" \\ ü\n"),
        json!(""),
        json!([1, "x"]),
        json!({"k": []}),
    ];
    values[below(random, values.len())].clone()
}

/// Returns a random schema. If `defined` is set, it may refer to the definition of the whole
/// schema.
fn schema(random: &mut Random, depth: usize, defined: bool) -> Value {
    let kinds = if depth == 0 { 6 } else { 10 };
    match below(random, kinds) {
        0 => json!({"type": "boolean"}),
        1 => {
            let mut schema = json!({"type": "integer"});
            if chance(random) {
                let least = below(random, 200) as i64 - 100;
                schema["minimum"] = least.into();
                schema["maximum"] = (least + below(random, 50) as i64).into();
            }
            schema
        }
        2 => {
            let mut schema = json!({"type": "string"});
            match below(random, 4) {
                0 => {
                    let least = below(random, 4);
                    schema["minLength"] = least.into();
                    schema["maxLength"] = (least + below(random, 5)).into();
                }
                1 => schema["pattern"] = "^[a-c]{2,4}-[0-9]+$".into(),
                _ => {}
            }
            schema
        }
        3 => json!({"enum": (0..1 + below(random, 3)).map(|_| value(random)).collect::<Vec<_>>()}),
        4 => json!({"const": value(random)}),
        5 if defined => json!({"$ref": "#/$defs/own"}),
        5 => json!({"type": ["null", "number"]}),
        6 => {
            let mut schema = json!({"type": "array", "items": self::schema(random, depth - 1, defined)});
            if chance(random) {
                let least = below(random, 3);
                schema["minItems"] = least.into();
                schema["maxItems"] = (least + below(random, 3)).into();
            }
            schema
        }
        7 => json!({"anyOf": (0..2).map(|_| self::schema(random, depth - 1, defined)).collect::<Vec<_>>()}),
        _ => {
            let mut properties = Map::new();
            let mut required = Vec::new();
            for name in ["a", "b c", "ü", "\"", "long_name"] {
                if chance(random) {
                    properties.insert(name.to_owned(), self::schema(random, depth - 1, defined));
                    if chance(random) {
                        required.push(name);
                    }
                }
            }
            let mut schema = json!({"type": "object", "properties": properties, "required": required});
            match below(random, 3) {
                0 => schema["additionalProperties"] = false.into(),
                1 => schema["additionalProperties"] = self::schema(random, 0, false),
                _ => {}
            }
            schema
        }
    }
}

/// Returns a random schema with its definition.
fn whole(seed: u64) -> Value {
    let mut random = Random::new(seed);
    let defined = chance(&mut random);
    let mut schema = schema(&mut random, 3, defined);
    if defined {
        let own = self::schema(&mut random, 1, false);
        schema["$defs"] = json!({"own": own});
    }
    schema
}

/// Returns whether a value is valid, by the keywords used above.
fn is_valid(value: &Value, schema: &Value, root: &Value) -> bool {
    let Some(schema) = schema.as_object() else { return schema.as_bool() == Some(true) };
    let valid = |value: &Value, schema: &Value| is_valid(value, schema, root);
    schema.iter().all(|(keyword, of)| match (&**keyword, value) {
        ("type", value) => {
            let types = of.as_array().cloned().unwrap_or_else(|| vec![of.clone()]);
            types.iter().any(|of| match of.as_str().unwrap() {
                "null" => value.is_null(),
                "boolean" => value.is_boolean(),
                "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
                "number" => value.is_number(),
                "string" => value.is_string(),
                "array" => value.is_array(),
                "object" => value.is_object(),
                other => panic!("type {other}"),
            })
        }
        ("minimum", Value::Number(number)) => number.as_f64() >= of.as_f64(),
        ("maximum", Value::Number(number)) => number.as_f64() <= of.as_f64(),
        ("minLength", Value::String(text)) => text.chars().count() as u64 >= of.as_u64().unwrap(),
        ("maxLength", Value::String(text)) => text.chars().count() as u64 <= of.as_u64().unwrap(),
        ("pattern", Value::String(text)) => {
            assert_eq!(of, "^[a-c]{2,4}-[0-9]+$");
            text.split_once('-').is_some_and(|(letters, digits)| {
                (2..=4).contains(&letters.len())
                    && letters.chars().all(|c| ('a'..='c').contains(&c))
                    && !digits.is_empty()
                    && digits.bytes().all(|c| c.is_ascii_digit())
            })
        }
        ("enum", value) => of.as_array().unwrap().contains(value),
        ("const", value) => of == value,
        ("$ref", value) => {
            assert_eq!(of, "#/$defs/own");
            valid(value, &root["$defs"]["own"])
        }
        ("anyOf", value) => of.as_array().unwrap().iter().any(|schema| valid(value, schema)),
        ("items", Value::Array(items)) => items.iter().all(|item| valid(item, of)),
        ("minItems", Value::Array(items)) => items.len() as u64 >= of.as_u64().unwrap(),
        ("maxItems", Value::Array(items)) => items.len() as u64 <= of.as_u64().unwrap(),
        ("required", Value::Object(members)) => {
            of.as_array().unwrap().iter().all(|name| members.contains_key(name.as_str().unwrap()))
        }
        ("properties", Value::Object(members)) => of
            .as_object()
            .unwrap()
            .iter()
            .all(|(name, schema)| members.get(name).is_none_or(|value| valid(value, schema))),
        ("additionalProperties", Value::Object(members)) => {
            let known = schema.get("properties").and_then(Value::as_object);
            members.iter().all(|(name, value)| known.is_some_and(|known| known.contains_key(name)) || valid(value, of))
        }
        ("minimum" | "maximum" | "minLength" | "maxLength" | "pattern" | "items" | "minItems" | "maxItems", _)
        | ("required" | "properties" | "additionalProperties" | "$defs", _) => true,
        (other, _) => panic!("keyword {other}"),
    })
}

/// Returns an answer from random logits. They increasingly favour tokens that close brackets.
fn answer(session: &Session, vocabulary: &Vocabulary, schema: &Value, seed: u64) -> String {
    let tokenizer = session.model().tokenizer().unwrap();
    let ends = tokenizer.end_of_generation();
    let mut matcher =
        vocabulary.matcher(&GrammarSource::Schema(schema.clone())).unwrap_or_else(|error| panic!("{error}: {schema}"));
    let settings =
        SamplerSettings { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed, ..SamplerSettings::default() };
    let mut sampler = Sampler::new(settings).unwrap();
    let mut random = Random::new(seed);
    let closes: Vec<bool> = (0..session.model().vocabulary() as u32)
        .map(|token| {
            let bytes = tokenizer.token_bytes(token).unwrap_or_default();
            ends.contains(&token) || !bytes.is_empty() && bytes.iter().all(|byte| b"\"]}".contains(byte))
        })
        .collect();
    let mut tokens = Vec::new();
    while !matcher.is_ended() {
        assert!(tokens.len() < MAX_TOKENS, "{schema}: {:?}", tokenizer.decode(&tokens));
        let urge = tokens.len() as f32 / 20.0;
        let logit = |closes: &bool| random.bits() as f32 / u64::MAX as f32 * 8.0 + if *closes { urge } else { 0.0 };
        let logits: Vec<f32> = closes.iter().map(logit).collect();
        let allowed = matcher.token_mask().unwrap_or_else(|error| panic!("{error}: {schema}"));
        let token = sampler.sample_allowed(&logits, Some(allowed), session.model().engine()).unwrap();
        if ends.contains(&token) {
            break;
        }
        matcher.accept(token).unwrap();
        tokens.push(token);
    }
    tokenizer.decode(&tokens).unwrap()
}

#[test]
fn answers_match_their_schemas() {
    let session = Session::open(None, &LoadOptions::default()).unwrap();
    let vocabulary = Vocabulary::new(session.model().tokenizer().unwrap()).unwrap();
    let count = std::env::var("IXC_SCHEMAS").map_or(SCHEMAS, |count| count.parse().unwrap());
    let mut large = 0;
    for seed in 0..count {
        let schema = whole(seed);
        let text = answer(&session, &vocabulary, &schema, seed);
        let value: Value = match serde_json::from_str(&text) {
            Ok(value) => value,
            // 1e999 is valid JSON, but not all parsers accept it.
            Err(error) if error.to_string().starts_with("number out of range") => {
                large += 1;
                continue;
            }
            Err(error) => panic!("seed {seed}: {error}: {text}\n{schema}"),
        };
        assert!(is_valid(&value, &schema, &schema), "seed {seed}: {value}\n{schema}");
    }
    assert!(large * 20 < count, "{large} of {count} have a number that is too large to be read");
}

/// Checks that the validity check of this file rejects invalid values.
#[test]
fn validity_check_rejects_invalid_values() {
    for (value, schema) in [
        (json!(3), json!({"type": "string"})),
        (json!(3), json!({"type": "integer", "maximum": 2})),
        (json!("abc"), json!({"maxLength": 2})),
        (json!("ab-"), json!({"pattern": "^[a-c]{2,4}-[0-9]+$"})),
        (json!([1]), json!({"items": {"type": "null"}})),
        (json!([1]), json!({"minItems": 2})),
        (json!({}), json!({"required": ["a"]})),
        (json!({"a": 1}), json!({"properties": {"a": {"type": "null"}}})),
        (json!({"a": 1}), json!({"properties": {}, "additionalProperties": false})),
        (json!(1), json!({"anyOf": [{"const": 2}, {"enum": [3]}]})),
    ] {
        assert!(!is_valid(&value, &schema, &schema), "{value} {schema}");
    }
}

#[test]
fn grammar_ends_the_text() {
    let mut session = Session::open(None, &LoadOptions::default()).unwrap();
    let vocabulary = Vocabulary::new(session.model().tokenizer().unwrap()).unwrap();
    let tokens = session.model().encode_prompt("The borrow checker").unwrap();
    let mut text = |source: GrammarSource| {
        let grammar = Some(vocabulary.matcher(&source).unwrap());
        let request = Request { grammar, limit: Some(40), ..Request::new(&tokens[..], SamplerSettings::greedy()) };
        let generation = session.generate(&request, |_| Ok::<_, ixc::Error>(ControlFlow::Continue(()))).unwrap();
        (session.model().tokenizer().unwrap().decode(&generation.tokens).unwrap(), generation.end)
    };
    assert_eq!(text(GrammarSource::Gbnf("root ::= \" yes\"".into())), (" yes".to_owned(), End::Grammar));
    let (found, end) = text(GrammarSource::Regex("[0-9]{3}-[a-f]{2}".into()));
    assert_eq!((found.len(), end), (6, End::Grammar), "{found}");
    let (found, end) = text(GrammarSource::Lark("start: \"a\" | \"b\" \"c\"".into()));
    assert!(["a", "bc"].contains(&&*found) && end == End::Grammar, "{found}");
    // The text without a grammar equals the text with a grammar that accepts every text.
    let free = text(GrammarSource::Regex("(?s:.*)".into())).0;
    let request = Request { limit: Some(40), ..Request::new(&tokens[..], SamplerSettings::greedy()) };
    let generation = session.generate(&request, |_| Ok::<_, ixc::Error>(ControlFlow::Continue(()))).unwrap();
    assert_eq!(session.model().tokenizer().unwrap().decode(&generation.tokens).unwrap(), free);
}
