//! Signature of a kernel: the names of its buffers and dims, in the order of its kernel IR.
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

/// Value that is bound to a buffer or dim, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedValue<T> {
    /// Name of the buffer or dim.
    pub name: &'static str,
    /// Value that is bound to the name.
    pub value: T,
}

/// A kernel's use of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The kernel reads the buffer.
    Read,
    /// The kernel reads index values, such as row numbers, from the buffer. The caller checks each
    /// of them before the kernel runs.
    Index,
    /// The kernel writes a whole result to the buffer, and may read what it has written.
    Write,
    /// The kernel reads the contents before the call, and writes new ones.
    Update,
    /// Scratch memory, whose contents before and after a call have no meaning.
    Scratch,
}

/// Contents of a buffer, which test runs fill in. Formats have the name of the spec's field that
/// determines them; a spec with a format that the field does not allow is rejected. A weight that
/// is f32 in every spec is [`BufferContents::Floats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferContents {
    /// Rows of a weight matrix, packed or in the file layout.
    Weight(Format, &'static str),
    /// Rows of a table in the file layout.
    Table(Format, &'static str),
    /// A strip of 16 rows of a packed matrix.
    Strip(Format, &'static str),
    /// Rows in f32 or in an activation format.
    Activations(Format, &'static str),
    /// f32 numbers.
    Floats,
    /// f32 numbers above 0.
    Positive,
    /// f32 numbers below 0.
    Negative,
    /// Small f32 numbers above 0: slopes of the decrease of scores with distance.
    Slopes,
    /// f16 numbers.
    Halves,
    /// Panels of the KV cache in a block format ([`ixc_ir::cache`]).
    Panels(Format),
    /// Positions of consecutive rows in the KV cache, i32.
    Positions,
    /// Number of complete entries of each row, i32. It does not exceed the end of the last block.
    Whole,
    /// Row numbers or other ids, i32.
    Ids,
    /// Bytes without a specified meaning.
    Bytes,
}

/// A buffer of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Name in the kernel IR.
    pub name: &'static str,
    /// Use of the buffer by the kernel.
    pub role: Role,
    /// Contents of the buffer.
    pub holds: BufferContents,
    /// Whether the kernels of some targets do not have this buffer.
    pub optional: bool,
}

/// A run-time size of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dim {
    /// Name in the kernel IR.
    pub name: &'static str,
    /// Value of the dim for an item. `None` if the task provides it.
    pub value: Option<DimExpr>,
}

/// Buffers and dims of a kernel, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// Buffers of the kernel. Scratch memory, which some kernels do not have, is the last one.
    pub buffers: Vec<Buffer>,
    /// Dims of the kernel.
    pub dims: Vec<Dim>,
}

/// Reason why bindings do not match a kernel's buffers or dims.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// A buffer or dim that has no binding.
    #[error("{kernel}: no argument is bound to %{name}")]
    Missing {
        /// Name of the kernel.
        kernel: String,
        /// Name of the buffer or dim.
        name: &'static str,
    },
    /// A name that has two bindings.
    #[error("{kernel}: %{name} is bound twice")]
    Twice {
        /// Name of the kernel.
        kernel: String,
        /// Name of the buffer or dim.
        name: &'static str,
    },
    /// A binding of a name that the kernel does not have.
    #[error("{kernel} has no %{name}; it has {}", expected.join(", "))]
    Unknown {
        /// Name of the kernel.
        kernel: String,
        /// Name in the binding.
        name: &'static str,
        /// Names that the kernel has.
        expected: Vec<&'static str>,
    },
    /// A kernel whose buffers have another order than the task's arguments.
    #[error("{kernel} takes {}; the task's arguments are {}", found.join(", "), expected.join(", "))]
    Order {
        /// Name of the kernel.
        kernel: String,
        /// Buffers of the kernel, in its order.
        found: Vec<&'static str>,
        /// Arguments of the task, in its order.
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

    /// Adds a buffer that the kernel reads.
    pub fn read(self, name: &'static str, holds: BufferContents) -> Signature {
        self.with(name, Role::Read, holds)
    }

    /// Adds a buffer that the kernel reads, if `is_there` is true.
    pub fn read_if(self, is_there: bool, name: &'static str, holds: BufferContents) -> Signature {
        if is_there { self.read(name, holds) } else { self }
    }

    /// Adds a buffer of index values.
    pub fn index(self, name: &'static str) -> Signature {
        self.with(name, Role::Index, BufferContents::Ids)
    }

    /// Adds a buffer that the kernel writes.
    pub fn write(self, name: &'static str, holds: BufferContents) -> Signature {
        self.with(name, Role::Write, holds)
    }

    /// Adds a buffer that the kernel reads and writes.
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

    /// Adds a dim with its value for an item.
    pub fn dim(mut self, name: &'static str, value: impl Into<DimExpr>) -> Signature {
        self.dims.push(Dim { name, value: Some(value.into()) });
        self
    }

    /// Adds a dim with its value for an item, if `there` is true.
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

    /// Returns the buffer with this name, or `None`.
    pub fn buffer(&self, name: &str) -> Option<&Buffer> {
        self.buffers.iter().find(|buffer| buffer.name == name)
    }

    /// Returns the names of the buffers, in order.
    pub fn names(&self) -> Vec<&'static str> {
        self.buffers.iter().map(|buffer| buffer.name).collect()
    }

    /// Returns the bound values in the order of the buffers. Optional buffers need no binding.
    ///
    /// # Errors
    /// Returns a [`BindError`] if a buffer has no binding, or if a binding has no buffer.
    pub fn order<T>(&self, kernel: &str, bound: Vec<NamedValue<T>>) -> Result<Vec<T>, BindError> {
        let place = |buffer: &Buffer| Place { name: buffer.name, optional: buffer.optional };
        let wanted: Vec<Place> = self.buffers.iter().map(place).collect();
        arrange(kernel, &wanted, bound)
    }

    /// Returns the values of all dims in order. They come from the signature, or from the bindings
    /// `of_task`.
    ///
    /// # Errors
    /// Fails like [`Signature::order`], for dims instead of buffers.
    pub fn dim_values(&self, kernel: &str, of_task: &[NamedValue<DimExpr>]) -> Result<Vec<DimExpr>, BindError> {
        let own = self.dims.iter().filter_map(|dim| Some(NamedValue { name: dim.name, value: dim.value.clone()? }));
        let wanted: Vec<Place> = self.dims.iter().map(|dim| Place { name: dim.name, optional: false }).collect();
        arrange(kernel, &wanted, own.chain(of_task.iter().cloned()).collect())
    }

    /// Returns the first property in which a kernel differs from this signature, or `None`.
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

/// A buffer or dim to which a value can be bound.
struct Place {
    name: &'static str,
    /// Whether the buffer or dim may have no binding.
    optional: bool,
}

/// Returns the bound values in the order of the names in `wanted`.
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
