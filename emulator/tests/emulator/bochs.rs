//! Tests of vector instructions with random operands. The results are written to a file, which
//! Bochs checks instruction by instruction.
//!
//! Bochs is another emulator, which supports AVX-512 without VNNI, BF16 and FP16. It is a Python
//! package, and not a dependency of this test. `bochs/judge.py` explains how to install it.
//! `IXC_BOCHS` names the Python interpreter that runs it. Without this variable, the test prints
//! that it did not run.

use std::path::PathBuf;
use std::process::Command;

use iced_x86::CpuidFeature;
use ixc_emulator::{Program, Slice};
use ixc_ir::random::Random;
use ixc_targets::{Feature, Features};

use crate::function::{self, Function, PAGE, Page};
use ixc_testing::tools::{BOCHS, InstalledTool};

/// Number of random operands for each instruction.
const TRIES: u64 = 8;

fn all_features() -> Features {
    Features::from_list(Feature::ALL)
}

/// Returns the emulator's result, or `None` if it does not support the instruction.
pub fn emulate(function: &Function, input: &Page) -> Option<Page> {
    let program = Program::new(&function.bytes, function.bytes.len(), all_features()).ok()?;
    let mut output = Page([0; PAGE]);
    let buffers = [Slice::read("input", &input.0), Slice::write("output", &mut output.0)];
    program.call(&buffers, &[]).unwrap_or_else(|fault| panic!("{}: {fault}", function.name));
    Some(output)
}

/// Calls `check` for random forms of each instruction that the emulator supports and whose features
/// `wanted` selects.
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

/// Instructions that Bochs executes wrongly; a Zen 4 agrees with the emulator. Bochs masks the
/// first one by quadwords instead of bytes. It ignores or rejects W1 of the others.
const WRONG_IN_BOCHS: [&str; 3] = ["EVEX_Vpmultishiftqb_", "EVEX_Vextractps_r64m32_", "EVEX_Vpinsrb_xmm_xmm_r64m8_"];

/// Whether Cannon Lake, the newest AVX-512 model of Bochs, has this feature. Only features that the
/// emulator supports are listed.
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
