//! Tests with hand-built descriptors: times that can be computed by hand, and deliberate faults.

use std::borrow::Cow;

use crate::account::code_bytes;
use crate::descriptor::{
    Axis, Descriptor, Embedding, End, KernelText, Lattice, Parts, Port, Program, Route, Routing, Sites, Slice, State,
    Stream, Tensor, TensorSource, VERSION, Wave, WeightInfo,
};
use ixc_ir::plan::SourceFile;
use ixc_kernels::generator::blocks;

use super::*;
use crate::check::CheckError;
use crate::check::coverage::Fault;
use crate::grids;

const ADD: &str = "kernel add8 {
  buffer %a : read 32
  buffer %b : read 32
  buffer %y : write 32
  %0 = load f32x8 %a[0]
  %1 = load f32x8 %b[0]
  %2 = add f32x8 %0, %1
  store f32x8 %y[0], %2
}
";
const COPY: &str = "kernel copy8 {
  buffer %a : read 32
  buffer %y : write 32
  %0 = load f32x8 %a[0]
  store f32x8 %y[0], %0
}
";
const EMBED: &str = "kernel embed {
  buffer %id : index(4) 4
  buffer %table : read 128
  buffer %y : write 32
  %row = load_index %id[0]
  %0 = load f32x8 %table[32*%row]
  store f32x8 %y[0], %0
}
";
/// Cycles of a firing of `add8` or `copy8` on the tiny grid: 10 to start, then 4 to write 32 bytes
/// through a port of 8 bytes.
const FIRING: u64 = 14;
/// Cycles that a message of 32 bytes occupies a link.
const FLITS: u64 = 8;

pub(crate) fn slice(tensor: u32, rows: u32) -> Slice {
    Slice { tensor, offset: 0, column_stride: 0, part_stride: 0, bytes: 32, rows }
}

fn tensor(name: &str, source: TensorSource, axis: Axis) -> Tensor {
    Tensor { name: name.to_owned(), row_bytes: 32, axis, source }
}

pub(crate) fn at(x: u32, y: u32) -> Sites {
    Sites { x, y, columns: Lattice::ONE, experts: Lattice::ONE, parts: Lattice::ONE }
}

pub(crate) fn program(label: &str, kernel: u32, axis: Axis, x: u32, y: u32, ports: Vec<Port>) -> Program {
    Program {
        label: label.to_owned(),
        kernel,
        dims: Vec::new(),
        axis,
        columns: 1,
        state: None,
        appends: false,
        sites: at(x, y),
        ports,
        wave: 0,
    }
}

pub(crate) fn stream(tensor: u32, from: End, to: End) -> Stream {
    Stream { tensor, from, to, route: Route::XThenY, colour: 0 }
}

/// Returns a kernel with its code size.
pub(crate) fn kernel(name: &str, text: &str) -> KernelText {
    let code_bytes = code_bytes(&ixc_ir::kernel::parse::parse(text).unwrap());
    KernelText { name: name.to_owned(), text: text.to_owned(), code_bytes }
}

/// Returns a descriptor for an embedding of four tokens with eight floats each. The rows pass
/// through copy programs on the PEs `places` and become the logits. The vocabulary has 8 tokens;
/// the embedding has only the first four.
pub(crate) fn chain(grid: &str, places: &[(u32, u32)]) -> Descriptor {
    let count = places.len() as u32;
    let mut tensors = vec![tensor("x", TensorSource::Embedding, Axis::Tokens)];
    let (mut programs, mut streams) = (Vec::new(), Vec::new());
    let mut before = End::Host;
    for (i, (x, y)) in (0..count).zip(places) {
        let axis = if i + 1 == count { Axis::Outputs } else { Axis::Tokens };
        tensors.push(tensor(&format!("t{i}"), TensorSource::Programs, axis));
        let ports = vec![Port::Receive(slice(i, 2)), Port::Send(slice(i + 1, 2))];
        programs.push(program(&format!("copy {i}"), 1, axis, *x, *y, ports));
        streams.push(stream(i, before, End::Program(i)));
        before = End::Program(i);
    }
    streams.push(stream(count, before, End::Host));
    Descriptor {
        version: VERSION,
        model: "a chain".to_owned(),
        grid: grids::find(grid).unwrap(),
        context: 64,
        vocabulary: 8,
        files: vec![SourceFile { path: "model.gguf".to_owned(), bytes: 128, header_crc: 0, header_bytes: 0 }],
        weights: vec![WeightInfo {
            name: "table".to_owned(),
            format: "f32".to_owned(),
            stored: "f32".to_owned(),
            shape: vec![4, 8],
            file: 0,
            offset: 0,
            bytes: 128,
        }],
        ropes: Vec::new(),
        kernels: vec![kernel("add8", ADD), kernel("copy8", COPY), kernel("embed", EMBED)],
        tensors,
        routings: Vec::new(),
        states: Vec::new(),
        programs,
        streams,
        waves: vec![Wave { load_bytes: 0, store_bytes: 0 }],
        embedding: Embedding { kernel: 2, weight: 0, tensor: 0 },
        logits: count,
        reasons: Vec::new(),
    }
}

