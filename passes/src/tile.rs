//! `tile`: divides each weight's products into items, and chooses the kernel for each number of
//! rows: weight-stationary blocking.
//!
//! An item is some weight rows times a chunk of activation rows. Each weight is thus read once for
//! many rows, and data that is read repeatedly stays in a cache. Kernels offer candidates with
//! their costs ([`ixc_kernels::candidates`]). This pass chooses a candidate by the cache sizes of
//! the target's table row, or of this machine if the target is `native`:
//!
//! 1. **Weight rows of an item**: the cheapest number that gives at least [`MIN_ITEMS`] items,
//!    so that a few threads have work even with a single row. Of equally cheap numbers, the largest
//!    is chosen.
//! 2. **Rows of a chunk**, for each kernel: the number of activation rows that is cheapest per
//!    row. Of equally cheap numbers, the largest is chosen.
//! 3. **Kernel for each number of activation rows**: a kernel for more rows is used from the
//!    first number at which its arithmetic takes no longer.
//! 4. **Bands**: if the first kernel, for few activation rows, has fewer items than
//!    [`TileOptions::items`], each item can be divided into bands of fewer weight rows. The pass
//!    takes the largest band that gives enough items; a band has at least
//!    [`TileOptions::band_bytes`]. The runtime uses bands if it has enough threads.
//!
//! Choices measured for weights of a shape ([`TileOptions::tuned`]) replace the results of 1, 2 and
//! 4, but not of 3.
//!
//! Weight rows after the last full item form a separate part. One kernel reads a gate and its up
//! projection, so both are divided as the gate's blocking says.
//!
//! Needs: a module after `pack`. Leaves: the same functions; each weight of a product has a
//! blocking (`tile`) and its reason (`why`). A weight that already has a `tile` keeps it, so that
//! edited text can be compiled further; only [`TileOptions::choose`] overrides it.
//!
//! ```text
//! weight @w : q4_k[2048, 2048] {layout = q4_k_r16}
//! ```
//! becomes, for `avx2`,
//! ```text
//! weight @w : q4_k[2048, 2048] {layout = q4_k_r16, tile = "rows=32 gemv<=5/5x16 gemm/96", why = "64 items or 128 bands; gemm from 6 rows: 264 KiB of rows of activations in L3"}
//! ```

mod cut;
mod kernels;
mod overrides;
mod parts;

use std::collections::{BTreeMap, HashMap};

use ixc_ir::format::Format;
use ixc_ir::graph::{Module, Operand, WeightId};
use ixc_kernels::MatmulStrategy;
use ixc_kernels::candidates::{self, item_rows};
use ixc_kernels::tiling::Tiling;
use ixc_targets::{CoreCaches, Target};

use crate::decision::{Decision, RejectedAlternative};
use crate::error::{PassError, TileError};
use crate::options::{PassOptions, matches, pass_options};
use crate::pack::{factors, gate_and_up};
use crate::pass::{Context, Pass, Run};
use crate::tuned::{TunedChoice, TunedChoices};
use cut::WeightBlocking;
pub use overrides::{Override, Overrides};
pub use parts::{ColumnSplit, parts, weight_parts};

/// Entry of this pass in the list of passes.
pub static PASS: Pass = Pass {
    name: "tile",
    doc: "Chooses for each weight the rows of a work item and the kernel for each number of activation rows, from the cache sizes, and records the reason.",
    options: TileOptions::ROWS,
    run: Run::Graph(run),
};

pass_options! {
    /// Options of the pass.
    pub struct TileOptions for "tile" {
        #[doc = "Blockings for weights whose names match a pattern, in place of those from cache sizes: `PATTERN: rows=16 gemm/48`, the last of several that match; `;` between them."]
        pub choose: Overrides = Overrides::default(),
        #[doc = "Blockings that were measured to be faster for weights of a shape, in the form of `ixc kernel tune`; `;` between several."]
        pub tuned: TunedChoices = TunedChoices::default(),
        #[doc = "Number of work items that a product of few rows should have for many threads. If a weight has fewer items, they may be split into bands; 0 turns bands off."]
        pub items: u64 = FEW_ROWS_ITEMS,
        #[doc = "Min bytes of weights of a band."]
        pub band_bytes: u64 = MIN_BAND_BYTES,
    }
}

