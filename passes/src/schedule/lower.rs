//! `lower`: turns graph ops into tasks with the resources that they read and write.
//!
//! Every value of the graph is a buffer of rows ([`ArenaRows`]). A row holds all elements of a
//! token, or of a token's slot after routing, so splitting and merging heads needs no task. Rows of
//! routed values are sorted by expert, although the graph's type is `[T, slots, n]`. That is safe
//! because only `expert.*` ops and elementwise ops touch them before they are combined.
//!
//! ```text
//! expert.swiglu %x, %ids, @gate, @up    bucket (ids sorted by expert), gather (rows of %x), swiglu
//! expert.down %y, %ids, %p, @down, _, %r   linear, combine (+ %r)
//! ```
//!
//! | module | lowers |
//! | --- | --- |
//! | `products` | products of rows with weights |
//! | `matrix` | the tasks of products |
//! | `rows` | ops on rows: embedding, elementwise, norms, quantisation |
//! | `rotation` | rotation of heads, temperatures |
//! | `attention` | cache, attention |
//! | `attend` | kernels of attention |
//! | `recurrent` | ops that change a state token by token |
//! | `experts` | routing, and rows in the order of their experts |
//! | `residency` | experts that are loaded on demand |
//! | `layers` | experts of layers that run separately |
//! | `ranks` | exchanges between ranks, and the experts of a rank |
//!
//! `binding` has the buffers of values, `operands` reads operands, and `weights` adds weights to
//! the plan.

mod attend;
mod attention;
mod binding;
mod experts;
mod layers;
mod matrix;
mod operands;
mod products;
mod ranks;
mod recurrent;
mod residency;
mod rotation;
mod rows;
mod weights;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ixc_ir::derived::Derivation;
use ixc_ir::format::{FORMATS, Format};
use ixc_ir::graph::attrs::RopeAttrs;
use ixc_ir::graph::def_use::DefUse;
use ixc_ir::graph::{self, Dim, Element, Function, Module, Op, OpKind, Place, Type, WeightId};
use ixc_ir::names::Label;
use ixc_ir::plan::{
    ArenaBuffer, Arg, BucketId, BufferId, DimExpr, HiddenRows, Output, Plan, PlanWeight, RankDivision, Ranks,
    RopeTable, Source, State, StateField,
};
use ixc_ir::units::count_text;
use ixc_kernels::generator::signature::NamedValue;
use ixc_kernels::{Elementwise, Gated, KernelSpec, Softmax};
use ixc_targets::Target;

pub(super) use self::binding::{ArenaRows, Rows};
use self::binding::{Binding, Slots};
use self::matrix::{Gate, gate, scratch_arg};
use self::residency::Residency;
use super::bind::{KernelChoice, NamedArg, Parts, Tasks, bind};
use super::{Draft, Resource, ScheduleError, Work, WorkItem};
use crate::decision::{Decision, Decisions, RejectedAlternative};
use crate::draft::{fit, part_bytes, row_bytes};
use crate::error::PassError;
use crate::pass::{Context, GraphResult, Pass, PlanProperties, Run};

/// Entry of this pass in the list of passes.
pub static PASS: Pass = Pass {
    name: "lower",
    doc: "Turns ops into tasks: each is a kernel and the data that it reads and writes.",
    options: &[],
    run: Run::Lower(run),
};

/// Runs the pass.
///
/// # Errors
/// `@step` is missing or unsuitable, an op cannot be lowered, a size does not fit, or a weight has
/// no location or no tiling.
pub fn run(module: &Module, context: &Context<'_>) -> Result<Draft, PassError> {
    let facts = context.facts.as_ref().ok_or(PassError::NoModel { pass: PASS.name })?;
    Ok(lower(module, facts, context)?)
}