pub(crate) struct Table;

impl WeightBytes for Table {
    fn slice(&self, weight: u32, offset: u64, bytes: u64) -> Result<Cow<'_, [u8]>, String> {
        let table: Vec<u8> = (0..32).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let end = (offset + bytes) as usize;
        match table.get(offset as usize..end) {
            Some(found) if weight == 0 => Ok(Cow::Owned(found.to_vec())),
            _ => Err("there is no such weight".to_owned()),
        }
    }
}

fn simulate_step(descriptor: Descriptor, tokens: usize) -> Result<Step, SimulateError> {
    let machine = Machine::new(descriptor).unwrap();
    let wanted: Vec<u32> = (0..tokens as u32).collect();
    Simulator::for_timing(&machine, 1).step(&vec![0; tokens], &wanted)
}

/// Cycles to or from the host: 32 bytes at 100 bytes per cycle, plus 100 cycles of latency.
const HOST: f64 = 100.32;

#[test]
fn single_program_latency_includes_kernel_hops_and_host() {
    // The row enters at (0, 2) and takes three hops to (3, 2). It leaves at (0, 2) again.
    let step = simulate_step(chain("tiny", &[(3, 2)]), 1).unwrap();
    let there = HOST.ceil() as u64 + 3 + FLITS + FIRING + 3 + FLITS;
    assert_eq!(step.report.cycles, (there as f64 + HOST).ceil() as u64);
    assert_eq!((step.report.messages, step.report.hops, step.report.firings), (2, 6, 1));
    let path = step.report.critical.unwrap();
    assert_eq!((path.compute, path.contention, path.wait, path.firings), (FIRING, 0, 0, 1));
    assert_eq!(path.host, step.report.cycles - FIRING);
}

#[test]
fn two_programs_fill_a_pipeline() {
    let one = simulate_step(chain("tiny", &[(1, 0), (3, 0)]), 1).unwrap().report;
    let from_first = HOST.ceil() as u64 + 1 + FLITS + FIRING + 2 + FLITS + FIRING + 3 + FLITS;
    assert_eq!(one.cycles, (from_first as f64 + HOST).ceil() as u64);
    // Each further row arrives one firing after the previous one: the kernels are the slowest part.
    for rows in 2..6 {
        let more = simulate_step(chain("tiny", &[(1, 0), (3, 0)]), rows as usize).unwrap().report;
        assert_eq!(more.cycles, one.cycles + (rows - 1) * FIRING, "{rows}");
        assert_eq!(more.firings, 2 * rows);
    }
    // On one PE, the two programs share its cycles.
    let shared = simulate_step(chain("tiny", &[(1, 0), (1, 0)]), 5).unwrap().report;
    assert_eq!(shared.worked[1], 10 * FIRING);
    assert!(shared.cycles > 2 * HOST as u64 + 10 * FIRING);
}

#[test]
fn copy_chain_returns_the_embedding_rows() {
    let machine = Machine::new(chain("tiny", &[(1, 0), (6, 5), (2, 7)])).unwrap();
    for runner in [Runner::Compiled, Runner::Interpreter] {
        let mut simulator = Simulator::with_weights(&machine, &Table, runner).unwrap();
        let step = simulator.step(&[2, 0, 3], &[0, 2]).unwrap();
        let row = |token: u32| (0..8).map(|i| (token * 8 + i) as f32).collect::<Vec<f32>>();
        assert_eq!(step.logits, [row(2), row(3)]);
        assert_eq!(simulator.position(), 3);
        assert_eq!(simulator.step(&[1], &[0]).unwrap().logits, [row(1)]);
    }
}

