//! Page about a model's compilation to machine code: one file that works without a network, for
//! `ixc inspect --html`.
//!
//! ```
//! use ixc_compile::{compile::CompileOptions, model::Model};
//! use ixc_workbench::report::Report;
//!
//! let model = Model::new(ixc_compile::demo::open()?)?;
//! let page = Report::of_model(&model, &CompileOptions::default())?.page();
//! assert!(page.starts_with("<!doctype html>") && page.len() < 8 << 20);
//! # Ok::<(), ixc_workbench::Error>(())
//! ```
//!
//! | module | what it collects |
//! | --- | --- |
//! | [`fold`] | equal layers, shown once |
//! | [`graph`] | graphs after passes |
//! | [`passes`] | changes by each pass |
//! | [`plan`] | weights, steps, buffers, states, experts in memory over time |
//! | [`kernels`] | IR, instructions, costs |
//! | [`trace`] | measurements of a run |
//!
//! The script of `page.html` draws the page from the collected data.
//!
//! Invariant: text from models is data, never markup. The page holds it as JSON that cannot end its
//! script, and shows it as text nodes. The page's policy refuses every other script, style and
//! address.

mod fold;
mod graph;
mod kernels;
mod passes;
mod plan;
mod trace;

use std::path::Path;

use ixc_files::Kind;
use ixc_ir::graph::Module;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Plan;
use ixc_kernels::generate;
use ixc_model_files::gguf::Gguf;
use ixc_passes::manager::{Ir, PASSES};
use ixc_runtime::load;
use ixc_targets::Target;
use serde::Serialize;

use crate::Error;
use crate::kernels::roofline;
use ixc_compile::compile::{CompileOptions, passes_left};
use ixc_compile::model::Model;

/// The page, with placeholders for title and data.
const PAGE: &str = include_str!("page.html");
/// Mark of the page's generator.
const GENERATOR: &str = r#"<meta name="generator" content="ixc inspect">"#;

/// File kind of a report page.
pub const KIND: Kind = Kind {
    name: "page of a model or plan",
    is: |head| head.windows(GENERATOR.len()).any(|window| window == GENERATOR.as_bytes()),
    streams: true,
    private: false,
};

/// Data of the page.
#[derive(Debug, Serialize)]
pub struct Report {
    title: String,
    made_by: String,
    /// Kind of the input: `model` or `plan`.
    of: &'static str,
    facts: Vec<(&'static str, String)>,
    notes: Vec<String>,
    graphs: Vec<graph::Graph>,
    passes: Vec<passes::Ran>,
    tensors: Vec<plan::Tensor>,
    plan: Option<plan::PlanView>,
    kernels: Vec<kernels::KernelView>,
    trace: Option<trace::TraceView>,
    #[serde(skip)]
    target: Option<Target>,
    /// Error that stopped the compilation.
    #[serde(skip)]
    pub failed: Option<Error>,
}

impl Report {
    fn new(title: String, of: &'static str) -> Report {
        Report {
            title,
            made_by: concat!("ixc ", env!("CARGO_PKG_VERSION")).to_owned(),
            of,
            facts: Vec::new(),
            notes: Vec::new(),
            graphs: Vec::new(),
            passes: Vec::new(),
            tensors: Vec::new(),
            plan: None,
            kernels: Vec::new(),
            trace: None,
            target: None,
            failed: None,
        }
    }

    /// Creates the report of a model, compiled with these options. If a pass fails, the report has
    /// the stages before it, and the error.
    ///
    /// # Errors
    /// If the target has no kernel for a spec, or no code for a kernel.
    pub fn of_model(model: &Model, options: &CompileOptions) -> Result<Report, Error> {
        let mut report = Report::new(title(&model.gguf), "model");
        let start =
            options.start.as_ref().map_or_else(|| Ir::Graph(model.arch.module.clone()), |start| start.ir.clone());
        let after = options.start.as_ref().and_then(|start| start.after);
        let mut watch = passes::Watch::new(&start);
        let mut last: Option<Module> = None;
        if let Ir::Graph(module) = &start {
            report.graphs.push(graph::Graph::from_module(module, after));
            last = Some(module.clone());
        }
        let end = PASSES.last().map(|pass| pass.name);
        let left = passes_left(model, options, end, &mut |pass, ir, changed| {
            watch.see(pass, ir, changed);
            if let (Ir::Graph(module), true) = (ir, changed) {
                report.graphs.push(graph::Graph::from_module(module, Some(pass.name)));
                last = Some(module.clone());
            }
        });
        report.passes = watch.ran;
        let target = options.target();
        report.target = Some(target);
        report.facts.push(("Model", model.gguf.metadata().path().display().to_string()));
        match left {
            Ok(Ir::Plan(specs)) => {
                let mut plan = specs.clone().try_map_kernels(|spec| generate(&spec, target))?;
                let replaced = options.kernels.put_into(&mut plan)?;
                report.kernels = kernels::views(&plan, Some(&specs.kernels), &replaced, target)?;
                report.of_finished(&plan, last.as_ref());
                if !replaced.is_empty() {
                    report.notes.push(format!("Kernels that were edited: {}.", replaced.join(", ")));
                }
            }
            Ok(Ir::Graph(_) | Ir::Draft(_)) => {}
            Err(error) => {
                report.notes.push(format!("Compiling failed: {error}. This page has the results until then."));
                report.failed = Some(error.into());
            }
        }
        Ok(report)
    }

