//! Models on dataflow machines. For the same plan, the simulator gives the same bits as the CPU's
//! engine.

use std::collections::HashSet;
use std::path::Path;

use crate::support::made::{BASE, ExpertParameters, ModelParameters};
use crate::support::{Golden, ixc, scratch, shared, stderr, stdout};
use ixc::dataflow::check::coverage::Fault;
use ixc::dataflow::check::{CheckError, Machine};
use ixc::dataflow::data::Runner;
use ixc::dataflow::descriptor::{Descriptor, End, Port};
use ixc::dataflow::grid::{Edge, Grid, Routing};
use ixc::dataflow::grids;
use ixc::dataflow::simulate::Simulator;
use ixc::ir::format::Format::{F16, F32, Q4_0, Q4K, Q6K, Q8_0};
use ixc::ir::random::Random;
use ixc::model::Model;
use ixc::place::{PlaceOptions, place};
use ixc::runtime::engine::{self, BackendKind, Engine};
use ixc::runtime::load::BuiltIn;
use ixc::simulate::{ModelWeights, WeightError};

/// Simulates tokens in steps of these lengths, and compares each step's logits with the engine's.
fn same_bits(name: &str, model: &Model, grid: &Grid, context: u32, steps: &[&[u32]], runner: Runner) {
    let placed = place(model, grid, &PlaceOptions { context: Some(context) });
    let placed = placed.unwrap_or_else(|error| panic!("{name} on {}: {error}", grid.name));
    let backend = match runner {
        Runner::Compiled => BackendKind::Native,
        Runner::Interpreter => BackendKind::Interpreter,
    };
    let built_in = Some(BuiltIn { path: ixc::demo::NAME, bytes: ixc::demo::bytes() });
    let options = engine::EngineOptions {
        threads: Some(2),
        context: Some(context.into()),
        backend,
        built_in,
        ..Default::default()
    };
    let mut engine = Engine::load(placed.plan, Path::new(""), &options).unwrap();
    let machine = Machine::new(placed.descriptor).unwrap_or_else(|error| panic!("{name} on {}: {error}", grid.name));
    let weights = ModelWeights::new(&machine.descriptor, &model.gguf).unwrap();
    let mut simulator = Simulator::with_weights(&machine, &weights, runner).unwrap();
    for tokens in steps {
        let wanted: Vec<u32> = (0..tokens.len() as u32).collect();
        let step = simulator.step(tokens, &wanted).unwrap_or_else(|error| panic!("{name} on {}: {error}", grid.name));
        let right: Vec<f32> = engine.step(tokens, &wanted).unwrap().to_vec();
        let found: Vec<f32> = step.logits.concat();
        assert_eq!(found.len(), right.len());
        let other = found.iter().zip(&right).position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(other, None, "{name} on {}: logits differ", grid.name);
        assert!(right.iter().any(|x| *x != 0.0));
        let summary = step.report.summary();
        assert!(summary.cycles > 0 && summary.firings > 0 && summary.messages > 0);
        let path = summary.critical.unwrap();
        assert_eq!(path.compute + path.link + path.contention + path.wait + path.host, summary.cycles, "{name}");
        // The number of cycles is not below the report's lower bounds.
        assert!(summary.cycles as f64 >= summary.roofline.busiest.max(summary.roofline.busiest_link), "{name}");
    }
    let waves = machine.descriptor.waves.len();
    println!("{name} on {}: {} instances, {waves} waves", grid.name, machine.layout.pe.len());
}

#[test]
fn golden_models_have_the_bits_of_the_engine() {
    let Some(golden) = shared("golden") else { return };
    let (mut llama, mut qwen) = (0, 0);
    for golden in Golden::all(&golden) {
        let model = Model::open(&golden.model).unwrap();
        match model.arch.hyper.architecture.as_str() {
            "llama" => llama += 1,
            "qwen3moe" => qwen += 1,
            _ => continue,
        }
        let tokens = golden.tokens("prompt_tokens");
        let grid = grids::find(if llama % 2 == 0 { "medium" } else { "tiny-colours" }).unwrap();
        same_bits(golden.name(), &model, &grid, 64, &[&tokens[..2], &tokens[2..3]], Runner::Compiled);
    }
    assert!(llama >= 9 && qwen >= 1, "{llama} llama, {qwen} qwen3moe");
}

