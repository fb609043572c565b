//! Quantisation of a GGUF file, which converts its matrices to other formats.
//!
//! All else in the file stays unchanged: keys and their order, vectors, and routers. The output is
//! the same with any number of threads.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Scope};

use ixc_failure::{Class, Remedy};
use ixc_files::changed::{ChangedFile, Identity};
use ixc_files::{Output, OutputError, SignalStack, open_regular};
use ixc_ir::format::Format;
use ixc_model_files::gguf::write::GgufWriter;
use ixc_model_files::gguf::{Gguf, GgufError, Tensor, TensorType, Value};
use ixc_passes::options::matches;

use crate::importance::{Importance, ImportanceError};
use crate::mix::{Counter, MatrixRole, Mix, TensorPosition, for_rows, is_quantised, needs_importance};

/// Number of elements in a part of a tensor. A thread encodes a part in some milliseconds.
const NUMBERS: usize = 1 << 19;
/// Number of parts per thread that may be queued, or encoded before they can be written.
const PARTS_AHEAD: usize = 2;
/// Value of `general.quantization_version`, the version of the block formats.
const QUANTISATION_VERSION: u32 = 2;

/// Options of quantising a model.
#[derive(Clone, Debug)]
pub struct QuantiseOptions<'o> {
    /// Mix that determines the format of each matrix.
    pub mix: &'static Mix,
    /// Formats for tensors whose names match a pattern, among the tensors that mixes change. If
    /// several patterns match, the last one is used.
    pub overrides: Vec<(String, Format)>,
    /// Whether the mix's main format is used for all matrices, without exceptions.
    pub pure: bool,
    /// Importance matrix, if one is given.
    pub importance: Option<&'o Importance>,
    /// Whether tensors that are already quantised are allowed. Their errors add up.
    pub requantise: bool,
}

impl QuantiseOptions<'_> {
    /// Returns the options for a mix without changes.
    pub fn new(mix: &'static Mix) -> QuantiseOptions<'static> {
        QuantiseOptions { mix, overrides: Vec::new(), pure: false, importance: None, requantise: false }
    }
}

/// Error of quantising a model.
#[derive(Debug, thiserror::Error)]
pub enum QuantiseError {
    /// The model's file is malformed.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The importance matrix is not valid, or belongs to another model.
    #[error(transparent)]
    Importance(#[from] ImportanceError),
    /// The output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The tensor is already quantised.
    #[error("{tensor} is already quantised to {from}; quantising it again adds the errors of both formats")]
    Quantised {
        /// Name of the first tensor that is already quantised.
        tensor: String,
        /// Format that the tensor has.
        from: Format,
    },
    /// A model file was changed while it was read.
    #[error(transparent)]
    Changed(#[from] ChangedFile),
    /// The format can be read, but not written.
    #[error("{tensor}: ixc reads {to} but does not write it; it writes {}", list(Format::encoded_formats()))]
    NotMade {
        /// Name of the tensor.
        tensor: String,
        /// Format that was requested for the tensor.
        to: Format,
    },
}

impl QuantiseError {
    /// Returns the class of the error, which determines the exit code.
    pub fn class(&self) -> Class {
        match self {
            QuantiseError::Gguf(error) => error.class(),
            QuantiseError::Importance(error) => error.class(),
            QuantiseError::Output(error) => error.class(),
            QuantiseError::Changed(error) => error.class(),
            QuantiseError::Quantised { .. } | QuantiseError::NotMade { .. } => Class::Usage,
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            QuantiseError::Output(error) => error.remedy(),
            QuantiseError::Quantised { .. } => Some(Remedy::Requantise),
            _ => None,
        }
    }
}

fn list(formats: impl Iterator<Item = Format>) -> String {
    formats.map(|format| format.name()).collect::<Vec<_>>().join(", ")
}

/// Plan for one tensor.
#[derive(Clone, Debug)]
pub struct TensorPlan<'m> {
    /// Tensor in the source.
    pub tensor: &'m Tensor,
    /// New format, or `None` if the bytes are copied unchanged.
    pub to: Option<Format>,
    /// Whether the rows do not consist of whole blocks of the requested format, so the tensor gets
    /// another format.
    pub shorter: bool,
}

/// Plan for all tensors of a model.
#[derive(Debug)]
pub struct Plan<'m> {
    source: &'m Gguf,
    file_type: u32,
    importance: Option<&'m Importance>,
    /// Plans for the tensors, in the order of the source.
    pub tensors: Vec<TensorPlan<'m>>,
}

