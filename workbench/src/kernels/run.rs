//! Runs a kernel on the interpreter and on an engine, and compares the results bit for bit.

use std::time::Instant;

use ixc_codegen::module::Module;
use ixc_emulator::Program;
use ixc_emulator::memory::Slice;
use ixc_kernels::catalogue::compare::{Difference, first_difference};
use ixc_kernels::catalogue::inputs;
use ixc_kernels::generate;

use super::bundle::index::BufferAccess;
use super::choose::TargetKernel;
use super::{KernelError, show};
use crate::Error;
use ixc_compile::kernel_check::{Call, Departure, Standing, judge};

/// Engine that runs a kernel's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// This machine.
    Native,
    /// The emulator, on any machine. It also checks what a processor does not check, such as the
    /// bounds of every access.
    Emulator,
}

impl Engine {
    /// Returns the engine's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Native => "this machine",
            Engine::Emulator => "the emulator",
        }
    }
}

/// Number of rows for a kernel, or the values of its dims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Rows; [`KernelSpec::dims_of_rows`](ixc_kernels::KernelSpec::dims_of_rows) defines their
    /// meaning for a spec.
    Rows(u32),
    /// One value for each dim.
    Dims(Vec<i64>),
}

/// A kernel with its inputs.
#[derive(Clone, Debug)]
pub struct Case {
    /// Kernel to run, with its target.
    pub chosen: TargetKernel,
    /// Values of the kernel's dims.
    pub dims: Vec<i64>,
    /// Buffers before the run.
    pub before: Vec<Vec<u8>>,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Buffers after the interpreter ran.
    pub expected: Vec<Vec<u8>>,
    /// Buffers after the engine ran.
    pub found: Vec<Vec<u8>>,
    /// The first element that differs.
    pub difference: Option<Difference>,
    /// Result of the comparison of an edited kernel with its spec. `None` for a generated kernel,
    /// or one without a spec.
    pub standing: Option<Result<Standing, Box<Departure>>>,
    /// Seconds that the interpreter took.
    pub interpreter_seconds: f64,
    /// Seconds that the engine took, without compiling.
    pub seconds: f64,
    /// Executed instructions, if they were counted.
    pub instructions: Option<u64>,
}

impl Case {
    /// Creates inputs for a kernel with `sizes`, or with its default number of rows. The same seed
    /// gives the same inputs.
    ///
    /// # Errors
    /// If the kernel has no dims for the rows, or no inputs can be created.
    pub fn new(chosen: TargetKernel, sizes: Option<Sizes>, seed: u64) -> Result<Case, Error> {
        let dims = dims(&chosen, sizes)?;
        let before = inputs::fill(&chosen.kernel, chosen.spec.as_ref(), &dims, seed).map_err(KernelError::from)?;
        Ok(Case { chosen, dims, before })
    }

    /// Returns the buffers after the interpreter ran.
    ///
    /// # Errors
    /// [`KernelError::Interpret`].
    pub fn expected_buffers(&self) -> Result<Vec<Vec<u8>>, Error> {
        let mut buffers = self.before.clone();
        let kernel = &self.chosen.kernel;
        ixc_ir::kernel::interpret::run(kernel, &self.dims, &mut buffers).map_err(KernelError::from)?;
        Ok(buffers)
    }

    /// Returns the buffers after an engine ran.
    ///
    /// # Errors
    /// If the engine cannot run the kernel.
    pub fn run(&self, engine: Engine) -> Result<Vec<Vec<u8>>, Error> {
        let mut buffers = self.before.clone();
        match engine {
            Engine::Native => self.native(&mut buffers).map(|_| ())?,
            Engine::Emulator => self.emulate(&mut buffers).map(|_| ())?,
        }
        Ok(buffers)
    }

    /// Runs the interpreter and an engine, and compares their results.
    ///
    /// # Errors
    /// When an engine cannot run the kernel. Different results are not an error here.
    pub fn check(&self, engine: Engine) -> Result<Outcome, Error> {
        // Run the engine first: its errors then appear before the slow interpreter runs.
        let mut found = self.before.clone();
        let (seconds, instructions) = match engine {
            Engine::Native => (self.native(&mut found)?, None),
            Engine::Emulator => {
                let (seconds, instructions) = self.emulate(&mut found)?;
                (seconds, Some(instructions))
            }
        };
        let begin = Instant::now();
        let expected = self.expected_buffers()?;
        let interpreter_seconds = begin.elapsed().as_secs_f64();
        let difference = first_difference(&self.chosen.kernel, &expected, &found);
        let standing = self.judge_edit(engine, &found)?;
        Ok(Outcome { expected, found, difference, standing, interpreter_seconds, seconds, instructions })
    }

