//! The weights that follow a plan in its file: packing and writing them, and mapping them.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use ixc_runtime::{engine::{Engine, EngineOptions}, file};
//! # use std::path::Path;
//! # let plan = file::read(Path::new("small.ixp"))?;
//! // Weights that would be packed each time that the plan is loaded are packed once, and mapped from then on.
//! let (folder, options) = (Path::new("."), EngineOptions::default());
//! let written = file::weights::write(Path::new("model.ixp"), &plan, folder, &options, |_, _| ())?;
//! let engine = Engine::load_file(file::open(Path::new("model.ixp"))?, folder, &options)?;
//! # let _ = (written, engine); Ok(()) }
//! ```
//!
//! The experts of the plan's groups are written as blocks ([`crate::storage::blocks`]), contiguous
//! for each group. All other weights are written whole, also those of groups that blocks cannot
//! describe. If a run is killed, the next run continues its file ([`super::partial`]). The units of
//! that file are the whole weights and the blocks.
//!
//! Writing takes memory for [`CHUNK`] bytes of packed weights or for one block, independent of the
//! model's size.

use std::fs::File;
use std::path::{Path, PathBuf};

use ixc_files::changed::ChangedFile;
use ixc_files::{Guard, Output};
use ixc_ir::format::Format;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Plan, PlanWeight, WeightFile};

use super::partial::{self, Partial, Unit};
use super::{FileError, Header, payload};
use crate::error::load::LoadError;
use crate::model_files::open_files;
use crate::options::{self, EngineOptions};
use crate::plan_check;
use crate::pool::Pool;
use crate::program::{BlockPlace, Group};
use crate::progress::{Activity, ProgressCounter};
use crate::storage::blocks::{BLOCK_HEADER, BlockShape};
use crate::storage::memory::{Mapped, Memory, Region};
use crate::storage::pack::{self, ALIGNMENT, Job};
use crate::storage::weight_source::{DerivedTensors, WeightSource};
use crate::streaming::BlockId;

/// Maximum bytes that are packed before they are written. If one strip is longer, it is packed
/// alone.
pub const CHUNK: u64 = 64 << 20;

/// Bytes that are copied at a time, for a weight that is written unchanged.
const COPIED: u64 = 1 << 20;

/// Minimum number of batches that a file is written in. A killed run loses at most one batch.
const BATCHES: u64 = 16;

/// The weights that follow a plan in its file.
#[derive(Debug)]
pub struct OwnWeights {
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// CRC-32 of each weight that is not in blocks, in the order of the plan.
    pub(super) checksums: Vec<u32>,
}

/// Location of the weights that follow a plan in its file.
#[derive(Clone, Debug)]
pub struct WeightsPlace {
    /// Path of the plan file.
    pub path: PathBuf,
    /// Offset of the weights in the file.
    pub offset: u64,
}

impl OwnWeights {
    /// Returns the path of the plan file, and the offset of its weights.
    pub fn place(&self) -> WeightsPlace {
        WeightsPlace { path: self.path.clone(), offset: self.offset }
    }

    /// Maps the weights into memory.
    pub(crate) fn map(&self) -> Result<Mapped, LoadError> {
        let mapped = Mapped::part_of(&self.file, &self.path, self.offset, self.bytes);
        mapped.map_err(|source| LoadError::ModelFile { path: self.path.clone(), source })
    }

