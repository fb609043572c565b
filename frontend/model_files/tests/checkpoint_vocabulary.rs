//! Tests of vocabularies from a folder's tokenizer files. Each test changes one file.

use std::fs;
use std::path::{Path, PathBuf};

use ixc_model_files::gguf::{Gguf, StringArray, read_vocabulary};
use ixc_text::tokenizer::{Tokenizer, TokenizerSpec};
use serde_json::{Value as Json, json};

/// Copy of a test checkpoint that a test may change.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str, of: &str) -> Folder {
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("checkpoint_vocabulary").join(test);
        let _ = fs::remove_dir_all(&to);
        fs::create_dir_all(&to).unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/checkpoints").join(of);
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
        Folder(to)
    }

    fn edit(self, file: &str, change: impl FnOnce(&mut Json)) -> Folder {
        let path = self.0.join(file);
        let mut json: Json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut json);
        fs::write(path, serde_json::to_vec(&json).unwrap()).unwrap();
        self
    }

    fn write(self, file: &str, text: &str) -> Folder {
        let path = self.0.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn open(&self) -> Gguf {
        ixc_model_files::open(&self.0).unwrap_or_else(|error| panic!("{error}"))
    }

    fn spec(&self) -> TokenizerSpec {
        read_vocabulary(self.open().metadata()).unwrap()
    }

    fn refused(&self) -> String {
        ixc_model_files::open(&self.0).unwrap_err().to_string()
    }
}

const ROWS: usize = 320;

