//! Tuner for the kernels of a product. It compares widths, chunks (rows of activations) and paces
//! (prefetch distance and unrolling) with those that the pass `tile` chooses, in alternating
//! rounds.
//!
//! ```text
//! # All products of the model that take time:
//! ixc kernel tune model.gguf
//! # One of them:
//! ixc kernel tune model.gguf:gemm_q6_k
//! # A product in a model of its own:
//! ixc kernel tune linear format=q4_k_r16 k=2048 tile=32 n=2048 shape=gemv
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | `steps` | time of a product in steps of an engine |
//! | `synthetic_model` | synthetic model of one product |
//! | [`model`] | slow products of a model, and the gain of the whole model |
//!
//! The search goes parameter by parameter, each time with the best values so far. It first tries
//! the width of items or bands and their rows of activations, then the prefetch distance, then the
//! unrolling of loops. These are all the parameters that keep the same bits. The row limits between
//! kernels change the order in which floats are added, so they are not searched. Formats are not
//! searched either. If a step gives other bits with a candidate, that is an error.
//!
//! The winner is measured again, so that a candidate does not win by chance. It must be faster by
//! more than the spread of the rounds.

use ixc_compile::tuned::{Speedup, WeightKernel};
use ixc_cost as cost;
use ixc_cost::memory::{self, Start};
use ixc_kernels::cut::ProductCut;
use ixc_kernels::pace::Pace;
use ixc_kernels::tiling::{RowTiles, Use};
use ixc_kernels::{KernelSpec, candidates, generate};
use ixc_passes::tile::by_caches;
use ixc_passes::tuned::TunedChoice;
use ixc_targets::{CoreCaches, Target};
use serde::Serialize;

use super::bench::MemoryLevel;
use super::choose::TargetKernel;
use super::run::{Case, Engine, Sizes};
use super::{KernelError, show};
use crate::Error;

pub mod model;
mod steps;
mod synthetic_model;

use steps::Steps;

/// Prefetch distances to try, in bytes.
const PREFETCH_DISTANCES: [u32; 5] = [0, 1024, 2048, 4096, 8192];
/// Unroll factors to try.
const UNROLL_FACTORS: [u32; 2] = [2, 4];
/// Min gain by a cost model: a smaller gain is within the model's error.
const MODEL_SPREAD: f64 = 0.01;

/// Default rows of activations in a step, for the kernel for most rows: a part of a prompt.
const PROMPT_ROWS: u32 = 512;

/// Method of comparison between candidates.
#[derive(Clone, Debug)]
pub enum Comparison {
    /// Time of alternating rounds on this machine, in steps of a model that consists of this
    /// product.
    Time {
        /// Memory level of the weights. For memory, there are more weights than any cache holds.
        /// For the caches, there are few weights.
        place: MemoryLevel,
        /// Number of rounds.
        rounds: u32,
        /// Rows of activations of a step. The default is 512 for the kernel for most rows, and 1
        /// for the kernel for few rows.
        rows: Option<u32>,
        /// Threads and their binding to cores.
        run: Box<ixc_runtime::engine::EngineOptions>,
    },
    /// Cycles of the target's cost model.
    Model {
        /// Memory level of the weights before a call.
        place: MemoryLevel,
    },
}

/// A candidate and its speed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// Candidate in the form of a tuned choice: `x16@2048/2`, `rows=16 gemm/48`.
    pub what: String,
    /// Spec of the kernel.
    pub spec: String,
    /// Seconds, or cycles, for the whole weight and one row of activations.
    pub cost: f64,
    /// Speed relative to the kernel that cache sizes select, with quartiles as bounds. A cost model
    /// has no spread, so all three are equal.
    pub ratio: Speedup,
}

impl Candidate {
    /// Returns half of the distance between the quartiles.
    pub fn spread(&self) -> f64 {
        (self.ratio.high - self.ratio.low) / 2.0
    }

    /// Returns whether the candidate's gain in speed exceeds the spread of its rounds.
    pub fn is_faster(&self) -> bool {
        self.ratio.low > 1.0 && self.ratio.median - 1.0 > self.spread().max(MODEL_SPREAD)
    }
}

