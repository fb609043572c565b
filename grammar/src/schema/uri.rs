//! Resolution of references between schemas, as RFC 3986 defines it.

/// Resolves a reference against a base URI.
pub(super) fn resolve(base: &str, reference: &str) -> String {
    if has_scheme(reference) {
        return reference.to_owned();
    }
    let (base, _) = base.split_once('#').unwrap_or((base, ""));
    if reference.is_empty() || reference.starts_with('#') {
        return format!("{base}{reference}");
    }
    // An opaque base (`urn:…`) has no path, so the reference cannot be merged with one.
    let after_scheme = if has_scheme(base) { base.find(':').map_or(0, |at| at + 1) } else { 0 };
    let rest = &base[after_scheme..];
    let authority_end = rest.strip_prefix("//").map_or(0, |inner| 2 + inner.find('/').unwrap_or(inner.len()));
    let path_start = after_scheme + authority_end;
    if reference.starts_with("//") {
        return format!("{}{reference}", &base[..after_scheme]);
    }
    let (path, tail) = reference.find(['?', '#']).map_or((reference, ""), |at| reference.split_at(at));
    let merged = match path.strip_prefix('/') {
        Some(_) => path.to_owned(),
        None => {
            let folder = base[path_start..].rfind('/').map_or("", |at| &base[path_start..path_start + at + 1]);
            let folder = if folder.is_empty() && authority_end > 0 { "/" } else { folder };
            format!("{folder}{path}")
        }
    };
    format!("{}{}{tail}", &base[..path_start], without_dots(&merged))
}

fn has_scheme(text: &str) -> bool {
    let Some((scheme, _)) = text.split_once(':') else { return false };
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// Removes the segments `.` and `..` from a path.
fn without_dots(path: &str) -> String {
    let mut out: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "." => {}
            ".." => {
                if out.len() > 1 {
                    out.pop();
                }
            }
            _ => out.push(segment),
        }
    }
    out.join("/")
}

/// Decodes percent escapes. A `%` without two hexadecimal digits stays unchanged.
pub(super) fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let hex = hex.filter(|_| first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(hex.unwrap_or(first));
        rest = if hex.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_resolved_as_rfc_3986_has_it() {
        let base = "http://a/b/c/d;p?q";
        for (reference, expected) in [
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("../g", "http://a/b/g"),
            ("/g", "http://a/g"),
            ("//g", "http://g"),
            ("g#s", "http://a/b/c/g#s"),
            ("urn:x:y", "urn:x:y"),
            ("#s", "http://a/b/c/d;p?q#s"),
        ] {
            assert_eq!(resolve(base, reference), expected);
        }
        assert_eq!(resolve("http://localhost:1234", "root.json"), "http://localhost:1234/root.json");
        assert_eq!(percent_decode("Box%3Cstring%3E%25%2"), "Box<string>%%2");
    }
}
