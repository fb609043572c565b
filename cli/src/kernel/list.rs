//! `ixc kernel list`: lists the built-in rows, or the kernels of a model.

use std::io::Write;

use ixc_compile::compile::TargetName;
use ixc_compile::select::{Role, Selection, Use, ranges};
use ixc_ir::kernel::Kernel;
use ixc_targets::{Lowering, Target};
use ixc_workbench::kernels::catalogue::{ROWS, Row};
use ixc_workbench::kernels::choose::{OfModel, is_model, kernels_of_model};
use ixc_workbench::kernels::generator::work;
use ixc_workbench::kernels::{KernelError, generate};
use serde_json::{Value as Json, json};

use super::super::Usage;
use super::super::model_name::ModelName;
use super::super::output::{self, Bytes, Printable, count_text};
use super::super::select::SelectChoice;

/// Lists the built-in kernels with spec, buffers and target on this machine, or a model's kernels
/// with their users.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc kernel list
  ixc kernel list swiglu --target amx
  ixc kernel list --model model.gguf --op ffn_down --layer 3
  ixc kernel list --json | jq '.kernels[].spec'")]
pub struct Args {
    /// List only kernels whose name or spec contains this text.
    filter: Option<String>,
    /// Target or CPU to generate code for: `native`, or a name that `ixc doctor` lists.
    #[arg(long, default_value = "native")]
    target: TargetName,
    /// List the kernels of this model or plan; `demo` is the built-in model.
    #[arg(short, long, value_name = "MODEL", value_parser = ModelName::parser())]
    model: Option<ModelName>,
    #[command(flatten)]
    select: SelectChoice,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let target = self.target.target;
        let filter = self.filter.as_deref().unwrap_or_default();
        let selection = self.select.selection();
        if let Some(model) = &self.model {
            return of_model(model, filter, target, &selection, self.json, out);
        }
        if !selection.is_all() {
            return Err(Usage("--op and --layer choose kernels of a model: they need --model".into()).into());
        }
        let rows = ROWS.iter().filter(|row| row.name.contains(filter) || row.text.contains(filter));
        let facts: Vec<(&Row, Result<Kernel, String>)> = rows
            .map(|row| {
                let spec = row.spec().map_err(|error| error.to_string());
                (row, spec.and_then(|spec| generate(&spec, target).map_err(|error| error.to_string())))
            })
            .collect();
        if facts.is_empty() {
            let filter = filter.to_owned();
            let error = match is_model(&filter) {
                true => KernelError::WholeModel { model: filter },
                false => KernelError::NoRow { filter },
            };
            return Err(ixc_error::Error::from(error).into());
        }
        let how = backend_name(target);
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
                    let said = |name: &str, kind| if name == kind { name.to_owned() } else { format!("{name} {kind}") };
                    let buffers =
                        sizes(row, kernel).map(|(name, kind, size)| format!("{} {}", said(name, kind), Bytes(size)));
                    let (buffers, rows) = (buffers.collect::<Vec<_>>(), count_text(u64::from(row.rows), "row"));
                    writeln!(out, "{:width$}  {:8}  with {rows}: {}", "", "", buffers.join(", "))?;
                }
                Err(problem) => writeln!(out, "{:width$}  {:8}  {problem}", "", "")?,
            }
        }
        Ok(())
    }
}

/// Lists the kernels of a model with their uses.
fn of_model(
    model: &ModelName,
    filter: &str,
    target: Target,
    selection: &Selection,
    json: bool,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let path = model.path().map_or_else(|| ixc_compile::demo::NAME.into(), |path| path.display().to_string());
    let mut kernels = kernels_of_model(model.path(), target, selection)?;
    let all: Vec<String> = kernels.iter().map(|kernel| kernel.name.clone()).collect();
    kernels.retain(|kernel| kernel.name.contains(filter) || kernel.spec.iter().any(|spec| spec.contains(filter)));
    if kernels.is_empty() {
        let (model, name) = (path, filter.to_owned());
        return Err(ixc_error::Error::from(KernelError::NotInModel { model, name, names: all }).into());
    }
    if json {
        let uses = |kernel: &OfModel| -> Vec<Json> {
            let each = |each: &Use| {
                json!({
                    "task": each.task,
                    "layers": each.layers,
                    "for": each.role.name(),
                    "from_rows": each.from_rows,
                    "to_rows": each.to_rows,
                })
            };
            kernel.uses.iter().map(each).collect()
        };
        let rows: Vec<Json> = (kernels.iter())
            .map(|kernel| json!({ "name": kernel.name, "spec": kernel.spec, "uses": uses(kernel) }))
            .collect();
        let facts = json!({ "model": path, "target": target.name(), "kernels": rows });
        return Ok(output::json(out, "ixc.kernel-list-of-model.v1", &facts)?);
    }
    for kernel in &kernels {
        writeln!(out, "{}", kernel.name)?;
        if let Some(spec) = &kernel.spec {
            writeln!(out, "    spec     {spec}")?;
        }
        if kernel.uses.is_empty() {
            writeln!(out, "    used     by no task")?;
        }
        for Use { task, layers, role, from_rows, to_rows } in &kernel.uses {
            let layers = match layers.len() {
                0 => String::new(),
                1 => format!(", layer {}", ranges(layers)),
                _ => format!(", layers {}", ranges(layers)),
            };
            let rows = match (from_rows, to_rows) {
                (1, None) => String::new(),
                (from, None) => format!(", from {from} rows"),
                (1, Some(to)) => format!(", up to {}", count_text(u64::from(*to), "row")),
                (from, Some(to)) => format!(", {from} to {to} rows"),
            };
            let role = if *role == Role::Rows { String::new() } else { format!(", {}", role.name()) };
            writeln!(out, "    used     {}{layers}{rows}{role}", Printable(task))?;
        }
    }
    Ok(())
}

/// Returns the way in which this machine runs the target's kernels.
fn backend_name(target: Target) -> &'static str {
    match target.isa().lowering {
        Lowering::Cranelift => "portable",
        Lowering::X64 if target.missing().is_empty() => "native",
        Lowering::X64 => "emulated",
    }
}

fn sizes<'k>(row: &Row, kernel: &'k Kernel) -> impl Iterator<Item = (&'k str, &'static str, u64)> {
    let dims = row.spec().map_or(Vec::new(), |spec| spec.dims_of_rows(row.rows));
    kernel.buffers.iter().map(move |buffer| {
        let size = work::evaluate(&buffer.size, &dims).map_or(0, |size| size.max(0).unsigned_abs());
        (buffer.name.as_str(), buffer.kind.keyword(), size)
    })
}

fn buffers(row: &Row, kernel: &Kernel) -> Vec<Json> {
    sizes(row, kernel).map(|(name, kind, size)| json!({ "name": name, "kind": kind, "bytes": size })).collect()
}
