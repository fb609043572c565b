//! Pre-tokenizers, which split text into words. BPE merges only inside of words. [`TABLE`] has a
//! row for each pre-tokenizer.
//!
//! The published patterns end in `\s+(?!\S)|\s+`: a run of white space leaves its last character to
//! the following word. Without this look-ahead, most patterns are regular. This rule is therefore
//! coded by hand, and a linear-time regular expression engine runs the other parts of the pattern.
//! A backtracking engine fails on a megabyte of spaces, or silently stops splitting.
//!
//! The other look-ahead is `\d{1,3}(?=(?:\d{3})*\b)`, which splits digits into threes from the
//! right. Here, a run of digits is found and split by counting.
//!
//! The patterns are those of the models' `tokenizer.json`. llama.cpp replaces some of them by
//! simpler patterns. For `kimi-k2`, it does not split words at capitals. For `tiny_aya`, it splits
//! digits from the right even before a letter. For such words, the ids here are those of the
//! model's training, and llama.cpp's ids differ. The table lacks pre-tokenizers of embedding models
//! (`jina-*`, `granite-embed-*`, `roberta-bpe`).

use std::ops::Range;

use regex_automata::{Input, meta::Regex};

use super::TokenizerError;
use Stage::{BeforeThrees, Matches, Threes, ThreesUnless, Words, WordsAndRuns};
use WholeWords::{Always, LineFeeds};

/// Pre-tokenizer, and the other properties that llama.cpp derives from its name.
#[derive(Debug)]
pub struct PreTokenizer {
    /// Values of `tokenizer.ggml.pre` for this pre-tokenizer.
    names: &'static [&'static str],
    /// Stages, in order. Each stage splits the pieces of the previous stage.
    stages: &'static [Stage],
    /// Words that are looked up as tokens before merges apply.
    pub whole_words: WholeWords,
    /// Spelling of text in the vocabulary's tokens.
    pub alphabet: Alphabet,
    /// Condition for BOS at the start of a sequence.
    pub bos: Bos,
}

/// Method of a stage for splitting text.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Splits at both ends of each match of the pattern.
    Matches(&'static str),
    /// Splits like `Matches`. In addition, splits text between matches at runs of white space,
    /// which leave their last character to the following word.
    Words(&'static str),
    /// Splits like `Words`. In addition, splits runs of white space into pieces of these lengths,
    /// always the longest that fits.
    WordsAndRuns(&'static str, &'static [usize]),
    /// Splits at both ends of each match. Inside of a match, splits before every three characters,
    /// counted from its end.
    Threes(&'static str),
    /// Splits matches of the second pattern like `Threes`, except inside of matches of the first
    /// pattern.
    ThreesUnless(&'static str, &'static str),
    /// Splits only before every three characters of a match, counted from its end. Unlike `Threes`,
    /// it does not split at both ends of a match.
    BeforeThrees(&'static str),
}

/// Words that become one token even if no merges make that token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WholeWords {
    /// No words.
    Never,
    /// All words that are tokens (`ignore_merges`).
    Always,
    /// Runs of line feeds. A list of merges has one merge on each line, so merges cannot contain
    /// line feeds.
    LineFeeds,
}

/// Spelling of text in a vocabulary's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alphabet {
    /// Each byte is written as a character of GPT-2's alphabet.
    Bytes,
    /// Text is unchanged, except that a space is `▁`. Characters without a token become tokens of
    /// bytes, like `<0x0A>`.
    Characters,
}

/// Condition for BOS at the start of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bos {
    /// BOS is added only if the file states it.
    IfStated,
    /// BOS is added unless the file states otherwise.
    UnlessStated,
    /// BOS is always added, because early Gemma 4 files wrongly disable it.
    Always,
}

