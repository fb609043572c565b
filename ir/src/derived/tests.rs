use super::element::f8_e4m3;
use super::read::CHUNK;
use super::scales::power;
use super::*;

fn extent(offset: u64, bytes: u64) -> Extent {
    Extent { file: 0, offset, bytes }
}

fn axes(axes: &[(u64, u64)]) -> Vec<Axis> {
    axes.iter().map(|&(len, stride)| Axis { len, stride }).collect()
}

fn piece(element: Element, extent: Extent, rows: &[(u64, u64)], columns: &[(u64, u64)]) -> Piece {
    Piece {
        extent,
        element,
        first: 0,
        rows: axes(rows),
        columns: axes(columns),
        scales: None,
        groups: None,
        change: Change::Keep,
    }
}

/// Reads all bytes of the tensor, `step` bytes at a time.
fn read(derived: &Derivation, file: &[u8], step: usize) -> Vec<u8> {
    derived.check(&[file.len() as u64]).unwrap();
    let fetch = |_: u32, offset: u64, out: &mut [u8]| {
        out.copy_from_slice(&file[offset as usize..][..out.len()]);
        true
    };
    let derived = derived.clone().with_index();
    let mut all = vec![0; derived.bytes().unwrap() as usize];
    for (at, part) in (0..).step_by(step).zip(all.chunks_mut(step)) {
        assert!(derived.read(at, part, &fetch));
    }
    all
}

#[test]
fn constant_numbers_need_no_file() {
    let numbers = [0.5, -3.25, f32::MIN_POSITIVE];
    let vector = Derivation::of_numbers(&numbers);
    assert_eq!((vector.check(&[4]), vector.bytes()), (Ok(()), Some(12)));
    assert!(vector.check(&[3]).is_err() && vector.check(&[]).is_err());
    let expected: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    for file in [[0; 4], [0xff; 4]] {
        assert_eq!(read(&vector, &file, 12), expected);
        assert_eq!(read(&vector, &file, 4), expected);
    }
}

/// Transposes rows from two matrices of heads that are stored in blocks. Each number of a derived
/// row then comes from a different block.
#[test]
fn transposed_block_parts_keep_their_numbers() {
    let (rows, columns, kept) = (10u64, 64u64, 3u64);
    let values: Vec<f32> = (0..rows * columns).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
    let row_bytes = Format::Q8_0.row_bytes(columns).unwrap() as usize;
    let mut file = vec![0; row_bytes * rows as usize];
    for (row, out) in values.chunks_exact(columns as usize).zip(file.chunks_exact_mut(row_bytes)) {
        Format::Q8_0.encode_row(row, None, out);
    }
    let stored = Format::Q8_0.dequantise_rows(&file, columns as usize);
    let extent = Extent { file: 0, offset: 0, bytes: file.len() as u64 };
    let axis = |len, stride| Axis { len, stride };
    // Source rows 2 to 4 and 7 to 9, transposed.
    let piece = Piece {
        extent,
        element: Element::Block(Format::Q8_0),
        first: 2 * columns,
        rows: vec![axis(2, 5 * columns), axis(columns, 1)],
        columns: vec![axis(kept, columns)],
        scales: None,
        groups: None,
        change: Change::Keep,
    };
    let derived = Derivation { format: Format::F32, columns: kept, pieces_per_row: 1, pieces: vec![piece] };
    derived.check(&[file.len() as u64]).unwrap();
    let fetch = |_: u32, offset: u64, out: &mut [u8]| {
        out.copy_from_slice(&file[offset as usize..][..out.len()]);
        true
    };
    let right = |number: u64| {
        let (head, column) = (number / columns, number % columns);
        (0..kept).map(move |i| (2 + 5 * head + i) * columns + column)
    };
    let expected: Vec<f32> = (0..2 * columns).flat_map(right).map(|i| stored[i as usize]).collect();
    let expected: Vec<u8> = expected.iter().flat_map(|x| x.to_le_bytes()).collect();
    let indexed = derived.clone().with_index();
    for (from, count) in [(0, 2 * columns), (5, 16), (60, 9), (127, 1)] {
        let (from, bytes) = ((from * kept * 4) as usize, (count * kept * 4) as usize);
        let mut out = vec![0; bytes];
        assert!(indexed.read(from as u64, &mut out, &fetch));
        assert_eq!(out, expected[from..from + bytes]);
    }
    // Reads a part of a row.
    let mut out = [0; 4];
    assert!(indexed.read(8, &mut out, &fetch) && out == expected[8..12]);
    let wrong = Derivation { format: Format::Q8_0, ..derived.clone() };
    assert!(wrong.check(&[file.len() as u64]).is_err());
    assert!(derived.check(&[file.len() as u64 - 1]).is_err());
}

