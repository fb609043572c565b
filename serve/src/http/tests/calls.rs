//! Calls of tools in all three interfaces: whole, in parts, and cut off.

use ixc_generate::answer::AnswerText;
use ixc_generate::generator::End;
use ixc_text::chat::{Answer, Parser, format_of};
use serde_json::{Value, json};

use super::scripted::{Said, Scripted};

const PATHS: [&str; 3] = ["/v1/chat/completions", "/v1/messages", "/v1/responses"];

/// A template of Qwen 3's format.
const QWEN: &str = "{# <tool_call> <think> #}{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}\
                    {% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>";
/// A template of Qwen 3 Coder's format.
const CODER: &str = "{# <tool_call><function= #}{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}\
                     {% for m in messages %}{{ m.content }}{% endfor %}";
/// A template of Llama 3's format. Its calls have no marker, only their JSON text distinguishes
/// them from answers.
const LLAMA: &str = "{# {\"name\": function name, \"parameters\":  #}{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}\
                     {% for m in messages %}{{ m.content }}{% endfor %}";

/// Returns a request to an interface, with two tools and this tool choice.
fn request(path: &str, choice: &str, more: Value) -> Value {
    let names = ["look", "now"];
    let schema = json!({"type": "object", "properties": {"at": {"type": "string"}, "n": {"type": "integer"}}});
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let mut body = match path {
        "/v1/chat/completions" => json!({
            "messages": messages, "tool_choice": choice,
            "tools": names.map(|name| json!({"type": "function", "function": {"name": name, "parameters": schema}})),
        }),
        "/v1/messages" => json!({
            "messages": messages, "max_tokens": 1000, "tool_choice": {"type": choice},
            "tools": names.map(|name| json!({"name": name, "input_schema": schema})),
        }),
        _ => json!({
            "input": messages, "tool_choice": choice,
            "tools": names.map(|name| json!({"type": "function", "name": name, "parameters": schema})),
        }),
    };
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Returns an answer, and the number of pieces in which its arguments are streamed. Checks that the
/// streamed answer is the same.
fn said(model: &Scripted, path: &'static str, body: &Value, text: &str, end: &End) -> (Said, usize) {
    let (status, whole) = model.post(path, body, text, end.clone());
    assert_eq!(status, 200, "{path}: {whole}");
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let (status, stream) = model.post(path, &streamed, text, end.clone());
    assert_eq!(status, 200, "{path}: {stream}");
    let whole = Said::of_whole(path, &whole);
    let (in_parts, pieces) = Said::of_stream(path, &stream);
    let same = match path {
        // The arguments are a complete object. Members that were cut off are omitted.
        "/v1/messages" => {
            let names = |said: &Said| said.calls.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
            (names(&whole), &whole.content, &whole.end) == (names(&in_parts), &in_parts.content, &in_parts.end)
        }
        _ => whole == in_parts,
    };
    assert!(same, "{path}: {whole:?} and {in_parts:?} of {text:?}");
    (in_parts, pieces)
}

const CALL: &str =
    "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"a </tool_call> \\\"b\\\"\", \"n\": 12}}\n</tool_call>";

/// The text of a call is a call if tools may be called. Otherwise it is returned as content,
/// unchanged.
#[test]
fn text_is_a_call_only_with_tools_enabled() {
    let model = Scripted::new(QWEN);
    for path in PATHS {
        let end = |called: bool| match path {
            "/v1/chat/completions" => {
                if called {
                    "tool_calls"
                } else {
                    "stop"
                }
            }
            "/v1/messages" => {
                if called {
                    "tool_use"
                } else {
                    "end_turn"
                }
            }
            _ => "completed",
        };
        let (called, pieces) = said(&model, path, &request(path, "auto", json!({})), CALL, &End::Token(0));
        let arguments = r#"{"at": "a </tool_call> \"b\"", "n": 12}"#;
        assert_eq!(called.calls, [("look".to_owned(), arguments.to_owned())], "{path}");
        assert_eq!((&*called.content, &*called.end), ("", end(true)), "{path}");
        // Each character is sent in a separate piece, except those that may begin the closing
        // marker.
        assert_eq!(pieces + "</tool_call>".len() - 1, arguments.len(), "{path}");
        let mut without = request(path, "auto", json!({}));
        for name in ["tools", "tool_choice"] {
            without.as_object_mut().unwrap().remove(name);
        }
        for body in [request(path, "none", json!({})), without, request(path, "auto", json!({"tools": []}))] {
            for text in [CALL, "a <tool_call>{} b\n", "<tool_"] {
                let (written, _) = said(&model, path, &body, text, &End::Token(0));
                let expected = Said { content: text.to_owned(), calls: Vec::new(), end: end(false).to_owned() };
                assert_eq!(written, expected, "{path}: {body}");
            }
        }
    }
    // The other kinds of call formats behave in the same way.
    for (template, text) in [
        (LLAMA, "{\"name\": \"look\", \"parameters\": {}}"),
        (CODER, "<tool_call>\n<function=look>\n</function>\n</tool_call>"),
    ] {
        let body = request(PATHS[0], "none", json!({}));
        assert_eq!(said(&Scripted::new(template), PATHS[0], &body, text, &End::Token(0)).0.content, text);
    }
}

/// If an answer is truncated at any character, no text of a call becomes content, and its arguments
/// are a prefix of the whole call's.
#[test]
fn truncated_calls_are_never_content() {
    let coder = "<tool_call>\n<function=look>\n<parameter=at>\nx\"y\n</parameter>\n<parameter=n>\n12\n</parameter>\n</function>\n</tool_call>";
    let llama = "{\"name\": \"look\", \"parameters\": {\"at\": \"x\\\"y\", \"n\": 12}}";
    for (template, before, call) in [(QWEN, "Wait.\n", CALL), (CODER, "Wait.\n", coder), (LLAMA, "", llama)] {
        let model = Scripted::new(template);
        for path in PATHS {
            let body = request(path, "auto", json!({}));
            let text = [before, call].concat();
            let (whole, _) = said(&model, path, &body, &text, &End::Token(0));
            assert_eq!(whole.calls.len(), 1, "{path}: {whole:?}");
            let mut longest = 0;
            for (at, _) in text.char_indices().skip(before.len()) {
                for end in [End::Limit, End::Context, End::StopString("x".into())] {
                    let (cut, _) = said(&model, path, &body, &text[..at], &end);
                    assert_eq!(cut.content.trim_end(), before.trim_end(), "{path}: {:?}", &text[..at]);
                    let Some((name, arguments)) = cut.calls.first() else { continue };
                    assert!(name == "look" && whole.calls[0].1.starts_with(&**arguments), "{path}: {cut:?}");
                    longest = longest.max(arguments.len());
                    let is_length = ["length", "max_tokens", "incomplete"].contains(&&*cut.end);
                    assert_eq!(is_length, !matches!(end, End::StopString(_)), "{path}: {cut:?}");
                }
            }
            assert!(longest + 2 > whole.calls[0].1.len(), "{path}: {longest} of {whole:?}");
        }
    }
}

#[test]
fn end_of_a_begun_call_is_that_of_all_interfaces() {
    let model = Scripted::new(QWEN);
    for end in [End::Token(2), End::StopString("x".into()), End::Grammar, End::Limit, End::Context, End::Stopped] {
        let (mut text, mut expected) = (AnswerText::new(Some(Parser::new(format_of(QWEN), ""))), Answer::default());
        let begun = "Wait. <tool_call>{\"na";
        expected.extend(text.push(begun));
        expected.extend(text.end(&end));
        for path in PATHS {
            let (answer, _) = said(&model, path, &request(path, "auto", json!({})), begun, &end);
            assert_eq!((answer.content, answer.calls), (expected.content.clone(), Vec::new()), "{path}: {end:?}");
        }
    }
}

#[test]
fn single_call_is_returned_without_parallel_calls() {
    let model = Scripted::new(QWEN);
    let text = [CALL, "\n", &CALL.replace("look", "now"), " and more"].concat();
    for path in PATHS {
        let alone = match path {
            "/v1/messages" => json!({"tool_choice": {"type": "auto", "disable_parallel_tool_use": true}}),
            _ => json!({"parallel_tool_calls": false}),
        };
        let several = said(&model, path, &request(path, "auto", json!({})), &text, &End::Token(0)).0;
        let one = said(&model, path, &request(path, "auto", alone), &text, &End::Token(0)).0;
        assert_eq!((several.calls.len(), one.calls.len()), (2, 1), "{path}");
        assert_eq!(one.calls[0], several.calls[0], "{path}");
        assert_eq!((one.end, &*one.content), (several.end, ""), "{path}");
    }
}

/// A stop text can be returned with the answer.
#[test]
fn stop_text_can_be_included_in_the_answer() {
    let model = Scripted::new(QWEN);
    for path in PATHS {
        let end = End::StopString("END".into());
        for (tells, expected) in [(false, "So "), (true, "So END")] {
            let body = request(path, "auto", json!({"include_stop_str_in_output": tells}));
            assert_eq!(said(&model, path, &body, "So ", &end).0.content, expected, "{path}");
        }
    }
}
