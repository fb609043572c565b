//! Grammar of a whole answer, from the constraint on one part of it: JSON after reasoning, or tool
//! calls in the model's chat format.
//!
//! ```text
//! start: (thinking)? answer
//! thinking: "<think>" text "</think>"
//! answer: calls | content
//! calls: "<tool_call>" "\n{\"name\": \"look\", \"arguments\": " schema0 "}\n" "</tool_call>"
//! content: schema1
//! ```

use std::fmt::Write;

use crate::model::Constraint;
use ixc_generate::chat::ChatPrompt;
use ixc_grammar::{Frame as GrammarFrame, GrammarSource, Mark, ReasoningMarks, regex_literal};
use ixc_text::chat::{Format, Frame, Part, Thinking, Word};
use ixc_text::tokenizer::Tokenizer;
use serde_json::Value;

/// Rule for optional white space between the parts of an answer.
const SPACE: &str = "(/[ \\n]{1,4}/)?";

/// Regular expression of the number of a call.
const NUMBER: &str = "/[0-9]{1,4}/";

/// Grammar of a whole answer, and the beginning of the answer in the prompt.
pub struct AnswerGrammar {
    /// Grammar of the whole answer.
    pub source: GrammarSource,
    /// Beginning of the answer, which the prompt already contains.
    pub prefix: String,
}

/// Returns the grammar of a whole answer. `prompt` is the prompt of a conversation, if there is
/// one.
///
/// # Errors
/// Returns an error text if the chat format does not support answers with this constraint.
pub fn answer_grammar(
    constraint: &Constraint,
    format: &Format,
    prompt: Option<&ChatPrompt>,
    tokenizer: &Tokenizer,
) -> Result<AnswerGrammar, String> {
    let format_name = format.name;
    if format.has_headers() && !matches!(constraint, Constraint::Text(_)) {
        return Err(format!("a constrained answer is not supported in the chat format {format_name}"));
    }
    let mut lark = String::new();
    let mut rule = |name: &str, body: &str| {
        // Writing to a text never fails.
        let _ = writeln!(lark, "{name}: {body}");
    };
    let prefix = prompt.and_then(|prompt| prompt.prefix.as_ref());
    let (mut schemas, mut tool_names, mut begin) = (Vec::new(), Vec::new(), ReasoningMarks::default());
    let thinking = match (prefix.map(|prefix| prefix.part), format.thinking(prompt.map_or("", |prompt| &prompt.text))) {
        // Reasoning precedes content. So an answer that continues content cannot contain any more
        // reasoning.
        (Some(Some(Part::Content)), _) => format!("{SPACE} "),
        (Some(None), _) if !matches!(constraint, Constraint::Text(_)) => {
            return Err("the answer continues the last message, which has begun a tool call, so its format cannot be constrained".to_owned());
        }
        (_, None) => String::new(),
        (continued, Some(Thinking { begun, open, close })) => {
            let begun = begun || continued.is_some();
            match control(tokenizer, close) {
                Some(token) => rule("thinking", &format!("(/(?s:.+)/)? <[{token}]>")),
                None => {
                    // The shortest text that ends with `close`.
                    let end = escape_regex(close);
                    rule("THOUGHTS", &format!("/(?s:.*){end}/ & ~/(?s:.*){end}(?s:.+)/"));
                    rule("thinking", "THOUGHTS");
                }
            }
            begin =
                ReasoningMarks { open: (!begun).then(|| mark(tokenizer, open)), close: Some(mark(tokenizer, close)) };
            if begun { format!("thinking {SPACE} ") } else { format!("({} thinking {SPACE})? ", word(tokenizer, open)) }
        }
    };
    match constraint {
        // A grammar of the text does not apply to the beginning that the prompt contains.
        Constraint::Text(source) => return Ok(AnswerGrammar { source: source.clone(), prefix: String::new() }),
        Constraint::Json(_) | Constraint::Regex(_) => {
            rule("answer", &content(constraint, &mut schemas));
            rule("start", &format!("{thinking}answer"));
        }
        Constraint::Calls { tools, several, otherwise } => {
            let mut frames = Vec::new();
            for (i, (name, schema)) in tools.iter().enumerate() {
                let frame = format.call_frame(name);
                let frame = frame
                    .ok_or_else(|| format!("required tool calls are not supported in the chat format {format_name}"))?;
                let Frame { before, after, .. } = &frame;
                let before = before.iter().map(|part| match part {
                    Word::Text(text) => word(tokenizer, text),
                    Word::Number => NUMBER.to_owned(),
                });
                let before = before.collect::<Vec<_>>().join(" ");
                rule(&format!("call{i}"), &format!("{before} schema{i} {}", words(tokenizer, after)));
                schemas.push(schema.clone());
                tool_names.push(name.clone());
                frames.push(frame);
            }
            let Some(Frame { open, close, several: format_allows_several, .. }) = frames.first() else {
                return Err("the request requires a tool call, but names no tool".to_owned());
            };
            let any = (0..tools.len()).map(|i| format!("call{i}")).collect::<Vec<_>>().join(" | ");
            rule("call", &any);
            let more = if *several && *format_allows_several { format!("({SPACE} call)*") } else { String::new() };
            rule("calls", &format!("{} call {more} {}", words(tokenizer, open), words(tokenizer, close)));
            match otherwise {
                Some(otherwise) => {
                    rule("answer", &content(otherwise, &mut schemas));
                    rule("start", &format!("{thinking}(calls | answer)"));
                }
                None => rule("start", &format!("{thinking}calls")),
            }
        }
    }
    // If calls are required, they follow the given content, so the grammar does not include this
    // content.
    let prefix = prefix.filter(|prefix| prefix.part == Some(Part::Content) && !constraint.must_call());
    let prefix = prefix.map_or_else(String::new, |prefix| prefix.content.clone());
    Ok(AnswerGrammar {
        source: GrammarSource::Framed(GrammarFrame { lark, schemas, tools: tool_names, begin }),
        prefix,
    })
}

