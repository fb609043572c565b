//! `tile`: chooses how each weight's products are cut into items, and which kernel does how many
//! rows: weight-stationary blocking.
//!
//! An item is some weight rows times a chunk of rows of activations. Each weight is thus read once
//! for many rows, and repeatedly read data stays in a cache. Kernels offer candidates with their
//! costs ([`ixc_kernels::candidates`]). This pass chooses one by the caches of the target's row, or
//! of this machine if the target is `native`:
//!
//! 1. **Weight rows of an item**: the cheapest that make at least [`MIN_ITEMS`] items, so that a
//!    few threads stay busy with a single row. Of equals the larger.
//! 2. **Rows of a chunk**, for each kernel: the cheapest per row of activations. Of equals the
//!    larger.
//! 3. **Kernel for each number of rows**: the next kernel takes over at the first number where its
//!    arithmetic takes no longer.
//! 4. **Bands**: if the first kernel, for few rows, has fewer items than [`Options::items`], each
//!    can be divided in bands of fewer weight rows. The pass takes the largest band that makes
//!    enough items; a band has at least [`Options::band_bytes`]. The runtime uses bands if it has
//!    enough threads.
//!
//! Choices measured for weights of a shape ([`Options::tuned`]) replace the results of 1, 2 and 4;
//! 3 stays.
//!
//! Rows after the last full item are a part of their own. One kernel reads a gate and its up
//! projection, and both are cut like the gate.
//!
//! Needs: a module after `pack`. Leaves: the same functions; each weight that products read has a
//! blocking (`tile`) and its reason (`why`). A weight that already has a `tile` keeps it, so that
//! edited text can be compiled further; only [`Options::choose`] overrides it.
//!
//! ```text
//! weight @w : q4_k[2048, 2048] {layout = q4_k_r16}
//! ```
//! becomes, for `avx2`,
//! ```text
//! weight @w : q4_k[2048, 2048] {layout = q4_k_r16, tile = "rows=32 gemv<=5/5x16 gemm/96", why = "64 items or 128 bands; gemm from 6 rows: 264 KiB of rows of activations in L3"}
//! ```

use std::collections::{BTreeMap, HashMap};

use ixc_ir::format::Format;
use ixc_ir::format::packed::STRIP;
use ixc_ir::graph::{Module, Operand, WeightId};
use ixc_ir::units::{Bytes, counted};
use ixc_kernels::candidates::{self, Candidate, Level, bands, candidates, item_rows};
use ixc_kernels::tiling::{self, Tiling, Use};
use ixc_kernels::{MatmulStrategy, Pace};
use ixc_targets::{CoreCaches, Target};

use crate::decision::{Decision, Rejected};
use crate::error::{PassError, TileError};
use crate::options::{OptionValue, PassOptions, matches, pass_options};
use crate::pack::{factors, gate_and_up};
use crate::pass::{Context, Pass, Run};
use crate::tuned::{Choice, Tuned};

/// The pass.
pub static PASS: Pass = Pass {
    name: "tile",
    doc: "Chooses for each weight the rows of a work item and the kernel for each number of activation rows, from the cache sizes, and records the reason.",
    options: Options::ROWS,
    run: Run::Graph(run),
};

pass_options! {
    /// Options of the pass.
    pub struct Options for "tile" {
        #[doc = "Blockings for weights whose names match a pattern, in place of those from cache sizes: `PATTERN: rows=16 gemm/48`, the last of several that match; `;` between them."]
        pub choose: Overrides = Overrides::default(),
        #[doc = "Blockings that were measured to be faster for weights of a shape, in the form of `ixc kernel tune`; `;` between several."]
        pub tuned: Tuned = Tuned::default(),
        #[doc = "Number of work items that a product of few rows should have for many threads. If a weight has fewer items, they may be split into bands; 0 turns bands off."]
        pub items: u64 = FEW_ROWS_ITEMS,
        #[doc = "Min bytes of weights of a band."]
        pub band_bytes: u64 = MIN_BAND_BYTES,
    }
}

/// Min items of a product of one row, so that a few threads stay busy.
const MIN_ITEMS: u64 = 16;
/// Items of a product of few rows: 8 for each of 32 threads. A thread with one extra item then
/// works at most an eighth longer. With 64 items, 15 threads take as long as 13.
const FEW_ROWS_ITEMS: u64 = 256;
/// Min bytes of weights of a band: a thread that shares memory with 15 others reads them in 2 µs,
/// and a kernel call takes 0.1 µs.
const MIN_BAND_BYTES: u64 = 16 << 10;
/// The kernel whose items can be bands: the one for few rows.
const BANDED: MatmulStrategy = MatmulStrategy::Gemv;
/// Max rows up to which kernels are compared.
const MOST_COMPARED: u32 = 128;

/// Limits of the division of items into bands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    /// Number of items below which they are divided.
    items: u64,
    /// Min bytes of a band.
    band_bytes: u64,
}

impl Options {
    fn limits(&self) -> Limits {
        Limits { items: self.items, band_bytes: self.band_bytes }
    }
}

