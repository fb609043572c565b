//! Tests of the keys of several residual streams, of saved streams, and of n-gram embeddings.

use ixc_ir::graph::OpKind;
use ixc_model_files::gguf::Array;

use crate::small::as_architecture;

/// Tests keys of Hy4: separate residual streams, sinks, and an indexer whose RoPE rotates the last
/// elements, or no indexer.
#[test]
fn separate_stream_keys_are_checked() {
    let with = |keys: &[(&str, ixc_model_files::gguf::Value)]| {
        let own: [(&str, ixc_model_files::gguf::Value); 14] = [
            ("attention.head_count", 2u32.into()),
            ("attention.head_count_kv", 1u32.into()),
            ("attention.q_lora_rank", 3u32.into()),
            ("attention.kv_lora_rank", 5u32.into()),
            ("attention.key_length", 7u32.into()),
            ("attention.key_length_mla", 6u32.into()),
            ("attention.value_length_mla", 4u32.into()),
            ("rope.dimension_count", 2u32.into()),
            ("attention.indexer.head_count", 2u32.into()),
            ("attention.indexer.key_length", 7u32.into()),
            ("attention.indexer.top_k", 16u32.into()),
            ("attention.indexer.types", Array::Bool(vec![true, false]).into()),
            ("hyper_connection.count", 2u32.into()),
            ("hyper_connection.magnitude", 1.5f32.into()),
        ];
        let mut model = as_architecture("hy_v4", &[&own[..], keys].concat());
        model.tensors.retain(|(name, ..)| !name.contains("attn"));
        let of_layer: [(&str, &[u64]); 17] = [
            ("attn_norm.weight", &[8]),
            ("attn_q_a.weight", &[8, 3]),
            ("attn_q_a_norm.weight", &[3]),
            ("attn_q_b.weight", &[3, 12]),
            ("attn_kv_a_mqa.weight", &[8, 7]),
            ("attn_kv_a_norm.weight", &[5]),
            ("attn_k_b.weight", &[4, 5, 2]),
            ("attn_v_b.weight", &[5, 4, 2]),
            ("attn_output.weight", &[8, 8]),
            ("attn_gate.weight", &[8, 8]),
            ("attn_sinks.weight", &[2]),
            ("hc_attn_fn.weight", &[16, 4]),
            ("hc_attn_base.weight", &[4]),
            ("hc_attn_scale.weight", &[2]),
            ("hc_ffn_fn.weight", &[16, 4]),
            ("hc_ffn_base.weight", &[4]),
            ("hc_ffn_scale.weight", &[2]),
        ];
        let index: [(&str, &[u64]); 5] = [
            ("blk.0.indexer.attn_q_b.weight", &[3, 14]),
            ("blk.0.indexer.attn_k.weight", &[8, 7]),
            ("blk.0.indexer.k_norm.weight", &[7]),
            ("blk.0.indexer.k_norm.bias", &[7]),
            ("blk.0.indexer.proj.weight", &[8, 2]),
        ];
        let last: [(&str, &[u64]); 4] = [
            ("output.weight", &[8, 5]),
            ("output_hc_fn.weight", &[16, 2]),
            ("output_hc_base.weight", &[2]),
            ("output_hc_scale.weight", &[1]),
        ];
        let all = (0..2).flat_map(|layer| of_layer.map(|(part, dims)| (format!("blk.{layer}.{part}"), dims)));
        let others = index.into_iter().chain(last).map(|(name, dims)| (name.to_owned(), dims));
        all.chain(others).fold(model, |model, (name, dims)| model.tensor(&name, 0, dims))
    };
    let model = with(&[]).build().unwrap();
    let ops = &model.module.functions[0].ops;
    let streams = ops.iter().find(|op| op.kind == OpKind::StreamWeights).unwrap();
    assert_eq!((streams.attr("iterations").int(), streams.attr("magnitude").float()), (0, 1.5));
    // The second layer uses the positions that the first layer's indexer selected.
    let count = |kind: OpKind| ops.iter().filter(|op| op.kind == kind).count();
    assert_eq!((count(OpKind::IndexTopK), count(OpKind::Attention)), (1, 2));
    // Without an indexer, attention is over all positions.
    let mut dense = with(&[]).without("hy_v4.attention.indexer.head_count");
    dense.tensors.retain(|(name, ..)| !name.contains("indexer"));
    let ops = dense.build().unwrap().module.functions[0].ops.clone();
    assert!(!ops.iter().any(|op| op.kind == OpKind::IndexTopK));
    let cases: [((&str, ixc_model_files::gguf::Value), &str); 4] = [
        (
            ("hyper_connection.magnitude", 0f32.into()),
            "key \"hy_v4.hyper_connection.magnitude\" is 0; must be a positive number",
        ),
        (
            ("hyper_connection.magnitude", f32::NAN.into()),
            "key \"hy_v4.hyper_connection.magnitude\" is NaN; must be a positive number",
        ),
        (
            ("attention.indexer.key_length", 2u32.into()),
            "tensor \"blk.0.indexer.attn_q_b.weight\" has dimensions [3, 14]; must be [3, 4]",
        ),
        (
            ("attention.indexer.types", Array::Bool(vec![false, true]).into()),
            "key \"hy_v4.attention.indexer.types\" is false in the first layer; must be true in this layer",
        ),
    ];
    for (key, expected) in cases {
        let text = with(&[key]).refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
    let short =
        with(&[("attention.indexer.key_length", 2u32.into())]).tensor("blk.0.indexer.attn_q_b.weight", 0, &[3, 4]);
    assert_eq!(
        short.refused(),
        "key \"hy_v4.attention.indexer.key_length\" is 2; must be more than 2, the rotated elements"
    );
    // Without the key of the magnitude, streams are mixed, which needs other keys.
    let text = with(&[]).without("hy_v4.hyper_connection.magnitude").refused();
    assert_eq!(text, "key \"hy_v4.hyper_connection.sinkhorn_iterations\" is missing; expected u32");
}

/// Tests keys of Kimi K3: saved streams, gates with soft limits, and experts that take narrower
/// rows.
#[test]
fn saved_stream_keys_are_checked() {
    let with = |keys: &[(&str, ixc_model_files::gguf::Value)]| {
        let own: [(&str, ixc_model_files::gguf::Value); 18] = [
            ("attention.head_count", 2u32.into()),
            ("attention.head_count_kv", vec![0u32, 1].into()),
            ("attention.kv_lora_rank", 5u32.into()),
            ("attention.key_length", 7u32.into()),
            ("attention.key_length_mla", 6u32.into()),
            ("attention.value_length_mla", 4u32.into()),
            ("rope.dimension_count", 2u32.into()),
            ("ssm.conv_kernel", 4u32.into()),
            ("kda.head_dim", 4u32.into()),
            ("kda.gate_lower_bound", (-5f32).into()),
            ("expert_count", 4u32.into()),
            ("expert_used_count", 2u32.into()),
            ("expert_feed_forward_length", 6u32.into()),
            ("expert_latent_length", 3u32.into()),
            ("leading_dense_block_count", 1u32.into()),
            ("activation.situ_beta", 4f32.into()),
            ("activation.situ_linear_beta", 25f32.into()),
            ("attn_res.block_size", 1u32.into()),
        ];
        let mut model = as_architecture("kimi-k3", &[&own[..], keys].concat());
        model.tensors.retain(|(name, ..)| !name.contains("attn") && !name.contains("blk.1.ffn"));
        let own: [(&str, &[u64]); 40] = [
            ("output.weight", &[8, 5]),
            ("output_res_score.weight", &[8]),
            ("blk.0.attn_norm.weight", &[8]),
            ("blk.0.attn_res_score.weight", &[8]),
            ("blk.0.ffn_res_score.weight", &[8]),
            ("blk.0.attn_q.weight", &[8, 8]),
            ("blk.0.attn_k.weight", &[8, 8]),
            ("blk.0.attn_v.weight", &[8, 8]),
            ("blk.0.ssm_conv1d_q.weight", &[4, 1, 8]),
            ("blk.0.ssm_conv1d_k.weight", &[4, 1, 8]),
            ("blk.0.ssm_conv1d_v.weight", &[4, 1, 8]),
            ("blk.0.ssm_f_a.weight", &[8, 4]),
            ("blk.0.ssm_f_b.weight", &[4, 8]),
            ("blk.0.ssm_g.weight", &[8, 8]),
            ("blk.0.ssm_beta.weight", &[8, 2]),
            ("blk.0.ssm_a", &[2]),
            ("blk.0.ssm_dt.bias", &[8]),
            ("blk.0.ssm_norm.weight", &[4]),
            ("blk.0.attn_output.weight", &[8, 8]),
            ("blk.1.attn_norm.weight", &[8]),
            ("blk.1.attn_res_score.weight", &[8]),
            ("blk.1.ffn_res_score.weight", &[8]),
            ("blk.1.attn_q.weight", &[8, 12]),
            ("blk.1.attn_kv_a_mqa.weight", &[8, 7]),
            ("blk.1.attn_kv_a_norm.weight", &[5]),
            ("blk.1.attn_k_b.weight", &[4, 5, 2]),
            ("blk.1.attn_v_b.weight", &[5, 4, 2]),
            ("blk.1.attn_gate.weight", &[8, 8]),
            ("blk.1.attn_output.weight", &[8, 8]),
            ("blk.1.ffn_norm.weight", &[8]),
            ("blk.1.ffn_gate_inp.weight", &[8, 4]),
            ("blk.1.exp_probs_b.bias", &[4]),
            ("blk.1.ffn_gate_exps.weight", &[3, 6, 4]),
            ("blk.1.ffn_up_exps.weight", &[3, 6, 4]),
            ("blk.1.ffn_down_exps.weight", &[6, 3, 4]),
            ("blk.1.ffn_routed_down.weight", &[8, 3]),
            ("blk.1.ffn_routed_norm.weight", &[3]),
            ("blk.1.ffn_routed_up.weight", &[3, 8]),
            ("blk.0.ffn_norm.weight", &[8]),
            ("output_norm.weight", &[8]),
        ];
        own.into_iter().fold(model, |model, (name, dims)| model.tensor(name, 0, dims))
    };
    let model = with(&[]).build().unwrap();
    let ops = &model.module.functions[0].ops;
    // The first block has no saved streams. The other three blocks of the two layers and the logits
    // attend over saved streams.
    let attends: Vec<u64> = ops
        .iter()
        .filter(|op| op.kind == OpKind::StreamAttend)
        .map(|op| model.module.functions[0].ty(op.operand("x").value().unwrap()).dims()[1].fixed().unwrap())
        .collect();
    assert_eq!(attends, [1, 1, 2, 2]);
    let gates: Vec<_> = ops.iter().filter(|op| op.kind == OpKind::Gated).collect();
    assert_eq!(gates.len(), 2);
    for gate in gates {
        let attrs = ["bend", "limit", "shift"].map(|attr| gate.attr(attr).float());
        assert_eq!((gate.attr("act").word(), attrs), ("bent_silu", [4.0, 25.0, 0.0]));
    }
    let cases: [((&str, ixc_model_files::gguf::Value), &str); 4] = [
        (
            ("activation.situ_beta", 0f32.into()),
            "key \"kimi-k3.activation.situ_beta\" is 0; must be from 0.001 to 1000000",
        ),
        (
            ("activation.situ_linear_beta", (-1f32).into()),
            "key \"kimi-k3.activation.situ_linear_beta\" is -1; must be 0, or from 0.001 to 1000000",
        ),
        (("attn_res.block_size", 0u32.into()), "key \"kimi-k3.attn_res.block_size\" is 0; must be from 1 to 65536"),
        (
            ("expert_latent_length", 4u32.into()),
            "tensor \"blk.1.ffn_routed_down.weight\" has dimensions [8, 3]; must be [8, 4]",
        ),
    ];
    for (key, expected) in cases {
        let text = with(&[key]).refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
}

/// Tests keys of n-gram embeddings (Qwen3.8-Flash-Next). The table has 7 and 5 rows of 3 elements
/// for the two hashes.
#[test]
fn ngram_embedding_keys_are_checked() {
    let with = |keys: &[(&str, ixc_model_files::gguf::Value)]| {
        let own: [(&str, ixc_model_files::gguf::Value); 18] = [
            ("context_length", 4096u32.into()),
            ("full_attention_interval", 8u32.into()),
            ("ssm.conv_kernel", 4u32.into()),
            ("ssm.state_size", 4u32.into()),
            ("ssm.group_count", 1u32.into()),
            ("ssm.time_step_rank", 2u32.into()),
            ("ssm.inner_size", 8u32.into()),
            ("hyper_connection.count", 2u32.into()),
            ("hyper_connection.low_rank", 3u32.into()),
            ("attention.indexer.top_k", 64u32.into()),
            ("ple.layers", vec![1u32].into()),
            ("ple.ngram_size", 2u32.into()),
            ("ple.heads_per_ngram", 2u32.into()),
            ("ple.conv_kernel", 4u32.into()),
            ("ple.eos_token_id", 1u32.into()),
            ("ple.layer_multipliers", Array::U64(vec![3, 1 << 40]).into()),
            ("ple.head_offsets", Array::U64(vec![0, 7]).into()),
            ("ple.head_vocab_sizes", Array::U64(vec![7, 5]).into()),
        ];
        let own = own.into_iter().chain([("embedding_length_per_layer_input", 3u32.into())]);
        let mut model = as_architecture("qwen4exp", &own.chain(keys.iter().cloned()).collect::<Vec<_>>());
        model.tensors.retain(|(name, ..)| !name.contains("norm") && !name.contains("attn"));
        let of_layer: [(&str, &[u64]); 17] = [
            ("attn_qkv.weight", &[8, 16]),
            ("attn_gate.weight", &[8, 8]),
            ("ssm_alpha.weight", &[8, 2]),
            ("ssm_beta.weight", &[8, 2]),
            ("ssm_conv1d.weight", &[4, 16]),
            ("ssm_a", &[2]),
            ("ssm_dt.bias", &[2]),
            ("ssm_norm.weight", &[4]),
            ("ssm_out.weight", &[8, 8]),
            ("hc_attn_norm.weight", &[16]),
            ("hc_attn_down.weight", &[16, 3]),
            ("hc_attn_up.weight", &[3, 16]),
            ("hc_attn_inject.weight", &[16, 2]),
            ("hc_ffn_norm.weight", &[8, 2]),
            ("hc_ffn_down.weight", &[16, 3]),
            ("hc_ffn_up.weight", &[3, 16]),
            ("hc_ffn_inject.weight", &[16, 2]),
        ];
        let all = (0..2).flat_map(|layer| of_layer.map(|(part, dims)| (format!("blk.{layer}.{part}"), dims)));
        let others: [(&str, &[u64]); 10] = [
            ("output_hc_norm.weight", &[16]),
            ("output_hc_down.weight", &[16, 3]),
            ("output_hc_up.weight", &[3, 16]),
            ("per_layer_token_embd.weight", &[3, 12]),
            ("blk.1.ple_key.weight", &[6, 16]),
            ("blk.1.ple_value.weight", &[6, 8]),
            ("blk.1.ple_norm_key.weight", &[16]),
            ("blk.1.ple_norm_query.weight", &[16]),
            ("blk.1.ple_norm_conv.weight", &[16]),
            ("blk.1.ple_conv1d.weight", &[4, 16]),
        ];
        let all = all.chain(others.map(|(name, dims)| (name.to_owned(), dims)));
        all.fold(model, |model, (name, dims)| model.tensor(&name, 0, dims))
    };
    let model = with(&[]).build().unwrap();
    assert_eq!(model.hyper.context_length, 4096);
    // Without the key of the number of positions that share an indexer key, no indexer selects
    // positions.
    assert!(!model.module.functions[0].ops.iter().any(|op| op.kind == OpKind::IndexTopK));
    let rows: Vec<_> = model.module.functions[0].ops.iter().filter(|op| op.kind == OpKind::Ngram).collect();
    let of_rows: Vec<_> = rows.iter().map(|op| ["m0", "m1", "m2", "modulus"].map(|attr| op.attr(attr).int())).collect();
    assert_eq!(of_rows, [[3, 1 << 40, 0, 7], [3, 1 << 40, 0, 5]]);
    let cases: [((&str, ixc_model_files::gguf::Value), &str); 11] = [
        // The graph has an op for each row, so their number is limited.
        (("ple.heads_per_ngram", 65u32.into()), "key \"qwen4exp.ple.heads_per_ngram\" is 65; must be from 1 to 64"),
        (
            ("ple.layers", vec![0u32, 1].into()),
            "key \"qwen4exp.ple.layers\" is an array of 2; must be an array of one layer",
        ),
        (("ple.layers", vec![2u32].into()), "key \"qwen4exp.ple.layers\" is 2; must be an array of 1 numbers up to 1"),
        (("ple.layers", 1u32.into()), "key \"qwen4exp.ple.layers\" is u32; expected array of u32"),
        (("ple.ngram_size", 5u32.into()), "key \"qwen4exp.ple.ngram_size\" is 5; must be from 2 to 4"),
        (
            ("ple.conv_kernel", 8u32.into()),
            "key \"qwen4exp.ple.conv_kernel\" is 8; must be so small that a convolution with dilation 2 reaches at most 12 tokens back",
        ),
        (("ple.eos_token_id", 5u32.into()), "key \"qwen4exp.ple.eos_token_id\" is 5; must be from 0 to 4"),
        (
            ("ple.layer_multipliers", Array::U64(vec![3, u64::MAX]).into()),
            "key \"qwen4exp.ple.layer_multipliers\" is 18446744073709551615; must be an array of 2 numbers up to",
        ),
        (
            ("ple.head_offsets", Array::U64(vec![0]).into()),
            "key \"qwen4exp.ple.head_offsets\" is array of u64 of 1; must be an array of 2 numbers up to 2147483647",
        ),
        (
            ("ple.head_vocab_sizes", Array::U64(vec![7, 0]).into()),
            "key \"qwen4exp.ple.head_vocab_sizes\" is 0; must be from 1 on",
        ),
        (
            ("ple.head_vocab_sizes", Array::U64(vec![7, 6]).into()),
            "key \"qwen4exp.ple.head_vocab_sizes\" is 13; must be at most 12 with the offset",
        ),
    ];
    for (key, expected) in cases {
        let text = with(&[key]).refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
    for (ratios, expected) in [
        (vec![0u32, 3], "key \"qwen4exp.attention.compress_ratios\" is 3; must be a power of two up to 32"),
        (vec![2, 4], "key \"qwen4exp.attention.compress_ratios\" is 4; must be 2 in all layers with an index"),
        (vec![0, 64], "key \"qwen4exp.attention.compress_ratios\" is 64; must be from 0 to 32"),
    ] {
        let index = [("attention.indexer.head_count", 1u32.into()), ("attention.compress_ratios", ratios.into())];
        let text = with(&index).refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
    let text = with(&[]).without("qwen4exp.hyper_connection.low_rank").refused();
    assert!(text.contains("hyper_connection"), "{text}");
}
