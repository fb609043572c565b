//! Tests of architectures: files that are refused, and models of the golden files.

#[path = "arch/indices.rs"]
mod indices;
#[path = "arch/layers.rs"]
mod layers;
#[path = "arch/rotations.rs"]
mod rotations;
#[path = "arch/small.rs"]
mod small;
#[path = "arch/streams.rs"]
mod streams;

use std::fs;
use std::path::Path;

use ixc_architectures::ArchError;
use ixc_failure::Class;
use ixc_ir::graph::OpKind;
use ixc_model_files::gguf::{Array, Gguf};
use ixc_testing::shared_data::shared_path;
use small::{Small, as_architecture, small};

#[test]
fn bad_models_are_refused_with_the_key_or_tensor() {
    let Some(dir) = shared_path("bad-gguf") else { return };
    let manifest = fs::read_to_string(dir.join("manifest.tsv")).unwrap();
    for line in manifest.lines().skip(1) {
        let columns: Vec<_> = line.split('\t').collect();
        // None of these files has all tensors of a model, so no graph can be built.
        let Ok(gguf) = Gguf::open(&dir.join(columns[0])) else { continue };
        let error = ixc_architectures::build(&gguf).unwrap_err();
        let text = error.to_string();
        println!("{text}");
        assert_eq!(error.class(), Class::Data);
        assert!(text.contains("key \"") || text.contains("tensor \""), "{text}");
        if columns[2] == "model" && columns[1] == "reject" {
            assert!(text.contains("key \"llama."), "{text}");
        }
    }
}

#[test]
fn a_small_model_builds_and_ties_its_output() {
    let model = small().build().unwrap();
    assert_eq!(model.module.weights.len(), 20);
    let step = &model.module.functions[0];
    let attentions: Vec<_> = step.ops.iter().filter(|op| op.kind == OpKind::Attention).collect();
    assert_eq!(attentions.len(), 2);
    assert_eq!(attentions[1].attr("scale").float(), f64::from(0.5f32.sqrt()));
    assert_eq!(step.results.len(), 1);
    // The number of heads may differ by layer.
    let model = small()
        .key("llama.attention.head_count", vec![4u32, 2])
        .key("llama.attention.head_count_kv", vec![2i32, 1])
        .key("llama.attention.key_length", 2u32)
        .key("llama.attention.value_length", 2u32)
        .tensor("blk.1.attn_q.weight", 0, &[8, 4])
        .tensor("blk.1.attn_k.weight", 0, &[8, 2])
        .tensor("blk.1.attn_v.weight", 0, &[8, 2])
        .tensor("blk.1.attn_output.weight", 0, &[4, 8])
        .build()
        .unwrap();
    assert_eq!((model.hyper.layers[0].heads, model.hyper.layers[1].heads), (4, 2));
    // A bias is used only with a matrix, and each matrix may have one.
    let model = small().tensor("blk.0.attn_output.bias", 0, &[8]).build().unwrap();
    assert_eq!(model.module.functions[0].ops.iter().filter(|op| op.kind == OpKind::AddBias).count(), 1);
}