/// Requested blockings, by the names of weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(pub Vec<Override>);

/// Requested blocking for weights whose names match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// A name, in which `*` is any text and `?` any character.
    pub pattern: String,
    /// Weight rows of an item.
    pub rows: Option<u64>,
    /// Kernels by rows; empty if cache sizes choose them.
    pub uses: Vec<Use>,
}

impl Override {
    /// Reads an override such as `PATTERN: rows=32 gemv<=5/5x16 gemm/48`.
    pub fn read(text: &str) -> Option<Override> {
        let (pattern, asked) = text.split_once(':')?;
        let (mut rows, mut uses) = (None, Vec::new());
        for word in asked.split_whitespace() {
            match word.strip_prefix("rows=") {
                Some(number) if rows.is_none() => rows = Some(number.parse().ok()?),
                Some(_) => return None,
                None => uses.push(word.parse::<Use>().ok()?),
            }
        }
        let ascend = uses.windows(2).all(|pair| pair[0].up_to_rows < pair[1].up_to_rows);
        let complete = uses.last().is_none_or(|last| last.up_to_rows == u32::MAX);
        let pattern = pattern.trim().to_owned();
        (ascend && complete && !pattern.is_empty() && (rows.is_some() || !uses.is_empty())).then_some(Override {
            pattern,
            rows,
            uses,
        })
    }

    fn asked(&self) -> String {
        let rows = self.rows.map(|rows| format!("rows={rows}"));
        rows.into_iter().chain(self.uses.iter().map(Use::to_string)).collect::<Vec<_>>().join(" ")
    }
}

impl OptionValue for Overrides {
    const EXPECTED: &'static str = "PATTERN: rows=N, or PATTERN: and kernels by rows, the last without a limit, such as blk.*: rows=32 gemv<=5/5x16 gemm/48";

    fn read(text: &str) -> Option<Overrides> {
        let texts = text.split(';').map(str::trim).filter(|text| !text.is_empty());
        texts.map(Override::read).collect::<Option<_>>().map(Overrides)
    }

    fn text(&self) -> String {
        self.0.iter().map(|each| format!("{}: {}", each.pattern, each.asked())).collect::<Vec<_>>().join("; ")
    }
}

/// Runs the pass.
///
/// # Errors
/// A [`TileError`] for an override.
pub fn run(mut module: Module, context: &Context<'_>) -> Result<Module, PassError> {
    let options: Options = context.options.of();
    let (Overrides(overrides), limits) = (&options.choose, options.limits());
    let roles = roles(&module);
    for each in overrides {
        if !roles.keys().any(|w| matches(&each.pattern, &module.weights[w.index()].name)) {
            // Names have the form of patterns: without the `@` of a weight in text.
            let names = roles.keys().map(|w| module.weights[w.index()].name.clone());
            let more = if roles.len() > 8 { format!(" and {} more", roles.len() - 8) } else { String::new() };
            let known = names.take(8).collect::<Vec<_>>().join(", ") + &more;
            return Err(TileError::NoWeight { pattern: each.pattern.clone(), known }.into());
        }
    }
    // Equal weights are decided once: a model has one of each kind per layer.
    let mut decided: HashMap<candidates::Weight, Cut> = HashMap::new();
    for (&w, role) in &roles {
        // A gate's override also holds for its up projection.
        let name = |w: WeightId| module.weights[w.index()].name.as_str();
        let asked = overrides.iter().rev().find(|each| matches(&each.pattern, name(role.cut_as)));
        let weight = &module.weights[w.index()];
        if asked.is_none() && weight.choice.tile.is_some() {
            continue;
        }
        let Some(offer) = offered(&module, role) else { continue };
        let decision = match asked {
            Some(asked) => {
                let cut = Cut::asked(&offer, asked, name(role.cut_as), context, limits)?;
                context.decide(|| {
                    let rows = item_rows(&offer, context.target);
                    let own = Cut::cheapest(&offer, &rows, (context.target, &context.caches), limits, false).tiling;
                    let rejected = (own != cut.tiling).then(|| Rejected::new(own.to_string(), "another is asked for"));
                    let decision = Decision::of("weight", &weight.name, "tiling").chose(cut.tiling.to_string());
                    decision.since(&cut.why).over_all(rejected)
                });
                cut
            }
            None => match decided.get(&offer) {
                Some(cut) => cut.clone(),
                None => {
                    let tuned: Vec<&Choice> = options.tuned.0.iter().filter(|each| each.weight == offer).collect();
                    let machine = (context.target, &context.caches);
                    let cut = Cut::tuned(&offer, &tuned, name(role.cut_as), machine, limits, context.tells())?;
                    decided.entry(offer).or_insert(cut).clone()
                }
            },
        };
        for told in &decision.told {
            context.decide(|| Decision { name: weight.name.clone(), ..told.clone() });
        }
        tracing::debug!(weight = weight.name, tile = %decision.tiling, why = decision.why, "tiled");
        let choice = &mut module.weights[w.index()].choice;
        (choice.tile, choice.why) = (Some(decision.tiling.to_string()), Some(decision.why));
    }
    Ok(module)
}

