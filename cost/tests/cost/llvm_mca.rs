//! Comparison of the cost of vector code with llvm-mca, if it is installed. It compares cycles per
//! iteration of the innermost loops of generated kernels.
//!
//! llvm-mca simulates a pipeline with similar tables: a µop takes the first free port, and the
//! scheduler has a limited size. It also prints the bound from resources alone
//! (`Block RThroughput`). The analysis of `ixc` computes the bound from resources in closed form,
//! and adds the loop-carried chain. Its result must therefore be between llvm-mca's two results,
//! within [`MAX_RATIO`]. It must also be within [`FACTOR`] of the simulation, except for the loops
//! in [`OUTLIERS`], each with its reason. `docs/cost-model.md` has the table.
//!
//! The results for Zen 4 are only printed, because its table in `ixc` was measured, and LLVM's
//! table contradicts the measurements.

use ixc_kernels::{
    AttentionPart, Bits, Cache, Elementwise, Heads, KernelSpec, Map, MatmulStrategy, Pack, RmsNorm, Scores, generate,
};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Formatter, IntelFormatter, MemorySizeOptions};
use ixc_codegen::x64;
use ixc_cost::class::Class;
use ixc_cost::model::{CostSource, Row, both};
use ixc_cost::{self as cost, CpuModel, LoopReport, Report};
use ixc_ir::format::Format;
use ixc_targets::Target;

use super::kernels::{hot, linear, unpacking};
use ixc_testing::tools::{InstalledTool, LLVM_MCA};

/// Max ratio between the simulation's cycles and the model's.
const FACTOR: f64 = 1.35;
/// Max ratio between the model and the nearer of llvm-mca's two results, if the model is not
/// between them.
const MAX_RATIO: f64 = 1.25;

/// Targets, and LLVM's names of the CPUs.
const CPUS: [(&str, &str); 6] = [
    ("haswell", "haswell"),
    ("zen3", "znver3"),
    ("skylake-x", "skylake-avx512"),
    ("icelake", "icelake-server"),
    ("zen4", "znver4"),
    ("sapphire-rapids", "sapphirerapids"),
];

/// Reason: in the simulation, a µop takes the first free port; in the closed form, it takes the
/// best one.
const GREEDY: &str = "llvm-mca spreads µops over the ports as they come, the model as they fit best";
/// Reason: the simulated scheduler has room for only a few iterations.
const WINDOW: &str = "a long chain in each iteration: llvm-mca's scheduler holds too few iterations to hide it";
const FUSED_LOADS_REASON: &str = "llvm-mca counts a load and its sum as two slots";
const FMA_LOAD: &str = "LLVM gives the accumulator of a multiply-add from memory two more cycles of latency";

/// Loops in which model and simulation may differ by more, each with the reason. They may also
/// agree.
const OUTLIERS: &[(&str, &str, &str)] = &[
    ("haswell", "rms_norm", FUSED_LOADS_REASON),
    ("haswell", "attention", WINDOW),
    ("zen3", "unpack q4_k", GREEDY),
    ("zen3", "gemm q4_k", GREEDY),
    ("zen3", "gemm q8_0", GREEDY),
    ("zen3", "gemv q4_k", GREEDY),
    ("zen3", "gemv q8_0", GREEDY),
    ("zen3", "attention", WINDOW),
    ("zen3", "silu", WINDOW),
    ("skylake-x", "attention", WINDOW),
    ("skylake-x", "silu", WINDOW),
    ("icelake", "attention", WINDOW),
    ("icelake", "silu", WINDOW),
    ("sapphire-rapids", "gemm f16", FMA_LOAD),
    ("sapphire-rapids", "gemv f32", FMA_LOAD),
    ("sapphire-rapids", "attention", WINDOW),
];

/// The CPU whose model is compared with measurements instead.
const MEASURED: &str = "zen4";

/// Function that selects an innermost loop of a kernel.
type Choice = fn(&Report) -> &LoopReport;