#[test]
fn architecture_errors_name_value_and_expectation() {
    let cases = [
        (small().key("general.architecture", "mamba\n"), "key \"general.architecture\" is \"mamba\\n\", which is not"),
        (small().without("general.architecture"), "key \"general.architecture\" is missing; expected string"),
        (small().key("llama.block_count", u32::MAX), "key \"llama.block_count\" is 4294967295; must be from 1 to 20"),
        (small().key("llama.block_count", "2"), "key \"llama.block_count\" is string; expected u64"),
        (small().key("llama.block_count", 3u32), "tensor \"blk.2.attn_norm.weight\" is missing"),
        (small().without("llama.context_length"), "key \"llama.context_length\" is missing"),
        (
            small().key("llama.attention.head_count", vec![4u32]),
            "key \"llama.attention.head_count\" is an array of 1; must be a number or an array of 2",
        ),
        (
            small().key("llama.attention.head_count", vec![4i32, -1]),
            "key \"llama.attention.head_count\" is -1; must be not negative",
        ),
        (
            small().key("llama.attention.head_count", Array::F32(vec![4.0, 4.0])),
            "key \"llama.attention.head_count\" is array of f32; must be an array of integers",
        ),
        (
            small().key("llama.attention.head_count_kv", 3u32),
            "key \"llama.attention.head_count_kv\" is 3; must be a divisor of attention.head_count, 4",
        ),
        (
            small().key("llama.rope.dimension_count", 3u32),
            "key \"llama.rope.dimension_count\" is 3; must be from 1 to 2",
        ),
        (small().key("llama.rope.dimension_count", 1u32), "key \"llama.rope.dimension_count\" is 1; must be even"),
        (
            small().key("llama.rope.freq_base", f32::NAN),
            "key \"llama.rope.freq_base\" is NaN; must be a positive number",
        ),
        (small().key("llama.rope.scaling.type", "longer"), "key \"llama.rope.scaling.type\" is \"longer\"; must be"),
        (
            small().key("llama.final_logit_softcapping", 30f32),
            "key \"llama.final_logit_softcapping\" is 30; must be absent",
        ),
        (small().key("llama.vocab_size", 6u32), "key \"llama.vocab_size\" is 6; must be 5, the number of rows of"),
        (
            small().key("tokenizer.ggml.tokens", vec!["a"]),
            "key \"tokenizer.ggml.tokens\" is 1 tokens; must be 5, the number of rows of token_embd.weight",
        ),
        (
            small().key("llama.expert_used_count", 1u32),
            "key \"llama.expert_used_count\" is 1; must be 0, because the model has no experts",
        ),
        (
            small().key("llama.expert_count", 4u32).key("llama.expert_used_count", vec![2u32, 0]),
            "key \"llama.expert_used_count\" is 0; must be from 1 to 4",
        ),
        (
            small().key("llama.expert_count", 4u32).key("llama.expert_used_count", 2u32),
            "tensor \"blk.0.ffn_gate_inp.weight\" is missing",
        ),
        (small().without("blk.1.ffn_up.weight"), "tensor \"blk.1.ffn_up.weight\" is missing"),
        (
            small().tensor("blk.1.ffn_up.weight", 0, &[16, 8]),
            "tensor \"blk.1.ffn_up.weight\" has dimensions [16, 8]; must be [8, 16]",
        ),
        (
            small().tensor("blk.0.attn_q.weight", 28, &[8, 8]),
            "tensor \"blk.0.attn_q.weight\" has type F64, which is not",
        ),
        (
            small().tensor("output_norm.weight", 1, &[8]),
            "tensor \"output_norm.weight\" has type F16; the vectors of a model must be F32",
        ),
        (small().tensor("blk.0.ffn_x.bias", 0, &[8]), "tensor \"blk.0.ffn_x.bias\" is not used by architecture llama"),
        (small().tensor("blk.1.ffn_norm_2.weight", 0, &[8]), "tensor \"blk.1.ffn_norm_2.weight\" is not used by"),
        (
            small()
                .key("llama.expert_count", 4u32)
                .key("llama.expert_used_count", 2u32)
                .key("llama.expert_gating_func", 5u32),
            "key \"llama.expert_gating_func\" is 5; must be 1 (softmax), 2 (sigmoid)",
        ),
        (
            small()
                .key("llama.expert_count", 4u32)
                .key("llama.expert_used_count", 2u32)
                .key("llama.expert_group_count", 3u32),
            "key \"llama.expert_group_count\" is 3; must be a divisor of expert_count, 4",
        ),
        (small().key("llama.residual_scale", 0.5f32), "key \"llama.residual_scale\" is 0.5; must be absent"),
        (small().key("llama.expert_identity_count", 3u32), "key \"llama.expert_identity_count\" is 3; must be absent"),
        (
            as_architecture(
                "longcat-flash",
                &[
                    ("expert_count", 4u32.into()),
                    ("expert_used_count", 2u32.into()),
                    ("expert_identity_count", 2u32.into()),
                    ("expert_group_count", 2u32.into()),
                ],
            ),
            "key \"longcat-flash.expert_group_count\" is 2; must be 1, because 2 identity experts belong to no group",
        ),
        (
            as_architecture("longcat-flash", &[("expert_count", 4u32.into()), ("expert_used_count", 5u32.into())]),
            "key \"longcat-flash.expert_used_count\" is 5; must be from 1 to 4",
        ),
        (as_architecture("longcat-flash", &[]), "key \"longcat-flash.attention.kv_lora_rank\" is missing"),
        (
            small().key("llama.nextn_predict_layers", 2u32),
            "key \"llama.nextn_predict_layers\" is 2; must be from 0 to 1",
        ),
    ];
    for (model, expected) in cases {
        let text = model.refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
}

#[test]
fn golden_models_build_or_are_refused_by_name() {
    let Some(dir) = shared_path("golden/models") else { return };
    let mut built = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let gguf = Gguf::open(&path).unwrap();
        let name: &str = gguf.metadata().read("general.architecture").unwrap();
        match ixc_architectures::build(&gguf) {
            Ok(model) => {
                built += 1;
                // The graph uses all tensors, except those of draft layers.
                let layers = model.hyper.layers.len();
                let drafts = |name: &str| {
                    (0..model.hyper.draft_layers).any(|i| name.starts_with(&format!("blk.{}.", layers as u64 + i)))
                };
                let own = gguf.tensors().filter(|tensor| !drafts(tensor.name())).count();
                assert_eq!(model.module.weights.len(), own, "{}", path.display());
                ixc_ir::graph::verify::verify(&model.module).unwrap();
            }
            Err(error @ ArchError::UnknownArchitecture { .. }) => {
                assert!(ixc_architectures::architectures().all(|row| row.name != name), "{error}");
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("which is not supported; supported types are F32"), "{text}");
            }
        }
    }
    println!("{built} built");
    assert!(built >= 31, "{built}");
}

