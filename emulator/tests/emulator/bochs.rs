//! Vector instructions with random operands, written to a file that Bochs checks one by one.
//!
//! Bochs is another emulator, which supports AVX-512 without VNNI, BF16 and FP16. It is available
//! as a Python package, and is not a dependency. `bochs/judge.py` explains how to install it.
//! `IXC_BOCHS` names the Python to run it with; without it, the test prints that it did not run.

use std::path::PathBuf;
use std::process::Command;

use iced_x86::CpuidFeature;
use ixc_emulator::{Program, Slice};
use ixc_ir::random::Random;
use ixc_targets::{Feature, Features};

use crate::function::{self, Function, PAGE, Page};
use ixc_testing::tools::{BOCHS, InstalledTool};

/// Number of tries of each instruction.
const TRIES: u64 = 8;

fn all_features() -> Features {
    Features::from_list(Feature::ALL)
}

/// Returns the emulator's result, or `None` if it does not know the instruction.
pub fn emulate(function: &Function, input: &Page) -> Option<Page> {
    let program = Program::new(&function.bytes, function.bytes.len(), all_features()).ok()?;
    let mut output = Page([0; PAGE]);
    let buffers = [Slice::read("input", &input.0), Slice::write("output", &mut output.0)];
    program.call(&buffers, &[]).unwrap_or_else(|fault| panic!("{}: {fault}", function.name));
    Some(output)
}

/// Calls `check` for every form of every code that the emulator supports and whose features are
/// selected.
fn each(wanted: impl Fn(CpuidFeature) -> bool, mut check: impl FnMut(Function, Page, Page)) {
    for code in function::codes().filter(|code| code.cpuid_features().iter().all(|f| wanted(*f))) {
        let mut random = Random::new(code as u64);
        for _ in 0..TRIES {
            let Some(function) = function::function(code, &mut random) else { continue };
            let input = function::input(&mut random);
            if let Some(output) = emulate(&function, &input) {
                check(function, input, output);
            }
        }
    }
}

/// Forms that Bochs gets wrong: a Zen 4 agrees with the emulator. Bochs masks the first by
/// quadwords instead of bytes. It ignores or refuses W1 of the others.
const WRONG_IN_BOCHS: [&str; 3] = ["EVEX_Vpmultishiftqb_", "EVEX_Vextractps_r64m32_", "EVEX_Vpinsrb_xmm_xmm_r64m8_"];

/// Whether Bochs' newest AVX-512 model, Cannon Lake, has a feature that the emulator supports.
fn bochs_has(feature: CpuidFeature) -> bool {
    use CpuidFeature as F;
    matches!(
        feature,
        F::AVX | F::AVX2 | F::FMA | F::F16C | F::AVX512F | F::AVX512BW | F::AVX512DQ | F::AVX512VL | F::AVX512_VBMI
    )
}

#[test]
fn bochs_judges_instructions() {
    let Some(InstalledTool { program: python, .. }) = BOCHS.find("vector instructions against Bochs") else { return };
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let mut cases = Vec::new();
    each(bochs_has, |function, input, output| {
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
