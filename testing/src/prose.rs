//! Rules of plain English for doc comments, comments, error texts, scripts and Markdown.
//!
//! A text is a paragraph of a comment, a docstring or a Markdown page, or the message of an error.
//! If a text breaks a rule, rewrite the sentence so that it has a subject, a verb and a term of the
//! field.
//!
//! ```
//! use ixc_testing::prose::{Kind, Rules};
//!
//! let rules = Rules::new();
//! assert_eq!(rules.broken_by("Returns the expert cache.", Kind::Doc), [""; 0]);
//! assert_eq!(rules.broken_by("What holds the experts.", Kind::Doc), ["opening"]);
//! ```

use regex_automata::meta::Regex;

/// Kind of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A paragraph of a doc comment or a docstring.
    Doc,
    /// A paragraph of a comment that documents no item.
    Comment,
    /// The text of an error.
    Error,
    /// A paragraph of a Markdown page.
    Page,
}

/// A checked text of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// Number of the text's first line, from 1.
    pub line: usize,
    /// The text's words, joined to one line.
    pub words: String,
    /// Kind of the text.
    pub kind: Kind,
}

/// First words that hide the subject of a doc comment or a page's paragraph.
const OPENING: &str = r"^(What|How|Which|Who|Whom|Whose|That|Where|Of|As|None|Nothing|The same|It|Its|So|Such|Those|In which|By which|With its|Beside|Behind)(?-u:\b)";

/// Rules for a sentence. Each has a name, a pattern, and the number of matches from which a
/// sentence breaks the rule.
const SENTENCE_RULES: &[(&str, &str, usize)] = &[
    ("no-actor", r"(?i)(?-u:\b)(nobody|somebody|whoever|whom)(?-u:\b)", 1),
    (
        "told-said",
        r"(?i)(?-u:\b)((is|are|was|were|be) (told|said|wanted|asked for)|(says|said) (so|that|what|which|how))(?-u:\b)",
        1,
    ),
    ("behind-beside", r"(?i)(?-u:\b)(behind|beside) (it|them|that|those|what|others|these)(?-u:\b)", 1),
    ("so-many", r"(?i)(?-u:\b)(so many|as far as|of so|is none|are none|no more than that)(?-u:\b)", 1),
    ("what-what", r"(?i)(?-u:\b)what(?-u:\b)", 3),
    ("relative-chain", r"(?i)(?-u:\b)(which|that|whose|where|what)(?-u:\b)", 4),
    ("of-which", r"(?i)(?-u:\b)(of which|of whose|by which|in place of how|that there (is|are))(?-u:\b)", 1),
];

/// Max words of a sentence. The recommended limit is 25.
const MAX_WORDS: usize = 30;

/// Max commas of a sentence. A longer list belongs in a table.
const MAX_COMMAS: usize = 8;

/// Max sentences in a paragraph of a page. The recommended limit is 5.
const MAX_SENTENCES: usize = 6;

/// Max columns of a comment line.
pub const MAX_COLUMNS: usize = 100;

/// Max columns of the subject of a commit.
const MAX_SUBJECT: usize = 72;

/// The rules, with compiled patterns.
#[derive(Debug)]
pub struct Rules {
    opening: Regex,
    sentence: Vec<(&'static str, Regex, usize)>,
    code: Regex,
    link: Regex,
    end: Regex,
    word: Regex,
    subject: Regex,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules::new()
    }
}

impl Rules {
    /// Compiles the patterns.
    ///
    /// # Panics
    /// If a pattern is malformed.
    pub fn new() -> Rules {
        let compiled = |pattern| Regex::new(pattern).expect("a pattern of this file");
        Rules {
            opening: compiled(OPENING),
            sentence: SENTENCE_RULES.iter().map(|&(name, pattern, count)| (name, compiled(pattern), count)).collect(),
            code: compiled("`[^`]*`"),
            link: compiled(r"\[[^\]]*\](\([^)]*\)|\[[^\]]*\])?"),
            end: compiled(r"[.!?:;]\s+[A-Z`\[]"),
            word: compiled(r"[A-Za-z`][\w`'-]*"),
            subject: compiled(r"^[a-z0-9_./,-]+: [a-z`]"),
        }
    }