    /// Compares the results of an edited kernel with those of the generated kernel of its spec. The
    /// same engine runs both.
    fn judge_edit(
        &self,
        engine: Engine,
        edited: &[Vec<u8>],
    ) -> Result<Option<Result<Standing, Box<Departure>>>, Error> {
        let TargetKernel { spec, target, kernel, .. } = &self.chosen;
        let Some(spec) = spec else { return Ok(None) };
        let own = generate(spec, *target)?;
        if own == *kernel {
            return Ok(None);
        }
        let case = Case { chosen: TargetKernel { kernel: own, ..self.chosen.clone() }, ..self.clone() };
        let call = Call { dims: &self.dims, before: &self.before, edited, own: &case.run(engine)? };
        Ok(Some(judge(&case.chosen.kernel, Some(spec), &call)))
    }

    /// Runs the kernel on this machine, and returns its seconds.
    fn native(&self, buffers: &mut [Vec<u8>]) -> Result<f64, Error> {
        let module = Module::compile(std::slice::from_ref(&self.chosen.kernel), self.chosen.target)?;
        let begin = Instant::now();
        module
            .run_checked(0, &self.dims, buffers)
            .unwrap_or_else(|error| unreachable!("inputs were made for this kernel: {error}"));
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Runs the kernel in the emulator, and returns its seconds and instructions.
    fn emulate(&self, buffers: &mut [Vec<u8>]) -> Result<(f64, u64), Error> {
        let TargetKernel { kernel, target, .. } = &self.chosen;
        let compiled = show::compile_x64(&self.chosen, "the emulator")?;
        let code = [compiled.code.as_slice(), compiled.constants.as_slice()].concat();
        let stopped = |fault| KernelError::Fault { kernel: kernel.name.clone(), fault };
        let program = Program::new(&code, compiled.code_bytes, target.features()).map_err(stopped)?;
        let begin = Instant::now();
        let names = kernel
            .buffers
            .iter()
            .map(|buffer| (buffer.name.as_str(), BufferAccess::from_kind(&buffer.kind).is_written()));
        let stats = program.call(&slices(names, buffers), &self.dims).map_err(stopped)?;
        Ok((begin.elapsed().as_secs_f64(), stats.instructions))
    }
}

/// Returns buffers in the emulator's form, with their names and whether they may be written.
pub fn slices<'a>(names: impl Iterator<Item = (&'a str, bool)>, buffers: &'a mut [Vec<u8>]) -> Vec<Slice<'a>> {
    let buffers = names.zip(buffers).map(|((name, written), bytes)| match written {
        true => Slice::write(name, bytes),
        false => Slice::read(name, bytes),
    });
    buffers.collect()
}

