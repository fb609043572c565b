//! Which width, chunk and pace of a product's kernel is fastest: candidates, measured in turn with the one that the pass `tile` chooses.
//!
//! ```text
//! ixc kernel tune linear format=q4_k_r16 k=2048 tile=32 n=2048 shape=gemv
//! ```
//!
//! The search goes from one thing to the next, each with the best of those before: first how wide items or bands are and how many rows of activations
//! they have, then how far ahead is read, then how often loops are unrolled. These are all that a kernel can be without other bits: which kernel does
//! how many rows decides in which order floats are added, so it is not searched, nor is any format. A candidate whose results are other
//! than those of the same kernel at its own pace is an error.
//!
//! What wins is measured again, so that the luckiest of many is not taken for the fastest, and must be faster by more than the rounds are apart.

use ixc_codegen::cost;
use ixc_codegen::cost::memory::{self, Start};
use ixc_kernels::cut::Cut;
use ixc_kernels::pace::Pace;
use ixc_kernels::tiling::{RowTiles, Use};
use ixc_kernels::{KernelSpec, candidates, generate};
use ixc_passes::tile::by_caches;
use ixc_passes::tuned::Choice;
use ixc_targets::{CoreCaches, Target};
use serde::Serialize;

use super::bench::{Place, in_turn};
use super::choose::Chosen;
use super::run::{Case, Engine, Sizes};
use super::{KernelError, diff, show};
use crate::Error;

/// Bytes ahead that are tried.
const AHEAD: [u32; 5] = [0, 1024, 2048, 4096, 8192];
/// Iterations that are one, as they are tried.
const UNROLLED: [u32; 2] = [2, 4];
/// How much faster something must be by a model, which says no more than this exactly.
const MODEL_SPREAD: f64 = 0.01;

/// How candidates are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By their time here, of so many rounds that are taken in turn.
    Time {
        /// Where the buffers lie.
        place: Place,
        /// Rounds.
        rounds: u32,
    },
    /// By the cycles that the target's model counts.
    Model {
        /// Where weights lie before a call.
        place: Place,
    },
}

/// A candidate, and how fast it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What it is, in the words of a tuned choice: `x16@2048/2`, `rows=16 gemm/48`.
    pub what: String,
    /// Its spec.
    pub spec: String,
    /// Seconds, or cycles, for the whole weight and a row of activations.
    pub cost: f64,
    /// How many times as fast as the one that the caches choose: median, and the quartiles. The same of a model, which has no spread.
    pub ratio: [f64; 3],
}

impl Row {
    /// Half of the distance between the quartiles.
    pub fn spread(&self) -> f64 {
        (self.ratio[2] - self.ratio[1]) / 2.0
    }

    /// Whether it is faster by more than the rounds are apart.
    pub fn is_faster(&self) -> bool {
        self.ratio[1] > 1.0 && self.ratio[0] - 1.0 > self.spread().max(MODEL_SPREAD)
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// What was tuned.
    pub kernel: crate::tuned::Kernel,
    /// How the weight is cut by the caches.
    pub own: String,
    /// The kernel that is compared with, and its cost.
    pub default: Row,
    /// All candidates, in the order in which they were tried.
    pub rows: Vec<Row>,
    /// What each makes of the weight.
    choices: Vec<Choice>,
    /// The fastest, measured again, and what it makes of the weight; none where nothing is faster.
    pub winner: Option<(Row, Choice)>,
    /// The fastest, measured again, where it is not faster by enough.
    pub close: Option<Row>,
}

impl Found {
    /// A candidate by its own words, and what it makes of the weight.
    ///
    /// # Errors
    /// Where nothing was called so.
    pub fn candidate(&self, what: &str) -> Result<(Row, Choice), Error> {
        let found = self.rows.iter().zip(&self.choices).find(|(row, _)| row.what == what);
        let found = found.map(|(row, choice)| (row.clone(), choice.clone()));
        Ok(found.ok_or_else(|| {
            let candidates = self.rows.iter().map(|row| row.what.clone()).collect();
            KernelError::NoCandidate { what: what.to_owned(), candidates }
        })?)
    }
}

/// A kernel that is tried.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Try {
    /// Weight rows of a call.
    tile: u32,
    /// Most rows of activations.
    chunk: u32,
    pace: Pace,
}

