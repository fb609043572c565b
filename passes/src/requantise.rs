//! `requantise`: stores weights in another format than the file's, on request.
//!
//! The pass changes what a model computes, as `defer` does. It does nothing unless an option
//! requests it. A weight gets a format with a scale for each row, and its old format is recorded as
//! `stored`: the reader of the file requantises. All later passes see only the new format.
//!
//! Some weights do not change: routers, and weights read by rows (an embedding, and an output tied
//! to it). A weight is also unchanged if it is not whole strips of 16 rows in whole blocks of the
//! format (64 columns, or 128 with a common scale).
//!
//! Needs: a graph from a frontend, before `fuse`. Leaves: the same ops. Weights that only products
//! read have other formats.
//!
//! ```text
//! weight @w : q4_k[512, 256]
//!   %1 = dequantise @w : f32[512, 256]
//!   %2 = matmul %x, %1 : f32[T, 512]
//! ```
//! becomes, with `requantise.weights = i8_row`,
//! ```text
//! weight @w : i8_row[512, 256] {stored = q4_k}
//!   %1 = dequantise @w : f32[512, 256]
//!   %2 = matmul %x, %1 : f32[T, 512]
//! ```

use std::collections::{BTreeMap, BTreeSet};

use ixc_ir::format::Format;
use ixc_ir::format::packed::STRIP;
use ixc_ir::graph::{DefUse, Function, Module, Op, OpKind, Operand, ValueId, WeightId};
use ixc_kernels::candidates::MAX_COLUMNS_BY_ROWS;

use crate::decision::Decision;
use crate::error::PassError;
use crate::options::{OptionValue, PassOptions, matches, pass_options};
use crate::pass::{Context, Pass, Run};

/// Entry of this pass in the list of passes.
pub static PASS: Pass = Pass {
    name: "requantise",
    doc: "Converts weights to other formats than the file's, if `weights` names any.",
    options: RequantiseOptions::ROWS,
    run: Run::Graph(run),
};

pass_options! {
    /// Options of the pass.
    pub struct RequantiseOptions for "requantise" {
        #[doc = "Formats of weights by name: i8_row, i4_row, i4_g128, or a list PATTERN=FORMAT,.. in which the last match counts; keep leaves the format unchanged."]
        pub weights: Formats = Formats::default(),
    }
}

/// Formats by patterns of weight names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Formats(Vec<(String, Option<Format>)>);

impl Formats {
    /// Returns the format to which a weight is requantised, if any.
    fn for_weight(&self, name: &str) -> Option<Format> {
        self.0.iter().rev().find(|(pattern, _)| matches(pattern, name)).and_then(|(_, format)| *format)
    }

    /// Whether no format is requested.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|(_, format)| format.is_none())
    }
}

/// Option value that leaves a weight's format unchanged.
const KEEP: &str = "keep";

impl OptionValue for Formats {
    const EXPECTED: &'static str =
        "i8_row, i4_row, i4_g128 or keep, or PATTERN=FORMAT,.. such as i8_row,*_exps*=i4_row";

    fn read(text: &str) -> Option<Formats> {
        let each = |text: &str| {
            let (pattern, format) = text.split_once('=').unwrap_or(("*", text));
            let format = match format.trim() {
                KEEP => None,
                name => Some(Format::requantisation_formats().find(|format| format.name() == name)?),
            };
            let pattern = pattern.trim().to_owned();
            (!pattern.is_empty()).then_some((pattern, format))
        };
        let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
        texts.map(each).collect::<Option<_>>().map(Formats)
    }

    fn text(&self) -> String {
        let format = |format: &Option<Format>| format.map_or(KEEP, Format::name);
        self.0.iter().map(|(pattern, to)| format!("{pattern}={}", format(to))).collect::<Vec<_>>().join(",")
    }
}

/// Runs the pass.
///
/// # Errors
/// Never fails; all passes have the same signature.
pub fn run(mut module: Module, context: &Context<'_>) -> Result<Module, PassError> {
    let RequantiseOptions { weights: formats } = context.options.get();
    if formats.is_empty() {
        return Ok(module);
    }
    for w in products(&module) {
        let weight = &mut module.weights[w.index()];
        let &[.., n, k] = &weight.shape[..] else { continue };
        let Some(format) = formats.for_weight(&weight.name) else { continue };
        let part = weight.part.as_ref().map_or([0; 2], |part| [part.rows, part.from]);
        let strips = part.into_iter().chain([n]).all(|rows: u64| rows.is_multiple_of(STRIP as u64));
        let whole = strips && format.row_bytes(k).is_some() && k <= MAX_COLUMNS_BY_ROWS;
        let known = weight.stored_format().is_in_files();
        context.decide(|| {
            let decision = Decision::new("weight", &weight.name, "format");
            let kept =
                |why: String| decision.clone().chose(format!("{} as stored", weight.format)).over(format.name(), why);
            match (strips, whole, known) {
                _ if format == weight.format => decision.clone().chose(format.name()),
                (true, true, true) => decision
                    .clone()
                    .chose(format.name())
                    .over(weight.format.name(), format!("requantise.weights requests {format}")),
                (false, ..) => kept(format!("its {n} rows are not a multiple of {STRIP}, the rows of a strip")),
                (true, false, _) => {
                    kept(format!("its {k} columns do not fill blocks, or exceed {MAX_COLUMNS_BY_ROWS}"))
                }
                (true, true, false) => kept("only weights that a file stores can be requantised".to_owned()),
            }
        });
        if whole && known && format != weight.format {
            weight.choice.stored = Some(weight.stored_format());
            weight.format = format;
        }
    }
    Ok(module)
}

/// Returns the weights that only products read, except those of routers.
fn products(module: &Module) -> BTreeSet<WeightId> {
    let mut found: BTreeMap<WeightId, bool> = BTreeMap::new();
    for function in &module.functions {
        let uses = DefUse::from_function(function);
        for op in &function.ops {
            for operand in &op.operands {
                if let Operand::Weight(w) = *operand {
                    let product = op.kind == OpKind::Dequantise && !chooses(function, &uses, op.results[0]);
                    *found.entry(w).or_insert(true) &= product;
                }
            }
        }
    }
    found.into_iter().filter_map(|(w, products)| products.then_some(w)).collect()
}

/// Whether a product with a dequantised weight gives the router's scores of experts, directly or
/// after adding a bias.
fn chooses(function: &Function, uses: &DefUse, dequantised: ValueId) -> bool {
    let users = |value| uses.users(value).into_iter().flatten().map(|user| &function.ops[user]);
    let is_chosen_by = |value| users(value).any(|op| matches!(op.kind, OpKind::Route | OpKind::RouteListed));
    let with_bias = |op: &Op| op.kind == OpKind::AddBias && is_chosen_by(op.results[0]);
    let product =
        |op: &Op| op.kind == OpKind::Matmul && (is_chosen_by(op.results[0]) || users(op.results[0]).any(with_bias));
    users(dequantised).any(product)
}
