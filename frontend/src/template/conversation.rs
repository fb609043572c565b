//! What a template is rendered with. Names of members are those that transformers gives to templates; messages are as in OpenAI's interface, but
//! that arguments of calls are objects for a template.

use minijinja::value::Value;
use serde::{Deserialize, Serialize};

use super::{Json, TemplateError};
use crate::chat::{Part, ToolCall};

/// One turn of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `developer`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// What was said, or what a tool gave.
    pub content: String,
    /// What the assistant thought before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// What the assistant wanted called.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Who speaks: a tool's name, or a user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into(), ..Message::default() }
    }

    fn value(&self, arguments: Arguments) -> Value {
        let mut members = vec![("role", Value::from(&*self.role)), ("content", Value::from(&*self.content))];
        // As Qwen, GLM, Kimi and DeepSeek, then as gpt-oss, and as Solar and Cohere call it.
        if let Some(reasoning) = &self.reasoning {
            members
                .extend(["reasoning_content", "thinking", "reasoning"].map(|name| (name, Value::from(&**reasoning))));
        }
        if !self.tool_calls.is_empty() {
            let calls = self.tool_calls.iter().map(|call| call_value(call, arguments));
            members.push(("tool_calls", calls.collect::<Vec<_>>().into()));
        }
        let named = [("tool_call_id", &self.tool_call_id), ("name", &self.name)];
        members.extend(named.into_iter().filter_map(|(name, value)| Some((name, Value::from(value.as_deref()?)))));
        Value::from_pairs(members)
    }
}

/// What arguments of calls are for a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arguments {
    /// Values, as transformers has them; those that are no JSON the text that they are.
    Values,
    /// Their JSON as text, which templates join to others' (DeepSeek-V3, functionary).
    Texts,
}

fn call_value(call: &ToolCall, arguments: Arguments) -> Value {
    let value = match arguments {
        Arguments::Values => Json::new(&*call.arguments).and_then(|json| json.value()).ok(),
        Arguments::Texts => None,
    };
    let arguments = value.unwrap_or_else(|| Value::from(&*call.arguments));
    let function = Value::from_pairs([("name", Value::from(&*call.name)), ("arguments", arguments)]);
    Value::from_pairs([("id", Value::from(&*call.id)), ("type", Value::from("function")), ("function", function)])
}

/// What a template is rendered with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversation {
    /// The turns so far.
    pub messages: Vec<Message>,
    /// Whether the prompt ends where the assistant is to begin.
    pub add_generation_prompt: bool,
    /// The part of the last message that the answer goes on with, which ends the prompt then. Its calls are none, and behind reasoning there is no content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continued: Option<Part>,
    /// The text of the BOS token, or nothing.
    pub bos_token: String,
    /// The text of the EOS token, or nothing.
    pub eos_token: String,
    /// What may be called: `{"type": "function", "function": {"name": …, "description": …, "parameters": …}}` each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Json>,
    /// Variables that templates of some models know: `enable_thinking`, `reasoning_effort`, `clear_thinking`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<(String, Json)>,
}

impl Conversation {
    /// With every text in it replaced that is not this program's own: all but roles, special tokens and names of variables.
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

    /// Bytes of all that others said.
    pub(super) fn text_bytes(&self) -> u64 {
        let message = |m: &Message| {
            let named = [&m.reasoning, &m.tool_call_id, &m.name].into_iter().flatten();
            let calls = m.tool_calls.iter().flat_map(|call| [&call.id, &call.name, &call.arguments]);
            [&m.role, &m.content].into_iter().chain(named).chain(calls).map(|text| text.len() as u64).sum::<u64>()
        };
        let json = self.tools.iter().chain(self.variables.iter().map(|(_, value)| value));
        self.messages.iter().map(message).sum::<u64>() + json.map(|json| json.as_str().len() as u64).sum::<u64>()
    }

    /// A template's variables.
    pub(super) fn value(&self, arguments: Arguments) -> Result<Value, TemplateError> {
        let tools: Vec<Value> = self.tools.iter().map(Json::value).collect::<Result<_, _>>()?;
        // Of two with one name the later counts: none replaces what stands here already.
        let mut members: Vec<(String, Value)> = Vec::new();
        for (name, value) in &self.variables {
            members.push((name.clone(), value.value()?));
        }
        let none = || Value::from(());
        let own = [
            ("messages", self.messages.iter().map(|message| message.value(arguments)).collect::<Vec<_>>().into()),
            ("add_generation_prompt", self.add_generation_prompt.into()),
            ("bos_token", Value::from(&*self.bos_token)),
            ("eos_token", Value::from(&*self.eos_token)),
            // transformers passes them always; templates ask whether they are none.
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
    fn all_texts_of_others_can_be_replaced() {
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
