//! Fields of requests to a server with a model: output formats, tools, stop conditions and seeds.

use std::fs;
use std::path::PathBuf;

use ixc_serve::http::request_fields::{Field, Interface, Treatment, fields_of};
use serde_json::{Value, json};

use crate::support::server::Server;
use crate::support::{ixc, scratch, stderr};

/// A chat template in the format of Qwen 3, which includes tools.
const QWEN: &str = r#"{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or '' }}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"#;
/// Two chat templates: one loops over the arguments of calls, the other prints them as text.
const WALKS: &str = "{%- for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% for t in m.tool_calls or [] %}<function={{ t.function.name }}>\
    {% for k, v in t.function.arguments | items %}<parameter={{ k }}>{{ v }}</parameter>{% endfor %}</function>{% endfor %}{% endfor %}";
const PRINTS: &str = "{%- for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% for t in m.tool_calls or [] %}\
    <call>{{ t.function.name }} {{ t.function.arguments }}</call>{% endfor %}{% endfor %}";

/// Starts a server for the demo model with this template.
fn serve(name: &str, template: &str) -> Server {
    let path: PathBuf = scratch(name).join("template.jinja");
    fs::write(&path, template).unwrap();
    Server::start(&["--chat-template-file", path.to_str().unwrap()])
}

fn chat(more: Value) -> Value {
    let mut request = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200, "temperature": 1});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

fn function(name: &str, parameters: Value) -> Value {
    json!({"type": "function", "function": {"name": name, "description": "the time", "parameters": parameters}})
}

/// Returns the only element of an answer's `choices`.
fn choice(server: &Server, request: &Value) -> Value {
    let (status, answer) = server.post("/v1/chat/completions", request);
    assert_eq!(status, 200, "{request}: {answer}");
    answer["choices"][0].clone()
}

/// Checks every field of every interface. Fields that have an effect are refused if their type is
/// wrong. All other fields are ignored or refused by name.
#[test]
fn every_field_is_honoured_ignored_or_refused() {
    let (text, vectors) = (Server::start(&["--chat-template", "chatml"]), Server::start(&["--embeddings"]));
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for interface in Interface::ALL {
        let base = match interface {
            Interface::Chat => json!({"messages": messages, "max_tokens": 2}),
            Interface::Messages => json!({"messages": messages, "max_tokens": 2}),
            Interface::Responses => json!({"input": "Hi", "max_output_tokens": 2}),
            Interface::Completions | Interface::Native => json!({"prompt": "Hi", "max_tokens": 2}),
            Interface::Embeddings => json!({"input": "Hi"}),
        };
        let server = if interface == Interface::Embeddings { &vectors } else { &text };
        let post = |name: &str, value: &str| {
            let mut body = base.clone();
            body[name] = serde_json::from_str(value).unwrap();
            server.post(interface.path(), &body)
        };
        for Field { name, treatment, example, wrong, .. } in fields_of(interface) {
            let named = |(status, answer): (u16, Value)| {
                let param = answer["error"]["param"].as_str().unwrap_or(name);
                let message = answer["error"]["message"].as_str().unwrap_or_default();
                // The error for a refused field may have its own text; the field's name is then
                // only in the error's parameter.
                let is_named = message.contains(name) || matches!(treatment, Treatment::Refused { .. });
                status == 400 && param == name && is_named
            };
            let context = |value: &str| format!("{}: {name}: {value}", interface.path());
            let is_required = base.get(name).is_some();
            if !is_required {
                assert_eq!(post(name, "null").0, 200, "{}", context("null"));
            }
            match treatment {
                Treatment::Refused { .. } => {
                    let answer = post(name, example);
                    assert!(named(answer.clone()), "{}: {answer:?}", context(example));
                }
                Treatment::Honoured | Treatment::Ignored => {
                    let answer = post(name, example);
                    assert_eq!(answer.0, 200, "{}: {answer:?}", context(example));
                    if !wrong.is_empty() {
                        let answer = post(name, wrong);
                        assert!(named(answer.clone()), "{}: {answer:?}", context(wrong));
                    }
                }
            }
        }
    }
    // If a key occurs twice, the later value counts. Unknown fields are ignored.
    let body = r#"{"prompt": "Hi", "n_predict": 5, "n_predict": 2, "nobody_knows": {"a": [1]}, "temperature": 0}"#;
    let (status, answer) = text.ask("POST", "/completion", "", body);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((status, answer["tokens_predicted"].as_u64()), (200, Some(2)), "{answer}");
}

