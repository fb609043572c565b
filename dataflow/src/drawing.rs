//! Drawing of a descriptor's programs. Each program is a box with its kernel and its instances;
//! edges are streams.
//!
//! ```text
//! | [host] --token_embd, 1024 bytes-->
//!     [rms_norm blk.0.attn_norm / sum_squares_n256 / 4 instances from PE 0, 0] --> ...
//! ```
//! Descriptors may be unchecked: references to missing items are omitted.

use ixc_ir::drawing::{Drawing, Graph, Shape};

use crate::descriptor::{Descriptor, End, Program};

/// Draws the programs of a descriptor and the streams between them.
pub fn draw(descriptor: &Descriptor) -> Drawing {
    let mut graph = Graph::default();
    let programs: Vec<_> =
        descriptor.programs.iter().map(|program| graph.node(&label(descriptor, program), Shape::Box)).collect();
    // There are two boxes for the host: one sends rows, the other receives logits.
    let hosts = [graph.node("host", Shape::Round), graph.node("host", Shape::Round)];
    for stream in &descriptor.streams {
        let node = |end: End, host| match end {
            End::Host => Some(host),
            End::Program(program) => programs.get(program as usize).copied(),
        };
        let Some(tensor) = descriptor.tensors.get(stream.tensor as usize) else { continue };
        if let (Some(from), Some(to)) = (node(stream.from, hosts[0]), node(stream.to, hosts[1])) {
            graph.edge(from, to, &format!("{}, {} bytes a row", tensor.name, tensor.row_bytes));
        }
    }
    Drawing { graphs: vec![("programs".to_owned(), graph)] }
}

/// Returns the text in a program's box: its label, kernel, and the location of its instances.
fn label(descriptor: &Descriptor, program: &Program) -> String {
    let kernel = descriptor.kernels.get(program.kernel as usize).map_or("", |kernel| kernel.name.as_str());
    let each = [program.columns, descriptor.experts(program), descriptor.parts(program)];
    let count = each.into_iter().map(u128::from).product::<u128>();
    let (instances, at) = (if count == 1 { "instance on" } else { "instances from" }, &program.sites);
    let wave = if descriptor.waves.len() > 1 { format!(", wave {}", program.wave) } else { String::new() };
    format!("{}\n{kernel}\n{count} {instances} PE {}, {}{wave}", program.label, at.x, at.y)
}

#[cfg(test)]
mod tests {
    use ixc_ir::drawing::Language;

    use super::*;
    use crate::descriptor::Axis;
    use crate::simulate::tests::chain;

    #[test]
    fn dataflow_drawing_has_program_boxes_and_stream_edges() {
        let mut descriptor = chain("tiny", &[(1, 0), (6, 5), (2, 7)]);
        descriptor.programs[1].label = "hostile\" --> \u{1b}".to_owned();
        let expected = r##"flowchart TD
  n0["copy 0<br/>copy8<br/>1 instance on PE 1, 0"]
  n1["hostile#34; --#62; #92;u{1b}<br/>copy8<br/>1 instance on PE 6, 5"]
  n2["copy 2<br/>copy8<br/>1 instance on PE 2, 7"]
  n3(["host"])
  n4(["host"])
  n3 -->|"x, 32 bytes a row"| n0
  n0 -->|"t0, 32 bytes a row"| n1
  n1 -->|"t1, 32 bytes a row"| n2
  n2 -->|"t2, 32 bytes a row"| n4
"##;
        assert_eq!(draw(&descriptor).text(Language::Mermaid), expected);
    }

    #[test]
    fn edges_to_missing_programs_are_not_drawn() {
        let mut descriptor = chain("tiny", &[(1, 0), (6, 5)]);
        descriptor.streams[0].tensor = 99;
        descriptor.streams[1].to = End::Program(99);
        descriptor.programs[0].kernel = 99;
        descriptor.programs[0].axis = Axis::Routed(99);
        let text = draw(&descriptor).text(Language::Dot);
        assert_eq!(text.matches(" -> ").count(), descriptor.streams.len() - 2, "{text}");
    }
}
