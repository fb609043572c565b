//! Time of a product in a model. An engine runs whole steps with all of its threads and its usual
//! distribution of items. Weights and activations are where the earlier steps left them.
//!
//! A plan with other tiles of a weight runs with the same weights in the same memory
//! ([`ixc_runtime::engine::Variant`]). It alternates with the plan whose tiles follow from cache
//! sizes. The time of the plan's steps that read the weight is compared. It consists of the time of
//! their kernels, and of the time in which threads wait for the last thread. A candidate that is
//! faster on one thread, but lets other threads wait or uses up the shared memory bandwidth, is
//! therefore not faster here.

use std::collections::BTreeMap;

use ixc_ir::plan::{Plan, RowAxis, Step, Task};
use ixc_kernels::KernelSpec;
use ixc_kernels::cut::ProductCut;
use ixc_passes::tuned::{TunedChoice, WeightKernel};
use ixc_runtime::engine::{Engine, Variant};
use ixc_runtime::stats::Stats;
use ixc_targets::Target;

use super::{Candidate, Search, Try};
use crate::Error;
use crate::kernels::KernelError;
use ixc_compile::compile::with_kernels;
use ixc_compile::tuned::Speedup;
use ixc_measure::ratio::Ratio;

/// Min seconds of a measurement.
const MIN_SECONDS: f64 = 0.02;
/// Max number of steps in a measurement.
const MAX_STEPS: u32 = 256;
/// Rounds after which the slower candidates are dropped.
const HALVING_ROUND: u32 = 6;
/// Number of candidates that are left after these rounds.
const FINALISTS: usize = 3;
/// A candidate below this relative speed in each of this number of rounds is dropped, since most
/// candidates are much slower.
const HOPELESS: (f64, usize) = (0.9, 2);

/// Function that compiles the plan with some tuned choices.
type Compile<'m> = Box<dyn Fn(&[TunedChoice]) -> Result<Plan<KernelSpec>, Error> + 'm>;

/// Engine whose steps are timed.
pub(super) struct Steps<'m> {
    engine: Engine,
    compile: Compile<'m>,
    /// Plan without tuned choices.
    default_plan: Plan<KernelSpec>,
    target: Target,
}

/// Seconds of steps with a given number of rows.
#[derive(Clone, Debug, Default)]
struct Times {
    /// Seconds of a step.
    wall: f64,
    /// Seconds of each stage of the step.
    stages: Vec<f64>,
}

impl Times {
    fn stage_time(&self, stages: &[usize]) -> f64 {
        stages.iter().filter_map(|stage| self.stages.get(*stage)).sum()
    }
}

/// A product that takes a part of a step's time.
#[derive(Clone, Debug)]
pub(super) struct Hot {
    /// Spec of the product. Several specs may differ only in the ops that they add to the product;
    /// this is one of them.
    pub(super) spec: KernelSpec,
    /// Share of the step time for the stages that run the product.
    pub(super) share: f64,
}

/// Seconds with the default plan and with another plan, for each round.
type Pairs = Vec<[f64; 2]>;

/// Other plans, each with the stages to compare.
struct OtherPlans(Vec<(Variant, Vec<usize>)>);

