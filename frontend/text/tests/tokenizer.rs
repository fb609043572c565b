//! Tests of tokenizers, with golden ids, hostile vocabularies, arbitrary text, and the `tokenizers`
//! crate as a reference.

#[path = "tokenizer/encoders.rs"]
mod encoders;

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use ixc_failure::Class;
use ixc_model_files::gguf::write::GgufWriter;
use ixc_model_files::gguf::{Gguf, GgufError, VocabularyError, read_vocabulary};
use ixc_testing::shared_data::shared_path;
use ixc_text::template::{ChatTemplate, Conversation, Message};
use ixc_text::tokenizer::{
    DecodeOptions, ModelKind, SpecialIds, TokenType, Tokenizer, TokenizerError, TokenizerSpec, supported_pre_tokenizers,
};
use proptest::prelude::*;

/// Seed of random texts. It is fixed, so that a failure can be repeated.
const SEED: u64 = 7;

fn spec_of(path: &Path) -> Result<TokenizerSpec, VocabularyError> {
    read_vocabulary(Gguf::open(path)?.metadata())
}

fn tokenizer_of(path: &Path) -> Tokenizer {
    Tokenizer::new(&spec_of(path).unwrap()).unwrap()
}

/// Returns a BPE vocabulary in GPT-2's alphabet. It has all bytes, words with and without a space,
/// digits, and merges of these.
fn small_bpe(pre_tokenizer: &str) -> TokenizerSpec {
    let plain = (0u8..=255).filter(|b| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff));
    let letters = plain.map(char::from).chain((0x100..0x100 + 68).filter_map(char::from_u32));
    let mut tokens: Vec<String> = letters.map(String::from).collect();
    let merges = [
        "Ġ Ġ",
        "t h",
        "th e",
        "Ġ the",
        "a a",
        "aa aa",
        "Ã ©",
        "1 2",
        "Ċ Ċ",
        "ĠĠ ĠĠ",
        "i n",
        "in g",
        "Ġ ing",
        "e r",
        "! !",
        "a e",
        "h e",
    ];
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let types = tokens.iter().map(|_| TokenType::Normal).chain([TokenType::Control, TokenType::UserDefined]).collect();
    tokens.extend(["<|im_end|>".to_owned(), "<tool>".to_owned()]);
    TokenizerSpec {
        model: ModelKind::Bpe,
        pre_tokenizer: pre_tokenizer.to_owned(),
        tokens,
        types,
        merges: merges.map(String::from).into(),
        ..TokenizerSpec::default()
    }
}

/// Returns a BPE vocabulary of characters and bytes. Spaces are `▁`, and it has runs of line feeds,
/// which no merge of the file can make.
fn small_characters(pre_tokenizer: &str) -> TokenizerSpec {
    let mut tokens = ["<pad>", "<eos>", "<bos>", "<unk>"].map(String::from).to_vec();
    let mut types = vec![TokenType::Control; tokens.len()];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    types.resize(tokens.len(), TokenType::Byte);
    tokens.extend("▁abcdefghijklmnoprstuvwxyz'1é日".chars().map(String::from));
    tokens.extend((1..=6).map(|count| "\n".repeat(count)));
    let merges = ["▁ ▁", "t h", "th e", "▁ the", "a a", "aa aa", "▁▁ ▁▁", "i n", "in g", "1 1", "日 日"];
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    types.resize(tokens.len(), TokenType::Normal);
    tokens.push("<|im_end|>".to_owned());
    types.push(TokenType::Control);
    TokenizerSpec {
        model: ModelKind::Bpe,
        pre_tokenizer: pre_tokenizer.to_owned(),
        tokens,
        types,
        merges: merges.map(String::from).into(),
        special: SpecialIds { bos: Some(2), eos: Some(1), unk: Some(3), ..SpecialIds::default() },
        ..TokenizerSpec::default()
    }
}

/// Returns an SPM vocabulary that has tokens of all bytes.
fn small_spm() -> TokenizerSpec {
    let mut tokens = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    let mut types = vec![TokenType::Unknown, TokenType::Control, TokenType::Control];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    types.resize(tokens.len(), TokenType::Byte);
    let pieces = ["▁t", "he", "▁the", "▁▁", "▁▁▁▁", "aa", "aaaa", "in", "▁", "e", "t", "a", "h", "i", "n", "é"];
    tokens.extend(pieces.map(String::from));
    types.resize(tokens.len(), TokenType::Normal);
    let scores = (0..tokens.len()).map(|i| if i < 259 { 0.0 } else { 259.0 - i as f32 }).collect();
    TokenizerSpec {
        model: ModelKind::Spm,
        scores,
        types,
        special: SpecialIds { bos: Some(1), eos: Some(2), unk: Some(0), ..SpecialIds::default() },
        add_bos: true,
        add_space_prefix: true,
        tokens,
        ..TokenizerSpec::default()
    }
}

#[derive(serde::Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(serde::Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    ids_no_special: Vec<u32>,
}

