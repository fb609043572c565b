//! Comparison of two kernels with the same signature: their results on the same inputs, the cost of
//! their code, their speed on this machine, and their instructions.
//!
//! ```text
//! ixc kernel show gemv_q4_k --stage ir > fast.ix      (edit fast.ix)
//! ixc kernel diff fast.ix                             against the kernel of its spec
//! ixc kernel diff old.ix new.ix
//! ```

use ixc_codegen::module::Artifact;
use ixc_codegen::x64::listing::ListedInstruction;
use ixc_cost as cost;
use ixc_ir::kernel::print::AffineText;
use ixc_ir::kernel::{BufferKind, Kernel};
use ixc_kernels::catalogue::compare::{Difference, difference, elements, nmse};
use ixc_kernels::generate;
use serde::Serialize;
use similar::{Algorithm, DiffTag, capture_diff_slices};

use super::bench::{MemoryLevel, in_turn};
use super::choose::TargetKernel;
use super::run::{Case, Engine};
use super::{KernelError, show};
use crate::Error;
use ixc_compile::replacements::signature_difference;

/// Generates the unedited kernel for the spec that an edited file names.
///
/// # Errors
/// If the file names no spec, or the target has no kernel for it.
pub fn generate_unedited(edited: &TargetKernel) -> Result<TargetKernel, Error> {
    let spec = edited.spec.as_ref().ok_or_else(|| KernelError::NoSpec { name: edited.name.clone() })?;
    let kernel = generate(spec, edited.target)?;
    Ok(TargetKernel { name: kernel.name.clone(), kernel, ..edited.clone() })
}

/// Checks that two kernels can get the same inputs: their dims and buffers must be equal.
///
/// # Errors
/// [`KernelError::DifferentSignatures`], with the differences.
pub fn check_same_signature(a: &TargetKernel, b: &TargetKernel) -> Result<(), Error> {
    if signature_difference(&a.kernel, &b.kernel).is_none() {
        return Ok(());
    }
    let (first, second) = (signature_lines(&a.kernel), signature_lines(&b.kernel));
    let only = |own: &[String], other: &[String]| -> Vec<String> {
        own.iter().filter(|each| !other.contains(each)).cloned().collect()
    };
    let (of_first, of_second) = (only(&first, &second), only(&second, &first));
    Err(KernelError::DifferentSignatures {
        names: [a.kernel.name.clone(), b.kernel.name.clone()],
        // Both kernels have the same dims and buffers, but in another order.
        unmatched: if of_first.is_empty() && of_second.is_empty() { [first, second] } else { [of_first, of_second] },
    }
    .into())
}

/// Returns the signature of a kernel as lines: its dims, then its buffers.
fn signature_lines(kernel: &Kernel) -> Vec<String> {
    let dims = kernel.dims.iter().map(|dim| format!("dim %{} in {}..={}", dim.name, dim.lo, dim.hi));
    let buffers = kernel.buffers.iter().map(|buffer| {
        let below = match &buffer.kind {
            BufferKind::Index { below } => format!("({})", AffineText(kernel, below)),
            _ => String::new(),
        };
        let kind = buffer.kind.keyword();
        format!("buffer %{} : {kind}{below} {}", buffer.name, AffineText(kernel, &buffer.size))
    });
    dims.chain(buffers).collect()
}

/// Difference between the results of two kernels in one buffer.
#[derive(Clone, Debug)]
pub struct BufferDiff {
    /// Name of the buffer.
    pub name: String,
    /// The first element that differs, and the number of differing elements.
    pub first: Option<Difference>,
    /// For floats, the sum of squared differences over the sum of squares of the first kernel's
    /// values (NMSE).
    pub nmse: Option<f64>,
}