/// Pattern of a `ByteLevel` pre-tokenizer that has no other pattern.
pub const BYTE_LEVEL_PATTERN: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Pattern of GPT-2, without its rule for white space.
const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+";
/// Pattern of Llama 3: contractions in upper or lower case, digits in threes, and newlines separate
/// from other white space.
const LLAMA_3: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";
/// Pattern of Qwen2: like Llama 3, but with single digits.
const QWEN_2: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";
/// Pattern of Qwen3.5: like Qwen2, but combining marks are parts of words.
const QWEN_35: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+";
/// Third pattern of DeepSeek-V3.
const DEEPSEEK_3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"##;
/// Pattern of GPT-4o: words are split at capitals and include their contraction.
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+";
/// Pattern of Mistral's Tekken: like GPT-4o, but without contractions and with single digits.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+";

/// First pattern of Falcon, for punctuation. Later stages have GPT-2's pattern, and digits in
/// threes from the left.
const FALCON_PUNCTUATION: &str = r"[\p{P}$+<=>^~|`]+";
/// Second pattern of DeepSeek-V3, for Han, Hiragana and Katakana.
const CHINESE_JAPANESE: &str = "[一-龥぀-ゟ゠-ヿ]+";
/// Pattern of Spark 2.5: like DeepSeek-V3, but with single newlines.
const SPARK_25: &str =
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]"##;
/// Pattern of Kimi K2: like GPT-4o, but Han characters are separate.
const KIMI_K2: &str = r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";
/// Pattern of Ling: more contractions, and a newline ends a run of white space.
const BAILING: &str =
    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]";
/// Pattern of Seed: like Qwen2, but punctuation does not include newlines.
const SEED: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+";
/// Second pattern of MiniCPM5: like Llama 3, but runs of digits stay whole, because the first
/// pattern has split them.
const MINICPM_5: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";
/// Pattern of UfakZeka: like Qwen2, but without contractions, because Turkish has endings after
/// apostrophes.
const UFAKZEKA: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";
/// Pattern of EXAONE MoE: words that single spaces separate stay together.
const EXAONE_MOE: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]";
/// First pattern of Youtu: Korean, full-width punctuation, Bopomofo, Chinese and Japanese are
/// separate.
const YOUTU_SCRIPTS: &str = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+";
/// Second pattern of Youtu: like GPT-4o, but with single digits.
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+";
/// Pattern of Trinity for Asian scripts, which are separate.
const AFMOE_SCRIPTS: &str = "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+";
/// Pattern of DeepSeek LLM for letters: scripts with upper and lower case, as its authors listed
/// them.
const DEEPSEEK_LLM_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
/// Pattern of DeepSeek LLM for punctuation, including full-width punctuation.
const DEEPSEEK_LLM_PUNCTUATION: &str = r"\s?[!-/:-~！-／：-～‘-‟　-。]+";
/// Pattern of DeepSeek LLM and Coder for Chinese, Japanese, Korean and the code points between
/// them.
const DEEPSEEK_ASIAN: &str = "[一-龥ࠀ-一가-퟿]+";
/// Pattern of BLOOM: words up to common punctuation.
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
/// Pattern for digits that are followed by the rest of a word, in which `\d{1,3}(?=(?:\d{3})*\b)`
/// finds no match. A word has the characters that Oniguruma counts, including all numbers.
const DIGITS_IN_WORD: &str = r"\d+[[\p{L}\p{M}\p{N}\p{Pc}]--\d]";
/// Pattern that separates runs of line feeds from other text.
const LINES: &str = r"[^\n]+|\n+";

/// Values of most rows of the table.
const USUAL: PreTokenizer = PreTokenizer {
    names: &[],
    stages: &[],
    whole_words: WholeWords::Never,
    alphabet: Alphabet::Bytes,
    bos: Bos::IfStated,
};

