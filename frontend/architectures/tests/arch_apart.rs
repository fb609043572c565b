//! Tests of architectures with keys of their own: supported values, and values that are refused.

use std::path::Path;

use ixc_architectures::{ArchError, Model};
use ixc_ir::graph::attrs::ScoreAttrs;
use ixc_ir::graph::{Dim, Op, OpKind, Operand, Recurrent, Unary};
use ixc_model_files::gguf::write::GgufWriter;
use ixc_model_files::gguf::{Array, Gguf, Value};

/// Returns a golden model with its keys, and with zeros in all tensors. Keys in `keys` are changed,
/// or removed if their value is an empty array. The tensor `without` is removed.
fn changed(name: &str, keys: &[(&str, Value)], without: Option<&str>) -> Gguf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/golden/models/{name}.gguf"));
    let golden = Gguf::open(&path).unwrap();
    let of = |key: &str| keys.iter().find(|(changed, _)| *changed == key);
    let kept = golden.metadata().iter().filter(|(key, _)| of(key).is_none());
    let writer = kept.fold(GgufWriter::new(), |writer, (key, value)| writer.key(key, value.clone()));
    let writer = keys.iter().fold(writer, |writer, (key, value)| writer.key(key, value.clone()));
    let tensors = golden.tensors().filter(|tensor| Some(tensor.name()) != without);
    let writer =
        tensors.fold(writer, |writer, tensor| writer.zero_tensor(tensor.name(), tensor.tensor_type(), tensor.dims()));
    ixc_architectures::complete(Gguf::from_bytes("m.gguf".as_ref(), writer.finish()).unwrap()).unwrap()
}

