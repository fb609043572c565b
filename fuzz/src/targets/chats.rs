//! Targets for chat templates, and for models' answers in chat formats.

use ixc_text::chat::format::FORMATS;
use ixc_text::chat::{Answer, Parser};
use ixc_text::template::known::KNOWN;
use ixc_text::template::{ChatTemplate, Conversation, Json, Message};

use crate::{Outcome, helper};

/// Dictionary of chat templates.
pub const DICTIONARY: &[&str] = &[
    "{%",
    "%}",
    "{{",
    "}}",
    "{%- if ",
    "{% endif %}",
    "{% for m in messages %}",
    "{% endfor %}",
    "{% set x = ",
    "{% macro f(x) %}",
    "{% endmacro %}",
    "namespace(a=1)",
    "messages",
    "message.content",
    "tools",
    "raise_exception(",
    "strftime_now(",
    "| tojson",
    "| length",
    "| join(",
    "| trim",
    "| map(attribute='role')",
    "| selectattr(",
    "range(",
    "loop.index0",
    "[::-1]",
    ".split(",
    ".strip()",
    ".items()",
    "is defined",
    "not in",
    " ~ ",
    " * ",
    "'",
    "99999999",
    "**",
    "//",
    "recursive",
    "{% generation %}",
    "{% break %}",
    "add_generation_prompt",
    "bos_token",
];

/// Dictionary of answers: markers of all chat formats, and of JSON.
pub const MARKERS: &[&str] = &[
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "{\"name\": \"",
    "\", \"arguments\": {",
    "}}",
    "}",
    "{",
    "[",
    "]",
    "\"",
    "\\",
    "\\u00e9",
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|channel|>analysis<|message|>",
    "<|end|>",
    "<|start|>assistant",
    "<|call|>",
    "<|message|>",
    "<|python_tag|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<|tool_calls_section_begin|>",
    "functions.f:0",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<minimax:tool_call>",
    "<invoke name=\"",
    "call_1",
    "(",
    ")",
    "=",
    ",",
    "None",
    "True",
    "```json\n",
    "```",
    "\n",
    " ",
];

fn conversation() -> Conversation {
    let tool = r#"{"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}"#;
    Conversation {
        messages: vec![
            Message::new("system", "Be short."),
            Message::new("user", "Hello <s> {{ 1 }}"),
            Message { reasoning: Some("why".to_owned()), ..Message::new("assistant", "Hi") },
            Message::new("user", "And é?"),
        ],
        add_generation_prompt: true,
        bos_token: "<s>".to_owned(),
        eos_token: "</s>".to_owned(),
        tools: Json::new(tool).into_iter().collect(),
        ..Conversation::default()
    }
}

/// Renders a template in a helper process, as the server does.
pub fn template(input: &[u8]) -> Outcome {
    let Ok(source) = std::str::from_utf8(input) else { return Outcome::refused("is not UTF-8") };
    let rendered = ChatTemplate::from_source(source)
        .and_then(|template| template.render_isolated(&helper::program(), &conversation()));
    match rendered {
        Ok(text) => Outcome::Accepted(format!("{} words", text.split_whitespace().count().min(40))),
        Err(error) => {
            let class = error.class();
            Outcome::refused_as(error, class)
        }
    }
}

/// Returns the built-in templates.
pub fn templates() -> Vec<Vec<u8>> {
    KNOWN.iter().map(|known| known.template().source().as_bytes().to_vec()).collect()
}

/// Parses an answer in one of the chat formats; the first byte is the number of the format. Checks
/// that any division of the text into pieces gives the same answer.
pub fn parser(input: &[u8]) -> Outcome {
    let Some((&number, text)) = input.split_first() else { return Outcome::refused("is empty") };
    let format = &FORMATS[number as usize % FORMATS.len()];
    let text = String::from_utf8_lossy(text);
    let parse = |pieces: &mut dyn Iterator<Item = &str>, is_cut: bool| {
        let (mut parser, mut answer) = (Parser::new(format, ""), Answer::default());
        for piece in pieces {
            answer.extend(parser.push(piece));
        }
        answer.extend(if is_cut { parser.finish_cut() } else { parser.finish() });
        answer
    };
    for is_cut in [false, true] {
        let whole = parse(&mut std::iter::once(&*text), is_cut);
        let mut by_character = text.split_inclusive(|_: char| true);
        assert_eq!(parse(&mut by_character, is_cut), whole, "{} by character, cut {is_cut}: {text:?}", format.name);
        let mut by_word = text.split_inclusive([' ', '>', '"']);
        assert_eq!(parse(&mut by_word, is_cut), whole, "{} by word, cut {is_cut}: {text:?}", format.name);
        let written = whole.content.len() + whole.reasoning.len();
        let calls: usize = whole.calls.iter().map(|call| call.arguments.len()).sum();
        // The parser may write each byte of the text as a JSON escape of at most six bytes.
        assert!(written + calls <= 6 * text.len() + 64, "{}: {written} and {calls} bytes of {text:?}", format.name);
    }
    let answer = parse(&mut std::iter::once(&*text), false);
    let parts = [answer.reasoning.is_empty(), answer.content.is_empty()];
    Outcome::Accepted(format!("`{}` {parts:?} {:?}", format.name, answer.calls.len().min(3)) + format.name)
}

/// Returns an answer in each chat format, which consists of text and a tool call in JSON.
pub fn answers() -> Vec<Vec<u8>> {
    let texts = [
        "<think>why</think>Hello <tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"x\"}}\n</tool_call>",
        "<tool_call>look\n<arg_key>at</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
        "[TOOL_CALLS][{\"name\": \"look\", \"arguments\": {\"at\": \"x\\u00e9\"}}]",
        "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{\"at\": 1}<|call|>",
        "<tool_call>\n<function=look>\n<parameter=at>\nx\n</parameter>\n</function>\n</tool_call>",
        "[look(at=\"x\", n=3)]",
    ];
    let numbers = 0..FORMATS.len();
    numbers.flat_map(|number| texts.map(|text| [&[number as u8], text.as_bytes()].concat())).collect()
}
