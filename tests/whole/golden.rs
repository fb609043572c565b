//! Golden models in the whole program. Logits are compared with exact logits, which tools of other
//! projects computed.

use std::path::Path;

use crate::support::cover::{cover, cover_on, runs_all};
use crate::support::engines::{self, bits};
use crate::support::{Golden, demo_model, ixc, kl_divergence, list, read_npy, scratch, shared, stdout};
use ixc::compile::{CompileOptions, compile};
use ixc::ir::format::Format;
use ixc::model::Model;
use ixc::runtime::load::LoadError;
use ixc::runtime::streaming::StreamError;
use ixc::targets::Target;
use ixc_testing::bits::Table;
use ixc_testing::nmse::nmse;

/// Least number of supported models in `../shared/golden/expect`.
const MODELS: usize = 34;

/// Models whose exact logits were computed with llama.cpp's YaRN ramp. Its ends are rounded to
/// whole pairs of dimensions. gpt-oss was trained with another ramp (`truncate: false` in its
/// configuration), which GGUF files cannot express. The graph has the ramp of the training, as in
/// transformers. Logits of this model are therefore compared with the interpreter's. The
/// repository's own gpt-oss model has exact logits with the trained ramp.
const TRUNCATED: [&str; 1] = ["models/gpt-oss-mxfp4.gguf"];

/// Returns the exact logits at the last positions.
fn exact(model: &Golden, folder: &Path) -> Vec<f32> {
    match TRUNCATED.contains(&model.name()) {
        true => model.last(&model.interpreted(folder)).to_vec(),
        false => model.exact.clone(),
    }
}

#[test]
fn interpreter_meets_its_error_limits() {
    let Some(golden) = shared("golden") else { return };
    let folder = scratch("golden_interpreter");
    let models = Golden::all(&golden);
    assert!(models.len() >= MODELS);
    for model in models.into_iter().filter(|model| !TRUNCATED.contains(&model.name())) {
        let logits = model.interpreted(&folder);
        let (nmse, limit) = (nmse(model.last(&logits), &model.exact), model.number("interpreter_nmse_max"));
        println!("{nmse:.2e} <= {limit:.0e}  {}", model.name());
        assert!(nmse <= limit, "{nmse:e} > {limit:e}  {}", model.name());
    }
}

/// Checks the models of the repository (`tests/golden/README.md`), which need no shared files. The
/// interpreter runs all of these models, and each target runs a cover of them.
#[test]
fn models_of_the_repository_keep_their_limits() {
    let folder = scratch("golden_own");
    let mut table = table("golden-own");
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let models = Golden::all(&all);
    assert_eq!(models.len(), std::fs::read_dir(all.join("models")).unwrap().count());
    let check = |model: &Golden, arguments: &[&str], limit: &str| {
        let logits = model.logits(&folder, arguments);
        let (nmse, limit) = (nmse(model.last(&logits), &model.exact), model.number(limit));
        println!("{nmse:.2e} <= {limit:.0e}  {} {}", model.name(), arguments.join(" "));
        assert!(nmse <= limit, "{nmse:e} > {limit:e}  {} {}", model.name(), arguments.join(" "));
        logits
    };
    for model in &models {
        check(model, &["--engine", "interpreter"], "interpreter_nmse_max");
    }
    for target in [Target::AVX2, Target::AVX512, Target::AMX, Target::PORTABLE] {
        let emulate = (!target.missing().is_empty()).then_some("--emulate");
        let arguments: Vec<&str> = ["--target", target.name(), "-t", "2"].into_iter().chain(emulate).collect();
        for model in cover(&models, target) {
            let logits = check(model, &arguments, "compiled_nmse_max");
            add(&mut table, &format!("{} {}", model.name(), target.name()), &logits);
        }
    }
    if runs_all() { table.check() } else { table.check_part() }
}

/// Returns llama.cpp's error on a model: the smaller error of llama.cpp's two computation paths.
fn rival(model: &Golden, measure: &str) -> f64 {
    let of = |path: &str| model.expect["llama_cpp"][path][measure].as_f64().unwrap();
    of("default").min(of("no_repack"))
}

/// llama.cpp's errors on a model with recurrent states and experts. An expert is *flipped* if
/// rounding makes the router choose another one.
struct Flipping {
    name: &'static str,
    /// NMSE at the last positions of the prompt.
    last: f64,
    /// First quartile of the NMSE of single positions.
    quartile: f64,
}