#[test]
fn the_same_step_takes_the_same_cycles() {
    let once = simulate_step(chain("tiny", &[(1, 0), (6, 5), (2, 7)]), 9).unwrap().report.summary();
    let twice = simulate_step(chain("tiny", &[(1, 0), (6, 5), (2, 7)]), 9).unwrap().report.summary();
    assert_eq!(serde_json::to_string(&once).unwrap(), serde_json::to_string(&twice).unwrap());
}

#[test]
fn memory_overflow_by_one_byte_is_reported() {
    let places = [(1, 0), (1, 0)];
    // The code of `copy8` has two instructions and the set-up.
    let held: u64 = 2 * (2 * 32 + 2 * 32) + 80;
    let mut fits = chain("tiny", &places);
    fits.grid.pe.sram_bytes = held;
    assert_eq!(Machine::new(fits.clone()).unwrap().memory[1], held);
    fits.grid.pe.sram_bytes -= 1;
    let error = Machine::new(fits).unwrap_err();
    let CheckError::Memory(memory) = &error else { panic!("{error}") };
    assert_eq!((memory.x, memory.y, memory.found, memory.available), (1, 0, held, held - 1));
    assert!(
        error.to_string().contains("128 for instance 0 of program 0 (copy 0) (0 weights, 64 received, 64 sent"),
        "{error}"
    );
    assert!(error.to_string().contains("80 for code of copy8"), "{error}");
}

#[test]
fn streams_with_the_same_colour_are_refused() {
    // There is the host's stream from (0, 0) to (3, 0), and a stream from (1, 0) to (3, 0).
    let mut descriptor = chain("tiny-colours", &[(3, 0), (1, 0), (5, 0)]);
    for (colour, stream) in (0..).zip(&mut descriptor.streams) {
        stream.colour = colour;
    }
    Machine::new(descriptor.clone()).unwrap();
    descriptor.streams[2].colour = 0;
    let error = Machine::new(descriptor.clone()).unwrap_err();
    let CheckError::Route(conflict) = &error else { panic!("{error}") };
    assert_eq!((conflict.x, conflict.y, conflict.colour), (1, 0, 0));
    assert!(error.to_string().contains("t1 from program 1 (copy 1) and x from the host"), "{error}");
    descriptor.streams[2].colour = 24;
    let error = Machine::new(descriptor).unwrap_err().to_string();
    assert!(error.contains("colour 24; links of the grid have 24"), "{error}");
}

#[test]
fn missing_receives_and_streams_are_reported() {
    let mut descriptor = chain("tiny", &[(1, 0), (3, 0)]);
    descriptor.streams.push(stream(0, End::Host, End::Program(1)));
    let error = Machine::new(descriptor).unwrap_err();
    assert!(matches!(&error, CheckError::NoReceivingPort { stream: 3, .. }), "{error}");

    let mut descriptor = chain("tiny", &[(1, 0), (3, 0)]);
    descriptor.streams[1].to = End::Host;
    let error = Machine::new(descriptor).unwrap_err();
    assert!(matches!(&error, CheckError::NoSendingStream { port: 0, .. }), "{error}");

    let mut descriptor = chain("tiny", &[(1, 0), (3, 0)]);
    descriptor.streams[1] = stream(0, End::Host, End::Program(1));
    descriptor.programs[1].ports[0] = Port::Receive(slice(0, 2));
    let error = Machine::new(descriptor).unwrap_err();
    assert!(matches!(&error, CheckError::NoTakingStream { port: 1, .. }), "{error}");

    // The second program sends bytes that the third already receives.
    let mut descriptor = chain("tiny", &[(1, 0), (3, 0), (5, 0)]);
    descriptor.programs[0].ports[1] = Port::Send(slice(2, 2));
    descriptor.programs[1].ports[0] = Port::Receive(slice(0, 2));
    descriptor.streams = vec![
        stream(0, End::Host, End::Program(0)),
        stream(0, End::Host, End::Program(1)),
        stream(2, End::Program(0), End::Program(2)),
        stream(2, End::Program(1), End::Program(2)),
        stream(3, End::Program(2), End::Host),
    ];
    let error = Machine::new(descriptor).unwrap_err();
    assert!(matches!(&error, CheckError::Coverage { from: 0, to: 32, fault: Fault::Twice, .. }), "{error}");
}