/// Result of tuning a kernel.
#[derive(Clone, Debug)]
pub struct TunedKernel {
    /// The kernel that was tuned.
    pub kernel: WeightKernel,
    /// Tiling of the weight that follows from cache sizes.
    pub own: String,
    /// The reference kernel and its cost.
    pub default: Candidate,
    /// All candidates, in the order in which they were tried.
    pub rows: Vec<Candidate>,
    /// Tuned choice for the whole weight, for each candidate.
    choices: Vec<TunedChoice>,
    /// The fastest candidate, measured again, and its choice for the weight; `None` if no candidate
    /// is faster.
    pub winner: Option<(Candidate, TunedChoice)>,
    /// The fastest candidate, measured again, if its gain is too small.
    pub close: Option<Candidate>,
    /// Threads and rows of activations of a step, if times were measured instead of modelled.
    pub measured: Option<(usize, u32)>,
}

impl TunedKernel {
    /// Returns the candidate of this name and its choice for the weight.
    ///
    /// # Errors
    /// If no candidate has this name.
    pub fn candidate(&self, what: &str) -> Result<(Candidate, TunedChoice), Error> {
        let found = self.rows.iter().zip(&self.choices).find(|(row, _)| row.what == what);
        let found = found.map(|(row, choice)| (row.clone(), choice.clone()));
        Ok(found.ok_or_else(|| {
            let candidates = self.rows.iter().map(|row| row.what.clone()).collect();
            KernelError::NoCandidate { what: what.to_owned(), candidates }
        })?)
    }
}

/// Kernel to try.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Try {
    /// Weight rows of a call.
    tile: u32,
    /// Max rows of activations.
    chunk: u32,
    pace: Pace,
}

/// Kernel to tune and its context.
struct Search<'s> {
    spec: &'s KernelSpec,
    cut: ProductCut,
    target: Target,
    /// Tiling of the weight that follows from cache sizes.
    own: String,
    /// Part of the weight. The next field is the use of the kernel in this part.
    part: RowTiles,
    each: Use,
    /// Whether this is the kernel for most rows, which determines the tiles.
    is_last: bool,
    /// Whether this is the kernel for fewest rows.
    is_first: bool,
    default: Try,
}

/// Method of comparison of candidates.
enum Compare<'a, 'm> {
    /// Timed steps with this many rows.
    Steps { steps: &'a mut Steps<'m>, rows: u32, rounds: u32 },
    /// The target's cost model.
    Model { place: MemoryLevel },
}

impl Compare<'_, '_> {
    /// Returns the cost of the reference and a row for each candidate. The last comparison takes
    /// more rounds.
    fn rows(&mut self, search: &Search<'_>, tries: &[Try], is_last: bool) -> Result<(f64, Vec<Candidate>), Error> {
        match self {
            Compare::Steps { steps, rows, rounds } => {
                steps.compare(search, tries, *rows, if is_last { 2 * *rounds } else { *rounds })
            }
            Compare::Model { place } => {
                let own = search.cycles(&search.default, *place)?;
                let row = |each: &Try| {
                    let cost = search.cycles(each, *place)?;
                    Ok(search.row(each, cost, Speedup::exact(own / cost)))
                };
                Ok((own, tries.iter().map(row).collect::<Result<_, Error>>()?))
            }
        }
    }

    /// Returns whether the comparison can show the effect of prefetches.
    fn knows_prefetches(&self) -> bool {
        matches!(self, Compare::Steps { .. })
    }
}

/// Searches for the fastest candidate, and passes each measured candidate to `watch`.
///
/// # Errors
/// - The spec is not a product, or not one that the pass chooses.
/// - This machine cannot run it, or the target has no cost model.
/// - A candidate computes other bits.
pub fn tune(
    spec: &KernelSpec,
    target: Target,
    caches: &CoreCaches,
    by: Comparison,
    watch: &mut dyn FnMut(&Candidate),
) -> Result<TunedKernel, Error> {
    let search = Search::new(spec, target, caches)?;
    match by {
        Comparison::Time { place, rounds, rows, run } => {
            let rows = rows.unwrap_or_else(|| search.rows_of_step(PROMPT_ROWS));
            let mut steps = synthetic_model::steps(spec, target, caches, place, rows, &run)?;
            let rows = rows.min(steps.max_rows());
            search.run(caches, &mut Compare::Steps { steps: &mut steps, rows, rounds }, watch)
        }
        Comparison::Model { place } => search.run(caches, &mut Compare::Model { place }, watch),
    }
}

