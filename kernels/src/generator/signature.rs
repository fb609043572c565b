//! Signature of a kernel: buffers and dims by name, in the order of its kernel IR.
//!
//! ```
//! use ixc_kernels::KernelSpec;
//! use ixc_kernels::generator::signature::{NamedValue, Role};
//!
//! let spec: KernelSpec = "map function=add n=16".parse().unwrap();
//! let signature = spec.signature();
//! let names: Vec<_> = signature.buffers.iter().map(|buffer| buffer.name).collect();
//! assert_eq!(names, ["a", "b", "y"]);
//! assert_eq!(signature.buffer("y").unwrap().role, Role::Write);
//! // Callers bind buffers by name. The signature determines their order.
//! let bound = |name, value| NamedValue { name, value };
//! assert_eq!(spec.order(vec![bound("y", 3), bound("b", 2), bound("a", 1)]).unwrap(), [1, 2, 3]);
//! let error = spec.order(vec![bound("a", 1), bound("b", 2)]).unwrap_err();
//! assert_eq!(error.to_string(), "add_n16: no argument is bound to %y");
//! ```
//!
//! Invariant: the buffers and dims of every kernel from [`crate::generate()`] match its signature.

use ixc_ir::format::Format;
use ixc_ir::kernel::{BufferKind, Kernel};
use ixc_ir::plan::DimExpr;

/// Value of a kernel's buffer or dim, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedValue<T> {
    /// Name of the buffer or dim.
    pub name: &'static str,
    /// Value of the buffer or dim.
    pub value: T,
}

/// Use of a buffer by a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The kernel reads the buffer.
    Read,
    /// The kernel reads row positions from the buffer. Each is checked before the kernel runs.
    Index,
    /// The kernel writes a whole result to the buffer, and may read that result.
    Write,
    /// The kernel reads the earlier contents and writes new ones.
    Update,
    /// Scratch memory, without contents before or after a call.
    Scratch,
}

/// Contents of a buffer. Formats come with the name of the spec's field that determines them. Test
/// runs fill buffers by it, and a spec is refused if a format is not allowed in its field. A weight
/// that is f32 in every spec is [`BufferContents::Floats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferContents {
    /// Rows of a matrix, packed or not.
    Weight(Format, &'static str),
    /// Rows of a table, which are not packed.
    Table(Format, &'static str),
    /// A strip of a packed matrix.
    Strip(Format, &'static str),
    /// Rows in f32 or a format of activations.
    Activations(Format, &'static str),
    /// f32.
    Floats,
    /// f32 above 0.
    Positive,
    /// f32 below 0.
    Negative,
    /// Small f32 above 0: slopes of the decrease of scores with distance.
    Slopes,
    /// f16.
    Halves,
    /// Panels of the KV cache, in blocks of a format ([`ixc_ir::cache`]).
    Panels(Format),
    /// Positions in the cache, i32, of consecutive rows.
    Positions,
    /// Number of complete entries, i32, at most up to the end of the last block.
    Whole,
    /// Row numbers, i32.
    Ids,
    /// Bytes of any kind.
    Bytes,
}

/// A buffer of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Name in the kernel IR.
    pub name: &'static str,
    /// Use by the kernel.
    pub role: Role,
    /// Contents of the buffer.
    pub holds: BufferContents,
    /// Whether the kernels of some targets lack the buffer.
    pub optional: bool,
}

/// A run-time size of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dim {
    /// Name in the kernel IR.
    pub name: &'static str,
    /// Value for an item; `None` if the task provides it.
    pub value: Option<DimExpr>,
}

/// Buffers and dims of a kernel, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// Buffers; scratch, which some kernels lack, comes last.
    pub buffers: Vec<Buffer>,
    /// Dims of the kernel.
    pub dims: Vec<Dim>,
}

/// Reason why names do not match a kernel's arguments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// A buffer or dim without a binding.
    #[error("{kernel}: no argument is bound to %{name}")]
    Missing {
        /// The kernel's name.
        kernel: String,
        /// The buffer or dim.
        name: &'static str,
    },
    /// A name that is bound twice.
    #[error("{kernel}: %{name} is bound twice")]
    Twice {
        /// The kernel's name.
        kernel: String,
        /// The buffer or dim.
        name: &'static str,
    },
    /// A name that the kernel does not have.
    #[error("{kernel} has no %{name}; it has {}", expected.join(", "))]
    Unknown {
        /// The kernel's name.
        kernel: String,
        /// Name that occurs twice.
        name: &'static str,
        /// Names that the kernel has.
        expected: Vec<&'static str>,
    },
    /// A kernel whose arguments are in another order than the task's arguments.
    #[error("{kernel} takes {}; the task's arguments are {}", found.join(", "), expected.join(", "))]
    Order {
        /// The kernel's name.
        kernel: String,
        /// Buffers of the kernel.
        found: Vec<&'static str>,
        /// The task's arguments.
        expected: Vec<&'static str>,
    },
}

