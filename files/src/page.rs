//! Pages that need no network: a text with marks, into which a title and data go.
//!
//! ```text
//! <title>@TITLE@</title> ... <script type="application/json" id="data">@DATA@</script>
//! ```
//!
//! Invariant: neither is taken for markup, nor for a mark, whatever is in them.

/// A page with a title, which is text, and data, which is JSON.
pub fn filled(page: &str, title: &str, json: &str) -> String {
    // In JSON it stands in texts alone, where an escape means the same, and without it nothing ends the element around.
    let json = json.replace('<', "\\u003c");
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    // Title and data may hold the marks: only the page's own text is searched for them.
    let (before, rest) = page.split_once("@TITLE@").unwrap_or((page, ""));
    let (between, after) = rest.split_once("@DATA@").unwrap_or((rest, ""));
    [before, &title, between, &json, after].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_taken_for_markup_or_a_mark() {
        let page =
            filled("<title>@TITLE@</title><script>@DATA@</script>", "@DATA@</title>&", r#"["<!--<script>@TITLE@"]"#);
        let data = r#"["\u003c!--\u003cscript>@TITLE@"]"#;
        assert_eq!(page, format!("<title>@DATA@&lt;/title>&amp;</title><script>{data}</script>"));
    }
}
