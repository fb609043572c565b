//! Tests of templates. The expected results are from Python's Jinja (`tests/vectors/templates.py`).

use std::collections::BTreeMap;

use ixc_text::chat::{Answer, Parser, Part, ToolCall, format_of};
use ixc_text::template::known::KNOWN;
use ixc_text::template::{ChatTemplate, Conversation, Json, Message, TemplateError};
use serde_json::Value;

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

/// Returns the templates whose results differ from Python's, with both results.
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
            // Python's errors have other texts. Some do not occur here: `for x in none` is an empty
            // loop.
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
    assert_eq!(count, 45);
}

/// Tests that the name of a known format serves as the template. Early converters of RWKV wrote a
/// name instead of a source.
#[test]
fn a_name_in_the_place_of_a_source_is_a_known_format() {
    let conversation = Conversation {
        messages: vec![Message::new("user", " a ")],
        add_generation_prompt: true,
        ..Conversation::default()
    };
    let template = ChatTemplate::from_source("rwkv-world").unwrap();
    assert_eq!(template.render(&conversation).unwrap(), "User: a\n\nAssistant:");
}

/// Parsed message: its reasoning, its content, and the name and arguments of each call.
type Read = (String, String, Vec<(String, Value)>);

/// Renders an assistant's message with calls, and parses the rendered text. `None` if the template
/// refuses the message.
fn there_and_back(source: &str, turn: &Message, tools: &[Json]) -> Option<Read> {
    let template = ChatTemplate::from_source(source).unwrap();
    let user = Message::new("user", "How is the weather?");
    let render = |messages: Vec<Message>, add_generation_prompt| {
        template
            .render(&Conversation {
                messages,
                add_generation_prompt,
                tools: tools.into(),
                variables: vec![("enable_thinking".into(), Json::new("true").unwrap())],
                ..Conversation::default()
            })
            .ok()
    };
    let prompt = render(vec![user.clone()], true)?;
    let whole = render(vec![user.clone(), turn.clone()], false)?;
    // The prompt may end with an empty reasoning, which is not in the rendered message. The text
    // that both share may end inside of a marker.
    let shared = prompt.bytes().zip(whole.bytes()).take_while(|(a, b)| a == b).count();
    let (before, _) = whole.split_at(whole.floor_char_boundary(shared));
    let before = before.rfind('<').filter(|at| before.len() - at < 3).map_or(before, |at| &before[..at]);
    let written = whole.strip_prefix(before)?;
    let mut answer = Answer::default();
    let mut parser = Parser::new(format_of(source), before);
    answer.extend(parser.push(written));
    answer.extend(parser.finish());
    let calls = answer.calls.into_iter().map(|call| (call.name, serde_json::from_str(&call.arguments).unwrap()));
    Some((answer.reasoning, answer.content, calls.collect()))
}

/// Returns a message with two calls, the tools that it calls, and the expected names and arguments.
fn calls() -> (Message, Vec<Json>, Vec<(String, Value)>) {
    let arguments = r#"{"city": "Paris <x> \"é\"\nFrance", "days": 2, "deep": {"z": [1.5, true]}}"#;
    let call = |name: &str, arguments: &str| ToolCall {
        id: format!("call_{name}"),
        name: name.into(),
        arguments: arguments.into(),
    };
    let tool_calls = vec![call("get_weather", arguments), call("now", "{}")];
    let calls =
        tool_calls.iter().map(|call| (call.name.clone(), serde_json::from_str(&call.arguments).unwrap())).collect();
    let tool = |name: &str| {
        Json::new(format!(
            r#"{{"type": "function", "function": {{"name": "{name}", "description": "", "parameters": {{"type": "object", "properties": {{}}}}}}}}"#
        ))
    };
    (
        Message { tool_calls, reasoning: Some("Look.".into()), ..Message::new("assistant", "") },
        ["get_weather", "now"].map(|name| tool(name).unwrap()).into(),
        calls,
    )
}

#[test]
fn rendered_messages_parse_back() {
    let (turn, tools, calls) = calls();
    let source = include_str!("vectors/templates/turns.jinja");
    let (reasoning, content, read) = there_and_back(source, &turn, &tools).unwrap();
    assert_eq!((&*reasoning, &*content, read), ("Look.", "", calls));
}

