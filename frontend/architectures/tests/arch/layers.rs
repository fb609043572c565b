//! Tests of recurrent layers, layers that share keys and values, and draft layers.

use ixc_architectures::{Nextn, Parts};
use ixc_model_files::gguf::Array;

use crate::small::{Small, as_architecture, small};

/// Tests the keys of recurrent states: their sizes, and the layers that have them.
#[test]
fn keys_of_recurrent_layers_are_checked() {
    let with = |changes: &[(&'static str, u32)]| {
        let sizes =
            [("conv_kernel", 4), ("state_size", 8), ("time_step_rank", 4), ("group_count", 2), ("inner_size", 32)];
        let model = small().keys.into_iter().fold(small(), |model, (name, value)| match name.strip_prefix("llama.") {
            Some(part) => model.key(format!("qwen35.{part}").leak(), value),
            None => model,
        });
        let model = model.key("general.architecture", "qwen35");
        sizes
            .iter()
            .chain(changes)
            .fold(model, |model, (name, value)| model.key(format!("qwen35.ssm.{name}").leak(), *value))
    };
    let interval = |model: Small, interval: u32| model.key("qwen35.full_attention_interval", interval);
    let cases = [
        (with(&[("conv_kernel", 9)]), "key \"qwen35.ssm.conv_kernel\" is 9; must be from 2 to 8"),
        (
            with(&[("group_count", 3)]),
            "key \"qwen35.ssm.group_count\" is 3; must be a divisor of ssm.time_step_rank, 4",
        ),
        (
            with(&[("inner_size", 30)]),
            "key \"qwen35.ssm.inner_size\" is 30; must be a multiple of ssm.time_step_rank, 4",
        ),
        (with(&[]).without("qwen35.ssm.time_step_rank"), "key \"qwen35.ssm.time_step_rank\" is missing"),
        (with(&[]).key("qwen35.ssm.beta_scale", 2f32), "key \"qwen35.ssm.beta_scale\" is 2; must be absent"),
        (
            as_architecture(
                "olmo-hybrid",
                &[
                    ("ssm.conv_kernel", 4u32.into()),
                    ("ssm.state_size", 8u32.into()),
                    ("ssm.time_step_rank", 4u32.into()),
                    ("ssm.group_count", 2u32.into()),
                    ("ssm.inner_size", 32u32.into()),
                    ("ssm.beta_scale", 3f32.into()),
                ],
            ),
            "key \"olmo-hybrid.ssm.beta_scale\" is 3; must be above 0 and at most 2",
        ),
        (
            with(&[]).key("qwen35.attention.recurrent_layers", Array::Bool(vec![true])),
            "key \"qwen35.attention.recurrent_layers\" is an array of 1; must be an array of 2",
        ),
        (
            with(&[]).key("qwen35.attention.recurrent_layers", Array::U32(vec![1, 0])),
            "key \"qwen35.attention.recurrent_layers\" is array of u32; expected array of bool",
        ),
        (interval(with(&[]), 0), "key \"qwen35.full_attention_interval\" is 0; must be from 1 to 65536"),
        // Layer 0 must have a recurrent state here, and layer 1 attention.
        (interval(with(&[]), 2), "tensor \"blk.0.attn_qkv.weight\" is missing"),
        // All layers must have attention here, and `attn_q` has gate rows after the query rows.
        (interval(with(&[]), 1), "tensor \"blk.0.attn_q.weight\" has dimensions [8, 8]; must be [8, 16]"),
        (with(&[]).tensor("blk.1.ssm_conv1d.weight", 0, &[4, 64]), "tensor \"blk.0.attn_q.weight\" has dimensions"),
        (with(&[]).tensor("blk.0.ssm_conv1d.weight", 0, &[4, 64]), "tensor \"blk.0.attn_qkv.weight\" is missing"),
        (interval(with(&[]).without("qwen35.ssm.state_size"), 2), "tensor \"blk.0.attn_q.weight\" has dimensions"),
    ];
    for (model, expected) in cases {
        let text = model.refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
}

/// Tests keys of special layers: AltUp's streams, sparse gates, xIELU's parameters, layers without
/// RoPE, and Mamba's states.
#[test]
fn layer_specific_keys_are_checked() {
    let windowed = [("attention.sliding_window", 4u32.into()), ("attention.scale", 1f32.into())];
    let streams = |changes: &[(&'static str, ixc_model_files::gguf::Value)]| {
        let usual = [("altup.num_inputs", 4u32.into()), ("altup.active_idx", 0u32.into())];
        as_architecture("gemma3n", &[&windowed[..], &usual, changes].concat())
    };
    let parts = |parts: Vec<f32>| ("activation_sparsity_scale", ixc_model_files::gguf::Value::from(parts));
    let xielu = |key: &'static str, numbers: Vec<f32>| {
        let usual = ["xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps"];
        let model =
            usual.into_iter().fold(as_architecture("apertus", &[]), |model, key| model.key(key, vec![0.5f32; 2]));
        model.key(key, numbers)
    };
    let turned = Array::Bool(vec![true]);
    let rows = |key: &'static str, number: u32| {
        let usual = [("conv_kernel", 4u32), ("state_size", 8), ("time_step_rank", 4), ("inner_size", 16)];
        let model =
            as_architecture("mamba", &[("attention.head_count", 0u32.into()), ("feed_forward_length", 0u32.into())]);
        let model = model.without("mamba.attention.head_count_kv");
        let all = usual.into_iter().chain([(key, number)]);
        all.fold(model, |model, (key, number)| model.key(format!("mamba.ssm.{key}").leak(), number))
    };
    let cases = [
        (streams(&[("altup.num_inputs", 1u32.into())]), "key \"gemma3n.altup.num_inputs\" is 1; must be from 2 to 256"),
        (streams(&[("altup.active_idx", 4u32.into())]), "key \"gemma3n.altup.active_idx\" is 4; must be from 0 to 3"),
        (
            streams(&[parts(vec![f32::NAN, 0.0])]),
            "key \"gemma3n.activation_sparsity_scale\" is NaN; must be finite numbers, or -inf where all gates stay",
        ),
        (
            streams(&[parts(vec![0.0])]),
            "key \"gemma3n.activation_sparsity_scale\" is array of f32; must be an array of 2 floats or more, one for each layer",
        ),
        (
            streams(&[parts(vec![1.5, f32::NEG_INFINITY])]),
            "key \"gemma3n.embedding_length_per_layer_input\" is missing",
        ),
        (
            xielu("xielu.beta", vec![0.5]),
            "key \"xielu.beta\" is an array of 1; must be a float or an array of 2 floats",
        ),
        (
            xielu("xielu.eps", vec![0.5, f32::INFINITY]),
            "key \"xielu.eps\" is inf; must be numbers of at most 1000000 in magnitude",
        ),
        (as_architecture("apertus", &[]), "key \"xielu.alpha_n\" is missing"),
        (xielu("xielu.eps", vec![0.0; 2]), "tensor \"blk.0.attn_q_norm.weight\" is missing"),
        (
            small().key("llama.attention.rope_pattern", turned),
            "key \"llama.attention.rope_pattern\" is an array of 1; must be an array of 2 or more, one for each layer",
        ),
        (rows("time_step_rank", 0), "key \"mamba.ssm.time_step_rank\" is 0; must be from 1 to 16777216"),
        (rows("inner_size", 0), "key \"mamba.ssm.inner_size\" is 0; must be from 1 to 16777216"),
        (rows("inner_size", 16), "tensor \"blk.0.ssm_in.weight\" is missing"),
    ];
    for (model, expected) in cases {
        let text = model.refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
}

/// Tests the key that lists, for each layer, the earlier layer whose keys and values it uses.
#[test]
fn layers_may_read_keys_and_values_of_one_before() {
    let with = |sources: Vec<u32>| small().key("llama.attention.kv_source_layers", sources);
    let shares = |sources: Vec<u32>| -> Vec<Option<usize>> {
        with(sources).build().unwrap().hyper.layers.iter().map(|layer| layer.shares).collect()
    };
    assert_eq!((shares(vec![0, 0]), shares(vec![0, 1, 2])), (vec![None, Some(0)], vec![None, None]));
    let turned: ixc_model_files::gguf::Value = Array::Bool(vec![true, false]).into();
    for (model, expected) in [
        (with(vec![1, 1]), "key \"llama.attention.kv_source_layers\" is 1; must be 0 for layer 0, or an earlier layer"),
        (with(vec![0, 7]), "key \"llama.attention.kv_source_layers\" is 7; must be 1 for layer 1, or an earlier layer"),
        (with(vec![0]), "key \"llama.attention.kv_source_layers\" is an array of 1; must be an array of 2 or more"),
        (
            with(vec![0, 0]).key("llama.attention.rope_pattern", turned),
            "key \"llama.attention.kv_source_layers\" is 0; must be 1 for layer 1, or an earlier layer with its own keys",
        ),
    ] {
        let text = model.refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
}

/// Tests that unused key and value tensors are ignored in layers that share another layer's keys
/// and values. Published files of Gemma 4's small models have such tensors. All other unused
/// tensors are refused.
#[test]
fn unused_key_value_tensors_of_sharing_layers_are_ignored() {
    let model = || {
        let keys: [(&str, ixc_model_files::gguf::Value); 4] = [
            ("block_count", 4u32.into()),
            ("attention.sliding_window", 4u32.into()),
            ("attention.sliding_window_pattern", Array::Bool(vec![true, false, true, false]).into()),
            ("attention.shared_kv_layers", 2u32.into()),
        ];
        let parts: [(&str, &[u64]); 12] = [
            ("attn_norm", &[8]),
            ("attn_q", &[8, 8]),
            ("attn_q_norm", &[2]),
            ("attn_k_norm", &[2]),
            ("attn_k", &[8, 4]),
            ("attn_v", &[8, 4]),
            ("attn_output", &[8, 8]),
            ("post_attention_norm", &[8]),
            ("ffn_norm", &[8]),
            ("ffn_gate", &[8, 16]),
            ("ffn_up", &[8, 16]),
            ("post_ffw_norm", &[8]),
        ];
        (0..4).fold(as_architecture("gemma4", &keys), |model, layer| {
            let of_shared = |part: &str| layer >= 2 && ["attn_k", "attn_v", "attn_k_norm"].contains(&part);
            let model = ["attn_k", "attn_v"]
                .iter()
                .fold(model, |model, part| model.without(&format!("blk.{layer}.{part}.weight")));
            let model = model.tensor(&format!("blk.{layer}.ffn_down.weight"), 0, &[16, 8]);
            parts
                .iter()
                .filter(|(part, _)| !of_shared(part))
                .fold(model, |model, (part, dims)| model.tensor(&format!("blk.{layer}.{part}.weight"), 0, dims))
        })
    };
    let lean = model().build().unwrap().module;
    let with = |model: Small, layer: u32| {
        let parts: [(&str, &[u64]); 3] = [("attn_k", &[8, 4]), ("attn_v", &[8, 4]), ("attn_k_norm", &[2])];
        parts.iter().fold(model, |model, (part, dims)| model.tensor(&format!("blk.{layer}.{part}.weight"), 0, dims))
    };
    let full = with(with(model(), 2), 3).build().unwrap().module;
    assert_eq!(full.functions, lean.functions);
    assert_eq!(full.weights.len(), lean.weights.len());
    for (name, dims, expected) in [
        ("blk.3.attn_k.weight", &[8, 8][..], "tensor \"blk.3.attn_k.weight\" has dimensions [8, 8]; must be [8, 4]"),
        ("blk.3.attn_k_2.weight", &[8, 4], "tensor \"blk.3.attn_k_2.weight\" is not used by architecture gemma4"),
        ("blk.3.attn_k.bias", &[4], "tensor \"blk.3.attn_k.bias\" is not used by architecture gemma4"),
    ] {
        let text = model().tensor(name, 0, dims).refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
}

/// Tests that draft layers are the last ones in the layer count. An existing layer without
/// `eh_proj`, the matrix of a draft layer, belongs to the model.
#[test]
fn draft_layers_are_those_with_draft_tensors() {
    let with = |model: Small| model.key("llama.nextn_predict_layers", 1u32);
    let drafts = with(small()).tensor("blk.1.nextn.eh_proj.weight", 0, &[16, 8]);
    let elsewhere = small().tensors.into_iter().filter(|(name, ..)| name.starts_with("blk.1."));
    let elsewhere = elsewhere.fold(with(small()), |model, (name, ..)| model.without(&name));
    for (model, expected) in [(with(small()), (2, 0)), (drafts, (1, 1)), (elsewhere, (1, 1))] {
        let hyper = model.build().unwrap().hyper;
        assert_eq!((hyper.layers.len(), hyper.draft_layers), expected);
    }
    // The list of windows may include the draft layers or not (K-EXAONE).
    let of = |pattern: &[bool]| {
        let keys: [(&str, ixc_model_files::gguf::Value); 3] = [
            ("nextn_predict_layers", 1u32.into()),
            ("attention.sliding_window", 4u32.into()),
            ("attention.sliding_window_pattern", Array::Bool(pattern.to_vec()).into()),
        ];
        as_architecture("cohere2", &keys).tensor("blk.1.nextn.eh_proj.weight", 0, &[16, 8])
    };
    for pattern in [&[true][..], &[true, false], &[true, true]] {
        let windows: Vec<_> = of(pattern).build().unwrap().hyper.layers.iter().map(|layer| layer.window).collect();
        assert_eq!(windows, [Some(4)]);
    }
    let text = of(&[]).refused();
    let expected = "key \"cohere2.attention.sliding_window_pattern\" is an array of 0; must be an array of 1 or more";
    assert!(text.starts_with(expected), "{text}");
}

/// Tests graphs of models with draft layers: the whole model, and the draft layer alone.
#[test]
fn draft_layers_are_built_separately() {
    let [fed, alone] = [Nextn::Fed, Nextn::Alone].map(|nextn| Parts { nextn, ..Parts::ALL });
    let of = |name: &'static str| {
        let model = as_architecture(name, &[("nextn_predict_layers", 1u32.into())]);
        let model = model.tensor("blk.1.nextn.eh_proj.weight", 0, &[16, 8]);
        ["enorm", "hnorm"]
            .iter()
            .fold(model, |model, norm| model.tensor(&format!("blk.1.nextn.{norm}.weight"), 0, &[8]))
    };
    let glm = || {
        (0..2).fold(of("glm4moe"), |model, layer| {
            let model = model.without(&format!("blk.{layer}.ffn_norm.weight"));
            model.tensor(&format!("blk.{layer}.post_attention_norm.weight"), 0, &[8])
        })
    };
    let types = |model: &ixc_architectures::Model| {
        let step = &model.module.functions[0];
        let of = |values: &[_]| Vec::from_iter(values.iter().map(|value| step.ty(*value).to_string()));
        (of(&step.params), of(&step.results))
    };
    let own = |model: &ixc_architectures::Model| {
        Vec::from_iter(model.module.weights.iter().map(|weight| weight.name.clone()))
    };
    let step = ["i32[T]", "i32[T]", "i32[L]"].map(str::to_owned);
    let results = ["f32[L, 5]", "f32[T, 8]"].map(str::to_owned);
    let model = glm().build_parts(fed).unwrap();
    assert_eq!((types(&model), model.hyper.layers.len()), ((step.to_vec(), results.to_vec()), 1));
    assert!(own(&model).iter().all(|name| !name.starts_with("blk.1.")));
    let layer = glm().build_parts(alone).unwrap();
    let with_hidden = [&step[..], &["f32[T, 8]".to_owned()]].concat();
    assert_eq!(types(&layer), (with_hidden, results.to_vec()));
    assert!(own(&layer).iter().all(|name| !name.starts_with("blk.0.")));
    let has = |model: &ixc_architectures::Model, name: &str| own(model).iter().any(|own| own == name);
    assert!(has(&layer, "token_embd.weight") && has(&layer, "output_norm.weight"), "{:?}", own(&layer));
    // Some files have separate embedding, norm and output tensors for a draft layer.
    let parts = [("embed_tokens", &[8u64, 5][..]), ("shared_head_norm", &[8]), ("shared_head_head", &[8, 5])];
    let whole =
        parts.iter().fold(glm(), |model, (part, dims)| model.tensor(&format!("blk.1.nextn.{part}.weight"), 0, dims));
    let layer = whole.build_parts(alone).unwrap();
    assert!(!has(&layer, "token_embd.weight") && !has(&layer, "output_norm.weight"), "{:?}", own(&layer));
    let named = glm().tensor("blk.1.layer_output_norm.weight", 0, &[8]).build_parts(alone).unwrap();
    assert!(has(&named, "blk.1.layer_output_norm.weight") && !has(&named, "output_norm.weight"));
    // A tensor of the draft layer is missing here, or would change the result although nothing uses
    // it.
    let text = glm().without("blk.1.nextn.hnorm.weight").refused_parts(alone);
    assert!(text.starts_with("tensor \"blk.1.nextn.hnorm.weight\""), "{text}");
    let text = glm().tensor("blk.1.mystery.weight", 0, &[8]).refused_parts(alone);
    assert!(text.starts_with("tensor \"blk.1.mystery.weight\" is not used by"), "{text}");
    let text = glm().tensor("blk.1.nextn.eh_proj.weight", 0, &[8, 8]).refused_parts(alone);
    assert!(text.starts_with("tensor \"blk.1.nextn.eh_proj.weight\" has dimensions"), "{text}");
    for parts in [fed, alone] {
        let text = small().refused_parts(parts);
        assert!(text.starts_with("the model has no draft layers"), "{text}");
        let text = glm().without("blk.1.nextn.eh_proj.weight").refused_parts(parts);
        assert!(text.starts_with("the model has no draft layers"), "{text}");
        let text = of("llama").refused_parts(parts);
        assert!(
            text.starts_with(
                "draft layers (nextn) of llama are not supported; supported are those of deepseek2, deepseek32, "
            ),
            "{text}"
        );
        let keys = [("attention.head_count_kv", Array::I32(vec![0, 2]).into()), ("shortconv.l_cache", 3u32.into())];
        let recurrent =
            keys.into_iter().fold(of("lfm2"), |model, (key, value): (&str, ixc_model_files::gguf::Value)| {
                model.key(format!("lfm2.{key}").leak(), value)
            });
        let text = recurrent.refused_parts(parts);
        assert!(text.starts_with("tokens cannot be drafted: recurrent states"), "{text}");
    }
}