    /// Returns the names of the rules that a text breaks, each once, in alphabetical order.
    pub fn broken_by(&self, text: &str, kind: Kind) -> Vec<&'static str> {
        let sentences = self.sentences(text);
        let mut broken = Vec::new();
        let has_subject = matches!(kind, Kind::Comment) || sentences.first().is_none_or(|s| !self.opening.is_match(s));
        if !has_subject {
            broken.push("opening");
        }
        for sentence in &sentences {
            let rules = self.sentence.iter().filter(|(_, rule, count)| rule.find_iter(sentence).count() >= *count);
            broken.extend(rules.map(|(name, ..)| *name));
            if self.word.find_iter(sentence).count() > MAX_WORDS {
                broken.push("long-sentence");
            }
            if sentence.matches(',').count() > MAX_COMMAS {
                broken.push("long-list");
            }
        }
        if kind == Kind::Page && sentences.len() > MAX_SENTENCES {
            broken.push("long-paragraph");
        }
        broken.sort_unstable();
        broken.dedup();
        broken
    }

    /// Returns whether the subject of a commit has the form `area: verb …` and is short enough.
    pub fn is_subject(&self, subject: &str) -> bool {
        subject.chars().count() <= MAX_SUBJECT && self.subject.is_match(subject)
    }

    /// Returns the sentences of a text. Code in backticks becomes one word, and a link becomes its
    /// text.
    fn sentences(&self, text: &str) -> Vec<String> {
        let text = replace_matches(&self.code, text, |_| "`x`");
        let text = replace_matches(&self.link, &text, |link| link[1..].split(']').next().unwrap_or_default());
        let (mut sentences, mut from) = (Vec::new(), 0);
        while let Some(end) = self.end.find(&text[from..]) {
            sentences.push(text[from..=from + end.start()].trim().to_owned());
            // The match ends with the first character of the next sentence, which is one ASCII
            // byte.
            from += end.end() - 1;
        }
        sentences.push(text[from..].trim().to_owned());
        sentences.retain(|sentence| !sentence.is_empty());
        sentences
    }
}

/// Returns a text in which each match of a pattern is replaced by the result of `with`.
fn replace_matches<'a>(pattern: &Regex, text: &'a str, with: impl Fn(&'a str) -> &'a str) -> String {
    let (mut result, mut from) = (String::with_capacity(text.len()), 0);
    for found in pattern.find_iter(text) {
        result.push_str(&text[from..found.start()]);
        result.push_str(with(&text[found.range()]));
        from = found.end();
    }
    result + &text[from..]
}

/// Returns the marker and the words of a line that is a comment.
fn comment(line: &str) -> Option<(&'static str, &str)> {
    let line = line.trim_start();
    let (marker, words) =
        ["///", "//!", "//"].iter().find_map(|marker| line.strip_prefix(marker).map(|words| (*marker, words)))?;
    (!words.starts_with('/')).then(|| (marker, words.strip_prefix(' ').unwrap_or(words)))
}

/// Returns the texts of a Rust file: comments, `#[error("…")]` and `#[doc = "…"]`.
pub fn texts_of_rust(file: &str) -> Vec<Text> {
    let mut texts = Vec::new();
    let (mut block, mut first, mut block_marker) = (Vec::new(), 0, "");
    for (number, line) in file.lines().chain([""]).enumerate() {
        let this = comment(line);
        let marker = this.map_or("", |(marker, _)| marker);
        if marker != block_marker {
            let kind = if block_marker == "//" { Kind::Comment } else { Kind::Doc };
            texts.extend(paragraphs(&block, first, kind));
            block.clear();
            (first, block_marker) = (number + 1, marker);
        }
        match this {
            Some((_, words)) => block.push(words),
            None => texts.extend(attribute(line).map(|words| Text { line: number + 1, words, kind: Kind::Error })),
        }
    }
    texts
}

