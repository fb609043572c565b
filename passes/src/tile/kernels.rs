//! The kernels of items with a given number of weight rows, and the row counts for which each is
//! used.

use ixc_ir::units::{Bytes, count_text};
use ixc_kernels::Pace;
use ixc_kernels::candidates::{self, Candidate, Level, bands, candidates};
use ixc_kernels::tiling::{self, Use};
use ixc_targets::{CoreCaches, Target};

use super::{BANDED, Limits};
use crate::decision::{Decision, RejectedAlternative};

/// Maximum rows for which kernels are compared.
const MOST_COMPARED: u32 = 128;

/// The kernels of items with a given number of weight rows.
pub(super) struct Kernels {
    pub(super) rows: u64,
    /// Kernels in ascending order, each with the minimum rows of activations for its use.
    from: Vec<(u32, Candidate)>,
    /// Rejected alternatives, if requested.
    rejected: Vec<RejectedAlternative>,
}

/// Formats a cost per row of activations and element of the weight.
pub(super) fn cycles(cost: f64) -> String {
    format!("{:.4} cycles per element and row", cost * candidates::UNIT)
}

impl Kernels {
    pub(super) fn cheapest(
        weight: &candidates::Weight,
        rows: u64,
        target: Target,
        caches: &CoreCaches,
        records_decisions: bool,
    ) -> Kernels {
        let (mut from, mut rejected): (Vec<(u32, Candidate)>, Vec<RejectedAlternative>) = Default::default();
        // Rejected chunk sizes, each with the chosen chunk size of the same kernel.
        let mut chunks_lost: Vec<(Candidate, Candidate)> = Vec::new();
        let name = |each: &Candidate| format!("{} by {}", each.strategy, count_text(each.row_chunk.into(), "row"));
        for chunks in candidates(weight, rows, target).chunk_by(|a, b| a.strategy == b.strategy) {
            let cost = |each: &Candidate| each.cost_of_a_row(caches);
            let best = chunks.iter().min_by(|a, b| cost(a).total_cmp(&cost(b)).then(b.row_chunk.cmp(&a.row_chunk)));
            let Some(best) = best else { continue };
            if records_decisions {
                chunks_lost.extend(chunks.iter().map(|each| (each.clone(), best.clone())));
            }
            let Some((first, before)) = from.last() else {
                from.push((1, best.clone()));
                continue;
            };
            let takes_over = |rows: &u32| best.arithmetic(*rows) <= before.arithmetic(*rows);
            match (*first..=MOST_COMPARED).find(takes_over) {
                Some(at) if at == *first => {
                    if records_decisions {
                        let why = format!(
                            "the arithmetic of {} takes no longer, from {} on",
                            best.strategy,
                            count_text(at.into(), "row")
                        );
                        rejected.push(RejectedAlternative::new(name(before), why));
                    }
                    from.pop();
                    from.push((at, best.clone()));
                }
                Some(at) => {
                    if records_decisions {
                        let [own, other] = [best, before].map(|each| each.arithmetic(at - 1) * candidates::UNIT);
                        let what = format!("{} below {at} rows", best.strategy);
                        let why = format!(
                            "{own:.4} cycles per element for {}; {}: {other:.4}",
                            count_text((at - 1).into(), "row"),
                            before.strategy
                        );
                        rejected.push(RejectedAlternative::new(what, why));
                    }
                    from.push((at, best.clone()));
                }
                None => {
                    if records_decisions {
                        let why = format!(
                            "for up to {MOST_COMPARED} rows, its arithmetic takes longer than that of {}",
                            before.strategy
                        );
                        rejected.push(RejectedAlternative::new(name(best), why));
                    }
                }
            }
        }
        let kernels = Kernels { rows, from, rejected: Vec::new() };
        let lost = chunks_lost.iter().filter_map(|(each, best)| {
            // A kernel that is used for at most `most` rows never gets a larger chunk, so all
            // larger chunk sizes are equivalent.
            let most =
                kernels.uses().find(|(_, used, _)| used.strategy == best.strategy).map_or(u32::MAX, |used| used.2);
            let [lost, won] = [each, best].map(|each| each.row_chunk.min(most));
            let why = || {
                format!(
                    "{}; by {won}: {:.4}",
                    cycles(each.cost_of_a_row(caches)),
                    best.cost_of_a_row(caches) * candidates::UNIT
                )
            };
            (lost != won).then(|| {
                RejectedAlternative::new(format!("{} by {}", each.strategy, count_text(lost.into(), "row")), why())
            })
        });
        let rejected = lost.chain(rejected).collect();
        Kernels { rejected, ..kernels }
    }