/// Checks that values at the limits, in the formats that clients use, are accepted or refused by
/// name.
#[test]
fn values_at_the_edges_are_taken_or_refused_by_name() {
    let server = Server::start(&["--chat-template", "chatml"]);
    for (field, value) in [
        ("max_tokens", json!(2.0)),
        ("temperature", json!(2.0)),
        ("temperature", json!(-1)),
        ("stop", json!("")),
        ("stop", json!([])),
        ("tools", json!([])),
        ("tool_choice", json!("auto")),
        ("tool_choice", json!("none")),
        ("response_format", json!({"type": "text"})),
        ("logit_bias", json!({})),
        ("stream_options", Value::Null),
        ("messages", json!([{"role": "user", "content": "\u{1f600}\u{0}\u{fffd}"}])),
        ("messages", json!([{"role": "user", "content": ""}])),
        (
            "messages",
            json!([{"role": "user", "content": null}, {"role": "assistant", "content": "", "tool_calls": []}, {"role": "user", "content": "x"}]),
        ),
    ] {
        let mut request = chat(json!({"max_tokens": 1}));
        request[field] = value;
        choice(&server, &request);
    }
    let two = choice(&server, &chat(json!({"max_completion_tokens": 2, "max_tokens": 9, "ignore_eos": true})));
    assert_eq!(two["finish_reason"], "length");
    for (field, value) in [
        ("n", json!(0)),
        ("max_tokens", json!("16")),
        ("max_tokens", json!(1.5)),
        ("temperature", json!("hot")),
        ("seed", json!("7")),
        ("seed", json!(0.5)),
        ("stop", json!(1)),
        ("logit_bias", json!({"x": 1})),
        ("tool_choice", json!("required")),
        ("stream_options", json!({"include_usage": true})),
        ("tools", json!([function("f", json!({})), function("f", json!({}))])),
        ("tools", json!([function("a b", json!({}))])),
        ("response_format", json!({"type": "json_schema", "json_schema": {"name": "x"}})),
    ] {
        let mut request = chat(json!({"max_tokens": 1}));
        request[field] = value.clone();
        let (status, answer) = server.post("/v1/chat/completions", &request);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(field)), "{field}: {value}: {answer}");
    }
    // A single half of a surrogate pair is not valid text.
    let lone = r#"{"messages": [{"role": "user", "content": "\ud800"}], "max_tokens": 1}"#;
    assert_eq!(server.ask("POST", "/v1/chat/completions", "", lone).0, 400);
}

/// Checks that required calls have an object as arguments, whatever the tool's schema allows.
#[test]
fn required_call_arguments_are_objects() {
    let server = Server::start(&["--chat-template", "chatml"]);
    let properties = json!({"tz": {"type": "string", "maxLength": 3}});
    let mut whole = 0;
    for (parameters, is_empty) in [
        (json!({}), true),
        (Value::Null, true),
        (json!({"type": "object", "properties": {}}), true),
        (json!({"properties": properties, "required": ["tz"], "additionalProperties": false}), false),
    ] {
        for seed in 0..4 {
            let request = chat(json!({
                "tools": [function("get_time", parameters.clone())], "tool_choice": "required", "seed": seed,
                "parallel_tool_calls": false,
            }));
            let choice = choice(&server, &request);
            if choice["finish_reason"] == "length" {
                continue;
            }
            whole += 1;
            assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
            let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
            let arguments: Value = serde_json::from_str(arguments).unwrap();
            let text = |value: &Value| value["tz"].as_str().is_some_and(|text| text.chars().count() <= 3);
            let expected = if is_empty { arguments == json!({}) } else { text(&arguments) };
            assert!(expected, "{parameters}: {choice}");
        }
    }
    assert!(whole >= 12, "{whole}");
}