/// Tests defaults of architectures for missing keys, and keys that switch features of a model.
#[test]
fn architecture_defaults_replace_missing_keys() {
    let gemma = |layers: u32| {
        let keys = [("block_count", layers.into()), ("attention.sliding_window", 4u32.into())];
        let keys =
            [&keys[..], &[("attention.key_length", 8u32.into()), ("attention.value_length", 2u32.into())]].concat();
        let model = as_architecture("gemma3", &keys);
        let parts: [(&str, &[u64]); 13] = [
            ("attn_norm", &[8]),
            ("attn_q", &[8, 32]),
            ("attn_k", &[8, 16]),
            ("attn_v", &[8, 4]),
            ("attn_output", &[8, 8]),
            ("attn_q_norm", &[8]),
            ("attn_k_norm", &[8]),
            ("post_attention_norm", &[8]),
            ("ffn_norm", &[8]),
            ("ffn_gate", &[8, 16]),
            ("ffn_up", &[8, 16]),
            ("ffn_down", &[16, 8]),
            ("post_ffw_norm", &[8]),
        ];
        let all = (0..layers).flat_map(|layer| parts.map(|(part, dims)| (format!("blk.{layer}.{part}.weight"), dims)));
        let model = all.fold(model, |model, (name, dims)| model.tensor(&name, 0, dims)).build().unwrap();
        model.hyper.layers[0].attention_scale
    };
    // Scores are divided by the square root of a key's length. In the model with 62 layers, the
    // divisor is the square root of the stream's width over the number of heads.
    assert_eq!((gemma(6), gemma(62)), (1.0 / 8f64.sqrt(), 1.0 / 2f64.sqrt()));
    for (model, expected) in [
        (
            small().key("llama.attention.head_count_kv", 0u32),
            "key \"llama.attention.head_count_kv\" is 0; must be from 1 to",
        ),
        (
            as_architecture("lfm2", &[("attention.head_count_kv", 0u32.into())]),
            "key \"lfm2.shortconv.l_cache\" is missing",
        ),
        (
            as_architecture("granitehybrid", &[("attention.head_count_kv", 0u32.into())]),
            "key \"granitehybrid.ssm.state_size\" is missing",
        ),
        (
            as_architecture("nemotron_h", &[("attention.head_count_kv", 3u32.into())]),
            "key \"nemotron_h.attention.head_count_kv\" is 3; must be a divisor",
        ),
        (
            small().key("llama.attention.causal", false),
            "the model is an encoder (llama), which computes embeddings of texts",
        ),
        (as_architecture("gpt-oss", &[]), "key \"gpt-oss.attention.sliding_window\" is missing"),
        (
            as_architecture(
                "gemma3",
                &[("attention.sliding_window", 4u32.into()), ("attention.key_length_swa", 4u32.into())],
            ),
            // Heads of layers with a window may have other sizes, so tensors must have other
            // shapes.
            "tensor \"blk.0.attn_q.weight\" has dimensions [8, 8]; must be [8, 16]",
        ),
        (
            as_architecture(
                "gemma3",
                &[("attention.sliding_window", 4u32.into()), ("rope.dimension_count_swa", 1u32.into())],
            ),
            "key \"gemma3.rope.dimension_count_swa\" is 1; must be even and at most 2",
        ),
        (
            as_architecture("gemma4", &[("attention.sliding_window", 4u32.into())]),
            "key \"gemma4.attention.sliding_window_pattern\" is missing",
        ),
        (
            small().key("llama.attention.shared_kv_layers", 1u32),
            "key \"llama.attention.shared_kv_layers\" is 1; must be absent or 0",
        ),
        (small().key("llama.swiglu_clamp_shexp", 7.0f32), "key \"llama.swiglu_clamp_shexp\" is 7"),
    ] {
        let text = model.refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
}

/// Tests that `feed_forward_length` of Qwen 1 is the sum for gate and up. Its files may state the
/// epsilon of layer norms, although its norms are RMS norms.
#[test]
fn feed_forward_length_of_qwen_counts_gate_and_up() {
    let qwen = |length: u32| {
        let mut model = as_architecture("qwen", &[("feed_forward_length", length.into())]);
        for layer in 0..2 {
            let attention = |part: &str| format!("blk.{layer}.attn_{part}");
            let (mut width, mut rows) = (0, 0);
            for part in ["q.weight", "k.weight", "v.weight"].map(attention) {
                let (_, _, dims) = model.tensors.iter().find(|(name, ..)| *name == part).unwrap();
                (width, rows) = (dims[0], rows + dims[1]);
                model = model.without(&part);
            }
            model = model.tensor(&attention("qkv.weight"), 0, &[width, rows]);
            model = model.tensor(&attention("qkv.bias"), 0, &[rows]);
        }
        model
    };
    let width = small().build().unwrap().hyper.layers[0].feed_forward;
    let built = qwen(2 * width as u32).build().unwrap();
    assert_eq!(built.hyper.layers[0].feed_forward, width);
    let error = qwen(2 * width as u32 + 1).build().unwrap_err().to_string();
    assert!(error.contains("even, because it counts the rows of gate and up together"), "{error}");
}

/// Tests that ALiBi comes from a key or from the architecture, and that RoPE is then off.
#[test]
fn alibi_slopes_come_from_key_or_architecture() {
    let of = |model: Small| {
        let model = model.build().unwrap();
        let ops = &model.module.functions[0].ops;
        let falls = ops.iter().find(|op| op.kind == OpKind::Attention).map(|op| op.attr("max_bias").float());
        (falls, ops.iter().filter(|op| op.kind == OpKind::Rope).count())
    };
    let known = |name, bias: Option<f32>| {
        let bias = bias.map(|bias| ("attention.max_alibi_bias", bias.into()));
        let eps = ("attention.layer_norm_epsilon", 1e-5f32.into());
        as_architecture(name, &[eps].into_iter().chain(bias).collect::<Vec<_>>())
    };
    assert_eq!(of(small()), (Some(0.0), 4));
    assert_eq!(of(known("refact", None)), (Some(8.0), 0));
    assert_eq!(of(known("refact", Some(6.0))), (Some(6.0), 0));
    assert_eq!(
        of(known("mpt", Some(6.0)).without("blk.0.ffn_gate.weight").without("blk.1.ffn_gate.weight")).0,
        Some(6.0)
    );
    assert_eq!(of(known("jais", None)), (Some(0.0), 0));
    // Only the Baichuan model with 40 layers has ALiBi by default.
    assert_eq!(of(known("baichuan", None)), (Some(0.0), 4));
    assert_eq!(of(known("baichuan", Some(8.0))), (Some(8.0), 0));
    let parts: Vec<_> = small().tensors.into_iter().filter(|(name, ..)| name.starts_with("blk.0.")).collect();
    let layers = (2..40).flat_map(|layer| parts.iter().map(move |part| (layer, part)));
    let deep = layers.fold(known("baichuan", None), |model, (layer, (name, ty, dims))| {
        model.tensor(&name.replace("blk.0.", &format!("blk.{layer}.")), *ty, dims)
    });
    assert_eq!(of(deep.key("baichuan.block_count", 40u32)), (Some(8.0), 0));
    for (model, expected) in [
        (known("llama", Some(8.0)), "key \"llama.attention.max_alibi_bias\" is 8; must be absent or 0"),
        (known("mpt", Some(-8.0)), "key \"mpt.attention.max_alibi_bias\" is -8; must be 0 or a positive number"),
    ] {
        let text = model.refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
}

/// Tests that the error for an unknown architecture is a readable line. It lists some similar names
/// and the number of all architectures.
#[test]
fn unknown_architecture_error_lists_similar_names() {
    let count = ixc_architectures::architectures().count();
    for (name, near) in
        [("qwen9-moe", ", among them qwen"), ("Mistral-Large5", ", among them mistral-large4, mistral3"), ("zzz", "")]
    {
        let text = as_architecture(name, &[]).refused();
        let expected = format!("is \"{name}\", which is not supported; supported are {count} others{near}");
        assert!(text.contains(&expected), "{text}");
        assert!(text.len() < 300, "{text}");
    }
}

/// Tests keys of several models: limits of queries, keys and values, soft limits of routers,
/// repeated layers, groups of experts, and norms without weights.
#[test]
fn keys_of_older_models_are_checked() {
    let experts = |changes: &[(&'static str, ixc_model_files::gguf::Value)]| {
        let usual = [("expert_count", 4u32.into()), ("expert_used_count", 2u32.into())];
        as_architecture("grovemoe", &[&usual, changes].concat())
    };
    let cases = [
        (small().key("llama.attention.clamp_kqv", 8f32), "key \"llama.attention.clamp_kqv\" is 8; must be "),
        (
            small().key("llama.router_logit_softcapping", 30f32),
            "key \"llama.router_logit_softcapping\" is 30; must be ",
        ),
        (small().key("llama.num_loops", 2u32), "key \"llama.num_loops\" is 2; must be "),
        (
            as_architecture("nanbeige", &[("num_loops", 257u32.into())]),
            "key \"nanbeige.num_loops\" is 257; must be from 0 to 256",
        ),
        (
            as_architecture(
                "dbrx",
                &[("attention.clamp_kqv", (-1f32).into()), ("attention.layer_norm_epsilon", 1e-5f32.into())],
            ),
            "key \"dbrx.attention.clamp_kqv\" is -1; must be 0 or a positive number",
        ),
        (as_architecture("grok", &[]), "key \"grok.expert_count\" is missing"),
        (experts(&[]), "key \"grovemoe.experts_per_group\" is missing"),
        (
            experts(&[("experts_per_group", 3u32.into())]),
            "key \"grovemoe.experts_per_group\" is 3; must be a power of two that divides expert_count, 4",
        ),
        (experts(&[("experts_per_group", 2u32.into())]), "key \"grovemoe.expert_group_scale\" is missing"),
        // Architectures without norm weights need none. If a file has one, it is refused.
        (
            as_architecture("olmo", &[("attention.layer_norm_epsilon", 1e-5f32.into())]),
            "tensor \"output_norm.weight\" is not used by architecture olmo",
        ),
        (as_architecture("bitnet", &[]), "tensor \"blk.0.attn_sub_norm.weight\" is missing"),
    ];
    for (model, expected) in cases {
        let text = model.refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
    // Grok's context ends where its attention scores would change, as that is not supported.
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models");
    let model = |name: &str| ixc_architectures::build(&ixc_architectures::open(&golden.join(name)).unwrap()).unwrap();
    let context = |name: &str| model(name).hyper.context_length;
    assert_eq!([context("grok.gguf"), context("grok-2.gguf")], [512, 384]);
    // Each repetition of the layers has its own KV caches.
    let repeated = model("nanbeige.gguf");
    assert_eq!(repeated.module.states.len(), 3 * repeated.hyper.layers.len());
}

/// Returns a small model with a norm before and after each block.
fn between_norms(name: &'static str, keys: &[(&str, ixc_model_files::gguf::Value)]) -> Small {
    let names = (0..2).flat_map(|layer| ["post_attention_norm", "post_ffw_norm"].map(|norm| (layer, norm)));
    names.fold(as_architecture(name, keys), |model, (layer, norm)| {
        model.tensor(&format!("blk.{layer}.{norm}.weight"), 0, &[8])
    })
}

/// Tests the soft limits of Gemma 2. Its first files have no keys for them; in other files, 0 means
/// no limit.
#[test]
fn missing_softcap_keys_default_to_released_values() {
    let caps = |keys: &[(&str, ixc_model_files::gguf::Value)]| {
        let model = between_norms("gemma2", keys).build().unwrap();
        let attention = model.module.functions[0].ops.iter().find(|op| op.kind == OpKind::Attention).unwrap();
        (attention.attr("cap").float(), model.hyper.scales.softcap)
    };
    assert_eq!(caps(&[]), (50.0, 30.0));
    let stated = [("attn_logit_softcapping", 0f32.into()), ("final_logit_softcapping", 7f32.into())];
    assert_eq!(caps(&stated), (0.0, 7.0));
}

/// Tests the key for dividing experts' weights by their sum. The converter of models with latent
/// attention omits keys that are false.
#[test]
fn expert_weight_normalisation_follows_the_file_key() {
    let normalised = |name: &'static str, keys: &[(&str, ixc_model_files::gguf::Value)]| {
        let sizes = [
            ("attention.head_count_kv", 1u32),
            ("attention.q_lora_rank", 3),
            ("attention.kv_lora_rank", 6),
            ("attention.key_length", 8),
            ("attention.value_length", 6),
            ("attention.key_length_mla", 4),
            ("attention.value_length_mla", 2),
            ("attention.indexer.head_count", 2),
            ("attention.indexer.key_length", 4),
            ("attention.indexer.top_k", 5),
            ("rope.dimension_count", 2),
            ("expert_count", 4),
            ("expert_used_count", 2),
            ("expert_feed_forward_length", 6),
        ];
        let sizes = sizes.map(|(key, size)| (key, size.into()));
        let model = (0..2).fold(as_architecture(name, &[&sizes, keys].concat()), |model, layer| {
            let parts: [(&str, &[u64]); 17] = [
                ("attn_q_a", &[8, 3]),
                ("attn_q_a_norm", &[3]),
                ("attn_q_b", &[3, 16]),
                ("attn_kv_a_mqa", &[8, 8]),
                ("attn_kv_a_norm", &[6]),
                ("attn_k_b", &[2, 6, 4]),
                ("attn_v_b", &[6, 2, 4]),
                ("attn_output", &[8, 8]),
                ("indexer.attn_q_b", &[3, 8]),
                ("indexer.attn_k", &[8, 4]),
                ("indexer.k_norm", &[4]),
                ("indexer.proj", &[8, 2]),
                ("ffn_norm", &[8]),
                ("ffn_gate_inp", &[8, 4]),
                ("ffn_gate_exps", &[8, 6, 4]),
                ("ffn_up_exps", &[8, 6, 4]),
                ("ffn_down_exps", &[6, 8, 4]),
            ];
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            let others = ["attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up", "ffn_down"];
            let model = others.iter().fold(model, |model, part| model.without(&name(part)));
            parts.iter().fold(model, |model, (part, dims)| model.tensor(&name(part), 0, dims))
        });
        let module = model.build().unwrap().module;
        let routes = module.functions[0].ops.iter().filter(|op| op.kind == OpKind::Route);
        routes.map(|op| op.attr("normalise").bool()).collect::<Vec<_>>()
    };
    for name in ["deepseek32", "glm-dsa"] {
        assert_eq!(normalised(name, &[]), [false, false]);
        assert_eq!(normalised(name, &[("expert_weights_norm", true.into())]), [true, true]);
    }
}

/// Tests that layer norms use their own epsilon if a file has both epsilons.
#[test]
fn layer_norms_use_their_own_epsilon() {
    let eps = |name: &'static str| {
        let keys =
            [("attention.layer_norm_epsilon", 0.25f32.into()), ("attention.layer_norm_rms_epsilon", 0.5f32.into())];
        as_architecture(name, &keys).build().unwrap().hyper.norm_eps
    };
    assert_eq!((eps("command-r"), eps("llama")), (0.25, 0.5));
}
