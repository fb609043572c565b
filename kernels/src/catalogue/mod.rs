//! Kernels as rows: named representative specs, valid inputs for any spec, and what two runs have to agree on. Tests, `ixc kernel`
//! and CI's table take them from here.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`table`] | the built-in rows, one line each |
//! | [`inputs`] | dims for so many rows, and buffers filled with what the spec says they hold |
//! | [`compare`] | the first element in which two runs differ |
//! | [`work`] | weight bytes and multiply-adds of a call |
//!
//! ```
//! use ixc_kernels::generate;
//! use ixc_kernels::catalogue::{compare, inputs, table};
//! use ixc_targets::Target;
//! use ixc_ir::kernel::interpret;
//!
//! let row = table::find("add").unwrap();
//! let spec = row.spec().unwrap();
//! let kernel = generate(&spec, Target::PORTABLE).unwrap();
//! let dims = inputs::dims(&spec, row.rows);
//! let before = inputs::fill(&kernel, Some(&spec), &dims, 0).unwrap();
//! let mut after = before.clone();
//! interpret::run(&kernel, &dims, &mut after).unwrap();
//! assert_eq!(compare::first_difference(&kernel, &before, &after).unwrap().buffer, "y");
//! ```
//!
//! To add a spec: a row in `ir/src/plan/text.rs` (its text), an arm in [`inputs`] (what its buffers hold), an arm in [`work`], and
//! lines in [`table`]. To add another size of a spec that is there: a line in [`table`].

pub mod compare;
pub mod inputs;
pub mod table;
pub mod work;
