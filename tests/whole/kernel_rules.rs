//! An edited kernel that breaks a rule is refused with the position of the error:
//! `file:line:column`, the line, and a caret. Every command that reads a file of kernel IR does
//! this.

use std::fs;

use crate::support::{ixc, scratch, stderr};

/// A valid kernel. Each edit of [`RULES`] makes it break a rule.
const KERNEL: &str = "kernel k where %n in 0..=8 {
  buffer %x : read 32*%n
  buffer %ids : index(%n) 4*%n
  buffer %s : scratch 64
  buffer %y : write 32*%n
  %zero = splat f32x8 0.0
  %t = for %i in 0..%n carry(%s0 = %zero) {
    %a = load f32x8 %x[32*%i]
    %row = load_index %ids[4*%i]
    %b = load f32x8 %x[32*%row]
    %c = add f32x8 %a, %b
    store f32x8 %y[32*%i], %c
    yield %c
  }
  store f32x8 %s[0], %t
}
";

/// Edits: the text to replace, its replacement, and a part of the expected error.
const RULES: &[(&str, &str, &str)] = &[
    // Edits that break bounds of accesses.
    ("load f32x8 %x[32*%i]", "load f32x8 %x[32*%i + 4]", "the access ends up to 4 bytes after the end of buffer %x"),
    ("store f32x8 %y[32*%i], %c", "store f32x8 %y[64*%i], %c", "after the end of buffer %y"),
    ("load f32x8 %x[32*%i]", "load f32x8 %x[32*%i - 4]", "offset in buffer %x can be -4, must"),
    ("store f32x8 %s[0], %t", "store f32x8 %s[40], %t", "the access ends up to 8 bytes after the end of buffer %s"),
    ("load f32x8 %x[32*%row]", "load f32x8 %x[32*%row + 32]", "after the end of buffer %x"),
    // Edits that break rules of access to buffers.
    ("store f32x8 %y[32*%i], %c", "store f32x8 %x[32*%i], %c", "buffer %x is `read`, must be"),
    ("load f32x8 %x[32*%i]", "load f32x8 %y[32*%i]", "buffer %y is `write`, must be"),
    ("load_index %ids[4*%i]", "load_index %x[4*%i]", "buffer %x is `read`, must be"),
    // Edits that break type rules.
    ("add f32x8 %a, %b", "add f32x4 %a, %b", "expected f32x4, found f32x8"),
    ("add f32x8 %a, %b", "iadd f32x8 %a, %b", "expected an element type of i8, i16, i32, found f32x8"),
    ("splat f32x8 0.0", "splat f32x32 0.0", "type"),
    ("splat f32x8 0.0", "splat f32x7 0.0", "type"),
    ("%zero = splat f32x8 0.0", "%zero = splat i32x8 0", "one type throughout"),
    // Edits of operands and immediates.
    ("add f32x8 %a, %b", "add f32x8 %a", "expected `,`"),
    ("splat f32x8 0.0", "splat f32x8", "expected a finite float"),
    // Edits of names.
    ("add f32x8 %a, %b", "add f32x8 %a, %d", "there is no value %d"),
    ("%c = add", "%a = add", "there is a value %a already"),
    ("add f32x8 %a, %b", "added f32x8 %a, %b", "there is no op `added`"),
    ("[32*%i], %c", "[32*%j], %c", "%j"),
    ("buffer %s : scratch", "buffer %x : scratch", "there is a buffer %x already"),
    ("load f32x8 %x[32*%i]", "load f32x8 %z[32*%i]", "%z"),
    // Edits of index loads: the caller checks values of a fixed width and alignment.
    ("load_index %ids[4*%i]", "load_index %ids[2*%i]", "multiples of 4"),
    // Edits of dims, trip counts and sizes.
    ("%n in 0..=8", "%n in 8..=0", "must satisfy 0 <= lo <= hi"),
    ("in 0..%n carry", "in 0..%n - 1 carry", "trip is -1 for some dims"),
    ("buffer %y : write 32*%n", "buffer %y : write 32*%m", "%m"),
    // Edits of the text's form.
    ("    yield %c\n", "", "yield"),
    ("buffer %s : scratch 64", "buffer %s : scratch 64 bytes", "expected"),
];

