//! Checks of edited kernels. Their results for random inputs are compared with the results of the
//! generated kernel of the same spec, and with the spec's formula.
//!
//! ```text
//! the same bits                  same          nothing else is asked
//! other bits, within its bounds  close         sums in another order differ in their last bits
//! other bits, outside            Departure     such as a wrong offset
//! ```
//!
//! The interpreter executes whatever the edited kernel says. It can therefore not detect an edit
//! that computes wrong results.

use std::path::Path;

use ixc_codegen::module::Module;
use ixc_ir::kernel::{Kernel, interpret};
use ixc_kernels::catalogue::compare::first_difference;
use ixc_kernels::catalogue::inputs;
use ixc_kernels::generator::reference::Run;
use ixc_kernels::{KernelSpec, generate};
use ixc_targets::Target;

use crate::Error;
pub use crate::error::replacement::Departure;
use crate::error::replacement::ReplacementError;

/// Numbers of rows for which kernels are checked. They cover full groups of rows, and every
/// possible remainder.
const ROWS: [u32; 4] = [1, 3, 5, 8];
/// Max bytes of buffers. The smallest number of rows is checked in any case.
const MOST_BYTES: usize = 256 << 20;

/// Agreement of an edited kernel's results with those of the original kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The results have the same bits.
    Same,
    /// The bits differ, but the results are within the error bounds of the spec's formula.
    Close,
}

/// Buffers of one call.
#[derive(Clone, Copy, Debug)]
pub struct Call<'c> {
    /// Values of the kernels' dims.
    pub dims: &'c [i64],
    /// Buffers before the call.
    pub before: &'c [Vec<u8>],
    /// Buffers after the call of the edited kernel.
    pub edited: &'c [Vec<u8>],
    /// Buffers after the call of the original kernel.
    pub own: &'c [Vec<u8>],
}

/// Compares the results of an edited kernel with the original's.
///
/// # Errors
/// [`Departure`].
pub fn judge(own: &Kernel, spec: Option<&KernelSpec>, call: &Call<'_>) -> Result<Standing, Box<Departure>> {
    let &Call { dims, before, edited, own: expected } = call;
    let Some(difference) = first_difference(own, expected, edited) else { return Ok(Standing::Same) };
    let run = Run { kernel: own, dims, before, after: edited };
    match spec.map(|spec| spec.reference(&run)) {
        Some(Ok(())) => Ok(Standing::Close),
        Some(Err(mismatch)) => Err(Box::new(Departure { difference, mismatch: Some(mismatch) })),
        None => Err(Box::new(Departure { difference, mismatch: None })),
    }
}

/// Checks a kernel that replaces another: runs both with random inputs for several numbers of rows.
/// Without a spec, the results must have the same bits.
///
/// # Errors
/// [`ReplacementError::Departs`] with the file `path`. Also fails if inputs cannot be made, or a
/// kernel has no code.
pub fn check(
    path: &Path,
    edited: &Kernel,
    own: &Kernel,
    spec: Option<&KernelSpec>,
    target: Target,
) -> Result<(), Error> {
    let spec = spec.filter(|spec| generate(spec, target).is_ok_and(|kernel| kernel.name == own.name));
    let run = Runner::new([edited, own], target)?;
    let mut seen: Vec<Vec<i64>> = Vec::new();
    for rows in ROWS {
        let dims = match spec {
            Some(spec) if rows > spec.max_rows() => continue,
            Some(spec) => spec.dims_of_rows(rows),
            // Without a spec, any value in the range of a dim is valid.
            None => own.dims.iter().map(|dim| i64::from(rows).clamp(dim.lo, dim.hi)).collect(),
        };
        let bytes: usize = inputs::sizes(own, &dims).map_err(ReplacementError::from)?.iter().sum();
        if seen.contains(&dims) || !seen.is_empty() && bytes > MOST_BYTES {
            continue;
        }
        let before = inputs::fill(own, spec, &dims, rows.into()).map_err(ReplacementError::from)?;
        let [edited_after, own_after] = [0, 1].map(|kernel| run.run(kernel, &dims, &before));
        let call = Call { dims: &dims, before: &before, edited: &edited_after?, own: &own_after? };
        judge(own, spec, &call).map_err(|departure| {
            let pairs = own.dims.iter().zip(&dims).map(|(dim, value)| format!("{} {value}", dim.name));
            let path = Some(path.to_owned());
            ReplacementError::Departs { path, kernel: edited.name.clone(), dims: pairs.collect(), departure }
        })?;
        seen.push(dims);
    }
    Ok(())
}

