//! Architectures: what is refused, and that the golden models build.

mod support;

use std::fs;
use std::path::Path;

use ixc_frontend::arch::{self, ArchError, Nextn, Parts};
use ixc_frontend::gguf::write::GgufWriter;
use ixc_frontend::gguf::{Array, ErrorClass, Gguf};
use ixc_ir::graph::{OpKind, Recurrent};
use support::shared;

/// A llama of two layers, width 8, 4 heads of 2, 2 of them for keys and values, 16 wide inside, 5 tokens.
struct Small {
    keys: Vec<(&'static str, ixc_frontend::gguf::Value)>,
    tensors: Vec<(String, u32, Vec<u64>)>,
}

fn small() -> Small {
    let mut tensors =
        vec![("token_embd.weight".to_owned(), 0, vec![8, 5]), ("output_norm.weight".to_owned(), 0, vec![8])];
    for layer in 0..2 {
        let parts: [(&str, &[u64]); 9] = [
            ("attn_norm", &[8]),
            ("attn_q", &[8, 8]),
            ("attn_k", &[8, 4]),
            ("attn_v", &[8, 4]),
            ("attn_output", &[8, 8]),
            ("ffn_norm", &[8]),
            ("ffn_gate", &[8, 16]),
            ("ffn_up", &[8, 16]),
            ("ffn_down", &[16, 8]),
        ];
        tensors.extend(parts.map(|(part, dims)| (format!("blk.{layer}.{part}.weight"), 0, dims.to_vec())));
    }
    let keys = vec![
        ("general.architecture", "llama".into()),
        ("llama.block_count", 2u32.into()),
        ("llama.context_length", 64u32.into()),
        ("llama.embedding_length", 8u32.into()),
        ("llama.feed_forward_length", 16u32.into()),
        ("llama.attention.head_count", 4u32.into()),
        ("llama.attention.head_count_kv", 2u32.into()),
        ("llama.attention.layer_norm_rms_epsilon", 1e-5f32.into()),
    ];
    Small { keys, tensors }
}

impl Small {
    fn key(mut self, key: &'static str, value: impl Into<ixc_frontend::gguf::Value>) -> Small {
        self.keys.retain(|(name, _)| *name != key);
        self.keys.push((key, value.into()));
        self
    }

    fn tensor(mut self, name: &str, type_id: u32, dims: &[u64]) -> Small {
        self.tensors.retain(|(other, ..)| other != name);
        self.tensors.push((name.to_owned(), type_id, dims.to_vec()));
        self
    }

    fn without(mut self, name: &str) -> Small {
        self.keys.retain(|(key, _)| *key != name);
        self.tensors.retain(|(tensor, ..)| tensor != name);
        self
    }

    fn build(self) -> Result<arch::Model, ArchError> {
        self.build_parts(Parts::ALL)
    }

    fn build_parts(self, parts: Parts) -> Result<arch::Model, ArchError> {
        let writer = self.keys.into_iter().fold(GgufWriter::new(), |writer, (key, value)| writer.key(key, value));
        let writer = self.tensors.into_iter().fold(writer, |writer, (name, id, dims)| {
            let ty = ixc_frontend::gguf::TensorType::from_id(id).unwrap();
            writer.zero_tensor(&name, ty, &dims)
        });
        arch::build_parts(&Gguf::from_bytes("m.gguf".as_ref(), writer.finish()).unwrap(), parts)
    }

    /// The message of the error, without the file's name.
    fn refused(self) -> String {
        self.refused_parts(Parts::ALL)
    }

    fn refused_parts(self, parts: Parts) -> String {
        let error = self.build_parts(parts).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Data);
        error.to_string().strip_prefix("m.gguf: ").unwrap().to_owned()
    }
}

