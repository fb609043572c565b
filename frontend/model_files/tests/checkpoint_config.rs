//! Tests of configurations of folders, and of defaults from transformers' classes for missing keys.

#[path = "checkpoint_config/codebook.rs"]
mod codebook;
#[path = "checkpoint_config/integers.rs"]
mod integers;
#[path = "checkpoint_config/layers.rs"]
mod layers;
#[path = "checkpoint_config/matrices.rs"]
mod matrices;
#[path = "checkpoint_config/modules.rs"]
mod modules;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ixc_architectures::Hyper;
use ixc_ir::graph::OpKind;
use ixc_ir::graph::attrs::RopeScaling;
use ixc_model_files::gguf::{Gguf, Value};
use serde_json::{Value as Json, json};

/// Writes a folder with this configuration, and with tensors of zeros.
fn folder(test: &str, config: &Json, tensors: &[(&str, &str, &[u64])]) -> PathBuf {
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("checkpoint_config").join(test);
    let _ = fs::remove_dir_all(&to);
    fs::create_dir_all(&to).unwrap();
    fs::write(to.join("config.json"), serde_json::to_vec(config).unwrap()).unwrap();
    let (mut header, mut end) = (serde_json::Map::new(), 0u64);
    for (name, dtype, shape) in tensors {
        let each = match *dtype {
            "F8_E4M3" | "F8_E8M0" | "I8" | "U8" => 1,
            "F32" | "I32" => 4,
            "I64" => 8,
            _ => 2,
        };
        let bytes = if shape.contains(&0) { 0 } else { each * shape.iter().product::<u64>() };
        header.insert((*name).into(), json!({"dtype": dtype, "shape": shape, "data_offsets": [end, end + bytes]}));
        end += bytes;
    }
    // As in real files, the data begin at a multiple of eight bytes.
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.resize(file.len() + end as usize, 0);
    fs::write(to.join("model.safetensors"), file).unwrap();
    to
}

/// Overwrites the bytes of a tensor in a folder that a test wrote.
fn fill(folder: &Path, tensor: &str, bytes: &[u8]) {
    let path = folder.join("model.safetensors");
    let mut file = fs::read(&path).unwrap();
    let begin = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Json = serde_json::from_slice(&file[8..begin]).unwrap();
    let range = |end: usize| begin + header[tensor]["data_offsets"][end].as_u64().unwrap() as usize;
    file[range(0)..range(1)].copy_from_slice(bytes);
    fs::write(path, file).unwrap();
}

fn open(folder: &Path) -> Gguf {
    ixc_architectures::open(folder).unwrap_or_else(|error| panic!("{error}"))
}

/// Opens a small Gemma 3 model with these numbers of heads, key heads, and elements of a head.
fn gemma_3(test: &str, text: &Json, [heads, kv_heads, length]: [u64; 3]) -> Gguf {
    let width = 32;
    let (q, kv) = (heads * length, kv_heads * length);
    let parts: [(&str, &[u64]); 13] = [
        ("input_layernorm", &[width]),
        ("post_attention_layernorm", &[width]),
        ("pre_feedforward_layernorm", &[width]),
        ("post_feedforward_layernorm", &[width]),
        ("self_attn.q_norm", &[length]),
        ("self_attn.k_norm", &[length]),
        ("self_attn.q_proj", &[q, width]),
        ("self_attn.k_proj", &[kv, width]),
        ("self_attn.v_proj", &[kv, width]),
        ("self_attn.o_proj", &[width, q]),
        ("mlp.gate_proj", &[48, width]),
        ("mlp.up_proj", &[48, width]),
        ("mlp.down_proj", &[width, 48]),
    ];
    let mut names = vec![
        ("language_model.model.embed_tokens.weight".to_owned(), vec![16, width]),
        ("language_model.model.norm.weight".to_owned(), vec![width]),
        ("vision_tower.vision_model.embeddings.position_embedding.weight".to_owned(), vec![4, 4]),
    ];
    for layer in 0..6 {
        let name = |part: &str| format!("language_model.model.layers.{layer}.{part}.weight");
        names.extend(parts.map(|(part, shape)| (name(part), shape.to_vec())));
    }
    let tensors: Vec<_> = names.iter().map(|(name, shape)| (name.as_str(), "BF16", shape.as_slice())).collect();
    let config = json!({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}});
    open(&folder(test, &config, &tensors))
}

fn hyper(model: &Gguf) -> Hyper {
    ixc_architectures::build(model).unwrap_or_else(|error| panic!("{error}")).hyper
}

