//! Pre-tokenizers: where BPE may not merge across. One row of [`TABLE`] each.
//!
//! The published patterns end in `\s+(?!\S)|\s+`: a run of white space leaves its last character to the word that follows.
//! That look-ahead is all that keeps most of them from being regular, so it is done by hand here and the rest runs on a
//! linear-time engine. (A backtracking engine gives up, or stops splitting without a word, on a megabyte of spaces.) The other one is
//! `\d{1,3}(?=(?:\d{3})*\b)`, digits in threes from the right: a run of digits is found, and cut by counting.
//!
//! Patterns are the models' own, from their `tokenizer.json`. llama.cpp replaces some by what its engines can do: it does not cut words at
//! capitals for `kimi-k2`, and cuts digits from the right for `tiny_aya` also where a letter follows. Text with such words gets the ids there that
//! the model was trained on, and others in llama.cpp. Names of embedding models are left out (`jina-*`, `granite-embed-*`, `roberta-bpe`).

use std::ops::Range;

use regex_automata::{Input, meta::Regex};

use super::TokenizerError;
use Stage::{BeforeThrees, Matches, Threes, ThreesUnless, Words, WordsAndRuns};
use WholeWords::{Always, LineFeeds};

/// A pre-tokenizer, and what llama.cpp ties to its name.
#[derive(Debug)]
pub struct PreTokenizer {
    /// `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Applied one after the other, each to the pieces that the one before left.
    stages: &'static [Stage],
    /// Which words are looked up before they are built from merges.
    pub whole_words: WholeWords,
    /// How the vocabulary spells text.
    pub alphabet: Alphabet,
    /// Whether a sequence starts with BOS.
    pub bos: Bos,
}

/// How a stage cuts text.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// At both ends of each match.
    Matches(&'static str),
    /// As `Matches`, and where this pattern has none at runs of white space, which leave their last character to the word that follows.
    Words(&'static str),
    /// As `Words`; a run is cut into such lengths further, the longest that is left to fill first.
    WordsAndRuns(&'static str, &'static [usize]),
    /// At both ends of each match, and in it before every three characters, counted from its end.
    Threes(&'static str),
    /// As `Threes` of the second pattern, and nowhere in a match of the first.
    ThreesUnless(&'static str, &'static str),
    /// Before every three characters of a match, counted from its end, and nowhere else.
    BeforeThrees(&'static str),
}

/// Words that are tokens as a whole, whatever the merges say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WholeWords {
    /// None.
    Never,
    /// All (`ignore_merges`).
    Always,
    /// Runs of line feeds: no merge can name them, since a list of merges has one on a line.
    LineFeeds,
}

/// How a vocabulary spells text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alphabet {
    /// Each byte as one of GPT-2's letters.
    Bytes,
    /// As it is, with a space as `▁`; what has no token becomes tokens like `<0x0A>`.
    Characters,
}

/// Whether a sequence starts with BOS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bos {
    /// Where the file says so.
    IfStated,
    /// Unless the file says otherwise.
    UnlessStated,
    /// Whatever the file says: early Gemma 4 files say no, and are wrong.
    Always,
}

/// The pattern of a `ByteLevel` pre-tokenizer that has none beside it.
pub const BYTE_LEVEL_PATTERN: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// GPT-2's pattern, without its white space.
const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+";
/// Llama 3: contractions in any case, digits in threes, newlines apart.
const LLAMA_3: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";
/// Qwen2: as Llama 3, digits one by one.
const QWEN_2: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";
/// Qwen3.5: as Qwen2, marks belong to words.
const QWEN_35: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+";
/// DeepSeek-V3's third pattern.
const DEEPSEEK_3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"##;
/// GPT-4o: words change at capitals and keep their contraction.
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+";
/// Mistral's Tekken: as GPT-4o without contractions, digits one by one.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+";

/// Falcon: GPT-2 behind punctuation, which is apart, and digits in threes from the left.
const FALCON_PUNCTUATION: &str = r"[\p{P}$+<=>^~|`]+";
/// Han, Hiragana and Katakana, of DeepSeek-V3.
const CHINESE_JAPANESE: &str = "[一-龥぀-ゟ゠-ヿ]+";
/// Spark 2.5: as DeepSeek-V3's, each newline by itself.
const SPARK_25: &str =
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]"##;
/// Kimi K2: Han apart, and else as GPT-4o.
const KIMI_K2: &str = r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";
/// Ling: more contractions, one newline ends a run.
const BAILING: &str =
    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]";
