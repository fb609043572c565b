//! Computation of a weight's blocking: from cache sizes, from tuned choices, or as requested.

use ixc_ir::units::count_text;
use ixc_kernels::MatmulStrategy;
use ixc_kernels::candidates::{self, Candidate, bands, candidates, item_rows};
use ixc_kernels::tiling::{Tiling, Use};
use ixc_targets::{CoreCaches, Target};

use super::kernels::{Kernels, cycles};
use super::overrides::Override;
use super::parts::weight_parts;
use super::{BANDED, Limits, MIN_ITEMS, TUNED};
use crate::decision::{Decision, RejectedAlternative};
use crate::error::TileError;
use crate::pass::Context;
use crate::tuned::TunedChoice;

/// Blocking of a weight, with the reason for it.
#[derive(Clone, Debug)]
pub(super) struct WeightBlocking {
    pub(super) tiling: Tiling,
    pub(super) why: String,
    /// Decisions with the rejected alternatives, if requested. The caller sets the weight's name.
    pub(super) decisions: Vec<Decision>,
}

impl WeightBlocking {
    /// Returns the cheapest blocking whose items have one of the given numbers of weight rows,
    /// which are in ascending order. Records the rejected alternatives if `records_decisions` is
    /// set.
    pub(super) fn cheapest(
        weight: &candidates::Weight,
        rows: &[u64],
        target: Target,
        caches: &CoreCaches,
        limits: Limits,
        records_decisions: bool,
    ) -> WeightBlocking {
        let enough = rows.iter().copied().filter(|rows| weight.n / rows >= MIN_ITEMS);
        let enough: Vec<u64> = enough.chain(rows.first().copied()).collect();
        let kernels: Vec<Kernels> =
            enough.iter().map(|&rows| Kernels::cheapest(weight, rows, target, caches, records_decisions)).collect();
        let cost = |kernels: &Kernels| kernels.last().map_or(f64::INFINITY, |last| last.cost_of_a_row(caches));
        let best = kernels.iter().min_by(|a, b| cost(a).total_cmp(&cost(b)).then(b.rows.cmp(&a.rows)));
        let Some(best) = best else { unreachable!("every weight has at least one possible number of rows of an item") };
        let why = best.why(weight, caches, limits);
        let parts = weight_parts(weight.n, best.rows).into_iter().map(|part| match part.tile == best.rows {
            true => best.part(weight, limits),
            false => Kernels::cheapest(weight, part.tile, target, caches, false).part(weight, limits),
        });
        let mut decisions = Vec::new();
        if records_decisions {
            let items = rows.iter().filter(|&&rows| rows != best.rows).map(|&rows| {
                let why = match kernels.iter().find(|kernels| kernels.rows == rows) {
                    Some(kernels) => format!("{}, not less than the choice", cycles(cost(kernels))),
                    None => {
                        format!("only {}; the minimum for threads is {MIN_ITEMS}", count_text(weight.n / rows, "item"))
                    }
                };
                RejectedAlternative::new(format!("{rows} weight rows"), why)
            });
            let chosen = Decision::new("weight", "", "item size").chose(format!("{} weight rows", best.rows));
            let chosen = chosen.since(format!("{}; {}", count_text(weight.n / best.rows, "item"), cycles(cost(best))));
            decisions.push(chosen.over_all(items));
            decisions.push(best.decision(caches));
            let mut bands = Vec::new();
            let chosen = match best.band(weight, limits, Some(&mut bands)) {
                Some(band) => format!("bands of {band} weight rows"),
                None => "whole items".to_owned(),
            };
            decisions.push(Decision::new("weight", "", "bands").chose(chosen).over_all(bands));
        }
        WeightBlocking { tiling: Tiling { parts: parts.collect() }, why, decisions }
    }

    /// Returns the cheapest blocking with the tuned choices applied. Tuning does not change the
    /// kernel for each number of rows, because sums of float weights depend on it.
    pub(super) fn tuned_blocking(
        weight: &candidates::Weight,
        choices: &[&TunedChoice],
        name: &str,
        target: Target,
        caches: &CoreCaches,
        limits: Limits,
        records_decisions: bool,
    ) -> Result<WeightBlocking, TileError> {
        let all = item_rows(weight, target);
        let own = WeightBlocking::cheapest(weight, &all, target, caches, limits, records_decisions);
        let refused = |choice: &TunedChoice| TileError::Tuned {
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
            cut = WeightBlocking::cheapest(weight, &[rows], target, caches, limits, false);
            if by(&cut.tiling) != by(&own.tiling) {
                return Err(refused(choice));
            }
        }
        let Some(part) = cut.tiling.parts.first_mut() else { return Ok(cut) };
        for choice in choices {
            let offered = candidates(weight, part.rows, target);
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
            if records_decisions {
                let rejected = (own.tiling != cut.tiling).then(|| {
                    RejectedAlternative::new(own.tiling.to_string(), "the chosen tiling was faster when tuned")
                });
                let decision = Decision::new("weight", "", "tiling").chose(cut.tiling.to_string()).since(&cut.why);
                cut.decisions = vec![decision.over_all(rejected)];
            }
        }
        Ok(cut)
    }

    /// Returns the requested blocking, if it is a candidate. Weight rows after the last full item
    /// are blocked by cache sizes.
    pub(super) fn requested_blocking(
        weight: &candidates::Weight,
        asked: &Override,
        name: &str,
        context: &Context<'_>,
        limits: Limits,
    ) -> Result<WeightBlocking, TileError> {
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
            TileError::NoCandidate { name: name.to_owned(), asked: asked.request_text(), candidates }
        };
        if rows.is_empty() {
            return Err(refused());
        }
        let mut decision = WeightBlocking::cheapest(weight, &rows, *target, caches, limits, false);
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
        Ok(WeightBlocking { why: format!("requested for {:?}", asked.pattern), ..decision })
    }
}
