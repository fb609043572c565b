//! A loaded plan that computes only layers of routed experts. Each layer can be called separately,
//! by engines that compute the rest of the model.
//!
//! ```text
//! run(3, rows, ids, weights) ─▶ for each row: sum of (weight x result) over its experts of layer 3
//! ```
//!
//! Ids equal to [`NO_EXPERT`] are skipped. If the experts are divided among several machines, the
//! caller sends each row to all machines and adds their results. If a row has no expert on this
//! machine, its result is 0, and nothing is computed for it.
//!
//! Invariant: a row's result does not depend on rows with other experts. With quantised weights, on
//! targets without AMX tiles, it depends on no other row.
//! Invariant: no kernel reads an expert unless an id names it.

use std::path::Path;
use std::sync::PoisonError;
use std::time::Instant;

use ixc_failure::Class;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{BufferId, NO_EXPERT, Output, Plan};

use crate::execute::{self, ExecuteError};
use crate::executor::sequences::Piece;
use crate::experts::Experts;
use crate::file::PlanFile;
use crate::load::{self, LoadError, LoadedPlan};
use crate::options::EngineOptions;
use crate::program::Layer;
use crate::stats::Stats;
use crate::storage::memory::Region;
use crate::streaming::store;

/// Rows of hidden states, concatenated.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'r> {
    /// 32-bit floats, the type of the computation.
    F32(&'r [f32]),
    /// Bit patterns of bfloat16.
    Bf16(&'r [u16]),
}

impl Rows<'_> {
    /// Returns the number of elements of all rows.
    pub fn len(&self) -> usize {
        match self {
            Rows::F32(rows) => rows.len(),
            Rows::Bf16(rows) => rows.len(),
        }
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends row `at` of `width` elements to `to`. Appends nothing if the row does not exist.
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

/// The reason why a layer's result was not computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LayerError {
    /// The layer has no routed experts, or does not exist.
    #[error("layer {layer} has no routed experts; layers with routed experts are {}", list(.layers))]
    NoLayer {
        /// Number of the layer.
        layer: u32,
        /// Numbers of the layers with routed experts.
        layers: Vec<u32>,
    },
    /// The length of a slice does not match the number of ids.
    #[error("found {found} {what} for {rows} rows; expected {expected} for each row")]
    Length {
        /// Name of the slice in error messages.
        what: &'static str,
        /// Number of elements in the slice.
        found: usize,
        /// Number of rows, computed from the number of ids.
        rows: usize,
        /// Elements expected for each row.
        expected: u32,
    },
    /// The number of ids is not a multiple of the number of ids per row.
    #[error("found {found} ids; expected a multiple of {used}, the ids of a row")]
    Ids {
        /// Number of ids.
        found: usize,
        /// Number of ids that each row must have.
        used: u32,
    },
    /// An id does not name an expert of the layer.
    #[error("id {slot} of row {row} is {id}; expected an expert from 0 to {}, or {NO_EXPERT} for no expert", .experts - 1)]
    Expert {
        /// Number of the row.
        row: usize,
        /// Position of the id in its row.
        slot: usize,
        /// The id that is out of range.
        id: i32,
        /// Number of experts of the layer.
        experts: u32,
    },
    /// A weight of an expert is NaN or infinite.
    #[error("weight {slot} of row {row} is {weight}; expected a finite number")]
    Weight {
        /// Number of the row.
        row: usize,
        /// Position of the weight in its row.
        slot: usize,
        /// The weight that is not finite.
        weight: f32,
    },
    /// The computation failed: experts cannot be read, the plan is wrong, or the runtime has a bug.
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

/// A loaded plan that computes only layers of routed experts.
#[derive(Debug)]
pub struct ExpertLayers {
    loaded: LoadedPlan,
}

impl ExpertLayers {
    /// Loads a plan of expert layers. The options for sequences, contexts and additions have no
    /// effect. See also [`Engine::load`](crate::engine::Engine::load).
    ///
    /// # Errors
    /// See [`LoadError`]; [`LoadError::NoLayers`] if the plan is of a whole model.
    pub fn load(plan: Plan<Kernel>, folder: &Path, options: &EngineOptions) -> Result<ExpertLayers, LoadError> {
        ExpertLayers::load_file(PlanFile::new(plan), folder, options)
    }

    /// Loads a plan of expert layers whose weights may be in the plan file. See also
    /// [`Engine::load_file`](crate::engine::Engine::load_file).
    ///
    /// # Errors
    /// See [`ExpertLayers::load`].
    pub fn load_file(file: PlanFile, folder: &Path, options: &EngineOptions) -> Result<ExpertLayers, LoadError> {
        match file.plan.output {
            Output::Experts { .. } => Ok(ExpertLayers { loaded: load::load(file, folder, options, None)? }),
            Output::Logits { .. } | Output::Hidden { .. } => Err(LoadError::NoLayers),
        }
    }

    /// Returns the loaded layers, in the model's order.
    pub fn layers(&self) -> &[Layer] {
        &self.loaded.program.layers
    }

    /// Returns a layer by its number in the model.
    ///
    /// # Errors
    /// [`LayerError::NoLayer`] if the layer does not exist or has no routed experts.
    pub fn layer(&self, layer: u32) -> Result<&Layer, LayerError> {
        let layers = self.layers();
        let found = layers.iter().find(|found| found.number == layer);
        found.ok_or_else(|| LayerError::NoLayer { layer, layers: layers.iter().map(|layer| layer.number).collect() })
    }

    /// Checks the arguments of [`ExpertLayers::run`], and returns the number of rows.
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
            if id == NO_EXPERT {
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

    /// Returns, for each row, the sum of its experts' outputs, each multiplied by the expert's
    /// weight for the row. A row of the result has `width` elements. Each row has `used` ids and as
    /// many weights. If there are more rows than a step of the plan allows, they are computed in
    /// several steps.
    ///
    /// # Errors
    /// See [`LayerError`]. If an argument is wrong, nothing is computed.
    pub fn run(&mut self, layer: u32, rows: Rows<'_>, ids: &[i32], weights: &[f32]) -> Result<Vec<f32>, LayerError> {
        let layer = self.layer(layer)?.clone();
        let count = ExpertLayers::check(&layer, rows, ids, weights)?;
        let (width, used) = (layer.width as usize, layer.used as usize);
        let mut sums = vec![0.0; count * width];
        // The results of rows without an expert on this machine are 0 already.
        let own: Vec<usize> =
            (0..count).filter(|&row| ids[row * used..][..used].iter().any(|&id| id != NO_EXPERT)).collect();
        let (mut own_rows, mut own_ids, mut own_weights) = (Vec::new(), Vec::new(), Vec::new());
        for some in own.chunks(self.loaded.program.max_tokens as usize) {
            own_rows.clear();
            own_ids.clear();
            own_weights.clear();
            for &row in some {
                rows.push(row, width, &mut own_rows);
                let slots = row * used..(row + 1) * used;
                own_ids.extend_from_slice(&ids[slots.clone()]);
                let weight = |(&id, &weight): (&i32, &f32)| if id == NO_EXPERT { 0.0 } else { weight };
                own_weights.extend(ids[slots.clone()].iter().zip(&weights[slots]).map(weight));
            }
            self.run_some(&layer, &own_rows, &own_ids, &own_weights)?;
            let found = self.region(layer.result, some.len() as u64 * u64::from(layer.width))?;
            // SAFETY: the region lies in the arena, a mapping that is initialised, at a multiple of
            // 4 (the program's check). Every bit pattern is a float. Nothing else uses the arena
            // while the engine is borrowed exclusively.
            let found = unsafe { std::slice::from_raw_parts(found.base().cast::<f32>(), some.len() * width) };
            for (&row, found) in some.iter().zip(found.chunks_exact(width)) {
                sums[row * width..][..width].copy_from_slice(found);
            }
        }
        Ok(sums)
    }

    /// Runs a layer's stages on rows that have at least one expert each.
    fn run_some(&mut self, layer: &Layer, rows: &[f32], ids: &[i32], weights: &[f32]) -> Result<(), ExecuteError> {
        let count = (ids.len() / layer.used.max(1) as usize) as u32;
        for (buffer, bytes, words) in [
            (layer.rows, rows.as_ptr().cast::<u8>(), rows.len()),
            (layer.ids, ids.as_ptr().cast(), ids.len()),
            (layer.weights, weights.as_ptr().cast(), weights.len()),
        ] {
            let to = self.region(buffer, words as u64)?;
            // SAFETY: the region lies in the arena and has as many bytes as are copied. Nothing
            // else uses the arena while the engine is borrowed exclusively. The sources are slices
            // of the same lengths.
            unsafe { to.base().copy_from_nonoverlapping(bytes, words * 4) };
        }
        let pieces = [Piece { rows: count, ..Piece::default() }];
        let (begin, threads) = (Instant::now(), self.loaded.pool.threads());
        execute::run(
            &self.loaded.program,
            &self.loaded.backend,
            &mut self.loaded.store,
            &mut self.loaded.pool,
            execute::PassParams {
                pieces: &pieces,
                exact: self.loaded.exact_batch,
                stages: layer.stages.clone(),
                threads,
                clocks: &self.loaded.clocks,
                watchdog: self.loaded.watchdog.as_ref(),
            },
        )?;
        self.loaded.expert_counts.add(count, &mut self.loaded.store.buckets);
        // A later run of another layer would not clear the buckets of this layer, so they are
        // cleared now.
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

    /// Returns the memory region of the first `words` 32-bit words of a buffer.
    fn region(&self, buffer: BufferId, words: u64) -> Result<Region, ExecuteError> {
        let of = self.loaded.program.buffers.get(buffer.0 as usize);
        let region = of.and_then(|of| self.loaded.store.arena.region().part(of.offset, words.checked_mul(4)?));
        // The program's check found the buffer inside the arena.
        region.ok_or_else(|| ExecuteError::Panic { message: "a buffer outside the arena".to_string() })
    }

    /// Returns how often each expert of each layer was chosen.
    pub fn expert_counts(&self) -> &crate::expert_counts::ExpertCounts {
        &self.loaded.expert_counts
    }

    /// Returns the expert cache, if experts are streamed.
    pub fn stream(&self) -> Option<&store::ExpertCache> {
        self.loaded.store.experts.as_ref().map(Experts::store)
    }

    /// Returns the time statistics since the plan was loaded.
    pub fn stats(&self) -> &Stats {
        &self.loaded.stats
    }
}
