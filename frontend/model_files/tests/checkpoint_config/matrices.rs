//! Tests of matrices that are split, joined, or multiplied by factors.

use std::fs;
use std::path::Path;

use ixc_ir::derived::Change;
use ixc_model_files::gguf::Gguf;
use serde_json::{Value as Json, json};

use crate::{MIMO_ROWS, fill, firsts, folder, mimo_2, open};

const FUSED: [&str; 2] = ["model.layers.0.self_attn.qkv_proj.weight", "model.layers.1.self_attn.qkv_proj.weight"];

/// Tests that a matrix of queries, keys and values is split by the head counts of its layer.
#[test]
fn a_fused_matrix_is_taken_apart_by_its_layer() {
    let shapes = MIMO_ROWS.map(|rows| [rows.iter().sum::<u64>(), 32]);
    let at = mimo_2("mimo-fused", &Json::Null, &[(FUSED[0], "BF16", &shapes[0]), (FUSED[1], "BF16", &shapes[1])]);
    for (name, [rows, width]) in FUSED.iter().zip(shapes) {
        // Each element is the number of its row, rounded to even. Above 256, bf16 has only even
        // integers.
        let row = |row: u64| ((row / 2 * 2) as f32).to_bits().to_le_bytes()[2..].repeat(width as usize);
        fill(&at, name, &(0..rows).flat_map(row).collect::<Vec<u8>>());
    }
    let model = open(&at);
    for (layer, rows) in MIMO_ROWS.into_iter().enumerate() {
        let mut from = 0;
        for (part, rows) in ["q", "k", "v"].into_iter().zip(rows) {
            let expected: Vec<f32> = (from..from + rows).map(|row| (row / 2 * 2) as f32).collect();
            assert_eq!(firsts(&model, &format!("blk.{layer}.attn_{part}.weight")), expected, "layer {layer}, {part}");
            from += rows;
        }
    }
    let wrong = mimo_2("mimo-wrong", &Json::Null, &[(FUSED[0], "BF16", &[225, 32])]);
    let said = ixc_architectures::open(&wrong).unwrap_err().to_string();
    assert!(said.contains("qkv_proj.weight") && said.contains("[225, 32]"), "{said}");
}