#[test]
fn golden_texts_have_their_recorded_ids() {
    let Some(folder) = shared_path("golden/tokenizers") else { return };
    let names = [
        "gpt-2",
        "llama-bpe",
        "qwen2",
        "llama-spm",
        "smollm",
        "qwen35",
        "deepseek-v3",
        "glm4",
        "gpt-4o",
        "tekken",
        "kimi-k2",
    ];
    for name in names {
        let tokenizer = tokenizer_of(&folder.join(format!("{name}.gguf")));
        let golden: Golden =
            serde_json::from_str(&fs::read_to_string(folder.join(format!("{name}.json"))).unwrap()).unwrap();
        assert!(golden.cases.len() >= 20, "{name}");
        for Case { text, ids, ids_no_special } in golden.cases {
            assert_eq!(tokenizer.encode(&text, true).unwrap(), ids, "{name}: {text:?}");
            assert_eq!(tokenizer.encode(&text, false).unwrap(), ids_no_special, "{name}: {text:?} without special");
            assert_eq!(tokenizer.decode(&ids_no_special).unwrap(), text, "{name}");
        }
    }
}

/// Tests that Phi-3's special tokens absorb the line feed that its template writes after them. In
/// its `tokenizer.json`, all but three have `rstrip`.
#[test]
fn phi_3_special_tokens_absorb_following_space() {
    let mut spec = small_spm();
    let plain = Tokenizer::new(&spec).unwrap();
    let first = spec.tokens.len() as u32;
    for (text, ty) in [
        ("<|user|>", TokenType::Control),
        ("<|end|>", TokenType::Control),
        ("<|placeholder1|>", TokenType::Control),
        ("<|endoftext|>", TokenType::Control),
    ] {
        spec.tokens.push(text.into());
        spec.types.push(ty);
        spec.scores.push(0.0);
    }
    let tokenizer = Tokenizer::new(&spec).unwrap();
    let [text, spaced] = ["a b", " \na"].map(|text| plain.encode(text, false).unwrap());
    let expected = [&[first][..], &text, &[first + 1, first], &text, &[first + 3], &spaced].concat();
    let whole = "<|user|>\na b<|end|> \n<|user|>\u{a0}a b<|endoftext|> \na";
    assert_eq!(tokenizer.encode(whole, true).unwrap(), expected);
    let source = "{% for m in messages %}{{ '<|user|>\n' + m.content + '<|end|>\n' }}{% endfor %}";
    let mut values = tokenizer.values([source, " a b", "<|user|> a"]);
    let said = [" a b", "<|user|> a"].map(|text| values.protect(text));
    let prompt: String = said.iter().map(|said| format!("<|user|>\n{said}<|end|>\n")).collect();
    let literal = plain.encode("<|user|> a", false).unwrap();
    let expected = [&[first][..], &text, &[first + 1, first], &literal, &[first + 1]].concat();
    assert_eq!(tokenizer.encode_rendered(&prompt, &values).unwrap(), expected);
    // Special tokens of other vocabularies absorb no white space.
    spec.tokens[first as usize + 2] = "<|other|>".into();
    let other = Tokenizer::new(&spec).unwrap();
    assert_ne!(other.encode("<|user|>\na b", true).unwrap(), tokenizer.encode("<|user|>\na b", true).unwrap());
}

/// Tests tokenizers of external files, if an environment variable names a list: `[{"path":
/// FILE_OR_FOLDER, "bos": ID_OR_NULL, "eos": …, "ends": […], "cases": [{"text": …, "ids": …,
/// "ids_no_special": …}]}]`. `bos` and `eos` are the tokens that are added to a text.
#[test]
fn external_tokenizers_match_their_recorded_ids() {
    #[derive(serde::Deserialize)]
    struct Other {
        path: std::path::PathBuf,
        bos: Option<u32>,
        eos: Option<u32>,
        ends: Vec<u32>,
        cases: Vec<Case>,
    }
    let Some(file) = std::env::var_os("IXC_TOKENIZERS") else { return };
    let mut different = 0;
    for Other { path, bos, eos, ends, cases } in
        serde_json::from_str::<Vec<Other>>(&fs::read_to_string(file).unwrap()).unwrap()
    {
        let made = ixc_model_files::open(&path).map_err(|error| error.to_string()).and_then(|file| {
            let spec = read_vocabulary(file.metadata()).map_err(|error| error.to_string())?;
            Tokenizer::new(&spec).map_err(|error| error.to_string())
        });
        let tokenizer = match made {
            Ok(tokenizer) => tokenizer,
            Err(error) => {
                println!("{}: {error}", path.display());
                continue;
            }
        };
        let before = different;
        let expected = (bos, eos, ends);
        let found = (tokenizer.add_bos(), tokenizer.add_eos(), tokenizer.end_of_generation());
        if found != expected {
            different += 1;
            println!("{}: BOS, EOS and ends are {found:?}, expected {expected:?}", path.display());
        }
        for Case { text, ids, ids_no_special } in &cases {
            for (parse_special, expected) in [(true, ids), (false, ids_no_special)] {
                let found = tokenizer.encode(text, parse_special);
                if found.as_ref().ok() != Some(expected) {
                    different += 1;
                    println!(
                        "{} {parse_special} {text:?}:\n  expected {expected:?}\n  found    {found:?}",
                        path.display()
                    );
                }
            }
            let options = DecodeOptions { show_special: true, at_start: true };
            let decoded = tokenizer.decode_with(ids_no_special, options).unwrap();
            if decoded != *text {
                println!("{} decoded {text:?} as {decoded:?}", path.display());
            }
        }
        println!("{}: {} cases, {} different", path.display(), cases.len(), different - before);
    }
    assert_eq!(different, 0);
}

