//! Checks that listings are valid assembly and assemble to the bytes that they list (issue 16,
//! U32).

use std::process::Command;

use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind};
use ixc_codegen::artifact::Artifact;
use ixc_codegen::x64::{self, listing};
use ixc_kernels::catalogue::ROWS;
use ixc_kernels::generate;
use ixc_targets::{Lowering, Target};

use ixc_testing::tools::{GNU_AS, InstalledTool, LLVM_MCA, Tool};

/// One kernel of each kind that has constants, loops, masks or tiles.
const KERNELS: [&str; 8] =
    ["gemv_q4_k", "gemm_q6_k", "gemv_f32", "gemv_q4_k_r16", "gemm_q4_k_r16", "tiles_q4_k_r16", "attention_64", "silu"];

/// Whether two instructions are the same, except for encoding and position. Targets of jumps and
/// addresses of constants are compared elsewhere.
fn same(i: &Instruction, j: &Instruction) -> bool {
    let operand = |i: &Instruction, n| match i.op_kind(n) {
        OpKind::NearBranch64 => (OpKind::NearBranch64, 0, 0),
        OpKind::Memory if i.is_ip_rel_memory_operand() => (OpKind::Memory, i.memory_size() as u64, 0),
        OpKind::Memory => {
            let registers =
                (i.memory_base() as u64) << 32 | (i.memory_index() as u64) << 8 | u64::from(i.memory_index_scale());
            (OpKind::Memory, registers, i.memory_displacement64())
        }
        OpKind::Register => (OpKind::Register, i.op_register(n) as u64, 0),
        // All other operands are immediates, of any width.
        _ => (OpKind::Immediate64, i.immediate(n), 0),
    };
    i.mnemonic() == j.mnemonic()
        && i.op_mask() == j.op_mask()
        && i.zeroing_masking() == j.zeroing_masking()
        && i.is_broadcast() == j.is_broadcast()
        && i.rounding_control() == j.rounding_control()
        && i.op_count() == j.op_count()
        && (0..i.op_count()).all(|n| operand(i, n) == operand(j, n))
}

fn decoded(code: &[u8]) -> Vec<Instruction> {
    Decoder::with_ip(64, code, 0, DecoderOptions::NONE).into_iter().collect()
}

#[test]
fn assembled_listings_contain_the_listed_instructions() {
    let Some(InstalledTool { program, .. }) = GNU_AS.find("listings through GNU as") else { return };
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("listings");
    std::fs::create_dir_all(&folder).unwrap();
    let mut instructions = 0;
    for target in Target::all() {
        for row in ROWS.iter().filter(|row| KERNELS.contains(&row.name)) {
            let Ok(kernel) = generate(&row.spec().unwrap(), target) else { continue };
            let Ok(artifact) = Artifact::generate(&kernel, target, true) else { continue };
            // The listing of `portable` has code for this machine.
            let Some(listed) = artifact.finished_code() else { continue };
            let name = format!("{}-{}", row.name, target.name());
            let [text, object, binary] = ["s", "o", "bin"].map(|end| folder.join(format!("{name}.{end}")));
            std::fs::write(&text, listing::text(listed, &kernel)).unwrap();
            let run = |tool: &std::path::Path, arguments: &[&std::ffi::OsStr]| {
                let out = Command::new(tool).args(arguments).output().unwrap();
                assert!(out.status.success(), "{name}: {tool:?}: {}", String::from_utf8_lossy(&out.stderr));
            };
            run(&program, &["--64".as_ref(), "-o".as_ref(), object.as_ref(), text.as_ref()]);
            let options = ["-O", "binary", "-j", ".text"].map(std::ffi::OsStr::new);
            run(&program.with_file_name("objcopy"), &[&options[..], &[object.as_ref(), binary.as_ref()]].concat());

            let assembled = std::fs::read(&binary).unwrap();
            let (ours, theirs) = (decoded(listed.code), decoded(&assembled));
            // Returns the index of the instruction to which a jump goes.
            let number = |all: &[Instruction], i: &Instruction| all.iter().position(|j| j.ip() == i.near_branch64());
            let mut image = listed.code.to_vec();
            image.resize(listed.constants_at, 0);
            image.extend(listed.constants);
            for (i, j) in ours.iter().zip(&theirs) {
                assert!(same(i, j), "{name}: at {:x} `{i}`, assembled `{j}`", i.ip());
                if i.op_count() > 0 && i.op0_kind() == OpKind::NearBranch64 {
                    assert_eq!(number(&ours, i), number(&theirs, j), "{name}: {i}");
                }
                if i.is_ip_rel_memory_operand() {
                    let [at, to] = [i, j].map(|i| i.ip_rel_memory_address() as usize);
                    let bytes = i.memory_size().size();
                    assert_eq!(image[at..at + bytes], assembled[to..to + bytes], "{name}: {i}");
                }
            }
            instructions += ours.len();
        }
    }
    println!("{instructions} instructions assembled");
    assert!(instructions > 10_000, "{instructions}");
}

