//! Kernels on the page: IR, instructions and costs side by side, with the source statement of each
//! instruction.

use std::collections::{BTreeMap, BTreeSet};

use ixc_codegen::module::Artifact;
use ixc_codegen::parallel;
use ixc_codegen::x64::{self, CompiledKernel};
use ixc_cost::{self as cost, Block, CpuModel, Report};
use ixc_ir::kernel::print::statement_lines;
use ixc_ir::kernel::products::Counter;
use ixc_ir::kernel::{BufferKind, Kernel};
use ixc_ir::plan::{Plan, Step, Task, Variant};
use ixc_kernels::KernelSpec;
use ixc_kernels::generator::work::evaluate;
use ixc_targets::Target;
use serde::Serialize;

use super::plan::dims;
use crate::Error;
use crate::kernels::show;

/// Max number of lines of a kernel's IR, and of its instructions.
const MAX_LINES: usize = 20_000;

/// A kernel.
#[derive(Clone, Debug, Serialize)]
pub struct KernelView {
    name: String,
    spec: Option<String>,
    /// Whether an edited kernel replaces the generated one.
    edited: bool,
    /// IR of the kernel, with numbered lines.
    ir: String,
    statements: Vec<u32>,
    /// Number of omitted lines of IR, and of instructions, at the end.
    left_out: [usize; 2],
    /// Instructions, one for each line, and the source statement of each; -1 for no statement.
    code: String,
    origins: Vec<i32>,
    /// Cost of the code, in one line.
    summary: String,
    instructions: Option<usize>,
    bytes: usize,
    spills: Option<usize>,
    loops: Vec<Loop>,
    /// CPU whose cost model counts the cycles of loops.
    cpu: Option<&'static str>,
    calls: Vec<Call>,
}

/// Cost of one iteration of a loop, or of the code outside all loops.
#[derive(Clone, Debug, Serialize)]
struct Loop {
    label: String,
    depth: u32,
    /// Number of the loop's statement in the kernel IR.
    statement: Option<u32>,
    /// Offsets of the loop's first and last instruction.
    code: Option<(u32, u32)>,
    instructions: u32,
    /// Numbers of instructions by kind: tile products, dot products, float products, other vector
    /// instructions, loads, stores, and scalar instructions. Then numbers of reads and writes of
    /// memory.
    mix: [u32; 9],
    cycles: f64,
    front_end: f64,
    ports: f64,
    chain: f64,
    bound: String,
    port: Vec<(&'static str, f64)>,
}

/// A call with a given number of rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Call {
    rows: u32,
    dims: Vec<i64>,
    /// Cycles on the CPU, with all operands in the CPU's first-level cache.
    cycles: Option<f64>,
    /// Bytes of all buffers except scratch.
    bytes: u64,
    /// Multiply-adds by type of the factors: int8, bf16, f32.
    products: [u64; 3],
}

/// Calls of each kernel in a plan: rows, and the dims that follow from them.
type Calls = BTreeMap<u32, BTreeSet<(u32, Vec<i64>)>>;

fn tasks(plan: &Plan<Kernel>) -> impl Iterator<Item = &Task> {
    plan.steps.iter().flat_map(|step| if let Step::Run { tasks, .. } = step { tasks.as_slice() } else { &[] })
}

fn calls(plan: &Plan<Kernel>) -> Calls {
    let mut calls = Calls::new();
    let mut note = |kernel: u32, rows: u32, variant: &Variant| {
        if let Some(dims) = dims(variant, rows) {
            calls.entry(kernel).or_default().insert((rows, dims));
        }
    };
    for variant in tasks(plan).flat_map(|task| &task.variants) {
        let max = variant.row_chunk.min(variant.up_to_rows).max(1);
        for rows in [1, max] {
            note(variant.kernel.0, rows, variant);
        }
        if let Some(bands) = &variant.bands {
            let band = Variant { dims: bands.dims.clone(), bands: None, split: None, ..variant.clone() };
            note(bands.kernel.0, max, &band);
        }
    }
    calls
}

/// Returns the kernels of a plan. Specs are known if the plan was just compiled.
///
/// # Errors
/// If the target has no code for a kernel.
pub fn views(
    plan: &Plan<Kernel>,
    specs: Option<&[KernelSpec]>,
    edited: &[String],
    target: Target,
) -> Result<Vec<KernelView>, Error> {
    let calls = calls(plan);
    let kernels: Vec<(u32, &Kernel)> = (0..).zip(&plan.kernels).collect();
    let view = |&(number, kernel): &(u32, &Kernel)| {
        let spec = specs.and_then(|specs| specs.get(number as usize));
        let calls = calls.get(&number).map(|calls| calls.iter().cloned().collect()).unwrap_or_default();
        KernelView::from_kernel(kernel, spec, edited.contains(&kernel.name), calls, target)
    };
    parallel::map(&kernels, view).into_iter().collect()
}

