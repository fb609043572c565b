//! Tests every op against values computed by hand, and every fused op against the ops that it
//! replaces.

#[path = "graph_interpret/attention.rs"]
mod attention;
#[path = "graph_interpret/experts.rs"]
mod experts;
#[path = "graph_interpret/fused.rs"]
mod fused;
#[path = "graph_interpret/recurrent.rs"]
mod recurrent;

use ixc_ir::format::Format;
use ixc_ir::graph::attrs::{RopeAttrs, RopeScaling, RopeStyle};
use ixc_ir::graph::interpret::math::rope_angles;
use ixc_ir::graph::interpret::{InterpretError, Interpreter, Value};
use ixc_ir::graph::parse::parse;
use ixc_ir::graph::quantise::quantise;

fn f32s(dims: &[usize], data: &[f32]) -> Value {
    Value::F32 { dims: dims.to_vec(), data: data.to_vec() }
}

fn i32s(dims: &[usize], data: &[i32]) -> Value {
    Value::I32 { dims: dims.to_vec(), data: data.to_vec() }
}

fn bytes(data: &[f32]) -> Vec<u8> {
    quantise(Format::F32, data)
}

fn run(text: &str, weights: &[Vec<u8>], args: &[Value]) -> Result<Vec<Value>, InterpretError> {
    let module = parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Interpreter::new(&module, &weights.to_vec())?.run("f", args.to_vec())
}

fn check(text: &str, weights: &[&[f32]], args: &[Value], expected: &[Value]) {
    let weights: Vec<Vec<u8>> = weights.iter().map(|w| bytes(w)).collect();
    assert_eq!(run(text, &weights, args).unwrap(), expected, "{text}");
}

/// Checks that the values are equal, with a tolerance of one f32 rounding each.
fn near(found: &Value, expected: &[f32]) {
    let Value::F32 { data, .. } = found else { panic!("{found:?}") };
    assert_eq!(data.len(), expected.len());
    for (x, y) in data.iter().zip(expected) {
        assert!((x - y).abs() <= y.abs().max(1.0) * f32::EPSILON, "{data:?} is not {expected:?}");
    }
}

const X: [f32; 4] = [1.0, 2.0, 3.0, -4.0];

#[test]
fn embed_and_take_rows_pick_rows() {
    check(
        "weight @t : f32[3, 2] func @f(%i: i32[T]) -> (f32[T, 2]) { %y = embed %i, @t return %y }",
        &[&[0.0, 1.0, 10.0, 11.0, 20.0, 21.0]],
        &[i32s(&[2], &[2, 0])],
        &[f32s(&[2, 2], &[20.0, 21.0, 0.0, 1.0])],
    );
    check(
        "func @f(%x: f32[T, 2], %r: i32[L]) -> (f32[L, 2]) { %y = take_rows %x, %r return %y }",
        &[],
        &[f32s(&[2, 2], &X), i32s(&[3], &[1, 1, 0])],
        &[f32s(&[3, 2], &[3.0, -4.0, 3.0, -4.0, 1.0, 2.0])],
    );
}

#[test]
fn ids_and_rows_out_of_range_are_errors() {
    let embed = "weight @t : f32[3, 1] func @f(%i: i32[T]) -> (f32[T, 1]) { %y = embed %i, @t return %y }";
    for id in [3, -1, i32::MAX] {
        let error = run(embed, &[bytes(&[0.0; 3])], &[i32s(&[1], &[id])]).unwrap_err();
        assert!(matches!(error, InterpretError::Index { what: "id", bound: 3, .. }), "{error}");
    }
    let take = "func @f(%x: f32[T, 2], %r: i32[L]) -> (f32[L, 2]) { %y = take_rows %x, %r return %y }";
    let error = run(take, &[], &[f32s(&[2, 2], &X), i32s(&[1], &[2])]).unwrap_err();
    assert!(matches!(error, InterpretError::Index { what: "row", bound: 2, .. }), "{error}");
}

