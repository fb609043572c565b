//! Tests that streamed experts give results that are bit-identical to those of resident experts,
//! with any budget. Also tests files that change during a run.

mod deadline;
#[allow(dead_code, reason = "other tests use the rest of it")]
mod tiny;

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{BucketId, BufferId, ExpertGroup, Plan, Source, Step, WeightFile};
use ixc_runtime::engine::{BackendKind, Engine, EngineOptions, EvictError, ExpertStore, Pins, StepError};
use ixc_runtime::error::load::OtherExperts;
use ixc_runtime::execute::ExecuteError;
use ixc_runtime::file;
use ixc_runtime::load::LoadError;
use ixc_runtime::streaming::StreamError;
use ixc_runtime::streaming::backend::{Backend, Completion, Read};
use ixc_runtime::streaming::cache::Kind;
use ixc_runtime::streaming::files::Files;
use ixc_runtime::streaming::predict::{PredictionSettings, Strategy, StrategyChoice, auto};
use ixc_runtime::streaming::queue::{Queue, Wake};
use ixc_runtime::streaming::store::{BackendFactory, Config};
use ixc_targets::Target;
use tiny::{EXPERTS, Factors, Folder, MAX_TOKENS, TOP_K, VOCABULARY, grouped as plan_of};

fn native(target: Target) -> BackendKind {
    if target.missing().is_empty() { BackendKind::Native } else { BackendKind::Emulated }
}

fn options(threads: usize, budget: u64, backend: BackendKind) -> EngineOptions {
    // With small reads, each block needs several of them.
    let stream = Config { budget, chunk: 4096, ..Config::default() };
    EngineOptions { threads: Some(threads), backend, stream, ..EngineOptions::default() }
}

fn tokens() -> Vec<u32> {
    (0..2 * MAX_TOKENS).map(|i| (i * 7 + i * i) % VOCABULARY).collect()
}

/// Returns the bits of all tokens' logits, from long and short steps.
fn logits(engine: &mut Engine) -> Vec<u32> {
    let (tokens, mut bits, mut at) = (tokens(), Vec::new(), 0);
    for length in [1, 30, 1, 5, MAX_TOKENS as usize, 1, 1, 3] {
        let rows: Vec<u32> = (0..length as u32).collect();
        bits.extend(engine.step(&tokens[at..at + length], &rows).unwrap().iter().map(|logit| logit.to_bits()));
        at += length;
    }
    bits
}

