//! Interface of a kernel's file, and the registry of all kernels.

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{DimExpr, DimInput};

use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{Mismatch, Run};
use crate::generator::signature::{Dim, Signature};
use crate::generator::text::Row;
use crate::generator::work::{Call, Work};

/// A kernel. The implementing type is its spec, which [`spec!`](crate::generator::text::spec)
/// declares.
pub trait Definition {
    /// Returns the name without the target: cache key, profiler symbol and dump file name. Two
    /// specs have the same name only if they are equal.
    fn name(&self) -> String;

    /// Returns the buffers and dims by name, in the kernel's order.
    fn signature(&self) -> Signature;

    /// Generates the kernel with `name`, for a target with these vectors.
    ///
    /// # Errors
    /// The spec's sizes are invalid.
    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError>;

    /// Compares the results of a run with the formula, which is computed in f64 from the same
    /// inputs.
    ///
    /// # Errors
    /// The first value beyond the bound that the implementation states and derives.
    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch>;

    /// Returns the minimum work of a call.
    fn work(&self, call: &Call<'_>) -> Work {
        Work::of_bytes(call.all_bytes())
    }

    /// Returns the dims of a test run with `rows` rows. Dims that depend only on the rows are
    /// evaluated. Other dims, such as rows of a table or blocks of the KV cache, are `rows`. A
    /// kernel whose dims depend on positions overrides this with consistent values.
    fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        let of_rows = |value: &DimExpr| {
            value.inputs().all(|input| input == DimInput::Rows).then(|| value.evaluate(|_| rows.into()).ok())?
        };
        let value = |dim: &Dim| dim.value.as_ref().and_then(of_rows).map_or(rows.into(), |value| value as i64);
        self.signature().dims.iter().map(value).collect()
    }

    /// Returns the max rows that the kernel takes, if its spec has a limit.
    fn max_rows(&self) -> u32 {
        u32::MAX
    }

    /// Returns representative kernels with names. Some have the sizes of a dense model with 1
    /// billion parameters: width 2048, feed-forward width 5632, heads of 64. Others have those of a
    /// mixture of experts with 4 billion: width 2048, experts of 768, heads of 128. Tiles have the
    /// sizes that the schedule chooses.
    fn rows() -> &'static [Row]
    where
        Self: Sized;
}

/// Declares all kernels: a line for each, `Name in module`. The order is that of listings. Plan
/// files have generated kernels, not specs, and texts have a spec by its word. So a new line may be
/// at any place.
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

        /// Every kind of kernel.
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
