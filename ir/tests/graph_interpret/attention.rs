//! Tests of attention, and of index ops that choose positions.

use ixc_ir::graph::interpret::{InterpretError, Interpreter, Value};
use ixc_ir::graph::parse::parse;

use super::{bytes, check, f32s, i32s, near, run};

/// Tests a state with chunks of 32: positions 0 and 1 are in one chunk, position 32 is in the next.
/// The soft cap turns scores of 4 into 2 tanh 2.
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

    // The same with a factor on the slopes.
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
    // Both heads of the first row see only position 0, so their scores do not matter.
    let args = attend(&[1.0, -1.0, 0.0, 2.0], &[0.0, 4.0], &[1.0, 2.0, 5.0, 6.0], &[0, 1]);
    let y = interpreter.run("f", args).unwrap();
    // Row 1, head 0 has q = 0, and thus equal weights. Head 1 has the scores 0 and 2 * 4 * 0.5 = 4.
    let w = 1.0 / (1.0 + (-4f64).exp());
    let mixed = |a: f64, b: f64| (a * (1.0 - w) + b * w) as f32;
    near(&y[0], &[1.0, 2.0, 1.0, 2.0, 3.0, 4.0, mixed(1.0, 5.0), mixed(2.0, 6.0)]);
    // The next step reads both positions from the cache. A later step writes position 0 again.
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
    // The index has the keys 1, 1, -2, 3. A row sees the keys up to its own. A head's negative
    // products count as 0.
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
    // Rows in order: one position; two positions; scores 1, 1, 1.5; scores 0, 0, -2, 0.
    assert_eq!(found[0], i32s(&[4, 2], &[0, -1, 0, 1, 0, 2, 0, 1]));
    near(&found[1], &[1.0, 1.0, 1.0, 1.0, -0.5, -0.5, 1.0, 1.0]);
}

/// Two positions share a key. The complete run of positions with the best key is chosen, with the
/// positions after the last complete run.
#[test]
fn an_index_chooses_runs_that_share_a_key() {
    let text = "state @index : paged f16[1, S, 1], f16[1, S, 1] {every = 2}
        func @f(%index: token<@index>, %q: f32[T, 1, 1], %w: f32[T, 1], %k: f32[T, 1, 1], %p: i32[T])
        -> (i32[T, 3], token<@index>) {
        %1 = kv.append %index, %k, %k, %p
        %chosen, %2 = index.top_k %q, %w, %1, %p {top_k = 2, entries = false}
        return %chosen, %2 }";
    // Each run has the key of its last position. The keys are 1, 3, 2.
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

/// Each head chooses from blocks of two positions: the row's own block, up to the row, and the
/// earlier block with the highest product. That product may be negative. Query heads see the choice
/// of their key head.
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
    // For the last row, all blocks have equal scores, and the first block is chosen.
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
    // The highest products of the two blocks are 3 and 5. For the head with the other sign, they
    // are 5 and 4.
    expected.extend([[2, 3, 4, -1], [0, 1, 4, -1], [2, 3, 4, 5], [0, 1, 4, 5], [0, 1, 6, -1], [0, 1, 6, -1]]);
    assert_eq!(found[0], i32s(&[7, 2, 4], expected.as_flattened()));
    let means = expected.iter().enumerate().map(|(i, of)| {
        let seen: Vec<f32> = of.iter().filter(|p| **p >= 0).map(|p| *p as f32).collect();
        seen.iter().sum::<f32>() / seen.len() as f32 * if i % 2 == 0 { 1.0 } else { 100.0 }
    });
    near(&found[1], &means.collect::<Vec<f32>>());
}

/// The number of columns is limited to the existing positions, for any `top_k`.
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

/// Two positions form an entry. With overlap, the two positions before the entry contribute to it
/// too.
#[test]
fn compressed_rows_are_means_of_their_positions() {
    let text = "weight @ape : f32[2, 1] state @s : recurrent f32[3, 1]
        func @f(%x: f32[T, 1], %g: f32[T, 1], %pos: i32[T]) -> (f32[T, 1]) {
        %s = state.begin @s %y, %t = compress %s, %x, %g, %pos, @ape {every = 2, overlap = false} return %y }";
    let pos = i32s(&[4], &[0, 1, 2, 3]);
    // The first entry has the weights 1/4 and 3/4 of its positions, the second 3/4 and 1/4.
    let gates = [0.0, 0.0, 2.0 * 3f32.ln(), 0.0];
    let args = [f32s(&[4, 1], &[4.0, 8.0, 100.0, 200.0]), f32s(&[4, 1], &gates), pos.clone()];
    let y = run(text, &[bytes(&[0.0, 3f32.ln()])], &args).unwrap();
    near(&y[0], &[4.0, 7.0, 100.0, 125.0]);

    let text = "weight @ape : f32[2, 2] state @s : recurrent f32[6, 1]
        func @f(%x: f32[T, 2], %g: f32[T, 2], %pos: i32[T]) -> (f32[T, 1]) {
        %s = state.begin @s %y, %t = compress %s, %x, %g, %pos, @ape {every = 2, overlap = true} return %y }";
    let x = [1.0, 10.0, 2.0, 20.0, 3.0, 30.0, 4.0, 40.0];
    let args = [f32s(&[4, 2], &x), f32s(&[4, 2], &[0.0; 8]), pos];
    // With overlap, an entry is a mean of the second halves of its own positions and the first
    // halves of the positions before them.
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
        // Each entry takes the data of its last position. The fifth entry is incomplete.
        column([7.0, 10.0, 7.0, 40.0, 7.0]),
        i32s(&[5], &[0, 1, 2, 3, 4]),
    ];
    let y = run(text, &[], &args).unwrap();
    near(&y[0], &[1.0, 6.0, 6.5, 18.0, 55.0 / 3.0]);
}

/// Two positions share an entry. The index chooses the complete entries with the highest keys. Of
/// entries with equal keys, the first is chosen.
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
        // Each entry takes the data of its last position: 1, 3, 3, and 9 for an incomplete entry.
        column([9.0, 1.0, 9.0, 3.0, 9.0, 3.0, 9.0]),
        column([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
        column([0.0, 10.0, 0.0, 40.0, 0.0, 70.0, 0.0]),
        i32s(&[7], &[0, 1, 2, 3, 4, 5, 6]),
    ];
    let y = run(text, &[], &args).unwrap();
    let expected = [[-1, -1], [0, -1], [0, -1], [0, 1], [0, 1], [1, 2], [1, 2]];
    assert_eq!(y[0], i32s(&[7, 2], expected.as_flattened()));
    near(&y[1], &[1.0, 6.0, 6.5, 18.0, 55.0 / 3.0, 116.0 / 3.0, 39.0]);
    // The state has four entries, so there are four columns.
    let rows = [[-1, -1, -1, -1], [0, -1, -1, -1], [0, -1, -1, -1], [0, 1, -1, -1], [0, 1, -1, -1]];
    let expected = [rows.as_flattened(), &[0, 1, 2, -1, 0, 1, 2, -1]].concat();
    assert_eq!(y[2], i32s(&[7, 4], &expected));
}

/// Zero queries and keys give all visible positions equal weights. The values are 1, 2, 4, 8, 16,
/// so each mean shows which positions were visible.
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
