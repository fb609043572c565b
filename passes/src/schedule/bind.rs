//! Construction of tasks from kernels and named arguments.
//!
//! Callers name each buffer of a kernel. Only this module knows the order of buffers in the
//! kernel's signature. A task's dependencies follow from its arguments and their roles.
//!
//! ```text
//! bind("keys", whole(Source::Keys(0)))  the argument where the signature of `attention` has `keys`
//! ```
//!
//! Invariant: a task has exactly the arguments of each of its kernels, each once.

use std::collections::HashMap;

use ixc_ir::plan::{Arg, Bands, DimExpr, Division, KernelId, Leaves, RowAxis, Source, Split, Task, Variant};
use ixc_kernels::KernelSpec;
use ixc_kernels::generator::signature::{BindError, NamedValue, Role, Signature};
use ixc_kernels::tiling::Use;

use crate::draft::{Resource, Work, WorkItem, fit};
use crate::error::ScheduleError;

/// An argument with the name of the kernel's buffer.
#[derive(Clone, Debug)]
pub struct NamedArg {
    /// Name of the kernel's buffer.
    pub name: &'static str,
    /// The argument.
    pub arg: Arg,
}

/// Binds an argument to a buffer of the kernel.
pub fn bind(name: &'static str, arg: Arg) -> NamedArg {
    NamedArg { name, arg }
}

/// A kernel of a task, for a range of row counts.
pub struct KernelChoice {
    /// Maximum row count for which the kernel is used.
    pub up_to_rows: u32,
    /// Max rows of an item.
    pub row_chunk: u32,
    /// Spec of the chosen kernel.
    pub spec: KernelSpec,
    /// Division of an item by the positions that it attends to, if any.
    pub parts: Option<Parts>,
    /// Division of each column into bands of fewer weight rows, if possible.
    pub bands: Option<NamedBands>,
}

/// Division of each column of a task into bands of fewer weight rows.
pub struct NamedBands {
    /// Number of bands of a column.
    pub count: u64,
    /// Kernel of one band.
    pub spec: KernelSpec,
    /// Bytes from one band to the next, by the kernel's buffers; 0 for buffers not listed.
    pub strides: Vec<(&'static str, u64)>,
}

impl KernelChoice {
    /// Creates the choice for one kernel use in a weight's tiling.
    pub fn new(each: Use, spec: impl Into<KernelSpec>, bands: Option<NamedBands>) -> KernelChoice {
        let Use { up_to_rows, row_chunk, .. } = each;
        KernelChoice { up_to_rows, row_chunk, spec: spec.into(), parts: None, bands }
    }

    /// Creates a choice for any number of rows, `row_chunk` at a time.
    pub fn by_chunks(row_chunk: u32, spec: impl Into<KernelSpec>) -> KernelChoice {
        KernelChoice { up_to_rows: u32::MAX, row_chunk, spec: spec.into(), parts: None, bands: None }
    }

    /// Creates a choice for any number of rows, one by one.
    fn by_rows(spec: impl Into<KernelSpec>) -> KernelChoice {
        KernelChoice::by_chunks(1, spec)
    }

