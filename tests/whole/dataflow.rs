//! Placement on grids of processing elements (PEs). Every descriptor obeys the rules, and its plan
//! computes the model's logits.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use crate::support::made::{BASE, ExpertParameters, ModelParameters};
use crate::support::steps::same_bits;
use crate::support::{Golden, demo_model, shared};
use ixc::dataflow::descriptor::{Descriptor, End, Port, Route, Slice, TensorSource};
use ixc::dataflow::grid::{Edge, Grid, Io, Link, Operations, Pe, Routing};
use ixc::dataflow::place::PlaceError;
use ixc::ir::format::Format::{F16, F32, Q4K};
use ixc::ir::kernel::Kernel;
use ixc::ir::plan::Plan;
use ixc::model::Model;
use ixc::place::{PlaceOptions, place};
use ixc::runtime::engine::{self, BackendKind, Engine};
use ixc_testing::nmse::nmse;

fn grid(width: u32, height: u32, sram_bytes: u64, routing: Routing) -> Grid {
    Grid {
        name: format!("{width}x{height}"),
        description: "made up".to_string(),
        sources: vec!["made up".to_string()],
        not_public: Vec::new(),
        width,
        height,
        clock_hz: 1e9,
        pe: Pe {
            sram_bytes,
            reserved_bytes: 1024,
            read_bytes: 16,
            write_bytes: 8,
            operations: Operations { int8: 16.0, int: 8.0, f32: 4.0, special: 1.0 },
            start_cycles: 10,
        },
        link: Link { bytes: 4, hop_cycles: 1, routing },
        io: Io { edges: vec![Edge::West, Edge::East], bytes_per_second: 1e11, latency_seconds: 1e-7 },
    }
}

fn engine(plan: Plan<Kernel>, backend: BackendKind) -> Engine {
    let options = engine::EngineOptions { threads: Some(2), backend, ..engine::EngineOptions::default() };
    Engine::load(plan, Path::new(""), &options).unwrap()
}

/// Returns logits of all tokens, in steps of `step` tokens.
fn run(engine: &mut Engine, tokens: &[u32], step: usize) -> Vec<f32> {
    engine.reset();
    let mut logits = Vec::new();
    for part in tokens.chunks(step) {
        let rows: Vec<u32> = (0..part.len() as u32).collect();
        logits.extend_from_slice(engine.step(part, &rows).unwrap());
    }
    logits
}

/// Returns the range of the row's bytes for each column and part of a slice: `(first byte, bytes)`.
fn ranges(slice: &Slice, columns: u32, parts: u32) -> Vec<(u64, u64)> {
    let at = |column: u32, part: u32| {
        slice.offset + u64::from(column) * slice.column_stride + u64::from(part) * slice.part_stride
    };
    (0..parts).flat_map(|part| (0..columns).map(move |column| (at(column, part), slice.bytes))).collect()
}

fn received(port: &Port) -> Option<&Slice> {
    match port {
        Port::Receive(slice) | Port::ReceiveSlots(slice) | Port::ReceiveRope(slice) => Some(slice),
        Port::ReceiveParts { slice, .. } => Some(slice),
        _ => None,
    }
}

/// Checks the rules that every descriptor must obey.
fn check(d: &Descriptor) {
    // The simulator's check tests its own rules.
    if let Err(error) = ixc::dataflow::check::Machine::new(d.clone()) {
        panic!("{error}");
    }
    memory(d);
    weights(d);
    everything_is_received(d);
    colours(d);
    // Every sent slice has a stream.
    for (number, program) in d.programs.iter().enumerate() {
        for port in &program.ports {
            let Port::Send(slice) = port else { continue };
            let taken = d.streams.iter().any(|s| s.tensor == slice.tensor && s.from == End::Program(number as u32));
            let ids = d.routings.iter().any(|routing| routing.ids == slice.tensor);
            assert!(taken || ids, "{}: nobody takes {}", program.label, d.tensors[slice.tensor as usize].name);
        }
    }
}