/// Returns the minimum budget for the blocks of a plan.
fn least(load: &dyn Fn(u64) -> Result<Engine, LoadError>) -> u64 {
    match load(1) {
        Err(LoadError::Stream(error)) => match *error {
            StreamError::Budget { budget: 1, needed } => needed,
            other => panic!("{other}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn streamed_experts_give_the_bits_of_resident_ones() {
    let folder = Folder::new();
    for (target, factors) in [(Target::PORTABLE, Factors::F32), (Target::AVX512, Factors::Packed)] {
        let (plan, backend) = (plan_of(&folder.0, target, factors), native(target));
        println!("{}: {backend:?}", target.name());
        let right = logits(&mut Engine::load(plan.clone(), &folder.0, &options(2, 0, backend)).unwrap());
        let load = |threads, budget| Engine::load(plan.clone(), &folder.0, &options(threads, budget, backend));
        let least = least(&|budget| load(1, budget));
        for threads in [1, 2, 3] {
            for budget in [least, least + least / 3, 64 * least] {
                let mut engine = load(threads, budget).unwrap();
                assert!(logits(&mut engine) == right, "{threads} threads, {budget} bytes");
                let store = engine.stream().unwrap();
                assert!(store.bytes() <= budget);
                let stats = store.stats().groups[0];
                assert!(stats.misses > 0 && stats.failures == 0, "{stats:?}");
                // Unless all experts fit into memory, some of them are read again.
                let all = stats.misses + stats.on_the_way;
                assert_eq!(all > u64::from(EXPERTS), budget < 2 * least && EXPERTS > 2 * TOP_K, "{stats:?}");
            }
        }
    }
}

/// Returns counts for the experts of each layer, which increase with the expert's number.
fn rising(layers: usize) -> Vec<Vec<u64>> {
    vec![(0..u64::from(EXPERTS)).collect(); layers]
}

#[test]
fn pinned_experts_change_no_bits_and_choices_are_counted() {
    const LAYERS: u32 = 3;
    let folder = Folder::new();
    let plan = tiny::deepened(&plan_of(&folder.0, Target::PORTABLE, Factors::F32), LAYERS);
    let load = |threads, budget, percent| {
        let pins = Some(Pins { chosen: rising(LAYERS as usize), percent });
        Engine::load(plan.clone(), &folder.0, &EngineOptions { pins, ..options(threads, budget, BackendKind::Native) })
    };
    let counted = |engine: &Engine| {
        let counts = engine.expert_counts();
        (counts.tokens(), counts.layers().iter().map(|layer| layer.chosen.clone()).collect::<Vec<_>>())
    };
    // If all experts fit into memory, pinning changes nothing.
    let mut resident = load(2, 0, 50).unwrap();
    let right = logits(&mut resident);
    let (tokens, chosen) = counted(&resident);
    assert_eq!((chosen.len(), tokens), (LAYERS as usize, tokens_of_logits()));
    for layer in &chosen {
        assert_eq!(layer.iter().sum::<u64>(), tokens * u64::from(TOP_K), "{layer:?}");
    }
    assert_ne!(chosen[0], chosen[1], "layers have routers of their own");
    let least = least(&|budget| load(1, budget, 50));
    for (threads, budget, percent) in
        [(1, least, 100), (2, 2 * least, 50), (3, 2 * least, 100), (2, 3 * least / 2, 30), (2, 64 * least, 50)]
    {
        let mut engine = load(threads, budget, percent).unwrap();
        let kept: u32 = engine.stream().unwrap().blocks_by_group().iter().map(|held| held.kept).sum();
        assert_eq!(kept > 0, budget > least, "{kept} of {budget} bytes");
        assert!(logits(&mut engine) == right, "{threads} threads, {budget} bytes, {percent} %");
        assert_eq!(counted(&engine), (tokens, chosen.clone()), "{threads} threads, {budget} bytes");
        assert!(engine.stream().unwrap().bytes() <= budget);
        // Experts that were evicted between steps are read again.
        engine.reset();
        let evicted: u32 =
            (0..LAYERS as usize).map(|layer| engine.evict_experts(layer, layer == 1).unwrap().blocks).sum();
        assert!(evicted > 0);
        assert!(logits(&mut engine) == right, "{threads} threads, {budget} bytes, evicted");
    }
    let layers = LAYERS as usize;
    let mut engine = load(1, 2 * least, 50).unwrap();
    assert_eq!(engine.evict_experts(layers, false), Err(EvictError::NoLayer { layer: layers, layers }));
    assert_eq!(resident.evict_experts(0, false), Err(EvictError::NotStreamed));
}

/// Returns the number of tokens in all steps of [`logits`].
fn tokens_of_logits() -> u64 {
    1 + 30 + 1 + 5 + u64::from(MAX_TOKENS) + 1 + 1 + 3
}

#[test]
fn counts_of_another_model_are_refused() {
    let folder = Folder::new();
    let plan = tiny::deepened(&plan_of(&folder.0, Target::PORTABLE, Factors::F32), 2);
    let mut longer = rising(2);
    longer[1].push(3);
    for (chosen, expected) in [
        (rising(3), OtherExperts::Layers { found: 3, expected: 2 }),
        (vec![], OtherExperts::Layers { found: 0, expected: 2 }),
        (longer, OtherExperts::Experts { layer: 1, found: EXPERTS as usize + 1, expected: EXPERTS as usize }),
    ] {
        for budget in [0, 64 << 20] {
            let pins = Some(Pins { chosen: chosen.clone(), percent: 50 });
            let options = EngineOptions { pins, ..options(1, budget, BackendKind::Native) };
            match Engine::load(plan.clone(), &folder.0, &options) {
                Err(LoadError::OtherExperts(found)) => assert_eq!(found, expected),
                other => panic!("{other:?}"),
            }
        }
    }
    // Any numbers are accepted as counts and as percentage.
    let pins = Some(Pins { chosen: vec![vec![u64::MAX; EXPERTS as usize]; 2], percent: u32::MAX });
    Engine::load(plan, &folder.0, &EngineOptions { pins, ..options(1, 64 << 20, BackendKind::Native) }).unwrap();
}

/// Tests single-thread stages. Only those that run again for late experts are shared between the
/// threads.
#[test]
fn streamed_experts_match_resident_bits_on_single_thread_stages() {
    let folder = Folder::new();
    let plan = plan_of(&folder.0, Target::PORTABLE, Factors::F32);
    let right = logits(&mut Engine::load(plan.clone(), &folder.0, &options(2, 0, BackendKind::Native)).unwrap());
    for rows in [1, MAX_TOKENS] {
        let alone = tiny::with_single_thread_limits(&plan, |_| rows);
        let load =
            |threads, budget| Engine::load(alone.clone(), &folder.0, &options(threads, budget, BackendKind::Native));
        let least = least(&|budget| load(1, budget));
        for threads in [1, 2, 3] {
            for budget in [0, least, least + least / 3, 64 * least] {
                let mut engine = load(threads, budget).unwrap();
                assert!(logits(&mut engine) == right, "{rows} rows, {threads} threads, {budget} bytes");
            }
        }
    }
}

/// Adds early routers whose predictions are mostly wrong. Each of them predicts the experts that
/// the previous layer chose. That of the first layer predicts its own choice for the previous
/// token.
fn predicted(plan: &Plan<Kernel>) -> Plan<Kernel> {
    let mut plan = plan.clone();
    let layers = plan.expert_groups.len() as u32;
    for layer in 0..layers {
        let number = layer as usize;
        let find = |step: &Step| match step {
            Step::Bucket { ids, .. } => Some(*ids),
            _ => None,
        };
        let ids = plan.steps.iter().filter_map(find).nth(number).unwrap();
        let request = |step: &Step| matches!(step, Step::Request { group, .. } if *group == layer);
        let request = plan.steps.iter().position(request).unwrap();
        let group = if layers == 1 { 0 } else { (layer + 1) % layers };
        plan.steps.insert(request + 1, Step::Predict { group, ids, first: 0, count: TOP_K });
    }
    plan
}

fn choices() -> impl Iterator<Item = StrategyChoice> {
    let strategies = Strategy::ALL.map(|(_, strategy)| StrategyChoice::Always(strategy));
    strategies.into_iter().chain([StrategyChoice::Off, StrategyChoice::Auto])
}

#[test]
fn neither_predictions_nor_cache_policies_change_a_bit() {
    let folder = Folder::new();
    let plan = predicted(&plan_of(&folder.0, Target::PORTABLE, Factors::F32));
    let right = logits(&mut Engine::load(plan.clone(), &folder.0, &options(2, 0, BackendKind::Native)).unwrap());
    let load = |budget, policy, prefetch| {
        let base = options(2, budget, BackendKind::Native);
        let stream = Config { policy, ..base.stream };
        Engine::load(plan.clone(), &folder.0, &EngineOptions { stream, prefetch, ..base })
    };
    let least = least(&|budget| load(budget, Kind::default(), PredictionSettings::default()));
    for choice in choices() {
        for (i, (name, policy)) in Kind::ALL.into_iter().enumerate() {
            for budget in [least, least + least / 2] {
                let mut engine = load(budget, policy, PredictionSettings { choice, extra: i as u32 }).unwrap();
                // The run also includes long steps of many tokens.
                assert!(logits(&mut engine) == right, "{choice}, {name}, {budget} bytes");
                engine.reset();
                assert!(logits(&mut engine) == right, "{choice}, {name}, {budget} bytes, again");
                let (stats, report) = (engine.stream().unwrap().stats().groups[0], engine.predictions().unwrap());
                assert_eq!(stats.failures, 0, "{stats:?}");
                assert_eq!(report.tallies.iter().map(|(_, layers)| layers.len()).max(), Some(1));
            }
        }
    }
}

/// Returns the bits of the logits of many tokens, decoded one by one, and the number of bytes read
/// ahead for them. Most of the tokens are equal. [`StrategyChoice::Auto`] needs fewer tokens for
/// its measurements.
fn many(engine: &mut Engine) -> (Vec<u32>, u64) {
    let predicted = |engine: &Engine| -> u64 {
        engine.stream().map_or(0, |store| store.stats().groups.iter().map(|layer| layer.predicted_bytes).sum())
    };
    let (mut bits, mut ahead) = (Vec::new(), 0);
    for round in 0..2 {
        engine.reset();
        // During a prompt, any strategy reads experts of the next layer ahead. After one more
        // token, none of these reads remain.
        engine.step(&tokens()[..5], &[]).unwrap();
        engine.step(&[round], &[]).unwrap();
        let before = predicted(engine);
        for i in 0..3 * auto::WINDOW as u32 {
            let token = if i % 8 == 7 { i % VOCABULARY } else { round };
            bits.extend(engine.step(&[token], &[0]).unwrap().iter().map(|logit| logit.to_bits()));
        }
        // Some earlier predictions may have been cancelled in the meantime, so the count may have
        // decreased.
        ahead += predicted(engine).saturating_sub(before);
    }
    (bits, ahead)
}

#[test]
fn predictions_across_tokens_and_layers_change_no_bits() {
    const LAYERS: u32 = 3;
    let folder = Folder::new();
    let plan = predicted(&tiny::deepened(&plan_of(&folder.0, Target::PORTABLE, Factors::F32), LAYERS));
    let load = |budget, choice| {
        let prefetch = PredictionSettings { choice, extra: 0 };
        Engine::load(plan.clone(), &folder.0, &EngineOptions { prefetch, ..options(2, budget, BackendKind::Native) })
    };
    let (right, _) = many(&mut load(0, StrategyChoice::Off).unwrap());
    let least = least(&|budget| load(budget, StrategyChoice::Off));
    for choice in choices() {
        // The experts of two of three layers fit into memory. So a layer's experts are evicted
        // before the layer runs again.
        let mut engine = load(least, choice).unwrap();
        let (found, ahead) = many(&mut engine);
        assert!(found == right, "{choice}");
        let stats = engine.stream().unwrap().stats();
        assert_eq!(stats.groups.len(), LAYERS as usize);
        // All strategies except `off` read ahead. `auto` begins after it has measured steps without
        // reading ahead.
        assert_eq!(ahead > 0, choice != StrategyChoice::Off, "{choice}: {stats:?}");
        assert!(stats.groups.iter().all(|layer| layer.failures == 0), "{stats:?}");
    }
}

#[test]
fn predictions_are_counted_for_every_token_that_is_made() {
    let folder = Folder::new();
    let plan = predicted(&plan_of(&folder.0, Target::PORTABLE, Factors::F32));
    // With a weight matrix of zeros, the router always chooses the same experts.
    let router = plan.weights.iter().find(|weight| weight.name == "router").unwrap();
    let path = folder.0.join("tiny.weights");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[router.offset as usize..][..router.bytes as usize].fill(0);
    std::fs::write(&path, bytes).unwrap();
    for choice in choices() {
        let prefetch = PredictionSettings { choice, extra: 0 };
        let load = |budget| {
            Engine::load(
                plan.clone(),
                &folder.0,
                &EngineOptions { prefetch, ..options(2, budget, BackendKind::Native) },
            )
        };
        let mut engine = load(least(&load)).unwrap();
        engine.step(&tokens()[..5], &[]).unwrap();
        for token in &tokens()[5..12] {
            engine.step(&[*token], &[0]).unwrap();
        }
        // The first of seven tokens has no previous token. Experts that all tokens use stay in
        // memory.
        for (strategy, layers) in engine.predictions().unwrap().tallies {
            let counts = (layers[0].chosen, layers[0].predicted, layers[0].right, layers[0].useful, layers[0].useless);
            assert_eq!(counts, (12, 12, 12, 0, 0), "{choice}: {strategy}");
        }
        let stats = engine.stream().unwrap().stats().groups[0];
        assert_eq!((stats.misses, stats.predicted_bytes), (u64::from(TOP_K), 0), "{choice}: {stats:?}");
    }
}

#[test]
fn a_plan_file_with_weights_is_streamed_from_itself() {
    let folder = Folder::new();
    let plan = plan_of(&folder.0, Target::AVX512, Factors::Packed);
    let path = folder.0.join("tiny.ixp");
    let written = file::weights::write(&path, &plan, &folder.0, &EngineOptions::default(), |_, _| ()).unwrap();
    let in_blocks = |weight: &&ixc_ir::plan::PlanWeight| matches!(weight.file, WeightFile::Blocks { .. });
    let names: Vec<&str> = written.weights.iter().filter(in_blocks).map(|weight| weight.name.as_str()).collect();
    assert_eq!(names, ["gate", "up", "down"]);
    let backend = native(Target::AVX512);
    let load = |budget| Engine::load_file(file::open(&path).unwrap(), &folder.0, &options(2, budget, backend));
    let right = logits(&mut Engine::load(plan, &folder.0, &options(2, 0, backend)).unwrap());
    assert!(logits(&mut load(0).unwrap()) == right, "resident");
    let least = least(&load);
    for budget in [least, 64 * least] {
        let mut engine = load(budget).unwrap();
        assert!(logits(&mut engine) == right, "{budget} bytes");
        assert!(engine.stream().unwrap().stats().groups[0].misses > 0);
    }
}

#[test]
fn a_file_that_changes_is_an_error_until_it_is_loaded_again() {
    let folder = Folder::new();
    let plan = plan_of(&folder.0, Target::PORTABLE, Factors::F32);
    let path = folder.0.join("tiny.weights");
    let bytes = std::fs::read(&path).unwrap();
    let mut fresh = Engine::load(plan.clone(), &folder.0, &options(2, 0, BackendKind::Native)).unwrap();
    let right = logits(&mut fresh);
    let load = |budget| Engine::load(plan.clone(), &folder.0, &options(2, budget, BackendKind::Native));
    let mut engine = load(least(&load)).unwrap();
    let gate = plan.weights.iter().find(|weight| weight.name == "gate").unwrap();
    let cut = |length: u64| std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
    cut(gate.offset);
    let error = engine.step(&tokens()[..4], &[]).unwrap_err().to_string();
    assert!(error.contains("tiny.weights") && error.contains("changed while in use"), "{error}");
    assert_eq!(engine.position(), 0);
    // The file has its old bytes again. But it was changed in between, so it is uncertain whether
    // all old bytes are back.
    std::fs::write(&path, &bytes).unwrap();
    assert!(engine.step(&tokens()[..4], &[]).is_err());
    assert!(logits(&mut load(least(&load)).unwrap()) == right);
}

#[test]
fn a_file_that_is_replaced_while_it_is_loaded_is_refused() {
    let folder = Folder::new();
    let plan = plan_of(&folder.0, Target::AVX512, Factors::Packed);
    let (path, other) = (folder.0.join("tiny.ixp"), folder.0.join("other.ixp"));
    file::weights::write(&path, &plan, &folder.0, &EngineOptions::default(), |_, _| ()).unwrap();
    let opened = file::open(&path).unwrap();
    // The copy has the same bytes, so only the identity of the file differs.
    std::fs::copy(&path, &other).unwrap();
    std::fs::rename(&other, &path).unwrap();
    let error = Engine::load_file(opened, &folder.0, &options(1, 1 << 20, native(Target::AVX512))).unwrap_err();
    let LoadError::Stream(error) = error else { panic!("{error}") };
    assert!(matches!(&*error, StreamError::Changed(changed) if changed.what == "device and inode"), "{error}");
}

/// Outcome of a read at an offset: the maximum number of bytes that it returns, or an error number.
type Fate = dyn FnMut(u64) -> Result<u64, i32> + Send;

/// A backend whose reads have outcomes that the test chooses. They end one at a time, in reverse
/// order.
struct Planted {
    files: Arc<Files>,
    woken: Arc<Woken>,
    fate: Arc<Mutex<Fate>>,
    begun: Vec<Read>,
    /// Number of times the drive waits before a read ends.
    patience: u64,
    asked: u64,
}

#[derive(Default)]
struct Woken(Mutex<bool>, Condvar);

impl Wake for Woken {
    fn wake(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }
}

impl Backend for Planted {
    fn describe(&self) -> String {
        "planted".into()
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.woken) as Arc<dyn Wake>
    }

    unsafe fn start(&mut self, read: Read) {
        self.begun.push(read);
    }

    fn wait(&mut self, done: &mut Vec<Completion>) -> std::io::Result<()> {
        self.asked += 1;
        if !self.begun.is_empty() && !self.asked.is_multiple_of(self.patience) {
            // Returning without a completion is like a spurious wake-up. It lets other threads run
            // before the read ends.
            std::thread::yield_now();
            return Ok(());
        }
        if let Some(read) = self.begun.pop() {
            let result = (self.fate.lock().unwrap())(read.offset).map(|most| {
                let bytes = most.min(read.into.bytes()) as usize;
                // SAFETY: the region is mapped, and until the completion is returned, no other code
                // uses it.
                let into = unsafe { std::slice::from_raw_parts_mut(read.into.base(), bytes) };
                self.files.handle(read.file).unwrap().read_at(into, read.offset).unwrap() as u32
            });
            done.push(Completion { tag: read.tag, result });
            return Ok(());
        }
        let woken = self.woken.0.lock().unwrap();
        *self.woken.1.wait_while(woken, |woken| !*woken).unwrap() = false;
        Ok(())
    }
}

/// Makes an engine whose reads have the outcomes that `fate` returns.
fn planted(
    plan: &Plan<Kernel>,
    folder: &Folder,
    budget: u64,
    fate: impl FnMut(u64) -> Result<u64, i32> + Send + 'static,
) -> Engine {
    let options = with_fates(options(2, budget, BackendKind::Native), 1, fate);
    Engine::load(plan.clone(), &folder.0, &options).unwrap()
}

/// Makes options with a backend whose reads have the outcomes that `fate` returns. Each read ends
/// after `patience` waits.
fn with_fates(
    options: EngineOptions,
    patience: u64,
    fate: impl FnMut(u64) -> Result<u64, i32> + Send + 'static,
) -> EngineOptions {
    let fate: Arc<Mutex<Fate>> = Arc::new(Mutex::new(fate));
    let make = move |queue: &Queue| {
        let (files, fate) = (Arc::clone(queue.files()), Arc::clone(&fate));
        Box::new(Planted { files, woken: Arc::default(), fate, begun: Vec::new(), patience, asked: 0 })
            as Box<dyn Backend>
    };
    let stream = Config { backend: Some(BackendFactory(Arc::new(make))), direct: false, ..options.stream };
    EngineOptions { stream, ..options }
}

#[test]
fn slow_drive_changes_only_the_time() {
    let folder = Folder::new();
    let plan = predicted(&tiny::deepened(&plan_of(&folder.0, Target::PORTABLE, Factors::F32), 3));
    let right = logits(&mut Engine::load(plan.clone(), &folder.0, &options(2, 0, BackendKind::Native)).unwrap());
    let least = least(&|budget| Engine::load(plan.clone(), &folder.0, &options(2, budget, BackendKind::Native)));
    for (budget, choice) in [
        (least, StrategyChoice::Off),
        (2 * least, StrategyChoice::Off),
        (least, StrategyChoice::Always(Strategy::Previous)),
        (least, StrategyChoice::Auto),
    ] {
        let prefetch = PredictionSettings { choice, extra: 1 };
        let slow = with_fates(options(2, budget, BackendKind::Native), 100, |_| Ok(u64::MAX));
        let mut engine = Engine::load(plan.clone(), &folder.0, &EngineOptions { prefetch, ..slow }).unwrap();
        assert!(logits(&mut engine) == right, "{budget} bytes, {choice}");
        let stats = engine.stream().unwrap().stats();
        assert!(stats.groups.iter().all(|layer| layer.misses > 0 && layer.failures == 0), "{stats:?}");
    }
}

#[test]
fn short_and_interrupted_reads_change_nothing() {
    const EINTR: i32 = 4;
    let folder = Folder::new();
    let plan = plan_of(&folder.0, Target::PORTABLE, Factors::F32);
    let resident = || Engine::load(plan.clone(), &folder.0, &options(2, 0, BackendKind::Native)).unwrap();
    let mut count = 0u64;
    let mut engine = planted(&plan, &folder, 96 << 10, move |_| {
        count += 1;
        match count % 3 {
            0 => Err(EINTR),
            // A read returns a few bytes or whole pages.
            1 => Ok(1 + count * 977 % 4095),
            _ => Ok(u64::MAX),
        }
    });
    assert!(logits(&mut engine) == logits(&mut resident()));
    let stats = engine.stream().unwrap().stats();
    assert!(stats.drive.retries > stats.drive.routed.reads / 3, "{:?}", stats.drive);
}

#[test]
fn unreadable_expert_fails_only_steps_that_need_it() {
    const EIO: i32 = 5;
    let folder = Folder::new();
    let plan = plan_of(&folder.0, Target::PORTABLE, Factors::F32);
    let up = plan.weights.iter().find(|weight| weight.name == "up").unwrap();
    let bytes = up.bytes / u64::from(EXPERTS);
    let broken = up.offset + 3 * bytes..up.offset + 4 * bytes;
    let mended = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&mended);
    let mut engine = planted(&plan, &folder, 96 << 10, move |offset| {
        // Reads are whole pages, so a read may overlap the expert without beginning in it.
        let touches = offset < broken.end && broken.start < offset + 4096;
        if touches && !told.load(Ordering::Relaxed) { Err(EIO) } else { Ok(u64::MAX) }
    });
    let mut resident = Engine::load(plan.clone(), &folder.0, &options(2, 0, BackendKind::Native)).unwrap();
    let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
    for mend in [false, true] {
        mended.store(mend, Ordering::Relaxed);
        let (mut right, mut failed) = (0, 0);
        for token in 0..VOCABULARY {
            resident.reset();
            engine.reset();
            let expected = bits(resident.step(&[token], &[0]).unwrap());
            match engine.step(&[token], &[0]) {
                Ok(logits) => {
                    assert!(bits(logits) == expected, "token {token}");
                    right += 1;
                }
                Err(StepError::Execute(ExecuteError::Stream(StreamError::Read { errno: EIO, .. }))) => {
                    assert_eq!(engine.position(), 0);
                    failed += 1;
                }
                Err(error) => panic!("token {token}: {error}"),
            }
        }
        println!("mended {mend}: {right} right, {failed} failed");
        assert!(right > 0 && (failed > 0) != mend, "{right} right, {failed} failed");
    }
}

#[test]
fn a_file_that_is_overwritten_while_it_is_read_fails_the_step() {
    let folder = Folder::new();
    let plan = plan_of(&folder.0, Target::PORTABLE, Factors::F32);
    let path = folder.0.join("tiny.weights");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    // This modification time is far in the past, so that every later write changes it.
    file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1 << 30)).unwrap();
    let down = plan.weights.iter().find(|weight| weight.name == "down").unwrap();
    let (begin, bytes) = (down.offset, down.bytes);
    let reads = Arc::new(Mutex::new(0u64));
    let counted = Arc::clone(&reads);
    let mut engine = planted(&plan, &folder, 96 << 10, move |_| {
        let mut reads = counted.lock().unwrap();
        *reads += 1;
        if *reads == 2 {
            // The file keeps its length. All floats of the experts' last matrices become 0.
            file.write_all_at(&vec![0; bytes as usize], begin).unwrap();
        }
        Ok(u64::MAX)
    });
    let error = engine.step(&tokens()[..4], &[3]).unwrap_err();
    assert!(*reads.lock().unwrap() >= 2);
    let StepError::Execute(ExecuteError::Stream(StreamError::Changed(changed))) = &error else { panic!("{error}") };
    assert_eq!(changed.what, "time of change");
    assert!(error.to_string().starts_with(path.to_str().unwrap()), "{error}");
    assert_eq!(engine.position(), 0);
    assert!(engine.step(&tokens()[..4], &[3]).is_err());
}

