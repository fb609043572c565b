//! Conversations of chat requests: messages, template variables, and continued messages.

use ixc_text::chat::{Part, ToolCall};
use ixc_text::template::{Conversation, Json as JsonText, Message};
use serde_json::Value;

use crate::http::error::HttpError;
use crate::http::fields::Fields;
use crate::http::tools::json_text;

/// Max messages of a conversation.
pub(crate) const MAX_MESSAGES: usize = 65_536;
/// Max letters of a message's role.
const MAX_ROLE_BYTES: usize = 64;

/// Reads the conversation of a request, for this template.
pub(crate) fn conversation(
    fields: &Fields,
    tools: Vec<JsonText>,
    template: Option<&str>,
) -> Result<Conversation, HttpError> {
    let Some(Value::Array(list)) = fields.get("messages") else {
        return Err(HttpError::invalid(Some("messages"), "messages must be a list"));
    };
    if list.is_empty() || list.len() > MAX_MESSAGES {
        let wrong = format!("messages has {} entries, must have 1 to {MAX_MESSAGES}", list.len());
        return Err(HttpError::invalid(Some("messages"), wrong));
    }
    let messages = list.iter().enumerate().map(|(i, message)| self::message(i, message, template.unwrap_or_default()));
    let messages = messages.collect::<Result<Vec<Message>, HttpError>>()?;
    let variables = variables(fields)?;
    let (add_generation_prompt, continued) = going_on(fields, &messages)?;
    // BOS and EOS are set when the prompt is rendered (`ixc_generate::chat`).
    Ok(Conversation { messages, add_generation_prompt, continued, tools, variables, ..Conversation::default() })
}

/// Returns whether the template begins a message of the assistant, and the part of the last message
/// that the answer continues. By default a last message of the assistant is continued, as in
/// llama-server.
pub(crate) fn going_on(fields: &Fields, messages: &[Message]) -> Result<(bool, Option<Part>), HttpError> {
    const NAME: &str = "continue_final_message";
    let wrong = |what: &str| HttpError::invalid(Some(NAME), format!("{NAME}{what}"));
    let begins = fields.flag("add_generation_prompt")?;
    let (last, others) = match messages {
        [others @ .., last] if last.role == ASSISTANT => (Some(last), others),
        others => (None, others),
    };
    let (is_wanted, part) = match fields.get(NAME) {
        None => (None, None),
        Some(Value::Bool(is_wanted)) => (Some(*is_wanted), None),
        Some(Value::String(part)) if part == "content" => (Some(true), Some(Part::Content)),
        Some(Value::String(part)) if part == "reasoning_content" => (Some(true), Some(Part::Reasoning)),
        Some(_) => return Err(wrong(" must be true, false, \"content\" or \"reasoning_content\"")),
    };
    if !is_wanted.unwrap_or(last.is_some() && begins != Some(true)) {
        return Ok((begins.unwrap_or(true), None));
    }
    let Some(last) = last else { return Err(wrong(" needs a conversation whose last message is from the assistant")) };
    if begins == Some(true) {
        return Err(wrong(
            " and add_generation_prompt cannot both be true: the first continues the last message, the second begins a new one",
        ));
    }
    let or = "; or set add_generation_prompt to true for a new message";
    let unclear =
        |what: &str| Err(HttpError::invalid(Some("messages"), format!("messages[{}] {what}{or}", others.len())));
    if is_wanted.is_none() && others.last().is_some_and(|before| before.role == ASSISTANT) {
        return unclear(
            "and the message before it are both from the assistant: set continue_final_message to true to continue it",
        );
    }
    if !last.tool_calls.is_empty() {
        return unclear("calls tools and cannot be continued: the results must follow in messages with the role tool");
    }
    let has_reasoning = last.reasoning.as_ref().is_some_and(|reasoning| !reasoning.is_empty());
    let part = part.unwrap_or(if has_reasoning && last.content.is_empty() { Part::Reasoning } else { Part::Content });
    if part == Part::Reasoning && !last.content.is_empty() {
        return Err(wrong(" is reasoning_content, but the last message has content after its reasoning"));
    }
    Ok((false, Some(part)))
}

