//! `fuse`: makes products read quantised weights, and replaces ops that can share one pass over
//! memory by one op.
//!
//! Needs: a verified module. Leaves: an equal function, except for rounding. Matrix products become
//! `linear`, `linear.qkv`, `linear.swiglu`, `expert.swiglu` or `expert.down` wherever possible.
//!
//! **The pass changes the rounding.** A product with a quantised weight takes its rows in that
//! weight's activation format. These rows are 8-bit integers with one scale for each 32 or 256.
//! `fuse` therefore inserts a `quantise` that the original graph does not have. With `f32`, `f16`
//! and `bf16` weights, there is no such rounding.
//!
//! ```text
//!   %h = rms_norm %x, @norm {eps = 1e-6} : f32[T, 256]
//!   %0 = dequantise @w : f32[512, 256]                    // @w : q4_k[512, 256]
//!   %y = matmul %h, %0 : f32[T, 512]
//! ```
//! becomes
//! ```text
//!   %1 = rms_norm.quantise %x, @norm {eps = 1e-6, format = a8_super} : a8_super[T, 256]
//!   %y = linear %1, @w, _, _ : f32[T, 512]
//! ```
//!
//! Method: a function is cut into regions that no rule crosses ([`region`]). The pure ops of a
//! region are one e-graph ([`language`], [`egraph`]). The rules ([`rules`]) run until they find
//! nothing new, and the cheapest DAG ([`extract`]) becomes the function. Ops with effects keep
//! their order; each pure op comes before the first op that needs it. Regions that differ only in
//! the names of weights and layers, such as a model's layers, are fused once and copied for each
//! occurrence. An append that takes a rotated value is fused last and without egg ([`append`]),
//! because an append has effects.
//!
//! Cost: identical regions are recognised by their text, which has one line for each op. A new
//! region takes about 40 nodes for 25 ops (a layer), and a bit for each pair of nodes. A region has
//! at most [`FuseOptions::region`] ops. A longer sequence without a point for a cut is cut anyway,
//! and fusions across that cut are lost.

mod append;
mod egraph;
mod extract;
mod fusion_decisions;
mod language;
mod region;
mod rules;

use std::collections::HashMap;
use std::rc::Rc;

use egg::{Rewrite, StopReason};
use ixc_ir::graph::{Function, Module, Rewriter, ValueId};

use crate::canonicalise;
use crate::decision::Decision;
use crate::error::PassError;
use crate::options::{PassOptions, pass_options};
use crate::pass::{Context, Pass, Run};

/// Entry of this pass in the list of passes.
pub static PASS: Pass = Pass {
    name: "fuse",
    doc: "Makes products read quantised weights, and fuses ops that can share one pass over memory.",
    options: FuseOptions::ROWS,
    run: Run::Graph(run),
};

pass_options! {
    /// Options of the pass. A region of the default size has room for the ops of twenty layers; a
    /// layer is usually two regions. The longest chain of rules has 8 links.
    pub struct FuseOptions for "fuse" {
        #[doc = "Max ops of one e-graph; the choice among its nodes takes the square of their number in bits."]
        pub region: usize = 512,
        #[doc = "Max rounds of rewriting."]
        pub rounds: usize = 32,
    }
}
use fusion_decisions::FusionDecision;
use language::{Node, Types};
use region::{Piece, Spans};

/// Runs the pass.
///
/// # Errors
/// A function uses a value before it is defined, which the verifier rejects.
pub fn run(mut module: Module, context: &Context<'_>) -> Result<Module, PassError> {
    let options: FuseOptions = context.options.get();
    let mut fuser = Fuser { records_decisions: context.records_decisions(), ..Fuser::new(&options) };
    for i in 0..module.functions.len() {
        let fused = fuser.function(&module, &module.functions[i])?;
        fuser.decisions.drain(..).for_each(|decision| context.decide(|| decision));
        module.functions[i] = append::run(&module, &fused, context)?;
    }
    canonicalise::run(module, context)
}

