//! Runner of kernel tests: runs each kernel in the interpreter and on every target, and compares
//! the results.

use ixc_kernels::{KernelSpec, generate};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use iced_x86::{CpuidFeature, Decoder, DecoderOptions};
use ixc_codegen::foreign::ForeignCode;
use ixc_codegen::module::{Module, check_arguments};
use ixc_codegen::portable::{self, PortableError};
use ixc_codegen::x64;
use ixc_emulator::Program;
use ixc_emulator::memory::Slice;
use ixc_ir::format::Format;
use ixc_ir::kernel::verify::verify;
use ixc_ir::kernel::{BufferKind, Kernel, interpret};
use ixc_kernels::catalogue::{compare, inputs};
use ixc_kernels::generator::reference;
use ixc_kernels::generator::signature::{BufferContents, Role};
use ixc_targets::Target;
use ixc_testing::{bits, qemu};

/// The targets whose kernels are tested: they cover every number of lanes and every lowering.
const TARGETS: [&str; 6] = ["portable", "avx2", "alder-lake", "avx512", "zen4", "amx"];

/// A group of tested kernels. For the line that [`Group::done`] prints, it records how each
/// target's kernels were run. It also records the results of each target.
pub struct Group {
    name: &'static str,
    rows: u32,
    ran: BTreeMap<(usize, &'static str), u32>,
    /// Results by target and weight format. A new format then changes no recorded results of
    /// another format.
    results: BTreeMap<String, Vec<u8>>,
    codes: Codes,
    table: bits::Table,
    /// Names of recorded results that may be missing from this run.
    not_run: BTreeSet<String>,
}

impl Group {
    pub fn new(name: &'static str) -> Group {
        // The path is read at run time, because a test kit for another machine has the tables in
        // another place.
        let package = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_string());
        let table = bits::Table::new(&Path::new(&package).join(format!("tests/bits/{name}.txt")));
        let not_run = table.not_run();
        Group { name, rows: 0, ran: BTreeMap::new(), results: BTreeMap::new(), codes: Codes::default(), table, not_run }
    }

    /// Tests a kernel without dims.
    pub fn one(&mut self, spec: impl Into<KernelSpec>) {
        self.run(&spec.into(), &[]);
    }

    /// Tests a kernel whose dims are for `rows` rows (or blocks).
    pub fn rows(&mut self, spec: impl Into<KernelSpec>, rows: u32) {
        let spec = spec.into();
        let dims = spec.dims_of_rows(rows);
        self.run(&spec, &dims);
    }

    /// Generates the kernel for every target that supports it. Kernels of several targets that
    /// differ only in their names are interpreted, compared with the reference and run on
    /// `portable` only once.
    ///
    /// Under QEMU, and with code for x86-64-v2, only targets that this CPU can run are tested.
    /// Their results are compared with recorded checksums only, because interpreter and emulator
    /// would give the same results as elsewhere.
    fn run(&mut self, spec: &KernelSpec, dims: &[i64]) {
        self.rows += 1;
        let wide = needs_16_lanes(spec);
        let of_format = weight_format(spec).map_or_else(String::new, |format| format!(" {format}"));
        let mut known: Vec<(Kernel, Run)> = Vec::new();
        for (i, name) in TARGETS.into_iter().enumerate() {
            let target = Target::from_name(name).unwrap_or_else(|| panic!("no target {name}"));
            let too_wide = wide && target.isa().vector_bytes < 64;
            if let Some(left_out) = left_out(target)
                && !too_wide
            {
                *self.ran.entry((i, left_out)).or_default() += 1;
                continue;
            }
            if self.not_run.contains(&format!("{name}{of_format}")) {
                *self.ran.entry((i, "LEFT OUT as not new")).or_default() += 1;
                continue;
            }
            let generated = generate(spec, target);
            if too_wide {
                assert!(generated.is_err(), "{}: {name}: needs 16 lanes", spec.name());
                continue;
            }
            let mut kernel = generated.unwrap_or_else(|e| panic!("{}: {name}: {e}", spec.name()));
            if by_checksums() {
                let mut buffers = fill(spec, &kernel, dims);
                let how = self.codes.execute(&kernel, target, dims, &mut buffers);
                self.add(format!("{name}{of_format}"), &kernel, &buffers);
                *self.ran.entry((i, how)).or_default() += 1;
                continue;
            }
            let full_name = std::mem::replace(&mut kernel.name, spec.name());
            let at = known.iter().position(|(other, _)| *other == kernel).unwrap_or_else(|| {
                let run = Run::interpret(spec, &kernel, dims);
                if target != Target::PORTABLE {
                    run.compare_with_portable(&mut self.codes, &kernel);
                }
                known.push((kernel.clone(), run));
                known.len() - 1
            });
            kernel.name = full_name;
            let run = &known[at].1;
            self.add(format!("{name}{of_format}"), &kernel, &run.interpreted);
            let how = run.compare(&mut self.codes, &kernel, target);
            *self.ran.entry((i, how)).or_default() += 1;
        }
    }