/// All supported pre-tokenizers. The stages are those of llama.cpp's `llm_tokenizer_bpe`, without
/// the rule for white space at the end of patterns. The first row is for files that state no name.
#[rustfmt::skip]
const TABLE: &[PreTokenizer] = &[
    PreTokenizer { names: &["default", ""], stages: &[Matches(r"[\p{P}$+<=>^~|]+"), Words(GPT_2), Matches(r"\p{N}+"), Matches("[0-9][0-9][0-9]")], ..USUAL },
    PreTokenizer { names: &["gpt-2", "phi-2", "olmo", "mpt", "exaone4", "mellum", "modern-bert", "gigachat", "a.x-4.0", "jais", "trillion", "granite-docling"], stages: &[Words(GPT_2)], ..USUAL },
    PreTokenizer { names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"], stages: &[Matches(r"\p{N}"), Words(GPT_2)], ..USUAL },
    PreTokenizer { names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"], stages: &[Words(LLAMA_3)], whole_words: Always, bos: Bos::UnlessStated, ..USUAL },
    PreTokenizer { names: &["dbrx", "smaug-bpe"], stages: &[Words(LLAMA_3)], ..USUAL },
    PreTokenizer { names: &["glm4", "glm5"], stages: &[Words(LLAMA_3)], whole_words: Always, ..USUAL },
    PreTokenizer { names: &["chatglm-bpe"], stages: &[Words(LLAMA_3)], ..USUAL },
    PreTokenizer { names: &["qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "kormo", "solar-open", "grok-2"], stages: &[Words(QWEN_2)], ..USUAL },
    PreTokenizer { names: &["qwen35"], stages: &[Words(QWEN_35)], ..USUAL },
    PreTokenizer { names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], stages: &[Matches(r"\p{N}{1,3}"), Matches(CHINESE_JAPANESE), Words(DEEPSEEK_3)], ..USUAL },
    PreTokenizer { names: &["gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie"], stages: &[Words(GPT_4O)], ..USUAL },
    PreTokenizer { names: &["tekken"], stages: &[Words(TEKKEN)], whole_words: Always, bos: Bos::UnlessStated, ..USUAL },
    PreTokenizer { names: &["kimi-k2"], stages: &[Words(KIMI_K2)], ..USUAL },
    PreTokenizer { names: &["bailingmoe", "bailingmoe2", "llada-moe"], stages: &[Words(BAILING)], ..USUAL },
    PreTokenizer { names: &["seed-coder"], stages: &[Words(SEED)], ..USUAL },
    PreTokenizer { names: &["laguna"], stages: &[Matches(LINES), Words(QWEN_2)], ..USUAL },
    PreTokenizer { names: &["afmoe"], stages: &[Threes(r"\p{N}+"), Matches(AFMOE_SCRIPTS), Words(DEEPSEEK_3)], ..USUAL },
    PreTokenizer { names: &["tiny_aya", "cohere2moe"], stages: &[ThreesUnless(DIGITS_IN_WORD, r"\d+"), Words(GPT_4O)], ..USUAL },
    PreTokenizer { names: &["superbpe"], stages: &[Matches(r"\p{N}+"), BeforeThrees(r"\d+")], ..USUAL },
    PreTokenizer { names: &["exaone-moe"], stages: &[Words(EXAONE_MOE)], ..USUAL },
    PreTokenizer { names: &["youtu"], stages: &[Matches(YOUTU_SCRIPTS), Words(YOUTU)], whole_words: Always, ..USUAL },
    PreTokenizer { names: &["minicpm5"], stages: &[Matches(r"\p{N}{1,3}"), Words(MINICPM_5)], whole_words: Always, ..USUAL },
    PreTokenizer { names: &["spark2_5"], stages: &[Matches(r"\p{N}{1,3}"), Matches(CHINESE_JAPANESE), Words(SPARK_25), Matches(r"\p{N}")], ..USUAL },
    PreTokenizer { names: &["deepseek-llm"], stages: &[Matches(r"[\r\n]"), Matches(DEEPSEEK_LLM_LETTERS), Matches(DEEPSEEK_LLM_PUNCTUATION), Matches(r"\s+$"), Matches(DEEPSEEK_ASIAN), Matches(r"\p{N}")], ..USUAL },
    PreTokenizer { names: &["deepseek-coder"], stages: &[Matches(r"[\r\n]"), Matches(r"\s?\p{L}+"), Matches(r"\s?\p{P}+"), Matches(DEEPSEEK_ASIAN), Matches(r"\p{N}")], ..USUAL },
    PreTokenizer { names: &["falcon"], stages: &[Matches(FALCON_PUNCTUATION), Words(GPT_2), Matches("[0-9][0-9][0-9]")], ..USUAL },
    PreTokenizer { names: &["bloom", "poro-chat", "gpt3-finnish"], stages: &[Matches(BLOOM)], ..USUAL },
    PreTokenizer { names: &["viking"], stages: &[Matches(BLOOM), Matches(r"\p{N}")], ..USUAL },
    PreTokenizer { names: &["jais-2"], stages: &[WordsAndRuns(LLAMA_3, &[512, 256, 128, 64, 32, 16, 8, 4, 2, 1])], ..USUAL },
    PreTokenizer { names: &["ufakzeka"], stages: &[Words(UFAKZEKA)], ..USUAL },
    PreTokenizer { names: &["chameleon"], stages: &[Matches("<sentinel:[0-9]+>"), Matches("IMGIMG[A-I]{1,4}Z"), Matches(r"[\t\n]|    |  "), Matches(r"\p{N}"), Matches(r"[\p{P}!-/:-@\[-`{-~]"), Words(GPT_2)], bos: Bos::UnlessStated, ..USUAL },
    PreTokenizer { names: &["gemma4"], stages: &[Matches(LINES)], whole_words: LineFeeds, alphabet: Alphabet::Characters, bos: Bos::Always },
    PreTokenizer { names: &["sarvam-moe"], stages: &[Matches(LINES)], alphabet: Alphabet::Characters, ..USUAL },
];

/// Returns the valid values of `tokenizer.ggml.pre`.
pub fn supported_pre_tokenizers() -> Vec<&'static str> {
    TABLE.iter().flat_map(|row| row.names).copied().filter(|name| !name.is_empty()).collect()
}

impl PreTokenizer {
    /// Returns the row for a name.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownPreTokenizer`].
    pub fn from_name(name: &str) -> Result<&'static PreTokenizer, TokenizerError> {
        TABLE.iter().find(|row| row.names.contains(&name)).ok_or_else(|| TokenizerError::UnknownPreTokenizer {
            found: name.chars().take(64).collect(),
            supported: supported_pre_tokenizers(),
        })
    }

    /// Returns the name of the row that has these patterns, which are written as in a
    /// `tokenizer.json` (`Split`, isolated matches). Of several rows, prefers one that looks up
    /// whole words if `whole_words` is set, and one that does not otherwise.
    pub fn with_patterns(patterns: &[&str], whole_words: bool) -> Option<&'static str> {
        let wanted: Vec<(bool, String)> = patterns.iter().map(|pattern| published_pattern(pattern)).collect();
        let same = |row: &&PreTokenizer| {
            let stages: Option<Vec<(bool, String)>> =
                row.stages.iter().map(|stage| stage.published_pattern()).collect();
            row.alphabet == Alphabet::Bytes && stages.as_ref() == Some(&wanted)
        };
        let rows = || TABLE.iter().filter(same);
        let fits = |row: &&PreTokenizer| (row.whole_words == WholeWords::Always) == whole_words;
        rows().find(fits).or_else(|| rows().next()).and_then(|row| row.names.first().copied())
    }

    /// Returns the compiled pre-tokenizer.
    pub fn splitter(&self) -> Splitter {
        Splitter { stages: self.stages.iter().map(|stage| (*stage, stage.regex())).collect() }
    }
}

