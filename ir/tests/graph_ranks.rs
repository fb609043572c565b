//! Tests of groups of ranks. The files `tests/ranks/*.ix` have the graph of each rank after a line
//! `// rank`. If the graphs do not match, the file also has the expected error.
//! `IXC_BLESS=1 cargo test -p ixc-ir --test graph_ranks` rewrites the expectations.

use std::path::Path;

use ixc_ir::graph::Module;
use ixc_ir::graph::interpret::ranks::RankInterpreter;
use ixc_ir::graph::interpret::{InterpretError, Interpreter, Value};
use ixc_ir::graph::parse::parse;
use ixc_ir::graph::ranks::verify_ranks;
use ixc_testing::becomes;

fn graphs(text: &str) -> Result<Vec<Module>, Box<dyn std::error::Error>> {
    Ok(text.split("// rank\n").skip(1).map(parse).collect::<Result<_, _>>()?)
}

#[test]
fn groups_match_or_give_the_recorded_error() -> Result<(), Box<dyn std::error::Error>> {
    becomes::check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ranks"), |text| {
        let modules = graphs(text)?;
        verify_ranks(&modules.iter().collect::<Vec<_>>())?;
        Ok("the ranks match\n".to_string())
    })
}

/// Returns each rank's results of `@f`.
fn run(text: &str, x: &Value) -> Result<Vec<Vec<Value>>, InterpretError> {
    let (modules, weights) = (graphs(text).unwrap(), Vec::new());
    RankInterpreter::new(modules.iter().map(|module| (module, &weights as _)))?.run("f", std::slice::from_ref(x))
}

fn f32s(dims: [usize; 2], data: &[f32]) -> Value {
    Value::F32 { dims: dims.to_vec(), data: data.to_vec() }
}

/// Tests a sum that depends on the order of additions: (1 + 1e8) - 1e8 is 0 in f32, but 1 + (1e8 -
/// 1e8) is 1.
#[test]
fn sums_are_in_the_order_of_ranks() {
    let rank = |rank: u32, factor: &str| {
        format!(
            "// rank\nfunc @f(%x: f32[T, 1]) -> (f32[T, 1]) {{
  %g = ranks.begin {{rank = {rank}, ranks = 3}}
  %y = scale %x {{factor = {factor}}}
  %z, %g1 = all_reduce %g, %y
  return %z
}}\n"
        )
    };
    let sum = |factors: [&str; 3]| {
        let text: String = factors.iter().zip(0..).map(|(factor, number)| rank(number, factor)).collect();
        run(&text, &f32s([2, 1], &[1.0, -2.0])).unwrap()
    };
    let right = |data: &[f32]| vec![vec![f32s([2, 1], data)]; 3];
    assert_eq!(sum(["1.0", "1e8", "-1e8"]), right(&[0.0, 0.0]));
    assert_eq!(sum(["1e8", "-1e8", "1.0"]), right(&[1.0, -2.0]));
}

#[test]
fn messages_and_gathered_rows_arrive_in_order() {
    let text = "// rank
func @f(%x: f32[T, 2], %r: i32[T]) -> (f32[T, 4]) {
  %g = ranks.begin {rank = 0, ranks = 2}
  %g1 = send %g, %x {to = 1}
  %y, %g2 = all_gather %g1, %x
  return %y
}
// rank
func @f(%x: f32[T, 2], %r: i32[T]) -> (f32[T, 4]) {
  %g = ranks.begin {rank = 1, ranks = 2}
  %y, %g1 = recv %g, %r {from = 0, width = 2}
  %z = add %y, %x
  %w, %g2 = all_gather %g1, %z
  return %w
}
";
    let (modules, weights) = (graphs(text).unwrap(), Vec::new());
    let mut group = RankInterpreter::new(modules.iter().map(|module| (module, &weights as _))).unwrap();
    let x = f32s([2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let rows = Value::I32 { dims: vec![2], data: vec![0, 0] };
    let y = f32s([2, 4], &[1.0, 2.0, 2.0, 4.0, 3.0, 4.0, 6.0, 8.0]);
    assert_eq!(group.run("f", &[x.clone(), rows.clone()]).unwrap(), [[y.clone()], [y]]);
    // A graph that is interpreted alone has no other rank for its collectives.
    let error = Interpreter::new(&modules[0], &weights).unwrap().run("f", vec![x, rows]).unwrap_err();
    assert_eq!(error.to_string(), "send needs the graphs of all 2 ranks; this is rank 0 alone");
}

#[test]
fn owned_experts_are_relative_to_the_first() {
    let text = "func @f(%i: i32[T, 3], %p: f32[T, 3]) -> (i32[T, 3], f32[T, 3]) {
  %ids, %q = route.owned %i, %p {first = 4, experts = 2}
  return %ids, %q
}";
    let (module, weights) = (parse(text).unwrap(), Vec::new());
    let ids = |data: &[i32]| Value::I32 { dims: vec![2, 3], data: data.to_vec() };
    let args = vec![ids(&[0, 5, 4, 6, 3, 9]), f32s([2, 3], &[0.5, 0.25, 0.125, 1.0, 2.0, 3.0])];
    let results = Interpreter::new(&module, &weights).unwrap().run("f", args).unwrap();
    assert_eq!(results, [ids(&[1, 1, 0, 0, 0, 0]), f32s([2, 3], &[0.0, 0.25, 0.125, 0.0, 0.0, 0.0])]);
}