#[test]
fn a_golden_model_has_the_bits_of_the_interpreter() {
    let Some(golden) = shared("golden") else { return };
    let golden = Golden::read(&golden.join("expect/qwen3moe-q4_k_m.json"));
    let model = Model::open(&golden.model).unwrap();
    let tokens = golden.tokens("prompt_tokens");
    same_bits(golden.name(), &model, &grids::find("small").unwrap(), 64, &[&tokens[..2]], Runner::Interpreter);
}

#[test]
fn simulated_demo_model_continues_a_prompt() {
    let arguments =
        ["simulate", "--target", "dataflow:small", "-p", "The borrow checker", "-n", "6", "--check", "--json"];
    let facts: serde_json::Value = serde_json::from_str(&stdout(ixc(arguments))).unwrap();
    assert_eq!(facts["tokens"].as_array().unwrap().len(), 6);
    assert_eq!(facts["logits_compared"], 6 * 4096);
    assert!(facts["text"].as_str().unwrap().starts_with(' '), "{facts}");
    let plain = stdout(ixc(["simulate", "--target", "dataflow:small", "-p", "The borrow checker", "-n", "6"]));
    assert_eq!(plain.trim_end_matches('\n'), facts["text"].as_str().unwrap().trim_end_matches('\n'));
}

#[test]
fn simulated_batches_print_a_table_and_draw_a_page() {
    let page = scratch("simulate").join("grid.html");
    let mut command =
        ixc(["simulate", "--target", "dataflow:small", "--batch", "1,4,16", "--position", "30", "--html"]);
    let table = stdout({
        command.arg(&page);
        command
    });
    let rows: Vec<Vec<f64>> = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().map(|word| word.trim_end_matches('%').parse().unwrap()).collect())
        .collect();
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), [1.0, 4.0, 16.0]);
    // The cycles per token decrease with more tokens, because the pipeline fills.
    assert!(rows[0][2] > rows[1][2] && rows[1][2] > rows[2][2], "{table}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("id=\"data\""));
}

#[test]
fn invalid_simulate_arguments_show_valid_values() {
    for (arguments, status, says) in [
        (vec!["simulate", "--target", "wse3"], 2, "dataflow:wse3"),
        (vec!["simulate", "--target", "dataflow:wse9"], 2, "wse3, wse2"),
        (vec!["simulate", "no.json"], 66, "no.json"),
        (vec!["simulate", "no.json", "--check", "-p", "x"], 2, "not a descriptor"),
        (vec!["simulate", "--batch", "0"], 2, "0"),
        (vec!["simulate", "--position", "4000"], 65, "the context has"),
    ] {
        let output = ixc(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{arguments:?}: {}", stderr(&output));
    }
}

type Formats = &'static [(&'static str, ixc::ir::format::Format)];

const FORMATS: &[Formats] = &[
    &[("token_embd", F16), ("ffn_gate_inp", F32), ("", Q4K)],
    &[("token_embd", F16), ("ffn_gate_inp", F32), ("", Q6K)],
    &[("token_embd", Q8_0), ("ffn_gate_inp", F32), ("", Q8_0)],
    &[("token_embd", F32), ("ffn_gate_inp", F32), ("", Q4_0)],
    &[("ffn_gate_inp", F32), ("", F16)],
];

/// Returns a small model of random sizes.
fn random_model(random: &mut Random, number: u64) -> Model {
    let heads = random.pick(&[4, 8]);
    let experts = random.pick(&[
        None,
        Some(ExpertParameters { count: 5, used: 2, inner: 256 }),
        Some(ExpertParameters { count: 4, used: 1, inner: 512 }),
    ]);
    let formats = random.pick(FORMATS);
    // Some models have rows that are normalised in pieces; in some of these, the last piece is
    // shorter.
    let in_blocks = formats.iter().any(|(_, format)| matches!(format, Q4K | Q6K));
    let width = random.pick(if in_blocks { &[256, 512, 768] } else { &[256, 512, 544] });
    let made = ModelParameters {
        seed: 0xda7a + number,
        context: 200,
        architecture: if experts.is_some() { "qwen3moe" } else { "llama" },
        layers: 1 + random.below(2),
        width,
        heads,
        kv_heads: random.pick(&[1, 2, 4]),
        key_length: random.pick(&[32, 64]),
        inner: 256 * (1 + random.below(2)),
        experts,
        vocabulary: 96 + 16 * random.below(4),
        formats,
        ..BASE
    };
    let path = scratch("simulate_random").join(format!("{number}.gguf"));
    std::fs::write(&path, made.file()).unwrap();
    Model::open(&path).unwrap()
}

