use half::{bf16, f16};

use super::super::Derivation;
use super::*;

const ROWS_OF_ALL: u64 = 80;
const COLUMNS_OF_ALL: u64 = 640;
const OF_GROUP: u64 = 64;
const GROUPS: u64 = COLUMNS_OF_ALL / OF_GROUP;

/// Packer of integers into words of four bytes. A word holds neighbours along rows or along
/// columns.
struct Packer {
    bits: u32,
    /// Position in the matrix of each integer of a word, the lowest bits first.
    order: &'static [u64],
}

impl Packer {
    /// Packs a matrix of shape `[lines, len]` into words of shape `[lines, len / order.len()]`.
    fn words(&self, lines: u64, len: u64, integer: &dyn Fn(u64, u64) -> u8) -> Vec<u8> {
        let each = self.order.len() as u64;
        let word = |line: u64, word: u64| {
            let bits = self
                .order
                .iter()
                .enumerate()
                .map(|(at, of)| u32::from(integer(line, word * each + of)) << (at as u32 * self.bits));
            bits.fold(0, |word, bits| word | bits)
        };
        (0..lines).flat_map(|line| (0..len / each).flat_map(move |number| word(line, number).to_le_bytes())).collect()
    }
}

static IN_ORDER: Packer = Packer { bits: 4, order: &[0, 1, 2, 3, 4, 5, 6, 7] };
static BYTES: Packer = Packer { bits: 8, order: &[0, 1, 2, 3] };
/// Order of integers in AWQ's words: its kernels separate even from odd integers.
static AWQ: Packer = Packer { bits: 4, order: &[0, 2, 4, 6, 1, 3, 5, 7] };

/// Adds the columns of a group as an axis after the digits of groups.
fn by_columns([rows, mut groups]: [Vec<Axis>; 2]) -> [Vec<Axis>; 2] {
    groups.push(Axis { len: OF_GROUP, stride: 0 });
    [rows, groups]
}

fn axes(axes: &[[u64; 2]]) -> Vec<Axis> {
    axes.iter().map(|&[len, stride]| Axis { len, stride }).collect()
}

fn integer(row: u64, column: u64, bits: u8) -> u8 {
    ((row * 131 + column * 37 + row * column % 11) % (1 << bits)) as u8
}

fn zero(row: u64, group: u64) -> u8 {
    ((row * 5 + group * 3) % 16) as u8
}

/// Returns a scale. Some of these scales are not exact in f16.
fn scale(row: u64, group: u64) -> f32 {
    (1 + row % 7) as f32 / 1024.0 * if group.is_multiple_of(2) { 1.0 } else { -0.3 }
}

/// A case: bytes of a file, and the tensor that is derived from them.
struct Case {
    name: &'static str,
    file: Vec<u8>,
    derived: Derivation,
    zeros: bool,
    middle: f32,
}

/// Conversion of a scale to its stored bytes.
type Write<'p> = &'p dyn Fn(f32) -> Vec<u8>;

/// Layout of a case's tensors: integers with their view, scales by group or by row, zero points
/// with their view.
struct Laid<'p> {
    integers: (Integers, Vec<u8>, [Vec<Axis>; 2]),
    scales: (Element, [Vec<Axis>; 2], Write<'p>, bool),
    zeros: Option<(Vec<u8>, [Vec<Axis>; 2], u8)>,
}

fn case(name: &'static str, laid: Laid<'_>) -> Case {
    let mut file = vec![0xee; 3];
    let mut add = |bytes: Vec<u8>| {
        let extent = Extent { file: 0, offset: file.len() as u64, bytes: bytes.len() as u64 };
        file.extend(bytes);
        extent
    };
    let (integers, stored, [rows, columns]) = laid.integers;
    let extent = add(stored);
    let (element, views, write, by_group) = laid.scales;
    let [of_rows, of_columns] = by_columns(views);
    let lines: Vec<f32> = if by_group {
        (0..GROUPS).flat_map(|group| (0..ROWS_OF_ALL).map(move |row| scale(row, group))).collect()
    } else {
        (0..ROWS_OF_ALL).flat_map(|row| (0..GROUPS).map(move |group| scale(row, group))).collect()
    };
    let stored = lines.iter().flat_map(|x| write(*x)).collect();
    let scales = View { extent: add(stored), element, first: 0, rows: of_rows, columns: of_columns };
    let zeros = laid.zeros.map(|(stored, views, more)| {
        let ([rows, columns], element) = (by_columns(views), Element::Integer(Integers::Four));
        Zeros { view: View { extent: add(stored), element, first: 0, rows, columns }, more }
    });
    let middle = match integers {
        Integers::Four => 8.0,
        Integers::Eight => 128.0,
        Integers::FourFromZeros | Integers::EightSigned | Integers::EightOfLargest => 0.0,
        Integers::Ternary => 1.0,
    };
    let has_zeros = zeros.is_some();
    let groups = Some(Box::new(Groups { scales, zeros, order: None }));
    let element = Element::Integer(integers);
    let piece = Piece { extent, element, first: 0, rows, columns, scales: None, groups, change: Change::Keep };
    let derived =
        Derivation { format: element.scaled_format(), columns: COLUMNS_OF_ALL, pieces_per_row: 1, pieces: vec![piece] };
    Case { name, file, derived, zeros: has_zeros, middle }
}