    /// Adds the result buffers of a kernel to the bytes of a checksum.
    fn add(&mut self, name: String, kernel: &Kernel, buffers: &[Vec<u8>]) {
        let results = buffers.iter().zip(&kernel.buffers).filter(|(_, buffer)| buffer.kind.is_result());
        self.results.entry(name).or_default().extend(results.flat_map(|(bytes, _)| bytes));
    }

    /// Prints how each target's kernels were run, and checks the checksums of the results.
    pub fn done(self) {
        let ran: Vec<String> =
            self.ran.iter().map(|((target, how), rows)| format!("{} {how} ({rows})", TARGETS[*target])).collect();
        println!("kernels: {:<14} {:>4} rows: {}", self.name, self.rows, ran.join(", "));
        let mut table = self.table;
        self.results.iter().for_each(|(name, results)| table.add(name, [&results[..]]));
        match (by_checksums(), self.not_run.is_empty()) {
            (true, _) => table.check_part(),
            (false, true) => table.check(),
            // Some results have no recorded checksum yet, so nothing is checked.
            (false, false) => {}
        }
    }
}

/// Runs a kernel on every target, like the kernels of a group, but with changed inputs. `look` gets
/// the kernel, and its buffers before and after the run.
pub fn run_changed(
    spec: impl Into<KernelSpec>,
    rows: u32,
    change: impl Fn(&Kernel, &mut [Vec<u8>]),
    look: impl Fn(&Kernel, &[Vec<u8>], &[Vec<u8>]),
) {
    let spec = spec.into();
    let dims = spec.dims_of_rows(rows);
    for name in TARGETS {
        let target = Target::from_name(name).unwrap_or_else(|| panic!("no target {name}"));
        if let Some(left_out) = left_out(target) {
            println!("{}: {name}: {left_out}", spec.name());
            continue;
        }
        let kernel = generate(&spec, target).unwrap_or_else(|e| panic!("{}: {name}: {e}", spec.name()));
        let mut before = fill(&spec, &kernel, &dims);
        change(&kernel, &mut before);
        let run = Run::new(&spec, &kernel, &dims, before);
        run.compare(&mut Codes::default(), &kernel, target);
        look(&kernel, &run.before, &run.interpreted);
    }
}

/// Whether results are compared with recorded checksums only.
fn by_checksums() -> bool {
    qemu::executes_this() || qemu::portable_is_v2()
}

/// Returns the reason why a target's kernels do not run on the tested CPU, or `None`.
fn left_out(target: Target) -> Option<&'static str> {
    if qemu::portable_is_v2() && target != Target::PORTABLE {
        return Some("LEFT OUT as x86-64-v2");
    }
    (qemu::executes_this() && !target.missing().is_empty()).then_some("LEFT OUT under QEMU")
}

/// Whether a kernel writes bf16.
fn needs_16_lanes(spec: &KernelSpec) -> bool {
    spec.signature().buffers.iter().any(|buffer| match (buffer.role, buffer.holds) {
        (Role::Write, BufferContents::Activations(format, _)) => {
            matches!(format, Format::A8SuperTile | Format::A8SmallTile | Format::Bf16x2 | Format::Bf16x1)
        }
        _ => false,
    })
}

fn fill(spec: &KernelSpec, kernel: &Kernel, dims: &[i64]) -> Vec<Vec<u8>> {
    inputs::fill(kernel, Some(spec), dims, 0).unwrap_or_else(|e| panic!("{} {dims:?}: {e}", spec.name()))
}

