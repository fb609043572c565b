//! Drawings in DOT and Mermaid. This file has a parser for those parts of both grammars that
//! drawings use. If `dot` is installed, it also reads the drawings.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::support::{ixc, piped, scratch, stderr, stdout};

/// A parsed graph: labels of nodes by name, and edges.
#[derive(Debug, Default, PartialEq)]
struct Read {
    nodes: BTreeMap<String, String>,
    edges: Vec<(String, String, String)>,
}

/// Reads a quoted string at the beginning of a text, with backslashes before quotes and
/// backslashes. Returns the string and the remaining text.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut chars = text.strip_prefix('"')?.char_indices();
    let mut string = String::new();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => {
                // A character `&` must be written as an entity.
                let is_escaped = string.replace("&amp;", "").find('&').is_none();
                return is_escaped.then(|| (string.replace("&amp;", "&"), &text[at + 2..]));
            }
            '\\' => match chars.next()?.1 {
                'l' => string.push('\n'),
                c => string.push(c),
            },
            c => string.push(c),
        }
    }
    None
}

/// Reads graphs in DOT, one statement a line: `ID [ ATTRIBUTES ]` or `ID -> ID [ ATTRIBUTES ]`.
fn read_dot(text: &str) -> Option<Vec<Read>> {
    let mut graphs = Vec::new();
    let mut open: Option<Read> = None;
    for line in text.lines() {
        match (line, &mut open) {
            ("digraph {", None) => open = Some(Read::default()),
            ("}", Some(_)) => graphs.extend(open.take()),
            (line, Some(graph)) => {
                let (name, attributes) = line.trim_start().split_once(" [ label = ")?;
                let (label, rest) = quoted(attributes)?;
                if !["]", "shape = box ]", "style = dashed ]"].contains(&rest.trim()) {
                    return None;
                }
                let is_id = |id: &str| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
                match name.split_once(" -> ") {
                    Some((from, to)) if is_id(from) && is_id(to) => {
                        graph.edges.push((from.to_owned(), to.to_owned(), label));
                    }
                    None if is_id(name) => assert_eq!(graph.nodes.insert(name.to_owned(), label), None),
                    _ => return None,
                }
            }
            _ => return None,
        }
    }
    open.is_none().then_some(graphs)
}

/// Reads a Mermaid label. Characters may be written as numbers. Line breaks are the only markup.
fn label(text: &str) -> Option<String> {
    let mut label = String::new();
    let text = text.replace("<br/>", "\n");
    let mut rest = &*text;
    while let Some((before, behind)) = rest.split_once('#') {
        let (number, behind) = behind.split_once(';')?;
        label.push_str(before);
        label.push(char::from_u32(number.parse().ok()?)?);
        if before.contains(['"', '<', '>', '&', '`', ';']) {
            return None;
        }
        rest = behind;
    }
    (!rest.contains(['"', '<', '>', '&', '`', ';'])).then(|| label + rest)
}

/// Reads a Mermaid flowchart, one statement a line. It accepts those statements of Mermaid's
/// grammar (`flow.jison`) that drawings use. Graphs and nodes must have different names, and no
/// name may be a keyword of the language.
///
/// ```text
/// line := 'subgraph' GRAPH '["' LABEL '"]' | 'end' | NODE ('["' LABEL '"]' | '(["' LABEL '"])')
///       | NODE ARROW [ '|"' LABEL '"|' ] NODE
/// ```
fn read_mermaid(text: &str) -> Option<Read> {
    let mut read = Read::default();
    let (mut depth, mut titles) = (0, std::collections::BTreeSet::new());
    let is_id = |id: &str| id.strip_prefix('n').is_some_and(|id| id.parse::<usize>().is_ok());
    let (first, lines) = text.split_once('\n')?;
    if first != "flowchart TD" {
        return None;
    }
    for line in lines.lines().map(str::trim) {
        if let Some(graph) = line.strip_prefix("subgraph ") {
            let (id, title) = graph.strip_suffix("\"]")?.split_once("[\"")?;
            let is_new = id.strip_prefix('g').is_some_and(|id| id.parse::<usize>().is_ok());
            // Mermaid does not show an empty title.
            if !is_new || !titles.insert(id.to_owned()) || label(title)?.is_empty() {
                return None;
            }
            depth += 1;
        } else if line == "end" && depth > 0 {
            depth -= 1;
        } else if let Some((from, rest)) =
            line.split_once(" -->").or_else(|| line.split_once(" -.->")).filter(|(from, _)| is_id(from))
        {
            let (of, to) = match rest.strip_prefix("|\"") {
                Some(rest) => rest.split_once("\"| ").map(|(of, to)| (label(of), to))?,
                None => (Some(String::new()), rest.strip_prefix(' ')?),
            };
            if !is_id(to) {
                return None;
            }
            read.edges.push((from.to_owned(), to.to_owned(), of?));
        } else {
            let at = line.find(['[', '('])?;
            let (id, rest) = line.split_at(at);
            let inner = [("([\"", "\"])"), ("[\"", "\"]")]
                .into_iter()
                .find_map(|(open, close)| rest.strip_prefix(open)?.strip_suffix(close))?;
            if !is_id(id) {
                return None;
            }
            assert_eq!(read.nodes.insert(id.to_owned(), label(inner)?), None);
        }
    }
    (depth == 0).then_some(read)
}