#[test]
fn arguments_and_weights_that_do_not_fit_are_errors() {
    let text = "func @f(%x: f32[T, 2], %r: i32[T]) -> (f32[T, 2]) { %y = take_rows %x, %r return %y }";
    for args in [
        vec![f32s(&[2, 2], &X)],
        vec![f32s(&[2, 2], &X), i32s(&[1], &[0])],
        vec![f32s(&[1, 4], &X), i32s(&[1], &[0])],
        vec![f32s(&[2, 2], &X[..3]), i32s(&[2], &[0, 0])],
        vec![f32s(&[2, 2], &X), f32s(&[2], &[0.0, 0.0])],
        vec![Value::Token, i32s(&[2], &[0, 0])],
    ] {
        let error = run(text, &[], &args).unwrap_err();
        let fits = matches!(error, InterpretError::Argument { .. } | InterpretError::ArgumentCount { .. });
        assert!(fits, "{error}");
    }
    let text = "weight @w : f32[2] func @f() -> (f32[2]) { %y = dequantise @w return %y }";
    let error = run(text, &[vec![0; 7]], &[]).unwrap_err();
    assert!(matches!(error, InterpretError::WeightBytes { expected: 8, found: 7, .. }), "{error}");
    assert!(matches!(run(text, &[], &[]).unwrap_err(), InterpretError::Weight { .. }));
}

#[test]
fn matmul_multiplies_by_the_transpose() {
    let text = "weight @w : f32[3, 2] func @f(%x: f32[T, 2]) -> (f32[T, 3]) {
        %d = dequantise @w %y = matmul %x, %d return %y }";
    // [1 2; 3 -4] times [1 0; 0 1; 2 -1]'
    let y = f32s(&[2, 3], &[1.0, 2.0, 0.0, 3.0, -4.0, 10.0]);
    check(text, &[&[1.0, 0.0, 0.0, 1.0, 2.0, -1.0]], &[f32s(&[2, 2], &X)], std::slice::from_ref(&y));
    let value = "func @f(%x: f32[T, 2], %w: f32[3, 2]) -> (f32[T, 3]) { %y = matmul %x, %w return %y }";
    check(value, &[], &[f32s(&[2, 2], &X), f32s(&[3, 2], &[1.0, 0.0, 0.0, 1.0, 2.0, -1.0])], &[y]);
}

#[test]
fn sums_are_kept_in_f64() {
    let text = "weight @w : f32[1, 3] func @f(%x: f32[T, 3]) -> (f32[T, 1]) {
        %d = dequantise @w %y = matmul %x, %d return %y }";
    check(text, &[&[1e8, 1.0, -1e8]], &[f32s(&[1, 3], &[1.0; 3])], &[f32s(&[1, 1], &[1.0])]);
}

#[test]
fn elementwise_ops() {
    let x = || f32s(&[2, 2], &X);
    let op = |op: &str| format!("func @f(%x: f32[T, 2]) -> (f32[T, 2]) {{ %y = {op} %x, %x return %y }}");
    check(&op("add"), &[], &[x()], &[f32s(&[2, 2], &[2.0, 4.0, 6.0, -8.0])]);
    check(&op("mul"), &[], &[x()], &[f32s(&[2, 2], &[1.0, 4.0, 9.0, 16.0])]);
    check(
        "weight @b : f32[2] func @f(%x: f32[T, 2]) -> (f32[T, 2]) { %y = add_bias %x, @b return %y }",
        &[&[10.0, 20.0]],
        &[x()],
        &[f32s(&[2, 2], &[11.0, 22.0, 13.0, 16.0])],
    );
    let silu = "func @f(%x: f32[T, 2]) -> (f32[T, 2]) { %y = silu %x return %y }";
    let y = run(silu, &[], &[f32s(&[1, 2], &[0.0, 1.0])]).unwrap();
    near(&y[0], &[0.0, 0.731_058_6]);
    // For x = -1e4, exp(-x) overflows to infinity. For x = 1e4, it becomes 0.
    let y = run(silu, &[], &[f32s(&[1, 2], &[-1e4, 1e4])]).unwrap();
    near(&y[0], &[0.0, 1e4]);
    let softcap = "func @f(%x: f32[T, 2]) -> (f32[T, 2]) { %y = softcap %x {cap = 30.0} return %y }";
    let y = run(softcap, &[], &[f32s(&[2, 2], &[0.0, 30.0, -3.0, 1e4])]).unwrap();
    near(&y[0], &[0.0, 22.847_825, -2.990_04, 30.0]);
}

