//! Tests of schemas from user reports, and of similar schemas.

use ixc_grammar::{Frame, GrammarError, GrammarSource, Mark, ReasoningMarks, Vocabulary};
use serde_json::{Value, json};

use crate::support::{BYTES, follows, masks_allow, matcher};

/// Checks that a schema allows some texts, and does not allow others.
fn check(schema: Value, allowed: &[&str], others: &[&str]) {
    let matcher = matcher(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
    for text in allowed {
        assert!(masks_allow(&matcher, text), "{schema} must allow {text}");
    }
    for text in others {
        assert!(!masks_allow(&matcher, text), "{schema} must not allow {text}");
    }
}

/// Returns the message of the error that refuses a schema.
fn refusal(schema: Value) -> String {
    match matcher(&schema) {
        Ok(_) => panic!("{schema} must be refused"),
        Err(error) => error.to_string(),
    }
}

/// Tests the schemas of report folder 01.
#[test]
fn minimum_64_bit_integers_are_followed() {
    let least = "-9223372036854775808";
    check(json!({"const": i64::MIN}), &[least], &["-9223372036854775807", "0"]);
    check(json!({"enum": [i64::MIN, 0, u64::MAX]}), &[least, "0", "18446744073709551615"], &["-1"]);
    let schema = json!({"type": "object", "properties": {"level": {"enum": [i64::MIN, 0]}}, "required": ["level"], "additionalProperties": false});
    check(schema, &["{\"level\": -9223372036854775808}", "{\"level\":0}"], &["{}"]);
}

/// Tests the schemas of report folder 02.
#[test]
fn bounds_of_numeric_types_are_followed() {
    let int64 = json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX});
    check(
        int64,
        &["-9223372036854775808", "9223372036854775807", "0"],
        &["9223372036854775808", "-9223372036854775809", "1.5"],
    );
    check(json!({"type": "number", "minimum": -1e308, "maximum": 1e308}), &["0.5", "-12.25", "1000000"], &["[", "\""]);
    let float = json!({"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38});
    check(float, &["3.5", "340282346638528860000000000000000000000"], &["340282346638528860000000000000000000001"]);
    check(
        json!({"type": "integer", "minimum": 0, "maximum": u64::MAX}),
        &["18446744073709551615"],
        &["18446744073709551616", "-1"],
    );
    check(
        json!({"type": "integer", "minimum": -2147483648i64, "maximum": 2147483647}),
        &["-2147483648"],
        &["2147483648"],
    );
    let inner = json!({"type": "integer", "exclusiveMinimum": i64::MIN, "exclusiveMaximum": i64::MAX});
    check(inner, &["-9223372036854775807", "9223372036854775806"], &["-9223372036854775808", "9223372036854775807"]);
    check(json!({"type": "integer", "minimum": 5, "exclusiveMinimum": true}), &["6"], &["5"]);
    check(json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 5e-324}), &[], &["0", "1", "0.0"]);
    check(json!({"type": "integer", "minimum": 0.5, "maximum": 2.5}), &["1", "2"], &["0", "3"]);
}

