//! A function as Graphviz draws it: ops are nodes, values with their types are edges.
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
//! Takes any function, also one that does not verify.

use std::fmt::from_fn;

use petgraph::dot::Dot;

use super::def_use::{DefUse, Node};
use super::print::Text;
use super::{Function, Module};

/// A function of a module in the DOT language.
pub fn dot(module: &Module, function: &Function) -> String {
    let (text, def_use) = (Text::new(module, function), DefUse::of(function));
    let labels = def_use.graph().map(
        |_, node| match *node {
            Node::Op(at) => from_fn(|f| text.computed(f, &function.ops[at])).to_string(),
            Node::Param(param) => from_fn(|f| text.value(f, param)).to_string(),
            Node::Return => "return".to_string(),
        },
        |_, taken| {
            let value = from_fn(|f| {
                text.value(f, taken.value)?;
                f.write_str(" : ")?;
                text.ty(f, taken.value)
            });
            value.to_string()
        },
    );
    Dot::new(&labels).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
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
        assert_eq!(dot(&module, &module.functions[0]), expected);
    }
}
