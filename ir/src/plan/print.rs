//! Text of a plan for readers, with one line for each task. Weights are names, and the arena is a
//! list of buffers with their offsets. The text cannot be parsed.
//!
//! ```text
//! plan qwen3moe for avx2: 512 tokens a step, context 4096, vocabulary 1024
//! arena 1318912 bytes
//!   embed token_embd: 1024 bytes x tokens at 0
//! step 0: run
//!   embed token_embd: tokens x 1, embed_q4_k_r1024n256 (input tokens, weight token_embd.weight, arena embed token_embd)
//! ```

use std::fmt::Write;

use super::{
    BufferId, Division, Exchange, ExpertLayer, Halves, HiddenRows, Input, Leaves, Ngram, Output, Plan, Ranks, RowAxis,
    RowCount, Source, State, Step, Task, Temperature, WeightFile,
};

/// Returns the plan's text. `name` returns the name of a kernel.
pub fn print<K>(plan: &Plan<K>, name: impl Fn(&K) -> String) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = write(plan, &name, &mut out);
    out
}

fn write<K>(plan: &Plan<K>, name: &dyn Fn(&K) -> String, out: &mut String) -> std::fmt::Result {
    let Plan { architecture, target, max_tokens, context_length, vocabulary, .. } = plan;
    writeln!(
        out,
        "plan {architecture} for {target}: {max_tokens} tokens a step, context {context_length}, vocabulary {vocabulary}"
    )?;
    if let Some(Ranks { rank, ranks, division }) = plan.ranks {
        writeln!(out, "rank {rank} of {ranks}, by {}", division.word())?;
    }
    for (i, file) in plan.files.iter().enumerate() {
        writeln!(out, "file {i}: {:?}, {} bytes, header {:08x}", file.path, file.bytes, file.header_crc)?;
    }
    let bytes: u128 = plan.weights.iter().map(|weight| u128::from(weight.bytes)).sum();
    writeln!(out, "weights: {} of {bytes} bytes", plan.weights.len())?;
    let packed = || plan.weights.iter().filter(|weight| weight.is_packed_at_load());
    if packed().count() > 0 {
        let from: u128 = packed().map(|weight| u128::from(weight.bytes)).sum();
        let to: u128 = packed().map(|weight| u128::from(weight.bytes_in(weight.format).unwrap_or(0))).sum();
        writeln!(out, "  packed when needed: {}, from {from} bytes to {to}", packed().count())?;
    }
    if plan.own_weight_bytes > 0 {
        writeln!(out, "  behind the plan: {} bytes", plan.own_weight_bytes)?;
    }
    for (i, group) in plan.expert_groups.iter().enumerate() {
        let names = group.weights.iter().map(|&weight| match plan.weights.get(weight as usize) {
            Some(weight) => weight.name.as_str(),
            None => "a missing weight",
        });
        write!(out, "experts {i}: {} of {}", group.experts, names.collect::<Vec<_>>().join(", "))?;
        let first = group.weights.first().and_then(|&weight| plan.weights.get(weight as usize));
        match first.map(|weight| weight.file) {
            Some(WeightFile::Blocks { stride }) => writeln!(out, ", a block every {stride} bytes")?,
            _ => writeln!(out)?,
        }
    }
    for (i, rope) in plan.ropes.iter().enumerate() {
        let style = rope.style.word();
        write!(out, "rope {i}: {style}, {} frequencies, magnitude {}", rope.frequencies.len(), rope.magnitude)?;
        if let Some(long) = &rope.long {
            write!(out, ", others in contexts beyond {}", long.beyond)?;
        }
        if let Some(Temperature { scale, length, offset }) = rope.temperature {
            write!(out, ", times 1 + {scale} ln(1 + (position + {offset}) / {length})")?;
        }
        if rope.every > 1 {
            write!(out, ", alike for every {} positions", rope.every)?;
        }
        writeln!(out, "{}", if rope.back { ", back" } else { "" })?;
    }
    let alike =
        |a: &State, b: &State| State { name: String::new(), ..a.clone() } == State { name: String::new(), ..b.clone() };
    for states in plan.states.chunk_by(alike) {
        let [first, .., last] = states else {
            writeln!(out, "state {}: {}", states[0].name, state(&states[0]))?;
            continue;
        };
        writeln!(out, "states {} to {}: {} of {}", first.name, last.name, states.len(), state(first))?;
    }
    writeln!(out, "arena {} bytes", plan.arena_bytes)?;
    for buffer in &plan.buffers {
        writeln!(out, "  {}: {} bytes x {} at {}", buffer.name, buffer.row_bytes, count(buffer.rows), buffer.offset)?;
    }
    for (i, step) in plan.steps.iter().enumerate() {
        write_step(plan, i, step, &|_| true, name, out)?;
    }
    let rows = buffer(plan, plan.logits.0);
    match plan.output {
        Output::Logits { softmax } => {
            writeln!(out, "logits: {rows}, softmax {}", kernel(plan, softmax.0, name))?;
            for (hidden, how) in [(plan.takes, "taken"), (plan.gives, "given")] {
                if let Some(HiddenRows { buffer: at, width }) = hidden {
                    writeln!(out, "hidden states, {how}: {}, {width} wide", buffer(plan, at.0))?;
                }
            }
            Ok(())
        }
        Output::Hidden { width, pooling, unit } => {
            let pooled = pooling.map_or_else(String::new, |pooling| format!(", pooled by {}", pooling.name()));
            let length = if unit { "" } else { ", not normalised" };
            writeln!(out, "hidden states: {rows}, {width} wide{pooled}{length}")
        }
        Output::Experts { width } => {
            for layer in &plan.expert_layers {
                let ExpertLayer { layer, first, steps, rows, ids, weights, result } = *layer;
                let [rows, ids, weights, result] = [rows, ids, weights, result].map(|at| buffer(plan, at.0));
                let (last, width) = (first.saturating_add(steps).saturating_sub(1), width);
                writeln!(
                    out,
                    "layer {layer}, {width} wide: steps {first} to {last}, {rows}, {ids} and {weights} to {result}"
                )?;
            }
            Ok(())
        }
    }
}

