//! Public interface of tokenizers: a vocabulary that is ready to encode and decode.

use super::TokenizerError;
use super::bpe::Bpe;
use super::merge::MAX_LEN;
use super::rwkv_world::Longest;
use super::sentencepiece_unigram::Sentence;
use super::spec::{ModelKind, SpecialIds, TokenType, TokenizerSpec};
use super::special::{Fragment, SpecialTokens};
use super::spm::Spm;
use super::unigram::Unigram;
use super::values::{ControlNames, Values};
use super::vocabulary::Vocabulary;
use super::wordpiece::WordPiece;

/// Tokenizer of one model. It converts text to token ids and back.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    model: Model,
    /// Tokens that are always recognised in text.
    user_defined: SpecialTokens,
    /// Tokens that are recognised in text on request: also control tokens and unknown tokens.
    all_special: SpecialTokens,
    /// Names of control tokens. User text must not become these tokens.
    control: ControlNames,
    /// Length of the longest token in bytes.
    longest: usize,
    special: SpecialIds,
    add_bos: bool,
    add_eos: bool,
    pub(super) add_space_prefix: bool,
    /// Whether special tokens absorb the white space after them (Phi-3).
    takes_space: bool,
}

/// Token that only Phi-3's vocabulary has. Phi-3's `tokenizer.json` states that special tokens
/// absorb the white space after them (`rstrip`), but GGUF has no key for this.
const PHI_3: &str = "<|placeholder1|>";
/// Special tokens of Phi-3 that do not absorb the white space after them.
const LEAVE_SPACE: [&[u8]; 3] = [b"<unk>", b"<s>", b"<|endoftext|>"];

#[derive(Clone, Debug)]
enum Model {
    Spm(Spm),
    Bpe(Bpe),
    Unigram(Unigram),
    Longest(Longest),
    WordPiece(WordPiece),
    Sentence(Sentence),
}

/// Options for decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Whether control tokens are shown as their names. Otherwise they are omitted.
    pub show_special: bool,
    /// Whether the ids begin a text. The space that SPM put before the text is then removed.
    /// `false` for a model's output, which follows a prompt.
    pub at_start: bool,
}

impl Default for DecodeOptions {
    fn default() -> DecodeOptions {
        DecodeOptions { show_special: false, at_start: true }
    }
}

impl Tokenizer {
    /// Returns the tokenizer of a spec, which is checked.
    ///
    /// # Errors
    /// [`TokenizerError::NoVocabulary`], or an error of [`TokenizerSpec::validate`].
    pub fn new(spec: &TokenizerSpec) -> Result<Tokenizer, TokenizerError> {
        spec.validate()?;
        let vocabulary = Vocabulary::new(spec)?;
        let model = match spec.model {
            ModelKind::None => return Err(TokenizerError::NoVocabulary),
            ModelKind::Spm => Model::Spm(Spm::new(spec, &vocabulary)),
            ModelKind::Bpe => Model::Bpe(Bpe::new(spec, &vocabulary)?),
            ModelKind::Unigram => Model::Unigram(Unigram::new(spec, &vocabulary)),
            ModelKind::Longest => Model::Longest(Longest::new(spec, &vocabulary)),
            ModelKind::WordPiece => Model::WordPiece(WordPiece::new(spec)),
            ModelKind::Sentence => Model::Sentence(Sentence::new(spec, &vocabulary)),
        };
        let types = &vocabulary;
        let special =
            spec.tokens.iter().map(String::as_str).zip(0..).filter(|(_, id)| types.token_type(*id).is_special());
        let (user_defined, control): (Vec<(&str, u32)>, Vec<_>) =
            special.partition(|(_, id)| types.token_type(*id) == TokenType::UserDefined);
        let ids = 0..spec.tokens.len() as u32;
        Ok(Tokenizer {
            longest: ids.filter_map(|id| vocabulary.bytes(id).ok()).map(<[u8]>::len).max().unwrap_or(0),
            all_special: SpecialTokens::new(user_defined.iter().chain(&control).copied()),
            user_defined: SpecialTokens::new(user_defined),
            control: ControlNames::new(control.into_iter()),
            model,
            special: spec.special.clone(),
            add_bos: spec.add_bos,
            add_eos: spec.add_eos,
            add_space_prefix: match spec.model {
                ModelKind::Spm | ModelKind::Sentence => spec.add_space_prefix,
                ModelKind::WordPiece => true,
                ModelKind::Bpe | ModelKind::Unigram | ModelKind::Longest | ModelKind::None => false,
            },
            takes_space: spec.model == ModelKind::Spm && vocabulary.id(PHI_3).is_some(),
            vocabulary,
        })
    }

