//! llama-server's endpoint for the state of sequences. It lists states. If the server has a folder
//! for saved states, it also saves, restores and erases them.
//!
//! ```text
//! POST /slots/1?action=save     {"filename": "one.ixs"}
//! POST /slots/1?action=restore  {"filename": "one.ixs"}
//! POST /slots/1?action=erase
//! ```
//!
//! `&model=NAME` selects the model, if there are several.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use ixc_generate::generator::SlotStatus;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::http::app::{App, query};
use crate::http::error::HttpError;
use crate::http::fields::Fields;
use crate::model::SlotAction;
use crate::serving::ModelQuery;

/// Max length of a file name in file systems (`NAME_MAX`).
const MAX_NAME: usize = 255;

/// Lists the state of each sequence.
pub(crate) async fn slots(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Value>, HttpError> {
    // A model that is not loaded has no sequences.
    let name = query(&uri, "model");
    let asked = ModelQuery { name: name.as_deref(), embeddings: false };
    let Some(model) = app.models.loaded_model(asked)? else { return Ok(Json(json!([]))) };
    let context = model.facts().context;
    let slots = model.status().slots;
    let slot = |(id, slot): (usize, SlotStatus)| {
        json!({
            "id": id, "n_ctx": context, "is_processing": slot.has_request, "n_cached": slot.cached_tokens, "bytes": slot.bytes, "bytes_shared": slot.shared_bytes,
        })
    };
    Ok(Json(slots.into_iter().enumerate().map(slot).collect()))
}

/// Saves, restores or erases a sequence.
pub(crate) async fn act(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
    body: Bytes,
) -> Result<Json<Value>, HttpError> {
    let app = app.select_named_model(query(&uri, "model")).await?;
    let slots = app.model.facts().parallel;
    // An id that is not UTF-8 becomes an id that names no slot.
    let id = id.map_or_else(|_| char::REPLACEMENT_CHARACTER.to_string(), |Path(id)| id);
    let number = id.parse::<usize>().ok().filter(|number| *number < slots);
    let number = number.ok_or_else(|| {
        let wrong = format!("there is no slot {id:?}; slots are 0 to {}", slots.saturating_sub(1));
        HttpError::invalid(None, wrong).with_status(StatusCode::NOT_FOUND, "not_found_error")
    })?;
    let fields = || if body.is_empty() { Fields::parse(b"{}") } else { Fields::parse(&body) };
    let wanted = query(&uri, "action");
    let action = match wanted.as_deref() {
        Some("save") => SlotAction::Save(file_name(&fields()?)?),
        Some("restore") => SlotAction::Restore(file_name(&fields()?)?),
        Some("erase") => SlotAction::Erase,
        other => {
            let wrong = format!("action is {:?}, must be save, restore or erase", other.unwrap_or_default());
            return Err(HttpError::invalid(Some("action"), wrong));
        }
    };
    let (send, done) = oneshot::channel();
    let begin = Instant::now();
    app.model.slot(number, action.clone(), send)?;
    let done = done.await.map_err(|_| HttpError::server_error("the engine has ended"))??;
    let milliseconds = begin.elapsed().as_secs_f64() * 1e3;
    Ok(Json(match action {
        SlotAction::Save(name) => json!({
            "id_slot": number, "filename": name, "n_saved": done.tokens, "n_written": done.bytes,
            "timings": {"save_ms": milliseconds},
        }),
        SlotAction::Restore(name) => json!({
            "id_slot": number, "filename": name, "n_restored": done.tokens, "n_read": done.bytes,
            "timings": {"restore_ms": milliseconds},
        }),
        SlotAction::Erase => json!({"id_slot": number, "n_erased": done.tokens}),
    }))
}

/// Returns the name of a file in the folder for slots. A path is refused, so that requests reach no
/// other folder.
fn file_name(fields: &Fields) -> Result<String, HttpError> {
    let name = fields.text("filename")?.unwrap_or_default();
    let is_name = !name.is_empty()
        && name.len() <= MAX_NAME
        && !name.starts_with('.')
        && !name.chars().any(|c| c.is_control() || matches!(c, '/' | '\\' | ':'));
    match is_name {
        true => Ok(name.to_owned()),
        false => {
            let expected = format!(
                "filename must be a name of at most {MAX_NAME} bytes that begins with no dot and has no /, \\, : or control character"
            );
            Err(HttpError::invalid(Some("filename"), expected))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_file_names_cannot_contain_paths() {
        let of = |name: &str| file_name(&Fields::parse(json!({"filename": name}).to_string().as_bytes()).unwrap());
        assert_eq!(of("a b-1.ixs").unwrap(), "a b-1.ixs");
        for name in ["", ".", "..", ".hidden", "a/b", "/etc/passwd", "..\\x", "c:x", "a\nb", "a\0", &"x".repeat(256)] {
            assert!(of(name).is_err(), "{name:?}");
        }
        assert!(file_name(&Fields::parse(b"{}").unwrap()).is_err());
    }
}
