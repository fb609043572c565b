//! Allowed origins of web pages, and the headers that browsers need (CORS).
//!
//! A browser sends the page's origin with each cross-origin request. Before most such requests it
//! sends a *preflight* (`OPTIONS`). It shows the answer to the page only if the answer names the
//! page's origin.
//!
//! ```text
//! OPTIONS /v1/chat/completions       Origin: http://localhost:5173, Access-Control-Request-Method: POST
//! 204                                Access-Control-Allow-Origin: http://localhost:5173, Access-Control-Allow-Methods: …
//! ```
//!
//! Invariant: an answer names an origin only if the origin is allowed.

use std::net::IpAddr;
use std::str::FromStr;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;

/// Methods that pages may use.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, OPTIONS");
/// Headers that pages may send. The headers of a preflight are appended.
const HEADERS: &str = "authorization, content-type, x-api-key, anthropic-version, anthropic-beta, \
                       anthropic-dangerous-direct-browser-access";
/// Headers that pages may read in addition to the CORS-safelisted ones.
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static("retry-after");
/// Seconds for which a browser may cache the answer to a preflight. It is short, since a restarted
/// server may allow other origins.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
/// Header that asks to access a private network from a public page; the next header allows it
/// (Private Network Access).
const REQUEST_PRIVATE: HeaderName = HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE: HeaderName = HeaderName::from_static("access-control-allow-private-network");
/// Header in which browsers state whether a page is of the same origin or site as the server;
/// scripts cannot set it.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// An origin that was allowed by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedOrigin {
    /// All origins (`*`).
    Any,
    /// This origin: a scheme, a host and a port, in lower case and without the scheme's own port.
    One(String),
}

/// Error of a text that is not an origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an origin; expected *, or scheme://host[:port] such as https://chat.example")]
pub struct NoOrigin(String);

impl FromStr for AllowedOrigin {
    type Err = NoOrigin;

    fn from_str(text: &str) -> Result<AllowedOrigin, NoOrigin> {
        let trimmed = text.trim();
        if trimmed == "*" {
            return Ok(AllowedOrigin::Any);
        }
        let wrong = || NoOrigin(text.to_owned());
        let origin = Origin::parse(trimmed.strip_suffix('/').unwrap_or(trimmed)).ok_or_else(wrong)?;
        Ok(AllowedOrigin::One(origin.normal()))
    }
}

/// The parts of an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: String,
    port: Option<u16>,
}

impl Origin {
    fn parse(text: &str) -> Option<Origin> {
        let (scheme, rest) = text.split_once("://")?;
        let is_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        let is_host = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | '?' | '#' | '@' | '\\' | '*' | ',' | '"');
        let (host, port) = split_port(rest)?;
        let is_one =
            !scheme.is_empty() && scheme.chars().all(is_scheme) && !host.is_empty() && host.chars().all(is_host);
        let scheme = scheme.to_ascii_lowercase();
        let port = port.filter(|port| Some(*port) != own_port(&scheme));
        is_one.then(|| Origin { scheme, host: host.to_ascii_lowercase(), port })
    }

    fn normal(&self) -> String {
        let Origin { scheme, host, port } = self;
        port.map_or_else(|| format!("{scheme}://{host}"), |port| format!("{scheme}://{host}:{port}"))
    }

    fn is_of_web(&self) -> bool {
        own_port(&self.scheme).is_some()
    }

    /// Returns whether the origin is a page of this machine.
    fn is_local(&self) -> bool {
        let host = self.host.trim_end_matches('.');
        let address = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost"
            || host.ends_with(".localhost")
            || address.parse().is_ok_and(|address: IpAddr| address.to_canonical().is_loopback())
    }

    /// Returns whether the request's `Host` is this origin, so this server sent the page.
    fn is_called(&self, request: &Request) -> bool {
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        let called = host.and_then(split_port);
        called.is_some_and(|(host, port)| {
            let port = port.filter(|port| Some(*port) != own_port(&self.scheme));
            host.eq_ignore_ascii_case(&self.host) && port == self.port
        })
    }
}

