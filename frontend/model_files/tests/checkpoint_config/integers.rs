//! Tests of matrices of packed integers, with their configuration and their other tensors.

use serde_json::{Value as Json, json};

use crate::{changed, fill, folder, mimo_2};

/// Tests that unsupported packed integers and inconsistent shapes are refused with the reason.
#[test]
fn unsupported_packed_integers_are_refused() {
    const MATRIX: &str = "model.layers.0.self_attn.q_proj";
    type Tensor<'t> = (&'t str, &'t str, &'t [u64]);
    let refused = |test: &str, said: Json, tensors: &[Tensor<'_>]| {
        let names: Vec<String> = tensors.iter().map(|(end, ..)| format!("{MATRIX}.{end}")).collect();
        let tensors: Vec<Tensor<'_>> =
            names.iter().zip(tensors).map(|(name, &(_, dtype, shape))| (name.as_str(), dtype, shape)).collect();
        let at = mimo_2(&format!("packed-{test}"), &said, &tensors);
        ixc_architectures::open(&at).err().unwrap_or_else(|| panic!("{test}: read")).to_string()
    };
    let compressed = |weights: Json| {
        json!({
            "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": weights}},
        })
    };
    let gptq = |bits: u32, sym: bool| json!({"quant_method": "gptq", "bits": bits, "group_size": 32, "sym": sym});
    for (test, said, says) in [
        ("bits", compressed(json!({"num_bits": 3})), "\"num_bits\" is 3; expected 4 or 8"),
        (
            "zeros",
            compressed(json!({"num_bits": 8, "symmetric": false})),
            "\"symmetric\" is a value that requests zero points for integers of 8 bits",
        ),
        ("floats", compressed(json!({"num_bits": 4, "type": "float"})), "\"type\" is \"float\""),
        (
            "nothing",
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized"}),
            "an object whose group_0 has weights",
        ),
        ("gptq-bits", gptq(3, true), "\"bits\" is 3; expected 4 or 8"),
        ("gptq-zeros", gptq(8, false), "\"sym\" is a value that requests zero points for integers of 8 bits"),
        ("gptq-form", json!({"quant_method": "gptq", "checkpoint_format": "marlin"}), "gptq or gptq_v2"),
        ("awq-version", json!({"quant_method": "awq", "version": "gemv"}), "\"version\" is gemv"),
        ("awq-kernel", json!({"quant_method": "awq", "checkpoint_format": "gemv"}), "\"checkpoint_format\" is gemv"),
        ("awq-format", json!({"quant_method": "awq", "format": "marlin"}), "\"format\" is marlin"),
        ("gptq-format", json!({"quant_method": "gptq", "format": "bitblas"}), "gptq or gptq_v2"),
        ("awq-zeros", json!({"quant_method": "awq", "zero_point": false}), "\"zero_point\" is false"),
        ("round", json!({"quant_method": "auto-round", "packing_format": "auto_round"}), "auto_round:auto_gptq"),
    ] {
        let error = refused(test, said, &[]);
        assert!(error.contains(says), "{test}: {error}");
    }
    let words = |symmetric: bool| compressed(json!({"num_bits": 4, "symmetric": symmetric, "group_size": 32}));
    let awq = || json!({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "GEMM"});
    for (test, said, tensors, says) in [
        (
            "columns",
            words(true),
            &[("weight_packed", "I32", &[128, 3][..]), ("weight_scale", "BF16", &[128, 1][..])][..],
            "whole blocks of 32 columns",
        ),
        (
            "empty",
            words(true),
            &[("weight_packed", "I32", &[128, 0]), ("weight_scale", "BF16", &[128, 1])],
            "whole blocks of 32 columns",
        ),
        (
            "rows",
            words(true),
            &[("weight_packed", "I32", &[128, 4]), ("weight_scale", "BF16", &[64, 1])],
            "scales for groups of columns of each row of",
        ),
        (
            "groups",
            words(true),
            &[("weight_packed", "I32", &[128, 8]), ("weight_scale", "BF16", &[128, 3])],
            "scales for groups of columns of each row of",
        ),
        (
            "none",
            words(true),
            &[("weight_packed", "I32", &[128, 4]), ("weight_scale", "BF16", &[128, 0])],
            "scales for groups of columns of each row of",
        ),
        (
            "kind",
            words(true),
            &[("weight_packed", "I32", &[128, 4]), ("weight_scale", "I32", &[128, 1])],
            "F32, F16 or BF16",
        ),
        ("alone", words(true), &[("weight_packed", "I32", &[128, 4])], "q_proj.weight_scale with its scales"),
        (
            "points",
            words(false),
            &[("weight_packed", "I32", &[128, 4]), ("weight_scale", "BF16", &[128, 1])],
            "q_proj.weight_zero_point",
        ),
        (
            "points-shape",
            words(false),
            &[
                ("weight_packed", "I32", &[128, 4]),
                ("weight_scale", "BF16", &[128, 1]),
                ("weight_zero_point", "I32", &[8, 1]),
            ],
            "zero points of 128 rows and 1 groups",
        ),
        (
            "points-kind",
            words(false),
            &[
                ("weight_packed", "I32", &[128, 4]),
                ("weight_scale", "BF16", &[128, 1]),
                ("weight_zero_point", "I8", &[16, 1]),
            ],
            "zero points of 128 rows and 1 groups",
        ),
        (
            "gptq-shape",
            gptq(4, true),
            &[("qweight", "I32", &[4, 128, 1]), ("scales", "F16", &[1, 128])],
            "a matrix of I32",
        ),
        (
            "gptq-scales",
            gptq(4, true),
            &[("qweight", "I32", &[4, 128]), ("scales", "F16", &[128, 1])],
            "scales for groups of columns of each row of",
        ),
        (
            "gptq-middle",
            gptq(4, true),
            &[("qweight", "I32", &[4, 128]), ("scales", "F16", &[1, 128]), ("qzeros", "I32", &[1, 16])],
            "because the configuration says that quantisation is symmetric",
        ),
        (
            "gptq-order",
            gptq(4, true),
            &[("qweight", "I32", &[8, 128]), ("scales", "F16", &[2, 128]), ("g_idx", "I32", &[63])],
            "64 numbers of I32: the group of each column, below 2",
        ),
        (
            "gptq-order-kind",
            gptq(4, true),
            &[("qweight", "I32", &[8, 128]), ("scales", "F16", &[2, 128]), ("g_idx", "I64", &[64])],
            "[64] of I64",
        ),
        (
            "order-kind",
            words(true),
            &[("weight_packed", "I32", &[128, 8]), ("weight_scale", "BF16", &[128, 2]), ("weight_g_idx", "F32", &[64])],
            "[64] of F32",
        ),
        (
            "largest-kind",
            json!({"quant_method": "bitsandbytes", "load_in_8bit": true}),
            &[("weight", "I8", &[128, 32])],
            "q_proj.SCB with its scales",
        ),
        (
            "awq-shape",
            awq(),
            &[("qweight", "I32", &[33, 16]), ("scales", "F16", &[1, 128]), ("qzeros", "I32", &[1, 16])],
            "whole blocks of 32 columns",
        ),
        (
            "awq-zeros-shape",
            awq(),
            &[("qweight", "I32", &[32, 16]), ("scales", "F16", &[1, 128]), ("qzeros", "I32", &[16, 1])],
            "zero points of 128 rows and 1 groups",
        ),
        // A row of 96 columns has three scales, but its groups would not have the stated size.
        (
            "part",
            compressed(json!({"num_bits": 4, "group_size": 40})),
            &[("weight_packed", "I32", &[128, 12]), ("weight_scale", "BF16", &[128, 3])],
            "scales for 3 groups of 40 columns (group_size); expected groups that divide the 96 columns",
        ),
        (
            "awq-part",
            json!({"quant_method": "awq", "bits": 4, "group_size": 40}),
            &[("qweight", "I32", &[96, 16]), ("scales", "F16", &[3, 128]), ("qzeros", "I32", &[3, 16])],
            "scales for 3 groups of 40 columns (group_size); expected groups that divide the 96 columns",
        ),
    ] {
        let error = refused(test, said, tensors);
        assert!(error.contains(says), "{test}: {error}");
    }
}

