//! Bytes and type of each token, and the tokens that end generation. Files often omit the roles of
//! tokens. Tokens with well-known names therefore have their roles in every file. The names are
//! those of llama.cpp (`llama_vocab::impl::load`).

use std::collections::{BTreeSet, HashMap};

use super::escapes::unescape;
use super::pretokenize::{Alphabet, PreTokenizer};
use super::spec::{ModelKind, TokenType, TokenizerSpec, byte_of};
use super::{TokenizerError, byte_level};

/// Names of tokens that end generation. They are control tokens, whatever type the file states.
const END_NAMES: [&str; 33] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    // These are tokens for filling in the middle: padding, next repository, next file.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Names of the tokens around code that is to be filled in. They are recognised only on request,
/// even if the file states that they are always tokens, so that user text never contains them.
const FILL_IN_NAMES: [&str; 18] = [
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<fim-prefix>",
    "<fim-suffix>",
    "<fim-middle>",
    "<fim_prefix>",
    "<fim_suffix>",
    "<fim_middle>",
    "<｜fim▁begin｜>",
    "<｜fim▁hole｜>",
    "<｜fim▁end｜>",
    "<PRE>",
    "<SUF>",
    "<MID>",
    "<|code_prefix|>",
    "<|code_suffix|>",
    "<|code_middle|>",
];

/// Names of the tokens that structure gpt-oss's messages. They are shown as text.
const SHOWN_NAMES: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// Character that stands for a space in SentencePiece.
pub const SPM_SPACE: char = '▁';

/// Text, bytes and type of each token. The text and the bytes differ if the vocabulary spells
/// spaces or bytes in its own way.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    ids: HashMap<Box<str>, u32>,
    types: Vec<TokenType>,
    bytes: Vec<Box<[u8]>>,
    ends: BTreeSet<u32>,
}

impl Vocabulary {
    /// Reads a spec, which must be valid. If several tokens have the same text, the text means the
    /// first.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownPreTokenizer`].
    pub fn new(spec: &TokenizerSpec) -> Result<Vocabulary, TokenizerError> {
        let alphabet = match spec.model {
            ModelKind::Bpe => PreTokenizer::from_name(&spec.pre_tokenizer)?.alphabet,
            ModelKind::Spm
            | ModelKind::Unigram
            | ModelKind::Longest
            | ModelKind::WordPiece
            | ModelKind::Sentence
            | ModelKind::None => Alphabet::Characters,
        };
        let mut ids = HashMap::with_capacity(spec.tokens.len());
        for (text, id) in spec.tokens.iter().zip(0..) {
            if !text.is_empty() {
                ids.entry(text.as_str().into()).or_insert(id);
            }
        }
        let mut types = match spec.types.len() {
            0 => vec![TokenType::Normal; spec.tokens.len()],
            _ => spec.types.clone(),
        };
        let ends = set_roles(spec, &ids, &mut types);
        let of = |(text, ty): (&String, &TokenType)| match (spec.model, ty) {
            // These vocabularies have spaces unchanged.
            (ModelKind::Unigram, ty) if *ty != TokenType::Byte => text.as_bytes().into(),
            (ModelKind::Longest, ty) if !ty.is_name() => unescape(text).unwrap_or_default().into(),
            (_, ty) => token_bytes(alphabet, text, *ty),
        };
        let bytes = spec.tokens.iter().zip(&types).map(of).collect();
        Ok(Vocabulary { ids, types, bytes, ends })
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the id of the token with this text.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// Returns the bytes of a token.
    pub fn bytes(&self, id: u32) -> Result<&[u8], TokenizerError> {
        let bytes = self.bytes.get(id as usize);
        bytes.map(|bytes| &**bytes).ok_or(TokenizerError::UnknownId { id, tokens: self.len() })
    }

    /// Returns a token's type, which its role may have changed.
    pub fn token_type(&self, id: u32) -> TokenType {
        self.types.get(id as usize).copied().unwrap_or(TokenType::Undefined)
    }

    /// Returns whether this token ends generation.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// Returns the ids of tokens that end generation.
    pub fn ends(&self) -> impl Iterator<Item = u32> {
        self.ends.iter().copied()
    }
}

/// Sets the types of tokens with well-known names. Returns the ids of tokens that end generation.
fn set_roles(spec: &TokenizerSpec, ids: &HashMap<Box<str>, u32>, types: &mut [TokenType]) -> BTreeSet<u32> {
    let find = |text: &str| ids.get(text).copied();
    let special = &spec.special;
    let mut ends = BTreeSet::new();
    for id in END_NAMES.iter().filter_map(|name| find(name)) {
        ends.insert(id);
        types[id as usize] = TokenType::Control;
    }
    for id in FILL_IN_NAMES.iter().filter_map(|name| find(name)) {
        let ty = &mut types[id as usize];
        *ty = if *ty == TokenType::UserDefined { TokenType::Control } else { *ty };
    }
    for id in SHOWN_NAMES.iter().filter_map(|name| find(name)) {
        types[id as usize] = TokenType::UserDefined;
    }
    ends.extend(special.fim_ends.iter().chain(&special.eos).chain(&special.eot).chain(&special.eom));

    // In harmony and similar formats, `<|end|>` ends a message, but not the answer.
    let has = |name: &str| find(name).is_some();
    let harmony = (has("<|return|>") && has("<|call|>")) || (has("<|calls|>") && has("<|flush|>"));
    if let (true, Some(end)) = (harmony, find("<|end|>")) {
        ends.remove(&end);
        types[end as usize] = TokenType::UserDefined;
    }
    // In Gemma 4, `</s>` is ordinary text, an HTML tag.
    if let (true, Some(end)) = (has("<|tool_response>"), find("</s>")) {
        ends.remove(&end);
        types[end as usize] = TokenType::Normal;
    }
    ends
}

/// Returns the bytes that a token's text stands for.
fn token_bytes(alphabet: Alphabet, text: &str, ty: TokenType) -> Box<[u8]> {
    match (ty, alphabet) {
        (TokenType::Unknown | TokenType::Control | TokenType::UserDefined, _) => text.as_bytes().into(),
        (TokenType::Byte, _) => byte_of(text).into_iter().collect(),
        (_, Alphabet::Bytes) => byte_level::decode(text).into(),
        (_, Alphabet::Characters) => text.replace(SPM_SPACE, " ").into_bytes().into(),
    }
}
