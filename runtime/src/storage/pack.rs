//! Packing of weights by all threads, before the weights are first used. It converts rows of a
//! model file to strips of 16 rows.
//!
//! ```text
//! file, mapped:   row 0 | row 1 | ... | row 15 | row 16 ...     q4_k: 144 bytes / 256 columns
//! packed memory:  strip 0: block 0, block 1, ... | strip 1 ...  q4_k_r16: 16 * 144 bytes
//! ```
//!
//! A job packs a weight, or some whole strips of it. Threads take strips from a common counter. A
//! thread copies only a few format blocks of 16 rows at a time, so packing needs little memory
//! besides the result. A strip is packed by a kernel, which is generated for this machine when its
//! format is first packed. If the system allows no executable memory, the slower reference function
//! [`packed::pack`] is used.
//!
//! Invariant: the result is the same for any number of threads, because strips are disjoint and
//! packing only moves bits.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use ixc_codegen::module::Module;
use ixc_ir::format::packed::{self, STRIP};
use ixc_ir::format::requantise;
use ixc_ir::format::{Codec, FORMATS, Format};
use ixc_kernels::{Embed, Pack, generate};
use ixc_targets::Target;

use crate::pool::{Pool, PoolError};
use crate::storage::memory::Region;
use crate::storage::weight_source::WeightSource;

/// Alignment of packed weights, in memory and in plan files.
pub const ALIGNMENT: u64 = 4096;
/// Number of columns of a strip that are packed at a time. For 2048 columns, 16 rows take 18 KiB in
/// `q4_k` and 64 KiB in `f16`. So the rows and the result stay in the caches of a core. The number
/// is a multiple of the columns of every format block that is packed.
const COLUMNS: usize = 2048;
/// Number of strips that a thread takes at a time.
const SHARE: u64 = 4;

/// Returns the offsets of packed weights with these lengths, one after the other, and the end of
/// the last weight. On overflow, the end saturates, so that mapping that much memory fails.
pub(crate) fn layout(lengths: impl Iterator<Item = u64>) -> (Vec<u64>, u64) {
    let mut end = 0u64;
    let offsets = lengths.map(|bytes| {
        let at = end;
        end = at.saturating_add(bytes).checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
        at
    });
    (offsets.collect(), end)
}

/// A number of whole strips of a weight to be packed.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    to_format: Format,
    from_format: Format,
    from: WeightSource,
    to: Region,
    /// Number of columns of a row; a multiple of the format blocks of both formats.
    columns: u64,
    strips: u64,
}

impl Job {
    /// Creates a job that packs all strips of `from`, whose rows have `columns` columns, to
    /// `to_format`. If the formats require it, rows are first requantised. Returns `None` if the
    /// formats cannot be converted, or if the lengths of the regions do not match.
    pub(crate) fn new(
        from_format: Format,
        to_format: Format,
        columns: u64,
        from: impl Into<WeightSource>,
        to: Region,
    ) -> Option<Job> {
        let from = from.into();
        if !makes(from_format, to_format) {
            return None;
        }
        let strip = |format: Format| format.row_bytes(columns)?.checked_mul(STRIP as u64);
        let (from_strip, to_strip) = (strip(from_format)?, strip(to_format)?);
        let strips = from.bytes().checked_div(from_strip)?;
        let fits = strips.checked_mul(from_strip) == Some(from.bytes())
            && strips.checked_mul(to_strip) == Some(to.bytes())
            && usize::try_from(from.bytes().max(to.bytes())).is_ok();
        fits.then_some(Job { to_format, from_format, from, to, columns, strips })
    }

    /// Returns the bytes of `columns` columns of a row in the file, and the bytes of one row in a
    /// packed strip.
    fn bytes(&self, columns: u64) -> (u64, u64) {
        // The numbers cannot overflow, because `new` has computed the bytes of whole rows.
        (self.from_format.row_bytes(columns).unwrap_or(0), self.to_format.row_bytes(columns).unwrap_or(0))
    }

