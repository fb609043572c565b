//! Tests fused ops against the ops that they replace. The results must have the same bits.

use ixc_ir::format::Format;
use ixc_ir::graph::interpret::Value;
use ixc_ir::graph::parse::parse;
use ixc_ir::graph::quantise::quantise;
use ixc_ir::random::Random;
use ixc_testing::random_graphs::bytes_of_weight;

use super::{check, f32s, i32s, run};

/// Weights of different formats for the tests of fused ops, with shapes [64, 256] and [4, 64, 256].
const WEIGHTS: &str = "
weight @n : f32[256]   weight @b : f32[64]   weight @hn : f32[16]   weight @ff : f32[4]
weight @q4k : q4_k[64, 256]   weight @q5k : q5_k[64, 256]   weight @q6k : q6_k[64, 256]
weight @q8 : q8_0[64, 256]    weight @q4 : q4_0[64, 256]    weight @h : f16[64, 256]   weight @bf : bf16[64, 256]
weight @eg : q4_k[4, 64, 256] weight @eu : q6_k[4, 64, 256] weight @ed : q8_0[4, 32, 64]";

/// Runs two functions on the same arguments, and checks that their results have the same bits.
fn same(params: &str, results: &str, fused: &str, plain: &str, args: &[Value]) {
    let function = |body: &str| {
        format!(
            "{WEIGHTS}\nstate @kv : paged f16[4, S, 16], f16[4, S, 8]\nfunc @f({params}) -> ({results}) {{ {body} }}"
        )
    };
    let module = parse(&function(fused)).unwrap_or_else(|e| panic!("{e}\n{fused}"));
    let mut rng = Random::new(11);
    let weights: Vec<Vec<u8>> = module.weights.iter().map(|w| bytes_of_weight(&mut rng, w)).collect();
    let found = run(&function(fused), &weights, args).unwrap();
    let expected = run(&function(plain), &weights, args).unwrap();
    assert_eq!(found, expected, "{fused}");
}

fn noise(dims: &[usize], seed: u64) -> Value {
    let mut rng = Random::new(seed);
    let data = (0..dims.iter().product()).map(|_| rng.signed()).collect();
    Value::F32 { dims: dims.to_vec(), data }
}

/// Returns quantised activations, and the dequantised numbers as f32 for the unfused ops.
fn rounded(dims: &[usize], format: Format, seed: u64) -> (Value, Value) {
    let Value::F32 { data, .. } = noise(dims, seed) else { unreachable!() };
    let blocks = quantise(format, &data);
    let mut back = vec![0f32; data.len()];
    format.dequantise(&blocks, &mut back);
    (Value::Blocks { format, dims: dims.to_vec(), bytes: blocks }, Value::F32 { dims: dims.to_vec(), data: back })
}

#[test]
fn linear_equals_its_unfused_ops() {
    for (w, format) in [
        ("q4k", Format::A8Super),
        ("q5k", Format::A8Super),
        ("q6k", Format::A8Super),
        ("q8", Format::A8Small),
        ("q4", Format::A8Small),
        ("h", Format::F32),
        ("bf", Format::F32),
    ] {
        let (blocks, x) = rounded(&[3, 256], format, 1);
        let blocks = if format == Format::F32 { x.clone() } else { blocks };
        same(
            &format!("%q: {format}[T, 256], %x: f32[T, 256], %r: f32[T, 64]"),
            "f32[T, 64]",
            &format!("%y = linear %q, @{w}, @b, %r return %y"),
            &format!("%d = dequantise @{w} %1 = matmul %x, %d %2 = add_bias %1, @b %y = add %2, %r return %y"),
            &[blocks, x, noise(&[3, 64], 2)],
        );
    }
}

#[test]
fn rms_norm_quantise_equals_its_unfused_ops() {
    for format in ["f32", "a8_super", "a8_small"] {
        same(
            "%x: f32[T, 256]",
            &format!("{format}[T, 256]"),
            &format!("%y = rms_norm.quantise %x, @n {{eps = 1e-6, format = {format}}} return %y"),
            &format!("%1 = rms_norm %x, @n {{eps = 1e-6}} %y = quantise %1 {{format = {format}}} return %y"),
            &[noise(&[2, 256], 3)],
        );
    }
}

#[test]
fn linear_qkv_is_three_linears() {
    let (k, _) = rounded(&[2, 256], Format::A8Super, 4);
    let (v, _) = rounded(&[2, 256], Format::A8Small, 4);
    same(
        "%q: a8_super[T, 256], %s: a8_small[T, 256]",
        "f32[T, 64], f32[T, 64], f32[T, 64]",
        "%1, %2, %3 = linear.qkv %q, %q, %s, @q4k, @q6k, @q8, _, @b, _ return %1, %2, %3",
        "%1 = linear %q, @q4k, _, _ %2 = linear %q, @q6k, @b, _ %3 = linear %s, @q8, _, _ return %1, %2, %3",
        &[k, v],
    );
}

#[test]
fn linear_swiglu_equals_its_unfused_ops() {
    let (x, _) = rounded(&[2, 256], Format::A8Super, 5);
    same(
        "%x: a8_super[T, 256]",
        "a8_small[T, 64]",
        "%y = linear.swiglu %x, @q4k, @q6k, _, _ {act = silu, limit = 0.0, shift = 0.0, format = a8_small} return %y",
        "%g = linear %x, @q4k, _, _ %s = silu %g %u = linear %x, @q6k, _, _ %m = mul %s, %u
         %y = quantise %m {format = a8_small} return %y",
        &[x],
    );
}

