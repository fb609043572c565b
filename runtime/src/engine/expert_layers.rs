//! A loaded plan of experts: layers that are run on their own, for engines that have a model's other parts.
//!
//! ```text
//! run(3, rows, ids, weights) ─▶ for each row the sum over its experts of layer 3, each times its weight
//! ```
//!
//! Ids of [`NOBODY`] are left out: rows whose experts lie on several machines go to all of them, and what they give is added. A row that has no expert here
//! is 0, and nothing is computed of it.
//!
//! Invariant: what a row gives does not depend on rows beside it that have other experts; nor, of quantised weights on targets without tiles, on any.
//! Invariant: no kernel reads an expert that no id names.

use std::path::Path;
use std::sync::PoisonError;
use std::time::Instant;

use ixc_failure::Class;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{BufferId, NOBODY, Output, Plan};

use crate::execute::{self, ExecuteError};
use crate::executor::sequences::Piece;
use crate::experts::Experts;
use crate::file::PlanFile;
use crate::load::{self, LoadError, Loaded};
use crate::memory::Region;
use crate::options::Options;
use crate::program::Layer;
use crate::stats::Stats;
use crate::stream::store;

/// Hidden rows, one behind the other.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'r> {
    /// As they are computed with.
    F32(&'r [f32]),
    /// The upper halves of f32.
    Bf16(&'r [u16]),
}

impl Rows<'_> {
    /// Numbers of all rows.
    pub fn len(&self) -> usize {
        match self {
            Rows::F32(rows) => rows.len(),
            Rows::Bf16(rows) => rows.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Row `at`, of `width` numbers, behind what `to` has; nothing where it is not there.
    fn push(&self, at: usize, width: usize, to: &mut Vec<f32>) {
        let range = at * width..(at + 1) * width;
        match self {
            Rows::F32(rows) => to.extend(rows.get(range).unwrap_or_default()),
            Rows::Bf16(rows) => {
                let float = |&bits: &u16| f32::from_bits(u32::from(bits) << 16);
                to.extend(rows.get(range).unwrap_or_default().iter().map(float));
            }
        }
    }
}

/// Why rows were not computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LayerError {
    /// A layer without routed experts, or none of the model's.
    #[error("layer {layer} has no routed experts; layers that have are {}", list(.layers))]
    NoLayer {
        /// Its number.
        layer: u32,
        /// Those that have.
        layers: Vec<u32>,
    },
    /// Numbers that are not as many as the ids say.
    #[error("{found} {what} for {rows} rows; there are to be {expected} for each")]
    Length {
        /// What they are.
        what: &'static str,
        /// How many.
        found: usize,
        /// Rows, by the ids.
        rows: usize,
        /// How many a row has.
        expected: u32,
    },
    /// Ids that are no whole rows.
    #[error("{found} ids; a row has {used}")]
    Ids {
        /// How many.
        found: usize,
        /// How many a row has.
        used: u32,
    },
    /// An id that is no expert.
    #[error("id {slot} of row {row} is {id}; experts are 0 to {}, and {NOBODY} is none of these", .experts - 1)]
    Expert {
        /// The row.
        row: usize,
        /// Which of its ids.
        slot: usize,
        /// It.
        id: i32,
        /// How many experts there are.
        experts: u32,
    },
    /// A weight that is no number.
    #[error("weight {slot} of row {row} is {weight}; weights are to be finite")]
    Weight {
        /// The row.
        row: usize,
        /// Which of its weights.
        slot: usize,
        /// It.
        weight: f32,
    },
    /// Experts that cannot be read, a wrong plan, or a bug.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
}

impl LayerError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            LayerError::Execute(error) => error.class(),
            LayerError::NoLayer { .. }
            | LayerError::Length { .. }
            | LayerError::Ids { .. }
            | LayerError::Expert { .. }
            | LayerError::Weight { .. } => Class::Data,
        }
    }
}

