//! Vocabulary of a model, in the form that the matcher uses.

use std::path::PathBuf;
use std::sync::Arc;

use ixc_text::tokenizer::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, earley::SlicedBiasComputer};

use crate::compile::Compiler;
use crate::isolate::{Helper, SpecialTokens};
use crate::keys::{Keys, TokenTexts};
use crate::{GrammarError, GrammarSource, Matcher};

/// Max bytes of a token that a grammar may choose. Each node of the token tree counts its parents
/// in ten bits.
const MAX_TOKEN_BYTES: usize = 1000;
/// Max bytes of all tokens. The limit ensures that the number of the tree's nodes fits into its
/// field.
const MAX_TREE_BYTES: usize = (1 << 22) - 2;
/// Max Earley items for one mask. They take about 50 ms. The default is a twentieth of this limit,
/// and grammars of single characters exceed it.
const MAX_STEP_ITEMS: usize = 1_000_000;
/// Max Earley items of one row. For an object with thousands of members, a row has some items for
/// each member.
const MAX_ROW_ITEMS: usize = 50_000;

/// Vocabulary of a model, in the form that the matcher uses. It is made once for each model.
pub struct Vocabulary {
    factory: Arc<ParserFactory>,
    /// Tokens that grammars can name. The matcher has one token more than the model. That token
    /// ends an answer if no token of the model does.
    special: SpecialTokens,
    compiler: Compiler,
    helper: Option<Helper>,
    words: Arc<TokenTexts>,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("tokens", &self.special.tokens).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// Creates the vocabulary of a tokenizer.
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`] if the vocabulary has too many tokens or bytes.
    pub fn new(tokenizer: &Tokenizer) -> Result<Vocabulary, GrammarError> {
        let words = (0..tokenizer.token_count() as u32).map(|id| word(tokenizer, id)).collect();
        Vocabulary::of_words(words, tokenizer.end_of_generation())
    }

    /// Creates a vocabulary from the bytes of tokens and the tokens that end an answer. A token
    /// without bytes cannot be chosen by a grammar.
    ///
    /// # Errors
    /// The errors of [`Vocabulary::new`].
    pub fn of_words(mut words: Vec<Vec<u8>>, mut ends: Vec<u32>) -> Result<Vocabulary, GrammarError> {
        let wrong = |message: String| GrammarError::Vocabulary { message };
        let (tokens, bytes) = (words.len(), words.iter().map(Vec::len).sum::<usize>());
        // Token numbers have 24 bits, and one number is reserved.
        if tokens >= 0x00ff_fffe || bytes > MAX_TREE_BYTES {
            return Err(wrong(format!(
                "it has {tokens} tokens of {bytes} bytes; the limits are 16777213 tokens and {MAX_TREE_BYTES} bytes"
            )));
        }
        // This token has no text, so grammars allow it only as an end.
        words.push(Vec::new());
        let own = tokens as u32;
        ends.retain(|end| *end < own);
        let is_special = |word: &Vec<u8>| word.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER);
        let named = words.iter().enumerate().filter(|(_, word)| is_special(word));
        let named = named.map(|(id, word)| (id as u32, word.clone())).collect();
        let special = SpecialTokens { tokens, words: named, ends: ends.clone() };
        if ends.is_empty() {
            ends.push(own);
        }
        let info = TokRxInfo::new(words.len() as u32, ends[0]);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let capabilities = InferenceCapabilities::default();
        let mut factory =
            ParserFactory::new(&environment, capabilities, &slices).map_err(|error| wrong(error.to_string()))?;
        let words = Arc::new(TokenTexts::new(&words));
        factory.quiet();
        let limits = factory.limits_mut();
        limits.step_max_items = MAX_STEP_ITEMS;
        limits.max_items_in_row = MAX_ROW_ITEMS;
        // Verbose errors would contain the answer so far.
        limits.verbose_errors = false;
        Ok(Vocabulary { factory: Arc::new(factory), special, compiler: Compiler::default(), helper: None, words })
    }

    /// Creates a vocabulary from single bytes and the special tokens of another vocabulary. Apart
    /// from the vocabulary's size, a grammar costs the same with both.
    ///
    /// # Errors
    /// The errors of [`Vocabulary::new`].
    pub(crate) fn of_bytes(special: SpecialTokens) -> Result<Vocabulary, GrammarError> {
        let mut words = vec![Vec::new(); special.tokens];
        for (id, word) in special.words {
            words.get_mut(id as usize).into_iter().for_each(|place| place.clone_from(&word));
        }
        let free = words.iter_mut().filter(|word| word.is_empty());
        // The byte that marks special tokens is not a byte of any text.
        let bytes = (0..=u8::MAX).filter(|byte| *byte != TokTrie::SPECIAL_TOKEN_MARKER);
        free.zip(bytes).for_each(|(word, byte)| word.push(byte));
        Vocabulary::of_words(words, special.ends)
    }

    /// Compiles a grammar on the calling thread, as [`compile_here`] does.
    pub(crate) fn matcher_here(&self, source: &GrammarSource) -> Result<Matcher, GrammarError> {
        compile_here(&self.factory, &self.words, self.special.tokens, source)
    }

    /// Sets the helper, a process of `program` that compiles grammars first and contains crashes.
    /// The program must call [`serve_compile_request`](crate::serve_compile_request) when its first
    /// argument is [`COMPILE_ARGUMENT`](crate::COMPILE_ARGUMENT).
    #[must_use]
    pub fn with_helper(self, program: PathBuf) -> Vocabulary {
        Vocabulary { helper: Some(Helper::new(program)), ..self }
    }

    /// Compiles a grammar for an answer that has no tokens yet. This may take seconds.
    ///
    /// # Errors
    /// If the grammar cannot be compiled or exceeds a limit.
    pub fn matcher(&self, source: &GrammarSource) -> Result<Matcher, GrammarError> {
        self.matcher_after(source, &[], &|| true)
    }

    /// Compiles a grammar, and then accepts the tokens that the answer already has. Stops soon
    /// after `is_wanted` returns false.
    ///
    /// # Errors
    /// If the grammar cannot be compiled, exceeds a limit, or does not allow these tokens at its
    /// beginning.
    pub fn matcher_after(
        &self,
        source: &GrammarSource,
        begun: &[u32],
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Matcher, GrammarError> {
        source.check_schemas()?;
        if let Some(helper) = &self.helper {
            helper.check(source, &self.special, is_wanted)?;
        }
        let (factory, words, tokens) = (Arc::clone(&self.factory), Arc::clone(&self.words), self.special.tokens);
        let source = source.clone();
        self.compiler.compile(move || compile_here(&factory, &words, tokens, &source), begun, is_wanted)
    }
}

/// Compiles a grammar on the calling thread, whose stack must have
/// [`STACK_BYTES`](crate::compile::STACK_BYTES) bytes.
pub(crate) fn compile_here(
    factory: &ParserFactory,
    words: &Arc<TokenTexts>,
    tokens: usize,
    source: &GrammarSource,
) -> Result<Matcher, GrammarError> {
    let compiled = source.compile()?;
    let grammar = TopLevelGrammar::from_lark(compiled.lark);
    let parser = factory.create_parser(grammar).map_err(|error| source.refusal(&format!("{error:#}")))?;
    let mut inner = llguidance::Matcher::new(Ok(parser));
    // If a grammar matches no text, the computation of its first mask fails.
    if let Err(error) = inner.compute_mask_or_eos() {
        let is_empty = error.to_string().contains("NoExtensionBias");
        return Err(if is_empty { GrammarError::Empty } else { GrammarError::TooLarge });
    }
    let keys = compiled.keys.map(|(begin, is_narrow)| Keys::new(Arc::clone(words), begin, is_narrow));
    Ok(Matcher::new(inner, tokens, keys))
}

/// Returns a token in the form that the matcher uses. It is the token's text, or the special-token
/// mark and the name of a control token. It is empty if no grammar may choose the token.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    let (is_text, mark) = (tokenizer.is_text(id), TokTrie::SPECIAL_TOKEN_MARKER);
    // This byte is the mark of special tokens. It never occurs in UTF-8.
    if bytes.len() > MAX_TOKEN_BYTES || is_text && bytes.first() == Some(&mark) || bytes.is_empty() {
        return Vec::new();
    }
    if is_text { bytes.to_vec() } else { [&[mark], bytes].concat() }
}