/// Converts a published pattern to the form in the table. Also returns whether the pattern ended
/// with the usual rule for runs of white space, which is removed from the result.
fn published_pattern(pattern: &str) -> (bool, String) {
    // These are contractions in upper or lower case. The regular expression engine here lacks
    // case-insensitive groups.
    const CONTRACTIONS: [(&str, &str); 3] = [
        ("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"),
        ("(?i:[sdmt]|ll|ve|re)", "(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"),
        ("\\p{N}{1}|", "\\p{N}|"),
    ];
    let mut pattern = pattern.to_owned();
    // In patterns in which words include their contraction, it is an optional group.
    pattern = pattern.replace(&format!("{}?", CONTRACTIONS[0].0), &format!("(?:{})?", CONTRACTIONS[0].1));
    for (from, to) in CONTRACTIONS {
        pattern = pattern.replace(from, to);
    }
    // Some files have these characters instead of their escapes.
    for (character, escape) in [("\r", r"\r"), ("\n", r"\n"), ("\t", r"\t")] {
        pattern = pattern.replace(character, escape);
    }
    // Possessive quantifiers have no effect in an engine that does not backtrack.
    pattern = pattern.replace("?+", "?").replace("++", "+").replace("\\$", "$");
    for tail in [r"|\s+(?!\S)|\s+", r"|\s+(?!\S)|\s"] {
        if let Some(words) = pattern.strip_suffix(tail) {
            return (true, words.to_owned());
        }
    }
    (false, pattern)
}

