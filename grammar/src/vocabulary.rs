//! A model's tokens as the matcher takes them.

use std::sync::Arc;

use ixc_frontend::tokenizer::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, earley::SlicedBiasComputer};

use crate::{GrammarError, Matcher, Source};

/// Longest token that a grammar chooses, in bytes; nodes of the tree of tokens count their parents in ten bits.
const MAX_TOKEN_BYTES: usize = 1000;
/// Most bytes of all tokens, so that the tree has at most as many nodes as it can count.
const MAX_TREE_BYTES: usize = (1 << 22) - 2;
/// Stack of the thread that compiles a grammar: it recurses as rules do.
const STACK_BYTES: usize = 256 << 20;
/// Most Earley items for one mask, about 50 ms. The default is a twentieth of it, which grammars of single characters pass.
const MAX_STEP_ITEMS: usize = 1_000_000;

/// A model's tokens, ready for grammars. Made once for a model.
pub struct Vocabulary {
    factory: ParserFactory,
    /// Tokens of the tokenizer; the matcher has one more, which ends answers where no token does.
    tokens: usize,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// Of a tokenizer.
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`] where tokens are more than can be counted.
    pub fn new(tokenizer: &Tokenizer) -> Result<Vocabulary, GrammarError> {
        let words = (0..tokenizer.token_count() as u32).map(|id| word(tokenizer, id)).collect();
        Vocabulary::of_words(words, tokenizer.end_of_generation())
    }

    /// Of tokens' bytes, empty for those that no grammar may choose, and the tokens that end an answer.
    ///
    /// # Errors
    /// As for [`Vocabulary::new`].
    pub fn of_words(mut words: Vec<Vec<u8>>, mut ends: Vec<u32>) -> Result<Vocabulary, GrammarError> {
        let wrong = |message: String| GrammarError::Vocabulary { message };
        let (tokens, bytes) = (words.len(), words.iter().map(Vec::len).sum::<usize>());
        // Tokens are numbered in 24 bits, of which one number is none.
        if tokens >= 0x00ff_fffe || bytes > MAX_TREE_BYTES {
            return Err(wrong(format!("{tokens} tokens of {bytes} bytes are too many")));
        }
        // It has no text, so that nothing but an end allows it.
        words.push(Vec::new());
        let own = tokens as u32;
        ends.retain(|end| *end < own);
        if ends.is_empty() {
            ends.push(own);
        }
        let info = TokRxInfo::new(words.len() as u32, ends[0]);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let capabilities = InferenceCapabilities::default();
        let factory =
            ParserFactory::new(&environment, capabilities, &slices).map_err(|error| wrong(error.to_string()))?;
        let mut vocabulary = Vocabulary { factory, tokens };
        vocabulary.factory.quiet();
        let limits = vocabulary.factory.limits_mut();
        limits.step_max_items = MAX_STEP_ITEMS;
        // They would quote what was said so far.
        limits.verbose_errors = false;
        Ok(vocabulary)
    }

    /// A grammar at its beginning. May take tenths of a second.
    ///
    /// # Errors
    /// When it cannot be compiled, or would cost more than it may.
    pub fn matcher(&self, source: &Source) -> Result<Matcher, GrammarError> {
        let wrong = |message: String| GrammarError::Compile { message };
        // A thread of its own has the stack that it may take, and keeps a panic to itself.
        let parser = std::thread::scope(|scope| {
            let compile = || {
                let grammar = TopLevelGrammar::from_lark(source.lark()?);
                self.factory.create_parser(grammar).map_err(|error| wrong(format!("{error:#}")))
            };
            let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
            let thread = thread.spawn_scoped(scope, compile).map_err(|error| wrong(error.to_string()))?;
            thread.join().map_err(|_| wrong("its compiler panicked".into()))?
        })?;
        Ok(Matcher::new(llguidance::Matcher::new(Ok(parser)), self.tokens))
    }
}

/// What the matcher knows of a token: its text; a control token's name behind the mark of those; nothing where no grammar may choose it.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    let (is_text, mark) = (tokenizer.is_text(id), TokTrie::SPECIAL_TOKEN_MARKER);
    // No UTF-8 has that byte, which is the mark.
    if bytes.len() > MAX_TOKEN_BYTES || is_text && bytes.first() == Some(&mark) || bytes.is_empty() {
        return Vec::new();
    }
    if is_text { bytes.to_vec() } else { [&[mark], bytes].concat() }
}
