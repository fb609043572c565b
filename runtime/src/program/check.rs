//! The checks of a plan's steps: tasks, division by positions, arguments, logits and softmax. The
//! module `chosen` checks chosen cache slots, and the module `halves` checks sums over ranks that
//! are computed in halves.

mod chosen;
mod halves;

use std::ops::Range;

use ixc_ir::format::Format;
use ixc_ir::kernel::Kernel;
use ixc_ir::ngram;
use ixc_ir::plan::{
    ATTENTION_BLOCK, Arg, Bands, BucketId, BufferId, DimExpr, DimInput, Halves, HiddenRows, Input, KernelId, Leaves,
    Ngram, Output, Plan, RowAxis, RowCount, Source, Split, Step, Task, Variant,
};

use super::halves::{OpenHalves, add_action, begin_sum, finish_sum};
use super::tables::{shorten, slots};
use super::{
    Access, BarrierAction, Ids, LINE_BYTES, MAX_BANDS, MAX_BUFFERS, MAX_CONTEXT, MAX_PARTS, MAX_WIDTH, Parameter,
    PartPlace, PlanError, Problem, Routing, RowSeparation, Signature, Stage, at, id, layers, range,
};

type Result<T, E = PlanError> = std::result::Result<T, E>;

/// Returns the state in whose memory a task's positions are counted. This is a state with a sliding
/// window, or else a state in which several positions share a cache slot.
fn window_state(plan: &Plan<Kernel>, task: &Task) -> Result<Option<u32>, Problem> {
    let states = task.args.iter().filter_map(|arg| match arg.source {
        Source::State { state, .. } => Some(state),
        _ => None,
    });
    let slides = |state: &u32| plan.states.get(*state as usize).is_some_and(|state| state.window.is_some());
    let shares = |state: &u32| plan.states.get(*state as usize).is_some_and(|state| state.every > 1);
    let Some(sliding) = states.clone().find(slides).or_else(|| states.clone().find(shares)) else { return Ok(None) };
    let alone = states.clone().all(|state| state == sliding || (slides(&sliding) && shares(&state)));
    // A task that divides cache slots must begin at the sequence's first slot, so its state must
    // have no sliding window.
    let of_places = |split: Split| split.leaves == Leaves::Words && !slides(&sliding);
    let in_parts = task.variants.iter().filter_map(|variant| variant.split).any(|split| !of_places(split));
    if !alone || task.rows != RowAxis::Tokens || in_parts {
        return Err(Problem::Shape {
            expected: "rows of tokens, positions not divided into parts, and one state with a window or shared cache slots",
        });
    }
    Ok(Some(sliding))
}

/// Returns the number of later positions that a task's rows attend to; `None` if attention is
/// causal. A task with non-causal attention reads whole states.
fn rows_ahead(plan: &Plan<Kernel>, task: &Task) -> Result<Option<u32>, Problem> {
    let mut reaches = task.args.iter().filter_map(|arg| arg.source.row_input()?.reach());
    let uses_end = |dim: &DimExpr| dim.uses(DimInput::TextEnd);
    let needs_end = task.variants.iter().any(|variant| variant.dims.iter().any(uses_end));
    let reach = match (reaches.next(), needs_end) {
        (None, false) => return Ok(None),
        (None, true) => {
            return Err(Problem::Shape {
                expected: "rows that attend to later positions, because a dim uses the end of the text",
            });
        }
        (Some(reach), _) => reach,
    };
    let of_all = task.args.iter().all(|arg| match arg.source {
        Source::State { state, .. } => {
            plan.states.get(state as usize).is_some_and(|state| state.window.is_none() && state.every == 1)
        }
        Source::Chosen { .. } => false,
        _ => true,
    });
    match of_all && task.rows == RowAxis::Tokens && reaches.all(|other| other == reach) {
        true => Ok(Some(reach)),
        false => Err(Problem::Shape {
            expected: "rows of tokens and states with all positions, because rows attend to later positions",
        }),
    }
}

pub(super) struct Checker<'a> {
    pub(super) plan: &'a Plan<Kernel>,
    pub(super) kernels: &'a [Signature],
    pub(super) routings: &'a [Routing],
}

