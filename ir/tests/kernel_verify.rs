//! Tests of the kernel verifier: accepted kernels, kernels with one violation each, and random
//! kernels that are verified and run.

use ixc_ir::kernel::interpret;
use ixc_ir::kernel::op::OPS;
use ixc_ir::kernel::verify::{MAX_DEPTH, Problem, Site, VerifyError, verify};
use ixc_ir::kernel::*;
use ixc_testing::random_kernels::{KernelOptions, random_buffers, random_dims, random_kernel_with};

/// Number of random kernels for each vector width. The seeds are `0..SEEDS`.
const SEEDS: u64 = 400;

fn for_each_statement(body: &[Stmt], f: &mut impl FnMut(&Stmt)) {
    for statement in body {
        f(statement);
        match statement {
            Stmt::For(inner) => for_each_statement(&inner.body, f),
            Stmt::Inst(_) | Stmt::LoadIndex { .. } => {}
        }
    }
}

#[test]
fn random_kernels_verify_and_run_and_have_every_op() {
    for (widest, tiles) in [(32, false), (64, false), (32, true)] {
        let mut seen = vec![0; OPS.len()];
        let (mut loops, mut indices, mut carries) = (0, 0, 0);
        for seed in 0..SEEDS {
            let kernel = random_kernel_with(seed, KernelOptions { widest, tiles, has: |_| true });
            assert_eq!(verify(&kernel), Ok(()), "seed {seed}, widest {widest}");
            assert!(kernel.values.iter().all(|ty| ty.bytes() <= widest || tiles && ty.is_tile()));
            for_each_statement(&kernel.body, &mut |statement| match statement {
                Stmt::Inst(inst) => seen[inst.op as usize] += 1,
                Stmt::For(f) => {
                    loops += 1;
                    carries += f.carries.len();
                }
                Stmt::LoadIndex { .. } => indices += 1,
            });
            for run in 0..3 {
                let dims = random_dims(&kernel, seed + run);
                let mut buffers = random_buffers(&kernel, &dims, seed + run);
                let result = interpret::run(&kernel, &dims, &mut buffers);
                assert_eq!(result, Ok(()), "seed {seed}, widest {widest}, dims {dims:?}");
            }
        }
        for (row, seen) in OPS.iter().zip(seen) {
            let may = tiles || !row.op.takes_tiles();
            assert_eq!(seen > 0, may, "`{}` was generated {seen} times", row.mnemonic);
            assert!(seen >= 10 || !may, "`{}` was generated {seen} times", row.mnemonic);
        }
        assert!(loops.min(indices).min(carries) > SEEDS as usize / 2, "{loops} {indices} {carries}");
    }
}

/// Applies random changes to random kernels. The verifier must not panic. If it accepts a kernel,
/// the interpreter must not find an access that breaks a bound or a buffer's kind.
#[test]
fn verified_kernels_never_leave_their_buffers() {
    let (mut accepted, mut rejected) = (0, 0);
    for seed in 0..3 * SEEDS {
        let options = KernelOptions { widest: 32, tiles: seed % 3 == 0, has: |_| true };
        let mut kernel = random_kernel_with(seed % SEEDS, options);
        let mut rng = ixc_ir::random::Random::new(seed);
        for _ in 0..1 + rng.below(2) {
            mutate(&mut kernel, &mut rng);
        }
        if verify(&kernel).is_err() {
            rejected += 1;
            continue;
        }
        accepted += 1;
        for run in 0..8 {
            let dims = random_dims(&kernel, seed * 8 + run);
            let mut buffers = random_buffers(&kernel, &dims, seed);
            let result = interpret::run(&kernel, &dims, &mut buffers);
            let fine = matches!(result, Ok(()) | Err(interpret::InterpretError::Mask { .. }))
                // If the limit is 0 for these dims, no index value is valid. A caller would have
                // rejected the buffer.
                || matches!(result, Err(interpret::InterpretError::IndexValue { below, .. }) if below < 1);
            assert!(fine, "seed {seed}, dims {dims:?}: {result:?}");
        }
    }
    assert!(accepted > 50 && rejected > 50, "{accepted} {rejected}");
}

