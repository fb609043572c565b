//! Offsets of the instructions in finished code, and the IR statement of each instruction.
//! Cranelift reports statements only for sequences of instructions. It does not report the end of
//! the code, after which constants follow.

use iced_x86::{Decoder, DecoderOptions, FlowControl};

use crate::line::Line;

/// Returns the size of the instructions, the offset of the constants, and a line for each
/// instruction. `origins` are the offsets where the statement changes, in order.
pub(super) fn locate_instructions(bytes: &[u8], origins: &[Line]) -> (usize, usize, Vec<Line>) {
    // Code reads all constants relative to the instruction pointer, which shows where they begin.
    // Code ends with an instruction that does not fall through.
    let (mut constants, mut end) = (bytes.len() as u64, 0);
    let mut lines = Vec::new();
    let (mut origins, mut origin) = (origins.iter().peekable(), None);
    for i in &mut Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE) {
        if i.next_ip() > constants || i.is_invalid() {
            break;
        }
        let offset = i.ip32();
        while let Some(next) = origins.next_if(|next| next.offset <= offset) {
            origin = next.origin;
        }
        lines.push(Line { offset, origin });
        if i.is_ip_rel_memory_operand() {
            constants = constants.min(i.ip_rel_memory_address().max(i.next_ip()));
        }
        if let FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::Exception = i.flow_control() {
            end = i.next_ip() as usize;
        }
    }
    lines.retain(|line| (line.offset as usize) < end);
    (end, constants as usize, lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_size_excludes_constants() {
        // vmovaps xmm0, [rip + 8]; ret; padding; and a constant whose bytes also decode as `ret`.
        let code = [&[0xc5, 0xf8, 0x28, 0x05, 0x08, 0, 0, 0, 0xc3][..], &[0; 7], &[0xc3; 16]].concat();
        let line = |offset, origin| Line { offset, origin };
        let found = locate_instructions(&code, &[line(0, Some(3)), line(8, None)]);
        assert_eq!(found, (9, 16, vec![line(0, Some(3)), line(8, None)]));
        assert_eq!(locate_instructions(&[], &[]), (0, 0, Vec::new()));
    }
}