#[test]
fn rows_are_reordered_and_concatenated() {
    // 8 rows of 3 columns, in 2 heads of 4 rows. The halves of a head become neighbours, and 1 is
    // added. A second piece repeats row 7, times six, from a view that begins there.
    let file: Vec<u8> = (0..24u16).flat_map(|i| f16::from_f32(i.into()).to_le_bytes()).collect();
    let turned = piece(Element::F16, extent(0, 48), &[(2, 12), (2, 3), (2, 6)], &[(3, 1)]);
    let turned = Piece { change: Change::PlusOne, ..turned };
    let change = Change::Times([3.0, 2.0]);
    let last = Piece { first: 21, change, ..piece(Element::F16, extent(0, 48), &[], &[(3, 1)]) };
    let derived = Derivation { format: Format::F32, columns: 3, pieces_per_row: 1, pieces: vec![turned, last] };
    let rows: Vec<f32> = [0, 2, 1, 3, 4, 6, 5, 7]
        .iter()
        .flat_map(|r| (0..3).map(move |c| (3 * r + c + 1) as f32))
        .chain([126.0, 132.0, 138.0])
        .collect();
    let right: Vec<u8> = rows.iter().flat_map(|x| x.to_le_bytes()).collect();
    for step in [4, 8, 12, 20, 108] {
        assert_eq!(read(&derived, &file, step), right, "{step} bytes at a time");
    }
    assert_eq!(derived.with_index().place(0, 12), None);
    // The rows in their stored order, from row 2 on.
    let plain = Derivation {
        format: Format::F16,
        columns: 3,
        pieces_per_row: 1,
        pieces: vec![piece(Element::F16, extent(0, 48), &[(8, 3)], &[(3, 1)])],
    };
    let plain = plain.with_index();
    assert_eq!((plain.place(12, 36), plain.place(0, 54), plain.place(2, 6)), (Some((0, 12)), None, None));
    assert_eq!(plain.spans(6, 12), [extent(6, 12)]);
}

/// Checks that a row is divided by its length. The length is computed from the whole row even if
/// only a part of it is read. A row of zeros stays unchanged.
#[test]
fn derived_rows_are_normalised_to_length_one() {
    let columns = 2 * CHUNK + 3;
    let numbers = (0..3 * columns).map(|i| if i < columns { 0.0 } else { (i % 5) as f32 - 1.5 });
    let file: Vec<u8> = numbers.clone().flat_map(f32::to_le_bytes).collect();
    let extent = extent(0, file.len() as u64);
    let rows = Piece { change: Change::Unit, ..piece(Element::F32, extent, &[(3, columns)], &[(columns, 1)]) };
    let derived = Derivation { format: Format::F32, columns, pieces_per_row: 1, pieces: vec![rows.clone()] };
    let numbers: Vec<f32> = numbers.collect();
    let right = numbers.chunks_exact(columns as usize).flat_map(|row| {
        let length = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        row.iter().map(move |x| x * if length > 0.0 { (1.0 / length) as f32 } else { 0.0 })
    });
    let right: Vec<u8> = right.flat_map(f32::to_le_bytes).collect();
    for step in [4 * columns as usize, 4 * CHUNK as usize] {
        assert_eq!(read(&derived, &file, step), right, "{step} bytes at a time");
    }
    assert_eq!(derived.with_index().place(0, 12), None);
    let refused = |derived: Derivation| derived.check(&[file.len() as u64]).unwrap_err().to_string();
    let halves: Vec<Piece> =
        (0..2).map(|half| Piece { first: half, columns: vec![Axis { len: 1, stride: 1 }], ..rows.clone() }).collect();
    let said = refused(Derivation { format: Format::F32, columns: 2, pieces_per_row: 2, pieces: halves });
    assert!(said.contains("must be whole rows"), "{said}");
    let turned = piece(Element::F32, extent, &[(columns, 1)], &[(3, columns)]);
    let turned = Derivation {
        format: Format::F32,
        columns: 3,
        pieces_per_row: 1,
        pieces: vec![Piece { change: Change::Unit, ..turned }],
    };
    let row: Vec<f32> = [0, columns, 2 * columns].map(|i| numbers[i as usize]).to_vec();
    let factor = (1.0 / row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()) as f32;
    let first: Vec<u8> = row.iter().flat_map(|x| (x * factor).to_le_bytes()).collect();
    assert_eq!(read(&turned, &file, 12)[..12], first);
}