/// Returns two programs that wait for each other: the first adds the host's row and the second's
/// result.
fn circle() -> Descriptor {
    let mut d = chain("tiny", &[(1, 0), (3, 0), (5, 0)]);
    d.programs[0].kernel = 0;
    d.programs[0].ports = vec![Port::Receive(slice(0, 2)), Port::Receive(slice(2, 2)), Port::Send(slice(1, 2))];
    d.streams.push(stream(2, End::Program(1), End::Program(0)));
    d
}

#[test]
fn deadlock_is_reported_link_by_link() {
    let error = simulate_step(circle(), 2).unwrap_err();
    let SimulateError::Deadlock { wave: 0, waiting: 3, chain, cyclic: true, .. } = &error else { panic!("{error}") };
    assert_eq!(chain.len(), 2, "{error}");
    assert!(
        chain[0].contains("program 0 (copy 0), column 0, expert 0, part 0, firing 0 waits for t1 from program 1"),
        "{error}"
    );
    assert!(
        chain[1].contains("program 1 (copy 1), column 0, expert 0, part 0, firing 0 waits for t0 from program 0"),
        "{error}"
    );
}

#[test]
fn unsent_bytes_are_reported() {
    // The program sends only half of the row.
    let mut d = chain("tiny", &[(1, 0), (3, 0)]);
    d.tensors[1].row_bytes = 64;
    d.programs[1].kernel = 0;
    d.programs[1].ports =
        vec![Port::Receive(slice(1, 2)), Port::Receive(Slice { offset: 32, ..slice(1, 2) }), Port::Send(slice(2, 2))];
    let error = Machine::new(d).unwrap_err();
    assert!(matches!(&error, CheckError::Coverage { from: 32, to: 64, fault: Fault::Missing, .. }), "{error}");
}

#[test]
fn residual_needs_buffers_for_rows_in_flight() {
    // `x` passes through four copies, and is added to the last copy.
    let around = |rows: u32, tokens: usize| {
        let mut d = chain("tiny", &[(1, 0), (2, 0), (3, 0), (3, 1), (2, 1), (1, 1)]);
        d.programs[5].kernel = 0;
        d.programs[5].ports = vec![Port::Receive(slice(5, 2)), Port::Receive(slice(1, rows)), Port::Send(slice(6, 2))];
        d.streams.push(stream(1, End::Program(0), End::Program(5)));
        simulate_step(d, tokens).unwrap().report.cycles
    };
    let (narrow, wide) = (around(2, 20), around(16, 20));
    assert_eq!(around(16, 1), around(2, 1));
    // If the residual's slice has memory for many rows, the messages of the rows follow each other
    // without a gap. Otherwise, only two rows are in flight.
    assert_eq!(wide, around(16, 1) + 19 * 2 * FLITS);
    assert!(narrow > wide + 19 * FIRING, "{narrow} {wide}");
}

/// Returns a descriptor in which each token goes to two of four experts, whose results are added.
pub(crate) fn experts(top_k: u32) -> Descriptor {
    let mut d = chain("tiny", &[(1, 0), (7, 7)]);
    d.kernels.push(kernel(
        "route",
        &format!(
            "kernel route {{
  buffer %a : read 32
  buffer %ids : write {}
  %0 = load f32x2 %a[0]
  %1 = to_i32 i32x2 %0
  %m = splat i32x2 3
  %2 = and i32x2 %1, %m
  store i32x2 %ids[0], %2
}}
",
            4 * top_k
        ),
    ));
    d.tensors.push(Tensor { row_bytes: 8, ..tensor("ids", TensorSource::Programs, Axis::Tokens) });
    d.tensors.push(tensor("y", TensorSource::Programs, Axis::Routed(0)));
    d.routings.push(Routing { ids: 3, top_k, experts: 4 });
    d.programs.push(program(
        "route",
        3,
        Axis::Tokens,
        2,
        2,
        vec![Port::Receive(slice(1, 4)), Port::Send(Slice { bytes: 8, ..slice(3, 2) })],
    ));
    let mut expert =
        program("expert", 1, Axis::Routed(0), 2, 4, vec![Port::Receive(slice(1, 2)), Port::Send(slice(4, 2))]);
    expert.sites.experts = Lattice { share: 1, per_line: 2, pitch_x: 2, pitch_y: 1 };
    d.programs.push(expert);
    // The two expert slots are stored one after the other; this kernel reads only the first.
    d.programs[1].kernel = 4;
    d.kernels.push(kernel(
        "add_first",
        &ADD.replace("add8", "add_first").replace("%a : read 32", &format!("%a : read {}", 32 * top_k)),
    ));
    d.programs[1].ports = vec![Port::ReceiveSlots(slice(4, 2)), Port::Receive(slice(1, 8)), Port::Send(slice(2, 2))];
    d.streams.push(stream(1, End::Program(0), End::Program(2)));
    d.streams.push(stream(1, End::Program(0), End::Program(3)));
    d.streams.push(stream(4, End::Program(3), End::Program(1)));
    d
}