/// Returns the string of an attribute if it is text for users. Each value in braces becomes `x`.
fn attribute(line: &str) -> Option<String> {
    let (_, string) = line.split_once("#[error(\"").or_else(|| line.split_once("#[doc = \""))?;
    let (mut words, mut chars, mut depth) = (String::new(), string.chars(), 0);
    loop {
        match chars.next()? {
            '"' => return Some(words),
            '\\' => words.extend(chars.next()),
            '{' => depth += 1,
            '}' if depth > 0 => {
                depth -= 1;
                words.push('x');
            }
            _ if depth > 0 => {}
            other => words.push(other),
        }
    }
}

/// Returns the paragraphs of a Markdown page. Generated pages are skipped, since their texts come
/// from sources that are checked.
pub fn texts_of_page(file: &str) -> Vec<Text> {
    if file.lines().take(6).any(|line| line.to_lowercase().contains("generated")) {
        return Vec::new();
    }
    paragraphs(&file.lines().collect::<Vec<_>>(), 1, Kind::Page)
}

/// Returns the comments and docstrings of a Python or shell script. Indented lines and usage lines
/// count as code.
pub fn texts_of_script(file: &str) -> Vec<Text> {
    let mut texts = Vec::new();
    let mut block = ScriptBlock::default();
    let mut string = StringState::Outside;
    for (at, line) in file.lines().enumerate() {
        let words = line.trim_start();
        let quotes = line.matches(DOCSTRING).count();
        let (kind, words) = match string {
            StringState::Outside if words.starts_with('#') => {
                // The first line of a script may name its interpreter.
                let words = words.trim_start_matches('#');
                (Some(Kind::Comment), words.strip_prefix(' ').filter(|_| !words.starts_with('!')).unwrap_or_default())
            }
            StringState::Outside => match words.strip_prefix(DOCSTRING) {
                Some(words) => (Some(Kind::Doc), words),
                None => (None, ""),
            },
            StringState::Doc { indent } => {
                (Some(Kind::Doc), line.get(indent.min(line.len() - words.len())..).unwrap_or_default())
            }
            StringState::Other => (None, ""),
        };
        if kind != block.kind {
            texts.append(&mut block.texts());
            block = ScriptBlock { kind, first: at + 1, lines: Vec::new() };
        }
        block.lines.push(script_words(words));
        if kind != Some(Kind::Comment) && quotes % 2 == 1 {
            string = match string {
                StringState::Outside if kind.is_some() => {
                    StringState::Doc { indent: line.len() - line.trim_start().len() }
                }
                StringState::Outside => StringState::Other,
                StringState::Doc { .. } | StringState::Other => StringState::Outside,
            };
        }
    }
    texts.append(&mut block.texts());
    texts
}

/// Delimiter of Python's docstrings.
const DOCSTRING: &str = "\"\"\"";

/// Position of a script's reader in strings that span several lines.
#[derive(Clone, Copy)]
enum StringState {
    /// Outside of such a string.
    Outside,
    /// Inside a docstring with this indentation.
    Doc { indent: usize },
    /// Inside a string that is a value, not a docstring.
    Other,
}

/// Consecutive lines of a script that form one comment or one docstring.
#[derive(Default)]
struct ScriptBlock<'t> {
    /// Kind of the block's texts, or `None` for code.
    kind: Option<Kind>,
    /// Number of the block's first line, from 1.
    first: usize,
    /// Lines of the block, without comment markers.
    lines: Vec<&'t str>,
}

impl ScriptBlock<'_> {
    fn texts(&self) -> Vec<Text> {
        self.kind.map_or_else(Vec::new, |kind| paragraphs(&self.lines, self.first, kind))
    }
}

/// Returns a line of a block without its marker. If the line is code, returns an empty text.
fn script_words(line: &str) -> &str {
    let words = line.split(DOCSTRING).next().unwrap_or_default();
    let is_code = words.starts_with("  ") || words.trim_start().to_lowercase().starts_with("usage");
    if is_code { "" } else { words }
}