#[test]
fn columns_are_transposed() {
    let file: Vec<u8> = (0..6u16).flat_map(u16::to_le_bytes).collect();
    let pieces = vec![piece(Element::Bf16, extent(0, 12), &[(3, 1)], &[(2, 3)])];
    let derived = Derivation { format: Format::Bf16, columns: 2, pieces_per_row: 1, pieces };
    let right: Vec<u8> = [0u16, 3, 1, 4, 2, 5].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(read(&derived, &file, 2), right);
    assert_eq!(read(&derived, &file, 12), right);
    assert_eq!(derived.with_index().spans(0, 12), [extent(0, 12)]);
}

/// Compares reads of tiles with reads of single elements. Covers every element type, interleaved
/// gate and up matrices, and reads that begin and end within tiles.
#[test]
fn transposed_tile_reads_match_single_elements() {
    // Two experts of 6 stored rows of 150 elements. Columns 0, 2, 4, ... become rows of the gate
    // matrix.
    let numbers: Vec<f32> = (0..1800u32).map(|i| (i * 7919 % 251) as f32 - 120.0).collect();
    for (element, format) in [
        (Element::F32, Format::F32),
        (Element::Bf16, Format::Bf16),
        (Element::F16, Format::F32),
        (Element::F8E4m3, Format::Bf16),
    ] {
        let file: Vec<u8> = match element {
            Element::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Element::F16 => numbers.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
            Element::Bf16 => numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
            Element::F8E4m3
            | Element::Mxfp4
            | Element::Nvfp4
            | Element::Block(_)
            | Element::Stored(_)
            | Element::Tiled(_)
            | Element::Integer(_)
            | Element::Nf4
            | Element::Fp4 => (0..1800u32).map(|i| (i * 31 % 126) as u8).collect(),
        };
        for step in [1, 2] {
            let rows = 150 / step;
            let views = axes(&[(2, 900), (rows, step)]);
            let whole = extent(0, file.len() as u64);
            let mut transposed = piece(element, whole, &[], &[(6, 150)]);
            transposed.rows = views.clone();
            let pieces = vec![transposed];
            let derived = Derivation { format, columns: 6, pieces_per_row: 1, pieces };
            let each = format.block_bytes();
            // A read of a part of one row never uses a tile, so its result is the reference.
            let right = read(&derived, &file, each);
            for bytes in [6 * each, 7 * each, 12 * each, 100 * each, 6 * 64 * each, right.len()] {
                assert_eq!(read(&derived, &file, bytes), right, "{element:?}, step {step}: {bytes} bytes at a time");
            }
            let indexed = derived.clone().with_index();
            let fetch = |_: u32, offset: u64, out: &mut [u8]| {
                out.copy_from_slice(&file[offset as usize..][..out.len()]);
                true
            };
            // Columns 2 to 4 of rows on both sides of the border between two experts.
            let (row, count) = (rows as usize - 20, 40);
            let mut parts = vec![0; count * 3 * each];
            assert!(indexed.read_rows((row * 6 + 2) as u64 * each as u64, 3 * each as u64, &mut parts, &fetch));
            for (number, part) in parts.chunks(3 * each).enumerate() {
                assert_eq!(part, &right[((row + number) * 6 + 2) * each..][..3 * each], "{element:?}: row {number}");
            }
            let element_at = |row: u64, column: u64| at(&views, row) + column * 150;
            let stored = |row, column| {
                let mut x = [0f32];
                element.floats(
                    &file[(element_at(row, column) * element.bytes_of(1).unwrap()) as usize..]
                        [..element.bytes_of(1).unwrap() as usize],
                    &mut x,
                );
                x[0]
            };
            let made: Vec<f32> = match format {
                Format::F32 => right.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
                _ => right.as_chunks().0.iter().map(|x| bf16::from_le_bytes(*x).to_f32()).collect(),
            };
            for (row, made) in (0..).zip(made.chunks(6)) {
                let expected: Vec<f32> = (0..6).map(|column| stored(row, column)).collect();
                assert_eq!(made, expected, "{element:?}, step {step}: row {row}");
            }
        }
    }
}