    /// Reads all weights in the plan file that are not streamed, and compares their checksums.
    /// `weights` are all weights of the plan, and `groups` are its groups of experts.
    pub(crate) fn check(
        &self,
        mapped: &Mapped,
        weights: &[PlanWeight],
        groups: &[Group],
        streamed: &dyn Fn(usize) -> bool,
        pool: &mut Pool,
        progress: Option<&ProgressCounter>,
    ) -> Result<(), LoadError> {
        // Opening the file checked that it has a checksum for each weight. `Program::new` checked
        // that each weight lies inside the file.
        let whole = weights.iter().enumerate().filter(|(_, weight)| weight.file == WeightFile::Plan);
        let whole: Vec<_> = whole.zip(&self.checksums).filter(|((number, _), _)| !streamed(*number)).collect();
        let region = mapped.region();
        let mut regions: Vec<_> =
            whole.iter().filter_map(|((_, weight), _)| region.part(weight.offset, weight.bytes)).collect();
        let mut blocks = Vec::new();
        for (number, group) in (0u32..).zip(groups) {
            let resident = !group.weights.iter().any(|&weight| streamed(weight as usize));
            let Some(place) = group.blocks.as_ref().filter(|_| resident) else { continue };
            for expert in 0..group.experts {
                let block = region.part(place.block(expert), place.shape.bytes()).ok_or(LoadError::NoWeights)?;
                let payload = block.bytes().checked_sub(BLOCK_HEADER).and_then(|bytes| block.part(BLOCK_HEADER, bytes));
                regions.push(payload.ok_or(LoadError::NoWeights)?);
                blocks.push((BlockId { group: number, expert }, &place.shape, block));
            }
        }
        let total = regions.iter().fold(0, |sum: u64, region| sum.saturating_add(region.bytes()));
        progress.iter().for_each(|progress| progress.begin(Activity::Checking, total));
        let done = |bytes| progress.iter().for_each(|progress| progress.add(bytes));
        let found = pack::checksums(&regions, pool, &done).map_err(|source| LoadError::Pack { source })?;
        for (((_, weight), expected), &found) in whole.iter().zip(&found) {
            if found != **expected {
                let (path, name) = (self.path.clone(), weight.name.clone());
                return Err(LoadError::DamagedWeight { path, name, found, expected: **expected });
            }
        }
        for ((block, shape, region), &crc) in blocks.into_iter().zip(found.iter().skip(whole.len())) {
            let mut header = [0; BLOCK_HEADER as usize];
            // SAFETY: a block is longer than its header. The header is copied, since a mapped file
            // may change and must not be borrowed.
            unsafe { header.as_mut_ptr().copy_from_nonoverlapping(region.base(), header.len()) };
            shape.check(&self.path, block, &header, crc)?;
        }
        Ok(())
    }
}

/// A weight or block whose bytes are written as one unit of the file.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// A whole weight, by its position in the plan's weights.
    Weight(usize),
    /// The block of one expert.
    Block(BlockId),
}

/// The layout of the weights that follow a plan in its file.
struct Layout {
    /// The plan, with the new offsets of its weights.
    plan: Plan<Kernel>,
    /// Location of the blocks of each group; `None` for a group whose weights are written whole.
    groups: Vec<Option<BlockPlace>>,
    /// The weights and blocks in the order of writing, each with its unit of the file. Offsets
    /// count from the first byte of the weights.
    work: Vec<(Work, Unit)>,
}

/// Selection of the weights that are written into the plan file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contents {
    /// Expert blocks, and the weights that loading would otherwise pack. All other weights stay in
    /// the model file, so a run needs the model file.
    #[default]
    Packed,
    /// All weights, so a run needs no model file.
    All,
}

fn layout(plan: &Plan<Kernel>, contents: Contents) -> Layout {
    let shape = |group: &ixc_ir::plan::ExpertGroup| {
        let weights = group.weights.iter().filter_map(|&weight| plan.weights.get(weight as usize));
        BlockShape::new(weights)
    };
    let shapes: Vec<_> = plan.expert_groups.iter().map(shape).collect();
    let mut in_block = vec![false; plan.weights.len()];
    for (group, _) in plan.expert_groups.iter().zip(&shapes).filter(|(_, shape)| shape.is_some()) {
        // `Program::new` checked that these weights exist.
        group.weights.iter().for_each(|&weight| in_block[weight as usize] = true);
    }
    // Derived tensors are also written, so that they are converted only once.
    let made = |weight: &PlanWeight| weight.is_packed_at_load() || matches!(weight.file, WeightFile::Derived(_));
    let wanted = |weight: &PlanWeight| contents == Contents::All || made(weight);
    let whole = |&i: &usize| wanted(&plan.weights[i]) && !in_block[i];
    let packed: Vec<_> = (0..plan.weights.len()).filter(whole).collect();
    let bytes = |weight: &PlanWeight| weight.bytes_in(weight.format).unwrap_or(u64::MAX);
    let (offsets, mut end) = pack::layout(packed.iter().map(|&i| bytes(&plan.weights[i])));
    let (mut written, mut work) = (plan.clone(), Vec::new());
    let mut place = |i: usize, file, offset| {
        let weight = &mut written.weights[i];
        (weight.bytes, weight.stored, weight.file, weight.offset) = (bytes(weight), weight.format, file, offset);
        weight.bytes
    };
    for (&i, at) in packed.iter().zip(offsets) {
        work.push((Work::Weight(i), Unit { at, bytes: place(i, WeightFile::Plan, at) }));
    }
    let mut groups = Vec::with_capacity(shapes.len());
    for ((number, group), shape) in (0u32..).zip(&plan.expert_groups).zip(shapes) {
        let place_of = |shape| BlockPlace { shape, first: end };
        let found = shape.map(place_of);
        if let Some(blocks) = &found {
            let stride = blocks.shape.stride();
            for (&weight, part) in group.weights.iter().zip(&blocks.shape.parts) {
                place(weight as usize, WeightFile::Blocks { stride }, blocks.first.saturating_add(part.offset));
            }
            let unit = |expert| Unit { at: blocks.block(expert), bytes: stride };
            work.extend(
                (0..group.experts).map(|expert| (Work::Block(BlockId { group: number, expert }), unit(expert))),
            );
            end = blocks.block(group.experts);
        }
        groups.push(found);
    }
    written.own_weight_bytes = end;
    if contents == Contents::All {
        written.files.clear();
    }
    written.derived.clear();
    Layout { plan: written, groups, work }
}

