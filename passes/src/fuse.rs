//! `fuse`: reads weights quantised, and does in one op what one pass over memory can do.
//!
//! Needs: a verified module. Leaves: the same function of the same parameters but for rounding, where every matrix product
//! that can is a `linear`, `linear.qkv`, `linear.swiglu`, `expert.swiglu` or `expert.down`. **The rounding is part of what
//! the pass means**: a product with a quantised weight takes its rows in that weight's activation format (8-bit integers
//! with a scale for 32 or 256), so `fuse` puts in a `quantise` that the graph as written has not. With `f32`, `f16` and
//! `bf16` weights nothing rounds.
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
//! How: a function is cut into regions where no rule reaches across ([`region`]). The pure ops of a region are one e-graph
//! ([`language`], [`egraph`]), its rules ([`rules`]) run until nothing is new, and the cheapest DAG ([`extract`]) is written back
//! in the order in which the ops with effects, which stay where they are, need it. Regions that are equal but for the weights
//! and layers that they name, as those of a model's layers are, are fused once and written as often as they are there. What an
//! append takes from a rotation is fused last and without egg ([`append`]): an append has effects.
//!
//! Cost: a line of text for each op, which tells equal regions, and for each region that is unlike all before it about 40 nodes
//! for each layer's 25 ops and the square of them in bits. A region has at most [`Options::region`] ops: what has no place for
//! a cut in so many is cut all the same, and what could be fused across that cut is not.

mod append;
mod egraph;
mod extract;
mod language;
mod region;
mod rules;
mod told;

use std::collections::HashMap;
use std::rc::Rc;

use egg::{Rewrite, StopReason};
use ixc_ir::graph::{Function, Module, Rewriter, ValueId};

use crate::canonicalise;
use crate::decision::Decision;
use crate::error::PassError;
use crate::options::{PassOptions, pass_options};
use crate::pass::{Context, Pass, Run};

/// The pass.
pub static PASS: Pass = Pass {
    name: "fuse",
    doc: "Reads weights quantised, and fuses what one pass over memory can do.",
    options: Options::ROWS,
    run: Run::Graph(run),
};

pass_options! {
    /// Options of the pass: the ops of twenty layers, where a layer is two regions; the longest chain of rules is 8 long.
    pub struct Options for "fuse" {
        #[doc = "Most ops that are one e-graph; choosing among their nodes takes the square of these in bits."]
        pub region: usize = 512,
        #[doc = "Most rounds of rewriting."]
        pub rounds: usize = 32,
    }
}
use language::{Node, Types};
use region::{Piece, Spans};
use told::Told;

/// Runs the pass.
///
/// # Errors
/// When a function uses a value before it is defined, which the verifier refuses.
pub fn run(mut module: Module, context: &Context<'_>) -> Result<Module, PassError> {
    let options: Options = context.options.of();
    let mut fuser = Fuser { tells: context.tells(), ..Fuser::new(&options) };
    for i in 0..module.functions.len() {
        let fused = fuser.function(&module, &module.functions[i])?;
        fuser.told.drain(..).for_each(|told| context.decide(|| told));
        module.functions[i] = append::run(&module, &fused, context)?;
    }
    canonicalise::run(module, context)
}

/// What is fused already, by the region's text.
struct Fuser<'o> {
    options: &'o Options,
    rewrites: Vec<Rewrite<Node, Types>>,
    closed: rules::Closed,
    fused: HashMap<String, Rc<(Function, Vec<Told>)>>,
    /// How egg's runs went, one for each region that is unlike all before it.
    runs: Vec<egraph::Run>,
    /// Whether decisions are to be told, and those that were made.
    tells: bool,
    told: Vec<Decision>,
}

