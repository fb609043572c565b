//! DWARF line table (version 4, section 6.2) for debuggers: the line of a kernel's IR for each
//! instruction. The module also writes the entries that name files and functions.
//!
//! ```text
//! (gdb) info line *$pc
//! Line 37 of "jit-4711.ix/gemv_q4_k.ix" starts at address 0x7ffff7fb2040 <gemv_q4_k+64>
//!    and ends at 0x7ffff7fb2046 <gemv_q4_k+70>.
//! ```

use std::path::Path;

use gimli::write::{
    Address, AttributeValue, DwarfUnit, EndianVec, LineProgram, LineString, Sections, UnitEntryId, Writer,
};
use gimli::{DW_AT_comp_dir, DW_AT_decl_file, DW_AT_decl_line, DW_AT_high_pc, DW_AT_low_pc, DW_AT_name};
use gimli::{DW_AT_external, DW_AT_language, DW_AT_producer, DW_LANG_C, DW_TAG_subprogram};
use gimli::{Encoding, Format, LineEncoding, LittleEndian};

use super::{NamedKernel, lines};

/// DWARF version 4: every debugger of the last ten years reads it, and it stores names inline.
const ENCODING: Encoding = Encoding { format: Format::Dwarf32, version: 4, address_size: 8 };
/// The lines are IR, a language that no debugger knows. Among known languages, C has the fewest
/// rules.
const LANGUAGE: gimli::DwLang = DW_LANG_C;

/// A section of debug information.
pub(super) struct DebugSection {
    pub(super) name: &'static str,
    pub(super) bytes: Vec<u8>,
}