    /// Returns the bytes of a strip in the file, and the bytes of a packed strip.
    pub(crate) fn strip_bytes(&self) -> (u64, u64) {
        let (from, to) = self.bytes(self.columns);
        // The products cannot overflow, because `new` has computed them.
        (from * STRIP as u64, to * STRIP as u64)
    }

    /// Returns the source of the bytes that the job packs.
    pub(crate) fn from(&self) -> &WeightSource {
        &self.from
    }

    /// Returns the number of strips of the job.
    pub(crate) fn strips(&self) -> u64 {
        self.strips
    }

    /// Returns a job for `count` strips of this job, from strip `first` on. The result is written
    /// to the offset of these strips in `self.to`, or to `to`, which must have their packed length.
    pub(crate) fn part(&self, first: u64, count: u64, to: Option<Region>) -> Option<Job> {
        let (from_strip, to_strip) = self.strip_bytes();
        let from = self.from.part(first.checked_mul(from_strip)?, count.checked_mul(from_strip)?)?;
        let place = self.to.part(first.checked_mul(to_strip)?, count.checked_mul(to_strip)?)?;
        let to = to.unwrap_or(place);
        (to.bytes() == place.bytes()).then_some(Job { from, to, strips: count, ..self.clone() })
    }

    /// Generates the code that packing uses. This must happen during loading, because a sandbox
    /// forbids new code afterwards.
    pub(crate) fn generate_code(&self) {
        kernel(self.to_format);
        if self.to_format.unpacked_format().is_some_and(|unpacked| unpacked != self.from_format) {
            let max = self.max_columns();
            let widths = [max.min(self.columns), self.columns % max].into_iter().filter(|columns| *columns > 0);
            widths.for_each(|columns| drop(row_kernel(self.from_format, columns as usize)));
        }
    }

    /// Returns the number of columns that are packed at a time.
    fn max_columns(&self) -> u64 {
        // A row scale belongs to all columns of a row, so the row cannot be divided.
        if self.to_format.has_row_scale() { self.columns } else { COLUMNS as u64 }
    }

    /// Packs all strips of the job. `rows` is working memory.
    ///
    /// # Safety
    /// `from` must be readable and `to` writable, and no other code may access `to` meanwhile.
    pub(crate) unsafe fn run(&self, rows: &mut Vec<u8>) {
        for strip in 0..self.strips {
            // SAFETY: the caller guarantees the conditions under `# Safety`.
            unsafe { self.strip(strip, rows) };
        }
    }

    /// Packs one strip. `rows` is working memory.
    ///
    /// # Safety
    /// `from` must be readable and `to` writable, and no other code may access this strip's bytes
    /// in `to` meanwhile.
    unsafe fn strip(&self, strip: u64, rows: &mut Vec<u8>) {
        let max = self.max_columns();
        let (from_row, to_row) = self.bytes(self.columns);
        let mut first = 0;
        while first < self.columns {
            let columns = max.min(self.columns - first);
            // At column 0, the offset is 0. `bytes(0)` would include a row scale.
            let (from_at, to_at) = if first == 0 { (0, 0) } else { self.bytes(first) };
            let (from_bytes, to_bytes) = self.bytes(columns);
            rows.resize(STRIP * from_bytes as usize, 0);
            // The rows are read together, because a transposed tensor stores elements of several
            // rows next to each other.
            let at = strip * STRIP as u64 * from_row + from_at;
            // SAFETY: the caller guarantees that `from` is readable.
            if !unsafe { self.from.read_rows(at, from_row, from_bytes, rows) } {
                return;
            }
            let at = STRIP as u64 * (strip * to_row + to_at);
            let Some(part) = self.to.part(at, STRIP as u64 * to_bytes) else { return };
            // SAFETY: the part lies in this strip of `to`, which no other code accesses, as the
            // caller guarantees. It is initialised, like all mapped memory.
            let out = unsafe { std::slice::from_raw_parts_mut(part.base(), part.bytes() as usize) };
            match self.to_format.unpacked_format() {
                Some(unpacked) if unpacked != self.from_format => {
                    let x = floats(self.from_format, columns as usize, rows);
                    let mut rows = requantise::of_floats(unpacked, &x, columns as usize);
                    pack(self.to_format, columns, &mut rows, out);
                }
                Some(_) | None => pack(self.to_format, columns, rows, out),
            }
            first += columns;
        }
    }
}

