//! Export of a bundle: the whole folder is written, or nothing.

use ixc_codegen::foreign;
use ixc_files::NewFolder;
use ixc_ir::kernel::BufferKind;
use ixc_kernels::catalogue::compare::elements;
use ixc_kernels::catalogue::inputs::POISON;
use ixc_kernels::generator::work::evaluate;

use super::index::{self, Buffer, BufferAccess, Call, Code, Dim, Elements, File, Index};
use crate::Error;
use crate::kernels::run::Case;
use crate::kernels::show;

/// Alignment of the code's address.
const ALIGNMENT: u64 = 64;

/// Writes a case to a new folder, and returns its index.
///
/// # Errors
/// If the target has no native code for the kernel, the interpreter stops, or the file system
/// fails. The folder is then removed.
pub fn write(case: &Case, folder: NewFolder) -> Result<Index, Error> {
    let compiled = show::compile_x64(&case.chosen, "an export")?;
    let expected = case.expected_buffers()?;
    let kernel = &case.chosen.kernel;
    let put = |name: String, bytes: &[u8]| -> Result<File, Error> {
        folder.put(&name, bytes)?;
        Ok(File { file: name, bytes: bytes.len() as u64, crc32: format!("{:08x}", crc32fast::hash(bytes)) })
    };
    let whole = [compiled.code.as_slice(), compiled.constants.as_slice()].concat();
    let code = Code {
        file: put("code.bin".into(), &whole)?,
        instruction_bytes: compiled.code_bytes as u64,
        entry: 0,
        alignment: ALIGNMENT,
    };
    let mut buffers = Vec::new();
    let contents = case.before.iter().zip(&expected).zip(elements(kernel));
    for (i, (buffer, ((before, after), elem))) in kernel.buffers.iter().zip(contents).enumerate() {
        let kind = BufferAccess::from_kind(&buffer.kind);
        let file = |lead: &str| format!("{lead}_{i}_{}.bin", file_name_part(&buffer.name));
        // Output buffers are filled with the poison value, which needs no file.
        let filled = before.iter().all(|byte| *byte == POISON);
        let compared = kind.is_written() && kind != BufferAccess::Scratch;
        buffers.push(Buffer {
            name: buffer.name.clone(),
            kind,
            bytes: before.len() as u64,
            elements: Elements::from_elem(elem),
            below: match &buffer.kind {
                BufferKind::Index { below } => evaluate(below, &case.dims),
                _ => None,
            },
            input: if filled { None } else { Some(put(file("in"), before)?) },
            fill: POISON,
            expected: if compared { Some(put(file("out"), after)?) } else { None },
        });
    }
    put("kernel.ix".into(), kernel.to_string().as_bytes())?;
    put("listing.txt".into(), show::text(&case.chosen, show::Stage::Asm)?.as_bytes())?;
    let dims = kernel.dims.iter().zip(&case.dims);
    let index = Index {
        format: index::FORMAT.into(),
        version: index::VERSION,
        ixc: env!("CARGO_PKG_VERSION").into(),
        kernel: kernel.name.clone(),
        spec: case.chosen.spec.as_ref().map(ToString::to_string),
        target: case.chosen.target.name().into(),
        features: foreign::features(&compiled.code[..compiled.code_bytes])
            .iter()
            .map(|feature| feature.name().into())
            .collect(),
        code,
        call: Call {
            convention: "sysv64".into(),
            arguments: vec![
                "rdi: pointer to one pointer for each of `buffers`, in their order".into(),
                "rsi: pointer to one 64-bit integer for each of `dims`, in their order".into(),
            ],
        },
        dims: dims.map(|(dim, &value)| Dim { name: dim.name.clone(), value, lo: dim.lo, hi: dim.hi }).collect(),
        buffers,
    };
    // Serialisation cannot fail, since the index has only numbers, strings and lists.
    let mut text = serde_json::to_vec_pretty(&index).unwrap_or_default();
    text.push(b'\n');
    put(index::FILE.into(), &text)?;
    folder.finish()?;
    Ok(index)
}

/// Converts a buffer's name to a part of a file's name.
fn file_name_part(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(32).collect()
}
