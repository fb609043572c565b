//! Descriptions of tools as text in a message, for templates that have no tools, or that have a
//! format of calls that cannot be parsed.
//!
//! ```text
//! system  Be brief.            Be brief.
//!                              Call the tools that the answer needs, and write nothing else. …
//! ```
//!
//! The description is appended to the system message, or put before the first user message,
//! wherever the template prints these. Names and schemas of tools are untrusted values, like the
//! text of messages.

use serde_json::Value;

use super::{Conversation, Json, Message};
use crate::chat::{Format, Word, json};

/// Placeholders in the example of a call: for the name, and (next constant) for the arguments.
const NAME: &str = "NAME";
const ARGUMENTS: &str = "ARGUMENTS";

/// Whether the answer must call a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// A call is required.
    Call,
    /// A call is allowed.
    Maybe,
}

impl Demand {
    fn words(self) -> &'static str {
        match self {
            Demand::Call => "Call the tools that the answer needs, and write nothing else.",
            Demand::Maybe => "You may call tools. To call one, write the call and nothing behind it.",
        }
    }
}

/// Suffix that makes the names of tools unique, in a prompt in which they are searched.
const NAME_MARK: &str = "_7f3a91c4";

impl Conversation {
    /// Returns a copy of the conversation with a description of its tools and of the format of
    /// calls in a message. If the format's arguments are not JSON, the copy is unchanged.
    #[must_use]
    pub fn with_tools_in_prompt(&self, format: &Format, demand: Demand) -> Conversation {
        let mut described = self.clone();
        let Some(form) = written_call(format, NAME, ARGUMENTS) else { return described };
        let tools: Vec<&str> = self.tools.iter().map(|tool| tool.as_str()).collect();
        let words = format!(
            "{} A call is written so, {ARGUMENTS} being an object as the tool's parameters say:\n{form}\nTools:\n{}",
            demand.words(),
            tools.join("\n")
        );
        let place = |role: &str| self.messages.iter().position(|message| message.role == role);
        match (place("system").and_then(|at| described.messages.get_mut(at)), place("user")) {
            (Some(system), _) => system.content = [&*system.content, &*words].join("\n\n"),
            (None, Some(user)) => {
                let said = &mut described.messages[user].content;
                *said = [&*words, &**said].join("\n\n");
            }
            (None, None) => described.messages.insert(0, Message::new("user", words)),
        }
        described
    }

    /// Returns the conversation with calls and results as text, for templates that support neither.
    /// Calls are written in the format `format`, results as messages of the user. Consecutive
    /// results become one message, as such templates require alternating roles.
    #[must_use]
    pub fn with_calls_as_text(&self, format: &Format) -> Conversation {
        let mut messages: Vec<Message> = Vec::with_capacity(self.messages.len());
        let mut is_result = false;
        for message in &self.messages {
            let mut message = message.clone();
            for call in std::mem::take(&mut message.tool_calls) {
                let text = written_call(format, &call.name, &call.arguments).unwrap_or_default();
                let parts = [&*message.content, &*text].into_iter().filter(|part| !part.is_empty());
                message.content = parts.collect::<Vec<_>>().join("\n");
            }
            let before = std::mem::replace(&mut is_result, message.role == "tool");
            if is_result {
                let name = message.name.take().or_else(|| message.tool_call_id.take()).unwrap_or_default();
                message = Message::new("user", format!("Result of {name}:\n{}", message.content));
                if let Some(last) = messages.last_mut().filter(|_| before) {
                    last.content = [&*last.content, &*message.content].join("\n\n");
                    continue;
                }
            }
            messages.push(message);
        }
        Conversation { messages, tools: Vec::new(), ..self.clone() }
    }

