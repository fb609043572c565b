//! Pages that we write: what their policy (`Content-Security-Policy`) would stop in silence, and what would make markup of a text.

/// What is nowhere in a page: texts as markup or code, styles and handlers within markup.
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

/// What of it is in a page all the same, addresses of other places, and elements of script and style without the page's nonce or more than one of them. The
/// page's data, where it has some, is not looked into.
pub fn forbidden(page: &str, nonce: &str) -> Vec<&'static str> {
    let mut found: Vec<&str> = NEVER.into_iter().filter(|never| page.contains(never)).collect();
    for tag in ["<script", "<style"] {
        let all = page.matches(tag).count() - page.matches(&format!("{tag} type=\"application/json\"")).count();
        if (all, page.matches(&format!("{tag} nonce=\"{nonce}\">")).count()) != (1, 1) {
            found.push(tag);
        }
    }
    // The namespace of drawings is a name, and what tells addresses in texts apart is a pattern.
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
