//! What a model file says about its vocabulary: plain data that goes into plans, and the rules that it must keep.

use serde::{Deserialize, Serialize};

use super::TokenizerError;
use super::charsmap::Charsmap;
use super::longest;
use super::pretokenize::{Bos, PreTokenizer};
use super::special::{self, MAX_SPECIAL_BYTES, MAX_STATES};
use crate::gguf::{Array, Metadata, StringArray, Value};

/// Most tokens: twice the largest vocabulary known (Gemma's 262,144).
pub const MAX_TOKENS: usize = 1 << 19;
/// Most merges: twice as many as the most known (446,189 of gpt-4o's vocabulary).
pub const MAX_MERGES: usize = 1 << 20;
/// Longest text of a token, in bytes: four times the longest known (128 bytes, as letters of two bytes each). Merging takes time in
/// proportion to it.
pub const MAX_TOKEN_BYTES: usize = 1024;

/// Which algorithm a vocabulary is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModelKind {
    /// No vocabulary: the model is fed with ids.
    #[default]
    None,
    /// SentencePiece, `tokenizer.ggml.model = "llama"`: merges by score, bytes as fallback.
    Spm,
    /// BPE, `"gpt2"` and `"gemma4"`: merges by rank inside of words.
    Bpe,
    /// PLaMo 2's and 3's, `"plamo2"`: the highest sum of scores, bytes as fallback.
    Unigram,
    /// RWKV's, `"rwkv"`: the longest token at each place; tokens are bytes.
    Longest,
    /// BERT's, `"bert"`: of each word the longest tokens, from its beginning.
    WordPiece,
    /// SentencePiece's unigram model, `"t5"`, which XLM-R has, too: the highest sum of scores.
    Sentence,
}

/// ggml's `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenType {
    /// 0: nothing was said.
    Undefined,
    /// 1: text.
    Normal,
    /// 2: stands for what has no token.
    Unknown,
    /// 3: not text; matched in text only on request, not shown.
    Control,
    /// 4: text that is always one token.
    UserDefined,
    /// 5: padding of the vocabulary.
    Unused,
    /// 6: one byte, `<0x0A>`.
    Byte,
}

impl TokenType {
    /// Whether such tokens are looked for in text before it is tokenized: always, or on request.
    pub fn is_special(self) -> bool {
        matches!(self, TokenType::UserDefined | TokenType::Control | TokenType::Unknown)
    }

    /// Whether what a vocabulary has of such tokens is a name as it stands, whatever texts of others are written in.
    pub(super) fn is_name(self) -> bool {
        self.is_special() || self == TokenType::Byte
    }
}

/// `TokenType`s by their number.
const TOKEN_TYPES: [TokenType; 7] = [
    TokenType::Undefined,
    TokenType::Normal,
    TokenType::Unknown,
    TokenType::Control,
    TokenType::UserDefined,
    TokenType::Unused,
    TokenType::Byte,
];

/// Tokens with a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecialIds {
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// End of message.
    pub eom: Option<u32>,
    /// Unknown.
    pub unk: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Fill-in-the-middle padding, repository and file separators: each ends generation.
    pub fim_ends: Vec<u32>,
}

/// A vocabulary as the file states it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenizerSpec {
    /// The algorithm.
    pub model: ModelKind,
    /// The pre-tokenizer's name (BPE); empty where the file names none.
    pub pre_tokenizer: String,
    /// Token texts; the index is the id.
    pub tokens: Vec<String>,
    /// Scores, one for each token, or none: of SPM and of PLaMo's.
    pub scores: Vec<f32>,
    /// Token types, one for each token, or none: all normal.
    pub types: Vec<TokenType>,
    /// BPE merges, best first: left and right with a space between.
    pub merges: Vec<String>,
    /// Tokens with a role.
    pub special: SpecialIds,
    /// Whether a sequence starts with BOS.
    pub add_bos: bool,
    /// Whether a sequence ends with EOS.
    pub add_eos: bool,
    /// Whether text starts with a space that is not in it (SPM).
    pub add_space_prefix: bool,
    /// The chat template's source.
    pub chat_template: Option<String>,
    /// Whether text is written small first (WordPiece).
    pub lowercase: bool,
    /// Whether letters lose their accents first (WordPiece).
    pub strip_accents: bool,
    /// What characters become first, as SentencePiece writes it; empty where they stay (`Sentence`).
    pub charsmap: Vec<u8>,
    /// Whether runs of spaces are one, and none stand at the ends of a text (`Sentence`).
    pub squeezes_spaces: bool,
}

