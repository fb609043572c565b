//! Answers of `ixc serve`: the interfaces agree with each other and with `ixc run`.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::server::{PROMPTS, Server, completion, events, found_again};
use crate::support::{ixc, stdout};

/// Checks that greedy texts of many simultaneous requests equal the texts of `ixc run`.
#[test]
fn concurrent_texts_equal_single_runs() {
    let server = Server::start(&["--parallel", "3"]);
    let alone = |prompt: &str| {
        let text = stdout(ixc(["run", "demo", "--raw", "-p", prompt, "-n", "12", "--temp", "0", "-t", "2"]));
        text.strip_suffix('\n').unwrap_or(&text).to_string()
    };
    let expected = PROMPTS.map(alone);
    for _ in 0..2 {
        std::thread::scope(|scope| {
            for (prompt, expected) in PROMPTS.iter().zip(&expected) {
                let server = &server;
                scope.spawn(move || {
                    let (status, answer) = server.post("/v1/completions", &completion(prompt, 12));
                    assert_eq!((status, answer["object"].as_str()), (200, Some("text_completion")), "{answer}");
                    assert_eq!(
                        answer["choices"][0]["text"].as_str().unwrap().trim_end(),
                        expected.trim_end(),
                        "{prompt}"
                    );
                    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() > 0, "{answer}");
                });
            }
        });
    }
    assert_eq!(server.metric("requests_ended_total"), 2.0 * PROMPTS.len() as f64);
    // From the second request on, a slot holds the whole prompt.
    let before = [0; 2].map(|_| {
        let before = server.metric("prompt_tokens_cached_total");
        server.post("/v1/completions", &completion(&PROMPTS[2].repeat(8), 1));
        before
    });
    assert!(server.metric("prompt_tokens_cached_total") > before[1]);
}

#[test]
fn streamed_answer_equals_the_whole_one() {
    let server = Server::start(&["--chat-template", "chatml"]);
    let mut request = json!({
        "model": "any", "max_tokens": 20, "temperature": 0,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    });
    let (status, whole) = server.post("/v1/chat/completions", &request);
    assert_eq!((status, whole["object"].as_str()), (200, Some("chat.completion")), "{whole}");
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    let content = choice["message"]["content"].as_str().unwrap();
    assert!(!content.is_empty());
    request["stream"] = true.into();
    request["stream_options"] = json!({"include_usage": true});
    let (status, text) = server.ask("POST", "/v1/chat/completions", "", &request.to_string());
    assert_eq!(status, 200);
    let mut events = events(&text);
    let usage = events.pop().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    // An earlier request has left the same prompt in a slot.
    let prompt = usage["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], found_again(prompt));
    assert_eq!(events.first().unwrap()["choices"][0]["delta"], json!({"role": "assistant", "content": null}));
    let last = events.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], choice["finish_reason"]);
    let parts: String = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(parts, content);
}

