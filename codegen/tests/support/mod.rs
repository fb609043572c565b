//! Runs kernel rows on the interpreter and on every target, and compares.

use ixc_kernels::{KernelSpec, generate};
use std::collections::BTreeMap;
use std::path::Path;

use ixc_codegen::module::Module;
use ixc_codegen::x64;
use ixc_emulator::Program;
use ixc_emulator::memory::Slice;
use ixc_ir::format::Format;
use ixc_ir::kernel::{BufferKind, Kernel, interpret};
use ixc_kernels::catalogue::{compare, inputs};
use ixc_kernels::reference;
use ixc_kernels::signature::{Holds, Role};
use ixc_targets::Target;
use ixc_testing::{bits, qemu};

/// The targets whose kernels are tested: every lane count, every lowering.
const TARGETS: [&str; 6] = ["portable", "avx2", "alder-lake", "avx512", "zen4", "amx"];

/// A group of rows: what ran where, for the line that [`Group::done`] prints, and what came out for each target.
pub struct Group {
    name: &'static str,
    rows: u32,
    ran: BTreeMap<(usize, &'static str), u32>,
    /// By the names of targets and weight formats: a format that is new changes no other's bits.
    results: BTreeMap<String, Vec<u8>>,
}

impl Group {
    pub fn new(name: &'static str) -> Group {
        Group { name, rows: 0, ran: BTreeMap::new(), results: BTreeMap::new() }
    }

    /// A kernel without dims.
    pub fn one(&mut self, spec: impl Into<KernelSpec>) {
        self.run(&spec.into(), &[]);
    }

    /// A kernel with dims for so many rows (or blocks).
    pub fn rows(&mut self, spec: impl Into<KernelSpec>, rows: u32) {
        let spec = spec.into();
        let dims = spec.dims_of_rows(rows);
        self.run(&spec, &dims);
    }

    /// Generates the kernel for every target that has one. Kernels that differ in their names alone are interpreted, compared with
    /// the reference and run on `portable` once.
    ///
    /// Under QEMU only what this CPU can run runs, and by its recorded checksums alone: interpreter and emulator are the same there.
    fn run(&mut self, spec: &KernelSpec, dims: &[i64]) {
        self.rows += 1;
        let wide = needs_16_lanes(spec);
        let of_format = weight_format(spec).map_or_else(String::new, |format| format!(" {format}"));
        let mut known: Vec<(Kernel, Run)> = Vec::new();
        for (i, name) in TARGETS.into_iter().enumerate() {
            let target = Target::from_name(name).unwrap_or_else(|| panic!("no target {name}"));
            let generated = generate(spec, target);
            if wide && target.isa().vector_bytes < 64 {
                assert!(generated.is_err(), "{}: {name}: needs 16 lanes", spec.name());
                continue;
            }
            let mut kernel = generated.unwrap_or_else(|e| panic!("{}: {name}: {e}", spec.name()));
            if qemu::executes_this() {
                let how = if target.missing().is_empty() {
                    let mut buffers = fill(spec, &kernel, dims);
                    let how = execute(&kernel, target, dims, &mut buffers);
                    self.add(format!("{name}{of_format}"), &kernel, &buffers);
                    how
                } else {
                    "LEFT OUT under QEMU"
                };
                *self.ran.entry((i, how)).or_default() += 1;
                continue;
            }
            let full_name = std::mem::replace(&mut kernel.name, spec.name());
            let at = known.iter().position(|(other, _)| *other == kernel).unwrap_or_else(|| {
                let run = Run::interpret(spec, &kernel, dims);
                if target != Target::PORTABLE {
                    run.compare(&kernel, Target::PORTABLE);
                }
                known.push((kernel.clone(), run));
                known.len() - 1
            });
            kernel.name = full_name;
            let run = &known[at].1;
            self.add(format!("{name}{of_format}"), &kernel, &run.interpreted);
            let how = run.compare(&kernel, target);
            *self.ran.entry((i, how)).or_default() += 1;
        }
    }

    /// Adds what a kernel leaves behind to what has a checksum.
    fn add(&mut self, name: String, kernel: &Kernel, buffers: &[Vec<u8>]) {
        let results = buffers.iter().zip(&kernel.buffers).filter(|(_, buffer)| buffer.kind.is_result());
        self.results.entry(name).or_default().extend(results.flat_map(|(bytes, _)| bytes));
    }

    /// Prints how each target's kernels were run.
    pub fn done(self) {
        let ran: Vec<String> =
            self.ran.iter().map(|((target, how), rows)| format!("{} {how} ({rows})", TARGETS[*target])).collect();
        println!("kernels: {:<14} {:>4} rows: {}", self.name, self.rows, ran.join(", "));
        // At run time: a kit for another machine has the tables, too.
        let package = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_string());
        let file = Path::new(&package).join(format!("tests/bits/{}.txt", self.name));
        let mut table = bits::Table::new(&file);
        self.results.iter().for_each(|(name, results)| table.add(name, [&results[..]]));
        if qemu::executes_this() { table.check_part() } else { table.check() }
    }
}

