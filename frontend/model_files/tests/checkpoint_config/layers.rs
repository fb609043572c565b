//! Tests of kinds of layers: with attention or a recurrent state, with a window, or dense.

use std::fs;
use std::path::Path;

use serde_json::{Value as Json, json};

use crate::{changed, folder, hyper, numbers, open};

/// Tests published configurations of Ling 3. The last layer of each group has attention, and so
/// have layers after the last complete group.
#[test]
fn ling_3_layers_after_the_last_group_attend() {
    let config = json!({"model_type": "bailing_hybrid", "hidden_size": 32, "num_hidden_layers": 8, "num_attention_heads": 2, "layer_group_size": 3,
        "score_function": "sigmoid", "expert_swiglu_limit_list": [null, 7.0]});
    let model = open(&folder("ling-3", &config, &[("model.norm.weight", "BF16", &[32])]));
    let key = |name: &str| numbers(model.metadata().get(&format!("bailingmoe3.{name}")).unwrap());
    assert_eq!(key("attention.head_count_kv"), [0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
    assert_eq!(key("swiglu_clamp_exp"), [0.0, 7.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

/// Tests Mistral Large 4. Layers with RoPE and layers with an indexer are listed, or follow from
/// periods (transformers, `MistralLarge4TextConfig`).
#[test]
fn mistral_large_4_layer_kinds_are_listed_or_derived() {
    let vector = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/checkpoints/mistral-large4-own.json");
    let saved: Json = serde_json::from_slice(&fs::read(vector).unwrap()).unwrap();
    let opened = |test: &str, changes: Json| {
        let mut config = saved["config"].clone();
        for key in ["no_rope_layers", "indexer_types", "kv_source_layers"] {
            config.as_object_mut().unwrap().remove(key);
        }
        changes.as_object().unwrap().iter().for_each(|(key, value)| config[key] = value.clone());
        config["num_hidden_layers"] = 6.into();
        let embedding = ("model.embed_tokens.weight", "F16", &[64u64, 32][..]);
        ixc_architectures::open(&folder(&format!("kinds-{test}"), &config, &[embedding]))
            .map_err(|error| error.to_string())
    };
    let of = |test: &str, changes: Json| {
        let model = opened(test, changes).unwrap();
        let key =
            |name: &str| model.metadata().get(&format!("mistral-large4.attention.{name}")).map_or(vec![], numbers);
        [key("rope_pattern"), key("indexer.types"), key("kv_source_layers")]
    };
    let ones = vec![1.0; 6];
    assert_eq!(of("usual", json!({})), [vec![1.0, 1.0, 1.0, 0.0, 1.0, 1.0], ones, vec![]]);
    let numbers = json!({"no_rope_layer_interval": 2, "index_topk_freq": 2, "index_skip_topk_offset": 1});
    let [turned, own, _] = of("numbers", numbers);
    assert_eq!((turned, own), (vec![1.0, 0.0, 1.0, 0.0, 1.0, 0.0], vec![1.0, 0.0, 1.0, 0.0, 1.0, 0.0]));
    let lists = json!({"no_rope_layers": [0, 1, 1, 1, 1, 0, 1, 1], "index_topk_pattern": "FFSFSS", "kv_source_layers": [0, 1, 1, 3, 1, 0]});
    let expected = [[0.0, 1.0, 1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 3.0, 1.0, 0.0]];
    assert_eq!(of("lists", lists), expected.map(|list| list.to_vec()));
    // Layer 2 may not use the rows of layer 0, because transformers would use those of the later
    // layer 1.
    let other = opened("other", json!({"no_rope_layers": [1, 1, 1, 1, 1, 0], "kv_source_layers": [0, 1, 0, 1, 4, 5]}))
        .unwrap_err();
    assert!(other.contains("is 0 for layer 2; expected 1 or 2: the last layer before it"), "{other}");
}

/// Tests the windows of PLaMo 2. Attention layers (here every second layer) have a window, except
/// the listed layers.
#[test]
fn plamo_2_windows_exclude_listed_layers() {
    let windows = |test: &str, own: Json| {
        let mut config = json!({"model_type": "plamo2", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
            "num_attention_heads": 2, "max_position_embeddings": 8192});
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        let model = open(&folder(test, &config, &[("model.norm.weight", "BF16", &[32])]));
        let metadata = model.metadata();
        assert_eq!(metadata.read::<u64>("plamo2.context_length").unwrap(), 8192);
        let [window, pattern] = ["", "_pattern"]
            .map(|end| metadata.get(&format!("plamo2.attention.sliding_window{end}")).map_or(vec![], numbers));
        (window, pattern)
    };
    assert_eq!(windows("windowed", json!({})), (vec![2048.0], vec![0.0, 1.0, 0.0, 1.0]));
    assert_eq!(windows("half", json!({"full_attention_idx": [1]})), (vec![2048.0], vec![0.0, 0.0, 0.0, 1.0]));
    assert_eq!(windows("full", json!({"full_attention_idx": [1, 3]})), (vec![], vec![]));
}

/// Tests that a window applies to the listed layers, to the layers from a number on, or to all
/// layers. It applies to no layer if the configuration disables it.
#[test]
fn windows_apply_to_the_configured_layers() {
    let windows = |config: Json| -> (Option<u32>, Option<Vec<bool>>) {
        let mut config = config;
        let sizes = json!({"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
            "num_experts": 2, "num_local_experts": 2, "n_routed_experts": 2, "num_experts_per_tok": 1, "sliding_window": 24});
        for (key, value) in sizes.as_object().unwrap() {
            config.as_object_mut().unwrap().entry(key.clone()).or_insert(value.clone());
        }
        let model = open(&folder("windows", &config, &[("model.norm.weight", "BF16", &[32])]));
        let architecture: &str = model.metadata().read("general.architecture").unwrap();
        let key = |key: &str| format!("{architecture}.attention.{key}");
        let pattern: Option<&[bool]> = model.metadata().read_optional(&key("sliding_window_pattern")).unwrap();
        (model.metadata().read_optional(&key("sliding_window")).unwrap(), pattern.map(<[bool]>::to_vec))
    };
    let kinds = json!(["sliding_attention", "full_attention", "sliding_attention"]);
    assert_eq!(windows(json!({"model_type": "mistral"})), (Some(24), None));
    // The class of `llama` in transformers has no window.
    assert_eq!(windows(json!({"model_type": "llama"})), (None, None));
    assert_eq!(windows(json!({"model_type": "qwen2"})), (None, None));
    let behind = json!({"model_type": "qwen2", "use_sliding_window": true, "max_window_layers": 1});
    assert_eq!(windows(behind), (Some(24), Some(vec![false, true, true])));
    assert_eq!(windows(json!({"model_type": "qwen3", "use_sliding_window": true})), (None, None));
    let listed =
        json!({"model_type": "qwen3", "use_sliding_window": true, "max_window_layers": 1, "layer_types": kinds});
    assert_eq!(windows(listed), (Some(24), Some(vec![true, false, true])));
    assert_eq!(windows(json!({"model_type": "dots1"})), (None, None));
    assert_eq!(
        windows(json!({"model_type": "dots1", "layer_types": kinds})),
        (Some(24), Some(vec![true, false, true]))
    );
}

/// Tests GPT-Neo, which lists layers, or runs of layers with a number of repetitions. Runs with
/// more layers than the model has are refused before they are expanded.
#[test]
fn gpt_neo_layer_list_must_match_layer_count() {
    let opened = |name: &str, value: Json| {
        let mut config =
            json!({"model_type": "gpt_neo", "hidden_size": 32, "num_layers": 3, "num_heads": 2, "window_size": 24});
        config[name] = value;
        let norm = ("transformer.ln_f.weight", "F32", &[32u64][..]);
        ixc_architectures::open(&folder("gpt-neo", &config, &[norm])).map_err(|error| error.to_string())
    };
    let runs = opened("attention_types", json!([[["global", "local"], 1], [["local"], 1]])).unwrap();
    let pattern: Option<&[bool]> = runs.metadata().read_optional("gptneo.attention.sliding_window_pattern").unwrap();
    assert_eq!(pattern, Some(&[false, true, true][..]));
    for (name, value) in [
        ("attention_layers", json!(["global", "sparse", "local"])),
        ("attention_types", json!([[["global", "sparse"], 1], [["local"], 1]])),
        ("attention_types", json!([[vec!["global"; 1000], u64::MAX / 4]])),
        ("attention_types", json!([[["global"], 2], [["local"], 2]])),
        ("attention_types", json!([[["global"], 2]])),
    ] {
        let error = opened(name, value).unwrap_err();
        assert!(error.contains("attention_layers") || error.contains("attention_types"), "{error}");
    }
}

/// Tests that layers without a router are dense in Qwen models, and that the configuration must
/// agree with the tensors.
#[test]
fn layers_without_routers_are_dense() {
    for (test, dense) in [("layers", json!({"mlp_only_layers": [0]})), ("sparse", json!({"decoder_sparse_step": 2}))] {
        let set = |json: &mut Json| json.as_object_mut().unwrap().extend(dense.as_object().unwrap().clone());
        let said = changed(&format!("dense-{test}"), "qwen3moe", set).unwrap_err();
        let says =
            "blk.0.ffn_gate_inp.weight\" is present in a layer that mlp_only_layers or decoder_sparse_step makes dense";
        assert!(said.contains(says), "{said}");
    }
    let model = changed("dense-right", "kin/qwen3_moe-dense", |_| ()).unwrap();
    let dense: Vec<bool> = hyper(&model).layers.iter().map(|layer| layer.experts.is_none()).collect();
    assert_eq!(dense, [true, false, true, true]);
    let said = changed("dense-less", "kin/qwen3_moe-dense", |json| json["mlp_only_layers"] = json!([])).unwrap_err();
    assert!(said.contains("blk.3.ffn_gate.weight\" is present without a router"), "{said}");
    let said = changed("dense-none", "qwen3moe", |json| json["decoder_sparse_step"] = 0.into()).unwrap_err();
    assert!(said.contains("key \"decoder_sparse_step\" is 0; expected a count above 0"), "{said}");
    let said = changed("dense-number", "qwen3moe", |json| json["mlp_only_layers"] = 3.into()).unwrap_err();
    assert!(said.contains("key \"mlp_only_layers\" is 3; expected an array of counts"), "{said}");
    let said = changed("dense-step", "qwen3moe", |json| json["decoder_sparse_step"] = "2".into()).unwrap_err();
    assert!(said.contains("key \"decoder_sparse_step\" is \"2\"; expected a count"), "{said}");
}