fn mutate(kernel: &mut Kernel, rng: &mut ixc_ir::random::Random) {
    let values = kernel.values.len() as u64;
    match rng.below(4) {
        0 => {
            let i = rng.below(kernel.buffers.len() as u64) as usize;
            mutate_affine(&mut kernel.buffers[i].size, rng);
        }
        1 if values > 0 => {
            let i = rng.below(values) as usize;
            let (elem, lanes) = (rng.pick(&Elem::ALL), rng.pick(&[1, 2, 4, 8, 16, 3, 0, 40000]));
            kernel.values[i] = Type::tile(elem, rng.pick(&[0, 0, 1, 16, 17]), lanes);
        }
        _ => {
            let mut countdown = rng.below(30);
            mutate_body(&mut kernel.body, &mut countdown, values, rng);
        }
    }
}

fn mutate_body(body: &mut [Stmt], countdown: &mut u64, values: u64, rng: &mut ixc_ir::random::Random) {
    for statement in body {
        if *countdown == 0 {
            match statement {
                Stmt::Inst(inst) => match (&mut inst.address, rng.below(4)) {
                    (Some(address), 0) => address.buffer = BufferId(rng.below(9) as u32),
                    (Some(_), 1) if matches!(inst.imm, Imm::Int(_)) => {
                        inst.imm = Imm::Int(rng.pick(&[-1, 0, 1, 64, 100, 127, 200, 1 << 31, i64::MAX, i64::MIN]));
                    }
                    (Some(address), _) => mutate_affine(&mut address.offset, rng),
                    (None, 0) => inst.op = OPS[rng.below(OPS.len() as u64) as usize].op,
                    (None, 1) => inst.imm = Imm::Int(rng.bits() as i64),
                    (None, _) => {
                        let operand = ValueId(rng.below(values + 1) as u32);
                        inst.operands.iter_mut().for_each(|old| *old = operand);
                    }
                },
                Stmt::For(f) => mutate_affine(&mut f.trip, rng),
                Stmt::LoadIndex { address, .. } => mutate_affine(&mut address.offset, rng),
            }
        }
        *countdown = countdown.wrapping_sub(1);
        if let Stmt::For(f) = statement {
            mutate_body(&mut f.body, countdown, values, rng);
        }
    }
}

fn mutate_affine(affine: &mut Affine, rng: &mut ixc_ir::random::Random) {
    let by = rng.pick(&[1, -1, 4, -4, 16, -64, 400]);
    match rng.below(2) {
        0 => affine.constant += by,
        _ => {
            let atom = match rng.below(2) {
                0 => Atom::Dim(DimId(rng.below(3) as u32)),
                _ => Atom::Var(VarId(rng.below(4) as u32)),
            };
            match affine.terms.iter().position(|(a, _)| *a == atom) {
                Some(i) => affine.terms[i].1 += by,
                None => affine.terms.push((atom, by)),
            }
            if rng.below(8) != 0 {
                affine.terms.sort_by_key(|(atom, _)| *atom);
            }
        }
    }
}

fn load_at(b: &mut KernelBuilder, buffer: BufferId, offset: impl Into<Affine>) {
    b.load(Type::f32(8), buffer, offset);
}

fn problem(kernel: &Kernel) -> Option<Problem> {
    verify(kernel).err().map(|error| error.problem)
}

/// Returns a kernel with a dim `%n` in `lo..=hi` and a buffer `%x`.
fn with_n(
    lo: i64,
    hi: i64,
    size: impl Fn(DimId) -> Affine,
    body: impl FnOnce(&mut KernelBuilder, DimId, BufferId),
) -> Kernel {
    let mut b = KernelBuilder::new("k");
    let n = b.dim("n", lo, hi);
    let x = b.read("x", size(n));
    body(&mut b, n, x);
    b.finish()
}

