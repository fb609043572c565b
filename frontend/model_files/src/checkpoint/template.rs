//! Reader of a folder's chat template, which may be in one of several files.
//!
//! | source | content |
//! | --- | --- |
//! | `chat_template.jinja` | the default template |
//! | `tokenizer_config.json`, `chat_template` | one template, or several templates with names |
//! | `chat_template.json`, `chat_template` | like the previous row, in multimodal models |
//! | `additional_chat_templates/default.jinja` | the default template, in a folder of several |
//!
//! The first source that exists is used. If it has several templates, the one named `default` is
//! used, or the first if none has this name.

use std::path::Path;

use serde_json::Value as Json;

use super::config;
use super::error::CheckpointError;

/// Maximum length of a template in bytes.
const MAX_BYTES: u64 = 16 << 20;
/// Name of the template that serves all purposes.
const DEFAULT: &str = "default";
/// Key of the templates in JSON files.
const KEY: &str = "chat_template";

/// Returns the chat template of a folder. `tokenizer_config` is the content of its
/// `tokenizer_config.json`.
pub(super) fn template(folder: &Path, tokenizer_config: &Json) -> Result<Option<String>, CheckpointError> {
    if let Some(text) = file(&folder.join("chat_template.jinja"))? {
        return Ok(Some(text));
    }
    if let Some(text) = tokenizer_config.get(KEY).and_then(default_template) {
        return Ok(Some(text));
    }
    let beside = config::read_optional(&folder.join("chat_template.json"))?.unwrap_or(Json::Null);
    if let Some(text) = beside.get(KEY).and_then(default_template) {
        return Ok(Some(text));
    }
    file(&folder.join("additional_chat_templates").join(format!("{DEFAULT}.jinja")))
}

fn file(path: &Path) -> Result<Option<String>, CheckpointError> {
    Ok(if path.is_file() { Some(ixc_files::read_text(path, MAX_BYTES)?) } else { None })
}

/// Returns the default template from a JSON value, which is a string or a list of named templates.
fn default_template(value: &Json) -> Option<String> {
    let text = match value {
        Json::String(_) => Some(value),
        Json::Array(templates) => {
            let is_default = |template: &&Json| template.get("name").and_then(Json::as_str) == Some(DEFAULT);
            templates.iter().find(is_default).or(templates.first()).and_then(|template| template.get("template"))
        }
        Json::Object(templates) => templates.get(DEFAULT).or_else(|| templates.values().next()),
        Json::Null | Json::Bool(_) | Json::Number(_) => None,
    };
    text.and_then(Json::as_str).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn default_template_is_selected_from_several() {
        let named = |name: &str| json!({"name": name, "template": format!("of {name}")});
        for (value, expected) in [
            (json!("text"), Some("text")),
            (json!([named("tool_use"), named("default")]), Some("of default")),
            (json!([named("rag"), named("tool_use")]), Some("of rag")),
            (json!({"tool_use": "a", "default": "b"}), Some("b")),
            (json!({"tool_use": "a"}), Some("a")),
            (json!([]), None),
            (json!([7]), None),
            (json!(7), None),
            (json!(null), None),
        ] {
            assert_eq!(default_template(&value).as_deref(), expected, "{value}");
        }
    }
}