#[test]
fn expert_swiglu_and_down_equal_their_unfused_ops() {
    let (blocks, x) = rounded(&[3, 256], Format::A8Super, 6);
    let ids = i32s(&[3, 2], &[0, 3, 3, 1, 1, 0]);
    same(
        "%q: a8_super[T, 256], %x: f32[T, 256], %i: i32[T, 2]",
        "a8_small[T, 2, 64]",
        "%y = expert.swiglu %q, %i, @eg, @eu, _, _ {act = silu, limit = 0.0, shift = 0.0, format = a8_small} return %y",
        "%dg = dequantise @eg %du = dequantise @eu %g = expert.matmul %x, %i, %dg %s = silu %g
         %u = expert.matmul %x, %i, %du %m = mul %s, %u %y = quantise %m {format = a8_small} return %y",
        &[blocks, x, ids.clone()],
    );
    let (blocks, x) = rounded(&[3, 2, 64], Format::A8Small, 7);
    same(
        "%q: a8_small[T, 2, 64], %x: f32[T, 2, 64], %i: i32[T, 2], %p: f32[T, 2], %r: f32[T, 32]",
        "f32[T, 32]",
        "%y = expert.down %q, %i, %p, @ed, _, %r return %y",
        "%d = dequantise @ed %m = expert.matmul %x, %i, %d %c = expert.combine %m, %p %y = add %c, %r return %y",
        &[blocks, x, ids, noise(&[3, 2], 8), noise(&[3, 32], 9)],
    );
}

#[test]
fn rope_heads_and_append_equal_their_unfused_ops() {
    let rope = "base = 1e4, dims = 8, style = neox, scaling = none, factor = 1, original_context = 0, beta_fast = 32,
        beta_slow = 1, attn_factor = 1";
    let pos = i32s(&[3], &[0, 1, 2]);
    same(
        "%x: f32[T, 64], %p: i32[T]",
        "f32[T, 4, 16], f32[T, 4, 16]",
        &format!(
            "%y = rope.heads %x, %p, @hn, @ff, _ {{heads = 4, eps = 1e-6, {rope}}}
             %z = rope.heads %x, %p, _, _, _ {{heads = 4, eps = 1e-6, {rope}}} return %y, %z"
        ),
        &format!(
            "%h = split_heads %x {{heads = 4}} %n = rms_norm %h, @hn {{eps = 1e-6}}
             %y = rope %n, %p, @ff, _ {{{rope}}} %z = rope %h, %p, _, _ {{{rope}}} return %y, %z"
        ),
        &[noise(&[3, 64], 10), pos.clone()],
    );
    let attention = "attention %q, %1, %p, _, _ {scale = 0.25, cap = 0.0} return %y, %2";
    same(
        "%kv: token<@kv>, %q: f32[T, 8, 16], %x: f32[T, 64], %v: f32[T, 32], %p: i32[T]",
        "f32[T, 8, 8], token<@kv>",
        &format!(
            "%1 = rope.append %kv, %x, %v, %p, @hn, @ff, _ {{heads = 4, eps = 1e-6, {rope}}} %y, %2 = {attention}"
        ),
        &format!(
            "%h = split_heads %x {{heads = 4}} %n = rms_norm %h, @hn {{eps = 1e-6}} %k = rope %n, %p, @ff, _ {{{rope}}}
             %w = split_heads %v {{heads = 4}} %1 = kv.append %kv, %k, %w, %p %y, %2 = {attention}"
        ),
        &[Value::Token, noise(&[3, 8, 16], 12), noise(&[3, 64], 13), noise(&[3, 32], 14), pos],
    );
}

#[test]
fn expert_down_works_without_residual_after_waiting() {
    let text = "
weight @gate : f32[2, 1, 1]
weight @down : f32[2, 1, 1]
func @f(%x: f32[T, 1], %ids: i32[T, 1], %p: f32[T, 1], %a: f32[T, 1, 1]) -> (i32[T, 1], f32[T, 1]) {
  %s = expert.slots
  %s1 = expert.prefetch %s, %ids, @gate, @gate, @down {layer = 0, when = routed}
  %ready, %s2 = expert.wait %s1, %ids {layer = 0}
  %y = expert.down %a, %ready, %p, @down, _, _
  %s3 = expert.evict %s2, %y {layer = 0}
  return %ready, %y
}";
    let args =
        [f32s(&[2, 1], &[0.0, 0.0]), i32s(&[2, 1], &[1, 0]), f32s(&[2, 1], &[0.5, 2.0]), f32s(&[2, 1, 1], &[3.0, 5.0])];
    let expected = [i32s(&[2, 1], &[1, 0]), f32s(&[2, 1], &[10.5, 20.0])];
    check(text, &[&[0.0, 0.0], &[2.0, 7.0]], &args, &expected);
}

#[test]
fn expert_split_separates_the_first_slots() {
    let text = "
func @f(%ids: i32[T, 3], %p: f32[T, 3]) -> (i32[T, 2], f32[T, 2], i32[T, 1], f32[T, 1]) {
  %a, %b, %c, %d = expert.split %ids, %p {now = 2}
  return %a, %b, %c, %d
}";
    let args = [i32s(&[2, 3], &[5, 6, 7, 8, 9, 4]), f32s(&[2, 3], &[0.5, 0.25, 0.125, 3.0, 2.0, 1.0])];
    let expected = [
        i32s(&[2, 2], &[5, 6, 8, 9]),
        f32s(&[2, 2], &[0.5, 0.25, 3.0, 2.0]),
        i32s(&[2, 1], &[7, 4]),
        f32s(&[2, 1], &[0.125, 1.0]),
    ];
    check(text, &[], &args, &expected);
}