/// Rows of client CPUs. LLVM's models of Ice Lake and Sapphire Rapids describe the client parts,
/// with one 64-byte multiplier (and three 64-byte loads). To compare everything else, the test uses
/// these rows in the models of `ixc`.
const CLIENT_ICELAKE: &[Row] = &[
    both(Class::FloatAdd, "01", "0", 4, CostSource::Llvm),
    both(Class::FloatMul, "01", "0", 4, CostSource::Llvm),
    both(Class::Fma, "01", "0", 4, CostSource::Llvm),
    both(Class::FloatScale, "01", "0", 4, CostSource::Llvm),
];
const CLIENT_GOLDEN_COVE: &[Row] = &[
    both(Class::Load, "23B", "23B", 8, CostSource::Llvm),
    both(Class::FloatMul, "01", "0", 4, CostSource::Llvm),
    both(Class::Fma, "01", "0", 4, CostSource::Llvm),
    both(Class::FloatCompare, "01", "0", 4, CostSource::Llvm),
    both(Class::FloatRound, "01+01", "0+0", 8, CostSource::Llvm),
    both(Class::FloatScale, "01", "0", 4, CostSource::Llvm),
    both(Class::MulWord, "01", "0", 5, CostSource::Llvm),
    both(Class::MulDword, "01+01", "0+0", 10, CostSource::Llvm),
    both(Class::DotInt, "01", "0", 5, CostSource::Llvm),
    both(Class::Convert, "01", "0", 4, CostSource::Llvm),
];

