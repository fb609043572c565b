//! Targets for grammars and JSON schemas. They are compiled as the server does, and their token
//! masks are computed for a short answer.

use std::sync::LazyLock;

use ixc_grammar::{GrammarError, GrammarSource, Vocabulary, to_lark};
use serde_json::Value;

use crate::{Outcome, helper};

/// Max number of tokens in an answer.
const MAX_TOKENS: usize = 12;

/// Dictionary of GBNF and Lark.
pub const GRAMMAR_DICTIONARY: &[&str] = &[
    "root ::= ",
    "\n",
    " | ",
    "\"",
    "\"a\"",
    "[a-z]",
    "[^\"\\\\]",
    "*",
    "+",
    "?",
    "{2,5}",
    "{0,99999}",
    "(",
    ")",
    "# c\n",
    "\\x41",
    "\\u00e9",
    "\\U0001F600",
    ".",
    "ws ::= ",
    "%llguidance {}\n",
    "start: ",
    "/[a-z]+/",
    "/(?i:a)/",
    " & ",
    "~",
    "%json {",
    "%regex {",
    "[capture]",
    "<|end|>",
    "<[1-3]>",
    "%ignore ",
    "lazy",
    "max_tokens=3",
];

/// Dictionary of JSON schemas.
pub const SCHEMA_DICTIONARY: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "null",
    "true",
    "false",
    "-1",
    "1e999",
    "\"type\":",
    "\"object\"",
    "\"array\"",
    "\"string\"",
    "\"number\"",
    "\"integer\"",
    "\"properties\":",
    "\"required\":",
    "\"items\":",
    "\"prefixItems\":",
    "\"enum\":",
    "\"const\":",
    "\"anyOf\":",
    "\"oneOf\":",
    "\"allOf\":",
    "\"not\":",
    "\"$ref\":",
    "\"#/$defs/a\"",
    "\"$defs\":",
    "\"pattern\":",
    "\"format\":",
    "\"date-time\"",
    "\"minLength\":",
    "\"maxLength\":",
    "\"minimum\":",
    "\"multipleOf\":",
    "\"minItems\":",
    "\"maxItems\":",
    "\"uniqueItems\":",
    "\"additionalProperties\":",
    "\"patternProperties\":",
    "\"propertyNames\":",
    "\"if\":",
    "\"then\":",
    "\"dependentRequired\":",
    "\"contains\":",
];

/// Vocabulary of all bytes and some words.
static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    let mut words: Vec<Vec<u8>> = (0..=u8::MAX - 1).map(|byte| vec![byte]).collect();
    words.extend(
        ["\": ", "{\"", "\"}", ", \"", "true", "null", "ab", "  ", "é", "12"].map(|word| word.as_bytes().to_vec()),
    );
    // The last token ends an answer.
    words.push(b"\xff<end>".to_vec());
    let end = words.len() as u32 - 1;
    Vocabulary::of_words(words, vec![end]).expect("a small vocabulary").with_helper(helper::program())
});

/// Compiles a grammar in GBNF or Lark, and takes tokens that it allows.
pub fn grammar(input: &[u8]) -> Outcome {
    let Ok(text) = std::str::from_utf8(input) else { return Outcome::refused("is not UTF-8") };
    let source = GrammarSource::of_text(text);
    if matches!(source, GrammarSource::Gbnf(_))
        && let Err(error) = to_lark(text)
    {
        let class = error.class();
        return Outcome::refused_as(error, class);
    }
    follow(&source)
}

/// Compiles a JSON schema, and takes tokens that it allows.
pub fn schema(input: &[u8]) -> Outcome {
    match serde_json::from_slice::<Value>(input) {
        Ok(schema) => follow(&GrammarSource::Schema(schema)),
        Err(error) => Outcome::refused(error),
    }
}

/// Compiles a grammar, and takes allowed tokens until the answer ends or is long enough.
fn follow(source: &GrammarSource) -> Outcome {
    let mut matcher = match VOCABULARY.matcher(source) {
        Ok(matcher) => matcher,
        Err(error @ (GrammarError::HelperFailed { .. } | GrammarError::Vocabulary { .. })) => panic!("{error}"),
        Err(error) => return Outcome::refused(error),
    };
    let mut count = 0;
    while count < MAX_TOKENS && !matcher.is_ended() {
        let token = match matcher.token_mask() {
            Ok(mask) => first(mask, count),
            Err(error) => return Outcome::refused(format!("compiled, {error}")),
        };
        let Some(token) = token else { panic!("no token is allowed after {count}, and the answer has not ended") };
        if let Err(error) = matcher.accept(token) {
            panic!("token {token} is allowed and refused: {error}");
        }
        count += 1;
    }
    Outcome::Accepted(format!("{}", matcher.is_ended()))
}

/// Returns an allowed token of a mask. If `count` is even, it is the first allowed token;
/// otherwise, it is a later one.
fn first(mask: &[u32], count: usize) -> Option<u32> {
    let words = mask.iter().enumerate();
    let mut tokens = words
        .flat_map(|(at, word)| (0..32).filter(move |bit| word & (1 << bit) != 0).map(move |bit| at as u32 * 32 + bit));
    let first = tokens.next();
    if count % 2 == 1 { tokens.nth(40).or(first) } else { first }
}