    /// Returns the kernels, each with its minimum and maximum rows.
    pub(super) fn uses(&self) -> impl Iterator<Item = (u32, &Candidate, u32)> {
        let ends = self.from.iter().skip(1).map(|(from, _)| from - 1).chain([u32::MAX]);
        self.from.iter().zip(ends).map(|((from, candidate), up_to)| (*from, candidate, up_to))
    }

    /// Returns the decision about the kernel for each number of rows, with the alternatives.
    pub(super) fn decision(&self, caches: &CoreCaches) -> Decision {
        let each = |(from, candidate, up_to): (u32, &Candidate, u32)| {
            let from = if from > 1 { format!("from {from} rows, ") } else { String::new() };
            format!("{from}{} by {}", candidate.strategy, count_text(candidate.row_chunk.min(up_to).into(), "row"))
        };
        let chosen = self.uses().map(each).collect::<Vec<_>>().join("; ");
        let why = self
            .last()
            .map_or_else(String::new, |last| format!("{} takes {}", last.strategy, cycles(last.cost_of_a_row(caches))));
        Decision::new("weight", "", "kernels").chose(chosen).since(why).over_all(self.rejected.iter().cloned())
    }

    pub(super) fn last(&self) -> Option<&Candidate> {
        self.from.last().map(|(_, candidate)| candidate)
    }

    pub(super) fn part(&self, weight: &candidates::Weight, limits: Limits) -> tiling::RowTiles {
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

    /// Returns the number of weight rows of a band, if the items of the kernel for few rows can be
    /// divided.
    pub(super) fn band(
        &self,
        weight: &candidates::Weight,
        limits: Limits,
        alternatives: Option<&mut Vec<RejectedAlternative>>,
    ) -> Option<u32> {
        let all = bands(weight, self.rows);
        let mut rejected = Vec::new();
        let records_decisions = alternatives.is_some();
        let mut reject = |band: u64, why: &dyn Fn() -> String| {
            if records_decisions {
                rejected.push(RejectedAlternative::new(format!("bands of {band} weight rows"), why()));
            }
        };
        // If there is only one kernel, it also computes many rows, and its items are not divided.
        let few = matches!(&self.from[..], [(_, few), _, ..] if few.strategy == BANDED);
        let items = weight.n / self.rows;
        let chosen = if !few {
            all.iter().for_each(|band| reject(*band, &|| "the same kernel computes few and many rows".to_owned()));
            None
        } else if items >= limits.items {
            let why = || format!("{items} whole items are enough; the goal is {}", limits.items);
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
                        format!("a band has {}; the minimum is {}", Bytes(weight.bytes(band)), Bytes(limits.band_bytes))
                    }
                    (true, true) => format!("{} are more than the goal of {}", count_text(count, "band"), limits.items),
                    (true, false) => format!("only {}; the goal is {}", count_text(count, "band"), limits.items),
                });
            }
            if chosen.is_some() && records_decisions {
                let why = format!("only {}; the goal for many threads is {}", count_text(items, "item"), limits.items);
                rejected.push(RejectedAlternative::new("whole items", why));
            }
            chosen
        };
        if let Some(alternatives) = alternatives {
            *alternatives = rejected;
        }
        chosen.and_then(|band| u32::try_from(band).ok())
    }

    /// Returns the reason for this choice as one line.
    pub(super) fn why(&self, weight: &candidates::Weight, caches: &CoreCaches, limits: Limits) -> String {
        let mut why = count_text(weight.n / self.rows, "item");
        if let Some(band) = self.band(weight, limits, None) {
            why += &format!(" or {}", count_text(weight.n / u64::from(band), "band"));
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