/// Returns the paragraphs and list items in lines, without code, tables and headings.
fn paragraphs(lines: &[&str], first: usize, kind: Kind) -> Vec<Text> {
    let mut texts: Vec<Text> = Vec::new();
    let (mut is_code, mut is_open) = (false, false);
    for (at, line) in lines.iter().enumerate() {
        let trimmed = line.trim();
        let is_fence = trimmed.starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence || trimmed.is_empty() || trimmed.starts_with(['|', '#']) {
            is_open = false;
            continue;
        }
        let item = list_item(trimmed);
        if item.is_some() || !is_open {
            texts.push(Text { line: first + at, words: item.unwrap_or(trimmed).to_owned(), kind });
            is_open = true;
        } else if let Some(text) = texts.last_mut() {
            text.words.push(' ');
            text.words.push_str(trimmed);
        }
    }
    texts
}

/// Returns the words of an item of a list, `- x`, `* x` or `1. x`.
fn list_item(line: &str) -> Option<&str> {
    let digits = line.find(|c: char| !c.is_ascii_digit()).unwrap_or(line.len());
    line.strip_prefix("- ").or_else(|| line.strip_prefix("* ")).or_else(|| {
        let numbered = line[digits..].strip_prefix(". ");
        numbered.filter(|_| digits > 0)
    })
}

/// Returns the numbers of the comment lines that have too many columns. Lines of code, tables and
/// addresses are excepted, because they cannot be wrapped.
pub fn wide_comments(file: &str) -> Vec<usize> {
    let (mut found, mut is_code) = (Vec::new(), false);
    for (at, line) in file.lines().enumerate() {
        let comment = line.trim_start();
        let Some(words) = comment.strip_prefix("//") else {
            is_code = false;
            continue;
        };
        let words = words.trim_start_matches(['/', '!']).trim_start();
        is_code ^= words.starts_with("```");
        if line.chars().count() > MAX_COLUMNS && !is_code && !words.starts_with('|') && !line.contains("http") {
            found.push(at + 1);
        }
    }
    found
}

