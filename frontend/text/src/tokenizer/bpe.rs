//! Byte pair encoding (BPE). In each word of the pre-tokenizer, it applies the merge with the
//! lowest rank first. It begins with bytes or with characters, depending on how the vocabulary
//! spells text ([`Alphabet`]).
//!
//! The `tokenizers` crate is only a reference in tests, for two reasons. Its splitter backtracks,
//! and when it reaches its limit, it leaves the remaining text unsplit. It also refuses
//! vocabularies in which a merge gives a text that is not a token; llama.cpp accepts them. SPM uses
//! the same merge loop with other priorities, so the loop is in `merge`.

use std::borrow::Cow;
use std::collections::HashMap;

use super::merge::{Join, Symbol, merge};
use super::pretokenize::{Alphabet, PreTokenizer, Splitter, WholeWords};
use super::spec::{TokenizerSpec, byte_token, split_merge};
use super::vocabulary::{SPM_SPACE, Vocabulary};
use super::{TokenizerError, byte_level};

/// Id of a character that is not a token and occurs in no merge.
const NO_SYMBOL: u32 = u32::MAX;

/// BPE tokenizer. The id of a symbol is a token id, or a larger number if the symbol's text is not
/// a token.
#[derive(Clone, Debug)]
pub struct Bpe {
    splitter: Splitter,
    whole_words: WholeWords,
    alphabet: Alphabet,
    /// Token id of each byte, for text that no larger token covers.
    byte_ids: Vec<u32>,
    /// Texts that occur in merges but are not tokens, with their ids.
    merge_only_texts: HashMap<String, u32>,
    /// Merges. The key is the ids of the left and right symbols; the value has the rank and the
    /// merged id.
    merges: HashMap<(u32, u32), Join>,
}

impl Bpe {
    /// Returns the tokenizer of a spec, which must be valid.
    pub fn new(spec: &TokenizerSpec, vocabulary: &Vocabulary) -> Result<Bpe, TokenizerError> {
        let pre_tokenizer = PreTokenizer::from_name(&spec.pre_tokenizer)?;
        let alphabet = pre_tokenizer.alphabet;
        let mut merge_only_texts: HashMap<String, u32> = HashMap::new();
        let mut intern = |text: &str| {
            vocabulary.id(text).unwrap_or_else(|| {
                let next = (vocabulary.len() + merge_only_texts.len()) as u32;
                *merge_only_texts.entry(text.to_owned()).or_insert(next)
            })
        };
        let byte_ids = (0..=255).map(|byte| match alphabet {
            Alphabet::Bytes => intern(byte_level::letter(byte).encode_utf8(&mut [0; 4])),
            Alphabet::Characters => vocabulary.id(&byte_token(byte)).unwrap_or(NO_SYMBOL),
        });
        let byte_ids = byte_ids.collect();
        let mut merges = HashMap::with_capacity(spec.merges.len());
        for (text, priority) in spec.merges.iter().zip(0..) {
            if let Some((left, right)) = split_merge(text) {
                let id = intern(&[left, right].concat());
                merges.entry((intern(left), intern(right))).or_insert(Join { priority, id });
            }
        }
        let (splitter, whole_words) = (pre_tokenizer.splitter(), pre_tokenizer.whole_words);
        Ok(Bpe { splitter, whole_words, alphabet, byte_ids, merge_only_texts, merges })
    }

    /// Appends the token ids of `text`, which must contain no special tokens.
    pub fn encode(
        &self,
        vocabulary: &Vocabulary,
        unknown: Option<u32>,
        text: &str,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let text = match self.alphabet {
            Alphabet::Bytes => Cow::Borrowed(text),
            Alphabet::Characters => Cow::Owned(text.replace(' ', SPM_SPACE.encode_utf8(&mut [0; 4]))),
        };
        let mut symbols = Vec::new();
        for word in self.splitter.split(&text) {
            if let Some(id) = self.whole_word(vocabulary, word) {
                ids.push(id);
                continue;
            }
            symbols.clear();
            match self.alphabet {
                Alphabet::Bytes => {
                    let bytes = (0..).zip(word.bytes());
                    symbols.extend(bytes.map(|(at, byte)| Symbol::new(at, 1, self.byte_ids[byte as usize])));
                }
                Alphabet::Characters => symbols.extend(word.char_indices().map(|(at, c)| {
                    let mut bytes = [0; 4];
                    let text: &str = c.encode_utf8(&mut bytes);
                    let id = vocabulary.id(text).or_else(|| self.merge_only_texts.get(text).copied());
                    Symbol::new(at as u32, text.len() as u32, id.unwrap_or(NO_SYMBOL))
                })),
            }
            merge(&mut symbols, |left, right| self.merges.get(&(left.id, right.id)).copied());
            for symbol in &symbols {
                if (symbol.id as usize) < vocabulary.len() {
                    ids.push(symbol.id);
                    continue;
                }
                // A symbol that is not a token is written as the tokens of its bytes.
                for byte in word.bytes().skip(symbol.start as usize).take(symbol.len as usize) {
                    let id = self.byte_ids[byte as usize];
                    let token = Some(id).filter(|&id| (id as usize) < vocabulary.len()).or(unknown);
                    ids.push(token.ok_or(TokenizerError::NoTokenForByte { byte })?);
                }
            }
        }
        Ok(())
    }

    /// Returns the token for a whole word, if the pre-tokenizer looks up such words before it
    /// merges.
    fn whole_word(&self, vocabulary: &Vocabulary, word: &str) -> Option<u32> {
        let looks = match self.whole_words {
            WholeWords::Never => false,
            WholeWords::Always => true,
            WholeWords::LineFeeds => word.starts_with('\n') && word.bytes().all(|byte| byte == b'\n'),
        };
        if !looks {
            return None;
        }
        match self.alphabet {
            Alphabet::Bytes => vocabulary.id(&word.bytes().map(byte_level::letter).collect::<String>()),
            Alphabet::Characters => vocabulary.id(word),
        }
    }
}