/// Models with recurrent states and experts, and llama.cpp's errors on them. A flipped expert
/// changes the recurrent state, and thus the results at all later positions. The mean error then
/// depends mostly on the position of the first flip, and not on the size of rounding errors.
///
/// The file in `expect/` has a limit of 1.25 times llama.cpp's error over all positions. At the
/// last positions, even llama.cpp's error exceeds it. The tests therefore compare the first
/// quartile of the errors of single positions, because flips do not affect it. Both errors were
/// measured with the settings `default` of that file.
const FLIPPING: [Flipping; 2] = [
    Flipping { name: "models/qwen3next-q4_k_m.gguf", last: 0.0920, quartile: 0.0077 },
    Flipping { name: "models/qwen35moe-q4_k_m.gguf", last: 0.0600, quartile: 0.0097 },
];

/// Returns the first quartile of the errors of single positions.
fn quartile(model: &Golden, logits: &[f32], folder: &Path) -> f64 {
    let exact = model.interpreted(folder);
    let width = logits.len() / model.tokens("prompt_tokens").len();
    let mut errors: Vec<f64> = logits.chunks(width).zip(exact.chunks(width)).map(|(a, b)| nmse(a, b)).collect();
    errors.sort_by(f64::total_cmp);
    errors[errors.len() / 4 - 1]
}

/// Returns the error over all positions, which can be compared with llama.cpp's numbers. Exact
/// logits exist only for the last eight positions. For all positions, the interpreter's logits are
/// used instead, which are exact to 1e-9.
fn error_over_all(model: &Golden, logits: &[f32], folder: &Path) -> f64 {
    nmse(logits, &model.interpreted(folder))
}

/// Returns a target's table of checksums of logits.
fn table(name: &str) -> Table {
    Table::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/bits/{name}.txt")))
}

fn add(table: &mut Table, name: &str, logits: &[f32]) {
    let bytes: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
    table.add(name, [&bytes[..]]);
}

fn compiled_models_keep_their_limits(target: Target) {
    let (missing, target) = (target.missing(), target.name());
    let emulate = !missing.is_empty();
    if emulate {
        println!("{target}: emulated, since this machine lacks {}", ixc::targets::cpu::list(&missing));
    } else {
        println!("{target}: native");
    }
    let Some(golden) = shared("golden") else { return };
    let folder = scratch(&format!("golden_{target}"));
    let models = Golden::all(&golden);
    assert!(models.len() >= MODELS);
    // Logarithms of the ratio of our error to llama.cpp's: at the last positions, and over all
    // positions.
    let (mut last, mut all) = (Vec::new(), Vec::new());
    let mut table = table(&format!("golden-{target}"));
    for model in &models {
        let mut arguments = vec!["--target", target, "-t", "2"];
        arguments.extend(emulate.then_some("--emulate"));
        let logits = model.logits(&folder, &arguments);
        add(&mut table, model.name(), &logits);
        let flipping = FLIPPING.iter().find(|flipping| flipping.name == model.name());
        let limit = model.number("compiled_nmse_max").max(flipping.map_or(0.0, |rival| 1.25 * rival.last));
        let nmse = nmse(model.last(&logits), &exact(model, &folder));
        println!("{nmse:.2e} <= {limit:.2e}  {}", model.name());
        let facts = stdout(ixc(["inspect".as_ref(), model.model.as_os_str(), "--json".as_ref()]));
        let facts: serde_json::Value = serde_json::from_str(&facts).unwrap();
        // The limit in a file is 1.25 times llama.cpp's error over all positions. The last
        // positions are a quarter of all positions. If an expert flips in that quarter, the errors
        // over all positions are compared instead.
        let experts = facts["experts"].is_number();
        let over_all = experts.then(|| error_over_all(model, &logits, &folder) / rival(model, "nmse"));
        let over_all_fits = over_all.is_some_and(|ratio| ratio <= 1.25);
        if nmse > limit && over_all_fits {
            println!("over all positions {:.3} times llama.cpp's  {}", over_all.unwrap_or_default(), model.name());
        }
        assert!(nmse <= limit || over_all_fits, "{nmse:e} > {limit:e}, {over_all:?}  {}", model.name());
        if let Some(rival) = flipping {
            let found = quartile(model, &logits, &folder);
            println!("a quarter below {found:.2e}, llama.cpp's below {:.2e}", rival.quartile);
            assert!(found <= rival.quartile, "{found:e} > {:e}  {}", rival.quartile, model.name());
        } else if let Some(over_all) = over_all {
            println!("over all positions {over_all:.3} times llama.cpp's");
            last.push((nmse / rival(model, "nmse")).ln());
            all.push(over_all.ln());
        }
    }
    let mean = |logarithms: &[f64]| f64::exp(logarithms.iter().sum::<f64>() / logarithms.len() as f64);
    let (count, last, all) = (all.len(), mean(&last), mean(&all));
    println!(
        "{count} models with experts, geometric mean against llama.cpp: {all:.3} over all positions, {last:.3} at the last"
    );
    assert!(count >= 2 && all <= 1.25, "{all} over {count} models");
    table.check();
}