/// Returns the blocking of a weight of this shape from cache sizes, with the default options, and
/// its reason.
pub fn by_caches(weight: &candidates::Weight, target: Target, caches: &CoreCaches) -> (Tiling, String) {
    let limits = Options::default().limits();
    let Cut { tiling, why, .. } = Cut::cheapest(weight, &item_rows(weight, target), (target, caches), limits, false);
    (tiling, why)
}

/// Returns the blocking from cache sizes for items of `rows` weight rows.
pub fn by_caches_of(weight: &candidates::Weight, rows: u64, target: Target, caches: &CoreCaches) -> Tiling {
    Cut::cheapest(weight, &[rows], (target, caches), Options::default().limits(), false).tiling
}

/// Returns whether a weight can be cut by all these choices together, with the default options.
pub fn accepts(weight: &candidates::Weight, choices: &[&Choice], target: Target, caches: &CoreCaches) -> bool {
    Cut::tuned(weight, choices, "", (target, caches), Options::default().limits(), false).is_ok()
}

/// Prefix of the reason of a tuned weight.
pub const TUNED: &str = "tuned: ";

/// Use of a weight by products.
#[derive(Clone, Copy, Debug)]
struct Role {
    /// The weight whose format and name decide: itself, or its gate.
    cut_as: WeightId,
    /// Weights that are read together.
    products: u32,
    /// Block length in which results are quantised.
    block: u64,
    /// Elements of a block that can be quantised without the rest.
    sub_block: u64,
}

fn roles(module: &Module) -> BTreeMap<WeightId, Role> {
    let mut roles: BTreeMap<WeightId, Role> = BTreeMap::new();
    for op in module.functions.iter().flat_map(|function| &function.ops) {
        for name in factors(op.kind) {
            if let Operand::Weight(w) = op.operand(name) {
                roles.entry(w).or_insert(Role { cut_as: w, products: 1, block: 1, sub_block: 1 });
            }
        }
    }
    for op in module.functions.iter().flat_map(|function| &function.ops) {
        if let Some((gate, up)) = gate_and_up(op) {
            let (format, known) = (op.attr("format").format(), roles.get(&gate));
            let block = (format.block_len() as u64).max(known.map_or(1, |role| role.block));
            let sub_block = (format.sub_block_len() as u64).max(known.map_or(1, |role| role.sub_block));
            for w in [gate, up] {
                roles.insert(w, Role { cut_as: gate, products: 2, block, sub_block });
            }
        }
    }
    roles
}

/// Returns the weight's description for kernels; `None` for a weight that is not a matrix.
fn offered(module: &Module, role: &Role) -> Option<candidates::Weight> {
    let weight = &module.weights[role.cut_as.index()];
    let &[.., n, k] = &weight.shape[..] else { return None };
    let format: Format = weight.choice.layout.unwrap_or(weight.format);
    let x = weight.choice.activations.unwrap_or(format.activation());
    let Role { products, block, sub_block, .. } = *role;
    Some(candidates::Weight { format, x, n, k, products, block, sub_block })
}

/// Blocking of a weight, with its reason.
#[derive(Clone, Debug)]
struct Cut {
    tiling: Tiling,
    why: String,
    /// Decisions with the alternatives that lost, if requested; the weight's name is empty in them.
    told: Vec<Decision>,
}

impl Cut {
    /// Returns the cheapest blocking with items of one of these numbers of weight rows, in
    /// ascending order. Records the alternatives that lost if `tells` is set.
    fn cheapest(
        weight: &candidates::Weight,
        rows: &[u64],
        (target, caches): (Target, &CoreCaches),
        limits: Limits,
        tells: bool,
    ) -> Cut {
        let enough = rows.iter().copied().filter(|rows| weight.n / rows >= MIN_ITEMS);
        let enough: Vec<u64> = enough.chain(rows.first().copied()).collect();
        let kernels: Vec<Kernels> =
            enough.iter().map(|&rows| Kernels::cheapest(weight, rows, target, caches, tells)).collect();
        let cost = |kernels: &Kernels| kernels.last().map_or(f64::INFINITY, |last| last.cost_of_a_row(caches));
        let best = kernels.iter().min_by(|a, b| cost(a).total_cmp(&cost(b)).then(b.rows.cmp(&a.rows)));
        let Some(best) = best else { unreachable!("kernels offer items of some rows for every weight") };
        let why = best.why(weight, caches, limits);
        let parts = weight_parts(weight.n, best.rows).into_iter().map(|part| match part.tile == best.rows {
            true => best.part(weight, limits),
            false => Kernels::cheapest(weight, part.tile, target, caches, false).part(weight, limits),
        });
        let mut told = Vec::new();
        if tells {
            let items = rows.iter().filter(|&&rows| rows != best.rows).map(|&rows| {
                let why = match kernels.iter().find(|kernels| kernels.rows == rows) {
                    Some(kernels) => cycles(cost(kernels)),
                    None => format!("{}, fewer than {MIN_ITEMS}", counted(weight.n / rows, "item")),
                };
                Rejected::new(format!("{rows} weight rows"), why)
            });
            let chosen = Decision::of("weight", "", "rows of an item").chose(format!("{} weight rows", best.rows));
            let chosen = chosen.since(format!("{}, {}", counted(weight.n / best.rows, "item"), cycles(cost(best))));
            told.push(chosen.over_all(items));
            told.push(best.told(caches));
            let mut bands = Vec::new();
            let chosen = match best.band(weight, limits, Some(&mut bands)) {
                Some(band) => format!("bands of {band} weight rows"),
                None => "whole items".to_owned(),
            };
            told.push(Decision::of("weight", "", "bands for few rows").chose(chosen).over_all(bands));
        }
        Cut { tiling: Tiling { parts: parts.collect() }, why, told }
    }

