//! Official tests of JSON Schema. They show which schemas are supported, and which instances they
//! allow.
//!
//! These tests check the table in docs/json-schema.md. `IXC_BLESS=1` rewrites it.

use std::collections::BTreeMap;
use std::fmt::Write;

use ixc_grammar::{KEYWORDS, KeywordSupport};
use serde_json::{Map, Value, json};

use crate::support::{follows, matcher};

/// Invalid instances that a supported schema allows, as `draft: keyword: description: instance`.
/// The list may only become shorter.
const ADMITTED: &[&str] = &[];

/// Numbers of a keyword's tests: those that passed, and all of them.
#[derive(Default)]
struct Row {
    schemas: [usize; 2],
    valid: [usize; 2],
    invalid: [usize; 2],
}

impl Row {
    fn add(&mut self, other: &Row) {
        for (sum, own) in
            [(&mut self.schemas, other.schemas), (&mut self.valid, other.valid), (&mut self.invalid, other.invalid)]
        {
            (sum[0], sum[1]) = (sum[0] + own[0], sum[1] + own[1]);
        }
    }
}

/// Returns an object with its members in every order, if it has few orders.
fn orders(value: &Value) -> Vec<Value> {
    let Value::Object(members) = value else { return vec![value.clone()] };
    if members.len() > 4 {
        return vec![value.clone()];
    }
    let mut all: Vec<Map<String, Value>> = vec![Map::new()];
    for _ in 0..members.len() {
        let longer = all.iter().flat_map(|head| {
            members.iter().filter(|(name, _)| !head.contains_key(*name)).map(|(name, value)| {
                let mut head = head.clone();
                head.insert(name.clone(), value.clone());
                head
            })
        });
        all = longer.collect();
    }
    all.into_iter().map(Value::Object).collect()
}

/// Returns a value as a text with spaces between its parts.
fn spaced(value: &Value) -> String {
    match value {
        Value::Array(all) => format!("[{}]", all.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| format!("{}: {}", json!(name), spaced(value));
            format!("{{ {} }}", members.iter().map(member).collect::<Vec<_>>().join(" , "))
        }
        other => other.to_string(),
    }
}

/// Results of tests: table rows by keyword, and invalid instances that were allowed.
#[derive(Default)]
struct Results {
    rows: BTreeMap<String, Row>,
    admitted: Vec<String>,
}

impl Results {
    fn add(&mut self, other: Results) {
        for (keyword, row) in other.rows {
            self.rows.entry(keyword).or_default().add(&row);
        }
        self.admitted.extend(other.admitted);
    }
}

/// Runs the tests of a draft, and returns their results.
fn run(draft: &str, text: &str) -> Results {
    let Results { mut rows, mut admitted } = Results::default();
    for line in text.lines() {
        let group: Value = serde_json::from_str(line).unwrap();
        let (keyword, description) = (group["keyword"].as_str().unwrap(), group["description"].as_str().unwrap());
        let mut schema = group["schema"].clone();
        if let (Value::Object(members), "draft7") = (&mut schema, draft) {
            members.insert("$schema".to_owned(), json!("http://json-schema.org/draft-07/schema#"));
        }
        let row = rows.entry(keyword.to_owned()).or_default();
        let tests = group["tests"].as_array().unwrap();
        row.schemas[1] += 1;
        check_validator(&group, &schema);
        let matcher = matcher(&schema);
        if let (Err(error), true) = (&matcher, std::env::var_os("IXC_TEST_VERBOSE").is_some()) {
            println!("refused: {draft}: {keyword}: {description}: {error}");
        }
        row.schemas[0] += usize::from(matcher.is_ok());
        for test in tests {
            let (is_valid, value) = (test[0].as_bool().unwrap(), &test[1]);
            // The matcher reads the text of the instance, and the same text with spaces.
            let is_allowed = matcher.as_ref().is_ok_and(|matcher| {
                orders(value)
                    .iter()
                    .any(|value| follows(matcher, &value.to_string()) || follows(matcher, &spaced(value)))
            });
            let count = if is_valid { &mut row.valid } else { &mut row.invalid };
            count[1] += 1;
            count[0] += usize::from(is_allowed == is_valid);
            if is_allowed && !is_valid {
                admitted.push(format!("{draft}: {keyword}: {description}: {value}"));
            }
            if !is_allowed && is_valid && matcher.is_ok() && std::env::var_os("IXC_TEST_VERBOSE").is_some() {
                println!("missing: {draft}: {keyword}: {description}: {value}");
            }
        }
    }
    Results { rows, admitted }
}