/// Returns the default port of a web scheme.
fn own_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

/// Splits a host and its port; an IPv6 address keeps its brackets.
fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let end = authority.rfind(']').map_or(0, |end| end + 1);
    match authority.get(end..)?.split_once(':') {
        None => Some((authority, None)),
        Some((host, port)) => Some((&authority[..end + host.len()], Some(port.parse().ok()?))),
    }
}

/// Returns the origin for which a request is refused; `None` if the origin is allowed or the
/// request is not from a page.
pub(crate) fn refused_origin(allowed: &[AllowedOrigin], hosts: &[String], request: &Request) -> Option<String> {
    let origins = request.headers().get_all(header::ORIGIN);
    let is_admitted = |value: &HeaderValue| is_admitted(allowed, hosts, value, request);
    let found = origins.iter().find(|value| !is_admitted(value));
    found.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

fn is_admitted(allowed: &[AllowedOrigin], hosts: &[String], value: &HeaderValue, request: &Request) -> bool {
    if allowed.contains(&AllowedOrigin::Any) {
        return true;
    }
    let Some(origin) = value.to_str().ok().and_then(Origin::parse) else { return false };
    let is_named = allowed.contains(&AllowedOrigin::One(origin.normal()));
    let has_name = hosts.iter().any(|host| host.eq_ignore_ascii_case(&origin.host));
    is_named || origin.is_of_web() && (origin.is_local() || has_name || origin.is_called(request))
}

/// Returns whether a request comes from a page in a browser, by the headers that browsers add.
pub(crate) fn is_of_page(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN) || headers.contains_key(FETCH_SITE)
}

/// Returns whether the content type is JSON. A page of any origin may send other types without a
/// preflight.
pub(crate) fn says_json(headers: &HeaderMap) -> bool {
    let said = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = said.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence.starts_with("application/") && essence.ends_with("+json")
}

/// Answers a CORS preflight request. `None` for other requests.
pub(crate) fn preflight(request: &Request) -> Option<Response> {
    let headers = request.headers();
    let is_one = request.method() == Method::OPTIONS
        && headers.contains_key(header::ORIGIN)
        && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    if !is_one {
        return None;
    }
    let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).and_then(|value| value.to_str().ok());
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let answer = response.headers_mut();
    answer.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    // Header names were checked, so the list is a valid header value.
    let known = HeaderValue::try_from(allowed_headers(asked.unwrap_or_default()));
    known.into_iter().for_each(|known| drop(answer.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, known)));
    answer.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    if headers.contains_key(REQUEST_PRIVATE) {
        answer.insert(ALLOW_PRIVATE, HeaderValue::from_static("true"));
    }
    for name in [header::ACCESS_CONTROL_REQUEST_METHOD, header::ACCESS_CONTROL_REQUEST_HEADERS] {
        answer.append(header::VARY, name.into());
    }
    Some(response)
}

/// Lists the headers that pages may send, followed by the headers that a preflight asks for.
fn allowed_headers(asked: &str) -> String {
    let is_known = |name: &str| HEADERS.split(", ").any(|known| known.eq_ignore_ascii_case(name));
    let names = asked.split(',').map(str::trim);
    let more = names.filter(|name| !is_known(name) && HeaderName::from_bytes(name.as_bytes()).is_ok());
    more.fold(HEADERS.to_owned(), |all, name| all + ", " + &name.to_ascii_lowercase())
}

