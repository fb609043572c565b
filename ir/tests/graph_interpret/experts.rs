//! Tests of routing, and of ops that compute with experts.

use ixc_ir::graph::interpret::math::ROUTE_SUM_MIN;
use ixc_ir::graph::interpret::{InterpretError, Value};
use ixc_ir::graph::parse::parse;

use super::{X, bytes, check, f32s, i32s, near, run};

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

/// The first choice is the logit 2. Only 1.99 is near it; 1 is not. Among the remaining logits, no
/// other is near 1.99.
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
    // The divisor is clamped: 2 * sigmoid(-20) = 4.1e-9 becomes 6.1e-5.
    let (_, p) = route(sigmoid, &[-20.0; 4]);
    let expected = 1.0 / (1.0 + 20f64.exp()) / ROUTE_SUM_MIN;
    assert!((f64::from(p[0]) / expected - 1.0).abs() < 1e-6, "{p:?}");
}

/// The two best experts of the second group have the larger sum, but the single best expert is in
/// the first group.
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

/// Experts 0 to 2 have matrices; later experts are identities. A slot of an identity expert gets
/// weight 0 and the id of another expert of its row, or expert 0.
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

/// `K` is a symbolic dimension, so that arguments may have no slots.
#[test]
fn routings_without_slots_stay_empty() {
    let args = [i32s(&[2, 0], &[]), f32s(&[2, 0], &[])];
    for op in ["route.given %i, %p {experts = 3}", "route.owned %i, %p {first = 1, experts = 2}"] {
        let text = format!(
            "func @f(%i: i32[T, K], %p: f32[T, K]) -> (i32[T, K], f32[T, K]) {{ %ids, %q = {op} return %ids, %q }}"
        );
        check(&text, &[], &args, &args);
    }
    let text = "func @f(%i: i32[T, K], %p: f32[T, K]) -> (i32[T, K], f32[T, K], f32[T, 1]) {
        %ids, %own, %passed = route.identities %i, %p {experts = 3} return %ids, %own, %passed }";
    let [ids, p] = args.clone();
    check(text, &[], &args, &[ids, p, f32s(&[2, 1], &[0.0, 0.0])]);
    // The type rule of `expert.split` requires a fixed number of slots.
    let text = "func @f(%i: i32[T, K], %p: f32[T, K]) -> (i32[T, 1], f32[T, 1]) {
        %ids, %q, %late, %r = expert.split %i, %p {now = 1} return %ids, %q }";
    let error = parse(text).unwrap_err().to_string();
    let expected = "expert.split: operand ids is i32[T, K]; it must be a type with a number in place of K";
    assert!(error.ends_with(expected), "{error}");
}

#[test]
fn experts_multiply_the_rows_that_are_routed_to_them() {
    // The matrix of expert e multiplies its input by e + 1.
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
    // A slot of weight 0 adds nothing, even if its `y` is not finite. Here, the second slot's
    // expert gave NaN and infinity.
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

#[test]
fn listed_experts_are_weighted_by_their_scores() {
    let text = "weight @t : f32[2, 2] func @f(%x: f32[T, 3], %ids: i32[T]) -> (i32[T, 2], f32[T, 2]) {
        %e, %p = route.listed %x, %ids, @t {score = chosen, normalise = true, scale = 2.0} return %e, %p }";
    let table: Vec<u8> = [2i32, 0, -5, 9].iter().flat_map(|id| id.to_le_bytes()).collect();
    let logits = f32s(&[2, 3], &[0.0, 9.0, 3f32.ln(), 3f32.ln(), 9.0, 0.0]);
    let y = run(text, &[table], &[logits, i32s(&[2], &[0, 1])]).unwrap();
    // An id outside the range of experts becomes the nearest valid id.
    assert_eq!(y[0], i32s(&[2, 2], &[2, 0, 0, 2]));
    near(&y[1], &[1.5, 0.5, 1.5, 0.5]);
}