/// Checks that the piece of any row is found without a scan of all earlier pieces.
#[test]
fn rows_of_many_pieces_are_found_without_a_scan() {
    let count = 1u64 << 20;
    let one = Piece { columns: axes(&[(1, 1)]), ..piece(Element::F32, extent(0, 4), &[], &[]) };
    let pieces = vec![one; count as usize];
    let derived = Derivation { format: Format::F32, columns: 1, pieces_per_row: 1, pieces }.with_index();
    let fetch = |_: u32, _: u64, out: &mut [u8]| {
        out.fill(7);
        true
    };
    // With a scan for each row, this loop would take 10^12 steps.
    for row in 0..count {
        let mut out = [0; 4];
        assert!(derived.read(4 * row, &mut out, &fetch) && out == [7; 4]);
        assert_eq!(derived.place(4 * row, 4), Some((0, 0)));
    }
    assert_eq!(derived.spans(4 * (count - 2), 8), [extent(0, 4), extent(0, 4)]);
    assert!(!derived.read(4 * count, &mut [0; 4], &fetch));
}

/// Checks every number of the format against its definition.
#[test]
fn e4m3_bytes_decode_exactly() {
    let at = |byte: u8| f8_e4m3(byte);
    assert_eq!(
        [at(0), at(0x38), at(0x7e), at(0xfe), at(0x01), at(0x08)],
        [0.0, 1.0, 448.0, -448.0, 1.0 / 512.0, 1.0 / 64.0]
    );
    assert!(at(0x7f).is_nan() && at(0xff).is_nan() && at(0x80).is_sign_negative());
    let rising: Vec<f32> = (0..0x7f).map(at).collect();
    assert!(rising.windows(2).all(|pair| pair[0] < pair[1]));
}

