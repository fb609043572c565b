//! Tests every op against values computed by hand, and every fused op against the ops that it
//! replaces.

use ixc_ir::format::Format;
use ixc_ir::graph::attrs::{RopeAttrs, RopeScaling, RopeStyle};
use ixc_ir::graph::interpret::math::{ROUTE_SUM_MIN, rope_angles};
use ixc_ir::graph::interpret::{InterpretError, Interpreter, Value};
use ixc_ir::graph::parse::parse;
use ixc_ir::graph::quantise::quantise;
use ixc_ir::random::Random;
use ixc_testing::random_graphs::bytes_of_weight;

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

/// Checks that values are equal up to one rounding of f32 each.
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
    // exp(-x) overflows to infinity on one side and vanishes on the other.
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
    // Each part has its own scale. The softmax of ln 3 and 0 gives 3/4 and 1/4.
    let row = [0.5, 0.0, 3.0, 0.0, 3f32.ln(), 0.0, 0.0, 3f32.ln()];
    let y = run(text, &[bytes(&[2.0, 0.0, 1.0]), bytes(&base)], &[f32s(&[1, 8], &row)]).unwrap();
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    // Rows and columns are equal: 7/8 and 3/8, each divided by the sum plus 1/8, three times.
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
    // Separate streams: no matrix, and eps is added to the output's weights.
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
    // Each stream comes from a column of the matrix.
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
    // A frequency factor divides the angle.
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

/// Tests a ramp with ends between pairs: 20.94 and 45.03.
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
        let mut interpreter = Interpreter::new(&module, &weights).unwrap().within(context);
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

/// Positions 0 and 1 are in one chunk of 32, position 32 in the next. The soft cap turns scores of
/// 4 into 2 tanh 2.
#[test]
fn chunked_attention_with_capped_scores() {
    let text = ATTEND
        .replace("f16[1, S, 2]\n", "f16[1, S, 2] {window = 32, chunked = true}\n")
        .replace("cap = 0.0", "cap = 2.0");
    let module = parse(&text).unwrap();
    let weights: Vec<Vec<u8>> = vec![];
    let mut interpreter = Interpreter::new(&module, &weights).unwrap();
    let y = interpreter.run("f", attend(&[1.0, -1.0, 0.0, 2.0], &[0.0, 4.0], &[1.0, 2.0, 5.0, 6.0], &[0, 1])).unwrap();
    let w = 1.0 / (1.0 + (-2.0 * 2f64.tanh()).exp());
    let mixed = |a: f64, b: f64| (a * (1.0 - w) + b * w) as f32;
    near(&y[0], &[1.0, 2.0, 1.0, 2.0, 3.0, 4.0, mixed(1.0, 5.0), mixed(2.0, 6.0)]);
    for position in 2..33 {
        let y = interpreter.run("f", attend(&[0.0, 0.0], &[0.0], &[7.0, 8.0], &[position])).unwrap();
        if position == 32 {
            near(&y[0], &[7.0, 8.0, 7.0, 8.0]);
        }
    }
}

/// Tests two heads, with slopes of 1/16 and 1/256.
#[test]
fn scores_of_attention_fall_with_distance() {
    let module = parse(&ATTEND.replace("cap = 0.0", "cap = 0.0, max_bias = 8.0")).unwrap();
    let weights: Vec<Vec<u8>> = vec![];
    let mut interpreter = Interpreter::new(&module, &weights).unwrap();
    let y = interpreter.run("f", attend(&[1.0, -1.0, 0.0, 2.0], &[0.0, 4.0], &[1.0, 2.0, 5.0, 6.0], &[0, 1])).unwrap();
    let mixed = |score: f64, a: f64, b: f64| {
        let w = 1.0 / (1.0 + (-score).exp());
        (a * (1.0 - w) + b * w) as f32
    };
    let (near_by, far) = (1.0 / 16.0, 4.0 + 1.0 / 256.0);
    let second = [mixed(near_by, 1.0, 5.0), mixed(near_by, 2.0, 6.0), mixed(far, 1.0, 5.0), mixed(far, 2.0, 6.0)];
    near(&y[0], &[&[1.0, 2.0, 1.0, 2.0][..], &second].concat());

    // With a factor on slopes.
    let module = parse(&ATTEND.replace("cap = 0.0", "cap = 0.0, max_bias = 8.0, slope = 0.5")).unwrap();
    let mut interpreter = Interpreter::new(&module, &weights).unwrap();
    let y = interpreter.run("f", attend(&[1.0, -1.0, 0.0, 2.0], &[0.0, 4.0], &[1.0, 2.0, 5.0, 6.0], &[0, 1])).unwrap();
    let (near_by, far) = (1.0 / 32.0, 4.0 + 1.0 / 512.0);
    let second = [mixed(near_by, 1.0, 5.0), mixed(near_by, 2.0, 6.0), mixed(far, 1.0, 5.0), mixed(far, 2.0, 6.0)];
    near(&y[0], &[&[1.0, 2.0, 1.0, 2.0][..], &second].concat());
}