#[test]
fn demo_tokenizer_and_template_match_expected_text() {
    let Some(path) = shared_path("golden/demo/rustling-q4_k_m.gguf") else { return };
    let spec = spec_of(&path).unwrap();
    spec.check_embedding_rows(4096).unwrap();
    let tokenizer = Tokenizer::new(&spec).unwrap();
    assert_eq!(tokenizer.token_count(), 4096);
    assert_eq!((tokenizer.eos(), tokenizer.add_bos(), tokenizer.add_eos()), (Some(2), None, None));
    assert_eq!(tokenizer.end_of_generation(), [0, 2]);
    let template = ChatTemplate::from_source(spec.chat_template.as_deref().unwrap()).unwrap();
    let conversation = Conversation {
        messages: vec![Message::new("user", "What is a <|im_end|>?")],
        add_generation_prompt: true,
        ..Conversation::default()
    };
    let prompt = template.render(&conversation).unwrap();
    assert_eq!(prompt, "<|im_start|>user\nWhat is a <|im_end|>?<|im_end|>\n<|im_start|>assistant\n");
    let ids = tokenizer.encode(&prompt, true).unwrap();
    assert_eq!(ids.iter().filter(|&&id| id == 1).count(), 2);
    let shown = DecodeOptions { show_special: true, ..DecodeOptions::default() };
    assert_eq!(tokenizer.decode_with(&ids, shown).unwrap(), prompt);
    assert_eq!(tokenizer.decode(&ids).unwrap(), "user\nWhat is a ?\nassistant\n");
    let json = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<TokenizerSpec>(&json).unwrap(), spec);
}

#[test]
fn bad_vocabularies_and_templates_are_errors() {
    let Some(folder) = shared_path("bad-gguf") else { return };
    let manifest = fs::read_to_string(folder.join("manifest.tsv")).unwrap();
    let mut seen = 0;
    for line in manifest.lines() {
        let fields: Vec<_> = line.split('\t').collect();
        let [file, _, class @ ("vocab" | "template"), ..] = fields[..] else { continue };
        seen += 1;
        // The embedding matrix has eight rows, as in the files. The tokenizer and the template are
        // then used as in a chat.
        let used = spec_of(&folder.join(file)).and_then(|spec| {
            spec.check_embedding_rows(8)?;
            Tokenizer::new(&spec)?;
            Ok(spec)
        });
        if class == "vocab" {
            let error = used.expect_err(file);
            println!("{file}: {error}");
            if let VocabularyError::Metadata(error) = &error {
                assert_eq!(error.class(), Class::Data, "{file}");
            }
        } else {
            let template = ChatTemplate::from_source(&used.unwrap().chat_template.unwrap()).unwrap();
            let error = template.render(&Conversation::default()).expect_err(file);
            println!("{file}: {error}");
        }
    }
    assert!(seen >= 15, "{seen} cases");
}

#[test]
fn key_errors_name_key_found_and_expected_value() {
    let base = || {
        GgufWriter::new()
            .key("tokenizer.ggml.model", "llama")
            .key("tokenizer.ggml.tokens", vec!["<unk>", "<s>", "</s>", "a"])
            .key("tokenizer.ggml.scores", vec![0.0f32; 4])
            .key("tokenizer.ggml.token_type", vec![2i32, 3, 3, 1])
    };
    let read = |writer: GgufWriter| -> Result<TokenizerSpec, VocabularyError> {
        read_vocabulary(Gguf::from_bytes("m.gguf".as_ref(), writer.finish())?.metadata())
    };
    let message = |writer| read(writer).unwrap_err().to_string();
    let good = read(base()).unwrap();
    assert_eq!((good.special.bos, good.special.eos, good.special.unk), (Some(1), Some(2), Some(0)));
    assert!(good.add_bos && good.add_space_prefix && !good.add_eos);
    assert_eq!(
        message(base().key("tokenizer.ggml.mask_token_id", 4u32)),
        "key \"tokenizer.ggml.mask_token_id\" is 4; expected 0 to 3, the ids of tokenizer.ggml.tokens"
    );
    assert!(message(base().key("tokenizer.ggml.bos_token_id", -1i32)).contains("bos_token_id"));
    assert!(message(base().key("tokenizer.ggml.add_bos_token", 1u32)).contains("expected bool"));
    assert!(message(base().key("tokenizer.chat_template", 1u32)).contains("expected string"));
    let bpe = |pre: &str| {
        let writer = GgufWriter::new().key("tokenizer.ggml.model", "gpt2").key("tokenizer.ggml.pre", pre);
        writer.key("tokenizer.ggml.tokens", vec!["a", "b", "ab"])
    };
    assert!(message(bpe("qwen2")).contains("tokenizer.ggml.merges\" is missing"));
    assert!(
        message(bpe("evil").key("tokenizer.ggml.merges", vec!["a b"])).contains("supported values are default, gpt-2")
    );
    assert_eq!(
        message(bpe("qwen2").key("tokenizer.ggml.merges", vec!["a b", "ab"])),
        "key \"tokenizer.ggml.merges\" is \"ab\" at index 1; expected two texts with a space between them"
    );
    let none = read(GgufWriter::new().key("tokenizer.ggml.model", "no_vocab")).unwrap();
    assert!(matches!(Tokenizer::new(&none), Err(TokenizerError::NoVocabulary)));

    // A plan is untrusted, too, and its spec was not checked by the reader of model files.
    let mut specs = [small_spm(), small_spm(), small_spm(), small_spm(), small_bpe("qwen2"), small_bpe("qwen2")];
    specs[0].special.eom = Some(1 << 20);
    specs[1].scores[5] = f32::NAN;
    specs[2].types.pop();
    specs[3].tokens[10] = "<0x+1>".into();
    specs[4].merges.push("x".into());
    specs[5].special.fim_ends = vec![u32::MAX];
    for spec in specs {
        assert!(matches!(Tokenizer::new(&spec), Err(TokenizerError::Invalid { .. })));
    }
}

