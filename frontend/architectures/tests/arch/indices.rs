//! Tests of the keys of indexers, which select positions, runs of positions or compressed entries.

use ixc_ir::graph::{OpKind, Recurrent};
use ixc_model_files::gguf::Array;

use crate::small::as_architecture;

/// Tests the keys of an indexer's sizes, and of the layers that have an indexer.
#[test]
fn keys_of_an_index_are_checked() {
    let sizes = [("head_count", 2u32), ("key_length", 4), ("top_k", 3)];
    let with = |name: &'static str, types: Option<Vec<bool>>| {
        let key = |part: &str| &*format!("{name}.attention.indexer.{part}").leak();
        let model = sizes.iter().fold(as_architecture(name, &[]), |model, (part, value)| model.key(key(part), *value));
        match types {
            Some(types) => model.key(key("types"), Array::Bool(types)),
            None => model,
        }
    };
    let blocks = |block: u32, heads: u32, local: u32| {
        let key = |part: &str| &*format!("attention.indexer.{part}").leak();
        let keys =
            [("block_size", block), ("top_k", 2), ("head_count", heads), ("key_length", 4), ("local_blocks", local)];
        let keys = keys.map(|(part, value)| (key(part), value.into()));
        let experts = [
            ("expert_count", 2u32),
            ("expert_used_count", 1),
            ("expert_feed_forward_length", 4),
            ("context_length", 128),
        ];
        as_architecture("minimax-m3", &[&keys[..], &experts.map(|(key, value)| (key, value.into()))].concat())
    };
    for (model, expected) in [
        (as_architecture("deepseek32", &[]), "key \"deepseek32.attention.indexer.head_count\" is missing"),
        (
            with("deepseek32", None).without("deepseek32.attention.indexer.top_k"),
            "key \"deepseek32.attention.indexer.top_k\" is missing",
        ),
        (
            with("glm-dsa", Some(vec![false, true])),
            "key \"glm-dsa.attention.indexer.types\" is false in the first layer; must be true in this layer",
        ),
        (
            with("glm-dsa", Some(vec![true])),
            "key \"glm-dsa.attention.indexer.types\" is an array of 1; must be an array of 2",
        ),
        // The indexer's keys are valid here, so the next missing key is reported: one of latent
        // attention.
        (with("glm-dsa", Some(vec![true, false, true])), "key \"glm-dsa.attention.kv_lora_rank\" is missing"),
        (
            as_architecture("minimax-m3", &[("attention.indexer.block_size", 4u32.into())]),
            "key \"minimax-m3.attention.indexer.top_k\" is missing",
        ),
        (
            blocks(24, 1, 1),
            "key \"minimax-m3.attention.indexer.block_size\" is 24; must be a power of two from 32 to 4096",
        ),
        (
            blocks(16, 1, 1),
            "key \"minimax-m3.attention.indexer.block_size\" is 16; must be a power of two from 32 to 4096",
        ),
        (blocks(32, 2, 0), "key \"minimax-m3.attention.indexer.local_blocks\" is 0; must be from 1 to 2"),
        (blocks(32, 2, 3), "key \"minimax-m3.attention.indexer.local_blocks\" is 3; must be from 1 to 2"),
        (
            blocks(32, 7, 1),
            "key \"minimax-m3.attention.indexer.head_count\" is 7; must be 2, the number of key heads of layer 0",
        ),
        (
            as_architecture("kimi-linear", &[("kda.head_dim", 4u32.into())]),
            "key \"kimi-linear.ssm.conv_kernel\" is missing",
        ),
    ] {
        let text = model.refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
}

