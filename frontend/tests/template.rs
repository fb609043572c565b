//! Templates against Python's Jinja: `tests/vectors/templates.py` says what it makes of them.

use std::collections::BTreeMap;

use ixc_frontend::template::{ChatTemplate, Conversation, TemplateError};

#[derive(serde::Deserialize)]
struct Vectors {
    conversations: BTreeMap<String, Conversation>,
    sources: BTreeMap<String, String>,
    rendered: BTreeMap<String, BTreeMap<String, Rendered>>,
}

#[derive(serde::Deserialize, Debug, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Rendered {
    Text(String),
    Raised(String),
    Error(String),
}

/// Templates that differ, with both texts.
fn differences(vectors: &str) -> (usize, Vec<String>) {
    let Vectors { conversations, sources, rendered } = serde_json::from_str(vectors).unwrap();
    let (mut count, mut different) = (0, Vec::new());
    for (name, source) in &sources {
        let template = ChatTemplate::from_source(source).unwrap();
        for (which, expected) in &rendered[name] {
            count += 1;
            let ours = match template.render(&conversations[which]) {
                Ok(text) => Rendered::Text(text),
                Err(TemplateError::Raised { message }) => Rendered::Raised(message),
                Err(error) => Rendered::Error(error.to_string()),
            };
            // What Python cannot do has other words here, or works: `for x in none` is an empty loop.
            let same =
                matches!(expected, Rendered::Error(_)) && !matches!(ours, Rendered::Raised(_)) || ours == *expected;
            if !same {
                different.push(format!("{name}, {which}:\n  expected {expected:?}\n  ours     {ours:?}"));
            }
        }
    }
    (count, different)
}

#[test]
fn templates_render_as_in_python() {
    let (count, different) = differences(include_str!("vectors/templates.json"));
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert_eq!(count, 36);
}

/// For templates of others, on request.
#[test]
fn templates_of_others_render_as_in_python() {
    let Some(file) = std::env::var_os("IXC_TEMPLATES") else { return };
    let (count, different) = differences(&std::fs::read_to_string(file).unwrap());
    assert!(different.is_empty(), "{} of {count} differ\n{}", different.len(), different.join("\n"));
}