#[test]
fn special_tokens_match_only_where_allowed() {
    let tokenizer = Tokenizer::new(&small_bpe("qwen2")).unwrap();
    let (end, tool) = (273, 274);
    assert_eq!(tokenizer.encode("the<|im_end|><tool>the", true).unwrap(), [258, end, tool, 258]);
    let ids = tokenizer.encode("the<|im_end|><tool>the", false).unwrap();
    assert!(!ids.contains(&end) && ids.contains(&tool));
    assert!(tokenizer.is_end_of_generation(end) && !tokenizer.is_end_of_generation(tool));
    assert!(tokenizer.token_bytes(1 << 20).is_err() && tokenizer.decode(&[u32::MAX]).is_err());

    let tokenizer = Tokenizer::new(&small_spm()).unwrap();
    let space_the = 259 + 2;
    // A space is added at the start of a text and after each special token, but nowhere else.
    assert_eq!(tokenizer.encode("the", true).unwrap(), [space_the]);
    assert_eq!(tokenizer.encode("<s>the</s>the", true).unwrap(), [1, space_the, 2, space_the]);
    assert_eq!(tokenizer.add_bos(), Some(1));
    assert_eq!(tokenizer.decode(&[1, space_the, space_the]).unwrap(), "the the");
    let after = DecodeOptions { at_start: false, ..DecodeOptions::default() };
    assert_eq!(tokenizer.decode_with(&[space_the], after).unwrap(), " the");
    assert_eq!(tokenizer.decode(&tokenizer.encode("日 <s>\n", false).unwrap()).unwrap(), "日 <s>\n");
}

/// Tests that user text is always ordinary text, while the template's own text around it becomes
/// control tokens.
#[test]
fn control_tokens_in_user_values_are_text() {
    let tokenizer = Tokenizer::new(&small_bpe("qwen2")).unwrap();
    let (end, tool) = (273, 274);
    for said in [
        "<|im_end|>",
        "the <|im_end|><|im_end|> the",
        "<tool><|im_end|>",
        "a <|im_",
        "end|>",
        " im_end|>\n",
        "\u{f0000}<|im_end|>",
    ] {
        let mut values = tokenizer.values([said]);
        let rendered = format!("the<|im_end|><|im_{}|im_end|><|im_end|>", values.protect(said));
        let mut expected = tokenizer.encode("the", false).unwrap();
        expected.push(end);
        expected.extend(tokenizer.encode(&format!("<|im_{said}|im_end|>"), false).unwrap());
        expected.push(end);
        let ids = tokenizer.encode_rendered(&rendered, &values).unwrap();
        assert_eq!(ids, expected, "{said:?}");
        // Names of user-defined tokens are recognised in every text.
        assert_eq!(ids.contains(&tool), said.contains("<tool>"));
    }
    // A prompt without values is encoded as without protection.
    let (text, values) = ("<|im_end|>the <tool>\n<|im_end|>", tokenizer.values([]));
    assert_eq!(tokenizer.encode_rendered(text, &values).unwrap(), tokenizer.encode(text, true).unwrap());
    // SPM adds a space after control tokens, but not after their names in user text.
    let tokenizer = Tokenizer::new(&small_spm()).unwrap();
    let mut values = tokenizer.values([]);
    let rendered = format!("<s>the{}the</s>the", values.protect("</s>"));
    let expected =
        [vec![1], tokenizer.encode("the</s>the", false).unwrap(), vec![2], tokenizer.encode("the", false).unwrap()];
    assert_eq!(tokenizer.encode_rendered(&rendered, &values).unwrap(), expected.concat());
}

/// Tests that stand-ins do not change the result of templates that examine messages.
#[test]
fn templates_see_original_values() {
    let tokenizer = Tokenizer::new(&small_bpe("qwen2")).unwrap();
    let source = "{% for m in messages %}{% if '</think>' in m.content %}{{ m.content.split('</think>')[-1] | trim }}\
                  {% else %}{{ m.content | trim }}{{ m.content | length }}{% endif %}<|im_end|>{% endfor %}";
    let said = ["<think>no <|im_end|></think> yes<|im_end|> ", "<|im_end|>é"];
    let mut values = tokenizer.values(said.into_iter().chain([source]));
    let messages = said.map(|said| Message::new("user", values.protect(said))).into();
    let conversation = Conversation { messages, ..Conversation::default() };
    let rendered = ChatTemplate::from_source(source).unwrap().render(&conversation).unwrap();
    let ids = tokenizer.encode_rendered(&rendered, &values).unwrap();
    assert_eq!(ids.iter().filter(|id| **id == 273).count(), 2);
    let shown = DecodeOptions { show_special: true, ..DecodeOptions::default() };
    assert_eq!(tokenizer.decode_with(&ids, shown).unwrap(), "yes<|im_end|><|im_end|><|im_end|>é11<|im_end|>");
}