/// Packs the weights of `plan` that loading would pack, and its groups of experts, and writes the
/// plan file with them. Returns the plan as it is in the file. Relative paths in the plan are
/// relative to `folder`. Only the options for threads and the built-in file have an effect.
/// `progress` receives the bytes written so far and the total. If the unfinished file of an earlier
/// run is continued, the first call reports its bytes.
///
/// # Errors
/// Fails if the plan is wrong or cannot be loaded, or if the file cannot be written. Also fails if
/// a model file is missing, is not the plan's, or changes meanwhile. The next call with the same
/// plan and model files continues the unfinished file.
pub fn write(
    path: &Path,
    plan: &Plan<Kernel>,
    folder: &Path,
    options: &EngineOptions,
    progress: impl FnMut(u64, u64),
) -> Result<Plan<Kernel>, FileError> {
    let output = Output::open(path, &Guard::replacing(&super::KIND))?;
    write_to(output, plan, folder, &[], options, Contents::Packed, progress)
}

/// Writes a plan file like [`write()`], with the weights that `contents` selects, to an output that
/// was opened before the plan was made. The output must not be one of the plan's model files.
/// Relative paths in the plan are relative to `folder`. `model_files` are the model files that are
/// already open, by number; the missing ones are opened.
///
/// # Errors
/// See [`write()`].
pub fn write_to(
    mut output: Output,
    plan: &Plan<Kernel>,
    folder: &Path,
    model_files: &[Option<File>],
    options: &EngineOptions,
    contents: Contents,
    mut progress: impl FnMut(u64, u64),
) -> Result<Plan<Kernel>, FileError> {
    for source in &plan.files {
        output.reads(&folder.join(&source.path))?;
    }
    plan_check::check(plan).map_err(file_error)?;
    if plan.own_weight_bytes > 0 {
        return Err(file_error(LoadError::NoWeights));
    }
    let files = open_files(plan, model_files, folder, options).map_err(file_error)?;
    let sources = ModelFiles { files: &files, derived_tensors: DerivedTensors::new(&plan.derived, &files) };
    let Layout { plan: written, groups, work } = layout(plan, contents);
    if work.is_empty() {
        super::put(output, plan)?;
        return Ok(written);
    }
    let (mut pool, _) = options::pool(options).map_err(file_error)?;
    let payload = payload(&written)?;
    let whole = work.iter().filter(|(work, _)| matches!(work, Work::Weight(_))).count();
    let mut header = Header {
        followers: 0,
        payload_crc: crc32fast::hash(&payload),
        payload: payload.len() as u64,
        weights: written.own_weight_bytes,
        count: whole as u32,
        checksums_crc: 0,
    };
    let weights_at = header.weights_at();
    let unit = |unit: &Unit| Unit { at: weights_at.saturating_add(unit.at), bytes: unit.bytes };
    let units = work.iter().map(|(_, place)| unit(place)).collect();
    let total: u64 = work.iter().map(|(_, unit)| unit.bytes).sum();
    let batch = (total / BATCHES).clamp(1, CHUNK);
    let place = output.into_place()?;
    let secret = partial::secret_or_new();
    let secret = secret.map_err(|source| FileError::Io { path: place.given_path().into(), action: "write", source })?;
    let mut partial =
        Partial::open(place, &secret, &identity(plan, &files), &payload, units, header.file_bytes(), batch)?;
    let (mut done, mut memory) = (partial.done_bytes(), None);
    if done > 0 {
        progress(done, total);
    }
    while let Some((first, place)) = work.get(partial.done().len()) {
        match *first {
            Work::Weight(weight) => {
                let (mut hasher, mut at) = (crc32fast::Hasher::new(), weights_at + place.at);
                chunks(&plan.weights[weight], &sources, &mut pool, |part| {
                    hasher.update(part);
                    partial.write(at, part)?;
                    at += part.len() as u64;
                    done += part.len() as u64;
                    progress(done, total);
                    Ok(())
                })?;
                partial.finish(hasher.finalize())?;
            }
            Work::Block(block) => {
                let group = &plan.expert_groups[block.group as usize];
                let shape = groups.get(block.group as usize).and_then(|blocks| Some(&blocks.as_ref()?.shape));
                let shape = shape.ok_or_else(|| file_error(LoadError::NoWeights))?;
                // One batch packs at least one expert and at most all remaining experts.
                let max = (batch / shape.stride()).clamp(1, u64::from(group.experts - block.expert)) as u32;
                let weights = group.weights.iter().filter_map(|&weight| plan.weights.get(weight as usize));
                let source = Source { weights: weights.collect(), experts: group.experts, files: &sources };
                let (packed, checksums) = pack_blocks(shape, block, max, &source, &mut memory, &mut pool)?;
                // SAFETY: `packed` lies in `memory`, which is mapped and so initialised, and which
                // is not written before the next iteration.
                let bytes = unsafe { std::slice::from_raw_parts(packed.base(), packed.bytes() as usize) };
                partial.write(weights_at + place.at, bytes)?;
                checksums.into_iter().try_for_each(|crc| partial.finish(crc))?;
                done += bytes.len() as u64;
                progress(done, total);
            }
        }
    }
    let checksums: Vec<u8> = partial.done().iter().take(whole).flat_map(|crc| crc.to_le_bytes()).collect();
    header.checksums_crc = crc32fast::hash(&checksums);
    if let Err(changed) = check_unchanged(plan, folder, &files) {
        // Some weights may be packed from bytes before the change and others from bytes after it.
        // So the next run must not continue the file.
        partial.discard();
        return Err(file_error(LoadError::Stream(Box::new(changed.into()))));
    }
    partial.seal(&header.encode(), &checksums)?;
    Ok(written)
}

