//! `ixc kernel list`: the built-in rows.

use std::io::Write;

use ixc::compile::TargetName;
use ixc::ir::kernel::Kernel;
use ixc::kernels::catalogue::inputs;
use ixc::kernels::catalogue::{ROWS, Row};
use ixc::kernels::{KernelError, generate};
use ixc::targets::{Lowering, Target};
use serde_json::{Value as Json, json};

use super::super::output::{self, Bytes};

/// Lists the built-in kernels: name, spec, buffers, and how each runs here.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc kernel list
  ixc kernel list swiglu --target amx
  ixc kernel list --json | jq '.kernels[].spec'")]
pub struct Args {
    /// Only rows whose name or spec contains this.
    filter: Option<String>,
    /// What to generate code for: native, a target or a CPU (`ixc doctor` lists them).
    #[arg(long, default_value = "native", env = "IXC_TARGET", hide_env_values = true)]
    target: TargetName,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let target = self.target.target;
        let filter = self.filter.as_deref().unwrap_or_default();
        let rows = ROWS.iter().filter(|row| row.name.contains(filter) || row.text.contains(filter));
        let facts: Vec<(&Row, Result<Kernel, String>)> = rows
            .map(|row| {
                let spec = row.spec().map_err(|error| error.to_string());
                (row, spec.and_then(|spec| generate(&spec, target).map_err(|error| error.to_string())))
            })
            .collect();
        if facts.is_empty() {
            let names = ROWS.iter().map(|row| row.name).collect();
            return Err(ixc::Error::from(KernelError::NoRow { filter: filter.to_owned(), names }).into());
        }
        let how = how(target);
        if self.json {
            let rows: Vec<Json> = facts
                .iter()
                .map(|(row, kernel)| {
                    let buffers = kernel.as_ref().ok().map(|kernel| buffers(row, kernel));
                    json!({
                        "name": row.name,
                        "spec": row.text,
                        "rows": row.rows,
                        "target": target.name(),
                        "runs": if kernel.is_ok() { how } else { "not" },
                        "problem": kernel.as_ref().err(),
                        "kernel": kernel.as_ref().ok().map(|kernel| &kernel.name),
                        "buffers": buffers,
                    })
                })
                .collect();
            return Ok(output::json(out, "ixc.kernel-list.v1", &json!({ "kernels": rows }))?);
        }
        let width = facts.iter().map(|(row, _)| row.name.len()).max().unwrap_or(0);
        for (row, kernel) in &facts {
            writeln!(out, "{:width$}  {:8}  {}", row.name, if kernel.is_ok() { how } else { "not" }, row.text)?;
            match kernel {
                Ok(kernel) => {
                    let buffers: Vec<String> =
                        sizes(row, kernel).map(|(name, kind, size)| format!("{name} {kind} {}", Bytes(size))).collect();
                    writeln!(out, "{:width$}  {:8}  with {} rows: {}", "", "", row.rows, buffers.join(", "))?;
                }
                Err(problem) => writeln!(out, "{:width$}  {:8}  {problem}", "", "")?,
            }
        }
        Ok(())
    }
}

/// How this machine runs the target's kernels.
fn how(target: Target) -> &'static str {
    match target.isa().lowering {
        Lowering::Cranelift => "portable",
        Lowering::X64 if target.missing().is_empty() => "native",
        Lowering::X64 => "emulated",
    }
}

fn sizes<'k>(row: &Row, kernel: &'k Kernel) -> impl Iterator<Item = (&'k str, &'static str, u64)> {
    let dims = row.spec().map_or(Vec::new(), |spec| spec.dims_of_rows(row.rows));
    kernel.buffers.iter().map(move |buffer| {
        let size = inputs::evaluate(&buffer.size, &dims).map_or(0, |size| size.max(0).unsigned_abs());
        (buffer.name.as_str(), buffer.kind.keyword(), size)
    })
}

fn buffers(row: &Row, kernel: &Kernel) -> Vec<Json> {
    sizes(row, kernel).map(|(name, kind, size)| json!({ "name": name, "kind": kind, "bytes": size })).collect()
}
