//! Tunes the slow products of a model, in the model itself. The tiles of one kernel of its plan are
//! changed at a time, and the times of the steps that run this kernel are compared. At the end all
//! winners are combined. They are kept only if whole steps are faster with them, by more than the
//! spread.

use ixc_kernels::KernelSpec;
use ixc_passes::options::OptionSet;
use ixc_passes::tuned::{TunedChoice, TunedChoices};
use ixc_passes::{pack, tile};
use ixc_runtime::engine;
use ixc_targets::CoreCaches;
use serde::Serialize;
use std::sync::Arc;

use super::steps::{self, Hot, Steps, verdict};
use super::{Candidate, Compare, PROMPT_ROWS, Search, TunedKernel};
use crate::Error;
use crate::kernels::KernelError;
use ixc_compile::compile::{self, specs};
use ixc_compile::model::Model;
use ixc_compile::select::{self, Selection};
use ixc_generate::loaded_model::{LoadOptions, LoadedModel};

/// Options for tuning a model.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// Compile options.
    pub compile: compile::CompileOptions,
    /// Threads and their binding to cores.
    pub run: engine::EngineOptions,
    /// Number of rounds.
    pub rounds: u32,
    /// Tokens of a prefill step. The default is 512, or the model's max if that is smaller.
    pub prompt: Option<u32>,
    /// Min share of a step's time for a product to be tuned.
    pub min_share: f64,
    /// The kernel to tune, if only one was named.
    pub kernel: Option<KernelSpec>,
    /// Selection of products to tune, if no kernel was named.
    pub selection: Selection,
}

