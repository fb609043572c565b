//! Input of a chat template. Members have the same names as in transformers. Messages have the form
//! of OpenAI's interface, except that templates get the arguments of calls as objects.

use std::collections::BTreeSet;

use aho_corasick::AhoCorasick;
use minijinja::value::Value;
use serde::{Deserialize, Serialize};

use super::python;
use super::{Json, TemplateError};
use crate::chat::{self, Part, ToolCall};

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Role of the author: `system`, `developer`, `user`, `assistant`, `tool`, or another role that
    /// the template knows.
    pub role: String,
    /// Text of the message, or result of a tool call.
    pub content: String,
    /// Reasoning of the assistant, which precedes the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Tool calls of the assistant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Id of the call that produced this result, in a message of a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the tool or user that wrote the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Message {
    /// Returns a message with a role and a text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into(), ..Message::default() }
    }

    /// Returns whether the message has calls, but no text.
    fn only_calls(&self) -> bool {
        self.content.is_empty() && !self.tool_calls.is_empty()
    }

    fn value(&self, form: ConversationForm) -> Value {
        let text = Value::from(&*self.content);
        let content = match form.content_in_parts {
            _ if form.no_content && self.only_calls() => Value::from(()),
            true => Value::from(vec![Value::from_pairs([("type", Value::from("text")), ("text", text)])]),
            false => text,
        };
        let mut members = vec![("role", Value::from(&*self.role)), ("content", content)];
        // Templates read the reasoning under different names. They are those of Qwen, GLM, Kimi and
        // DeepSeek; of gpt-oss; and of Solar and Cohere.
        if let Some(reasoning) = &self.reasoning {
            members
                .extend(["reasoning_content", "thinking", "reasoning"].map(|name| (name, Value::from(&**reasoning))));
        }
        if !self.tool_calls.is_empty() {
            let calls = self.tool_calls.iter().map(|call| call_value(call, form));
            members.push(("tool_calls", calls.collect::<Vec<_>>().into()));
        }
        let named = [("tool_call_id", &self.tool_call_id), ("name", &self.name)];
        members.extend(named.into_iter().filter_map(|(name, value)| Some((name, Value::from(value.as_deref()?)))));
        Value::from_pairs(members)
    }
}

/// Minimum length in bytes of a message's text whose presence in a prompt proves that the template
/// printed the message.
const MIN_PROOF_BYTES: usize = 32;
/// Mark that [`Conversation::with_marks`] appends.
pub(super) const MARK: &str = " [7f3a91c4]";

/// Form in which a template gets the conversation. Templates differ in what they accept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ConversationForm {
    /// Whether arguments of calls are JSON text, because some templates concatenate them with other
    /// text (DeepSeek-V3, functionary). Otherwise they are values, as in transformers; invalid JSON
    /// stays text.
    pub(super) text_arguments: bool,
    /// Whether the content of a message is a list with one part, `[{"type": "text", "text": …}]`.
    /// Some templates of vision models accept nothing else.
    pub(super) content_in_parts: bool,
    /// Whether a message with calls and no text has no content, as in OpenAI's interface. Some
    /// templates write calls only then. Otherwise the content is an empty text, because other
    /// templates concatenate it.
    pub(super) no_content: bool,
    /// Whether arguments that were cut off are reduced to the members that are complete.
    pub(super) whole_arguments: bool,
}

fn call_value(call: &ToolCall, form: ConversationForm) -> Value {
    let arguments = match form.whole_arguments.then(|| chat::whole_arguments(&call.arguments)).flatten() {
        Some(arguments) => arguments,
        None => call.arguments.clone(),
    };
    let value = match form.text_arguments {
        false => Json::new(&*arguments).and_then(|json| json.value()).ok(),
        true => None,
    };
    let arguments = value.unwrap_or_else(|| Value::from(arguments));
    let function = Value::from_pairs([("name", Value::from(&*call.name)), ("arguments", arguments)]);
    Value::from_pairs([("id", Value::from(&*call.id)), ("type", Value::from("function")), ("function", function)])
}