/// Minimum number of items of a product with one row, so that several threads have work.
const MIN_ITEMS: u64 = 16;
/// Items of a product of few rows: 8 for each of 32 threads. One more item then makes a thread at
/// most an eighth slower. With 64 items, 15 threads would take as long as 13.
const FEW_ROWS_ITEMS: u64 = 256;
/// Min bytes of weights of a band: a thread that shares memory with 15 others reads them in 2 µs,
/// and a kernel call takes 0.1 µs.
const MIN_BAND_BYTES: u64 = 16 << 10;
/// Kernel for few rows, the only one whose items can be divided into bands.
const BANDED: MatmulStrategy = MatmulStrategy::Gemv;

/// Limits for the division of items into bands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    /// Number of items below which items are divided into bands.
    items: u64,
    /// Minimum number of bytes of a band.
    band_bytes: u64,
}

impl TileOptions {
    fn limits(&self) -> Limits {
        Limits { items: self.items, band_bytes: self.band_bytes }
    }
}

/// Runs the pass.
///
/// # Errors
/// A [`TileError`] of an override or a tuned choice.
pub fn run(mut module: Module, context: &Context<'_>) -> Result<Module, PassError> {
    let options: TileOptions = context.options.get();
    let (Overrides(overrides), limits, caches) = (&options.choose, options.limits(), &context.caches);
    let roles = roles(&module);
    for each in overrides {
        if !roles.keys().any(|w| matches(&each.pattern, &module.weights[w.index()].name)) {
            // Patterns match names without the `@` of IR text.
            let names = roles.keys().map(|w| module.weights[w.index()].name.clone());
            let more = if roles.len() > 8 { format!(" and {} more", roles.len() - 8) } else { String::new() };
            let known = names.take(8).collect::<Vec<_>>().join(", ") + &more;
            return Err(TileError::NoWeight { pattern: each.pattern.clone(), known }.into());
        }
    }
    // Equal weights have one decision, so the choice is made once: a model has equal weights in
    // each layer.
    let mut decided: HashMap<candidates::Weight, WeightBlocking> = HashMap::new();
    for (&w, role) in &roles {
        // The override of a gate also applies to its up projection.
        let name = |w: WeightId| module.weights[w.index()].name.as_str();
        let asked = overrides.iter().rev().find(|each| matches(&each.pattern, name(role.cut_as)));
        let weight = &module.weights[w.index()];
        if asked.is_none() && weight.choice.tile.is_some() {
            continue;
        }
        let Some(offer) = kernel_weight(&module, role) else { continue };
        let decision = match asked {
            Some(asked) => {
                let cut = WeightBlocking::requested_blocking(&offer, asked, name(role.cut_as), context, limits)?;
                context.decide(|| {
                    let rows = item_rows(&offer, context.target);
                    let own = WeightBlocking::cheapest(&offer, &rows, context.target, caches, limits, false).tiling;
                    let rejected = (own != cut.tiling)
                        .then(|| RejectedAlternative::new(own.to_string(), "the user requested another tiling"));
                    let decision = Decision::new("weight", &weight.name, "tiling").chose(cut.tiling.to_string());
                    decision.since(&cut.why).over_all(rejected)
                });
                cut
            }
            None => match decided.get(&offer) {
                Some(cut) => cut.clone(),
                None => {
                    let tuned: Vec<&TunedChoice> = options.tuned.0.iter().filter(|each| each.weight == offer).collect();
                    let (name, records_decisions) = (name(role.cut_as), context.records_decisions());
                    let cut = WeightBlocking::tuned_blocking(
                        &offer,
                        &tuned,
                        name,
                        context.target,
                        caches,
                        limits,
                        records_decisions,
                    )?;
                    decided.entry(offer).or_insert(cut).clone()
                }
            },
        };
        for part in &decision.decisions {
            context.decide(|| Decision { name: weight.name.clone(), ..part.clone() });
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
    let limits = TileOptions::default().limits();
    let WeightBlocking { tiling, why, .. } =
        WeightBlocking::cheapest(weight, &item_rows(weight, target), target, caches, limits, false);
    (tiling, why)
}

/// Returns the blocking from cache sizes for items of `rows` weight rows.
pub fn by_caches_of(weight: &candidates::Weight, rows: u64, target: Target, caches: &CoreCaches) -> Tiling {
    WeightBlocking::cheapest(weight, &[rows], target, caches, TileOptions::default().limits(), false).tiling
}

/// Whether tuned choices can all be applied together to a weight, with the default options.
pub fn accepts(weight: &candidates::Weight, choices: &[&TunedChoice], target: Target, caches: &CoreCaches) -> bool {
    WeightBlocking::tuned_blocking(weight, choices, "", target, caches, TileOptions::default().limits(), false).is_ok()
}

/// Prefix of the reason (`why`) of a weight with a tuned blocking.
pub const TUNED: &str = "tuned: ";

/// Properties of a weight that follow from the products that read it.
#[derive(Clone, Copy, Debug)]
struct Role {
    /// The weight whose format and name determine the blocking: the weight itself, or the gate of
    /// an up projection.
    cut_as: WeightId,
    /// Number of weights that one kernel reads together.
    products: u32,
    /// Block length of the format of the products' results.
    block: u64,
    /// Elements of a block that can be quantised independently.
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

/// Returns the properties of a weight that kernels need; `None` for a weight that is not a matrix.
fn kernel_weight(module: &Module, role: &Role) -> Option<candidates::Weight> {
    let weight = &module.weights[role.cut_as.index()];
    let &[.., n, k] = &weight.shape[..] else { return None };
    let format: Format = weight.choice.layout.unwrap_or(weight.format);
    let x = weight.choice.activations.unwrap_or(format.activation());
    let Role { products, block, sub_block, .. } = *role;
    Some(candidates::Weight { format, x, n, k, products, block, sub_block })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::OptionValue;

    const WEIGHT: candidates::Weight = candidates::Weight {
        format: Format::Q4KR16,
        x: Format::A8Super,
        n: 2048,
        k: 2048,
        products: 1,
        block: 1,
        sub_block: 1,
    };

    fn blocking_text(weight: candidates::Weight, target: Target, caches: CoreCaches) -> String {
        WeightBlocking::cheapest(
            &weight,
            &item_rows(&weight, target),
            target,
            &caches,
            TileOptions::default().limits(),
            false,
        )
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
                            (item_rows(&weight, target), Limits { band_bytes: 0, ..TileOptions::default().limits() });
                        let tiling = WeightBlocking::cheapest(&weight, &rows, target, &caches, limits, false).tiling;
                        let end = tiling.place(n).unwrap().iter().fold(0, |at, placed| {
                            assert_eq!(placed.first, at, "n {n}");
                            assert_eq!(placed.part.rows % block, 0, "n {n}");
                            assert_eq!(placed.part.rows % format.rows() as u64, 0, "n {n}");
                            at + placed.part.rows * placed.columns
                        });
                        assert_eq!(end, n);
                        // `lower` parses the printed form.
                        assert_eq!(tiling.to_string().parse(), Ok(tiling));
                    }
                }
            }
        }
    }

    /// Checks the measured thresholds: unpacking is faster from 6 rows, and tile products from a
    /// block of 16 rows. Rows of activations stay in L2.
    #[test]
    fn kernels_switch_at_measured_row_counts() {
        for target in Target::all() {
            let tiles = target.isa().tile_registers > 0;
            let vectors = candidates::Weight { x: Format::A8Super, ..WEIGHT };
            let caches = target.row().caches();
            assert_eq!(blocking_text(vectors, target, caches), "rows=32 gemv<=5/5x16 gemm/96", "{target:?}");
            let pair = candidates::Weight { products: 2, block: 256, sub_block: 32, n: 5632, ..WEIGHT };
            assert_eq!(blocking_text(pair, target, caches), "rows=256 gemv<=5/5x32 gemm/48", "{target:?}");
            let bf16 = candidates::Weight { format: Format::Bf16R16, x: Format::Bf16x1, ..WEIGHT };
            assert_eq!(blocking_text(bf16, target, caches), "rows=32 gemv<=5/5x16 gemm/96", "{target:?}");
            if tiles {
                let wide = candidates::Weight { x: Format::A8SuperTile, ..WEIGHT };
                assert_eq!(blocking_text(wide, target, caches), "rows=64 gemv<=5/5x16 gemm<=15/15 tiles/256");
                let floats = candidates::Weight { format: Format::F16R16, x: Format::Bf16x2, ..WEIGHT };
                assert_eq!(blocking_text(floats, target, caches), "rows=64 gemv<=15/15x16 tiles/256");
                let few = candidates::Weight { n: 528, ..wide };
                assert_eq!(
                    blocking_text(few, target, caches),
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
        assert_eq!(blocking_text(long, zen4, caches(32, 4096, 0)), "rows=32 gemv<=5/5x16 gemm/96");
        assert_eq!(blocking_text(long, zen4, caches(32, 1024, 0)), "rows=32 gemv<=5/5x16 gemm/32");
        let tiles = candidates::Weight { x: Format::A8SuperTile, ..long };
        // The cache holds the rows of activations together with a panel of weights.
        assert_eq!(
            blocking_text(tiles, Target::AMX, caches(48, 8704, 0)),
            "rows=64 gemv<=5/5x16 gemm<=15/15 tiles/256"
        );
        assert_eq!(
            blocking_text(tiles, Target::AMX, caches(48, 8192, 0)),
            "rows=64 gemv<=5/5x16 gemm<=15/15 tiles/128"
        );
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
    fn bands_are_the_largest_that_give_enough_items() {
        let banded = |weight: candidates::Weight| blocking_text(weight, Target::AVX512, Target::AVX512.row().caches());
        // The first weight has 256 items without bands; the second has fewer, so it gets bands.
        assert_eq!(banded(candidates::Weight { n: 8192, ..WEIGHT }), "rows=32 gemv<=5/5 gemm/96");
        assert_eq!(banded(candidates::Weight { n: 8160, ..WEIGHT }), "rows=32 gemv<=5/5x16 gemm/96");
        // Bands of this matrix of an expert would have too few bytes.
        assert_eq!(banded(candidates::Weight { k: 768, ..WEIGHT }), "rows=32 gemv<=5/5 gemm/96");
        // Of all bands that give enough items, the one with the most weight rows is used.
        let wide = |n| {
            blocking_text(
                candidates::Weight { n, x: Format::A8SuperTile, ..WEIGHT },
                Target::AMX,
                Target::AMX.row().caches(),
            )
        };
        assert_eq!(wide(8192), "rows=64 gemv<=5/5x32 gemm<=15/15 tiles/256");
        assert_eq!(wide(16384), "rows=64 gemv<=5/5 gemm<=15/15 tiles/256");
        let pair = |n| candidates::Weight { n, products: 2, block: 256, sub_block: 32, ..WEIGHT };
        assert_eq!(banded(pair(8192)), "rows=256 gemv<=5/5x32 gemm/48");
        assert_eq!(banded(pair(32768)), "rows=256 gemv<=5/5x128 gemm/48");
    }

    /// Checks that tuned choices replace item widths, chunks and paces, but not the kernel for each
    /// number of rows. Choices that are not candidates are rejected.
    #[test]
    fn tuned_choices_are_candidates_or_refused() {
        let (target, caches) = (Target::AVX2, Target::AVX2.row().caches());
        let limits = TileOptions::default().limits();
        let decided = |texts: &[&str]| {
            let shape = "q4_k_r16 x=a8_super n=2048 k=2048: ";
            let choices: Vec<TunedChoice> =
                texts.iter().map(|text| format!("{shape}{text}").parse().unwrap()).collect();
            WeightBlocking::tuned_blocking(
                &WEIGHT,
                &choices.iter().collect::<Vec<_>>(),
                "w",
                target,
                &caches,
                limits,
                false,
            )
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