/// Progress of tuning.
#[derive(Debug)]
pub enum Event<'e> {
    /// Tuning of a product begins.
    Kernel(&'e Kernel),
    /// A candidate for the product was measured.
    Candidate(&'e Candidate),
    /// Tuning of the product has ended.
    TunedKernel(&'e TunedKernel),
    /// Whole steps were measured.
    StepComparison(&'e StepComparison),
}

/// A product of the model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kernel {
    /// Spec of the kernel.
    pub spec: String,
    /// Number of rows of activations in the timed steps: 1 for decode.
    pub rows: u32,
    /// Share of a model step's time that the parts with this product take, 0 to 1.
    pub share: f64,
}

/// Measurement of whole steps with some choices.
#[derive(Clone, Debug, Serialize)]
pub struct StepComparison {
    /// Texts of the choices: a tiling for each product.
    pub choices: Vec<String>,
    /// Seconds of a step, and its speed relative to steps without the choices, with bounds
    /// ([`ixc_measure::ratio`]). The rows are for steps of a prompt, and of a token.
    pub rows: Vec<Candidate>,
    /// Whether some steps are faster and none is slower, by more than the spread.
    pub is_faster: bool,
}

/// Result of tuning a model.
#[derive(Debug)]
pub struct ModelTuning {
    /// Number of threads.
    pub threads: usize,
    /// Tokens of a prefill step.
    pub prompt: u32,
    /// Products with their results.
    pub kernels: Vec<(Kernel, TunedKernel)>,
    /// Measurements of whole steps, if there are winners.
    pub together: Vec<StepComparison>,
    /// Winners that are kept: positions in [`ModelTuning::kernels`].
    pub kept: Vec<usize>,
}

/// Tunes a model.
///
/// # Errors
/// When the model cannot be compiled or run, when not all of its experts fit in memory, or when it
/// has no product to tune.
pub fn tune_model(
    model: &Model,
    options: &TuneOptions,
    watch: &mut dyn FnMut(Event<'_>),
) -> Result<ModelTuning, Error> {
    let refused = |why: &str| -> Error {
        KernelError::NotTuned { spec: model.arch.hyper.architecture.clone(), why: why.to_owned() }.into()
    };
    let target = options.compile.target();
    let caches = match (options.compile.caches, options.compile.target) {
        (Some(caches), _) => caches,
        (None, None) => CoreCaches::here(target.row()),
        (None, Some(_)) => target.row().caches(),
    };
    let wanted = compile::CompileOptions { tuned: None, max_tokens: options.prompt, ..options.compile.clone() };
    let run = engine::EngineOptions { stats: true, ..options.run.clone() };
    let load_options = LoadOptions { compile: wanted.clone(), run, ..LoadOptions::default() };
    let engine = LoadedModel::of_model(model, &load_options)?.into_engine();
    if engine.stream().is_some() {
        return Err(refused("its experts do not all fit in memory: tune its kernels by their specs"));
    }
    let packed = Arc::new(compile::stop_after(model, &wanted, pack::PASS.name)?);
    let plan = move |choices: &[TunedChoice]| {
        let said: tile::TileOptions = wanted.passes.get();
        let tuned = TunedChoices(said.tuned.0.iter().chain(choices).cloned().collect());
        let passes = OptionSet::default().with(&tile::TileOptions { tuned, ..said });
        let passes = wanted.passes.clone().over(&passes);
        let wanted = compile::CompileOptions { start: Some(Arc::clone(&packed)), passes, ..wanted.clone() };
        Ok(specs(model, &wanted)?.1)
    };
    let own = plan(&[])?;
    let selected: Vec<KernelSpec> = match options.selection.is_all() {
        true => own.kernels.clone(),
        false => {
            let chosen = select::kernels(&own, &KernelSpec::name, &options.selection)?;
            chosen.into_iter().map(|(at, _)| own.kernels[at].clone()).collect()
        }
    };
    let mut steps = Steps::new(engine, own, Box::new(plan))?;
    let prompt = options.prompt.map_or(PROMPT_ROWS, |_| u32::MAX).min(steps.max_rows());
    let mut hot: Vec<(u32, Hot)> = Vec::new();
    match &options.kernel {
        Some(spec) => {
            let rows = Search::new(spec, target, &caches)?.rows_of_step(prompt);
            hot.push((rows, steps.share(spec, rows)?));
        }
        None => {
            for rows in timed_rows(prompt) {
                hot.extend(steps.hot(rows, options.min_share)?.into_iter().map(|hot| (rows, hot)));
            }
        }
    }
    // Edited IR can contain products that cache sizes would never give. They are omitted.
    let is_tuned = |(_, hot): &(u32, Hot)| {
        let is_selected = selected.iter().any(|spec| steps::is_same(spec, &hot.spec));
        is_selected && Search::new(&hot.spec, target, &caches).is_ok()
    };
    hot.retain(is_tuned);
    if hot.is_empty() {
        return Err(refused("none of its products takes enough time to be worth tuning"));
    }
    let mut kernels: Vec<(Kernel, TunedKernel)> = Vec::new();
    for (rows, Hot { spec, share }) in &hot {
        let search = Search::new(spec, target, &caches)?;
        let kernel = Kernel { spec: spec.to_string(), rows: *rows, share: *share };
        watch(Event::Kernel(&kernel));
        let mut compare = Compare::Steps { steps: &mut steps, rows: *rows, rounds: options.rounds };
        let found = search.run(&caches, &mut compare, &mut |row| watch(Event::Candidate(row)))?;
        watch(Event::TunedKernel(&found));
        kernels.push((kernel, found));
    }
    let (together, kept) = compare_steps(&mut steps, &kernels, prompt, options.rounds, watch)?;
    Ok(ModelTuning { threads: steps.threads(), prompt, kernels, together, kept })
}

/// Returns the rows of the timed steps: those of a prompt, and of a single token. Both may be
/// equal.
fn timed_rows(prompt: u32) -> Vec<u32> {
    if prompt == 1 { vec![1] } else { vec![prompt, 1] }
}

/// Measures whole steps with all winners. If they are not faster, measures the winners for prefill
/// only, and those for decode only.
fn compare_steps(
    steps: &mut Steps<'_>,
    kernels: &[(Kernel, TunedKernel)],
    prompt: u32,
    rounds: u32,
    watch: &mut dyn FnMut(Event<'_>),
) -> Result<(Vec<StepComparison>, Vec<usize>), Error> {
    let won = |of: &dyn Fn(u32) -> bool| -> Vec<usize> {
        let won = kernels.iter().enumerate().filter(|(_, (kernel, found))| found.winner.is_some() && of(kernel.rows));
        won.map(|(number, _)| number).collect()
    };
    let mut sets = vec![won(&|_| true)];
    for set in [won(&|rows| rows > 1), won(&|rows| rows == 1)] {
        if !sets.contains(&set) {
            sets.push(set);
        }
    }
    let mut all = Vec::new();
    for set in sets.into_iter().filter(|set| !set.is_empty()) {
        let winners = set.iter().filter_map(|number| kernels[*number].1.winner.as_ref());
        let choices: Vec<TunedChoice> = winners.map(|(_, choice)| choice.clone()).collect();
        let rows = steps.compare_steps(&choices, &timed_rows(prompt), 2 * rounds)?;
        let is_faster = is_better(&rows);
        let choices = choices.iter().map(TunedChoice::to_string).collect();
        let found = StepComparison { choices, rows, is_faster };
        watch(Event::StepComparison(&found));
        all.push(found);
        if is_faster {
            return Ok((all, set));
        }
    }
    Ok((all, Vec::new()))
}

fn is_better(rows: &[Candidate]) -> bool {
    let changes: Vec<[bool; 2]> = rows.iter().map(verdict).collect();
    changes.iter().any(|[faster, _]| *faster) && !changes.iter().any(|[_, slower]| *slower)
}

#[cfg(test)]
mod tests {
    use ixc_targets::Target;

    use super::*;

    #[test]
    fn tuning_gain_needs_one_faster_and_no_slower_part() {
        let row = |low: f64, ratio: f64, high: f64| Candidate {
            what: String::new(),
            spec: String::new(),
            cost: 1.0,
            ratio: [ratio, low, high].into(),
        };
        let [faster, same, slower] = [row(1.02, 1.05, 1.06), row(0.99, 1.0, 1.01), row(0.93, 0.95, 0.97)];
        // The bounds include 1, so the row is within the spread, whatever the median is.
        let wide = row(0.999, 1.02, 1.2);
        let better = |rows: &[&Candidate]| is_better(&rows.iter().map(|row| (*row).clone()).collect::<Vec<_>>());
        assert!(better(&[&faster, &same]) && better(&[&same, &faster]));
        assert!(!better(&[&same, &same]) && !better(&[&faster, &slower]) && !better(&[&wide, &same]));
    }

    /// Candidates run in the model itself, for all slow products. No bits change, and with the
    /// choices that are kept, whole steps are faster.
    #[test]
    fn a_model_is_tuned_in_its_own_steps() {
        let model = Model::new(ixc_compile::demo::open().unwrap()).unwrap();
        let run = engine::EngineOptions {
            threads: Some(2),
            built_in: Some(ixc_generate::plan_file::built_in()),
            ..Default::default()
        };
        let compile = compile::CompileOptions::default();
        let options = TuneOptions {
            compile,
            run,
            rounds: 2,
            prompt: Some(32),
            min_share: 0.05,
            kernel: None,
            selection: Selection::default(),
        };
        let mut begun = Vec::new();
        let found = tune_model(&model, &options, &mut |event| {
            if let Event::Kernel(kernel) = event {
                begun.push(kernel.clone());
            }
        })
        .unwrap();
        assert_eq!(begun, found.kernels.iter().map(|(kernel, _)| kernel.clone()).collect::<Vec<_>>());
        // The rows are those of prefill, decode or both: on a busy machine, steps mostly wait.
        assert!(!begun.is_empty() && begun.iter().all(|kernel| [1, 32].contains(&kernel.rows)), "{begun:?}");
        for (kernel, found) in &found.kernels {
            assert!(kernel.share >= 0.05 && kernel.share <= 1.0 && found.default.cost > 0.0, "{kernel:?}");
            assert!(!found.rows.is_empty() && found.rows.iter().all(|row| row.cost > 0.0), "{found:?}");
        }
        // Each choice that is kept won alone, and also in whole steps.
        assert!(found.kept.iter().all(|number| found.kernels[*number].1.winner.is_some()));
        assert_eq!(!found.kept.is_empty(), found.together.last().is_some_and(|last| last.is_faster));
    }

    #[test]
    fn single_kernel_is_tuned_in_its_plan_step() {
        let model = Model::new(ixc_compile::demo::open().unwrap()).unwrap();
        let run = engine::EngineOptions {
            threads: Some(1),
            built_in: Some(ixc_generate::plan_file::built_in()),
            ..Default::default()
        };
        let tuned = |text: &str| {
            // Kernels of a target with tiles have other specs.
            let target = Some(Target::AVX2);
            let compile = compile::CompileOptions { target, ..Default::default() };
            let kernel = Some(text.parse().unwrap());
            let selection = Selection::default();
            let options = TuneOptions {
                compile,
                run: run.clone(),
                rounds: 2,
                prompt: Some(32),
                min_share: 0.1,
                kernel,
                selection,
            };
            tune_model(&model, &options, &mut |_| ())
        };
        let found = tuned("linear format=q6_k_r16 k=256 tile=32 n=4096 shape=gemv").unwrap();
        let [(kernel, _)] = &found.kernels[..] else { panic!("{:?}", found.kernels) };
        assert_eq!(kernel.rows, 1);
        let error = tuned("linear format=q6_k_r16 k=256 tile=32 n=8192 shape=gemv").unwrap_err().to_string();
        assert!(error.contains("no step of the plan runs the kernel"), "{error}");
    }

    #[test]
    fn only_selected_ops_are_tuned() {
        let model = Model::new(ixc_compile::demo::open().unwrap()).unwrap();
        let run = engine::EngineOptions {
            threads: Some(1),
            built_in: Some(ixc_generate::plan_file::built_in()),
            ..Default::default()
        };
        let tuned = |op: &str| {
            let selection = Selection { op: Some(op.parse().unwrap()), layers: Vec::new() };
            let compile = compile::CompileOptions::default();
            let options = TuneOptions {
                compile,
                run: run.clone(),
                rounds: 1,
                prompt: Some(32),
                min_share: 0.0,
                kernel: None,
                selection,
            };
            tune_model(&model, &options, &mut |_| ())
        };
        let found = tuned("ffn_gate_exps").unwrap();
        assert!(!found.kernels.is_empty());
        assert!(found.kernels.iter().all(|(kernel, _)| kernel.spec.contains("swiglu")), "{:?}", found.kernels);
        let error = tuned("attn_norm").unwrap_err().to_string();
        assert!(error.contains("worth tuning"), "{error}");
    }
}