#[test]
fn rms_norm_divides_by_the_root_of_the_mean_square() {
    let text = "weight @w : f32[2] func @f(%x: f32[T, 2]) -> (f32[T, 2]) {
        %y = rms_norm %x, @w {eps = 0.5} return %y }";
    // mean(3^2, 4^2) + 0.5 = 13
    let y = run(text, &[bytes(&[1.0, 2.0])], &[f32s(&[1, 2], &[3.0, 4.0])]).unwrap();
    let root = 13f64.sqrt();
    near(&y[0], &[(3.0 / root) as f32, (8.0 / root) as f32]);
}

#[test]
fn streams_are_weighted_and_mixed() {
    let text = "weight @s : f32[3] weight @b : f32[8] func @f(%x: f32[T, 8]) -> (f32[T, 8]) {
        %w = stream.weights %x, @s, @b {streams = 2, iterations = 2, eps = 0.125, magnitude = 2.0} return %w }";
    let base = [0.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0];
    // The weights of input, output and matrix have one scale each. The softmax of ln 3 and 0 gives
    // 3/4 and 1/4.
    let row = [0.5, 0.0, 3.0, 0.0, 3f32.ln(), 0.0, 0.0, 3f32.ln()];
    let y = run(text, &[bytes(&[2.0, 0.0, 1.0]), bytes(&base)], &[f32s(&[1, 8], &row)]).unwrap();
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    // Rows and columns have the same numbers, 7/8 and 3/8. Both are divided by their sum plus 1/8,
    // three times.
    let (mut a, mut b) = (0.875, 0.375);
    for _ in 0..3 {
        (a, b) = (a / (a + b + 0.125), b / (a + b + 0.125));
    }
    let expected = [sigmoid(1.0) + 0.125, sigmoid(1.0) + 0.125, 1.0, 2.0 * sigmoid(-1.0), a, b, b, a];
    near(&y[0], &expected.map(|x| x as f32));
    let text = "weight @s : f32[1] weight @b : f32[2] func @f(%x: f32[T, 2]) -> (f32[T, 2]) {
        %w = stream.weights %x, @s, @b {streams = 2, iterations = 2, eps = 0.125, magnitude = 2.0} return %w }";
    let y = run(text, &[bytes(&[2.0]), bytes(&[0.0, 1.0])], &[f32s(&[1, 2], &[0.5, 0.0])]).unwrap();
    near(&y[0], &expected[..2].iter().map(|&x| x as f32).collect::<Vec<_>>());
    // Without a matrix, streams stay separate. `eps` is then also added to the weights of the
    // output.
    let text = "weight @s : f32[2] weight @b : f32[4] func @f(%x: f32[T, 4]) -> (f32[T, 4]) {
        %w = stream.weights %x, @s, @b {streams = 2, iterations = 0, eps = 0.125, magnitude = 3.0} return %w }";
    let y = run(text, &[bytes(&[2.0, 0.5]), bytes(&[0.0, 1.0, 0.0, -1.0])], &[f32s(&[1, 4], &[0.5, 0.0, 3.0, 0.0])]);
    let expected = [sigmoid(1.0), sigmoid(1.0), 3.0 * sigmoid(1.5), 3.0 * sigmoid(-1.0)].map(|x| (x + 0.125) as f32);
    near(&y.unwrap()[0], &expected);

    let streams = f32s(&[1, 2, 2], &[1.0, 2.0, 10.0, 20.0]);
    let text = "func @f(%x: f32[T, 2, 2], %w: f32[T, 3]) -> (f32[T, 2]) { %y = stream.input %x, %w return %y }";
    check(text, &[], &[streams.clone(), f32s(&[1, 3], &[2.0, 3.0, 9.0])], &[f32s(&[1, 2], &[32.0, 64.0])]);
    let text = "func @f(%x: f32[T, 2, 2], %y: f32[T, 2], %w: f32[T, 8]) -> (f32[T, 2, 2]) {
        %z = stream.mix %x, %y, %w return %z }";
    // Each output stream is mixed with the weights of one column of the matrix.
    let w = f32s(&[1, 8], &[9.0, 9.0, 100.0, 1000.0, 1.0, 2.0, 3.0, 4.0]);
    let z = f32s(&[1, 2, 2], &[131.0, 162.0, 1042.0, 1084.0]);
    check(text, &[], &[streams.clone(), f32s(&[1, 2], &[1.0, 1.0]), w], &[z]);
    let text = "func @f(%x: f32[T, 2, 2], %y: f32[T, 2], %w: f32[T, 4]) -> (f32[T, 2, 2]) {
        %z = stream.mix %x, %y, %w return %z }";
    let w = f32s(&[1, 4], &[9.0, 9.0, 100.0, 1000.0]);
    let z = f32s(&[1, 2, 2], &[101.0, 202.0, 1010.0, 2020.0]);
    check(text, &[], &[streams, f32s(&[1, 2], &[1.0, 2.0]), w], &[z]);
}

