//! Dependencies through registers: the latency of one iteration, and the minimum cycles between
//! iterations.
//!
//! `start[i]` and `end[j]` are the times at which registers are ready at the start and end of an
//! iteration: `end[j] = max over i (start[i] + M[i][j])`. Iterations can follow each other every
//! `lambda` cycles. Here, `lambda` is the largest mean weight of a cycle in the graph with the
//! weights `M` (Karp's theorem). An accumulator's chain is a cycle of one register, `M[j][j]`.
//!
//! Flags, the stack pointer and memory are not counted as dependencies.

use std::collections::BTreeMap;

use iced_x86::{Instruction, InstructionInfoFactory, OpAccess, Register};

/// Registers that an instruction reads and writes, with latencies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Registers that the instruction reads, each with the cycles from it to the result.
    pub reads: Vec<(Register, u32)>,
    /// Registers that the instruction writes.
    pub writes: Vec<Register>,
    /// Cycles to the result if all operands are ready.
    pub latency: u32,
}

/// Latencies of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Cycles from operands to the result.
    pub work: u32,
    /// Cycles from an address to the loaded operand; 0 without a load.
    pub load: u32,
    /// Whether the result does not depend on any operand (zeroing idioms).
    pub breaks: bool,
}

/// Returns the registers that an instruction reads and writes, with latencies.
pub fn node(factory: &mut InstructionInfoFactory, instruction: &Instruction, latency: Latency) -> Node {
    let address = [instruction.memory_base(), instruction.memory_index()].map(Register::full_register);
    let mut node = Node { latency: latency.work + latency.load, ..Node::default() };
    for used in factory.info(instruction).used_registers() {
        let register = used.register().full_register();
        if register == Register::RSP || register.is_segment_register() || register.is_ip() {
            continue;
        }
        let (reads, writes) = match used.access() {
            OpAccess::Read | OpAccess::CondRead => (true, false),
            OpAccess::Write => (false, true),
            OpAccess::ReadWrite | OpAccess::ReadCondWrite | OpAccess::CondWrite => (true, true),
            OpAccess::None | OpAccess::NoMemAccess => (false, false),
        };
        if reads && !latency.breaks {
            let load = if address.contains(&register) { latency.load } else { 0 };
            node.reads.push((register, latency.work + load));
        }
        if writes && !node.writes.contains(&register) {
            node.writes.push(register);
        }
    }
    node
}

/// The longest chain from one iteration to the next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CarriedChain {
    /// Cycles per iteration.
    pub cycles: f64,
    /// Register of the chain, if it has only one.
    pub register: Option<Register>,
}

/// Returns the number of cycles from the start of a block to its last result, if all registers are
/// ready at the start.
pub fn critical_path(block: &[Node]) -> u32 {
    let mut times: BTreeMap<Register, u32> = BTreeMap::new();
    let mut last = 0;
    for node in block {
        let operands = node.reads.iter().map(|(r, latency)| times.get(r).copied().unwrap_or(0) + latency).max();
        let done = operands.unwrap_or(node.latency).max(node.latency);
        for &register in &node.writes {
            times.insert(register, done);
        }
        last = last.max(done);
    }
    last
}

/// Computes the longest carried chain of a loop.
pub fn carried_chain(block: &[Node]) -> CarriedChain {
    // Only registers that are written, and read before they are written, can be on a cycle.
    let mut written = Vec::new();
    let mut live_in = Vec::new();
    for node in block {
        for &(register, _) in &node.reads {
            if !written.contains(&register) && !live_in.contains(&register) {
                live_in.push(register);
            }
        }
        written.extend(node.writes.iter().filter(|r| !written.contains(r)).copied().collect::<Vec<_>>());
    }
    live_in.retain(|register| written.contains(register));
    live_in.sort_unstable();
    let matrix: Vec<Vec<Option<u32>>> = live_in
        .iter()
        .map(|&from| {
            let mut times: BTreeMap<Register, u32> = BTreeMap::from([(from, 0)]);
            for node in block {
                let done = node.reads.iter().filter_map(|(r, latency)| Some(times.get(r)? + latency)).max();
                for &register in &node.writes {
                    match done {
                        Some(done) => times.insert(register, done),
                        None => times.remove(&register),
                    };
                }
            }
            live_in.iter().map(|to| times.get(to).copied()).collect()
        })
        .collect();
    let cycles = largest_mean_cycle(&matrix);
    let register = live_in.iter().enumerate().find(|(i, _)| matrix[*i][*i].is_some_and(|own| f64::from(own) == cycles));
    CarriedChain { cycles, register: register.map(|(_, r)| *r).filter(|_| cycles > 0.0) }
}

/// Returns the largest mean weight of a cycle in a graph, by Karp's algorithm; 0 if there is no
/// cycle. `weights[i][j]` is the weight of the edge from i to j.
fn largest_mean_cycle(weights: &[Vec<Option<u32>>]) -> f64 {
    let n = weights.len();
    // `walks[k][j]` is the weight of the heaviest walk of k edges that ends at j.
    let mut walks = vec![vec![Some(0u64); n]];
    for k in 0..n {
        let next =
            (0..n).map(|j| (0..n).filter_map(|i| Some(walks[k][i]? + u64::from(weights[i][j]?))).max()).collect();
        walks.push(next);
    }
    (0..n)
        .filter_map(|j| {
            let whole = walks[n][j]? as f64;
            (0..n).filter_map(|k| Some((whole - walks[k][j]? as f64) / (n - k) as f64)).reduce(f64::min)
        })
        .fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Register::{ZMM0, ZMM1, ZMM2};

    fn node(write: Register, reads: &[(Register, u32)]) -> Node {
        Node { reads: reads.to_vec(), writes: vec![write], latency: reads.iter().map(|r| r.1).max().unwrap_or(0) }
    }

    #[test]
    fn an_accumulator_is_a_chain_of_its_own() {
        let block =
            [node(ZMM0, &[(ZMM0, 4), (ZMM2, 4)]), node(ZMM1, &[(ZMM1, 4), (ZMM2, 4)]), node(ZMM1, &[(ZMM1, 4)])];
        assert_eq!(carried_chain(&block), CarriedChain { cycles: 8.0, register: Some(ZMM1) });
        assert_eq!(critical_path(&block), 8);
    }

    #[test]
    fn a_chain_through_two_registers_takes_two_iterations() {
        // The chain goes from 0 to 1 in one iteration, and from 1 to 0 in the next: seven cycles
        // for two iterations.
        let block = [node(ZMM2, &[(ZMM0, 3)]), node(ZMM0, &[(ZMM1, 4)]), node(ZMM1, &[(ZMM2, 0)])];
        assert_eq!(carried_chain(&block), CarriedChain { cycles: 3.5, register: None });
    }

    #[test]
    fn registers_written_first_carry_no_dependence() {
        let block = [node(ZMM0, &[(ZMM2, 7)]), node(ZMM1, &[(ZMM0, 5)])];
        assert_eq!(carried_chain(&block), CarriedChain::default());
        assert_eq!(critical_path(&block), 12);
    }
}
