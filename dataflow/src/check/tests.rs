//! Tests with descriptors that must be rejected: bytes that are not sent exactly once, and numbers
//! that would take all memory or time.

use crate::descriptor::{
    Axis, Descriptor, End, Parts, Port, Routing, Slice, State, Stream, Tensor, TensorSource, Wave,
};
use crate::grid;
use ixc_kernels::generator::blocks;

use super::*;
use crate::simulate::tests::{chain, kernel, slice, stream};

const HALF: &str = "kernel half {
  buffer %a : read 32
  buffer %y : write 16
  %0 = load f32x4 %a[0]
  store f32x4 %y[0], %0
}
";

/// Returns a descriptor whose first program has two columns, each computing half of the row.
fn halves() -> Descriptor {
    let mut d = chain("tiny", &[(1, 0), (3, 0)]);
    d.kernels.push(kernel("half", HALF));
    d.programs[0].columns = 2;
    d.programs[0].kernel = 3;
    d.programs[0].ports[1] = Port::Send(Slice { bytes: 16, column_stride: 16, ..slice(1, 2) });
    d
}

/// Returns three programs, each with a weight. The first program is in one wave, the other two are
/// in the next.
pub(crate) fn two_waves() -> Descriptor {
    let mut d = chain("tiny", &[(1, 0), (3, 0), (5, 0)]);
    for program in &mut d.programs {
        program.kernel = 0;
        let weight = Port::Weight { weight: 0, offset: 0, column_stride: 0, expert_stride: 0, bytes: 32 };
        program.ports.insert(1, weight);
    }
    d.programs[1].wave = 1;
    d.programs[2].wave = 1;
    d.streams[1].to = End::Host;
    d.streams.push(stream(1, End::Host, End::Program(1)));
    d.waves = vec![Wave { load_bytes: 0, store_bytes: 0 }; 2];
    d.waves = d.traffic();
    assert_eq!(d.waves[1].load_bytes, 64);
    d
}

fn assert_refused(what: &str, d: Descriptor, says: &str) {
    match Machine::new(d) {
        Ok(_) => panic!("{what} was taken"),
        Err(error) => assert!(error.to_string().contains(says), "{what}: {error}"),
    }
}

fn fault(d: Descriptor) -> (u64, u64, Fault) {
    match Machine::new(d) {
        Err(CheckError::Coverage { from, to, fault, .. }) => (from, to, fault),
        other => panic!("{:?}", other.map(drop)),
    }
}