fn cases() -> Vec<Case> {
    let (rows, columns) = (ROWS_OF_ALL, COLUMNS_OF_ALL);
    let half = |x: f32| f16::from_f32(x).to_le_bytes().to_vec();
    let single = |x: f32| x.to_le_bytes().to_vec();
    let brain = |x: f32| bf16::from_f32(x).to_le_bytes().to_vec();
    let by_group = || [axes(&[[rows, 1]]), axes(&[[GROUPS, rows]])];
    let by_row = || [axes(&[[rows, GROUPS]]), axes(&[[GROUPS, 1]])];
    let four = |row: u64, column: u64| integer(row, column, 4);
    // A 32-bit word of GPTQ packs eight adjacent columns of a row. The file stores the words of all
    // rows for one group of eight columns, then those for the next.
    let down = |each: u64| [axes(&[[rows, each]]), axes(&[[columns / each, each * rows], [each, 1]])];
    let gptq = || IN_ORDER.words(columns / 8, 8 * rows, &|line, at| four(at / 8, line * 8 + at % 8));
    let awq = || [axes(&[[rows / 8, 8], [4, 1], [2, 4]]), axes(&[[columns, rows]])];
    let plain = || [axes(&[[rows, columns]]), axes(&[[columns, 1]])];
    let zeros_of =
        |packer: &Packer, less: u8| packer.words(GROUPS, rows, &|group, row| zero(row, group).wrapping_sub(less) & 15);
    vec![
        case(
            "GPTQ",
            Laid {
                integers: (Integers::Four, gptq(), down(8)),
                scales: (Element::F16, by_group(), &half, true),
                zeros: None,
            },
        ),
        case(
            "GPTQ with zeros",
            Laid {
                integers: (Integers::FourFromZeros, gptq(), down(8)),
                scales: (Element::F16, by_group(), &half, true),
                zeros: Some((zeros_of(&IN_ORDER, 1), by_group(), 1)),
            },
        ),
        case(
            "GPTQ of eight bits",
            Laid {
                integers: (
                    Integers::Eight,
                    BYTES.words(columns / 4, 4 * rows, &|line, at| integer(at / 4, line * 4 + at % 4, 8)),
                    down(4),
                ),
                scales: (Element::F16, by_group(), &half, true),
                zeros: None,
            },
        ),
        case(
            "AWQ",
            Laid {
                integers: (Integers::FourFromZeros, AWQ.words(columns, rows, &|column, row| four(row, column)), awq()),
                scales: (Element::F16, by_group(), &half, true),
                zeros: Some((zeros_of(&AWQ, 0), [axes(&[[rows / 8, 8], [4, 1], [2, 4]]), axes(&[[GROUPS, rows]])], 0)),
            },
        ),
        case(
            "compressed-tensors",
            Laid {
                integers: (Integers::Four, IN_ORDER.words(rows, columns, &four), plain()),
                scales: (Element::Bf16, by_row(), &brain, false),
                zeros: None,
            },
        ),
        case(
            "compressed-tensors with zeros",
            Laid {
                integers: (Integers::FourFromZeros, IN_ORDER.words(rows, columns, &four), plain()),
                scales: (Element::F32, by_row(), &single, false),
                zeros: Some((
                    IN_ORDER.words(rows / 8, 8 * GROUPS, &|line, at| zero(line * 8 + at % 8, at / 8)),
                    [axes(&[[rows / 8, 8 * GROUPS], [8, 1]]), axes(&[[GROUPS, 8]])],
                    0,
                )),
            },
        ),
        case(
            "bitsandbytes of eight bits",
            Laid {
                integers: (
                    Integers::EightOfLargest,
                    (0..rows * columns).map(|at| integer(at / columns, at % columns, 8)).collect(),
                    plain(),
                ),
                scales: (Element::F32, by_row(), &single, false),
                zeros: None,
            },
        ),
        case(
            "compressed-tensors of eight bits",
            Laid {
                integers: (
                    Integers::EightSigned,
                    (0..rows * columns).map(|at| integer(at / columns, at % columns, 8)).collect(),
                    plain(),
                ),
                scales: (Element::Bf16, by_row(), &brain, false),
                zeros: None,
            },
        ),
    ]
}