const ATTEND: &str = "state @kv : paged f16[1, S, 1], f16[1, S, 2]
    func @f(%kv: token<@kv>, %q: f32[T, 2, 1], %k: f32[T, 1, 1], %v: f32[T, 1, 2], %p: i32[T])
    -> (f32[T, 2, 2], token<@kv>) {
    %1 = kv.append %kv, %k, %v, %p
    %y, %2 = attention %q, %1, %p, _, _ {scale = 0.5, cap = 0.0}
    return %y, %2 }";

fn attend(q: &[f32], k: &[f32], v: &[f32], p: &[i32]) -> Vec<Value> {
    let t = p.len();
    vec![Value::Token, f32s(&[t, 2, 1], q), f32s(&[t, 1, 1], k), f32s(&[t, 1, 2], v), i32s(&[t], p)]
}

#[test]
fn attention_is_causal_and_shares_key_heads() {
    let module = parse(ATTEND).unwrap();
    let weights: Vec<Vec<u8>> = vec![];
    let mut interpreter = Interpreter::new(&module, &weights).unwrap();
    // Both heads of the first row see only position 0, for any scores.
    let args = attend(&[1.0, -1.0, 0.0, 2.0], &[0.0, 4.0], &[1.0, 2.0, 5.0, 6.0], &[0, 1]);
    let y = interpreter.run("f", args).unwrap();
    // Row 1, head 0: q = 0, equal weights; head 1: scores 0 and 2 * 4 * 0.5 = 4.
    let w = 1.0 / (1.0 + (-4f64).exp());
    let mixed = |a: f64, b: f64| (a * (1.0 - w) + b * w) as f32;
    near(&y[0], &[1.0, 2.0, 1.0, 2.0, 3.0, 4.0, mixed(1.0, 5.0), mixed(2.0, 6.0)]);
    // The next step reads both positions from the cache; position 0 may be written again.
    let y = interpreter.run("f", attend(&[0.0, 0.0], &[0.0], &[0.0, 0.0], &[2])).unwrap();
    near(&y[0], &[2.0, 8.0 / 3.0, 2.0, 8.0 / 3.0]);
    let y = interpreter.run("f", attend(&[0.0, 0.0], &[0.0], &[9.0, 9.0], &[0])).unwrap();
    near(&y[0], &[9.0; 4]);
    // A step that skips a position is an error.
    let error = interpreter.run("f", attend(&[0.0, 0.0], &[0.0], &[9.0, 9.0], &[4])).unwrap_err();
    assert!(matches!(error, InterpretError::Index { what: "position", found: 4, bound: 4, .. }), "{error}");
    interpreter.reset();
    assert!(interpreter.run("f", attend(&[0.0, 0.0], &[0.0], &[9.0, 9.0], &[1])).is_err());
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

#[test]
fn indexer_selects_top_scores_and_attention_sees_only_those() {
    let text = "state @index : paged f16[1, S, 1], f16[1, S, 1]
        state @kv : paged f16[1, S, 1], f16[1, S, 1]
        func @f(%index: token<@index>, %kv: token<@kv>, %q: f32[T, 2, 1], %w: f32[T, 2], %k: f32[T, 1, 1], %p: i32[T])
        -> (i32[T, 2], f32[T, 2, 1], token<@index>, token<@kv>) {
        %1 = kv.append %index, %k, %k, %p
        %chosen, %2 = index.top_k %q, %w, %1, %p {top_k = 2, entries = false}
        %3 = kv.append %kv, %k, %k, %p
        %y, %4 = attention %q, %3, %p, _, %chosen {scale = 0.0, cap = 0.0}
        return %chosen, %y, %2, %4 }";
    // Keys 1, 1, -2, 3 in each row's past. Heads count positive products only.
    let (q, w) = ([1.0, -1.0].repeat(4), [1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.0, -1.0]);
    let args = vec![
        Value::Token,
        Value::Token,
        f32s(&[4, 2, 1], &q),
        f32s(&[4, 2], &w),
        f32s(&[4, 1, 1], &[1.0, 1.0, -2.0, 3.0]),
        i32s(&[4], &[0, 1, 2, 3]),
    ];
    let found = run(text, &[], &args).unwrap();
    // Row by row: one position; both; scores 1, 1, 1.5; scores 0, 0, -2, 0.
    assert_eq!(found[0], i32s(&[4, 2], &[0, -1, 0, 1, 0, 2, 0, 1]));
    near(&found[1], &[1.0, 1.0, 1.0, 1.0, -0.5, -0.5, 1.0, 1.0]);
}

/// Two positions share a key. The best complete run is chosen, with the positions after the last
/// complete run.
#[test]
fn an_index_chooses_runs_that_share_a_key() {
    let text = "state @index : paged f16[1, S, 1], f16[1, S, 1] {every = 2}
        func @f(%index: token<@index>, %q: f32[T, 1, 1], %w: f32[T, 1], %k: f32[T, 1, 1], %p: i32[T])
        -> (i32[T, 3], token<@index>) {
        %1 = kv.append %index, %k, %k, %p
        %chosen, %2 = index.top_k %q, %w, %1, %p {top_k = 2, entries = false}
        return %chosen, %2 }";
    // A run has the key of its last position: 1, 3, 2.
    let args = vec![
        Value::Token,
        f32s(&[6, 1, 1], &[1.0; 6]),
        f32s(&[6, 1], &[1.0; 6]),
        f32s(&[6, 1, 1], &[9.0, 1.0, 9.0, 3.0, 9.0, 2.0]),
        i32s(&[6], &[0, 1, 2, 3, 4, 5]),
    ];
    let found = run(text, &[], &args).unwrap();
    let expected = [[0, -1, -1], [0, 1, -1], [0, 1, 2], [2, 3, -1], [2, 3, 4], [2, 3, -1]];
    assert_eq!(found[0], i32s(&[6, 3], expected.as_flattened()));
}

/// Each head chooses from blocks of two positions: the row's own block, up to the row, and one
/// earlier block. The earlier block has a position with the highest product, which may be negative.
/// Query heads see the choice of their key head.
#[test]
fn heads_of_an_index_choose_blocks_for_themselves() {
    let text = "state @index : paged f16[1, S, 1], f16[1, S, 1]
        state @kv : paged f16[2, S, 1], f16[2, S, 1]
        func @f(%index: token<@index>, %kv: token<@kv>, %q: f32[T, 2, 1], %k: f32[T, 1, 1], %a: f32[T, 2, 1], %v: f32[T, 2, 1], %p: i32[T])
        -> (i32[T, 2, 4], f32[T, 2, 1], token<@index>, token<@kv>) {
        %1 = kv.append %index, %k, %k, %p
        %chosen, %2 = index.top_k %q, _, %1, %p {top_k = 4, entries = false, block = 2, local = 1}
        %3 = kv.append %kv, %v, %v, %p
        %y, %4 = attention %a, %3, %p, _, %chosen {scale = 0.0, cap = 0.0}
        return %chosen, %y, %2, %4 }";
    let mut queries = [1.0, -1.0].repeat(7);
    // The blocks of both heads tie for the last row: the first wins.
    queries[12..].fill(0.0);
    let keys = [-5.0, 3.0, -4.0, 5.0, -2.0, -3.0, 9.0];
    let values: Vec<f32> = (0..7).flat_map(|p| [p as f32, p as f32 * 100.0]).collect();
    let args = vec![
        Value::Token,
        Value::Token,
        f32s(&[7, 2, 1], &queries),
        f32s(&[7, 1, 1], &keys),
        f32s(&[7, 2, 1], &[0.0; 14]),
        f32s(&[7, 2, 1], &values),
        i32s(&[7], &[0, 1, 2, 3, 4, 5, 6]),
    ];
    let found = run(text, &[], &args).unwrap();
    let all = [[0, -1, -1, -1], [0, 1, -1, -1], [0, 1, 2, -1], [0, 1, 2, 3]];
    let mut expected: Vec<[i32; 4]> = all.iter().flat_map(|row| [*row; 2]).collect();
    // The highest products of the blocks are 3 and 5, or 5 and 4 with the other sign.
    expected.extend([[2, 3, 4, -1], [0, 1, 4, -1], [2, 3, 4, 5], [0, 1, 4, 5], [0, 1, 6, -1], [0, 1, 6, -1]]);
    assert_eq!(found[0], i32s(&[7, 2, 4], expected.as_flattened()));
    let means = expected.iter().enumerate().map(|(i, of)| {
        let seen: Vec<f32> = of.iter().filter(|p| **p >= 0).map(|p| *p as f32).collect();
        seen.iter().sum::<f32>() / seen.len() as f32 * if i % 2 == 0 { 1.0 } else { 100.0 }
    });
    near(&found[1], &means.collect::<Vec<f32>>());
}

/// Columns are limited to existing positions, for any `top_k`.
#[test]
fn indexer_has_no_columns_beyond_the_positions() {
    let text = "state @index : paged f16[1, S, 1], f16[1, S, 1]
        func @f(%index: token<@index>, %q: f32[T, 1, 1], %w: f32[T, 1], %k: f32[T, 1, 1], %p: i32[T])
        -> (i32[T, 4294967295], token<@index>) {
        %1 = kv.append %index, %k, %k, %p
        %chosen, %2 = index.top_k %q, %w, %1, %p {top_k = 4294967295, entries = false}
        return %chosen, %2 }";
    let ones = || f32s(&[2, 1, 1], &[1.0; 2]);
    let args = vec![Value::Token, ones(), f32s(&[2, 1], &[1.0; 2]), ones(), i32s(&[2], &[0, 1])];
    assert_eq!(run(text, &[], &args).unwrap()[0], i32s(&[2, 2], &[0, -1, 0, 1]));
}

/// Tests that the limit applies to the activation's result.
#[test]
fn a_limited_silu_bounds_its_result() {
    let text = "func @f(%g: f32[T, 3], %u: f32[T, 3]) -> (f32[T, 3]) {
        %y = gated %g, %u {act = limited_silu, limit = 2.0, shift = 0.0} return %y }";
    let found = run(text, &[], &[f32s(&[1, 3], &[3.0, 2.0, -1.0]), f32s(&[1, 3], &[5.0, -3.0, 1.0])]).unwrap();
    let silu = |x: f64| (x / (1.0 + (-x).exp())) as f32;
    near(&found[0], &[2.0 * 2.0, silu(2.0) * -2.0, silu(-1.0)]);
}