/// Runs both kernels with the same inputs on an engine, and compares all result buffers.
///
/// # Errors
/// If their signatures differ, or one of them cannot be run.
pub fn results(a: &Case, b: &Case, engine: Engine) -> Result<Vec<BufferDiff>, Error> {
    check_same_signature(&a.chosen, &b.chosen)?;
    let (left, right) = (a.run(engine)?, b.run(engine)?);
    let kernel = &a.chosen.kernel;
    let buffers = kernel.buffers.iter().zip(elements(kernel)).zip(left.iter().zip(&right));
    let results = buffers.filter(|((buffer, _), _)| buffer.kind.is_result()).map(|((buffer, elem), (left, right))| {
        let first = difference(&buffer.name, elem, left, right);
        BufferDiff { name: buffer.name.clone(), first, nmse: elem.and_then(|elem| nmse(elem, left, right)) }
    });
    Ok(results.collect())
}

/// Static cost of a kernel's code.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// Instructions; `None` for `portable`.
    pub instructions: Option<usize>,
    /// Bytes of code and constants.
    pub bytes: usize,
    /// Number of spilled registers.
    pub spills: Option<usize>,
    /// Cycles on the target's CPU with all operands in the first-level cache; `None` if the CPU has
    /// no cost model.
    pub cycles: Option<f64>,
}

impl Cost {
    /// Returns the cost of a kernel with its dims.
    ///
    /// # Errors
    /// If the target has no code for it.
    pub fn from_case(case: &Case) -> Result<Cost, Error> {
        let artifact = show::compile(&case.chosen)?;
        let bytes = artifact.bytes().iter().map(|part| part.len()).sum();
        let Artifact::X64(compiled) = artifact else {
            return Ok(Cost { instructions: None, bytes, spills: None, cycles: None });
        };
        let (kernel, stats) = (&case.chosen.kernel, &compiled.stats);
        let cycles = cost::model(case.chosen.target).and_then(|model| {
            let report = cost::analyse(&compiled.code[..compiled.code_bytes], &compiled.lines, kernel, model);
            Some(report.whole(&case.dims).ok()?.cycles)
        });
        let spills = Some(stats.vector_spills + stats.gpr_spills);
        Ok(Cost { instructions: Some(stats.instructions), bytes, spills, cycles })
    }
}

/// Speed of the second kernel relative to the first, on this machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpeedRatio {
    /// Memory level of the buffers.
    pub place: MemoryLevel,
    /// Median seconds per call of the first kernel and of the second.
    pub seconds: [f64; 2],
    /// Time of the first kernel divided by that of the second, from alternating rounds: median,
    /// smallest, largest.
    pub ratio: [f64; 3],
}

/// Measures both kernels in alternating rounds, with one thread.
///
/// # Errors
/// If this machine cannot run them.
pub fn speed(a: &Case, b: &Case, place: MemoryLevel, rounds: u32) -> Result<SpeedRatio, Error> {
    let mut pairs = in_turn([a, b], place, rounds)?;
    let mut ratios: Vec<f64> = pairs.iter().map(|[a, b]| a / b).collect();
    ratios.sort_by(f64::total_cmp);
    let mut median = |side: usize| {
        pairs.sort_by(|x, y| x[side].total_cmp(&y[side]));
        pairs[pairs.len() / 2][side]
    };
    let seconds = [median(0), median(1)];
    Ok(SpeedRatio { place, seconds, ratio: [ratios[ratios.len() / 2], ratios[0], ratios[ratios.len() - 1]] })
}

/// Row of two listings side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinePair {
    /// Line of the first listing, if any.
    pub a: Option<String>,
    /// Line of the second listing, if any.
    pub b: Option<String>,
    /// Whether both lines are equal.
    pub is_equal: bool,
}

/// Returns the instructions of both kernels side by side.
///
/// # Errors
/// For `portable`, whose code comes from cranelift, and if the target has no code.
pub fn instructions(a: &TargetKernel, b: &TargetKernel) -> Result<Vec<LinePair>, Error> {
    let list = |chosen: &TargetKernel| -> Result<Vec<String>, Error> {
        let compiled = show::compile_x64(chosen, "a comparison of instructions")?;
        Ok(compiled.listing().into_iter().map(without_places).collect())
    };
    Ok(align_lines(&list(a)?, &list(b)?))
}

