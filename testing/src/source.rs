//! Rust sources as text: their code, their words and their string literals.
//!
//! ```
//! use ixc_testing::source::{code, literals};
//!
//! let text = "f(\"--ctx\"); // \"a comment\"\n";
//! assert_eq!(code(text), "f(\"\"); \n");
//! assert_eq!(literals(text), ["\"--ctx\""]);
//! ```

/// Splits a source into words. A word is an identifier, `::`, or any other single character.
pub fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let len = if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        words.push(&rest[..len]);
        rest = rest[len..].trim_start();
    }
    words
}

/// Returns the code without comments, the contents of literals, and items that are compiled only
/// for tests. Lines keep their numbers.
///
/// # Panics
/// If the text ends within a literal.
pub fn code(text: &str) -> String {
    without_tests(&code_without_comments(text, |_| String::new()))
}

/// Returns the string literals of a source as they are written. Literals in comments and in items
/// that are compiled only for tests are omitted.
///
/// # Panics
/// If the text ends within a literal.
pub fn literals(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    let numbered = code_without_comments(text, |literal| {
        all.push(literal.to_owned());
        (all.len() - 1).to_string()
    });
    let code = without_tests(&numbered);
    let kept = code.split('"').skip(1).step_by(2).filter_map(|number| number.parse().ok());
    kept.filter_map(|number: usize| all.get(number).cloned()).collect()
}

/// Returns the code without comments. Each string literal is replaced by the result of `shown`.
fn code_without_comments(text: &str, mut shown: impl FnMut(&str) -> String) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let after_word = code.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let mut literal = |len: usize| {
            code.push('"');
            code.push_str(&shown(&rest[..len]));
            code.push('"');
            len
        };
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            comment(rest)
        } else if first == '"' {
            literal(string(rest))
        } else if let Some(len) = raw(rest).filter(|_| !after_word) {
            literal(len)
        } else if let Some(len) = character(rest) {
            len
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        code.extend(rest[..len].matches('\n'));
        rest = &rest[len..];
    }
    code
}

/// Returns the number of bytes of a comment. A comment may contain other comments.
fn comment(text: &str) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < text.len() {
        let bytes = &text.as_bytes()[at..];
        if bytes.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if bytes.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    panic!("a comment has no end");
}

/// Returns the number of bytes of a string literal.
fn string(text: &str) -> usize {
    let mut escaped = true;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    panic!("a string has no end");
}

/// Returns the number of bytes of a raw string literal, if one begins at the start of `text`.
fn raw(text: &str) -> Option<usize> {
    let hashes = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let count = hashes.bytes().take_while(|byte| *byte == b'#').count();
    let inner = hashes[count..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(count));
    let len = inner.find(&end).expect("a raw string ends") + end.len();
    Some(text.len() - inner.len() + len)
}

/// Returns the number of bytes of a character literal, if one begins at the start of `text`. A
/// lifetime is not a literal, because it has no closing quote.
fn character(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('\'')?;
    let mut chars = inner.char_indices();
    match chars.next()? {
        (_, '\\') => chars.skip(1).find(|(_, c)| *c == '\'').map(|(at, _)| at + 2),
        (_, _) => chars.next().filter(|(_, c)| *c == '\'').map(|(at, _)| at + 2),
    }
}

/// Returns the code without items after `#[cfg(test)]` or `#[cfg(all(test, …))]`.
fn without_tests(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = ["#[cfg(test)]", "#[cfg(all(test,"].iter().filter_map(|begin| rest.find(begin)).min() {
        kept.push_str(&rest[..at]);
        rest = &rest[at..];
        let mut depth = 0usize;
        let end = rest.char_indices().find_map(|(at, c)| {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            (depth == 0 && matches!(c, ';' | '}')).then_some(at + 1)
        });
        let end = end.unwrap_or(rest.len());
        kept.extend(rest[..end].matches('\n'));
        rest = &rest[end..];
    }
    kept.push_str(rest);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_code_keep_their_numbers() {
        let text = "/* a\n b */ fn f() { \"c\nd\" }\n#[cfg(test)]\nmod tests {\n}\nfn g() {} // e\nfn h() {}";
        let lines: Vec<usize> =
            (1..).zip(code(text).lines()).filter(|(_, line)| line.contains("fn")).map(|(n, _)| n).collect();
        assert_eq!(lines, [2, 7, 8]);
    }

    #[test]
    fn literals_of_tests_and_comments_are_left_out() {
        let text = r##"
            // "a"
            #[error("b {}", '"')] enum E {}
            const R: &str = r#"c " d"#; const B: &[u8] = b"e";
            #[cfg(test)] mod tests { const S: &str = "f }"; }
            const S: &str = "g \" h";
        "##;
        assert_eq!(literals(text), [r#""b {}""#, "r#\"c \" d\"#", r#""e""#, r#""g \" h""#]);
    }
}
