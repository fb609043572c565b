//! Generated tables of `docs/faq.md`: errors that have a remedy, by class. The tables come from the
//! sources: the `#[error]` text, the doc comment, `class()` and `remedy()` of each variant, and the
//! options in `cli/src/hints.rs`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use ixc_testing::bless;

use super::{FOLDERS, sources, workspace};

/// Line in the page after which the tables begin. They are the rest of the page.
const MARK: &str = "<!-- generated -->\n";

/// Signature of the functions that return classes.
const CLASS: &str = "fn class(&self) -> Class {";

/// Rows of the table for each class, by the index of the class.
type Tables = BTreeMap<usize, Vec<Row>>;

/// Row of a table: an error with its remedy.
struct Row {
    message: String,
    reason: String,
    remedy: String,
}

/// Variant of an error enum, or an error struct.
#[derive(Debug, PartialEq)]
struct Variant {
    /// Type and name: `LoadError::Lock`; the type of a struct.
    name: String,
    /// First sentence of the doc comment.
    doc: String,
    /// Message with `…` in place of values; `None` for a variant that shows the inner error's
    /// message.
    message: Option<String>,
    /// Type of the only field of a tuple variant, or of the field `source`.
    inner: Option<String>,
}

/// Returns the longest string literal of a text, without quotes and escapes.
fn longest_literal(text: &str) -> Option<String> {
    let mut found = Vec::new();
    let mut chars = text.chars().peekable();
    while chars.any(|c| c == '"') {
        let mut literal = String::new();
        while let Some(c) = chars.next().filter(|c| *c != '"') {
            match c {
                '\\' if chars.next_if_eq(&'\n').is_some() => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                '\\' => literal.extend(chars.next()),
                c => literal.push(c),
            }
        }
        found.push(literal);
    }
    found.into_iter().rev().max_by_key(String::len)
}

/// Replaces the values of a format string by `…`, and escapes the text for a table cell.
fn cell(format: &str) -> String {
    let mut text = String::new();
    let mut depth = 0usize;
    for c in format.replace("{{", "\u{1}").replace("}}", "\u{2}").chars() {
        match c {
            '{' => {
                depth += 1;
                text.push('…');
            }
            '}' => depth -= 1,
            '\u{1}' => text.push('{'),
            '\u{2}' => text.push('}'),
            '|' => text.push_str("\\|"),
            c if depth == 0 => text.push(c),
            _ => {}
        }
    }
    text.replace("……", "…")
}

/// Returns the first sentence of a doc comment, or the whole comment if it has only one.
fn sentence(doc: &str) -> String {
    doc.split_inclusive(". ").next().unwrap_or_default().trim().to_owned()
}

/// Returns the variants of all error enums in a source.
fn variants(text: &str) -> Vec<Variant> {
    let mut found = Vec::new();
    let (mut owner, mut doc, mut attribute) = (None::<String>, String::new(), None::<String>);
    for line in text.lines() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if indent == 0 {
            let name_after = |head: &str| {
                let rest = code.trim_start_matches("pub(crate) ").trim_start_matches("pub ").strip_prefix(head)?;
                Some(rest[..rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len())].to_owned())
            };
            if let Some(text) = code.strip_prefix("#[error(") {
                attribute = Some(text.to_owned());
                continue;
            }
            if let (Some(name), Some(text)) = (name_after("struct "), &attribute) {
                let message = longest_literal(text).map(|format| cell(&format));
                found.push(Variant { name, doc: String::new(), message, inner: None });
            }
            owner = name_after("enum ");
            (doc, attribute) = (String::new(), None);
            continue;
        }
        let Some(owner) = &owner else { continue };
        if let (8, Some(source)) = (indent, code.strip_prefix("source: "))
            && let Some(variant) = found.last_mut()
        {
            let source = source.trim_end_matches(',').trim_start_matches("Box<").trim_end_matches('>');
            variant.inner = source.rsplit("::").next().map(str::to_owned);
        }
        if let Some(part) = code.strip_prefix("///").filter(|_| indent == 4) {
            write!(doc, "{}{}", if doc.is_empty() { "" } else { " " }, part.trim()).unwrap();
        } else if indent == 4 && code.starts_with("#[error(") {
            attribute = Some(code.to_owned());
        } else if let Some(attribute) = attribute.as_mut().filter(|text| indent > 4 && !text.ends_with(")]")) {
            write!(attribute, "\n{code}").unwrap();
        } else if indent == 4 && code.starts_with(")]") {
            attribute.iter_mut().for_each(|text| text.push_str(")]"));
        } else if indent == 4
            && code.starts_with(char::is_uppercase)
            && let Some(text) = attribute.take()
        {
            let end = code.find(|c: char| !c.is_alphanumeric()).unwrap_or(code.len());
            let field = code[end..].strip_prefix('(').and_then(|rest| rest.split(')').next());
            found.push(Variant {
                name: format!("{owner}::{}", &code[..end]),
                doc: sentence(&std::mem::take(&mut doc)),
                message: longest_literal(&text).map(|format| cell(&format)),
                inner: field.and_then(|field| field.rsplit([' ', ':']).next()).map(str::to_owned),
            });
        }
    }
    found
}

/// Returns the arms of a function's match: for each arm, the variants of its pattern, and its
/// result.
fn arms<'t>(text: &'t str, head: &str) -> Vec<(Vec<String>, &'t str)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(head) {
        let body = &text[at..];
        let body = &body[..body.find("\n    }\n").unwrap_or(body.len())];
        let mut rest = body.split_once("match self {").map_or("", |(_, rest)| rest);
        while let Some((pattern, after)) = rest.split_once("=>") {
            let end = after.find(",\n").unwrap_or(after.len());
            let names = pattern.split('|').filter_map(|part| {
                let path = part.trim().trim_start_matches(',').trim();
                let end = path.find(|c: char| !c.is_alphanumeric() && c != ':').unwrap_or(path.len());
                path[..end].contains("::").then(|| path[..end].to_owned())
            });
            found.push((names.collect(), after[..end].trim()));
            rest = &after[end..];
        }
    }
    found
}

