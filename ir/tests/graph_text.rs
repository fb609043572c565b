//! Graph IR text tests: `tests/graph/*.ix`; `support` says what stands in them.
//! `IXC_BLESS=1 cargo test -p ixc-ir --test graph_text` rewrites their expectations.

mod support;

use ixc_ir::graph::parse::parse;
use support::Refusal;

#[test]
fn text_prints_and_fails_as_expected() {
    support::check("graph", |text| match parse(text) {
        Ok(module) => Ok(module.to_string()),
        Err(error) => Err(Refusal { line: error.line, column: error.column, message: error.problem.to_string() }),
    });
}
