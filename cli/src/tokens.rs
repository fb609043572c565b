//! Token ids on the command line: `1,2,3`, or `@file` with ids separated by commas or white space.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, anyhow};
use ixc_files::read_argument;

/// Max size of a text, list of ids or graph. A prompt of four million tokens fits, more than any
/// context, and so does the graph of a model with thousands of layers.
const MAX_TEXT_BYTES: u64 = 16 << 20;

/// List of token ids, or its file.
#[derive(Clone, Debug)]
pub enum TokenList {
    /// The list, as given on the command line.
    Text(String),
    /// Path of a file with the list.
    File(PathBuf),
}

impl FromStr for TokenList {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<TokenList, Infallible> {
        Ok(match text.strip_prefix('@') {
            Some(path) => TokenList::File(path.into()),
            None => TokenList::Text(text.to_owned()),
        })
    }
}

impl TokenList {
    /// Returns the file of the list, if there is one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            TokenList::Text(_) => None,
            TokenList::File(path) => Some(path),
        }
    }

    /// Returns the ids, without a check against the model's vocabulary.
    pub fn read(&self) -> anyhow::Result<Vec<u32>> {
        match self {
            TokenList::Text(text) => parse(text).context("token ids"),
            TokenList::File(path) => parse(&read(path)?).with_context(|| path.display().to_string()),
        }
    }
}

fn parse(text: &str) -> anyhow::Result<Vec<u32>> {
    let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    let ids = words.enumerate().map(|(index, word)| {
        word.parse().map_err(|_| {
            let shown: String = word.chars().take(32).collect();
            let what = format!("token {index} is \"{shown}\"; expected a number from 0 to 4294967295");
            anyhow!(super::BadInput(what))
        })
    });
    let ids = ids.collect::<anyhow::Result<Vec<u32>>>()?;
    if ids.is_empty() { Err(ixc_compile::Error::NoTokens.into()) } else { Ok(ids) }
}

/// Reads a text that the user named: a file, a pipe, or standard input for the path `-`.
pub fn read(path: &std::path::Path) -> anyhow::Result<String> {
    Ok(read_argument(path, MAX_TEXT_BYTES).map_err(ixc_error::Error::from)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_ids_are_separated_by_commas_or_whitespace() {
        assert_eq!(parse("1,2, 3\n4").unwrap(), [1, 2, 3, 4]);
        assert!(parse("").is_err());
        assert!(parse("1,-2").unwrap_err().to_string().contains("token 1 is \"-2\""));
    }
}