impl<'m> Steps<'m> {
    /// Creates the timer from an engine, which has loaded the plan that `compile` makes without
    /// choices. The engine's clocks must be running. All weights are packed.
    ///
    /// # Errors
    /// If packing fails.
    pub(super) fn new(
        mut engine: Engine,
        default_plan: Plan<KernelSpec>,
        compile: Compile<'m>,
    ) -> Result<Steps<'m>, Error> {
        engine.pack_weights()?;
        let target = engine.target();
        Ok(Steps { engine, compile, default_plan, target })
    }

    pub(super) fn threads(&self) -> usize {
        self.engine.threads()
    }

    /// Returns the max rows of a step.
    pub(super) fn max_rows(&self) -> u32 {
        self.engine.max_tokens().min(self.engine.context())
    }

    fn variant(&mut self, choices: &[TunedChoice]) -> Result<(Variant, Plan<KernelSpec>), Error> {
        let specs = (self.compile)(choices)?;
        let plan = with_kernels(specs.clone(), self.target)?;
        Ok((self.engine.variant(&plan)?, specs))
    }

    /// Runs `times` steps of `rows` rows, each from position 0. With one row, each step continues
    /// the previous one.
    fn time(&mut self, rows: u32, times: u32) -> Result<Times, Error> {
        let tokens = some_tokens(if rows == 1 { times } else { rows }, self.engine.vocabulary());
        self.engine.truncate(0);
        self.engine.take_stats();
        for step in 0..times as usize {
            if rows == 1 {
                if self.engine.position() >= self.engine.context() {
                    self.engine.truncate(0);
                }
                self.engine.step(&tokens[step..=step], &[0])?;
            } else {
                self.engine.truncate(0);
                self.engine.step(&tokens, &[rows - 1])?;
            }
        }
        let Stats { wall, stages, steps, thread_steps, .. } = self.engine.take_stats();
        let steps = steps.max(1) as f64;
        let threads = (thread_steps as f64 / steps).max(1.0);
        let stages = stages.iter().map(|time| time.as_secs_f64() / threads / steps).collect();
        Ok(Times { wall: wall.as_secs_f64() / steps, stages })
    }

    /// Returns the number of steps that together take long enough to be measured.
    fn calibrate(&mut self, rows: u32) -> Result<u32, Error> {
        // The first step touches new pages: run it untimed.
        self.time(rows, 1)?;
        let step = self.time(rows, 2)?.wall.max(1e-7);
        Ok(((MIN_SECONDS / step).ceil() as u32).clamp(1, MAX_STEPS))
    }

    /// Returns the products that take at least `min_share` of the step time, the slowest first.
    pub(super) fn hot(&mut self, rows: u32, min_share: f64) -> Result<Vec<Hot>, Error> {
        let times = self.calibrate(rows)?;
        let time = self.time(rows, times.max(3))?;
        let mut stages: BTreeMap<String, (KernelSpec, Vec<usize>)> = BTreeMap::new();
        for (stage, tasks) in runs(&self.default_plan) {
            for task in tasks {
                // In a prefill step, outputs have one row. Only kernels for many rows matter for
                // prefill.
                let is_other = if rows > 1 { task.rows == RowAxis::Outputs } else { task.variants.len() == 1 };
                // An expert can have few rows of a prompt, but hardly ever one.
                let is_of_few = |number: usize| rows > 1 && number == 0 && task.variants.len() > 1;
                let used = task.variants.iter().enumerate().filter(|(number, _)| {
                    let is_routed = matches!(task.rows, RowAxis::Routed(_));
                    !is_other && runs_at(task, *number, rows) && !(is_routed && is_of_few(*number))
                });
                for kernel in used.map(|(_, variant)| variant.kernel) {
                    let Some(spec) = self.default_plan.kernels.get(kernel.0 as usize) else { continue };
                    let Some(cut) = ProductCut::from_spec(spec) else { continue };
                    let of =
                        &mut stages.entry(format!("{:?}", kernel_of(&cut))).or_insert((spec.clone(), Vec::new())).1;
                    if of.last() != Some(&stage) {
                        of.push(stage);
                    }
                }
            }
        }
        let share = |stages: &[usize]| time.stage_time(stages) / time.wall.max(1e-12);
        let mut hot: Vec<Hot> =
            stages.into_values().map(|(spec, stages)| Hot { spec, share: share(&stages) }).collect();
        hot.retain(|hot| hot.share >= min_share);
        hot.sort_by(|a, b| b.share.total_cmp(&a.share));
        Ok(hot)
    }

    /// Returns a product's share of the time of a step with `rows` rows.
    pub(super) fn share(&mut self, spec: &KernelSpec, rows: u32) -> Result<Hot, Error> {
        let times = self.calibrate(rows)?;
        let time = self.time(rows, times.max(3))?;
        let stages =
            ProductCut::from_spec(spec).map_or(Vec::new(), |cut| stages_of(&self.default_plan, kernel_of(&cut), rows));
        if stages.is_empty() {
            return Err(not_run(spec));
        }
        Ok(Hot { spec: spec.clone(), share: time.stage_time(&stages) / time.wall.max(1e-12) })
    }

    /// Compares candidates of a kernel with the choice by cache sizes, in alternating rounds.
    /// Returns the time of that choice, and a row for each candidate.
    pub(super) fn compare(
        &mut self,
        search: &Search<'_>,
        tries: &[Try],
        rows: u32,
        rounds: u32,
    ) -> Result<(f64, Vec<Candidate>), Error> {
        let kernel = kernel_of(&search.cut);
        let default_stages = stages_of(&self.default_plan, kernel, rows);
        if default_stages.is_empty() {
            return Err(not_run(search.spec));
        }
        let mut others = OtherPlans(Vec::new());
        for each in tries {
            let (variant, plan) = self.variant(&[search.choice(each)])?;
            others.0.push((variant, stages_of(&plan, kernel, rows)));
        }
        let (defaults, pairs) = self.rounds(&mut others, &default_stages, rows, rounds)?;
        // The cost of one weight and one row of activations.
        let each = default_stages.len() as f64 * f64::from(rows.max(1));
        let rows = tries.iter().zip(pairs).map(|(each_try, pairs)| {
            let costs = pairs.iter().map(|[_, other]| other / each).collect();
            let ratios = pairs.iter().map(|[default, other]| default / other.max(1e-12)).collect();
            search.row(each_try, middle(costs), quartiles(ratios))
        });
        Ok((middle(defaults) / each, rows.collect()))
    }

    /// Compares whole steps with some choices to those with the choices by cache sizes. Returns a
    /// row for each number of rows: seconds of a step, and relative speed with its bounds.
    pub(super) fn compare_steps(
        &mut self,
        choices: &[TunedChoice],
        all: &[u32],
        rounds: u32,
    ) -> Result<Vec<Candidate>, Error> {
        let (variant, _) = self.variant(choices)?;
        let mut others = OtherPlans(vec![(variant, Vec::new())]);
        let mut found = Vec::new();
        for &rows in all {
            let (_, pairs) = self.rounds(&mut others, &[], rows, rounds)?;
            let pairs = pairs.into_iter().next().unwrap_or_default();
            let [default, other] =
                [0, 1].map(|side| pairs.iter().map(|pair: &[f64; 2]| pair[side]).collect::<Vec<f64>>());
            // The rule of `ixc bench --compare`, which distinguishes changes from noise.
            let unknown = Speedup { median: 1.0, low: 0.0, high: f64::MAX };
            let bounds = |Ratio { median, low, high, .. }| Speedup { median, low, high };
            let ratio = Ratio::from_samples(&other, &default).map_or(unknown, bounds);
            let cost = middle(other);
            let what = if rows == 1 { "decode".to_owned() } else { format!("prefill of {rows} tokens") };
            found.push(Candidate { what, spec: String::new(), cost, ratio });
        }
        Ok(found)
    }

    /// Runs rounds with the default plan and all other plans. Returns the times of the default
    /// plan, and for each other plan the pairs of both times. The times are those of the given
    /// stages, or of whole steps.
    fn rounds(
        &mut self,
        others: &mut OtherPlans,
        default_stages: &[usize],
        rows: u32,
        rounds: u32,
    ) -> Result<(Vec<f64>, Vec<Pairs>), Error> {
        let rows = rows.clamp(1, self.max_rows());
        let times = self.calibrate(rows)?;
        let of =
            |times: &Times, stages: &[usize]| if stages.is_empty() { times.wall } else { times.stage_time(stages) };
        let mut defaults = Vec::new();
        let mut pairs: Vec<Pairs> = vec![Vec::new(); others.0.len()];
        let mut left: Vec<usize> = (0..others.0.len()).collect();
        // Round 0 does not count, because its code and pages are new.
        for round in 0..=rounds {
            let first = self.time(rows, times)?;
            let bits: Vec<u32> = self.engine.all_logits().iter().map(|x| x.to_bits()).collect();
            // Alternate the order, so that a slow phase of the machine does not always affect the
            // same candidates.
            let order: Vec<usize> = if round % 2 == 0 { left.clone() } else { left.iter().rev().copied().collect() };
            let mut found = Vec::new();
            for number in order {
                let (variant, stages) = &mut others.0[number];
                self.engine.exchange(variant)?;
                let time = self.time(rows, times);
                let differs = !self.engine.all_logits().iter().map(|x| x.to_bits()).eq(bits.iter().copied());
                self.engine.exchange(variant)?;
                let time = time?;
                if differs {
                    let (kernel, difference) =
                        ("a step".to_owned(), "its results differ from those without the choice".to_owned());
                    return Err(KernelError::Differs { kernel, engine: "native", difference }.into());
                }
                found.push((number, of(&time, stages)));
            }
            // The default plan runs before and after the other plans, so that the mean of its two
            // times is from the middle of the round.
            let last = self.time(rows, times)?;
            let default = (of(&first, default_stages) + of(&last, default_stages)) / 2.0;
            if round == 0 {
                continue;
            }
            defaults.push(default);
            found.into_iter().for_each(|(number, time)| pairs[number].push([default, time]));
            let (max, times) = HOPELESS;
            let is_close =
                |pairs: &Pairs| pairs.len() < times || pairs.iter().any(|[default, other]| default > &(max * other));
            // A single candidate is left for the last measurement, and gets all rounds.
            left.retain(|number| pairs.len() == 1 || is_close(&pairs[*number]));
            if rounds >= HALVING_ROUND && round == rounds / 3 {
                let ratio =
                    |number: &usize| middle(pairs[*number].iter().map(|[default, other]| default / other).collect());
                left.sort_by(|a, b| ratio(b).total_cmp(&ratio(a)));
                left.truncate(FINALISTS);
            }
        }
        Ok((defaults, pairs))
    }
}