/// What is searched for.
struct Search<'s> {
    spec: &'s KernelSpec,
    cut: Cut,
    target: Target,
    by: By,
    /// Rows of activations of a call, where they do not follow from the chunk.
    activations: u32,
    /// The part of the weight, and the kernel in it.
    part: RowTiles,
    each: Use,
    /// Whether it is the kernel for most rows, by which items are cut.
    is_last: bool,
    default: Try,
    default_case: Case,
}

/// Searches, and shows each candidate as it is measured.
///
/// # Errors
/// Where the spec is no product, or none that the pass chooses; where this machine cannot run it, or the target has no model; where a candidate
/// computes something else.
pub fn tune(
    spec: &KernelSpec,
    (target, caches): (Target, &CoreCaches),
    by: By,
    watch: &mut dyn FnMut(&Row),
) -> Result<Found, Error> {
    let search = Search::new(spec, target, caches, by)?;
    let (own, why) = by_caches(&search.cut.weight, target, caches);
    tracing::debug!(%own, why, "tuning");
    let default = search.default;
    let default_row = match by {
        By::Time { .. } => search.measure(&default, None)?,
        By::Model { .. } => Row { ratio: [1.0; 3], ..search.measure(&default, None)? },
    };
    let (mut rows, mut choices): (Vec<Row>, Vec<Choice>) = Default::default();
    let mut best = (1.0, default);
    let mut stage = |tries: Vec<Try>, best: &mut (f64, Try)| -> Result<(), Error> {
        for each in tries {
            let Some(row) = search.candidate(&each)? else { continue };
            watch(&row);
            if row.ratio[0] > best.0 {
                *best = (row.ratio[0], each);
            }
            rows.push(row);
            choices.push(search.choice(&each));
        }
        Ok(())
    };
    stage(search.shapes(caches), &mut best)?;
    if matches!(by, By::Time { .. }) {
        // No model knows what a prefetch is good for.
        let pace = |ahead| Pace { ahead, ..best.1.pace };
        let paces = AHEAD.into_iter().filter(|ahead| *ahead != best.1.pace.ahead).map(pace);
        let tries = paces.map(|pace| Try { pace, ..best.1 }).collect();
        stage(tries, &mut best)?;
    }
    let tries = UNROLLED.into_iter().map(|unroll| Try { pace: Pace { unroll, ..best.1.pace }, ..best.1 }).collect();
    stage(tries, &mut best)?;
    let kernel = (search.cut.weight, search.cut.strategy);
    let own = own.to_string();
    let mut found = Found { kernel, own, default: default_row, rows, choices, winner: None, close: None };
    if best.1 != default {
        let again = match by {
            By::Time { place, rounds } => search.measure(&best.1, Some(By::Time { place, rounds: 2 * rounds }))?,
            By::Model { .. } => search.measure(&best.1, None)?,
        };
        match again.is_faster() {
            true => {
                search.check(&best.1)?;
                found.winner = Some((again, search.choice(&best.1)));
            }
            false => found.close = Some(again),
        }
    }
    Ok(found)
}

