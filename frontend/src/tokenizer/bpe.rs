//! Byte-level BPE: words from the pre-tokenizer, in each word the merge with the lowest rank first.
//!
//! Own code and not the `tokenizers` crate, which is the oracle in the tests: its splitter backtracks (and on reaching
//! its limit leaves the rest of the text unsplit), it refuses vocabularies whose merges make texts that are not tokens,
//! which llama.cpp takes, and SPM needs the same merge loop with other priorities.

use std::collections::HashMap;

use super::merge::{Join, Symbol, merge};
use super::pretokenize::{PreTokenizer, Splitter};
use super::spec::{TokenizerSpec, split_merge};
use super::vocabulary::Vocabulary;
use super::{TokenizerError, byte_level};

/// The model. A symbol's id is a token's, or comes after all tokens' where its text is none.
#[derive(Clone, Debug)]
pub struct Bpe {
    splitter: Splitter,
    ignore_merges: bool,
    byte_ids: Vec<u32>,
    /// (left, right) to (rank, merged).
    merges: HashMap<(u32, u32), Join>,
}

impl Bpe {
    /// From a spec that is valid.
    pub fn new(spec: &TokenizerSpec, vocabulary: &Vocabulary) -> Result<Bpe, TokenizerError> {
        let pre_tokenizer = PreTokenizer::named(&spec.pre_tokenizer)?;
        let mut others: HashMap<String, u32> = HashMap::new();
        let mut intern = |text: &str| {
            vocabulary.id(text).unwrap_or_else(|| {
                let next = (vocabulary.len() + others.len()) as u32;
                *others.entry(text.to_owned()).or_insert(next)
            })
        };
        let byte_ids = (0..=255).map(|byte| intern(byte_level::letter(byte).encode_utf8(&mut [0; 4]))).collect();
        let mut merges = HashMap::with_capacity(spec.merges.len());
        for (text, priority) in spec.merges.iter().zip(0..) {
            if let Some((left, right)) = split_merge(text) {
                let id = intern(&[left, right].concat());
                merges.entry((intern(left), intern(right))).or_insert(Join { priority, id });
            }
        }
        Ok(Bpe { splitter: pre_tokenizer.splitter(), ignore_merges: pre_tokenizer.ignore_merges, byte_ids, merges })
    }

    /// Appends the ids of `text`, which holds no special tokens.
    pub fn encode(
        &self,
        vocabulary: &Vocabulary,
        unknown: Option<u32>,
        text: &str,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let mut symbols = Vec::new();
        for word in self.splitter.split(text) {
            if self.ignore_merges {
                let letters: String = word.bytes().map(byte_level::letter).collect();
                if let Some(id) = vocabulary.id(&letters) {
                    ids.push(id);
                    continue;
                }
            }
            symbols.clear();
            symbols.extend((0..).zip(word.bytes()).map(|(at, byte)| Symbol::new(at, 1, self.byte_ids[byte as usize])));
            merge(&mut symbols, |left, right| self.merges.get(&(left.id, right.id)).copied());
            for symbol in &symbols {
                if (symbol.id as usize) < vocabulary.len() {
                    ids.push(symbol.id);
                    continue;
                }
                // Merged into a text that is no token: its bytes.
                for byte in word.bytes().skip(symbol.start as usize).take(symbol.len as usize) {
                    let id = self.byte_ids[byte as usize];
                    let token = Some(id).filter(|&id| (id as usize) < vocabulary.len()).or(unknown);
                    ids.push(token.ok_or(TokenizerError::NoTokenForByte { byte })?);
                }
            }
        }
        Ok(())
    }
}