/// Conversation to render, with the tools and variables for the template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversation {
    /// Messages so far.
    pub messages: Vec<Message>,
    /// Whether the prompt ends with the template's beginning of an assistant's answer.
    pub add_generation_prompt: bool,
    /// Part of the last message that the answer continues; the prompt then ends with that part.
    /// Such a message has no calls, and no content if the part is reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continued: Option<Part>,
    /// Text of the BOS token; empty for models without one.
    pub bos_token: String,
    /// Text of the EOS token; empty for models without one.
    pub eos_token: String,
    /// Tools that the model may call, each as `{"type": "function", "function": {"name": …,
    /// "description": …, "parameters": …}}`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Json>,
    /// Additional variables that the templates of some models read: `enable_thinking`,
    /// `reasoning_effort`, `clear_thinking`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<(String, Json)>,
}

impl Conversation {
    /// Replaces each text that comes from outside of this program. These are all texts except
    /// roles, special tokens and names of variables.
    #[must_use]
    pub fn map_texts(&self, mut map: impl FnMut(&str) -> String) -> Conversation {
        let mut messages = self.messages.clone();
        for message in &mut messages {
            message.content = map(&message.content);
            for text in [&mut message.reasoning, &mut message.tool_call_id, &mut message.name].into_iter().flatten() {
                *text = map(text);
            }
            for ToolCall { id, name, arguments } in &mut message.tool_calls {
                (*id, *name) = (map(id), map(name));
                *arguments = match Json::new(&**arguments) {
                    Ok(json) => json.map_texts(&mut map).as_str().to_owned(),
                    Err(_) => map(arguments),
                };
            }
        }
        let tools = self.tools.iter().map(|tool| tool.map_texts(&mut map)).collect();
        let variable = |(name, value): &(String, Json)| (name.clone(), value.map_texts(&mut map));
        let variables = self.variables.iter().map(variable).collect();
        Conversation { messages, tools, variables, ..self.clone() }
    }

    /// Returns whether a text contains a user's message. Also true if there are no user messages.
    /// `None` if the text contains the longest of them, but even this is too short to decide.
    pub(super) fn appears_in(&self, text: &str) -> Option<bool> {
        let users = self.messages.iter().filter(|message| message.role == "user");
        let texts: Vec<&str> = users.map(|message| message.content.trim()).filter(|text| !text.is_empty()).collect();
        let longest = texts.iter().max_by_key(|text| text.len());
        longest.map_or(Some(true), |longest| match text.contains(longest) {
            true => (longest.len() >= MIN_PROOF_BYTES).then_some(true),
            false => Some(texts.iter().any(|user| user.len() >= MIN_PROOF_BYTES && text.contains(user))),
        })
    }

    /// Returns a copy in which a mark is appended to each user message.
    pub(super) fn with_marks(&self) -> Conversation {
        let mut marked = self.clone();
        for message in marked.messages.iter_mut().filter(|message| message.role == "user") {
            message.content.push_str(MARK);
        }
        marked
    }

    /// Returns the arguments of a call if a text has them in Python's notation. This happens if a
    /// template prints the arguments' values without `tojson`.
    pub(super) fn arguments_shown_in(&self, text: &str) -> Option<&str> {
        let calls = self.messages.iter().flat_map(|message| &message.tool_calls);
        calls.map(|call| &*call.arguments).find(|arguments| {
            let value = Json::new(*arguments).and_then(|json| json.value());
            let shown = value.map(|value| python::text(&value)).unwrap_or_default();
            // Short arguments look the same in both notations, so they prove nothing.
            shown.len() > 2 && shown != **arguments && text.contains(&shown)
        })
    }

    /// Returns whether arguments of a call were cut off.
    pub(super) fn has_cut_arguments(&self) -> bool {
        let calls = self.messages.iter().flat_map(|message| &message.tool_calls);
        calls.map(|call| &*call.arguments).any(|arguments| chat::whole_arguments(arguments).is_some())
    }

