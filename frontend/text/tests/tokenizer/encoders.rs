//! Tests of the tokenizers of encoders: WordPiece and SentencePiece's unigram tokenizer, against
//! the `tokenizers` crate.

use ixc_model_files::gguf::write::GgufWriter;
use ixc_model_files::gguf::{Gguf, read_vocabulary};
use ixc_text::tokenizer::{ModelKind, SpecialIds, TokenType, Tokenizer, TokenizerSpec};

/// Tokens in the spelling of BERT's own lists.
#[rustfmt::skip] // As it is read.
const PIECES: [&str; 42] = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##believ", "believ", "##able", "##a", "##b", "a", "b", "ab", "##ab", "!", "'", "s", "##s", "e", "##e",
    "é", "##é", "İ", "i", "##i", "日", "本", "##本", "日本", "-", "#", "##", "▁", "##▁", "##c", "c", "x", "##x", "λ", "ς", "\u{307}", "##\u{307}",
];

/// Returns these tokens as llama.cpp's converter writes them.
fn wordpiece(lowercase: bool, strip_accents: bool) -> TokenizerSpec {
    let written = |(id, piece): (usize, &&str)| match piece.strip_prefix("##") {
        _ if id < 4 => (*piece).to_owned(),
        Some(rest) => rest.to_owned(),
        None => format!("▁{piece}"),
    };
    let ty = |id| match id {
        1 => TokenType::Unknown,
        0..4 => TokenType::Control,
        _ => TokenType::Normal,
    };
    TokenizerSpec {
        model: ModelKind::WordPiece,
        tokens: PIECES.iter().enumerate().map(written).collect(),
        types: (0..PIECES.len()).map(ty).collect(),
        special: SpecialIds { bos: Some(2), eos: Some(3), unk: Some(1), ..SpecialIds::default() },
        lowercase,
        strip_accents,
        ..TokenizerSpec::default()
    }
}

#[test]
fn wordpiece_is_that_of_hugging_face() {
    use tokenizers::models::bpe::Vocab;
    use tokenizers::models::wordpiece::WordPiece;
    use tokenizers::normalizers::bert::BertNormalizer;
    use tokenizers::pre_tokenizers::bert::BertPreTokenizer;

    // Parts of the random texts: tokens, spaces, control characters, ideographs, combined and
    // separate accents, and a letter whose lowercase form has two letters.
    #[rustfmt::skip] // As it is read.
    let parts = [
        "un", "believ", "able", "Unbelievable", "a", "ab", "B", "!", "'s", " ", "\t", "\n", "\u{a0}", "\u{200b}", "\u{ad}", "\0", "\u{fffd}", "é", "e\u{301}", "É", "İ", "日", "本",
        "日本", "-", "–", "#", "##a", "▁", "▁a", "c", "Σ", "x", "«", "$", "^", "🦀", "\u{3000}", "q", "[CLS]",
    ];
    for (lowercase, strip) in [(true, true), (false, false), (true, false), (false, true)] {
        let vocabulary = PIECES.iter().zip(0u32..).map(|(piece, id)| ((*piece).to_owned(), id));
        let vocabulary: Vocab = vocabulary.collect();
        let model = WordPiece::builder().vocab(vocabulary).unk_token("[UNK]".into()).build().unwrap();
        let mut oracle = tokenizers::Tokenizer::new(model);
        oracle.with_normalizer(Some(BertNormalizer::new(true, true, Some(strip), lowercase))).unwrap();
        oracle.with_pre_tokenizer(Some(BertPreTokenizer));
        let own = Tokenizer::new(&wordpiece(lowercase, strip)).unwrap();
        let mut state = 7u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as usize
        };
        for _ in 0..3000 {
            let text: String = (0..next() % 9).map(|_| parts[next() % parts.len()]).collect();
            let expected = oracle.encode(text.as_str(), false).unwrap();
            assert_eq!(own.encode(&text, false).unwrap(), expected.get_ids(), "{text:?}, {lowercase}, {strip}");
        }
        for length in [99, 100, 101] {
            let text = format!("b {} b", "a".repeat(length));
            assert_eq!(own.encode(&text, false).unwrap(), oracle.encode(text.as_str(), false).unwrap().get_ids());
        }
    }
    // Names of special tokens are recognised on request.
    let own = Tokenizer::new(&wordpiece(true, true)).unwrap();
    assert_eq!(own.encode("[CLS]a[SEP]", true).unwrap(), [2, 10, 3]);
    assert_eq!((own.add_bos(), own.add_eos()), (None, None));
}

