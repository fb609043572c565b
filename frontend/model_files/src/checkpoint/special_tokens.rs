//! Reader of the tokens with a role, and of the tokens added at the start and the end of a text.
//! They are read from `tokenizer.json`, `tokenizer_config.json`, `config.json` and
//! `generation_config.json`. The order of precedence is that of llama.cpp's converter (gguf-py,
//! `SpecialVocab`).
//!
//! | source | adds BOS at the start | adds EOS at the end |
//! | --- | --- | --- |
//! | a processor `ByteLevel` | if another processor adds it | if another processor adds it |
//! | `RobertaProcessing`, `BertProcessing` | yes | yes |
//! | `TemplateProcessing` | if its first item is BOS | if its last item is a special token |
//! | no processor | `add_bos_token` | `add_eos_token` |
//! | no source | no key is written, so the tokenizer's default applies | likewise |
//!
//! If the last item of a template is a special token, that token becomes EOS.

use std::path::Path;

use serde_json::Value as Json;

use super::config::{self, Config};
use super::error::CheckpointError;
use super::tokenizer_json::{kind, sequence};

/// Roles of a folder's tokens.
pub(super) struct Roles {
    /// Token ids, each with its GGUF key.
    pub ids: Vec<(&'static str, u32)>,
    /// Whether BOS is added at the start of a text, if a source determines this.
    pub add_bos: Option<bool>,
    /// Whether EOS is added at the end of a text, if a source determines this.
    pub add_eos: Option<bool>,
}

/// Tokens at the start and the end of a text, as strings.
#[derive(Default)]
struct SequenceEnds<'j> {
    bos: Option<&'j str>,
    cls: Option<&'j str>,
    eos: Option<&'j str>,
    /// EOS that the configuration states, if a template ends with another token.
    other_eos: Option<&'j str>,
    add_bos: Option<bool>,
    add_eos: Option<bool>,
}

/// Returns the string of the token under `key` in `tokenizer_config.json`.
fn token_text<'j>(tokenizer_config: &'j Json, key: &str) -> Option<&'j str> {
    let token = tokenizer_config.get(key)?;
    token.as_str().or_else(|| token.get("content")?.as_str()).filter(|text| !text.is_empty())
}

impl<'j> SequenceEnds<'j> {
    fn read(tokenizer_config: &'j Json, post_processor: &'j Json) -> SequenceEnds<'j> {
        let mut ends = SequenceEnds {
            bos: token_text(tokenizer_config, "bos_token").or_else(|| token_text(tokenizer_config, "cls_token")),
            cls: token_text(tokenizer_config, "cls_token"),
            eos: token_text(tokenizer_config, "eos_token").or_else(|| token_text(tokenizer_config, "sep_token")),
            ..SequenceEnds::default()
        };
        for part in sequence(post_processor) {
            match kind(part) {
                "ByteLevel" => {
                    ends.add_bos.get_or_insert(false);
                    ends.add_eos.get_or_insert(false);
                }
                "RobertaProcessing" | "BertProcessing" => (ends.add_bos, ends.add_eos) = (Some(true), Some(true)),
                "TemplateProcessing" => ends.template(part),
                _ => {}
            }
        }
        let flag = |key: &str| tokenizer_config.get(key).and_then(Json::as_bool);
        ends.add_bos = ends.add_bos.or_else(|| flag("add_bos_token"));
        ends.add_eos = ends.add_eos.or_else(|| flag("add_eos_token"));
        ends
    }

    /// Reads the tokens that a template puts around a text.
    fn template(&mut self, part: &'j Json) {
        let single = part.get("single").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
        let ([first, .., last], special) = (single, |part: &'j Json| part.get("SpecialToken")?.get("id")?.as_str())
        else {
            return;
        };
        if let Some(first) = special(first) {
            let bos = *self.bos.get_or_insert(first);
            self.add_bos = Some(first == bos || self.cls.is_none_or(|cls| cls == first));
        }
        if let Some(last) = special(last) {
            self.other_eos = self.eos.replace(last).filter(|other| *other != last);
            self.add_eos = Some(true);
        }
    }
}