/// The first row writes the state. The second row reads it after the decay.
#[test]
fn logarithms_of_decays_stay_above_a_bound() {
    let text = "weight @a : f32[1] weight @dt : f32[1] state @s : recurrent f32[1, 1, 1]
        func @f(%s: token<@s>, %q: f32[T, 1, 1], %v: f32[T, 1, 1], %alpha: f32[T, 1], %beta: f32[T, 1])
        -> (f32[T, 1, 1], token<@s>) {
        %y, %n = delta_net %s, %q, %q, %v, %alpha, %beta, @a, @dt {keys = grouped, eps = 0.0, bound = -5.0}
        return %y, %n }";
    for a in [-2.0, 2.0] {
        // Rates of 1, then of 0.
        let args = vec![
            Value::Token,
            f32s(&[2, 1, 1], &[3.0; 2]),
            f32s(&[2, 1, 1], &[4.0, 1.0]),
            f32s(&[2, 1], &[0.0, 0.25]),
            f32s(&[2, 1], &[1e4, -1e4]),
        ];
        let found = run(text, &[bytes(&[a]), bytes(&[0.5])], &args).unwrap();
        let decay = (-5.0 / (1.0 + f64::exp(-2.0 * 0.75))).exp();
        near(&found[0], &[4.0, (4.0 * decay) as f32]);
    }
}