/// Returns the sections for the kernels of one module. The IR of a kernel is in a file of `folder`
/// with the kernel's name. Returns no sections if the kernels have no lines.
///
/// # Errors
/// A name that no file can have.
pub(super) fn sections(kernels: &[NamedKernel<'_>], folder: &Path) -> Result<Vec<DebugSection>, gimli::write::Error> {
    let known: Vec<(&NamedKernel<'_>, Vec<(u32, u32)>)> =
        kernels.iter().map(|named| (named, lines(&named.placed))).filter(|(_, lines)| !lines.is_empty()).collect();
    let [(first, _), ..] = &known[..] else { return Ok(Vec::new()) };
    let begin = known.iter().map(|(named, _)| named.placed.address).min().unwrap_or(0);
    let end = known.iter().map(|(NamedKernel { placed, .. }, _)| placed.address + placed.code().len() as u64).max();
    let string = |text: &[u8]| LineString::String(text.to_vec());
    let (folder, file) = (folder.as_os_str().as_encoded_bytes(), |name: &str| format!("{name}.ix"));
    let mut unit = DwarfUnit::new(ENCODING);
    let mut program = LineProgram::new(
        ENCODING,
        LineEncoding::default(),
        string(folder),
        None,
        string(file(&first.name).as_bytes()),
        None,
    );
    for (NamedKernel { name, placed }, lines) in &known {
        let directory = program.default_directory();
        let id = program.add_file(string(file(name).as_bytes()), directory, None);
        program.begin_sequence(Some(Address::Constant(placed.address)));
        for &(offset, line) in lines {
            let row = program.row();
            (row.address_offset, row.file, row.line) = (offset.into(), id, line.into());
            program.generate_row();
        }
        program.end_sequence(placed.code().len() as u64);
        let root = unit.unit.root();
        let function = unit.unit.add(root, DW_TAG_subprogram);
        let mut set = |attribute, value| unit.unit.get_mut(function).set(attribute, value);
        set(DW_AT_name, AttributeValue::String(name.as_bytes().to_vec()));
        set(DW_AT_decl_file, AttributeValue::FileIndex(Some(id)));
        set(DW_AT_decl_line, AttributeValue::Udata(1));
        set(DW_AT_external, AttributeValue::Flag(true));
        range(&mut unit, function, placed.address, placed.code().len() as u64);
    }
    let root = unit.unit.root();
    let mut set = |attribute, value| unit.unit.get_mut(root).set(attribute, value);
    set(DW_AT_producer, AttributeValue::String(b"ixc".to_vec()));
    set(DW_AT_language, AttributeValue::Language(LANGUAGE));
    set(DW_AT_name, AttributeValue::String(file(&first.name).into_bytes()));
    set(DW_AT_comp_dir, AttributeValue::String(folder.to_vec()));
    range(&mut unit, root, begin, end.unwrap_or(begin) - begin);
    unit.unit.line_program = program;
    let mut sections = Sections::new(EndianVec::new(LittleEndian));
    unit.write(&mut sections)?;
    let mut written = Vec::new();
    sections.for_each(|id, data| {
        if data.len() > 0 {
            written.push(DebugSection { name: id.name(), bytes: data.slice().to_vec() });
        }
        Ok(())
    })?;
    Ok(written)
}

/// Sets the range of code addresses of a debug entry.
fn range(unit: &mut DwarfUnit, entry: UnitEntryId, begin: u64, bytes: u64) {
    let entry = unit.unit.get_mut(entry);
    entry.set(DW_AT_low_pc, AttributeValue::Address(Address::Constant(begin)));
    entry.set(DW_AT_high_pc, AttributeValue::Udata(bytes));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;
    use std::process::Command;

    use gimli::{Dwarf, EndianSlice};
    use ixc_ir::kernel::print::statement_lines;
    use ixc_ir::kernel::{Kernel, KernelBuilder, Type};
    use ixc_targets::Target;
    use ixc_testing::tools::Tool;

    use super::super::{PlacedKernel, elf};
    use super::*;
    use crate::artifact::Artifact;

    const READELF: Tool = Tool {
        name: "readelf",
        programs: &["readelf"],
        variable: None,
        version_arguments: &["--version"],
        before: "GNU readelf",
        needed_version: "any (Debian: binutils)",
        is_suitable: |_| true,
    };
    /// Assumed address of the tests' kernels.
    const BEGIN: u64 = 0x7fff_1000;

    /// Returns a kernel with a loop, which stores the loop's sums.
    fn kernel(name: &str) -> Kernel {
        let mut b = KernelBuilder::new(name);
        let (x, y) = (b.read("x", 32 * 8), b.write("y", 32));
        let zero = b.load(Type::f32(8), x, 0);
        let sums = b.for_carry("i", 8, &[zero], |b, i, carried| {
            let a = b.load(Type::f32(8), x, i * 32);
            vec![b.add(carried[0], a)]
        });
        b.store(y, 0, sums[0]);
        b.finish()
    }

    fn with_two<T>(target: Target, told: impl FnOnce(&[NamedKernel<'_>], &[DebugSection]) -> T) -> T {
        let kernels = [kernel("first"), kernel("second")];
        let made = kernels.each_ref().map(|kernel| Artifact::generate(kernel, target, false).unwrap());
        let named: Vec<NamedKernel<'_>> = (0..2)
            .map(|at| {
                let placed =
                    PlacedKernel { kernel: &kernels[at], artifact: &made[at], address: BEGIN + 4096 * at as u64 };
                NamedKernel { name: kernels[at].name.clone(), placed }
            })
            .collect();
        let sections = sections(&named, Path::new("/somewhere/jit-7.ix")).unwrap();
        told(&named, &sections)
    }

    /// Returns file and line of each address as gimli reads them, and the function names.
    fn read(sections: &[DebugSection]) -> (BTreeMap<u64, (PathBuf, u64)>, Vec<String>) {
        let find = |id: gimli::SectionId| {
            let section = sections.iter().find(|section| section.name == id.name());
            Ok::<_, gimli::Error>(EndianSlice::new(section.map_or(&[][..], |section| &section.bytes), LittleEndian))
        };
        let dwarf = Dwarf::load(find).unwrap();
        let header = dwarf.units().next().unwrap().unwrap();
        let unit = dwarf.unit(header).unwrap();
        let text = |string: EndianSlice<'_, LittleEndian>| string.to_string().unwrap().to_owned();
        let mut functions = Vec::new();
        let mut entries = unit.entries();
        while let Some(entry) = entries.next_dfs().unwrap() {
            if entry.tag() == DW_TAG_subprogram {
                let name = entry.attr_value(DW_AT_name).unwrap();
                functions.push(text(dwarf.attr_string(&unit, name).unwrap()));
            }
        }
        let mut found = BTreeMap::new();
        let mut rows = unit.line_program.clone().unwrap().rows();
        while let Some((header, row)) = rows.next_row().unwrap() {
            if row.end_sequence() {
                found.insert(row.address(), (PathBuf::new(), 0));
                continue;
            }
            let file = row.file(header).unwrap();
            let name = text(dwarf.attr_string(&unit, file.path_name()).unwrap());
            let folder = text(unit.comp_dir.unwrap());
            found.insert(row.address(), (Path::new(&folder).join(name), row.line().unwrap().get()));
        }
        (found, functions)
    }

    /// Checks that each instruction has the line of its statement, in its kernel's file.
    #[test]
    fn instructions_have_the_lines_of_their_statements() {
        for target in [Target::AVX2, Target::AVX512, Target::PORTABLE] {
            with_two(target, |named, sections| {
                let (found, functions) = read(sections);
                assert_eq!(functions, ["first", "second"]);
                for NamedKernel { name, placed } in named {
                    let lines = statement_lines(placed.kernel);
                    let text = placed.kernel.to_string();
                    let mut seen = std::collections::BTreeSet::new();
                    for line in placed.artifact.lines() {
                        let (file, at) = found.range(..=placed.address + u64::from(line.offset)).next_back().unwrap().1;
                        let expected = line.origin.map_or(1, |origin| lines[origin as usize] + 1);
                        let place = format!("{} {name}+{:x}", target.name(), line.offset);
                        assert_eq!(
                            (file.as_path(), *at),
                            (&*Path::new("/somewhere/jit-7.ix").join(format!("{name}.ix")), expected.into()),
                            "{place}"
                        );
                        seen.insert(
                            text.lines()
                                .nth(*at as usize - 1)
                                .unwrap()
                                .trim()
                                .split(' ')
                                .nth(2)
                                .unwrap_or_default()
                                .to_owned(),
                        );
                    }
                    for op in ["load", "add"] {
                        assert!(
                            seen.contains(op),
                            "{}: no instruction is of a line of `{op}`: {seen:?}",
                            target.name()
                        );
                    }
                    // The address after the code has no line.
                    let end = placed.address + placed.code().len() as u64;
                    assert_eq!(found[&end].1, 0);
                }
            });
        }
    }

    #[test]
    fn readelf_finds_lines_and_functions() {
        let Some(found) = READELF.find("lines of gdb's files through readelf") else { return };
        let file = std::env::temp_dir().join(format!("ixc-dwarf-{}.o", std::process::id()));
        let bytes = with_two(Target::AVX2, elf::elf_file);
        std::fs::write(&file, bytes).unwrap();
        let read = |option: &str| {
            let out = Command::new(&found.program).args(["-W", option]).arg(&file).output().unwrap();
            let (text, problems) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
            assert!(out.status.success() && problems.is_empty(), "{option}: {problems}");
            text.into_owned()
        };
        let (lines, info) = (read("--debug-dump=decodedline"), read("--debug-dump=info"));
        std::fs::remove_file(&file).unwrap();
        assert!(lines.contains("second.ix") && lines.contains(&format!("{:#x}", BEGIN + 4096)), "{lines}");
        assert!(info.contains("DW_TAG_subprogram") && info.contains("first.ix"), "{info}");
    }
}
