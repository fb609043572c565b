//! Commands that show a kernel developer a single op of a layer, and the reasons for decisions.

use serde_json::Value as Json;

use crate::support::{ixc, scratch, stderr, stdout};

fn said(arguments: &[&str]) -> String {
    stdout(ixc(arguments))
}

fn json(arguments: &[&str]) -> Json {
    serde_json::from_str(&said(arguments)).unwrap()
}

/// Returns the error of a command that exits with status 2.
fn refused(arguments: &[&str]) -> String {
    let output = ixc(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
    stderr(&output)
}

#[test]
fn every_stage_shows_one_op_of_one_layer() {
    let of = |stage: &[&str]| said(&[&["dump", "--target", "avx2", "--layer", "2", "--op", "route"], stage].concat());
    for stage in [&["--stage", "graph"][..], &["--stage", "fused"], &["--after", "residency"]] {
        let text = of(stage);
        assert!(text.lines().filter(|line| line.contains(" = route ")).count() == 1, "{text}");
        assert!(text.starts_with("; 1 of "), "{text}");
    }
    for stage in [&["--stage", "plan"][..], &["--after", "lower"], &["--after", "arena"]] {
        let text = of(stage);
        assert_eq!(text.lines().filter(|line| line.starts_with("  route: ")).count(), 1, "{text}");
    }
    let asm = said(&["dump", "--target", "avx2", "--stage", "asm", "--layer", "2", "--op", "route"]);
    assert!(asm.matches(".intel_syntax").count() >= 1 && asm.contains("route_softmax"), "{asm}");
    assert!(!asm.contains("rope_heads"), "{asm}");
    // A part of a weight's name selects all statements that use the weight, and the weight's
    // declaration after the pass `tile`.
    let down = said(&["dump", "--target", "avx2", "--after", "tile", "--layer", "1", "--op", "ffn_down"]);
    assert!(
        down.contains("weight @blk.1.ffn_down_exps.weight") && down.contains("why = ") && down.contains("expert.down")
    );
    assert!(!down.contains("blk.2."), "{down}");
    // A layer selects all of its statements, including statements without a name.
    let layer = said(&["dump", "--stage", "graph", "--layer", "3"]);
    for op in ["= rope ", "= attention ", "= add ", "= expert.combine ", "= state.begin @kv.3"] {
        assert!(layer.contains(op), "{op}: {layer}");
    }
    assert!(!layer.contains("@kv.2") && !layer.contains("output_norm"), "{layer}");
}

#[test]
fn empty_selection_lists_available_names() {
    let dump = |more: &[&str]| refused(&[&["dump", "--target", "avx2", "--stage", "plan"], more].concat());
    assert!(
        dump(&["--op", "ffn_don"]).contains("similar names: blk.*.ffn_down_exps"),
        "{}",
        dump(&["--op", "ffn_don"])
    );
    assert!(dump(&["--layer", "9"]).contains("layer 9 has no ops, steps or decisions; layers that have some: 0-3"));
    assert!(dump(&["--op", "embed", "--layer", "0"]).contains("\"embed\" is not in layer 0; its layers: none"));
    assert!(dump(&["--layer", "3-1"]).contains("expected a layer such as 3"));
    assert!(refused(&["dump", "--dot", "--layer", "1"]).contains("a drawing shows the whole graph"));
    assert!(refused(&["kernel", "list", "--layer", "1"]).contains("--model"));
    assert!(refused(&["kernel", "show", "gemm_q4_k", "--layer", "1"]).contains("an op or layer cannot select from it"));
    assert!(
        refused(&["explain", "--op", "zzz"]).contains("no op, weight, state, value or kernel has the name \"zzz\"")
    );
}

#[test]
fn model_kernels_are_listed_with_users_and_by_op() {
    let list = |more: &[&str]| said(&[&["kernel", "list", "--model", "demo", "--target", "avx2"], more].concat());
    let all = list(&[]);
    assert!(all.contains("used     linear blk.*.attn_output, layers 0-3, up to 5 rows"), "{all}");
    assert!(all.contains("used     by no task") && all.contains("combining parts"), "{all}");
    let one = list(&["--layer", "3", "--op", "attn_output"]);
    assert!(one.contains("layer 3, from 6 rows") && !one.contains("rope"), "{one}");
    let filtered = list(&["attention_combine"]);
    assert_eq!(filtered.lines().filter(|line| !line.starts_with(' ')).count(), 1, "{filtered}");
    let facts = json(&["kernel", "list", "--model", "demo", "--target", "avx2", "--json", "--op", "route"]);
    assert_eq!(facts["schema"], "ixc.kernel-list-of-model.v1");
    assert_eq!(facts["kernels"][0]["uses"][0]["layers"].as_array().unwrap().len(), 4);
    // Shows all kernels of a plan, and then one kernel by its op.
    let plan = scratch("explain-plan").join("plan.ixp");
    let plan = plan.to_str().unwrap();
    said(&["compile", "--target", "avx2", "--no-weights", "-o", plan]);
    let of_plan = said(&["kernel", "list", "--model", plan, "--op", "rope.heads"]);
    assert!(of_plan.contains("used     rope.heads, layers 0-3"), "{of_plan}");
    for model in ["demo", plan] {
        let shown =
            said(&["kernel", "show", model, "--target", "avx2", "--op", "rope.heads", "--layer", "1", "--stage", "ir"]);
        assert!(shown.contains("kernel rope_heads"), "{shown}");
    }
    let several = ixc(["kernel", "show", "demo:gem", "--target", "avx2", "--op", "attn_output"]).output().unwrap();
    let message = stderr(&several);
    assert!(several.status.code() == Some(65) && message.contains("matches several kernels of demo"), "{message}");
    assert!(message.contains("or select a kernel with --op and --layer"), "{message}");
}

#[test]
fn every_decision_lists_rejected_alternatives_with_reasons() {
    let explain = |more: &[&str]| json(&[&["explain", "--target", "avx2", "--json"], more].concat());
    let facts = explain(&[]);
    assert_eq!((&facts["schema"], &facts["target"]), (&"ixc.explain.v1".into(), &"avx2".into()));
    let all = facts["decisions"].as_array().unwrap().clone();
    for decision in &all {
        let rejected = decision["rejected"].as_array().unwrap();
        assert!(!rejected.is_empty() && rejected.iter().all(|lost| lost["why"] != ""), "{decision}");
        assert_ne!(decision["chosen"], "", "{decision}");
    }
    let of = |pass: &str, question: &str| {
        let found = all.iter().filter(|decision| decision["pass"] == pass && decision["question"] == question);
        found.cloned().collect::<Vec<Json>>()
    };
    // There is a decision on layout and tiling for each weight of a product. There is a decision on
    // attention kernels by number of rows for each layer.
    assert_eq!(of("pack", "layout").len(), 33);
    assert_eq!((of("tile", "item size").len(), of("tile", "kernels").len()), (21, 33));
    assert_eq!(of("lower", "kernels").len(), 4);
    assert_eq!(of("fuse", "fusion").iter().filter(|each| each["op"] == "rope.append").count(), 4);
    assert_eq!((of("arena", "memory").len(), of("residency", "residency").len()), (1, 1));
    // The norm before experts is computed twice: in the fused op that quantises its result, and
    // separately for the router.
    let layer = of("fuse", "fusion").into_iter().filter(|each| each["layer"] == 2).collect::<Vec<_>>();
    assert!(layer.iter().any(|each| each["chosen"] == "linear.qkv"), "{layer:#?}");
    // With a budget, the plan names the predictor of each layer.
    let streamed = explain(&["--expert-memory", "1MiB", "--predict", "2", "--pass", "residency"]);
    let streamed = streamed["decisions"].as_array().unwrap();
    assert!(streamed[0]["chosen"].as_str().unwrap().contains("streamed from the drive"), "{streamed:#?}");
    let routers = streamed.iter().filter(|each| each["question"] == "predictor");
    assert_eq!(routers.filter(|each| each["chosen"].as_str().unwrap().contains("names 4")).count(), 3, "{streamed:#?}");
    // The choice of a predictor at the start of a run is a decision too, which depends on the plan.
    let run = |more: &[&str]| {
        let decisions = explain(&[&["--pass", "run"], more].concat());
        let [decision] = &decisions["decisions"].as_array().unwrap()[..] else { panic!("{decisions:#}") };
        assert_eq!(decision["question"], "predictor");
        (decision["chosen"].as_str().unwrap().to_owned(), decision["rejected"][0]["what"].clone())
    };
    let small = ["--expert-memory", "1MiB"];
    assert_eq!(run(&small), ("no prediction for the first 30 tokens".to_owned(), "router".into()));
    let early = ("router for the first 30 tokens".to_owned(), Json::from("no prediction"));
    assert_eq!(run(&[&small[..], &["--predict", "2"]].concat()), early);
    let asked = explain(&[&small[..], &["--prefetch", "previous", "--pass", "run"]].concat());
    assert_eq!(asked["decisions"].as_array().unwrap().len(), 0, "what is asked for is no decision");
    // With a total budget, the decisions include the memory that remains for experts. The plan is
    // the same as that of a run.
    assert_eq!(run(&["--memory", "1MiB"]), early);
    let budget = explain(&["--memory", "1MiB", "--pass", "compile,residency"]);
    let asked = |question: &str| {
        let all = budget["decisions"].as_array().unwrap();
        all.iter().find(|each| each["question"] == question).unwrap_or_else(|| panic!("{budget:#}")).clone()
    };
    assert_eq!(asked("memory")["rejected"][0]["what"], "all weights in memory");
    assert!(asked("residency")["chosen"].as_str().unwrap().contains("streamed from the drive"), "{budget:#}");
    let roomy = explain(&["--memory", "64GiB"]);
    assert!(roomy["decisions"].as_array().unwrap().iter().all(|each| each["pass"] != "run"), "{roomy:#}");
    assert_eq!(roomy["decisions"].as_array().unwrap().iter().filter(|each| each["op"] == "a run").count(), 1);
    assert!(refused(&["explain", "--memory", "1GiB", "--expert-memory", "1MiB"]).contains("give one of them"));
    // A tiling that was set by an option overrides the choice from cache sizes.
    let asked = explain(&[
        "--tile",
        "blk.1.ffn_gate_inp*: rows=16 gemm6/48",
        "--pass",
        "tile",
        "--op",
        "ffn_gate_inp",
        "--layer",
        "1",
    ]);
    assert!(asked["decisions"][0]["why"].as_str().unwrap().starts_with("requested for"), "{asked:#}");
    // The reason why weights are not packed is reported.
    let kept = explain(&["--set", "pack.weights=false", "--pass", "pack"]);
    assert!(kept["decisions"][0]["rejected"][0]["why"].as_str().unwrap().contains("pack.weights"), "{kept:#}");
}

/// Checks the decisions of placement on a grid, with their reasons: the distribution of instances
/// over elements, the sizes of pieces, and the shape of each program's area.
#[test]
fn placement_decisions_list_rejected_alternatives() {
    let explain = |grid: &str| json(&["explain", "--target", &format!("dataflow:{grid}"), "--pass", "place", "--json"]);
    for (grid, placement, shape) in [
        ("small", "several instances on each PE, all in one wave", "instances on a PE"),
        ("wse3", "a PE of its own for each instance", "shape"),
    ] {
        let facts = explain(grid);
        let all = facts["decisions"].as_array().unwrap();
        let of = |question: &str| all.iter().filter(|each| each["question"] == question).collect::<Vec<_>>();
        let ([how], [sizes]) = (&of("placement")[..], &of("pieces")[..]) else { panic!("{facts:#}") };
        assert_eq!((&how["chosen"], how["rejected"].as_array().unwrap().len()), (&placement.into(), 2), "{how:#}");
        assert!(sizes["chosen"].as_str().unwrap().contains("products in pieces of up to"), "{sizes:#}");
        let shapes = of(shape);
        assert!(shapes.iter().any(|each| each["layer"] == 3 && each["op"] == "expert.swiglu"), "{facts:#}");
        assert!(all.iter().all(|each| each["rejected"].as_array().unwrap().iter().all(|lost| lost["why"] != "")));
    }
    assert_eq!(
        explain("wse3")["decisions"].as_array().unwrap().iter().filter(|each| each["op"] == "shelves").count(),
        1
    );
    let refused = refused(&["explain", "--target", "dataflow:small", "--memory", "1GiB"]);
    assert!(refused.contains("apply to plans for a CPU, not to a dataflow grid"), "{refused}");
}

/// Checks the demo model's decisions as text. Decisions of equal layers are printed once.
#[test]
fn decisions_of_equal_layers_are_printed_once() {
    insta::assert_snapshot!("explain", said(&["explain", "--target", "avx2"]));
}

/// Checks that recording decisions does not change the plan.
#[test]
fn recording_decisions_does_not_change_the_plan() {
    use ixc::compile::{CompileOptions, specs};
    use ixc::model::Model;
    use ixc::passes::decision::Decisions;
    use ixc::targets::Target;
    use std::sync::Arc;

    let model = Model::new(ixc::demo::open().unwrap()).unwrap();
    for target in [Target::AVX2, Target::AMX, Target::PORTABLE] {
        for expert_memory in [None, Some(1 << 20)] {
            let options = CompileOptions {
                target: Some(target),
                expert_memory,
                predict_extra: Some(1),
                defer: 1,
                ..CompileOptions::default()
            };
            let decisions = Arc::new(Decisions::default());
            let told = CompileOptions { decisions: Some(Arc::clone(&decisions)), ..options.clone() };
            let (own, own_told) = (specs(&model, &options).unwrap(), specs(&model, &told).unwrap());
            assert!(own == own_told && decisions.take().len() > 100, "{}", target.name());
        }
    }
    // With a small budget, the plan is compiled twice.
    for memory in [1 << 20, 1 << 40] {
        let run = ixc::runtime::engine::EngineOptions { memory: Some(memory), ..Default::default() };
        let options =
            CompileOptions { target: Some(Target::AVX2), predict_extra: Some(1), ..CompileOptions::default() };
        let decisions = Arc::new(Decisions::default());
        let told = CompileOptions { decisions: Some(Arc::clone(&decisions)), ..options.clone() };
        let made = [&options, &told].map(|options| ixc::budget::compile_within(&model, options, &run).unwrap());
        assert!(made[0].0.plan == made[1].0.plan && made[0].1 == made[1].1);
        assert!(decisions.take().iter().filter(|decision| decision.question == "memory").count() >= 1);
    }
    // Placement on a grid also gives the same result with and without recorded decisions.
    let grid = ixc::dataflow::grids::find("small").unwrap();
    let own = ixc::place::place(&model, &grid, &Default::default()).unwrap();
    let (told, decisions) = ixc::explain::placement(&model, &grid, &Default::default()).unwrap();
    assert!(own.plan == told.plan && own.descriptor == told.descriptor && decisions.len() > 10);
}