    /// Returns the cheapest blocking with the tuned choices applied. Tuning does not change which
    /// kernel does how many rows, because sums of float weights depend on it.
    fn tuned(
        weight: &candidates::Weight,
        choices: &[&Choice],
        name: &str,
        machine: (Target, &CoreCaches),
        limits: Limits,
        tells: bool,
    ) -> Result<Cut, TileError> {
        let all = item_rows(weight, machine.0);
        let own = Cut::cheapest(weight, &all, machine, limits, tells);
        let refused = |choice: &Choice| TileError::Tuned {
            name: name.to_owned(),
            choice: choice.to_string(),
            own: own.tiling.to_string(),
        };
        let mut cut = own.clone();
        for choice in choices {
            let Some(rows) = choice.rows else { continue };
            let by = |tiling: &Tiling| -> Vec<(MatmulStrategy, u32)> {
                tiling
                    .parts
                    .first()
                    .map_or(Vec::new(), |part| part.uses.iter().map(|each| (each.strategy, each.up_to_rows)).collect())
            };
            let last = by(&own.tiling).last().map(|(strategy, _)| *strategy);
            if !all.contains(&rows) || last != Some(choice.strategy) {
                return Err(refused(choice));
            }
            cut = Cut::cheapest(weight, &[rows], machine, limits, false);
            if by(&cut.tiling) != by(&own.tiling) {
                return Err(refused(choice));
            }
        }
        let Some(part) = cut.tiling.parts.first_mut() else { return Ok(cut) };
        for choice in choices {
            let offered = candidates(weight, part.rows, machine.0);
            let rows = part.rows;
            let found = part.uses.iter_mut().find(|each| each.strategy == choice.strategy);
            let Some(each) = found else { return Err(refused(choice)) };
            if let Some(chunk) = choice.row_chunk {
                let is_offered = |other: &Candidate| (other.strategy, other.row_chunk) == (each.strategy, chunk);
                if !offered.iter().any(is_offered) {
                    return Err(refused(choice));
                }
                each.row_chunk = chunk.min(each.up_to_rows);
            }
            if let Some(band) = choice.band {
                let is_few = each.strategy == BANDED && each.up_to_rows < u32::MAX;
                if !is_few || !bands(weight, rows).contains(&band.into()) {
                    return Err(refused(choice));
                }
                each.band = Some(band);
            }
            each.pace = choice.pace;
        }
        if !choices.is_empty() {
            let texts: Vec<String> = choices.iter().map(|choice| choice.to_string()).collect();
            let said = texts.iter().filter_map(|text| text.split_once(": ")).map(|(_, said)| said);
            cut.why = format!("{TUNED}{}", said.collect::<Vec<_>>().join(", "));
            if tells {
                let rejected = (own.tiling != cut.tiling)
                    .then(|| Rejected::new(own.tiling.to_string(), "another was measured to be faster"));
                let decision = Decision::of("weight", "", "tiling").chose(cut.tiling.to_string()).since(&cut.why);
                cut.told = vec![decision.over_all(rejected)];
            }
        }
        Ok(cut)
    }