/// A kind of tokenizer, and the pre-tokenizer that it has.
const GEMMA_4: &str = "gemma4";
/// Another.
const PLAMO_2: &str = "plamo2";
/// Another.
const RWKV: &str = "rwkv";
/// Another: BERT's.
const BERT: &str = "bert";
/// Another: that of T5 and XLM-R.
const T5: &str = "t5";

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const EOT: &str = "tokenizer.ggml.eot_token_id";
const EOM: &str = "tokenizer.ggml.eom_token_id";
const UNK: &str = "tokenizer.ggml.unknown_token_id";
const PAD: &str = "tokenizer.ggml.padding_token_id";
/// Keys whose token ends generation where it is stated.
const FIM_ENDS: [&str; 3] =
    ["tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id"];
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
/// How GGUF spells it.
const SEP: &str = "tokenizer.ggml.seperator_token_id";
const CLS: &str = "tokenizer.ggml.cls_token_id";
/// Keys of ids that most models do not use, but that must be ids all the same.
const OTHER_IDS: [&str; 9] = [
    SEP,
    CLS,
    "tokenizer.ggml.mask_token_id",
    "tokenizer.ggml.fim_pre_token_id",
    "tokenizer.ggml.fim_suf_token_id",
    "tokenizer.ggml.fim_mid_token_id",
    "tokenizer.ggml.prefix_token_id",
    "tokenizer.ggml.suffix_token_id",
    "tokenizer.ggml.middle_token_id",
];

/// The error for a key with a value that cannot be meant.
fn invalid(key: &str, found: impl Into<String>, expected: impl Into<String>) -> TokenizerError {
    TokenizerError::Invalid { key: key.into(), found: found.into(), expected: expected.into() }
}