    /// Creates the report of a plan, without the changes by passes, which a plan does not contain.
    ///
    /// # Errors
    /// For a plan that loading would refuse.
    pub fn of_plan(path: &Path, plan: &Plan<Kernel>) -> Result<Report, Error> {
        load::verify(plan)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut report = Report::new(format!("{name} ({})", plan.architecture), "plan");
        let target = Target::from_name(&plan.target);
        let unknown = || load::LoadError::Target { found: plan.target.clone() };
        report.target = target;
        report.facts.push(("Plan", path.display().to_string()));
        report.kernels = kernels::views(plan, None, &[], target.ok_or_else(unknown)?)?;
        report.of_finished(plan, None);
        report.notes.push(
            "This page is of a plan, which holds no graph, so passes are not shown. The page of the model itself shows them.".to_owned(),
        );
        Ok(report)
    }

    fn of_finished(&mut self, plan: &Plan<Kernel>, graph: Option<&Module>) {
        self.facts.extend(plan::facts(plan));
        self.tensors = plan::tensors(plan, graph);
        self.plan = Some(plan::PlanView::from_plan(plan));
    }

    /// Adds the measurements of a trace. If this machine runs the code, adds its peak rates with
    /// the same number of threads.
    ///
    /// # Errors
    /// If the file is not a trace.
    pub fn add_trace(&mut self, trace: &Path) -> Result<(), Error> {
        let mut view = trace::TraceView::read(trace)?;
        let here = self.target.filter(|target| target.missing().is_empty());
        // A file may name more threads than can be started.
        let here_at_most = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let limits = here.map(|target| roofline::measure(target, view.threads().clamp(1, here_at_most), None));
        view.limits = limits.filter(|limits| limits.bytes_per_second.is_some());
        self.trace = Some(view);
        Ok(())
    }

    /// Returns the page.
    pub fn page(&self) -> String {
        // Serialisation cannot fail, since there are only numbers, strings and lists. Without `<`,
        // no text can end the script around it, or begin a comment there.
        let json = serde_json::to_string(self).unwrap_or_else(|_| "null".to_owned());
        ixc_files::page::fill_page(PAGE, &self.title, &json)
    }
}

/// Returns a model's name.
fn title(gguf: &Gguf) -> String {
    let name = gguf.metadata().read_optional::<&str>("general.name").ok().flatten().map(str::to_owned);
    let file = || gguf.metadata().path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.filter(|name| !name.trim().is_empty()).unwrap_or_else(file).chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds everything that the policy would block silently, and markup from a model's text.
    #[test]
    fn page_has_no_content_forbidden_by_its_policy() {
        assert_eq!(ixc_testing::pages::forbidden(PAGE, "ixc"), [""; 0]);
        assert!((KIND.is)(PAGE.as_bytes()) && !(ixc_dataflow::page::KIND.is)(PAGE.as_bytes()));
    }

    #[test]
    fn data_cannot_break_out() {
        let mut report = Report::new("@DATA@</script><b>&".to_owned(), "model");
        report.notes.push("<!--<script>@TITLE@".to_owned());
        let page = report.page();
        assert!(page.contains("<title>@DATA@&lt;/script>&lt;b>&amp;"));
        let start = page.find("id=\"data\">").unwrap() + "id=\"data\">".len();
        let data = &page[start..start + page[start..].find('<').unwrap()];
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!((&data["title"], &data["notes"][0]), (&"@DATA@</script><b>&".into(), &"<!--<script>@TITLE@".into()));
    }
}
