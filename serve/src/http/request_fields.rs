//! Table of all request fields. Refusals, `docs/api-fields.md` and a test of each field are
//! generated from it.
//!
//! Each documented field of an interface is honoured, ignored because it changes no answer, or
//! refused by name. The sources are OpenAI's specification (`CreateChatCompletionRequest`,
//! `CreateCompletionRequest`, `CreateResponse`, `CreateEmbeddingRequest`), Anthropic's
//! specification of `/v1/messages`, llama-server's README, and the parameters of vLLM's server. A
//! field that is in none of these sources is ignored, as OpenAI's clients expect.

use std::fmt::Write;

use ixc_runtime::sample;
use serde_json::{Value, json};

use crate::http::error::HttpError;
use crate::http::fields::Fields;

/// An endpoint with request fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// `/v1/responses`.
    Responses,
    /// `/v1/messages`.
    Messages,
    /// `/completion`.
    Native,
    /// `/v1/embeddings`.
    Embeddings,
}

use Interface::{Chat, Completions, Embeddings, Messages, Native, Responses};

impl Interface {
    /// All interfaces.
    pub const ALL: [Interface; 6] = [Chat, Completions, Responses, Messages, Native, Embeddings];

    /// Returns the path of the endpoint.
    pub fn path(self) -> &'static str {
        match self {
            Chat => "/v1/chat/completions",
            Completions => "/v1/completions",
            Responses => "/v1/responses",
            Messages => "/v1/messages",
            Native => "/completion",
            Embeddings => "/v1/embeddings",
        }
    }
}

/// Treatment of a field.
#[derive(Clone, Copy, Debug)]
pub enum Treatment {
    /// The field works as its interface documents.
    Honoured,
    /// The field is not read, since it changes no answer.
    Ignored,
    /// The field is refused by name, unless its value asks for the default behaviour.
    Refused {
        /// Whether a value asks for the default behaviour.
        is_neutral: fn(&Value) -> bool,
    },
}

/// A field of a request.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name of the field.
    pub name: &'static str,
    /// Interfaces with this field.
    pub interfaces: &'static [Interface],
    /// The treatment.
    pub treatment: Treatment,
    /// The meaning of the field. For a refused field: the missing feature.
    pub note: &'static str,
    /// A valid value as JSON. For a refused field: a value that is refused.
    pub example: &'static str,
    /// A value of a wrong type, as JSON; empty if every type is accepted.
    pub wrong: &'static str,
}

const TEXT: &[Interface] = &[Chat, Completions, Responses, Messages, Native];
const CHATS: &[Interface] = &[Chat, Responses, Messages];
const ALL: &[Interface] = &Interface::ALL;
/// Interfaces that also accept vLLM's fields.
const PLAIN: &[Interface] = &[Chat, Completions, Native];
const OPENAI: &[Interface] = &[Chat, Completions, Responses];

const fn honoured_field(
    name: &'static str,
    interfaces: &'static [Interface],
    note: &'static str,
    example: &'static str,
    wrong: &'static str,
) -> Field {
    Field { name, interfaces, treatment: Treatment::Honoured, note, example, wrong }
}

const fn ignored_field(
    name: &'static str,
    interfaces: &'static [Interface],
    note: &'static str,
    example: &'static str,
) -> Field {
    Field { name, interfaces, treatment: Treatment::Ignored, note, example, wrong: "" }
}

const fn refused(
    name: &'static str,
    interfaces: &'static [Interface],
    note: &'static str,
    example: &'static str,
    is_neutral: fn(&Value) -> bool,
) -> Field {
    Field { name, interfaces, treatment: Treatment::Refused { is_neutral }, note, example, wrong: "" }
}

fn never(_: &Value) -> bool {
    false
}

fn is_false(value: &Value) -> bool {
    *value == json!(false)
}

fn is_true(value: &Value) -> bool {
    *value == json!(true)
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(serde_json::Map::is_empty)
}

fn is_number(value: &Value, number: f64) -> bool {
    value.as_f64() == Some(number)
}

const SCHEMA: &str = r#"{"type": "object", "properties": {"a": {"type": "integer"}}}"#;
const TOOL: &str = r#"[{"type": "function", "function": {"name": "f", "parameters": {}}}]"#;