impl TokenizerSpec {
    /// Reads and checks a file's vocabulary. A file without one, or with `no_vocab` or `none`, gives [`ModelKind::None`].
    ///
    /// Where the file is silent, llama.cpp's defaults hold: SPM has BOS 1, EOS 2, unknown 0, a leading space and a BOS at
    /// the start; PLaMo's has the same ids, and padding 3; BPE has no special ids, and adds BOS where its pre-tokenizer's name implies it; RWKV's has none.
    ///
    /// # Errors
    /// [`TokenizerError`], naming the key, what it holds and what was expected.
    pub fn from_metadata(metadata: &Metadata) -> Result<TokenizerSpec, TokenizerError> {
        let chat_template = metadata.read_optional::<&str>("tokenizer.chat_template")?.map(str::to_owned);
        let model = match metadata.read_or("tokenizer.ggml.model", "none")? {
            "none" | "no_vocab" => return Ok(TokenizerSpec { chat_template, ..TokenizerSpec::default() }),
            "llama" => ModelKind::Spm,
            "gpt2" | GEMMA_4 => ModelKind::Bpe,
            PLAMO_2 => ModelKind::Unigram,
            RWKV => ModelKind::Longest,
            BERT => ModelKind::WordPiece,
            T5 => ModelKind::Sentence,
            other => {
                let found = metadata.bad_value(
                    "tokenizer.ggml.model",
                    other,
                    "llama, gpt2, gemma4, plamo2, rwkv, bert, t5, no_vocab or none",
                );
                return Err(found.into());
            }
        };
        let pre_tokenizer = match metadata.read_or("tokenizer.ggml.model", "")? {
            // A BPE whose pre-tokenizer has its name, whatever the file calls it.
            GEMMA_4 => GEMMA_4,
            _ => metadata.read_or("tokenizer.ggml.pre", "")?,
        };
        let tokens: Vec<String> = metadata.read::<&StringArray>(TOKENS)?.iter().map(str::to_owned).collect();
        let merges = match model {
            ModelKind::Bpe => metadata.read::<&StringArray>(MERGES)?.iter().map(str::to_owned).collect(),
            ModelKind::Spm
            | ModelKind::Unigram
            | ModelKind::Longest
            | ModelKind::WordPiece
            | ModelKind::Sentence
            | ModelKind::None => Vec::new(),
        };
        let scores = metadata.read_optional::<&[f32]>(SCORES)?.unwrap_or_default().to_vec();
        let types =
            metadata.read_optional::<&[i32]>(TYPES)?.unwrap_or_default().iter().enumerate().map(|(index, &n)| {
                let ty = usize::try_from(n).ok().and_then(|n| TOKEN_TYPES.get(n));
                ty.copied().ok_or_else(|| invalid(TYPES, format!("is {n} at index {index}"), "0 to 6"))
            });
        let types = types.collect::<Result<Vec<_>, _>>()?;

        let has_defaults = matches!(model, ModelKind::Spm | ModelKind::Unigram);
        let default = |id: u32| (has_defaults && (id as usize) < tokens.len()).then_some(id);
        let id = |key, default| Ok::<_, TokenizerError>(metadata.read_optional::<u32>(key)?.or(default));
        let mut special = SpecialIds {
            bos: id(BOS, default(1))?,
            eos: id(EOS, default(2))?,
            eot: id(EOT, None)?,
            eom: id(EOM, None)?,
            unk: id(UNK, default(0))?,
            pad: id(PAD, if model == ModelKind::Unigram { default(3) } else { None })?,
            fim_ends: Vec::new(),
        };
        if model == ModelKind::WordPiece {
            // Texts stand between a token for their class and one that ends a part.
            let named = |name: &str| tokens.iter().position(|text| text == name).map(|id| id as u32);
            special.bos = id(CLS, None)?.or(special.bos).or_else(|| named("[CLS]"));
            special.eos = id(SEP, None)?.or_else(|| named("[SEP]"));
            special.unk = special.unk.or_else(|| named("[UNK]"));
            special.pad = special.pad.or_else(|| named("[PAD]"));
        }
        if model == ModelKind::Sentence {
            let own = |number: u32| ((number as usize) < tokens.len()).then_some(number);
            special.eos = special.eos.or(own(1));
            let unknown = types.iter().position(|ty| *ty == TokenType::Unknown).map(|id| id as u32);
            special.unk = special.unk.or(unknown).or(own(2));
            special.pad = special.pad.or(own(0));
        }
        for key in FIM_ENDS {
            special.fim_ends.extend(check_id(key, id(key, None)?, tokens.len())?);
        }
        for key in OTHER_IDS {
            check_id(key, id(key, None)?, tokens.len())?;
        }
        let bos = match model {
            ModelKind::Bpe => PreTokenizer::named(pre_tokenizer)?.bos,
            ModelKind::Spm | ModelKind::WordPiece | ModelKind::None => Bos::UnlessStated,
            ModelKind::Unigram | ModelKind::Longest | ModelKind::Sentence => Bos::IfStated,
        };
        let lowercase = metadata.read_or("tokenizer.ggml.normalizer.lowercase", model == ModelKind::WordPiece)?;
        let stated_bos = metadata.read_optional::<bool>("tokenizer.ggml.add_bos_token")?;
        let has_bos = special.bos.is_some();
        let spec = TokenizerSpec {
            model,
            pre_tokenizer: pre_tokenizer.to_owned(),
            tokens,
            scores,
            types,
            merges,
            special,
            add_bos: match bos {
                // XLM-R has one at the beginning, and T5 has none.
                Bos::IfStated if model == ModelKind::Sentence => stated_bos.unwrap_or(has_bos),
                Bos::IfStated => stated_bos.unwrap_or(false),
                Bos::UnlessStated => stated_bos.unwrap_or(true),
                Bos::Always => true,
            },
            add_eos: match model {
                // By either name.
                ModelKind::WordPiece => {
                    metadata.read_or("tokenizer.ggml.add_sep_token", true)?
                        || metadata.read_or("tokenizer.ggml.add_eos_token", false)?
                }
                _ => metadata.read_or("tokenizer.ggml.add_eos_token", model == ModelKind::Sentence)?,
            },
            add_space_prefix: metadata
                .read_or("tokenizer.ggml.add_space_prefix", matches!(model, ModelKind::Spm | ModelKind::Sentence))?,
            chat_template,
            lowercase,
            strip_accents: metadata.read_or("tokenizer.ggml.normalizer.strip_accents", lowercase)?,
            charsmap: match (metadata.get(CHARSMAP), model) {
                (None, _) => Vec::new(),
                (Some(Value::Array(Array::U8(bytes))), ModelKind::Sentence) => bytes.clone(),
                (Some(Value::Array(Array::I8(bytes))), ModelKind::Sentence) => {
                    bytes.iter().map(|byte| byte.cast_unsigned()).collect()
                }
                (Some(other), ModelKind::Sentence) => {
                    return Err(metadata.wrong_type(CHARSMAP, other, "array of u8").into());
                }
                (Some(_), _) => Vec::new(),
            },
            squeezes_spaces: match model {
                ModelKind::Sentence => metadata.read_or("tokenizer.ggml.remove_extra_whitespaces", true)?,
                _ => false,
            },
        };
        spec.validate()?;
        Ok(spec)
    }