#[test]
fn rule_violations_in_edited_kernels_show_their_position() {
    let folder = scratch("kernel-rules");
    let file = folder.join("k.ix");
    let path = file.to_str().unwrap();
    let run = |text: &str, command: &[&str]| {
        fs::write(&file, text).unwrap();
        let output = ixc(command.iter().map(|word| if *word == "FILE" { path } else { *word })).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    // The original kernel breaks no rule.
    let show = ["kernel", "show", "FILE", "--stage", "ir", "--target", "avx2"];
    assert_eq!(run(KERNEL, &show), (Some(0), String::new()));
    for (from, to, rule) in RULES {
        let edited = KERNEL.replacen(from, to, 1);
        assert_ne!(edited, KERNEL, "{from}");
        let (status, said) = run(&edited, &show);
        assert_eq!(status, Some(65), "{to}: {said}");
        let lines: Vec<&str> = said.lines().collect();
        let [first, source, caret] = lines[..] else { panic!("{to}: {said}") };
        let (place, problem) = first.strip_prefix(&format!("error: {path}:")).unwrap().split_once(": ").unwrap();
        assert!(problem.contains(rule), "{to}: {said}");
        let (line, column) = place.split_once(':').unwrap();
        let (line, column): (usize, usize) = (line.parse().unwrap(), column.parse().unwrap());
        let text = edited.lines().nth(line - 1).unwrap_or_default();
        assert_eq!(source, format!("  {text}"), "{said}");
        assert_eq!(caret, format!("{}^", " ".repeat(2 + column - 1)), "{said}");
        // The reported line is the edited one, unless the error shows only in a later line.
        let is_edited = KERNEL.lines().nth(line - 1) != Some(text);
        let later = ["one type throughout", "expected `,`", "expected a finite float"];
        assert!(is_edited || later.contains(rule), "{said}");
    }
}

#[test]
fn every_kernel_command_shows_the_error_position() {
    let folder = scratch("kernel-rules-commands");
    let (file, kernels) = (folder.join("k.ix"), folder.join("kernels"));
    fs::create_dir(&kernels).unwrap();
    let wrong = KERNEL.replacen("load f32x8 %x[32*%i]", "load f32x8 %x[32*%i + 4]", 1);
    for path in [&file, &kernels.join("k.ix")] {
        fs::write(path, &wrong).unwrap();
    }
    let [path, kernels] = [&file, &kernels].map(|path| path.to_str().unwrap().to_owned());
    let small = folder.join("small.ix").to_str().unwrap().to_owned();
    let commands: [&[&str]; 13] = [
        &["kernel", "show", &path],
        &["kernel", "run", &path, "--dims", "1"],
        &["kernel", "bench", &path, "--dims", "1"],
        &["kernel", "cost", &path, "--dims", "1", "--target", "avx2"],
        &["kernel", "diff", &path],
        &["kernel", "diff", "silu", &path],
        &["kernel", "tune", &path, "--no-save"],
        &["kernel", "reduce", &path, "-o", &small],
        &["kernel", "export", &path, "-o", &small],
        &["run", "--override", &path, "-p", "a", "-n", "1"],
        &["run", "--override", &kernels, "-p", "a", "-n", "1"],
        &["compile", "--override", &path, "--no-weights", "-o", &small],
        &["dump", "--override", &path, "--stage", "kernel"],
    ];
    for command in commands {
        let output = ixc(command).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(65), "{command:?}: {said}");
        let shown = "k.ix:8:5: the access ends up to 4 bytes after the end of buffer %x";
        assert!(said.contains(shown) && said.ends_with("\n      ^\n"), "{command:?}: {said}");
    }
}

/// Checks that an invalid spec line of a kernel is shown with its position.
#[test]
fn invalid_kernel_spec_is_shown_with_its_position() {
    let file = scratch("kernel-rules-spec").join("k.ix");
    fs::write(&file, format!("; made by hand\n; spec: linear format=q4\n{KERNEL}")).unwrap();
    let output = ixc(["kernel", "run", file.to_str().unwrap()]).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(65), "{said}");
    assert!(said.contains("k.ix:2:9: format is \"q4\"; expected") && said.ends_with("\n          ^\n"), "{said}");
}

/// Checks that a signature that differs from the spec's is shown with its position.
#[test]
fn signature_mismatch_is_shown_with_its_position() {
    let file = scratch("kernel-rules-signature").join("k.ix");
    let shown = crate::support::stdout(ixc(["kernel", "show", "add", "--stage", "ir", "--target", "avx2"]));
    let said = |text: &str| {
        assert_ne!(text, shown);
        fs::write(&file, text).unwrap();
        let output = ixc(["kernel", "run", file.to_str().unwrap(), "--target", "avx2", "--emulate"]).output().unwrap();
        assert_eq!(output.status.code(), Some(65), "{}", stderr(&output));
        stderr(&output)
    };
    let buffer = shown.lines().find(|line| line.trim().starts_with("buffer %b")).unwrap();
    let number = 1 + shown.lines().position(|line| line == buffer).unwrap();
    let larger = format!("{buffer}0");
    let other = said(&shown.replacen(buffer, &larger, 1));
    assert!(
        other.contains(&format!("k.ix:{number}:3: the signature differs from that of the original kernel")),
        "{other}"
    );
    assert!(other.ends_with(&format!("\n  {larger}\n    ^\n")), "{other}");
    // Dims are in the kernel's first line.
    let line = shown.lines().find(|line| line.starts_with("kernel ")).unwrap();
    let number = 1 + shown.lines().position(|text| text == line).unwrap();
    let other = said(&shown.replacen(" {", " where %more in 0..=1 {", 1));
    assert!(other.contains(&format!("k.ix:{number}:1: ")) && other.contains("where %more in 0..=1"), "{other}");
}