impl TensorPlan<'_> {
    /// Returns the type that the tensor has in the output.
    pub fn tensor_type(&self) -> TensorType {
        let new_type = self.to.and_then(|format| format.row().gguf_id).and_then(TensorType::from_id);
        new_type.unwrap_or(self.tensor.tensor_type())
    }

    /// Returns the number of bytes that the tensor has in the output.
    pub fn bytes(&self) -> u64 {
        self.tensor_type().tensor_bytes(self.tensor.dims()).unwrap_or(0)
    }

    /// Returns the number of columns, the number of rows in a matrix, and the number of matrices.
    fn shape(&self) -> [u64; 3] {
        let dims = self.tensor.dims();
        let at = |index: usize| dims.get(index).copied().unwrap_or(1);
        [at(0), at(1), dims.get(2..).unwrap_or_default().iter().product()]
    }
}

impl Plan<'_> {
    /// Returns the number of tensors that change.
    pub fn quantised_tensors(&self) -> usize {
        self.tensors.iter().filter(|planned| planned.to.is_some()).count()
    }

    /// Returns the number of tensors that need an importance matrix but have no entry in one.
    pub fn without_importance(&self) -> usize {
        let known = |name: &str| self.importance.is_some_and(|importance| importance.knows(name));
        let changed = self.tensors.iter().filter_map(|planned| Some((planned.tensor.name(), planned.to?)));
        changed.filter(|(name, to)| needs_importance(name, *to) && !known(name)).count()
    }

    /// Returns the number of bytes that all tensors have in the output.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(TensorPlan::bytes).sum()
    }
}

/// Returns the number under a key of the architecture. If the value is a list by layer, returns its
/// first number.
fn number(model: &Gguf, key: &str) -> Option<u64> {
    let name: &str = model.metadata().read("general.architecture").ok()?;
    let value = model.metadata().get(&format!("{name}.{key}"))?;
    let number = match value {
        Value::Array(array) => array.integer(0),
        value => value.integer(),
    };
    number.and_then(|number| u64::try_from(number).ok())
}

/// Plans the treatment of each tensor.
///
/// # Errors
/// See [`QuantiseError`].
pub fn plan<'m>(model: &'m Gguf, options: &QuantiseOptions<'m>) -> Result<Plan<'m>, QuantiseError> {
    let tied = model.tensor("output.weight").is_none();
    // Every layer has tensors, so their number limits a malformed number of layers.
    let layers = number(model, "block_count").unwrap_or(1).min(model.own_tensors().len() as u64) as usize;
    // For a list by layer, this is the value of the first layer.
    let heads = number(model, "attention.head_count").unwrap_or(1);
    let query_heads_per_key = heads.checked_div(number(model, "attention.head_count_kv").unwrap_or(heads)).unwrap_or(0);
    let experts = number(model, "expert_count").unwrap_or(0);
    let mut tensors = Vec::with_capacity(model.own_tensors().len());
    let override_of = |name: &str| options.overrides.iter().rev().find(|(pattern, _)| matches(pattern, name));
    let precise = ixc_architectures::precise(model.metadata().read("general.architecture").unwrap_or_default());
    let is_one_of = |name: &str, parts: &[&str]| parts.iter().any(|part| name.contains(part));
    let is_quantised = |name: &str, dims: &[u64]| is_quantised(name, dims) && !is_one_of(name, precise.kept);
    let counter = Counter::new(model.own_tensors().map(|tensor| {
        let (name, dims) = (tensor.name(), tensor.dims());
        (name, is_quantised(name, dims) && override_of(name).is_none())
    }));
    // Readers derive the substitute tensors of a graph again. Only the file's own tensors are
    // therefore written.
    for tensor in model.own_tensors() {
        let mut planned = TensorPlan { tensor, to: None, shorter: false };
        let [columns, _, matrices] = planned.shape();
        let override_format = override_of(tensor.name());
        if is_quantised(tensor.name(), tensor.dims()) {
            let (number, count) = counter.number(options.mix, tensor.name(), experts, layers);
            let place = TensorPosition {
                layer: number,
                layers: count,
                depth: layers,
                query_heads_per_key,
                experts,
                importance: options.importance.is_some(),
                is_per_expert: matrices > 1,
                columns,
            };
            let requested = match override_format {
                Some((_, format)) => *format,
                None if options.pure => options.mix.format,
                None => match options.mix.format_of(MatrixRole::of_tensor(tensor.name(), tied), &place) {
                    few if few.is_quantised() && is_one_of(tensor.name(), precise.in_bytes) => Format::Q8_0,
                    format => format,
                },
            };
            let to = for_rows(requested, columns);
            let from = model.require_format(tensor)?;
            planned.shorter = to != requested;
            if to != from {
                if !to.encodes() {
                    return Err(QuantiseError::NotMade { tensor: tensor.name().to_owned(), to });
                }
                if from.is_quantised() && !options.requantise {
                    return Err(QuantiseError::Quantised { tensor: tensor.name().to_owned(), from });
                }
                if let Some(importance) = options.importance {
                    importance.column_means(tensor.name(), columns, matrices)?;
                }
                planned.to = Some(to);
            }
        }
        tensors.push(planned);
    }
    Ok(Plan { source: model, file_type: options.mix.file_type, importance: options.importance, tensors })
}

