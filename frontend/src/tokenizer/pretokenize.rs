//! Pre-tokenizers: where BPE may not merge across. One row of [`TABLE`] each.
//!
//! The published patterns end in `\s+(?!\S)|\s+`: a run of white space leaves its last character to the word that follows.
//! That look-ahead is all that keeps them from being regular, so it is done by hand here and the rest runs on a
//! linear-time engine. (A backtracking engine gives up, or stops splitting without a word, on a megabyte of spaces.)

use std::ops::Range;

use regex_automata::{Input, meta::Regex};

use super::TokenizerError;

/// A pre-tokenizer, and what llama.cpp ties to its name.
#[derive(Debug)]
pub struct PreTokenizer {
    /// `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Applied one after the other, each to the pieces that the one before left.
    patterns: &'static [&'static str],
    /// A word that is a token as a whole is not built from merges.
    pub ignore_merges: bool,
    /// Whether a sequence starts with BOS where the file does not say.
    pub add_bos: bool,
}

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

/// Every supported pre-tokenizer; patterns as in llama.cpp's `llm_tokenizer_bpe`, less their white-space tail. The first
/// row is for files that name none.
#[rustfmt::skip]
const TABLE: &[PreTokenizer] = &[
    PreTokenizer { names: &["default", ""], patterns: &[r"[\p{P}$+<=>^~|]+", GPT_2, r"\p{N}+", "[0-9][0-9][0-9]"], ignore_merges: false, add_bos: false },
    PreTokenizer { names: &["gpt-2", "phi-2", "olmo", "mpt", "exaone4", "mellum", "modern-bert", "gigachat", "a.x-4.0"], patterns: &[GPT_2], ignore_merges: false, add_bos: false },
    PreTokenizer { names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"], patterns: &[r"\p{N}", GPT_2], ignore_merges: false, add_bos: false },
    PreTokenizer { names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"], patterns: &[LLAMA_3], ignore_merges: true, add_bos: true },
    PreTokenizer { names: &["dbrx", "smaug-bpe"], patterns: &[LLAMA_3], ignore_merges: false, add_bos: false },
    PreTokenizer { names: &["glm4", "glm5"], patterns: &[LLAMA_3], ignore_merges: true, add_bos: false },
    PreTokenizer { names: &["chatglm-bpe"], patterns: &[LLAMA_3], ignore_merges: false, add_bos: false },
    PreTokenizer { names: &["qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "kormo"], patterns: &[QWEN_2], ignore_merges: false, add_bos: false },
    PreTokenizer { names: &["qwen35"], patterns: &[QWEN_35], ignore_merges: false, add_bos: false },
    PreTokenizer { names: &["deepseek-v3"], patterns: &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK_3], ignore_merges: false, add_bos: false },
    PreTokenizer { names: &["gpt-4o", "llama4", "kanana2"], patterns: &[GPT_4O], ignore_merges: false, add_bos: false },
    PreTokenizer { names: &["tekken"], patterns: &[TEKKEN], ignore_merges: true, add_bos: true },
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

    /// The machine that splits.
    pub fn splitter(&self) -> Splitter {
        Splitter {
            stages: self
                .patterns
                .iter()
                .map(|pattern| {
                    // Leftmost first: pattern 1 is tried where pattern 0 has no match.
                    let patterns: &[&str] = if pattern.contains(r"\s") { &[pattern, r"\s+"] } else { &[pattern] };
                    Regex::new_many(patterns).expect("patterns are constants and tested")
                })
                .collect(),
        }
    }
}

/// Which pattern of a stage is the run of white space.
const WHITE_SPACE: usize = 1;

/// A pre-tokenizer, compiled.
#[derive(Clone, Debug)]
pub struct Splitter {
    stages: Vec<Regex>,
}

impl Splitter {
    /// Cuts `text` into words that cover it.
    pub fn split<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut pieces: Vec<_> = std::iter::once(0..text.len()).collect();
        for stage in &self.stages {
            pieces = split_stage(stage, text, &pieces);
        }
        pieces.into_iter().map(|piece| &text[piece]).collect()
    }
}

/// Cuts each piece at the matches of one stage; what lies between matches is a piece too.
fn split_stage(regex: &Regex, text: &str, pieces: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut cut = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let mut at = piece.start;
        while at < piece.end {
            let Some(found) = regex.find(Input::new(text).range(at..piece.end)) else { break };
            let mut end = found.end();
            if found.pattern().as_usize() == WHITE_SPACE && end < piece.end {
                // `\s+(?!\S)|\s+`: what follows is no white space, so give back the last one unless it is the only one.
                let last = text[found.range()].chars().next_back().map_or(0, char::len_utf8);
                if last < found.len() {
                    end -= last;
                }
            }
            if at < found.start() {
                cut.push(at..found.start());
            }
            cut.push(found.start()..end);
            at = end;
        }
        if at < piece.end {
            cut.push(at..piece.end);
        }
    }
    cut
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

    #[test]
    fn an_unknown_name_says_what_is_known() {
        let error = PreTokenizer::named("evil").unwrap_err().to_string();
        assert!(error.starts_with("key \"tokenizer.ggml.pre\" is \"evil\"; supported are default, gpt-2"), "{error}");
        assert!(error.contains("qwen2"), "{error}");
    }
}
