//! Graphs as text for other programs: DOT for Graphviz, or a Mermaid flowchart.
//!
//! ```text
//! digraph {                                  flowchart TD
//!     0 [ label = "silu %x" ]                  n0(["silu %x"])
//!     1 [ label = "%x" ]                       n1(["%x"])
//!     1 -> 0 [ label = "%x : f32[T, 4]" ]      n1 -->|"%x : f32[T, 4]"| n0
//! }
//! ```
//! Labels may hold any text, since names of tensors come from hostile files. Escaping ensures that
//! a label cannot end its string or begin markup, and has no control characters.

use std::fmt::{self, Write};

use petgraph::dot::Dot;
use petgraph::graph::{DiGraph, EdgeReference, NodeIndex};
use petgraph::visit::EdgeRef;

/// Language of a drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// DOT, the language of Graphviz.
    Dot,
    /// Mermaid, which many websites render in Markdown.
    Mermaid,
}

impl Language {
    /// Each language with its option name and its purpose.
    pub const ALL: [(&'static str, &'static str, Language); 2] = [
        ("dot", "A drawing for Graphviz", Language::Dot),
        ("mermaid", "A Mermaid flowchart for Markdown", Language::Mermaid),
    ];
}

/// Outline of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A rounded box.
    Round,
    /// A box.
    Box,
}

/// A node of a [`Graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeId(NodeIndex);

#[derive(Clone, Debug)]
struct Node {
    label: String,
    shape: Shape,
}

#[derive(Clone, Debug)]
struct Edge {
    label: String,
    dashed: bool,
}

/// Writes the label for DOT. Special characters become HTML entities.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label.replace('&', "&amp;"))
    }
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label.replace('&', "&amp;"))
    }
}

/// A graph with labelled nodes and edges.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    graph: DiGraph<Node, Edge>,
}

impl Graph {
    /// Adds a node. Lines of its label end with `\n`.
    pub fn node(&mut self, label: &str, shape: Shape) -> NodeId {
        NodeId(self.graph.add_node(Node { label: plain(label), shape }))
    }

    /// Adds an edge.
    pub fn edge(&mut self, from: NodeId, to: NodeId, label: &str) {
        self.graph.add_edge(from.0, to.0, Edge { label: plain(label), dashed: false });
    }

    /// Adds an edge that is drawn dashed.
    pub fn dashed_edge(&mut self, from: NodeId, to: NodeId, label: &str) {
        self.graph.add_edge(from.0, to.0, Edge { label: plain(label), dashed: true });
    }

    fn dot(&self) -> String {
        let shape = |_, (_, node): (_, &Node)| match node.shape {
            Shape::Round => String::new(),
            Shape::Box => "shape = box ".to_owned(),
        };
        let style =
            |_, edge: EdgeReference<'_, Edge>| if edge.weight().dashed { "style = dashed " } else { "" }.to_owned();
        Dot::with_attr_getters(&self.graph, &[], &style, &shape).to_string()
    }

    /// Writes lines of nodes and edges in Mermaid's language. Nodes are numbered from `first` on.
    fn mermaid(&self, first: usize, indent: &str, text: &mut String) -> fmt::Result {
        for (at, node) in self.graph.node_indices().zip(self.graph.node_weights()) {
            let (open, close) = match node.shape {
                Shape::Round => ("([", "])"),
                Shape::Box => ("[", "]"),
            };
            writeln!(text, "{indent}n{}{open}\"{}\"{close}", first + at.index(), escape_label(&node.label))?;
        }
        for edge in self.graph.edge_references() {
            let Edge { label, dashed } = edge.weight();
            let arrow = if *dashed { "-.->" } else { "-->" };
            let label = if label.is_empty() { String::new() } else { format!("|\"{}\"|", escape_label(label)) };
            writeln!(
                text,
                "{indent}n{} {arrow}{label} n{}",
                first + edge.source().index(),
                first + edge.target().index()
            )?;
        }
        Ok(())
    }
}