/// Checks that a conversation has the same answer by Anthropic's and by OpenAI's interface, whole
/// and streamed.
#[test]
fn messages_are_answered_as_chat_completions_are() {
    let server = Server::start(&["--chat-template", "chatml", "--api-key", "one"]);
    let ask = |path: &str, key: &str, body: &Value| {
        let (status, text) = server.ask("POST", path, key, &body.to_string());
        (status, text)
    };
    let post = |path: &str, body: &Value| {
        let (status, text) = ask(path, "x-api-key: one\r\nanthropic-version: 2023-06-01\r\n", body);
        (status, serde_json::from_str::<Value>(&text).unwrap())
    };
    let common = json!({"max_tokens": 20, "temperature": 0});
    let with = |more: Value| {
        let mut body = common.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    // A budget for thinking is accepted, but not enforced.
    let thinking =
        json!({"messages": [{"role": "user", "content": "x"}], "thinking": {"type": "enabled", "budget_tokens": 16}});
    assert_eq!(post("/v1/messages", &with(thinking)).0, 200);
    let tool = json!({"name": "look", "description": "Looks.", "input_schema": {"type": "object"}});
    let theirs = json!({
        "system": [{"type": "text", "text": "Be brief."}],
        "tools": [tool],
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [
                {"type": "text", "text": "Looking."}, {"type": "tool_use", "id": "t0", "name": "look", "input": {"at": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t0", "content": [{"type": "text", "text": "7"}]},
                {"type": "text", "text": "And?"},
            ]},
        ],
    });
    let ours = json!({
        "tools": [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Looking.", "tool_calls": [
                {"id": "t0", "type": "function", "function": {"name": "look", "arguments": "{\"at\":1}"}},
            ]},
            {"role": "tool", "tool_call_id": "t0", "name": "look", "content": "7"},
            {"role": "user", "content": "And?"},
        ],
    });
    let (status, chat) = post("/v1/chat/completions", &with(ours));
    assert_eq!(status, 200, "{chat}");
    let (status, whole) = post("/v1/messages", &with(theirs.clone()));
    assert_eq!((status, &whole["type"], &whole["role"]), (200, &json!("message"), &json!("assistant")), "{whole}");
    let content = chat["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(whole["content"], json!([{"type": "text", "text": content}]));
    let reason = if chat["choices"][0]["finish_reason"] == "length" { "max_tokens" } else { "end_turn" };
    assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!(reason), &Value::Null));
    let prompt = chat["usage"]["prompt_tokens"].as_u64().unwrap();
    // An earlier request has left the same prompt in a slot.
    let found = found_again(prompt);
    assert_eq!(
        (&whole["usage"]["input_tokens"], &whole["usage"]["cache_read_input_tokens"]),
        (&json!(prompt - found), &json!(found))
    );
    assert_eq!(post("/v1/messages/count_tokens", &theirs), (200, json!({"input_tokens": prompt})));

    let mut request = with(theirs.clone());
    request["stream"] = true.into();
    let (status, text) = ask("/v1/messages", "x-api-key: one\r\n", &request);
    assert_eq!(status, 200);
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|object| serde_json::from_str(object).unwrap()).collect();
    let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(names, kinds);
    assert_eq!((kinds[0], kinds[1]), ("message_start", "content_block_start"));
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let parts: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(parts, content);
    let last = &events[events.len() - 2];
    assert_eq!(
        (&last["delta"]["stop_reason"], &last["usage"]["output_tokens"]),
        (&json!(reason), &whole["usage"]["output_tokens"])
    );

    let word = content.split_whitespace().nth(1).unwrap();
    request = with(theirs.clone());
    request["stop_sequences"] = json!([word]);
    let (_, stopped) = post("/v1/messages", &request);
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!(word)),
        "{stopped}"
    );

    for (path, key, body, expected, kind) in [
        ("/v1/messages", "x-api-key: two\r\n", with(theirs.clone()), 401, "authentication_error"),
        ("/v1/messages", "x-api-key: one\r\n", theirs, 400, "invalid_request_error"),
        (
            "/v1/messages",
            "x-api-key: one\r\n",
            with(json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]})),
            400,
            "invalid_request_error",
        ),
        (
            "/v1/messages",
            "x-api-key: one\r\n",
            with(
                json!({"messages": [{"role": "user", "content": "x"}], "mcp_servers": [{"type": "url", "url": "https://a.b"}]}),
            ),
            400,
            "invalid_request_error",
        ),
        ("/v1/messages/nothing", "x-api-key: one\r\n", json!({}), 404, "not_found_error"),
    ] {
        let (status, text) = ask(path, key, &body);
        let error: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (status, &error["type"], &error["error"]["type"]),
            (expected, &json!("error"), &json!(kind)),
            "{text}"
        );
    }
}

#[test]
fn stop_text_is_excluded_from_the_answer() {
    let server = Server::start(&[]);
    let (_, whole) = server.post("/completion", &json!({"prompt": PROMPTS[0], "n_predict": 20, "temperature": 0}));
    let text = whole["content"].as_str().unwrap();
    assert_eq!((whole["stop_type"].as_str(), whole["tokens_predicted"].as_u64()), (Some("limit"), Some(20)), "{whole}");
    let word = text.split_whitespace().nth(3).unwrap();
    let request = json!({"prompt": PROMPTS[0], "n_predict": 20, "temperature": 0, "stop": [word, "never said"]});
    let (_, stopped) = server.post("/completion", &request);
    assert_eq!(stopped["content"].as_str(), text.split_once(word).map(|(before, _)| before), "{stopped}");
    assert_eq!((&stopped["stop_type"], &stopped["stopping_word"]), (&json!("word"), &json!(word)));
}