/// Progress of writing the output.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'p> {
    /// Name of the current tensor.
    pub tensor: &'p str,
    /// Number of bytes of tensors that were written.
    pub done: u64,
    /// Number of bytes of all tensors.
    pub total: u64,
}

impl Plan<'_> {
    /// Writes the output. Calls `report` before each tensor, and after each part of a tensor.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn write(
        &self,
        output: Output,
        threads: usize,
        mut report: impl FnMut(Progress<'_>),
    ) -> Result<u64, QuantiseError> {
        let mut writer = GgufWriter::new();
        let metadata = self.source.metadata();
        let mut keys: Vec<(&str, Value)> = vec![
            ("general.quantization_version", QUANTISATION_VERSION.into()),
            ("general.file_type", self.file_type.into()),
        ];
        if let Some(importance) = self.importance {
            keys.push(("quantize.imatrix.file", importance.path().to_string_lossy().as_ref().into()));
            keys.push(("quantize.imatrix.entries_count", (importance.len() as u32).into()));
        }
        for (key, value) in metadata.iter() {
            // The output is a single file, and the writer determines its alignment.
            if key.starts_with("split.") || key == "general.alignment" {
                continue;
            }
            let own = keys.iter().position(|(own, _)| *own == key).map(|at| keys.remove(at).1);
            writer = writer.key(key, own.unwrap_or_else(|| value.clone()));
        }
        for (key, value) in keys {
            writer = writer.key(key, value);
        }
        for planned in &self.tensors {
            writer = writer.hole(planned.tensor.name(), planned.tensor_type(), planned.tensor.dims());
        }
        let (total, mut done) = (self.bytes(), 0);
        let (files, mut changed) = (WatchedFiles::open(self.source)?, None);
        let written = output.write(|out| {
            thread::scope(|scope| {
                let mut jobs = EncoderThreads::new(self, scope, threads)?;
                writer.write_with(out, |index, out| {
                    let planned = &self.tensors[index];
                    let mut part = |bytes: &[u8]| {
                        report(Progress { tensor: planned.tensor.name(), done, total });
                        done += bytes.len() as u64;
                        out.write_all(bytes)
                    };
                    match planned.to {
                        Some(_) => jobs.tensor(index, &mut part),
                        None => self.copy(planned.tensor, &mut part),
                    }
                })
            })?;
            // The source files are checked before the output is renamed to its path.
            let unchanged = files.check().map_err(QuantiseError::from);
            unchanged.and_then(|()| Ok(self.source.check_readable()?)).map_err(|error| {
                let failed = io::Error::other(error.to_string());
                changed = Some(error);
                failed
            })
        });
        match (written, changed) {
            (Err(_), Some(changed)) => Err(changed),
            (written, _) => Ok(written?),
        }
    }

    /// Passes a tensor's bytes to `out` unchanged, part by part.
    fn copy(&self, tensor: &Tensor, out: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let max_rows = (NUMBERS as u64).next_multiple_of(tensor.tensor_type().block_bytes.into());
        let mut at = 0;
        while at < tensor.bytes() {
            let count = max_rows.min(tensor.bytes() - at);
            out(&self.source.tensor_part(tensor, at, count))?;
            at += count;
        }
        Ok(())
    }

    /// Returns the parts of each tensor that changes, in the order of the plan.
    fn parts(&self) -> io::Result<Vec<TensorParts<'_>>> {
        let invalid = |error: GgufError| io::Error::new(io::ErrorKind::InvalidData, error);
        let mut all = Vec::new();
        for (index, planned) in self.tensors.iter().enumerate() {
            let Some(to) = planned.to else { continue };
            let from = self.source.require_format(planned.tensor).map_err(invalid)?;
            let [columns, rows, matrices] = planned.shape();
            let importance = match self.importance {
                Some(importance) => {
                    importance.column_means(planned.tensor.name(), columns, matrices).map_err(io::Error::other)?
                }
                None => None,
            };
            // The conversion to `usize` cannot fail: the tensor's bytes are in memory, and the
            // shape was checked.
            let bytes = |format: Format| format.row_bytes(columns).unwrap_or(0) as usize;
            let max_rows = (NUMBERS / columns as usize).max(1);
            all.push(TensorParts {
                index,
                tensor: planned.tensor,
                from,
                to,
                columns: columns as usize,
                rows: (rows as usize).max(1),
                from_bytes: bytes(from),
                to_bytes: bytes(to),
                max_rows,
                importance,
            });
        }
        Ok(all)
    }
}