/// Checks that text that looks like a call is a call only if the request has tools. A grammar
/// determines the text instead of the model.
#[test]
fn no_text_becomes_a_call_without_tools() {
    let server = serve("requests_none", QWEN);
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"id\": 1}}\n</tool_call>";
    let grammar = format!("root ::= {}", Value::from(call));
    let tools = json!([function("f", json!({"type": "object", "properties": {"id": {"type": "integer"}}}))]);
    let request = |more: Value| {
        let mut request = chat(json!({"grammar": grammar, "temperature": 0}));
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    for more in [json!({}), json!({"tools": []}), json!({"tools": tools, "tool_choice": "none"})] {
        let choice = choice(&server, &request(more.clone()));
        assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(call), &json!("stop")), "{more}");
        assert!(choice["message"].get("tool_calls").is_none(), "{choice}");
    }
    let called = choice(&server, &request(json!({"tools": tools})));
    let function = &called["message"]["tool_calls"][0]["function"];
    assert_eq!((&function["name"], &function["arguments"]), (&json!("f"), &json!("{\"id\": 1}")), "{called}");
    assert_eq!((&called["message"]["content"], &called["finish_reason"]), (&Value::Null, &json!("tool_calls")));
    // A truncated call becomes a partial call, or no call.
    let mut parts = 0;
    for limit in 1..40 {
        let cut = choice(&server, &request(json!({"tools": tools, "max_tokens": limit})));
        if cut["finish_reason"] != "length" {
            break;
        }
        assert_eq!(cut["message"]["content"].as_str().unwrap_or_default(), "", "{limit}: {cut}");
        let arguments = cut["message"]["tool_calls"][0]["function"]["arguments"].as_str();
        assert!(arguments.is_none_or(|arguments| "{\"id\": 1}".starts_with(arguments)), "{limit}: {cut}");
        parts += usize::from(arguments.is_some());
    }
    assert!(parts > 0);
}

/// Checks that an answer is either a tool call or follows the output format, depending on how the
/// model begins.
#[test]
fn answer_with_tools_is_a_call_or_the_format() {
    let tools = json!([function(
        "f",
        json!({"type": "object", "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["id"], "additionalProperties": false})
    )]);
    let schema = json!({"type": "integer", "minimum": 10, "maximum": 99});
    for server in [serve("requests_form", QWEN), Server::start(&["--chat-template", "chatml"])] {
        let ask = |bias: Value, seed: u64| {
            let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
            let request = chat(json!({"tools": tools, "response_format": format, "seed": seed, "logit_bias": bias}));
            let choice = choice(&server, &request);
            let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
            match (calls.first(), choice["finish_reason"].as_str()) {
                (_, Some("length")) => None,
                (Some(call), _) => {
                    let arguments: Value =
                        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
                    assert!(arguments["id"].as_u64().unwrap() < 10, "{choice}");
                    Some(true)
                }
                (None, _) => {
                    let number: u64 = choice["message"]["content"].as_str().unwrap().trim().parse().unwrap();
                    assert!((10..100).contains(&number), "{choice}");
                    Some(false)
                }
            }
        };
        for seed in 0..3 {
            ask(json!({}), seed);
        }
        // If no digits are allowed, only a call is possible. If no token that begins a call is
        // allowed, only a number is possible.
        let token = |text: String| {
            let (_, answer) = server.post("/tokenize", &json!({"content": text}));
            let tokens = answer["tokens"].as_array().unwrap().clone();
            (tokens.len() == 1).then(|| (tokens[0].to_string(), json!(-100)))
        };
        let digits: Value = (0..100).filter_map(|i| token(i.to_string())).collect::<serde_json::Map<_, _>>().into();
        let bracket: Value = ["<", "{", "<tool_call>", "{\""]
            .into_iter()
            .filter_map(|text| token(text.to_owned()))
            .collect::<serde_json::Map<_, _>>()
            .into();
        assert_ne!(ask(bracket, 7), Some(true));
        assert!(ask(digits, 7).is_none_or(|called| called));
    }
}

/// Checks a template that ignores tools: the prompt describes the tools as text, and calls in the
/// described format are parsed.
#[test]
fn tools_omitted_by_the_template_are_described() {
    let tools = json!([function("look_up", json!({"type": "object", "properties": {"id": {"type": "integer"}}}))]);
    let call = "{\"tool_call\":\n{\"name\": \"look_up\", \"arguments\": {\"id\": 1}}\n\n}";
    let history = json!([
        {"role": "user", "content": "Look up 7."},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": "{\"id\": 7}"}},
        ]},
        {"role": "tool", "tool_call_id": "c", "name": "look_up", "content": "Seven."},
    ]);
    for (server, says) in [
        (
            Server::start(&["--chat-template", "chatml"]),
            "{\"tool_call\":\n{\"name\": \"look_up\", \"arguments\": {\"id\": 7}}",
        ),
        (
            serve("requests_told", "{# <tool_call> #}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"),
            "<tool_call>\n{\"name\": \"look_up\", \"arguments\": {\"id\": 7}}",
        ),
    ] {
        let request = json!({"messages": history, "tools": tools});
        let (status, answer) = server.post("/apply-template", &request);
        let prompt = answer["prompt"].as_str().unwrap_or_default();
        assert_eq!(status, 200, "{answer}");
        for part in ["You may call tools.", "\"name\":\"look_up\"", says, "Result of look_up:\nSeven."] {
            assert!(prompt.contains(part), "{part}: {prompt}");
        }
        // If no tool may be called, the prompt describes none.
        let none = json!({"messages": [history[0]], "tools": tools, "tool_choice": "none"});
        let (_, answer) = server.post("/apply-template", &none);
        assert!(!answer["prompt"].as_str().unwrap().contains("look_up"), "{answer}");
    }
    let server = Server::start(&["--chat-template", "chatml"]);
    let request = chat(json!({"tools": tools, "grammar": format!("root ::= {}", Value::from(call))}));
    let called = choice(&server, &request);
    assert_eq!(called["message"]["tool_calls"][0]["function"]["arguments"], "{\"id\": 1}", "{called}");
}

