//! Drawing of a function: ops are nodes, and values with their types are edges.
//!
//! ```text
//! %a = silu %x : f32[T, 4]
//! return %a
//! ```
//! becomes
//! ```text
//! digraph {
//!     0 [ label = "silu %x" ]
//!     1 [ label = "%x" ]
//!     2 [ label = "return" ]
//!     1 -> 0 [ label = "%x : f32[T, 4]" ]
//!     0 -> 2 [ label = "%a : f32[T, 4]" ]
//! }
//! ```
//!
//! The input is any function, also one that does not verify.

use std::fmt::from_fn;

use petgraph::visit::EdgeRef;

use super::def_use::{DefUse, Node};
use super::print::Text;
use super::{Function, Module};
use crate::drawing::{Graph, Shape};

/// Draws a function of a module.
pub fn draw(module: &Module, function: &Function) -> Graph {
    let (text, def_use) = (Text::new(module, function), DefUse::from_function(function));
    let uses = def_use.graph();
    let mut graph = Graph::default();
    let nodes: Vec<_> = (uses.node_weights())
        .map(|node| {
            let label = match *node {
                Node::Op(at) => from_fn(|f| text.write_computation(f, &function.ops[at])).to_string(),
                Node::Param(param) => from_fn(|f| text.value(f, param)).to_string(),
                Node::Return => "return".to_owned(),
            };
            graph.node(&label, Shape::Round)
        })
        .collect();
    for edge in uses.edge_references() {
        let value = edge.weight().value;
        let label = from_fn(|f| {
            text.value(f, value)?;
            f.write_str(" : ")?;
            text.ty(f, value)
        });
        graph.edge(nodes[edge.source().index()], nodes[edge.target().index()], &label.to_string());
    }
    graph
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drawing::{Drawing, Language};
    use crate::graph::parse::parse;

    #[test]
    fn ops_are_nodes_and_values_are_edges() {
        let text = r#"weight @"a \"b\" \\ c" : f32[4]
func @f(%x: f32[T, 4], %y: f32[T, 4]) -> (f32[T, 4]) {
  %a = rms_norm %x, @"a \"b\" \\ c" {eps = 1e-6}
  %1 = mul %a, %a
  return %1
}"#;
        let module = parse(text).unwrap();
        let drawing = Drawing { graphs: vec![("f".to_owned(), draw(&module, &module.functions[0]))] };
        let expected = r#"digraph {
    0 [ label = "rms_norm %x, @\"a \\\"b\\\" \\\\ c\" {eps = 1e-6}" ]
    1 [ label = "mul %a, %a" ]
    2 [ label = "%x" ]
    3 [ label = "%y" ]
    4 [ label = "return" ]
    2 -> 0 [ label = "%x : f32[T, 4]" ]
    0 -> 1 [ label = "%a : f32[T, 4]" ]
    0 -> 1 [ label = "%a : f32[T, 4]" ]
    1 -> 4 [ label = "%3 : f32[T, 4]" ]
}
"#;
        assert_eq!(drawing.text(Language::Dot), expected);
        let expected = r##"flowchart TD
  n0(["rms_norm %x, @#34;a #92;#34;b#92;#34; #92;#92; c#34; {eps = 1e-6}"])
  n1(["mul %a, %a"])
  n2(["%x"])
  n3(["%y"])
  n4(["return"])
  n2 -->|"%x : f32[T, 4]"| n0
  n0 -->|"%a : f32[T, 4]"| n1
  n0 -->|"%a : f32[T, 4]"| n1
  n1 -->|"%3 : f32[T, 4]"| n4
"##;
        assert_eq!(drawing.text(Language::Mermaid), expected);
    }
}