/// Files of a model that are watched while they are read. A write to them would mix old and new
/// bytes in the output.
struct WatchedFiles(Vec<(PathBuf, File, Identity)>);

impl WatchedFiles {
    /// Reopens the files of a model, to watch them.
    fn open(source: &Gguf) -> Result<WatchedFiles, QuantiseError> {
        let mut files = Vec::new();
        for shard in source.files().iter().filter(|file| file.is_mapped()) {
            let (path, mapped) = (shard.path().to_owned(), shard.identity());
            let file = open_regular(&path).map_err(|error| ChangedFile::unreadable(&path, &error))?;
            let metadata = file.metadata().map_err(|error| ChangedFile::unreadable(&path, &error))?;
            let identity = Identity::from_metadata(&metadata);
            // The file must be the one that was mapped, and not a replacement.
            let modified = mapped.modified.map(|(seconds, nanoseconds)| [seconds as i64, nanoseconds.into()]);
            if identity.bytes() != mapped.bytes
                || modified.is_some_and(|modified| modified != identity.modification_time())
            {
                return Err(ChangedFile::replaced_file(&path).into());
            }
            files.push((path, file, identity));
        }
        Ok(WatchedFiles(files))
    }

    /// Checks that no file was changed since it was opened.
    fn check(&self) -> Result<(), ChangedFile> {
        self.0.iter().try_for_each(|(path, file, identity)| {
            let now = file.metadata().map_err(|error| ChangedFile::unreadable(path, &error))?;
            Identity::from_metadata(&now).check_same_bytes(*identity, path)
        })
    }
}

/// Tensor to encode, divided into parts of whole rows.
struct TensorParts<'p> {
    /// Index of the tensor in the plan.
    index: usize,
    tensor: &'p Tensor,
    from: Format,
    to: Format,
    columns: usize,
    /// Number of rows in a matrix.
    rows: usize,
    /// Number of bytes in a row, in the source and in the output.
    from_bytes: usize,
    to_bytes: usize,
    /// Max number of rows in a part.
    max_rows: usize,
    /// Importance of each column. It has one row for all matrices, or one row for each matrix.
    importance: Option<&'p [f32]>,
}

impl TensorParts<'_> {
    /// Returns the number of parts.
    fn count(&self) -> usize {
        self.tensor.bytes().div_ceil((self.max_rows * self.from_bytes) as u64) as usize
    }

    /// Encodes a part. `numbers` is scratch space for one row.
    fn make(&self, source: &Gguf, part: usize, numbers: &mut Vec<f32>, encoded: &mut Vec<u8>) {
        let first = part * self.max_rows;
        let at = (first * self.from_bytes) as u64;
        let count = (self.tensor.bytes() - at).min((self.max_rows * self.from_bytes) as u64);
        let bytes = source.tensor_part(self.tensor, at, count);
        numbers.resize(self.columns, 0.0);
        encoded.resize(bytes.len() / self.from_bytes * self.to_bytes, 0);
        let rows = bytes.chunks_exact(self.from_bytes).zip(encoded.chunks_exact_mut(self.to_bytes));
        for (row, (bytes, encoded)) in rows.enumerate() {
            let importance = self.importance.map(|all| {
                let matrix = if all.len() == self.columns { 0 } else { (first + row) / self.rows };
                &all[matrix * self.columns..][..self.columns]
            });
            self.from.dequantise(bytes, numbers);
            self.to.encode_row(numbers, importance, encoded);
        }
    }
}