/// Whether an assembler may choose the second encoding instead of the first. Moves between
/// registers can be encoded in two ways. Small immediates have a shorter form, and some
/// instructions have a special form for `rax`. `vmovq` from memory has two forms. Jump and constant
/// offsets follow from the lengths of the instructions before.
fn is_choice(i: &Instruction, j: &Instruction) -> bool {
    if i.code() == j.code() {
        return i.op0_kind() == OpKind::NearBranch64 || i.is_ip_rel_memory_operand();
    }
    let (ours, theirs) = (format!("{:?}", i.code()), format!("{:?}", j.code()));
    let number =
        [("_imm32", "_imm8"), ("_rm64_imm32", "_RAX_imm32"), ("_rm32_imm32", "_EAX_imm32"), ("xmmm64", "rm64")];
    let registers = i.op_count() == 2 && i.op0_kind() == OpKind::Register && i.op1_kind() == OpKind::Register;
    // A move between registers can be encoded as a load or as a store.
    let is_move = registers && ["Mov", "Vmov"].iter().any(|word| format!("{:?}", i.mnemonic()).starts_with(word));
    is_move || number.iter().any(|(long, short)| ours.replace(long, short) == theirs)
}

/// Checks all named kernels on every target whose instructions the assembler knows. The assembled
/// bytes equal the code, except for the few instructions with equivalent forms.
#[test]
fn every_listing_assembles_to_its_bytes() {
    let Some(InstalledTool { program, .. }) = GNU_AS.find("all listings through GNU as") else { return };
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("listings-of-all");
    std::fs::create_dir_all(&folder).unwrap();
    // CPUs with the same instruction set only differ in speed.
    let mut of_x64: Vec<Target> = Vec::new();
    for target in Target::all().filter(|target| target.isa().lowering == Lowering::X64) {
        if of_x64.iter().all(|other| other.features() != target.features()) {
            of_x64.push(target);
        }
    }
    ixc_codegen::parallel::map(&of_x64, |&target| {
        let made = ROWS.iter().filter_map(|row| {
            let kernel = generate(&row.spec().unwrap(), target).ok()?;
            let compiled = x64::compile(&kernel, target).ok()?;
            Some((kernel, compiled))
        });
        let made: Vec<_> = made.collect();
        // Kernels begin at multiples of 64 bytes.
        let texts = made.iter().enumerate().map(|(number, (kernel, compiled))| {
            format!(".balign 64, 0xcc\n{}", listing::text_of_many(compiled, kernel, number))
        });
        let [text, object, binary] = ["s", "o", "bin"].map(|end| folder.join(format!("{}.{end}", target.name())));
        std::fs::write(&text, texts.collect::<Vec<_>>().join("\n")).unwrap();
        let run = |tool: &std::path::Path, arguments: &[&std::ffi::OsStr]| {
            let out = Command::new(tool).args(arguments).output().unwrap();
            let said = String::from_utf8_lossy(&out.stderr).lines().take(5).collect::<Vec<_>>().join("\n");
            assert!(out.status.success(), "{}: {tool:?}: {said}", target.name());
        };
        run(&program, &["--64".as_ref(), "-o".as_ref(), object.as_ref(), text.as_ref()]);
        let options = ["-O", "binary", "-j", ".text"].map(std::ffi::OsStr::new);
        run(&program.with_file_name("objcopy"), &[&options[..], &[object.as_ref(), binary.as_ref()]].concat());
        let assembled = std::fs::read(&binary).unwrap();
        let (mut at, mut instructions, mut alike) = (0_usize, 0, 0);
        let mut others = std::collections::BTreeSet::new();
        for (kernel, compiled) in &made {
            at = at.next_multiple_of(64);
            let own = decoded(&compiled.code[..compiled.code_bytes]);
            let theirs = Decoder::with_ip(64, &assembled[at..], 0, DecoderOptions::NONE).into_iter().take(own.len());
            let theirs: Vec<Instruction> = theirs.collect();
            for (i, j) in own.iter().zip(&theirs) {
                assert!(same(i, j), "{}: at {:x} `{i}`, assembled `{j}`", kernel.name, i.ip());
                let ours = &compiled.code[i.ip() as usize..i.next_ip() as usize];
                instructions += 1;
                match ours == &assembled[at + j.ip() as usize..at + j.next_ip() as usize] {
                    true => alike += 1,
                    false if is_choice(i, j) => {}
                    false => {
                        others.insert(format!("{:?} as {:?}: {i}", i.code(), j.code()));
                    }
                }
            }
            at += theirs.last().map_or(0, |last| last.next_ip() as usize);
            if !compiled.constants.is_empty() {
                at = at.next_multiple_of(64);
                assert_eq!(&assembled[at..at + compiled.constants.len()], &compiled.constants[..], "{}", kernel.name);
                at += compiled.constants.len();
            }
        }
        assert_eq!(at, assembled.len(), "{}", target.name());
        assert!(others.is_empty(), "{}: {others:#?}", target.name());
        println!("{}: {} kernels, {instructions} instructions, {alike} in the same bytes", target.name(), made.len());
        assert!(made.len() > 100 && alike * 10 > instructions * 8, "{}: {alike} of {instructions}", target.name());
    });
}