impl<'s> Search<'s> {
    fn new(spec: &'s KernelSpec, target: Target, caches: &CoreCaches) -> Result<Search<'s>, Error> {
        let refused = |why: String| KernelError::NotTuned { spec: spec.to_string(), why };
        let cut = ProductCut::from_spec(spec).ok_or_else(|| refused("it is not a product with a weight".into()))?;
        let (own, why) = by_caches(&cut.weight, target, caches);
        tracing::debug!(%own, why, "tuning");
        let part = own.parts.first().cloned().ok_or_else(|| refused("its weight has no rows".into()))?;
        let position = part.uses.iter().position(|each| each.strategy == cut.strategy);
        let position =
            position.ok_or_else(|| refused(format!("{target} cuts its weight into {own}", target = target.name())))?;
        let (each, is_last) = (part.uses[position], position + 1 == part.uses.len());
        let number = |rows: u64| u32::try_from(rows).unwrap_or(u32::MAX);
        let tile = each.band.unwrap_or_else(|| number(part.rows));
        let default = Try { tile, chunk: each.row_chunk, pace: Pace::default() };
        let own = own.to_string();
        Ok(Search { spec, cut, target, own, part, each, is_last, is_first: position == 0, default })
    }

    /// Returns the number of rows of a step for the kernel: those of a prompt, a single token, or
    /// the max of the kernel.
    fn rows_of_step(&self, prompt: u32) -> u32 {
        match (self.is_last, self.is_first) {
            (true, _) => prompt,
            (false, true) => 1,
            (false, false) => self.each.up_to_rows.min(prompt),
        }
    }

    fn run(
        self,
        caches: &CoreCaches,
        compare: &mut Compare<'_, '_>,
        watch: &mut dyn FnMut(&Candidate),
    ) -> Result<TunedKernel, Error> {
        let (mut rows, mut choices): (Vec<Candidate>, Vec<TunedChoice>) = Default::default();
        let mut best = (1.0, self.default);
        let mut default_cost = None;
        let mut stage = |tries: Vec<Try>, best: &mut (f64, Try), compare: &mut Compare<'_, '_>| -> Result<(), Error> {
            let mut others = Vec::new();
            for each in tries {
                if self.is_other(&each)? {
                    others.push(each);
                }
            }
            if others.is_empty() {
                return Ok(());
            }
            let (cost, found) = compare.rows(&self, &others, false)?;
            default_cost.get_or_insert(cost);
            for (each, row) in others.into_iter().zip(found) {
                watch(&row);
                if row.ratio.median > best.0 {
                    *best = (row.ratio.median, each);
                }
                rows.push(row);
                choices.push(self.choice(&each));
            }
            Ok(())
        };
        stage(self.shapes(caches), &mut best, compare)?;
        if compare.knows_prefetches() {
            let pace = |ahead| Pace { ahead, ..best.1.pace };
            let paces = PREFETCH_DISTANCES.into_iter().filter(|ahead| *ahead != best.1.pace.ahead).map(pace);
            let tries = paces.map(|pace| Try { pace, ..best.1 }).collect();
            stage(tries, &mut best, compare)?;
        }
        let tries =
            UNROLL_FACTORS.into_iter().map(|unroll| Try { pace: Pace { unroll, ..best.1.pace }, ..best.1 }).collect();
        stage(tries, &mut best, compare)?;
        let cost = match default_cost {
            Some(cost) => cost,
            None => compare.rows(&self, &[], false)?.0,
        };
        let (mut winner, mut close) = (None, None);
        if best.1 != self.default {
            let again = compare.rows(&self, &[best.1], true)?.1;
            for again in again {
                match again.is_faster() {
                    true => {
                        self.check(&best.1)?;
                        winner = Some((again, self.choice(&best.1)));
                    }
                    false => close = Some(again),
                }
            }
        }
        let default = self.row(&self.default, cost, Speedup::exact(1.0));
        let kernel = WeightKernel { weight: self.cut.weight, strategy: self.cut.strategy };
        let measured = match compare {
            Compare::Steps { steps, rows, .. } => Some((steps.threads(), *rows)),
            Compare::Model { .. } => None,
        };
        Ok(TunedKernel { kernel, own: self.own, default, rows, choices, winner, close, measured })
    }

    /// Returns widths and chunks, except those that cache sizes select.
    fn shapes(&self, caches: &CoreCaches) -> Vec<Try> {
        let ProductCut { weight, strategy, .. } = self.cut;
        let number = |rows: u64| u32::try_from(rows).ok();
        let mut tries = Vec::new();
        if self.is_last {
            let by =
                |part: &RowTiles| part.uses.iter().map(|each| (each.strategy, each.up_to_rows)).collect::<Vec<_>>();
            for rows in candidates::item_rows(&weight, self.target) {
                let offered = candidates::candidates(&weight, rows, self.target);
                // If other kernels computed some numbers of rows, floats would be added in another
                // order.
                let is_alike = rows == self.part.rows || {
                    let narrowed = ixc_passes::tile::by_caches_of(&weight, rows, self.target, caches);
                    narrowed.parts.first().is_some_and(|part| by(part) == by(&self.part))
                };
                let chunks = offered.iter().filter(|each| is_alike && each.strategy == strategy);
                let tried = chunks.map(|each| Try { tile: 0, chunk: each.row_chunk, pace: Pace::default() });
                tries.extend(tried.filter_map(|each| Some(Try { tile: number(rows)?, ..each })));
            }
        } else if self.each.band.is_some() {
            let bands = candidates::bands(&weight, self.part.rows).into_iter().filter_map(number);
            tries.extend(bands.map(|tile| Try { tile, ..self.default }));
        }
        tries.retain(|each| *each != self.default);
        tries
    }

    /// Returns whether a candidate's code differs from the code at the default pace.
    fn is_other(&self, each: &Try) -> Result<bool, Error> {
        if each.pace == Pace::default() {
            return Ok(true);
        }
        let body = |each: &Try| Ok::<_, Error>(generate(&self.spec_of(each)?, self.target)?.body);
        Ok(body(each)? != body(&Try { pace: Pace::default(), ..*each })?)
    }

    fn engine(&self) -> Engine {
        if self.target.missing().is_empty() { Engine::Native } else { Engine::Emulator }
    }

    /// Checks that a candidate gives the results of the interpreter.
    fn check(&self, each: &Try) -> Result<(), Error> {
        let case = self.case(each)?;
        match case.check(self.engine())?.difference {
            None => Ok(()),
            Some(difference) => {
                let (kernel, difference) = (case.chosen.kernel.name, difference.to_string());
                Err(KernelError::Differs { kernel, engine: self.engine().name(), difference }.into())
            }
        }
    }

    /// Returns the number of rows of activations of a call.
    fn rows_of(&self, each: &Try) -> u32 {
        // Kernels for few rows are for single tokens.
        if self.is_last { each.chunk } else { 1 }
    }

    fn spec_of(&self, each: &Try) -> Result<KernelSpec, KernelError> {
        let refused =
            || KernelError::NotTuned { spec: self.spec.to_string(), why: "it is not a product with a weight".into() };
        ProductCut::other(self.spec, each.tile, each.chunk, each.pace).ok_or_else(refused)
    }

    fn case(&self, each: &Try) -> Result<Case, Error> {
        let (spec, rows) = (self.spec_of(each)?, self.rows_of(each));
        let kernel = generate(&spec, self.target)?;
        let chosen = TargetKernel { name: kernel.name.clone(), spec: Some(spec), rows, target: self.target, kernel };
        Case::new(chosen, Some(Sizes::Rows(rows)), 0)
    }

    /// Returns the cycles of a product of the whole weight with one row of activations.
    fn cycles(&self, each: &Try, place: MemoryLevel) -> Result<f64, Error> {
        let calls = self.cut.weight.n as f64 / f64::from(each.tile.max(1)) / f64::from(self.rows_of(each).max(1));
        Ok(cycles(&self.case(each)?, place)? * calls)
    }

    fn row(&self, each: &Try, cost: f64, ratio: Speedup) -> Candidate {
        let what = self.choice(each).to_string();
        let what = what.split_once(": ").map_or(what.clone(), |(_, said)| said.to_owned());
        let spec = self.spec_of(each).map_or(String::new(), |spec| spec.to_string());
        Candidate { what, spec, cost, ratio }
    }

    fn choice(&self, each: &Try) -> TunedChoice {
        let ProductCut { weight, strategy, .. } = self.cut;
        let rows = (self.is_last && u64::from(each.tile) != self.part.rows).then_some(each.tile.into());
        let row_chunk = (self.is_last && each.chunk != self.default.chunk || rows.is_some()).then_some(each.chunk);
        let band = (!self.is_last && each.tile != self.default.tile).then_some(each.tile);
        TunedChoice { weight, rows, strategy, row_chunk, band, pace: each.pace }
    }
}

/// Returns the number of cycles of a call by the target's cost model.
fn cycles(case: &Case, place: MemoryLevel) -> Result<f64, Error> {
    let (target, kernel) = (case.chosen.target, &case.chosen.kernel);
    let compiled = show::compile_x64(&case.chosen, "the cost model")?;
    let model = cost::model(target).ok_or_else(|| {
        let models = cost::MODELS.iter().map(|model| model.name).collect();
        KernelError::NoModel { target: target.name(), models }
    })?;
    let report = cost::analyse(&compiled.code[..compiled.code_bytes], &compiled.lines, kernel, model);
    let weights =
        ["w", "gate", "up"].into_iter().filter(|name| kernel.buffers.iter().any(|buffer| buffer.name == *name));
    let level = match place {
        MemoryLevel::Caches => "l2",
        MemoryLevel::Memory => "memory",
    };
    let starts: Vec<Start> = weights.filter_map(|name| format!("{name}={level}").parse().ok()).collect();
    match memory::levels(&report, kernel, target.row().memory(), &case.dims, &starts) {
        Ok(levels) => Ok(levels.cycles),
        // If the code is too long to simulate with caches, use its cycles without them.
        Err(memory::LevelsError::TooLong { .. }) => {
            Ok(report.whole(&case.dims).map_err(|e| KernelError::from(memory::LevelsError::from(e)))?.cycles)
        }
        Err(error) => Err(KernelError::from(error).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_kernels::MatmulStrategy;

    fn tune_text(text: &str, target: Target, by: Comparison) -> Result<TunedKernel, Error> {
        let spec: KernelSpec = text.parse().unwrap();
        tune(&spec, target, &target.row().caches(), by, &mut |_| ())
    }

    #[test]
    fn tuning_times_candidates_against_the_default() {
        let run = Box::new(ixc_runtime::engine::EngineOptions { threads: Some(2), ..Default::default() });
        let by = Comparison::Time { place: MemoryLevel::Caches, rounds: 2, rows: None, run };
        let few = tune_text("linear format=q4_k_r16 k=256 tile=32 n=2048 shape=gemv", Target::native(), by).unwrap();
        assert!(few.own.contains("gemv<=5/5"), "{}", few.own);
        // There are candidates with prefetching, and candidates with unrolled loops if there are
        // loops.
        assert!(few.rows.iter().any(|row| row.what.ends_with("@0/1")), "{:?}", few.rows);
        assert!(
            few.rows
                .iter()
                .all(|row| row.cost > 0.0 && row.ratio.low <= row.ratio.median && row.ratio.median <= row.ratio.high)
        );
        if let Some((row, choice)) = few.winner {
            assert!(row.is_faster() && choice.to_string().ends_with(&row.what), "{row:?} {choice}");
        }
    }

    #[test]
    fn tuning_uses_the_cost_model_for_foreign_targets() {
        let by = Comparison::Model { place: MemoryLevel::Memory };
        let zen4 = Target::from_name("zen4").unwrap();
        let many = tune_text("linear format=q4_k_r16 k=512 tile=32 n=512 shape=gemm", zen4, by.clone()).unwrap();
        assert!(many.rows.iter().any(|row| row.what.starts_with("rows=16 gemm/")), "{:?}", many.rows);
        assert!(many.rows.iter().all(|row| row.ratio.low == row.ratio.high), "{:?}", many.rows);
        if let Some((row, choice)) = &many.winner {
            let all = many.rows.iter().map(|row| row.ratio.median).fold(1.0, f64::max);
            assert!(row.ratio.median == all && choice.strategy == MatmulStrategy::Gemm, "{row:?}");
        }
        let error = tune_text("linear format=q4_k_r16 k=512 tile=32 n=512 shape=tiles", zen4, by.clone()).unwrap_err();
        assert!(error.to_string().contains("cuts its weight into rows="), "{error}");
        let error = tune_text("softmax n=64", zen4, by).unwrap_err();
        assert!(error.to_string().contains("not a product with a weight"), "{error}");
    }
}