fn random_grid(random: &mut Random) -> Grid {
    let mut grid = grids::find("tiny").unwrap();
    let (side, sram) =
        random.pick(&[(1, 64 << 20), (3, 2 << 20), (6, 256 << 10), (12, 96 << 10), (40, 64 << 10), (2, 400 << 10)]);
    (grid.width, grid.height) = (side + random.below(3) as u32, side + random.below(3) as u32);
    grid.name = format!("{} x {}", grid.width, grid.height);
    grid.pe.sram_bytes = sram;
    grid.link.bytes = random.pick(&[1, 4, 32]);
    grid.link.hop_cycles = random.below(4) as u32;
    grid.link.routing = random.pick(&[Routing::Packets, Routing::Colours(32)]);
    grid.io.edges = vec![random.pick(&[Edge::West, Edge::East, Edge::North, Edge::South])];
    grid
}

#[test]
fn random_models_on_random_grids_have_the_bits_of_the_engine() {
    let mut random = Random::new(0x5eed);
    let (mut norms, mut alone) = (HashSet::new(), HashSet::new());
    for number in 0..10 {
        let model = random_model(&mut random, number);
        let grid = random_grid(&mut random);
        let placed = place(&model, &grid, &PlaceOptions { context: Some(96) }).unwrap();
        alone.insert(placed.descriptor.programs.iter().any(|program| program.label.ends_with("combined 1")));
        norms.extend(placed.plan.kernels.iter().filter_map(|kernel| {
            ["rms_norm_f32", "rms_norm_a8", "rms_norm_piece_f32", "rms_norm_piece_a8"]
                .into_iter()
                .find(|name| kernel.name.starts_with(name))
        }));
        let tokens: Vec<u32> = (0..5).map(|_| random.below(96) as u32).collect();
        let runner = if number % 5 == 4 { Runner::Interpreter } else { Runner::Compiled };
        // With a short context, parts of attention have 32 positions.
        same_bits(&format!("model {number}"), &model, &grid, 96, &[&tokens[..1], &tokens[1..4], &tokens[4..]], runner);
    }
    assert!(alone.len() == 2, "heads of one group are attended together in some models");
    assert!(norms.len() == 4, "norms of whole rows and in pieces, quantised and not: {norms:?}");
}

#[test]
fn faults_planted_in_a_placed_model_are_detected() {
    let model = Model::new(ixc::demo::open().unwrap()).unwrap();
    let grid = grids::find("small").unwrap();
    let sound = place(&model, &grid, &PlaceOptions { context: Some(64) }).unwrap().descriptor;
    let machine = Machine::new(sound.clone()).unwrap();
    let most = *machine.memory.iter().max().unwrap();

    let mut full = sound.clone();
    full.grid.pe.sram_bytes = most + full.grid.pe.reserved_bytes - 1;
    let error = Machine::new(full).unwrap_err().to_string();
    assert!(error.contains(&format!("needs {most} bytes, but has {}", most - 1)), "{error}");

    // Removes single streams of a descriptor. The check reports every removal, because no other
    // stream delivers the same bytes.
    let mut faults = HashSet::new();
    for stream in (0..sound.streams.len()).step_by(7) {
        let mut cut = sound.clone();
        let gone = cut.streams.remove(stream);
        match (Machine::new(cut), gone.to) {
            (Err(CheckError::NoSendingStream { .. }), End::Program(_)) => faults.insert("port"),
            (Err(CheckError::NoTakingStream { .. }), _) => faults.insert("sender"),
            (Err(CheckError::Coverage { fault: Fault::Missing, .. }), _) => faults.insert("bytes"),
            (found, _) => panic!("stream {stream}, {gone:?}: {:?}", found.map(drop)),
        };
    }
    assert!(faults.contains("port"), "{faults:?}");

    // In this wrong descriptor, all columns send the bytes of the first column.
    let mut changed = 0;
    for (number, label) in sound.programs.iter().map(|program| program.label.clone()).enumerate() {
        let mut same = sound.clone();
        let ports = same.programs[number].ports.iter_mut().filter_map(|port| match port {
            Port::Send(slice) if slice.column_stride > 0 => Some(slice),
            _ => None,
        });
        let mut any = false;
        for slice in ports {
            (slice.column_stride, any) = (0, true);
        }
        if !any {
            continue;
        }
        let error = Machine::new(same).map(drop).unwrap_err();
        let CheckError::Coverage { fault: Fault::Twice | Fault::Missing, .. } = error else {
            panic!("{label}: {error}")
        };
        changed += 1;
    }
    assert!(changed > 10, "{changed}");

    // If the receiver has memory for only one row, rows still arrive, but later.
    let mut narrow = sound;
    for program in &mut narrow.programs {
        for port in &mut program.ports {
            if let Port::Receive(slice) | Port::Send(slice) = port {
                slice.rows = 1;
            }
        }
    }
    let narrow = Machine::new(narrow).unwrap();
    let [wide, narrow] = [&machine, &narrow].map(|machine| {
        let step = Simulator::for_timing(machine, 1).step(&[0; 8], &[7]);
        step.unwrap_or_else(|error| panic!("{error}")).report.cycles
    });
    assert!(wide < narrow, "{wide} {narrow}");
}

