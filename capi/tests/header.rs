//! Comparison of `ixc.h` with the functions, structs and enums of this crate, and with the symbols
//! of the shared library.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Types with another name in C.
const TYPES: &[(&str, &str)] = &[
    ("c_char", "char"),
    ("c_int", "int"),
    ("c_void", "void"),
    ("f32", "float"),
    ("f64", "double"),
    ("i32", "int32_t"),
    ("i64", "int64_t"),
    ("u8", "uint8_t"),
    ("u32", "uint32_t"),
    ("u64", "uint64_t"),
    ("usize", "size_t"),
    ("()", "void"),
];
/// Enums that C passes to functions, which take any number in Rust.
const NUMBERS: &[(&str, &str)] = &[("ixc_type", "int")];

/// A declaration: return type and types of parameters, types and names of fields, or enumerators.
type Declarations = BTreeMap<String, Vec<String>>;

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the text between two markers, and the text after the second marker.
fn between<'t>(text: &'t str, begin: &str, end: &str) -> Option<(&'t str, &'t str)> {
    let from = text.find(begin)? + begin.len();
    let len = text[from..].find(end)?;
    Some((&text[from..from + len], &text[from + len + end.len()..]))
}

/// Returns a name in C's form: `IxcModelOptions` is `ixc_model_options`.
fn snake(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.extend(letter.to_lowercase());
    }
    out
}

/// Returns a type of Rust in C's form, without spaces around `*`.
fn c_type(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(inner) = rust.strip_prefix("*mut ") {
        return c_type(inner) + "*";
    }
    if let Some(inner) = rust.strip_prefix("*const ") {
        let inner = c_type(inner);
        return if inner.ends_with('*') { inner + "const*" } else { format!("const {inner}*") };
    }
    let known = TYPES.iter().find(|(from, _)| *from == rust).map(|(_, to)| (*to).to_owned());
    known.unwrap_or_else(|| snake(rust))
}

/// Splits a declaration of C into its type, without spaces around `*`, and its name.
fn declared(c: &str) -> (String, String) {
    let c = c.trim();
    let at = c.rfind(|letter: char| letter == '*' || letter.is_whitespace()).map_or(0, |at| at + 1);
    let mut kind: String = c[..at].split_whitespace().collect::<Vec<_>>().join(" ");
    while let Some(at) = kind.find(" *").or_else(|| kind.find("* ")) {
        let star = if kind[at..].starts_with(' ') { at } else { at + 1 };
        kind.remove(star);
    }
    let number = NUMBERS.iter().find(|(from, _)| *from == kind).map(|(_, to)| (*to).to_owned());
    (number.unwrap_or(kind), c[at..].to_owned())
}

/// Returns the functions, structs and enums of the header.
fn header() -> [Declarations; 3] {
    let mut text = fs::read_to_string(package().join("include/ixc.h")).unwrap();
    while let Some((comment, _)) = between(&text, "/*", "*/") {
        text = text.replace(&format!("/*{comment}*/"), "");
    }
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.starts_with("extern \"C\""));
    let mut rest = lines.collect::<Vec<_>>().join("\n");
    let [mut functions, mut structs, mut enums] = [(); 3].map(|()| Declarations::new());
    for (begin, all) in [("typedef struct {", &mut structs), ("typedef enum {", &mut enums)] {
        while let Some((body, after)) = between(&rest, begin, "}") {
            let (name, after) = after.split_once(';').unwrap();
            let separator = if begin.contains("enum") { ',' } else { ';' };
            let members = body.split(separator).map(str::trim).filter(|member| !member.is_empty());
            let member = |member: &str| match separator {
                ';' => format!("{0:?}", declared(member)),
                _ => member.to_owned(),
            };
            all.insert(name.trim().to_owned(), members.map(member).collect());
            rest = rest[..rest.find(begin).unwrap()].to_owned() + after;
        }
    }
    for statement in rest.split(';').map(str::trim).filter(|text| text.contains('(') && !text.starts_with("typedef")) {
        let (parameters, _) = between(statement, "(", ")").unwrap();
        let (result, name) = declared(&statement[..statement.find('(').unwrap()]);
        let parameters = parameters.split(',').filter(|one| one.trim() != "void").map(|one| declared(one).0);
        functions.insert(name, std::iter::once(result).chain(parameters).collect());
    }
    [functions, structs, enums]
}