/// Tests the limits on the number and length of tokens. They bound the time and memory of
/// tokenization.
#[test]
fn vocabularies_have_limits() {
    let refused = |change: &dyn Fn(&mut TokenizerSpec)| {
        let mut spec = small_bpe("qwen2");
        change(&mut spec);
        Tokenizer::new(&spec).map(drop).unwrap_err().to_string()
    };
    let text = refused(&|spec| spec.tokens[273] = "<".repeat(257));
    assert!(text.contains("has a text of 257 bytes at index 273; expected at most 256"), "{text}");
    let text = refused(&|spec| spec.tokens[3] = "a".repeat(1025));
    assert!(text.contains("has a text of 1025 bytes at index 3; expected at most 1024"), "{text}");
    let text = refused(&|spec| spec.merges = vec!["a b".into(); (1 << 20) + 1]);
    assert!(text.contains("has 1048577 elements; expected at most 1048576"), "{text}");
    let text = refused(&|spec| {
        spec.tokens.resize((1 << 19) + 1, String::new());
        spec.types.resize((1 << 19) + 1, TokenType::Normal);
    });
    assert!(text.contains("has 524289 elements; expected 1 to 524288"), "{text}");
    let text = refused(&|spec| {
        // These texts have different beginnings: 1200 texts of 240 bytes each.
        spec.tokens.extend((0..1200).map(|i| format!("{i:0240}").chars().rev().collect::<String>()));
        spec.types.resize(spec.tokens.len(), TokenType::Control);
    });
    assert!(text.contains("different beginnings, above the limit; expected at most 262144"), "{text}");
}

#[test]
fn text_without_tokens_is_an_error() {
    let spec = TokenizerSpec { tokens: vec!["a".into()], model: ModelKind::Bpe, ..TokenizerSpec::default() };
    let tokenizer = Tokenizer::new(&spec).unwrap();
    assert_eq!(tokenizer.encode("aa", true).unwrap(), [0, 0]);
    assert!(matches!(tokenizer.encode("ab", true), Err(TokenizerError::NoTokenForByte { byte: b'b' })));
}

#[test]
fn merge_into_missing_token_falls_back_to_bytes() {
    let mut spec = small_bpe("gpt-2");
    spec.merges.insert(0, "x y".into());
    let tokenizer = Tokenizer::new(&spec).unwrap();
    let text = "xyz the";
    assert_eq!(tokenizer.decode(&tokenizer.encode(text, true).unwrap()).unwrap(), text);
}

/// Tests that long runs of one character take nearly linear time. Quadratic loops would take
/// minutes here.
#[test]
fn long_runs_take_near_linear_time() {
    let units = ["a", " ", "\n", "the", "é", "1", "!", "日", "a ", "\0", "<", "<|im_end|", "<tool>"];
    let names = ["gpt-2", "llama-bpe", "default", "deepseek-llm", "exaone-moe", "superbpe", "afmoe"];
    for spec in names.map(small_bpe).into_iter().chain([small_characters("gemma4"), small_spm()]) {
        let tokenizer = Tokenizer::new(&spec).unwrap();
        for unit in units {
            let text = unit.repeat(200_000 / unit.len());
            let ids = tokenizer.encode(&text, true).unwrap();
            assert_eq!(tokenizer.decode(&ids).unwrap(), text, "{unit:?}");
        }
    }
}

/// Returns a tokenizer of the `tokenizers` crate with the same vocabulary.
fn oracle(spec: &TokenizerSpec) -> tokenizers::Tokenizer {
    use tokenizers::models::bpe::{BPE, Vocab};
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::pre_tokenizers::sequence::Sequence;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    let vocab = (0..).zip(&spec.tokens).map(|(id, text)| (text.clone(), id)).collect::<Vocab>();
    let merges = spec.merges.iter().filter_map(|merge| merge.split_once(' '));
    let merges = merges.map(|(left, right)| (left.to_owned(), right.to_owned())).collect();
    let bpe = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(spec.pre_tokenizer == "llama-bpe");
    let mut tokenizer = tokenizers::Tokenizer::new(bpe.build().unwrap());
    let tail = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let pattern = match spec.pre_tokenizer.as_str() {
        "qwen2" => format!("(?i:'s|'t|'re|'ve|'m|'ll|'d)|{}", tail.replace("DIGITS", "")),
        "llama-bpe" => format!("(?i:'s|'t|'re|'ve|'m|'ll|'d)|{}", tail.replace("DIGITS", "{1,3}")),
        "gpt-2" => r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+".to_owned(),
        other => panic!("no oracle for {other}"),
    };
    let behaviour = tokenizers::SplitDelimiterBehavior::Isolated;
    let split = Split::new(SplitPattern::Regex(pattern), behaviour, false).unwrap();
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![split.into(), ByteLevel::new(false, true, false).into()])));
    tokenizer
}

struct Both {
    ours: Tokenizer,
    oracle: tokenizers::Tokenizer,
}

fn both() -> &'static [(String, Both)] {
    static BOTH: OnceLock<Vec<(String, Both)>> = OnceLock::new();
    BOTH.get_or_init(|| {
        let mut specs: Vec<TokenizerSpec> = ["gpt-2", "qwen2", "llama-bpe"].map(small_bpe).into();
        if let Some(folder) = shared_path("golden/tokenizers") {
            specs.extend(["gpt-2", "qwen2", "llama-bpe"].map(|n| spec_of(&folder.join(format!("{n}.gguf"))).unwrap()));
        }
        let both = |spec: TokenizerSpec| {
            let name = format!("{} with {} tokens", spec.pre_tokenizer, spec.tokens.len());
            (name, Both { ours: Tokenizer::new(&spec).unwrap(), oracle: oracle(&spec) })
        };
        specs.into_iter().map(both).collect()
    })
}

