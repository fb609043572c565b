//! Tests of combinations of two small schemas. If a combination allows an instance, another
//! validator must accept it. An intersection must not forbid an instance that both parts allow.

use serde_json::{Value, json};

use crate::support::{follows, matcher};
use crate::validator::is_valid;

/// Returns the schemas from which all pairs are made.
fn schemas() -> Vec<Value> {
    vec![
        json!({}),
        json!({"type": ["integer", "string"]}),
        json!({"type": "number", "minimum": 1, "exclusiveMaximum": 3}),
        json!({"multipleOf": 2}),
        json!({"type": "integer", "not": {"multipleOf": 2}}),
        json!({"enum": [1, 2.0, "a", null, [1], {"a": 1}]}),
        json!({"enum": [{"a": 1}, [1, "a"], [], {}, 3]}),
        json!({"not": {"enum": [1, "a", [1]]}}),
        json!({"const": "ab"}),
        json!({"type": "string", "minLength": 2}),
        json!({"maxLength": 1, "pattern": "a"}),
        json!({"type": "array", "items": {"type": "integer"}, "maxItems": 2}),
        json!({"prefixItems": [{"const": 1}], "items": {"type": "string"}}),
        json!({"contains": {"const": 1}, "maxContains": 1}),
        json!({"type": "array", "contains": {"type": "string"}, "minContains": 0, "maxContains": 0}),
        json!({"contains": {"not": {"multipleOf": 2}}, "minContains": 0, "maxContains": 1}),
        json!({"type": "array", "items": {"not": {"multipleOf": 2}}}),
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": false}),
        json!({"required": ["a"]}),
        json!({"type": "object", "additionalProperties": {"type": "integer", "not": {"multipleOf": 2}}}),
        json!({"type": "object", "additionalProperties": {"not": {"multipleOf": 2}}, "minProperties": 1}),
        json!({"type": "object", "propertyNames": {"maxLength": 1}, "minProperties": 1, "maxProperties": 1}),
        json!({"patternProperties": {"^a": {"minimum": 2}, "b$": {"type": "string"}}}),
        json!({"minProperties": 2, "dependentRequired": {"a": ["b"]}}),
        json!({"if": {"type": "object"}, "then": {"required": ["b"]}, "else": {"type": ["array", "number"]}}),
        json!({"oneOf": [{"type": "integer"}, {"minimum": 2}, {"type": "object"}]}),
        json!({"anyOf": [{"const": 1}, {"type": "array"}, {"properties": {"a": {"const": 1}}}]}),
    ]
}

/// Returns the instances. The members of each object are sorted by key.
fn instances() -> Vec<Value> {
    let text = r#"[null, true, 0, 1, 2, 3, 1.5, "", "a", "ab", "ba", [], [1], [2], ["a"], [3], [1, 1], [1, 2], [1, "a"],
        [3, 1], [2, 4], [1, "a", "b"], {}, {"a": 1}, {"a": 2}, {"a": 3}, {"a": "x"}, {"b": 1}, {"b": "x"}, {"ab": 3},
        {"a": 1, "b": 1}, {"a": 3, "b": "x"}, {"c": 3, "d": 1}]"#;
    let Ok(Value::Array(all)) = serde_json::from_str(text) else { panic!("{text}") };
    all
}

/// Returns whether a matcher accepts an instance with its members in either order.
fn is_followed(matcher: &ixc_grammar::Matcher, value: &Value) -> bool {
    let backwards = value.as_object().map(|all| Value::Object(all.clone().into_iter().rev().collect()));
    follows(matcher, &value.to_string()) || backwards.is_some_and(|value| follows(matcher, &value.to_string()))
}

#[test]
fn pairs_of_schemas_allow_valid_instances_alone() {
    let (schemas, instances) = (schemas(), instances());
    let (mut followed, mut refused, mut missing, mut wrong) = (0, 0, Vec::new(), Vec::new());
    for (i, a) in schemas.iter().enumerate() {
        for b in &schemas[i..] {
            // Some complements cannot be expressed as sets, so they are omitted.
            let is_exact = ![a, b].iter().any(|part| part.to_string().contains(r#""not":"#));
            for (keyword, schema) in [
                ("allOf", json!({"allOf": [a, b]})),
                ("oneOf", json!({"oneOf": [a, b]})),
                ("not", json!({"allOf": [a, {"not": b}]})),
            ] {
                let Ok(matcher) = matcher(&schema) else {
                    refused += 1;
                    let valid: Vec<&Value> =
                        instances.iter().filter(|value| is_valid(&schema, &schema, value)).collect();
                    if keyword == "allOf" && is_exact && !valid.is_empty() {
                        missing.push(format!("{schema}: refused, and {} is valid", valid[0]));
                    }
                    continue;
                };
                followed += 1;
                for value in &instances {
                    match (is_followed(&matcher, value), is_valid(&schema, &schema, value)) {
                        (true, false) => wrong.push(format!("{schema} allows {value}")),
                        (false, true) if keyword == "allOf" && is_exact => {
                            missing.push(format!("{schema} forbids {value}"))
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    println!("{followed} pairs followed, {refused} refused");
    // No regular expression matches the multiples of 2 that are not integers.
    let known = r#"{"allOf":[{"multipleOf":2},{"oneOf":[{"type":"integer"},{"minimum":2},{"type":"object"}]}]}: refused, and null is valid"#;
    assert_eq!(missing, [known]);
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
}
