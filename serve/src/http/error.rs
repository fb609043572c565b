//! Errors of requests: a status, and a body in the form of OpenAI's interface.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ixc_failure::Remedy;
use ixc_generate::Error as GenerationError;
use ixc_runtime::engine::StepError;
use ixc_runtime::execute::ExecuteError;
use serde_json::{Value, json};

use crate::model::Refusal;

/// Seconds after which a client should retry a request that was refused for lack of room.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("2");

/// Reason why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpError {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    /// The wrong field.
    param: Option<&'static str>,
    message: String,
    /// The change of the server that may help.
    remedy: Option<Remedy>,
    /// Number of tokens of a prompt that is too long, and number of positions of the context.
    too_long: Option<(usize, usize)>,
}

impl HttpError {
    /// Creates the error of an invalid request.
    pub(crate) fn invalid(param: Option<&'static str>, message: impl Into<String>) -> HttpError {
        HttpError {
            status: StatusCode::BAD_REQUEST,
            kind: "invalid_request_error",
            code: None,
            param,
            message: message.into(),
            remedy: None,
            too_long: None,
        }
    }

    /// Creates the error of a feature that the server does not have.
    pub(crate) fn unsupported_error(param: &'static str, what: &str) -> HttpError {
        HttpError::invalid(Some(param), format!("{what} is not supported"))
    }

    pub(crate) fn with_status(self, status: StatusCode, kind: &'static str) -> HttpError {
        HttpError { status, kind, ..self }
    }

    /// Creates the error of a missing or wrong API key.
    pub(crate) fn key() -> HttpError {
        let message = "the API key is missing or wrong; send it as the header `Authorization: Bearer KEY`";
        HttpError { code: Some("invalid_api_key"), ..HttpError::invalid(None, message) }
            .with_status(StatusCode::UNAUTHORIZED, "authentication_error")
    }

    /// Creates the error of a request with a `Host` that does not name this server.
    pub(crate) fn host(name: &str) -> HttpError {
        let message = format!(
            "{name:?} is not a name of this server; its names are localhost, its address and the names given at the start"
        );
        HttpError { remedy: Some(Remedy::AllowHost), ..HttpError::invalid(None, message) }
            .with_status(StatusCode::FORBIDDEN, "permission_error")
    }

    /// Creates the error of a page whose origin is not allowed.
    pub(crate) fn origin(origin: &str) -> HttpError {
        let message = format!("pages of {origin:?} may not use this server");
        HttpError { remedy: Some(Remedy::AllowOrigin), ..HttpError::invalid(None, message) }
            .with_status(StatusCode::FORBIDDEN, "permission_error")
    }

    /// Creates the error of a server failure. The whole message is logged; the client gets it
    /// without folder names.
    pub(crate) fn server_error(message: impl Into<String>) -> HttpError {
        let message = message.into();
        let shown = without_folders(&message);
        if shown != message {
            tracing::error!("{message}");
        }
        HttpError::invalid(None, shown).with_status(StatusCode::INTERNAL_SERVER_ERROR, "server_error")
    }

    /// Creates the error of a panic in the server's own code.
    pub(crate) fn panic_error() -> HttpError {
        HttpError::server_error("the server failed at this request; see its log")
    }

    /// Creates the error of a request that has exceeded its time limit.
    pub(crate) fn late(limit: Option<Duration>) -> HttpError {
        let limit = limit.unwrap_or_default().as_secs_f64();
        let message = format!("the request took longer than {limit} seconds, the server's limit for requests");
        HttpError { code: Some("request_timeout"), ..HttpError::invalid(None, message) }
            .with_status(StatusCode::GATEWAY_TIMEOUT, "timeout_error")
    }

    /// Creates the error of a request in a step that has exceeded its time limit.
    pub(crate) fn late_step(limit: Duration) -> HttpError {
        let message = format!("a step took longer than {} seconds, the server's limit for steps", limit.as_secs_f64());
        HttpError { code: Some("step_timeout"), ..HttpError::invalid(None, message) }
            .with_status(StatusCode::GATEWAY_TIMEOUT, "timeout_error")
    }

    /// Returns the error's text.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the body of an answer.
    pub(crate) fn body(&self) -> Value {
        let HttpError { kind, code, param, message, .. } = self;
        self.with_lengths(json!({"error": {"message": message, "type": kind, "param": param, "code": code}}))
    }

    /// Adds the lengths of a prompt that is too long, as llama-server does.
    fn with_lengths(&self, mut body: Value) -> Value {
        if let Some((tokens, context)) = self.too_long {
            (body["error"]["n_prompt_tokens"], body["error"]["n_ctx"]) = (tokens.into(), context.into());
        }
        body
    }

    /// Returns the body in the form of Anthropic's interface.
    pub(crate) fn anthropic_body(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        self.with_lengths(json!({"type": "error", "error": {"type": kind, "message": self.message}}))
    }

    fn response(&self, body: Value) -> Response {
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        response
    }

