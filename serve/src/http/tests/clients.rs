//! Requests in the form in which known clients send them. Each is answered, and its prompt has
//! every text of the request. The bodies were written for these tests.

use ixc_generate::generator::End;
use serde_json::{Value, json};

use super::scripted::{Scripted, events};

/// A template that writes every part of a conversation: roles, content, reasoning, tools, calls.
const TEMPLATE: &str = "{# <tool_call> <think> #}{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}\
    {% for m in messages %}<{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}>{{ m.reasoning_content or '' }}{{ m.content }}\
    {% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}{% endfor %}\
    {% if enable_thinking is defined %}(thinking {{ enable_thinking }}){% endif %}{% if reasoning_effort %}({{ reasoning_effort }}){% endif %}";

/// Client, path, request body, and texts that the prompt must contain.
type Client = (&'static str, &'static str, &'static str, &'static [&'static str]);

#[rustfmt::skip]
const CLIENTS: &[Client] = &[
    ("Codex", "/v1/responses", include_str!("clients/codex.json"), &[
        "<system>You are a coding agent.<system>Sandbox: workspace-write.<user>Rename the function.",
        "[shell {\"command\": [\"rg\", \"old_name\"]}]<tool>src/lib.rs:3",
        "[apply_patch {\"input\": \"*** Begin Patch\\n\"}]<tool>Done",
        "\"name\": \"apply_patch\"", "begin_patch", "\"name\": \"update_plan\"", "\"name\": \"read_file\"", "(medium)",
    ]),
    ("Claude Code", "/v1/messages", include_str!("clients/claude-code.json"), &[
        "<system>You are a CLI agent.Tools: Bash, Read.<user><system-reminder>Today.</system-reminder>List the files.\n\nAgents: Explore.",
        "[Bash {\"command\": \"ls\", \"description\": \"List\"}]<tool Bash>a.rs\nb.rs", "[Read {}]<tool Read><user>Go on.",
        "\"$schema\": \"http://json-schema.org/draft-07/schema#\"", "(thinking True)",
    ]),
    ("Open WebUI", "/v1/chat/completions", include_str!("clients/open-webui.json"), &[
        "<system>User Context:\n- today<user>Weather?<assistant>[get_current_weather {\"city\": \"Paris\"}]", "\"name\": \"get_current_weather\"",
    ]),
    ("LangChain", "/v1/chat/completions", include_str!("clients/langchain.json"), &[
        "<system>Answer.<user>How many?<assistant>[search {\"query\": \"a\", \"limit\": null}][search {}]<tool>3<tool>4",
        "\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"null\"}]", "\"strict\": true",
    ]),
    ("Vercel AI SDK", "/v1/chat/completions", include_str!("clients/vercel.json"), &[
        "<system>Be brief.<user>Hi there<assistant>Hello.<user>Book it.", "\"$ref\": \"#/$defs/Seat\"", "\"format\": \"date-time\"",
    ]),
    ("OpenAI's own", "/v1/chat/completions", include_str!("clients/openai.json"), &[
        "<system>Be brief.<user ann>One.Two.<assistant>I cannot.<user>Why?<assistant>Since.Calling.[f {}]<tool>ok", "(low)",
    ]),
];

#[test]
fn recorded_client_requests_are_answered() {
    let model = Scripted::new(TEMPLATE);
    for (name, path, body, says) in CLIENTS {
        let mut body: Value = serde_json::from_str(body).unwrap();
        for streamed in [false, true] {
            body["stream"] = streamed.into();
            if !streamed {
                body.as_object_mut().unwrap().remove("stream_options");
            }
            let (status, answer) = model.post(path, &body, "Yes.", End::Token(0));
            assert_eq!(status, 200, "{name}: {answer}");
            let prompt = model.prompt();
            for said in *says {
                assert!(prompt.contains(said), "{name}: {said} is not in {prompt}");
            }
            let text = answer.as_str().map_or_else(|| answer.to_string(), str::to_owned);
            assert!(text.contains("Yes") || text.contains("\"Y\""), "{name}: {text}");
        }
    }
}

/// Codex gets its patches as text, in an item of type `custom_tool_call`.
#[test]
fn custom_tools_are_called_with_text() {
    let model = Scripted::new(TEMPLATE);
    let mut body: Value = serde_json::from_str(include_str!("clients/codex.json")).unwrap();
    let call = r#"<tool_call>{"name": "apply_patch", "arguments": {"input": "*** Begin \"Patch\"\n"}}</tool_call>"#;
    body["stream"] = true.into();
    let (_, stream) = model.post("/v1/responses", &body, call, End::Token(0));
    let events = events(&stream);
    let of = |name: &str| events.iter().find(|event| event["type"] == name).cloned().unwrap_or_default();
    let text = "*** Begin \"Patch\"\n";
    assert_eq!(of("response.custom_tool_call_input.delta")["delta"], text);
    assert_eq!(of("response.custom_tool_call_input.done")["input"], text);
    let response = &of("response.completed")["response"];
    let item = &response["output"][0];
    assert_eq!((&item["type"], &item["name"]), (&json!("custom_tool_call"), &json!("apply_patch")));
    assert_eq!((&item["input"], &item["status"]), (&json!(text), &json!("completed")));
    // The prompt has no web search, and `tools` of the answer omits it.
    let kinds: Vec<_> = response["tools"].as_array().unwrap().iter().map(|tool| tool["type"].clone()).collect();
    assert_eq!(kinds, ["function", "function", "custom", "namespace"]);
}

/// Fields of the request reach the engine.
#[test]
fn request_fields_reach_the_engine() {
    let model = Scripted::new(TEMPLATE);
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for path in ["/v1/chat/completions", "/v1/messages", "/v1/responses"] {
        let body = json!({
            "messages": messages, "input": messages, "max_tokens": 16.0, "min_tokens": 3, "stop_token_ids": [5, 6],
            "ignore_eos": true, "seed": -9_223_372_036_854_775_808_i64, "temperature": 2.0, "logit_bias": {"7": -100},
            "metadata": {"a": "b"}, "user": "u", "top_p": null, "stop": null, "tools": null,
        });
        let (status, answer) = model.post(path, &body, "Yes.", End::Token(0));
        assert_eq!(status, 200, "{path}: {answer}");
        let request = model.request();
        let ends = (request.limit, request.stop_tokens, request.ignore_end);
        assert_eq!(ends, (Some(16), vec![5, 6], true), "{path}");
        let sampling = request.sampling;
        assert_eq!((sampling.seed, sampling.min_tokens, sampling.temperature), (1 << 63, 3, 2.0), "{path}");
        assert_eq!(sampling.bias, [(7, -100.0)], "{path}");
    }
}

/// With an output format and tools, the answer is a call, or content in that format.
#[test]
fn output_formats_combine_with_tools() {
    const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let model = Scripted::new(TEMPLATE);
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let function =
        json!({"name": "f", "parameters": {}, "input_schema": {}, "type": "function", "function": {"name": "f"}});
    for (path, form) in [
        (
            "/v1/chat/completions",
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}),
        ),
        ("/v1/responses", json!({"text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}})),
        ("/v1/messages", json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}})),
    ] {
        let mut tool = function.clone();
        if path == "/v1/messages" {
            tool["type"] = "custom".into();
        }
        for (must, choice) in [
            (false, Value::Null),
            (true, if path == "/v1/messages" { json!({"type": "any"}) } else { json!("required") }),
        ] {
            let mut body = json!({"messages": messages, "input": messages, "max_tokens": 9, "tools": [tool], "tool_choice": choice});
            body.as_object_mut().unwrap().extend(form.as_object().unwrap().clone());
            assert_eq!(model.post(path, &body, "", End::Token(0)).0, 200, "{path}");
            assert!(model.allows(CALL) && !model.allows(&CALL.replace("{}", r#"{"a": 1}"#)), "{path}");
            assert!(model.allows(r#"{"a": 1}"#) != must && !model.allows(r#"{"a": "1"}"#), "{path}");
        }
        let mut body = json!({"messages": messages, "input": messages, "max_tokens": 9, "tools": []});
        body.as_object_mut().unwrap().extend(form.as_object().unwrap().clone());
        model.post(path, &body, "", End::Token(0));
        assert!(model.allows(r#"{"a": 1}"#) && !model.allows(r#"{"a": "1"}"#) && !model.allows(CALL), "{path}");
    }
}

/// Calls without arguments have an empty object in the prompt, in every interface.
#[test]
fn calls_without_arguments_have_an_empty_object() {
    let model = Scripted::new(TEMPLATE);
    let user = json!({"role": "user", "content": "Hi"});
    for arguments in [json!(""), json!(" \n"), json!("null"), json!("{}"), json!({}), Value::Null] {
        let function = json!({"name": "f", "arguments": arguments});
        let chat = json!({"messages": [
            user, {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "c", "content": "7"},
        ]});
        let responses = json!({"input": [
            user, {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments},
            {"type": "function_call_output", "call_id": "c", "output": "7"},
        ]});
        let input = if arguments == "null" || arguments == "{}" { json!({}) } else { arguments.clone() };
        let messages = json!({"max_tokens": 9, "messages": [
            user, {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": input}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "7"}]},
        ]});
        for (path, body) in [("/v1/chat/completions", chat), ("/v1/responses", responses), ("/v1/messages", messages)] {
            let (status, answer) = model.post(path, &body, "Yes.", End::Token(0));
            assert_eq!(status, 200, "{path}, {arguments}: {answer}");
            assert!(model.prompt().contains("[f {}]"), "{path}, {arguments}: {}", model.prompt());
        }
    }
}
