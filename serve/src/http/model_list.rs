//! `/v1/models` of OpenAI's interface.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::http::app::App;
use crate::http::error::HttpError;
use crate::serving::ModelEntry;

/// Lists the models.
pub(crate) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let data: Value = app.models.list().iter().map(|listed| model_object(&app, listed)).collect();
    Json(json!({"object": "list", "data": data}))
}

/// Returns one model.
pub(crate) async fn model(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, HttpError> {
    let wrong = match name {
        Ok(Path(name)) => match app.models.list().iter().find(|listed| listed.name == name) {
            Some(listed) => return Ok(Json(model_object(&app, listed))),
            None => format!("there is no model {name:?}; /v1/models lists them"),
        },
        Err(_) => "the name of the model is not UTF-8; /v1/models lists the models".to_owned(),
    };
    Err(HttpError::invalid(Some("model"), wrong).with_status(StatusCode::NOT_FOUND, "invalid_request_error"))
}

/// Returns a model as an object; some members exist only once it is loaded.
fn model_object(app: &App, listed: &ModelEntry) -> Value {
    let ModelEntry { name, model, memory } = listed;
    let facts = model.as_ref().map(|model| model.facts());
    let meta = facts.map(|facts| {
        let mut meta = json!({
            "architecture": facts.architecture, "n_ctx": facts.context, "n_ctx_train": facts.trained_context,
            "n_vocab": facts.vocabulary, "size": facts.bytes, "memory": memory,
        });
        if let Some(dimensions) = facts.dimensions {
            meta["n_embd"] = dimensions.into();
        }
        meta
    });
    json!({
        "id": name, "object": "model", "created": facts.map_or(app.start_time(), |facts| facts.created), "owned_by": "ixc",
        "loaded": facts.is_some(), "meta": meta,
    })
}