/// Checks that answers follow a schema, a grammar, or the format of tool calls, whatever the
/// model's logits are.
#[test]
fn answers_follow_the_requested_format() {
    let template = Path::new(env!("CARGO_TARGET_TMPDIR")).join("serve_template.jinja");
    let said = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:";
    std::fs::write(&template, format!("{{# <tool_call> <think> #}}{said}")).unwrap();
    let server = Server::start(&["--chat-template-file", template.to_str().unwrap()]);
    let schema = json!({
        "type": "object", "required": ["name", "ages"], "additionalProperties": false,
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        },
    });
    let is_of_schema = |value: &Value| {
        let members = value.as_object().unwrap();
        assert_eq!(members.len(), 2, "{value}");
        assert!(members["name"].as_str().unwrap().chars().count() <= 8, "{value}");
        assert!(members["ages"].as_array().unwrap().iter().all(|age| age.as_u64().unwrap() < 100), "{value}");
    };
    let chat = |more: Value| {
        let mut request =
            json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "temperature": 1, "seed": 5});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    let format = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
    for seed in 0..4 {
        let mut request = chat(format.clone());
        request["seed"] = seed.into();
        let (status, answer) = server.post("/v1/chat/completions", &request);
        assert_eq!(status, 200, "{answer}");
        let choice = &answer["choices"][0];
        // The grammar does not force thinking to end.
        if choice["finish_reason"] == "stop" {
            is_of_schema(&serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap());
        }
    }
    for request in [
        json!({"prompt": "Hi", "json_schema": schema, "n_predict": 400}),
        json!({"prompt": "Hi", "json_schema": schema, "n_predict": 400, "temperature": 2, "samplers": ["temperature"]}),
    ] {
        let (status, answer) = server.post("/completion", &request);
        assert_eq!((status, &answer["stop_type"]), (200, &json!("eos")), "{answer}");
        is_of_schema(&serde_json::from_str(answer["content"].as_str().unwrap()).unwrap());
    }
    let (_, answer) = server
        .post("/completion", &json!({"prompt": "Hi", "grammar": "root ::= \"<\" [0-9]{3} \">\"", "n_predict": 9}));
    let text = answer["content"].as_str().unwrap();
    assert!(text.len() == 5 && text.starts_with('<') && text.ends_with('>'), "{answer}");

    let function = |name: &str, parameters: &Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let tools = json!([
        function("look_up", &schema),
        function("other", &json!({"type": "object", "properties": {}, "additionalProperties": false}))
    ]);
    for (choice, expected) in [
        (json!("required"), None),
        (json!({"type": "function", "function": {"name": "look_up"}}), Some("look_up")),
        (json!({"type": "function", "function": {"name": "other"}}), Some("other")),
    ] {
        let mut request = chat(json!({}));
        (request["tools"], request["tool_choice"], request["temperature"]) = (tools.clone(), choice, 0.into());
        let (status, answer) = server.post("/v1/chat/completions", &request);
        assert_eq!(status, 200, "{answer}");
        let choice = &answer["choices"][0];
        if choice["finish_reason"] == "length" {
            continue;
        }
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        let call = &choice["message"]["tool_calls"][0]["function"];
        assert!(expected.is_none_or(|expected| call["name"] == expected), "{answer}");
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        if call["name"] == "look_up" {
            is_of_schema(&arguments);
        } else {
            assert_eq!(arguments, json!({}));
        }
    }
}

