//! Self-contained HTML pages: templates with placeholders for a title and data.
//!
//! ```text
//! <title>@TITLE@</title> ... <script type="application/json" id="data">@DATA@</script>
//! ```
//!
//! Invariant: neither the title nor the data can act as HTML markup or as a placeholder.

/// Returns the page with a title (text) and data (JSON).
pub fn fill_page(page: &str, title: &str, json: &str) -> String {
    // In JSON, `<` occurs only inside strings, where `\u003c` means the same. Without `<`, the data
    // cannot end the `script` element that contains it.
    let json = json.replace('<', "\\u003c");
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    // Title and data may contain the placeholder texts, so only the template is searched for
    // placeholders.
    let (before, rest) = page.split_once("@TITLE@").unwrap_or((page, ""));
    let (between, after) = rest.split_once("@DATA@").unwrap_or((rest, ""));
    [before, &title, between, &json, after].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_template_escapes_markup_and_placeholders() {
        let page =
            fill_page("<title>@TITLE@</title><script>@DATA@</script>", "@DATA@</title>&", r#"["<!--<script>@TITLE@"]"#);
        let data = r#"["\u003c!--\u003cscript>@TITLE@"]"#;
        assert_eq!(page, format!("<title>@DATA@&lt;/title>&amp;</title><script>{data}</script>"));
    }
}
