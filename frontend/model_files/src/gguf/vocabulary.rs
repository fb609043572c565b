//! Conversion of a model file's metadata to a vocabulary, as a [`TokenizerSpec`].

use ixc_failure::Class;
use ixc_text::tokenizer::keys::{BOS, CHARSMAP, EOM, EOS, EOT, FIM_ENDS, MERGES, PAD, SCORES, TOKENS, TYPES, UNK};
use ixc_text::tokenizer::{
    Bos, ModelKind, PreTokenizer, SpecialIds, TokenType, TokenizerError, TokenizerSpec, check_id,
};

use super::{Array, GgufError, Metadata, StringArray, Value};

/// GGUF's name of Gemma 4's tokenizer, and of its pre-tokenizer.
const GEMMA_4: &str = "gemma4";
/// GGUF's name of PLaMo 2's tokenizer.
const PLAMO_2: &str = "plamo2";
/// GGUF's name of RWKV's tokenizer.
const RWKV: &str = "rwkv";
/// GGUF's name of BERT's tokenizer.
const BERT: &str = "bert";
/// GGUF's name of the tokenizer of T5 and XLM-R.
const T5: &str = "t5";

/// Key of the separator token's id. The misspelling is GGUF's own.
const SEP: &str = "tokenizer.ggml.seperator_token_id";
/// Key of the class token's id.
const CLS: &str = "tokenizer.ggml.cls_token_id";
/// Keys of ids that are not used here, but are checked to be valid.
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

/// Reason why a file has no usable vocabulary.
#[derive(Debug, thiserror::Error)]
pub enum VocabularyError {
    /// A key is missing or has the wrong type.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// The keys contradict each other, or are not supported.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl VocabularyError {
    /// Returns the class of the error, which determines the exit code.
    pub fn class(&self) -> Class {
        match self {
            VocabularyError::Metadata(error) => error.class(),
            VocabularyError::Tokenizer(error) => error.class(),
        }
    }
}

/// Reads and checks the vocabulary of a file. The kind is [`ModelKind::None`] if the file has no
/// vocabulary, or if `tokenizer.ggml.model` is `no_vocab` or `none`.
///
/// The defaults of missing keys are those of llama.cpp:
///
/// | tokenizer | defaults |
/// | --- | --- |
/// | SPM | BOS 1, EOS 2, unknown 0, a space before a text, and BOS at its start |
/// | PLaMo | the same ids, and padding 3 |
/// | BPE | no special ids; BOS at the start if the pre-tokenizer's name implies it |
/// | RWKV | no special ids, and no BOS |
///
/// # Errors
/// [`VocabularyError`], with the key, its value and the expected value.
pub fn read_vocabulary(metadata: &Metadata) -> Result<TokenizerSpec, VocabularyError> {
    let chat_template = metadata.read_optional::<&str>("tokenizer.chat_template")?.map(str::to_owned);
    let model = model_kind(metadata)?;
    if model == ModelKind::None {
        return Ok(TokenizerSpec { chat_template, ..TokenizerSpec::default() });
    }
    let pre_tokenizer = match metadata.read_or("tokenizer.ggml.model", "")? {
        // For this tokenizer, the pre-tokenizer is fixed, whatever the file states.
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
    let types = token_types(metadata)?;
    let special = special_ids(metadata, model, &tokens, &types)?;
    let bos = match model {
        ModelKind::Bpe => PreTokenizer::from_name(pre_tokenizer)?.bos,
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
            // XLM-R has a BOS token, which is then added by default; T5 has none.
            Bos::IfStated if model == ModelKind::Sentence => stated_bos.unwrap_or(has_bos),
            Bos::IfStated => stated_bos.unwrap_or(false),
            Bos::UnlessStated => stated_bos.unwrap_or(true),
            Bos::Always => true,
        },
        add_eos: match model {
            // Files have one of two keys for adding the token at the end.
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
        charsmap: charsmap(metadata, model)?,
        squeezes_spaces: match model {
            ModelKind::Sentence => metadata.read_or("tokenizer.ggml.remove_extra_whitespaces", true)?,
            _ => false,
        },
    };
    spec.validate()?;
    Ok(spec)
}

/// Reads the kind of the tokenizer.
fn model_kind(metadata: &Metadata) -> Result<ModelKind, VocabularyError> {
    match metadata.read_or("tokenizer.ggml.model", "none")? {
        "none" | "no_vocab" => Ok(ModelKind::None),
        "llama" => Ok(ModelKind::Spm),
        "gpt2" | GEMMA_4 => Ok(ModelKind::Bpe),
        PLAMO_2 => Ok(ModelKind::Unigram),
        RWKV => Ok(ModelKind::Longest),
        BERT => Ok(ModelKind::WordPiece),
        T5 => Ok(ModelKind::Sentence),
        other => {
            let expected = "llama, gpt2, gemma4, plamo2, rwkv, bert, t5, no_vocab or none";
            Err(metadata.bad_value("tokenizer.ggml.model", other, expected).into())
        }
    }
}

/// Reads the type of each token.
fn token_types(metadata: &Metadata) -> Result<Vec<TokenType>, VocabularyError> {
    let types = metadata.read_optional::<&[i32]>(TYPES)?.unwrap_or_default();
    let of = |(index, &n): (usize, &i32)| {
        TokenType::from_number(n).ok_or_else(|| TokenizerError::Invalid {
            key: TYPES.into(),
            found: format!("is {n} at index {index}"),
            expected: "0 to 6".into(),
        })
    };
    Ok(types.iter().enumerate().map(of).collect::<Result<_, _>>()?)
}

/// Reads the ids of tokens with a role.
fn special_ids(
    metadata: &Metadata,
    model: ModelKind,
    tokens: &[String],
    types: &[TokenType],
) -> Result<SpecialIds, VocabularyError> {
    let has_defaults = matches!(model, ModelKind::Spm | ModelKind::Unigram);
    let default = |id: u32| (has_defaults && (id as usize) < tokens.len()).then_some(id);
    let id = |key, default| Ok::<_, VocabularyError>(metadata.read_optional::<u32>(key)?.or(default));
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
        // For BERT, the class token serves as BOS, and the separator as EOS.
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
    Ok(special)
}

/// Reads SentencePiece's map of characters. Only SentencePiece's unigram tokenizer has one.
fn charsmap(metadata: &Metadata, model: ModelKind) -> Result<Vec<u8>, VocabularyError> {
    match (metadata.get(CHARSMAP), model) {
        (Some(Value::Array(Array::U8(bytes))), ModelKind::Sentence) => Ok(bytes.clone()),
        (Some(Value::Array(Array::I8(bytes))), ModelKind::Sentence) => {
            Ok(bytes.iter().map(|byte| byte.cast_unsigned()).collect())
        }
        (Some(other), ModelKind::Sentence) => Err(metadata.wrong_type(CHARSMAP, other, "array of u8").into()),
        _ => Ok(Vec::new()),
    }
}