/// Checks that a kernel compiled twice has the same bytes, as [`ixc_codegen::artifact`] promises.
#[test]
fn kernels_compiled_twice_have_the_same_bytes() {
    let mut count = 0;
    for target in [Target::AVX2, Target::AVX512, Target::AMX] {
        for row in ROWS.iter() {
            let Ok(kernel) = generate(&row.spec().unwrap(), target) else { continue };
            let Ok(compiled) = x64::compile(&kernel, target) else { continue };
            let again = x64::compile(&kernel, target).unwrap();
            assert!((compiled.code, compiled.constants) == (again.code, again.constants), "{}", kernel.name);
            count += 1;
        }
    }
    assert!(count > ROWS.len(), "{count} kernels");
    for row in ROWS.iter().filter(|row| KERNELS.contains(&row.name)) {
        let Ok(kernel) = generate(&row.spec().unwrap(), Target::PORTABLE) else { continue };
        let [first, again] = [(); 2].map(|()| Artifact::generate(&kernel, Target::PORTABLE, false).unwrap());
        assert!(first.bytes() == again.bytes(), "{}", kernel.name);
    }
}

/// Checks that llvm-mca accepts listings unchanged, if it knows the instructions.
#[test]
fn llvm_mca_accepts_unchanged_listings() {
    // Any version of llvm-mca is suitable, because it only has to parse the listing.
    const ANY: Tool = Tool { needed_version: "any", is_suitable: |_| true, ..LLVM_MCA };
    let Some(InstalledTool { program, .. }) = ANY.find("listings through llvm-mca") else { return };
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("listings-of-mca");
    std::fs::create_dir_all(&folder).unwrap();
    for (target, cpu) in [(Target::AVX2, "haswell"), (Target::AVX512, "icelake-server")] {
        for row in ROWS.iter().filter(|row| KERNELS.contains(&row.name)) {
            let Ok(kernel) = generate(&row.spec().unwrap(), target) else { continue };
            let Ok(compiled) = x64::compile(&kernel, target) else { continue };
            let path = folder.join(format!("{}-{}.s", row.name, target.name()));
            std::fs::write(&path, listing::text(&compiled, &kernel)).unwrap();
            let cpu = format!("-mcpu={cpu}");
            let out =
                Command::new(&program).args(["-mtriple=x86_64", &cpu, "-iterations=1"]).arg(&path).output().unwrap();
            let said = String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success() && !said.contains("error: "), "{}: {said}", path.display());
        }
    }
}