fn list(layers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &layer in layers {
        match runs.last_mut().filter(|(_, last)| last.checked_add(1) == Some(layer)) {
            Some((_, last)) => *last = layer,
            None => runs.push((layer, layer)),
        }
    }
    let run =
        |&(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first} to {last}") };
    runs.iter().map(run).collect::<Vec<_>>().join(", ")
}

/// A loaded plan of experts.
#[derive(Debug)]
pub struct ExpertLayers {
    loaded: Loaded,
}

impl ExpertLayers {
    /// As [`Engine::load`](crate::engine::Engine::load). Sequences, contexts and additions have no meaning here.
    ///
    /// # Errors
    /// See [`LoadError`]; [`LoadError::NoLayers`] where the plan is a model's.
    pub fn load(plan: Plan<Kernel>, folder: &Path, options: &Options) -> Result<ExpertLayers, LoadError> {
        ExpertLayers::load_file(PlanFile { plan, weights: None }, folder, options)
    }

    /// As [`Engine::load_file`](crate::engine::Engine::load_file).
    ///
    /// # Errors
    /// As [`ExpertLayers::load`].
    pub fn load_file(file: PlanFile, folder: &Path, options: &Options) -> Result<ExpertLayers, LoadError> {
        match file.plan.output {
            Output::Experts { .. } => Ok(ExpertLayers { loaded: load::load(file, folder, options)? }),
            Output::Logits { .. } | Output::Hidden { .. } => Err(LoadError::NoLayers),
        }
    }

    /// The layers, in the model's order.
    pub fn layers(&self) -> &[Layer] {
        &self.loaded.program.layers
    }

    /// A layer by its number.
    ///
    /// # Errors
    /// [`LayerError::NoLayer`].
    pub fn layer(&self, layer: u32) -> Result<&Layer, LayerError> {
        let layers = self.layers();
        let found = layers.iter().find(|found| found.number == layer);
        found.ok_or_else(|| LayerError::NoLayer { layer, layers: layers.iter().map(|layer| layer.number).collect() })
    }

    /// Checks what [`ExpertLayers::run`] takes; gives how many rows there are.
    ///
    /// # Errors
    /// See [`LayerError`].
    pub fn check(layer: &Layer, rows: Rows<'_>, ids: &[i32], weights: &[f32]) -> Result<usize, LayerError> {
        let used = layer.used as usize;
        if !ids.len().is_multiple_of(used) {
            return Err(LayerError::Ids { found: ids.len(), used: layer.used });
        }
        let count = ids.len() / used;
        for (what, found, expected) in [("numbers", rows.len(), layer.width), ("weights", weights.len(), layer.used)] {
            if count.checked_mul(expected as usize) != Some(found) {
                return Err(LayerError::Length { what, found, rows: count, expected });
            }
        }
        for (at, (&id, &weight)) in ids.iter().zip(weights).enumerate() {
            let (row, slot) = (at / used, at % used);
            if id == NOBODY {
                continue;
            }
            if u32::try_from(id).is_ok_and(|id| id < layer.experts) {
                if weight.is_finite() {
                    continue;
                }
                return Err(LayerError::Weight { row, slot, weight });
            }
            return Err(LayerError::Expert { row, slot, id, experts: layer.experts });
        }
        Ok(count)
    }