/// All fields except the sampler's numbers ([`sample::NUMBERS`]).
#[rustfmt::skip]
pub const FIELDS: &[Field] = &[
    honoured_field("model", ALL, "name of the model, if the server has several", "\"demo\"", "1"),
    honoured_field("messages", &[Chat, Messages], "messages of the conversation", r#"[{"role": "user", "content": "Hi"}]"#, "1"),
    honoured_field("prompt", &[Completions, Native], "a text, a list of tokens, or a list of these", "\"Hi\"", "true"),
    honoured_field("input", &[Responses], "a text, or a list of items", "\"Hi\"", "true"),
    honoured_field("input", &[Embeddings], "a text, a list of tokens, or a list of these", "\"Hi\"", "true"),
    honoured_field("instructions", &[Responses], "the system message", "\"Be brief.\"", "1"),
    honoured_field("system", &[Messages], "the system message", "\"Be brief.\"", "1"),
    honoured_field("max_completion_tokens", TEXT, "max tokens of an answer; takes precedence over `max_tokens`", "2", "\"2\""),
    honoured_field("max_tokens", TEXT, "max tokens of an answer", "2", "\"2\""),
    honoured_field("max_output_tokens", TEXT, "max tokens of an answer", "2", "\"2\""),
    honoured_field("n_predict", TEXT, "max tokens of an answer; -1 means as many as the context has room for", "2", "\"2\""),
    honoured_field("min_tokens", TEXT, "min tokens before the model may end an answer; texts of `stop` still end it", "1", "\"1\""),
    honoured_field("n", PLAIN, "number of answers to each prompt", "1", "\"1\""),
    honoured_field("n_cmpl", &[Native], "number of answers to each prompt", "1", "\"1\""),
    honoured_field("stream", TEXT, "whether to stream the answer in parts", "false", "1"),
    honoured_field("stream_options", &[Chat, Completions], "`include_usage`; only with `stream`", "null", "{}"),
    honoured_field("seed", TEXT, "a signed or unsigned integer of 64 bits; -1 means a random seed", "-9223372036854775808", "0.5"),
    honoured_field("stop", &[Chat, Completions, Responses, Native], "texts that end an answer", "[\"END\"]", "1"),
    honoured_field("stop_sequences", &[Messages], "texts that end an answer", "[\"END\"]", "1"),
    honoured_field("stop_token_ids", TEXT, "tokens that end an answer", "[1]", "\"1\""),
    honoured_field("include_stop_str_in_output", TEXT, "whether an answer includes the text that ended it", "true", "1"),
    honoured_field("ignore_eos", TEXT, "whether the model may not end an answer", "true", "1"),
    honoured_field("skip_special_tokens", TEXT, "whether to omit the names of control tokens; in chats they mark tool calls and reasoning", "false", "1"),
    honoured_field("logit_bias", TEXT, "numbers to add to the logits of tokens", "{\"5\": -100}", "1"),
    honoured_field("samplers", TEXT, "samplers to apply, in order", "[\"top_k\", \"temperature\"]", "1"),
    honoured_field("dry_sequence_breakers", TEXT, "texts that interrupt repeated sequences", "[\"x\"]", ""),
    honoured_field("typ_p", TEXT, "alias of `typical_p`", "0.5", "\"x\""),
    honoured_field("min_keep", TEXT, "must be 0: samplers have no min number of tokens to keep", "0", "1"),
    honoured_field("logprobs", &[Chat], "whether to return log probabilities of tokens", "true", "\"x\""),
    honoured_field("top_logprobs", &[Chat], "number of most likely tokens to return for each token; requires `logprobs`", "0", "\"x\""),
    honoured_field("logprobs", &[Completions], "number of most likely tokens to return for each token", "1", "\"x\""),
    honoured_field("n_probs", &[Native], "number of most likely tokens to return for each token", "1", "\"x\""),
    honoured_field("post_sampling_probs", &[Native], "whether to return probabilities after the samplers", "true", "1"),
    honoured_field("return_tokens", &[Native], "whether to return token ids", "true", "1"),
    honoured_field("response_fields", &[Native], "names of the response fields to return", "[\"content\"]", "1"),
    honoured_field("cache_prompt", TEXT, "whether to reuse a cached prefix of the prompt", "false", ""),
    honoured_field("response_format", PLAIN, "`text`, `json_object` or `json_schema`", r#"{"type": "json_object"}"#, r#"{"type": "xml"}"#),
    honoured_field("json_schema", PLAIN, "a JSON schema for the answer", SCHEMA, "1"),
    honoured_field("grammar", PLAIN, "a grammar for the whole answer", "\"root ::= [a-z]+\"", "1"),
    honoured_field("guided_json", PLAIN, "a JSON schema for the answer", SCHEMA, "1"),
    honoured_field("guided_regex", PLAIN, "a regular expression that the answer must match", "\"[a-z]+\"", "1"),
    honoured_field("guided_choice", PLAIN, "the possible answers", "[\"a\", \"b\"]", "\"a\""),
    honoured_field("guided_grammar", PLAIN, "a grammar for the whole answer", "\"root ::= [a-z]+\"", "1"),
    honoured_field("structured_outputs", PLAIN, "one of `json`, `regex`, `choice`, `grammar`, `json_object`", r#"{"regex": "[a-z]+"}"#, "1"),
    honoured_field("tools", &[Chat], "functions that the model may call", TOOL, "1"),
    honoured_field("tools", &[Responses], "types `function`, `custom` and `namespace`; `web_search`, `image_generation` and `tool_search` are dropped, other types refused", r#"[{"type": "function", "name": "f"}]"#, "1"),
    honoured_field("tools", &[Messages], "tools with an `input_schema`", r#"[{"name": "f", "input_schema": {"type": "object"}}]"#, "1"),
    honoured_field("tool_choice", &[Chat, Responses], "`auto`, `none`, `required`, a function, or `allowed_tools`", "\"auto\"", "1"),
    honoured_field("tool_choice", &[Messages], "`auto`, `none`, `any`, or a tool; `disable_parallel_tool_use`", r#"{"type": "auto"}"#, "1"),
    honoured_field("parallel_tool_calls", &[Chat, Responses], "whether an answer may have several tool calls", "false", "1"),
    honoured_field("reasoning_effort", &[Chat], "passed to the chat template; `none` also sets `enable_thinking: false`", "\"low\"", "1"),
    honoured_field("reasoning", &[Responses], "`effort`, the same as `reasoning_effort`", r#"{"effort": "low"}"#, "1"),
    honoured_field("thinking", &[Messages], "`enabled` and `disabled` set `enable_thinking` of the chat template; the budget has no effect", r#"{"type": "disabled"}"#, "1"),
    honoured_field("verbosity", &[Chat], "passed to the chat template", "\"low\"", "1"),
    honoured_field("text", &[Responses], "`format`, the same as `response_format`, and `verbosity`", r#"{"format": {"type": "text"}}"#, "1"),
    honoured_field("output_config", &[Messages], "`format`, a JSON schema, and `effort`, the same as `reasoning_effort`", r#"{"effort": "low"}"#, "1"),
    honoured_field("output_format", &[Messages], "a JSON schema", r#"{"type": "json_schema", "schema": {"type": "object"}}"#, "1"),
    honoured_field("chat_template_kwargs", CHATS, "variables for the chat template", r#"{"enable_thinking": false}"#, "1"),
    honoured_field("add_generation_prompt", CHATS, "whether the prompt ends with the start of an answer", "true", "1"),
    honoured_field("continue_final_message", CHATS, "whether the answer continues the last message", "false", "1"),
    honoured_field("encoding_format", &[Embeddings], "`float` or `base64`", "\"base64\"", "\"x\""),
    honoured_field("dimensions", &[Embeddings], "number of elements of a vector to return", "4", "\"x\""),
    honoured_field("metadata", &[Responses], "returned with the answer", r#"{"a": "b"}"#, ""),

    ignored_field("user", ALL, "the server stores nothing about users", "\"u\""),
    ignored_field("metadata", &[Chat, Completions, Messages], "the server stores no requests", r#"{"a": "b"}"#),
    ignored_field("store", OPENAI, "the server stores nothing", "true"),
    ignored_field("service_tier", CHATS, "there is only one tier", "\"auto\""),
    ignored_field("safety_identifier", &[Chat, Responses], "the server stores nothing about users", "\"u\""),
    ignored_field("prompt_cache_key", &[Chat, Responses], "common prompt prefixes are found automatically", "\"k\""),
    ignored_field("prompt_cache_retention", &[Chat, Responses], "the server's options set how long prompts are kept", "\"24h\""),
    ignored_field("prompt_cache_options", &[Chat, Responses], "common prompt prefixes are found automatically", "{}"),
    ignored_field("prediction", &[Chat], "it would speed up an answer, not change it", r#"{"type": "content", "content": "Hi"}"#),
    ignored_field("include", &[Responses], "`reasoning.encrypted_content`: reasoning is returned as text", r#"["reasoning.encrypted_content"]"#),
    ignored_field("stream_options", &[Responses], "`include_obfuscation`: events are not padded", "{}"),
    ignored_field("max_tool_calls", &[Responses], "it limits calls of the server's own tools, and the server has no such tools", "1"),
    ignored_field("context_management", &[Messages], "clients shorten conversations themselves", "{}"),
    ignored_field("inference_geo", &[Messages], "inference runs on this server", "\"us\""),
    ignored_field("cache_control", &[Messages], "common prompt prefixes are found automatically", r#"{"type": "ephemeral"}"#),
    ignored_field("priority", TEXT, "requests are answered in order of arrival", "1"),
    ignored_field("request_id", TEXT, "the server assigns ids", "\"r\""),
    ignored_field("cache_salt", TEXT, "cached prompts never change an answer", "\"s\""),
    ignored_field("spaces_between_special_tokens", TEXT, "names of control tokens are written unchanged", "true"),
    ignored_field("guided_decoding_backend", TEXT, "there is only one backend", "\"xgrammar\""),
    ignored_field("id_slot", TEXT, "the server chooses the slot", "0"),
    ignored_field("timings_per_token", TEXT, "timings are returned at the end", "true"),
    ignored_field("return_progress", TEXT, "the first token shows that the prompt is complete", "true"),
    ignored_field("n_keep", TEXT, "the server's options set how many tokens a full context keeps", "0"),
    ignored_field("n_discard", TEXT, "the server's options set how many tokens a full context drops", "0"),
    ignored_field("backend_sampling", TEXT, "it changes where sampling runs, not its results", "true"),

    refused("functions", &[Chat], "functions, which tools have replaced,", r#"[{"name": "f"}]"#, is_empty),
    refused("function_call", &[Chat], "function_call, which tool_choice has replaced,", r#"{"name": "f"}"#, |value| value == "none" || value == "auto"),
    refused("modalities", &[Chat], "another modality than text", r#"["audio"]"#, |value| *value == json!(["text"])),
    refused("audio", &[Chat], "audio", r#"{"voice": "a"}"#, never),
    refused("web_search_options", &[Chat], "a web search", "{}", never),
    refused("moderation", &[Chat, Responses], "moderation", "{}", never),
    refused("echo", &[Completions], "echo", "true", is_false),
    refused("suffix", &[Completions], "a suffix", "\"x\"", |value| value == ""),
    refused("best_of", &[Chat, Completions], "best_of above 1", "2", |value| is_number(value, 1.0)),
    refused("use_beam_search", TEXT, "beam search", "true", is_false),
    refused("length_penalty", TEXT, "length_penalty other than 1, which is of beam search,", "2", |value| is_number(value, 1.0)),
    refused("early_stopping", TEXT, "early_stopping, which is of beam search,", "true", is_false),
    refused("prompt_logprobs", TEXT, "prompt_logprobs", "1", never),
    refused("bad_words", TEXT, "bad_words (logit_bias leaves tokens out)", r#"["x"]"#, is_empty),
    refused("allowed_token_ids", TEXT, "allowed_token_ids", "[1]", never),
    refused("truncate_prompt_tokens", TEXT, "truncate_prompt_tokens", "1", never),
    refused("add_special_tokens", &[Chat, Completions], "add_special_tokens: the model and its template say what stands before a prompt, so another value", "5", Value::is_boolean),
    refused("echo", &[Chat], "echo", "true", is_false),
    refused("include_reasoning", &[Chat], "include_reasoning other than true", "false", is_true),
    refused("reasoning_format", &[Chat], "a reasoning_format other than auto and deepseek", "\"none\"", |value| value == "auto" || value == "deepseek"),
    refused("parse_tool_calls", &[Chat], "parse_tool_calls other than true", "false", is_true),
    refused("thinking_budget_tokens", CHATS, "a budget of reasoning", "5", |value| is_number(value, -1.0)),
    refused("chat_template", CHATS, "a template of the request's own", "\"x\"", never),
    refused("documents", CHATS, "documents", r#"[{"text": "x"}]"#, is_empty),
    refused("logits_processors", PLAIN, "logits_processors", r#"["x"]"#, is_empty),
    refused("repetition_detection", TEXT, "repetition_detection", "{}", never),
    refused("return_token_ids", TEXT, "return_token_ids", "true", is_false),
    refused("return_tokens_as_token_ids", TEXT, "return_tokens_as_token_ids", "true", is_false),
    refused("mm_processor_kwargs", CHATS, "mm_processor_kwargs", r#"{"a": 1}"#, is_empty),
    refused("image_data", &[Native], "pictures", r#"[{"data": "x", "id": 1}]"#, is_empty),
    refused("multimodal_data", &[Native], "pictures", r#"["x"]"#, is_empty),
    refused("lora", TEXT, "LoRA adapters", r#"[{"id": 0, "scale": 1}]"#, is_empty),
    refused("n_indent", &[Native], "n_indent", "4", |value| is_number(value, 0.0)),
    refused("t_max_predict_ms", TEXT, "a time that ends an answer", "5", |value| value.as_f64().is_some_and(|value| value <= 0.0)),
    refused("mcp_servers", &[Messages], "mcp_servers", r#"[{"type": "url", "url": "https://a.b"}]"#, is_empty),
    refused("container", &[Messages], "a container", "\"c\"", never),
    refused("previous_response_id", &[Responses], "previous_response_id: nothing is stored, so input has to be the whole conversation,", "\"r\"", never),
    refused("conversation", &[Responses], "conversation: nothing is stored, so input has to be the whole of it,", "\"c\"", never),
    refused("background", &[Responses], "background", "true", is_false),
    refused("prompt", &[Responses], "a stored prompt", r#"{"id": "p"}"#, never),
    refused("truncation", &[Responses], "truncation", "\"auto\"", |value| value == "disabled"),
    refused("top_logprobs", &[Responses], "top_logprobs", "2", |value| is_number(value, 0.0)),
    refused("context_management", &[Responses], "context_management", r#"[{"type": "compaction"}]"#, is_empty),
];

/// Returns the fields of an interface, including the sampler's numbers.
pub fn fields_of(interface: Interface) -> impl Iterator<Item = Field> {
    let numbers = sample::NUMBERS.iter().filter(move |_| TEXT.contains(&interface));
    let numbers = numbers.map(|number| honoured_field(number.name, TEXT, "sampler parameter", "1", "\"x\""));
    FIELDS.iter().copied().filter(move |field| field.interfaces.contains(&interface)).chain(numbers)
}

/// Refuses requests for features that the server lacks.
pub(crate) fn refuse(interface: Interface, fields: &Fields) -> Result<(), HttpError> {
    for field in FIELDS.iter().filter(|field| field.interfaces.contains(&interface)) {
        let Treatment::Refused { is_neutral } = field.treatment else { continue };
        if fields.get(field.name).is_some_and(|value| !is_neutral(value)) {
            return Err(HttpError::unsupported_error(field.name, field.note));
        }
    }
    Ok(())
}

/// Returns the page with the treatment of each field.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Request fields\n\n\
         Generated from the table in `serve/src/http/request_fields.rs`. A test sends each field.\n\n\
         An *honoured* field works as its interface documents it. An *ignored* field is not read, because it cannot change an answer. A *refused* field gives\n\
         status 400 and an error that names the field; `null` and values that request the default behaviour are accepted. All other fields are ignored.\n\
         A field that is `null` counts as absent.\n",
    );
    for interface in Interface::ALL {
        // Writing to a string cannot fail.
        let _ = write!(page, "\n## `{}`\n\n| field | treatment | details |\n| --- | --- | --- |\n", interface.path());
        for Field { name, treatment, note, .. } in fields_of(interface) {
            let (word, note) = match treatment {
                Treatment::Honoured => ("honoured", note),
                Treatment::Ignored => ("ignored", note),
                Treatment::Refused { .. } => ("refused", note.trim_end_matches(',')),
            };
            let _ = writeln!(page, "| `{name}` | {word} | {note} |");
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_listed_once_per_interface() {
        for interface in Interface::ALL {
            let mut names: Vec<&str> = fields_of(interface).map(|field| field.name).collect();
            names.sort_unstable();
            let count = names.len();
            names.dedup();
            assert_eq!(names.len(), count, "{interface:?}");
        }
    }

    #[test]
    fn field_examples_are_valid_or_refused_as_stated() {
        for field in FIELDS {
            let example: Value = serde_json::from_str(field.example).unwrap();
            let fields = || Fields::parse(json!({field.name: example}).to_string().as_bytes()).unwrap();
            let refused = matches!(field.treatment, Treatment::Refused { .. });
            for interface in field.interfaces {
                assert_eq!(refuse(*interface, &fields()).is_err(), refused, "{}", field.name);
                let none = Fields::parse(json!({field.name: null}).to_string().as_bytes()).unwrap();
                assert!(refuse(*interface, &none).is_ok(), "{}", field.name);
            }
        }
    }
}
