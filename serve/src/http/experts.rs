//! `/experts`: counts of chosen experts, and eviction of streamed experts.
//!
//! ```text
//! GET  /experts                                    {"tokens": 2, "chosen": [[2, 0, 1, 1], …], ...}
//! POST /experts/evict   {"layer": 1}               {"evicted": 3, "bytes": 49152}
//! POST /experts/evict   {"pinned": true}           all experts, also pinned ones
//! ```

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::Uri;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::http::app::{App, RequestState, query};
use crate::http::error::HttpError;
use crate::http::fields::{Fields, NumberField};
use crate::model::ExpertsAction;

/// Returns how often each expert was chosen.
pub(crate) async fn experts(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Value>, HttpError> {
    act(&app.select_named_model(query(&uri, "model")).await?, ExpertsAction::Look).await
}

/// Evicts the experts of a layer, or of all layers.
pub(crate) async fn evict(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, HttpError> {
    let fields = Fields::parse(if body.is_empty() { b"{}" } else { &body })?;
    let layer = fields.number(&NumberField::LAYER)?.map(|layer| layer as usize);
    let app = app.select_model(&fields).await?;
    act(&app, ExpertsAction::Evict { layer, pinned: fields.flag("pinned")?.unwrap_or(false) }).await
}

async fn act(app: &RequestState, action: ExpertsAction) -> Result<Json<Value>, HttpError> {
    let (send, done) = oneshot::channel();
    app.model.experts(action, send)?;
    Ok(Json(done.await.map_err(|_| HttpError::server_error("the engine has ended"))??))
}