impl Signature {
    /// Creates an empty signature.
    pub fn new() -> Signature {
        Signature::default()
    }

    fn with(mut self, name: &'static str, role: Role, holds: BufferContents) -> Signature {
        self.buffers.push(Buffer { name, role, holds, optional: false });
        self
    }

    /// Adds a buffer that is read.
    pub fn read(self, name: &'static str, holds: BufferContents) -> Signature {
        self.with(name, Role::Read, holds)
    }

    /// Adds a buffer that is read, if `is_there` is set.
    pub fn read_if(self, is_there: bool, name: &'static str, holds: BufferContents) -> Signature {
        if is_there { self.read(name, holds) } else { self }
    }

    /// Adds a buffer of row numbers.
    pub fn index(self, name: &'static str) -> Signature {
        self.with(name, Role::Index, BufferContents::Ids)
    }

    /// Adds a result.
    pub fn write(self, name: &'static str, holds: BufferContents) -> Signature {
        self.with(name, Role::Write, holds)
    }

    /// Adds a buffer that is read and written.
    pub fn update(self, name: &'static str, holds: BufferContents) -> Signature {
        self.with(name, Role::Update, holds)
    }

    /// Adds scratch memory.
    pub fn scratch(self, name: &'static str) -> Signature {
        self.with(name, Role::Scratch, BufferContents::Bytes)
    }

    /// Adds scratch memory that kernels of some targets do not need.
    pub fn optional_scratch(self, name: &'static str) -> Signature {
        let mut signature = self.scratch(name);
        signature.buffers.iter_mut().filter(|buffer| buffer.name == name).for_each(|buffer| buffer.optional = true);
        signature
    }

    /// Adds a dim.
    pub fn dim(mut self, name: &'static str, value: impl Into<DimExpr>) -> Signature {
        self.dims.push(Dim { name, value: Some(value.into()) });
        self
    }

    /// Adds a dim, if `there` is set.
    pub fn dim_if(self, there: bool, name: &'static str, value: impl Into<DimExpr>) -> Signature {
        if there { self.dim(name, value) } else { self }
    }

    /// Adds a dim whose value the task provides.
    pub fn dim_of_task(mut self, name: &'static str) -> Signature {
        self.dims.push(Dim { name, value: None });
        self
    }

    /// Adds several dims.
    pub fn dims(mut self, dims: impl IntoIterator<Item = Dim>) -> Signature {
        self.dims.extend(dims);
        self
    }

    /// Returns the buffer with this name.
    pub fn buffer(&self, name: &str) -> Option<&Buffer> {
        self.buffers.iter().find(|buffer| buffer.name == name)
    }

    /// Returns the names of the buffers, in order.
    pub fn names(&self) -> Vec<&'static str> {
        self.buffers.iter().map(|buffer| buffer.name).collect()
    }

    /// Returns the bindings in the order of the buffers. Optional buffers need no binding.
    ///
    /// # Errors
    /// A [`BindError`] that names the kernel: a buffer without an argument, or an argument without
    /// a buffer.
    pub fn order<T>(&self, kernel: &str, bound: Vec<NamedValue<T>>) -> Result<Vec<T>, BindError> {
        let place = |buffer: &Buffer| Place { name: buffer.name, optional: buffer.optional };
        let wanted: Vec<Place> = self.buffers.iter().map(place).collect();
        arrange(kernel, &wanted, bound)
    }

    /// Returns the values of the dims in order: those that the signature defines, and those of the
    /// task.
    ///
    /// # Errors
    /// Errors of [`Signature::order`], for dims.
    pub fn dim_values(&self, kernel: &str, of_task: &[NamedValue<DimExpr>]) -> Result<Vec<DimExpr>, BindError> {
        let own = self.dims.iter().filter_map(|dim| Some(NamedValue { name: dim.name, value: dim.value.clone()? }));
        let wanted: Vec<Place> = self.dims.iter().map(|dim| Place { name: dim.name, optional: false }).collect();
        arrange(kernel, &wanted, own.chain(of_task.iter().cloned()).collect())
    }

    /// Returns the first property in which a kernel differs from the signature.
    pub(crate) fn difference(&self, kernel: &Kernel) -> Option<&'static str> {
        let (most, found) = (self.buffers.len(), kernel.buffers.len());
        let least = self.buffers.iter().filter(|buffer| !buffer.optional).count();
        if !(least..=most).contains(&found) {
            return Some("number of buffers");
        }
        let agree = |(own, other): (&Buffer, &ixc_ir::kernel::Buffer)| {
            let role = match other.kind {
                BufferKind::Read => Role::Read,
                BufferKind::Index { .. } => Role::Index,
                BufferKind::Write | BufferKind::ReadWrite => Role::Write,
                BufferKind::Scratch => Role::Scratch,
            };
            let updates = own.role == Role::Update && other.kind == BufferKind::ReadWrite;
            own.name == other.name && (own.role == role || updates)
        };
        if !self.buffers.iter().zip(&kernel.buffers).all(agree) {
            return Some("names or roles of buffers");
        }
        let dims = self.dims.iter().map(|dim| dim.name);
        (!dims.eq(kernel.dims.iter().map(|dim| dim.name.as_str()))).then_some("dims")
    }
}