/// Returns the text of a step. It includes only the tasks whose indices `kept` selects. `number` is
/// the index of the step, and `name` returns the name of a kernel.
pub fn step<K>(
    plan: &Plan<K>,
    number: usize,
    step: &Step,
    kept: &dyn Fn(usize) -> bool,
    name: &dyn Fn(&K) -> String,
) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = write_step(plan, number, step, kept, name, &mut out);
    out
}

/// Returns the text of a task. `name` returns the name of a kernel.
pub fn task<K>(plan: &Plan<K>, task: &Task, name: &dyn Fn(&K) -> String) -> String {
    let mut out = String::new();
    let _ = write_task(plan, task, name, &mut out);
    out
}

fn write_step<K>(
    plan: &Plan<K>,
    i: usize,
    step: &Step,
    kept: &dyn Fn(usize) -> bool,
    name: &dyn Fn(&K) -> String,
    out: &mut String,
) -> std::fmt::Result {
    match step {
        Step::Run { tasks, alone } => {
            write!(out, "step {i}: run")?;
            match alone {
                0 => writeln!(out)?,
                1 => writeln!(out, ", alone with 1 row")?,
                rows => writeln!(out, ", alone with up to {rows} rows")?,
            }
            tasks
                .iter()
                .enumerate()
                .filter(|(at, _)| kept(*at))
                .try_for_each(|(_, task)| write_task(plan, task, name, out))
        }
        Step::Bucket { bucket, ids, first, top_k, experts, nobody } => {
            let (ids, or) = (slots(plan, ids.0, *first), if *nobody { " or nobody" } else { "" });
            writeln!(out, "step {i}: bucket {} by {ids}, {top_k} of {experts} experts{or}", bucket.0)
        }
        Step::Request { group, bucket } => {
            writeln!(out, "step {i}: request experts {group} of bucket {}", bucket.0)
        }
        Step::Predict { group, ids, first, count } => {
            writeln!(out, "step {i}: predict experts {group} by {}, {count} a token", slots(plan, ids.0, *first))
        }
        Step::Release { group } => writeln!(out, "step {i}: release experts {group}"),
        Step::Exchange(exchange) => {
            let name = |at: BufferId| buffer(plan, at.0);
            write!(out, "step {i}: ")?;
            match *exchange {
                Exchange::Sum { part, sum } => writeln!(out, "add {} of all ranks to {}", name(part), name(sum)),
                Exchange::SumHalves { part, sum, halves: Halves { rows, before, after } } => writeln!(
                    out,
                    "add {} of all ranks to {}, in halves from {rows} tokens, with {before} before and {after} after",
                    name(part),
                    name(sum)
                ),
                Exchange::Gather { part, whole } => {
                    writeln!(out, "gather {} of all ranks in {}", name(part), name(whole))
                }
                Exchange::Send { rows, to } => writeln!(out, "send {} to rank {to}", name(rows)),
                Exchange::Receive { rows, from } => writeln!(out, "receive {} from rank {from}", name(rows)),
            }
        }
    }
}