/// Checks that earlier calls of the conversation enter the prompt in the form that the template
/// needs.
#[test]
fn call_arguments_enter_the_prompt_as_the_template_expects() {
    let history = |arguments: Value| {
        json!({"messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        ]})
    };
    let server = serve("requests_walks", WALKS);
    for arguments in [json!(""), json!(" "), json!("{}"), json!("null"), Value::Null, json!({})] {
        let (status, answer) = server.post("/apply-template", &history(arguments.clone()));
        assert_eq!(status, 200, "{arguments}: {answer}");
        assert!(answer["prompt"].as_str().unwrap().contains("<function=f></function>"), "{arguments}: {answer}");
    }
    // A truncated call keeps its complete arguments.
    let (status, answer) = server.post("/apply-template", &history(json!("{\"a\": 1, \"b\": \"x")));
    assert_eq!(status, 200, "{answer}");
    assert!(answer["prompt"].as_str().unwrap().contains("<parameter=a>1</parameter></function>"), "{answer}");
    let server = serve("requests_prints", PRINTS);
    let text = r#"{"id": 2512292042121000001, "dry_run": true, "note": null, "name": "O'Brien"}"#;
    let (_, answer) = server.post("/apply-template", &history(json!(text)));
    assert!(answer["prompt"].as_str().unwrap().contains(&format!("<call>f {text}</call>")), "{answer}");
}

/// Checks that every 64-bit integer is a different seed, also in a batch.
#[test]
fn seeds_are_of_64_bits() {
    let folder = scratch("requests_seeds");
    let seeds = [
        json!(-5),
        json!(-6),
        json!(9_007_199_254_740_992_u64),
        json!(9_007_199_254_740_993_u64),
        json!(i64::MAX),
        json!(i64::MAX - 1),
        json!(i64::MIN),
        json!(i64::MIN + 1),
        json!(u64::MAX),
        json!(0),
    ];
    let line = |seed: &Value| {
        chat(json!({"max_tokens": 24, "temperature": 2, "top_k": 0, "min_p": 0, "top_p": 1, "seed": seed})).to_string()
    };
    let lines: Vec<String> = seeds.iter().chain(&seeds).map(line).collect();
    fs::write(folder.join("in.jsonl"), lines.join("\n")).unwrap();
    let mut batch = ixc(["run", "demo", "-t", "2", "--chat-template", "chatml", "--batch"]);
    batch.arg(folder.join("in.jsonl")).arg("-o").arg(folder.join("out.jsonl"));
    let output = batch.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let mut texts = vec![String::new(); lines.len()];
    for answer in fs::read_to_string(folder.join("out.jsonl")).unwrap().lines() {
        let answer: Value = serde_json::from_str(answer).unwrap();
        assert_eq!(answer["response"]["status_code"], 200, "{answer}");
        let line = answer["line"].as_u64().unwrap() as usize;
        texts[line - 1] = answer["response"]["body"]["choices"][0]["message"]["content"].to_string();
    }
    let (first, second) = texts.split_at(seeds.len());
    assert_eq!(first, second);
    for (i, text) in first.iter().enumerate() {
        assert!(!first[..i].contains(text), "{} {text}", seeds[i]);
    }
}

/// Checks that answers end at stop tokens and stop texts, but not before the minimum number of
/// tokens.
#[test]
fn answers_end_at_stops_after_the_minimum_length() {
    let server = Server::start(&[]);
    let ask = |more: Value| {
        let mut request =
            json!({"prompt": "The borrow checker", "n_predict": 12, "temperature": 0, "return_tokens": true});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, answer) = server.post("/completion", &request);
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let whole = ask(json!({}));
    let tokens = whole["tokens"].as_array().unwrap();
    let stop = &tokens[4];
    let first = tokens.iter().position(|token| token == stop).unwrap();
    let stopped = ask(json!({"stop_token_ids": [stop]}));
    assert_eq!(
        (stopped["stop_type"].as_str(), stopped["tokens_predicted"].as_u64()),
        (Some("eos"), Some(first as u64 + 1)),
        "{stopped}"
    );
    assert!(whole["content"].as_str().unwrap().starts_with(stopped["content"].as_str().unwrap()), "{stopped}");
    let late = ask(json!({"stop_token_ids": [stop], "min_tokens": 8}));
    assert!(late["tokens_predicted"].as_u64().unwrap() > 8, "{late}");
    let word = whole["content"].as_str().unwrap().split_whitespace().nth(2).unwrap();
    let told = ask(json!({"stop": [word], "include_stop_str_in_output": true}));
    assert!(told["content"].as_str().unwrap().ends_with(word), "{told}");
}

/// Checks vLLM's fields for guided answers, in chats and completions.
#[test]
fn guided_answers_follow_their_constraint() {
    let server = Server::start(&["--chat-template", "chatml"]);
    let number = json!({"type": "integer", "minimum": 10, "maximum": 99});
    let is_number = |text: &str| text.trim().parse::<u64>().is_ok_and(|number| (10..100).contains(&number));
    let is_word = |text: &str| ["yes", "no (1|2)"].contains(&text);
    let is_code =
        |text: &str| text.len() == 4 && text.starts_with("a/") && text[2..].bytes().all(|c| c.is_ascii_digit());
    type Check<'c> = &'c dyn Fn(&str) -> bool;
    for (form, check) in [
        (json!({"guided_json": number}), &is_number as Check<'_>),
        (json!({"guided_choice": ["yes", "no (1|2)"]}), &is_word),
        (json!({"guided_regex": "a/[0-9]{2}"}), &is_code),
        (json!({"guided_grammar": "root ::= \"a/\" [0-9]{2}"}), &is_code),
        (json!({"structured_outputs": {"json": number}}), &is_number),
        (json!({"structured_outputs": {"choice": ["yes", "no (1|2)"]}}), &is_word),
        (json!({"structured_outputs": {"regex": "a/[0-9]{2}"}}), &is_code),
    ] {
        let said = choice(&server, &chat(form.clone()));
        assert!(check(said["message"]["content"].as_str().unwrap()), "{form}: {said}");
        let mut request = form.clone();
        (request["prompt"], request["max_tokens"]) = ("Hi".into(), 100.into());
        let (status, answer) = server.post("/v1/completions", &request);
        assert!(status == 200 && check(answer["choices"][0]["text"].as_str().unwrap()), "{form}: {answer}");
    }
}
