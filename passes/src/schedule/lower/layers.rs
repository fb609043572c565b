//! Experts of layers that run separately: functions of rows, ids and weights, one after the other
//! in one plan.
//!
//! ```text
//! func @experts.3(%x: f32[T, 256], %ids: i32[T, 4], %p: f32[T, 4])    buffers that the runtime fills
//! route.given %ids, %p                                                nothing: what reads them takes the buffers
//! return %y                                                           the buffer that the runtime reads
//! ```
//!
//! Invariant: no task of a layer reads or writes a buffer of another layer. [`Draft::layers`] gives
//! the start of each layer's work.

use ixc_ir::format::Format;
use ixc_ir::graph::expert_layers::layer_of_function;
use ixc_ir::graph::{DefUse, Dim, Element, Function, Module, Op, Type};
use ixc_ir::plan::{BufferId, ExpertLayer, Output};

use super::{ArenaRows, Binding, Lowering, Rows, fit, unsupported_error};
use super::{Draft, ScheduleError};
use crate::pass::{Context, PlanProperties};

/// Returns the tasks of all functions. `vocabulary` is recorded in the plan.
pub(super) fn lower(
    module: &Module,
    facts: &PlanProperties<'_>,
    context: &Context<'_>,
    vocabulary: u32,
) -> Result<Draft, ScheduleError> {
    let wrong = |function: &Function, problem: String| ScheduleError::Layer { name: function.name.clone(), problem };
    let first = module
        .functions
        .first()
        .ok_or_else(|| ScheduleError::Step { problem: "the module has no function".to_string() })?;
    let mut lowering = Lowering::new(module, first, facts, context.target)?;
    lowering.decisions.clone_from(&context.decisions);
    let (mut layers, mut begins) = (Vec::new(), Vec::new());
    for function in &module.functions {
        let layer = layer_of_function(&function.name);
        let layer = layer.ok_or_else(|| wrong(function, "its name must be experts.N".to_string()))?;
        begins.push(lowering.tasks.work.len());
        lowering.enter(function);
        let [rows, ids, weights] = lowering.parameter_buffers(function)?;
        for op in &function.ops {
            lowering.op(op)?;
        }
        let [result] = function.results[..] else {
            return Err(wrong(function, format!("it has {} results", function.results.len())));
        };
        let result = lowering.arena_rows("return", result)?;
        if (result.rows, result.format, result.width) != (Rows::Tokens, Format::F32, rows.width)
            || [rows.buffer, ids.buffer, weights.buffer].contains(&result.buffer)
        {
            return Err(wrong(function, "its result must be rows of f32 with the width of x".to_string()));
        }
        let [rows, ids, weights, result] = [rows, ids, weights, result].map(|rows| rows.buffer);
        layers.push((ExpertLayer { layer, first: 0, steps: 0, rows, ids, weights, result }, function));
    }
    let width = |lowering: &Lowering<'_>, buffer: BufferId| lowering.buffers[buffer.0 as usize].row_bytes;
    let [(of, _), ..] = layers[..] else {
        return Err(ScheduleError::Step { problem: "the module has no function".to_string() });
    };
    let row = width(&lowering, of.rows);
    if let Some((_, other)) = layers.iter().find(|(layer, _)| width(&lowering, layer.rows) != row) {
        return Err(wrong(other, "its rows have another width than the rows of the other layers".to_string()));
    }
    let output = Output::Experts { width: fit("width of rows", row / 4)? };
    let mut draft = lowering.draft(context, vocabulary, of.result, output)?;
    draft.plan.expert_layers = layers.into_iter().map(|(layer, _)| layer).collect();
    draft.layers = begins;
    Ok(draft)
}

impl<'a> Lowering<'a> {
    /// Begins the lowering of another function, which shares kernels and weights with earlier
    /// functions.
    fn enter(&mut self, function: &'a Function) {
        self.function = function;
        self.def_use = DefUse::from_function(function);
        self.meanings = vec![None; function.values.len()];
        self.given = None;
    }

    /// Returns the buffers of the function's parameters: rows, ids, weights.
    fn parameter_buffers(&mut self, function: &Function) -> Result<[ArenaRows; 3], ScheduleError> {
        let wrong = || ScheduleError::Layer {
            name: function.name.clone(),
            problem: "its parameters must be x: f32[T, n], ids: i32[T, k] and p: f32[T, k]".to_string(),
        };
        let &[x, ids, p] = &function.params[..] else { return Err(wrong()) };
        let width = |ty: &Type| match ty.dims() {
            [Dim::Symbol(rows), Dim::Fixed(width)] if rows == "T" => Some(*width),
            _ => None,
        };
        let float = Some(Element::Format(Format::F32));
        let types = [x, ids, p].map(|param| function.ty(param));
        let [Some(n), Some(k), Some(of_p)] = types.map(width) else { return Err(wrong()) };
        if types.map(Type::element) != [float, Some(Element::I32), float] || k != of_p {
            return Err(wrong());
        }
        let mut buffers = Vec::with_capacity(3);
        for (param, name, width) in [(x, "rows", n), (ids, "route ids", k), (p, "route weights", k)] {
            let buffer = self.buffer(name, Rows::Tokens, Format::F32, width)?;
            self.meanings[param.index()] = Some(Binding::ArenaRows(buffer));
            buffers.push(buffer);
        }
        let &[rows, ids, p] = &buffers[..] else { return Err(wrong()) };
        self.given = Some((ids.buffer, p.buffer));
        Ok([rows, ids, p])
    }

    /// Binds the ids and weights to the function's parameters. The runtime checks them on input and
    /// sorts them like the result of a route.
    pub(super) fn route_given(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let (ids, p) = (self.operand(op, "ids")?, self.operand(op, "p")?);
        let experts = op.attr("experts").int().unsigned_abs();
        if self.given != Some((ids.buffer, p.buffer)) {
            return unsupported_error(
                name,
                "expert ids and weights that are not the parameters; only the parameters are checked",
            );
        }
        if self.routes.insert(ids.buffer, experts).is_some_and(|other| other != experts) {
            return unsupported_error(name, "the same ids for different numbers of experts");
        }
        self.meanings[op.results[1].index()] = Some(Binding::ArenaRows(p));
        Ok(Binding::ArenaRows(ids))
    }
}