/// Returns the template variables that fields of the request set. Variables that the client names
/// explicitly take precedence.
fn variables(fields: &Fields) -> Result<Vec<(String, JsonText)>, HttpError> {
    let mut variables = Vec::new();
    for name in ["reasoning_effort", "verbosity"] {
        let Some(value) = fields.text(name)? else { continue };
        if name == "reasoning_effort" && value == "none" {
            variables.push(("enable_thinking".to_owned(), json_text(&false.into())?));
        }
        variables.push((name.to_owned(), json_text(&value.into())?));
    }
    const KWARGS: &str = "chat_template_kwargs";
    match fields.get(KWARGS) {
        None => {}
        Some(Value::Object(members)) => {
            for (name, value) in members {
                variables.push((name.clone(), json_text(value)?));
            }
        }
        Some(_) => return Err(HttpError::invalid(Some(KWARGS), format!("{KWARGS} must be an object"))),
    }
    Ok(variables)
}

/// Roles that conversations have in every interface.
const ROLES: [&str; 4] = ["system", "user", ASSISTANT, "tool"];
/// Role of the model.
const ASSISTANT: &str = "assistant";

/// Returns a role that the template accepts. Many templates silently drop messages whose role they
/// do not name; templates that name no role accept any. Returns `None` if the message would be
/// dropped.
fn role_for(role: String, template: &str) -> Option<String> {
    let names = |role: &str| ["'", "\""].iter().any(|quote| template.contains(&[quote, role, quote].concat()));
    match &*role {
        known if ROLES.contains(&known) || names(known) => Some(role),
        // OpenAI's newer models use this name for the role `system`.
        "developer" => Some("system".to_owned()),
        _ => (!ROLES.iter().any(|role| names(role))).then_some(role),
    }
}

/// Reads a message for a template.
fn message(i: usize, value: &Value, template: &str) -> Result<Message, HttpError> {
    let wrong = |what: &str| HttpError::invalid(Some("messages"), format!("messages[{i}]{what}"));
    let Some(members) = value.as_object() else { return Err(wrong(" must be an object")) };
    let text = |name: &str| match members.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(wrong(&format!(".{name} must be a text"))),
    };
    let role = text("role")?.ok_or_else(|| wrong(" has no role; expected a role such as user or assistant"))?;
    // Templates write the role as their own text, so names of control tokens in it would become
    // those tokens.
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if role.is_empty() || role.len() > MAX_ROLE_BYTES || !role.bytes().all(is_word) {
        return Err(wrong(&format!(".role must be a word of at most {MAX_ROLE_BYTES} letters")));
    }
    let Some(role) = role_for(role, template) else {
        return Err(wrong(&format!(
            ".role is not supported by the model's template; supported are {}",
            ROLES.join(", ")
        )));
    };
    for name in ["function_call", "audio"] {
        if members.get(name).is_some_and(|value| !value.is_null()) {
            return Err(wrong(&format!(".{name} is not supported")));
        }
    }
    let mut content = match members.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let parts: Option<Vec<&str>> = parts.iter().map(part).collect();
            parts.ok_or_else(|| wrong(".content has a part that is not text; only text is supported"))?.concat()
        }
        Some(_) => return Err(wrong(".content must be a text, or a list of parts")),
    };
    if let (true, Some(refusal)) = (content.is_empty(), text("refusal")?) {
        content = refusal;
    }
    let tool_calls = match members.get("tool_calls") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(calls)) => {
            let calls = calls.iter().map(call).collect::<Option<_>>();
            calls.ok_or_else(|| wrong(".tool_calls has one without a function"))?
        }
        Some(_) => return Err(wrong(".tool_calls must be a list")),
    };
    let reasoning = match text("reasoning_content")? {
        Some(reasoning) => Some(reasoning),
        None => text("reasoning")?,
    };
    Ok(Message { role, content, reasoning, tool_calls, tool_call_id: text("tool_call_id")?, name: text("name")? })
}

/// Returns the text of a part of a message's content.
fn part(part: &Value) -> Option<&str> {
    match part["type"].as_str() {
        // Clients also send the type names of `/v1/responses` to this interface.
        Some("text" | "input_text" | "output_text") => part["text"].as_str(),
        Some("refusal") => part["refusal"].as_str(),
        None => part.as_str(),
        Some(_) => None,
    }
}