    /// Checks what building a tokenizer relies on; a spec from a plan has seen no other check.
    ///
    /// # Errors
    /// [`TokenizerError`], naming the key, what it holds and what was expected.
    pub fn validate(&self) -> Result<(), TokenizerError> {
        let count = self.tokens.len();
        if self.model == ModelKind::None {
            return Ok(());
        }
        if !(1..=MAX_TOKENS).contains(&count) {
            return Err(invalid(TOKENS, format!("has {count} elements"), format!("1 to {MAX_TOKENS}")));
        }
        if self.merges.len() > MAX_MERGES {
            let found = format!("has {} elements", self.merges.len());
            return Err(invalid(MERGES, found, format!("at most {MAX_MERGES}")));
        }
        let is_special = |index: usize| matches!(self.types.get(index), Some(ty) if ty.is_special());
        for (index, text) in self.tokens.iter().enumerate() {
            let max = if is_special(index) { MAX_SPECIAL_BYTES } else { MAX_TOKEN_BYTES };
            if text.len() > max {
                let found = format!("has a text of {} bytes at index {index}", text.len());
                return Err(invalid(TOKENS, found, format!("at most {max}")));
            }
        }
        let special = self.tokens.iter().enumerate().filter(|(index, _)| is_special(*index));
        let states = special::states(special.map(|(_, text)| text.as_str()));
        if states > MAX_STATES {
            let found = format!("has special tokens with {states} different beginnings");
            return Err(invalid(TOKENS, found, format!("at most {MAX_STATES}")));
        }
        for (key, len) in [(SCORES, self.scores.len()), (TYPES, self.types.len())] {
            if len != 0 && len != count {
                return Err(invalid(key, format!("has {len} elements"), format!("{count}, as many as {TOKENS}")));
            }
        }
        if let Some(index) = self.scores.iter().position(|score| score.is_nan()) {
            return Err(invalid(SCORES, format!("is NaN at index {index}"), "a number"));
        }
        for (index, (text, ty)) in self.tokens.iter().zip(&self.types).enumerate() {
            if *ty == TokenType::Byte && byte_of(text).is_none() {
                let shown: String = text.chars().take(32).collect();
                return Err(invalid(
                    TOKENS,
                    format!("is {shown:?} at index {index}, a byte token"),
                    "<0x00> to <0xFF>",
                ));
            }
        }
        let is_name = |index: usize| matches!(self.types.get(index), Some(ty) if ty.is_name());
        let escaped = self.tokens.iter().enumerate().filter(|(index, _)| !is_name(*index));
        let unreadable = |(_, text): &(usize, &String)| longest::unescaped(text).is_none();
        if let Some((index, text)) = escaped.filter(|_| self.model == ModelKind::Longest).find(unreadable) {
            let shown: String = text.chars().take(32).collect();
            let found = format!("is {shown:?} at index {index}");
            return Err(invalid(
                TOKENS,
                found,
                "bytes as Python writes them: a backslash before one of t, n, r, x with two digits, or itself",
            ));
        }
        for (index, merge) in self.merges.iter().enumerate() {
            if split_merge(merge).is_none() {
                let shown: String = merge.chars().take(32).collect();
                return Err(invalid(
                    MERGES,
                    format!("is {shown:?} at index {index}"),
                    "two texts with a space between",
                ));
            }
        }
        let SpecialIds { bos, eos, eot, eom, unk, pad, fim_ends } = &self.special;
        for (key, id) in [(BOS, bos), (EOS, eos), (EOT, eot), (EOM, eom), (UNK, unk), (PAD, pad)] {
            check_id(key, *id, count)?;
        }
        for id in fim_ends {
            check_id(FIM_ENDS[0], Some(*id), count)?;
        }
        if self.model == ModelKind::Bpe {
            PreTokenizer::named(&self.pre_tokenizer)?;
        }
        if Charsmap::read(&self.charsmap).is_none() {
            let expected = "the bytes of a double array, these, and texts in UTF-8";
            return Err(invalid(CHARSMAP, format!("has {} bytes", self.charsmap.len()), expected));
        }
        Ok(())
    }