#[test]
fn heads_are_split_and_merged_in_place() {
    let text = "func @f(%x: f32[T, 4]) -> (f32[T, 2, 2], f32[T, 4]) {
        %y = split_heads %x {heads = 2} %z = merge_heads %y return %y, %z }";
    check(text, &[], &[f32s(&[1, 4], &X)], &[f32s(&[1, 2, 2], &X), f32s(&[1, 4], &X)]);
}

fn rope_text(style: &str, factors: &str) -> String {
    format!(
        "weight @f : f32[1] func @f(%x: f32[T, 1, 4], %p: i32[T]) -> (f32[T, 1, 4]) {{
        %y = rope %x, %p, {factors} {{base = 10000, dims = 2, style = {style}, scaling = none, factor = 1,
            original_context = 0, beta_fast = 32, beta_slow = 1, attn_factor = 1}} return %y }}"
    )
}

#[test]
fn rope_rotates_pairs_by_position_and_copies_the_rest() {
    let x = f32s(&[1, 1, 4], &[1.0, 0.0, 3.0, 4.0]);
    let (sin, cos) = (2f64.sin() as f32, 2f64.cos() as f32);
    for style in ["norm", "neox"] {
        let y = run(&rope_text(style, "_, _"), &[bytes(&[2.0])], &[x.clone(), i32s(&[1], &[2])]).unwrap();
        near(&y[0], &[cos, sin, 3.0, 4.0]);
    }
    // The frequency factor divides the angle of its pair.
    let (sin, cos) = (1f64.sin() as f32, 1f64.cos() as f32);
    let y = run(&rope_text("norm", "@f, _"), &[bytes(&[2.0])], &[x, i32s(&[1], &[2])]).unwrap();
    near(&y[0], &[cos, sin, 3.0, 4.0]);
}

