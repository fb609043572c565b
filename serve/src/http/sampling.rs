//! Fields that all interfaces have: sampling, stop texts and limits of an answer.

use ixc_generate::generator::Request;
use ixc_runtime::sample::{self, Kind, SamplerSettings};
use serde_json::{Map, Value};

use crate::http::app::RequestState;
use crate::http::error::HttpError;
use crate::http::fields::{Fields, NumberField};

/// Max number of DRY sequence breakers, and max bytes of each.
const MAX_BREAKERS: usize = 64;
const MAX_BREAKER_BYTES: usize = 64;

/// Reads the fields that all interfaces have into a request, which has no tokens yet. `stop` is the
/// name of the field with stop texts.
pub(crate) async fn request(app: &RequestState, fields: &Fields, stop: &'static str) -> Result<Request, HttpError> {
    let limit = fields.limit()?.flatten();
    let sampling = sampling(app, fields).await?;
    let flag = |name, default| Ok::<_, HttpError>(fields.flag(name)?.unwrap_or(default));
    Ok(Request {
        limit,
        stop: fields.stop(stop)?.into(),
        stop_tokens: fields.stop_tokens()?,
        ignore_end: flag("ignore_eos", false)?,
        show_special: !flag("skip_special_tokens", true)?,
        // `cache_prompt` is a field of llama-server.
        cache_prompt: flag("cache_prompt", true)?,
        ..Request::new(Vec::new(), sampling)
    })
}

/// Reads the number of answers to each prompt.
pub(crate) fn count(fields: &Fields) -> Result<u32, HttpError> {
    Ok(fields.number(&NumberField::N)?.map_or(1, |count| count as u32))
}

/// Reads whether a stop text is returned with the answer.
pub(crate) fn includes_stop(fields: &Fields) -> Result<bool, HttpError> {
    Ok(fields.flag("include_stop_str_in_output")?.unwrap_or(false))
}

/// Reads the settings of the sampler; the defaults are those of `ixc run`. Fields have the names of
/// the settings.
pub(crate) async fn sampling(app: &RequestState, fields: &Fields) -> Result<SamplerSettings, HttpError> {
    let mut settings = SamplerSettings::default();
    for setting in sample::NUMBERS {
        // `typ_p` is another name of `typical_p`. If both are set, `typ_p` counts.
        let alias = (setting.name == "typical_p").then_some("typ_p");
        for name in std::iter::once(setting.name).chain(alias) {
            if let Some(found) = fields.number(&NumberField::of_setting(name, setting))? {
                (setting.set)(&mut settings, found);
            }
        }
    }
    fields.number(&NumberField::MIN_KEEP)?;
    settings.seed = fields.seed()?.unwrap_or_else(any_seed);
    settings.bias = fields.biases()?;
    settings.min_tokens = fields.number(&NumberField::MIN_TOKENS)?.unwrap_or(0.0) as usize;
    if let Some(samplers) = fields.get("samplers") {
        settings.samplers = kinds(samplers)?;
    }
    if settings.dry_multiplier > 0.0 {
        settings.dry_breakers = app.breakers(breakers(fields)?).await?;
    }
    // Invalid settings are reported before work begins.
    settings.check().map_err(|error| HttpError::invalid(Some(error.setting), error.to_string()))?;
    Ok(settings)
}

/// Reads samplers from their names or letters.
fn kinds(value: &Value) -> Result<Vec<Kind>, HttpError> {
    let wrong = |what: &str| {
        let names: Vec<&str> = sample::SAMPLERS.iter().map(|row| row.name).collect();
        HttpError::invalid(
            Some("samplers"),
            format!("samplers: there is no {what}; the samplers are {}", names.join(", ")),
        )
    };
    let kinds: Vec<Kind> = match value {
        Value::String(letters) => letters
            .chars()
            .map(|letter| Kind::from_letter(letter).ok_or_else(|| wrong(&format!("{letter:?}"))))
            .collect::<Result<_, _>>()?,
        Value::Array(names) => names
            .iter()
            .map(|name| name.as_str().and_then(Kind::from_name).ok_or_else(|| wrong(&name.to_string())))
            .collect::<Result<_, _>>()?,
        other => return Err(wrong(&other.to_string())),
    };
    match kinds.iter().enumerate().find(|(i, kind)| kinds[..*i].contains(kind)) {
        Some((_, twice)) => Err(HttpError::invalid(Some("samplers"), format!("samplers has {} twice", twice.name()))),
        None => Ok(kinds),
    }
}

/// Checks default field values ([`AppOptions::defaults`](crate::http::AppOptions::defaults)), because
/// invalid ones would make every request fail.
///
/// # Errors
/// A text that describes the fault.
pub fn check_defaults(defaults: &Map<String, Value>) -> Result<(), String> {
    let fields = Fields::new(defaults.clone());
    let checked = || -> Result<(), HttpError> {
        ["stop", "stop_sequences"].into_iter().try_for_each(|name| fields.stop(name).map(drop))?;
        fields.limit()?;
        breakers(&fields).map(drop)
    };
    checked().map_err(|error| error.message().to_owned())
}

fn breakers(fields: &Fields) -> Result<Option<Vec<String>>, HttpError> {
    let wrong = || {
        let most = format!("a list of at most {MAX_BREAKERS} texts, each of 1 to {MAX_BREAKER_BYTES} bytes");
        HttpError::invalid(Some("dry_sequence_breakers"), format!("dry_sequence_breakers must be {most}"))
    };
    let Some(value) = fields.get("dry_sequence_breakers") else { return Ok(None) };
    let list = value.as_array().filter(|list| list.len() <= MAX_BREAKERS).ok_or_else(wrong)?;
    let is_one = |text: &String| (1..=MAX_BREAKER_BYTES).contains(&text.len());
    let texts: Option<Vec<String>> = list.iter().map(|value| Some(value.as_str()?.to_owned()).filter(is_one)).collect();
    texts.map(Some).ok_or_else(wrong)
}

/// Returns a seed that differs from those of other requests, within the clock's resolution.
fn any_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

/// Returns the number of likeliest tokens to return with each token of a chat.
pub(crate) fn top_logprobs_of_chat(fields: &Fields) -> Result<Option<usize>, HttpError> {
    let top = fields.number(&NumberField::TOP_LOGPROBS)?.map(|top| top as usize);
    match (fields.flag("logprobs")?.unwrap_or(false), top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(HttpError::invalid(Some("top_logprobs"), "top_logprobs needs logprobs to be true")),
    }
}