#[test]
fn an_access_must_be_inside_for_all_dims() {
    let exact = |n: DimId| n * 32;
    let ok = with_n(0, 9, exact, |b, n, x| b.for_each("i", n, |b, i| load_at(b, x, i * 32)));
    assert_eq!(verify(&ok), Ok(()));
    let after = with_n(0, 9, exact, |b, n, x| b.for_each("i", n, |b, i| load_at(b, x, i * 32 + 4)));
    let right = Problem::AfterEnd { buffer: "x".into(), excess: 4 };
    let site = Site::Statement { number: 1, what: "load" };
    assert_eq!(verify(&after), Err(VerifyError { site, problem: right }));
    let before = with_n(0, 9, exact, |b, n, x| b.for_each("i", n, |b, i| load_at(b, x, i * -32)));
    assert_eq!(problem(&before), Some(Problem::BeforeStart { buffer: "x".into(), least: -256 }));
    let backwards =
        |b: &mut KernelBuilder, n: DimId, x| b.for_each("i", n, |b, i| load_at(b, x, i * -32 + (n * 32 + -32)));
    assert_eq!(verify(&with_n(0, 9, exact, backwards)), Ok(()));
    let too_far = with_n(0, 9, exact, |b, n, x| b.for_each("i", n + 1, |b, i| load_at(b, x, i * 32)));
    assert_eq!(problem(&too_far), Some(Problem::AfterEnd { buffer: "x".into(), excess: 32 }));
}

#[test]
fn loop_body_assumes_a_positive_trip_count() {
    let exact = |n: DimId| n * 32;
    let outside = with_n(0, 9, exact, |b, _, x| load_at(b, x, 0));
    assert_eq!(problem(&outside), Some(Problem::AfterEnd { buffer: "x".into(), excess: 32 }));
    let inside = with_n(0, 9, exact, |b, n, x| b.for_each("i", n, |b, _| load_at(b, x, 0)));
    assert_eq!(verify(&inside), Ok(()));
    // The trip count 9 - %n is positive only for %n <= 8.
    let falling = with_n(0, 9, |n| n * -32 + 288, |b, n, x| b.for_each("i", n * -1 + 9, |b, _| load_at(b, x, 0)));
    assert_eq!(verify(&falling), Ok(()));
    // 2 * %n - 3 is positive only for %n >= 2.
    let steep = |least: i64| {
        with_n(
            2,
            9,
            |n| n * 16,
            move |b, n, x| {
                b.for_each("i", n * 2 + -least, |b, _| load_at(b, x, 0));
            },
        )
    };
    assert_eq!(verify(&steep(3)), Ok(()));
    let never = with_n(0, 9, |_| 0.into(), |b, _, x| b.for_each("i", 0, |b, _| load_at(b, x, 1000)));
    assert_eq!(verify(&never), Ok(()));
    // After the loop, the condition that its trip count is positive no longer holds.
    let after = with_n(0, 9, exact, |b, n, x| {
        b.for_each("i", n, |_, _| ());
        load_at(b, x, 0);
    });
    assert!(matches!(problem(&after), Some(Problem::AfterEnd { .. })));
    let negative = with_n(0, 9, exact, |b, n, _| b.for_each("i", n + -1, |_, _| ()));
    assert_eq!(problem(&negative), Some(Problem::Negative { what: "trip", least: -1 }));
}

#[test]
fn index_values_are_bounded_by_their_stated_limit() {
    let kernel = |below: fn(DimId) -> Affine, at: i64| {
        let mut b = KernelBuilder::new("k");
        let n = b.dim("n", 0, 9);
        let x = b.read("x", n * 32);
        let ids = b.buffer("ids", BufferKind::Index { below: below(n) }, 8);
        let row = b.load_index("row", ids, at);
        load_at(&mut b, x, row * 32);
        b.finish()
    };
    assert_eq!(verify(&kernel(|n| n.into(), 4)), Ok(()));
    assert!(matches!(problem(&kernel(|n| n + 1, 4)), Some(Problem::AfterEnd { excess: 32, .. })));
    assert!(matches!(problem(&kernel(|n| n.into(), 8)), Some(Problem::AfterEnd { excess: 4, .. })));
    assert_eq!(problem(&kernel(|n| n.into(), 2)), Some(Problem::IndexAlignment { found: 2 }));
    assert_eq!(problem(&kernel(|n| n + -1, 4)), Some(Problem::Negative { what: "below", least: -1 }));
}