impl<'s> Search<'s> {
    fn new(spec: &'s KernelSpec, target: Target, caches: &CoreCaches, by: By) -> Result<Search<'s>, Error> {
        let refused = |why: String| KernelError::NotTuned { spec: spec.to_string(), why };
        let cut = Cut::of(spec).ok_or_else(|| refused("it is no product with a weight".into()))?;
        let (own, _) = by_caches(&cut.weight, target, caches);
        let part = own.parts.first().cloned().ok_or_else(|| refused("its weight has no rows".into()))?;
        let position = part.uses.iter().position(|each| each.strategy == cut.strategy);
        let position =
            position.ok_or_else(|| refused(format!("{target} cuts its weight into {own}", target = target.name())))?;
        let (each, is_last) = (part.uses[position], position + 1 == part.uses.len());
        let number = |rows: u64| u32::try_from(rows).unwrap_or(u32::MAX);
        let tile = each.band.unwrap_or_else(|| number(part.rows));
        let default = Try { tile, chunk: each.row_chunk, pace: Pace::default() };
        // A token at a time is what few rows are for.
        let activations = if is_last { each.row_chunk } else { 1 };
        let default_case = case_of(spec, &default, target, activations)?;
        Ok(Search { spec, cut, target, by, activations, part, each, is_last, default, default_case })
    }

    /// Widths and chunks, without the one that the caches choose.
    fn shapes(&self, caches: &CoreCaches) -> Vec<Try> {
        let Cut { weight, strategy, .. } = self.cut;
        let number = |rows: u64| u32::try_from(rows).ok();
        let mut tries = Vec::new();
        if self.is_last {
            let by =
                |part: &RowTiles| part.uses.iter().map(|each| (each.strategy, each.up_to_rows)).collect::<Vec<_>>();
            for rows in candidates::item_rows(&weight, self.target) {
                let offered = candidates::candidates(&weight, rows, self.target);
                // Where other rows would be done by other kernels, floats would be added otherwise.
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

    /// Measures a candidate; none where it is the kernel that is there already.
    fn candidate(&self, each: &Try) -> Result<Option<Row>, Error> {
        let case = self.case(each)?;
        let plain = self.case(&Try { pace: Pace::default(), ..*each })?;
        if each.pace != Pace::default() {
            if case.chosen.kernel.body == plain.chosen.kernel.body {
                return Ok(None);
            }
            // Inputs follow from a spec's name: both get those of the one.
            let case = Case { before: plain.before.clone(), ..case };
            if let Some(first) =
                diff::results(&plain, &case, self.engine())?.into_iter().find_map(|buffer| buffer.first)
            {
                let (kernel, difference) = (case.chosen.kernel.name, first.to_string());
                return Err(KernelError::Differs { kernel, engine: self.engine().name(), difference }.into());
            }
        }
        self.measure(each, None).map(Some)
    }

    fn engine(&self) -> Engine {
        if self.target.missing().is_empty() { Engine::Native } else { Engine::Emulator }
    }

    /// Compares what won with the interpreter.
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

    fn rows_of(&self, each: &Try) -> u32 {
        if self.is_last { each.chunk } else { self.activations }
    }

    fn case(&self, each: &Try) -> Result<Case, Error> {
        case_of(self.spec, each, self.target, self.rows_of(each))
    }

    fn measure(&self, each: &Try, by: Option<By>) -> Result<Row, Error> {
        let case = self.case(each)?;
        // Calls for the whole weight, and a row.
        let share =
            |each: &Try| self.cut.weight.n as f64 / f64::from(each.tile.max(1)) / f64::from(self.rows_of(each).max(1));
        let (own, other) = (share(&self.default), share(each));
        let (cost, ratio) = match by.unwrap_or(self.by) {
            By::Time { place, rounds } => {
                let pairs = in_turn([&self.default_case, &case], place, rounds)?;
                let sorted = |mut values: Vec<f64>| {
                    values.sort_by(f64::total_cmp);
                    values
                };
                let at = |values: &[f64], share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
                let ratios = sorted(pairs.iter().map(|[a, b]| a * own / (b * other)).collect());
                let costs = sorted(pairs.iter().map(|[_, b]| b * other).collect());
                (at(&costs, 0.5), [at(&ratios, 0.5), at(&ratios, 0.25), at(&ratios, 0.75)])
            }
            By::Model { place } => {
                let cost = cycles(&case, place)? * other;
                let ratio = cycles(&self.default_case, place)? * own / cost;
                (cost, [ratio; 3])
            }
        };
        let what = self.choice(each).to_string();
        let what = what.split_once(": ").map_or(what.clone(), |(_, said)| said.to_owned());
        let spec = case.chosen.spec.map_or(String::new(), |spec| spec.to_string());
        Ok(Row { what, spec, cost, ratio })
    }

    fn choice(&self, each: &Try) -> Choice {
        let Cut { weight, strategy, .. } = self.cut;
        let rows = (self.is_last && u64::from(each.tile) != self.part.rows).then_some(each.tile.into());
        let row_chunk = (self.is_last && each.chunk != self.default.chunk || rows.is_some()).then_some(each.chunk);
        let band = (!self.is_last && each.tile != self.default.tile).then_some(each.tile);
        Choice { weight, rows, strategy, row_chunk, band, pace: each.pace }
    }
}

fn case_of(spec: &KernelSpec, each: &Try, target: Target, rows: u32) -> Result<Case, Error> {
    let refused = || KernelError::NotTuned { spec: spec.to_string(), why: "it is no product with a weight".into() };
    let spec = Cut::other(spec, each.tile, each.chunk, each.pace).ok_or_else(refused)?;
    let kernel = generate(&spec, target)?;
    let chosen = Chosen { name: kernel.name.clone(), spec: Some(spec), rows, target, kernel };
    Case::new(chosen, Some(Sizes::Rows(rows)), 0)
}

/// Cycles of a call by the target's model.
fn cycles(case: &Case, place: Place) -> Result<f64, Error> {
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
        Place::Caches => "l2",
        Place::Memory => "memory",
    };
    let starts: Vec<Start> = weights.filter_map(|name| format!("{name}={level}").parse().ok()).collect();
    match memory::levels(&report, kernel, target.row().memory(), &case.dims, &starts) {
        Ok(levels) => Ok(levels.cycles),
        // Too much to walk: the code's own cycles.
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

    fn found(text: &str, target: Target, by: By) -> Result<Found, Error> {
        let spec: KernelSpec = text.parse().unwrap();
        tune(&spec, (target, &target.row().caches()), by, &mut |_| ())
    }

    #[test]
    fn candidates_are_measured_in_turn_with_what_the_caches_choose() {
        let by = By::Time { place: Place::Caches, rounds: 2 };
        let few = found("linear format=q4_k_r16 k=256 tile=32 n=2048 shape=gemv", Target::native(), by).unwrap();
        assert!(few.own.contains("gemv<=5/5"), "{}", few.own);
        // Reading ahead, and unrolled loops where there are some.
        assert!(few.rows.iter().any(|row| row.what.ends_with("@0/1")), "{:?}", few.rows);
        assert!(
            few.rows.iter().all(|row| row.cost > 0.0 && row.ratio[1] <= row.ratio[0] && row.ratio[0] <= row.ratio[2])
        );
        if let Some((row, choice)) = few.winner {
            assert!(row.is_faster() && choice.to_string().ends_with(&row.what), "{row:?} {choice}");
        }
    }

    #[test]
    fn a_model_says_which_is_faster_where_nothing_can_run() {
        let by = By::Model { place: Place::Memory };
        let zen4 = Target::from_name("zen4").unwrap();
        let many = found("linear format=q4_k_r16 k=512 tile=32 n=512 shape=gemm", zen4, by).unwrap();
        assert!(many.rows.iter().any(|row| row.what.starts_with("rows=16 gemm/")), "{:?}", many.rows);
        assert!(many.rows.iter().all(|row| row.ratio[1] == row.ratio[2]), "{:?}", many.rows);
        if let Some((row, choice)) = &many.winner {
            let all = many.rows.iter().map(|row| row.ratio[0]).fold(1.0, f64::max);
            assert!(row.ratio[0] == all && choice.strategy == MatmulStrategy::Gemm, "{row:?}");
        }
        let error = found("linear format=q4_k_r16 k=512 tile=32 n=512 shape=tiles", zen4, by).unwrap_err();
        assert!(error.to_string().contains("cuts its weight into rows="), "{error}");
        let error = found("softmax n=64", zen4, by).unwrap_err();
        assert!(error.to_string().contains("no product with a weight"), "{error}");
    }
}
