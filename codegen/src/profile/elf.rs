//! In-memory ELF file for gdb's JIT interface. It holds addresses and names of kernels, lines of
//! IR, and unwind tables, but no code: gdb reads the code at those addresses.

use super::{NamedKernel, PlacedKernel, dwarf, unwind};

const EXECUTABLE: u16 = 2;
const X86_64: u16 = 62;
const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;

// Types and flags of ELF sections.
const PROGBITS: u32 = 1;
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const NOBITS: u32 = 8;
const ALLOC_EXECUTE: u64 = 2 | 4;
/// ELF symbol information of a global function.
const FUNCTION: u8 = 1 << 4 | 2;
/// Index of `.text` in the section table.
const TEXT: u16 = 1;

/// String table: names, each followed by a zero byte.
struct Names(Vec<u8>);

impl Names {
    fn add(&mut self, name: &str) -> u32 {
        let at = self.0.len() as u32;
        self.0.extend(name.as_bytes());
        self.0.push(0);
        at
    }
}

#[derive(Default)]
struct Section {
    name: u32,
    kind: u32,
    flags: u64,
    address: u64,
    offset: u64,
    bytes: u64,
    link: u32,
    info: u32,
    alignment: u64,
    entry: u64,
}

/// Returns the ELF file for the kernels of one module, with the sections in `more` added.
pub(super) fn elf_file(kernels: &[NamedKernel<'_>], more: &[dwarf::DebugSection]) -> Vec<u8> {
    let begin = kernels.iter().map(|named| named.placed.address).min().unwrap_or(0);
    let end =
        kernels.iter().map(|NamedKernel { placed, .. }| placed.address + placed.code().len() as u64).max().unwrap_or(0);
    let (mut names, mut symbols) = (Names(vec![0]), vec![0; SYMBOL_BYTES]);
    for NamedKernel { name, placed } in kernels {
        symbols.extend(names.add(name).to_le_bytes());
        symbols.extend([FUNCTION, 0]);
        symbols.extend(TEXT.to_le_bytes());
        symbols.extend(placed.address.to_le_bytes());
        symbols.extend((placed.code().len() as u64).to_le_bytes());
    }
    let frames = unwind::debug_frame(kernels.iter().map(|NamedKernel { placed, .. }: &NamedKernel<'_>| {
        let PlacedKernel { address, .. } = *placed;
        (address, placed.code())
    }));
    let mut heads = Names(vec![0]);
    let [text, frame, symtab, strtab, shstrtab] =
        [".text", ".debug_frame", ".symtab", ".strtab", ".shstrtab"].map(|name| heads.add(name));
    let more: Vec<(u32, &[u8])> = more.iter().map(|section| (heads.add(section.name), &*section.bytes)).collect();
    let mut body = Vec::new();
    let mut put = |bytes: &[u8]| {
        let offset = (HEADER_BYTES + body.len()).next_multiple_of(8);
        body.resize(offset - HEADER_BYTES, 0);
        body.extend(bytes);
        (offset as u64, bytes.len() as u64)
    };
    let placed = [&frames, &symbols, &names.0].map(|bytes| put(bytes));
    let more: Vec<(u32, (u64, u64))> = more.into_iter().map(|(name, bytes)| (name, put(bytes))).collect();
    let heads = put(&heads.0);
    let of = |name, kind, (offset, bytes): (u64, u64)| Section {
        name,
        kind,
        offset,
        bytes,
        alignment: 8,
        ..Section::default()
    };
    let mut sections = vec![
        Section::default(),
        Section {
            flags: ALLOC_EXECUTE,
            address: begin,
            alignment: 64,
            ..of(text, NOBITS, (HEADER_BYTES as u64, end - begin))
        },
        of(frame, PROGBITS, placed[0]),
        // Only symbol 0, the null symbol, is local (`info`). The names are in section 4 (`link`).
        Section { link: 4, info: 1, entry: SYMBOL_BYTES as u64, ..of(symtab, SYMTAB, placed[1]) },
        of(strtab, STRTAB, placed[2]),
    ];
    sections.extend(more.into_iter().map(|(name, placed)| Section { alignment: 1, ..of(name, PROGBITS, placed) }));
    // The section names are in the last section.
    sections.push(of(shstrtab, STRTAB, heads));
    let table = (HEADER_BYTES + body.len()).next_multiple_of(8);
    body.resize(table - HEADER_BYTES, 0);
    // ELF identification: 64 bits, little-endian, version 1, System V.
    let mut out = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    out.extend(EXECUTABLE.to_le_bytes());
    out.extend(X86_64.to_le_bytes());
    out.extend(1_u32.to_le_bytes());
    // Addresses or offsets in the header: entry point, program headers, section headers.
    [0, 0, table as u64].iter().for_each(|value| out.extend(value.to_le_bytes()));
    out.extend(0_u32.to_le_bytes());
    [HEADER_BYTES as u16, 56, 0, SECTION_BYTES as u16, sections.len() as u16, sections.len() as u16 - 1]
        .iter()
        .for_each(|value| out.extend(value.to_le_bytes()));
    out.extend(body);
    for Section { name, kind, flags, address, offset, bytes, link, info, alignment, entry } in sections {
        [name, kind].iter().for_each(|value| out.extend(value.to_le_bytes()));
        [flags, address, offset, bytes].iter().for_each(|value| out.extend(value.to_le_bytes()));
        [link, info].iter().for_each(|value| out.extend(value.to_le_bytes()));
        [alignment, entry].iter().for_each(|value| out.extend(value.to_le_bytes()));
    }
    out
}
