//! The page of `ixc inspect --html`, tested in a browser if one is installed.

use std::fs;
use std::path::{Path, PathBuf};

use ixc::compile::{CompileOptions, compile};
use ixc::ir::plan::Step;
use ixc::model::Model;
use ixc::runtime::file;
use ixc::targets::Target;
use ixc_testing::tools::CHROMIUM;
use serde_json::{Value, json};

use crate::support::browser::Browser;
use crate::support::headers::REAL_SHAPES;
use crate::support::{demo_model, ixc, scratch, stderr, stdout};

/// Returns the path for a screenshot of the page, for manual inspection.
fn picture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("report-{name}.png"))
}

/// Starts a browser, or prints that the test did not run.
fn browser(test: &str) -> Option<Browser> {
    let found = CHROMIUM.find(&format!("report::{test}"))?;
    let mut browser = Browser::start(&found.program, &format!("report_{test}"));
    browser.resize(1280, 900, "light");
    Some(browser)
}

fn open(browser: &mut Browser, page: &Path) {
    browser.open(&format!("file://{}", page.display()));
    browser.until("document.documentElement.dataset.ready === 'yes'");
}

/// Opens a view by its tab.
fn tab(browser: &mut Browser, id: &str) {
    browser.evaluate(&format!("document.querySelector('#tabs a[href=\"#{id}\"]').click(); 0"));
    browser.until(&format!("document.getElementById('view-{id}').classList.contains('on')"));
}

fn text(browser: &mut Browser, selector: &str) -> String {
    let value = browser.evaluate(&format!("document.querySelector({}).innerText", json!(selector)));
    value.as_str().unwrap().to_owned()
}

fn count(browser: &mut Browser, selector: &str) -> u64 {
    browser.evaluate(&format!("document.querySelectorAll({}).length", json!(selector))).as_u64().unwrap()
}

/// Returns the data of a page.
fn data(page: &Path) -> Value {
    let page = fs::read_to_string(page).unwrap();
    let start = page.find("id=\"data\">").unwrap() + "id=\"data\">".len();
    serde_json::from_str(&page[start..start + page[start..].find('<').unwrap()]).unwrap()
}

const VIEWS: [&str; 8] = ["summary", "graph", "passes", "tensors", "memory", "kernels", "residency", "measured"];