/// Tests keys of GLM-5.3-Flash: the bound of decays, and runs of positions that an indexer selects.
#[test]
fn bounded_decay_and_run_index_keys_are_checked() {
    let with = |keys: &[(&str, ixc_model_files::gguf::Value)]| {
        let own: [(&str, ixc_model_files::gguf::Value); 18] = [
            ("context_length", 4096u32.into()),
            ("attention.head_count", 2u32.into()),
            ("attention.head_count_kv", vec![0u32, 1].into()),
            ("attention.q_lora_rank", 3u32.into()),
            ("attention.kv_lora_rank", 5u32.into()),
            ("attention.key_length", 5u32.into()),
            ("attention.key_length_mla", 4u32.into()),
            ("attention.value_length_mla", 6u32.into()),
            ("rope.dimension_count", 0u32.into()),
            ("ssm.conv_kernel", 4u32.into()),
            ("kda.head_dim", 4u32.into()),
            ("kda.gate_lower_bound", (-5f32).into()),
            ("attention.indexer.head_count", 2u32.into()),
            ("attention.indexer.key_length", 7u32.into()),
            ("attention.indexer.kpool", 4u32.into()),
            ("attention.indexer.top_k", 64u32.into()),
            ("hyper_connection.count", 2u32.into()),
            ("hyper_connection.sinkhorn_iterations", 3u32.into()),
        ];
        let mut model = as_architecture("glm5-next", &[&own[..], keys].concat());
        model.tensors.retain(|(name, ..)| !name.contains("attn"));
        let linear: [(&str, &[u64]); 16] = [
            ("attn_norm.weight", &[8]),
            ("attn_q.weight", &[8, 8]),
            ("attn_k.weight", &[8, 8]),
            ("attn_v.weight", &[8, 8]),
            ("ssm_conv1d_q.weight", &[4, 8]),
            ("ssm_conv1d_k.weight", &[4, 8]),
            ("ssm_conv1d_v.weight", &[4, 8]),
            ("ssm_f_a.weight", &[8, 4]),
            ("ssm_f_b.weight", &[4, 8]),
            ("ssm_g_a.weight", &[8, 4]),
            ("ssm_g_b.weight", &[4, 8]),
            ("ssm_beta.weight", &[8, 2]),
            ("ssm_a", &[2]),
            ("ssm_dt.bias", &[8]),
            ("ssm_norm.weight", &[4]),
            ("attn_output.weight", &[8, 8]),
        ];
        let latent: [(&str, &[u64]); 16] = [
            ("attn_norm.weight", &[8]),
            ("attn_q_a.weight", &[8, 3]),
            ("attn_q_a_norm.weight", &[3]),
            ("attn_q_b.weight", &[3, 8]),
            ("attn_kv_a_mqa.weight", &[8, 5]),
            ("attn_kv_a_norm.weight", &[5]),
            ("attn_k_b.weight", &[4, 5, 2]),
            ("attn_v_b.weight", &[5, 6, 2]),
            ("attn_output.weight", &[12, 8]),
            ("indexer.attn_q_b.weight", &[3, 14]),
            ("indexer.attn_k.weight", &[8, 7]),
            ("indexer.k_norm.weight", &[7]),
            ("indexer.k_norm.bias", &[7]),
            ("indexer.proj.weight", &[8, 2]),
            ("indexer_compressor_gate.weight", &[8, 7]),
            ("indexer_compressor_ape.weight", &[7, 4]),
        ];
        let of_layer = |layer: u32, parts: &[(&str, &[u64])]| -> Vec<(String, Vec<u64>)> {
            parts.iter().map(|(part, dims)| (format!("blk.{layer}.{part}"), dims.to_vec())).collect()
        };
        let streams = (0..2).flat_map(|layer| {
            ["attn", "ffn"].into_iter().flat_map(move |part| {
                [("fn", vec![16, 8]), ("base", vec![8]), ("scale", vec![3])]
                    .map(|(name, dims)| (format!("blk.{layer}.hc_{part}_{name}.weight"), dims))
            })
        });
        let all = of_layer(0, &linear).into_iter().chain(of_layer(1, &latent)).chain(streams);
        all.fold(model, |model, (name, dims)| model.tensor(&name, 0, &dims))
    };
    let model = with(&[]).build().unwrap();
    assert!(!model.hyper.has_rope);
    let ops = &model.module.functions[0].ops;
    assert!(ops.iter().any(|op| op.kind == OpKind::Recurrent(Recurrent::DeltaNet) && op.attr("bound").float() == -5.0));
    assert!(!ops.iter().any(|op| op.kind == OpKind::Rope));
    let index = ops.iter().find(|op| op.kind == OpKind::IndexTopK).unwrap();
    assert_eq!(model.module.functions[0].ty(index.results[0]).dims()[1].fixed(), Some(64 + 3));
    for (keys, expected) in [
        (
            ("kda.gate_lower_bound", 1f32.into()),
            "key \"glm5-next.kda.gate_lower_bound\" is 1; must be 0 or a number below",
        ),
        (("kda.safe_gate", false.into()), "key \"glm5-next.kda.safe_gate\" is false; must be absent or true"),
        (
            ("attention.indexer.kpool_select_tail", false.into()),
            "key \"glm5-next.attention.indexer.kpool_select_tail\" is false; must be absent or true",
        ),
        (
            ("attention.indexer.top_k", 30u32.into()),
            "key \"glm5-next.attention.indexer.top_k\" is 30; must be a multiple of 4, the number of positions that share an index key",
        ),
        (
            ("attention.indexer.kpool", 6u32.into()),
            "key \"glm5-next.attention.indexer.kpool\" is 6; must be a power of two up to 32",
        ),
        (("attention.key_length", 6u32.into()), "key \"glm5-next.attention.key_length\" is 6; must be from 5 to 5"),
    ] {
        let keys: (&str, ixc_model_files::gguf::Value) = keys;
        let text = with(&[keys]).refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
}

/// Tests keys of compressed entries (DeepSeek-V4). In the first of two layers, an indexer selects
/// entries, and a table lists the experts.
#[test]
fn keys_of_compressed_entries_are_checked() {
    let whole = |changes: &[(&str, ixc_model_files::gguf::Value)]| {
        let keys: [(&str, ixc_model_files::gguf::Value); 21] = [
            ("context_length", 4096u32.into()),
            ("attention.head_count", 2u32.into()),
            ("attention.head_count_kv", 1u32.into()),
            ("attention.key_length", 4u32.into()),
            ("attention.value_length", 4u32.into()),
            ("attention.indexer.head_count", 3u32.into()),
            ("attention.indexer.key_length", 6u32.into()),
            ("attention.sliding_window", 16u32.into()),
            ("attention.q_lora_rank", 3u32.into()),
            ("attention.output_group_count", 2u32.into()),
            ("attention.output_lora_rank", 5u32.into()),
            ("attention.compress_ratios", vec![4u32, 16, 0].into()),
            ("attention.indexer.top_k", 8u32.into()),
            ("rope.dimension_count", 2u32.into()),
            ("expert_count", 2u32.into()),
            ("expert_used_count", 1u32.into()),
            ("expert_feed_forward_length", 6u32.into()),
            ("hash_layer_count", 1u32.into()),
            ("hyper_connection.count", 4u32.into()),
            ("hyper_connection.sinkhorn_iterations", 3u32.into()),
            ("swiglu_clamp_exp", Array::F32(vec![10.0; 3]).into()),
        ];
        let all: Vec<_> = keys.into_iter().chain(changes.iter().cloned()).collect();
        let mut model = as_architecture("deepseek4", &all);
        model.tensors.retain(|(name, ..)| !name.starts_with("blk."));
        for layer in 0..2u64 {
            let (ratio, series) = if layer == 0 { (4, 2) } else { (16, 1) };
            let parts: [(&str, &[u64]); 27] = [
                ("attn_norm", &[8]),
                ("attn_sinks", &[2]),
                ("attn_q_a", &[8, 3]),
                ("attn_q_a_norm", &[3]),
                ("attn_q_b", &[3, 8]),
                ("attn_kv", &[8, 4]),
                ("attn_kv_a_norm", &[4]),
                ("attn_output_a", &[4, 10]),
                ("attn_output_b", &[10, 8]),
                ("attn_compressor_kv", &[8, 4 * series]),
                ("attn_compressor_gate", &[8, 4 * series]),
                ("attn_compressor_ape", &[4 * series, ratio]),
                ("attn_compressor_norm", &[4]),
                ("hc_attn_fn", &[32, 24]),
                ("hc_attn_base", &[24]),
                ("hc_attn_scale", &[3]),
                ("hc_ffn_fn", &[32, 24]),
                ("hc_ffn_base", &[24]),
                ("hc_ffn_scale", &[3]),
                ("ffn_norm", &[8]),
                ("ffn_gate_inp", &[8, 2]),
                ("ffn_gate_exps", &[8, 6, 2]),
                ("ffn_up_exps", &[8, 6, 2]),
                ("ffn_down_exps", &[6, 8, 2]),
                ("output_hc_fn", &[32, 4]),
                ("output_hc_base", &[4]),
                ("output_hc_scale", &[1]),
            ];
            for (part, dims) in parts {
                let name = match part.starts_with("output") {
                    true => format!("{part}.weight"),
                    false => format!("blk.{layer}.{part}.weight"),
                };
                model = model.tensor(&name, 0, dims);
            }
        }
        model.tensor("blk.0.ffn_gate_tid2eid.weight", 26, &[1, 5]).tensor("blk.1.exp_probs_b.bias", 0, &[2])
    };
    // If the context has more entries than the indexer selects, the layer with overlapping entries
    // has the indexer.
    let indexed = |changes: &[(&str, ixc_model_files::gguf::Value)]| {
        let parts: [(&str, &[u64]); 6] = [
            ("indexer.proj", &[8, 3]),
            ("indexer.attn_q_b", &[3, 18]),
            ("indexer_compressor_kv", &[8, 12]),
            ("indexer_compressor_gate", &[8, 12]),
            ("indexer_compressor_ape", &[12, 4]),
            ("indexer_compressor_norm", &[6]),
        ];
        let model = whole(changes);
        parts.iter().fold(model, |model, (part, dims)| model.tensor(&format!("blk.0.{part}.weight"), 0, dims))
    };
    let count = |model: &ixc_architectures::Model, kind: OpKind| {
        model.module.functions[0].ops.iter().filter(|op| op.kind == kind).count()
    };
    let counts = [OpKind::AttentionEntries, OpKind::IndexTopK, OpKind::RouteListed, OpKind::Route];
    let states = |model: &ixc_architectures::Model| -> Vec<_> {
        model.module.states.iter().map(|state| (state.window, state.every)).collect()
    };
    let model = indexed(&[]).build().unwrap();
    assert_eq!((model.hyper.context_length, counts.map(|kind| count(&model, kind))), (4096, [2, 1, 1, 1]));
    let of_index = [(None, 1), (None, 4)];
    let [first, second] = [[(Some(16), 1), (None, 1), (None, 4)], [(Some(16), 1), (None, 1), (None, 16)]];
    assert_eq!(states(&model), [&first[..], &of_index, &second].concat());
    let index = model.module.functions[0].ops.iter().find(|op| op.kind == OpKind::IndexTopK).unwrap();
    assert_eq!((index.attr("top_k").int(), index.attr("entries").bool()), (8, true));
    // The context has only eight entries here, which is what the indexer would select. It is left
    // out, and attention goes over all entries.
    let model = indexed(&[("context_length", 32u32.into())]).build().unwrap();
    assert_eq!(counts.map(|kind| count(&model, kind)), [2, 0, 1, 1]);
    assert_eq!(states(&model), [first, second].concat());
    // Layers without overlapping entries have no indexer.
    let plain = whole(&[("attention.compress_ratios", vec![16u32, 16].into())]);
    let plain = ["kv", "gate"]
        .iter()
        .fold(plain, |model, part| model.tensor(&format!("blk.0.attn_compressor_{part}.weight"), 0, &[8, 4]));
    let plain = plain.tensor("blk.0.attn_compressor_ape.weight", 0, &[4, 16]).build().unwrap();
    assert_eq!((plain.hyper.context_length, count(&plain, OpKind::IndexTopK)), (4096, 0));

    // The keys of a layer with a window may be too short for the number of rotated elements.
    let short = [
        ("attention.sliding_window_pattern", Array::Bool(vec![true, false]).into()),
        ("attention.key_length_swa", 2u32.into()),
        ("rope.dimension_count", 4u32.into()),
        ("rope.dimension_count_swa", 2u32.into()),
    ];
    let short = [("attn_q_b", &[3, 4][..]), ("attn_kv", &[8, 2]), ("attn_kv_a_norm", &[2])]
        .iter()
        .fold(whole(&short), |model, (part, dims)| model.tensor(&format!("blk.0.{part}.weight"), 0, dims));
    let cases = [
        (short, "key \"deepseek4.rope.dimension_count\" is 4; must be at most 2, the length of a key"),
        (
            whole(&[("attention.compress_ratios", vec![4u32].into())]),
            "key \"deepseek4.attention.compress_ratios\" is an array of 1; must be an array of 2 or more",
        ),
        (
            whole(&[]).without("deepseek4.attention.compress_ratios"),
            "key \"deepseek4.attention.compress_ratios\" is missing",
        ),
        (
            whole(&[]).without("deepseek4.attention.indexer.top_k"),
            "key \"deepseek4.attention.indexer.top_k\" is missing",
        ),
        (whole(&[]).without("deepseek4.hyper_connection.count"), "key \"deepseek4.hyper_connection.count\" is missing"),
        (
            whole(&[("swiglu_clamp_exp", Array::F32(vec![1.0, f32::NAN]).into())]),
            "key \"deepseek4.swiglu_clamp_exp\" is NaN; must be 0 or positive numbers",
        ),
        (
            indexed(&[]).tensor("blk.0.ffn_gate_tid2eid.weight", 0, &[1, 5]),
            "tensor \"blk.0.ffn_gate_tid2eid.weight\" has type F32; a table of the experts of each token must be I32",
        ),
        (
            indexed(&[]).tensor("blk.0.attn_output_a.weight", 0, &[4, 9]),
            "tensor \"blk.0.attn_output_a.weight\" has dimensions [4, 9]; must be [4, 10]",
        ),
        (
            indexed(&[]).tensor("blk.1.indexer.proj.weight", 0, &[8, 3]),
            "tensor \"blk.1.indexer.proj.weight\" is not used by",
        ),
        (
            indexed(&[]).without("deepseek4.attention.indexer.head_count"),
            "key \"deepseek4.attention.indexer.head_count\" is missing",
        ),
        (
            indexed(&[("attention.indexer.key_length", 1u32.into())]),
            "key \"deepseek4.attention.indexer.key_length\" is 1; must be from 2 to",
        ),
        (
            indexed(&[("rope.dimension_count", 4u32.into()), ("attention.indexer.key_length", 2u32.into())]).tensor(
                "blk.0.indexer.attn_q_b.weight",
                0,
                &[3, 6],
            ),
            "key \"deepseek4.rope.dimension_count\" is 4; must be at most 2, the length of a key",
        ),
        (whole(&[]), "tensor \"blk.0.indexer.attn_q_b.weight\" is missing"),
        (
            indexed(&[]).tensor("blk.0.indexer_compressor_kv.weight", 0, &[8, 6]),
            "tensor \"blk.0.indexer_compressor_kv.weight\" has dimensions [8, 6]; must be [8, 12]",
        ),
    ];
    for (model, expected) in cases {
        let text = model.refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
}
