//! A parsed tool call, and the rule for its name.

use super::reading::Reading;

/// Maximum length of a tool's name, in bytes. OpenAI's interface allows 64.
const MAX_NAME: usize = 256;
/// Maximum depth of nested values. Tools need a few levels.
pub(super) const MAX_DEPTH: usize = 64;

/// A parsed tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedCall {
    /// The call's id, if it is not empty.
    pub id: Option<String>,
    /// The tool's name.
    pub name: String,
    /// The arguments, as JSON.
    pub arguments: String,
}

/// Returns whether a text is a valid name of a tool, because names in calls are parsed again.
pub fn is_name(name: &str) -> bool {
    let may_be_in = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '<' | '>' | '"' | '{' | '}');
    !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(may_be_in)
}

/// Returns a call, if its name is valid.
pub(super) fn parsed_call(id: Option<String>, name: &str, arguments: String) -> Reading<ParsedCall> {
    if !is_name(name) {
        return Reading::Wrong;
    }
    Reading::Whole(ParsedCall { id: id.filter(|id| !id.is_empty()), name: name.to_owned(), arguments })
}