/// Returns whether a measurement is faster by more than noise, and whether it is slower by more
/// than noise. Noise means that 1 is within the measurement's bounds.
pub(super) fn verdict(row: &Candidate) -> [bool; 2] {
    let Speedup { low, high, .. } = row.ratio;
    [low > 1.0, high < 1.0]
}

fn not_run(spec: &KernelSpec) -> Error {
    KernelError::NotTuned { spec: spec.to_string(), why: "no step of the plan runs the kernel".to_owned() }.into()
}

/// Returns whether two specs are of the same product. They may differ in the ops that they add to
/// it.
pub(super) fn is_same(a: &KernelSpec, b: &KernelSpec) -> bool {
    let [a, b] = [a, b].map(|spec| ProductCut::from_spec(spec).map(|cut| kernel_of(&cut)));
    a.is_some() && a == b
}

fn kernel_of(cut: &ProductCut) -> WeightKernel {
    WeightKernel { weight: cut.weight, strategy: cut.strategy }
}

/// Returns the stages of a plan, with their tasks. The plan is that of a whole model, whose steps
/// with tasks have one stage each. Only plans of ranks have steps with two stages.
fn runs(plan: &Plan<KernelSpec>) -> impl Iterator<Item = (usize, &[Task])> {
    let tasks = plan.steps.iter().filter_map(|step| match step {
        Step::Run { tasks, .. } => Some(&tasks[..]),
        _ => None,
    });
    tasks.enumerate()
}

