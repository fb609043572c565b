//! IR text tests: each file of `tests/ir` is a list of passes, a module, and what they make of it. `IXC_BLESS=1` rewrites
//! the expectation. A file's first example is the one that stands in the pass's documentation.
//!
//! The pass `schedule` gives the plan as text, for 8 tokens a step; weights without a place lie one after the other. A line
//! `// matrix: packed,tiles` says what the target's kernels can do, and `// residency: 1000` or `// residency: 1000,1` how many bytes
//! of experts fit in memory, and how many experts more than those of a token are predicted; `// defer: 1` how many are deferred. `// pieces:
//! beside` or `// pieces: chained` cuts the plan into pieces, small ones.

use std::fs;
use std::path::Path;

use ixc_ir::graph::parse::parse;
use ixc_ir::graph::{Module, Place};
use ixc_ir::plan::SourceFile;
use ixc_ir::plan::print::print;
use ixc_passes::manager::{Options, run_pipeline};
use ixc_passes::schedule::pieces::{Pieces, Slices, Sums};
use ixc_passes::schedule::{self, MatrixTarget, Settings};

const BECOMES: &str = "// becomes\n";

fn run(
    passes: &[&str],
    options: &Options,
    matrix: MatrixTarget,
    pieces: Option<Pieces>,
    mut module: Module,
) -> Result<String, Box<dyn std::error::Error>> {
    let (graph, plan): (Vec<&str>, Vec<&str>) = passes.iter().partition(|pass| **pass != "schedule");
    module = run_pipeline(module, &graph, options)?;
    if plan.is_empty() {
        return Ok(module.to_string());
    }
    let mut end = 0;
    for weight in &mut module.weights {
        weight.place.get_or_insert(Place { file: 0, offset: end });
        let lead: u64 = weight.shape.iter().rev().skip(1).product();
        end += weight.format.row_bytes(*weight.shape.last().ok_or("no shape")?).ok_or("no row")? * lead;
    }
    let file = SourceFile { path: "model.gguf".to_string(), bytes: end, header_crc: 0, header_bytes: 0 };
    let settings = Settings {
        architecture: "test".to_string(),
        target: "avx2".to_string(),
        max_tokens: 8,
        context_length: 64,
        matrix,
        pieces,
        files: vec![file],
        tokenizer: Vec::new(),
    };
    let bytes: Vec<Vec<u8>> = Vec::new();
    Ok(print(&schedule::run(&module, &bytes, settings)?, |kernel| kernel.name()))
}

#[test]
fn passes_make_of_each_file_what_it_says() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ir");
    let mut paths: Vec<_> = fs::read_dir(folder)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    paths.sort();
    assert!(!paths.is_empty());
    let mut wrong = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path)?;
        let (input, expected) = text.split_once(BECOMES).unwrap_or((&text, ""));
        let passes = input.lines().find_map(|line| line.strip_prefix("// passes: ")).ok_or("no `// passes:`")?;
        let passes: Vec<&str> = passes.split(',').collect();
        let module = parse(input).map_err(|error| format!("{}: {error}", path.display()))?;
        let can = input.lines().find_map(|line| line.strip_prefix("// matrix: ")).unwrap_or("");
        let can: Vec<&str> = can.split(',').collect();
        let matrix = MatrixTarget { packed: can.contains(&"packed"), tiles: can.contains(&"tiles") };
        let pieces = input.lines().find_map(|line| line.strip_prefix("// pieces: ")).map(|words| {
            let sums = if words.contains("beside") { Sums::Beside } else { Sums::InProducts };
            let dense = Slices { bytes: 5000, rows: 32, dot: 256, row: 4096, sums };
            let experts = Slices { bytes: 20000, rows: 32, dot: 512, row: 4096, sums };
            let heads_bytes = if words.contains("heads") { 3000 } else { 600 };
            let norm = if words.contains("norms") { 256 } else { u32::MAX };
            Pieces { dense, experts, elements: 128, silu: 128, norm, positions: 32, context: 64, heads_bytes }
        });
        let mut options = Options::default();
        if let Some(residency) = input.lines().find_map(|line| line.strip_prefix("// residency: ")) {
            let (memory, extra) = residency.split_once(',').map_or((residency, None), |(m, extra)| (m, Some(extra)));
            options.expert_memory = Some(memory.parse()?);
            options.predict_extra = extra.map(str::parse).transpose()?;
        }
        if let Some(defer) = input.lines().find_map(|line| line.strip_prefix("// defer: ")) {
            options.defer = defer.parse()?;
        }
        let made = match run(&passes, &options, matrix, pieces, module) {
            Ok(text) => text,
            Err(error) => format!("error: {error}\n"),
        };
        if made == expected {
            continue;
        }
        if std::env::var_os("IXC_BLESS").is_some() {
            fs::write(&path, format!("{}{BECOMES}{made}", input))?;
        } else {
            wrong.push(format!("{}: expected\n{expected}got\n{made}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}\nIXC_BLESS=1 accepts these", wrong.join("\n"));
    Ok(())
}
