//! The kernel catalogue: representative specs with names, valid inputs for any spec, and comparison
//! of two runs. Tests, `ixc kernel` and CI's table use it. The file of each kernel declares the
//! kernel's rows.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`inputs`] | buffers filled with the contents that the spec declares |
//! | [`compare`] | the first element in which two runs differ |
//!
//! ```
//! use ixc_ir::kernel::interpret;
//! use ixc_kernels::catalogue::{compare, find, inputs};
//! use ixc_kernels::generate;
//! use ixc_targets::Target;
//!
//! let row = find("add").unwrap();
//! let spec = row.spec().unwrap();
//! let kernel = generate(&spec, Target::PORTABLE).unwrap();
//! let dims = spec.dims_of_rows(row.rows);
//! let before = inputs::fill(&kernel, Some(&spec), &dims, 0).unwrap();
//! let mut after = before.clone();
//! interpret::run(&kernel, &dims, &mut after).unwrap();
//! assert_eq!(compare::first_difference(&kernel, &before, &after).unwrap().buffer, "y");
//! ```

pub mod compare;
pub mod inputs;

use std::sync::LazyLock;

use crate::KINDS;
pub use crate::generator::text::Row;
pub(crate) use crate::generator::text::row;

/// Rows of the catalogue, for all kernels.
pub static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| KINDS.iter().flat_map(|kind| (kind.rows)()).copied().collect());

/// Returns the row with this name, or `None`.
pub fn find(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;
    use ixc_targets::Target;

    /// Checks that every row has a kernel for the most capable target. Kernels for other targets
    /// may be missing.
    #[test]
    fn catalogue_rows_have_kernels_and_unique_names() {
        for (i, row) in ROWS.iter().enumerate() {
            let spec = row.spec().unwrap_or_else(|error| panic!("{}: {error}", row.name));
            assert_eq!(spec.to_string(), row.text, "{} is written as it is printed", row.name);
            generate(&spec, Target::AMX).unwrap_or_else(|error| panic!("{}: {error}", row.name));
            assert!(ROWS[..i].iter().all(|other| other.name != row.name), "{} is listed twice", row.name);
            assert!(ROWS[..i].iter().all(|other| other.text != row.text), "{} has the spec of another row", row.name);
        }
    }

    #[test]
    fn every_kernel_kind_has_a_catalogue_row() {
        for kind in KINDS {
            assert!(ROWS.iter().any(|row| row.text.split(' ').next() == Some(kind.word)), "no row of {}", kind.word);
        }
    }
}
