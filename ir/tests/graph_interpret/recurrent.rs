//! Tests of ops with recurrent states.

use ixc_ir::graph::interpret::{Interpreter, Value};
use ixc_ir::graph::parse::parse;

use super::{X, bytes, check, f32s, i32s, near, run};

/// The first row only writes the state. The second row reads the state after the decay.
#[test]
fn logarithms_of_decays_stay_above_a_bound() {
    let text = "weight @a : f32[1] weight @dt : f32[1] state @s : recurrent f32[1, 1, 1]
        func @f(%s: token<@s>, %q: f32[T, 1, 1], %v: f32[T, 1, 1], %alpha: f32[T, 1], %beta: f32[T, 1])
        -> (f32[T, 1, 1], token<@s>) {
        %y, %n = delta_net %s, %q, %q, %v, %alpha, %beta, @a, @dt {keys = grouped, eps = 0.0, bound = -5.0}
        return %y, %n }";
    for a in [-2.0, 2.0] {
        // The rate is 1 for the first row and 0 for the second.
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

/// With a rate of 2, the update subtracts the state's value twice, so its sign changes.
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
    // The rates are 1, 2 and 2, and there is no decay.
    near(&found[0], &[4.0, 4.0 + 2.0 * (1.0 - 4.0), 2.0]);
}

/// A token and the tokens before it, back to an end of text, select a row of a table. Earlier
/// tokens are kept in a state from step to step.
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

/// Tests that the value at `find`, which is read before the decay, is subtracted at another key.
/// Also tests results from the state before the row (`before`), and keys scaled by one minus the
/// decay (`filled`).
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
        // The state is (3, 6), so the value at `find` is 3. Then the state is (1.5 - 1.5 + 2, 1.5 -
        // 3 - 2).
        ("%f, %r", "before = false, filled = false", [15.0, 5.5]),
        // The state is (3, 6), then (1.5 + 2, 1.5 - 2).
        ("_, _", "before = false, filled = false", [15.0, 4.0]),
        // The state is (1.5, 4.5).
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
