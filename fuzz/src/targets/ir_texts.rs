//! Targets for texts of graph IR and kernel IR.

use ixc_codegen::{portable, x64};
use ixc_ir::graph::number::canonical;
use ixc_ir::graph::{parse, verify};
use ixc_ir::kernel;
use ixc_passes::manager::Ir;
use ixc_targets::Target;
use ixc_testing::random_graphs::{Formats, random_model, random_module};
use ixc_testing::random_kernels::random_kernel;

use crate::Outcome;

/// Dictionary of graph IR.
pub const GRAPH_DICTIONARY: &[&str] = &[
    "%",
    "@",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "=",
    "-",
    "->",
    "\"",
    "\\u{",
    "0x",
    "1e-",
    ";",
    "\n",
    "T",
    "L",
    "S",
    "f32",
    "f16",
    "i32",
    "q4_k",
    "i8_row",
    "state ",
    "weight ",
    "func ",
    "return",
    "paged",
    "matmul",
    "route",
    "attention",
    "concat",
    "4294967295",
    "9223372036854775807",
];

/// Dictionary of kernel IR.
pub const KERNEL_DICTIONARY: &[&str] = &[
    "%",
    "{",
    "}",
    "[",
    "]",
    ",",
    "*",
    "+",
    "-",
    ":",
    "=",
    ";",
    "\n",
    "kernel ",
    "for ",
    " in ",
    "..",
    "read ",
    "write ",
    "scratch ",
    "index ",
    "dim ",
    "load",
    "store",
    "f32x8",
    "i32x16",
    "u8x64",
    "bf16",
    "tile",
    "splat",
    "dot4_u8s8",
    "select",
    "carry",
    "0x1p-3",
    "nan",
    "inf",
    "9223372036854775807",
    "-9223372036854775808",
    "4294967296",
];

/// Parses a text, prints it, and parses it again.
pub fn graph(input: &[u8]) -> Outcome {
    let Ok(text) = std::str::from_utf8(input) else { return Outcome::refused("is not UTF-8") };
    let stage = Ir::parse(text);
    if let Ok(ir) = &stage
        && !matches!(ir, Ir::Graph(_))
    {
        return Outcome::Accepted(ir.kind().to_owned());
    }
    let module = match parse::parse(text) {
        Ok(module) => module,
        Err(error) => return Outcome::refused(error),
    };
    verify::verify(&module).expect("a parsed module verifies");
    let printed = module.to_string();
    let again = parse::parse(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    assert_eq!(again, module, "{printed}");
    assert_eq!(canonical(&module).to_string(), printed, "the printed text is canonical");
    Outcome::Accepted(format!("{:?}", module.functions.last().and_then(|f| f.ops.last()).map(|op| op.kind)))
}

/// Returns texts of modules that together have all ops, and of a model.
pub fn graphs() -> Vec<Vec<u8>> {
    let modules = (0..6).map(|seed| random_module(seed, Formats::All).module);
    let modules = modules.chain([random_model(1, Formats::F32).module]);
    modules.map(|module| module.to_string().into_bytes()).collect()
}

/// Parses a text, prints it, parses it again, and compiles the kernel.
pub fn kernel(input: &[u8]) -> Outcome {
    let Ok(text) = std::str::from_utf8(input) else { return Outcome::refused("is not UTF-8") };
    let kernel = match kernel::parse::parse(text) {
        Ok(kernel) => kernel,
        Err(error) => return Outcome::refused(error),
    };
    let printed = kernel.to_string();
    let again = kernel::parse::parse(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    assert_eq!(again, kernel, "{printed}");
    let mut results = Vec::new();
    for target in [Target::AVX2, Target::AMX] {
        results.push(x64::compile(&kernel, target).map_or_else(|error| error.to_string(), |_| "compiles".to_owned()));
    }
    results.push(portable::compile(&kernel).map_or_else(|error| error.to_string(), |_| "compiles".to_owned()));
    Outcome::Accepted(results.join(", "))
}

/// Returns texts of kernels that together have all ops.
pub fn kernels() -> Vec<Vec<u8>> {
    (0..8)
        .map(|seed| random_kernel(seed, if u64::is_multiple_of(seed, 2) { 32 } else { 64 }).to_string().into_bytes())
        .collect()
}