/// Returns the functions, structs and enums of this crate that C sees.
fn crate_declarations() -> [Declarations; 3] {
    let [mut functions, mut structs, mut enums] = [(); 3].map(|()| Declarations::new());
    for entry in fs::read_dir(package().join("src")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.starts_with("//")).collect();
        let text = lines.join("\n");
        let mut rest = &text[..];
        while let Some((name, after)) = between(rest, "extern \"C\" fn ", "(") {
            let (parameters, after) = after.split_once(')').unwrap();
            let (result, after) = after.split_once('{').unwrap();
            let result = c_type(result.trim().strip_prefix("->").unwrap_or("()"));
            let parameters = parameters.split(',').filter_map(|one| Some(c_type(one.split_once(':')?.1)));
            functions.insert(name.to_owned(), std::iter::once(result).chain(parameters).collect());
            rest = after;
        }
        let mut rest = &text[..];
        while let Some((kind, after)) = between(rest, "#[repr(C)]\npub ", " ") {
            let (name, after) = after.split_once('{').unwrap();
            let (body, after) = after.split_once('}').unwrap();
            let members = body.split(',').map(str::trim).filter(|member| !member.is_empty());
            let field = |member: &str| {
                let (name, kind) = member.split_once(':').unwrap();
                let name = name.trim_start_matches("pub(crate) ");
                format!("{:?}", (c_type(kind), name))
            };
            match kind {
                "struct" => structs.insert(snake(name.trim()), members.map(field).collect()),
                _ => enums.insert(snake(name.trim()), members.map(|member| snake(member).to_uppercase()).collect()),
            };
            rest = after;
        }
    }
    [functions, structs, enums]
}

/// Checks that two sets of declarations are the same.
#[track_caller]
fn assert_same(c: &Declarations, rust: &Declarations) {
    assert!(!c.is_empty());
    for name in c.keys().chain(rust.keys()) {
        assert_eq!(c.get(name), rust.get(name), "{name}: in the header, and in the crate");
    }
}

#[test]
fn header_declares_the_functions_and_structs_of_the_crate() {
    let ([functions, structs, mut enums], [rust_functions, rust_structs, rust_enums]) =
        (header(), crate_declarations());
    assert_same(&functions, &rust_functions);
    assert_same(&structs, &rust_structs);
    enums.retain(|name, _| NUMBERS.iter().all(|(number, _)| number != name));
    assert_eq!(enums.keys().collect::<Vec<_>>(), rust_enums.keys().collect::<Vec<_>>());
    for (name, enumerators) in &enums {
        let variants = &rust_enums[name];
        assert_eq!(enumerators.len(), variants.len(), "{name}");
        for (number, (enumerator, variant)) in enumerators.iter().zip(variants).enumerate() {
            let (constant, value) = enumerator.split_once(" = ").unwrap();
            assert!(
                constant.ends_with(&format!("_{variant}")) && value == number.to_string(),
                "{enumerator}, {variant}"
            );
        }
    }
}

#[test]
fn header_has_the_values_of_the_flags() {
    let header = fs::read_to_string(package().join("include/ixc.h")).unwrap();
    let source = fs::read_to_string(package().join("src/flags.rs")).unwrap();
    let mut rest = &source[..];
    let mut count = 0;
    while let Some((flag, after)) = between(rest, "pub(crate) const ", ";") {
        let (name, value) = flag.split_once(": u32 = ").unwrap();
        assert!(header.contains(&format!("#define IXC_{name} {value}u ")), "{flag}");
        (rest, count) = (after, count + 1);
    }
    assert_eq!(count, header.lines().filter(|line| line.contains("u  ") || line.contains("u /*")).count());
}

#[test]
fn shared_library_exports_the_functions_of_the_header() {
    let program = std::env::current_exe().unwrap();
    let mut folders = program.ancestors().skip(1).take(2);
    let library = folders.find(|folder| folder.join("libixc_capi.so").exists()).unwrap().join("libixc_capi.so");
    let Ok(output) = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output() else {
        println!("NOT RUN: there is no nm");
        return;
    };
    let output = String::from_utf8(output.stdout).unwrap();
    let symbols = output.lines().filter_map(|line| line.rsplit(' ').next());
    let exported: BTreeSet<&str> = symbols.filter(|name| name.starts_with("ixc_")).collect();
    let [functions, ..] = header();
    assert_eq!(exported, functions.keys().map(String::as_str).collect());
}