#[test]
fn buffer_kinds_forbid_wrong_accesses() {
    let access = |kind: BufferKind, access: fn(&mut KernelBuilder, BufferId)| {
        let mut b = KernelBuilder::new("k");
        let buffer = b.buffer("x", kind, 64);
        access(&mut b, buffer);
        problem(&b.finish())
    };
    let load = |b: &mut KernelBuilder, x| load_at(b, x, 0);
    let store = |b: &mut KernelBuilder, x| {
        let value = b.splat_f32(1, 0.0);
        b.store(x, 0, value);
    };
    let row = |b: &mut KernelBuilder, x| {
        b.load_index("row", x, 0);
    };
    let index = || BufferKind::Index { below: 1.into() };
    let rows: [(BufferKind, [bool; 3]); 5] = [
        (BufferKind::Read, [true, false, false]),
        (BufferKind::Write, [false, true, false]),
        (BufferKind::ReadWrite, [true, true, false]),
        (BufferKind::Scratch, [true, true, false]),
        (index(), [false, false, true]),
    ];
    for (kind, allowed) in rows {
        for (access_of, allowed) in [load as fn(&mut KernelBuilder, BufferId), store, row].into_iter().zip(allowed) {
            let found = access(kind.clone(), access_of);
            let right = if allowed { found.is_none() } else { matches!(found, Some(Problem::Forbidden { .. })) };
            assert!(right, "{kind:?}: {found:?}");
        }
    }
}

/// Returns a kernel with every kind of statement, for tests that break one statement.
fn whole() -> Kernel {
    let mut b = KernelBuilder::new("whole");
    let n = b.dim("n", 0, 9);
    let x = b.read("x", n * 32);
    let ids = b.buffer("ids", BufferKind::Index { below: n.into() }, n * 4);
    let y = b.write("y", 32);
    let zero = b.splat_f32(8, 0.0);
    let sum = b.for_carry("i", n, &[zero], |b, i, carried| {
        let row = b.load_index("row", ids, i * 4);
        let value = b.load(Type::f32(8), x, row * 32);
        vec![b.add(carried[0], value)]
    });
    b.store(y, 0, sum[0]);
    b.finish()
}

fn broken(change: impl FnOnce(&mut Kernel)) -> Option<Problem> {
    let mut kernel = whole();
    change(&mut kernel);
    let found = problem(&kernel);
    assert_ne!(found, None, "not found");
    found
}

fn the_loop(kernel: &mut Kernel) -> &mut For {
    kernel.body.iter_mut().find_map(|s| if let Stmt::For(f) = s { Some(f) } else { None }).expect("has a loop")
}

fn inst(statement: &mut Stmt) -> &mut Inst {
    let Stmt::Inst(inst) = statement else { panic!("is an op") };
    inst
}