#[test]
fn token_count_is_padded_to_embedding_rows() {
    // Rows without a token get the name `[PAD…]`. The tokenizer of this checkpoint has 304 tokens.
    let folder = Folder::new("padded", "qwen3moe");
    let model = folder.open();
    let tokens = model.metadata().read::<&StringArray>("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.len(), ROWS);
    assert_eq!(tokens.iter().last(), Some("[PAD319]"));
    // An added token without a row, such as image tokens in Gemma 3, is dropped. Its text is then
    // ordinary text.
    let added = |id: usize| json!({"id": id, "content": "<image_soft_token>", "special": true, "normalized": false});
    let with = |name: &str, id: usize| {
        Folder::new(name, "qwen3moe")
            .edit("tokenizer.json", |json| json["added_tokens"].as_array_mut().unwrap().push(added(id)))
    };
    let (inside, beyond) = (with("inside", ROWS - 1).spec(), with("beyond", ROWS).spec());
    assert_eq!((inside.tokens.len(), inside.tokens[ROWS - 1].as_str()), (ROWS, "<image_soft_token>"));
    assert_eq!((beyond.tokens.len(), beyond.tokens[ROWS - 1].as_str()), (ROWS, "[PAD319]"));
    let ids = Tokenizer::new(&beyond).unwrap().encode("a<image_soft_token>", true).unwrap();
    assert!(ids.len() > 2 && ids.iter().all(|id| (*id as usize) < ROWS), "{ids:?}");
    // The added token may be in the vocabulary, too.
    let both =
        with("both", ROWS).edit("tokenizer.json", |json| json["model"]["vocab"]["<image_soft_token>"] = ROWS.into());
    assert_eq!(both.spec().tokens.len(), ROWS);
    // A padding token without a row is not used as the padding token.
    let pad = with("pad", ROWS).edit("tokenizer_config.json", |json| json["pad_token"] = "<image_soft_token>".into());
    let pad = pad.edit("generation_config.json", |json| json["pad_token_id"] = ROWS.into());
    let pad = pad.edit("config.json", |json| json["pad_token_id"] = ROWS.into());
    assert_eq!(pad.spec().special.pad, None);
    // A token of ordinary text must have a row, because a text could become this token.
    let word =
        Folder::new("word", "qwen3moe").edit("tokenizer.json", |json| json["model"]["vocab"]["zz"] = (ROWS + 3).into());
    let said = word.refused();
    assert!(
        said.contains(
            "key \"model.vocab\" is a vocabulary with token \"zz\" of id 323; expected ids below 320, the number of rows"
        ),
        "{said}"
    );
}

/// Tests PLaMo's tokenizer file, which has a line for each token. Rows without a token are padding.
#[test]
fn plamo_tokenizer_reads_one_token_per_line() {
    let names = [
        ("<|plamo:unk|>", "UNKNOWN"),
        ("<|plamo:bos|>", "CONTROL"),
        ("<|plamo:eos|>", "CONTROL"),
        ("<|plamo:pad|>", "NORMAL"),
    ];
    let names = names.into_iter().chain([("<|plamo:op|>", "NORMAL"), ("ab", "NORMAL"), ("c", "NORMAL")]);
    let named = names.map(|(token, kind)| json!([token, -2.0, kind, 0, 1, 2, 3]).to_string());
    let lines: Vec<String> =
        named.chain((0..=255).map(|byte| json!([format!("<0x{byte:02X}>"), 0.0, "BYTE"]).to_string())).collect();
    let config = r#"{"bos_token": "<|plamo:bos|>", "eos_token": "<|plamo:eos|>", "pad_token": "<|plamo:pad|>", "add_bos_token": true}"#;
    let folder = |test: &str, lines: &str| {
        let folder =
            Folder::new(test, "qwen3moe").write("tokenizer.jsonl", lines).write("tokenizer_config.json", config);
        fs::remove_file(folder.0.join("tokenizer.json")).unwrap();
        folder
    };
    let spec = folder("lines", &(lines.join("\n") + "\n")).spec();
    assert_eq!((spec.tokens.len(), spec.tokens[263].as_str(), spec.scores[263]), (ROWS, "[PAD1]", -1000.0));
    let special = &spec.special;
    assert_eq!([special.bos, special.eos, special.pad, special.eot], [1, 2, 3, 4].map(Some));
    let tokenizer = Tokenizer::new(&spec).unwrap();
    assert_eq!(tokenizer.add_bos(), Some(1));
    assert_eq!(tokenizer.encode("abc<|plamo:op|>d", true).unwrap(), [5, 6, 4, 7 + u32::from(b'd')]);
    let said = folder("no-token", &(lines.join("\n") + "\n[1, 2]\n")).refused();
    assert!(
        said.contains("key \"line 264\" is [1, 2]; expected an array of a token's text, its score and its type"),
        "{said}"
    );
    let said = folder("too-many", &vec![lines.join("\n"); 2].join("\n")).refused();
    assert!(said.contains("expected at most 320 tokens, the rows of the embedding table"), "{said}");
}

#[test]
fn bos_and_eos_come_from_processor_then_flags() {
    let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let template = |single: Vec<Json>| json!({"type": "TemplateProcessing", "single": single, "pair": []});
    let cases = [
        // SentencePiece tokenizers add BOS by default.
        (json!(null), json!({}), (true, false, Some(2), None)),
        (json!(null), json!({"add_bos_token": false, "add_eos_token": true}), (false, true, Some(2), None)),
        // `ByteLevel` adds no tokens, whatever the flags state.
        (json!({"type": "ByteLevel"}), json!({"add_bos_token": true}), (false, false, Some(2), None)),
        // The flags apply to the start or end of a text if no template determines it.
        (
            template(vec![special("<s>"), text.clone()]),
            json!({"add_bos_token": false, "add_eos_token": true}),
            (true, true, Some(2), None),
        ),
        // The token at the end of a template becomes EOS. The former EOS becomes the token that
        // ends a turn.
        (template(vec![text.clone(), special("<unk>")]), json!({}), (true, true, Some(0), Some(2))),
    ];
    for (number, (processor, flags, expected)) in cases.into_iter().enumerate() {
        let folder = Folder::new(&format!("ends-{number}"), "deepseek-fp8")
            .write("generation_config.json", "{}")
            .edit("tokenizer.json", |json| json["post_processor"] = processor)
            .edit("tokenizer_config.json", |json| {
                json.as_object_mut().unwrap().extend(flags.as_object().unwrap().clone());
            });
        let spec = folder.spec();
        let found = (spec.add_bos, spec.add_eos, spec.special.eos, spec.special.eot);
        assert_eq!(found, expected, "case {number}");
    }
}

/// Tests that all listed tokens that end an answer are used if `generation_config.json` is missing.
#[test]
fn all_listed_end_tokens_are_used() {
    let ends = |name: &str, generation: &str| {
        let folder = Folder::new(name, "deepseek-fp8")
            .write("generation_config.json", generation)
            .edit("config.json", |json| json["eos_token_id"] = json!([2, 0, 7]));
        let special = folder.spec().special;
        (special.eos, special.eot, special.eom)
    };
    assert_eq!(ends("ends-of-config", "{}"), (Some(2), Some(0), Some(7)));
    assert_eq!(ends("ends-null", r#"{"eos_token_id": null}"#), (Some(2), Some(0), Some(7)));
    assert_eq!(ends("ends-of-generation", r#"{"eos_token_id": [5, 2]}"#), (Some(2), Some(5), None));
    assert_eq!(ends("ends-one", r#"{"eos_token_id": 2}"#), (Some(2), None, None));
}

#[test]
fn chat_templates_are_found_in_every_location() {
    let without = |name: &str| {
        Folder::new(&format!("template-{name}"), "qwen3moe").edit("tokenizer_config.json", |json| {
            json.as_object_mut().unwrap().remove("chat_template");
        })
    };
    let found = |folder: &Folder| folder.spec().chat_template;
    assert_eq!(found(&without("none")), None);
    let beside = without("json").write("chat_template.json", r#"{"chat_template": "beside"}"#);
    assert_eq!(found(&beside).as_deref(), Some("beside"));
    let list = r#"{"chat_template": [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]}"#;
    assert_eq!(found(&without("list").write("chat_template.json", list)).as_deref(), Some("b"));
    let own = without("own").edit("tokenizer_config.json", |json| json["chat_template"] = "own".into());
    let own = own.write("chat_template.json", r#"{"chat_template": "beside"}"#);
    assert_eq!(found(&own).as_deref(), Some("own"));
    let file = own.write("chat_template.jinja", "file").write("additional_chat_templates/tool_use.jinja", "tools");
    assert_eq!(found(&file).as_deref(), Some("file"));
    let additional = without("additional").write("additional_chat_templates/tool_use.jinja", "tools");
    assert_eq!(found(&additional), None);
    let additional = additional.write("additional_chat_templates/default.jinja", "usual");
    assert_eq!(found(&additional).as_deref(), Some("usual"));
}

/// Tests DeepSeek's tokenizer files, whose patterns contain line feeds.
#[test]
fn deepseek_pre_tokenizers_are_recognised() {
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let v3 = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
    let digits = json!({"type": "Digits", "individual_digits": true});
    let asian = "[一-龥ࠀ-一가-퟿]+";
    for (name, parts) in [
        ("deepseek-v3", vec![split("\\p{N}{1,3}"), split("[一-龥\u{3040}-ゟ゠-ヿ]+"), split(v3), bytes.clone()]),
        (
            "deepseek-coder",
            vec![split("[\r\n]"), split("\\s?\\p{L}+"), split("\\s?\\p{P}+"), split(asian), digits, bytes],
        ),
    ] {
        let folder = Folder::new(name, "qwen3moe").edit("tokenizer.json", |json| {
            json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": parts});
        });
        assert_eq!(folder.spec().pre_tokenizer, name);
    }
}