/// Seed: as Qwen2, punctuation takes no newlines.
const SEED: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+";
/// MiniCPM5's second pattern: as Llama 3, its digits are cut before.
const MINICPM_5: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";
/// As Qwen2, without contractions: Turkish puts its endings behind apostrophes.
const UFAKZEKA: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";
/// EXAONE MoE: words with single spaces between them stay together.
const EXAONE_MOE: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]";
/// Youtu's first pattern: Korean, full-width punctuation, Bopomofo, Chinese and Japanese apart.
const YOUTU_SCRIPTS: &str = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+";
/// Youtu's second pattern: as GPT-4o, digits one by one.
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+";
/// Trinity: Asian scripts apart.
const AFMOE_SCRIPTS: &str = "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+";
/// DeepSeek LLM: letters of scripts with cases, as its authors list them.
const DEEPSEEK_LLM_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
/// DeepSeek LLM: punctuation, also full-width.
const DEEPSEEK_LLM_PUNCTUATION: &str = r"\s?[!-/:-~！-／：-～‘-‟　-。]+";
/// DeepSeek LLM and Coder: Chinese, Japanese, Korean and what lies between.
const DEEPSEEK_ASIAN: &str = "[一-龥ࠀ-一가-퟿]+";
/// BLOOM: words up to common punctuation.
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
/// Digits that a word goes on behind: where `\d{1,3}(?=(?:\d{3})*\b)` finds none. (Words as Oniguruma has them: with all numbers.)
const DIGITS_IN_WORD: &str = r"\d+[[\p{L}\p{M}\p{N}\p{Pc}]--\d]";
/// Runs of line feeds apart from all else.
const LINES: &str = r"[^\n]+|\n+";

/// What most rows have.
const USUAL: PreTokenizer = PreTokenizer {
    names: &[],
    stages: &[],
    whole_words: WholeWords::Never,
    alphabet: Alphabet::Bytes,
    bos: Bos::IfStated,
};

/// Every supported pre-tokenizer; stages as in llama.cpp's `llm_tokenizer_bpe`, less their white-space tail. The first
/// row is for files that name none.
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

/// The names that `tokenizer.ggml.pre` may have.
pub fn supported_pre_tokenizers() -> Vec<&'static str> {
    TABLE.iter().flat_map(|row| row.names).copied().filter(|name| !name.is_empty()).collect()
}

impl PreTokenizer {
    /// The row for a name.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownPreTokenizer`].
    pub fn named(name: &str) -> Result<&'static PreTokenizer, TokenizerError> {
        TABLE
            .iter()
            .find(|row| row.names.contains(&name))
            .ok_or_else(|| TokenizerError::UnknownPreTokenizer { found: name.chars().take(64).collect() })
    }

    /// The name of a row whose patterns these are, each written as in a `tokenizer.json` (`Split`, matches isolated), and which looks whole words
    /// up if `whole_words` says so.
    pub fn with_patterns(patterns: &[&str], whole_words: bool) -> Option<&'static str> {
        let wanted: Vec<(bool, String)> = patterns.iter().map(|pattern| published(pattern)).collect();
        let same = |row: &&PreTokenizer| {
            let stages: Option<Vec<(bool, String)>> = row.stages.iter().map(|stage| stage.published()).collect();
            row.alphabet == Alphabet::Bytes && stages.as_ref() == Some(&wanted)
        };
        let rows = || TABLE.iter().filter(same);
        let fits = |row: &&PreTokenizer| (row.whole_words == WholeWords::Always) == whole_words;
        rows().find(fits).or_else(|| rows().next()).and_then(|row| row.names.first().copied())
    }

    /// The machine that splits.
    pub fn splitter(&self) -> Splitter {
        Splitter { stages: self.stages.iter().map(|stage| (*stage, stage.regex())).collect() }
    }
}

/// A published pattern as the rows have it, and whether runs of white space are left to be cut behind it.
fn published(pattern: &str) -> (bool, String) {
    // In any case: the engine here has no such group, and needs none.
    const CONTRACTIONS: [(&str, &str); 3] = [
        ("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"),
        ("(?i:[sdmt]|ll|ve|re)", "(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"),
        ("\\p{N}{1}|", "\\p{N}|"),
    ];
    let mut pattern = pattern.to_owned();
    // Behind a word contractions are optional, as a group.
    pattern = pattern.replace(&format!("{}?", CONTRACTIONS[0].0), &format!("(?:{})?", CONTRACTIONS[0].1));
    for (from, to) in CONTRACTIONS {
        pattern = pattern.replace(from, to);
    }
    // Some files have the characters themselves where others have escapes.
    for (character, escape) in [("\r", r"\r"), ("\n", r"\n"), ("\t", r"\t")] {
        pattern = pattern.replace(character, escape);
    }
    // Possessive: nothing goes back here.
    pattern = pattern.replace("?+", "?").replace("++", "+").replace("\\$", "$");
    for tail in [r"|\s+(?!\S)|\s+", r"|\s+(?!\S)|\s"] {
        if let Some(words) = pattern.strip_suffix(tail) {
            return (true, words.to_owned());
        }
    }
    (false, pattern)
}