#[test]
fn norm_pairs_are_adjacent_and_neox_pairs_half_a_rotation_apart() {
    let text = |style: &str| rope_text(style, "_, _").replace("dims = 2", "dims = 4");
    let args = [f32s(&[1, 1, 4], &[1.0, 0.0, 0.0, 0.0]), i32s(&[1], &[1])];
    let (sin, cos) = (1f64.sin() as f32, 1f64.cos() as f32);
    near(&run(&text("norm"), &[bytes(&[1.0])], &args).unwrap()[0], &[cos, sin, 0.0, 0.0]);
    near(&run(&text("neox"), &[bytes(&[1.0])], &args).unwrap()[0], &[cos, 0.0, sin, 0.0]);
}

#[test]
fn scaled_rope_follows_the_formulas() {
    let mut rope = RopeAttrs { factor: 4.0, ..RopeAttrs::plain(10_000.0, 128, RopeStyle::Neox) };
    let (plain, magnitude) = rope_angles(&rope, None);
    assert_eq!((plain[0], magnitude), (1.0, 1.0));
    assert!((plain[32] - 0.01).abs() < 1e-15);

    rope.scaling = RopeScaling::Linear;
    let (linear, magnitude) = rope_angles(&rope, None);
    assert_eq!(magnitude, 1.0);
    assert!(linear.iter().zip(&plain).all(|(l, p)| *l == p / 4.0));

    rope.scaling = RopeScaling::Yarn;
    rope.original_context = 4096;
    let (yarn, magnitude) = rope_angles(&rope, None);
    assert!((magnitude - (1.0 + 0.1 * 4f64.ln())).abs() < 1e-15);
    // low = floor(128 ln(4096 / (32 * 2 pi)) / (2 ln 10000)) = floor(20.94), high = ceil(45.03)
    assert_eq!(yarn[20], plain[20]);
    assert!(yarn[21] < plain[21] && yarn[21] > plain[21] / 4.0);
    let keep = 1.0 - (33.0 - 20.0) / (46.0 - 20.0);
    assert!((yarn[33] - (plain[33] / 4.0 * (1.0 - keep) + plain[33] * keep)).abs() < 1e-15);
    assert_eq!(yarn[46], plain[46] / 4.0);
}

/// Tests a ramp whose ends are between pairs, at 20.94 and 45.03.
#[test]
fn untruncated_yarn_ramp_has_fractional_ends() {
    let plain = RopeAttrs::plain(10_000.0, 128, RopeStyle::Neox);
    let rope = RopeAttrs { factor: 4.0, scaling: RopeScaling::YarnUntruncated, original_context: 4096, ..plain };
    let ((plain, _), (yarn, magnitude)) = (rope_angles(&plain, None), rope_angles(&rope, None));
    assert!((magnitude - (1.0 + 0.1 * 4f64.ln())).abs() < 1e-15);
    let turns = |beta: f64| 128.0 * (4096.0 / (beta * std::f64::consts::TAU)).ln() / (2.0 * 10_000f64.ln());
    let (low, high) = (turns(32.0), turns(1.0));
    assert!((low - 20.94).abs() < 0.01 && (high - 45.03).abs() < 0.01, "{low}, {high}");
    assert_eq!((yarn[20], yarn[46]), (plain[20], plain[46] / 4.0));
    let keep = 1.0 - (33.0 - low) / (high - low);
    assert!((yarn[33] - (plain[33] / 4.0 * (1.0 - keep) + plain[33] * keep)).abs() < 1e-15);
}

#[test]
fn long_contexts_have_factors_of_their_own() {
    let text = rope_text("norm", "@f, @l")
        .replace("weight @f : f32[1]", "weight @f : f32[1] weight @l : f32[1]")
        .replace("original_context = 0", "original_context = 64");
    let module = parse(&text).unwrap();
    let weights = vec![bytes(&[2.0]), bytes(&[4.0])];
    let args = [f32s(&[1, 1, 4], &[1.0, 0.0, 3.0, 4.0]), i32s(&[1], &[2])];
    for (context, angle) in [(64, 1f64), (65, 0.5)] {
        let mut interpreter = Interpreter::new(&module, &weights).unwrap().with_context(context);
        let y = interpreter.run("f", args.to_vec()).unwrap();
        near(&y[0], &[angle.cos() as f32, angle.sin() as f32, 3.0, 4.0]);
    }
}