    /// Returns the requested blocking, if it is a candidate. Rows after the last full item are cut
    /// by cache sizes.
    fn asked(
        weight: &candidates::Weight,
        asked: &Override,
        name: &str,
        context: &Context<'_>,
        limits: Limits,
    ) -> Result<Cut, TileError> {
        let Context { target, caches, .. } = context;
        let all = item_rows(weight, *target);
        let rows: Vec<u64> = all.iter().copied().filter(|rows| asked.rows.is_none_or(|asked| asked == *rows)).collect();
        let refused = || {
            let most = all.last().copied().unwrap_or(1);
            let offered = candidates(weight, most, *target);
            let list = |numbers: Vec<u64>| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join("|");
            let mut kernels: Vec<String> = Vec::new();
            for chunks in offered.chunk_by(|a, b| a.strategy == b.strategy) {
                let numbers = list(chunks.iter().map(|each| each.row_chunk.into()).collect());
                let bands = list(bands(weight, most));
                let banded = chunks[0].strategy == BANDED && !bands.is_empty();
                let bands = if banded { format!("[x{bands}]") } else { String::new() };
                kernels.push(format!("{}/{numbers}{bands}", chunks[0].strategy));
            }
            let candidates = format!("rows={} with {}", list(all.clone()), kernels.join(" "));
            TileError::NoCandidate { name: name.to_owned(), asked: asked.asked(), candidates }
        };
        if rows.is_empty() {
            return Err(refused());
        }
        let mut decision = Cut::cheapest(weight, &rows, (*target, caches), limits, false);
        if let (Some(part), false) = (decision.tiling.parts.first_mut(), asked.uses.is_empty()) {
            let offered = candidates(weight, part.rows, *target);
            let is_offered = |each: &Use| {
                let chunks = offered.iter().filter(|candidate| candidate.strategy == each.strategy);
                let banded = |band: u32| each.strategy == BANDED && bands(weight, part.rows).contains(&band.into());
                let banded = each.band.is_none_or(banded);
                banded
                    && match each.up_to_rows == u32::MAX {
                        true => chunks.map(|candidate| candidate.row_chunk).any(|chunk| chunk == each.row_chunk),
                        false => each.row_chunk <= chunks.map(|candidate| candidate.row_chunk).max().unwrap_or(0),
                    }
            };
            if !asked.uses.iter().all(is_offered) {
                return Err(refused());
            }
            part.uses.clone_from(&asked.uses);
        }
        Ok(Cut { why: format!("asked for by {:?}", asked.pattern), ..decision })
    }
}

/// The kernels of items with this number of weight rows.
struct Kernels {
    rows: u64,
    /// Kernels in ascending order, each with the min rows of activations for its use.
    from: Vec<(u32, Candidate)>,
    /// Alternatives that lost, if requested.
    rejected: Vec<Rejected>,
}

/// Formats a cost per row of activations and element of the weight.
fn cycles(cost: f64) -> String {
    format!("{:.4} cycles for an element and a row", cost * candidates::UNIT)
}

impl Kernels {
    fn cheapest(weight: &candidates::Weight, rows: u64, target: Target, caches: &CoreCaches, tells: bool) -> Kernels {
        let (mut from, mut rejected): (Vec<(u32, Candidate)>, Vec<Rejected>) = Default::default();
        // Chunks that lost, each with the chunk that won.
        let mut chunks_lost: Vec<(Candidate, Candidate)> = Vec::new();
        let name = |each: &Candidate| format!("{} by {}", each.strategy, each.row_chunk);
        for chunks in candidates(weight, rows, target).chunk_by(|a, b| a.strategy == b.strategy) {
            let cost = |each: &Candidate| each.cost_of_a_row(caches);
            let best = chunks.iter().min_by(|a, b| cost(a).total_cmp(&cost(b)).then(b.row_chunk.cmp(&a.row_chunk)));
            let Some(best) = best else { continue };
            if tells {
                chunks_lost.extend(chunks.iter().map(|each| (each.clone(), best.clone())));
            }
            let Some((first, before)) = from.last() else {
                from.push((1, best.clone()));
                continue;
            };
            let takes_over = |rows: &u32| best.arithmetic(*rows) <= before.arithmetic(*rows);
            match (*first..=MOST_COMPARED).find(takes_over) {
                Some(at) if at == *first => {
                    if tells {
                        let why = format!("the arithmetic of {} takes no longer from {at} rows on", best.strategy);
                        rejected.push(Rejected::new(name(before), why));
                    }
                    from.pop();
                    from.push((at, best.clone()));
                }
                Some(at) => {
                    if tells {
                        let [own, other] = [best, before].map(|each| each.arithmetic(at - 1) * candidates::UNIT);
                        let what = format!("{} for less than {at} rows", best.strategy);
                        let why = format!(
                            "{:.4} cycles for an element and {} rows, {} {other:.4}",
                            own,
                            at - 1,
                            before.strategy
                        );
                        rejected.push(Rejected::new(what, why));
                    }
                    from.push((at, best.clone()));
                }
                None => {
                    if tells {
                        let why = format!(
                            "its arithmetic takes longer than that of {} up to {MOST_COMPARED} rows",
                            before.strategy
                        );
                        rejected.push(Rejected::new(name(best), why));
                    }
                }
            }
        }
        let kernels = Kernels { rows, from, rejected: Vec::new() };
        let lost = chunks_lost.iter().filter_map(|(each, best)| {
            // A chunk of more rows than the kernel ever gets equals a chunk of that max.
            let most =
                kernels.uses().find(|(_, used, _)| used.strategy == best.strategy).map_or(u32::MAX, |used| used.2);
            let [lost, won] = [each, best].map(|each| each.row_chunk.min(most));
            let why =
                || format!("{}, by {won} {}", cycles(each.cost_of_a_row(caches)), cycles(best.cost_of_a_row(caches)));
            (lost != won).then(|| Rejected::new(format!("{} by {lost}", each.strategy), why()))
        });
        let rejected = lost.chain(rejected).collect();
        Kernels { rejected, ..kernels }
    }