/// Tests the stored zero points of symmetric integers. Those in the middle of the range are
/// ignored; others are refused.
#[test]
fn symmetric_zero_points_must_be_the_midpoint() {
    const ZEROS: &str = "model.layers.0.self_attn.q_proj.weight_zero_point";
    let words = ("model.layers.0.self_attn.q_proj.weight_packed", "I32", &[128u64, 4][..]);
    let bytes = ("model.layers.0.self_attn.q_proj.weight", "I8", &[128u64, 32][..]);
    let scale = ("model.layers.0.self_attn.q_proj.weight_scale", "BF16", &[128u64, 1][..]);
    let said = |format: &str, bits: u32| {
        let weights = json!({"num_bits": bits, "symmetric": true});
        json!({"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": {"weights": weights}}})
    };
    for (test, said, weight, zeros, middle) in [
        ("words", said("pack-quantized", 4), words, (ZEROS, "I32", &[16u64, 1][..]), 0x88u8),
        ("alone", said("pack-quantized", 4), words, (ZEROS, "I8", &[128, 1]), 0),
        ("bytes", said("int-quantized", 8), bytes, (ZEROS, "I8", &[128, 1]), 0),
    ] {
        let at = mimo_2(&format!("middle-{test}"), &said, &[weight, scale, zeros]);
        let count = zeros.2.iter().product::<u64>() as usize * if zeros.1 == "I32" { 4 } else { 1 };
        for (byte, right) in [(middle, true), (middle + 1, false)] {
            fill(&at, ZEROS, &vec![byte; count]);
            // Other tensors of the model are missing, so opening may fail. Only the message about
            // zero points is checked.
            let error = ixc_architectures::open(&at).err().map_or_else(String::new, |error| error.to_string());
            assert_eq!(!error.contains("symmetric"), right, "{test}, {byte:#04x}: {error}");
        }
    }
}