#[test]
fn avx2_keeps_the_limits() {
    compiled_models_keep_their_limits(Target::AVX2);
}

#[test]
fn avx512_keeps_the_limits() {
    compiled_models_keep_their_limits(Target::AVX512);
}

#[test]
fn amx_keeps_the_limits() {
    compiled_models_keep_their_limits(Target::AMX);
}

#[test]
fn portable_keeps_the_limits() {
    compiled_models_keep_their_limits(Target::PORTABLE);
}

/// Checks a cover of the models with experts, including models of `../shared`, with the least
/// memory for experts. They run in one step of all tokens and in steps of one token.
#[test]
fn streamed_experts_give_the_bits_of_resident_ones() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let folders = [Some(own), shared("golden")];
    let wanted = if folders[1].is_some() { 17 } else { 4 };
    let mut goldens: Vec<Golden> = folders.into_iter().flatten().flat_map(|folder| Golden::all(&folder)).collect();
    goldens.retain(|golden| {
        let model = Model::open(&golden.model).unwrap();
        model.arch.hyper.layers.iter().any(|layer| layer.experts.is_some())
    });
    assert!(goldens.len() >= wanted, "{} models with experts", goldens.len());
    let targets: Vec<Target> =
        [Target::AVX2, Target::AVX512].into_iter().filter(|target| target.missing().is_empty()).collect();
    for (golden, target) in cover_on(&goldens, &targets) {
        let model = Model::open(&golden.model).unwrap();
        let tokens = golden.tokens("prompt_tokens");
        let max_tokens = u32::try_from(tokens.len()).ok();
        let options = CompileOptions { target: Some(target), max_tokens, ..CompileOptions::default() };
        let plan = |expert_memory| compile(&model, &CompileOptions { expert_memory, ..options.clone() }).unwrap().plan;
        let mut all = engines::load(plan(None), target, 0).unwrap();
        let blocks = plan(Some(0));
        let needed = match engines::load(blocks.clone(), target, 1) {
            Err(LoadError::Stream(error)) => match *error {
                StreamError::Budget { needed, .. } => needed,
                other => panic!("{}: {other}", golden.name()),
            },
            other => panic!("{}: a byte is enough, or not tried: {:?}", golden.name(), other.err()),
        };
        let mut least = engines::load(blocks, target, needed).unwrap();
        for step in [tokens.len(), 1] {
            let [resident, streamed] = [&mut all, &mut least].map(|engine| engines::logits(engine, &tokens, step));
            let how = format!("{} {}, steps of {step}", golden.name(), target.name());
            assert!(bits(&resident) == bits(&streamed), "{how}: other bits");
        }
        let stats = least.stream().unwrap().stats().groups;
        assert!(stats.iter().all(|layer| layer.misses > 0 && layer.failures == 0), "{}: {stats:?}", golden.name());
    }
}

/// Checks the rounding of activations to bf16 for bf16 weights, on targets with dot products of
/// bf16 pairs and without tiles. The same rounding is done in llama.cpp. The limit is 1.25 times
/// llama.cpp's error.
#[test]
fn pairs_of_bf16_keep_the_limit() {
    let Some(golden) = shared("golden") else { return };
    let folder = scratch("golden_pairs");
    let target = Target::from_name("zen4").unwrap();
    let missing = target.missing();
    println!("{}", if missing.is_empty() { "native" } else { "emulated" });
    let models = Golden::all(&golden).into_iter().filter(|model| model.expect["tensor_types"]["BF16"].is_number());
    let mut seen = 0;
    for model in models {
        let arguments = ["--target", target.name(), "-t", "2"];
        let emulate = (!missing.is_empty()).then_some("--emulate");
        let logits = model.logits(&folder, &arguments.into_iter().chain(emulate).collect::<Vec<_>>());
        let (nmse, limit) = (nmse(model.last(&logits), &model.exact), 1.25 * rival(&model, "nmse"));
        println!("{nmse:.2e} <= {limit:.2e}  {}", model.name());
        assert!(nmse <= limit, "{nmse:e} > {limit:e}  {}", model.name());
        // The rounding to bf16 must be visible: it is larger than all other rounding.
        assert!(nmse > limit / 10.0, "{nmse:e}  {}", model.name());
        seen += 1;
    }
    assert!(seen > 0);
}