/// Tests a matrix of queries, keys and values that four machines quantised in parts. Each part has
/// an equal share of each, with its own scales.
#[test]
fn a_fused_matrix_of_several_machines_is_put_together() {
    const RANKS: u64 = 4;
    const BLOCK: u64 = 16;
    let fp8 = json!({"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]});
    let all = MIMO_ROWS.map(|rows| rows.iter().sum::<u64>());
    let blocks = all.map(|rows| (rows / RANKS).div_ceil(BLOCK));
    let scales = FUSED.map(|name| format!("{name}_scale_inv"));
    let at = mimo_2(
        "mimo-ranks",
        &fp8,
        &[
            (FUSED[0], "F8_E4M3", &[all[0], 32]),
            (&scales[0], "F32", &[RANKS * blocks[0], 2]),
            (FUSED[1], "F8_E4M3", &[all[1], 32]),
            (&scales[1], "F32", &[RANKS * blocks[1], 2]),
        ],
    );
    // The codes 1, 2 and 4 alternate by row, and scales are consecutive numbers.
    let code = |row: u64| [0x38u8, 0x40, 0x48][row as usize % 3];
    let number = |row: u64| [1.0f32, 2.0, 4.0][row as usize % 3];
    for layer in 0..2 {
        fill(&at, FUSED[layer], &(0..all[layer]).flat_map(|row| [code(row); 32]).collect::<Vec<u8>>());
        let of_blocks = (0..RANKS * blocks[layer]).flat_map(|block| [(1 + block) as f32; 2]);
        fill(&at, &scales[layer], &of_blocks.flat_map(f32::to_le_bytes).collect::<Vec<u8>>());
    }
    let model = open(&at);
    for (layer, rows) in MIMO_ROWS.into_iter().enumerate() {
        let of_rank = all[layer] / RANKS;
        let mut from = 0;
        for (part, rows) in ["q", "k", "v"].into_iter().zip(rows) {
            let own = rows / RANKS;
            let place = |row: u64| (row / own, from + row % own);
            let expected: Vec<f32> = (0..rows)
                .map(place)
                .map(|(rank, row)| number(rank * of_rank + row) * (1 + rank * blocks[layer] + row / BLOCK) as f32)
                .collect();
            assert_eq!(firsts(&model, &format!("blk.{layer}.attn_{part}.weight")), expected, "layer {layer}, {part}");
            from += own;
        }
    }
}

/// Tests published files of Kimi K3. Scores are multiplied by a norm's weight, gates are named by
/// the kind of their layer, and additional decays are dropped.
#[test]
fn kimi_k3_vectors_are_folded_and_renamed() {
    let config = json!({
        "model_type": "kimi_k3",
        "text_config": {
            "model_type": "kimi_linear", "hidden_size": 4, "intermediate_size": 8, "moe_intermediate_size": 4, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_experts": 2, "num_experts_per_token": 1, "first_k_dense_replace": 1, "hidden_act": "situ",
            "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "attn_res_block_size": 12, "routed_expert_hidden_size": 2,
            "mla_use_nope": true, "moe_router_activation_func": "sigmoid", "kv_lora_rank": 4, "qk_nope_head_dim": 2, "qk_rope_head_dim": 2,
            "v_head_dim": 2,
            "linear_attn_config": {
                "kda_layers": [1], "full_attn_layers": [2], "num_heads": 2, "head_dim": 2, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0
            },
        },
    });
    let scores = ["layers.0.mlp_res", "layers.1.self_attention_res", "output_attn_res"]
        .map(|name| ["norm", "proj"].map(|part| format!("language_model.model.{name}_{part}.weight")));
    let gates = [0, 1].map(|layer| format!("language_model.model.layers.{layer}.self_attn.g_proj.weight"));
    let decays = "language_model.model.layers.0.self_attn.A_log";
    let mut tensors: Vec<(&str, &str, &[u64])> = vec![(&gates[0], "BF16", &[4, 4]), (&gates[1], "BF16", &[4, 4])];
    tensors.extend([(decays, "F32", &[4u64][..]), ("mm_projector.pre_norm.weight", "BF16", &[4])]);
    for [norm, score] in &scores {
        tensors.extend([(norm.as_str(), "BF16", &[4u64][..]), (score.as_str(), "BF16", &[1, 4])]);
    }
    let at = folder("kimi-k3", &config, &tensors);
    let bf16 = |numbers: [f32; 4]| numbers.map(|x| [x.to_le_bytes()[2], x.to_le_bytes()[3]]).concat();
    for (number, [norm, score]) in (1u8..).zip(&scores) {
        fill(&at, norm, &bf16([1.0, 2.0, 3.0, 0.5]));
        fill(&at, score, &bf16([0.25, -1.0, 1.5, f32::from(number)]));
    }
    let model = open(&at);
    let floats = |name: &str| {
        let tensor = model.tensor(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(tensor.tensor_type().to_string(), "F32", "{name}");
        let data = model.tensor_data(tensor).into_owned();
        data.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect::<Vec<f32>>()
    };
    for (number, name) in (1u8..).zip(["blk.0.ffn_res_score", "blk.1.attn_res_score", "output_res_score"]) {
        assert_eq!(floats(&format!("{name}.weight")), [0.25, -2.0, 4.5, 0.5 * f32::from(number)], "{name}");
    }
    assert_eq!(floats("blk.0.ssm_a"), [-1.0, -1.0]);
    for name in ["blk.0.ssm_g.weight", "blk.1.attn_gate.weight"] {
        assert!(model.tensor(name).is_some(), "{name}");
    }
    let number = |key: &str| model.metadata().read::<f32>(&format!("kimi-k3.{key}")).unwrap();
    let keys = ["activation.situ_beta", "activation.situ_linear_beta", "kda.gate_lower_bound"];
    assert_eq!(keys.map(number), [4.0, 25.0, -5.0]);
    let count = |key: &str| model.metadata().read::<u32>(&format!("kimi-k3.{key}")).unwrap();
    assert_eq!(["attn_res.block_size", "expert_latent_length"].map(count), [12, 2]);

    let [norm, score] = &scores[0];
    for (tensors, expected) in [
        (vec![(score.as_str(), "BF16", &[1u64, 4][..])], "_res_norm.weight\" is missing"),
        (vec![(score.as_str(), "BF16", &[1, 4]), (norm.as_str(), "BF16", &[8])], "is [8] of BF16; expected 4 numbers"),
        (vec![(score.as_str(), "BF16", &[1, 4]), (norm.as_str(), "I64", &[4])], "is [4] of I64; expected 4 numbers"),
        (vec![(norm.as_str(), "BF16", &[4])], "_res_norm.weight"),
    ] {
        let at = folder("kimi-k3-refused", &config, &tensors);
        let said = ixc_architectures::open(&at).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    }
}

/// Name, shape and bytes of a stored matrix.
type Stored = (String, [u64; 2], Vec<u8>);

/// Replaces the tensors of a folder by a file for each machine, without an index.
fn by_machine(folder: &Path, files: &[(&str, &[Stored])]) {
    for (file, tensors) in files {
        let (mut header, mut bytes) = (serde_json::Map::new(), Vec::new());
        for (name, shape, data) in *tensors {
            let end = bytes.len() + data.len();
            header.insert(name.clone(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [bytes.len(), end]}));
            bytes.extend(data);
        }
        let mut header = serde_json::to_vec(&header).unwrap();
        header.resize(header.len().next_multiple_of(8), b' ');
        fs::write(folder.join(file), [&(header.len() as u64).to_le_bytes()[..], &header, &bytes].concat()).unwrap();
    }
}

/// Tests Grok 2, which has a file for each machine. The file has some rows of the gate and up
/// matrices of each expert, and some columns of its down matrix.
#[test]
fn experts_of_several_machines_are_put_together() {
    const WIDTH: u64 = 8;
    const WIDE: u64 = 16;
    const EXPERTS: u64 = 2;
    const MACHINES: u64 = 4;
    let config = json!({
        "model_type": "git", "architectures": ["Grok1ForCausalLM"], "hidden_size": WIDTH, "intermediate_size": 32, "moe_intermediate_size": WIDE,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "num_local_experts": EXPERTS, "vocab_size": 16,
    });
    // Each element is the upper half of an f32 that identifies the element.
    let number =
        |expert: u64, matrix: u64, row: u64, column: u64| (expert << 12 | matrix << 10 | row << 5 | column) as u16;
    let name =
        |expert: u64, matrix: u64| format!("model.layers.0.block_sparse_moe.experts.{expert}.w{}.weight", matrix + 1);
    let shape = |matrix: u64| if matrix == 1 { [WIDTH, WIDE] } else { [WIDE, WIDTH] };
    let part = |machine: u64, expert: u64, matrix: u64| {
        let [rows, columns] = shape(matrix);
        let own = if matrix == 1 { [rows, columns / MACHINES] } else { [rows / MACHINES, columns] };
        let [from, left] = if matrix == 1 { [0, machine * own[1]] } else { [machine * own[0], 0] };
        let of_row = |row: u64| (0..own[1]).map(move |column| number(expert, matrix, from + row, left + column));
        let bytes: Vec<u8> = (0..own[0]).flat_map(of_row).flat_map(u16::to_le_bytes).collect();
        (name(expert, matrix), own, bytes)
    };
    let of_machine = |machine: u64| -> Vec<_> {
        (0..EXPERTS)
            .flat_map(|expert| (0..3).map(move |matrix| (expert, matrix)))
            .map(|(e, m)| part(machine, e, m))
            .collect()
    };
    let machines: Vec<_> = (0..MACHINES).map(of_machine).collect();
    let common = [("lm_head.weight".to_owned(), [16, WIDTH], vec![0; 2 * 16 * WIDTH as usize])];
    let names: Vec<String> =
        (0..MACHINES).map(|machine| format!("pytorch_model-00001-TP-{machine:03}.safetensors")).collect();
    let write = |test: &str, machines: &[Vec<Stored>]| {
        let at = folder(test, &config, &[]);
        fs::remove_file(at.join("model.safetensors")).unwrap();
        let mut files: Vec<(&str, &[_])> = vec![("pytorch_model-00000-TP-common.safetensors", &common)];
        files.extend(names.iter().zip(machines).map(|(name, tensors)| (name.as_str(), tensors.as_slice())));
        by_machine(&at, &files);
        at
    };
    let model = open(&write("grok-2-machines", &machines));
    for (matrix, part) in [(0, "gate"), (1, "down"), (2, "up")] {
        let tensor = model.tensor(&format!("blk.0.ffn_{part}_exps.weight")).unwrap();
        let [rows, columns] = shape(matrix);
        assert_eq!((tensor.dims(), tensor.tensor_type().to_string().as_str()), (&[columns, rows, EXPERTS][..], "BF16"));
        let numbers: Vec<u16> =
            model.tensor_data(tensor).as_chunks().0.iter().map(|x| u16::from_le_bytes(*x)).collect();
        let expected = (0..EXPERTS * rows * columns)
            .map(|at| number(at / (rows * columns), matrix, at / columns % rows, at % columns));
        assert_eq!(numbers, expected.collect::<Vec<_>>(), "{part}");
    }
    let refused = |test: &str, change: &dyn Fn(&mut Vec<Vec<Stored>>)| {
        let mut machines = machines.clone();
        change(&mut machines);
        ixc_architectures::open(&write(test, &machines)).unwrap_err().to_string()
    };
    let said = refused("grok-2-lacks-a-machine", &|machines| machines[2].clear());
    assert!(
        said.ends_with("tensor \"model.layers.0.block_sparse_moe.experts.0.w1.weight, machine 2\" is missing"),
        "{said}"
    );
    let said = refused("grok-2-lacks-an-expert", &|machines| {
        machines.iter_mut().for_each(|of| of.retain(|(name, ..)| !name.contains("experts.1.")))
    });
    assert!(said.ends_with("tensor \"blk.0.ffn_down_exps.weight, expert 1\" is missing"), "{said}");
    let said = refused("grok-2-shape", &|machines| machines[1][0].1 = [8, 4]);
    assert!(
        said.contains("w1.weight\" is [8, 4] of BF16; expected a part of shape [4, 8], with one number type in all parts, of a matrix of 16 by 8 on 4 machines"),
        "{said}"
    );
    let said =
        refused("grok-2-norm", &|machines| machines[0].push(("model.norm.weight".to_owned(), [1, WIDTH], vec![0; 16])));
    assert!(said.ends_with("is one machine's part of a tensor that is not an expert; expected a part of an expert's matrix, or the whole tensor"), "{said}");
}

/// Tests four-bit codes with a scale for 32 numbers, which become MXFP4 blocks under any tensor
/// name. The scales of FP8 may have the name `scale`.
#[test]
fn fp4_blocks_and_fp8_scales_have_alternative_names() {
    let config = json!({"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "num_local_experts": 1, "quantization_config": {"quant_method": "fp8"}});
    let expert = |part: &str| format!("model.layers.0.block_sparse_moe.experts.0.{part}");
    let output = "model.layers.0.self_attn.o_proj";
    let [w1, s1, w3, s3] = ["w1.weight", "w1.scale", "w3.weight_packed", "w3.weight_scale"].map(expert);
    let (o, so) = (format!("{output}.weight"), format!("{output}.scale"));
    let tensors: [(&str, &str, &[u64]); 6] = [
        (&w1, "I8", &[32, 32]),
        (&s1, "F8_E8M0", &[32, 2]),
        (&w3, "U8", &[32, 32]),
        (&s3, "U8", &[32, 2]),
        (&o, "F8_E4M3", &[64, 64]),
        (&so, "F8_E8M0", &[1, 1]),
    ];
    let model = open(&folder("codes", &config, &tensors));
    let of = |name: &str| {
        let tensor = model.tensor(name).unwrap();
        (tensor.dims().to_vec(), tensor.tensor_type().to_string())
    };
    for part in ["gate", "up"] {
        assert_eq!(of(&format!("blk.0.ffn_{part}_exps.weight")), (vec![64, 32, 1], "MXFP4".to_owned()));
    }
    assert_eq!(of("blk.0.attn_output.weight"), (vec![64, 64], "BF16".to_owned()));
    let [bad, dtype] = [("I8", &[32u64, 1][..]), ("BF16", &[32, 2])].map(|(dtype, shape)| {
        let tensors: [(&str, &str, &[u64]); 2] = [(&w1, "I8", &[32, 32]), (&s1, dtype, shape)];
        ixc_architectures::open(&folder(&format!("codes-{dtype}"), &config, &tensors)).unwrap_err().to_string()
    });
    for said in [bad, dtype] {
        assert!(said.contains("w1.scale") && said.contains("one for each 16 bytes of"), "{said}");
    }
    // A tensor of integers cannot be a weight.
    let at = folder("integers", &config, &[(&o, "I64", &[64, 64])]);
    let said = ixc_architectures::open(&at).unwrap_err().to_string();
    assert!(said.contains("blk.0.attn_output.weight") && said.contains("of type I64"), "{said}");
}

/// Tests that rows of an output matrix are scaled to length 1 if the model does so at run time.
/// This is Baichuan 2, which its vocabulary size identifies.
#[test]
fn baichuan_2_output_rows_are_normalised() {
    let divided = |test: &str, own: Json, rows: u64| {
        let mut config = json!({"hidden_size": 2, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": rows});
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        let model = open(&folder(test, &config, &[("lm_head.weight", "BF16", &[rows, 2])]));
        assert_eq!(model.tensor("output.weight").unwrap().dims(), [2, rows]);
        model.derived_tensors().flat_map(|derived| &derived.pieces).filter(|piece| piece.change == Change::Unit).count()
    };
    assert_eq!(divided("baichuan-1", json!({"model_type": "baichuan"}), 64_000), 0);
    assert_eq!(divided("baichuan-2", json!({"model_type": "baichuan"}), 125_696), 1);
}

/// Tests that MiniMax-01's decays are derived even if no tensor stays unchanged in its file. No
/// tensor is aligned here, so all are derived.
#[test]
fn decays_are_computed_without_any_unchanged_tensor() {
    let config = json!({"model_type": "minimax", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1,
        "layer_types": ["linear_attention", "full_attention"]});
    let tensors = [
        ("model.layers.0.self_attn.slope_rate", "F32", &[1u64, 1, 1][..]),
        ("model.layers.0.self_attn.norm.weight", "BF16", &[32]),
        ("model.norm.weight", "BF16", &[32]),
    ];
    let model = open(&folder("numbers-unaligned", &config, &tensors));
    assert!(model.own_tensors().all(|tensor| tensor.file() >= model.files().len()));
    let bytes = model.tensor_data(model.tensor("blk.0.lightning.decays").unwrap()).into_owned();
    let decays: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let slope = |head: f64| 2f64.powf(-8.0 * (head + 1.0) / 2.0) * (1.0 + 1e-5);
    assert_eq!(decays, [-slope(0.0) as f32, -slope(1.0) as f32]);
}

/// Tests that a stored output matrix is used even if the configuration ties it to the embedding
/// table. They may differ; transformers and converters use the stored matrix.
#[test]
fn stored_output_matrix_overrides_tied_embeddings() {
    let head = |test: &str, config: Json| {
        let tensors = [("model.embeddings.weight", "BF16", &[8u64, 32][..]), ("lm_head.weight", "BF16", &[8, 32])];
        let mut tensors = tensors;
        if config["model_type"] == "llama" {
            tensors[0].0 = "model.embed_tokens.weight";
        }
        open(&folder(&format!("head-{test}"), &config, &tensors)).tensor("output.weight").is_some()
    };
    let nemotron = json!({"model_type": "nemotron_h", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "hybrid_override_pattern": "M*", "mamba_num_heads": 4,
        "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1, "tie_word_embeddings": true});
    assert!(head("nemotron", nemotron));
    let llama = json!({"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "tie_word_embeddings": true});
    assert!(head("llama", llama));
}

/// Tests Ling 1: the weight of the norm before the output matrix includes the division of the
/// matrix's columns by their length.
#[test]
fn ling_1_output_columns_are_normalised() {
    const HEAD: &str = "lm_head.weight";
    const NORM: &str = "model.norm.weight";
    let config = |own: Json| {
        let mut config = json!({"model_type": "bailing_moe", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 2, "num_shared_experts": 1,
            "num_experts_per_tok": 1, "moe_intermediate_size": 16, "norm_topk_prob": true, "rms_norm_eps": 1e-6, "vocab_size": 70,
            "max_position_embeddings": 64});
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        config
    };
    let tensors = [(NORM, "F32", &[32u64][..]), (HEAD, "F32", &[70, 32])];
    let number =
        |row: u64, column: u64| if column == 7 { 0.0 } else { (row * 7 % 13) as f32 - 5.5 + column as f32 / 8.0 };
    let norm = |column: u64| 0.5 + column as f32 / 16.0;
    let read = |test: &str, own: Json| {
        let at = folder(&format!("unit-{test}"), &config(own), &tensors);
        fill(&at, NORM, &(0..32).flat_map(|column| norm(column).to_le_bytes()).collect::<Vec<u8>>());
        fill(&at, HEAD, &(0..70 * 32).flat_map(|at| number(at / 32, at % 32).to_le_bytes()).collect::<Vec<u8>>());
        ixc_architectures::open(&at).map_err(|error| error.to_string())
    };
    let numbers = |model: &Gguf, tensor: &str| -> Vec<f32> {
        let bytes = model.tensor_data(model.tensor(tensor).unwrap()).into_owned();
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    let plain = read("plain", json!({"norm_head": false})).unwrap();
    assert_eq!(numbers(&plain, "output_norm.weight"), (0..32).map(norm).collect::<Vec<f32>>());
    let unit = read("unit", json!({"norm_head": true})).unwrap();
    let right = |column: u64| {
        let length = (0..70).map(|row| f64::from(number(row, column)).powi(2)).sum::<f64>().sqrt();
        (f64::from(norm(column)) / (length + 1e-7)) as f32
    };
    assert_eq!(numbers(&unit, "output_norm.weight"), (0..32).map(right).collect::<Vec<f32>>());
    assert_eq!(numbers(&unit, "output.weight"), numbers(&plain, "output.weight"));
    let said = read("tied", json!({"norm_head": true, "tie_word_embeddings": true})).unwrap_err();
    assert!(said.contains("key \"tie_word_embeddings\" is true; expected false, since norm_head"), "{said}");
    let without = folder("unit-without", &config(json!({"norm_head": true})), &tensors[..1]);
    let said = ixc_architectures::open(&without).unwrap_err().to_string();
    assert!(said.contains("\"output.weight\" is missing"), "{said}");
}
