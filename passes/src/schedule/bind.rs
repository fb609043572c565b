//! Tasks of kernels and of arguments by name.
//!
//! Who makes a task says what each buffer of its kernel is; here alone is it put in the kernel's order, by its signature. What a task waits
//! for follows from its arguments and their roles.
//!
//! ```text
//! ("keys", whole(Source::Keys(0)))     the argument where the signature of `attention` has `keys`
//! ```
//!
//! Leaves true: a task's arguments are those of each of its kernels, none is missing, none is there twice.

use std::collections::HashMap;

use ixc_ir::plan::{Arg, Bands, DimExpr, Division, Input, KernelId, Leaves, RowAxis, Source, Split, Task, Variant};
use ixc_kernels::KernelSpec;
use ixc_kernels::signature::{BindError, Role, Signature};
use ixc_kernels::tiling::Use;

use crate::draft::{Resource, What, Work, fit};
use crate::error::ScheduleError;

/// An argument, and the kernel's buffer that it is for.
pub type Named = (&'static str, Arg);

/// A kernel of a task, for a range of row counts.
pub struct KernelChoice {
    /// Used for row counts up to this.
    pub up_to_rows: u32,
    /// Most rows of an item.
    pub row_chunk: u32,
    /// The kernel.
    pub spec: KernelSpec,
    /// How its items are divided by positions, where they are.
    pub parts: Option<Parts>,
    /// How its columns can be divided, where they can.
    pub bands: Option<NamedBands>,
}

/// Bands of a column.
pub struct NamedBands {
    /// Bands of a column.
    pub count: u64,
    /// The kernel of one.
    pub spec: KernelSpec,
    /// Bytes from a band to the next, by the kernel's buffers; 0 for those that are not here.
    pub strides: Vec<(&'static str, u64)>,
}

impl KernelChoice {
    /// As the weight's tiling says.
    pub fn of(each: Use, spec: impl Into<KernelSpec>, bands: Option<NamedBands>) -> KernelChoice {
        let Use { up_to_rows, row_chunk, .. } = each;
        KernelChoice { up_to_rows, row_chunk, spec: spec.into(), parts: None, bands }
    }

    /// For any number of rows, so many at a time.
    pub fn by_chunks(row_chunk: u32, spec: impl Into<KernelSpec>) -> KernelChoice {
        KernelChoice { up_to_rows: u32::MAX, row_chunk, spec: spec.into(), parts: None, bands: None }
    }

    /// For any number of rows, one by one.
    fn by_rows(spec: impl Into<KernelSpec>) -> KernelChoice {
        KernelChoice::by_chunks(1, spec)
    }

    /// The kernel's signature with the names of the task's arguments.
    fn signature(&self) -> Signature {
        let mut signature = self.spec.signature();
        if let Some(parts) = &self.parts {
            let own = signature.buffers.iter_mut().find(|buffer| buffer.name == parts.part);
            own.into_iter().for_each(|buffer| buffer.name = parts.result);
        }
        signature
    }
}

/// Parts of a result, which another kernel combines.
pub struct Parts {
    /// The kernel's buffer that a part is written to.
    pub part: &'static str,
    /// The task's argument that `combine` writes, by the name of its buffer there.
    pub result: &'static str,
    /// Division of the places that a row sees.
    pub division: Division,
    /// Positions that share a place.
    pub every: u32,
    /// What a part leaves.
    pub leaves: Leaves,
    /// Makes the result of the parts.
    pub combine: KernelSpec,
}

impl NamedBands {
    /// The strides in the order of a task's arguments.
    fn strides(&self, args: &[Named], kernel: &str) -> Result<Vec<u64>, ScheduleError> {
        let mut strides = vec![0; args.len()];
        for (name, stride) in &self.strides {
            match args.iter().position(|(arg, _)| arg == name) {
                Some(at) => strides[at] = *stride,
                None => return Err(BindError::Missing { kernel: kernel.to_owned(), name }.into()),
            }
        }
        Ok(strides)
    }
}

/// That a kernel takes the arguments of its task, whose signature that is.
fn fits(own: &Signature, kernel: &str, signature: &Signature) -> Result<(), BindError> {
    if own.buffers.iter().map(|b| (b.name, b.role)).eq(signature.buffers.iter().map(|b| (b.name, b.role))) {
        return Ok(());
    }
    Err(BindError::Order { kernel: kernel.to_owned(), found: own.names(), expected: signature.names() })
}

/// What the buffers of a kernel that combines parts are called, but for its result.
const COMBINED: [&str; 2] = ["parts", "scratch"];

/// Tasks as they are made, and the kernels that they run.
#[derive(Debug, Default)]
pub struct Tasks {
    /// Tasks, and what else a step may be.
    pub work: Vec<Work>,
    /// The group of each weight of the plan that is in one: what reads the weight waits for the group.
    pub groups: HashMap<u32, u32>,
    kernels: Vec<KernelSpec>,
    ids: HashMap<KernelSpec, KernelId>,
}

impl Tasks {
    /// None yet, where weights are in groups already.
    pub fn of_groups(groups: HashMap<u32, u32>) -> Tasks {
        Tasks { groups, ..Tasks::default() }
    }

    /// The kernels, each once and in the order in which they came up, and the tasks.
    pub fn into_parts(self) -> (Vec<KernelSpec>, Vec<Work>) {
        (self.kernels, self.work)
    }

    /// The kernel of a spec.
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

    /// The spec of a kernel.
    pub fn spec(&self, kernel: KernelId) -> Option<&KernelSpec> {
        self.kernels.get(kernel.0 as usize)
    }

    /// Adds a task of columns times rows. `dims` are those that are not the kernels' own.
    ///
    /// # Errors
    /// Where there is no kernel, or the arguments are not those of each.
    pub fn task(
        &mut self,
        label: String,
        (rows, columns): (RowAxis, u64),
        choices: Vec<KernelChoice>,
        dims: &[(&'static str, DimExpr)],
        args: Vec<Named>,
    ) -> Result<(), ScheduleError> {
        let Some(first) = choices.first() else {
            return Err(ScheduleError::Unsupported { op: "task", problem: format!("{label} has no kernel") });
        };
        let signature = first.signature();
        let args: Vec<Named> =
            signature.order(&first.spec.name(), args.into_iter().map(|(name, arg)| (name, (name, arg))).collect())?;
        let columns = fit("columns of a task", columns)?;
        let variants =
            choices.iter().map(|choice| self.variant(choice, &signature, &args, dims)).collect::<Result<_, _>>()?;

        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        if let RowAxis::Routed(bucket) = rows {
            reads.push(Resource::Bucket(bucket.0));
        }
        for (name, arg) in &args {
            let resource = match arg.source {
                Source::Arena(buffer) => Resource::Buffer(buffer.0),
                Source::State { state, .. } => Resource::State(state),
                Source::Input(Input::RoutedToken(bucket) | Input::RoutedSlot(bucket)) => Resource::Bucket(bucket.0),
                Source::Weight(weight) => match self.groups.get(&weight) {
                    Some(&group) => Resource::Group(group),
                    None => continue,
                },
                Source::Chosen { state, marks, .. } => {
                    reads.extend([Resource::State(state), Resource::Buffer(marks.0)]);
                    continue;
                }
                Source::Rope(_) | Source::Scratch | Source::Input(_) => continue,
            };
            match signature.buffer(name).map(|buffer| buffer.role) {
                // Whoever changes something waits for whoever did before.
                Some(Role::Update) => {
                    reads.push(resource);
                    writes.push(resource);
                }
                Some(Role::Write) => writes.push(resource),
                Some(Role::Read | Role::Index | Role::Scratch) | None => reads.push(resource),
            }
        }
        let args = args.into_iter().map(|(_, arg)| arg).collect();
        self.work.push(Work { what: What::Task(Task { label, rows, columns, variants, args }), reads, writes });
        Ok(())
    }

    /// A task with an item for each row and column.
    ///
    /// # Errors
    /// Where the arguments are not the kernel's.
    pub fn by_rows(
        &mut self,
        label: String,
        axis: (RowAxis, u64),
        (spec, dims): (impl Into<KernelSpec>, &[(&'static str, DimExpr)]),
        args: Vec<Named>,
    ) -> Result<(), ScheduleError> {
        self.task(label, axis, vec![KernelChoice::by_rows(spec)], dims, args)
    }

    /// A kernel of a task whose arguments are those of `signature`.
    fn variant(
        &mut self,
        choice: &KernelChoice,
        signature: &Signature,
        args: &[Named],
        dims: &[(&'static str, DimExpr)],
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
        let split = choice.parts.as_ref().map(|parts| self.divided(parts, args, &kernel)).transpose()?;
        Ok(Variant {
            up_to_rows: choice.up_to_rows,
            row_chunk: choice.row_chunk,
            dims: own.dim_values(&kernel, dims)?,
            kernel: self.kernel(choice.spec.clone())?,
            split,
            bands,
        })
    }

    fn divided(&mut self, parts: &Parts, args: &[Named], kernel: &str) -> Result<Split, ScheduleError> {
        let Parts { result, division, every, leaves, combine, .. } = parts;
        let missing = || BindError::Missing { kernel: kernel.to_owned(), name: result };
        let argument = args.iter().position(|(name, _)| name == result).ok_or_else(missing)?;
        // As the runtime calls it.
        combine.order(vec![(COMBINED[0], ()), (result, ()), (COMBINED[1], ())])?;
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
