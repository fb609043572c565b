//! `/`: a page to chat with models, and to watch the engine. It is one file, and sends requests
//! only to this server.
//!
//! Invariant: the page runs only its own script and loads only its own style (the nonce of each
//! answer). It sends requests only to this server. It never interprets a model's text as HTML: it
//! creates DOM nodes, and sets their text.

use axum::http::{HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};

use crate::http::error::HttpError;

/// The page; `NONCE` is replaced by random text in each answer.
const PAGE: &str = include_str!("page.html");
/// Min bytes of a nonce, as CSP requires.
const NONCE_BYTES: usize = 16;

/// Returns the page. It contains no secrets, so it needs no key. The page's own requests need one.
pub(crate) async fn page() -> Result<Response, HttpError> {
    let mut random = [0; NONCE_BYTES];
    getrandom::fill(&mut random).map_err(|error| HttpError::server_error(error.to_string()))?;
    let nonce: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let policy = HeaderValue::try_from(policy).map_err(|error| HttpError::server_error(error.to_string()))?;
    let mut response = Html(PAGE.replace("NONCE", &nonce)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the page has nothing that the policy would silently block, and never makes
    /// markup of a model's text.
    #[test]
    fn page_has_no_content_forbidden_by_its_policy() {
        assert_eq!(PAGE.matches("NONCE").count(), 2);
        assert_eq!(ixc_testing::pages::forbidden(PAGE, "NONCE"), [""; 0]);
    }

    #[tokio::test]
    async fn nonces_differ() {
        let policy = async || {
            let response = page().await.unwrap();
            response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned()
        };
        let (one, two) = (policy().await, policy().await);
        assert!(one != two && !one.contains("unsafe") && !one.contains("NONCE"), "{one}");
    }
}
