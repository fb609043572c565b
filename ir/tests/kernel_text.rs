//! Text tests of the kernel IR: files with expectations (`tests/kernel/*.ix`), round trips of
//! random kernels, and hostile text. `ixc_testing::becomes` describes the content of the files.
//! `IXC_BLESS=1 cargo test -p ixc-ir --test kernel_text` rewrites the expectations.

use std::path::Path;

use ixc_ir::kernel::number::canonical;
use ixc_ir::kernel::parse::{ParseProblem, parse, parse_unverified};
use ixc_ir::kernel::verify::{MAX_DEPTH, verify};
use ixc_ir::kernel::{Imm, Kernel, KernelBuilder, Stmt, Type, ValueId};
use ixc_testing::becomes;
use ixc_testing::random_kernels::random_kernel;
use proptest::prelude::*;

#[test]
fn text_examples_match_their_recorded_result() -> Result<(), Box<dyn std::error::Error>> {
    becomes::check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel"), |text| Ok(parse(text)?.to_string()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn printed_kernels_read_back_the_same(seed: u64, wide: bool) {
        let kernel = random_kernel(seed, if wide { 64 } else { 32 });
        prop_assert_eq!(&canonical(&kernel), &kernel, "the builder numbers canonically");
        let text = kernel.to_string();
        let read = parse(&text);
        prop_assert_eq!(read.as_ref(), Ok(&kernel), "{}", text);
    }

    #[test]
    fn renumbered_kernels_read_back_canonical(seed: u64) {
        let kernel = random_kernel(seed, 32);
        let shuffled = reversed(&kernel);
        prop_assert_eq!(verify(&shuffled), Ok(()));
        prop_assert_eq!(&canonical(&shuffled), &kernel);
        prop_assert_eq!(parse(&shuffled.to_string()), Ok(kernel));
    }

    #[test]
    fn changed_text_is_read_or_refused(seed: u64, at: prop::sample::Index, len in 0usize..6, new in "[%{}\\[\\]()0-9a-z.,=*+ \n-]{0,6}") {
        let text = random_kernel(seed % 50, 32).to_string();
        let start = at.index(text.len());
        let end = (start + len).min(text.len());
        let text = [&text[..start], &new, &text[end..]].concat();
        if let Ok(kernel) = parse(&text) {
            prop_assert_eq!(parse(&kernel.to_string()), Ok(kernel));
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,80}") {
        let _ = parse_unverified(&text);
        let _ = parse_unverified(&format!("kernel k where %n in 0..=9 {{ buffer %x : read %n {text}"));
    }
}

/// Returns the kernel with its values numbered in reverse order, after an additional undefined
/// value.
fn reversed(kernel: &Kernel) -> Kernel {
    fn block(statements: &mut [Stmt], number: &impl Fn(&mut ValueId)) {
        for statement in statements {
            match statement {
                Stmt::Inst(inst) => inst.operands.iter_mut().chain(&mut inst.result).for_each(number),
                Stmt::For(f) => {
                    for carry in &mut f.carries {
                        [&mut carry.inner, &mut carry.init, &mut carry.next, &mut carry.result]
                            .into_iter()
                            .for_each(number);
                    }
                    block(&mut f.body, number);
                }
                Stmt::LoadIndex { .. } => {}
            }
        }
    }
    let mut kernel = kernel.clone();
    let count = kernel.values.len() as u32;
    kernel.values.push(Type::f32(1));
    kernel.values.reverse();
    block(&mut kernel.body, &|value| value.0 = count - value.0);
    kernel
}

#[test]
fn floats_read_back_bit_for_bit() {
    let special = [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0x7f80_0000, 0xff80_0000, 0x8000_0000, 1, 0x807f_ffff];
    let spread = (0..4096u32).map(|i| i.wrapping_mul(0x0013_57a1));
    for bits in special.into_iter().chain(spread) {
        let mut b = KernelBuilder::new("float");
        b.splat_f32(1, f32::from_bits(bits));
        let text = b.finish().to_string();
        let kernel = parse(&text).expect("reads");
        let Stmt::Inst(inst) = &kernel.body[0] else { panic!("{text}") };
        let Imm::Float(found) = inst.imm else { panic!("{text}") };
        assert_eq!(found.to_bits(), bits, "{text}");
    }
}

#[test]
fn nesting_in_text_is_limited() {
    let nested = |depth: usize| {
        let open: String = (0..depth).map(|i| format!("for %i{i} in 0..2 {{ ")).collect();
        format!("kernel deep {{ {open} {} }}", "}".repeat(depth))
    };
    assert!(parse(&nested(MAX_DEPTH)).is_ok());
    let error = parse(&nested(100_000)).expect_err("is too deep");
    assert_eq!(error.problem, ParseProblem::TooDeep { limit: MAX_DEPTH });
}