fn file_error(error: LoadError) -> FileError {
    FileError::Source(Box::new(error))
}

/// Returns bytes that identify the model files of a run: their modification times when they were
/// mapped, their lengths, and the checksums of their headers. Lengths and checksums come from
/// `plan`, because a plan that is written with all its weights lists no files.
fn identity(plan: &Plan<Kernel>, files: &[Mapped]) -> Vec<u8> {
    let changed = |file: &Mapped| file.identity().map_or([0; 2], |identity| identity.modification_time());
    let changed = files.iter().flat_map(changed).flat_map(i64::to_le_bytes);
    let named = plan.files.iter().flat_map(|file| [file.bytes, file.header_bytes, file.header_crc.into()]);
    changed.chain(named.flat_map(u64::to_le_bytes)).collect()
}

/// Checks that the paths in the plan still name the mapped model files, and that these files are
/// unchanged.
fn check_unchanged(plan: &Plan<Kernel>, folder: &Path, files: &[Mapped]) -> Result<(), ChangedFile> {
    let mapped = plan.files.iter().zip(files).filter_map(|(file, mapped)| Some((file, mapped.identity()?)));
    mapped.into_iter().try_for_each(|(file, identity)| identity.check(&folder.join(&file.path)))?;
    files.iter().try_for_each(Mapped::check_unchanged)
}