/// Checks that every instance is on the grid, and that no PE holds more than its memory.
fn memory(d: &Descriptor) {
    let mut bytes: HashMap<(u32, (u32, u32)), u64> = HashMap::new();
    let mut code = HashSet::new();
    let mut states = HashMap::new();
    for program in &d.programs {
        assert!((program.wave as usize) < d.waves.len());
        for expert in 0..d.experts(program) {
            for part in 0..d.parts(program) {
                for column in 0..program.columns {
                    let pe = program.sites.pe(column, expert, part);
                    assert!(pe.0 < d.grid.width && pe.1 < d.grid.height, "{}: {pe:?}", program.label);
                    let sum = bytes.entry((program.wave, pe)).or_default();
                    *sum += d.instance_bytes(program).total();
                    if code.insert((program.wave, pe, program.kernel)) {
                        *sum += d.kernels[program.kernel as usize].code_bytes;
                    }
                    if let Some(state) = program.state {
                        let at = *states.entry((state, column, part)).or_insert_with(|| {
                            *sum += d.states[state as usize].part_bytes();
                            (program.wave, pe)
                        });
                        assert_eq!(at, (program.wave, pe), "{}: away from its state", program.label);
                    }
                }
            }
        }
    }
    for (pe, bytes) in bytes {
        assert!(bytes <= d.grid.usable_bytes(), "PE {pe:?} holds {bytes} bytes");
    }
}

/// Checks that every byte of every matrix that products read belongs to exactly one instance.
fn weights(d: &Descriptor) {
    let mut slices: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for program in &d.programs {
        for port in &program.ports {
            let Port::Weight { weight, offset, column_stride, expert_stride, bytes } = port else { continue };
            if d.weights[*weight as usize].shape.len() < 2 {
                continue;
            }
            for expert in 0..d.experts(program) {
                for column in 0..program.columns {
                    let at = offset + u64::from(column) * column_stride + u64::from(expert) * expert_stride;
                    slices.entry(*weight).or_default().push((at, *bytes));
                }
            }
        }
    }
    assert!(!slices.is_empty());
    for (weight, mut slices) in slices {
        let info = &d.weights[weight as usize];
        slices.sort_unstable();
        let mut end = 0;
        for (at, bytes) in slices {
            assert_eq!(at, end, "{}: a byte twice or not at all", info.name);
            end = at + bytes;
        }
        assert_eq!(end, info.bytes, "{}", info.name);
    }
}

/// Checks that every byte that a program receives is sent by another program, and that a stream
/// brings it.
fn everything_is_received(d: &Descriptor) {
    let mut sent: HashMap<(u32, u32), Vec<(u64, u64)>> = HashMap::new();
    for (number, program) in d.programs.iter().enumerate() {
        for port in &program.ports {
            if let Port::Send(slice) = port {
                let all = ranges(slice, program.columns, d.parts(program));
                sent.entry((slice.tensor, number as u32)).or_default().extend(all);
            }
        }
    }
    for (number, program) in d.programs.iter().enumerate() {
        let number = number as u32;
        for port in &program.ports {
            let Some(slice) = received(port) else { continue };
            let parts = match port {
                Port::ReceiveParts { state, .. } => d.states[*state as usize].parts.count,
                _ => d.parts(program),
            };
            let name = &d.tensors[slice.tensor as usize].name;
            let streams = d.streams.iter().filter(|s| s.tensor == slice.tensor && s.to == End::Program(number));
            let mut come: Vec<(u64, u64)> = Vec::new();
            for stream in streams {
                match stream.from {
                    End::Program(from) => {
                        assert_eq!(d.programs[from as usize].wave, program.wave, "{name}");
                        assert!(from < number, "{name} is read before it is made");
                        come.extend(&sent[&(slice.tensor, from)]);
                    }
                    End::Host if d.tensors[slice.tensor as usize].source == TensorSource::Programs => {
                        let stored = d.streams.iter().filter(|s| s.tensor == slice.tensor && s.to == End::Host);
                        for stream in stored {
                            let End::Program(from) = stream.from else { panic!("{name} from host to host") };
                            assert!(d.programs[from as usize].wave < program.wave, "{name}");
                            come.extend(&sent[&(slice.tensor, from)]);
                        }
                    }
                    End::Host => come.push((0, d.tensors[slice.tensor as usize].row_bytes)),
                }
            }
            come.sort_unstable();
            for (begin, bytes) in ranges(slice, program.columns, parts) {
                let mut at = begin;
                for &(from, length) in &come {
                    if from <= at {
                        at = at.max(from + length);
                    }
                }
                assert!(at >= begin + bytes, "{}: bytes {at} of {name} come from nowhere", program.label);
            }
        }
    }
}