#[test]
fn scales_follow_the_stored_position() {
    // 3 rows of 5 columns of 1.0. Each scale holds for 2 rows and 3 columns. Rows are read from the
    // last to the first, and columns from column 1 on.
    let mut file = vec![0x38u8; 15];
    file.push(0);
    file.extend([1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()));
    let scales = Scales {
        extent: extent(16, 16),
        kind: ScaleKind::Number(Element::F32),
        block_rows: 2,
        block_columns: 3,
        columns: 5,
    };
    let row = |row: u64| Piece {
        first: 5 * row + 1,
        scales: Some(scales.clone()),
        ..piece(Element::F8E4m3, extent(0, 15), &[], &[(4, 1)])
    };
    let derived =
        Derivation { format: Format::F32, columns: 4, pieces_per_row: 1, pieces: vec![row(2), row(1), row(0)] };
    let right: Vec<u8> =
        [3.0f32, 3.0, 4.0, 4.0, 1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(read(&derived, &file, 48), right);
    assert_eq!(read(&derived, &file, 4), right);
    assert_eq!((power(127), power(130), power(0)), (1.0, 8.0, 2f32.powi(-127)));
}

#[test]
fn adjacent_block_scales_are_separated() {
    for (element, format, scales, shared) in
        [(Element::Mxfp4, Format::Mxfp4, &[121u8][..], 32), (Element::Nvfp4, Format::Nvfp4, &[0x38, 0x40, 1, 0x7e], 16)]
    {
        let len = scales.len() * shared;
        // Two blocks with the same codes. The scales of the second block are larger by one.
        let codes: Vec<u8> =
            (0..len).step_by(2).map(|i| ((i % shared) & 15 | ((i % shared + 1) & 15) << 4) as u8).collect();
        let all_scales: Vec<u8> = [0, 1].iter().flat_map(|more| scales.iter().map(move |scale| scale + more)).collect();
        let file = [codes.clone(), codes, all_scales.clone()].concat();
        let whole = extent(len as u64, all_scales.len() as u64);
        let own = Scales { extent: whole, kind: ScaleKind::OfBlock, block_rows: 1, block_columns: 1, columns: 1 };
        let piece = piece(element, extent(0, len as u64), &[(2, 1)], &[]);
        let pieces = vec![Piece { scales: Some(own.clone()), ..piece }];
        let derived = Derivation { format, columns: len as u64, pieces_per_row: 1, pieces };
        derived.check(&[file.len() as u64]).unwrap();
        let made = read(&derived, &file, format.block_bytes());
        let codes: Vec<u8> = (0..scales.len())
            .flat_map(|_| (0..shared / 2).map(|i| ((i & 15) | ((i + shared / 2) & 15) << 4) as u8))
            .collect();
        let right: Vec<u8> = all_scales.chunks(scales.len()).flat_map(|scales| [scales, &codes].concat()).collect();
        assert_eq!(made, right, "{element:?}");
        let mut few = derived;
        few.pieces[0].scales = Some(Scales { extent: extent(len as u64, whole.bytes - 1), ..own });
        assert!(few.check(&[file.len() as u64]).unwrap_err().to_string().contains("its scales"));
    }
}

#[test]
fn pieces_outside_the_file_are_refused() {
    let good = Derivation {
        format: Format::F16,
        columns: 3,
        pieces_per_row: 1,
        pieces: vec![piece(Element::F16, extent(0, 48), &[(8, 3)], &[(3, 1)])],
    };
    good.check(&[48]).unwrap();
    let with = |change: &dyn Fn(&mut Derivation)| {
        let mut bad = good.clone();
        change(&mut bad);
        bad.check(&[48]).map_err(|error| error.to_string())
    };
    let piece_of = |change: &dyn Fn(&mut Piece)| with(&|derived: &mut Derivation| change(&mut derived.pieces[0]));
    let says =
        |found: Result<(), String>, says: &str| assert!(found.clone().unwrap_err().contains(says), "{found:?}: {says}");
    says(piece_of(&|p| p.extent.file = 1), "in file 1; the model has 1 file");
    says(piece_of(&|p| p.extent.bytes = 49), "the end of a stored tensor is after");
    says(piece_of(&|p| p.extent.offset = u64::MAX), "the end of a stored tensor is after");
    says(piece_of(&|p| p.first = 1), "the end of its view is after");
    says(piece_of(&|p| p.rows[0].len = 9), "the end of its view is after");
    says(piece_of(&|p| p.rows[0].stride = u64::MAX), "the end of its view is after");
    says(piece_of(&|p| p.rows[0].len = 0), "an axis has length 0");
    says(piece_of(&|p| p.columns[0].len = 2), "columns do not match");
    says(piece_of(&|p| p.rows = axes(&[(1, 1); 9])), "too many axes");
    says(piece_of(&|p| p.element = Element::Mxfp4), "columns do not match");
    says(with(&|d| d.format = Format::Q8_0), "no columns");
    says(with(&|d| d.columns = 0), "no columns");
    let scales =
        |kind, bytes, block| Scales { extent: extent(0, bytes), kind, block_rows: block, block_columns: 1, columns: 3 };
    let number = ScaleKind::Number(Element::F32);
    says(piece_of(&|p| p.scales = Some(scales(number.clone(), 48, 0))), "scales for no rows");
    says(piece_of(&|p| p.scales = Some(scales(number.clone(), 48, 1))), "the end of its scales");
    says(
        piece_of(&|p| p.scales = Some(scales(ScaleKind::OfBlock, 48, 1))),
        "block scales of elements that are not blocks",
    );
    says(
        piece_of(&|p| p.scales = Some(scales(ScaleKind::Number(Element::Mxfp4), 48, 1))),
        "scales that are not numbers of two or four bytes",
    );
    piece_of(&|p| p.scales = Some(scales(number.clone(), 48, 2))).unwrap();
}

/// Tests four-bit codes with a scale for every 64 consecutive numbers, also across row ends. Scales
/// are stored as numbers or quantised.
#[test]
fn four_bit_codes_decode_exactly() {
    const ROWS: u64 = 7;
    const COLUMNS: u64 = 45;
    let count = ROWS * COLUMNS;
    let code = |at: u64| (at * 11 + at / 16) as u8 & 15;
    let bytes = |numbers: &[f32]| -> Vec<u8> { numbers.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let of_blocks: Vec<f32> = (0..count.div_ceil(64)).map(|block| 0.3 + block as f32 / 7.0).collect();
    let numbers: Vec<f32> = (0..256).map(|code| (code as f32 - 100.0) / 200.0).collect();
    let (codes, nested, more) = ([250u8, 3, 100, 17, 255], [0.7f32, 1.3, 0.2], 0.061f32);
    let mut file: Vec<u8> = (0..count.div_ceil(2)).map(|at| code(2 * at) << 4 | code(2 * at + 1)).collect();
    let stored = extent(0, file.len() as u64);
    let mut add = |bytes: &[u8]| {
        let at = extent(file.len() as u64, bytes.len() as u64);
        file.extend(bytes);
        at
    };
    let plain = (add(&bytes(&of_blocks)), ScaleKind::Number(Element::F32));
    let coded = CodedScales { numbers: add(&bytes(&numbers)), scales: add(&bytes(&nested)), block: 2, more };
    let coded = (add(&codes), ScaleKind::Coded(Box::new(coded)));
    let of_codes: Vec<f32> =
        (0..5).map(|block| numbers[usize::from(codes[block])] * nested[block / 2] + more).collect();
    for element in [Element::Nf4, Element::Fp4] {
        let book = element.codebook().unwrap();
        assert_eq!(book.iter().fold(0f32, |most, x| most.max(x.abs())), 1.0);
        for ((extent, kind), scales) in [(&plain, &of_blocks), (&coded, &of_codes)] {
            let mut piece = piece(element, stored, &[(ROWS, COLUMNS)], &[(COLUMNS, 1)]);
            let (extent, kind) = (*extent, kind.clone());
            piece.scales = Some(Scales { extent, kind, block_rows: 1, block_columns: 64, columns: count });
            let derived = |format, columns, piece: &Piece| Derivation {
                format,
                columns,
                pieces_per_row: 1,
                pieces: vec![piece.clone()],
            };
            let right: Vec<f32> = (0..count).map(|at| book[usize::from(code(at))] * scales[at as usize / 64]).collect();
            let single = derived(Format::F32, COLUMNS, &piece);
            for step in [4, 4 * 3, 4 * COLUMNS as usize, 4 * count as usize] {
                assert_eq!(read(&single, &file, step), bytes(&right));
            }
            let nearest = right.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect::<Vec<u8>>();
            assert_eq!(read(&derived(Format::Bf16, COLUMNS, &piece), &file, 2 * COLUMNS as usize), nearest);
            let mut turned = piece.clone();
            std::mem::swap(&mut turned.rows, &mut turned.columns);
            let turned = read(&derived(Format::F32, ROWS, &turned), &file, 4 * count as usize);
            let others: Vec<f32> = (0..count).map(|at| right[(at % ROWS * COLUMNS + at / ROWS) as usize]).collect();
            assert_eq!(turned, bytes(&others));

            let said = |change: &dyn Fn(&mut Piece)| {
                let mut bad = piece.clone();
                change(&mut bad);
                let error = derived(Format::Bf16, COLUMNS, &bad).check(&[file.len() as u64]).err();
                error.map(|error| error.to_string()).unwrap_or_default()
            };
            let scales = |piece: &mut Piece, change: &dyn Fn(&mut Scales)| change(piece.scales.as_mut().unwrap());
            assert_eq!(said(&|_| ()), "");
            assert!(said(&|piece| piece.extent.bytes -= 1).contains("the end of its view is after"));
            assert!(
                said(&|piece| scales(piece, &|of| of.extent.bytes -= 1)).contains("the end of its scales is after")
            );
            assert!(said(&|piece| scales(piece, &|of| of.block_columns = 0)).contains("no rows or columns"));
            let kind = |kind: ScaleKind| said(&|piece| scales(piece, &|of| of.kind = kind.clone()));
            assert!(kind(ScaleKind::Number(Element::Nf4)).contains("scales that are not numbers of two or four bytes"));
            if let ScaleKind::Coded(coded) = piece.scales.as_ref().unwrap().kind.clone() {
                let coded = |change: &dyn Fn(&mut CodedScales)| {
                    let mut bad = (*coded).clone();
                    change(&mut bad);
                    kind(ScaleKind::Coded(Box::new(bad)))
                };
                assert!(coded(&|of| of.block = 0).contains("the end of its scales is after"));
                assert!(coded(&|of| of.numbers.bytes -= 4).contains("the end of its scales is after"));
                assert!(coded(&|of| of.scales.bytes -= 4).contains("the end of its scales is after"));
                assert!(coded(&|of| of.scales.offset = u64::MAX).contains("the end of a stored tensor is after"));
                assert!(coded(&|of| of.numbers.file = 7).contains("in file 7"));
            }
        }
    }
}

/// Tests the columns of one rank in a `q8_0` matrix: one block of each row, and its offset in the
/// file.
#[test]
fn stored_blocks_are_copied() {
    let (block, rows) = (Format::Q8_0.block_bytes(), 3);
    let file: Vec<u8> = (0..2 * rows * block).map(|i| (i * 7 % 251) as u8).collect();
    let stored = Element::Stored(Format::Q8_0);
    let second = Piece { first: 1, ..piece(stored, extent(0, file.len() as u64), &[(3, 2)], &[(1, 1)]) };
    let derived =
        |piece: Piece| Derivation { format: Format::Q8_0, columns: 32, pieces_per_row: 1, pieces: vec![piece] };
    let expected: Vec<u8> = file.chunks(block).skip(1).step_by(2).flatten().copied().collect();
    for step in [block, 2 * block, 3 * block] {
        assert_eq!(read(&derived(second.clone()), &file, step), expected);
    }
    let indexed = derived(second.clone()).with_index();
    assert_eq!(indexed.place(block as u64, block as u64), Some((0, 3 * block as u64)));
    assert_eq!(indexed.place(0, 2 * block as u64), None);
    // Rows 2 and 3 of each of two matrices of four rows. Only rows of the same matrix are
    // contiguous.
    let file = vec![0; 8 * block];
    let halves = piece(stored, extent(0, file.len() as u64), &[(2, 4), (2, 1)], &[(1, 1)]);
    let halves = derived(Piece { first: 2, ..halves }).with_index();
    assert_eq!(halves.place(2 * block as u64, 2 * block as u64), Some((0, 6 * block as u64)));
    assert_eq!(halves.place(block as u64, 2 * block as u64), None);
    let refused = [
        derived(Piece { change: Change::PlusOne, ..second.clone() }),
        Derivation { format: Format::F32, ..derived(second.clone()) },
        derived(Piece { first: 2, ..second.clone() }),
        derived(Piece { element: Element::Stored(Format::Q4_0), ..second }),
    ];
    assert!(refused.iter().all(|derived| derived.check(&[6 * block as u64]).is_err()));
}
