//! Tests of `modules.json` of sentence-transformers: keys for vectors of texts, and modules that
//! are refused.

use std::fs;
use std::path::{Path, PathBuf};

use ixc_architectures::{Output, Parts, build_parts};
use ixc_model_files::gguf::read_vocabulary;
use ixc_text::tokenizer::Tokenizer;
use serde_json::{Value as Json, json};

/// Copy of an encoder's folder that a test may change.
struct Folder(PathBuf);

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() { copy(&entry.path(), &to) } else { fs::copy(entry.path(), to).map(drop).unwrap() }
    }
}

impl Folder {
    fn new(test: &str, of: &str) -> Folder {
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("checkpoint_modules").join(test);
        let _ = fs::remove_dir_all(&to);
        copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/checkpoints/encoders/models").join(of), &to);
        Folder(to)
    }

    fn edit(&self, file: &str, change: impl FnOnce(&mut Json)) {
        let path = self.0.join(file);
        let mut json: Json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut json);
        fs::write(path, serde_json::to_vec(&json).unwrap()).unwrap();
    }

    /// Returns the pooling key, whether vectors have length 1, and the maximum text length.
    fn facts(&self) -> (Option<u32>, bool, u32) {
        let gguf = ixc_architectures::open(&self.0).unwrap_or_else(|error| panic!("{error}"));
        let model = build_parts(&gguf, Parts { head: false, ..Parts::ALL }).unwrap();
        let Output::Hidden { unit, .. } = model.output else { panic!("{:?}", model.output) };
        let pooling = gguf.metadata().read_optional::<u32>("bert.pooling_type").unwrap();
        (pooling, unit, gguf.metadata().read("bert.context_length").unwrap())
    }

    fn refused(&self) -> String {
        ixc_architectures::open(&self.0).unwrap_err().to_string()
    }
}

const POOLING: &str = "1_Pooling/config.json";
const MODULES: &str = "modules.json";

fn module(kind: &str, path: &str) -> Json {
    json!({"idx": 0, "name": "0", "path": path, "type": format!("sentence_transformers.models.{kind}")})
}

#[test]
fn pooling_and_length_come_from_module_files() {
    let bert = Folder::new("facts", "bert");
    assert_eq!(bert.facts(), (Some(1), true, 128));
    for (config, number) in [
        (json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}), 2),
        (json!({"pooling_mode_lasttoken": true}), 3),
        (json!({"pooling_mode": "mean", "include_prompt": true}), 1),
        (json!({"pooling_mode": "lasttoken"}), 3),
    ] {
        bert.edit(POOLING, |json| *json = config);
        assert_eq!(bert.facts().0, Some(number));
    }
    // Without the module `Normalize`, vectors are not scaled.
    bert.edit(MODULES, |json| drop(json.as_array_mut().unwrap().pop()));
    assert_eq!(bert.facts(), (Some(3), false, 128));
    // A module that only training uses has no effect.
    bert.edit(MODULES, |json| json.as_array_mut().unwrap().push(module("Dropout", "2_Dropout")));
    assert_eq!(bert.facts(), (Some(3), false, 128));
    // The maximum text length comes from the module, the tokenizer or the model. It is rounded up
    // to whole blocks of positions.
    bert.edit("sentence_bert_config.json", |json| json["max_seq_length"] = 75.into());
    assert_eq!(bert.facts().2, 96);
    bert.edit("sentence_bert_config.json", |json| json["max_seq_length"] = Json::Null);
    bert.edit("tokenizer_config.json", |json| json["model_max_length"] = 64.into());
    assert_eq!(bert.facts().2, 64);
    bert.edit("tokenizer_config.json", |json| json["model_max_length"] = json!(1e30));
    assert_eq!(bert.facts().2, 160);
    fs::remove_file(bert.0.join(MODULES)).unwrap();
    assert_eq!(bert.facts(), (None, true, 160));
}

#[test]
fn unsupported_sentence_transformer_modules_are_refused() {
    let dense = [module("Pooling", "1_Pooling"), module("Dense", "2_Dense")];
    let cases: [(&str, Json, &str); 8] = [
        ("no list", json!({"a": 1}), "expected an array of at most 64 modules"),
        ("a path up", json!([module("Pooling", "../1_Pooling")]), "is \"../1_Pooling\"; expected the name of a folder"),
        ("an absolute path", json!([module("Pooling", "/etc")]), "is \"/etc\"; expected the name of a folder"),
        ("a matrix", json!(dense), "models.Dense\"; expected one each of Transformer, Pooling and Normalize"),
        ("two ways", json!([module("Pooling", "1_Pooling"), module("Pooling", "1_Pooling")]), "in this order"),
        ("an unknown one", json!([module("LSTM", "1_LSTM")]), "models.LSTM\"; expected one each of"),
        ("no type", json!([{"path": ""}]), "is \"\"; expected one each of"),
        (
            "an order",
            json!([module("Normalize", "2_Normalize"), module("Pooling", "1_Pooling")]),
            "Normalize as the last module",
        ),
    ];
    for (what, modules, says) in cases {
        let bert = Folder::new("refused", "bert");
        bert.edit(MODULES, |json| *json = modules);
        let refused = bert.refused();
        assert!(refused.contains("modules.json") && refused.contains(says), "{what}: {refused}");
    }
    let ways: [(Json, &str); 4] = [
        (json!({"pooling_mode_max_tokens": true}), "\"pooling_mode_max_tokens\" is true; expected one of mean"),
        (
            json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}),
            "is absent, and 2 flags of pooling methods are set",
        ),
        (json!({}), "is absent, and 0 flags of pooling methods are set"),
        (json!({"pooling_mode": "weightedmean"}), "is \"weightedmean\"; expected one of mean"),
    ];
    for (config, says) in ways {
        let bert = Folder::new("refused", "bert");
        bert.edit(POOLING, |json| *json = config);
        let refused = bert.refused();
        assert!(refused.contains(says), "{refused}");
    }
    let gemma = Folder::new("refused", "embedding_gemma");
    gemma.edit("2_Dense/config.json", |json| json["activation_function"] = "torch.nn.modules.activation.Tanh".into());
    assert!(gemma.refused().contains("Tanh\"; expected Identity"), "{}", gemma.refused());
    gemma.edit("2_Dense/config.json", |json| json["activation_function"] = Json::Null);
    fs::remove_file(gemma.0.join("3_Dense/model.safetensors")).unwrap();
    assert!(
        gemma.refused().contains("3_Dense: is a Hugging Face folder without model.safetensors"),
        "{}",
        gemma.refused()
    );
    let gemma = Folder::new("refused", "embedding_gemma");
    gemma.edit("sentence_bert_config.json", |json| json["do_lower_case"] = true.into());
    assert!(gemma.refused().contains("\"do_lower_case\" is true; expected false"), "{}", gemma.refused());
}

