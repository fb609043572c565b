//! Tests of cache levels with small kernels. The expected results are derived in each test.

use ixc_codegen::x64;
use ixc_cost::memory::{Levels, LevelsError, Start, levels};
use ixc_cost::{self as cost, KernelCostError, analyse};
use ixc_ir::kernel::{CallError, Kernel, KernelBuilder, Type};
use ixc_targets::Target;
use ixc_targets::memory::{Level, line_load};

fn counted(kernel: &Kernel, cpu: &str, dims: &[i64], starts: &[Start]) -> Result<Levels, LevelsError> {
    let target = Target::from_name(cpu).unwrap();
    let compiled = x64::compile(kernel, target).unwrap();
    let code = &compiled.code[..compiled.code_bytes];
    let report = analyse(code, &compiled.lines, kernel, cost::model(target).unwrap());
    let out = levels(&report, kernel, target.row().memory(), dims, starts);
    if let Ok(levels) = &out {
        println!("{report}\n{levels}");
        let whole = report.whole(dims).unwrap();
        assert!(levels.cycles >= whole.cycles - 1e-6 && levels.cycles_drained >= whole.cycles_drained - 1e-6);
    }
    out
}

/// Returns a kernel that copies `%n` lines twice. Consecutive lines are `stride` bytes apart.
fn copy(stride: i64) -> Kernel {
    let mut b = KernelBuilder::new("copy");
    let n = b.dim("n", 0, 1 << 30);
    let (x, y) = (b.read("x", n * stride), b.write("y", 64));
    b.for_each("twice", 2, |b, _| {
        b.for_each("i", n, |b, i| {
            let v = b.load(Type::f32(16), x, i * stride);
            b.store(y, 0, v);
        });
    });
    b.finish()
}

fn x_lines(levels: &Levels) -> [u64; 4] {
    levels.traffic.iter().find(|t| t.buffer == "x").unwrap().lines
}

#[test]
fn repeated_walk_reads_from_the_level_that_fits() {
    // Sapphire Rapids has 48 KiB of L1, 2 MiB of L2, and 1.875 MiB of L3 that holds victims of L2.
    // The cases use 32 KiB, 512 KiB, 3 MiB and 32 MiB.
    for (lines, level) in [(512, Level::L1), (8192, Level::L2), (49152, Level::L3), (1 << 19, Level::Memory)] {
        let levels = counted(&copy(64), "sapphire-rapids", &[lines], &[]).unwrap();
        let from = x_lines(&levels);
        assert!(from[level as usize] as f64 > 0.85 * 2.0 * lines as f64, "{level:?}: {from:?}");
        let cycles = line_load(level).map_or(1.0, |line| line.cycles);
        if level >= Level::L2 {
            assert_eq!((levels.bound.level, levels.bound.what.as_str()), (Some(level), "loads of x"));
            assert!(levels.cycles > 0.85 * cycles * 2.0 * lines as f64);
        } else {
            assert_eq!((levels.bound.level, levels.slowdown), (None, 1.0));
        }
    }
}

#[test]
fn page_stride_uses_a_single_l1_set() {
    // A set of 12 ways has room for 11 loaded lines and the stored line, but not for 13 loaded
    // lines. With a stride that is one line longer, the lines are in different sets, and all of
    // them fit.
    let twice = |stride, lines| x_lines(&counted(&copy(stride), "sapphire-rapids", &[lines], &[]).unwrap());
    assert_eq!(twice(4096, 11), [22, 0, 0, 0]);
    assert_eq!(twice(4096, 13), [0, 26, 0, 0]);
    assert_eq!(twice(4096 + 64, 32), [64, 0, 0, 0]);
    // Haswell's L1 has 8 ways.
    let haswell = |lines| {
        let mut b = KernelBuilder::new("copy");
        let x = b.read("x", 1 << 20);
        b.for_each("i", lines, |b, i| {
            b.load(Type::f32(8), x, i * 4096);
        });
        x_lines(&counted(&b.finish(), "haswell", &[], &[]).unwrap())
    };
    assert_eq!((haswell(8), haswell(9)), ([8, 0, 0, 0], [0, 9, 0, 0]));
}

#[test]
fn stores_transfer_their_line_twice() {
    let kernel = |store: bool| {
        let mut b = KernelBuilder::new("fill");
        let (x, y) = (b.read("x", 1 << 19), b.write("y", 1 << 19));
        b.for_each("i", 1 << 13, |b, i| match store {
            true => {
                let zero = b.splat_f32(16, 0.0);
                b.store(y, i * 64, zero);
            }
            false => {
                b.load(Type::f32(16), x, i * 64);
            }
        });
        b.finish()
    };
    let cycles = |store| counted(&kernel(store), "sapphire-rapids", &[], &[]).unwrap().loops[0].cycles;
    assert_eq!((cycles(false), cycles(true)), (2.0 * 8192.0, 4.0 * 8192.0));
}

#[test]
fn buffers_start_at_the_given_level() {
    for level in Level::ALL {
        let start = Start { buffer: "x".into(), level };
        let from = x_lines(&counted(&copy(64), "sapphire-rapids", &[100], &[start]).unwrap());
        let mut expected = [100, 0, 0, 0];
        expected[level as usize] += 100;
        assert_eq!(from, expected);
    }
}

#[test]
fn uncountable_kernels_are_refused_with_a_reason() {
    let of = |dims: &[i64], starts: &[Start]| counted(&copy(64), "zen4", dims, starts).unwrap_err().to_string();
    assert_eq!(
        of(&[1], &[Start { buffer: "w".into(), level: Level::L2 }]),
        "the kernel has no buffer \"w\"; its buffers are x, y"
    );
    assert_eq!(
        of(&[1 << 30], &[]),
        "cannot simulate the caches: with these dims, the kernel touches 4294967296 cache lines; the limit is 268435456"
    );
    assert!(matches!(
        counted(&copy(64), "zen4", &[], &[]),
        Err(LevelsError::Whole(KernelCostError::Call(CallError::DimCount { .. })))
    ));
    // Without iterations, only the cycles outside of loops remain.
    let none = counted(&copy(64), "zen4", &[0], &[]).unwrap();
    assert_eq!((none.traffic.len(), none.slowdown), (0, 1.0));
}
