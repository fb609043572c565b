//! Text tests of the graph IR. The files `tests/graph/*.ix` are parsed and printed, or must be
//! rejected. `ixc_testing::becomes` describes their content.
//! `IXC_BLESS=1 cargo test -p ixc-ir --test graph_text` rewrites the expectations.

use std::path::Path;

use ixc_ir::graph::parse::parse;
use ixc_testing::becomes;

#[test]
fn text_examples_match_their_recorded_result() -> Result<(), Box<dyn std::error::Error>> {
    becomes::check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/graph"), |text| Ok(parse(text)?.to_string()))
}