/// Tests that a group size above the number of columns means one group for each row.
#[test]
fn a_group_wider_than_its_matrix_is_a_row() {
    let weights = json!({"num_bits": 4, "symmetric": true, "group_size": 128});
    let said = json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": weights}}});
    let tensors = [
        ("model.layers.0.self_attn.q_proj.weight_packed", "I32", &[128u64, 4][..]),
        ("model.layers.0.self_attn.q_proj.weight_scale", "BF16", &[128u64, 1][..]),
    ];
    let error = ixc_architectures::open(&mimo_2("wide-group", &said, &tensors)).err();
    assert!(error.is_none(), "{error:?}");
}

/// Tests groups of columns in a stored order. An invalid group is refused; a matrix with valid
/// groups becomes f16.
#[test]
fn invalid_column_group_order_is_refused() {
    const ORDER: &str = "model.layers.0.self_attn.q_proj.g_idx";
    let said = json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": true});
    let at = mimo_2(
        "order",
        &said,
        &[
            ("model.layers.0.self_attn.q_proj.qweight", "I32", &[8, 128]),
            ("model.layers.0.self_attn.q_proj.scales", "F16", &[2, 128]),
            (ORDER, "I32", &[64]),
        ],
    );
    let kind = |groups: &dyn Fn(i32) -> i32| {
        fill(&at, ORDER, &(0..64).flat_map(|column| groups(column).to_le_bytes()).collect::<Vec<u8>>());
        ixc_architectures::open(&at)
            .map(|model| model.tensor("blk.0.attn_q.weight").unwrap().tensor_type().to_string())
            .map_err(|error| error.to_string())
    };
    assert_eq!(kind(&|column| column / 32).as_deref(), Ok("Q4_0"));
    assert_eq!(kind(&|column| column % 2).as_deref(), Ok("F16"));
    assert!(kind(&|_| 0).unwrap_err().contains("64 columns in group 0; expected 64 numbers of I32"));
    for (bad, says) in [(2, "group 2 for column 63"), (-1, "group -1 for column 63"), (i32::MIN, "group -2147483648")] {
        let said = kind(&|column| if column == 63 { bad } else { column % 2 }).unwrap_err();
        assert!(said.contains(says) && said.contains("below 2"), "{said}");
    }
}