/// Tests the schemas of report folder 05.
#[test]
fn property_names_are_followed() {
    let record = json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9}});
    check(record, &["{}", "{\"a\": 1, \"b\": 2}"], &["{\"a\": 10}"]);
    let pattern = json!({"type": "object", "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 2}});
    check(pattern, &["{\"ab\": []}"], &["{\"abc\": 1}", "{\"A\": 1}"]);
    let listed =
        json!({"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": {"type": "null"}});
    check(listed, &["{}", "{\"x\":null,\"y\":null}"], &["{\"z\":null}", "{\"x\":null,\"x\":null}"]);
}

/// Tests the schemas of report folder 07.
#[test]
fn integers_beyond_doubles_are_exact() {
    check(json!({"const": 9007199254740993i64}), &["9007199254740993"], &["9007199254740992"]);
    let listed = json!({"enum": [2512292042121000001i64, 2512292042121000002i64]});
    check(listed, &["2512292042121000001", "2512292042121000002"], &["2512292042121000000"]);
    let range = json!({"type": "integer", "minimum": 9007199254740993i64, "maximum": 9007199254740993i64});
    check(range, &["9007199254740993"], &["9007199254740992", "9007199254740994"]);
    check(
        json!({"const": {"a": [1234567890123456789i64, {"b": null}]}}),
        &["{\"a\": [1234567890123456789, {\"b\": null}]}"],
        &["{\"a\": [1234567890123456768, {\"b\": null}]}"],
    );
    check(
        json!({"enum": [1, "1", null, true, 1.5, [1], {"a": 1}]}),
        &["1", "\"1\"", "null", "true", "1.5", "[1]", "{\"a\":1}"],
        &["false", "2"],
    );
    check(
        json!({"type": "integer", "multipleOf": 9007199254740993i64, "maximum": 18014398509481986i64, "minimum": 1}),
        &["9007199254740993", "18014398509481986"],
        &["1"],
    );
}

/// Tests the schemas of report folder 08.
#[test]
fn duplicate_keys_are_prevented() {
    let schema = json!({"type": "object", "patternProperties": {"^[ab]$": {"const": 1}}, "additionalProperties": false, "minProperties": 2, "maxProperties": 2});
    check(schema, &["{\"a\": 1, \"b\": 1}"], &["{\"a\": 1, \"a\": 1}", "{\"a\": 1}"]);
    check(json!({"type": "object", "minProperties": 2}), &["{\"a\": 1, \"b\": 1}"], &["{\"a\": 1, \"a\": 1}"]);
    let open =
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "object"}});
    check(
        open,
        &["{\"a\":1,\"b\":{\"a\":1,\"b\":2}}"],
        &["{\"a\":1,\"a\":{}}", "{\"b\":{},\"b\":{}}", "{\"b\":{\"x\":1,\"x\":1}}"],
    );
    // After the first letter of a key that already exists, no other key is possible.
    let narrow = json!({"type": "object", "patternProperties": {"^(a|b[0-9]+)$": true}, "additionalProperties": false, "minProperties": 2});
    let mut matcher = matcher(&narrow).unwrap();
    "{\"a\":1,\"".bytes().for_each(|byte| matcher.accept(u32::from(byte)).unwrap());
    let mask = matcher.token_mask().unwrap();
    assert!(mask[3] >> (b'a' - 96) & 1 == 0 && mask[3] >> (b'b' - 96) & 1 == 1);
}

/// Tests that reasoning ends at its control token, but not at other tokens with the same text.
#[test]
fn keys_are_tracked_after_reasoning_ends() {
    const END: u32 = 256;
    const SPELLED: u32 = 257;
    let mut words: Vec<Vec<u8>> = (0..=254u8).map(|byte| vec![byte]).collect();
    // The byte that marks control tokens is not a byte of any text.
    words.extend([Vec::new(), [b"\xff".as_slice(), b"</think>"].concat(), b"</think>".to_vec()]);
    let vocabulary = Vocabulary::of_words(words, Vec::new()).unwrap();
    let frame = Frame {
        lark: format!("thinking: (/(?s:.+)/)? <[{END}]>\nstart: thinking schema0\n"),
        schemas: vec![json!({"type": "object"})],
        begin: ReasoningMarks { open: None, close: Some(Mark::Token(END)) },
        ..Frame::default()
    };
    for reasoning in ["", " say \"", "{\"a\": {"] {
        let mut matcher = vocabulary.matcher(&GrammarSource::Framed(frame.clone())).unwrap();
        let text = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
        for token in [vec![SPELLED], text(reasoning), vec![SPELLED, END], text("{\"a\":1,\"a")].concat() {
            matcher.accept(token).unwrap();
        }
        let mask = matcher.token_mask().unwrap();
        let allows = |byte: u8| mask[usize::from(byte) / 32] >> (byte % 32) & 1 == 1;
        assert!(allows(b'b') && !allows(b'"'), "after {reasoning:?}");
    }
}

