//! Tests of the syntax grammars in `editors/`. Their lists of names must equal the tables in the
//! code (`IXC_BLESS=1` rewrites the lists). The grammars must match every token of texts that the
//! parsers accept. If tree-sitter is installed, its grammar is tested, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ixc::ir::format::FORMATS;
use ixc::ir::graph::op::OPS as GRAPH_OPS;
use ixc::ir::kernel::Elem;
use ixc::ir::kernel::op::{ImmKind, Memory, OPS as KERNEL_OPS};
use ixc::ir::state::STATES;
use ixc_testing::becomes;
use regex_automata::Anchored;
use regex_automata::Input;
use regex_automata::meta::Regex;
use regex_automata::util::syntax;
use serde_json::{Value as Json, json};

use crate::support::{ixc, scratch, stderr, stdout};

/// Min number of tested texts. If there are fewer, this test has failed to find texts.
const LEAST_TEXTS: usize = 200;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("editors")
}

/// Returns the names of ops by the kinds of their operands, and the names of formats, states and
/// elements.
fn tables() -> Json {
    let graph = |with: bool| -> Vec<&str> {
        GRAPH_OPS.iter().filter(|row| row.operands.is_empty() != with).map(|row| row.mnemonic).collect()
    };
    let kernel = |group: &str| -> Vec<&str> {
        let of = |memory| match memory {
            Memory::None => "operands",
            Memory::Index => "sum",
            Memory::Load
            | Memory::LoadElement
            | Memory::Store
            | Memory::LoadRows
            | Memory::StoreRows
            | Memory::Hint => "address",
        };
        let rows = KERNEL_OPS.iter().filter(|row| {
            let alone = row.memory == Memory::None && row.operands == 0 && row.imm == ImmKind::None;
            group == if alone { "alone" } else { of(row.memory) }
        });
        rows.map(|row| row.mnemonic).collect()
    };
    let mut formats: Vec<&str> = FORMATS.iter().map(|row| row.name).collect();
    // The format i32 is added: token ids and positions have it, but no weights do.
    formats.push("i32");
    json!({
        "graph": { "with_operands": graph(true), "without_operands": graph(false) },
        "kernel": {
            "alone": kernel("alone"), "operands": kernel("operands"), "address": kernel("address"), "sum": kernel("sum"),
        },
        "formats": formats,
        "states": STATES.iter().map(|row| row.name).collect::<Vec<_>>(),
        "elements": Elem::ALL.map(Elem::name),
    })
}

/// Returns the names in some entries of [`tables`].
fn names<'t>(tables: &'t Json, parts: &[(&str, Option<&str>)]) -> Vec<&'t str> {
    let lists = parts.iter().map(|(table, group)| group.map_or(&tables[table], |group| &tables[table][group]));
    lists.flat_map(|list| list.as_array().unwrap()).map(|name| name.as_str().unwrap()).collect()
}

/// Returns a regular expression that matches any of the names. If one name is the beginning of
/// another, the longer name must come first.
fn any(mut names: Vec<&str>) -> String {
    names.sort_by_key(|name| (std::cmp::Reverse(name.len()), *name));
    format!("(?:{})", names.join("|").replace('.', "\\."))
}

/// Compares a file with its expected text, or writes it.
#[track_caller]
fn check(path: &Path, text: &str) {
    if ixc_testing::bless::is_asked_for() {
        fs::write(path, text).unwrap();
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    assert!(found == text, "{} differs from the tables: IXC_BLESS=1 rewrites it", path.display());
}

#[test]
fn editor_grammars_match_the_op_tables() {
    let tables = tables();
    check(&folder().join("tree-sitter-ix/ops.json"), &format!("{tables:#}\n"));
    let path = folder().join("textmate/ix.tmLanguage.json");
    let mut grammar: Json = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let graph = [("graph", Some("with_operands")), ("graph", Some("without_operands"))];
    let kernel = ["alone", "operands", "address", "sum"].map(|group| ("kernel", Some(group)));
    let mut kernel = names(&tables, &kernel);
    kernel.push("load_index");
    let mut formats = names(&tables, &[("formats", None), ("states", None)]);
    formats.push("token");
    let elements = any(names(&tables, &[("elements", None)]));
    for (rule, pattern) in [
        ("graph_op", format!("{}\\b", any(names(&tables, &graph)))),
        ("kernel_op", format!("{}\\b", any(kernel))),
        ("format", format!("{}\\b", any(formats))),
        ("vector", format!("{elements}x[0-9]+\\b")),
        ("tile", format!("tile<[0-9]+x[0-9]+x{elements}>")),
    ] {
        grammar["repository"][rule]["match"] = pattern.into();
    }
    check(&path, &format!("{grammar:#}\n"));
}

/// The rules of the TextMate grammar in order.
struct Grammar {
    rules: Vec<(String, Regex)>,
}

impl Grammar {
    fn read() -> Grammar {
        let text = fs::read_to_string(folder().join("textmate/ix.tmLanguage.json")).unwrap();
        let grammar: Json = serde_json::from_str(&text).unwrap();
        let rules = grammar["patterns"].as_array().unwrap().iter().map(|pattern| {
            let name = pattern["include"].as_str().unwrap().trim_start_matches('#');
            let rule = grammar["repository"][name]["match"].as_str().unwrap();
            // Word boundaries of ASCII need no Unicode tables.
            let bytes = syntax::Config::new().unicode(false).utf8(false);
            let regex = Regex::builder().syntax(bytes).build(rule);
            (name.to_owned(), regex.unwrap_or_else(|error| panic!("{name}: {error}")))
        });
        Grammar { rules: rules.collect() }
    }

    /// Splits a line into tokens, each with the rule that matches it.
    ///
    /// # Errors
    /// Fails if no rule matches. The error has the remaining part of the line.
    fn tokens<'t>(&self, line: &'t str) -> Result<Vec<(&str, &'t str)>, String> {
        let (mut tokens, mut at) = (Vec::new(), 0);
        loop {
            at += line[at..].len() - line[at..].trim_start().len();
            if at == line.len() {
                return Ok(tokens);
            }
            let input = Input::new(line).range(at..).anchored(Anchored::Yes);
            let found = self.rules.iter().find_map(|(name, rule)| {
                let end = rule.find(input.clone()).filter(|found| !found.is_empty())?.end();
                Some((name.as_str(), end))
            });
            let (name, end) = found.ok_or_else(|| line[at..].to_owned())?;
            tokens.push((name, &line[at..end]));
            at = end;
        }
    }
}

