//! Lowering of each op of the kernel IR, by target. Each case of `tests/lower/*.ix` has a kernel
//! and the expected instructions of each statement, without prologue, epilogue and loads of
//! addresses. Targets with the same instructions are listed together. Targets are omitted if their
//! vectors are too short or they lack the tiles of a case.
//! `IXC_BLESS=1 cargo test -p ixc-codegen --test lower` rewrites the expectations.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use ixc_codegen::x64::{self, listing};
use ixc_ir::kernel::op::OPS;
use ixc_ir::kernel::parse::parse;
use ixc_ir::kernel::{Kernel, Stmt};
use ixc_targets::Target;
use ixc_testing::becomes;

const TARGETS: [&str; 5] = ["avx2", "alder-lake", "avx512", "zen4", "amx"];

/// Operand of instructions that load the address of a buffer.
const ARGUMENT: &str = ", qword ptr [rdi";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lower")
}

/// Whether a target has vectors that are wide enough for a kernel, and the tiles that it uses.
fn holds(target: Target, kernel: &Kernel) -> bool {
    let row = target.row();
    kernel
        .values
        .iter()
        .all(|ty| if ty.is_tile() { row.isa.tile_registers > 0 } else { ty.bytes() <= row.isa.vector_bytes })
}

fn run(input: &str) -> Result<String, Box<dyn Error>> {
    let kernel = parse(input)?;
    let statements = listing::statements(&kernel);
    let mut blocks: Vec<(Vec<&str>, String)> = Vec::new();
    for name in TARGETS {
        let target = Target::from_name(name).ok_or("no such target")?;
        if !holds(target, &kernel) {
            continue;
        }
        let compiled = x64::compile(&kernel, target)?;
        let (mut text, mut last) = (String::new(), None);
        for line in compiled.listing() {
            let Some(origin) = line.origin.filter(|_| !line.text.contains(ARGUMENT)) else { continue };
            if last.replace(origin) != Some(origin) {
                writeln!(text, "  {}", statements[origin as usize])?;
            }
            writeln!(text, "    {}", line.text)?;
        }
        match blocks.iter_mut().find(|(_, other)| *other == text) {
            Some((names, _)) => names.push(name),
            None => blocks.push((vec![name], text)),
        }
    }
    Ok(blocks.iter().map(|(names, text)| format!("{}:\n{text}", names.join(", "))).collect())
}

#[test]
fn lowering_examples_match_recorded_output() -> Result<(), Box<dyn Error>> {
    becomes::check(&folder(), run)
}

/// Checks that every op has a case on every target that supports it.
#[test]
fn every_op_has_a_case() -> Result<(), Box<dyn Error>> {
    let mut found = BTreeSet::new();
    for case in becomes::files(&folder())? {
        let kernel = parse(&case.input)?;
        for target in TARGETS.into_iter().filter_map(Target::from_name).filter(|&target| holds(target, &kernel)) {
            let insts = kernel.body.iter().filter_map(|stmt| match stmt {
                Stmt::Inst(inst) => Some(inst.op),
                Stmt::For(_) | Stmt::LoadIndex { .. } => None,
            });
            found.extend(insts.map(|op| (target.name(), op.row().mnemonic)));
        }
    }
    for row in OPS {
        for target in TARGETS.into_iter().filter_map(Target::from_name) {
            let has = !row.op.takes_tiles() || target.isa().tile_registers > 0;
            assert!(!has || found.contains(&(target.name(), row.mnemonic)), "{}: no {}", target.name(), row.mnemonic);
        }
    }
    Ok(())
}
