//! Tests of RoPE, its angles, and the positions that attention reaches.

use ixc_ir::graph::OpKind;
use ixc_model_files::gguf::Array;

use crate::between_norms;
use crate::small::{Small, as_architecture};

/// Tests the key with which Granite's files disable RoPE. Other architectures ignore it.
#[test]
fn rope_can_be_switched_off() {
    let ropes = |finetuned: bool| {
        let model = as_architecture("granite", &[("rope.scaling.finetuned", finetuned.into())]).build().unwrap();
        model.module.functions[0].ops.iter().filter(|op| op.kind == OpKind::Rope).count()
    };
    assert_eq!((ropes(true), ropes(false)), (4, 0));
}

/// Tests that keys of RoPE are ignored if no layer has RoPE.
#[test]
fn rope_keys_are_ignored_without_rope_layers() {
    let odd: [(&str, ixc_model_files::gguf::Value); 4] = [
        ("rope.dimension_count", 77u32.into()),
        ("rope.freq_base", 0f32.into()),
        ("rope.scaling.type", "longrope".into()),
        ("rope.scaling.yarn_ext_factor", 2f32.into()),
    ];
    let with = |name: &'static str, keys: &[(&str, ixc_model_files::gguf::Value)]| {
        as_architecture(name, &[&odd[..], keys].concat())
    };
    // Each layer of this model has only attention or only a network.
    let nemotron = |model: Small| {
        let model = (0..2).fold(model, |model, layer| {
            let of_network = ["ffn_norm", "ffn_gate", "ffn_up", "ffn_down"];
            of_network.iter().fold(model, |model, part| model.without(&format!("blk.{layer}.{part}.weight")))
        });
        model.key("nemotron_h.feed_forward_length", vec![0u32, 0])
    };
    let model = nemotron(with("nemotron_h", &[])).build().unwrap();
    let ropes = |model: &ixc_architectures::Model| {
        model.module.functions[0].ops.iter().filter(|op| matches!(op.kind, OpKind::Rope)).count()
    };
    assert_eq!((model.hyper.has_rope, ropes(&model)), (false, 0));
    for name in ["granite", "granitemoe", "granitehybrid"] {
        let off = [("rope.scaling.finetuned", false.into())];
        let model = with(name, &off).build().unwrap();
        assert_eq!((model.hyper.has_rope, ropes(&model)), (false, 0), "{name}");
        let text = with(name, &[]).refused();
        assert!(text.starts_with(&format!("key \"{name}.rope.")), "{text}");
    }
}

/// Tests that sections of RoPE change its pairing: the converter permutes the rotated rows of GLM-4
/// with vision.
#[test]
fn glm4_vision_sections_change_rope_pairing() {
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

/// Tests windows in an architecture that usually has none. A file's window applies to all layers,
/// or to the layers that the file lists. A window as large as the context is ignored.
#[test]
fn stated_window_applies_to_all_or_listed_layers() {
    let windows = |window: u32, pattern: Option<Vec<bool>>| -> Vec<_> {
        let model =
            as_architecture("llama", &[("context_length", 64u32.into()), ("attention.sliding_window", window.into())]);
        let pattern = pattern.map(|pattern| Array::Bool(pattern).into());
        let model = pattern.into_iter().fold(model, |model, pattern: ixc_model_files::gguf::Value| {
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

/// Tests Step-3.5. Layers without a window rotate half of each head, and use the first half of the
/// divisors that other layers have. Layers also have limits of gates.
#[test]
fn half_rotated_heads_use_the_first_frequencies() {
    let with = |keys: &[(&str, ixc_model_files::gguf::Value)], frequencies: u64| {
        let own: [(&str, ixc_model_files::gguf::Value); 8] = [
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
    // RoPE is scaled only in layers without a window.
    let scaled = [("rope.scaling.type", "yarn".into()), ("rope.scaling.factor", 4f32.into())];
    let model = with(&scaled, 4).build().unwrap();
    let factors = (model.hyper.rope.factor, model.hyper.local_rope.as_ref().map(|rope| rope.factor));
    assert_eq!(factors, (4.0, Some(1.0)));
    // The list of divisors may also be only as long as the rotated part requires.
    with(&[], 2).build().unwrap();
    for (model, expected) in [
        (with(&[], 3), "tensor \"rope_freqs.weight\" has dimensions [3]; must be [2]"),
        (
            with(&[("rope.dimension_count", 6u32.into())], 3),
            "key \"step35.rope.dimension_count\" is 6; must be a multiple of 4, because layers without a window rotate half of a head, in pairs",
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
