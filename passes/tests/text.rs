//! IR text tests. Each file of `tests/ir` is a list of passes, a module, and the expected result;
//! `IXC_BLESS=1` rewrites the expectation. The first example of a file is also in the pass's
//! documentation.
//!
//! A plan is printed as by `ixc dump --stage plan`, for 8 tokens a step. Weights without a location
//! get consecutive locations. Lines at the start of a file set parameters of the passes and of the
//! output:
//!
//! | line | meaning |
//! | --- | --- |
//! | `// target: amx` | target; default avx2 |
//! | `// set: residency.memory = 1000` | options of passes |
//! | `// caches: 32,256,2048` | caches of a core, in KiB |
//! | `// as: dot` | result as a Graphviz graph |
//! | `// as: mermaid` | result as a Mermaid graph |
//! | `// as: decisions` | decisions of the last pass |

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use ixc_ir::drawing::Language;
use ixc_ir::graph::Place;
use ixc_ir::graph::parse::parse;
use ixc_ir::plan::SourceFile;
use ixc_ir::plan::print::print;
use ixc_passes::decision::{Decision, Decisions};
use ixc_passes::manager::{self, Ir};
use ixc_passes::pass::{Context, GraphResult, PlanProperties};
use ixc_targets::{CoreCaches, Target};
use ixc_testing::becomes::{check, setting_values};

fn run(input: &str) -> Result<String, Box<dyn std::error::Error>> {
    let mut module = parse(input)?;
    let passes: Vec<&str> = setting_values(input, "passes").next().ok_or("no `// passes:`")?.split(',').collect();
    let target = setting_values(input, "target")
        .next()
        .map(|name| Target::from_name(name).ok_or("no such target"))
        .transpose()?;
    let mut context = Context::new(target.unwrap_or(Target::AVX2));
    for option in setting_values(input, "set") {
        manager::set(&mut context.options, option)?;
    }
    if let Some(caches) = setting_values(input, "caches").next() {
        let bytes: Vec<u64> =
            caches.split(',').map(|kib| kib.parse::<u64>().map(|kib| kib << 10)).collect::<Result<_, _>>()?;
        let [l1d, l2, l3] = bytes[..] else { return Err("three caches".into()) };
        context.caches = CoreCaches { l1d, l2, l3 };
    }
    let mut file = SourceFile { path: "model.gguf".to_string(), bytes: 0, header_crc: 0, header_bytes: 0 };
    if passes.contains(&"lower") {
        for weight in &mut module.weights {
            weight.place.get_or_insert(Place { file: 0, offset: file.bytes });
            let lead: u64 = weight.shape.iter().rev().skip(1).product();
            file.bytes +=
                weight.stored_format().row_bytes(*weight.shape.last().ok_or("no shape")?).ok_or("no row")? * lead;
        }
    }
    let bytes: Vec<Vec<u8>> = Vec::new();
    let facts = PlanProperties {
        architecture: "test".to_string(),
        max_tokens: 8,
        context_length: 64,
        result_width: 0,
        result: GraphResult::Logits,
        files: vec![file],
        derived: Vec::new(),
        tokenizer: Vec::new(),
        weights: &bytes,
    };
    let Context { target, caches, options, .. } = context;
    let decisions = Arc::new(Decisions::default());
    let context = Context { target, caches, options, facts: Some(facts), decisions: Some(Arc::clone(&decisions)) };
    // Each pass gets the text of the previous one, to check that the text contains everything that
    // the next pass needs.
    let mut ir = Ir::Graph(module);
    for pass in passes {
        decisions.take();
        ir = manager::run(ir, &[pass], &context)?;
        let read = Ir::parse(&ir.text())?;
        if read.text() != ir.text() {
            return Err(format!("what {pass} leaves does not read back").into());
        }
        ir = read;
    }
    if setting_values(input, "as").any(|value| value == "decisions") {
        return Ok(decisions.take().iter().map(text).collect());
    }
    for (form, language) in [("dot", Language::Dot), ("mermaid", Language::Mermaid)] {
        if setting_values(input, "as").any(|value| value == form) {
            return Ok(ir.drawing().ok_or("a plan has no drawing")?.text(language));
        }
    }
    Ok(match ir {
        Ir::Plan(plan) => print(&plan, |kernel| kernel.name()),
        ir @ (Ir::Graph(_) | Ir::Draft(_)) => ir.text(),
    })
}

/// Returns a decision as lines, one for each rejected alternative.
fn text(decision: &Decision) -> String {
    let Decision { op, name, question, chosen, rejected, .. } = decision;
    let mut text = format!("{question} of {op} {name}\n  chosen    {chosen}\n");
    for lost in rejected {
        let _ = writeln!(text, "  rejected  {}: {}", lost.what, lost.why);
    }
    text
}

#[test]
fn pass_examples_match_their_recorded_output() -> Result<(), Box<dyn std::error::Error>> {
    check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ir"), run)
}