impl<'o> Fuser<'o> {
    fn new(options: &'o Options) -> Fuser<'o> {
        Fuser {
            options,
            rewrites: rules::rewrites(),
            closed: rules::Closed::new(),
            fused: HashMap::new(),
            runs: Vec::new(),
            tells: false,
            told: Vec::new(),
        }
    }

    fn function(&mut self, module: &Module, function: &Function) -> Result<Function, PassError> {
        // Without what nothing uses: it would be in the way of cuts.
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
            self.told.extend(fused.1.iter().map(|told| told.decision(name)));
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

    /// The region fused: by egg where it is unlike all before it.
    fn piece(&mut self, piece: &Piece) -> Result<Rc<(Function, Vec<Told>)>, PassError> {
        let key = piece.module.to_string();
        if let Some(fused) = self.fused.get(&key) {
            return Ok(Rc::clone(fused));
        }
        let [function] = &piece.module.functions[..] else { unreachable!("a region is one function") };
        let (fused, run, told) =
            egraph::fuse(&piece.module, function, &self.rewrites, self.options.rounds, self.tells)?;
        self.runs.push(run);
        let fused = Rc::new((fused, told));
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

    /// A model whose layers' value and down projections have one of two formats.
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

    /// The module fused, and how egg's runs went.
    fn fused(module: &Module, options: &Options) -> (Function, Vec<egraph::Run>) {
        let mut fuser = Fuser::new(options);
        let function = fuser.function(module, &module.functions[0]).unwrap();
        (function, fuser.runs)
    }

    #[test]
    fn equal_layers_are_fused_once() {
        let (like, unlike) = (["q4_k"; 64], ["q4_k", "q6_k", "q6_k", "q4_k"]);
        let runs = |formats: &[&str]| {
            let (function, runs) = fused(&model(formats), &Options::default());
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
        // The embedding, two halves of a layer, the rows that are wanted and their logits: however many layers there are.
        assert_eq!(runs(&like[..1]), runs(&like));
        assert_eq!(runs(&like).0, 5);
        // Two halves more for the other kind of layer.
        assert_eq!(runs(&unlike).0, 7);
        assert_eq!(runs(&unlike.repeat(16)), runs(&unlike));
    }

    /// Cuts change nothing: the whole function as one e-graph gives the same ops.
    #[test]
    fn regions_are_fused_as_the_whole_is() {
        for formats in [&["q4_k"; 3][..], &["q4_k", "q6_k", "f32"], &["f16", "q8_0", "q8_0", "q5_k"]] {
            let module = model(formats);
            let (function, _) = fused(&module, &Options::default());
            let (whole, ..) = egraph::fuse(&module, &module.functions[0], &rules::rewrites(), 32, false).unwrap();
            assert_eq!(function, whole);
        }
    }

    /// What one layer makes and all others use forbids no cut among those: they are regions as they are without it, and like each other.
    #[test]
    fn what_all_layers_use_is_in_the_way_of_no_cut() {
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
        let options = Options::default();
        let regions = |layers| {
            let module = parse(&text(layers)).unwrap();
            let function = &module.functions[0];
            let mut closed = rules::Closed::new();
            let cuts = Spans::new(function).cut(function, options.region, |op| closed.op(op));
            assert_eq!(cuts.forced, 0, "{layers} layers");
            cuts.regions.len()
        };
        // Within reach it may be fused with what uses it, behind that each layer is a region.
        assert!(regions(3 * options.region) > 2 * options.region);
        assert!(regions(options.region / 8) < options.region / 8);
    }

    /// One region that has no place for a cut is cut all the same: an e-graph has no more nodes than that.
    #[test]
    fn a_long_region_is_cut_where_it_must_be() {
        let mut text = "weight @w : f32[8, 8]\nfunc @f(%x0: f32[T, 8]) -> (f32[T, 8]) {\n".to_owned();
        for i in 0..5000 {
            // Rules look into products, so that no place is one for a cut.
            write!(text, "  %s{i} = mul %x{i}, %x{i}\n  %x{} = mul %s{i}, %x{i}\n", i + 1).unwrap();
        }
        text += "  return %x5000\n}";
        let module = parse(&text).unwrap();
        let options = Options::default();
        let (function, runs) = fused(&module, &options);
        assert_eq!(function.ops.len(), 10_000);
        assert!(runs.iter().all(|run| run.nodes <= 8 * options.region), "{runs:?}");
        assert!(runs.len() <= 10_000 / (options.region / 2) + 1, "{} runs", runs.len());
    }
}
