//! By which names a server may be called.
//!
//! A server that asks for no key is protected by its address alone: only this machine reaches it. A page in a browser here reaches it too, where its own
//! name is made to lead here (DNS rebinding), or where it sends without being allowed to read the answer. Browsers say both names: `Host` is what the page
//! calls the server, `Origin` where the page is from. An address is never a name that leads elsewhere.

use std::net::{IpAddr, Ipv6Addr};

use axum::extract::Request;
use axum::http::{HeaderValue, header};

/// Whether what a request calls the server, and the page that it is from, are `localhost`, addresses, or among `hosts`; otherwise what is not. Who says
/// neither is no browser.
pub(crate) fn are_allowed(hosts: &[String], request: &Request) -> Result<(), String> {
    let shown = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let called = request.headers().get_all(header::HOST).iter().map(|value| (shown(value), false));
    let called = called.chain(request.uri().authority().map(|authority| (authority.to_string(), false)));
    let pages = request.headers().get_all(header::ORIGIN).iter().map(|value| (shown(value), true));
    for (value, is_origin) in called.chain(pages) {
        let authority = if is_origin { value.split_once("://").map(|(_, rest)| rest) } else { Some(&*value) };
        if !authority.is_some_and(|authority| is_allowed(hosts, authority)) {
            return Err(value);
        }
    }
    Ok(())
}

/// Whether a name is, which may have a port behind it.
fn is_allowed(hosts: &[String], authority: &str) -> bool {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
    }
    let name = authority.rsplit_once(':').map_or(authority, |(name, _)| name);
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name == "localhost"
        || name.ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok()
        || hosts.iter().any(|host| host.eq_ignore_ascii_case(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    #[test]
    fn names_that_lead_here_are_told_from_others() {
        let hosts = ["models.example".to_owned()];
        let asked = |uri: &str, host: Option<&str>, origin: Option<&str>| {
            let mut request = axum::http::Request::builder().uri(uri);
            for (name, value) in [("host", host), ("origin", origin)] {
                if let Some(value) = value {
                    request = request.header(name, value);
                }
            }
            are_allowed(&hosts, &request.body(Body::empty()).unwrap())
        };
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "localhost.",
            "a.localhost:1",
            "127.0.0.1",
            "127.0.0.1:8080",
            "[::1]",
            "[::1]:8080",
            "192.168.1.5:80",
            "Models.Example:8080",
        ] {
            assert_eq!(asked("/", Some(host), None), Ok(()), "{host}");
            assert_eq!(asked("/", Some("localhost"), Some(&format!("https://{host}"))), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:80",
            "notlocalhost",
            "[::1",
            "[evil.example]:80",
            "",
            "evil.example:127.0.0.1",
        ] {
            assert_eq!(asked("/", Some(host), None), Err(host.to_owned()), "{host}");
            let origin = format!("http://{host}");
            assert_eq!(asked("/", Some("localhost"), Some(&origin)), Err(origin.clone()), "{host}");
        }
        assert_eq!(asked("/", Some("localhost"), Some("null")), Err("null".to_owned()));
        assert_eq!(asked("http://evil.example/", Some("localhost"), None), Err("evil.example".to_owned()));
        // No browser.
        assert_eq!(asked("/", None, None), Ok(()));
    }
}
