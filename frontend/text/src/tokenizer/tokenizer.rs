//! The public face: a vocabulary, ready to encode and decode.

use super::TokenizerError;
use super::bpe::Bpe;
use super::longest::Longest;
use super::merge::MAX_LEN;
use super::sentence::Sentence;
use super::spec::{ModelKind, SpecialIds, TokenType, TokenizerSpec};
use super::special::{Fragment, SpecialTokens};
use super::spm::Spm;
use super::stream::Stream;
use super::unigram::Unigram;
use super::values::{ControlNames, Values};
use super::vocabulary::Vocabulary;
use super::wordpiece::WordPiece;

/// Text to token ids and back, for one model.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    model: Model,
    /// Matched in text always.
    user_defined: SpecialTokens,
    /// Matched in text on request: control and unknown tokens too.
    all_special: SpecialTokens,
    /// What of these text of others may not be.
    control: ControlNames,
    /// Bytes of the longest token.
    longest: usize,
    special: SpecialIds,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
    /// Whether special tokens take the white space behind them.
    takes_space: bool,
}

/// A token that Phi-3's vocabulary has, and no other: its `tokenizer.json` says that special tokens take the white space behind them (`rstrip`), which
/// GGUF has no key for.
const PHI_3: &str = "<|placeholder1|>";
/// Those of it that do not.
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

/// How ids become text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Show control tokens as their text instead of as nothing.
    pub show_special: bool,
    /// The ids are the start of a text, so that the space that SPM put there goes away. `false` for what a model wrote
    /// after a prompt.
    pub at_start: bool,
}

impl Default for DecodeOptions {
    fn default() -> DecodeOptions {
        DecodeOptions { show_special: false, at_start: true }
    }
}

impl Tokenizer {
    /// Builds a tokenizer.
    ///
    /// # Errors
    /// [`TokenizerError::NoVocabulary`], or what [`TokenizerSpec::validate`] finds.
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

    /// The ids of `text`, without BOS and EOS. With `parse_special`, the text of a control token is that token; without,
    /// it is text like any other (what comes from a user must not end its own turn). User-defined tokens match always.
    ///
    /// # Errors
    /// [`TokenizerError::NoTokenForByte`] where the vocabulary cannot say the text; [`TokenizerError::TextTooLong`].
    pub fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let special = if parse_special { &self.all_special } else { &self.user_defined };
        let mut ids = Vec::with_capacity(text.len() / 3);
        self.encode_stretch(text, special, None, &mut ids)?;
        Ok(ids)
    }

    /// What a prompt of these texts (a template's source and what it is rendered with) makes of values.
    pub fn values<'v>(&self, texts: impl IntoIterator<Item = &'v str>) -> Values<'_> {
        Values::new(&self.control, texts)
    }

    /// The ids of a rendered prompt: names of control tokens that the template wrote are those tokens, those in the values that `values`
    /// protected are text.
    ///
    /// # Errors
    /// As for [`Tokenizer::encode`].
    pub fn encode_rendered(&self, text: &str, values: &Values<'_>) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        let (mut stretch, mut before) = (String::new(), None);
        for fragment in self.all_special.partition(text) {
            match fragment {
                Fragment::Text(text) => stretch.push_str(text),
                // Found again in the stretch, among what the stand-ins stand for.
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

    /// Appends the ids of a text that stands at the beginning or behind a special token, `before`.
    fn encode_stretch(
        &self,
        text: &str,
        special: &SpecialTokens,
        before: Option<u32>,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        // A space is three bytes to SPM.
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

    /// Whether a special token takes the white space behind it.
    fn takes_space(&self, id: u32) -> bool {
        self.takes_space && self.vocabulary.bytes(id).is_ok_and(|text| !LEAVE_SPACE.contains(&text))
    }

    /// Bytes of text that a token covers at most.
    pub fn longest_token(&self) -> usize {
        self.longest
    }

    /// The token to put before a sequence, if there is one to put.
    pub fn add_bos(&self) -> Option<u32> {
        self.special.bos.filter(|_| self.add_bos)
    }

    /// The token to put after a whole sequence, if there is one to put.
    pub fn add_eos(&self) -> Option<u32> {
        self.special.eos.filter(|_| self.add_eos)
    }

    /// The beginning of a sequence.
    pub fn bos(&self) -> Option<u32> {
        self.special.bos
    }

    /// The end of a sequence.
    pub fn eos(&self) -> Option<u32> {
        self.special.eos
    }

    /// All tokens with a stated role.
    pub fn special_ids(&self) -> &SpecialIds {
        &self.special
    }

    /// Whether a model that gives this token is done: EOS, EOT, EOM, and the texts that mean the same in known models.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.vocabulary.is_end(id)
    }

    /// Every token for which [`Tokenizer::is_end_of_generation`] holds, ascending.
    pub fn end_of_generation(&self) -> Vec<u32> {
        self.vocabulary.ends().collect()
    }

    /// How many tokens there are.
    pub fn token_count(&self) -> usize {
        self.vocabulary.len()
    }

    /// The bytes that a token stands for; for a control token its name.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], TokenizerError> {
        self.vocabulary.bytes(id)
    }

    /// Whether a token is text: control, unknown and unused tokens are not, and are shown on request only.
    pub fn is_text(&self, id: u32) -> bool {
        matches!(self.vocabulary.token_type(id), TokenType::Normal | TokenType::UserDefined | TokenType::Byte)
    }

    /// The text of a whole sequence, without control tokens. Bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.decode_with(ids, DecodeOptions::default())
    }

    /// As [`Tokenizer::decode`], with options.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn decode_with(&self, ids: &[u32], options: DecodeOptions) -> Result<String, TokenizerError> {
        Ok(String::from_utf8_lossy(&self.decode_bytes(ids, options)?).into_owned())
    }

    /// The bytes of a sequence, as they are.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn decode_bytes(&self, ids: &[u32], options: DecodeOptions) -> Result<Vec<u8>, TokenizerError> {
        let mut stream = self.stream(options);
        let mut bytes = Vec::new();
        for &id in ids {
            bytes.extend(stream.shown_bytes(id)?);
        }
        Ok(bytes)
    }

    /// Decodes token by token.
    pub fn stream(&self, options: DecodeOptions) -> Stream<'_> {
        let strip_space = options.at_start && self.add_space_prefix;
        Stream::new(self, options.show_special, strip_space)
    }
}
