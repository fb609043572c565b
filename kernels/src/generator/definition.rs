//! Interface that each kernel's file implements, and the registry of all kernels.

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{DimExpr, DimInput};

use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{Mismatch, Run};
use crate::generator::signature::{Dim, Signature};
use crate::generator::text::Row;
use crate::generator::work::{Call, Work};

/// A kind of kernel. The implementing type is its spec, which
/// [`spec!`](crate::generator::text::spec) declares.
pub trait Definition {
    /// Returns the kernel's name without the target. It is the cache key, the profiler symbol and
    /// the name of dump files. Only equal specs have equal names.
    fn name(&self) -> String;

    /// Returns the kernel's buffers and dims, with their names, in the kernel's order.
    fn signature(&self) -> Signature;

    /// Generates the kernel with this name, for a target with these vectors.
    ///
    /// # Errors
    /// Fails if the spec's sizes are invalid.
    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError>;

    /// Compares the results of a run with the kernel's formula, which is computed in f64 from the
    /// same inputs.
    ///
    /// # Errors
    /// Returns the first value whose error is above the bound. The implementation states and
    /// derives the bound.
    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch>;

    /// Returns the minimum number of bytes and operations of a call.
    fn work(&self, call: &Call<'_>) -> Work {
        Work::of_bytes(call.all_bytes())
    }

    /// Returns the values of the dims for a test run with `rows` rows. Dims that depend only on the
    /// number of rows are evaluated. Other dims, such as rows of a table or blocks of the KV cache,
    /// are set to `rows`. Kernels with dims that depend on positions override this method with
    /// consistent values.
    fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        let of_rows = |value: &DimExpr| {
            value.inputs().all(|input| input == DimInput::Rows).then(|| value.evaluate(|_| rows.into()).ok())?
        };
        let value = |dim: &Dim| dim.value.as_ref().and_then(of_rows).map_or(rows.into(), |value| value as i64);
        self.signature().dims.iter().map(value).collect()
    }

    /// Returns the maximum number of rows of an item. It is [`u32::MAX`] if the spec has no limit.
    fn max_rows(&self) -> u32 {
        u32::MAX
    }

    /// Returns representative specs, each with a name. Some have the sizes of a dense model with 1
    /// billion parameters: width 2048, feed-forward width 5632, heads of 64. Others have those of a
    /// mixture of experts with 4 billion parameters: width 2048, experts of 768, heads of 128.
    /// Tiles have the sizes that the schedule chooses.
    fn rows() -> &'static [Row]
    where
        Self: Sized;
}

/// Declares all kernels, one on each line: `Name in module`. Listings have this order. Plan files
/// contain generated kernels, and texts of specs name the kernel by its word. The order of lines
/// therefore does not affect files, and a new line may be anywhere.
macro_rules! registry {
    ($($name:ident in $($module:ident)::+,)*) => {
        $(pub use $($module)::+::$name;)*

        /// Spec of a kernel: the computation and its sizes.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum KernelSpec {
            $(#[doc = concat!("See [`struct@", stringify!($name), "`].")] $name($name),)*
        }

        $(impl From<$name> for KernelSpec {
            fn from(spec: $name) -> KernelSpec {
                KernelSpec::$name(spec)
            }
        })*

        /// All kinds of kernels, in the order of the registry.
        pub static KINDS: &[Kind] = &[
            $(Kind { word: <$name as Text>::WORD, fields: <$name as Part>::FIELDS, rows: <$name as Definition>::rows },)*
        ];

        impl KernelSpec {
            fn definition(&self) -> &dyn Definition {
                match self { $(KernelSpec::$name(spec) => spec,)* }
            }
        }

        impl fmt::Display for KernelSpec {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(KernelSpec::$name(spec) => {
                        f.write_str(<$name as Text>::WORD)?;
                        spec.write(f)
                    })*
                }
            }
        }

        impl FromStr for KernelSpec {
            type Err = SpecError;

            fn from_str(text: &str) -> Result<KernelSpec, SpecError> {
                let mut words = text.split_whitespace();
                match words.next().unwrap_or_default() {
                    $(<$name as Text>::WORD => {
                        <$name as Part>::read(&Fields::parse::<$name>(words)?).map(KernelSpec::$name)
                    })*
                    found => Err(SpecError::unknown_kind(found)),
                }
            }
        }
    };
}
pub(crate) use registry;