/// Checks that logits of the demo model have the recorded bits. This test needs no shared files.
#[test]
fn the_demo_model_keeps_its_bits() {
    let folder = scratch("demo_bits");
    let mut table = table("demo");
    let tokens: Vec<u32> = (0..45).map(|i| (i * i * 7 + 3 * i + 1) % 256).collect();
    let as_stored = [Target::AVX2, Target::AVX512, Target::AMX, Target::PORTABLE].map(|target| (target, None));
    // The scales of requantised weights are part of the tested result. Products with such weights
    // have the same bits on all targets, so one target is enough.
    let requantised = Format::requantisation_formats().map(|format| (Target::AVX2, Some(format.name())));
    for (target, weights) in as_stored.into_iter().chain(requantised) {
        let out = folder.join("out.npy");
        let mut command = ixc(["logits", "--target", target.name(), "--tokens", &list(&tokens), "-o"]);
        command.arg(&out).arg(demo_model()).args((!target.missing().is_empty()).then_some("--emulate"));
        command.args(weights.map(|weights| ["--weights", weights]).into_iter().flatten());
        stdout(command);
        let name: Vec<&str> = [target.name()].into_iter().chain(weights).collect();
        add(&mut table, &name.join(" "), &read_npy(&out).1);
        std::fs::remove_file(&out).unwrap();
    }
    table.check();
}

/// Checks that bands of weight rows of the smallest size, and bands of all rows, give the same
/// bits. Steps have one token or a few; experts get a few rows of steps with many tokens.
#[test]
fn bands_change_no_bit() {
    let folder = scratch("bands");
    const SMALL: [&str; 2] = ["--set", "tile.band_bytes=0"];
    let plan = stdout(ixc([&["dump", "--stage", "plan", "--target", "avx2"][..], &SMALL].concat()));
    assert!(
        plan.contains(" to 5 rows or in 2 bands gemv_") && plan.contains(" to 5 rows or in 8 bands gemv_"),
        "{plan}"
    );
    for target in [Target::AVX2, Target::AVX512, Target::AMX, Target::PORTABLE] {
        for tokens in [1, 4, 45] {
            let tokens: Vec<u32> = (0..tokens).map(|i| (i * i * 5 + i + 3) % 256).collect();
            let logits = |options: [&str; 2]| {
                let out = folder.join("out.npy");
                let mut command = ixc(["logits", "--target", target.name(), "--tokens", &list(&tokens), "-o"]);
                command.arg(&out).arg(demo_model()).args(options);
                command.args((!target.missing().is_empty()).then_some("--emulate"));
                stdout(command);
                let logits = read_npy(&out).1;
                std::fs::remove_file(&out).unwrap();
                logits.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
            };
            let same = logits(SMALL) == logits(["--set", "tile.items=0"]);
            assert!(same, "{}: {} tokens", target.name(), tokens.len());
        }
    }
}

#[test]
fn the_demo_model_is_as_good_as_llama_cpp() {
    let Some(golden) = shared("golden/demo") else { return };
    let folder = scratch("golden_demo");
    let model = Golden::read(&golden.join("expect/rustling-q4_k_m.json"));
    for target in [Target::AVX2, Target::AVX512, Target::AMX, Target::PORTABLE] {
        let mut arguments = vec!["--target", target.name()];
        let emulate = !target.missing().is_empty();
        arguments.extend(emulate.then_some("--emulate"));
        let logits = model.logits(&folder, &arguments);
        let target = format!("{}{}", target.name(), if emulate { ", emulated" } else { "" });
        let vocabulary = logits.len() / model.tokens("prompt_tokens").len();
        let divergence = kl_divergence(model.last(&logits), &model.exact, vocabulary);
        // The interpreter's logits replace exact logits, as in `error_over_all`.
        let exact = model.interpreted(&folder);
        assert!(nmse(model.last(&exact), &model.exact) <= model.number("interpreter_nmse_max"));
        let all = kl_divergence(&logits, &exact, vocabulary);
        let limit = 1.25 * rival(&model, "kld");
        println!(
            "{target}: KL divergence {all:.2e} over all positions, {divergence:.2e} over the last; limit {limit:.2e}"
        );
        assert!(all <= limit, "{target}: {all} > {limit}");
        assert!(nmse(model.last(&logits), &model.exact) <= model.number("compiled_nmse_max"));
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let Some(golden) = shared("golden") else { return };
    let folder = scratch("golden_threads");
    for name in ["demo/expect/rustling-q4_k_m.json", "expect/mixtral-q4_k_m.json", "expect/llama-q6_k.json"] {
        let model = Golden::read(&golden.join(name));
        let [one, two] = ["1", "2"].map(|threads| model.logits(&folder, &["-t", threads]));
        assert!(one.iter().zip(&two).all(|(a, b)| a.to_bits() == b.to_bits()), "{name}");
    }
}