/// Engine that runs both kernels: this machine, or the interpreter if the machine lacks a feature
/// of the target.
enum Runner<'k> {
    Native(Module),
    Interpreter([&'k Kernel; 2]),
}

impl<'k> Runner<'k> {
    fn new(kernels: [&'k Kernel; 2], target: Target) -> Result<Runner<'k>, Error> {
        Ok(match target.missing().is_empty() {
            true => Runner::Native(Module::compile(&kernels.map(Kernel::clone), target)?),
            false => Runner::Interpreter(kernels),
        })
    }

    /// Returns the buffers after a call.
    fn run(&self, kernel: usize, dims: &[i64], before: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Error> {
        let mut buffers = before.to_vec();
        match self {
            Runner::Native(module) => module
                .run_checked(kernel, dims, &mut buffers)
                .unwrap_or_else(|error| unreachable!("inputs were made for this kernel: {error}")),
            Runner::Interpreter(kernels) => {
                interpret::run(kernels[kernel], dims, &mut buffers).map_err(ReplacementError::from)?;
            }
        }
        Ok(buffers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_ir::kernel::parse::parse;
    use ixc_kernels::catalogue::ROWS as CATALOGUE;

    /// Checks that every kernel's results are within the error bounds of its own formula.
    #[test]
    fn every_kernel_is_close_to_its_own_formula() {
        let target = Target::native();
        for row in CATALOGUE.iter() {
            let spec = row.spec().unwrap();
            let Ok(own) = generate(&spec, target) else { continue };
            let run = Runner::new([&own, &own], target).unwrap();
            for rows in ROWS.into_iter().filter(|rows| *rows <= spec.max_rows()) {
                let dims = spec.dims_of_rows(rows);
                let before = inputs::fill(&own, Some(&spec), &dims, rows.into()).unwrap();
                let after = run.run(0, &dims, &before).unwrap();
                let formula = spec.reference(&Run { kernel: &own, dims: &dims, before: &before, after: &after });
                assert_eq!(formula, Ok(()), "{} with {rows} rows", row.name);
            }
        }
    }

    #[test]
    fn check_rejects_wrong_constant_but_allows_reordering() {
        let (target, spec) = (Target::native(), "rms_norm n=64 eps=1e-6 out=f32".parse::<KernelSpec>().unwrap());
        let own = generate(&spec, target).unwrap();
        let edited = |from: &str, to: &str| {
            let text = own.to_string();
            assert!(text.contains(from), "{text}");
            parse(&text.replacen(from, to, 1)).unwrap()
        };
        let check = |edited: &Kernel, spec| check(Path::new("k.ix"), edited, &own, spec, target);
        check(&own, None).unwrap();
        // This change is far below the precision of f32, because it is added to a mean of squares
        // near 1.
        check(&edited(" 1e-6", " 1.1e-6"), Some(&spec)).unwrap();
        let wrong = edited(" 1e-6", " 4.0");
        let error = check(&wrong, Some(&spec)).unwrap_err().to_string();
        assert!(error.contains("rms_norm") && error.contains("must be") && error.contains("differ"), "{error}");
        let error = check(&wrong, None).unwrap_err().to_string();
        assert!(error.contains("without a spec"), "{error}");
    }
}