/// Tests the published configuration of gemma-3-4b. Missing keys have the defaults of
/// `Gemma3TextConfig`.
#[test]
fn missing_gemma_3_keys_have_class_defaults() {
    let text = json!({
        "model_type": "gemma3_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    });
    let found = hyper(&gemma_3("gemma3-4b", &text, [8, 4, 256]));
    assert_eq!((found.context_length, found.norm_eps as f32), (131_072, 1e-6));
    assert_eq!((found.rope.base, found.rope.factor), (1e6, 8.0));
    let local = found.local_rope.unwrap();
    assert_eq!((local.base, local.factor), (1e4, 1.0));
    let windows: Vec<_> = found.layers.iter().map(|layer| layer.window).collect();
    assert_eq!(windows, [Some(1024), Some(1024), Some(1024), Some(1024), Some(1024), None]);
    let layer = &found.layers[0];
    assert_eq!((layer.heads, layer.kv_heads, layer.key_length), (8, 4, 256));
    assert_eq!(layer.attention_scale, 1.0 / 16.0);
    // In the largest model, the divisor of scores is not the root of a head's length.
    let mut text = text;
    let own =
        json!({"head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 16, "query_pre_attn_scalar": 168});
    text.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
    let found = hyper(&gemma_3("gemma3-27b", &text, [32, 16, 128]));
    assert_eq!(found.layers[0].attention_scale as f32, (1.0 / 168f64.sqrt()) as f32);
    // This configuration states sizes only, so the default window of the class applies.
    let text = json!({"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6});
    assert_eq!(hyper(&gemma_3("gemma3-sparse", &text, [8, 4, 256])).layers[0].window, Some(4096));
}

/// Opens a copy of the test checkpoint `of` whose configuration `change` has changed.
fn changed(test: &str, of: &str, change: impl FnOnce(&mut Json)) -> Result<Gguf, String> {
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("checkpoint_config").join(test);
    let _ = fs::remove_dir_all(&to);
    fs::create_dir_all(&to).unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/checkpoints").join(of);
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    let path = to.join("config.json");
    let mut json: Json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut json);
    fs::write(path, serde_json::to_vec(&json).unwrap()).unwrap();
    ixc_architectures::open(&to).map_err(|error| error.to_string())
}

/// Tests that the default does not apply to a key that is null.
#[test]
fn null_keys_have_no_default() {
    let without = |key: &'static str| {
        changed(&format!("without-{key}"), "qwen3moe", move |json| {
            json.as_object_mut().unwrap().remove(key);
        })
    };
    let of = |model: &Gguf| model.metadata().read_optional::<bool>("qwen3moe.expert_weights_norm").unwrap();
    assert_eq!(of(&without("norm_topk_prob").unwrap()), Some(false));
    let null = changed("null", "qwen3moe", |json| json["norm_topk_prob"] = Json::Null).unwrap();
    assert_eq!(of(&null), None);
}

/// Tests factors on sines and cosines: they are those of transformers' `_compute_yarn_parameters`.
#[test]
fn yarn_multiplies_as_transformers_does() {
    let magnitude = |test: &str, of: &str, scaling: Json| {
        let model = changed(test, of, |json| {
            json["rope_parameters"] =
                json!({"rope_theta": 10000.0, "rope_type": "yarn", "original_max_position_embeddings": 64});
            json["rope_parameters"].as_object_mut().unwrap().extend(scaling.as_object().unwrap().clone());
        });
        let rope = hyper(&model.unwrap()).rope;
        (rope.attn_factor * (1.0 + 0.1 * rope.factor.ln()), rope.factor)
    };
    let near = |(found, factor): (f64, f64), expected: f64, of: f64| {
        assert!(
            (found - expected).abs() < 1e-6 && (factor - of).abs() < 1e-6,
            "{found} of {factor}, not {expected} of {of}"
        );
    };
    let usual = 1.0 + 0.1 * 4f64.ln();
    near(magnitude("yarn", "qwen3moe", json!({"factor": 4.0})), usual, 4.0);
    near(magnitude("yarn-stated", "qwen3moe", json!({"factor": 4.0, "attention_factor": 1.25})), 1.25, 4.0);
    // Without a stated factor, the factor is 256 positions divided by the original context.
    near(magnitude("yarn-grown", "qwen3moe", json!({"factor": null})), usual, 4.0);
    let weights = json!({"factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5});
    let ratio = usual / (1.0 + 0.05 * 4f64.ln());
    near(magnitude("yarn-weights", "qwen3moe", weights.clone()), ratio, 4.0);
    // In latent attention, the rest of the magnitude is in the factor on scores.
    near(magnitude("yarn-latent", "deepseek-fp8", weights), ratio, 4.0);
    near(
        magnitude("yarn-latent-equal", "deepseek-fp8", json!({"factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.7})),
        1.0,
        4.0,
    );
    near(magnitude("yarn-latent-plain", "deepseek-fp8", json!({"factor": 4.0})), usual, 4.0);
    // In all models, the bounds of YaRN's ramp are rounded to whole pairs, unless the configuration
    // states otherwise.
    let ramp = |test: &str, of: &str, truncate: Json| {
        let rope = json!({"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "truncate": truncate});
        hyper(&changed(test, of, |json| json["rope_parameters"] = rope).unwrap()).rope.scaling
    };
    for of in ["qwen3moe", "gpt-oss-mxfp4"] {
        assert_eq!(ramp("yarn-whole", of, true.into()), RopeScaling::Yarn);
        assert_eq!(ramp("yarn-unsaid", of, Json::Null), RopeScaling::Yarn);
        assert_eq!(ramp("yarn-untruncated", of, false.into()), RopeScaling::YarnUntruncated);
    }
    let refused = changed("yarn-negative", "qwen3moe", |json| {
        json["rope_parameters"] = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": -1.0});
    });
    let said = refused.unwrap_err();
    assert!(said.contains("key \"attention_factor\" is -1; expected a positive number"), "{said}");
}

/// Returns the numbers of a key, which is a number or an array.
fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(array) => {
            if let ixc_model_files::gguf::Array::F32(numbers) = array {
                return numbers.iter().map(|x| f64::from(*x)).collect();
            }
            let number = |at| array.integer(at).map(|x| x as f64).or(array.bool(at).map(f64::from));
            (0..array.len()).filter_map(number).collect()
        }
        Value::F32(x) => vec![f64::from(*x)],
        Value::Bool(x) => vec![f64::from(*x)],
        other => other.integer().map(|x| x as f64).into_iter().collect(),
    }
}

/// Tests hybrid models and Gemma 4, saved by transformers from the golden models. Keys and tensors
/// must be the same as in the files of llama.cpp's converter.
#[test]
fn checkpoint_keys_and_tensors_match_the_converter() {
    // These keys are not compared, as they carry no information in these models. They are RoPE keys
    // of models without RoPE, sections of M-RoPE, the number of groups if it is 1, and
    // vocabularies. They are also sizes that follow from tensors, and kinds of layers that another
    // key lists.
    const SILENT: [&str; 10] = [
        // This key states the order of queries, keys and values, which is the same in all files of
        // Falcon.
        "tensor_data_layout",
        "rope.scaling.finetuned",
        "vocab_size",
        "rope.dimension_count",
        "expert_group_count",
        "expert_group_used_count",
        "attention.key_length",
        "attention.value_length",
        "rope.dimension_sections",
        "full_attention_interval",
    ];
    // The converter keeps these matrices in f32, but golden files of other writers have f16, or
    // graphs convert them to f32.
    const SINGLE: [&str; 3] = ["ffn_gate_inp.weight", "indexer.proj.weight", "ple_conv1d.weight"];
    // The weights of these norms all equal one number in the configuration. Converters write it for
    // each element of a head.
    const CONSTANT: [(&str, &str); 2] =
        [("muse-glimmer", "attn_q_norm.weight"), ("muse-glimmer", "attn_k_norm.weight")];
    // These values mean that a feature is absent, like a missing key.
    const NONE: [(&str, &str); 4] = [
        ("rope.scaling.type", "\"none\""),
        ("attention.sliding_window", "0"),
        ("nextn_predict_layers", "0"),
        ("expert_weights_scale", "1"),
    ];
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/checkpoints");
    let (mut count, mut wrong) = (0, Vec::new());
    for entry in fs::read_dir(vectors).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let saved: Json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let shapes: Vec<(&String, &str, Vec<u64>)> = saved["tensors"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, tensor)| {
                let shape = tensor[1].as_array().unwrap().iter().map(|len| len.as_u64().unwrap()).collect();
                (name, tensor[0].as_str().unwrap(), shape)
            })
            .collect();
        let tensors: Vec<_> =
            shapes.iter().map(|(name, dtype, shape)| (name.as_str(), *dtype, shape.as_slice())).collect();
        let at = folder(&format!("saved-{name}"), &saved["config"], &tensors);
        for (tensor, said) in saved["tensors"].as_object().unwrap() {
            if let Some(numbers) = said[2].as_array() {
                let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.as_i64().unwrap().to_le_bytes()).collect();
                fill(&at, tensor, &bytes);
            }
        }
        let ours = open(&at);
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/golden/models/{name}.gguf"));
        let theirs = ixc_architectures::open(&golden).unwrap();
        let tensors = |model: &Gguf| -> Vec<(String, Vec<u64>, String)> {
            let of = |tensor: &ixc_model_files::gguf::Tensor| {
                // Writers may store vectors as matrices, and the norms of all streams as one
                // vector.
                let dims: Vec<u64> = match tensor.name().contains("_norm") {
                    true => vec![tensor.dims().iter().product()],
                    false => tensor.dims().iter().copied().filter(|dim| *dim > 1).collect(),
                };
                let single = SINGLE.iter().any(|end| tensor.name().ends_with(end));
                let kind = if single { "F32".to_owned() } else { tensor.tensor_type().to_string() };
                (tensor.name().to_owned(), dims, kind)
            };
            // Graphs derive these tensors from others, so files need not have them.
            let made = ["indexer.mean.weight", "ple_conv1d.singles"];
            let own = model.tensors().filter(|tensor| !made.iter().any(|end| tensor.name().ends_with(end)));
            let mut all: Vec<_> = own.map(of).collect();
            all.sort();
            all
        };
        let (found, mut right) = (tensors(&ours), tensors(&theirs));
        right.retain(|(tensor, ..)| !CONSTANT.iter().any(|(of, end)| *of == name && tensor.ends_with(end)));
        let differs = found
            .iter()
            .filter(|tensor| !right.contains(tensor))
            .chain(right.iter().filter(|tensor| !found.contains(tensor)));
        wrong.extend(differs.map(|tensor| format!("{name}: {tensor:?} is of one of them alone")));
        let architecture: &str = theirs.metadata().read("general.architecture").unwrap();
        assert_eq!(ours.metadata().read::<&str>("general.architecture").unwrap(), architecture);
        for (key, value) in theirs.metadata().iter() {
            let Some(part) = key.strip_prefix(architecture).and_then(|key| key.strip_prefix('.')) else { continue };
            // Nemotron-H states the epsilon of norms under another key.
            let found = ours
                .metadata()
                .get(key)
                .or_else(|| ours.metadata().get(&key.replace("layer_norm_epsilon", "layer_norm_rms_epsilon")));
            match found {
                // Kimi Linear caches as many elements of a value as of a key, so this key has no
                // meaning and is not compared.
                Some(_) if architecture == "kimi-linear" && part == "attention.value_length" => {}
                Some(found) if numbers(found) != numbers(value) => {
                    wrong.push(format!("{name}: {key} is {found}, not {value}"))
                }
                None if !SILENT.contains(&part) && !NONE.contains(&(part, value.to_string().as_str())) => {
                    wrong.push(format!("{name}: {key}, {value}, is missing"))
                }
                _ => {}
            }
        }
        // Factors of layers are one-element tensors. They are zeros here, so their ops are not
        // compared.
        let ops = |model: &Gguf| -> Vec<_> {
            let module = ixc_architectures::build(model).unwrap_or_else(|error| panic!("{name}: {error}")).module;
            module.functions[0].ops.iter().map(|op| op.kind).collect()
        };
        if wrong.is_empty() && ops(&ours) != ops(&theirs) {
            wrong.push(format!("{name}: other ops"));
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count >= 70);
}

/// Rows of queries, keys and values in each of two layers of a MiMo-V2 model. The second layer has
/// a window and twice as many key heads.
const MIMO_ROWS: [[u64; 3]; 2] = [[128, 64, 32], [128, 128, 64]];

fn mimo_2(test: &str, quantised: &Json, tensors: &[(&str, &str, &[u64])]) -> PathBuf {
    let mut config = json!({
        "model_type": "mimo_v2", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 4, "swa_num_key_value_heads": 8, "head_dim": 16, "v_head_dim": 8, "hybrid_layer_pattern": [0, 1],
        "n_routed_experts": 2, "num_experts_per_tok": 1,
    });
    config["quantization_config"] = quantised.clone();
    folder(test, &config, tensors)
}

/// Returns the first number of each row of a bf16 tensor.
fn firsts(model: &Gguf, tensor: &str) -> Vec<f32> {
    let tensor = model.tensor(tensor).unwrap();
    assert_eq!(tensor.tensor_type().to_string(), "BF16");
    let rows = model.tensor_data(tensor).into_owned();
    rows.chunks(2 * tensor.dims()[0] as usize)
        .map(|row| f32::from_bits(u32::from(u16::from_le_bytes([row[0], row[1]])) << 16))
        .collect()
}

/// Tests OLMo Hybrid: sizes of linear attention follow from the width. Every fourth layer has
/// attention; in a model with fewer layers, the last layer has it (transformers,
/// `OlmoHybridConfig`).
#[test]
fn sizes_of_linear_attention_follow_from_the_width() {
    let opened = |test: &str, changes: Json| {
        let mut config = json!({"model_type": "olmo_hybrid", "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 3,
            "num_attention_heads": 4});
        changes.as_object().unwrap().iter().for_each(|(key, value)| config[key] = value.clone());
        let embedding = ("model.embed_tokens.weight", "F16", &[64u64, 64][..]);
        open(&folder(&format!("olmo-hybrid-{test}"), &config, &[embedding]))
    };
    let of = |model: &Gguf, key: &str| model.metadata().get(&format!("olmo-hybrid.{key}")).map_or(vec![], numbers);
    let sizes = |model: &Gguf| {
        ["state_size", "group_count", "time_step_rank", "inner_size", "beta_scale"]
            .map(|key| of(model, &format!("ssm.{key}")))
    };
    let usual = opened("usual", json!({"rope_parameters": {"rope_theta": null, "rope_type": "default"}}));
    assert_eq!(sizes(&usual), [12.0, 4.0, 4.0, 96.0, 2.0].map(|size| vec![size]));
    assert_eq!(of(&usual, "attention.head_count_kv"), [0.0, 0.0, 4.0]);
    assert_eq!(of(&usual, "rope.scaling.finetuned"), [0.0]);
    let other = json!({"num_hidden_layers": 5, "num_key_value_heads": 2, "linear_num_key_heads": 2, "linear_value_head_dim": 8,
        "linear_allow_neg_eigval": false, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}});
    let other = opened("other", other);
    assert_eq!(sizes(&other), [vec![24.0], vec![2.0], vec![4.0], vec![32.0], vec![]]);
    assert_eq!(of(&other, "attention.head_count_kv"), [0.0, 0.0, 0.0, 2.0, 0.0]);
    assert_eq!((of(&other, "rope.scaling.finetuned"), of(&other, "rope.freq_base")), (vec![1.0], vec![5e5]));
}

/// Checks that each architecture is read from folders, or is listed as an exception.
#[test]
fn every_gguf_architecture_reads_from_folders() {
    let found: Vec<&str> =
        ixc_model_files::checkpoint::supported_models().map(|(_, architecture)| architecture).collect();
    let all = ixc_architectures::architectures().map(|row| row.name);
    let missing: BTreeSet<&str> = all.filter(|name| !found.contains(name)).collect();
    let exceptions: BTreeSet<&str> = ixc_model_files::checkpoint::only_in_gguf().iter().copied().collect();
    assert_eq!(
        missing, exceptions,
        "an architecture needs either a row in frontend/model_files/src/checkpoint/families/, or a line of ONLY_IN_GGUF in \
         its mod.rs"
    );
}

/// Tests Hunyuan, whose configuration lists the width of experts for each layer. All numbers must
/// be equal.
#[test]
fn per_layer_lists_may_replace_a_single_count() {
    let config = json!({
        "model_type": "hunyuan_v1_moe", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_experts": 2, "moe_topk": [1, 1], "moe_intermediate_size": [16, 16], "num_shared_expert": [1, 1],
    });
    let model = open(&folder("hunyuan", &config, &[("model.norm.weight", "BF16", &[32])]));
    let key = |name: &str| model.metadata().read::<u32>(&format!("hunyuan-moe.{name}")).unwrap();
    assert_eq!((key("expert_feed_forward_length"), key("expert_used_count"), key("expert_shared_count")), (16, 1, 1));
}

/// Tests that only the base matrices of Phi-4-multimodal are used. Additional matrices (LoRA) for
/// images and audio are dropped.
#[test]
fn image_and_audio_adapters_are_ignored() {
    let config = json!({"model_type": "phi4mm", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 16, "vision_lora": {"r": 8}});
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![16, 32]),
        ("model.norm.weight".to_owned(), vec![32]),
        ("model.embed_tokens_extend.image_embed.img_projection.0.weight".to_owned(), vec![4, 4]),
        ("model.layers.0.input_layernorm.weight".to_owned(), vec![32]),
        ("model.layers.0.post_attention_layernorm.weight".to_owned(), vec![32]),
    ];
    for (part, shape) in [
        ("self_attn.qkv_proj", [64, 32]),
        ("self_attn.o_proj", [32, 32]),
        ("mlp.gate_up_proj", [96, 32]),
        ("mlp.down_proj", [32, 48]),
    ] {
        let name = |end: &str| format!("model.layers.0.{part}.{end}.weight");
        tensors.push((name("base_layer"), shape.to_vec()));
        for kind in ["vision", "speech"] {
            tensors.push((name(&format!("lora_A.{kind}")), vec![8, shape[1]]));
            tensors.push((name(&format!("lora_B.{kind}")), vec![shape[0], 8]));
        }
    }
    let tensors: Vec<_> = tensors.iter().map(|(name, shape)| (name.as_str(), "BF16", shape.as_slice())).collect();
    let model = open(&folder("phi4mm", &config, &tensors));
    let names: Vec<_> = model.tensors().map(|tensor| tensor.name()).collect();
    let parts = ["attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down"];
    assert_eq!(names.len(), 2 + parts.len(), "{names:?}");
    assert!(parts.iter().all(|part| names.contains(&format!("blk.0.{part}.weight").as_str())), "{names:?}");
    assert_eq!(hyper(&model).rope.dims, 8);
}

/// Tests that files of KTransformers' tools are refused with advice, if the rest of the model is
/// missing or if their layout is unsupported.
#[test]
fn unsupported_ktransformers_files_are_refused() {
    let config =
        json!({"model_type": "qwen3_moe", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4});
    let at = folder("ktransformers-awq", &config, &[("blk.0.ffn_gate_exps.0.weight", "BF16", &[64])]);
    let said = ixc_architectures::open(&at).unwrap_err().to_string();
    assert!(said.contains("blk.0.ffn_gate_exps.0.weight") && said.contains("by an unsupported method"), "{said}");
    for (file, expected) in [
        ("_layer_0", "without --no-merge-safetensor"),
        ("model-00001.safetensors", "convert_cpu_weights.py, which also copies the other tensors"),
    ] {
        let at = folder("ktransformers-parts", &config, &[("model.norm.weight", "BF16", &[32])]);
        fs::rename(at.join("model.safetensors"), at.join(file)).unwrap();
        let said = ixc_architectures::open(&at).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    }
}

/// Tests that a configuration is refused if no graph supports a value, or if a value that a graph
/// needs is missing.
#[test]
fn unsupported_config_values_are_refused() {
    let long = |parts: Json| {
        let mut rope = json!({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]});
        rope.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
        json!({"model_type": "phi3", "original_max_position_embeddings": 64, "rope_scaling": rope})
    };
    for (config, expected) in [
        (long(json!({"short_factor": null})), "key \"short_factor\" is missing; expected an array of numbers"),
        (long(json!({"long_factor": 2})), "key \"long_factor\" is 2; expected an array of numbers"),
        (long(json!({"short_mscale": 1.5})), "key \"long_mscale\" is missing, but short_mscale is 1.5"),
        (long(json!({"attention_factor": 0.0})), "expected a positive number"),
        (long(json!({"original_max_position_embeddings": 0})), "expected a count of 2 or more"),
        (json!({"model_type": "afmoe"}), "key \"mup_enabled\" is false; expected true"),
        (json!({"model_type": "llama4_text", "use_qk_norm": false}), "key \"use_qk_norm\" is false; expected true"),
        (
            json!({"model_type": "llama4_text", "moe_layers": [1]}),
            "key \"moe_layers\" is others; expected the last of every 1",
        ),
        (json!({"model_type": "llama4_text", "no_rope_layers": [0, 1]}), "0 for every fourth layer"),
        (json!({"model_type": "falcon_h1", "tie_word_embeddings": true}), "key \"tie_word_embeddings\" is true"),
        (json!({"model_type": "falcon_h1", "mamba_d_ssm": 100}), "a multiple of mamba_n_heads, 128"),
        (json!({"model_type": "falcon_h1", "mlp_multipliers": [1.0]}), "is an array of 1; expected 2 numbers"),
        (
            json!({"model_type": "mpt", "d_model": 32, "attn_config": {"prefix_lm": true}}),
            "key \"prefix_lm\" is true; expected false",
        ),
        (json!({"model_type": "mpt", "d_model": 32, "logit_scale": "inv_sqrt_d_model"}), "key \"logit_scale\" is"),
        (
            json!({"model_type": "bloom", "apply_residual_connection_post_layernorm": true}),
            "key \"apply_residual_connection_post_layernorm\" is true; expected false",
        ),
        (json!({"model_type": "gpt_oss", "swiglu_limit": 5.0}), "key \"swiglu_limit\" is 5.0; expected 7"),
        (json!({"model_type": "gpt_oss", "swiglu_alpha": 1.0}), "key \"swiglu_alpha\" is 1.0; expected 1.702"),
        (json!({"model_type": "olmoe", "clip_qkv": 8.0}), "key \"clip_qkv\" is 8.0; expected null"),
        (
            json!({"model_type": "deepseek_v2", "n_group": 4, "topk_method": "noaux_tc"}),
            "key \"topk_method\" is \"noaux_tc\"; expected greedy or group_limited_greedy",
        ),
        (
            json!({"model_type": "deepseek_v3", "rope_interleave": false}),
            "key \"rope_interleave\" is false; expected true",
        ),
        (
            json!({"model_type": "ernie4_5_moe", "moe_layer_end_index": 0}),
            "key \"moe_layer_end_index\" is 0; expected 1, the last layer",
        ),
        (json!({"model_type": "qwen3_next", "decoder_sparse_step": 2}), "key \"decoder_sparse_step\" is 2; expected 1"),
        (
            json!({"model_type": "qwen3_next", "mlp_only_layers": [0]}),
            "key \"mlp_only_layers\" is [0]; expected an empty",
        ),
        (
            json!({"model_type": "qwen3_moe", "use_sliding_window": true}),
            "key \"use_sliding_window\" is true; expected false",
        ),
        (json!({"model_type": "qwen", "rotary_pct": 0.5}), "key \"rotary_pct\" is 0.5; expected 1"),
        (json!({"model_type": "plm", "hidden_act": "silu"}), "key \"hidden_act\" is \"silu\"; expected relu2"),
        (
            json!({"model_type": "spark2_5", "headwise_attn_output_gate": false}),
            "key \"headwise_attn_output_gate\" is false; expected true",
        ),
        (
            json!({"model_type": "ernie4_5_vl_moe", "moe_intermediate_size": []}),
            "key \"moe_intermediate_size\" is []; expected a count, or one of text and one of pictures",
        ),
        (json!({"model_type": "plamo2", "mamba_enabled": false}), "key \"mamba_enabled\" is false; expected true"),
        (json!({"model_type": "jais", "n_embd": 32, "n_inner": 64}), "key \"activation_function\" is \"gelu_new\""),
        (json!({"model_type": "mimo_v2_flash"}), "key \"hybrid_layer_pattern\" is missing"),
        (json!({"model_type": "longcat_flash"}), "key \"num_layers\" is missing"),
        (
            json!({"model_type": "longcat_flash", "num_layers": 1, "router_bias": true}),
            "key \"router_bias\" is true; expected false",
        ),
        (
            json!({"model_type": "longcat_flash", "num_layers": 1, "mla_scale_q_lora": false}),
            "key \"mla_scale_q_lora\" is false; expected true",
        ),
        (
            json!({"model_type": "longcat_flash", "num_layers": 1, "zero_expert_type": "drop"}),
            "key \"zero_expert_type\" is \"drop\"; expected identity",
        ),
        (json!({"model_type": "nanochat", "attention_bias": true}), "key \"attention_bias\" is true; expected false"),
        (json!({"model_type": "bamba", "mamba_proj_bias": true}), "key \"mamba_proj_bias\" is true; expected false"),
        (json!({"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [0], "swa_head_dim": 2}), "192, as head_dim"),
        (json!({"model_type": "kimi_linear", "linear_num_heads": 3}), "key \"num_heads\" is 3"),
        (json!({"model_type": "deepseek_v4"}), "key \"compress_ratios\" is missing"),
        (json!({"model_type": "deepseek_v4", "num_hidden_layers": u32::MAX}), "at most 65536"),
        (
            json!({"model_type": "cohere2_moe", "num_shared_experts": 2, "shared_expert_combination_strategy": "sum"}),
            "expected average",
        ),
        (
            json!({"model_type": "exaone_moe", "num_shared_experts": u32::MAX, "moe_intermediate_size": 9}),
            "a count of experts",
        ),
    ] {
        let mut config = config;
        let sizes =
            json!({"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2});
        for (key, value) in sizes.as_object().unwrap() {
            config.as_object_mut().unwrap().entry(key.clone()).or_insert(value.clone());
        }
        let at = folder("refused", &config, &[("model.norm.weight", "BF16", &[32])]);
        let said = ixc_architectures::open(&at).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains(expected), "{config}: {said}");
    }
}

/// Tests kinds of layers that are given as letters, and the stated factor on sines and cosines of
/// Phi-3.5 with experts.
#[test]
fn letter_layer_kinds_and_stated_magnitudes_are_read() {
    let sizes = |own: Json| {
        let mut config =
            json!({"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5, "num_attention_heads": 2});
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        config
    };
    let config = sizes(json!({"model_type": "exaone4", "sliding_window": 8, "sliding_window_pattern": "LLG"}));
    let model = open(&folder("letters", &config, &[("model.norm.weight", "BF16", &[32])]));
    let pattern: &[bool] = model.metadata().read("exaone4.attention.sliding_window_pattern").unwrap();
    assert_eq!(pattern, [true, true, false, true, true]);
    let rope = json!({"type": "longrope", "short_factor": [1.0], "long_factor": [2.0], "short_mscale": 1.25, "long_mscale": 1.25,
        "original_max_position_embeddings": 64});
    let config = sizes(json!({"model_type": "phimoe", "rope_scaling": rope, "max_position_embeddings": 128}));
    let model = open(&folder("magnitudes", &config, &[("model.norm.weight", "BF16", &[32])]));
    assert_eq!(model.metadata().read::<f32>("phimoe.rope.scaling.attn_factor").unwrap(), 1.25);
    assert_eq!(model.metadata().read::<u32>("phimoe.rope.scaling.original_context_length").unwrap(), 64);
    assert!(model.tensor("rope_factors_long.weight").is_some() && model.tensor("rope_factors_short.weight").is_some());
    // A soft limit that is null means no limit; if the key is missing, the default applies.
    let caps = |own: Json| {
        let mut config = sizes(json!({"model_type": "gemma2"}));
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        let model = open(&folder("caps", &config, &[("model.norm.weight", "BF16", &[32])]));
        ["attn_logit_softcapping", "final_logit_softcapping"]
            .map(|cap| model.metadata().read::<f32>(&format!("gemma2.{cap}")).unwrap())
    };
    assert_eq!(caps(json!({})), [50.0, 30.0]);
    assert_eq!(caps(json!({"attn_logit_softcapping": null, "final_logit_softcapping": null})), [0.0, 0.0]);
}

/// Tests the head length of Gemma 4's layers without a window. It comes from the class, from a key,
/// or from the list of differences by layer. If the list lacks it, all layers have the same length.
#[test]
fn gemma_4_head_lengths_default_to_no_difference() {
    let length = |own: Json| {
        let mut config = json!({"model_type": "gemma4_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 16, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8});
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        let model = open(&folder("heads", &config, &[("model.norm.weight", "BF16", &[32])]));
        model.metadata().read::<u32>("gemma4.attention.key_length").unwrap()
    };
    assert_eq!(length(json!({})), 512);
    assert_eq!(length(json!({"global_head_dim": 24})), 24);
    assert_eq!(length(json!({"per_layer_config": {"1": {"head_dim": 32}}})), 32);
    assert_eq!(length(json!({"per_layer_config": {}})), 16);
}

/// Tests keys with the same value in all released models, and keys that transformers writes in
/// another form than published files have.
#[test]
fn stated_config_values_override_fixed_ones() {
    let key = |config: Json, key: &str| {
        let mut config = config;
        let sizes = json!({"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_experts": 2, "num_local_experts": 2, "num_experts_per_tok": 1, "layer_types": ["linear_attention", "full_attention"]});
        for (key, value) in sizes.as_object().unwrap() {
            config.as_object_mut().unwrap().entry(key.clone()).or_insert(value.clone());
        }
        let model = open(&folder("stated", &config, &[("model.norm.weight", "BF16", &[32])]));
        let architecture: &str = model.metadata().read("general.architecture").unwrap();
        model.metadata().get(&format!("{architecture}.{key}")).map_or(vec![], numbers)
    };
    const WEIGHTS: &str = "expert_weights_norm";
    assert_eq!(key(json!({"model_type": "qwen3_next", "norm_topk_prob": false}), WEIGHTS), [0.0]);
    assert_eq!(key(json!({"model_type": "qwen3_next"}), WEIGHTS), [1.0]);
    const LENGTH: &str = "attention.key_length";
    assert_eq!(key(json!({"model_type": "granite", "head_dim": 24}), LENGTH), [24.0]);
    assert_eq!(key(json!({"model_type": "granitemoe", "head_dim": 24}), LENGTH), [24.0]);
    assert_eq!(key(json!({"model_type": "granite", "head_dim": 16}), LENGTH), Vec::<f64>::new());
    // DeepSeek-V2 either normalises the weights of experts or multiplies them by a factor.
    const SCALE: &str = "expert_weights_scale";
    let deepseek = |own: Json| {
        let mut config = json!({"model_type": "deepseek_v2", "routed_scaling_factor": 16.0, "n_routed_experts": 2});
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        [key(config.clone(), WEIGHTS), key(config, SCALE)]
    };
    assert_eq!(deepseek(json!({})), [vec![], vec![16.0]]);
    assert_eq!(deepseek(json!({"norm_topk_prob": true, "num_experts_per_tok": 2})), [vec![1.0], vec![1.0]]);
    // With one expert for each token, its weight is not normalised.
    assert_eq!(deepseek(json!({"norm_topk_prob": true, "num_experts_per_tok": 1})), [vec![0.0], vec![16.0]]);
    const EPS: &str = "attention.layer_norm_rms_epsilon";
    assert_eq!(key(json!({"model_type": "olmoe", "rms_norm_eps": 0.5}), EPS), [0.5]);
    assert_eq!(key(json!({"model_type": "olmoe"}), EPS), [f64::from(1e-5f32)]);
    let minimax = |own: Json| {
        let mut config = json!({"model_type": "minimax_m2", "head_dim": 32, "layer_types": null});
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        key(config, "rope.dimension_count")
    };
    assert_eq!(minimax(json!({"rotary_dim": 8})), [8.0]);
    assert_eq!(minimax(json!({"rope_parameters": {"rope_theta": 5e6, "partial_rotary_factor": 0.5}})), [16.0]);
    assert_eq!(minimax(json!({})), [32.0]);
    // A greedy router has no groups, whatever number of groups the configuration states.
    let greedy = json!({"model_type": "deepseek_v2", "n_group": 2, "topk_group": 1, "layer_types": null});
    assert_eq!(key(greedy, "expert_group_count"), [1.0]);
    let limited = json!({"model_type": "deepseek_v2", "n_group": 2, "topk_group": 1, "topk_method": "group_limited_greedy", "layer_types": null});
    assert_eq!(key(limited, "expert_group_count"), [2.0]);
    // If the configuration has the earlier table of RoPE parameters, the class's default for the
    // newer table is dropped.
    let scaling = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
    let ministral = |own: Json, name: &str| {
        let mut config = json!({"model_type": "ministral3", "head_dim": 16, "layer_types": null});
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        key(config, name)
    };
    let before = json!({"rope_theta": 1e4, "rope_scaling": scaling});
    assert_eq!(ministral(before.clone(), "rope.scaling.factor"), [4.0]);
    assert_eq!(ministral(before.clone(), "rope.freq_base"), [1e4]);
    assert_eq!(ministral(before, "attention.temperature_scale"), Vec::<f64>::new());
    assert_eq!(ministral(json!({}), "rope.scaling.factor"), [16.0]);
    // If `yarn_attn_factor` has the whole magnitude, `attn_factor` is 1.
    let both = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 0.5, "mscale_all_dim": 1.0});
    let ratio = (1.0 + 0.05 * 4f64.ln()) / (1.0 + 0.1 * 4f64.ln());
    let both = json!({"rope_scaling": both});
    assert_eq!(ministral(both.clone(), "rope.scaling.yarn_attn_factor"), [f64::from(ratio as f32)]);
    assert_eq!(ministral(both, "rope.scaling.attn_factor"), [1.0]);
    // The temperature of queries needs the original context length, even without YaRN.
    let unscaled = json!({"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 64});
    let unscaled = json!({"rope_parameters": unscaled});
    assert_eq!(ministral(unscaled.clone(), "rope.scaling.original_context_length"), [64.0]);
    assert_eq!(ministral(unscaled, "attention.temperature_scale"), [f64::from(0.1f32)]);
    // Norms of latent rows have an epsilon of their own, whatever `rms_norm_eps` is. Only one class
    // uses `rms_norm_eps` for them, too.
    const LATENT_EPS: &str = "attention.latent_norm_epsilon";
    let flash = |eps: f64| {
        json!({"model_type": "glm4_moe_lite", "rms_norm_eps": eps, "n_routed_experts": 2, "kv_lora_rank": 16,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "layer_types": null})
    };
    assert_eq!(key(flash(1e-5), LATENT_EPS), [f64::from(1e-6f32)]);
    assert_eq!(key(flash(1e-6), LATENT_EPS), Vec::<f64>::new());
    // The stated factor is used, although the context grows by another factor.
    let longrope = json!({"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 32,
        "short_factor": vec![1.0; 8], "long_factor": vec![2.0; 8]});
    let longrope = json!({"model_type": "qwen3", "head_dim": 16, "max_position_embeddings": 256, "rope_theta": 1e4,
        "rope_scaling": longrope, "layer_types": null});
    let magnitude = (1.0 + 4f64.ln() / 32f64.ln()).sqrt();
    assert_eq!(key(longrope, "rope.scaling.attn_factor"), [f64::from(magnitude as f32)]);
    // The base of RoPE depends on alpha and on the stated length of heads.
    let hunyuan = json!({"model_type": "hunyuan_v1_moe", "head_dim": 32, "moe_topk": 1, "layer_types": null,
        "rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "alpha": 1000.0}});
    assert_eq!(key(hunyuan, "rope.freq_base"), [f64::from((1e4 * 1000f64.powf(32.0 / 30.0)) as f32)]);
    let smol =
        json!({"model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layer_interval": 2, "layer_types": null});
    assert_eq!(key(smol, "attention.rope_pattern"), [1.0, 0.0, 1.0, 0.0]);
}

/// Tests that layers without a window have RoPE in models without windows, but not in models with
/// windows.
#[test]
fn full_attention_layers_lack_rope_only_with_windows() {
    let turns = |own: Json| {
        let mut config = json!({"model_type": "exaone4", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 2, "vocab_size": 8, "layer_types": ["full_attention"]});
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        let layer = |part: &str| format!("model.layers.0.{part}.weight");
        let [q, k, v, o] = ["q", "k", "v", "o"].map(|part| layer(&format!("self_attn.{part}_proj")));
        let [gate, up, down] = ["gate", "up", "down"].map(|part| layer(&format!("mlp.{part}_proj")));
        let norms = ["self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm", "post_feedforward_layernorm"]
            .map(layer);
        let mut tensors =
            vec![("model.embed_tokens.weight", "BF16", &[8u64, 32][..]), ("model.norm.weight", "BF16", &[32])];
        tensors.extend([&q, &k, &v, &o].map(|name| (&**name, "BF16", &[32, 32][..])));
        tensors.extend([(&*gate, "BF16", &[48, 32][..]), (&*up, "BF16", &[48, 32]), (&*down, "BF16", &[32, 48])]);
        tensors
            .extend(norms.iter().enumerate().map(|(i, name)| (&**name, "BF16", if i < 2 { &[16][..] } else { &[32] })));
        let model = ixc_architectures::build(&open(&folder("unturned", &config, &tensors)))
            .unwrap_or_else(|error| panic!("{error}"));
        model.module.functions.iter().flat_map(|function| &function.ops).any(|op| op.kind == OpKind::Rope)
    };
    assert!(turns(json!({"sliding_window": null})));
    assert!(!turns(json!({"sliding_window": 64})));
}

/// Tests that related models have the defaults of their own classes.
#[test]
fn related_models_have_their_own_class_defaults() {
    let key = |model_type: &str, key: &str| {
        let config = json!({"model_type": model_type, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "rms_norm_eps": if model_type == "exaone" { 0.5.into() } else { Json::Null }});
        let mut config = config;
        config.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let model = open(&folder("kin", &config, &[("model.norm.weight", "BF16", &[32])]));
        let architecture: &str = model.metadata().read("general.architecture").unwrap();
        model.metadata().get(&format!("{architecture}.{key}")).map_or(vec![], numbers)
    };
    for (model_type, name, expected) in [
        ("granite", "embedding_scale", 1.0),
        ("granite_docling", "embedding_scale", 12.0),
        ("granite_docling", "logit_scale", 4.0),
        ("glm4v", "attention.head_count_kv", 2.0),
        ("glm_ocr", "attention.head_count_kv", 8.0),
        ("qwen2_5_vl", "attention.layer_norm_rms_epsilon", f64::from(1e-5f32)),
        ("qwen2_5_omni_text", "attention.layer_norm_rms_epsilon", f64::from(1e-6f32)),
        ("gemma4", "attention.sliding_window", 512.0),
        ("gemma4_unified", "attention.sliding_window", 1024.0),
        ("mistral", "attention.sliding_window", 4096.0),
        ("olmo3", "rope.freq_base", 5e5),
        // Transformers uses this key for the epsilon.
        ("exaone", "attention.layer_norm_rms_epsilon", 0.5),
    ] {
        assert_eq!(key(model_type, name), [expected], "{model_type}: {name}");
    }
}

/// Tests that sizes whose products overflow give typed errors.
#[test]
fn absurd_sizes_are_refused() {
    let huge = u32::MAX;
    let config = |model_type: &str| {
        json!({
            "model_type": model_type, "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": huge,
            "num_key_value_heads": huge, "head_dim": huge, "linear_num_key_heads": huge, "linear_num_value_heads": 1,
            "linear_key_head_dim": huge, "linear_value_head_dim": huge, "max_position_embeddings": 4, "n_groups": huge,
            "mamba_n_heads": huge, "mamba_d_head": 1, "mamba_n_groups": huge, "layer_types": ["mamba"], "qk_nope_head_dim": huge - 1,
            "v_head_dim": huge, "kv_lora_rank": 1, "qk_rope_head_dim": 1,
        })
    };
    for (model_type, tensor) in [
        ("qwen3_next", "model.layers.0.linear_attn.in_proj_qkvz.weight"),
        ("qwen3_5", "model.layers.0.linear_attn.in_proj_qkv.weight"),
        ("qwen3_5", "model.layers.0.linear_attn.in_proj_z.weight"),
        ("ernie4_5", "model.layers.0.self_attn.qkv_proj.weight"),
        ("deepseek_v3", "model.layers.0.self_attn.kv_b_proj.weight"),
        ("granitemoehybrid", "model.layers.0.mamba.norm.weight"),
    ] {
        let mut config = config(model_type);
        if model_type != "granitemoehybrid" {
            config.as_object_mut().unwrap().remove("layer_types");
        }
        let shape: &[u64] = if tensor.contains("norm") { &[4] } else { &[4, 4] };
        let at = folder(&format!("absurd-{model_type}-{}", tensor.len()), &config, &[(tensor, "BF16", shape)]);
        let said = ixc_architectures::open(&at).unwrap_err().to_string();
        assert!(said.contains(tensor) && said.contains("shape that fits the sizes"), "{model_type}: {said}");
    }
    let config = json!({"model_type": "llama", "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1,
        "quantization_config": {"quant_method": "fp8"}});
    let name = "model.layers.0.self_attn.o_proj.weight";
    let scale = format!("{name}_scale");
    let scales: &[u64] = &[1 << 63, 4, 0];
    let at = folder("absurd-scales", &config, &[(name, "F8_E4M3", &[4, 4]), (&scale, "BF16", scales)]);
    let said = ixc_architectures::open(&at).unwrap_err().to_string();
    assert!(said.contains("_scale") && said.contains("at least one scale"), "{said}");
}