/// The weights from which the blocks of a group are packed.
struct Source<'a> {
    weights: Vec<&'a PlanWeight>,
    experts: u32,
    files: &'a ModelFiles<'a>,
}

/// The mapped model files, and the readers of tensors derived from them.
struct ModelFiles<'a> {
    files: &'a [Mapped],
    derived_tensors: DerivedTensors,
}

impl ModelFiles<'_> {
    /// Returns the source of `bytes` bytes of a weight as stored, from `offset` on. Returns `None`
    /// if they lie outside the file.
    fn source(&self, weight: &PlanWeight, offset: u64, bytes: u64) -> Option<WeightSource> {
        match weight.file {
            WeightFile::Source(file) => {
                let region = self.files.get(file as usize)?.region();
                region.part(weight.offset.checked_add(offset)?, bytes).map(WeightSource::Mapped)
            }
            WeightFile::Derived(number) => self.derived_tensors.part(number, offset, bytes),
            WeightFile::Plan | WeightFile::Blocks { .. } => None,
        }
    }

    /// Releases the memory of mapped pages that were read through a source from
    /// [`ModelFiles::source`].
    fn release(&self, weight: &PlanWeight, stored: &WeightSource, offset: u64, bytes: u64) {
        stored.release(self.files);
        if let WeightFile::Source(file) = weight.file
            && let Some(file) = self.files.get(file as usize)
        {
            file.release(weight.offset + offset, bytes);
        }
    }
}

/// Packs the blocks of `count` experts, beginning with expert `first`, into `memory`. If `memory`
/// is too small, it is replaced. Returns the region of the blocks, and one checksum for each block,
/// which includes the padding after it.
fn pack_blocks(
    shape: &BlockShape,
    first: BlockId,
    count: u32,
    source: &Source<'_>,
    memory: &mut Option<Memory>,
    pool: &mut Pool,
) -> Result<(Region, Vec<u32>), FileError> {
    let wrong = || file_error(LoadError::NoWeights);
    let stride = shape.stride();
    let bytes = stride.saturating_mul(count.into());
    let memory = match memory.take().filter(|memory| memory.region().bytes() >= bytes) {
        Some(kept) => memory.insert(kept),
        None => memory.insert(Memory::zeroed("packed experts", bytes, true).map_err(|error| file_error(error.into()))?),
    };
    let packed = memory.region().part(0, bytes).ok_or_else(wrong)?;
    // The padding between the matrices of a block must be 0, so older bytes in the memory are
    // cleared.
    //
    // SAFETY: the region lies in `memory`, which nothing else uses.
    unsafe { packed.base().write_bytes(0, packed.bytes() as usize) };
    let checksums = |regions: &[Region], pool: &mut Pool| {
        pack::checksums(regions, pool, &|_| ()).map_err(|source| file_error(LoadError::Pack { source }))
    };
    let (mut jobs, mut payloads, mut blocks, mut read) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for i in 0..u64::from(count) {
        let block = packed.part(i * stride, stride).ok_or_else(wrong)?;
        for (weight, part) in source.weights.iter().zip(&shape.parts) {
            let stored = weight.bytes / u64::from(source.experts.max(1));
            let offset = stored * (u64::from(first.expert) + i);
            let from = source.files.source(weight, offset, stored);
            let (from, to) = from.zip(block.part(part.offset, part.bytes)).ok_or_else(wrong)?;
            read.push((*weight, from.clone(), offset, stored));
            if weight.is_packed_at_load() {
                jobs.push(Job::new(weight.stored, weight.format, part.columns.into(), from, to).ok_or_else(wrong)?);
            } else if from.bytes() == to.bytes() {
                // SAFETY: `to` lies in `memory`, which is mapped and so initialised, and which
                // nothing else uses.
                let to = unsafe { std::slice::from_raw_parts_mut(to.base(), to.bytes() as usize) };
                // SAFETY: `from` lies in mapped files.
                if !unsafe { from.read(0, to) } {
                    return Err(wrong());
                }
            } else {
                return Err(wrong());
            }
        }
        payloads.push(block.part(BLOCK_HEADER, shape.bytes() - BLOCK_HEADER).ok_or_else(wrong)?);
        blocks.push(block);
    }
    // SAFETY: the jobs' sources lie in mapped files. Their destinations lie in `memory` and do not
    // overlap.
    unsafe { pack::run(&jobs, pool, &|_, _| (), &|_| ()) }.map_err(|source| file_error(LoadError::Pack { source }))?;
    read.iter().for_each(|(weight, from, offset, bytes)| source.files.release(weight, from, *offset, *bytes));
    for ((expert, block), crc) in (first.expert..).zip(&blocks).zip(checksums(&payloads, pool)?) {
        let header = shape.header(BlockId { expert, ..first }, crc);
        // SAFETY: a block is longer than its header, and nothing else uses the memory.
        unsafe { block.base().copy_from_nonoverlapping(header.as_ptr(), header.len()) };
    }
    let checksums = checksums(&blocks, pool)?;
    Ok((packed, checksums))
}