/// Returns the numbers of a script's comment lines that have too many columns. Indented lines of a
/// comment count as code.
pub fn wide_script_comments(file: &str) -> Vec<usize> {
    let is_wide = |line: &str| {
        let words = line.trim_start().strip_prefix("# ");
        line.chars().count() > MAX_COLUMNS
            && words.is_some_and(|words| !words.starts_with(' ') && !words.contains("http"))
    };
    (1..).zip(file.lines()).filter(|(_, line)| is_wide(line)).map(|(number, _)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_prose_rule_finds_its_violations() {
        let rules = Rules::new();
        let cases: [(&str, &[&str]); 12] = [
            ("Bytes queued for disk, in addition to the memory limit.", &[]),
            ("What rows see of positions.", &["opening"]),
            ("Ends with the last row that nobody reads.", &["no-actor"]),
            ("The client is told the length.", &["told-said"]),
            ("Reads the block behind it.", &["behind-beside"]),
            ("Reads so many rows.", &["so-many"]),
            ("Takes what is what in what was read.", &["what-what"]),
            ("Reads that which holds what says where.", &["relative-chain"]),
            ("Experts of which half are cached.", &["of-which"]),
            ("Sums a, b, c, d, e, f, g, h, i and j.", &[]),
            ("Sums a, b, c, d, e, f, g, h, i, j and k.", &["long-list"]),
            ("Is `what` in [what](what) `what`.", &[]),
        ];
        for (text, broken) in cases {
            assert_eq!(rules.broken_by(text, Kind::Doc), broken, "{text}");
        }
        let words = |count| vec!["word"; count].join(" ") + ".";
        assert_eq!(rules.broken_by(&words(30), Kind::Doc), [""; 0]);
        assert_eq!(rules.broken_by(&words(31), Kind::Doc), ["long-sentence"]);
        assert_eq!(rules.broken_by("What a comment within code says.", Kind::Comment), [""; 0]);
        let paragraph = "One sentence. ".repeat(7);
        assert_eq!(rules.broken_by(&paragraph, Kind::Page), ["long-paragraph"]);
        assert_eq!(rules.broken_by(&paragraph, Kind::Doc), [""; 0]);
    }

    #[test]
    fn checked_texts_are_comments_and_error_messages() {
        let file = [
            "//! The module.",
            "//!",
            "//! - an item",
            "//!   of two lines",
            "//! ```",
            "//! code",
            "//! ```",
            "",
            "/// A function,",
            "/// documented.",
            "#[error(\"no {x} in \\\"{y}\\\"\")]",
            "fn f() {",
            "    // Why.",
            "    let x = 1; // trailing",
            "}",
        ]
        .join("\n");
        let texts: Vec<_> = texts_of_rust(&file).into_iter().map(|text| (text.line, text.kind, text.words)).collect();
        let expected = [
            (1, Kind::Doc, "The module."),
            (3, Kind::Doc, "an item of two lines"),
            (9, Kind::Doc, "A function, documented."),
            (11, Kind::Error, "no x in \"x\""),
            (13, Kind::Comment, "Why."),
        ];
        assert_eq!(texts, expected.map(|(line, kind, words)| (line, kind, words.to_owned())));
    }

    #[test]
    fn texts_of_scripts_are_comments_and_docstrings() {
        let file = [
            "#!/usr/bin/env python3",
            "\"\"\"Makes a file.",
            "",
            "    make.py FILE",
            "",
            "The file has",
            "numbers.",
            "\"\"\"",
            "# A comment",
            "# of two lines.",
            "TEXT = \"\"\"",
            "# A value.",
            "\"\"\"",
            "def f():",
            "    \"\"\"Returns one.\"\"\"",
            "    return 1  # not read",
            "def g():",
            "    \"\"\"Returns two,",
            "    and more.\"\"\"",
            "    # usage: g()",
        ]
        .join("\n");
        let texts: Vec<_> = texts_of_script(&file).into_iter().map(|text| (text.line, text.kind, text.words)).collect();
        let expected = [
            (2, Kind::Doc, "Makes a file."),
            (6, Kind::Doc, "The file has numbers."),
            (9, Kind::Comment, "A comment of two lines."),
            (15, Kind::Doc, "Returns one."),
            (18, Kind::Doc, "Returns two, and more."),
        ];
        assert_eq!(texts, expected.map(|(line, kind, words)| (line, kind, words.to_owned())));
        let wide = format!("# {}\nx = 1\n#   {}", "x".repeat(99), "x".repeat(99));
        assert_eq!(wide_script_comments(&wide), [1]);
    }

    #[test]
    fn generated_pages_are_not_checked() {
        assert_eq!(texts_of_page("# Title\n\nA paragraph\nof two lines.\n\n| a | table |\n").len(), 1);
        assert_eq!(texts_of_page("<!-- Generated by a test. -->\n\nA paragraph.\n").len(), 0);
    }

    #[test]
    fn wide_comments_are_found() {
        let x = "x".repeat(98);
        let lines = [
            format!("// {x}"),
            format!("let x = \"{x}\";"),
            format!("// {x} https://example.org"),
            format!("//! | {x} |"),
            "/// ```text".to_owned(),
            format!("/// {x}"),
            "/// ```".to_owned(),
            format!("    /// {x}"),
        ];
        assert_eq!(wide_comments(&lines.join("\n")), [1, 8]);
    }

    #[test]
    fn subjects_name_an_area_and_begin_with_a_verb() {
        let rules = Rules::new();
        assert!(rules.is_subject("arch: read Qwen3 head norms"));
        for subject in ["Heads are normalised", "arch: Read norms", &format!("arch: {}", "x".repeat(67))] {
            assert!(!rules.is_subject(subject), "{subject}");
        }
    }
}
