//! Parsed tool call, and the rule for valid tool names.

use super::reading::Reading;

/// Maximum length of a tool's name, in bytes. OpenAI's interface allows 64.
const MAX_NAME: usize = 256;
/// Maximum depth of nested values in a call's arguments. Tools need a few levels.
pub(super) const MAX_DEPTH: usize = 64;

/// Tool call that was read from the model's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedCall {
    /// Id of the call, if the model wrote one that is not empty.
    pub id: Option<String>,
    /// Name of the tool.
    pub name: String,
    /// Arguments as JSON.
    pub arguments: String,
}

/// Returns whether a text is a valid name of a tool. Names may be parsed again later, so their
/// characters are limited.
pub fn is_name(name: &str) -> bool {
    let may_be_in = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '<' | '>' | '"' | '{' | '}');
    !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(may_be_in)
}

/// Returns a call; [`Reading::Wrong`] if its name is invalid.
pub(super) fn parsed_call(id: Option<String>, name: &str, arguments: String) -> Reading<ParsedCall> {
    if !is_name(name) {
        return Reading::Wrong;
    }
    Reading::Whole(ParsedCall { id: id.filter(|id| !id.is_empty()), name: name.to_owned(), arguments })
}