fn as_llvm_has_it(model: &'static CpuModel) -> &'static CpuModel {
    let first = match model.name {
        "icelake" => CLIENT_ICELAKE,
        "sapphire-rapids" => CLIENT_GOLDEN_COVE,
        _ => return model,
    };
    // The memory is leaked on purpose, once for each CPU of the list.
    let tables = Vec::leak([&[first], model.tables].concat());
    Box::leak(Box::new(CpuModel { tables, ..*model }))
}

fn specs() -> Vec<(&'static str, KernelSpec, Choice)> {
    vec![
        ("pack q4_k", Pack { to: Format::Q4KR16 }.into(), unpacking),
        ("unpack q4_k", linear(Format::Q4KR16, MatmulStrategy::Gemm), unpacking),
        ("unpack q6_k", linear(Format::Q6KR16, MatmulStrategy::Gemm), unpacking),
        ("gemm q4_k", linear(Format::Q4KR16, MatmulStrategy::Gemm), hot),
        ("gemm q8_0", linear(Format::Q8_0R16, MatmulStrategy::Gemm), hot),
        ("gemm q6_k", linear(Format::Q6KR16, MatmulStrategy::Gemm), hot),
        ("gemm f16", linear(Format::F16R16, MatmulStrategy::Gemm), hot),
        ("gemv q4_k", linear(Format::Q4KR16, MatmulStrategy::Gemv), hot),
        ("gemv q8_0", linear(Format::Q8_0R16, MatmulStrategy::Gemv), hot),
        ("gemv q6_k", linear(Format::Q6KR16, MatmulStrategy::Gemv), hot),
        ("gemv f32", linear(Format::F32R16, MatmulStrategy::Gemv), hot),
        (
            "attention",
            AttentionPart {
                heads: Heads { group: 4, d: 128, dv: 128 },
                scores: Scores::with_scale(0.125),
                cache: Cache::default(),
            }
            .into(),
            hot,
        ),
        ("rms_norm", RmsNorm { n: 2048, eps: Bits::from_value(1e-5), out: Format::F32, plain: false }.into(), hot),
        ("silu", Map { function: Elementwise::Silu, n: 2048 }.into(), hot),
    ]
}

/// Results of llvm-mca for a loop, in cycles per iteration.
struct Simulation {
    /// Cycles of the simulation in the steady state.
    simulated: f64,
    /// Cycles of the bound from resources alone.
    resources: f64,
}

fn simulate(tool: &Path, cpu: &str, text: &str) -> Result<Simulation, String> {
    let run = |iterations: u32| -> Result<String, String> {
        let mut child = Command::new(tool)
            .args([&format!("-mcpu={cpu}"), &format!("-iterations={iterations}"), "-march=x86-64"])
            .args(["-instruction-info=0", "-resource-pressure=0"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| e.to_string())?;
        let mut input = child.stdin.take().ok_or("no stdin")?;
        input.write_all(text.as_bytes()).map_err(|e| e.to_string())?;
        drop(input);
        let out = child.wait_with_output().map_err(|e| e.to_string())?;
        if out.status.success() {
            Ok(String::from_utf8_lossy(&out.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&out.stderr).into_owned())
        }
    };
    let figure = |text: &str, what: &str| -> Result<f64, String> {
        let line = text.lines().find_map(|l| l.strip_prefix(what));
        line.and_then(|l| l.trim().parse().ok()).ok_or_else(|| format!("no `{what}` in {text:?}"))
    };
    let (long, short) = (run(150)?, run(50)?);
    let simulated = (figure(&long, "Total Cycles:")? - figure(&short, "Total Cycles:")?) / 100.0;
    Ok(Simulation { simulated, resources: figure(&short, "Block RThroughput:")? })
}

/// Returns the instructions from `start` to `end` as text for llvm-mca.
fn text(code: &[u8], start: u32, end: u32) -> String {
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_memory_size_options(MemorySizeOptions::Always);
    let mut out = String::from(".intel_syntax noprefix\n.Lstart:\n");
    for i in Decoder::with_ip(64, code, 0, DecoderOptions::NONE) {
        if !(u64::from(start)..=u64::from(end)).contains(&i.ip()) {
            continue;
        }
        if i.flow_control() == FlowControl::ConditionalBranch {
            out += "jne .Lstart\n";
            continue;
        }
        formatter.format(&i, &mut out);
        out.push('\n');
    }
    out
}

#[test]
fn innermost_loops_agree_with_llvm_mca() {
    let Some(InstalledTool { program: tool, version }) =
        LLVM_MCA.find("the vector part of the cost model against llvm-mca")
    else {
        return;
    };
    println!(
        "LLVM {version}; cycles per iteration: ours / its resources alone / its simulation (ours over the latter)"
    );
    let mut wrong = Vec::new();
    let mut table: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
    for (target_name, cpu) in CPUS {
        let target = Target::from_name(target_name).unwrap();
        let model = as_llvm_has_it(cost::model(target).unwrap());
        if let Err(error) = simulate(&tool, cpu, ".intel_syntax noprefix\nadd rax, 1\n") {
            println!("NOT RUN: LLVM {version} has no model of {cpu}: {}", error.lines().next().unwrap_or_default());
            continue;
        }
        for (name, spec, choice) in specs() {
            let kernel = generate(&spec, target).unwrap();
            let compiled = x64::compile(&kernel, target).unwrap();
            let code = &compiled.code[..compiled.code_bytes];
            let report = cost::analyse(code, &compiled.lines, &kernel, model);
            let hot = choice(&report);
            let theirs = simulate(&tool, cpu, &text(code, hot.start, hot.end))
                .unwrap_or_else(|error| panic!("{name} on {cpu}: {error}"));
            let (ours, Simulation { simulated, resources }) = (hot.body.cycles, theirs);
            let ratio = ours / simulated;
            let outlier = OUTLIERS.iter().find(|(t, n, _)| *t == target_name && *n == name);
            let mark = if outlier.is_some() { " *" } else { "" };
            let cell = format!("{ours:.1} / {resources:.1} / {simulated:.1} ({ratio:.2}){mark}");
            println!("{target_name} {name}: {cell}, {} instructions, {}", hot.body.instructions, hot.body.bound_text());
            table.entry(name).or_default().insert(target_name, cell);
            if target_name == MEASURED {
                continue;
            }
            let other_slots = outlier.is_some_and(|(.., why)| *why == FUSED_LOADS_REASON);
            if ours * MAX_RATIO < resources && !other_slots || ours > simulated * MAX_RATIO {
                wrong.push(format!("{target_name} {name}: {ours:.2} is not between {resources:.2} and {simulated:.2}"));
            }
            match outlier {
                None if ratio * FACTOR < 1.0 => {
                    wrong.push(format!("{target_name} {name}: {ratio:.2} of the simulation"))
                }
                Some((.., why)) => println!("    outlier: {why}"),
                None => {}
            }
        }
    }
    println!("| loop | {} |", CPUS.map(|c| c.0).join(" | "));
    println!("| --- | {} |", CPUS.map(|_| "---").join(" | "));
    for (name, row) in &table {
        let cells: Vec<_> = CPUS.iter().map(|(t, _)| row.get(t).map_or("", String::as_str)).collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
    assert_eq!(wrong, Vec::<String>::new(), "beyond a factor of {FACTOR}, or of {MAX_RATIO} outside of both figures");
}