fn write_task<K>(plan: &Plan<K>, task: &Task, name: &dyn Fn(&K) -> String, out: &mut String) -> std::fmt::Result {
    let rows = match task.rows {
        RowAxis::Tokens => "tokens".to_string(),
        RowAxis::Outputs => "outputs".to_string(),
        RowAxis::Routed(bucket) => format!("routed {}", bucket.0),
    };
    write!(out, "  {}: {rows} x {}", task.label, task.columns)?;
    for variant in &task.variants {
        write!(out, ", {}", kernel(plan, variant.kernel.0, name))?;
        if variant.row_chunk > 1 {
            write!(out, " by {}", variant.row_chunk)?;
        }
        if variant.up_to_rows < u32::MAX {
            write!(out, " to {} rows", variant.up_to_rows)?;
        }
        if let Some(bands) = &variant.bands {
            write!(out, " or in {} bands {}", bands.count, kernel(plan, bands.kernel.0, name))?;
        }
        if let Some(split) = variant.split {
            write!(out, " in parts")?;
            if split.division != Division::THREADS {
                write!(out, " of {} blocks", split.division.blocks)?;
            }
            if split.leaves == Leaves::Words {
                write!(out, ", a word for each place,")?;
            }
            write!(out, " for {}", kernel(plan, split.combine.0, name))?;
            if let Some(alone) = split.alone {
                write!(out, " or {}", kernel(plan, alone.0, name))?;
            }
        }
    }
    let args: Vec<String> = task.args.iter().map(|arg| source(plan, arg.source)).collect();
    writeln!(out, " ({})", args.join(", "))
}

fn kernel<K>(plan: &Plan<K>, id: u32, name: &dyn Fn(&K) -> String) -> String {
    plan.kernels.get(id as usize).map_or_else(|| format!("missing kernel {id}"), name)
}

/// Returns a state's kind and fields, and its properties that differ from the kind's defaults.
fn state(state: &State) -> String {
    let row = state.kind.row();
    let fields = state.fields.iter().map(|field| {
        let positions = if field.positions { ", S" } else { "" };
        format!("{}[{}{positions}, {}]", field.format, field.columns, field.width)
    });
    let mut text = format!("{} {}", row.name, fields.collect::<Vec<_>>().join(", "));
    if row.rollbacks != [state.rollback] {
        text += &format!(", rollback {}", state.rollback.word());
    }
    if let Some(window) = state.window {
        text += &format!(", {} {window}", if state.chunked { "chunks of" } else { "window" });
    }
    if state.every > 1 {
        text += &format!(", a place for every {}", state.every);
    }
    text
}

/// Returns the name of a buffer of expert ids, with its first slot if that is not 0.
fn slots<K>(plan: &Plan<K>, id: u32, first: u32) -> String {
    let name = buffer(plan, id);
    if first > 0 { format!("{name} from {first}") } else { name }
}

fn buffer<K>(plan: &Plan<K>, id: u32) -> String {
    plan.buffers.get(id as usize).map_or_else(|| format!("missing buffer {id}"), |b| b.name.clone())
}

fn count(rows: RowCount) -> String {
    match rows {
        RowCount::Tokens => "tokens".to_string(),
        RowCount::Outputs => "outputs".to_string(),
        RowCount::Routed { top_k } => format!("tokens x {top_k}"),
    }
}

fn source<K>(plan: &Plan<K>, of: Source) -> String {
    match of {
        Source::Arena(id) => format!("arena {}", buffer(plan, id.0)),
        Source::Weight(i) => {
            let name = plan.weights.get(i as usize).map_or("(missing)", |weight| weight.name.as_str());
            format!("weight {name}")
        }
        Source::Rope(i) => format!("rope {i}"),
        Source::State { state, field } => match plan.states.get(state as usize) {
            Some(known) => match known.kind.row().fields.get(field as usize) {
                Some(row) => format!("{} {}", row.name, known.name),
                None => format!("missing field {field} of {}", known.name),
            },
            None => format!("missing state {state}"),
        },
        Source::Chosen { state, field, marks, choice } => {
            let field = source(plan, Source::State { state, field });
            format!("{field}, {choice} by {}", buffer(plan, marks.0))
        }
        Source::Scratch => "scratch".to_string(),
        Source::Input(input) => match input {
            Input::Tokens => "input tokens".to_string(),
            Input::Row(input) => format!("input {input}"),
            Input::Ngram(Ngram { state, hash }) => {
                let name = plan.states.get(state as usize).map_or("(missing)", |state| state.name.as_str());
                format!("input rows below {} by {name}", hash.rows())
            }
            Input::OutputRows => "input output rows".to_string(),
            Input::RoutedToken(bucket) => format!("tokens of routing {}", bucket.0),
            Input::RoutedSlot(bucket) => format!("slots of routing {}", bucket.0),
        },
    }
}