/// Returns whether a step with `rows` rows can run this variant of a task.
fn runs_at(task: &Task, number: usize, rows: u32) -> bool {
    let rows = if task.rows == RowAxis::Outputs { 1 } else { rows };
    let fits = task.variants.iter().position(|variant| rows <= variant.up_to_rows);
    // Each expert gets only some of the rows.
    fits.is_some_and(|fits| number == fits || number < fits && matches!(task.rows, RowAxis::Routed(_)))
}

/// Returns the stages that run a kernel in a step with `rows` rows.
fn stages_of(plan: &Plan<KernelSpec>, kernel: WeightKernel, rows: u32) -> Vec<usize> {
    let is_it = |spec: &KernelSpec| ProductCut::from_spec(spec).is_some_and(|cut| kernel_of(&cut) == kernel);
    let runs_it = |tasks: &[Task]| {
        let used = tasks
            .iter()
            .flat_map(|task| task.variants.iter().enumerate().filter(|(number, _)| runs_at(task, *number, rows)));
        let mut kernels = used.flat_map(|(_, variant)| variant.kernels());
        kernels.any(|kernel| plan.kernels.get(kernel.0 as usize).is_some_and(is_it))
    };
    runs(plan).filter(|(_, tasks)| runs_it(tasks)).map(|(stage, _)| stage).collect()
}

fn sort(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

fn at(values: &[f64], share: f64) -> f64 {
    values.get((values.len().saturating_sub(1) as f64 * share).round() as usize).copied().unwrap_or(0.0)
}

fn middle(values: Vec<f64>) -> f64 {
    at(&sort(values), 0.5)
}

/// Returns the median and the quartiles.
fn quartiles(values: Vec<f64>) -> Speedup {
    let values = sort(values);
    Speedup { median: at(&values, 0.5), low: at(&values, 0.25), high: at(&values, 0.75) }
}

/// Returns different tokens, so that routers choose experts as they would for text.
fn some_tokens(count: u32, vocabulary: u32) -> Vec<u32> {
    // Knuth's multiplicative hash.
    let hash = |index: u64| (index + 1).wrapping_mul(2_654_435_761) >> 7;
    (0..count).map(|index| (hash(index.into()) % u64::from(vocabulary.max(1))) as u32).collect()
}
