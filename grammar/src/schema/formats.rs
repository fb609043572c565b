//! Regular expressions of the text formats that are enforced. All other formats are annotations
//! (JSON Schema 2020-12, validation, 7.2.1).

/// Expression for a calendar day. The 29th of February exists only in leap years.
const DATE: &str = concat!(
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
);
const CLOCK: &str =
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
const BYTE: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
/// Expression for a label of a host name. Two hyphens in a row are excluded, since
/// internationalised names have their own rules for these.
const LABEL: &str = "[a-zA-Z0-9](?:[a-zA-Z0-9]|-[a-zA-Z0-9]){0,30}";
const DURATION: &str = concat!(
    "P(?:(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)",
    "(?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))?",
    "|T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S)|[0-9]{1,9}W)"
);

/// Returns the expression for the whole texts of a format, or `None` for formats that are not
/// enforced.
pub(super) fn regex(name: &str) -> Option<String> {
    Some(match name {
        "date" => DATE.to_owned(),
        "time" => CLOCK.to_owned(),
        "date-time" => format!("{DATE}T{CLOCK}"),
        "duration" => DURATION.to_owned(),
        "email" => {
            let atom = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,15}";
            format!("{atom}(?:\\.{atom}){{0,3}}@{LABEL}(?:\\.{LABEL}){{1,3}}")
        }
        "hostname" => format!("{LABEL}(?:\\.{LABEL}){{0,3}}"),
        "ipv4" => format!("(?:{BYTE}\\.){{3}}{BYTE}"),
        "ipv6" => ipv6(),
        "uuid" => "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}".to_owned(),
        "uri" => uri(),
        _ => return None,
    })
}

/// Returns an expression for addresses of RFC 4291 in groups of hexadecimal digits.
fn ipv6() -> String {
    let group = "[0-9a-fA-F]{1,4}";
    let mut all = vec![format!("(?:{group}:){{7}}{group}"), "::".to_owned()];
    for left in 0..=6 {
        let right = 7 - left;
        let head = if left == 0 { String::new() } else { format!("(?:{group}:){{{}}}{group}", left - 1) };
        all.push(format!("{head}::(?:{group}:){{0,{}}}{group}", right - 1));
    }
    all.extend((1..=7).map(|left| format!("(?:{group}:){{{}}}{group}::", left - 1)));
    format!("(?:{})", all.join("|"))
}

/// Returns an expression for URIs of RFC 3986 with a scheme.
fn uri() -> String {
    let unit = "(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})";
    let host = "(?:[a-zA-Z0-9._~!$&'()*+,;=-]|%[0-9a-fA-F]{2})";
    let tail = format!("(?:\\?(?:{unit}|[/?])*)?(?:#(?:{unit}|[/?])*)?");
    let path = format!("(?:/{unit}*)*");
    let authority = format!("//(?:(?:{host}|:)*@)?{host}+(?::[0-9]{{1,5}})?{path}");
    format!("[a-zA-Z][a-zA-Z0-9+.-]*:(?:{authority}|/(?:{unit}+{path})?|{unit}+{path}){tail}")
}

#[cfg(test)]
mod tests {
    use super::super::text::is_whole_match;

    #[test]
    fn format_regexes_match_valid_values_only() {
        for (format, good, bad) in [
            ("date", &["2024-02-29", "2000-02-29", "1999-12-31"][..], &["2023-02-29", "1900-02-29", "2024-04-31"][..]),
            ("time", &["12:00:00Z", "23:59:59.5+01:00"], &["24:00:00Z", "12:00:00"]),
            ("date-time", &["2024-02-29T12:00:00Z"], &["2024-02-30T12:00:00Z", "2024-02-29"]),
            ("duration", &["P1Y2M3DT4H", "P2W", "PT5M"], &["P", "P1", "PT"]),
            ("email", &["a.b@example.com"], &["a@", "@b", "a..b@c.de"]),
            ("ipv4", &["0.0.0.0", "255.255.255.255"], &["256.0.0.0", "01.0.0.0", "1.2.3"]),
            (
                "ipv6",
                &["::", "::1", "1::", "1:2:3:4:5:6:7:8", "fe80::a:b", "1:2:3:4:5:6:7::"],
                &["1:2:3:4:5:6:7:8:9", ":::", "1::2::3", "1:2:3"],
            ),
            ("uuid", &["2eb8aa08-aa98-11ea-b4aa-73b441d16380"], &["2eb8aa08aa9811eab4aa73b441d16380"]),
            ("uri", &["http://a.b/c?d#e", "urn:x:y", "mailto:a@b.c"], &["//a.b", "a b:c", "http://a b"]),
        ] {
            let regex = super::regex(format).unwrap();
            good.iter().for_each(|text| assert!(is_whole_match(&regex, text), "{format} {text}"));
            bad.iter().for_each(|text| assert!(!is_whole_match(&regex, text), "{format} {text}"));
        }
    }
}