    /// For each row the sum over its experts of a layer, each times its weight; `width` numbers of each row. Ids are `used` for each row, weights as many.
    /// More rows than the plan's steps have are taken in several.
    ///
    /// # Errors
    /// See [`LayerError`]; nothing is computed where something given is wrong.
    pub fn run(&mut self, layer: u32, rows: Rows<'_>, ids: &[i32], weights: &[f32]) -> Result<Vec<f32>, LayerError> {
        let layer = self.layer(layer)?.clone();
        let count = ExpertLayers::check(&layer, rows, ids, weights)?;
        let (width, used) = (layer.width as usize, layer.used as usize);
        let mut sums = vec![0.0; count * width];
        // Rows without an expert here are 0 already.
        let own: Vec<usize> =
            (0..count).filter(|&row| ids[row * used..][..used].iter().any(|&id| id != NOBODY)).collect();
        let (mut own_rows, mut own_ids, mut own_weights) = (Vec::new(), Vec::new(), Vec::new());
        for some in own.chunks(self.loaded.program.max_tokens as usize) {
            own_rows.clear();
            own_ids.clear();
            own_weights.clear();
            for &row in some {
                rows.push(row, width, &mut own_rows);
                let slots = row * used..(row + 1) * used;
                own_ids.extend_from_slice(&ids[slots.clone()]);
                let weight = |(&id, &weight): (&i32, &f32)| if id == NOBODY { 0.0 } else { weight };
                own_weights.extend(ids[slots.clone()].iter().zip(&weights[slots]).map(weight));
            }
            self.run_some(&layer, &own_rows, &own_ids, &own_weights)?;
            let found = self.region(layer.result, some.len() as u64 * u64::from(layer.width))?;
            // SAFETY: the region lies in the arena, a mapping that is initialised, at a multiple of 4 (the program's check); every pattern of bits is a
            // float. Nothing else uses the arena while the engine is borrowed exclusively.
            let found = unsafe { std::slice::from_raw_parts(found.base().cast::<f32>(), some.len() * width) };
            for (&row, found) in some.iter().zip(found.chunks_exact(width)) {
                sums[row * width..][..width].copy_from_slice(found);
            }
        }
        Ok(sums)
    }

    /// Runs a layer's stages on rows each of which has an expert.
    fn run_some(&mut self, layer: &Layer, rows: &[f32], ids: &[i32], weights: &[f32]) -> Result<(), ExecuteError> {
        let count = (ids.len() / layer.used.max(1) as usize) as u32;
        for (buffer, bytes, words) in [
            (layer.rows, rows.as_ptr().cast::<u8>(), rows.len()),
            (layer.ids, ids.as_ptr().cast(), ids.len()),
            (layer.weights, weights.as_ptr().cast(), weights.len()),
        ] {
            let to = self.region(buffer, words as u64)?;
            // SAFETY: the region has as many bytes, in the arena, which nothing else uses while the engine is borrowed exclusively; what is copied are
            // words of slices that are as long.
            unsafe { to.base().copy_from_nonoverlapping(bytes, words * 4) };
        }
        let pieces = [Piece { rows: count, ..Piece::default() }];
        let (begin, threads) = (Instant::now(), self.loaded.pool.threads());
        execute::run(
            &self.loaded.program,
            &self.loaded.backend,
            &mut self.loaded.store,
            (&mut self.loaded.pool, threads),
            (&pieces, self.loaded.exact_batch),
            layer.stages.clone(),
            &self.loaded.clocks,
        )?;
        self.loaded.expert_counts.add(count, &mut self.loaded.store.buckets);
        // Another layer's run leaves these as they are.
        for &routing in &layer.routings {
            if let Some(bucket) = self.loaded.store.buckets.get_mut(routing) {
                bucket.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
            }
        }
        self.loaded.stats.wall += begin.elapsed();
        self.loaded.stats.steps += 1;
        self.loaded.stats.thread_steps += threads as u64;
        self.loaded.stats.tokens += u64::from(count);
        Ok(())
    }

    /// The first words of a buffer.
    fn region(&self, buffer: BufferId, words: u64) -> Result<Region, ExecuteError> {
        let of = self.loaded.program.buffers.get(buffer.0 as usize);
        let region = of.and_then(|of| self.loaded.store.arena.region().part(of.offset, words.checked_mul(4)?));
        // The program's check says that it lies in the arena.
        region.ok_or_else(|| ExecuteError::Panic { message: "a buffer outside the arena".to_string() })
    }

    /// How often each expert was chosen.
    pub fn expert_counts(&self) -> &crate::expert_counts::ExpertCounts {
        &self.loaded.expert_counts
    }

    /// The weight store, where experts are streamed.
    pub fn stream(&self) -> Option<&store::ExpertCache> {
        self.loaded.store.experts.as_ref().map(Experts::store)
    }

    /// Where the time went so far.
    pub fn stats(&self) -> &Stats {
        &self.loaded.stats
    }
}