impl KernelView {
    fn from_kernel(
        kernel: &Kernel,
        spec: Option<&KernelSpec>,
        edited: bool,
        calls: Vec<(u32, Vec<i64>)>,
        target: Target,
    ) -> Result<KernelView, Error> {
        let artifact = Artifact::generate(kernel, target, true)?;
        let ((ir, more_ir), (code, origins, more_code)) = (cut(&kernel.to_string()), code(&artifact, kernel));
        let report = match (&artifact, cost::model(target)) {
            (Artifact::X64(compiled), Some(model)) => Some(analyse(compiled, kernel, model)),
            (Artifact::X64(_) | Artifact::Portable(_), _) => None,
        };
        let stats = match &artifact {
            Artifact::X64(compiled) => Some(compiled.stats),
            Artifact::Portable(_) => None,
        };
        let counter = Counter::from_kernel(kernel);
        // A kernel whose dims depend on positions gets the dims of its spec.
        let calls = if calls.is_empty() { spec.map(of_spec).unwrap_or_default() } else { calls };
        let call = |(rows, dims): (u32, Vec<i64>)| {
            let cycles = report.as_ref().and_then(|report| Some(report.whole(&dims).ok()?.cycles));
            let buffers = kernel.buffers.iter().filter(|buffer| buffer.kind != BufferKind::Scratch);
            let size = |size| evaluate(size, &dims).and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
            let bytes = buffers.map(|buffer| size(&buffer.size)).fold(0, u64::saturating_add);
            let products = counter.count(&dims);
            Call { rows, bytes, products: [products.int8, products.bf16, products.f32], cycles, dims }
        };
        Ok(KernelView {
            name: kernel.name.clone(),
            spec: spec.map(ToString::to_string),
            edited,
            ir,
            left_out: [more_ir, more_code],
            statements: statement_lines(kernel),
            code,
            origins,
            summary: show::cost(&artifact),
            instructions: stats.map(|stats| stats.instructions),
            bytes: artifact.bytes().iter().map(|part| part.len()).sum(),
            spills: stats.map(|stats| stats.vector_spills + stats.gpr_spills),
            loops: report.as_ref().map(loops).unwrap_or_default(),
            cpu: report.as_ref().map(|report| report.cpu),
            calls: calls.into_iter().map(call).collect(),
        })
    }
}

/// Returns the rows of a call of at most 8 rows, and its dims by the spec.
fn of_spec(spec: &KernelSpec) -> Vec<(u32, Vec<i64>)> {
    let rows = spec.max_rows().min(8);
    vec![(rows, spec.dims_of_rows(rows))]
}

/// Returns a text's first lines, and the number of omitted lines.
fn cut(text: &str) -> (String, usize) {
    match text.lines().count().saturating_sub(MAX_LINES) {
        0 => (text.to_owned(), 0),
        more => (text.lines().take(MAX_LINES).map(|line| format!("{line}\n")).collect(), more),
    }
}

/// Returns the lines of code, the statement of each line, and the number of omitted lines.
fn code(artifact: &Artifact, kernel: &Kernel) -> (String, Vec<i32>, usize) {
    let Some(code) = artifact.finished_code() else {
        let (text, more) = cut(&artifact.listing(kernel, 0));
        return (text, Vec::new(), more);
    };
    let listed = code.listing();
    let named: BTreeSet<&str> = listed.iter().filter_map(|line| label(&line.text)).collect();
    let (mut text, mut origins, mut more) = (String::new(), Vec::new(), 0);
    let mut push = |line: &str, origin: Option<u32>| {
        if origins.len() < MAX_LINES {
            text.push_str(line);
            text.push('\n');
            origins.push(origin.and_then(|origin| i32::try_from(origin).ok()).unwrap_or(-1));
        } else {
            more += 1;
        }
    };
    for line in &listed {
        let own = format!(".L{:x}", line.offset);
        if named.contains(own.as_str()) {
            push(&format!("{own}:"), None);
        }
        push(&format!("{:5x}  {}", line.offset, line.text), line.origin);
    }
    for line in x64::listing::text(code, kernel).lines().skip_while(|line| !line.contains(".balign")) {
        push(line, None);
    }
    (text, origins, more)
}

/// Returns the label in an instruction.
fn label(text: &str) -> Option<&str> {
    let from = text.find(".L")?;
    let name = &text[from..];
    let end = name[2..].find(|c: char| !c.is_ascii_alphanumeric()).map_or(name.len(), |end| end + 2);
    name.get(..end)
}

fn analyse(compiled: &CompiledKernel, kernel: &Kernel, model: &'static CpuModel) -> Report {
    cost::analyse(&compiled.code[..compiled.code_bytes], &compiled.lines, kernel, model)
}

fn loops(report: &Report) -> Vec<Loop> {
    let block = |label: &str, depth: u32, body: &Block| Loop {
        label: label.to_owned(),
        depth,
        statement: None,
        code: None,
        instructions: body.instructions,
        mix: {
            let m = &body.mix;
            [m.tile_dot + m.tile_other, m.dot, m.fma, m.vector, m.load, m.store, m.scalar, m.reads, m.writes]
        },
        cycles: body.cycles,
        front_end: body.front_end,
        ports: body.port_cycles,
        chain: body.chain,
        bound: body.bound_text(),
        port: body.ports.iter().map(|port| (port.port, port.cycles)).collect(),
    };
    let inner = report.loops.iter().map(|one| Loop {
        statement: one.statement,
        code: Some((one.start, one.end)),
        ..block(&one.label, one.depth, &one.body)
    });
    inner.chain([block("outside of loops", 0, &report.outside)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_lines_are_counted() {
        let lines = |n: usize| "a\n".repeat(n);
        assert_eq!(cut(&lines(MAX_LINES)), (lines(MAX_LINES), 0));
        assert_eq!(cut(&lines(MAX_LINES + 3)), (lines(MAX_LINES), 3));
    }
}
