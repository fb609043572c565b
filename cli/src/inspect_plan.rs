//! Facts about a plan, for `ixc inspect`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::Path;

use ixc_compile::compile::decode_tokenizer;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Output, Plan, Pooling, State, Step, WeightFile};
use ixc_runtime::load::LoadError;
use ixc_targets::Target;
use ixc_text::tokenizer::ModelKind;
use serde::Serialize;

use super::output::{Bytes, Printable, count_text};

/// Facts about a plan.
#[derive(Serialize)]
pub struct PlanFacts {
    kind: &'static str,
    path: String,
    architecture: String,
    target: String,
    context_length: u32,
    vocabulary: u32,
    /// Set if the plan computes embeddings.
    #[serde(skip_serializing_if = "Option::is_none")]
    hidden_states: Option<HiddenFacts>,
    /// Layers of a plan of routed experts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    expert_layers: Vec<u32>,
    /// Number of ranks and the division of the model, if the plan is for several ranks. The other
    /// fields describe the plan of rank 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    ranks: Option<RankFacts>,
    max_tokens: u32,
    files: Vec<String>,
    parameters: u64,
    formats: Vec<FormatFacts>,
    weights: usize,
    steps: usize,
    tasks: usize,
    kernels: Vec<String>,
    arena_bytes: u64,
    /// Bytes of state, such as the KV cache, for each position.
    state_bytes_per_position: u64,
    /// Formats of the state fields that hold a value for each position, such as keys and values.
    cache_formats: BTreeSet<&'static str>,
    /// Bytes of states that do not depend on the number of positions.
    state_bytes: u64,
    tokenizer_tokens: Option<usize>,
    chat_template: bool,
    supported: bool,
    problems: Vec<String>,
}

#[derive(Serialize)]
struct HiddenFacts {
    width: u32,
    /// Pooling of a text's hidden states into one vector, if the model declares it.
    pooling: Option<&'static str>,
    /// Whether vectors have length 1; otherwise they keep the length of the pooled vector.
    normalised: bool,
}

#[derive(Serialize)]
struct RankFacts {
    ranks: u32,
    /// `layers`, `experts` or `tensors`.
    division: &'static str,
}

#[derive(Serialize)]
struct FormatFacts {
    /// Format that kernels read.
    format: &'static str,
    /// Format in the file.
    stored: &'static str,
    place: WeightPlace,
    weights: usize,
    /// Bytes in the file.
    bytes: u64,
    /// Bytes in the format that kernels read.
    kernel_bytes: u64,
}

/// Returns the formats of the state fields that hold a value for each position.
pub fn cache_formats(states: &[State]) -> BTreeSet<&'static str> {
    let fields = states.iter().flat_map(|state| &state.fields).filter(|field| field.positions);
    fields.map(|field| field.format.name()).collect()
}

/// File that holds a weight's bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum WeightPlace {
    ModelFile,
    Plan,
}

impl PlanFacts {
    /// Collects the facts about a plan. `refused` is the error that loading it would give.
    pub fn new(path: &Path, plan: &Plan<Kernel>, refused: Option<&LoadError>) -> Result<PlanFacts, ixc_error::Error> {
        let spec = decode_tokenizer(&plan.tokenizer)?;
        let mut formats: BTreeMap<_, FormatFacts> = BTreeMap::new();
        for weight in &plan.weights {
            let (format, stored) = (weight.format.name(), weight.stored.name());
            let place = match weight.file {
                WeightFile::Source(_) | WeightFile::Derived(_) => WeightPlace::ModelFile,
                WeightFile::Plan | WeightFile::Blocks { .. } => WeightPlace::Plan,
            };
            let none = FormatFacts { format, stored, place, weights: 0, bytes: 0, kernel_bytes: 0 };
            let entry = formats.entry((format, stored, place)).or_insert(none);
            entry.weights += 1;
            entry.bytes = entry.bytes.saturating_add(weight.bytes);
            entry.kernel_bytes = entry.kernel_bytes.saturating_add(weight.bytes_in(weight.format).unwrap_or(0));
        }
        let mut formats: Vec<FormatFacts> = formats.into_values().collect();
        formats.sort_by_key(|format| std::cmp::Reverse(format.bytes));
        let elements = |shape: &[u64]| shape.iter().fold(1u64, |product, &dim| product.saturating_mul(dim));
        let states = plan.states.iter().map(|state| state.fixed_and_position_bytes(plan.max_tokens));
        let states = states.fold((0u64, 0u64), |sum, of| (sum.0.saturating_add(of.0), sum.1.saturating_add(of.1)));
        let mut problems: Vec<String> = refused.map(ToString::to_string).into_iter().collect();
        match Target::from_name(&plan.target).map(Target::missing).as_deref() {
            // An unknown target is already reported by `refused`.
            None | Some([]) => {}
            Some(missing) => {
                problems.push(format!("this machine lacks {}, which the plan needs", ixc_targets::cpu::list(missing)))
            }
        }
        Ok(PlanFacts {
            kind: "plan",
            path: path.display().to_string(),
            architecture: plan.architecture.clone(),
            target: plan.target.clone(),
            context_length: plan.context_length,
            vocabulary: plan.vocabulary,
            hidden_states: match plan.output {
                Output::Logits { .. } | Output::Experts { .. } => None,
                Output::Hidden { width, pooling, unit } => {
                    Some(HiddenFacts { width, pooling: pooling.map(Pooling::name), normalised: unit })
                }
            },
            expert_layers: plan.expert_layers.iter().map(|layer| layer.layer).collect(),
            ranks: plan.ranks.map(|ranks| RankFacts { ranks: ranks.ranks, division: ranks.division.word() }),
            max_tokens: plan.max_tokens,
            files: plan.files.iter().map(|file| file.path.clone()).collect(),
            parameters: plan.weights.iter().fold(0, |sum, weight| sum.saturating_add(elements(&weight.shape))),
            formats,
            weights: plan.weights.len(),
            steps: plan.steps.len(),
            tasks: plan
                .steps
                .iter()
                .map(|step| match step {
                    Step::Run { tasks, .. } => tasks.len(),
                    Step::Bucket { .. }
                    | Step::Request { .. }
                    | Step::Predict { .. }
                    | Step::Release { .. }
                    | Step::Exchange(_) => 0,
                })
                .sum(),
            kernels: plan.kernels.iter().map(|kernel| kernel.name.clone()).collect(),
            arena_bytes: plan.arena_bytes,
            state_bytes_per_position: states.1,
            cache_formats: cache_formats(&plan.states),
            state_bytes: states.0,
            tokenizer_tokens: (spec.model != ModelKind::None).then_some(spec.tokens.len()),
            chat_template: spec.chat_template.is_some(),
            supported: problems.is_empty(),
            problems,
        })
    }