fn lower(module: &Module, facts: &PlanProperties<'_>, context: &Context<'_>) -> Result<Draft, ScheduleError> {
    let step = |problem: String| ScheduleError::Step { problem };
    if facts.max_tokens == 0 {
        return Err(step("max_tokens is 0, must be at least 1".to_string()));
    }
    if let GraphResult::Experts { vocabulary } = facts.result {
        return layers::lower(module, facts, context, vocabulary);
    }
    let function = module
        .functions
        .iter()
        .find(|function| function.name == "step")
        .ok_or_else(|| step("there is no function @step".to_string()))?;
    let mut lowering = Lowering::new(module, function, facts, context.target)?;
    lowering.decisions.clone_from(&context.decisions);
    lowering.division = ranks::division(context);
    lowering.step_params()?;
    for op in &function.ops {
        lowering.op(op)?;
    }
    let (logits, hidden) = match function.results[..] {
        // Only rank 0 returns results; it receives those of all ranks.
        [] if lowering.ranks.is_some_and(|ranks| ranks.rank > 0) => (None, None),
        [logits] => (Some(logits), None),
        [logits, hidden] if facts.result == GraphResult::Logits => (Some(logits), Some(hidden)),
        _ => return Err(step(format!("it has {} results", function.results.len()))),
    };
    let result = match logits {
        Some(logits) => lowering.arena_rows("return", logits)?,
        None => lowering.buffer("results of rank 0", Rows::Outputs, Format::F32, facts.result_width)?,
    };
    if let Some(logits) = logits.filter(|logits| result.rows != Rows::Outputs || function.ty(*logits).dims().len() != 2)
    {
        return Err(step(format!(
            "its result is {}, which does not have one row for each requested output",
            function.ty(logits)
        )));
    }
    let (vocabulary, output) = match facts.result {
        GraphResult::Logits => {
            let vocabulary = fit("vocabulary", result.width)?;
            (vocabulary, Output::Logits { softmax: lowering.tasks.kernel(Softmax { n: vocabulary })? })
        }
        GraphResult::Hidden { vocabulary, pooling, unit } => {
            (vocabulary, Output::Hidden { width: fit("width of hidden states", result.width)?, pooling, unit })
        }
        // Layers of experts returned above, so this arm never runs.
        GraphResult::Experts { vocabulary } => {
            (vocabulary, Output::Experts { width: fit("width of rows", result.width)? })
        }
    };
    if let Some(hidden) = hidden {
        let rows = lowering.arena_rows("return", hidden)?;
        let taken = lowering.takes.map(|taken| (taken.buffer, taken.width));
        let width = fit("width of hidden states", rows.width)?;
        if (rows.rows, rows.format) != (Rows::Tokens, Format::F32)
            || taken.is_some_and(|(buffer, of)| buffer == rows.buffer || of != width)
        {
            let wrong = format!("its second result is {}; expected hidden states of each token", function.ty(hidden));
            return Err(step(wrong));
        }
        lowering.gives = Some(HiddenRows { buffer: rows.buffer, width });
    }
    lowering.draft(context, vocabulary, result.buffer, output)
}

impl Lowering<'_> {
    /// Returns the draft after all ops are lowered.
    fn draft(
        mut self,
        context: &Context<'_>,
        vocabulary: u32,
        logits: BufferId,
        output: Output,
    ) -> Result<Draft, ScheduleError> {
        let expert_groups = self.expert_groups()?;
        let Lowering { facts, plan_weights, made, ropes, states, buckets, tasks, buffers, takes, gives, ranks, .. } =
            self;
        let (kernels, work) = tasks.into_parts();
        tracing::debug!(
            tasks = work.len(),
            kernels = kernels.len(),
            buffers = buffers.len(),
            weights = plan_weights.len(),
            "lowered"
        );
        let plan = Plan {
            architecture: facts.architecture.clone(),
            target: context.target.name().to_owned(),
            max_tokens: facts.max_tokens,
            context_length: facts.context_length,
            vocabulary,
            files: facts.files.clone(),
            derived: facts.derived.iter().cloned().chain(made.into_iter().map(|(derived, _)| derived)).collect(),
            weights: plan_weights,
            own_weight_bytes: 0,
            ropes,
            states,
            expert_groups,
            buckets,
            buffers,
            arena_bytes: 0,
            kernels,
            steps: Vec::new(),
            logits,
            output,
            takes,
            gives,
            expert_layers: Vec::new(),
            ranks,
            tokenizer: facts.tokenizer.clone(),
        };
        Ok(Draft { plan, work, steps: None, layers: Vec::new() })
    }
}

