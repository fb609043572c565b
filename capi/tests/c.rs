//! C programs and a Go program that use the installed library: compiled with each compiler, run,
//! checked by valgrind and AddressSanitizer, and compared with Rust.

use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ixc::embedding::Embedder;
use ixc::generator::Request;
use ixc::loaded_model::{LoadOptions, LoadedModel};
use ixc::moe::{Moe, MoeOptions, Rows};
use ixc::runtime::sample::SamplerSettings;
use ixc::session::Session;
use ixc::{compile, runtime::engine, targets::Target};
use tempfile::TempDir;

/// Number of the signal on Linux.
const SIGBUS: i32 = 7;
const PROMPT: &str = "The borrow checker";
const COMPILERS: [&str; 2] = ["gcc", "clang"];
/// Target of the tests. Valgrind knows its instructions, and every CPU of the tests has it.
const TARGET: &str = "avx2";
const WARNINGS: &[&str] = &["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn demo() -> PathBuf {
    package().join("../examples/models/rustling-q4_k_m.gguf")
}

/// Returns whether a program can be started; otherwise prints that the test does not run.
fn has(program: &str, argument: &str) -> bool {
    let started = Command::new(program).arg(argument).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let has = started.is_ok_and(|status| status.success());
    if !has {
        println!("NOT RUN: there is no {program}");
    }
    has
}

/// Returns the folder of this package's libraries: the folder of this program, or the one above.
fn libraries() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let mut folders = program.ancestors().skip(1).take(2);
    let found = folders.find(|folder| folder.join("libixc_capi.so").exists());
    found.expect("the library is built with its package's tests").to_owned()
}

/// The library, installed in a folder that is removed.
struct Installed(TempDir);

/// Form of the library that a program uses.
#[derive(Clone, Copy, PartialEq)]
enum Linkage {
    Shared,
    Static,
}