/// Checks that all views of the page work, for the demo model with a trace.
#[test]
fn all_report_views_work_in_a_browser() {
    let folder = scratch("report_views");
    let (trace, page) = (folder.join("trace.json"), folder.join("page.html"));
    let mut run = ixc(["run", "--raw", "-p", "The borrow checker", "-n", "6", "--temp", "0", "-t", "2", "--trace"]);
    run.arg(&trace).arg(demo_model());
    stdout(run);
    let mut inspect = ixc(["inspect", "--html"]);
    inspect.arg(&page).arg("--trace").arg(&trace).arg(demo_model());
    assert!(stdout(inspect).starts_with(&page.display().to_string()));
    let facts = data(&page);
    let kernels = facts["kernels"].as_array().unwrap();
    // Names of kernels are unique, and each stage shows equal layers only once.
    let names: std::collections::BTreeSet<&str> =
        kernels.iter().map(|kernel| kernel["name"].as_str().unwrap()).collect();
    assert!(names.len() == kernels.len() && kernels.len() > 10);
    for graph in facts["graphs"].as_array().unwrap() {
        assert_eq!(graph["folded"]["places"].as_array().unwrap().len(), 6);
        assert!(graph["folded"]["bodies"].as_array().unwrap().len() <= 5);
    }
    let Some(mut browser) = browser("all_report_views_work_in_a_browser") else { return };
    open(&mut browser, &page);
    for view in VIEWS {
        tab(&mut browser, view);
        assert!(text(&mut browser, &format!("#view-{view}")).len() > 40, "{view}");
        assert_eq!(browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), true, "{view}");
        browser.picture(&picture(&format!("{view}-light")));
    }

    // In the graph view, layers fold. An op shows its users, weights and kernels. A search finds
    // other ops.
    tab(&mut browser, "graph");
    assert_eq!(count(&mut browser, "#strip button"), 4);
    browser.evaluate("document.querySelectorAll('#strip button')[2].click(); 0");
    browser.until("document.querySelector('#cards details[data-section=\"2\"]')?.open === true");
    assert_eq!(count(&mut browser, "#cards button.folded"), 2);
    browser.evaluate(
        "{ const op = [...document.querySelectorAll('#cards details[data-section=\"2\"] .op')].find(op => op.getAttribute('aria-label').startsWith('expert.down'));
           op.dispatchEvent(new MouseEvent('click', { bubbles: true })); 0 }",
    );
    browser.until("document.querySelector('#op h2')?.innerText === 'expert.down'");
    let told = text(&mut browser, "#op");
    for expected in ["layer 2", "@blk.2.ffn_down_exps.weight", "f32[T, 256]", "layer 3", "of a token"] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    assert!(count(&mut browser, "#op a[href^='#kernels/']") >= 2);
    assert!(count(&mut browser, "#cards .op.near") >= 3 && count(&mut browser, "#cards .op.chosen") == 1);
    browser.picture(&picture("graph-op"));
    browser.evaluate("{ const s = document.getElementById('graph-search'); s.value = 'layer 3 attention'; s.dispatchEvent(new Event('input')); 0 }");
    assert_eq!(text(&mut browser, "#graph-results").lines().last(), Some("1 op"));
    browser.evaluate("document.querySelector('#graph-results a').click(); 0");
    browser.until("document.querySelector('#op h2')?.innerText === 'attention'");
    let stages = browser.evaluate("[...document.querySelectorAll('#view-graph select option')].map(o => o.value)");
    assert_eq!(stages[0], "frontend");
    browser.evaluate("{ const s = document.querySelector('#view-graph select'); s.value = 'frontend'; s.dispatchEvent(new Event('change')); 0 }");
    browser.until("[...document.querySelectorAll('#cards .op .name')].some(node => node.textContent === 'dequantise')");

    // The link to a weight opens the weight's row, which links to its kernels.
    browser.evaluate("location.hash = '#tensors/blk.2.ffn_down_exps.weight'");
    browser.until("document.querySelector('#tensor h2')?.innerText === 'blk.2.ffn_down_exps.weight'");
    browser.evaluate("{ const s = document.getElementById('tensor-filter'); s.value = 'blk.1. q4_k'; s.dispatchEvent(new Event('input')); 0 }");
    assert!(text(&mut browser, "#tensor-count").starts_with("7 tensors"), "{}", text(&mut browser, "#tensor-count"));

    // Passes have permalinks. The changes made by `fuse` are shown once for all layers.
    browser.evaluate("location.hash = '#passes/fuse'");
    browser.until("document.querySelector('#pass h2')?.innerText === 'fuse'");
    assert!(text(&mut browser, "#pass").contains("layers 0, 1") && count(&mut browser, "#pass .add") > 5);
    assert_eq!(text(&mut browser, "#pass-list a[aria-current='true']").split_whitespace().nth(1), Some("fuse"));
    browser.picture(&picture("passes-fuse"));

    // Selecting a line of a kernel's IR highlights its code, and selecting a line of code
    // highlights its IR. Both show the loop around the line.
    if Target::native() != Target::PORTABLE {
        tab(&mut browser, "kernels");
        browser.evaluate("[...document.querySelectorAll('#kernel-list a')].find(a => a.innerText.startsWith('gemv_q4_k')).click(); 0");
        browser.until("document.querySelector('#kernel h2')?.innerText.startsWith('gemv_q4_k')");
        let hover = |browser: &mut Browser, from: &str| {
            browser.evaluate(&format!(
                "{{ const row = [...document.querySelectorAll('#{from} .row.linked')].at(-3); row.dispatchEvent(new MouseEvent('mouseenter')); 0 }}"
            ));
        };
        hover(&mut browser, "ir");
        assert!(count(&mut browser, "#ir .row.lit") == 1 && count(&mut browser, "#code .row.lit") >= 1);
        assert_eq!(count(&mut browser, "#counts tr.lit"), 1);
        hover(&mut browser, "code");
        assert!(count(&mut browser, "#ir .row.lit") == 1 && count(&mut browser, "#code .row.lit") >= 1);
        browser.evaluate("document.querySelectorAll('#counts tr')[1].dispatchEvent(new MouseEvent('mouseenter')); 0");
        assert!(count(&mut browser, "#code .row.lit") > 1 && count(&mut browser, "#ir .row.lit") > 1);
        browser.picture(&picture("kernel-lit"));
    }

    // The memory view zooms, and describes buffers.
    tab(&mut browser, "memory");
    let drawn = count(&mut browser, "#arena .buffer");
    for _ in 0..4 {
        browser.evaluate("document.querySelector('#view-memory .tools button').click(); 0");
    }
    assert!(count(&mut browser, "#arena .buffer") < drawn);
    browser.evaluate("document.querySelector('#arena .buffer').dispatchEvent(new MouseEvent('mousemove', { clientX: 300, clientY: 400 })); 0");
    assert!(text(&mut browser, "#tip").contains(" at ") && text(&mut browser, "#tip").contains("step"));

    // The page shows measured times, compared with the machine's peak.
    tab(&mut browser, "measured");
    let times = text(&mut browser, "#times");
    assert!(times.contains("expert.down blk.#.ffn_down_exps") && times.contains("barrier"), "{times}");
    assert!(times.contains('%') && count(&mut browser, "#roofline .point") > 2);

    // The page also works with dark colours and on a phone's screen.
    browser.resize(1280, 900, "dark");
    for view in ["graph", "memory", "kernels", "measured"] {
        tab(&mut browser, view);
        browser.picture(&picture(&format!("{view}-dark")));
    }
    browser.resize(360, 740, "dark");
    for view in VIEWS {
        tab(&mut browser, view);
        browser.picture(&picture(&format!("{view}-narrow")));
        assert_eq!(browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), true, "{view}");
    }
    let nameless = "Array.from(document.querySelectorAll('button, input, select, canvas, [role=img]')).filter(node =>
        !(node.getAttribute('aria-label') || node.labels?.[0]?.textContent.trim() || node.textContent.trim())).map(node => node.outerHTML)";
    assert_eq!(browser.evaluate(nameless), json!([]));
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Checks the page of a model with 48 layers of 128 experts, which do not all fit in memory.
#[test]
fn report_of_a_large_model_is_one_small_page() {
    let folder = scratch("report_large");
    let shape = REAL_SHAPES.iter().find(|shape| shape.experts.is_some_and(|experts| experts.count == 128)).unwrap();
    let (model, page) = (folder.join("large.gguf"), folder.join("large.html"));
    shape.write(&model);
    let mut inspect = ixc(["inspect", "--target", "avx2", "--expert-memory", "4GiB", "--predict", "2", "--html"]);
    inspect.arg(&page).arg(&model);
    print!("{}", stdout(inspect));
    fs::remove_file(&model).unwrap();
    let bytes = fs::metadata(&page).unwrap().len();
    assert!(bytes < 8 << 20, "{bytes} bytes");
    let facts = data(&page);
    // Some layers have more bits for values and down projections. There are thus two kinds of
    // layers, and the first and last layers have different neighbours.
    for graph in facts["graphs"].as_array().unwrap() {
        let bodies = graph["folded"]["bodies"].as_array().unwrap().len();
        assert!(bodies <= 8, "{bodies}: {}", graph["after"]);
    }
    assert_eq!(facts["plan"]["groups"].as_array().unwrap().len(), 48);
    let Some(mut browser) = browser("report_of_a_large_model_is_one_small_page") else { return };
    open(&mut browser, &page);
    for view in VIEWS {
        tab(&mut browser, view);
        browser.picture(&picture(&format!("large-{view}")));
        let nodes = count(&mut browser, &format!("#view-{view} *"));
        println!("{view}: {nodes} nodes");
        assert!(nodes < 12_000, "{view}: {nodes} nodes");
    }
    assert_eq!(count(&mut browser, "#strip button"), 48);
    assert!(count(&mut browser, "#windows .window") == 48 && count(&mut browser, "#windows .ahead") > 40);
    browser.evaluate("location.hash = '#graph'");
    browser.evaluate("{ const s = document.getElementById('graph-search'); s.value = 'ffn_down_exps'; s.dispatchEvent(new Event('input')); 0 }");
    browser.until("document.querySelectorAll('#graph-results li').length >= 48");
    browser.evaluate(
        "[...document.querySelectorAll('#graph-results a')].find(a => a.innerText.includes('layer 40')).click(); 0",
    );
    browser.until("document.querySelector('#op')?.innerText.includes('blk.40.ffn_down_exps.weight')");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Checks that a page is made for the target that the environment names, as in other commands. The
/// page of `portable` also shows the IR statements of its code.
#[test]
fn report_target_follows_the_environment() {
    let page = scratch("report_target").join("page.html");
    let inspect = |html: bool, target: &str| {
        let mut command = ixc(["inspect"]);
        if html {
            command.args(["--html", page.to_str().unwrap(), "--force"]);
        }
        command.env("IXC_TARGET", target);
        command
    };
    stdout(inspect(true, "portable"));
    let facts = data(&page);
    assert_eq!(facts["plan"]["target"], "portable");
    let (mut of_statements, mut instructions) = (0, 0);
    for kernel in facts["kernels"].as_array().unwrap() {
        assert_eq!(kernel["left_out"], json!([0, 0]));
        let origins = kernel["origins"].as_array().unwrap();
        let known = origins.iter().filter(|origin| origin.as_i64().unwrap() >= 0).count();
        assert!(!cfg!(target_arch = "x86_64") || known > 0, "{}", kernel["name"]);
        (of_statements, instructions) = (of_statements + known, instructions + origins.len());
    }
    assert!(!cfg!(target_arch = "x86_64") || of_statements * 4 > instructions * 3, "{of_statements} of {instructions}");
    // An option takes precedence over the environment. Without `--html`, the option is refused.
    let mut told = inspect(true, "portable");
    told.args(["--target", "avx2"]);
    stdout(told);
    assert_eq!(data(&page)["plan"]["target"], "avx2");
    stdout(inspect(false, "portable"));
    let wrong = inspect(true, "zen99").output().unwrap();
    assert!(
        wrong.status.code() == Some(2) && stderr(&wrong).contains("IXC_TARGET: invalid value 'zen99'"),
        "{}",
        stderr(&wrong)
    );
    // The report's JSON has the layer of each task and the weights that it uses, which the page
    // also reads.
    let task = &facts["plan"]["steps"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|step| step["tasks"].as_array().unwrap())
        .find(|task| task["op"] == "expert.down")
        .unwrap()
        .clone();
    assert_eq!(
        (&task["names"][0], &task["kind"]),
        (&"blk.0.ffn_down_exps".into(), &"expert.down blk.#.ffn_down_exps".into())
    );
}

/// Checks that names of tensors, tasks and kernels are shown as text, whatever they contain. A plan
/// has no records of passes, and the page states this.
#[test]
fn report_shows_hostile_names_as_text() {
    let folder = scratch("report_hostile");
    let (path, page) = (folder.join("<img src=x>.ixp"), folder.join("page.html"));
    let hostile =
        "</script><script>window.hit = 1</script><!--<img src=x onerror=\"window.hit = 2\">\u{202e}\u{0}\n@DATA@'\"";
    let options =
        CompileOptions { target: Some(Target::AVX2), expert_memory: Some(4 << 20), ..CompileOptions::default() };
    let mut plan = compile(&Model::new(ixc::demo::open().unwrap()).unwrap(), &options).unwrap().plan;
    plan.architecture = hostile.to_owned();
    for (number, weight) in plan.weights.iter_mut().enumerate() {
        weight.name = format!("{number}.{hostile}");
    }
    plan.buffers.iter_mut().for_each(|buffer| buffer.name = hostile.to_owned());
    plan.states.iter_mut().for_each(|state| state.name = hostile.to_owned());
    for step in &mut plan.steps {
        if let Step::Run { tasks, .. } = step {
            tasks.iter_mut().for_each(|task| task.label = format!("linear blk.1.{hostile}"));
        }
    }
    file::write(&path, &plan).unwrap();
    let mut inspect = ixc(["inspect", "--html"]);
    inspect.arg(&page).arg(&path);
    stdout(inspect);
    let text = fs::read_to_string(&page).unwrap();
    assert_eq!((text.matches("</script>").count(), text.matches("<!--").count()), (2, 0));
    assert_eq!(data(&page)["tensors"][3]["name"], format!("3.{hostile}"));
    let Some(mut browser) = browser("report_shows_hostile_names_as_text") else { return };
    open(&mut browser, &page);
    for view in VIEWS {
        tab(&mut browser, view);
        assert_eq!(count(&mut browser, "img, script:not([nonce]):not([type])"), 0, "{view}");
    }
    tab(&mut browser, "tensors");
    browser.evaluate("document.querySelector('#tensor-grid .row').click(); 0");
    browser.until("document.querySelector('#tensor h2')?.textContent.includes('</script>')");
    tab(&mut browser, "passes");
    let passes = browser.evaluate("document.getElementById('view-passes').innerText");
    assert!(passes.as_str().unwrap().contains("does not say what passes did"), "{passes}");
    assert_eq!(browser.evaluate("window.hit === undefined"), true);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Checks the command without a browser: invalid arguments are refused, and the file is either
/// complete or absent.
#[test]
fn a_page_is_written_whole_or_not_at_all() {
    let folder = scratch("report_written");
    let page = folder.join("page.html");
    fs::write(&page, "mine").unwrap();
    let refused = |arguments: &[&str], code: i32, expected: &str| {
        let output = ixc(arguments).output().unwrap();
        let message = stderr(&output);
        assert!(output.status.code() == Some(code) && message.contains(expected), "{arguments:?}: {message}");
    };
    let name = page.to_str().unwrap();
    refused(&["inspect", "--html", name], 2, "--force");
    assert_eq!(fs::read_to_string(&page).unwrap(), "mine");
    stdout(ixc(["inspect", "--force", "--html", name]));
    // An existing page that the command wrote is replaced.
    stdout(ixc(["inspect", "--target", "portable", "--html", name]));
    assert!(fs::read_to_string(&page).unwrap().trim_end().ends_with("</html>"));
    let bad = folder.join("bad.json");
    fs::write(&bad, "{\"traceEvents\":[]}").unwrap();
    refused(&["inspect", "--html", name, "--trace", bad.to_str().unwrap()], 65, "is not a trace");
    refused(&["inspect", "--trace", bad.to_str().unwrap()], 2, "--html");
    refused(&["inspect", "--kv", "q8_0"], 2, "--html");
    refused(&["inspect", "--html", name, "--json"], 2, "--json");
    let plan = folder.join("plan.ixp");
    let mut compile = ixc(["compile", "--no-weights", "--target", "avx2", "-o"]);
    compile.arg(&plan);
    stdout(compile);
    refused(&["inspect", "--target", "avx2", "--html", name, plan.to_str().unwrap()], 2, "already compiled");
    refused(&["inspect", "--html", plan.to_str().unwrap(), plan.to_str().unwrap()], 2, "plan.ixp");
    // With `-`, standard output has only the page.
    let text = stdout(ixc(["inspect", "--html", "-"]));
    assert!(text.starts_with("<!doctype html>") && text.trim_end().ends_with("</html>"));
}

/// Checks the page of a simulation: it has the names of programs over time, can zoom, and links
/// programs to their IR.
#[test]
fn simulation_page_links_to_program_ir() {
    let page = scratch("report_simulated").join("grid.html");
    let mut simulate = ixc(["simulate", "--target", "dataflow:small", "--batch", "4", "--html"]);
    simulate.arg(&page);
    stdout(simulate);
    let facts = data(&page);
    let programs = facts["programs"].as_array().unwrap();
    assert!(programs.iter().all(|program| !facts["kernels"][program["kernel"].to_string()].is_null()));
    let Some(mut browser) = browser("simulation_page_links_to_program_ir") else { return };
    open(&mut browser, &page);
    let drawn = "[...document.getElementById('time').getContext('2d').getImageData(0, 0, 400, 200).data].reduce((a, b) => a + b, 0)";
    let ends = "[document.getElementById('begin').innerText, document.getElementById('end').innerText]";
    let (whole, pixels) = (browser.evaluate(ends), browser.evaluate(drawn));
    browser.evaluate("document.getElementById('time').scrollIntoView(); 0");
    browser.picture(&picture("simulated"));
    browser.evaluate("document.getElementById('larger').click(); document.getElementById('larger').click(); 0");
    assert!(browser.evaluate(ends) != whole && browser.evaluate(drawn) != pixels);
    browser.picture(&picture("simulated-larger"));
    browser.evaluate("document.getElementById('all').click(); 0");
    assert_eq!(browser.evaluate(ends), whole);
    // A program is found by its name, and links to its kernel.
    browser.evaluate("{ const f = document.getElementById('find'); f.value = 'blk.2 attn_output'; f.dispatchEvent(new Event('input')); 0 }");
    let said = text(&mut browser, "#shown");
    assert!(!said.starts_with("0 ") && said.ends_with(&format!("of {} programs", programs.len())), "{said}");
    browser.evaluate(
        "{ const time = document.getElementById('time'), box = time.getBoundingClientRect();
           const at = { clientX: box.left + 5, clientY: box.top + 22, pointerId: 1, bubbles: true };
           time.setPointerCapture = () => {};
           time.dispatchEvent(new PointerEvent('pointerdown', at)); time.dispatchEvent(new PointerEvent('pointerup', at)); 0 }",
    );
    browser.until("document.querySelector('#program a') !== null");
    assert!(text(&mut browser, "#program").contains("attn_output"));
    browser.evaluate("document.querySelector('#program a').click(); 0");
    browser.until("!document.getElementById('ir').hidden");
    assert!(text(&mut browser, "#ir").starts_with("kernel "));
    browser.picture(&picture("simulated-ir"));
    browser.resize(360, 740, "dark");
    browser.open(&format!("file://{}", page.display()));
    browser.until("document.documentElement.dataset.ready === 'yes'");
    assert_eq!(browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), true);
    browser.picture(&picture("simulated-narrow"));
    assert_eq!(browser.complaints, Vec::<String>::new());
}