/// A rate of 2 removes the state's value twice, so its sign changes.
#[test]
fn delta_rule_rates_may_reach_the_stated_maximum() {
    let text = "weight @a : f32[1] weight @dt : f32[1] state @s : recurrent f32[1, 1, 1]
        func @f(%s: token<@s>, %q: f32[T, 1, 1], %v: f32[T, 1, 1], %alpha: f32[T, 1], %beta: f32[T, 1])
        -> (f32[T, 1, 1], token<@s>) {
        %y, %n = delta_net %s, %q, %q, %v, %alpha, %beta, @a, @dt {keys = grouped, eps = 0.0, bound = 0.0, rate = 2.0}
        return %y, %n }";
    let args = vec![
        Value::Token,
        f32s(&[3, 1, 1], &[3.0; 3]),
        f32s(&[3, 1, 1], &[4.0, 1.0, 0.0]),
        f32s(&[3, 1], &[0.0; 3]),
        f32s(&[3, 1], &[0.0, 1e4, 1e4]),
    ];
    let found = run(text, &[bytes(&[0.0]), bytes(&[0.5])], &args).unwrap();
    // Rates of 1, 2 and 2, without decay.
    near(&found[0], &[4.0, 4.0 + 2.0 * (1.0 - 4.0), 2.0]);
}

/// A token and those before it select a row of a table, back to an end of text. The state lasts
/// from step to step.
#[test]
fn ngram_rows_hash_a_token_with_earlier_tokens() {
    let text = "state @s : recurrent f32[1, 3]
        func @f(%s: token<@s>, %i: i32[T]) -> (i32[T], token<@s>) {
        %y, %n = ngram %s, %i {eos = 2, m0 = 1, m1 = 1099511627776, m2 = 10, m3 = 0, modulus = 1000, offset = 5}
        return %y, %n }";
    let module = parse(text).unwrap();
    let weights: Vec<Vec<u8>> = Vec::new();
    let mut interpreter = Interpreter::new(&module, &weights).unwrap();
    let row = |ids: [u64; 3]| ((ids[0] ^ (ids[1] << 40) ^ (ids[2] * 10)) % 1000 + 5) as i32;
    for (ids, expected) in [
        (vec![7, 9], vec![row([7, 2, 2]), row([9, 7, 2])]),
        (vec![4, 2, 3], vec![row([4, 9, 7]), row([2, 4, 9]), row([3, 2, 2])]),
    ] {
        let found = interpreter.run("f", vec![Value::Token, i32s(&[ids.len()], &ids)]).unwrap();
        assert_eq!(found[0], i32s(&[expected.len()], &expected));
    }
}

#[test]
fn head_sums_and_dilated_convolutions() {
    check(
        "func @f(%x: f32[T, 2, 2]) -> (f32[T, 2]) { %y = heads.sum %x return %y }",
        &[],
        &[f32s(&[1, 2, 2], &X)],
        &[f32s(&[1, 2], &[3.0, -1.0])],
    );
    let text = "weight @w : f32[1, 2] state @s : recurrent f32[3, 1] func @f(%s: token<@s>, %x: f32[T, 1]) -> (f32[T, 1], token<@s>) {
        %y, %n = short_conv %s, %x, @w {dilation = 3} return %y, %n }";
    let found = run(text, &[bytes(&[10.0, 1.0])], &[Value::Token, f32s(&[5, 1], &[1.0, 2.0, 3.0, 4.0, 5.0])]).unwrap();
    assert_eq!(found[0], f32s(&[5, 1], &[1.0, 2.0, 3.0, 14.0, 25.0]));
    let found = run(
        "func @f(%x: f32[T, 4]) -> (f32[T, 4]) { %y = signed_root %x return %y }",
        &[],
        &[f32s(&[1, 4], &[4.0, -9.0, 0.0, -1e-9])],
    );
    near(&found.unwrap()[0], &[2.0, -3.0, 0.0, -1e-3]);
}