impl Checker<'_> {
    /// Checks all steps. Returns the stages, and the range of stages of each layer that can be
    /// called separately.
    pub(super) fn stages(&self) -> Result<(Vec<Stage>, Vec<Range<usize>>)> {
        let mut stages: Vec<Stage> = Vec::new();
        let mut layers = layers::steps(self.plan)?.into_iter().peekable();
        let mut parts = Vec::new();
        // The range of the routings that are filled before the present step. If layers can be
        // called separately, it has only routings of the current layer.
        let (mut filled, mut first_task, mut requests) = (0..0, 0, 0);
        // Number of the layer's requests for experts that are not released yet.
        let mut open = 0i64;
        // The first step that a later sum may compute in halves, and the steps after the last sum
        // in halves.
        let (mut free, mut halves) = (0, None::<OpenHalves>);
        for (i, step) in self.plan.steps.iter().enumerate() {
            if layers.peek().is_some_and(|layer| layer.start == i) {
                // This empty stage holds the actions before the layer's first task. Layers run
                // separately, so no sum in halves has steps of two layers.
                free = i;
                parts.push(stages.len()..stages.len());
                stages.push(Stage { first_task, ..Stage::default() });
                (filled.start, open) = (filled.end, 0);
            }
            match step {
                Step::Run { tasks, alone } => {
                    let rows = range(
                        "the number of rows up to which one thread runs the step",
                        *alone,
                        0,
                        self.plan.max_tokens,
                    );
                    at(&format!("step {i}"), rows)?;
                    let mut next = PartPlace::default();
                    let (mut parts, mut slides) = (Vec::with_capacity(tasks.len()), Vec::with_capacity(tasks.len()));
                    let mut separations = Vec::with_capacity(tasks.len());
                    let mut lists = Vec::with_capacity(tasks.len());
                    let mut wholes = Vec::with_capacity(tasks.len());
                    for task in tasks {
                        let place = format!("step {i}, task {:?}", shorten(&task.label));
                        at(&place, self.task(task, &filled))?;
                        parts.push(at(&place, self.parts(task, &mut next))?);
                        slides.push(at(&place, window_state(self.plan, task))?);
                        lists.push(at(&place, chosen::position_choice(task))?);
                        wholes.push(at(&place, rows_ahead(self.plan, task))?);
                        separations.push(self.row_separation(task));
                    }
                    at(&format!("step {i}"), self.chosen_of_others(tasks))?;
                    let (alone, tasks, sliding, listed, separation) =
                        (*alone, tasks.clone(), slides, lists, separations);
                    let (count, whole) = (tasks.len(), wholes);
                    let places = Stage { sliding, listed, whole, separation, ..Stage::default() };
                    stages.push(Stage { tasks, first_task, parts, alone, ..places });
                    first_task += count;
                    if let Some(open) = halves.take_if(|open| open.last == i) {
                        finish_sum(&mut stages, &open, &mut first_task);
                    }
                }
                Step::Bucket { bucket, .. } => {
                    add_action(&mut stages, BarrierAction::Sort(*bucket));
                    filled.end += 1;
                }
                Step::Request { group, bucket } => {
                    let check = self.check_filled(*bucket, &filled).and_then(|()| self.check_routing(*group, *bucket));
                    at(&format!("step {i}"), check)?;
                    add_action(&mut stages, BarrierAction::Request { window: requests, group: *group });
                    (requests, open) = (requests + 1, open + 1);
                }
                Step::Predict { group, ids, first, count } => {
                    let ids = at(&format!("step {i}"), self.predicted_ids(*group, *ids, *first, *count))?;
                    add_action(&mut stages, BarrierAction::Predict { group: *group, ids, count: *count });
                }
                Step::Release { group } => {
                    add_action(&mut stages, BarrierAction::Release(*group));
                    open -= 1;
                }
                Step::Exchange(exchange) => {
                    if let Some(Halves { after, .. }) = exchange.halves() {
                        let end = layers.peek().map_or(self.plan.steps.len(), |layer| layer.end);
                        free = at(&format!("step {i}"), self.check_halves(i, *exchange, free..end))?;
                        halves = begin_sum(&mut stages, *exchange, i + after as usize, &mut first_task);
                    } else {
                        add_action(&mut stages, BarrierAction::Exchange(*exchange));
                    }
                    // Actions run only between stages, so an empty stage follows.
                    if i + 1 == self.plan.steps.len() {
                        stages.push(Stage { first_task, ..Stage::default() });
                    }
                }
            }
            if layers.next_if(|layer| layer.end == i + 1).is_some() {
                if open != 0 {
                    let problem =
                        Problem::Shape { expected: "a release of the experts by the layer that requested them" };
                    return at(&format!("step {i}: experts"), Err(problem));
                }
                // Actions run only between the stages of a layer, so an empty stage follows.
                if stages.last().is_some_and(|stage| !stage.then.is_empty()) {
                    stages.push(Stage { first_task, ..Stage::default() });
                }
                if let Some(part) = parts.last_mut() {
                    part.end = stages.len();
                }
            }
        }
        Ok((stages, parts))
    }

    /// Returns the rule for computing the rows of different additions of a task separately. For
    /// quantised weights, all kernels without AMX tiles give the same bits for any number of rows.
    /// Kernels for float weights add in another order for few rows than for many. Kernels that
    /// process several rows together also add in another order than for one row.
    fn row_separation(&self, task: &Task) -> RowSeparation {
        let signatures = || task.variants.iter().filter_map(|variant| self.kernels.get(variant.kernel.0 as usize));
        let changes = |(i, arg): (usize, &Arg)| {
            let is_written =
                |kernel: &Signature| kernel.buffers.get(i).is_some_and(|b| matches!(b.access, Access::Write));
            matches!(arg.source, Source::State { .. }) && signatures().any(is_written)
        };
        if task.args.iter().enumerate().any(changes) {
            return RowSeparation::Sequence;
        }
        let of_state = task.args.iter().any(|arg| matches!(arg.source, Source::State { .. } | Source::Chosen { .. }));
        let dims = || task.variants.iter().flat_map(|variant| &variant.dims);
        let divided = task.variants.iter().any(|variant| variant.split.is_some());
        if of_state || divided || dims().any(DimExpr::uses_positions) {
            return RowSeparation::Always;
        }
        // If a dim is computed from the number of rows, the kernel processes several rows together.
        let takes_several = |dim: &DimExpr| dim.uses(DimInput::Rows) && !dim.is(DimInput::Rows);
        if task.variants.len() < 2 && !dims().any(takes_several) {
            return RowSeparation::Never;
        }
        let has_tiles = signatures().any(|kernel| kernel.has_tiles);
        let weights = task.args.iter().filter_map(|arg| match arg.source {
            Source::Weight(weight) => self.plan.weights.get(weight as usize),
            _ => None,
        });
        // Float weights next to a quantised weight are only added to its products, so they are
        // ignored here.
        let formats: Vec<Format> = weights.map(|weight| weight.format).collect();
        let of_floats = !formats.is_empty() && !formats.iter().any(|format| format.is_quantised());
        match (has_tiles, of_floats) {
            (true, true) => RowSeparation::Exact,
            (true, false) => RowSeparation::Tiles,
            (false, true) => RowSeparation::Always,
            (false, false) => RowSeparation::Never,
        }
    }

    /// Checks that a routing has as many experts as a group.
    fn check_routing(&self, group: u32, bucket: BucketId) -> Result<(), Problem> {
        let group = id("group of experts", group, &self.plan.expert_groups)?;
        let routing = id("routing", bucket.0, self.routings)?;
        if routing.experts == group.experts {
            Ok(())
        } else {
            Err(Problem::Shape { expected: "a routing among as many experts as the group of experts has" })
        }
    }

    fn predicted_ids(&self, group: u32, ids: BufferId, first: u32, count: u32) -> Result<Ids, Problem> {
        let group = id("group of experts", group, &self.plan.expert_groups)?;
        range("the number of experts predicted for a token", count, 1, group.experts)?;
        slots(self.plan, ids, first, count)
    }

    fn task(&self, task: &Task, filled: &Range<u32>) -> Result<(), Problem> {
        if let RowAxis::Routed(bucket) = task.rows {
            self.check_filled(bucket, filled)?;
        }
        range("the number of arguments", task.args.len() as u64, 0, MAX_BUFFERS as u64)?;
        for arg in &task.args {
            self.source(arg.source, filled)?;
            self.check_unshifted(task.columns, arg)?;
        }
        let ascending = task.variants.windows(2).all(|pair| pair[0].up_to_rows < pair[1].up_to_rows);
        if !ascending || task.variants.last().is_none_or(|last| last.up_to_rows != u32::MAX) {
            return Err(Problem::Variants);
        }
        for variant in &task.variants {
            range("the maximum number of rows of a work item", variant.row_chunk, 1, u64::from(u32::MAX))?;
            self.kernel(task, variant.kernel, &variant.dims)?;
            if let Some(dim) = variant.dims.iter().find(|dim| dim.uses(DimInput::Band)) {
                return Err(Problem::Dim {
                    dim: dim.to_string(),
                    expected: "needs a work item that is a band of a column",
                });
            }
            self.bands(task, variant)?;
        }
        Ok(())
    }

    /// Checks that a kernel fits a task: its dims and its arguments.
    fn kernel(&self, task: &Task, kernel: KernelId, dims: &[DimExpr]) -> Result<&Signature, Problem> {
        let kernel = id("kernel", kernel.0, self.kernels)?;
        if dims.len() != kernel.dims.len() {
            return Err(Problem::Count { what: "dims", found: dims.len(), expected: kernel.dims.len() });
        }
        for dim in dims {
            // The dim's expression must have a value for each item, whatever the values of its
            // inputs are.
            dim.range(DimInput::bounds)?;
            if dim.uses_positions() && task.rows != RowAxis::Tokens {
                return Err(Problem::Dim { dim: dim.to_string(), expected: "needs a task whose rows are tokens" });
            }
        }
        self.arguments(kernel, &task.args)?;
        Ok(kernel)
    }

    /// Checks that the bands of a column write different memory. For this, a dim of the kernel must
    /// depend on the band, or an argument must have a band stride.
    fn bands(&self, task: &Task, variant: &Variant) -> Result<(), Problem> {
        let Some(Bands { count, kernel, dims, strides }) = &variant.bands else { return Ok(()) };
        range("the number of bands of a column", *count, 2, MAX_BANDS)?;
        if variant.split.is_some() {
            return Err(Problem::Shape { expected: "bands of columns or parts of the positions, not both" });
        }
        if strides.len() != task.args.len() {
            return Err(Problem::Count { what: "strides of bands", found: strides.len(), expected: task.args.len() });
        }
        let kernel = self.kernel(task, *kernel, dims)?;
        let is_numbered = dims.iter().any(|dim| dim.uses(DimInput::Band));
        for (_, dim) in dims.iter().zip(&kernel.dims).filter(|(value, _)| value.is(DimInput::Band)) {
            let max = if dim.lo > 0 { 0 } else { u64::try_from(dim.hi).map_or(0, |last| last.saturating_add(1)) };
            range("the number of bands of a column that the kernel's dim can number", *count, 2, max)?;
        }
        for ((buffer, arg), stride) in kernel.buffers.iter().zip(&task.args).zip(strides) {
            if matches!(arg.source, Source::Chosen { .. }) && *stride != 0 {
                return Err(Problem::Shape { expected: "the same chosen cache slots for all bands of a column" });
            }
            if matches!(buffer.access, Access::Write) && *stride == 0 && !is_numbered {
                return Err(Problem::Shape { expected: "bands of a column that write different memory" });
            }
            if matches!(buffer.access, Access::Index(_)) && !stride.is_multiple_of(4) {
                return Err(Problem::IndexAlignment { buffer: buffer.name.clone() });
            }
        }
        Ok(())
    }

    /// Returns the memory layout of the task's partial results. `next` is the first free location,
    /// after the results of earlier tasks.
    fn parts(&self, task: &Task, next: &mut PartPlace) -> Result<PartPlace, Problem> {
        let (mut bytes, mut rows, mut parts) = (None, 0, 0);
        for variant in &task.variants {
            let Some(split) = variant.split else { continue };
            if task.rows != RowAxis::Tokens || variant.row_chunk != 1 {
                return Err(Problem::Shape {
                    expected: "rows of tokens, one at a time, because the task divides the positions into parts",
                });
            }
            range("the number of parts of the positions", split.division.parts, 1, MAX_PARTS)?;
            range("the number of blocks in a part of the positions", split.division.blocks, 1, MAX_PARTS)?;
            rows = rows.max(variant.up_to_rows.min(self.plan.max_tokens).into());
            range("the number of positions per cache slot in the parts of the positions", split.every, 1, MAX_CONTEXT)?;
            parts = parts.max(match split.leaves {
                Leaves::Result => split.division.parts,
                // There is a word for each block of the cache slots in the context.
                Leaves::Words => self.plan.context_length.div_ceil(split.every).div_ceil(ATTENTION_BLOCK),
            });
            let argument = split.argument as usize;
            id("argument", split.argument, &task.args)?;
            let kernel = id("kernel", variant.kernel.0, self.kernels)?;
            let part = match (kernel.buffers.get(argument), split.leaves) {
                (Some(Parameter { size, access: Access::Write, .. }), Leaves::Result) => size.at(&[]),
                (Some(Parameter { access: Access::Write, .. }), Leaves::Words)
                    if variant.dims.iter().any(|dim| dim.uses(DimInput::PartEnd)) =>
                {
                    Some(Leaves::WORDS_OF_BLOCK)
                }
                _ => None,
            };
            let Some(part) = part.filter(|part| bytes.is_none_or(|bytes| bytes == *part)) else {
                return Err(Problem::Shape {
                    expected: "kernels whose partial results have one size for all dims, or are words for blocks of positions",
                });
            };
            bytes = Some(part);
            let combine = id("kernel", split.combine.0, self.kernels)?;
            if let Some(alone) = split.alone {
                let alone = id("kernel", alone.0, self.kernels)?;
                let kinds = |kernel: &Signature| -> Vec<_> {
                    kernel.buffers.iter().map(|buffer| std::mem::discriminant(&buffer.access)).collect()
                };
                if alone.dims.len() != combine.dims.len() || kinds(alone) != kinds(combine) {
                    return Err(Problem::Shape {
                        expected: "a kernel for a single partial result, with the buffers and dims of the combining kernel",
                    });
                }
            }
            match &combine.buffers[..] {
                [read, y, rest @ ..]
                    if combine.dims.len() == 1
                        && matches!((&read.access, &y.access), (Access::Read, Access::Write))
                        && rest.iter().all(|buffer| matches!(buffer.access, Access::Scratch)) =>
                {
                    check_feed(y, &task.args[argument])?;
                }
                _ => {
                    return Err(Problem::Shape {
                        expected: "a kernel that combines partial results, and whose only dim is their number",
                    });
                }
            }
        }
        let Some(bytes) = bytes else { return Ok(PartPlace::default()) };
        let place = PartPlace { bytes, rows, parts, columns: task.columns, ..*next };
        let all = place.lines().saturating_mul(parts.into()).saturating_mul(bytes);
        next.offset = range("the number of bytes of partial results", next.offset.saturating_add(all), 0, MAX_PARTS)
            .map(|()| next.offset + all)?;
        range(
            "the number of rows and columns with partial results",
            next.line as u64 + place.lines(),
            0,
            MAX_PARTS / LINE_BYTES,
        )?;
        next.line += place.lines() as usize;
        Ok(place)
    }

    fn check_filled(&self, bucket: BucketId, filled: &Range<u32>) -> Result<(), Problem> {
        id("routing", bucket.0, self.routings)?;
        if filled.contains(&bucket.0) { Ok(()) } else { Err(Problem::Order { bucket: bucket.0 }) }
    }

    fn source(&self, source: Source, filled: &Range<u32>) -> Result<(), Problem> {
        match source {
            Source::Arena(buffer) => id("buffer", buffer.0, &self.plan.buffers).map(drop),
            Source::Weight(weight) => id("weight", weight, &self.plan.weights).map(drop),
            Source::Rope(table) => id("rotary table", table, &self.plan.ropes).map(drop),
            Source::State { state, field } => {
                id("field of a state", field, &id("state", state, &self.plan.states)?.fields).map(drop)
            }
            Source::Input(Input::RoutedToken(bucket) | Input::RoutedSlot(bucket)) => self.check_filled(bucket, filled),
            Source::Input(Input::Ngram(Ngram { state, hash })) => {
                let fields = &id("state", state, &self.plan.states)?.fields;
                let bytes = fields.first().and_then(|field| field.row_bytes()).filter(|_| fields.len() == 1);
                let holds = fields.iter().all(|field| !field.positions && field.format == Format::F32);
                if bytes != Some(4 * ngram::BEFORE as u64) || !holds || fields[0].columns != 1 {
                    return Err(Problem::Shape { expected: "a state that has the token ids before a step" });
                }
                if hash.modulus == 0
                    || hash.rows() > i32::MAX as u64
                    || u64::from(self.plan.vocabulary) > ngram::MAX_IDS
                {
                    return Err(Problem::Shape { expected: "an n-gram table with rows that ids can address" });
                }
                Ok(())
            }
            Source::Input(Input::Row(input)) if !input.is_valid() => Err(Problem::Shape {
                expected: "row inputs of at least one position, or of a choice of whole runs or blocks of positions",
            }),
            Source::Chosen { state, field, marks, choice } => self.check_choice(state, field, marks, choice),
            Source::Scratch | Source::Input(Input::Tokens | Input::Row(_) | Input::OutputRows) => Ok(()),
        }
    }

    fn arguments(&self, kernel: &Signature, args: &[Arg]) -> Result<(), Problem> {
        // All variants of a task have the same arguments. An argument that a kernel does not use
        // must be scratch memory.
        let spare = args.get(kernel.buffers.len()..);
        if spare.is_none_or(|spare| spare.iter().any(|arg| arg.source != Source::Scratch)) {
            return Err(Problem::Count { what: "arguments", found: args.len(), expected: kernel.buffers.len() });
        }
        for (i, (buffer, arg)) in kernel.buffers.iter().zip(args).enumerate() {
            check_feed(buffer, arg)?;
            if !matches!(buffer.access, Access::Write) {
                continue;
            }
            for (j, (other, other_arg)) in kernel.buffers.iter().zip(args).enumerate() {
                if i != j && self.may_overlap(arg.source, other_arg.source) {
                    return Err(Problem::Overlap { written: buffer.name.clone(), other: other.name.clone() });
                }
            }
        }
        Ok(())
    }

    fn may_overlap(&self, a: Source, b: Source) -> bool {
        match (a, b) {
            (Source::Chosen { state: a, field: own, .. }, Source::State { state: b, field })
            | (Source::State { state: b, field }, Source::Chosen { state: a, field: own, .. }) => {
                (a, own) == (b, field)
            }
            (Source::Chosen { marks, .. }, other @ Source::Arena(_)) => self.may_overlap(Source::Arena(marks), other),
            (other @ Source::Arena(_), Source::Chosen { marks, .. }) => self.may_overlap(Source::Arena(marks), other),
            (Source::Arena(a), Source::Arena(b)) => {
                let (a, b) = (self.extent(a), self.extent(b));
                a.start < b.end && b.start < a.end
            }
            (a, b) => a == b,
        }
    }

    /// Returns the byte range of a buffer in the arena.
    pub(super) fn extent(&self, buffer: BufferId) -> std::ops::Range<u64> {
        let buffer = &self.plan.buffers[buffer.0 as usize];
        let tokens = self.plan.max_tokens;
        // The product cannot overflow, because the buffer was checked to lie inside the arena.
        buffer.offset..buffer.offset + buffer.row_bytes * buffer.rows.most(tokens, self.plan.output.most(tokens))
    }

    pub(super) fn logits(&self) -> Result<(), Problem> {
        let buffer = id("buffer", self.plan.logits.0, &self.plan.buffers)?;
        if let Output::Experts { width } = self.plan.output {
            // A plan of expert layers has no logits; the buffers of its layers are checked in
            // another function.
            return range("elements of a row", width, 1, MAX_WIDTH);
        }
        let expected = u64::from(output_width(self.plan)?) * 4;
        if buffer.rows == RowCount::Outputs && buffer.row_bytes == expected && buffer.offset.is_multiple_of(4) {
            Ok(())
        } else {
            Err(Problem::Shape {
                expected: "an aligned buffer of requested rows, with one f32 for each logit or element of a hidden state",
            })
        }
    }

    /// Checks the buffer for hidden states that come with a step's tokens, or that a step returns.
    pub(super) fn check_hidden(&self, HiddenRows { buffer, width }: HiddenRows) -> Result<(), Problem> {
        let buffer = id("buffer", buffer.0, &self.plan.buffers)?;
        range("elements of a hidden state", width, 1, MAX_WIDTH)?;
        let fits = buffer.rows == RowCount::Tokens && buffer.row_bytes == u64::from(width) * 4;
        match (fits && buffer.offset.is_multiple_of(4), self.plan.output) {
            (true, Output::Logits { .. }) => Ok(()),
            _ => Err(Problem::Shape {
                expected: "an aligned buffer with one f32 for each element of each token, in a plan that returns logits",
            }),
        }
    }

    pub(super) fn softmax(&self, softmax: KernelId) -> Result<(), Problem> {
        let kernel = id("kernel", softmax.0, self.kernels)?;
        let row = u64::from(self.plan.vocabulary) * 4;
        let fits = |buffer: &Parameter, bytes: u64| buffer.size.at(&[]).is_some_and(|size| size <= bytes);
        match &kernel.buffers[..] {
            [logits, temperature, y]
                if kernel.dims.is_empty()
                    && matches!(
                        (&logits.access, &temperature.access, &y.access),
                        (Access::Read, Access::Read, Access::Write)
                    )
                    && fits(logits, row)
                    && fits(temperature, 4)
                    && fits(y, row) =>
            {
                Ok(())
            }
            _ => Err(Problem::Shape { expected: "a kernel from logits and inverse temperature to probabilities" }),
        }
    }
}