/// Returns whether rows of format `from` can become strips of format `to`, by packing, or by
/// requantising and packing.
pub(crate) fn makes(from: Format, to: Format) -> bool {
    let requantised = to.has_row_scale() && to.rows() > 1 && from.is_in_files();
    to.unpacked_format().is_some_and(|unpacked| unpacked == from || requantised)
}

/// Returns the kernel that packs to a format, if this machine can run generated code.
fn kernel(to: Format) -> Option<&'static Module> {
    static MODULES: [OnceLock<Option<Module>>; FORMATS.len()] = [const { OnceLock::new() }; FORMATS.len()];
    let compile = || {
        let kernel = generate(&Pack { to }.into(), Target::native()).ok()?;
        let compiled = Module::compile(&[kernel], Target::native());
        let warn = |error| tracing::warn!(format = %to, "packing without a kernel, slowly: {error}");
        compiled.map_err(warn).ok()
    };
    MODULES.get(to as usize)?.get_or_init(compile).as_ref()
}

/// Returns the kernel that dequantises a row of this format and number of columns, if this machine
/// can run generated code.
fn row_kernel(format: Format, columns: usize) -> Option<Arc<Module>> {
    type Modules = HashMap<(Format, usize), Option<Arc<Module>>>;
    static MODULES: LazyLock<Mutex<Modules>> = LazyLock::new(Mutex::default);
    let compile = || {
        let spec = Embed { format, n: u32::try_from(columns).ok()?, rows: 1 };
        let kernel = generate(&spec.into(), Target::native()).ok()?;
        Module::compile(&[kernel], Target::native()).ok().map(Arc::new)
    };
    let mut modules = MODULES.lock().unwrap_or_else(PoisonError::into_inner);
    modules.entry((format, columns)).or_insert_with(compile).clone()
}

/// Dequantises rows of a file's format, with a kernel if there is one.
fn floats(format: Format, columns: usize, rows: &mut [u8]) -> Vec<f32> {
    let Some(module) = row_kernel(format, columns) else { return format.dequantise_rows(rows, columns) };
    let mut x = vec![0f32; format.elements(rows.len(), columns).unwrap_or(0)];
    let row_bytes = rows.len() / (x.len() / columns).max(1);
    let mut first = [0u8; 4];
    for (row, x) in rows.chunks_exact_mut(row_bytes.max(1)).zip(x.chunks_exact_mut(columns)) {
        // SAFETY: the kernel reads row 0 of a table with one row, which has `columns` columns in
        // its format, and writes as many floats.
        unsafe { module.call(0, &[first.as_mut_ptr(), row.as_mut_ptr(), x.as_mut_ptr().cast()], &[]) };
    }
    x
}

/// Packs a strip like [`packed::pack`], but with a kernel if there is one.
fn pack(to: Format, columns: u64, rows: &mut [u8], out: &mut [u8]) {
    let Some(module) = kernel(to) else { return packed::pack(to, rows, out) };
    let columns = columns as i64;
    let by_blocks = [columns / to.block_len() as i64];
    let by_columns = [columns / STRIP as i64, columns % STRIP as i64];
    let dims: &[i64] = match to.codec() {
        Codec::Float(_) => &by_columns,
        Codec::Quants(_) | Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => &by_blocks,
    };
    let bytes = |format: Format| format.row_bytes(columns as u64).map(|bytes| bytes as usize * STRIP);
    let whole = [to.unpacked_format().and_then(bytes), bytes(to)] == [Some(rows.len()), Some(out.len())];
    assert!(whole, "16 rows of {columns} columns of {to}");
    // SAFETY: the kernel reads 16 rows of `columns` columns and writes a strip; the lengths of both
    // were compared above.
    unsafe { module.call(0, &[rows.as_mut_ptr(), out.as_mut_ptr()], dims) };
}