impl Stage {
    /// Returns the published pattern that a stage corresponds to; `None` for stages that one
    /// pattern cannot express.
    fn published_pattern(self) -> Option<(bool, String)> {
        match self {
            Words(pattern) => Some((true, pattern.to_owned())),
            Matches(pattern) => Some((false, pattern.to_owned())),
            WordsAndRuns(..) | Threes(_) | ThreesUnless(..) | BeforeThrees(_) => None,
        }
    }

    fn regex(self) -> Regex {
        let regex = match self {
            // The first pattern that matches at a position is used, so white space matches only
            // where the stage's pattern does not.
            Words(pattern) | WordsAndRuns(pattern, _) => Regex::new_many(&[pattern, r"\s+"]),
            ThreesUnless(except, pattern) => Regex::new_many(&[except, pattern]),
            Matches(pattern) | Threes(pattern) | BeforeThrees(pattern) => Regex::new(pattern),
        };
        regex.expect("patterns are constants and tested")
    }
}

/// Index of the second pattern in a stage's compiled patterns.
const SECOND: usize = 1;

/// Compiled pre-tokenizer.
#[derive(Clone, Debug)]
pub struct Splitter {
    stages: Vec<(Stage, Regex)>,
}

impl Splitter {
    /// Splits `text` into words that cover it.
    pub fn split<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut pieces: Vec<_> = std::iter::once(0..text.len()).collect();
        for (stage, regex) in &self.stages {
            let mut cut = Vec::with_capacity(pieces.len());
            for piece in pieces {
                let mut from = piece.start;
                // Each piece is split independently of its neighbours.
                cut_piece(*stage, regex, &text[piece.clone()], |at| {
                    let to = piece.start + at;
                    cut.extend((from < to).then_some(from..to));
                    from = from.max(to);
                });
                cut.extend((from < piece.end).then_some(from..piece.end));
            }
            pieces = cut;
        }
        pieces.into_iter().map(|piece| &text[piece]).collect()
    }
}

/// Calls `cut` with each position at which a stage splits `text`, in order.
fn cut_piece(stage: Stage, regex: &Regex, text: &str, mut cut: impl FnMut(usize)) {
    let mut at = 0;
    while let Some(found) = regex.find(Input::new(text).range(at..)) {
        let Range { start, end } = found.range();
        at = end;
        let is_second = found.pattern().as_usize() == SECOND;
        match stage {
            Words(_) | WordsAndRuns(..) if is_second => {
                let runs = if let WordsAndRuns(_, runs) = stage { runs } else { &[] };
                cut(start);
                at = cut_run(&text[..end], start, end == text.len(), runs, &mut cut);
            }
            Matches(_) | Words(_) | WordsAndRuns(..) => {
                cut(start);
                cut(end);
            }
            ThreesUnless(..) if !is_second => {}
            Threes(_) | ThreesUnless(..) => {
                cut(start);
                threes(&text[start..end]).for_each(|after| cut(start + after));
                cut(end);
            }
            BeforeThrees(_) => threes(&text[start..end]).for_each(|after| cut(start + after)),
        }
    }
}