    /// Returns the kernel's signature. If the kernel computes parts, the buffer for a part has the
    /// name of the task's result argument.
    fn signature(&self) -> Signature {
        let mut signature = self.spec.signature();
        if let Some(parts) = &self.parts {
            let own = signature.buffers.iter_mut().find(|buffer| buffer.name == parts.part);
            own.into_iter().for_each(|buffer| buffer.name = parts.result);
        }
        signature
    }
}

/// Division of an item's positions into parts. Each part gives a partial result, and another kernel
/// combines the partial results.
pub struct Parts {
    /// Name of the buffer to which the kernel writes a partial result.
    pub part: &'static str,
    /// The task's argument that `combine` writes, by the name of its buffer in that kernel.
    pub result: &'static str,
    /// Division of the positions or entries that a row attends to.
    pub division: Division,
    /// Number of positions that share an entry.
    pub every: u32,
    /// Contents of a partial result.
    pub leaves: Leaves,
    /// Kernel that combines the parts into the result.
    pub combine: KernelSpec,
}

impl NamedBands {
    /// Returns the bytes between bands for each of the task's arguments, in their order.
    fn strides(&self, args: &[NamedArg], kernel: &str) -> Result<Vec<u64>, ScheduleError> {
        let mut strides = vec![0; args.len()];
        for (name, stride) in &self.strides {
            match args.iter().position(|arg| arg.name == *name) {
                Some(at) => strides[at] = *stride,
                None => return Err(BindError::Missing { kernel: kernel.to_owned(), name }.into()),
            }
        }
        Ok(strides)
    }
}

/// Checks that the signature `own` of a kernel has the same arguments as its task's `signature`.
fn fits(own: &Signature, kernel: &str, signature: &Signature) -> Result<(), BindError> {
    if own.buffers.iter().map(|b| (b.name, b.role)).eq(signature.buffers.iter().map(|b| (b.name, b.role))) {
        return Ok(());
    }
    Err(BindError::Order { kernel: kernel.to_owned(), found: own.names(), expected: signature.names() })
}

/// Buffer names of a kernel that combines parts, except the name of its result.
const COMBINED: [&str; 2] = ["parts", "scratch"];

/// Tasks that were bound so far, and the kernels that they run.
#[derive(Debug, Default)]
pub struct Tasks {
    /// Tasks, and other work of steps.
    pub work: Vec<Work>,
    /// Expert group of each weight that belongs to one, by weight number. A task that reads the
    /// weight waits for the group.
    pub groups: HashMap<u32, u32>,
    kernels: Vec<KernelSpec>,
    ids: HashMap<KernelSpec, KernelId>,
}

impl Tasks {
    /// Creates an empty list. `groups` maps weights to their groups.
    pub fn of_groups(groups: HashMap<u32, u32>) -> Tasks {
        Tasks { groups, ..Tasks::default() }
    }

    /// Returns the kernels, without repetition and in the order of first use, and the tasks.
    pub fn into_parts(self) -> (Vec<KernelSpec>, Vec<Work>) {
        (self.kernels, self.work)
    }

    /// Returns the id of a spec, and adds the spec if it is new.
    ///
    /// # Errors
    /// [`ScheduleError::TooLarge`].
    pub fn kernel(&mut self, spec: impl Into<KernelSpec>) -> Result<KernelId, ScheduleError> {
        let spec = spec.into();
        if let Some(&id) = self.ids.get(&spec) {
            return Ok(id);
        }
        let id = KernelId(fit("number of kernels", self.kernels.len() as u64)?);
        self.kernels.push(spec.clone());
        self.ids.insert(spec, id);
        Ok(id)
    }

    /// Returns the spec of a kernel.
    pub fn spec(&self, kernel: KernelId) -> Option<&KernelSpec> {
        self.kernels.get(kernel.0 as usize)
    }

