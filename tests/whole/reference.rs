//! The references in `docs/` are generated from the tables in the code. This test fails where they differ; with
//! `IXC_BLESS=1` it rewrites them.

use std::fmt::Write as _;
use std::path::Path;

use ixc_ir::graph::op::{AttrKind, Effect, OPS as GRAPH_OPS, OperandKind};
use ixc_ir::kernel::op::{ImmKind, Memory, OPS as KERNEL_OPS};
use ixc_ir::state::STATES;

/// Text for a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn graph_ops() -> String {
    let mut out = String::from(
        "# Graph ops\n\nGenerated from the op table in `ir/src/graph/op.rs`. The interpreter in `ir/src/graph/interpret.rs` is each op's definition.\n\n\
         | op | operands | attributes | results | effects | meaning |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    for row in GRAPH_OPS {
        let operands: Vec<String> = row
            .operands
            .iter()
            .map(|o| match o.kind {
                OperandKind::Value => format!("%{}", o.name),
                OperandKind::Weight | OperandKind::State => format!("@{}", o.name),
                OperandKind::OptValue => format!("[%{}]", o.name),
                OperandKind::OptWeight => format!("[@{}]", o.name),
            })
            .collect();
        let attrs: Vec<String> = row
            .attrs
            .iter()
            .map(|a| {
                let kind = match a.kind {
                    AttrKind::Int => "int".to_string(),
                    AttrKind::OptInt => "[int]".to_string(),
                    AttrKind::Float => "float".to_string(),
                    AttrKind::OptFloat => "[float]".to_string(),
                    AttrKind::Bool => "bool".to_string(),
                    AttrKind::Format => "format".to_string(),
                    AttrKind::Word(words) => words.join(" or "),
                };
                format!("{}: {kind}", a.name)
            })
            .collect();
        let effect = match row.effect {
            Effect::Pure => "pure",
            Effect::State => "state",
        };
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} | {effect} | {} |",
            row.mnemonic,
            operands.join(", "),
            attrs.join(", "),
            row.results,
            cell(row.doc)
        );
    }
    out.push_str(
        "\n## States\n\nGenerated from the table of kinds in `ir/src/state.rs`: what lasts from step to step, declared as `state @name : kind fields`.\n\n\
         | kind | fields | back to an earlier position | `window` | shared prefixes | meaning |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    let yes = |is: bool| if is { "yes" } else { "no" };
    for row in STATES {
        let fields = row.fields.iter().map(|field| {
            let dims = if field.positions { "[columns, S, width]" } else { "[...]" };
            format!("{}: {}{dims}", field.name, field.formats())
        });
        let rollbacks: Vec<&str> = row.rollbacks.iter().map(|rollback| rollback.word()).collect();
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} | {} | {} |",
            row.name,
            fields.collect::<Vec<_>>().join(", "),
            rollbacks.join(" or "),
            yes(row.windowed),
            yes(row.shared),
            cell(row.doc)
        );
    }
    out
}

fn kernel_ops() -> String {
    let mut out = String::from(
        "# Kernel ops\n\nGenerated from the op table in `ir/src/kernel/op.rs`. The interpreter in `ir/src/kernel/interpret.rs` is each op's definition;\n\
         every target gives the same bits. A chunk is 16 bytes of a vector. What each becomes on each\n\
         target stands in `codegen/tests/lower/`.\n\n\
         | op | operands | immediate | memory | meaning |\n| --- | --- | --- | --- | --- |\n",
    );
    for row in KERNEL_OPS {
        let imm = match row.imm {
            ImmKind::None => "",
            ImmKind::Scalar => "scalar",
            ImmKind::Int => "int",
            ImmKind::Bytes => "bytes",
        };
        let memory = match row.memory {
            Memory::None => "",
            Memory::Load => "load",
            Memory::LoadElement => "load of one element",
            Memory::Store => "store",
            Memory::LoadRows => "load of rows",
            Memory::StoreRows => "store of rows",
            Memory::Index => "affine value",
            Memory::Hint => "none",
        };
        let _ = writeln!(out, "| `{}` | {} | {imm} | {memory} | {} |", row.mnemonic, row.operands, cell(row.doc));
    }
    out
}