/// Tests that the value at `find`, read before the decay, is removed along another key. Also tests
/// results from the state before the row, and keys scaled by one minus the decay.
#[test]
fn wkv_states_decay_per_token_and_subtract_found_values() {
    let wkv = |find: &str, attrs: &str| {
        format!(
            "state @s : recurrent f32[1, 2, 1]
            func @f(%s: token<@s>, %q: f32[T, 1, 2], %v: f32[T, 1, 1], %w: f32[T, 1, 2], %f: f32[T, 1, 2], %r: f32[T, 1, 2]) -> (f32[T, 1, 1], token<@s>) {{
            %y, %n = wkv %s, %q, %q, %v, %w, {find} {{{attrs}}}
            return %y, %n }}"
        )
    };
    let operands = [
        Value::Token,
        f32s(&[2, 1, 2], &[1.0, 2.0, 1.0, -1.0]),
        f32s(&[2, 1, 1], &[3.0, 2.0]),
        f32s(&[2, 1, 2], &[0.5, 0.25, 0.5, 0.25]),
        f32s(&[2, 1, 2], &[1.0, 0.0, 1.0, 0.0]),
        f32s(&[2, 1, 2], &[1.0, 1.0, 0.5, 1.0]),
    ];
    for (find, attrs, expected) in [
        // The state is (3, 6), where 3 is found. Then it is (1.5 - 1.5 + 2, 1.5 - 3 - 2).
        ("%f, %r", "before = false, filled = false", [15.0, 5.5]),
        // (3, 6), then (1.5 + 2, 1.5 - 2).
        ("_, _", "before = false, filled = false", [15.0, 4.0]),
        // (1.5, 4.5).
        ("_, _", "before = true, filled = true", [0.0, -3.0]),
    ] {
        let found = run(&wkv(find, attrs), &[], &operands).unwrap();
        assert_eq!(found[0], f32s(&[2, 1, 1], &expected), "{find} {attrs}");
    }
    let found = run(
        "func @f(%x: f32[T, 4]) -> (f32[T, 4]) { %y = exp %x return %y }",
        &[],
        &[f32s(&[1, 4], &[0.0, 1.0, -1.0, -1e9])],
    );
    near(&found.unwrap()[0], &[1.0, std::f32::consts::E, 0.36787945, 0.0]);
}

fn route(attrs: &str, logits: &[f32]) -> (Vec<i32>, Vec<f32>) {
    let n = logits.len();
    let text = format!(
        "func @f(%x: f32[T, {n}]) -> (i32[T, 2], f32[T, 2]) {{ %i, %p = route %x, _, _ {attrs} return %i, %p }}"
    );
    let results = run(&text, &[], &[f32s(&[1, n], logits)]).unwrap();
    match &results[..] {
        [Value::I32 { data: ids, .. }, Value::F32 { data: p, .. }] => (ids.clone(), p.clone()),
        other => panic!("{other:?}"),
    }
}

/// The first choice is 2: 1.99 is near it, and 1 is not. Among the remaining logits, only 1.99 is
/// near 1.99.
#[test]
fn sparse_mixer_weights_only_near_choices() {
    let mixer = "{top_k = 2, score = sparse_mixer, groups = 1, groups_kept = 1, normalise = false, scale = 1}";
    let (ids, p) = route(mixer, &[1.0, 2.0, 1.99, -3.0]);
    assert_eq!(ids, [1, 2]);
    let share = 1.0 / (1.0 + (f64::from(1.99f32) - 2.0).exp());
    assert!((f64::from(p[0]) - share).abs() < 1e-7 && p[1] == 1.0, "{p:?}");
}

#[test]
fn route_takes_the_best_and_of_equals_the_lowest_id() {
    let softmax = "{top_k = 2, score = softmax, groups = 1, groups_kept = 1, normalise = false, scale = 1}";
    let (ids, p) = route(softmax, &[0.0, 2f32.ln(), 0.0, 0.0]);
    assert_eq!(ids, [1, 0]);
    assert!((p[0] - 0.4).abs() < 1e-7 && (p[1] - 0.2).abs() < 1e-7, "{p:?}");
    let (ids, p) = route(softmax, &[f32::NAN, 1.0, 1.0, 1.0]);
    assert_eq!(ids, [1, 2], "NaN comes last: {p:?}");
    let (_, p) = route(
        "{top_k = 2, score = softmax, groups = 1, groups_kept = 1, normalise = true, scale = 3}",
        &[0.0, 2f32.ln(), 0.0, 0.0],
    );
    assert!((p[0] - 2.0).abs() < 1e-6 && (p[1] - 1.0).abs() < 1e-6, "{p:?}");
    let sigmoid = "{top_k = 2, score = sigmoid, groups = 1, groups_kept = 1, normalise = true, scale = 1}";
    let (ids, p) = route(sigmoid, &[-1.0, 0.0, 0.0, -2.0]);
    assert_eq!((ids, p), (vec![1, 2], vec![0.5, 0.5]));
    // The sum is clamped: 2 * sigmoid(-20) = 4.1e-9 is divided by 6.1e-5.
    let (_, p) = route(sigmoid, &[-20.0; 4]);
    let expected = 1.0 / (1.0 + 20f64.exp()) / ROUTE_SUM_MIN;
    assert!((f64::from(p[0]) / expected - 1.0).abs() < 1e-6, "{p:?}");
}