#[test]
fn malformed_kernel_structure_is_refused() {
    assert_eq!(verify(&whole()), Ok(()));
    let store = |k: &mut Kernel| k.body.len() - 1;
    use Problem::*;
    assert!(matches!(broken(|k| k.name = "a/b".into()), Some(Name { .. })));
    assert!(matches!(broken(|k| k.vars[0] = "0".into()), Some(Name { .. })));
    assert!(matches!(broken(|k| k.vars[0] = "n".into()), Some(Duplicate { .. })));
    assert!(matches!(broken(|k| k.buffers[0].name = "y".into()), Some(Duplicate { .. })));
    assert!(matches!(broken(|k| k.dims[0].lo = -1), Some(DimRange { .. })));
    assert!(matches!(broken(|k| k.dims[0].lo = 10), Some(DimRange { .. })));
    assert!(matches!(broken(|k| k.dims[0].hi = Dim::MAX + 1), Some(DimRange { .. })));
    assert!(matches!(broken(|k| k.values[0] = Type::f32(3)), Some(InvalidType { value: 0, .. })));
    assert!(matches!(broken(|k| k.values[0] = Type::f32(32)), Some(InvalidType { .. })));
    assert!(matches!(broken(|k| k.values[0] = Type::i32(8)), Some(Shape { .. })));
    assert!(matches!(broken(|k| inst(&mut k.body[0]).ty = Type::f32(0)), Some(InvalidType { .. })));
    assert!(matches!(broken(|k| inst(&mut k.body[0]).imm = Imm::Int(0)), Some(Shape { .. })));
    assert!(matches!(broken(|k| inst(&mut k.body[0]).imm = Imm::None), Some(Shape { .. })));
    assert!(matches!(broken(|k| inst(&mut k.body[0]).result = None), Some(Shape { .. })));
    assert!(matches!(broken(|k| inst(&mut k.body[0]).index = Some(0.into())), Some(Shape { .. })));
    assert!(matches!(broken(|k| inst(&mut k.body[0]).result = Some(ValueId(99))), Some(Id { .. })));
    assert!(matches!(broken(|k| k.body[0] = k.body[1].clone()), Some(Undefined { what: "value", .. })));
    assert!(matches!(broken(|k| k.body.insert(0, k.body[0].clone())), Some(Redefined { what: "value", .. })));
    assert!(matches!(broken(|k| k.body.insert(1, k.body[1].clone())), Some(Redefined { what: "variable", .. })));
    for operand in [1, 2, 99] {
        // Uses a value of a loop body that has ended, and a value that does not exist.
        let found = broken(|k| {
            let i = store(k);
            inst(&mut k.body[i]).operands[0] = ValueId(operand);
        });
        assert!(matches!(found, Some(Undefined { .. } | Id { .. })), "{found:?}");
    }
    assert!(matches!(
        broken(|k| {
            let i = store(k);
            inst(&mut k.body[i]).operands.clear()
        }),
        Some(Shape { .. })
    ));
    assert!(matches!(
        broken(|k| {
            let i = store(k);
            inst(&mut k.body[i]).address = None
        }),
        Some(Shape { .. })
    ));
    assert!(matches!(
        broken(|k| {
            let i = store(k);
            inst(&mut k.body[i]).ty = Type::f32(4)
        }),
        Some(Types { .. })
    ));
    assert!(matches!(broken(|k| inst(&mut the_loop(k).body[2]).op = Op::IAdd), Some(Types { .. })));
    assert!(matches!(broken(|k| the_loop(k).carries[0].next = ValueId(4)), Some(Undefined { .. })));
    assert!(matches!(broken(|k| the_loop(k).carries[0].init = ValueId(1)), Some(Undefined { .. })));
    assert!(matches!(broken(|k| the_loop(k).carries[0].result = ValueId(0)), Some(Redefined { .. })));
    assert!(matches!(broken(|k| the_loop(k).trip = VarId(1).into()), Some(NotOverDims { what: "trip" })));
    assert!(matches!(broken(|k| k.buffers[0].size = VarId(0).into()), Some(NotOverDims { what: "size" })));
    assert!(matches!(broken(|k| k.buffers[0].size.terms[0].1 = 0), Some(NotNormal)));
    assert!(matches!(broken(|k| k.buffers[0].size.terms.push((Atom::Dim(DimId(0)), 1))), Some(NotNormal)));
    assert!(matches!(broken(|k| k.buffers[0].size.terms[0].1 = i64::MIN), Some(Coefficient { .. })));
    assert!(matches!(broken(|k| k.buffers[0].size.constant = i64::MAX), Some(Coefficient { .. })));
    assert!(matches!(broken(|k| k.buffers[0].size = DimId(7).into()), Some(Id { what: "dim", .. })));
    let outside =
        broken(|k| inst(&mut k.body[2]).address = Some(Address { buffer: BufferId(2), offset: VarId(0).into() }));
    assert!(matches!(outside, Some(Undefined { what: "variable", .. })));
    let nowhere = broken(|k| inst(&mut k.body[2]).address = Some(Address { buffer: BufferId(9), offset: 0.into() }));
    assert!(matches!(nowhere, Some(Id { what: "buffer", .. })));
}