impl Installed {
    fn new() -> Installed {
        let folder = tempfile::tempdir().unwrap();
        let script = package().join("install.sh");
        succeeds(Command::new(script).arg("--prefix").arg(folder.path()).arg("--from").arg(libraries()));
        Installed(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns compiler flags from pkg-config, or reads them from the `.pc` file if pkg-config is
    /// missing.
    fn flags(&self, linkage: Linkage) -> Vec<String> {
        if has("pkg-config", "--version") {
            let mut command = Command::new("pkg-config");
            command.env("PKG_CONFIG_PATH", self.path("lib/pkgconfig")).args(["--cflags", "--libs", "ixc"]);
            if linkage == Linkage::Static {
                command.arg("--static");
            }
            let flags = String::from_utf8(succeeds(&mut command).stdout).unwrap();
            return flags.split_whitespace().map(str::to_owned).collect();
        }
        let prefix = self.0.path().display();
        let mut flags = vec![format!("-I{prefix}/include"), format!("-L{prefix}/lib"), "-lixc".to_owned()];
        if linkage == Linkage::Static {
            flags.extend(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"].map(str::to_owned));
        }
        flags
    }

    /// Compiles a program of this package.
    fn compile(&self, compiler: &str, source: &str, linkage: Linkage, options: &[&str]) -> PathBuf {
        let program = self.path(&format!("{}-{compiler}", Path::new(source).file_stem().unwrap().display()));
        let mut flags = self.flags(linkage);
        if linkage == Linkage::Static {
            let library = self.path("lib/libixc.a").display().to_string();
            flags.iter_mut().filter(|flag| *flag == "-lixc").for_each(|flag| flag.clone_from(&library));
        }
        let mut command = Command::new(compiler);
        command.args(["-std=gnu11", "-O1", "-pthread"]).args(WARNINGS).args(options).arg("-o").arg(&program);
        succeeds(command.arg(package().join(source)).args(flags));
        program
    }

    /// Returns a command that starts a program with the installed library.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.path("lib")).stdin(Stdio::null());
        command
    }
}

/// Runs a command that must succeed.
fn succeeds(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let Output { status, stdout, stderr } = &output;
    let texts = [stdout, stderr].map(|text| String::from_utf8_lossy(text));
    assert!(status.success(), "{command:?}: {status}\n{}\n{}", texts[0], texts[1]);
    output
}

fn text_of(output: Output) -> String {
    String::from_utf8(output.stdout).unwrap()
}

/// Returns options like those of `model.c`.
fn options() -> LoadOptions {
    LoadOptions {
        compile: compile::CompileOptions { target: Target::from_name(TARGET), ..compile::CompileOptions::default() },
        run: engine::EngineOptions {
            threads: Some(2),
            context: Some(512),
            sequences: 3,
            ..engine::EngineOptions::default()
        },
        ..LoadOptions::default()
    }
}

/// Generates a text, and returns it with the reason of its end and its tokens.
fn generated(session: &mut Session, request: &Request) -> (String, String, Vec<u32>) {
    let go_on = |_: &_| Ok::<_, ixc::Error>(ControlFlow::Continue(()));
    let generation = session.generate(request, go_on).unwrap();
    let text = session
        .model()
        .tokenizer()
        .unwrap()
        .decode_with(&generation.tokens, ixc::text::tokenizer::DecodeOptions { show_special: false, at_start: false });
    (text.unwrap(), format!("{:?}", generation.end), generation.tokens)
}

fn bits(name: &str, numbers: &[f32]) -> String {
    let bits: Vec<String> = numbers.iter().map(|x| format!("{:08x}", x.to_bits())).collect();
    format!("{name} {}", bits.join(" "))
}

/// Returns the lines that `model.c` prints for texts, logits and vectors.
fn expected_lines() -> Vec<String> {
    let mut session = Session::open(Some(&demo()), &options()).unwrap();
    let prompt = session.model().encode_prompt(PROMPT).unwrap();
    let mut line = |name: &str, tokens: &[u32]| {
        let request = Request { limit: Some(12), ignore_end: true, ..Request::new(tokens, SamplerSettings::greedy()) };
        let (text, end, generated) = generated(&mut session, &request);
        assert_eq!(end, "Limit");
        let bytes: String = text.bytes().map(|byte| format!(" {byte:02x}")).collect();
        (format!("{name} 2 12{bytes}"), [tokens, &generated].concat())
    };
    let (text, tokens) = line("text", &prompt);
    let (more, _) = line("more", &tokens);
    let mut model = LoadedModel::open(Some(&demo()), &options()).unwrap();
    let logits = bits("logits", model.step(&prompt, &[0, prompt.len() as u32 - 1]).unwrap());
    let next = bits("next", model.step(&prompt[..1], &[0]).unwrap());
    let options = LoadOptions { embeddings: true, ..options() };
    let mut embedder = Embedder::new(LoadedModel::open(Some(&demo()), &options).unwrap(), None).unwrap();
    let texts = [PROMPT, "A trait"].map(|text| embedder.encode(text).unwrap());
    let vectors = bits("vectors", &embedder.embed(texts.to_vec()).unwrap().concat());
    vec![text, more, logits, next, vectors]
}

/// Runs `model.c`, and returns its lines.
fn model_lines(installed: &Installed, command: &mut Command) -> Vec<String> {
    let folder = tempfile::tempdir_in(installed.0.path()).unwrap();
    let output = succeeds(command.arg(demo()).arg(TARGET).arg(folder.path()));
    text_of(output).lines().map(str::to_owned).collect()
}

#[test]
fn c_program_runs_a_model_like_rust() {
    let installed = Installed::new();
    let expected = expected_lines();
    for compiler in COMPILERS.into_iter().filter(|compiler| has(compiler, "--version")) {
        for linkage in [Linkage::Shared, Linkage::Static] {
            let program = installed.compile(compiler, "tests/model.c", linkage, &[]);
            let found = model_lines(&installed, &mut installed.command(program));
            for line in &expected {
                let (name, _) = line.split_once(' ').unwrap();
                assert!(found.contains(line), "{compiler}: {name} differs from Rust's");
            }
            for (name, texts) in [("grammar", [" yes", " no"]), ("schema", ["1", "2"])] {
                let hex = |text: &str| text.bytes().map(|byte| format!(" {byte:02x}")).collect::<String>();
                let line = found.iter().find(|line| line.starts_with(name)).unwrap();
                assert!(texts.iter().any(|text| line.ends_with(&hex(text))), "{compiler}: {line}");
            }
        }
    }
}

/// Options for AddressSanitizer and UndefinedBehaviorSanitizer.
const SANITIZERS: [&str; 3] = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// Returns whether a compiler has the sanitizers; otherwise prints that the test does not run.
fn has_sanitizers(compiler: &str, installed: &Installed) -> bool {
    let empty = installed.path("empty.c");
    std::fs::write(&empty, "int main(void) { return 0; }\n").unwrap();
    let mut command = Command::new(compiler);
    command.args(SANITIZERS).arg(&empty).arg("-o").arg(installed.path("empty"));
    let has = command.output().is_ok_and(|output| output.status.success());
    if !has {
        println!("NOT RUN: {compiler} has no sanitizers");
    }
    has
}

#[test]
fn c_program_is_clean_under_address_sanitizer() {
    let installed = Installed::new();
    for compiler in COMPILERS.into_iter().filter(|compiler| has_sanitizers(compiler, &installed)) {
        let program = installed.compile(compiler, "tests/model.c", Linkage::Shared, &SANITIZERS);
        model_lines(&installed, installed.command(program).env("ASAN_OPTIONS", "detect_leaks=1"));
    }
}

#[test]
fn c_program_is_clean_under_valgrind() {
    if !has("valgrind", "--version") {
        return;
    }
    let installed = Installed::new();
    let program = installed.compile("gcc", "examples/generate.c", Linkage::Shared, &["-g"]);
    let mut command = installed.command("valgrind");
    command.args(["-q", "--error-exitcode=9", "--leak-check=full"]);
    command.args(["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]);
    command.arg(format!("--suppressions={}", package().join("tests/valgrind.supp").display()));
    succeeds(command.arg(program).arg(demo()).args([PROMPT, TARGET]));
}

#[test]
fn model_file_that_is_cut_during_a_generation_is_an_error() {
    let installed = Installed::new();
    let program = installed.compile("cc", "tests/cut.c", Linkage::Shared, &[]);
    // Kernels of both targets read the mapped file: `portable` in all steps, the other one while it
    // packs weights.
    for target in ["portable", TARGET] {
        let model = installed.path("cut.gguf");
        std::fs::copy(demo(), &model).unwrap();
        let text = text_of(succeeds(installed.command(&program).arg(&model).arg(target)));
        let is_error =
            |line: &str| line.starts_with("failed: ") && line.contains("changed while in use: its length is 4096");
        assert!(text.lines().count() == 2 && text.lines().all(is_error), "{target}: {text}");
    }
}

#[test]
fn handler_for_one_signal_runs_once() {
    let installed = Installed::new();
    let program = installed.compile("cc", "tests/bus.c", Linkage::Shared, &[]);
    let (model, file) = (installed.path("own.gguf"), installed.path("page"));
    std::fs::copy(demo(), &model).unwrap();
    std::fs::write(&file, [0; 4096]).unwrap();
    let output = installed.command(&program).arg(&model).arg(&file).output().unwrap();
    assert_eq!((output.status.signal(), &*output.stdout), (Some(SIGBUS), &b"own handler\n"[..]), "{output:?}");
}

/// Returns the text that the example programs continue.
fn continued(limit: usize) -> String {
    let options = LoadOptions { run: engine::EngineOptions::default(), ..options() };
    let mut session = Session::open(Some(&demo()), &options).unwrap();
    let prompt = session.model().encode_prompt(PROMPT).unwrap();
    let request = Request { limit: Some(limit), ..Request::new(prompt, SamplerSettings::greedy()) };
    format!("{PROMPT}{}\n", generated(&mut session, &request).0)
}

#[test]
fn examples_in_c_run() {
    let installed = Installed::new();
    for compiler in COMPILERS.into_iter().filter(|compiler| has(compiler, "--version")) {
        let compile = |name: &str| {
            let source = format!("examples/{name}.c");
            let mut command = installed.command(installed.compile(compiler, &source, Linkage::Shared, &[]));
            command.arg(demo());
            command
        };
        let text = text_of(succeeds(compile("generate").args([PROMPT, TARGET])));
        assert_eq!(text, continued(24));
        let text = text_of(succeeds(compile("step").args([PROMPT, TARGET])));
        assert_eq!(text.lines().next(), continued(12).lines().next());
        assert!(text.lines().count() >= 2 && text.matches(PROMPT).count() >= 2, "{text}");
        let text = text_of(succeeds(compile("embed").args([TARGET, PROMPT, "The borrow checker", "A trait"])));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() == 3 && lines[0] == lines[1] && lines[0].starts_with("1.0000"), "{text}");
        let mut chat =
            compile("chat").args(["chatml", TARGET]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut chat.stdin.take().unwrap(), b"What is a trait?\nAnd a lifetime?\n").unwrap();
        let output = chat.wait_with_output().unwrap();
        assert!(output.status.success(), "chat: {}", output.status);
        assert!(text_of(output).lines().count() >= 2);
    }
}

#[test]
fn example_in_go_runs() {
    if !has("go", "version") || !has("pkg-config", "--version") {
        return;
    }
    let installed = Installed::new();
    let program = installed.path("go-generate");
    let mut command = Command::new("go");
    command.args(["build", "-o"]).arg(&program).current_dir(package().join("examples/go"));
    command.env("PKG_CONFIG_PATH", installed.path("lib/pkgconfig")).env("GOCACHE", installed.path("go-cache"));
    succeeds(command.env("GOFLAGS", "-mod=mod").env("CGO_ENABLED", "1"));
    let text = text_of(succeeds(installed.command(program).arg(demo()).args([PROMPT, TARGET])));
    assert_eq!(text, continued(24));
}

#[test]
fn c_program_computes_experts_through_c_api() {
    let installed = Installed::new();
    let model = demo();
    let program = installed.compile("cc", "tests/moe.c", Linkage::Shared, &["-std=c11"]);
    let run = succeeds(installed.command(program).arg(&model));

    let options = MoeOptions {
        compile: compile::CompileOptions { target: Some(Target::AVX2), ..compile::CompileOptions::default() },
        run: engine::EngineOptions { threads: Some(2), ..engine::EngineOptions::default() },
    };
    let moe = Moe::open(Some(&model), &options).unwrap();
    let text = String::from_utf8(run.stdout).unwrap();
    assert_eq!(text.lines().count(), moe.layers().len());
    for (line, layer) in text.lines().zip(moe.layers()) {
        let (number, sums) = line.split_once(' ').unwrap();
        assert_eq!(number, layer.number.to_string());
        let (width, used) = (layer.width as usize, layer.used as usize);
        let rows: Vec<f32> = (0..9 * width).map(|i| ((i * 7 % 23) as f32 - 11.0) / 8.0).collect();
        let id = |row: usize, slot: usize| {
            if row % 3 == slot % 3 { -1 } else { ((row + slot) % layer.experts as usize) as i32 }
        };
        let ids: Vec<i32> = (0..9 * used).map(|i| id(i / used, i % used)).collect();
        let weights: Vec<f32> = (0..9 * used).map(|i| (1 + i % used) as f32 / 4.0).collect();
        let expected = moe.submit(layer.number, Rows::F32(&rows), &ids, &weights).unwrap().wait().unwrap();
        let bits: Vec<String> = expected.iter().map(|x| format!("{:08x}", x.to_bits())).collect();
        assert!(sums == bits.join(" "), "layer {number}: other bits");
    }
}
