//! Tokens that end a repetition, from texts.

use ixc_runtime::sample::Breakers;
use ixc_text::tokenizer::Tokenizer;

use crate::Error;

/// Default texts that no repetition extends over, the same as in llama.cpp.
pub const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];
/// Max number of tokens after the one that begins such a text.
const MAX_BREAKER_TOKENS: usize = 20;
/// Max number of token sequences: a text may be contained in many tokens, or begin in them.
const MAX_BREAKERS: usize = 1 << 16;

/// Returns the tokens that end a repetition: those that contain one of these texts, and those that
/// begin one, with the tokens of its rest.
///
/// # Errors
/// When the tokenizer has no tokens for a rest, or they are too many.
pub fn breakers(tokenizer: &Tokenizer, texts: &[impl AsRef<str>]) -> Result<Breakers, Error> {
    breakers_within(MAX_BREAKERS, tokenizer, texts)
}

/// Like [`breakers`], with at most `most` sequences.
fn breakers_within(most: usize, tokenizer: &Tokenizer, texts: &[impl AsRef<str>]) -> Result<Breakers, Error> {
    let mut all = Vec::new();
    for text in texts.iter().map(AsRef::as_ref).filter(|text| !text.is_empty()) {
        // The rest of the text after each place where a token may end, encoded once for all such
        // tokens.
        let mut rests: Vec<Option<Vec<u32>>> = vec![None; text.len()];
        for token in 0..tokenizer.token_count() as u32 {
            let word = String::from_utf8_lossy(tokenizer.token_bytes(token)?);
            if word.contains(text) {
                all.push((token, Vec::new()));
            } else {
                // Beginnings of the text that the token may end with, by length.
                let ends = (1..text.len().min(word.len() + 1)).filter(|end| text.is_char_boundary(*end));
                for end in ends.filter(|end| word.ends_with(&text[..*end])) {
                    let rest = match &mut rests[end] {
                        Some(rest) => rest,
                        none => {
                            let mut rest = tokenizer.encode(&text[end..], false)?;
                            rest.truncate(MAX_BREAKER_TOKENS);
                            none.insert(rest)
                        }
                    };
                    all.push((token, rest.clone()));
                }
            }
            if all.len() > most {
                return Err(Error::Breakers { text: text.to_owned(), most });
            }
        }
    }
    Ok(Breakers::new(all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loaded_model::{LoadOptions, LoadedModel};

    #[test]
    fn repetition_breakers_are_limited() {
        let session = LoadedModel::open(None, &LoadOptions::default()).unwrap();
        let tokenizer = session.tokenizer().unwrap();
        let texts: Vec<String> = (0..64).map(|i| format!("e{i}")).collect();
        let all = breakers(tokenizer, &texts).unwrap();
        assert!(all.len() > 64);
        assert_eq!(breakers_within(all.len(), tokenizer, &texts).unwrap(), all);
        let error = breakers_within(all.len() - 1, tokenizer, &texts).unwrap_err();
        assert!(matches!(error, Error::Breakers { .. }), "{error}");
        assert!(breakers(tokenizer, &[""]).unwrap().is_empty());
    }
}