/// The two highest experts of the second group have the larger sum, but the first group has the
/// highest expert.
#[test]
fn expert_groups_rank_by_two_best_or_by_best() {
    let logits = [3.0, -9.0, -9.0, 2.5, 2.25, -9.0];
    let attrs = |last: &str| {
        format!("{{top_k = 2, score = softmax, groups = 2, groups_kept = 1, normalise = true, scale = 1{last}}}")
    };
    assert_eq!(route(&attrs(""), &logits).0, [3, 4]);
    assert_eq!(route(&attrs(", group_best = 1"), &logits).0, [0, 1]);
    let three = attrs(", group_best = 2");
    let text = format!("func @f(%x: f32[T, 6]) -> (i32[T, 2]) {{ %i, %p = route %x, _, _ {three} return %i }}");
    let error = parse(&text).unwrap_err().to_string();
    assert!(error.contains("group_best"), "{error}");
}

/// Experts 0 to 2 have matrices, and later ones do not. A slot of a later expert becomes another of
/// its row's experts with weight 0, or the first expert.
#[test]
fn identity_experts_return_the_sum_of_their_weights() {
    let text = "func @f(%i: i32[T, 3], %p: f32[T, 3]) -> (i32[T, 3], f32[T, 3], f32[T, 1]) {
        %ids, %own, %passed = route.identities %i, %p {experts = 3} return %ids, %own, %passed }";
    let ids = i32s(&[3, 3], &[3, 1, 4, 0, 2, 1, 5, 3, 4]);
    let p = f32s(&[3, 3], &[0.5, 0.25, 2.0, 1.0, 2.0, 3.0, 0.5, 0.25, 0.125]);
    let found = run(text, &[], &[ids, p]).unwrap();
    assert_eq!(found[0], i32s(&[3, 3], &[1, 1, 1, 0, 2, 1, 0, 0, 0]));
    near(&found[1], &[0.0, 0.25, 0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0]);
    near(&found[2], &[2.5, 0.0, 0.875]);
}

#[test]
fn experts_multiply_the_rows_that_are_routed_to_them() {
    // The matrix of expert e multiplies by e + 1.
    let weight = "weight @w : f32[3, 1, 1]";
    let body = "%d = dequantise @w %y = expert.matmul %x, %i, %d return %y }";
    let args = [f32s(&[2, 1], &[10.0, 100.0]), i32s(&[2, 2], &[2, 0, 1, 2])];
    check(
        &format!("{weight} func @f(%x: f32[T, 1], %i: i32[T, 2]) -> (f32[T, 2, 1]) {{ {body}"),
        &[&[1.0, 2.0, 3.0]],
        &args,
        &[f32s(&[2, 2, 1], &[30.0, 10.0, 200.0, 300.0])],
    );
    let args = [f32s(&[2, 2, 1], &X), i32s(&[2, 2], &[2, 0, 1, 2])];
    check(
        &format!("{weight} func @f(%x: f32[T, 2, 1], %i: i32[T, 2]) -> (f32[T, 2, 1]) {{ {body}"),
        &[&[1.0, 2.0, 3.0]],
        &args,
        &[f32s(&[2, 2, 1], &[3.0, 2.0, 6.0, -12.0])],
    );
    let combine = "func @f(%y: f32[T, 2, 2], %p: f32[T, 2]) -> (f32[T, 2]) { %c = expert.combine %y, %p return %c }";
    check(combine, &[], &[f32s(&[1, 2, 2], &X), f32s(&[1, 2], &[0.5, 2.0])], &[f32s(&[1, 2], &[6.5, -7.0])]);
    // A slot of weight 0 adds nothing, even if `y` is not finite. Here the second slot's expert
    // gave NaN and infinity.
    let infinite = [f32::INFINITY, 1.0, f32::NAN, f32::NEG_INFINITY];
    check(
        combine,
        &[],
        &[f32s(&[1, 2, 2], &infinite), f32s(&[1, 2], &[1.0, 0.0])],
        &[f32s(&[1, 2], &[f32::INFINITY, 1.0])],
    );
}

#[test]
fn an_expert_out_of_range_is_an_error() {
    let text = "weight @w : f32[3, 1, 1] func @f(%x: f32[T, 1], %i: i32[T, 1]) -> (f32[T, 1, 1]) {
        %d = dequantise @w %y = expert.matmul %x, %i, %d return %y }";
    let error = run(text, &[bytes(&[0.0; 3])], &[f32s(&[1, 1], &[0.0]), i32s(&[1, 1], &[3])]).unwrap_err();
    assert!(matches!(error, InterpretError::Index { what: "expert", bound: 3, .. }), "{error}");
}

