//! Search for parameters that are tuple or array patterns, and for type aliases of tuples. In both
//! cases, callers do not see the names of the fields.
//!
//! ```
//! use ixc_testing::parameters::{UnnamedParameter, find_unnamed_parameters};
//!
//! let found = find_unnamed_parameters("fn area(scale: u64, (rows, columns): (u64, u64)) {}");
//! let pattern = "(rows, columns)".to_owned();
//! assert_eq!(found, [UnnamedParameter { line: 1, function: "area".to_owned(), pattern }]);
//! ```

use crate::source::{code, words};

/// A parameter without a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnnamedParameter {
    /// Line of the function's name, from 1.
    pub line: usize,
    /// Name of the function.
    pub function: String,
    /// The pattern, as in the source.
    pub pattern: String,
}

/// A tuple that is declared as a type: `type Rest = (u32, u32)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TupleAlias {
    /// Line of the type's name, from 1.
    pub line: usize,
    /// Name of the type.
    pub name: String,
    /// The tuple, as in the source.
    pub tuple: String,
}

/// Words of a source, each with its line number.
struct Numbered<'t> {
    lines: Vec<usize>,
    words: Vec<&'t str>,
}

impl<'t> Numbered<'t> {
    fn from_code(code: &'t str) -> Numbered<'t> {
        let numbered =
            (1..).zip(code.lines()).flat_map(|(line, text)| words(text).into_iter().map(move |word| (line, word)));
        let (lines, words) = numbered.unzip();
        Numbered { lines, words }
    }
}

/// Returns whether a word is a name or a keyword.
fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns the type aliases of tuples in a source. Items that are compiled only for tests are
/// omitted.
///
/// # Panics
/// If the text ends within a literal.
pub fn tuple_aliases(text: &str) -> Vec<TupleAlias> {
    let code = code(text);
    let Numbered { lines, words } = Numbered::from_code(&code);
    let mut found = Vec::new();
    for (at, _) in words.windows(2).enumerate().filter(|(_, pair)| pair[0] == "type" && is_name(pair[1])) {
        let rest = &words[at + 2..];
        let generics = if rest.first() == Some(&"<") { group(rest) } else { 0 };
        let ["=", of @ ..] = &rest[generics..] else { continue };
        let len = if of.first() == Some(&"(") { group(of) } else { 0 };
        // The empty tuple `()` has no fields.
        if len > 2 && of.get(len) == Some(&";") {
            let name = words[at + 1].to_owned();
            found.push(TupleAlias { line: lines[at + 1], name, tuple: join_words(&of[..len]) });
        }
    }
    found
}

/// Returns those parameters of a source's functions that are tuple or array patterns. Closures and
/// items that are compiled only for tests are omitted.
///
/// # Panics
/// If the text ends within a literal.
pub fn find_unnamed_parameters(text: &str) -> Vec<UnnamedParameter> {
    let code = code(text);
    let Numbered { lines, words } = Numbered::from_code(&code);
    let mut found = Vec::new();
    for (at, _) in words.windows(2).enumerate().filter(|(_, pair)| pair[0] == "fn" && is_name(pair[1])) {
        let rest = &words[at + 2..];
        let generics = if rest.first() == Some(&"<") { group(rest) } else { 0 };
        let rest = &rest[generics..];
        // In the pattern of a macro, `fn` and a name need not be followed by parameters.
        if rest.first() != Some(&"(") {
            continue;
        }
        let patterns = patterns(&rest[1..group(rest)]);
        found.extend(patterns.into_iter().map(|pattern| UnnamedParameter {
            line: lines[at + 1],
            function: words[at + 1].to_owned(),
            pattern,
        }));
    }
    found
}

/// Returns the tuple and array patterns in a list of parameters.
fn patterns(list: &[&str]) -> Vec<String> {
    let (mut patterns, mut depth, mut is_first) = (Vec::new(), 0usize, true);
    let mut at = 0;
    while at < list.len() {
        match list[at] {
            // Skips an attribute of the parameter.
            "#" if is_first => {
                at += 1 + group(&list[at + 1..]);
                continue;
            }
            "&" if is_first => {}
            "(" | "[" if is_first => {
                let len = group(&list[at..]);
                // A pattern is followed by a colon. A parenthesised group after a comma within `<`
                // and `>` is a type, not a pattern.
                if list.get(at + len) == Some(&":") {
                    patterns.push(join_words(&list[at..at + len]));
                }
                (at, is_first) = (at + len, false);
                continue;
            }
            word => {
                match word {
                    "(" | "[" | "{" => depth += 1,
                    ")" | "]" | "}" => depth = depth.saturating_sub(1),
                    _ => {}
                }
                is_first = depth == 0 && word == ",";
            }
        }
        at += 1;
    }
    patterns
}

/// Returns the number of words in the group that the first word opens, such as `(` to `)`.
fn group(words: &[&str]) -> usize {
    let close = match words.first() {
        Some(&"(") => ")",
        Some(&"[") => "]",
        _ => ">",
    };
    let mut depth = 0usize;
    for (at, word) in words.iter().enumerate() {
        // The `>` of `->` closes no group.
        let is_arrow = *word == ">" && at > 0 && words[at - 1] == "-";
        if *word == words[0] {
            depth += 1;
        } else if *word == close && !is_arrow {
            depth -= 1;
        }
        if depth == 0 {
            return at + 1;
        }
    }
    words.len()
}

/// Joins words with the usual spaces of Rust.
fn join_words(words: &[&str]) -> String {
    let mut text = String::new();
    for word in words {
        let is_word = |text: &str| text.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if text.ends_with(',') || is_word(&text) && is_word(word) {
            text.push(' ');
        }
        text.push_str(word);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unnamed_parameters(text: &str) -> Vec<String> {
        find_unnamed_parameters(text)
            .into_iter()
            .map(|one| format!("{} {} {}", one.line, one.function, one.pattern))
            .collect()
    }

    #[test]
    fn patterns_are_found_among_all_forms_of_parameters() {
        let text = r#"
            impl<T> S<T> {
                pub(super) fn first<const N: usize>(
                    &mut self,
                    [a, mut b]: [T; N],
                    name: &str,
                    &(c, [d, _]): &(u8, [u8; 2]),
                ) {}
            }
            fn second<F: Fn((u8, u8)) -> Vec<u8>>(f: F, #[cfg(unix)] (x, y): (u8, u8)) -> (u8, u8) { (1, 2) }
        "#;
        assert_eq!(unnamed_parameters(text), ["3 first [a, mut b]", "3 first (c, [d, _])", "10 second (x, y)"]);
    }

    #[test]
    fn only_tuples_declared_as_types_are_found() {
        let text = r#"
            pub(crate) type Rest = (u32, u32);
            impl Iterator for Lists { type Item<'a> = (&'a [usize], Vec<(u8, u8)>); }
            type Unit = ();
            type Pointer = fn((u8, u8)) -> (u8, u8);
            type Shapes = [(u8, u8); 8];
            struct Named(u32, u32);
            #[cfg(test)]
            mod tests { type Case = (u8, u8); }
        "#;
        let shown = |one: TupleAlias| format!("{} {} {}", one.line, one.name, one.tuple);
        let found: Vec<String> = tuple_aliases(text).into_iter().map(shown).collect();
        assert_eq!(found, ["2 Rest (u32, u32)", "3 Item (&'a[usize], Vec<(u8, u8)>)"]);
    }

    #[test]
    fn types_named_patterns_closures_and_tests_are_not_found() {
        let text = r#"
            fn named(pair: (u8, u8), of: [u8; 2], Size { rows, columns }: Size, Bytes(n): Bytes, _: (u8,)) {}
            fn types(of: HashMap<u8, (u8, u8)>, f: impl Fn(u8, (u8, u8)) -> Result<u8, [u8; 2]>, g: fn((u8, u8))) {}
            fn closure() -> u8 { let f = |(a, b): (u8, u8)| a + b; f((1, 2)) }
            type Pointer = fn((u8, u8)) -> u8;
            // fn comment((a, b): (u8, u8)) {}
            #[cfg(test)]
            mod tests { fn test((a, b): (u8, u8)) {} }
        "#;
        assert_eq!(unnamed_parameters(text), [""; 0]);
    }
}