#[test]
fn bad_models_are_refused_with_the_key_or_tensor() {
    let Some(dir) = shared("bad-gguf") else { return };
    let manifest = fs::read_to_string(dir.join("manifest.tsv")).unwrap();
    for line in manifest.lines().skip(1) {
        let columns: Vec<_> = line.split('\t').collect();
        // No file here has all the tensors of a model, so none of them builds.
        let Ok(gguf) = Gguf::open(&dir.join(columns[0])) else { continue };
        let error = arch::build(&gguf).unwrap_err();
        let text = error.to_string();
        println!("{text}");
        assert_eq!(error.class(), ErrorClass::Data);
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
    // Heads may differ from layer to layer.
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
    // A bias is part of a matrix wherever it stands.
    let model = small().tensor("blk.0.attn_output.bias", 0, &[8]).build().unwrap();
    assert_eq!(model.module.functions[0].ops.iter().filter(|op| op.kind == OpKind::AddBias).count(), 1);
}

#[test]
fn errors_name_what_is_wrong_and_what_would_be_right() {
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
        (small().key("llama.vocab_size", 6u32), "key \"llama.vocab_size\" is 6; must be 5, the rows of"),
        (
            small().key("tokenizer.ggml.tokens", vec!["a"]),
            "key \"tokenizer.ggml.tokens\" is 1 tokens; must be 5, the rows of token_embd.weight",
        ),
        (small().key("llama.expert_used_count", 1u32), "key \"llama.expert_used_count\" is 1; must be 0, as there are"),
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
            "tensor \"output_norm.weight\" has type F16; vectors must be F32",
        ),
        (small().tensor("blk.0.ffn_x.bias", 0, &[8]), "tensor \"blk.0.ffn_x.bias\" has no place in architecture llama"),
        (small().tensor("blk.1.ffn_norm_2.weight", 0, &[8]), "tensor \"blk.1.ffn_norm_2.weight\" has no place in"),
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
            "key \"longcat-flash.expert_group_count\" is 2; must be 1: 2 experts are of no group",
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
    let Some(dir) = shared("golden/models") else { return };
    let mut built = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let gguf = Gguf::open(&path).unwrap();
        let name: &str = gguf.metadata().read("general.architecture").unwrap();
        match arch::build(&gguf) {
            Ok(model) => {
                built += 1;
                // All tensors have a place, but those of layers that only draft.
                let layers = model.hyper.layers.len();
                let drafts = |name: &str| {
                    (0..model.hyper.draft_layers).any(|i| name.starts_with(&format!("blk.{}.", layers as u64 + i)))
                };
                let own = gguf.tensors().filter(|tensor| !drafts(tensor.name())).count();
                assert_eq!(model.module.weights.len(), own, "{}", path.display());
                ixc_ir::graph::verify::verify(&model.module).unwrap();
            }
            Err(error @ ArchError::UnknownArchitecture { .. }) => {
                assert!(arch::ARCHITECTURES.iter().all(|row| row.name != name), "{error}");
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("which is not supported; supported are F32"), "{text}");
            }
        }
    }
    println!("{built} built");
    assert!(built >= 31, "{built}");
}

/// The small model as one of another architecture, with its own keys.
fn as_architecture(name: &'static str, keys: &[(&str, ixc_frontend::gguf::Value)]) -> Small {
    let own = small().keys.into_iter().map(|(key, value)| match key.strip_prefix("llama.") {
        Some(part) => (&*format!("{name}.{part}").leak(), value),
        None => (key, value),
    });
    let model = Small { keys: own.collect(), ..small() }.key("general.architecture", name);
    keys.iter().fold(model, |model, (key, value)| model.key(format!("{name}.{key}").leak(), value.clone()))
}

/// What files have no key for, and switches that change a model.
#[test]
fn what_no_key_says_is_known_of_the_architecture() {
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
    // Scores are divided by the root of a head's length, of the model of 62 layers by that of its part of the width.
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
            "key \"llama.attention.causal\" is false; must be absent or true",
        ),
        (as_architecture("gpt-oss", &[]), "key \"gpt-oss.attention.sliding_window\" is missing"),
        (
            as_architecture(
                "gemma3",
                &[("attention.sliding_window", 4u32.into()), ("attention.key_length_swa", 4u32.into())],
            ),
            // Heads of layers with a window may have other sizes, which tensors must have, too.
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

/// Sizes of an index of positions, and which layers have one.
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
            "key \"glm-dsa.attention.indexer.types\" is false in the first layer; must be true there",
        ),
        (
            with("glm-dsa", Some(vec![true])),
            "key \"glm-dsa.attention.indexer.types\" is an array of 1; must be an array of 2",
        ),
        // Latent attention is missing.
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
            "key \"minimax-m3.attention.indexer.head_count\" is 7; must be 2, as many as layer 0 has key heads",
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

/// Granite's files switch RoPE off by a key that means nothing elsewhere.
#[test]
fn rope_can_be_switched_off() {
    let ropes = |finetuned: bool| {
        let model = as_architecture("granite", &[("rope.scaling.finetuned", finetuned.into())]).build().unwrap();
        model.module.functions[0].ops.iter().filter(|op| op.kind == OpKind::Rope).count()
    };
    assert_eq!((ropes(true), ropes(false)), (4, 0));
}