/// Returns the last name of a path in a text, such as `LargerContext` of `Remedy::LargerContext`.
fn name_after<'t>(text: &'t str, path: &str) -> Option<&'t str> {
    let rest = &text[text.find(path)? + path.len()..];
    Some(&rest[..rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len())])
}

/// Returns the classes with their descriptions, in the order of the enum.
fn classes() -> Vec<(String, String)> {
    let text = fs::read_to_string(workspace().join("failure/src/class.rs")).unwrap();
    let (mut found, mut doc) = (Vec::new(), String::new());
    for line in text.lines().filter_map(|line| line.strip_prefix("    ")) {
        match line.strip_prefix("/// ") {
            Some(part) => doc.push_str(part),
            None => found.push((line.trim_end_matches(',').to_owned(), std::mem::take(&mut doc))),
        }
    }
    found
}

/// Returns the rows of all errors that have a remedy.
fn tables(classes: &[(String, String)]) -> Tables {
    let hints = fs::read_to_string(workspace().join("cli/src/hints.rs")).unwrap();
    let files: Vec<String> = FOLDERS.iter().flat_map(|folder| sources(folder)).map(|(_, text)| text).collect();
    let all: Vec<Variant> = files.iter().flat_map(|text| variants(text)).collect();
    let class_of = |variant: &Variant, text: &str| {
        let own = arms(text, CLASS);
        let direct = own.iter().find(|(names, _)| names.contains(&variant.name));
        let direct = direct.and_then(|(_, result)| name_after(result, "Class::"));
        // A variant whose class is that of its cause is listed under the first class that the cause
        // can have.
        let of_cause = || {
            let head = format!("impl {} {{", variant.inner.as_deref()?);
            let block = files.iter().find_map(|text| Some(&text[text.find(&head)?..]))?;
            name_after(&block[block.find(CLASS)? + CLASS.len()..], "Class::")
        };
        let name = direct.or_else(of_cause)?;
        classes.iter().position(|(class, _)| class == name)
    };
    let mut found = Tables::new();
    for text in &files {
        let own = variants(text);
        for (names, result) in arms(text, "fn remedy(&self) -> Option<Remedy> {") {
            let Some(remedy) = name_after(result, "Remedy::") else { continue };
            let option = &hints[hints.find(&format!("Remedy::{remedy} =>")).unwrap()..];
            let option = &option[..option[1..].find("Remedy::").map_or(option.len(), |at| at + 1)];
            let option = cell(&longest_literal(option).unwrap());
            for name in names {
                let Some(variant) = own.iter().find(|variant| variant.name == name) else { continue };
                // The server's refusals have an HTTP status instead of a class.
                let Some(class) = class_of(variant, text) else { continue };
                let is_inner = |other: &&Variant| other.name.split("::").next() == variant.inner.as_deref();
                let own_message = variant.message.clone().filter(|message| message != "…");
                let message = own_message.or_else(|| all.iter().find(is_inner)?.message.clone());
                found.entry(class).or_default().push(Row {
                    message: message.unwrap_or_else(|| "the message of the cause".to_owned()),
                    reason: cell(&variant.doc),
                    remedy: option.clone(),
                });
            }
        }
    }
    found
}

/// Checks that the FAQ has every error with a remedy. `IXC_BLESS=1` rewrites the tables of the
/// page.
#[test]
fn the_faq_has_every_error_with_a_remedy() {
    let classes = classes();
    let path = workspace().join("docs/faq.md");
    let page = fs::read_to_string(&path).unwrap();
    let (own, _) = page.split_once(MARK).unwrap();
    let mut expected = format!("{own}{MARK}");
    for (class, mut rows) in tables(&classes) {
        let (name, doc) = &classes[class];
        let name = match name.as_str() {
            "NoInput" => "No input",
            "Io" => "Input and output",
            name => name,
        };
        write!(expected, "\n### {name}\n\n{doc}\n\n| message | reason | remedy |\n| --- | --- | --- |\n").unwrap();
        rows.sort_by(|a, b| a.message.cmp(&b.message));
        rows.iter()
            .for_each(|row| writeln!(expected, "| {} | {} | {} |", row.message, row.reason, row.remedy).unwrap());
    }
    if page != expected && bless::is_asked_for() {
        fs::write(&path, &expected).unwrap();
        return;
    }
    assert!(page == expected, "docs/faq.md is not up to date; IXC_BLESS=1 rewrites its tables:\n{expected}");
}

#[test]
fn variants_are_read() {
    let text = r#"pub enum SpaceError {
    /// No space. Free some.
    #[error(
        "{}: is {found}; \
         {{x}}",
        path.display()
    )]
    Full {
        /// A.
        path: Box<Path>,
    },
    /// Inner.
    #[error(transparent)]
    Io(#[from] IoError),
}
"#;
    let variant = |name: &str, doc: &str, message: Option<&str>, inner: Option<&str>| Variant {
        name: name.to_owned(),
        doc: doc.to_owned(),
        message: message.map(str::to_owned),
        inner: inner.map(str::to_owned),
    };
    assert_eq!(
        variants(text),
        [
            variant("SpaceError::Full", "No space.", Some("…: is …; {x}"), None),
            variant("SpaceError::Io", "Inner.", None, Some("IoError")),
        ]
    );
}
