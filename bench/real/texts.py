"""Texts that all checks share: the same ones on every machine and in every version of Python."""

import random

SEED = 47
# Sentences of many scripts.
SENTENCES = """
The borrow checker rejects a reference that outlives its owner.
It's 1,234,567 o'clock; we'll see whether they're right, I'd say they've lost.
Der Übersetzer prüft, ob die Größe der Maße stimmt – naïve Façaden genügen nicht.
Où est la bibliothèque ? L'été dernier, j'ai lu « Les Misérables » à Besançon.
¿Cuántos años tiene el niño? ¡Mañana cumplirá ocho!
Zażółć gęślą jaźń. Příliš žluťoučký kůň úpěl ďábelské ódy.
Быстрая бурая лисица перепрыгивает через ленивую собаку.
Η γρήγορη καφετιά αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.
敏捷的棕色狐狸跳过了那只懒狗。今天天气很好，我们去公园吧！
いろはにほへと ちりぬるを、吾輩は猫である。名前はまだ無い。カタカナ
빠른 갈색 여우가 게으른 개를 뛰어넘는다. 안녕하세요 세계!
الثعلب البني السريع يقفز فوق الكلب الكسول. مَرْحَبًا بِالعَالَم ١٢٣
השועל החום המהיר קופץ מעל הכלב העצלן. שָׁלוֹם עוֹלָם
तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है। नमस्ते दुनिया १२३
দ্রুত বাদামী শিয়াল অলস কুকুরের উপর দিয়ে লাফ দেয়।
வேகமான பழுப்பு நரி சோம்பேறி நாயின் மீது தாவுகிறது.
สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ
Con cáo nâu nhanh nhẹn nhảy qua con chó lười biếng. Tiếng Việt có dấu.
ქართული ენა ლამაზია. Հայերեն լեզուն գեղեցիկ է.
የኢትዮጵያ ቋንቋ። ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ
""".strip().splitlines()
CODE = [
    "fn main() {\n    let mut total: u64 = 0;\n    for x in 0..=9 {\n        total += x * x;\n    }\n    println!(\"{total:>8}\");\n}\n",
    "def f(x, *args, **kwargs):\n\treturn {k: v for k, v in kwargs.items() if v is not None}\n",
    "#include <stdio.h>\r\nint main(void) { return printf(\"%d\\n\", 0x7fff & ~1); }\r\n",
    "SELECT name, COUNT(*) AS n FROM users WHERE age >= 21 GROUP BY name HAVING n > 1;",
    "<div class=\"a b\"><p>Hello &amp; goodbye</p><br/></div>",
    "{\"key\": [1, 2.5, -3e10, null, true], \"nested\": {\"a\\\"b\": \"\\u00e9\"}}",
    "https://example.com/path?q=1&r=%20#fragment user@example.org 192.168.0.1:8080",
    "const f = async (a) => { await g(a?.b ?? 'c'); }; // TODO(me): why???",
    "for i in $(seq 1 10); do echo \"$i\" | tee -a log.txt; done 2>&1",
    "\\frac{a_{i+1}}{\\sqrt{b^2-4ac}} \\leq \\sum_{k=0}^{\\infty} x^k",
]
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "❤️", "1️⃣", "🧑🏿‍🚀", "☕", "🤷‍♀️"]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\n\n\n", "\t", "\t\t", "\r\n", " \n ", "\u00a0", "\u3000", "\u200b", "    ", "        "]
MARKS = ["", ".", ",", "!", "?!", "...", "…", ";", ":", "—", "--", "'", "\"", "'s", "'LL", "()", "[]", "{}", "//", "##", "@", "_", "*", "=>", "::", "~~", "\\"]
NUMBERS = ["0", "7", "42", "123", "1234", "1000000", "3.14159", "1e-9", "0x1F", "²³", "½", "१२", "Ⅳ", "1st", "2026-11-28"]
# Unicode blocks of random single characters: alphabets, syllabaries, ideographs, symbols and emoji.
BLOCKS = [
    (0x21, 0x7E), (0xA1, 0x24F), (0x370, 0x3FF), (0x400, 0x4FF), (0x5D0, 0x5EA), (0x620, 0x64A), (0x904, 0x939), (0xE01, 0xE3A), (0x1E00, 0x1EFF),
    (0x2010, 0x2027), (0x2190, 0x21FF), (0x2500, 0x257F), (0x3041, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFF01, 0xFF5E), (0x1F300, 0x1F64F),
    (0x20000, 0x2A6D6),
]


