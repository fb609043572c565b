//! Answers of `ixc serve` that continue the assistant's last message, and required tool calls.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::server::Server;

/// Checks that an answer continues the last message if that message is the assistant's. In every
/// interface, the answer is a completion of the templated prompt, and does not repeat the earlier
/// text. A requested format applies to the earlier text and the answer together.
#[test]
fn answer_continues_the_last_assistant_message() {
    let server = Server::start(&["--chat-template", "chatml"]);
    let user = json!({"role": "user", "content": "Hi"});
    let with = |said: &str, more: Value| {
        let mut body =
            json!({"messages": [user, {"role": "assistant", "content": said}], "max_tokens": 16, "temperature": 0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let prompt = |body: &Value| server.post("/apply-template", body).1["prompt"].as_str().unwrap().to_owned();
    let (said, turn) = ("Once upon ", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(prompt(&with(said, json!({}))), format!("{turn}{said}"));
    assert_eq!(
        prompt(&with(said, json!({"continue_final_message": true, "add_generation_prompt": false}))),
        format!("{turn}{said}")
    );
    assert_eq!(
        prompt(&with(said, json!({"continue_final_message": false, "add_generation_prompt": false}))),
        format!("{turn}{said}<|im_end|>\n")
    );
    assert_eq!(
        prompt(&with(said, json!({"add_generation_prompt": true}))),
        format!("{turn}{said}<|im_end|>\n<|im_start|>assistant\n")
    );
    assert_eq!(
        prompt(&json!({"messages": [user], "add_generation_prompt": false})),
        "<|im_start|>user\nHi<|im_end|>\n"
    );

    let completion = json!({"prompt": format!("{turn}{said}"), "n_predict": 16, "temperature": 0});
    let expected = server.post("/completion", &completion).1;
    let (status, chat) = server.post("/v1/chat/completions", &with(said, json!({})));
    assert_eq!((status, &chat["choices"][0]["message"]["content"]), (200, &expected["content"]), "{chat}");
    assert_eq!(chat["usage"]["prompt_tokens"], expected["tokens_evaluated"]);
    let (status, message) = server.post("/v1/messages", &with(said, json!({})));
    assert_eq!((status, &message["content"][0]["text"]), (200, &expected["content"]), "{message}");
    let input =
        json!({"input": [user, {"role": "assistant", "content": said}], "max_output_tokens": 16, "temperature": 0});
    let (status, response) = server.post("/v1/responses", &input);
    assert_eq!((status, &response["output"][0]["content"][0]["text"]), (200, &expected["content"]), "{response}");
    let (_, count) = server.post("/v1/messages/count_tokens", &with(said, json!({})));
    assert_eq!(count["input_tokens"], expected["tokens_evaluated"]);

    let schema = json!({
        "type": "object", "required": ["age"], "additionalProperties": false,
        "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    });
    let format =
        json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}, "max_tokens": 60});
    // In the last of these texts, the object is already complete.
    for said in ["{\"age\":", " {", "{\"age\": 4", "{\"age\": 42}"] {
        let (status, answer) = server.post("/v1/chat/completions", &with(said, format.clone()));
        assert_eq!((status, &answer["choices"][0]["finish_reason"]), (200, &json!("stop")), "{answer}");
        let whole = said.to_owned() + answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
        let whole: Value = serde_json::from_str(&whole).unwrap_or_else(|error| panic!("{error}: {whole}"));
        assert!(whole["age"].as_u64().unwrap() < 100, "{whole}");
    }
    let (_, answer) = server.post("/v1/chat/completions", &with("{\"age\": 4", json!({"grammar": "root ::= \"!\""})));
    assert_eq!(answer["choices"][0]["message"]["content"], "!", "{answer}");

    let call = json!([{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let thinks = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}});
    for (path, body, field, says) in [
        ("/v1/chat/completions", with("{\"ages\"", format), "", "does not match the grammar or schema"),
        (
            "/v1/chat/completions",
            with(said, json!({"continue_final_message": true, "add_generation_prompt": true})),
            "continue_final_message",
            "the second begins a new one",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [user], "continue_final_message": true}),
            "continue_final_message",
            "whose last message is from the assistant",
        ),
        (
            "/apply-template",
            json!({"messages": [user], "continue_final_message": "x"}),
            "continue_final_message",
            "reasoning_content",
        ),
        (
            "/apply-template",
            json!({"messages": [user, {"role": "assistant", "tool_calls": call}]}),
            "messages",
            "must follow",
        ),
        (
            "/v1/chat/completions",
            with("", json!({"continue_final_message": "reasoning_content"})),
            "",
            "does not know this chat template's marks of reasoning",
        ),
    ] {
        let (status, answer) = server.post(path, &body);
        let error = &answer["error"];
        assert_eq!((status, error["param"].as_str().unwrap_or_default()), (400, field), "{body}: {answer}");
        assert!(error["message"].as_str().unwrap().contains(says), "{answer}");
    }
    let mut thought = with(said, thinks.clone());
    thought["messages"][1]["content"] =
        json!([{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": said}]);
    let (status, answer) = server.post("/v1/messages", &thought);
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = server.post("/v1/messages", &with(said, thinks));
    assert_eq!((status, &answer["error"]["type"]), (400, &json!("invalid_request_error")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("thinking block"), "{answer}");
}

/// Checks that continued reasoning stays reasoning, and that text before a call stays before the
/// call.
#[test]
fn reasoning_and_calls_continue_the_earlier_text() {
    let template = Path::new(env!("CARGO_TARGET_TMPDIR")).join("serve_prefill.jinja");
    let said = "{% for m in messages %}{{ m.role }}: {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\n{% endfor %}";
    std::fs::write(&template, format!("{{# <tool_call> #}}{said}")).unwrap();
    let server = Server::start(&["--chat-template-file", template.to_str().unwrap()]);
    let ask = |last: Value, more: Value| {
        let mut body =
            json!({"messages": [{"role": "user", "content": "Hi"}, last], "max_tokens": 200, "temperature": 0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, answer) = server.post("/v1/chat/completions", &body);
        assert_eq!(status, 200, "{answer}");
        let choice = answer["choices"][0].clone();
        (choice["message"].clone(), choice["finish_reason"].as_str().unwrap().to_owned())
    };
    let (message, _) = ask(json!({"role": "assistant", "reasoning_content": "Well,"}), json!({"max_tokens": 8}));
    assert!(message["reasoning_content"].as_str().is_some_and(|text| !text.is_empty()), "{message}");
    // Some clients send reasoning within the content, between `<think>` tags. The answer is the
    // same as for separate reasoning.
    let (other, _) = ask(json!({"role": "assistant", "content": "<think>Well,"}), json!({"max_tokens": 8}));
    assert_eq!(message["reasoning_content"], other["reasoning_content"]);

    let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let tools = json!({
        "tools": [{"type": "function", "function": {"name": "look", "parameters": none}}], "tool_choice": "required", "parallel_tool_calls": false,
    });
    let (message, finish) = ask(json!({"role": "assistant", "content": "Let me look."}), tools);
    assert_eq!((&*finish, &message["content"]), ("tool_calls", &Value::Null), "{message}");
    assert_eq!(message["tool_calls"][0]["function"], json!({"name": "look", "arguments": "{}"}));
}

/// Checks required calls with a template that has no format for calls. They use a format of the
/// server, which the prompt describes.
#[test]
fn required_calls_work_without_template_support() {
    let server = Server::start(&["--chat-template", "chatml"]);
    let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let function = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": none}});
    let body = |choice: Value| {
        json!({
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], "max_tokens": 400, "temperature": 0,
            "tools": [function("look"), function("listen")], "tool_choice": choice, "parallel_tool_calls": false,
        })
    };
    let listen = json!({"type": "function", "function": {"name": "listen"}});
    for (choice, expected) in [(json!("required"), None), (listen.clone(), Some("listen"))] {
        let (status, answer) = server.post("/v1/chat/completions", &body(choice));
        let choice = &answer["choices"][0];
        assert_eq!((status, &choice["finish_reason"]), (200, &json!("tool_calls")), "{answer}");
        let (message, calls) = (&choice["message"], choice["message"]["tool_calls"].as_array().unwrap());
        assert_eq!(
            (calls.len(), &message["content"], &calls[0]["function"]["arguments"]),
            (1, &Value::Null, &json!("{}"))
        );
        assert!(expected.is_none_or(|name| calls[0]["function"]["name"] == name), "{answer}");
    }
    let prompt = |choice: Value| server.post("/apply-template", &body(choice)).1["prompt"].as_str().unwrap().to_owned();
    let told = "system\nBe brief.\n\nCall the tools that the answer needs";
    assert!(prompt(json!("required")).contains(told) && prompt(json!("required")).contains(r#""name":"listen""#));
    assert!(!prompt(json!("auto")).contains("Call the tools"));
    let mut theirs = json!({
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "temperature": 0, "tool_choice": {"type": "any"},
        "tools": [{"name": "look", "input_schema": none}],
    });
    let counted = server.post("/v1/messages/count_tokens", &theirs).1["input_tokens"].as_u64().unwrap();
    theirs["stream"] = true.into();
    let (status, text) = server.ask("POST", "/v1/messages", "", &theirs.to_string());
    assert!(status == 200 && text.contains("\"tool_use\"") && !text.contains("text_delta"), "{text}");
    assert!(text.contains(&format!("\"input_tokens\":{counted}")), "{counted}: {text}");
    // If the last calls of a conversation have no results, the conversation's tokens can be
    // counted, but it cannot be answered.
    let call = json!({"type": "tool_use", "id": "a", "name": "look", "input": {}});
    theirs["messages"].as_array_mut().unwrap().push(json!({"role": "assistant", "content": [call]}));
    theirs["stream"] = false.into();
    let (status, longer) = server.post("/v1/messages/count_tokens", &theirs);
    assert!(status == 200 && longer["input_tokens"].as_u64().is_some_and(|longer| longer > counted), "{longer}");
    let (status, refused) = server.post("/v1/messages", &theirs);
    assert!(status == 400 && refused.to_string().contains("the results must follow"), "{refused}");
}