/// Splits at a run of white space at the end of `text`, as `\s+(?!\S)|\s+` does. Unless `last` is
/// set, other text follows: the run then leaves its last character to it, unless it has only one. A
/// run is split into pieces of the lengths in `runs`, if there are any. Returns the end of the run.
fn cut_run(text: &str, start: usize, last: bool, runs: &[usize], cut: &mut impl FnMut(usize)) -> usize {
    let run = &text[start..];
    let given_back = run.chars().next_back().filter(|c| !last && c.len_utf8() < run.len()).map_or(0, char::len_utf8);
    let end = text.len() - given_back;
    if !runs.is_empty() {
        let (mut chars, mut left) = (text[start..end].char_indices(), text[start..end].chars().count());
        while let Some(&length) = runs.iter().find(|length| **length <= left) {
            left -= length;
            chars.by_ref().nth(length - 1);
            cut(start + chars.offset());
        }
    }
    cut(end);
    end
}

/// Returns the positions before the last three, six, nine and further multiples of three
/// characters.
fn threes(digits: &str) -> impl Iterator<Item = usize> {
    let count = digits.chars().count();
    digits
        .char_indices()
        .enumerate()
        .filter(move |(number, _)| (count - number).is_multiple_of(3))
        .map(|(_, (at, _))| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        PreTokenizer::from_name(name).unwrap().splitter().split(text)
    }

    #[test]
    fn every_row_compiles_and_covers_its_text() {
        let text = "It's  1234 x_y—日本語!\r\n\n \u{a0}q\t ";
        for name in supported_pre_tokenizers() {
            assert_eq!(split(name, text).concat(), text, "{name}");
        }
    }

    #[test]
    fn last_space_of_a_run_joins_the_next_word() {
        for name in ["gpt-2", "qwen2", "llama-bpe"] {
            assert_eq!(split(name, "foo   bar  "), ["foo", "  ", " bar", "  "], "{name}");
        }
        assert_eq!(split("gpt-2", "a\n\n\nb"), ["a", "\n\n", "\n", "b"]);
        assert_eq!(split("qwen2", "a\n\n\nb"), ["a", "\n\n\n", "b"]);
        assert_eq!(split("qwen2", "x 12 I'LL"), ["x", " ", "1", "2", " I", "'LL"]);
        assert_eq!(split("llama-bpe", "12345"), ["123", "45"]);
        assert_eq!(split("default", "12345?!a"), ["123", "45", "?!", "a"]);
    }

    #[test]
    fn megabytes_of_one_character_are_one_word() {
        for unit in [" ", "\n", "a", "é", "!", "\t"] {
            let text = unit.repeat(1 << 20);
            assert_eq!(split("qwen2", &text).len(), 1, "{unit:?}");
        }
        assert_eq!(split("qwen2", &"1".repeat(1 << 16)).len(), 1 << 16);
    }

    /// Tests that words are the same as those of Hugging Face's tokenizers with the published
    /// patterns, recorded by `tests/vectors/pretokenizers.py`.
    #[test]
    fn pre_tokenizer_words_match_hugging_face() {
        #[derive(serde::Deserialize)]
        struct Vectors {
            texts: Vec<String>,
            /// Number of characters in each word, by the name of the pre-tokenizer and the text.
            words: std::collections::BTreeMap<String, Vec<Vec<usize>>>,
        }
        let vectors: Vectors = serde_json::from_str(include_str!("../../tests/vectors/pretokenizers.json")).unwrap();
        for row in TABLE {
            let words = vectors.words.get(row.names[0]).unwrap_or_else(|| panic!("no vectors for {}", row.names[0]));
            let splitter = row.splitter();
            for (text, expected) in vectors.texts.iter().zip(words) {
                let mut chars = text.chars();
                let expected: Vec<String> = expected.iter().map(|&len| chars.by_ref().take(len).collect()).collect();
                assert_eq!(splitter.split(text), expected, "{}: {text:?}", row.names[0]);
            }
        }
    }

    #[test]
    fn digits_are_counted_from_the_right() {
        assert_eq!(split("afmoe", "1234567"), ["1", "234", "567"]);
        assert_eq!(split("tiny_aya", "1234567 123456"), ["1", "234", "567", " ", "123", "456"]);
        // A letter follows the digits, so the second pattern counts from the left.
        assert_eq!(split("tiny_aya", "1234x"), ["123", "4", "x"]);
        assert_eq!(split("superbpe", "in 1234 words"), ["in ", "1", "234", " words"]);
    }

    #[test]
    fn long_runs_are_cut_in_linear_time() {
        let count = 1 << 20;
        assert_eq!(split("jais-2", &" ".repeat(count)).len(), count / 512);
        assert_eq!(split("afmoe", &"1".repeat(count)).len(), count.div_ceil(3));
        assert_eq!(split("superbpe", &"1".repeat(count)).len(), count.div_ceil(3));
        for row in TABLE {
            let splitter = row.splitter();
            for unit in [" ", "\n", "7", "\u{301}", "a\u{301}", " \n", "a 1", "'", "漢", "１", "_1"] {
                let text = unit.repeat((1 << 16) / unit.len());
                assert_eq!(splitter.split(&text).concat(), text, "{}: {unit:?}", row.names[0]);
            }
        }
    }

    /// Tests that patterns in the form of `tokenizer.json` are recognised.
    #[test]
    fn published_patterns_are_recognised() {
        const CONTRACTIONS: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
        let qwen = |digits: &str| {
            format!(
                r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            )
        };
        let upper = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}";
        let lower = r"\p{Ll}\p{Lm}\p{Lo}\p{M}";
        let gpt_4o = format!(
            r"[^\r\n\p{{L}}\p{{N}}]?[{upper}]*[{lower}]+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?[{upper}]+[{lower}]*{CONTRACTIONS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        );
        let deepseek = [
            r"\p{N}{1,3}",
            "[一-龥぀-ゟ゠-ヿ]+",
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ];
        let known = |patterns: &[&str], whole: bool| PreTokenizer::with_patterns(patterns, whole);
        assert_eq!(known(&[&qwen(r"\p{N}")], false), Some("qwen2"));
        assert_eq!(known(&[&qwen(r"\p{N}{1,3}")], true), Some("llama-bpe"));
        assert_eq!(known(&[&qwen(r"\p{N}{1,3}")], false), Some("dbrx"));
        assert_eq!(known(&[&gpt_4o], false), Some("gpt-4o"));
        assert_eq!(known(&deepseek, false), Some("deepseek-v3"));
        // DeepSeek's files have the characters themselves (as JSON escapes), not escapes of the
        // pattern language.
        let literal = deepseek.map(|pattern| pattern.replace(r"\r\n", "\r\n"));
        assert!(literal[2].contains("[\r\n]*"));
        assert_eq!(known(&literal.each_ref().map(String::as_str), false), Some("deepseek-v3"));
        // These are the patterns of DeepSeek-LLM, -V2 and Coder V2, which split digits one by one
        // (`Digits`, individual).
        let llm = ["[\r\n]", DEEPSEEK_LLM_LETTERS, DEEPSEEK_LLM_PUNCTUATION, r"\s+$", DEEPSEEK_ASIAN, r"\p{N}"];
        assert_eq!(known(&llm, false), Some("deepseek-llm"));
        let coder = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_ASIAN, r"\p{N}"];
        assert_eq!(known(&coder, false), Some("deepseek-coder"));
        assert_eq!(known(&[BYTE_LEVEL_PATTERN], false), Some("gpt-2"));
        assert_eq!(known(&[r"\p{N}", BYTE_LEVEL_PATTERN], false), Some("smollm"));
        assert_eq!((known(&["[a-z]+"], false), known(&[], false)), (None, None));
    }

    #[test]
    fn unknown_pre_tokenizer_error_lists_supported_names() {
        let error = PreTokenizer::from_name("evil").unwrap_err().to_string();
        assert!(
            error.starts_with("key \"tokenizer.ggml.pre\" is \"evil\"; supported values are default, gpt-2"),
            "{error}"
        );
        assert!(error.contains("qwen2"), "{error}");
    }
}