#[test]
fn weights_of_another_model_are_refused() {
    let Some(golden) = shared("golden") else { return };
    let golden = Golden::read(&golden.join("expect/llama-q4_0.json"));
    let model = Model::open(&golden.model).unwrap();
    let placed =
        place(&model, &grids::find("medium").unwrap(), &PlaceOptions { context: Some(64) }).unwrap().descriptor;
    ModelWeights::new(&placed, &model.gguf).unwrap();
    // A file with the same shapes but another header is refused.
    let mut bytes = std::fs::read(&golden.model).unwrap();
    let name = b"general.architecture";
    let place = bytes.windows(name.len()).position(|window| window == name).unwrap();
    let other = scratch("simulate_other").join("other.gguf");
    // The last letter of an unused key is changed.
    let key = b"general.file_type";
    let place = bytes.windows(key.len()).position(|window| window == key).map_or(place, |at| at + key.len() - 1);
    bytes[place] ^= 1;
    std::fs::write(&other, &bytes).unwrap();
    let other = Model::open(&other).unwrap();
    let error = ModelWeights::new(&placed, &other.gguf).map(drop).unwrap_err();
    assert!(matches!(&error, WeightError::OtherModel { what: "the checksum of its header", .. }), "{error}");

    type Change = fn(&mut Descriptor);
    let changes: [(&str, Change); 4] = [
        ("model files is 1; the descriptor expects 0", |d| d.files.clear()),
        ("the model has it at byte", |d| d.weights[0].offset += 1),
        ("is not a format; expected one of", |d| d.weights[0].format = "q9".to_owned()),
        ("no weight of this name", |d| d.weights[0].name.clear()),
    ];
    for (says, change) in changes {
        let mut placed = placed.clone();
        change(&mut placed);
        let error = ModelWeights::new(&placed, &model.gguf).map(drop).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
}

#[test]
fn waves_are_on_the_critical_path() {
    let Some(golden) = shared("golden") else { return };
    let golden = Golden::read(&golden.join("expect/llama-q4_0.json"));
    let model = Model::open(&golden.model).unwrap();
    let mut grid = grids::find("tiny").unwrap();
    (grid.width, grid.height, grid.pe.sram_bytes) = (3, 3, 170_000);
    let placed = place(&model, &grid, &PlaceOptions { context: Some(64) }).unwrap().descriptor;
    let machine = Machine::new(placed).unwrap();
    let waves = machine.descriptor.waves.len();
    assert!(waves > 1);
    let report = Simulator::for_timing(&machine, 1).step(&[0], &[0]).unwrap().report;
    let path = report.critical.unwrap();
    assert_eq!(path.compute + path.link + path.contention + path.wait + path.host, report.cycles);
    let on_path: HashSet<&str> = path.programs.iter().map(|(label, _)| label.as_str()).collect();
    for wave in 0..waves as u32 {
        let programs = machine.descriptor.programs.iter().filter(|program| program.wave == wave);
        assert!(programs.clone().any(|program| on_path.contains(program.label.as_str())), "wave {wave}");
    }
}
