//! Inventory of `unsafe` code: each block, function, trait and implementation, with the first
//! sentence of its invariant.
//!
//! Sources are read as text, without comments, literals and items for tests. The invariant of a
//! block or an implementation is the `SAFETY:` comment above it. The invariant of a function or a
//! trait is the section `# Safety` of its documentation.
//!
//! ```
//! use ixc_testing::unsafe_code::{Kind, entries};
//!
//! let found = entries("fn f() {\n    // SAFETY: it is valid. Really.\n    unsafe { g() };\n}\n");
//! assert_eq!((found[0].kind, &*found[0].place), (Kind::Block, "f"));
//! assert_eq!(found[0].invariant, "it is valid.");
//! ```

use crate::source::{code, words};

/// Kind of unsafe code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An unsafe block.
    Block,
    /// An unsafe function.
    Function,
    /// An unsafe trait.
    Trait,
    /// An implementation of an unsafe trait.
    Implementation,
}

impl Kind {
    /// Returns the name of the kind, as shown in the inventory.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Block => "block",
            Kind::Function => "fn",
            Kind::Trait => "trait",
            Kind::Implementation => "impl",
        }
    }
}

/// One item of unsafe code in the inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Kind of the code.
    pub kind: Kind,
    /// Name of the function that contains the block, or name of the item.
    pub place: String,
    /// Line in the file, from 1.
    pub line: usize,
    /// First sentence of the invariant's text; empty if there is no text.
    pub invariant: String,
}

/// Returns the unsafe code of a source, in the order of the source.
///
/// # Panics
/// If the text ends within a literal. Sources that compile do not.
pub fn entries(text: &str) -> Vec<Entry> {
    let (code, lines) = (code(text), text.lines().collect::<Vec<_>>());
    let (mut function, mut found) = (String::new(), Vec::new());
    for (at, line) in code.lines().enumerate() {
        let words = words(line);
        for (number, word) in words.iter().enumerate() {
            let rest = &words[number + 1..];
            match *word {
                "fn" => {
                    if let Some(name) = rest.first().filter(|name| is_name(name)) {
                        function = (*name).to_owned();
                    }
                }
                "unsafe" => {
                    if let Some((kind, name)) = item(rest) {
                        let place = name.unwrap_or_else(|| function.clone());
                        let invariant = first_sentence(&invariant(kind, &lines, at));
                        found.push(Entry { kind, place, line: at + 1, invariant });
                    }
                }
                _ => {}
            }
        }
    }
    found
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns the kind of the code after `unsafe`, and the name of the item. Returns `None` for
/// function pointer types and for attributes.
fn item(rest: &[&str]) -> Option<(Kind, Option<String>)> {
    let name = |at: usize| rest.get(at).filter(|name| is_name(name)).map(|name| (*name).to_owned());
    match rest.first().copied() {
        Some("fn") => name(1).map(|name| (Kind::Function, Some(name))),
        Some("trait") => Some((Kind::Trait, name(1))),
        Some("impl") => {
            let end = rest.iter().position(|word| *word == "{").unwrap_or(rest.len());
            Some((Kind::Implementation, Some(join_words(&rest[1..end]))))
        }
        // An attribute, such as `no_mangle`.
        Some("(") => None,
        Some("extern") => {
            let at = rest.iter().position(|word| *word == "fn")?;
            // In a macro, the name of a function is a macro variable.
            let variable = || name(at + 2).filter(|_| rest.get(at + 1) == Some(&"$")).map(|name| format!("${name}"));
            name(at + 1).or_else(variable).map(|name| (Kind::Function, Some(name)))
        }
        _ => Some((Kind::Block, None)),
    }
}

/// Joins words like rustfmt does in the first line of an implementation.
fn join_words(words: &[&str]) -> String {
    words.join(" ").replace(" < ", "<").replace(" >", ">").replace("< ", "<")
}

/// Operations that write through a raw pointer.
const WRITES: [&str; 6] =
    ["write", "write_bytes", "write_unaligned", "write_volatile", "copy_from", "copy_from_nonoverlapping"];

/// Returns the safe functions that write through a raw pointer in an unsafe block, although they
/// are safe to call. A parameter must be a raw pointer to memory (`*mut T`, or a `Region` of mapped
/// memory). `code` is a source without comments and literals.
///
/// ```
/// use ixc_testing::unsafe_code::safe_writers;
///
/// assert_eq!(safe_writers("fn f(x: *mut u8) { unsafe { x.write(0) } }"), ["f"]);
/// assert!(safe_writers("unsafe fn f(x: *mut u8) { unsafe { x.write(0) } }").is_empty());
/// assert!(safe_writers("fn f(x: *mut u8) -> u8 { unsafe { x.read() } }").is_empty());
/// ```
pub fn safe_writers(code: &str) -> Vec<String> {
    let words = words(code);
    let mut found = Vec::new();
    for (at, name) in words.iter().enumerate().skip(1).filter(|(at, name)| words[at - 1] == "fn" && is_name(name)) {
        let head = &words[at.saturating_sub(5)..at - 1];
        let is_unsafe = head.iter().rev().take_while(|word| !matches!(**word, ";" | "}" | "{")).any(|w| *w == "unsafe");
        let Some(end) = words[at..].iter().position(|word| matches!(*word, "{" | ";")) else { continue };
        let (signature, body) = (&words[at..at + end], block(&words[at + end..]));
        let has_pointer =
            signature.windows(2).any(|pair| pair == ["*", "mut"]) || parameters(signature).contains(&"Region");
        if !is_unsafe && has_pointer && body.contains(&"unsafe") && writes(body) {
            found.push((*name).to_owned());
        }
    }
    found
}

/// Returns whether a body writes through a pointer, other than a pointer to a slice that the
/// function itself borrows.
fn writes(body: &[&str]) -> bool {
    let is_write = |at: usize| match body[at] {
        "from_raw_parts_mut" => true,
        name if WRITES.contains(&name) && at > 0 && body[at - 1] == "." => {
            // `x.as_mut_ptr().write(…)` writes to a slice, whose borrow the compiler checks.
            at < 4 || body[at - 4] != "as_mut_ptr"
        }
        _ => false,
    };
    (0..body.len()).any(is_write)
}

/// Returns the words of a signature before the type of its result.
fn parameters<'w, 't>(signature: &'w [&'t str]) -> &'w [&'t str] {
    let end = signature.windows(2).rposition(|pair| pair == ["-", ">"]).unwrap_or(signature.len());
    &signature[..end]
}