/// Returns the format of the first weight that a kernel reads or packs.
fn weight_format(spec: &KernelSpec) -> Option<Format> {
    spec.signature().buffers.iter().find_map(|buffer| match buffer.holds {
        BufferContents::Weight(format, _) | BufferContents::Strip(format, _) | BufferContents::Table(format, _) => {
            Some(format)
        }
        _ => None,
    })
}

/// Inputs of a kernel and the interpreter's results.
struct Run {
    dims: Vec<i64>,
    before: Vec<Vec<u8>>,
    interpreted: Vec<Vec<u8>>,
}

impl Run {
    fn interpret(spec: &KernelSpec, kernel: &Kernel, dims: &[i64]) -> Run {
        Run::new(spec, kernel, dims, fill(spec, kernel, dims))
    }

    fn new(spec: &KernelSpec, kernel: &Kernel, dims: &[i64], before: Vec<Vec<u8>>) -> Run {
        let name = spec.name();
        let mut interpreted = before.clone();
        interpret::run(kernel, dims, &mut interpreted).unwrap_or_else(|e| panic!("{name} {dims:?}: interpreter: {e}"));
        let run = reference::Run { kernel, dims, before: &before, after: &interpreted };
        spec.reference(&run).unwrap_or_else(|e| panic!("{name} {dims:?}: {e}"));
        Run { dims: dims.to_vec(), before, interpreted }
    }

    /// Runs a kernel that was generated for another target through the `portable` lowering.
    /// Compares every bit with the interpreter's results.
    fn compare_with_portable(&self, codes: &mut Codes, kernel: &Kernel) {
        let fail = |e: String| -> ! { panic!("{} {:?}: portable: {e}", kernel.name, self.dims) };
        let code = codes.get(kernel, "portable, plainly", || Code::plain(kernel)).unwrap_or_else(|e| fail(e));
        let mut found = self.before.clone();
        code.run(kernel, &self.dims, &mut found).unwrap_or_else(|e| fail(e));
        if let Some(difference) = compare::first_difference(kernel, &self.interpreted, &found) {
            panic!("{} {:?}: portable: {difference}", kernel.name, self.dims);
        }
    }

    /// Runs the kernel on a target and compares every bit with the interpreter's results. Returns
    /// how it was run.
    fn compare(&self, codes: &mut Codes, kernel: &Kernel, target: Target) -> &'static str {
        let mut found = self.before.clone();
        let how = codes.execute(kernel, target, &self.dims, &mut found);
        if let Some(difference) = compare::first_difference(kernel, &self.interpreted, &found) {
            panic!("{} {:?}: {}: {difference}", kernel.name, self.dims, target.name());
        }
        how
    }
}