#[test]
fn log_probabilities_are_returned() {
    let server = Server::start(&["--chat-template", "chatml"]);
    let mut request = completion(PROMPTS[0], 6);
    request["logprobs"] = 3.into();
    let (status, answer) = server.post("/v1/completions", &request);
    assert_eq!(status, 200, "{answer}");
    let (text, logprobs) = (answer["choices"][0]["text"].as_str().unwrap(), &answer["choices"][0]["logprobs"]);
    let tokens: Vec<&str> =
        logprobs["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!((tokens.len(), &*tokens.concat()), (6, text));
    for (i, top) in logprobs["top_logprobs"].as_array().unwrap().iter().enumerate() {
        let own = logprobs["token_logprobs"][i].as_f64().unwrap();
        // A greedy request draws the likeliest token.
        assert_eq!(top[tokens[i]].as_f64(), Some(own), "{logprobs}");
        assert!(
            own < 0.0 && top.as_object().unwrap().values().all(|other| other.as_f64().unwrap() <= own),
            "{logprobs}"
        );
        assert_eq!(logprobs["text_offset"][i], tokens[..i].concat().chars().count());
    }
    // The probabilities of all tokens add up to 1.
    let all = json!({"prompt": PROMPTS[0], "n_predict": 1, "temperature": 0, "n_probs": 100});
    let (_, answer) = server.post("/completion", &all);
    let first = &answer["completion_probabilities"][0];
    let sum: f64 =
        first["top_logprobs"].as_array().unwrap().iter().map(|one| one["logprob"].as_f64().unwrap().exp()).sum();
    assert!(sum > 0.5 && sum < 1.0 + 1e-5, "{sum}");
    assert_eq!((&first["token"], &first["id"]), (&first["top_logprobs"][0]["token"], &first["top_logprobs"][0]["id"]));
    // With `post_sampling_probs`, the answer has the probabilities after the samplers. Only some
    // tokens remain, and their probabilities add up to 1.
    let left = json!({
        "prompt": PROMPTS[0], "n_predict": 4, "temperature": 1.5, "seed": 3, "top_k": 6, "n_probs": 100, "post_sampling_probs": true,
        "ignore_eos": true,
    });
    let (_, answer) = server.post("/completion", &left);
    let tokens = answer["completion_probabilities"].as_array().unwrap();
    assert_eq!((tokens.len(), &answer["generation_settings"]["post_sampling_probs"]), (4, &true.into()), "{answer}");
    for token in tokens {
        let all = token["top_probs"].as_array().unwrap();
        let sum: f64 = all.iter().map(|one| one["prob"].as_f64().unwrap()).sum();
        assert!((2..=6).contains(&all.len()) && (sum - 1.0).abs() < 1e-5, "{token}");
        assert!(all.iter().any(|one| one["id"] == token["id"] && one["prob"] == token["prob"]), "{token}");
    }
    // The probabilities are the same in a chat, whole and streamed.
    let mut chat = json!({
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": 0, "logprobs": true, "top_logprobs": 2,
    });
    // Each request runs twice, and the second answers are compared. If a prompt is already in a
    // slot, only its last token is computed, and rounding differs.
    let [_, (_, whole)] = [0; 2].map(|_| server.post("/v1/chat/completions", &chat));
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len() as u64, whole["usage"]["completion_tokens"].as_u64().unwrap());
    assert!(content.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2), "{whole}");
    let bytes = |token: &Value| {
        token["bytes"].as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8).collect::<Vec<_>>()
    };
    let text: Vec<u8> = content.iter().flat_map(bytes).collect();
    assert_eq!(String::from_utf8_lossy(&text), whole["choices"][0]["message"]["content"].as_str().unwrap());
    chat["stream"] = true.into();
    let (_, text) = server.ask("POST", "/v1/chat/completions", "", &chat.to_string());
    let parts = events(&text);
    let parts = parts.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array()).flatten();
    assert_eq!(parts.cloned().collect::<Vec<_>>(), *content);
}