#[test]
fn carried_values_keep_their_type() {
    let found = broken(|k| {
        let next = the_loop(k).carries[0].inner;
        k.values.push(Type::f32(4));
        let other = ValueId(k.values.len() as u32 - 1);
        the_loop(k).carries[0].result = other;
        the_loop(k).carries[0].next = next;
    });
    assert!(matches!(found, Some(Problem::CarryTypes { carry: 0, .. })), "{found:?}");
}

#[test]
fn nesting_is_limited() {
    fn nest(b: &mut KernelBuilder, depth: usize) {
        if depth > 0 {
            b.for_each("i", 2, |b, _| nest(b, depth - 1));
        }
    }
    let kernel = |depth| {
        let mut b = KernelBuilder::new("deep");
        nest(&mut b, depth);
        b.finish()
    };
    assert_eq!(verify(&kernel(MAX_DEPTH)), Ok(()));
    let expected = Problem::TooMany { what: "nested loops", found: MAX_DEPTH + 1, max: MAX_DEPTH };
    assert_eq!(problem(&kernel(MAX_DEPTH + 1)), Some(expected));
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    let mut b = KernelBuilder::new("large");
    let dims: Vec<DimId> = (0..63).map(|i| b.dim(&format!("d{i}"), 0, Dim::MAX)).collect();
    let sum = |sign: i64| {
        let zero = Affine::constant(Affine::MAX_CONSTANT);
        dims.iter().fold(zero, |sum, &dim| sum + dim * (sign * Affine::MAX_COEFFICIENT))
    };
    let x = b.read("x", sum(1));
    b.for_each("i", sum(1), |b, i| load_at(b, x, i * Affine::MAX_COEFFICIENT + sum(-1)));
    let kernel = b.finish();
    assert!(matches!(problem(&kernel), Some(Problem::Reach { .. })));
}

/// Returns a kernel that reads one byte of `%x` at a multiple of `%n`, with `%n` up to `most`.
fn strided(coefficient: i64, most: i64) -> Kernel {
    let mut b = KernelBuilder::new("strided");
    let n = b.dim("n", 0, most);
    let x = b.read("x", n * coefficient + 32);
    let y = b.write("y", 32);
    let a = b.load(Type::f32(8), x, n * coefficient);
    b.store(y, 0, a);
    b.finish()
}

#[test]
fn coefficient_limit_follows_from_reach_and_admits_real_strides() {
    // The stride of 32 rows of logits over the vocabulary of Qwen3. An earlier, lower limit
    // rejected this real stride.
    assert_eq!(verify(&strided(151_936 * 4 * 32, 1 << 20)), Ok(()));
    assert_eq!(verify(&strided(Affine::MAX_COEFFICIENT, (1 << 20) - 1)), Ok(()));
    let found = Affine::MAX_COEFFICIENT + 1;
    let max = Affine::MAX_COEFFICIENT;
    for coefficient in [found, -found] {
        let refused = Problem::Coefficient { what: "coefficient", found: coefficient, max };
        assert_eq!(problem(&strided(coefficient, 1)), Some(refused));
    }
    // 2^40 times 2^21 is 2^61, just above the limit. With 2^21 - 1, the sum with the constant is
    // below the limit.
    let reach = (1 << 61) + 32;
    assert_eq!(problem(&strided(Affine::MAX_COEFFICIENT, 1 << 21)), Some(Problem::Reach { reach }));
    assert_eq!(verify(&strided(Affine::MAX_COEFFICIENT, (1 << 21) - 1)), Ok(()));
}

#[test]
fn sums_whose_parts_overflow_are_refused_though_they_cancel() {
    let trip = |most| {
        let mut b = KernelBuilder::new("cancel");
        let (m, n) = (b.dim("m", 0, most), b.dim("n", 0, most));
        let all = m * Affine::MAX_COEFFICIENT + n * -Affine::MAX_COEFFICIENT;
        b.for_each("i", m + 1, |b, _| {
            b.index(all);
        });
        b.finish()
    };
    assert_eq!(verify(&trip((1 << 20) - 1)), Ok(()));
    assert!(matches!(problem(&trip(1 << 20)), Some(Problem::Reach { reach }) if reach == 1 << 61));
}