fn formats() -> String {
    let mut out = String::from(
        "# Block formats\n\nGenerated from the format table in `ir/src/format.rs`. Fields are at byte offsets of a block; some formats have more behind \
         the blocks of a row, or of a packed strip of 16.\n\n| format | GGUF type | elements | bytes | bits per element | fields | activations |\n| --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in ixc_ir::format::FORMATS {
        let mut fields: Vec<String> = row.fields.iter().map(|f| format!("{} @ {}", f.name, f.offset)).collect();
        let whose = if row.rows > 1 { "strip" } else { "row" };
        fields.extend(row.tail.iter().map(|f| format!("behind a {whose} {} @ {}", f.name, f.offset)));
        let none = match (row.rows, row.format.is_weight()) {
            (1, true) if row.format.has_row_scale() => "none: ixc requantises",
            (1, true) => "none: of checkpoints",
            (1, false) => "none: activations only",
            _ => "none: ixc packs",
        };
        let id = row.gguf_id.map_or(none.to_string(), |id| id.to_string());
        let _ = writeln!(
            out,
            "| `{}` | {id} | {} | {} | {} | {} | `{}` |",
            row.name,
            row.block_len,
            row.block_bytes,
            row.block_bytes as f64 * 8.0 / row.block_len as f64,
            fields.join(", "),
            row.activation
        );
    }
    out
}

fn passes() -> String {
    let mut out = String::from(
        "# Passes\n\nGenerated from the list of passes in `passes/src/manager.rs` and the options in each pass's file; they are run in this order.\n\
         `ixc dump MODEL --after PASS` shows what one leaves, and `ixc opt` goes on from there. Options are set by `--set PASS.KEY=VALUE`.\n\
         For dataflow targets the tasks that `lower` leaves are cut into pieces, and `place` puts these on a grid: see [dataflow.md](dataflow.md).\n\
         Each pass's file opens with what it needs, what it leaves true, and an example before and after.\n\n| pass | what it does |\n| --- | --- |\n",
    );
    let mut options = String::from("\n| option | what it says | default |\n| --- | --- | --- |\n");
    for pass in ixc_passes::manager::PASSES {
        let _ = writeln!(out, "| `{}` | {} |", pass.name, cell(pass.doc));
        for row in pass.options {
            let default = (row.default)();
            let default = if default.is_empty() { "nothing".to_string() } else { format!("`{default}`") };
            let _ = writeln!(options, "| `{}.{}` | {} | {default} |", pass.name, row.key, cell(row.doc));
        }
    }
    out + &options
}

fn targets() -> String {
    let mut out = String::from(
        "# Targets\n\nGenerated from the target table in `targets/src/target.rs`. `native` is the one with the most features that the machine \
         has all of.\n\n| target | lowering | CPU features | vectors | tiles | L1d, L2, L3 of a core in KiB | ways of L2 | L3 | what it is |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in ixc_targets::TARGETS {
        let features: Vec<_> = row.features.iter().map(|f| f.name()).collect();
        let features = if features.is_empty() { "none".to_string() } else { features.join(", ") };
        let _ = writeln!(
            out,
            "| `{}` | {:?} | {features} | {} of {} bytes | {} | {}, {}, {} | {} | {} | {} |",
            row.name,
            row.isa.lowering,
            row.isa.vector_registers,
            row.isa.vector_bytes,
            row.isa.tile_registers,
            row.l1d_kib,
            row.l2_kib,
            row.l3_kib,
            row.l2_ways,
            row.third.about(),
            row.about
        );
    }
    out
}

fn chat_templates() -> String {
    let mut out = String::from(
        "# Chat templates\n\nGenerated from the table in `frontend/text/src/template/known.rs`: what `--chat-template` takes by name. The sources in \
         `frontend/text/src/template/known/` say where each format is described.\n\n| name | models |\n| --- | --- |\n",
    );
    for known in ixc::text::template::known::KNOWN {
        let _ = writeln!(out, "| `{}` | {} |", known.name, cell(known.models));
    }
    out
}

/// The descriptor's JSON Schema, with the documentation of every field.
fn descriptor_schema() -> String {
    let schema = schemars::schema_for!(ixc_dataflow::descriptor::Descriptor);
    serde_json::to_string_pretty(&schema).unwrap() + "\n"
}

#[test]
fn references_are_what_the_tables_say() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    for (name, text) in [
        ("graph-ops.md", graph_ops()),
        ("kernel-ops.md", kernel_ops()),
        ("formats.md", formats()),
        ("passes.md", passes()),
        ("targets.md", targets()),
        ("chat-templates.md", chat_templates()),
        ("api-fields.md", ixc_server::request_fields::markdown()),
        ("support.md", ixc::support::Support::here().markdown()),
        ("dataflow-descriptor.schema.json", descriptor_schema()),
    ] {
        let path = docs.join(name);
        if ixc_testing::bless::is_asked_for() {
            std::fs::write(&path, &text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == text,
            "{} is not what the tables say: IXC_BLESS=1 cargo test --test whole reference::",
            path.display()
        );
    }
}
