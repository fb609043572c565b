//! IR text tests of the pass `pieces`. Each file of `tests/pieces` has a list of passes up to
//! `tile`, the sizes of pieces, a module, and the expected plan in pieces. `IXC_BLESS=1` rewrites
//! the expected plan.
//!
//! `// pieces: beside` or `// pieces: chained` selects separate tasks or a chain for adding the
//! pieces of a dot product. With `heads`, one task computes several query heads. With `norms`,
//! norms of rows are cut. Weights are stored one after the other, and a step has 8 tokens.

use std::error::Error;
use std::path::{Path, PathBuf};

use ixc_dataflow::pieces::{self, Partition, Reduction, WeightTile};
use ixc_ir::graph::Place;
use ixc_ir::graph::parse::parse;
use ixc_ir::plan::SourceFile;
use ixc_ir::plan::print::print;
use ixc_passes::manager::{self, Ir};
use ixc_passes::pass::{Context, GraphResult, PlanProperties};
use ixc_targets::Target;
use ixc_testing::becomes::{self, Example};

/// Returns the value of the option line with this name.
fn setting_values<'t>(input: &'t str, name: &str) -> Result<&'t str, String> {
    becomes::setting_values(input, name).next().ok_or_else(|| format!("no `// {name}: `"))
}

fn sizes(words: &str) -> Partition {
    let reduction = if words.contains("beside") { Reduction::Separate } else { Reduction::Chained };
    let dense = WeightTile { bytes: 5000, rows: 32, dot: 256, row: 4096, reduction };
    let experts = WeightTile { bytes: 20000, rows: 32, dot: 512, row: 4096, reduction };
    let heads_bytes = if words.contains("heads") { 3000 } else { 600 };
    let norm = if words.contains("norms") { 256 } else { u32::MAX };
    Partition { dense, experts, elements: 128, silu: 128, norm, positions: 32, context: 64, heads_bytes }
}

/// Returns a module's plan in pieces. Before, products are cut for threads by the listed passes, or
/// as `tile` says.
fn run(input: &str, tile: Option<&str>) -> Result<String, Box<dyn Error>> {
    let mut module = parse(input)?;
    let mut file = SourceFile { path: "model.gguf".to_string(), bytes: 0, header_crc: 0, header_bytes: 0 };
    for weight in &mut module.weights {
        weight.place.get_or_insert(Place { file: 0, offset: file.bytes });
        let lead: u64 = weight.shape.iter().rev().skip(1).product();
        file.bytes += weight.format.row_bytes(*weight.shape.last().ok_or("no shape")?).ok_or("no row")? * lead;
    }
    let bytes: Vec<Vec<u8>> = Vec::new();
    let mut context = Context::new(Target::AVX2);
    context.facts = Some(PlanProperties {
        architecture: "test".to_string(),
        max_tokens: 8,
        context_length: 64,
        result_width: 0,
        result: GraphResult::Logits,
        files: vec![file],
        derived: Vec::new(),
        tokenizer: Vec::new(),
        weights: &bytes,
    });
    let passes: Vec<&str> = setting_values(input, "passes")?.split(',').collect();
    let mut module = manager::run_pipeline(module, &passes, &context)?;
    for choice in module.weights.iter_mut().map(|weight| &mut weight.choice) {
        choice.tile = choice.tile.as_ref().map(|own| tile.unwrap_or(own).to_string());
    }
    let Ir::Draft(tasks) = manager::run(Ir::Graph(module), &["lower"], &context)? else {
        return Err("`lower` made no tasks".into());
    };
    let plan = pieces::plan(&tasks, &sizes(setting_values(input, "pieces")?), &context)?;
    Ok(print(&plan, |kernel| kernel.name()))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pieces")
}

#[test]
fn cut_examples_match_recorded_output() -> Result<(), Box<dyn Error>> {
    becomes::check(&folder(), |input| run(input, None))
}

/// Checks that the tiles of a product for threads do not change the pieces.
#[test]
fn thread_tiles_do_not_change_the_pieces() -> Result<(), Box<dyn Error>> {
    for Example { path, input, .. } in becomes::files(&folder())? {
        let Ok(plan) = run(&input, None) else { continue };
        // The first tile has whole blocks of SwiGLU's result. The last tile has rows that do not
        // fill a strip.
        let tile = "rows=512 gemm/8; rows=256 gemv<=4/4 gemm/8; rows=48 gemm/24; rows=16 gemm/24; rows=8 gemm/24";
        let other = run(&input, Some(tile))?;
        assert!(other == plan, "{} becomes\n{other}", path.display());
    }
    Ok(())
}