/// Weights of different formats, 64 x 256 or 4 x 64 x 256, for the tests of fused ops.
const WEIGHTS: &str = "
weight @n : f32[256]   weight @b : f32[64]   weight @hn : f32[16]   weight @ff : f32[4]
weight @q4k : q4_k[64, 256]   weight @q5k : q5_k[64, 256]   weight @q6k : q6_k[64, 256]
weight @q8 : q8_0[64, 256]    weight @q4 : q4_0[64, 256]    weight @h : f16[64, 256]   weight @bf : bf16[64, 256]
weight @eg : q4_k[4, 64, 256] weight @eu : q6_k[4, 64, 256] weight @ed : q8_0[4, 32, 64]";

/// Runs two functions on the same arguments and expects the same bits.
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

/// Returns quantised activations, and the same numbers as f32 for unfused ops.
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

/// Two positions form an entry. With overlap, the two positions before them contribute too.
#[test]
fn compressed_rows_are_means_of_their_positions() {
    let text = "weight @ape : f32[2, 1] state @s : recurrent f32[3, 1]
        func @f(%x: f32[T, 1], %g: f32[T, 1], %pos: i32[T]) -> (f32[T, 1]) {
        %s = state.begin @s %y, %t = compress %s, %x, %g, %pos, @ape {every = 2, overlap = false} return %y }";
    let pos = i32s(&[4], &[0, 1, 2, 3]);
    // Weights 1 and 3 in the first entry, 3 and 1 in the second.
    let gates = [0.0, 0.0, 2.0 * 3f32.ln(), 0.0];
    let args = [f32s(&[4, 1], &[4.0, 8.0, 100.0, 200.0]), f32s(&[4, 1], &gates), pos.clone()];
    let y = run(text, &[bytes(&[0.0, 3f32.ln()])], &args).unwrap();
    near(&y[0], &[4.0, 7.0, 100.0, 125.0]);

    let text = "weight @ape : f32[2, 2] state @s : recurrent f32[6, 1]
        func @f(%x: f32[T, 2], %g: f32[T, 2], %pos: i32[T]) -> (f32[T, 1]) {
        %s = state.begin @s %y, %t = compress %s, %x, %g, %pos, @ape {every = 2, overlap = true} return %y }";
    let x = [1.0, 10.0, 2.0, 20.0, 3.0, 30.0, 4.0, 40.0];
    let args = [f32s(&[4, 2], &x), f32s(&[4, 2], &[0.0; 8]), pos];
    // Inputs are the second halves of the entry's own positions, and the first halves of the
    // positions before.
    let y = run(text, &[bytes(&[0.0; 4])], &args).unwrap();
    near(&y[0], &[10.0, 15.0, 33.0 / 3.0, 73.0 / 4.0]);
}

#[test]
fn entry_attention_sees_only_complete_entries() {
    let text = "state @kv : paged f16[1, S, 1], f16[1, S, 1] {window = 1}
        state @e : paged f16[1, S, 1], f16[1, S, 1] {every = 2}
        func @f(%q: f32[T, 1, 1], %k: f32[T, 1, 1], %v: f32[T, 1, 1], %e: f32[T, 1, 1], %pos: i32[T]) -> (f32[T, 1, 1]) {
        %s = state.begin @kv %s1 = kv.append %s, %k, %v, %pos
        %t = state.begin @e %t1 = kv.append %t, %k, %e, %pos
        %y, %s2, %t2 = attention.entries %q, %s1, %t1, %pos, _, _ {scale = 1.0} return %y }";
    let column = |x: [f32; 5]| f32s(&[5, 1, 1], &x);
    let args = [
        column([0.0; 5]),
        column([0.0; 5]),
        column([1.0, 2.0, 3.0, 4.0, 5.0]),
        // An entry has the data of its last position. The fifth entry is incomplete.
        column([7.0, 10.0, 7.0, 40.0, 7.0]),
        i32s(&[5], &[0, 1, 2, 3, 4]),
    ];
    let y = run(text, &[], &args).unwrap();
    near(&y[0], &[1.0, 6.0, 6.5, 18.0, 55.0 / 3.0]);
}