/// Packing jobs, whose strips are numbered consecutively over all jobs.
#[derive(Debug)]
pub(crate) struct Queue {
    jobs: Vec<Job>,
    /// For each job, the number of the strip after its last one.
    ends: Vec<u64>,
}

impl Queue {
    /// Creates a queue of packing jobs.
    pub(crate) fn new(jobs: Vec<Job>) -> Queue {
        let end = |end: &mut u64, job: &Job| {
            *end = end.saturating_add(job.strips);
            Some(*end)
        };
        let ends = jobs.iter().scan(0u64, end).collect();
        Queue { jobs, ends }
    }

    /// Takes strip numbers from `next`, and packs the strips until none are left. Calls `done` with
    /// the index of the job and the number of the strip in it.
    ///
    /// # Safety
    /// For every job, `from` must be readable and `to` writable. Only threads that take strips from
    /// `next` may access `to`. The `to` of different jobs must not overlap.
    pub(crate) unsafe fn work(&self, next: &AtomicU64, rows: &mut Vec<u8>, done: &dyn Fn(usize, u64)) {
        let total = self.ends.last().copied().unwrap_or(0);
        loop {
            let start = next.fetch_add(SHARE, Ordering::Relaxed);
            if start >= total {
                return;
            }
            for number in start..start.saturating_add(SHARE).min(total) {
                let at = self.ends.partition_point(|end| *end <= number);
                let job = &self.jobs[at];
                let strip = number - (self.ends[at] - job.strips);
                // SAFETY: the caller guarantees the conditions under `# Safety`. Every number is
                // taken once, and belongs to one strip of one job.
                unsafe { job.strip(strip, rows) };
                done(at, strip);
            }
        }
    }
}

/// Packs the strips of all jobs. Calls `packed` with the index of a job and the number of its
/// packed strip, and `done` with the index of a finished job. Both functions run on the thread that
/// packed the strip.
///
/// # Safety
/// For every job, `from` must be readable and `to` writable, and no other code may access `to`
/// meanwhile. The `to` of different jobs must not overlap.
///
/// # Errors
/// Fails if a thread panics.
pub(crate) unsafe fn run(
    jobs: &[Job],
    pool: &mut Pool,
    packed: &(dyn Fn(usize, u64) + Sync),
    done: &(dyn Fn(usize) + Sync),
) -> Result<(), PoolError> {
    let queue = Queue::new(jobs.to_vec());
    let left: Vec<AtomicU64> = jobs.iter().map(|job| job.strips.into()).collect();
    let next = AtomicU64::new(0);
    pool.run(&|_| {
        let strip_done = |job: usize, strip: u64| {
            packed(job, strip);
            if left[job].fetch_sub(1, Ordering::AcqRel) == 1 {
                done(job);
            }
        };
        // SAFETY: the caller guarantees the conditions under `# Safety`. Only the threads of this
        // call use `next`.
        unsafe { queue.work(&next, &mut Vec::new(), &strip_done) };
    })
}

/// Bytes that a thread copies at a time for a checksum.
const CHECKSUM_CHUNK: u64 = 1 << 16;