/// Of Qwen 1 gates and up count together; its files may call the epsilon of its norms that of layer norms, as those of no model whose norms these are.
#[test]
fn gates_and_up_may_count_together() {
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
    assert!(error.contains("even: that of gates and up together"), "{error}");
}

/// By how much scores of attention fall, by a key or by what is known of the architecture; then nothing is rotated.
#[test]
fn what_scores_fall_by_is_a_key_or_known() {
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
    // Of Baichuan the one of 40 layers alone.
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

/// Sizes of recurrent states, and which layers have them.
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
        // Layer 0 has a state, and layer 1 attends.
        (interval(with(&[]), 2), "tensor \"blk.0.attn_qkv.weight\" is missing"),
        // All attend, with gates behind their queries.
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

/// Streams that follow one, gates of which a part stays, numbers of xIELU, layers without RoPE, and states of single elements.
#[test]
fn keys_of_what_layers_have_of_their_own_are_checked() {
    let windowed = [("attention.sliding_window", 4u32.into()), ("attention.scale", 1f32.into())];
    let streams = |changes: &[(&'static str, ixc_frontend::gguf::Value)]| {
        let usual = [("altup.num_inputs", 4u32.into()), ("altup.active_idx", 0u32.into())];
        as_architecture("gemma3n", &[&windowed[..], &usual, changes].concat())
    };
    let parts = |parts: Vec<f32>| ("activation_sparsity_scale", ixc_frontend::gguf::Value::from(parts));
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

/// An architecture that is none is told some that begin like it, and how many there are, in a line that can be read.
#[test]
fn an_unknown_architecture_is_told_those_that_begin_like_it() {
    let count = arch::ARCHITECTURES.len();
    for (name, near) in
        [("qwen9-moe", ", among them qwen"), ("Mistral-Large5", ", among them mistral-large4, mistral3"), ("zzz", "")]
    {
        let text = as_architecture(name, &[]).refused();
        let expected = format!("is \"{name}\", which is not supported; supported are {count} others{near}");
        assert!(text.contains(&expected), "{text}");
        assert!(text.ends_with(" (`ixc inspect --support` lists all)") && text.len() < 300, "{text}");
    }
}

/// Limits of queries, keys and values, caps of routers, layers that follow each other several times, groups of experts, and norms without weights.
#[test]
fn keys_of_older_models_are_checked() {
    let experts = |changes: &[(&'static str, ixc_frontend::gguf::Value)]| {
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
        // Norms without weights ask for none, and refuse some.
        (
            as_architecture("olmo", &[("attention.layer_norm_epsilon", 1e-5f32.into())]),
            "tensor \"output_norm.weight\" has no place in architecture olmo",
        ),
        (as_architecture("bitnet", &[]), "tensor \"blk.0.attn_sub_norm.weight\" is missing"),
    ];
    for (model, expected) in cases {
        let text = model.refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
    // What changes behind a number of positions is not computed.
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models");
    let hyper = |name: &str| arch::build(&ixc_frontend::open(&golden.join(name)).unwrap()).unwrap().hyper;
    assert_eq!([hyper("grok.gguf"), hyper("grok-2.gguf")].map(|hyper| hyper.context_length), [512, 384]);
    assert_eq!(hyper("nanbeige.gguf").rounds, 3);
}

/// A file may say by layer whose keys and values it reads: those of one before it that has some, and is of its kind.
#[test]
fn layers_may_read_keys_and_values_of_one_before() {
    let with = |sources: Vec<u32>| small().key("llama.attention.kv_source_layers", sources);
    let shares = |sources: Vec<u32>| -> Vec<Option<usize>> {
        with(sources).build().unwrap().hyper.layers.iter().map(|layer| layer.shares).collect()
    };
    assert_eq!((shares(vec![0, 0]), shares(vec![0, 1, 2])), (vec![None, Some(0)], vec![None, None]));
    let turned: ixc_frontend::gguf::Value = Array::Bool(vec![true, false]).into();
    for (model, expected) in [
        (
            with(vec![1, 1]),
            "key \"llama.attention.kv_source_layers\" is 1; must be 0 for layer 0, or a layer before it",
        ),
        (
            with(vec![0, 7]),
            "key \"llama.attention.kv_source_layers\" is 7; must be 1 for layer 1, or a layer before it",
        ),
        (with(vec![0]), "key \"llama.attention.kv_source_layers\" is an array of 1; must be an array of 2 or more"),
        (
            with(vec![0, 0]).key("llama.attention.rope_pattern", turned),
            "key \"llama.attention.kv_source_layers\" is 0; must be 1 for layer 1, or a layer before it with keys of its own",
        ),
    ] {
        let text = model.refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
}

/// Published files of Gemma 4's small models have keys and values in layers that read those of others: nobody reads them, and nothing else is let through.
#[test]
fn tensors_of_layers_that_share_keys_and_values_may_be_there() {
    let model = || {
        let keys: [(&str, ixc_frontend::gguf::Value); 4] = [
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
        ("blk.3.attn_k_2.weight", &[8, 4], "tensor \"blk.3.attn_k_2.weight\" has no place in architecture gemma4"),
        ("blk.3.attn_k.bias", &[4], "tensor \"blk.3.attn_k.bias\" has no place in architecture gemma4"),
    ] {
        let text = model().tensor(name, 0, dims).refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
}

/// Keys of RoPE say nothing where no layer has it.
#[test]
fn rope_is_not_asked_of_layers_without_it() {
    let odd: [(&str, ixc_frontend::gguf::Value); 4] = [
        ("rope.dimension_count", 77u32.into()),
        ("rope.freq_base", 0f32.into()),
        ("rope.scaling.type", "longrope".into()),
        ("rope.scaling.yarn_ext_factor", 2f32.into()),
    ];
    let with = |name: &'static str, keys: &[(&str, ixc_frontend::gguf::Value)]| {
        as_architecture(name, &[&odd[..], keys].concat())
    };
    // Attention alone, with a network of its own behind each.
    let nemotron = |model: Small| {
        let model = (0..2).fold(model, |model, layer| {
            let of_network = ["ffn_norm", "ffn_gate", "ffn_up", "ffn_down"];
            of_network.iter().fold(model, |model, part| model.without(&format!("blk.{layer}.{part}.weight")))
        });
        model.key("nemotron_h.feed_forward_length", vec![0u32, 0])
    };
    let model = nemotron(with("nemotron_h", &[])).build().unwrap();
    let ropes =
        |model: &arch::Model| model.module.functions[0].ops.iter().filter(|op| matches!(op.kind, OpKind::Rope)).count();
    assert_eq!((model.hyper.roped, ropes(&model)), (false, 0));
    for name in ["granite", "granitemoe", "granitehybrid"] {
        let off = [("rope.scaling.finetuned", false.into())];
        let model = with(name, &off).build().unwrap();
        assert_eq!((model.hyper.roped, ropes(&model)), (false, 0), "{name}");
        let text = with(name, &[]).refused();
        assert!(text.starts_with(&format!("key \"{name}.rope.")), "{text}");
    }
}

/// Layers that only draft come last and are counted; a layer that is there and has not the matrix of one is the model's.
#[test]
fn layers_that_draft_are_those_that_are_there() {
    let with = |model: Small| model.key("llama.nextn_predict_layers", 1u32);
    let drafts = with(small()).tensor("blk.1.nextn.eh_proj.weight", 0, &[16, 8]);
    let elsewhere = small().tensors.into_iter().filter(|(name, ..)| name.starts_with("blk.1."));
    let elsewhere = elsewhere.fold(with(small()), |model, (name, ..)| model.without(&name));
    for (model, expected) in [(with(small()), (2, 0)), (drafts, (1, 1)), (elsewhere, (1, 1))] {
        let hyper = model.build().unwrap().hyper;
        assert_eq!((hyper.layers.len(), hyper.draft_layers), expected);
    }
    // Files may say of those that draft, too, whether they have a window, or not (K-EXAONE).
    let of = |pattern: &[bool]| {
        let keys: [(&str, ixc_frontend::gguf::Value); 3] = [
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

/// Of which a model's own layers that guess are made, and which are not.
#[test]
fn layers_that_guess_are_built_alone() {
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
    let types = |model: &arch::Model| {
        let step = &model.module.functions[0];
        let of = |values: &[_]| Vec::from_iter(values.iter().map(|value| step.ty(*value).to_string()));
        (of(&step.params), of(&step.results))
    };
    let own = |model: &arch::Model| Vec::from_iter(model.module.weights.iter().map(|weight| weight.name.clone()));
    let step = ["i32[T]", "i32[T]", "i32[L]"].map(str::to_owned);
    let results = ["f32[L, 5]", "f32[T, 8]"].map(str::to_owned);
    let model = glm().build_parts(fed).unwrap();
    assert_eq!((types(&model), model.hyper.layers.len()), ((step.to_vec(), results.to_vec()), 1));
    assert!(own(&model).iter().all(|name| !name.starts_with("blk.1.")));
    let layer = glm().build_parts(alone).unwrap();
    let with_hidden = [&step[..], &["f32[T, 8]".to_owned()]].concat();
    assert_eq!(types(&layer), (with_hidden, results.to_vec()));
    assert!(own(&layer).iter().all(|name| !name.starts_with("blk.0.")));
    let has = |model: &arch::Model, name: &str| own(model).iter().any(|own| own == name);
    assert!(has(&layer, "token_embd.weight") && has(&layer, "output_norm.weight"), "{:?}", own(&layer));
    // Some have their own of everything.
    let parts = [("embed_tokens", &[8u64, 5][..]), ("shared_head_norm", &[8]), ("shared_head_head", &[8, 5])];
    let whole =
        parts.iter().fold(glm(), |model, (part, dims)| model.tensor(&format!("blk.1.nextn.{part}.weight"), 0, dims));
    let layer = whole.build_parts(alone).unwrap();
    assert!(!has(&layer, "token_embd.weight") && !has(&layer, "output_norm.weight"), "{:?}", own(&layer));
    let named = glm().tensor("blk.1.layer_output_norm.weight", 0, &[8]).build_parts(alone).unwrap();
    assert!(has(&named, "blk.1.layer_output_norm.weight") && !has(&named, "output_norm.weight"));
    // What is missing, and what would change the result.
    let text = glm().without("blk.1.nextn.hnorm.weight").refused_parts(alone);
    assert!(text.starts_with("tensor \"blk.1.nextn.hnorm.weight\""), "{text}");
    let text = glm().tensor("blk.1.mystery.weight", 0, &[8]).refused_parts(alone);
    assert!(text.starts_with("tensor \"blk.1.mystery.weight\" has no place"), "{text}");
    let text = glm().tensor("blk.1.nextn.eh_proj.weight", 0, &[8, 8]).refused_parts(alone);
    assert!(text.starts_with("tensor \"blk.1.nextn.eh_proj.weight\" has dimensions"), "{text}");
    for parts in [fed, alone] {
        let text = small().refused_parts(parts);
        assert!(text.starts_with("the model has no layers of its own that guess"), "{text}");
        let text = glm().without("blk.1.nextn.eh_proj.weight").refused_parts(parts);
        assert!(text.starts_with("the model has no layers of its own that guess"), "{text}");
        let text = of("llama").refused_parts(parts);
        assert!(
            text.starts_with("layers of llama that guess (nextn) are left out; those of mimo2, glm4moe, "),
            "{text}"
        );
        let keys = [("attention.head_count_kv", Array::I32(vec![0, 2]).into()), ("shortconv.l_cache", 3u32.into())];
        let recurrent = keys.into_iter().fold(of("lfm2"), |model, (key, value): (&str, ixc_frontend::gguf::Value)| {
            model.key(format!("lfm2.{key}").leak(), value)
        });
        let text = recurrent.refused_parts(parts);
        assert!(text.starts_with("tokens cannot be guessed: recurrent states"), "{text}");
    }
}

/// A small model whose blocks stand between two norms.
fn between_norms(name: &'static str, keys: &[(&str, ixc_frontend::gguf::Value)]) -> Small {
    let names = (0..2).flat_map(|layer| ["post_attention_norm", "post_ffw_norm"].map(|norm| (layer, norm)));
    names.fold(as_architecture(name, keys), |model, (layer, norm)| {
        model.tensor(&format!("blk.{layer}.{norm}.weight"), 0, &[8])
    })
}

/// Gemma 2's first files have no keys for its caps; of others 0 means none.
#[test]
fn caps_that_files_do_not_state_are_those_of_the_released_models() {
    let caps = |keys: &[(&str, ixc_frontend::gguf::Value)]| {
        let scales = between_norms("gemma2", keys).build().unwrap().hyper.scales;
        (scales.attention_softcap, scales.softcap)
    };
    assert_eq!(caps(&[]), (50.0, 30.0));
    let stated = [("attn_logit_softcapping", 0f32.into()), ("final_logit_softcapping", 7f32.into())];
    assert_eq!(caps(&stated), (0.0, 7.0));
}

/// Of GLM-4 that sees the converter permutes what turns.
#[test]
fn sections_of_positions_turn_halves() {
    let pairs = |sections: Option<Vec<i32>>| {
        let keys: Vec<_> = sections.into_iter().map(|sections| ("rope.dimension_sections", sections.into())).collect();
        let model = (0..2).fold(between_norms("glm4", &keys), |model, layer| {
            let model = model.without(&format!("blk.{layer}.ffn_gate.weight"));
            model.tensor(&format!("blk.{layer}.ffn_up.weight"), 0, &[8, 32])
        });
        let module = model.build().unwrap().module;
        let ropes = module.functions[0].ops.iter().filter(|op| op.kind == OpKind::Rope);
        let mut words: Vec<_> = ropes.map(|op| op.attr("style").word().to_owned()).collect();
        words.dedup();
        words
    };
    assert_eq!(pairs(None), ["norm"]);
    assert_eq!(pairs(Some(vec![0, 0, 0, 0])), ["norm"]);
    assert_eq!(pairs(Some(vec![1, 1, 1, 0])), ["neox"]);
}

/// The converter of models with latent attention leaves out what is false.
#[test]
fn weights_of_experts_are_normalised_where_files_say_so() {
    let normalised = |name: &'static str, keys: &[(&str, ixc_frontend::gguf::Value)]| {
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

/// Models with layer norms whose files have both numbers take theirs.
#[test]
fn layer_norms_add_their_own_number() {
    let eps = |name: &'static str| {
        let keys =
            [("attention.layer_norm_epsilon", 0.25f32.into()), ("attention.layer_norm_rms_epsilon", 0.5f32.into())];
        as_architecture(name, &keys).build().unwrap().hyper.norm_eps
    };
    assert_eq!((eps("command-r"), eps("llama")), (0.25, 0.5));
}

/// Of an architecture whose layers mostly have no window, a file's window is that of all of them, or of those that it says; one that the context fits in is none.
#[test]
fn a_stated_window_is_a_window() {
    let windows = |window: u32, pattern: Option<Vec<bool>>| -> Vec<_> {
        let model =
            as_architecture("llama", &[("context_length", 64u32.into()), ("attention.sliding_window", window.into())]);
        let pattern = pattern.map(|pattern| Array::Bool(pattern).into());
        let model = pattern.into_iter().fold(model, |model, pattern: ixc_frontend::gguf::Value| {
            model.key("llama.attention.sliding_window_pattern", pattern)
        });
        let hyper = model.build().unwrap().hyper;
        assert_eq!(hyper.context_length, 64);
        hyper.layers.iter().map(|layer| layer.window).collect()
    };
    assert_eq!(windows(0, None), [None, None]);
    assert_eq!(windows(24, None), [Some(24), Some(24)]);
    assert_eq!(windows(24, Some(vec![false, true])), [None, Some(24)]);
    assert_eq!(windows(64, None), [None, None]);
}

/// Step-3.5: layers without a window rotate half of a head, and divide frequencies by the first of a list that is as long as the others'; layers have limits.
#[test]
fn halves_of_heads_are_rotated_by_the_first_frequencies() {
    let with = |keys: &[(&str, ixc_frontend::gguf::Value)], frequencies: u64| {
        let own: [(&str, ixc_frontend::gguf::Value); 8] = [
            ("attention.head_count", vec![2u32, 4].into()),
            ("attention.head_count_kv", vec![2u32, 2].into()),
            ("attention.key_length", 8u32.into()),
            ("attention.value_length", 8u32.into()),
            ("attention.sliding_window", 4u32.into()),
            ("attention.sliding_window_pattern", Array::Bool(vec![false, true]).into()),
            ("rope.dimension_count", 8u32.into()),
            ("swiglu_clamp_shexp", Array::F32(vec![0.5, 0.0, 7.0]).into()),
        ];
        let model =
            as_architecture("step35", &[&own[..], keys].concat()).tensor("rope_freqs.weight", 0, &[frequencies]);
        (0..2u64).fold(model, |model, layer| {
            let heads = 2 * (layer + 1);
            let parts: [(&str, &[u64]); 5] = [
                ("attn_q", &[8, 8 * heads]),
                ("attn_k", &[8, 16]),
                ("attn_v", &[8, 16]),
                ("attn_output", &[8 * heads, 8]),
                ("attn_gate", &[8, heads]),
            ];
            parts.iter().fold(model, |model, (part, dims)| {
                let name = format!("blk.{layer}.{part}.weight");
                model.without(&name).tensor(&name, 0, dims)
            })
        })
    };
    let model = with(&[], 4).build().unwrap();
    let dims = (model.hyper.rope.dims, model.hyper.local_rope.as_ref().map(|rope| rope.dims));
    assert_eq!(dims, (4, Some(8)));
    let frequencies = model.module.weights.iter().find(|weight| weight.name == "rope_freqs.weight").unwrap();
    assert_eq!(frequencies.shape, [2]);
    let limits: Vec<f64> = model.hyper.layers.iter().map(|layer| layer.limits.shared).collect();
    assert_eq!(limits, [0.5, 0.0]);
    // A scaling is of layers without a window alone.
    let scaled = [("rope.scaling.type", "yarn".into()), ("rope.scaling.factor", 4f32.into())];
    let model = with(&scaled, 4).build().unwrap();
    let factors = (model.hyper.rope.factor, model.hyper.local_rope.as_ref().map(|rope| rope.factor));
    assert_eq!(factors, (4.0, Some(1.0)));
    // A list as long as what is rotated is one, too.
    with(&[], 2).build().unwrap();
    for (model, expected) in [
        (with(&[], 3), "tensor \"rope_freqs.weight\" has dimensions [3]; must be [2]"),
        (
            with(&[("rope.dimension_count", 6u32.into())], 3),
            "key \"step35.rope.dimension_count\" is 6; must be a multiple of 4: layers without a window rotate half of it, in pairs",
        ),
        (
            with(&[("swiglu_clamp_shexp", Array::F32(vec![-1.0, 0.0]).into())], 4),
            "key \"step35.swiglu_clamp_shexp\" is -1; must be 0 or positive numbers",
        ),
    ] {
        let text = model.refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
}

/// GLM-5.3-Flash: what its keys of decays and of its index may be.
#[test]
fn keys_of_bounded_decays_and_of_indices_of_runs_are_checked() {
    let with = |keys: &[(&str, ixc_frontend::gguf::Value)]| {
        let own: [(&str, ixc_frontend::gguf::Value); 18] = [
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
    assert_eq!((model.hyper.roped, model.hyper.ssm.unwrap().decay_bound), (false, -5.0));
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
            "key \"glm5-next.attention.indexer.top_k\" is 30; must be a multiple of 4, the positions that share a key",
        ),
        (
            ("attention.indexer.kpool", 6u32.into()),
            "key \"glm5-next.attention.indexer.kpool\" is 6; must be a power of two up to 32",
        ),
        (("attention.key_length", 6u32.into()), "key \"glm5-next.attention.key_length\" is 6; must be from 5 to 5"),
    ] {
        let keys: (&str, ixc_frontend::gguf::Value) = keys;
        let text = with(&[keys]).refused();
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
}

/// Hy4: streams that stay apart, sinks, and an index whose queries turn at their ends, or none.
#[test]
fn keys_of_streams_that_stay_apart_are_checked() {
    let with = |keys: &[(&str, ixc_frontend::gguf::Value)]| {
        let own: [(&str, ixc_frontend::gguf::Value); 14] = [
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
    // The second layer takes the first one's choice.
    let count = |kind: OpKind| ops.iter().filter(|op| op.kind == kind).count();
    assert_eq!((count(OpKind::IndexTopK), count(OpKind::Attention)), (1, 2));
    // Without an index attention is to all.
    let mut dense = with(&[]).without("hy_v4.attention.indexer.head_count");
    dense.tensors.retain(|(name, ..)| !name.contains("indexer"));
    let ops = dense.build().unwrap().module.functions[0].ops.clone();
    assert!(!ops.iter().any(|op| op.kind == OpKind::IndexTopK));
    let cases: [((&str, ixc_frontend::gguf::Value), &str); 4] = [
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
            "key \"hy_v4.attention.indexer.types\" is false in the first layer; must be true there",
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
        "key \"hy_v4.attention.indexer.key_length\" is 2; must be more than 2, the elements that turn"
    );
    // Streams that are mixed are another model's.
    let text = with(&[]).without("hy_v4.hyper_connection.magnitude").refused();
    assert_eq!(text, "key \"hy_v4.hyper_connection.sinkhorn_iterations\" is missing; expected u32");
}

/// Kimi K3: streams that rows keep, gates that are bent, and experts of a narrower row.
#[test]
fn keys_of_streams_that_are_kept_are_checked() {
    let with = |keys: &[(&str, ixc_frontend::gguf::Value)]| {
        let own: [(&str, ixc_frontend::gguf::Value); 18] = [
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
    // Before the first layer nothing is kept: of two layers and the output three blocks and the logits attend.
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
    let cases: [((&str, ixc_frontend::gguf::Value), &str); 4] = [
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

/// Qwen3.8-Flash-Next: what its keys of rows that tokens name may be. The table has 7 and 5 rows, of 3 elements.
#[test]
fn keys_of_rows_by_the_last_tokens_are_checked() {
    let with = |keys: &[(&str, ixc_frontend::gguf::Value)]| {
        let own: [(&str, ixc_frontend::gguf::Value); 18] = [
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
    // Without a number of positions that share a key of the index, nothing is chosen.
    assert_eq!((model.hyper.context_length, &model.hyper.indexer), (4096, &None));
    let rows: Vec<_> = model.module.functions[0].ops.iter().filter(|op| op.kind == OpKind::Ngram).collect();
    let of_rows: Vec<_> = rows.iter().map(|op| ["m0", "m1", "m2", "modulus"].map(|attr| op.attr(attr).int())).collect();
    assert_eq!(of_rows, [[3, 1 << 40, 0, 7], [3, 1 << 40, 0, 5]]);
    let cases: [((&str, ixc_frontend::gguf::Value), &str); 11] = [
        // Each would be an op.
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
            "key \"qwen4exp.ple.conv_kernel\" is 8; must be so small that taps every 2 tokens reach at most 12 back",
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

/// Compressed entries: of two layers the first has entries that a token may choose among, and experts by a table.
#[test]
fn keys_of_compressed_entries_are_checked() {
    let whole = |changes: &[(&str, ixc_frontend::gguf::Value)]| {
        let keys: [(&str, ixc_frontend::gguf::Value); 21] = [
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
    // Of a context with room for more entries than are chosen, an index chooses those of the layer whose entries overlap.
    let indexed = |changes: &[(&str, ixc_frontend::gguf::Value)]| {
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
    let count =
        |model: &arch::Model, kind: OpKind| model.module.functions[0].ops.iter().filter(|op| op.kind == kind).count();
    let counts = [OpKind::AttentionEntries, OpKind::IndexTopK, OpKind::RouteListed, OpKind::Route];
    let states = |model: &arch::Model| -> Vec<_> {
        model.module.states.iter().map(|state| (state.window, state.every)).collect()
    };
    let model = indexed(&[]).build().unwrap();
    assert_eq!((model.hyper.context_length, counts.map(|kind| count(&model, kind))), (4096, [2, 1, 1, 1]));
    let of_index = [(None, 1), (None, 4)];
    let [first, second] = [[(Some(16), 1), (None, 1), (None, 4)], [(Some(16), 1), (None, 1), (None, 16)]];
    assert_eq!(states(&model), [&first[..], &of_index, &second].concat());
    let index = model.module.functions[0].ops.iter().find(|op| op.kind == OpKind::IndexTopK).unwrap();
    assert_eq!((index.attr("top_k").int(), index.attr("entries").bool()), (8, true));
    // With room for eight entries, all are seen, and nobody asks it.
    let model = indexed(&[("context_length", 32u32.into())]).build().unwrap();
    assert_eq!(counts.map(|kind| count(&model, kind)), [2, 0, 1, 1]);
    assert_eq!(states(&model), [first, second].concat());
    // Without choice there is none.
    let plain = whole(&[("attention.compress_ratios", vec![16u32, 16].into())]);
    let plain = ["kv", "gate"]
        .iter()
        .fold(plain, |model, part| model.tensor(&format!("blk.0.attn_compressor_{part}.weight"), 0, &[8, 4]));
    let plain = plain.tensor("blk.0.attn_compressor_ape.weight", 0, &[4, 16]).build().unwrap();
    assert_eq!((plain.hyper.context_length, count(&plain, OpKind::IndexTopK)), (4096, 0));

    // Layers with a window may have shorter keys than those that the rotation is for.
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
            "tensor \"blk.0.ffn_gate_tid2eid.weight\" has type F32; a table of experts must be I32",
        ),
        (
            indexed(&[]).tensor("blk.0.attn_output_a.weight", 0, &[4, 9]),
            "tensor \"blk.0.attn_output_a.weight\" has dimensions [4, 9]; must be [4, 10]",
        ),
        (
            indexed(&[]).tensor("blk.1.indexer.proj.weight", 0, &[8, 3]),
            "tensor \"blk.1.indexer.proj.weight\" has no place",
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