/// Returns the IR of both kernels side by side.
pub fn statements(a: &Kernel, b: &Kernel) -> Vec<LinePair> {
    let list = |kernel: &Kernel| kernel.to_string().lines().map(str::to_owned).collect::<Vec<_>>();
    align_lines(&list(a), &list(b))
}

/// Returns an instruction without the labels of jumps and constants. One added instruction would
/// change these everywhere.
fn without_places(line: ListedInstruction) -> String {
    let Some((before, label)) = line.text.split_once(".L") else { return line.text };
    let end = label.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(label.len());
    format!("{before}.L{}", &label[end..])
}

fn align_lines(left: &[String], right: &[String]) -> Vec<LinePair> {
    let mut rows = Vec::new();
    for op in capture_diff_slices(Algorithm::Myers, left, right) {
        let (old, new) = (&left[op.old_range()], &right[op.new_range()]);
        for at in 0..old.len().max(new.len()) {
            let is_equal = op.tag() == DiffTag::Equal;
            rows.push(LinePair { a: old.get(at).cloned(), b: new.get(at).cloned(), is_equal });
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::choose::choose;
    use crate::kernels::run::Sizes;
    use ixc_targets::Target;

    fn case(chosen: TargetKernel) -> Case {
        Case::new(chosen, Some(Sizes::Rows(2)), 7).unwrap()
    }

    #[test]
    fn edited_kernel_is_compared_with_its_original() {
        for target in [Target::PORTABLE, Target::native()] {
            let edited = choose("map function=add n=64", target).unwrap();
            let own = generate_unedited(&edited).unwrap();
            assert_eq!(own.kernel, edited.kernel);
            let same = results(&case(own.clone()), &case(edited.clone()), Engine::Native).unwrap();
            assert!(same.iter().all(|buffer| buffer.first.is_none() && buffer.nmse == Some(0.0)), "{same:?}");
            // The edit subtracts instead of adding.
            let text = edited.kernel.to_string().replacen(" add ", " sub ", 1);
            let kernel = ixc_ir::kernel::parse::parse(&text).unwrap();
            let edited = TargetKernel { kernel, ..edited };
            let other = results(&case(own.clone()), &case(edited.clone()), Engine::Native).unwrap();
            assert!(other.iter().any(|buffer| buffer.first.is_some() && buffer.nmse > Some(0.1)), "{other:?}");
            let changed = statements(&own.kernel, &edited.kernel).into_iter().filter(|row| !row.is_equal).count();
            assert_eq!(changed, 1);
            assert!(Cost::from_case(&case(edited)).unwrap().bytes > 0);
            let speed = speed(&case(own.clone()), &case(own), MemoryLevel::Caches, 3).unwrap();
            assert!(speed.ratio[1] <= speed.ratio[0] && speed.ratio[0] <= speed.ratio[2], "{speed:?}");
        }
        let (a, b) = (choose("map function=add n=64", Target::AVX2), choose("map function=add n=96", Target::AVX2));
        let error = results(&case(a.unwrap()), &case(b.unwrap()), Engine::Emulator).unwrap_err();
        assert!(error.to_string().contains("buffer"), "{error}");
    }

    #[test]
    fn instruction_diff_isolates_an_added_instruction() {
        let edited = choose("map function=add n=64", Target::AVX2).unwrap();
        let text = edited.kernel.to_string();
        let at = text.find("    store ").or_else(|| text.find("  store ")).unwrap();
        let stored = text[at..].lines().next().unwrap();
        // The edit stores the same value twice.
        let twice = text.replacen(stored, &format!("{stored}\n{stored}"), 1);
        let more = TargetKernel { kernel: ixc_ir::kernel::parse::parse(&twice).unwrap(), ..edited.clone() };
        let rows = instructions(&edited, &more).unwrap();
        let other = rows.iter().filter(|row| !row.is_equal).count();
        assert!((1..=4).contains(&other) && rows.len() > 5, "{rows:?}");
    }
}