/// Cache of fused regions, by the text of the region.
struct Fuser<'o> {
    options: &'o FuseOptions,
    rewrites: Vec<Rewrite<Node, Types>>,
    closed: rules::Closed,
    fused: HashMap<String, Rc<(Function, Vec<FusionDecision>)>>,
    /// Statistics of egg's runs, one for each distinct region.
    runs: Vec<egraph::Run>,
    /// Whether to record decisions, and the recorded decisions.
    records_decisions: bool,
    decisions: Vec<Decision>,
}

impl<'o> Fuser<'o> {
    fn new(options: &'o FuseOptions) -> Fuser<'o> {
        Fuser {
            options,
            rewrites: rules::rewrites(),
            closed: rules::Closed::new(),
            fused: HashMap::new(),
            runs: Vec::new(),
            records_decisions: false,
            decisions: Vec::new(),
        }
    }

    fn function(&mut self, module: &Module, function: &Function) -> Result<Function, PassError> {
        // Removes unused ops first, because they would prevent cuts.
        let function = &Rewriter::new(module, function).finish()?;
        let (runs_before, spans) = (self.runs.len(), Spans::new(function));
        let cuts = spans.cut(function, self.options.region, |op| self.closed.op(op));
        let mut out = Function { name: function.name.clone(), ..Function::default() };
        let mut moved: Vec<Option<ValueId>> = vec![None; function.values.len()];
        for &param in &function.params {
            let data = &function.values[param.index()];
            let value = out.add_value(data.name.as_deref(), data.ty.clone());
            out.params.push(value);
            moved[param.index()] = Some(value);
        }
        for ops in &cuts.regions {
            let piece = Piece::new(module, function, ops.clone(), &spans);
            let fused = self.piece(&piece)?;
            let name = |weight| module.weights[piece.weight(weight).index()].name.clone();
            self.decisions.extend(fused.1.iter().map(|of_region| of_region.decision(name)));
            piece.paste(&fused.0, &mut out, &mut moved)?;
        }
        let result = |&value: &ValueId| region::moved_to(&moved, function, value);
        out.results = function.results.iter().map(result).collect::<Result<_, _>>()?;
        let runs = &self.runs[runs_before..];
        let early = runs.iter().filter(|run| !matches!(run.reason, StopReason::Saturated)).count();
        tracing::debug!(
            function = function.name,
            regions = cuts.regions.len(),
            runs = runs.len(),
            nodes_before = runs.iter().map(|run| run.nodes_before).sum::<usize>(),
            nodes = runs.iter().map(|run| run.nodes).sum::<usize>(),
            rounds = runs.iter().map(|run| run.rounds).max(),
            "fused"
        );
        if early + cuts.forced > 0 {
            tracing::warn!(
                function = function.name,
                early,
                forced = cuts.forced,
                "fusing ended early, or a long region was cut; some ops may stay unfused"
            );
        }
        Ok(out)
    }

    /// Returns the fused region. Runs egg only if the region differs from all earlier ones.
    fn piece(&mut self, piece: &Piece) -> Result<Rc<(Function, Vec<FusionDecision>)>, PassError> {
        let key = piece.module.to_string();
        if let Some(fused) = self.fused.get(&key) {
            return Ok(Rc::clone(fused));
        }
        let [function] = &piece.module.functions[..] else { unreachable!("a region is one function") };
        let (fused, run, decisions) =
            egraph::fuse(&piece.module, function, &self.rewrites, self.options.rounds, self.records_decisions)?;
        self.runs.push(run);
        let fused = Rc::new((fused, decisions));
        self.fused.insert(key, Rc::clone(&fused));
        Ok(fused)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use ixc_ir::graph::parse::parse;
    use ixc_ir::graph::{OpKind, Unary};

    use super::*;

    const ROPE: &str = "base = 10000.0, dims = 64, style = neox, scaling = none, factor = 1.0, original_context = 0, \
                        beta_fast = 32.0, beta_slow = 1.0, attn_factor = 1.0";

    /// Returns a model in which each layer's value and down projections have one of two formats.
    fn model(formats: &[&str]) -> Module {
        let (mut weights, mut ops) = ("weight @e : q4_k[512, 256]\nweight @n : f32[256]\n".to_owned(), String::new());
        for (i, format) in formats.iter().enumerate() {
            for (name, format, rows, row) in [
                ("q", "q4_k", 256, 256),
                ("k", "q4_k", 128, 256),
                ("v", format, 128, 256),
                ("o", "q4_k", 256, 256),
                ("g", "q4_k", 512, 256),
                ("u", "q4_k", 512, 256),
                ("d", format, 256, 512),
            ] {
                writeln!(weights, "weight @{name}{i} : {format}[{rows}, {row}]").unwrap();
            }
            writeln!(weights, "weight @an{i} : f32[256]\nweight @fn{i} : f32[256]").unwrap();
            writeln!(weights, "state @kv.{i} : paged f16[2, S, 64], f16[2, S, 64]").unwrap();
            write!(
                ops,
                "  %h{i} = rms_norm %x{i}, @an{i} {{eps = 1e-6}}
  %wq{i} = dequantise @q{i}
  %q{i} = matmul %h{i}, %wq{i}
  %wk{i} = dequantise @k{i}
  %k{i} = matmul %h{i}, %wk{i}
  %wv{i} = dequantise @v{i}
  %v{i} = matmul %h{i}, %wv{i}
  %qh{i} = split_heads %q{i} {{heads = 4}}
  %kh{i} = split_heads %k{i} {{heads = 2}}
  %vh{i} = split_heads %v{i} {{heads = 2}}
  %qr{i} = rope %qh{i}, %pos, _, _ {{{ROPE}}}
  %kr{i} = rope %kh{i}, %pos, _, _ {{{ROPE}}}
  %kv{i} = state.begin @kv.{i}
  %kva{i} = kv.append %kv{i}, %kr{i}, %vh{i}, %pos
  %a{i}, %kvb{i} = attention %qr{i}, %kva{i}, %pos, _, _ {{scale = 0.125, cap = 0.0}}
  %ar{i} = merge_heads %a{i}
  %wo{i} = dequantise @o{i}
  %ao{i} = matmul %ar{i}, %wo{i}
  %y{i} = add %ao{i}, %x{i}
  %fh{i} = rms_norm %y{i}, @fn{i} {{eps = 1e-6}}
  %wg{i} = dequantise @g{i}
  %g{i} = matmul %fh{i}, %wg{i}
  %wu{i} = dequantise @u{i}
  %u{i} = matmul %fh{i}, %wu{i}
  %s{i} = silu %g{i}
  %m{i} = mul %s{i}, %u{i}
  %wd{i} = dequantise @d{i}
  %d{i} = matmul %m{i}, %wd{i}
  %x{} = add %d{i}, %y{i}
",
                i + 1
            )
            .unwrap();
        }
        let layers = formats.len();
        let text = format!(
            "{weights}func @step(%ids: i32[T], %pos: i32[T], %rows: i32[L]) -> (f32[L, 512]) {{
  %x0 = embed %ids, @e
{ops}  %last = take_rows %x{layers}, %rows
  %norm = rms_norm %last, @n {{eps = 1e-6}}
  %w = dequantise @e
  %logits = matmul %norm, %w
  return %logits
}}"
        );
        parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// Returns the fused module and the statistics of egg's runs.
    fn fuse_module(module: &Module, options: &FuseOptions) -> (Function, Vec<egraph::Run>) {
        let mut fuser = Fuser::new(options);
        let function = fuser.function(module, &module.functions[0]).unwrap();
        (function, fuser.runs)
    }

    #[test]
    fn equal_layers_are_fused_once() {
        let (like, unlike) = (["q4_k"; 64], ["q4_k", "q6_k", "q6_k", "q4_k"]);
        let runs = |formats: &[&str]| {
            let (function, runs) = fuse_module(&model(formats), &FuseOptions::default());
            assert!(runs.iter().all(|run| matches!(run.reason, StopReason::Saturated)), "{runs:?}");
            let ops: Vec<OpKind> = function.ops.iter().map(|op| op.kind).collect();
            for kind in [OpKind::Matmul, OpKind::Add, OpKind::Unary(Unary::Silu), OpKind::Dequantise] {
                assert!(!ops.contains(&kind), "{kind:?}");
            }
            let count = |kind| ops.iter().filter(|&&op| op == kind).count();
            assert_eq!(count(OpKind::LinearQkv), formats.len());
            assert_eq!(count(OpKind::LinearSwiglu), formats.len());
            (runs.len(), runs.iter().map(|run| run.nodes * run.rounds).sum::<usize>())
        };
        // The regions are the embedding, two halves of a layer, the requested rows and their
        // logits, for any number of layers.
        assert_eq!(runs(&like[..1]), runs(&like));
        assert_eq!(runs(&like).0, 5);
        // Layers of the other format add two more regions.
        assert_eq!(runs(&unlike).0, 7);
        assert_eq!(runs(&unlike.repeat(16)), runs(&unlike));
    }

    /// Checks that cuts change nothing: one e-graph of the whole function gives the same ops as its
    /// regions.
    #[test]
    fn regions_are_fused_as_the_whole_is() {
        for formats in [&["q4_k"; 3][..], &["q4_k", "q6_k", "f32"], &["f16", "q8_0", "q8_0", "q5_k"]] {
            let module = model(formats);
            let (function, _) = fuse_module(&module, &FuseOptions::default());
            let (whole, ..) = egraph::fuse(&module, &module.functions[0], &rules::rewrites(), 32, false).unwrap();
            assert_eq!(function, whole);
        }
    }

    /// Checks that the function is cut into regions for fusion, without a forced cut, although all
    /// layers use one value from before the first layer.
    #[test]
    fn values_used_by_all_layers_forbid_no_cut() {
        let text = |layers: usize| {
            let mut text =
                "weight @w : f32[8]\nfunc @f(%x0: f32[T, 8]) -> (f32[T, 8]) {\n  %v = mul %x0, %x0\n".to_owned();
            for i in 0..layers {
                write!(
                    text,
                    "  %n{i} = rms_norm %x{i}, @w {{eps = 0.1}}\n  %m{i} = mul %n{i}, %v\n  %x{} = add %x{i}, %m{i}\n",
                    i + 1
                )
                .unwrap();
            }
            text + &format!("  return %x{layers}\n}}")
        };
        let options = FuseOptions::default();
        let regions = |layers| {
            let module = parse(&text(layers)).unwrap();
            let function = &module.functions[0];
            let mut closed = rules::Closed::new();
            let cuts = Spans::new(function).cut(function, options.region, |op| closed.op(op));
            assert_eq!(cuts.forced, 0, "{layers} layers");
            cuts.regions.len()
        };
        // Near its definition, the value may be fused with its users. Further away, each layer is a
        // region.
        assert!(regions(3 * options.region) > 2 * options.region);
        assert!(regions(options.region / 8) < options.region / 8);
    }

    /// Checks that a region without a point for a cut is cut anyway, so that the number of nodes of
    /// an e-graph is bounded.
    #[test]
    fn region_without_cut_points_is_cut_at_its_limit() {
        let mut text = "weight @w : f32[8, 8]\nfunc @f(%x0: f32[T, 8]) -> (f32[T, 8]) {\n".to_owned();
        for i in 0..5000 {
            // Rules match through these products, so there is no point for a cut.
            write!(text, "  %s{i} = mul %x{i}, %x{i}\n  %x{} = mul %s{i}, %x{i}\n", i + 1).unwrap();
        }
        text += "  return %x5000\n}";
        let module = parse(&text).unwrap();
        let options = FuseOptions::default();
        let (function, runs) = fuse_module(&module, &options);
        assert_eq!(function.ops.len(), 10_000);
        assert!(runs.iter().all(|run| run.nodes <= 8 * options.region), "{runs:?}");
        assert!(runs.len() <= 10_000 / (options.region / 2) + 1, "{} runs", runs.len());
    }
}