def _pick(draw, items):
    # `random()` is the one function whose values no version of Python changed.
    return items[int(draw.random() * len(items))]


def _character(draw):
    first, last = _pick(draw, BLOCKS)
    return chr(first + int(draw.random() * (last - first + 1)))


def _mixed(draw):
    """Returns words, spaces, marks, numbers, emoji and characters in random order."""
    parts = []
    for _ in range(1 + int(draw.random() * 24)):
        kind = draw.random()
        if kind < 0.45:
            parts.append(_pick(draw, _pick(draw, SENTENCES).split()))
        elif kind < 0.65:
            parts.append(_pick(draw, SPACES))
        elif kind < 0.8:
            parts.append(_pick(draw, MARKS))
        elif kind < 0.88:
            parts.append(_pick(draw, NUMBERS))
        elif kind < 0.93:
            parts.append(_pick(draw, EMOJI))
        else:
            parts.append("".join(_character(draw) for _ in range(1 + int(draw.random() * 4))))
        if draw.random() < 0.6:
            parts.append(" ")
    return "".join(parts)


def _words(draw):
    """Returns random words of random sentences."""
    return " ".join(_pick(draw, _pick(draw, SENTENCES).split()) for _ in range(1 + int(draw.random() * 20)))


def all_texts(count=1000):
    """Returns the texts whose ids are compared: first fixed texts, then random ones."""
    fixed = [*SENTENCES, *CODE, *EMOJI, *SPACES, *(mark for mark in MARKS if mark), *NUMBERS]
    draw = random.Random(SEED)
    kinds = [_mixed, _mixed, _words, lambda draw: "".join(_character(draw) for _ in range(1 + int(draw.random() * 40)))]
    drawn = []
    while len(fixed) + len(drawn) < count:
        drawn.append(_pick(draw, kinds)(draw))
    return (fixed + drawn)[:count]


# Beginnings that models go on from.
PROMPTS = """
The capital of France is
Once upon a time, in a small village by the sea,
The three laws of thermodynamics state that
def fibonacci(n):
To make a good cup of coffee, you first
In 1969, the first human beings
The difference between a compiler and an interpreter is
Water boils at
Dear Sir or Madam,
The mitochondria is
SELECT name FROM
Roses are red,
A list of the planets of the solar system:
Photosynthesis is the process by which
The quick brown fox
import numpy as np
She opened the door and saw
The main causes of the First World War were
If a train travels at 60 miles per hour for two hours,
The best way to learn a language is
""".strip().splitlines()

QUESTIONS = """
What is the capital of France?
Write one sentence about the sea.
What is 2 + 3?
Name three colours.
Explain what a compiler does in one sentence.
Translate "good morning" into French.
Who wrote Romeo and Juliet?
Give me a tip for sleeping better.
What do bees make?
Say hello.
""".strip().splitlines()


def short_texts(count):
    """Texts of one to some hundred words, for vectors."""
    draw = random.Random(SEED + 1)
    latin = SENTENCES[:7] + PROMPTS + QUESTIONS
    texts = [*PROMPTS, *QUESTIONS, *SENTENCES]
    while len(texts) < count:
        texts.append(" ".join(_pick(draw, latin) for _ in range(1 + int(draw.random() * 8))))
    return texts[:count]