fn read(derived: &Derivation, file: &[u8], offset: usize, out: &mut [u8]) -> bool {
    let fetch = |_: u32, offset: u64, out: &mut [u8]| {
        out.copy_from_slice(&file[offset as usize..][..out.len()]);
        true
    };
    derived.clone().with_index().read(offset as u64, out, &fetch)
}

#[test]
fn packed_integer_layouts_give_their_numbers() {
    for Case { name, file, derived, zeros, middle } in cases() {
        derived.check(&[file.len() as u64]).unwrap();
        let row_bytes = derived.format.row_bytes(COLUMNS_OF_ALL).unwrap() as usize;
        let mut all = vec![0; row_bytes * ROWS_OF_ALL as usize];
        assert!(read(&derived, &file, 0, &mut all), "{name}");
        let mut x = vec![0f32; (ROWS_OF_ALL * COLUMNS_OF_ALL) as usize];
        derived.format.dequantise(&all, &mut x);
        let piece = &derived.pieces[0];
        for (at, x) in (0u64..).zip(&x) {
            let (row, column) = (at / COLUMNS_OF_ALL, at % COLUMNS_OF_ALL);
            let group = column / OF_GROUP;
            let stored = match piece.groups.as_ref().unwrap().scales.element {
                Element::Bf16 => bf16::from_f32(scale(row, group)).to_f32(),
                _ => scale(row, group),
            };
            let stored = match piece.element {
                Element::Integer(Integers::EightOfLargest) => stored / 127.0,
                _ => stored,
            };
            let d = f16::from_f32(stored).to_f32();
            let right = match piece.element {
                Element::Integer(Integers::EightSigned | Integers::EightOfLargest) => {
                    d * f32::from(integer(row, column, 8) as i8)
                }
                Element::Integer(Integers::Eight) => d * (f32::from(integer(row, column, 8)) - middle),
                _ if zeros => {
                    d * f32::from(integer(row, column, 4)) + f16::from_f32(-d * f32::from(zero(row, group))).to_f32()
                }
                _ => d * (f32::from(integer(row, column, 4)) - middle),
            };
            assert_eq!(*x, right, "{name}: row {row}, column {column}");
        }
        // Reads of single blocks, of rows, and across the maximum number of rows that are read
        // together.
        let block = derived.format.block_bytes();
        for (from, bytes) in
            [(0, block), (row_bytes - block, block), (63 * row_bytes, 3 * row_bytes), (5 * block, 4 * block)]
        {
            let mut part = vec![0; bytes];
            assert!(read(&derived, &file, from, &mut part), "{name}");
            assert_eq!(part, all[from..from + bytes], "{name}: {bytes} bytes at {from}");
        }
        let fetch = |_: u32, offset: u64, out: &mut [u8]| {
            out.copy_from_slice(&file[offset as usize..][..out.len()]);
            true
        };
        let mut columns = vec![0; 70 * 2 * block];
        assert!(derived.clone().with_index().read_rows(3 * block as u64, 2 * block as u64, &mut columns, &fetch));
        for (row, part) in columns.chunks(2 * block).enumerate() {
            assert_eq!(part, &all[row * row_bytes + 3 * block..][..2 * block], "{name}: row {row}");
        }
    }
}

