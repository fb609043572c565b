//! Tests with waves, very long times and changed descriptors. In descriptors, one number is changed
//! at a time, and no change may pass unnoticed.

use crate::descriptor::{Descriptor, End, Lattice, Port, Slice, Stream, Wave};
use serde_json::Value;

use super::tests::{Table, attention_descriptor, chain, experts, kernel, slice, stream};
use super::*;
use crate::check::tests::two_waves;

fn simulate(machine: &Machine, position: u32, tokens: usize) -> Result<Report, SimulateError> {
    let mut simulator = Simulator::for_timing(machine, 1);
    simulator.seek(position);
    let wanted: Vec<u32> = (0..tokens as u32).collect();
    Ok(simulator.step(&vec![0; tokens], &wanted)?.report)
}

#[test]
fn the_critical_path_goes_through_all_waves() {
    let machine = Machine::new(two_waves()).unwrap();
    for tokens in [1, 4] {
        let report = simulate(&machine, 0, tokens).unwrap();
        let path = report.critical.unwrap();
        assert_eq!(path.compute + path.link + path.contention + path.wait + path.host, report.cycles);
        let mut on_path: Vec<&str> = path.programs.iter().map(|(label, _)| label.as_str()).collect();
        on_path.sort_unstable();
        assert_eq!(on_path, ["copy 0", "copy 1", "copy 2"]);
        assert!(path.firings >= 3);
        assert!(path.host >= report.wave_io_cycles);
    }
    let mut simulator = Simulator::with_weights(&machine, &Table, Runner::Interpreter).unwrap();
    // Each program adds the first row of the table.
    let right: Vec<f32> = (0..8).map(|i| (8 + 4 * i) as f32).collect();
    assert_eq!(simulator.step(&[1], &[0]).unwrap().logits, [right]);
}

/// Returns a descriptor with a state in the first of two waves.
fn state_in_waves() -> Descriptor {
    let mut d = attention_descriptor();
    d.programs[1].wave = 1;
    let place = d.streams.iter().position(|stream| stream.tensor == 3).unwrap();
    d.streams[place].to = End::Host;
    d.streams.push(stream(3, End::Host, End::Program(1)));
    d.waves = vec![Wave { load_bytes: 0, store_bytes: 0 }; 2];
    d.waves = d.traffic();
    d
}

#[test]
fn empty_states_are_not_loaded() {
    let d = state_in_waves();
    let bytes = d.states[0].part_bytes();
    assert_eq!(d.waves[0], Wave { load_bytes: bytes, store_bytes: bytes });
    let machine = Machine::new(d).unwrap();
    let [first, second] = [0, 1].map(|position| simulate(&machine, position, 1).unwrap());
    assert_eq!(second.io_bytes - first.io_bytes, bytes);
    // The host transfers 100 bytes per cycle, so the difference is the time of loading the state.
    assert_eq!(second.wave_io_cycles - first.wave_io_cycles, bytes.div_ceil(100));
}

#[test]
fn simulation_with_excessive_cycle_count_is_an_error() {
    let slow = |change: fn(&mut Descriptor)| {
        let mut d = two_waves();
        let divide = d.kernels[1]
            .text
            .replace("copy8", "divide8")
            .replace("  store f32x8 %y[0], %0", "  %1 = div f32x8 %0, %0\n  store f32x8 %y[0], %1");
        d.kernels.push(kernel("divide8", &divide));
        d.programs[0].kernel = 3;
        d.programs[0].ports.remove(1);
        change(&mut d);
        d.waves = d.traffic();
        simulate(&Machine::new(d).unwrap(), 0, 2).map(|report| report.cycles)
    };
    assert!(slow(|_| {}).unwrap() < 10_000);
    let changes: [fn(&mut Descriptor); 6] = [
        |d| d.grid.pe.operations.special = 1e-320,
        |d| d.grid.pe.operations.special = 1e-15,
        |d| d.grid.io.latency_seconds = 1e300,
        |d| d.grid.io.bytes_per_second = 1e-300,
        |d| d.grid.io.bytes_per_second = 1e-9,
        |d| d.grid.clock_hz = 1e300,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let found = slow(change);
        assert!(matches!(found, Err(SimulateError::TooLong)), "{number}: {found:?}");
    }
}