/// Tests eight-bit matrices of bitsandbytes, which have the largest number of each row. The tile
/// order of a GPU is refused.
#[test]
fn bitsandbytes_int8_rows_use_row_scales() {
    const FORMAT: &str = "model.layers.0.self_attn.q_proj.weight_format";
    let weight = ("model.layers.0.self_attn.q_proj.weight", "I8", &[128u64, 32][..]);
    let open = |test: &str, scales: &[u64], kind: &str, format: u8| {
        let said = json!({"quant_method": "bitsandbytes", "load_in_8bit": true, "load_in_4bit": false});
        let tensors = [weight, ("model.layers.0.self_attn.q_proj.SCB", kind, scales), (FORMAT, "U8", &[])];
        let at = mimo_2(&format!("largest-{test}"), &said, &tensors);
        fill(&at, FORMAT, &[format]);
        ixc_architectures::open(&at)
            .map(|model| model.tensor("blk.0.attn_q.weight").unwrap().tensor_type().to_string())
            .map_err(|error| error.to_string())
    };
    assert_eq!(open("right", &[128], "F32", 0).as_deref(), Ok("Q8_0"));
    assert!(open("format", &[128], "F32", 2).unwrap_err().contains("in the order of rows, not of a GPU's tiles"));
    assert!(open("few", &[127], "F32", 0).unwrap_err().contains("scales for groups of columns of each row of"));
    assert!(open("integers", &[128], "I32", 0).unwrap_err().contains("F32, F16 or BF16"));
}

/// Tests that each matrix has the settings of the configuration group whose targets match it.
#[test]
fn matrices_belong_to_groups_by_matching_targets() {
    const Q: &str = "model.layers.0.self_attn.q_proj";
    const K: &str = "model.layers.0.self_attn.k_proj";
    let group = |targets: Json, bits: u32, format: Option<&str>| {
        let weights = json!({"num_bits": bits, "type": "int", "symmetric": true, "group_size": 32});
        let mut group = json!({"targets": targets, "weights": weights});
        if let Some(format) = format {
            group["format"] = format.into();
        }
        group
    };
    let said = |format: &str, first: Json, second: Json| json!({"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": first, "group_1": second}});
    // Queries have four bits, keys eight, so a word has eight or four columns.
    let tensors = [
        (format!("{Q}.weight_packed"), "I32", [128u64, 4]),
        (format!("{Q}.weight_scale"), "BF16", [128, 1]),
        (format!("{K}.weight_packed"), "I32", [64, 8]),
        (format!("{K}.weight_scale"), "BF16", [64, 1]),
        ("model.layers.0.self_attn.v_proj.weight".to_owned(), "F8_E4M3", [32, 32]),
        ("model.layers.0.self_attn.v_proj.weight_scale".to_owned(), "BF16", [32, 1]),
    ];
    let open = |test: &str, said: Json| {
        let tensors: Vec<_> = tensors.iter().map(|(name, dtype, shape)| (name.as_str(), *dtype, &shape[..])).collect();
        let model = ixc_architectures::open(&mimo_2(&format!("groups-{test}"), &said, &tensors));
        let kinds = |model: ixc_model_files::gguf::Gguf| {
            ["q", "k", "v"]
                .map(|part| model.tensor(&format!("blk.0.attn_{part}.weight")).unwrap().tensor_type().to_string())
        };
        model.map(kinds).map_err(|error| error.to_string())
    };
    let right = Ok(["Q4_0", "Q8_0", "BF16"].map(str::to_owned));
    let pattern = || json!([r"re:.*self_attn\.k_proj$"]);
    let linear = || json!(["Linear"]);
    for (test, format) in [("one", "pack-quantized"), ("mixed", "mixed-precision")] {
        assert_eq!(open(test, said(format, group(linear(), 4, None), group(pattern(), 8, None))), right);
    }
    let own = |format| said("mixed-precision", group(json!([K]), 8, Some(format)), group(json!([Q]), 4, None));
    assert_eq!(open("names", own("pack-quantized")), right);
    for (test, said, says) in [
        (
            "no-target",
            said("pack-quantized", group(Json::Null, 4, None), group(pattern(), 8, None)),
            "\"targets\" is missing",
        ),
        ("numbers", said("pack-quantized", group(json!([3]), 4, None), group(pattern(), 8, None)), "an array of texts"),
        (
            "pattern",
            said("pack-quantized", group(json!(["re:(?!k).*"]), 4, None), group(pattern(), 8, None)),
            "without back references and lookaheads",
        ),
        ("other", own("marlin-24"), "compressed-tensors, marlin-24"),
        (
            "none",
            said("pack-quantized", group(json!([K]), 8, None), group(pattern(), 8, None)),
            "targets of config_groups name",
        ),
        ("bits", said("pack-quantized", group(linear(), 3, None), group(pattern(), 8, None)), "\"num_bits\" is 3"),
        // The settings of the two groups are exchanged here, so the number of columns is wrong.
        (
            "turned",
            said("pack-quantized", group(linear(), 8, None), group(pattern(), 4, None)),
            "whole blocks of 32 columns",
        ),
    ] {
        let error = open(test, said).unwrap_err();
        assert!(error.contains(says), "{test}: {error}");
    }
}

