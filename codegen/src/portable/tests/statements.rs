//! Loops, carried values, index loads and addresses.

use ixc_ir::kernel::{BufferKind, Op, Type};

use super::*;

#[test]
fn nested_loops_carry_values_and_may_be_empty() {
    // y = sum over i of (1 + sum over j of x[i][j]); the outer sum changes between two carries in
    // each iteration.
    let mut b = KernelBuilder::new("nested");
    let (rows, columns) = (b.dim("rows", 0, 8), b.dim("columns", 0, 8));
    let (x, y) = (b.read("x", 8 * 8 * 16), b.write("y", 32));
    let zero = b.splat_int(Type::i32(4), 0);
    let one = b.splat_int(Type::i32(4), 1);
    let sums = b.for_carry("i", rows, &[zero, zero], |b, i, outer| {
        let inner = b.for_carry("j", columns, &[one], |b, j, inner| {
            let a = b.load(Type::i32(4), x, i * 128 + j * 16);
            vec![b.iadd(inner[0], a)]
        });
        vec![outer[1], b.iadd(outer[0], inner[0])]
    });
    b.store(y, 0, sums[0]);
    b.store(y, 16, sums[1]);
    let code = compile(&b.finish()).unwrap();
    let x = Random::new(1).bytes(1024);
    let words = i32s(&x);
    for rows in 0..=8usize {
        for columns in 0..=8usize {
            let mut right = [[0i32; 4]; 2];
            for i in 0..rows {
                let mut inner = [1i32; 4];
                for j in 0..columns {
                    for (lane, sum) in inner.iter_mut().enumerate() {
                        *sum = sum.wrapping_add(words[i * 32 + j * 4 + lane]);
                    }
                }
                right = [right[1], std::array::from_fn(|lane| right[0][lane].wrapping_add(inner[lane]))];
            }
            let mut buffers = [x.clone(), vec![0; 32]];
            run(&code, &mut buffers, &[rows as i64, columns as i64]);
            assert_eq!(i32s(&buffers[1]), right.concat(), "{rows} rows, {columns} columns");
        }
    }
}

#[test]
fn index_loads_address_rows() {
    let mut b = KernelBuilder::new("gather");
    let count = b.dim("count", 0, 16);
    let ids = b.buffer("ids", BufferKind::Index { below: 8.into() }, count * 4);
    let (table, y) = (b.read("table", 8 * 24), b.write("y", count * 28));
    b.for_each("i", count, |b, i| {
        let row = b.load_index("row", ids, i * 4);
        let low = b.load(Type::i8(16), table, row * 24);
        let high = b.load(Type::i8(8), table, row * 24 + 16);
        b.store(y, i * 28, low);
        b.store(y, i * 28 + 16, high);
        let number = b.index(row * -3 + i + 5);
        b.store(y, i * 28 + 24, number);
    });
    let code = compile(&b.finish()).unwrap();
    let table = Random::new(2).bytes(8 * 24);
    for count in [0usize, 1, 16] {
        let ids: Vec<u32> = (0..count as u32).map(|i| i * 5 % 8).collect();
        let mut buffers = [ids.iter().flat_map(|id| id.to_le_bytes()).collect(), table.clone(), vec![0; count * 28]];
        run(&code, &mut buffers, &[count as i64]);
        for (i, &id) in ids.iter().enumerate() {
            let row = &buffers[2][i * 28..][..28];
            assert_eq!(row[..24], table[id as usize * 24..][..24]);
            assert_eq!(i32s(&row[24..]), [i as i32 + 5 - 3 * id as i32]);
        }
    }
}

#[test]
fn narrow_stores_write_their_bytes_only() {
    for bytes in [1, 2, 4, 8, 16, 32, 64] {
        let mut b = KernelBuilder::new("narrow");
        let (x, y) = (b.read("x", bytes), b.write("y", bytes + 2));
        let ty = Type::i8(bytes as u16);
        let a = b.load(ty, x, 0);
        b.store(y, 1, a);
        let code = compile(&b.finish()).unwrap();
        let mut buffers = [Random::new(3).bytes(bytes as usize), vec![0xaa; bytes as usize + 2]];
        run(&code, &mut buffers, &[]);
        assert_eq!(buffers[1], [&[0xaa][..], &buffers[0], &[0xaa]].concat());
    }
}

#[test]
fn large_constants_and_negative_coefficients_add_up() {
    let mut b = KernelBuilder::new("reverse");
    let count = b.dim("count", 192, 192);
    let (x, y) = (b.read("x", count * 4), b.write("y", count * 4));
    // This offset is too large for an instruction. The coefficient times 192 cancels it.
    let far = 3i64 << 30;
    b.for_each("i", count, |b, i| {
        let a = b.load_splat(Type::f32(1), x, count * (4 - (1 << 24)) + i * -4 + (far - 4));
        b.store(y, i * 4, a);
    });
    let code = compile(&b.finish()).unwrap();
    let mut buffers = [Random::new(4).bytes(192 * 4), vec![0; 192 * 4]];
    run(&code, &mut buffers, &[192]);
    let mut right = i32s(&buffers[0]);
    right.reverse();
    assert_eq!(i32s(&buffers[1]), right);
}

#[test]
fn spills_and_repeated_constants_are_correct() {
    let mut b = KernelBuilder::new("pressure");
    let (x, y) = (b.read("x", 64 * 24), b.write("y", 64 * 24));
    let values: Vec<_> = (0..24).map(|i| b.load(Type::i32(16), x, i * 64)).collect();
    for (i, &a) in values.iter().rev().enumerate() {
        let iota = b.op(Op::Iota, Type::i32(16), &[]);
        let sum = b.iadd(a, iota);
        b.store(y, i as i64 * 64, sum);
    }
    let code = compile(&b.finish()).unwrap();
    let mut buffers = [Random::new(5).bytes(64 * 24), vec![0; 64 * 24]];
    run(&code, &mut buffers, &[]);
    let (x, y) = (i32s(&buffers[0]), i32s(&buffers[1]));
    for (i, got) in y.into_iter().enumerate() {
        assert_eq!(got, x[(23 - i / 16) * 16 + i % 16].wrapping_add(i as i32 % 16));
    }
}

/// Returns a kernel that loads `count` vectors, then adds them from the last to the first, so that
/// all are live at once.
fn alive(count: i64) -> Kernel {
    let mut b = KernelBuilder::new("alive");
    let (x, y) = (b.buffer("x", BufferKind::ReadWrite, 16 * count), b.write("y", 16));
    let values: Vec<_> = (0..count).map(|i| b.load(Type::f32(4), x, 16 * i)).collect();
    // The store prevents loads from moving to their uses.
    values.iter().for_each(|&v| b.store(x, 0, v));
    let sum = values.iter().rev().skip(1).fold(values[values.len() - 1], |sum, &v| b.add(sum, v));
    b.store(y, 0, sum);
    b.finish()
}

#[test]
fn frames_and_compilation_are_bounded() {
    compile(&alive(500)).unwrap();
    let too_large = |kernel: &Kernel| match compile(kernel) {
        Err(PortableError::TooLarge { what, .. }) => what,
        other => panic!("{:?}", other.map(|code| code.bytes.len())),
    };
    assert_eq!(too_large(&alive(17_000)), "bytes in its stack frame");
    assert_eq!(too_large(&alive(60_000)), "instructions");
}
