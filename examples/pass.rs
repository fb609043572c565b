//! Compiles a model with a pass of its own, which limits the logits as Gemma 2 does.
//!
//! ```text
//! cargo run --release --example pass -- model.gguf
//! ```
//!
//! A pass is a function from a graph to a graph. It runs before the passes of the compiler, which
//! then choose kernels for its ops, too. `docs/extending.md` adds a pass to the compiler itself.

use std::path::Path;
use std::sync::Arc;

use ixc::ir::graph::rewrite::{Position, RewriteError};
use ixc::ir::graph::{Module, Rewriter, view};
use ixc::loaded_model::{LoadOptions, LoadedModel};
use ixc::model::Model;
use ixc::passes::error::PassError;
use ixc::passes::manager::{Ir, Stop, run_watched};
use ixc::passes::pass::{Context, Pass, Run};
use ixc::{compile, demo};

/// Limit of the logits.
const CAP: f64 = 5.0;

static PASS: Pass =
    Pass { name: "cap_logits", doc: "Limits the logits smoothly.", options: &[], run: Run::Graph(cap_logits) };

/// Puts `softcap` after each function's results: `cap * tanh(x / cap)`, elementwise.
fn cap_logits(mut module: Module, _: &Context<'_>) -> Result<Module, PassError> {
    let functions = module.functions.iter().map(|function| {
        let mut rewriter = Rewriter::new(&module, function);
        for &logits in &function.results {
            let end = Position::Before(function.ops.len());
            let [capped] = rewriter.insert(end, view::Softcap { x: logits, cap: CAP })?;
            rewriter.replace_uses(logits, capped)?;
        }
        rewriter.finish()
    });
    module.functions = functions.collect::<Result<_, RewriteError>>()?;
    Ok(module)
}

/// Returns the largest logit after a prompt.
fn largest_logit(model: &Model, options: compile::CompileOptions) -> Result<f32, ixc::Error> {
    let mut model = LoadedModel::of_model(model, &LoadOptions { compile: options, ..LoadOptions::default() })?;
    let tokens = model.encode_prompt("The borrow checker")?;
    Ok(model.logits(&tokens)?.into_iter().fold(f32::NEG_INFINITY, f32::max))
}

fn main() -> Result<(), ixc::Error> {
    let path = std::env::args_os().nth(1);
    let model = match &path {
        Some(path) => Model::open(Path::new(path))?,
        None => Model::new(demo::open()?)?,
    };
    let options = compile::CompileOptions::default();
    // The manager runs the pass, and verifies its result.
    let graph = Ir::Graph(model.arch.module.clone());
    let ir = run_watched(graph, &[&PASS], &compile::context(&options, None), None)?;
    for line in ir.text().lines().filter(|line| line.contains("softcap")) {
        println!("{}", line.trim());
    }
    let start = Some(Arc::new(Stop { ir, after: None }));
    let before = largest_logit(&model, options.clone())?;
    let after = largest_logit(&model, compile::CompileOptions { start, ..options })?;
    let expected = CAP * (f64::from(before) / CAP).tanh();
    println!("largest logit {before:.3}, with the pass {after:.3}; expected {expected:.3}");
    Ok(())
}