/// Graphs that are drawn in one text, with their names.
#[derive(Clone, Debug, Default)]
pub struct Drawing {
    /// Graphs, each with the name of its subject.
    pub graphs: Vec<(String, Graph)>,
}

impl Drawing {
    /// Returns the drawing as text. In DOT, each graph is separate. A Mermaid text is a single
    /// graph, so several graphs become its subgraphs.
    pub fn text(&self, language: Language) -> String {
        match language {
            Language::Dot => self.graphs.iter().map(|(_, graph)| graph.dot()).collect(),
            Language::Mermaid => self.mermaid(),
        }
    }

    fn mermaid(&self) -> String {
        let (mut text, mut first) = ("flowchart TD\n".to_owned(), 0);
        for (number, (name, graph)) in self.graphs.iter().enumerate() {
            // Writing to a `String` cannot fail.
            let _ = if self.graphs.len() == 1 {
                graph.mermaid(first, "  ", &mut text)
            } else {
                let _ = writeln!(text, "  subgraph g{number}[\"{}\"]", escape_label(&plain(name)));
                let _ = graph.mermaid(first, "    ", &mut text);
                writeln!(text, "  end")
            };
            first += graph.graph.node_count();
        }
        text
    }
}

/// Escapes the control characters of a label, but keeps line ends.
fn plain(label: &str) -> String {
    let mut plain = String::with_capacity(label.len());
    for c in label.chars() {
        if c.is_control() && c != '\n' {
            plain.extend(c.escape_unicode());
        } else {
            plain.push(c);
        }
    }
    plain
}

/// Escapes a label between quotes in Mermaid, which reads labels as HTML, or as Markdown after a
/// backtick.
fn escape_label(label: &str) -> String {
    let mut escaped = String::with_capacity(label.len());
    for c in label.chars() {
        match c {
            '\n' => escaped.push_str("<br/>"),
            '"' | '#' | '&' | '<' | '>' | '`' | '\\' | ';' => {
                // Mermaid accepts decimal codes for all characters.
                let _ = write!(escaped, "#{};", u32::from(c));
            }
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hostile() -> Drawing {
        let mut graph = Graph::default();
        let a = graph.node("a\"] --> b;\n#quot; <script>`x` \\", Shape::Box);
        let b = graph.node("\u{1b}[31m \u{0}end", Shape::Round);
        graph.edge(a, b, "|\"| & é");
        graph.edge(b, a, "");
        graph.dashed_edge(a, b, "read before");
        Drawing { graphs: vec![("f".to_owned(), graph)] }
    }

    #[test]
    fn hostile_labels_stay_inside_strings() {
        let expected = r#"digraph {
    0 [ label = "a\"] --> b;\l#quot; <script>`x` \\" shape = box ]
    1 [ label = "\\u{1b}[31m \\u{0}end" ]
    0 -> 1 [ label = "|\"| &amp; é" ]
    1 -> 0 [ label = "" ]
    0 -> 1 [ label = "read before" style = dashed ]
}
"#;
        assert_eq!(hostile().text(Language::Dot), expected);
        let expected = r##"flowchart TD
  n0["a#34;] --#62; b#59;<br/>#35;quot#59; #60;script#62;#96;x#96; #92;"]
  n1(["#92;u{1b}[31m #92;u{0}end"])
  n0 -->|"|#34;| #38; é"| n1
  n1 --> n0
  n0 -.->|"read before"| n1
"##;
        assert_eq!(hostile().text(Language::Mermaid), expected);
    }

    #[test]
    fn several_graphs_are_parts_of_a_flowchart() {
        let mut drawing = hostile();
        drawing.graphs.push(("a \"b\"".to_owned(), drawing.graphs[0].1.clone()));
        let text = drawing.text(Language::Mermaid);
        assert!(
            text.contains("  subgraph g1[\"a #34;b#34;\"]\n    n2[") && text.contains("\n    n3 --> n2\n"),
            "{text}"
        );
        assert_eq!((text.matches("flowchart").count(), text.matches("\n  end\n").count()), (1, 2));
        assert_eq!(drawing.text(Language::Dot).matches("digraph {").count(), 2);
    }
}