/// Returns the CRC-32 of each region. The regions must be readable mapped memory of a file. After
/// each chunk, calls `done` with its number of bytes.
///
/// # Errors
/// Fails if a thread panics.
pub(crate) fn checksums(
    regions: &[Region],
    pool: &mut Pool,
    done: &(dyn Fn(u64) + Sync),
) -> Result<Vec<u32>, PoolError> {
    let found: Vec<AtomicU32> = regions.iter().map(|_| AtomicU32::new(0)).collect();
    let next = AtomicUsize::new(0);
    pool.run(&|_| {
        let mut copy = Vec::with_capacity(CHECKSUM_CHUNK as usize);
        while let Some((region, found)) = {
            let number = next.fetch_add(1, Ordering::Relaxed);
            regions.get(number).zip(found.get(number))
        } {
            let (mut hasher, mut at) = (crc32fast::Hasher::new(), 0);
            while let Some(part) =
                region.part(at, CHECKSUM_CHUNK.min(region.bytes() - at)).filter(|part| part.bytes() > 0)
            {
                copy.resize(part.bytes() as usize, 0);
                // SAFETY: the region lies in mapped memory. Its bytes are copied, because a mapped
                // file may change and must not be borrowed.
                unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(part.base(), copy.len()) };
                hasher.update(&copy);
                at += part.bytes();
                done(part.bytes());
            }
            found.store(hasher.finalize(), Ordering::Relaxed);
        }
    })?;
    Ok(found.into_iter().map(AtomicU32::into_inner).collect())
}

#[cfg(test)]
mod tests {
    use ixc_ir::random::Random;
    use ixc_testing::random_graphs;

    use super::*;
    use crate::storage::memory::Memory;