/// Returns the number of elements in an output row.
fn output_width(plan: &Plan<Kernel>) -> Result<u32, Problem> {
    match plan.output {
        Output::Logits { .. } => Ok(plan.vocabulary),
        Output::Hidden { width, .. } => range("elements of a hidden state", width, 1, MAX_WIDTH).map(|()| width),
        Output::Experts { width } => Ok(width),
    }
}

/// Checks that a kernel's buffer may read from, or write to, the source of its argument.
fn check_feed(buffer: &Parameter, arg: &Arg) -> Result<(), Problem> {
    let (source_name, writable) = match arg.source {
        Source::Arena(_) => ("the arena", true),
        Source::Weight(_) => ("a weight", false),
        Source::Rope(_) => ("a rotary table", false),
        Source::State { .. } => ("a state", true),
        Source::Chosen { .. } => ("chosen places of a state", false),
        Source::Scratch => ("scratch memory", false),
        Source::Input(_) => ("an input", false),
    };
    let is_scratch = arg.source == Source::Scratch;
    let (kind, ok, expected) = match buffer.access {
        Access::Read => ("read", !is_scratch, "scratch memory holds anything"),
        Access::Write => ("write", writable, "only the arena and states are written"),
        Access::Scratch => ("scratch", is_scratch, "it must come from scratch memory"),
        Access::Index(_) => ("index", matches!(arg.source, Source::Input(_)), "it must come from an input"),
    };
    if !ok {
        return Err(Problem::Feed { buffer: buffer.name.clone(), kind, source_name, expected });
    }
    let aligned =
        [arg.offset, arg.row_stride, arg.column_stride, arg.expert_stride].iter().all(|n| n.is_multiple_of(4));
    if matches!(buffer.access, Access::Index(_)) && !aligned {
        return Err(Problem::IndexAlignment { buffer: buffer.name.clone() });
    }
    Ok(())
}