    /// Returns whether a prompt that a template rendered from this conversation presents all tools.
    /// If tool names also occur in the template, in messages or in other tools, the prompt does not
    /// prove this. `render` is then called with a short conversation whose tools have unique names.
    pub fn presents_tools(
        &self,
        source: &str,
        prompt: &str,
        render: impl FnOnce(&Conversation) -> Option<String>,
    ) -> bool {
        let names: Vec<String> = self.tools.iter().filter_map(tool_name).collect();
        let has = |text: &str, name: &str| text.contains(name) || text.contains(json::string(name).trim_matches('"'));
        if !names.iter().all(|name| has(prompt, name)) {
            return false;
        }
        let in_tools = |name: &String| self.tools.iter().filter(|tool| tool.as_str().contains(&**name)).count();
        let mut is_elsewhere = names.iter().any(|name| source.contains(&**name) || in_tools(name) > 1);
        // This copy has no tools, so names found in it are from messages.
        let said = Conversation { tools: Vec::new(), ..self.clone() };
        let _ = said.map_texts(|text| {
            is_elsewhere |= names.iter().any(|name| text.contains(&**name));
            String::new()
        });
        if !is_elsewhere {
            return true;
        }
        let mut short = self.clone();
        let first = self.messages.iter().position(|message| message.role == "user");
        short.messages.truncate(first.map_or(self.messages.len(), |first| first + 1));
        short.tools = self.tools.iter().map(|tool| rename_tool(tool).unwrap_or_else(|| tool.clone())).collect();
        (short.add_generation_prompt, short.continued) = (true, None);
        let marked = names.iter().map(|name| [name, NAME_MARK].concat());
        render(&short).is_some_and(|prompt| marked.into_iter().all(|name| has(&prompt, &name)))
    }
}

/// Returns a call in the notation of a format; `None` if the format's arguments are not JSON.
fn written_call(format: &Format, name: &str, arguments: &str) -> Option<String> {
    let frame = format.call_frame(name)?;
    let before = frame.before.iter().map(|word| match word {
        Word::Text(text) => text,
        Word::Number => "1",
    });
    let after = frame.after.iter().map(|text| &**text);
    Some(before.chain([arguments]).chain(after).collect())
}

/// Returns the name of a tool.
fn tool_name(tool: &Json) -> Option<String> {
    let tool: Value = serde_json::from_str(tool.as_str()).ok()?;
    Some(tool.get("function").unwrap_or(&tool)["name"].as_str()?.to_owned())
}