/// Returns the values of a kernel's dims.
///
/// # Errors
/// If the rows have no meaning for the kernel, or are more than its max.
pub fn dims(chosen: &TargetKernel, sizes: Option<Sizes>) -> Result<Vec<i64>, KernelError> {
    let kernel = &chosen.kernel;
    match (sizes.unwrap_or(Sizes::Rows(chosen.rows)), &chosen.spec) {
        (Sizes::Dims(dims), _) => Ok(dims),
        (Sizes::Rows(found), Some(spec)) => {
            let max = spec.max_rows();
            let dims = (found <= max).then(|| spec.dims_of_rows(found));
            dims.ok_or_else(|| KernelError::TooManyRows { kernel: kernel.name.clone(), found, max })
        }
        (Sizes::Rows(rows), None) => match kernel.dims.as_slice() {
            [] => Ok(Vec::new()),
            [_] => Ok(vec![i64::from(rows)]),
            several => Err(KernelError::NeedsDims {
                kernel: kernel.name.clone(),
                dims: several.iter().map(|dim| format!("%{} in {}..={}", dim.name, dim.lo, dim.hi)).collect(),
            }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_compile::Error as CompileError;

    use crate::kernels::choose::choose;
    use ixc_kernels::catalogue::{ROWS, Row};
    use ixc_targets::Target;
    use ixc_testing::bits;
    use std::collections::BTreeMap;
    use std::path::Path;

    /// Returns a row's case with one row of activations. If the target has no kernel for it, prints
    /// a message and returns `None`.
    fn case(row: &Row, target: Target) -> Option<Case> {
        case_of(row, target, 1)
    }

    fn case_of(row: &Row, target: Target, max: u32) -> Option<Case> {
        match choose(row.name, target) {
            Ok(chosen) => Some(Case::new(chosen, Some(Sizes::Rows(row.rows.min(max))), 7).unwrap()),
            Err(Error::Compile(error)) if matches!(*error, CompileError::Generate(_)) => {
                println!("NO KERNEL: {} for {target:?}: {error}", row.name);
                None
            }
            Err(error) => panic!("{} for {target:?}: {error}", row.name),
        }
    }

    #[test]
    fn native_catalogue_kernels_match_the_interpreter() {
        let target = Target::native();
        for row in ROWS.iter() {
            let Some(case) = case(row, target) else { continue };
            let outcome = case.check(Engine::Native).unwrap_or_else(|error| panic!("{}: {error}", row.name));
            assert_eq!(outcome.difference, None, "{} for {target:?}", row.name);
            assert_ne!(outcome.expected, case.before, "{} wrote something", row.name);
        }
    }

    /// Max rows of the cases with checksums. They make groups of up to 12 rows, and a remainder.
    const MAX_CASE_ROWS: u32 = 13;
    /// Dims that are 0 in all cases of a kernel, so that its checksums do not cover the loops of
    /// these dims. The dims count groups of other numbers of rows, or remainders of such groups.
    /// The tests of `codegen` run these loops.
    const ZERO_DIMS: [&str; 12] = [
        "attention: groups",
        "attention_tiles: head_runs",
        "attention_tiles: masked_runs",
        "attention_window: rest",
        "delta_net_chunks: chunks",
        "linear: groups shape=gemv",
        "linear: groups shape=tiles",
        "linear: small_groups shape=gemm6",
        "linear: small_groups shape=tiles",
        "swiglu: groups shape=gemv",
        "swiglu: groups shape=tiles",
        "swiglu: small_groups shape=tiles",
    ];

    /// Returns the kernel's word, a dim's name, and the shape of a product, as in `ZERO_DIMS`.
    fn dim_name(row: &Row, dim: &str) -> String {
        let mut words = row.text.split(' ');
        let word = words.next().unwrap_or_default();
        let shape = words.find(|word| word.starts_with("shape=")).unwrap_or_default();
        format!("{word}: {dim} {shape}").trim_end().to_owned()
    }

    /// Uses the interpreter, which defines the results of all targets.
    #[test]
    fn every_row_keeps_its_bits() {
        for target in [Target::PORTABLE, Target::AVX2, Target::AVX512, Target::AMX] {
            let file = format!("tests/bits/kernels-{}.txt", target.name());
            let mut table = bits::Table::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file));
            let mut has_value: BTreeMap<String, bool> = BTreeMap::new();
            for row in ROWS.iter() {
                let Some(case) = case_of(row, target, MAX_CASE_ROWS) else { continue };
                for (dim, value) in case.chosen.kernel.dims.iter().zip(&case.dims) {
                    *has_value.entry(dim_name(row, &dim.name)).or_default() |= *value > 0;
                }
                let results = case.expected_buffers().unwrap_or_else(|error| panic!("{}: {error}", row.name));
                let results = results.iter().zip(&case.chosen.kernel.buffers);
                table.add(row.name, results.filter(|(_, b)| b.kind.is_result()).map(|(bytes, _)| bytes.as_slice()));
            }
            table.check();
            // All rows have a kernel for this target.
            if target == Target::AMX {
                let zero_dims: Vec<&str> =
                    has_value.iter().filter(|(_, has_value)| !**has_value).map(|(name, _)| name.as_str()).collect();
                assert_eq!(
                    zero_dims, ZERO_DIMS,
                    "a dim that is 0 in all cases has no checksum: use a smaller group, or add it to ZERO_DIMS"
                );
            }
        }
    }

    #[test]
    fn emulated_catalogue_kernels_match_the_interpreter() {
        for target in [Target::AVX2, Target::AVX512, Target::AMX] {
            for row in ROWS.iter() {
                let Some(case) = case(row, target) else { continue };
                let outcome = case.check(Engine::Emulator).unwrap_or_else(|error| panic!("{}: {error}", row.name));
                assert_eq!(outcome.difference, None, "{} for {target:?}", row.name);
                assert!(outcome.instructions.unwrap() > 10, "{} for {target:?}", row.name);
            }
        }
    }
}
