#!/usr/bin/env python3
"""Makes pretokenizers.json: words of texts, divided by Hugging Face's `tokenizers` with the published patterns of models.

    pip install tokenizers && python3 pretokenizers.py > pretokenizers.json

A pre-tokenizer is a list of patterns, each a `Split` whose matches are isolated. If llama.cpp's source quotes the pattern
of a model's tokenizer.json, this pattern is used, otherwise llama.cpp's own. The regex engine's look-ahead divides white
space at the end of a text and before a word.
"""
import json
import sys

from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split

A = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
P = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
W = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
LEAD = r"[^\r\n\p{L}\p{N}]?"

GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN_2 = rf"{A}|{LEAD}\p{{L}}+|\p{{N}}|{P}|{W}"
LLAMA_3 = QWEN_2.replace(r"\p{N}|", r"\p{N}{1,3}|")
GPT_4O = rf"{LEAD}[{UPPER}]*[{LOWER}]+{A}?|{LEAD}[{UPPER}]+[{LOWER}]*{A}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{W}"
KIMI = (
    rf"[\p{{Han}}]+|{LEAD}[{UPPER}&&[^\p{{Han}}]]*[{LOWER}&&[^\p{{Han}}]]+{A}?"
    rf"|{LEAD}[{UPPER}&&[^\p{{Han}}]]+[{LOWER}&&[^\p{{Han}}]]*{A}?|\p{{N}}{{1,3}}|{P}|{W}"
)
ASCII = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
DEEPSEEK_3 = rf"{ASCII}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{W}"
CHINESE_JAPANESE = "[一-龥぀-ゟ゠-ヿ]+"
# As escapes: some look like other letters.
LETTERS = "\\s?" + (
    "[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-"
    "\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-"
    "\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-"
    "\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]+"
)
ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
LINES = r"[^\n]+|[\n]+"
JAIS_2 = LLAMA_3.replace(
    r"|\s+(?!\S)|\s+", "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}"
)

PATTERNS = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT_2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "gpt-2": [GPT_2],
    "smollm": [r"\p{N}", GPT_2],
    "llama-bpe": [LLAMA_3],
    "dbrx": [LLAMA_3],
    "glm4": [LLAMA_3],
    "chatglm-bpe": [LLAMA_3],
    "qwen2": [QWEN_2],
    "qwen35": [rf"{A}|{LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{W}"],
    "deepseek-v3": [r"\p{N}{1,3}", CHINESE_JAPANESE, DEEPSEEK_3],
    "gpt-4o": [GPT_4O],
    "tekken": [rf"{LEAD}[{UPPER}]*[{LOWER}]+|{LEAD}[{UPPER}]+[{LOWER}]*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{W}"],
    "kimi-k2": [KIMI],
    "bailingmoe": [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "seed-coder": [rf"{A}|{LEAD}\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{W}"],
    "laguna": [LINES, QWEN_2],
    # Counting in llama.cpp; this says the same.
    "afmoe": [
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
        "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
        DEEPSEEK_3,
    ],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", GPT_4O],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "exaone-moe": [
        rf"{A}|{LEAD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "youtu": [
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
        GPT_4O.replace(r"\p{N}{1,3}", r"\p{N}"),
    ],
    "minicpm5": [r"\p{N}{1,3}", LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}+")],
    "spark2_5": [
        r"\p{N}{1,3}",
        CHINESE_JAPANESE,
        rf"{ASCII}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
        r"\p{N}",
    ],
    "deepseek-llm": [r"[\r\n]", LETTERS, "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", ASIAN, r"\p{N}"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", ASIAN, r"\p{N}"],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT_2, "[0-9][0-9][0-9]"],
    "bloom": [BLOOM],
    "viking": [BLOOM, r"\p{N}"],
    "jais-2": [JAIS_2],
    "ufakzeka": [rf"{LEAD}\p{{L}}+|\p{{N}}|{P}|{W}"],
    "chameleon": [
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        GPT_2,
    ],
    "gemma4": [LINES],
    "sarvam-moe": [LINES],
}

TEXTS = [
    "",
    "Hello, world! It's 1234567 o'clock; I'LL see you're DON'T we've.",
    "HelloWorld camelCaseHTTPServer x_y __init__ a.b.c iPhone15Pro",
    "   leading\n\n  two\r\n\r\nthree   \t\ttabs  \n ",
    "a\n\n\nb\n \n c \r\r d",
    "12 123 1234 12345 123456 1234567 1,234.56 3.14159e-10 0x1F 1234x x1234 1234_5",
    "１２３４ ²³ ½ Ⅷ ٣٤٥٦ १२३४ 12²",
    "naïve café e\u0301te\u0301 a\u0301\u0323b Z\u0335\u0321a",
    "Привет, мир! Ελληνικά ΚΕΦΑΛΑΊΑ ǅungla",
    "日本語のテキスト、漢字とカタカナ。ﾊﾝｶｸ 中文：你好！“引号”——结束……",
    "한국어 텍스트 ㄱㄴㄷ ㄅㄆㄇ 안녕하세요!",
    "हिन्दी में लिखा ไทยไม่มีช่องว่าง עברית العربية، نص۔ বাংলা তামিল தமிழ்",
    "👍🏽 👨‍👩‍👧 🇩🇪 ❤️ ☃ 😀😀😀",
    "fn main() { println!(\"{}\", x<<2 && y != z); } // ok?\n\t#[test]\n",
    "https://example.com/a/b?c=d&e=f#g user@mail.org C:\\path\\file /usr/bin/\n/x",
    "!!! ??? ... --- === *** \n!\n?\r\n",
    "\u00a0nbsp\u00a0 \u3000wide\u3000 \u2003em \u200bzero\u0085next",
    "'s 'S 't'T 're 'RE 'x ''ll Türkiye'de Ankara'nın",
    "price $5 €10 £3 + 2 <tag> ~x^2| `code`",
    "$a +b <c> ^d ~e |f `g",
    "<sentinel:12> IMGIMGABCDZ IMGIMGABCDEFGHIZ",
    "a" * 40 + " " * 20 + "b" + " " * 600 + "c" + " " * 13,
    "Mixed漢字andLatin123数字 and한글 ЯBackwards",
    "tab\tseparated\tvalues\t\t1\t2",
    "ends with space ",
    "\n",
    " ",
    "  \n  ",
    "ﬁ ligature Å ℃ № ™ \ufffd \ue000",
    "ʰmodifier ªº ʼn ͵ ՙա",
]


def words(patterns, text):
    cut = Sequence([Split(Regex(pattern), "isolated") for pattern in patterns]).pre_tokenize_str(text)
    lengths = [end - start for _, (start, end) in cut]
    assert sum(lengths) == len(text), text
    return lengths


vectors = {name: [words(patterns, text) for text in TEXTS] for name, patterns in PATTERNS.items()}
print('{"texts": ' + json.dumps(TEXTS, ensure_ascii=True) + ',\n"words": {')
print(",\n".join(f'"{name}": ' + json.dumps(rows, separators=(",", ":")) for name, rows in vectors.items()))
print("}}")
