//! The weights behind a plan in its file: writing them packed, and mapping them.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use ixc_runtime::{engine::{Engine, Options}, file};
//! # use std::path::Path;
//! # let plan = file::read(Path::new("small.ixp"))?;
//! // Weights that would be packed each time that the plan is loaded are packed once, and mapped from then on.
//! let written = file::weights::write(Path::new("model.ixp"), &plan, Path::new("."), &Options::default(), |_, _| ())?;
//! let engine = Engine::load_file(file::open(Path::new("model.ixp"))?, Path::new("."), &Options::default())?;
//! # let _ = (written, engine); Ok(()) }
//! ```
//!
//! Writing takes memory for [`CHUNK`] bytes of packed weights, whatever the model's size.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Plan, PlanWeight, WeightFile};

use super::{FileError, HEADER_BYTES, Header, Stop, payload, replace};
use crate::engine::Options;
use crate::load::{self, LoadError};
use crate::memory::{Mapped, Memory};
use crate::pack::{self, ALIGNMENT, Job};
use crate::pool::Pool;
use crate::program::Program;

/// Most bytes that are packed before they are written, unless a strip has more.
pub const CHUNK: u64 = 64 << 20;

/// Weights behind a plan, in its file.
#[derive(Debug)]
pub struct OwnWeights {
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// CRC-32 of each, in the order of the plan.
    pub(super) checksums: Vec<u32>,
}

impl OwnWeights {
    /// The file, and where the weights begin in it.
    pub(crate) fn place(&self) -> (PathBuf, u64) {
        (self.path.clone(), self.offset)
    }

    /// Maps them.
    pub(crate) fn map(&self) -> Result<Mapped, LoadError> {
        let mapped = Mapped::part_of(&self.file, self.offset, self.bytes);
        mapped.map_err(|source| LoadError::ModelFile { path: self.path.clone(), source })
    }

    /// Reads all of them, and compares their checksums. `weights` are the plan's; those of other files are passed over.
    pub(crate) fn check(&self, mapped: &Mapped, weights: &[PlanWeight], pool: &mut Pool) -> Result<(), LoadError> {
        let own: Vec<_> = weights.iter().filter(|weight| weight.file == WeightFile::Plan).collect();
        let regions: Vec<_> =
            own.iter().filter_map(|weight| mapped.region().part(weight.offset, weight.bytes)).collect();
        let found = pack::checksums(&regions, pool).map_err(|source| LoadError::Pack { source })?;
        // The file's header was found to have one for each; the program's check says that each lies in the file.
        for ((weight, &right), found) in own.iter().zip(&self.checksums).zip(found) {
            if found != right {
                let (path, name) = (self.path.clone(), weight.name.clone());
                return Err(LoadError::DamagedWeight { path, name, found, right });
            }
        }
        Ok(())
    }
}