/// Tests that all experts of a tensor become f16 if some experts have groups of columns that are
/// not consecutive.
#[test]
fn partly_reordered_experts_all_become_f16() {
    let kind = |test: &str, sorted: &[u32]| {
        let of = "kin/qwen3_moe-packed-order";
        changed(test, of, |_| ()).unwrap();
        let at = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("checkpoint_config").join(test);
        for expert in sorted {
            let groups = (0..64u32).flat_map(|column| (column / 32).to_le_bytes()).collect::<Vec<u8>>();
            fill(&at, &format!("model.layers.0.mlp.experts.{expert}.gate_proj.weight_g_idx"), &groups);
        }
        let model = ixc_architectures::open(&at).unwrap();
        let tensor = model.tensor("blk.0.ffn_gate_exps.weight").unwrap();
        assert!(!model.tensor_data(tensor).is_empty());
        tensor.tensor_type().to_string()
    };
    assert_eq!(kind("experts-order", &[]), "F16");
    assert_eq!(kind("experts-some", &[0, 2]), "F16");
    assert_eq!(kind("experts-sorted", &[0, 1, 2, 3]), "Q4_0");
}

/// Tests that blocks of four-bit floats cannot be transposed, as the keys of latent attention
/// require.
#[test]
fn transposed_fp4_blocks_are_refused() {
    const KV: &str = "model.layers.0.self_attn.kv_b_proj.weight";
    let said = json!({"quant_method": "modelopt", "quant_algo": "NVFP4"});
    let config = json!({"model_type": "deepseek_v3", "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 2, "kv_lora_rank": 64, "q_lora_rank": 64, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "quantization_config": said});
    let scales = [format!("{KV}_scale"), format!("{KV}_scale_2")];
    let tensors = [(KV, "U8", &[64u64, 32][..]), (&scales[0], "F8_E4M3", &[64, 4]), (&scales[1], "F32", &[])];
    let said = ixc_architectures::open(&folder("transposed-codes", &config, &tensors)).unwrap_err().to_string();
    assert!(
        said.contains("kv_b_proj.weight\" is made of blocks of codes")
            && said.contains("\"ignore\" of quantization_config"),
        "{said}"
    );
}