    /// Returns the kernels, each with the min and max rows that it gets.
    fn uses(&self) -> impl Iterator<Item = (u32, &Candidate, u32)> {
        let ends = self.from.iter().skip(1).map(|(from, _)| from - 1).chain([u32::MAX]);
        self.from.iter().zip(ends).map(|((from, candidate), up_to)| (*from, candidate, up_to))
    }

    /// Returns the decision about the kernel for each number of rows, with the alternatives.
    fn told(&self, caches: &CoreCaches) -> Decision {
        let each = |(from, candidate, up_to): (u32, &Candidate, u32)| {
            let from = if from > 1 { format!(" from {from} rows") } else { String::new() };
            format!("{} by {}{from}", candidate.strategy, candidate.row_chunk.min(up_to))
        };
        let chosen = self.uses().map(each).collect::<Vec<_>>().join(", ");
        let why = self
            .last()
            .map_or_else(String::new, |last| format!("{}: {}", last.strategy, cycles(last.cost_of_a_row(caches))));
        Decision::of("weight", "", "kernel by rows").chose(chosen).since(why).over_all(self.rejected.iter().cloned())
    }

    fn last(&self) -> Option<&Candidate> {
        self.from.last().map(|(_, candidate)| candidate)
    }

    fn part(&self, weight: &candidates::Weight, limits: Limits) -> tiling::RowTiles {
        let bands = std::iter::once(self.band(weight, limits, None)).chain(std::iter::repeat(None));
        let uses = self.uses().zip(bands).map(|((_, candidate, up_to_rows), band)| Use {
            strategy: candidate.strategy,
            up_to_rows,
            row_chunk: candidate.row_chunk.min(up_to_rows),
            band,
            pace: Pace::default(),
        });
        tiling::RowTiles { rows: self.rows, uses: uses.collect() }
    }

    /// Returns the weight rows of a band of the items for few rows, if those can be divided.
    fn band(&self, weight: &candidates::Weight, limits: Limits, told: Option<&mut Vec<Rejected>>) -> Option<u32> {
        let all = bands(weight, self.rows);
        let mut rejected = Vec::new();
        let tells = told.is_some();
        let mut reject = |band: u64, why: &dyn Fn() -> String| {
            if tells {
                rejected.push(Rejected::new(format!("bands of {band} weight rows"), why()));
            }
        };
        // A single kernel also serves many rows.
        let few = matches!(&self.from[..], [(_, few), _, ..] if few.strategy == BANDED);
        let items = weight.n / self.rows;
        let chosen = if !few {
            all.iter().for_each(|band| reject(*band, &|| "one kernel does all rows".to_owned()));
            None
        } else if items >= limits.items {
            let why = || format!("{} are enough", counted(items, "item"));
            all.iter().for_each(|band| reject(*band, &why));
            None
        } else {
            let is_large = |band: &u64| weight.bytes(*band) >= limits.band_bytes;
            let large: Vec<u64> = all.iter().copied().filter(is_large).collect();
            let enough = large.iter().rev().find(|band| weight.n / **band >= limits.items);
            let chosen = enough.or(large.first()).copied();
            for &band in all.iter().filter(|band| Some(**band) != chosen) {
                let count = weight.n / band;
                reject(band, &|| match (is_large(&band), count >= limits.items) {
                    (false, _) => {
                        format!("{} of weights, less than {}", Bytes(weight.bytes(band)), Bytes(limits.band_bytes))
                    }
                    (true, true) => format!("{} are more than needed", counted(count, "band")),
                    (true, false) => format!("{}, fewer than {}", counted(count, "band"), limits.items),
                });
            }
            if chosen.is_some() && tells {
                let why = format!("{}, fewer than {} for many threads", counted(items, "item"), limits.items);
                rejected.push(Rejected::new("whole items", why));
            }
            chosen
        };
        if let Some(told) = told {
            *told = rejected;
        }
        chosen.and_then(|band| u32::try_from(band).ok())
    }

    /// Returns the reason for this choice in a line.
    fn why(&self, weight: &candidates::Weight, caches: &CoreCaches, limits: Limits) -> String {
        let mut why = counted(weight.n / self.rows, "item");
        if let Some(band) = self.band(weight, limits, None) {
            why += &format!(" or {}", counted(weight.n / u64::from(band), "band"));
        }
        for (from, candidate) in self.from.iter().skip(1) {
            why += &format!("; {} from {from} rows", candidate.strategy);
        }
        for (i, reuse) in self.last().map_or(&[][..], |last| &last.reuse).iter().enumerate() {
            let level = match reuse.level(caches) {
                Level::L1 => "L1",
                Level::L2 => "L2",
                Level::L3 => "L3",
                Level::Memory => "memory",
            };
            let kib = reuse.bytes().div_ceil(1024);
            why += &format!("{} {kib} KiB of {} in {level}", if i == 0 { ":" } else { "," }, reuse.what);
        }
        why
    }
}

/// A part of a product: `columns` tiles from weight row `first`.
#[derive(Clone, Copy, Debug)]
pub struct ColumnSplit {
    /// Rows, or elements, of a tile.
    pub tile: u64,
    /// First weight row of the tiles.
    pub first: u64,
    /// Number of tiles.
    pub columns: u64,
}

