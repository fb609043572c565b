//! Text files with a byte order mark, as Notepad and PowerShell 5 write them. No reader takes the
//! mark as part of the text. The error for a UTF-16 mark names UTF-16.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::server::Server;
use crate::support::{ixc, scratch, stderr, stdout};

const MARK: &str = "\u{feff}";

/// Returns a text encoded in UTF-16.
fn utf16(text: &str) -> Vec<u8> {
    [0xfeff].into_iter().chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect()
}

#[test]
fn byte_order_mark_is_not_part_of_the_text() {
    let folder = scratch("marks");
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, format!("{MARK}{text}")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let prompt = write("prompt.txt", "The borrow checker");
    let schema = write("schema.json", r#"{"const": 1}"#);
    let grammar = write("grammar.gbnf", "root ::= \"yes\"");
    let template = write("template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
    let tokens = write("tokens.txt", "1,2,3");
    let out = |arguments: &[&str]| stdout(ixc(arguments));
    let plain = ["tokenize", "demo", "-p", "The borrow checker"];
    assert_eq!(out(&["tokenize", "demo", "-f", &prompt]), out(&plain));
    let run = ["run", "demo", "-n", "5", "--temp", "0", "-t", "2"];
    let with = |more: &[&str]| out(&[&run[..], more].concat());
    assert_eq!(with(&["-p", "Hi", "--json-schema-file", &schema]), "1\n");
    assert_eq!(with(&["-p", "Hi", "--grammar-file", &grammar]), "yes\n");
    assert_eq!(out(&["detokenize", "demo", &format!("@{tokens}")]), out(&["detokenize", "demo", "1,2,3"]));
    let server = Server::start(&["--chat-template", &template]);
    let (_, answer) = server.post("/apply-template", &json!({"messages": [{"role": "user", "content": "Hi"}]}));
    assert_eq!(answer["prompt"], "Hi");
    drop(server);

    let keys = write("keys.txt", "secret\nother\n");
    let server = Server::start(&["--api-key-file", &keys]);
    assert_eq!(server.ask("GET", "/v1/models", "Authorization: Bearer secret\r\n", "").0, 200);
    drop(server);

    let batch =
        write("batch.jsonl", "{\"prompt\": \"Hi\", \"max_tokens\": 1}\n{\"prompt\": \"Ho\", \"max_tokens\": 1}\n");
    let answers = folder.join("answers.jsonl");
    stdout(ixc(["run", "demo", "--batch", &batch, "-o", answers.to_str().unwrap()]));
    for line in fs::read_to_string(&answers).unwrap().lines() {
        let answer: Value = serde_json::from_str(line).unwrap();
        assert_eq!(answer["response"]["status_code"], 200, "{line}");
    }
}

#[test]
fn other_encodings_are_refused_by_name() {
    let folder = scratch("marks_other");
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, utf16(text)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (prompt, schema, keys) = (write("prompt.txt", "Hi"), write("schema.json", "{}"), write("keys.txt", "secret\n"));
    for arguments in [
        &["tokenize", "demo", "-f", &prompt][..],
        &["run", "demo", "-p", "Hi", "--json-schema-file", &schema],
        &["serve", "demo", "--port", "0", "--api-key-file", &keys],
    ] {
        let output = ixc(arguments).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(65), "{arguments:?}: {said}");
        let name = Path::new(arguments[arguments.len() - 1]).file_name().unwrap().to_str().unwrap();
        assert!(said.contains("UTF-16") && said.contains(name), "{said}");
    }
}

/// Checks that comments, and keys that no client can send, are refused with their line numbers.
#[test]
fn invalid_api_keys_are_refused() {
    let path = scratch("marks_keys").join("keys.txt");
    for (text, says) in
        [("alpha\n\n# comment\n", "line 3: the line begins with #"), ("alpha\ng\u{e4}mma\n", "line 2: the key has")]
    {
        fs::write(&path, text).unwrap();
        let output = ixc(["serve", "demo", "--port", "0", "--api-key-file", path.to_str().unwrap()]).output().unwrap();
        let said = stderr(&output);
        assert!(output.status.code() == Some(65) && said.contains(says), "{said}");
    }
}