/// State of the lowering of one function, including the plan under construction.
pub(super) struct Lowering<'a> {
    pub(super) module: &'a Module,
    function: &'a Function,
    def_use: DefUse,
    facts: &'a PlanProperties<'a>,
    meanings: Vec<Option<Binding>>,
    /// Buffers of expert ids and weights that the runtime passes in, for a layer that runs
    /// separately.
    given: Option<(BufferId, BufferId)>,
    /// Hidden states that come with the tokens, and hidden states that are returned.
    takes: Option<HiddenRows>,
    gives: Option<HiddenRows>,
    /// Number of experts of the `route`, by the buffer of the chosen ids.
    routes: HashMap<BufferId, u64>,
    /// Buffers of ids in which some slots may have no expert.
    partial: HashSet<BufferId>,
    routings: HashMap<Slots, Rows>,
    /// Number of experts of each bucket.
    experts: Vec<u64>,
    quantised: HashMap<(BufferId, Format), ArenaRows>,
    gathered: HashMap<(BufferId, BucketId), ArenaRows>,
    weight_ids: HashMap<(WeightId, Format), u32>,
    /// Tensors in the plan, by name, kernels' format, stored format and location.
    tensors: HashMap<(String, Format, Format, Place), u32>,
    /// Whether quantised values also contain bf16. If some products need bf16, all quantised values
    /// contain it, so that every product can read every value.
    beside: bool,
    /// Whether the target has tile registers.
    tiles: bool,
    /// Record of decisions, if requested.
    decisions: Option<Arc<Decisions>>,
    pub(super) residency: Residency,
    pub(super) buffers: Vec<ArenaBuffer>,
    pub(super) tasks: Tasks,
    pub(super) plan_weights: Vec<PlanWeight>,
    /// Vectors that are in no file, each with the number of its weight in the plan.
    made: Vec<(Derivation, u32)>,
    pub(super) ropes: Vec<RopeTable>,
    /// States, in the order of the module.
    pub(super) states: Vec<State>,
    pub(super) buckets: u32,
    /// This rank and its division, if the graph is that of one rank.
    ranks: Option<Ranks>,
    /// Division of the model among ranks, if any.
    division: RankDivision,
}

fn unsupported_error<T>(op: &'static str, problem: impl Into<String>) -> Result<T, ScheduleError> {
    Err(ScheduleError::Unsupported { op, problem: problem.into() })
}

/// Returns the plan's form of a state.
fn plan_state(state: &graph::State) -> Result<State, ScheduleError> {
    let field = |field: &graph::Field| {
        let (columns, inner) =
            field.dims.split_first().map_or((1, &[][..]), |(first, inner)| (first.fixed().unwrap_or(1), inner));
        let width = inner.iter().filter_map(Dim::fixed).try_fold(1u64, u64::checked_mul).unwrap_or(u64::MAX);
        Ok(StateField {
            format: field.format,
            columns: fit("columns of a state", columns)?,
            positions: inner.iter().any(|dim| dim.fixed().is_none()),
            width: fit("elements of a state's column", width)?,
        })
    };
    Ok(State {
        name: state.name.clone(),
        kind: state.kind,
        fields: state.fields.iter().map(field).collect::<Result<_, ScheduleError>>()?,
        rollback: state.rollback,
        window: state.window.map(|window| fit("positions of a window", window)).transpose()?,
        every: fit("positions of a place", state.every)?,
        chunked: state.chunked,
    })
}

/// Returns an argument that is the same for every item.
fn whole(source: Source) -> Arg {
    by_row(source, 0)
}

/// Returns an argument that is one row per row of the item.
fn by_row(source: Source, row_stride: u64) -> Arg {
    by_column(source, row_stride, 0)
}

/// Returns an argument that is one column of a row.
fn by_column(source: Source, row_stride: u64, column_stride: u64) -> Arg {
    Arg { source, offset: 0, row_stride, column_stride, expert_stride: 0 }
}