/// Tests the keys of BERT's files, and their defaults.
#[test]
fn bert_texts_are_wrapped_in_special_tokens() {
    let mut tokens: Vec<String> = (0..110).map(|id| format!("▁{id}")).collect();
    for (id, name) in [(0, "[PAD]"), (100, "[UNK]"), (101, "[CLS]"), (102, "[SEP]")] {
        tokens[id] = name.to_owned();
    }
    let base = || {
        let writer = GgufWriter::new().key("tokenizer.ggml.model", "bert").key("tokenizer.ggml.pre", "jina-v2-en");
        writer.key("tokenizer.ggml.tokens", tokens.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let read = |writer: GgufWriter| {
        read_vocabulary(Gguf::from_bytes("m.gguf".as_ref(), writer.finish()).unwrap().metadata()).unwrap()
    };
    let ends = |spec: &TokenizerSpec| {
        let made = Tokenizer::new(spec).unwrap();
        (made.add_bos(), made.add_eos(), spec.special.unk, spec.lowercase, spec.strip_accents)
    };
    assert_eq!(ends(&read(base())), (Some(101), Some(102), Some(100), true, true));
    let stated = base()
        .key("tokenizer.ggml.cls_token_id", 7u32)
        .key("tokenizer.ggml.seperator_token_id", 8u32)
        .key("tokenizer.ggml.unknown_token_id", 9u32)
        .key("tokenizer.ggml.normalizer.lowercase", false);
    assert_eq!(ends(&read(stated)), (Some(7), Some(8), Some(9), false, false));
    let named = base().key("tokenizer.ggml.add_sep_token", false).key("tokenizer.ggml.add_eos_token", true);
    assert_eq!(ends(&read(named)), (Some(101), Some(102), Some(100), true, true));
    let bare = base().key("tokenizer.ggml.add_sep_token", false).key("tokenizer.ggml.add_bos_token", false);
    assert_eq!(
        ends(&read(bare.key("tokenizer.ggml.normalizer.strip_accents", false))),
        (None, None, Some(100), true, false)
    );
}

/// Returns a table of texts and their replacements in SentencePiece's format. Each prefix of a text
/// has a block of 256 units for the next byte.
fn charsmap(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut beginnings = vec![Vec::new()];
    for (text, _) in pairs {
        for end in 1..=text.len() {
            let beginning = text.as_bytes()[..end].to_vec();
            if !beginnings.contains(&beginning) {
                beginnings.push(beginning);
            }
        }
    }
    let block = |beginning: &[u8]| 256 * (1 + beginnings.iter().position(|known| known == beginning).unwrap() as u32);
    let mut units = vec![0u32; 256 * (1 + beginnings.len())];
    let mut texts = String::new();
    for beginning in &beginnings {
        let at = match beginning.split_last() {
            Some((byte, before)) => block(before) + u32::from(*byte),
            None => 0,
        };
        let whole = pairs.iter().find(|(text, _)| text.as_bytes() == &beginning[..]);
        let label = beginning.last().copied().unwrap_or_default();
        units[at as usize] = (at ^ block(beginning)) << 10 | u32::from(whole.is_some()) << 8 | u32::from(label);
        if let Some((_, replacement)) = whole {
            units[block(beginning) as usize] = 1 << 31 | texts.len() as u32;
            texts.push_str(replacement);
            texts.push('\0');
        }
    }
    let length = (4 * units.len() as u32).to_le_bytes();
    [&length[..], &units.iter().flat_map(|unit| unit.to_le_bytes()).collect::<Vec<u8>>(), texts.as_bytes()].concat()
}

#[test]
fn unigram_matches_hugging_face() {
    use tokenizers::models::unigram::Unigram;
    use tokenizers::normalizers::precompiled::Precompiled;
    use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
    use tokenizers::pre_tokenizers::sequence::Sequence;
    use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;

    #[rustfmt::skip] // As it is read.
    let pieces = [
        ("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.5), ("▁a", -3.0), ("a", -4.0), ("ab", -5.5), ("▁ab", -6.25), ("b", -3.5), ("c", -6.0f32), ("fi", -5.0), ("f", -4.5),
        ("i", -4.75), ("é", -7.0), ("A", -3.25), ("1", -5.25), ("日本", -8.0), ("日", -7.5), ("▁b", -3.75), ("bc", -9.5), ("abc", -9.75), ("▁日", -6.5), ("aa", -8.0), ("aaa", -12.0),
    ];
    #[rustfmt::skip] // As it is read.
    let map = charsmap(&[
        ("Ａ", "A"), ("\u{3000}", " "), ("\t", " "), ("\n", " "), ("ﬁ", "fi"), ("e\u{301}", "é"), ("\u{ad}", ""), ("①", "1"), ("①①", "c"), ("\u{a0}", " "), ("ab\u{301}", "b"),
    ]);
    let spec = TokenizerSpec {
        model: ModelKind::Sentence,
        tokens: pieces.iter().map(|(text, _)| (*text).to_owned()).collect(),
        scores: pieces.iter().map(|(_, score)| *score).collect(),
        types: (0..pieces.len())
            .map(|id| match id {
                3 => TokenType::Unknown,
                0..3 => TokenType::Control,
                _ => TokenType::Normal,
            })
            .collect(),
        special: SpecialIds { bos: Some(0), eos: Some(2), unk: Some(3), ..SpecialIds::default() },
        add_space_prefix: true,
        charsmap: map.clone(),
        squeezes_spaces: true,
        ..TokenizerSpec::default()
    };
    let own = Tokenizer::new(&spec).unwrap();
    let vocabulary = pieces.iter().map(|(text, score)| ((*text).to_owned(), f64::from(*score))).collect();
    let mut oracle = tokenizers::Tokenizer::new(Unigram::from(vocabulary, Some(3), false).unwrap());
    oracle.with_normalizer(Some(Precompiled::from(&map).unwrap())).unwrap();
    let words = [WhitespaceSplit.into(), Metaspace::new('▁', PrependScheme::Always, true).into()];
    oracle.with_pre_tokenizer(Some(Sequence::new(words.into())));
    #[rustfmt::skip] // As it is read.
    let parts = [
        "a", "ab", "b", "c", "bc", "abc", "fi", "ﬁ", "é", "e\u{301}", "é\u{301}", "Ａ", "①", "①①", "日", "日本", "本", "q", "🦀", "👩‍👩‍👧", " ", "  ", "\t", "\n", "\u{3000}", "\u{a0}", "\u{ad}", "z", "▁", "\u{301}",
        "aa", "\r\n",
    ];
    let mut state = 11u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize
    };
    for _ in 0..5000 {
        let text: String = (0..next() % 10).map(|_| parts[next() % parts.len()]).collect();
        // Texts with these characters are not compared. The table determines whether they count as
        // spaces.
        if text.contains('▁') || text.contains('\r') {
            continue;
        }
        let expected = oracle.encode(text.as_str(), false).unwrap();
        assert_eq!(own.encode(&text, false).unwrap(), expected.get_ids(), "{text:?}: {:?}", expected.get_tokens());
    }
    assert_eq!(own.decode(&own.encode("ab ﬁb", false).unwrap()).unwrap(), "ab fib");
    // The table is truncated here, or has invalid positions.
    for cut in [1, 3, 4, 1000] {
        let error = TokenizerSpec { charsmap: map[..cut].to_vec(), ..spec.clone() }.validate().unwrap_err().to_string();
        assert!(error.contains("precompiled_charsmap\" has") && error.contains("double array"), "{error}");
    }
    let mut seed = 3u32;
    for _ in 0..200 {
        let mut damaged = map.clone();
        for _ in 0..40 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let at = 4 + seed as usize % (map.len() - 40);
            damaged[at] = damaged[at].wrapping_add((seed >> 24) as u8);
        }
        if let Ok(made) = Tokenizer::new(&TokenizerSpec { charsmap: damaged, ..spec.clone() }) {
            made.encode("Ａ\u{3000}ﬁ ①①ab\u{301} e\u{301}", false).unwrap();
        }
    }
    // A replacement that is longer than any of SentencePiece's is ignored, because it could turn
    // megabytes of text into terabytes.
    let long = charsmap(&[("b", &"c".repeat(10_000))]);
    let of =
        |charsmap| Tokenizer::new(&TokenizerSpec { charsmap, ..spec.clone() }).unwrap().encode("ab bc", false).unwrap();
    assert_eq!(of(long), of(Vec::new()));
}

/// Tests the keys of files with SentencePiece's unigram tokenizer, and their defaults.
#[test]
fn unigram_texts_end_with_eos() {
    let base = |types: Vec<i32>| {
        GgufWriter::new()
            .key("tokenizer.ggml.model", "t5")
            .key("tokenizer.ggml.tokens", vec!["<s>", "<pad>", "</s>", "<unk>", "▁"])
            .key("tokenizer.ggml.scores", vec![0.0f32, 0.0, 0.0, 0.0, -1.0])
            .key("tokenizer.ggml.token_type", types)
    };
    let read = |writer: GgufWriter| {
        let file = Gguf::from_bytes("m.gguf".as_ref(), writer.finish()).unwrap();
        let spec = read_vocabulary(file.metadata()).unwrap();
        let made = Tokenizer::new(&spec).unwrap();
        (made.add_bos(), made.add_eos(), spec.special.unk, spec.add_space_prefix, spec.squeezes_spaces)
    };
    // The first file is like T5's, the second like XLM-R's.
    assert_eq!(read(base(vec![1; 5])), (None, Some(1), Some(2), true, true));
    let roberta = base(vec![3, 3, 3, 2, 1])
        .key("tokenizer.ggml.bos_token_id", 0u32)
        .key("tokenizer.ggml.eos_token_id", 2u32)
        .key("tokenizer.ggml.remove_extra_whitespaces", false);
    assert_eq!(read(roberta), (Some(0), Some(2), Some(3), true, false));
    let map = base(vec![1; 5]).key("tokenizer.ggml.precompiled_charsmap", 7u32);
    let file = Gguf::from_bytes("m.gguf".as_ref(), map.finish()).unwrap();
    let error = read_vocabulary(file.metadata()).unwrap_err().to_string();
    assert!(error.contains("precompiled_charsmap") && error.contains("array of u8"), "{error}");
}