/// Checks that several answers to one request have the texts of separate requests with the same
/// seeds.
#[test]
fn several_answers_equal_separate_requests() {
    let server = Server::start(&["--parallel", "3"]);
    let request = |n: u32, seed: u32, stream: bool| json!({"prompt": PROMPTS[2], "max_tokens": 10, "n": n, "seed": seed, "stream": stream});
    let text = |choice: &Value| choice["text"].as_str().unwrap().to_owned();
    let (status, answer) = server.post("/v1/completions", &request(4, 7, false));
    assert_eq!(status, 200, "{answer}");
    let choices = answer["choices"].as_array().unwrap();
    let texts: Vec<String> = choices.iter().map(text).collect();
    assert_eq!(choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    for (i, expected) in texts.iter().enumerate() {
        let (_, alone) = server.post("/v1/completions", &request(1, 7 + i as u32, false));
        assert_eq!(text(&alone["choices"][0]), *expected, "{i}");
        assert_eq!(alone["usage"]["prompt_tokens"], answer["usage"]["prompt_tokens"]);
    }
    assert!(texts.iter().any(|text| *text != texts[0]), "{texts:?}");
    let (_, stream) = server.ask("POST", "/v1/completions", "", &request(4, 7, true).to_string());
    let mut parts = vec![String::new(); 4];
    for event in events(&stream) {
        let choice = &event["choices"][0];
        parts[choice["index"].as_u64().unwrap() as usize].push_str(choice["text"].as_str().unwrap());
    }
    assert_eq!(parts, texts);
}

/// Checks requests with several prompts, as texts, as tokens and mixed, each with several answers.
/// The answers equal those to separate requests.
#[test]
fn several_prompts_equal_separate_requests() {
    let server = Server::start(&["--parallel", "3"]);
    let (_, tokens) = server.post("/tokenize", &json!({"content": PROMPTS[1], "add_special": true}));
    let tokens = tokens["tokens"].clone();
    let mixed: Vec<Value> = tokens.as_array().unwrap().iter().cloned().chain(["and".into()]).collect();
    let all = json!([PROMPTS[0], tokens, mixed, {"prompt_string": PROMPTS[2]}]);
    let request = |prompt: &Value, n: u32, seed: u32, stream: bool| json!({"prompt": prompt, "max_tokens": 6, "n": n, "seed": seed, "stream": stream});
    let alone: Vec<(Value, Value)> = (all.as_array().unwrap().iter())
        .flat_map(|prompt| [7, 8].map(|seed| server.post("/completion", &request(prompt, 1, seed, false)).1))
        .map(|answer| (answer["content"].clone(), answer["tokens_evaluated"].clone()))
        .collect();
    assert!(alone.iter().any(|one| one.0 != alone[0].0));
    // Tests llama-server's interface, whole and streamed.
    let (_, answers) = server.post("/completion", &request(&all, 2, 7, false));
    let answers = answers.as_array().unwrap();
    assert!(answers.iter().enumerate().all(|(i, answer)| answer["index"] == i), "{answers:?}");
    let found: Vec<_> = answers.iter().map(|one| (one["content"].clone(), one["tokens_evaluated"].clone())).collect();
    assert_eq!(found, alone);
    let texts: Vec<&str> = alone.iter().map(|one| one.0.as_str().unwrap()).collect();
    let mut parts = vec![String::new(); 8];
    let (_, stream) = server.ask("POST", "/completion", "", &request(&all, 2, 7, true).to_string());
    for event in stream.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let event: Value = serde_json::from_str(event).unwrap();
        parts[event["index"].as_u64().unwrap() as usize].push_str(event["content"].as_str().unwrap());
    }
    assert_eq!(parts, texts);
    // OpenAI's interface counts each prompt once.
    let (_, answer) = server.post("/v1/completions", &request(&all, 2, 7, false));
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect::<Vec<_>>(), texts);
    let prompts: u64 = alone.iter().step_by(2).map(|one| one.1.as_u64().unwrap()).sum();
    assert_eq!(answer["usage"]["prompt_tokens"], prompts, "{answer}");
}

/// Checks the additional fields of llama-server's answers: the prompt, settings, tokens, and a
/// selection of fields.
#[test]
fn completions_return_requested_additional_fields() {
    let server =
        Server::start(&["--seed", "5", "--temp", "0.5", "-n", "4", "--stop", "zzz", "--chat-template", "chatml"]);
    let (_, whole) = server.post("/completion", &json!({"prompt": PROMPTS[0], "return_tokens": true}));
    assert_eq!((whole["tokens_predicted"].as_u64(), whole["prompt"].as_str()), (Some(4), Some(PROMPTS[0])), "{whole}");
    assert!(whole["completion_probabilities"].is_null());
    let settings = &whole["generation_settings"];
    let found = ["seed", "n_predict", "temperature", "stop"].map(|name| settings[name].clone());
    assert_eq!(found, [json!(5), json!(4), json!(0.5), json!(["zzz"])]);
    let (_, text) = server.post("/detokenize", &json!({"tokens": whole["tokens"]}));
    assert_eq!(text["content"], whole["content"]);
    // Settings of the server are defaults for fields that a request does not set.
    let other = Server::start(&[]);
    let said = json!({"prompt": PROMPTS[0], "temperature": 0.5, "seed": 5, "max_tokens": 4});
    assert_eq!(other.post("/completion", &said).1["content"], whole["content"]);
    let said = json!({"prompt": PROMPTS[0], "temperature": 0, "seed": null, "max_tokens": 2});
    assert_eq!(server.post("/completion", &said).1["content"], other.post("/completion", &said).1["content"]);
    let (_, props) = server.ask("GET", "/props", "", "");
    let params = &serde_json::from_str::<Value>(&props).unwrap()["default_generation_settings"]["params"];
    assert_eq!(["seed", "n_predict", "temperature"].map(|name| params[name].clone()), [json!(5), json!(4), json!(0.5)]);
    let chosen =
        json!({"prompt": PROMPTS[0], "response_fields": ["content", "generation_settings/seed", "none", "model/x"]});
    let (_, chosen) = server.post("/completion", &chosen);
    assert_eq!(chosen, json!({"content": whole["content"], "generation_settings/seed": 5}));
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}]});
    assert!(server.post("/v1/chat/completions", &chat).1["usage"]["completion_tokens"].as_u64().unwrap() <= 4);
    for (arguments, says) in
        [(["--temp", "2000"], "temp"), (["--stop", &"z".repeat(2000)], "stop"), (["-n", "-2"], "-1..")]
    {
        let output = ixc([&["serve", "demo"], &arguments[..]].concat()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(says), "{arguments:?}: {said}");
    }
}