#[test]
fn only_routed_experts_fire() {
    let report = simulate_step(experts(2), 6).unwrap().report;
    // There are six firings of the first copy, of the router and of the last program, and two
    // expert firings for each token.
    assert_eq!(report.firings, 3 * 6 + 2 * 6);
    let expert = &report.programs[3];
    assert_eq!((expert.firings, expert.instances), (12, 4));
    let machine = Machine::new(experts(2)).unwrap();
    let mut simulator = Simulator::with_weights(&machine, &Table, Runner::Interpreter).unwrap();
    // The row of token 1 is 8, 9, ..., so its experts are 0 and 1. The first slot's result plus the
    // row is twice the row.
    let step = simulator.step(&[1, 3], &[0, 1]).unwrap();
    let row = |token: u32| (0..8).map(|i| 2.0 * (token * 8 + i) as f32).collect::<Vec<f32>>();
    assert_eq!(step.logits, [row(1), row(3)]);
    assert_eq!(step.report.programs[3].firings, 4);
}

/// Returns a descriptor with a state that has one head and one part: one program appends to it,
/// another attends to it.
pub(crate) fn attention_descriptor() -> Descriptor {
    // The append stores each position's row as "values" with the layout of 16 f16. The attention
    // sums the rows of all positions.
    let mut d = chain("tiny", &[(1, 0), (7, 0)]);
    let append = "kernel append where %blocks in 1..=8 {
  buffer %a : read 32
  buffer %block : index(%blocks) 4
  buffer %lane : index(16) 4
  buffer %values : write 512*%blocks
  %b = load_index %block[0]
  %l = load_index %lane[0]
  %0 = load f32x8 %a[0]
  store f32x8 %values[512*%b + 32*%l], %0
}
";
    let attend = "kernel attend where %full in 0..=8, %masked in 0..=1 {
  buffer %q : read 32
  buffer %values : read 1024*%full + 1024*%masked
  buffer %y : write 32
  %zero = splat f32x8 0.0
  %s = for %i in 0..32*%full + 32*%masked carry(%t = %zero) {
    %v = load f32x8 %values[32*%i]
    %n = add f32x8 %t, %v
    yield %n
  }
  store f32x8 %y[0], %s
}
";
    for (name, text) in [("append", append), ("attend", attend)] {
        d.kernels.push(kernel(name, text));
    }
    let parts = Parts { positions: 64, count: 1 };
    d.states.push(State { heads: 1, key_len: 0, value_len: 16, parts });
    d.tensors.push(tensor("attended", TensorSource::Programs, Axis::Tokens));
    let mut appends = program(
        "append",
        3,
        Axis::Tokens,
        3,
        3,
        vec![Port::Receive(slice(1, 2)), Port::PositionBlock, Port::PositionLane, Port::Values(0)],
    );
    (appends.state, appends.appends, appends.dims) = (Some(0), true, vec![blocks::of_cache()]);
    let mut attends = program(
        "attend",
        4,
        Axis::Tokens,
        3,
        3,
        vec![Port::Receive(slice(1, 2)), Port::Values(0), Port::Send(slice(3, 2))],
    );
    (attends.state, attends.dims) = (Some(0), vec![blocks::full(), blocks::masked_blocks()]);
    d.programs.extend([appends, attends]);
    d.programs[1].ports[0] = Port::Receive(slice(3, 2));
    d.streams[1] = stream(1, End::Program(0), End::Program(2));
    d.streams.push(stream(1, End::Program(0), End::Program(3)));
    d.streams.push(stream(3, End::Program(3), End::Program(1)));
    d
}

#[test]
fn state_accumulates_positions_across_steps_in_order() {
    let machine = Machine::new(attention_descriptor()).unwrap();
    let mut simulator = Simulator::with_weights(&machine, &Table, Runner::Compiled).unwrap();
    let mut sum = [0.0; 8];
    for step in 0..9u32 {
        let token = step % 4;
        let found = simulator.step(&[token], &[0]).unwrap();
        sum.iter_mut().zip(0..).for_each(|(sum, i)| *sum += (token * 8 + i) as f32);
        assert_eq!(found.logits, [sum.to_vec()], "{step}");
    }
}

