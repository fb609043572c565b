//! Checks of HTML pages. They find code that the page's `Content-Security-Policy` would silently
//! block, and code that would parse text as markup.

/// Texts that no page may contain: they parse strings as HTML or code, or put styles, scripts and
/// URLs into HTML.
const FORBIDDEN_TEXTS: [&str; 10] = [
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "eval(",
    " style=\"",
    " onclick=",
    "src=",
    "@import",
    "url(",
];

/// Returns the forbidden texts that a page contains. URLs are also forbidden. A page must have
/// exactly one `script` and one `style` element, both with the page's nonce. The page's JSON data
/// is not checked.
pub fn forbidden(page: &str, nonce: &str) -> Vec<&'static str> {
    let mut found: Vec<&str> = FORBIDDEN_TEXTS.into_iter().filter(|never| page.contains(never)).collect();
    for tag in ["<script", "<style"] {
        let all = page.matches(tag).count() - page.matches(&format!("{tag} type=\"application/json\"")).count();
        if (all, page.matches(&format!("{tag} nonce=\"{nonce}\">")).count()) != (1, 1) {
            found.push(tag);
        }
    }
    // The namespace of SVG is a name, and no browser fetches it. Regular expressions of the page
    // that match URLs contain no literal `://`.
    if page.replace("http://www.w3.org/2000/svg", "").contains("://") {
        found.push("://");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_page_content_is_found() {
        let page = "<script nonce=\"a\">1</script><style nonce=\"a\"></style>";
        assert_eq!(forbidden(page, "a"), [""; 0]);
        assert_eq!(forbidden(page, "b"), ["<script", "<style"]);
        assert_eq!(forbidden(&page.replace('1', "e.innerHTML = await fetch('http://x')"), "a"), ["innerHTML", "://"]);
    }
}
