//! Tests of the memory of states.

use super::*;
use ixc_ir::format::Format;
use ixc_ir::state::StateKind;

fn recurrent(rollback: Rollback) -> State {
    let field = StateField { format: Format::F32, columns: 2, positions: false, width: 3 };
    State {
        name: "s".to_string(),
        kind: StateKind::Recurrent,
        fields: vec![field],
        rollback,
        window: None,
        every: 1,
        chunked: false,
    }
}

fn fill(states: &States, state: u32, byte: u8) {
    let region = states.region(state, 0, 0, 0).unwrap();
    // SAFETY: the region lies in the states, which nothing else uses.
    unsafe { region.base().write_bytes(byte, region.bytes() as usize) };
}

fn bytes(states: &States, state: u32) -> Vec<u8> {
    let region = states.region(state, 0, 0, 0).unwrap();
    // SAFETY: the region lies in the states, and nothing writes it now.
    (0..region.bytes() as usize).map(|i| unsafe { region.base().add(i).read() }).collect()
}

#[test]
fn state_columns_are_separate_and_truncation_clears_exact_positions() {
    let two = [State::paged("a", 2, 16, 4), State::paged("b", 2, 16, 4)];
    let mut states = States::new(&two, 32, 8).unwrap();
    let head = states.region(1, 1, 1, 0).unwrap();
    assert_eq!(head.bytes(), 32 * 4 * 2);
    assert!(
        states.region(1, 1, 2, 0).is_none()
            && states.region(2, 0, 0, 0).is_none()
            && states.region(0, 2, 0, 0).is_none()
    );
    assert!(states.region(1, 1, 1, 1).is_some_and(|rest| rest.bytes() == 0) && states.region(1, 1, 1, 2).is_none());
    // SAFETY: the region lies in the states, which nothing else uses.
    unsafe { head.base().write_bytes(0x40, 256) };
    states.back_to(3, 6);
    // SAFETY: the region lies in the states, and nothing writes it now.
    let bytes: Vec<u8> = (0..256).map(|i| unsafe { head.base().add(i).read() }).collect();
    assert!(bytes.iter().enumerate().all(|(i, &b)| b == if (24..48).contains(&i) { 0 } else { 0x40 }));
}

#[test]
fn columns_of_no_bytes_are_not_visited() {
    let states = vec![State::paged("none", u32::MAX, 0, 0); 1000];
    States::new(&states, 32, 8).unwrap().back_to(0, 32);
}

#[test]
fn impossible_allocation_is_an_error() {
    let state = State::paged("large", u32::MAX, u32::MAX, u32::MAX);
    assert!(States::new(&[state.clone(), state], 1 << 24, 8).is_err());
}

#[test]
fn states_without_truncation_restore_from_limited_snapshots() {
    let mut states = States::new(&[State::paged("kv", 1, 16, 4), recurrent(Rollback::Snapshot)], 64, 8).unwrap();
    assert!(!states.cut_anywhere());
    for position in 1..=6u8 {
        fill(&states, 1, position);
        states.save(position.into());
    }
    // Six copies were saved, and the first two were dropped.
    assert_eq!([2, 3, 5, 6, 9].map(|wanted| states.reach(wanted, Some(6))), [0, 3, 5, 6, 6]);
    assert_eq!(states.reach(6, None), 6);
    states.back_to(4, 6);
    assert_eq!(bytes(&states, 1), [4; 24]);
    assert_eq!([3, 9].map(|wanted| states.reach(wanted, None)), [3, 4], "later copies are of another sequence");
    states.back_to(0, 4);
    assert_eq!(bytes(&states, 1), [0; 24]);
    assert_eq!(states.reach(3, None), 0);
}

#[test]
fn states_without_rollback_restart_from_zero() {
    let mut states = States::new(&[recurrent(Rollback::None), recurrent(Rollback::Snapshot)], 32, 8).unwrap();
    fill(&states, 0, 7);
    fill(&states, 1, 8);
    states.save(5);
    assert_eq!([5, 4].map(|wanted| states.reach(wanted, Some(5))), [5, 0]);
    states.back_to(0, 5);
    assert_eq!((bytes(&states, 0), bytes(&states, 1)), (vec![0; 24], vec![0; 24]));
    let state = recurrent(Rollback::Snapshot);
    assert_eq!(States::bytes(&[state], 32, 8), 64 + 24 * SNAPSHOTS as u64);
}

/// A state with a window of 20 has room for 64 positions if steps have 8 tokens. Each position
/// stores its own number.
#[test]
fn windowed_state_keeps_only_recent_positions() {
    let state = State { window: Some(20), ..State::paged("kv", 2, 16, 4) };
    assert_eq!((state.entries_in_memory(1024, 8), state.entries_in_memory(32, 8)), (64, 32));
    let mut states = States::new(&[state], 1024, 8).unwrap();
    let value = |states: &States, at: u32| {
        let region = states.region(0, 1, 1, 0).unwrap();
        // SAFETY: the region lies in the states, which nothing else uses.
        unsafe { region.base().add(at as usize * 8).cast::<u16>().read_unaligned() }
    };
    let base = |states: &States| states.sliding(0).unwrap().base();
    for position in 0..200u32 {
        states.make_room(position, 0, 1);
        let at = position - base(&states);
        assert!(at < 64 && base(&states).is_multiple_of(32));
        let region = states.region(0, 1, 1, 0).unwrap();
        // SAFETY: the region lies in the states, which nothing else uses.
        unsafe { region.base().add(at as usize * 8).cast::<u16>().write_unaligned(position as u16) };
        for needed in (position + 1).saturating_sub(20)..=position {
            assert_eq!(u32::from(value(&states, needed - base(&states))), needed, "at {position}");
        }
        assert_eq!(
            states.sliding(0).unwrap().first_block(position),
            u64::from(((position + 1).saturating_sub(20) - base(&states)) / 32)
        );
    }
    // Memory holds positions from 160 on, which are all that a token at position 179 needs.
    assert_eq!(base(&states), 160);
    assert_eq!([179, 178, 200].map(|wanted| states.reach(wanted, Some(200))), [179, 0, 200]);
    states.back_to(179, 200);
    assert_eq!((value(&states, 18), value(&states, 19)), (178, 0), "what was dropped is zero");
    states.back_to(0, 179);
    assert_eq!((base(&states), value(&states, 3)), (0, 0));
}