#[test]
fn missing_plan_file_of_streamed_blocks_is_an_error() {
    let folder = Folder::new();
    let plan = plan_of(&folder.0, Target::AVX512, Factors::Packed);
    let path = folder.0.join("tiny.ixp");
    let written = file::weights::write(&path, &plan, &folder.0, &EngineOptions::default(), |_, _| ()).unwrap();
    for budget in [0, 1 << 20] {
        let error = Engine::load(written.clone(), &folder.0, &options(1, budget, native(Target::AVX512))).unwrap_err();
        assert!(matches!(error, LoadError::NoWeights), "{budget}: {error}");
    }
}

#[test]
fn total_memory_budget_is_met_or_refused() {
    let folder = Folder::new();
    let plan = plan_of(&folder.0, Target::PORTABLE, Factors::F32);
    let load = |memory| {
        let options = EngineOptions { memory: Some(memory), threads: Some(1), ..EngineOptions::default() };
        Engine::load(plan.clone(), &folder.0, &options)
    };
    let Err(LoadError::Budget { budget: 1, fixed, needed }) = load(1) else { panic!("a budget of one byte") };
    assert!(fixed < needed);
    // In the meantime, the memory of the process may grow a little.
    let engine = load(needed + (64 << 20)).unwrap();
    assert!(engine.stream().unwrap().bytes() > 0);
}