/// Reads a drawing in both languages. Both must give the same graph.
#[track_caller]
fn both(arguments: &[&str], option: &str) -> Read {
    let text = |format: &str| stdout(ixc([arguments, &[option, format]].concat()));
    let (dot, mermaid) = (text("dot"), text("mermaid"));
    let graphs = read_dot(&dot).unwrap_or_else(|| panic!("{dot}"));
    let read = read_mermaid(&mermaid).unwrap_or_else(|| panic!("{mermaid}"));
    let [graph] = graphs.try_into().unwrap();
    let id = |id: &String| format!("n{id}");
    let renamed = Read {
        nodes: graph.nodes.iter().map(|(name, label)| (id(name), label.clone())).collect(),
        edges: graph.edges.iter().map(|(from, to, label)| (id(from), id(to), label.clone())).collect(),
    };
    assert_eq!(renamed, read);
    read.edges.iter().for_each(|(from, to, _)| assert!(read.nodes.contains_key(from) && read.nodes.contains_key(to)));
    draws(&dot);
    read
}

/// Draws a graph with Graphviz, if it is installed.
#[track_caller]
fn draws(dot: &str) {
    if Command::new("dot").arg("-V").output().is_err() {
        println!("NOT RUN: dot is not installed; drawings were read by the test's own grammar");
        return;
    }
    println!("tool: dot");
    let mut command = Command::new("dot");
    command.arg("-Tplain");
    let output = piped(command, dot);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn all_stages_are_drawn_in_dot_and_mermaid() {
    let labels = |read: &Read, part: &str| read.nodes.values().filter(|label| label.starts_with(part)).count();
    let graph = both(&["dump", "--stage", "graph"], "--format");
    let text = stdout(ixc(["dump", "--stage", "graph"]));
    assert_eq!(labels(&graph, "matmul "), text.matches(" = matmul ").count());
    let fused = both(&["dump", "--target", "avx2", "--stage", "fused"], "--format");
    assert_eq!(labels(&fused, "linear.qkv "), 4);
    assert!(fused.edges.iter().any(|(_, _, label)| label.contains("token<@kv.0>")), "{fused:?}");
    let plan = both(&["dump", "--target", "avx2", "--stage", "plan"], "--format");
    assert_eq!(plan, both(&["dump", "--target", "avx2", "--after", "steps"], "--format"));
    let streamed = both(&["dump", "--target", "avx2", "--stage", "plan", "--expert-memory", "1MiB"], "--format");
    assert!(streamed.edges.iter().any(|(_, _, label)| label == "read before"), "{streamed:?}");
    let programs = both(&["simulate", "--target", "dataflow:small"], "--draw");
    let said = ixc(["simulate", "--target", "dataflow:small"]).output().unwrap();
    let count: usize = stderr(&said).trim_start_matches("ixc: ").split_once(" programs").unwrap().0.parse().unwrap();
    // The host has two more nodes: one supplies rows, the other receives logits.
    assert_eq!(programs.nodes.len(), count + 2);
    assert_eq!(labels(&programs, "host"), 2);
}

#[test]
fn hostile_names_stay_labels() {
    let folder = scratch("hostile-drawing");
    let file = folder.join("hostile.ix");
    let name = r#""a\"];\u{a}b --> c #quot; &#1;&lt; <b>`x`</b> \\ \u{1b}[31m | é end""#;
    let text = format!(
        "weight @{name} : f32[4]\nfunc @step(%x: f32[T, 4]) -> (f32[T, 4]) {{\n  %a = rms_norm %x, @{name} {{eps = 1e-6}}\n  return %a\n}}\n"
    );
    fs::write(&file, text).unwrap();
    let read = both(&["opt", file.to_str().unwrap()], "--format");
    assert_eq!((read.nodes.len(), read.edges.len()), (3, 2), "{read:?}");
    let found = read.nodes.values().find(|label| label.starts_with("rms_norm")).unwrap();
    assert!(found.contains(r##"];\u{a}b --> c #quot; &#1;&lt; <b>`x`</b>"##) && !found.contains('\u{1b}'), "{found}");
}

/// Checks that several functions become parts of one flowchart, with different names.
#[test]
fn functions_are_parts_of_one_flowchart() {
    let folder = scratch("drawings-of-functions");
    let file = folder.join("two.ix");
    let function = |name: &str| {
        format!("func @{name}(%x: f32[T, 4]) -> (f32[T, 4]) {{\n  %a = silu %x : f32[T, 4]\n  return %a\n}}\n")
    };
    fs::write(&file, function("first") + &function("second")).unwrap();
    let text = stdout(ixc(["opt", file.to_str().unwrap(), "--format", "mermaid"]));
    let read = read_mermaid(&text).unwrap_or_else(|| panic!("{text}"));
    assert!(text.matches("  subgraph g").count() == 2 && text.contains("first") && text.contains("second"), "{text}");
    assert_eq!(read.nodes.values().filter(|label| label.starts_with("silu")).count(), 2, "{text}");
}

#[test]
fn invalid_drawings_are_rejected() {
    for wrong in
        ["digraph {\n", "digraph {\n    0 [ label = \"a\"b\" ]\n}\n", "digraph {\n    a -> 1 [ label = \"\" ]\n}\n"]
    {
        assert_eq!(read_dot(wrong), None, "{wrong}");
    }
    for wrong in [
        "graph TD\n",
        "flowchart TD\n  n0[\"<b>\"]\n",
        "flowchart TD\n  n0[\"a\"b\"]\n",
        "flowchart TD\n  n0 -->|\"x\"| m\n",
        "flowchart TD\n  subgraph g0\n  end\n",
        "flowchart TD\n  subgraph end[\"x\"]\n  end\n",
        "flowchart TD\n  subgraph g0[\"a\"]\n  end\n  subgraph g0[\"b\"]\n  end\n",
        "flowchart TD\n  end\n",
        "flowchart TD\n  subgraph g0[\"a\"]\n",
    ] {
        assert_eq!(read_mermaid(wrong), None, "{wrong}");
    }
}