#[test]
fn invalid_token_lists_are_refused() {
    let machine = Machine::new(chain("tiny", &[(1, 0)])).unwrap();
    let mut simulator = Simulator::for_timing(&machine, 1);
    for (tokens, wanted) in
        [(vec![], vec![]), (vec![8], vec![]), (vec![0; 65], vec![]), (vec![0; 2], vec![1, 0]), (vec![0], vec![1])]
    {
        assert!(matches!(simulator.step(&tokens, &wanted), Err(SimulateError::Tokens { .. })));
    }
    assert_eq!(simulator.position(), 0);
    // No row is requested, so there is no result.
    assert_eq!(simulator.step(&[0], &[]).unwrap().report.firings, 0);
}

#[test]
fn descriptors_with_dangling_references_are_refused() {
    type Change = Box<dyn Fn(&mut Descriptor)>;
    let mut changes: Vec<(&str, Change)> = Vec::new();
    let mut change = |says, f: Box<dyn Fn(&mut Descriptor)>| changes.push((says, f));
    change("version 9", Box::new(|d| d.version = 9));
    change("width is 0", Box::new(|d| d.grid.width = 0));
    change("kernel 9 does not exist; the descriptor has 3, numbered from 0", Box::new(|d| d.programs[0].kernel = 9));
    change("wave 1 does not exist; the descriptor has 1, numbered from 0", Box::new(|d| d.programs[1].wave = 1));
    change("tensor 7 does not exist; the descriptor has 3, numbered from 0", Box::new(|d| d.streams[0].tensor = 7));
    change("program 4294967295 does not exist", Box::new(|d| d.streams[0].to = End::Program(u32::MAX)));
    change("ends at byte 33", Box::new(|d| d.programs[0].ports[0] = Port::Receive(Slice { offset: 1, ..slice(0, 2) })));
    change("its slice has", Box::new(|d| d.programs[0].ports[0] = Port::Receive(slice(0, 0))));
    change(
        "the limit is 67108864",
        Box::new(|d| d.programs[0].ports[0] = Port::Receive(Slice { offset: u64::MAX, ..slice(0, 2) })),
    );
    change(
        "column 1, expert 0, part 0 is at PE (4294967295, 0)",
        Box::new(|d| {
            d.programs[0].columns = 2;
            d.programs[0].sites.columns = Lattice { share: 1, per_line: 9, pitch_x: u32::MAX, pitch_y: 0 };
        }),
    );
    change("instances; ", Box::new(|d| d.programs[0].columns = u32::MAX));
    change("rows in buffers", Box::new(|d| d.programs[0].ports[0] = Port::Receive(slice(0, u32::MAX))));
    change(
        "ports; its kernel copy8 has 0 dims and 2 buffers",
        Box::new(|d| {
            d.programs[0].ports.pop();
        }),
    );
    change("no port of it receives rows", Box::new(|d| d.programs[0].ports[0] = Port::Scratch { bytes: 32 }));
    change(
        "has 31 bytes; its buffer %a of kernel copy8 has 32 bytes",
        Box::new(|d| {
            d.programs[0].ports[0] = Port::Receive(Slice { bytes: 31, ..slice(0, 2) });
        }),
    );
    change("which the kernel does not write", Box::new(|d| d.programs[0].ports.swap(0, 1)));
    change("kernel copy8: ", Box::new(|d| d.kernels[1].text = COPY.replace("%y[0]", "%y[4]")));
    change("logits", Box::new(|d| d.logits = 0));
    change(
        "no stream brings them",
        Box::new(|d| {
            d.streams.pop();
            d.streams.push(stream(2, End::Program(1), End::Program(0)));
            d.programs[0].ports[0] = Port::Receive(slice(0, 2));
        }),
    );
    change("from the host to the host", Box::new(|d| d.streams.push(stream(0, End::Host, End::Host))));
    for (says, change) in changes {
        let mut descriptor = chain("tiny", &[(1, 0), (3, 0)]);
        change(&mut descriptor);
        match Machine::new(descriptor) {
            Ok(_) => panic!("`{says}` was taken"),
            Err(error) if says == "no stream brings them" => {
                assert!(matches!(error, CheckError::NoReceivingPort { .. }), "{error}");
            }
            Err(error) => assert!(error.to_string().contains(says), "`{says}`: {error}"),
        }
    }
}