/// Checks that within a wave, each colour of a link carries one tensor from one sender.
fn colours(d: &Descriptor) {
    let Routing::Colours(most) = d.grid.link.routing else {
        assert!(d.streams.iter().all(|stream| stream.colour == 0));
        return;
    };
    let mut owners = HashMap::new();
    let edge = |(x, y): (u32, u32)| if x <= d.grid.width - 1 - x { (0, y) } else { (d.grid.width - 1, y) };
    for stream in &d.streams {
        assert!(stream.colour < most);
        let pes = |program: u32, wanted: &dyn Fn(&Port) -> Option<Slice>| {
            let p = &d.programs[program as usize];
            let mut all = Vec::new();
            for slice in p.ports.iter().filter_map(wanted) {
                let parts = d.parts(p).max(d.states.first().map_or(1, |state| state.parts.count));
                for expert in 0..d.experts(p) {
                    for part in 0..if slice.part_stride > 0 { parts } else { d.parts(p) } {
                        for column in 0..p.columns {
                            let at = slice.offset
                                + u64::from(column) * slice.column_stride
                                + u64::from(part) * slice.part_stride;
                            let own = if d.parts(p) > 1 { part } else { 0 };
                            all.push((expert, (at, at + slice.bytes), p.sites.pe(column, expert, own)));
                        }
                    }
                }
            }
            all
        };
        let sent = |port: &Port| match port {
            Port::Send(slice) if slice.tensor == stream.tensor => Some(*slice),
            _ => None,
        };
        let taken = |port: &Port| received(port).copied().filter(|slice| slice.tensor == stream.tensor);
        let from = match stream.from {
            End::Program(program) => pes(program, &sent),
            End::Host => {
                let End::Program(to) = stream.to else { panic!("from host to host") };
                vec![(0, (0, u64::MAX), edge(d.programs[to as usize].sites.pe(0, 0, 0)))]
            }
        };
        let to = match stream.to {
            End::Program(program) => pes(program, &taken),
            End::Host => Vec::new(),
        };
        let axis = |end: End| match end {
            End::Program(program) => Some(d.programs[program as usize].axis),
            End::Host => None,
        };
        let same = axis(stream.from) == axis(stream.to);
        let wave = match (stream.from, stream.to) {
            (End::Program(program), _) | (_, End::Program(program)) => d.programs[program as usize].wave,
            (End::Host, End::Host) => panic!("from host to host"),
        };
        for (expert, range, a) in from {
            let ends =
                to.iter().filter(|(e, wanted, _)| (!same || *e == expert) && wanted.0 < range.1 && range.0 < wanted.1);
            let mut ends: Vec<(u32, u32)> = ends.map(|(_, _, pe)| *pe).collect();
            if stream.to == End::Host {
                ends.push(edge(a));
            }
            ends.sort_unstable();
            ends.dedup();
            for b in ends {
                let (mut x, mut y) = a;
                let mut step = |x: u32, y: u32, nx: u32, ny: u32| {
                    let owner = (stream.tensor, stream.from);
                    let before = *owners.entry((wave, (x, y), (nx, ny), stream.colour)).or_insert(owner);
                    assert_eq!(before, owner, "two on one colour from ({x}, {y}) to ({nx}, {ny})");
                };
                for along_x in if stream.route == Route::XThenY { [true, false] } else { [false, true] } {
                    while if along_x { x != b.0 } else { y != b.1 } {
                        let (nx, ny) = match along_x {
                            true => (if x < b.0 { x + 1 } else { x - 1 }, y),
                            false => (x, if y < b.1 { y + 1 } else { y - 1 }),
                        };
                        step(x, y, nx, ny);
                        (x, y) = (nx, ny);
                    }
                }
            }
        }
    }
}