#[test]
fn groups_that_cannot_be_streamed_are_refused() {
    type Change = fn(&mut Plan<Kernel>);
    let cases: [(&str, Change); 11] = [
        ("requested, then released", |p| p.steps.retain(|step| !matches!(step, Step::Release { .. }))),
        ("requested, then released", |p| p.steps.retain(|step| !matches!(step, Step::Request { .. }))),
        ("requested, then released", |p| {
            p.steps.retain(|step| !matches!(step, Step::Release { .. }));
            p.steps.push(Step::Release { group: 0 });
        }),
        ("a task that reads the experts between their request and release", |p| {
            let at = p.steps.iter().position(|step| matches!(step, Step::Release { .. })).unwrap();
            p.steps.swap(at, at - 1);
            p.steps.swap(at - 1, at - 2);
        }),
        ("in one group only, and once", |p| p.expert_groups[0].weights[1] = p.expert_groups[0].weights[0]),
        ("one matrix for each expert", |p| p.expert_groups[0].weights[0] = 0),
        ("as many experts as the group of experts has", |p| {
            p.expert_groups[0].experts -= 1;
            for &weight in &p.expert_groups[0].weights {
                let weight = &mut p.weights[weight as usize];
                weight.bytes -= weight.bytes / weight.shape[0];
                weight.shape[0] -= 1;
            }
        }),
        ("buffers that earlier stages and tasks over other rows do not use", |p| {
            // For some experts, `down` writes memory that `gate` and `up` read for other experts.
            let read = p.buffers.iter().find(|buffer| buffer.name == "g").unwrap().offset;
            p.buffers.iter_mut().find(|buffer| buffer.name == "e").unwrap().offset = read;
        }),
        ("buffers that earlier stages and tasks over other rows do not use", |p| {
            // In the same step as `down`, a norm writes memory that `gate` and `up` read for late
            // experts.
            let named = |name: &str| BufferId(p.buffers.iter().position(|buffer| buffer.name == name).unwrap() as u32);
            let (norm_out, read) = (named("h2"), named("g"));
            let tasks = |step: &mut Step, label: &str| match step {
                Step::Run { tasks, .. } => tasks.iter().position(|task| task.label == label),
                _ => None,
            };
            let mut norm = None;
            for step in &mut p.steps {
                match (tasks(step, "norm2"), tasks(step, "down"), step) {
                    (Some(at), _, Step::Run { tasks, .. }) => norm = Some(tasks[at].clone()),
                    (_, Some(_), Step::Run { tasks, .. }) => tasks.extend(norm.take()),
                    _ => {}
                }
            }
            let down = p.steps.iter_mut().find_map(|step| match step {
                Step::Run { tasks, .. } if tasks.iter().any(|task| task.label == "down") => tasks.last_mut(),
                _ => None,
            });
            for arg in &mut down.unwrap().args {
                if arg.source == Source::Arena(norm_out) {
                    arg.source = Source::Arena(read);
                }
            }
        }),
        ("experts of all groups is 1114112", |p| {
            let group = p.expert_groups[0].clone();
            p.expert_groups = vec![ExpertGroup { experts: 1 << 16, ..group }; 17];
        }),
        ("group of experts 1 does not exist", |p| {
            let request = p.steps.iter_mut().find(|step| matches!(step, Step::Request { .. })).unwrap();
            *request = Step::Request { group: 1, bucket: BucketId(0) };
        }),
    ];
    let folder = Folder::new();
    for (expected, change) in cases {
        let mut plan = plan_of(&folder.0, Target::PORTABLE, Factors::F32);
        change(&mut plan);
        let error = Engine::load(plan, &folder.0, &options(1, 0, BackendKind::Native)).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn mapped_experts_match_resident_bits_with_read_ahead_advice() {
    let folder = Folder::new();
    let load = |factors, experts| {
        let plan = plan_of(&folder.0, Target::PORTABLE, factors);
        Engine::load(plan, &folder.0, &EngineOptions { experts, ..options(2, 0, BackendKind::Native) })
    };
    let mut resident = load(Factors::F32, ExpertStore::Stream).unwrap();
    // Compiling the other plan has rewritten the file of the weights.
    let right = logits(&mut resident);
    let mut mapped = load(Factors::F32, ExpertStore::Map).unwrap();
    assert!(logits(&mut mapped) == right);
    assert!(resident.advice_counts().is_none() && mapped.stream().is_none());
    let advised = mapped.advice_counts().unwrap();
    assert!(advised.experts >= u64::from(TOP_K) && advised.bytes > advised.experts, "{advised:?}");
    // A weight that must be packed when it is loaded cannot be used directly from the mapped file.
    let refused = load(Factors::Packed, ExpertStore::Map).unwrap_err();
    assert!(matches!(&refused, LoadError::PackedExperts { .. }), "{refused}");
    assert!(refused.to_string().contains("without packing"), "{refused}");
}