/// Tests the schemas of report folder 11.
#[test]
fn unknown_formats_are_annotations() {
    for format in ["path", "password", "binary", "uuid4", "byte", "uri-reference", "regex", "json-pointer", "iri", "x"]
    {
        check(json!({"type": "string", "format": format, "maxLength": 3}), &["\"ab\""], &["\"abcd\"", "1"]);
    }
    check(
        json!({"type": "string", "format": "date", "pattern": "^2024"}),
        &["\"2024-02-29\""],
        &["\"2023-01-01\"", "\"2024-02-30\""],
    );
    check(json!({"type": "integer", "format": "int64"}), &["1"], &[]);
}

/// Tests the schemas of report folder 19.
#[test]
fn references_are_found() {
    for (name, reference) in [
        ("Box<string>", "#/$defs/Box%3Cstring%3E"),
        ("Box<string>", "#/$defs/Box<string>"),
        ("shared/User~1", "#/$defs/shared~1User~01"),
        ("a b", "#/$defs/a%20b"),
        ("100%", "#/$defs/100%25"),
        ("naïve", "#/$defs/naïve"),
        ("naïve", "#/$defs/na%C3%AFve"),
        ("a\"b", "#/$defs/a%22b"),
    ] {
        check(json!({"$defs": {name: {"const": 1}}, "$ref": reference}), &["1"], &["2"]);
    }
    check(json!({"$defs": {"x": {"$anchor": "one", "const": 1}}, "$ref": "#one"}), &["1"], &["2"]);
    check(
        json!({"$id": "http://x.y/root", "definitions": {"x": {"$id": "inner", "const": 1}}, "$ref": "http://x.y/inner"}),
        &["1"],
        &["2"],
    );
    check(
        json!({"$defs": {"x": {"type": "string"}}, "$ref": "#/$defs/x", "maxLength": 1}),
        &["\"a\""],
        &["\"ab\"", "1"],
    );
    check(
        json!({"properties": {"a": {"$ref": "#/properties/b"}, "b": {"const": 1}}, "type": "object"}),
        &["{\"a\":1}"],
        &["{\"a\":2}"],
    );
    let list = json!({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"], "additionalProperties": false});
    check(list, &["{\"next\":{\"next\":null}}"], &["{}", "{\"next\":1}"]);
    assert!(
        refusal(json!({"$ref": "http://a.b/c"})).contains("the schema at #/$ref: \"http://a.b/c\" is another document")
    );
    assert!(refusal(json!({"$ref": "#/$defs/x"})).contains("the schema has no part \"#/$defs/x\""));
}

/// Tests the schemas of report folder 22.
#[test]
fn thousands_of_members_are_followed() {
    for (count, required) in [(250, 0), (700, 0), (700, 10), (5000, 0), (1000, 1000)] {
        let names: Vec<String> = (0..count).map(|i| format!("p{i}")).collect();
        let properties: serde_json::Map<String, Value> = names
            .iter()
            .enumerate()
            .map(|(i, name)| (name.clone(), json!({"type": if i % 2 == 0 { "integer" } else { "string" }})))
            .collect();
        let schema = json!({"type": "object", "properties": properties, "required": names[..required], "additionalProperties": false});
        let begin: Vec<String> =
            (0..required).map(|i| if i % 2 == 0 { format!("\"p{i}\":1") } else { format!("\"p{i}\":\"\"") }).collect();
        let matcher = matcher(&schema).unwrap();
        let with = |rest: &str| {
            let members: Vec<&str> =
                begin.iter().map(String::as_str).chain(rest.split('|').filter(|part| !part.is_empty())).collect();
            format!("{{{}}}", members.join(","))
        };
        if required == count {
            assert!(follows(&matcher, &with("")));
            continue;
        }
        assert!(masks_allow(&matcher, &with("\"p100\":1|\"p249\":\"x\"")), "{count}");
        assert!(!masks_allow(&matcher, &with("\"p100\":\"x\"")), "{count}");
        assert!(!masks_allow(&matcher, &with("\"p100\":1|\"p100\":1")), "{count}");
        assert!(!masks_allow(&matcher, &with("\"q\":1")), "{count}");
    }
}

/// Tests the schemas of report folder 23, and those of S11.
#[test]
fn unsatisfiable_schemas_are_refused() {
    for schema in [
        json!({"$ref": "#"}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"allOf": [{"$ref": "#"}]}),
        json!(false),
        json!({"not": {}}),
        json!({"enum": []}),
        json!({"type": "string", "minLength": 3, "maxLength": 2}),
        json!({"type": "integer", "minimum": 5, "maximum": 4}),
        json!({"type": "integer", "minimum": 1, "maximum": 4, "multipleOf": 5}),
        json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
        json!({"type": "object", "properties": {"a": false}, "required": ["a"]}),
        json!({"type": "object", "required": ["a"], "additionalProperties": false}),
        json!({"type": "object", "minProperties": 2, "properties": {"a": {}}, "additionalProperties": false}),
        json!({"type": "string", "pattern": "^a$", "const": "b"}),
        json!({"allOf": [{"type": "string"}, {"type": "integer"}]}),
        json!({"type": "array", "items": false, "minItems": 1}),
        json!({"type": "array", "items": {"type": "boolean"}, "uniqueItems": true, "minItems": 3}),
        json!({"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "^b"}]}),
    ] {
        let text = refusal(schema.clone());
        assert!(text.contains("no JSON value satisfies this part of the schema"), "{schema}: {text}");
    }
    let inner = json!({"type": "object", "required": ["b"], "properties": {"a": {}, "b": {"allOf": [{"type": "string"}, {"type": "null"}]}}});
    let outer = json!({"type": "object", "required": ["x"], "properties": {"x": {"$ref": "#/$defs/inner"}}, "$defs": {"inner": inner}});
    assert_eq!(
        refusal(outer),
        "the schema at #/$defs/inner/properties/b: no JSON value satisfies this part of the schema: the part allows nothing, contradicts itself, or refers to itself without end"
    );
    let parts = json!({"allOf": [
        {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}},
        {"properties": {"a": {"type": "integer"}}},
    ]});
    assert!(refusal(parts).starts_with(
        "the schema at #/allOf/0/properties/a: no JSON value satisfies this part of the schema together with #/allOf/1/properties/a: the part allows"
    ));
    for gbnf in
        ["root ::= root", "root ::= a\na ::= b\nb ::= a | root", "root ::= \"a\" root", "root ::= (root)+ \"b\""]
    {
        let error = BYTES.matcher(&GrammarSource::Gbnf(gbnf.into())).unwrap_err().to_string();
        assert!(error.contains("the grammar matches no text"), "{gbnf}: {error}");
    }
    let words: Vec<String> = (0..20_000).map(|i| format!("\"{i:x}\"")).collect();
    let words = BYTES.matcher(&GrammarSource::Gbnf(format!("root ::= {}", words.join("|")))).unwrap();
    assert!(follows(&words, "4e1f") && follows(&words, "0") && !follows(&words, "4e20"));
}

#[test]
fn malformed_schemas_are_named_in_users_words() {
    for (schema, expected) in [
        (
            json!({"type": "objekt"}),
            "the schema at #/type: unknown type \"objekt\"; the types are null, boolean, integer, number, string, array, object",
        ),
        (
            json!({"properties": {"a/b": {"minimum": "5"}}}),
            "the schema at #/properties/a~1b/minimum: \"5\" is not a number",
        ),
        (json!({"required": true}), "the schema at #/required: true is not a list of names"),
        (json!({"items": 5}), "the schema at #/items: 5 is not a schema, or a list of schemas"),
        (
            json!({"type": "string", "pattern": "(?<=a)b"}),
            "the schema at #/pattern: \"(?<=a)b\": (?<=…) is not supported; the only supported lookaround is a lookahead directly after a leading ^",
        ),
        (
            json!({"type": "string", "pattern": "a("}),
            "the schema at #/pattern: \"a(\": it is not a supported regular expression (unclosed group)",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
            "the schema at #/uniqueItems: uniqueItems is supported for items of a list of values (enum, const, boolean, null), and for at most one item",
        ),
        (json!({"multipleOf": 0}), "the schema at #/multipleOf: 0 is not a number above 0"),
        (json!({"anyOf": {}}), "the schema at #/anyOf: {} is not a list of schemas"),
        (
            json!({"not": {"additionalProperties": false, "type": "object"}, "type": "object"}),
            "the schema at #/not: not, if or oneOf needs the opposite of additionalProperties here, which cannot be enforced",
        ),
        (
            json!({"extends": {}}),
            "the schema at #/extends: extends is not supported: a keyword of draft 3; use `allOf`",
        ),
    ] {
        assert_eq!(refusal(schema), expected);
    }
    assert!(matches!(matcher(&json!({"type": "x"})), Err(GrammarError::Schema { place, .. }) if place == "#/type"));
}

#[test]
fn keywords_are_followed_together() {
    let one_of = json!({"oneOf": [
        {"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind", "x"], "additionalProperties": false},
        {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"], "additionalProperties": false},
    ], "discriminator": {"propertyName": "kind"}});
    check(
        one_of,
        &["{\"kind\": \"a\", \"x\": 1}", "{\"kind\": \"b\"}"],
        &["{\"kind\": \"a\"}", "{\"kind\":\"b\",\"x\":1}"],
    );
    check(json!({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]}), &["1", "2.5"], &["3", "1.5"]);
    check(
        json!({"oneOf": [{"type": "string", "minLength": 2}, {"type": "string", "maxLength": 3}]}),
        &["\"a\"", "\"abcd\""],
        &["\"ab\"", "\"abc\""],
    );
    check(json!({"not": {"type": "string"}}), &["1", "null", "[]"], &["\"a\""]);
    check(json!({"type": "string", "not": {"enum": ["a", "b"]}}), &["\"c\"", "\"ab\""], &["\"a\""]);
    let conditional = json!({"type": "object", "properties": {"k": {"enum": ["a", "b"]}, "v": true}, "required": ["k", "v"],
        "if": {"properties": {"k": {"const": "a"}}}, "then": {"properties": {"v": {"type": "integer"}}}, "else": {"properties": {"v": {"type": "null"}}}});
    check(
        conditional,
        &["{\"k\":\"a\",\"v\":1}", "{\"k\":\"b\",\"v\":null}"],
        &["{\"k\":\"a\",\"v\":null}", "{\"k\":\"b\",\"v\":1}"],
    );
    check(
        json!({"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": false, "dependentRequired": {"a": ["b"]}}),
        &["{}", "{\"b\":1}", "{\"a\":1,\"b\":1}"],
        &["{\"a\":1}"],
    );
    check(
        json!({"type": "array", "contains": {"const": 7}, "items": {"type": "integer"}}),
        &["[7]", "[1,7,2]"],
        &["[]", "[1]"],
    );
    check(
        json!({"type": "array", "contains": {"const": 7}, "minContains": 2, "maxContains": 2}),
        &["[7,7]", "[7,1,7]"],
        &["[7]", "[7,7,7]"],
    );
    check(
        json!({"type": "array", "items": {"enum": ["a", "b", 1]}, "uniqueItems": true}),
        &["[]", "[\"a\",1]", "[1,\"b\",\"a\"]"],
        &["[1,1]"],
    );
    check(
        json!({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": false}),
        &["[]", "[\"a\"]", "[\"a\",1]"],
        &["[1]", "[\"a\",1,1]"],
    );
    check(json!({"type": "string", "nullable": true}), &["null", "\"a\""], &["1"]);
    check(json!({"type": ["string", "null"], "maxLength": 1}), &["null", "\"a\""], &["\"ab\"", "1"]);
    let overlap = json!({"type": "object", "properties": {"ab": {"type": "integer"}}, "patternProperties": {"^a": {"minimum": 5}, "b$": {"maximum": 9}}, "additionalProperties": false});
    check(
        overlap,
        &["{\"ab\":7}", "{\"ax\":5}", "{\"xb\":1}", "{\"acb\":6}"],
        &["{\"ab\":4}", "{\"acb\":10}", "{\"x\":1}"],
    );
    let unevaluated = json!({"type": "object", "allOf": [{"properties": {"a": {"type": "integer"}}}], "properties": {"b": {}}, "unevaluatedProperties": false});
    check(unevaluated, &["{\"b\":1,\"a\":1}", "{}"], &["{\"c\":1}", "{\"a\":\"\"}"]);
    check(
        json!({"type": "object", "properties": {"é\"\n": {"const": 1}}, "required": ["é\"\n"], "additionalProperties": false}),
        &["{\"é\\\"\\n\": 1}"],
        &[],
    );
    check(json!({"type": "object", "properties": {"a": {}}, "additionalProperties": {}}), &["{\"a\":1,\"b\":2}"], &[]);
    check(json!({"type": "array", "items": {"type": "integer"}, "maxItems": 1000000}), &["[]", "[1,2,3]"], &[]);
    check(json!({"type": "string", "minLength": 100000}), &[], &["\"a\""]);
    check(json!({"type": "string", "pattern": r"^\d{3}-\w+$"}), &["\"123-ab_\""], &["\"١23-a\"", "\"12-a\""]);
    check(json!({"type": "string", "pattern": r"^\p{Lu}.$"}), &["\"Éa\""], &["\"éa\""]);
    check(json!({"type": "number", "multipleOf": 0.01}), &["1.25", "3", "-0.1"], &["1.255"]);
    check(json!({"type": "integer", "multipleOf": 7, "minimum": 0}), &["0", "7", "7000"], &["8"]);
    check(json!({"type": "integer", "multipleOf": 2.5, "minimum": 0}), &["0", "5", "10"], &["2", "7"]);
    check(json!({"x-guidance": {"lenient": true}, "type": "null"}), &["null"], &["1"]);
    check(json!({"properties": {"a": {"type": "integer"}}}), &["1", "{\"a\":1}", "[]"], &["{\"a\":\"\"}"]);
}

/// Tests that a set that is smaller than its subschema is not treated as the whole. Otherwise,
/// overlapping parts of `oneOf` would count as disjoint.
#[test]
fn value_subsets_do_not_count_as_the_whole_schema() {
    // The compiler does not know whether 3 is a multiple of 2, so it omits the complement.
    let odd = json!({"not": {"multipleOf": 2}});
    let listed = json!({"oneOf": [{"enum": [[3]], "items": odd}, {"type": "array", "maxItems": 1, "items": {"type": "integer"}}]});
    check_not_allowed(listed, &["[3]"]);
    let regions = json!({"oneOf": [
        {"type": "object", "additionalProperties": {"type": "integer", "not": {"multipleOf": 2}}, "minProperties": 1},
        {"type": "object", "additionalProperties": {"type": "integer", "minimum": 3, "maximum": 3}, "minProperties": 1},
    ]});
    check_not_allowed(regions, &["{\"x\":3}"]);
    let counted = json!({"enum": [[3, 5], [4]], "contains": odd, "minContains": 0, "maxContains": 1});
    check_not_allowed(counted, &["[3,5]"]);
    // The value of `a` is checked against the schema whose own values are still being computed.
    let recursive = json!({
        "$defs": {"tree": {"enum": [{}, {"a": {}}], "properties": {"a": {"$ref": "#/$defs/tree"}}}},
        "oneOf": [{"$ref": "#/$defs/tree"}, {"type": "object", "properties": {"a": {"type": "object"}}, "required": ["a"]}],
    });
    check_not_allowed(recursive, &["{\"a\":{}}"]);
}

/// Checks that a schema is refused, or does not allow texts.
fn check_not_allowed(schema: Value, others: &[&str]) {
    if let Ok(matcher) = matcher(&schema) {
        for text in others {
            assert!(!masks_allow(&matcher, text), "{schema} must not allow {text}");
        }
    }
}

#[test]
fn listed_values_have_unevaluated_parts() {
    let listed = json!([{}, {"a": 1}, {"a": 1, "b": 2}, [], [1], 7]);
    let others = ["{\"a\":1,\"b\":2}", "[1]"];
    let own =
        json!({"enum": listed, "properties": {"a": {}}, "unevaluatedProperties": false, "unevaluatedItems": false});
    check(own, &["{}", "{\"a\":1}", "[]", "7"], &others);
    let inner = json!({"allOf": [{"enum": listed}], "unevaluatedProperties": false, "unevaluatedItems": false});
    check(inner, &["{}", "[]", "7"], &others);
    let strings =
        json!({"$ref": "#/$defs/x", "$defs": {"x": {"enum": listed}}, "unevaluatedItems": {"type": "integer"}});
    check(strings, &["{\"a\":1}", "[1]"], &[]);
}