const COLOURS: Routing = Routing::Colours(24);

/// Returns a generated model of two layers.
fn made_model() -> ModelParameters {
    ModelParameters {
        seed: 0xf10,
        context: 200,
        architecture: "qwen3moe",
        layers: 2,
        width: 512,
        experts: Some(ExpertParameters { count: 6, used: 2, inner: 256 }),
        vocabulary: 144,
        formats: &[("token_embd", F16), ("ffn_gate_inp", F32), ("", Q4K)],
        ..BASE
    }
}

fn made(name: &str, made: &ModelParameters) -> Model {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dataflow_{name}.gguf"));
    std::fs::write(&path, made.file()).unwrap();
    Model::open(&path).unwrap()
}

#[test]
fn models_fit_grids_of_all_kinds() {
    let dense = ModelParameters { architecture: "llama", experts: None, kv_heads: 4, tied: true, ..made_model() };
    for (name, model) in [("experts", made("experts", &made_model())), ("dense", made("dense", &dense))] {
        let mut ways = HashSet::new();
        for grid in [
            grid(8, 8, 2 << 20, Routing::Packets),
            grid(16, 16, 1 << 18, Routing::Packets),
            grid(96, 80, 48 << 10, COLOURS),
            grid(3, 5, 160 << 10, Routing::Packets),
            grid(1, 1, 64 << 20, COLOURS),
        ] {
            let placed = place(&model, &grid, &PlaceOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
            let d = &placed.descriptor;
            println!("{name} on {}: {:#?}", grid.name, d.reasons);
            check(d);
            ways.insert((d.waves.len() > 1, d.reasons.iter().any(|reason| reason.contains("PEs of their own"))));
            let again = place(&model, &grid, &PlaceOptions::default()).unwrap().descriptor;
            assert!(*d == again, "{name}: another descriptor the second time");
        }
        // The grids lead to all three kinds of placement: programs with separate PEs, programs that
        // share PEs, and waves.
        assert_eq!(ways.len(), 3, "{name}: {ways:?}");
    }
}

#[test]
fn too_small_grid_error_names_the_oversized_part() {
    let model = made("too_small", &made_model());
    let error = |grid: &Grid| match place(&model, grid, &PlaceOptions::default()) {
        Err(ixc::CompileError::Place(error)) => error,
        other => panic!("{other:?}"),
    };
    let small = error(&grid(200, 200, 6 << 10, Routing::Packets));
    assert!(matches!(&small, PlaceError::Instance { bytes, available: 5120, .. } if *bytes > 5120), "{small}");
    let none = error(&grid(0, 5, 1 << 20, Routing::Packets));
    assert!(none.to_string().contains("width"), "{none}");
    let colours = error(&grid(96, 80, 48 << 10, Routing::Colours(1)));
    assert!(matches!(colours, PlaceError::Colours { colours: 1, .. }), "{colours}");
}

/// Checks that plans cut into pieces stay within the error limits of the golden models. The
/// interpreter of kernel IR gives the same bits.
#[test]
fn plans_in_pieces_compute_the_model() {
    let Some(golden) = shared("golden") else { return };
    let mut names = vec!["llama-q4_k", "llama-q6_k", "llama-q8_0", "llama-f16", "qwen3moe-q4_k_m"];
    names.push("mixtral-q4_k_m");
    for name in names {
        let golden = Golden::read(&golden.join(format!("expect/{name}.json")));
        let model = Model::open(&golden.model).unwrap();
        let tokens = golden.tokens("prompt_tokens");
        for grid in [grid(16, 16, 512 << 10, Routing::Packets), grid(128, 128, 48 << 10, COLOURS)] {
            let placed = place(&model, &grid, &PlaceOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
            check(&placed.descriptor);
            println!("{name} on {}: {:#?}", grid.name, placed.descriptor.reasons);
            let mut portable = engine(placed.plan.clone(), BackendKind::Native);
            let logits = run(&mut portable, &tokens, 32);
            let (nmse, limit) = (nmse(golden.last(&logits), &golden.exact), golden.number("compiled_nmse_max"));
            println!("{nmse:.2e} <= {limit:.2e}  {name}");
            assert!(nmse <= limit, "{nmse:e} > {limit:e}  {name} on {}", grid.name);
            assert!(same_bits(&logits, &run(&mut portable, &tokens, 1)), "{name}: steps of one token have other bits");
            let few = &tokens[..tokens.len().min(3)];
            let mut interpreter = engine(placed.plan, BackendKind::Interpreter);
            let interpreted = run(&mut interpreter, few, 2);
            assert!(same_bits(&interpreted, &logits[..interpreted.len()]), "{name}: the interpreter has other bits");
        }
    }
}

/// Checks a row that is too large for any PE: it is normalised in pieces, and each product receives
/// the pieces that it reads.
#[test]
fn a_row_longer_than_a_memory_is_normed_in_pieces() {
    let long =
        ModelParameters { architecture: "llama", experts: None, layers: 1, width: 8192, inner: 256, ..made_model() };
    let model = made("long", &long);
    let grid = grid(160, 160, 32 << 10, COLOURS);
    let d = place(&model, &grid, &PlaceOptions { context: Some(64) }).unwrap().descriptor;
    check(&d);
    let row = 8192 * 4;
    assert!(row > grid.usable_bytes());
    let norms: Vec<_> = d.programs.iter().filter(|program| program.label.starts_with("rms_norm")).collect();
    assert_eq!(norms.len(), 6, "two tasks for each of three norms");
    for norm in norms {
        assert_eq!(norm.columns, 32, "{}", norm.label);
        for slice in norm.ports.iter().filter_map(received) {
            assert!(slice.bytes == 1024 || slice.bytes == 32 * 4, "{}: {} bytes", norm.label, slice.bytes);
        }
    }
    let products = d.programs.iter().filter(|program| program.label.starts_with("linear.qkv"));
    let read = products.flat_map(|program| program.ports.iter().find_map(received)).map(|slice| slice.bytes).max();
    assert!(read.is_some_and(|bytes| bytes < row / 8), "{read:?}");
}

#[test]
fn demo_model_fits_a_small_grid() {
    let model = Model::open(&demo_model()).unwrap();
    let placed = place(&model, &grid(16, 16, 512 << 10, Routing::Packets), &PlaceOptions::default()).unwrap();
    println!("{:#?}", placed.descriptor.reasons);
    check(&placed.descriptor);
}

/// Checks random models on random grids. Placement gives a descriptor that obeys the rules, or an
/// error that names the program that does not fit.
#[test]
fn random_models_fit_random_grids_or_are_refused() {
    let (mut fitted, mut refused) = (0, 0);
    for seed in 0..16u64 {
        let made = ModelParameters::random(seed);
        let model = self::made(&format!("random_{seed}"), &made);
        let side = |shift: u32, most: u64| 1 + ((seed * 2_654_435_761) >> shift) % most;
        let (width, height) = (side(3, 40) as u32, side(9, 40) as u32);
        let routing = if seed % 3 == 0 { COLOURS } else { Routing::Packets };
        let grid = grid(width, height, (side(5, 64) + 4) << 12, routing);
        match place(&model, &grid, &PlaceOptions { context: Some(side(7, 300) as u32) }) {
            Ok(placed) => {
                check(&placed.descriptor);
                fitted += 1;
            }
            Err(ixc::CompileError::Place(error)) => {
                println!("seed {seed} on {}: {error}", grid.name);
                refused += 1;
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    println!("{fitted} fit, {refused} do not");
    assert!(fitted >= 8, "{fitted} fit, {refused} do not");
}