/// Bytes of an index: ids and positions are i32.
const INDEX_BYTES: u64 = 4;

impl<'a> Lowering<'a> {
    pub(super) fn new(
        module: &'a Module,
        function: &'a Function,
        facts: &'a PlanProperties<'a>,
        target: Target,
    ) -> Result<Lowering<'a>, ScheduleError> {
        let mut lowering = Lowering {
            module,
            function,
            def_use: DefUse::from_function(function),
            facts,
            meanings: vec![None; function.values.len()],
            given: None,
            takes: None,
            gives: None,
            routes: HashMap::new(),
            partial: HashSet::new(),
            routings: HashMap::new(),
            experts: Vec::new(),
            quantised: HashMap::new(),
            gathered: HashMap::new(),
            weight_ids: HashMap::new(),
            tensors: HashMap::new(),
            tiles: target.row().isa.tile_registers > 0,
            beside: module.weights.iter().any(|weight| weight.choice.activations.is_some_and(is_beside)),
            decisions: None,
            residency: Residency::default(),
            buffers: Vec::new(),
            tasks: Tasks::default(),
            plan_weights: Vec::new(),
            made: Vec::new(),
            ropes: Vec::new(),
            states: Vec::new(),
            buckets: 0,
            ranks: None,
            division: RankDivision::Layers,
        };
        lowering.states = module.states.iter().map(plan_state).collect::<Result<_, _>>()?;
        Ok(lowering)
    }

    /// Binds the parameters of a step.
    fn step_params(&mut self) -> Result<(), ScheduleError> {
        let function = self.function;
        let kinds = [Binding::Ids, Binding::Positions, Binding::WantedRows];
        let types: Vec<&Type> = function.params.iter().map(|&param| function.ty(param)).collect();
        let index = |ty: &Type| ty.element() == Some(Element::I32) && ty.dims().len() == 1;
        let wrong = || ScheduleError::Step { problem: "@step has parameters of other types".to_string() };
        let hidden = match types[..] {
            [ids, pos, rows, ref hidden @ ..] if index(ids) && pos == ids && index(rows) && rows != ids => {
                match (hidden, self.facts.result) {
                    ([], _) => None,
                    ([hidden], GraphResult::Logits) => Some(*hidden),
                    _ => return Err(wrong()),
                }
            }
            _ => return Err(wrong()),
        };
        if let (Some(ty), Some(&param)) = (hidden, function.params.last()) {
            let width = match ty.dims() {
                [tokens, Dim::Fixed(width)]
                    if Some(tokens) == types[0].dims().first()
                        && ty.element() == Some(Element::Format(Format::F32)) =>
                {
                    *width
                }
                _ => return Err(wrong()),
            };
            let rows = self.buffer("hidden", Rows::Tokens, Format::F32, width)?;
            self.meanings[param.index()] = Some(Binding::ArenaRows(rows));
            self.takes = Some(HiddenRows { buffer: rows.buffer, width: fit("width of hidden states", width)? });
        }
        for (&param, kind) in function.params.iter().zip(kinds) {
            self.meanings[param.index()] = Some(kind);
        }
        Ok(())
    }

    /// Lowers one op.
    pub(super) fn op(&mut self, op: &Op) -> Result<(), ScheduleError> {
        let meaning = match op.kind {
            OpKind::Embed => self.embed(op)?,
            OpKind::Dequantise => Binding::Weight(self.weight_operand(op, "w")),
            OpKind::Matmul => self.matmul(op)?,
            OpKind::Add => self.elementwise(op, rows::map(Elementwise::Add))?,
            OpKind::Mul => self.elementwise(op, rows::map(Elementwise::Mul))?,
            OpKind::Gated => {
                let Gate { act, limit, shift, bend } = gate(op);
                self.elementwise(op, |n| Gated { act, n, limit, shift, bend }.into())?
            }
            OpKind::Unary(function) => self.elementwise(op, rows::unary(function, op))?,
            OpKind::AddBias => self.add_bias(op)?,
            OpKind::Centre => self.centre(op)?,
            OpKind::HeadsSum => self.heads_sum(op)?,
            OpKind::Ngram => {
                self.meanings[op.results[1].index()] = Some(Binding::Token);
                self.ngram(op)?
            }
            OpKind::ScaleHeads => self.scale_heads(op)?,
            OpKind::RmsNorm => self.rms_norm(op, Format::F32)?,
            OpKind::RmsNormQuantise => self.rms_norm(op, op.attr("format").format())?,
            OpKind::SplitHeads | OpKind::MergeHeads => self.same_rows(op)?,
            OpKind::Slice => self.slice(op)?,
            OpKind::Concat => self.concat(op)?,
            OpKind::Rope => self.rope_heads(op, None)?,
            OpKind::Temperature => self.temperature(op)?,
            OpKind::HeadsTemperature => self.heads_temperature(op)?,
            OpKind::RopeHeads => self.rope_heads(op, self.opt_weight(op, "norm"))?,
            OpKind::KvAppend => self.append(op, None)?,
            OpKind::ColumnSquares => self.column_squares(op)?,
            OpKind::RopeAppend => self.append(op, Some(RopeAttrs::from_op(op)))?,
            OpKind::IndexTopK => {
                self.meanings[op.results[1].index()] = Some(Binding::Token);
                self.index_top_k(op)?
            }
            OpKind::Attention => {
                self.meanings[op.results[1].index()] = Some(Binding::Token);
                self.attention(op)?
            }
            OpKind::Route => self.route(op)?,
            OpKind::ExpertSplit => self.split(op)?,
            OpKind::Positions => {
                self.check_positions(op)?;
                let every = fit("positions with the same rotation", op.attr("every").int().unsigned_abs())?;
                Binding::Turned { every, back: op.attr("back").bool() }
            }
            OpKind::Ends => {
                self.check_positions(op)?;
                Binding::Ends
            }
            OpKind::AttentionEntries => {
                for &token in &op.results[1..] {
                    self.meanings[token.index()] = Some(Binding::Token);
                }
                self.attention_entries(op)?
            }
            OpKind::RouteListed => self.route_listed(op)?,
            OpKind::RouteGiven => self.route_given(op)?,
            OpKind::RouteIdentities => self.route_identities(op)?,
            OpKind::ExpertGroups => self.groups_of_experts(op)?,
            OpKind::StreamWeights => self.stream_weights(op)?,
            OpKind::StreamInput => self.stream_input(op)?,
            OpKind::StreamMix => self.stream_mix(op)?,
            OpKind::StreamAttend => self.stream_attend(op)?,
            OpKind::TakeRows => self.take_rows(op)?,
            OpKind::Quantise => {
                let x = self.operand(op, "x")?;
                Binding::ArenaRows(self.quantise(x, op.attr("format").format())?)
            }
            OpKind::Linear => self.linear(op)?,
            OpKind::HeadsMatmul => self.heads_matmul(op)?,
            OpKind::LinearHeads => self.linear_heads(op)?,
            OpKind::LinearQkv => return self.linear_qkv(op),
            OpKind::LinearSwiglu | OpKind::ExpertSwiglu => self.gated_product(op)?,
            OpKind::ExpertMatmul => self.expert_matmul(op)?,
            OpKind::ExpertAddBias => self.expert_add_bias(op)?,
            OpKind::ExpertScale => self.expert_scale(op)?,
            OpKind::ExpertCombine => self.expert_combine(op)?,
            OpKind::ExpertDown => self.expert_down(op)?,
            OpKind::Recurrent(kind) => {
                self.meanings[op.results[1].index()] = Some(Binding::Token);
                self.recurrent(op, kind)?
            }
            OpKind::StateBegin | OpKind::ExpertSlots => Binding::Token,
            OpKind::ExpertPrefetch => self.expert_prefetch(op)?,
            OpKind::ExpertWait => {
                self.meanings[op.results[1].index()] = Some(Binding::Token);
                self.expert_wait(op)?
            }
            OpKind::ExpertEvict => self.expert_evict(op)?,
            OpKind::RanksBegin => self.ranks_begin(op)?,
            OpKind::AllReduce | OpKind::AllGather | OpKind::Send | OpKind::Recv => self.exchange(op)?,
            OpKind::RouteOwned => self.route_owned(op)?,
        };
        self.meanings[op.results[0].index()] = Some(meaning);
        Ok(())
    }

    /// Returns the operand `x` as the result of an op that only splits or merges heads. Its rows do
    /// not change.
    fn same_rows(&self, op: &Op) -> Result<Binding, ScheduleError> {
        let x = self.operand(op, "x")?;
        // A routed row is one slot of a token, so the slots of a token are not adjacent like heads.
        if matches!(x.rows, Rows::Routed { .. }) {
            return unsupported_error(
                op.kind.row().mnemonic,
                "expert slots of a token as heads; each slot has a row of its own",
            );
        }
        Ok(Binding::ArenaRows(x))
    }

    /// Checks that the operand `pos` is the function's parameter with the tokens' positions.
    pub(super) fn check_positions(&self, op: &Op) -> Result<(), ScheduleError> {
        let name = op.kind.row().mnemonic;
        let Binding::Positions = self.meaning(name, self.value_operand(op, "pos")?)? else {
            return unsupported_error(name, "positions that are not the parameter `pos`");
        };
        Ok(())
    }

    // The following methods add buffers and tasks to the plan.

    pub(super) fn buffer(
        &mut self,
        name: &str,
        rows: Rows,
        format: Format,
        width: u64,
    ) -> Result<ArenaRows, ScheduleError> {
        let format = self.stored_format(format);
        // `arena` sets the offset.
        let new =
            ArenaBuffer { name: name.to_string(), row_bytes: row_bytes(format, width)?, rows: rows.count(), offset: 0 };
        let buffer = BufferId(fit("number of buffers", self.buffers.len() as u64)?);
        self.buffers.push(new);
        Ok(ArenaRows { buffer, rows, width, format })
    }

    /// Adds a task with an item for each row and column.
    pub(super) fn by_rows(
        &mut self,
        label: String,
        rows: Rows,
        columns: u64,
        spec: impl Into<KernelSpec>,
        dims: &[NamedValue<DimExpr>],
        args: Vec<NamedArg>,
    ) -> Result<(), ScheduleError> {
        self.tasks.by_rows(label, rows.axis(), columns, spec, dims, args)
    }

    /// Records the decision for the kernels of a task and their row counts. For each kernel except
    /// the last, `why` has the reason against using the next kernel for its rows. `rejected`
    /// returns further rejected alternatives.
    pub(super) fn tell_by_rows(
        &self,
        label: &str,
        choices: &[KernelChoice],
        why: &[&str],
        rejected: impl FnOnce() -> Vec<RejectedAlternative>,
    ) {
        let Some(decisions) = &self.decisions else { return };
        let limit = |choice: &KernelChoice| match choice.up_to_rows {
            u32::MAX => String::new(),
            rows => format!(" for up to {}", count_text(rows.into(), "row")),
        };
        let chunk = |choice: &KernelChoice| count_text(choice.row_chunk.into(), "row");
        let name = |choice: &KernelChoice| format!("{} by {}{}", choice.spec.name(), chunk(choice), limit(choice));
        let Label { op, rest: name_of } = Label::parse(label);
        let chosen = choices.iter().map(name).collect::<Vec<_>>().join("; ");
        let mut decision = Decision::new(op, name_of, "kernels").chose(chosen);
        for (pair, why) in choices.windows(2).zip(why) {
            if let [before, next] = pair {
                let rows = count_text(before.up_to_rows.into(), "row");
                decision = decision.over(format!("{} by {} for {rows}", next.spec.name(), chunk(next)), *why);
            }
        }
        decisions.add(decision.over_all(rejected()));
    }
}

/// Whether a format is a quantised activation format that also contains bf16.
fn is_beside(format: Format) -> bool {
    FORMATS.iter().any(|row| row.tiles == Some(format) && row.format.is_quantised())
}