    /// Returns a response. An error gets the form of its interface, and the advice for its remedy.
    pub(crate) fn finish_response(
        mut response: Response,
        is_anthropic: bool,
        advice: &BTreeMap<Remedy, String>,
    ) -> Response {
        let Some(mut error) = response.extensions_mut().remove::<HttpError>() else { return response };
        if let Some(advice) = error.remedy.and_then(|remedy| advice.get(&remedy)) {
            error.message += "; ";
            error.message += advice;
        }
        let body = if is_anthropic { error.anthropic_body() } else { error.body() };
        let mut response = error.response(body);
        // Passes the error on to the log.
        response.extensions_mut().insert(error);
        response
    }
}

impl From<Refusal> for HttpError {
    fn from(refusal: Refusal) -> HttpError {
        let error = HttpError { remedy: refusal.remedy(), ..HttpError::invalid(None, refusal.to_string()) };
        match refusal {
            Refusal::Invalid { .. } => error,
            Refusal::OtherKind { .. } => HttpError { param: Some("model"), ..error },
            Refusal::Unsupported { .. } => error.with_status(StatusCode::NOT_IMPLEMENTED, "not_supported_error"),
            Refusal::Failed { message } => HttpError::server_error(message),
            // The type is that of llama-server, and the code that of OpenAI.
            Refusal::TooLong { tokens, context, .. } => HttpError {
                kind: "exceed_context_size_error",
                code: Some("context_length_exceeded"),
                too_long: Some((tokens, context)),
                ..error
            },
            Refusal::NoModel { .. } => HttpError { code: Some("model_not_found"), param: Some("model"), ..error }
                .with_status(StatusCode::NOT_FOUND, "invalid_request_error"),
            Refusal::NoSpace { .. } => error.with_status(StatusCode::INSUFFICIENT_STORAGE, "server_error"),
            Refusal::NotLoaded { .. } => HttpError::server_error(error.message),
            Refusal::Busy { .. } | Refusal::Later { .. } | Refusal::NoRoom { .. } | Refusal::Gone | Refusal::Ending => {
                error.with_status(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error")
            }
        }
    }
}

/// Error of an answer in progress.
impl From<GenerationError> for HttpError {
    fn from(error: GenerationError) -> HttpError {
        let message = error.to_string();
        match error {
            // An invalid grammar is the client's fault.
            GenerationError::Grammar(_) => HttpError::invalid(None, message),
            GenerationError::Step(StepError::Execute(ExecuteError::Deadline { limit })) => HttpError::late_step(limit),
            _ => HttpError::server_error(message),
        }
    }
}

/// Removes the folders of absolute paths from a message. File names stay.
fn without_folders(message: &str) -> String {
    let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | ',' | ';' | ':' | '(' | ')');
    let mut shown = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(at) = rest.find('/') {
        let (before, path) = rest.split_at(at);
        let path = &path[..path.find(is_end).unwrap_or(path.len())];
        rest = &rest[at + path.len()..];
        shown.push_str(before);
        let begins = shown.chars().next_back().is_none_or(is_end);
        let name = path.rsplit('/').find(|name| !name.is_empty());
        shown.push_str(name.filter(|_| begins).unwrap_or(path));
    }
    shown + rest
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let mut response = self.response(self.body());
        // The middleware may change the body to the form of the path's interface.
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_grammar::GrammarError;

    #[test]
    fn a_helper_that_fails_is_the_servers_fault() {
        let status = |error: GrammarError| HttpError::from(Refusal::from(error)).status;
        let failed = GrammarError::HelperFailed { message: "cannot start /opt/ixc: no memory".to_owned() };
        let error = HttpError::from(Refusal::from(failed.clone()));
        assert_eq!(error.message(), "the program that compiles grammars failed: cannot start ixc: no memory");
        assert_eq!((status(failed), error.kind), (StatusCode::INTERNAL_SERVER_ERROR, "server_error"));
        assert_eq!(status(GrammarError::Busy), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status(GrammarError::CompileTime), StatusCode::BAD_REQUEST);
        assert_eq!(status(GrammarError::Empty), StatusCode::BAD_REQUEST);
    }

    #[test]
    fn late_steps_have_their_own_error() {
        let limit = Duration::from_secs(3600);
        let error = HttpError::from(GenerationError::Step(StepError::Execute(ExecuteError::Deadline { limit })));
        assert_eq!(error.message(), "a step took longer than 3600 seconds, the server's limit for steps");
        assert_eq!((error.status, error.code), (StatusCode::GATEWAY_TIMEOUT, Some("step_timeout")));
    }

    #[test]
    fn server_paths_are_removed_from_messages() {
        for (message, expected) in [
            ("/srv/models/a.gguf: cannot read", "a.gguf: cannot read"),
            ("cannot open \"/home/u/x y.gguf\" (/proc/self/exe)", "cannot open \"x y.gguf\" (exe)"),
            ("/", "/"),
            ("/a: /b/", "a: b"),
            ("7 tokens/s and and/or, 1 / 2", "7 tokens/s and and/or, 1 / 2"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(without_folders(message), expected);
        }
    }
}
