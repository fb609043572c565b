//! DRY's sequence breakers: converts texts to the tokens that end a repetition.

use ixc_runtime::sample::{Breaker, Breakers};
use ixc_text::tokenizer::Tokenizer;

use crate::Error;

/// Default texts that no repetition extends over, the same as in llama.cpp.
pub const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];
/// Max number of tokens of a sequence breaker after its first token.
const MAX_BREAKER_TOKENS: usize = 20;
/// Max number of token sequences: a text may be contained in many tokens, or begin in them.
const MAX_BREAKERS: usize = 1 << 16;

/// Returns the token sequences that end a repetition. A sequence is one token that contains one of
/// the texts. Or it is a token that ends with the beginning of a text, followed by the tokens of
/// the remaining text.
///
/// # Errors
/// When the tokenizer has no tokens for a remaining text, or there are too many sequences.
pub fn breakers(tokenizer: &Tokenizer, texts: &[impl AsRef<str>]) -> Result<Breakers, Error> {
    breakers_within(MAX_BREAKERS, tokenizer, texts)
}

/// Returns the token sequences of [`breakers`], or an error if there are more than `most`.
fn breakers_within(most: usize, tokenizer: &Tokenizer, texts: &[impl AsRef<str>]) -> Result<Breakers, Error> {
    let mut all = Vec::new();
    for text in texts.iter().map(AsRef::as_ref).filter(|text| !text.is_empty()) {
        // The tokens of the rest of the text, for each position at which a token may end inside the
        // text. They are cached for all such tokens.
        let mut rests: Vec<Option<Vec<u32>>> = vec![None; text.len()];
        for token in 0..tokenizer.token_count() as u32 {
            let word = String::from_utf8_lossy(tokenizer.token_bytes(token)?);
            if word.contains(text) {
                all.push(Breaker { head: token, tail: Vec::new() });
            } else {
                // Lengths of prefixes of the text that the token may end with.
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
                    all.push(Breaker { head: token, tail: rest.clone() });
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