/// Returns texts of graphs and kernels that the parsers accept: texts of tests, and those of the
/// demo model.
fn texts() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders =
        ["codegen/tests/lower", "dataflow/tests/pieces", "ir/tests/graph", "ir/tests/kernel", "passes/tests/ir"];
    let files = folders.iter().flat_map(|folder| becomes::files(&root.join(folder)).unwrap());
    let is_read = |text: &String| {
        ixc::ir::graph::parse::parse(text).is_ok() || ixc::ir::kernel::parse::parse_unverified(text).is_ok()
    };
    let mut texts: Vec<String> = files.map(|example| example.input).filter(is_read).collect();
    for stage in ["graph", "fused"] {
        texts.push(stdout(ixc(["dump", "--target", "avx2", "--stage", stage])));
    }
    for target in ["avx2", "amx"] {
        let kernels = stdout(ixc(["dump", "--target", target, "--stage", "kernel"]));
        texts.extend(
            kernels.split("\nkernel ").map(|kernel| format!("kernel {}", kernel.trim_start_matches("kernel "))),
        );
    }
    texts
}

#[test]
fn textmate_grammar_covers_all_text() {
    let (grammar, texts) = (Grammar::read(), texts());
    for text in &texts {
        for line in text.lines() {
            let tokens = grammar.tokens(line).unwrap_or_else(|rest| panic!("{line}: no rule takes {rest}"));
            // After the `=` of a definition, the next token is an op or a loop.
            let equals: Vec<usize> = (0..tokens.len()).filter(|&at| tokens[at].1 == "=").collect();
            if let (Some(("value", _)), [at]) = (tokens.first(), &equals[..]) {
                let op = tokens.get(at + 1);
                let is_op = op.is_some_and(|(rule, _)| ["graph_op", "kernel_op", "keyword"].contains(rule));
                assert!(is_op, "{line}: {op:?}");
            }
        }
    }
    assert!(texts.len() >= LEAST_TEXTS, "only {} texts were found", texts.len());
    let tables = tables();
    let groups = ["alone", "operands", "address", "sum"].map(|group| ("kernel", Some(group)));
    for name in names(&tables, &groups) {
        // The name of a kernel op may also be the name of a graph op.
        let tokens = grammar.tokens(name).unwrap();
        assert!(matches!(tokens[..], [("kernel_op" | "graph_op", token)] if token == name), "{tokens:?}");
    }
    assert_eq!(grammar.tokens("%a = !"), Err("!".to_owned()));
}

#[test]
fn tree_sitter_grammar_accepts_all_ir_examples() {
    if Command::new("tree-sitter").arg("--version").output().is_err() {
        println!("NOT RUN: tree-sitter is not installed; its grammar's names were compared with the tables");
        return;
    }
    println!("tool: tree-sitter");
    let here = scratch("tree-sitter");
    let from = folder().join("tree-sitter-ix");
    for file in [
        "grammar.js",
        "ops.json",
        "tree-sitter.json",
        "package.json",
        "test/corpus/graph.txt",
        "test/corpus/kernel.txt",
    ] {
        fs::create_dir_all(here.join(file).parent().unwrap()).unwrap();
        fs::copy(from.join(file), here.join(file)).unwrap();
    }
    let run = |arguments: &[&str]| {
        let output = Command::new("tree-sitter").args(arguments).current_dir(&here).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{arguments:?}: {}{printed}", stderr(&output));
    };
    run(&["generate"]);
    run(&["test"]);
    for (number, text) in texts().iter().enumerate() {
        fs::write(here.join(format!("{number}.ix")), text).unwrap();
        run(&["parse", "--quiet", &format!("{number}.ix")]);
    }
}
