//! Rules for the pages that we write. Some code would be blocked silently by their policy
//! (`Content-Security-Policy`). Other code could turn a text into markup.

/// Text that no page may contain: it turns text into markup or code, or puts styles and handlers
/// into markup.
const NEVER: [&str; 10] = [
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

/// Returns the forbidden parts of a page: text of [`NEVER`], and addresses of other sites. There
/// must be exactly one script and one style element, with the page's nonce. Embedded JSON data is
/// not checked.
pub fn forbidden(page: &str, nonce: &str) -> Vec<&'static str> {
    let mut found: Vec<&str> = NEVER.into_iter().filter(|never| page.contains(never)).collect();
    for tag in ["<script", "<style"] {
        let all = page.matches(tag).count() - page.matches(&format!("{tag} type=\"application/json\"")).count();
        if (all, page.matches(&format!("{tag} nonce=\"{nonce}\">")).count()) != (1, 1) {
            found.push(tag);
        }
    }
    // The SVG namespace is only a name. The pattern that finds addresses in texts is no address
    // either.
    if page.replace("http://www.w3.org/2000/svg", "").contains("://") {
        found.push("://");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found() {
        let page = "<script nonce=\"a\">1</script><style nonce=\"a\"></style>";
        assert_eq!(forbidden(page, "a"), [""; 0]);
        assert_eq!(forbidden(page, "b"), ["<script", "<style"]);
        assert_eq!(forbidden(&page.replace('1', "e.innerHTML = await fetch('http://x')"), "a"), ["innerHTML", "://"]);
    }
}