    /// Checks that the embedding matrix has a row for each token and no more.
    ///
    /// # Errors
    /// [`TokenizerError::RowsMismatch`].
    pub fn check_embedding_rows(&self, rows: u64) -> Result<(), TokenizerError> {
        if self.model != ModelKind::None && self.tokens.len() as u64 != rows {
            return Err(TokenizerError::RowsMismatch { tokens: self.tokens.len(), rows });
        }
        Ok(())
    }
}

/// An id, checked against the vocabulary.
fn check_id(key: &str, id: Option<u32>, tokens: usize) -> Result<Option<u32>, TokenizerError> {
    match id {
        Some(id) if id as usize >= tokens => {
            Err(invalid(key, format!("is {id}"), format!("0 to {}, the ids of {TOKENS}", tokens.saturating_sub(1))))
        }
        id => Ok(id),
    }
}

/// The text of the token that stands for a byte.
pub(super) fn byte_token(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

/// The byte that a text like `<0x0A>` stands for.
pub(crate) fn byte_of(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    // `from_str_radix` would take a sign.
    (hex.len() == 2 && hex.bytes().all(|c| c.is_ascii_hexdigit())).then(|| u8::from_str_radix(hex, 16).ok())?
}

/// Both sides of a merge. The left side may be a space itself.
pub(crate) fn split_merge(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?.len_utf8();
    let space = first + merge.get(first..)?.find(' ')?;
    let (left, right) = (merge.get(..space)?, merge.get(space + 1..)?);
    (!right.is_empty()).then_some((left, right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_tokens_are_two_hex_digits() {
        assert_eq!((byte_of("<0x0A>"), byte_of("<0xff>")), (Some(10), Some(255)));
        for bad in ["<0x-1>", "<0xZZ>", "<0x+1>", "<0x1>", "<0x100>", "0x01", "<0x01", ""] {
            assert_eq!(byte_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn merges_split_at_the_first_space_that_is_not_first() {
        assert_eq!(split_merge("Ġ t"), Some(("Ġ", "t")));
        assert_eq!(split_merge("  a"), Some((" ", "a")));
        for bad in ["", "a", "a ", " a", " "] {
            assert_eq!(split_merge(bad), None, "{bad:?}");
        }
    }
}