    /// Returns the token ids of `text`, without BOS and EOS. With `parse_special`, the name of a
    /// control token in the text becomes that token. Without it, such a name is ordinary text,
    /// because user text must not end its own turn. User-defined tokens are always recognised.
    ///
    /// # Errors
    /// [`TokenizerError::NoTokenForByte`] if the vocabulary cannot express the text, or
    /// [`TokenizerError::TextTooLong`].
    pub fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let special = if parse_special { &self.all_special } else { &self.user_defined };
        let mut ids = Vec::with_capacity(text.len() / 3);
        self.encode_stretch(text, special, None, &mut ids)?;
        Ok(ids)
    }

    /// Returns the protection for the values in one prompt. `texts` are all texts of the prompt:
    /// the template's source and its input.
    pub fn values<'v>(&self, texts: impl IntoIterator<Item = &'v str>) -> Values<'_> {
        Values::new(&self.control, texts)
    }

    /// Returns the token ids of a rendered prompt. Names of control tokens in the template's own
    /// text become those tokens. In values that `values` protected, they are ordinary text.
    ///
    /// # Errors
    /// See [`Tokenizer::encode`].
    pub fn encode_rendered(&self, text: &str, values: &Values<'_>) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        let (mut stretch, mut before) = (String::new(), None);
        for fragment in self.all_special.partition(text) {
            match fragment {
                Fragment::Text(text) => stretch.push_str(text),
                // The text with restored values is encoded later, and user-defined tokens are
                // recognised again then.
                Fragment::Token(id) if self.vocabulary.token_type(id) == TokenType::UserDefined => {
                    stretch.push_str(&String::from_utf8_lossy(self.vocabulary.bytes(id)?));
                }
                Fragment::Token(id) => {
                    self.encode_stretch(&values.restore(&stretch), &self.user_defined, before, &mut ids)?;
                    stretch.clear();
                    ids.push(id);
                    before = Some(id);
                }
            }
        }
        self.encode_stretch(&values.restore(&stretch), &self.user_defined, before, &mut ids)?;
        Ok(ids)
    }

    /// Appends the token ids of a text that is at the start of a sequence or follows the special
    /// token `before`.
    fn encode_stretch(
        &self,
        text: &str,
        special: &SpecialTokens,
        before: Option<u32>,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        // In SPM's spelling, a space has three bytes, so a text can grow threefold.
        let limit = MAX_LEN / 3 - 1;
        if text.len() > limit {
            return Err(TokenizerError::TextTooLong { bytes: text.len(), limit });
        }
        let (mut after_special, mut before) = (true, before);
        for fragment in special.partition(text) {
            let fragment = match fragment {
                Fragment::Text(text) if before.is_some_and(|id| self.takes_space(id)) => match text.trim_start() {
                    "" => continue,
                    text => Fragment::Text(text),
                },
                fragment => fragment,
            };
            before = match fragment {
                Fragment::Token(id) => Some(id),
                Fragment::Text(_) => None,
            };
            match (fragment, &self.model) {
                (Fragment::Token(id), _) => ids.push(id),
                (Fragment::Text(text), Model::Bpe(bpe)) => {
                    bpe.encode(&self.vocabulary, self.special.unk, text, ids)?;
                }
                (Fragment::Text(text), Model::Unigram(unigram)) => unigram.encode(self.special.unk, text, ids)?,
                (Fragment::Text(text), Model::Longest(longest)) => longest.encode(self.special.unk, text, ids)?,
                (Fragment::Text(text), Model::WordPiece(pieces)) => {
                    pieces.encode(&self.vocabulary, self.special.unk, text, ids)?;
                }
                (Fragment::Text(text), Model::Sentence(sentence)) => sentence.encode(self.special.unk, text, ids)?,
                (Fragment::Text(text), Model::Spm(spm)) => {
                    let prefix = self.add_space_prefix && after_special;
                    spm.encode(&self.vocabulary, self.special.unk, text, prefix, ids)?;
                }
            }
            after_special = matches!(fragment, Fragment::Token(_));
        }
        Ok(())
    }

    /// Returns whether a special token absorbs the white space after it.
    fn takes_space(&self, id: u32) -> bool {
        self.takes_space && self.vocabulary.bytes(id).is_ok_and(|text| !LEAVE_SPACE.contains(&text))
    }

    /// Returns the maximum number of bytes of text that one token covers.
    pub fn longest_token(&self) -> usize {
        self.longest
    }

    /// Returns the token to put before a sequence; `None` if none is added.
    pub fn add_bos(&self) -> Option<u32> {
        self.special.bos.filter(|_| self.add_bos)
    }

    /// Returns the token to put after a whole sequence; `None` if none is added.
    pub fn add_eos(&self) -> Option<u32> {
        self.special.eos.filter(|_| self.add_eos)
    }

    /// Returns the token that begins a sequence, if the vocabulary has one.
    pub fn bos(&self) -> Option<u32> {
        self.special.bos
    }

    /// Returns the token that ends a sequence, if the vocabulary has one.
    pub fn eos(&self) -> Option<u32> {
        self.special.eos
    }

    /// Returns the ids of all tokens that have a role.
    pub fn special_ids(&self) -> &SpecialIds {
        &self.special
    }

    /// Returns whether a token ends generation: EOS, EOT or EOM, or a token of a known model with
    /// the same meaning.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.vocabulary.is_end(id)
    }

    /// Returns all tokens for which [`Tokenizer::is_end_of_generation`] holds, in ascending order.
    pub fn end_of_generation(&self) -> Vec<u32> {
        self.vocabulary.ends().collect()
    }

    /// Returns the number of tokens.
    pub fn token_count(&self) -> usize {
        self.vocabulary.len()
    }

    /// Returns the bytes of a token. For a control token, they are its name.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], TokenizerError> {
        self.vocabulary.bytes(id)
    }

    /// Returns whether a token is text. Control tokens, unknown tokens and unused tokens are not
    /// text, and are shown only on request.
    pub fn is_text(&self, id: u32) -> bool {
        matches!(self.vocabulary.token_type(id), TokenType::Normal | TokenType::UserDefined | TokenType::Byte)
    }
}