fn built(name: &str, keys: &[(&str, Value)]) -> Model {
    ixc_architectures::build(&changed(name, keys, None)).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(name: &str, keys: &[(&str, Value)], without: Option<&str>) -> String {
    let error: ArchError = ixc_architectures::build(&changed(name, keys, without)).unwrap_err();
    error.to_string().strip_prefix("m.gguf: ").unwrap().to_owned()
}

/// Tests that head counts and widths differ by layer in OpenELM.
#[test]
fn layers_differ_in_heads_and_widths() {
    let layers = built("openelm", &[]).hyper.layers;
    let of: Vec<_> = layers.iter().map(|layer| (layer.heads, layer.kv_heads, layer.feed_forward)).collect();
    assert_eq!(of, [(4, 2, 48), (6, 3, 80), (6, 2, 96)]);
}

/// Tests that DeepSeek-OCR's decoder rotates whole heads and has no window, whatever its files
/// state.
#[test]
fn deepseek_ocr_ignores_keys_it_does_not_use() {
    let hyper = built("deepseek2-ocr", &[]).hyper;
    assert_eq!((hyper.rope.dims, hyper.layers[0].key_length), (16, 16));
    assert!(hyper.layers.iter().all(|layer| layer.window.is_none()));
}

/// Tests that `rope.scaling.alpha` increases the base of RoPE, depending on the length of heads.
#[test]
fn rope_base_is_scaled_by_alpha() {
    let base = |alpha: f32| built("hunyuan_vl", &[("hunyuan_vl.rope.scaling.alpha", alpha.into())]).hyper.rope.base;
    assert_eq!(base(0.0), 10_000.0);
    assert_eq!(base(1000.0), 10_000.0 * 1000f64.powf(16.0 / 14.0));
    assert_eq!(
        refused("hunyuan_vl", &[("hunyuan_vl.rope.scaling.alpha", (-1f32).into())], None),
        "key \"hunyuan_vl.rope.scaling.alpha\" is -1; must be from 0 (off) to 1000000000"
    );
}

/// Tests that each computation of a layer in HRM's two stacks is counted and has its own KV cache.
#[test]
fn hrm_stacks_have_separate_states_per_pass() {
    let Model { hyper, module, .. } = built("hrm_text", &[]);
    // In each of two cycles, the two layers of the lower stack are computed twice, then those of
    // the upper stack once.
    assert_eq!((hyper.layers.len(), module.states.len()), (4, 2 * (2 * 2 + 2)));
    assert_eq!(
        refused("hrm_text", &[("hrm_text.block_count", 11u32.into())], None),
        "key \"hrm_text.block_count\" is 11; must be 12: hrm.layers_per_stack * hrm.h_cycles * (hrm.l_cycles + 1)"
    );
    assert_eq!(
        refused("hrm_text", &[("hrm_text.hrm.layers_per_stack", (1u32 << 20).into())], None),
        "key \"hrm_text.hrm.layers_per_stack\" is 1048576; must be from 1 to 6"
    );
    assert_eq!(refused("hrm_text", &[], Some("hrm.z_l_init")), "tensor \"hrm.z_l_init\" is missing");
}

/// Tests that Chameleon's image tokens, if the vocabulary has them, cannot be generated.
#[test]
fn chameleon_image_tokens_have_no_logits() {
    let words = |at: usize| if (4..60).contains(&at) { format!("IMGIMG{at}Z") } else { format!("w{at}") };
    let words: Vec<String> = (0..64).map(words).collect();
    let model = changed(
        "chameleon",
        &[("tokenizer.ggml.tokens", Value::Array(Array::String(words.iter().map(String::as_str).collect())))],
        None,
    );
    let bias = model.tensor_data(model.require_tensor("output.bias").unwrap());
    let numbers: Vec<f32> = bias.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert!(numbers[..4].iter().chain(&numbers[60..]).all(|number| *number == 0.0));
    assert!(numbers[4..60].iter().all(|number| *number == f32::MIN));
    let last = |model: &Gguf| ixc_architectures::build(model).unwrap().module.functions[0].ops.last().unwrap().kind;
    assert_eq!(last(&model), OpKind::AddBias);
    assert_eq!(last(&changed("chameleon", &[], None)), OpKind::Matmul);
}

/// Tests that each layer must have the tensor `layer_output_scale`, which is one number.
#[test]
fn layer_output_scale_is_required_in_each_layer() {
    let missing = "blk.1.layer_output_scale.weight";
    assert_eq!(refused("talkie", &[], Some(missing)), format!("tensor \"{missing}\" is missing"));
}

/// Checks that the number of RWKV's heads follows from the size of a head, whatever head count the
/// file states. Each layer has a recurrent state.
#[test]
fn heads_of_rwkv_follow_from_their_size() {
    let Model { hyper, module, .. } = built("rwkv7", &[]);
    assert!(hyper.layers.iter().all(|layer| layer.recurrent && (layer.heads, layer.kv_heads) == (3, 3)));
    let states: Vec<_> = module.states.iter().filter(|state| state.name.starts_with("wkv")).collect();
    assert!(states.iter().all(|state| state.fields[0].dims == [3, 16, 16].map(Dim::Fixed)));
    assert_eq!(states.len(), hyper.layers.len());
    // Only RWKV-6 divides the stream by 2, here after each layer.
    let halved = |model: &Model| {
        let scales = model.module.functions[0].ops.iter().filter(|op| op.kind == OpKind::Unary(Unary::Scale));
        scales.filter(|op| op.attr("factor").float() == 0.5).count()
    };
    let rwkv6 = built("rwkv6", &[]);
    assert_eq!((halved(&rwkv6), halved(&built("rwkv7", &[]))), (rwkv6.hyper.layers.len(), 0));
    let hyper = built("rwkv6qwen2", &[]).hyper;
    assert_eq!((hyper.layers[0].heads, hyper.layers[0].kv_heads), (4, 2));
    assert_eq!(
        refused("rwkv7", &[("rwkv7.wkv.head_size", 20u32.into())], None),
        "key \"rwkv7.wkv.head_size\" is 20; must be a divisor of embedding_length, 48, with at most 65536 heads"
    );
    assert_eq!(
        refused("rwkv7", &[("rwkv7.token_shift_count", 1u32.into())], None),
        "key \"rwkv7.token_shift_count\" is 1; must be 2, the number of token shifts in this architecture"
    );
    for (tensor, name) in [("blk.1.time_mix_lerp_fused.weight", "rwkv7"), ("blk.1.time_mix_lerp_x.weight", "rwkv6")] {
        let error = refused(name, &[], Some(tensor));
        assert!(error.contains(tensor), "{error}");
    }
}

/// Tests the states of RWKV's layers: a matrix for each head, and the last row of each block that
/// mixes rows with previous rows. Only RWKV-7 has the delta rule; only RWKV-6 reads rows before the
/// state's update.
#[test]
fn rwkv_states_are_head_matrices_and_last_rows() {
    for (name, states, finds, words) in [
        ("rwkv7", 3, true, [false, false]),
        ("arwkv7", 2, true, [false, false]),
        ("rwkv6", 3, false, [true, false]),
        ("rwkv6qwen2", 2, false, [false, true]),
    ] {
        let Model { hyper, module, .. } = built(name, &[]);
        assert_eq!(module.states.len(), states * hyper.layers.len(), "{name}");
        let ops = module.functions[0].ops.iter().filter(|op| op.kind == OpKind::Recurrent(Recurrent::Wkv));
        let found: Vec<_> = ops
            .map(|op| (op.operand("find") != Operand::Absent, ["before", "filled"].map(|word| op.attr(word).bool())))
            .collect();
        assert_eq!(found, vec![(finds, words); hyper.layers.len()], "{name}");
    }
}

/// Tests that CodeShell's output matrix is also the embedding table, in files without one. Both
/// names then refer to the same bytes.
#[test]
fn embeddings_may_be_the_output_matrix() {
    let place =
        |model: &Gguf, name: &str| model.tensor(name).map(|tensor| (tensor.file(), tensor.offset(), tensor.bytes()));
    let model = changed("codeshell", &[], Some("token_embd.weight"));
    assert!(place(&model, "output.weight").is_some());
    assert_eq!(place(&model, "token_embd.weight"), place(&model, "output.weight"));
    assert_eq!(model.own_tensors().len() + 1, model.tensors().len());
    ixc_architectures::build(&model).unwrap();
    let model = changed("codeshell", &[], None);
    assert_ne!(place(&model, "token_embd.weight"), place(&model, "output.weight"));
    // In other architectures, a missing embedding table is an error.
    assert_eq!(refused("starcoder2", &[], Some("token_embd.weight")), "tensor \"token_embd.weight\" is missing");
}

/// Tests that Falcon has ALiBi if files state it, and then no RoPE. The slopes are multiplied by
/// the factor on attention scores.
#[test]
fn falcon_alibi_slopes_include_the_attention_scale() {
    let ops = |keys: &[(&str, Value)]| built("falcon-rw", keys).module.functions[0].ops.clone();
    // The length of heads is eight, so the factor is `1 / sqrt(8)`.
    let slope = 8f64.sqrt().recip() as f32;
    let found = |op: &Op| (ScoreAttrs::from_op(op).slope as f32, ScoreAttrs::from_op(op).max_bias);
    let all = ops(&[]);
    let attention: Vec<_> = all.iter().filter(|op| op.kind == OpKind::Attention).map(found).collect();
    assert_eq!(attention, [(slope, 8.0); 2]);
    assert!(all.iter().all(|op| op.kind != OpKind::Rope));
    // With a maximum bias of 0, layers have RoPE and no ALiBi.
    let none = ops(&[("falcon.attention.max_alibi_bias", 0f32.into())]);
    assert!(none.iter().any(|op| op.kind == OpKind::Rope));
    assert!(none.iter().filter(|op| op.kind == OpKind::Attention).all(|op| found(op) == (0.0, 0.0)));
    let slopes_of_mpt = built("mpt", &[]).module.functions[0].ops.clone();
    assert!(slopes_of_mpt.iter().filter(|op| op.kind == OpKind::Attention).all(|op| found(op) == (0.0, 8.0)));
}