/// Tests ternary numbers with one scale. Each byte has four rows that are a quarter of all rows
/// apart.
#[test]
fn ternary_values_become_two_bit_blocks() {
    const ROWS: u64 = 8;
    const COLUMNS: u64 = 768;
    let number = |row: u64, column: u64| (row * 5 + column * 7 + row * column) % 3;
    let byte = |at: u64| (0..4).map(|part| number(part * ROWS / 4 + at / COLUMNS, at % COLUMNS) << (2 * part)).sum();
    let bytes: Vec<u64> = (0..ROWS / 4 * COLUMNS).map(byte).collect();
    let mut file: Vec<u8> = bytes.into_iter().map(|byte: u64| byte as u8).collect();
    let stored = file.len() as u64;
    file.extend(bf16::from_f32(0.375).to_le_bytes());
    let still = |len| vec![Axis { len, stride: 0 }];
    let extent = Extent { file: 0, offset: stored, bytes: 2 };
    let scales = View { extent, element: Element::Bf16, first: 0, rows: still(ROWS), columns: still(COLUMNS) };
    let element = Element::Integer(Integers::Ternary);
    let piece = Piece {
        extent: Extent { file: 0, offset: 0, bytes: stored },
        element,
        first: 0,
        rows: axes(&[[4, 1], [ROWS / 4, 4 * COLUMNS]]),
        columns: axes(&[[COLUMNS, 4]]),
        scales: None,
        groups: Some(Box::new(Groups { scales, zeros: None, order: None })),
        change: Change::Keep,
    };
    for format in [Format::Tq2_0, Format::F16] {
        let derived = Derivation { format, columns: COLUMNS, pieces_per_row: 1, pieces: vec![piece.clone()] };
        derived.check(&[file.len() as u64]).unwrap();
        let mut all = vec![0; derived.bytes().unwrap() as usize];
        assert!(read(&derived, &file, 0, &mut all));
        let mut x = vec![0f32; (ROWS * COLUMNS) as usize];
        format.dequantise(&all, &mut x);
        let right = |at: u64| 0.375 * (number(at / COLUMNS, at % COLUMNS) as f32 - 1.0);
        assert!((0..).zip(&x).all(|(at, x)| *x == right(at)), "{format}");
    }
}

/// Checks that a transposed matrix with a scale for each column gives the same numbers as the
/// matrix itself.
#[test]
fn transposed_integers_become_the_same_numbers() {
    for Case { name, file, derived, .. } in cases() {
        let row_bytes = derived.format.row_bytes(COLUMNS_OF_ALL).unwrap() as usize;
        let mut all = vec![0; row_bytes * ROWS_OF_ALL as usize];
        assert!(read(&derived, &file, 0, &mut all), "{name}");
        let mut right = vec![0f32; (ROWS_OF_ALL * COLUMNS_OF_ALL) as usize];
        derived.format.dequantise(&all, &mut right);
        let mut turned = derived.pieces[0].clone();
        std::mem::swap(&mut turned.rows, &mut turned.columns);
        let groups = turned.groups.as_mut().unwrap();
        let views = [Some(&mut groups.scales), groups.zeros.as_mut().map(|zeros| &mut zeros.view)];
        views.into_iter().flatten().for_each(|view| std::mem::swap(&mut view.rows, &mut view.columns));
        let turned = Derivation { format: Format::F32, columns: ROWS_OF_ALL, pieces_per_row: 1, pieces: vec![turned] };
        turned.check(&[file.len() as u64]).unwrap();
        let mut out = vec![0; right.len() * 4];
        assert!(read(&turned, &file, 0, &mut out), "{name}");
        for (at, x) in out.as_chunks().0.iter().enumerate() {
            let (row, column) = (at / ROWS_OF_ALL as usize, at % ROWS_OF_ALL as usize);
            let (x, right) = (f32::from_le_bytes(*x), right[column * COLUMNS_OF_ALL as usize + row]);
            // The block's scale is rounded to the nearest half.
            assert!((x - right).abs() <= right.abs().max(0.01) / 512.0, "{name}: {row}, {column}: {x}, {right}");
        }
        let blocks = Derivation { format: derived.format, ..turned };
        assert!(blocks.check(&[file.len() as u64]).is_err(), "{name}");
    }
}