impl Stage {
    /// The same of a stage; `None` for those that no such pattern says.
    fn published(self) -> Option<(bool, String)> {
        match self {
            Words(pattern) => Some((true, pattern.to_owned())),
            Matches(pattern) => Some((false, pattern.to_owned())),
            WordsAndRuns(..) | Threes(_) | ThreesUnless(..) | BeforeThrees(_) => None,
        }
    }

    fn regex(self) -> Regex {
        let regex = match self {
            // Leftmost first: white space is tried where the pattern has no match.
            Words(pattern) | WordsAndRuns(pattern, _) => Regex::new_many(&[pattern, r"\s+"]),
            ThreesUnless(except, pattern) => Regex::new_many(&[except, pattern]),
            Matches(pattern) | Threes(pattern) | BeforeThrees(pattern) => Regex::new(pattern),
        };
        regex.expect("patterns are constants and tested")
    }
}

/// The number of a stage's second pattern.
const SECOND: usize = 1;

/// A pre-tokenizer, compiled.
#[derive(Clone, Debug)]
pub struct Splitter {
    stages: Vec<(Stage, Regex)>,
}

impl Splitter {
    /// Cuts `text` into words that cover it.
    pub fn split<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut pieces: Vec<_> = std::iter::once(0..text.len()).collect();
        for (stage, regex) in &self.stages {
            let mut cut = Vec::with_capacity(pieces.len());
            for piece in pieces {
                let mut from = piece.start;
                // A stage sees a piece and nothing around it.
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

/// Gives the places at which a stage cuts `text`, in order.
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

/// `\s+(?!\S)|\s+`: a run of white space that ends `text`, which something follows unless it is `last`. It gives its last character back unless
/// this is the only one. Cuts it into lengths of `runs`, if there are any, and gives the place where it ends.
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

/// Where three characters, or six, or nine … are left.
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
        PreTokenizer::named(name).unwrap().splitter().split(text)
    }

    #[test]
    fn every_row_compiles_and_covers_its_text() {
        let text = "It's  1234 x_y—日本語!\r\n\n \u{a0}q\t ";
        for name in supported_pre_tokenizers() {
            assert_eq!(split(name, text).concat(), text, "{name}");
        }
    }

    #[test]
    fn a_run_of_white_space_leaves_its_last_to_the_word() {
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

    /// What Hugging Face's tokenizers make of the published patterns: `tests/vectors/pretokenizers.py`.
    #[test]
    fn words_are_those_of_the_published_patterns() {
        #[derive(serde::Deserialize)]
        struct Vectors {
            texts: Vec<String>,
            /// For each name and text, characters of each word.
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
        // No boundary, so the second pattern counts from the left.
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

    /// Patterns as `tokenizer.json` has them.
    #[test]
    fn published_patterns_are_known_by_what_they_are() {
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
        // As DeepSeek's files have it: JSON's escapes are the characters, not the pattern's.
        let literal = deepseek.map(|pattern| pattern.replace(r"\r\n", "\r\n"));
        assert!(literal[2].contains("[\r\n]*"));
        assert_eq!(known(&literal.each_ref().map(String::as_str), false), Some("deepseek-v3"));
        // DeepSeek-LLM, -V2 and Coder V2: digits one by one (`Digits`, individual).
        let llm = ["[\r\n]", DEEPSEEK_LLM_LETTERS, DEEPSEEK_LLM_PUNCTUATION, r"\s+$", DEEPSEEK_ASIAN, r"\p{N}"];
        assert_eq!(known(&llm, false), Some("deepseek-llm"));
        let coder = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_ASIAN, r"\p{N}"];
        assert_eq!(known(&coder, false), Some("deepseek-coder"));
        assert_eq!(known(&[BYTE_LEVEL_PATTERN], false), Some("gpt-2"));
        assert_eq!(known(&[r"\p{N}", BYTE_LEVEL_PATTERN], false), Some("smollm"));
        assert_eq!((known(&["[a-z]+"], false), known(&[], false)), (None, None));
    }

    #[test]
    fn an_unknown_name_says_what_is_known() {
        let error = PreTokenizer::named("evil").unwrap_err().to_string();
        assert!(error.starts_with("key \"tokenizer.ggml.pre\" is \"evil\"; supported are default, gpt-2"), "{error}");
        assert!(error.contains("qwen2"), "{error}");
    }
}