/// Two positions share an entry. The index chooses complete entries with the highest keys; of equal
/// ones, the first.
#[test]
fn indexer_selects_entries_in_addition_to_a_window() {
    let text = "state @index : paged f16[1, S, 1], f16[1, S, 1] {every = 2}
        state @kv : paged f16[1, S, 1], f16[1, S, 1] {window = 1}
        state @e : paged f16[1, S, 1], f16[1, S, 1] {every = 2}
        func @f(%q: f32[T, 1, 1], %w: f32[T, 1], %k: f32[T, 1, 1], %v: f32[T, 1, 1], %e: f32[T, 1, 1], %pos: i32[T])
        -> (i32[T, 2], f32[T, 1, 1], i32[T, 4294967295]) {
        %i = state.begin @index %i1 = kv.append %i, %k, %k, %pos
        %chosen, %i2 = index.top_k %q, %w, %i1, %pos {top_k = 2, entries = true}
        %s = state.begin @kv %s1 = kv.append %s, %k, %v, %pos
        %t = state.begin @e %t1 = kv.append %t, %k, %e, %pos
        %y, %s2, %t2 = attention.entries %q, %s1, %t1, %pos, _, %chosen {scale = 0.0}
        %all, %i3 = index.top_k %q, %w, %i2, %pos {top_k = 4294967295, entries = true}
        return %chosen, %y, %all }";
    let column = |x: [f32; 7]| f32s(&[7, 1, 1], &x);
    let args = [
        column([1.0; 7]),
        f32s(&[7, 1], &[1.0; 7]),
        // An entry has the data of its last position: 1, 3, 3, and 9 in an incomplete entry.
        column([9.0, 1.0, 9.0, 3.0, 9.0, 3.0, 9.0]),
        column([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
        column([0.0, 10.0, 0.0, 40.0, 0.0, 70.0, 0.0]),
        i32s(&[7], &[0, 1, 2, 3, 4, 5, 6]),
    ];
    let y = run(text, &[], &args).unwrap();
    let expected = [[-1, -1], [0, -1], [0, -1], [0, 1], [0, 1], [1, 2], [1, 2]];
    assert_eq!(y[0], i32s(&[7, 2], expected.as_flattened()));
    near(&y[1], &[1.0, 6.0, 6.5, 18.0, 55.0 / 3.0, 116.0 / 3.0, 39.0]);
    // The state has four entries.
    let rows = [[-1, -1, -1, -1], [0, -1, -1, -1], [0, -1, -1, -1], [0, 1, -1, -1], [0, 1, -1, -1]];
    let expected = [rows.as_flattened(), &[0, 1, 2, -1, 0, 1, 2, -1]].concat();
    assert_eq!(y[2], i32s(&[7, 4], &expected));
}

#[test]
fn positions_are_rounded_down_or_negated() {
    let text = "func @f(%pos: i32[T]) -> (i32[T], i32[T]) {
        %a = positions %pos {every = 4, back = false} %b = positions %pos {every = 1, back = true} return %a, %b }";
    let pos = i32s(&[4], &[0, 3, 4, 9]);
    check(text, &[], &[pos], &[i32s(&[4], &[0, 0, 4, 8]), i32s(&[4], &[0, -3, -4, -9])]);
}

#[test]
fn listed_experts_are_weighted_by_their_scores() {
    let text = "weight @t : f32[2, 2] func @f(%x: f32[T, 3], %ids: i32[T]) -> (i32[T, 2], f32[T, 2]) {
        %e, %p = route.listed %x, %ids, @t {score = chosen, normalise = true, scale = 2.0} return %e, %p }";
    let table: Vec<u8> = [2i32, 0, -5, 9].iter().flat_map(|id| id.to_le_bytes()).collect();
    let logits = f32s(&[2, 3], &[0.0, 9.0, 3f32.ln(), 3f32.ln(), 9.0, 0.0]);
    let y = run(text, &[table], &[logits, i32s(&[2], &[0, 1])]).unwrap();
    // A number outside the range of experts becomes the nearest expert.
    assert_eq!(y[0], i32s(&[2, 2], &[2, 0, 0, 2]));
    near(&y[1], &[1.5, 0.5, 1.5, 0.5]);
}

/// Zero queries and keys give equal weights to all visible positions. The values are 1, 2, 4, 8,
/// 16.
#[test]
fn attention_reaches_the_text_end_or_a_stated_distance() {
    let attention = |pos: &str, attrs: &str| {
        let text = format!(
            "state @kv : paged f16[1, S, 1], f16[1, S, 1]
             func @f(%q: f32[T, 1, 1], %v: f32[T, 1, 1], %pos: i32[T]) -> (f32[T, 1, 1]) {{
               %s = state.begin @kv %s1 = kv.append %s, %q, %v, %pos
               %e = ends %pos
               %y, %s2 = attention %q, %s1, {pos}, _, _ {{scale = 1.0, cap = 0.0{attrs}}} return %y }}"
        );
        let (q, v) = (f32s(&[5, 1, 1], &[0.0; 5]), f32s(&[5, 1, 1], &[1.0, 2.0, 4.0, 8.0, 16.0]));
        run(&text, &[], &[q, v, i32s(&[5], &[0, 1, 2, 3, 4])]).unwrap().remove(0)
    };
    near(&attention("%e", ""), &[6.2; 5]);
    near(&attention("%pos", ""), &[1.0, 1.5, 7.0 / 3.0, 3.75, 6.2]);
    near(&attention("%pos", ", reach = 1"), &[1.5, 7.0 / 3.0, 14.0 / 3.0, 28.0 / 3.0, 12.0]);
    near(&attention("%pos", ", reach = 3"), &[3.75, 6.2, 6.2, 6.2, 7.5]);
    let text = "func @f(%p: i32[T]) -> (i32[T]) { %e = ends %p return %e }";
    check(text, &[], &[i32s(&[3], &[4, 5, 6])], &[i32s(&[3], &[6, 6, 6])]);
}