/// Compiled code of kernels. Tests of a group that differ only in dims have the same kernel, which
/// is compiled once. Compilation takes most of the time of these tests.
#[derive(Default)]
struct Codes(HashMap<(String, &'static str), Vec<(Kernel, Code)>>);

/// Executable code of a kernel.
enum Code {
    Native(Module),
    /// Code that is not in a module: compiled for an older CPU, or without optimisation.
    Alone(ForeignCode),
    Emulated(Box<Program>),
}

impl Codes {
    /// Runs the kernel on a target, or emulates it if this machine lacks features of the target.
    /// Returns how it was run.
    fn execute(&mut self, kernel: &Kernel, target: Target, dims: &[i64], buffers: &mut [Vec<u8>]) -> &'static str {
        let fail = |e: String| -> ! { panic!("{} {dims:?}: {}: {e}", kernel.name, target.name()) };
        let code = self.get(kernel, target.name(), || Code::generate(kernel, target)).unwrap_or_else(|e| fail(e));
        code.run(kernel, dims, buffers).unwrap_or_else(|e| fail(e));
        match code {
            Code::Native(_) => "native",
            Code::Alone(_) => "native as x86-64-v2",
            Code::Emulated(_) => "emulated",
        }
    }

    /// Returns the cached code of a kernel, or compiles it by `compile`. The cached kernel must
    /// equal this one, not only have the same name.
    fn get(
        &mut self,
        kernel: &Kernel,
        way: &'static str,
        make: impl FnOnce() -> Result<Code, String>,
    ) -> Result<&Code, String> {
        let known = self.0.entry((kernel.name.clone(), way)).or_default();
        let at = match known.iter().position(|(other, _)| other == kernel) {
            Some(at) => at,
            None => {
                known.push((kernel.clone(), make()?));
                known.len() - 1
            }
        };
        Ok(&known[at].1)
    }
}

impl Code {
    fn run(&self, kernel: &Kernel, dims: &[i64], buffers: &mut [Vec<u8>]) -> Result<(), String> {
        match self {
            Code::Native(module) => module.run_checked(0, dims, buffers).map_err(|e| e.to_string()),
            Code::Alone(code) => {
                let views: Vec<&[u8]> = buffers.iter().map(Vec::as_slice).collect();
                check_arguments(&kernel.dims, &kernel.buffers, dims, &views).map_err(|e| e.to_string())?;
                // SAFETY: the code was compiled from this verified kernel, for this CPU or an older
                // one, and the arguments fit the kernel.
                unsafe { code.call(buffers, dims) }.map_err(|e| e.to_string())
            }
            Code::Emulated(program) => {
                let slices = kernel.buffers.iter().zip(buffers).map(|(buffer, bytes)| match buffer.kind {
                    BufferKind::Read | BufferKind::Index { .. } => Slice::read(&buffer.name, bytes),
                    BufferKind::Write | BufferKind::ReadWrite | BufferKind::Scratch => {
                        Slice::write(&buffer.name, bytes)
                    }
                });
                program.call(&slices.collect::<Vec<_>>(), dims).map(|_| ()).map_err(|e| e.to_string())
            }
        }
    }

    /// Compiles a kernel of another target through the `portable` lowering. Without optimisation,
    /// because the code runs only once.
    fn plain(kernel: &Kernel) -> Result<Code, String> {
        verify(kernel).map_err(|e| e.to_string())?;
        let code = match portable::compile_plainly(kernel) {
            Err(PortableError::TooLarge { .. }) => portable::compile(kernel),
            made => made,
        };
        let code = code.map_err(|e| e.to_string())?;
        Ok(Code::Alone(ForeignCode::new(&code.bytes).map_err(|e| e.to_string())?))
    }

    fn generate(kernel: &Kernel, target: Target) -> Result<Code, String> {
        if qemu::portable_is_v2() && target == Target::PORTABLE {
            verify(kernel).map_err(|e| e.to_string())?;
            let code = portable::compile_for_v2(kernel).map_err(|e| e.to_string())?;
            only_v2(&code.bytes[..code.code_bytes])?;
            if qemu::executes_this() {
                let own = portable::compile(kernel).map_err(|e| e.to_string())?;
                assert_eq!(code, own, "{}: other code than this CPU's", kernel.name);
            }
            return Ok(Code::Alone(ForeignCode::new(&code.bytes).map_err(|e| e.to_string())?));
        }
        if target.missing().is_empty() {
            let module = Module::compile(std::slice::from_ref(kernel), target).map_err(|e| e.to_string())?;
            return Ok(Code::Native(module));
        }
        let compiled = x64::compile(kernel, target).map_err(|e| e.to_string())?;
        let program =
            Program::new(&[compiled.code, compiled.constants].concat(), compiled.code_bytes, target.features());
        Ok(Code::Emulated(Box::new(program.map_err(|e| e.to_string())?)))
    }
}

/// Checks that all instructions exist on x86-64-v2.
fn only_v2(code: &[u8]) -> Result<(), String> {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let lacks = |feature: &&CpuidFeature| !V2.contains(feature);
        if instruction.is_invalid() {
            return Err(format!("no instruction at {:#x}", instruction.ip()));
        }
        if let Some(feature) = instruction.cpuid_features().iter().find(lacks) {
            return Err(format!("{instruction} at {:#x} needs {feature:?}", instruction.ip()));
        }
    }
    Ok(())
}

/// Features of x86-64-v2 that kernels use.
const V2: [CpuidFeature; 12] = [
    CpuidFeature::INTEL8086,
    CpuidFeature::INTEL186,
    CpuidFeature::INTEL386,
    CpuidFeature::X64,
    CpuidFeature::CMOV,
    CpuidFeature::SSE,
    CpuidFeature::SSE2,
    CpuidFeature::SSE3,
    CpuidFeature::SSSE3,
    CpuidFeature::SSE4_1,
    CpuidFeature::SSE4_2,
    CpuidFeature::POPCNT,
];