/// Adds the header that names the page's origin, unless the request was refused for its origin or
/// is not from a page.
pub(crate) fn name_reader(headers: &mut HeaderMap, origin: Option<HeaderValue>) {
    headers.append(header::VARY, header::ORIGIN.into());
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(host: &str, origin: &str) -> Request {
        let request = axum::http::Request::builder().uri("/").header("host", host).header("origin", origin);
        request.body(Body::empty()).unwrap()
    }

    fn parse_origins(names: &[&str]) -> Vec<AllowedOrigin> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn local_and_own_origins_are_admitted() {
        let hosts = ["models.example".to_owned()];
        let refused = |host: &str, origin: &str| refused_origin(&[], &hosts, &request(host, origin));
        for origin in [
            "http://localhost:5173",
            "https://LOCALHOST",
            "http://a.localhost:1",
            "http://127.0.0.1:3000",
            "http://127.9.9.9",
            "http://[::1]:8080",
            "http://[::ffff:127.0.0.1]",
            "https://Models.Example:8443",
        ] {
            assert_eq!(refused("127.0.0.1:8080", origin), None, "{origin}");
        }
        for origin in [
            "http://203.0.113.9",
            "http://192.168.1.1",
            "http://evil.example",
            "http://localhost.evil.example",
            "http://127.0.0.1.evil.example:80",
            "http://notlocalhost",
            "http://evil.example@localhost",
            "http://localhost:x",
            "http://[::1",
            "http://",
            "file://localhost",
            "chrome-extension://abcdef",
            "null",
            "",
        ] {
            assert_eq!(refused("127.0.0.1:8080", origin).as_deref(), Some(origin));
        }
        // Origins at the server's own address, with its own and other ports.
        for (host, origin, is_own) in [
            ("192.168.1.5:8080", "http://192.168.1.5:8080", true),
            ("192.168.1.5:8080", "http://192.168.1.5", false),
            ("192.168.1.5:8080", "http://192.168.1.5:8081", false),
            ("192.168.1.5", "http://192.168.1.5:80", true),
            ("Chat.Example", "https://chat.example", true),
            ("[2001:db8::1]:8080", "http://[2001:db8::1]:8080", true),
            ("[2001:db8::1]:8080", "http://[2001:db8::2]:8080", false),
        ] {
            assert_eq!(refused(host, origin).is_none(), is_own, "{host} {origin}");
        }
    }

    #[test]
    fn origins_are_allowed_by_name() {
        let list = parse_origins(&["https://chat.example/", "HTTP://other.example:80", "chrome-extension://abcdef"]);
        let refused = |origin: &str| refused_origin(&list, &[], &request("localhost", origin)).is_some();
        for origin in
            ["https://chat.example", "https://chat.example:443", "http://other.example", "chrome-extension://abcdef"]
        {
            assert!(!refused(origin), "{origin}");
        }
        for origin in [
            "http://chat.example",
            "https://chat.example:8443",
            "https://a.chat.example",
            "chrome-extension://x",
            "null",
        ] {
            assert!(refused(origin), "{origin}");
        }
        assert_eq!(super::refused_origin(&parse_origins(&["*"]), &[], &request("localhost", "null")), None);
        for wrong in [
            "chat.example",
            "https://",
            "https://chat.example/x",
            "https://*.example",
            "https://a b",
            "https://a:b",
            "",
        ] {
            assert!(wrong.parse::<AllowedOrigin>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn preflights_allow_the_requested_method_and_headers() {
        let mut asked = request("localhost", "http://localhost:5173");
        assert!(preflight(&asked).is_none());
        *asked.method_mut() = Method::OPTIONS;
        assert!(preflight(&asked).is_none());
        for (name, value) in [
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "Authorization, X-Stainless-OS,bad name,"),
            ("access-control-request-private-network", "true"),
        ] {
            asked.headers_mut().insert(name, value.parse().unwrap());
        }
        let answer = preflight(&asked).unwrap();
        let of = |name: &str| answer.headers()[name].to_str().unwrap();
        assert_eq!(answer.status(), 204);
        assert_eq!(of("access-control-allow-methods"), "GET, POST, OPTIONS");
        assert_eq!(of("access-control-allow-headers"), format!("{HEADERS}, x-stainless-os"));
        assert_eq!(of("access-control-allow-private-network"), "true");
    }

    #[test]
    fn json_content_types_are_recognised() {
        let of = |said: &str| says_json(&HeaderMap::from_iter([(header::CONTENT_TYPE, said.parse().unwrap())]));
        for said in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"] {
            assert!(of(said), "{said}");
        }
        for said in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "text/plain; application/json",
            "multipart/form-data",
            "",
        ] {
            assert!(!of(said), "{said}");
        }
        assert!(!says_json(&HeaderMap::new()));
    }
}