/// Job of encoding a part: the part's position, a buffer for its bytes, and a sender for the
/// result.
struct EncodeJob {
    tensor: usize,
    part: usize,
    encoded: Vec<u8>,
    done: SyncSender<Vec<u8>>,
}

/// Threads that encode parts of all tensors before the writer needs them. The writer takes the
/// parts in their order.
struct EncoderThreads<'p> {
    tensors: Arc<Vec<TensorParts<'p>>>,
    /// Position of the next part to encode: indices of its tensor and of the part.
    next: (usize, usize),
    /// Receivers of the parts that are queued, in progress or done, in their order.
    in_progress: VecDeque<Receiver<Vec<u8>>>,
    max_in_progress: usize,
    /// Buffers of parts that were written, for reuse.
    spare_buffers: Vec<Vec<u8>>,
    /// Sender of jobs to the threads. The threads end when it is dropped.
    jobs: Sender<EncodeJob>,
}

impl<'p> EncoderThreads<'p> {
    fn new<'s>(plan: &'p Plan<'p>, scope: &'s Scope<'s, 'p>, threads: usize) -> io::Result<EncoderThreads<'p>> {
        let tensors = Arc::new(plan.parts()?);
        let (jobs, taken) = mpsc::channel::<EncodeJob>();
        let taken = Arc::new(Mutex::new(taken));
        let threads = threads.max(1);
        for _ in 0..threads {
            let (tensors, taken) = (Arc::clone(&tensors), Arc::clone(&taken));
            let source = plan.source;
            let work = move || {
                let mut numbers = Vec::new();
                loop {
                    // A thread panics only while it encodes a part, and it then does not hold the
                    // lock of the queue.
                    let next = taken.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(EncodeJob { tensor, part, mut encoded, done }) = next else { break };
                    tensors[tensor].make(source, part, &mut numbers, &mut encoded);
                    // If the output failed, the receiver was already dropped.
                    let _ = done.send(encoded);
                }
            };
            thread::Builder::new().spawn_scoped(scope, move || SignalStack::default().run(work))?;
        }
        let max_in_progress = threads * PARTS_AHEAD;
        Ok(EncoderThreads {
            tensors,
            next: (0, 0),
            in_progress: VecDeque::new(),
            max_in_progress,
            spare_buffers: Vec::new(),
            jobs,
        })
    }

    /// Queues parts for encoding, as many as `PARTS_AHEAD` allows.
    fn fill(&mut self) {
        while self.in_progress.len() < self.max_in_progress {
            let (tensor, part) = self.next;
            let Some(parts) = self.tensors.get(tensor) else { break };
            if part == parts.count() {
                self.next = (tensor + 1, 0);
                continue;
            }
            self.next = (tensor, part + 1);
            let (done, receiver) = mpsc::sync_channel(1);
            let work = EncodeJob { tensor, part, encoded: self.spare_buffers.pop().unwrap_or_default(), done };
            // If all threads have ended, the receiver below reports the missing part.
            let _ = self.jobs.send(work);
            self.in_progress.push_back(receiver);
        }
    }

    /// Passes the bytes of a tensor to `out`, part by part. Callers must request the tensors in
    /// order.
    fn tensor(&mut self, index: usize, out: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let count = self.tensors.iter().find(|parts| parts.index == index).map_or(0, TensorParts::count);
        for _ in 0..count {
            self.fill();
            let part = self.in_progress.pop_front().and_then(|part| part.recv().ok());
            let Some(part) = part else { return Err(io::Error::other("a thread that encodes tensors ended early")) };
            // The next parts are encoded while this one is written.
            self.fill();
            out(&part)?;
            self.spare_buffers.push(part);
        }
        Ok(())
    }
}