    /// Counts how often a text contains the names of tools that messages without text call. `None`
    /// if there are no such messages.
    pub(super) fn calls_named_in(&self, text: &str) -> Option<usize> {
        let calls = self.messages.iter().filter(|message| message.only_calls()).flat_map(|message| &message.tool_calls);
        let names: BTreeSet<&str> = calls.map(|call| &*call.name).filter(|name| !name.is_empty()).collect();
        let finder = AhoCorasick::new(&names).ok().filter(|_| !names.is_empty())?;
        Some(finder.find_iter(text).count())
    }

    /// Returns the number of bytes of all texts from outside of this program.
    pub(super) fn text_bytes(&self) -> u64 {
        let message = |m: &Message| {
            let named = [&m.reasoning, &m.tool_call_id, &m.name].into_iter().flatten();
            let calls = m.tool_calls.iter().flat_map(|call| [&call.id, &call.name, &call.arguments]);
            [&m.role, &m.content].into_iter().chain(named).chain(calls).map(|text| text.len() as u64).sum::<u64>()
        };
        let json = self.tools.iter().chain(self.variables.iter().map(|(_, value)| value));
        self.messages.iter().map(message).sum::<u64>() + json.map(|json| json.as_str().len() as u64).sum::<u64>()
    }

    /// Returns the variables of the template, in this form.
    pub(super) fn value(&self, form: ConversationForm) -> Result<Value, TemplateError> {
        let tools: Vec<Value> = self.tools.iter().map(Json::value).collect::<Result<_, _>>()?;
        // If two variables have the same name, the later one is used. The program's own variables
        // come last.
        let mut members: Vec<(String, Value)> = Vec::new();
        for (name, value) in &self.variables {
            members.push((name.clone(), value.value()?));
        }
        let none = || Value::from(());
        let own = [
            ("messages", self.messages.iter().map(|message| message.value(form)).collect::<Vec<_>>().into()),
            ("add_generation_prompt", self.add_generation_prompt.into()),
            ("bos_token", Value::from(&*self.bos_token)),
            ("eos_token", Value::from(&*self.eos_token)),
            // Transformers always passes these two variables, and templates compare them with
            // `none`.
            ("tools", if tools.is_empty() { none() } else { tools.into() }),
            ("documents", none()),
        ];
        members.extend(own.map(|(name, value)| (name.to_owned(), value)));
        Ok(Value::from_pairs(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_tool_texts_in_conversations_can_be_mapped() {
        let call = ToolCall { id: "a".into(), name: "a".into(), arguments: r#"{"a": ["a"]}"#.into() };
        let broken = ToolCall { arguments: "a{".into(), ..call.clone() };
        let message = Message {
            role: "a".into(),
            content: "a".into(),
            reasoning: Some("a".into()),
            tool_calls: vec![call, broken],
            tool_call_id: Some("a".into()),
            name: Some("a".into()),
        };
        let conversation = Conversation {
            messages: vec![message],
            tools: vec![Json::new("{\"a\": \"a\"}").unwrap()],
            variables: vec![("a".into(), Json::new("\"a\"").unwrap())],
            bos_token: "a".into(),
            ..Conversation::default()
        };
        let mapped = conversation.map_texts(|text| text.replace('a', "b"));
        let text = serde_json::to_string(&mapped).unwrap();
        let expected = concat!(
            r#"{"messages":[{"role":"a","content":"b","reasoning":"b","#,
            r#""tool_calls":[{"id":"b","name":"b","arguments":"{\"b\": [\"b\"]}"},{"id":"b","name":"b","arguments":"b{"}],"#,
            r#""tool_call_id":"b","name":"b"}],"add_generation_prompt":false,"bos_token":"a","eos_token":"","#,
            r#""tools":["{\"b\": \"b\"}"],"variables":[["a","\"b\""]]}"#,
        );
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Conversation>(&text).unwrap(), mapped);
    }
}