/// Returns the rule for content under this constraint, and adds its schema to the grammar's
/// schemas.
fn content(constraint: &Constraint, schemas: &mut Vec<Value>) -> String {
    match constraint {
        Constraint::Json(schema) => {
            schemas.push(schema.clone());
            format!("schema{}", schemas.len() - 1)
        }
        Constraint::Regex(regex) => regex_literal(regex),
        // `answer_grammar` handles these two constraints.
        Constraint::Text(_) | Constraint::Calls { .. } => "/(?s:.*)/".to_owned(),
    }
}

/// Returns the part of a rule that matches these texts in sequence.
fn words(tokenizer: &Tokenizer, texts: &[String]) -> String {
    texts.iter().map(|text| word(tokenizer, text)).collect::<Vec<_>>().join(" ")
}

/// Returns the part of a rule that matches a text: its control token, if it is one, or a literal.
fn word(tokenizer: &Tokenizer, text: &str) -> String {
    control(tokenizer, text).map_or_else(|| Value::from(text).to_string(), |token| format!("<[{token}]>"))
}

/// Returns a boundary of reasoning: a control token, or a text if there is no such token.
fn mark(tokenizer: &Tokenizer, text: &str) -> Mark {
    control(tokenizer, text).map_or_else(|| Mark::Text(text.to_owned()), Mark::Token)
}

/// Returns the control token with this name.
fn control(tokenizer: &Tokenizer, text: &str) -> Option<u32> {
    match tokenizer.encode(text, true).as_deref() {
        Ok(&[token]) if !tokenizer.is_text(token) => Some(token),
        _ => None,
    }
}

/// Returns a regular expression that matches exactly this text.
fn escape_regex(text: &str) -> String {
    let mut all = String::new();
    for c in text.chars() {
        let _ = write!(all, "\\x{{{:x}}}", u32::from(c));
    }
    all
}