/// Returns the words of the block that begins at the first word, or no words if no block begins
/// there.
fn block<'w, 't>(words: &'w [&'t str]) -> &'w [&'t str] {
    let mut depth = 0usize;
    let end = words.iter().position(|word| {
        match *word {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0
    });
    &words[..end.unwrap_or(words.len())]
}

/// Text of the invariant for a method that implements a trait.
const OF_TRAIT: &str = "The conditions are those of the trait.";

/// Returns the text of the invariant for the unsafe code at a line. Returns an empty text if there
/// is no invariant.
fn invariant(kind: Kind, lines: &[&str], at: usize) -> String {
    match kind {
        Kind::Block | Kind::Implementation => safety_comment(lines, at),
        Kind::Function | Kind::Trait => {
            let documented = safety_section(lines, at);
            // Methods of a trait are documented in the trait's declaration. They are recognised
            // because they are not `pub`.
            let is_method = lines[at].starts_with("    unsafe fn ");
            if documented.is_empty() && is_method { OF_TRAIT.to_owned() } else { documented }
        }
    }
}

/// Text at the start of an invariant in a comment.
const BEGIN: &str = "SAFETY:";

/// Returns the `SAFETY:` comment above the statement at a line.
fn safety_comment(lines: &[&str], at: usize) -> String {
    let is_comment = |line: &&&str| line.trim_start().starts_with("//");
    let is_begin = |line: &&str| line.trim_start().starts_with("//") && line.contains(BEGIN);
    // Between the comment and the code, there are only lines of the same statement and of the
    // comment.
    let is_between = |line: &&&str| is_comment(line) || !line.trim_end().ends_with([';', '{', '}']);
    let mut above = (0..at).rev().take_while(|number| is_between(&&lines[*number]));
    let Some(begin) = above.find(|number| is_begin(&lines[*number])) else { return String::new() };
    let comment = lines[begin..].iter().map_while(|line| line.trim_start().strip_prefix("//"));
    let text = comment.map(str::trim).collect::<Vec<_>>().join(" ");
    text.split_once(BEGIN).map_or(String::new(), |(_, text)| text.trim().to_owned())
}

/// Returns the text after `# Safety` in the documentation of an item.
fn safety_section(lines: &[&str], at: usize) -> String {
    let is_above = |line: &&&str| {
        let line = line.trim_start();
        line.starts_with("///") || line.starts_with("#[") || line.starts_with("//")
    };
    let count = lines[..at].iter().rev().take_while(is_above).count();
    let documentation = lines[at - count..at].iter().filter_map(|line| line.trim_start().strip_prefix("///"));
    let mut section = documentation.map(str::trim).skip_while(|line| *line != "# Safety").skip(1);
    let text: Vec<&str> = section.by_ref().take_while(|line| !line.is_empty() && !line.starts_with('#')).collect();
    text.join(" ")
}

/// Returns the first sentence of a text.
fn first_sentence(text: &str) -> String {
    let end = text.find(". ").map_or(text.len(), |end| end + 1);
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_unsafe_code_is_found() {
        let text = r#"
/// Reads.
///
/// # Safety
/// The pointer must be valid
/// for reads. It may be unaligned.
#[inline]
pub unsafe fn read(x: *const u8) -> u8 {
    // SAFETY: the caller's promise.
    unsafe { x.read_unaligned() }
}
type Call = unsafe extern "sysv64" fn(*const u8);
// SAFETY: it has no state.
unsafe impl<T> Send for Cell<T> {}
fn late() {
    let found = f(
        // SAFETY: all of it. Not shown.
        unsafe { g() },
    );
    let nothing = 1;
    let far = unsafe { g() }; // unsafe in a comment
}
macro_rules! named {
    ($name:ident) => {
        /// # Safety
        /// The code must be valid.
        unsafe extern "sysv64" fn $name(x: *const u8) {}
    };
}
#[cfg(test)]
mod tests { fn t() { unsafe { g() } } }
"#;
        let found = entries(text);
        let shown: Vec<_> =
            found.iter().map(|found| (found.kind, &*found.place, found.line, &*found.invariant)).collect();
        assert_eq!(
            shown,
            [
                (Kind::Function, "read", 8, "The pointer must be valid for reads."),
                (Kind::Block, "read", 10, "the caller's promise."),
                (Kind::Implementation, "<T> Send for Cell<T>", 14, "it has no state."),
                (Kind::Block, "late", 18, "all of it."),
                (Kind::Block, "late", 21, ""),
                (Kind::Function, "$name", 27, "The code must be valid."),
            ]
        );
    }
}