#[test]
fn unsupported_encoder_settings_are_refused() {
    for (of, key, value, says) in [
        ("bert", "position_embedding_type", json!("relative_key"), "\"relative_key\"; expected absolute"),
        ("bert", "is_decoder", json!(true), "\"is_decoder\" is true; expected false"),
        ("bert", "hidden_act", json!("relu"), "\"relu\"; expected gelu"),
        ("nomic_bert", "moe_every_n_layers", json!(2), "\"moe_every_n_layers\" is 2; expected 0"),
        ("nomic_bert", "activation_function", json!("gelu"), "\"gelu\"; expected swiglu"),
        ("eurobert", "is_causal", json!(true), "\"is_causal\" is true; expected false"),
        ("modernbert", "hidden_activation", json!("relu"), "\"relu\"; expected gelu or silu"),
    ] {
        let folder = Folder::new("others", of);
        folder.edit("config.json", |json| json[key] = value);
        let refused = folder.refused();
        assert!(refused.contains(says), "{of}: {refused}");
    }
}

/// Tests that a list of words gives the same vocabulary as `tokenizer.json`.
#[test]
fn word_list_matches_tokenizer_json() {
    let bert = Folder::new("list", "bert");
    let spec = |folder: &Folder| read_vocabulary(ixc_architectures::open(&folder.0).unwrap().metadata()).unwrap();
    let whole = spec(&bert);
    assert!(whole.lowercase && whole.strip_accents && whole.add_bos && whole.add_eos);
    let file: Json = serde_json::from_slice(&fs::read(bert.0.join("tokenizer.json")).unwrap()).unwrap();
    let mut words: Vec<(u64, &String)> =
        file["model"]["vocab"].as_object().unwrap().iter().map(|(word, id)| (id.as_u64().unwrap(), word)).collect();
    words.sort_unstable();
    let list: String = words.iter().map(|(_, word)| format!("{word}\n")).collect();
    fs::write(bert.0.join("vocab.txt"), list).unwrap();
    fs::remove_file(bert.0.join("tokenizer.json")).unwrap();
    bert.edit("tokenizer_config.json", |json| json["tokenizer_class"] = "BertTokenizer".into());
    assert_eq!(spec(&bert), whole);
    // Models that distinguish upper and lower case state this flag.
    bert.edit("tokenizer_config.json", |json| json["do_lower_case"] = false.into());
    let cased = spec(&bert);
    assert!(!cased.lowercase && !cased.strip_accents);
    // If sentence-transformers lowercases the text, accents stay.
    bert.edit("sentence_bert_config.json", |json| json["do_lower_case"] = true.into());
    let lowercased = spec(&bert);
    assert!(lowercased.lowercase && !lowercased.strip_accents);
    // A list of words for another tokenizer is ignored.
    bert.edit("sentence_bert_config.json", |json| json["do_lower_case"] = false.into());
    bert.edit("tokenizer_config.json", |json| json["tokenizer_class"] = "CPMTokenizer".into());
    assert_eq!(spec(&bert).tokens.len(), 0);
}

#[test]
fn word_pieces_match_the_tokenizers_crate() {
    let folder = Folder::new("pieces", "bert");
    let gguf = ixc_architectures::open(&folder.0).unwrap();
    let ours = Tokenizer::new(&read_vocabulary(gguf.metadata()).unwrap()).unwrap();
    let theirs = tokenizers::Tokenizer::from_file(folder.0.join("tokenizer.json")).unwrap();
    for text in [
        "The borrow checker's naïve FAÇADE!",
        "  two  spaces\n\n\tand a tab \r\n end ",
        "日本語 in 12345 wörds, (un)believable; [SEP]x [MASK]",
        "\u{1f600}\u{0301}\u{200b}",
        "",
        "a",
    ] {
        let right = theirs.encode(text, false).unwrap();
        assert_eq!(ours.encode(text, true).unwrap(), right.get_ids(), "{text:?}");
    }
}
