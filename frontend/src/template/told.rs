//! Tools told in words, for templates that know no tools, or no form of calls that is known.
//!
//! ```text
//! system  Be brief.            Be brief.
//!                              Call the tools that the answer needs, and write nothing else. …
//! ```
//!
//! The words follow the system message, or stand before what the user says first, where every template writes them. What tools say of themselves is a
//! value, as all that is said.

use super::{Conversation, Message};
use crate::chat::{Format, Word};

/// What a call's name and arguments are called.
const NAME: &str = "NAME";
const ARGUMENTS: &str = "ARGUMENTS";

impl Conversation {
    /// With its tools told, and how calls are written in this format; as it is, where that has no arguments in JSON.
    #[must_use]
    pub fn with_tools_told(&self, format: &Format) -> Conversation {
        let mut told = self.clone();
        let Some(frame) = format.call_frame(NAME) else { return told };
        let before = frame.before.iter().map(|word| match word {
            Word::Text(text) => text,
            Word::Number => "1",
        });
        let after = frame.after.iter().map(|text| &**text);
        let form: String = before.chain([ARGUMENTS]).chain(after).collect();
        let tools: Vec<&str> = self.tools.iter().map(|tool| tool.as_str()).collect();
        let words = format!(
            "Call the tools that the answer needs, and write nothing else. A call is written so, {ARGUMENTS} being an object as the tool's parameters say:\n\
             {form}\nTools:\n{}",
            tools.join("\n")
        );
        let place = |role: &str| self.messages.iter().position(|message| message.role == role);
        match (place("system").and_then(|at| told.messages.get_mut(at)), place("user")) {
            (Some(system), _) => system.content = [&*system.content, &*words].join("\n\n"),
            (None, Some(user)) => {
                let said = &mut told.messages[user].content;
                *said = [&*words, &**said].join("\n\n");
            }
            (None, None) => told.messages.insert(0, Message::new("user", words)),
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{Answer, Parser, format::find};
    use crate::template::Json;

    #[test]
    fn tools_are_told_in_the_form_that_is_read() {
        let tool = Json::new(r#"{"type": "function", "function": {"name": "look"}}"#).unwrap();
        let format = find("generic").unwrap();
        let told = |roles: &[&str]| {
            let messages = roles.iter().map(|role| Message::new(*role, "x")).collect();
            let conversation = Conversation { messages, tools: vec![tool.clone()], ..Conversation::default() };
            let told = conversation.with_tools_told(format).messages;
            told.into_iter().map(|message| (message.role, message.content)).collect::<Vec<_>>()
        };
        let words = "Call the tools that the answer needs, and write nothing else. A call is written so, ARGUMENTS being an object as the tool's parameters \
                     say:\n{\"tool_call\":\n{\"name\": \"NAME\", \"arguments\": ARGUMENTS}\n\n}\nTools:\n\
                     {\"type\": \"function\", \"function\": {\"name\": \"look\"}}";
        let of = |role: &str, text: String| (role.to_owned(), text);
        assert_eq!(told(&["user", "system"]), [of("user", "x".into()), of("system", format!("x\n\n{words}"))]);
        assert_eq!(told(&["assistant", "user"]), [of("assistant", "x".into()), of("user", format!("{words}\n\nx"))]);
        assert_eq!(told(&["assistant"]), [of("user", words.into()), of("assistant", "x".into())]);
        let (_, form) = words.split_once("say:\n").unwrap();
        let written = form.split_once("\nTools").unwrap().0.replace(ARGUMENTS, "{\"at\": {\"x\": 1\n}\n}");
        let (mut parser, mut answer) = (Parser::new(format, ""), Answer::default());
        answer.extend(parser.push(&written));
        answer.extend(parser.finish());
        let calls: Vec<_> = answer.calls.iter().map(|call| (&*call.name, &*call.arguments)).collect();
        assert_eq!((&*answer.content, &*calls), ("", &[("NAME", "{\"at\": {\"x\": 1\n}\n}")][..]));
    }
}
