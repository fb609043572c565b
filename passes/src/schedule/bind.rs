//! Tasks of kernels and of arguments by name.
//!
//! The lowering says what each buffer of a kernel is; here alone is it put in the kernel's order, by its signature. What a task waits
//! for follows from its arguments and their roles.
//!
//! ```text
//! ("keys", whole(Source::Keys(0)))     the argument where the signature of `attention` has `keys`
//! ```
//!
//! Leaves true: a task's arguments are those of each of its kernels, none is missing, none is there twice.

use ixc_ir::plan::{Arg, DimRule, Division, Input, RowAxis, Source, Split, Task, Variant};
use ixc_kernels::KernelSpec;
use ixc_kernels::signature::{BindError, Role, Signature};
use ixc_kernels::tiling::Use;

use super::lower::{Lowering, Rows, fit};
use super::{Resource, ScheduleError, What, Work};

/// An argument, and the kernel's buffer that it is for.
pub(super) type Named = (&'static str, Arg);

/// A kernel of a task, for a range of row counts.
pub(super) struct Choice {
    /// Used for row counts up to this.
    pub(super) up_to_rows: u32,
    /// Most rows of an item.
    pub(super) row_chunk: u32,
    /// The kernel.
    pub(super) spec: KernelSpec,
    /// How its items are divided by positions, where they are.
    pub(super) parts: Option<Parts>,
}

impl Choice {
    /// As the weight's tiling says.
    pub(super) fn of(each: Use, spec: impl Into<KernelSpec>) -> Choice {
        Choice { up_to_rows: each.up_to_rows, row_chunk: each.row_chunk, spec: spec.into(), parts: None }
    }

    /// For any number of rows, one by one.
    fn by_rows(spec: KernelSpec) -> Choice {
        Choice { up_to_rows: u32::MAX, row_chunk: 1, spec, parts: None }
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
pub(super) struct Parts {
    /// The kernel's buffer that a part is written to.
    pub(super) part: &'static str,
    /// The task's argument that `combine` writes, by the name of its buffer there.
    pub(super) result: &'static str,
    /// How positions are divided.
    pub(super) division: Division,
    /// Makes the result of the parts.
    pub(super) combine: KernelSpec,
    /// Makes one of several equal pieces of it.
    pub(super) alone: Option<KernelSpec>,
}

/// What the buffers of a kernel that combines parts are called, but for its result.
const COMBINED: [&str; 2] = ["parts", "scratch"];

impl Lowering<'_> {
    /// Adds a task of columns times rows. `dims` are those that are not the kernels' own.
    pub(super) fn task(
        &mut self,
        label: String,
        (rows, columns): (RowAxis, u64),
        choices: Vec<Choice>,
        dims: &[(&'static str, DimRule)],
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
                Source::Weight(weight) => match self.residency.group_of(weight) {
                    Some(group) => Resource::Group(group),
                    None => continue,
                },
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

    /// A kernel of a task whose arguments are those of `signature`.
    fn variant(
        &mut self,
        choice: &Choice,
        signature: &Signature,
        args: &[Named],
        dims: &[(&'static str, DimRule)],
    ) -> Result<Variant, ScheduleError> {
        let (own, kernel) = (choice.signature(), choice.spec.name());
        if own.buffers.iter().map(|b| (b.name, b.role)).ne(signature.buffers.iter().map(|b| (b.name, b.role))) {
            return Err(BindError::Order { kernel, found: own.names(), expected: signature.names() }.into());
        }
        let split = choice.parts.as_ref().map(|parts| self.divided(parts, args, &kernel)).transpose()?;
        Ok(Variant {
            up_to_rows: choice.up_to_rows,
            row_chunk: choice.row_chunk,
            dims: own.dim_rules(&kernel, dims)?,
            kernel: self.kernel(choice.spec.clone())?,
            split,
        })
    }

    fn divided(&mut self, parts: &Parts, args: &[Named], kernel: &str) -> Result<Split, ScheduleError> {
        let Parts { result, division, combine, alone, .. } = parts;
        let missing = || BindError::Missing { kernel: kernel.to_owned(), name: result };
        let argument = args.iter().position(|(name, _)| name == result).ok_or_else(missing)?;
        for spec in std::iter::once(combine).chain(alone) {
            // As the runtime calls it.
            spec.order(vec![(COMBINED[0], ()), (result, ()), (COMBINED[1], ())])?;
        }
        Ok(Split {
            argument: fit("arguments of a task", argument as u64)?,
            division: *division,
            combine: self.kernel(combine.clone())?,
            alone: alone.as_ref().map(|alone| self.kernel(alone.clone())).transpose()?,
        })
    }

    /// A task with an item for each row and column.
    pub(super) fn by_rows(
        &mut self,
        label: String,
        rows: Rows,
        columns: u64,
        (spec, dims): (impl Into<KernelSpec>, &[(&'static str, DimRule)]),
        args: Vec<Named>,
    ) -> Result<(), ScheduleError> {
        self.task(label, (rows.axis(), columns), vec![Choice::by_rows(spec.into())], dims, args)
    }
}