    /// Adds a task with an item for each column and chunk of rows. `dims` are sizes that the
    /// kernels do not set themselves.
    ///
    /// # Errors
    /// There is no kernel, or the arguments do not match every kernel.
    pub fn task(
        &mut self,
        label: String,
        rows: RowAxis,
        columns: u64,
        choices: Vec<KernelChoice>,
        dims: &[NamedValue<DimExpr>],
        args: Vec<NamedArg>,
    ) -> Result<(), ScheduleError> {
        let Some(first) = choices.first() else {
            return Err(ScheduleError::Unsupported { op: "task", problem: format!("{label} has no kernel") });
        };
        let signature = first.signature();
        let args = args.into_iter().map(|arg| NamedValue { name: arg.name, value: arg }).collect();
        let args: Vec<NamedArg> = signature.order(&first.spec.name(), args)?;
        let columns = fit("columns of a task", columns)?;
        let variants =
            choices.iter().map(|choice| self.variant(choice, &signature, &args, dims)).collect::<Result<_, _>>()?;

        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        if let RowAxis::Routed(bucket) = rows {
            reads.push(Resource::Bucket(bucket.0));
        }
        for NamedArg { name, arg } in &args {
            let resource = match arg.source {
                Source::Arena(buffer) => Resource::Buffer(buffer.0),
                Source::State { state, .. } => Resource::State(state),
                Source::Input(input) => match input.bucket() {
                    Some(bucket) => Resource::Bucket(bucket.0),
                    None => continue,
                },
                Source::Weight(weight) => match self.groups.get(&weight) {
                    Some(&group) => Resource::Group(group),
                    None => continue,
                },
                Source::Chosen { state, marks, .. } => {
                    reads.extend([Resource::State(state), Resource::Buffer(marks.0)]);
                    continue;
                }
                Source::Rope(_) | Source::Scratch => continue,
            };
            match signature.buffer(name).map(|buffer| buffer.role) {
                // A state is updated in order: each update waits for the previous one.
                Some(Role::Update) => {
                    reads.push(resource);
                    writes.push(resource);
                }
                Some(Role::Write) => writes.push(resource),
                Some(Role::Read | Role::Index | Role::Scratch) | None => reads.push(resource),
            }
        }
        let args = args.into_iter().map(|named| named.arg).collect();
        self.work.push(Work { what: WorkItem::Task(Task { label, rows, columns, variants, args }), reads, writes });
        Ok(())
    }

    /// Adds a task with an item for each row and column.
    ///
    /// # Errors
    /// The arguments do not match the kernel.
    pub fn by_rows(
        &mut self,
        label: String,
        rows: RowAxis,
        columns: u64,
        spec: impl Into<KernelSpec>,
        dims: &[NamedValue<DimExpr>],
        args: Vec<NamedArg>,
    ) -> Result<(), ScheduleError> {
        self.task(label, rows, columns, vec![KernelChoice::by_rows(spec)], dims, args)
    }

    /// Returns the variant of a task for one choice of kernel. The kernel's arguments must match
    /// `signature`.
    fn variant(
        &mut self,
        choice: &KernelChoice,
        signature: &Signature,
        args: &[NamedArg],
        dims: &[NamedValue<DimExpr>],
    ) -> Result<Variant, ScheduleError> {
        let (own, kernel) = (choice.signature(), choice.spec.name());
        fits(&own, &kernel, signature)?;
        let bands = match &choice.bands {
            Some(bands) => {
                let (own, kernel) = (bands.spec.signature(), bands.spec.name());
                fits(&own, &kernel, signature)?;
                Some(Bands {
                    count: fit("bands of a column", bands.count)?,
                    kernel: self.kernel(bands.spec.clone())?,
                    dims: own.dim_values(&kernel, dims)?,
                    strides: bands.strides(args, &kernel)?,
                })
            }
            None => None,
        };
        let split = choice.parts.as_ref().map(|parts| self.bind_parts(parts, args, &kernel)).transpose()?;
        Ok(Variant {
            up_to_rows: choice.up_to_rows,
            row_chunk: choice.row_chunk,
            dims: own.dim_values(&kernel, dims)?,
            kernel: self.kernel(choice.spec.clone())?,
            split,
            bands,
        })
    }

    fn bind_parts(&mut self, parts: &Parts, args: &[NamedArg], kernel: &str) -> Result<Split, ScheduleError> {
        let Parts { result, division, every, leaves, combine, .. } = parts;
        let missing = || BindError::Missing { kernel: kernel.to_owned(), name: result };
        let argument = args.iter().position(|arg| arg.name == *result).ok_or_else(missing)?;
        // The runtime passes the buffers in this order.
        combine.order([COMBINED[0], result, COMBINED[1]].map(|name| NamedValue { name, value: () }).into())?;
        Ok(Split {
            argument: fit("arguments of a task", argument as u64)?,
            division: *division,
            every: *every,
            leaves: *leaves,
            combine: self.kernel(combine.clone())?,
            alone: None,
        })
    }
}