/// A buffer or dim that takes a binding.
struct Place {
    name: &'static str,
    /// Whether the buffer or dim needs no binding.
    optional: bool,
}

/// Returns the bindings in the order of the `wanted` names.
fn arrange<T>(kernel: &str, wanted: &[Place], bound: Vec<NamedValue<T>>) -> Result<Vec<T>, BindError> {
    let mut places: Vec<Option<T>> = wanted.iter().map(|_| None).collect();
    for NamedValue { name, value } in bound {
        let Some(at) = wanted.iter().position(|place| place.name == name) else {
            let expected = wanted.iter().map(|place| place.name).collect();
            return Err(BindError::Unknown { kernel: kernel.to_owned(), name, expected });
        };
        if places[at].replace(value).is_some() {
            return Err(BindError::Twice { kernel: kernel.to_owned(), name });
        }
    }
    let mut ordered = Vec::with_capacity(places.len());
    for (value, &Place { name, optional }) in places.into_iter().zip(wanted) {
        match value {
            Some(value) => ordered.push(value),
            None if optional => {}
            None => return Err(BindError::Missing { kernel: kernel.to_owned(), name }),
        }
    }
    Ok(ordered)
}

#[cfg(test)]
mod tests {
    use ixc_ir::plan::DimInput;

    use super::*;
    use crate::KernelSpec;

    #[test]
    fn names_are_bound_once_each() {
        let spec: KernelSpec = "linear format=f32 k=8 tile=8 n=8 residual shape=gemv".parse().unwrap();
        let order =
            |names: &[&'static str]| spec.order(names.iter().map(|&name| NamedValue { name, value: name }).collect());
        assert_eq!(order(&["scratch", "y", "residual", "w", "x"]).unwrap(), ["x", "w", "residual", "y", "scratch"]);
        assert_eq!(order(&["x", "w", "residual", "y"]).unwrap().len(), 4);
        let error = |names: &[&'static str]| order(names).unwrap_err().to_string();
        assert!(error(&["x", "w", "y"]).ends_with("no argument is bound to %residual"));
        assert!(error(&["x", "w", "residual", "y", "x"]).ends_with("%x is bound twice"));
        assert!(
            error(&["x", "w", "residual", "y", "bias"]).ends_with("has no %bias; it has x, w, residual, y, scratch")
        );
    }

    #[test]
    fn dims_come_from_the_kernel_or_the_task() {
        let dims = |text: &str, of_task: &[&'static str]| {
            let spec: KernelSpec = text.parse().unwrap();
            let of_task: Vec<_> =
                of_task.iter().map(|&name| NamedValue { name, value: DimInput::Rows.into() }).collect();
            spec.signature().dim_values(&spec.name(), &of_task).map_err(|error| error.to_string())
        };
        assert_eq!(dims("gather bytes=4", &["rows"]), Ok(vec![DimInput::Rows.into()]));
        assert_eq!(dims("gather bytes=4", &[]), Err("gather_b4: no argument is bound to %rows".into()));
        let twice = dims("rope_heads heads=1 d=2 dims=2 style=neox", &["blocks"]);
        assert!(twice.unwrap_err().ends_with("%blocks is bound twice"));
    }

    #[test]
    fn catalogue_dims_read_back_and_have_ranges() {
        for row in &*crate::catalogue::ROWS {
            let spec: KernelSpec = row.text.parse().unwrap();
            for dim in spec.signature().dims.iter().filter_map(|dim| dim.value.as_ref()) {
                assert_eq!(dim.to_string().parse::<DimExpr>().as_ref(), Ok(dim), "{}", row.name);
                let range = dim.range(DimInput::bounds);
                assert!(range.is_ok(), "{}: {range:?}", row.name);
            }
        }
    }
}