/// Packs the weights of `plan` that would be packed when it is loaded, and writes the plan with them; gives the plan as it is
/// in the file. Relative paths in the plan are from `folder`; of the options, threads and built-in file count. `progress` is
/// told how many bytes of how many are written.
///
/// # Errors
/// When the plan is wrong, its model files are not there or others, or the file can't be written.
pub fn write(
    path: &Path,
    plan: &Plan<Kernel>,
    folder: &Path,
    options: &Options,
    mut progress: impl FnMut(u64, u64),
) -> Result<Plan<Kernel>, FileError> {
    let source = |error: LoadError| FileError::Source(Box::new(error));
    Program::new(plan).map_err(|error| source(error.into()))?;
    if plan.own_weight_bytes > 0 {
        return Err(source(LoadError::NoWeights));
    }
    let files = load::open_files(plan, folder, options).map_err(source)?;
    let mut pool = load::pool(options).map_err(source)?;

    let packed: Vec<_> = (0..plan.weights.len()).filter(|&i| plan.weights[i].is_packed_at_load()).collect();
    let bytes = |weight: &PlanWeight| weight.bytes_in(weight.format).unwrap_or(u64::MAX);
    let (offsets, total) = pack::layout(packed.iter().map(|&i| bytes(&plan.weights[i])));
    let mut written = plan.clone();
    written.own_weight_bytes = total;
    for (&i, offset) in packed.iter().zip(offsets) {
        let weight = &mut written.weights[i];
        (weight.bytes, weight.stored) = (bytes(weight), weight.format);
        (weight.file, weight.offset) = (WeightFile::Plan, offset);
    }
    let payload = payload(&written)?;
    let (payload_crc, length) = (crc32fast::hash(&payload), payload.len() as u64);
    let mut header =
        Header { payload_crc, payload: length, weights: total, count: packed.len() as u32, checksums_crc: 0 };

    replace(path, |file| {
        // The header's last number is known at the end; until then there is none, so that half a file is no plan.
        file.write_all(&[0; HEADER_BYTES]).and_then(|()| file.write_all(&payload)).map_err(Stop::Io)?;
        let mut done = 0;
        let mut checksums = Vec::with_capacity(4 * packed.len());
        for &i in &packed {
            let at = header.weights_at() + written.weights[i].offset;
            file.seek(SeekFrom::Start(at)).map_err(Stop::Io)?;
            let mut hasher = crc32fast::Hasher::new();
            chunks(&plan.weights[i], &files, &mut pool, |part| {
                hasher.update(part);
                file.write_all(part).map_err(Stop::Io)?;
                done += part.len() as u64;
                progress(done, total);
                Ok(())
            })?;
            checksums.extend(hasher.finalize().to_le_bytes());
        }
        if !packed.is_empty() {
            file.seek(SeekFrom::Start(header.weights_at() + total)).map_err(Stop::Io)?;
        }
        header.checksums_crc = crc32fast::hash(&checksums);
        if packed.is_empty() {
            header.checksums_crc = 0;
        }
        file.write_all(&checksums).map_err(Stop::Io)?;
        file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&header.encode())).map_err(Stop::Io)
    })?;
    Ok(written)
}

/// Gives a weight's packed bytes in order, some at a time.
fn chunks(
    weight: &PlanWeight,
    files: &[Mapped],
    pool: &mut Pool,
    mut give: impl FnMut(&[u8]) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let failed = |error: LoadError| Stop::Other(FileError::Source(Box::new(error)));
    let wrong = || failed(LoadError::NoWeights);
    let columns = weight.shape.last().copied().unwrap_or(0);
    let strip = |format: ixc_ir::format::Format| format.row_bytes(columns).and_then(|row| row.checked_mul(16));
    let (Some(from_strip), Some(to_strip), WeightFile::Source(file)) =
        (strip(weight.stored), strip(weight.format), weight.file)
    else {
        return Err(wrong());
    };
    let file = files.get(file as usize).ok_or_else(wrong)?;
    let strips = weight.bytes.checked_div(from_strip).unwrap_or(0);
    let most = (CHUNK / to_strip.max(1)).clamp(1, strips.max(1));
    let memory = Memory::zeroed("packed weights", most.saturating_mul(to_strip), true);
    let memory = memory.map_err(|error| failed(error.into()))?;
    let mut first = 0;
    while first < strips {
        let count = most.min(strips - first);
        // They fit: the weight's own lengths do.
        let from = file.region().part(weight.offset + first * from_strip, count * from_strip);
        let to = memory.region().part(0, count * to_strip);
        let job = from.zip(to).and_then(|(from, to)| Job::new(weight.format, columns, from, to));
        let (job, to) = job.zip(to).ok_or_else(wrong)?;
        // SAFETY: `from` lies in a mapped file, `to` in memory that only this function uses.
        unsafe { pack::run(&[job], pool, &|_, _| (), &|_| ()) }.map_err(|source| failed(LoadError::Pack { source }))?;
        file.release(weight.offset + first * from_strip, count * from_strip);
        // SAFETY: `to` lies in `memory`, is initialised as all mapped memory, and nothing writes it until the next round.
        give(unsafe { std::slice::from_raw_parts(to.base(), to.bytes() as usize) })?;
        first += count;
    }
    Ok(())
}

const _: () = assert!(ALIGNMENT.is_multiple_of(4096) && CHUNK.is_multiple_of(ALIGNMENT));