/// Reads a call of a message. For a call without arguments, clients send nothing, an empty text or
/// `null`.
fn call(call: &Value) -> Option<ToolCall> {
    let function = call.get("function")?;
    let arguments = match &function["arguments"] {
        Value::String(text) if matches!(text.trim(), "" | "null") => "{}".to_owned(),
        Value::String(text) => text.clone(),
        Value::Null => "{}".to_owned(),
        other => other.to_string(),
    };
    let id = call["id"].as_str().unwrap_or_default().to_owned();
    Some(ToolCall { id, name: function["name"].as_str()?.to_owned(), arguments })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn last_message_is_continued_or_answered_as_requested() {
        let user = || Message::new("user", "x");
        let said = |content: &str, reasoning: &str| Message {
            reasoning: Some(reasoning.to_owned()),
            ..Message::new("assistant", content)
        };
        let calls = vec![ToolCall { id: "a".into(), name: "f".into(), arguments: "{}".into() }];
        let called = Message { tool_calls: calls, ..said("", "") };
        let of = |fields: Value, messages: &[Message]| {
            let fields = Fields::parse(fields.to_string().as_bytes()).unwrap();
            going_on(&fields, messages).map_err(|error| error.message().to_owned())
        };
        let (add, next) = ("add_generation_prompt", "continue_final_message");
        let (content, reasoning) = (Ok((false, Some(Part::Content))), Ok((false, Some(Part::Reasoning))));
        for (fields, last, expected) in [
            (json!({}), user(), Ok((true, None))),
            (json!({add: false}), user(), Ok((false, None))),
            (json!({next: false}), user(), Ok((true, None))),
            (json!({}), said("a", ""), content.clone()),
            (json!({}), said("a", "b"), content.clone()),
            (json!({}), said("", ""), content.clone()),
            (json!({}), said("", "b"), reasoning.clone()),
            (json!({add: false}), said("a", ""), content.clone()),
            (json!({next: true, add: false}), said("a", ""), content.clone()),
            (json!({next: "content"}), said("", "b"), content.clone()),
            (json!({next: "reasoning_content"}), said("", ""), reasoning.clone()),
            (json!({add: true}), said("a", ""), Ok((true, None))),
            (json!({next: false}), said("a", ""), Ok((true, None))),
            (json!({next: false, add: false}), said("a", ""), Ok((false, None))),
            (json!({add: true}), called.clone(), Ok((true, None))),
        ] {
            assert_eq!(of(fields.clone(), &[user(), last.clone()]), expected, "{fields} {last:?}");
        }
        let two = [said("a", ""), said("b", "")];
        assert_eq!(of(json!({next: true}), &two), content);
        for (fields, messages, says) in [
            (
                json!({add: true, next: true}),
                &[said("a", "")][..],
                "the first continues the last message, the second begins",
            ),
            (json!({next: true}), &[user()], "needs a conversation whose last message is from the assistant"),
            (json!({next: 1}), &[user()], "must be true, false, \"content\" or"),
            (json!({next: "reasoning_content"}), &[said("a", "b")], "has content after its reasoning"),
            (json!({}), &two, "messages[1] and the message before it are both from the assistant"),
            (json!({}), &[user(), called.clone()], "messages[1] calls tools"),
            (json!({next: true}), &[called], "must follow in messages with the role tool"),
        ] {
            let error = of(fields.clone(), messages).unwrap_err();
            assert!(error.contains(says), "{fields}: {error}");
        }
    }

    #[test]
    fn roles_missing_in_the_template_are_mapped_or_refused() {
        let of = |role: &str, template: &str| role_for(role.to_owned(), template);
        let all = "{% for m in messages %}{{ m.role }}{% endfor %}";
        let some = "{% if m.role == 'user' or m.role == \"assistant\" %}";
        let more = "{% if m.role == 'user' %}{% elif m.role in [\"system\", 'developer'] or m.role == 'ipython' %}";
        for template in [all, some, more] {
            ROLES.iter().for_each(|role| assert_eq!(of(role, template).as_deref(), Some(*role)));
        }
        assert_eq!(
            [all, some, more].map(|of_one| of("developer", of_one)),
            ["system", "system", "developer"].map(|role| Some(role.to_owned()))
        );
        assert_eq!([all, some, more].map(|of_one| of("ipython", of_one).is_some()), [true, false, true]);
    }
}