/// Tests templates that concatenate arguments with text, such as DeepSeek-V3's. They fail with
/// values in transformers, so servers pass the JSON text.
#[test]
fn templates_that_join_arguments_to_text_get_their_json() {
    let source = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.name + '\n' + c.function.arguments + ';' }}{% endfor %}{% endfor %}";
    let (turn, _, _) = calls();
    let json = turn.tool_calls[0].arguments.clone();
    let conversation = Conversation { messages: vec![turn], ..Conversation::default() };
    let rendered = |source: &str| ChatTemplate::from_source(source).unwrap().render(&conversation);
    assert_eq!(rendered(source).unwrap(), format!("get_weather\n{json};now\n{{}};"));
    // Other errors of templates are unchanged.
    let error = rendered("{{ 1 + messages[0].tool_calls[0].function.arguments }}").unwrap_err();
    assert!(error.to_string().contains("number and map"), "{error}");
}

/// Tests that a template that prints arguments unchanged gets the client's JSON text. A template
/// that applies `tojson` gets values, with all digits.
#[test]
fn templates_that_print_arguments_get_their_text() {
    let arguments = r#"{"id": 2512292042121000001, "dry_run": true,  "note": null, "name": "O'Brien"}"#;
    let rendered = |code: &str, arguments: &str| {
        let call = ToolCall { id: "c1".into(), name: "f".into(), arguments: arguments.into() };
        let empty = ToolCall { id: "c2".into(), name: "g".into(), arguments: "{}".into() };
        let turn = Message { tool_calls: vec![call, empty], ..Message::new("assistant", "") };
        let messages = vec![Message::new("user", "Hi"), turn, Message::new("tool", "ok")];
        let source = format!(
            "{{% for m in messages %}}{{{{ m.content }}}}{{% for t in m.tool_calls %}}<{code}>{{% endfor %}}{{% endfor %}}"
        );
        let conversation = Conversation { messages, ..Conversation::default() };
        ChatTemplate::from_source(&source).unwrap().render(&conversation).unwrap()
    };
    let printed = format!("Hi<{arguments}><{{}}>ok");
    for code in [
        "{{ t.function.arguments }}",
        "{{ t['function']['arguments'] | string }}",
        "{{ '' ~ t.function.arguments }}",
        "{{ '' + t.function.arguments }}",
        "{% set a = t.function.arguments %}{{ a if a is string else a }}",
    ] {
        assert_eq!(rendered(code, arguments), printed, "{code}");
    }
    let json = r#"{"id": 2512292042121000001, "dry_run": true, "note": null, "name": "O'Brien"}"#;
    for code in [
        "{{ t.function.arguments | tojson }}",
        "{% if t.function.arguments is string %}{{ t.function.arguments }}{% else %}{{ t.function.arguments | tojson }}{% endif %}",
    ] {
        assert_eq!(rendered(code, arguments), format!("Hi<{json}><{{}}>ok"), "{code}");
    }
    // This template traverses arguments, with integers of more than 64 bits.
    let long = r#"{"a": 123456789012345678901234567890, "b": [-99999999999999999999], "c": 1.5}"#;
    assert_eq!(rendered("{{ t.function.arguments | tojson }}", long), format!("Hi<{long}><{{}}>ok"));
    let walked = "{% for k, v in t.function.arguments | items %}{{ k }}={{ v }};{% endfor %}";
    assert_eq!(rendered(walked, long), "Hi<a=123456789012345678901234567890;b=[-99999999999999999999];c=1.5;><>ok");
    // If the template fails otherwise, the arguments of a call that was cut off are reduced to the
    // complete members.
    assert_eq!(rendered(walked, r#"{"a": 1, "b": "x"#), "Hi<a=1;><>ok");
    assert_eq!(rendered("{{ t.function.arguments }}", r#"{"a": 1, "b": "x"#), "Hi<{\"a\": 1, \"b\": \"x><{}>ok");
}

/// Tests templates of vision models. Many of them need content as a list of parts. With a text,
/// they print nothing or fail.
#[test]
fn templates_that_iterate_content_get_parts() {
    let parts = "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}";
    let selected = "{% for m in messages %}<{{ m.role }}>{% for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part.text }}{% endfor %}{% endfor %}";
    let strict = "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{{ part.text | trim }}{% endfor %}{% endfor %}";
    let both = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}wrong{% endif %}{% endfor %}";
    let neither = "{% for m in messages %}<{{ m.role }}>{% endfor %}";
    let messages = vec![Message::new("user", " Hi "), Message::new("assistant", "Yes?"), Message::new("user", "Bye")];
    let rendered = |source: &str, messages: &[Message]| {
        let conversation = Conversation { messages: messages.to_vec(), ..Conversation::default() };
        ChatTemplate::from_source(source).unwrap().render(&conversation).unwrap()
    };
    for source in [parts, selected, both] {
        assert_eq!(rendered(source, &messages), "<user> Hi <assistant>Yes?<user>Bye", "{source}");
    }
    assert_eq!(rendered(strict, &messages), "<user>Hi<assistant>Yes?<user>Bye");
    assert_eq!(rendered(neither, &messages), "<user><assistant><user>");
    assert_eq!(rendered(parts, &[Message::new("user", " ")]), "<user>");
    // The prompt contains this short text anyway, so its presence does not prove that the message
    // was printed.
    assert_eq!(rendered(parts, &[Message::new("user", "user")]), "<user>user");
    assert_eq!(rendered(both, &[Message::new("user", "user")]), "<user>user");
}

/// Tests templates like those of DeepSeek-V3 and R1. They write calls only if a message has no
/// content, as OpenAI's clients send it. Other templates would print the word `none`.
#[test]
fn calls_are_rendered_in_messages_without_content() {
    let (turn, tools, _) = calls();
    let listed = "{% for t in tools %}{{ t.function.name }};{% endfor %}";
    let deepseek = "{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}<{{ c.function.name + '\n' + c.function.arguments }}>{% endfor %}{% else %}[{{ m.content }}]{% endif %}{% endfor %}";
    let values = deepseek.replace("+ c.function.arguments", "+ (c.function.arguments | tojson)");
    let word = "{% for m in messages %}[{{ m.content }}]{% for c in m.tool_calls %}<{{ c.function.name }}>{% endfor %}{{ 'none' if 0 }}{% endfor %}";
    let joined = "{% for m in messages %}{{ '[' + m.content + ']' }}{% if m.tool_calls is not none %}{% for c in m.tool_calls %}<{{ c.function.name }}>{% endfor %}{% endif %}{% endfor %}";
    let said = Message { content: "Wait.".into(), ..turn.clone() };
    let rendered = |source: &str, turn: &Message| {
        let messages = vec![Message::new("user", "How?"), turn.clone()];
        let conversation = Conversation { messages, tools: tools.clone(), ..Conversation::default() };
        ChatTemplate::from_source(&[listed, source].concat()).unwrap().render(&conversation).unwrap()
    };
    let written = format!("get_weather;now;[How?]<get_weather\n{}><now\n{{}}>", turn.tool_calls[0].arguments);
    let spaced = rendered(&values, &turn);
    assert_eq!((rendered(deepseek, &turn), spaced), (written.clone(), written));
    assert_eq!(rendered(deepseek, &said), "get_weather;now;[How?][Wait.]");
    for source in [word, joined] {
        assert_eq!(rendered(source, &turn), "get_weather;now;[How?][]<get_weather><now>");
    }
}

/// Returns a conversation whose last message the assistant's answer continues, in this part.
fn begun(last: Message, part: Option<Part>) -> Conversation {
    Conversation {
        messages: vec![Message::new("user", "A"), Message::new("assistant", "B"), Message::new("user", "C"), last],
        continued: part,
        bos_token: "<s>".into(),
        eos_token: "</s>".into(),
        ..Conversation::default()
    }
}

/// Checks that a prompt ends with the message to continue, including its white space. Otherwise, it
/// must be the same as the prompt for the conversation before that message. Returns the difference,
/// if any. Ignores messages that the template refuses in any case.
fn wrongly_begun(source: &str) -> Option<String> {
    let template = ChatTemplate::from_source(source).unwrap();
    let rendered = |said: &str, part| template.render(&begun(Message::new("assistant", said), part));
    for said in ["Once upon a ", "<think>\nOnce", "Once \u{10fffd} upon", "B", "x\n\n"] {
        let Ok(whole) = rendered(said, None) else { continue };
        match rendered(said, Some(Part::Content)) {
            Err(error) => return Some(error.to_string()),
            Ok(open) if !open.ends_with(said.trim_start()) => return Some(format!("{said:?}: {open:?}")),
            Ok(open) if !whole.starts_with(open.trim_end()) => {
                return Some(format!("{open:?} is no part of {whole:?}"));
            }
            Ok(_) => {}
        }
    }
    let (empty, one) = (rendered("", Some(Part::Content)).ok()?, rendered("x", Some(Part::Content)).ok()?);
    (empty.clone() + "x" != one).then(|| format!("{empty:?} and {one:?}"))
}

#[test]
fn every_known_template_leaves_the_last_message_open() {
    for known in KNOWN {
        assert_eq!(wrongly_begun(known.template().source()), None, "{}", known.name);
    }
    assert_eq!(wrongly_begun(include_str!("vectors/templates/turns.jinja")), None);
}

#[test]
fn reasoning_continues_where_template_or_prompt_places_it() {
    let thought = Message { reasoning: Some("It is ".into()), ..Message::new("assistant", "") };
    let rendered =
        |source: &str, part| ChatTemplate::from_source(source).unwrap().render(&begun(thought.clone(), Some(part)));
    let turn = "{% for m in messages %}[{{ m.role }}]";
    // These are templates like Qwen 3's, like DeepSeek R1's, which omits reasoning, and one after
    // which the place to continue is unknown.
    let written = format!(
        "{turn}{{% if m.reasoning_content %}}<think>\n{{{{ m.reasoning_content.strip() }}}}\n</think>\n\n{{% endif %}}{{{{ m.content }}}};{{% endfor %}}"
    );
    assert_eq!(rendered(&written, Part::Reasoning).unwrap(), "[user]A;[assistant]B;[user]C;[assistant]<think>\nIt is ");
    assert_eq!(
        rendered(&written, Part::Content).unwrap(),
        "[user]A;[assistant]B;[user]C;[assistant]<think>\nIt is\n</think>\n\n"
    );
    let left_out = format!(
        "{turn}{{{{ m.content }}}};{{% endfor %}}{{% if add_generation_prompt %}}[assistant]<think>\n{{% endif %}}"
    );
    assert_eq!(
        rendered(&left_out, Part::Reasoning).unwrap(),
        "[user]A;[assistant]B;[user]C;[assistant]<think>\nIt is "
    );
    let not_begun = format!("{turn}{{{{ m.content }}}};{{% endfor %}}{{# <think> #}}");
    let plain = format!("{turn}{{{{ m.reasoning_content }}}}{{{{ m.content }}}};{{% endfor %}}");
    let twice = format!("{turn}{{{{ m.content }}}}{{{{ m.content }}}};{{% endfor %}}");
    let without = format!("{turn};{{% endfor %}}");
    for (source, part, says) in [
        (not_begun, Part::Reasoning, "omits the reasoning of the message"),
        (plain, Part::Reasoning, "does not know this chat template's marks of reasoning"),
        (twice, Part::Content, "more than once"),
        (without, Part::Content, "omits the content of the message"),
    ] {
        match rendered(&source, part) {
            Err(TemplateError::NotContinued { reason }) => assert!(reason.contains(says), "{reason}"),
            other => panic!("{source}: {other:?}"),
        }
    }
    let (calls, _, _) = calls();
    let template = ChatTemplate::from_source("").unwrap();
    let error = template.render(&begun(calls, Some(Part::Content))).unwrap_err();
    assert!(error.to_string().contains("must follow"), "{error}");
    let none = Conversation { messages: Vec::new(), ..begun(thought.clone(), Some(Part::Content)) };
    assert!(matches!(template.render(&none), Err(TemplateError::NotContinued { .. })));
}

/// Tests templates of external files, if an environment variable names them.
#[test]
fn external_templates_render_like_python() {
    let Some(file) = std::env::var_os("IXC_TEMPLATES") else { return };
    let vectors = std::fs::read_to_string(file).unwrap();
    for (name, source) in serde_json::from_str::<Vectors>(&vectors).unwrap().sources {
        let (turn, tools, calls) = calls();
        let found = match there_and_back(&source, &turn, &tools) {
            None => "are refused".to_owned(),
            Some((reasoning, _, read)) if read == calls => format!("are read again, with reasoning {reasoning:?}"),
            Some((_, content, read)) => format!("are read as {read:?} and {content:?}"),
        };
        let open = wrongly_begun(&source).map_or("goes on".to_owned(), |wrong| format!("does not go on: {wrong}"));
        println!(
            "{name}: answers are of the format {}; calls {found}; the last message {open}",
            format_of(&source).name
        );
    }
    let (count, different) = differences(&vectors);
    assert!(different.is_empty(), "{} of {count} differ\n{}", different.len(), different.join("\n"));
}