/// Returns random text with difficult parts: runs of spaces and newlines, contractions, digits,
/// combining marks, emoji, arbitrary characters.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        3 => "[a-z]{1,6}",
        2 => "[ ]{1,5}|[\\r\\n]{1,3}|\\t|\u{a0}|\u{3000}",
        1 => "'(s|S|ll|LL|re|x)|[0-9]{1,5}|[!?.,<|>]{1,4}",
        1 => Just("<|im_end|>".to_owned()),
        1 => "\\PC{1,4}",
        1 => any::<String>(),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

fn runner() -> proptest::test_runner::TestRunner {
    println!("seed {SEED}");
    let config = ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() };
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&SEED.to_le_bytes());
    let rng = proptest::test_runner::TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &seed);
    proptest::test_runner::TestRunner::new_with_rng(config, rng)
}

#[test]
fn byte_level_bpe_round_trips_and_matches_hugging_face() {
    let run = runner().run(&text(), |text| {
        for (name, Both { ours, oracle }) in both() {
            let ids = ours.encode(&text, false).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(ours.decode_bytes(&ids, DecodeOptions::default()).unwrap(), text.as_bytes(), "{}", name);
            let expected = oracle.encode(text.as_str(), false).unwrap();
            prop_assert_eq!(&ids[..], expected.get_ids(), "{}", name);
            let shown = DecodeOptions { show_special: true, at_start: true };
            let ids = ours.encode(&text, true).unwrap();
            prop_assert_eq!(ours.decode_with(&ids, shown).unwrap(), &text[..], "{}", name);
        }
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

/// Tests each row of the table of pre-tokenizers, with a vocabulary in the row's spelling of text.
#[test]
fn every_pre_tokenizer_round_trips_any_text() {
    let tokenizers = supported_pre_tokenizers().into_iter().map(|name| {
        let spells_characters = ["gemma4", "sarvam-moe"].contains(&name);
        let spec = if spells_characters { small_characters(name) } else { small_bpe(name) };
        (name, Tokenizer::new(&spec).unwrap())
    });
    let tokenizers: Vec<_> = tokenizers.collect();
    let run = runner().run(&text(), |text| {
        prop_assume!(!text.contains('▁'));
        for (name, tokenizer) in &tokenizers {
            let ids = tokenizer.encode(&text, false).unwrap();
            prop_assert_eq!(
                tokenizer.decode_bytes(&ids, DecodeOptions::default()).unwrap(),
                text.as_bytes(),
                "{}",
                name
            );
        }
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

/// Tests BPE of characters against Hugging Face's BPE, which merges over the whole text and has
/// bytes for text without tokens. There, line feeds have merges, which GGUF cannot have.
#[test]
fn character_bpe_matches_hugging_face() {
    use tokenizers::models::bpe::{BPE, Vocab};
    use tokenizers::normalizers::replace::Replace;
    let spec = small_characters("gemma4");
    let ours = Tokenizer::new(&spec).unwrap();
    let vocab = (0..).zip(&spec.tokens).map(|(id, text)| (text.clone(), id)).collect::<Vocab>();
    let feeds = [(1, 1), (2, 2), (4, 2), (4, 1), (2, 1)].map(|(left, right)| ("\n".repeat(left), "\n".repeat(right)));
    let merges = spec.merges.iter().filter_map(|merge| merge.split_once(' '));
    let merges = merges.map(|(left, right)| (left.to_owned(), right.to_owned())).chain(feeds).collect();
    let bpe = BPE::builder().vocab_and_merges(vocab, merges).byte_fallback(true).build().unwrap();
    let mut oracle = tokenizers::Tokenizer::new(bpe);
    oracle.with_normalizer(Some(Replace::new(" ", "▁").unwrap())).unwrap();
    let run = runner().run(&text(), |text| {
        prop_assume!(!text.contains("\n\n\n\n\n\n\n"));
        let expected = oracle.encode(text.as_str(), false).unwrap();
        prop_assert_eq!(&ours.encode(&text, false).unwrap()[..], expected.get_ids());
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

/// Tests the tokenizer `plamo2`, which selects the highest sum of scores. Spaces are unchanged,
/// special tokens have their usual ids, and BOS is added if the file states this.
#[test]
fn plamo_tokens_have_the_highest_sum_of_scores() {
    let tokens =
        ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>", "<|plamo:op|>"].map(str::to_owned);
    let tokens: Vec<String> = tokens
        .into_iter()
        .chain((0..=255).map(|byte| format!("<0x{byte:02X}>")))
        .chain([" a", "b", " ab", "▁"].map(str::to_owned))
        .collect();
    let types: Vec<i32> = [2, 3, 3, 3, 3].into_iter().chain([6; 256]).chain([1; 4]).collect();
    let scores: Vec<f32> = [0.0; 261].into_iter().chain([-1.0, -1.0, -1.5, -1.0]).collect();
    let writer = || {
        GgufWriter::new()
            .key("tokenizer.ggml.model", "plamo2")
            .key("tokenizer.ggml.tokens", tokens.iter().map(String::as_str).collect::<Vec<_>>())
            .key("tokenizer.ggml.token_type", types.clone())
            .key("tokenizer.ggml.scores", scores.clone())
    };
    let spec = |writer: GgufWriter| {
        let gguf = Gguf::from_bytes("m.gguf".as_ref(), writer.finish()).unwrap();
        read_vocabulary(gguf.metadata()).unwrap()
    };
    let plain = spec(writer());
    let SpecialIds { bos, eos, unk, pad, .. } = plain.special;
    assert_eq!([bos, eos, unk, pad], [1, 2, 0, 3].map(Some));
    let tokenizer = Tokenizer::new(&plain).unwrap();
    assert_eq!(tokenizer.add_bos(), None);
    let ids = tokenizer.encode(" ab a▁é<|plamo:op|>", true).unwrap();
    assert_eq!(ids, [263, 261, 264, 5 + 0xc3, 5 + 0xa9, 4]);
    assert_eq!(tokenizer.decode(&ids).unwrap(), " ab a▁é");
    // User text never becomes a token that ends a turn, even if that token has the best score.
    let ids = tokenizer.encode("b<|plamo:op|><|plamo:eos|>", false).unwrap();
    assert!(ids.len() > 20 && ids.iter().all(|id| *id > 4), "{ids:?}");
    assert_eq!(Tokenizer::new(&spec(writer().key("tokenizer.ggml.add_bos_token", true))).unwrap().add_bos(), Some(1));
}

/// Tests the tokenizer `rwkv`, which takes the longest token at each position. Tokens are bytes in
/// Python's notation, and control tokens are recognised only on request.
#[test]
fn rwkv_takes_the_longest_token() {
    let (mut tokens, mut types) = (vec!["<s>".to_owned()], vec![3i32]);
    tokens.extend((0..=255u8).map(|byte| match byte {
        b'\t' => "\\t".to_owned(),
        b'\n' => "\\n".to_owned(),
        b'\r' => "\\r".to_owned(),
        b'\\' => "\\\\".to_owned(),
        b' '..=b'~' => char::from(byte).to_string(),
        byte => format!("\\x{byte:02x}"),
    }));
    // These are escapes in Python's notation, half of a character, a token whose beginning is not a
    // token, and padding of the vocabulary.
    let words = ["\\n\\n", "ab", "abcd", "it\\'s", "\\xc3\\xa9", "\\xa9x", "\\\\n", "[PAD264]"];
    tokens.extend(words.map(str::to_owned));
    types.extend([1; 256].into_iter().chain([1; 7]).chain([5]));
    let read = |tokens: &[String]| {
        let writer = GgufWriter::new()
            .key("tokenizer.ggml.model", "rwkv")
            .key("tokenizer.ggml.tokens", tokens.iter().map(String::as_str).collect::<Vec<_>>())
            .key("tokenizer.ggml.token_type", types.clone())
            .key("tokenizer.ggml.bos_token_id", 0u32)
            .key("tokenizer.ggml.eos_token_id", 0u32)
            .key("tokenizer.ggml.eot_token_id", 257u32);
        let gguf = Gguf::from_bytes("m.gguf".as_ref(), writer.finish()).unwrap();
        read_vocabulary(gguf.metadata())
    };
    let tokenizer = Tokenizer::new(&read(&tokens).unwrap()).unwrap();
    assert_eq!((tokenizer.add_bos(), tokenizer.end_of_generation()), (None, vec![0, 257]));
    let byte = |byte: u8| u32::from(byte) + 1;
    for (text, expected) in [
        ("abcd", vec![259]),
        ("abcx", vec![258, byte(b'c'), byte(b'x')]),
        ("\n\n\n", vec![257, byte(b'\n')]),
        ("it's é", vec![260, byte(b' '), 261]),
        ("\u{e4a9}x", vec![byte(0xee), byte(0x92), 262]),
        ("\\n\t", vec![263, byte(b'\t')]),
        ("[PAD264]", b"[PAD264]".map(byte).to_vec()),
        ("<s>", b"<s>".map(byte).to_vec()),
        ("", vec![]),
    ] {
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(ids, expected, "{text:?}");
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    }
    assert_eq!(tokenizer.encode("a<s>", true).unwrap(), [byte(b'a'), 0]);
    for unreadable in ["\\", "\\x4", "\\xg0"] {
        let tokens: Vec<String> =
            tokens.iter().map(|token| if token == "ab" { unreadable } else { token }.to_owned()).collect();
        let error = read(&tokens).unwrap_err().to_string();
        assert!(error.contains("at index 258") && error.contains("as Python writes them"), "{error}");
    }
    // The vocabulary has no token for this byte.
    let spec = TokenizerSpec { tokens: vec!["a".into()], model: ModelKind::Longest, ..TokenizerSpec::default() };
    assert!(matches!(
        Tokenizer::new(&spec).unwrap().encode("ab", false),
        Err(TokenizerError::NoTokenForByte { byte: b'b' })
    ));
}

/// Tests that the tokenizer `gemma4` implies its pre-tokenizer and BOS, whatever the file states.
#[test]
fn gemma_4_implies_its_pre_tokenizer_and_bos() {
    let writer = GgufWriter::new()
        .key("tokenizer.ggml.model", "gemma4")
        .key("tokenizer.ggml.pre", "something")
        .key(
            "tokenizer.ggml.tokens",
            vec!["<bos>", "▁", "a", "▁a", "\n\n", "<0x0A>", "<turn|>", "</s>", "<|tool_response>"],
        )
        .key("tokenizer.ggml.token_type", vec![3i32, 1, 1, 1, 1, 6, 3, 1, 3])
        .key("tokenizer.ggml.merges", vec!["▁ a"])
        .key("tokenizer.ggml.bos_token_id", 0u32)
        .key("tokenizer.ggml.add_bos_token", false);
    let gguf = Gguf::from_bytes("m.gguf".as_ref(), writer.finish()).unwrap();
    let tokenizer = Tokenizer::new(&read_vocabulary(gguf.metadata()).unwrap()).unwrap();
    assert_eq!(tokenizer.add_bos(), Some(0));
    // No space is put before the text. Two line feeds are one token, although no merge makes it.
    assert_eq!(tokenizer.encode("a a\n\na\n", true).unwrap(), [2, 3, 4, 2, 5]);
    assert_eq!(tokenizer.decode(&[3, 4, 5]).unwrap(), " a\n\n\n");
    assert_eq!(tokenizer.end_of_generation(), [6, 8]);
}

/// Tests that `<|end|>` ends a message in harmony, but the answer in other formats.
#[test]
fn ends_depend_on_the_format() {
    let ends = |special: &[&str]| {
        let mut spec = small_bpe("gpt-4o");
        let first = spec.tokens.len();
        spec.tokens.extend(special.iter().map(|text| (*text).to_owned()));
        spec.types.resize(spec.tokens.len(), TokenType::Control);
        let tokenizer = Tokenizer::new(&spec).unwrap();
        let ends = tokenizer.end_of_generation().into_iter().filter_map(|id| (id as usize).checked_sub(first));
        (ends.collect::<Vec<_>>(), tokenizer.is_text(first as u32))
    };
    assert_eq!(ends(&["<|end|>", "<|return|>", "<|call|>", "<|channel|>"]), (vec![1, 2], true));
    assert_eq!(ends(&["<|end|>", "<|flush|>", "<|calls|>"]), (vec![1, 2], true));
    assert_eq!(ends(&["<|end|>", "<|return|>"]), (vec![0, 1], false));
    assert_eq!(ends(&["[PAD]", "[EOT]", "<|fim_repo|>", "[e~[", "x"]), (vec![0, 1, 2, 3], false));
}

/// Tests the tokens around code to fill in, which are always recognised by files of DeepSeek Coder.
/// User text must not contain them.
#[test]
fn fill_in_tokens_match_only_on_request() {
    let mut spec = small_bpe("gpt-2");
    let first = spec.tokens.len() as u32;
    spec.tokens.extend(["<｜fim▁hole｜>", "<|mine|>"].map(String::from));
    spec.types.resize(spec.tokens.len(), TokenType::UserDefined);
    let tokenizer = Tokenizer::new(&spec).unwrap();
    let holds = |text: &str, on_request, id| tokenizer.encode(text, on_request).unwrap().contains(&id);
    assert_eq!([true, false].map(|on_request| holds("a<｜fim▁hole｜>", on_request, first)), [true, false]);
    assert_eq!([true, false].map(|on_request| holds("a<|mine|>", on_request, first + 1)), [true, true]);
}

#[test]
fn spm_round_trips_any_text() {
    let tokenizer = Tokenizer::new(&small_spm()).unwrap();
    let run = runner().run(&text(), |text| {
        prop_assume!(!text.contains('▁'));
        let ids = tokenizer.encode(&text, false).unwrap();
        prop_assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn streamed_decoding_matches_decoding_at_once() {
    let tokenizers = [small_bpe("qwen2"), small_spm()].map(|spec| Tokenizer::new(&spec).unwrap());
    // Most of these random ids are tokens of bytes that form no complete character.
    let ids = prop::collection::vec(any::<prop::sample::Index>(), 0..40);
    let run = runner().run(&(ids, any::<bool>(), any::<bool>(), text()), |(ids, show_special, at_start, text)| {
        let options = DecodeOptions { show_special, at_start };
        for tokenizer in &tokenizers {
            let random: Vec<u32> = ids.iter().map(|id| id.index(tokenizer.token_count()) as u32).collect();
            for ids in [random, tokenizer.encode(&text, true).unwrap()] {
                let mut stream = tokenizer.stream(options);
                let mut streamed = String::new();
                for &id in &ids {
                    streamed += &stream.push(id).unwrap();
                }
                streamed += &stream.finish();
                prop_assert_eq!(streamed, tokenizer.decode_with(&ids, options).unwrap());
            }
        }
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_stream_waits_for_whole_characters() {
    let tokenizer = Tokenizer::new(&small_bpe("qwen2")).unwrap();
    let ids = tokenizer.encode("日!", false).unwrap();
    let mut stream = tokenizer.stream(DecodeOptions::default());
    let pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    assert_eq!(pieces, ["", "", "日", "!"]);
    let mut stream = tokenizer.stream(DecodeOptions::default());
    assert_eq!(stream.push(ids[0]).unwrap(), "");
    assert_eq!(stream.push(ids[3]).unwrap(), "\u{fffd}!");
    assert_eq!(stream.push(ids[0]).unwrap(), "");
    assert_eq!(stream.finish(), "\u{fffd}");
}

#[test]
fn missing_key_is_reported_as_metadata_error() {
    let gguf = Gguf::from_bytes("m.gguf".as_ref(), GgufWriter::new().key("tokenizer.ggml.model", "llama").finish());
    let error = read_vocabulary(gguf.unwrap().metadata()).unwrap_err();
    assert!(matches!(error, VocabularyError::Metadata(GgufError::KeyMissing { .. })), "{error}");
}
