//! The references in `docs/` are generated from the tables in the code. This test fails if they
//! differ; with `IXC_BLESS=1` it rewrites them.

use std::fmt::Write as _;
use std::path::Path;

use ixc_ir::graph::op::{AttrKind, Effect, OPS as GRAPH_OPS, OperandKind};
use ixc_ir::kernel::op::{ImmKind, Memory, OPS as KERNEL_OPS};
use ixc_ir::state::STATES;

/// Returns text for a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn graph_ops() -> String {
    let mut out = String::from(
        "# Graph ops\n\nGenerated from the op table in `ir/src/graph/op.rs`. The interpreter in `ir/src/graph/interpret.rs` defines each op.\n\n\
         `T` is the number of rows (tokens) of a step. `%x` is a value, `@w` a weight or state; operands in brackets may be absent. Attributes with a type in\n\
         brackets are 0 if absent. A shape after a colon is the result's.\n\n\
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
        "\n## States\n\nGenerated from the table of kinds in `ir/src/state.rs`. A state lasts from step to step; `state @name : kind fields` declares it.\n\n\
         | kind | fields | rollback | `window` | shared prefixes | meaning |\n| --- | --- | --- | --- | --- | --- |\n",
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
        "# Kernel ops\n\nGenerated from the op table in `ir/src/kernel/op.rs`. The interpreter in `ir/src/kernel/interpret.rs` defines each op,\n\
         and all targets compute the same bits. A chunk is 16 bytes of a vector. `codegen/tests/lower/` has the code of each op\n\
         for each target.\n\n\
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
            Memory::Hint => "hint",
        };
        let _ = writeln!(out, "| `{}` | {} | {imm} | {memory} | {} |", row.mnemonic, row.operands, cell(row.doc));
    }
    out
}

fn formats() -> String {
    let mut out = String::from(
        "# Block formats\n\nGenerated from the format table in `ir/src/format.rs`. `name @ offset` is a field and its byte offset in a block. Some formats have \
         more fields after the last block of a row, or of a packed strip of 16 rows.\n\n| format | GGUF type | elements | bytes | bits per element | fields | activations |\n| --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in ixc_ir::format::FORMATS {
        let mut fields: Vec<String> = row.fields.iter().map(|f| format!("{} @ {}", f.name, f.offset)).collect();
        let whose = if row.rows > 1 { "strip" } else { "row" };
        fields.extend(row.tail.iter().map(|f| format!("{} @ {} after the {whose}", f.name, f.offset)));
        let none = match (row.rows, row.format.is_weight()) {
            (1, true) if row.format.has_row_scale() => "none: requantised by ixc",
            (1, true) => "none: from checkpoints",
            (1, false) => "none: activations only",
            _ => "none: packed by ixc",
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
        "# Passes\n\nGenerated from the list of passes in `passes/src/manager.rs` and the options in the files of the passes. Passes run in this order.\n\
         `ixc dump MODEL --after PASS` prints the result of a pass, and `ixc opt` continues from there. `--set PASS.KEY=VALUE` sets an option.\n\
         For dataflow targets the tasks from `lower` are cut into pieces, and `place` puts the pieces on a grid: see [dataflow.md](dataflow.md).\n\
         The file of a pass starts with its requirements, its guarantees and an example.\n\n| pass | what it does |\n| --- | --- |\n",
    );
    let mut options = String::from("\n| option | meaning | default |\n| --- | --- | --- |\n");
    for pass in ixc_passes::manager::PASSES {
        let _ = writeln!(out, "| `{}` | {} |", pass.name, cell(pass.doc));
        for row in pass.options {
            let default = (row.default)();
            let default = if default.is_empty() { "empty".to_string() } else { format!("`{default}`") };
            let _ = writeln!(options, "| `{}.{}` | {} | {default} |", pass.name, row.key, cell(row.doc));
        }
    }
    out + &options
}

fn targets() -> String {
    let mut out = String::from(
        "# Targets\n\nGenerated from the target table in `targets/src/target.rs`. `native` selects the target with the most features among those \
         that the machine supports.\n\n| target | lowering | CPU features | vector registers | tile registers | L1d, L2, L3 per core in KiB | L2 ways | L3 contents | CPUs |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
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
            row.caches.l1d_kib,
            row.caches.l2_kib,
            row.caches.l3_kib,
            row.caches.l2_ways,
            row.caches.third.description(),
            row.about
        );
    }
    out
}

fn chat_templates() -> String {
    let mut out = String::from(
        "# Chat templates\n\nGenerated from the table in `frontend/text/src/template/known.rs`: the names that `--chat-template` accepts. Each template in \
         `frontend/text/src/template/known/` cites the description of its format.\n\n| name | models |\n| --- | --- |\n",
    );
    for known in ixc::text::template::known::KNOWN {
        let _ = writeln!(out, "| `{}` | {} |", known.name, cell(known.models));
    }
    out
}

/// Returns the descriptor's JSON Schema, with the documentation of every field.
fn descriptor_schema() -> String {
    let schema = schemars::schema_for!(ixc_dataflow::descriptor::Descriptor);
    serde_json::to_string_pretty(&schema).unwrap() + "\n"
}

#[test]
fn reference_pages_match_the_tables() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    for (name, text) in [
        ("graph-ops.md", graph_ops()),
        ("kernel-ops.md", kernel_ops()),
        ("formats.md", formats()),
        ("passes.md", passes()),
        ("targets.md", targets()),
        ("chat-templates.md", chat_templates()),
        ("api-fields.md", ixc_serve::http::request_fields::markdown()),
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
            "{} differs from the tables: IXC_BLESS=1 cargo test --workspace --test whole reference::",
            path.display()
        );
    }
}