/// Splits `n` into full tiles and a rest.
pub fn parts(n: u64, tile: u64) -> Vec<ColumnSplit> {
    let full = ColumnSplit { tile, first: 0, columns: n / tile };
    let rest = ColumnSplit { tile: n % tile, first: n - n % tile, columns: 1 };
    [full, rest].into_iter().filter(|part| part.tile > 0 && part.columns > 0).collect()
}

/// Splits a weight's rows like [`parts`], and splits the rest into whole strips and rows that fill
/// no strip.
pub fn weight_parts(n: u64, tile: u64) -> Vec<ColumnSplit> {
    let split = |part: ColumnSplit| {
        let strips = part.tile / STRIP as u64 * STRIP as u64;
        if part.columns > 1 || strips == 0 || strips == part.tile {
            return vec![part];
        }
        let rest = ColumnSplit { tile: part.tile - strips, first: part.first + strips, columns: 1 };
        vec![ColumnSplit { tile: strips, ..part }, rest]
    };
    parts(n, tile).into_iter().flat_map(split).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHT: candidates::Weight = candidates::Weight {
        format: Format::Q4KR16,
        x: Format::A8Super,
        n: 2048,
        k: 2048,
        products: 1,
        block: 1,
        sub_block: 1,
    };

    fn decided(weight: candidates::Weight, target: Target, caches: CoreCaches) -> String {
        Cut::cheapest(&weight, &item_rows(&weight, target), (target, &caches), Options::default().limits(), false)
            .tiling
            .to_string()
    }

    #[test]
    fn parts_cover_every_row_once() {
        for format in [Format::Q4K, Format::Q4KR16, Format::F16R16] {
            for n in (1..2000).filter(|n| n % format.rows() as u64 == 0) {
                for block in [1, 32, 256] {
                    if n % block != 0 {
                        continue;
                    }
                    for x in [format.activation(), format.tile_activation().unwrap_or(format.activation())] {
                        let sub_block = block.min(32);
                        let weight = candidates::Weight { format, x, n, block, sub_block, ..WEIGHT };
                        let target = Target::AMX;
                        let caches = target.row().caches();
                        let (rows, limits) =
                            (item_rows(&weight, target), Limits { band_bytes: 0, ..Options::default().limits() });
                        let tiling = Cut::cheapest(&weight, &rows, (target, &caches), limits, false).tiling;
                        let end = tiling.place(n).unwrap().iter().fold(0, |at, placed| {
                            assert_eq!(placed.first, at, "n {n}");
                            assert_eq!(placed.part.rows % block, 0, "n {n}");
                            assert_eq!(placed.part.rows % format.rows() as u64, 0, "n {n}");
                            at + placed.part.rows * placed.columns
                        });
                        assert_eq!(end, n);
                        // The printed form is what `lower` reads.
                        assert_eq!(tiling.to_string().parse(), Ok(tiling));
                    }
                }
            }
        }
    }

    /// Checks the measured thresholds: unpacking pays from 6 rows, tiles from a block of 16, and
    /// rows of activations stay in L2.
    #[test]
    fn kernels_take_over_where_they_were_measured_to() {
        for target in Target::all() {
            let tiles = target.isa().tile_registers > 0;
            let vectors = candidates::Weight { x: Format::A8Super, ..WEIGHT };
            let caches = target.row().caches();
            assert_eq!(decided(vectors, target, caches), "rows=32 gemv<=5/5x16 gemm/96", "{target:?}");
            let pair = candidates::Weight { products: 2, block: 256, sub_block: 32, n: 5632, ..WEIGHT };
            assert_eq!(decided(pair, target, caches), "rows=256 gemv<=5/5x32 gemm/48", "{target:?}");
            let bf16 = candidates::Weight { format: Format::Bf16R16, x: Format::Bf16x1, ..WEIGHT };
            assert_eq!(decided(bf16, target, caches), "rows=32 gemv<=5/5x16 gemm/96", "{target:?}");
            if tiles {
                let wide = candidates::Weight { x: Format::A8SuperTile, ..WEIGHT };
                assert_eq!(decided(wide, target, caches), "rows=64 gemv<=5/5x16 gemm<=15/15 tiles/256");
                let floats = candidates::Weight { format: Format::F16R16, x: Format::Bf16x2, ..WEIGHT };
                assert_eq!(decided(floats, target, caches), "rows=64 gemv<=15/15x16 tiles/256");
                let few = candidates::Weight { n: 528, ..wide };
                assert_eq!(
                    decided(few, target, caches),
                    "rows=32 gemv<=5/5x16 gemm<=15/15 tiles/256; rows=16 gemv<=5/5 gemm/96"
                );
            }
        }
    }

    #[test]
    fn smaller_caches_make_smaller_items() {
        let caches = |l1d: u64, l2: u64, l3: u64| CoreCaches { l1d: l1d << 10, l2: l2 << 10, l3: l3 << 10 };
        let long = candidates::Weight { k: 16384, ..WEIGHT };
        let zen4 = Target::from_name("zen4").unwrap();
        assert_eq!(decided(long, zen4, caches(32, 4096, 0)), "rows=32 gemv<=5/5x16 gemm/96");
        assert_eq!(decided(long, zen4, caches(32, 1024, 0)), "rows=32 gemv<=5/5x16 gemm/32");
        let tiles = candidates::Weight { x: Format::A8SuperTile, ..long };
        // Rows of activations lie in the cache together with a panel.
        assert_eq!(decided(tiles, Target::AMX, caches(48, 8704, 0)), "rows=64 gemv<=5/5x16 gemm<=15/15 tiles/256");
        assert_eq!(decided(tiles, Target::AMX, caches(48, 8192, 0)), "rows=64 gemv<=5/5x16 gemm<=15/15 tiles/128");
    }

    #[test]
    fn patterns_match_as_shells_have_them() {
        for (pattern, name, matched) in [
            ("blk.*.ffn_down*", "blk.12.ffn_down.weight", true),
            ("blk.?.ffn_down*", "blk.12.ffn_down.weight", false),
            ("*", "", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?", "", false),
        ] {
            assert_eq!(matches(pattern, name), matched, "{pattern} {name}");
        }
    }

    #[test]
    fn bands_are_as_large_as_makes_enough_of_them() {
        let banded = |weight: candidates::Weight| decided(weight, Target::AVX512, Target::AVX512.row().caches());
        // 256 items without bands, and then fewer.
        assert_eq!(banded(candidates::Weight { n: 8192, ..WEIGHT }), "rows=32 gemv<=5/5 gemm/96");
        assert_eq!(banded(candidates::Weight { n: 8160, ..WEIGHT }), "rows=32 gemv<=5/5x16 gemm/96");
        // An expert's matrix, whose bands would be too small.
        assert_eq!(banded(candidates::Weight { k: 768, ..WEIGHT }), "rows=32 gemv<=5/5 gemm/96");
        // Of bands that make enough items, those with the most weight rows.
        let wide = |n| {
            decided(candidates::Weight { n, x: Format::A8SuperTile, ..WEIGHT }, Target::AMX, Target::AMX.row().caches())
        };
        assert_eq!(wide(8192), "rows=64 gemv<=5/5x32 gemm<=15/15 tiles/256");
        assert_eq!(wide(16384), "rows=64 gemv<=5/5 gemm<=15/15 tiles/256");
        let pair = |n| candidates::Weight { n, products: 2, block: 256, sub_block: 32, ..WEIGHT };
        assert_eq!(banded(pair(8192)), "rows=256 gemv<=5/5x32 gemm/48");
        assert_eq!(banded(pair(32768)), "rows=256 gemv<=5/5x128 gemm/48");
    }

    /// Checks that tuned choices replace widths, chunks and paces, but never which kernel does how
    /// many rows; others than candidates are refused.
    #[test]
    fn tuned_choices_are_candidates_or_refused() {
        let (target, caches) = (Target::AVX2, Target::AVX2.row().caches());
        let limits = Options::default().limits();
        let decided = |texts: &[&str]| {
            let shape = "q4_k_r16 x=a8_super n=2048 k=2048: ";
            let choices: Vec<Choice> = texts.iter().map(|text| format!("{shape}{text}").parse().unwrap()).collect();
            Cut::tuned(&WEIGHT, &choices.iter().collect::<Vec<_>>(), "w", (target, &caches), limits, false)
        };
        let tiling = |texts: &[&str]| decided(texts).unwrap().tiling.to_string();
        assert_eq!(tiling(&[]), "rows=32 gemv<=5/5x16 gemm/96");
        assert_eq!(tiling(&["gemv x16@2048/2"]), "rows=32 gemv<=5/5x16@2048/2 gemm/96");
        assert_eq!(tiling(&["rows=16 gemm/48", "gemv@0/1"]), "rows=16 gemv<=5/5@0/1 gemm/48");
        assert_eq!(decided(&["rows=16 gemm/48"]).unwrap().why, "tuned: rows=16 gemm/48");
        for wrong in ["rows=24 gemm", "rows=16 gemv", "gemm/47", "gemm x16", "gemv x24", "tiles/64"] {
            let error = decided(&[wrong]).unwrap_err();
            assert!(matches!(&error, TileError::Tuned { choice, .. } if choice.ends_with(wrong)), "{error}");
        }
    }

    #[test]
    fn overrides_read_back_and_wrong_ones_are_refused() {
        let text = "a*: rows=16; b: rows=32 gemv<=5/5x16 gemm/48; c: gemm/96";
        assert_eq!(<Overrides as OptionValue>::read(text).unwrap().text(), text);
        for wrong in ["a", "a:", ": rows=16", "a: rows=x", "a: rows=1 rows=2", "a: gemv<=5/5", "a: gemm/96 gemv<=5/5"] {
            assert_eq!(<Overrides as OptionValue>::read(wrong), None, "{wrong}");
        }
    }
}