/// Checks that a conversation has the same answer at /v1/responses and at /v1/chat/completions,
/// whole and streamed.
#[test]
fn responses_are_answered_as_chat_completions_are() {
    let server = Server::start(&["--chat-template", "chatml"]);
    let ours = json!({
        "max_tokens": 12, "temperature": 0,
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Looking.", "tool_calls": [
                {"id": "t0", "type": "function", "function": {"name": "look", "arguments": "{\"at\":1}"}},
            ]},
            {"role": "tool", "tool_call_id": "t0", "content": "7"},
        ],
    });
    let mut theirs = json!({
        "max_output_tokens": 12, "temperature": 0, "instructions": "Be brief.",
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
            {"type": "function_call", "call_id": "t0", "name": "look", "arguments": "{\"at\":1}"},
            {"type": "function_call_output", "call_id": "t0", "output": "7"},
        ],
    });
    let (status, chat) = server.post("/v1/chat/completions", &ours);
    assert_eq!(status, 200, "{chat}");
    let (status, whole) = server.post("/v1/responses", &theirs);
    assert_eq!((status, &whole["object"]), (200, &json!("response")), "{whole}");
    let content = &chat["choices"][0]["message"]["content"];
    assert_eq!(&whole["output"][0]["content"][0]["text"], content);
    let status = if chat["choices"][0]["finish_reason"] == "length" { "incomplete" } else { "completed" };
    assert_eq!((&whole["status"], &whole["usage"]["input_tokens"]), (&json!(status), &chat["usage"]["prompt_tokens"]));
    theirs["stream"] = true.into();
    let (_, text) = server.ask("POST", "/v1/responses", "", &theirs.to_string());
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|object| serde_json::from_str(object).unwrap()).collect();
    let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(names, events.iter().map(|event| event["type"].as_str().unwrap()).collect::<Vec<_>>());
    assert!(events.iter().enumerate().all(|(i, event)| event["sequence_number"] == i), "{text}");
    let parts: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(parts, content.as_str().unwrap());
    let mut last = events.last().unwrap()["response"].clone();
    for name in ["id", "created_at", "output", "usage"] {
        last[name] = whole[name].clone();
    }
    assert_eq!(last, whole);
    let (status, answer) = server.post(
        "/v1/responses",
        &json!({
            "input": "x", "max_output_tokens": 300, "temperature": 0,
            "text": {"format": {"type": "json_schema", "name": "x", "schema": {"enum": ["yes", "no"]}}},
        }),
    );
    assert_eq!(status, 200, "{answer}");
    assert!(["\"yes\"", "\"no\""].contains(&answer["output"][0]["content"][0]["text"].as_str().unwrap()), "{answer}");
}

/// Checks that with every sampler, a request has the same text alone and together with other
/// requests.
#[test]
fn draws_are_the_same_alone_and_among_others() {
    let server = Server::start(&["--parallel", "4"]);
    let all = [
        json!({"typical_p": 0.7}),
        json!({"top_n_sigma": 1.5}),
        json!({"xtc_probability": 0.5, "xtc_threshold": 0.05}),
        json!({"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_sequence_breakers": ["\n"]}),
        json!({"dynatemp_range": 0.5, "dynatemp_exponent": 1.3}),
        json!({"mirostat": 1, "mirostat_tau": 3}),
        json!({"mirostat": 2, "mirostat_eta": 0.2}),
        json!({"samplers": ["top_k", "temperature", "min_p"], "repeat_penalty": 1.2, "repeat_last_n": -1}),
    ];
    let request = |more: &Value| {
        let mut request = json!({"prompt": PROMPTS[1], "n_predict": 16, "seed": 11});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, answer) = server.post("/completion", &request);
        assert_eq!(status, 200, "{answer}");
        answer["content"].as_str().unwrap().to_owned()
    };
    let alone: Vec<String> = all.iter().map(request).collect();
    let request = &request;
    let among: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = all.iter().map(|more| scope.spawn(move || request(more))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(alone, among);
}
