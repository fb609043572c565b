//! The names of a server.
//!
//! Without keys a server is protected only by its address: only this machine or network reaches it.
//! A page in a browser on this network could reach it as well, if the page's own name resolves to
//! this machine (DNS rebinding). Browsers send the name that the page used (`Host`). Addresses
//! cannot be rebound. The module `origins` checks the origin of pages.

use std::net::{IpAddr, Ipv6Addr};

use axum::extract::Request;
use axum::http::{HeaderValue, header};

/// Returns the name for which a request is refused: any except `localhost`, addresses and `hosts`.
/// A client that sends no name is not a browser.
pub(crate) fn refused_host(hosts: &[String], request: &Request) -> Option<String> {
    let shown = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let names = request.headers().get_all(header::HOST).iter().map(shown);
    let mut names = names.chain(request.uri().authority().map(ToString::to_string));
    names.find(|name| !is_allowed(hosts, name))
}

/// Returns whether a name, with or without a port, is allowed.
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
    fn foreign_host_names_are_refused() {
        let hosts = ["models.example".to_owned()];
        let refused = |uri: &str, host: Option<&str>| {
            let request = axum::http::Request::builder().uri(uri);
            let request = host.into_iter().fold(request, |request, host| request.header("host", host));
            refused_host(&hosts, &request.body(Body::empty()).unwrap())
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
            assert_eq!(refused("/", Some(host)), None, "{host}");
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
            assert_eq!(refused("/", Some(host)).as_deref(), Some(host));
        }
        assert_eq!(refused("http://evil.example/", Some("localhost")).as_deref(), Some("evil.example"));
        // No browser sent this request.
        assert_eq!(refused("/", None), None);
    }
}