/// Returns a copy of a tool with the mark appended to its name.
fn rename_tool(tool: &Json) -> Option<Json> {
    let mut tool: Value = serde_json::from_str(tool.as_str()).ok()?;
    let name = tool.pointer_mut("/function/name")?;
    *name = [name.as_str()?, NAME_MARK].concat().into();
    Json::new(tool.to_string()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::format::{FORMATS, find};
    use crate::chat::{Answer, Parser, ToolCall};
    use crate::template::ChatTemplate;

    #[test]
    fn tool_descriptions_use_the_parsed_call_form() {
        let tool = Json::new(r#"{"type": "function", "function": {"name": "look"}}"#).unwrap();
        let format = find("generic").unwrap();
        let described = |roles: &[&str]| {
            let messages = roles.iter().map(|role| Message::new(*role, "x")).collect();
            let conversation = Conversation { messages, tools: vec![tool.clone()], ..Conversation::default() };
            let described = conversation.with_tools_in_prompt(format, Demand::Call).messages;
            described.into_iter().map(|message| (message.role, message.content)).collect::<Vec<_>>()
        };
        let words = "Call the tools that the answer needs, and write nothing else. A call is written so, ARGUMENTS being an object as the tool's parameters \
                     say:\n{\"tool_call\":\n{\"name\": \"NAME\", \"arguments\": ARGUMENTS}\n\n}\nTools:\n\
                     {\"type\": \"function\", \"function\": {\"name\": \"look\"}}";
        let of = |role: &str, text: String| (role.to_owned(), text);
        assert_eq!(described(&["user", "system"]), [of("user", "x".into()), of("system", format!("x\n\n{words}"))]);
        assert_eq!(
            described(&["assistant", "user"]),
            [of("assistant", "x".into()), of("user", format!("{words}\n\nx"))]
        );
        assert_eq!(described(&["assistant"]), [of("user", words.into()), of("assistant", "x".into())]);
        let (_, form) = words.split_once("say:\n").unwrap();
        let written = form.split_once("\nTools").unwrap().0.replace(ARGUMENTS, "{\"at\": {\"x\": 1\n}\n}");
        let (mut parser, mut answer) = (Parser::new(format, ""), Answer::default());
        answer.extend(parser.push(&written));
        answer.extend(parser.finish());
        let calls: Vec<_> = answer.calls.iter().map(|call| (&*call.name, &*call.arguments)).collect();
        assert_eq!((&*answer.content, &*calls), ("", &[("NAME", "{\"at\": {\"x\": 1\n}\n}")][..]));
    }

    fn tools(names: &[&str]) -> Vec<Json> {
        let tool =
            |name: &&str| Json::new(format!(r#"{{"type": "function", "function": {{"name": "{name}"}}}}"#)).unwrap();
        names.iter().map(tool).collect()
    }

    /// Tests whether a template presents the tools `names` in a conversation with the user message
    /// `said`.
    fn presents(source: &str, names: &[&str], said: &str) -> bool {
        let template = ChatTemplate::from_source(source).unwrap();
        let messages = vec![Message::new("user", said)];
        let conversation = Conversation { messages, tools: tools(names), ..Conversation::default() };
        let prompt = template.render(&conversation).unwrap();
        conversation.presents_tools(source, &prompt, |short| template.render(short).ok())
    }

    #[test]
    fn templates_that_omit_tools_are_detected() {
        let said = "{% for m in messages %}{{ m.content }}{% endfor %}";
        let all = format!("{{% for t in tools %}}{{{{ t | tojson }}}}{{% endfor %}}{said}");
        let first = format!("{{{{ tools[0].function.name if tools }}}}{said}");
        for names in [&["look_up"][..], &["f"], &["look_up", "look"], &["m.content"]] {
            for text in ["Hi", "Call look_up, then f", "look"] {
                assert!(presents(&all, names, text), "{names:?}: {text}");
                assert!(!presents(said, names, text), "{names:?}: {text}");
                assert_eq!(presents(&first, names, text), names.len() == 1, "{names:?}: {text}");
            }
        }
        // `tojson` writes this name with escapes.
        assert!(presents(&all, &["sch\u{f6}n"], "Hi") && !presents(said, &["sch\u{f6}n"], "Hi"));
    }

    #[test]
    fn calls_and_results_can_be_text() {
        let call = |name: &str| ToolCall { id: format!("id_{name}"), name: name.into(), arguments: "{}".into() };
        let result = |name: Option<&str>, id: &str| Message {
            name: name.map(str::to_owned),
            tool_call_id: Some(id.to_owned()),
            ..Message::new("tool", "7")
        };
        let calls = Message { tool_calls: vec![call("f"), call("g")], ..Message::new("assistant", "Wait.") };
        let messages = vec![Message::new("user", "x"), calls, result(Some("f"), "id_f"), result(None, "id_g")];
        let described = Conversation { messages, ..Conversation::default() }.with_calls_as_text(find("qwen3").unwrap());
        let said: Vec<_> = described.messages.iter().map(|message| (&*message.role, &*message.content)).collect();
        let written = |name: &str| format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{}}}}\n</tool_call>");
        let calls = format!("Wait.\n{}\n{}", written("f"), written("g"));
        assert_eq!(said, [("user", "x"), ("assistant", &*calls), ("user", "Result of f:\n7\n\nResult of id_g:\n7")]);
        assert!(described.messages.iter().all(|message| message.tool_calls.is_empty()));
    }

    /// Tests that a prompt can describe the calls of each format without headers.
    #[test]
    fn tools_are_described_in_formats_without_headers() {
        let messages = vec![Message::new("user", "Hi")];
        let conversation = Conversation { messages, tools: tools(&["look_up"]), ..Conversation::default() };
        for format in FORMATS {
            let described = conversation.with_tools_in_prompt(format.for_calls(), Demand::Maybe);
            let is_told = described.messages[0].content.contains("look_up");
            assert_eq!(is_told, !format.has_headers(), "{}", format.name);
        }
    }
}