    fn region(bytes: &[u8]) -> (Memory, Region) {
        let memory = Memory::zeroed("a test", bytes.len() as u64, false).unwrap();
        let region = memory.region();
        // SAFETY: the memory is new, and as long as `bytes`.
        unsafe { region.base().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        (memory, region)
    }

    #[test]
    fn any_number_of_threads_packs_as_one_call_does() {
        // The number of columns is larger than `COLUMNS`, and not a multiple of it.
        let (columns, strips) = (COLUMNS as u64 + 256, 11);
        for to_format in FORMATS.iter().filter(|row| row.rows > 1).map(|row| row.format) {
            let from_format = to_format.unpacked_format().unwrap();
            let strip = STRIP * from_format.row_bytes(columns).unwrap() as usize;
            let source: Vec<u8> = (0..strip * strips).map(|i| (i * 31 + i / 251) as u8).collect();
            let packed_strip = STRIP * to_format.row_bytes(columns).unwrap() as usize;
            let mut right = vec![0; packed_strip * strips];
            for (rows, out) in source.chunks_exact(strip).zip(right.chunks_exact_mut(packed_strip)) {
                packed::pack(to_format, rows, out);
            }
            let (_source, from) = region(&source);
            for threads in [1, 3] {
                let (_packed, to) = region(&vec![0xee; right.len()]);
                // One job has 4 strips, and the other job has 7.
                let job = |first: u64, count: u64| {
                    let part = |region: Region, strip: usize| region.part(first * strip as u64, count * strip as u64);
                    Job::new(
                        from_format,
                        to_format,
                        columns,
                        part(from, strip).unwrap(),
                        part(to, packed_strip).unwrap(),
                    )
                    .unwrap()
                };
                let finished = Mutex::new(Vec::new());
                let mut pool = Pool::new(threads).unwrap();
                let jobs = [job(0, 4), job(4, 7)];
                // SAFETY: `from` and `to` are mapped, and nothing else uses them.
                unsafe { run(&jobs, &mut pool, &|_, _| (), &|i| finished.lock().unwrap().push(i)) }.unwrap();
                let mut finished = finished.into_inner().unwrap();
                finished.sort_unstable();
                assert_eq!(finished, [0, 1]);
                // SAFETY: `to` is mapped, and nothing writes it now.
                let found: Vec<u8> = (0..right.len()).map(|i| unsafe { to.base().add(i).read() }).collect();
                assert!(found == right, "{to_format} with {threads} threads");
            }
        }
    }

    #[test]
    fn packing_kernels_match_the_format_definition() {
        for columns in [256, 512, 1280] {
            for to in FORMATS.iter().filter(|row| row.rows > 1).map(|row| row.format) {
                let length = |format: Format| STRIP * format.row_bytes(columns).unwrap() as usize;
                let mut rows: Vec<u8> =
                    (0..length(to.unpacked_format().unwrap())).map(|i| (i * 37 + i / 241) as u8).collect();
                let (mut right, mut found) = (vec![0; length(to)], vec![0xee; length(to)]);
                packed::pack(to, &rows, &mut right);
                pack(to, columns, &mut rows, &mut found);
                assert!(found == right, "{to}, {columns} columns");
            }
        }
        // These numbers of columns are not all multiples of four, which float formats allow.
        for columns in [1, 3, 4, 5, 33] {
            let mut rows: Vec<u8> = (0..2 * STRIP * columns).map(|i| (i * 37 + i / 241) as u8).collect();
            let mut found = vec![0xee; rows.len()];
            pack(Format::F16R16, columns as u64, &mut rows, &mut found);
            let element = |r: usize, column: usize| &rows[2 * (r * columns + column)..][..2];
            let right: Vec<u8> =
                (0..columns).flat_map(|column| (0..STRIP).flat_map(move |r| element(r, column).to_vec())).collect();
            assert!(found == right, "{columns} columns");
        }
    }

    #[test]
    fn rows_in_another_format_are_requantised_before_they_are_packed() {
        let (columns, strips) = (512u64, 3);
        let formats = || FORMATS.iter().map(|row| row.format);
        let pairs = formats().flat_map(|from| formats().map(move |to| (from, to)));
        let mut tried = 0;
        for (from, to) in pairs.filter(|&(from, to)| to.unpacked_format() != Some(from) && makes(from, to)) {
            let source = random_graphs::weight_bytes(&mut Random::new(5), from, columns as usize * STRIP * strips);
            let rows = requantise::requantise(from, to.unpacked_format().unwrap(), &source, columns as usize);
            let mut right = vec![0; strips * STRIP * to.row_bytes(columns).unwrap() as usize];
            let strip = right.len() / strips;
            for (rows, out) in rows.chunks_exact(rows.len() / strips).zip(right.chunks_exact_mut(strip)) {
                packed::pack(to, rows, out);
            }
            let ((_source, from_region), (_packed, to_region)) = (region(&source), region(&vec![0xee; right.len()]));
            let job = Job::new(from, to, columns, from_region, to_region).unwrap();
            // SAFETY: both regions are mapped, and nothing else uses them.
            unsafe { job.run(&mut Vec::new()) };
            // SAFETY: the region is mapped, and nothing writes it now.
            let found: Vec<u8> = (0..right.len()).map(|i| unsafe { to_region.base().add(i).read() }).collect();
            assert!(found == right, "{from} to {to}");
            tried += 1;
        }
        assert!(tried >= 2 * formats().filter(|format| format.is_in_files()).count());
    }

    #[test]
    fn partial_strips_cannot_be_packed() {
        let (_memory, memory) = region(&[0; 1 << 16]);
        let regions = |from, to| (memory.part(0, from).unwrap(), memory.part(0, to).unwrap());
        let job = |columns, (from, to)| Job::new(Format::Q4K, Format::Q4KR16, columns, from, to);
        assert!(job(256, regions(2 * 16 * 144, 2 * 16 * 144)).is_some());
        assert!(job(256, regions(2 * 16 * 144 - 144, 2 * 16 * 144)).is_none());
        assert!(job(256, regions(16 * 144, 2 * 16 * 144)).is_none());
        assert!(job(128, regions(16 * 144, 16 * 144)).is_none());
        assert!(job(0, regions(16 * 144, 16 * 144)).is_none());
        assert!(job(u64::MAX / 256 * 256, regions(16 * 144, 16 * 144)).is_none());
    }
}