/// Tests groups whose columns are not neighbours: as stored, transposed, in partial reads, and with
/// invalid orders.
#[test]
fn reordered_columns_use_their_stated_groups() {
    let group = |column: u64| (column * 7 + column / 9) % GROUPS;
    for Case { name, mut file, mut derived, zeros, middle } in cases() {
        let order = Extent { file: 0, offset: file.len() as u64, bytes: 4 * COLUMNS_OF_ALL };
        file.extend((0..COLUMNS_OF_ALL).flat_map(|column| (group(column) as u32).to_le_bytes()));
        let groups = derived.pieces[0].groups.as_mut().unwrap();
        let steps = [Some(&groups.scales), groups.zeros.as_ref().map(|zeros| &zeros.view)]
            .map(|view| view.map_or(0, |view| view.columns[0].stride));
        groups.scales.columns = axes(&[[COLUMNS_OF_ALL, 0]]);
        groups.zeros.iter_mut().for_each(|zeros| zeros.view.columns = axes(&[[COLUMNS_OF_ALL, 0]]));
        let view = View {
            extent: order,
            element: Element::F32,
            first: 0,
            rows: axes(&[[ROWS_OF_ALL, 0]]),
            columns: axes(&[[COLUMNS_OF_ALL, 1]]),
        };
        groups.order = Some(Order { view, groups: GROUPS, steps });
        let end = [file.len() as u64];
        assert!(derived.check(&end).unwrap_err().to_string().contains("must be whole blocks"), "{name}");
        derived.format = Format::F32;
        derived.check(&end).unwrap();
        let mut out = vec![0; (4 * ROWS_OF_ALL * COLUMNS_OF_ALL) as usize];
        assert!(read(&derived, &file, 0, &mut out), "{name}");
        let piece = &derived.pieces[0];
        for (at, x) in (0u64..).zip(out.as_chunks().0) {
            let (row, column) = (at / COLUMNS_OF_ALL, at % COLUMNS_OF_ALL);
            let d = match piece.groups.as_ref().unwrap().scales.element {
                Element::F32 if name.starts_with("bitsandbytes") => scale(row, group(column)) / 127.0,
                Element::F32 => scale(row, group(column)),
                Element::Bf16 => bf16::from_f32(scale(row, group(column))).to_f32(),
                _ => f16::from_f32(scale(row, group(column))).to_f32(),
            };
            let code = match piece.element {
                Element::Integer(Integers::EightSigned | Integers::EightOfLargest) => {
                    f32::from(integer(row, column, 8) as i8)
                }
                Element::Integer(Integers::Eight) => f32::from(integer(row, column, 8)) - middle,
                _ if zeros => f32::from(integer(row, column, 4)) - f32::from(zero(row, group(column))),
                _ => f32::from(integer(row, column, 4)) - middle,
            };
            assert_eq!(f32::from_le_bytes(*x), d * code, "{name}: row {row}, column {column}");
        }
        let mut part = vec![0; 4 * 700];
        assert!(read(&derived, &file, 4 * 600, &mut part), "{name}");
        assert_eq!(part, out[4 * 600..][..4 * 700], "{name}");
        let mut turned = derived.clone();
        turned.columns = ROWS_OF_ALL;
        let piece = &mut turned.pieces[0];
        std::mem::swap(&mut piece.rows, &mut piece.columns);
        let groups = piece.groups.as_mut().unwrap();
        let zeros = groups.zeros.as_mut().map(|zeros| &mut zeros.view);
        let views = [Some(&mut groups.scales), zeros, groups.order.as_mut().map(|order| &mut order.view)];
        views.into_iter().flatten().for_each(|view| std::mem::swap(&mut view.rows, &mut view.columns));
        turned.check(&end).unwrap();
        let mut other = vec![0; out.len()];
        assert!(read(&turned, &file, 0, &mut other), "{name}");
        let (numbers, others) = (out.as_chunks::<4>().0, other.as_chunks::<4>().0);
        let columns = COLUMNS_OF_ALL as usize;
        let right = |at: usize| numbers[at % ROWS_OF_ALL as usize * columns + at / ROWS_OF_ALL as usize];
        assert!((0..others.len()).all(|at| others[at] == right(at)), "{name}");

        let said = |change: &dyn Fn(&mut Order)| {
            let mut bad = derived.clone();
            change(bad.pieces[0].groups.as_mut().unwrap().order.as_mut().unwrap());
            bad.check(&end).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(said(&|order| order.groups = 0).contains("an order without groups"), "{name}");
        assert!(said(&|order| order.groups = u64::MAX).contains("with too many groups"), "{name}");
        assert!(said(&|order| order.groups = MAX_GROUPS).contains("outside of their tensor"), "{name}");
        assert!(said(&|order| order.steps[0] = u64::MAX).contains("outside of their tensor"), "{name}");
        assert!(said(&|order| order.view.element = Element::F16).contains("four-byte integers"), "{name}");
        assert!(said(&|order| order.view.first = 1).contains("outside of their tensor"), "{name}");
        // A column with an invalid group must fail, and not take the scale of another group.
        let last = file.len() - 4;
        file[last..].copy_from_slice(&(GROUPS as u32).to_le_bytes());
        assert!(!read(&derived, &file, 0, &mut out), "{name}");
    }
}

/// Tests columns of a row that lie too far apart to be read at once.
#[test]
fn integers_that_lie_far_apart_are_read_one_by_one() {
    let far = SPAN + 2;
    let mut file = vec![0u8; (far / 2) as usize + 64];
    (file[0], file[1]) = (0x01, 0x50);
    (file[(far / 2) as usize], file[(far / 2) as usize + 1]) = (0x02, 0x90);
    let end = file.len() as u64;
    file.extend(f16::from_f32(2.0).to_le_bytes());
    let scales = View {
        extent: Extent { file: 0, offset: end, bytes: 2 },
        element: Element::F16,
        first: 0,
        rows: axes(&[[2, 0]]),
        columns: axes(&[[32, 0]]),
    };
    let piece = Piece {
        extent: Extent { file: 0, offset: 0, bytes: end },
        element: Element::Integer(Integers::Four),
        first: 0,
        rows: axes(&[[2, 3]]),
        columns: axes(&[[2, far], [16, 2]]),
        scales: None,
        groups: Some(Box::new(Groups { scales, zeros: None, order: None })),
        change: Change::Keep,
    };
    let derived = Derivation { format: Format::Q4_0, columns: 32, pieces_per_row: 1, pieces: vec![piece] };
    derived.check(&[file.len() as u64]).unwrap();
    let (mut out, mut x) = ([0; 36], [0f32; 64]);
    assert!(read(&derived, &file, 0, &mut out));
    Format::Q4_0.dequantise(&out, &mut x);
    assert_eq!([0, 16, 32, 48].map(|at: usize| x[at]), [-14.0, -12.0, -6.0, 2.0]);
}

#[test]
fn inconsistent_groups_are_refused() {
    let all = cases();
    let of = |name: &str| all.iter().find(|case| case.name == name).unwrap();
    let said = |case: &Case, change: &dyn Fn(&mut Derivation)| {
        let mut bad = case.derived.clone();
        change(&mut bad);
        bad.check(&[case.file.len() as u64]).unwrap_err().to_string()
    };
    let groups = |derived: &mut Derivation, change: &dyn Fn(&mut Groups)| {
        change(derived.pieces[0].groups.as_mut().unwrap());
    };
    let (plain, with_zeros) = (of("GPTQ"), of("AWQ"));
    assert!(said(plain, &|d| d.pieces[0].groups = None).contains("lack group scales"));
    assert!(said(plain, &|d| d.format = Format::Q4_1).contains("do not match the format"));
    assert!(said(plain, &|d| d.pieces[0].change = Change::PlusOne).contains("do not match the format"));
    let halved = |g: &mut Groups| g.scales.columns = axes(&[[GROUPS, 1], [4, 1], [16, 0]]);
    assert!(said(plain, &|d| groups(d, &halved)).contains("must be whole blocks"));
    assert!(
        said(plain, &|d| groups(d, &|g| g.scales.columns[1].len = 32)).contains("do not match the rows or columns")
    );
    assert!(said(plain, &|d| groups(d, &|g| g.scales.rows[0].len = 8)).contains("do not match the rows or columns"));
    assert!(said(plain, &|d| groups(d, &|g| g.scales.element = Element::F8E4m3)).contains("two or four bytes"));
    assert!(said(plain, &|d| groups(d, &|g| g.scales.first = 1)).contains("outside of their tensor"));
    assert!(said(plain, &|d| groups(d, &|g| g.scales.rows[0].stride = u64::MAX)).contains("outside of their tensor"));
    assert!(said(plain, &|d| groups(d, &|g| g.scales.extent.file = 1)).contains("in file 1"));
    assert!(said(plain, &|d| groups(d, &|g| g.scales.extent.offset = u64::MAX)).contains("available bytes"));
    let without = |d: &mut Derivation| {
        (d.pieces[0].element, d.format) = (Element::Integer(Integers::Four), Format::Q4_0);
    };
    assert!(said(with_zeros, &without).contains("zero points that are"));
    assert!(said(with_zeros, &|d| groups(d, &|g| g.zeros = None)).contains("zero points that are"));
    let bytes = of("GPTQ of eight bits");
    assert!(said(bytes, &|d| d.pieces[0].element = Element::F8E4m3).contains("groups without integers"));
}