/// Repeats without uiCA what uiCA does with a file. uiCA takes an object file that `as` made
/// without options, and decodes its code section. With `-iacaMarkers`, it keeps the instructions
/// between two marker byte sequences. These instructions must be exactly the body of a loop.
#[test]
fn uica_reads_marked_loops_of_listings() {
    const MARKS: [&str; 2] = ["mov ebx, 111\n.byte 0x64, 0x67, 0x90", "mov ebx, 222\n.byte 0x64, 0x67, 0x90"];
    const BYTES: [&[u8]; 2] = [&[0xbb, 0x6f, 0, 0, 0, 0x64, 0x67, 0x90], &[0xbb, 0xde, 0, 0, 0, 0x64, 0x67, 0x90]];
    let Some(InstalledTool { program, .. }) = GNU_AS.find("listings with IACA's markers through GNU as") else {
        return;
    };
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("listings-of-uica");
    std::fs::create_dir_all(&folder).unwrap();
    let mut loops = 0;
    for target in [Target::AVX2, Target::AVX512] {
        for row in ROWS.iter().filter(|row| KERNELS.contains(&row.name)) {
            let Ok(kernel) = generate(&row.spec().unwrap(), target) else { continue };
            let Ok(compiled) = x64::compile(&kernel, target) else { continue };
            let text = listing::text(&compiled, &kernel);
            let lines: Vec<&str> = text.lines().collect();
            // Finds a label with a backward jump to it and no other label between. This label
            // begins an innermost loop.
            let is_label = |line: &&str| line.starts_with(".L") && line.ends_with(':');
            let begins = |at: &usize| {
                let label = lines[*at].trim_end_matches(':');
                let end = lines[at + 1..].iter().position(&is_label).map_or(lines.len(), |end| at + 1 + end);
                let back = (at + 1..end).find(|i| {
                    let code = lines[*i].split('#').next().unwrap_or_default().trim();
                    code.starts_with('j') && code.split_whitespace().last() == Some(label)
                });
                back.map(|back| (*at, back))
            };
            let found = (0..lines.len()).filter(|at| is_label(&lines[*at])).find_map(|at| begins(&at));
            let Some((first, back)) = found else { continue };
            // The jump is part of the loop, but the markers are not.
            let marked = [&lines[..first], &[MARKS[0]], &lines[first..=back], &[MARKS[1]], &lines[back + 1..]].concat();
            let [path, object] = ["s", "o"].map(|end| folder.join(format!("{}-{}.{end}", row.name, target.name())));
            std::fs::write(&path, marked.join("\n") + "\n").unwrap();
            // uiCA's documentation uses no options.
            let out = Command::new(&program).arg(&path).arg("-o").arg(&object).output().unwrap();
            assert!(out.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&out.stderr));
            let object = std::fs::read(&object).unwrap();
            // The file must be a 64-bit, little-endian object for x86-64.
            assert!(object.starts_with(b"\x7fELF\x02\x01") && object[18..20] == [62, 0], "{}", path.display());
            let code = executable(&object);
            let at = |bytes: &[u8]| code.windows(bytes.len()).position(|window| window == bytes).unwrap();
            let inside = decoded(&code[at(BYTES[0]) + BYTES[0].len()..at(BYTES[1])]);
            let listed = lines[first..=back].iter().filter(|line| line.starts_with(' ')).count();
            assert!(inside.len() == listed && inside.iter().all(|i| !i.is_invalid()), "{}", path.display());
            assert!(inside.last().unwrap().is_jcc_short_or_near(), "{}", path.display());
            loops += 1;
        }
    }
    println!("{loops} loops between markers");
    assert!(loops >= 10, "{loops}");
}