/// Runs a kernel on every target with inputs that are changed first, as a group's rows are run, and has what came out looked at.
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
        if qemu::executes_this() && !target.missing().is_empty() {
            println!("{}: {name}: LEFT OUT under QEMU", spec.name());
            continue;
        }
        let kernel = generate(&spec, target).unwrap_or_else(|e| panic!("{}: {name}: {e}", spec.name()));
        let mut before = fill(&spec, &kernel, &dims);
        change(&kernel, &mut before);
        let run = Run::of(&spec, &kernel, &dims, before);
        run.compare(&kernel, target);
        look(&kernel, &run.before, &run.interpreted);
    }
}

/// Whether a kernel makes bf16.
fn needs_16_lanes(spec: &KernelSpec) -> bool {
    spec.signature().buffers.iter().any(|buffer| match (buffer.role, buffer.holds) {
        (Role::Write, Holds::Activations(format, _)) => {
            matches!(format, Format::A8SuperTile | Format::A8SmallTile | Format::Bf16x2 | Format::Bf16x1)
        }
        _ => false,
    })
}

fn fill(spec: &KernelSpec, kernel: &Kernel, dims: &[i64]) -> Vec<Vec<u8>> {
    inputs::fill(kernel, Some(spec), dims, 0).unwrap_or_else(|e| panic!("{} {dims:?}: {e}", spec.name()))
}

/// The format of the first weight that a kernel reads or packs.
fn weight_format(spec: &KernelSpec) -> Option<Format> {
    spec.signature().buffers.iter().find_map(|buffer| match buffer.holds {
        Holds::Weight(format, _) | Holds::Strip(format, _) | Holds::Table(format, _) => Some(format),
        _ => None,
    })
}

/// Inputs of a kernel and what the interpreter made of them.
struct Run {
    dims: Vec<i64>,
    before: Vec<Vec<u8>>,
    interpreted: Vec<Vec<u8>>,
}

impl Run {
    fn interpret(spec: &KernelSpec, kernel: &Kernel, dims: &[i64]) -> Run {
        Run::of(spec, kernel, dims, fill(spec, kernel, dims))
    }

    fn of(spec: &KernelSpec, kernel: &Kernel, dims: &[i64], before: Vec<Vec<u8>>) -> Run {
        let name = spec.name();
        let mut interpreted = before.clone();
        interpret::run(kernel, dims, &mut interpreted).unwrap_or_else(|e| panic!("{name} {dims:?}: interpreter: {e}"));
        let run = reference::Run { kernel, dims, before: &before, after: &interpreted };
        spec.reference(&run).unwrap_or_else(|e| panic!("{name} {dims:?}: {e}"));
        Run { dims: dims.to_vec(), before, interpreted }
    }

    /// Runs the kernel on a target and compares every bit with the interpreter's results. Says how it ran.
    fn compare(&self, kernel: &Kernel, target: Target) -> &'static str {
        let mut found = self.before.clone();
        let how = execute(kernel, target, &self.dims, &mut found);
        if let Some(difference) = compare::first_difference(kernel, &self.interpreted, &found) {
            panic!("{} {:?}: {}: {difference}", kernel.name, self.dims, target.name());
        }
        how
    }
}

/// Runs the kernel on a target, emulated where this machine can't run it. Says how it ran.
fn execute(kernel: &Kernel, target: Target, dims: &[i64], buffers: &mut [Vec<u8>]) -> &'static str {
    let fail = |e: String| -> ! { panic!("{} {dims:?}: {}: {e}", kernel.name, target.name()) };
    if target.missing().is_empty() {
        let module = Module::compile(std::slice::from_ref(kernel), target).unwrap_or_else(|e| fail(e.to_string()));
        module.run_checked(0, dims, buffers).unwrap_or_else(|e| fail(e.to_string()));
        return "native";
    }
    let compiled = x64::compile(kernel, target).unwrap_or_else(|e| fail(e.to_string()));
    let program = Program::new(&[compiled.code, compiled.constants].concat(), compiled.code_bytes, target.features());
    let program = program.unwrap_or_else(|e| fail(e.to_string()));
    let slices: Vec<Slice<'_>> = kernel
        .buffers
        .iter()
        .zip(buffers)
        .map(|(buffer, bytes)| match buffer.kind {
            BufferKind::Read | BufferKind::Index { .. } => Slice::read(&buffer.name, bytes),
            BufferKind::Write | BufferKind::ReadWrite | BufferKind::Scratch => Slice::write(&buffer.name, bytes),
        })
        .collect();
    program.call(&slices, dims).unwrap_or_else(|e| fail(e.to_string()));
    "emulated"
}