/// Checks the validator that other tests use, if it knows all keywords of a schema.
fn check_validator(group: &Value, schema: &Value) {
    let unknown = ["dynamic", "recursive", "unevaluated", "$id", "$anchor", "id\"", "http", "urn:", "format", "\\\\"];
    let text = schema.to_string();
    let is_old = text.contains("draft-07") && text.contains("$ref");
    if is_old || unknown.iter().any(|part| text.replace("http://json-schema.org/draft-07", "").contains(part)) {
        return;
    }
    for test in group["tests"].as_array().unwrap() {
        let expected = test[0].as_bool().unwrap();
        assert_eq!(crate::validator::is_valid(schema, schema, &test[1]), expected, "{schema} {}", test[1]);
    }
}

/// Returns the tables for the page in docs.
fn tables(rows: &BTreeMap<String, Row>) -> String {
    let mut text = String::from("| keyword | treatment | details |\n| --- | --- | --- |\n");
    for keyword in KEYWORDS {
        let support = match keyword.support {
            KeywordSupport::Enforced => "enforced",
            KeywordSupport::Annotation => "annotation",
            KeywordSupport::Structure => "structure",
            KeywordSupport::Refused => "refused",
        };
        let _ = writeln!(text, "| `{}` | {support} | {} |", keyword.name, keyword.note);
    }
    text.push_str("\n| tests of | schemas followed | valid instances allowed | invalid instances not allowed |\n| --- | --- | --- | --- |\n");
    let mut sum = Row::default();
    let share = |[count, all]: [usize; 2]| format!("{count} of {all}");
    for (keyword, row) in rows {
        let _ =
            writeln!(text, "| {keyword} | {} | {} | {} |", share(row.schemas), share(row.valid), share(row.invalid));
        sum.add(row);
    }
    let _ = writeln!(text, "| all | {} | {} | {} |", share(sum.schemas), share(sum.valid), share(sum.invalid));
    text
}

#[test]
fn official_schema_tests_match_the_recorded_table() {
    let mut results = Results::default();
    // This test takes longer than all others of its program together.
    std::thread::scope(|scope| {
        let newer = scope.spawn(|| run("draft2020-12", include_str!("suite/draft2020-12.jsonl")));
        let older = run("draft7", include_str!("suite/draft7.jsonl"));
        results.add(newer.join().unwrap());
        results.add(older);
    });
    let Results { rows, admitted } = results;
    assert_eq!(admitted, ADMITTED, "these invalid instances are allowed");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/json-schema.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (begin, end) = ("<!-- tables: written by the tests of ixc-grammar -->\n", "<!-- end of tables -->\n");
    let (head, rest) = page.split_once(begin).unwrap();
    let tail = rest.split_once(end).unwrap().1;
    let expected = format!("{head}{begin}{}{end}{tail}", tables(&rows));
    if page != expected && std::env::var_os("IXC_BLESS").is_some_and(|value| !value.is_empty()) {
        std::fs::write(path, &expected).unwrap();
        return;
    }
    assert!(
        page == expected,
        "docs/json-schema.md is not as the tests are; IXC_BLESS=1 rewrites its tables:\n{}",
        tables(&rows)
    );
}