#[test]
fn the_hosts_links_are_shared_in_the_order_of_time() {
    // Each row takes 3200 cycles in and 3200 out; everything else is short.
    let mut d = chain("tiny", &[(1, 0), (3, 0)]);
    d.grid.io.bytes_per_second = 1e7;
    let report = simulate(&Machine::new(d).unwrap(), 0, 8).unwrap();
    let bound = report.roofline().io;
    assert_eq!(bound, 16.0 * 3200.0);
    // The host's links never idle, except while the last row crosses the grid.
    assert!((bound..bound + 1000.0).contains(&(report.cycles as f64)), "{} {bound}", report.cycles);
}

#[test]
fn simulator_detects_corrupt_layout() {
    // The check of descriptors would refuse these two changes, so they are made after it.
    let mut machine = Machine::new(chain("tiny", &[(1, 0), (3, 0)])).unwrap();
    let consumers = &mut machine.layout.units[0].outlets[0].consumers;
    consumers.push(consumers[0]);
    let error = simulate(&machine, 0, 1).unwrap_err();
    assert!(matches!(&error, SimulateError::SentTwice { found: 64, expected: 32, row: 0, .. }), "{error}");
    let mut machine = Machine::new(chain("tiny", &[(1, 0), (3, 0)])).unwrap();
    machine.layout.units[1].outlets[0].slice.bytes = 16;
    let error = simulate(&machine, 0, 1).unwrap_err();
    assert!(matches!(&error, SimulateError::Logits { output: 0, found: 16, expected: 32 }), "{error}");
}

#[test]
fn expert_id_out_of_range_is_reported() {
    let mut d = experts(2);
    d.kernels[3] = kernel("route", &d.kernels[3].text.replace("= and", "= or"));
    d.routings[0].experts = 3;
    let machine = Machine::new(d).unwrap();
    let mut simulator = Simulator::with_weights(&machine, &Table, Runner::Interpreter).unwrap();
    let error = simulator.step(&[0], &[0]).unwrap_err();
    assert!(matches!(&error, SimulateError::Expert { routing: 0, token: 0, found: 3, experts: 3 }), "{error}");
    // Without ids, no expert can be wrong.
    assert_eq!(simulate(&machine, 0, 1).unwrap().firings, 3 + 2);
}

#[test]
fn tokens_exceeding_the_routing_limit_are_refused() {
    let mut d = experts(2);
    d.context = u32::MAX;
    let machine = Machine::new(d).unwrap();
    let tokens = vec![0; (MAX_ROUTED / 2) as usize + 1];
    let error = Simulator::for_timing(&machine, 1).step(&tokens, &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "found 33554433 tokens, which use 67108866 experts in all routings together; the limit is 67108864"
    );
}

#[test]
fn simulator_work_is_linear_in_messages() {
    let mut before = 0;
    for side in [8, 16, 32] {
        // A program with an instance on every PE gets one row, and its results go to the host.
        let mut d = chain("tiny", &[(0, 0), (0, 0)]);
        let columns = side * side;
        (d.grid.width, d.grid.height) = (side, side);
        d.vocabulary = 8 * columns;
        d.tensors[2].row_bytes = 32 * u64::from(columns);
        d.programs[1].columns = columns;
        d.programs[1].sites.columns = Lattice { share: 1, per_line: side, pitch_x: 1, pitch_y: 1 };
        d.programs[1].ports[1] = Port::Send(Slice { column_stride: 32, ..slice(2, 2) });
        let report = simulate(&Machine::new(d).unwrap(), 0, 4).unwrap();
        assert!(report.messages > 3 * before, "{side}: {} messages", report.messages);
        before = report.messages;
        // A firing has an event for its beginning and one for its end. An arriving slice and a
        // message to the host have one each.
        assert!(report.events <= 4 * report.messages, "{side}: {} events, {} messages", report.events, report.messages);
        assert!(report.hops <= 2 * u64::from(side) * report.messages + 4 * u64::from(columns));
    }
}

