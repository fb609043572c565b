//! Vector instructions, one by one with random operands: against this CPU, and as files for Bochs to judge.
//!
//! Bochs is another emulator, which knows AVX-512 without VNNI, BF16 and FP16. It is a Python package and no dependency of
//! ours: `bochs/judge.py` says how to install it. `IXC_BOCHS` names the Python to run it with; without it the test prints
//! that it did not run.

#[path = "bochs/function.rs"]
mod function;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use iced_x86::CpuidFeature;
use ixc_codegen::cpu;
use ixc_codegen::emulator::{Program, Slice};
use ixc_codegen::rows::inputs::Random;
use ixc_codegen::target::{Feature, Features};

use function::{Function, PAGE, Page};

/// How often each instruction is tried here, and by Bochs.
const TRIES: u64 = 24;
const BOCHS_TRIES: u64 = 8;

fn all_features() -> Features {
    Features::of(Feature::ALL)
}

/// What the emulator makes of it; nothing where it does not know the instruction.
fn emulate(function: &Function, input: &Page) -> Option<Page> {
    let program = Program::new(&function.bytes, function.bytes.len(), all_features()).ok()?;
    let mut output = Page([0; PAGE]);
    let buffers = [Slice::read("input", &input.0), Slice::write("output", &mut output.0)];
    program.call(&buffers, &[]).unwrap_or_else(|fault| panic!("{}: {fault}", function.name));
    Some(output)
}

/// The code in executable memory.
fn native(function: &Function, input: &Page) -> Page {
    let mut map = memmap2::MmapMut::map_anon(function.bytes.len()).unwrap();
    map.copy_from_slice(&function.bytes);
    let map = map.make_exec().unwrap();
    let mut output = Page([0; PAGE]);
    let pages = [input.0.as_ptr(), output.0.as_mut_ptr().cast_const()];
    // SAFETY: the code is a function of the System V convention made there: it takes the addresses of two pages, reads
    // PAGE bytes of the first, writes inside PAGE bytes of the second, and touches only registers that a callee may. The
    // caller has checked that this CPU has its instructions.
    unsafe {
        let function: extern "sysv64" fn(*const *const u8) = std::mem::transmute(map.as_ptr());
        function(pages.as_ptr());
    }
    output
}

/// Every form of every code that the emulator knows, if its features are wanted.
fn each(tries: u64, wanted: impl Fn(CpuidFeature) -> bool, mut check: impl FnMut(Function, Page, Page)) {
    for code in function::codes().filter(|code| code.cpuid_features().iter().all(|f| wanted(*f))) {
        let mut random = Random(code as u64);
        for _ in 0..tries {
            let Some(function) = function::function(code, &mut random) else { continue };
            let input = function::input(&mut random);
            if let Some(output) = emulate(&function, &input) {
                check(function, input, output);
            }
        }
    }
}

fn differ(found: &[u8], right: &[u8]) -> Option<String> {
    let at = (0..PAGE).step_by(8).find(|at| found[*at..at + 8] != right[*at..at + 8])?;
    let hex = |bytes: &[u8]| bytes[at..at + 8].iter().map(|b| format!("{b:02x}")).collect::<String>();
    Some(format!("byte {at} of the output: {}, emulated {}", hex(right), hex(found)))
}

#[test]
fn instructions_that_this_cpu_has_give_what_it_gives() {
    let present = cpu::present();
    if !present.contains(Features::of(&[Feature::Avx512f, Feature::Avx512bw, Feature::Avx512vl])) {
        println!("NOT RUN: this CPU has no AVX-512");
        return;
    }
    let has = |feature: CpuidFeature| match Feature::of_instruction(feature) {
        Some(feature) => present.has(feature),
        None => false,
    };
    let (mut cases, mut codes) = (0, BTreeMap::new());
    let mut wrong = Vec::new();
    each(TRIES, has, |function, input, output| {
        cases += 1;
        let count: &mut u32 = codes.entry(function.code as u32).or_default();
        *count += 1;
        if let Some(what) = differ(&output.0, &native(&function, &input).0) {
            wrong.push(format!("{}: {what}", function.name));
        }
    });
    println!("{cases} cases of {} instructions, native and emulated", codes.len());
    assert!(wrong.is_empty(), "{} cases differ:\n{}", wrong.len(), wrong[..wrong.len().min(30)].join("\n"));
    assert!(codes.len() > 700, "only {} instructions", codes.len());
}

/// Forms that Bochs gets wrong: this CPU gives for them what the emulator gives. The first is masked by quadwords there,
/// not by bytes; the others ignore or refuse W1.
const WRONG_IN_BOCHS: [&str; 3] = ["EVEX_Vpmultishiftqb_", "EVEX_Vextractps_r64m32_", "EVEX_Vpinsrb_xmm_xmm_r64m8_"];

/// What Bochs' newest AVX-512 model, Cannon Lake, has of what the emulator knows.
fn bochs_has(feature: CpuidFeature) -> bool {
    use CpuidFeature as F;
    matches!(
        feature,
        F::AVX | F::AVX2 | F::FMA | F::F16C | F::AVX512F | F::AVX512BW | F::AVX512DQ | F::AVX512VL | F::AVX512_VBMI
    )
}

#[test]
fn bochs_judges_instructions() {
    let Some(python) = std::env::var_os("IXC_BOCHS") else {
        println!("NOT RUN: IXC_BOCHS does not name a Python with bochscpu; see tests/emulator/bochs/judge.py");
        return;
    };
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let mut cases = Vec::new();
    each(BOCHS_TRIES, bochs_has, |function, input, output| {
        if WRONG_IN_BOCHS.iter().any(|form| format!("{:?}", function.code).starts_with(form)) {
            return;
        }
        let (code, input, output) = (hex(&function.bytes), hex(&input.0), hex(&output.0));
        let name = format!("{:?}", function.code);
        cases.push(format!(r#"{{"name": "{name}", "code": "{code}", "input": "{input}", "output": "{output}"}}"#));
    });
    let file = std::env::temp_dir().join(format!("ixc-bochs-{}.json", std::process::id()));
    std::fs::write(&file, format!("[\n{}\n]\n", cases.join(",\n"))).unwrap();
    let judge = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/emulator/bochs/judge.py");
    let verdict = Command::new(&python).arg(judge).arg(&file).output().unwrap_or_else(|e| panic!("{python:?}: {e}"));
    print!("{}", String::from_utf8_lossy(&verdict.stdout));
    println!("Left out, because Bochs is wrong there: {}", WRONG_IN_BOCHS.join(", "));
    let cases = file.display();
    assert!(verdict.status.success(), "{}\ncases: {cases}", String::from_utf8_lossy(&verdict.stderr));
    std::fs::remove_file(&file).unwrap();
}