    /// Writes the facts as text.
    pub fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "plan          {}", Printable(&self.path))?;
        for file in &self.files {
            writeln!(out, "model file    {}", Printable(file))?;
        }
        if self.files.is_empty() {
            writeln!(out, "model file    none: all weights are in the plan")?;
        }
        writeln!(out, "architecture  {}", Printable(&self.architecture))?;
        writeln!(out, "target        {}", Printable(&self.target))?;
        writeln!(out, "parameters    {}", super::output::Count(self.parameters))?;
        writeln!(out, "shape         vocabulary {}, context {}", self.vocabulary, self.context_length)?;
        if let Some(HiddenFacts { width, pooling, .. }) = self.hidden_states {
            let pooled = pooling.map_or_else(String::new, |pooling| format!(", pooled by {pooling}"));
            writeln!(out, "output        hidden states of width {width} for embeddings{pooled}; no logits")?;
        }
        if let (Some(first), Some(last)) = (self.expert_layers.first(), self.expert_layers.last()) {
            let count = self.expert_layers.len();
            let layers = count_text(count as u64, "layer");
            writeln!(out, "output        sums of routed experts, {layers} from {first} to {last}; no logits")?;
        }
        if let Some(RankFacts { ranks, division }) = self.ranks {
            writeln!(out, "ranks         {ranks} by {division}; the following numbers are those of rank 0")?;
        }
        for format in &self.formats {
            let size = Bytes(format.bytes).to_string();
            let note = match format.place {
                WeightPlace::Plan => ", in the plan".to_string(),
                WeightPlace::ModelFile if format.format != format.stored => {
                    format!(", packed at load into {} of {}", Bytes(format.kernel_bytes), format.format)
                }
                WeightPlace::ModelFile => String::new(),
            };
            let noun = if format.weights == 1 { "weight " } else { "weights" };
            writeln!(out, "format        {:<8} {:>5} {noun}  {size:>10}{note}", format.stored, format.weights)?;
        }
        let (steps, tasks, kernels) = (self.steps, self.tasks, self.kernels.len());
        writeln!(
            out,
            "schedule      {}, {}, {}, {} at a time",
            count_text(steps as u64, "step"),
            count_text(tasks as u64, "task"),
            count_text(kernels as u64, "kernel"),
            count_text(self.max_tokens.into(), "token")
        )?;
        let (arena, cache) = (Bytes(self.arena_bytes), Bytes(self.state_bytes_per_position));
        let formats = Vec::from_iter(self.cache_formats.iter().copied()).join(" and ");
        let formats = if formats.is_empty() { formats } else { format!(" in {formats}") };
        write!(out, "memory        arena of {arena}, KV cache of {cache} for each position{formats}")?;
        match self.state_bytes {
            0 => writeln!(out)?,
            bytes => writeln!(out, ", other states of {}", Bytes(bytes))?,
        }
        let tokens = self.tokenizer_tokens.map_or("none".to_owned(), |tokens| count_text(tokens as u64, "token"));
        writeln!(out, "tokenizer     {tokens}{}", if self.chat_template { ", chat template" } else { "" })?;
        writeln!(out, "supported     {}", if self.supported { "yes" } else { "no" })?;
        self.problems.iter().try_for_each(|problem| writeln!(out, "  because     {}", Printable(problem)))
    }
}