/// Collects the paths of all numbers in a JSON value.
fn numbers(value: &Value, path: &mut Vec<String>, all: &mut Vec<Vec<String>>) {
    match value {
        Value::Number(_) => all.push(path.clone()),
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                path.push(i.to_string());
                numbers(item, path, all);
                path.pop();
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                path.push(name.clone());
                numbers(field, path, all);
                path.pop();
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Whether a number selects weights or kernels, and so decides what is computed. No check can
/// detect that such a number was changed.
fn says_what_is_computed(path: &[String]) -> bool {
    let ends = |end: &[&str]| path.len() >= end.len() && path[path.len() - end.len()..].iter().eq(end);
    ends(&["weight", "offset"]) || ends(&["kernel"])
}

fn logits(descriptor: Descriptor) -> Option<Vec<Vec<u32>>> {
    let machine = Machine::new(descriptor).ok()?;
    let mut simulator = Simulator::with_weights(&machine, &Table, Runner::Interpreter).ok()?;
    let mut all = Vec::new();
    for (tokens, wanted) in [(&[1, 3, 2][..], &[0, 2][..]), (&[0], &[0])] {
        let step = simulator.step(tokens, wanted).ok()?;
        // Timing without weights must end, too.
        let _ = simulate(&machine, simulator.position(), 2);
        all.extend(step.logits.into_iter().map(|row| row.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()));
    }
    Some(all)
}

/// Changes the numbers of a valid descriptor, one at a time. Each change must be refused, end in an
/// error, or change only times.
#[test]
fn descriptor_changes_never_alter_results_silently() {
    let (mut same, mut refused) = (0, 0);
    let sound = [
        ("chain", chain("tiny-colours", &[(1, 0), (6, 5)])),
        ("experts", experts(2)),
        ("state", attention_descriptor()),
        ("waves", two_waves()),
        ("state in waves", state_in_waves()),
    ];
    for (name, mut d) in sound {
        if name == "chain" {
            for (colour, Stream { colour: found, .. }) in (0..).zip(&mut d.streams) {
                *found = colour;
            }
        }
        let right = logits(d.clone()).unwrap_or_else(|| panic!("{name} does not run"));
        assert!(right.iter().flatten().any(|bits| *bits != 0));
        let text = serde_json::to_value(&d).unwrap();
        let (mut path, mut all) = (Vec::new(), Vec::new());
        numbers(&text, &mut path, &mut all);
        assert!(all.len() > 100, "{name}: {}", all.len());
        for path in all {
            let pointer = format!("/{}", path.join("/"));
            let found = text.pointer(&pointer).unwrap().clone();
            let others: Vec<Value> = match found.as_u64() {
                Some(n) => {
                    let others = [Some(0), Some(u64::MAX), Some(u32::MAX.into()), n.checked_add(1), n.checked_sub(1)];
                    others.into_iter().flatten().filter(|other| *other != n).map(Value::from).collect()
                }
                None => [0.0, -1.0, 1e-320, 1e300].map(Value::from).to_vec(),
            };
            for other in others {
                let mut changed = text.clone();
                *changed.pointer_mut(&pointer).unwrap() = other.clone();
                let Ok(descriptor) = serde_json::from_value::<Descriptor>(changed) else {
                    refused += 1;
                    continue;
                };
                match logits(descriptor) {
                    None => refused += 1,
                    Some(found) if found == right => same += 1,
                    Some(_) => assert!(says_what_is_computed(&path), "{name}: {pointer} = {other} changes the results"),
                }
            }
        }
    }
    println!("{refused} refused, {same} with the same results");
    assert!(refused > 1000 && same > 300, "{refused} refused, {same} with the same results");
}
