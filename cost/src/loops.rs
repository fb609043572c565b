//! Loops of finished code, and the loops of the kernel IR from which they come.
//!
//! A backward jump closes a loop from its target to the jump. The jump's [`Line`] identifies the
//! `for` of the kernel, which has the loop's name and trip count. A `for` that runs at most once
//! has no backward jump. Its code is what a forward jump with the same line skips.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};
use ixc_ir::kernel::print::AffineText;
use ixc_ir::kernel::{Affine, For, Kernel, Stmt};

use ixc_codegen::line::Line;

/// A decoded instruction with the IR statement that it comes from.
#[derive(Clone, Copy, Debug)]
pub struct DecodedInstruction {
    /// The instruction; its address is its offset in the code.
    pub instruction: Instruction,
    /// The statement, counted in the order of the kernel's text.
    pub origin: Option<u32>,
}

/// Decodes the whole code.
pub fn decode(code: &[u8], lines: &[Line]) -> Vec<DecodedInstruction> {
    Decoder::with_ip(64, code, 0, DecoderOptions::NONE)
        .into_iter()
        .map(|instruction| {
            let offset = instruction.ip();
            let line = lines.binary_search_by_key(&offset, |line| u64::from(line.offset)).ok().map(|at| lines[at]);
            DecodedInstruction { instruction, origin: line.and_then(|line| line.origin) }
        })
        .collect()
}

/// A loop, or code that runs at most once: instructions `first..=last` of the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLoop {
    /// Index of the loop's first instruction.
    pub first: usize,
    /// Index of the loop's last instruction: the jump back, if there is one.
    pub last: usize,
    /// The IR statement that the loop comes from.
    pub origin: Option<u32>,
    /// Whether the loop ends with a jump back.
    pub repeats: bool,
    /// Index of the smallest loop around this loop.
    pub parent: Option<usize>,
    /// Steps of the IR loop in one iteration of the code, which is the decrement of its counter.
    pub step: i64,
}

/// Finds the loops; outer loops come before their inner loops. `is_loop` returns whether a
/// statement is a `for`.
pub fn find(code: &[DecodedInstruction], is_loop: impl Fn(u32) -> bool) -> Vec<FoundLoop> {
    let mut loops: Vec<FoundLoop> = Vec::new();
    for (last, decoded) in code.iter().enumerate() {
        let i = &decoded.instruction;
        let jumps = matches!(i.flow_control(), FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch);
        if !jumps || i.near_branch_target() > i.ip() {
            continue;
        }
        let Ok(first) = code[..=last].binary_search_by_key(&i.near_branch_target(), |d| d.instruction.ip()) else {
            continue;
        };
        // Several backward jumps to one target form one loop, which ends at the last of these
        // jumps.
        loops.retain(|found| found.first != first);
        let step = step(&code[first..last]);
        loops.push(FoundLoop { first, last, origin: decoded.origin, repeats: true, parent: None, step });
    }
    for (guard, decoded) in code.iter().enumerate() {
        let i = &decoded.instruction;
        let Some(origin) = decoded.origin.filter(|origin| is_loop(*origin)) else { continue };
        if i.flow_control() != FlowControl::ConditionalBranch || i.near_branch_target() <= i.ip() {
            continue;
        }
        let end = code.partition_point(|d| d.instruction.ip() < i.near_branch_target());
        let inside = |found: &FoundLoop| guard < found.first && found.last < end && found.origin == Some(origin);
        // A forward jump before a repeating loop only skips that loop. It is not a loop itself.
        if end > guard + 1 && !loops.iter().any(inside) {
            let (first, last) = (guard + 1, end - 1);
            loops.push(FoundLoop { first, last, origin: Some(origin), repeats: false, parent: None, step: 1 });
        }
    }
    loops.sort_by_key(|found| (found.first, std::cmp::Reverse(found.last)));
    for at in 0..loops.len() {
        let inside = |outer: &FoundLoop| outer.first <= loops[at].first && loops[at].last <= outer.last;
        loops[at].parent = (0..at).rev().find(|&outer| inside(&loops[outer]));
    }
    loops
}

/// Returns the decrement of a loop's counter, from the last addition or subtraction before its
/// jump.
fn step(body: &[DecodedInstruction]) -> i64 {
    let last = body.iter().rev().take(4).map(|d| &d.instruction).find(|i| {
        matches!(i.mnemonic(), Mnemonic::Dec | Mnemonic::Sub | Mnemonic::Add | Mnemonic::Cmp | Mnemonic::Test)
    });
    match last {
        Some(i) if i.mnemonic() == Mnemonic::Sub && i.op_count() == 2 && is_immediate(i.op1_kind()) => {
            (i.immediate(1) as i64).max(1)
        }
        _ => 1,
    }
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(kind, OpKind::Immediate8to64 | OpKind::Immediate32to64 | OpKind::Immediate8to32 | OpKind::Immediate32)
}

/// A `for` of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IrLoop {
    /// Name of the loop's variable, without the `%`.
    pub var: String,
    /// Trip count as an expression over dims.
    pub trip: Affine,
    /// The trip count as text.
    pub trip_text: String,
}

/// Returns the `for` statements of a kernel by their statement numbers.
pub fn of_kernel(kernel: &Kernel) -> Vec<(u32, IrLoop)> {
    let mut out = Vec::new();
    let mut number = 0;
    collect(kernel, &kernel.body, &mut number, &mut out);
    out
}

fn collect(kernel: &Kernel, body: &[Stmt], number: &mut u32, out: &mut Vec<(u32, IrLoop)>) {
    for stmt in body {
        if let Stmt::For(For { var, trip, body, .. }) = stmt {
            let name = kernel.vars.get(var.index()).cloned().unwrap_or_default();
            let trip_text = AffineText(kernel, trip).to_string();
            out.push((*number, IrLoop { var: name, trip: trip.clone(), trip_text }));
            *number += 1;
            collect(kernel, body, number, out);
        } else {
            *number += 1;
        }
    }
}