#[test]
fn temperature_grows_in_steps_and_centre_subtracts_means() {
    let text = "func @f(%x: f32[T, 2], %p: i32[T]) -> (f32[T, 2]) {
        %y = temperature %x, %p {scale = 0.5, length = 4, offset = 1} return %y }";
    let y = run(text, &[], &[f32s(&[3, 2], &[2.0, -4.0, 2.0, -4.0, 2.0, -4.0]), i32s(&[3], &[2, 3, 7])]).unwrap();
    let [one, two] = [2f64, 3.0].map(|steps| (1.0 + 0.5 * steps.ln()) as f32);
    near(&y[0], &[2.0, -4.0, 2.0 * one, -4.0 * one, 2.0 * two, -4.0 * two]);
    let text = "func @f(%x: f32[T, 2, 2]) -> (f32[T, 2, 2]) { %y = centre %x return %y }";
    check(text, &[], &[f32s(&[1, 2, 2], &X)], &[f32s(&[1, 2, 2], &[-0.5, 0.5, 3.5, -3.5])]);
}

#[test]
fn temperatures_of_heads() {
    let text = "weight @s : f32[2] weight @b : f32[2]
        func @f(%x: f32[T, 2, 2], %p: i32[T]) -> (f32[T, 2, 2]) { %y = heads.temperature %x, %p, @s, @b return %y }";
    let weights = [vec![0.5f32, -2.0], vec![1.0, 3.0]].map(|of| of.iter().flat_map(|x| x.to_le_bytes()).collect());
    let x = [2.0, -4.0, 1.0, 0.5];
    let y = run(text, &weights, &[f32s(&[2, 2, 2], &[x, x].concat()), i32s(&[2], &[0, 6])]).unwrap();
    let [one, other] = [1.0 + 0.5 * 7f64.ln(), 3.0 - 2.0 * 7f64.ln()].map(|factor| factor as f32);
    near(&y[0], &[2.0, -4.0, 3.0, 1.5, 2.0 * one, -4.0 * one, other, 0.5 * other]);
}

#[test]
fn centre_takes_the_mean_away() {
    check(
        "func @f(%x: f32[T, 2]) -> (f32[T, 2]) { %y = centre %x return %y }",
        &[],
        &[f32s(&[2, 2], &X)],
        &[f32s(&[2, 2], &[-0.5, 0.5, 3.5, -3.5])],
    );
}

/// Tests that the limit applies to the activation function's result, not to its argument.
#[test]
fn a_limited_silu_bounds_its_result() {
    let text = "func @f(%g: f32[T, 3], %u: f32[T, 3]) -> (f32[T, 3]) {
        %y = gated %g, %u {act = limited_silu, limit = 2.0, shift = 0.0} return %y }";
    let found = run(text, &[], &[f32s(&[1, 3], &[3.0, 2.0, -1.0]), f32s(&[1, 3], &[5.0, -3.0, 1.0])]).unwrap();
    let silu = |x: f64| (x / (1.0 + (-x).exp())) as f32;
    near(&found[0], &[2.0 * 2.0, silu(2.0) * -2.0, silu(-1.0)]);
}

#[test]
fn positions_are_rounded_down_or_negated() {
    let text = "func @f(%pos: i32[T]) -> (i32[T], i32[T]) {
        %a = positions %pos {every = 4, back = false} %b = positions %pos {every = 1, back = true} return %a, %b }";
    let pos = i32s(&[4], &[0, 3, 4, 9]);
    check(text, &[], &[pos], &[i32s(&[4], &[0, 0, 4, 8]), i32s(&[4], &[0, -3, -4, -9])]);
}