/// Returns the contents of the only non-empty code section of an object file.
fn executable(object: &[u8]) -> Vec<u8> {
    let number = |at: usize, bytes: usize| -> usize {
        object[at..at + bytes].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
    };
    let (table, size, count) = (number(40, 8), number(58, 2), number(60, 2));
    let sections = (0..count).map(|i| table + i * size);
    // Finds sections that are PROGBITS, executable and not empty.
    let code = sections.filter(|at| number(at + 4, 4) == 1 && number(at + 8, 8) & 4 != 0 && number(at + 32, 8) > 0);
    let [at] = code.collect::<Vec<_>>()[..] else { panic!("another number of sections with code than one") };
    object[number(at + 24, 8)..number(at + 24, 8) + number(at + 32, 8)].to_vec()
}

/// Checks that the listing of a whole plan, one text, has no duplicate labels.
#[test]
fn listings_of_several_kernels_share_no_label() {
    let rows = ROWS.iter().filter(|row| KERNELS.contains(&row.name)).take(3);
    let kernels = rows.map(|row| generate(&row.spec().unwrap(), Target::AVX2).unwrap());
    let texts = kernels.enumerate().map(|(number, kernel)| {
        let compiled = x64::compile(&kernel, Target::AVX2).unwrap();
        listing::text_of_many(&compiled, &kernel, number)
    });
    let text = texts.collect::<Vec<_>>().join("\n");
    let labels: Vec<&str> = text.lines().filter_map(|line| line.strip_suffix(':')).collect();
    let different: std::collections::BTreeSet<&str> = labels.iter().copied().collect();
    assert!(labels.len() > 10 && different.len() == labels.len(), "{labels:?}");
    let Some(InstalledTool { program, .. }) = GNU_AS.find("listings of several kernels through GNU as") else { return };
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("listing-of-many.s");
    std::fs::write(&path, text).unwrap();
    let out = Command::new(program).args(["--64", "-o", "/dev/null"]).arg(&path).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Checks properties that assemblers need, without an assembler.
#[test]
fn listings_name_jump_targets_and_state_constants() {
    let row = ROWS.iter().find(|row| row.name == "silu").unwrap();
    let kernel = generate(&row.spec().unwrap(), Target::AVX2).unwrap();
    let compiled = x64::compile(&kernel, Target::AVX2).unwrap();
    let text = listing::text(&compiled, &kernel);
    println!("{text}");
    let code = |line: &str| line.split('#').next().unwrap_or_default().trim().to_owned();
    let lines: Vec<String> = text.lines().map(code).collect();
    let labels: Vec<&str> = lines.iter().filter_map(|line| line.strip_suffix(':')).collect();
    let named: Vec<&str> = lines
        .iter()
        .flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '.'))
        .filter(|word| word.starts_with(".L"))
        .collect();
    assert!(named.iter().any(|name| name.starts_with(".Lc")) && named.iter().any(|name| !name.starts_with(".Lc")));
    for name in named {
        assert!(labels.contains(&name), "{name} is no label");
    }
    // Other assemblers do not accept hexadecimal numbers with a trailing `h`.
    assert!(!lines.iter().any(|line| line.contains("h]") || line.contains(';')), "{text}");
    // The listed words and bytes make up all constants.
    let words: usize = lines.iter().filter_map(|line| Some(line.strip_prefix(".long")?.split(',').count())).sum();
    let bytes: usize = lines.iter().filter_map(|line| Some(line.strip_prefix(".byte")?.split(',').count())).sum();
    assert_eq!(4 * words + bytes, compiled.constants.len());
    assert!(!compiled.constants.is_empty());
}