/// Passes a weight's bytes to `give`, in order and in chunks. The bytes are in the layout that
/// kernels read. If the stored layout differs, the weight is packed.
fn chunks(
    weight: &PlanWeight,
    files: &ModelFiles<'_>,
    pool: &mut Pool,
    mut give: impl FnMut(&[u8]) -> Result<(), FileError>,
) -> Result<(), FileError> {
    let wrong = || file_error(LoadError::NoWeights);
    if !weight.is_packed_at_load() {
        return copies(weight, files, give);
    }
    let columns = weight.shape.last().copied().unwrap_or(0);
    let strip = |format: Format| format.row_bytes(columns).and_then(|row| row.checked_mul(16));
    let (Some(from_strip), Some(to_strip)) = (strip(weight.stored), strip(weight.format)) else {
        return Err(wrong());
    };
    let strips = weight.bytes.checked_div(from_strip).unwrap_or(0);
    let max = (CHUNK / to_strip.max(1)).clamp(1, strips.max(1));
    let memory = Memory::zeroed("packed weights", max.saturating_mul(to_strip), true);
    let memory = memory.map_err(|error| file_error(error.into()))?;
    let mut first = 0;
    while first < strips {
        let count = max.min(strips - first);
        // The stored and the packed length of the weight were checked, so both ranges lie inside
        // it.
        let from = files.source(weight, first * from_strip, count * from_strip);
        let to = memory.region().part(0, count * to_strip);
        let job = from.clone().zip(to).and_then(|(from, to)| Job::new(weight.stored, weight.format, columns, from, to));
        let (job, to) = job.zip(to).ok_or_else(wrong)?;
        // SAFETY: `from` lies in a mapped file, and `to` in memory that only this function uses.
        unsafe { pack::run(&[job], pool, &|_, _| (), &|_| ()) }
            .map_err(|source| file_error(LoadError::Pack { source }))?;
        if let Some(from) = &from {
            files.release(weight, from, first * from_strip, count * from_strip);
        }
        // SAFETY: `to` lies in `memory`, which is initialised as all mapped memory, and which is
        // not written before the next iteration.
        give(unsafe { std::slice::from_raw_parts(to.base(), to.bytes() as usize) })?;
        first += count;
    }
    Ok(())
}

/// Passes the stored bytes of a weight to `give` unchanged. Used for weights that kernels read in
/// the layout of the model file.
fn copies(
    weight: &PlanWeight,
    files: &ModelFiles<'_>,
    mut give: impl FnMut(&[u8]) -> Result<(), FileError>,
) -> Result<(), FileError> {
    let wrong = || file_error(LoadError::NoWeights);
    // A chunk consists of whole format blocks, because derived tensors can only be read in whole
    // blocks.
    let max = COPIED - COPIED % weight.stored.block_bytes() as u64;
    let (mut copy, mut at) = (Vec::new(), 0);
    while at < weight.bytes {
        let count = max.min(weight.bytes - at);
        let from = files.source(weight, at, count).ok_or_else(wrong)?;
        copy.resize(count as usize, 0);
        // SAFETY: `from` lies in mapped files.
        if !unsafe { from.read(0, &mut copy) } {
            return Err(wrong());
        }
        give(&copy)?;
        files.release(weight, &from, at, count);
        at += count;
    }
    Ok(())
}

const _: () = assert!(ALIGNMENT.is_multiple_of(4096) && CHUNK.is_multiple_of(ALIGNMENT));