fn send(d: &mut Descriptor, program: usize, port: usize) -> &mut Slice {
    match &mut d.programs[program].ports[port] {
        Port::Send(slice) => slice,
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_missing_or_sent_twice_are_reported() {
    Machine::new(halves()).unwrap();
    let mut d = halves();
    send(&mut d, 0, 1).column_stride = 0;
    assert_eq!(fault(d), (0, 16, Fault::Twice));
    let mut d = halves();
    send(&mut d, 0, 1).column_stride = 8;
    assert_eq!(fault(d), (8, 16, Fault::Twice));
    let mut d = halves();
    d.programs[0].columns = 1;
    assert_eq!(fault(d), (16, 32, Fault::Missing));

    // The same check applies to the logits that the host receives.
    let mut d = chain("tiny", &[(1, 0), (3, 0)]);
    d.kernels.push(kernel("half", HALF));
    d.programs[1].columns = 2;
    d.programs[1].kernel = 3;
    d.programs[1].ports[1] = Port::Send(Slice { bytes: 16, column_stride: 16, ..slice(2, 2) });
    Machine::new(d.clone()).unwrap();
    send(&mut d, 1, 1).column_stride = 0;
    assert_eq!(fault(d), (0, 16, Fault::Twice));

    // Both the host and a program send the tensor.
    let mut d = two_waves();
    d.programs[0].wave = 1;
    d.streams[1].to = End::Program(1);
    d.waves = d.traffic();
    assert_refused("rows that nobody stored", d, "the host does not have tensor t0");
}

#[test]
fn tensors_for_later_waves_must_be_complete() {
    Machine::new(two_waves()).unwrap();
    let mut d = two_waves();
    d.kernels.push(kernel("half", HALF));
    d.programs[0].kernel = 3;
    d.programs[0].ports = vec![Port::Receive(slice(0, 2)), Port::Send(Slice { bytes: 16, ..slice(1, 2) })];
    d.waves = d.traffic();
    assert_eq!(fault(d.clone()), (16, 32, Fault::Missing));
    d.programs[0].columns = 2;
    assert_eq!(fault(d.clone()), (0, 16, Fault::Twice));
    send(&mut d, 0, 1).column_stride = 16;
    Machine::new(d).unwrap();
}

#[test]
fn attention_part_without_visible_positions_does_not_send() {
    // A state has two parts of 32 positions. Each part sends half of a row, and a program without
    // parts needs the whole row at every position.
    let mut d = chain("tiny", &[(1, 0), (3, 0)]);
    d.kernels.push(kernel("half", HALF));
    d.states.push(State { heads: 1, key_len: 1, value_len: 1, parts: Parts { positions: 32, count: 2 } });
    d.programs[0].state = Some(0);
    d.programs[0].kernel = 3;
    d.programs[0].ports[1] = Port::Send(Slice { bytes: 16, part_stride: 16, ..slice(1, 2) });
    assert_eq!(fault(d.clone()), (16, 32, Fault::Positions));
    // A program with the same parts receives the tensor whenever it needs it.
    d.programs[1].axis = Axis::Tokens;
    d.programs[1].ports[0] =
        Port::ReceiveParts { slice: Slice { bytes: 16, part_stride: 16, ..slice(1, 2) }, state: 0 };
    d.tensors[2].axis = Axis::Tokens;
    let error = Machine::new(d).unwrap_err().to_string();
    assert!(error.starts_with("logits"), "{error}");
}

#[test]
fn duplicate_streams_are_refused() {
    let mut d = chain("tiny", &[(1, 0), (3, 0)]);
    let again = Stream { route: crate::descriptor::Route::YThenX, ..d.streams[1] };
    d.streams.push(again);
    assert_refused("a stream twice", d, "another stream brings tensor t0 between the same two ends");
    let mut d = chain("tiny", &[(1, 0), (3, 0)]);
    d.streams[1].colour = 1;
    assert_refused("a colour of packets", d, "messages of this grid are packets");
}

#[test]
fn expert_ids_must_be_computed_before_use() {
    let mut d = two_waves();
    d.tensors.push(Tensor { name: "ids".to_owned(), row_bytes: 4, axis: Axis::Tokens, source: TensorSource::Programs });
    d.routings.push(Routing { ids: 4, top_k: 1, experts: 1 });
    d.programs[1].axis = Axis::Routed(0);
    d.tensors[2].axis = Axis::Routed(0);
    d.programs[2].ports[0] = Port::ReceiveSlots(slice(2, 2));
    assert_refused("ids that nobody makes", d, "routing 0: bytes 0..4 of ids are not sent by any program");
}

#[test]
fn stated_code_size_and_traffic_are_verified() {
    for bytes in [0, 79, 81, u64::MAX] {
        let mut d = chain("tiny", &[(1, 0)]);
        d.kernels[1].code_bytes = bytes;
        assert_refused("code", d, "kernel copy8: ");
    }
    for change in [|wave: &mut Wave| wave.load_bytes = 0, |wave: &mut Wave| wave.store_bytes = 1] {
        let mut d = two_waves();
        change(&mut d.waves[1]);
        assert_refused("traffic", d, "wave 1: it loads");
    }
    let mut d = chain("tiny", &[(1, 0)]);
    d.waves[0].load_bytes = u64::MAX;
    assert_refused("traffic of one wave", d, "the weights and states of its programs need 0 and 0 bytes");
}

#[test]
fn numbers_that_would_take_all_memory_are_refused() {
    type Change = fn(&mut Descriptor);
    let ids = |d: &mut Descriptor, row_bytes: u64, top_k: u32, experts: u32| {
        let tensor = Tensor { name: "ids".to_owned(), row_bytes, axis: Axis::Tokens, source: TensorSource::Programs };
        d.tensors.push(tensor);
        d.routings.push(Routing { ids: d.tensors.len() as u32 - 1, top_k, experts });
    };
    let state = |d: &mut Descriptor, heads: u32, positions: u32, count: u32| {
        d.states.push(State { heads, key_len: 1, value_len: 1, parts: Parts { positions, count } });
    };
    let mut d = chain("tiny", &[(1, 0)]);
    ids(&mut d, 4, 1, u32::MAX);
    assert_refused("experts", d, "4294967295 experts together; the limit is 4194304");
    let mut d = chain("tiny", &[(1, 0)]);
    ids(&mut d, 1 << 26, 1 << 24, u32::MAX);
    assert_refused("top_k", d, "the number used must be 1 to 4096");
    let mut d = chain("tiny", &[(1, 0)]);
    state(&mut d, u32::MAX, 1024, 1 << 20);
    assert_refused("heads", d, "; the limit is 4194304");
    let changes: [(&str, Change); 5] = [
        ("the grid may have at most 4194304 PEs", |d| (d.grid.width, d.grid.height) = (1 << 14, 1 << 14)),
        ("colours is 4294967295; expected 1 to 64 colours", |d| {
            d.grid.link.routing = grid::Routing::Colours(u32::MAX);
        }),
        ("waves: their number is 4097; it must be 1 to 4096", |d| {
            d.waves = vec![Wave { load_bytes: 0, store_bytes: 0 }; 4097];
        }),
        ("waves: their number is 0", |d| d.waves.clear()),
        ("file 1 does not exist; the descriptor has 1, numbered from 0", |d| d.weights[0].file = 1),
    ];
    for (says, change) in changes {
        let mut d = chain("tiny", &[(1, 0)]);
        change(&mut d);
        assert_refused(says, d, says);
    }
}

const ROTATE: &str = "kernel rotate where %blocks in 1..=4096 {
  buffer %a : read 32
  buffer %block : index(%blocks) 4
  buffer %lane : index(16) 4
  buffer %table : read SIZE
  buffer %y : write 32
  %0 = load f32x8 %a[0]
  store f32x8 %y[0], %0
}
";

#[test]
fn rope_table_buffer_must_have_the_exact_size() {
    let rotate = |size: &str, kind: &str| {
        let mut d = chain("tiny", &[(1, 0), (3, 0)]);
        d.kernels.push(kernel("rotate", &ROTATE.replace("SIZE", size).replace("%table : read", kind)));
        d.ropes.push(ixc_ir::plan::RopeTable {
            style: ixc_ir::graph::attrs::RopeStyle::Norm,
            frequencies: vec![1.0; 2],
            ..ixc_ir::plan::RopeTable::still()
        });
        let row_bytes = d.ropes[0].style.row_bytes(4);
        d.tensors.push(Tensor {
            name: "rope".to_owned(),
            row_bytes,
            axis: Axis::Tokens,
            source: TensorSource::Rope(0),
        });
        d.programs[0].kernel = 3;
        d.programs[0].dims = vec![blocks::of_cache()];
        d.programs[0].ports = vec![
            Port::Receive(slice(0, 2)),
            Port::PositionBlock,
            Port::PositionLane,
            Port::ReceiveRope(Slice { bytes: row_bytes, ..slice(3, 2) }),
            Port::Send(slice(1, 2)),
        ];
        d.streams.push(stream(3, End::Host, End::Program(0)));
        d
    };
    let bytes = 16 * 32;
    Machine::new(rotate(&format!("{bytes}*%blocks"), "%table : read")).unwrap();
    assert_refused(
        "a TiB",
        rotate("1099511627776", "%table : read"),
        "buffer %table of kernel rotate has 1099511627776",
    );
    assert_refused("less than there is", rotate("0", "%table : read"), "receives 512 bytes of a rotary table");
    // The length is correct for rows that see whole blocks, but too large for other rows.
    let blocks = |size: &str| {
        let mut d = rotate(&format!("{bytes}*%blocks"), "%table : read");
        let text = ROTATE.replace("SIZE", size).replace("..=4096", "..=4096, %masked in 0..=1");
        d.kernels[3] = kernel("rotate", &text);
        d.programs[0].dims.push(blocks::masked_blocks());
        d
    };
    Machine::new(blocks(&format!("{bytes}*%blocks"))).unwrap();
    assert_refused(
        "a longer one for some rows",
        blocks(&format!("{bytes}*%blocks + 16777216*%masked")),
        "has dim %masked (min(last / 32 + 1, part_end) - max((first + 1) / 32, part_begin))",
    );
    assert_refused(
        "a table that is written",
        rotate(&format!("{bytes}*%blocks"), "%table : write"),
        "must not be written",
    );
    assert_refused(
        "a table of indices",
        rotate(&format!("{bytes}*%blocks"), "%table : index(4)"),
        "is bound to the index buffer %table",
    );
}

#[test]
fn expert_id_ports_count_towards_the_range_limit() {
    // These ports need no streams, but each part of each port is a range.
    let count = 20;
    let outputs: String = (0..count).map(|i| format!("  buffer %y{i} : write 32\n")).collect();
    let stores: String = (0..count).map(|i| format!("  store f32x8 %y{i}[0], %0\n")).collect();
    let text = format!("kernel many {{\n  buffer %a : read 32\n{outputs}  %0 = load f32x8 %a[0]\n{stores}}}\n");
    let mut d = chain("tiny", &[(1, 0), (3, 0)]);
    d.kernels.push(kernel("many", &text));
    d.tensors.push(Tensor {
        name: "ids".to_owned(),
        row_bytes: 32,
        axis: Axis::Tokens,
        source: TensorSource::Programs,
    });
    d.routings.push(Routing { ids: 3, top_k: 8, experts: 64 });
    d.states.push(State { heads: 1, key_len: 1, value_len: 1, parts: Parts { positions: 32, count: 1 << 22 } });
    let program = &mut d.programs[0];
    (program.kernel, program.state) = (3, Some(0));
    program.ports.truncate(1);
    program.ports.extend((0..count).map(|_| Port::Send(slice(3, 2))));
    assert_refused("ports of ids", d, "; the limit is 67108864");
}

#[test]
fn kernels_that_never_end_are_refused() {
    let endless = "kernel endless {
  buffer %a : read 32
  buffer %y : write 32
  for %i in 0..1000000000000 {
    %0 = splat f32x8 0.0
  }
  %1 = load f32x8 %a[0]
  store f32x8 %y[0], %1
}
";
    let mut d = chain("tiny", &[(1, 0)]);
    d.kernels.push(kernel("endless", endless));
    d.programs[0].kernel = 3;
    assert_refused("an endless kernel", d, "statements for a row; the limit is 4294967296");
    let mut d = chain("tiny", &[(1, 0)]);
    let embed =
        d.kernels[2].text.replace("  %row", "  for %i in 0..1000000000000 {\n    %0 = splat f32x8 0.0\n  }\n  %row");
    d.kernels[2] = kernel(
        "embed",
        &embed.replace("%0 = load f32x8 %table", "%9 = load f32x8 %table").replace("[0], %0", "[0], %9"),
    );
    assert_refused("an endless embedding", d, "embedding: kernel embed executes");
    let mut d = chain("tiny", &[(1, 0)]);
    d.embedding.kernel = 1;
    assert_refused("an embedding that looks nothing up", d, "it must have no dims");
}