/// Returns the tokens of a folder that have a role. `tokenizer_config` is the content of its
/// `tokenizer_config.json`. Token ids must be below `count`; others are ignored.
pub(super) fn roles(
    folder: &Path,
    config: &Config,
    tokenizer_config: &Json,
    post_processor: &Json,
    id_of: &dyn Fn(&str) -> Option<u32>,
    count: u64,
) -> Result<Roles, CheckpointError> {
    let generation = config::read_optional(&folder.join("generation_config.json"))?.unwrap_or(Json::Null);
    let ends = SequenceEnds::read(tokenizer_config, post_processor);
    let numbers = |value: Option<&Json>| -> Vec<u32> {
        let number = |value: &Json| value.as_u64().filter(|id| *id < count).and_then(|id| u32::try_from(id).ok());
        match value {
            Some(Json::Array(ids)) => ids.iter().filter_map(number).collect(),
            Some(value) => number(value).into_iter().collect(),
            None => Vec::new(),
        }
    };
    let first = |key: &str| {
        let own = numbers(config.value(key));
        own.into_iter().chain(numbers(generation.get(key))).next()
    };
    let mut ids = Vec::new();
    for (key, token, number) in [
        ("bos_token_id", ends.bos, "bos_token_id"),
        ("eos_token_id", ends.eos, "eos_token_id"),
        ("unknown_token_id", token_text(tokenizer_config, "unk_token"), ""),
        ("padding_token_id", token_text(tokenizer_config, "pad_token"), "pad_token_id"),
    ] {
        ids.extend(token.and_then(id_of).or_else(|| first(number)).map(|id| (key, id)));
    }
    // The tokens that end an answer, except EOS, are put under other keys.
    let eos = ids.iter().find(|(key, _)| *key == "eos_token_id").map(|(_, id)| *id);
    let mut others: Vec<u32> = ends.other_eos.and_then(id_of).into_iter().collect();
    // `generation_config.json` takes precedence. In `config.json`, only a list is used, as a single
    // id there is often a default that the tokenizer lacks.
    let tokenizer_config = generation.get("eos_token_id").filter(|ends| !ends.is_null());
    let listed = config.value("eos_token_id").filter(|ends| ends.is_array());
    for id in numbers(tokenizer_config.or(listed)) {
        if !others.contains(&id) {
            others.push(id);
        }
    }
    others.retain(|id| Some(*id) != eos);
    ids.extend(["eot_token_id", "eom_token_id"].into_iter().zip(others));
    Ok(Roles { ids, add_bos: ends.add_bos, add_eos: ends.add_eos })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns BOS, EOS, and whether they are added.
    fn ends_and_flags<'j>(
        tokenizer_config: &'j Json,
        processor: &'j Json,
    ) -> (Option<&'j str>, Option<&'j str>, Option<bool>, Option<bool>) {
        let SequenceEnds { bos, eos, add_bos, add_eos, .. } = SequenceEnds::read(tokenizer_config, processor);
        (bos, eos, add_bos, add_eos)
    }

    #[test]
    fn processor_overrides_flags_and_flags_override_defaults() {
        let tokenizer_config =
            json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": true, "add_eos_token": true});
        let bytes = json!({"type": "ByteLevel"});
        let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let template = |single: &[Json]| json!({"type": "TemplateProcessing", "single": single});
        let all = |parts: &[Json]| json!({"type": "Sequence", "processors": parts});
        let (b, e) = (Some("<s>"), Some("</s>"));
        assert_eq!(ends_and_flags(&tokenizer_config, &Json::Null), (b, e, Some(true), Some(true)));
        assert_eq!(ends_and_flags(&tokenizer_config, &bytes), (b, e, Some(false), Some(false)));
        let begins = template(&[special("<s>"), text.clone()]);
        // The flags apply where no template determines the start or end of a text, unless
        // `ByteLevel` disables them.
        assert_eq!(ends_and_flags(&tokenizer_config, &begins), (b, e, Some(true), Some(true)));
        assert_eq!(
            ends_and_flags(&tokenizer_config, &all(&[bytes.clone(), begins.clone()])),
            (b, e, Some(true), Some(false))
        );
        assert_eq!(ends_and_flags(&tokenizer_config, &all(&[begins.clone(), bytes])), (b, e, Some(true), Some(false)));
        // A template that ends with another token makes it EOS.
        let ends = template(&[special("<s>"), text.clone(), special("<end>")]);
        assert_eq!(ends_and_flags(&tokenizer_config, &ends), (b, Some("<end>"), Some(true), Some(true)));
        assert_eq!(SequenceEnds::read(&tokenizer_config, &ends).other_eos, Some("</s>"));
        // The configuration states a CLS token here, and the template begins with another token
        // than BOS.
        let tokenizer_config = json!({"bos_token": "<s>", "cls_token": "[CLS]"});
        assert_eq!(
            ends_and_flags(&tokenizer_config, &template(&[special("[X]"), text.clone()])),
            (b, None, Some(false), None)
        );
        assert_eq!(
            ends_and_flags(&tokenizer_config, &template(&[special("[CLS]"), text.clone()])),
            (b, None, Some(true), None)
        );
        // None of these sources states both tokens and both flags.
        assert_eq!(ends_and_flags(&json!({}), &Json::Null), (None, None, None, None));
        assert_eq!(ends_and_flags(&Json::Null, &begins), (b, None, Some(true), None));
        assert_eq!(ends_and_flags(&tokenizer_config, &template(&[text])), (b, None, None, None));
        assert_eq!(
            ends_and_flags(&Json::Null, &json!({"type": "RobertaProcessing"})),
            (None, None, Some(true), Some(true))
        );
    }
}
